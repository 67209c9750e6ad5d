//! The steps of the epoch protocol, generic over the atomic word. The model checker (`model`) thus
//! runs the very code the readers run.
//!
//! Why a pin protects. A reader publishes its epoch `e`, passes a full fence `R`, and only then
//! reads links. A reclaimer works in this order:
//! 1. It unlinks.
//! 2. It [`advance`]s the counter from `s` (the stamp) to `s + 1`.
//! 3. In [`frontier`] it reads the counter, passes a full fence `L`, and only then reads the slots.
//!
//! Take a frontier above `s`. All full fences have one order:
//! 1. `L` before `R`: the unlinking happened before `L`, so the reader, behind `R`, finds the new
//!    link and never the old one.
//! 2. `R` before `L`: the look finds the reader's `e` in its slot, or something stored there later:
//!   - `e` itself, above `s`: the reader took `e` from a counter that was advanced past `s`. That
//!     load (acquire) and the advance (release) put the unlinking before all it reads.
//!   - something later, idle or a younger epoch. It was stored with release after the reader's last
//!     access, and read with acquire. So the access happened before the memory is used again.
//!
//! A reader that read the counter long ago publishes an epoch that is too old: that only delays.
//!
//! Readers of other processes publish nothing. The reclaimer tells them instead, in a word that
//! only rises, below which stamp memory is used again ([`reuse_below`]), before it is. Such a
//! reader takes the counter as its epoch `e` ([`begin_foreign`]), copies, and then looks at that
//! word. The copy counts only if the word is not above `e` ([`counts`]). Take memory with
//! stamp `s`:
//! 1. `e` above `s`: as above, the unlinking comes before all that the reader reads. It comes to
//!    that memory by a new link only, behind the new content.
//! 2. `e` is not above `s`. If a copied byte belongs to the new content, the word was above `s`
//!    before that byte was stored. The fences of the two put the look behind that store: the word
//!    is above `s`, and so above `e`. The copy does not count. If no byte does, it is the content
//!    that was linked.
//!
//! Whoever writes the new content passes a release fence before ([`reuse_below`] has one; another
//! thread that takes the memory passes its own).
//!
//! Giving pages back to the system is a write of zeroes, and so is new content (M5). The system
//! call stores nothing for the language. But it takes the page out of every mapping, and gives a
//! reader a new one, under the locks of its page tables. So what the caller stored before comes
//! before the reader's load of a zero, as behind a release fence.

use core::sync::atomic::{AtomicU64, Ordering};

/// The value of a slot whose thread holds no guard. The counter starts above it.
pub const IDLE: u64 = 0;

/// Where the word that [`reuse_below`] raises lies, in bytes from the counter on.
pub(crate) const REUSED_BELOW_AT: u64 = 24;

/// An atomic 64-bit word.
pub trait Word {
    /// Loads, with acquire.
    fn load_acquire(&self) -> u64;
    /// Stores, with release.
    fn store_release(&self, value: u64);
    /// Adds one, with acquire and release; gives the old value.
    fn add_one(&self) -> u64;
    /// A release store, then a full fence.
    fn publish(&self, value: u64);
    /// A fence; all full fences have one order.
    fn full_fence();
    /// Makes a zero a one, with acquire; false when it was none.
    fn take(&self) -> bool;
    /// Raises the word to at least `to`, with release.
    fn raise(&self, to: u64);
}

/// A word that readers of other processes look at.
pub trait ForeignWord: Word {
    /// Loads without order.
    fn load_relaxed(&self) -> u64;
    /// An acquire fence.
    fn acquire_fence();
    /// A release fence.
    fn release_fence();
}

impl Word for AtomicU64 {
    #[inline]
    fn load_acquire(&self) -> u64 {
        self.load(Ordering::Acquire)
    }

    #[inline]
    fn store_release(&self, value: u64) {
        self.store(value, Ordering::Release);
    }

    #[inline]
    fn add_one(&self) -> u64 {
        self.fetch_add(1, Ordering::AcqRel)
    }

