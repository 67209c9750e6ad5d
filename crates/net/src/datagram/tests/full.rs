//! Many sessions that want more memory than there is.

use super::super::opening::Keys;
use super::super::packet;
use super::super::siphash::Key;
use super::hostile::{Bench, NOW, data, piece};
use super::world::{BAD, CLEAN, Faults, Outcome, World, address, new_endpoint};
use core::time::Duration;
use pluvio_env::{Frame, Moment};

/// Bytes of the payload of the messages of [`Crowd`].
const WHOLE: u32 = 9_000;

/// A large request of each of fifty clients, with replies of all sizes, and a small one.
fn crowd(seed: u64, faults: Faults) -> World {
    let mut world = World::new(seed, 50, faults);
    world.endpoint = new_endpoint(Key(seed, 1), world.rules, 0);
    for client in 1..=50 {
        world.call(client, 900_000);
        world.call(client, 100);
    }
    world.run(Duration::from_secs(600));
    assert!(world.outcomes.values().all(|o| *o == Outcome::Reply));
    assert_eq!((world.ends.len(), world.counts.ended), (0, 0));
    world
}

// shows: NETMEM-4, ENDPOINT-4, SESSION-4
#[test]
fn large_requests_of_fifty_clients_end_within_a_bound_of_a_few() {
    for (seed, faults) in [(1, CLEAN), (2, BAD), (3, BAD)] {
        let world = crowd(seed, faults);
        assert!(world.counts.waited > 0, "nothing was short");
        let bound = world.endpoint.memory_bound();
        assert!(world.memory_used_max > bound / 8, "nothing counted");
        assert!(world.memory_used_max <= bound, "{}", world.memory_used_max);
    }
}

/// Clients by hand, each with a session of its own.
struct Crowd {
    bench: Bench,
    sessions: Vec<(u64, Keys, u64)>,
}

impl Crowd {
    fn new(count: usize) -> Self {
        let mut bench = Bench::new(count);
        let mut sessions = Vec::new();
        for who in 0..count {
            bench.from = address(who);
            let (session, keys) = bench.open(who as u64);
            sessions.push((session, keys, 0));
        }
        Self { bench, sessions }
    }

    /// Sends a datagram of this body. Gives how many come back.
    fn send(&mut self, now: Moment, who: usize, body: &[u8]) -> usize {
        let (session, keys, number) = &mut self.sessions[who];
        let datagram = data(keys.to_server, *session, *number, body);
        *number += 1;
        let bench = &mut self.bench;
        (bench.endpoint).receive(now, address(who), &datagram, &mut bench.requests);
        bench.drain(now).len()
    }

    /// Sends the first thousand bytes of a message.
    fn half(&mut self, now: Moment, who: usize) -> usize {
        self.send(now, who, &piece(0, WHOLE, 0, &[1; 1_000]))
    }

    fn held(&mut self) -> (usize, usize) {
        let ([requests, _], counted) = self.bench.endpoint.held_and_counted();
        (requests, counted)
    }

    /// Lets time pass.
    fn wait_until(&mut self, now: Moment) {
        while let Some(at) = self.bench.endpoint.deadline().filter(|at| *at <= now) {
            self.bench.endpoint.alarm(at);
            self.bench.drain(at);
        }
        self.bench.endpoint.alarm(now);
        self.bench.drain(now);
    }
}

// shows: NETMEM-4, ENDPOINT-4, SESSION-4
#[test]
fn halves_of_many_sessions_stop_at_the_bound_and_silence_gives_it_back() {
    let mut crowd = Crowd::new(60);
    let quarter = crowd.bench.endpoint.memory_bound() / 4;
    for who in 0..60 {
        assert!(crowd.half(NOW, who) <= 1);
    }
    let (held, counted) = crowd.held();
    // Opcode 1 is of servers: they have a quarter.
    assert!(counted <= quarter, "{counted}");
    assert!((10_000..60_000).contains(&held), "{held}");
    assert_eq!(crowd.bench.endpoint.take_counts().waited, 60 - held / 1_000);
    // The refused ones stay silent, so nobody is closed for them, until their time is over.
    crowd.wait_until(NOW + Duration::from_secs(29));
    assert_eq!(crowd.bench.endpoint.take_counts().overdue, 0);
    crowd.wait_until(NOW + Duration::from_secs(31));
    let counts = crowd.bench.endpoint.take_counts();
    assert_eq!((counts.overdue, counts.evicted), (held / 1_000, 0));
    assert_eq!(crowd.held(), (0, 0));
}

