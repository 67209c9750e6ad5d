//! The bench the tests stand on: the service over a cluster in memory, and connections made of
//! two queues of bytes.

use bytes::BytesMut;
use core::future::poll_fn;
use core::task::{Context, Poll, Waker};
use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use pluvio_client::testing::FakeCluster;
use pluvio_client::{Client, ServerStatus};
use pluvio_env::{Address, BoxFuture, ByteStream, Peer, StreamError, StreamService};
use pluvio_redis::{RedisOptions, RedisService};
use pluvio_units::{CoreId, ServerId};
use std::sync::{Arc, Mutex};

/// One direction of a connection.
#[derive(Default)]
struct Pipe {
    bytes: Vec<u8>,
    closed: bool,
    /// Most bytes that wait to be read; 0 for any number.
    room: usize,
    waker: Option<Waker>,
}

/// The ends of a connection share its two directions.
#[derive(Clone, Default)]
struct Wire(Arc<Mutex<(Pipe, Pipe)>>);

impl Wire {
    fn with<T>(&self, act: impl FnOnce(&mut Pipe, &mut Pipe) -> T) -> T {
        let mut pipes = self.0.lock().unwrap();
        let (to_server, to_client) = &mut *pipes;
        act(to_server, to_client)
    }
}

fn wake(pipe: &mut Pipe) {
    if let Some(waker) = pipe.waker.take() {
        waker.wake();
    }
}

struct ServerEnd(Wire, String);

impl ByteStream for ServerEnd {
    fn poll_read(
        &mut self,
        context: &mut Context<'_>,
        into: &mut BytesMut,
    ) -> Poll<Result<usize, StreamError>> {
        if let Some(count) = self.try_read(into)? {
            return Poll::Ready(Ok(count));
        }
        self.0
            .with(|input, _| input.waker = Some(context.waker().clone()));
        Poll::Pending
    }

    fn try_read(&mut self, into: &mut BytesMut) -> Result<Option<usize>, StreamError> {
        self.0.with(|input, _| {
            let count = input.bytes.len();
            into.extend_from_slice(&input.bytes);
            input.bytes.clear();
            Ok((count > 0 || input.closed).then_some(count))
        })
    }

    fn gone(&mut self) -> BoxFuture<'_, ()> {
        Box::pin(poll_fn(|context| {
            self.0.with(|_, output| match output.closed {
                true => Poll::Ready(()),
                false => {
                    output.waker = Some(context.waker().clone());
                    Poll::Pending
                }
            })
        }))
    }

    fn poll_write_all(
        &mut self,
        context: &mut Context<'_>,
        rest: &mut &[u8],
    ) -> Poll<Result<(), StreamError>> {
        self.0.with(|_, output| {
            if output.closed {
                return Poll::Ready(Err(StreamError("the peer is gone".into())));
            }
            let room = match output.room {
                0 => rest.len(),
                room => room.saturating_sub(output.bytes.len()).min(rest.len()),
            };
            output.bytes.extend_from_slice(&rest[..room]);
            *rest = &rest[room..];
            if rest.is_empty() {
                return Poll::Ready(Ok(()));
            }
            output.waker = Some(context.waker().clone());
            Poll::Pending
        })
    }

    fn peer(&self) -> Peer {
        Peer {
            address: Address::from(self.1.as_str()),
            core: CoreId(0),
        }
    }

    fn local(&self) -> Address {
        Address::from("127.0.0.1:6379")
    }
}

/// The service over a cluster in memory.
pub struct Bench {
    pub cluster: FakeCluster,
    pub service: RedisService,
    connections: u64,
}

/// A connection to the service.
pub struct Connection {
    cluster: FakeCluster,
    wire: Wire,
    serving: Option<BoxFuture<'static, ()>>,
}

impl Bench {
    /// A service beside a cluster of three servers, none of which is its own.
    pub fn new() -> Self {
        let cluster = FakeCluster::new(3);
        let client = cluster.client();
        Self::with(cluster, &client, RedisOptions::default())
    }

