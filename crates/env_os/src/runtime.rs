//! The event loops of a process.
//!
//! Owns the threads; everything else gets handles. The main thread of a binary runs no event loop.
//! It waits in [`OsRuntime::block_on`] while the future runs on core 0, so that all calls of the
//! future start on a core.

use crate::affinity::{self, pin_current_thread};
use crate::clock::OsClock;
use crate::disk::OsDisk;
use crate::limits::raise_open_files;
use crate::rng::OsRng;
use crate::spin::{Activity, keep_awake};
use crate::tasks::{Core, OsTasks};
use core::cell::Cell;
use core::panic::AssertUnwindSafe;
use core::time::Duration;
use futures_util::FutureExt;
use pluvio_env::host::{Host, ThisMachine};
use pluvio_env::{Clock, Disk, DiskError, Env, Network, Rng, Tasks, buffers};
use pluvio_units::CoreId;
use std::path::Path;
use std::sync::{Arc, mpsc};
use std::thread::JoinHandle;
use tokio::runtime::{Builder, Handle, Runtime};
use tokio::sync::oneshot;

/// How long dropping a runtime waits for blocking work when [`OsRuntime::shutdown`] was not called:
/// long enough for an fsync on a busy disk.
const DROP_LIMIT: Duration = Duration::from_secs(5);

thread_local! {
    static CURRENT: Cell<Option<CoreId>> = const { Cell::new(None) };
}

/// The core whose event loop runs on the calling thread; `None` on other threads.
#[must_use]
pub fn current_core() -> Option<CoreId> {
    CURRENT.get()
}

/// The event loop of the calling thread, or `fallback` on a thread that has none.
pub(crate) fn own_loop(fallback: &Handle) -> Handle {
    match current_core() {
        Some(_) => Handle::current(),
        None => fallback.clone(),
    }
}

/// How an [`OsRuntime`] is made.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct OsOptions {
    /// Number of event loops. 0 means one per processor that the process may use.
    pub cores: u16,
    /// Binds each event loop to a processor of its own. Good for a machine that does nothing else.
    /// Bad when several processes share the processors, because all of them begin with the first
    /// one.
    pub pin: bool,
    /// How long an event loop looks for more work before it sleeps; zero means not at all. 50 µs
    /// about halves latency and costs a whole processor per busy loop. Use it only with a processor
    /// to spare.
    pub spin: Duration,
    /// Most threads per core for file access and other work that blocks. They start when needed and
    /// end after ten idle seconds. Further work waits in a queue.
    pub blocking_threads_max: usize,
}

impl Default for OsOptions {
    fn default() -> Self {
        Self {
            cores: 0,
            pin: false,
            spin: Duration::ZERO,
            // Enough to keep a device's queue filled, few enough not to matter.
            blocking_threads_max: 32,
        }
    }
}

impl OsOptions {
    /// The defaults with this number of event loops.
    #[must_use]
    pub fn with_cores(cores: u16) -> Self {
        Self {
            cores,
            ..Self::default()
        }
    }
}

/// Why a runtime did not start. Not retryable.
#[derive(Debug, thiserror::Error)]
#[error(
    "cannot start the event loop of core {core}: {source}; check the limits of threads and open files"
)]
pub struct StartError {
    core: u16,
    source: std::io::Error,
}

/// The event loops, and the other services of the operating system that a process needs.
pub struct OsRuntime {
    tasks: Arc<OsTasks>,
    clock: Arc<OsClock>,
    loops: Vec<EventLoop>,
    open_files_max: u64,
}

/// The thread of one core. Sending the limit for blocking work ends it.
struct EventLoop {
    stop: oneshot::Sender<Duration>,
    thread: JoinHandle<()>,
}

/// Opens and holds a directory, as [`OsRuntime::open_disk`] does.
pub type DiskOpener = Arc<dyn Fn(&Path) -> Result<Arc<dyn Disk>, DiskError> + Send + Sync>;

