//! A gate before a metadata server. Requests of coordinators pass through it one by one. So a test
//! can kill a coordinator at the very request that stores a change, or let the store be slow.
//!
//! It knows of the two protocols how requests and answers are told apart, and which requests write.

use super::metadata::Kind;
use super::patience::{pause, wait_for};
use super::program::signal;
use rustix::process::Signal;
use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::{Arc, Mutex, MutexGuard};
use std::thread::Builder;
use std::time::Duration;

/// Looks without a write, 10 ms apart, after which no write is to come. Servers hear of a change
/// and answer in a few milliseconds; a change that they did not answer is sent again after 100.
const STILL_LOOKS: u32 = 100;

/// When a coordinator is killed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Blow {
    /// Before the store has the write with this number, from 0.
    Before(u32),
    /// When it has answered it, but the answer has not arrived.
    After(u32),
}

#[derive(Default)]
struct Plan {
    blow: Option<(u32, Blow)>,
    /// Since a blow was prepared.
    writes: u32,
    /// Since the gate is open.
    all_writes: u64,
    delay: Duration,
}

/// An open gate. Its threads end with their connections.
pub struct Gate {
    port: u16,
    plan: Arc<Mutex<Plan>>,
}

impl Gate {
    /// A gate before the server at this port of this machine.
    pub fn before(kind: Kind, server: u16) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let plan = Arc::<Mutex<Plan>>::default();
        let own = plan.clone();
        let opening = Builder::new().spawn(move || {
            for client in listener.incoming().map_while(Result::ok) {
                // A server that is away closes the connection, as its own port would.
                let Ok(server) = TcpStream::connect(("127.0.0.1", server)) else {
                    continue;
                };
                let passage = Passage {
                    kind,
                    plan: own.clone(),
                    waiting: Mutex::default(),
                };
                passage.open(client, server);
            }
        });
        opening.unwrap();
        Self { port, plan }
    }

    pub fn port(&self) -> u16 {
        self.port
    }

    fn plan(&self) -> MutexGuard<'_, Plan> {
        self.plan.lock().unwrap()
    }

    /// Kills a process at one of the writes that follow.
    pub fn arm(&self, pid: u32, blow: Blow) {
        let mut plan = self.plan();
        (plan.blow, plan.writes) = (Some((pid, blow)), 0);
    }

    /// Whether it was killed; if not, it is left alone from now on.
    pub fn has_struck(&self) -> bool {
        self.plan().blow.take().is_none()
    }

    /// Waits until nobody has written for a while: earlier changes are stored, and the next write
    /// is that of the next change.
    #[track_caller]
    pub fn wait_still(&self) {
        let (mut seen, mut looks) = (self.plan().all_writes, 0);
        wait_for("writes to end", || {
            let writes = self.plan().all_writes;
            looks = if writes == seen { looks + 1 } else { 0 };
            seen = writes;
            (looks >= STILL_LOOKS)
                .then_some(())
                .ok_or_else(|| format!("write {writes}"))
        });
    }

    /// Every request takes so much longer from now on.
    pub fn delay(&self, delay: Duration) {
        self.plan().delay = delay;
    }
}

/// What one request is to the gate.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Passing {
    Pass,
    /// The process dies when the answer is there.
    DieAtAnswer(u32),
    /// It died: nothing passes any more.
    Dead,
}

/// One connection.
struct Passage {
    kind: Kind,
    plan: Arc<Mutex<Plan>>,
    /// The request whose answer is waited for, by what its answer begins with, and who dies then.
    waiting: Mutex<Option<(Vec<u8>, u32)>>,
}

impl Passage {
    fn open(self, client: TcpStream, server: TcpStream) {
        let _ = (client.set_nodelay(true), server.set_nodelay(true));
        let this = Arc::new(self);
        let ways = [
            (client.try_clone().unwrap(), server.try_clone().unwrap()),
            (server, client),
        ];
        for (way, (from, to)) in ways.into_iter().enumerate() {
            let own = this.clone();
            let copying = Builder::new().spawn(move || {
                // Broken connections are what the gate is for.
                let _ = own.copy(way == 0, &from, &to);
                let _ = from.shutdown(Shutdown::Both);
                let _ = to.shutdown(Shutdown::Both);
            });
            copying.unwrap();
        }
    }

