//! Whether the metadata store is older than what servers have heard.
//!
//! A server hears of a list only when the store has it (COORD-1). A server may have a newer list
//! than this coordinator for two reasons. It heard of it from the next leader; then the store has
//! that list. Or the store was set back, for example by restoring an old copy of it. Work on such a
//! store does harm: ids are given twice, and lives that run are declared crashed.
//!
//! 1. A ping shows a newer list.
//! 2. The store is read. If it has that list, another coordinator leads: nothing is done.
//! 3. The server is sent this coordinator's list. One of another cluster refuses it: nothing is
//!    done. A member takes it as old, and the tenure ends.
//!
//! Not here: servers whose data directories are newer than the store (`server_list`), and a store
//! that lacks what this very process has stored (`lead`).

use crate::ledger::Ledger;
use crate::options::CoordinatorOptions;
use crate::state::State;
use crate::tasks::TaskGroup;
use core::time::Duration;
use pluvio_env::{Address, Env, timeout};
use pluvio_units::ServerListVersion;
use pluvio_wire::{Header, UpdateServerList};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// See the module.
pub(super) struct StoreAge {
    env: Env,
    limit: Duration,
    tasks: Arc<TaskGroup>,
    ledger: Arc<Ledger>,
    /// Whether a server's list is being compared with the stored one.
    comparing: AtomicBool,
}

impl StoreAge {
    pub(super) fn new(
        env: &Env,
        options: &CoordinatorOptions,
        tasks: Arc<TaskGroup>,
        ledger: Arc<Ledger>,
    ) -> Arc<Self> {
        Arc::new(Self {
            env: env.clone(),
            limit: options.call_limit,
            tasks,
            ledger,
            comparing: AtomicBool::new(false),
        })
    }

    /// Takes in which list the server at an address has. If it is newer than the store's, the
    /// tenure ends.
    pub(super) fn note_list(self: &Arc<Self>, address: &str, theirs: ServerListVersion) {
        if theirs <= self.ledger.state().globals.list_version {
            return;
        }
        // Relaxed: a turn, nothing is published by it.
        if self.comparing.swap(true, Ordering::Relaxed) {
            return;
        }
        let (this, address) = (self.clone(), address.to_owned());
        self.tasks.spawn("compare lists", async move {
            if let Some(why) = this.why_set_back(&address, theirs).await {
                this.ledger.tenure().store_went_back(why);
            }
            this.comparing.store(false, Ordering::Relaxed);
        });
    }

    /// Proof that the store is older than the list of the server at this address, if there is any.
    async fn why_set_back(&self, address: &str, theirs: ServerListVersion) -> Option<String> {
        let tenure = self.ledger.tenure();
        let reading = State::globals_in(tenure.store());
        let globals = timeout(&*self.env.clock, self.limit, reading).await;
        let stored = globals.ok()?.ok()??.list_version;
        if stored >= theirs {
            // Another coordinator leads, and this one is about to see it.
            return None;
        }
        // A server of another cluster may have the address by now; it refuses this one's list. A
        // member ignores it, as it is old.
        let state = self.ledger.state();
        let request = UpdateServerList {
            cluster: state.globals.cluster,
            list: state.list(),
        };
        tenure.until_it_leads().await;
        let (to, network) = (Address::from(address), &*self.env.network);
        let answer = pluvio_wire::call(network, &to, Header::default(), &request, self.limit).await;
        answer.ok()?;
        pluvio_units::mark("coordinator-store-set-back");
        Some(format!(
            "the server at {address} has version {theirs} of the server list, and {stored} is the one stored"
        ))
    }
}
