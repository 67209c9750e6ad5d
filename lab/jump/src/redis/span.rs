//! RedisJMP as the paper has it: a store in a span, which callers enter. A reader has the lock
//! shared, a writer exclusively. No server is there.

use crate::error::Result;
use crate::place::attach;
use pluvio_spacejmp::{Access, Registry, SegMap, SegStr, Space};
use std::path::Path;

/// The span, and the space with it alone.
const NAME: &str = "store";
/// Bytes of the span for each key, and beside them.
const KEY_BYTES: u64 = 768;
const MORE_BYTES: u64 = 16 << 20;
/// Keys that one change adds when the store is filled.
const ADDED: usize = 20_000;

type Map<'id> = SegMap<'id, SegStr<'id>, SegStr<'id>>;

/// The store, as one process has it attached.
pub(super) struct Store(Space);

impl Store {
    /// Makes it, with these pairs.
    pub(super) fn make(root: &Path, pairs: &[(String, String)]) -> Result<()> {
        let registry = Registry::open(root)?;
        let bytes = pairs.len() as u64 * KEY_BYTES + MORE_BYTES;
        registry.span(NAME).size(bytes).create()?;
        registry.create_space(NAME, &[(NAME, Access::Write)])?;
        let space = attach(&registry, NAME)?;
        let mut inside = space.enter()?;
        inside.init::<Map<'_>>(NAME, |_| Ok(SegMap::new()))?;
        for some in pairs.chunks(ADDED) {
            inside.write::<Map<'_>, _>(NAME, |heap, map| {
                for (key, value) in some {
                    let value = SegStr::from_text(heap, value)?;
                    map.insert(heap, SegStr::from_text(heap, key)?, value)?;
                }
                Ok(())
            })?;
        }
        Ok(())
    }

    pub(super) fn attach(root: &Path) -> Result<Self> {
        Ok(Self(attach(&Registry::open(root)?, NAME)?))
    }

    pub(super) fn get(&self, key: &str, into: &mut Vec<u8>) -> Result<bool> {
        let inside = self.0.enter_shared()?;
        Ok(inside.read::<Map<'_>, _>(NAME, |map| match map.get(key) {
            Some(value) => {
                into.clear();
                into.extend_from_slice(value.as_bytes());
                true
            }
            None => false,
        })?)
    }

    pub(super) fn set(&self, key: &str, value: &str) -> Result<()> {
        let mut inside = self.0.enter()?;
        Ok(
            inside.write::<Map<'_>, _>(NAME, |heap, map| match map.get_mut(key) {
                Some(place) => place.set(heap, value),
                None => {
                    let value = SegStr::from_text(heap, value)?;
                    map.insert(heap, SegStr::from_text(heap, key)?, value)?;
                    Ok(())
                }
            })?,
        )
    }
}
