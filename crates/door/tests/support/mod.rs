//! A shared store with a door, and values that show from where they come.

use pluvio_door::{Door, DoorOptions};
use pluvio_store::{Size, Store, StoreBuilder, StoreError, Table};
use std::path::PathBuf;
use std::sync::Arc;
use tempfile::TempDir;

pub struct Shared {
    // In the order in which they end.
    #[allow(dead_code)] // not every test looks at it
    pub door: Door,
    pub store: Store,
    pub place: PathBuf,
    _directory: TempDir,
}

impl Shared {
    #[allow(dead_code)]
    pub fn new(memory: Size) -> Self {
        Self::with(Store::builder().memory(memory), DoorOptions::default())
    }

    pub fn with(builder: StoreBuilder, options: DoorOptions) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let place = directory.path().join("door");
        let store = builder.shared(true).build().unwrap();
        let door = Door::open(&place, Arc::new(store.clone()), options).unwrap();
        Self {
            door,
            store,
            place,
            _directory: directory,
        }
    }

    #[allow(dead_code)] // not every test has one
    pub fn reader(&self) -> pluvio_mapped::Store {
        pluvio_mapped::Store::open(&self.place).unwrap()
    }
}

/// Puts until there is room.
#[allow(dead_code)]
pub fn put(table: &Table, key: &[u8], value: &[u8]) {
    loop {
        match table.put(key, value) {
            Ok(_) => return,
            Err(StoreError::Full { .. }) => std::thread::yield_now(),
            Err(other) => panic!("{other}"),
        }
    }
}

/// A value of `len` bytes at least 16, the `count`th one of key number `key`: each word of it says
/// so.
#[allow(dead_code)]
pub fn value_of(key: u64, count: u64, len: usize) -> Vec<u8> {
    let words = [key, count].map(u64::to_le_bytes).concat();
    words.iter().copied().cycle().take(len.max(16)).collect()
}

/// The count of a value of that key, which must be whole.
#[allow(dead_code)]
pub fn count_of(key: u64, value: &[u8]) -> u64 {
    let (words, _) = value.as_chunks::<8>();
    let word = |at: usize| u64::from_le_bytes(words[at]);
    let count = word(1);
    assert_eq!(word(0), key, "the value of another key");
    assert!(
        value == value_of(key, count, value.len()),
        "a value of key {key} is torn: {:?} of {} bytes",
        &value[..16],
        value.len()
    );
    count
}
