//! The worker threads that clean, and drop what has expired.

use crate::embedded::error::BuildError;
use crate::embedded::expiry::Sweep;
use core::time::Duration;
use pluvio_env::Pace;
use pluvio_env::host::{Host, Worker};
use pluvio_log::{Cleaner, Corruption, Fatal};
use std::sync::Arc;

/// Pause of a cleaner that has just had work. An append that is refused for want of memory ends it.
const PAUSE_MIN: Duration = Duration::from_millis(1);
/// Pause of one that has found nothing for a while: the date that new objects get is as old as
/// this.
const PAUSE_MAX: Duration = Duration::from_millis(32);

/// Does one step, and a slice of the sweep. Gives whether there is more to do.
pub(crate) fn step(cleaner: &Cleaner, sweep: &Sweep, host: &dyn Host) -> bool {
    let is_more = sweep.step();
    has_more(cleaner.step(host.unix_seconds())) || is_more
}

fn has_more(stepped: Result<Pace, Corruption>) -> bool {
    match stepped {
        Ok(Pace::Again) => true,
        Ok(Pace::After(_) | Pace::Done) => false,
        Err(corruption) => Fatal::corrupt(&corruption),
    }
}

/// Starts `count` workers on one cleaner. `near` has the processors of each part of the memory:
/// where there is a worker for each part, they stay on the processors of theirs.
pub(crate) fn start(
    cleaner: &Arc<Cleaner>,
    sweep: &Arc<Sweep>,
    host: &Arc<dyn Host>,
    count: u16,
    near: &[Vec<usize>],
) -> Result<Vec<Worker>, BuildError> {
    let are_enough = usize::from(count) >= near.len();
    let mut near = near.iter().filter(|_| are_enough).cycle();
    let worker = |number: u16| {
        let (cleaner, sweep) = (Arc::clone(cleaner), Arc::clone(sweep));
        let own_host = Arc::clone(host);
        let mut pause = PAUSE_MIN;
        let work = move || {
            let is_more = sweep.step();
            if has_more(cleaner.step_as(number, own_host.unix_seconds())) || is_more {
                pause = PAUSE_MIN;
                Pace::Again
            } else {
                let now = pause;
                pause = (pause * 2).min(PAUSE_MAX);
                Pace::After(now)
            }
        };
        let processors = near.next().cloned().unwrap_or_default();
        host.work_near(format!("cleaner {number}"), processors, Box::new(work))
            .map_err(BuildError::CleanerThread)
    };
    (0..count).map(worker).collect()
}
