//! Forged, repeated, damaged and foreign datagrams, and peers that break the rules.

use super::super::caller::{Caller, Odd, Over};
use super::super::endpoint::{Arrived, Endpoint, Rules};
use super::super::opening::{self, Cookie, HELLO_BYTES, Hello, Keys, Terms, Welcome};
use super::super::packet::{self, Credit, Kind, MessageHead, MessageKind};
use super::super::session::{End, Fault, Session, Setup, Trouble};
use super::super::siphash::{Key, Secret, siphash};
use super::world::{CLEAN, Dice, Outcome, SERVER, World, address, limits, new_endpoint};
use core::net::SocketAddr;
use core::time::Duration;
use pluvio_env::Moment;

pub(super) const NOW: Moment = Moment(Duration::from_secs(100));

fn terms() -> Terms {
    Terms {
        frame_bytes_max: 10_000,
        datagram_bytes_max: 1_400,
        credit: Credit {
            bytes: 20_000,
            messages: 4,
        },
    }
}

fn rules(sessions_max: usize) -> Rules {
    Rules {
        terms: terms(),
        limits: limits(),
        sessions_max,
        reply_bytes_max: 1 << 20,
    }
}

/// A server and a hand-made client with one address.
pub(super) struct Bench {
    pub(super) endpoint: Endpoint,
    pub(super) from: SocketAddr,
    pub(super) requests: Vec<Arrived>,
}

impl Bench {
    pub(super) fn new(sessions_max: usize) -> Self {
        Self {
            endpoint: new_endpoint(Key(1, 2), rules(sessions_max), 0),
            from: address(1),
            requests: Vec::new(),
        }
    }

    /// Gives the server a datagram, and takes what it sends.
    pub(super) fn give(&mut self, now: Moment, datagram: &[u8]) -> Vec<Vec<u8>> {
        self.endpoint
            .receive(now, self.from, datagram, &mut self.requests);
        let (mut answers, mut into) = (Vec::new(), Vec::new());
        while let Some(to) = self.endpoint.transmit(now, &mut into) {
            assert_eq!(to, self.from);
            answers.push(into.clone());
        }
        answers
    }

    /// Takes what the server sends, to anybody.
    pub(super) fn drain(&mut self, now: Moment) -> Vec<(SocketAddr, Vec<u8>)> {
        let (mut sent, mut into) = (Vec::new(), Vec::new());
        while let Some(to) = self.endpoint.transmit(now, &mut into) {
            sent.push((to, into.clone()));
        }
        sent
    }

    /// Opens a session. Gives the server's id of it, and the keys.
    pub(super) fn open(&mut self, id: u64) -> (u64, Keys) {
        let answers = self.give(NOW, &hello(id, Cookie::default()));
        let answers = self.give(NOW, &hello(id, cookie_in(&answers)));
        let (head, body) = packet::open(&answers[0]).unwrap();
        assert_eq!((head.kind, head.session), (Kind::Welcome, id));
        let welcome = Welcome::decode(body).unwrap();
        (welcome.session, Keys::new(7, welcome.key_half))
    }
}

fn hello(session: u64, cookie: Cookie) -> Vec<u8> {
    let mut into = Vec::new();
    let hello = Hello {
        session,
        oldest: 1,
        newest: 1,
        terms: terms(),
        key_half: 7,
        cookie,
    };
    hello.encode(&mut into);
    into
}

fn cookie_in(answers: &[Vec<u8>]) -> Cookie {
    let (head, body) = packet::open(&answers[0]).unwrap();
    assert_eq!(head.kind, Kind::Cookie);
    opening::decode_cookie(body).unwrap()
}

pub(super) fn data(key: Key, session: u64, number: u64, body: &[u8]) -> Vec<u8> {
    let mut into = Vec::new();
    packet::begin(&mut into);
    into.extend_from_slice(body);
    packet::seal(&mut into, Kind::Data, session, number, |head| {
        siphash(key, head)
    });
    into
}

