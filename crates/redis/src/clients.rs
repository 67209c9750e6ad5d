//! The connections of this process, for CLIENT LIST and CLIENT KILL.
//!
//! Owns what others may see of a connection. The connection itself writes it: at most once a read,
//! but for its name and what its library says.

use crate::database::DatabaseId;
use crate::reply::Protocol;
use crate::table::SPECS;
use crate::users::rules::DEFAULT;
use core::task::Waker;
use core::time::Duration;
use futures_util::task::AtomicWaker;
use pluvio_env::{Address, Moment};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU16, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

/// No command was run yet.
const NO_COMMAND: u16 = u16::MAX;

/// What others see of a connection.
pub(crate) struct ClientEntry {
    pub(crate) id: u64,
    pub(crate) address: Address,
    pub(crate) local: Address,
    since: Moment,
    active_ms: AtomicU64,
    killed: AtomicBool,
    retired: AtomicBool,
    wake: AtomicWaker,
    database: AtomicU16,
    resp3: AtomicBool,
    command: AtomicU16,
    is_monitor: AtomicBool,
    /// Commands that wait for EXEC; below 0: there was no MULTI.
    queued: AtomicI64,
    watched: AtomicUsize,
    pub(crate) input_bytes: AtomicUsize,
    pub(crate) output_bytes: AtomicUsize,
    /// Bytes of replies of commands behind one that is under way.
    pub(crate) waiting_bytes: AtomicUsize,
    texts: Mutex<Texts>,
    /// The name and the life of its user.
    user: Mutex<(Box<[u8]>, u64)>,
}

/// What a connection says of itself.
#[derive(Clone, Default)]
pub(crate) struct Texts {
    pub(crate) name: String,
    pub(crate) library: String,
    pub(crate) library_version: String,
}

