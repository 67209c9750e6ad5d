//! Leaves a data directory that is gone, or whose device has failed or hangs. Tells the masters
//! which replicas they have lost with it (BACKUP-14).

use crate::backup::{Backup, Inner};
use crate::directory::{AfterError, Directory, Failed};
use crate::frame::ReplicaKey;
use crate::stats::count;
use core::time::Duration;
use pluvio_env::Address;
use pluvio_units::{CoreId, SegmentId, ServerId};
use pluvio_wire::{Header, Refusal, ReplicasLost, RpcError, call};
use std::collections::BTreeMap;
use std::sync::{Arc, Weak};

/// Segments of one message: the limit of `ReplicasLost`.
const BATCH_MAX: usize = 1024;
/// How long one message to a master may take.
const TELL_LIMIT: Duration = Duration::from_secs(2);
/// Pause between two rounds to the masters that were not reached.
const TELL_PAUSE: Duration = Duration::from_millis(500);
/// Pause between two looks at data directories.
const LOOK_PAUSE: Duration = Duration::from_secs(1);

/// Replicas that masters have yet to be told of.
type Lost = BTreeMap<ServerId, Vec<SegmentId>>;

impl Inner {
    /// The disk of a data directory has failed.
    pub(crate) fn disk_failed(&self, home: &Arc<Directory>) {
        let Some(me) = self.others_than(home) else {
            return;
        };
        match home.failed() {
            AfterError::Nothing => {}
            AfterError::Leave => {
                let why = "its disk has failed again and again".to_owned();
                let _stays_where_no_other_works = me.leave(home, &why);
            }
            AfterError::Trial => self.begin_trial(home),
        }
    }

    /// A trial of a data directory. It may never end, so it keeps nobody from ending.
    fn begin_trial(&self, home: &Arc<Directory>) {
        let (me, home) = (Weak::clone(&self.me), Arc::clone(home));
        self.env.tasks.spawn(CoreId(0), "disk trial", async move {
            if let Err(failed) = home.trial().await
                && let Some(me) = me.upgrade().map(Backup)
            {
                me.trial_failed(&home, &failed);
            }
        });
    }

    /// The backup, if it has other data directories than this one.
    fn others_than(&self, home: &Directory) -> Option<Backup> {
        if self.directories.len() < 2 || home.is_left() {
            return None;
        }
        self.me.upgrade().map(Backup)
    }
}

impl Backup {
    /// Watches data directories in the background.
    pub(crate) fn watch_directories(&self) {
        if self.0.directories.len() < 2 && !self.0.options.tries_idle {
            return;
        }
        let clock = Arc::clone(&self.0.env.clock);
        let me = Arc::downgrade(&self.0);
        let tasks = &self.0.env.tasks;
        tasks.spawn(CoreId(0), "watch data directories", async move {
            loop {
                let Some(backup) = Weak::upgrade(&me).map(Self) else {
                    return;
                };
                backup.look_at_directories();
                drop(backup);
                clock.sleep(LOOK_PAUSE).await;
            }
        });
    }

    fn look_at_directories(&self) {
        let now = self.0.env.clock.now();
        for home in self.0.directories.iter().filter(|home| !home.is_left()) {
            let late = home.look_at_trial();
            if self.0.catalogue().hangs(home, now) {
                let _stays_where_no_other_works = self.leave(home, "its disk hangs");
            } else if let Some(why) = late
                && self.leave(home, &why)
            {
                pluvio_units::mark("backup-trial-finds-hang");
            }
            if self.0.options.tries_idle {
                self.look_at_files(home);
                if home.begin_trial(now) {
                    self.0.begin_trial(home);
                }
            }
            if self.0.directories.len() < 2 {
                continue;
            }
            let (home, tasks) = (Arc::clone(home), &self.0.env.tasks);
            tasks.spawn(CoreId(0), "room of a disk", async move {
                home.look_at_room().await;
            });
        }
    }

