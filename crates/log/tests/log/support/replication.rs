//! Replication that reports late and in slices, onto "disks" that a power cut leaves as they are.

use super::Random;
use pluvio_format::{Entry, LogDigest, SegmentIter, SegmentKind};
use pluvio_log::{LogSpace, Segment};
use pluvio_units::{LogId, LogPosition, SEGLET_BYTES, SegmentId};
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

/// A replica on disk.
#[derive(Default)]
pub struct Replica {
    segment: Option<Arc<Segment>>,
    pub log: LogId,
    pub is_head: bool,
    bytes: Vec<u8>,
    certified: usize,
    closed: bool,
    /// The length whose certificate goes with the write under way.
    target: usize,
}

#[derive(Default)]
struct LogProgress {
    /// The open head whose digest counts.
    head: Option<Arc<Segment>>,
    next_heads: VecDeque<Arc<Segment>>,
    sides: Vec<Arc<Segment>>,
}

/// See the module.
pub struct Replication {
    space: Arc<LogSpace>,
    pub disk: BTreeMap<SegmentId, Replica>,
    logs: Vec<LogProgress>,
    slice_max: u64,
    /// Whether replicas get lost now and then, and are written anew from memory as it is.
    pub loses_replicas: bool,
    /// How many did.
    pub replaced: u64,
}

impl Replication {
    pub fn new(space: &Arc<LogSpace>, slice_max: u64) -> Self {
        Self {
            space: Arc::clone(space),
            disk: BTreeMap::new(),
            logs: space.logs().map(|_| LogProgress::default()).collect(),
            slice_max,
            loses_replicas: true,
            replaced: 0,
        }
    }

    /// Goes on until nothing is left to do.
    pub fn finish(&mut self, random: &mut Random) {
        let slice_max = std::mem::replace(&mut self.slice_max, 64 << 20);
        for _ in 0..1000 {
            if !self.step_all(random) {
                self.slice_max = slice_max;
                return;
            }
        }
        panic!("replication finds no end");
    }

    fn step_all(&mut self, random: &mut Random) -> bool {
        let space = Arc::clone(&self.space);
        let mut more = false;
        for log in space.logs() {
            more |= self.step(log, random);
        }
        more
    }

    /// Does one thing for `log`; says whether it did.
    pub fn step(&mut self, log: LogId, random: &mut Random) -> bool {
        for id in self.space.take_freeable(log) {
            // Side segments that were aborted before they were sent are not there.
            self.disk.remove(&id);
        }
        for segment in self.space.take_new_segments(log) {
            let progress = &mut self.logs[usize::from(log.0)];
            match segment.kind() {
                SegmentKind::Head => progress.next_heads.push_back(segment),
                SegmentKind::Side => progress.sides.push(segment),
            }
        }
        if self.loses_replicas && random.below(20) == 0 {
            self.replace_one(log, random);
        }
        let side_first = random.below(2) == 0;
        if side_first && self.step_side(log, random) {
            return true;
        }
        self.step_head(log, random) || (!side_first && self.step_side(log, random))
    }

    /// The replica of a closed segment is lost and written anew from what is in memory (CLEAN-8).
    fn replace_one(&mut self, log: LogId, random: &mut Random) {
        let closed = self.disk.values_mut().filter(|r| r.log == log && r.closed);
        let mut closed: Vec<&mut Replica> = closed.collect();
        if closed.is_empty() {
            return;
        }
        let at = random.below(closed.len() as u64) as usize;
        let replica = &mut *closed[at];
        let segment = replica.segment.as_ref().expect("it was sent");
        if !segment.hold_bytes() {
            return;
        }
        if let Some(bytes) = segment.copy_out(0..segment.appended_len()) {
            replica.certified = bytes.len();
            replica.target = bytes.len();
            replica.bytes = bytes;
            self.replaced += 1;
        }
        segment.release_bytes();
    }

    fn step_side(&mut self, log: LogId, random: &mut Random) -> bool {
        let sides = &mut self.logs[usize::from(log.0)].sides;
        let Some(segment) = sides.first().cloned() else {
            return false;
        };
        let limit = segment.appended_len();
        let moved = self.send(&segment, limit, random);
        let closed = segment.is_closed();
        let Some(replica) = self.disk.get_mut(&segment.id()) else {
            self.logs[usize::from(log.0)].sides.remove(0);
            return true;
        };
        if closed && replica.certified == segment.appended_len() as usize {
            replica.closed = true;
            segment.mark_durable();
            segment.release_bytes();
            self.logs[usize::from(log.0)].sides.remove(0);
            return true;
        }
        moved
    }

    /// The order of heads [RAMCloud §7.4]:
    ///
    /// 1. open the next one with its first group;
    /// 2. finish and close this one;
    /// 3. go on with the next.
    fn step_head(&mut self, log: LogId, random: &mut Random) -> bool {
        let progress = &mut self.logs[usize::from(log.0)];
        let next = progress.next_heads.front().cloned();
        let Some(head) = progress.head.clone() else {
            let Some(first) = next else { return false };
            if self.send(&first, first.opening_len(), random) {
                self.try_advance(log, &first, None);
            }
            return true;
        };
        let Some(next) = next else {
            let moved = self.send(&head, head.appended_len(), random);
            self.report(log, &head);
            return moved;
        };
        if !self.is_opened(&next) {
            self.send(&next, next.opening_len(), random);
            return true;
        }
        assert!(
            head.is_closed(),
            "a head was opened before the last one was closed"
        );
        if self.certified(&head) < head.appended_len() as usize {
            self.send(&head, head.appended_len(), random);
            self.report(log, &head);
            return true;
        }
        self.try_advance(log, &next, Some(&head));
        true
    }

