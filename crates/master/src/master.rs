//! The state of a master, and what all operations share.

use crate::classes::OpenClasses;
use crate::cut::Cuts;
use crate::migrate::{Arrivals, Leavings};
use crate::ops::{HeldBack, Waiters};
use crate::orders::Orders;
use crate::quotas::QuotaRounds;
use crate::recover::{AddressBook, RecoveryOptions};
use crate::recovery_attempts::Attempts;
use crate::settlements::Settlements;
use crate::tablets::{Snapshot, Tablet, TabletMap, TabletPhase, Tracked, until_gone};
use crate::top_keys::Samples;
use pluvio_env::{Clock, Env, Moment, timeout};
use pluvio_log::{Appended, Awaited, Durability, Durable};
use pluvio_mutation::Outcome;
use pluvio_replication::Replication;
use pluvio_store::{Applied, DeadlineTime, Engine, EngineTable, Site};
use pluvio_units::{ClusterId, KeyHash, KeyPlace, LogId, ObjectVersion, ServerId, TableId};
use pluvio_wire::{
    Answer, Coordinators, DropTablets, FatalKind, Header, JoinTabletsLocal, Refusal, RetryReason,
    SplitTabletLocal, TabletSpec, TakeTablets,
};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::sync::oneshot;

/// When clients should ask again for a tablet that is being recovered.
pub(crate) const TABLET_RETRY: Duration = Duration::from_millis(5);
/// When to ask again for a tablet that an attempt occupies which ends soon.
const OCCUPIED_RETRY: Duration = Duration::from_millis(20);
/// When to ask again for a tablet without address space for its index: once tablets have gone.
const NO_INDEX_RETRY: Duration = Duration::from_millis(100);
/// When clients should ask again while there are too few backups.
pub(crate) const BACKUPS_RETRY: Duration = Duration::from_millis(50);

/// When clients should ask again while this master does not know whether it is still a member. They
/// ask the coordinator too, and may find another owner.
pub(crate) const DOUBT_RETRY: Duration = Duration::from_millis(10);
/// How long a request waits for the first heads to be durably open.
const OPEN_WAIT_MAX: Duration = Duration::from_secs(1);

/// What a master is made from.
pub struct MasterParts {
    /// The operating system.
    pub env: Env,
    /// Its cluster.
    pub cluster: ClusterId,
    /// This server.
    pub id: ServerId,
    /// The objects.
    pub store: Arc<Engine>,
    /// The replicas of the store's logs.
    pub replication: Replication,
    /// Where the coordinators are.
    pub coordinators: Arc<Coordinators>,
    /// Where other servers are.
    pub addresses: AddressBook,
    /// Bounds of recoveries.
    pub recovery: RecoveryOptions,
}

/// Why a tablet was not added.
pub(crate) enum NotAdded {
    /// This one is here.
    InTheWay(Tablet),
    /// No address space for an index.
    NoIndex(String),
}

impl NotAdded {
    pub(crate) fn refusal(self, spec: &TabletSpec) -> Refusal {
        match self {
            Self::InTheWay(known) => match known.phase {
                // It is being received, or was until a moment ago; or the coordinator has yet to
                // say that it has left.
                TabletPhase::Recovering
                | TabletPhase::Standing
                | TabletPhase::Frozen
                | TabletPhase::Left => Refusal::retry(OCCUPIED_RETRY, RetryReason::TabletNotReady),
                TabletPhase::Serving | TabletPhase::Copying => Refusal::fatal(
                    FatalKind::Other,
                    format!(
                        "tablet {} of table {} overlaps {}, which is here",
                        spec.range, spec.table, known.range
                    ),
                ),
            },
            Self::NoIndex(why) => {
                tracing::debug!(table = %spec.table, range = %spec.range, why, "no address space for a tablet");
                Refusal::retry(NO_INDEX_RETRY, RetryReason::MemoryFull)
            }
        }
    }
}

