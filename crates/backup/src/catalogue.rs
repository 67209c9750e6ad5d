//! Which frames there are, and which masters may write: everything behind the backup's one lock.

use crate::admit::{Ready, Writer};
use crate::directory::{Directory, Offer, READ_MAX, SLOW, WRITE_MAX, choose};
use crate::frame::{Frame, FrameState, ReplicaKey, Stage};
use crate::misplaced::Looks;
use crate::plan::created;
use core::ops::Bound;
use core::time::Duration;
use pluvio_env::Moment;
use pluvio_units::{ClusterId, SegmentId, ServerId};
use pluvio_wire::{FatalKind, Refusal, RetryReason, ServerList, WriteReplica};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// Most freed segments remembered per master (BACKUP-9). They refuse opens that come late, so they
/// must outlast a message on the network: at 1000 segments a second, more than a minute's worth.
const FREED_MAX: usize = 1 << 16;
/// The same for all masters together: some 20 MB. Beyond it the master with the most forgets.
const FREED_TOTAL_MAX: usize = 1 << 20;
/// When a master should ask again whether this backup knows it.
const ASK_AGAIN: Duration = Duration::from_millis(10);
/// When a master should ask again whether there is room; it asks other backups meanwhile.
const ROOM_AGAIN: Duration = Duration::from_millis(500);

#[derive(Default)]
pub(crate) struct Catalogue {
    pub(crate) me: Option<ServerId>,
    pub(crate) cluster: Option<ClusterId>,
    pub(crate) list: Option<Arc<ServerList>>,
    /// The largest id seen: a larger one belongs to a server that joined since.
    newest: ServerId,
    /// Visible frames, and those being created.
    pub(crate) frames: BTreeMap<ReplicaKey, Arc<Frame>>,
    /// Replacements that are not complete.
    pub(crate) rewrites: BTreeMap<ReplicaKey, Arc<Frame>>,
    /// Keys of frames open for writing, and the numbers of their data directories.
    open: BTreeMap<ReplicaKey, usize>,
    masters: BTreeMap<ServerId, MasterState>,
    /// Freed segments that are remembered, of all masters.
    freed: usize,
    /// Frames of a former life, all of them in `frames`.
    found: BTreeSet<ReplicaKey>,
    /// Bytes of all files.
    pub(crate) bytes: u64,
}

#[derive(Default)]
struct MasterState {
    recovering: bool,
    freed: BTreeSet<SegmentId>,
}

/// Limits for opening frames.
#[derive(Clone, Copy)]
pub(crate) struct Room {
    pub(crate) frame_bytes_max: u64,
    pub(crate) open_frames_max: usize,
    pub(crate) segment_bytes: u64,
}

impl Catalogue {
    /// Knows nothing but perhaps the cluster.
    pub(crate) fn of(cluster: Option<ClusterId>) -> Self {
        Self {
            cluster,
            ..Self::default()
        }
    }

    /// Puts in a frame found at start.
    pub(crate) fn insert_found(&mut self, frame: Arc<Frame>) {
        self.came(&frame);
        self.found.insert(frame.key);
        self.frames.insert(frame.key, frame);
    }

    /// Puts in a frame found at start, if recovery can do more with it than with one of the same
    /// replica from another data directory. Gives the frame that is not kept (BACKUP-14).
    pub(crate) fn insert_better(&mut self, frame: Arc<Frame>) -> Option<Arc<Frame>> {
        let Some(known) = self.frames.get(&frame.key) else {
            self.insert_found(frame);
            return None;
        };
        pluvio_units::mark("backup-finds-frame-twice");
        let worth = |frame: &Frame| {
            let state = frame.state();
            let usable = is_visible(&state);
            (usable, state.closed, state.epoch, state.certified)
        };
        if worth(known) >= worth(&frame) {
            return Some(frame);
        }
        let worse = self.frames.remove(&frame.key);
        if let Some(worse) = &worse {
            self.went(worse);
        }
        self.insert_found(frame);
        worse
    }

    /// A frame is there.
    fn came(&mut self, frame: &Frame) {
        let bytes = frame.state().file_bytes();
        self.bytes += bytes;
        frame.home.holds_more(1, bytes.cast_signed());
    }