    /// On x86 a swap is `xchg`, which is a full fence: no load behind it overtakes it. The language
    /// promises that only of a fence, so the compiler is told separately not to move anything.
    #[cfg(target_arch = "x86_64")]
    #[inline]
    fn publish(&self, value: u64) {
        self.swap(value, Ordering::SeqCst);
        core::sync::atomic::compiler_fence(Ordering::SeqCst);
    }

    #[cfg(not(target_arch = "x86_64"))]
    #[inline]
    fn publish(&self, value: u64) {
        self.store(value, Ordering::Release);
        Self::full_fence();
    }

    #[inline]
    fn full_fence() {
        core::sync::atomic::fence(Ordering::SeqCst);
    }

    fn take(&self) -> bool {
        self.compare_exchange(0, 1, Ordering::Acquire, Ordering::Relaxed)
            .is_ok()
    }

    fn raise(&self, to: u64) {
        self.fetch_max(to, Ordering::AcqRel);
    }
}

impl ForeignWord for AtomicU64 {
    #[inline]
    fn load_relaxed(&self) -> u64 {
        self.load(Ordering::Relaxed)
    }

    #[inline]
    fn acquire_fence() {
        core::sync::atomic::fence(Ordering::Acquire);
    }

    #[inline]
    fn release_fence() {
        core::sync::atomic::fence(Ordering::Release);
    }
}

/// A thread takes a slot for itself, by its owner word. False if another thread has the slot. Slot
/// number `number` counts as used before the thread's first pin, whose fence makes that visible to
/// every later look (E3).
pub fn claim<W: Word>(owner: &W, high_water: &W, number: u64) -> bool {
    // Acquire pairs with the release in `unclaim`: the last owner's stores are over (E1).
    let claimed = owner.take();
    if claimed {
        high_water.raise(number + 1);
    }
    claimed
}

/// A thread gives its slot to others. No guard lives in it.
pub fn unclaim<W: Word>(owner: &W) {
    owner.store_release(0);
}

/// The reader, before its first access. (Outside of models, its two halves are in `clock` and
/// `fence`.)
pub fn begin<W: Word>(counter: &W, slot: &W) {
    slot.publish(counter.load_acquire());
}

/// The reader, after its last access.
#[inline]
pub fn end<W: Word>(slot: &W) {
    slot.store_release(IDLE);
}

/// The reclaimer, after unlinking: the stamp of the unlinked things.
pub fn advance<W: Word>(counter: &W) -> u64 {
    counter.add_one()
}

/// The reclaimer, before using memory again: everything with a stamp below the answer may be used.
/// `slots` is called behind the fence, because the set of used slots is itself read from memory.
pub fn frontier<'a, W, I>(counter: &W, slots: impl FnOnce() -> I) -> u64
where
    W: Word + 'a,
    I: Iterator<Item = &'a W>,
{
    // Before the fence: a stamp below this bound was given, and its things unlinked, before it.
    frontier_below(counter.load_acquire(), slots)
}

/// [`frontier`] for a bound that was read before.
pub fn frontier_below<'a, W, I>(bound: u64, slots: impl FnOnce() -> I) -> u64
where
    W: Word + 'a,
    I: Iterator<Item = &'a W>,
{
    W::full_fence();
    slots()
        .map(Word::load_acquire)
        .filter(|&since| since != IDLE)
        .fold(bound, u64::min)
}

/// The reclaimer, before memory with stamps below `frontier` is used again, where other processes
/// read.
pub fn reuse_below<W: ForeignWord>(reused_below: &W, frontier: u64) {
    reused_below.raise(frontier);
    W::release_fence();
}

/// A reader of another process, before its first access: its epoch.
pub fn begin_foreign<W: Word>(counter: &W) -> u64 {
    counter.load_acquire()
}

/// The same reader, after its last access: whether what it has copied counts.
pub fn counts<W: ForeignWord>(epoch: u64, reused_below: &W) -> bool {
    W::acquire_fence();
    is_above(epoch, reused_below.load_relaxed())
}

/// Whether memory that is used again below that stamp was unlinked before the epoch began.
#[inline(always)]
pub(crate) fn is_above(epoch: u64, reused_below: u64) -> bool {
    epoch >= reused_below
}
