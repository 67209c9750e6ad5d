//! An embedded store whose log goes to a sink: what was synced is read back, whatever the sink and
//! the cleaner do.

use crate::disk::Disk;
use pluvio_store::{
    BuildError, Cleaning, Experiments, LogId, ReadBackError, ReplicaSink, SegmentId, SinkAnswer,
    SinkError, SinkWrite, Size, Store, StoreBuilder, StoreError, Table, Tombstones, UpdatePolicy,
    read_back,
};
use std::collections::BTreeMap;
use std::sync::Mutex;
use std::sync::atomic::Ordering;
use std::time::Duration;

fn builder(disk: &Disk) -> StoreBuilder {
    Store::builder()
        .memory(Size::mib(64))
        .heads(2)
        .sink(disk.clone())
}

/// Writes until there is room.
fn put(table: &Table, key: &[u8], value: &[u8]) {
    loop {
        match table.put(key, value) {
            Ok(_) => return,
            Err(StoreError::Full { .. }) => std::thread::yield_now(),
            Err(other) => panic!("{other}"),
        }
    }
}

fn delete(table: &Table, key: &[u8]) {
    loop {
        match table.delete(key) {
            Ok(_) => return,
            Err(StoreError::Full { .. }) => std::thread::yield_now(),
            Err(other) => panic!("{other}"),
        }
    }
}

#[test]
fn versions_of_a_dropped_table_are_not_given_again() {
    let disk = Disk::default();
    let store = builder(&disk).heads(1).build().unwrap();
    let dropped = store.create_table("dropped").unwrap();
    for _ in 0..1000 {
        put(&dropped, b"key", b"value");
    }
    let last = dropped.get_with(b"key", |version, _| version).unwrap();
    store.sync().unwrap();
    assert!(store.drop_table("dropped"));
    // What the table had is cleaned away in memory long before the disk: there it stays until its
    // segment is cleaned, which must happen before the log is larger than the disk part may be.
    let table = store.create_table("other").unwrap();
    let value = vec![1; 256 << 10];
    let kept = (0..50).find_map(|_| {
        (0..200_u32).for_each(|n| put(&table, &[(n % 20) as u8], &value));
        store.sync().unwrap();
        let kept = disk.read_back().unwrap();
        (kept.objects.len() == 20).then_some(kept)
    });
    let kept = kept.expect("the dropped table's object leaves the disk");
    assert!(kept.next_version > last);
}

// shows: EMBED-4
#[test]
fn what_was_synced_is_read_back_and_lives_on_in_another_store() {
    let disk = Disk::default();
    let store = builder(&disk).build().unwrap();
    let table = store.create_table("one").unwrap();
    put(&table, b"kept", b"1");
    put(&table, b"changed", b"2");
    put(&table, b"changed", b"3");
    put(&table, b"deleted", b"4");
    let last = table.put(b"large", &vec![7; 1 << 20]).unwrap();
    assert!(table.delete(b"deleted").unwrap());
    assert!(!table.delete(b"deleted").unwrap());
    assert_eq!(table.get(b"deleted"), None);
    store.sync().unwrap();
    assert!(store.stats().sink_bytes > 0);
    let again = table.put(b"deleted", b"5").unwrap();
    store.sync().unwrap();
    drop((store, table));
    assert_eq!(disk.handles(), 1, "the sink went with the store");
    let kept = disk.read_back().unwrap();
    assert!(kept.next_version > again.max(last));
    let found: Vec<(&[u8], usize)> = kept
        .objects
        .iter()
        .map(|object| (&object.key[..], object.value.len()))
        .collect();
    let expected: [(&[u8], usize); 4] = [
        (b"changed", 1),
        (b"deleted", 1),
        (b"kept", 1),
        (b"large", 1 << 20),
    ];
    assert_eq!(found, expected);
    let next = Store::builder()
        .memory(Size::mib(64))
        .first_version(kept.next_version)
        .build()
        .unwrap();
    let table = next.create_table("one").unwrap();
    for object in &kept.objects {
        assert_eq!(object.table, table.id());
        let version = table.put(&object.key, &object.value).unwrap();
        assert!(version > again, "versions grow over a crash");
    }
    assert_eq!(table.get(b"changed").unwrap(), b"3");
    next.sync().unwrap();
}

