//! Calls over connections of TCP, beside those of `every_transport`.

use crate::rig::{PATIENCE, Rig, Serve, echo, frame, read_to_end};
use bytes::Bytes;
use core::time::Duration;
use futures_util::future::{join, join_all};
use pluvio_env::{Address, CallError, Frame, Handled, Network};
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex, mpsc};

#[test]
fn requests_of_one_connection_are_handled_in_the_order_of_the_calls() {
    let rig = Rig::new(1);
    let seen = Arc::new(Mutex::new(Vec::new()));
    let listening = rig.listen({
        let seen = Arc::clone(&seen);
        Serve(move |_, request: Frame| {
            seen.lock().unwrap().push(request.opcode);
            Handled::Now(request)
        })
    });
    rig.run(|network| async move {
        let to = &listening.address;
        let calls = (0..3_000).map(|n| network.call(to, frame(n, vec![0; 50]), PATIENCE));
        for reply in join_all(calls).await {
            reply.unwrap();
        }
    });
    assert_eq!(*seen.lock().unwrap(), (0..3_000).collect::<Vec<_>>());
}

#[test]
fn nobody_listening_is_unreachable_with_a_reason() {
    let rig = Rig::new(1);
    let to = rig.listen(echo()).address;
    let error = rig.call(&to, frame(1, "x")).unwrap_err();
    assert_eq!(
        error.to_string(),
        format!("cannot reach {to}: connection refused: nothing listens there")
    );
    let error = rig.call(&Address::from("no port here"), frame(1, "x"));
    assert!(error.unwrap_err().to_string().contains("write host:port"));
}

/// Stands before a server. The bytes of the first connection after the handshake get lost, as in a
/// cut. The second connection is passed on. Ends when the first one is closed.
fn lossy_at_first(to: Address) -> (Address, std::thread::JoinHandle<()>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let here = Address::from(listener.local_addr().unwrap().to_string().as_str());
    let thread = std::thread::Builder::new().spawn(move || {
        let (mut first, _) = listener.accept().unwrap();
        let mut server = TcpStream::connect(&*to.0).unwrap();
        let mut hello = [0; 32];
        first.read_exact(&mut hello).unwrap();
        server.write_all(&hello).unwrap();
        server.read_exact(&mut hello).unwrap();
        first.write_all(&hello).unwrap();
        let (client, _) = listener.accept().unwrap();
        let server = TcpStream::connect(&*to.0).unwrap();
        for (mut from, mut into) in [
            (client.try_clone().unwrap(), server.try_clone().unwrap()),
            (server, client),
        ] {
            let copy = move || drop(std::io::copy(&mut from, &mut into));
            std::thread::Builder::new().spawn(copy).unwrap();
        }
        read_to_end(&mut first);
    });
    (here, thread.unwrap())
}

// shows: CALL-2, CALL-3
#[test]
fn a_connection_that_gave_nothing_while_a_call_timed_out_is_replaced_and_ends_with_its_other_calls()
{
    let server = Rig::new(1);
    let rig = Rig::new(1);
    let listening = server.listen(echo());
    let (to, thread) = lossy_at_first(listening.address.clone());
    let (short, long) = (Duration::from_millis(300), Duration::from_secs(1));
    rig.run(|network| async move {
        let others = network.call(&to, frame(1, "lost too"), long);
        let first = async {
            let first = network.call(&to, frame(2, "lost"), short).await;
            assert_eq!(first, Err(CallError::TimedOut(to.clone(), short)));
            let second = network.call(&to, frame(3, "arrives"), PATIENCE).await;
            assert_eq!(second, Ok(frame(3, "arrives")));
        };
        let (other, ()) = join(others, first).await;
        assert_eq!(other, Err(CallError::TimedOut(to.clone(), long)));
    });
    thread.join().unwrap();
    let totals = rig.network.counters().totals();
    assert_eq!((totals.connects, totals.connects_replaced), (2, 1));
    assert_eq!(totals.requests_sent, 3);
}

// shows: NET-4
#[test]
fn a_request_that_could_not_be_sent_in_time_is_unreachable_not_timed_out() {
    let rig = Rig::with(1, |options| options.connect_limit = PATIENCE);
    // Nobody accepts here, and the handshake is never answered.
    let silent = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let to = Address::from(silent.local_addr().unwrap().to_string().as_str());
    let limit = Duration::from_millis(30);
    let outcome = rig.run(|network| async move { network.call(&to, frame(1, "x"), limit).await });
    assert!(
        matches!(&outcome, Err(CallError::Unreachable(_, why)) if why.to_string().contains("could not be sent")),
        "{outcome:?}"
    );
}

#[test]
fn threads_without_an_event_loop_can_call() {
    let rig = Rig::new(2);
    let listening = rig.listen(echo());
    let other = Rig::new(1);
    let (send, receive) = mpsc::channel();
    let (network, to) = (Arc::clone(&rig.network), listening.address.clone());
    // Another runtime's core is a stranger to this network as any other thread is.
    other.run(|_| async move {
        let reply = network.call(&to, frame(3, "x"), PATIENCE).await;
        send.send(reply).unwrap();
    });
    assert_eq!(receive.recv().unwrap().unwrap(), frame(3, Bytes::from("x")));
}
