//! The backup as its server sees it.

use crate::catalogue::{Catalogue, Room};
use crate::directory::{Directory, FRAMES};
use crate::error::BackupError;
use crate::frame::{Frame, ReplicaKey, Stage};
use crate::options::BackupOptions;
use crate::recovery::Recoveries;
use crate::scan::scan;
use crate::speed::disk_speed;
use crate::stats::{BackupStats, Counters, DirectoryStats, read};
use core::future::poll_fn;
use core::task::Poll;
use pluvio_env::Env;
use pluvio_units::{ClusterId, CoreId, SegmentId, ServerId};
use pluvio_wire::{Refusal, RetryReason, ServerList};
use std::collections::BTreeMap;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;
use tokio::sync::oneshot;

/// A write that takes longer will not end, nor will a trial: a disk that is merely slow takes less.
/// Masters have left its replica behind long since. For so long a data directory may be gone, and
/// another one must work.
const HANG_MAX: Duration = Duration::from_secs(20);
/// Between two looks for such a write.
const HANG_LOOK_PAUSE: Duration = Duration::from_secs(1);

/// The backup of one server. Cheap to clone; all clones are the same backup.
#[derive(Clone)]
pub struct Backup(pub(crate) Arc<Inner>);

pub(crate) struct Inner {
    pub(crate) env: Env,
    pub(crate) options: BackupOptions,
    /// The backup itself.
    pub(crate) me: Weak<Self>,
    /// Where frames lie; the first one is that of `env`.
    pub(crate) directories: Vec<Arc<Directory>>,
    pub(crate) counters: Arc<Counters>,
    pub(crate) catalogue: Mutex<Catalogue>,
    pub(crate) recoveries: Recoveries,
    /// Those that masters left behind are freed by one task at a time.
    pub(crate) freeing_orphans: tokio::sync::Mutex<()>,
    pub(crate) garbage_started: std::sync::atomic::AtomicBool,
}

impl Backup {
    /// Looks at the frames on the disk and measures how fast it is. Nothing is
    /// freed before [`Backup::server_list_changed`].
    ///
    /// # Errors
    /// See [`BackupError`].
    pub async fn start(env: Env, options: BackupOptions) -> Result<Self, BackupError> {
        let counters = Arc::new(Counters::default());
        let directories = Directory::all(&env, &options.first, &options.further, &counters);
        let mut catalogue = Catalogue::of(options.cluster);
        let mut twice = Vec::new();
        for home in &directories {
            let found = scan(home, catalogue.cluster, &options, &counters).await;
            let found = match found.map_err(|error| error.of_directory(home)) {
                Ok(found) => found,
                Err(error) if error.is_of_further() && options.leaves_failed => {
                    tracing::error!(directory = home.name, %error, "a data directory cannot be read, and is left");
                    home.set_left(error.to_string());
                    continue;
                }
                Err(error) => return Err(error),
            };
            catalogue.cluster = found.cluster;
            let frames = found.frames.into_iter();
            twice.extend(frames.filter_map(|frame| catalogue.insert_better(frame)));
        }
        for frame in twice {
            tracing::info!(
                path = frame.key.path(),
                directory = frame.home.name,
                "a frame is there twice, and the worse one is removed"
            );
            if let Err(error) = frame.home.env.disk.remove(&frame.key.path()).await {
                tracing::warn!(%error, "cannot remove a frame");
            }
        }
        for home in directories.iter().filter(|home| !home.is_left()) {
            let mb_per_s = disk_speed(&home.env).await;
            home.mb_per_s.store(mb_per_s, Ordering::Relaxed);
            let (frames, bytes) = home.holds();
            tracing::info!(
                directory = home.name,
                frames,
                bytes,
                mb_per_s,
                "backup started"
            );
        }
        let me = Self(Arc::new_cyclic(|me| Inner {
            me: Weak::clone(me),
            directories,
            recoveries: Recoveries::new(&options),
            catalogue: Mutex::new(catalogue),
            freeing_orphans: tokio::sync::Mutex::new(()),
            garbage_started: false.into(),
            env,
            options,
            counters,
        }));
        me.watch_directories();
        Ok(me)
    }

    /// The cluster that the frames, or the options, say this data directory belongs to.
    #[must_use]
    pub fn cluster(&self) -> Option<ClusterId> {
        self.0.catalogue().cluster
    }

    /// How fast the disks are together, in MB/s, at least 1. Goes into the server list.
    #[must_use]
    pub fn disk_mb_per_s(&self) -> u32 {
        let here = self.0.directories.iter().filter(|home| !home.is_left());
        here.map(|home| home.speed())
            .fold(0, u32::saturating_add)
            .max(1)
    }

    /// The coordinator has given this server its id. Until then every write is put off.
    ///
    /// # Errors
    /// When the frames on this disk belong to another cluster; the server must stop then.
    pub fn enlisted(&self, me: ServerId, cluster: ClusterId) -> Result<(), BackupError> {
        let mut catalogue = self.0.catalogue();
        match catalogue.cluster {
            Some(ours) if ours != cluster => {
                Err(BackupError::foreign(FRAMES.to_owned(), ours, cluster))
            }
            Some(_) | None => {
                catalogue.cluster = Some(cluster);
                catalogue.me = Some(me);
                Ok(())
            }
        }
    }

    /// A new server list. Older ones are ignored. Replicas of masters that are not in it are
    /// freed in the background, and masters that are up are asked about replicas found at start.
    pub fn server_list_changed(&self, list: &ServerList) {
        let (newer, gone) = {
            let mut catalogue = self.0.catalogue();
            (catalogue.set_list(list), catalogue.orphans())
        };
        if !newer {
            return;
        }
        self.0.recoveries.keep_listed(list);
        if !gone.is_empty() {
            self.spawn_orphans();
        }
        self.start_garbage_collection();
    }

