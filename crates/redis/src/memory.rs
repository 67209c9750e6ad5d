//! The memory that all connections of a server hold together, and its bound.
//!
//! Counted is what a connection has in its hands: bytes of commands, and of replies that are being
//! built or wait to be taken. The socket buffers of the kernel do not count. Nor do the
//! structures of an idle connection.
//!
//! What happens as memory gets scarce:
//!
//! 1. At half of the bound, large replies are built one after the other: those of MGET, KEYS and
//!    SCAN. A reply has at most half of the bound, so the first one in line has room for the rest.
//! 2. Meanwhile the connection that holds most of those that stand still is closed, unless it holds
//!    less than [`LARGE_BYTES_MIN`]. It stands still if it was its client's turn for [`STILL`], and
//!    the client has sent nothing and taken nothing.
//! 3. At the bound, the connection that holds most is closed at once, as Redis does with
//!    `maxmemory-clients`.
//!
//! Only closing helps against a client that stands still. Waiting comes first, because many large
//! replies at once are nobody's fault. Nothing else waits, so connections that hold little do not
//! notice.
//!
//! Invariants
//! - CLIMEM-1: all connections of ports with one `ClientMemory` together hold at most its
//!   bound, plus [`GRAIN`] bytes each, plus what one takes in one turn.
//! - CLIMEM-2: what a connection counted is taken off again when it ends, however it ends.
//! - CLIMEM-3: of the large replies that wait, the first one in line is built on as far as the
//!   bound goes. So they never wait for each other in a circle, and none of them is why a
//!   connection is closed that does not stand still.

use crate::clients::ClientEntry;
use crate::counters::add;
use crate::failure::{connections_are_full, reply_too_long};
use crate::reply::Failure;
use core::time::Duration;
use pluvio_env::{Clock, Moment};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// A connection counts what it holds once that has changed by this much. So connections with small
/// commands and replies do not write to a shared counter.
const GRAIN: usize = 16 << 10;
/// Smaller replies never wait, and connections that hold less are not closed for standing still.
const LARGE_BYTES_MIN: usize = 256 << 10;
/// After this time a client that neither sends nor takes anything stands still. A slow link carries
/// some of the bytes in that time.
const STILL: Duration = Duration::from_secs(1);
/// Between two looks of a large reply that waits.
const LOOK_PAUSE: Duration = Duration::from_millis(2);
/// So much longer for each that waits.
const LOOK_PAUSE_EACH: Duration = Duration::from_micros(20);

/// The memory of the connections of one server. See the module.
#[derive(Debug)]
pub struct ClientMemory {
    bound: usize,
    used: AtomicUsize,
    /// The most since somebody asked.
    peak: AtomicUsize,
    /// Of connections that are closed because of it, and not gone yet.
    leaving: AtomicUsize,
    evicted: AtomicU64,
    waited: AtomicU64,
    holders: Mutex<Holders>,
}

#[derive(Default, Debug)]
struct Holders {
    last: u64,
    open: BTreeMap<u64, Arc<Holder>>,
    /// Large replies that have waited, in the order in which they began to.
    line: BTreeSet<u64>,
}

/// What one connection counts.
struct Holder {
    entry: Arc<ClientEntry>,
    /// Bytes of replies that are being built.
    building: AtomicUsize,
    /// What is in the sum.
    told: AtomicUsize,
    evicted: AtomicBool,
    /// It is the server's turn to do something, not the client's.
    is_owed: AtomicBool,
    /// Bytes that were in the sum when it was closed.
    left_with: AtomicUsize,
}

impl core::fmt::Debug for Holder {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "{} of {}", self.told.load(Relaxed), self.entry.id)
    }
}

impl Holder {
    fn holds(&self) -> usize {
        let parts = [
            &self.entry.input_bytes,
            &self.entry.output_bytes,
            &self.entry.waiting_bytes,
            &self.building,
        ];
        parts.iter().map(|part| part.load(Relaxed)).sum()
    }
}

/// What a [`ClientMemory`] shows.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct ClientMemoryStats {
    /// The bound in bytes.
    pub bound: u64,
    /// Bytes that connections hold.
    pub used: u64,
    /// Connections that were closed because they held most.
    pub evicted: u64,
    /// Times that a command waited before it went on with a large reply.
    pub waited: u64,
}

impl ClientMemory {
    /// The least bound: some of the largest values, coming in and going out.
    pub const BOUND_MIN: usize = 16 << 20;

