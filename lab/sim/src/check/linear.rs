//! Is there an order? A bounded search for a linearization of one key's history (Wing and Gong,
//! with the memory of Lowe: a set of operations done and the object after them is tried once).
//!
//! Every answered operation takes its place between its beginning and its end; operations whose
//! outcome is unknown may take a place at any time after their beginning, or never, but not twice.
//!
//! Not here: histories of several keys; operations are on one key each, and an order for each key
//! is an order for all (locality of linearizability).

use crate::check::register::Object;
use crate::history::{Outcome, Plain, Record};
use crate::random::mix;
use core::hash::Hash;
use pluvio_units::FixedSet;

/// An operation on one object, as the search needs it.
pub trait Operation {
    /// The object at one moment; the default is a key that nobody has used yet.
    type Object: Clone + Eq + Hash + Default;

    /// When it began, and when its client had its answer or gave up.
    fn times(&self) -> (u64, u64);

    /// What is known of its end.
    fn end(&self) -> End;

    /// The object after it; `None`: it cannot have ended so here.
    fn after(&self, object: &Self::Object) -> Option<Self::Object>;
}

/// The end of an operation, as far as it is known.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum End {
    /// Its answer knows this version, which says roughly where its place is.
    Answered(u64),
    /// It may take effect at any time after its beginning, or never.
    Unknown,
    /// It has no effect and tells nothing.
    None,
}

impl Operation for Record {
    type Object = Object;

    fn times(&self) -> (u64, u64) {
        (self.invoked, self.returned)
    }

    fn end(&self) -> End {
        match self.outcome {
            Outcome::Found { version, .. }
            | Outcome::Seen { version }
            | Outcome::Wrote { version, .. }
            | Outcome::Added { version, .. }
            | Outcome::Rejected { version }
            | Outcome::Deleted { version } => End::Answered(version),
            // Reads without a version come before others, because one that fits changes nothing;
            // changes without a version after them.
            Outcome::Plain(Plain::Found { .. } | Plain::Refused) | Outcome::Missing => {
                End::Answered(0)
            }
            Outcome::Plain(
                Plain::Wrote | Plain::Replaced { .. } | Plain::Deleted | Plain::Added { .. },
            ) => End::Answered(u64::MAX),
            Outcome::Unknown if !self.action.is_read() => End::Unknown,
            Outcome::Unknown | Outcome::NotDone => End::None,
        }
    }

    fn after(&self, object: &Object) -> Option<Object> {
        object.after(self.action, self.outcome)
    }
}

/// What the search found.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Linear<O = Object> {
    /// There is an order.
    Yes,
    /// There is none. The operations (by index) that the longest attempt could not place, the
    /// earliest end first.
    No {
        /// How many answered operations the longest attempt placed.
        placed: usize,
        /// The object after them.
        object: O,
        /// Answered operations that were due next.
        due: Vec<usize>,
    },
    /// The limit of steps was reached before an answer.
    Undecided,
}

/// An operation that has, or may have, a place in the order.
struct Piece<'a, P> {
    /// Its place among all operations.
    index: usize,
    operation: &'a P,
    invoked: u64,
    /// The last tick at which it may take effect.
    end: u64,
    /// The version that its answer knows.
    version: u64,
    /// Whether it must have a place.
    needed: bool,
    /// A random number: the exclusive or of those done names the set of them.
    mark: u64,
}

struct Search<'a, P: Operation> {
    pieces: Vec<Piece<'a, P>>,
    /// Pieces that are not needed, ascending.
    optional: Vec<usize>,
    done: Vec<bool>,
    needed_left: usize,
    /// Names the set of pieces done.
    marks: u64,
    seen: FixedSet<(u64, P::Object)>,
    best: (usize, P::Object, Vec<usize>),
    needed: usize,
}

/// One level of the search.
struct Level<O> {
    /// The piece that led here.
    piece: usize,
    object: O,
    candidates: Vec<usize>,
    next: usize,
    /// The latest beginning among pieces done.
    invoked_max: u64,
    /// No needed piece before this one is left.
    first: usize,
}

