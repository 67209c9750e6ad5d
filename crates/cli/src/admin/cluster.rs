//! The cluster as JSON for the page of a coordinator (`page.html`).
//!
//! - ADM-2: the JSON is bounded, whatever the size of the cluster. Servers, tables, recoveries and
//!   moves are cut at the limits below. Tablets of a small part of the ring are joined.

use crate::cmd::rates::Rates;
use crate::cmd::status::troubles;
use crate::cmd::top::{By, merge};
use pluvio_client::{ClusterStatus, ServerStatus, TopKeys};
use pluvio_console::output::escaped;
use pluvio_units::{HashRange, ServerId, TableId};
use pluvio_wire::{ServerInfo, ServerState, TableInfo, TabletState};
use serde_json::{Map, Value, json};
use std::collections::BTreeMap;

/// Servers told; those in trouble come first.
const SERVERS_MAX: usize = 256;
/// Tables told.
const TABLES_MAX: usize = 256;
/// Tables whose tablets are told, those with most tablets.
const RINGS_MAX: usize = 16;
/// Parts of a ring.
const ARCS_MAX: usize = 256;
/// Recoveries, moves, drains and troubles told of each; the latest.
const WORK_MAX: usize = 24;
/// Keys told of each list.
const KEYS_MAX: usize = 8;
/// Characters of a key or of a name that are told.
const NAME_MAX: usize = 128;

/// A cluster as it was seen at one moment.
pub struct Look {
    /// All but keys.
    pub status: ClusterStatus,
    /// Top keys of servers; an error says why they are not told.
    pub keys: Result<Vec<TopKeys>, String>,
}

/// The JSON. `before` is an older look, for rates.
pub fn as_json(look: &Look, before: Option<&ClusterStatus>) -> Value {
    let status = &look.status;
    let mut servers: Vec<_> = status.list.servers.iter().collect();
    servers.sort_by_key(|info| (!is_in_trouble(status, info), info.id));
    let servers = servers.into_iter().take(SERVERS_MAX);
    let servers: Vec<_> = servers.map(|info| server(status, info, before)).collect();
    let mut widest: Vec<_> = status.tables.iter().collect();
    widest.sort_by_key(|table| core::cmp::Reverse(table.tablets.len()));
    widest.truncate(RINGS_MAX);
    widest.sort_by(|a, b| a.name.cmp(&b.name));
    let drains = status.drains.iter().take(WORK_MAX);
    let mut told = troubles(status);
    told.truncate(WORK_MAX);
    json!({
        "leads": true,
        "cluster": format!("{:016x}", status.cluster.0),
        "servers_up": status.list.up().count(),
        "servers_all": status.list.servers.len(),
        "servers": servers,
        "tables_all": status.tables.len(),
        "tables": status.tables.iter().take(TABLES_MAX).map(table).collect::<Vec<_>>(),
        "rings": widest.into_iter().map(ring).collect::<Vec<_>>(),
        "recoveries": recoveries(status),
        "migrations": migrations(status),
        "drains": drains.collect::<Vec<_>>(),
        "troubles": told,
        "keys": keys(look),
    })
}

fn of(status: &ClusterStatus, id: ServerId) -> Option<&ServerStatus> {
    status.servers.iter().find(|server| server.id == id)
}

fn is_in_trouble(status: &ClusterStatus, info: &ServerInfo) -> bool {
    let well = |server: &ServerStatus| server.writes_wait.is_none();
    info.state != ServerState::Up || !of(status, info.id).is_some_and(well)
}

fn server(status: &ClusterStatus, info: &ServerInfo, before: Option<&ClusterStatus>) -> Value {
    let mut shown = json!({
        "id": info.id,
        "state": info.state,
        "address": info.address,
        "rack": info.rack,
        "cores": info.cores,
        "draining": info.draining,
        "disk_mb_per_s": info.disk_mb_per_s,
        "answers": false,
    });
    let (Some(s), Some(shown_object)) = (of(status, info.id), shown.as_object_mut()) else {
        return shown;
    };
    let older = before.and_then(|before| of(before, info.id));
    let rates = older.and_then(|older| Rates::between(older, s));
    let micros = |time: std::time::Duration| time.as_micros() as u64;
    let latency = rates.and_then(|rates| rates.latency);
    let more = json!({
        "answers": true,
        "memory_total": s.memory_total,
        "memory_log": s.memory_log,
        "memory_live": s.memory_live,
        "frame_bytes": s.frame_bytes,
        "data_left": s.data.iter().filter(|d| d.left.is_some()).map(|d| &d.name).collect::<Vec<_>>(),
        "objects": s.objects,
        "writes_wait": s.writes_wait,
        "ops_per_s": rates.map(|rates| rates.operations),
        "commands_per_s": rates.map(|rates| rates.commands),
        "p50_us": latency.map(|(median, _)| micros(median)),
        "p99_us": latency.map(|(_, high)| micros(high)),
        "busy": rates.and_then(|rates| rates.busy),
    });
    if let Value::Object(more) = more {
        shown_object.extend(more);
    }
    shown
}

