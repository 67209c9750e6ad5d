//! Backups that keep replicas of a side log in their memory: threads behind sockets, for measuring
//! what re-replication adds to replay.
//!
//! As in a cluster, every replica is sent over a socket of its own. Each has one request under way,
//! and later entries go with the next. A side segment that is closed and that all have is marked
//! durable. Then it can be compared and committed.

use super::thread_cpu;
use core::time::Duration;
use pluvio_format::SegmentKind;
use pluvio_log::Segment;
use pluvio_store::Engine;
use pluvio_units::{LogId, SegmentId};
use std::collections::BTreeMap;
use std::io::{self, Read, Write};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{Scope, ScopedJoinHandle};

/// Most bytes of one request.
const REQUEST_MAX: u32 = 1 << 20;
/// How long a sender with nothing to send waits.
const PAUSE: Duration = Duration::from_micros(100);
/// Segment, offset and length, before the bytes.
const HEAD: usize = 16;

/// What a thread gives: its processor time.
type Thread<'s> = ScopedJoinHandle<'s, io::Result<Duration>>;

/// The threads of one round.
pub(super) struct Backups<'s> {
    ended: Arc<AtomicBool>,
    threads: Vec<Thread<'s>>,
}

impl<'s> Backups<'s> {
    /// Starts so many backups, and the thread that sends them what `engine` appends. None: nothing
    /// is started.
    pub(super) fn start(
        scope: &'s Scope<'s, '_>,
        engine: &Arc<Engine>,
        replicas: u32,
    ) -> io::Result<Self> {
        let mut this = Self {
            ended: Arc::default(),
            threads: Vec::new(),
        };
        let mut sockets = Vec::new();
        for _ in 0..replicas {
            let (near, far) = UnixStream::pair()?;
            sockets.push(near);
            this.threads.push(scope.spawn(move || keep(far)));
        }
        if replicas > 0 {
            let (engine, ended) = (Arc::clone(engine), Arc::clone(&this.ended));
            let sender = scope.spawn(move || send(&engine, &mut sockets, &ended));
            this.threads.push(sender);
        }
        Ok(this)
    }

    /// Waits until everything appended so far has been acknowledged; gives the processor time of
    /// all threads.
    pub(super) fn finish(mut self) -> io::Result<Duration> {
        self.end();
        let mut cpu = Duration::ZERO;
        for thread in self.threads.drain(..) {
            let ended = thread.join();
            cpu += ended.unwrap_or_else(|panic| std::panic::resume_unwind(panic))?;
        }
        Ok(cpu)
    }

    fn end(&self) {
        // Pairs with the sender's load: what was appended before is seen by its next look.
        self.ended.store(true, Ordering::Release);
    }
}

impl Drop for Backups<'_> {
    fn drop(&mut self) {
        // When a round fails, nobody else tells the sender.
        self.end();
    }
}

fn send(engine: &Engine, sockets: &mut [UnixStream], ended: &AtomicBool) -> io::Result<Duration> {
    let cpu = thread_cpu();
    let mut open: Vec<(Arc<Segment>, u32)> = Vec::new();
    loop {
        let last_look = ended.load(Ordering::Acquire);
        let new = engine.space().take_new_segments(LogId(0));
        open.extend(new.into_iter().map(|segment| (segment, 0)));
        let mut sent = false;
        for (segment, at) in &mut open {
            let to = segment.appended_len().min(*at + REQUEST_MAX);
            // Freed: nobody needs it any more.
            if let Some(bytes) = (to > *at).then(|| segment.copy_out(*at..to)).flatten() {
                request(sockets, segment.id(), *at, &bytes)?;
                sent = true;
            }
            *at = to;
        }
        open.retain(|(segment, at)| {
            // In this order: the length is final once the segment is closed.
            let done = segment.is_closed() && *at >= segment.appended_len();
            if done && segment.kind() == SegmentKind::Side {
                segment.mark_durable();
            }
            !done
        });
        if !sent && last_look {
            return Ok(thread_cpu().saturating_sub(cpu));
        }
        if !sent {
            std::thread::park_timeout(PAUSE);
        }
    }
}

fn request(sockets: &mut [UnixStream], id: SegmentId, at: u32, bytes: &[u8]) -> io::Result<()> {
    let mut head = [0; HEAD];
    head[..8].copy_from_slice(&id.0.to_le_bytes());
    head[8..12].copy_from_slice(&at.to_le_bytes());
    head[12..].copy_from_slice(&(bytes.len() as u32).to_le_bytes());
    for socket in &mut *sockets {
        socket.write_all(&head)?;
        socket.write_all(bytes)?;
    }
    for socket in sockets {
        socket.read_exact(&mut [0])?;
    }
    Ok(())
}

/// Keeps what comes until the sender is gone.
fn keep(mut socket: UnixStream) -> io::Result<Duration> {
    let cpu = thread_cpu();
    let mut replicas: BTreeMap<[u8; 8], Vec<u8>> = BTreeMap::new();
    let mut head = [0; HEAD];
    loop {
        match socket.read_exact(&mut head) {
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => {
                return Ok(thread_cpu().saturating_sub(cpu));
            }
            other => other?,
        }
        let [a, b, c, d, e, f, g, h, rest @ ..] = head;
        let [at @ .., l0, l1, l2, l3] = rest;
        let length = u64::from(u32::from_le_bytes([l0, l1, l2, l3]));
        let replica = replicas.entry([a, b, c, d, e, f, g, h]).or_default();
        if replica.len() != u32::from_le_bytes(at) as usize {
            return Err(io::Error::other("a replica has a gap"));
        }
        if (&mut socket).take(length).read_to_end(replica)? as u64 != length {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        socket.write_all(&[1])?;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use pluvio_format::{Entry, Graves, Object, ObjectState};
    use pluvio_log::{AppendClass, Durability, LogOptions, SideLog};
    use pluvio_store::EngineOptions;
    use pluvio_units::{ObjectVersion, Size, TableId};

    #[test]
    fn what_all_backups_have_is_durable() {
        let mut log = LogOptions::new(Size::mib(64));
        log.durability = Durability::Replicated;
        let engine = Engine::open(EngineOptions { log }).unwrap();
        let mut side = SideLog::new(Arc::clone(engine.space()), LogId(0));
        let object = Entry::Object(Object {
            table: TableId(1),
            version: ObjectVersion(1),
            timestamp_s: 1,
            graves: Graves::NONE,
            deadline: None,
            state: ObjectState::Plain,
            key: b"key",
            value: &[7; 1000],
        });
        let guard = engine.space().pin();
        let appended = side.append(&[object], AppendClass::Replay, &guard);
        assert!(appended.is_ok(), "{:?}", appended.err());
        drop(guard);
        side.close();
        let not_durable = side.commit().unwrap_err();
        let side = not_durable.side_log;
        std::thread::scope(|scope| {
            let backups = Backups::start(scope, &engine, 2).unwrap();
            backups.finish().unwrap();
        });
        assert!(side.commit().is_ok());
    }
}
