//! Log reconstruction, case by case.

mod bad_input;
mod model;

use super::*;
use crate::state::Places;
use pluvio_units::ReplicationEpoch;
use pluvio_wire::TableLoad;

/// Of a log of which nothing was given up, and that needs all classes.
fn reconstruct(
    inventories: &[Inventory],
    epochs: &Epochs,
    ends: Option<&Ends>,
) -> Result<LogMap, Incomplete> {
    reconstruct_without(inventories, epochs, ends, None, &WeakLogs::default())
}

fn replica(segment: u64) -> ReplicaInfo {
    ReplicaInfo {
        segment: SegmentId(segment),
        log: LogId(0),
        side: false,
        epoch: ReplicationEpoch(0),
        closed: true,
        primary: true,
        length: 100,
        head: None,
    }
}

fn head(segment: u64, digest: &[u64]) -> ReplicaInfo {
    ReplicaInfo {
        closed: false,
        head: Some(HeadInfo {
            logs: 1,
            digest: digest.iter().copied().map(SegmentId).collect(),
            tables: Vec::new(),
            other_bytes: 0,
            other_entries: 0,
            has_data: false,
            copies: 1,
            may_lack: false,
            needed: 1,
        }),
        ..replica(segment)
    }
}

/// An open head with something behind its first group.
fn filled(segment: u64, digest: &[u64]) -> ReplicaInfo {
    let mut filled = head(segment, digest);
    filled.length = 200;
    filled.head.as_mut().unwrap().has_data = true;
    filled
}

/// A replica of an open head whose backup's machine lost power, of a master that needed two for an
/// acknowledgement.
fn doubtful(mut replica: ReplicaInfo) -> ReplicaInfo {
    let head = replica.head.as_mut().unwrap();
    (head.copies, head.needed, head.may_lack) = (2, 2, true);
    replica
}

fn in_log(log: u16, logs: u16, mut replica: ReplicaInfo) -> ReplicaInfo {
    replica.log = LogId(log);
    if let Some(head) = &mut replica.head {
        head.logs = logs;
    }
    replica
}

fn epoch(mut replica: ReplicaInfo, epoch: u32) -> ReplicaInfo {
    replica.epoch = ReplicationEpoch(epoch);
    replica
}

fn backup(id: u64, replicas: Vec<ReplicaInfo>) -> Inventory {
    Inventory {
        backup: ServerId(id),
        disk_mb_per_s: 100,
        room: None,
        replicas,
    }
}

fn recorded(segment: u64, epoch: u32) -> Epochs {
    Epochs::from([(LogId(0), (SegmentId(segment), ReplicationEpoch(epoch)))])
}

fn segments(map: &LogMap) -> Vec<(u64, Vec<u64>)> {
    let mut all: Vec<_> = map
        .segments
        .iter()
        .map(|s| (s.segment.0, s.backups.iter().map(|b| b.0).collect()))
        .collect();
    all.sort();
    all
}

fn complete(inventories: &[Inventory]) -> Vec<(u64, Vec<u64>)> {
    segments(&reconstruct(inventories, &Epochs::new(), None).unwrap())
}

#[test]
fn the_digest_says_what_belongs_to_the_log() {
    // Segment 2 was cleaned away; its replica is left over and not replayed.
    let found = complete(&[
        backup(1, vec![replica(1), head(4, &[1, 3, 4])]),
        backup(2, vec![replica(2), replica(3)]),
    ]);
    assert_eq!(found, [(1, vec![1]), (3, vec![2]), (4, vec![1])]);
}

#[test]
fn a_log_without_an_open_head_is_not_complete() {
    let text = reconstruct(&[backup(1, vec![replica(1)])], &Epochs::new(), None)
        .unwrap_err()
        .to_string();
    assert!(text.contains("none has an open head"), "{text}");
    let none = reconstruct(&[], &Epochs::new(), None);
    assert!(none.is_err());
}

#[test]
fn a_segment_without_replica_is_named() {
    let text = reconstruct(
        &[backup(1, vec![head(3, &[1, 2, 3]), replica(1)])],
        &Epochs::new(),
        None,
    )
    .unwrap_err()
    .to_string();
    assert!(text.contains("1 segments are missing (2)"), "{text}");
}

