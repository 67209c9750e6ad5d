//! Opening, appending to, closing and freeing replicas [RAMCloud §4.1, §8].

use crate::admit::{Admitted, Writer, lost};
use crate::backup::{Backup, Inner};
use crate::catalogue::no_space;
use crate::directory::{Directory, FRAMES};
use crate::frame::{Frame, FrameState, ReplicaKey, Stage};
use crate::plan::Plan;
use crate::stats::count;
use bytes::Bytes;
use pluvio_env::{DiskError, File, OpenMode};
use pluvio_format::{
    CERTIFICATE_BYTES, CertificatePlace, Certified, FRAME_SLOT_BYTES, FrameHeader,
};
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
        self.detached(core, "write replica", async move {
            me.0.write(&request, Writer::Master).await
        })
        .await
    }

    /// [`Backup::write_replica`] for a write that only adds bytes to an open head, and need not
    /// wait. Where nothing is synced, that is most of them. `None`: nothing was done, and
    /// [`Backup::write_replica`] does or refuses it.
    #[must_use]
    pub fn write_now(&self, request: &WriteReplica) -> Option<Result<(), Refusal>> {
        self.0.write_now(request)
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
            let taken = {
                // One lock: a recovery that fences the master next lists it no more (BACKUP-4).
                let mut catalogue = me.0.catalogue();
                catalogue.check_cluster(request.cluster)?;
                catalogue.check_fence(key.master)?;
                catalogue.take(key, true)
            };
            me.0.remove_taken(key, taken).await
        })
        .await
    }
}

/// What came of a write.
enum Written {
    Done(Result<(), Refusal>),
    /// A new frame's data directory is full, and another one may take it. Its header was not
    /// written, so nothing of it can be found, even if the file stays.
    Elsewhere(Refusal),
}

impl Inner {
    pub(crate) async fn write(&self, request: &WriteReplica, by: Writer) -> Result<(), Refusal> {
        let mut tries = self.directories.len();
        loop {
            tries = tries.saturating_sub(1);
            match self.write_once(request, by).await? {
                Written::Done(result) => return result,
                Written::Elsewhere(refusal) if tries == 0 => return Err(refusal),
                Written::Elsewhere(_) => pluvio_units::mark("backup-opens-frame-elsewhere"),
            }
        }
    }

    async fn write_once(&self, request: &WriteReplica, by: Writer) -> Result<Written, Refusal> {
        let admitted = self.admit(request, by).await;
        let Admitted {
            mut held,
            state,
            plan,
        } = admitted.inspect_err(|refusal| self.count_refusal(refusal))?;
        let frame = Arc::clone(&held.frame);
        frame.set_busy(Some(self.env.clock.now()));
        let work = self.execute(&frame, &mut held.turn, request, &state, &plan);
        let result = frame.home.unless_left(work).await;
        frame.set_busy(None);
        match result {
            // BACKUP-14: what it says now does not count.
            Some(_) if frame.home.is_left() => Err(lost(request)),
            None => Err(lost(request)),
            Some(Ok(())) => {
                held.done();
                count(&self.counters.writes, 1);
                Ok(Written::Done(Ok(())))
            }
            Some(Err(error)) => {
                let _under_way = frame.home.under_way();
                let elsewhere = state.is_new() && matches!(error, DiskError::Full { .. });
                let failed = self.write_failed(&frame, &state, error);
                let refusal = frame.home.unless_left(failed).await;
                let refusal = refusal.ok_or_else(|| lost(request))?;
                self.count_refusal(&refusal);
                Ok(match elsewhere {
                    true => Written::Elsewhere(refusal),
                    false => Written::Done(Err(refusal)),
                })
            }
        }
    }

    /// See [`Backup::write_now`].
    fn write_now(&self, request: &WriteReplica) -> Option<Result<(), Refusal>> {
        let Admitted { held, state, plan } = self.admit_now(request)?;
        let (frame, file) = (&held.frame, held.turn.as_ref()?);
        let only_adds = plan.in_line
            && !plan.header
            && plan.header_first.is_none()
            && !plan.complete
            && !plan.sync_first
            && !plan.sync;
        if !only_adds {
            return None;
        }
        let fresh = &request.data[plan.skip..];
        let mut next = plan.next.clone();
        // BACKUP-11
        next.boot = frame.home.env.disk.boot();
        let certificate = self.certify(frame, &plan, &mut next, fresh);
        match file.write_both_now(state.file_bytes(), &certificate, fresh)? {
            Ok(()) => {
                count(&self.counters.bytes_written, fresh.len() as u64);
                count(&self.counters.writes, 1);
                self.catalogue().applied(frame, next);
                Some(Ok(()))
            }
            Err(error) => {
                frame.leave_remains();
                let refusal = self.refusal_of(frame, false, &error);
                self.count_refusal(&refusal);
                Some(Err(refusal))
            }
        }
    }

