//! Going through all objects of a table.

use crate::client::Client;
use crate::error::ClientError;
use crate::table::Table;
use pluvio_units::{HashKind, HashRange, KeyHash, KeySlot, Rank};
use pluvio_wire::{Enumerate, EnumerateReply, EnumeratedObject, MULTI_ITEMS_MAX};

/// Objects of a batch unless [`Enumeration::batch_items`] says otherwise.
const BATCH_ITEMS: u32 = 256;
/// Bits of a cursor as a number: clients keep them in doubles.
const NUMBER_BITS: u32 = 53;
/// Bits of a slot, and of a rank, in the number of a slot table's cursor.
const SLOT_BITS: u32 = 14;
const RANK_BITS: u32 = NUMBER_BITS - 2 * SLOT_BITS;

/// A place in an enumeration. It means the same to every client and server, for ever.
///
/// Of the hashes below the stretch all objects have come; of those in the stretch the objects with
/// smaller ranks. In a seeded table ranks are hashes, so the stretch begins with the rank.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Cursor {
    /// The hashes that are being gone through: one tablet, as it was when that began.
    pub stretch: HashRange,
    /// The next rank.
    pub rank: Rank,
}

impl Cursor {
    /// Before all objects.
    pub const START: Self = Self {
        stretch: HashRange::ALL,
        rank: Rank(0),
    };

    /// The place where nothing of `hash` and the hashes behind it has come.
    #[must_use]
    pub fn before(kind: HashKind, hash: KeyHash) -> Self {
        Self {
            stretch: HashRange::new(hash, HashRange::ALL.last),
            rank: match kind {
                HashKind::Seeded => kind.rank(hash),
                HashKind::Slots => Rank(0),
            },
        }
    }

    /// The place as a number below 2^53; 0 is the start.
    ///
    /// ```text
    ///  seeded table   hash of the next object, its top 53 bits
    ///  slot table     | first slot 14 | last slot 14 | rank, its top 25 bits |
    /// ```
    /// The last slot is 0 where the rank is.
    #[must_use]
    pub fn to_number(self, kind: HashKind) -> u64 {
        match kind {
            HashKind::Seeded => self.stretch.first.0 >> (64 - NUMBER_BITS),
            HashKind::Slots => {
                let slot = |hash| u64::from(KeySlot::of_hash(hash).number());
                let last = match self.rank {
                    Rank(0) => 0,
                    _ => slot(self.stretch.last),
                };
                let slots = slot(self.stretch.first) << SLOT_BITS | last;
                slots << RANK_BITS | self.rank.0 >> (64 - RANK_BITS)
            }
        }
    }

    /// The place that [`Cursor::to_number`] made this number of; `None` when it made it of none.
    #[must_use]
    pub fn of_number(kind: HashKind, number: u64) -> Option<Self> {
        if number >> NUMBER_BITS > 0 {
            return None;
        }
        let slot = |shift: u32| {
            let bits = number >> shift & ((1 << SLOT_BITS) - 1);
            KeySlot::new(u16::try_from(bits).ok()?)
        };
        match kind {
            HashKind::Seeded => Some(Self::before(kind, KeyHash(number << (64 - NUMBER_BITS)))),
            HashKind::Slots => {
                let first = slot(RANK_BITS + SLOT_BITS)?;
                let (last, rank) = (slot(RANK_BITS)?, Rank(number << (64 - RANK_BITS)));
                match rank {
                    Rank(0) => Some(Self::before(kind, first.hashes_to(first).first)),
                    _ if last < first => None,
                    _ => Some(Self {
                        stretch: first.hashes_to(last),
                        rank,
                    }),
                }
            }
        }
    }
}

/// Goes through a table, tablet after tablet, each in the order of ranks.
///
/// Each object that is there all along comes exactly once, also while tablets split, move and are
/// recovered. Objects that come or go meanwhile may or may not be seen. An enumeration can be
/// stopped and resumed at any time, by any client, from its [`Cursor`].
pub struct Enumeration {
    client: Client,
    table: Table,
    next: Option<Cursor>,
    items: u32,
    values: bool,
}

impl Client {
    /// Goes through all objects of a table, with their values.
    #[must_use]
    pub fn enumerate(&self, table: &Table) -> Enumeration {
        self.enumerate_from(table, Cursor::START)
    }

    /// Goes through the objects of a table from a [`Enumeration::cursor`] on.
    #[must_use]
    pub fn enumerate_from(&self, table: &Table, cursor: Cursor) -> Enumeration {
        Enumeration {
            client: self.clone(),
            table: table.clone(),
            next: Some(cursor),
            items: BATCH_ITEMS,
            values: true,
        }
    }
}

impl Enumeration {
    /// Without values: only keys and versions are sent.
    #[must_use]
    pub fn keys_only(mut self) -> Self {
        self.values = false;
        self
    }

    /// Sets about how many objects a batch has, at least 1 and at most 1024. Objects of one group
    /// of ranks come together, so there may be some more; large values make batches smaller.
    #[must_use]
    pub fn batch_items(mut self, items: usize) -> Self {
        self.items = u32::try_from(items.clamp(1, MULTI_ITEMS_MAX)).expect("at most 1024");
        self
    }

    /// The place of the next objects; `None` at the end. Give it to [`Client::enumerate_from`] to
    /// go on later.
    #[must_use]
    pub fn cursor(&self) -> Option<Cursor> {
        self.next
    }

    /// The next objects, at least one; `None` at the end. After an error the place is as before,
    /// so the call can be repeated.
    ///
    /// # Errors
    /// See [`Client`]. Large empty stretches count as one batch each against the time.
    pub async fn next_batch(&mut self) -> Result<Option<Vec<EnumeratedObject>>, ClientError> {
        while self.next.is_some() {
            let objects = self.next_stretch().await?;
            if !objects.is_empty() {
                return Ok(Some(objects));
            }
        }
        Ok(None)
    }

