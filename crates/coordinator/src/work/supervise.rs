//! Starts a task for everything that the state says is unfinished (COORD-2).
//!
//! The same loop runs in operation and after a restart, so resuming is no case of its own. A task
//! starts where the state asks for one, and ends when the state asks no more.

use super::assign::Assignments;
use super::balance::{Balances, Counters};
use super::drain::Drains;
use super::drop::Drops;
use super::join::Joins;
use super::migrate::Migrations;
use super::push::Pushes;
use super::quotas::Quotas;
use super::recover::Recoveries;
use super::split::Splits;
use crate::context::Context;
use crate::state::State;
use pluvio_units::{MigrationId, ServerId, TableId};
use pluvio_wire::{ServerState, TabletState};
use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio::sync::Notify;

/// Something that has to be done. At most one task does it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) enum Work {
    /// Keep the server list of a server that is up up to date.
    Push(ServerId),
    /// Recover a crashed server.
    Recover(ServerId),
    /// Get the tablets of a new table taken.
    Assign(TableId),
    /// Get a dropped table forgotten.
    Drop(TableId),
    /// Let owners know where their tablets were cut.
    Split(TableId),
    /// Get a tablet moved, or let its migration end for its former owner.
    Migrate(TableId, MigrationId),
    /// Move the tablets of a server away.
    Drain(ServerId),
    /// Make one tablet of neighbours.
    Join(TableId),
    /// Move tablets from full or busy servers to others.
    Balance,
    /// Share the quotas of tables among their owners.
    Quotas,
}

impl Work {
    fn name(self) -> &'static str {
        match self {
            Self::Push(_) => "push",
            Self::Recover(_) => "recover",
            Self::Assign(_) => "assign",
            Self::Drop(_) => "drop",
            Self::Split(_) => "split",
            Self::Migrate(..) => "migrate",
            Self::Drain(_) => "drain",
            Self::Join(_) => "join",
            Self::Balance => "balance",
            Self::Quotas => "quotas",
        }
    }
}

/// What the state asks for.
fn wanted(state: &State) -> BTreeSet<Work> {
    let mut work = BTreeSet::new();
    if state.wants_balance() {
        work.insert(Work::Balance);
    }
    if state.wants_quotas() {
        work.insert(Work::Quotas);
    }
    for (id, server) in &state.servers {
        work.insert(match server.info.state {
            ServerState::Up => Work::Push(*id),
            ServerState::Crashed => Work::Recover(*id),
        });
        if state.wants_drain(*id) {
            work.insert(Work::Drain(*id));
        }
    }
    for (id, table) in &state.tables {
        work.extend(table.moves.iter().map(|m| Work::Migrate(*id, m.id)));
        if table.dropping {
            work.insert(Work::Drop(*id));
            continue;
        }
        if table.has(TabletState::Assigning) {
            work.insert(Work::Assign(*id));
        }
        if !table.cuts.is_empty() {
            work.insert(Work::Split(*id));
        }
        if state.wants_join(table) {
            work.insert(Work::Join(*id));
        }
    }
    work
}

/// All kinds of work, each with what it remembers.
pub(crate) struct Works {
    pushes: Pushes,
    pub(crate) recoveries: Recoveries,
    pub(crate) assignments: Assignments,
    pub(crate) drops: Drops,
    pub(crate) splits: Splits,
    pub(crate) migrations: Arc<Migrations>,
    pub(crate) drains: Drains,
    joins: Joins,
    pub(crate) balances: Balances,
    pub(crate) quotas: Quotas,
}

impl Works {
    pub(crate) fn new(context: &Arc<Context>) -> Arc<Self> {
        let migrations = Arc::new(Migrations::new(context.clone()));
        let counters = Arc::<Counters>::default();
        Arc::new(Self {
            joins: Joins::new(context.clone(), counters.clone()),
            balances: Balances::new(context.clone(), migrations.clone(), counters),
            drains: Drains::new(context.clone(), migrations.clone()),
            pushes: Pushes::new(context.clone()),
            quotas: Quotas::new(context.clone()),
            recoveries: Recoveries::new(context.clone()),
            assignments: Assignments::new(context.clone()),
            drops: Drops::new(context.clone()),
            splits: Splits::new(context.clone()),
            migrations,
        })
    }

    /// Does a piece of work; ends when the state does not ask for it any more.
    async fn run(&self, work: Work) {
        match work {
            Work::Push(server) => self.pushes.push(server).await,
            Work::Recover(server) => self.recoveries.recover(server).await,
            Work::Assign(table) => self.assignments.assign(table).await,
            Work::Drop(table) => self.drops.drop_tablets(table).await,
            Work::Split(table) => self.splits.announce_cuts(table).await,
            Work::Migrate(table, id) => self.migrations.migrate(table, id).await,
            Work::Drain(server) => self.drains.drain(server).await,
            Work::Join(table) => self.joins.join(table).await,
            Work::Balance => self.balances.balance().await,
            Work::Quotas => self.quotas.share().await,
        }
    }
}

/// See the module.
pub(crate) struct Supervisor {
    context: Arc<Context>,
    works: Arc<Works>,
    /// Tasks under way.
    running: Mutex<BTreeSet<Work>>,
    /// Wakes the loop when a task has ended.
    work_ended: Notify,
}

impl Supervisor {
    pub(crate) fn new(context: Arc<Context>, works: Arc<Works>) -> Arc<Self> {
        Arc::new(Self {
            context,
            works,
            running: Mutex::default(),
            work_ended: Notify::new(),
        })
    }

    fn running(&self) -> MutexGuard<'_, BTreeSet<Work>> {
        // Held for single steps.
        self.running.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Runs for as long as the coordinator.
    pub(crate) async fn supervise(self: Arc<Self>) {
        let mut states = self.context.ledger.watch();
        loop {
            let ended = self.work_ended.notified();
            let state = states.borrow_and_update().clone();
            for work in wanted(&state) {
                if self.running().insert(work) {
                    self.start(work);
                }
            }
            tokio::select! {
                biased;
                changed = states.changed() => changed.expect("the sender lives as long as this"),
                () = ended => {}
            }
        }
    }

    fn start(self: &Arc<Self>, work: Work) {
        let this = self.clone();
        let task = async move {
            this.works.run(work).await;
            this.running().remove(&work);
            this.work_ended.notify_one();
        };
        // Boxed: the tasks differ much in size.
        self.context.tasks.spawn(work.name(), Box::pin(task));
    }
}
