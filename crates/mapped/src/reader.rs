//! The read itself.
//!
//! ```text
//! begin ──► index: slot ──► log: copy of the entry ──► does it count?
//!   the gate's epoch                                     memory not used again, map not old,
//!                                                        page fresh: else the copy is nothing
//! ```
//!
//! Invariants:
//! - MAP-1: an answer is one that the owner gave, had it been asked at the moment at which the slot
//!   was read. Whatever cannot be told so is [`Answer::Ask`], never a guess.
//! - MAP-2: a read stores nothing that others see, so a reader that is stopped or killed in it
//!   holds up nobody.
//!
//! A read makes no system call, where the system maps its clock. It seldom asks that clock
//! (`clock`).

use crate::clock::{boottime_ns, latest_ns, look_at_system};
use crate::map::Map;
use crate::session::{CLOCK_SLACK, Memory, OnlyOwner, OpenError, Session};
use core::sync::atomic::{AtomicU64, Ordering, fence};
use pluvio_index::{IndexReader, Lookup};
use pluvio_log::ReadEntry;
use pluvio_memory::{Current, NotCounted};
use pluvio_units::{
    ClusterId, Deadline, KeyHash, ObjectVersion, ServerId, TableHash, TableId, UnixMs,
};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, TryLockError};

/// Attempts of one read whose memory was used again meanwhile. That takes milliseconds, and a read
/// takes less than one: only a thread that loses its processor in the middle needs a second.
const ATTEMPTS_MAX: u32 = 4;

/// How long another thread may talk to the owner: two greetings and a map, each with patience.
const TALK_NS_MAX: u64 = if cfg!(test) {
    100_000_000
} else {
    10_000_000_000
};

/// Lines of an entry that are asked for before the first is looked at.
const PREFETCH_LINES: u64 = 3;

/// A deadline that is nearer than this is left to the owner, which knows the time exactly. The
/// time in the page is older than this only if the page is not fresh either.
const NEAR_MS: u64 = 1_000;

/// What a read has found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Answer {
    /// The object, in this version. Its value was copied.
    Found(ObjectVersion),
    /// There is none.
    Absent,
    /// It cannot be told: ask the owner.
    Ask(Why),
}

/// Why a read cannot be answered without the owner.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Why {
    /// The tablet is not here, or is not read in memory.
    NotHere,
    /// What is served has changed: a new map is needed ([`Reader::refresh`]).
    OldMap,
    /// The owner has not said lately that its memory is the truth.
    NotFresh,
    /// The last change is not durable yet.
    Pending,
    /// A transaction has locked the key.
    Locked,
    /// The deadline is near.
    Deadline,
    /// The memory was used again while it was read, each time.
    Reused,
    /// Others were changing the key's bucket all the time.
    Busy,
    /// The memory holds what no owner writes.
    Broken,
}

impl Why {
    /// All of them.
    pub const ALL: [Self; 9] = [
        Self::NotHere,
        Self::OldMap,
        Self::NotFresh,
        Self::Pending,
        Self::Locked,
        Self::Deadline,
        Self::Reused,
        Self::Busy,
        Self::Broken,
    ];

    /// Its name, for metrics.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::NotHere => "not_here",
            Self::OldMap => "old_map",
            Self::NotFresh => "not_fresh",
            Self::Pending => "pending",
            Self::Locked => "locked",
            Self::Deadline => "deadline",
            Self::Reused => "reused",
            Self::Busy => "busy",
            Self::Broken => "broken",
        }
    }
}

/// A reader of one owner, a server or a store inside another program. Any thread may use it.
#[derive(Debug)]
pub struct Reader {
    path: PathBuf,
    /// The one owner whose memory is read, where that matters.
    only: Option<OnlyOwner>,
    attached: Current<Attached>,
    /// Held by the one thread that talks to the owner.
    session: Mutex<Option<Session>>,
    stale: AtomicU64,
}

#[derive(Debug)]
struct Attached {
    memory: Arc<Memory>,
    map: Map,
}

impl Reader {
    /// Connects to the door at `path`, and maps what its owner shares.
    ///
    /// # Errors
    /// See [`OpenError`].
    pub fn open(path: impl AsRef<Path>) -> Result<Self, OpenError> {
        Self::open_any(path.as_ref(), None)
    }

    /// [`Self::open`] that reads the memory of one server alone, whoever has the door later.
    ///
    /// # Errors
    /// As there.
    pub fn open_server(path: impl AsRef<Path>, only: OnlyOwner) -> Result<Self, OpenError> {
        Self::open_any(path.as_ref(), Some(only))
    }

    fn open_any(path: &Path, only: Option<OnlyOwner>) -> Result<Self, OpenError> {
        look_at_system();
        let (session, memory) = Session::connect(path, only)?;
        let map = session.map(&Map::default())?;
        let memory = Arc::new(memory);
        let attached = Current::new(Arc::new(Attached { memory, map }));
        Ok(Self {
            path: path.into(),
            only,
            attached: attached.map_err(broken)?,
            session: Mutex::new(Some(session)),
            stale: AtomicU64::new(0),
        })
    }

