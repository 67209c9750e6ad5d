//! The counters of the front end, per core so that cores do not write to each other's cache lines.
//!
//! They only grow. CONFIG RESETSTAT remembers what they were, and shows the difference.
//!
//! The time of a command runs from its start until its outcome is durable, or its reply is there.

use crate::reply::Reply;
use crate::table::SPECS;
use core::time::Duration;
use hdrhistogram::Histogram;
use pluvio_env::Moment;
use pluvio_units::TimeSpread;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// How long commands took, in nanoseconds.
pub type Latencies = Histogram<u64>;

/// Longest time that is told apart from longer ones, as in Redis: a second.
const NANOS_MAX: u64 = 1_000_000_000;
/// Decimal digits that are kept of a time, as in Redis. A histogram takes 24 KiB.
const DIGITS: u8 = 2;
/// How long a rate of commands goes back at least.
const RATE_TIME: Duration = Duration::from_secs(1);

/// Prefixes of errors that a core counts one by one, as Redis and Valkey do. Ours may come on top.
const PREFIXES_MAX: usize = 128;
/// The name of all others, which is Valkey's.
const OTHER_PREFIXES: &str = "ERRORSTATS_OVERFLOW";
/// Longer first words are no prefixes; they count as `ERR`.
const PREFIX_BYTES_MAX: usize = 32;
/// Those that do not come from scripts.
const OUR_PREFIXES: [&str; 16] = [
    "BUSY",
    "BUSYKEY",
    "CROSSSLOT",
    "DENIED",
    "ERR",
    "EXECABORT",
    "MOVED",
    "NOAUTH",
    "NOPERM",
    "NOPROTO",
    "NOREPLICAS",
    "NOSCRIPT",
    "NOTBUSY",
    "OOM",
    "TRYAGAIN",
    "WRONGPASS",
];

/// An empty histogram.
pub(crate) fn latencies() -> Latencies {
    Histogram::new_with_bounds(1, NANOS_MAX, DIGITS).expect("the bounds are in order")
}

/// What had been counted at a moment.
#[derive(Clone, Copy, Default)]
struct Sample {
    at: Moment,
    calls: u64,
    bytes_in: u64,
    bytes_out: u64,
}

#[derive(Default)]
struct OneCommand {
    totals: CommandTotals,
    /// None of one that was never timed.
    times: Option<Box<Latencies>>,
}

/// The counts of commands, behind one lock that no other core waits for but to show them.
#[derive(Default)]
struct Commands {
    /// By their numbers in the table.
    all: Vec<OneCommand>,
    calls: u64,
    /// How long the timed ones took.
    spread: TimeSpread,
    /// The rates since the older one are shown.
    older: Sample,
    newer: Sample,
}

impl Commands {
    fn of(&mut self, spec: u16) -> Option<&mut OneCommand> {
        if self.all.is_empty() {
            self.all.resize_with(SPECS.len(), OneCommand::default);
        }
        self.all.get_mut(usize::from(spec))
    }
}

/// Commands and bytes a second.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub(crate) struct Rates {
    pub(crate) commands: f64,
    pub(crate) bytes_in: f64,
    pub(crate) bytes_out: f64,
}

impl Rates {
    pub(crate) fn plus(self, other: Self) -> Self {
        Self {
            commands: self.commands + other.commands,
            bytes_in: self.bytes_in + other.bytes_in,
            bytes_out: self.bytes_out + other.bytes_out,
        }
    }
}

/// What one core counts.
pub(crate) struct Counters {
    commands: Mutex<Commands>,
    errors: Mutex<BTreeMap<String, u64>>,
    unknown: AtomicU64,
    pub(crate) connections: AtomicU64,
    pub(crate) connections_ended: AtomicU64,
    pub(crate) connections_refused: AtomicU64,
    pub(crate) bytes_in: AtomicU64,
    pub(crate) bytes_out: AtomicU64,
    pub(crate) reads: AtomicU64,
    pub(crate) writes: AtomicU64,
    pub(crate) hits: AtomicU64,
    pub(crate) misses: AtomicU64,
    pub(crate) protocol_errors: AtomicU64,
}

