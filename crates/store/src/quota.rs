//! The share that this server has of a table's quota, and its use.
//!
//! Two bounds, each of which may be absent:
//!
//! - **Bytes.** A change that makes an object larger is refused where the table would have grown
//!   beyond the bound *by operations*. Replay, moved tablets and forgotten ones change the
//!   bytes here, too, and neither count as growth nor are refused (QUOTA-1).
//! - **Operations.** A bucket that holds the operations of one second. It is kept as the time at
//!   which it would be full again, so taking from it is one exchange of a number.
//!
//! - QUOTA-1: a change that does not make an object larger is never refused for want of bytes, and
//!   neither is replay.
//! - QUOTA-2: a transaction that does not fit is refused before anything of it is changed.
//!
//! Any thread. Changes that are under way on other cores are not counted yet: together they may
//! pass the bound by their size.

use crate::table::EngineTable;
use core::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use core::time::Duration;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// How many operations may come at once: those of this time.
const BURST: Duration = Duration::from_secs(1);
/// The pause of an operation that is refused while no rate is known yet.
const UNTOLD: Duration = Duration::from_millis(100);
/// A bucket is never further behind than this.
const BEHIND_MAX: Duration = Duration::from_secs(2);

/// An operation interval that nothing fits.
const NEVER: u64 = u64::MAX;
/// A rate that bounds nothing.
const UNBOUNDED: u64 = u64::MAX;

/// The share that a server has of a table's quota.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Share {
    /// The table's name, for those that are refused.
    pub name: String,
    /// The quota of bytes of the whole table.
    pub bytes: u64,
    /// The most that the table may have grown after a change; `None`: there is no bound.
    pub grown_max: Option<i64>,
    /// Beyond this the table as a whole would be; `None`: that is not known.
    pub grown_full: Option<i64>,
    /// Operations in a thousand seconds; `None`: there is no bound.
    pub operations_milli: Option<u64>,
}

/// The used part of a share.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ShareUse {
    /// Changes with [`EngineTable::begin_share`].
    pub instance: u64,
    /// Growth by operations since then.
    pub grown: i64,
    /// Its bound, if there is one.
    pub grown_max: Option<i64>,
    /// Operations in a thousand seconds; `None`: there is no bound.
    pub operations_milli: Option<u64>,
    /// Operations done.
    pub operations: u64,
    /// The largest growth refused since the latest share.
    pub wanted: u64,
    /// Changes refused for want of bytes.
    pub refused_bytes: u64,
    /// Operations refused because there were too many.
    pub refused_operations: u64,
}

/// Operations that were taken out of a bucket, for [`EngineTable::give_back`].
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Taken {
    count: u64,
    nanos: u64,
}

/// A change that was refused for want of bytes.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct OverQuota {
    /// The table's name.
    pub name: Arc<str>,
    /// The quota of the whole table.
    pub bytes: u64,
    /// Whether the table has nothing left, and not only this server.
    pub is_full: bool,
}

/// See the module.
pub(crate) struct Quota {
    instance: AtomicU64,
    /// `i64::MAX`: no bound.
    grown_max: AtomicI64,
    /// `i64::MAX`: not known.
    grown_full: AtomicI64,
    /// Changes of the table's bytes that operations have not made.
    foreign: AtomicI64,
    wanted: AtomicU64,
    /// `u64::MAX`: no bound.
    operations_milli: AtomicU64,
    /// Nanoseconds from one operation to the next; 0: no bound.
    interval_ns: AtomicU64,
    /// When the bucket is full again, in nanoseconds of the caller's clock.
    full_at_ns: AtomicU64,
    operations: AtomicU64,
    refused_bytes: AtomicU64,
    refused_operations: AtomicU64,
    /// Refused since the bucket let something pass.
    queued: AtomicU64,
    said: Mutex<(Arc<str>, u64)>,
}

