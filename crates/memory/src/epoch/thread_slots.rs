//! Which slot of which epoch table the calling thread has.
//!
//! Owns the thread's claims: a slot is claimed at the first pin and given up when the thread exits,
//! also in tables that die before or after it.
//!
//! Invariants:
//! - T1: `LAST` names a claim in `CLAIMS`, or nothing.
//! - T2: once a thread's `CLAIMS` are destroyed, its later guards (in destructors of other
//!   thread-locals) are overflow guards.

use super::{ReclaimEpochs, SlotOffset, Table};
use core::cell::{Cell, RefCell};
use std::sync::Weak;

thread_local! {
    /// The table pinned last and where the slot in it lies: the fast path. Has no destructor, so reading it is
    /// one access. Zero is no table's id.
    static LAST: Cell<(u64, SlotOffset)> = const { Cell::new((0, SlotOffset(0))) };
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
        LAST.set((0, SlotOffset(0)));
        for claim in &self.0 {
            if let Some(table) = claim.table.upgrade() {
                table.unclaim(claim.slot);
            }
        }
    }
}

/// Where the calling thread's slot in the table of `epochs` lies; none when the table is full or the thread is
/// exiting.
#[inline(always)]
pub(super) fn slot_in(epochs: &ReclaimEpochs) -> Option<SlotOffset> {
    let (table_id, offset) = LAST.get();
    if table_id == epochs.id {
        return Some(offset);
    }
    find_or_claim(epochs)
}

#[cold]
fn find_or_claim(epochs: &ReclaimEpochs) -> Option<SlotOffset> {
    CLAIMS
        .try_with(|claims| {
            let claims = &mut claims.borrow_mut().0;
            let known = claims.iter().find(|claim| claim.table_id == epochs.id);
            let slot = match known {
                Some(claim) => claim.slot,
                None => {
                    let slot = epochs.table.claim()?;
                    // What bounds the list: tables that are gone make room for new ones.
                    claims.retain(|claim| claim.table.strong_count() > 0);
                    claims.push(Claim {
                        table_id: epochs.id,
                        slot,
                        table: std::sync::Arc::downgrade(&epochs.table),
                    });
                    slot
                }
            };
            let offset = epochs.table.slot_offset(slot);
            LAST.set((epochs.id, offset));
            Some(offset)
        })
        .ok()
        .flatten()
}
