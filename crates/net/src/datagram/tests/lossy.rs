//! Loss, doubling, overtaking, cuts and restarts: each message arrives once and whole, or its call
//! is told that it is lost.

use super::world::{BAD, CLEAN, Faults, Outcome, World};
use core::time::Duration;
use pluvio_env::Moment;

fn seeds(count: u64) -> std::ops::Range<u64> {
    let first = std::env::var("PLUVIO_DATAGRAM_SEED").ok();
    match first.and_then(|seed| seed.parse().ok()) {
        Some(seed) => seed..seed + 1,
        None => 0..count,
    }
}

/// Runs `test` with each seed; a failure names it.
fn each_seed(count: u64, test: impl Fn(u64) + std::panic::RefUnwindSafe) {
    for seed in seeds(count) {
        if let Err(panic) = std::panic::catch_unwind(|| test(seed)) {
            eprintln!("PLUVIO_DATAGRAM_SEED={seed} runs this case alone");
            std::panic::resume_unwind(panic);
        }
    }
}

fn mixed_calls(world: &mut World, clients: usize, calls: usize) {
    for _ in 0..calls {
        let client = 1 + world.dice.below(clients as u64) as usize;
        let most = [1, 100, 3_000, 40_000, 200_000][world.dice.below(5) as usize];
        let bytes = world.dice.below(most) as usize;
        world.call(client, bytes);
    }
}

// shows: NET-4, INBOX-1, SESSION-1, SESSION-2
#[test]
fn every_call_over_a_bad_network_is_executed_once_and_answered() {
    each_seed(1_000, |seed| {
        let mut world = World::new(seed, 3, BAD);
        mixed_calls(&mut world, 3, 30);
        world.run(Duration::from_secs(120));
        assert!(
            world
                .outcomes
                .values()
                .all(|outcome| *outcome == Outcome::Reply)
        );
        assert_eq!(world.executed.len(), 30);
        assert_eq!(world.counts.opened, 3, "ENDPOINT-3");
    });
}

// shows: ENDPOINT-3
#[test]
fn faults_of_every_strength_only_make_it_later() {
    each_seed(500, |seed| {
        let mut dice = super::world::Dice::new(seed ^ 0xabcd);
        let faults = Faults {
            loss: dice.below(35),
            duplicate: dice.below(60),
            late: dice.below(100),
            delay_us: 1 + dice.below(5_000),
            hostile: dice.below(30),
            ..CLEAN
        };
        let mut world = World::new(seed, 2, faults);
        mixed_calls(&mut world, 2, 12);
        world.run(Duration::from_secs(900));
        assert_eq!(world.executed.len(), 12, "{faults:?}");
        assert!(world.ends.is_empty(), "{:?}", world.ends);
    });
}

// shows: NET-4
#[test]
fn calls_of_a_server_that_restarts_are_lost_or_answered_and_never_executed_twice() {
    each_seed(500, |seed| {
        let mut world = World::new(seed, 2, BAD);
        for _ in 0..4 {
            mixed_calls(&mut world, 2, 8);
            let time = world.dice.below(30_000);
            world.run_for(Duration::from_micros(time));
            world.restart_server();
        }
        mixed_calls(&mut world, 2, 8);
        world.run(Duration::from_secs(120));
        for (call, outcome) in &world.outcomes {
            let executed = world.executed.contains_key(call);
            match outcome {
                Outcome::Reply => assert!(executed),
                Outcome::Unreachable => assert!(!executed),
                Outcome::Lost | Outcome::TooLarge => {}
            }
        }
    });
}

#[test]
fn a_session_goes_on_soon_after_a_cut() {
    each_seed(200, |seed| {
        let mut world = World::new(seed, 1, CLEAN);
        world.call(1, 10);
        world.run(Duration::from_secs(1));
        let from = world.now;
        let until = from + Duration::from_secs(5);
        world.faults.cut = Some((from, until));
        mixed_calls(&mut world, 1, 5);
        world.run(Duration::from_secs(7));
        assert!(world.ends.is_empty(), "{:?}", world.ends);
        let late = world.now.since(until);
        assert!(late < Duration::from_secs(1), "{late:?} after the cut");
    });
}

// shows: SESSION-3
#[test]
fn a_cut_longer_than_the_limit_ends_the_session_and_the_next_call_makes_a_new_one() {
    let mut world = World::new(1, 1, CLEAN);
    world.call(1, 10);
    world.run(Duration::from_secs(1));
    let until = world.now + Duration::from_secs(100);
    world.faults.cut = Some((world.now, until));
    let lost = world.call(1, 10);
    world.run(Duration::from_secs(20));
    assert_eq!(world.outcomes[&lost], Outcome::Lost);
    world.run_for(until.since(world.now));
    let next = world.call(1, 10);
    world.run(Duration::from_secs(1));
    assert_eq!(world.outcomes[&next], Outcome::Reply);
    world.run_for(Duration::from_secs(100));
    assert_eq!(
        world.endpoint.sessions().count(),
        1,
        "the old one is gone, the new one idle"
    );
}

#[test]
fn an_idle_session_lives_by_its_pings() {
    let mut world = World::new(1, 2, BAD);
    world.call(1, 10);
    world.call(2, 10);
    world.run(Duration::from_secs(5));
    let before = world.sent;
    world.run_for(Duration::from_secs(600));
    let pings = world.sent - before;
    assert!(
        (2 * 40..2 * 200).contains(&pings),
        "{pings} datagrams in ten idle minutes"
    );
    world.call(1, 10);
    world.run(Duration::from_secs(5));
    assert_eq!((world.counts.opened, world.ends.len()), (2, 0));
}

#[test]
fn a_clean_network_costs_little_more_than_the_messages() {
    let mut world = World::new(1, 1, CLEAN);
    world.work_us = 0;
    for _ in 0..200 {
        world.call(1, 100);
    }
    world.run(Duration::from_secs(5));
    assert_eq!(world.counts.lost, 0);
    assert!(world.sent < 500, "{} datagrams for 200 calls", world.sent);
    let mut world = World::new(1, 1, CLEAN);
    let start = world.now;
    for _ in 0..10 {
        world.call(1, 900_000);
    }
    world.run(Duration::from_secs(5));
    assert_eq!(world.counts.lost, 0);
    let time: Duration = Moment::since(world.now, start);
    assert!(time < Duration::from_millis(100), "{time:?}");
}
