//! Looking at a machine: numbers, timers, answers to others.

use super::Machine;
use crate::placement::Placement;
use crate::replica::Replica;
use crate::segment::ReplicatedSegment;
use crate::status::{Places, ReplicationStatus};
use core::time::Duration;
use pluvio_env::Moment;
use pluvio_units::{SegmentId, ServerId};

/// Of more repairs than this, only the first have their pauses watched; the task's idle tick
/// finds the others.
const REPAIRS_WATCHED_MAX: usize = 64;
/// Servers that are named in one reason.
const NAMES_MAX: usize = 8;

impl Machine {
    /// Everything, for people who look for an error.
    #[cfg(test)]
    pub(crate) fn describe(&self) -> String {
        let mut text = format!("heads {:?}, digest {:?}\n", self.heads, self.digest);
        for segment in self.segments.values() {
            text += &format!("  {segment:?}\n");
        }
        text
    }

    /// When the next pause ends, if anything waits for one.
    pub(crate) fn next_try(&self, now: Moment) -> Option<Duration> {
        let busy = self
            .heads
            .iter()
            .take(2)
            .chain(&self.sides)
            .chain(self.repairs.iter().take(REPAIRS_WATCHED_MAX));
        let busy = busy.filter_map(|id| self.segments.get(id));
        let replicas = busy.clone().flat_map(|s| {
            s.replicas
                .iter()
                .filter(|r| r.is_idle())
                .map(|r| r.next_try)
        });
        let holds = busy
            .clone()
            .filter(|s| s.durably_closed && !s.held && !s.is_complete(&self.view))
            .map(|s| s.hold_next_try);
        let records = busy
            .filter(|s| s.recorded < s.epoch && !s.recording)
            .map(|s| s.record_next_try);
        let later = replicas.chain(holds).chain(records).filter(|at| *at > now);
        let soonest = later.min().map(|at| at.since(now));
        soonest.into_iter().chain(self.frees.next_try(now)).min()
    }

    /// Whether the first head is durably open: from then on a crash of the master is survived.
    pub(crate) fn is_open(&self) -> bool {
        self.digest.is_some()
    }

    /// The servers that hold the open heads: no recovery finds the log complete without at least
    /// one of them, whichever other servers answer it. `None` while that cannot be said. (A stale
    /// replica of a head that lost one is no help to recovery once the coordinator has the epoch.
    /// The next head counts too, as soon as one backup may have it. Beside it, recovery needs only
    /// a closed replica of the first head that was lost. It needs nothing when the first one is an
    /// emergency head, which the next does not list. No epoch of the next head is recorded, so a
    /// lost replica of it is not fenced. That one may be all that recovery needs.)
    pub(crate) fn witnesses(&self) -> Option<Vec<ServerId>> {
        let first = self.heads.front().filter(|id| self.digest == Some(**id))?;
        let first = self.segments.get(first)?;
        first.durable(&self.view)?;
        let mut witnesses = first.holders();
        let next = self.heads.get(1).and_then(|id| self.segments.get(id));
        if let Some(next) = next {
            if next.epoch != next.recorded {
                return None;
            }
            witnesses.extend(next.places_found());
        }
        witnesses.sort_unstable();
        witnesses.dedup();
        Some(witnesses)
    }

    /// Whether a side segment is durable, or gone.
    pub(crate) fn is_side_durable(&self, id: SegmentId) -> bool {
        id <= self.newest && self.segments.get(&id).is_none_or(|s| s.durably_closed)
    }

    /// Whether a replica that `backup` found after a restart is still of use [RAMCloud §8]. While
    /// our list does not show that server, we may take the replica for one of those that its former
    /// life has.
    pub(crate) fn is_needed(&self, backup: ServerId, id: SegmentId) -> bool {
        !self.view.list.is_up(backup)
            || self
                .segments
                .get(&id)
                .is_some_and(|s| !s.is_complete(&self.view))
    }

    /// Whether replicas of all heads are on their devices when they answer.
    fn is_synced(&self) -> bool {
        let mut heads = self.heads.iter().filter_map(|id| self.segments.get(id));
        self.view.settings.synced && heads.all(|head| head.synced)
    }

    /// Numbers, and why writes wait.
    pub(crate) fn status(&self, placement: &Placement, now: Moment) -> ReplicationStatus {
        let incomplete = self
            .segments
            .values()
            .filter(|s| s.placed && !s.is_complete(&self.view))
            .count();
        let backups_up = self.view.usable().count() as u32;
        let frees_pending = self.frees.pending();
        ReplicationStatus {
            segments: self.segments.len() as u64,
            segments_under_replicated: incomplete as u64,
            replicas_wanted: self.view.wanted() as u32,
            replicas_of_segments: (self.segments.len() * self.view.wanted()) as u64,
            synced: self.is_synced(),
            replicas_needed: self.view.needed() as u32,
            backups_up,
            backups_full: placement.count_full(&self.view, now),
            frees_pending: frees_pending as u64,
            writes_wait: self.why_wait(placement, now),
            ..self.counters.clone()
        }
    }

    /// Counts how long a backup took to acknowledge a write.
    pub(crate) fn timed(&mut self, took: Duration) {
        self.counters.write_times.add(took, 1);
    }

    /// Adds every place that may have a replica, and whether it has one that counts.
    pub(crate) fn places(&self, places: &mut Places) {
        for (id, segment) in &self.segments {
            let replicas = segment.replicas.iter();
            places.extend(replicas.map(|r| ((r.server, *id), r.is_current())));
            let given_up = segment.given_up.iter();
            places.extend(given_up.map(|server| ((*server, *id), false)));
        }
        places.extend(self.frees.places().map(|place| (place, false)));
    }

