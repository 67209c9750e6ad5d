//! Moving tablets between servers that are up [RAMCloud fig. 2]: the coordinator's part.
//!
//! ```text
//! Copying ──► Moved ──► (no record)          the receiver reported success
//!    └──────► Stays ──► (no record)          it failed, it crashed, or the table was dropped
//! ```
//! Each arrow is a stored change, and every message to servers follows from the record. As long as
//! it says `Copying`, the receiver is asked to take the tablet over. After that the former owner
//! hears how it ended, until it has confirmed. The owner of the tablet changes in the same stored
//! change that leads to `Moved`. A crash of the owner ends the record: recovery begins with the log
//! of the server that the tablet belongs to.

mod history;

use super::sizes::{free, live_max, log_bytes, share_of};
use crate::context::Context;
use crate::refusals::COME_AGAIN;
use crate::state::{MoveRecord, MoveStage, State, TABLETS_MAX, TableRecord};
use core::time::Duration;
use futures_util::future::join;
use history::History;
use pluvio_env::{Moment, timeout};
use pluvio_units::{KeyHash, MigrationId, SegmentId, ServerId, TableId};
use pluvio_wire::{
    CountObjects, EndMigration, FatalKind, GetMigrationReply, GetServerStatus, MigrateTablet,
    MigrateTabletReply, MigrationStatus, ReceiveTablet, Refusal, RetryReason, RpcError,
    TabletReceived, TabletReceivedReply, WhichTablet,
};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The pause after a server did not answer.
const RETRY: Duration = Duration::from_millis(100);
/// Servers that do not say within this time how full they are are taken to have room.
const LIMIT: Duration = Duration::from_millis(500);
/// How often the receiver is asked how far it is.
const PROGRESS: Duration = Duration::from_millis(500);
/// Most migrations that have not ended, of all tables: each takes memory for changes at its owner,
/// and a side log at its receiver.
const MOVES_MAX: usize = 64;

impl State {
    /// Stores that a tablet shall move, cutting it out of a larger one if need be.
    ///
    /// # Errors
    /// The range lies in no tablet, or the receiver can have none: fatal. The tablet is being cut,
    /// recovered or moved, or too many move: come again.
    pub(super) fn begin_move(
        &mut self,
        request: &MigrateTablet,
    ) -> Result<MigrateTabletReply, Refusal> {
        let table = self.find(&request.table)?;
        let (id, to) = (table.id, request.to);
        let first = match request.tablet {
            WhichTablet::Containing(hash) => hash,
            WhichTablet::Range(range) => range.first,
        };
        let tablet = table.tablets.iter().find(|t| t.range.contains(first));
        let tablet = *tablet.expect("tablets cover every hash (COORD-5)");
        let range = match request.tablet {
            WhichTablet::Containing(_) => tablet.range,
            WhichTablet::Range(range) => table.hash.widened(range),
        };
        if range.last < range.first || range.last > tablet.range.last {
            let message = format!(
                "{range} does not lie in one tablet; the one with its first hash is {}",
                tablet.range
            );
            return Err(Refusal::fatal(FatalKind::NotFound, message));
        }
        if tablet.owner == to && tablet.is_settled() {
            let migration = None;
            return Ok(MigrateTabletReply { migration, range });
        }
        let under_way = table.moves.iter().find(|m| m.range.overlaps(&range));
        if let Some(known) = under_way {
            let same = known.stage == MoveStage::Copying && known.to == to;
            if same && known.range == range {
                let migration = Some(known.id);
                return Ok(MigrateTabletReply { migration, range });
            }
            return Err(Refusal::retry(COME_AGAIN, RetryReason::TabletNotReady));
        }
        if !tablet.is_settled() {
            return Err(Refusal::retry(COME_AGAIN, RetryReason::TabletNotReady));
        }
        self.check_receiver(to)?;
        let ends = [Some(range.first.0), range.last.0.checked_add(1)];
        let inside = |at: &KeyHash| *at != tablet.range.first && tablet.range.contains(*at);
        let cuts: Vec<KeyHash> = ends
            .into_iter()
            .flatten()
            .map(KeyHash)
            .filter(inside)
            .collect();
        if self.tables[&id].tablets.len() + cuts.len() > TABLETS_MAX {
            let message = format!("the table has {TABLETS_MAX} tablets, the most it can have");
            return Err(Refusal::fatal(FatalKind::Other, message));
        }
        let all = self.tables.values().map(|t| t.moves.len()).sum::<usize>();
        if all >= MOVES_MAX {
            return Err(Refusal::retry(COME_AGAIN, RetryReason::Busy));
        }
        let migration = self.globals.last_migration.next();
        self.globals.last_migration = migration;
        let table = self.table_mut(id).expect("it was just found");
        for at in cuts {
            if table.cut(at) {
                table.cuts.push(at);
            }
        }
        table.moves.push(MoveRecord {
            id: migration,
            range,
            from: tablet.owner,
            to,
            stage: MoveStage::Copying,
        });
        let migration = Some(migration);
        Ok(MigrateTabletReply { migration, range })
    }

