//! Which keys were changed while their tablet was copied.
//!
//! Notes have ascending numbers. The receiver asks for those behind a number, and by that says that
//! it has all up to it; a key that is changed again gets a new number. So an answer may be lost and
//! asked for again.

use super::{NOTES_BYTES_MAX, NOTES_MAX};
use pluvio_units::ObjectVersion;
use std::collections::BTreeMap;
use std::sync::Arc;

/// One key.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct ChangeNote {
    pub(crate) key: Arc<[u8]>,
    /// The version of the object that the latest change deleted, if it was a delete.
    pub(crate) deleted: Option<ObjectVersion>,
}

/// See the module.
#[derive(Default)]
pub(crate) struct ChangeNotes {
    by_number: BTreeMap<u64, ChangeNote>,
    numbers: BTreeMap<Arc<[u8]>, u64>,
    last: u64,
    bytes: usize,
}

impl ChangeNotes {
    /// Whether no further key should be changed (MOVE-4).
    pub(crate) fn is_full(&self) -> bool {
        self.by_number.len() >= NOTES_MAX || self.bytes >= NOTES_BYTES_MAX
    }

    pub(crate) fn len(&self) -> usize {
        self.by_number.len()
    }

    /// Notes a change that has taken effect.
    pub(crate) fn add(&mut self, key: &[u8], deleted: Option<ObjectVersion>) {
        self.last += 1;
        let key = match self.numbers.remove_entry(key) {
            Some((key, earlier)) => {
                self.by_number.remove(&earlier);
                key
            }
            None => {
                self.bytes += key.len();
                Arc::from(key)
            }
        };
        self.numbers.insert(Arc::clone(&key), self.last);
        self.by_number
            .insert(self.last, ChangeNote { key, deleted });
    }

    /// Forgets the notes up to this number.
    pub(crate) fn confirm(&mut self, up_to: u64) {
        while let Some(first) = self.by_number.first_entry()
            && *first.key() <= up_to
        {
            let note = first.remove();
            self.bytes -= note.key.len();
            self.numbers.remove(&note.key);
        }
    }

    /// The notes behind this number, at most so many.
    pub(crate) fn behind(&self, after: u64, most: usize) -> Vec<(u64, ChangeNote)> {
        let notes = self.by_number.range(after.saturating_add(1)..);
        notes
            .take(most)
            .map(|(number, note)| (*number, note.clone()))
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn keys(notes: &ChangeNotes, after: u64) -> Vec<(u64, Vec<u8>)> {
        let notes = notes.behind(after, 100);
        notes
            .into_iter()
            .map(|(n, note)| (n, note.key.to_vec()))
            .collect()
    }

    // shows: MIG-3
    #[test]
    fn a_key_has_one_note_with_its_latest_number() {
        let mut notes = ChangeNotes::default();
        for key in [b"a", b"b", b"a"] {
            notes.add(key, None);
        }
        assert_eq!(keys(&notes, 0), [(2, b"b".to_vec()), (3, b"a".to_vec())]);
        assert_eq!(keys(&notes, 2), [(3, b"a".to_vec())]);
    }

    // shows: MIG-3
    #[test]
    fn what_is_not_confirmed_can_be_asked_for_again() {
        let mut notes = ChangeNotes::default();
        notes.add(b"a", Some(ObjectVersion(7)));
        notes.add(b"b", None);
        assert_eq!(keys(&notes, 0).len(), 2);
        assert_eq!(keys(&notes, 0).len(), 2);
        notes.confirm(1);
        assert_eq!(keys(&notes, 0), [(2, b"b".to_vec())]);
        notes.add(b"a", None);
        notes.confirm(2);
        assert_eq!(keys(&notes, 2), [(3, b"a".to_vec())]);
        notes.confirm(u64::MAX);
        assert_eq!((notes.len(), notes.bytes), (0, 0));
    }

    #[test]
    fn notes_are_bounded_by_number_and_bytes() {
        let mut notes = ChangeNotes::default();
        let long = vec![1; 64 << 10];
        for n in 0..512_u32 {
            assert!(!notes.is_full());
            let mut key = long.clone();
            key[..4].copy_from_slice(&n.to_le_bytes());
            notes.add(&key, None);
        }
        assert!(notes.is_full());
        notes.confirm(1);
        assert!(!notes.is_full());
    }
}