#[test]
fn each_head_is_a_stream_of_its_own() {
    let disk = Disk::default();
    let store = builder(&disk).heads(3).build().unwrap();
    store.sync().unwrap();
    let segments = disk.0.segments.lock().unwrap();
    let logs: Vec<u16> = segments.keys().map(|(log, _)| log.0).collect();
    assert_eq!(logs, [0, 1, 2]);
}

/// The newest value of every key that was synced, and the newest that was written.
#[derive(Default, Clone)]
struct Known {
    synced: BTreeMap<u32, u32>,
    written: BTreeMap<u32, u32>,
}

/// A value that says which write of its key it is. Every seventh write deletes.
fn value_of(key: u32, round: u32) -> Option<Vec<u8>> {
    if round.is_multiple_of(7) {
        return None;
    }
    let mut value = round.to_le_bytes().to_vec();
    value.resize(
        4 + ((key.wrapping_mul(2_654_435_761) ^ round) % 6000) as usize,
        9,
    );
    Some(value)
}

/// Every key is as it was at the last sync, or newer.
fn compare(found: &BTreeMap<Vec<u8>, Vec<u8>>, known: &Known) {
    for (&key, &written) in &known.written {
        let synced = known.synced.get(&key).copied().unwrap_or(0);
        match found.get(&key.to_le_bytes()[..]) {
            Some(value) => {
                let round = u32::from_le_bytes(*value.first_chunk().unwrap());
                assert_eq!(Some(value), value_of(key, round).as_ref());
                assert!(
                    (synced..=written).contains(&round),
                    "key {key}: write {round} was read back, {synced} was synced, {written} written"
                );
            }
            None => assert!(
                (synced..=written).any(|round| value_of(key, round).is_none()),
                "key {key} is lost: write {synced} was synced"
            ),
        }
    }
}

/// One thread's keys are overwritten and deleted in turns, with syncs and looks at the disk in
/// between.
fn torment(cleaning: Cleaning, threads: u32, disk: &Disk) {
    torment_with(
        builder(disk).experiments(Experiments {
            cleaning,
            ..Experiments::default()
        }),
        threads,
        disk,
    );
}

fn torment_with(builder: StoreBuilder, threads: u32, disk: &Disk) {
    const KEYS: u32 = 2500;
    const ROUNDS: u32 = 40;
    let store = builder.cleaner_threads(2).build().unwrap();
    let table = store.create_table("test").unwrap();
    let known: Vec<Mutex<Known>> = (0..threads).map(|_| Mutex::default()).collect();
    std::thread::scope(|scope| {
        for thread in 0..threads {
            let (table, store, known) = (&table, &store, &known[thread as usize]);
            scope.spawn(move || {
                for round in 1..=ROUNDS {
                    for key in (thread * KEYS..).take(KEYS as usize) {
                        // Some keys are left alone for some rounds: segments of different age. A
                        // few are for nearly all, so that something lives in each segment however
                        // late it is cleaned.
                        let left_alone = if key.is_multiple_of(16) {
                            !(key / 16 + round).is_multiple_of(37)
                        } else {
                            (key ^ round).is_multiple_of(3)
                        };
                        if left_alone {
                            continue;
                        }
                        let mut now = known.lock().unwrap();
                        now.written.insert(key, round);
                        drop(now);
                        match value_of(key, round) {
                            Some(value) => put(table, &key.to_le_bytes(), &value),
                            None => delete(table, &key.to_le_bytes()),
                        }
                    }
                    let written = known.lock().unwrap().written.clone();
                    while store.sync().is_err() {}
                    known.lock().unwrap().synced = written;
                }
            });
        }
        scope.spawn(|| {
            for _ in 0..20 {
                std::thread::yield_now();
                // What was synced before the power cut, what was written after it.
                let before: Vec<Known> = known.iter().map(|k| k.lock().unwrap().clone()).collect();
                if before.iter().any(|known| known.synced.is_empty()) {
                    continue;
                }
                let found = disk.objects();
                for (before, after) in before.iter().zip(&known) {
                    let mut both = after.lock().unwrap().clone();
                    both.synced.clone_from(&before.synced);
                    compare(&found, &both);
                }
            }
        });
    });
    let found = disk.objects();
    for known in &known {
        compare(&found, &known.lock().unwrap());
    }
    for (key, value) in &found {
        assert_eq!(table.get(key).as_ref(), Some(value));
    }
    assert_eq!(table.len(), found.len() as u64);
    let stats = store.stats();
    assert!(stats.cleaner.bytes_copied() > 0, "{stats:?}");
    assert!(disk.0.freed.load(Ordering::Relaxed) > 0);
    assert!(stats.sink_bytes <= 2 * stats.memory_bytes + (16 << 20));
}

