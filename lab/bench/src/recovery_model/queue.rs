//! Time, events in their order, and what serves one job after the other.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// Nanoseconds since the crash.
pub(super) type Time = u64;

/// Nanoseconds of this many seconds.
pub(super) fn nanoseconds(seconds: f64) -> Time {
    (seconds * 1e9).round() as Time
}

/// Seconds of this many nanoseconds.
pub(super) fn seconds(time: Time) -> f64 {
    time as f64 / 1e9
}

/// Events to come. Those of one moment happen in the order in which they were told of.
pub(super) struct Agenda<E> {
    heap: BinaryHeap<Reverse<(Time, u64, E)>>,
    told: u64,
}

impl<E: Ord> Agenda<E> {
    pub(super) fn new() -> Self {
        Self {
            heap: BinaryHeap::new(),
            told: 0,
        }
    }

    pub(super) fn at(&mut self, time: Time, event: E) {
        self.told += 1;
        self.heap.push(Reverse((time, self.told, event)));
    }

    pub(super) fn next(&mut self) -> Option<(Time, E)> {
        let Reverse((time, _, event)) = self.heap.pop()?;
        Some((time, event))
    }
}

/// Some alike units, each of which serves one job after the other: a disk, one direction of a link,
/// the processors of a server. Jobs come in the order of time.
#[derive(Clone, Debug)]
pub(super) struct Station {
    /// When each unit is free.
    free: Vec<Time>,
    /// How long all units worked.
    pub(super) busy: Time,
}

impl Station {
    pub(super) fn new(units: usize) -> Self {
        Self {
            free: vec![0; units],
            busy: 0,
        }
    }

    /// Serves a job that comes at `now` and is not begun before `from`; gives when it is done.
    pub(super) fn serve_from(&mut self, now: Time, from: Time, takes: Time) -> Time {
        let free = self.free.iter_mut().min().expect("a station has a unit");
        let end = (*free).max(now).max(from) + takes;
        *free = end;
        self.busy += takes;
        end
    }

    /// Serves a job that comes at `now`; gives when it is done.
    pub(super) fn serve(&mut self, now: Time, takes: Time) -> Time {
        self.serve_from(now, now, takes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_happen_in_the_order_of_time_and_then_of_telling() {
        let mut agenda = Agenda::new();
        for (time, event) in [(5, 'c'), (1, 'b'), (5, 'a'), (0, 'z')] {
            agenda.at(time, event);
        }
        let order: Vec<_> = std::iter::from_fn(|| agenda.next()).collect();
        assert_eq!(order, [(0, 'z'), (1, 'b'), (5, 'c'), (5, 'a')]);
    }

    #[test]
    fn units_work_side_by_side_and_jobs_wait_for_the_first_free_one() {
        let mut two = Station::new(2);
        let ends = [10, 20, 5, 5].map(|takes| two.serve(0, takes));
        assert_eq!(ends, [10, 20, 15, 20]);
        assert_eq!(two.serve(100, 1), 101);
        assert_eq!(two.serve_from(100, 200, 1), 201);
        assert_eq!(two.busy, 42);
    }
}
