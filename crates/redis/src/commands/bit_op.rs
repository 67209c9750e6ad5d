//! BITOP: values combined bit by bit. Shorter ones count as followed by zeros.

use super::overlay::VALUES_BYTES_MAX;
use crate::failure;
use crate::parser::Command;
use crate::reply::Failure;
use bytes::Bytes;

/// How the bits of several values are combined.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum BitOp {
    And,
    Or,
    Xor,
    Not,
    /// In the first, and in none of the others.
    Diff,
    /// In one of the others, and not in the first.
    Diff1,
    /// In the first and in one of the others.
    AndOr,
    /// In exactly one.
    One,
}

const WORDS: [(&str, BitOp); 8] = [
    ("AND", BitOp::And),
    ("OR", BitOp::Or),
    ("XOR", BitOp::Xor),
    ("NOT", BitOp::Not),
    ("DIFF", BitOp::Diff),
    ("DIFF1", BitOp::Diff1),
    ("ANDOR", BitOp::AndOr),
    ("ONE", BitOp::One),
];

/// The operation of the command.
///
/// # Errors
/// There is none of that name, or it wants other keys.
pub(super) fn of(command: &Command) -> Result<BitOp, Failure> {
    let found = WORDS.iter().find(|(word, _)| command.is(1, word));
    let (word, operation) = found.ok_or(failure::SYNTAX)?;
    match (operation, command.len()) {
        (BitOp::Not, 4) => Ok(*operation),
        (BitOp::Not, _) => Err(failure::BITOP_NOT),
        (BitOp::Diff | BitOp::Diff1 | BitOp::AndOr, 4) => Err(Failure::new(format!(
            "ERR BITOP {word} must be called with at least two source keys."
        ))),
        _ => Ok(*operation),
    }
}

/// Bytes of values that are combined before others get their turn: about a tenth of a millisecond.
const STEP_BYTES: usize = 1 << 20;

/// Values on their way to a result, which is as long as the longest of them.
pub(crate) struct Combining {
    operation: BitOp,
    sources: Vec<Bytes>,
    /// How many of them are in the result.
    done: usize,
    /// Where there is a first one of its own, what the others have become so far.
    value: Vec<u8>,
    /// Of [`BitOp::And`]: the bytes in front that are not zeros for certain.
    common: usize,
    /// Of [`BitOp::One`]: the bits that are in several.
    several: Vec<u8>,
}

impl Combining {
    /// A value that is named again counts again.
    ///
    /// # Errors
    /// They hold more bytes together than one command may read.
    pub(super) fn of(operation: BitOp, sources: Vec<Bytes>) -> Result<Self, Failure> {
        let bytes: usize = sources.iter().map(Bytes::len).sum();
        if bytes > VALUES_BYTES_MAX {
            return Err(failure::keys_hold_too_much(VALUES_BYTES_MAX));
        }
        let len = sources.iter().map(Bytes::len).max().unwrap_or(0);
        let several = if operation == BitOp::One { len } else { 0 };
        Ok(Self {
            operation,
            sources,
            done: 0,
            value: vec![0; len],
            common: len,
            several: vec![0; several],
        })
    }

    /// Combines some more of the values. Gives whether the result is there.
    pub(crate) fn step(&mut self) -> bool {
        let mut bytes = 0;
        while self.done < self.sources.len() && bytes < STEP_BYTES {
            let source = self.sources[self.done].clone();
            bytes += source.len();
            self.add(&source);
            self.done += 1;
        }
        let is_done = self.done == self.sources.len();
        if is_done {
            self.add_first();
        }
        is_done
    }

