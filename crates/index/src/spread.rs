//! From hashes to buckets: pure arithmetic.
//!
//! A hash becomes a *rank*, and a rank a *place*: the same order, but with the expected range
//! stretched over all 64 bits. The ranks of a slot table fill them as they are. The number of lines
//! alone says how places map to lines.
//!
//! Lines belong to *blocks* of 8 to 15. A block's number is made of the place's top bits, reversed.
//! The bits that follow, as a fraction of the block, say which of its lines is the *home* of the
//! place. A block, and a home, is therefore one contiguous range of places (X4).
//!
//! ```text
//! lines = k * 2^level + s, 8 <= k < 16: blocks 0..s have k + 1 lines, blocks s..2^level have k; line i of block b is
//! line i * 2^level + b of all. A block of 16 lines is two blocks of 8 instead: b, and b + 2^level.
//! ```
//!
//! A new line is appended at the end of all. It belongs to block `s`, whose entries are shared out
//! anew (linear hashing with partial expansions). Removing a line is the reverse.

use crate::slot::TAG_BITS;
use pluvio_units::{HashKind, HashRange, KeyHash, Rank};

/// A tag is refreshed from the key each time a block's address has grown by this many bits. In
/// between, it loses a bit of its worth per split. It is a power of two. With four, one split in
/// four reads keys. At least 15 - 3 - 4 = 8 bits then tell the entries of a line apart. A full line
/// gives at worst 3 % of the lookups one needless look at the log.
const TAG_STEP: u32 = 4;

/// Number of bits behind those of the block that choose the line of a place. They are always within
/// the tag. With this many, the lines of a block differ by less than 1 % in the places they hold.
const FRACTION_BITS: u32 = TAG_BITS - TAG_STEP;

/// The map from hashes to places, which keeps the order of their ranks.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Spread {
    kind: HashKind,
    expected: HashRange,
    /// Every rank is its own place.
    identity: bool,
    first: u64,
    width_less_one: u64,
    shift: u32,
    /// The rest of the stretching that fills 64 bits, after the shift. It is a factor between 1 and
    /// 2, without its 1, in units of 2^-64.
    stretch: u64,
}

/// A block, as it is at some number of lines: the contiguous range of places that share its bits,
/// cut into lines.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Block {
    /// Its number: the top bits of its places, reversed.
    pub(crate) number: u64,
    /// How many of their top bits its places share.
    pub(crate) bits: u32,
    /// How many lines it has.
    pub(crate) lines: u64,
}

/// The address of a place, given a number of lines.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Address {
    /// Its block.
    pub(crate) block: Block,
    /// Which of the block's lines is its home.
    pub(crate) home: u64,
    /// Its tag in that block.
    pub(crate) tag: u64,
}

/// One block, or the two that it is split into.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Blocks {
    /// The one, or the one whose number stays.
    pub(crate) low: Block,
    /// The other one.
    pub(crate) high: Option<Block>,
}

impl Spread {
    /// Stretches `expected`; hashes outside it still work, but gather in the buckets at its ends.
    pub(crate) fn new(expected: HashRange, kind: HashKind) -> Self {
        let width_less_one = expected.last.0 - expected.first.0;
        let shift = width_less_one.leading_zeros().min(63);
        let whole = 1_u128 << 64;
        let shifted = (u128::from(width_less_one) + 1) << shift;
        let stretch = ((whole - shifted) << 64) / shifted;
        Self {
            kind,
            expected,
            identity: kind == HashKind::Slots || expected == HashRange::ALL,
            first: expected.first.0,
            width_less_one,
            shift,
            // Too large for a range of one hash only, where there is nothing to stretch.
            stretch: u64::try_from(stretch).unwrap_or(u64::MAX),
        }
    }

    /// The range it stretches.
    pub(crate) fn expected(&self) -> HashRange {
        self.expected
    }

    /// How its hashes are made.
    pub(crate) fn kind(&self) -> HashKind {
        self.kind
    }

    /// The rank of a hash.
    #[cfg(test)]
    pub(crate) fn rank(&self, hash: KeyHash) -> Rank {
        self.kind.rank(hash)
    }

    /// The place of a hash.
    #[inline(always)]
    pub(crate) fn place(&self, hash: KeyHash) -> u64 {
        self.place_of(self.kind.rank(hash))
    }

