//! Tablets that leave: what their receiver copies, and how it ends.

use super::change_notes::ChangeNotes;
use super::ended::Ended;
use crate::master::{Master, Served};
use crate::recover::micros;
use crate::tablets::{OldMaps, TabletMap, TabletPhase, until_gone};
use bytes::Bytes;
use pluvio_env::{Moment, timeout};
use pluvio_mutation::Outcome;
use pluvio_store::{Engine, EngineTable, LeavingResults};
use pluvio_units::{
    CoreId, HashRange, KeyHash, MetadataVersion, MigrationId, ObjectVersion, Rank, TableId,
};
use pluvio_wire::{
    EndMigration, FatalKind, GetTabletData, GetTabletDataReply, Refusal, RetryReason, TabletPart,
};
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;
use tokio::sync::oneshot;

/// Bytes copied at a time, about: long enough for few messages, short enough for other requests to
/// come in between.
const PART_BYTES: usize = 1 << 20;
/// Changes looked at for one part.
const PART_CHANGES: usize = 8 << 10;
/// Results in one part, and clients: with some 50 bytes each less than [`PART_BYTES`], twice.
const PART_RESULTS: usize = 16 << 10;
/// When a client should try a change again whose note has no room.
const NOTES_RETRY: Duration = Duration::from_millis(5);
/// How long a request waits for this server's replicas before it is to come again.
const REPLICAS_MAX: Duration = Duration::from_millis(100);
/// When to ask again whether a migration has ended here.
const ENDING_RETRY: Duration = Duration::from_millis(20);

/// One tablet that leaves.
pub(crate) struct Leaving {
    id: MigrationId,
    table: Arc<EngineTable>,
    range: HashRange,
    notes: Mutex<ChangeNotes>,
    /// The maps that the last change of its phase replaced, while an operation has them (MOVE-2).
    /// First these are the maps from before it was copied. Then they are those from before it was
    /// frozen: the same ones and more.
    old: Mutex<OldMaps>,
    /// When it was frozen first.
    frozen: OnceLock<Moment>,
    /// Of the frozen tablet; fixed, so that parts fit together.
    results: Mutex<Option<Arc<LeavingResults>>>,
}

impl Leaving {
    fn notes(&self) -> MutexGuard<'_, ChangeNotes> {
        self.notes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A change has taken effect.
    pub(crate) fn note(&self, key: &[u8], outcome: &Outcome) {
        let deleted = match outcome {
            Outcome::Deleted {
                version: ObjectVersion(0),
                ..
            } => return,
            Outcome::Deleted { version, .. } => Some(*version),
            Outcome::Written { .. } => None,
            Outcome::Unchanged { .. }
            | Outcome::Rejected { .. }
            | Outcome::Refused(_)
            | Outcome::Together { .. } => return,
        };
        self.notes().add(key, deleted);
    }

    /// Of the frozen tablet.
    fn results(&self, store: &Engine, now: Duration) -> Arc<LeavingResults> {
        let mut results = self.results.lock().unwrap_or_else(PoisonError::into_inner);
        let collect = || Arc::new(store.results_of(&self.table, self.range, now));
        Arc::clone(results.get_or_insert_with(collect))
    }

    fn old(&self) -> MutexGuard<'_, OldMaps> {
        self.old.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether all operations have ended that began under another phase of the tablet (MIG-3).
    fn is_settled(&self) -> bool {
        self.old().is_gone()
    }
}

/// How far a migration is here.
struct Move {
    leaving: Arc<Leaving>,
    is_ending: bool,
}

#[derive(Default)]
struct Inner {
    moves: BTreeMap<MigrationId, Move>,
    ended: Ended,
    /// The ranges that this life of the server has given away: later stays there must begin anew
    /// (JOIN-1).
    departed: BTreeMap<TableId, Departed>,
}

/// The ranges of one table that this life of the server has given away.
#[derive(Default)]
struct Departed {
    ranges: Vec<HashRange>,
    /// The newest version of the metadata that said so.
    version: MetadataVersion,
}

impl Departed {
    fn has(&self, range: HashRange) -> bool {
        self.ranges.iter().any(|left| left.overlaps(&range))
    }
}

/// All tablets that leave, and those that have left.
#[derive(Default)]
pub(crate) struct Leavings(Mutex<Inner>);

fn over() -> Refusal {
    Refusal::fatal(FatalKind::Stale, "the migration is over")
}

