//! Alignments in the heap of a span: records, orders and index stay there, as they are in memory,
//! for the next program.

use super::record::{Core, Loaded, Records};
use super::steps::{self, Index};
use super::work::{Results, digest_of};
use crate::error::Result;
use crate::place::attach;
use pluvio_spacejmp::{Access, Registry, SegVec, Space, seg_struct};
use std::path::Path;

/// The span, and the space with it alone.
const NAME: &str = "alignments";
/// Bytes of the span for each record, and beside them.
const RECORD_BYTES: u64 = 512;
const MORE_BYTES: u64 = 16 << 20;
/// Records that one change adds. A change holds all that it touched a second time.
const ADDED: usize = 50_000;

seg_struct! {
    /// A record.
    pub struct Alignment<'id> {
        /// Its numbers.
        pub core: Core,
        /// Its bytes.
        pub tail: SegVec<'id, u8>,
    }
}

seg_struct! {
    /// The root.
    pub struct Library<'id> {
        /// In the order in which they came.
        pub records: SegVec<'id, Alignment<'id>>,
        /// Their numbers by name.
        pub by_name: SegVec<'id, u32>,
        /// Their numbers by position.
        pub by_position: SegVec<'id, u32>,
        /// `counts` of the [`Index`].
        pub counts: SegVec<'id, u64>,
        /// `first` of the [`Index`].
        pub first: SegVec<'id, u32>,
    }
}

impl Records for [Alignment<'_>] {
    fn count(&self) -> usize {
        self.len()
    }

    fn core(&self, number: usize) -> Core {
        self[number].core
    }

    fn tail(&self, number: usize) -> &[u8] {
        &self[number].tail
    }
}

fn root_of(folder: &Path) -> Result<Registry> {
    Ok(Registry::open(folder.join("spaces"))?)
}

fn open(folder: &Path) -> Result<Space> {
    attach(&root_of(folder)?, NAME)
}

/// Puts records into a new span.
pub(crate) fn import(folder: &Path, records: &[Loaded]) -> Result<()> {
    let registry = root_of(folder)?;
    let bytes = records.len() as u64 * RECORD_BYTES + MORE_BYTES;
    registry.span(NAME).size(bytes).create()?;
    registry.create_space(NAME, &[(NAME, Access::Write)])?;
    let space = attach(&registry, NAME)?;
    let mut inside = space.enter()?;
    inside.init::<Library<'_>>(NAME, |heap| {
        Ok(Library {
            records: SegVec::with_room(heap, records.len())?,
            by_name: SegVec::new(),
            by_position: SegVec::new(),
            counts: SegVec::new(),
            first: SegVec::new(),
        })
    })?;
    for some in records.chunks(ADDED) {
        inside.write::<Library<'_>, _>(NAME, |heap, library| {
            for record in some {
                let tail = SegVec::from_slice(heap, &record.tail)?;
                let core = record.core;
                library.records.push(heap, Alignment { core, tail })?;
            }
            Ok(())
        })?;
    }
    Ok(())
}

/// Forgets the span.
pub(crate) fn remove(folder: &Path) -> Result<()> {
    let registry = root_of(folder)?;
    if registry.find_space(NAME).is_ok() {
        registry.destroy_space(NAME)?;
        registry.destroy_span(NAME)?;
    }
    Ok(())
}

/// Counts by flags, as a reader among others.
pub(crate) fn flagstat(folder: &Path) -> Result<[[u64; 2]; steps::COUNTS]> {
    let space = open(folder)?;
    let inside = space.enter_shared()?;
    Ok(inside.read::<Library<'_>, _>(NAME, |library| steps::flagstat(&library.records[..]))?)
}

/// Puts the records in order by name.
pub(crate) fn sort_by_name(folder: &Path) -> Result<()> {
    let space = open(folder)?;
    let mut inside = space.enter()?;
    Ok(inside.write::<Library<'_>, _>(NAME, |heap, library| {
        let order = steps::by_name(&library.records[..]);
        library.by_name = SegVec::from_slice(heap, &order)?;
        Ok(())
    })?)
}

/// Puts the records in order by position.
pub(crate) fn sort_by_position(folder: &Path) -> Result<()> {
    let space = open(folder)?;
    let mut inside = space.enter()?;
    Ok(inside.write::<Library<'_>, _>(NAME, |heap, library| {
        let order = steps::by_position(&library.records[..]);
        library.by_position = SegVec::from_slice(heap, &order)?;
        Ok(())
    })?)
}

/// Makes the index; they are in order by position.
pub(crate) fn index(folder: &Path) -> Result<()> {
    let space = open(folder)?;
    let mut inside = space.enter()?;
    Ok(inside.write::<Library<'_>, _>(NAME, |heap, library| {
        let index = steps::index(&library.records[..], &library.by_position);
        library.counts = SegVec::from_slice(heap, &index.counts)?;
        library.first = SegVec::from_slice(heap, &index.first)?;
        Ok(())
    })?)
}

/// What the steps have left.
pub(crate) fn results(folder: &Path) -> Result<Results> {
    let space = open(folder)?;
    let inside = space.enter_shared()?;
    let results = inside.read::<Library<'_>, _>(NAME, |library| {
        let records = &library.records[..];
        Results {
            by_name: digest_of(records, &library.by_name),
            by_position: digest_of(records, &library.by_position),
            index: Index {
                counts: library.counts.to_vec(),
                first: library.first.to_vec(),
            },
        }
    });
    Ok(results?)
}