/// The clocks that deadlines are judged by.
struct ClusterTime(Arc<dyn Clock>);

impl DeadlineTime for ClusterTime {
    fn monotonic(&self) -> Duration {
        self.0.now().0
    }

    fn wall(&self) -> Duration {
        self.0.unix_time()
    }
}

/// A key that is served here, and what its tablet says of changes.
#[derive(Clone, Copy)]
pub(crate) struct Served<'s> {
    pub(crate) table: &'s Arc<EngineTable>,
    pub(crate) hash: KeyHash,
    pub(crate) phase: TabletPhase,
    pub(crate) tracked: Option<Tracked>,
}

impl Served<'_> {
    #[inline]
    pub(crate) fn place(&self) -> KeyPlace {
        (self.table.id(), self.hash)
    }
}

/// See the crate's text.
pub struct Master {
    pub(crate) env: Env,
    pub(crate) cluster: ClusterId,
    pub(crate) id: ServerId,
    store: Arc<Engine>,
    pub(crate) replication: Replication,
    tablets: TabletMap,
    pub(crate) open_classes: OpenClasses,
    pub(crate) coordinators: Arc<Coordinators>,
    pub(crate) addresses: AddressBook,
    pub(crate) recovery_options: RecoveryOptions,
    pub(crate) attempts: Attempts,
    pub(crate) leaving: Leavings,
    pub(crate) cuts: Arc<Cuts>,
    /// Changes that wait for a transaction.
    pub(crate) held_back: HeldBack,
    /// Transactions that wait for keys which others have locked.
    pub(crate) waiters: Waiters,
    pub(crate) arriving: Arrivals,
    /// Held while a tablet is taken, cut or taken away as the coordinator says (MASTER-6). Taken
    /// before the locks of the tablets, of those that leave, and of the store's tables.
    orders: Mutex<Orders>,
    /// Held while a tablet and its index come or go together (TAB-3). Taken after `orders`.
    indexing: Mutex<()>,
    stopped: AtomicBool,
    /// Until when reads may be answered, in nanoseconds of this process's clock (MASTER-4).
    serve_until: AtomicU64,
    requests: AtomicU64,
    /// Bytes of entries of tablets that came from other servers.
    pub(crate) moved_here: AtomicU64,
    /// Calls of [`Master::forget_clients`].
    turns: AtomicUsize,
    pub(crate) settlements: Settlements,
    /// Which keys are used most.
    pub(crate) samples: Samples,
    /// The latest shares of tables' quotas.
    pub(crate) quota_rounds: QuotaRounds,
}

impl Master {
    /// A master without tablets.
    #[must_use]
    pub fn new(parts: MasterParts) -> Arc<Self> {
        let logs: Vec<LogId> = parts.store.space().all_logs().collect();
        let gate = parts.store.gate().cloned();
        let master = Arc::new(Self {
            settlements: Settlements::new(logs.len()),
            samples: Samples::new(parts.env.clock.now().0),
            env: parts.env,
            cluster: parts.cluster,
            id: parts.id,
            store: parts.store,
            replication: parts.replication,
            tablets: TabletMap::telling(gate),
            open_classes: OpenClasses::default(),
            coordinators: parts.coordinators,
            addresses: parts.addresses,
            recovery_options: parts.recovery,
            attempts: Attempts::default(),
            leaving: Leavings::default(),
            cuts: Arc::default(),
            held_back: HeldBack::default(),
            waiters: Waiters::default(),
            arriving: Arrivals::default(),
            orders: Mutex::default(),
            indexing: Mutex::default(),
            stopped: AtomicBool::new(false),
            serve_until: AtomicU64::new(0),
            requests: AtomicU64::new(0),
            moved_here: AtomicU64::new(0),
            turns: AtomicUsize::new(0),
            quota_rounds: QuotaRounds::default(),
        });
        let time = ClusterTime(Arc::clone(&master.env.clock));
        master.store.expiry().start(Box::new(time));
        for log in logs {
            let me = Arc::downgrade(&master);
            let settle = move || {
                if let Some(master) = me.upgrade() {
                    master.settlements.settle(&master.store, log);
                }
            };
            let space = master.store.space();
            space.set_durable_hook(log, Box::new(settle));
        }
        master
    }

