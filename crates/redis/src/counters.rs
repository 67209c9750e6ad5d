//! The counters of the front end, per core so that cores do not write to each other's cache lines.

use crate::table::SPECS;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

/// What one core counts.
pub(crate) struct Counters {
    commands: Box<[AtomicU64]>,
    errors: Mutex<BTreeMap<String, u64>>,
    unknown: AtomicU64,
    pub(crate) connections: AtomicU64,
    pub(crate) connections_ended: AtomicU64,
    pub(crate) bytes_in: AtomicU64,
    pub(crate) bytes_out: AtomicU64,
    pub(crate) protocol_errors: AtomicU64,
}

impl Default for Counters {
    fn default() -> Self {
        Self {
            commands: SPECS.iter().map(|_| AtomicU64::new(0)).collect(),
            errors: Mutex::default(),
            unknown: AtomicU64::new(0),
            connections: AtomicU64::new(0),
            connections_ended: AtomicU64::new(0),
            bytes_in: AtomicU64::new(0),
            bytes_out: AtomicU64::new(0),
            protocol_errors: AtomicU64::new(0),
        }
    }
}

/// Adds to a counter.
pub(crate) fn add(counter: &AtomicU64, by: u64) {
    counter.fetch_add(by, Ordering::Relaxed);
}

impl Counters {
    /// Counts a command; `None` for one that is not in the table.
    pub(crate) fn command(&self, spec: Option<u16>) {
        let known = spec.and_then(|spec| self.commands.get(usize::from(spec)));
        add(known.unwrap_or(&self.unknown), 1);
    }

    /// Counts an error reply. Prefixes are ours alone, so the map stays small.
    pub(crate) fn error(&self, prefix: &[u8]) {
        let prefix = String::from_utf8_lossy(prefix).into_owned();
        let mut errors = self.errors.lock().unwrap_or_else(PoisonError::into_inner);
        *errors.entry(prefix).or_default() += 1;
    }

    /// Adds what this core counted.
    pub(crate) fn add_to(&self, totals: &mut Totals) {
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        for (spec, count) in SPECS.iter().zip(&self.commands) {
            let count = read(count);
            if count > 0 {
                *totals.commands.entry(spec.name).or_default() += count;
            }
        }
        let errors = self.errors.lock().unwrap_or_else(PoisonError::into_inner);
        for (prefix, count) in &*errors {
            *totals.errors.entry(prefix.clone()).or_default() += count;
        }
        totals.commands_unknown += read(&self.unknown);
        totals.connections += read(&self.connections);
        totals.connections_ended += read(&self.connections_ended);
        totals.bytes_in += read(&self.bytes_in);
        totals.bytes_out += read(&self.bytes_out);
        totals.protocol_errors += read(&self.protocol_errors);
    }
}

/// The counts since the start, over all cores.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Totals {
    /// Commands run, by name (`get`, `client|id`); only those that were.
    pub commands: BTreeMap<&'static str, u64>,
    /// Commands that are not in the table.
    pub commands_unknown: u64,
    /// Error replies, by prefix (`ERR`, `OOM`).
    pub errors: BTreeMap<String, u64>,
    /// Connections accepted.
    pub connections: u64,
    /// Connections ended.
    pub connections_ended: u64,
    /// Bytes received.
    pub bytes_in: u64,
    /// Bytes sent.
    pub bytes_out: u64,
    /// Connections closed because they sent what cannot be understood.
    pub protocol_errors: u64,
}

impl Totals {
    /// These and those of another port.
    #[must_use]
    pub fn plus(mut self, other: Self) -> Self {
        for (name, count) in other.commands {
            *self.commands.entry(name).or_default() += count;
        }
        for (prefix, count) in other.errors {
            *self.errors.entry(prefix).or_default() += count;
        }
        self.commands_unknown += other.commands_unknown;
        self.connections += other.connections;
        self.connections_ended += other.connections_ended;
        self.bytes_in += other.bytes_in;
        self.bytes_out += other.bytes_out;
        self.protocol_errors += other.protocol_errors;
        self
    }

    /// Commands of all names.
    #[must_use]
    pub fn commands_total(&self) -> u64 {
        self.commands.values().sum::<u64>() + self.commands_unknown
    }

    /// Connections that are open.
    #[must_use]
    pub fn connections_open(&self) -> u64 {
        self.connections.saturating_sub(self.connections_ended)
    }
}
