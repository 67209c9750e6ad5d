//! The simulation as tests see it: processes, faults, and running it all.

use crate::clock::{ProcessClock, SimClock, nanos};
#[cfg(feature = "cluster")]
use crate::datagrams::Datagrams;
use crate::disk::SimDisk;
use crate::executor::{Ended, Shared, locked};
use crate::logging::SimSubscriber;
use crate::network::{NetworkStats, SimNetwork};
use crate::options::{DiskFaults, NetworkFaults, SimOptions};
use crate::packets::link_key;
use crate::random::{SimRng, derive};
use crate::state::{Life, Owner, Process, ProcessId, State};
use crate::storage::Storage;
use crate::stuck::{Stuck, StuckWhy};
use crate::tasks::SimTasks;
use crate::trace::Fact;
use core::any::Any;
use core::ops::Deref;
use core::time::Duration;
use pluvio_env::{Address, Clock, Env, Network, TaskHandle};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use tracing::Dispatch;

/// What wall clocks show at virtual time zero: 14 November 2023.
pub(crate) const UNIX_START: u64 = 1_700_000_000;

/// A simulation. Runs it, and ends everything in it when dropped.
pub struct Sim {
    handle: SimHandle,
    dispatch: Option<Dispatch>,
}

/// Looks into a simulation and changes it. Cheap to clone; also for code that runs inside of it,
/// such as a task that crashes processes.
#[derive(Clone)]
pub struct SimHandle {
    shared: Arc<Shared>,
}

/// One incarnation of a process.
#[derive(Clone)]
pub struct ProcessEnv {
    /// The process.
    pub id: ProcessId,
    /// What the code of this incarnation runs on.
    pub env: Env,
}

impl Deref for Sim {
    type Target = SimHandle;
    fn deref(&self) -> &SimHandle {
        &self.handle
    }
}

impl Drop for Sim {
    fn drop(&mut self) {
        // In a panic, destructors of simulated code could panic again and abort the test run.
        if !std::thread::panicking() {
            self.shared.clear();
        }
    }
}

impl Sim {
    /// A simulation without processes.
    ///
    /// # Panics
    /// When the options make no sense: no cores, or a clock drift of 100 % or more.
    #[must_use]
    pub fn new(seed: u64, options: SimOptions) -> Self {
        let level = options.log_level;
        let shared = Arc::new(Shared::new(State::new(seed, options)));
        let dispatch = level.map(|level| {
            Dispatch::new(SimSubscriber {
                shared: Arc::downgrade(&shared),
                level,
                span_last: AtomicU64::new(0),
            })
        });
        Self {
            handle: SimHandle { shared },
            dispatch,
        }
    }

    /// A handle that can be given to simulated code.
    #[must_use]
    pub fn handle(&self) -> SimHandle {
        self.handle.clone()
    }

    fn run(&self, until: u64, done: &mut dyn FnMut() -> bool) -> Ended {
        let _default = self.dispatch.as_ref().map(tracing::dispatcher::set_default);
        self.shared.run(until, done)
    }

    fn deadline(&self, limit: Duration) -> u64 {
        self.shared.now().saturating_add(nanos(limit))
    }

    fn stop_at(&self, time: u64) {
        let mut state = self.shared.lock();
        self.shared.advance(&mut state, time);
    }

    /// Lets `duration` of virtual time pass.
    pub fn run_for(&self, duration: Duration) {
        let until = self.deadline(duration);
        self.run(until, &mut || false);
        self.stop_at(until);
    }

    /// Runs until `condition` holds; it is asked after every event, once no task is ready.
    ///
    /// # Errors
    /// [`Stuck`] when `limit` of virtual time has passed, or nothing is left that could happen.
    pub fn run_until(
        &self,
        mut condition: impl FnMut() -> bool,
        limit: Duration,
    ) -> Result<(), Stuck> {
        let until = self.deadline(limit);
        let why = match self.run(until, &mut condition) {
            Ended::Done => return Ok(()),
            Ended::Limit => {
                self.stop_at(until);
                StuckWhy::Limit
            }
            Ended::Idle => StuckWhy::Idle,
        };
        Err(self.shared.lock().stuck(why))
    }