    /// The server that owns the memory; 0 for a store inside a program.
    #[must_use]
    pub fn server(&self) -> ServerId {
        self.attached.load().memory.welcome.server
    }

    /// The cluster and the server that own the memory; zeroes for a store inside a program.
    #[must_use]
    pub fn owner(&self) -> (ClusterId, ServerId) {
        let welcome = self.attached.load().memory.welcome;
        (welcome.cluster, welcome.server)
    }

    /// The table with this name, where tables are known by name.
    #[must_use]
    pub fn table_named(&self, name: &str) -> Option<TableId> {
        let attached = self.attached.load();
        let mut tables = attached.map.tables.iter();
        tables
            .find(|(_, table)| table.name == name)
            .map(|(id, _)| *id)
    }

    /// How the keys of a table are hashed.
    #[must_use]
    pub fn hash_of(&self, table: TableId) -> Option<TableHash> {
        let attached = self.attached.load();
        attached.map.tables.get(&table).map(|table| table.hash)
    }

    /// Whether a new map would help: somebody has met an old one, or a page that is not fresh.
    #[must_use]
    #[inline]
    pub fn is_stale(&self) -> bool {
        self.stale.load(Ordering::Relaxed) == self.attached.load().map.number
    }

    /// Whether reads can be answered now: the map is the newest, and the page is fresh. No system
    /// call, and no answer that was given before.
    #[must_use]
    pub fn is_current(&self) -> bool {
        let attached = self.attached.load();
        let memory = &attached.memory;
        memory.gate.version() == attached.map.version && memory.is_fresh()
    }

    /// Gets a new map from the owner, unless another thread has got one meanwhile. Connects anew
    /// where the session is over, or was made by the process that this one was forked from. Waits
    /// for the owner some seconds at most.
    ///
    /// # Errors
    /// See [`OpenError`].
    pub fn refresh(&self) -> Result<(), OpenError> {
        look_at_system();
        let before = self.attached.load().map.number;
        let mut held = talk(&self.session)?;
        if self.attached.load().map.number != before {
            return Ok(());
        }
        if let Some(session) = held.take_if(|session| session.is_own()) {
            let known = self.attached.load_full();
            if let Ok(map) = session.map(&known.map) {
                let memory = Arc::clone(&known.memory);
                let next = Arc::new(Attached { memory, map });
                self.attached.replace(next).map_err(broken)?;
                *held = Some(session);
                return Ok(());
            }
        }
        *held = None;
        let (session, memory) = Session::connect(&self.path, self.only)?;
        let map = session.map(&Map::default())?;
        let memory = Arc::new(memory);
        let next = Arc::new(Attached { memory, map });
        self.attached.replace(next).map_err(broken)?;
        *held = Some(session);
        Ok(())
    }

    /// Ends the session. Reads go on as long as the owner lives, with the map that is known. Waits
    /// some seconds at most for another thread that talks to the owner. In a forked child such a
    /// thread may be missing: then the session stays, which is its parent's.
    pub fn leave(&self) {
        if let Ok(mut held) = talk(&self.session) {
            *held = None;
        }
    }

    /// Looks for an object, and lets `into` hold its value. Only after [`Answer::Found`] does its
    /// content mean something.
    #[inline]
    pub fn read(&self, table: TableId, key: &[u8], into: &mut Vec<u8>) -> Answer {
        let attached = self.attached.load();
        let Some(known) = attached.map.tables.get(&table) else {
            return self.not_here(&attached);
        };
        let hash = known.hash.of(key);
        self.read_under(&attached, known.index_of(hash), (table, hash, key), into)
    }

    /// [`Self::read`] with the hash of the key, where the caller has it.
    #[inline]
    pub fn read_hashed(
        &self,
        table: TableId,
        hash: KeyHash,
        key: &[u8],
        into: &mut Vec<u8>,
    ) -> Answer {
        let attached = self.attached.load();
        let known = attached.map.tables.get(&table);
        let index = known.and_then(|known| known.index_of(hash));
        self.read_under(&attached, index, (table, hash, key), into)
    }

    #[inline]
    fn read_under(
        &self,
        attached: &Attached,
        index: Option<&IndexReader>,
        place: (TableId, KeyHash, &[u8]),
        into: &mut Vec<u8>,
    ) -> Answer {
        let Some(index) = index else {
            return self.not_here(attached);
        };
        let answer = attached
            .memory
            .read(index, attached.map.version, place, into);
        match answer {
            Answer::Ask(Why::OldMap | Why::NotFresh) => self.note_stale(attached),
            Answer::Found(_) | Answer::Absent | Answer::Ask(_) => {}
        }
        answer
    }