    /// With this bound in bytes, or [`Self::BOUND_MIN`] if that is more.
    #[must_use]
    pub fn new(bound: usize) -> Self {
        Self {
            bound: bound.max(Self::BOUND_MIN),
            used: AtomicUsize::new(0),
            peak: AtomicUsize::new(0),
            leaving: AtomicUsize::new(0),
            evicted: AtomicU64::new(0),
            waited: AtomicU64::new(0),
            holders: Mutex::default(),
        }
    }

    /// The bound in bytes.
    #[must_use]
    pub fn bound(&self) -> usize {
        self.bound
    }

    /// What it shows now.
    #[must_use]
    pub fn stats(&self) -> ClientMemoryStats {
        ClientMemoryStats {
            bound: self.bound as u64,
            used: self.used.load(Relaxed) as u64,
            evicted: self.evicted.load(Relaxed),
            waited: self.waited.load(Relaxed),
        }
    }

    /// The most bytes that connections held since this was last asked.
    pub fn take_peak(&self) -> u64 {
        self.peak.swap(self.used.load(Relaxed), Relaxed) as u64
    }

    fn lock(&self) -> MutexGuard<'_, Holders> {
        self.holders.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes part in the sum with what a connection holds.
    pub(crate) fn enter(self: &Arc<Self>, entry: Arc<ClientEntry>) -> MemoryAccount {
        let holder = Arc::new(Holder {
            entry,
            building: AtomicUsize::new(0),
            told: AtomicUsize::new(0),
            evicted: AtomicBool::new(false),
            is_owed: AtomicBool::new(false),
            left_with: AtomicUsize::new(0),
        });
        let mut holders = self.lock();
        holders.last += 1;
        let id = holders.last;
        holders.open.insert(id, Arc::clone(&holder));
        MemoryAccount {
            memory: Arc::clone(self),
            holder,
            id,
        }
    }

    /// Whether large replies have to wait.
    pub(crate) fn is_scarce(&self) -> bool {
        self.stays() >= self.bound / 2
    }

    /// What is held by connections that stay.
    fn stays(&self) -> usize {
        let used = self.used.load(Relaxed);
        used.saturating_sub(self.leaving.load(Relaxed))
    }

    /// Closes those that hold most until the rest is within the bound.
    fn evict(&self, holders: &Holders) {
        while self.stays() > self.bound && self.evict_one(holders, |_| true) {}
    }

    /// Closes the one that holds most of those that stand still, unless that is little: closing it
    /// would make no room for a large reply.
    fn evict_still(&self, now: Moment) {
        let is_still = |holder: &Holder| {
            holder.told.load(Relaxed) >= LARGE_BYTES_MIN
                && !holder.is_owed.load(Relaxed)
                && holder.entry.idle(now) >= STILL
        };
        self.evict_one(&self.lock(), is_still);
    }

    /// Closes the one that holds most of those that `may` be closed. Whether there was one.
    fn evict_one(&self, holders: &Holders, may: impl Fn(&Holder) -> bool) -> bool {
        let stays = holders.open.values();
        let stays = stays.filter(|holder| !holder.evicted.load(Relaxed) && may(holder));
        let most = stays.max_by_key(|holder| holder.told.load(Relaxed));
        let Some((most, held)) = most.map(|most| (most, most.told.load(Relaxed))) else {
            return false;
        };
        if held == 0 {
            return false;
        }
        most.left_with.store(held, Relaxed);
        most.evicted.store(true, Relaxed);
        self.leaving.fetch_add(held, Relaxed);
        add(&self.evicted, 1);
        let (peer, bound) = (&most.entry.address, self.bound);
        tracing::debug!(%peer, held, bound, "closing the connection that holds most memory");
        most.entry.kill();
        true
    }

    /// Takes a place in line.
    fn line_up(&self) -> u64 {
        let mut holders = self.lock();
        holders.last += 1;
        let place = holders.last;
        holders.line.insert(place);
        place
    }

    /// Whether this place is the first in line, and how many are in it.
    fn is_first(&self, place: u64) -> (bool, usize) {
        let line = &self.lock().line;
        (line.first() == Some(&place), line.len())
    }
}

/// A connection's part of the sum, which is taken off on drop (CLIMEM-2).
pub(crate) struct MemoryAccount {
    memory: Arc<ClientMemory>,
    holder: Arc<Holder>,
    id: u64,
}