    /// Runs `future` as a task of `process` (on core 0), and everything else, until it ends.
    ///
    /// # Errors
    /// [`Stuck`] when it did not end within `limit` of virtual time (it is dropped then), when
    /// nothing is left that could happen, or when its process crashed.
    pub fn block_on<T: Send + 'static>(
        &self,
        process: ProcessId,
        future: impl Future<Output = T> + Send + 'static,
        limit: Duration,
    ) -> Result<T, Stuck> {
        let result = Arc::new(Mutex::new(None));
        let place = Arc::clone(&result);
        let owner = self.owner(process);
        let task = Box::pin(async move {
            let value = future.await;
            *locked(&place) = Some(value);
        });
        let key = self.shared.spawn(owner, 0, "block_on", task);
        let until = self.deadline(limit);
        let is_over = || !self.shared.lock().tasks.contains(key);
        let ended = self.run(until, &mut { is_over });
        if let Some(value) = locked(&result).take() {
            return Ok(value);
        }
        let why = match ended {
            Ended::Done => StuckWhy::Gone,
            Ended::Limit => {
                self.stop_at(until);
                StuckWhy::Limit
            }
            Ended::Idle => StuckWhy::Idle,
        };
        let stuck = self.shared.lock().stuck(why);
        self.shared.abort(key);
        Err(stuck)
    }
}

/// Processes.
impl SimHandle {
    fn owner(&self, process: ProcessId) -> Owner {
        let incarnation = self.shared.lock().process(process).incarnation;
        Owner {
            process,
            incarnation,
        }
    }

    /// Starts the first incarnation of a new process with an empty disk.
    ///
    /// # Panics
    /// When there is a process of that name.
    #[must_use]
    pub fn process(&self, name: &str) -> ProcessEnv {
        let mut state = self.shared.lock();
        assert!(
            !state.names.iter().any(|other| &**other == name),
            "process {name} exists; restart() gives a new incarnation"
        );
        let id = u32::try_from(state.processes.len()).expect("fewer than 2^32 processes");
        let disk = state.options.disk.clone();
        state.names.push(name.into());
        state.processes.push(Process {
            incarnation: 0,
            life: Life::Down,
            held_tasks: Vec::new(),
            held_events: Vec::new(),
            clock: ProcessClock {
                offset: 0,
                drift_ppm: 0,
            },
            unix: Arc::new(AtomicU64::new(UNIX_START)),
            address: name.into(),
            storage: Storage::default(),
            disk,
        });
        drop(state);
        self.restart(ProcessId(id))
    }

    /// Starts a new incarnation of a process that is down, with the disk it left.
    ///
    /// # Panics
    /// When the process is not down.
    #[must_use]
    pub fn restart(&self, id: ProcessId) -> ProcessEnv {
        let mut guard = self.shared.lock();
        let state = &mut *guard;
        let drift_max = u64::from(state.options.clock_drift_ppm_max);
        // Clocks of different incarnations have nothing to do with each other; code that compares
        // their moments shall fail soon.
        let offset = state.random_process.below(1 << 50);
        let drift = state.random_process.below(2 * drift_max + 1);
        let seed = derive(state.seed, &state.names[id.0 as usize], 1);
        let process = &mut state.processes[id.0 as usize];
        assert!(
            process.life == Life::Down,
            "process {} is running; crash it first",
            state.names[id.0 as usize]
        );
        process.life = Life::Running;
        process.incarnation += 1;
        process.clock = ProcessClock {
            offset,
            drift_ppm: i32::try_from(drift).expect("below two million")
                - i32::try_from(drift_max).expect("below one million"),
        };
        let owner = Owner {
            process: id,
            incarnation: process.incarnation,
        };
        let rng = SimRng::new(derive(seed, "incarnation", u64::from(owner.incarnation)));
        let clock = SimClock {
            shared: Arc::clone(&self.shared),
            owner,
            clock: process.clock,
            unix: Arc::clone(&process.unix),
        };
        let cores = state.options.cores;
        state.record(&Fact::Process {
            what: "start",
            owner,
        });
        #[cfg(feature = "cluster")]
        let datagrams = { state.options.datagram_bytes_max }
            .map(|most| (most, state.options.network.message_bytes_max));
        let shared = || Arc::clone(&self.shared);
        let clock: Arc<dyn Clock> = Arc::new(clock);
        let whole = || -> Arc<dyn Network> {
            Arc::new(SimNetwork {
                shared: shared(),
                owner,
            })
        };
        #[cfg(feature = "cluster")]
        let network = match datagrams {
            Some((most, frame)) => {
                let clock = Arc::clone(&clock);
                Arc::new(Datagrams::new(shared(), owner, clock, most, frame))
            }
            None => whole(),
        };
        #[cfg(not(feature = "cluster"))]
        let network = whole();
        let env = Env {
            clock,
            rng: Arc::new(rng),
            disk: Arc::new(SimDisk::new(shared(), owner)),
            network,
            tasks: Arc::new(SimTasks {
                shared: shared(),
                owner,
                cores,
            }),
            mapped: None,
        };
        ProcessEnv { id, env }
    }