#[test]
fn of_two_open_heads_the_lower_one_counts() {
    // 5 was opened, 4 not yet closed everywhere: 5 is empty.
    let found = complete(&[
        backup(1, vec![head(4, &[3, 4]), head(5, &[3, 4, 5]), replica(3)]),
        backup(2, vec![head(5, &[3, 4, 5])]),
    ]);
    assert_eq!(found, [(3, vec![1]), (4, vec![1])]);
}

#[test]
fn a_head_that_was_closed_anywhere_is_read_where_it_was_closed() {
    let mut inventories = vec![
        backup(1, vec![head(4, &[4]), head(5, &[4, 5])]),
        backup(2, vec![replica(4)]),
    ];
    assert_eq!(complete(&inventories), [(4, vec![2]), (5, vec![1])]);
    // Its successor was opened before it was closed. Where that has gone, there may have been more
    // of it.
    inventories[0].replicas.pop();
    let alone = reconstruct(&inventories, &Epochs::new(), None);
    assert!(alone.is_err(), "{alone:?}");
}

/// COORD-8: backup 1 has lost what closed its frame. Segments 5 to 7 must not be overlooked.
// shows: COORD-8
#[test]
fn an_open_head_that_others_have_closed_is_not_the_end_of_the_log() {
    let _marks = pluvio_units::Marks::to_reach(&["recovery-closed-head"]);
    let taken_back = backup(1, vec![replica(3), filled(4, &[3, 4])]);
    let others = [
        backup(2, vec![replica(4), replica(5)]),
        backup(3, vec![replica(5), filled(6, &[3, 4, 5, 6])]),
    ];
    let [second, third] = others.clone();
    let found = complete(&[taken_back.clone(), second.clone(), third.clone()]);
    assert_eq!(
        found,
        [(3, vec![1]), (4, vec![2]), (5, vec![2, 3]), (6, vec![3])]
    );
    // Without the head there is no end, and without a closed replica of 4 it is missing.
    let text = |inventories: &[Inventory]| {
        let incomplete = reconstruct(inventories, &Epochs::new(), None).unwrap_err();
        incomplete.to_string()
    };
    let headless = text(&[taken_back.clone(), second]);
    assert!(headless.contains("none has an open head"), "{headless}");
    let gap = text(&[taken_back, third]);
    assert!(gap.contains("1 segments are missing (4)"), "{gap}");
}

// shows: COORD-8
#[test]
fn a_later_head_with_data_shows_that_the_one_before_it_was_closed() {
    let with = |later: ReplicaInfo| {
        let inventories = [backup(1, vec![head(4, &[4])]), backup(2, vec![later])];
        reconstruct(&inventories, &Epochs::new(), None)
    };
    assert_eq!(segments(&with(head(5, &[4, 5])).unwrap()), [(4, vec![1])]);
    let text = with(filled(5, &[4, 5])).unwrap_err().to_string();
    assert!(text.contains("1 segments are missing (4)"), "{text}");
}

// shows: COORD-8
#[test]
fn a_later_head_that_does_not_list_one_shows_that_it_was_closed() {
    let inventories = [
        backup(1, vec![head(4, &[3, 4])]),
        backup(2, vec![head(6, &[5, 6]), replica(5)]),
    ];
    assert_eq!(complete(&inventories), [(5, vec![2]), (6, vec![2])]);
}

// shows: COORD-8
#[test]
fn of_three_open_heads_the_first_was_closed() {
    let inventories = [
        backup(1, vec![head(4, &[4])]),
        backup(2, vec![head(5, &[4, 5]), head(6, &[4, 5, 6])]),
    ];
    let text = reconstruct(&inventories, &Epochs::new(), None)
        .unwrap_err()
        .to_string();
    assert!(text.contains("1 segments are missing (4)"), "{text}");
}

#[test]
fn closed_side_segments_say_nothing_about_heads() {
    let mut side = replica(5);
    side.side = true;
    let found = complete(&[backup(1, vec![head(4, &[4]), side])]);
    assert_eq!(found, [(4, vec![1])]);
}