impl Default for Quota {
    fn default() -> Self {
        Self {
            instance: AtomicU64::new(0),
            grown_max: AtomicI64::new(i64::MAX),
            grown_full: AtomicI64::new(i64::MAX),
            foreign: AtomicI64::new(0),
            wanted: AtomicU64::new(0),
            operations_milli: AtomicU64::new(UNBOUNDED),
            interval_ns: AtomicU64::new(0),
            full_at_ns: AtomicU64::new(0),
            operations: AtomicU64::new(0),
            refused_bytes: AtomicU64::new(0),
            refused_operations: AtomicU64::new(0),
            queued: AtomicU64::new(0),
            said: Mutex::new((Arc::from(""), 0)),
        }
    }
}

impl Quota {
    fn said(&self) -> MutexGuard<'_, (Arc<str>, u64)> {
        // Held for single steps.
        self.said.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The table's bytes change by something that is no operation.
    pub(crate) fn foreign(&self, bytes: i64) {
        self.foreign.fetch_add(bytes, Ordering::Relaxed);
    }
}

// All numbers are relaxed: each is used by itself, and nothing is published by one.
impl EngineTable {
    /// This server owns something of the table again after it owned nothing, or for the first time.
    /// A table that has a quota does not grow until there is a share of it.
    pub fn begin_share(&self, of_bytes: bool, of_operations: bool) {
        let quota = &self.quota;
        quota.foreign.store(self.signed_bytes(), Ordering::Relaxed);
        let bound = if of_bytes { 0 } else { i64::MAX };
        quota.grown_max.store(bound, Ordering::Relaxed);
        quota.grown_full.store(i64::MAX, Ordering::Relaxed);
        let (milli, interval) = match of_operations {
            true => (0, NEVER),
            false => (UNBOUNDED, 0),
        };
        quota.interval_ns.store(interval, Ordering::Relaxed);
        quota.operations_milli.store(milli, Ordering::Relaxed);
        // Last: a share that was meant for the ownership before is told by it.
        quota.instance.fetch_add(1, Ordering::AcqRel);
    }

    /// Takes a share.
    pub fn take_share(&self, share: &Share) {
        let quota = &self.quota;
        *quota.said() = (Arc::from(share.name.as_str()), share.bytes);
        let bound = |bound: Option<i64>| bound.unwrap_or(i64::MAX);
        quota
            .grown_full
            .store(bound(share.grown_full), Ordering::Relaxed);
        quota
            .grown_max
            .store(bound(share.grown_max), Ordering::Relaxed);
        quota.wanted.store(0, Ordering::Relaxed);
        let milli = share.operations_milli.unwrap_or(UNBOUNDED);
        let interval = match milli {
            UNBOUNDED => 0,
            0 => NEVER,
            milli => (1_000_000_000_000 / milli).max(1),
        };
        quota.operations_milli.store(milli, Ordering::Relaxed);
        quota.interval_ns.store(interval, Ordering::Relaxed);
    }

    /// The used part of the share.
    #[must_use]
    pub fn share_use(&self) -> ShareUse {
        let quota = &self.quota;
        let bound = quota.grown_max.load(Ordering::Relaxed);
        let read = |number: &AtomicU64| number.load(Ordering::Relaxed);
        ShareUse {
            instance: quota.instance.load(Ordering::Acquire),
            grown: self.grown(),
            grown_max: (bound != i64::MAX).then_some(bound),
            operations_milli: Some(read(&quota.operations_milli)).filter(|m| *m != UNBOUNDED),
            operations: read(&quota.operations),
            wanted: read(&quota.wanted),
            refused_bytes: read(&quota.refused_bytes),
            refused_operations: read(&quota.refused_operations),
        }
    }

    /// The table's name and its quota of bytes, as they were said last.
    #[must_use]
    pub fn quota_said(&self) -> (Arc<str>, u64) {
        self.quota.said().clone()
    }

    fn grown(&self) -> i64 {
        self.signed_bytes() - self.quota.foreign.load(Ordering::Relaxed)
    }

