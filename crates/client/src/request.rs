//! What the client asks servers of objects: the same request goes to the master in this process, or
//! over the network.

use crate::error::ClientError;
use crate::local::LocalMaster;
use crate::table::Table;
use core::time::Duration;
use pluvio_env::{Address, Network};
use pluvio_units::{CoreId, LogId, LogPosition, OperationId, ServerId};
use pluvio_wire::{
    Answer, CountObjects, CountObjectsReply, Enumerate, EnumerateReply, FatalKind, Get, Header,
    Mutation, Outcome, Outcomes, Refusal, Results, RpcError, TransactionStep, call, call_frame,
    encode_get, encode_mutate, encode_mutate_early, encode_transact,
};
use std::sync::OnceLock;

/// A request for one server.
pub(crate) trait DataRequest: Sync {
    /// What the server answers.
    type Reply: Send;
    /// What the caller gets of it.
    type Done: Send;
    /// Whether each of them gets an identity, so that a retry is told from a new one. One that was
    /// not answered may have been executed then. Others do no harm when they are done twice, or
    /// bring a number of their own.
    const CHANGES_DATA: bool;
    /// What a span of it is called.
    const NAME: &'static str = if Self::CHANGES_DATA { "change" } else { "read" };

    /// Whether the server ends with the first item that it refuses.
    fn ordered(&self) -> bool {
        false
    }

    /// Whether this server is the one to be asked, as far as is known. Asked before each attempt,
    /// as long as none can have been executed.
    ///
    /// # Errors
    /// No server is.
    fn check(&self, owner: ServerId) -> Result<(), ClientError> {
        let _ = owner;
        Ok(())
    }

    /// Its identity, where it brings one.
    fn operation(&self) -> OperationId {
        OperationId::default()
    }

    /// Whether to give up after an attempt that failed for this reason, when so long was spent.
    fn is_in_vain(&self, why: &RpcError, spent: Duration) -> bool {
        let _ = (why, spent);
        false
    }

    /// It was sent, and not answered: it may have been executed, or may be yet.
    fn unanswered(&self) {}

    /// The tables that it names, where there may be several.
    fn tables(&self) -> Vec<&Table> {
        Vec::new()
    }

    /// Asks the master in this process.
    fn local(&self, master: &dyn LocalMaster, core: CoreId, header: &Header)
    -> Answer<Self::Reply>;

    /// Asks a server. `header` says which life of it is meant.
    fn call(
        &self,
        network: &dyn Network,
        to: &Address,
        header: Header,
        limit: Duration,
    ) -> impl Future<Output = Result<Self::Reply, RpcError>> + Send;

    /// What the caller gets.
    ///
    /// # Errors
    /// The refusal of the one thing that was asked for.
    fn done(reply: Self::Reply) -> Result<Self::Done, Refusal>;
}

/// Reads of one request.
pub(crate) struct Gets<'a>(pub(crate) &'a [Get<'a>]);

/// The positions on which an early answer rests, if they were not durable then.
pub(crate) type RestsOn = OnceLock<Vec<(LogId, LogPosition)>>;

/// The results of an early answer. The positions on which they rest go to their place.
fn early(outcomes: Outcomes, place: &RestsOn) -> Results {
    if !outcomes.rests_on.is_empty() {
        let is_first = place.set(outcomes.rests_on).is_ok();
        debug_assert!(is_first, "each request has a place of its own");
    }
    outcomes.items
}

/// Mutations of one request.
pub(crate) struct Mutations<'a> {
    pub(crate) items: &'a [Mutation<'a>],
    /// See [`DataRequest::ordered`].
    pub(crate) ordered: bool,
    /// Where an early answer puts the positions on which it rests. `None`: it is to come when it is
    /// durable. Only ordered batches may be answered early.
    pub(crate) early: Option<&'a RestsOn>,
}

/// One read.
pub(crate) struct OneGet<'a>(pub(crate) Get<'a>);

/// One mutation.
pub(crate) struct OneMutation<'a>(pub(crate) Mutation<'a>);

/// A transaction whose keys have one owner. One that only reads has no identity: reading again does
/// no harm, so there is no outcome to keep.
pub(crate) struct OneOwner<'a, const CHANGES: bool> {
    pub(crate) steps: &'a [TransactionStep<'a>],
    /// The table of each step.
    pub(crate) tables: &'a [&'a Table],
    /// The client that asks, where keys are kept for it, and for how long. Without a number it is
    /// no identity.
    pub(crate) by: OperationId,
}

impl<const CHANGES: bool> DataRequest for OneOwner<'_, CHANGES> {
    type Reply = Results;
    type Done = Outcome;
    const CHANGES_DATA: bool = CHANGES;

    fn check(&self, owner: ServerId) -> Result<(), ClientError> {
        let is_elsewhere = |(step, table): (&TransactionStep<'_>, &&Table)| {
            let hash = step
                .operation
                .hash()
                .unwrap_or_else(|| table.hash(step.operation.key()));
            table.owner(hash).is_some_and(|other| other != owner)
        };
        match self.steps.iter().zip(self.tables).any(is_elsewhere) {
            true => Err(several_owners()),
            false => Ok(()),
        }
    }

    fn operation(&self) -> OperationId {
        self.by
    }

    fn tables(&self) -> Vec<&Table> {
        self.tables.to_vec()
    }

    fn local(&self, master: &dyn LocalMaster, core: CoreId, header: &Header) -> Answer<Results> {
        master.transact(core, header, None, self.steps)
    }

    async fn call(
        &self,
        network: &dyn Network,
        to: &Address,
        header: Header,
        limit: Duration,
    ) -> Result<Results, RpcError> {
        let frame = encode_transact(&header, self.steps);
        Ok(call_frame(network, to, frame, limit).await?.items)
    }

    fn done(reply: Results) -> Result<Outcome, Refusal> {
        the_one(reply)
    }
}

