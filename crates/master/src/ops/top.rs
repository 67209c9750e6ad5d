//! Samples of operations, and the top lists that come of them.

use crate::master::{Master, Served};
use crate::top_keys::{LARGE, Lists, Noticed, Rate, Sample, Traffic, Use};
use pluvio_mutation::{Change, Get, Mutation, Outcome, Output, Projection};
use pluvio_store::EngineTable;
use pluvio_units::{KeyHash, KeyPlace, TableId};
use pluvio_wire::{GetTopKeys, HotKey, LargeKey, TOP_KEYS_MAX, TopKeys, TopKeysOfTable};
use std::time::Duration;

impl Master {
    /// Counts an operation on a key that is served here, if it is to be sampled. `moved`: the bytes
    /// of its value, or of the part that was read; `None`: those of the object.
    #[inline]
    pub(super) fn sample(&self, served: &Served<'_>, key: &[u8], used: Use, moved: Option<usize>) {
        if let Some(weight) = self.samples.due() {
            self.take_sample(*served, key, used, moved, weight);
        }
    }

    #[cold]
    fn take_sample(
        &self,
        served: Served<'_>,
        key: &[u8],
        used: Use,
        moved: Option<usize>,
        weight: u32,
    ) {
        let (table, hash) = served.place();
        let bytes = self.size_of(served.table, hash, key);
        let moved = moved.map(|moved| (key.len() + moved) as u64);
        let sample = Sample {
            table,
            hash,
            key,
            used,
            weight,
            bytes,
            traffic: moved.or(bytes).unwrap_or(key.len() as u64),
        };
        self.samples.note(self.monotonic(), &sample);
    }

    /// Notices the size of a large object that is about to be put.
    #[inline]
    pub(super) fn notice(&self, place: KeyPlace, mutation: &Mutation<'_>) {
        if let Change::Put(value) = &mutation.change
            && value.bytes().len() >= LARGE
        {
            let bytes = (mutation.key.len() + value.bytes().len()) as u64;
            let now = self.monotonic();
            self.samples.note_size(now, place, mutation.key, bytes);
        }
    }

    /// Bytes of the key and value of an object, if it is there and not locked.
    fn size_of(&self, table: &EngineTable, hash: KeyHash, key: &[u8]) -> Option<u64> {
        let get = Get {
            projection: Projection::Length,
            ..Get::new(table.id(), key)
        };
        let outcome = self.store().get(table, hash, &get).ok()?;
        let Outcome::Unchanged {
            version,
            output: Output::Integer(value),
        } = outcome.pending()
        else {
            return None;
        };
        let bytes = key.len() as u64 + u64::try_from(*value).ok()?;
        (version.0 > 0).then_some(bytes)
    }

    /// Which keys of this server are used most, and which are the largest that it has noticed.
    /// Objects that are gone, or smaller by now, are shown as they are, and so are tablets.
    pub fn top_keys(&self, request: &GetTopKeys) -> TopKeys {
        let count = request.count.clamp(1, TOP_KEYS_MAX) as usize;
        let top = self.samples.top(self.monotonic(), request.table, count);
        TopKeys {
            server: self.id(),
            seconds: top.seconds,
            one_in: top.one_in,
            tables: top
                .tables
                .into_iter()
                .map(|lists| self.shown(lists))
                .collect(),
        }
    }

    /// Begins to note which keys of this server make most traffic, for this time or until it is
    /// stopped. `wanted`: how many its caller wants to see. False: that is going on.
    #[must_use]
    pub fn start_traffic(&self, wanted: usize, lasts: Option<Duration>) -> bool {
        self.samples.start_session(self.monotonic(), wanted, lasts)
    }

    /// Ends what [`Master::start_traffic`] began. False: nothing is going on.
    #[must_use]
    pub fn stop_traffic(&self) -> bool {
        self.samples.stop_session(self.monotonic())
    }

    /// Forgets what was noted. False: it is going on.
    #[must_use]
    pub fn reset_traffic(&self) -> bool {
        self.samples.reset_session(self.monotonic())
    }

    /// The traffic that was noted since [`Master::start_traffic`], and the mean distance between
    /// samples now.
    #[must_use]
    pub fn traffic(&self) -> Option<(Traffic, u32)> {
        self.samples.session(self.monotonic())
    }

    fn shown(&self, lists: Lists) -> TopKeysOfTable {
        let table = lists.table;
        let mut largest: Vec<LargeKey> = lists
            .largest
            .into_iter()
            .filter_map(|noticed| self.as_it_is(table, noticed))
            .collect();
        largest.sort_by_key(|large| core::cmp::Reverse(large.bytes));
        TopKeysOfTable {
            table,
            reads_per_s: lists.reads_per_s,
            writes_per_s: lists.writes_per_s,
            reads: lists.reads.into_iter().map(hot).collect(),
            writes: lists.writes.into_iter().map(hot).collect(),
            largest,
        }
    }

    /// A large object as it is now; `None` when it is gone, or not served here any more. One whose
    /// key is too long to be remembered is shown as it was.
    fn as_it_is(&self, table: TableId, noticed: Noticed) -> Option<LargeKey> {
        let bytes = match noticed.whole_key() {
            None => noticed.bytes,
            Some(key) => {
                let snapshot = self.tablets().snapshot();
                let served = self.serving(&snapshot, table, Some(noticed.hash)).ok()?;
                self.size_of(served.table, served.hash, key)?
            }
        };
        Some(LargeKey {
            hash: noticed.hash,
            key_len: u32::try_from(noticed.key_len).unwrap_or(u32::MAX),
            key: noticed.key.into(),
            bytes,
        })
    }
}

fn hot(rate: Rate) -> HotKey {
    HotKey {
        hash: rate.hash,
        key_len: u32::try_from(rate.key_len).unwrap_or(u32::MAX),
        key: rate.key.into(),
        per_s: rate.per_s,
        less: rate.less,
        more: rate.more,
    }
}