    /// Separates the outcome of a mutation, which is told once it is durable, from its slot, which
    /// is settled here (STORE-2).
    pub(crate) fn outcome_of(
        &self,
        table: &Arc<EngineTable>,
        applied: Awaited<Applied>,
    ) -> Awaited<Outcome> {
        let applied = match self.store.confirm(table, applied) {
            Ok(outcome) => return Awaited::Now(outcome),
            Err(applied) => applied,
        };
        let (slot, outcome) = applied.split(Applied::split);
        if let Some(slot) = slot.transpose() {
            self.settlements.note(&self.store, table, slot);
        }
        Awaited::Later(outcome)
    }

    /// This server's id.
    #[must_use]
    pub fn id(&self) -> ServerId {
        self.id
    }

    /// The cluster that this server belongs to.
    #[must_use]
    pub fn cluster(&self) -> ClusterId {
        self.cluster
    }

    /// The objects.
    #[must_use]
    pub fn store(&self) -> &Arc<Engine> {
        &self.store
    }

    /// The tablets.
    #[must_use]
    pub fn tablets(&self) -> &TabletMap {
        &self.tablets
    }

    /// The replicas.
    #[must_use]
    pub fn replication(&self) -> &Replication {
        &self.replication
    }

    /// Bytes of entries that came with tablets from other servers so far, also those of moves that
    /// failed.
    #[must_use]
    pub fn moved_here(&self) -> u64 {
        self.moved_here.load(Ordering::Relaxed)
    }

    /// Requests of clients so far, those of this process's own front ends included.
    #[must_use]
    pub fn requests(&self) -> u64 {
        self.requests.load(Ordering::Relaxed)
    }

    /// Stops serving for ever: this server was declared dead [RAMCloud §7.11]. What is waiting for
    /// replicas is never acknowledged.
    pub fn stop(&self) {
        self.stopped.store(true, Ordering::Release);
        self.tablets.clear();
    }

    /// Lets this master answer until `moment`, and no longer unless this is called again
    /// (MASTER-4).
    pub fn serve_until(&self, moment: Moment) {
        let nanos = u64::try_from(moment.0.as_nanos()).unwrap_or(u64::MAX);
        self.serve_until.fetch_max(nanos, Ordering::Relaxed);
    }

    /// Until when it may (MASTER-4).
    pub(crate) fn serves_until(&self) -> Moment {
        Moment(Duration::from_nanos(
            self.serve_until.load(Ordering::Relaxed),
        ))
    }

    /// Whether what is here is still the truth (MASTER-4).
    #[must_use]
    pub fn may_serve(&self) -> bool {
        // The exact clock: a coarse one stands still where the hypervisor takes its processor.
        self.env.clock.now() < self.serves_until()
    }

