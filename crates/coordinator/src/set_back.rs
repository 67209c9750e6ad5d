//! Whether the metadata store is older than what servers were told.
//!
//! A server hears of a list only when the store has it (COORD-1). So one whose list is newer than
//! this coordinator's either heard of it from the next leader, and then the store has that list; or
//! the store was set back, as by restoring an old copy of it. What is done on such a store does
//! harm: ids are given twice, and lives that run are declared crashed.
//!
//! Not here: servers whose data directories are newer than the store (`server_list`), and a store
//! that lacks what this very process has stored (`lead`).

use crate::shared::Shared;
use crate::state::State;
use pluvio_env::{Address, timeout};
use pluvio_units::ServerListVersion;
use pluvio_wire::{Header, UpdateServerList};
use std::sync::Arc;

impl Shared {
    /// Takes in which list the server at an address has. If it is newer than the store's, the
    /// tenure ends.
    pub(crate) fn note_list(self: &Arc<Self>, address: &str, theirs: ServerListVersion) {
        if theirs <= self.state().globals.list_version {
            return;
        }
        if core::mem::replace(&mut self.memory().comparing, true) {
            return;
        }
        let (shared, address) = (self.clone(), address.to_owned());
        self.spawn("compare lists", async move {
            if let Some(why) = shared.why_set_back(&address, theirs).await {
                shared.tenure.store_went_back(why);
            }
            shared.memory().comparing = false;
        });
    }

    /// What shows that the store is older than the list of the server at this address; `None` when
    /// nothing does for sure.
    async fn why_set_back(&self, address: &str, theirs: ServerListVersion) -> Option<String> {
        let limit = self.options.call_limit;
        let reading = State::globals_in(self.tenure.store());
        let globals = timeout(&*self.env.clock, limit, reading).await;
        let stored = globals.ok()?.ok()??.list_version;
        if stored >= theirs {
            // Another coordinator leads, and this one is about to see it.
            return None;
        }
        // A server of another cluster may have the address by now; it refuses this one's list. A
        // member ignores it, as it is old.
        let state = self.state();
        let request = UpdateServerList {
            cluster: state.globals.cluster,
            list: state.list(),
        };
        self.tenure.until_it_leads().await;
        let (to, network) = (Address::from(address), &*self.env.network);
        let answer = pluvio_wire::call(network, &to, Header::default(), &request, limit).await;
        answer.ok()?;
        pluvio_units::mark("coordinator-store-set-back");
        Some(format!(
            "the server at {address} has version {theirs} of the server list, and {stored} is the one stored"
        ))
    }
}
