//! What an update appends: the new object, whatever keeps its dead predecessors dead, and the
//! record of the operation.

use crate::engine::{Engine, EngineError, Old, Place};
use crate::once::Kept;
use pluvio_format::{Encoded, Entry, Object, Tombstone};
use pluvio_log::{AppendClass, Appended, Burial, DeadIn};
use pluvio_memory::EpochGuard;
use pluvio_units::{EntryRef, ObjectVersion, SegmentId};

/// An object that was appended.
pub(crate) struct Written {
    pub(crate) appended: Appended<EntryRef>,
    /// Bytes of the object in the log.
    pub(crate) len: u32,
}

/// An object to be appended.
struct Put<'p> {
    at: &'p Place<'p>,
    object: Object<'p>,
    old: Option<&'p Old<'p>>,
    record: Option<Entry<'static>>,
    guard: &'p EpochGuard<'p>,
}

impl Engine {
    /// Appends an object in the place of `old`, with what keeps that one dead (STORE-3), and the
    /// record of the operation, in one group.
    pub(crate) fn append_put(
        &self,
        at: &Place<'_>,
        object: Object<'_>,
        old: Option<&Old<'_>>,
        kept: Option<Kept>,
        guard: &EpochGuard<'_>,
    ) -> Result<Written, EngineError> {
        let durable = self.is_durable_store();
        let put = Put {
            at,
            object,
            old,
            record: kept.as_ref().filter(|_| durable).map(Kept::record),
            guard,
        };
        let (group, len) = match old.filter(|_| durable) {
            None => self.append_with(&put, &Burial::NOTHING)?,
            Some(old) => self.append_over(&put, self.dead_with(old, guard))?,
        };
        if let Some(kept) = kept {
            if durable {
                let record = group.pending().1;
                kept.appended(&group, record);
            } else {
                kept.volatile();
            }
        }
        let appended = group.map(|(first, _)| first);
        Ok(Written { appended, len })
    }

    /// Appends an object over `dead`. Graves make it larger than the one before, which is refused
    /// when live objects are at their limit; tombstones are dead soon, and are not.
    fn append_over(&self, put: &Put<'_>, dead: DeadIn) -> Result<Group, EngineError> {
        if !self.space.uses_graves(put.at.key().len()) {
            return self.append_with(put, &dead.all_tombstones());
        }
        match self.append_with(put, &dead.in_graves()) {
            Err(EngineError::Full { .. }) => {
                pluvio_units::mark("store-graves-do-not-fit");
                self.append_with(put, &dead.all_tombstones())
            }
            other => other,
        }
    }

    fn append_with(&self, put: &Put<'_>, burial: &Burial) -> Result<Group, EngineError> {
        let graves = burial.graves();
        let object = Object {
            graves,
            ..put.object
        };
        let class = match put.old {
            Some(old) => AppendClass::Replace {
                old_bytes: Encoded::object_len_at(old.len as usize, old.version, object.version)
                    as u32,
                graves_bytes: graves.encoded_len() as u32,
            },
            None => AppendClass::Normal,
        };
        let at = put.at;
        let len = Encoded::object_len(&object) as u32;
        let whole = Entry::Object(object);
        let append = |group: &[Entry<'_>]| {
            let appended = self.append(at.log, group, class, put.guard)?;
            Ok((appended.map(|refs| (refs[0], refs[refs.len() - 1])), len))
        };
        let tombstone = |segment| tombstone(at, put.old, segment);
        match (burial.tombstones(), &put.record) {
            ([], None) => {
                let log = at.log;
                let appended = self.space.append_object(log, &object, class, put.guard)?;
                Ok((appended.map(|entry| (entry, entry)), len))
            }
            ([], Some(record)) => append(&[whole, record.clone()]),
            ([one], None) => append(&[whole, tombstone(*one)]),
            ([one], Some(record)) => append(&[whole, tombstone(*one), record.clone()]),
            (several, record) => {
                pluvio_units::mark("store-several-tombstones");
                let tombstones = several.iter().map(|segment| tombstone(*segment));
                let group = core::iter::once(whole).chain(tombstones);
                let group: Vec<Entry<'_>> = group.chain(record.clone()).collect();
                append(&group)
            }
        }
    }

    /// Appends the tombstones of an object, one for each segment in which a version of it lies
    /// dead, and the record of the operation. Gives the first tombstone.
    pub(crate) fn append_delete(
        &self,
        at: &Place<'_>,
        old: &Old<'_>,
        kept: Option<Kept>,
        guard: &EpochGuard<'_>,
    ) -> Result<Appended<EntryRef>, EngineError> {
        let append = |group: &[Entry<'_>]| self.append(at.log, group, AppendClass::Delete, guard);
        let dead = self.dead_with(old, guard);
        let record = kept.as_ref().map(Kept::record);
        let group = match (&dead[..], &record) {
            ([one], None) => append(&[tombstone(at, Some(old), *one)])?,
            (several, record) => {
                let tombstones = several.iter().map(|one| tombstone(at, Some(old), *one));
                let group: Vec<Entry<'_>> = tombstones.chain(record.clone()).collect();
                append(&group)?
            }
        };
        if let Some(kept) = kept {
            let record = *group.pending().last().expect("a group is not empty");
            kept.appended(&group, record);
        }
        Ok(group.map(|refs| refs[0]))
    }

    fn dead_with(&self, old: &Old<'_>, guard: &EpochGuard<'_>) -> DeadIn {
        self.space.dead_with(old.entry, old.graves, guard)
    }
}

/// The first and the last entry of a group, and the length of its object.
type Group = (Appended<(EntryRef, EntryRef)>, u32);

/// The tombstone for what lies dead in a segment: versions up to that of `old`.
fn tombstone<'k>(at: &Place<'k>, old: Option<&Old<'_>>, segment: SegmentId) -> Entry<'k> {
    Entry::Tombstone(Tombstone {
        table: at.table.id(),
        version: old.map_or(ObjectVersion(0), |old| old.version),
        segment,
        timestamp_s: at.now_s,
        key: at.key(),
    })
}
