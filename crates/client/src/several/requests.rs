//! The requests of transactions of several servers.

use super::Participant;
use super::prepare::PATIENCE;
use crate::error::ClientError;
use crate::local::LocalMaster;
use crate::request::{DataRequest, plain_request, several_owners, the_one};
use crate::table::Table;
use core::time::Duration;
use pluvio_env::{Address, CallError, Network};
use pluvio_units::{CoreId, KeyPlace, OperationId, ServerId, TableId};
use pluvio_wire::{
    Answer, Decide, Decided, Header, Outcome, Refusal, Release, Results, RetryReason, RpcError,
    Vote, Voted, Whole, call, call_frame, encode_prepare,
};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};

/// A request to a participant to lock its keys.
pub(super) struct Prepare<'a> {
    pub(super) participant: &'a Participant<'a>,
    pub(super) whole: Whole,
    pub(super) operation: OperationId,
    /// How long it waits for keys that others have locked.
    pub(super) patience: Duration,
    /// Whether a try was not answered: it may be done yet.
    pub(super) is_lost: AtomicBool,
}

impl DataRequest for Prepare<'_> {
    type Reply = Results;
    type Done = Outcome;
    // It brings a number of its own.
    const CHANGES_DATA: bool = false;
    const NAME: &'static str = "lock keys";

    fn operation(&self) -> OperationId {
        self.operation
    }

    fn check(&self, owner: ServerId) -> Result<(), ClientError> {
        let is_elsewhere = |at: usize| {
            let (_, hash) = self.participant.key(at);
            let other = self.participant.tables[at].owner(hash);
            other.is_some_and(|other| other != owner)
        };
        match (0..self.participant.steps.len()).any(is_elsewhere) {
            true => Err(several_owners()),
            false => Ok(()),
        }
    }

    fn tables(&self) -> Vec<&Table> {
        self.participant.tables.clone()
    }

    fn is_in_vain(&self, why: &RpcError, spent: Duration) -> bool {
        match why {
            RpcError::Refused(Refusal::Retry { why, after_us }) => match why {
                RetryReason::Locked => spent >= self.patience,
                // Room comes late, or never. Nobody else is to wait for it (SEVERAL-4).
                why if why.is_full() => true,
                // While changes are held for a cut, say, which waits until no key is locked
                // (CUT-4).
                _ => {
                    let pause = Duration::from_micros(u64::from(*after_us));
                    spent + pause >= PATIENCE.min(self.patience)
                }
            },
            RpcError::Refused(Refusal::Refresh) | RpcError::Call(CallError::Unreachable(..)) => {
                spent >= PATIENCE.min(self.patience)
            }
            // Asked again, it tells what it did.
            RpcError::Call(_) => false,
            RpcError::Refused(Refusal::Rejected { .. } | Refusal::Fatal { .. })
            | RpcError::BadReply(..) => false,
        }
    }

    fn unanswered(&self) {
        self.is_lost.store(true, Ordering::Relaxed);
    }

    fn local(&self, master: &dyn LocalMaster, core: CoreId, header: &Header) -> Answer<Results> {
        master.transact(core, header, Some(&self.whole), &self.participant.steps)
    }

    async fn call(
        &self,
        network: &dyn Network,
        to: &Address,
        header: Header,
        limit: Duration,
    ) -> Result<Results, RpcError> {
        let frame = encode_prepare(&header, &self.whole, &self.participant.steps);
        Ok(call_frame(network, to, frame, limit).await?.items)
    }

    fn done(reply: Results) -> Result<Outcome, Refusal> {
        the_one(reply)
    }
}

plain_request!(Decide => Decided, decide, "decide");
plain_request!(Vote => Voted, vote, "ask for a vote");

/// A release of keys that are expected to have one owner.
pub(super) struct ReleaseOf<'a> {
    pub(super) release: Release,
    pub(super) tables: &'a BTreeMap<TableId, Table>,
}

impl DataRequest for ReleaseOf<'_> {
    type Reply = ();
    type Done = ();
    const CHANGES_DATA: bool = false;
    const NAME: &'static str = "release keys";

    fn tables(&self) -> Vec<&Table> {
        self.tables.values().collect()
    }

    fn check(&self, owner: ServerId) -> Result<(), ClientError> {
        let is_elsewhere = |(table, hash): &KeyPlace| {
            let other = self.tables.get(table).and_then(|table| table.owner(*hash));
            other.is_some_and(|other| other != owner)
        };
        match self.release.keys.iter().any(is_elsewhere) {
            true => Err(several_owners()),
            false => Ok(()),
        }
    }

    fn local(&self, master: &dyn LocalMaster, core: CoreId, header: &Header) -> Answer<()> {
        master.release(core, header, &self.release)
    }

    async fn call(
        &self,
        network: &dyn Network,
        to: &Address,
        header: Header,
        limit: Duration,
    ) -> Result<(), RpcError> {
        call(network, to, header, &self.release, limit).await
    }

    fn done((): ()) -> Result<(), Refusal> {
        Ok(())
    }
}
