//! The buckets of a transaction: locked in one order, each once.

use super::StepAt;
use crate::engine::EngineError;
use crate::engine::apply::Target;
use crate::indexes::Loaded;
use pluvio_index::{Approach, BucketGuard, Index, Room};
use pluvio_units::TableId;
use std::collections::VecDeque;

/// The buckets of a transaction, locked.
pub(super) struct LockedBuckets<'l> {
    pub(super) guards: Vec<BucketGuard<'l>>,
    /// For each object, in the order of locking: its number, its guard and its place there.
    pub(super) order: Vec<(usize, usize, Approach)>,
}

/// The indexes of the tables of a transaction, as they were at one moment.
pub(super) struct Tables<'t>(Vec<(TableId, Loaded<'t>)>);

impl<'t> Tables<'t> {
    pub(super) fn load(steps: &[StepAt<'t>]) -> Result<Self, EngineError> {
        let mut tables: Vec<(TableId, Loaded<'t>)> = Vec::new();
        for step in steps {
            if tables.iter().all(|(id, _)| *id != step.table.id()) {
                let loaded = step.table.indexes.load().ok_or(EngineError::NotHere)?;
                tables.push((step.table.id(), loaded));
            }
        }
        Ok(Self(tables))
    }

    pub(super) fn index_of(&self, step: &StepAt<'_>) -> Result<&Index, EngineError> {
        let mut tables = self.0.iter();
        let table = tables.find(|(id, _)| *id == step.table.id());
        let index = table.and_then(|(_, loaded)| loaded.of(step.hash));
        index.ok_or(EngineError::NotHere)
    }
}

/// Locks the buckets of all objects.
pub(super) fn lock_all<'l>(
    steps: &[StepAt<'_>],
    objects: &[usize],
    indexes: &[&'l Index],
) -> LockedBuckets<'l> {
    loop {
        if let Some(locks) = try_lock_all(steps, objects, indexes) {
            return locks;
        }
        // An index was resized meanwhile.
        core::hint::spin_loop();
    }
}

fn try_lock_all<'l>(
    steps: &[StepAt<'_>],
    objects: &[usize],
    indexes: &[&'l Index],
) -> Option<LockedBuckets<'l>> {
    let mut order: Vec<(usize, usize, Approach)> = objects
        .iter()
        .enumerate()
        .map(|(object, step)| (object, 0, indexes[object].approach(steps[*step].hash)))
        .collect();
    // Indexes stay where they are while somebody has them locked.
    let place = |(object, _, approach): &(usize, usize, Approach)| {
        let index: *const Index = indexes[*object];
        (index.addr(), approach.block())
    };
    order.sort_by_key(place);
    let mut guards: Vec<BucketGuard<'l>> = Vec::with_capacity(order.len());
    let mut before = None;
    for one in &mut order {
        let here = place(one);
        let (object, at, approach) = one;
        let is_locked = before == Some(here)
            && guards
                .last_mut()
                .is_some_and(|last| last.turn_to(*approach));
        if !is_locked {
            // The same number, but another block: the index was resized in between.
            if before == Some(here) {
                return None;
            }
            guards.push(indexes[*object].lock_in_order(*approach)?);
        }
        before = Some(here);
        *at = guards.len() - 1;
    }
    Some(LockedBuckets { guards, order })
}

/// Room for the slots of new objects, by guard, in the order in which they are filled.
pub(super) struct Rooms<'l>(pub(super) Vec<VecDeque<Room<'l>>>);

impl<'l> Rooms<'l> {
    /// The room for the next object of a guard, if it has no slot.
    pub(super) fn next_for(&mut self, guard: usize, target: &Target<'_>) -> Option<Room<'l>> {
        match target.old {
            Some(_) => None,
            None => self.0[guard].pop_front(),
        }
    }
}