    /// Puts the data and what certifies it into the file, then syncs, then changes our picture of
    /// it (BACKUP-1).
    async fn execute(
        &self,
        frame: &Arc<Frame>,
        turn: &mut Option<Arc<dyn File>>,
        request: &WriteReplica,
        state: &FrameState,
        plan: &Plan,
    ) -> Result<(), DiskError> {
        let fresh = request.data.slice(plan.skip..);
        if fresh.is_empty() && !plan.header && !plan.in_line && !plan.sync {
            return Ok(());
        }
        let file = self.file(frame, turn, state).await?;
        if let Some(first) = &plan.header_first {
            self.write_header(frame, &file, first).await?;
            if request.synced {
                sync(&frame.home, &file, false).await?;
            }
        }
        count(&self.counters.bytes_written, fresh.len() as u64);
        let mut next = plan.next.clone();
        if plan.header || plan.in_line {
            // BACKUP-11
            next.boot = if request.synced {
                0
            } else {
                frame.home.env.disk.boot()
            };
        }
        let at = state.file_bytes();
        if plan.in_line {
            let certificate = self.certify(frame, plan, &mut next, &fresh);
            let certificate = Bytes::copy_from_slice(&certificate);
            file.write_both_at(at, certificate, fresh).await?;
        } else if !fresh.is_empty() {
            file.write_at(at, fresh).await?;
        }
        if plan.sync_first {
            sync(&frame.home, &file, false).await?;
        }
        if plan.header {
            let header = self.write_header(frame, &file, &next).await?;
            if next.place.is_none() && !next.closed {
                next.place = CertificatePlace::first(&header);
            }
        }
        if plan.sync {
            // The first sync of a file must cover its name too.
            sync(&frame.home, &file, state.sequence == 0).await?;
            next.unsynced = false;
        }
        if plan.complete {
            self.complete(frame, next, plan.sync).await?;
        } else {
            self.catalogue().applied(frame, next);
        }
        Ok(())
    }

    /// The certificate of `fresh`; `next` gets the place behind it.
    fn certify(
        &self,
        frame: &Frame,
        plan: &Plan,
        next: &mut FrameState,
        fresh: &[u8],
    ) -> [u8; CERTIFICATE_BYTES] {
        let place = next.place.or_else(|| {
            let begins = plan.header_first.as_ref()?;
            CertificatePlace::first(&begins.header(self.cluster(), frame.key))
        });
        let place = place.expect("a header says where certificates begin, before there is one");
        let says = Certified {
            length: next.certified,
            epoch: next.epoch,
            boot: next.boot,
            needed: next.needed,
        };
        let (certificate, behind) = place.certify(says, fresh);
        next.place = Some(behind);
        certificate
    }

    async fn write_header(
        &self,
        frame: &Frame,
        file: &Arc<dyn File>,
        state: &FrameState,
    ) -> Result<FrameHeader, DiskError> {
        let header = state.header(self.cluster(), frame.key);
        let at = (header.slot() * FRAME_SLOT_BYTES) as u64;
        file.write_at(at, Bytes::copy_from_slice(&header.encode()))
            .await?;
        Ok(header)
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
            Some(old) => old.turn().await,
            None => None,
        };
        let disk = &*frame.home.env.disk;
        let path = frame.key.path();
        disk.rename(&frame.key.rewriting_path(), &path).await?;
        if synced {
            let synced = disk.sync_directory(FRAMES).await;
            // Whatever it says: the file has its name already, and the write cannot be done again.
            synced.map_err(|error| sync_failed(&error))?;
        }
        let elsewhere = |old: &&Arc<Frame>| old.home.index != frame.home.index;
        if let Some(old) = old.as_ref().filter(elsewhere) {
            let removed = old.home.unless_left(old.home.env.disk.remove(&path)).await;
            // A start that finds both keeps the better one.
            if let Some(Err(error)) = removed {
                tracing::warn!(%error, "cannot remove a frame that was replaced");
            }
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
    ) -> Result<Arc<dyn File>, DiskError> {
        if let Some(file) = turn {
            return Ok(Arc::clone(file));
        }
        let disk = &*frame.home.env.disk;
        let path = path_of(frame, state);
        let file = if state.is_new() {
            // A leftover may hold an old header with a larger sequence number.
            disk.remove(&path).await?;
            disk.open(&path, OpenMode::New).await?
        } else {
            disk.open(&path, OpenMode::Existing).await?
        };
        frame.set_opened(&file);
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
        let created = state.is_new();
        if created {
            let path = path_of(frame, state);
            if let Err(error) = frame.home.env.disk.remove(&path).await {
                tracing::warn!(%error, "cannot remove a frame that could not be opened");
            }
            self.catalogue().forget(frame);
        } else {
            frame.leave_remains();
        }
        self.refusal_of(frame, created, &error)
    }