pub(super) fn piece(message: u64, payload_bytes: u32, offset: u32, bytes: &[u8]) -> Vec<u8> {
    let head = MessageHead {
        kind: MessageKind::Request,
        opcode: 1,
        meta_bytes: 0,
        payload_bytes,
        call: message,
    };
    let mut into = Vec::new();
    packet::put_piece(&mut into, message, &head, offset, bytes.len() as u16);
    into.extend_from_slice(bytes);
    into
}

/// Changes the version and nothing else; the rest of another version is unknown.
fn of_version(version: u8, mut datagram: Vec<u8>) -> Vec<u8> {
    datagram[2] = version;
    datagram
}

// shows: ENDPOINT-1
#[test]
fn a_forged_source_address_costs_nothing_and_gets_no_more_than_it_sent() {
    let mut bench = Bench::new(10);
    for n in 0..1_000_u16 {
        bench.from = SocketAddr::from(([10, 1, (n >> 8) as u8, n as u8], 9));
        let hello = hello(u64::from(n), Cookie::default());
        let answers = bench.give(NOW, &hello);
        assert_eq!(answers.len(), 1);
        assert!(answers[0].len() <= hello.len());
    }
    assert_eq!(bench.endpoint.sessions().count(), 0);
    assert_eq!(bench.endpoint.deadline(), None);
    // A short one, which any answer would be longer than, gets none.
    assert!(
        bench
            .give(NOW, &hello(1, Cookie::default())[..HELLO_BYTES - 1])
            .is_empty()
    );
}

// shows: ENDPOINT-1
#[test]
fn a_cookie_serves_one_address_and_one_hello_for_a_short_time() {
    let mut bench = Bench::new(10);
    let cookie = cookie_in(&bench.give(NOW, &hello(5, Cookie::default())));
    let is_welcome = |bench: &mut Bench, now: Moment, id: u64| {
        let answers = bench.give(now, &hello(id, cookie));
        packet::open(&answers[0]).unwrap().0.kind == Kind::Welcome
    };
    assert!(!is_welcome(&mut bench, NOW, 6), "another hello");
    bench.from = address(2);
    assert!(!is_welcome(&mut bench, NOW, 5), "another address");
    bench.from = address(1);
    assert!(
        !is_welcome(&mut bench, NOW + Duration::from_secs(11), 5),
        "too late"
    );
    assert!(is_welcome(&mut bench, NOW, 5));
}

// shows: ENDPOINT-3
#[test]
fn a_hello_that_comes_again_gets_the_same_session() {
    let mut bench = Bench::new(10);
    let cookie = cookie_in(&bench.give(NOW, &hello(5, Cookie::default())));
    let first = bench.give(NOW, &hello(5, cookie));
    let again = bench.give(NOW, &hello(5, cookie));
    assert_eq!(first, again);
    assert_eq!(bench.endpoint.sessions().count(), 1);
}

// shows: ENDPOINT-2
#[test]
fn a_session_too_many_is_refused_in_words_and_a_place_comes_free() {
    let mut bench = Bench::new(2);
    bench.open(1);
    let (second, keys) = bench.open(2);
    let cookie = cookie_in(&bench.give(NOW, &hello(3, Cookie::default())));
    let answers = bench.give(NOW, &hello(3, cookie));
    let (head, body) = packet::open(&answers[0]).unwrap();
    assert_eq!(head.kind, Kind::Refused);
    let text = opening::decode_refusal(body).unwrap();
    assert_eq!(
        text,
        "too many connections: this server takes 2; close some"
    );
    let mut close = Vec::new();
    packet::put_close(&mut close, "done");
    bench.give(NOW, &data(keys.to_server, second, 0, &close));
    bench.open(3);
    assert_eq!(bench.endpoint.sessions().count(), 2);
}

