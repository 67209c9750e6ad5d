//! A session of HOTKEYS: the keys that made most traffic while it was on.
//!
//! Under the lock of [`Samples`](super::Samples), which feeds it.

use super::TABLES;
use super::list::{PLACES, TopList};
use pluvio_units::{KeyHash, TableId};
use std::collections::BTreeMap;
use std::time::Duration;

/// Traffic of keys since some moment. Nothing fades.
pub(super) struct Session {
    wanted: usize,
    began: Duration,
    /// When it ends by itself.
    ends: Option<Duration>,
    stopped: Option<Duration>,
    bytes: BTreeMap<TableId, TopList>,
}

/// What a session has seen.
#[derive(Clone, PartialEq, Debug)]
pub struct Traffic {
    /// Whether it goes on.
    pub is_active: bool,
    /// How many keys its starter wanted to see; more may be told.
    pub wanted: usize,
    /// How long ago it began.
    pub since_start: Duration,
    /// How long it has lasted.
    pub lasted: Duration,
    /// Bytes of keys and values of each table, about.
    pub tables: BTreeMap<TableId, TableTraffic>,
}

/// Traffic of a table.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct TableTraffic {
    /// Of all keys.
    pub bytes: u64,
    /// Keys, as far as they are remembered, and their bytes; most first.
    pub keys: Vec<(Vec<u8>, u64)>,
}

impl Session {
    pub(super) fn new(now: Duration, wanted: usize, lasts: Option<Duration>) -> Self {
        Self {
            wanted,
            began: now,
            ends: lasts.map(|lasts| now.saturating_add(lasts)),
            stopped: None,
            bytes: BTreeMap::new(),
        }
    }

    /// When it ended, if it has.
    fn ended(&self, now: Duration) -> Option<Duration> {
        self.stopped.or(self.ends.filter(|ends| *ends <= now))
    }

    pub(super) fn is_active(&self, now: Duration) -> bool {
        self.ended(now).is_none()
    }

    pub(super) fn stop(&mut self, now: Duration) {
        self.stopped = Some(now);
    }

    /// Counts the bytes that operations on a key have moved. Tables beyond the bound are left out
    /// (TOP-3).
    pub(super) fn count(
        &mut self,
        now: Duration,
        table: TableId,
        (hash, key): (KeyHash, &[u8]),
        bytes: f64,
    ) {
        let is_full = self.bytes.len() >= TABLES && !self.bytes.contains_key(&table);
        if bytes > 0.0 && self.is_active(now) && !is_full {
            self.bytes.entry(table).or_default().count(hash, key, bytes);
        }
    }

    pub(super) fn seen(&self, now: Duration) -> Traffic {
        let ended = self.ended(now);
        let until = ended.unwrap_or(now);
        // Not negative, and far below 2^64.
        let whole = |bytes: f64| bytes as u64;
        let of_table = |list: &TopList| {
            let most = list.most(PLACES).into_iter();
            TableTraffic {
                bytes: whole(list.total()),
                keys: most
                    .map(|c| (c.key.start.to_vec(), whole(c.weight - c.inherited)))
                    .collect(),
            }
        };
        let tables = self.bytes.iter();
        Traffic {
            is_active: ended.is_none(),
            wanted: self.wanted,
            since_start: now.saturating_sub(self.began),
            lasted: until.saturating_sub(self.began),
            tables: tables.map(|(id, list)| (*id, of_table(list))).collect(),
        }
    }
}
