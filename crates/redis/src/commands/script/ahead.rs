//! How many keys a script is read ahead.
//!
//! 1. A script that wants an object that was not read goes on as if it were absent.
//! 2. The rest of that run counts for nothing. But it tells which objects may be wanted next.
//! 3. They are read together with the first one, and the script runs anew.
//!
//! A wrong guess costs a read: the commit compares only objects that a command has touched.

/// Most objects that are read ahead at a time.
const AHEAD_MAX: usize = 256;

/// See the module.
#[derive(Debug)]
pub(super) struct Ahead {
    /// How many may be guessed by the next attempt.
    next: usize,
    /// How many were read.
    keys: usize,
    /// Beyond this many, none is guessed.
    keys_max: usize,
}

impl Ahead {
    /// Guesses nothing at first.
    pub(super) fn new(keys_max: usize) -> Self {
        Self {
            next: 0,
            keys: 0,
            keys_max,
        }
    }

    /// How many may be guessed by the next attempt.
    pub(super) fn next(&self) -> usize {
        let is_over = self.keys >= self.keys_max;
        if is_over { 0 } else { self.next }
    }

    /// How many were wanted, guesses among them.
    pub(super) fn keys(&self) -> usize {
        self.keys
    }

    /// An attempt wanted this number of keys. If all earlier guesses were used by now, the next
    /// attempt may guess twice as many: a script then needs few attempts. Else half as many.
    pub(super) fn wanted(&mut self, keys: usize, unused: usize) {
        self.keys += keys;
        self.next = match unused {
            0 => (self.next * 2).clamp(1, AHEAD_MAX),
            _ => self.next / 2,
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn right_guesses_allow_more_and_wrong_ones_less() {
        let mut ahead = Ahead::new(20);
        let mut seen = Vec::new();
        for (keys, unused) in [
            (1, 0),
            (2, 0),
            (3, 0),
            (5, 1),
            (3, 2),
            (2, 0),
            (2, 0),
            (2, 0),
        ] {
            seen.push(ahead.next());
            ahead.wanted(keys, unused);
        }
        assert_eq!(seen, [0, 1, 2, 4, 2, 1, 2, 4]);
        assert_eq!(ahead.next(), 0, "{ahead:?}");
    }
}
