//! This master's part in transactions of several owners (`docs/transactions.md`), besides locking
//! keys: that is a transaction with a `whole` ([`Master::transact`]).
//!
//! Each of these may come from the transaction's client, or from a server that looks after a key
//! that is locked for long. Each may come twice.

use super::mutate::refusal_of;
use crate::cut::Noting;
use crate::master::Master;
use pluvio_log::Awaited;
use pluvio_store::{EngineError, EngineTable, Locked, Released, Site};
use pluvio_units::{ClientId, DECISION, KeyPlace, LogId};
use pluvio_wire::{
    Answer, Decide, Decided, Header, Refusal, Release, TRANSACTION_STEPS_MAX, Vote, Voted,
};
use std::sync::Arc;
use std::time::Duration;

/// For how long votes and decisions are kept after a look at a locked key of the transaction. The
/// next look comes long before.
const KEPT: Duration = Duration::from_secs(60);
/// For how long they are kept anyway, and longer.
const KEPT_ANYWAY: Duration = Duration::from_secs(5);

impl Master {
    /// The decision about a transaction whose home key is here ([`Decide`]).
    pub fn decide(
        self: &Arc<Self>,
        log: LogId,
        header: &Header,
        request: &Decide,
    ) -> Answer<Decided> {
        if request.client == ClientId(0) {
            return Answer::Now(Err(nobody()));
        }
        let decided = self.at_place(log, header, request.home, |site, _, _| {
            let wish = (request.wish, self.monotonic());
            self.store().decide(site, request.client, wish)
        });
        self.answer_awaited(decided.map(|awaited| {
            awaited.map(|decided| Decided {
                committed: decided.committed,
                shares: decided.shares,
            })
        }))
    }

    /// This master's vote about a transaction ([`Vote`]).
    pub fn vote(self: &Arc<Self>, log: LogId, header: &Header, request: &Vote) -> Answer<Voted> {
        if request.client == ClientId(0) || request.sequence <= DECISION {
            return Answer::Now(Err(nobody()));
        }
        let voted = self.at_place(log, header, request.key, |site, _, _| {
            let operation = (request.client, request.sequence);
            self.store().vote(site, operation, self.monotonic())
        });
        self.answer_awaited(voted.map(|awaited| awaited.map(|yes| Voted { yes })))
    }

    /// Releases keys that a transaction has locked ([`Release`]).
    pub fn release(self: &Arc<Self>, log: LogId, header: &Header, request: &Release) -> Answer<()> {
        if request.keys.len() > TRANSACTION_STEPS_MAX
            || request.forget.len() > TRANSACTION_STEPS_MAX
        {
            let why = "a release of more keys than a transaction may have";
            return Answer::Now(Err(Refusal::malformed(why)));
        }
        let mut later = Vec::new();
        for key in &request.keys {
            let released = self.at_place(log, header, *key, |site, table, noting| {
                self.release_at((site, table), request, noting)
            });
            match released {
                Ok(Awaited::Now(_)) => {}
                Ok(Awaited::Later(appended)) => later.push(appended),
                Err(refusal) => return Answer::Now(Err(refusal)),
            }
        }
        let (master, request) = (Arc::clone(self), request.clone());
        Answer::Later(Box::pin(async move {
            for appended in later {
                master.durable(appended).await;
            }
            let completions = master.store().completions();
            for sequence in request.forget {
                completions.forget(request.client, sequence);
            }
            Ok(())
        }))
    }

    /// Releases what the transaction has locked under this hash: several keys may have it.
    fn release_at(
        &self,
        (site, table): (&Site<'_>, &Arc<EngineTable>),
        request: &Release,
        noting: &Noting,
    ) -> Result<Awaited<()>, EngineError> {
        let operation = (request.client, request.committed);
        let mut last = None;
        loop {
            let released = self.store().release(site, operation, |key, applied| {
                noting.note(key, applied.outcome());
            })?;
            match released {
                // Its slot is settled when it is durable.
                Released::Object(applied) => {
                    last = Some(self.outcome_of(table, applied).map(|_| ()))
                }
                // That waits for all of them.
                Released::NoneLeft(waits) => {
                    return Ok(match last {
                        Some(last) if matches!(waits, Awaited::Now(_)) => last,
                        Some(_) | None => waits,
                    });
                }
            }
        }
    }

    /// Does something with a key that is served here and may be changed.
    fn at_place<T>(
        &self,
        log: LogId,
        header: &Header,
        (table, hash): KeyPlace,
        act: impl FnOnce(&Site<'_>, &Arc<EngineTable>, &Noting) -> Result<T, EngineError>,
    ) -> Result<T, Refusal> {
        self.check_target(header)?;
        // Held until the change is noted (TAB-2).
        let snapshot = self.tablets().snapshot();
        let served = self.serving(&snapshot, table, Some(hash))?;
        // Not held back by a cut: it waits for the release (CUT-4).
        Self::must_take_changes(served.phase)?;
        let noting = self.noting(&served)?;
        self.writes_possible()?;
        act(&self.site(log, &served), served.table, &noting).map_err(|error| refusal_of(&error))
    }

    /// Up to `most` keys here that transactions have locked for at least this long. To be looked
    /// after: their clients may be gone. The next call goes on behind them.
    #[must_use]
    pub fn locked_for(&self, time: Duration, most: usize) -> Vec<Locked> {
        match self.monotonic().checked_sub(time) {
            Some(before) => self.store().locked_since(before, most),
            None => Vec::new(),
        }
    }

    /// How many keys here are locked by transactions of several servers, and for how long the one
    /// that was locked first.
    #[must_use]
    pub fn locked_now(&self) -> (u64, Duration) {
        let (keys, first) = self.store().locked_now();
        let age = first.map(|first| self.monotonic().saturating_sub(first));
        (keys, age.unwrap_or_default())
    }

    /// Keeps what is known of transactions that have locked keys here for a while.
    pub(crate) fn keep_locked(&self) {
        let now = self.monotonic();
        if let Some(before) = now.checked_sub(KEPT_ANYWAY) {
            self.store().keep_locked(before, now + KEPT);
        }
    }
}

fn nobody() -> Refusal {
    Refusal::malformed("a transaction of several servers needs a client, and a vote its number")
}
