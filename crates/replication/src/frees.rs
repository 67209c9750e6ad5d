//! Replicas that are to be freed, until their backups say that they are, or are gone.

use crate::replica::pause;
use core::time::Duration;
use pluvio_env::Moment;
use pluvio_units::{SegmentId, ServerId};
use pluvio_wire::ServerList;
use std::collections::BTreeMap;

/// Most frees under way. They are not urgent, and each occupies the backup's disk.
const UNDER_WAY_MAX: usize = 4;

#[derive(Default)]
pub(crate) struct Frees {
    wanted: BTreeMap<(ServerId, SegmentId), Free>,
    under_way: usize,
}

#[derive(Default)]
struct Free {
    under_way: bool,
    failures: u32,
    next_try: Moment,
}

impl Frees {
    /// A replica is to be freed.
    pub(crate) fn want(&mut self, server: ServerId, segment: SegmentId) {
        self.wanted.entry((server, segment)).or_default();
    }

    /// Whether a replica is still to be freed.
    pub(crate) fn wants(&self, server: ServerId, segment: SegmentId) -> bool {
        self.wanted.contains_key(&(server, segment))
    }

    /// How many are to be freed.
    pub(crate) fn pending(&self) -> usize {
        self.wanted.len()
    }

    /// What is to be freed.
    pub(crate) fn places(&self) -> impl Iterator<Item = (ServerId, SegmentId)> {
        self.wanted.keys().copied()
    }

    /// Servers that are gone have nothing to free.
    pub(crate) fn keep_up(&mut self, list: &ServerList) {
        self.wanted.retain(|(server, _), _| list.is_up(*server));
    }

    /// Starts what can be started now.
    pub(crate) fn start(&mut self, now: Moment) -> Vec<(ServerId, SegmentId)> {
        let room = UNDER_WAY_MAX.saturating_sub(self.under_way);
        if room == 0 {
            return Vec::new();
        }
        let ready = self
            .wanted
            .iter_mut()
            .filter(|(_, free)| !free.under_way && free.next_try <= now);
        let started: Vec<_> = ready
            .take(room)
            .map(|(key, free)| {
                free.under_way = true;
                *key
            })
            .collect();
        self.under_way += started.len();
        started
    }

    /// One came back.
    pub(crate) fn ended(&mut self, server: ServerId, segment: SegmentId, done: bool, now: Moment) {
        self.under_way -= 1;
        if done {
            self.wanted.remove(&(server, segment));
        } else if let Some(free) = self.wanted.get_mut(&(server, segment)) {
            free.under_way = false;
            free.next_try = now + pause(free.failures);
            free.failures = free.failures.saturating_add(1);
        }
    }

    /// When the next one is tried again.
    pub(crate) fn next_try(&self, now: Moment) -> Option<Duration> {
        let waiting = self
            .wanted
            .values()
            .filter(|f| !f.under_way && f.next_try > now);
        waiting.map(|f| f.next_try).min().map(|at| at.since(now))
    }
}