impl OsRuntime {
    /// Starts the event loops, and raises the process's limit of open files.
    ///
    /// # Errors
    /// [`StartError`] when the kernel gives no thread or no event queue; loops that were already
    /// started are stopped.
    pub fn start(options: &OsOptions) -> Result<Self, StartError> {
        let open_files_max = raise_open_files();
        let count = match options.cores {
            0 => std::thread::available_parallelism()
                .map_or(1, |n| u16::try_from(n.get()).unwrap_or(u16::MAX)),
            given => given,
        };
        let nodes = ThisMachine.nodes().ok();
        let mut cores = Vec::new();
        let mut runtimes = Vec::new();
        for core in 0..count {
            let (runtime, activity) =
                build(options).map_err(|source| StartError { core, source })?;
            cores.push(Core {
                handle: runtime.handle().clone(),
                activity,
                memory_node: options.pin.then(|| near(core)).flatten(),
            });
            runtimes.push(runtime);
        }
        let clock = Arc::new(OsClock::new(cores[0].handle.clone()));
        for core in &cores {
            if let Some(activity) = &core.activity {
                let clock: Arc<dyn Clock> = Arc::<OsClock>::clone(&clock);
                let spinner = keep_awake(Arc::clone(activity), clock, options.spin);
                core.handle.spawn(spinner);
            }
        }
        if let Some(first) = cores.first() {
            let clock: Arc<dyn Clock> = Arc::<OsClock>::clone(&clock);
            first.handle.spawn(buffers::keep(clock));
        }
        let mut this = Self {
            tasks: Arc::new(OsTasks::new(cores, nodes, options.pin)),
            clock,
            loops: Vec::new(),
            open_files_max,
        };
        for (core, runtime) in (0..count).zip(runtimes) {
            let event_loop = EventLoop::start(CoreId(core), runtime, options.pin)
                .map_err(|source| StartError { core, source })?;
            this.loops.push(event_loop);
        }
        tracing::debug!(cores = count, open_files_max, "event loops started");
        Ok(this)
    }