// shows: ENDPOINT-4, SESSION-4
#[test]
fn who_stands_still_with_a_half_gives_way_to_one_that_asks() {
    let mut crowd = Crowd::new(60);
    for who in 0..60 {
        crowd.half(NOW, who);
    }
    let before = crowd.held().0;
    let mut now = NOW;
    let mut answers = 0;
    while crowd.bench.endpoint.take_counts().evicted == 0 {
        now = now + Duration::from_millis(300);
        assert!(now < NOW + Duration::from_secs(3), "nobody gave way");
        crowd.wait_until(now);
        answers += crowd.half(now, 59);
    }
    assert!(answers > 0, "the server was silent");
    let mut ends = Vec::new();
    for offset in (0..WHOLE).step_by(1_000) {
        ends.push(crowd.send(now, 59, &piece(0, WHOLE, offset, &[1; 1_000])));
    }
    assert_eq!(crowd.bench.requests.len(), 1, "{ends:?}");
    assert!(crowd.held().0 < before);
}

// shows: ENDPOINT-4
#[test]
fn who_is_to_give_way_does_so_though_its_message_ends_meanwhile() {
    let mut crowd = Crowd::new(60);
    for who in 0..60 {
        crowd.half(NOW, who);
    }
    let mut now = NOW;
    while crowd.bench.endpoint.leaving() == 0 {
        now = now + Duration::from_millis(10);
        assert!(now < NOW + Duration::from_secs(3), "nobody is to give way");
        crowd.half(now, 59);
        crowd.wait_until(now);
    }
    for who in 0..59 {
        for offset in (1_000..WHOLE).step_by(1_000) {
            crowd.send(now, who, &piece(0, WHOLE, offset, &[1; 1_000]));
        }
    }
    assert!(crowd.bench.endpoint.leaving() > 0, "it was too late");
    crowd.wait_until(now + Duration::from_millis(200));
    assert_eq!(crowd.bench.endpoint.leaving(), 0);
    assert!(crowd.bench.endpoint.take_counts().evicted > 0);
}

// shows: ENDPOINT-4
#[test]
fn who_takes_no_replies_gives_way_to_one_that_asks() {
    let mut crowd = Crowd::new(80);
    let reply = Frame {
        opcode: 1,
        meta: bytes::Bytes::new(),
        payload: vec![0; 9_500].into(),
    };
    let quarter = crowd.bench.endpoint.memory_bound() / 4;
    let mut taken = 0;
    for who in 0..79 {
        for message in 0..3 {
            crowd.send(NOW, who, &piece(message, 1, 0, b"x"));
        }
        for request in core::mem::take(&mut crowd.bench.requests) {
            taken += 1;
            let (session, call) = (request.session, request.call);
            (crowd.bench.endpoint).reply(session, call, 1, reply.clone());
        }
    }
    assert!(taken < 3 * 79, "all requests were taken");
    assert!(crowd.held().1 <= quarter + 3 * reply.len());
    // They move nothing. The last one asks, and has its turn once some were closed.
    let mut now = NOW;
    while crowd.bench.requests.is_empty() {
        now = now + Duration::from_millis(300);
        assert!(now < NOW + Duration::from_secs(3), "nobody gave way");
        crowd.wait_until(now);
        crowd.send(now, 79, &piece(0, 1, 0, b"x"));
    }
    assert!(crowd.bench.endpoint.take_counts().evicted > 0);
}

// shows: SESSION-1, SESSION-4
#[test]
fn what_was_refused_is_not_acknowledged_and_comes_again_as_new() {
    let mut crowd = Crowd::new(60);
    for who in 0..60 {
        crowd.half(NOW, who);
    }
    // A small message beside a refused piece is taken, once.
    let mut both = piece(1, 1, 0, b"x");
    both.extend(piece(0, WHOLE, 0, &[1; 1_000]));
    crowd.send(NOW, 59, &both);
    crowd.send(NOW, 59, &both);
    assert_eq!(crowd.bench.requests.len(), 1);
    // Nothing was received, so nothing is acknowledged: a ping shows that the server lives.
    let mut answers = Vec::new();
    let mut now = NOW;
    for _ in 0..3 {
        now = now + Duration::from_millis(500);
        crowd.bench.endpoint.alarm(now);
        answers.extend(crowd.bench.drain(now));
    }
    answers.retain(|(to, _)| *to == address(59));
    assert!(!answers.is_empty());
    for (_, answer) in answers {
        let (_, body) = packet::open(&answer).unwrap();
        let mut take = packet::Take(body);
        while !take.0.is_empty() {
            let part = packet::next_part(&mut take).unwrap();
            assert!(matches!(part, packet::Part::Ping), "{part:?}");
        }
    }
}