// shows: EMBED-4
#[test]
fn nothing_synced_is_lost_while_both_levels_clean() {
    torment(Cleaning::TwoLevel, 2, &Disk::default());
}

#[test]
fn nothing_synced_is_lost_with_one_level() {
    torment(Cleaning::OneLevel, 2, &Disk::default());
}

#[test]
fn nothing_synced_is_lost_with_a_tombstone_for_every_overwrite() {
    let disk = Disk::default();
    torment_with(
        builder(&disk).experiments(Experiments {
            tombstones: Tombstones::Every,
            ..Experiments::default()
        }),
        1,
        &disk,
    );
}

/// Bytes that the sink gets for the same objects, the second time over the first ones.
fn sent_for_overwrites(tombstones: Tombstones) -> usize {
    const KEYS: u32 = 1000;
    let disk = Disk::default();
    let store = builder(&disk)
        .experiments(Experiments {
            tombstones,
            ..Experiments::default()
        })
        .build()
        .unwrap();
    let table = store.create_table("test").unwrap();
    for value in [[1; 100], [2; 100]] {
        for key in 0..KEYS {
            put(&table, &key.to_le_bytes(), &value);
        }
    }
    store.sync().unwrap();
    let segments = disk.0.segments.lock().unwrap();
    segments.values().map(|segment| segment.bytes.len()).sum()
}

#[test]
fn overwrites_write_tombstones_when_asked_to() {
    let (graves, every) = (
        sent_for_overwrites(Tombstones::Deletes),
        sent_for_overwrites(Tombstones::Every),
    );
    // A grave takes some bytes, a tombstone at least its head, its key and a segment's number.
    assert!(every >= graves + 10 * 1000, "{every} and {graves} bytes");
}

#[test]
fn tombstones_without_a_sink_are_refused() {
    let builder = || Store::builder().memory(Size::mib(64));
    match builder()
        .experiments(Experiments {
            tombstones: Tombstones::Every,
            ..Experiments::default()
        })
        .build()
    {
        Err(BuildError::OutOfRange { option, .. }) => assert_eq!(option, "tombstones"),
        other => panic!("{other:?}"),
    }
    assert!(
        builder()
            .experiments(Experiments {
                tombstones: Tombstones::Deletes,
                ..Experiments::default()
            })
            .build()
            .is_ok()
    );
}

#[test]
fn a_sink_that_waits_and_fails_loses_nothing() {
    let disk = Disk::default();
    disk.0.waits_each.store(3, Ordering::Relaxed);
    disk.0.fails_each.store(211, Ordering::Relaxed);
    torment(Cleaning::TwoLevel, 1, &disk);
}

#[test]
fn a_sink_that_fails_is_reported_and_asked_again() {
    let disk = Disk::default();
    disk.0.fails_each.store(1, Ordering::Relaxed);
    let store = builder(&disk).build().unwrap();
    let table = store.create_table("test").unwrap();
    table.put(b"k", b"v").unwrap();
    let failed = store.sync().unwrap_err();
    assert_eq!(failed, SinkError("out of order".into()));
    assert_eq!(table.get(b"k").unwrap(), b"v");
    disk.0.fails_each.store(0, Ordering::Relaxed);
    while store.sync().is_err() {}
    assert_eq!(disk.objects().len(), 1);
}

