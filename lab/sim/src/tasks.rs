//! `env::Tasks`: tasks, background workers (one event per step) and blocking work.

use crate::clock::nanos;
use crate::executor::{Action, Shared, locked};
use crate::queue::Event;
use crate::slab::Key;
use crate::state::{Current, Owner, State};
use crate::trace::Fact;
use core::task::{Poll, Waker};
use pluvio_env::{BoxFuture, Pace, TaskHandle, Tasks};
use pluvio_units::CoreId;
use std::sync::{Arc, Mutex};

/// A background worker.
pub(crate) struct Worker {
    pub(crate) owner: Owner,
    pub(crate) name: &'static str,
    /// `None` while a step runs.
    step: Option<Box<dyn FnMut() -> Pace + Send>>,
}

/// Blocking work that has not run yet.
pub(crate) struct Job {
    pub(crate) owner: Owner,
    work: Box<dyn FnOnce() + Send>,
    done: Arc<JobDone>,
}

/// Whether blocking work has run, and who waits for it.
#[derive(Default)]
pub(crate) struct JobDone(Mutex<(bool, Option<Waker>)>);

impl JobDone {
    pub(crate) fn finish(&self) {
        let mut done = locked(&self.0);
        done.0 = true;
        let waker = done.1.take();
        drop(done);
        if let Some(waker) = waker {
            waker.wake();
        }
    }

    fn poll(&self, waker: &Waker) -> Poll<()> {
        let mut done = locked(&self.0);
        if done.0 {
            return Poll::Ready(());
        }
        let old = done.1.replace(waker.clone());
        drop(done);
        drop(old);
        Poll::Pending
    }
}

pub(crate) struct SimTasks {
    pub(crate) shared: Arc<Shared>,
    pub(crate) owner: Owner,
    pub(crate) cores: u16,
}

impl Tasks for SimTasks {
    fn cores(&self) -> u16 {
        self.cores
    }

    fn spawn_on(
        &self,
        core: CoreId,
        name: &'static str,
        task: BoxFuture<'static, ()>,
    ) -> TaskHandle {
        assert!(
            core.0 < self.cores,
            "task {name} wants core {core} of {}",
            self.cores
        );
        let key = self.shared.spawn(self.owner, core.0, name, task);
        let shared = Arc::clone(&self.shared);
        TaskHandle::new(move || shared.abort(key))
    }

    fn background(&self, name: &'static str, step: Box<dyn FnMut() -> Pace + Send>) -> TaskHandle {
        let mut state = self.shared.lock();
        if !state.is_alive(self.owner) {
            drop(state);
            drop(step);
            return TaskHandle::new(|| ());
        }
        let key = state.workers.insert(Worker {
            owner: self.owner,
            name,
            step: Some(step),
        });
        let time = state.now + state.step_time();
        state.queue.push(time, Event::Step(key));
        drop(state);
        let shared = Arc::clone(&self.shared);
        TaskHandle::new(move || {
            let worker = shared.lock().workers.remove(key);
            drop(worker);
        })
    }

    fn run_blocking(&self, work: Box<dyn FnOnce() + Send>) -> BoxFuture<'static, ()> {
        let done = Arc::new(JobDone::default());
        let mut state = self.shared.lock();
        if state.is_alive(self.owner) {
            let key = state.jobs.insert(Job {
                owner: self.owner,
                work,
                done: Arc::clone(&done),
            });
            let time = state.now + state.step_time();
            state.queue.push(time, Event::Job(key));
        } else {
            drop(state);
            drop(work);
        }
        Box::pin(core::future::poll_fn(move |context| {
            done.poll(context.waker())
        }))
    }
}

impl State {
    /// The virtual time of one step: at least a nanosecond, so that time always moves.
    fn step_time(&mut self) -> u64 {
        let max = nanos(self.options.step_time_max);
        self.random_schedule.between(1, max)
    }

    pub(crate) fn begin_step(&mut self, key: Key) -> Action {
        let Some(worker) = self.workers.get_mut(key) else {
            return Action::Nothing;
        };
        let (owner, name) = (worker.owner, worker.name);
        if self.is_paused(owner.process) {
            let held = &mut self.process_mut(owner.process).held_events;
            held.push(Event::Step(key));
            return Action::Nothing;
        }
        let worker = self.workers.get_mut(key).expect("seen above");
        let step = worker.step.take().expect("a worker has one event");
        self.begin(owner, "step", name);
        Action::Step(key, step)
    }

    /// Plans the next step; gives the worker back when there is none.
    pub(crate) fn step_done(
        &mut self,
        key: Key,
        pace: Pace,
        step: Box<dyn FnMut() -> Pace + Send>,
    ) -> Option<Box<dyn FnMut() -> Pace + Send>> {
        let Some(worker) = self.workers.get_mut(key) else {
            return Some(step);
        };
        let owner = worker.owner;
        let wait = match pace {
            Pace::Again => self.now,
            Pace::After(wait) => self.process(owner.process).clock.later(self.now, wait),
            Pace::Done => {
                self.workers.remove(key);
                return Some(step);
            }
        };
        let time = wait.saturating_add(self.step_time());
        let worker = self.workers.get_mut(key).expect("seen above");
        worker.step = Some(step);
        self.queue.push(time, Event::Step(key));
        None
    }

    pub(crate) fn begin_job(&mut self, key: Key) -> Action {
        let Some(owner) = self.jobs.get(key).map(|job| job.owner) else {
            return Action::Nothing;
        };
        if self.is_paused(owner.process) {
            let held = &mut self.process_mut(owner.process).held_events;
            held.push(Event::Job(key));
            return Action::Nothing;
        }
        let job = self.jobs.remove(key).expect("seen above");
        self.begin(owner, "blocking work", "");
        Action::Job(job.work, owner, job.done)
    }

    fn begin(&mut self, owner: Owner, what: &'static str, name: &'static str) {
        self.record(&Fact::Step { what, owner, name });
        self.current = Some(Current {
            owner,
            core: 0,
            task: None,
            name: if name.is_empty() { what } else { name },
        });
    }
}
