//! The door's end of a session with one reader.

use crate::owner::Owner;
use pluvio_index::Index;
use pluvio_mapped::boottime_ns;
use pluvio_mapped::messages::{
    BadMessage, IndexEntry, MAP_MAX, Message, PACKET_MAX, RANGES_MAX, TableEntry, Welcome,
};
use pluvio_mapped::socket::{receive, send};
use pluvio_store::ReadableMap;
use rustix::event::PollFlags;
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags};
use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

/// A reader that has not greeted, or takes nothing, for so long is let go.
const PATIENCE: Duration = Duration::from_secs(5);
/// Time between two answers to one reader.
const PAUSE: Duration = Duration::from_millis(2);
/// Longest name of a table that readers are told.
const NAME_MAX: usize = 1024;

const _: () = assert!(NAME_MAX + 16 * RANGES_MAX + 64 < PACKET_MAX);

/// A process that reads.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ReaderInfo {
    /// Its process id.
    pub pid: i32,
    /// Its user.
    pub uid: u32,
    /// Its group.
    pub gid: u32,
    /// How long it has been attached.
    pub since: Duration,
    /// Maps it has got.
    pub maps: u64,
}

/// A packet that waits for room in the socket.
struct Waiting {
    packet: Vec<u8>,
    files: Files,
}

enum Files {
    None,
    /// The files of gate, log and seglets.
    Memory,
    /// The file of an index.
    Index(Arc<Index>),
}

/// See the module.
pub(crate) struct Session {
    socket: OwnedFd,
    info: ReaderInfo,
    began: Duration,
    /// It has greeted.
    is_known: bool,
    queue: VecDeque<Waiting>,
    /// When the socket last took something, or the reader had nothing to take.
    moved: Duration,
    /// It is not listened to before this.
    quiet_until: Duration,
    /// Indexes of its last map.
    indexes: BTreeSet<u64>,
}

impl Session {
    pub(crate) fn new(socket: OwnedFd, info: ReaderInfo, now: Duration) -> Self {
        Self {
            socket,
            info,
            began: now,
            is_known: false,
            queue: VecDeque::new(),
            moved: now,
            quiet_until: now,
            indexes: BTreeSet::new(),
        }
    }

