//! Rings whose other end breaks the rules, dies, or is somebody else.

use crate::rig::raw_ring::{Peer, RawRing, lying_server};
use crate::rig::victims::kill_callers;
use crate::rig::{Lcg, PATIENCE, Rig, Serve, echo, frame, header, hello, wait_until};
use pluvio_env::{Address, CallError, Handled, Network};
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::time::Duration;
use tempfile::TempDir;

const SHORT: Duration = Duration::from_millis(150);

/// A server at a socket of its own.
struct Place {
    directory: TempDir,
    address: Address,
}

impl Place {
    fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let address = format!("shm:{}/ring", directory.path().display());
        Self {
            address: Address::from(&*address),
            directory,
        }
    }

    fn path(&self) -> String {
        format!("{}/ring", self.directory.path().display())
    }
}

fn request(id: u64, payload: &[u8]) -> Vec<u8> {
    let mut bytes = header(id, 0, payload.len() as u32).to_vec();
    bytes.extend_from_slice(payload);
    bytes
}

#[test]
fn a_hand_made_peer_is_served() {
    let (rig, place) = (Rig::new(1), Place::new());
    let _listening = rig.listen_at(&place.address.0, echo());
    let mut ring = RawRing::connect(&place.path());
    for round in 0..300u64 {
        let payload = vec![round as u8; (round * 37 % 5_000) as usize];
        ring.put(&request(round, &payload));
        let reply = ring.take(32 + payload.len());
        assert_eq!(reply[8..16], round.to_le_bytes());
        assert!(reply[32..] == payload, "round {round}");
    }
}

// shows: RING-1, RING-2
#[test]
fn a_peer_that_dies_between_two_stores_leaves_whole_requests_or_nothing() {
    let (rig, place) = (Rig::new(1), Place::new());
    let handled = Arc::new(AtomicU64::new(0));
    let count = Arc::clone(&handled);
    let _listening = rig.listen_at(
        &place.address.0,
        Serve(move |_, request| {
            count.fetch_add(1, SeqCst);
            Handled::Now(request)
        }),
    );
    let bytes = request(7, &[9; 61]);
    let stores = RawRing::connect(&place.path()).stores(&bytes).len();
    for done in 0..=stores {
        let before = handled.load(SeqCst);
        let mut ring = RawRing::connect(&place.path());
        // One whole request before, so that the ring is in use.
        ring.put(&request(1, b"whole"));
        ring.take(32 + 5);
        for (offset, word) in ring.stores(&bytes).into_iter().take(done) {
            ring.store(offset, word);
        }
        ring.wake();
        let ended = rig.network.counters().totals().connections_ended;
        drop(ring);
        wait_until("the end", || {
            rig.network.counters().totals().connections_ended > ended
        });
        let whole = u64::from(done == stores);
        assert_eq!(handled.load(SeqCst) - before, 1 + whole, "{done} stores");
    }
    assert_eq!(rig.network.counters().totals().frames_rejected, 0);
    rig.call(&place.address, frame(1, "others are served"))
        .unwrap();
}

// shows: RING-2
#[test]
fn a_ring_full_of_garbage_ends_its_connection_and_no_other() {
    let (rig, place) = (Rig::new(1), Place::new());
    let _listening = rig.listen_at(&place.address.0, echo());
    let mut random = Lcg(5);
    let all_at_once = |ring: &RawRing, random: &mut Lcg| {
        let garbage: Vec<u8> = (0..ring.memory_bytes())
            .map(|_| random.below(256) as u8)
            .collect();
        ring.write_at(0, &garbage);
    };
    for round in 0..60 {
        let mut ring = RawRing::connect(&place.path());
        let connections = rig.network.counters().totals().connections_ended;
        match round % 6 {
            0 => all_at_once(&ring, &mut random),
            // Words that say a length without its complement, or too much.
            1 => ring.store(ring.next_at(), 100),
            2 => ring.store(ring.next_at(), 0xffff_ffff),
            3 => ring.store(ring.next_at(), RawRing::word(1 << 20)),
            4 => ring.put(&vec![random.below(256) as u8; 5_000]),
            // A good frame, then nonsense.
            _ => {
                ring.put(&request(1, b"good"));
                ring.put(&[0xee; 64]);
            }
        }
        ring.wake();
        ring.wait_for_end();
        wait_until("the end", || {
            rig.network.counters().totals().connections_ended > connections
        });
    }
    assert_eq!(rig.network.counters().totals().frames_rejected, 60);
    rig.call(&place.address, frame(1, "others are served"))
        .unwrap();
}

