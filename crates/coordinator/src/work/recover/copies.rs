//! Ends of logs that too few backups have are copied to others before anything is given away
//! (COORD-13). As BookKeeper does it when it closes the ledger of a writer that is gone.

use super::inventory::CALLS_MAX;
use super::plan::{Inventory, Thin};
use crate::context::Context;
use core::time::Duration;
use futures_util::stream::{self, StreamExt};
use pluvio_env::Moment;
use pluvio_units::ServerId;
use pluvio_wire::CopyReplica;
use std::collections::BTreeSet;

/// How long an end that too few backups have is waited for: other backups may come that have it or
/// take it. Where nobody takes it, as in a cluster that is too small now, the log is recovered as
/// it was found.
const PATIENCE: Duration = Duration::from_secs(30);

/// What is to be done about thin ends.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Thickened {
    /// There are none, or nobody took them for too long.
    GoOn,
    /// Copies were made: backups have to be asked what they have.
    AskAgain,
    /// Not now.
    Wait,
}

/// Since when ends of a log are thin.
#[derive(Debug, Default)]
pub(super) struct ThinSince(Option<Moment>);

impl ThinSince {
    /// Has thin ends copied.
    pub(super) async fn thicken(
        &mut self,
        context: &Context,
        crashed: ServerId,
        thin: &[Thin],
        inventories: &[Inventory],
    ) -> Thickened {
        if thin.is_empty() {
            self.0 = None;
            return Thickened::GoOn;
        }
        let now = context.now();
        let since = *self.0.get_or_insert(now);
        if now.since(since) >= PATIENCE {
            pluvio_units::mark("recovery-ends-stay-thin");
            return Thickened::GoOn;
        }
        let mut asked = Vec::new();
        for thin in thin {
            asked.extend(requests(context, crashed, thin, inventories));
        }
        let copies = stream::iter(asked).map(|(backup, request)| async move {
            let state = context.state();
            let Some(record) = state.servers.get(&backup) else {
                return false;
            };
            let answer = context.calls.call_while_up(&record.info, &request).await;
            if let Some(Err(error)) = &answer {
                let segment = request.segment;
                tracing::info!(%crashed, %backup, %segment, %error, "the end of a log is not copied");
            }
            matches!(answer, Some(Ok(())))
        });
        let copied: Vec<bool> = copies.buffer_unordered(CALLS_MAX).collect().await;
        match copied.contains(&true) {
            true => {
                pluvio_units::mark("recovery-copies-end-of-log");
                Thickened::AskAgain
            }
            false => Thickened::Wait,
        }
    }
}

/// Whom to ask for copies of one end: backups that have no replica of the segment, by chance.
fn requests(
    context: &Context,
    crashed: ServerId,
    thin: &Thin,
    inventories: &[Inventory],
) -> Vec<(ServerId, CopyReplica)> {
    let has_one = |i: &&Inventory| i.replicas.iter().any(|r| r.segment == thin.segment);
    let have: BTreeSet<ServerId> = inventories
        .iter()
        .filter(has_one)
        .map(|i| i.backup)
        .collect();
    let backups = inventories.iter().map(|i| i.backup);
    let mut free: Vec<ServerId> = backups.filter(|backup| !have.contains(backup)).collect();
    context.env.rng.shuffle(&mut free);
    free.truncate(thin.lacking);
    let sources = thin.sources.iter().cycle();
    let pairs = free.into_iter().zip(sources);
    let request = |(to, from): (ServerId, &ServerId)| {
        let request = CopyReplica {
            crashed,
            segment: thin.segment,
            log: thin.log,
            epoch: thin.epoch,
            length: thin.length,
            closed: thin.closed,
            needed: thin.needed,
            from: *from,
        };
        (to, request)
    };
    pairs.map(request).collect()
}