impl MemoryAccount {
    /// Counts what the connection holds, as its entry and the replies under way say (CLIMEM-1).
    pub(crate) fn tell(&self) {
        let (holder, memory) = (&self.holder, &self.memory);
        let (now, told) = (holder.holds(), holder.told.load(Relaxed));
        if now.abs_diff(told) < GRAIN && (now > 0 || told == 0) {
            return;
        }
        // Under the lock: a thread that closes connections finds shares and sum in agreement.
        let holders = memory.lock();
        // One that is closed counts with what it held then, until it is gone.
        if holder.evicted.load(Relaxed) {
            return;
        }
        holder.told.store(now, Relaxed);
        if now <= told {
            memory.used.fetch_sub(told - now, Relaxed);
            return;
        }
        let used = memory.used.fetch_add(now - told, Relaxed) + (now - told);
        memory.peak.fetch_max(used, Relaxed);
        if memory.stays() > memory.bound {
            memory.evict(&holders);
        }
    }

    /// What others see of the connection.
    pub(crate) fn entry(&self) -> &ClientEntry {
        &self.holder.entry
    }

    /// The memory of all.
    pub(crate) fn memory(&self) -> &ClientMemory {
        &self.memory
    }

    /// Notes whether it is the server's turn, or the client's: to send more, or to take replies.
    pub(crate) fn set_owed(&self, is_owed: bool) {
        self.holder.is_owed.store(is_owed, Relaxed);
    }

    /// Whether this connection is closed because it holds most.
    pub(crate) fn is_evicted(&self) -> bool {
        self.holder.evicted.load(Relaxed)
    }

    /// How much of `limit` the replies that are being built leave: EXEC builds its own around those
    /// of its commands.
    pub(crate) fn left(&self, limit: usize) -> usize {
        limit.saturating_sub(self.holder.building.load(Relaxed))
    }

    /// For a reply that is about to be built.
    pub(crate) fn build(&self) -> Building<'_> {
        Building {
            account: self,
            bytes: 0,
            place: None,
        }
    }
}

impl Drop for MemoryAccount {
    fn drop(&mut self) {
        let mut holders = self.memory.lock();
        holders.open.remove(&self.id);
        let told = self.holder.told.load(Relaxed);
        let left_with = self.holder.left_with.load(Relaxed);
        self.memory.used.fetch_sub(told, Relaxed);
        self.memory.leaving.fetch_sub(left_with, Relaxed);
    }
}

/// The bytes of a reply that is being built. They are taken off on drop; its connection counts them
/// from there on.
pub(crate) struct Building<'a> {
    account: &'a MemoryAccount,
    bytes: usize,
    /// In line.
    place: Option<u64>,
}

impl Building<'_> {
    /// Counts more of the reply, unless it would be longer than a reply may be.
    ///
    /// # Errors
    /// It would be.
    pub(crate) fn grow(&mut self, bytes: usize, limit: usize) -> Result<(), Failure> {
        if self.bytes + bytes > limit {
            return Err(reply_too_long(limit));
        }
        self.add(bytes);
        Ok(())
    }

    /// Bytes so far.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Counts more of the reply, or of what is read for it.
    pub(crate) fn add(&mut self, bytes: usize) {
        self.bytes += bytes;
        self.account.holder.building.fetch_add(bytes, Relaxed);
        self.account.tell();
    }

    /// Waits until there is room for about `more` further bytes of the reply, at most for `limit`
    /// (CLIMEM-3).
    ///
    /// # Errors
    /// There was none in that time.
    pub(crate) async fn room(
        &mut self,
        more: usize,
        clock: &dyn Clock,
        limit: Duration,
    ) -> Result<(), Failure> {
        let MemoryAccount { memory, holder, .. } = self.account;
        if !memory.is_scarce() || self.bytes + more < LARGE_BYTES_MIN {
            return Ok(());
        }
        let began = clock.now();
        holder.entry.set_active(began);
        let place = *self.place.get_or_insert_with(|| memory.line_up());
        let mut is_waiting = false;
        while memory.is_scarce() {
            let now = clock.now();
            memory.evict_still(now);
            let (is_first, others) = memory.is_first(place);
            if is_first && memory.stays() + more <= memory.bound {
                break;
            }
            if now.since(began) >= limit {
                return Err(connections_are_full());
            }
            if !is_waiting {
                is_waiting = true;
                add(&memory.waited, 1);
            }
            let others = u32::try_from(others).unwrap_or(u32::MAX);
            clock.sleep(LOOK_PAUSE + LOOK_PAUSE_EACH * others).await;
        }
        Ok(())
    }
}

impl Drop for Building<'_> {
    fn drop(&mut self) {
        let building = &self.account.holder.building;
        building.fetch_sub(self.bytes, Relaxed);
        if let Some(place) = self.place {
            self.account.memory.lock().line.remove(&place);
        }
    }
}