// shows: RING-2
#[test]
fn a_reader_that_lies_about_its_place_ends_the_connection() {
    let (rig, place) = (Rig::new(1), Place::new());
    let large = frame(1, vec![7; 1 << 20]);
    let _listening = rig.listen_at(
        &place.address.0,
        Serve(move |_, _| Handled::Now(large.clone())),
    );
    for head in [u64::MAX, 8 << 20, 12, 1] {
        let mut ring = RawRing::connect(&place.path());
        ring.put(&request(1, b"x"));
        ring.wake();
        ring.wait_for_reply();
        ring.lie(head);
        // Makes the server look.
        ring.wake();
        ring.put(&request(2, b"x"));
        ring.wake();
        ring.wait_for_end();
    }
    assert_eq!(rig.network.counters().totals().frames_rejected, 4);
}

// shows: NET-3
#[test]
fn half_a_frame_in_a_ring_is_waited_for_only_so_long() {
    let place = Place::new();
    let rig = Rig::with(1, |options| options.frame_limit = SHORT);
    let _listening = rig.listen_at(&place.address.0, echo());
    let whole = request(1, b"hello");
    for part in [1, 31, 32, 34] {
        let mut ring = RawRing::connect(&place.path());
        ring.put(&whole);
        ring.take(whole.len());
        ring.put(&whole[..part]);
        ring.wake();
        ring.wait_for_end();
    }
    assert_eq!(rig.network.counters().totals().frames_overdue, 4);
}

// shows: NET-3
#[test]
fn a_peer_that_takes_nothing_out_of_its_ring_is_given_up() {
    let place = Place::new();
    let rig = Rig::with(1, |options| options.stall_limit = 2 * SHORT);
    let large = frame(1, vec![7; 1 << 20]);
    let _listening = rig.listen_at(
        &place.address.0,
        Serve(move |_, _| Handled::Now(large.clone())),
    );
    let mut ring = RawRing::connect(&place.path());
    for id in 0..1_000 {
        ring.put(&request(id, b"x"));
    }
    ring.wake();
    ring.wait_for_end();
    let totals = rig.network.counters().totals();
    assert_eq!(totals.peers_stalled, 1);
    assert!(totals.requests_received < 1_000, "{totals:?}");
}

// shows: DUPLEX-1
#[test]
fn a_flood_of_wake_ups_hinders_nobody_else() {
    let (rig, place) = (Rig::new(1), Place::new());
    let _listening = rig.listen_at(&place.address.0, echo());
    let ring = RawRing::connect(&place.path());
    let mut socket = ring.socket().try_clone().unwrap();
    let flood = std::thread::Builder::new().spawn(move || {
        let mut written = 0u64;
        while let Ok(count) = socket.write(&[1; 10_000]) {
            written += count as u64;
        }
        written
    });
    for number in 0..100 {
        rig.call(&place.address, frame(number, "x")).unwrap();
    }
    ring.socket().shutdown(std::net::Shutdown::Both).unwrap();
    assert!(flood.unwrap().join().unwrap() > 0);
    // One that never reads its wake-ups fills its socket, and no server waits for that.
    let mut deaf = RawRing::connect(&place.path());
    for id in 0..300 {
        deaf.say_asleep();
        deaf.put(&request(id, b"x"));
        deaf.wake();
        deaf.take(33);
    }
}

#[test]
fn a_caller_of_another_process_is_refused_and_takes_the_other_endpoint() {
    let (rig, place) = (Rig::new(1), Place::new());
    let both = format!("127.0.0.1:0+{}", place.address);
    let listening = rig.listen_at(&both, echo());
    let ring = format!("{}#", place.path());
    assert!(listening.address.0.contains(&ring), "{}", listening.address);
    rig.call(&listening.address, frame(1, "x")).unwrap();
    let totals = rig.network.counters().totals();
    assert_eq!((totals.rings_made, totals.rings_accepted), (1, 1));
    let tcp = listening
        .address
        .place_of(pluvio_env::Transport::Tcp)
        .unwrap();
    for (ring, works) in [
        (format!("{}#{:016x}", place.path(), 12345), true),
        ("/nowhere".to_owned(), true),
        (String::new(), true),
    ] {
        let client = Rig::new(1);
        let address = match ring.is_empty() {
            true => Address::from(tcp),
            false => Address::from(&*format!("{tcp}+shm:{ring}")),
        };
        assert_eq!(client.call(&address, frame(1, "x")).is_ok(), works);
    }
    let other = Address::from(&*format!("shm:{}#{:016x}", place.path(), 12345));
    let error = Rig::new(1).call(&other, frame(1, "x")).unwrap_err();
    assert!(error.to_string().contains("another process"), "{error}");
    let nobody = Address::from("shm:/nowhere");
    let error = Rig::new(1).call(&nobody, frame(1, "x")).unwrap_err();
    assert!(error.to_string().contains("nothing listens"), "{error}");
}

