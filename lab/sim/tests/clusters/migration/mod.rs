//! Moving a tablet under load: with nothing going wrong, with each process killed at each kind of
//! message, and with tablets that come back to where they were. And cutting one.

mod cut;
mod message;
mod owners_log;

use crate::load::{Loaded, loaded, loaded_in};
use crate::struck::{self, At, Moment};
use bytes::Bytes;
use core::time::Duration;
use message::Message;
use pluvio_client::{Client, Table};
use pluvio_coordinator::CoordinatorOptions;
use pluvio_units::{ObjectVersion, ServerId};
use std::collections::BTreeSet;
use std::sync::atomic::Ordering;

type Cluster = struck::Cluster<Message>;

// shows: EO-1, EO-2, MIG-4, MOVE-2, MOVE-5
#[test]
fn a_tablet_moves_under_load_and_back_and_nothing_is_lost_or_doubled() {
    for seed in 0..3 {
        let mut loaded: Loaded<Message> = loaded(seed, 3);
        let first = loaded.owner();
        let second = loaded.another();
        for to in [second, first, second, first] {
            let before = loaded.told.operations.load(Ordering::Relaxed);
            assert!(loaded.migrate(to), "seed {seed}");
            assert_eq!(loaded.owner(), to);
            for _ in 0..100 {
                loaded.cluster.tend();
            }
            let after = loaded.told.operations.load(Ordering::Relaxed);
            assert!(after > before, "seed {seed}: nobody works any more");
        }
        loaded.check(&format!("seed {seed}"));
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Victim {
    Owner,
    Receiver,
    Coordinator,
}

/// Kills one process at one message, lets it come back, and moves the tablet once more. Gives
/// whether there was such a message.
fn strike(seed: u64, at: At<Message>, victim: Victim) -> bool {
    let what = format!("{victim:?} {at:?}, seed {seed}");
    let mut loaded: Loaded<Message> = loaded(seed, 4);
    let (owner, receiver) = (loaded.owner(), loaded.another());
    let process = match victim {
        Victim::Owner => loaded.cluster.process_of(owner),
        Victim::Receiver => loaded.cluster.process_of(receiver),
        Victim::Coordinator => loaded.cluster.coordinator,
    };
    let victim = struck::Victim::Process(process);
    loaded.cluster.arm(at, victim);
    loaded.migrate(receiver);
    // The last message may be on its way yet.
    let struck = loaded.cluster.let_strike(at, &loaded.client, &what);
    loaded.cluster.until_healthy(&loaded.client);
    let to = loaded.another();
    assert!(
        loaded.migrate(to),
        "{what}: no migration is possible any more"
    );
    loaded.check(&what);
    struck
}

fn strike_at_every_message(victim: Victim) {
    let later = struck::at_every_message(&Message::ALL, |at| {
        let seed = at.message as u64 + 100 * u64::from(at.nth);
        strike(seed, at, victim)
    });
    // The side log and the head have two replicas each.
    assert!(later >= 3, "{later}");
}

#[test]
fn the_owner_is_killed_at_every_message() {
    let _marks =
        pluvio_units::Marks::to_reach(&["migration-owner-crashed", "migration-not-received"]);
    strike_at_every_message(Victim::Owner);
    // It crashes while it is told how the migration ended, or is found to have crashed before.
    let at = At {
        message: Message::End,
        nth: 0,
        moment: Moment::Before,
    };
    for seed in 9_000..9_008 {
        strike(seed, at, Victim::Owner);
    }
}

// shows: LEAVE-2, MIG-2
#[test]
fn the_receiver_is_killed_at_every_message() {
    strike_at_every_message(Victim::Receiver);
}

#[test]
fn the_coordinator_is_killed_at_every_message() {
    strike_at_every_message(Victim::Coordinator);
}

/// The receiver does not reach the owner for longer than a migration may take: the tablet stays,
/// and moves later.
// shows: MOVE-1
#[test]
fn a_tablet_that_is_not_copied_in_time_stays_and_moves_later() {
    let _marks = pluvio_units::Marks::to_reach(&["migration-given-up"]);
    for seed in 0..3 {
        let mut options = CoordinatorOptions::default();
        options.migration_limit = Duration::from_secs(1);
        let mut loaded: Loaded<Message> = loaded_in(Cluster::with(seed, 4, options));
        let (owner, receiver) = (loaded.owner(), loaded.another());
        let process = |id| loaded.cluster.process_of(id);
        let (from, to) = (process(receiver), process(owner));
        loaded.cluster.sim.cut(from, to);
        assert!(!loaded.migrate(receiver), "seed {seed}");
        assert_eq!(loaded.owner(), owner, "seed {seed}");
        loaded.cluster.sim.heal(from, to);
        loaded.cluster.until_healthy(&loaded.client);
        // The receiver may still wait for an answer that was lost.
        let moved = (0..10).any(|_| loaded.migrate(receiver));
        assert!(moved, "seed {seed}");
        loaded.check(&format!("seed {seed}"));
    }
}

/// Keys of the tests of earlier stays: every second one from the first or the second on.
fn keys(from: usize) -> impl Iterator<Item = String> {
    (from..200).step_by(2).map(|n| format!("key {n}"))
}

/// A table whose only tablet was at the first server when 200 keys were written, and at the second
/// when half of them were deleted.
struct Halved {
    cluster: Cluster,
    client: Client,
    table: Table,
    first: ServerId,
    second: ServerId,
}

impl Halved {
    fn new(seed: u64) -> Self {
        let mut cluster = Cluster::new(seed, 3);
        let client = cluster.new_client(&cluster.client);
        let table = cluster.table(&client);
        let first = cluster.owner(&client, &table);
        let ids = cluster.server_ids();
        let second = ids.into_iter().find(|id| *id != first).unwrap();
        let (own, all) = (client.clone(), table.clone());
        cluster.block_on(async move {
            for key in keys(0).chain(keys(1)) {
                let written = own.write(&all, key.as_bytes(), Bytes::from(vec![1; 500]));
                written.await.unwrap();
            }
        });
        assert!(cluster.migrate(&client, &table, second));
        let (own, all) = (client.clone(), table.clone());
        cluster.block_on(async move {
            for key in keys(1) {
                own.delete(&all, key.as_bytes()).await.unwrap();
            }
        });
        Self {
            cluster,
            client,
            table,
            first,
            second,
        }
    }

    fn crash(&mut self, server: ServerId) {
        let process = self.cluster.process_of(server);
        self.cluster.crash(process);
        self.cluster.until_healthy(&self.client);
    }

    fn migrate(&mut self, to: ServerId) {
        let moved = self.cluster.migrate(&self.client, &self.table, to);
        assert!(moved);
    }

    fn write(&mut self, key: &'static str) -> ObjectVersion {
        let (own, all) = (self.client.clone(), self.table.clone());
        self.cluster.block_on(async move {
            let written = own.write(&all, key.as_bytes(), Bytes::from_static(b"new"));
            written.await.unwrap().version
        })
    }

    /// Writes a key twice and deletes it; gives the last version, which is above `last` as all of
    /// them are.
    fn write_and_delete(&mut self, last: ObjectVersion) -> ObjectVersion {
        let key = "comes and goes";
        let (once, twice) = (self.write(key), self.write(key));
        let (own, all) = (self.client.clone(), self.table.clone());
        let deleted = self.cluster.block_on(async move {
            let deleted = own.delete(&all, key.as_bytes());
            deleted.await.unwrap().deleted
        });
        assert!(last < once && once < twice, "{last:?} {once:?} {twice:?}");
        assert_eq!(twice, deleted);
        deleted
    }

    fn all(&mut self) -> BTreeSet<String> {
        let (own, all) = (self.client.clone(), self.table.clone());
        self.cluster.block_on(async move {
            let mut found = BTreeSet::new();
            let mut enumeration = own.enumerate(&all);
            while let Some(batch) = enumeration.next_batch().await.unwrap() {
                let keys = batch.into_iter().map(|o| String::from_utf8(o.key).unwrap());
                found.extend(keys);
            }
            found
        })
    }
}

/// Versions never repeat: whether a key is deleted and made again, its tablet moves, or its
/// server crashes, and although nothing is left of the entry that had the highest one.
// shows: MIG-5, STORE-1
#[test]
fn versions_grow_over_deletes_moves_and_crashes() {
    for seed in 0..3 {
        let mut halved = Halved::new(seed);
        let (first, second) = (halved.first, halved.second);
        let mut last = ObjectVersion(0);
        for turn in 0..5 {
            last = halved.write_and_delete(last);
            match turn {
                0 | 2 => halved.migrate(first),
                1 => halved.migrate(second),
                // It has the tablet then.
                3 => halved.crash(first),
                _ => {}
            }
        }
    }
}

/// Entries of an earlier ownership never come back: the log of the server that had the tablet
/// before has objects that were deleted elsewhere, and nothing in it says so.
// shows: MIG-6, JOIN-1
#[test]
fn what_was_deleted_elsewhere_stays_deleted_when_its_first_owner_crashes() {
    for seed in 0..3 {
        let mut halved = Halved::new(seed);
        let (first, second) = (halved.first, halved.second);
        halved.migrate(first);
        // Once more, so that the tablet's log begins where its latest stay does.
        halved.migrate(second);
        halved.write("new");
        halved.migrate(first);
        halved.crash(first);
        let mut expected: BTreeSet<String> = keys(0).collect();
        expected.insert("new".into());
        assert_eq!(halved.all(), expected, "seed {seed}");
    }
}

/// The same, when the tablet came back to its first owner by a recovery.
// shows: MIG-6, JOIN-1
#[test]
fn what_was_deleted_elsewhere_stays_deleted_when_its_recovery_master_had_it_before() {
    let mut came_back = 0;
    for seed in 0..8 {
        let mut halved = Halved::new(seed);
        let (first, second) = (halved.first, halved.second);
        halved.crash(second);
        if halved.cluster.owner(&halved.client, &halved.table) != first {
            continue;
        }
        came_back += 1;
        halved.write("new");
        halved.crash(first);
        let mut expected: BTreeSet<String> = keys(0).collect();
        expected.insert("new".into());
        assert_eq!(halved.all(), expected, "seed {seed}");
    }
    assert!(came_back > 0, "the first owner never recovers it");
}