    fn copy(
        &self,
        requests: bool,
        mut from: &TcpStream,
        mut to: &TcpStream,
    ) -> std::io::Result<()> {
        let mut first = true;
        loop {
            let message = match (self.kind, requests) {
                (Kind::Etcd, true) => http_request(&mut from)?,
                (Kind::Etcd, false) => some_bytes(&mut from)?,
                (Kind::ZooKeeper, _) => zookeeper_message(&mut from)?,
            };
            let passes = match requests {
                true => self.request(&message, first),
                false => self.answer(&message),
            };
            if !passes {
                return Ok(());
            }
            to.write_all(&message)?;
            first = false;
        }
    }

    /// Whether a request may pass.
    fn request(&self, message: &[u8], first: bool) -> bool {
        let delay = self.plan.lock().unwrap().delay;
        if !delay.is_zero() {
            pause(delay);
        }
        let writes = match self.kind {
            Kind::Etcd => message.starts_with(b"POST /v3/kv/txn"),
            // Length, number, operation; 14 is a transaction. The first message is a greeting.
            Kind::ZooKeeper => !first && message.get(8..12) == Some(&14_u32.to_be_bytes()),
        };
        let passing = match writes {
            true => self.write(),
            false => Passing::Pass,
        };
        match passing {
            Passing::Pass => true,
            Passing::Dead => false,
            Passing::DieAtAnswer(pid) => {
                let begin = match self.kind {
                    // One request at a time: the next bytes are the answer.
                    Kind::Etcd => Vec::new(),
                    Kind::ZooKeeper => message[4..8].to_vec(),
                };
                *self.waiting.lock().unwrap() = Some((begin, pid));
                true
            }
        }
    }

    fn write(&self) -> Passing {
        let mut plan = self.plan.lock().unwrap();
        let number = plan.writes;
        plan.writes += 1;
        plan.all_writes += 1;
        match plan.blow {
            Some((pid, Blow::Before(at))) if at == number => {
                plan.blow = None;
                signal(pid, Signal::KILL);
                Passing::Dead
            }
            Some((pid, Blow::After(at))) if at == number => Passing::DieAtAnswer(pid),
            Some(_) | None => Passing::Pass,
        }
    }

    /// Whether an answer may pass.
    fn answer(&self, message: &[u8]) -> bool {
        let mut waiting = self.waiting.lock().unwrap();
        let is_it = |(begin, _): &(Vec<u8>, u32)| {
            begin.is_empty() || message.get(4..8) == Some(begin.as_slice())
        };
        let Some((_, pid)) = waiting.take_if(|waiting| is_it(waiting)) else {
            return true;
        };
        signal(pid, Signal::KILL);
        self.plan.lock().unwrap().blow = None;
        false
    }
}

fn some_bytes(from: &mut &TcpStream) -> std::io::Result<Vec<u8>> {
    let mut bytes = vec![0; 64 << 10];
    let read = from.read(&mut bytes)?;
    if read == 0 {
        return Err(std::io::ErrorKind::UnexpectedEof.into());
    }
    bytes.truncate(read);
    Ok(bytes)
}

/// A request with its body, whose length its head tells.
pub fn http_request(from: &mut &TcpStream) -> std::io::Result<Vec<u8>> {
    let mut message = Vec::new();
    let head = loop {
        message.extend(some_bytes(from)?);
        if let Some(at) = message.windows(4).position(|end| end == b"\r\n\r\n") {
            break at + 4;
        }
    };
    let text = String::from_utf8_lossy(&message[..head]).to_lowercase();
    let mut lines = text.lines();
    let length = lines.find_map(|line| line.strip_prefix("content-length:"));
    let length: usize = length.map_or(0, |length| length.trim().parse().unwrap());
    let there = message.len();
    assert!(there <= head + length, "requests come one at a time");
    message.resize(head + length, 0);
    from.read_exact(&mut message[there..])?;
    Ok(message)
}

/// A message with the length before it.
fn zookeeper_message(from: &mut &TcpStream) -> std::io::Result<Vec<u8>> {
    let mut length = [0; 4];
    from.read_exact(&mut length)?;
    let mut message = length.to_vec();
    message.resize(4 + u32::from_be_bytes(length) as usize, 0);
    from.read_exact(&mut message[4..])?;
    Ok(message)
}
