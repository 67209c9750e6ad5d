//! Sorts the entries of one replica by recovery partition [RAMCloud §7.5, §7.6], and reads what the
//! first entries of a head say. Pure functions over bytes.

use bytes::Bytes;
use core::fmt;
use core::ops::Range;
use pluvio_env::buffers::Buffer;
use pluvio_format::{Entry, FrameHeader, SegmentIter};
use pluvio_units::{KeyHash, SegmentId, TableId};
use pluvio_wire::{HeadInfo, TableLoad, TabletSpec};
use std::collections::BTreeMap;

/// Why a replica gives no data.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Damage(pub(crate) String);

impl fmt::Display for Damage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Which partition wants a key.
pub(crate) struct Router {
    tables: BTreeMap<TableId, Vec<(TabletSpec, usize)>>,
    partitions: usize,
}

impl Router {
    pub(crate) fn new(partitions: &[Vec<TabletSpec>]) -> Self {
        let mut tables: BTreeMap<TableId, Vec<(TabletSpec, usize)>> = BTreeMap::new();
        for (index, tablets) in partitions.iter().enumerate() {
            for tablet in tablets {
                tables
                    .entry(tablet.table)
                    .or_default()
                    .push((*tablet, index));
            }
        }
        for tablets in tables.values_mut() {
            tablets.sort_by_key(|(tablet, _)| tablet.range.first);
        }
        Self {
            tables,
            partitions: partitions.len(),
        }
    }

    /// Number of partitions.
    pub(crate) fn partitions(&self) -> usize {
        self.partitions
    }

    fn route(&self, from: SegmentId, table: TableId, key: &[u8]) -> Option<usize> {
        let tablets = self.tables.get(&table)?;
        // All tablets of a table hash alike.
        let hash = tablets.first()?.0.table_hash();
        route_within(tablets, from, hash.of(key))
    }

    fn route_hash(&self, from: SegmentId, table: TableId, hash: KeyHash) -> Option<usize> {
        route_within(self.tables.get(&table)?, from, hash)
    }
}

/// Also `None` for an entry that is older than the tablet's current stay at its owner (JOIN-1).
fn route_within(tablets: &[(TabletSpec, usize)], from: SegmentId, hash: KeyHash) -> Option<usize> {
    let after = tablets.partition_point(|(tablet, _)| tablet.range.first <= hash);
    let (tablet, partition) = tablets.get(after.checked_sub(1)?)?;
    let is_its_own = tablet.range.contains(hash) && from >= tablet.since;
    is_its_own.then_some(*partition)
}

/// The entries of one replica for one partition.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(crate) struct Bucket {
    pub(crate) entries: u32,
    pub(crate) data: Bytes,
    /// Bytes of memory that `data` keeps alive.
    pub(crate) kept: usize,
}

/// The entries of one replica, by partition.
#[derive(PartialEq, Eq, Debug, Default)]
pub(crate) struct Buckets(pub(crate) Vec<Bucket>);

impl Buckets {
    /// Bytes that they keep alive.
    pub(crate) fn bytes(&self) -> u64 {
        self.0.iter().map(|b| b.kept as u64).sum()
    }
}

/// Checks that an image begins with the header of the segment that its frame claims.
fn check_identity(entry: &Entry<'_>, frame: &FrameHeader) -> Result<(), Damage> {
    match entry {
        Entry::SegmentHeader(header)
            if header.cluster == frame.cluster
                && header.server == frame.server
                && header.segment == frame.segment
                && header.log == frame.log
                && header.kind == frame.kind =>
        {
            Ok(())
        }
        Entry::SegmentHeader(header) => Err(Damage(format!(
            "holds segment {} of server {}, its frame says segment {} of server {}",
            header.segment, header.server, frame.segment, frame.server
        ))),
        Entry::Object(_)
        | Entry::Tombstone(_)
        | Entry::LogDigest(_)
        | Entry::SafeVersion(_)
        | Entry::TableStats(_)
        | Entry::Completion(_)
        | Entry::Horizon(_) => Err(Damage("does not begin with a segment header".to_owned())),
    }
}

/// Sorts all entries of a certified image (BACKUP-7).
///
/// # Errors
/// The first thing that is wrong with the image.
pub(crate) fn sort(
    image: &[u8],
    frame: &FrameHeader,
    router: &Router,
    seglet_bytes: usize,
) -> Result<Buckets, Damage> {
    let mut sorted = Pieces::new(router.partitions());
    let mut put = |partition: usize, bytes: Range<usize>| sorted.put(partition, bytes);
    let mut first = true;
    for group in SegmentIter::new(image, seglet_bytes) {
        let group = group.map_err(|e| Damage(e.to_string()))?;
        for (bytes, entry) in group.entries().with_ends() {
            if std::mem::take(&mut first) {
                check_identity(&entry, frame)?;
            }
            match &entry {
                Entry::Object(object) => {
                    if let Some(partition) = router.route(frame.segment, object.table, object.key) {
                        put(partition, bytes);
                    }
                }
                Entry::Tombstone(tombstone) => {
                    if let Some(partition) =
                        router.route(frame.segment, tombstone.table, tombstone.key)
                    {
                        put(partition, bytes);
                    }
                }
                Entry::Completion(completion) => {
                    if let Some(partition) =
                        router.route_hash(frame.segment, completion.table, completion.hash)
                    {
                        put(partition, bytes);
                    }
                }
                Entry::SafeVersion(_) | Entry::Horizon(_) => {
                    (0..router.partitions()).for_each(|p| put(p, bytes.clone()))
                }
                Entry::SegmentHeader(_) | Entry::LogDigest(_) | Entry::TableStats(_) => {}
            }
        }
    }
    Ok(Buckets(sorted.copy(image)))
}