    /// Ascends with the rank, or stays.
    #[inline(always)]
    pub(crate) fn place_of(&self, rank: Rank) -> u64 {
        if self.identity {
            return rank.0;
        }
        self.stretched(rank)
    }

    fn stretched(&self, rank: Rank) -> u64 {
        let inside = rank.0.saturating_sub(self.first).min(self.width_less_one) << self.shift;
        let more = (u128::from(inside) * u128::from(self.stretch)) >> 64;
        // No overflow: less than inside * 2^64 / shifted, with inside < shifted.
        inside + more as u64
    }

    /// The largest rank whose place is at most `place`.
    fn last_rank(&self, place: u64) -> Rank {
        if self.identity {
            return Rank(place);
        }
        let (mut low, mut high) = (0, u64::MAX);
        while low < high {
            let middle = high - (high - low) / 2;
            if self.place_of(Rank(middle)) <= place {
                low = middle;
            } else {
                high = middle - 1;
            }
        }
        Rank(low)
    }

    /// The first and the last rank whose places lie between these two.
    pub(crate) fn ranks(&self, first: u64, last: u64) -> (Rank, Rank) {
        let first = first.checked_sub(1).map_or(Rank(0), |before| {
            Rank(self.last_rank(before).0.saturating_add(1))
        });
        (first, self.last_rank(last))
    }

    /// The first and the last rank that hashes of `range` may have.
    pub(crate) fn ranks_of(&self, range: HashRange) -> (Rank, Rank) {
        match self.kind {
            HashKind::Seeded => (self.kind.rank(range.first), self.kind.rank(range.last)),
            HashKind::Slots => (Rank(0), Rank(u64::MAX)),
        }
    }

    /// Whether all hashes of this index with ranks from `first` to `last` lie in `range`.
    pub(crate) fn are_within(&self, range: HashRange, (first, last): (Rank, Rank)) -> bool {
        match self.kind {
            HashKind::Seeded => range.first.0 <= first.0 && last.0 <= range.last.0,
            HashKind::Slots => {
                range.first <= self.expected.first && self.expected.last <= range.last
            }
        }
    }
}

/// The bits of each byte in reversed order.
const REVERSED: [u8; 256] = {
    let mut reversed = [0; 256];
    let mut byte = 0;
    while byte < 256 {
        reversed[byte] = (byte as u8).reverse_bits();
        byte += 1;
    }
    reversed
};

/// The top bits of a place in reversed order, one more than `level` of them at least, with others
/// above them.
#[inline(always)]
fn reversed_top(place: u64, level: u32) -> u64 {
    let [.., next, top] = place.to_le_bytes();
    if level < 16 {
        // Half a million lines and fewer, without the cost of reversing a word.
        let [next, top] = [next, top].map(|byte| u64::from(REVERSED[usize::from(byte)]));
        return top | next << 8;
    }
    // A block has 32 bits at most: there are fewer than 2^35 lines.
    u64::from(((place >> 32) as u32).reverse_bits())
}

impl Block {
    /// The block of a place in an index of `lines` lines; a block has `1 << log` of them at least.
    #[inline(always)]
    fn of(place: u64, lines: u64, log: u32) -> Self {
        let level = lines.ilog2() - log;
        let mask = (1 << level) - 1;
        let reversed = reversed_top(place, level);
        let low = reversed & mask;
        let own = (lines >> level) + u64::from(low < lines & mask);
        // One with twice the lines that it began with is two blocks.
        let split = own >> (log + 1);
        Self {
            number: low | reversed & split << level,
            bits: level + split as u32,
            lines: own >> split,
        }
    }

    /// The number of one of its lines among all.
    #[inline]
    pub(crate) fn line(&self, of_block: u64) -> u64 {
        of_block << self.bits | self.number
    }

    /// The line that is the home of entries with this tag.
    #[inline]
    pub(crate) fn home(&self, tag: u64) -> u64 {
        let into_tag = self.bits & (TAG_STEP - 1);
        let fraction = tag >> (TAG_BITS - FRACTION_BITS - into_tag) & ((1 << FRACTION_BITS) - 1);
        self.part(fraction)
    }

