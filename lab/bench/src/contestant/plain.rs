//! The allocator and nothing else: an array of boxed values.

use super::{KeyValue, Refusal};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Values by number. One thread at a time: what is measured is memory.
pub(crate) struct Plain(Mutex<Vec<Option<Box<[u8]>>>>);

impl Plain {
    /// Room for objects with keys below `objects`. Its memory is touched here, so that it counts as
    /// the process's own and not as the objects'.
    pub(crate) fn new(objects: u64) -> Self {
        let mut slots = Vec::new();
        slots.resize_with(objects as usize, || None);
        Self(Mutex::new(slots))
    }

    fn slots(&self) -> MutexGuard<'_, Vec<Option<Box<[u8]>>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl KeyValue for Plain {
    fn get(&self, key: u64, into: &mut Vec<u8>) -> bool {
        into.clear();
        match self.slots().get(key as usize) {
            Some(Some(value)) => {
                into.extend_from_slice(value);
                true
            }
            Some(None) | None => false,
        }
    }

    fn put(&self, key: u64, value: &[u8]) -> Result<(), Refusal> {
        match self.slots().get_mut(key as usize) {
            Some(slot) => {
                // The old one goes first, as in a store that must not hold more than is live.
                *slot = None;
                *slot = Some(value.into());
                Ok(())
            }
            None => Err(Refusal::Fatal(format!("there is no slot {key}"))),
        }
    }

    fn delete(&self, key: u64) -> Result<bool, Refusal> {
        let mut slots = self.slots();
        Ok(slots
            .get_mut(key as usize)
            .is_some_and(|slot| slot.take().is_some()))
    }
}
