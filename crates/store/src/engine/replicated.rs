//! Writes of a store whose logs have replicas.
//!
//! 1. A new object lists the segments with dead versions of its key. A deletion leaves tombstones.
//! 2. The record of the operation is the last entry of the group. After a crash both are there or
//!    neither is (STORE-3, COMP-5).
//! 3. The slot is marked as pending until the group is durable.

use super::apply::{Applied, Old, Target, Write};
use super::prepared::counted_len;
use super::{Engine, EngineError};
use crate::completions::Execution;
use crate::engine::read::Pending;
use pluvio_format::{Encoded, Entry, Graves, Object, Tombstone};
use pluvio_log::{AppendClass, Appended, Awaited, Burial, DeadIn};
use pluvio_mutation::{Outcome, Output};
use pluvio_units::{EntryRef, ObjectVersion, SegmentId};

/// An operation with its outcome, to be kept.
pub(super) struct Kept {
    execution: Execution,
    outcome: Outcome,
}

impl Kept {
    pub(super) fn of(execution: Option<Execution>, outcome: &Outcome) -> Option<Self> {
        let outcome = || outcome.clone();
        execution.map(|execution| Self {
            execution,
            outcome: outcome(),
        })
    }

    /// Whether its record may be large: it must not take the room of deletes.
    pub(super) fn holds_value(&self) -> bool {
        self.outcome.bulk_len() > 0
    }

    pub(super) fn record(&self) -> Entry<'static> {
        Entry::Completion(self.execution.record(self.outcome.clone()))
    }

    /// The group with the record was appended; its guard is still held (COMP-5).
    pub(super) fn appended<T>(self, group: &Appended<T>, record: EntryRef) {
        let pending = Pending {
            log: group.log(),
            position: group.position(),
        };
        self.execution
            .complete(self.outcome, Some(record), Some(pending));
    }
}

/// An object to be appended.
struct Put<'p, 'w, 'b> {
    write: &'p Write<'w, 'b>,
    object: Object<'p>,
    record: Option<Entry<'static>>,
}

/// The first and the last entry of a group, and the length of its object.
type Group = (Appended<(EntryRef, EntryRef)>, u32);

impl Engine {
    /// Appends the new value, with what keeps the object dead that it replaces (STORE-3), and
    /// swings the slot.
    pub(super) fn put_replicated(
        &self,
        write: &mut Write<'_, '_>,
        value: &[u8],
        output: Output,
        execution: Option<Execution>,
    ) -> Result<Awaited<Applied>, EngineError> {
        let version = self.next_version(write);
        let outcome = Outcome::Written {
            version,
            replaced: write.told_version(),
            output,
        };
        let object = Object {
            table: write.table.id(),
            version,
            timestamp_s: write.now_s,
            graves: Graves::NONE,
            deadline: write.deadline,
            state: write.state,
            key: write.key,
            value,
        };
        let room = write.room()?;
        let kept = Kept::of(execution, &outcome);
        let put = Put {
            write,
            object,
            record: kept.as_ref().map(Kept::record),
        };
        let (group, len) = match write.replaced() {
            None => self.append_with(&put, &Burial::NOTHING)?,
            Some(old) => self.append_over(&put, self.dead_with(write, old))?,
        };
        if let Some(kept) = kept {
            let record = group.pending().1;
            kept.appended(&group, record);
        }
        let entry = group.pending().0;
        write.swing(room, entry, true);
        self.count_written(write, counted_len(write.state, value), len);
        let marked = Some(write.marked(entry, false));
        Ok(group.map(|_| Applied { outcome, marked }).into())
    }

