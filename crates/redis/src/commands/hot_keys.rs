//! HOTKEYS: which keys make most traffic, in a session that is started and stopped, as in Redis
//! 8.6.
//!
//! It is about the keys of databases that this server owns, whichever server was asked for them.
//! The bytes are those of keys and values, estimated from samples of all operations. How long
//! commands on a key take is not measured, so the metric CPU is refused where it is the only one.

use super::CommandResult;
use crate::failure;
use crate::hot_keys::HotKeys;
use crate::number::integer;
use crate::parser::Command;
use crate::reply::{Failure, Reply};
use crate::shared::Core;
use core::time::Duration;

/// Metrics that Redis has: CPU and NET.
const METRICS: i64 = 2;
/// Longest list.
const COUNT_MAX: i64 = 64;
/// Keys of a list, unless COUNT says otherwise.
const COUNT: usize = 10;
/// Longest session, in seconds.
const SECONDS_MAX: i64 = 1_000_000;

const NOT_HERE: Failure = Failure::fixed("ERR keys are not sampled here");
const IN_PROGRESS: Failure = Failure::fixed("ERR hotkey tracking session already in progress");
const STOP_FIRST: Failure =
    Failure::fixed("ERR hotkey tracking session in progress, stop tracking first");
const NO_METRICS: Failure = Failure::fixed("ERR METRICS parameter is required");
const BAD_METRICS_COUNT: Failure = Failure::fixed("ERR METRICS count must be > 0 and <= 2");
const OTHER_METRICS_COUNT: Failure =
    Failure::fixed("ERR METRICS count does not match number of metric types provided");
const CPU_TWICE: Failure = Failure::fixed("ERR METRICS CPU defined more than once!");
const NET_TWICE: Failure = Failure::fixed("ERR METRICS NET defined more than once!");
const NO_KNOWN_METRIC: Failure =
    Failure::fixed("ERR METRICS no valid metrics passed. Supported: CPU|NET");
const ONLY_NET: Failure = Failure::fixed("ERR METRICS CPU is not measured here. Supported: NET");
const BAD_COUNT: Failure = Failure::fixed("ERR COUNT must be between 1 and 64");
const BAD_DURATION: Failure = Failure::fixed("ERR DURATION must be between 1 and 1000000");
const BAD_SAMPLE: Failure = Failure::fixed("ERR SAMPLE ratio must be positive");
const NO_SLOTS: Failure = Failure::fixed("ERR SLOTS parameter cannot be used in non-cluster mode");
const ALL_SLOTS: Failure =
    Failure::fixed("ERR SLOTS is not supported: keys of all slots of this node are listed");

/// What HOTKEYS START asks for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Start {
    count: usize,
    lasts: Option<Duration>,
}

fn start_options(is_cluster: bool, command: &Command) -> Result<Start, Failure> {
    let between = |at: usize, most: i64, failure: Failure| {
        let number = (at < command.len()).then(|| integer(command.get(at)));
        let number = number.flatten().filter(|n| (1..=most).contains(n));
        number.and_then(|n| u64::try_from(n).ok()).ok_or(failure)
    };
    if command.len() < 4 || !command.is(2, "METRICS") {
        return Err(NO_METRICS);
    }
    let metrics = between(3, METRICS, BAD_METRICS_COUNT)? as usize;
    if command.len() < 4 + metrics {
        return Err(OTHER_METRICS_COUNT);
    }
    let (mut has_cpu, mut has_net) = (false, false);
    let mut at = 4;
    while at < 4 + metrics {
        if command.is(at, "CPU") {
            if has_cpu {
                return Err(CPU_TWICE);
            }
            has_cpu = true;
        } else if command.is(at, "NET") {
            if has_net {
                return Err(NET_TWICE);
            }
            has_net = true;
        }
        at += 1;
    }
    match (has_cpu, has_net) {
        (_, true) => {}
        (true, false) => return Err(ONLY_NET),
        (false, false) => return Err(NO_KNOWN_METRIC),
    }
    let mut start = Start {
        count: COUNT,
        lasts: None,
    };
    while at < command.len() {
        let has_next = at + 1 < command.len();
        if has_next && command.is(at, "COUNT") {
            start.count = between(at + 1, COUNT_MAX, BAD_COUNT)? as usize;
        } else if has_next && command.is(at, "DURATION") {
            let seconds = between(at + 1, SECONDS_MAX, BAD_DURATION)?;
            start.lasts = Some(Duration::from_secs(seconds));
        } else if has_next && command.is(at, "SAMPLE") {
            // Servers choose their own distance between samples.
            between(at + 1, i64::from(i32::MAX), BAD_SAMPLE)?;
        } else if has_next && command.is(at, "SLOTS") {
            return Err(if is_cluster { ALL_SLOTS } else { NO_SLOTS });
        } else {
            return Err(failure::SYNTAX);
        }
        at += 2;
    }
    Ok(start)
}

fn server(core: &Core) -> Result<&dyn HotKeys, Failure> {
    let server = core.options().hot_keys.as_ref();
    server.map(|server| &*server.0).ok_or(NOT_HERE)
}

