//! A new server list as its differences from an earlier one, for clusters whose whole list is long.

use crate::codec::{Fields, Request};
use crate::control::{ServerInfo, ServerList};
use crate::data::request;
use crate::opcode::Opcode;
use pluvio_units::{ClusterId, ServerId, ServerListVersion, crc32c};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// The differences between a server list and an earlier one. Answered with the version of the list
/// that the receiver has then. A receiver with another list than the earlier one changes nothing
/// (MEM-8).
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct ChangeServerList {
    /// The cluster.
    pub cluster: ClusterId,
    /// The version of the earlier list.
    pub since: ServerListVersion,
    /// The new list, but of its servers only those that are new or that differ.
    pub list: ServerList,
    /// Servers of the earlier list that are not in the new one, by ascending id.
    pub gone: Vec<ServerId>,
    /// The [`ServerList::digest`] of the whole new list.
    pub digest: u32,
}
impl Fields for ChangeServerList {}
request!(ChangeServerList => HasServerList);

/// The server list that a server has.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct HasServerList {
    /// Its version.
    pub version: ServerListVersion,
}
impl Fields for HasServerList {}

impl ChangeServerList {
    /// The new list. `None` if these are not the differences from `before`.
    #[must_use]
    pub fn apply(&self, before: &ServerList) -> Option<ServerList> {
        if before.version != self.since {
            return None;
        }
        let mut servers: BTreeMap<ServerId, &ServerInfo> =
            before.servers.iter().map(|s| (s.id, s)).collect();
        for id in &self.gone {
            servers.remove(id);
        }
        servers.extend(self.list.servers.iter().map(|s| (s.id, s)));
        let list = ServerList {
            servers: servers.into_values().cloned().collect(),
            ..self.list.clone()
        };
        (list.digest() == self.digest).then_some(list)
    }
}

impl ServerList {
    /// A checksum of all that it says. Programs that know other fields of a server may come to
    /// another one.
    #[must_use]
    pub fn digest(&self) -> u32 {
        let bytes = rmp_serde::to_vec_named(self)
            .expect("writing msgpack to memory cannot fail: lists hold no type that msgpack lacks");
        crc32c(&[&bytes])
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::control::ServerState;

    fn list(version: u64, servers: &[(u64, ServerState)]) -> ServerList {
        let info = |&(id, state): &(u64, ServerState)| ServerInfo {
            state,
            ..ServerInfo::plain(ServerId(id), format!("s{id}"))
        };
        ServerList {
            version: ServerListVersion(version),
            servers: servers.iter().map(info).collect(),
            grown: true,
            ..ServerList::default()
        }
    }

    /// The differences of a list from an earlier one.
    fn between(before: &ServerList, after: &ServerList) -> ChangeServerList {
        let stays = |s: &&ServerInfo| before.get(s.id) == Some(s);
        let changed = after.servers.iter().filter(|s| !stays(s));
        let gone = before.servers.iter().map(|s| s.id);
        ChangeServerList {
            cluster: ClusterId(7),
            since: before.version,
            list: ServerList {
                servers: changed.cloned().collect(),
                ..after.clone()
            },
            gone: gone.filter(|id| after.get(*id).is_none()).collect(),
            digest: after.digest(),
        }
    }

    // shows: MEM-8
    #[test]
    fn differences_lead_from_one_list_to_the_other_and_from_no_third() {
        use ServerState::{Crashed, Up};
        let before = list(5, &[(1, Up), (2, Up), (3, Crashed), (4, Up)]);
        let after = list(9, &[(1, Up), (2, Crashed), (4, Up), (6, Up)]);
        let change = between(&before, &after);
        let named: Vec<u64> = change.list.servers.iter().map(|s| s.id.0).collect();
        assert_eq!((named, &change.gone[..]), (vec![2, 6], &[ServerId(3)][..]));
        assert_eq!(change.apply(&before), Some(after.clone()));
        assert_eq!(change.apply(&after), None);
        // The same version of another history.
        let other = list(5, &[(1, Up), (2, Up), (3, Crashed)]);
        assert_eq!(change.apply(&other), None);
    }

    #[test]
    fn no_difference_is_short() {
        let same = list(5, &[(1, ServerState::Up)]);
        let change = between(&same, &same);
        assert!(change.list.servers.is_empty() && change.gone.is_empty());
        assert_eq!(change.apply(&same), Some(same));
    }
}
