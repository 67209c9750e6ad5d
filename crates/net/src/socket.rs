//! Sockets: opening ports, connecting, and the reasons when these fail.

use crate::handshake::Talk;
use crate::lock;
use bytes::Bytes;
use core::time::Duration;
use pluvio_env::{Clock, NoConnection, Tasks, timeout};
use socket2::{Domain, Protocol, SockRef, Socket, TcpKeepalive, Type};
use std::io;
use std::net::{SocketAddr, TcpListener as StdListener, ToSocketAddrs};
use std::sync::{Arc, Mutex};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

/// Connections that the kernel holds until they are accepted; it cuts this to `somaxconn`.
const BACKLOG: i32 = 4096;
/// How long the first request for a connection may be without an answer; each next one may take
/// twice as long. The kernel repeats one only after a second, which is longer than a lease. An
/// existing connection repeats after 200 ms.
const FIRST_TRY: Duration = Duration::from_millis(200);
/// How long a refused side may take to read the reason.
const REFUSAL_LIMIT: Duration = Duration::from_secs(1);
/// Bytes of such a side that are read and thrown away. Closing with unread bytes would reset the
/// connection, and lose the answer.
const REFUSAL_DRAIN_BYTES_MAX: usize = 64 << 10;

/// Finds the socket addresses behind `place`. Names are looked up outside the event loops.
pub(crate) async fn resolve(tasks: &dyn Tasks, place: &str) -> Result<Vec<SocketAddr>, String> {
    if let Ok(literal) = place.parse::<SocketAddr>() {
        return Ok(vec![literal]);
    }
    let found = Arc::new(Mutex::new(None));
    let (name, result) = (place.to_owned(), Arc::clone(&found));
    tasks
        .run_blocking(Box::new(move || {
            let addresses = name.to_socket_addrs().map(Iterator::collect::<Vec<_>>);
            *lock(&result) = Some(addresses);
        }))
        .await;
    match lock(&found).take() {
        Some(Ok(addresses)) if addresses.is_empty() => Err("the name has no address".to_owned()),
        Some(Ok(addresses)) => Ok(addresses),
        Some(Err(error)) => Err(explain_lookup(place, &error)),
        None => Err("the process is shutting down".to_owned()),
    }
}

fn explain_lookup(place: &str, error: &io::Error) -> String {
    match place.rsplit_once(':') {
        Some((host, port)) if !host.is_empty() && port.parse::<u16>().is_ok() => {
            format!("cannot resolve host {host:?}: {error}")
        }
        Some(_) | None => "not an address: write host:port, for example 127.0.0.1:7700".to_owned(),
    }
}

/// Opens a port. Not yet on any event loop.
pub(crate) fn bind(at: SocketAddr) -> Result<StdListener, String> {
    let open = || -> io::Result<StdListener> {
        let socket = Socket::new(Domain::for_address(at), Type::STREAM, Some(Protocol::TCP))?;
        // Lets a restarted process have its port while old connections are still dying. Two
        // processes still cannot share one: that would be SO_REUSEPORT.
        socket.set_reuse_address(true)?;
        socket.set_nonblocking(true)?;
        socket.bind(&at.into())?;
        socket.listen(BACKLOG)?;
        Ok(socket.into())
    };
    open().map_err(|error| explain_bind(&error, at))
}

pub(crate) fn explain_bind(error: &io::Error, at: SocketAddr) -> String {
    let port = at.port();
    match error.kind() {
        io::ErrorKind::AddrInUse => format!(
            "port {port} is already in use by another program; stop that one or choose another \
             port (`ss -ltnp 'sport = :{port}'` shows who has it)"
        ),
        io::ErrorKind::PermissionDenied => format!(
            "permission denied for port {port}; ports below 1024 need CAP_NET_BIND_SERVICE, \
             choose a higher one"
        ),
        io::ErrorKind::AddrNotAvailable => format!(
            "{} is not an address of this machine; use one that is (`ip address` lists them)",
            at.ip()
        ),
        _ => error.to_string(),
    }
}

/// The options of every socket.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Tuning {
    pub(crate) keepalive: Duration,
    pub(crate) stall_limit: Duration,
}

/// Sends small pieces at once, and notices machines that have vanished. A refusal of the kernel
/// only costs speed or patience, so it is not an error.
pub(crate) fn tune(stream: &TcpStream, tuning: Tuning) {
    let socket = SockRef::from(stream);
    let keepalive = TcpKeepalive::new()
        .with_time(tuning.keepalive.max(Duration::from_secs(1)))
        .with_interval((tuning.keepalive / 3).max(Duration::from_secs(1)))
        .with_retries(3);
    let results = [
        socket.set_tcp_nodelay(true),
        socket.set_tcp_keepalive(&keepalive),
        socket.set_tcp_user_timeout(Some(tuning.stall_limit)),
    ];
    for error in results.into_iter().filter_map(Result::err) {
        tracing::debug!(%error, "a socket option was refused");
    }
}