// shows: ACCEPT-1
#[test]
fn one_ring_too_many_is_refused_and_its_caller_takes_tcp() {
    let place = Place::new();
    let rig = Rig::with(1, |options| options.ring_connections_max = 1);
    let both = format!("127.0.0.1:0+{}", place.address);
    let listening = rig.listen_at(&both, echo());
    let first = RawRing::connect(&place.path());
    rig.call(&listening.address, frame(1, "x")).unwrap();
    let error = Rig::new(1).call(&place.address, frame(1, "x")).unwrap_err();
    assert!(
        error
            .to_string()
            .contains("too many connections: this server takes 1"),
        "{error}"
    );
    drop(first);
    wait_until("room", || {
        Rig::new(1).call(&place.address, frame(1, "x")).is_ok()
    });
}

#[test]
fn strangers_at_the_socket_get_an_answer_or_the_end() {
    let place = Place::new();
    let rig = Rig::with(1, |options| options.handshake_limit = SHORT);
    let _listening = rig.listen_at(&place.address.0, echo());
    let mut stream = UnixStream::connect(place.path()).unwrap();
    stream.write_all(b"PING\r\n").unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    assert!(answer.contains("Pluvio's RPC port"), "{answer}");
    let mut silent = UnixStream::connect(place.path()).unwrap();
    silent.write_all(&hello(1, 1)[..31]).unwrap();
    assert_eq!(silent.read_to_end(&mut Vec::new()).unwrap(), 0);
}

// shows: SHARED-1
#[test]
fn a_server_that_shares_something_else_is_no_peer() {
    for (peer, words) in [
        (Peer::SharesNothing, "it shared no memory"),
        (Peer::ClosesBehindHello, "no rings came behind its hello"),
        (Peer::SharesUnsealed, "may change its length"),
        (Peer::SharesTooLittle, "another length"),
        (Peer::SharesDisk, "lies elsewhere"),
        (Peer::HasOddRings(12_345), "rings of 12345 bytes"),
        (Peer::HasOddRings(0), "rings of 0 bytes"),
        (Peer::HasOddRings(u32::MAX), "rings of 4294967295 bytes"),
    ] {
        let place = Place::new();
        let server = lying_server(&place.path(), peer);
        let rig = Rig::with(1, |options| options.handshake_limit = PATIENCE);
        let error = rig.call(&place.address, frame(1, "x")).unwrap_err();
        assert!(matches!(error, CallError::Unreachable(..)), "{error}");
        assert!(error.to_string().contains(words), "{words}: {error}");
        server.join().unwrap();
    }
    // It answers the first call with garbage.
    let place = Place::new();
    let server = lying_server(&place.path(), Peer::AnswersGarbage);
    let rig = Rig::new(1);
    let error = rig.call(&place.address, frame(1, "x")).unwrap_err();
    assert!(matches!(error, CallError::Lost(_)), "{error}");
    server.join().unwrap();
}

// shows: DUPLEX-2
#[test]
fn a_process_that_is_killed_ends_its_connections_at_once() {
    let (rig, place) = (Rig::new(1), Place::new());
    let _listening = rig.listen_at(&place.address.0, echo());
    kill_callers(&rig, &place.address, 3_000);
}

// shows: RING-2
#[test]
fn a_server_that_is_killed_is_lost_to_its_callers() {
    let place = Place::new();
    let server = Rig::new(1);
    let listening = server.listen_at(
        &place.address.0,
        Serve(|_, _| Handled::Later(Box::pin(core::future::pending()))),
    );
    let client = Rig::new(1);
    let to = place.address.clone();
    let waiting = client.run(|network| async move {
        let call = network.call(&to, frame(1, "x"), PATIENCE);
        let close = async { drop(listening) };
        let (first, ()) = futures_util::future::join(call, close).await;
        first
    });
    assert!(
        matches!(
            waiting,
            Err(CallError::Lost(_) | CallError::Unreachable(..))
        ),
        "{waiting:?}"
    );
}