    /// Runs `future` on core 0 and waits for it. A panic of the future continues here.
    ///
    /// # Panics
    /// When called on an event loop, which would wait for itself.
    pub fn block_on<T: Send + 'static>(
        &self,
        future: impl Future<Output = T> + Send + 'static,
    ) -> T {
        assert!(
            current_core().is_none(),
            "block_on would wait for its own event loop"
        );
        let (give, take) = mpsc::sync_channel(1);
        let future = Box::pin(AssertUnwindSafe(future).catch_unwind());
        let task = Box::pin(async move {
            // Without a receiver, the waiting thread is gone, and there is nothing to do.
            drop(give.send(future.await));
        });
        self.tasks.spawn_on(CoreId(0), "main", task);
        match take
            .recv()
            .expect("the loop of core 0 runs as long as the runtime is borrowed")
        {
            Ok(value) => value,
            Err(panic) => std::panic::resume_unwind(panic),
        }
    }

    /// Puts an [`Env`] together.
    #[must_use]
    pub fn env(&self, network: Arc<dyn Network>, disk: Arc<dyn Disk>) -> Env {
        Env {
            clock: self.clock(),
            rng: self.rng(),
            disk,
            network,
            tasks: self.tasks(),
            #[cfg(target_os = "linux")]
            mapped: Some(Arc::new(crate::mapped::OsMemory)),
            #[cfg(not(target_os = "linux"))]
            mapped: None,
        }
    }

    /// The clocks.
    #[must_use]
    pub fn clock(&self) -> Arc<dyn Clock> {
        Arc::<OsClock>::clone(&self.clock)
    }

    /// Randomness.
    #[must_use]
    pub fn rng(&self) -> Arc<dyn Rng> {
        Arc::new(OsRng)
    }

    /// The event loops.
    #[must_use]
    pub fn tasks(&self) -> Arc<dyn Tasks> {
        Arc::<OsTasks>::clone(&self.tasks)
    }

    /// Files and sockets this process may have open at a time.
    #[must_use]
    pub fn open_files_max(&self) -> u64 {
        self.open_files_max
    }

    /// Opens (and if need be creates) a data directory and locks it. Blocks for a moment.
    ///
    /// # Errors
    /// [`DiskError::InUse`] when another process holds it, otherwise what the file system says.
    pub fn open_disk(&self, directory: &Path) -> Result<Arc<dyn Disk>, DiskError> {
        let fallback = self.tasks.handle(CoreId(0)).clone();
        Ok(Arc::new(OsDisk::open(directory, fallback)?))
    }

    /// [`OsRuntime::open_disk`] for code that runs on this runtime.
    pub fn disk_opener(&self) -> DiskOpener {
        let fallback = self.tasks.handle(CoreId(0)).clone();
        Arc::new(move |directory| Ok(Arc::new(OsDisk::open(directory, fallback.clone())?)))
    }

    /// Ends everything, in this order: background workers after their current step, tasks at their
    /// current suspension (they are dropped), then the threads. Waits at most about twice `limit`
    /// for steps and blocking work that take longer; the rest runs on unattended.
    pub fn shutdown(mut self, limit: Duration) {
        self.stop(limit);
    }

    fn stop(&mut self, limit: Duration) {
        let late = self.tasks.stop_background(limit);
        if late > 0 {
            tracing::warn!(workers = late, "background workers did not stop in time");
        }
        let (stops, threads): (Vec<_>, Vec<_>) = self
            .loops
            .drain(..)
            .map(|each| (each.stop, each.thread))
            .unzip();
        for stop in stops {
            // A loop that is gone already needs no stopping.
            let _gone = stop.send(limit);
        }
        let itself = std::thread::current().id();
        for thread in threads {
            // Dropped by one of its own tasks: that loop ends once the task gives way.
            let own = thread.thread().id() == itself;
            if !own && thread.join().is_err() {
                tracing::error!("an event loop ended with a panic");
            }
        }
    }
}

impl Drop for OsRuntime {
    fn drop(&mut self) {
        if !self.loops.is_empty() {
            self.stop(DROP_LIMIT);
        }
    }
}

impl EventLoop {
    fn start(core: CoreId, runtime: Runtime, pin: bool) -> std::io::Result<Self> {
        let (stop, stopped) = oneshot::channel();
        let thread = std::thread::Builder::new()
            .name(format!("core-{core}"))
            .spawn(move || {
                CURRENT.set(Some(core));
                if pin {
                    match pin_current_thread(usize::from(core.0)) {
                        Ok(processor) => tracing::debug!(core = core.0, processor, "pinned"),
                        Err(error) => tracing::warn!(core = core.0, %error, "cannot pin"),
                    }
                }
                let limit = runtime.block_on(stopped).unwrap_or(DROP_LIMIT);
                runtime.shutdown_timeout(limit);
            })?;
        Ok(Self { stop, thread })
    }
}

/// The memory node of the processor that a core's event loop is bound to.
fn near(core: u16) -> Option<u32> {
    let processor = affinity::processor_for(usize::from(core)).ok()?;
    affinity::memory_node(affinity::PROCESSORS.as_ref(), processor)
}

/// A tokio runtime for one core, and the record of its activity if it is to spin.
fn build(options: &OsOptions) -> std::io::Result<(Runtime, Option<Arc<Activity>>)> {
    let mut builder = Builder::new_current_thread();
    builder
        .enable_all()
        .thread_name("blocking")
        .max_blocking_threads(options.blocking_threads_max.max(1));
    let activity = (!options.spin.is_zero()).then(Arc::<Activity>::default);
    if let Some(activity) = &activity {
        let activity = Arc::clone(activity);
        builder.on_thread_unpark(move || activity.loop_woke());
    }
    Ok((builder.build()?, activity))
}
