//! What a client needs and how it behaves.

use core::time::Duration;
use pluvio_env::{Address, Clock, Env, MappedMemory, Network, Rng, Tasks};
use pluvio_trace::Sampler;
use std::sync::Arc;

/// What a client uses of the operating system.
#[derive(Clone)]
pub struct Parts {
    /// Time.
    pub clock: Arc<dyn Clock>,
    /// Randomness, for jitter and the client's id.
    pub rng: Arc<dyn Rng>,
    /// Messages to the cluster.
    pub network: Arc<dyn Network>,
    /// Where work goes on behind an answer: the end of a transaction of several servers. Without
    /// it, the caller waits for that.
    pub tasks: Option<Arc<dyn Tasks>>,
    /// Memory of servers on this machine. Without it, or without tasks, all reads are requests.
    pub mapped: Option<Arc<dyn MappedMemory>>,
}

impl From<&Env> for Parts {
    fn from(env: &Env) -> Self {
        Self {
            clock: env.clock.clone(),
            rng: env.rng.clone(),
            network: env.network.clone(),
            tasks: Some(env.tasks.clone()),
            mapped: env.mapped.clone(),
        }
    }
}

impl From<Env> for Parts {
    fn from(env: Env) -> Self {
        Self::from(&env)
    }
}

/// How a client behaves. `ClientOptions::new` gives the defaults; every field may be changed.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct ClientOptions {
    /// Where coordinators listen. Tried in turn until one answers.
    pub coordinators: Vec<Address>,
    /// The longest an operation takes, all retries included. Default 10 s: longer than the
    /// recovery of a crashed server, so that a crash is only a delay.
    pub timeout: Duration,
    /// The longest one attempt takes before the client asks the coordinator whether the server is
    /// still the right one, and tries again. Default 2 s: longer than a server declared alive is
    /// ever silent, much shorter than `timeout`.
    pub attempt_timeout: Duration,
    /// The longest an operation goes on while all it hears is that memory is full. The same holds
    /// for a quota of its table. Default 10 s.
    /// The cleaner may be about to make room, so it should not be much below a second; longer than
    /// [`ClientOptions::timeout`] is as long as that.
    pub full_timeout: Duration,
    /// The treatment of an operation that changes data when its reply was lost: the client cannot
    /// know whether it was executed. `true` (the default): it is tried again with the same
    /// identity, by which a server that has executed it already recognizes it. `false`: it fails
    /// with [`ErrorKind::MaybeExecuted`](crate::ErrorKind::MaybeExecuted).
    pub retry_ambiguous: bool,
    /// Whether objects of a server on this machine are read in its memory, where it lets this
    /// process in (`docs/mapped-reads.md`). Default true: what reads give is the same.
    pub mapped_reads: bool,
    /// Is told when an operation has been tried for a second and goes on: why it is not done. For
    /// programs whose users would wait in silence.
    pub on_delay: Option<OnDelay>,
    /// Which operations begin a trace. Default [`Sampler::OFF`]. To make an operation a part of a
    /// trace that is there already, see [`Client::with_trace`](crate::Client::with_trace).
    pub trace: Sampler,
}

/// Hears why an operation is not done yet.
#[derive(Clone)]
pub struct OnDelay(Arc<dyn Fn(&str) + Send + Sync>);

impl OnDelay {
    /// Calls `hear` in the middle of an operation; it must not block.
    pub fn new(hear: impl Fn(&str) + Send + Sync + 'static) -> Self {
        Self(Arc::new(hear))
    }

    pub(crate) fn call(&self, why: &str) {
        (self.0)(why);
    }
}

impl core::fmt::Debug for OnDelay {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str("OnDelay")
    }
}

impl ClientOptions {
    /// The defaults, with these coordinators.
    pub fn new(coordinators: impl IntoIterator<Item = impl Into<Address>>) -> Self {
        Self {
            coordinators: coordinators.into_iter().map(Into::into).collect(),
            timeout: Duration::from_secs(10),
            attempt_timeout: Duration::from_secs(2),
            full_timeout: Duration::from_secs(10),
            retry_ambiguous: true,
            mapped_reads: true,
            on_delay: None,
            trace: Sampler::OFF,
        }
    }

    /// With another [`ClientOptions::timeout`].
    #[must_use]
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = timeout;
        self
    }

    /// With another [`ClientOptions::attempt_timeout`].
    #[must_use]
    pub fn attempt_timeout(mut self, timeout: Duration) -> Self {
        self.attempt_timeout = timeout;
        self
    }

    /// With another [`ClientOptions::full_timeout`].
    #[must_use]
    pub fn full_timeout(mut self, timeout: Duration) -> Self {
        self.full_timeout = timeout;
        self
    }

    /// With another [`ClientOptions::trace`].
    #[must_use]
    pub fn trace(mut self, trace: Sampler) -> Self {
        self.trace = trace;
        self
    }

    /// With another [`ClientOptions::retry_ambiguous`].
    #[must_use]
    pub fn retry_ambiguous(mut self, retry: bool) -> Self {
        self.retry_ambiguous = retry;
        self
    }

    /// With another [`ClientOptions::mapped_reads`].
    #[must_use]
    pub fn mapped_reads(mut self, mapped: bool) -> Self {
        self.mapped_reads = mapped;
        self
    }
}
