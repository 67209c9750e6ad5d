//! The written form of a place for metadata, and the store that it opens.

use crate::{EtcdStore, Login, ZooKeeperStore, embedded};
use core::fmt;
use core::str::FromStr;
use pluvio_coordinator::{MetadataStore, StoreError};
use pluvio_env::Env;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// The path of entries in etcd and ZooKeeper, unless another one is given.
const PATH: &str = "/pluvio";

/// The place of metadata: `embedded:DIR`, `etcd://HOST:PORT,…/PATH`,
/// `zookeeper://HOST:PORT,…/PATH`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Place {
    /// A file in this directory, used by one process at a time.
    Embedded(PathBuf),
    /// An etcd cluster.
    Etcd(Service),
    /// A ZooKeeper ensemble.
    ZooKeeper(Service),
}

/// Servers, and a path on them.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Service {
    /// `host:port` of at least one server.
    pub servers: Vec<String>,
    /// Begins with a slash and does not end with one.
    pub path: String,
}

/// The text is not a [`Place`]. Not retryable.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{0}; write embedded:DIR, etcd://HOST:PORT,…[/PATH] or zookeeper://HOST:PORT,…[/PATH]")]
pub struct BadPlace(String);

impl Place {
    /// The directory of an embedded store.
    #[must_use]
    pub fn directory(&self) -> Option<&Path> {
        match self {
            Self::Embedded(directory) => Some(directory),
            Self::Etcd(_) | Self::ZooKeeper(_) => None,
        }
    }

    /// Opens the store. A store outside of the process connects at its first use, as the user of
    /// `login`; an embedded one knows no users.
    ///
    /// # Errors
    /// The file of an embedded store is in use by another process, is something else, is empty, or
    /// cannot be read or created.
    pub fn open(
        &self,
        env: &Env,
        login: Option<Login>,
    ) -> Result<Arc<dyn MetadataStore>, StoreError> {
        Ok(match self {
            Self::Embedded(directory) => Arc::new(embedded::open(directory, &env.tasks)?),
            Self::Etcd(service) => Arc::new(EtcdStore::new(env.clone(), service, login)),
            Self::ZooKeeper(service) => Arc::new(ZooKeeperStore::new(env.clone(), service, login)),
        })
    }
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Embedded(directory) => write!(f, "embedded:{}", directory.display()),
            Self::Etcd(service) => write!(f, "etcd://{service}"),
            Self::ZooKeeper(service) => write!(f, "zookeeper://{service}"),
        }
    }
}

impl fmt::Display for Service {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{}", self.servers.join(","), self.path)
    }
}

impl FromStr for Place {
    type Err = BadPlace;

    fn from_str(text: &str) -> Result<Self, BadPlace> {
        if let Some(directory) = text.strip_prefix("embedded:") {
            if directory.is_empty() {
                return Err(BadPlace("the directory is missing".into()));
            }
            return Ok(Self::Embedded(directory.into()));
        }
        if let Some(rest) = text.strip_prefix("etcd://") {
            return rest.parse().map(Self::Etcd);
        }
        if let Some(rest) = text.strip_prefix("zookeeper://") {
            return rest.parse().map(Self::ZooKeeper);
        }
        Err(BadPlace(format!("{text:?} names no metadata store")))
    }
}

impl FromStr for Service {
    type Err = BadPlace;

    fn from_str(text: &str) -> Result<Self, BadPlace> {
        let (servers, path) = match text.find('/') {
            Some(at) => text.split_at(at),
            None => (text, PATH),
        };
        let path = match path.trim_end_matches('/') {
            "" => PATH,
            path => path,
        };
        let plain = |c: char| c.is_ascii_alphanumeric() || "/-_.".contains(c);
        let odd = |part: &str| part.is_empty() || part == "." || part == "..";
        if !path.chars().all(plain) || path[1..].split('/').any(odd) {
            return Err(BadPlace(format!(
                "the path {path:?} has more than letters, digits, -, _ and . between its slashes"
            )));
        }
        let servers: Vec<String> = servers.split(',').map(|s| s.trim().to_owned()).collect();
        for server in &servers {
            let port = server.rsplit_once(':').filter(|(host, _)| !host.is_empty());
            if !port.is_some_and(|(_, port)| matches!(port.parse::<u16>(), Ok(1..))) {
                return Err(BadPlace(format!("{server:?} is not host:port")));
            }
        }
        let path = path.to_owned();
        Ok(Self { servers, path })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_are_read_as_they_are_shown() {
        for text in [
            "embedded:/var/lib/pluvio",
            "etcd://127.0.0.1:2379/pluvio",
            "etcd://a:1,b:2,c:3/clusters/one",
            "zookeeper://zk.example.org:2181/pluvio",
        ] {
            let place: Place = text.parse().unwrap();
            assert_eq!(place.to_string(), text);
        }
        let short: Place = "etcd://a:1,b:2".parse().unwrap();
        assert_eq!(short.to_string(), "etcd://a:1,b:2/pluvio");
        let slash: Place = "zookeeper://a:1/".parse().unwrap();
        assert_eq!(slash.to_string(), "zookeeper://a:1/pluvio");
    }

    #[test]
    fn what_is_no_place_is_told() {
        for (text, words) in [
            ("", "names no metadata store"),
            ("/var/lib", "names no metadata store"),
            ("consul://a:1", "names no metadata store"),
            ("embedded:", "directory is missing"),
            ("etcd://", "is not host:port"),
            ("etcd://a", "is not host:port"),
            ("etcd://a:1,", "is not host:port"),
            ("etcd://a:0", "is not host:port"),
            ("etcd://a:99999", "is not host:port"),
            ("zookeeper://:1/x", "is not host:port"),
            ("zookeeper://a:1/x//y", "the path"),
            ("zookeeper://a:1/x/../y", "the path"),
            ("etcd://a:1/x y", "the path"),
        ] {
            let error = text.parse::<Place>().unwrap_err().to_string();
            assert!(
                error.contains(words) && error.contains("embedded:DIR"),
                "{error}"
            );
        }
    }
}
