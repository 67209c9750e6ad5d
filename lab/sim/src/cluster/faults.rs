//! The faults of a run, by name.

use core::fmt;
use core::str::FromStr;
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;

/// One kind of fault.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Fault {
    /// Some messages are late, by up to 200 ms.
    Delay,
    /// Some messages are lost, with or without notice.
    Loss,
    /// Some messages arrive twice (the transport filters the second copy).
    Duplication,
    /// Messages overtake each other.
    Reordering,
    /// Servers die and come back later, often after they were declared dead. Sometimes all at
    /// once: a cold start.
    Crash,
    /// Servers die and come back at once, often before anybody noticed.
    Restart,
    /// The coordinator that leads dies and comes back. Where there are two, the other one takes
    /// over.
    Coordinator,
    /// Machines lose power, and with it what was not synced. In clusters that do not run `synced`
    /// only one server, and only where every write needs two replicas.
    Power,
    /// Ways between processes are cut for a while: in both directions or one, between two, around
    /// one, or through the middle of the cluster.
    Cut,
    /// Processes stand still, or run by jerks: for less than the failure detection takes, or for so
    /// long that a server is declared dead and goes on as a zombie.
    Stall,
    /// Wall clocks jump by up to an hour, back and forth. In runs with this, monotonic clocks also
    /// run up to 10 % too fast or too slow.
    Clock,
    /// Clients die in the middle of an operation, and others come in their place.
    Client,
    /// Disks are slow, or full, or give errors, for a while. Errors only at one server, and only
    /// where every write needs two replicas.
    Disk,
    /// Bits of closed frames turn over on the disk of one server, where every write needs two
    /// replicas.
    Bitrot,
    /// Bits of objects turn over in the memory of one server, where every write needs two replicas.
    Memory,
    /// Requests and replies go by the sessions of crate `net`, in datagrams. For a while, up to a
    /// fifth of those are lost, up to a fifth come twice, and all may overtake each other. Some
    /// come again seconds later, and some are damaged. In runs with this, the other faults of
    /// messages are faults of datagrams, too.
    Datagrams,
    /// Servers are stopped in order: their tablets move away first, as far as the time for it goes.
    /// And servers are drained by hand, and that is taken back.
    Drain,
    /// Tablets move all the time for the sake of balance, however little there is to even out. And
    /// that is switched off and on again.
    Balance,
    /// Servers have two devices. One of them fails, hangs or is full for a while, so that its
    /// server goes on without it. After a restart the device is there again, as it was.
    Device,
}

impl Fault {
    /// All kinds.
    pub const ALL: [Self; 19] = [
        Self::Delay,
        Self::Loss,
        Self::Duplication,
        Self::Reordering,
        Self::Crash,
        Self::Restart,
        Self::Coordinator,
        Self::Power,
        Self::Cut,
        Self::Stall,
        Self::Clock,
        Self::Client,
        Self::Disk,
        Self::Bitrot,
        Self::Memory,
        Self::Datagrams,
        Self::Drain,
        Self::Balance,
        Self::Device,
    ];

    /// Its name, as in `--faults`.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Delay => "delay",
            Self::Loss => "loss",
            Self::Duplication => "duplication",
            Self::Reordering => "reordering",
            Self::Crash => "crash",
            Self::Restart => "restart",
            Self::Coordinator => "coordinator",
            Self::Power => "power",
            Self::Cut => "cut",
            Self::Stall => "stall",
            Self::Clock => "clock",
            Self::Client => "client",
            Self::Disk => "disk",
            Self::Bitrot => "bitrot",
            Self::Memory => "memory",
            Self::Datagrams => "datagrams",
            Self::Drain => "drain",
            Self::Balance => "balance",
            Self::Device => "device",
        }
    }
}

/// The kinds of faults that a run may have. Read from and shown as a list with commas; `all` and
/// `none` are lists too.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Faults(BTreeSet<Fault>);

impl Faults {
    /// All kinds.
    #[must_use]
    pub fn all() -> Self {
        Self(Fault::ALL.into_iter().collect())
    }

    /// No faults.
    #[must_use]
    pub fn none() -> Self {
        Self::default()
    }

    /// Whether this kind is among them.
    #[must_use]
    pub fn has(&self, fault: Fault) -> bool {
        self.0.contains(&fault)
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// With one more kind.
    #[must_use]
    pub(super) fn with(mut self, fault: Fault) -> Self {
        self.0.insert(fault);
        self
    }

    /// The kinds, in their order.
    pub fn iter(&self) -> impl Iterator<Item = Fault> {
        self.0.iter().copied()
    }
}

impl FromIterator<Fault> for Faults {
    fn from_iter<I: IntoIterator<Item = Fault>>(faults: I) -> Self {
        Self(faults.into_iter().collect())
    }
}

impl fmt::Display for Faults {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0.len() == Fault::ALL.len() {
            return f.write_str("all");
        }
        if self.0.is_empty() {
            return f.write_str("none");
        }
        let names: Vec<&str> = self.iter().map(Fault::name).collect();
        f.write_str(&names.join(","))
    }
}

/// A name that is no fault. Not retryable.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{0:?} is not a fault: give all, none, or a list with commas of {known}", known = Fault::ALL.map(Fault::name).join(", "))]
pub struct UnknownFault(String);

impl FromStr for Faults {
    type Err = UnknownFault;

    fn from_str(text: &str) -> Result<Self, UnknownFault> {
        let mut faults = Self::none();
        for name in text.split(',').map(str::trim) {
            match name {
                "all" => faults = Self::all(),
                "none" => {}
                _ => {
                    let found = Fault::ALL.into_iter().find(|f| f.name() == name);
                    let fault = found.ok_or_else(|| UnknownFault(name.to_owned()))?;
                    faults.0.insert(fault);
                }
            }
        }
        Ok(faults)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_are_read_as_they_are_shown() {
        for faults in [
            Faults::all(),
            Faults::none(),
            [Fault::Loss, Fault::Crash].into_iter().collect(),
        ] {
            assert_eq!(faults.to_string().parse(), Ok(faults));
        }
        let error = "loss,fire".parse::<Faults>().unwrap_err();
        assert!(error.to_string().contains("\"fire\""), "{error}");
        assert!(error.to_string().contains("power"), "{error}");
    }
}