/// The memory is full, and the sink takes nothing: deletes have room as long as their reserve
/// lasts, then they are refused with a delay, as writes are.
#[test]
fn deletes_go_on_when_a_sink_that_was_stuck_works_again() {
    let disk = Disk::default();
    let store = builder(&disk).build().unwrap();
    let table = store.create_table("test").unwrap();
    disk.0.fails_each.store(1, Ordering::Relaxed);
    let mut keys = 0_u32;
    while table.put(&keys.to_le_bytes(), &[7; 1000]).is_ok() {
        keys += 1;
    }
    let mut numbers = 0..keys;
    let refused = numbers.find_map(|key| match table.delete(&key.to_le_bytes()) {
        Ok(was_there) => {
            assert!(was_there);
            None
        }
        Err(refused) => Some((key, refused)),
    });
    let from = match refused {
        Some((key, StoreError::Full { retry_after })) => {
            assert!(key > 0 && retry_after > Duration::ZERO, "{key}");
            assert!(table.get(&key.to_le_bytes()).is_some(), "it is as it was");
            key
        }
        None => keys,
        Some((key, other)) => panic!("{key}: {other}"),
    };
    println!("{from} of {keys} deletes had room");
    disk.0.fails_each.store(0, Ordering::Relaxed);
    for key in from..keys {
        delete(&table, &key.to_le_bytes());
    }
    put(&table, b"after", b"1");
    while store.sync().is_err() {}
    assert_eq!(table.len(), 1);
    assert_eq!(disk.objects().len(), 1);
}

/// A sink whose first call panics.
struct Broken;

impl ReplicaSink for Broken {
    fn write(&mut self, _: &SinkWrite<'_>) -> Result<SinkAnswer, SinkError> {
        panic!("broken on purpose")
    }

    fn close(&mut self, _: LogId, _: SegmentId) -> Result<(), SinkError> {
        Ok(())
    }

    fn free(&mut self, _: LogId, _: SegmentId) -> Result<(), SinkError> {
        Ok(())
    }
}

#[test]
fn a_sink_that_panics_leaves_nobody_waiting() {
    let store = Store::builder()
        .memory(Size::mib(64))
        .sink(Broken)
        .build()
        .unwrap();
    let table = store.create_table("test").unwrap();
    table.put(b"k", b"v").unwrap();
    assert!(store.sync().unwrap_err().0.contains("panic"));
    assert_eq!(table.get(b"k").unwrap(), b"v");
}

#[test]
fn a_sink_and_overwriting_exclude_each_other() {
    let refused = builder(&Disk::default())
        .update(UpdatePolicy::InPlace)
        .build();
    match refused {
        Err(BuildError::OutOfRange { option, .. }) => assert_eq!(option, "update"),
        other => panic!("{other:?}"),
    }
}

#[test]
fn missing_and_damaged_segments_are_told() {
    let disk = Disk::default();
    let store = builder(&disk).heads(2).build().unwrap();
    let table = store.create_table("test").unwrap();
    for key in 0..100_000_u32 {
        put(&table, &key.to_le_bytes(), &[1; 100]);
    }
    store.sync().unwrap();
    drop((store, table));
    let kept = disk.kept();
    assert!(kept.iter().filter(|segment| segment.closed).count() > 1);
    let without = |at: usize| {
        let mut kept = kept.clone();
        kept.remove(at);
        read_back(&kept)
    };
    let closed = kept.iter().position(|segment| segment.closed).unwrap();
    let open = kept.iter().position(|segment| !segment.closed).unwrap();
    assert!(matches!(
        without(closed),
        Err(ReadBackError::Missing { .. })
    ));
    assert!(matches!(without(open), Err(ReadBackError::NoHead(_))));
    assert_eq!(read_back(&[]), Err(ReadBackError::NoHead(LogId(0))));
    let mut damaged = kept.clone();
    let middle = damaged[closed].bytes.len() / 2;
    damaged[closed].bytes[middle] ^= 1;
    assert!(matches!(
        read_back(&damaged),
        Err(ReadBackError::Damaged { .. })
    ));
    assert_eq!(read_back(&kept).unwrap().objects.len(), 100_000);
}
