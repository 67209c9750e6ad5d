//! Applying several mutations of one batch with one append.
//!
//! 1. Lock the buckets of the keys, one after the other, and judge each mutation as
//!    [`Engine::apply`] does. Only the first lock is waited for. A second thread may have the next
//!    bucket locked and wait for one of ours.
//! 2. Append all new objects, each with the record of its operation, in one group. After a crash
//!    all of them are there or none is.
//! 3. Swing all slots, and unlock.
//!
//! A group ends before a mutation that is none of these plain puts, and that one is applied alone:
//!
//! - a deletion, or a rule that refuses;
//! - an outcome with a value;
//! - an object that needs tombstones;
//! - a key whose bucket is locked, or of another table.
//!
//! A group that finds no room is applied one by one, so that each has its own error.

use super::apply::{Applied, Old, Site, Target, Write, bytes_of, growth_of};
use super::read::Seen;
use super::replicated::Kept;
use super::{Engine, EngineError, StoreKind};
use crate::completions::Execution;
use crate::indexes::Loaded;
use core::ops::ControlFlow;
use pluvio_format::{Encoded, Entry, Object, ObjectState};
use pluvio_index::{BucketGuard, Room};
use pluvio_log::{AppendClass, Awaited, Burial};
use pluvio_memory::EpochGuard;
use pluvio_mutation::{Current, Mutation, NewValue, Outcome, Output, Verdict, judge};
use pluvio_units::{KEY_MAX, LogId, ObjectVersion};
use smallvec::SmallVec;

/// Most mutations of a group.
const GROUP_ITEMS: usize = 16;
/// Keys and values of a group end with the first that reaches this many bytes. A group lies in one
/// segment, so a large one wastes the end of a segment.
const GROUP_BYTES: usize = 64 << 10;

/// A mutation of a batch.
pub struct Item<'i> {
    /// Where it is applied.
    pub site: Site<'i>,
    /// What is to be done.
    pub mutation: &'i Mutation<'i>,
    /// Its identity, if it has one.
    pub execution: Option<Execution>,
}

/// A put that was judged, with its bucket locked.
struct Staged<'s> {
    write: Write<'s, 's>,
    room: Option<Room<'s>>,
    value: NewValue<'s>,
    version: ObjectVersion,
    burial: Burial,
    outcome: Outcome,
}

impl Staged<'_> {
    fn object(&self) -> Object<'_> {
        Object {
            table: self.write.table.id(),
            version: self.version,
            timestamp_s: self.write.now_s,
            graves: self.burial.graves(),
            deadline: self.write.deadline,
            state: ObjectState::Plain,
            key: self.write.key,
            value: &self.value,
        }
    }

    /// Bytes in the log of what it replaces, as they would be with the new version.
    fn old_bytes(&self) -> u32 {
        self.write.replaced().map_or(0, |old| {
            Encoded::object_len_at(old.len as usize, old.version, self.version) as u32
        })
    }
}