    /// Whether the table may grow by this number of bytes (QUOTA-1).
    ///
    /// # Errors
    /// It may not.
    #[inline]
    pub(crate) fn may_grow(&self, by: i64) -> Result<(), Box<OverQuota>> {
        let most = self.quota.grown_max.load(Ordering::Relaxed);
        match by <= 0 || most == i64::MAX {
            true => Ok(()),
            false => self.may_grow_to(by, most),
        }
    }

    #[cold]
    fn may_grow_to(&self, by: i64, most: i64) -> Result<(), Box<OverQuota>> {
        let quota = &self.quota;
        let grown = self.grown().saturating_add(by);
        if grown <= most {
            return Ok(());
        }
        quota.wanted.fetch_max(by.unsigned_abs(), Ordering::Relaxed);
        quota.refused_bytes.fetch_add(1, Ordering::Relaxed);
        let full = quota.grown_full.load(Ordering::Relaxed);
        let (name, bytes) = self.quota_said();
        Err(Box::new(OverQuota {
            name,
            bytes,
            is_full: full != i64::MAX && grown > full,
        }))
    }

    /// Takes operations out of the bucket at this time of the caller's clock. Those that `must` be
    /// done are never refused: others behind them wait the longer.
    ///
    /// # Errors
    /// There are too few: when to come again. None was taken.
    #[inline]
    pub fn take_operations(
        &self,
        count: u64,
        must: bool,
        now: impl FnOnce() -> Duration,
    ) -> Result<Taken, Duration> {
        match self.quota.interval_ns.load(Ordering::Relaxed) {
            0 => Ok(Taken::default()),
            interval => self.take_at(interval, (count, must), now()),
        }
    }

    #[cold]
    fn take_at(
        &self,
        interval: u64,
        (count, must): (u64, bool),
        now: Duration,
    ) -> Result<Taken, Duration> {
        let quota = &self.quota;
        if interval == NEVER {
            if must {
                return Ok(Taken::default());
            }
            quota.refused_operations.fetch_add(1, Ordering::Relaxed);
            return Err(UNTOLD);
        }
        let nanos = |time: Duration| u64::try_from(time.as_nanos()).unwrap_or(u64::MAX / 4);
        let (now, burst) = (nanos(now), nanos(BURST));
        let takes = interval.saturating_mul(count);
        // More than a bucket holds is let pass when it is full.
        let needed = takes.min(burst);
        let behind = |full_at: u64| full_at.saturating_sub(now);
        // How much further behind the bucket is, once these are taken.
        let takes_of = |full_at: u64| {
            let fits = behind(full_at).saturating_add(needed) <= burst;
            match (fits, must) {
                (true, _) => Some(takes),
                (false, true) => Some(takes.min(nanos(BEHIND_MAX).saturating_sub(behind(full_at)))),
                (false, false) => None,
            }
        };
        let next = |full_at: u64| {
            let taken = takes_of(full_at)?;
            Some(full_at.max(now).saturating_add(taken))
        };
        let (order, full_at) = (Ordering::Relaxed, &quota.full_at_ns);
        match full_at.fetch_update(order, order, next) {
            Ok(before) => {
                quota.operations.fetch_add(count, Ordering::Relaxed);
                quota.queued.store(0, Ordering::Relaxed);
                let nanos = takes_of(before).unwrap_or(0);
                Ok(Taken { count, nanos })
            }
            Err(full_at) => {
                quota.refused_operations.fetch_add(1, Ordering::Relaxed);
                // Those that were refused before it come first, about.
                let queued = quota.queued.fetch_add(1, Ordering::Relaxed);
                let wait = behind(full_at).saturating_add(needed).saturating_sub(burst);
                let queue = interval.saturating_mul(queued.min(10_000));
                Err(Duration::from_nanos(wait.saturating_add(queue)))
            }
        }
    }

    /// Gives back operations that were not done, as they were taken, whatever share has come since.
    #[inline]
    pub fn give_back(&self, taken: Taken) {
        if taken.count > 0 {
            self.give_back_some(taken);
        }
    }