    pub(crate) fn socket(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    /// What to wait for.
    pub(crate) fn interest(&self, now: Duration) -> PollFlags {
        if !self.queue.is_empty() {
            PollFlags::OUT
        } else if now >= self.quiet_until {
            PollFlags::IN
        } else {
            // Its end is reported in any case.
            PollFlags::empty()
        }
    }

    /// Whether it may read.
    pub(crate) fn is_attached(&self) -> bool {
        self.is_known
    }

    pub(crate) fn info(&self, now: Duration) -> ReaderInfo {
        ReaderInfo {
            since: now.saturating_sub(self.began),
            ..self.info.clone()
        }
    }

    /// Sends and receives what is possible at once; false when the session is over.
    pub(crate) fn work(&mut self, owner: &dyn Owner, ready: PollFlags, now: Duration) -> bool {
        if ready.intersects(PollFlags::ERR | PollFlags::NVAL) {
            return false;
        }
        if ready.intersects(PollFlags::HUP) && !ready.intersects(PollFlags::IN) {
            return false;
        }
        if ready.intersects(PollFlags::IN) && self.queue.is_empty() && !self.listen(owner, now) {
            return false;
        }
        if !self.flush(owner, now) {
            return false;
        }
        let waits = !self.is_known || !self.queue.is_empty();
        if !waits {
            self.moved = now;
        }
        now.saturating_sub(self.moved) < PATIENCE
    }

    /// Takes one packet.
    fn listen(&mut self, owner: &dyn Owner, now: Duration) -> bool {
        let packet = match receive(&self.socket, RecvFlags::DONTWAIT) {
            // Files that come with it are closed here.
            Ok((packet, _files)) => packet,
            Err(Errno::AGAIN | Errno::INTR) => return true,
            Err(_) => return false,
        };
        self.quiet_until = now + PAUSE;
        match Message::decode(&packet) {
            Ok(Message::Hello) if !self.is_known => {
                self.is_known = true;
                self.welcome(owner)
            }
            Ok(Message::GetMap) if self.is_known => {
                self.info.maps += 1;
                self.enqueue_map(owner.map());
                true
            }
            Ok(
                Message::Hello
                | Message::GetMap
                | Message::Welcome(_)
                | Message::Refused(_)
                | Message::Map(_)
                | Message::Table(_)
                | Message::Index(_)
                | Message::MapEnd(_),
            ) => false,
            Err(BadMessage) => {
                if !self.is_known {
                    self.tell_version();
                }
                false
            }
        }
    }

    /// Greets back, which a reader of another version takes for the other version that it is.
    fn tell_version(&self) {
        let hello = Message::Hello.encode();
        let _it_has_gone = send(&self.socket, &hello, &[], SendFlags::DONTWAIT);
    }

    fn welcome(&mut self, owner: &dyn Owner) -> bool {
        let Some(readable) = owner.engine().space().for_readers() else {
            return false;
        };
        let welcome = Welcome {
            cluster: owner.cluster(),
            server: owner.server(),
            alone: owner.is_alone(),
            gate: readable.gate.bytes(),
            log: readable.bytes.1,
            seglets: readable.table.1,
            boottime_ns: boottime_ns(),
        };
        self.enqueue(&Message::Welcome(welcome), Files::Memory);
        true
    }

    /// Queues a map, a packet for each of its parts. An index comes with its file only if the last
    /// map did not have it.
    fn enqueue_map(&mut self, map: ReadableMap) {
        self.enqueue(&Message::Map(map.version), Files::None);
        let before = core::mem::take(&mut self.indexes);
        let tables = map.tables.into_iter().filter(|t| t.name.len() <= NAME_MAX);
        let mut room = MAP_MAX;
        for table in tables.take(MAP_MAX) {
            let mut served = table.served.chunks(RANGES_MAX);
            let first = served.next().unwrap_or_default();
            for served in core::iter::once(first).chain(served) {
                let entry = TableEntry {
                    id: table.id,
                    name: table.name.clone(),
                    hash: table.hash,
                    served: served.to_vec(),
                };
                self.enqueue(&Message::Table(entry), Files::None);
            }
            for (range, index) in table.indexes {
                let Some((layout, _)) = index.for_readers().filter(|_| room > 0) else {
                    continue;
                };
                room -= 1;
                let is_new = self.indexes.insert(layout.id) && !before.contains(&layout.id);
                let entry = IndexEntry {
                    table: table.id,
                    range,
                    layout,
                    has_file: is_new,
                };
                let files = match is_new {
                    true => Files::Index(index),
                    false => Files::None,
                };
                self.enqueue(&Message::Index(entry), files);
            }
        }
        self.enqueue(&Message::MapEnd(map.version), Files::None);
    }

    fn enqueue(&mut self, message: &Message, files: Files) {
        let packet = message.encode();
        self.queue.push_back(Waiting { packet, files });
    }

    /// Sends what the socket takes; false when the session is over.
    fn flush(&mut self, owner: &dyn Owner, now: Duration) -> bool {
        while let Some(Waiting { packet, files }) = self.queue.front() {
            let readable = owner.engine().space().for_readers();
            let memory = readable.map(|r| [r.gate.file(), r.bytes.0, r.table.0]);
            let index;
            let files: &[BorrowedFd<'_>] = match files {
                Files::None => &[],
                Files::Memory => memory.as_ref().map_or(&[], |files| files),
                Files::Index(of) => {
                    index = of.for_readers().map(|(_, file)| [file]);
                    index.as_ref().map_or(&[], |files| files)
                }
            };
            match send(&self.socket, packet, files, SendFlags::DONTWAIT) {
                Ok(()) => {
                    self.moved = now;
                    self.queue.pop_front();
                }
                // A socket whose receiver holds too many files in flight says so, too.
                Err(Errno::AGAIN | Errno::INTR | Errno::NOBUFS | Errno::TOOMANYREFS) => break,
                Err(_) => return false,
            }
        }
        true
    }
}
