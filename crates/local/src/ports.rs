//! Ports that a child has again when it is started again.

use crate::cluster::{LocalOptions, Which};
use pluvio_console::failure::Failure;
use pluvio_console::options::COORDINATOR_PORT;
use std::net::{SocketAddr, TcpListener};
use tokio::net::TcpSocket;

/// The Redis ports of a server that has an address of its own.
const REDIS_PORT: u16 = 6379;
const REDIS_CLUSTER_PORT: u16 = 7379;

/// The ports of all children that clients know.
///
/// A free port is one of those that the kernel gives to connections, too. While its child is down,
/// any other process could get it. So this process holds it: it binds the port as well, with
/// `SO_REUSEADDR` and without listening. Then a child, which binds it with `SO_REUSEADDR` too, may
/// listen there, and the kernel gives it to nobody else.
pub(crate) struct Ports {
    /// Where the coordinators listen.
    pub(crate) coordinators: Vec<String>,
    /// The Redis port of each server.
    pub(crate) redis: Vec<u16>,
    /// The port of each server for cluster clients of Redis.
    pub(crate) redis_cluster: Vec<u16>,
    _held: Vec<TcpSocket>,
}

impl Ports {
    /// Those that the options name, and free ones where they leave the choice.
    ///
    /// # Errors
    /// No port is free.
    pub(crate) fn choose(options: &LocalOptions, servers: usize) -> Result<Self, Failure> {
        let mut held = Vec::new();
        let mut choose = |which, first: u16, index: usize, usual| match (first, options.home(which))
        {
            // A child with an address of its own has all ports of it.
            (0, Some(_)) => Ok(usual),
            (0, None) => hold(&mut held),
            (first, _) => Ok(first.saturating_add(u16::try_from(index).unwrap_or(0))),
        };
        let mut coordinators = Vec::new();
        for index in 0..options.coordinators as usize {
            let which = Which::Coordinator(index);
            let named = match (index, options.coordinator_port) {
                (0, Some(port)) => port,
                (0, None) if is_free(COORDINATOR_PORT) => COORDINATOR_PORT,
                _ => 0,
            };
            let port = choose(which, named, 0, COORDINATOR_PORT)?;
            coordinators.push(format!("{}:{port}", options.host(which)));
        }
        let (mut redis, mut redis_cluster) = (Vec::new(), Vec::new());
        for index in 0..servers {
            let which = Which::Server(index);
            redis.push(choose(which, options.redis_port, index, REDIS_PORT)?);
            let first = options.redis_cluster_port;
            redis_cluster.push(choose(which, first, index, REDIS_CLUSTER_PORT)?);
        }
        Ok(Self {
            coordinators,
            redis,
            redis_cluster,
            _held: held,
        })
    }
}

/// Holds a port of the loopback that is free, and tells which.
fn hold(held: &mut Vec<TcpSocket>) -> Result<u16, Failure> {
    let mut bind = || {
        let socket = TcpSocket::new_v4()?;
        socket.set_reuseaddr(true)?;
        socket.bind(SocketAddr::from(([127, 0, 0, 1], 0)))?;
        let port = socket.local_addr()?.port();
        held.push(socket);
        Ok(port)
    };
    bind().map_err(|error: std::io::Error| Failure::new(format!("no port is free: {error}")))
}

/// Whether nobody listens on this port. It is opened for a moment only; if it is taken in between,
/// the child says so.
fn is_free(port: u16) -> bool {
    TcpListener::bind(("127.0.0.1", port)).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use pluvio_units::Size;
    use std::io;

    #[test]
    fn a_held_port_is_for_children_alone() {
        let mut held = Vec::new();
        let port = hold(&mut held).unwrap();
        let at = SocketAddr::from(([127, 0, 0, 1], port));
        // Twice, as a child that was killed and started again. The library's listeners are bound
        // with `SO_REUSEADDR`, as those of a child are.
        for _ in 0..2 {
            TcpListener::bind(at).unwrap();
            // As a socket that the kernel chooses a port for.
            let refused = TcpSocket::new_v4().unwrap().bind(at).unwrap_err();
            assert_eq!(refused.kind(), io::ErrorKind::AddrInUse);
        }
        held.clear();
        TcpSocket::new_v4().unwrap().bind(at).unwrap();
    }

    #[test]
    fn ports_are_those_that_are_named_or_any_that_differ() {
        let folder = tempfile::tempdir().unwrap();
        let mut options = LocalOptions::for_a_while(3, 0, Size::mib(64), folder.path());
        options.redis_port = 7001;
        let ports = Ports::choose(&options, 3).unwrap();
        assert_eq!(ports.redis, [7001, 7002, 7003]);
        let mut any = ports.redis_cluster.clone();
        any.sort_unstable();
        any.dedup();
        assert_eq!(any.len(), 3, "{:?}", ports.redis_cluster);
        assert!(!ports.coordinators[0].ends_with(":0"));
    }
}