impl ClientEntry {
    pub(crate) fn texts(&self) -> Texts {
        let texts = self.texts.lock();
        texts.unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub(crate) fn change_texts(&self, change: impl FnOnce(&mut Texts)) {
        change(&mut self.texts.lock().unwrap_or_else(PoisonError::into_inner));
    }

    /// The name and the life of its user.
    pub(crate) fn user(&self) -> (Box<[u8]>, u64) {
        let user = self.user.lock();
        user.unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub(crate) fn set_user(&self, name: &[u8], life: u64) {
        *self.user.lock().unwrap_or_else(PoisonError::into_inner) = (name.into(), life);
    }

    pub(crate) fn set_active(&self, now: Moment) {
        let ms = now.since(self.since).as_millis();
        self.active_ms
            .store(u64::try_from(ms).unwrap_or(u64::MAX), Ordering::Relaxed);
    }

    /// How long it has neither sent nor taken anything.
    pub(crate) fn idle(&self, now: Moment) -> Duration {
        let active = Duration::from_millis(self.active_ms.load(Ordering::Relaxed));
        now.since(self.since).saturating_sub(active)
    }

    pub(crate) fn set_command(&self, spec: u16) {
        self.command.store(spec, Ordering::Relaxed);
    }

    pub(crate) fn set_session(&self, database: DatabaseId, protocol: Protocol) {
        self.database
            .store(u16::from(database.number()), Ordering::Relaxed);
        self.resp3
            .store(protocol == Protocol::Resp3, Ordering::Relaxed);
    }

    /// The version of the protocol that it speaks.
    pub(crate) fn protocol(&self) -> Protocol {
        match self.resp3.load(Ordering::Relaxed) {
            true => Protocol::Resp3,
            false => Protocol::Resp2,
        }
    }

    /// Notes that it is told what others run, or no more.
    pub(crate) fn set_monitor(&self, is_monitor: bool) {
        self.is_monitor.store(is_monitor, Ordering::Relaxed);
    }

    /// Notes how many commands wait for EXEC, if there was MULTI, and how many keys are watched.
    pub(crate) fn set_block(&self, queued: Option<usize>, watched: usize) {
        let queued = queued.map_or(-1, |count| i64::try_from(count).unwrap_or(i64::MAX));
        self.queued.store(queued, Ordering::Relaxed);
        self.watched.store(watched, Ordering::Relaxed);
    }

    /// How many keys are watched.
    pub(crate) fn watched(&self) -> usize {
        self.watched.load(Ordering::Relaxed)
    }

    /// How long it has been open.
    pub(crate) fn age(&self, now: Moment) -> Duration {
        now.since(self.since)
    }

    /// Lets the connection look around.
    pub(crate) fn wake(&self) {
        self.wake.wake();
    }

    /// The letters of CLIENT LIST.
    fn flags(&self) -> String {
        let is_open = self.queued.load(Ordering::Relaxed) >= 0;
        let letters = [
            ('O', self.is_monitor.load(Ordering::Relaxed)),
            ('x', is_open),
        ];
        let set = letters.into_iter().filter(|(_, is_set)| *is_set);
        let flags: String = set.map(|(letter, _)| letter).collect();
        match flags.is_empty() {
            true => "N".to_owned(),
            false => flags,
        }
    }

    /// Tells the connection to end.
    pub(crate) fn kill(&self) {
        // Pairs with the acquires in `is_killed` and `was_killed`: whoever is woken sees the flag.
        self.killed.store(true, Ordering::Release);
        self.wake.wake();
    }

    /// Tells the connection to end as soon as all that arrived is answered.
    fn retire(&self) {
        // As in `kill`.
        self.retired.store(true, Ordering::Release);
        self.wake.wake();
    }

    /// Whether the connection ends when all that arrived is answered.
    pub(crate) fn is_retired(&self) -> bool {
        self.retired.load(Ordering::Acquire)
    }

    /// Whether the connection has to end; if not, `waker` is woken once it has.
    pub(crate) fn is_killed(&self, waker: &Waker) -> bool {
        self.wake.register(waker);
        self.was_killed()
    }

    /// Whether the connection has to end, for one that does not wait.
    pub(crate) fn was_killed(&self) -> bool {
        self.killed.load(Ordering::Acquire)
    }

    /// One line of CLIENT LIST, in the form of Redis 7.2.
    pub(crate) fn describe(&self, now: Moment) -> String {
        let age = now.since(self.since);
        let active = self.active_ms.load(Ordering::Relaxed);
        let idle = u64::try_from(age.as_millis()).unwrap_or(u64::MAX);
        let idle = idle.saturating_sub(active) / 1000;
        let command = self.command.load(Ordering::Relaxed);
        let command = SPECS.get(usize::from(command)).map_or("NULL", |s| s.name);
        let texts = self.texts();
        let input = self.input_bytes.load(Ordering::Relaxed);
        let output = self.output_bytes.load(Ordering::Relaxed);
        format!(
            "id={} addr={} laddr={} fd=-1 name={} age={} idle={idle} flags={} db={} sub=0 psub=0 ssub=0 \
             multi={} qbuf={input} qbuf-free=0 argv-mem=0 multi-mem=0 rbs=0 rbp=0 obl={output} oll=0 \
             omem={output} tot-mem={} events=r cmd={command} user={} redir=-1 resp={} \
             lib-name={} lib-ver={}",
            self.id,
            self.address,
            self.local,
            texts.name,
            age.as_secs(),
            self.flags(),
            self.database.load(Ordering::Relaxed),
            self.queued.load(Ordering::Relaxed),
            input + output,
            String::from_utf8_lossy(&self.user().0),
            if self.resp3.load(Ordering::Relaxed) {
                3
            } else {
                2
            },
            texts.library,
            texts.library_version,
        )
    }
}

/// All connections of this process.
#[derive(Default)]
pub(crate) struct Clients {
    last: AtomicU64,
    retired: AtomicBool,
    open: Mutex<BTreeMap<u64, Arc<ClientEntry>>>,
}

impl Clients {
    /// Tells all connections, and those that come, to end as soon as all that arrived is answered.
    pub(crate) fn retire(&self) {
        // Before the look at those that are open: see `enter`.
        self.retired.store(true, Ordering::Release);
        for entry in self.all() {
            entry.retire();
        }
    }

    /// A new connection; its entry goes away with [`Clients::leave`].
    pub(crate) fn enter(&self, address: Address, local: Address, now: Moment) -> Arc<ClientEntry> {
        let id = self.last.fetch_add(1, Ordering::Relaxed) + 1;
        let entry = Arc::new(ClientEntry {
            id,
            address,
            local,
            since: now,
            active_ms: AtomicU64::new(0),
            killed: AtomicBool::new(false),
            retired: AtomicBool::new(false),
            wake: AtomicWaker::new(),
            database: AtomicU16::new(0),
            resp3: AtomicBool::new(false),
            command: AtomicU16::new(NO_COMMAND),
            is_monitor: AtomicBool::new(false),
            queued: AtomicI64::new(-1),
            watched: AtomicUsize::new(0),
            input_bytes: AtomicUsize::new(0),
            output_bytes: AtomicUsize::new(0),
            waiting_bytes: AtomicUsize::new(0),
            texts: Mutex::default(),
            user: Mutex::new((DEFAULT.into(), 0)),
        });
        let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        open.insert(id, entry.clone());
        // Under the lock: `retire` sees this entry, or this sees what it has set.
        if self.retired.load(Ordering::Acquire) {
            entry.retired.store(true, Ordering::Release);
        }
        entry
    }

    pub(crate) fn leave(&self, id: u64) {
        let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        open.remove(&id);
    }

    /// Those that are open, oldest first. Killed ones count until they have noticed it.
    pub(crate) fn all(&self) -> Vec<Arc<ClientEntry>> {
        let open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        open.values().cloned().collect()
    }

    /// Those that are open and not killed, oldest first.
    pub(crate) fn alive(&self) -> impl Iterator<Item = Arc<ClientEntry>> {
        self.all().into_iter().filter(|entry| !entry.was_killed())
    }
}
