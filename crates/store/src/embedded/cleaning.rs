//! The worker threads that clean.

use crate::embedded::error::BuildError;
use core::time::Duration;
use pluvio_host::{Host, Pace, Worker};
use pluvio_log::{Cleaner, CleanerPace, Fatal};
use std::sync::Arc;

/// Pause of a cleaner that has just had work. An append that is refused for want of memory ends it.
const PAUSE_MIN: Duration = Duration::from_millis(1);
/// Pause of one that has found nothing for a while: the date that new objects get is as old as this.
const PAUSE_MAX: Duration = Duration::from_millis(32);

/// Does one step. Gives whether there is more to do.
pub(crate) fn step(cleaner: &Cleaner, host: &dyn Host) -> bool {
    match cleaner.step(host.unix_seconds()) {
        Ok(CleanerPace::Again) => true,
        Ok(CleanerPace::Idle) => false,
        Err(corruption) => Fatal::corrupt(&corruption),
    }
}

/// Starts `count` workers on one cleaner.
pub(crate) fn start(
    cleaner: &Arc<Cleaner>,
    host: &Arc<dyn Host>,
    count: u16,
) -> Result<Vec<Worker>, BuildError> {
    let worker = |number: u16| {
        let (cleaner, own_host) = (Arc::clone(cleaner), Arc::clone(host));
        let mut pause = PAUSE_MIN;
        let work = move || {
            if step(&cleaner, &*own_host) {
                pause = PAUSE_MIN;
                Pace::Again
            } else {
                let now = pause;
                pause = (pause * 2).min(PAUSE_MAX);
                Pace::After(now)
            }
        };
        host.work(format!("cleaner {number}"), Box::new(work))
            .map_err(BuildError::CleanerThread)
    };
    (0..count).map(worker).collect()
}
