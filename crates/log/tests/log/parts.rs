//! Memory that is divided among memory nodes: whose seglets a log takes, and where their pages lie.

use crate::support::{Random, Store, options};
use pluvio_log::{AppendError, Durability, Interleaving, LogOptions, MemoryBinding, MemoryPart};
use pluvio_units::{LogId, SEGLET_BYTES};

const KEYS: u32 = 120_000;

/// Two logs, each with a part of its own, of the nodes named.
fn store(mib: u64, nodes: [Option<u32>; 2]) -> Store {
    let part = |(log, node): (u16, Option<u32>)| MemoryPart {
        node,
        logs: vec![LogId(log)],
    };
    let options = LogOptions {
        parts: (0..).zip(nodes).map(part).collect(),
        live_percent_max: 95,
        ..options(mib, 2, Durability::Volatile)
    };
    Store::new(options, KEYS)
}

/// The part in which a key's object lies: both are equally long, but for a border at 2 MiB.
fn part_of(store: &Store, key: u32) -> usize {
    let half = store.space.stats().memory_bytes / 2;
    usize::from(store.place_of(key).offset() >= half)
}

/// Objects of each log that lie in each part.
fn places(
    store: &Store,
    keys: impl Iterator<Item = u32>,
    log_of: fn(u32) -> usize,
) -> [[u32; 2]; 2] {
    let mut places = [[0; 2]; 2];
    for key in keys {
        places[log_of(key)][part_of(store, key)] += 1;
    }
    places
}

fn change(store: &Store, log: usize, key: u32) {
    for _ in 0..1000 {
        match store.change(LogId(log as u16), key, Some(1000), 1) {
            Ok(_) => return,
            Err(AppendError::Full { .. }) => store.clean(1),
            Err(other) => panic!("{other}"),
        }
    }
    panic!("no progress: {:#?}", store.space);
}

#[test]
fn each_log_appends_and_is_cleaned_in_its_part() {
    let store = store(192, [None, None]);
    let log_of = |key: u32| (key % 2) as usize;
    let keys = KEYS;
    let mut random = Random::new(3);
    for key in 0..keys {
        change(&store, log_of(key), key);
    }
    for turn in 0..300_000 {
        let key = random.below(u64::from(keys)) as u32;
        change(&store, log_of(key), key);
        if turn % 16 == 0 {
            let _pace = store.cleaner.step(1).expect("memory is right");
        }
    }
    let stats = store.space.stats();
    assert!(stats.cleaner.survivors > 0, "{stats:?}");
    assert_eq!(stats.memory_parts, 2);
    assert_eq!(stats.binding, MemoryBinding::NoNodes);
    let [first, second] = places(&store, 0..keys, log_of);
    println!("{first:?} {second:?} {stats:?}");
    // Not all: a part may have run out while the other one had some.
    assert!(first[1] * 10 < first[0], "{first:?} {stats:?}");
    assert!(second[0] * 10 < second[1], "{second:?} {stats:?}");
}

#[test]
fn a_log_whose_part_is_full_takes_seglets_of_the_other_and_counts_them() {
    let store = store(64, [None, None]);
    for key in 0..45_000 {
        change(&store, 0, key);
    }
    let stats = store.space.stats();
    let [places, _] = places(&store, 0..45_000, |_| 0);
    assert!(places[1] > 5_000, "{places:?}");
    let away = stats.seglets_away * SEGLET_BYTES as u64;
    assert!(away >= u64::from(places[1]) * 1000, "{stats:?}");
    for key in 0..45_000 {
        store.read(key).expect("it was written");
    }
}

#[test]
fn pages_of_a_part_lie_on_its_node() {
    let probe = store(64, [Some(0), Some(0)]);
    change(&probe, 0, 0);
    let guard = probe.space.pin();
    let Some(node) = probe.space.node_of(probe.place_of(0), &guard) else {
        return; // The system does not tell.
    };
    let store = store(64, [Some(node), Some(node)]);
    assert_eq!(store.space.stats().binding, MemoryBinding::Bound);
    let guard = store.space.pin();
    for key in 0..20_000 {
        change(&store, (key % 2) as usize, key);
        if key % 100 == 0 {
            assert_eq!(store.space.node_of(store.place_of(key), &guard), Some(node));
        }
    }
}

#[test]
fn a_node_that_is_not_there_is_told_and_memory_works() {
    let store = store(64, [None, Some(1023)]);
    let stats = store.space.stats();
    let MemoryBinding::Refused(why) = stats.binding else {
        panic!("{stats:?}");
    };
    assert_eq!(why.node, 1023);
    let text = stats.binding.to_string();
    assert!(text.starts_with("memory not bound: node 1023: "), "{text}");
    for key in 0..20_000 {
        change(&store, (key % 2) as usize, key);
    }
    assert_eq!(store.space.stats().seglets_away, 0);
}

