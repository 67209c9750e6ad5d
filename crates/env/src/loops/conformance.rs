//! The duties of every [`Network`], as cases that the tests of each transport run: the simulated
//! one, TCP, rings and datagrams.
//!
//! A case panics if the network does something else. It uses nothing but the traits, so the same
//! code runs over sockets and in the simulator. Half a message, garbage and a peer that reads
//! nothing need bytes on a wire: they are in the tests of each transport.

use crate::{Address, BoxFuture, CallError, Env, Frame, Handled, Listening, Peer, Service};
use bytes::Bytes;
use core::future::pending;
use core::time::Duration;
use futures_util::future::{join, join_all};
use pluvio_units::CoreId;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use tokio::sync::{Notify, Semaphore, oneshot};

/// How long a case waits for what must happen.
const PATIENCE: Duration = Duration::from_secs(30);
/// The limit of calls that nobody answers.
const SHORT: Duration = Duration::from_millis(100);

/// Two processes, and what their network promises beyond the trait.
#[derive(Clone)]
pub struct Ground {
    /// The process that listens.
    pub server: Env,
    /// The process that runs the case.
    pub client: Env,
    /// Where the server listens. It may name any free port.
    pub address: Address,
    /// Bytes of the largest frame.
    pub frame_bytes_max: usize,
    /// Whether a reply over that ends as [`CallError::TooLarge`].
    pub bounds_replies: bool,
}

/// A case.
pub type Case = fn(Ground) -> BoxFuture<'static, ()>;

/// All cases with their names.
pub const CASES: [(&str, Case); 10] = [
    ("every call gets its own reply", |g| {
        Box::pin(own_replies(g))
    }),
    ("requests come in order", |g| Box::pin(order(g))),
    ("frames of every size arrive whole", |g| Box::pin(sizes(g))),
    ("a request over the limit", |g| Box::pin(large_request(g))),
    ("a reply over the limit", |g| Box::pin(large_reply(g))),
    ("nobody listens", |g| Box::pin(nobody(g))),
    ("nobody answers", |g| Box::pin(no_answer(g))),
    ("the port closes", |g| Box::pin(closed_port(g))),
    ("a caller that gives up", |g| Box::pin(given_up(g))),
    ("a service that is slow", |g| Box::pin(slow_service(g))),
];

/// A service made of a function.
struct Serve<F>(F);

impl<F: Fn(Frame) -> Handled + Send + Sync> Service for Serve<F> {
    fn handle(&self, _: Peer, request: Frame) -> Handled {
        (self.0)(request)
    }
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn frame(number: u64, payload: Bytes) -> Frame {
    Frame {
        opcode: number as u16,
        meta: Bytes::copy_from_slice(&number.to_le_bytes()),
        payload,
    }
}

/// Bytes that tell their place.
fn pattern(seed: u64, len: usize) -> Bytes {
    (0..len)
        .map(|at| {
            (at as u64)
                .wrapping_mul(2 * seed + 1)
                .wrapping_add(at as u64 >> 8) as u8
        })
        .collect::<Vec<_>>()
        .into()
}

impl Ground {
    /// Listens in the server's process.
    async fn listen(
        &self,
        service: impl Fn(Frame) -> Handled + Send + Sync + 'static,
    ) -> Listening {
        let (give, take) = oneshot::channel();
        let (env, address) = (self.server.clone(), self.address.clone());
        let task = async move {
            let opened = env.network.listen(&address, Arc::new(Serve(service))).await;
            // The case has ended if it does not wait for the port.
            drop(give.send(opened));
        };
        self.server.tasks.spawn(CoreId(0), "listen", task);
        let opened = take.await.expect("the server's process runs");
        opened.unwrap_or_else(|error| panic!("{error}"))
    }

    async fn call(&self, to: &Address, request: Frame) -> Result<Frame, CallError> {
        self.client.network.call(to, request, PATIENCE).await
    }