impl Default for Counters {
    fn default() -> Self {
        let zero = || AtomicU64::new(0);
        Self {
            commands: Mutex::default(),
            errors: Mutex::default(),
            unknown: zero(),
            connections: zero(),
            connections_ended: zero(),
            connections_refused: zero(),
            bytes_in: zero(),
            bytes_out: zero(),
            reads: zero(),
            writes: zero(),
            hits: zero(),
            misses: zero(),
            protocol_errors: zero(),
        }
    }
}

/// Adds to a counter.
pub(crate) fn add(counter: &AtomicU64, by: u64) {
    counter.fetch_add(by, Ordering::Relaxed);
}

fn read(counter: &AtomicU64) -> u64 {
    counter.load(Ordering::Relaxed)
}

/// A time in nanoseconds, for counters.
fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

impl Counters {
    fn commands(&self) -> MutexGuard<'_, Commands> {
        self.commands.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Counts a command that is not in the table.
    pub(crate) fn unknown(&self) {
        add(&self.unknown, 1);
    }

    /// Counts a command that was refused before it was run.
    pub(crate) fn rejected(&self, spec: u16) {
        if let Some(command) = self.commands().of(spec) {
            command.totals.rejected += 1;
        }
    }

    /// Counts a command of a transaction: how long it took alone is not known.
    pub(crate) fn ran_in_block(&self, spec: u16, reply: &Reply) {
        let failure = match reply {
            Reply::Error(failure) => Some(failure),
            _ => None,
        };
        let mut commands = self.commands();
        commands.calls += 1;
        if let Some(command) = commands.of(spec) {
            command.totals.calls += 1;
            command.totals.failed += u64::from(failure.is_some());
        }
        drop(commands);
        if let Some(failure) = failure {
            self.error(failure.prefix());
        }
    }

    /// Counts a command that was run. `keeps` says whether its time goes into the histograms.
    pub(crate) fn ran(&self, spec: u16, took: Duration, now: Moment, failed: bool, keeps: bool) {
        self.ran_together(spec, (1, u64::from(failed)), took, now, keeps);
    }

    /// Counts commands that were run one after the other, and those of them that failed. They took
    /// so long together; each is taken to have taken its share.
    pub(crate) fn ran_together(
        &self,
        spec: u16,
        (count, failed): (u64, u64),
        took: Duration,
        now: Moment,
        keeps: bool,
    ) {
        let mut commands = self.commands();
        commands.calls += count;
        let each = match u32::try_from(count) {
            Ok(2..) => took / count as u32,
            Ok(0..=1) | Err(_) => took,
        };
        commands.spread.add(each, count);
        let took = nanos(took);
        if now.since(commands.newer.at) >= RATE_TIME {
            commands.older = commands.newer;
            commands.newer = Sample {
                at: now,
                calls: commands.calls,
                bytes_in: read(&self.bytes_in),
                bytes_out: read(&self.bytes_out),
            };
        }
        let Some(command) = commands.of(spec) else {
            return;
        };
        command.totals.calls += count;
        command.totals.failed += failed;
        command.totals.timed += count;
        command.totals.nanos = command.totals.nanos.saturating_add(took);
        if keeps {
            let times = command.times.get_or_insert_with(|| Box::new(latencies()));
            let each = took / count.max(1);
            times.saturating_record_n(each.max(1), count);
        }
    }

    /// Counts whether a read found its key.
    pub(crate) fn found(&self, is_there: bool) {
        self.found_together(is_there, 1);
    }

    /// [`Self::found`] of several reads.
    pub(crate) fn found_together(&self, is_there: bool, count: u64) {
        add(if is_there { &self.hits } else { &self.misses }, count);
    }

    /// Counts an error reply. Scripts make prefixes of their own: those beyond [`PREFIXES_MAX`] are
    /// counted together.
    pub(crate) fn error(&self, prefix: &[u8]) {
        // Redis looks no further for the end of the first word.
        let prefix = match prefix.len() < PREFIX_BYTES_MAX {
            true => String::from_utf8_lossy(prefix),
            false => "ERR".into(),
        };
        let mut errors = self.errors.lock().unwrap_or_else(PoisonError::into_inner);
        let is_counted = errors.len() < PREFIXES_MAX
            || OUR_PREFIXES.contains(&&*prefix)
            || errors.contains_key(&*prefix);
        let prefix = if is_counted { &*prefix } else { OTHER_PREFIXES };
        match errors.get_mut(prefix) {
            Some(count) => *count += 1,
            None => {
                errors.insert(prefix.to_owned(), 1);
            }
        }
    }