impl Leavings {
    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The migration that a change of this key must be noted for.
    ///
    /// # Errors
    /// `Retry` when there is no room for the note (MOVE-4).
    #[inline]
    pub(crate) fn of(&self, served: &Served<'_>) -> Result<Option<Arc<Leaving>>, Refusal> {
        match served.phase {
            TabletPhase::Copying => self.copying(served.table, served.hash),
            TabletPhase::Serving
            | TabletPhase::Standing
            | TabletPhase::Recovering
            | TabletPhase::Frozen
            | TabletPhase::Left => Ok(None),
        }
    }

    fn copying(&self, table: &EngineTable, hash: KeyHash) -> Result<Option<Arc<Leaving>>, Refusal> {
        let inner = self.inner();
        let leaving = inner.moves.values().map(|m| &m.leaving);
        let mut leaving = leaving.filter(|l| l.table.id() == table.id() && l.range.contains(hash));
        let Some(leaving) = leaving.next().cloned() else {
            return Ok(None);
        };
        drop(inner);
        if leaving.notes().is_full() {
            return Err(Refusal::retry(NOTES_RETRY, RetryReason::Busy));
        }
        Ok(Some(leaving))
    }

    /// Whether something of this range has left since the server started.
    pub(crate) fn were_here(&self, table: TableId, range: HashRange) -> bool {
        let inner = self.inner();
        let departed = inner.departed.get(&table);
        departed.is_some_and(|departed| departed.has(range))
    }

    /// Whether a request to begin this range anew is older than its departure from here (MIG-7).
    pub(crate) fn left_after(
        &self,
        version: MetadataVersion,
        (table, range): (TableId, HashRange),
    ) -> bool {
        let inner = self.inner();
        let departed = inner.departed.get(&table);
        departed.is_some_and(|departed| departed.has(range) && version < departed.version)
    }

    /// The table is gone, and its id is never used again.
    pub(crate) fn table_dropped(&self, table: TableId) {
        self.inner().departed.remove(&table);
    }

    /// The migration that a receiver asks for; begins with the first request.
    fn begin(&self, tablets: &TabletMap, request: &GetTabletData) -> Result<Arc<Leaving>, Refusal> {
        let (id, spec) = (request.migration, &request.tablet);
        let mut inner = self.inner();
        if inner.ended.has(id) {
            return Err(over());
        }
        if let Some(known) = inner.moves.get(&id) {
            return if known.is_ending {
                Err(over())
            } else {
                Ok(Arc::clone(&known.leaving))
            };
        }
        let table = {
            let map = tablets.snapshot();
            Arc::clone(&map.get(&spec.table).ok_or(Refusal::Refresh)?.table)
        };
        // Whoever sees the new phase waits for `inner`, so that the migration is there when it
        // looks for it.
        let (serving, copying) = (&[TabletPhase::Serving], TabletPhase::Copying);
        let old = tablets.shift(spec.table, spec.range, serving, copying);
        let old = old.ok_or_else(Master::not_ready)?;
        tracing::info!(migration = %id, table = %spec.table, range = %spec.range, "a tablet is being copied from here");
        let leaving = Arc::new(Leaving {
            id,
            table,
            range: spec.range,
            notes: Mutex::default(),
            old: Mutex::new(old),
            frozen: OnceLock::new(),
            results: Mutex::default(),
        });
        let known = Move {
            leaving: Arc::clone(&leaving),
            is_ending: false,
        };
        inner.moves.insert(id, known);
        Ok(leaving)
    }

    /// Operations come again later from now on (MOVE-1).
    fn freeze(&self, tablets: &TabletMap, leaving: &Leaving) -> Result<(), Refusal> {
        let inner = self.inner();
        // Otherwise a late request would freeze what is served again.
        if inner.moves.get(&leaving.id).is_none_or(|m| m.is_ending) {
            return Err(over());
        }
        let from = &[TabletPhase::Copying, TabletPhase::Frozen];
        let old = tablets.shift(leaving.table.id(), leaving.range, from, TabletPhase::Frozen);
        *leaving.old() = old.ok_or(Refusal::Refresh)?;
        Ok(())
    }

    /// Lets a migration end; `None` when it has, or never began here.
    fn begin_to_end(&self, id: MigrationId) -> Result<Option<Arc<Leaving>>, Refusal> {
        let mut inner = self.inner();
        match inner.moves.get_mut(&id) {
            None => {
                inner.ended.add(id);
                Ok(None)
            }
            Some(known) if known.is_ending => {
                Err(Refusal::retry(ENDING_RETRY, RetryReason::InProgress))
            }
            Some(known) => {
                known.is_ending = true;
                Ok(Some(Arc::clone(&known.leaving)))
            }
        }
    }