#[test]
fn stale_open_replicas_are_not_used() {
    let stale = backup(1, vec![epoch(head(4, &[4]), 0), replica(3)]);
    let fresh = backup(2, vec![epoch(head(4, &[3, 4]), 1)]);
    let epochs = recorded(4, 1);
    let map = reconstruct(&[stale.clone(), fresh], &epochs, None).unwrap();
    assert_eq!(segments(&map), [(3, vec![1]), (4, vec![2])]);
    // Alone, the stale one proves nothing.
    assert!(reconstruct(&[stale], &epochs, None).is_err());
}

// shows: REP-6
#[test]
fn open_replicas_older_than_the_recorded_segment_are_stale_whatever_their_epoch() {
    let old = backup(1, vec![epoch(head(3, &[3]), 7)]);
    let new = backup(2, vec![epoch(head(4, &[4]), 1)]);
    let map = reconstruct(&[old, new], &recorded(4, 1), None).unwrap();
    assert_eq!(segments(&map), [(4, vec![2])]);
}

#[test]
fn open_replicas_newer_than_the_recorded_segment_need_no_epoch() {
    let map = reconstruct(&[backup(1, vec![head(5, &[5])])], &recorded(4, 3), None).unwrap();
    assert_eq!(segments(&map), [(5, vec![1])]);
}

#[test]
fn closed_replicas_are_never_stale() {
    let closed = backup(1, vec![epoch(replica(4), 0)]);
    let open = backup(2, vec![epoch(head(5, &[4, 5]), 2)]);
    let map = reconstruct(&[closed, open], &recorded(5, 2), None).unwrap();
    assert_eq!(segments(&map), [(4, vec![1]), (5, vec![2])]);
}

#[test]
fn side_segments_count_only_when_closed() {
    let mut side = replica(2);
    side.side = true;
    let with = |side: &ReplicaInfo| [backup(1, vec![head(3, &[2, 3]), side.clone()])];
    assert_eq!(complete(&with(&side)).len(), 2);
    side.closed = false;
    assert!(reconstruct(&with(&side), &Epochs::new(), None).is_err());
    // Nor does an open side segment give a digest.
    let mut odd = head(1, &[1]);
    odd.side = true;
    let map = reconstruct(&[backup(1, vec![odd, head(3, &[3])])], &Epochs::new(), None).unwrap();
    assert_eq!(segments(&map), [(3, vec![1])]);
}

#[test]
fn an_open_replica_of_an_inner_segment_is_not_enough() {
    // Its digest is unreadable, so it cannot be the head; it may lack acknowledged data.
    let mut inner = head(3, &[3]);
    inner.head = None;
    let found = reconstruct(
        &[backup(1, vec![inner, head(4, &[3, 4])])],
        &Epochs::new(),
        None,
    );
    assert!(found.is_err());
}

#[test]
fn every_log_needs_its_head() {
    let first = in_log(0, 2, head(1, &[1]));
    let second = in_log(1, 2, head(2, &[2]));
    let both = reconstruct(
        &[
            backup(1, vec![first.clone()]),
            backup(2, vec![second.clone()]),
        ],
        &Epochs::new(),
        None,
    );
    assert_eq!(both.unwrap().segments.len(), 2);
    for one in [first, second] {
        let text = reconstruct(&[backup(1, vec![one])], &Epochs::new(), None)
            .unwrap_err()
            .to_string();
        assert!(text.contains("no open head of log"), "{text}");
    }
}

#[test]
fn epochs_of_one_log_say_nothing_about_another() {
    let first = in_log(0, 2, head(1, &[1]));
    let second = in_log(1, 2, epoch(head(9, &[9]), 4));
    let epochs = Epochs::from([(LogId(1), (SegmentId(9), ReplicationEpoch(4)))]);
    let map = reconstruct(&[backup(1, vec![first, second])], &epochs, None).unwrap();
    assert_eq!(map.segments.len(), 2);
}