    /// Rates over the last second or two, or since the last command if that is longer.
    pub(crate) fn rates(&self, now: Moment) -> Rates {
        let commands = self.commands();
        let older = commands.older;
        let seconds = now.since(older.at).as_secs_f64().max(1e-9);
        let rate = |now: u64, before: u64| now.saturating_sub(before) as f64 / seconds;
        Rates {
            commands: rate(commands.calls, older.calls),
            bytes_in: rate(read(&self.bytes_in), older.bytes_in),
            bytes_out: rate(read(&self.bytes_out), older.bytes_out),
        }
    }

    /// Adds how long commands took on this core.
    pub(crate) fn add_times_to(&self, all: &mut BTreeMap<&'static str, Latencies>) {
        for (spec, command) in SPECS.iter().zip(&self.commands().all) {
            if let Some(times) = &command.times {
                let sum = all.entry(spec.name).or_insert_with(latencies);
                sum.add(&**times).expect("all have the same bounds");
            }
        }
    }

    /// How long all timed commands took on this core, but those of transactions.
    pub(crate) fn spread(&self) -> TimeSpread {
        self.commands().spread
    }

    /// Adds what this core counted.
    pub(crate) fn add_to(&self, totals: &mut Totals) {
        for (spec, command) in SPECS.iter().zip(&self.commands().all) {
            if command.totals != CommandTotals::default() {
                let sum = totals.commands.entry(spec.name).or_default();
                *sum = sum.plus(command.totals);
            }
        }
        let errors = self.errors.lock().unwrap_or_else(PoisonError::into_inner);
        for (prefix, count) in &*errors {
            *totals.errors.entry(prefix.clone()).or_default() += count;
        }
        totals.commands_unknown += read(&self.unknown);
        totals.connections += read(&self.connections);
        totals.connections_ended += read(&self.connections_ended);
        totals.connections_refused += read(&self.connections_refused);
        totals.bytes_in += read(&self.bytes_in);
        totals.bytes_out += read(&self.bytes_out);
        totals.reads += read(&self.reads);
        totals.writes += read(&self.writes);
        totals.hits += read(&self.hits);
        totals.misses += read(&self.misses);
        totals.protocol_errors += read(&self.protocol_errors);
    }
}

/// What was counted of one command.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct CommandTotals {
    /// How often it was run.
    pub calls: u64,
    /// How often it was refused before it was run.
    pub rejected: u64,
    /// How often it ended with an error.
    pub failed: u64,
    /// How many of the calls are timed: all but those inside transactions.
    pub timed: u64,
    /// How long those took together, in nanoseconds.
    pub nanos: u64,
}

impl CommandTotals {
    fn with(self, other: Self, join: fn(u64, u64) -> u64) -> Self {
        Self {
            calls: join(self.calls, other.calls),
            rejected: join(self.rejected, other.rejected),
            failed: join(self.failed, other.failed),
            timed: join(self.timed, other.timed),
            nanos: join(self.nanos, other.nanos),
        }
    }

    fn plus(self, other: Self) -> Self {
        self.with(other, u64::saturating_add)
    }
}

/// The counts since the start, over all cores.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Totals {
    /// Commands, by name (`get`, `client|id`); only those that were called.
    pub commands: BTreeMap<&'static str, CommandTotals>,
    /// Commands that are not in the table.
    pub commands_unknown: u64,
    /// Error replies, by prefix (`ERR`, `OOM`).
    pub errors: BTreeMap<String, u64>,
    /// Connections accepted.
    pub connections: u64,
    /// Connections ended.
    pub connections_ended: u64,
    /// Connections refused because there were too many.
    pub connections_refused: u64,
    /// Bytes received.
    pub bytes_in: u64,
    /// Bytes sent.
    pub bytes_out: u64,
    /// Reads from connections that gave something.
    pub reads: u64,
    /// Writes to connections.
    pub writes: u64,
    /// Keys that reads found.
    pub hits: u64,
    /// Keys that reads did not find.
    pub misses: u64,
    /// Connections closed because they sent what cannot be understood.
    pub protocol_errors: u64,
}

