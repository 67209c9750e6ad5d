//! What the ports of one server share: parameters that can be changed while it runs, and the logs
//! of slow and large commands.
//!
//! Parameters are numbers and texts by name. Numbers are read for every command, on every core, and
//! written by CONFIG SET alone.

use crate::command_log::CommandLogs;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::sync::{Mutex, PoisonError};

/// A parameter that is a number.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Number {
    /// Microseconds from which a command is slow; below 0: none is.
    SlowMicros,
    /// Commands in the log of slow ones.
    SlowLength,
    /// Bytes over which a command is large; below 0: none is.
    RequestBytes,
    /// Commands in the log of large ones.
    RequestLength,
    /// Bytes over which a reply is large; below 0: none is.
    ReplyBytes,
    /// Commands in the log of those with large replies.
    ReplyLength,
    /// 1: times go into histograms.
    KeepsTimes,
    /// 1: only connections of this machine are answered while there is no password.
    IsProtected,
    /// Changes nothing: idle connections are kept.
    IdleSeconds,
    /// Changes nothing: the network asks silent peers by its own times.
    KeepAliveSeconds,
    /// Changes nothing: events are not recorded.
    EventMillis,
}

impl Number {
    const DEFAULTS: [(Self, i64); 11] = [
        (Self::SlowMicros, 10_000),
        (Self::SlowLength, 128),
        (Self::RequestBytes, 1 << 20),
        (Self::RequestLength, 128),
        (Self::ReplyBytes, 1 << 20),
        (Self::ReplyLength, 128),
        (Self::KeepsTimes, 1),
        (Self::IsProtected, 0),
        (Self::IdleSeconds, 0),
        (Self::KeepAliveSeconds, 300),
        (Self::EventMillis, 0),
    ];
}

/// See the module.
#[derive(Debug)]
pub struct Parameters {
    numbers: [AtomicI64; Number::DEFAULTS.len()],
    texts: Mutex<BTreeMap<&'static str, String>>,
    has_warned: AtomicBool,
    pub(crate) logs: CommandLogs,
}

impl Default for Parameters {
    fn default() -> Self {
        Self {
            numbers: Number::DEFAULTS.map(|(_, value)| AtomicI64::new(value)),
            texts: Mutex::default(),
            has_warned: AtomicBool::new(false),
            logs: CommandLogs::default(),
        }
    }
}

impl Parameters {
    /// The text of latency percentiles, unless it was changed.
    pub(crate) const PERCENTILES: &'static str = "50 99 99.9";

    // Relaxed: a parameter guards nothing.
    pub(crate) fn number(&self, number: Number) -> i64 {
        self.numbers[number as usize].load(Ordering::Relaxed)
    }

    pub(crate) fn set_number(&self, number: Number, value: i64) {
        self.numbers[number as usize].store(value, Ordering::Relaxed);
        self.logs.trim(self);
    }

    /// A text that was set.
    pub(crate) fn text(&self, name: &str) -> Option<String> {
        let texts = self.texts.lock().unwrap_or_else(PoisonError::into_inner);
        texts.get(name).cloned()
    }

    pub(crate) fn set_text(&self, name: &'static str, value: String) {
        let mut texts = self.texts.lock().unwrap_or_else(PoisonError::into_inner);
        texts.insert(name, value);
    }

    /// Says once in the log of the server that nothing comes of keyspace notifications.
    pub(crate) fn warn_of_notifications(&self) {
        if !self.has_warned.swap(true, Ordering::Relaxed) {
            tracing::warn!(
                "a Redis client set notify-keyspace-events: it is accepted, and nothing is sent"
            );
        }
    }

    /// The percentiles of INFO latencystats, with their names.
    pub(crate) fn percentiles(&self) -> Vec<(String, f64)> {
        let text = self.text("latency-tracking-info-percentiles");
        let text = text.unwrap_or_else(|| Self::PERCENTILES.to_owned());
        let words = text
            .split(' ')
            .filter_map(|word| Some((word.to_owned(), word.parse().ok()?)));
        words.collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_number_has_its_place() {
        for (place, (number, value)) in Number::DEFAULTS.into_iter().enumerate() {
            assert_eq!(number as usize, place);
            assert_eq!(Parameters::default().number(number), value);
        }
    }
}