    /// Calls that must be answered with themselves.
    async fn echo(&self, to: &Address, number: u64, payload: Bytes) {
        let request = frame(number, payload);
        let reply = self.call(to, request.clone()).await;
        // Not `assert_eq`: nobody reads MiBs in a message.
        match reply {
            Ok(reply) => assert!(reply == request, "call {number} got another reply"),
            Err(error) => panic!("call {number}: {error}"),
        }
    }
}

async fn own_replies(ground: Ground) {
    let clock = Arc::clone(&ground.server.clock);
    let port = ground.listen(move |request| match request.opcode % 3 {
        0 => Handled::Now(request),
        late => {
            let pause = clock.sleep(Duration::from_millis(u64::from(7 - 3 * late)));
            Handled::Later(Box::pin(async move {
                pause.await;
                request
            }))
        }
    });
    let port = port.await;
    for round in 0..3 {
        let calls = (0..200).map(|n| {
            let size = [0, 1, 7, 8, 100, 5_000, 70_000][n as usize % 7];
            ground.echo(&port.address, 1_000 * round + n, pattern(n, size))
        });
        join_all(calls).await;
    }
}

async fn order(ground: Ground) {
    let seen = Arc::new(Mutex::new(Vec::new()));
    let noted = Arc::clone(&seen);
    let port = ground.listen(move |request| {
        lock(&noted).push(u64::from(request.opcode));
        Handled::Now(request)
    });
    let port = port.await;
    let calls = (0..2_000).map(|n| ground.echo(&port.address, n, pattern(n, n as usize % 300)));
    join_all(calls).await;
    assert!(
        *lock(&seen) == (0..2_000).collect::<Vec<_>>(),
        "requests overtook each other"
    );
}

async fn sizes(ground: Ground) {
    let port = ground.listen(Handled::Now).await;
    let meta = 8;
    let most = ground.frame_bytes_max - meta;
    // Around the borders of words, pages, buffers and pieces.
    let mut sizes: Vec<usize> = (0..20).collect();
    for border in (5..24).map(|power| 1usize << power) {
        sizes.extend([
            border.saturating_sub(40),
            border - 9,
            border - 1,
            border,
            border + 1,
        ]);
    }
    sizes.extend([most - 1, most]);
    for (number, size) in (0..).zip(sizes.into_iter().filter(|size| *size <= most)) {
        ground
            .echo(&port.address, number, pattern(number, size))
            .await;
    }
    let large = (0..12).map(|n| ground.echo(&port.address, n, pattern(n, most / 4)));
    join_all(large).await;
}

async fn large_request(ground: Ground) {
    let handled = Arc::new(Mutex::new(0));
    let count = Arc::clone(&handled);
    let port = ground.listen(move |request| {
        *lock(&count) += 1;
        Handled::Now(request)
    });
    let port = port.await;
    let most = ground.frame_bytes_max;
    let outcome = ground.call(&port.address, frame(1, pattern(1, most - 7)));
    assert_eq!(outcome.await, Err(CallError::TooLarge(most + 1, most)));
    assert_eq!(*lock(&handled), 0, "it was executed");
    ground.echo(&port.address, 2, Bytes::new()).await;
}

async fn large_reply(ground: Ground) {
    if !ground.bounds_replies {
        return;
    }
    let most = ground.frame_bytes_max;
    let port = ground.listen(move |request| match request.opcode {
        1 => Handled::Now(Frame {
            payload: vec![0; most + 1].into(),
            ..Frame::default()
        }),
        _ => Handled::Now(request),
    });
    let port = port.await;
    let outcome = ground.call(&port.address, frame(1, Bytes::new())).await;
    assert_eq!(outcome, Err(CallError::TooLarge(most + 1, most)));
    ground.echo(&port.address, 2, Bytes::new()).await;
}

async fn nobody(ground: Ground) {
    let port = ground.listen(Handled::Now).await;
    let to = port.address.clone();
    drop(port);
    let outcome = ground.call(&to, frame(1, Bytes::new())).await;
    assert!(
        matches!(outcome, Err(CallError::Unreachable(..))),
        "{outcome:?}"
    );
}

async fn no_answer(ground: Ground) {
    let release = Arc::new(Semaphore::new(0));
    let held = Arc::clone(&release);
    let port = ground.listen(move |request| {
        if request.opcode != 1 {
            return Handled::Now(request);
        }
        let held = Arc::clone(&held);
        Handled::Later(Box::pin(async move {
            let _permit = held.acquire().await;
            request
        }))
    });
    let port = port.await;
    let to = &port.address;
    ground.echo(to, 0, Bytes::new()).await;
    let network = &ground.client.network;
    let outcome = network.call(to, frame(1, Bytes::new()), SHORT).await;
    assert_eq!(outcome, Err(CallError::TimedOut(to.clone(), SHORT)));
    // Its reply comes late, and is nobody else's.
    release.add_permits(1);
    for number in 2..20 {
        ground.echo(to, number, Bytes::new()).await;
    }
}

async fn closed_port(ground: Ground) {
    let arrived = Arc::new(Notify::new());
    let notify = Arc::clone(&arrived);
    let port = ground.listen(move |request| {
        if request.opcode != 1 {
            return Handled::Now(request);
        }
        notify.notify_one();
        Handled::Later(Box::pin(pending()))
    });
    let port = port.await;
    let to = port.address.clone();
    ground.echo(&to, 0, Bytes::new()).await;
    let network = &ground.client.network;
    let call = network.call(&to, frame(1, Bytes::new()), 20 * SHORT);
    let close = async {
        arrived.notified().await;
        drop(port);
    };
    let (outcome, ()) = join(call, close).await;
    assert!(
        matches!(outcome, Err(CallError::Lost(_) | CallError::TimedOut(..))),
        "it was executed perhaps: {outcome:?}"
    );
}

async fn given_up(ground: Ground) {
    let done = Arc::new(Mutex::new(BTreeMap::new()));
    let (noted, clock) = (Arc::clone(&done), Arc::clone(&ground.server.clock));
    let port = ground.listen(move |request| {
        let (noted, pause) = (Arc::clone(&noted), clock.sleep(4 * SHORT));
        Handled::Later(Box::pin(async move {
            pause.await;
            *lock(&noted).entry(request.opcode).or_insert(0) += 1;
            request
        }))
    });
    let port = port.await;
    // Connecting may take longer than these calls may.
    ground.echo(&port.address, 0, Bytes::new()).await;
    let network = &ground.client.network;
    let calls = (1..=20).map(|n| network.call(&port.address, frame(n, Bytes::new()), SHORT / 2));
    for outcome in join_all(calls).await {
        assert!(
            matches!(outcome, Err(CallError::TimedOut(..))),
            "{outcome:?}"
        );
    }
    ground.echo(&port.address, 21, Bytes::new()).await;
    let done = lock(&done);
    assert!(
        (1..=21).all(|n| done.get(&n) == Some(&1)),
        "each request is executed once, to its end: {done:?}"
    );
}

async fn slow_service(ground: Ground) {
    let clock = Arc::clone(&ground.server.clock);
    let port = ground.listen(move |request| {
        let pause = clock.sleep(Duration::from_millis(2));
        Handled::Later(Box::pin(async move {
            pause.await;
            request
        }))
    });
    let port = port.await;
    // More than all queues on the way hold.
    let size = (ground.frame_bytes_max / 8).min(512 << 10);
    let calls = (0..100).map(|n| ground.echo(&port.address, n, pattern(n, size)));
    join_all(calls).await;
}
