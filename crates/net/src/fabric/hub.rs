//! The endpoint of one core for one provider and interface, and the task that takes its messages.
//!
//! How it works:
//! 1. The task takes what has come and gives each message to the line whose key it names. That is
//!    also what makes a provider in software move its bytes.
//! 2. When nothing has come for the length of the [`Window`], it sleeps on the provider's
//!    descriptor. A provider without one is looked at again after a pause, which doubles.
//! 3. Whoever sends nudges the task, since an answer may come soon. So does a byte on the socket
//!    beside a connection.
//!
//! - HUB-1: a message that names no line of this endpoint is thrown away. Keys are random, so
//!   only a process that was given one reaches a connection.
//!
//! A hub without connections sleeps, and stays open for the next one.

use crate::client_io::Shared;
use crate::counters::add;
use crate::fabric::line::{Fault, HEAD_BYTES, Head, Line};
use crate::lock;
use crate::window::Window;
use core::net::IpAddr;
use core::sync::atomic::{AtomicBool, Ordering::Relaxed};
use core::task::Waker;
use core::time::Duration;
use futures_util::future::{Either, select};
use pluvio_env::{Clock, TaskHandle};
use pluvio_fabric::{Endpoint, MESSAGE_BYTES_MAX, PeerId, Taken, Watch};
use pluvio_units::{CoreId, FixedMap};
use std::pin::pin;
use std::sync::{Arc, Mutex};
use tokio::sync::Notify;

/// Messages taken before other tasks have their turn.
const MESSAGES_MAX: usize = 64;
/// The first pause of a provider without a descriptor, the shortest that timers have; and the last
/// one. A side that sends after a silence wakes the other one by the socket, so the last one only
/// bounds what a lost wake-up costs.
const PAUSE_MIN: Duration = Duration::from_millis(1);
const PAUSE_MAX: Duration = Duration::from_millis(16);

/// Hubs of a core above which those without connections are closed. A machine has few interfaces,
/// and uses one provider or two.
const HUBS_MAX: usize = 8;

/// Bytes of one message of a connection.
pub(super) const PIECE_BYTES_MAX: usize = MESSAGE_BYTES_MAX - HEAD_BYTES;

/// The hubs of one core. They stay for the next connection: opening one takes some 100 ms.
#[derive(Default)]
pub(crate) struct Hubs(Mutex<FixedMap<Place, Arc<Hub>>>);

/// The provider and the interface of a hub.
type Place = (Box<str>, IpAddr);

/// An open endpoint. Dropping it ends its task.
pub(crate) struct Hub {
    inside: Arc<Inside>,
    task: TaskHandle,
}

struct Inside {
    endpoint: Arc<Endpoint>,
    shared: Counting,
    /// By their keys, which this side chose.
    lines: Mutex<FixedMap<u64, Arc<Line>>>,
    /// Tasks whose message the provider did not take.
    blocked: Mutex<Vec<Waker>>,
    nudged: Notify,
    window: Mutex<Window>,
    is_broken: AtomicBool,
}

/// The part of the network that the task needs; it must not keep the network alive.
struct Counting {
    clock: Arc<dyn Clock>,
    strays: Box<dyn Fn(usize) + Send + Sync>,
}

impl Drop for Hub {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Hubs {
    /// The hub of `core` for a provider and an interface, opened if there is none.
    ///
    /// # Errors
    /// The provider does not work here.
    pub(super) async fn get(
        shared: &Shared,
        core: CoreId,
        provider: &str,
        node: IpAddr,
    ) -> Result<Arc<Hub>, String> {
        let hubs = &shared.fabric[usize::from(core.0)];
        let key = (Box::from(provider), node);
        let there = lock(&hubs.0).get(&key).cloned();
        if let Some(there) = there.filter(|hub| hub.is_good()) {
            return Ok(there);
        }
        let endpoint = open(shared, provider, node).await?;
        let hub = Hub::start(shared, core, endpoint);
        let mut hubs = lock(&hubs.0);
        if hubs.len() >= HUBS_MAX {
            hubs.retain(|_, hub| Arc::strong_count(hub) > 1);
        }
        hubs.insert(key, Arc::clone(&hub));
        Ok(hub)
    }
}

/// Opens an endpoint outside the event loops.
pub(super) async fn open(
    shared: &Shared,
    provider: &str,
    node: IpAddr,
) -> Result<Endpoint, String> {
    let opened = Arc::new(Mutex::new(None));
    let (name, result) = (provider.to_owned(), Arc::clone(&opened));
    let work = move || *lock(&result) = Some(Endpoint::open(&name, node));
    shared.tasks.run_blocking(Box::new(work)).await;
    let opened = lock(&opened).take();
    opened.unwrap_or_else(|| Err("the process is shutting down".to_owned()))
}

impl Hub {
    fn start(shared: &Shared, core: CoreId, endpoint: Endpoint) -> Arc<Self> {
        let counters = Arc::clone(&shared.counters);
        let inside = Arc::new(Inside {
            endpoint: Arc::new(endpoint),
            shared: Counting {
                clock: Arc::clone(&shared.clock),
                strays: Box::new(move |count| add(&counters.of(core).fabric_strays, count)),
            },
            lines: Mutex::default(),
            blocked: Mutex::default(),
            nudged: Notify::new(),
            window: Mutex::new(Window::new(
                shared.options.spin,
                shared.options.ring_spin_max,
            )),
            is_broken: AtomicBool::new(false),
        });
        let run = Arc::clone(&inside).run();
        let task = shared.tasks.spawn(core, "fabric", run);
        Arc::new(Self { inside, task })
    }

