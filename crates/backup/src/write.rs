//! Opening, appending to, closing and freeing replicas [RAMCloud §4.1, §8].

use crate::backup::{Backup, Inner};
use crate::catalogue::no_space;
use crate::frame::{DIRECTORY, Frame, FrameState, ReplicaKey, Stage};
use crate::plan::{Plan, check_shape, plan};
use crate::stats::count;
use bytes::Bytes;
use pluvio_env::{DiskError, File, OpenMode};
use pluvio_format::{FRAME_DATA_OFFSET, FRAME_SLOT_BYTES, LastWrite};
use pluvio_units::{ClusterId, CoreId};
use pluvio_wire::{FatalKind, FreeReplica, Refusal, RetryReason, WriteReplica};
use std::sync::Arc;
use std::time::Duration;

impl Backup {
    /// Opens, appends to, or closes a replica. `core` is where the request arrived. The write goes
    /// on when the future is dropped.
    ///
    /// # Errors
    /// - `Retry`, nothing was changed: `NotServing` (this backup does not know the master yet),
    ///   `NotReady` (the replica is just being freed or replaced). Or `NoSpace`: the disk is full,
    ///   or too many files are open. Use another backup.
    /// - `Fatal`: `WrongCluster`, `NotInCluster` (the master is dead), `Malformed`, `Corrupt` (the
    ///   disk failed: the replica is lost). `Stale`: the master is being recovered, its epoch is
    ///   over, or the replica is closed. `NotFound`: a write that opens nothing to an unknown or
    ///   freed replica.
    pub async fn write_replica(&self, core: CoreId, request: WriteReplica) -> Result<(), Refusal> {
        let me = self.clone();
        self.detached(
            core,
            "write replica",
            async move { me.0.write(&request).await },
        )
        .await
    }

    /// Frees a replica, whatever its state. `core` is where the request arrived.
    ///
    /// # Errors
    /// - `Retry`: `Busy` when the disk refuses; the replica is invisible already. `NotServing` when
    ///   this backup has not joined a cluster yet.
    /// - `Fatal`: `WrongCluster`, `Stale` when the master is being recovered (BACKUP-4).
    pub async fn free_replica(&self, core: CoreId, request: FreeReplica) -> Result<(), Refusal> {
        let me = self.clone();
        let key = ReplicaKey {
            master: request.master,
            segment: request.segment,
        };
        self.detached(core, "free replica", async move {
            {
                let catalogue = me.0.catalogue();
                catalogue.check_cluster(request.cluster)?;
                catalogue.check_fence(key.master)?;
            }
            me.0.free(key, true).await
        })
        .await
    }
}

impl Inner {
    async fn write(&self, request: &WriteReplica) -> Result<(), Refusal> {
        check_shape(request, self.options.segment_bytes)?;
        let key = ReplicaKey {
            master: request.master,
            segment: request.segment,
        };
        let frame = {
            let mut catalogue = self.catalogue();
            catalogue.check_member(request.master, request.cluster)?;
            catalogue.check_fence(request.master)?;
            catalogue.frame_for(key, request, self.room())
        };
        let frame = frame.inspect_err(|refusal| self.count_refusal(refusal))?;
        let mut turn = frame.turn.lock().await;
        // BACKUP-4: recovery first fences the master, then takes each frame's turn.
        self.catalogue().check_fence(request.master)?;
        let state = frame.state();
        let plan = plan(&state, request)?;
        let result = self
            .execute(&frame, &mut turn, request, &state, &plan)
            .await;
        match result {
            Ok(()) => {
                count(&self.counters.writes, 1);
                Ok(())
            }
            Err(error) => {
                let refusal = self.write_failed(&frame, &state, error).await;
                if frame.state().stage != state.stage {
                    *turn = None;
                }
                self.count_refusal(&refusal);
                Err(refusal)
            }
        }
    }

