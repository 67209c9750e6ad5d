//! What the tests of this crate share: a process in small, services, and a hand-made peer that
//! breaks the rules.

pub mod certificates;
pub mod raw_ring;
pub mod victims;

use bytes::Bytes;
use core::time::Duration;
use futures_util::future::join_all;
use pluvio_env::{Address, CallError, Frame, Handled, Listening, Network, Peer, Replies, Service};
use pluvio_env_os::{OsOptions, OsRuntime, current_core};
use pluvio_net::{NetOptions, OsNetwork, Tls};
use pluvio_units::{CoreId, crc32c};
use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::Arc;
use tokio::sync::{mpsc, oneshot};

/// How long a test waits for what must happen; only a failing test waits that long.
pub const PATIENCE: Duration = Duration::from_secs(30);

/// Most bytes of payloads: of none, of one packet, and of many.
pub const SIZES: [usize; 6] = [0, 1, 100, 5_000, 70_000, 300_000];

/// Event loops and a network over them.
pub struct Rig {
    pub network: Arc<OsNetwork>,
    pub runtime: OsRuntime,
}

impl Rig {
    pub fn new(cores: u16) -> Self {
        Self::with(cores, |_| {})
    }

    pub fn with(cores: u16, change: impl FnOnce(&mut NetOptions)) -> Self {
        Self::with_tls(cores, None, change)
    }

    pub fn with_tls(
        cores: u16,
        tls: Option<Arc<Tls>>,
        change: impl FnOnce(&mut NetOptions),
    ) -> Self {
        let mut options = NetOptions::default();
        change(&mut options);
        let runtime = OsRuntime::start(&OsOptions::with_cores(cores)).unwrap();
        let (tasks, clock) = (runtime.tasks(), runtime.clock());
        let network = OsNetwork::with_tls(options, tls, tasks, clock, current_core);
        Self {
            network: Arc::new(network),
            runtime,
        }
    }

    /// Runs `test` on core 0 with the network.
    pub fn run<T: Send + 'static, F: Future<Output = T> + Send + 'static>(
        &self,
        test: impl FnOnce(Arc<OsNetwork>) -> F,
    ) -> T {
        self.runtime.block_on(test(Arc::clone(&self.network)))
    }

    pub fn listen(&self, service: impl Service + 'static) -> Listening {
        self.listen_at("127.0.0.1:0", service)
    }

    pub fn listen_at(&self, address: &str, service: impl Service + 'static) -> Listening {
        let address = Address::from(address);
        self.run(|network| async move { network.listen(&address, Arc::new(service)).await })
            .unwrap()
    }

    pub fn call(&self, to: &Address, request: Frame) -> Result<Frame, CallError> {
        let to = to.clone();
        self.run(|network| async move { network.call(&to, request, PATIENCE).await })
    }

    /// Calls of each core at once, each checked against its reply. The most bytes of a payload are
    /// one of `sizes`.
    pub fn call_from_all_cores(&self, to: &Address, calls: u16, sizes: [usize; 6]) {
        let (to, tasks) = (to.clone(), self.runtime.tasks());
        self.run(|network| async move {
            let mut ends = Vec::new();
            for core in 0..tasks.cores() {
                let (network, to) = (Arc::clone(&network), to.clone());
                let (give, take) = oneshot::channel();
                ends.push(take);
                tasks.spawn(CoreId(core), "test", async move {
                    let mut random = Lcg(u64::from(core));
                    let calls = (0..calls).map(|opcode| {
                        let most = sizes[random.below(6)];
                        let request = Frame {
                            opcode,
                            meta: vec![opcode as u8; random.below(200)].into(),
                            payload: vec![!opcode as u8; random.below(most + 1)].into(),
                        };
                        let (network, to) = (&network, &to);
                        async move {
                            let reply = network.call(to, request.clone(), PATIENCE).await;
                            assert_eq!(reply.unwrap(), request);
                        }
                    });
                    join_all(calls).await;
                    give.send(()).unwrap();
                });
            }
            for end in ends {
                end.await.unwrap();
            }
        });
    }
}

