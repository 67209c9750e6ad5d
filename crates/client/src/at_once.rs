//! Operations on one object that a front end in the owner's process executes without waiting.
//!
//! 1. The front end tries the operation at once.
//! 2. Its outcome is there. It may be held ([`HeldOutcome`]): executed, and not durable yet. An
//!    operation that cannot be tried takes the long way, as any of this client.
//! 3. A held outcome is opened once it is durable. One task waits for the first of its held
//!    outcomes ([`Client::wait_for_held`]). Nothing is allocated and no timer is set for an
//!    operation.
//!
//! - HELD-1: a held outcome is opened only when its master says that all it rests on is durable
//!   (rule C).

use crate::client::Client;
use crate::local::LocalMaster;
use crate::table::Table;
use core::task::Waker;
use pluvio_env::waiting_party;
use pluvio_mutation::Current;
use pluvio_units::{KeyHash, LogId, LogPosition, OperationId, ServerId, Waits};
use pluvio_wire::{Get, Header, Mutation, Outcome, check_get, check_mutation};

/// The result of an operation that was not to wait.
#[derive(Debug)]
pub enum AtOnce {
    /// It is done.
    Done(Outcome),
    /// It is executed. A reply may be sent once it is durable.
    Held(HeldOutcome),
    /// It was not executed: it has to wait, or its key is not here.
    Later,
}

/// An outcome that is not durable yet.
#[derive(Debug)]
#[must_use = "the operation is executed, and nobody has its outcome"]
pub struct HeldOutcome {
    waits: Waits,
    outcome: Outcome,
}

impl HeldOutcome {
    /// The outcome of an operation that a [`LocalMaster`] has executed. It may be told when `waits`
    /// are durable.
    pub fn new(waits: Waits, outcome: Outcome) -> Self {
        Self { waits, outcome }
    }

    /// Bytes that the outcome holds.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.outcome.bulk_len()
    }

    /// Whether the operation changed nothing, as a condition did not hold or the value did not
    /// allow it. Nobody is to be told before it is durable.
    #[must_use]
    pub fn is_failure(&self) -> bool {
        self.outcome.is_failure()
    }
}

/// The wait of one task for the first of its held outcomes. Dropping it gives up waiting.
pub struct HeldWait {
    client: Client,
    party: u64,
    wait: Option<(LogId, LogPosition)>,
}

impl HeldWait {
    /// Has `waker` woken when something that `held` rests on is durable. False: all of it is
    /// durable by now.
    #[must_use]
    pub fn wake(&mut self, held: &HeldOutcome, waker: &Waker) -> bool {
        self.wake_at(held.waits.iter(), waker)
    }

    /// [`HeldWait::wake`] for positions of the local master.
    pub(crate) fn wake_at(
        &mut self,
        waits: impl Iterator<Item = (LogId, LogPosition)>,
        waker: &Waker,
    ) -> bool {
        for wait in waits {
            if self.wait != Some(wait) {
                self.give_up();
            }
            let master = self.client.master();
            if master.is_none_or(|master| master.wake_when_durable(wait, self.party, waker)) {
                self.wait = Some(wait);
                return true;
            }
        }
        false
    }

    /// Waits for nothing any more.
    pub fn give_up(&mut self) {
        if let Some(wait) = self.wait.take()
            && let Some(master) = self.client.master()
        {
            master.give_up_waiting(wait, self.party);
        }
    }
}

impl Drop for HeldWait {
    fn drop(&mut self) {
        self.give_up();
    }
}

impl Client {
    fn master(&self) -> Option<&dyn LocalMaster> {
        self.shared.local.as_deref()
    }

    /// The master in this process, and the header of a request to it. The client's map is not
    /// asked: the master itself knows best which keys it has.
    fn at_hand(&self, table: &Table) -> Option<(&dyn LocalMaster, Header)> {
        let master = self.master()?;
        let owner = Some(master.owns()).filter(|owner| *owner != ServerId(0))?;
        let limit = self.shared.options.timeout;
        Some((master, Self::local_header(table.cluster(), owner, limit)))
    }

    /// Lets `show` look at an object where it lies, or at its absence, if that is
    /// possible at once. False: `show` was not called.
    pub fn show_at_once(
        &self,
        table: &Table,
        hash: KeyHash,
        key: &[u8],
        show: &mut dyn FnMut(Option<Current<'_>>),
    ) -> bool {
        let get = Get {
            hash: Some(hash),
            ..Get::new(table.id(), key)
        };
        let Some((master, header)) = self.at_hand(table).filter(|_| check_get(&get).is_ok()) else {
            return false;
        };
        master.show_at_once(self.core(), &header, &get, show)
    }

    /// [`Client::get`], if that is possible at once. `hash` is that of the key.
    pub fn get_at_once(&self, table: &Table, hash: KeyHash, get: &Get<'_>) -> AtOnce {
        match self.at_hand(table) {
            Some((master, header)) if check_get(get).is_ok() => {
                let get = Get {
                    table: table.id(),
                    hash: Some(hash),
                    ..*get
                };
                master.get_at_once(self.core(), &header, &get)
            }
            Some(_) | None => AtOnce::Later,
        }
    }

    /// [`Client::mutate`], if that is possible at once. `hash` is that of the key.
    pub fn mutate_at_once(&self, table: &Table, hash: KeyHash, mutation: &Mutation<'_>) -> AtOnce {
        match self.at_hand(table) {
            Some((master, header)) if check_mutation(mutation).is_ok() => {
                let mutation = Mutation {
                    id: OperationId::default(),
                    table: table.id(),
                    hash: Some(hash),
                    ..*mutation
                };
                master.mutate_at_once(self.core(), &header, &mutation)
            }
            Some(_) | None => AtOnce::Later,
        }
    }

    /// Asks for the memory of keys that are read or changed next, as far as it is here.
    pub fn prefetch(&self, table: &Table, hashes: &[KeyHash]) {
        if let Some(master) = self.master() {
            master.prefetch(table.id(), hashes);
        }
    }

    /// The outcome, if it is durable by now (HELD-1).
    ///
    /// # Errors
    /// Gives it back when it is not.
    pub fn open(&self, held: HeldOutcome) -> Result<Outcome, HeldOutcome> {
        let master = self.master();
        match master.is_some_and(|master| master.is_durable(&held.waits)) {
            true => Ok(held.outcome),
            false => Err(held),
        }
    }

    /// For a task that waits for held outcomes.
    #[must_use]
    pub fn wait_for_held(&self) -> HeldWait {
        HeldWait {
            client: self.clone(),
            party: waiting_party(),
            wait: None,
        }
    }
}
