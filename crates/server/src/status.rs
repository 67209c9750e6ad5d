//! The server's state and work, in one message.

use crate::local::Local;
use crate::membership::{Membership, Standing};
use core::time::Duration;
use pluvio_backup::{Backup, DirectoryStats};
use pluvio_env::{Env, Moment};
use pluvio_redis::RedisService;
use pluvio_units::{CoreId, TimeSpread};
use pluvio_wire::{DataDirectoryStatus, DoorPlace, MappedReaders, ServerStatus};
use std::sync::{Arc, OnceLock};

/// Reads the status from the parts of a server.
pub(crate) struct StatusSource {
    pub(crate) membership: Arc<Membership>,
    pub(crate) local: Local,
    pub(crate) backup: Backup,
    pub(crate) env: Env,
    pub(crate) began: Moment,
}

/// The status with what the ports for Redis clients count. Those read the rest themselves, so they
/// are no part of its source.
pub(crate) struct WholeStatus {
    pub(crate) source: Arc<StatusSource>,
    pub(crate) ports: OnceLock<Vec<RedisService>>,
    pub(crate) readers: OnceLock<ReadersFn>,
    /// Where processes of this machine may map the memory.
    pub(crate) door: OnceLock<DoorPlace>,
}

/// Tells which processes read the memory.
type ReadersFn = Box<dyn Fn() -> MappedReaders + Send + Sync>;

impl WholeStatus {
    pub(crate) fn read(&self) -> ServerStatus {
        let ports = self.ports.get().into_iter().flatten();
        let times = ports.fold(TimeSpread::default(), |sum, port| sum.plus(&port.spread()));
        ServerStatus {
            command_times: times,
            mapped: self
                .readers
                .get()
                .map(|readers| readers())
                .unwrap_or_default(),
            ..self.source.read()
        }
    }
}

/// Why a server serves nothing while its lease is over (LEASE-1, LEASE-3).
const NOT_CONFIRMED: &str =
    "neither its backups nor the coordinator confirm that it is a member, so it serves nothing";

fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

fn micros(time: Duration) -> u64 {
    u64::try_from(time.as_micros()).unwrap_or(u64::MAX)
}

fn directory_status(directory: DirectoryStats) -> DataDirectoryStatus {
    DataDirectoryStatus {
        name: directory.name,
        left: directory.left,
        trouble: directory.trouble,
        frames: directory.frames,
        frame_bytes: directory.frame_bytes,
        room: directory.room,
        mb_per_s: directory.mb_per_s,
    }
}

/// Whether a server can do its work.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Readiness {
    /// It can.
    pub ready: bool,
    /// Why not, for people.
    pub reason: String,
}

impl StatusSource {
    pub(crate) fn read(&self) -> ServerStatus {
        let backup = self.backup.stats();
        let tasks = &self.env.tasks;
        let busy = (0..tasks.cores()).filter_map(|core| tasks.busy(CoreId(core)));
        let mut status = ServerStatus {
            uptime_ms: millis(self.env.clock.now().since(self.began)),
            loops_busy_us: busy.map(micros).collect(),
            id: self.membership.id(),
            frames: backup.frames,
            frame_bytes: backup.frame_bytes,
            frames_damaged: backup.frames_damaged,
            data: self
                .backup
                .directories()
                .into_iter()
                .map(directory_status)
                .collect(),
            ..ServerStatus::default()
        };
        let Some(master) = self.local.0.get() else {
            return status;
        };
        let log = master.store().space().stats();
        let store = master.store().stats();
        let replication = master.replication().status();
        status.memory_total = log.memory_bytes;
        status.memory_log = log.log_bytes;
        status.memory_live = log.live_bytes;
        status.memory_live_max = log.live_bytes_max;
        status.memory_index = store.index_bytes + log.table_bytes;
        status.index_bytes = store.index_bytes;
        status.index_entries = store.index_entries;
        status.index_slots = store.index_slots;
        status.objects = store.objects;
        status.object_bytes = store.object_bytes;
        status.objects_noted = master.store().expiry().noted();
        status.objects_expired = master.store().expiry().dropped();
        let (locked, age) = master.locked_now();
        status.keys_locked = locked;
        status.keys_locked_ms_max = millis(age);
        status.tablets = master.tablets().serving();
        status.segments = log.segments;
        status.segments_under_replicated = replication.segments_under_replicated;
        // A volatile store has a replication that is never asked for anything.
        if master.is_replicated() {
            status.replicas_wanted = replication.replicas_wanted;
            status.replicas_needed = replication.replicas_needed;
            status.synced = replication.synced;
        }
        status.backups_up = replication.backups_up;
        let not_confirmed = || (!master.may_serve()).then(|| NOT_CONFIRMED.to_owned());
        status.writes_wait = replication.writes_wait.or_else(not_confirmed);
        status.cleaner_freed = log.cleaner.bytes_freed;
        status.cleaner_moved = log.cleaner.bytes_copied();
        status.compactions = log.cleaner.compactions;
        status.cleaner_passes = log.cleaner.passes;
        status.replica_write_times = replication.write_times;
        status.replica_bytes = replication.bytes_written;
        status.replicas_lost = replication.replicas_lost;
        status.replica_write_failures = replication.write_failures;
        status.moved_here = master.moved_here();
        let (holds, held) = master.held();
        status.holds = holds;
        status.held_us = u64::try_from(held.as_micros()).unwrap_or(u64::MAX);
        let (bytes, operations) = master.quota_refusals();
        status.quota_refused_bytes = bytes;
        status.quota_refused_operations = operations;
        status.requests = master.requests();
        status
    }

    pub(crate) fn readiness(&self) -> Readiness {
        let not = |reason: String| Readiness {
            ready: false,
            reason,
        };
        match &*self.membership.watch_standing().borrow() {
            Standing::Joining => return not("joining the cluster".into()),
            Standing::Expelled(why) => return not(format!("declared dead: {why}")),
            Standing::Left => return not("left the cluster".into()),
            Standing::Member => {}
        }
        match self.local.0.get() {
            None => not("joining the cluster".into()),
            Some(_) if self.membership.is_draining() => {
                not("drained: its tablets move to other servers".into())
            }
            Some(master) if !master.may_serve() => not(NOT_CONFIRMED.into()),
            Some(master) => match master.replication().status().writes_wait {
                Some(why) => not(why),
                None => Readiness {
                    ready: true,
                    reason: "serving".into(),
                },
            },
        }
    }
}