    /// Whether the next connection may use it. A message to a process that died may never end. When
    /// that is all that is left, the endpoint has served its time.
    fn is_good(&self) -> bool {
        let inside = &self.inside;
        let is_idle = lock(&inside.lines).is_empty();
        let must_wait = is_idle && inside.endpoint.under_way() > 0;
        !must_wait && !inside.is_broken.load(Relaxed)
    }

    pub(super) fn endpoint(&self) -> &Arc<Endpoint> {
        &self.inside.endpoint
    }

    /// Gives messages with its key to a line.
    pub(super) fn add(&self, line: &Arc<Line>) {
        lock(&self.inside.lines).insert(line.key, Arc::clone(line));
        self.nudge();
    }

    pub(super) fn remove(&self, line: &Line) {
        lock(&self.inside.lines).remove(&line.key);
    }

    /// Takes what has come, at once.
    pub(super) fn turn(&self) {
        self.inside.turn();
    }

    /// Has the task look for a while.
    pub(super) fn nudge(&self) {
        self.inside.nudged.notify_one();
    }

    /// Has `waker` woken when the provider may take messages again.
    pub(super) fn block(&self, waker: &Waker) {
        lock(&self.inside.blocked).push(waker.clone());
        self.nudge();
    }

    /// Whether the other side's task may be woken by the socket alone.
    pub(super) fn has_no_descriptor(&self) -> bool {
        !self.inside.endpoint.can_wake()
    }
}

impl Inside {
    /// Never ends before the endpoint fails.
    async fn run(self: Arc<Self>) {
        let watch = match Watch::new(&self.endpoint) {
            Ok(watch) => watch,
            Err(error) => {
                tracing::error!(%error, "cannot watch an endpoint of libfabric");
                return self.fail();
            }
        };
        let clock = Arc::clone(&self.shared.clock);
        let (mut since, mut pause, mut slept) = (clock.now(), PAUSE_MIN, None);
        while !self.is_broken.load(Relaxed) {
            let found = self.turn();
            let now = clock.now();
            if found {
                since = now;
                pause = PAUSE_MIN;
                if let Some(slept) = slept.take() {
                    lock(&self.window).note_news(slept);
                }
            }
            if found || now.since(since) < lock(&self.window).length() {
                tokio::task::yield_now().await;
                continue;
            }
            match &watch {
                _ if lock(&self.lines).is_empty() => self.nudged.notified().await,
                // It is not armed while there is news; the next turn takes that.
                Some(_) if !self.endpoint.may_sleep() => tokio::task::yield_now().await,
                Some(watch) => self.sleep_on(watch).await,
                None => {
                    let sleep = clock.sleep(pause);
                    pause = (2 * pause).min(PAUSE_MAX);
                    if let Either::Left(_) = select(pin!(self.nudged.notified()), sleep).await {
                        pause = PAUSE_MIN;
                    }
                }
            }
            let woken = clock.now();
            slept = Some(woken.since(now));
            since = woken;
        }
    }

    /// Sleeps until there is news. While somebody's message was not taken, not long:
    /// no provider says when it takes messages again.
    async fn sleep_on(&self, watch: &Watch) {
        let (news, nudged) = (pin!(watch.news()), pin!(self.nudged.notified()));
        let woken = select(news, nudged);
        if lock(&self.blocked).is_empty() {
            woken.await;
        } else {
            select(woken, self.shared.clock.sleep(PAUSE_MIN)).await;
        }
    }

    /// Takes messages, not too many. Gives whether there were some.
    fn turn(&self) -> bool {
        let mut bytes = [0; MESSAGE_BYTES_MAX];
        let mut count = 0;
        let mut strays = 0;
        while count < MESSAGES_MAX {
            match self.endpoint.take(&mut bytes) {
                Ok(Taken::Nothing) => break,
                Ok(Taken::Message(len)) => strays += usize::from(!self.deliver(&bytes[..len])),
                Ok(Taken::Undelivered(peer)) => self.fail_peer(peer),
                Err(broken) => {
                    tracing::warn!(code = broken.0, "an endpoint of libfabric failed");
                    self.fail();
                    break;
                }
            }
            count += 1;
        }
        if strays > 0 {
            (self.shared.strays)(strays);
        }
        let blocked = core::mem::take(&mut *lock(&self.blocked));
        for waker in blocked {
            waker.wake();
        }
        count > 0
    }

    /// Gives a message to its line. `false`: there is none (HUB-1).
    fn deliver(&self, message: &[u8]) -> bool {
        let Some((head, bytes)) = Head::decode(message) else {
            return false;
        };
        let line = lock(&self.lines).get(&head.key).cloned();
        if let Some(line) = &line {
            line.arrive(head, bytes, self.shared.clock.now());
        }
        line.is_some()
    }

    fn all_lines(&self) -> Vec<Arc<Line>> {
        lock(&self.lines).values().cloned().collect()
    }

    fn fail_peer(&self, peer: PeerId) {
        for line in self.all_lines() {
            if line.peer.get() == Some(&peer) {
                line.fail(Fault::Undelivered);
            }
        }
    }

    fn fail(&self) {
        self.is_broken.store(true, Relaxed);
        for line in self.all_lines() {
            line.fail(Fault::Endpoint);
        }
    }
}
