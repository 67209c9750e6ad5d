//! Calls over real loopback connections.

use crate::rig::{Lcg, PATIENCE, Rig, Serve, echo, frame, read_to_end};
use bytes::Bytes;
use core::time::Duration;
use futures_util::future::{join, join_all, select};
use pluvio_env::{Address, CallError, Frame, Handled, Network};
use pluvio_units::CoreId;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Mutex, mpsc};
use tokio::sync::{Notify, Semaphore, oneshot};

// shows: NET-4
#[test]
fn many_concurrent_calls_of_all_sizes_get_their_own_replies() {
    let rig = Rig::new(2);
    // Every third answer comes later, in an order of its own.
    let listening = rig.listen(Serve(|_, request: Frame| {
        if request.opcode.is_multiple_of(3) {
            Handled::Later(Box::pin(async move {
                for _ in 0..request.opcode % 7 {
                    tokio::task::yield_now().await;
                }
                request
            }))
        } else {
            Handled::Now(request)
        }
    }));
    let to = listening.address.clone();
    let tasks = rig.runtime.tasks();
    rig.run(|network| async move {
        let mut ends = Vec::new();
        for core in 0..2 {
            let (network, to) = (Arc::clone(&network), to.clone());
            let (give, take) = oneshot::channel();
            ends.push(take);
            tasks.spawn(CoreId(core), "test", async move {
                let mut random = Lcg(u64::from(core));
                let calls = (0..400u16).map(|opcode| {
                    let sizes = [0, 1, 100, 5_000, 70_000, 300_000];
                    let most = sizes[random.below(6)];
                    let size = random.below(most + 1);
                    let request = Frame {
                        opcode,
                        meta: vec![opcode as u8; random.below(200)].into(),
                        payload: vec![!opcode as u8; size].into(),
                    };
                    let (network, to) = (&network, &to);
                    async move {
                        let reply = network.call(to, request.clone(), PATIENCE).await;
                        assert_eq!(reply.unwrap(), request);
                    }
                });
                join_all(calls).await;
                give.send(()).unwrap();
            });
        }
        for end in ends {
            end.await.unwrap();
        }
    });
    let totals = rig.network.counters().totals();
    assert_eq!(totals.connects, 2, "one connection per core and peer");
    assert_eq!(
        (totals.requests_received, totals.replies_received),
        (800, 800)
    );
}

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

// shows: NET-4
#[test]
fn a_connection_that_breaks_ends_its_calls_as_lost() {
    let rig = Rig::new(1);
    let arrived = Arc::new(Notify::new());
    let handled = Arc::new(AtomicUsize::new(0));
    let listening = rig.listen({
        let (arrived, handled) = (Arc::clone(&arrived), Arc::clone(&handled));
        Serve(move |_, _| {
            handled.fetch_add(1, SeqCst);
            arrived.notify_one();
            Handled::Later(Box::pin(core::future::pending()))
        })
    });
    let to = listening.address.clone();
    let outcome = rig.run(|network| async move {
        let call = network.call(&to, frame(1, "x"), PATIENCE);
        let breaking = async {
            arrived.notified().await;
            drop(listening);
        };
        join(call, breaking).await.0
    });
    assert!(matches!(outcome, Err(CallError::Lost(_))), "{outcome:?}");
    assert_eq!(handled.load(SeqCst), 1);
    assert_eq!(rig.network.counters().totals().calls_lost, 1);
}

