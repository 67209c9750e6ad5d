//! Log reconstruction against a model of the order rules.

use super::*;
use proptest::prelude::*;

/// A master that keeps the order rules, with replicas on backups that may be lost at any time.
#[derive(Debug)]
struct Model {
    /// The first `acknowledged` bytes of `head` were acknowledged to clients.
    replicas: Vec<Stored>,
    head: u64,
    digest: Vec<u64>,
    acknowledged: u32,
    recorded: Epochs,
    alive: Vec<u64>,
    /// Backups that died and may come back with what they had.
    dead: Vec<u64>,
    last_epoch: u32,
    /// The one that loses power.
    weak: Option<u64>,
}

#[derive(Debug)]
struct Stored {
    backup: u64,
    replica: ReplicaInfo,
    /// The master writes to it: its backup has not died since it was made.
    kept: bool,
    /// As it was opened.
    opened: ReplicaInfo,
}

const R: usize = 2;

impl Model {
    fn new() -> Self {
        let mut model = Self {
            replicas: Vec::new(),
            head: 0,
            digest: Vec::new(),
            acknowledged: 0,
            recorded: Epochs::new(),
            alive: vec![1, 2, 3, 4],
            dead: Vec::new(),
            last_epoch: 0,
            weak: None,
        };
        model.open(1);
        model
    }

    fn on(&self, segment: u64) -> Vec<usize> {
        (0..self.replicas.len())
            .filter(|i| {
                let stored = &self.replicas[*i];
                stored.replica.segment.0 == segment && stored.kept
            })
            .collect()
    }

    /// What the first group of a head says.
    fn info(&self, segment: u64) -> HeadInfo {
        let digest: Vec<u64> = self
            .digest
            .iter()
            .copied()
            .filter(|s| *s <= segment)
            .collect();
        head(segment, &digest).head.unwrap()
    }

    fn store(&mut self, backup: u64, replica: ReplicaInfo) {
        let opened = ReplicaInfo {
            head: Some(self.info(replica.segment.0)),
            closed: false,
            length: 10,
            ..replica.clone()
        };
        self.replicas.push(Stored {
            backup,
            replica,
            kept: true,
            opened,
        });
    }

    fn open(&mut self, segment: u64) {
        self.digest.push(segment);
        let backups: Vec<u64> = self.alive.iter().copied().take(R).collect();
        for backup in backups {
            let mut new = head(segment, &self.digest);
            new.length = 10;
            self.store(backup, new);
        }
        self.head = segment;
        self.acknowledged = 0;
        self.last_epoch = 0;
        self.alive.rotate_left(1);
    }

    /// Rolls the head, perhaps stopping half way: the crash comes then.
    fn roll(&mut self, stop: u8) -> bool {
        let old = self.head;
        let new = old + 1;
        let acknowledged = self.acknowledged;
        self.open(new);
        if stop == 1 {
            self.acknowledged = acknowledged;
            self.head = old;
            return true;
        }
        for (n, i) in self.on(old).into_iter().enumerate() {
            if stop == 2 && n == 1 {
                self.acknowledged = acknowledged;
                self.head = old;
                return true;
            }
            let replica = &mut self.replicas[i].replica;
            replica.closed = true;
            replica.head = None;
        }
        false
    }

    fn write(&mut self) {
        self.acknowledged += 10;
        for i in self.on(self.head) {
            let replica = &mut self.replicas[i].replica;
            replica.length = 10 + self.acknowledged;
            replica.head.as_mut().unwrap().has_data = true;
        }
    }

    /// A backup dies; the master replaces what it had (unless it is the master that dies first).
    fn lose(&mut self, which: usize, replaced: bool) {
        if self.alive.len() <= R {
            return;
        }
        let backup = self.alive.remove(which % self.alive.len());
        self.dead.push(backup);
        let lost: Vec<ReplicaInfo> = self
            .replicas
            .iter()
            .filter(|s| s.backup == backup && s.kept)
            .map(|s| s.replica.clone())
            .collect();
        for stored in &mut self.replicas {
            stored.kept &= stored.backup != backup;
        }
        for replica in lost.into_iter().filter(|_| replaced) {
            let holders: Vec<u64> = self
                .on(replica.segment.0)
                .into_iter()
                .map(|i| self.replicas[i].backup)
                .collect();
            let Some(new) = self.alive.iter().copied().find(|b| !holders.contains(b)) else {
                continue;
            };
            self.store(new, replica.clone());
            if replica.segment.0 == self.head {
                self.last_epoch += 1;
                let epoch = ReplicationEpoch(self.last_epoch);
                for i in self.on(self.head) {
                    self.replicas[i].replica.epoch = epoch;
                }
                self.recorded.insert(LogId(0), (replica.segment, epoch));
            }
        }
    }

