//! Values that are read where they lie for longer than a call, and by any thread.
//!
//! - EMBED-6: the bytes of a [`View`] stay where they are, unchanged, until it is dropped; the store
//!   gives no memory back meanwhile.

use crate::embedded::table::Table;
use crate::engine::StoreKind;
use crate::engine::read::Seen;
use pluvio_memory::SharedGuard;
use pluvio_units::{EntryRef, ObjectVersion};

/// A value of an embedded store, kept readable. It belongs to no thread and borrows nothing: for
/// callers that cannot hold a [`StoreGuard`](crate::StoreGuard). It keeps the store alive.
///
/// No memory is reclaimed while there is one: a store in which all is overwritten, and a view is
/// kept, becomes full.
pub struct View {
    /// Dropped before the store that it protects memory of.
    guard: SharedGuard,
    table: Table,
    version: ObjectVersion,
    place: Place,
}

enum Place {
    /// The object lies there in one piece; found under the guard.
    Log(EntryRef),
    /// It is cut in two in the log, or may be overwritten: a copy.
    Copy(Vec<u8>),
}

impl Table {
    /// The value where it lies, kept there until the view is dropped. No copy is made, unless the
    /// value is large and cut in two in memory, or the store overwrites values in place. It takes
    /// a mutex: for small values [`Self::get_into`] is faster.
    ///
    /// ```
    /// # use pluvio_store::{Size, Store};
    /// let store = Store::builder().memory(Size::mib(64)).build()?;
    /// let towns = store.create_table("towns")?;
    /// towns.put(b"Bern", b"134794")?;
    /// let bern = towns.view(b"Bern").ok_or("no Bern")?;
    /// towns.put(b"Bern", b"137000")?;
    /// let read = std::thread::scope(|scope| {
    ///     scope.spawn(|| bern.with(|value| value.to_vec())).join().ok()
    /// });
    /// assert_eq!(read.as_deref(), Some(&b"134794"[..]));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn view(&self, key: &[u8]) -> Option<View> {
        let engine = &self.shared.engine;
        // Before the lookup: so it protects what is found.
        let guard = engine.space().pin_shared();
        let (version, place) = match engine.kind {
            StoreKind::InPlace => {
                let mut value = Vec::new();
                let version = engine.read_in_place(&self.table, key, &mut value)?;
                (version, Place::Copy(value))
            }
            StoreKind::Replicated | StoreKind::Volatile => {
                let pinned = engine.space().pin();
                let hash = self.table.hash(key);
                let index = self.table.indexes.of(hash)?;
                let (slot, seen) = engine.lookup(&index, hash, key, &pinned)?;
                let object = seen.object()?;
                if engine.is_gone(&self.table, &object) {
                    return None;
                }
                let place = match &seen {
                    Seen::Object(..) => Place::Log(slot.entry),
                    Seen::Other(_) | Seen::Mutable(_) => Place::Copy(object.value.to_vec()),
                };
                (object.version, place)
            }
        };
        Some(View {
            guard,
            table: self.clone(),
            version,
            place,
        })
    }
}

impl View {
    /// The version of the object.
    #[must_use]
    pub fn version(&self) -> ObjectVersion {
        self.version
    }

    /// Shows the value. It is the same memory at each call, until the view is dropped (EMBED-6).
    pub fn with<R>(&self, see: impl FnOnce(&[u8]) -> R) -> R {
        match &self.place {
            Place::Copy(value) => see(value),
            Place::Log(entry) => {
                let space = self.table.shared.engine.space();
                let pinned = space.pin();
                let found = space.object(*entry, &pinned);
                let (object, _) = found.expect("EMBED-6: the guard keeps it as it was found");
                see(object.value)
            }
        }
    }
}

impl core::fmt::Debug for View {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("View")
            .field("version", &self.version)
            .field("guard", &self.guard)
            .finish_non_exhaustive()
    }
}
