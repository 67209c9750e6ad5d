//! What work that is done in steps wants between two of them.

use core::time::Duration;

/// What work wants after one step: whoever drives it obeys, and may call sooner. The smaller of two
/// is the one that comes sooner.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
#[must_use]
pub enum Pace {
    /// There is more to do: call again as soon as others had their turn.
    Again,
    /// There is nothing to do now: call again after this time, or when something has happened that
    /// the work waits for.
    After(Duration),
    /// Never call again.
    Done,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_smaller_pace_comes_sooner() {
        let [short, long] = [1, 2].map(|ms| Pace::After(Duration::from_millis(ms)));
        let mut paces = [Pace::Done, long, short, Pace::Again];
        paces.sort();
        assert_eq!(paces, [Pace::Again, short, long, Pace::Done]);
    }
}
