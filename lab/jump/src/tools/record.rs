//! Alignments: where a read of a sequencer lies on a genome. The fields of the SAM format.
//!
//! A record is numbers (`Core`) and one block of bytes, the *tail*. That has its name, the
//! operations of its CIGAR with four bytes each, its bases and their qualities. Samtools keeps one
//! in this way, too.

use pluvio_spacejmp::seg_struct;

/// Names and lengths of the genome's sequences.
pub(crate) const REFERENCES: [(&str, u32); 5] = [
    ("chr1", 2_400_000),
    ("chr2", 1_900_000),
    ("chr3", 1_400_000),
    ("chr4", 900_000),
    ("chr5", 400_000),
];
/// Letters of the operations of a CIGAR, by number.
pub(crate) const OPERATIONS: &[u8; 9] = b"MIDNSHP=X";

/// Bits of a record's flags.
pub(crate) mod flag {
    pub(crate) const PAIRED: u16 = 0x1;
    pub(crate) const PROPER_PAIR: u16 = 0x2;
    pub(crate) const UNMAPPED: u16 = 0x4;
    pub(crate) const MATE_UNMAPPED: u16 = 0x8;
    pub(crate) const REVERSE: u16 = 0x10;
    pub(crate) const MATE_REVERSE: u16 = 0x20;
    pub(crate) const FIRST: u16 = 0x40;
    pub(crate) const LAST: u16 = 0x80;
    pub(crate) const SECONDARY: u16 = 0x100;
    pub(crate) const FAILED: u16 = 0x200;
    pub(crate) const DUPLICATE: u16 = 0x400;
    pub(crate) const SUPPLEMENTARY: u16 = 0x800;
}

seg_struct! {
    /// The numbers of a record. Sequences and positions count from 0; -1 means none.
    #[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
    pub struct Core {
        /// The sequence that it lies on.
        pub reference: i32,
        /// Where it begins there.
        pub position: i32,
        /// The same of its mate.
        pub mate_reference: i32,
        /// The same of its mate.
        pub mate_position: i32,
        /// Bases from the first of the pair to the last.
        pub template: i32,
        /// Bases.
        pub bases: u32,
        /// See [`flag`].
        pub flags: u16,
        /// Operations of the CIGAR.
        pub operations: u16,
        /// How sure the position is.
        pub quality: u8,
        /// Bytes of the name.
        pub name: u8,
        /// Bases of the sequence that it covers, at least one: see [`covered`].
        pub covers: u16,
    }
}

/// Bytes of a core in a file.
pub(crate) const CORE_BYTES: usize = 32;

impl Core {
    pub(crate) fn has(&self, bits: u16) -> bool {
        self.flags & bits != 0
    }

    /// Bytes of the tail.
    pub(crate) fn tail_bytes(&self) -> usize {
        usize::from(self.name) + 4 * usize::from(self.operations) + 2 * self.bases as usize
    }

    /// As bytes of a file.
    pub(crate) fn encode(&self, into: &mut Vec<u8>) {
        for number in [
            self.reference,
            self.position,
            self.mate_reference,
            self.mate_position,
            self.template,
        ] {
            into.extend(number.to_le_bytes());
        }
        into.extend(self.bases.to_le_bytes());
        into.extend(self.flags.to_le_bytes());
        into.extend(self.operations.to_le_bytes());
        into.extend([self.quality, self.name]);
        into.extend(self.covers.to_le_bytes());
    }

    /// From bytes of a file; `None` when there are too few.
    pub(crate) fn decode(bytes: &[u8]) -> Option<Self> {
        let four = |at: usize| bytes.get(at..at + 4)?.try_into().ok();
        let two = |at: usize| bytes.get(at..at + 2)?.try_into().ok();
        let signed = |at| four(at).map(i32::from_le_bytes);
        Some(Self {
            reference: signed(0)?,
            position: signed(4)?,
            mate_reference: signed(8)?,
            mate_position: signed(12)?,
            template: signed(16)?,
            bases: u32::from_le_bytes(four(20)?),
            flags: u16::from_le_bytes(two(24)?),
            operations: u16::from_le_bytes(two(26)?),
            quality: *bytes.get(28)?,
            name: *bytes.get(29)?,
            covers: u16::from_le_bytes(two(30)?),
        })
    }

    /// The base behind the last one that it covers.
    pub(crate) fn end(&self) -> i32 {
        self.position + i32::from(self.covers)
    }
}

/// Bases of the sequence that a record covers, at least one.
pub(crate) fn covered(core: &Core, tail: &[u8]) -> u16 {
    let covers = |operation: u32| match operation & 0xf {
        // M, D, N, = and X.
        0 | 2 | 3 | 7 | 8 => (operation >> 4) as u16,
        _ => 0,
    };
    let sum: u16 = match core.has(flag::UNMAPPED) {
        true => 0,
        false => operations(core, tail).map(covers).sum(),
    };
    sum.max(1)
}

/// The name.
pub(crate) fn name<'t>(core: &Core, tail: &'t [u8]) -> &'t [u8] {
    tail.get(..usize::from(core.name)).unwrap_or_default()
}

/// The operations of the CIGAR: length in the upper 28 bits.
pub(crate) fn operations<'t>(core: &Core, tail: &'t [u8]) -> impl Iterator<Item = u32> + use<'t> {
    let begin = usize::from(core.name);
    let end = begin + 4 * usize::from(core.operations);
    let bytes = tail.get(begin..end).unwrap_or_default();
    let numbers = bytes.chunks_exact(4);
    numbers.map(|four| u32::from_le_bytes([four[0], four[1], four[2], four[3]]))
}

/// The letters of the bases, and of their qualities.
pub(crate) fn letters<'t>(core: &Core, tail: &'t [u8]) -> (&'t [u8], &'t [u8]) {
    let begin = usize::from(core.name) + 4 * usize::from(core.operations);
    let rest = tail.get(begin..).unwrap_or_default();
    rest.split_at_checked(core.bases as usize)
        .unwrap_or_default()
}

/// Records in memory, wherever they lie.
pub(crate) trait Records {
    fn count(&self) -> usize;
    fn core(&self, number: usize) -> Core;
    fn tail(&self, number: usize) -> &[u8];
}

/// A record in the memory of a process.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Loaded {
    pub(crate) core: Core,
    pub(crate) tail: Vec<u8>,
}

impl Records for [Loaded] {
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
