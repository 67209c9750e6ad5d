//! A table whose owners write as they like, lose messages, die, and hand tablets over.

use super::*;
use pluvio_units::TableId;

const QUOTA: u64 = 10_000;

const BOTH: TableQuota = TableQuota {
    bytes: Some(QUOTA),
    operations: Some(100),
};

/// A server, as far as the table goes.
#[derive(Clone, Copy, Default)]
struct Owner {
    instance: u64,
    /// Bytes here.
    bytes: i64,
    grown: i64,
    bound: Option<i64>,
    rate: Option<u64>,
    asked: u64,
    refused: u64,
    wanted: u64,
}

impl Owner {
    fn begin(&mut self, of_bytes: bool) {
        *self = Self {
            instance: self.instance + 1,
            bytes: self.bytes,
            bound: of_bytes.then_some(0),
            rate: of_bytes.then_some(0),
            ..Self::default()
        };
    }

    fn put(&mut self, bytes: i64) -> bool {
        if self.bound.is_some_and(|bound| self.grown + bytes > bound) {
            self.wanted = self.wanted.max(bytes.unsigned_abs());
            return false;
        }
        self.grown += bytes;
        self.bytes += bytes;
        true
    }

    fn take(&mut self, target: &Target) {
        (self.bound, self.rate, self.wanted) = (target.grown_max, target.operations_milli, 0);
    }

    fn used(&self) -> QuotaUse {
        QuotaUse {
            table: TableId(1),
            instance: self.instance,
            bytes: self.bytes.max(0).unsigned_abs(),
            grown: self.grown,
            grown_max: self.bound,
            operations_milli: self.rate,
            operations: self.asked,
            wanted: self.wanted,
            refused_bytes: 0,
            refused_operations: self.refused,
            settled: true,
        }
    }
}

struct World {
    book: Book,
    owners: BTreeMap<ServerId, Owner>,
    seed: u64,
}

impl World {
    fn new(count: u64, seed: u64) -> Self {
        let owners = (1..=count).map(|id| (ServerId(id), Owner::default()));
        Self {
            book: Book::default(),
            owners: owners.collect(),
            seed,
        }
    }

    fn below(&mut self, bound: u64) -> u64 {
        self.seed ^= self.seed << 13;
        self.seed ^= self.seed >> 7;
        self.seed ^= self.seed << 17;
        self.seed % bound
    }

    fn bytes(&self) -> i64 {
        self.owners.values().map(|owner| owner.bytes).sum()
    }

    fn owner(&mut self, id: u64) -> &mut Owner {
        self.owners.get_mut(&ServerId(id)).unwrap()
    }

    fn ids(&self) -> BTreeSet<ServerId> {
        self.owners.keys().copied().collect()
    }

    /// Sends shares; each message or its answer is lost with this chance in a hundred.
    fn give(&mut self, shares: BTreeMap<ServerId, Target>, lost: u64) {
        for (server, target) in shares {
            if self.below(100) < lost {
                continue;
            }
            let owner = self.owners.get_mut(&server).unwrap();
            owner.take(&target);
            let used = owner.used();
            if self.below(100) >= lost {
                self.book.confirm(BTreeMap::from([(server, used)]));
            }
        }
    }

    fn round(&mut self, settled: bool, lost: u64) {
        let ids = self.ids();
        let mut uses = BTreeMap::new();
        for (server, owner) in self.owners.clone() {
            if self.below(100) >= lost {
                uses.insert(server, owner.used());
            }
        }
        let settled = settled && uses.len() == ids.len();
        self.book.look(&ids, uses, settled);
        let targets = self.book.targets(BOTH);
        let lowered = self.book.lowered(&targets);
        self.give(lowered, lost);
        let raised = self.book.raised(BOTH, &targets);
        self.give(raised, lost);
    }
}

