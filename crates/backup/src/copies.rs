//! Replicas of a crashed master that its recovery has copied from one backup to another. They are
//! the ends of logs that too few backups have (`docs/recovery.md`).

use crate::admit::Writer;
use crate::backup::{Backup, Inner};
use crate::catalogue::not_recovered;
use crate::frame::{ReplicaKey, Stage};
use core::time::Duration;
use pluvio_env::Address;
use pluvio_units::CoreId;
use pluvio_wire::{
    CopyReplica, FatalKind, Header, ReadReplica, ReadReplicaReply, Refusal, RetryReason, RpcError,
    WriteReplica, call,
};

/// How long another backup may take to send a replica.
const READ_LIMIT: Duration = Duration::from_millis(1500);
/// When to ask again where the other backup could not give it.
const AGAIN: Duration = Duration::from_millis(100);

impl Backup {
    /// Keeps a replica of a crashed master that another backup has (BACKUP-16). The master's writes
    /// are refused from now on. `core` is where the request arrived. The work goes on when the
    /// future is dropped.
    ///
    /// # Errors
    /// - `Retry`, nothing was changed: `NotServing` (this backup does not know both servers),
    ///   `Busy` (the other one did not give it), `NoSpace`.
    /// - `Fatal`: `Stale` (this backup has another replica of the segment), and those of
    ///   [`Backup::write_replica`].
    pub async fn copy_replica(&self, core: CoreId, request: CopyReplica) -> Result<(), Refusal> {
        self.0.catalogue().fence(request.crashed);
        let me = self.clone();
        let work = async move { me.0.copy(&request).await };
        self.detached(core, "copy replica", work).await
    }

    /// The first bytes of a replica of a crashed master, for another backup.
    ///
    /// # Errors
    /// `Fatal`: `Stale` (the master is not being recovered here), `NotFound` (no replica has as
    /// much). Or `Corrupt` (it is damaged), `Other` (the disk failed; a later try may succeed).
    pub async fn read_replica(&self, request: ReadReplica) -> Result<ReadReplicaReply, Refusal> {
        if !self.is_fenced(request.crashed) {
            return Err(not_recovered(request.crashed));
        }
        let key = ReplicaKey {
            master: request.crashed,
            segment: request.segment,
        };
        let data = self.0.read_whole(key, request.length as usize).await?;
        Ok(ReadReplicaReply { data })
    }
}

impl Inner {
    async fn copy(&self, request: &CopyReplica) -> Result<(), Refusal> {
        let (cluster, from) = {
            let catalogue = self.catalogue();
            // A late request, after the master has left, is for nothing.
            let list = catalogue.list.as_ref();
            let list = list.filter(|list| list.get(request.crashed).is_some());
            let from = list.and_then(|list| list.get(request.from));
            let from = from.map(|server| Address::from(server.address.as_str()));
            let (Some(cluster), Some(from)) = (catalogue.cluster, from) else {
                return Err(Refusal::retry(AGAIN, RetryReason::NotServing));
            };
            (cluster, from)
        };
        if self.has_as_much(request)? {
            return Ok(());
        }
        let read = ReadReplica {
            crashed: request.crashed,
            segment: request.segment,
            length: request.length,
        };
        let network = &*self.env.network;
        let answer = call(network, &from, Header::to(request.from), &read, READ_LIMIT).await;
        let data = answer.map_err(|error| not_given(request, &error))?.data;
        if data.len() != request.length as usize {
            let (segment, bytes) = (request.segment, data.len());
            return Err(Refusal::malformed(format!(
                "{bytes} bytes of segment {segment} came where {} were asked for",
                request.length
            )));
        }
        let write = WriteReplica {
            cluster,
            master: request.crashed,
            segment: request.segment,
            log: request.log,
            side: false,
            epoch: request.epoch,
            open: true,
            rewriting: false,
            primary: false,
            offset: 0,
            certified: request.length,
            close: request.closed,
            synced: true,
            needed: request.needed,
            data,
        };
        pluvio_units::mark("backup-copies-end-of-log");
        self.write(&write, Writer::Recovery).await
    }

    /// Whether as much of the segment is here already.
    ///
    /// # Errors
    /// `Stale`: what is here is something else, and stays as it is.
    fn has_as_much(&self, request: &CopyReplica) -> Result<bool, Refusal> {
        let key = ReplicaKey {
            master: request.crashed,
            segment: request.segment,
        };
        let catalogue = self.catalogue();
        let frame = catalogue.frames.get(&key);
        let Some(frame) = frame.or_else(|| catalogue.rewrites.get(&key)) else {
            return Ok(false);
        };
        let state = frame.state();
        let is_usable = match state.stage {
            Stage::Usable => true,
            // Perhaps of a copy that is under way.
            Stage::Creating => return Err(Refusal::retry(AGAIN, RetryReason::Busy)),
            Stage::Rewriting | Stage::Damaged(_) | Stage::Gone => false,
        };
        let is_same = is_usable
            && state.log == request.log
            && state.epoch >= request.epoch
            && state.closed == request.closed
            && state.certified >= request.length
            && !state.unsynced;
        match is_same {
            true => Ok(true),
            false => Err(Refusal::fatal(
                FatalKind::Stale,
                format!("there is another replica of segment {}", request.segment),
            )),
        }
    }
}

/// The other backup has not given the replica.
fn not_given(request: &CopyReplica, error: &RpcError) -> Refusal {
    let CopyReplica { segment, from, .. } = request;
    tracing::info!(%segment, %from, %error, "a replica cannot be copied");
    Refusal::retry(AGAIN, RetryReason::Busy)
}
