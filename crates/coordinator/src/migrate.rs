//! Moving tablets between servers that are up (003 fig. 2): the coordinator's part.
//!
//! ```text
//! Copying ──► Moved ──► (no record)          the receiver reported success
//!    └──────► Stays ──► (no record)          it failed, it crashed, or the table was dropped
//! ```
//! Each arrow is a stored change, and everything told to servers follows from the record: as long
//! as it says `Copying` the receiver is asked to take the tablet over, otherwise the former owner
//! is told how it ended, until it has confirmed. Who owns the tablet changes in the same stored
//! change that leads to `Moved`. A crash of the owner ends the record: recovery begins with the log
//! of the one that the tablet belongs to.

mod history;

pub(crate) use history::MoveHistory;

use crate::shared::Shared;
use crate::state::{MoveRecord, MoveStage, State, TableRecord};
use crate::tables::{COME_AGAIN, TABLETS_MAX};
use core::time::Duration;
use pluvio_env::{Moment, timeout};
use pluvio_units::{HashRange, KeyHash, MigrationId, SegmentId, ServerId, TableId};
use pluvio_wire::{
    EndMigration, FatalKind, GetMigrationReply, MigrateTablet, MigrateTabletReply, ReceiveTablet,
    Refusal, RetryReason, RpcError, TabletReceived, TabletReceivedReply, TabletState, WhichTablet,
};
use std::sync::Arc;

/// The pause after a server did not answer.
const RETRY: Duration = Duration::from_millis(100);
/// How often the receiver is asked how far it is.
const PROGRESS: Duration = Duration::from_millis(500);
/// Most migrations that have not ended, of all tables: each takes memory for changes at its owner,
/// and a side log at its receiver.
const MOVES_MAX: usize = 64;

impl MoveRecord {
    pub(crate) fn concerns(&self, server: ServerId) -> bool {
        self.from == server || self.to == server
    }
}

impl TableRecord {
    /// Whether a migration of something in this range has not ended for everybody.
    pub(crate) fn moves_within(&self, range: HashRange) -> bool {
        self.moves.iter().any(|m| m.range.overlaps(&range))
    }

    fn find_move(&mut self, id: MigrationId) -> Option<&mut MoveRecord> {
        self.moves.iter_mut().find(|m| m.id == id)
    }

    /// All migrations that are under way end without effect.
    pub(crate) fn give_up_moves(&mut self) {
        for record in &mut self.moves {
            if record.stage == MoveStage::Copying {
                record.stage = MoveStage::Stays;
            }
        }
    }

    /// A server has crashed: what it owned is recovered from its log, and what it was to receive
    /// stays where it is.
    pub(crate) fn end_moves_of(&mut self, server: ServerId) {
        self.moves.retain(|m| m.from != server);
        for record in &mut self.moves {
            if record.to == server && record.stage == MoveStage::Copying {
                record.stage = MoveStage::Stays;
            }
        }
    }
}

impl State {
    /// Whether COORD-7 holds for a table.
    ///
    /// # Errors
    /// The migration that breaks it, for people.
    pub(crate) fn moves_hold(&self, table: &TableRecord) -> Result<(), String> {
        for (at, record) in table.moves.iter().enumerate() {
            let others = &table.moves[at + 1..];
            let overlaps = others.iter().any(|m| m.range.overlaps(&record.range));
            let is_there = table.tablets.iter().any(|t| {
                t.range == record.range && t.owner == record.from && t.state == TabletState::Normal
            });
            let may_copy = is_there && self.is_up(record.to) && !table.dropping;
            let may_be = record.stage != MoveStage::Copying || may_copy;
            if overlaps || !self.is_up(record.from) || !may_be {
                return Err(format!("table {}: {record:?} (COORD-7)", table.id));
            }
        }
        Ok(())
    }