impl Engine {
    /// Applies the mutations of a batch in their order, and calls `each` with what came of each, as
    /// [`Engine::apply`] gives it. Appends as few groups as can be. `each` is called with no bucket
    /// locked.
    ///
    /// When `each` breaks, nothing behind that mutation is executed, except what was appended in
    /// one group with it; `each` is called for that, too. So a group holds only what no caller
    /// stops at: puts of the site's own log, without values in their outcomes. Gives the number of
    /// mutations that `each` was called for.
    pub fn apply_batch(
        &self,
        items: &mut [Item<'_>],
        mut each: impl FnMut(Result<Awaited<Applied>, EngineError>) -> ControlFlow<()>,
    ) -> usize {
        let mut done = 0;
        while done < items.len() {
            let judged = match self.apply_group(&mut items[done..], &mut each) {
                Ok((applied, flow)) => {
                    done += applied;
                    match flow {
                        ControlFlow::Continue(()) => continue,
                        ControlFlow::Break(()) => return done,
                    }
                }
                Err(NotApplied(judged)) => judged.max(1),
            };
            for item in &mut items[done..done + judged] {
                let applied = self.apply(&item.site, item.mutation, item.execution.take());
                done += 1;
                if each(applied).is_break() {
                    return done;
                }
            }
        }
        done
    }

    /// Applies as many of the first mutations as one group can hold, and gives their number.
    fn apply_group(
        &self,
        items: &mut [Item<'_>],
        each: &mut impl FnMut(Result<Awaited<Applied>, EngineError>) -> ControlFlow<()>,
    ) -> Result<(usize, ControlFlow<()>), NotApplied> {
        if self.kind != StoreKind::Replicated || items.len() < 2 {
            return Err(NotApplied(items.len()));
        }
        let guard = self.space.pin();
        let first = items[0].site;
        let indexes = first.table.indexes.load().ok_or(NotApplied(1))?;
        let mut staged = SmallVec::<[Staged<'_>; GROUP_ITEMS]>::new();
        let mut bytes = 0;
        for item in items.iter().take(GROUP_ITEMS) {
            if bytes >= GROUP_BYTES
                || item.site.log != first.log
                || item.site.table.id() != first.table.id()
            {
                break;
            }
            let (site, mutation) = (item.site, item.mutation);
            let waits = staged.is_empty();
            let Some(one) = self.stage((site, mutation), &indexes, waits, &guard) else {
                break;
            };
            // The others of the group are not counted yet.
            let grows = growth_of(&one.write, one.value.len());
            if grows > 0 && first.table.may_grow(grows + bytes_of(bytes)).is_err() {
                break;
            }
            bytes += one.write.key.len() + one.value.len();
            staged.push(one);
        }
        let judged = staged.len();
        if judged == 0 {
            return Err(NotApplied(1));
        }
        let mut entries = SmallVec::<[Entry<'_>; 2 * GROUP_ITEMS]>::new();
        for (one, item) in staged.iter().zip(&*items) {
            entries.push(Entry::Object(one.object()));
            if let Some(execution) = &item.execution {
                entries.push(Entry::Completion(execution.record(one.outcome.clone())));
            }
        }
        let class = class_of(&staged);
        self.check_class(first.log, first.table);
        let group = self.append(first.log, &entries, class, &guard);
        drop(entries);
        let Ok(group) = group else {
            return Err(NotApplied(judged));
        };
        let mut refs = group.pending().iter().copied();
        let mut next = || refs.next().expect("a reference for each entry");
        let mut applied = SmallVec::<[Applied; GROUP_ITEMS]>::new();
        for (one, item) in staged.drain(..).zip(&mut *items) {
            let len = Encoded::object_len(&one.object()) as u32;
            let Staged {
                mut write,
                room,
                value,
                outcome,
                ..
            } = one;
            let entry = next();
            if let Some(kept) = Kept::of(item.execution.take(), &outcome) {
                kept.appended(&group, next());
            }
            write.swing(room, entry, true);
            self.count_written(&write, value.len(), len);
            let marked = Some(write.marked(entry, false));
            applied.push(Applied { outcome, marked });
        }
        if self.expiry.take_new() {
            self.tend_horizon(first.log);
        }
        // No bucket is locked from here on: settling a slot locks its bucket.
        let mut flow = ControlFlow::Continue(());
        for applied in applied {
            if each(Ok(group.and(applied).into())).is_break() {
                flow = ControlFlow::Break(());
            }
        }
        for item in &items[..judged] {
            if let Some(index) = indexes.of(item.site.hash) {
                let table = item.site.table;
                index.resize(&guard, |entry| self.hash_of(table, entry, &guard));
            }
        }
        Ok((judged, flow))
    }

    /// Locks the bucket of a mutation and judges it; `None`, with nothing locked, for what is to be
    /// applied alone. `waits` says whether the lock may be waited for.
    fn stage<'s>(
        &'s self,
        (site, mutation): (Site<'s>, &'s Mutation<'s>),
        indexes: &'s Loaded<'s>,
        waits: bool,
        guard: &'s EpochGuard<'s>,
    ) -> Option<Staged<'s>> {
        let (table, key) = (site.table, mutation.key);
        if key.len() > KEY_MAX || self.space.is_stalled(site.log) {
            return None;
        }
        let index = indexes.of(site.hash)?;
        let bucket = match waits {
            true => index.lock(site.hash),
            false => index.try_lock(site.hash)?,
        };
        if table.indexes.is_closed() {
            return None;
        }
        let old = self.old_object(&bucket, (site.log, key), guard)?;
        let current = old.as_ref().map(|(_, object)| Current {
            version: object.version,
            value: object.value,
            deadline: object.deadline,
        });
        let now = self.time_for(mutation, current);
        let is_gone = current.is_some_and(|current| current.is_gone(now));
        let Verdict::Put(value, deadline, output) = judge(mutation, current, now) else {
            return None;
        };
        if output.bulk_len() > 0 || value.len() > self.kind.value_max() {
            return None;
        }
        let target = Target {
            log: site.log,
            table,
            hash: site.hash,
            key,
            now_s: site.now_s,
            old: old.map(|(old, _)| Old { is_gone, ..old }),
            deadline,
            least: mutation.change.least_version(),
            state: ObjectState::Plain,
            guard,
        };
        let write = Write { target, bucket };
        self.staged(write, value, output)
    }

    /// The object of the key; `Some(None)` when there is none, `None` when there is something else.
    fn old_object<'s>(
        &'s self,
        bucket: &BucketGuard<'_>,
        (log, key): (LogId, &[u8]),
        guard: &'s EpochGuard<'s>,
    ) -> Option<Option<(Old<'s>, Object<'s>)>> {
        let mut seen = None;
        let slot = bucket.find(|entry| {
            seen = self.see_key(entry, key, guard);
            seen.is_some()
        });
        let Some((slot, seen)) = slot.zip(seen) else {
            return Some(None);
        };
        let Seen::Object(object, len) = seen else {
            return None;
        };
        self.check_seen(slot.entry, &seen, guard);
        self.space.prefetch_mark(slot.entry);
        // STORE-5.
        if self
            .pending(slot, len, guard)
            .is_some_and(|pending| pending.log != log)
        {
            return None;
        }
        let old = Old {
            entry: slot.entry,
            len,
            object_bytes: key.len() + object.value.len(),
            version: object.version,
            graves: object.graves,
            known: object.version,
            deadline: object.deadline,
            is_gone: false,
        };
        Some(Some((old, object)))
    }

    fn staged<'s>(
        &self,
        write: Write<'s, 's>,
        value: NewValue<'s>,
        output: Output,
    ) -> Option<Staged<'s>> {
        let burial = match write.replaced() {
            None => Burial::NOTHING,
            Some(_) if !self.space.uses_graves(write.key.len()) => return None,
            Some(old) => self.dead_with(&write, old).in_graves(),
        };
        if !burial.tombstones().is_empty() {
            return None;
        }
        let version = self.next_version(&write);
        let outcome = Outcome::Written {
            version,
            replaced: write.told_version(),
            output,
        };
        Some(Staged {
            room: write.room().ok()?,
            write,
            value,
            version,
            burial,
            outcome,
        })
    }
}

/// No mutation of a group was applied; this number of the first are to be applied alone.
struct NotApplied(usize);

/// A new object counts for all it takes, and one that replaces another for what it grows by.
fn class_of(staged: &[Staged<'_>]) -> AppendClass {
    if staged.iter().any(|one| one.write.replaced().is_none()) {
        return AppendClass::Normal;
    }
    AppendClass::Replace {
        old_bytes: staged.iter().map(Staged::old_bytes).sum(),
        graves_bytes: staged
            .iter()
            .map(|one| one.burial.graves().encoded_len() as u32)
            .sum(),
    }
}
