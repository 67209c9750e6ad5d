//! Alignments as text: the SAM format, a line a record.

use super::record::{
    Core, Loaded, OPERATIONS, REFERENCES, Records, covered, letters, name, operations,
};
use crate::error::{JumpError, Result};
use std::io::Write;

/// Writes all records, in this order.
pub(crate) fn write(
    records: &(impl Records + ?Sized),
    order: impl IntoIterator<Item = usize>,
    sorted: &str,
    into: &mut impl Write,
) -> std::io::Result<()> {
    writeln!(into, "@HD\tVN:1.6\tSO:{sorted}")?;
    for (reference, length) in REFERENCES {
        writeln!(into, "@SQ\tSN:{reference}\tLN:{length}")?;
    }
    let mut line = Vec::new();
    for number in order {
        line.clear();
        line_of(&records.core(number), records.tail(number), &mut line);
        into.write_all(&line)?;
    }
    into.flush()
}

fn reference(number: i32) -> &'static str {
    let found = usize::try_from(number)
        .ok()
        .and_then(|number| REFERENCES.get(number));
    found.map_or("*", |(name, _)| name)
}

/// A record as a line.
pub(crate) fn line_of(core: &Core, tail: &[u8], line: &mut Vec<u8>) {
    let mate = match core.mate_reference {
        -1 => "*",
        same if same == core.reference => "=",
        other => reference(other),
    };
    line.extend(name(core, tail));
    // A vector takes every byte.
    let _whole = write!(
        line,
        "\t{}\t{}\t{}\t{}\t",
        core.flags,
        reference(core.reference),
        core.position + 1,
        core.quality
    );
    for operation in operations(core, tail) {
        let letter = OPERATIONS
            .get(operation as usize & 0xf)
            .copied()
            .unwrap_or(b'?');
        let _whole = write!(line, "{}{}", operation >> 4, char::from(letter));
    }
    if core.operations == 0 {
        line.push(b'*');
    }
    let _whole = write!(
        line,
        "\t{mate}\t{}\t{}\t",
        core.mate_position + 1,
        core.template
    );
    let (bases, qualities) = letters(core, tail);
    line.extend(bases);
    line.push(b'\t');
    line.extend(qualities);
    line.push(b'\n');
}

/// Reads a whole file.
///
/// # Errors
/// A line is none of the format.
pub(crate) fn parse(text: &[u8]) -> Result<Vec<Loaded>> {
    let mut records = Vec::new();
    for (number, line) in text.split(|&byte| byte == b'\n').enumerate() {
        if line.is_empty() || line.starts_with(b"@") {
            continue;
        }
        let record = record_of(line);
        let wrong = || JumpError::of("the text", format!("line {} is no record", number + 1));
        records.push(record.ok_or_else(wrong)?);
    }
    Ok(records)
}

fn number<T: std::str::FromStr>(text: &[u8]) -> Option<T> {
    str::from_utf8(text).ok()?.parse().ok()
}

fn number_of(reference: &[u8]) -> Option<i32> {
    match reference {
        b"*" => Some(-1),
        name => {
            let found = REFERENCES
                .iter()
                .position(|(known, _)| known.as_bytes() == name);
            found.map(|found| found as i32)
        }
    }
}

fn record_of(line: &[u8]) -> Option<Loaded> {
    let mut fields = line.split(|&byte| byte == b'\t');
    let name = fields.next()?;
    let mut core = Core {
        name: u8::try_from(name.len()).ok()?,
        flags: number(fields.next()?)?,
        reference: number_of(fields.next()?)?,
        position: number::<i32>(fields.next()?)? - 1,
        quality: number(fields.next()?)?,
        ..Core::default()
    };
    let cigar = fields.next()?;
    core.mate_reference = match fields.next()? {
        b"=" => core.reference,
        other => number_of(other)?,
    };
    core.mate_position = number::<i32>(fields.next()?)? - 1;
    core.template = number(fields.next()?)?;
    let (bases, qualities) = (fields.next()?, fields.next()?);
    core.bases = u32::try_from(bases.len()).ok()?;
    if qualities.len() != bases.len() {
        return None;
    }
    let mut tail = Vec::with_capacity(name.len() + 2 * bases.len() + 12);
    tail.extend(name);
    let mut length = 0;
    for &byte in cigar {
        match byte {
            b'*' => {}
            b'0'..=b'9' => length = length * 10 + u32::from(byte - b'0'),
            letter => {
                let operation = OPERATIONS.iter().position(|&known| known == letter)?;
                tail.extend((length << 4 | operation as u32).to_le_bytes());
                core.operations += 1;
                length = 0;
            }
        }
    }
    tail.extend(bases);
    tail.extend(qualities);
    core.covers = covered(&core, &tail);
    Some(Loaded { core, tail })
}
