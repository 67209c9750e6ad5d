//! The pace of work that is done in steps.

use core::time::Duration;

/// The wish of a piece of work after one step. Its driver obeys, and may call sooner. The smaller
/// of two paces comes sooner.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
#[must_use]
pub enum Pace {
    /// There is more to do: call again as soon as others had their turn.
    Again,
    /// There is nothing to do now. Call again after this time, or after an event that the work
    /// waits for.
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
