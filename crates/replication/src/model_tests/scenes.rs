//! Scenes in the model's world whose messages arrive when the test says so.

use super::{World, write_of};
use crate::machine::WriteOutcome;
use crate::segment::WriteOrder;
use core::time::Duration;
use pluvio_format::SegmentKind;
use pluvio_units::{LogPosition, SegmentId, ServerId};
use std::collections::BTreeSet;

/// A log whose replicas have all that it has, each segment on three of five backups.
fn world() -> World {
    let mut world = World::new(1, 5, 3, 2);
    world.settle(3);
    world
}

impl World {
    /// The machine hears of what the log did, and acts.
    fn go_on(&mut self) {
        for id in self.machine.growing() {
            let segment = &self.segments[&id];
            self.machine.grew(id, segment.length, segment.closed);
        }
        self.step();
    }

    /// Everything arrives that is sent now.
    fn deliver_all(&mut self) {
        loop {
            self.go_on();
            let writes = std::mem::take(&mut self.writes);
            if writes.is_empty() {
                return;
            }
            for order in writes {
                self.deliver_surely(&order);
            }
        }
    }

    fn why_writes_wait(&self) -> Option<String> {
        self.machine.status(&self.placement, self.now).writes_wait
    }

    fn lacks_space(&self) -> bool {
        self.machine.lacks_space(&self.placement, self.now)
    }

    /// The backups that have a replica.
    fn having(&self, segment: SegmentId) -> Vec<ServerId> {
        let backups = self.backups.iter();
        let having = backups.filter(|(_, b)| b.frames.contains_key(&segment));
        having.map(|(id, _)| *id).collect()
    }

    fn position(&self, segment: SegmentId) -> LogPosition {
        let offset = self.segments[&segment].length;
        LogPosition { segment, offset }
    }

    /// Writes under way that are for the open heads, and the others.
    fn under_way(&self) -> (usize, usize) {
        let heads = self.writes.iter().filter(|w| w.segment == self.head);
        (heads.clone().count(), self.writes.len() - heads.count())
    }
}

impl World {
    /// Everything arrives but that for one backup. Its messages stay where they are.
    fn deliver_but_to(&mut self, hung: ServerId) {
        loop {
            self.go_on();
            let others = |w: &mut WriteOrder| w.server != hung;
            let writes: Vec<_> = self.writes.extract_if(.., others).collect();
            if writes.is_empty() && self.records.is_empty() {
                return;
            }
            for order in writes {
                self.deliver_surely(&order);
            }
            while !self.records.is_empty() {
                self.control();
            }
        }
    }

    /// The log grows for some seconds. A write to one backup takes `write_s` seconds each, or never
    /// ends. Gives for each second whether all that was appended in it is durable at its end.
    fn seconds_with(&mut self, slow: ServerId, write_s: Option<u64>) -> Vec<bool> {
        let mut durable = Vec::new();
        for second in 1..=12 {
            self.grow(self.head);
            self.deliver_but_to(slow);
            self.now = self.now + Duration::from_secs(1);
            if write_s.is_some_and(|takes| second % takes == 0) {
                let to_slow = |w: &mut WriteOrder| w.server == slow;
                let writes: Vec<_> = self.writes.extract_if(.., to_slow).collect();
                writes.iter().for_each(|order| self.deliver_surely(order));
            }
            self.deliver_but_to(slow);
            durable.push(self.durable == self.position(self.head));
        }
        durable
    }
}

// shows: REP-14
#[test]
fn a_backup_that_hangs_or_crawls_is_left_behind_and_gets_no_new_replicas() {
    for write_s in [None, Some(2)] {
        let _marks = pluvio_units::Marks::to_reach(&["replica-late"]);
        let mut world = world();
        world.reliable = true;
        let slow = world.having(world.head)[0];
        let durable = world.seconds_with(slow, write_s);
        assert!(!durable[0] && durable[11], "{write_s:?}: {durable:?}");
        for _ in 0..5 {
            world.roll();
            world.deliver_but_to(slow);
            world.grow(world.head);
            world.deliver_but_to(slow);
            assert_eq!(world.durable, world.position(world.head));
            assert!(!world.having(world.head).contains(&slow));
        }
        world.settle(3);
    }
}