    /// The process dies: its tasks, workers, timers and ports are gone; what it wrote stays (the
    /// page cache survives). Does nothing when it is down. May be called from inside of it.
    pub fn crash(&self, id: ProcessId) {
        self.end(id, "crash", |state, owner| state.break_connections(owner));
    }

    /// The machine loses power: as [`Self::crash`], and writes that were not synced survive in
    /// whole, in part or not at all. Its clients notice nothing but silence. Also for the machine
    /// of a process that is down already.
    pub fn power_loss(&self, id: ProcessId) {
        self.end(id, "power loss", |_, _| ());
        let mut guard = self.shared.lock();
        let state = &mut *guard;
        let storage = &mut state.processes[id.0 as usize].storage;
        storage.power_loss(&mut state.random_disk);
    }

    /// The process dies in the middle of what its code does, which calls this and may hold locks of
    /// its own: as [`Self::crash`], but what it leaves is dropped only when that code has returned.
    /// Until then it runs on, and nothing that it does is seen by anybody.
    pub fn abandon(&self, id: ProcessId) {
        let left = self.take_apart(id, "abandon", |state, owner| state.break_connections(owner));
        self.shared.lock().remains.extend(left);
    }

    fn end(&self, id: ProcessId, what: &'static str, tell: impl FnOnce(&mut State, Owner)) {
        // Destructors of simulated code run here, without the lock (SIM-3).
        drop(self.take_apart(id, what, tell));
    }

    /// Ends a process; gives what it leaves, to be dropped without the lock.
    fn take_apart(
        &self,
        id: ProcessId,
        what: &'static str,
        tell: impl FnOnce(&mut State, Owner),
    ) -> Option<Box<dyn Any + Send>> {
        let owner = self.owner(id);
        let mut guard = self.shared.lock();
        let state = &mut *guard;
        state.record(&Fact::Process { what, owner });
        let process = state.process_mut(id);
        if process.life == Life::Down {
            return None;
        }
        process.life = Life::Down;
        process.held_tasks.clear();
        let held = std::mem::take(&mut process.held_events);
        let tasks = state.tasks.drain_where(|task| task.owner == owner);
        let workers = state.workers.drain_where(|worker| worker.owner == owner);
        let jobs = state.jobs.drain_where(|job| job.owner == owner);
        let operations = state.settle_disk(owner);
        let closed: Vec<Address> = state
            .ports
            .iter()
            .filter(|(_, port)| port.owner == owner)
            .map(|(address, _)| address.clone())
            .collect();
        let ports: Vec<_> = closed
            .iter()
            .filter_map(|address| state.ports.remove(address))
            .collect();
        tell(state, owner);
        Some(Box::new((held, tasks, workers, jobs, operations, ports)))
    }

    /// The process stands still, as under a debugger or a long swap: nothing of it runs, what
    /// arrives is kept. Its disk operations and timers complete, but it does not see that.
    pub fn pause(&self, id: ProcessId) {
        let mut state = self.shared.lock();
        if state.process(id).life == Life::Running {
            state.process_mut(id).life = Life::Paused;
            self.record_process(&mut state, id, "pause");
        }
    }

