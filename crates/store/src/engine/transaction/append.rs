//! Steps 4 and 5 of a transaction: what its drafts have become is appended in one group, and the
//! slots swing to it.

use super::buckets::{LockedBuckets, Rooms};
use super::{Change, ChangeKind, Changed, NotTransacted, Transacted, Transaction};
use crate::completions::Execution;
use crate::engine::apply::{MarkedSlot, Target, Unsettled, swing};
use crate::engine::read::Pending;
use crate::engine::replicated::{Kept, tombstone};
use crate::engine::{EngineError, StoreKind};
use crate::table::Growth;
use pluvio_format::{Encoded, Entry, Object};
use pluvio_index::{Approach, Room};
use pluvio_log::{AppendClass, AppendError, Appended, Awaited, EntryRefs};
use pluvio_mutation::{Draft, DraftChange, Outcome, Output};
use pluvio_units::ObjectVersion;
use std::collections::VecDeque;

impl Transaction<'_> {
    /// Keeps the outcome where nothing changed, and the safe version that it tells of.
    pub(super) fn keep(
        &self,
        targets: &[Target<'_>],
        outcome: Outcome,
        execution: Option<Execution>,
        told: Option<ObjectVersion>,
    ) -> Result<Transacted, NotTransacted> {
        let engine = self.engine;
        if let Some(safe) = told {
            let kept = Kept::of(execution, &outcome);
            let class = match kept.as_ref().is_some_and(Kept::holds_value) {
                true => AppendClass::Outcome,
                false => AppendClass::Internal,
            };
            let mut entries = vec![Entry::SafeVersion(safe)];
            entries.extend(kept.as_ref().map(Kept::record));
            let group = self.append_group(&entries, class)?;
            drop(entries);
            if let Some(kept) = kept {
                let record = *group.pending().last().expect("a group is not empty");
                kept.appended(&group, record);
            }
            return Ok(Transacted {
                outcome: group.map(|_| outcome).into(),
                changed: Vec::new(),
            });
        }
        let outcome = match (engine.kind, execution, targets.first()) {
            (StoreKind::Replicated, Some(execution), Some(target)) => {
                let appended = engine.append_outcome(target, &outcome, execution)?;
                appended.map(|()| outcome).into()
            }
            (_, execution, _) => {
                if let Some(execution) = execution {
                    execution.complete(outcome.clone(), None, None);
                }
                engine.marks.marked(self.pending.map(Pending::end), outcome)
            }
        };
        Ok(Transacted {
            outcome,
            changed: Vec::new(),
        })
    }

    /// The version of what is appended for an object.
    fn version(&self, draft: &Draft<'_, '_>) -> ObjectVersion {
        match self.prepare {
            // The one before the version that was told.
            Some(_) => ObjectVersion(draft.next_version().0 - 1),
            None => draft.next_version(),
        }
    }

    /// Appends the changes, with what keeps the old objects dead, and swings the slots.
    pub(super) fn append_replicated(
        &self,
        locks: &mut LockedBuckets<'_>,
        (targets, mut changes, drafts): (&[Target<'_>], Vec<Change<'_>>, &[Draft<'_, '_>]),
        (outcome, told): (Outcome, Option<ObjectVersion>),
        execution: Option<Execution>,
    ) -> Result<Transacted, NotTransacted> {
        let mut rooms = self.rooms(locks, targets, &changes)?;
        let kept = Kept::of(execution, &outcome);
        let last = (told, kept.as_ref());
        let (entries, class) = self.entries(targets, &mut changes, drafts, last);
        let group = self.append_group(&entries, class)?;
        drop(entries);
        if let Some(kept) = kept {
            let record = *group.pending().last().expect("a group is not empty");
            kept.appended(&group, record);
        }
        let mut slots: Vec<Option<MarkedSlot>> = vec![None; changes.len()];
        for (place, at, approach) in changed_in_order(locks, &changes) {
            let change = &changes[place];
            let target = &targets[change.object];
            let entry = group.pending()[change.first];
            let bucket = &mut locks.guards[at];
            assert!(bucket.turn_to(approach), "its block is locked");
            let room = rooms.next_for(at, target);
            swing(bucket, target.slot(), room, entry, true);
            self.count(target, change);
            let is_tombstone = matches!(change.kind, ChangeKind::Delete(_));
            slots[place] = Some(target.marked(entry, is_tombstone));
        }
        let changed = changes.iter().zip(slots).map(|(change, slot)| Changed {
            step: self.objects[change.object],
            outcome: final_outcome(&targets[change.object], &drafts[change.object], change),
            slot: slot.map(|slot| group.and(Unsettled::new(slot))),
        });
        let changed = changed.collect();
        let outcome = group.map(|_| outcome).into();
        Ok(Transacted { outcome, changed })
    }

    /// Appends the new objects, swings their slots, and then empties those of deleted ones.
    pub(super) fn append_volatile(
        &self,
        locks: &mut LockedBuckets<'_>,
        (targets, mut changes, drafts): (&[Target<'_>], Vec<Change<'_>>, &[Draft<'_, '_>]),
        outcome: Outcome,
        execution: Option<Execution>,
    ) -> Result<Transacted, NotTransacted> {
        let mut rooms = self.rooms(locks, targets, &changes)?;
        let (entries, class) = self.entries(targets, &mut changes, drafts, (None, None));
        let group = match entries.is_empty() {
            true => None,
            false => Some(self.append_group(&entries, class)?),
        };
        drop(entries);
        if let Some(execution) = execution {
            execution.complete(outcome.clone(), None, None);
        }
        let order = changed_in_order(locks, &changes);
        for (place, at, approach) in order.iter().copied() {
            let change = &changes[place];
            if let (ChangeKind::Put { .. }, Some(group)) = (&change.kind, &group) {
                let target = &targets[change.object];
                let entry = group.pending()[change.first];
                let bucket = &mut locks.guards[at];
                assert!(bucket.turn_to(approach), "its block is locked");
                let room = rooms.next_for(at, target);
                swing(bucket, target.slot(), room, entry, false);
                self.count(target, change);
            }
        }
        // That may move others of the bucket, rooms included.
        for (place, at, approach) in order {
            let change = &changes[place];
            let target = &targets[change.object];
            if let (ChangeKind::Delete(_), Some(old)) = (&change.kind, target.slot()) {
                let bucket = &mut locks.guards[at];
                assert!(bucket.turn_to(approach), "its block is locked");
                bucket.remove(old);
                self.count(target, change);
            }
        }
        let changed = changes.iter().map(|change| Changed {
            step: self.objects[change.object],
            outcome: final_outcome(&targets[change.object], &drafts[change.object], change),
            slot: None,
        });
        Ok(Transacted {
            changed: changed.collect(),
            outcome: Awaited::Now(self.engine.marks.unmarked(outcome)),
        })
    }

    /// Room for the slots of new objects, by guard, in the order in which they are filled.
    fn rooms<'l>(
        &self,
        locks: &mut LockedBuckets<'l>,
        targets: &[Target<'_>],
        changes: &[Change<'_>],
    ) -> Result<Rooms<'l>, EngineError> {
        let mut is_new = vec![false; targets.len()];
        for change in changes {
            is_new[change.object] = targets[change.object].old.is_none();
        }
        let mut rooms: Vec<Vec<Room<'l>>> = locks.guards.iter().map(|_| Vec::new()).collect();
        for (object, at, approach) in &locks.order {
            if is_new[*object] {
                let bucket = &mut locks.guards[*at];
                assert!(bucket.turn_to(*approach), "its block is locked");
                let room = bucket.room_beside(&rooms[*at])?;
                rooms[*at].push(room);
            }
        }
        Ok(Rooms(rooms.into_iter().map(VecDeque::from).collect()))
    }

    /// The entries of the group, and how they count.
    fn entries<'e>(
        &self,
        targets: &'e [Target<'_>],
        changes: &'e mut [Change<'_>],
        drafts: &[Draft<'_, '_>],
        (told, kept): (Option<ObjectVersion>, Option<&Kept>),
    ) -> (Vec<Entry<'e>>, AppendClass) {
        let is_durable = self.engine.kind == StoreKind::Replicated;
        let mut count = 0;
        for change in changes.iter_mut() {
            change.first = count;
            count += match &change.kind {
                ChangeKind::Put { burial, .. } => 1 + burial.tombstones().len(),
                ChangeKind::Delete(burial) => burial.tombstones().len(),
            };
        }
        let (mut entries, mut old_bytes, mut graves_bytes) = (Vec::with_capacity(count + 1), 0, 0);
        let (mut is_growing, mut has_put) = (false, false);
        // PREP-5.
        let makes_nothing_more = self.prepare.is_some()
            && !drafts
                .iter()
                .any(|draft| matches!(draft.change(), DraftChange::Put(..)));
        for change in changes.iter_mut() {
            let Change {
                object, kind, len, ..
            } = change;
            let (target, draft) = (&targets[*object], &drafts[*object]);
            let (value, burial) = match &*kind {
                ChangeKind::Put { value, burial, .. } => (Some(value), burial),
                ChangeKind::Delete(burial) => (None, burial),
            };
            if let Some(value) = value {
                let version = self.version(draft);
                let object = Object {
                    table: target.table.id(),
                    version,
                    timestamp_s: self.now_s,
                    graves: burial.graves(),
                    deadline: target.deadline,
                    state: target.state,
                    key: target.key,
                    value,
                };
                *len = Encoded::object_len(&object) as u32;
                has_put = true;
                let old_len = target.replaced().map(|old| {
                    let len = old.len as usize;
                    Encoded::object_len_at(len, old.version, version) as u32
                });
                old_bytes += old_len.unwrap_or(0);
                match old_len {
                    _ if makes_nothing_more => {
                        graves_bytes += len.saturating_sub(old_len.unwrap_or(0));
                    }
                    None => is_growing = true,
                    Some(_) => graves_bytes += burial.graves().encoded_len() as u32,
                }
                entries.push(Entry::Object(object));
            }
            if is_durable {
                let tombstones = burial.tombstones().iter();
                entries.extend(tombstones.map(|segment| tombstone(target, *segment)));
            }
        }
        let class = match (has_put, is_growing, kept.is_some_and(Kept::holds_value)) {
            (true, true, _) => AppendClass::Normal,
            (true, false, _) => AppendClass::Replace {
                old_bytes,
                graves_bytes,
            },
            (false, _, true) => AppendClass::Outcome,
            (false, _, false) => AppendClass::Delete,
        };
        entries.extend(told.map(Entry::SafeVersion));
        entries.extend(kept.map(Kept::record));
        (entries, class)
    }

    fn append_group(
        &self,
        entries: &[Entry<'_>],
        class: AppendClass,
    ) -> Result<Appended<EntryRefs>, NotTransacted> {
        let space = &self.engine.space;
        match space.append(self.log, entries, class, self.guard) {
            Ok(group) => Ok(group),
            Err(AppendError::GroupTooLarge { .. } | AppendError::GroupLength(_)) => {
                Err(NotTransacted::TooLarge)
            }
            Err(error) => Err(EngineError::from(error).into()),
        }
    }

    fn count(&self, target: &Target<'_>, change: &Change<'_>) {
        let engine = self.engine;
        match (&change.kind, &target.old) {
            (ChangeKind::Put { value_len, .. }, _) => {
                engine.count_written(target, *value_len, change.len);
            }
            (ChangeKind::Delete(_), Some(old)) => {
                let growth = Growth::default().without(engine.count_dead(target, old));
                target.table.count(target.log, growth);
            }
            (ChangeKind::Delete(_), None) => {}
        }
    }
}

/// The changes in the order in which their objects were locked: each with its guard and its place
/// there.
fn changed_in_order(
    locks: &LockedBuckets<'_>,
    changes: &[Change<'_>],
) -> Vec<(usize, usize, Approach)> {
    let mut change_of = vec![None; locks.order.len()];
    for (place, change) in changes.iter().enumerate() {
        change_of[change.object] = Some(place);
    }
    let changed = |(object, at, approach): &(usize, usize, Approach)| {
        Some((change_of[*object]?, *at, *approach))
    };
    locks.order.iter().filter_map(changed).collect()
}

/// The end of a change of an object, whatever the steps were.
fn final_outcome(target: &Target<'_>, draft: &Draft<'_, '_>, change: &Change<'_>) -> Outcome {
    let output = Output::Nothing;
    let before = target.replaced_version();
    match change.kind {
        ChangeKind::Put { .. } => Outcome::Written {
            version: draft.next_version(),
            replaced: before,
            output,
        },
        ChangeKind::Delete(_) => Outcome::Deleted {
            version: before,
            output,
        },
    }
}
