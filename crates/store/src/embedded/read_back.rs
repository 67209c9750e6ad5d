//! What lives in the segments that a sink kept: how a program gets its objects back after a crash.
//!
//! The oldest open head of each log has the digest that counts; it names every segment of the log.
//! Of each key the entry with the highest version counts, in whatever order segments are read
//! (`docs/cleaning.md`, "Why recovery finds the same").

use crate::replay::check_version;
use pluvio_format::{Entry, LogDigest, ParseError, SegmentIter, SegmentKind};
use pluvio_mutation::Lifetime;
use pluvio_units::{Deadline, LogId, ObjectVersion, SEGLET_BYTES, SegmentId, TableId, UnixMs};
use std::collections::BTreeMap;

/// A segment as a sink kept it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct KeptSegment {
    /// Its bytes up to the last certified end.
    pub bytes: Vec<u8>,
    /// Whether [`ReplicaSink::close`](crate::ReplicaSink::close) was called for it.
    pub closed: bool,
}

/// An object that was read back.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct KeptObject {
    /// Its table: [`Table::id`](crate::Table::id). Tables are numbered in the order they are made,
    /// from 1. Objects of a table that was dropped may be among those read back.
    pub table: TableId,
    /// Its key.
    pub key: Vec<u8>,
    /// Its value.
    pub value: Vec<u8>,
    /// When it expires, if it does.
    pub deadline: Option<Deadline>,
}

impl KeptObject {
    /// How long it lives: for [`Table::put_for`](crate::Table::put_for).
    #[must_use]
    pub fn lifetime(&self) -> Lifetime {
        self.deadline.map_or(Lifetime::Endless, Lifetime::Until)
    }
}

/// What was read back.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Kept {
    /// The objects, by table and key.
    pub objects: Vec<KeptObject>,
    /// Above every version that was durable: for
    /// [`StoreBuilder::first_version`](crate::StoreBuilder::first_version).
    pub next_version: ObjectVersion,
}

/// Why nothing can be read back. Not retryable with the same segments.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum ReadBackError {
    /// A segment is not what was written.
    #[error("a kept segment is damaged{}: {why}", named(*.segment))]
    Damaged {
        /// Which one, where that is known.
        segment: Option<SegmentId>,
        /// What is wrong with it, and where.
        why: ParseError,
    },
    /// A segment does not begin with its header.
    #[error("a kept segment has no header")]
    NoHeader,
    /// There is no segment at all, or none of some log.
    #[error("log {0} has no open head: segments are missing")]
    NoHead(LogId),
    /// A digest names a segment that is not there.
    #[error("segment {segment} of log {log} is missing")]
    Missing {
        /// Whose it is.
        log: LogId,
        /// Which one.
        segment: SegmentId,
    },
}

fn named(segment: Option<SegmentId>) -> String {
    segment.map_or(String::new(), |id| format!(" (segment {id})"))
}

/// What the beginning of a segment says.
struct Head {
    log: LogId,
    kind: SegmentKind,
    id: SegmentId,
    digest: Option<LogDigest>,
}

/// A value, and when it expires.
type Value<'a> = (&'a [u8], Option<Deadline>);

/// The highest version of each key, and the value unless it was deleted.
type Newest<'a> = BTreeMap<(TableId, &'a [u8]), (ObjectVersion, Option<Value<'a>>)>;

/// What was found.
struct Found<'a> {
    newest: Newest<'a>,
    /// Above all versions.
    next: ObjectVersion,
    /// The store judged no deadline by a later time.
    horizon: UnixMs,
}

