//! UDP sockets: one for each session that this process opens, one for each core of a port.

use super::opening::Terms;
use super::packet::{Credit, LARGEST_BYTES};
use super::session::Limits;
use super::siphash::Key;
use crate::options::NetOptions;
use crate::socket::explain_bind;
use crate::spare::BUFFER_BYTES;
use core::net::SocketAddr;
use core::sync::atomic::{AtomicU64, Ordering::Relaxed};
use core::time::Duration;
use pluvio_env::Clock;
use socket2::{Domain, Protocol, Socket, Type};
use std::hash::{BuildHasher, RandomState};
use std::io;
use std::net::UdpSocket as StdSocket;
use std::sync::LazyLock;

/// Bytes asked for the kernel's buffers: bursts of some sessions. It cuts this to its own limit.
const KERNEL_BYTES: usize = 4 << 20;
/// How long a port may still be held by event loops that have yet to drop its sockets.
const FREED_WITHIN: Duration = Duration::from_secs(1);
const BIND_PAUSE: Duration = Duration::from_millis(5);
/// While calls wait, a silent peer is asked after this time whether it is there. A process that is
/// gone is then noticed by the answer of its machine.
const WAITING_PAUSE: Duration = Duration::from_millis(100);
/// A session is over after this many pauses of `keepalive` in which nothing was heard.
const IDLE_PAUSES: u32 = 3;

/// A borrowed buffer holds the largest datagram.
const _: () = assert!(LARGEST_BYTES <= BUFFER_BYTES, "it would be cut");

/// A key that no other session or port has, and nobody can guess.
pub(crate) fn fresh_key() -> Key {
    /// The standard library takes the keys of this hasher from the kernel.
    static PROCESS: LazyLock<Key> = LazyLock::new(|| {
        let random = RandomState::new();
        Key(random.hash_one(0_u64), random.hash_one(1_u64))
    });
    static DRAWN: AtomicU64 = AtomicU64::new(0);
    // Relaxed: each number is given out once, and orders nothing.
    PROCESS.derive(DRAWN.fetch_add(1, Relaxed))
}

/// The terms of this process: `bytes` and `messages` at a time.
pub(crate) fn terms(options: &NetOptions, bytes: usize, messages: usize) -> Terms {
    let narrow = |bytes: usize| u32::try_from(bytes).unwrap_or(u32::MAX);
    // Twice the largest frame: credit that is not told yet (a fourth) never stops it.
    let bytes = bytes.max(2 * options.frame_bytes_max).max(1);
    Terms {
        frame_bytes_max: narrow(options.frame_bytes_max),
        datagram_bytes_max: narrow(options.datagram_bytes_max.clamp(512, LARGEST_BYTES)),
        credit: Credit {
            bytes: bytes as u64,
            messages: messages.max(1) as u64,
        },
    }
}

/// The limits of both sides' sessions.
pub(crate) fn limits(options: &NetOptions) -> Limits {
    Limits {
        silence: options.stall_limit,
        opening: options.handshake_limit,
        idle: IDLE_PAUSES * options.keepalive,
        message: options.frame_limit,
        keepalive: None,
        waiting: WAITING_PAUSE,
        flight_bytes_max: options.flight_bytes_max,
    }
}

/// The limits of the side that opens a session: it keeps the session alive.
pub(crate) fn client_limits(options: &NetOptions, opening: Duration) -> Limits {
    Limits {
        opening,
        keepalive: Some(options.keepalive),
        ..limits(options)
    }
}

fn new_socket(at: SocketAddr) -> io::Result<Socket> {
    let socket = Socket::new(Domain::for_address(at), Type::DGRAM, Some(Protocol::UDP))?;
    socket.set_nonblocking(true)?;
    // Small buffers only cost losses, which are made good.
    for error in [
        socket.set_recv_buffer_size(KERNEL_BYTES),
        socket.set_send_buffer_size(KERNEL_BYTES),
    ]
    .into_iter()
    .filter_map(Result::err)
    {
        tracing::debug!(%error, "a socket option was refused");
    }
    Ok(socket)
}

/// A socket that sends to `to` only, and receives from there only.
pub(crate) fn connect(to: SocketAddr) -> io::Result<StdSocket> {
    let socket = new_socket(to)?;
    socket.connect(&to.into())?;
    Ok(socket.into())
}

/// Opens a port with `count` sockets. The kernel gives all datagrams of one sender to one of them.
///
/// # Errors
/// Text for people.
pub(crate) async fn open(
    clock: &dyn Clock,
    at: SocketAddr,
    count: u16,
) -> Result<Vec<StdSocket>, String> {
    let patient_until = clock.now() + FREED_WITHIN;
    loop {
        match open_once(at, count) {
            Ok(sockets) => return Ok(sockets),
            Err(error) if error.kind() == io::ErrorKind::AddrInUse => {
                if clock.now() >= patient_until {
                    return Err(explain_bind(&error, at));
                }
                clock.sleep(BIND_PAUSE).await;
            }
            Err(error) => return Err(explain_bind(&error, at)),
        }
    }
}

fn open_once(at: SocketAddr, count: u16) -> io::Result<Vec<StdSocket>> {
    let first = new_socket(at)?;
    // Not shared yet: fails if any other program has the port.
    first.bind(&at.into())?;
    let at = first.local_addr()?;
    if count > 1 {
        first.set_reuse_port(true)?;
    }
    let mut sockets = vec![first.into()];
    for _ in 1..count {
        let socket = new_socket(at.as_socket().ok_or(io::ErrorKind::InvalidInput)?)?;
        socket.set_reuse_port(true)?;
        socket.bind(&at)?;
        sockets.push(socket.into());
    }
    Ok(sockets)
}
