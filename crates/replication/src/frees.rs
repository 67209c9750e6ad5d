//! Replicas that are to be freed, until their backups say that they are, or are gone.
//!
//! Each backup has a queue of its own. So a backup that is up but frees nothing delays only its
//! own.

use crate::replica::pause;
use core::ops::Bound;
use core::time::Duration;
use pluvio_env::Moment;
use pluvio_units::{SegmentId, ServerId};
use pluvio_wire::ServerList;
use std::collections::{BTreeMap, BTreeSet};

/// Most frees under way. They are not urgent.
const UNDER_WAY_MAX: usize = 16;
/// Most of them to one backup: each occupies its disk.
const OF_SERVER_MAX: usize = 2;

/// One entry for each replica that is still to be freed. They are bounded: a backup has one replica
/// of a segment at most, so they are no more than the disks of living backups hold. A server that
/// leaves the list takes its own away.
#[derive(Default)]
pub(crate) struct Frees {
    /// Servers that have something to free.
    servers: BTreeMap<ServerId, Queue>,
    under_way: usize,
    /// The server whose turn was last; those behind it are next.
    latest: ServerId,
}

/// What one server has to free.
#[derive(Default)]
struct Queue {
    /// With those that are under way.
    wanted: BTreeSet<SegmentId>,
    under_way: Vec<SegmentId>,
    /// The segment whose turn was last, so that one that cannot be freed does not delay the others.
    latest: SegmentId,
    /// In a row.
    failures: u32,
    next_try: Moment,
}

impl Queue {
    /// Whether something could be started but for the pause. A server that fails is asked for one
    /// thing at a time.
    fn has_more(&self) -> bool {
        let most = if self.failures == 0 { OF_SERVER_MAX } else { 1 };
        self.under_way.len() < most.min(self.wanted.len())
    }

    /// Starts the next segment after the latest one; after the last comes the first.
    fn start(&mut self) -> Option<SegmentId> {
        let later = (Bound::Excluded(self.latest), Bound::Unbounded);
        let mut next = self
            .wanted
            .range(later)
            .chain(self.wanted.range(..=self.latest));
        let segment = next.find(|id| !self.under_way.contains(id)).copied()?;
        self.under_way.push(segment);
        self.latest = segment;
        Some(segment)
    }
}

impl Frees {
    /// A replica is to be freed.
    pub(crate) fn want(&mut self, server: ServerId, segment: SegmentId) {
        let queue = self.servers.entry(server).or_default();
        queue.wanted.insert(segment);
    }

    /// Replicas of this segment are not to be freed any more, where that has not begun. Gives the
    /// servers that have them.
    pub(crate) fn withdraw(&mut self, segment: SegmentId) -> Vec<ServerId> {
        let mut withdrawn = Vec::new();
        self.servers.retain(|server, queue| {
            if !queue.under_way.contains(&segment) && queue.wanted.remove(&segment) {
                withdrawn.push(*server);
            }
            !queue.wanted.is_empty()
        });
        withdrawn
    }

    /// Whether a replica is still to be freed.
    pub(crate) fn wants(&self, server: ServerId, segment: SegmentId) -> bool {
        let queue = self.servers.get(&server);
        queue.is_some_and(|queue| queue.wanted.contains(&segment))
    }

    /// How many are to be freed.
    pub(crate) fn pending(&self) -> usize {
        self.servers.values().map(|queue| queue.wanted.len()).sum()
    }

    /// What is to be freed.
    pub(crate) fn places(&self) -> impl Iterator<Item = (ServerId, SegmentId)> {
        let servers = self.servers.iter();
        servers.flat_map(|(server, queue)| queue.wanted.iter().map(move |id| (*server, *id)))
    }

    /// Servers that are gone have nothing to free.
    pub(crate) fn keep_up(&mut self, list: &ServerList) {
        self.servers.retain(|server, _| list.is_up(*server));
    }

    /// Starts what can be started now, one of each server: to be called again until it gives
    /// nothing. Servers take turns.
    pub(crate) fn start(&mut self, now: Moment) -> Vec<(ServerId, SegmentId)> {
        let room = UNDER_WAY_MAX.saturating_sub(self.under_way);
        if room == 0 {
            return Vec::new();
        }
        let later = (Bound::Excluded(self.latest), Bound::Unbounded);
        let servers = self
            .servers
            .range(later)
            .chain(self.servers.range(..=self.latest));
        let ready = servers.filter(|(_, queue)| queue.has_more() && queue.next_try <= now);
        let ready: Vec<ServerId> = ready.map(|(server, _)| *server).take(room).collect();
        let mut started = Vec::with_capacity(ready.len());
        for server in ready {
            let queue = self.servers.get_mut(&server);
            if let Some(segment) = queue.and_then(Queue::start) {
                self.latest = server;
                started.push((server, segment));
            }
        }
        self.under_way += started.len();
        started
    }

