//! SLOWLOG, COMMANDLOG and LATENCY: which commands were slow or large, and how long all of them
//! took.

use super::CommandResult;
use crate::command_log::{Entry, Kind};
use crate::counters::Latencies;
use crate::number::integer;
use crate::parser::Command;
use crate::reply::{Failure, Reply};
use crate::shared::Core;
use crate::table::{SPECS, find, wrong_subcommand};

/// Entries that SLOWLOG GET gives unless told otherwise, as in Redis.
const COUNT_DEFAULT: usize = 10;
/// The first bucket of a histogram ends here, and each of the others at twice the one before it.
const BUCKET_NANOS: u64 = 1024;

const BAD_COUNT: Failure = Failure::fixed("ERR count should be greater than or equal to -1");
const BAD_KIND: Failure =
    Failure::fixed("ERR type should be one of the following: slow, large-request, large-reply");

fn count(text: &[u8]) -> Result<usize, Failure> {
    match integer(text).ok_or(BAD_COUNT)? {
        -1 => Ok(usize::MAX),
        count => usize::try_from(count).map_err(|_| BAD_COUNT),
    }
}

fn newest(core: &Core, kind: Kind, count: usize) -> Reply {
    let logs = &core.options().parameters.logs;
    let show = |entry: Entry| {
        let parts = entry.parts.into_iter().map(|part| Reply::Bulk(part.into()));
        Reply::Array(vec![
            Reply::count(entry.id),
            Reply::count(entry.at),
            Reply::count(entry.amount),
            Reply::Array(parts.collect()),
            Reply::copy(entry.address),
            Reply::copy(entry.name),
        ])
    };
    Reply::Array(logs.newest(kind, count).into_iter().map(show).collect())
}

pub(super) fn slow_log_get(core: &Core, command: &Command) -> CommandResult {
    let count = match command.len() {
        2 => COUNT_DEFAULT,
        3 => count(command.get(2))?,
        _ => return Err(wrong_subcommand(command)),
    };
    Ok(newest(core, Kind::Slow, count))
}

fn kind(name: &[u8]) -> Result<Kind, Failure> {
    let is = |word: &str| name.eq_ignore_ascii_case(word.as_bytes());
    if is("slow") {
        Ok(Kind::Slow)
    } else if is("large-request") {
        Ok(Kind::Request)
    } else if is("large-reply") {
        Ok(Kind::Reply)
    } else {
        Err(BAD_KIND)
    }
}

pub(super) fn command_log_get(core: &Core, command: &Command) -> CommandResult {
    let kind = kind(command.get(3))?;
    Ok(newest(core, kind, count(command.get(2))?))
}

pub(super) fn length(core: &Core, kind: Kind) -> Reply {
    Reply::count(core.options().parameters.logs.len(kind) as u64)
}

pub(super) fn clear(core: &Core, kind: Kind) -> Reply {
    core.options().parameters.logs.clear(kind);
    Reply::OK
}

pub(super) fn command_log_length(core: &Core, command: &Command) -> CommandResult {
    Ok(length(core, kind(command.get(2))?))
}

pub(super) fn command_log_clear(core: &Core, command: &Command) -> CommandResult {
    Ok(clear(core, kind(command.get(2))?))
}

/// LATENCY HISTOGRAM: of the commands that are named, and the subcommands of containers among
/// them; of all that were called, if none is named. Unknown names are passed over, as in Redis.
pub(super) fn histogram(core: &Core, command: &Command) -> Reply {
    let times = core.shared.times();
    let mut names = Vec::new();
    for name in command.from(2) {
        let found = find(name).and_then(|spec| SPECS.get(usize::from(spec)));
        if let Some(spec) = found {
            names.push(spec.name);
            names.extend(spec.subcommands().map(|sub| sub.name));
        }
    }
    let shown = times
        .iter()
        .filter(|(name, _)| command.len() == 2 || names.contains(name));
    let pairs = shown.map(|(name, times)| (Reply::Text(name), buckets(times)));
    Reply::Map(pairs.collect())
}

fn buckets(times: &Latencies) -> Reply {
    let mut pairs = Vec::new();
    let mut sum = 0;
    for bucket in times.iter_log(BUCKET_NANOS, 2.0) {
        let count = bucket.count_since_last_iteration();
        sum += count;
        if count > 0 {
            let end = bucket.value_iterated_to() / 1000;
            pairs.push((Reply::count(end), Reply::count(sum)));
        }
    }
    Reply::Map(vec![
        (Reply::Text("calls"), Reply::count(times.len())),
        (Reply::Text("histogram_usec"), Reply::Map(pairs)),
    ])
}

/// LATENCY DOCTOR.
pub(super) fn doctor() -> Reply {
    Reply::Verbatim(
        "Events are not recorded here. LATENCY HISTOGRAM and INFO latencystats tell how long \
         commands took, SLOWLOG GET which were slow.\n"
            .to_owned(),
    )
}

/// LATENCY GRAPH: there are no events.
pub(super) fn graph(command: &Command) -> Failure {
    let text = [
        b"ERR No samples available for event '",
        command.get(2),
        b"'",
    ];
    Failure::new(text.concat())
}