    /// Takes tablets that hold nothing, once every log is durably open (MASTER-3). They are new, or
    /// begin anew: then the versions of what was lost are not given again.
    ///
    /// # Errors
    /// - `Retry` when that takes long: a caller that asks again and again must not fill this server
    ///   with waiting requests.
    /// - `Retry` while something that is not served is in a tablet's way, or address space for an
    ///   index is missing.
    /// - Fatal when a tablet overlaps one that is served.
    /// - `Stale` when the request is late (MASTER-6, MIG-7).
    ///
    /// The tablets before the one at fault were taken, and taking them again is no error.
    pub async fn take_tablets(&self, request: &TakeTablets) -> Result<(), Refusal> {
        if self.is_replicated() {
            let opened = self.replication.opened();
            let opened = timeout(&*self.env.clock, OPEN_WAIT_MAX, opened);
            if opened.await.is_err() {
                return Err(Refusal::retry(BACKUPS_RETRY, RetryReason::TooFewBackups));
            }
        }
        for spec in &request.tablets {
            self.class_is_open(spec)?;
            let mut orders = self.orders();
            orders.admit(spec.table, request.version)?;
            // The request is late (MIG-7): what is new was never anywhere before.
            let (at, first) = ((spec.table, spec.range), request.first_version);
            let is_late = match first == ObjectVersion(0) {
                true => self.leaving.were_here(spec.table, spec.range),
                false => self.leaving.left_after(request.version, at),
            };
            if is_late {
                let message = "the tablet was here and has moved";
                return Err(Refusal::fatal(FatalKind::Stale, message));
            }
            self.store().space().raise_safe_version(first);
            match self.add_tablet(spec, TabletPhase::Serving) {
                Ok(_) => {}
                Err(NotAdded::InTheWay(known))
                    if known.range == spec.range && known.phase.is_served() => {}
                Err(why) => return Err(why.refusal(spec)),
            }
        }
        Ok(())
    }

    /// Cuts a tablet; one that begins there already is left as it is.
    ///
    /// # Errors
    /// `NotFound` when no tablet of the table has that hash, `Stale` when the request is late
    /// (MASTER-6). Nothing was cut.
    pub fn split_tablet(&self, request: &SplitTabletLocal) -> Result<(), Refusal> {
        let SplitTabletLocal { version, table, at } = *request;
        let mut orders = self.orders();
        orders.admit(table, version)?;
        if self.tablets.split(table, at) {
            Ok(())
        } else {
            let what = format!("no tablet of table {table} with {at} is here");
            Err(Refusal::fatal(FatalKind::NotFound, what))
        }
    }

    /// Makes one tablet of neighbours, where all of a range is served here and nothing else is
    /// under way with any of it. Each part keeps its index. What is one tablet already stays so.
    ///
    /// # Errors
    /// `NotFound` when some of it is not here, or is not simply served; `Stale` when the request is
    /// late (MASTER-6). Nothing was joined.
    pub fn join_tablets(&self, request: &JoinTabletsLocal) -> Result<(), Refusal> {
        let JoinTabletsLocal {
            version,
            table,
            range,
        } = *request;
        let mut orders = self.orders();
        orders.admit(table, version)?;
        if self.tablets.join(table, range) {
            Ok(())
        } else {
            let what = format!("not all of {range} of table {table} is served here");
            Err(Refusal::fatal(FatalKind::NotFound, what))
        }
    }

    /// See `indexing`.
    pub(crate) fn indexing(&self) -> MutexGuard<'_, ()> {
        self.indexing.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn orders(&self) -> MutexGuard<'_, Orders> {
        self.orders.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a tablet, unless one is in the way, the same one included.
    pub(crate) fn add_tablet(
        &self,
        spec: &TabletSpec,
        phase: TabletPhase,
    ) -> Result<Arc<EngineTable>, NotAdded> {
        let _alone = self.indexing();
        let table = self
            .store
            .table(spec.table, spec.table_hash(), spec.range)
            .map_err(|error| NotAdded::NoIndex(error.to_string()))?;
        table.set_class(spec.class.map_or(0, |class| class.number));
        let tablet = Tablet {
            range: spec.range,
            phase,
            tracked: None,
        };
        if !self.tablets.snapshot().contains_key(&spec.table) {
            let of = (spec.quota.bytes.is_some(), spec.quota.operations.is_some());
            table.begin_share(of.0, of.1);
        }
        match self.tablets.add(Arc::clone(&table), tablet) {
            Ok(()) => Ok(table),
            Err(known) => Err(NotAdded::InTheWay(known)),
        }
    }