    /// Which servers may receive a tablet: those that keep replicas. A tablet of a server without
    /// replicas begins anew under the same id when that one crashes (COORD-23). A tablet that has
    /// replicas must never do that.
    fn check_receiver(&self, to: ServerId) -> Result<(), Refusal> {
        let refuse = |message: String| Err(Refusal::fatal(FatalKind::NotFound, message));
        if !self.is_up(to) {
            return refuse(format!(
                "server {to} is not up: `pluvio status` lists those that are"
            ));
        }
        if self.servers[&to].info.draining {
            return refuse(format!(
                "server {to} is drained: tablets move to servers that stay; `pluvio drain --cancel {to}` takes it back"
            ));
        }
        if self.servers[&to].info.volatile {
            return refuse(format!(
                "server {to} keeps no replicas (--replicas 0): tablets move to servers that do"
            ));
        }
        Ok(())
    }

    /// Decides what becomes of a tablet that was received, or could not be. Says whether the
    /// receiver has it (COORD-6).
    ///
    /// # Errors
    /// The receiver is of another cluster, or no member any more. It may have been given the tablet
    /// before: its log is recovered, and must keep what was copied to it (COORD-11).
    fn settle_move(&mut self, report: &TabletReceived) -> Result<bool, Refusal> {
        let (id, server) = (report.migration, report.server);
        self.check_report(report.cluster, server)?;
        let mut tablets = self.tables.values().flat_map(|t| &t.tablets);
        if tablets.any(|t| t.owner == server && t.moved_by == Some(id)) {
            return Ok(true);
        }
        let wanted = |m: &MoveRecord| m.id == id && m.to == server && m.stage == MoveStage::Copying;
        let mut tables = self.tables.values();
        let Some(table) = tables.find(|t| t.moves.iter().any(wanted)).map(|t| t.id) else {
            return Ok(false);
        };
        let table = self.table_mut(table).expect("it was just found");
        let record = table.find_move(id).expect("it was just found");
        let range = record.range;
        if report.result.is_err() {
            record.stage = MoveStage::Stays;
            return Ok(false);
        }
        record.stage = MoveStage::Moved;
        let tablet = table.tablets.iter_mut().find(|t| t.range == range);
        let tablet = tablet.expect("a tablet that is copied is there (COORD-7)");
        tablet.owner = server;
        tablet.recovered_by = None;
        tablet.moved_by = Some(id);
        tablet.since = report.since;
        Ok(true)
    }

    /// The tablet stays where it is, if that is not decided otherwise (MIG-1).
    fn give_up_move(&mut self, table: TableId, id: MigrationId) {
        if let Some(record) = self.table_mut(table).and_then(|t| t.find_move(id))
            && record.stage == MoveStage::Copying
        {
            record.stage = MoveStage::Stays;
        }
    }

    fn move_of(&self, table: TableId, id: MigrationId) -> Option<MoveRecord> {
        let moves = &self.tables.get(&table)?.moves;
        moves.iter().find(|m| m.id == id).copied()
    }
}

/// The work of `Work::Migrate`, and the requests that concern it.
pub(crate) struct Migrations {
    context: Arc<Context>,
    history: Mutex<History>,
}

impl Migrations {
    pub(super) fn new(context: Arc<Context>) -> Self {
        Self {
            context,
            history: Mutex::default(),
        }
    }

    fn history(&self) -> MutexGuard<'_, History> {
        // Held for single steps.
        self.history.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Migrations under way, and the latest that ended, oldest first.
    pub(crate) fn list(&self) -> Vec<MigrationStatus> {
        self.history().list(self.context.now())
    }

