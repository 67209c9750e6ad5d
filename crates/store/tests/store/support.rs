//! What the tests of the store share: a replicator that is always in time.

use pluvio_format::{Entry, SegmentIter};
use pluvio_log::Segment;
use pluvio_store::Engine;
use pluvio_units::{LogId, LogPosition, SEGLET_BYTES, SegmentId};
use std::collections::BTreeMap;
use std::sync::Arc;

/// Plays the replicator: every segment durable at once when asked, in the order of the rules.
#[derive(Default)]
pub struct Replicas {
    heads: BTreeMap<LogId, Vec<Arc<Segment>>>,
    on_disk: BTreeMap<SegmentId, Arc<Segment>>,
    /// Copies of what was durable when it was last looked at.
    images: BTreeMap<SegmentId, Vec<u8>>,
}

impl Replicas {
    pub fn sync(&mut self, store: &Engine) {
        let space = store.space();
        for log in space.logs() {
            for segment in space.take_new_segments(log) {
                self.on_disk.insert(segment.id(), Arc::clone(&segment));
                match segment.kind() {
                    pluvio_format::SegmentKind::Head => {
                        self.heads.entry(log).or_default().push(segment)
                    }
                    pluvio_format::SegmentKind::Side => {}
                }
            }
            let freed = space.take_freeable(log);
            for id in freed {
                self.on_disk.remove(&id);
                self.images.remove(&id);
            }
        }
        for segment in self.on_disk.values() {
            let length = segment.appended_len();
            let image = self.images.entry(segment.id()).or_default();
            if (image.len() as u32) < length {
                let from = image.len() as u32;
                image.extend_from_slice(
                    &segment
                        .copy_out(from..length)
                        .expect("a segment on disk is in memory"),
                );
            }
            if segment.is_closed() {
                if segment.kind() == pluvio_format::SegmentKind::Side {
                    segment.mark_durable();
                }
                // Its replica is complete: memory may be compacted.
                segment.release_bytes();
            }
        }
        for (log, heads) in &mut self.heads {
            for head in heads.drain(..heads.len().saturating_sub(1)) {
                space.digest_durable(*log, head.id());
                let end = LogPosition {
                    segment: head.id(),
                    offset: head.appended_len(),
                };
                space.advance_durable(*log, end);
            }
            if let Some(head) = heads.last() {
                space.digest_durable(*log, head.id());
                let length = self.images.get(&head.id()).map_or(0, Vec::len);
                let offset = u32::try_from(length).unwrap();
                space.advance_durable(
                    *log,
                    LogPosition {
                        segment: head.id(),
                        offset,
                    },
                );
            }
        }
    }

    /// The segments that recovery would use: those of the newest digest of each log.
    pub fn recoverable(&self) -> Vec<Vec<u8>> {
        let mut newest: BTreeMap<u16, (SegmentId, Vec<SegmentId>)> = BTreeMap::new();
        for (id, image) in &self.images {
            for group in SegmentIter::new(image, SEGLET_BYTES) {
                for (_, entry) in group.expect("a durable segment can be read").entries() {
                    if let Entry::LogDigest(digest) = &entry {
                        newest.insert(digest.log.0, (*id, digest.segments.clone()));
                    }
                }
            }
        }
        let ids = newest.into_values().flat_map(|(_, ids)| ids);
        ids.map(|id| {
            self.images
                .get(&id)
                .expect("a digest names what is on disk")
                .clone()
        })
        .collect()
    }
}

/// The entries of a segment that a recovery master gets, one behind the other.
pub fn entries_of(image: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::new();
    for group in SegmentIter::new(image, SEGLET_BYTES) {
        for (_, entry) in group.unwrap().entries() {
            match &entry {
                Entry::Object(_)
                | Entry::Tombstone(_)
                | Entry::SafeVersion(_)
                | Entry::Horizon(_)
                | Entry::Completion(_) => {
                    let one = pluvio_format::Encoded::new(&entry, false).unwrap();
                    bytes.extend_from_slice(&one.to_vec());
                }
                Entry::SegmentHeader(_) | Entry::LogDigest(_) | Entry::TableStats(_) => {}
            }
        }
    }
    bytes
}
