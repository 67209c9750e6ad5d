//! Append, heads, durable positions, side logs, and what replication sees of them.

use crate::support::{Store, options};
use pluvio_format::{
    EncodeError, Entry, GROUP_MAX, Graves, Object, ObjectState, SegmentIter, SegmentKind,
};
use pluvio_log::{AppendClass, AppendError, CommitError, Durability, EntryRefs, LogSpace, SideLog};
use pluvio_units::{LogId, LogPosition, ObjectVersion, SEGLET_BYTES, TableId, VALUE_MAX};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

const LOG: LogId = LogId(0);

fn space(durability: Durability) -> Arc<LogSpace> {
    LogSpace::new(options(32, 1, durability)).expect("enough memory")
}

fn object<'a>(key: &'a [u8], value: &'a [u8]) -> Entry<'a> {
    Entry::Object(Object {
        table: TableId(1),
        version: ObjectVersion(1),
        timestamp_s: 3,
        graves: Graves::NONE,
        deadline: None,
        state: ObjectState::Plain,
        key,
        value,
    })
}

fn check_value(space: &LogSpace, refs: &EntryRefs, expected: &[u8]) {
    let guard = space.pin();
    let view = space.entry(refs[0], &guard).expect("memory is right");
    let Entry::Object(object) = view.entry() else {
        panic!("an object was written")
    };
    assert!(object.value == expected);
}

#[test]
fn a_segment_reads_back_as_the_groups_that_were_appended() {
    let space = space(Durability::Replicated);
    let value: Vec<u8> = (0..SEGLET_BYTES * 3).map(|i| i as u8).collect();
    let mut sizes = Vec::new();
    for i in 0..400usize {
        let len = (i * i * 7) % if i % 9 == 0 { value.len() } else { 5000 };
        let group = vec![object(b"key", &value[..len]); 1 + i % 6];
        let guard = space.pin();
        let appended = space
            .append(LOG, &group, AppendClass::Normal, &guard)
            .expect("there is room");
        assert_eq!(appended.pending().len(), group.len());
        let (log, position) = space.position_of(appended.pending()[0], &guard);
        assert_eq!(log, LOG);
        assert!(position < appended.position());
        check_value(&space, appended.pending(), &value[..len]);
        sizes.push((len, group.len()));
    }
    let segments = space.take_new_segments(LOG);
    assert!(segments.len() > 2, "heads were rolled");
    let mut sizes = sizes.into_iter();
    for segment in segments {
        let image = segment
            .copy_out(0..segment.appended_len())
            .expect("not freed");
        let mut groups = SegmentIter::new(&image, SEGLET_BYTES).map(|g| g.expect("all is right"));
        let first = groups.next().expect("a head has a first group");
        assert_eq!(first.end(), segment.opening_len() as usize);
        for group in groups {
            let (len, count) = sizes.next().expect("no more groups than were appended");
            assert_eq!(group.len(), count);
            for (_, entry) in group.entries() {
                assert!(matches!(entry, Entry::Object(o) if o.value == &value[..len]));
            }
        }
    }
    assert!(sizes.next().is_none());
}

#[test]
fn every_head_begins_with_header_digest_statistics_and_safe_version() {
    let space = space(Durability::Replicated);
    space.raise_safe_version(ObjectVersion(77));
    let position = space.roll(LOG).expect("there is memory");
    let segments = space.take_new_segments(LOG);
    let head = segments.last().expect("it was opened");
    assert_eq!(head.end(), position);
    assert!(segments[0].is_closed() && !head.is_closed());
    let image = head.copy_out(0..head.appended_len()).expect("not freed");
    let group = SegmentIter::new(&image, SEGLET_BYTES)
        .next()
        .expect("one")
        .expect("right");
    let entries: Vec<_> = group.entries().map(|(_, entry)| entry).collect();
    let [
        Entry::SegmentHeader(header),
        Entry::LogDigest(digest),
        Entry::TableStats(_),
        Entry::SafeVersion(version),
    ] = &entries[..]
    else {
        panic!("{entries:?}")
    };
    assert_eq!(
        (header.segment, header.kind),
        (head.id(), SegmentKind::Head)
    );
    assert_eq!(digest.segments, [segments[0].id(), head.id()]);
    assert_eq!(*version, ObjectVersion(77));
}

// shows: DURABLE-1
#[test]
fn only_what_is_durable_can_be_confirmed() {
    let space = space(Durability::Replicated);
    let woken = Arc::new(AtomicU32::new(0));
    let count = Arc::clone(&woken);
    space.set_append_hook(
        LOG,
        Box::new(move || {
            count.fetch_add(1, Ordering::Relaxed);
        }),
    );
    let guard = space.pin();
    let appended = space
        .append(LOG, &[object(b"k", b"v")], AppendClass::Normal, &guard)
        .expect("there is room");
    assert_eq!(woken.load(Ordering::Relaxed), 1);
    let end = appended.position();
    let appended = space.confirm(appended).expect_err("nothing was replicated");
    let short = LogPosition {
        offset: end.offset - 1,
        ..end
    };
    space.advance_durable(LOG, short);
    let appended = space.confirm(appended).expect_err("a byte is missing");
    space.advance_durable(LOG, end);
    space.advance_durable(LOG, short);
    assert_eq!(space.durable_position(LOG), Some(end));
    let durable = space.confirm(appended.map(|_| "done")).expect("durable");
    assert_eq!(durable.into_value(), "done");
}