    fn departs(&self, leaving: &Leaving, version: MetadataVersion) {
        let mut inner = self.inner();
        let departed = inner.departed.entry(leaving.table.id()).or_default();
        departed.version = departed.version.max(version);
        add_range(&mut departed.ranges, leaving.range);
    }

    fn end(&self, id: MigrationId) {
        let mut inner = self.inner();
        inner.moves.remove(&id);
        inner.ended.add(id);
    }
}

/// As much of a part as there is.
fn within<'a, T>(all: &'a [T], part: &Range<usize>) -> &'a [T] {
    let end = part.end.min(all.len());
    &all[part.start.min(end)..end]
}

/// Joins a range with those that it overlaps.
fn add_range(ranges: &mut Vec<HashRange>, range: HashRange) {
    let mut joined = range;
    ranges.retain(|known| {
        let overlaps = known.overlaps(&joined);
        if overlaps {
            joined = HashRange::new(known.first.min(joined.first), known.last.max(joined.last));
        }
        !overlaps
    });
    ranges.push(joined);
}

impl Master {
    /// Gives the receiver of a tablet the next part of it.
    ///
    /// # Errors
    /// `Retry` while the tablet is not served here yet; `Refresh` when it is not here; fatal when
    /// the migration is over.
    pub async fn give_tablet_data(
        self: &Arc<Self>,
        request: GetTabletData,
    ) -> Result<GetTabletDataReply, Refusal> {
        let leaving = self.leaving.begin(self.tablets(), &request)?;
        if let TabletPart::LastChanges(_) = request.part {
            if !self.is_frozen(&leaving) {
                // Clients of a frozen tablet would wait for it.
                self.all_durable(&leaving.table).await?;
            }
            self.leaving.freeze(self.tablets(), &leaving)?;
            // A receiver that had no answer asks again.
            leaving.frozen.get_or_init(|| self.env.clock.now());
        }
        until_gone(&*self.env.clock, || leaving.is_settled()).await;
        match request.part {
            TabletPart::Objects(from) => self.objects_of(leaving, from).await,
            TabletPart::Changes(after) | TabletPart::LastChanges(after) => {
                self.changes_of(leaving, after).await
            }
            TabletPart::Results(from) => self.results_of(leaving, from).await,
        }
    }

    async fn objects_of(
        &self,
        leaving: Arc<Leaving>,
        from: Rank,
    ) -> Result<GetTabletDataReply, Refusal> {
        let store = Arc::clone(self.store());
        let copy = move || store.copy_objects(&leaving.table, leaving.range, from, PART_BYTES);
        let copied = self.elsewhere(copy).await.ok_or_else(Self::not_ready)?;
        Ok(GetTabletDataReply {
            next: copied.next.map(|rank| rank.0),
            data: Bytes::from(copied.data),
            ..GetTabletDataReply::default()
        })
    }

    async fn changes_of(
        &self,
        leaving: Arc<Leaving>,
        after: u64,
    ) -> Result<GetTabletDataReply, Refusal> {
        let (store, now_s) = (Arc::clone(self.store()), self.now_s());
        let frozen = leaving.frozen.get().copied();
        let copy = move || {
            let changes = {
                let mut notes = leaving.notes();
                notes.confirm(after);
                notes.behind(after, PART_CHANGES)
            };
            let (mut data, mut next, mut given) = (Vec::new(), None, 0);
            for (number, note) in changes {
                store.copy_change(&leaving.table, &note.key, note.deleted, now_s, &mut data);
                next = Some(number);
                given += 1;
                if data.len() >= PART_BYTES {
                    break;
                }
            }
            let left = leaving.notes().len().saturating_sub(given) as u64;
            GetTabletDataReply {
                next,
                left,
                data: Bytes::from(data),
                ..GetTabletDataReply::default()
            }
        };
        let reply = self.elsewhere(copy).await.ok_or_else(Self::not_ready)?;
        let now = self.env.clock.now();
        let frozen_us = frozen.map(|since| micros(now.since(since)));
        Ok(GetTabletDataReply { frozen_us, ..reply })
    }

    fn is_frozen(&self, leaving: &Leaving) -> bool {
        let snapshot = self.tablets().snapshot();
        let local = snapshot.get(&leaving.table.id());
        let tablet = local.and_then(|local| local.tablet_of(leaving.range.first));
        tablet.is_some_and(|tablet| tablet.phase == TabletPhase::Frozen)
    }

