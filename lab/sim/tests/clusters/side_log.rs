//! The writes by which what a master replayed becomes part of its log, in a recovery and in a
//! migration.

use pluvio_env::Frame;
use pluvio_format::{Entry, SegmentIter};
use pluvio_units::SEGLET_BYTES;
use pluvio_wire::{WriteReplica, decode};

/// What a write to a replica is of.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Written {
    /// A segment of the side log.
    Side,
    /// The opening of the head whose digest joins the side log to the log.
    Joining,
}

/// Which of these a `WriteReplica` is, if any.
pub fn written(frame: &Frame) -> Option<Written> {
    let (_, write) = decode::<WriteReplica>(frame).unwrap();
    if write.side {
        return Some(Written::Side);
    }
    // What is rewritten is an earlier head that has lost a replica.
    let opens = write.open && !write.rewriting;
    (opens && lists_more(&write.data)).then_some(Written::Joining)
}

/// Whether a head lists more than itself and the one before it. No head of these tests is opened
/// because another one is full.
fn lists_more(opening: &[u8]) -> bool {
    let first = SegmentIter::new(opening, SEGLET_BYTES).next();
    let Some(Ok(group)) = first else {
        return false;
    };
    let mut entries = group.entries();
    entries
        .any(|(_, entry)| matches!(&entry, Entry::LogDigest(digest) if digest.segments.len() > 2))
}