    /// Replicas needed for an acknowledgement.
    pub(crate) fn needed(&self) -> u8 {
        u8::try_from(self.view.needed()).unwrap_or(u8::MAX)
    }

    /// Whether nothing becomes durable before a backup has space again. Cheap while nothing is
    /// full.
    pub(crate) fn lacks_space(&self, placement: &Placement, now: Moment) -> bool {
        self.awaited_head()
            .is_some_and(|head| self.full_disks(head, placement, now).is_some())
    }

    /// The head that writes wait for, if they wait: the first one, or, when all that it has is
    /// durable, the next one.
    fn awaited_head(&self) -> Option<&ReplicatedSegment> {
        let mut heads = self.heads.iter().filter_map(|id| self.segments.get(id));
        let (first, next) = (heads.next()?, heads.next());
        if !self.is_all_durable(first) {
            return Some(first);
        }
        next.filter(|next| !next.is_durably_open(&self.view))
    }

    /// The servers with full disks, if a head needs more backups than there are others. Replicas
    /// that were begun wait for space where they are; others are not even begun there.
    fn full_disks(
        &self,
        head: &ReplicatedSegment,
        placement: &Placement,
        now: Moment,
    ) -> Option<Vec<ServerId>> {
        let needed = self.view.needed();
        // One that was begun on a disk that was full just before is refused, or it is not: that is
        // not known yet.
        let is_maybe_full =
            |r: &Replica| r.full || (r.acked == 0 && placement.may_be_full(r.server, now));
        if head.replicas.iter().filter(|r| !is_maybe_full(r)).count() >= needed {
            return None;
        }
        let maybe_full = |server: ServerId| {
            let mut replicas = head.replicas.iter();
            replicas.any(|r| is_maybe_full(r) && r.server == server)
        };
        // Where a replica of this head has failed there will be none.
        let failed = |id: &ServerId| head.given_up.contains(id) || head.spent.contains(id);
        let mut full: Vec<ServerId> = self.view.usable().map(|s| s.id).collect();
        full.retain(|id| !failed(id));
        let hopeful = full.len();
        full.retain(|id| maybe_full(*id) || placement.is_full(*id, now));
        (hopeful >= needed && hopeful - full.len() < needed).then_some(full)
    }

    /// Whether all that the first head has is durable, and counts.
    fn is_all_durable(&self, head: &ReplicatedSegment) -> bool {
        head.durable(&self.view) == Some(head.appended) && self.digest == Some(head.id)
    }

    fn why_wait(&self, placement: &Placement, now: Moment) -> Option<String> {
        let head = self.awaited_head()?;
        let (needed, up) = (self.view.needed(), self.view.places());
        let racks = match (self.view.settings.strict_racks, needed) {
            (true, 1) => " in another rack",
            (true, _) => " in as many other racks",
            (false, _) => "",
        };
        if up < needed {
            return Some(format!("{}, {}", are_needed(needed, racks), are_up(up)));
        }
        let servers = |wanted: fn(&Replica) -> bool| -> Vec<ServerId> {
            let replicas = head.replicas.iter().filter(|r| wanted(r));
            replicas.map(|r| r.server).collect()
        };
        let full = servers(|r| r.full);
        let silent = servers(|r| !r.full && r.failures > 1);
        let silence = (!silent.is_empty()).then(|| {
            format!(
                "no good answer from the backup on server {}",
                names(&silent)
            )
        });
        if let Some(disks) = self.full_disks(head, placement, now) {
            let space = format!(
                "{}, {} and {}",
                are_needed(needed, ""),
                are_up(up),
                disks_are_full(&disks)
            );
            let reasons: Vec<String> = core::iter::once(space).chain(silence).collect();
            return Some(reasons.join("; "));
        }
        let failed = head.given_up.len() + head.spent.len();
        if head.hopeful() < needed && up < needed + failed {
            return Some(format!(
                "{}, {} and {failed} of them failed a replica of this head: restart {}",
                are_needed(needed, ""),
                are_up(up),
                if failed == 1 { "that one" } else { "those" }
            ));
        }
        if head.recorded < head.epoch && head.record_failures > 0 {
            return Some("the coordinator cannot be told that a replica was lost".to_owned());
        }
        let lacks = head.replicas.len() - full.len() < needed;
        let space = (lacks && !full.is_empty()).then(|| disks_are_full(&full));
        let reasons: Vec<String> = space.into_iter().chain(silence).collect();
        (!reasons.is_empty()).then(|| reasons.join("; "))
    }
}

/// For people.
fn are_needed(backups: usize, racks: &str) -> String {
    match backups {
        1 => format!("1 backup{racks} is needed"),
        _ => format!("{backups} backups{racks} are needed"),
    }
}

/// For people.
fn are_up(backups: usize) -> String {
    match backups {
        1 => "1 is up".to_owned(),
        _ => format!("{backups} are up"),
    }
}

/// For people.
fn disks_are_full(servers: &[ServerId]) -> String {
    match servers {
        [one] => format!("the disk of the backup on server {one} is full"),
        _ => format!(
            "the disks of the backups on server {} are full",
            names(servers)
        ),
    }
}

/// Servers by their ids.
fn names(servers: &[ServerId]) -> String {
    let some = servers.iter().take(NAMES_MAX).map(ToString::to_string);
    let some = some.collect::<Vec<_>>().join(", ");
    match servers.len().saturating_sub(NAMES_MAX) {
        0 => some,
        more => format!("{some} and {more} more"),
    }
}