    /// Answers when it is stored that a tablet shall move, on behalf of a caller that did not look
    /// whether there is room.
    ///
    /// # Errors
    /// See [`State::begin_move`]. Also fatal when the receiver has no room; nothing has happened
    /// then. A receiver that fills up while it copies keeps its own clients waiting until it gives
    /// up.
    pub(crate) async fn migrate_for_caller(
        &self,
        request: MigrateTablet,
    ) -> Result<MigrateTabletReply, Refusal> {
        self.check_room(&request).await?;
        let to = request.to;
        let begin = move |state: &mut State| state.begin_move(&request);
        self.begin(to, begin).await
    }

    /// Says nothing when one of them does not answer, or the request is wrong in another way.
    async fn check_room(&self, request: &MigrateTablet) -> Result<(), Refusal> {
        let state = self.context.state();
        let Ok(table) = state.find(&request.table) else {
            return Ok(());
        };
        let first = match request.tablet {
            WhichTablet::Containing(hash) => hash,
            WhichTablet::Range(range) => range.first,
        };
        let mut tablets = table.tablets.iter();
        let Some(tablet) = tablets.find(|t| t.range.contains(first)) else {
            return Ok(());
        };
        let range = match request.tablet {
            WhichTablet::Containing(_) => tablet.range,
            WhichTablet::Range(range) => range,
        };
        let servers = (tablet.owner, request.to);
        let servers = (state.servers.get(&servers.0), state.servers.get(&servers.1));
        let (Some(from), Some(to)) = servers else {
            return Ok(());
        };
        // One that is under way already has its room, or a part of it.
        let is_new = !table.moves_within(tablet.range) && tablet.owner != request.to;
        if !is_new || range.last < range.first || range.last > tablet.range.last {
            return Ok(());
        }
        let (calls, count) = (&self.context.calls, CountObjects { table: table.id });
        let asked = join(
            calls.call(&from.info, &count, LIMIT),
            calls.call(&to.info, &GetServerStatus {}, LIMIT),
        );
        let (Ok(count), Ok(room)) = asked.await else {
            return Ok(());
        };
        let bytes = share_of(table, tablet.owner, range, log_bytes(&count));
        let free = free(&room);
        if bytes <= free || live_max(&room) == 0 {
            return Ok(());
        }
        let message = format!(
            "server {} has no room for it: the tablet has about {} MiB, and {} MiB are free there; choose another server, a part of the tablet, or delete objects",
            request.to,
            bytes >> 20,
            free >> 20
        );
        Err(Refusal::fatal(FatalKind::Other, message))
    }

    /// Answers when `begin` has stored that a tablet shall move to this server. A work that looks
    /// at the cluster for a while judges in `begin` whether it still wants the move.
    ///
    /// # Errors
    /// Those of `begin`, and of a store that takes nothing.
    pub(super) async fn begin(
        &self,
        to: ServerId,
        begin: impl FnOnce(&mut State) -> Result<MigrateTabletReply, Refusal> + Send + 'static,
    ) -> Result<MigrateTabletReply, Refusal> {
        let reply = self.context.ledger.change_for_caller(begin).await?;
        if let Some(migration) = reply.migration {
            tracing::info!(%migration, range = %reply.range, %to, "migration requested");
        }
        Ok(reply)
    }

    /// What is known of a migration.
    pub(crate) fn get(&self, id: MigrationId) -> GetMigrationReply {
        let state = self.context.state();
        let mut tables = state.tables.values();
        let under_way = tables.find_map(|t| Some((t, t.moves.iter().find(|m| m.id == id)?)));
        if let Some((table, record)) = under_way {
            self.note_begin(table, record);
        }
        let status = self.history().get(id, self.context.now());
        GetMigrationReply { status }
    }

    fn note_begin(&self, table: &TableRecord, record: &MoveRecord) {
        let now = self.context.now();
        self.history().begin(table, record, now);
    }

    /// Ends when the migration has ended for everybody.
    pub(super) async fn migrate(&self, table: TableId, id: MigrationId) {
        let began = self.context.now();
        let mut moved = false;
        loop {
            let state = self.context.state();
            let Some(record) = state.move_of(table, id) else {
                break;
            };
            self.note_begin(&state.tables[&table], &record);
            match record.stage {
                MoveStage::Copying => self.copy(&state, table, &record, began).await,
                MoveStage::Moved => {
                    moved = true;
                    self.history().moved(id);
                    self.notify_owner(&state, table, &record, true).await;
                }
                MoveStage::Stays => self.notify_owner(&state, table, &record, false).await,
            }
        }
        let now = self.context.now();
        let status = self.history().finish(id, moved, now);
        if let Some(status) = status {
            tracing::info!(
                migration = %id, %table, range = %status.range, from = %status.from, to = %status.to,
                moved = status.moved, ms = status.duration_ms, bytes = status.progress.bytes,
                objects = status.progress.objects, phase = status.phase, "migration ended"
            );
        }
    }