#[test]
fn primaries_come_first_and_segments_in_order_of_readiness() {
    let secondary = |segment| ReplicaInfo {
        primary: false,
        ..replica(segment)
    };
    let mut slow = backup(1, vec![replica(1), replica(2), secondary(3)]);
    slow.disk_mb_per_s = 10;
    let mut fast = backup(
        2,
        vec![
            secondary(1),
            secondary(2),
            replica(3),
            head(4, &[1, 2, 3, 4]),
        ],
    );
    fast.disk_mb_per_s = 1000;
    let map = reconstruct(&[slow, fast], &Epochs::new(), None).unwrap();
    let order: Vec<_> = map
        .segments
        .iter()
        .map(|s| {
            (
                s.segment.0,
                s.backups.iter().map(|b| b.0).collect::<Vec<_>>(),
            )
        })
        .collect();
    assert_eq!(
        order,
        [
            (4, vec![2]),
            (3, vec![2, 1]),
            (2, vec![1, 2]),
            (1, vec![1, 2])
        ]
    );
}

#[test]
fn the_longest_replica_of_a_head_is_read_first() {
    let of_length = |length| ReplicaInfo {
        length,
        ..head(2, &[])
    };
    let shorter = ReplicaInfo {
        primary: true,
        ..of_length(40)
    };
    let longer = ReplicaInfo {
        primary: false,
        ..of_length(60)
    };
    let inventories = [backup(1, vec![shorter]), backup(2, vec![longer])];
    assert_eq!(complete(&inventories), [(2, vec![2, 1])]);
}

// shows: BACKUP-11, COORD-10
#[test]
fn a_head_that_may_have_lost_its_end_does_not_end_the_log_alone() {
    let _marks = pluvio_units::Marks::to_reach(&["recovery-doubtful-head"]);
    let weak = backup(1, vec![doubtful(head(3, &[2, 3])), replica(2)]);
    let error = reconstruct(std::slice::from_ref(&weak), &Epochs::new(), None).unwrap_err();
    let text = error.to_string();
    assert!(
        text.contains("lost power") && text.contains("(segment 3)"),
        "{text}"
    );
    // With one that lost nothing, and with as many as an acknowledgement needed.
    for other in [filled(3, &[2, 3]), doubtful(filled(3, &[2, 3]))] {
        let found = complete(&[weak.clone(), backup(2, vec![other])]);
        assert_eq!(found.last().unwrap().0, 3);
    }
    // Those of one backup count once.
    let twice = doubtful(head(3, &[2, 3]));
    let twice = backup(1, vec![twice.clone(), twice, replica(2)]);
    assert!(reconstruct(&[twice], &Epochs::new(), None).is_err());
}

// shows: BACKUP-11, COORD-10
#[test]
fn what_lost_its_end_is_not_read_where_a_replica_lost_nothing() {
    let short = doubtful(head(3, &[3]));
    let found = complete(&[
        backup(1, vec![short.clone()]),
        backup(2, vec![filled(3, &[3])]),
    ]);
    assert_eq!(found, [(3, vec![2])]);
    // As long as one that lost nothing, or longer. It has all acknowledged bytes, but its further
    // bytes are not worth a doubt.
    let long = doubtful(filled(3, &[3]));
    let longer = ReplicaInfo {
        length: long.length + 1,
        ..long.clone()
    };
    for weak in [&long, &longer] {
        let found = complete(&[
            backup(1, vec![weak.clone()]),
            backup(2, vec![filled(3, &[3])]),
        ]);
        assert_eq!(found, [(3, vec![2, 1])]);
    }
    // All of them may lack something: the longest lacks least, and no other is read when its backup
    // is silent for a moment.
    let found = complete(&[backup(1, vec![short]), backup(2, vec![long])]);
    assert_eq!(found, [(3, vec![2])]);
}

// shows: BACKUP-11, COORD-10
#[test]
fn a_head_that_lost_its_end_and_was_followed_by_another_is_waited_for() {
    // Nothing but the replica that was closed would show that 3 is whole; 4 has no data yet.
    let weak = backup(1, vec![doubtful(head(3, &[3]))]);
    let next = backup(2, vec![head(4, &[3, 4])]);
    assert!(reconstruct(&[weak.clone(), next.clone()], &Epochs::new(), None).is_err());
    let found = complete(&[weak, next, backup(3, vec![replica(3)])]);
    assert_eq!(found, [(3, vec![3]), (4, vec![2])]);
}