    /// Waits until all is durable that was executed up to now and may concern this table (MOVE-6).
    ///
    /// # Errors
    /// `Retry` when replicas take long.
    async fn all_durable(&self, table: &EngineTable) -> Result<(), Refusal> {
        let space = self.store().space();
        let logs = self.store().logs_with(table);
        let ends: Vec<_> = logs.map(|log| (log, space.end_position(log))).collect();
        let durable = async {
            for (log, end) in ends {
                self.replication.synced(log, end).await;
            }
        };
        let within = timeout(&*self.env.clock, REPLICAS_MAX, durable).await;
        within.map_err(|_| {
            pluvio_units::mark("migration-waits-for-its-owners-replicas");
            Refusal::retry(Duration::ZERO, RetryReason::NotReady)
        })
    }

    async fn results_of(
        &self,
        leaving: Arc<Leaving>,
        from: u64,
    ) -> Result<GetTabletDataReply, Refusal> {
        // Before that, operations may be under way whose results would be missing (MIG-4).
        if !self.is_frozen(&leaving) {
            return Err(Refusal::malformed("results are given of a frozen tablet"));
        }
        self.all_durable(&leaving.table).await?;
        let (store, now) = (Arc::clone(self.store()), self.monotonic());
        let copy = move || {
            let all = leaving.results(&store, now);
            let from = usize::try_from(from).unwrap_or(usize::MAX);
            let part = from..from.saturating_add(PART_RESULTS);
            let last = all.records.len().max(all.acknowledged.len());
            let mut data = Vec::new();
            store.copy_results(within(&all.records, &part), &mut data);
            GetTabletDataReply {
                next: (part.end < last).then_some(part.end as u64),
                acknowledged: within(&all.acknowledged, &part).to_vec(),
                data: Bytes::from(data),
                ..GetTabletDataReply::default()
            }
        };
        self.elsewhere(copy).await.ok_or_else(Self::not_ready)
    }

    /// Forgets a tablet that has moved, or serves it again (MOVE-1); answers when that is done
    /// (MOVE-5).
    ///
    /// # Errors
    /// `Retry` while it is being done.
    pub async fn end_migration(
        self: &Arc<Self>,
        core: CoreId,
        request: EndMigration,
    ) -> Result<(), Refusal> {
        let Some(leaving) = self.leaving.begin_to_end(request.migration)? else {
            return Ok(());
        };
        let master = Arc::clone(self);
        let (done, ended) = oneshot::channel();
        // A task, because nobody may wait for the answer any more, and the end must not stay half
        // done.
        self.env.tasks.spawn(core, "migration ends", async move {
            master.finish_leaving(&leaving, &request).await;
            master.leaving.end(leaving.id);
            // Nobody waits any more.
            let _ = done.send(());
        });
        let again = |_| Refusal::retry(ENDING_RETRY, RetryReason::InProgress);
        ended.await.map_err(again)
    }

    async fn finish_leaving(self: &Arc<Self>, leaving: &Arc<Leaving>, end: &EndMigration) {
        let EndMigration { moved, version, .. } = *end;
        let (table, range) = (leaving.table.id(), leaving.range);
        tracing::info!(migration = %leaving.id, %table, %range, moved, "a migration from here has ended");
        let from = &[TabletPhase::Copying, TabletPhase::Frozen];
        if !moved {
            // None: the table was dropped.
            let _ = self
                .tablets()
                .shift(table, range, from, TabletPhase::Serving);
            return;
        }
        self.leaving.departs(leaving, version);
        if let Some(old) = self.tablets().shift(table, range, from, TabletPhase::Left) {
            *leaving.old() = old;
        }
        until_gone(&*self.env.clock, || leaving.is_settled()).await;
        self.forget(&leaving.table, range).await;
        self.remove_tablet(&leaving.table, range, || {
            self.tablets().remove_within(table, range);
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn range(first: u64, last: u64) -> HashRange {
        HashRange::new(KeyHash(first), KeyHash(last))
    }

    // shows: MIG-6
    #[test]
    fn ranges_that_have_left_are_joined() {
        let mut ranges = Vec::new();
        for (first, last) in [(10, 19), (30, 39), (15, 34), (50, 59), (10, 19)] {
            add_range(&mut ranges, range(first, last));
        }
        assert_eq!(ranges, [range(50, 59), range(10, 39)]);
    }
}