/// Waits until `holds`, which other threads bring about.
pub fn wait_until(what: &str, mut holds: impl FnMut() -> bool) {
    for _ in 0..PATIENCE.as_millis() / 5 {
        if holds() {
            return;
        }
        // A plain thread: it runs on no event loop.
        std::thread::park_timeout(Duration::from_millis(5));
    }
    panic!("{what} did not come");
}

/// Gives outcomes on as they come.
struct Collector(mpsc::UnboundedSender<(u64, Result<Frame, CallError>)>);

impl Replies for Collector {
    fn replied(&self, number: u64, outcome: Result<Frame, CallError>) {
        self.0.send((number, outcome)).unwrap();
    }
}

pub type Outcomes = mpsc::UnboundedReceiver<(u64, Result<Frame, CallError>)>;

/// An object that takes outcomes, and where they come out.
pub fn collector() -> (Arc<dyn Replies>, Outcomes) {
    let (give, take) = mpsc::unbounded_channel();
    (Arc::new(Collector(give)), take)
}

/// A service made of a function.
pub struct Serve<F>(pub F);

impl<F: Fn(Peer, Frame) -> Handled + Send + Sync> Service for Serve<F> {
    fn handle(&self, peer: Peer, request: Frame) -> Handled {
        (self.0)(peer, request)
    }
}

/// Gives each request back at once.
pub fn echo() -> impl Service {
    Serve(|_, request| Handled::Now(request))
}

pub fn frame(opcode: u16, payload: impl Into<Bytes>) -> Frame {
    Frame {
        opcode,
        meta: Bytes::new(),
        payload: payload.into(),
    }
}

/// A small generator, so that every run of a test does the same.
pub struct Lcg(pub u64);

impl Lcg {
    pub fn below(&mut self, bound: usize) -> usize {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as usize % bound
    }
}

/// Connects without saying anything. Reads give up after [`PATIENCE`].
pub fn raw(to: &Address) -> TcpStream {
    let stream = TcpStream::connect(&*to.0).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream
}

fn sealed(mut bytes: [u8; 32]) -> [u8; 32] {
    let checksum = crc32c(&[&bytes[..28]]);
    bytes[28..].copy_from_slice(&checksum.to_le_bytes());
    bytes
}

/// A hello of a side that speaks the protocol versions `oldest..=version`.
pub fn hello(oldest: u16, version: u16) -> [u8; 32] {
    let mut bytes = [0; 32];
    bytes[..8].copy_from_slice(b"PLUVIO\r\n");
    bytes[8..10].copy_from_slice(&version.to_le_bytes());
    bytes[10..12].copy_from_slice(&oldest.to_le_bytes());
    bytes[16..20].copy_from_slice(&(16u32 << 20).to_le_bytes());
    sealed(bytes)
}

/// Reads a hello that welcomes.
pub fn read_exact_hello(stream: &mut impl Read) {
    let mut answer = [0; 32];
    stream.read_exact(&mut answer).unwrap();
    assert_eq!(answer[..8], *b"PLUVIO\r\n");
    assert_eq!(answer[12..14], [0, 0], "not welcome");
}

/// The header of a request.
pub fn header(id: u64, meta_bytes: u32, payload_bytes: u32) -> [u8; 32] {
    let mut bytes = [0; 32];
    bytes[..4].copy_from_slice(&[b'P', b'V', 1, 0]);
    bytes[8..16].copy_from_slice(&id.to_le_bytes());
    bytes[16..20].copy_from_slice(&meta_bytes.to_le_bytes());
    bytes[20..24].copy_from_slice(&payload_bytes.to_le_bytes());
    sealed(bytes)
}

/// Connects and passes the handshake.
pub fn raw_welcomed(to: &Address) -> TcpStream {
    let mut stream = raw(to);
    stream.write_all(&hello(1, 1)).unwrap();
    read_exact_hello(&mut stream);
    stream
}

/// Everything until the other side closes. A reset counts as closing.
pub fn read_to_end(stream: &mut TcpStream) -> Vec<u8> {
    let mut bytes = Vec::new();
    match stream.read_to_end(&mut bytes) {
        Ok(_) => bytes,
        Err(error) if error.kind() == std::io::ErrorKind::ConnectionReset => bytes,
        Err(error) => panic!("the other side did not close: {error}"),
    }
}
