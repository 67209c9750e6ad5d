//! The tasks and threads of a server beside its requests: those that follow the cluster, and those
//! that clear away.

use super::Starting;
use crate::identity::Identity;
use crate::membership::Standing;
use pluvio_client::{Client, ClientOptions, Doubt};
use pluvio_env::{Pace, TaskHandle};
use pluvio_log::{Cleaner, LogSpace, Populating};
use pluvio_master::Master;
use pluvio_units::{ClientId, CoreId, KeyPlace, LOCKED_LONG, LogId, ServerListVersion};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// Pause between looks for clients that are gone. Each look is at a 64th of them, at most some
/// thousand.
const FORGET_CLIENTS_PAUSE: Duration = Duration::from_millis(500);
/// Between two looks for keys that transactions have locked for long.
const RESOLVE_PAUSE: Duration = Duration::from_millis(250);
/// Most locked keys of a look.
const RESOLVE_MAX: usize = 4096;
/// Most transactions that are looked after at a time.
const RESOLVE_AT_ONCE: usize = 256;
/// Pause between looks for keys that have expired. Deadlines are judged by the millisecond, whether
/// or not this is called; the horizon is appended some times in its lead.
const EXPIRE_PAUSE: Duration = Duration::from_millis(100);
/// Keys dropped at a time, while other requests of the core wait: some 50 us. Where there are more,
/// the requests that have arrived come first. So an idle core drops as fast as it can, some hundred
/// thousand keys a second. A request waits for one slice at most.
const EXPIRE_SLICE: usize = 32;

/// Transactions that are looked after at the moment.
type Running = Arc<Mutex<BTreeSet<(ClientId, KeyPlace)>>>;

/// One of them. It counts until this is dropped, however its task ends.
struct Turn {
    running: Running,
    name: (ClientId, KeyPlace),
}

impl Turn {
    /// `None` where it is looked after already, or many others are.
    fn take(running: &Running, name: (ClientId, KeyPlace)) -> Option<Self> {
        let mut names = running.lock().unwrap_or_else(PoisonError::into_inner);
        let is_new = names.len() < RESOLVE_AT_ONCE && names.insert(name);
        is_new.then(|| Self {
            running: Arc::clone(running),
            name,
        })
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        let mut names = { self.running.lock() }.unwrap_or_else(PoisonError::into_inner);
        names.remove(&self.name);
    }
}

impl Starting {
    /// Tells backup and master of every new server list.
    pub(super) fn follow_list(&self, master: Arc<Master>) -> TaskHandle {
        let mut list = self.membership.watch_list();
        let backup = self.backup.clone();
        self.env.tasks.spawn(CoreId(0), "server list", async move {
            loop {
                let now = list.borrow_and_update().clone();
                // None of all has version 0.
                if now.version > ServerListVersion(0) {
                    backup.server_list_changed(&now);
                    master.replication().server_list_changed(&now);
                    master.server_list_changed(&now);
                }
                if list.changed().await.is_err() {
                    return;
                }
            }
        })
    }

    /// Opens the logs of durability classes, as every new server list has them.
    pub(super) fn open_classes(&self, master: Arc<Master>) -> TaskHandle {
        let mut list = self.membership.watch_list();
        self.env.tasks.spawn(CoreId(0), "classes", async move {
            loop {
                let now = list.borrow_and_update().clone();
                master.open_classes(&now).await;
                if list.changed().await.is_err() {
                    return;
                }
            }
        })
    }

    /// Keeps the cluster's version in the data directory: a program that does not speak it is kept
    /// from what is written from then on.
    pub(super) fn follow_version(&self, mut identity: Identity) -> TaskHandle {
        /// The pause before a disk that refused is asked again.
        const AGAIN: Duration = Duration::from_secs(1);
        let mut list = self.membership.watch_list();
        let env = self.env.clone();
        let tasks = Arc::clone(&env.tasks);
        tasks.spawn(CoreId(0), "version", async move {
            loop {
                let active = list.borrow_and_update().active;
                if active > identity.protocol {
                    let raised = Identity {
                        protocol: active,
                        ..identity
                    };
                    match raised.store(&*env.disk).await {
                        Ok(()) => {
                            tracing::info!(active, "the cluster's version was raised");
                            identity = raised;
                        }
                        Err(error) => {
                            tracing::warn!(%error, "the data directory does not say that the cluster's version was raised; trying again");
                            env.clock.sleep(AGAIN).await;
                            continue;
                        }
                    }
                }
                if list.changed().await.is_err() {
                    return;
                }
            }
        })
    }