    /// The line at which a fraction of the block is.
    #[inline(always)]
    fn part(&self, fraction: u64) -> u64 {
        (fraction * self.lines) >> FRACTION_BITS
    }

    /// The line `step` behind that of an entry, a possible place for it if its home is full.
    #[inline]
    pub(crate) fn behind(&self, home: u64, step: u64) -> u64 {
        let line = home + step;
        if line < self.lines {
            line
        } else {
            line - self.lines
        }
    }

    /// How far `line` is behind `home`.
    #[inline]
    pub(crate) fn distance(&self, home: u64, line: u64) -> u64 {
        if line < home {
            line + self.lines - home
        } else {
            line - home
        }
    }

    /// The tag of a place in this block.
    #[inline]
    pub(crate) fn tag(&self, place: u64) -> u64 {
        tag(place, self.bits)
    }
}

impl Address {
    /// An index has `1 << log` lines at least.
    #[inline(always)]
    pub(crate) fn of(place: u64, lines: u64, log: u32) -> Self {
        let block = Block::of(place, lines, log);
        let fraction = (place << block.bits) >> (64 - FRACTION_BITS);
        Self {
            block,
            home: block.part(fraction),
            tag: block.tag(place),
        }
    }

    /// The first and the last place that share block and home with `place`, whose address this is.
    pub(crate) fn places(&self, place: u64) -> (u64, u64) {
        let Block { bits, lines, .. } = self.block;
        let below = u64::MAX.checked_shr(bits).unwrap_or(0);
        let shift = 64 - bits - FRACTION_BITS;
        let begin = |line: u64| (line << FRACTION_BITS).div_ceil(lines) << shift;
        // The end of the last line is the block's: a carry out of 64 bits when it is the only
        // block.
        let (first, end) = (begin(self.home), begin(self.home + 1));
        (
            place & !below | first,
            place & !below | end.wrapping_sub(1) & below,
        )
    }
}

impl Blocks {
    /// The changes to one block, or to two, when an index of `lines` lines gets one more.
    pub(crate) fn before_and_after(lines: u64, log: u32) -> (Self, Self) {
        let level = lines.ilog2() - log;
        let low = Block {
            number: lines & ((1 << level) - 1),
            bits: level,
            lines: lines >> level,
        };
        let after = if low.lines + 1 == 2 << log {
            let half = |number| Block {
                number,
                bits: level + 1,
                lines: 1 << log,
            };
            Self {
                low: half(low.number),
                high: Some(half(low.number | 1 << level)),
            }
        } else {
            let lines = low.lines + 1;
            Self {
                low: Block { lines, ..low },
                high: None,
            }
        };
        (Self { low, high: None }, after)
    }

    /// How many blocks an index of `lines` lines has.
    pub(crate) fn count(lines: u64, log: u32) -> u64 {
        let level = lines.ilog2() - log;
        let grown = lines & ((1 << level) - 1);
        let splitting = (lines >> level) + 1 == 2 << log;
        (1 << level) + if splitting { grown } else { 0 }
    }

    /// Whether tags of blocks with `bits` bits are independent of the tags in blocks with `other`
    /// bits.
    pub(crate) fn need_keys(bits: u32, other: u32) -> bool {
        bits / TAG_STEP != other / TAG_STEP
    }

    /// Whether an entry belongs to the higher one, by a tag that both sides of the split agree on.
    pub(crate) fn is_high_tag(&self, tag: u64) -> bool {
        let into_tag = (self.low.bits.wrapping_sub(1)) & (TAG_STEP - 1);
        self.high.is_some() && tag >> (TAG_BITS - 1 - into_tag) & 1 == 1
    }

    /// Whether a place belongs to the higher one.
    pub(crate) fn is_high_place(&self, place: u64) -> bool {
        self.high.is_some() && place >> (64 - self.low.bits) & 1 == 1
    }
}