    /// A frame is here no more.
    fn went(&mut self, frame: &Frame) {
        let bytes = frame.state().file_bytes();
        self.bytes -= bytes;
        frame.home.holds_more(-1, -bytes.cast_signed());
    }

    /// The data directory for the next frame.
    fn home_of_next<'a>(
        &self,
        homes: &'a [Arc<Directory>],
        room: Room,
        now: Moment,
    ) -> Option<&'a Arc<Directory>> {
        if let [only] = homes {
            return Some(only);
        }
        let mut open = vec![0_u64; homes.len()];
        for home in self.open.values() {
            if let Some(number) = open.get_mut(*home) {
                *number += 1;
            }
        }
        let here = homes.iter().zip(&open).filter(|(home, _)| !home.is_left());
        let offers: Vec<_> = here
            .map(|(home, open)| {
                // Open frames grow.
                let grows = open * room.segment_bytes;
                let slow = self.busy_for(home, now) >= SLOW;
                let offer = Offer {
                    bytes: home.holds().1.saturating_add(grows),
                    room: home.room().map(|room| room.saturating_sub(grows)),
                    mb_per_s: home.speed(),
                    avoided: slow || home.is_full(now) || !home.is_well(now),
                };
                (home.index, offer)
            })
            .collect();
        choose(&offers, room.segment_bytes).and_then(|index| homes.get(index))
    }

    /// For how long something is under way in a data directory.
    pub(crate) fn busy_for(&self, home: &Directory, now: Moment) -> Duration {
        let write = self.busiest(home, now).map(|(_, time)| time);
        home.beside_writes_for(now).max(write.unwrap_or_default())
    }

    /// Whether another data directory works while `this` does not.
    pub(crate) fn another_works(
        &self,
        homes: &[Arc<Directory>],
        this: &Directory,
        now: Moment,
    ) -> bool {
        let works = |home: &&Arc<Directory>| home.is_well(now) && self.busy_for(home, now) < SLOW;
        let mut others = homes.iter().filter(|home| home.index != this.index);
        others.any(|home| works(&home))
    }

    /// Something in this data directory has not ended for too long.
    pub(crate) fn hangs(&self, home: &Directory, now: Moment) -> bool {
        let write = self.busiest(home, now).map(|(_, time)| time);
        write.is_some_and(|time| time >= WRITE_MAX) || home.beside_writes_for(now) >= READ_MAX
    }

    /// A data directory is left: its frames are lost. Gives those that masters may count on
    /// (BACKUP-14).
    pub(crate) fn leave(&mut self, home: &Directory, why: &str) -> (u64, Vec<ReplicaKey>) {
        home.set_left(why.to_owned());
        let mut told = BTreeSet::new();
        let mut lost = 0;
        let is_there = |frame: &&Arc<Frame>| frame.home.index == home.index;
        for frame in self.frames.values().filter(is_there) {
            let state = frame.state();
            // Nobody counts on what an earlier life has left.
            if !state.found {
                told.insert(frame.key);
            }
            lost += u64::from(matches!(state.stage, Stage::Creating | Stage::Usable));
            frame.lose(format!("its data directory {} was left: {why}", home.name));
        }
        let there = self.rewrites.values().filter(is_there);
        let rewrites: Vec<_> = there.cloned().collect();
        for frame in rewrites {
            told.insert(frame.key);
            self.forget(&frame);
        }
        self.open.retain(|_, index| *index != home.index);
        (lost, told.into_iter().collect())
    }

    /// The frames of a data directory whose files are to be looked at next (BACKUP-17). Some are
    /// open for writing, and some not.
    pub(crate) fn next_to_visit(&self, home: &Directory, looks: &mut Looks) -> Vec<Arc<Frame>> {
        let open = next_keys(&self.open, &mut looks.last_open, looks.visits);
        let mut others = next_keys(&self.frames, &mut looks.last, looks.visits);
        others.retain(|key| !self.open.contains_key(key));
        let all = open.iter().chain(&others);
        let frames = all.flat_map(|key| [self.frames.get(key), self.rewrites.get(key)]);
        let here = frames.flatten().filter(|f| f.home.index == home.index);
        here.cloned().collect()
    }

    /// Takes a newer server list.
    pub(crate) fn set_list(&mut self, list: &ServerList) -> bool {
        if self
            .list
            .as_ref()
            .is_some_and(|old| old.version >= list.version)
        {
            return false;
        }
        for server in &list.servers {
            self.newest = self.newest.max(server.id);
        }
        let kept: BTreeSet<ServerId> = list.servers.iter().map(|s| s.id).collect();
        self.masters.retain(|id, _| kept.contains(id));
        self.freed = self.masters.values().map(|m| m.freed.len()).sum();
        self.list = Some(Arc::new(list.clone()));
        true
    }

    /// Frames of masters that left the cluster (BACKUP-6).
    pub(crate) fn orphans(&self) -> Vec<ReplicaKey> {
        let Some(list) = &self.list else {
            return Vec::new();
        };
        let keys: BTreeSet<ReplicaKey> = self
            .frames
            .keys()
            .chain(self.rewrites.keys())
            .copied()
            .collect();
        keys.into_iter()
            .filter(|key| key.master <= self.newest && list.get(key.master).is_none())
            .collect()
    }

    /// Whether a master is of this cluster: one of another cluster may have the same id.
    ///
    /// # Errors
    /// `NotServing` when this backup has joined none yet, else `WrongCluster`.
    pub(crate) fn check_cluster(&self, cluster: ClusterId) -> Result<(), Refusal> {
        let Some(ours) = self.cluster else {
            return Err(Refusal::retry(ASK_AGAIN, RetryReason::NotServing));
        };
        if ours == cluster {
            return Ok(());
        }
        let message = format!(
            "this backup belongs to cluster {:016x}, the master to {:016x}",
            ours.0, cluster.0
        );
        Err(Refusal::fatal(FatalKind::WrongCluster, message))
    }

    /// Whether a master may write at all (BACKUP-5).
    ///
    /// # Errors
    /// `WrongCluster`, `NotServing` when it may be too new for our list, else `NotInCluster`.
    pub(crate) fn check_member(&self, master: ServerId, cluster: ClusterId) -> Result<(), Refusal> {
        let unknown = || Err(Refusal::retry(ASK_AGAIN, RetryReason::NotServing));
        self.check_cluster(cluster)?;
        let Some(list) = &self.list else {
            return unknown();
        };
        if list.is_up(master) {
            Ok(())
        } else if master > self.newest {
            unknown()
        } else {
            let message = format!("server {master} is not up in server list {}", list.version);
            Err(Refusal::fatal(FatalKind::NotInCluster, message))
        }
    }

    /// Whether recovery of a master has started here (BACKUP-4).
    ///
    /// # Errors
    /// `Stale`.
    pub(crate) fn check_fence(&self, master: ServerId) -> Result<(), Refusal> {
        if self.masters.get(&master).is_some_and(|m| m.recovering) {
            pluvio_units::mark("backup-refuses-zombie");
            return Err(Refusal::fatal(
                FatalKind::Stale,
                format!("server {master} is being recovered"),
            ));
        }
        Ok(())
    }

    /// Whether the master may write, or its recovery, which has fenced it (BACKUP-4).
    ///
    /// # Errors
    /// `Stale`.
    pub(crate) fn check_writer(&self, master: ServerId, by: Writer) -> Result<(), Refusal> {
        match by {
            Writer::Master => self.check_fence(master),
            Writer::Recovery => {
                let is_fenced = self.masters.get(&master).is_some_and(|m| m.recovering);
                is_fenced.then_some(()).ok_or_else(|| not_recovered(master))
            }
        }
    }

    /// Whether a server list has had room for a master: one that is missing has left.
    pub(crate) fn is_known(&self, master: ServerId) -> bool {
        master <= self.newest
    }

    /// Refuses a master from now on (BACKUP-4).
    pub(crate) fn fence(&mut self, master: ServerId) {
        self.masters.entry(master).or_default().recovering = true;
    }

    /// All frames of a master: visible ones, then those being rewritten.
    pub(crate) fn frames_of(&self, master: ServerId) -> (Vec<Arc<Frame>>, Vec<Arc<Frame>>) {
        let range = || ReplicaKey::first_of(master)..=ReplicaKey::last_of(master);
        let of = |map: &BTreeMap<ReplicaKey, Arc<Frame>>| {
            map.range(range()).map(|(_, f)| Arc::clone(f)).collect()
        };
        (of(&self.frames), of(&self.rewrites))
    }

    fn is_freed(&self, key: ReplicaKey) -> bool {
        self.masters
            .get(&key.master)
            .is_some_and(|m| m.freed.contains(&key.segment))
    }

    /// The frame that a write is for; made when it opens one.
    ///
    /// # Errors
    /// `NotFound`, `NoSpace`.
    pub(crate) fn frame_for(
        &mut self,
        key: ReplicaKey,
        request: &WriteReplica,
        room: Room,
        homes: &[Arc<Directory>],
        now: Moment,
    ) -> Result<(Arc<Frame>, Ready), Refusal> {
        let not_found = |why: &str| {
            Err(Refusal::fatal(
                FatalKind::NotFound,
                format!(
                    "no replica of segment {} of server {}{why}",
                    key.segment, key.master
                ),
            ))
        };
        if self.is_freed(key) {
            return not_found(": it was freed");
        }
        if let Some(frame) = self.rewrites.get(&key) {
            return Ok((Arc::clone(frame), Ready::AsItWas));
        }
        // A frame of a former life stays what it is until a replacement is complete.
        if let Some(frame) = self.frames.get(&key)
            && !(frame.is_found() && request.rewriting)
        {
            return Ok((Arc::clone(frame), Ready::AsItWas));
        }
        if !request.open || request.offset != 0 {
            return not_found("");
        }
        if self.open.len() >= room.open_frames_max || self.bytes >= room.frame_bytes_max {
            return Err(no_space());
        }
        let Some(home) = self.home_of_next(homes, room, now) else {
            return Err(no_space());
        };
        let frame = Frame::new(key, created(request), home);
        let map = if request.rewriting {
            &mut self.rewrites
        } else {
            &mut self.frames
        };
        map.insert(key, Arc::clone(&frame));
        self.open.insert(key, home.index);
        self.came(&frame);
        Ok((frame, Ready::Made))
    }

    /// A frame of a former life is about to be written, and has an open file from now on.
    ///
    /// # Errors
    /// `NoSpace`.
    pub(crate) fn reopen(&mut self, frame: &Arc<Frame>, room: Room) -> Result<Ready, Refusal> {
        // Whoever takes it out meanwhile waits for the turn.
        if self.open.contains_key(&frame.key) || !self.holds(frame) {
            return Ok(Ready::AsItWas);
        }
        if self.open.len() >= room.open_frames_max {
            return Err(no_space());
        }
        self.open.insert(frame.key, frame.home.index);
        Ok(Ready::Reopened)
    }

    /// A write was not done, and what was made ready for it goes again. By the holder of the turn,
    /// which has the frame's file or not.
    pub(crate) fn take_back(&mut self, frame: &Arc<Frame>, ready: Ready, has_file: bool) {
        let state = frame.state();
        match (ready, &state.stage) {
            (Ready::Made, Stage::Creating | Stage::Rewriting) if state.is_new() => {
                self.forget(frame);
            }
            // Its key may be that of a replacement by now.
            (Ready::Reopened, _) if !has_file && !self.rewrites.contains_key(&frame.key) => {
                self.open.remove(&frame.key);
            }
            (Ready::AsItWas | Ready::Made | Ready::Reopened, _) => {}
        }
    }

    /// The frame that this life writes to, if there is one and nothing takes its place.
    pub(crate) fn written_frame(&self, key: ReplicaKey) -> Option<Arc<Frame>> {
        if self.is_freed(key) || self.rewrites.contains_key(&key) {
            return None;
        }
        self.frames.get(&key).filter(|f| !f.is_found()).cloned()
    }

    /// Whether the frame is one of these.
    pub(crate) fn holds(&self, frame: &Arc<Frame>) -> bool {
        [&self.frames, &self.rewrites]
            .iter()
            .any(|map| map.get(&frame.key).is_some_and(|f| Arc::ptr_eq(f, frame)))
    }

    /// A write was done. A frame that was taken out meanwhile is no longer counted.
    pub(crate) fn applied(&mut self, frame: &Arc<Frame>, next: FrameState) {
        let before = frame.state();
        if self.holds(frame) {
            let more = next.file_bytes() - before.file_bytes();
            self.bytes += more;
            frame.home.holds_more(0, more.cast_signed());
            if next.closed {
                self.open.remove(&frame.key);
            }
        }
        frame.set(next);
        if before.found && !frame.is_found() {
            self.found.remove(&frame.key);
        }
    }

    /// A replacement is complete: it takes the place of what was there. False when the replica was
    /// freed meanwhile; then whoever frees it removes the file.
    pub(crate) fn completed(&mut self, frame: &Arc<Frame>) -> bool {
        let Some(mine) = self.rewrites.remove(&frame.key) else {
            return false;
        };
        assert!(
            Arc::ptr_eq(&mine, frame),
            "BACKUP-2: one replacement of a replica at a time"
        );
        if let Some(old) = self.frames.insert(frame.key, mine) {
            self.went(&old);
            self.found.remove(&old.key);
            old.set_stage(Stage::Gone);
        }
        true
    }

    /// Forgets a frame that could not be created.
    pub(crate) fn forget(&mut self, frame: &Arc<Frame>) {
        let mut was_here = false;
        for map in [&mut self.frames, &mut self.rewrites] {
            if map.get(&frame.key).is_some_and(|f| Arc::ptr_eq(f, frame)) {
                map.remove(&frame.key);
                self.open.remove(&frame.key);
                was_here = true;
            }
        }
        if was_here {
            self.went(frame);
            // A replacement may be forgotten, too.
            if frame.is_found() {
                self.found.remove(&frame.key);
            }
        }
        frame.set_stage(Stage::Gone);
    }

    /// Takes out a replica for good; its files are the caller's to remove.
    pub(crate) fn take(&mut self, key: ReplicaKey, remember: bool) -> Vec<Arc<Frame>> {
        if remember {
            self.remember_freed(key, FREED_TOTAL_MAX);
        }
        self.open.remove(&key);
        let taken: Vec<_> = [self.frames.remove(&key), self.rewrites.remove(&key)]
            .into_iter()
            .flatten()
            .collect();
        self.found.remove(&key);
        for frame in &taken {
            self.went(frame);
        }
        taken
    }

    fn remember_freed(&mut self, key: ReplicaKey, total_max: usize) {
        let freed = &mut self.masters.entry(key.master).or_default().freed;
        self.freed += usize::from(freed.insert(key.segment));
        if freed.len() > FREED_MAX {
            freed.pop_first();
            self.freed -= 1;
        }
        if self.freed > total_max {
            let masters = self.masters.values_mut();
            let most = masters.max_by_key(|master| master.freed.len());
            let forgotten = most.and_then(|master| master.freed.pop_first());
            self.freed -= usize::from(forgotten.is_some());
        }
    }

    /// Frames of a former life.
    pub(crate) fn found(&self) -> Vec<Arc<Frame>> {
        let found = self.found.iter().filter_map(|key| self.frames.get(key));
        found.cloned().collect()
    }

    /// How many these are.
    pub(crate) fn found_count(&self) -> usize {
        self.found.len()
    }

    /// The frame in a data directory whose write is under way longest, and for how long.
    pub(crate) fn busiest(&self, home: &Directory, now: Moment) -> Option<(ReplicaKey, Duration)> {
        let open = self.open.keys();
        let frames = open.flat_map(|key| [self.frames.get(key), self.rewrites.get(key)]);
        let busy = frames
            .flatten()
            .filter(|frame| frame.home.index == home.index)
            .map(|frame| (frame.key, frame.busy_for(now)));
        busy.max_by_key(|(_, time)| *time)
    }

    /// Number of frames open for writing.
    pub(crate) fn open_frames(&self) -> usize {
        self.open.len()
    }

    /// Forgets that a frame is open for writing.
    pub(crate) fn not_open(&mut self, key: ReplicaKey) {
        self.open.remove(&key);
    }
}

