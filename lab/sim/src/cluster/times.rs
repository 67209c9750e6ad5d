//! The times that clocks of owners can have shown in a run, from what happened to the processes.
//!
//! `docs/expiry.md` promises what a clock may do:
//!
//! | when | the clock |
//! |---|---|
//! | a server starts | begins with its wall clock |
//! | it runs | gains or loses what the monotonic clock does, and at most 1 % to follow the wall clock |
//! | it takes tablets of a crashed server over | may go on from a horizon: 2 s later than the old clock |
//! | it gets tablets that move | may go on from the other owner's clock |
//!
//! So a jump counts in full only where a server starts after it. And each death may bring clocks
//! forward by 2 s. A server that was declared dead counts from when it could serve last.
//!
//! Which deadlines are surely past is asked of the owners, not computed: time stands still for them
//! while no horizon can become durable. The word of one holds for all owners after it (EXPIRY-2,
//! EXPIRY-5). So a crashed one counts until it has been recovered and is forgotten.
//!
//! Not here: what follows for operations (`check::expiry`).

use crate::cluster::journal::Journal;
use crate::cluster::nodes::ServerTime;
use crate::history::Clocks;
use crate::sim::UNIX_START;
use core::time::Duration;
use pluvio_units::ServerId;
use std::collections::BTreeMap;

/// How far a horizon is ahead of its master's clock.
const LEAD_MS: u64 = 2_000;
/// How far clocks go to their wall clocks, in parts per million.
const FOLLOWS_PPM: u64 = 10_000;
/// For times that are rounded to milliseconds, and clocks that are read between two looks.
const ROUNDING_MS: u64 = 20;
/// A master that may not serve any more may have been recovered this long before.
const LEASE: Duration = Duration::from_secs(1);

/// One life of a server.
struct Life {
    /// When it was seen serving last.
    served: Duration,
    /// When it was seen last.
    seen: Duration,
    /// Deadlines up to this were past; `None`: it had none.
    past: Option<u64>,
    lives: bool,
}

/// Watches the clocks of a run.
pub(super) struct Times {
    clocks: Clocks,
    lives: BTreeMap<ServerId, Life>,
    looked: Duration,
    /// From when to when a death may have brought clocks forward, as the lives' `served` and
    /// `seen`: servers that die at once count once.
    deaths: Vec<(Duration, Duration)>,
    /// By how much wall clocks were behind and ahead when servers started, and from when on.
    walls: Vec<(Duration, u64, u64)>,
}

impl Times {
    pub(super) fn new(drift_ppm: u32) -> Self {
        let drift_ppm = u64::from(drift_ppm);
        let clocks = Clocks {
            start_ms: UNIX_START * 1_000,
            drift_ppm: drift_ppm + FOLLOWS_PPM + FOLLOWS_PPM * drift_ppm / 1_000_000,
            ..Clocks::default()
        };
        Self {
            clocks,
            lives: BTreeMap::new(),
            looked: Duration::ZERO,
            deaths: Vec::new(),
            walls: Vec::new(),
        }
    }

    /// Looks at the servers. Wall clocks have not changed since a moment after the last look.
    pub(super) fn look(&mut self, now: Duration, servers: &[ServerTime], journal: &Journal) {
        let before = self.looked;
        self.looked = now;
        let least = self.past();
        for server in servers {
            let is_known = server.life.as_ref();
            if is_known.is_none_or(|life| !self.lives.contains_key(&life.id)) {
                self.starts(before, server.ahead_ms);
            }
        }
        for life in self.lives.values_mut() {
            life.lives = false;
        }
        for life in servers.iter().filter_map(|server| server.life.as_ref()) {
            let known = self.lives.entry(life.id).or_insert(Life {
                served: now,
                seen: now,
                past: None,
                lives: true,
            });
            known.seen = now;
            known.lives = true;
            if life.may_serve {
                known.served = now;
            }
            known.past = life.past.map(|past| past.0);
        }
        let dead = self.lives.values_mut().filter(|life| !life.lives);
        for life in dead.filter(|life| life.seen == before) {
            let death = (life.served, life.seen);
            if !self.deaths.contains(&death) {
                self.deaths.push(death);
            }
            // Tablets that it got since the last look had another owner before.
            life.past = life.past.or(least);
        }
        self.lives
            .retain(|id, life| life.lives || !journal.is_forgotten(*id));
        if let Some(past) = self.past()
            && self
                .clocks
                .past
                .last()
                .is_none_or(|(_, last)| *last != past)
        {
            self.clocks.past.push((now, past));
        }
    }

    /// Deadlines up to this are past at all owners.
    fn past(&self) -> Option<u64> {
        self.lives.values().filter_map(|life| life.past).min()
    }

    /// A clock may have started with a wall clock that is so far ahead.
    fn starts(&mut self, since: Duration, ahead_ms: i64) {
        let last = self.walls.last();
        let (behind, ahead) = last.map_or((0, 0), |(_, behind, ahead)| (*behind, *ahead));
        let wall = match ahead_ms < 0 {
            true => (behind.max(ahead_ms.unsigned_abs()), ahead),
            false => (behind, ahead.max(ahead_ms.unsigned_abs())),
        };
        if wall != (behind, ahead) {
            self.walls.push((since, wall.0, wall.1));
        }
    }

    /// Deadlines that time does not come to: the clocks stand still. `None`: they go.
    pub(super) fn stands_still(&self, longest: Duration) -> Option<String> {
        let since = self.looked.saturating_sub(longest);
        let wanted = self.known().earliest(since, self.looked);
        let past = self.past()?;
        (past < wanted).then(|| {
            format!("deadlines are judged by {past} ms, and no clock shows less than {wanted} ms")
        })
    }

    /// What is known so far.
    pub(super) fn known(&self) -> Clocks {
        let mut steps: Vec<Duration> = self.walls.iter().map(|(since, _, _)| *since).collect();
        let mut deaths: Vec<Duration> = { self.deaths.iter() }
            .map(|(served, _)| served.saturating_sub(LEASE))
            .collect();
        deaths.sort_unstable();
        steps.push(Duration::ZERO);
        steps.extend(deaths.iter().copied());
        steps.sort_unstable();
        steps.dedup();
        let bound = |step: Duration| {
            let walls = self.walls.iter().take_while(|(since, _, _)| *since <= step);
            let (behind, ahead) = walls.last().map_or((0, 0), |(_, b, a)| (*b, *a));
            let died = deaths.iter().take_while(|since| **since <= step).count() as u64;
            let ahead = ahead + LEAD_MS * died;
            (step, behind + ROUNDING_MS, ahead + ROUNDING_MS)
        };
        let mut clocks = self.clocks.clone();
        clocks.bounds = steps.into_iter().map(bound).collect();
        clocks
    }
}