    /// Gives up a table: its tablets, its index, its objects.
    pub async fn drop_table(&self, request: &DropTablets) {
        let table = request.table;
        let mut old = {
            let mut orders = self.orders();
            orders.dropped(table, request.version);
            self.tablets.remove_table(table)
        };
        self.leaving.table_dropped(table);
        // Operations end first: they have the table, whatever the map says by now.
        until_gone(&*self.env.clock, || old.is_gone()).await;
        self.samples.forget(table);
        let store = Arc::clone(&self.store);
        self.elsewhere(move || store.drop_table(table)).await;
    }

    /// Does work outside the event loop that takes longer than other requests should wait (rule D).
    /// `None` when it was not done, because the process is stopping.
    pub(crate) async fn elsewhere<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Option<T> {
        let (done, result) = oneshot::channel();
        let work = Box::new(move || drop(done.send(work())));
        self.env.tasks.run_blocking(work).await;
        result.await.ok()
    }

    // --- what operations share ----------------------------------------------------------------

    /// Whether the caller means this life of the server in this cluster, and it serves.
    pub(crate) fn check_target(&self, header: &Header) -> Result<(), Refusal> {
        self.requests.fetch_add(1, Ordering::Relaxed);
        if !self.is_meant(header) {
            return Err(Refusal::Refresh);
        }
        if !self.may_serve() {
            if self.serve_until.load(Ordering::Relaxed) > 0 {
                pluvio_units::mark("lease-refuses-zombie");
            }
            return Err(Refusal::retry(DOUBT_RETRY, RetryReason::NotServing));
        }
        Ok(())
    }

    /// Whether the caller means this life of the server, and it has not stopped.
    pub(crate) fn is_meant(&self, header: &Header) -> bool {
        header.means(self.cluster, self.id) && !self.stopped.load(Ordering::Acquire)
    }

    /// The hash of a key: as it came along, or computed now. `None` when the table is not here.
    #[inline]
    pub(crate) fn hash_of(
        &self,
        snapshot: &Snapshot,
        table: TableId,
        key: &[u8],
        known: Option<KeyHash>,
    ) -> Option<KeyHash> {
        known.or_else(|| Some(snapshot.get(&table)?.table.hash(key)))
    }