    /// The refusal of a write that the disk did not take.
    fn refusal_of(&self, frame: &Frame, created: bool, error: &DiskError) -> Refusal {
        if let DiskError::Full { path } = error {
            pluvio_units::mark("backup-disk-full");
            tracing::info!(path, "no space left for a replica");
            frame.home.was_full();
            return no_space();
        }
        if matches!(error, DiskError::TooManyFiles { .. }) {
            tracing::info!(%error, "a replica cannot be opened");
            return no_space();
        }
        pluvio_units::mark("backup-disk-failed");
        tracing::warn!(%error, directory = frame.home.name, "a replica is lost: its disk failed");
        self.disk_failed(&frame.home);
        if !created {
            self.damaged(frame, error.to_string());
        }
        // A backup with other data directories is of use for other segments.
        let now = self.env.clock.now();
        let kind = match self
            .catalogue()
            .another_works(&self.directories, &frame.home, now)
        {
            true => FatalKind::NotFound,
            false => FatalKind::Corrupt,
        };
        Refusal::fatal(kind, format!("segment {}: {error}", frame.key.segment))
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

    /// Removes the files of a replica that was taken out of the catalogue.
    pub(crate) async fn remove_taken(
        &self,
        key: ReplicaKey,
        taken: Vec<Arc<Frame>>,
    ) -> Result<(), Refusal> {
        let mut homes = vec![false; self.directories.len()];
        for frame in &taken {
            // Whoever has the turn may still rename the file.
            if let Some(mut turn) = frame.turn().await {
                *turn = None;
            }
            frame.set_stage(Stage::Gone);
            homes[frame.home.index] = true;
        }
        for home in &self.directories {
            // Also when nothing was taken: an earlier attempt may have failed at this point.
            if !taken.is_empty() && !homes[home.index] {
                continue;
            }
            for path in [key.path(), key.rewriting_path()] {
                self.remove(home, &path).await?;
            }
        }
        count(&self.counters.freed, taken.len() as u64);
        Ok(())
    }

    /// Frees a replica found at start, unless its master has claimed it meanwhile.
    pub(crate) async fn free_found(&self, frame: &Arc<Frame>) -> Result<(), Refusal> {
        let turn = frame.turn().await;
        let still = self
            .catalogue()
            .frames
            .get(&frame.key)
            .is_some_and(|f| Arc::ptr_eq(f, frame));
        if !still || !frame.is_found() {
            return Ok(());
        }
        self.remove(&frame.home, &frame.key.path()).await?;
        self.catalogue().forget(frame);
        count(&self.counters.freed, 1);
        drop(turn);
        Ok(())
    }

    /// Removes a file, unless its data directory is left: a later life finds it, and asks.
    async fn remove(&self, home: &Arc<Directory>, path: &str) -> Result<(), Refusal> {
        if home.is_left() {
            return Ok(());
        }
        let _under_way = home.under_way();
        match home.unless_left(home.env.disk.remove(path)).await {
            None | Some(Ok(())) => Ok(()),
            Some(Err(error)) => {
                tracing::warn!(%error, directory = home.name, "cannot remove a frame");
                self.disk_failed(home);
                Err(Refusal::retry(Duration::from_secs(1), RetryReason::Busy))
            }
        }
    }
}

async fn sync(home: &Directory, file: &Arc<dyn File>, directory: bool) -> Result<(), DiskError> {
    let synced = home.syncer.sync(Arc::clone(file), directory);
    synced.await.map_err(unsyncable)
}

/// Where a frame in this state has its file.
pub(crate) fn path_of(frame: &Frame, state: &FrameState) -> String {
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
        path: FRAMES.to_owned(),
        message: format!("sync failed: {error}"),
    }
}
