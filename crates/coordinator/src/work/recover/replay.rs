//! The end of an attempt: recovery masters replay their partitions, and report.

use super::attempts::{Attempt, Attempted, Attempts, Failure, Partition};
use super::inventory::CALLS_MAX;
use crate::context::Context;
use crate::state::ServerRecord;
use futures_util::stream::{self, StreamExt};
use pluvio_env::{Moment, timeout};
use pluvio_units::{RecoveryId, ServerId};
use pluvio_wire::{Recover, RecoverySegment, Refusal, RpcError, TabletSpec};
use std::sync::Arc;
use tokio::sync::Notify;

/// How often a master is asked to recover before its partition goes to the next attempt. The
/// request is answered at once, so only loss makes more than one necessary.
const ASK_MAX: usize = 3;

/// What recovery masters are asked for.
pub(super) struct Replay<'a> {
    pub(super) context: &'a Context,
    pub(super) attempts: &'a Attempts,
    pub(super) recovery: RecoveryId,
    pub(super) crashed: ServerId,
    /// When the last backup that answered had fenced the crashed server.
    pub(super) fenced: Moment,
    /// Where to read each segment of the log.
    pub(super) segments: Arc<[RecoverySegment]>,
}

impl Replay<'_> {
    /// Lets the masters replay, and waits until each has reported, crashed or run out of time.
    pub(super) async fn run(&self, partitions: Vec<Partition>) -> Attempted {
        let (recovery, crashed) = (self.recovery, self.crashed);
        let progress = Arc::new(Notify::new());
        let asked: Vec<_> = partitions
            .iter()
            .map(|partition| (partition.master, partition.tablets.clone()))
            .collect();
        let attempt = Attempt {
            crashed,
            not_before: self.fenced + self.context.options.zombie_grace,
            partitions,
            progress: progress.clone(),
        };
        self.attempts.begin(recovery, attempt);
        let work = async {
            self.ask_masters(asked).await;
            self.await_reports(&progress).await
        };
        let (clock, limit) = (
            &*self.context.env.clock,
            self.context.options.recovery_limit,
        );
        let crashes = timeout(clock, limit, work).await;
        if crashes.is_err() {
            tracing::warn!(%crashed, %recovery, "the attempt took too long; what is left is tried again");
        }
        let mut attempted = Attempted {
            master_crashed: matches!(crashes, Ok(true)),
            ..Attempted::default()
        };
        for partition in self.attempts.end(recovery) {
            let why = match partition.result {
                Some(Ok(_)) => {
                    attempted.recovered.insert(partition.master);
                    continue;
                }
                Some(Err(why)) => why,
                None => "no report".to_owned(),
            };
            // A master may have failed at a first part and at the rest.
            let failure = attempted.failed.entry(partition.master);
            let failure = failure.or_insert_with(|| Failure { tried: false, why });
            failure.tried |= partition.tried;
        }
        attempted
    }

    /// Asks every master to recover its partition. The requests of those that wait are not made
    /// yet: each is as large as the list of all segments when it is sent.
    async fn ask_masters(&self, asked: Vec<(ServerId, Vec<TabletSpec>)>) {
        let state = self.context.state();
        let has_ends = |record: &Arc<ServerRecord>| !record.ends.is_empty();
        let is_settled = state.servers.get(&self.crashed).is_some_and(has_ends);
        let early = is_settled && self.context.options.serve_early;
        stream::iter((0..).zip(asked))
            .for_each_concurrent(CALLS_MAX, |(partition, (master, tablets))| async move {
                let request = Recover {
                    recovery: self.recovery,
                    crashed: self.crashed,
                    partition,
                    tablets,
                    segments: Arc::clone(&self.segments),
                    early,
                };
                if let Err(why) = self.ask_master(master, &request).await {
                    self.attempts.give_up(self.recovery, partition, why);
                }
            })
            .await;
    }

    async fn ask_master(&self, master: ServerId, request: &Recover) -> Result<(), String> {
        let state = self.context.state();
        let gone = || "the server crashed".to_owned();
        let info = &state.servers.get(&master).ok_or_else(gone)?.info;
        let mut last = String::new();
        for _ in 0..ASK_MAX {
            let answer = self.context.calls.call_while_up(info, request).await;
            match answer.ok_or_else(gone)? {
                Ok(()) => return Ok(()),
                Err(RpcError::Refused(Refusal::Retry { after_us, why })) => {
                    last = why.to_string();
                    let after = core::time::Duration::from_micros(u64::from(after_us));
                    let limit = self.context.options.call_limit;
                    self.context.sleep(after.min(limit)).await;
                }
                Err(RpcError::Call(error)) => last = error.to_string(),
                Err(other) => return Err(other.to_string()),
            }
        }
        Err(last)
    }

    /// Waits until every master has reported or crashed; says whether one crashed.
    async fn await_reports(&self, progress: &Notify) -> bool {
        let mut states = self.context.ledger.watch();
        let mut crashes = false;
        loop {
            let state = states.borrow_and_update().clone();
            let is_up = |server| state.is_up(server);
            crashes |= self.attempts.give_up_crashed(self.recovery, is_up);
            if self.attempts.has_all_results(self.recovery) {
                return crashes;
            }
            tokio::select! {
                biased;
                () = progress.notified() => {}
                changed = states.changed() => changed.expect("the sender lives as long as this"),
            }
        }
    }
}