    /// The disk of a data directory has failed in a trial: as in a write.
    fn trial_failed(&self, home: &Arc<Directory>, failed: &Failed) {
        if failed.is_new {
            tracing::warn!(
                directory = home.name,
                why = failed.why,
                "a trial of a data directory has failed: look at its device"
            );
        }
        match failed.is_final {
            true => {
                let _stays_where_no_other_works = self.leave(home, &failed.why);
            }
            false => self.0.disk_failed(home),
        }
    }

    /// Goes on without a data directory, if another one works: its frames are lost, until a restart
    /// finds them again.
    fn leave(&self, home: &Arc<Directory>, why: &str) -> bool {
        let now = self.0.env.clock.now();
        let (frames, keys) = {
            let mut catalogue = self.0.catalogue();
            let homes = &self.0.directories;
            if home.is_left() || !catalogue.another_works(homes, home, now) {
                return false;
            }
            catalogue.leave(home, why)
        };
        pluvio_units::mark("backup-leaves-directory");
        count(&self.0.counters.damaged, frames);
        tracing::error!(
            directory = home.name,
            frames,
            why,
            "left a data directory: its frames are lost, and masters replace them; mend or replace its device, then start this server again"
        );
        home.tell_left();
        self.tell_lost(keys);
        true
    }

    /// Tells masters of lost replicas, until each has confirmed.
    pub(crate) fn tell_lost(&self, keys: Vec<ReplicaKey>) {
        let mut lost = Lost::new();
        for key in keys {
            lost.entry(key.master).or_default().push(key.segment);
        }
        let me = self.clone();
        let tasks = &self.0.env.tasks;
        tasks.spawn(CoreId(0), "tell lost replicas", async move {
            while !lost.is_empty() {
                lost = me.tell_once(lost).await;
                me.0.env.clock.sleep(TELL_PAUSE).await;
            }
        });
    }

    /// Gives what is left to tell.
    async fn tell_once(&self, lost: Lost) -> Lost {
        let mut left = Lost::new();
        for (master, segments) in lost {
            let address = {
                let catalogue = self.0.catalogue();
                match &catalogue.list {
                    Some(list) if list.is_up(master) => {
                        let info = list.get(master);
                        info.map(|info| Address::from(info.address.as_str()))
                    }
                    // It recovers nothing, and asks nobody any more.
                    Some(_) if catalogue.is_known(master) => continue,
                    Some(_) | None => None,
                }
            };
            let rest = match address {
                Some(address) => self.tell(master, &address, segments).await,
                None => segments,
            };
            if !rest.is_empty() {
                left.insert(master, rest);
            }
        }
        left
    }

    /// Tells a master; gives what it was not told.
    async fn tell(
        &self,
        master: ServerId,
        address: &Address,
        mut segments: Vec<SegmentId>,
    ) -> Vec<SegmentId> {
        let (backup, cluster) = {
            let catalogue = self.0.catalogue();
            (catalogue.me, catalogue.cluster)
        };
        let (Some(backup), Some(cluster)) = (backup, cluster) else {
            return segments;
        };
        while !segments.is_empty() {
            let batch: Vec<_> = segments.iter().take(BATCH_MAX).copied().collect();
            let told = batch.len();
            let message = ReplicasLost {
                cluster,
                backup,
                segments: batch,
            };
            let (network, header) = (&*self.0.env.network, Header::to(master));
            match call(network, address, header, &message, TELL_LIMIT).await {
                Ok(()) => drop(segments.drain(..told)),
                Err(RpcError::Refused(refusal @ Refusal::Fatal { .. })) => {
                    tracing::warn!(%master, %refusal, "a master does not want to know of lost replicas: start it again");
                    return Vec::new();
                }
                Err(error) => {
                    tracing::debug!(%master, %error, "a master is not told of lost replicas yet");
                    return segments;
                }
            }
        }
        segments
    }
}