/// HOTKEYS START.
pub(super) fn start(core: &Core, command: &Command) -> CommandResult {
    let start = start_options(core.options().cluster.is_some(), command);
    let server = server(core)?;
    // As Redis: this is told before mistakes.
    if server.session().is_some_and(|session| session.is_active) {
        return Err(IN_PROGRESS);
    }
    let start = start?;
    match server.start(start.count, start.lasts) {
        true => Ok(Reply::OK),
        false => Err(IN_PROGRESS),
    }
}

/// HOTKEYS STOP.
pub(super) fn stop(core: &Core) -> CommandResult {
    Ok(match server(core)?.stop() {
        true => Reply::OK,
        false => Reply::Nil,
    })
}

/// HOTKEYS RESET.
pub(super) fn reset(core: &Core) -> CommandResult {
    match server(core)?.reset() {
        true => Ok(Reply::OK),
        false => Err(STOP_FIRST),
    }
}

/// HOTKEYS GET.
pub(super) async fn get(core: &Core) -> CommandResult {
    let Some(mut session) = server(core)?.session() else {
        return Ok(Reply::Nil);
    };
    let databases = core.databases.table_ids().await?;
    session.tables.retain(|id, _| databases.contains(id));
    let mut keys: Vec<_> = session
        .tables
        .values_mut()
        .flat_map(|table| core::mem::take(&mut table.keys))
        .collect();
    keys.sort_by_key(|(_, bytes)| core::cmp::Reverse(*bytes));
    keys.truncate(session.count);
    let pair = |(key, bytes): (Vec<u8>, u64)| [Reply::Bulk(key.into()), Reply::count(bytes)];
    let keys = keys.into_iter().flat_map(pair).collect();
    let ms = |time: Duration| u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
    let now = ms(core.databases.parts().clock.unix_time());
    let lasted = ms(session.lasted);
    let bytes = session.tables.values().map(|table| table.bytes).sum();
    let slots = Reply::Array(vec![Reply::Integer(0), Reply::Integer(16_383)]);
    let fields = [
        ("tracking-active", Reply::flag(session.is_active)),
        ("sample-ratio", Reply::count(session.one_in.into())),
        ("selected-slots", Reply::Array(vec![slots])),
        (
            "collection-start-time-unix-ms",
            Reply::count(now.saturating_sub(ms(session.since_start))),
        ),
        ("collection-duration-ms", Reply::count(lasted)),
        ("net-bytes-all-commands-all-slots", Reply::count(bytes)),
        ("total-net-bytes", Reply::count(bytes)),
        ("by-net-bytes", Reply::Array(keys)),
    ];
    let fields = fields.map(|(name, value)| (Reply::Text(name), value));
    Ok(Reply::Array(vec![Reply::Map(fields.to_vec())]))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn options(text: &str) -> Result<Start, Failure> {
        let parts: Vec<Vec<u8>> = text.split(' ').map(|word| word.into()).collect();
        start_options(false, &Command::from_parts(&parts))
    }

    #[test]
    fn options_are_read_as_in_redis() {
        let seconds = |n| Some(Duration::from_secs(n));
        for (text, count, lasts) in [
            ("HOTKEYS START METRICS 1 NET", 10, None),
            ("hotkeys start metrics 2 cpu net count 64", 64, None),
            (
                "HOTKEYS START METRICS 2 NET foo DURATION 5 SAMPLE 100",
                10,
                seconds(5),
            ),
        ] {
            assert_eq!(options(text), Ok(Start { count, lasts }), "{text}");
        }
        for (text, failure) in [
            ("HOTKEYS START", NO_METRICS),
            ("HOTKEYS START METRICS", NO_METRICS),
            ("HOTKEYS START COUNT 5", NO_METRICS),
            ("HOTKEYS START METRICS 0 NET", BAD_METRICS_COUNT),
            ("HOTKEYS START METRICS 3 NET", BAD_METRICS_COUNT),
            ("HOTKEYS START METRICS x NET", BAD_METRICS_COUNT),
            ("HOTKEYS START METRICS 2 NET", OTHER_METRICS_COUNT),
            ("HOTKEYS START METRICS 2 NET net", NET_TWICE),
            ("HOTKEYS START METRICS 2 CPU CPU", CPU_TWICE),
            ("HOTKEYS START METRICS 1 foo", NO_KNOWN_METRIC),
            ("HOTKEYS START METRICS 1 CPU", ONLY_NET),
            ("HOTKEYS START METRICS 1 NET COUNT 65", BAD_COUNT),
            ("HOTKEYS START METRICS 1 NET DURATION 0", BAD_DURATION),
            ("HOTKEYS START METRICS 1 NET SAMPLE 0", BAD_SAMPLE),
            ("HOTKEYS START METRICS 1 NET SLOTS 1 5", NO_SLOTS),
            ("HOTKEYS START METRICS 1 NET COUNT", failure::SYNTAX),
            ("HOTKEYS START METRICS 1 NET foo", failure::SYNTAX),
        ] {
            assert_eq!(options(text), Err(failure), "{text}");
        }
    }
}