/// Of three servers. One backup leaves a data directory, then the other one dies.
impl World {
    /// A head has its replicas, and a backup loses one and says so. Gives both.
    fn lose_one_of_head(&mut self) -> (SegmentId, ServerId) {
        self.reliable = true;
        self.grow(self.head);
        self.deliver_all();
        let (head, lost) = (self.head, self.having(self.head)[0]);
        self.backups.get_mut(&lost).expect("it is up").lose(head);
        self.machine.lost_at(head, lost, &mut self.placement);
        (head, lost)
    }
}

// shows: REP-19
#[test]
fn a_head_whose_last_place_is_taken_is_followed_by_one_that_has_another() {
    let mut world = World::new(1, 2, 1, 1);
    let (first, _) = world.lose_one_of_head();
    let nobody = ServerId(0);
    world.deliver_but_to(nobody);
    assert_ne!(
        world.head, first,
        "it has its replica, and no place for another"
    );
    // Whichever of the two dies, writes go on.
    let dead = world.having(world.head)[0];
    world.backups.remove(&dead);
    world.push_list(1);
    world.grow(world.head);
    world.deliver_but_to(nobody);
    assert_eq!(world.durable, world.position(world.head));
}

// shows: REP-19
#[test]
fn a_backup_that_lost_a_replica_of_the_head_gets_one_of_the_next() {
    let _marks = pluvio_units::Marks::to_reach(&["head-left-for-places"]);
    let mut world = World::new(1, 2, 3, 1);
    let (first, lost) = world.lose_one_of_head();
    let nobody = ServerId(0);
    world.deliver_but_to(nobody);
    assert_eq!(world.having(first).len(), 1);
    assert_ne!(world.head, first);
    assert_eq!(world.having(world.head).len(), 2);

    let dead = world.having(first)[0];
    world.backups.remove(&dead);
    world.push_list(3);
    world.grow(world.head);
    world.deliver_but_to(nobody);
    assert_eq!(world.durable, world.position(world.head));
    assert_eq!(world.having(world.head), [lost]);

    // It fails again: there is nothing that a new head could be closed on.
    let second = world.head;
    world.backups.get_mut(&lost).expect("it is up").lose(second);
    world.machine.lost_at(second, lost, &mut world.placement);
    world.now = world.now + Duration::from_secs(20);
    world.grow(world.head);
    world.deliver_but_to(nobody);
    assert_eq!(world.head, second);
    assert!(world.why_writes_wait().is_some());
}

/// Nothing else is left when the other backup is gone.
// shows: REP-14
#[test]
fn a_replica_that_was_left_behind_catches_up_when_it_is_needed() {
    let mut world = World::new(1, 3, 3, 2);
    world.reliable = true;
    world.deliver_all();
    let slow = world.having(world.head)[0];
    world.seconds_with(slow, None);
    let gone = world.having(world.head)[1];
    world.writes.retain(|w| w.server != gone);
    world.backups.remove(&gone);
    world.push_list(3);
    world.grow(world.head);
    world.deliver_but_to(slow);
    assert!(world.durable < world.position(world.head));
    for _ in 0..30 {
        world.now = world.now + Duration::from_secs(1);
        world.deliver_all();
        while !world.records.is_empty() {
            world.control();
        }
        world.deliver_all();
    }
    assert_eq!(world.durable, world.position(world.head));
}

/// Its write takes a second, however much is appended meanwhile.
// shows: REP-14
#[test]
fn a_backup_that_is_a_little_slower_stays() {
    let mut world = world();
    let slow = world.having(world.head)[0];
    world.seconds_with(slow, Some(1));
    assert!(!world.placement.is_bad(slow, world.now));
    let replica = &world.backups[&slow].frames[&world.head];
    assert_eq!(replica.certified, world.segments[&world.head].length);
}

// shows: REP-14
#[test]
fn a_backup_that_hangs_is_waited_for_where_too_few_others_are_there() {
    let mut world = World::new(1, 2, 2, 2);
    world.reliable = true;
    world.deliver_all();
    let slow = world.having(world.head)[0];
    let durable = world.seconds_with(slow, None);
    assert_eq!(durable, [false; 12]);
    world.deliver_all();
    assert_eq!(world.durable, world.position(world.head));
}

