//! A store whose log goes to a sink: the thread that brings it there, and waiting for it (EMBED-4).
//! Reads do not wait: they show what was written.

use crate::embedded::error::BuildError;
use crate::engine::{Applied, Engine};
use crate::table::EngineTable;
use core::time::Duration;
use pluvio_env::Pace;
use pluvio_env::host::{Host, Worker};
use pluvio_log::{Appended, LogSpace, ReplicaSink, SinkDriver, SinkError};
use pluvio_units::{LogId, LogPosition};
use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

/// Pause after a failure of the sink.
const PAUSE_AFTER_FAILURE: Duration = Duration::from_millis(100);

/// The sink of a store, with its thread.
pub(crate) struct Sink {
    worker: Worker,
    progress: Arc<Progress>,
    deletions: Arc<Deletions>,
}

#[derive(Default)]
struct Progress {
    state: Mutex<State>,
    changed: Condvar,
}

/// Deletions whose tombstones are in the index until they are durable. As many as there are
/// tombstones that the sink does not have: log memory bounds them.
#[derive(Default)]
pub(crate) struct Deletions(Mutex<VecDeque<(Arc<EngineTable>, Appended<Applied>)>>);

impl Deletions {
    /// Keeps a deletion until its tombstone is durable.
    pub(crate) fn keep(&self, table: &Arc<EngineTable>, appended: Appended<Applied>) {
        self.waiting().push_back((Arc::clone(table), appended));
    }

    /// Takes durable tombstones out of the index.
    fn settle(&self, engine: &Engine) {
        loop {
            let Some((table, appended)) = self.waiting().pop_front() else {
                return;
            };
            match engine.space().confirm(appended) {
                Ok(durable) => {
                    let _outcome = engine.settle(&table, durable);
                }
                Err(appended) => {
                    self.waiting().push_front((table, appended));
                    return;
                }
            }
        }
    }

    fn waiting(&self) -> MutexGuard<'_, VecDeque<(Arc<EngineTable>, Appended<Applied>)>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[derive(Default)]
struct State {
    /// How often the sink failed, and the last reason.
    failures: u64,
    last: Option<SinkError>,
    /// The thread has ended: the sink panicked.
    ended: bool,
}

/// Tells those who wait when the thread ends, however it does.
struct Ending(Arc<Progress>);

impl Drop for Ending {
    fn drop(&mut self) {
        self.0.state().ended = true;
        self.0.changed.notify_all();
    }
}

impl Progress {
    fn state(&self) -> MutexGuard<'_, State> {
        // Each change is one assignment: nothing is half done after a panic.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Tells those who wait how a step ended.
    fn stepped(&self, failure: Option<SinkError>) {
        let mut state = self.state();
        if let Some(failure) = failure {
            state.failures += 1;
            state.last = Some(failure);
        }
        drop(state);
        self.changed.notify_all();
    }
}

impl Sink {
    /// Starts the thread. `cleaners` are woken when the sink got something.
    pub(crate) fn start(
        engine: &Arc<Engine>,
        host: &Arc<dyn Host>,
        sink: Box<dyn ReplicaSink>,
        cleaners: Arc<[Worker]>,
        deletions: Arc<Deletions>,
    ) -> Result<Self, BuildError> {
        let mut driver = SinkDriver::new(Arc::clone(engine.space()), sink);
        let progress = Arc::<Progress>::default();
        let ending = Ending(Arc::clone(&progress));
        let (engine, settled) = (Arc::clone(engine), Arc::clone(&deletions));
        let work = move || {
            let stepped = driver.step();
            ending.0.stepped(stepped.clone().err());
            settled.settle(&engine);
            match stepped {
                Ok(Pace::Again) => {
                    cleaners.iter().for_each(Worker::wake);
                    Pace::Again
                }
                Ok(pace @ (Pace::After(_) | Pace::Done)) => pace,
                Err(_) => Pace::After(PAUSE_AFTER_FAILURE),
            }
        };
        let worker = host
            .work("sink".into(), Box::new(work))
            .map_err(BuildError::SinkThread)?;
        Ok(Self {
            worker,
            progress,
            deletions,
        })
    }

    pub(crate) fn wake(&self) {
        self.worker.wake();
    }

    /// Keeps a deletion until its tombstone is durable.
    pub(crate) fn deleted(&self, table: &Arc<EngineTable>, appended: Appended<Applied>) {
        self.deletions.keep(table, appended);
    }

    /// Waits until the sink has what is appended now, or has failed since.
    pub(crate) fn sync(&self, space: &LogSpace) -> Result<(), SinkError> {
        let wanted: Vec<(LogId, LogPosition)> = space
            .logs()
            .map(|log| (log, space.end_position(log)))
            .collect();
        let durable = || {
            let mut all = wanted.iter();
            all.all(|(log, position)| space.is_durable(*log, *position))
        };
        if durable() {
            return Ok(());
        }
        let mut state = self.progress.state();
        let before = state.failures;
        self.worker.wake();
        // Positions move before the lock is taken to tell of them, so that none is missed between
        // look and wait.
        while !durable() {
            match &state.last {
                Some(failure) if state.failures > before => return Err(failure.clone()),
                Some(_) | None if state.ended => {
                    return Err(SinkError("its thread has ended by a panic".into()));
                }
                Some(_) | None => {}
            }
            let waited = self.progress.changed.wait(state);
            state = waited.unwrap_or_else(PoisonError::into_inner);
        }
        Ok(())
    }
}
