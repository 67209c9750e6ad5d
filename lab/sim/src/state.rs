//! Everything the simulation knows, behind its one lock.

use crate::clock::{ProcessClock, Timer};
use crate::disk::DiskOperation;
use crate::executor::Task;
use crate::network::{Call, NetworkStats};
use crate::options::{DiskFaults, SimOptions};
use crate::packets::{Link, Port};
use crate::queue::{Event, EventQueue};
use crate::random::Stream;
use crate::slab::{Key, Slab};
use crate::storage::Storage;
use crate::tasks::{Job, Worker};
use crate::trace::{Fact, Trace, names};
use core::any::Any;
use core::fmt;
use pluvio_env::Address;
use pluvio_units::FixedMap;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

/// One simulated process (and the machine it has for itself), over all its incarnations.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct ProcessId(pub(crate) u32);

impl ProcessId {
    pub(crate) fn word(self) -> u64 {
        u64::from(self.0)
    }
}

impl fmt::Display for ProcessId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "process {}", self.0)
    }
}

/// One incarnation of a process.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) struct Owner {
    pub(crate) process: ProcessId,
    pub(crate) incarnation: u32,
}

impl Owner {
    pub(crate) fn word(self) -> u64 {
        self.process.word() << 32 | u64::from(self.incarnation)
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Life {
    Running,
    Paused,
    Down,
}

pub(crate) struct Process {
    pub(crate) incarnation: u32,
    pub(crate) life: Life,
    /// What became ready or arrived while the process was paused, in order.
    pub(crate) held_tasks: Vec<Key>,
    pub(crate) held_events: Vec<Event>,
    pub(crate) clock: ProcessClock,
    pub(crate) unix: Arc<AtomicU64>,
    /// What its requests come from: where it first listened, or its name.
    pub(crate) address: Address,
    pub(crate) storage: Storage,
    pub(crate) disk: DiskFaults,
}

/// Whose code runs right now.
#[derive(Clone)]
pub(crate) struct Current {
    pub(crate) owner: Owner,
    pub(crate) core: u16,
    pub(crate) task: Option<Key>,
    pub(crate) name: &'static str,
}

pub(crate) struct State {
    pub(crate) seed: u64,
    pub(crate) options: SimOptions,
    pub(crate) now: u64,
    pub(crate) queue: EventQueue,
    pub(crate) current: Option<Current>,
    /// What processes left that were abandoned: dropped as soon as no code of theirs runs.
    pub(crate) remains: Vec<Box<dyn Any + Send>>,

    pub(crate) tasks: Slab<Task>,
    pub(crate) timers: Slab<Timer>,
    pub(crate) workers: Slab<Worker>,
    pub(crate) jobs: Slab<Job>,
    pub(crate) calls: Slab<Call>,
    pub(crate) disk_operations: Slab<DiskOperation>,

    pub(crate) processes: Vec<Process>,
    pub(crate) names: Vec<Arc<str>>,
    pub(crate) ports: BTreeMap<Address, Port>,
    /// Who listened at an address last; stays when the port closes.
    pub(crate) address_owners: BTreeMap<Address, ProcessId>,
    pub(crate) port_last: u32,
    /// Ways between processes that differ from the default, by (from, to).
    pub(crate) links: FixedMap<u64, Link>,
    pub(crate) call_last: u64,
    /// Calls whose request was duplicated and of which one copy has met its fate: whether a
    /// service has got it.
    pub(crate) copies: FixedMap<u64, bool>,
    pub(crate) network_stats: NetworkStats,
    #[cfg(feature = "cluster")]
    pub(crate) sockets: crate::datagrams::Sockets,
    /// Keys of sessions of datagrams so far.
    #[cfg(feature = "cluster")]
    pub(crate) session_keys: u64,

    pub(crate) random_network: Stream,
    pub(crate) random_disk: Stream,
    pub(crate) random_schedule: Stream,
    pub(crate) random_process: Stream,

    pub(crate) trace: Trace,
    pub(crate) instant_polls: u64,
    /// Polls per task in this instant, counted once the instant becomes suspicious.
    pub(crate) instant_tasks: BTreeMap<Key, u64>,
}

impl State {
    pub(crate) fn new(seed: u64, options: SimOptions) -> Self {
        assert!(
            options.clock_drift_ppm_max < 1_000_000,
            "a clock that drifts by 100 % would stand still"
        );
        assert!(options.cores > 0, "a process has at least one core");
        Self {
            seed,
            now: 0,
            queue: EventQueue::new(),
            current: None,
            remains: Vec::new(),
            tasks: Slab::new(),
            timers: Slab::new(),
            workers: Slab::new(),
            jobs: Slab::new(),
            calls: Slab::new(),
            disk_operations: Slab::new(),
            processes: Vec::new(),
            names: Vec::new(),
            ports: BTreeMap::new(),
            address_owners: BTreeMap::new(),
            port_last: 40_000,
            links: FixedMap::default(),
            call_last: 0,
            copies: FixedMap::default(),
            network_stats: NetworkStats::default(),
            #[cfg(feature = "cluster")]
            sockets: crate::datagrams::Sockets::default(),
            #[cfg(feature = "cluster")]
            session_keys: 0,
            random_network: Stream::new(seed, "network"),
            random_disk: Stream::new(seed, "disk"),
            random_schedule: Stream::new(seed, "schedule"),
            random_process: Stream::new(seed, "process"),
            trace: Trace::new(seed, options.trace_lines),
            instant_polls: 0,
            instant_tasks: BTreeMap::new(),
            options,
        }
    }

    pub(crate) fn process(&self, id: ProcessId) -> &Process {
        &self.processes[id.0 as usize]
    }

    pub(crate) fn process_mut(&mut self, id: ProcessId) -> &mut Process {
        &mut self.processes[id.0 as usize]
    }

    pub(crate) fn name(&self, id: ProcessId) -> &str {
        &self.names[id.0 as usize]
    }

    pub(crate) fn is_alive(&self, owner: Owner) -> bool {
        let process = self.process(owner.process);
        process.incarnation == owner.incarnation && process.life != Life::Down
    }

    pub(crate) fn is_paused(&self, id: ProcessId) -> bool {
        self.process(id).life == Life::Paused
    }

    pub(crate) fn record(&mut self, fact: &Fact<'_>) {
        self.trace.record(self.now, fact, &names(&self.names));
    }

    /// Whether anybody still waits for `event`.
    fn is_live(&self, event: &Event) -> bool {
        match event {
            Event::Timer(key) => self.timers.contains(*key),
            Event::CallLimit(key) => self.calls.contains(*key),
            Event::Packet(_) => true,
            Event::Step(key) => self.workers.contains(*key),
            Event::Job(key) => self.jobs.contains(*key),
            Event::Disk(key) => self.disk_operations.contains(*key),
        }
    }

    /// The time of the next event that anybody waits for. Throws the others away, so that they
    /// neither move time nor keep an idle simulation running.
    pub(crate) fn next_time(&mut self) -> Option<u64> {
        loop {
            let (time, event) = self.queue.peek()?;
            if self.is_live(event) {
                return Some(time);
            }
            self.queue.pop();
            self.queue.note_skipped();
        }
    }

    /// Notes that an event in the queue has lost its owner.
    pub(crate) fn note_stale(&mut self) {
        if self.queue.note_stale() {
            let mut queue = std::mem::replace(&mut self.queue, EventQueue::new());
            queue.forget(|event| self.is_live(event));
            self.queue = queue;
        }
    }
}
