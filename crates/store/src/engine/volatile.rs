//! Writes of a store without replicas. An object is appended without graves; a deletion empties the
//! slot. Nothing is pending, and outcomes are kept in memory only.

use super::apply::{Applied, Write};
use super::prepared::counted_len;
use super::{Engine, EngineError};
use crate::completions::Execution;
use crate::table::Growth;
use pluvio_format::{Encoded, Graves, Object};
use pluvio_log::{AppendClass, Awaited};
use pluvio_mutation::{Outcome, Output};
use pluvio_units::ObjectVersion;

impl Engine {
    /// Appends the new value and swings the slot.
    pub(super) fn put_volatile(
        &self,
        write: &mut Write<'_, '_>,
        value: &[u8],
        output: Output,
        execution: Option<Execution>,
    ) -> Result<Awaited<Applied>, EngineError> {
        let version = self.next_version(write);
        let counted = counted_len(write.state, value);
        self.append_volatile(write, version, value, counted)?;
        let outcome = Outcome::Written {
            version,
            replaced: write.told_version(),
            output,
        };
        Ok(self.done(outcome, execution))
    }

    /// Appends what is to lie in the log for a value of `value_len` bytes, and swings the slot.
    pub(crate) fn append_volatile(
        &self,
        write: &mut Write<'_, '_>,
        version: ObjectVersion,
        value: &[u8],
        value_len: usize,
    ) -> Result<(), EngineError> {
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
        let class = match write.replaced() {
            Some(old) => AppendClass::Replace {
                old_bytes: Encoded::object_len_at(old.len as usize, old.version, version) as u32,
                graves_bytes: 0,
            },
            None => AppendClass::Normal,
        };
        let len = Encoded::object_len(&object) as u32;
        let room = write.room()?;
        let appended = self
            .space
            .append_object(write.log, &object, class, write.guard)?;
        write.swing(room, *appended.pending(), false);
        self.count_written(write, value_len, len);
        Ok(())
    }

    /// Empties the slot.
    pub(super) fn delete_volatile(
        &self,
        write: &mut Write<'_, '_>,
        outcome: Outcome,
        execution: Option<Execution>,
    ) -> Awaited<Applied> {
        let Write { target, bucket } = write;
        let old = target.old.as_ref().expect("what is deleted was found");
        bucket.remove(old.entry);
        let growth = Growth::default().without(self.count_dead(target, old));
        target.table.count(target.log, growth);
        self.done(outcome, execution)
    }

    /// An outcome that there is nothing to wait for.
    pub(crate) fn done(&self, outcome: Outcome, execution: Option<Execution>) -> Awaited<Applied> {
        if let Some(execution) = execution {
            execution.complete(outcome.clone(), None, None);
        }
        let applied = Applied {
            outcome,
            marked: None,
        };
        Awaited::Now(self.marks.unmarked(applied))
    }
}