    /// One request's worth: like [`Enumeration::next_batch`], but may be empty before the end. For
    /// callers that must not take long. Where a tablet was cut while it was gone through, one
    /// request a part.
    ///
    /// # Errors
    /// See [`Client`].
    pub async fn next_stretch(&mut self) -> Result<Vec<EnumeratedObject>, ClientError> {
        let Some(cursor) = self.next else {
            return Ok(Vec::new());
        };
        let (objects, next) = match self.table.hash_kind() {
            HashKind::Seeded => self.next_hashes(cursor).await?,
            HashKind::Slots => self.next_ranks(cursor).await?,
        };
        self.next = next;
        Ok(objects)
    }

    /// Of a seeded table. The next place begins a group of hashes, so that it fits a number. If a
    /// tablet ends within a group, the rest of the group is asked for as well.
    async fn next_hashes(
        &self,
        cursor: Cursor,
    ) -> Result<(Vec<EnumeratedObject>, Option<Cursor>), ClientError> {
        let (kind, all) = (HashKind::Seeded, HashRange::ALL.last);
        let group = (1_u64 << kind.group_bits()) - 1;
        let mut stretch = HashRange::new(cursor.stretch.first, all);
        let mut objects = Vec::new();
        loop {
            let reply = self.ask(stretch, kind.rank(stretch.first)).await?;
            objects.extend(reply.objects);
            let Some(next) = reply.seen.next_hash() else {
                return Ok((objects, None));
            };
            if next <= stretch.first {
                return Err(self.stands_still(stretch.first));
            }
            if next.0 & group == 0 {
                return Ok((objects, Some(Cursor::before(kind, next))));
            }
            stretch = HashRange::new(next, KeyHash(next.0 | group));
        }
    }

    /// Of a slot table. A stretch that was one tablet may be several by now. All of them are asked,
    /// and the enumeration goes on at the smallest rank that one of them has not reached.
    async fn next_ranks(
        &self,
        Cursor { stretch, rank }: Cursor,
    ) -> Result<(Vec<EnumeratedObject>, Option<Cursor>), ClientError> {
        let kind = HashKind::Slots;
        let (mut objects, mut next) = (Vec::new(), None);
        let mut left = stretch;
        let last = loop {
            let EnumerateReply {
                objects: some,
                seen,
                ..
            } = self.ask(left, rank).await?;
            objects.extend(some);
            if let Some(seen) = seen.next {
                next = Some(next.map_or(seen, |known: Rank| known.min(seen)));
            }
            if seen.last < left.first || next.is_some_and(|next| next <= rank) {
                return Err(self.stands_still(left.first));
            }
            // At the start of a stretch its end is where the tablet ends.
            if seen.last >= stretch.last || rank == Rank(0) {
                break seen.last;
            }
            left.first = KeyHash(seen.last.0 + 1);
        };
        let Some(rank) = self.cut(&mut objects, next) else {
            let behind = last.0.checked_add(1).map(KeyHash);
            return Ok((objects, behind.map(|hash| Cursor::before(kind, hash))));
        };
        let stretch = HashRange::new(stretch.first, last);
        Ok((objects, Some(Cursor { stretch, rank })))
    }

    /// Drops objects of several parts that come again: those from `next` on, and those beyond the
    /// size of a batch. Gives the rank to go on with, which begins a group; none at the end.
    fn cut(&self, objects: &mut Vec<EnumeratedObject>, next: Option<Rank>) -> Option<Rank> {
        let kind = HashKind::Slots;
        let rank = |object: &EnumeratedObject| kind.rank(self.table.hash(&object.key));
        let group = |rank: Rank| rank.0 >> kind.group_bits();
        objects.sort_by_cached_key(rank);
        if let Some(next) = next {
            objects.truncate(objects.partition_point(|object| rank(object) < next));
        }
        let full = self.items as usize;
        if objects.len() <= full {
            return next;
        }
        let last = group(rank(&objects[full - 1]));
        let there = objects.partition_point(|object| group(rank(object)) <= last);
        if there == objects.len() {
            return next;
        }
        objects.truncate(there);
        Some(Rank((last + 1) << kind.group_bits()))
    }

    async fn ask(&self, stretch: HashRange, rank: Rank) -> Result<EnumerateReply, ClientError> {
        let request = Enumerate {
            table: self.table.id(),
            from: stretch.first,
            to: stretch.last,
            rank,
            items: self.items,
            values: self.values,
        };
        self.client
            .on_hash(&self.table, stretch.first, &request)
            .await
    }

    fn stands_still(&self, at: KeyHash) -> ClientError {
        ClientError::Protocol(format!(
            "an enumeration of table {:?} does not advance past {at}",
            self.table.name()
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cursor_is_a_number_below_2_to_53() {
        for n in 0_u64..10_000 {
            let number = n.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 11;
            for kind in [HashKind::Seeded, HashKind::Slots] {
                let Some(cursor) = Cursor::of_number(kind, number) else {
                    continue;
                };
                let again = cursor.to_number(kind);
                assert!(again < 1 << 53);
                assert_eq!(Cursor::of_number(kind, again), Some(cursor));
            }
        }
    }

    #[test]
    fn the_start_is_zero_and_larger_numbers_are_none() {
        for kind in [HashKind::Seeded, HashKind::Slots] {
            assert_eq!(Cursor::START.to_number(kind), 0);
            assert_eq!(Cursor::of_number(kind, 0), Some(Cursor::START));
            assert_eq!(Cursor::of_number(kind, 1 << 53), None);
        }
    }
}
