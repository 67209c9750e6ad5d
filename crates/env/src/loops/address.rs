//! Addresses of processes, and the transports that they name.
//!
//! An address is one endpoint, or several of one process joined by `+`. The caller's network takes
//! the one that suits it best.
//!
//! ```text
//! 10.0.0.1:7700                              TCP, as without a name
//! tcp:10.0.0.1:7700                          the same
//! shm:/run/pluvio/7700.sock                  rings in shared memory, of this machine only
//! udp:10.0.0.1:7700                          datagrams
//! fabric:tcp:10.0.0.1:7700                   libfabric, by its provider called tcp
//! 10.0.0.1:7700+shm:/run/pluvio/7700.sock    a server that has two
//! ```
//!
//! A name without a colon behind it, like that of a simulated process, belongs to no transport and
//! counts as TCP.

use core::fmt;
use std::sync::Arc;

/// Where a process listens, as text that the network understands (`127.0.0.1:7000` for TCP).
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct Address(pub Arc<str>);

impl From<&str> for Address {
    fn from(text: &str) -> Self {
        Self(text.into())
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// A way for messages to travel.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Transport {
    /// TCP. The place is `host:port`.
    Tcp,
    /// Rings in memory that two processes of one machine share. The place is the absolute path of
    /// the socket at which they are handed over.
    Ring,
    /// Datagrams over UDP. The place is `host:port`.
    Datagrams,
    /// Messages of libfabric. The place is `provider:host:port`: what carries them, and where the
    /// two sides meet over TCP.
    Fabric,
}

impl Transport {
    /// All of them.
    pub const ALL: [Self; 4] = [Self::Tcp, Self::Ring, Self::Datagrams, Self::Fabric];

    /// Its name in an address, before the colon.
    #[must_use]
    pub fn scheme(self) -> &'static str {
        match self {
            Self::Tcp => "tcp",
            Self::Ring => "shm",
            Self::Datagrams => "udp",
            Self::Fabric => "fabric",
        }
    }

    /// Whether `place` may be one of this transport. It tells a scheme from a host of that name.
    fn takes(self, place: &str) -> bool {
        match self {
            Self::Tcp | Self::Datagrams => place.contains(':'),
            Self::Ring => place.starts_with('/'),
            Self::Fabric => place
                .rsplit_once(':')
                .and_then(|(rest, port)| Some((rest.split_once(':')?, port)))
                .is_some_and(|((provider, host), port)| {
                    [provider, host, port].iter().all(|part| !part.is_empty())
                }),
        }
    }

    /// The transport that `text` names, and the place behind its name.
    fn named_in(text: &str) -> Option<(Self, &str)> {
        Self::ALL.into_iter().find_map(|transport| {
            let rest = text.strip_prefix(transport.scheme())?.strip_prefix(':')?;
            transport.takes(rest).then_some((transport, rest))
        })
    }
}

/// One place at which a process listens.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Endpoint<'a> {
    /// How messages get there.
    pub transport: Transport,
    /// The place, in the terms of the transport.
    pub place: &'a str,
}

impl<'a> Endpoint<'a> {
    fn parse(text: &'a str) -> Self {
        let (transport, place) = Transport::named_in(text).unwrap_or((Transport::Tcp, text));
        Self { transport, place }
    }
}

impl fmt::Display for Endpoint<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.transport {
            Transport::Tcp => f.write_str(self.place),
            Transport::Ring | Transport::Datagrams | Transport::Fabric => {
                write!(f, "{}:{}", self.transport.scheme(), self.place)
            }
        }
    }
}

