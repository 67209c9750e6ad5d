//! What a simulation is like: sizes, speeds and how often things go wrong.
//!
//! Probabilities are integers in parts per million (`_ppm`).

use core::time::Duration;

/// What a simulation is like. The defaults are a quick, mostly healthy cluster.
#[derive(Clone, Debug)]
pub struct SimOptions {
    /// Event loops of a process, and so logs of a master. Two by default, to exercise several.
    pub cores: u16,
    /// Whether the seed chooses which ready task runs next, instead of first come, first served.
    pub shuffle_ready: bool,
    /// The longest virtual time that one background step or one piece of blocking work takes.
    pub step_time_max: Duration,
    /// How much faster or slower than virtual time a process's clock may run. Drawn per
    /// incarnation, uniform in both directions. Below one million.
    pub clock_drift_ppm_max: u32,
    /// This number of polls and events without any progress of virtual time is taken for an
    /// endless loop: the run panics and names the busiest task.
    pub polls_per_instant_max: u64,
    /// The network between processes, until changed at run time.
    pub network: NetworkFaults,
    /// Sends requests and replies by the sessions of crate `net`, in datagrams of this number of
    /// bytes. `None`: whole, by a network that knows what a call is.
    #[cfg(feature = "cluster")]
    pub datagram_bytes_max: Option<usize>,
    /// The disks of new processes, until changed at run time.
    pub disk: DiskFaults,
    /// How many of the last trace lines to keep as text; 0 keeps none and is fastest.
    pub trace_lines: usize,
    /// Keeps `tracing` events of this level and worse among the trace lines; `None` keeps none.
    /// WARN and ERROR are also kept for [`crate::SimHandle::warnings`].
    pub log_level: Option<tracing::Level>,
}

impl Default for SimOptions {
    fn default() -> Self {
        Self {
            cores: 2,
            shuffle_ready: true,
            step_time_max: Duration::from_micros(20),
            clock_drift_ppm_max: 0,
            polls_per_instant_max: 1_000_000,
            network: NetworkFaults::default(),
            #[cfg(feature = "cluster")]
            datagram_bytes_max: None,
            disk: DiskFaults::default(),
            trace_lines: 0,
            log_level: Some(tracing::Level::WARN),
        }
    }
}

/// How messages travel. One-way: a call meets it twice, for the request and for the reply.
/// Messages of a process to itself are only delayed.
#[derive(Clone, Debug)]
pub struct NetworkFaults {
    /// The shortest way.
    pub latency_min: Duration,
    /// The longest usual way; uniform in between.
    pub latency_max: Duration,
    /// How often a message takes up to [`Self::tail_max`] more.
    pub tail_ppm: u32,
    /// The most that a message in the tail is late, uniform from zero.
    pub tail_max: Duration,
    /// Adds length / speed to a message's way. Messages do not compete for it. 0: no limit.
    pub bytes_per_second: u64,
    /// How often a message is lost.
    pub loss_ppm: u32,
    /// How often a loss, or the crash of the other process, shows as a broken connection instead
    /// of silence until the call's limit.
    pub noticed_ppm: u32,
    /// How often a packet arrives twice. The transport filters the second one.
    pub duplicate_ppm: u32,
    /// Switches the filter off for requests: services see them twice. Breaks what
    /// `env::Network` promises; for finding out who relies on it.
    pub duplicate_requests: bool,
    /// How often a message may overtake those sent before it on the same way. The others keep
    /// their order, as on one TCP connection, and wait behind late ones.
    pub reorder_ppm: u32,
    /// How often a datagram arrives once more up to 10 s later. Not for whole messages, nor is the
    /// next one.
    pub replay_ppm: u32,
    /// How often a bit of a datagram turns over.
    pub damage_ppm: u32,
    /// How often a call to an address where nobody listens is refused at once, instead of silence.
    pub refused_ppm: u32,
    /// Calls with larger requests fail with `TooLarge`.
    pub message_bytes_max: usize,
}

impl Default for NetworkFaults {
    fn default() -> Self {
        Self {
            latency_min: Duration::from_micros(3),
            latency_max: Duration::from_micros(30),
            tail_ppm: 1_000,
            tail_max: Duration::from_millis(5),
            bytes_per_second: 1_250_000_000,
            loss_ppm: 0,
            noticed_ppm: 500_000,
            duplicate_ppm: 0,
            duplicate_requests: false,
            replay_ppm: 0,
            damage_ppm: 0,
            reorder_ppm: 100_000,
            refused_ppm: 800_000,
            message_bytes_max: 16 << 20,
        }
    }
}

impl NetworkFaults {
    /// A network on which much goes wrong: long tails, loss, duplicates, reordering.
    #[must_use]
    pub fn bad() -> Self {
        Self {
            tail_ppm: 50_000,
            tail_max: Duration::from_millis(200),
            loss_ppm: 20_000,
            duplicate_ppm: 50_000,
            reorder_ppm: 500_000,
            ..Self::default()
        }
    }
}

/// How the disk of one process behaves.
#[derive(Clone, Debug)]
pub struct DiskFaults {
    /// The shortest time of an operation.
    pub latency_min: Duration,
    /// The longest usual time of an operation; uniform in between.
    pub latency_max: Duration,
    /// What a sync takes more than other operations.
    pub sync_latency: Duration,
    /// How often an operation takes up to [`Self::tail_max`] more.
    pub tail_ppm: u32,
    /// The most that an operation in the tail is late, uniform from zero.
    pub tail_max: Duration,
    /// Adds length / speed to reads and writes. They do not compete for it. 0: no limit.
    pub bytes_per_second: u64,
    /// Bytes that all files may hold together; writes beyond give `DiskError::Full`.
    pub capacity: Option<u64>,
    /// How often a read fails.
    pub read_error_ppm: u32,
    /// How often a write fails; a part of it may be there.
    pub write_error_ppm: u32,
    /// How often a sync fails. As with Linux's page cache, what it should have made durable may
    /// then stay undurable for ever, even when a later sync succeeds.
    pub sync_error_ppm: u32,
}

impl Default for DiskFaults {
    fn default() -> Self {
        Self {
            latency_min: Duration::from_micros(5),
            latency_max: Duration::from_micros(60),
            sync_latency: Duration::from_micros(200),
            tail_ppm: 1_000,
            tail_max: Duration::from_millis(10),
            bytes_per_second: 2_000_000_000,
            capacity: None,
            read_error_ppm: 0,
            write_error_ppm: 0,
            sync_error_ppm: 0,
        }
    }
}