/// Finds what lives in all segments that a sink kept, in any order. Takes as much memory again as
/// the objects. Objects that the store may have shown as expired are left out, whatever clocks show
/// now. So some expire up to 2 s early.
///
/// # Errors
/// See [`ReadBackError`].
pub fn read_back(segments: &[KeptSegment]) -> Result<Kept, ReadBackError> {
    let mut by_id: BTreeMap<(LogId, SegmentId), &KeptSegment> = BTreeMap::new();
    // Ids ascend: the first one that is found open is the oldest.
    let mut open: BTreeMap<(LogId, SegmentId), LogDigest> = BTreeMap::new();
    for segment in segments.iter().filter(|segment| !segment.bytes.is_empty()) {
        let head = head(&segment.bytes)?;
        by_id.insert((head.log, head.id), segment);
        match (head.kind, head.digest) {
            (SegmentKind::Head, Some(digest)) if !segment.closed => {
                open.insert((head.log, head.id), digest);
            }
            (SegmentKind::Head | SegmentKind::Side, _) => {}
        }
    }
    let logs = open.values().map(|digest| digest.logs_of_master).max();
    let mut found = Found {
        newest: Newest::new(),
        next: ObjectVersion(1),
        horizon: UnixMs(0),
    };
    for log in (0..logs.unwrap_or(1)).map(LogId) {
        let oldest = open.range((log, SegmentId(0))..).next();
        let Some((_, digest)) = oldest.filter(|((of, _), _)| *of == log) else {
            return Err(ReadBackError::NoHead(log));
        };
        for &segment in &digest.segments {
            let kept = by_id.get(&(log, segment));
            let kept = kept.ok_or(ReadBackError::Missing { log, segment })?;
            replay(segment, &kept.bytes, &mut found)?;
        }
    }
    let Found {
        newest,
        next,
        horizon,
    } = found;
    let objects = newest.into_iter().filter_map(|((table, key), (_, value))| {
        let (value, deadline) = value?;
        let is_gone = deadline.is_some_and(|deadline| deadline.is_past(horizon));
        (!is_gone).then(|| KeptObject {
            table,
            key: key.to_vec(),
            value: value.to_vec(),
            deadline,
        })
    });
    Ok(Kept {
        objects: objects.collect(),
        next_version: next,
    })
}

fn head(bytes: &[u8]) -> Result<Head, ReadBackError> {
    let mut groups = SegmentIter::new(bytes, SEGLET_BYTES);
    let first = groups.next().ok_or(ReadBackError::NoHeader)?;
    let first = first.map_err(|why| ReadBackError::Damaged { segment: None, why })?;
    let (mut header, mut digest) = (None, None);
    for (_, entry) in first.entries() {
        match entry {
            Entry::SegmentHeader(found) => header = Some(found),
            Entry::LogDigest(found) => digest = Some(found),
            Entry::Object(_)
            | Entry::Tombstone(_)
            | Entry::SafeVersion(_)
            | Entry::TableStats(_)
            | Entry::Completion(_)
            | Entry::Horizon(_) => {}
        }
    }
    let header = header.ok_or(ReadBackError::NoHeader)?;
    Ok(Head {
        log: header.log,
        kind: header.kind,
        id: header.segment,
        digest,
    })
}

fn replay<'a>(
    segment: SegmentId,
    bytes: &'a [u8],
    found: &mut Found<'a>,
) -> Result<(), ReadBackError> {
    for group in SegmentIter::new(bytes, SEGLET_BYTES) {
        let group = group.map_err(|why| ReadBackError::Damaged {
            segment: Some(segment),
            why,
        })?;
        for (offset, entry) in group.entries() {
            check_version(&entry).map_err(|kind| ReadBackError::Damaged {
                segment: Some(segment),
                why: ParseError { offset, kind },
            })?;
            let (table, key, version, value) = match entry {
                Entry::Object(object) => {
                    let value = (object.value, object.deadline);
                    (object.table, object.key, object.version, Some(value))
                }
                Entry::Tombstone(dead) => (dead.table, dead.key, dead.version, None),
                Entry::SafeVersion(version) => {
                    found.next = version.max(found.next);
                    continue;
                }
                Entry::Horizon(horizon) => {
                    found.horizon = horizon.max(found.horizon);
                    continue;
                }
                Entry::SegmentHeader(_)
                | Entry::LogDigest(_)
                | Entry::TableStats(_)
                | Entry::Completion(_) => continue,
            };
            found.next = version.next().max(found.next);
            let newest = &mut found.newest;
            let known = newest.entry((table, key)).or_insert((version, value));
            // A tombstone kills the object of its own version.
            if version > known.0 || (version == known.0 && value.is_none()) {
                *known = (version, value);
            }
        }
    }
    Ok(())
}
