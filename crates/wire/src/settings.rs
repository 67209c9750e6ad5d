//! What holds for the whole cluster: how objects are kept, and which version its members speak.

use crate::codec::{Fields, Request};
use crate::data::request;
use crate::opcode::Opcode;
use serde::{Deserialize, Serialize};

/// How a cluster keeps its objects. The coordinator owns it: it is stored with the cluster, and
/// every server list carries it (SETTINGS-1 of crate `coordinator`).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct ClusterSettings {
    /// Replicas of every segment on other servers' disks; 0 keeps none: a crash loses the data.
    pub replicas: u32,
    /// Replicas without which writes wait: 1 to `replicas`. Without meaning when there are none.
    pub min_replicas: u32,
    /// A write is acknowledged when its replicas are on their devices, instead of with the
    /// operating systems of their servers.
    pub synced: bool,
    /// A segment has at most one replica in a rack, and none in its master's. What has no place
    /// then is missing. Otherwise other racks only come first.
    #[serde(default)]
    pub strict_racks: bool,
}

impl ClusterSettings {
    /// Most replicas: far more than anybody wants to pay for.
    pub const REPLICAS_MAX: u32 = 16;
    /// Those of a cluster for which nobody has said anything. With one needed replica a write is in
    /// two places, as in a majority of three. With more, three servers would stop at the loss of
    /// one, and a lone server when a second one joins.
    pub const USUAL: Self = Self {
        replicas: 3,
        min_replicas: 1,
        synced: false,
        strict_racks: false,
    };

    /// These settings, with what a change names.
    ///
    /// # Errors
    /// The result makes no sense, and why, for people.
    pub fn with(self, change: &SettingsWish) -> Result<Self, String> {
        let changed = Self {
            replicas: change.replicas.unwrap_or(self.replicas),
            min_replicas: change.min_replicas.unwrap_or(self.min_replicas),
            synced: change.synced.unwrap_or(self.synced),
            strict_racks: change.strict_racks.unwrap_or(self.strict_racks),
        };
        changed.check()?;
        Ok(changed)
    }

    /// # Errors
    /// They make no sense, and why, for people.
    pub fn check(&self) -> Result<(), String> {
        let (replicas, needed) = (self.replicas, self.min_replicas);
        if replicas > Self::REPLICAS_MAX {
            return Err(format!(
                "replicas {replicas}: {} are the most",
                Self::REPLICAS_MAX
            ));
        }
        if replicas > 0 && needed == 0 {
            return Err("min-replicas 0: a write is acknowledged only when a replica has it; give 1 or more, or replicas 0 to keep none".into());
        }
        if replicas > 0 && needed > replicas {
            return Err(format!(
                "min-replicas {needed} is more than replicas {replicas}, and a write has {replicas} at most; lower min-replicas or raise replicas"
            ));
        }
        Ok(())
    }

    /// The word for when a write is acknowledged, as on the command line.
    #[must_use]
    pub fn durability(&self) -> &'static str {
        match self.synced {
            true => "synced",
            false => "buffered",
        }
    }
}

impl core::fmt::Display for ClusterSettings {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(
            f,
            "replicas={} min-replicas={} durability={}",
            self.replicas,
            self.min_replicas,
            self.durability()
        )?;
        match self.strict_racks {
            true => f.write_str(" racks=strict"),
            false => Ok(()),
        }
    }
}

/// Some settings: those that a server expects, that a new cluster is to have, or that are to be
/// changed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct SettingsWish {
    /// See [`ClusterSettings::replicas`].
    #[serde(default)]
    pub replicas: Option<u32>,
    /// See [`ClusterSettings::min_replicas`].
    #[serde(default)]
    pub min_replicas: Option<u32>,
    /// See [`ClusterSettings::synced`].
    #[serde(default)]
    pub synced: Option<bool>,
    /// See [`ClusterSettings::strict_racks`].
    #[serde(default)]
    pub strict_racks: Option<bool>,
}

impl SettingsWish {
    /// Whether it names nothing.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// For a cluster that begins: fewer replicas than the usual least number lower that, too.
    #[must_use]
    pub fn completed(&self) -> Self {
        let usual = ClusterSettings::USUAL;
        let replicas = self.replicas.unwrap_or(usual.replicas);
        let least = usual.min_replicas.min(replicas.max(1));
        Self {
            min_replicas: Some(self.min_replicas.unwrap_or(least)),
            ..*self
        }
    }