impl DataRequest for Gets<'_> {
    type Reply = Results;
    type Done = Results;
    const CHANGES_DATA: bool = false;

    fn local(&self, master: &dyn LocalMaster, core: CoreId, header: &Header) -> Answer<Results> {
        master.get(core, header, self.0)
    }

    async fn call(
        &self,
        network: &dyn Network,
        to: &Address,
        header: Header,
        limit: Duration,
    ) -> Result<Results, RpcError> {
        let frame = encode_get(&header, self.0);
        Ok(call_frame(network, to, frame, limit).await?.items)
    }

    fn done(reply: Results) -> Result<Results, Refusal> {
        Ok(reply)
    }
}

impl DataRequest for Mutations<'_> {
    type Reply = Results;
    type Done = Results;
    const CHANGES_DATA: bool = true;

    fn ordered(&self) -> bool {
        self.ordered
    }

    fn local(&self, master: &dyn LocalMaster, core: CoreId, header: &Header) -> Answer<Results> {
        if let Some(place) = self.early
            && let Some(result) = master.mutate_early(core, header, self.items)
        {
            return Answer::Now(result.map(|outcomes| early(outcomes, place)));
        }
        master.mutate(core, header, self.items, self.ordered)
    }

    async fn call(
        &self,
        network: &dyn Network,
        to: &Address,
        header: Header,
        limit: Duration,
    ) -> Result<Results, RpcError> {
        let frame = match self.early {
            Some(_) => encode_mutate_early(&header, self.items),
            None => encode_mutate(&header, self.items, self.ordered),
        };
        let outcomes = call_frame(network, to, frame, limit).await?;
        Ok(match self.early {
            Some(place) => early(outcomes, place),
            None => outcomes.items,
        })
    }

    fn done(reply: Results) -> Result<Results, Refusal> {
        Ok(reply)
    }
}

impl DataRequest for OneGet<'_> {
    type Reply = Results;
    type Done = Outcome;
    const CHANGES_DATA: bool = false;

    #[inline]
    fn local(&self, master: &dyn LocalMaster, core: CoreId, header: &Header) -> Answer<Results> {
        master.get(core, header, core::slice::from_ref(&self.0))
    }

    async fn call(
        &self,
        network: &dyn Network,
        to: &Address,
        header: Header,
        limit: Duration,
    ) -> Result<Results, RpcError> {
        let one = Gets(core::slice::from_ref(&self.0));
        one.call(network, to, header, limit).await
    }

    fn done(reply: Results) -> Result<Outcome, Refusal> {
        the_one(reply)
    }
}

impl DataRequest for OneMutation<'_> {
    type Reply = Results;
    type Done = Outcome;
    const CHANGES_DATA: bool = true;

    #[inline]
    fn local(&self, master: &dyn LocalMaster, core: CoreId, header: &Header) -> Answer<Results> {
        master.mutate(core, header, core::slice::from_ref(&self.0), false)
    }

    async fn call(
        &self,
        network: &dyn Network,
        to: &Address,
        header: Header,
        limit: Duration,
    ) -> Result<Results, RpcError> {
        let one = Mutations {
            items: core::slice::from_ref(&self.0),
            ordered: false,
            early: None,
        };
        one.call(network, to, header, limit).await
    }

    fn done(reply: Results) -> Result<Outcome, Refusal> {
        the_one(reply)
    }
}

/// Implements [`DataRequest`] for messages that any server may be asked as often as need be.
macro_rules! plain_request {
    ($request:ident => $reply:ty, $local:ident, $name:literal) => {
        impl DataRequest for $request {
            type Reply = $reply;
            type Done = $reply;
            const CHANGES_DATA: bool = false;
            const NAME: &'static str = $name;

            fn local(
                &self,
                master: &dyn LocalMaster,
                core: CoreId,
                header: &Header,
            ) -> Answer<$reply> {
                master.$local(core, header, self)
            }

            async fn call(
                &self,
                network: &dyn Network,
                to: &Address,
                header: Header,
                limit: Duration,
            ) -> Result<$reply, RpcError> {
                call(network, to, header, self, limit).await
            }

            fn done(reply: $reply) -> Result<$reply, Refusal> {
                Ok(reply)
            }
        }
    };
}

pub(crate) use plain_request;

plain_request!(Enumerate => EnumerateReply, enumerate, "read");
plain_request!(CountObjects => CountObjectsReply, count, "read");

pub(crate) fn several_owners() -> ClientError {
    ClientError::Refused {
        kind: FatalKind::SeveralOwners,
        message: "the keys of the transaction belong to several servers".to_owned(),
    }
}

/// The result of the only item.
pub(crate) fn the_one(mut results: Results) -> Result<Outcome, Refusal> {
    match (results.pop(), results.is_empty()) {
        (Some(result), true) => result,
        (Some(_), false) | (None, _) => Err(Refusal::malformed(
            "a server answered another number of items than one",
        )),
    }
}
