//! Is there an order? A bounded search for a linearization of one key's history (Wing and Gong,
//! with the memory of Lowe: a set of operations done and the object after them is tried once).
//!
//! Every answered operation takes its place between its beginning and its end; operations whose
//! outcome is unknown may take a place at any time after their beginning, or never, but not twice.
//!
//! Not here: histories of several keys; operations are on one key each, and an order for each key
//! is an order for all (locality of linearizability).

use crate::check::register::Object;
use crate::history::{Action, Outcome, Plain, Record};
use crate::random::mix;
use pluvio_units::FixedSet;

/// What the search found.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Linear {
    /// There is an order.
    Yes,
    /// There is none. The records (by index) that the longest attempt could not place, the
    /// earliest end first.
    No {
        /// How many answered operations the longest attempt placed.
        placed: usize,
        /// The object after them.
        object: Object,
        /// Answered operations that were due next.
        due: Vec<usize>,
    },
    /// The limit of steps was reached before an answer.
    Undecided,
}

/// An operation that has, or may have, a place in the order.
struct Piece {
    record: usize,
    action: Action,
    outcome: Outcome,
    invoked: u64,
    /// The last tick at which it may take effect.
    end: u64,
    /// Whether it must have a place.
    needed: bool,
    /// A random number: the exclusive or of those done names the set of them.
    mark: u64,
}

struct Search {
    pieces: Vec<Piece>,
    /// Pieces that are not needed, ascending.
    optional: Vec<usize>,
    done: Vec<bool>,
    needed_left: usize,
    /// Names the set of pieces done.
    marks: u64,
    seen: FixedSet<(u64, Object)>,
    best: (usize, Object, Vec<usize>),
    needed: usize,
}

/// One level of the search.
struct Level {
    /// The piece that led here.
    piece: usize,
    object: Object,
    candidates: Vec<usize>,
    next: usize,
    /// The latest beginning among pieces done.
    invoked_max: u64,
    /// No needed piece before this one is left.
    first: usize,
}

/// Searches an order for the records of one key, in at most `steps_max` steps.
#[must_use]
pub fn linearize(records: &[Record], steps_max: u64) -> Linear {
    let pieces = pieces(records);
    let needed = pieces.iter().filter(|p| p.needed).count();
    let mut search = Search {
        optional: (0..pieces.len()).filter(|i| !pieces[*i].needed).collect(),
        done: vec![false; pieces.len()],
        pieces,
        needed_left: needed,
        marks: 0,
        seen: FixedSet::default(),
        best: (0, Object::new(), Vec::new()),
        needed,
    };
    search.run(steps_max)
}

fn pieces(records: &[Record]) -> Vec<Piece> {
    let mut pieces = Vec::with_capacity(records.len());
    for (index, record) in records.iter().enumerate() {
        let unknown = Piece {
            record: index,
            action: record.action,
            outcome: Outcome::Unknown,
            invoked: record.invoked,
            end: u64::MAX,
            needed: false,
            mark: 0,
        };
        match record.outcome {
            Outcome::NotDone => {}
            Outcome::Unknown => {
                if !record.action.is_read() {
                    pieces.push(unknown);
                }
            }
            outcome => pieces.push(Piece {
                outcome,
                end: record.returned,
                needed: true,
                ..unknown
            }),
        }
    }
    pieces.sort_by_key(|p| p.invoked);
    for (piece, number) in pieces.iter_mut().zip(1..) {
        piece.mark = mix(number);
    }
    pieces
}

impl Search {
    fn run(&mut self, steps_max: u64) -> Linear {
        let mut levels = vec![self.level(usize::MAX, Object::new(), 0, 0)];
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
            let Some(object) = level.object.after(piece.action, piece.outcome) else {
                continue;
            };
            let marks = self.marks ^ piece.mark;
            if !self.seen.insert((marks, object)) {
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
    fn level(&mut self, piece: usize, object: Object, invoked_max: u64, first: usize) -> Level {
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
        // the right one. Reads without a version before them, because one that fits changes
        // nothing; changes without a version after them. Unknown ones only when nothing else helps.
        candidates.sort_by_key(|i| {
            let piece = &self.pieces[*i];
            let version = match piece.outcome {
                Outcome::Found { version, .. }
                | Outcome::Wrote { version, .. }
                | Outcome::Added { version, .. }
                | Outcome::Rejected { version }
                | Outcome::Deleted { version } => version,
                Outcome::Plain(Plain::Found { .. } | Plain::Refused)
                | Outcome::Missing
                | Outcome::NotDone
                | Outcome::Unknown => 0,
                Outcome::Plain(
                    Plain::Wrote | Plain::Replaced { .. } | Plain::Deleted | Plain::Added { .. },
                ) => u64::MAX,
            };
            (!piece.needed, version, piece.end)
        });
        let placed = self.needed - self.needed_left;
        if placed >= self.best.0 {
            let due = candidates.iter().filter(|i| self.pieces[**i].needed);
            let due = due.map(|i| self.pieces[*i].record).collect();
            self.best = (placed, object, due);
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
