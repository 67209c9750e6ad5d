//! Positions that something rests on.

use crate::{LogId, LogPosition};

/// Positions that must be durable before something may be told: one in each log that it rests on.
/// Nearly everything rests on one log, which takes no memory of its own.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Waits {
    log: LogId,
    position: LogPosition,
    /// Positions in other logs. Boxed: nearly nothing has them.
    #[allow(clippy::box_collection)]
    more: Option<Box<Vec<(LogId, LogPosition)>>>,
}

impl Waits {
    /// Waits for this position of one log.
    #[must_use]
    #[inline]
    pub fn new(log: LogId, position: LogPosition) -> Self {
        Self {
            log,
            position,
            more: None,
        }
    }

    /// The first of the logs, with its position.
    #[must_use]
    #[inline]
    pub fn first(&self) -> (LogId, LogPosition) {
        (self.log, self.position)
    }

    /// All of them: one position in each log.
    pub fn iter(&self) -> impl Iterator<Item = (LogId, LogPosition)> + '_ {
        let more = self.more.iter().flat_map(|more| more.iter().copied());
        core::iter::once((self.log, self.position)).chain(more)
    }

    /// Waits for this position, too.
    pub fn also(&mut self, log: LogId, position: LogPosition) {
        if log == self.log {
            self.position = self.position.max(position);
            return;
        }
        let more = self.more.get_or_insert_default();
        match more.iter_mut().find(|(known, _)| *known == log) {
            Some((_, known)) => *known = (*known).max(position),
            None => more.push((log, position)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::SegmentId;

    #[test]
    fn of_each_log_the_last_position_is_waited_for() {
        let at = |offset| LogPosition {
            segment: SegmentId(7),
            offset,
        };
        let mut waits = Waits::new(LogId(1), at(10));
        waits.also(LogId(1), at(5));
        waits.also(LogId(2), at(3));
        waits.also(LogId(2), at(8));
        waits.also(LogId(1), at(20));
        let all: Vec<_> = waits.iter().collect();
        assert_eq!(all, [(LogId(1), at(20)), (LogId(2), at(8))]);
    }
}