// shows: SESSION-3
#[test]
fn a_session_that_is_opened_and_never_used_is_given_up() {
    let mut bench = Bench::new(10);
    bench.open(1);
    let deadline = bench.endpoint.deadline().unwrap();
    assert_eq!(deadline, NOW + limits().opening);
    bench.endpoint.alarm(deadline);
    assert_eq!(bench.endpoint.sessions().count(), 0);
}

#[test]
fn another_version_is_told_so_in_words_and_its_data_is_ignored() {
    let mut bench = Bench::new(10);
    let answers = bench.give(NOW, &of_version(9, hello(1, Cookie::default())));
    let (head, body) = packet::open(&answers[0]).unwrap();
    assert_eq!((head.kind, head.session), (Kind::Refused, 1));
    let text = opening::decode_refusal(body).unwrap();
    assert!(text.contains("9..=9 there and 1..=1 here"), "{text}");
    let (session, keys) = bench.open(2);
    let request = data(keys.to_server, session, 0, &piece(0, 1, 0, b"x"));
    assert!(bench.give(NOW, &of_version(2, request.clone())).is_empty());
    assert_eq!(bench.endpoint.take_counts().other_version, 2);
    bench.give(NOW, &request);
    assert_eq!(bench.requests.len(), 1);
    // One that speaks both is told in its own hello.
    let mut both = Vec::new();
    let hello = Hello {
        session: 3,
        oldest: 2,
        newest: 4,
        terms: terms(),
        key_half: 7,
        cookie: Cookie::default(),
    };
    hello.encode(&mut both);
    let answers = bench.give(NOW, &both);
    let (_, body) = packet::open(&answers[0]).unwrap();
    let text = opening::decode_refusal(body).unwrap();
    assert!(text.contains("2..=4 there and 1..=1 here"), "{text}");
}

#[test]
fn a_client_understands_the_refusal_of_another_version() {
    let mut caller = Caller::new(NOW, &mut Secret::new(Key(3, 4)), terms(), limits());
    let mut sent = Vec::new();
    assert!(caller.transmit(NOW, &mut sent));
    let (head, _) = packet::open(&sent).unwrap();
    let mut refusal = Vec::new();
    opening::encode_refusal(head.number, "other words", &mut refusal);
    let taken = caller.receive(NOW, &of_version(3, refusal), &mut Vec::new());
    let words = Over::Refused("other words".to_owned());
    assert_eq!(taken, Err(Odd::Over(words)));
}

#[test]
fn a_refusal_for_another_session_is_none() {
    let mut caller = Caller::new(NOW, &mut Secret::new(Key(3, 4)), terms(), limits());
    let mut refusal = Vec::new();
    opening::encode_refusal(12_345, "go away", &mut refusal);
    for version in [1, 2] {
        let refusal = of_version(version, refusal.clone());
        let taken = caller.receive(NOW, &refusal, &mut Vec::new());
        assert!(!matches!(taken, Err(Odd::Over(_)) | Ok(())), "{taken:?}");
    }
}

// shows: SESSION-1, NET-4
#[test]
fn everything_said_once_more_changes_nothing() {
    let mut world = World::new(7, 1, CLEAN);
    for bytes in [10, 3_000, 50_000] {
        world.call(1, bytes);
    }
    world.run(Duration::from_secs(5));
    let seen: Vec<_> = world.seen().cloned().collect();
    for _ in 0..2 {
        for (to, from, datagram) in &seen {
            world.inject(*to, *from, datagram.clone());
        }
        world.run_for(Duration::from_secs(1));
    }
    assert_eq!(world.executed.len(), 3, "each once, which the world checks");
    assert!(world.counts.repeated > 0 && world.counts.faults == 0);
    assert_eq!(world.counts.opened, 1);
    let after = world.call(1, 10);
    world.run(Duration::from_secs(1));
    assert_eq!(world.outcomes[&after], Outcome::Reply);
}

