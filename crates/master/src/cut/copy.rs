//! What noted keys are now.

use super::sessions::{EndOfHold, Stage, lost};
use super::{HOLD_BYTES_MAX, HOLD_NOTES_MAX};
use crate::master::Master;
use crate::tablets::TabletPhase;
use bytes::Bytes;
use pluvio_mutation::{Get, Outcome, Output, Projection};
use pluvio_units::{Deadline, ObjectVersion, TableId};
use pluvio_wire::{
    CUT_OBJECTS_MAX, ChangedObject, ChangedTo, CutReply, MULTI_BYTES_MAX, Refusal, RetryReason,
};
use std::time::Duration;

/// When to try again to copy what is locked or too large.
const COPY_RETRY: Duration = Duration::from_millis(5);

/// What is found at a key.
enum Peeked {
    Object(ChangedObject),
    /// It cannot be told now: a transaction has locked it, its tablet is frozen, or it changed
    /// meanwhile.
    Locked,
    /// Its tablet has left, so nobody uses what is said of it.
    Elsewhere,
}

fn version_of(outcome: &Outcome) -> Option<ObjectVersion> {
    match outcome {
        Outcome::Unchanged { version, .. } => Some(*version),
        Outcome::Written { .. }
        | Outcome::Deleted { .. }
        | Outcome::Rejected { .. }
        | Outcome::Refused(_)
        | Outcome::Together { .. } => None,
    }
}

fn bytes_of(object: &ChangedObject) -> usize {
    object.key.len() + object.now.as_ref().map_or(0, |now| now.value.len())
}

impl Master {
    /// The object of a key, as it is in memory; it need not be durable (CUT-6). `place` is the
    /// table and the key.
    fn peek(&self, place: &[u8]) -> Peeked {
        let Some((table, key)) = place.split_first_chunk() else {
            return Peeked::Elsewhere;
        };
        let table = TableId(u64::from_le_bytes(*table));
        let snapshot = self.tablets().snapshot();
        let Some(local) = snapshot.get(&table) else {
            return Peeked::Elsewhere;
        };
        let hash = local.table.hash(key);
        let tablet = local.tablet_of(hash).filter(|t| t.tracked.is_some());
        match tablet.map(|tablet| tablet.phase) {
            Some(TabletPhase::Serving | TabletPhase::Copying) => {}
            // It may come back with its notes, and another server may have changed it by now.
            Some(TabletPhase::Frozen) => return Peeked::Locked,
            Some(TabletPhase::Standing | TabletPhase::Recovering | TabletPhase::Left) | None => {
                return Peeked::Elsewhere;
            }
        }
        let get = Get::new(table, key);
        let read = |projection| {
            let get = Get { projection, ..get };
            self.store().get(&local.table, hash, &get)
        };
        let (value, deadline) = match (read(Projection::Value), read(Projection::Deadline)) {
            (Ok(value), Ok(deadline)) => (value, deadline),
            (Err(_), _) | (_, Err(_)) => return Peeked::Locked,
        };
        let (value, deadline) = (value.pending(), deadline.pending());
        if version_of(value) != version_of(deadline) {
            // It changed, or expired, between both.
            return Peeked::Locked;
        }
        let now = match value {
            Outcome::Unchanged { version, output } if version.0 > 0 => Some(ChangedTo {
                version: *version,
                deadline: match deadline.output() {
                    Output::Integer(ms) => u64::try_from(*ms).ok().and_then(Deadline::new),
                    Output::Nothing | Output::Bytes(_) | Output::Integers(_) => None,
                },
                value: match output {
                    Output::Bytes(bytes) => bytes.clone(),
                    Output::Nothing | Output::Integer(_) | Output::Integers(_) => Bytes::new(),
                },
            }),
            Outcome::Unchanged { .. }
            | Outcome::Written { .. }
            | Outcome::Deleted { .. }
            | Outcome::Rejected { .. }
            | Outcome::Refused(_)
            | Outcome::Together { .. } => None,
        };
        let key = Bytes::copy_from_slice(key);
        Peeked::Object(ChangedObject { table, key, now })
    }

    /// Objects whose changes were noted behind this number.
    pub(super) fn noted_behind(&self, known_as: u64, after: u64) -> Result<CutReply, Refusal> {
        let notes = {
            let mut inner = self.cuts.inner();
            let notes = &mut inner.session(known_as)?.notes;
            notes.confirm(after);
            notes.behind(after, CUT_OBJECTS_MAX)
        };
        let (mut objects, mut locked) = (Vec::new(), Vec::new());
        let (mut next, mut bytes) = (None, 0);
        for (number, note) in notes {
            next = Some(number);
            match self.peek(&note.key) {
                Peeked::Object(object) => {
                    bytes += bytes_of(&object);
                    objects.push(object);
                }
                Peeked::Locked => locked.push(note.key),
                Peeked::Elsewhere => {}
            }
            if bytes >= MULTI_BYTES_MAX {
                break;
            }
        }
        let mut inner = self.cuts.inner();
        let notes = &mut inner.session(known_as)?.notes;
        // They come again behind this number: it may be confirmed.
        for place in locked {
            notes.add(&place, None);
        }
        let left = notes.len().saturating_sub(objects.len()) as u64;
        let mut reply = CutReply::to(known_as);
        (reply.next, reply.left) = (next, left);
        Ok(reply.with(objects))
    }

    /// Copies what is noted, while it is held.
    pub(super) fn copy_noted(&self, known_as: u64) -> Result<Vec<ChangedObject>, Refusal> {
        let notes = {
            let mut inner = self.cuts.inner();
            let notes = &inner.session(known_as)?.notes;
            // Releases of locked keys have added some.
            notes.behind(0, 2 * HOLD_NOTES_MAX + 1)
        };
        let again = |why| Err(Refusal::retry(COPY_RETRY, why));
        if notes.len() > 2 * HOLD_NOTES_MAX {
            return again(RetryReason::Busy);
        }
        let (mut objects, mut bytes) = (Vec::new(), 0);
        for (_, note) in notes {
            match self.peek(&note.key) {
                Peeked::Object(object) => {
                    bytes += bytes_of(&object);
                    objects.push(object);
                }
                Peeked::Locked => return again(RetryReason::Locked),
                Peeked::Elsewhere => {}
            }
            if bytes > HOLD_BYTES_MAX {
                return again(RetryReason::Busy);
            }
        }
        Ok(objects)
    }

    /// Copies from this one on.
    pub(super) fn copies_from(&self, known_as: u64, from: u64) -> Result<CutReply, Refusal> {
        let mut inner = self.cuts.inner();
        let hold = inner.session(known_as)?.hold.as_ref();
        let hold =
            hold.filter(|hold| matches!(hold.stage, Stage::Over(EndOfHold { lasted: true, .. })));
        let hold = hold.ok_or_else(lost)?;
        let from = usize::try_from(from).unwrap_or(usize::MAX);
        let (mut objects, mut bytes) = (Vec::new(), 0);
        for object in hold.copies.iter().skip(from).take(CUT_OBJECTS_MAX) {
            if bytes >= MULTI_BYTES_MAX {
                break;
            }
            bytes += bytes_of(object);
            objects.push(object.clone());
        }
        let to = from.saturating_add(objects.len());
        let left = hold.copies.len().saturating_sub(to) as u64;
        let mut reply = CutReply::to(known_as);
        (reply.next, reply.left) = ((left > 0).then_some(to as u64), left);
        Ok(reply.with(objects))
    }
}