#[test]
fn tables_beside_the_log_tell_whether_they_are_interleaved() {
    let told = |nodes: &[u32]| {
        let options = LogOptions {
            table_nodes: nodes.iter().copied().collect(),
            ..options(64, 2, Durability::Volatile)
        };
        let store = Store::new(options, KEYS);
        for key in 0..20_000 {
            change(&store, (key % 2) as usize, key);
        }
        store.space.stats().interleaving
    };
    assert_eq!(told(&[]), Interleaving::FirstTouch);
    assert_eq!(told(&[0]), Interleaving::FirstTouch, "one node, no choice");
    let Interleaving::Refused(why) = told(&[1022, 1023]) else {
        panic!("no machine has these nodes");
    };
    assert_eq!(why.nodes, 2);
    let both = told(&[0, 1]);
    match both {
        Interleaving::Interleaved => {}
        // A sandbox, or a kernel without nodes: the same answer as above.
        Interleaving::Refused(other) => assert_eq!(other, why),
        Interleaving::FirstTouch => panic!("nobody was asked"),
    }
}

#[test]
fn a_thread_with_a_part_of_its_own_is_told_the_parts_node() {
    let node_of = |cleaners: u16, nodes: [Option<u32>; 2]| {
        let part = |(log, node): (u16, Option<u32>)| MemoryPart {
            node,
            logs: vec![LogId(log)],
        };
        let options = LogOptions {
            parts: (0..).zip(nodes).map(part).collect(),
            cleaners,
            ..options(64, 2, Durability::Volatile)
        };
        let store = Store::new(options, KEYS);
        [0, 1, 2].map(|thread| store.cleaner.node_of(thread))
    };
    let nodes = [Some(0), Some(7)];
    assert_eq!(node_of(2, nodes), [Some(0), Some(7), Some(0)]);
    assert_eq!(node_of(1, nodes), [None; 3], "too few for each part");
    assert_eq!(node_of(2, [None, Some(7)]), [None, Some(7), None]);
}

/// Keys of the second log are a third.
fn log_of_thirds(key: u32) -> usize {
    usize::from(key.is_multiple_of(3))
}

/// A store with a pass for each of two parts, in which nothing was cleaned. Each part has `free`
/// bytes free. Much in the second part is dead, little in the first one.
fn with_passes_of_their_own(free: [u64; 2]) -> Store {
    let part = |log| MemoryPart {
        node: None,
        logs: vec![LogId(log)],
    };
    let options = LogOptions {
        parts: vec![part(0), part(1)],
        cleaners: 2,
        live_percent_max: 95,
        ..options(192, 2, Durability::Volatile)
    };
    let store = Store::new(options, KEYS);
    let free_now = || store.space.stats().free_bytes;
    let other_part = free_now() / 2;
    let mut random = Random::new(5);
    for (log, left) in [other_part + free[0], free[0] + free[1]]
        .into_iter()
        .enumerate()
    {
        let own = Vec::from_iter((0..KEYS).filter(|key| log_of_thirds(*key) == log));
        for &key in &own {
            change(&store, log, key);
        }
        // Anywhere, so that something lives in every segment.
        while free_now() > left {
            change(&store, log, own[random.below(own.len() as u64) as usize]);
        }
    }
    assert_eq!(store.space.stats().seglets_away, 0);
    assert_eq!(store.space.stats().cleaner.passes, 0);
    store
}

/// The objects of each log that one of two threads moves when it cleans.
fn moved_by(store: &Store, thread: u16) -> [usize; 2] {
    let places = || Vec::from_iter((0..KEYS).map(|key| store.place_of(key)));
    let before = places();
    for _ in 0..1000 {
        if store.space.stats().cleaner.passes > 0 {
            break;
        }
        let _pace = store.cleaner.step_as(thread, 1).expect("memory is right");
    }
    let mut moved = [0; 2];
    for (key, (old, new)) in (0..).zip(before.iter().zip(places())) {
        moved[log_of_thirds(key)] += usize::from(*old != new);
    }
    moved
}

#[test]
fn each_thread_cleans_the_part_of_its_own_first() {
    // By what it would gain, every thread would begin with the second log.
    for thread in [0, 1] {
        let store = with_passes_of_their_own([1 << 20, 1 << 20]);
        let moved = moved_by(&store, thread);
        let own = usize::from(thread);
        let stats = store.space.stats();
        assert!(moved[own] > 0, "thread {thread}: {moved:?} {stats:?}");
        assert_eq!(moved[1 - own], 0, "thread {thread}: {stats:?}");
    }
}

#[test]
fn a_thread_helps_where_much_less_is_free() {
    let store = with_passes_of_their_own([5 << 20, 1 << 20]);
    let moved = moved_by(&store, 0);
    assert!(moved[1] > 0, "{moved:?} {:?}", store.space.stats());
    assert_eq!(moved[0], 0, "{:?}", store.space.stats());
}