/// As a backup answers whose disk has failed.
#[test]
fn a_backup_whose_disk_failed_is_remembered() {
    let mut world = world();
    world.reliable = true;
    let broken = world.having(world.head)[0];
    world.grow(world.head);
    world.go_on();
    let to_broken = |w: &mut WriteOrder| w.server == broken;
    let order = world.writes.extract_if(.., to_broken).next();
    let write = write_of(&order.expect("it has a replica"));
    let outcome = WriteOutcome::Broken;
    world
        .machine
        .written(write, outcome, &mut world.placement, world.now);
    for _ in 0..5 {
        world.deliver_but_to(broken);
        world.roll();
        world.deliver_but_to(broken);
        assert!(!world.having(world.head).contains(&broken));
    }
}

/// Fewer would be left than an acknowledgement needs.
#[test]
fn a_backup_that_was_bad_is_used_where_no_other_is_left() {
    let mut world = World::new(1, 2, 2, 2);
    world.placement.set_bad(ServerId(2), world.now);
    world.deliver_all();
    assert_eq!(world.having(world.head), [ServerId(2), ServerId(3)]);
}

#[test]
fn what_is_in_a_head_is_acknowledged_while_its_successor_is_being_opened() {
    let mut world = world();
    let first = world.head;
    world.grow(first);
    world.roll();
    world.grow(world.head);
    let (second, end) = (world.head, world.position(first));
    assert!(world.durable < end);
    loop {
        world.go_on();
        let of_first = |w: &mut WriteOrder| w.segment == first;
        let writes: Vec<_> = world.writes.extract_if(.., of_first).collect();
        if writes.is_empty() {
            break;
        }
        for order in writes {
            world.deliver_surely(&order);
        }
    }
    assert_eq!(world.durable, end, "{}", world.describe());
    assert!(
        !world
            .backups
            .values()
            .any(|b| b.frames.contains_key(&second))
    );
    // The content of the second one has to wait. Only its opening may be sent, and the first one is
    // not closed.
    assert!(
        world
            .writes
            .iter()
            .all(|w| w.segment == second && w.flight.end == super::OPENING)
    );
    assert!(!world.closed_on.contains_key(&first));
}

/// Side segments, and copies in place of replicas that were lost. Heads have room of their own.
#[test]
fn twelve_writes_are_under_way_at_most_that_are_not_for_heads() {
    let mut world = world();
    let sides: Vec<SegmentId> = (0..20)
        .map(|_| {
            let id = world.open(SegmentKind::Side, BTreeSet::new());
            world.grow(id);
            world.segments.get_mut(&id).expect("it is there").closed = true;
            id
        })
        .collect();
    world.go_on();
    assert_eq!(world.under_way(), (0, 12));
    world.grow(world.head);
    world.go_on();
    assert_eq!(
        world.under_way(),
        (3, 12),
        "they do not wait for the others"
    );
    let side = world.writes.iter().position(|w| w.segment != world.head);
    let order = world.writes.swap_remove(side.expect("there are twelve"));
    world.deliver_surely(&order);
    world.go_on();
    assert_eq!(world.under_way(), (3, 12), "the next one has its turn");
    world.settle(3);
    assert!(sides.iter().all(|id| world.segments[id].durable));

    let lost: Vec<_> = world.backups.keys().copied().take(2).collect();
    for server in lost {
        world.backups.remove(&server);
    }
    world.push_list(3);
    world.go_on();
    let lacking = world.machine.status(&world.placement, world.now);
    assert!(lacking.segments_under_replicated > 15, "{lacking:?}");
    assert_eq!(world.under_way().1, 12);
    world.settle(3);
}

