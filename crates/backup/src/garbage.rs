//! Frees replicas that nobody needs [RAMCloud §8]. Some belong to masters that left the cluster,
//! others are from a former life of this server and their masters have replaced them.

use crate::backup::Backup;
use crate::frame::{Frame, ReplicaKey};
use core::time::Duration;
use pluvio_env::Address;
use pluvio_units::{CoreId, SegmentId, ServerId};
use pluvio_wire::{Header, IsReplicaNeeded, call};
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Segments of one question: the limit of `IsReplicaNeeded`.
const BATCH_MAX: usize = 1024;
const ASK_LIMIT: Duration = Duration::from_secs(2);
/// After a disk error.
const PAUSE_AFTER_ERROR: Duration = Duration::from_secs(1);

impl Backup {
    /// Frees, in the background, what masters left behind that are not in the cluster any more.
    pub(crate) fn spawn_orphans(&self) {
        let me = self.clone();
        self.0.env.tasks.spawn(
            CoreId(0),
            "free orphans",
            async move { me.free_orphans().await },
        );
    }

    async fn free_orphans(&self) {
        let _alone = self.0.freeing_orphans.lock().await;
        let mut left = Vec::new();
        loop {
            let mut orphans = self.0.catalogue().orphans();
            orphans.append(&mut left);
            let Some(first) = orphans.first() else { return };
            tracing::info!(replicas = orphans.len(), master = %first.master, "freeing replicas of servers that left");
            for key in orphans {
                // Not remembered: the server list refuses their masters from now on (BACKUP-5).
                let taken = self.0.catalogue().take(key, false);
                if self.0.remove_taken(key, taken).await.is_err() {
                    left.push(key);
                }
            }
            if !left.is_empty() {
                self.0.env.clock.sleep(PAUSE_AFTER_ERROR).await;
            }
        }
    }

    /// Starts asking masters about replicas found at start, if that was not started yet.
    pub(crate) fn start_garbage_collection(&self) {
        if self.0.garbage_started.swap(true, Ordering::Relaxed) {
            return;
        }
        let me = self.clone();
        self.0
            .env
            .tasks
            .spawn(CoreId(0), "backup garbage", async move {
                me.collect_garbage().await
            });
    }

    /// One batch of one master at a time, in turn, until every replica found at start was freed or
    /// written again.
    async fn collect_garbage(&self) {
        let mut cursor = ReplicaKey::first_of(ServerId(0));
        loop {
            self.0
                .env
                .clock
                .sleep(self.0.options.garbage_interval)
                .await;
            let found = self.0.catalogue().found();
            if found.is_empty() {
                return;
            }
            if let Some((address, batch)) = self.next_batch(&found, cursor) {
                cursor = batch.last().map_or(cursor, |f| f.key);
                self.ask(&address, batch).await;
            }
        }
    }

    /// The next batch behind `cursor`, round and round, of a master that is up.
    fn next_batch(
        &self,
        found: &[Arc<Frame>],
        cursor: ReplicaKey,
    ) -> Option<(Address, Vec<Arc<Frame>>)> {
        let list = self.0.catalogue().list.clone()?;
        let behind = found.partition_point(|f| f.key <= cursor);
        let (before, after) = found.split_at(behind);
        let mut round = after.iter().chain(before);
        let first = round.find(|f| list.is_up(f.key.master))?;
        let server = list.get(first.key.master)?;
        let of_master = round.filter(|f| f.key.master == server.id && f.key > first.key);
        let batch = std::iter::once(first)
            .chain(of_master)
            .take(BATCH_MAX)
            .cloned()
            .collect();
        Some((Address::from(server.address.as_str()), batch))
    }

    async fn ask(&self, address: &Address, batch: Vec<Arc<Frame>>) {
        let Some(master) = batch.first().map(|f| f.key.master) else {
            return;
        };
        let segments: Vec<SegmentId> = batch.iter().map(|f| f.key.segment).collect();
        let (backup, cluster) = {
            let catalogue = self.0.catalogue();
            (catalogue.me, catalogue.cluster)
        };
        let (Some(backup), Some(cluster)) = (backup, cluster) else {
            return;
        };
        let question = IsReplicaNeeded {
            cluster,
            backup,
            segments,
        };
        let network = &*self.0.env.network;
        let answer = match call(network, address, Header::to(master), &question, ASK_LIMIT).await {
            Ok(answer) => answer,
            // Not known, then: they stay. Also when another cluster's server answers there.
            Err(error) => {
                tracing::debug!(%master, %error, "cannot ask a master about its replicas");
                return;
            }
        };
        if answer.needed.len() != batch.len() {
            tracing::warn!(%master, "a master answered about another number of replicas than was asked");
            return;
        }
        for (frame, needed) in batch.into_iter().zip(answer.needed) {
            if !needed {
                pluvio_units::mark("backup-frees-found-frame");
            }
            if !needed && self.0.free_found(&frame).await.is_err() {
                return;
            }
        }
    }
}
