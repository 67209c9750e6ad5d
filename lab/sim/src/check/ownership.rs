//! One owner: at no time do two servers serve the same key, and the coordinator's tablets of a
//! table cover every hash exactly once.

use crate::check::{Check, Violation};
use pluvio_units::{HashRange, KeyHash, ServerId, TableId};
use pluvio_wire::{ServerList, TableInfo, TabletState};

/// A tablet that a server serves.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Served {
    /// The table.
    pub table: TableId,
    /// The range of hashes.
    pub range: HashRange,
    /// Who serves it.
    pub server: ServerId,
}

/// Checks what all servers serve at one moment; `served` is sorted on the way.
#[must_use]
pub fn one_server_each(served: &mut [Served]) -> Option<Violation> {
    served.sort_unstable();
    let mut widest: Option<Served> = None;
    for tablet in served.iter() {
        if let Some(other) = widest.filter(|w| w.table == tablet.table)
            && other.range.last >= tablet.range.first
        {
            return Some(Violation {
                check: Check::OneOwner,
                message: format!(
                    "two servers serve the same hashes of table {}",
                    tablet.table
                ),
                evidence: [other, *tablet]
                    .iter()
                    .map(|t| format!("server {} serves {}", t.server, t.range))
                    .collect(),
            });
        }
        let is_wider = |w: Served| w.table != tablet.table || w.range.last < tablet.range.last;
        if widest.is_none_or(is_wider) {
            widest = Some(*tablet);
        }
    }
    None
}

/// Checks what the coordinator says of a table.
#[must_use]
pub fn table_is_whole(table: &TableInfo) -> Option<Violation> {
    let mut next = Some(KeyHash(0));
    let mut problem = None;
    for tablet in &table.tablets {
        if next != Some(tablet.range.first) {
            problem = Some(format!(
                "a tablet begins at {}, not where the one before ended",
                tablet.range.first
            ));
            break;
        }
        let has_address = table.addresses.iter().any(|(id, _)| *id == tablet.owner);
        if tablet.state == TabletState::Normal && !has_address {
            problem = Some(format!("server {} has no address", tablet.owner));
            break;
        }
        next = tablet.range.last.0.checked_add(1).map(KeyHash);
    }
    let problem =
        problem.or_else(|| next.map(|hash| format!("no tablet has the hashes from {hash} on")))?;
    Some(Violation {
        check: Check::OneOwner,
        message: format!("table {}: {problem}", table.name),
        evidence: table.tablets.iter().map(|t| format!("{t:?}")).collect(),
    })
}

/// What is missing until the coordinator takes the cluster for healthy: all of `servers` up,
/// nobody crashed, every tablet served by a server that is up.
#[must_use]
pub fn not_healthy(servers: u32, list: &ServerList, tables: &[TableInfo]) -> Option<String> {
    let up = list.up().count();
    if up != servers as usize || list.servers.len() != up {
        let crashed = list.servers.len() - up;
        return Some(format!(
            "{up} of {servers} servers are up, {crashed} are not recovered"
        ));
    }
    for table in tables {
        let waiting = table
            .tablets
            .iter()
            .find(|t| t.state != TabletState::Normal || !list.is_up(t.owner));
        if let Some(tablet) = waiting {
            return Some(format!(
                "table {}: tablet {} of server {} is {:?}",
                table.name, tablet.range, tablet.owner, tablet.state
            ));
        }
    }
    None
}
