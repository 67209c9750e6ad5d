//! The executor: ready tasks, events in order of time, and the loop over both.

use crate::packets::Arrival;
use crate::queue::Event;
use crate::random::Stream;
use crate::slab::Key;
use crate::state::{Current, Life, Owner, State};
use crate::tasks::Worker;
use crate::trace::{Fact, Seconds};
use core::task::{Context, Waker};
use pluvio_env::{BoxFuture, Handled, Pace};
use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Wake;

/// The lock of a mutex that no panic can leave in a broken state: under the simulator's locks only
/// the simulator's own code runs (SIM-3), and after its panic the run is over.
pub(crate) fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A task of some process.
pub(crate) struct Task {
    pub(crate) owner: Owner,
    pub(crate) core: u16,
    pub(crate) name: &'static str,
    /// `None` while it is being polled.
    future: Option<BoxFuture<'static, ()>>,
    notice: Arc<TaskWaker>,
}

struct TaskWaker {
    key: Key,
    queued: AtomicBool,
    ready: Arc<ReadyQueue>,
}

impl Wake for TaskWaker {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        // Relaxed: one thread; the mutex of the queue orders the rest.
        if !self.queued.swap(true, Ordering::Relaxed) {
            locked(&self.ready.keys).push_back(self.key);
        }
    }
}

struct ReadyQueue {
    keys: Mutex<VecDeque<Key>>,
}

/// The next ready task: the oldest, or any one when the seed may choose.
fn take_ready(ready: &ReadyQueue, shuffle: bool, random: &mut Stream) -> Option<Key> {
    let mut keys = locked(&ready.keys);
    if shuffle && keys.len() > 1 {
        let chosen = random.below(keys.len() as u64) as usize;
        return keys.swap_remove_front(chosen);
    }
    keys.pop_front()
}

/// The simulation, as all parts of it hold it.
pub(crate) struct Shared {
    /// A copy of `State::now` that is read without the lock.
    now: AtomicU64,
    ready: Arc<ReadyQueue>,
    state: Mutex<State>,
    running: AtomicBool,
}

/// Why a run of the loop ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Ended {
    Done,
    Limit,
    Idle,
}

/// Code of a process that an event runs; it runs without the lock.
pub(crate) enum Action {
    Nothing,
    Wake(Waker),
    Request(Arrival),
    Step(Key, Box<dyn FnMut() -> Pace + Send>),
    Job(Box<dyn FnOnce() + Send>, Owner, Arc<crate::tasks::JobDone>),
}

/// Says where the simulation was when the code it ran panicked.
struct PanicNote<'a>(&'a Shared);

impl Drop for PanicNote<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let state = self.0.lock();
            let place = state.current.as_ref().map_or_else(String::new, |current| {
                format!(
                    " in {} of {}",
                    current.name,
                    state.name(current.owner.process)
                )
            });
            eprintln!(
                "simulation of seed {:#x} panicked at {}{place}",
                state.seed,
                Seconds(state.now)
            );
        }
    }
}

