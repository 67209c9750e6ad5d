//! Names of contestants, as the command line knows them: `dashmap@mimalloc`.

use serde::{Deserialize, Serialize};
use std::fmt;
use std::path::{Path, PathBuf};
use std::str::FromStr;

/// What stores the objects.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Kind {
    /// Our store; updates append.
    Pluvio,
    /// Our store; updates overwrite where the new value fits.
    PluvioInPlace,
    /// `dashmap` with boxed values.
    Dashmap,
    /// `dashmap`; a value of the same length is overwritten.
    DashmapInPlace,
    /// `papaya` with boxed values.
    Papaya,
    /// `scc` with boxed values.
    Scc,
    /// Slabs of chunks with eviction, as in memcached, inside the process.
    SlabLru,
    /// An array of boxed values: the allocator and nothing else.
    Malloc,
    /// A Redis server.
    Redis,
    /// A memcached server.
    Memcached,
}

impl Kind {
    /// All of them.
    pub const ALL: [Self; 10] = [
        Self::Pluvio,
        Self::PluvioInPlace,
        Self::Dashmap,
        Self::DashmapInPlace,
        Self::Papaya,
        Self::Scc,
        Self::SlabLru,
        Self::Malloc,
        Self::Redis,
        Self::Memcached,
    ];

    /// The name on the command line.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Pluvio => "pluvio",
            Self::PluvioInPlace => "pluvio-in-place",
            Self::Dashmap => "dashmap",
            Self::DashmapInPlace => "dashmap-in-place",
            Self::Papaya => "papaya",
            Self::Scc => "scc",
            Self::SlabLru => "slab-lru",
            Self::Malloc => "malloc",
            Self::Redis => "redis",
            Self::Memcached => "memcached",
        }
    }

    /// Whether it is our store.
    #[must_use]
    pub fn is_ours(self) -> bool {
        matches!(self, Self::Pluvio | Self::PluvioInPlace)
    }

    /// Whether it brings its own memory, so that the allocator says little of it.
    #[must_use]
    pub fn has_own_memory(self) -> bool {
        match self {
            Self::Pluvio | Self::PluvioInPlace | Self::SlabLru | Self::Redis | Self::Memcached => {
                true
            }
            Self::Dashmap | Self::DashmapInPlace | Self::Papaya | Self::Scc | Self::Malloc => false,
        }
    }

    /// Whether it keeps its objects in another process.
    #[must_use]
    pub fn is_server(self) -> bool {
        matches!(self, Self::Redis | Self::Memcached)
    }
}

/// Which `malloc` a contestant's process uses.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Allocator {
    /// The C library's.
    #[default]
    Glibc,
    /// jemalloc.
    Jemalloc,
    /// tcmalloc, the minimal one.
    Tcmalloc,
    /// mimalloc.
    Mimalloc,
}

/// Where Debian keeps shared libraries.
const LIBRARIES: [&str; 3] = [
    "/usr/lib/x86_64-linux-gnu",
    "/usr/lib/aarch64-linux-gnu",
    "/usr/lib64",
];

impl Allocator {
    /// All of them.
    pub const ALL: [Self; 4] = [Self::Glibc, Self::Jemalloc, Self::Tcmalloc, Self::Mimalloc];

    /// The name on the command line.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Glibc => "glibc",
            Self::Jemalloc => "jemalloc",
            Self::Tcmalloc => "tcmalloc",
            Self::Mimalloc => "mimalloc",
        }
    }

    /// The library to preload, with the Debian package that brings it; `None` for the C library's
    /// own.
    #[must_use]
    pub fn library(self) -> Option<(&'static str, &'static str)> {
        match self {
            Self::Glibc => None,
            Self::Jemalloc => Some(("libjemalloc.so.2", "libjemalloc2")),
            Self::Tcmalloc => Some(("libtcmalloc_minimal.so.4", "libtcmalloc-minimal4")),
            Self::Mimalloc => Some(("libmimalloc.so.2", "libmimalloc2.0")),
        }
    }

    /// Where the library is.
    ///
    /// # Errors
    /// It is not installed; the text names the package.
    pub fn path(self) -> Result<Option<PathBuf>, String> {
        let Some((library, package)) = self.library() else {
            return Ok(None);
        };
        let found = LIBRARIES
            .iter()
            .map(|folder| Path::new(folder).join(library));
        match found.into_iter().find(|path| path.exists()) {
            Some(path) => Ok(Some(path)),
            None => Err(format!(
                "{library} is not installed; on Debian: apt-get install {package}"
            )),
        }
    }
}

/// One who takes part: what stores the objects, and on which allocator.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize, Deserialize)]
pub struct Contender {
    /// What stores the objects.
    pub kind: Kind,
    /// Its allocator.
    pub allocator: Allocator,
}

impl fmt::Display for Contender {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.kind.has_own_memory() {
            true => f.write_str(self.kind.name()),
            false => write!(f, "{}@{}", self.kind.name(), self.allocator.name()),
        }
    }
}

impl FromStr for Contender {
    type Err = String;

    /// `KIND`, `KIND@ALLOCATOR`, or an allocator's name for `malloc@ALLOCATOR`.
    fn from_str(text: &str) -> Result<Self, String> {
        let allocator = |name: &str| Allocator::ALL.into_iter().find(|a| a.name() == name);
        if let Some(allocator) = allocator(text) {
            let kind = Kind::Malloc;
            return Ok(Self { kind, allocator });
        }
        let (kind, on) = text.split_once('@').unwrap_or((text, "glibc"));
        let kind = Kind::ALL.into_iter().find(|known| known.name() == kind);
        match (kind, allocator(on)) {
            (Some(kind), Some(allocator)) => Ok(Self { kind, allocator }),
            (None, _) => {
                let known: Vec<_> = Kind::ALL.iter().map(|kind| kind.name()).collect();
                Err(format!(
                    "no contestant of that name; give {}",
                    known.join(", ")
                ))
            }
            (_, None) => Err("give @glibc, @jemalloc, @tcmalloc or @mimalloc".into()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_read_back() {
        for text in ["pluvio", "dashmap@mimalloc", "malloc@glibc", "redis"] {
            assert_eq!(text.parse::<Contender>().unwrap().to_string(), text);
        }
        assert_eq!(
            "jemalloc".parse::<Contender>().unwrap().to_string(),
            "malloc@jemalloc"
        );
        assert_eq!("scc".parse::<Contender>().unwrap().to_string(), "scc@glibc");
        for wrong in ["", "hashmap", "dashmap@", "dashmap@hoard"] {
            assert!(wrong.parse::<Contender>().is_err(), "{wrong}");
        }
    }
}
