//! What the tests of this crate share: a process in small, services, and a hand-made peer that
//! breaks the rules.

pub mod certificates;
pub mod raw_ring;

use bytes::Bytes;
use core::time::Duration;
use pluvio_env::{Address, CallError, Frame, Handled, Listening, Network, Peer, Service};
use pluvio_env_os::{OsOptions, OsRuntime, current_core};
use pluvio_net::{NetOptions, OsNetwork, Tls};
use pluvio_units::crc32c;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::Arc;

/// How long a test waits for what must happen; only a failing test waits that long.
pub const PATIENCE: Duration = Duration::from_secs(30);

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
