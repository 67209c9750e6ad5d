//! Reading objects.

use super::Replies;
use super::mutate::refusal_of;
use crate::master::Master;
use crate::tablets::Snapshot;
use crate::top_keys::Use;
use pluvio_log::{Awaited, Durable};
use pluvio_mutation::{Current, Get, Outcome, Projection, RejectRules};
use pluvio_units::{KeyHash, TableId};
use pluvio_wire::{Answer, Header, MULTI_BYTES_MAX, Refusal, Results, RetryReason};
use smallvec::SmallVec;
use std::sync::Arc;
use std::time::Duration;

/// Keys whose memory is asked for together: as many misses as a core has in flight.
pub(super) const GROUP: usize = 16;
/// When to ask again for items that did not fit a reply.
pub(super) const REST_OF_BATCH: Duration = Duration::ZERO;

impl Master {
    /// Reads objects; one result an item. Items that would make the reply larger than
    /// [`MULTI_BYTES_MAX`] are to come again, but never the first.
    pub fn get<'g>(
        self: &Arc<Self>,
        header: &Header,
        gets: impl ExactSizeIterator<Item = Get<'g>>,
    ) -> Answer<Results> {
        match self.get_all(header, gets) {
            Ok(replies) => replies.into_answer(self),
            Err(refusal) => Answer::Now(Err(refusal)),
        }
    }

    pub(crate) fn get_all<'g>(
        &self,
        header: &Header,
        gets: impl ExactSizeIterator<Item = Get<'g>>,
    ) -> Result<Replies, Refusal> {
        self.check_target(header)?;
        let snapshot = self.tablets().snapshot();
        let mut replies = Replies::of_items(gets.len());
        let of_several = gets.len() > 1;
        let mut gets = gets.map(|get| {
            let hash = self.hash_of(&snapshot, get.table, get.key, get.hash);
            Get { hash, ..get }
        });
        let mut group: SmallVec<[Get<'g>; 1]> = SmallVec::new();
        loop {
            group.clear();
            group.extend(gets.by_ref().take(GROUP));
            if group.is_empty() {
                return Ok(replies);
            }
            self.prefetch(&snapshot, group.iter().map(|get| (get.table, get.hash)));
            for get in &group {
                if replies.bytes() >= MULTI_BYTES_MAX {
                    replies.refused(Refusal::retry(REST_OF_BATCH, RetryReason::Busy));
                    continue;
                }
                let shown = of_several && self.show_value(&snapshot, get, &mut replies);
                if shown {
                    continue;
                }
                match self.get_one(&snapshot, get) {
                    Ok(outcome) => replies.awaited(self, outcome),
                    Err(refusal) => replies.refused(refusal),
                }
            }
        }
    }

    /// Lets `show` look at one object, or its absence, where it lies. `None`: [`Master::get`] reads
    /// it, and waits until it is durable.
    ///
    /// # Errors
    /// See [`Master::get`].
    pub fn show_at_once<R>(
        &self,
        header: &Header,
        get: &Get<'_>,
        show: impl FnOnce(Option<Current<'_>>) -> R,
    ) -> Result<Option<Durable<R>>, Refusal> {
        self.check_target(header)?;
        let snapshot = self.tablets().snapshot();
        let served = self.serving(&snapshot, get.table, get.hash)?;
        let taken = self.take_operation(served.table, false)?;
        let shown = self.store().show(served.table, served.hash, get.key, show);
        // Otherwise it is read, and sampled, by another function.
        match shown.is_some() {
            true => self.sample(&served, get.key, Use::Read, None),
            false => served.table.give_back(taken),
        }
        Ok(shown)
    }

    /// Reads one object at once. The outcome must not be told before it is durable.
    ///
    /// # Errors
    /// See [`Master::get`].
    pub fn get_at_once(&self, header: &Header, get: &Get<'_>) -> Result<Awaited<Outcome>, Refusal> {
        self.check_target(header)?;
        let snapshot = self.tablets().snapshot();
        self.get_one(&snapshot, get)
    }

    /// One of several reads: copies a durable value behind those before it in `replies`. `false`:
    /// nothing was done. The read has conditions or another projection, its value is not durable
    /// yet, or it is refused. Then [`Self::get_one`] reads it, or says why not.
    #[inline]
    fn show_value(&self, snapshot: &Snapshot, get: &Get<'_>, replies: &mut Replies) -> bool {
        if get.projection != Projection::Value || get.rules != RejectRules::NONE {
            return false;
        }
        let Ok(served) = self.serving(snapshot, get.table, get.hash) else {
            return false;
        };
        let Ok(taken) = self.take_operation(served.table, false) else {
            return false;
        };
        let mut moved = 0;
        let shown = self
            .store()
            .show(served.table, served.hash, get.key, |current| {
                let current = current?;
                moved = current.value.len();
                replies.keep_value(current.value);
                Some(current.version)
            });
        let Some(version) = shown else {
            served.table.give_back(taken);
            return false;
        };
        self.sample(&served, get.key, Use::Read, Some(moved));
        replies.shown(version);
        true
    }

    /// Reads one object, whose hash is known.
    #[inline]
    fn get_one(&self, snapshot: &Snapshot, get: &Get<'_>) -> Result<Awaited<Outcome>, Refusal> {
        let served = self.serving(snapshot, get.table, get.hash)?;
        let taken = self.take_operation(served.table, false)?;
        match self.store().get(served.table, served.hash, get) {
            Ok(outcome) => {
                let moved = outcome.pending().output().bulk_len();
                self.sample(&served, get.key, Use::Read, Some(moved));
                Ok(outcome)
            }
            Err(error) => {
                served.table.give_back(taken);
                Err(refusal_of(&error))
            }
        }
    }

    /// Asks for the memory of keys of a table that are read or changed next.
    pub fn prefetch_table(&self, table: TableId, hashes: impl Iterator<Item = KeyHash> + Clone) {
        if let Some(local) = self.tablets().snapshot().get(&table) {
            self.store().prefetch(&local.table, hashes);
        }
    }

    /// Asks for the memory of a group of keys, unless it is a single one: then the read itself asks
    /// as early.
    pub(super) fn prefetch(
        &self,
        snapshot: &Snapshot,
        keys: impl ExactSizeIterator<Item = (TableId, Option<KeyHash>)> + Clone,
    ) {
        if keys.len() < 2 {
            return;
        }
        let mut rest = keys.peekable();
        while let Some((table, _)) = rest.peek().copied() {
            // Mostly all keys are of one table.
            let of_table = rest.clone().take_while(|(other, _)| *other == table);
            let count = of_table.clone().count();
            if let Some(local) = snapshot.get(&table) {
                let hashes = of_table.filter_map(|(_, hash)| hash);
                self.store().prefetch(&local.table, hashes);
            }
            rest.nth(count - 1);
        }
    }
}