/// The next keys behind the last one, at most once round. The last one moves on.
fn next_keys<T>(
    map: &BTreeMap<ReplicaKey, T>,
    last: &mut ReplicaKey,
    most: usize,
) -> Vec<ReplicaKey> {
    let behind = map.range((Bound::Excluded(*last), Bound::Unbounded));
    let round = behind.chain(map.range(..=*last));
    let keys: Vec<_> = round.map(|(key, _)| *key).take(most).collect();
    *last = keys.last().copied().unwrap_or(*last);
    keys
}

/// A server is not recovered here, or not any more.
pub(crate) fn not_recovered(master: ServerId) -> Refusal {
    let message = format!("server {master} is not being recovered");
    Refusal::fatal(FatalKind::Stale, message)
}

/// There is no room for another frame, or for more bytes of one.
pub(crate) fn no_space() -> Refusal {
    Refusal::retry(ROOM_AGAIN, RetryReason::NoSpace)
}

/// Whether a state can be seen by recovery.
pub(crate) fn is_visible(state: &FrameState) -> bool {
    state.stage == Stage::Usable && state.certified > 0
}

#[cfg(test)]
mod tests {
    use super::*;

    /// BACKUP-9.
    // shows: BACKUP-9
    #[test]
    fn frees_are_remembered_up_to_a_bound_for_each_master() {
        let key = |master, segment| ReplicaKey {
            master: ServerId(master),
            segment: SegmentId(segment),
        };
        let mut catalogue = Catalogue::of(None);
        let most = FREED_MAX as u64;
        assert!(catalogue.take(key(2, 1), true).is_empty());
        for segment in 1..=most {
            catalogue.take(key(1, segment), true);
        }
        let oldest = [key(1, 1), key(2, 1)].map(|key| catalogue.is_freed(key));
        assert_eq!(oldest, [true, true]);
        catalogue.take(key(1, most + 1), true);
        let freed = [key(1, 1), key(1, 2), key(1, most + 1), key(2, 1)];
        let freed = freed.map(|key| catalogue.is_freed(key));
        assert_eq!(freed, [false, true, true, true]);
        assert_eq!(catalogue.masters[&ServerId(1)].freed.len(), FREED_MAX);
    }