fn table(info: &TableInfo) -> Value {
    let in_state = |state| info.tablets.iter().filter(|t| t.state == state).count();
    let mut owners: Vec<_> = info.tablets.iter().map(|t| t.owner).collect();
    owners.sort_unstable();
    owners.dedup();
    let mut shown = json!({
        "name": short(&info.name),
        "tablets": info.tablets.len(),
        "servers": owners.len(),
        "recovering": in_state(TabletState::Recovering),
        "assigning": in_state(TabletState::Assigning),
    });
    if let Some(class) = &info.class {
        shown["durability"] = class.to_string().into();
    }
    shown
}

/// A part of the ring: where it begins and ends (0 to 1), who has it (nobody: several), its state.
type Arc = (f64, f64, Option<ServerId>, TabletState);

fn turn(range: HashRange) -> (f64, f64) {
    let all = (u64::MAX as f64) + 1.0;
    (
        range.first.0 as f64 / all,
        (range.last.0 as f64 + 1.0) / all,
    )
}

fn ring(info: &TableInfo) -> Value {
    let joined = info.tablets.len() > ARCS_MAX;
    let arcs = match joined {
        false => {
            let one = |t: &pluvio_wire::TabletInfo| {
                let (from, to) = turn(t.range);
                (from, to, Some(t.owner), t.state)
            };
            info.tablets.iter().map(one).collect()
        }
        true => joined_arcs(info),
    };
    json!({
        "name": short(&info.name),
        "tablets": info.tablets.len(),
        "joined": joined,
        "arcs": arcs,
    })
}

/// Cells of equal size; neighbours that are alike are one.
fn joined_arcs(info: &TableInfo) -> Vec<Arc> {
    let mut cells: Vec<Option<(Option<ServerId>, TabletState)>> = vec![None; ARCS_MAX];
    for tablet in &info.tablets {
        let cell = |hash: u64| (hash / (u64::MAX / ARCS_MAX as u64 + 1)) as usize;
        let (first, last) = (cell(tablet.range.first.0), cell(tablet.range.last.0));
        for cell in &mut cells[first..=last] {
            *cell = Some(match *cell {
                None => (Some(tablet.owner), tablet.state),
                Some((owner, state)) => (
                    owner.filter(|owner| *owner == tablet.owner),
                    worse(state, tablet.state),
                ),
            });
        }
    }
    let mut arcs: Vec<Arc> = Vec::new();
    for (at, cell) in cells.into_iter().enumerate() {
        let Some((owner, state)) = cell else { continue };
        let end = (at + 1) as f64 / ARCS_MAX as f64;
        match arcs.last_mut() {
            Some(last) if (last.2, last.3) == (owner, state) => last.1 = end,
            Some(_) | None => arcs.push((at as f64 / ARCS_MAX as f64, end, owner, state)),
        }
    }
    arcs
}

fn worse(one: TabletState, other: TabletState) -> TabletState {
    match (one, other) {
        (TabletState::Recovering, _) | (_, TabletState::Recovering) => TabletState::Recovering,
        (TabletState::Assigning, _) | (_, TabletState::Assigning) => TabletState::Assigning,
        (TabletState::Normal, TabletState::Normal) => TabletState::Normal,
    }
}

fn recoveries(status: &ClusterStatus) -> Vec<Value> {
    let latest = status.recoveries.iter().rev().take(WORK_MAX);
    let one = |r: &pluvio_wire::RecoveryStatus| {
        json!({
            "crashed": r.crashed,
            "done": r.done,
            "phase": r.stage.to_string(),
            "duration_ms": r.duration_ms,
            "bytes": r.bytes,
        })
    };
    latest.map(one).collect()
}

fn migrations(status: &ClusterStatus) -> Vec<Value> {
    // Those under way first.
    let mut latest: Vec<_> = status.migrations.iter().rev().collect();
    latest.sort_by_key(|m| m.done);
    let one = |m: &pluvio_wire::MigrationStatus| {
        json!({
            "name": short(&m.name),
            "from": m.from,
            "to": m.to,
            "phase": m.phase,
            "duration_ms": m.duration_ms,
            "bytes": m.progress.bytes,
        })
    };
    latest.into_iter().take(WORK_MAX).map(one).collect()
}