#[test]
fn replicas_that_wait_for_space_are_told_as_such_and_silent_ones_beside_them() {
    let mut world = World::new(1, 2, 2, 2);
    world.deliver_all();
    assert_eq!(world.why_writes_wait(), None);
    world.backups.values_mut().for_each(|b| b.full = true);
    world.grow(world.head);
    world.deliver_all();
    let both =
        "2 backups are needed, 2 are up and the disks of the backups on server 2, 3 are full";
    assert_eq!(world.why_writes_wait().as_deref(), Some(both));
    let pause = Duration::from_secs(2);
    for _ in 0..3 {
        world.now = world.now + pause;
        world.go_on();
        assert_eq!(world.writes.len(), 2, "they are asked again");
        assert_eq!(world.why_writes_wait().as_deref(), Some(both));
        assert!(world.lacks_space());
        world.deliver_all();
        assert_eq!(world.why_writes_wait().as_deref(), Some(both));
    }
    world.now = world.now + pause;
    world.go_on();
    for order in std::mem::take(&mut world.writes) {
        match order.server {
            ServerId(2) => world.deliver_surely(&order),
            _ => world.machine.written(
                write_of(&order),
                WriteOutcome::Unknown,
                &mut world.placement,
                world.now,
            ),
        }
    }
    let one = "2 backups are needed, 2 are up and the disk of the backup on server 2 is full; \
               no good answer from the backup on server 3";
    assert_eq!(world.why_writes_wait().as_deref(), Some(one));
    assert!(world.lacks_space());
    world.settle(2);
    assert_eq!(world.why_writes_wait(), None);
    assert!(!world.lacks_space());
}

/// A third backup has space, and a replica is begun there.
#[test]
fn a_replica_that_waits_for_space_is_not_told_while_another_takes_its_place() {
    let mut world = World::new(1, 3, 2, 2);
    world.deliver_all();
    let holders: Vec<ServerId> = world
        .backups
        .iter()
        .filter(|(_, b)| b.frames.contains_key(&world.head))
        .map(|(id, _)| *id)
        .collect();
    let full = world.backups.get_mut(&holders[0]).expect("it is there");
    full.full = true;
    world.grow(world.head);
    world.go_on();
    for order in std::mem::take(&mut world.writes) {
        world.deliver_surely(&order);
    }
    world.go_on();
    assert!(!world.writes.is_empty(), "it goes elsewhere");
    assert_eq!(world.why_writes_wait(), None);
    assert!(!world.lacks_space());
}

/// The bytes that were to complete the new replica are not all when its backup has space again.
#[test]
fn a_side_segment_that_grew_while_its_new_replica_waited_for_space_is_closed_there_too() {
    let mut world = World::new(1, 4, 3, 2);
    world.deliver_all();
    let side = world.open(SegmentKind::Side, BTreeSet::new());
    world.grow(side);
    world.deliver_all();
    let ids: Vec<ServerId> = world.backups.keys().copied().collect();
    let (holders, others): (Vec<ServerId>, Vec<ServerId>) = ids
        .iter()
        .partition(|id| world.backups[id].frames.contains_key(&side));
    let new = others[0];
    world.backups.remove(&holders[0]);
    world.push_list(3);
    world.go_on();
    for order in std::mem::take(&mut world.writes) {
        world.deliver_surely(&order);
    }
    assert!(world.backups[&new].rewriting.contains_key(&side));
    world.grow(side);
    world.backups.get_mut(&new).expect("it is there").full = true;
    world.deliver_all();
    world.grow(side);
    world.segments.get_mut(&side).expect("it is there").closed = true;
    world.deliver_all();
    world.backups.get_mut(&new).expect("it is there").full = false;
    world.now = world.now + Duration::from_secs(5);
    world.deliver_all();
    let frame = &world.backups[&new].frames[&side];
    assert!(frame.closed, "{frame:?}");
    assert_eq!(frame.certified, world.segments[&side].length);
}

/// All that the first head has is durable; the next one is refused everywhere.
#[test]
fn disks_without_room_for_the_next_head_are_told() {
    let mut world = World::new(1, 2, 2, 2);
    world.deliver_all();
    world.backups.values_mut().for_each(|b| b.full = true);
    world.roll();
    for _ in 0..3 {
        world.deliver_all();
        world.go_on();
    }
    let both =
        "2 backups are needed, 2 are up and the disks of the backups on server 2, 3 are full";
    assert_eq!(world.why_writes_wait().as_deref(), Some(both));
    assert!(world.lacks_space());
    for _ in 0..3 {
        world.now = world.now + Duration::from_millis(1500);
        world.machine.retry_placement();
        world.go_on();
        assert_eq!(world.writes.len(), 2, "they are asked again");
        assert_eq!(world.why_writes_wait().as_deref(), Some(both));
        assert!(world.lacks_space());
        world.deliver_all();
        assert!(world.lacks_space());
    }
    world.settle(2);
    assert_eq!(world.why_writes_wait(), None);
    assert!(!world.lacks_space());
}