    /// Stops the master when the cluster has declared this server dead (SRV-1).
    pub(super) fn follow_standing(&self, master: Arc<Master>) -> TaskHandle {
        let mut standing = self.membership.watch_standing();
        self.env.tasks.spawn(CoreId(0), "standing", async move {
            while standing.changed().await.is_ok() {
                match &*standing.borrow_and_update() {
                    Standing::Joining | Standing::Member => continue,
                    Standing::Expelled(why) => {
                        pluvio_units::mark("server-expelled");
                        tracing::warn!(why, "this server was declared dead and stops serving");
                    }
                    Standing::Left => {
                        pluvio_units::mark("server-left");
                        tracing::info!("this server has left the cluster");
                    }
                }
                master.stop();
                return;
            }
        })
    }

    /// Lets the master forget clients that are gone, a part of them at a time.
    pub(super) fn forget_clients(&self, master: Arc<Master>) -> TaskHandle {
        let clock = Arc::clone(&self.env.clock);
        self.env.tasks.spawn(CoreId(0), "clients", async move {
            loop {
                clock.sleep(FORGET_CLIENTS_PAUSE).await;
                master.forget_clients();
            }
        })
    }

    /// Goes on with transactions of several servers that have locked keys here for long: their
    /// clients may be gone. One that takes long does not hold up the others.
    pub(super) fn resolve_transactions(&self, master: Arc<Master>) -> TaskHandle {
        let (clock, tasks) = (Arc::clone(&self.env.clock), Arc::clone(&self.env.tasks));
        let options = ClientOptions::new(self.options.coordinators.clone());
        let client = Client::embedded(&self.env, options, Arc::new(self.local.clone()));
        let running = Running::default();
        self.env.tasks.spawn(CoreId(0), "transactions", async move {
            loop {
                clock.sleep(RESOLVE_PAUSE).await;
                let mut doubts: BTreeMap<(ClientId, KeyPlace), Vec<KeyPlace>> = BTreeMap::new();
                for locked in master.locked_for(LOCKED_LONG, RESOLVE_MAX) {
                    let doubt = doubts.entry((locked.client, locked.home));
                    doubt.or_default().push(locked.place);
                }
                for (name, keys) in doubts {
                    let Some(turn) = Turn::take(&running, name) else {
                        continue;
                    };
                    let client = client.clone();
                    let resolve = async move {
                        let (of, home) = name;
                        let doubt = Doubt {
                            client: of,
                            home,
                            keys,
                        };
                        pluvio_units::mark("transaction-resolved-by-server");
                        if let Err(error) = client.resolve(&doubt).await {
                            tracing::debug!(%error, "a transaction cannot be concluded yet");
                        }
                        drop(turn);
                    };
                    drop(tasks.spawn(CoreId(0), "transaction", resolve));
                }
            }
        })
    }

    /// Lets the master drop what has expired, with the log of one core.
    pub(super) fn expire(&self, core: CoreId, master: &Arc<Master>) -> TaskHandle {
        let (clock, master) = (Arc::clone(&self.env.clock), Arc::clone(master));
        let log = LogId(core.0 % master.store().space().first_logs());
        self.env.tasks.spawn(core, "expiry", async move {
            loop {
                match master.expire(log, EXPIRE_SLICE) {
                    // Lets the event loop look for what has arrived, too.
                    true => tokio::task::yield_now().await,
                    false => clock.sleep(EXPIRE_PAUSE).await,
                }
            }
        })
    }

    /// A thread that has the system fetch the log's memory.
    pub(super) fn populate(&self, space: Arc<LogSpace>) -> TaskHandle {
        let memory = self.options.memory;
        tracing::info!(%memory, "fetching all of the log's memory from the system");
        let mut populating = Populating::default();
        let step = move || match populating.step(&space) {
            Ok(Populating::Done) => {
                tracing::info!(%memory, "all of the log's memory was fetched from the system");
                Pace::Done
            }
            Ok(next) => {
                populating = next;
                Pace::Again
            }
            Err(error) => {
                tracing::warn!(%error, "cannot fetch the log's memory beforehand; the rest is fetched as it is used");
                Pace::Done
            }
        };
        self.env.tasks.background("populate", Box::new(step))
    }

    /// A thread that steps the cleaner: the one with this number.
    pub(super) fn start_cleaner(
        &self,
        number: u16,
        cleaner: Arc<Cleaner>,
        space: Arc<LogSpace>,
    ) -> TaskHandle {
        let clock = Arc::clone(&self.env.clock);
        let node = cleaner.node_of(number);
        let step = move || {
            let now_s = u32::try_from(clock.unix_seconds()).unwrap_or(u32::MAX);
            match cleaner.step_as(number, now_s) {
                Ok(pace) => pace,
                Err(corruption) => {
                    space.found_corrupt(&corruption);
                    Pace::Done
                }
            }
        };
        let tasks = &self.env.tasks;
        tasks.background_near("cleaner", node, Box::new(step))
    }
}