fn keys(look: &Look) -> Value {
    let answers = match &look.keys {
        Ok(answers) => answers,
        Err(why) => return json!({ "shown": false, "why": why }),
    };
    let tables = look.status.tables.iter();
    let names: BTreeMap<TableId, &str> = tables.map(|t| (t.id, t.name.as_str())).collect();
    let list = |by| {
        let mut all = merge(answers, by);
        all.truncate(KEYS_MAX);
        let one = |((table, _), listed): &((TableId, _), crate::cmd::top::Listed)| {
            json!({
                "table": short(names.get(table).copied().unwrap_or("(dropped)")),
                "key": short(&escaped(&listed.key)),
                "amount": listed.amount,
                "server": listed.server,
            })
        };
        all.iter().map(one).collect::<Vec<_>>()
    };
    let mut told = Map::new();
    told.insert("shown".into(), true.into());
    for (name, by) in [
        ("reads", By::Reads),
        ("writes", By::Writes),
        ("largest", By::Bytes),
    ] {
        told.insert(name.into(), list(by).into());
    }
    told.into()
}

/// The beginning of a long name.
fn short(name: &str) -> String {
    match name.char_indices().nth(NAME_MAX) {
        Some((at, _)) => format!("{}…", &name[..at]),
        None => name.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use pluvio_units::{ClusterId, HashKind, KeyHash, ServerListVersion};
    use pluvio_wire::{ServerList, TabletInfo};

    fn big() -> ClusterStatus {
        let info = |id| ServerInfo {
            rack: Some("r".repeat(40)),
            pid: 7,
            state: if id == 900 {
                ServerState::Crashed
            } else {
                ServerState::Up
            },
            ..ServerInfo::plain(ServerId(id), "a".repeat(40))
        };
        let step = 1_u64 << 52;
        let tablet = |n: u64| TabletInfo {
            range: HashRange {
                first: KeyHash(n * step),
                last: KeyHash(n * step + (step - 1)),
            },
            owner: ServerId(n / 2048 + 1),
            state: match n {
                4095 => TabletState::Recovering,
                _ => TabletState::Normal,
            },
        };
        let table = |n: u64| TableInfo {
            cluster: ClusterId(1),
            id: TableId(n),
            name: format!("{n}{}", "<b>".repeat(100)),
            seed: 0,
            hash: HashKind::default(),
            quota: pluvio_wire::TableQuota::NONE,
            quota_state: None,
            class: None,
            tablets: (0..4096).map(tablet).collect(),
            addresses: Vec::new(),
        };
        ClusterStatus {
            cluster: ClusterId(255),
            list: ServerList {
                version: ServerListVersion(3),
                servers: (1..=1000).map(info).collect(),
                grown: true,
                ..ServerList::default()
            },
            servers: (1..=1000)
                .map(|id| ServerStatus {
                    id: ServerId(id),
                    ..ServerStatus::default()
                })
                .collect(),
            tables: (0..300).map(table).collect(),
            recoveries: Vec::new(),
            migrations: Vec::new(),
            drains: Vec::new(),
            balance: Default::default(),
            losses: Vec::new(),
            begun_anew: 0,
            metadata_trouble: None,
        }
    }

    // shows: ADM-2
    #[test]
    fn a_large_cluster_has_a_page_of_bounded_size() {
        let look = Look {
            status: big(),
            keys: Err("no keys".into()),
        };
        let json = as_json(&look, None);
        assert!(
            json.to_string().len() < 1 << 18,
            "{}",
            json.to_string().len()
        );
        assert_eq!(json["servers_all"], 1000);
        assert_eq!(json["servers"].as_array().unwrap().len(), SERVERS_MAX);
        assert_eq!(json["servers"][0]["id"], 900, "the one in trouble is first");
        assert_eq!(json["tables_all"], 300);
        let arcs = json["rings"][0]["arcs"].as_array().unwrap();
        assert_eq!(arcs.len(), 3, "{arcs:?}");
        assert_eq!(arcs[0], json!([0.0, 0.5, 1, "normal"]));
        assert_eq!(arcs[2][3], "recovering");
        assert_eq!(arcs[2][1], 1.0);
        assert_eq!(json["keys"]["why"], "no keys");
    }

    #[test]
    fn few_tablets_are_told_as_they_are() {
        let mut info = big().tables.swap_remove(0);
        info.tablets.truncate(2);
        let told = ring(&info);
        assert_eq!(told["joined"], false);
        assert_eq!(told["arcs"].as_array().unwrap().len(), 2);
        assert_eq!(told["arcs"][0][2], 1);
    }
}