/// LEASE-1. An emergency head, which its successor does not list: who has that one needs no backup
/// of the first.
// shows: LEASE-1
#[test]
fn a_backup_is_a_witness_as_soon_as_it_may_have_the_next_head() {
    let mut met = 0;
    for seed in 0..20 {
        let mut world = World::new(seed, 6, 3, 2);
        world.settle(3);
        let first = world.head;
        let holders = world.having(first);
        assert_eq!(world.machine.witnesses(), Some(holders.clone()));
        world.roll_from(true);
        let next = world.head;
        world.go_on();
        let is_elsewhere = |w: &WriteOrder| w.segment == next && !holders.contains(&w.server);
        let Some(at) = world.writes.iter().position(is_elsewhere) else {
            continue;
        };
        met += 1;
        let order = world.writes.swap_remove(at);
        let is_witness = |world: &World| {
            let witnesses = world.machine.witnesses().expect("nothing was lost");
            witnesses.contains(&order.server) && holders.iter().all(|id| witnesses.contains(id))
        };
        assert!(is_witness(&world), "it is on its way");
        world.deliver_surely(&order);
        assert!(
            is_witness(&world),
            "it is there, and others are on their way"
        );
        let alone = [&world.backups[&order.server].frames];
        assert_eq!(world.recover(&alone), Some(next));
        world.settle(3);
        assert_eq!(world.machine.witnesses(), Some(world.having(next)));
    }
    assert!(met > 10, "{met}");
}

/// LEASE-1. One backup has closed the first head and is gone, another one has the next head and is
/// gone. A recovery that asks both needs no other, and the replicas that are left do not help the
/// master.
// shows: LEASE-1
#[test]
fn there_are_no_witnesses_while_a_replica_of_the_next_head_is_lost() {
    let mut met = 0;
    for seed in 0..20 {
        let mut world = World::new(seed, 6, 3, 2);
        world.settle(3);
        let first = world.head;
        world.grow(first);
        world.deliver_all();
        world.roll_from(false);
        let next = world.head;
        world.go_on();
        for order in std::mem::take(&mut world.writes) {
            assert_eq!(order.segment, next);
            world.deliver_surely(&order);
        }
        world.go_on();
        let close = world.writes.swap_remove(0);
        assert!(close.segment == first && close.flight.close, "{close:?}");
        world.deliver_surely(&close);
        let holders = world.having(first);
        let mut others = world.having(next).into_iter();
        let Some(other) = others.find(|id| !holders.contains(id)) else {
            continue;
        };
        met += 1;
        let gone = [close.server, other].map(|server| {
            world.writes.retain(|w| w.server != server);
            world.backups.remove(&server).expect("it is up").frames
        });
        world.push_list(3);
        let both: Vec<_> = gone.iter().collect();
        assert_eq!(world.recover(&both), Some(next));
        assert_eq!(world.machine.witnesses(), None);
        world.go_on();
        assert_eq!(world.machine.witnesses(), None);
        world.graves.extend(gone);
        world.settle(3);
        assert_eq!(world.machine.witnesses(), Some(world.having(next)));
    }
    assert!(met > 10, "{met}");
}

// shows: REP-20
#[test]
fn a_log_without_replicas_is_durable_as_far_as_it_is_appended() {
    let mut world = World::new(0, 3, 0, 0);
    for _ in 0..4 {
        world.deliver_all();
        assert_eq!(world.durable, world.position(world.head));
        assert!(world.machine.is_open());
        assert_eq!(world.why_writes_wait(), None);
        world.grow(world.head);
        world.deliver_all();
        assert_eq!(world.durable, world.position(world.head));
        let old = world.head;
        world.roll();
        world.deliver_all();
        assert_eq!(world.durable, world.position(world.head));
        assert!(world.having(old).is_empty());
    }
    let status = world.machine.status(&world.placement, world.now);
    assert_eq!((status.writes, status.segments_under_replicated), (0, 0));
}