    /// A tablet that is not in the map: the map may be old.
    #[cold]
    fn not_here(&self, attached: &Attached) -> Answer {
        if attached.memory.gate.version() == attached.map.version {
            return Answer::Ask(Why::NotHere);
        }
        self.note_stale(attached);
        Answer::Ask(Why::OldMap)
    }

    #[cold]
    fn note_stale(&self, attached: &Attached) {
        self.stale.store(attached.map.number, Ordering::Relaxed);
    }
}

fn broken(error: impl Into<Box<dyn core::error::Error + Send + Sync>>) -> OpenError {
    OpenError::Broken(io::Error::other(error))
}

/// The right to talk to the owner. The wait for it ends: a thread of the process that this one was
/// forked from may have it, and never gives it back here.
fn talk<T>(session: &Mutex<T>) -> Result<MutexGuard<'_, T>, OpenError> {
    let begin = boottime_ns();
    loop {
        match session.try_lock() {
            Ok(held) => return Ok(held),
            Err(TryLockError::Poisoned(held)) => return Ok(held.into_inner()),
            Err(TryLockError::WouldBlock) => {}
        }
        if boottime_ns() - begin > TALK_NS_MAX {
            return Err(OpenError::Broken(io::ErrorKind::WouldBlock.into()));
        }
        std::thread::yield_now();
    }
}

impl Memory {
    /// One read under the map of `version`.
    #[inline]
    fn read(
        &self,
        index: &IndexReader,
        version: u64,
        (table, hash, key): (TableId, KeyHash, &[u8]),
        into: &mut Vec<u8>,
    ) -> Answer {
        for _attempt in 0..ATTEMPTS_MAX {
            let since = self.gate.begin();
            let found = index.lookup(hash, |slot| {
                self.log.prefetch(slot.entry, PREFETCH_LINES);
                match self.log.read(slot.entry, (table, key), into) {
                    ReadEntry::Other => None,
                    entry => Some((slot.pending, entry)),
                }
            });
            match self.gate.check(since, version) {
                Ok(()) => {}
                Err(NotCounted::Reused) => continue,
                Err(NotCounted::OldMap) => return Answer::Ask(Why::OldMap),
            }
            return match self.is_fresh() {
                true => self.answer(found),
                false => Answer::Ask(Why::NotFresh),
            };
        }
        Answer::Ask(Why::Reused)
    }

    /// Whether what was read before this call was the truth when it was read. The time is one that
    /// had not come then, so the promise held at that moment.
    #[inline]
    fn is_fresh(&self) -> bool {
        const SLACK_NS: u64 = CLOCK_SLACK.as_millis() as u64 * 1_000_000;
        let until = self.gate.fresh_until_ns();
        fence(Ordering::Acquire);
        // The processor may take this time before it has ended the loads above. `AGE_NS` has room
        // for that.
        latest_ns().saturating_add(SLACK_NS) < until
    }

    /// What a result means that counts.
    #[inline]
    fn answer(&self, found: Lookup<(bool, ReadEntry)>) -> Answer {
        let (pending, entry) = match found {
            Lookup::Found(found) => found,
            Lookup::Absent => return Answer::Absent,
            Lookup::Busy => return Answer::Ask(Why::Busy),
            Lookup::Broken => return Answer::Ask(Why::Broken),
        };
        if pending && !self.welcome.alone {
            return Answer::Ask(Why::Pending);
        }
        match entry {
            ReadEntry::Object {
                version,
                deadline: None,
            } => Answer::Found(version),
            ReadEntry::Object {
                version,
                deadline: Some(deadline),
            } => self.judge(version, deadline),
            ReadEntry::Tombstone => Answer::Absent,
            ReadEntry::Locked => Answer::Ask(Why::Locked),
            ReadEntry::Other | ReadEntry::Broken => Answer::Ask(Why::Broken),
        }
    }

    /// An object is gone once somebody has judged its deadline to be past. It is there as long as
    /// nobody has, and nobody will within a moment.
    #[cold]
    fn judge(&self, version: ObjectVersion, deadline: Deadline) -> Answer {
        let judged = self.gate.judged_ms();
        if deadline.is_past(UnixMs(judged)) {
            return Answer::Absent;
        }
        if self.welcome.alone || deadline.ms() > judged.saturating_add(NEAR_MS) {
            return Answer::Found(version);
        }
        Answer::Ask(Why::Deadline)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As in a forked child, whose parent had a thread that talked.
    #[test]
    fn nobody_waits_for_ever_for_a_thread_that_is_missing() {
        let session = Mutex::new(());
        let held = talk(&session);
        assert!(held.is_ok());
        let second = talk(&session);
        assert!(matches!(second, Err(OpenError::Broken(_))));
        drop(held);
        assert!(talk(&session).is_ok());
    }
}
