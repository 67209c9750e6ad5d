//! Going on without a part of a crashed server's log, because somebody said so (F11).
//!
//! - COORD-19: only a request that names exactly the missing part lets a recovery go on without it.
//!   Every server that is up must have said what it has. The part given up is stored before
//!   anything is replayed. Recovery still waits for everything that was there at that time.
//!
//! The log that is left proves less than a whole one. A server that was declared dead may still
//! run, out of reach together with the backups that are missing, and go on serving. Whoever gives
//! up says that those processes do not run.

use super::Recoveries;
use super::inventory::collect;
use super::plan::{Stats, lost_part};
use crate::state::{GivenUp, State};
use pluvio_units::{LogId, SEGMENT_BYTES, ServerId};
use pluvio_wire::{
    FatalKind, GiveUpLost, GiveUpReply, Loss, LostTable, Refusal, RetryReason, ServerState,
    TabletState,
};
use std::collections::BTreeSet;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;
use std::time::Duration;

/// Most losses that are remembered, for people.
const LOSSES_MAX: usize = 16;
/// Most segments and tables that a loss names.
const NAMED_MAX: usize = 32;
/// Most bytes of the name of the one that asks.
const BY_MAX: usize = 128;
/// No object takes fewer bytes of a log.
const OBJECT_BYTES_MIN: u64 = 12;

impl Recoveries {
    /// Says what is lost of a crashed server's log, or lets its recovery go on without (COORD-19).
    ///
    /// # Errors
    /// See [`GiveUpLost`].
    pub(crate) async fn give_up(&self, request: GiveUpLost) -> Result<GiveUpReply, Refusal> {
        let server = request.server;
        self.context.state().check_given_up(server)?;
        let inventories = collect(&self.context, server).await;
        let state = self.context.state();
        let record = state.check_given_up(server)?;
        let answered: BTreeSet<ServerId> = inventories.iter().map(|i| i.backup).collect();
        if let Some(silent) = state.up().find(|s| !answered.contains(&s.id)) {
            let silent = silent.id;
            tracing::info!(%server, %silent, "nothing is given up: a server that is up has not said what it has");
            return Err(Refusal::retry(
                Duration::from_millis(200),
                RetryReason::Busy,
            ));
        }
        let settled = record.ends_bind.then(|| record.ends());
        let given_up = record.given_up.as_ref();
        let weak = state.weak_logs(record);
        let lost = lost_part(
            &inventories,
            &record.epochs,
            settled.as_ref(),
            given_up,
            &weak,
        );
        let Some((lost, stats)) = lost else {
            return Err(refused(format!(
                "nothing is missing of the log of server {server}: it is recovered without this"
            )));
        };
        let mut loss = state.loss(server, &lost, stats.as_ref());
        let Some(confirmed) = request.confirmed else {
            return Ok(GiveUpReply {
                loss,
                recorded: false,
            });
        };
        if confirmed != loss.token {
            return Err(refused(format!(
                "something else is missing of the log of server {server} by now: look at it again"
            )));
        }
        loss.at_s = self.context.env.clock.unix_seconds();
        loss.by = cut(&request.by, BY_MAX);
        let stored = loss.clone();
        let change = move |state: &mut State| state.record_loss(stored, lost);
        self.context.ledger.change(change).await?;
        pluvio_units::mark("recovery-gives-up");
        tracing::warn!(
            %server, by = loss.by, segments = loss.segments, logs = loss.logs.len(),
            tables = loss.tables_total,
            "A PART OF A CRASHED SERVER'S LOG IS GIVEN UP: its objects are lost, or older ones come back"
        );
        Ok(GiveUpReply {
            loss,
            recorded: true,
        })
    }
}

impl State {
    /// A server of whose log something may be given up.
    ///
    /// # Errors
    /// It is not crashed, or kept no replicas.
    fn check_given_up(&self, server: ServerId) -> Result<&crate::state::ServerRecord, Refusal> {
        let record = self.servers.get(&server);
        let crashed = record.filter(|record| record.info.state == ServerState::Crashed);
        let Some(record) = crashed else {
            let message = format!("server {server} is none that waits for recovery");
            return Err(Refusal::fatal(FatalKind::NotFound, message));
        };
        if record.info.volatile {
            return Err(refused(format!(
                "server {server} kept no replicas: there is nothing to wait for"
            )));
        }
        Ok(record)
    }

    /// What is missing, for people.
    fn loss(&self, server: ServerId, lost: &GivenUp, stats: Option<&Stats>) -> Loss {
        let waits = |t: &&crate::state::TabletRecord| {
            t.owner == server && t.state == TabletState::Recovering || t.stands_on == Some(server)
        };
        let tables: Vec<LostTable> = self
            .tables
            .values()
            .filter(|table| !table.dropping)
            .map(|table| LostTable {
                name: table.name.clone(),
                tablets: table.tablets.iter().filter(waits).count() as u64,
            })
            .filter(|table| table.tablets > 0)
            .collect();
        let logs: Vec<LogId> = lost.headless.keys().copied().collect();
        let segments = lost.segments.len() as u64;
        // Of logs without an end nobody knows how many segments they had. The statistics are older
        // than those, too.
        let is_known = lost.logs > 0 && logs.is_empty();
        let most = stats.filter(|_| is_known).map(|stats| {
            let loads = || stats.tables.values().chain([&stats.other]);
            let bytes: u64 = loads().map(|load| load.bytes).sum();
            let entries: u64 = loads().map(|load| load.entries).sum();
            let bytes = (bytes + stats.unaccounted).min(segments * SEGMENT_BYTES as u64);
            let entries = entries + stats.unaccounted / OBJECT_BYTES_MIN;
            (bytes, entries.min(bytes / OBJECT_BYTES_MIN))
        });
        let (bytes_max, objects_max) = most.unzip();
        let mut hasher = DefaultHasher::new();
        (server, lost).hash(&mut hasher);
        let address = self.servers.get(&server).map(|r| r.info.address.clone());
        Loss {
            server,
            address: address.unwrap_or_default(),
            at_s: 0,
            by: String::new(),
            segments,
            first_segments: lost.segments.iter().copied().take(NAMED_MAX).collect(),
            logs,
            logs_total: lost.logs,
            tables_total: tables.len() as u64,
            tables: tables.into_iter().take(NAMED_MAX).collect(),
            bytes_max,
            objects_max,
            token: hasher.finish(),
        }
    }

    /// Recovery goes on without this part from now on.
    fn record_loss(&mut self, loss: Loss, lost: GivenUp) -> Result<(), Refusal> {
        self.check_given_up(loss.server)?;
        if let Some(record) = self.servers.get_mut(&loss.server) {
            Arc::make_mut(record).given_up = Some(lost);
        }
        let losses = &mut self.globals.losses;
        losses.push(loss);
        let old = losses.len().saturating_sub(LOSSES_MAX);
        losses.drain(..old);
        Ok(())
    }
}

fn refused(message: String) -> Refusal {
    Refusal::fatal(FatalKind::Other, message)
}

/// The beginning of a text.
fn cut(text: &str, most: usize) -> String {
    let end = (0..=most.min(text.len()))
        .rev()
        .find(|at| text.is_char_boundary(*at));
    text[..end.unwrap_or(0)].to_owned()
}