    /// Stores that a tablet shall move, cutting it out of a larger one if need be.
    fn begin_move(&mut self, request: &MigrateTablet) -> Result<MigrateTabletReply, Refusal> {
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
            WhichTablet::Range(range) => range,
        };
        if range.last < range.first || range.last > tablet.range.last {
            let message = format!(
                "{range} does not lie in one tablet; the one with its first hash is {}",
                tablet.range
            );
            return Err(Refusal::fatal(FatalKind::NotFound, message));
        }
        if tablet.owner == to && tablet.state == TabletState::Normal {
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
        if tablet.state != TabletState::Normal {
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

    /// Who may receive a tablet. What has replicas must not end on a server that keeps none, and
    /// what a server without has lost begins anew under the same id (`prepare_recovery`), which
    /// nothing that moved must do.
    fn check_receiver(&self, to: ServerId) -> Result<(), Refusal> {
        let refuse = |message: String| Err(Refusal::fatal(FatalKind::NotFound, message));
        if !self.is_up(to) {
            return refuse(format!(
                "server {to} is not up: `pluvio status` lists those that are"
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

impl Shared {
    /// Answers when it is stored that the tablet shall move.
    pub(crate) async fn migrate_tablet(
        self: Arc<Self>,
        request: MigrateTablet,
    ) -> Result<MigrateTabletReply, Refusal> {
        let to = request.to;
        let begin = move |state: &mut State| state.begin_move(&request);
        let reply = self.change_for_caller(begin).await?;
        if let Some(migration) = reply.migration {
            tracing::info!(%migration, range = %reply.range, %to, "migration requested");
        }
        Ok(reply)
    }

    /// What is known of a migration.
    pub(crate) fn migration(&self, id: MigrationId) -> GetMigrationReply {
        let state = self.state();
        let mut tables = state.tables.values();
        let under_way = tables.find_map(|t| Some((t, t.moves.iter().find(|m| m.id == id)?)));
        if let Some((table, record)) = under_way {
            self.begin_history(table, record);
        }
        let status = self.memory().moves.get(id, self.env.clock.now());
        GetMigrationReply { status }
    }

    fn begin_history(&self, table: &TableRecord, record: &MoveRecord) {
        let now = self.env.clock.now();
        self.memory().moves.begin(table, record, now);
    }

    /// Ends when the migration has ended for everybody.
    pub(crate) async fn migrate(self: &Arc<Self>, table: TableId, id: MigrationId) {
        let began = self.env.clock.now();
        let mut moved = false;
        loop {
            let state = self.state();
            let Some(record) = state.move_of(table, id) else {
                break;
            };
            self.begin_history(&state.tables[&table], &record);
            match record.stage {
                MoveStage::Copying => self.let_copy(&state, table, &record, began).await,
                MoveStage::Moved => {
                    moved = true;
                    self.memory().moves.moved(id);
                    self.tell_owner(&state, table, &record, true).await;
                }
                MoveStage::Stays => self.tell_owner(&state, table, &record, false).await,
            }
        }
        let now = self.env.clock.now();
        let status = self.memory().moves.finish(id, moved, now);
        if let Some(status) = status {
            tracing::info!(
                migration = %id, %table, range = %status.range, from = %status.from, to = %status.to,
                moved = status.moved, ms = status.duration_ms, bytes = status.progress.bytes,
                objects = status.progress.objects, phase = status.phase, "migration ended"
            );
        }
    }

    /// Asks the receiver to take the tablet over, and how far it is.
    async fn let_copy(
        self: &Arc<Self>,
        state: &State,
        table: TableId,
        record: &MoveRecord,
        began: Moment,
    ) {
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
            .call_while_up(&state.servers[&record.to].info, &request)
            .await
        {
            None => Duration::ZERO,
            Some(Ok(progress)) => {
                self.memory().moves.copying(id, progress);
                PROGRESS
            }
            Some(Err(RpcError::Refused(Refusal::Fatal { message, .. }))) => {
                self.give_up_migration(table, id, message).await;
                return;
            }
            Some(Err(error)) => {
                tracing::debug!(migration = %id, %error, "the receiver does not take the tablet yet");
                self.memory().moves.waiting(id, error.to_string());
                RETRY
            }
        };
        if self.env.clock.now().since(began) > self.options.migration_limit {
            let why = "it took too long".into();
            self.give_up_migration(table, id, why).await;
            return;
        }
        let record = *record;
        let changed = self.until(|state| state.move_of(table, id) != Some(record));
        // Both ends mean the same: look again.
        let _ = timeout(&*self.env.clock, pause, changed).await;
    }

    async fn give_up_migration(self: &Arc<Self>, table: TableId, id: MigrationId, why: String) {
        pluvio_units::mark("migration-given-up");
        tracing::info!(migration = %id, why, "a migration is given up");
        self.memory().moves.failed(id, why);
        let stored = self.change(move |state| {
            state.give_up_move(table, id);
            Ok(())
        });
        if stored.await.is_err() {
            self.env.clock.sleep(RETRY).await;
        }
    }

    /// Tells the former owner how it ended, until it has confirmed or crashed (MIG-8).
    async fn tell_owner(
        self: &Arc<Self>,
        state: &State,
        table: TableId,
        record: &MoveRecord,
        moved: bool,
    ) {
        let id = record.id;
        let request = EndMigration {
            migration: id,
            moved,
        };
        let owner = &state.servers[&record.from].info;
        match self.call_while_up(owner, &request).await {
            None => {
                pluvio_units::mark("migration-owner-crashed");
                return;
            }
            Some(Ok(())) => {}
            Some(Err(error)) => {
                tracing::debug!(migration = %id, %error, "the end of a migration is not confirmed");
                self.env.clock.sleep(RETRY).await;
                return;
            }
        }
        let stored = self.change(move |state| {
            if let Some(table) = state.table_mut(table) {
                table.moves.retain(|m| m.id != id);
            }
            Ok(())
        });
        if stored.await.is_err() {
            self.env.clock.sleep(RETRY).await;
        }
    }

    /// A receiver has a tablet, or could not get it.
    pub(crate) async fn tablet_received(
        self: Arc<Self>,
        report: TabletReceived,
    ) -> Result<TabletReceivedReply, Refusal> {
        let id = report.migration;
        self.state().check_report(report.cluster, report.server)?;
        match &report.result {
            Ok(progress) => self.memory().moves.copying(id, *progress),
            Err(why) => {
                pluvio_units::mark("migration-not-received");
                tracing::info!(migration = %id, server = %report.server, why, "a tablet was not received");
                self.memory().moves.failed(id, why.clone());
            }
        }
        let accepted = self.change(move |state| state.settle_move(&report)).await?;
        Ok(TabletReceivedReply { accepted })
    }
}

#[cfg(test)]
mod tests;