/// Finds the addresses behind `place` and connects to one of them, all within `limit`.
///
/// # Errors
/// Of the last address tried.
pub(crate) async fn connect(
    tasks: &dyn Tasks,
    clock: &dyn Clock,
    place: &str,
    limit: Duration,
) -> Result<TcpStream, NoConnection> {
    let deadline = clock.now() + limit;
    let addresses = match timeout(clock, limit, resolve(tasks, place)).await {
        Ok(found) => found?,
        Err(_) => return Err(format!("no address found within {limit:?}").into()),
    };
    connect_to_one(clock, &addresses, deadline.since(clock.now())).await
}

/// Connects to one of the addresses, trying them in order, all within `limit`. One that drops
/// packets leaves the others their share.
async fn connect_to_one(
    clock: &dyn Clock,
    addresses: &[SocketAddr],
    limit: Duration,
) -> Result<TcpStream, NoConnection> {
    let deadline = clock.now() + limit;
    let mut last = NoConnection::Other("the name has no address".to_owned());
    for (&at, left) in addresses.iter().zip((1..=addresses.len()).rev()) {
        let share = deadline.since(clock.now()) / u32::try_from(left).unwrap_or(u32::MAX);
        last = match timeout(clock, share, connect_again(clock, at)).await {
            Ok(Ok(stream)) if is_connected_to_itself(&stream) => NoConnection::Refused,
            Ok(Ok(stream)) => return Ok(stream),
            Ok(Err(error)) => explain_connect(&error),
            Err(_) => format!("no answer within {share:.1?}").into(),
        };
    }
    Err(last)
}

/// Asks for a connection until there is an answer; the caller bounds that.
async fn connect_again(clock: &dyn Clock, at: SocketAddr) -> io::Result<TcpStream> {
    let mut patience = FIRST_TRY;
    loop {
        if let Ok(answer) = timeout(clock, patience, TcpStream::connect(at)).await {
            return answer;
        }
        patience *= 2;
    }
}

/// Detects a socket that is joined to itself. When nothing listens on a port of this machine, the
/// kernel may choose that very port for this end. Keeping the connection would also keep the port
/// taken.
fn is_connected_to_itself(stream: &TcpStream) -> bool {
    matches!((stream.local_addr(), stream.peer_addr()), (Ok(here), Ok(there)) if here == there)
}

fn explain_connect(error: &io::Error) -> NoConnection {
    match error.kind() {
        io::ErrorKind::ConnectionRefused => NoConnection::Refused,
        _ => NoConnection::Other(error.to_string()),
    }
}

/// Writes `text`, then closes so that the other side gets it, within about a second.
pub(crate) async fn write_and_close(mut stream: impl Talk, text: Bytes, clock: &dyn Clock) {
    let say = async {
        stream.write_all(&text).await?;
        stream.shutdown().await?;
        let mut thrown = [0; 1024];
        let mut drained = 0;
        while drained < REFUSAL_DRAIN_BYTES_MAX {
            match stream.read(&mut thrown).await? {
                0 => break,
                count => drained += count,
            }
        }
        io::Result::Ok(())
    };
    // A side that refuses even the refusal gets none.
    if let Ok(Err(error)) = timeout(clock, REFUSAL_LIMIT, say).await {
        tracing::trace!(%error, "a refusal was not delivered");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use pluvio_env_os::{OsOptions, OsRuntime};

    #[test]
    fn a_host_that_is_unknown_is_told_from_what_is_no_address() {
        let error = io::Error::other("no such name");
        let explained = |address: &str| explain_lookup(address, &error);
        assert_eq!(
            explained("nohost:7700"),
            "cannot resolve host \"nohost\": no such name"
        );
        for wrong in ["nohost", ":7700", "nohost:99999"] {
            assert!(explained(wrong).starts_with("not an address"), "{wrong}");
        }
    }

    #[test]
    fn an_address_that_drops_packets_leaves_the_next_one_its_time() {
        // Its queue is full, so the kernel drops further requests for a connection.
        let full = Socket::new(Domain::IPV4, Type::STREAM, None).expect("a socket");
        let any = SocketAddr::from(([127, 0, 0, 1], 0));
        full.bind(&any.into()).expect("a port");
        full.listen(0).expect("it listens");
        let at = full.local_addr().expect("its address");
        let at = at.as_socket().expect("it is of the internet");
        let fill = || std::net::TcpStream::connect_timeout(&at, Duration::from_millis(100));
        let waiting: Vec<_> = core::iter::from_fn(|| fill().ok()).collect();
        assert!(!waiting.is_empty());
        let good = StdListener::bind(any).expect("another port");
        let good_at = good.local_addr().expect("its address");
        let runtime = OsRuntime::start(&OsOptions::with_cores(1)).expect("a runtime");
        let clock = runtime.clock();
        let limit = Duration::from_secs(1);
        let stream = runtime.block_on(async move {
            let stream = connect_to_one(&*clock, &[at, good_at], limit).await;
            stream.and_then(|s| s.peer_addr().map_err(|e| explain_connect(&e)))
        });
        assert_eq!(stream, Ok(good_at));
    }
}
