//! Concurrent maps of others, with values in boxes of their own: what a Rust program would use
//! instead.
//!
//! Keys are plain numbers and all maps hash with the same quick hasher, which favours them: our
//! store takes keys of any length.

use super::{KeyValue, Refusal};
use foldhash::fast::RandomState;

type Value = Box<[u8]>;

/// `dashmap`. With `in_place` a value of the same length is overwritten where it is.
pub(crate) struct Dash {
    pub(crate) map: dashmap::DashMap<u64, Value, RandomState>,
    pub(crate) in_place: bool,
}

/// `papaya`.
pub(crate) struct Papaya(pub(crate) papaya::HashMap<u64, Value, RandomState>);

/// `scc`.
pub(crate) struct Scc(pub(crate) scc::HashMap<u64, Value, RandomState>);

fn copy_out(value: Option<&[u8]>, into: &mut Vec<u8>) -> bool {
    into.clear();
    into.extend_from_slice(value.unwrap_or_default());
    value.is_some()
}

impl KeyValue for Dash {
    #[inline]
    fn get(&self, key: u64, into: &mut Vec<u8>) -> bool {
        copy_out(self.map.get(&key).as_ref().map(|value| &***value), into)
    }

    #[inline]
    fn put(&self, key: u64, value: &[u8]) -> Result<(), Refusal> {
        if self.in_place
            && let Some(mut old) = self.map.get_mut(&key)
            && old.len() == value.len()
        {
            old.copy_from_slice(value);
            return Ok(());
        }
        // The box is made, and the old one freed, outside of the map's lock.
        drop(self.map.insert(key, value.into()));
        Ok(())
    }

    fn delete(&self, key: u64) -> Result<bool, Refusal> {
        Ok(self.map.remove(&key).is_some())
    }
}

impl KeyValue for Papaya {
    #[inline]
    fn get(&self, key: u64, into: &mut Vec<u8>) -> bool {
        copy_out(self.0.pin().get(&key).map(|value| &**value), into)
    }

    #[inline]
    fn put(&self, key: u64, value: &[u8]) -> Result<(), Refusal> {
        self.0.pin().insert(key, value.into());
        Ok(())
    }

    fn delete(&self, key: u64) -> Result<bool, Refusal> {
        Ok(self.0.pin().remove(&key).is_some())
    }
}

impl KeyValue for Scc {
    #[inline]
    fn get(&self, key: u64, into: &mut Vec<u8>) -> bool {
        let found = self.0.read_sync(&key, |_, value| {
            into.clear();
            into.extend_from_slice(value);
        });
        found.is_some()
    }

    #[inline]
    fn put(&self, key: u64, value: &[u8]) -> Result<(), Refusal> {
        drop(self.0.upsert_sync(key, value.into()));
        Ok(())
    }

    fn delete(&self, key: u64) -> Result<bool, Refusal> {
        Ok(self.0.remove_sync(&key).is_some())
    }
}