    /// A service inside the only server of a cluster.
    pub fn local() -> Self {
        let cluster = FakeCluster::new(1);
        let master = cluster.local_master(ServerId(1));
        let client = Client::embedded(cluster.parts(), cluster.options(), master);
        Self::with(cluster, &client, RedisOptions::default())
    }

    pub fn with(cluster: FakeCluster, client: &Client, options: RedisOptions) -> Self {
        let status = Arc::new(|| ServerStatus {
            replicas_wanted: 2,
            replicas_needed: 1,
            backups_up: 3,
            memory_total: 1 << 30,
            ..ServerStatus::default()
        });
        Self {
            service: RedisService::new(cluster.parts(), client, 1, options, status),
            cluster,
            connections: 0,
        }
    }

    /// A second service over the same cluster: another server.
    pub fn another(&self) -> Self {
        Self::with(
            self.cluster.clone(),
            &self.cluster.client(),
            RedisOptions::default(),
        )
    }

    pub fn connect(&mut self) -> Connection {
        self.connections += 1;
        let peer = format!("127.0.0.1:{}", 40_000 + self.connections);
        self.connect_from(&peer)
    }

    /// A connection from this address.
    pub fn connect_from(&mut self, peer: &str) -> Connection {
        let wire = Wire::default();
        let end = ServerEnd(wire.clone(), peer.to_owned());
        Connection {
            cluster: self.cluster.clone(),
            wire,
            serving: Some(self.service.serve(Box::new(end))),
        }
    }
}

impl Connection {
    /// Lets the connection work until `done` says so or it ends.
    fn run_until(&mut self, done: impl Fn(&[u8]) -> bool) {
        let wire = self.wire.clone();
        let serving = &mut self.serving;
        self.cluster.run(poll_fn(|context| {
            let ended = match serving {
                Some(future) => future.as_mut().poll(context).is_ready(),
                None => true,
            };
            if ended {
                *serving = None;
            }
            let enough = wire.with(|_, output| done(&output.bytes));
            if ended || enough {
                return Poll::Ready(());
            }
            Poll::Pending
        }));
    }

    /// Lets the connection work until something has happened elsewhere, or it ends.
    pub fn work_until(&mut self, happened: impl Fn() -> bool) {
        self.run_until(|_| happened());
    }

    /// Whether the service has closed it.
    pub fn is_closed(&self) -> bool {
        self.serving.is_none()
    }

    /// Puts bytes on the wire without letting the service look.
    pub fn push(&mut self, bytes: &[u8]) {
        self.wire.with(|input, _| {
            input.bytes.extend_from_slice(bytes);
            wake(input);
        });
    }

    /// Says that no more bytes come.
    pub fn finish(&mut self) {
        self.wire.with(|input, _| {
            input.closed = true;
            wake(input);
        });
    }

    /// Breaks the connection.
    pub fn hang_up(&mut self) {
        self.wire.with(|input, output| {
            for pipe in [input, output] {
                pipe.closed = true;
                wake(pipe);
            }
        });
    }

    /// Bounds the bytes on their way to us.
    pub fn set_room(&mut self, room: usize) {
        self.wire.with(|_, output| output.room = room);
    }

    /// Lets the service do what it can without time passing.
    pub fn settle(&mut self) {
        self.turns(100);
    }

    /// Gives the service `count` turns on its core without time passing.
    pub fn turns(&mut self, count: u32) {
        let mut polls = 0;
        let serving = &mut self.serving;
        self.cluster.run(poll_fn(|context| {
            if serving
                .as_mut()
                .is_some_and(|f| f.as_mut().poll(context).is_ready())
            {
                *serving = None;
            }
            polls += 1;
            if polls == count || serving.is_none() {
                return Poll::Ready(());
            }
            context.waker().wake_by_ref();
            Poll::Pending
        }));
    }

    /// Takes what has arrived.
    pub fn take(&mut self) -> Vec<u8> {
        self.wire.with(|_, output| {
            wake(output);
            std::mem::take(&mut output.bytes)
        })
    }