    fn add(&mut self, source: &[u8]) {
        let is_first = self.done == 0;
        let value = &mut self.value[..source.len()];
        match self.operation {
            BitOp::And | BitOp::Not if is_first => value.copy_from_slice(source),
            BitOp::And => {
                join(value, source, |a, b| a & b);
                let common = source.len().min(self.common);
                self.value[common..self.common].fill(0);
                self.common = common;
            }
            BitOp::Or => join(value, source, |a, b| a | b),
            BitOp::Xor => join(value, source, |a, b| a ^ b),
            BitOp::Not => {}
            BitOp::Diff | BitOp::Diff1 | BitOp::AndOr if is_first => {}
            BitOp::Diff | BitOp::Diff1 | BitOp::AndOr => join(value, source, |a, b| a | b),
            BitOp::One => {
                let bits = value.iter_mut().zip(&mut self.several);
                for ((one, several), bits) in bits.zip(source) {
                    *several |= *one & bits;
                    *one = (*one ^ bits) & !*several;
                }
            }
        }
    }

    /// The rest, when all values have been looked at.
    fn add_first(&mut self) {
        // Zeros follow a first one that is shorter.
        let len = self.value.len();
        let first = self.sources.first().cloned().unwrap_or_default();
        let first = first.iter().copied().chain(core::iter::repeat(0)).take(len);
        let both = self.value.iter_mut().zip(first);
        match self.operation {
            BitOp::And | BitOp::Or | BitOp::Xor | BitOp::One => {}
            BitOp::Not => self.value.iter_mut().for_each(|bits| *bits = !*bits),
            BitOp::Diff => both.for_each(|(others, first)| *others = first & !*others),
            BitOp::Diff1 => both.for_each(|(others, first)| *others &= !first),
            BitOp::AndOr => both.for_each(|(others, first)| *others &= first),
        }
    }

    /// The result, once it is there.
    pub(super) fn into_value(self) -> Vec<u8> {
        debug_assert_eq!(self.done, self.sources.len());
        self.value
    }
}

/// Joins each byte with that of the other value at its place.
fn join(value: &mut [u8], source: &[u8], with: impl Fn(u8, u8) -> u8) {
    for (a, b) in value.iter_mut().zip(source) {
        *a = with(*a, *b);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn combined(operation: BitOp, sources: &[Bytes]) -> Vec<u8> {
        let mut combining = Combining::of(operation, sources.to_vec()).expect("they are small");
        while !combining.step() {}
        combining.into_value()
    }

    #[test]
    fn each_operation_does_what_its_name_says() {
        let sources = [&b"\x0f\xff"[..], b"\x33", b"\x55\x01"];
        let sources = sources.map(Bytes::from_static);
        for (operation, expected, backwards) in [
            (BitOp::And, [0x01, 0x00], [0x01, 0x00]),
            (BitOp::Or, [0x7f, 0xff], [0x7f, 0xff]),
            (BitOp::Xor, [0x69, 0xfe], [0x69, 0xfe]),
            (BitOp::Not, [0xf0, 0x00], [0xaa, 0xfe]),
            (BitOp::Diff, [0x08, 0xfe], [0x40, 0x00]),
            (BitOp::Diff1, [0x70, 0x00], [0x2a, 0xfe]),
            (BitOp::AndOr, [0x07, 0x01], [0x15, 0x01]),
            (BitOp::One, [0x68, 0xfe], [0x68, 0xfe]),
        ] {
            assert_eq!(combined(operation, &sources), expected, "{operation:?}");
            let mut other = sources.clone();
            other.reverse();
            assert_eq!(combined(operation, &other), backwards, "{operation:?}");
        }
        // The first one is the shortest.
        let sources = [&b"\x33"[..], b"\x55\x01"].map(Bytes::from_static);
        assert_eq!(combined(BitOp::Diff1, &sources), [0x44, 0x01]);
        assert_eq!(combined(BitOp::Diff, &sources), [0x22, 0x00]);
        assert_eq!(combined(BitOp::And, &[Bytes::new()]), b"");
    }

    #[test]
    fn large_values_are_combined_in_steps_and_within_a_bound() {
        let large = Bytes::from(vec![1; 1 << 20]);
        let of = |count| Combining::of(BitOp::Xor, vec![large.clone(); count]);
        assert!(of(VALUES_BYTES_MAX / large.len() + 1).is_err());
        let mut combining = of(5).expect("it is less than may be read");
        let mut steps = 1;
        while !combining.step() {
            steps += 1;
        }
        assert_eq!(steps, 5);
        assert_eq!(combining.into_value(), large);
    }
}