    /// Lets a paused process go on with all that it missed.
    pub fn resume(&self, id: ProcessId) {
        let mut state = self.shared.lock();
        if state.process(id).life != Life::Paused {
            return;
        }
        self.record_process(&mut state, id, "resume");
        let process = state.process_mut(id);
        process.life = Life::Running;
        let tasks = std::mem::take(&mut process.held_tasks);
        let events = std::mem::take(&mut process.held_events);
        let now = state.now;
        for event in events {
            state.queue.push(now, event);
        }
        drop(state);
        self.shared.requeue(tasks);
    }

    fn record_process(&self, state: &mut State, process: ProcessId, what: &'static str) {
        let incarnation = state.process(process).incarnation;
        let owner = Owner {
            process,
            incarnation,
        };
        state.record(&Fact::Process { what, owner });
    }

    /// Whether the process has an incarnation that runs or is paused.
    #[must_use]
    pub fn is_up(&self, id: ProcessId) -> bool {
        self.shared.lock().process(id).life != Life::Down
    }

    /// All processes, in the order in which they were made.
    #[must_use]
    pub fn processes(&self) -> Vec<(ProcessId, String)> {
        let state = self.shared.lock();
        (0..)
            .map(ProcessId)
            .zip(state.names.iter().map(|name| name.to_string()))
            .collect()
    }

    /// Starts a task of the current incarnation of `process`, on core 0. Dropped at once when the
    /// process is down.
    pub fn spawn(
        &self,
        process: ProcessId,
        name: &'static str,
        future: impl Future<Output = ()> + Send + 'static,
    ) -> TaskHandle {
        let owner = self.owner(process);
        let key = self.shared.spawn(owner, 0, name, Box::pin(future));
        let shared = Arc::clone(&self.shared);
        TaskHandle::new(move || shared.abort(key))
    }

    /// Lets the wall clock of a process jump to `seconds` since 1970.
    pub fn set_unix_seconds(&self, id: ProcessId, seconds: u64) {
        let state = self.shared.lock();
        let start = seconds.saturating_sub(state.now / 1_000_000_000);
        state.process(id).unix.store(start, Ordering::Relaxed);
    }

    /// By how many seconds the wall clock of a process is ahead of a right one.
    #[must_use]
    pub fn unix_seconds_ahead(&self, id: ProcessId) -> i64 {
        let state = self.shared.lock();
        let unix = state.process(id).unix.load(Ordering::Relaxed);
        i64::try_from(unix)
            .unwrap_or(i64::MAX)
            .saturating_sub_unsigned(UNIX_START)
    }

    /// Lets the wall clock of a process jump by `seconds`, back when negative; not before 1970.
    pub fn jump_unix_seconds(&self, id: ProcessId, seconds: i64) {
        let mut state = self.shared.lock();
        let unix = &state.process(id).unix;
        let shown = unix.load(Ordering::Relaxed);
        unix.store(shown.saturating_add_signed(seconds), Ordering::Relaxed);
        self.record_process(&mut state, id, "clock jump");
    }
}

/// The network.
impl SimHandle {
    /// Changes how all ways behave that have no settings of their own.
    pub fn set_network(&self, faults: NetworkFaults) {
        self.shared.lock().options.network = faults;
    }

    /// Changes how messages from one process to another travel; `None` goes back to the default.
    pub fn set_way(&self, from: ProcessId, to: ProcessId, faults: Option<NetworkFaults>) {
        let mut state = self.shared.lock();
        state.links.entry(link_key(from, to)).or_default().faults = faults;
    }

    /// Cuts the way from one process to another (one direction only), also for what is on it.
    pub fn cut(&self, from: ProcessId, to: ProcessId) {
        self.set_cut(from, to, true);
    }

    /// Undoes [`Self::cut`].
    pub fn heal(&self, from: ProcessId, to: ProcessId) {
        self.set_cut(from, to, false);
    }

