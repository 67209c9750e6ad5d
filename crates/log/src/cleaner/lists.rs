//! The memory of passes for the entries that survive them. It is kept from one pass to the next
//! while the store is written, and given back to the system when it is not.

use super::entries::Survivor;
use std::sync::{Mutex, PoisonError};

/// A new list has room for this many bytes of entries. An allocator gives a block of that size
/// pages of its own. They cost nothing before they are written, and go back when the block is
/// freed. glibc does so from 32 MiB on, whatever was freed before. Smaller ones it keeps.
const FIRST_BYTES: usize = 32 << 20;

/// Lists that no pass has, at most one for each pass that may go on at once.
pub(super) struct Lists {
    idle: Mutex<Vec<Vec<Survivor>>>,
    most: usize,
}

impl Lists {
    /// For `most` passes at once.
    pub(super) fn new(most: usize) -> Self {
        Self {
            idle: Mutex::default(),
            most,
        }
    }

    /// An empty list for a pass.
    pub(super) fn take(&self) -> Vec<Survivor> {
        let kept = self.with_idle(Vec::pop);
        kept.unwrap_or_else(|| Vec::with_capacity(FIRST_BYTES / size_of::<Survivor>()))
    }

    /// Takes the list of a pass that needs it no more.
    pub(super) fn give_back(&self, mut list: Vec<Survivor>) {
        list.clear();
        let most = self.most;
        let too_many = self.with_idle(|idle| {
            if idle.len() < most {
                idle.push(list);
                return None;
            }
            Some(list)
        });
        // Freed without the lock.
        drop(too_many);
    }

    /// Frees what no pass has.
    pub(super) fn free(&self) {
        drop(self.with_idle(core::mem::take));
    }

    fn with_idle<T>(&self, change: impl FnOnce(&mut Vec<Vec<Survivor>>) -> T) -> T {
        change(&mut self.idle.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

#[cfg(test)]
mod tests {
    use super::{FIRST_BYTES, Lists};
    use crate::cleaner::entries::Survivor;

    fn capacities(lists: &Lists) -> Vec<usize> {
        lists.with_idle(|idle| idle.iter().map(Vec::capacity).collect())
    }

    #[test]
    fn lists_are_used_again_until_they_are_freed() {
        let lists = Lists::new(2);
        let room = FIRST_BYTES / size_of::<Survivor>();
        let three = [lists.take(), lists.take(), lists.take()];
        assert!(three.iter().all(|list| list.capacity() >= room));
        let addresses = three.each_ref().map(Vec::as_ptr);
        for list in three {
            lists.give_back(list);
        }
        assert_eq!(capacities(&lists).len(), 2, "no more than passes");
        assert!(addresses[..2].contains(&lists.take().as_ptr()));
        lists.free();
        assert!(capacities(&lists).is_empty());
    }
}