    /// Takes this number of replies, or fewer when the connection ends.
    pub fn replies(&mut self, count: usize) -> Vec<Vec<u8>> {
        self.run_until(|bytes| split(bytes).len() >= count);
        let bytes = self.take();
        let replies: Vec<_> = split(&bytes).into_iter().map(<[u8]>::to_vec).collect();
        let whole: usize = replies.iter().map(Vec::len).sum();
        assert_eq!(
            whole,
            bytes.len(),
            "no half replies, and no more than asked for"
        );
        replies
    }

    /// Sends one command and takes its reply.
    pub fn call<T: AsRef<[u8]>>(&mut self, parts: &[T]) -> Vec<u8> {
        self.push(&encode(parts));
        self.replies(1).concat()
    }

    /// [`Connection::call`] for words separated by blanks, and text.
    pub fn say(&mut self, words: &str) -> String {
        let parts: Vec<_> = words.split(' ').collect();
        String::from_utf8(self.call(&parts)).unwrap()
    }
}

/// A command as clients send it.
pub fn encode<T: AsRef<[u8]>>(parts: &[T]) -> Vec<u8> {
    let mut bytes = format!("*{}\r\n", parts.len()).into_bytes();
    for part in parts {
        let part = part.as_ref();
        bytes.extend_from_slice(format!("${}\r\n", part.len()).as_bytes());
        bytes.extend_from_slice(part);
        bytes.extend_from_slice(b"\r\n");
    }
    bytes
}

/// Cuts bytes into whole replies; a rest is left out.
pub fn split(mut bytes: &[u8]) -> Vec<&[u8]> {
    let mut replies = Vec::new();
    while let Some(length) = length(bytes) {
        let (reply, rest) = bytes.split_at(length);
        replies.push(reply);
        bytes = rest;
    }
    replies
}

/// The length of the reply at the front, if all of it is there.
fn length(bytes: &[u8]) -> Option<usize> {
    let end = bytes.windows(2).position(|w| w == b"\r\n")? + 2;
    let number = || {
        let text = std::str::from_utf8(&bytes[1..end - 2]).unwrap();
        text.parse::<i64>().unwrap()
    };
    let items = match bytes[0] {
        b'+' | b'-' | b':' | b'_' | b'#' | b',' | b'(' => return Some(end),
        b'$' | b'=' => {
            let whole = usize::try_from(number()).map_or(end, |n| end + n + 2);
            return (bytes.len() >= whole).then_some(whole);
        }
        b'*' | b'~' | b'>' => number().max(0),
        b'%' => number() * 2,
        other => panic!("a reply begins with {:?}", char::from(other)),
    };
    let mut whole = end;
    for _ in 0..items {
        whole += length(&bytes[whole..])?;
    }
    Some(whole)
}

/// Lets several connections work until each has this number of replies, and takes them. Each is
/// looked at only when it was woken.
pub fn run_together(
    cluster: &FakeCluster,
    connections: &mut [Connection],
    count: usize,
) -> Vec<Vec<u8>> {
    let all = connections.iter_mut().map(|connection| {
        let Connection { wire, serving, .. } = connection;
        let (mut replies, mut bytes) = (0, 0);
        poll_fn(move |context| {
            if let Some(future) = serving {
                let _ = future.as_mut().poll(context);
            }
            wire.with(|_, output| {
                while let Some(length) = length(&output.bytes[bytes..]) {
                    replies += 1;
                    bytes += length;
                }
            });
            if replies < count {
                Poll::Pending
            } else {
                Poll::Ready(())
            }
        })
    });
    let all: FuturesUnordered<_> = all.collect();
    cluster.run(all.collect::<Vec<_>>());
    connections.iter_mut().map(Connection::take).collect()
}

impl Connection {
    /// Bytes of the future that serves it.
    pub fn size(&self) -> usize {
        self.serving
            .as_ref()
            .map_or(0, |future| size_of_val(&**future))
    }
}
