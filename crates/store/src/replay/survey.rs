//! What a survey finds out before a replay: which entry of every key is the newest, so that nothing
//! is copied that does not live in the end (REPLAY-4).

use crate::replay::{Replay, ReplayError, read_entry};
use pluvio_format::{Entry, Object};
use pluvio_log::AppendClass;
use pluvio_units::{ObjectVersion, TableId};
use std::collections::btree_map::{self, BTreeMap};

/// Most that a survey takes of the heap, which is outside the log's memory: the bytes of its keys
/// and [`SURVEY_ENTRY_BYTES`] for each of them. Beyond it the replay is refused, as where memory is
/// full, so that the partition is cut finer. Enough for 2 million keys of 30 bytes: what a
/// partition has that is not a crowded one.
const SURVEY_BYTES_MAX: usize = 256 << 20;
/// What a key of a survey takes beside its bytes: its place in a map that is two thirds full, and
/// what its allocation costs.
const SURVEY_ENTRY_BYTES: usize = 96;

/// The newest entry of every key.
pub(super) struct Survey {
    newest: BTreeMap<(TableId, Box<[u8]>), Newest>,
    bytes: usize,
    bytes_max: usize,
}

/// Ordered as replay decides: of an object and its tombstone the tombstone counts.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Newest {
    version: ObjectVersion,
    is_tombstone: bool,
}

impl Survey {
    fn new(bytes_max: usize) -> Self {
        Self {
            newest: BTreeMap::new(),
            bytes: 0,
            bytes_max,
        }
    }

    fn look_at(&mut self, entry: &Entry<'_>) -> Result<(), ReplayError> {
        let (table, key, version, is_tombstone) = match entry {
            Entry::Object(object) => (object.table, object.key, object.version, false),
            Entry::Tombstone(tombstone) => {
                (tombstone.table, tombstone.key, tombstone.version, true)
            }
            Entry::SegmentHeader(_)
            | Entry::LogDigest(_)
            | Entry::SafeVersion(_)
            | Entry::TableStats(_)
            | Entry::Completion(_)
            | Entry::Horizon(_) => return Ok(()),
        };
        let found = Newest {
            version,
            is_tombstone,
        };
        match self.newest.entry((table, key.into())) {
            btree_map::Entry::Occupied(mut known) => {
                let newest = known.get_mut();
                *newest = found.max(*newest);
            }
            btree_map::Entry::Vacant(place) => {
                let bytes = self.bytes + key.len() + SURVEY_ENTRY_BYTES;
                if bytes > self.bytes_max {
                    return Err(ReplayError::SurveyFull(self.bytes_max));
                }
                self.bytes = bytes;
                place.insert(found);
            }
        }
        Ok(())
    }

    fn lives(&self, object: &Object<'_>) -> bool {
        let this = Newest {
            version: object.version,
            is_tombstone: false,
        };
        self.newest.get(&(object.table, object.key.into())) == Some(&this)
    }
}

impl Replay {
    /// Looks at entries before a replay in which only what lives in the end takes memory: once this
    /// has seen all entries, [`Self::replay`] passes over the others. Costs heap for every key, 256
    /// MiB at most.
    ///
    /// # Errors
    /// [`ReplayError::Parse`], [`ReplayError::SurveyFull`]. After one the replay cannot go on.
    pub fn survey(&mut self, mut bytes: &[u8]) -> Result<(), ReplayError> {
        self.objects = AppendClass::Replay;
        let survey = self
            .survey
            .get_or_insert_with(|| Survey::new(SURVEY_BYTES_MAX));
        while !bytes.is_empty() {
            let parsed = read_entry(bytes)?;
            survey.look_at(&parsed.entry)?;
            bytes = &bytes[parsed.head.total_len()..];
        }
        Ok(())
    }

    pub(super) fn is_surveyed_dead(&self, object: &Object<'_>) -> bool {
        let survey = self.survey.as_ref();
        survey.is_some_and(|survey| !survey.lives(object))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::Engine;
    use crate::options::EngineOptions;
    use pluvio_format::{Encoded, Graves, ObjectState};
    use pluvio_log::LogOptions;
    use pluvio_units::{HashRange, LogId, Size};

    fn object(key: &[u8], version: u64) -> Vec<u8> {
        let object = Entry::Object(Object {
            table: TableId(1),
            version: ObjectVersion(version),
            timestamp_s: 1,
            graves: Graves::NONE,
            deadline: None,
            state: ObjectState::Plain,
            key,
            value: b"value",
        });
        Encoded::new(&object, false).unwrap().to_vec()
    }

    #[test]
    fn a_survey_takes_no_more_keys_than_fit_its_bound() {
        let log = LogOptions::new(Size::mib(64));
        let store = Engine::open(EngineOptions { log }).unwrap();
        let table = store.table(TableId(1), 7, HashRange::ALL).unwrap();
        let tablets = vec![(table, HashRange::ALL)];
        let mut replay = Replay::new(&store, LogId(0), tablets).unwrap();
        let bytes_max = 3 * (SURVEY_ENTRY_BYTES + 4);
        replay.survey = Some(Survey::new(bytes_max));
        for key in [b"key1", b"key2", b"key3"] {
            for version in 1..=10 {
                replay.survey(&object(key, version)).unwrap();
            }
        }
        let refused = replay.survey(&object(b"key4", 1));
        assert_eq!(refused, Err(ReplayError::SurveyFull(bytes_max)));
        // What is known takes no more room.
        replay.survey(&object(b"key1", 11)).unwrap();
        replay.abort();
    }
}