// shows: SESSION-1
#[test]
fn requests_of_an_earlier_session_are_not_executed_in_a_later_one() {
    let mut world = World::new(8, 1, CLEAN);
    world.call(1, 10);
    world.run(Duration::from_secs(1));
    let seen: Vec<_> = world.seen().cloned().collect();
    world.restart_server();
    world.call(1, 10);
    world.run(Duration::from_secs(1));
    world.call(1, 10);
    world.run(Duration::from_secs(1));
    for (_, from, datagram) in seen.into_iter().filter(|(to, ..)| *to == SERVER) {
        world.inject(SERVER, from, datagram);
    }
    world.run_for(Duration::from_secs(10));
    assert!(world.executed.values().all(|&count| count == 1));
    assert!(world.counts.unknown > 0);
}

// shows: SESSION-1
#[test]
fn forged_data_and_forged_resets_are_counted_and_ignored() {
    let mut bench = Bench::new(10);
    let (session, keys) = bench.open(1);
    let request = piece(0, 1, 0, b"x");
    // The session is known to the attacker, the key is not; nor does the other way's key serve.
    for key in [Key(0, 0), keys.to_client] {
        assert!(bench.give(NOW, &data(key, session, 0, &request)).is_empty());
    }
    assert_eq!(bench.endpoint.take_counts().forged, 2);
    assert!(bench.requests.is_empty());
    // From another address it is no datagram of the session.
    let good = data(keys.to_server, session, 0, &request);
    bench.from = address(2);
    let answers = bench.give(NOW, &good);
    assert_eq!(packet::open(&answers[0]).unwrap().0.kind, Kind::Reset);
    bench.from = address(1);
    bench.give(NOW, &good);
    assert_eq!(bench.requests.len(), 1);
    let mut reset = Vec::new();
    packet::begin(&mut reset);
    packet::seal(&mut reset, Kind::Reset, 1, 0, |_| 99);
    bench.give(NOW, &reset);
    assert_eq!(bench.endpoint.sessions().count(), 1);
}

// shows: SESSION-3
#[test]
fn half_a_message_is_waited_for_only_so_long() {
    let mut bench = Bench::new(10);
    let (session, keys) = bench.open(1);
    bench.give(
        NOW,
        &data(keys.to_server, session, 0, &piece(0, 5_000, 0, &[1; 1_000])),
    );
    let mut now = NOW;
    let mut number = 1;
    while bench.endpoint.sessions().count() > 0 {
        now = now + Duration::from_secs(1);
        // It lives and speaks; only the rest does not come.
        bench.give(now, &data(keys.to_server, session, number, &[4]));
        number += 1;
        bench.endpoint.alarm(now);
    }
    assert!((30..=33).contains(&now.since(NOW).as_secs()), "{now}");
    assert_eq!(bench.endpoint.take_counts().overdue, 1);
    assert!(bench.requests.is_empty());
}

// shows: INBOX-2
#[test]
fn a_peer_that_takes_more_than_its_credit_is_told_so_and_closed() {
    for (what, body) in [
        ("beyond the credit", piece(4, 1, 0, b"x")),
        ("over the limit", piece(0, 10_001, 0, b"x")),
        ("does not fit", piece(0, 2, 1, b"xy")),
        ("parts cannot be told", vec![9]),
        ("what was not sent", {
            let mut ack = Vec::new();
            packet::put_ack(&mut ack, 0, core::slice::from_ref(&(0..1_000)), 500);
            ack
        }),
    ] {
        let mut bench = Bench::new(10);
        let (session, keys) = bench.open(1);
        let answers = bench.give(NOW, &data(keys.to_server, session, 0, &body));
        let said = String::from_utf8_lossy(&answers[0]).into_owned();
        assert!(said.contains(what), "{said}");
        assert_eq!(bench.endpoint.sessions().count(), 0);
        assert_eq!(bench.endpoint.take_counts().faults, 1);
    }
}