    #[cold]
    fn give_back_some(&self, taken: Taken) {
        let less = |number: &AtomicU64, by: u64| {
            let less = |now: u64| Some(now.saturating_sub(by));
            let _always = number.fetch_update(Ordering::Relaxed, Ordering::Relaxed, less);
        };
        less(&self.quota.full_at_ns, taken.nanos);
        less(&self.quota.operations, taken.count);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::{Engine, EngineError, NotTransacted, Site, StepAt};
    use crate::options::EngineOptions;
    use pluvio_log::LogOptions;
    use pluvio_mutation::{Change, Mutation, Operation, Payload, TransactionStep};
    use pluvio_units::{HashRange, LogId, Size, TableId};

    const TABLE: TableId = TableId(1);

    struct Bench {
        engine: Arc<Engine>,
        table: Arc<EngineTable>,
    }

    impl Bench {
        fn new() -> Self {
            let log = LogOptions::new(Size::mib(32));
            let engine = Engine::open(EngineOptions { log }).unwrap();
            let table = engine.table(TABLE, 7, HashRange::ALL).unwrap();
            Self { engine, table }
        }

        fn share(&self, grown_max: i64, grown_full: Option<i64>) {
            self.table.take_share(&Share {
                name: "tenant".into(),
                bytes: 1000,
                grown_max: Some(grown_max),
                grown_full,
                operations_milli: None,
            });
        }

        fn change(&self, key: &[u8], change: Change<'_>) -> Result<(), EngineError> {
            let site = Site {
                log: LogId(0),
                table: &self.table,
                hash: self.table.hash(key),
                now_s: 1,
                only_this_log: false,
            };
            let mutation = Mutation::new(TABLE, key, change);
            self.engine.apply(&site, &mutation, None).map(drop)
        }

        fn put(&self, key: &[u8], len: usize) -> Result<(), EngineError> {
            let value = vec![1; len];
            self.change(key, Change::Put(Payload::from(value.as_slice())))
        }

        fn transact(&self, changes: &[(&[u8], Change<'_>)]) -> Result<(), NotTransacted> {
            let mutations = changes
                .iter()
                .map(|(key, change)| Mutation::new(TABLE, key, *change));
            let steps: Vec<_> = mutations
                .map(|mutation| StepAt {
                    table: &self.table,
                    hash: self.table.hash(mutation.key),
                    step: TransactionStep::new(Operation::Mutate(mutation)),
                })
                .collect();
            let done = self.engine.transact((LogId(0), 1), &steps, None);
            done.map(drop)
        }
    }

    fn is_full(error: &EngineError) -> bool {
        match error {
            EngineError::Quota(over) => {
                assert_eq!((&*over.name, over.bytes), ("tenant", 1000));
                over.is_full
            }
            other => panic!("{other:?}"),
        }
    }

    // shows: QUOTA-1
    #[test]
    fn only_what_makes_an_object_larger_is_refused() {
        let bench = Bench::new();
        bench.put(b"k1", 98).unwrap();
        bench.share(150, None);
        bench.put(b"k2", 48).unwrap();
        assert!(!is_full(&bench.put(b"k3", 1).unwrap_err()));
        bench.share(150, Some(150));
        assert!(is_full(&bench.put(b"k1", 99).unwrap_err()));
        let append = Change::Append(Payload::from(b"x".as_slice()));
        assert!(is_full(&bench.change(b"k1", append).unwrap_err()));
        bench.put(b"k1", 98).unwrap();
        bench.put(b"k1", 10).unwrap();
        bench.put(b"k3", 80).unwrap();
        bench.change(b"k3", Change::Delete).unwrap();
        bench.share(-1000, Some(-1000));
        bench.change(b"k2", Change::Delete).unwrap();
        let used = bench.table.share_use();
        assert_eq!((used.grown, used.grown_max), (12, Some(-1000)));
        assert_eq!((used.wanted, used.refused_bytes), (0, 3));
    }

    // shows: QUOTA-2
    #[test]
    fn a_transaction_that_does_not_fit_changes_nothing() {
        let bench = Bench::new();
        bench.put(b"k1", 98).unwrap();
        bench.share(150, Some(150));
        let value = vec![1; 40];
        let put = || Change::Put(Payload::from(value.as_slice()));
        let refused = bench.transact(&[(b"k2", put()), (b"k3", put())]);
        match refused.unwrap_err() {
            NotTransacted::Engine(error) => assert!(is_full(&error)),
            other => panic!("{other:?}"),
        }
        assert_eq!(bench.table.objects(), 1);
        bench.transact(&[(b"k2", put())]).unwrap();
        // One step may use the bytes that another one frees.
        let freed = [
            (b"k1".as_slice(), Change::Delete),
            (b"k3".as_slice(), put()),
        ];
        bench.transact(&freed).unwrap();
        bench.share(0, Some(0));
        bench.transact(&[(b"k3", Change::Delete)]).unwrap();
        assert_eq!(bench.table.objects(), 1);
    }

    // shows: QUOTA-1
    #[test]
    fn what_comes_and_goes_with_tablets_is_no_growth() {
        let bench = Bench::new();
        bench.put(b"k1", 98).unwrap();
        bench.table.begin_share(true, false);
        let used = bench.table.share_use();
        assert_eq!((used.instance, used.grown, used.grown_max), (1, 0, Some(0)));
        bench.put(b"k2", 1).unwrap_err();
        bench.share(50, None);
        bench.put(b"k2", 8).unwrap();
        bench.engine.forget(&bench.table, HashRange::ALL);
        let used = bench.table.share_use();
        assert_eq!((bench.table.object_bytes(), used.grown), (0, 10));
    }

    #[test]
    fn a_bucket_holds_the_operations_of_a_second() {
        let bench = Bench::new();
        let take = |count, must, ms| {
            let now = Duration::from_millis(ms);
            bench.table.take_operations(count, must, || now)
        };
        take(1_000_000, false, 0).unwrap();
        bench.table.begin_share(false, true);
        assert_eq!(take(1, false, 0), Err(UNTOLD));
        take(1, true, 0).unwrap();
        let share = Share {
            name: "tenant".into(),
            bytes: 0,
            grown_max: None,
            grown_full: None,
            operations_milli: Some(10_000),
        };
        bench.table.take_share(&share);
        for _ in 0..10 {
            take(1, false, 1000).unwrap();
        }
        assert_eq!(take(1, false, 1000), Err(Duration::from_millis(100)));
        // The second that asks comes later.
        assert_eq!(take(1, false, 1050), Err(Duration::from_millis(150)));
        take(1, false, 1100).unwrap();
        // Deletions pass, and others wait for them: but not for long.
        for _ in 0..100 {
            take(1, true, 1100).unwrap();
        }
        assert_eq!(take(1, false, 1100), Err(Duration::from_millis(1100)));
        take(1, false, 2200).unwrap();
        // More than the bucket holds passes when it is full.
        assert!(take(25, false, 3000).is_err());
        take(25, false, 3200).unwrap();
        assert!(take(1, false, 4600).is_err());
        let taken = take(1, false, 4800).unwrap();
        bench.table.give_back(taken);
        take(1, false, 4800).unwrap();
        let used = bench.table.share_use();
        assert_eq!(used.refused_operations, 6);
        assert_eq!(used.operations, 10 + 1 + 100 + 1 + 25 + 1);
    }

    #[test]
    fn what_was_taken_without_a_bound_is_not_given_back_to_one() {
        let bench = Bench::new();
        let at = Duration::from_secs(5);
        let taken = bench.table.take_operations(1, false, || at).unwrap();
        bench.table.take_share(&Share {
            name: "tenant".into(),
            bytes: 1000,
            grown_max: None,
            grown_full: None,
            operations_milli: Some(10_000),
        });
        bench.table.give_back(taken);
        assert_eq!(bench.table.share_use().operations, 0);
        for _ in 0..10 {
            bench.table.take_operations(1, false, || at).unwrap();
        }
        assert!(bench.table.take_operations(1, false, || at).is_err());
    }
}
