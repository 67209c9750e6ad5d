//! Choosing among more segments than are looked at for a choice. They are made up.

use pluvio_log::made_up::{Chosen, MadeUp};
use pluvio_log::{CleanerOptions, Durability, LogOptions};
use pluvio_units::{LogId, SEGLET_BYTES, Size};

const MEMORY: Size = Size(6 << 30);
const SEGLETS: usize = 40;
const LIVE: u64 = (36 * SEGLET_BYTES) as u64;

/// A store that is full, and nine tenths of it live.
fn full(durability: Durability) -> MadeUp {
    full_of(
        durability,
        LIVE,
        MEMORY.bytes() / 1000 * 6 / SEGLET_BYTES as u64,
    )
}

/// A store of segments with `live_bytes` each, which leave about `free` seglets.
fn full_of(durability: Durability, live_bytes: u64, free: u64) -> MadeUp {
    let options = LogOptions {
        durability,
        logs: 3,
        segment_seglets: Some(SEGLETS),
        ..LogOptions::new(MEMORY)
    };
    let mut made = MadeUp::new(options, CleanerOptions::default()).expect("enough memory");
    loop {
        let rest = made.space().stats().free_bytes / SEGLET_BYTES as u64;
        let more = (rest.saturating_sub(free) as usize).div_ceil(SEGLETS);
        for _ in 0..more.div_ceil(2) {
            let log = LogId((made.count() % 3) as u16);
            let len = (SEGLETS * SEGLET_BYTES) as u32;
            assert!(made.add(log, len, live_bytes, SEGLETS));
        }
        if more == 0 {
            break;
        }
    }
    assert!(made.count() > 2000, "more than are looked at as a whole");
    made
}

/// Lets what was chosen be cleaned. As much as that freed is written.
fn clean(made: &mut MadeUp, chosen: Chosen, freed: &mut u64) {
    *freed += made.clean(chosen);
    let bytes = (SEGLETS * SEGLET_BYTES) as u64;
    while *freed >= bytes {
        *freed -= bytes;
        assert!(made.add(LogId(0), bytes as u32, LIVE, SEGLETS));
    }
}

#[test]
fn a_choice_looks_at_few_segments() {
    for (durability, most) in [(Durability::Replicated, 20), (Durability::Volatile, 400)] {
        let mut made = full(durability);
        let first = made.choose().expect("memory is low");
        made.clean(first);
        let before = made.looks();
        for _ in 0..8 {
            let chosen = made.choose().expect("memory is low");
            made.clean(chosen);
        }
        let looks = made.looks() - before;
        assert!(looks <= 8 * most, "{durability:?}: {looks}");
    }
}

#[test]
fn what_died_is_chosen_within_a_round() {
    for (durability, each) in [(Durability::Replicated, 8), (Durability::Volatile, 256)] {
        let mut made = full(durability);
        let first = made.choose().expect("memory is low");
        made.clean(first);
        let emptied = made.count() / 2;
        assert_eq!(made.kill(emptied, LogId(1), u64::MAX), LIVE);
        let emptied = made.id(emptied);
        let mut freed = 0;
        let is_chosen = (0..=made.count() / each).any(|_| {
            let chosen = made.choose().expect("memory is low");
            let is_among = chosen.ids().any(|id| id == emptied);
            clean(&mut made, chosen, &mut freed);
            is_among
        });
        assert!(is_chosen, "{durability:?}");
    }
}

#[test]
fn all_are_looked_at_when_nothing_is_found() {
    let mut made = full_of(
        Durability::Replicated,
        (SEGLETS * SEGLET_BYTES) as u64 - 1000,
        40,
    );
    assert!(made.choose().is_none(), "nothing is dead");
    let emptied = made.count() / 3;
    made.kill(emptied, LogId(1), u64::MAX);
    let chosen = made.choose().expect("one can be cleaned");
    assert!(chosen.ids().eq([made.id(emptied)]));
}