#[test]
fn groups_of_impossible_size_are_refused_and_nothing_is_appended() {
    let space = space(Durability::Volatile);
    let guard = space.pin();
    let before = space.end_position(LOG);
    let append = |group: &[Entry<'_>]| {
        let result = space.append(LOG, group, AppendClass::Normal, &guard);
        result.map(|_| ()).expect_err("refused")
    };
    assert_eq!(append(&[]), AppendError::GroupLength(0));
    let many = vec![object(b"k", b"v"); GROUP_MAX + 1];
    assert_eq!(append(&many), AppendError::GroupLength(GROUP_MAX + 1));
    let value = vec![0; VALUE_MAX + 1];
    let too_long = EncodeError::ValueTooLong(VALUE_MAX + 1);
    assert_eq!(
        append(&[object(b"k", &value)]),
        AppendError::Encode(too_long)
    );
    let three = vec![object(b"k", &value[..VALUE_MAX]); 3];
    assert!(matches!(append(&three), AppendError::GroupTooLarge { .. }));
    assert_eq!(space.end_position(LOG), before);
    let two = vec![object(b"k", &value[..VALUE_MAX]); 2];
    let appended = space.append(LOG, &two, AppendClass::Normal, &guard);
    check_value(
        &space,
        appended.expect("two fit").pending(),
        &value[..VALUE_MAX],
    );
}

// shows: REC-3
#[test]
fn a_side_log_joins_only_when_it_is_durable_and_leaves_no_trace_when_aborted() {
    let space = space(Durability::Replicated);
    let free = space.stats().free_bytes;
    let value = vec![5; 100_000];
    let fill = |side: &mut SideLog| {
        for _ in 0..60 {
            let guard = space.pin();
            side.append(&[object(b"k", &value)], AppendClass::Internal, &guard)
                .expect("there is room");
        }
    };
    let mut aborted = SideLog::new(Arc::clone(&space), LOG);
    fill(&mut aborted);
    assert!(space.stats().free_bytes < free);
    aborted.abort();
    assert_eq!(space.take_freeable(LOG).len(), 3);
    let mut side = SideLog::new(Arc::clone(&space), LOG);
    fill(&mut side);
    let segments = side.close();
    assert_eq!(segments.len(), 3);
    let refused = side.commit().expect_err("nothing was replicated");
    assert_eq!(refused.error, CommitError::NotDurable(segments[0].id()));
    for segment in &segments {
        segment.mark_durable();
    }
    let committed = refused.side_log.commit().expect("all is durable");
    let ids = committed.pending().clone();
    assert_eq!(ids, segments.iter().map(|s| s.id()).collect::<Vec<_>>());
    assert_eq!(committed.position(), space.end_position(LOG));
    let listed: Vec<_> = space.segments(LOG).iter().map(|s| s.id()).collect();
    assert!(ids.iter().all(|id| listed.contains(id)));
    // Dropped again, they are freed by the next durable digest and not before.
    assert!(space.drop_committed(LOG, &ids).is_empty());
    assert_eq!(space.drop_committed(LOG, &ids), ids);
    let head = space.roll(LOG).expect("there is memory").segment;
    assert!(space.take_freeable(LOG).is_empty());
    space.digest_durable(LOG, head);
    assert_eq!(space.take_freeable(LOG), ids);
    assert!(segments[0].copy_out(0..10).is_none());
}

// shows: REC-4
#[test]
fn held_segments_of_a_side_log_are_not_cleaned_before_they_are_released() {
    let store = Store::new(options(32, 1, Durability::Volatile), 8);
    let space = &store.space;
    let mut side = SideLog::new(Arc::clone(space), LOG);
    let value = vec![7; 200_000];
    for _ in 0..60 {
        let guard = space.pin();
        let key = 0u32.to_le_bytes();
        let refs = side.append(&[object(&key, &value)], AppendClass::Internal, &guard);
        // The index does not know it: there is nothing that could be more worth cleaning.
        let entry = refs.expect("there is room")[0];
        let bytes = space
            .entry(entry, &guard)
            .expect("memory is right")
            .total_len();
        space.mark_dead(entry, bytes, &guard);
    }
    side.hold();
    let ids = side.commit().expect("a volatile side log is durable");
    let ids = ids.pending().clone();
    let there = || {
        let listed: Vec<_> = space.segments(LOG).iter().map(|s| s.id()).collect();
        ids.iter().filter(|id| listed.contains(id)).count()
    };
    let work = || {
        for round in 0..400 {
            // Refused or not: memory is asked for.
            let _written = store.change(LOG, round % 8, Some(150_000), round);
            for _ in 0..8 {
                let _pace = store.cleaner.step(round).expect("memory is right");
            }
        }
    };
    work();
    assert!(store.space.stats().cleaner.passes > 0, "memory was short");
    assert_eq!(there(), ids.len());
    space.release(LOG, &ids);
    work();
    assert_eq!(there(), 0);
}
