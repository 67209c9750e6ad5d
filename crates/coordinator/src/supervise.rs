//! Starts a task for everything that the state says is unfinished (COORD-2).
//!
//! The same loop runs in operation and after a restart, so resuming is not a case of its own: a
//! task is wherever the state asks for one, and ends when the state does not ask any more.

use crate::shared::Shared;
use crate::state::State;
use pluvio_units::{MigrationId, ServerId, TableId};
use pluvio_wire::{ServerState, TabletState};
use std::collections::BTreeSet;
use std::sync::Arc;

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
    /// Tell owners where their tablets were cut.
    Cut(TableId),
    /// Get a tablet moved, or let its migration end for its former owner.
    Migrate(TableId, MigrationId),
}

/// What the state asks for.
pub(crate) fn wanted(state: &State) -> BTreeSet<Work> {
    let mut work = BTreeSet::new();
    for (id, server) in &state.servers {
        work.insert(match server.info.state {
            ServerState::Up => Work::Push(*id),
            ServerState::Crashed => Work::Recover(*id),
        });
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
            work.insert(Work::Cut(*id));
        }
    }
    work
}

impl Shared {
    /// Runs for as long as the coordinator.
    pub(crate) async fn supervise(self: Arc<Self>) {
        let mut states = self.watch();
        loop {
            let ended = self.work_ended.notified();
            let state = states.borrow_and_update().clone();
            for work in wanted(&state) {
                if self.memory().running.insert(work) {
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
        let shared = self.clone();
        let task = async move {
            match work {
                Work::Push(server) => shared.push(server).await,
                Work::Recover(server) => shared.recover(server).await,
                Work::Assign(table) => shared.assign(table).await,
                Work::Drop(table) => shared.drop_tablets(table).await,
                Work::Cut(table) => shared.tell_cuts(table).await,
                Work::Migrate(table, id) => shared.migrate(table, id).await,
            }
            shared.memory().running.remove(&work);
            shared.work_ended.notify_one();
        };
        let name = match work {
            Work::Push(_) => "push",
            Work::Recover(_) => "recover",
            Work::Assign(_) => "assign",
            Work::Drop(_) => "drop",
            Work::Cut(_) => "cut",
            Work::Migrate(..) => "migrate",
        };
        // Boxed: the tasks differ much in size.
        self.spawn(name, Box::pin(task));
    }
}