    /// The settings that it names otherwise than `settings` have them, for people; `None` when
    /// there are none.
    #[must_use]
    pub fn contradiction(&self, settings: &ClusterSettings) -> Option<String> {
        let number = |name: &str, wish: Option<u32>, is: u32| {
            let wish = wish.filter(|wish| *wish != is)?;
            Some(format!("--{name} {wish} (the cluster has {is})"))
        };
        let has_replicas = settings.replicas > 0 || self.replicas.is_some_and(|n| n > 0);
        let synced = self
            .synced
            .filter(|wish| *wish != settings.synced && has_replicas);
        let durability = synced.map(|synced| {
            let wish = ClusterSettings {
                synced,
                ..*settings
            };
            let (wish, is) = (wish.durability(), settings.durability());
            format!("--durability {wish} (the cluster has {is})")
        });
        let least = self.min_replicas.filter(|_| has_replicas);
        let all = [
            number("replicas", self.replicas, settings.replicas),
            number("min-replicas", least, settings.min_replicas),
            durability,
        ];
        let all: Vec<String> = all.into_iter().flatten().collect();
        (!all.is_empty()).then(|| all.join(", "))
    }
}

/// Change settings of the cluster. Answered when the change is stored; servers hear of it with the
/// next server list, and take it for what they write from then on. Repeating it does no harm.
///
/// Refused as [`Other`](crate::FatalKind::Other) when the result makes no sense, or replicas would
/// be begun or ended: a log has them from its birth or never.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct ChangeSettings {
    /// What is to be changed.
    pub change: SettingsWish,
}
impl Fields for ChangeSettings {}
request!(ChangeSettings => ClusterSettings);
impl Fields for ClusterSettings {}

/// The versions of the protocol that a process speaks. The same number stands for what is sent
/// between processes and for what they store: `docs/versions.md`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Versions {
    /// The oldest one.
    pub oldest: u16,
    /// The newest one.
    pub newest: u16,
}

impl Versions {
    /// Those of this program.
    pub const OWN: Self = Self {
        oldest: crate::PROTOCOL_OLDEST,
        newest: crate::PROTOCOL_VERSION,
    };
    /// Those of a process that does not say: it was built before versions were negotiated.
    pub const UNSAID: Self = Self {
        oldest: 7,
        newest: 7,
    };

    /// Whether a process that has these speaks `version`.
    #[must_use]
    pub fn speak(&self, version: u16) -> bool {
        (self.oldest..=self.newest).contains(&version)
    }

    /// For fields that an earlier program did not send or store.
    #[must_use]
    pub fn unsaid() -> Self {
        Self::UNSAID
    }

    /// The active version of a cluster whose coordinator does not say.
    #[must_use]
    pub fn active_unsaid() -> u16 {
        Self::UNSAID.newest
    }
}

impl Default for Versions {
    fn default() -> Self {
        Self::OWN
    }
}

impl core::fmt::Display for Versions {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self.oldest == self.newest {
            true => write!(f, "{}", self.newest),
            false => write!(f, "{} to {}", self.oldest, self.newest),
        }
    }
}

/// Let the cluster speak the newest version that the leading coordinator knows. There is no way
/// back. Answered when it is stored; servers hear of it with the next server list. It may be
/// repeated.
///
/// Refused as [`WrongVersion`](crate::FatalKind::WrongVersion) while a server of the list does not
/// speak it, with the servers' ids.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct FinalizeVersion {}
impl Fields for FinalizeVersion {}
request!(FinalizeVersion => FinalizeReply);

/// Which version the cluster speaks.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct FinalizeReply {
    /// It, from here on.
    pub active: u16,
    /// The one before: the same when nothing was to be done.
    pub former: u16,
}
impl Fields for FinalizeReply {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_that_make_no_sense_are_refused() {
        let usual = ClusterSettings::USUAL;
        let change = |replicas, min_replicas| {
            let change = SettingsWish {
                replicas,
                min_replicas,
                ..SettingsWish::default()
            };
            usual.with(&change).map(|s| (s.replicas, s.min_replicas))
        };
        assert_eq!(change(Some(2), None), Ok((2, 1)));
        assert_eq!(change(Some(0), Some(2)), Ok((0, 2)));
        for (replicas, least) in [(Some(17), None), (None, Some(0)), (Some(1), Some(2))] {
            assert!(change(replicas, least).is_err(), "{replicas:?} {least:?}");
        }
    }

    #[test]
    fn a_contradiction_names_the_flag_and_both_values() {
        let wish = SettingsWish {
            replicas: Some(0),
            min_replicas: Some(1),
            synced: Some(true),
            strict_racks: None,
        };
        let found = wish.contradiction(&ClusterSettings::USUAL).unwrap();
        assert_eq!(
            found,
            "--replicas 0 (the cluster has 3), --durability synced (the cluster has buffered)"
        );
        assert_eq!(
            SettingsWish::default().contradiction(&ClusterSettings::USUAL),
            None
        );
    }
}