#[test]
fn the_newest_head_gives_the_statistics() {
    let mut old = in_log(0, 2, head(1, &[1]));
    let mut new = in_log(1, 2, head(2, &[2]));
    let load = |bytes| TableLoad {
        table: TableId(5),
        bytes,
        entries: 1,
    };
    old.head.as_mut().unwrap().tables = vec![load(100)];
    new.head.as_mut().unwrap().tables = vec![load(70)];
    new.head.as_mut().unwrap().other_bytes = 7;
    let map = reconstruct(&[backup(1, vec![old, new])], &Epochs::new(), None).unwrap();
    assert_eq!(map.stats.tables[&TableId(5)].bytes, 70);
    assert_eq!(map.stats.other.bytes, 7);
    assert_eq!(map.stats.unaccounted, 200);
}

fn ends(segment: u64, length: u32) -> Ends {
    Ends {
        last: Places::from([(LogId(0), (SegmentId(segment), length))]),
        before: Places::new(),
    }
}

// shows: COORD-13
#[test]
fn a_log_ends_where_each_replica_that_was_found_and_lost_nothing_can_give_it() {
    let ends_of = |replicas: &[ReplicaInfo]| {
        let numbered = (1..).zip(replicas.iter().cloned());
        let found: Vec<_> = numbered.map(|(id, r)| backup(id, vec![r])).collect();
        reconstruct(&found, &Epochs::new(), None).unwrap().ends
    };
    let (short, long) = (head(3, &[3]), filled(3, &[3]));
    assert_eq!(ends_of(&[long.clone(), short.clone()]), Some(ends(3, 100)));
    let weak = doubtful(short.clone());
    assert_eq!(
        ends_of(&[weak.clone(), long.clone(), long.clone()]),
        Some(ends(3, 200))
    );
    assert_eq!(ends_of(&[weak, long.clone()]), None);
    // Each may have lost some.
    assert_eq!(ends_of(&[doubtful(short.clone()), doubtful(long)]), None);
    // One failure could take it.
    let mut of_two = short;
    of_two.head.as_mut().unwrap().needed = 2;
    assert_eq!(ends_of(&[of_two.clone()]), None);
    assert_eq!(ends_of(&[of_two.clone(), of_two]), Some(ends(3, 100)));
}

// shows: COORD-13
#[test]
fn an_end_that_too_few_have_is_to_be_copied_from_those_that_do() {
    let thin_of = |found: &[Inventory]| reconstruct(found, &Epochs::new(), None).unwrap().thin;
    let of_two = |mut replica: ReplicaInfo| {
        replica.head.as_mut().unwrap().needed = 2;
        replica
    };
    let (short, long) = (of_two(head(3, &[3])), of_two(filled(3, &[3])));
    let thin = |length, sources: &[u64]| Thin {
        segment: SegmentId(3),
        log: LogId(0),
        epoch: ReplicationEpoch(0),
        length,
        closed: false,
        needed: 2,
        lacking: 1,
        sources: sources.iter().copied().map(ServerId).collect(),
    };
    let alone = [backup(4, vec![long.clone()])];
    assert_eq!(thin_of(&alone), [thin(200, &[4])]);
    // Another one may have lost what this one has.
    let weak = backup(5, vec![doubtful(short.clone())]);
    let both = [alone[0].clone(), weak];
    assert_eq!(thin_of(&both), [thin(200, &[4])]);
    // Each of two can give the shorter end.
    let enough = [backup(4, vec![long]), backup(5, vec![short.clone()])];
    assert_eq!(thin_of(&enough), []);
    // Where each may have lost some, there is no end that could be copied.
    let weak = doubtful(short.clone());
    assert_eq!(
        thin_of(&[backup(4, vec![weak.clone()]), backup(5, vec![weak])]),
        []
    );

    // Its server died while it closed segment 3, and one closed replica is left.
    let next = of_two(head(4, &[3, 4]));
    let closed = [
        backup(4, vec![replica(3), next.clone()]),
        backup(5, vec![next]),
    ];
    let before = Thin {
        closed: true,
        ..thin(100, &[4])
    };
    assert_eq!(thin_of(&closed), [before]);
    let ends_of = |found: &[Inventory]| reconstruct(found, &Epochs::new(), None).unwrap().ends;
    assert_eq!(ends_of(&closed), None, "it is not settled, nor read early");
    let whole = [closed[0].clone(), closed[1].clone(), backup(6, vec![short])];
    assert_eq!(thin_of(&whole), [], "an open one that is as long will do");
    assert!(ends_of(&whole).is_some());
}