// shows: COORD-20
#[test]
fn a_table_never_grows_beyond_its_quota_whatever_is_lost() {
    for seed in 1..1000 {
        let mut world = World::new(1 + seed % 5, seed);
        world.round(true, 0);
        for step in 0..200 {
            let count = world.owners.len() as u64;
            let (id, bytes) = (1 + world.below(count), 1 + world.below(400));
            let settled = step % 40 > 3;
            match world.below(12) {
                0 => {
                    let freed = signed(bytes).min(world.owner(id).bytes);
                    let owner = world.owner(id);
                    owner.grown -= freed;
                    owner.bytes -= freed;
                }
                1 | 2 => world.round(settled, 20),
                3 => world.round(settled, 0),
                4 if count > 1 && !settled => {
                    // All of a server's tablets go to another one.
                    let to = 1 + id % count;
                    let moved = world.owner(id).bytes;
                    world.owner(id).bytes = 0;
                    world.owner(id).begin(true);
                    world.owner(to).bytes += moved;
                }
                _ => {
                    world.owner(id).put(signed(bytes));
                }
            }
            let bytes = world.bytes();
            assert!(bytes <= signed(QUOTA), "seed {seed}, step {step}: {bytes}");
            let rates = world.owners.values().filter_map(|owner| owner.rate);
            let rates: u64 = rates.sum();
            assert!(rates <= 100_000, "seed {seed}, step {step}: {rates}");
        }
    }
}

#[test]
fn one_owner_may_use_all_of_it_and_knows_when_the_table_is_full() {
    let mut world = World::new(3, 1);
    world.round(true, 0);
    let mut puts = 0;
    for _ in 0..20 {
        while world.owner(1).put(100) {
            puts += 1;
        }
        world.round(true, 0);
    }
    assert_eq!(puts, QUOTA / 100);
    let target = world.book.targets(BOTH)[&ServerId(1)];
    assert_eq!(target.grown_full, Some(signed(QUOTA)));
    // What others free is there for it.
    world.owner(1).put(-5000);
    world.round(true, 0);
    while world.owner(2).put(100) {}
    world.round(true, 0);
    assert!(world.owner(2).put(100));
}

#[test]
fn a_table_that_has_more_than_its_quota_does_not_grow_and_nobody_is_refused_less() {
    let mut world = World::new(2, 1);
    world.owner(1).put(20_000);
    world.owner(2).put(10);
    world.round(true, 0);
    assert!(!world.owner(1).put(1) && !world.owner(2).put(1));
    world.owner(1).put(-15_000);
    world.round(true, 0);
    assert!(world.owner(2).put(1000));
}

#[test]
fn nobody_is_told_that_a_table_is_full_while_a_crashed_owner_may_have_deleted() {
    let mut world = World::new(2, 1);
    world.round(true, 0);
    let shared = world.book.clone();
    world.owners.remove(&ServerId(2));
    world.round(false, 0);
    let target = world.book.targets(BOTH)[&ServerId(1)];
    assert_eq!(target.grown_full, None);
    assert_eq!(
        target.grown_max,
        shared.targets(BOTH)[&ServerId(1)].grown_max
    );
    // Its tablets are back: the rest is there for all.
    world.round(true, 0);
    let target = world.book.targets(BOTH)[&ServerId(1)];
    assert_eq!(target.grown_max, Some(signed(QUOTA)));
}

#[test]
fn a_new_leader_gives_nothing_until_it_knows_all_of_the_table() {
    let mut world = World::new(2, 1);
    world.owner(1).put(500);
    world.round(true, 0);
    let bounds = (world.owner(1).bound, world.owner(2).bound);
    world.book = Book::default();
    world.round(false, 0);
    assert!(world.owner(1).bound <= bounds.0 && world.owner(2).bound <= bounds.1);
    assert_eq!(world.book.most(), None);
    world.round(true, 0);
    assert_eq!(world.book.most(), Some(signed(QUOTA)));
}

#[test]
fn operations_go_where_they_are_asked_for() {
    let mut world = World::new(4, 1);
    world.round(true, 0);
    assert_eq!(world.owner(3).rate, Some(25_000));
    world.owner(3).asked += 900;
    world.owner(3).refused += 90;
    world.round(true, 0);
    assert_eq!(world.owner(3).rate, Some(6250 + 75_000));
    assert_eq!(world.owner(1).rate, Some(6250));
    world.round(true, 0);
    assert_eq!(world.owner(3).rate, Some(25_000));
}

#[test]
fn a_lifted_quota_bounds_nothing() {
    let mut world = World::new(2, 1);
    world.round(true, 0);
    let targets = world.book.targets(TableQuota::NONE);
    assert!(world.book.lowered(&targets).is_empty());
    let raised = world.book.raised(TableQuota::NONE, &targets);
    world.give(raised, 0);
    assert!(world.owner(1).put(1 << 40));
    assert_eq!(world.owner(2).rate, None);
}
