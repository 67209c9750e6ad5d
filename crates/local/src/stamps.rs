//! Time stamps of requests: what a child notes for the process that started it, and how that reads
//! the notes. Experiments take requests apart with them.
//!
//! [`Stamped`] stands before a process's network. It notes the calls that the process makes, and
//! the requests that it serves. Each note is a span of this process's clock, so spans of several
//! processes can be set beside each other.
//!
//! - STAMP-1: a process keeps at most [`NOTES_MAX`] notes; later ones are dropped. A process that
//!   was not asked for notes has no such network, and pays nothing.
//!
//! Threads: notes come from all event loops, under one lock that is held for a push.

use bytes::Bytes;
use core::time::Duration;
use pluvio_env::{
    Address, BoxFuture, CallError, Clock, Frame, Handled, Listening, Network, NetworkError, Peer,
    Service, StreamService,
};
use std::io;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

/// Most notes of a process: some seconds of one caller's requests, in 32 MB.
pub const NOTES_MAX: usize = 1 << 20;
/// The file of a server's notes, in its data directory.
pub const FILE: &str = "stamps.txt";

/// What a process notes of one request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Note {
    /// It made a call, and had the reply after this time.
    Called(u16, Duration),
    /// It served a request: how long the handler had the event loop, and when the reply was there.
    Served(u16, Duration, Duration),
}

impl Note {
    fn line(self) -> String {
        match self {
            Self::Called(opcode, took) => format!("called {opcode} {}\n", took.as_nanos()),
            Self::Served(opcode, handled, answered) => format!(
                "served {opcode} {} {}\n",
                handled.as_nanos(),
                answered.as_nanos()
            ),
        }
    }

    fn of_line(line: &str) -> Option<Self> {
        let mut words = line.split(' ');
        let kind = words.next()?;
        let opcode = words.next()?.parse().ok()?;
        let mut time = || Some(Duration::from_nanos(words.next()?.parse().ok()?));
        match kind {
            "called" => Some(Self::Called(opcode, time()?)),
            "served" => Some(Self::Served(opcode, time()?, time()?)),
            _ => None,
        }
    }
}

/// The notes of a process. Cheap to clone.
#[derive(Clone, Debug, Default)]
pub struct Notes(Arc<Mutex<Vec<Note>>>);

impl Notes {
    /// Adds one, while there is room (STAMP-1).
    fn add(&self, note: Note) {
        let mut notes = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if notes.len() < NOTES_MAX {
            notes.push(note);
        }
    }

    /// Takes all of them out.
    #[must_use]
    pub fn take(&self) -> Vec<Note> {
        let mut notes = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        core::mem::take(&mut *notes)
    }

    /// Writes them into the folder of a server's data.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn write(&self, data: &Path) -> io::Result<()> {
        let lines: String = self.take().into_iter().map(Note::line).collect();
        std::fs::write(data.join(FILE), lines)
    }

    /// Those that a server wrote into the folder of its data.
    ///
    /// # Errors
    /// There are none, or they are no notes.
    pub fn read(data: &Path) -> io::Result<Vec<Note>> {
        let text = std::fs::read_to_string(data.join(FILE))?;
        let notes = text.lines().map(|line| {
            let nonsense = || io::Error::new(io::ErrorKind::InvalidData, line.to_owned());
            Note::of_line(line).ok_or_else(nonsense)
        });
        notes.collect()
    }
}

/// A network whose calls and requests are noted.
pub struct Stamped {
    inner: Arc<dyn Network>,
    clock: Arc<dyn Clock>,
    notes: Notes,
}

impl Stamped {
    /// Stands before `inner`.
    #[must_use]
    pub fn new(inner: Arc<dyn Network>, clock: Arc<dyn Clock>, notes: Notes) -> Self {
        Self {
            inner,
            clock,
            notes,
        }
    }
}

impl Network for Stamped {
    fn call<'a>(
        &'a self,
        to: &'a Address,
        request: Frame,
        limit: Duration,
    ) -> BoxFuture<'a, Result<Frame, CallError>> {
        let (opcode, start) = (request.opcode, self.clock.now());
        let call = self.inner.call(to, request, limit);
        Box::pin(async move {
            let reply = call.await;
            let took = self.clock.now().since(start);
            self.notes.add(Note::Called(opcode, took));
            reply
        })
    }

    fn listen(
        &self,
        address: &Address,
        service: Arc<dyn Service>,
    ) -> BoxFuture<'_, Result<Listening, NetworkError>> {
        let stamped = StampedService {
            inner: service,
            clock: self.clock.clone(),
            notes: self.notes.clone(),
        };
        self.inner.listen(address, Arc::new(stamped))
    }

    fn listen_streams(
        &self,
        address: &Address,
        connections_max: usize,
        refusal: Bytes,
        service: Arc<dyn StreamService>,
    ) -> BoxFuture<'_, Result<Listening, NetworkError>> {
        self.inner
            .listen_streams(address, connections_max, refusal, service)
    }
}

struct StampedService {
    inner: Arc<dyn Service>,
    clock: Arc<dyn Clock>,
    notes: Notes,
}

impl Service for StampedService {
    fn handle(&self, peer: Peer, request: Frame) -> Handled {
        let (opcode, start) = (request.opcode, self.clock.now());
        let handled = self.inner.handle(peer, request);
        let took = self.clock.now().since(start);
        match handled {
            Handled::Now(reply) => {
                self.notes.add(Note::Served(opcode, took, took));
                Handled::Now(reply)
            }
            Handled::Later(answer) => {
                let (clock, notes) = (self.clock.clone(), self.notes.clone());
                Handled::Later(Box::pin(async move {
                    let reply = answer.await;
                    let answered = clock.now().since(start);
                    notes.add(Note::Served(opcode, took, answered));
                    reply
                }))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn notes_are_read_as_they_were_written() {
        let folder = tempfile::tempdir().unwrap();
        let us = Duration::from_micros;
        let all = [Note::Called(7, us(5)), Note::Served(9, us(1), us(20))];
        let notes = Notes::default();
        all.into_iter().for_each(|note| notes.add(note));
        notes.write(folder.path()).unwrap();
        assert_eq!(Notes::read(folder.path()).unwrap(), all);
        std::fs::write(folder.path().join(FILE), "heard 1 2\n").unwrap();
        assert!(Notes::read(folder.path()).is_err());
    }

    // shows: STAMP-1
    #[test]
    fn notes_beyond_the_bound_are_dropped() {
        let notes = Notes::default();
        for _ in 0..NOTES_MAX + 2 {
            notes.add(Note::Called(1, Duration::ZERO));
        }
        assert_eq!(notes.take().len(), NOTES_MAX);
    }
}