// shows: COORD-13
#[test]
fn a_settled_end_is_found_again_or_waited_for() {
    let _marks = pluvio_units::Marks::to_reach(&["recovery-shorter-than-end"]);
    let settled = ends(3, 150);
    let find = |replicas: Vec<Vec<ReplicaInfo>>, epochs: &Epochs| {
        let found: Vec<_> = (1..).zip(replicas).map(|(id, r)| backup(id, r)).collect();
        reconstruct(&found, epochs, Some(&settled)).map(|map| {
            assert_eq!(map.ends.as_ref(), Some(&settled));
            segments(&map)
        })
    };
    let none = Epochs::new();
    let (short, long) = (head(3, &[2, 3]), filled(3, &[2, 3]));
    // Only those that are long enough, also where a loss of power may have taken more from them.
    for long in [long.clone(), doubtful(long.clone())] {
        let found = find(vec![vec![replica(2), short.clone()], vec![long]], &none);
        assert_eq!(found, Ok(vec![(2, vec![1]), (3, vec![2])]));
    }
    // Other heads say nothing, and the digest is that of the settled one.
    let next = filled(4, &[3, 4]);
    let found = find(
        vec![vec![replica(2), long.clone()], vec![next.clone()]],
        &none,
    );
    assert_eq!(found, Ok(vec![(2, vec![1]), (3, vec![1])]));
    // A closed replica of it is whole.
    let closed = ReplicaInfo {
        closed: true,
        head: None,
        ..long.clone()
    };
    let found = find(vec![vec![replica(2), long.clone()], vec![closed]], &none);
    assert_eq!(found, Ok(vec![(2, vec![1]), (3, vec![2, 1])]));
    let missing = [
        vec![vec![replica(2), short.clone()]],
        vec![vec![replica(2), next]],
        vec![vec![long.clone()]],
    ];
    for replicas in missing {
        assert!(!find(replicas, &none).unwrap_err().lost_ends());
    }
    let stale = find(vec![vec![replica(2), long]], &recorded(3, 1));
    assert!(stale.is_err());
    // Where as many lost power as were needed, the log can only end as it would have.
    let weak = || vec![replica(2), doubtful(short.clone())];
    for others in [vec![weak()], vec![weak(), vec![short.clone()]]] {
        let lost = find([vec![weak()], others].concat(), &none);
        assert!(lost.unwrap_err().lost_ends());
    }
    for others in [vec![], vec![vec![short.clone()]]] {
        let one = find([vec![weak()], others].concat(), &none);
        assert!(!one.unwrap_err().lost_ends());
    }
}

// shows: COORD-10, COORD-13
#[test]
fn one_replica_that_lost_power_is_believed_and_does_not_say_what_others_have() {
    // Of a master that needed one for an acknowledgement.
    let lacking = |mut replica: ReplicaInfo| {
        replica.head.as_mut().unwrap().may_lack = true;
        replica
    };
    let (short, long) = (lacking(head(3, &[2, 3])), lacking(filled(3, &[2, 3])));
    let both = [
        backup(1, vec![replica(2), short.clone()]),
        backup(2, vec![long]),
    ];
    let map = reconstruct(&both, &Epochs::new(), None).unwrap();
    assert_eq!(segments(&map), [(2, vec![1]), (3, vec![2])], "the longest");
    assert_eq!(map.ends, None);
    // The bytes that were read are gone, and so could have been acknowledged ones.
    let alone = [backup(1, vec![replica(2), short])];
    let lost = reconstruct(&alone, &Epochs::new(), Some(&ends(3, 150)));
    assert!(lost.unwrap_err().lost_ends());
    let map = reconstruct(&alone, &Epochs::new(), None).unwrap();
    assert_eq!(segments(&map), [(2, vec![1]), (3, vec![1])]);
}

