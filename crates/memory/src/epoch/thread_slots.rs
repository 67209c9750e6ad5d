//! The slots that the calling thread has in epoch tables.
//!
//! Owns the thread's claims. A slot is claimed at the first pin and given up when the thread exits,
//! even in tables that die before or after the thread.
//!
//! Invariants:
//! - T1: `LAST` names a claim in `CLAIMS`, and counter and slot of its table; or nothing.
//! - T2: once a thread's `CLAIMS` are destroyed, its later guards (in destructors of other
//!   thread-locals) are overflow guards.

use super::{Counter, ReclaimEpochs, Slot, Table};
use core::cell::{Cell, RefCell};
use core::ptr::null;
use core::sync::atomic::Ordering;
use std::sync::Weak;

/// Where a thread pinned last, and what it needs to pin there again.
#[derive(Clone, Copy)]
struct Last {
    /// Zero is no table's id.
    table_id: u64,
    counter: *const Counter,
    slot: *const Slot,
}

const NOWHERE: Last = Last {
    table_id: 0,
    counter: null(),
    slot: null(),
};

thread_local! {
    /// The fast path. Has no destructor, so reading it is one access.
    static LAST: Cell<Last> = const { Cell::new(NOWHERE) };
    static CLAIMS: RefCell<Claims> = const { RefCell::new(Claims(Vec::new())) };
}

struct Claims(Vec<Claim>);

struct Claim {
    table_id: u64,
    slot: u32,
    table: Weak<Table>,
}

impl Drop for Claims {
    fn drop(&mut self) {
        LAST.set(NOWHERE);
        for claim in &self.0 {
            if let Some(table) = claim.table.upgrade() {
                table.unclaim(claim.slot);
            }
        }
    }
}

/// The place of `LAST` of the calling thread: no other living thread has the same.
pub(super) fn own_mark() -> u64 {
    LAST.with(|last| core::ptr::from_ref(last).addr() as u64)
}

/// The counter of the table of `epochs` and the calling thread's slot in it. `None` if the table is
/// full or the thread is exiting.
#[inline(always)]
pub(super) fn place_in(epochs: &ReclaimEpochs) -> Option<(&Counter, &Slot)> {
    let last = LAST.get();
    if last.table_id != epochs.id {
        return find_or_claim(epochs);
    }
    // SAFETY: ids are given once, so these are counter and slot of the table of `epochs` (T1). The
    // table has them mapped as long as it lives, and the references live no longer. Both are atomic
    // words, as `Region::line` gave them.
    Some(unsafe { (&*last.counter, &*last.slot) })
}

#[cold]
fn find_or_claim(epochs: &ReclaimEpochs) -> Option<(&Counter, &Slot)> {
    CLAIMS
        .try_with(|claims| {
            let claims = &mut claims.borrow_mut().0;
            let known = claims.iter().find(|claim| claim.table_id == epochs.id);
            let slot = match known {
                Some(claim) => claim.slot,
                None => {
                    let slot = epochs.table.claim()?;
                    // Bounds the list: tables that are gone make room for new ones.
                    claims.retain(|claim| claim.table.strong_count() > 0);
                    claims.push(Claim {
                        table_id: epochs.id,
                        slot,
                        table: std::sync::Arc::downgrade(&epochs.table),
                    });
                    slot
                }
            };
            let (counter, slot) = (epochs.table.counter(), epochs.table.slot(slot));
            if cfg!(debug_assertions) {
                slot[3].store(own_mark(), Ordering::Relaxed);
            }
            LAST.set(Last {
                table_id: epochs.id,
                counter,
                slot,
            });
            Some((counter, slot))
        })
        .ok()
        .flatten()
}