    fn try_advance(&mut self, log: LogId, next: &Arc<Segment>, old: Option<&Arc<Segment>>) {
        if !self.is_opened(next) {
            return;
        }
        if let Some(old) = old {
            let replica = self.disk.get_mut(&old.id()).expect("it was sent");
            replica.closed = true;
            old.release_bytes();
        }
        self.space.digest_durable(log, next.id());
        self.report(log, next);
        let progress = &mut self.logs[usize::from(log.0)];
        progress.head = progress.next_heads.pop_front();
    }

    fn is_opened(&self, head: &Segment) -> bool {
        self.certified(head) >= head.opening_len() as usize
    }

    fn certified(&self, segment: &Segment) -> usize {
        self.disk.get(&segment.id()).map_or(0, |r| r.certified)
    }

    fn report(&self, log: LogId, head: &Segment) {
        let position = LogPosition {
            segment: head.id(),
            offset: self.certified(head) as u32,
        };
        self.space.advance_durable(log, position);
    }

    /// Sends a slice; the certificate comes with the last slice of what was there at the first.
    fn send(&mut self, segment: &Arc<Segment>, limit: u32, random: &mut Random) -> bool {
        let replica = self.disk.entry(segment.id()).or_insert_with(|| Replica {
            segment: Some(Arc::clone(segment)),
            log: segment.log(),
            is_head: segment.kind() == SegmentKind::Head,
            ..Replica::default()
        });
        if replica.target == replica.certified {
            replica.target = limit as usize;
        }
        let from = replica.bytes.len();
        if from == replica.target {
            return false;
        }
        let slice = 1 + random.below(self.slice_max) as usize;
        let to = (from + slice).min(replica.target);
        let Some(bytes) = segment.copy_out(from as u32..to as u32) else {
            // Freed before it was sent: only an aborted side segment.
            assert_eq!(segment.kind(), SegmentKind::Side);
            self.disk.remove(&segment.id());
            return false;
        };
        replica.bytes.extend_from_slice(&bytes);
        if to == replica.target {
            replica.certified = to;
        }
        true
    }

    /// What recovery would find: version and length of the newest object of every key, or its
    /// deletion.
    pub fn recover(&self) -> BTreeMap<u32, (u64, Option<usize>)> {
        let mut found: BTreeMap<u32, (u64, Option<usize>)> = BTreeMap::new();
        for log in self.space.logs() {
            let Some(digest) = self.digest(log) else {
                continue;
            };
            for id in digest.segments {
                let replica = self.disk.get(&id);
                let replica = replica.unwrap_or_else(|| panic!("segment {id} is lost"));
                assert_eq!(replica.log, log);
                replay(&replica.bytes[..replica.certified], &mut found);
            }
        }
        found
    }

    /// Everything on disk about a key, for a failure's message.
    pub fn trace(&self, key: u32) -> Vec<String> {
        let mut lines = Vec::new();
        for (id, replica) in &self.disk {
            let image = &replica.bytes[..replica.certified];
            for group in SegmentIter::new(image, SEGLET_BYTES) {
                for (at, entry) in group.expect("a certified prefix is right").entries() {
                    let text = match &entry {
                        Entry::Object(o) => format!("object {}", o.version),
                        Entry::Tombstone(t) => format!("tombstone {} of {}", t.version, t.segment),
                        Entry::LogDigest(d) => {
                            let closed = if replica.closed { "closed" } else { "open" };
                            lines.push(format!("{id} {closed}: digest {:?}", d.segments));
                            continue;
                        }
                        _ => continue,
                    };
                    if super::key_of(&entry) == key {
                        lines.push(format!("{id}:{at} {text}"));
                    }
                }
            }
        }
        lines
    }

    /// The digest of the oldest open head.
    fn digest(&self, log: LogId) -> Option<LogDigest> {
        let open = self
            .disk
            .values()
            .find(|r| r.log == log && r.is_head && !r.closed && r.certified > 0)?;
        let group = SegmentIter::new(&open.bytes[..open.certified], SEGLET_BYTES)
            .next()?
            .expect("a certified prefix is right");
        let digest = group.entries().find_map(|(_, entry)| match entry {
            Entry::LogDigest(digest) => Some(digest),
            _ => None,
        });
        Some(digest.expect("a head has a digest"))
    }
}

fn replay(image: &[u8], found: &mut BTreeMap<u32, (u64, Option<usize>)>) {
    for group in SegmentIter::new(image, SEGLET_BYTES) {
        for (_, entry) in group.expect("a certified prefix is right").entries() {
            let (version, len) = match &entry {
                Entry::Object(object) => {
                    let key = super::key_of(&entry);
                    let value = super::value_of(key, object.version.0, object.value.len());
                    assert!(
                        object.value == value,
                        "key {key} has another's value on disk"
                    );
                    (object.version.0, Some(object.value.len()))
                }
                Entry::Tombstone(tombstone) => (tombstone.version.0, None),
                _ => continue,
            };
            let newest = found.entry(super::key_of(&entry)).or_insert((0, None));
            // A tombstone kills the object of its own version.
            if version > newest.0 || (version == newest.0 && len.is_none()) {
                *newest = (version, len);
            }
        }
    }
}