/// Its server died while it closed segment 4.
// shows: COORD-13
#[test]
fn an_open_replica_as_long_as_the_closed_one_was_will_do_when_an_end_is_settled() {
    let none = Epochs::new();
    let next = backup(3, vec![head(5, &[4, 5])]);
    let first = [backup(1, vec![replica(4)]), next.clone()];
    let settled = reconstruct(&first, &none, None).unwrap().ends.unwrap();
    assert_eq!(settled.last, ends(5, 100).last);
    assert_eq!(settled.before, ends(4, 100).last);
    // The closed one is gone. One that is open comes back.
    let find = |open: ReplicaInfo, epochs: &Epochs, settled: &Ends| {
        let found = [backup(2, vec![open]), next.clone()];
        let map = reconstruct(&found, epochs, Some(settled))?;
        assert_eq!(map.ends.as_ref(), Some(settled));
        Ok::<_, Incomplete>(segments(&map))
    };
    let open = head(4, &[4]);
    let both = Ok(vec![(4, vec![2]), (5, vec![3])]);
    assert_eq!(find(open.clone(), &none, &settled), both);
    let not_so_long = |length| ReplicaInfo {
        length,
        ..open.clone()
    };
    for other in [not_so_long(99), not_so_long(101), doubtful(open.clone())] {
        find(other, &none, &settled).unwrap_err();
    }
    find(open.clone(), &recorded(4, 1), &settled).unwrap_err();
    find(open.clone(), &none, &ends(5, 100)).unwrap_err();
    // The closed one is read first.
    let found = [first[0].clone(), backup(2, vec![open]), next.clone()];
    let map = reconstruct(&found, &none, Some(&settled)).unwrap();
    assert_eq!(segments(&map), [(4, vec![1, 2]), (5, vec![3])]);
    // A head with data is not opened before the one in front of it is durably closed.
    let later = [first[0].clone(), backup(3, vec![filled(5, &[4, 5])])];
    let settled = reconstruct(&later, &none, None).unwrap().ends.unwrap();
    assert_eq!(settled, ends(5, 200));
}

/// Its server died while it closed segment 4. An open replica of it was found first.
// shows: COORD-13
#[test]
fn a_closed_replica_will_do_where_an_open_one_was_settled_to_be_the_end() {
    let _marks = pluvio_units::Marks::to_reach(&["recovery-digest-of-empty-head"]);
    let none = Epochs::new();
    let first = [backup(1, vec![replica(3), head(4, &[3, 4])])];
    let settled = reconstruct(&first, &none, None).unwrap().ends.unwrap();
    assert_eq!(settled.last, ends(4, 100).last);
    let find = |replicas: Vec<ReplicaInfo>| {
        let found = [backup(2, replicas), backup(3, vec![replica(3)])];
        let map = reconstruct(&found, &none, Some(&settled))?;
        assert_eq!(map.ends.as_ref(), Some(&settled));
        Ok::<_, Incomplete>(segments(&map))
    };
    let next = head(5, &[3, 4, 5]);
    let found = find(vec![replica(4), next.clone()]);
    assert_eq!(found, Ok(vec![(3, vec![3]), (4, vec![2])]));
    let missing = [
        vec![next.clone()],
        vec![replica(4)],
        vec![replica(4), filled(5, &[3, 4, 5])],
        vec![replica(4), head(5, &[3, 5])],
        vec![replica(4), next.clone(), head(6, &[3, 4, 5, 6])],
        vec![replica(4), next, replica(6)],
    ];
    for replicas in missing {
        find(replicas).unwrap_err();
    }
}

fn ids(map: &LogMap) -> Vec<u64> {
    segments(map).into_iter().map(|(id, _)| id).collect()
}