    // shows: BACKUP-9
    #[test]
    fn frees_are_remembered_up_to_a_bound_for_all_masters() {
        let key = |master, segment| ReplicaKey {
            master: ServerId(master),
            segment: SegmentId(segment),
        };
        let mut catalogue = Catalogue::of(None);
        for segment in 1..=10 {
            catalogue.remember_freed(key(1, segment), 15);
        }
        // Twice the same is one.
        for segment in [1, 1, 2, 3, 4, 5, 6] {
            catalogue.remember_freed(key(2, segment), 15);
        }
        let freed = [key(1, 1), key(1, 2), key(2, 1), key(2, 6)];
        let freed = freed.map(|key| catalogue.is_freed(key));
        assert_eq!(freed, [false, true, true, true], "who has the most forgets");
        assert_eq!(catalogue.freed, 15);
        catalogue.set_list(&ServerList {
            version: pluvio_units::ServerListVersion(1),
            ..ServerList::default()
        });
        assert_eq!(catalogue.freed, 0);
    }

    // shows: BACKUP-17
    #[test]
    fn frames_are_visited_in_turn_and_each_once_in_a_look() {
        let key = |segment| ReplicaKey {
            master: ServerId(1),
            segment: SegmentId(segment),
        };
        let mut map: BTreeMap<_, _> = (1..=5).map(|segment| (key(segment), ())).collect();
        let mut last = ReplicaKey::first_of(ServerId(0));
        let mut next = |map: &BTreeMap<_, _>, most| -> Vec<u64> {
            let keys = next_keys(map, &mut last, most);
            keys.iter().map(|key| key.segment.0).collect()
        };
        assert_eq!(next(&map, 3), [1, 2, 3]);
        assert_eq!(next(&map, 3), [4, 5, 1]);
        assert_eq!(next(&map, 9), [2, 3, 4, 5, 1]);
        map.clear();
        assert_eq!(next(&map, 9), [0; 0]);
    }
}