impl Shared {
    pub(crate) fn new(state: State) -> Self {
        Self {
            now: AtomicU64::new(0),
            ready: Arc::new(ReadyQueue {
                keys: Mutex::new(VecDeque::new()),
            }),
            state: Mutex::new(state),
            running: AtomicBool::new(false),
        }
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, State> {
        locked(&self.state)
    }

    pub(crate) fn now(&self) -> u64 {
        self.now.load(Ordering::Relaxed)
    }

    pub(crate) fn advance(&self, state: &mut State, time: u64) {
        if time > state.now {
            state.now = time;
            self.now.store(time, Ordering::Relaxed);
            state.instant_polls = 0;
            state.instant_tasks.clear();
        }
    }

    /// Starts a task. One of a dead incarnation is dropped instead.
    pub(crate) fn spawn(
        &self,
        owner: Owner,
        core: u16,
        name: &'static str,
        future: BoxFuture<'static, ()>,
    ) -> Key {
        let mut state = self.lock();
        if !state.is_alive(owner) {
            drop(state);
            drop(future);
            return Key::NONE;
        }
        let key = state.tasks.insert_with(|key| Task {
            owner,
            core,
            name,
            future: Some(future),
            notice: Arc::new(TaskWaker {
                key,
                queued: AtomicBool::new(true),
                ready: Arc::clone(&self.ready),
            }),
        });
        locked(&self.ready.keys).push_back(key);
        key
    }

    /// Ends a task; one that is being polled ends when that poll returns.
    pub(crate) fn abort(&self, key: Key) {
        let task = self.lock().tasks.remove(key);
        drop(task);
    }

    /// Makes held tasks ready again.
    pub(crate) fn requeue(&self, keys: Vec<Key>) {
        locked(&self.ready.keys).extend(keys);
    }

    /// Runs until `done` says so, nothing is left to happen, or the next event lies after
    /// `until`. `done` is asked whenever no task is ready, so at least once per event.
    pub(crate) fn run(self: &Arc<Self>, until: u64, done: &mut dyn FnMut() -> bool) -> Ended {
        assert!(
            !self.running.swap(true, Ordering::Relaxed),
            "a simulation is not run from inside itself"
        );
        let note = PanicNote(self);
        let ended = self.run_loop(until, done);
        std::mem::forget(note);
        self.running.store(false, Ordering::Relaxed);
        ended
    }

    fn run_loop(self: &Arc<Self>, until: u64, done: &mut dyn FnMut() -> bool) -> Ended {
        loop {
            while self.poll_one() {}
            if done() {
                return Ended::Done;
            }
            let mut state = self.lock();
            let Some(time) = state.next_time() else {
                return Ended::Idle;
            };
            if time > until {
                return Ended::Limit;
            }
            let event = state.queue.pop().expect("next_time has just seen it");
            self.advance(&mut state, time);
            state.count_instant(None);
            let action = state.fire(event);
            drop(state);
            self.perform(action);
        }
    }

    /// Polls one ready task; false when there is none.
    fn poll_one(&self) -> bool {
        self.drop_remains();
        let mut guard = self.lock();
        let state = &mut *guard;
        let shuffle = state.options.shuffle_ready;
        let Some(key) = take_ready(&self.ready, shuffle, &mut state.random_schedule) else {
            return false;
        };
        let Some(task) = state.tasks.get_mut(key) else {
            return true;
        };
        let owner = task.owner;
        if state.processes[owner.process.0 as usize].life == Life::Paused {
            state.process_mut(owner.process).held_tasks.push(key);
            return true;
        }
        task.notice.queued.store(false, Ordering::Relaxed);
        let waker = Waker::from(Arc::clone(&task.notice));
        let mut future = task
            .future
            .take()
            .expect("a task is polled by one loop only");
        let current = Current {
            owner,
            core: task.core,
            task: Some(key),
            name: task.name,
        };
        state.current = Some(current);
        state.count_instant(Some(key));
        state.record(&Fact::Poll { task: key });
        drop(guard);

        let result = future.as_mut().poll(&mut Context::from_waker(&waker));

        let mut state = self.lock();
        if result.is_pending()
            && let Some(task) = state.tasks.get_mut(key)
        {
            task.future = Some(future);
            state.current = None;
            return true;
        }
        // It has ended, or was ended from inside of its own poll.
        let task = state.tasks.remove(key);
        drop(state);
        drop((task, future));
        self.lock().current = None;
        true
    }

    /// Drops what abandoned processes left, without the lock (SIM-3).
    fn drop_remains(&self) {
        let remains = std::mem::take(&mut self.lock().remains);
        drop(remains);
    }

    fn perform(self: &Arc<Self>, action: Action) {
        match action {
            Action::Nothing => {}
            Action::Wake(waker) => waker.wake(),
            Action::Request(arrival) => self.serve(arrival),
            Action::Step(key, mut step) => {
                let pace = step();
                let mut state = self.lock();
                state.current = None;
                let unused = state.step_done(key, pace, step);
                drop(state);
                drop(unused);
            }
            Action::Job(work, owner, done) => {
                work();
                let mut state = self.lock();
                state.current = None;
                let alive = state.is_alive(owner);
                drop(state);
                if alive {
                    done.finish();
                }
            }
        }
    }

    /// Hands a request to its service.
    fn serve(self: &Arc<Self>, arrival: Arrival) {
        let Arrival {
            service,
            peer,
            frame,
            reply,
        } = arrival;
        let core = peer.core.0;
        match service.handle(peer, frame) {
            Handled::Now(frame) => {
                let mut state = self.lock();
                state.current = None;
                state.send_reply(&reply, frame);
            }
            Handled::Later(future) => {
                self.lock().current = None;
                let shared = Arc::clone(self);
                let owner = reply.server;
                let task = Box::pin(async move {
                    let frame = future.await;
                    shared.lock().send_reply(&reply, frame);
                });
                self.spawn(owner, core, "serve", task);
            }
        }
    }

    /// Drops all that is left, so that the parts that hold each other let go.
    pub(crate) fn clear(&self) {
        let mut state = self.lock();
        for process in &mut state.processes {
            process.life = Life::Down;
        }
        let tasks = state.tasks.drain_where(|_| true);
        let workers: Vec<(Key, Worker)> = state.workers.drain_where(|_| true);
        let jobs = state.jobs.drain_where(|_| true);
        let ports = std::mem::take(&mut state.ports);
        let remains = std::mem::take(&mut state.remains);
        let events = state.queue.take_all();
        let held: Vec<Vec<Event>> = state
            .processes
            .iter_mut()
            .map(|process| std::mem::take(&mut process.held_events))
            .collect();
        let operations = state.disk_operations.drain_where(|_| true);
        let sink = state.trace.sink.take();
        drop(state);
        drop((tasks, workers, jobs, ports, remains));
        drop((events, held, operations, sink));
    }
}

impl State {
    /// Counts one poll or event of this instant.
    ///
    /// # Panics
    /// When there were so many that time seems to stand still for ever.
    pub(crate) fn count_instant(&mut self, task: Option<Key>) {
        self.instant_polls += 1;
        let max = self.options.polls_per_instant_max;
        if self.instant_polls <= max / 2 {
            return;
        }
        if let Some(key) = task {
            *self.instant_tasks.entry(key).or_default() += 1;
        }
        if self.instant_polls > max {
            let busiest = self.instant_tasks.iter().max_by_key(|(_, polls)| **polls);
            let who = busiest.and_then(|(key, polls)| {
                let task = self.tasks.get(*key)?;
                let process = self.name(task.owner.process);
                Some(format!("task {} of {process}, {polls} polls", task.name))
            });
            panic!(
                "{max} polls and events at {} without progress of time; the busiest: {}",
                Seconds(self.now),
                who.unwrap_or_else(|| "events, or tasks that have ended".into())
            );
        }
    }

    /// Lets `event` happen.
    fn fire(&mut self, event: Event) -> Action {
        match event {
            Event::Timer(key) => {
                let Some(timer) = self.timers.remove(key) else {
                    return Action::Nothing;
                };
                self.record(&Fact::Timer { owner: timer.owner });
                Action::Wake(timer.waker)
            }
            Event::CallLimit(key) => self.call_limit(key),
            Event::Packet(packet) => self.arrive(*packet),
            Event::Step(key) => self.begin_step(key),
            Event::Job(key) => self.begin_job(key),
            Event::Disk(key) => self.complete_disk(key),
        }
    }
}