    /// Appends tombstones, one for each segment in which a version of the object lies dead, and
    /// swings the slot to the first.
    pub(super) fn delete_replicated(
        &self,
        write: &mut Write<'_, '_>,
        outcome: Outcome,
        execution: Option<Execution>,
    ) -> Result<Awaited<Applied>, EngineError> {
        let kept = Kept::of(execution, &outcome);
        let old = write.old.as_ref().expect("what is deleted was found");
        let dead = self.dead_with(write, old);
        let class = match &kept {
            Some(kept) if kept.holds_value() => AppendClass::Outcome,
            Some(_) | None => AppendClass::Delete,
        };
        let append = |group: &[Entry<'_>]| self.append(write.log, group, class, write.guard);
        let group = match (&dead[..], &kept) {
            ([one], None) => append(&[tombstone(write, *one)])?,
            (several, kept) => {
                let tombstones = several.iter().map(|one| tombstone(write, *one));
                let record = kept.as_ref().map(Kept::record);
                append(&tombstones.chain(record).collect::<Vec<_>>())?
            }
        };
        if let Some(kept) = kept {
            let record = *group.pending().last().expect("a group is not empty");
            kept.appended(&group, record);
        }
        let first = group.pending()[0];
        let growth = crate::table::Growth::default().without(self.count_dead(write, old));
        write.table.count(write.log, growth);
        write.swing(None, first, true);
        let marked = Some(write.marked(first, true));
        Ok(group.map(|_| Applied { outcome, marked }).into())
    }

    /// Appends the record of an operation that changed nothing.
    pub(super) fn append_outcome(
        &self,
        write: &Target<'_>,
        outcome: &Outcome,
        execution: Execution,
    ) -> Result<Appended<()>, EngineError> {
        let kept = Kept {
            execution,
            outcome: outcome.clone(),
        };
        let record = [kept.record()];
        let class = match kept.holds_value() {
            true => AppendClass::Outcome,
            false => AppendClass::Internal,
        };
        let group = self.append(write.log, &record, class, write.guard)?;
        let record = group.pending()[0];
        kept.appended(&group, record);
        Ok(group.map(|_| ()))
    }

    /// Appends an object over `dead`. Graves make it larger than the one before, which is refused
    /// when live objects are at their limit; tombstones are dead soon, and are not.
    fn append_over(&self, put: &Put<'_, '_, '_>, dead: DeadIn) -> Result<Group, EngineError> {
        if !self.space.uses_graves(put.write.key.len()) {
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

    fn append_with(&self, put: &Put<'_, '_, '_>, burial: &Burial) -> Result<Group, EngineError> {
        let (write, graves) = (put.write, burial.graves());
        let object = Object {
            graves,
            ..put.object
        };
        let class = match write.replaced() {
            Some(old) => AppendClass::Replace {
                old_bytes: Encoded::object_len_at(old.len as usize, old.version, object.version)
                    as u32,
                graves_bytes: graves.encoded_len() as u32,
            },
            None => AppendClass::Normal,
        };
        let len = Encoded::object_len(&object) as u32;
        let whole = Entry::Object(object);
        let append = |group: &[Entry<'_>]| {
            let appended = self.append(write.log, group, class, write.guard)?;
            Ok((appended.map(|refs| (refs[0], refs[refs.len() - 1])), len))
        };
        match (burial.tombstones(), &put.record) {
            ([], None) => {
                let appended = self
                    .space
                    .append_object(write.log, &object, class, write.guard)?;
                Ok((appended.map(|entry| (entry, entry)), len))
            }
            ([], Some(record)) => append(&[whole, record.clone()]),
            ([one], None) => append(&[whole, tombstone(write, *one)]),
            ([one], Some(record)) => append(&[whole, tombstone(write, *one), record.clone()]),
            (several, record) => {
                pluvio_units::mark("store-several-tombstones");
                let tombstones = several.iter().map(|segment| tombstone(write, *segment));
                let group = core::iter::once(whole).chain(tombstones);
                append(&group.chain(record.clone()).collect::<Vec<_>>())
            }
        }
    }

    pub(super) fn dead_with(&self, write: &Target<'_>, old: &Old<'_>) -> DeadIn {
        self.space.dead_with(old.entry, old.graves, write.guard)
    }
}

/// The tombstone for what lies dead in a segment: versions up to that of the object replaced.
pub(super) fn tombstone<'w>(write: &Target<'w>, segment: SegmentId) -> Entry<'w> {
    let version = write
        .old
        .as_ref()
        .map_or(ObjectVersion(0), |old| old.version);
    Entry::Tombstone(Tombstone {
        table: write.table.id(),
        version,
        segment,
        timestamp_s: write.now_s,
        key: write.key,
    })
}