    /// One came back.
    pub(crate) fn ended(&mut self, server: ServerId, segment: SegmentId, done: bool, now: Moment) {
        self.under_way -= 1;
        let Some(queue) = self.servers.get_mut(&server) else {
            return;
        };
        queue.under_way.retain(|id| *id != segment);
        if !done {
            queue.next_try = now + pause(queue.failures);
            queue.failures = queue.failures.saturating_add(1);
            return;
        }
        queue.failures = 0;
        queue.wanted.remove(&segment);
        if queue.wanted.is_empty() {
            self.servers.remove(&server);
        }
    }

    /// When the next one is tried again.
    pub(crate) fn next_try(&self, now: Moment) -> Option<Duration> {
        let paused = self
            .servers
            .values()
            .filter(|queue| queue.has_more() && queue.next_try > now);
        paused.map(|queue| queue.next_try.since(now)).min()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SILENT: ServerId = ServerId(1);
    const NOW: Moment = Moment(Duration::ZERO);

    fn started(frees: &mut Frees, now: Moment) -> Vec<(ServerId, SegmentId)> {
        let mut all = Vec::new();
        loop {
            let some = frees.start(now);
            if some.is_empty() {
                return all;
            }
            all.extend(some);
        }
    }

    #[test]
    fn a_server_that_never_answers_delays_no_other_ones_frees() {
        let mut frees = Frees::default();
        for segment in 0..100 {
            for server in [SILENT, ServerId(2), ServerId(3)] {
                frees.want(server, SegmentId(segment));
            }
        }
        for _ in 0..100 {
            for (server, segment) in started(&mut frees, NOW) {
                if server != SILENT {
                    frees.ended(server, segment, true, NOW);
                }
            }
        }
        assert_eq!(frees.pending(), 100);
        assert!(frees.places().all(|(server, _)| server == SILENT));
        assert_eq!(frees.under_way, OF_SERVER_MAX);
        assert_eq!(frees.next_try(NOW), None);
    }

    #[test]
    fn servers_that_fail_give_their_places_to_others() {
        let mut frees = Frees::default();
        let healthy = ServerId(1000);
        for server in 1..=1000 {
            for segment in 0..10 {
                frees.want(ServerId(server), SegmentId(segment));
            }
        }
        let mut now = NOW;
        let mut rounds = 0;
        while frees.wants(healthy, SegmentId(9)) {
            let under_way = started(&mut frees, now);
            assert_eq!(under_way.len(), UNDER_WAY_MAX);
            now = now + Duration::from_secs(2);
            for (server, segment) in under_way {
                frees.ended(server, segment, server == healthy, now);
            }
            rounds += 1;
        }
        let turns = 10 * 1000 / UNDER_WAY_MAX;
        assert!(rounds <= turns + 10, "took {rounds} rounds");
    }

    #[test]
    fn a_server_that_fails_is_left_in_peace_and_tried_with_another_segment() {
        let mut frees = Frees::default();
        for segment in 0..3 {
            frees.want(SILENT, SegmentId(segment));
        }
        let first = started(&mut frees, NOW);
        assert_eq!(first, [(SILENT, SegmentId(1)), (SILENT, SegmentId(2))]);
        frees.ended(SILENT, SegmentId(1), false, NOW);
        frees.ended(SILENT, SegmentId(2), false, NOW);
        assert!(started(&mut frees, NOW).is_empty());
        assert_eq!(frees.next_try(NOW), Some(pause(1)));
        let later = NOW + pause(1);
        assert_eq!(started(&mut frees, later), [(SILENT, SegmentId(0))]);
        frees.ended(SILENT, SegmentId(0), true, later);
        let rest = started(&mut frees, later);
        assert_eq!(rest, [(SILENT, SegmentId(1)), (SILENT, SegmentId(2))]);
        for (server, segment) in rest {
            frees.ended(server, segment, true, later);
        }
        assert_eq!((frees.pending(), frees.next_try(later)), (0, None));
    }
}
