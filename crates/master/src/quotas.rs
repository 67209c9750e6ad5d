//! This server's shares of the quotas of tables (`docs/quotas.md`).
//!
//! The coordinator asks what was used, and gives shares; the store keeps them
//! ([`EngineTable::take_share`]).
//!
//! - MASTER-7: a share of an earlier round than one that was heard of is ignored. So is one for
//!   another ownership than the present one.
//!
//! Operations are counted before they are done: reads and changes of objects, each step of a
//! transaction, and no listing. An operation that is answered because it was done before counts
//! once. One that is refused for another reason is given back: it comes again.

use crate::master::{Master, Served};
use crate::tablets::TabletPhase;
use pluvio_mutation::{Change, TransactionStep};
use pluvio_store::{EngineTable, OverQuota, Share, Taken};
use pluvio_wire::{
    FatalKind, QuotaGrant, QuotaRound, QuotaUse, Refusal, RetryReason, ShareQuotas,
    ShareQuotasReply,
};
use smallvec::SmallVec;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// When to come again with a change that needs more than this server's share: shares are given
/// about twice a second.
const SHARE_RETRY: Duration = Duration::from_millis(100);
/// Bounds of the pause of an operation that is one too many.
const PAUSE_MIN: Duration = Duration::from_millis(2);
/// See [`PAUSE_MIN`].
const PAUSE_MAX: Duration = Duration::from_secs(1);

/// The latest round that was heard of. Held while shares are taken.
#[derive(Default)]
pub(crate) struct QuotaRounds(Mutex<QuotaRound>);

impl QuotaRounds {
    fn lock(&self) -> MutexGuard<'_, QuotaRound> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Master {
    /// Takes shares of quotas, and says what was used of them.
    pub fn share_quotas(&self, request: &ShareQuotas) -> ShareQuotasReply {
        let mut newest = self.quota_rounds.lock();
        let is_late = request.round < *newest;
        *newest = request.round.max(*newest);
        let snapshot = self.tablets().snapshot();
        let mut uses = Vec::new();
        for share in &request.tables {
            let Some(local) = snapshot.get(&share.table) else {
                continue;
            };
            let table = &local.table;
            if let Some(grant) = &share.grant
                && !is_late
                && grant.instance == table.share_use().instance
            {
                table.take_share(&share_of(grant));
            }
            let of_it = local.tablets.iter();
            let mut phases = of_it.map(|tablet| is_settled(tablet.phase));
            let used = table.share_use();
            uses.push(QuotaUse {
                table: share.table,
                instance: used.instance,
                bytes: table.object_bytes(),
                grown: used.grown,
                grown_max: used.grown_max,
                operations_milli: used.operations_milli,
                operations: used.operations,
                wanted: used.wanted,
                refused_bytes: used.refused_bytes,
                refused_operations: used.refused_operations,
                settled: phases.all(|settled| settled),
            });
        }
        ShareQuotasReply { uses }
    }

    /// Changes refused for want of bytes, and operations refused because there were too many, of
    /// the tables that are here.
    #[must_use]
    pub fn quota_refusals(&self) -> (u64, u64) {
        let snapshot = self.tablets().snapshot();
        let uses = snapshot.values().map(|local| local.table.share_use());
        uses.fold((0, 0), |(bytes, operations), used| {
            (
                bytes + used.refused_bytes,
                operations + used.refused_operations,
            )
        })
    }

    /// Counts an operation on an object. A deletion is never refused.
    ///
    /// # Errors
    /// There are too many.
    #[inline]
    pub(crate) fn take_operation(
        &self,
        table: &EngineTable,
        is_deletion: bool,
    ) -> Result<Taken, Refusal> {
        let taken = table.take_operations(1, is_deletion, || self.monotonic());
        taken.map_err(too_many)
    }

    /// [`Master::take_operation`] of the steps of a transaction, whose keys these are. They are
    /// refused together. Gives what was taken of each table, for [`give_back`].
    ///
    /// # Errors
    /// As there.
    pub(crate) fn take_operations_of(
        &self,
        steps: &[TransactionStep<'_>],
        keys: &[Served<'_>],
    ) -> Result<TakenOfTables, Refusal> {
        let mut all = TakenOfTables::new();
        // Mostly all of them are of one table.
        let mut from = 0;
        while let Some(Served { table, .. }) = keys.get(from) {
            let of_it = keys[from..]
                .iter()
                .take_while(|other| other.table.id() == table.id());
            let to = from + of_it.count();
            let is_deletion = |step: &TransactionStep<'_>| {
                let mutation = step.operation.mutation();
                mutation.is_some_and(|mutation| matches!(mutation.change, Change::Delete))
            };
            let must = steps[from..to].iter().all(is_deletion);
            let taken = table.take_operations((to - from) as u64, must, || self.monotonic());
            match taken {
                Ok(taken) => all.push((from, taken)),
                Err(after) => {
                    give_back(&all, keys);
                    return Err(too_many(after));
                }
            }
            from = to;
        }
        Ok(all)
    }
}

/// The operations that the steps of a transaction took, with the first step of each table.
pub(crate) type TakenOfTables = SmallVec<[(usize, Taken); 1]>;

/// Gives back what a transaction took that was not done.
pub(crate) fn give_back(all: &TakenOfTables, keys: &[Served<'_>]) {
    for (step, taken) in all {
        keys[*step].table.give_back(*taken);
    }
}

/// Whether nothing of a tablet comes or goes in this phase.
fn is_settled(phase: TabletPhase) -> bool {
    match phase {
        TabletPhase::Standing | TabletPhase::Serving => true,
        TabletPhase::Recovering
        | TabletPhase::Copying
        | TabletPhase::Frozen
        | TabletPhase::Left => false,
    }
}

fn share_of(grant: &QuotaGrant) -> Share {
    Share {
        name: grant.name.clone(),
        bytes: grant.quota.bytes.unwrap_or(0),
        grown_max: grant.grown_max,
        grown_full: grant.grown_full,
        operations_milli: grant.operations_milli,
    }
}

fn too_many(after: Duration) -> Refusal {
    let after = after.clamp(PAUSE_MIN, PAUSE_MAX);
    Refusal::retry(after, RetryReason::QuotaOperations)
}

/// The refusal of a change for want of bytes.
pub(crate) fn over_quota(over: &OverQuota) -> Refusal {
    if !over.is_full {
        return Refusal::retry(SHARE_RETRY, RetryReason::QuotaShare);
    }
    let message = format!(
        "table {} has its quota of {} bytes: delete objects, or raise it with `pluvio table set`",
        over.name, over.bytes
    );
    Refusal::fatal(FatalKind::QuotaFull, message)
}
