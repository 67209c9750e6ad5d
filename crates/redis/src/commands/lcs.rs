//! LCS: the longest bytes that two values have in common, in their order and with gaps.
//!
//! The lengths for all pairs of starts are computed row by row, and one bit is kept of each: which
//! of two ways leads there. So 268 million pairs take 32 MiB, and others get their turn after every
//! [`PAIRS_STEP`] of them.

use super::CommandResult;
use crate::database::DatabaseId;
use crate::failure;
use crate::give_way::give_way;
use crate::memory::MemoryAccount;
use crate::number::integer;
use crate::parser::Command;
use crate::reply::{Failure, Reply};
use crate::shared::Core;
use bytes::Bytes;
use pluvio_client::{Output, Projection};

/// Pairs of bytes that are compared before others get their turn: a tenth of a millisecond.
const PAIRS_STEP: usize = 64 << 10;
/// Most pairs of bytes: about a second of work.
const PAIRS_MAX: usize = 1 << 28;

const LENGTH_OR_INDEX: Failure =
    Failure::fixed("ERR If you want both the length and indexes, please just use IDX.");

#[derive(Default)]
struct Options {
    length: bool,
    index: bool,
    with_lengths: bool,
    shortest: usize,
}

fn options(command: &Command) -> Result<Options, Failure> {
    let mut options = Options::default();
    let mut at = 3;
    while at < command.len() {
        if command.is(at, "IDX") {
            options.index = true;
        } else if command.is(at, "LEN") {
            options.length = true;
        } else if command.is(at, "WITHMATCHLEN") {
            options.with_lengths = true;
        } else if command.is(at, "MINMATCHLEN") && at + 1 < command.len() {
            at += 1;
            let shortest = integer(command.get(at)).ok_or(failure::NOT_INTEGER)?;
            options.shortest = usize::try_from(shortest).unwrap_or(0);
        } else {
            return Err(failure::SYNTAX);
        }
        at += 1;
    }
    match options.length && options.index {
        true => Err(LENGTH_OR_INDEX),
        false => Ok(options),
    }
}

fn too_long() -> Failure {
    Failure::new(format!(
        "ERR the lengths of the two values, multiplied, are over {PAIRS_MAX}: LCS would hold up \
         this server"
    ))
}

pub(super) async fn lcs(
    core: &Core,
    account: &MemoryAccount,
    db: DatabaseId,
    command: &Command,
) -> CommandResult {
    let options = options(command)?;
    let keys = [command.get(1), command.get(2)];
    let values = core.databases.multi_get(db, &keys, Projection::Value);
    let mut values = values
        .await?
        .into_iter()
        .map(|value| match value.into_output() {
            Output::Bytes(value) => value,
            _ => Bytes::new(),
        });
    let (a, b) = (
        values.next().unwrap_or_default(),
        values.next().unwrap_or_default(),
    );
    let pairs = a
        .len()
        .checked_mul(b.len())
        .filter(|pairs| *pairs <= PAIRS_MAX);
    let bytes = pairs.ok_or_else(too_long)? / 8;
    let mut building = account.build();
    let patience = core.databases.client().timeout();
    let clock = &core.databases.parts().clock;
    building.room(bytes, &**clock, patience).await?;
    building.grow(bytes, usize::MAX)?;
    let ways = Ways::of(&a, &b).await;
    if options.length {
        return Ok(Reply::count(ways.length as u64));
    }
    let (common, runs) = ways.walk(&a, &b);
    if !options.index {
        return Ok(Reply::Bulk(common.into()));
    }
    let runs = runs
        .into_iter()
        .filter(|run| run.length >= options.shortest);
    let span = |start: usize, length: usize| {
        let ends = [start, start + length - 1];
        Reply::Array(ends.map(|end| Reply::count(end as u64)).to_vec())
    };
    let shown = runs.map(|run| {
        let mut parts = vec![span(run.a, run.length), span(run.b, run.length)];
        if options.with_lengths {
            parts.push(Reply::count(run.length as u64));
        }
        Reply::Array(parts)
    });
    Ok(Reply::Map(vec![
        (Reply::Text("matches"), Reply::Array(shown.collect())),
        (Reply::Text("len"), Reply::count(ways.length as u64)),
    ]))
}

/// Bytes that stand together in both values.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Run {
    a: usize,
    b: usize,
    length: usize,
}

/// The way back from each pair of starts that end with different bytes.
struct Ways {
    width: usize,
    /// Whether the start of `a` is to be shortened; else that of `b` is.
    shortens_a: Vec<u8>,
    /// The length of what is common.
    length: usize,
}

impl Ways {
    async fn of(a: &[u8], b: &[u8]) -> Self {
        let width = b.len();
        let mut shortens_a = vec![0_u8; (a.len() * width).div_ceil(8)];
        // The lengths for the row before, and for this one as far as it is computed.
        let mut row = vec![0_u32; width + 1];
        let mut pairs = 0;
        for (i, byte) in a.iter().enumerate() {
            let (mut diagonal, mut left) = (0, 0);
            for (part, others) in b.chunks(PAIRS_STEP).enumerate() {
                for (j, other) in (part * PAIRS_STEP..).zip(others) {
                    let above = row[j + 1];
                    if byte == other {
                        left = diagonal + 1;
                    } else if above > left {
                        left = above;
                        let bit = i * width + j;
                        shortens_a[bit / 8] |= 1 << (bit % 8);
                    }
                    diagonal = above;
                    row[j + 1] = left;
                }
                pairs += others.len();
                if pairs >= PAIRS_STEP {
                    pairs = 0;
                    give_way().await;
                }
            }
        }
        Self {
            width,
            shortens_a,
            length: row[width] as usize,
        }
    }

    /// The common bytes, and where they stand, last first.
    fn walk(&self, a: &[u8], b: &[u8]) -> (Vec<u8>, Vec<Run>) {
        let (mut common, mut runs) = (Vec::with_capacity(self.length), Vec::new());
        let (mut i, mut j) = (a.len(), b.len());
        let mut run: Option<Run> = None;
        while i > 0 && j > 0 {
            if a[i - 1] == b[j - 1] {
                (i, j) = (i - 1, j - 1);
                common.push(a[i]);
                let length = run.map_or(1, |run| run.length + 1);
                run = Some(Run { a: i, b: j, length });
                continue;
            }
            runs.extend(run.take());
            let bit = (i - 1) * self.width + j - 1;
            if self.shortens_a[bit / 8] >> (bit % 8) & 1 == 1 {
                i -= 1;
            } else {
                j -= 1;
            }
        }
        runs.extend(run);
        common.reverse();
        (common, runs)
    }
}