    /// Whether this backup takes part in a recovery of `master`, whose writes it refuses since
    /// (BACKUP-4).
    #[must_use]
    pub fn is_fenced(&self, master: ServerId) -> bool {
        self.0.catalogue().check_fence(master).is_err()
    }

    /// Ends when a write to the disk hangs, or a trial of it, or when the data directory is gone,
    /// and says so. The process should then end: masters that need this backup wait for it, or
    /// count on it, as long as it is there (BACKUP-13).
    pub async fn unusable(&self) -> String {
        loop {
            self.0.env.clock.sleep(HANG_LOOK_PAUSE).await;
            let now = self.0.env.clock.now();
            let here = || self.0.directories.iter().filter(|home| !home.is_left());
            if let Some(home) = here().find(|home| home.trial_seconds() >= HANG_MAX.as_secs()) {
                pluvio_units::mark("backup-hangs");
                let (name, seconds) = (&home.name, home.trial_seconds());
                return format!("its disk hangs: a trial of {name} has not ended for {seconds} s");
            }
            let gone = here().find_map(|home| Some((&home.name, home.why_gone(HANG_MAX)?)));
            if let Some((name, why)) = gone {
                pluvio_units::mark("backup-directory-gone");
                return format!(
                    "its data directory {name} is gone: {why} Bring it back, or make an empty one, and start this server again"
                );
            }
            let busiest = {
                let catalogue = self.0.catalogue();
                let busy = here().filter_map(|home| catalogue.busiest(home, now));
                busy.max_by_key(|(_, time)| *time)
            };
            if let Some((key, time)) = busiest.filter(|(_, time)| *time >= HANG_MAX) {
                pluvio_units::mark("backup-hangs");
                let (path, seconds) = (key.path(), time.as_secs());
                return format!("its disk hangs: a write to {path} has not ended for {seconds} s");
            }
        }
    }

    /// What it holds and has done.
    #[must_use]
    pub fn stats(&self) -> BackupStats {
        let counters = &self.0.counters;
        let recovery_buffer_bytes = self.0.recoveries.buffer_bytes();
        let catalogue = self.0.catalogue();
        BackupStats {
            frames: (catalogue.frames.len() + catalogue.rewrites.len()) as u64,
            frames_open: catalogue.open_frames() as u64,
            frames_found: catalogue.found_count() as u64,
            frame_bytes: catalogue.bytes,
            frames_damaged: read(&counters.damaged),
            frames_freed: read(&counters.freed),
            writes: read(&counters.writes),
            bytes_written: read(&counters.bytes_written),
            sync_rounds: read(&counters.sync_rounds),
            refused_no_space: read(&counters.no_space),
            recovery_reads: read(&counters.recovery_reads),
            recovery_answers: read(&counters.recovery_answers),
            recovery_evicted: read(&counters.recovery_evicted),
            recovery_buffer_bytes,
        }
    }

    /// The data directories, the first one first.
    #[must_use]
    pub fn directories(&self) -> Vec<DirectoryStats> {
        let directory = |home: &Arc<Directory>| {
            let (frames, frame_bytes) = home.holds();
            DirectoryStats {
                name: home.name.clone(),
                left: home.why_left().map(str::to_owned),
                trouble: home.trouble(),
                frames,
                frame_bytes,
                room: home.room(),
                mb_per_s: home.speed(),
            }
        };
        let missing = self.0.options.missing.iter();
        let missing = missing.map(|(name, why)| DirectoryStats {
            name: name.clone(),
            left: Some(why.clone()),
            ..DirectoryStats::default()
        });
        let here = self.0.directories.iter().map(directory);
        here.chain(missing).collect()
    }

    /// Every frame, by master and segment, with whether it is of any use; for checkers.
    #[must_use]
    pub fn frames(&self) -> BTreeMap<(ServerId, SegmentId), bool> {
        let catalogue = self.0.catalogue();
        let all = catalogue.rewrites.iter().chain(&catalogue.frames);
        let frame = |(key, frame): (&ReplicaKey, &Arc<Frame>)| {
            let useful = match frame.state().stage {
                Stage::Creating | Stage::Rewriting | Stage::Usable => true,
                Stage::Damaged(_) | Stage::Gone => false,
            };
            ((key.master, key.segment), useful)
        };
        all.map(frame).collect()
    }

    /// Runs `work` to its end, even when the caller has gone. An I/O must not be cut off between
    /// the disk and our picture of it. Work that waits for something becomes a task of its own.
    pub(crate) async fn detached<T: Send + 'static>(
        &self,
        core: CoreId,
        name: &'static str,
        work: impl Future<Output = Result<T, Refusal>> + Send + 'static,
    ) -> Result<T, Refusal> {
        let mut work = Box::pin(work);
        let at_once = poll_fn(|context| Poll::Ready(work.as_mut().poll(context)));
        if let Poll::Ready(result) = at_once.await {
            return result;
        }
        let (done, wait) = oneshot::channel();
        self.0.env.tasks.spawn(core, name, async move {
            // The caller may have gone; the work stays done.
            drop(done.send(work.await));
        });
        wait.await.unwrap_or_else(|_| {
            Err(Refusal::retry(
                Duration::from_millis(100),
                RetryReason::NotServing,
            ))
        })
    }
}

impl Inner {
    pub(crate) fn catalogue(&self) -> MutexGuard<'_, Catalogue> {
        self.catalogue
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn room(&self) -> Room {
        Room {
            frame_bytes_max: self.options.frame_bytes_max,
            open_frames_max: self.options.open_frames_max,
            segment_bytes: self.options.segment_bytes as u64,
        }
    }
}