    fn set_cut(&self, from: ProcessId, to: ProcessId, cut: bool) {
        let mut state = self.shared.lock();
        let link = state.links.entry(link_key(from, to)).or_default();
        if link.cut != cut {
            link.cut = cut;
            let what = if cut { "cut" } else { "heal" };
            state.record(&Fact::Link { what, from, to });
        }
    }

    /// Cuts a process off from all others that exist now, both ways.
    pub fn isolate(&self, id: ProcessId) {
        for (other, _) in self.processes() {
            if other != id {
                self.cut(id, other);
                self.cut(other, id);
            }
        }
    }

    /// Undoes every cut.
    pub fn heal_all(&self) {
        let ids: Vec<ProcessId> = self.processes().into_iter().map(|(id, _)| id).collect();
        for from in &ids {
            for to in &ids {
                if self.shared.lock().is_cut(*from, *to) {
                    self.heal(*from, *to);
                }
            }
        }
    }

    /// What the network did so far.
    #[must_use]
    pub fn network_stats(&self) -> NetworkStats {
        self.shared.lock().network_stats
    }
}

/// Disks.
impl SimHandle {
    /// Changes how the disk of a process behaves.
    pub fn set_disk(&self, id: ProcessId, faults: DiskFaults) {
        self.shared.lock().process_mut(id).disk = faults;
    }

    /// Turns over one bit (counted from the start of the file) in what readers see; false when
    /// the file is missing or shorter.
    pub fn flip_bit(&self, id: ProcessId, path: &str, bit: u64) -> bool {
        let state = self.shared.lock();
        let inode = state.process(id).storage.get(path);
        inode.is_some_and(|inode| locked(inode).flip_bit(bit))
    }

    /// The paths of all files of a process, sorted.
    #[must_use]
    pub fn files(&self, id: ProcessId) -> Vec<String> {
        let state = self.shared.lock();
        state.process(id).storage.paths().cloned().collect()
    }

    /// What a reader of the file would see.
    #[must_use]
    pub fn file_content(&self, id: ProcessId, path: &str) -> Option<Vec<u8>> {
        let state = self.shared.lock();
        let inode = state.process(id).storage.get(path)?;
        let content = locked(inode).content().to_vec();
        Some(content)
    }

    /// Bytes of all files of a process.
    #[must_use]
    pub fn disk_used(&self, id: ProcessId) -> u64 {
        self.shared.lock().process(id).storage.used()
    }

    /// Replaces the disk of a process by an empty one. Files that are open stay what they were.
    pub fn wipe_disk(&self, id: ProcessId) {
        let mut state = self.shared.lock();
        let storage = std::mem::take(&mut state.process_mut(id).storage);
        self.record_process(&mut state, id, "wipe disk");
        drop(state);
        drop(storage);
    }
}

/// What happened.
impl SimHandle {
    /// The seed.
    #[must_use]
    pub fn seed(&self) -> u64 {
        self.shared.lock().seed
    }

    /// The virtual time since the simulation began.
    #[must_use]
    pub fn now(&self) -> Duration {
        Duration::from_nanos(self.shared.now())
    }

    /// Everything that happened so far, as one number: equal for equal runs (SIM-1).
    #[must_use]
    pub fn trace_hash(&self) -> u64 {
        self.shared.lock().trace.hash()
    }

    /// How many polls, messages, timers, disk operations and so on there were so far.
    #[must_use]
    pub fn trace_events(&self) -> u64 {
        self.shared.lock().trace.events()
    }

    /// The last lines of the trace, as many as [`SimOptions::trace_lines`] says.
    #[must_use]
    pub fn trace_lines(&self) -> Vec<String> {
        self.shared.lock().trace.lines().cloned().collect()
    }

    /// Gives every line of the trace to `sink`, which must not call the simulation.
    pub fn set_trace_sink(&self, sink: Box<dyn FnMut(&str) + Send>) {
        let old = self.shared.lock().trace.sink.replace(sink);
        drop(old);
    }

    /// The first WARN and ERROR events, and how many more there were.
    #[must_use]
    pub fn warnings(&self) -> (Vec<String>, u64) {
        let state = self.shared.lock();
        let (lines, missed) = state.trace.warnings();
        (lines.to_vec(), missed)
    }
}