    /// Asks the receiver to take the tablet over, and how far it is.
    async fn copy(&self, state: &State, table: TableId, record: &MoveRecord, began: Moment) {
        let id = record.id;
        let table_record = &state.tables[&table];
        let tablet = table_record
            .tablets
            .iter()
            .find(|t| t.range == record.range);
        let tablet = tablet.expect("a tablet that is copied is there (COORD-7)");
        let mut spec = table_record.spec(tablet);
        // That is about its owner's log.
        spec.since = SegmentId(0);
        let request = ReceiveTablet {
            migration: id,
            tablet: spec,
            from: record.from,
        };
        let pause = match self
            .context
            .calls
            .call_while_up(&state.servers[&record.to].info, &request)
            .await
        {
            None => Duration::ZERO,
            Some(Ok(progress)) => {
                self.history().copying(id, progress);
                PROGRESS
            }
            Some(Err(RpcError::Refused(Refusal::Fatal { message, .. }))) => {
                self.give_up_migration(table, id, message).await;
                return;
            }
            Some(Err(error)) => {
                tracing::debug!(migration = %id, %error, "the receiver does not take the tablet yet");
                self.history().waiting(id, error.to_string());
                RETRY
            }
        };
        if self.context.now().since(began) > self.context.options.migration_limit {
            let why = "it took too long".into();
            self.give_up_migration(table, id, why).await;
            return;
        }
        let record = *record;
        let changed = self
            .context
            .ledger
            .until(|state| state.move_of(table, id) != Some(record));
        // Both ends mean the same: look again.
        let _ = timeout(&*self.context.env.clock, pause, changed).await;
    }

    async fn give_up_migration(&self, table: TableId, id: MigrationId, why: String) {
        pluvio_units::mark("migration-given-up");
        tracing::info!(migration = %id, why, "a migration is given up");
        self.history().failed(id, why);
        let stored = self.context.ledger.change(move |state| {
            state.give_up_move(table, id);
            Ok(())
        });
        if stored.await.is_err() {
            self.context.sleep(RETRY).await;
        }
    }

    /// Lets the former owner know how it ended, and removes the record once it has confirmed
    /// (MIG-8).
    async fn notify_owner(&self, state: &State, table: TableId, record: &MoveRecord, moved: bool) {
        let id = record.id;
        let request = EndMigration {
            migration: id,
            moved,
            version: state.globals.version,
        };
        let owner = &state.servers[&record.from].info;
        match self.context.calls.call_while_up(owner, &request).await {
            None => {
                pluvio_units::mark("migration-owner-crashed");
                return;
            }
            Some(Ok(())) => {}
            Some(Err(error)) => {
                tracing::debug!(migration = %id, %error, "the end of a migration is not confirmed");
                self.context.sleep(RETRY).await;
                return;
            }
        }
        let stored = self.context.ledger.change(move |state| {
            if let Some(table) = state.table_mut(table) {
                table.moves.retain(|m| m.id != id);
            }
            Ok(())
        });
        if stored.await.is_err() {
            self.context.sleep(RETRY).await;
        }
    }

    /// A receiver has a tablet, or could not get it.
    pub(crate) async fn tablet_received(
        &self,
        report: TabletReceived,
    ) -> Result<TabletReceivedReply, Refusal> {
        let id = report.migration;
        self.context
            .state()
            .check_report(report.cluster, report.server)?;
        match &report.result {
            Ok(progress) => self.history().copying(id, *progress),
            Err(why) => {
                pluvio_units::mark("migration-not-received");
                tracing::info!(migration = %id, server = %report.server, why, "a tablet was not received");
                self.history().failed(id, why.clone());
            }
        }
        let accepted = self
            .context
            .ledger
            .change(move |state| state.settle_move(&report))
            .await?;
        if accepted {
            // Here, too: the former owner may crash before the work looks, and that ends the
            // record.
            self.history().moved(id);
        }
        Ok(TabletReceivedReply { accepted })
    }
}

#[cfg(test)]
mod tests;