// shows: ACCEPT-2, CALL-2
#[test]
fn calls_work_again_after_the_server_restarted_on_its_port() {
    let client = Rig::new(1);
    let server = Rig::new(2);
    let mut listening = server.listen(echo());
    let to = listening.address.clone();
    for round in 0..5 {
        assert_eq!(
            client.call(&to, frame(round, "hello")).unwrap().opcode,
            round
        );
        drop(listening);
        // The end of the old connection may reach the client only with this call.
        let down = client.call(&to, frame(9, "nobody there")).unwrap_err();
        assert!(
            matches!(down, CallError::Unreachable(..) | CallError::Lost(_)),
            "{down}"
        );
        listening = server.listen_at(&to.0, echo());
    }
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

// shows: CALL-1
#[test]
fn a_late_reply_is_dropped_and_the_connection_goes_on() {
    let rig = Rig::new(1);
    let release = Arc::new(Notify::new());
    let listening = rig.listen({
        let release = Arc::clone(&release);
        Serve(move |_, request: Frame| {
            if request.opcode == 0 {
                return Handled::Now(request);
            }
            let release = Arc::clone(&release);
            Handled::Later(Box::pin(async move {
                release.notified().await;
                request
            }))
        })
    });
    rig.run(|network| async move {
        let to = &listening.address;
        let limit = Duration::from_millis(30);
        network
            .call(to, frame(0, "connects"), PATIENCE)
            .await
            .unwrap();
        let late = network.call(to, frame(1, "waits"), limit).await;
        assert_eq!(late, Err(CallError::TimedOut(to.clone(), limit)));
        release.notify_one();
        // The late reply comes before this one, on the same connection.
        release.notify_one();
        network
            .call(to, frame(0, "goes on"), PATIENCE)
            .await
            .unwrap();
        network
            .call(to, frame(1, "answered"), PATIENCE)
            .await
            .unwrap();
        let totals = network.counters().totals();
        assert_eq!((totals.connects, totals.calls_timed_out), (1, 1));
        assert_eq!(totals.replies_late, 1);
    });
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
fn frames_over_the_limit_are_refused_on_the_way_out_and_the_connection_lives() {
    let small = Rig::with(1, |options| options.frame_bytes_max = 1_000);
    let rig = Rig::new(1);
    let listening = small.listen(Serve(|_, request: Frame| {
        Handled::Now(frame(request.opcode, vec![1; 10 * request.len()]))
    }));
    let to = listening.address;
    assert_eq!(rig.call(&to, frame(1, vec![0; 100])).unwrap().len(), 1_000);
    let error = rig.call(&to, frame(1, vec![0; 1_001]));
    assert_eq!(
        error,
        Err(CallError::TooLarge(1_001, 1_000)),
        "the peer's limit"
    );
    let error = rig.call(&to, frame(1, vec![0; 101]));
    assert_eq!(error, Err(CallError::TooLarge(1_010, 1_000)), "the reply");
    let error = rig.call(&to, frame(1, vec![0; 20 << 20]));
    assert!(
        matches!(error, Err(CallError::TooLarge(..))),
        "the own limit"
    );
    assert_eq!(rig.call(&to, frame(1, vec![0; 10])).unwrap().len(), 100);
    assert_eq!(rig.network.counters().totals().connects, 1);
}

// shows: NET-5
#[test]
fn a_begun_request_is_finished_although_its_caller_is_gone() {
    let server = Rig::new(1);
    let (release, finished) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
    let arrived = Arc::new(Notify::new());
    let listening = server.listen({
        let (release, finished) = (Arc::clone(&release), Arc::clone(&finished));
        let arrived = Arc::clone(&arrived);
        Serve(move |_, request| {
            arrived.notify_one();
            let (release, finished) = (Arc::clone(&release), Arc::clone(&finished));
            Handled::Later(Box::pin(async move {
                release.notified().await;
                finished.notify_one();
                request
            }))
        })
    });
    let to = listening.address.clone();
    {
        let client = Rig::new(1);
        client.run(|network| async move {
            let call = network.call(&to, frame(1, "x"), PATIENCE);
            select(call, Box::pin(arrived.notified())).await;
        });
        client.runtime.shutdown(PATIENCE);
    }
    server.run(|_| async move {
        release.notify_one();
        finished.notified().await;
    });
}

// shows: NET-3
#[test]
fn the_service_never_holds_more_requests_than_the_bound() {
    let rig = Rig::with(1, |options| options.requests_max = 4);
    let (held, most) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let listening = rig.listen({
        let (held, most) = (Arc::clone(&held), Arc::clone(&most));
        Serve(move |_, request| {
            most.fetch_max(held.fetch_add(1, SeqCst) + 1, SeqCst);
            let held = Arc::clone(&held);
            Handled::Later(Box::pin(async move {
                tokio::task::yield_now().await;
                held.fetch_sub(1, SeqCst);
                request
            }))
        })
    });
    rig.run(|network| async move {
        let calls = (0..200).map(|n| network.call(&listening.address, frame(n, "x"), PATIENCE));
        for reply in join_all(calls).await {
            reply.unwrap();
        }
    });
    assert_eq!(most.load(SeqCst), 4);
}

// shows: NET-3
#[test]
fn calls_over_the_bound_wait_for_room_and_all_end() {
    let rig = Rig::with(1, |options| {
        options.calls_max = 3;
        options.send_queue_bytes_max = 1_000;
    });
    let gate = Arc::new(Semaphore::new(0));
    let listening = rig.listen({
        let gate = Arc::clone(&gate);
        Serve(move |_, request| {
            let gate = Arc::clone(&gate);
            Handled::Later(Box::pin(async move {
                gate.acquire().await.unwrap().forget();
                request
            }))
        })
    });
    rig.run(|network| async move {
        let calls =
            (0..100).map(|n| network.call(&listening.address, frame(n, vec![7; 900]), PATIENCE));
        let calls = join_all(calls);
        let open = async {
            for _ in 0..100 {
                gate.add_permits(1);
                tokio::task::yield_now().await;
            }
        };
        for reply in join(calls, open).await.0 {
            reply.unwrap();
        }
    });
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