/// Searches an order for the operations on one key, in at most `steps_max` steps.
#[must_use]
pub fn linearize<P: Operation>(operations: &[P], steps_max: u64) -> Linear<P::Object> {
    let pieces = pieces(operations);
    let needed = pieces.iter().filter(|p| p.needed).count();
    let mut search = Search {
        optional: (0..pieces.len()).filter(|i| !pieces[*i].needed).collect(),
        done: vec![false; pieces.len()],
        pieces,
        needed_left: needed,
        marks: 0,
        seen: FixedSet::default(),
        best: (0, P::Object::default(), Vec::new()),
        needed,
    };
    search.run(steps_max)
}

fn pieces<P: Operation>(operations: &[P]) -> Vec<Piece<'_, P>> {
    let mut pieces = Vec::with_capacity(operations.len());
    for (index, operation) in operations.iter().enumerate() {
        let (invoked, returned) = operation.times();
        let (version, end, needed) = match operation.end() {
            End::None => continue,
            End::Unknown => (0, u64::MAX, false),
            End::Answered(version) => (version, returned, true),
        };
        pieces.push(Piece {
            index,
            operation,
            invoked,
            end,
            version,
            needed,
            mark: 0,
        });
    }
    pieces.sort_by_key(|p| p.invoked);
    for (piece, number) in pieces.iter_mut().zip(1..) {
        piece.mark = mix(number);
    }
    pieces
}

impl<P: Operation> Search<'_, P> {
    fn run(&mut self, steps_max: u64) -> Linear<P::Object> {
        let mut levels = vec![self.level(usize::MAX, P::Object::default(), 0, 0)];
        let mut steps = 0;
        while let Some(level) = levels.last_mut() {
            if self.needed_left == 0 {
                return Linear::Yes;
            }
            let Some(candidate) = level.candidates.get(level.next).copied() else {
                let ended = levels.pop().expect("there is a last level");
                if ended.piece != usize::MAX {
                    self.set(ended.piece, false);
                }
                continue;
            };
            level.next += 1;
            steps += 1;
            if steps > steps_max {
                return Linear::Undecided;
            }
            let piece = &self.pieces[candidate];
            let Some(object) = piece.operation.after(&level.object) else {
                continue;
            };
            let marks = self.marks ^ piece.mark;
            if !self.seen.insert((marks, object.clone())) {
                continue;
            }
            let invoked_max = level.invoked_max.max(piece.invoked);
            let first = level.first;
            self.set(candidate, true);
            let next = self.level(candidate, object, invoked_max, first);
            levels.push(next);
        }
        let (placed, object, due) = std::mem::take(&mut self.best);
        Linear::No {
            placed,
            object,
            due,
        }
    }

    fn set(&mut self, piece: usize, done: bool) {
        self.done[piece] = done;
        let piece = &self.pieces[piece];
        self.marks ^= piece.mark;
        if piece.needed {
            self.needed_left = if done {
                self.needed_left - 1
            } else {
                self.needed_left + 1
            };
        }
    }

    /// What may come next: pieces that began before the first end of a needed piece that is left.
    fn level(
        &mut self,
        piece: usize,
        object: P::Object,
        invoked_max: u64,
        first: usize,
    ) -> Level<P::Object> {
        let is_left = |index: &usize| self.pieces[*index].needed && !self.done[*index];
        let first = (first..self.pieces.len())
            .find(is_left)
            .unwrap_or(self.pieces.len());
        let mut end = u64::MAX;
        let mut last = first;
        while let Some(piece) = self.pieces.get(last)
            && piece.invoked < end
        {
            if piece.needed && !self.done[last] {
                end = end.min(piece.end);
            }
            last += 1;
        }
        let earlier = self.optional.iter().copied().take_while(|i| *i < first);
        let mut candidates: Vec<usize> = earlier
            .chain(first..last)
            .filter(|i| !self.done[*i] && self.pieces[*i].end >= invoked_max)
            .collect();
        // Answered operations first, in the order of the versions they know: that is nearly always
        // the right one. Unknown ones only when nothing else helps.
        candidates.sort_by_key(|i| {
            let piece = &self.pieces[*i];
            (!piece.needed, piece.version, piece.end)
        });
        let placed = self.needed - self.needed_left;
        if placed >= self.best.0 {
            let due = candidates.iter().filter(|i| self.pieces[**i].needed);
            let due = due.map(|i| self.pieces[*i].index).collect();
            self.best = (placed, object.clone(), due);
        }
        Level {
            piece,
            object,
            candidates,
            next: 0,
            invoked_max,
            first,
        }
    }
}