/// A session with known keys.
fn session(key_in: Key) -> Session {
    let setup = Setup {
        peer_session: 1,
        key_out: Key(5, 6),
        key_in,
        ours: terms(),
        theirs: terms(),
        limits: limits(),
    };
    Session::new(NOW, &setup)
}

// shows: NET-2
#[test]
fn no_bytes_make_a_panic_even_with_the_right_tag() {
    let key = Key(8, 9);
    for seed in 0..20_000 {
        let mut dice = Dice::new(seed);
        let mut session = session(key);
        let mut whole = Vec::new();
        for number in 0..dice.below(6) {
            let mut body = match dice.below(3) {
                0 => Vec::new(),
                1 => piece(dice.below(5), dice.below(20_000) as u32, 0, &[3; 40]),
                _ => {
                    let mut ack = Vec::new();
                    let ranges = [1..dice.below(4), dice.below(9)..9];
                    packet::put_ack(&mut ack, dice.next() as u32, &ranges, 500);
                    packet::put_credit(&mut ack, Credit::default());
                    ack
                }
            };
            for _ in 0..dice.below(4) {
                match (dice.below(3), body.is_empty()) {
                    (0, false) => {
                        let at = dice.below(body.len() as u64) as usize;
                        body[at] = dice.next() as u8;
                    }
                    (1, _) => body.truncate(dice.below(60) as usize),
                    _ => body.extend((0..dice.below(30)).map(|_| dice.next() as u8 % 7)),
                }
            }
            let datagram = data(key, 1, number, &body);
            let (head, body) = packet::open(&datagram).unwrap();
            if let Err(Trouble::End(end)) =
                session.receive(NOW, &head, &datagram, body, &mut |_| true, &mut whole)
            {
                assert!(matches!(end, End::Fault(_) | End::Closed(_)), "{end}");
                break;
            }
            let mut out = Vec::new();
            while session.transmit(NOW, &mut out) {
                assert!(out.len() <= 1_400);
            }
            session.alarm(session.deadline()).ok();
            assert!(session.partial_bytes() <= 20_000);
        }
    }
}

// shows: NET-2
#[test]
fn garbage_is_counted_and_changes_nothing() {
    let mut bench = Bench::new(10);
    let (session, keys) = bench.open(1);
    let good = data(keys.to_server, session, 0, &piece(0, 1, 0, b"x"));
    let mut dice = Dice::new(3);
    for _ in 0..20_000 {
        let mut bytes = match dice.below(3) {
            0 => good.clone(),
            1 => hello(dice.next(), Cookie::default()),
            _ => (0..dice.below(300)).map(|_| dice.next() as u8).collect(),
        };
        match dice.below(2) {
            0 => bytes.truncate(dice.below(1 + bytes.len() as u64) as usize),
            _ if bytes.is_empty() => {}
            _ => {
                let bit = dice.below(8 * bytes.len() as u64) as usize;
                bytes[bit / 8] ^= 1 << (bit % 8);
            }
        }
        if bytes != good {
            bench.give(NOW, &bytes);
        }
    }
    assert!(bench.requests.is_empty());
    assert_eq!(bench.endpoint.sessions().count(), 1);
    assert!(bench.endpoint.take_counts().garbage > 10_000);
    bench.give(NOW, &good);
    assert_eq!(bench.requests.len(), 1);
}

#[test]
fn a_request_from_the_server_is_a_fault() {
    let mut world = World::new(3, 1, CLEAN);
    world.call(1, 1);
    world.run(Duration::from_secs(1));
    for session in world.endpoint.sessions() {
        session.push(super::super::outbox::Message {
            kind: MessageKind::Request,
            call: 0,
            frame: pluvio_env::Frame::default(),
        });
    }
    // The endpoint sends it with the next thing it has to say.
    world.call(1, 1);
    world.run(Duration::from_secs(1));
    world.run_for(Duration::from_secs(1));
    let wrong_way = Over::Ended(End::Fault(Fault::WrongWay));
    assert_eq!(world.ends, [wrong_way]);
}