    /// Data first, then the header that certifies it, then the sync, then our picture of it
    /// (BACKUP-1).
    async fn execute(
        &self,
        frame: &Arc<Frame>,
        turn: &mut Option<Arc<dyn File>>,
        request: &WriteReplica,
        state: &FrameState,
        plan: &Plan,
    ) -> Result<(), DiskError> {
        let created = state.sequence == 0 && state.written == 0;
        let fresh = request.data.slice(plan.skip..);
        if fresh.is_empty() && !plan.header && !plan.sync {
            return Ok(());
        }
        let file = self.file(frame, turn, state, created).await?;
        let added = plan.next.certified.saturating_sub(state.written) as usize;
        let last_write = match state.has_remains {
            // A sector that a loss of power takes from this write may hold those.
            true => LastWrite::default(),
            false => LastWrite::new(state.written, &fresh[..added.min(fresh.len())]),
        };
        if !fresh.is_empty() {
            count(&self.counters.bytes_written, fresh.len() as u64);
            file.write_at(FRAME_DATA_OFFSET as u64 + u64::from(state.written), fresh)
                .await?;
        }
        if plan.sync_first {
            self.syncer
                .sync(Arc::clone(&file), false)
                .await
                .map_err(unsyncable)?;
        }
        let mut next = plan.next.clone();
        if plan.header {
            next.last_write = last_write;
            next.has_remains = false;
            // BACKUP-11
            next.boot = if request.synced {
                0
            } else {
                self.env.disk.boot()
            };
            let header = next.header(self.cluster(), frame.key);
            let at = (header.slot() * FRAME_SLOT_BYTES) as u64;
            file.write_at(at, Bytes::copy_from_slice(&header.encode()))
                .await?;
        }
        if plan.sync {
            // The first sync of a file must cover its name too.
            self.syncer
                .sync(file, state.sequence == 0)
                .await
                .map_err(unsyncable)?;
            next.unsynced = false;
        }
        if plan.complete {
            self.complete(frame, next, plan.sync).await?;
        } else {
            self.catalogue().applied(frame, next);
        }
        if frame.state().closed {
            *turn = None;
        }
        Ok(())
    }

    /// The replacement counts from here on (BACKUP-2).
    async fn complete(
        &self,
        frame: &Arc<Frame>,
        next: FrameState,
        synced: bool,
    ) -> Result<(), DiskError> {
        let old = self.catalogue().frames.get(&frame.key).cloned();
        // While garbage collection removes the old file, nothing may take its name.
        let _old_turn = match &old {
            Some(old) => Some(old.turn.lock().await),
            None => None,
        };
        self.env
            .disk
            .rename(&frame.key.rewriting_path(), &frame.key.path())
            .await?;
        if synced {
            let synced = self.env.disk.sync_directory(DIRECTORY).await;
            // Whatever it says: the file has its name already, and the write cannot be done again.
            synced.map_err(|error| sync_failed(&error))?;
        }
        let mut catalogue = self.catalogue();
        catalogue.applied(frame, next);
        catalogue.completed(frame);
        Ok(())
    }

    fn cluster(&self) -> ClusterId {
        self.catalogue()
            .cluster
            .expect("BACKUP-5: nobody writes before this server has joined a cluster")
    }

    /// The file of a frame whose turn the caller holds.
    async fn file(
        &self,
        frame: &Frame,
        turn: &mut Option<Arc<dyn File>>,
        state: &FrameState,
        created: bool,
    ) -> Result<Arc<dyn File>, DiskError> {
        if let Some(file) = turn {
            return Ok(Arc::clone(file));
        }
        let disk = &*self.env.disk;
        let path = path_of(frame, state);
        let file = if created {
            // A leftover may hold an old header with a larger sequence number.
            disk.remove(&path).await?;
            disk.open(&path, OpenMode::New).await?
        } else {
            disk.open(&path, OpenMode::Existing).await?
        };
        *turn = Some(Arc::clone(&file));
        Ok(file)
    }

