//! Tablets without replicas: nobody can recover them, so they begin anew (`docs/classes.md`).
//!
//! - COORD-23: a tablet of a volatile class, or of a server without replicas, begins anew when its
//!   owner has crashed: empty, on another server. That is so once nobody answers reads of it any
//!   more. No version of what was lost is given again. Other tablets never begin anew.
//! - COORD-24: the server to which such a tablet is given may have had it before. So clients that
//!   know it from then may use it before it has confirmed. When that one crashes, too, the tablet
//!   is given to others only with the proof that a recovery needs, and the versions grow once more.
//!   Only servers whose logs are open are chosen, so that there can be such a proof.

use crate::context::Context;
use crate::state::{State, TableRecord, TabletRecord};
use crate::work::assign::Candidates;
use core::time::Duration;
use futures_util::future::join_all;
use pluvio_env::{Moment, Rng};
use pluvio_units::{ObjectVersion, ServerId, TableId};
use pluvio_wire::{ServerInfo, TabletSpec, TabletState, TakeTablets};
use std::collections::BTreeSet;

/// Each second since 1970 has as many versions: a cluster gives fewer. So neither those of an
/// archive nor those of an import that are times reach what begins anew later.
const VERSIONS_EACH_SECOND: u64 = 1 << 30;
/// The same for each beginning, where the clock has gone back.
const VERSIONS_EACH: u64 = 1 << 40;
/// Of more servers only some are asked whether they can take tablets.
const ASKED_MAX: usize = 16;
/// They have this time to answer.
const ASK_LIMIT: Duration = Duration::from_secs(1);
/// No version is above this.
const VERSION_MAX: u64 = 1 << 63;

/// Whether a tablet has no replicas in a cluster where others have.
pub(super) fn is_volatile(tablet: &TabletSpec) -> bool {
    tablet.class.is_some_and(|class| class.is_volatile())
}

impl State {
    /// Gives tablets of a crashed server to others, empty (COORD-23). Says how many.
    pub(super) fn begin_anew(
        &mut self,
        crashed: ServerId,
        specs: &[TabletSpec],
        now_s: u64,
        to: &Candidates,
        rng: &dyn Rng,
    ) -> usize {
        let (mut begun, mut tables) = (0, BTreeSet::new());
        for spec in specs {
            let Some(table) = self.table_mut(spec.table) else {
                continue;
            };
            tables.insert(spec.table);
            let lost = |t: &&mut TabletRecord| {
                t.range == spec.range && t.owner == crashed && t.state == TabletState::Recovering
            };
            for tablet in table.tablets.iter_mut().filter(lost) {
                *tablet = TabletRecord {
                    anew: true,
                    ..TabletRecord::new(tablet.range, crashed)
                };
                begun += 1;
            }
        }
        if begun > 0 {
            self.globals.begun_anew += 1;
            self.raise_first_version(now_s);
        }
        for table in tables {
            // Without a server that is up it stays where it is, and `Work::Assign` tries again.
            self.reassign(table, &BTreeSet::from([crashed]), to, rng);
        }
        begun
    }

    /// From now on tablets that begin anew give versions above all that servers gave before.
    pub(crate) fn raise_first_version(&mut self, now_s: u64) {
        let now = now_s.saturating_mul(VERSIONS_EACH_SECOND);
        let next = self.globals.first_version.0.saturating_add(VERSIONS_EACH);
        self.globals.first_version = ObjectVersion(now.max(next).min(VERSION_MAX));
    }

    /// The least version that this server may give in a tablet of this table that holds nothing. 0:
    /// any, as nothing of the table begins anew.
    pub(crate) fn first_version(&self, table: &TableRecord, owner: &ServerInfo) -> ObjectVersion {
        let is_volatile = owner.volatile || table.class.is_some_and(|class| class.is_volatile());
        match is_volatile {
            true => self.globals.first_version,
            false => ObjectVersion(0),
        }
    }

    /// Whether a crashed server was to take a tablet of this table that begins anew.
    pub(crate) fn begins_anew(&self, table: TableId, crashed: ServerId) -> bool {
        let record = self.tables.get(&table);
        let mut tablets = record.into_iter().flat_map(|record| &record.tablets);
        tablets.any(|t| t.anew && t.owner == crashed && t.state == TabletState::Assigning)
    }
}

/// Servers whose logs are open. When one of them crashes, its log proves that it serves nothing any
/// more (COORD-24). Another server may have no log yet.
pub(crate) async fn opened(context: &Context) -> BTreeSet<ServerId> {
    let state = context.state();
    let mut some: Vec<ServerInfo> = state.up().cloned().collect();
    context.env.rng.shuffle(&mut some);
    some.truncate(ASKED_MAX);
    // It is answered like any other once all logs are open, and does nothing.
    let request = TakeTablets {
        version: state.globals.version,
        tablets: Vec::new(),
        first_version: ObjectVersion(0),
    };
    let ask = some.iter().map(async |server| {
        let answer = context.calls.call(server, &request, ASK_LIMIT).await;
        answer.is_ok().then_some(server.id)
    });
    join_all(ask).await.into_iter().flatten().collect()
}

/// Lets volatile tablets of a crashed server begin anew, once it has lost its lease. Backups had
/// fenced it at `fenced`. Where that cannot be stored now, the next attempt does it.
pub(super) async fn begin_anew(
    context: &Context,
    crashed: ServerId,
    volatile: Vec<TabletSpec>,
    fenced: Moment,
) {
    if volatile.is_empty() {
        return;
    }
    let wait = (fenced + context.options.zombie_grace).since(context.now());
    if !wait.is_zero() {
        context.sleep(wait).await;
    }
    let to = Candidates::Only(opened(context).await);
    if to.is_nobody() {
        tracing::debug!(%crashed, "no server has its logs open: volatile tablets wait");
        return;
    }
    let (rng, now_s) = (context.env.rng.clone(), context.env.clock.unix_seconds());
    let change =
        move |state: &mut State| Ok(state.begin_anew(crashed, &volatile, now_s, &to, &*rng));
    if let Ok(tablets) = context.ledger.change(change).await {
        pluvio_units::mark("volatile-tablets-begin-anew");
        tracing::warn!(
            %crashed, tablets,
            "tablets of volatile tables have lost their server, and begin anew, empty"
        );
    }
}