// shows: COORD-19
#[test]
fn what_was_given_up_need_not_be_there_and_all_the_rest_must() {
    let epochs = Epochs::new();
    let two = |log| move |replica| in_log(log, 2, replica);
    // Segment 2 is lost, and so is the head of log 1.
    let all = [
        backup(1, vec![two(0)(replica(1)), two(0)(head(3, &[1, 2, 3]))]),
        backup(2, vec![two(1)(replica(7)), two(1)(replica(8))]),
    ];
    let (lost, stats) =
        lost_part(&all, &epochs, None, None, &WeakLogs::default()).expect("something is missing");
    assert!(stats.is_some());
    assert_eq!(lost.logs, 2);
    assert_eq!(lost.segments, BTreeSet::from([SegmentId(2)]));
    let found = BTreeSet::from([SegmentId(7), SegmentId(8)]);
    assert_eq!(lost.headless, BTreeMap::from([(LogId(1), found)]));
    let map = reconstruct_without(&all, &epochs, None, Some(&lost), &WeakLogs::default()).unwrap();
    assert_eq!(ids(&map), [1, 3, 7, 8]);
    assert_eq!(
        map.ends, None,
        "another attempt may find other replicas of heads"
    );
    assert_eq!(
        lost_part(&all, &epochs, None, Some(&lost), &WeakLogs::default()),
        None
    );
    // A backup that was there then is waited for.
    for only in &all {
        let map = reconstruct_without(
            std::slice::from_ref(only),
            &epochs,
            None,
            Some(&lost),
            &WeakLogs::default(),
        );
        assert!(map.is_err());
    }
    // A part that was given up is used if it is there again.
    let back = [
        all[0].clone(),
        all[1].clone(),
        backup(3, vec![two(0)(replica(2))]),
    ];
    let map = reconstruct_without(&back, &epochs, None, Some(&lost), &WeakLogs::default()).unwrap();
    assert_eq!(ids(&map), [1, 2, 3, 7, 8]);
}

// shows: COORD-19
#[test]
fn without_any_replica_everything_is_given_up() {
    let epochs = Epochs::new();
    let (lost, stats) =
        lost_part(&[], &epochs, None, None, &WeakLogs::default()).expect("something is missing");
    assert!(stats.is_none());
    let map = reconstruct_without(&[], &epochs, None, Some(&lost), &WeakLogs::default()).unwrap();
    assert_eq!(segments(&map), []);
}

// shows: COORD-21
#[test]
fn logs_of_weak_classes_are_left_out_and_nothing_else_is() {
    let none = Epochs::new();
    // The head of a core's log counts the log of the class, of which nothing is there.
    let own = backup(1, vec![in_log(0, 2, head(3, &[1, 3])), replica(1)]);
    let weak = |left_out| WeakLogs {
        logs: BTreeSet::from([LogId(1)]),
        left_out,
        ..WeakLogs::default()
    };
    let found = |all: &[Inventory], ends: Option<&Ends>, left_out| {
        reconstruct_without(all, &none, ends, None, &weak(left_out))
    };
    let own = [own];
    let missing = found(&own, None, false).unwrap_err().to_string();
    assert!(missing.contains("no open head of log 1"), "{missing}");
    let map = found(&own, None, true).unwrap();
    assert_eq!(segments(&map), [(1, vec![1]), (3, vec![1])]);
    let ends = map.ends.expect("the rest ends somewhere");
    assert_eq!(ends.last.keys().collect::<Vec<_>>(), [&LogId(0)]);
    // Later it is there, and its end is not settled with the others.
    let both = [
        own[0].clone(),
        backup(2, vec![in_log(1, 2, filled(4, &[4]))]),
    ];
    let map = found(&both, Some(&ends), false).unwrap();
    assert_eq!(segments(&map), [(1, vec![1]), (3, vec![1]), (4, vec![2])]);
    // A segment of a core's log is missed.
    let less = [backup(1, vec![in_log(0, 2, head(3, &[1, 3]))])];
    assert!(found(&less, None, true).is_err());
}

// shows: COORD-23
#[test]
fn nobody_looks_for_the_log_of_a_volatile_class_or_has_to_give_it_up() {
    let none = Epochs::new();
    let weak = WeakLogs {
        volatile: BTreeSet::from([LogId(1)]),
        ..WeakLogs::default()
    };
    let all = [backup(1, vec![in_log(0, 2, head(3, &[1, 3])), replica(1)])];
    let map = reconstruct_without(&all, &none, None, None, &weak).unwrap();
    assert_eq!(segments(&map), [(1, vec![1]), (3, vec![1])]);
    assert_eq!(lost_part(&all, &none, None, None, &weak), None);
    let less = [backup(1, vec![in_log(0, 2, head(3, &[1, 3]))])];
    let (lost, _) = lost_part(&less, &none, None, None, &weak).unwrap();
    assert_eq!(lost.segments, BTreeSet::from([SegmentId(1)]));
    assert!(lost.headless.is_empty());
}