impl Address {
    /// Its endpoints, in their order.
    pub fn endpoints(&self) -> impl Iterator<Item = Endpoint<'_>> {
        let mut rest = Some(&*self.0);
        core::iter::from_fn(move || {
            let text = rest?;
            let border = text
                .match_indices('+')
                .map(|(at, _)| at)
                .find(|at| Transport::named_in(&text[at + 1..]).is_some());
            let (first, behind) = match border {
                Some(at) => (&text[..at], Some(&text[at + 1..])),
                None => (text, None),
            };
            rest = behind;
            Some(Endpoint::parse(first))
        })
    }

    /// The first endpoint. There is always one.
    #[must_use]
    pub fn first(&self) -> Endpoint<'_> {
        self.endpoints()
            .next()
            .expect("also no text is one endpoint")
    }

    /// The place of its first endpoint of `transport`.
    #[must_use]
    pub fn place_of(&self, transport: Transport) -> Option<&str> {
        let mut endpoints = self.endpoints();
        let found = endpoints.find(|endpoint| endpoint.transport == transport);
        found.map(|endpoint| endpoint.place)
    }

    /// Whether both begin with the same endpoint. Two running processes never do.
    #[must_use]
    pub fn is_same_place(&self, other: &Self) -> bool {
        self.first() == other.first()
    }

    /// Its endpoints and those of `other` behind them.
    #[must_use]
    pub fn and(&self, other: &Self) -> Self {
        // A first endpoint may go without its name, a later one may not.
        let later: String = other
            .endpoints()
            .map(|endpoint| format!("+{}:{}", endpoint.transport.scheme(), endpoint.place))
            .collect();
        Self::from(format!("{self}{later}").as_str())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(text: &str) -> Vec<(Transport, String)> {
        let address = Address::from(text);
        let endpoints = address.endpoints();
        endpoints
            .map(|endpoint| (endpoint.transport, endpoint.place.to_owned()))
            .collect()
    }

    #[test]
    fn an_address_names_its_transports() {
        use Transport::{Datagrams, Fabric, Ring, Tcp};
        for (text, expected) in [
            ("10.0.0.1:7700", &[(Tcp, "10.0.0.1:7700")][..]),
            ("tcp:[::1]:7700", &[(Tcp, "[::1]:7700")]),
            ("udp:host:7700", &[(Datagrams, "host:7700")]),
            ("shm:/run/a.sock", &[(Ring, "/run/a.sock")]),
            (
                "host:1+shm:/a+b/+c+udp:host:1",
                &[(Tcp, "host:1"), (Ring, "/a+b/+c"), (Datagrams, "host:1")],
            ),
            ("fabric:shm:host:1", &[(Fabric, "shm:host:1")]),
            (
                "host:1+fabric:verbs;ofi_rxm:[fe80::1]:2",
                &[(Tcp, "host:1"), (Fabric, "verbs;ofi_rxm:[fe80::1]:2")],
            ),
            // Hosts that are called like a transport.
            ("fabric:7700", &[(Tcp, "fabric:7700")]),
            ("tcp:7700", &[(Tcp, "tcp:7700")]),
            ("udp:7700+tcp:shm:1", &[(Tcp, "udp:7700"), (Tcp, "shm:1")]),
            ("server-1", &[(Tcp, "server-1")]),
            ("", &[(Tcp, "")]),
            ("+++", &[(Tcp, "+++")]),
        ] {
            let expected: Vec<_> = expected
                .iter()
                .map(|(transport, place)| (*transport, (*place).to_owned()))
                .collect();
            assert_eq!(found(text), expected, "{text}");
        }
    }

    #[test]
    fn joined_addresses_come_apart_again() {
        let both = Address::from("host:1").and(&Address::from("shm:/a"));
        assert_eq!(&*both.0, "host:1+shm:/a");
        let three = Address::from("udp:host:1").and(&both);
        assert_eq!(&*three.0, "udp:host:1+tcp:host:1+shm:/a");
        assert_eq!(three.place_of(Transport::Tcp), Some("host:1"));
        assert_eq!(three.place_of(Transport::Ring), Some("/a"));
        assert_eq!(both.place_of(Transport::Datagrams), None);
        assert!(both.is_same_place(&Address::from("tcp:host:1+shm:/b")));
        assert!(!both.is_same_place(&three));
    }

    #[test]
    fn endpoints_are_written_as_they_are_read() {
        for text in ["host:1", "udp:host:1", "shm:/a", "fabric:tcp:host:1"] {
            assert_eq!(Endpoint::parse(text).to_string(), text);
        }
    }
}
