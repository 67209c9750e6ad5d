//! Peers that break the rules, and ports at their bounds.

use crate::rig::{
    PATIENCE, Rig, Serve, echo, frame, header, hello, raw, raw_welcomed, read_to_end,
};
use bytes::Bytes;
use core::time::Duration;
use pluvio_env::{Address, CallError, Frame, Handled, Network};
use std::io::{Read, Write};
use std::net::Shutdown;
use std::sync::{Arc, mpsc};

const SHORT: Duration = Duration::from_millis(50);

#[test]
fn other_protocols_are_told_where_they_are() {
    let rig = Rig::new(1);
    let to = rig.listen(echo()).address;
    let listening = rig.listen_at(&to.0, echo());
    for (words, answer) in [
        (&b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"[..], "HTTP/1.1 400 "),
        (b"*1\r\n$4\r\nPING\r\n", "-ERR this is Pluvio's RPC port"),
        (b"PING\r\n", "-ERR this is Pluvio's RPC port"),
        (b"\x16\x03\x01\x02\x00\x01", "-ERR "),
    ] {
        let mut stream = raw(&listening.address);
        stream.write_all(words).unwrap();
        let said = String::from_utf8(read_to_end(&mut stream)).unwrap();
        assert!(said.starts_with(answer), "{said}");
    }
    assert_eq!(rig.network.counters().totals().handshakes_failed, 4);
}

#[test]
fn a_side_with_another_protocol_version_is_refused_with_both_versions() {
    let rig = Rig::new(1);
    let listening = rig.listen(echo());
    let mut stream = raw(&listening.address);
    stream.write_all(&hello(7, 9)).unwrap();
    let said = read_to_end(&mut stream);
    assert_eq!(said[12..14], [1, 0]);
    let text = std::str::from_utf8(&said[32..]).unwrap();
    assert!(text.contains("7..=9 there and 1..=1 here"), "{text}");
    // One that also speaks this version is welcome.
    let mut stream = raw(&listening.address);
    stream.write_all(&hello(1, 9)).unwrap();
    stream.read_exact(&mut [0; 32]).unwrap();
}

#[test]
fn a_client_says_what_it_found_instead_of_a_pluvio_port() {
    let rig = Rig::new(1);
    let stranger = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let to = Address::from(stranger.local_addr().unwrap().to_string().as_str());
    let thread = std::thread::Builder::new().spawn(move || {
        for answer in [&b"+OK redis\r\n"[..], b""] {
            let (mut stream, _) = stranger.accept().unwrap();
            stream.read_exact(&mut [0; 32]).unwrap();
            stream.write_all(answer).unwrap();
        }
    });
    let error = rig.call(&to, frame(1, "x")).unwrap_err().to_string();
    assert!(
        error.contains("not a Pluvio RPC port (it answered \"+OK redis\\r\\n\")"),
        "{error}"
    );
    let error = rig.call(&to, frame(1, "x")).unwrap_err().to_string();
    assert!(
        error.contains("closed the connection during the handshake"),
        "{error}"
    );
    thread.unwrap().join().unwrap();
}

#[test]
fn a_connection_that_says_nothing_or_little_is_closed() {
    let rig = Rig::with(1, |options| options.handshake_limit = SHORT);
    let listening = rig.listen(echo());
    for part in [0, 1, 31] {
        let mut stream = raw(&listening.address);
        stream.write_all(&hello(1, 1)[..part]).unwrap();
        assert!(read_to_end(&mut stream).is_empty());
    }
    assert_eq!(rig.network.counters().totals().handshakes_failed, 3);
}

#[test]
fn one_that_only_looks_whether_the_port_is_open_is_no_stranger() {
    let rig = Rig::new(1);
    let listening = rig.listen(echo());
    let mut stream = raw(&listening.address);
    stream.shutdown(Shutdown::Write).unwrap();
    assert!(read_to_end(&mut stream).is_empty());
    assert_eq!(rig.network.counters().totals().handshakes_failed, 0);
}

// shows: NET-3
#[test]
fn half_a_frame_is_waited_for_only_so_long() {
    let rig = Rig::with(1, |options| options.frame_limit = SHORT);
    let listening = rig.listen(echo());
    let whole = [&header(1, 0, 5)[..], b"hello"].concat();
    for part in [1, 31, 32, 34] {
        let mut stream = raw_welcomed(&listening.address);
        // A whole one before does not help.
        stream.write_all(&whole).unwrap();
        stream.write_all(&whole[..part]).unwrap();
        assert_eq!(read_to_end(&mut stream).len(), whole.len(), "{part}");
    }
    let totals = rig.network.counters().totals();
    assert_eq!((totals.frames_overdue, totals.requests_received), (4, 4));
}

#[test]
fn an_idle_connection_stays_open_beyond_every_limit() {
    let rig = Rig::with(1, |options| {
        options.frame_limit = 4 * SHORT;
        options.stall_limit = Duration::from_secs(1);
        options.handshake_limit = Duration::from_secs(5);
    });
    let listening = rig.listen(echo());
    let to = listening.address.clone();
    let clock = rig.runtime.clock();
    rig.run(|network| async move {
        network
            .call(&to, frame(1, vec![1; 100_000]), PATIENCE)
            .await
            .unwrap();
        clock.sleep(6 * SHORT).await;
        network
            .call(&to, frame(1, vec![1; 100_000]), PATIENCE)
            .await
            .unwrap();
        assert_eq!(network.counters().totals().connects, 1);
    });
}

// shows: NET-2
#[test]
fn garbage_and_huge_lengths_close_the_connection_and_only_it() {
    let rig = Rig::new(1);
    let listening = rig.listen(echo());
    let mut damaged = header(1, 0, 0);
    damaged[9] ^= 1;
    let mut reply = header(1, 0, 0);
    reply[3] = 1;
    let checksum = pluvio_units::crc32c(&[&reply[..28]]);
    reply[28..].copy_from_slice(&checksum.to_le_bytes());
    let inputs = [
        vec![0xff; 5_000],
        damaged.to_vec(),
        reply.to_vec(),
        header(1, 0, 1 << 30).to_vec(),
        header(1, u32::MAX, u32::MAX).to_vec(),
    ];
    for input in &inputs {
        let mut stream = raw_welcomed(&listening.address);
        // The other side may close while this is written.
        let _reset = stream.write_all(input);
        assert!(read_to_end(&mut stream).is_empty());
    }
    let totals = rig.network.counters().totals();
    assert_eq!(totals.frames_rejected, inputs.len() as u64);
    assert_eq!(totals.requests_received, 0);
    rig.call(&listening.address, frame(1, "others are served"))
        .unwrap();
}

#[test]
fn a_server_that_answers_nonsense_loses_the_connection() {
    let rig = Rig::new(1);
    let server = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let to = Address::from(server.local_addr().unwrap().to_string().as_str());
    let thread = std::thread::Builder::new().spawn(move || {
        for nonsense in [vec![7; 100], header(0, 0, 0).to_vec()] {
            let (mut stream, _) = server.accept().unwrap();
            stream.write_all(&hello(1, 1)).unwrap();
            stream.read_exact(&mut [0; 32 + 32 + 1]).unwrap();
            stream.write_all(&nonsense).unwrap();
            read_to_end(&mut stream);
        }
    });
    for _ in 0..2 {
        let outcome = rig.call(&to, frame(1, "x"));
        assert!(matches!(outcome, Err(CallError::Lost(_))), "{outcome:?}");
    }
    thread.unwrap().join().unwrap();
    assert_eq!(rig.network.counters().totals().frames_rejected, 2);
}

// shows: NET-3
#[test]
fn a_peer_that_reads_no_replies_is_given_up() {
    let rig = Rig::with(1, |options| {
        options.stall_limit = 4 * SHORT;
        options.reply_queue_bytes_max = 1 << 20;
    });
    let listening = rig.listen(Serve(|_, _| Handled::Now(frame(1, vec![0; 1 << 20]))));
    let mut stream = raw_welcomed(&listening.address);
    // Blocks once the server reads no more, and fails when it closes.
    while stream.write_all(&header(1, 0, 0).repeat(1_000)).is_ok() {}
    let totals = rig.network.counters().totals();
    assert!(totals.requests_received < 1_000, "{totals:?}");
}

/// The bytes of a reply; tells when nobody has them any more.
struct Large(Vec<u8>, mpsc::Sender<()>);

impl AsRef<[u8]> for Large {
    fn as_ref(&self) -> &[u8] {
        &self.0
    }
}

impl Drop for Large {
    fn drop(&mut self) {
        let _nobody_waits = self.1.send(());
    }
}

// shows: NET-5
#[test]
fn a_broken_connection_keeps_no_replies_while_its_last_request_goes_on() {
    let rig = Rig::new(1);
    let (tell, told) = mpsc::channel();
    let listening = rig.listen(Serve(move |_, request: Frame| {
        if request.payload.is_empty() {
            let large = Large(vec![0; 15 << 20], tell.clone());
            Handled::Now(frame(0, Bytes::from_owner(large)))
        } else {
            Handled::Later(Box::pin(core::future::pending()))
        }
    }));
    let mut stream = raw_welcomed(&listening.address);
    let requests = [&header(1, 0, 1)[..], b"x", &header(2, 0, 0)].concat();
    stream.write_all(&requests).unwrap();
    stream.read_exact(&mut [0; 32]).unwrap();
    drop(stream);
    told.recv_timeout(PATIENCE).unwrap();
}

#[test]
fn requests_that_came_before_the_end_are_handled_whole() {
    let rig = Rig::new(1);
    let listening = rig.listen(echo());
    let mut stream = raw_welcomed(&listening.address);
    let requests: Vec<u8> = (0..100).flat_map(|id| header(id, 0, 0)).collect();
    stream.write_all(&requests).unwrap();
    let mut replies = vec![0; requests.len()];
    stream.read_exact(&mut replies).unwrap();
    stream.shutdown(Shutdown::Write).unwrap();
    assert!(read_to_end(&mut stream).is_empty());
    assert_eq!(rig.network.counters().totals().requests_received, 100);
}

// shows: ACCEPT-1
#[test]
fn one_connection_too_many_is_told_so() {
    let rig = Rig::with(1, |options| options.connections_max = 2);
    let listening = rig.listen(echo());
    let _first = raw_welcomed(&listening.address);
    let second = raw_welcomed(&listening.address);
    let error = rig
        .call(&listening.address, frame(1, "x"))
        .unwrap_err()
        .to_string();
    assert!(
        error.contains("it refused: too many connections: this server takes 2"),
        "{error}"
    );
    // A place that was given up is given out again, once the server has noticed.
    drop(second);
    while let Err(error) = rig.call(&listening.address, frame(1, "x")) {
        assert!(matches!(error, CallError::Unreachable(..)), "{error}");
    }
}

#[test]
fn a_port_in_use_is_named_with_what_to_do() {
    let rig = Rig::new(1);
    let listening = rig.listen(echo());
    let port = listening.address.0.rsplit(':').next().unwrap().to_owned();
    let to = listening.address.clone();
    let error = rig
        .run(|network| async move { network.listen(&to, Arc::new(echo())).await.err() })
        .unwrap()
        .to_string();
    assert!(
        error.contains(&format!("port {port} is already in use")),
        "{error}"
    );
    assert!(error.contains("choose another port"), "{error}");
    for (address, words) in [
        ("192.0.2.1:0", "not an address of this machine"),
        ("x", "write host:port"),
        ("0.0.0.0:0", "the others reach"),
        ("[::]:0", "the others reach"),
    ] {
        let address = Address::from(address);
        let error = rig
            .run(|network| async move { network.listen(&address, Arc::new(echo())).await.err() })
            .unwrap();
        assert!(error.message.contains(words), "{error}");
    }
}