    fn come_back(&mut self) {
        self.alive.append(&mut self.dead);
    }

    fn weak_comes_back(&mut self) {
        let weak = self.weak;
        let back = self.dead.extract_if(.., |backup| Some(*backup) == weak);
        self.alive.extend(back);
    }

    /// The power of one that died fails, always of the same one: frames are as they were opened.
    fn take_back(&mut self, which: usize) {
        let Some(drawn) = self.dead.get(which % self.dead.len().max(1)).copied() else {
            return;
        };
        let backup = *self.weak.get_or_insert(drawn);
        if !self.dead.contains(&backup) {
            return;
        }
        for stored in self.replicas.iter_mut().filter(|s| s.backup == backup) {
            let Stored {
                replica, opened, ..
            } = stored;
            *replica = ReplicaInfo {
                epoch: replica.epoch,
                ..doubtful(opened.clone())
            };
        }
    }

    /// One replica is damaged, of the head or of the one opened after it.
    fn rot(&mut self, which: usize) {
        let last = |stored: &Stored| stored.replica.segment.0 >= self.head;
        let replicas = self.replicas.iter().enumerate();
        let last: Vec<usize> = replicas.filter(|(_, s)| last(s)).map(|(i, _)| i).collect();
        if let Some(rotten) = last.get(which) {
            self.replicas.remove(*rotten);
        }
    }

    /// A log has all that was acknowledged, and no backup is read that lacks some of it.
    fn check(&self, map: &LogMap) -> Result<(), TestCaseError> {
        let found = segments(map);
        for segment in self.digest.iter().filter(|s| **s <= self.head) {
            prop_assert!(
                found.iter().any(|(s, _)| s == segment),
                "segment {segment} of {found:?}"
            );
        }
        let (_, sources) = found.iter().find(|(s, _)| *s == self.head).unwrap();
        for source in sources {
            let enough = |stored: &&Stored| {
                let r = &stored.replica;
                stored.backup == *source
                    && r.segment.0 == self.head
                    && (r.closed || r.length >= 10 + self.acknowledged)
            };
            prop_assert!(
                self.replicas.iter().any(|s| enough(&s)),
                "backup {source} lacks acknowledged data"
            );
        }
        Ok(())
    }

    fn inventories(&self) -> Vec<Inventory> {
        self.alive
            .iter()
            .map(|b| {
                let mine = self.replicas.iter().filter(|s| s.backup == *b);
                backup(*b, mine.map(|s| s.replica.clone()).collect())
            })
            .collect()
    }
}

proptest! {
    #[test]
    fn what_was_acknowledged_is_found_or_missed_but_never_overlooked(
        steps in proptest::collection::vec((0u8..5, 0usize..4), 0..40),
        stop in 0u8..3,
        lost in 0usize..8,
        more_lost in 0usize..8,
        power in 0usize..4,
        back in 0u8..3,
        rotten in 0usize..6,
    ) {
        let mut model = Model::new();
        for (what, which) in steps {
            match what {
                0 => drop(model.roll(0)),
                1 => model.write(),
                2 => model.lose(which, true),
                3 => model.take_back(which),
                _ => model.come_back(),
            }
        }
        if stop > 0 {
            model.roll(stop);
        }
        // The master crashes, perhaps with backups that nobody replaces, of which one may lose
        // power.
        for lost in [lost, more_lost] {
            if lost < 4 {
                model.lose(lost, false);
            }
        }
        model.take_back(power);
        match back {
            0 => {}
            1 => model.weak_comes_back(),
            _ => model.come_back(),
        }
        let Ok(map) = reconstruct(&model.inventories(), &model.recorded, None) else {
            // With all backups back, a log is always complete.
            prop_assert!(!model.dead.is_empty() || back < 2);
            return Ok(());
        };
        model.check(&map)?;
        // Something is read. Then others come back, and a replica is damaged.
        let Some(ends) = map.ends else { return Ok(()) };
        model.come_back();
        model.rot(rotten);
        let found = model.inventories();
        let again = reconstruct(&found, &model.recorded, Some(&ends));
        if model.weak.is_none() && reconstruct(&found, &model.recorded, None).is_ok() {
            prop_assert!(again.is_ok(), "{again:?}");
        }
        if let Ok(map) = again {
            model.check(&map)?;
        }
    }
}