/// The tag of a place in a block of `bits` bits: the 15 bits of the place from the last multiple of
/// [`TAG_STEP`] on.
#[inline]
pub(crate) fn tag(place: u64, bits: u32) -> u64 {
    (place << (bits & !(TAG_STEP - 1))) >> (64 - TAG_BITS)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const LOG: u32 = 3;

    fn ranges() -> impl Strategy<Value = HashRange> {
        let tablets = (0_u64..7, 1_u64..8).prop_map(|(at, parts)| {
            let parts = HashRange::ALL.split(parts);
            parts[usize::try_from(at).unwrap() % parts.len()]
        });
        let any = (any::<u64>(), any::<u64>()).prop_map(|(a, b)| HashRange {
            first: KeyHash(a.min(b)),
            last: KeyHash(a.max(b)),
        });
        prop_oneof![Just(HashRange::ALL), tablets, any]
    }

    proptest! {
        #[test]
        fn places_keep_the_order_and_fill_the_whole(range in ranges(), a: u64, b: u64) {
            let spread = Spread::new(range, HashKind::Seeded);
            let place = |hash| spread.place(KeyHash(hash));
            prop_assert!(place(a.min(b)) <= place(a.max(b)));
            prop_assert_eq!(spread.place(range.first), 0);
            let width = u128::from(range.last.0 - range.first.0) + 1;
            if width > 1 << 20 {
                prop_assert!(spread.place(range.last) >= u64::MAX - (1 << 45));
            }
            if a != b && range.contains(KeyHash(a)) && range.contains(KeyHash(b)) {
                prop_assert_ne!(place(a), place(b));
            }
        }

        // shows: X4
        #[test]
        fn a_line_is_home_of_exactly_the_hashes_of_its_range(
            range in ranges(), hash: u64, other: u64, lines in 8_u64..50_000,
        ) {
            let spread = Spread::new(range, HashKind::Seeded);
            let address = |hash| Address::of(spread.place(hash), lines, LOG);
            let here = address(KeyHash(hash));
            prop_assert!(here.block.line(here.home) < lines);
            let (first, last) = here.places(spread.place(KeyHash(hash)));
            let (first, last) = spread.ranks(first, last);
            let hashes = HashRange::new(KeyHash(first.0), KeyHash(last.0));
            prop_assert!(hashes.contains(KeyHash(hash)));
            let same = |hash: KeyHash| {
                let other = address(hash);
                (other.block, other.home) == (here.block, here.home)
            };
            prop_assert_eq!(hashes.contains(KeyHash(other)), same(KeyHash(other)));
            prop_assert!(same(hashes.first) && same(hashes.last));
            prop_assert!(hashes.first.0 == 0 || !same(KeyHash(hashes.first.0 - 1)));
            prop_assert!(hashes.last.0 == u64::MAX || !same(KeyHash(hashes.last.0 + 1)));
        }

        #[test]
        fn one_more_line_changes_the_blocks_it_should(place: u64, lines in 8_u64..50_000) {
            let (before, after) = Blocks::before_and_after(lines, LOG);
            let was = Address::of(place, lines, LOG);
            let is = Address::of(place, lines + 1, LOG);
            if was.block != before.low {
                prop_assert_eq!(was, is);
            } else if after.is_high_place(place) {
                prop_assert_eq!(Some(is.block), after.high);
            } else {
                prop_assert_eq!(is.block, after.low);
            }
            prop_assert!(is.block.number < Blocks::count(lines + 1, LOG));
            if was.block == before.low && !Blocks::need_keys(was.block.bits, is.block.bits) {
                prop_assert_eq!(was.tag, is.tag);
                prop_assert_eq!(after.is_high_tag(is.tag), after.is_high_place(place));
            }
            prop_assert!(was.block.bits == is.block.bits || was.block == before.low);
        }
    }

    #[test]
    fn every_line_belongs_to_one_block() {
        for lines in 8..300_u64 {
            let mut seen = std::collections::BTreeSet::new();
            let mut place = 0_u64;
            loop {
                let address = Address::of(place, lines, LOG);
                assert!(seen.insert(address.block.line(address.home)));
                match address.places(place).1.checked_add(1) {
                    Some(next) => place = next,
                    None => break,
                }
            }
            assert!(seen.into_iter().eq(0..lines), "{lines} lines");
        }
    }

    #[test]
    fn the_whole_range_is_not_changed() {
        let spread = Spread::new(HashRange::ALL, HashKind::Seeded);
        for hash in [0, 1, u64::MAX / 3, u64::MAX] {
            assert_eq!(spread.place(KeyHash(hash)), hash);
        }
    }
}