/// Which bytes of an image go where. Copied when all of them are known: into buffers of the right
/// size.
struct Pieces {
    /// Number of entries and of bytes of each partition.
    sizes: Vec<(u32, usize)>,
    /// In their order; those that stand one after the other for the same partition are one.
    pieces: Vec<Piece>,
}

struct Piece {
    partition: u32,
    start: u32,
    end: u32,
}

impl Pieces {
    fn new(partitions: usize) -> Self {
        Self {
            sizes: vec![(0, 0); partitions],
            pieces: Vec::new(),
        }
    }

    fn put(&mut self, partition: usize, bytes: Range<usize>) {
        let (entries, size) = &mut self.sizes[partition];
        *entries += 1;
        *size += bytes.len();
        let small = |n: usize| u32::try_from(n).expect("a replica's length is a u32");
        let piece = Piece {
            partition: small(partition),
            start: small(bytes.start),
            end: small(bytes.end),
        };
        match self.pieces.last_mut() {
            Some(last) if last.partition == piece.partition && last.end == piece.start => {
                last.end = piece.end;
            }
            Some(_) | None => self.pieces.push(piece),
        }
    }

    fn copy(self, image: &[u8]) -> Vec<Bucket> {
        let room = |(_, bytes): &(u32, usize)| Buffer::with_capacity(*bytes);
        let mut data: Vec<Buffer> = self.sizes.iter().map(room).collect();
        for piece in self.pieces {
            let bytes = &image[piece.start as usize..piece.end as usize];
            data[piece.partition as usize].extend_from_slice(bytes);
        }
        let bucket = |((entries, _), data): ((u32, usize), Buffer)| Bucket {
            entries,
            kept: data.capacity(),
            data: data.freeze(),
        };
        self.sizes.into_iter().zip(data).map(bucket).collect()
    }
}

/// Reads the first groups of a head, up to the one in which both digest and statistics are there.
/// The last argument is [`HeadInfo::copies`] and [`HeadInfo::may_lack`].
///
/// # Errors
/// When digest or statistics are missing or damaged.
pub(crate) fn head_info(
    image: &[u8],
    frame: &FrameHeader,
    seglet_bytes: usize,
    (copies, may_lack): (u8, bool),
) -> Result<HeadInfo, Damage> {
    let mut digest = None;
    let mut stats = None;
    let mut first = true;
    let mut groups = SegmentIter::new(image, seglet_bytes);
    while let Some(group) = groups.next() {
        let group = group.map_err(|e| Damage(e.to_string()))?;
        for (_, entry) in group.entries() {
            if std::mem::take(&mut first) {
                check_identity(&entry, frame)?;
            }
            match entry {
                Entry::LogDigest(found) => digest = Some(found),
                Entry::TableStats(found) => stats = Some(found),
                Entry::SegmentHeader(_)
                | Entry::SafeVersion(_)
                | Entry::Object(_)
                | Entry::Tombstone(_)
                | Entry::Completion(_)
                | Entry::Horizon(_) => {}
            }
        }
        if let (Some(digest), Some(stats)) = (&digest, &stats) {
            let load = |t: &pluvio_format::TableStat| TableLoad {
                table: t.table,
                bytes: t.live_bytes,
                entries: t.live_entries,
            };
            return Ok(HeadInfo {
                logs: digest.logs_of_master,
                digest: digest.segments.clone(),
                tables: stats.exact.iter().map(load).collect(),
                other_bytes: stats.other_bytes,
                other_entries: stats.other_entries,
                has_data: groups.next().is_some(),
                copies,
                may_lack,
                needed: frame.needed,
            });
        }
    }
    Err(Damage(
        "an open head without digest or statistics".to_owned(),
    ))
}

/// Checks that an image consists of whole groups.
///
/// # Errors
/// Where the first group begins that is not whole, and what is wrong with it.
pub(crate) fn check_groups(image: &[u8], seglet_bytes: usize) -> Result<(), (usize, Damage)> {
    let mut groups = SegmentIter::new(image, seglet_bytes);
    let mut end = 0;
    loop {
        match groups.next() {
            None => return Ok(()),
            Some(Ok(group)) => end = group.end(),
            Some(Err(error)) => return Err((end, Damage(error.to_string()))),
        }
    }
}