    /// The table and the phase of its tablet, if the tablet of the hash is served here (MASTER-1).
    pub(crate) fn serving<'s>(
        &self,
        snapshot: &'s Snapshot,
        table: TableId,
        hash: Option<KeyHash>,
    ) -> Result<Served<'s>, Refusal> {
        let local = snapshot.get(&table).ok_or(Refusal::Refresh)?;
        let hash = hash.ok_or(Refusal::Refresh)?;
        let tablet = local.tablet_of(hash).ok_or(Refusal::Refresh)?;
        Self::must_serve(tablet.phase)?;
        Ok(Served {
            table: &local.table,
            hash,
            phase: tablet.phase,
            tracked: tablet.tracked,
        })
    }

    /// Whether this key may be changed now: its tablet takes changes, and no cut holds them. A
    /// transaction may keep the key for itself all the same.
    ///
    /// # Errors
    /// The refusal of a change.
    #[inline]
    pub(crate) fn must_be_changeable(&self, served: &Served<'_>) -> Result<(), Refusal> {
        Self::must_take_changes(served.phase)?;
        self.not_held_by_cut(served)
    }

    /// Where a change of this key is applied, on a core that has the log `of_core`.
    #[inline]
    pub(crate) fn site<'s>(&self, of_core: LogId, served: &Served<'s>) -> Site<'s> {
        Site {
            log: self.store.log_of(of_core, served.table),
            table: served.table,
            hash: served.hash,
            now_s: self.now_s(),
            only_this_log: false,
        }
    }

    /// The refusal of a change of a tablet in this phase, unless it takes changes (REC-7).
    pub(crate) fn must_take_changes(phase: TabletPhase) -> Result<(), Refusal> {
        if phase == TabletPhase::Standing {
            pluvio_units::mark("standing-tablet-refuses-change");
            return Err(Self::not_ready());
        }
        Self::must_serve(phase)
    }

    /// The refusal for a tablet in this phase, unless it is read.
    pub(crate) fn must_serve(phase: TabletPhase) -> Result<(), Refusal> {
        match phase {
            TabletPhase::Standing | TabletPhase::Serving | TabletPhase::Copying => Ok(()),
            TabletPhase::Recovering | TabletPhase::Frozen => Err(Self::not_ready()),
            TabletPhase::Left => Err(Refusal::Refresh),
        }
    }

    pub(crate) fn not_ready() -> Refusal {
        Refusal::retry(TABLET_RETRY, RetryReason::TabletNotReady)
    }

    /// Refuses changes before they fill the memory, while too few backups are up. Those of volatile
    /// tables, too: cleaning waits for all logs. A log whose backups lack space is refused by the
    /// store ([`EngineError::Stalled`]).
    ///
    /// [`EngineError::Stalled`]: pluvio_store::EngineError::Stalled
    pub(crate) fn writes_possible(&self) -> Result<(), Refusal> {
        match self.is_replicated() && !self.replication.enough_backups() {
            true => Err(Refusal::retry(BACKUPS_RETRY, RetryReason::TooFewBackups)),
            false => Ok(()),
        }
    }

    /// Whether its log has replicas.
    #[must_use]
    pub fn is_replicated(&self) -> bool {
        match self.store.space().durability() {
            Durability::Replicated => true,
            Durability::Volatile => false,
        }
    }

    /// The clock of the store's results: it only goes forward.
    pub(crate) fn monotonic(&self) -> Duration {
        self.env.clock.now().0
    }

    /// Forgets clients that gave up their last operation long ago; to be called about every second.
    /// Each call looks at a part of them.
    pub fn forget_clients(&self) {
        self.keep_locked();
        self.tend_cuts();
        let turn = self.turns.fetch_add(1, Ordering::Relaxed);
        self.store
            .completions()
            .forget_clients(turn, self.monotonic());
    }

    /// Seconds for the timestamps of entries.
    pub(crate) fn now_s(&self) -> u32 {
        u32::try_from(self.env.clock.unix_seconds()).unwrap_or(u32::MAX)
    }

    /// Waits until something appended is durable.
    pub(crate) async fn durable<T>(&self, mut appended: Appended<T>) -> Durable<T> {
        loop {
            for (log, position) in appended.waits() {
                self.replication.synced(log, position).await;
            }
            match self.store.space().confirm(appended) {
                Ok(durable) => return durable,
                Err(not_yet) => appended = not_yet,
            }
        }
    }

    /// The answer of an operation, once all is durable that it rests on (MASTER-2, EO-3).
    pub(crate) fn answer_awaited<T: Send + 'static>(
        self: &Arc<Self>,
        done: Result<Awaited<T>, Refusal>,
    ) -> Answer<T> {
        let appended = match done {
            Err(refusal) => return Answer::Now(Err(refusal)),
            Ok(Awaited::Now(durable)) => return Answer::Now(Ok(durable.into_value())),
            Ok(Awaited::Later(appended)) => appended,
        };
        let master = Arc::clone(self);
        Answer::Later(Box::pin(async move {
            Ok(master.durable(appended).await.into_value())
        }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use pluvio_units::{HashKind, HashRange, SegmentId};

    #[test]
    fn a_tablet_without_address_space_is_refused_as_where_memory_is_full() {
        let spec = TabletSpec {
            table: TableId(1),
            seed: 7,
            hash: HashKind::Seeded,
            range: HashRange::ALL,
            since: SegmentId(0),
            quota: pluvio_wire::TableQuota::NONE,
            class: None,
        };
        let refusal = NotAdded::NoIndex("cannot reserve".into()).refusal(&spec);
        let expected = Refusal::retry(NO_INDEX_RETRY, RetryReason::MemoryFull);
        assert_eq!(refusal, expected);
    }
}