    /// A full disk, or too many open files, leaves the frame as it was (BACKUP-1), or takes it away
    /// when it was only being opened. Any other error makes it useless: what the disk has of it is
    /// not known any more.
    async fn write_failed(
        &self,
        frame: &Arc<Frame>,
        state: &FrameState,
        error: DiskError,
    ) -> Refusal {
        let created = state.sequence == 0 && state.written == 0;
        if created {
            if let Err(error) = self.env.disk.remove(&path_of(frame, state)).await {
                tracing::warn!(%error, "cannot remove a frame that could not be opened");
            }
            self.catalogue().forget(frame);
        } else {
            frame.leave_remains();
        }
        if let DiskError::Full { path } = error {
            pluvio_units::mark("backup-disk-full");
            tracing::info!(path, "no space left for a replica");
            return no_space();
        }
        if matches!(error, DiskError::TooManyFiles { .. }) {
            tracing::info!(%error, "a replica cannot be opened");
            return no_space();
        }
        pluvio_units::mark("backup-disk-failed");
        tracing::warn!(%error, "a replica is lost: its disk failed");
        if !created {
            self.damaged(frame, error.to_string());
        }
        Refusal::fatal(
            FatalKind::Corrupt,
            format!("segment {}: {error}", frame.key.segment),
        )
    }

    /// A frame turned out to be useless.
    pub(crate) fn damaged(&self, frame: &Frame, why: String) {
        let mut catalogue = self.catalogue();
        match frame.set_stage(Stage::Damaged(why)) {
            Stage::Creating | Stage::Rewriting | Stage::Usable => {
                count(&self.counters.damaged, 1);
                catalogue.not_open(frame.key);
            }
            // Whoever freed it, or found the damage first, has the last word.
            earlier @ (Stage::Damaged(_) | Stage::Gone) => {
                frame.set_stage(earlier);
            }
        }
    }

    fn count_refusal(&self, refusal: &Refusal) {
        if matches!(
            refusal,
            Refusal::Retry {
                why: RetryReason::NoSpace,
                ..
            }
        ) {
            count(&self.counters.no_space, 1);
        }
    }

    /// Takes a replica away; with `remember`, for good (BACKUP-3).
    pub(crate) async fn free(&self, key: ReplicaKey, remember: bool) -> Result<(), Refusal> {
        let taken = self.catalogue().take(key, remember);
        for frame in &taken {
            // Whoever has the turn may still rename the file.
            let mut turn = frame.turn.lock().await;
            *turn = None;
            frame.set_stage(Stage::Gone);
        }
        // Also when nothing was taken: an earlier attempt may have failed at this point.
        for path in [key.path(), key.rewriting_path()] {
            if let Err(error) = self.env.disk.remove(&path).await {
                tracing::warn!(%error, "cannot remove a frame");
                return Err(Refusal::retry(Duration::from_secs(1), RetryReason::Busy));
            }
        }
        count(&self.counters.freed, taken.len() as u64);
        Ok(())
    }

    /// Frees a replica found at start, unless its master has claimed it meanwhile.
    pub(crate) async fn free_found(&self, frame: &Arc<Frame>) -> Result<(), Refusal> {
        let _turn = frame.turn.lock().await;
        let still = self
            .catalogue()
            .frames
            .get(&frame.key)
            .is_some_and(|f| Arc::ptr_eq(f, frame));
        if !still || !frame.is_found() {
            return Ok(());
        }
        if let Err(error) = self.env.disk.remove(&frame.key.path()).await {
            tracing::warn!(%error, "cannot remove a frame");
            return Err(Refusal::retry(Duration::from_secs(1), RetryReason::Busy));
        }
        self.catalogue().forget(frame);
        count(&self.counters.freed, 1);
        Ok(())
    }
}

/// Where a frame in this state has its file.
fn path_of(frame: &Frame, state: &FrameState) -> String {
    match &state.stage {
        Stage::Rewriting => frame.key.rewriting_path(),
        Stage::Creating | Stage::Usable | Stage::Damaged(_) | Stage::Gone => frame.key.path(),
    }
}

/// A failed sync loses what was written for good, whatever the device calls it. Not if it never
/// began, for want of files: then the write can be done again.
fn unsyncable(error: DiskError) -> DiskError {
    if matches!(error, DiskError::TooManyFiles { .. }) {
        return error;
    }
    sync_failed(&error)
}

fn sync_failed(error: &DiskError) -> DiskError {
    DiskError::Other {
        path: DIRECTORY.to_owned(),
        message: format!("sync failed: {error}"),
    }
}