impl Totals {
    fn with(mut self, other: &Self, join: fn(u64, u64) -> u64) -> Self {
        for (name, count) in &other.commands {
            let sum = self.commands.entry(name).or_default();
            *sum = sum.with(*count, join);
        }
        for (prefix, count) in &other.errors {
            let sum = self.errors.entry(prefix.clone()).or_default();
            *sum = join(*sum, *count);
        }
        for (sum, count) in [
            (&mut self.commands_unknown, other.commands_unknown),
            (&mut self.connections, other.connections),
            (&mut self.connections_ended, other.connections_ended),
            (&mut self.connections_refused, other.connections_refused),
            (&mut self.bytes_in, other.bytes_in),
            (&mut self.bytes_out, other.bytes_out),
            (&mut self.reads, other.reads),
            (&mut self.writes, other.writes),
            (&mut self.hits, other.hits),
            (&mut self.misses, other.misses),
            (&mut self.protocol_errors, other.protocol_errors),
        ] {
            *sum = join(*sum, count);
        }
        self
    }

    /// These and those of another port.
    #[must_use]
    #[allow(clippy::needless_pass_by_value)] // as a step of `reduce`
    pub fn plus(self, other: Self) -> Self {
        self.with(&other, u64::saturating_add)
    }

    /// The counts since `before`; commands that were not called since are left out.
    #[must_use]
    pub fn since(self, before: &Self) -> Self {
        let mut since = self.with(before, u64::saturating_sub);
        since
            .commands
            .retain(|_, count| *count != CommandTotals::default());
        since.errors.retain(|_, count| *count > 0);
        since
    }

    /// Commands of all names.
    #[must_use]
    pub fn commands_total(&self) -> u64 {
        let known = self.commands.values().map(|command| command.calls);
        known.sum::<u64>() + self.commands_unknown
    }

    /// Connections that are open. Only of what was counted since the start.
    #[must_use]
    pub fn connections_open(&self) -> u64 {
        self.connections.saturating_sub(self.connections_ended)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_are_counted_and_timed() {
        let counters = Counters::default();
        let at = |ms| Moment(Duration::from_millis(ms));
        for (took, now, failed) in [(1, 10, false), (3, 20, true), (2, 1500, false)] {
            counters.ran(0, Duration::from_micros(took), at(now), failed, took != 2);
        }
        counters.rejected(0);
        counters.ran_in_block(0, &Reply::OK);
        let mut totals = Totals::default();
        counters.add_to(&mut totals);
        let expected = CommandTotals {
            calls: 4,
            rejected: 1,
            failed: 1,
            timed: 3,
            nanos: 6000,
        };
        assert_eq!(totals.commands[SPECS[0].name], expected);
        assert_eq!(totals.commands_total(), 4);
        assert_eq!(counters.spread().count(), 3);
        assert_eq!(counters.spread().total(), Duration::from_micros(6));
        let mut times = BTreeMap::new();
        counters.add_times_to(&mut times);
        assert_eq!(times[SPECS[0].name].len(), 2, "the last one was not kept");
        let nothing = totals.clone().since(&totals);
        assert_eq!(nothing, Totals::default());
    }

    #[test]
    fn prefixes_that_scripts_make_take_no_memory_without_bound() {
        let counters = Counters::default();
        for n in 0..1000 {
            counters.error(format!("MY{n}").as_bytes());
        }
        counters.error(&[b'X'; 1000]);
        for _ in 0..2 {
            for prefix in OUR_PREFIXES {
                counters.error(prefix.as_bytes());
            }
            counters.error(b"MY0");
        }
        let mut totals = Totals::default();
        counters.add_to(&mut totals);
        let errors = totals.errors;
        assert_eq!(errors.len(), PREFIXES_MAX + 1 + OUR_PREFIXES.len());
        let count = |prefix| errors.get(prefix).copied();
        assert_eq!(count(OTHER_PREFIXES), Some(1000 - 128));
        assert_eq!(
            (count("MY0"), count("OOM"), count("ERR")),
            (Some(3), Some(2), Some(3))
        );
    }

    #[test]
    fn the_rate_is_that_of_the_last_seconds() {
        let counters = Counters::default();
        let mut now = Duration::ZERO;
        for _ in 0..1000 {
            now += Duration::from_millis(10);
            counters.ran(0, Duration::ZERO, Moment(now), false, false);
        }
        let rate = |at| counters.rates(Moment(at)).commands;
        assert!((99.0..=101.0).contains(&rate(now)));
        assert!(rate(now + Duration::from_secs(1000)) < 1.0);
    }
}
