//! BITOP: values combined bit by bit. Shorter ones count as followed by zeros.

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

impl BitOp {
    /// The result, as long as the longest value.
    pub(super) fn compute(self, sources: &[Bytes]) -> Vec<u8> {
        let len = sources.iter().map(Bytes::len).max().unwrap_or(0);
        let byte = |source: &Bytes, at: usize| source.get(at).copied().unwrap_or(0);
        (0..len)
            .map(|at| {
                let mut all = sources.iter().map(|source| byte(source, at));
                let first = all.next().unwrap_or(0);
                match self {
                    Self::And => all.fold(first, |a, b| a & b),
                    Self::Or => all.fold(first, |a, b| a | b),
                    Self::Xor => all.fold(first, |a, b| a ^ b),
                    Self::Not => !first,
                    Self::Diff => first & !all.fold(0, |a, b| a | b),
                    Self::Diff1 => !first & all.fold(0, |a, b| a | b),
                    Self::AndOr => first & all.fold(0, |a, b| a | b),
                    Self::One => {
                        let (one, more) = all.fold((first, 0), |(one, more), b| {
                            ((one ^ b) & !(more | one & b), more | one & b)
                        });
                        one & !more
                    }
                }
            })
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_operation_does_what_its_name_says() {
        let sources = [&b"\x0f\xff"[..], b"\x33", b"\x55\x01"];
        let sources = sources.map(Bytes::from_static);
        for (operation, expected) in [
            (BitOp::And, [0x01, 0x00]),
            (BitOp::Or, [0x7f, 0xff]),
            (BitOp::Xor, [0x69, 0xfe]),
            (BitOp::Not, [0xf0, 0x00]),
            (BitOp::Diff, [0x08, 0xfe]),
            (BitOp::Diff1, [0x70, 0x00]),
            (BitOp::AndOr, [0x07, 0x01]),
            (BitOp::One, [0x68, 0xfe]),
        ] {
            assert_eq!(operation.compute(&sources), expected, "{operation:?}");
        }
        assert_eq!(BitOp::And.compute(&[Bytes::new()]), b"");
    }
}
