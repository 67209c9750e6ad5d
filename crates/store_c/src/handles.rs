//! Handles: numbers that stand for stores, tables, views and iterators (CABI-1).
//!
//! ```text
//! number   | generation 44 bits | place 20 bits |      0 is no handle
//! ```
//!
//! A place is used again with a larger generation. Looking a handle up waits for no other thread:
//! `arc_swap` keeps what was loaded alive until its guard is dropped. Giving and taking handles
//! locks a mutex.

use crate::code::{Code, Failure};
use arc_swap::{ArcSwapOption, Guard};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

/// Places of one piece, and pieces: a million handles of one kind at a time.
const PIECE: usize = 1 << 10;
const PIECES: usize = 1 << 10;
const PLACE_BITS: u32 = 20;

/// What a handle stands for.
pub(crate) struct Held<T> {
    handle: u64,
    pub(crate) value: T,
}

/// A place, and what is there.
type Place<T> = ArcSwapOption<Held<T>>;

/// What was looked up: it lives at least as long as this.
pub(crate) type Found<T> = Guard<Option<Arc<Held<T>>>>;

/// All handles of one kind.
pub(crate) struct Handles<T> {
    /// For messages.
    kind: &'static str,
    pieces: [OnceLock<Box<[Place<T>]>>; PIECES],
    state: Mutex<State>,
}

struct State {
    free: Vec<usize>,
    used: usize,
    generation: u64,
}

impl<T> Handles<T> {
    pub(crate) const fn new(kind: &'static str) -> Self {
        Self {
            kind,
            pieces: [const { OnceLock::new() }; PIECES],
            state: Mutex::new(State {
                free: Vec::new(),
                used: 0,
                generation: 0,
            }),
        }
    }

    /// Gives a handle.
    pub(crate) fn give(&self, value: T) -> Result<u64, Failure> {
        let mut state = self.state();
        let place = match state.free.pop() {
            Some(place) => place,
            None if state.used < PIECE * PIECES => {
                state.used += 1;
                state.used - 1
            }
            None => {
                let message = format!("more than {} {}s are open", PIECE * PIECES, self.kind);
                return Err(Failure::new(Code::PluvioNoResources, message));
            }
        };
        state.generation += 1;
        let handle = (state.generation << PLACE_BITS) | place as u64;
        let piece = self.pieces[place / PIECE].get_or_init(|| {
            let places = (0..PIECE).map(|_| Place::empty());
            places.collect()
        });
        piece[place % PIECE].store(Some(Arc::new(Held { handle, value })));
        Ok(handle)
    }

    /// What a handle stands for; `value` of the result says.
    pub(crate) fn find(&self, handle: u64) -> Result<Found<T>, Failure> {
        if let Some(place) = self.place(handle) {
            let found = place.load();
            if found.as_ref().is_some_and(|held| held.handle == handle) {
                return Ok(found);
            }
        }
        Err(self.bad())
    }

    /// Takes a handle back. Calls that found it before go on.
    pub(crate) fn take(&self, handle: u64) -> Result<Arc<Held<T>>, Failure> {
        let mut state = self.state();
        let place = self.place(handle).ok_or_else(|| self.bad())?;
        let found = place.load_full().filter(|held| held.handle == handle);
        let found = found.ok_or_else(|| self.bad())?;
        place.store(None);
        state.free.push(place_of(handle));
        Ok(found)
    }

    fn place(&self, handle: u64) -> Option<&Place<T>> {
        let place = place_of(handle);
        Some(&self.pieces[place / PIECE].get()?[place % PIECE])
    }

    fn bad(&self) -> Failure {
        let message = format!("this is no open {}", self.kind);
        Failure::new(Code::PluvioBadHandle, message)
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // At worst a place is lost by a panic half way.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn place_of(handle: u64) -> usize {
    (handle & ((1 << PLACE_BITS) - 1)) as usize
}

/// The value of what [`Handles::find`] found.
pub(crate) fn value<T>(found: &Found<T>) -> &T {
    &found
        .as_ref()
        .expect("`find` gives only what is there")
        .value
}

#[cfg(test)]
mod tests {
    use super::*;

    // shows: CABI-1
    #[test]
    fn a_number_is_given_once_and_others_are_refused() {
        let handles: Handles<u32> = Handles::new("number");
        let many: Vec<u64> = (0..3000).filter_map(|n| handles.give(n).ok()).collect();
        assert_eq!(many.len(), 3000);
        assert_eq!(*value(&handles.find(many[2999]).unwrap()), 2999);
        let first = many[0];
        let before = handles.find(first).unwrap();
        handles.take(first).unwrap();
        assert_eq!(*value(&before), 0, "a call that found it goes on");
        let again = handles.give(7).unwrap();
        assert_eq!(place_of(again), place_of(first));
        for wrong in [0, 1, first, u64::MAX, again + (1 << PLACE_BITS)] {
            let refused = handles.find(wrong).err().map(|why| why.code);
            assert_eq!(refused, Some(Code::PluvioBadHandle), "{wrong}");
            assert!(handles.take(wrong).is_err());
        }
        assert_eq!(*value(&handles.find(again).unwrap()), 7);
    }
}
