//! `pluvio status`: what the cluster has and does.

use crate::cmd::migrate::as_json as migration_json;
use crate::cmd::recover;
use crate::cmd::settings::as_json as settings_json;
use crate::cmd::table::{as_json as table_json, durability_text};
use clap::Args;
use pluvio_client::{ClusterStatus, ServerStatus};
use pluvio_console::failure::Failure;
use pluvio_console::options::Global;
use pluvio_console::output::{
    bytes, count, number_of, print_json, print_line, table, table_text, time,
};
use pluvio_console::session::{Session, with_session};
use pluvio_env::Address;
use pluvio_units::ServerId;
use pluvio_wire::{
    DrainStatus, MigrationStatus, RecoveryStage, RecoveryStatus, ServerInfo, ServerState,
    TabletState,
};
use serde_json::{Value, json};
use std::process::ExitCode;
use std::time::Duration;

/// `pluvio status`.
#[derive(Args, Clone, Debug)]
pub struct Status {
    /// Show the data directories of all servers, not only those in trouble; --json always has them
    #[arg(long)]
    directories: bool,
}

/// Runs the command.
pub fn run(global: &Global, wanted: &Status) -> Result<ExitCode, Failure> {
    let (json, coordinator) = (global.json, global.coordinator.clone());
    let all_directories = wanted.directories;
    with_session(global, 1, move |Session { client, .. }| async move {
        let status = match client.cluster_status().await {
            Ok(status) => status,
            Err(error) => {
                let failure = Failure::from(error);
                let mut text =
                    format!("no status from the coordinator at {coordinator}: {failure}");
                for trouble in client.coordinators_troubles().await {
                    text += &format!("; {trouble}; what the cluster serves it serves on");
                }
                return Err(Failure::new(text));
            }
        };
        if json {
            print_json(&as_json(&status))?;
        } else {
            print_line(&as_text(&status, all_directories))?;
        }
        Ok(ExitCode::SUCCESS)
    })
}

fn of(status: &ClusterStatus, id: ServerId) -> Option<&ServerStatus> {
    status.servers.iter().find(|s| s.id == id)
}

/// The status as JSON. Programs rely on the names of the fields. Ids of clusters and hashes are
/// texts, because JSON numbers do not carry 64 bits everywhere.
pub fn as_json(status: &ClusterStatus) -> Value {
    let servers: Vec<_> = status
        .list
        .servers
        .iter()
        .map(|info| {
            let mut server = json!({
                "id": info.id,
                "state": info.state,
                "pid": info.pid,
                "addr": info.address,
                "redis": info.redis,
                "redis_cluster": info.redis_cluster,
                "admin": info.admin,
                "rack": info.rack,
                "cores": info.cores,
                "volatile": info.volatile,
                "draining": info.draining,
                "disk_mb_per_s": info.disk_mb_per_s,
                "versions": { "oldest": info.versions.oldest, "newest": info.versions.newest },
                "answers": of(status, info.id).is_some(),
            });
            if let (Some(object), Some(Ok(Value::Object(more)))) = (
                server.as_object_mut(),
                of(status, info.id).map(serde_json::to_value),
            ) {
                object.extend(more);
            }
            server
        })
        .collect();
    let tables: Vec<_> = status.tables.iter().map(table_json).collect();
    json!({
        "cluster": format!("{:016x}", status.cluster.0),
        "server_list_version": status.list.version,
        "version": status.list.active,
        "settings": status.list.settings.as_ref().map(settings_json),
        "servers": servers,
        "tables": tables,
        "recoveries": status.recoveries.iter().map(recovery_json).collect::<Vec<_>>(),
        "migrations": status.migrations.iter().map(migration_json).collect::<Vec<_>>(),
        "drains": status.drains,
        "balance": status.balance,
        "losses": status.losses,
        "metadata_trouble": status.metadata_trouble,
    })
}

/// A recovery as JSON: its stage once as a name, for programs, and once as text.
fn recovery_json(recovery: &RecoveryStatus) -> Value {
    let mut json = json!(recovery);
    json["stage"] = recovery.stage.name().into();
    json["phase"] = recovery.stage.to_string().into();
    json
}

/// What holds for all servers.
fn whole_text(status: &ClusterStatus) -> String {
    let list = &status.list;
    let settings = match &list.settings {
        Some(settings) => settings.to_string(),
        None => "no settings yet".to_owned(),
    };
    let mut versions: Vec<_> = list.up().map(|info| info.versions).collect();
    versions.sort_by_key(|v| (v.oldest, v.newest));
    versions.dedup();
    let all_alike = versions.iter().all(|v| v.newest == list.active);
    let mut text = format!("{settings}; version {}", list.active);
    if !all_alike {
        for spoken in versions {
            let ids = list.up().filter(|info| info.versions == spoken);
            let ids: Vec<String> = ids.map(|info| info.id.to_string()).collect();
            text += &format!("; {spoken} spoken by server {}", ids.join(", "));
        }
    }
    text
}

fn as_text(status: &ClusterStatus, all_directories: bool) -> String {
    let up = status.list.up().count();
    let mut parts = vec![format!(
        "cluster {:016x}: {} up, {}",
        status.cluster.0,
        number_of(up as u64, "server"),
        number_of(status.tables.len() as u64, "table")
    )];
    parts.push(whole_text(status));
    parts.push(servers_text(status));
    if let Some(directories) = directories_text(status, all_directories) {
        parts.push(directories);
    }
    let readers = readers_text(status);
    if !readers.is_empty() {
        parts.push(readers);
    }
    if !status.tables.is_empty() {
        parts.push(tables_text(status));
    }
    if !status.recoveries.is_empty() {
        parts.push(recoveries_text(status));
    }
    if !status.migrations.is_empty() {
        parts.push(migrations_text(&status.migrations));
    }
    let troubles = troubles(status);
    if !troubles.is_empty() {
        parts.push(troubles.join("\n"));
    }
    parts.join("\n\n")
}

fn servers_text(status: &ClusterStatus) -> String {
    let heads = [
        "server", "state", "pid", "address", "redis", "objects", "live", "log", "memory", "frames",
        "requests",
    ];
    let mut text = table(&heads, &[0, 2, 5, 6, 7, 8, 9, 10]);
    for info in &status.list.servers {
        let state = match (info.state, of(status, info.id)) {
            (ServerState::Crashed, _) => "crashed",
            (ServerState::Up, Some(_)) if info.draining => "drained",
            (ServerState::Up, Some(_)) => "up",
            (ServerState::Up, None) => "no answer",
        };
        let known = of(status, info.id);
        let number = |get: fn(&ServerStatus) -> String| known.map_or("-".to_owned(), get);
        text.add_row([
            info.id.to_string(),
            state.to_owned(),
            info.pid.to_string(),
            Address::from(&*info.address).first().to_string(),
            info.redis.clone().unwrap_or_else(|| "-".into()),
            number(|s| count(s.objects)),
            number(|s| bytes(s.memory_live)),
            number(|s| bytes(s.memory_log)),
            number(|s| bytes(s.memory_total)),
            number(|s| bytes(s.frame_bytes)),
            number(|s| count(s.requests)),
        ]);
    }
    table_text(&text)
}

/// The data directories of servers: of all, or of those that have trouble with one.
fn directories_text(status: &ClusterStatus, all: bool) -> Option<String> {
    let heads = [
        "server",
        "data directory",
        "frames",
        "bytes",
        "room",
        "MB/s",
        "state",
    ];
    let mut text = table(&heads, &[0, 2, 3, 4, 5]);
    let has_trouble = |s: &ServerStatus| {
        let mut data = s.data.iter();
        data.any(|d| d.left.is_some() || d.trouble.is_some())
    };
    let mut servers: Vec<_> = status.servers.iter().collect();
    servers.sort_by_key(|s| s.id);
    for server in servers.into_iter().filter(|s| all || has_trouble(s)) {
        for directory in &server.data {
            let state = match (&directory.left, &directory.trouble) {
                (Some(why), _) => format!("left: {why}"),
                (None, Some(why)) => format!("used, in trouble: {why}"),
                (None, None) => "used".to_owned(),
            };
            text.add_row([
                server.id.to_string(),
                directory.name.clone(),
                count(directory.frames),
                bytes(directory.frame_bytes),
                directory.room.map_or("-".to_owned(), bytes),
                directory.mb_per_s.to_string(),
                state,
            ]);
        }
    }
    (!text.is_empty()).then(|| table_text(&text))
}

/// The processes that read a server's memory.
fn readers_text(status: &ClusterStatus) -> String {
    let of_server = |server: &ServerStatus| {
        let id = server.id;
        let readers = server.mapped.readers.iter();
        let text = readers.map(move |reader| {
            let since = time(Duration::from_millis(reader.since_ms));
            let (pid, uid) = (reader.pid, reader.uid);
            format!("process {pid} of user {uid} reads the memory of server {id}, for {since}")
        });
        text.collect::<Vec<_>>()
    };
    let lines: Vec<String> = status.servers.iter().flat_map(of_server).collect();
    lines.join("\n")
}

fn tables_text(status: &ClusterStatus) -> String {
    let mut heads = vec![
        "table",
        "id",
        "tablets",
        "servers",
        "recovering",
        "assigning",
    ];
    let has_classes = status.tables.iter().any(|info| info.class.is_some());
    if has_classes {
        heads.push("durability");
    }
    let mut text = table(&heads, &[1, 2, 3, 4, 5]);
    for info in &status.tables {
        let in_state = |state| {
            info.tablets
                .iter()
                .filter(|t| t.state == state)
                .count()
                .to_string()
        };
        let mut owners: Vec<_> = info.tablets.iter().map(|t| t.owner).collect();
        owners.sort_unstable();
        owners.dedup();
        let mut row = vec![
            info.name.clone(),
            info.id.to_string(),
            info.tablets.len().to_string(),
            owners.len().to_string(),
            in_state(TabletState::Recovering),
            in_state(TabletState::Assigning),
        ];
        if has_classes {
            row.push(durability_text(info));
        }
        text.add_row(row);
    }
    table_text(&text)
}

fn recoveries_text(status: &ClusterStatus) -> String {
    let heads = [
        "recovery of",
        "stage",
        "time",
        "tablets",
        "objects",
        "data",
        "MB/s",
        "onto servers",
    ];
    let mut text = table(&heads, &[2, 3, 4, 5, 6, 7]);
    for one in &status.recoveries {
        let took = Duration::from_millis(one.duration_ms);
        let rate = one.bytes as f64 / 1e6 / took.as_secs_f64().max(1e-3);
        text.add_row([
            format!("server {}", one.crashed),
            stage_text(status, one),
            time(took),
            one.tablets.to_string(),
            count(one.objects),
            bytes(one.bytes),
            format!("{rate:.0}"),
            one.masters.len().to_string(),
        ]);
    }
    table_text(&text)
}

/// The stage of a recovery. Its masters write the recovered data anew, and wait as other writes do.
/// Which ones replay is not known here: they are servers that are up.
fn stage_text(status: &ClusterStatus, one: &RecoveryStatus) -> String {
    let stage = one.stage.to_string();
    let RecoveryStage::Replaying { .. } = one.stage else {
        return stage;
    };
    let few = |s: &&ServerStatus| s.backups_up < s.replicas_needed;
    if let Some(few) = status.servers.iter().find(few) {
        let (needed, up) = (few.replicas_needed, few.backups_up);
        return format!("{stage}; waits for a backup ({needed} needed, {up} up): start a server");
    }
    let mut waits = status.servers.iter();
    match waits.find_map(|s| Some((s.id, s.writes_wait.as_ref()?))) {
        Some((id, why)) => format!("{stage}; server {id} waits: {why}"),
        None => stage,
    }
}

/// Ended migrations that people are shown; programs get all that the coordinator knows.
const MIGRATIONS_SHOWN: usize = 8;

fn migrations_text(migrations: &[MigrationStatus]) -> String {
    let heads = [
        "migration",
        "table",
        "tablet",
        "from",
        "to",
        "phase",
        "time",
        "objects",
        "data",
    ];
    let mut text = table(&heads, &[0, 3, 4, 6, 7, 8]);
    let latest = migrations.len().saturating_sub(MIGRATIONS_SHOWN);
    let shown = migrations.iter().enumerate();
    for (_, one) in shown.filter(|(at, one)| *at >= latest || !one.done) {
        text.add_row([
            one.migration.to_string(),
            one.name.clone(),
            one.range.to_string(),
            one.from.to_string(),
            one.to.to_string(),
            one.phase.clone(),
            time(Duration::from_millis(one.duration_ms)),
            count(one.progress.objects),
            bytes(one.progress.bytes),
        ]);
    }
    table_text(&text)
}

/// What a drain does, or waits for.
fn drain_text(drain: &DrainStatus) -> String {
    let server = drain.server;
    if drain.is_empty() {
        return format!(
            "server {server} is drained: stop it, or let it have tablets again (`pluvio drain --cancel {server}`)"
        );
    }
    let left = number_of(drain.tablets, "tablet");
    let mut text = format!("server {server} is being drained: {left} left");
    if drain.alone {
        text += "; no other server can have them: start one";
    } else if let Some(why) = &drain.waits {
        text += &format!("; waits: {why}");
    }
    text
}

/// Servers without replicas among others that keep some. A write is as safe as its owner of the
/// moment makes it.
fn mixed_text(status: &ClusterStatus) -> Option<String> {
    let ids = |which: &dyn Fn(&ServerInfo) -> bool| -> Vec<String> {
        let found = status.list.up().filter(|info| which(info));
        found.map(|info| info.id.to_string()).collect()
    };
    let (volatile, others) = (ids(&|info| info.volatile), ids(&|info| !info.volatile));
    (!volatile.is_empty() && !others.is_empty()).then(|| {
        format!(
            "server {} with --replicas 0 among others that keep replicas: new tables go to the others, and what it has is lost when it ends",
            volatile.join(", ")
        )
    })
}

/// What somebody should do something about.
pub fn troubles(status: &ClusterStatus) -> Vec<String> {
    let mut found = Vec::new();
    if let Some(trouble) = &status.metadata_trouble {
        found.push(format!(
            "the coordinator can change nothing: {trouble}; what the cluster serves it serves on"
        ));
    }
    found.extend(status.drains.iter().map(drain_text));
    if !status.balance.on {
        found.push("balancing is off: `pluvio balance on` switches it on".to_owned());
    }
    found.extend(status.losses.iter().map(recover::given_up_text));
    found.extend(mixed_text(status));
    for info in &status.list.servers {
        let name = |info: &ServerInfo| format!("server {}", info.id);
        let Some(s) = of(status, info.id) else {
            if info.state == ServerState::Up {
                found.push(format!("{} does not answer", name(info)));
            }
            continue;
        };
        if let Some(why) = &s.writes_wait {
            found.push(format!("{}: writes wait: {why}", name(info)));
        }
        if s.segments_under_replicated > 0 {
            let servers = u64::from(s.replicas_wanted) + 1;
            let too_few = if (status.list.up().count() as u64) < servers {
                format!(
                    " ({servers} servers are needed for {})",
                    number_of(s.replicas_wanted.into(), "replica")
                )
            } else {
                String::new()
            };
            // Tables may ask for other numbers of them than the cluster.
            found.push(format!(
                "{}: {} of {} lack replicas that they are to have{too_few}",
                name(info),
                count(s.segments_under_replicated),
                number_of(s.segments, "segment")
            ));
        }
        if s.frames_damaged > 0 {
            found.push(format!(
                "{}: {} frames on disk are damaged; look at its trace",
                name(info),
                s.frames_damaged
            ));
        }
        for directory in &s.data {
            if let Some(why) = &directory.left {
                found.push(format!(
                    "{}: goes on without data directory {}: {why}; mend or replace its device, then start the server again",
                    name(info),
                    directory.name
                ));
            }
            if let Some(why) = &directory.trouble {
                found.push(format!(
                    "{}: data directory {} does not work: {why}; look at its device",
                    name(info),
                    directory.name
                ));
            }
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;
    use pluvio_units::{ClusterId, RecoveryId, ServerListVersion};
    use pluvio_wire::{
        BalanceStatus, DataDirectoryStatus, RecoveryFailures, ReplayStats, ServerList,
    };

    fn cluster() -> ClusterStatus {
        let info = |id, state| ServerInfo {
            pid: 7,
            state,
            ..ServerInfo::plain(ServerId(id), format!("127.0.0.1:{id}"))
        };
        ClusterStatus {
            cluster: ClusterId(255),
            list: ServerList {
                version: ServerListVersion(3),
                servers: vec![
                    info(1, ServerState::Crashed),
                    info(2, ServerState::Up),
                    info(3, ServerState::Up),
                ],
                grown: true,
                ..ServerList::default()
            },
            servers: vec![ServerStatus {
                id: ServerId(2),
                writes_wait: Some("too few backups".into()),
                segments: 4,
                segments_under_replicated: 2,
                replicas_wanted: 2,
                ..ServerStatus::default()
            }],
            tables: Vec::new(),
            recoveries: Vec::new(),
            migrations: Vec::new(),
            drains: vec![DrainStatus {
                server: ServerId(2),
                draining: true,
                tablets: 3,
                waits: Some("no room".into()),
                ..DrainStatus::default()
            }],
            balance: BalanceStatus {
                on: true,
                ..BalanceStatus::default()
            },
            losses: Vec::new(),
            begun_anew: 0,
            metadata_trouble: None,
        }
    }

    #[test]
    fn troubles_are_told() {
        let mut without_store = cluster();
        without_store.metadata_trouble = Some("metadata store full".into());
        let text = as_text(&without_store, false);
        assert!(text.contains("can change nothing: metadata store full"));
        let found = troubles(&cluster());
        assert_eq!(found.len(), 4, "{found:?}");
        let drained = "server 2 is being drained: 3 tablets left; waits: no room";
        assert_eq!(found[0], drained);
        assert!(found[1].contains("writes wait: too few backups"));
        assert!(found[2].contains("2 of 4 segments"));
        assert!(found[2].contains("(3 servers are needed for 2 replicas)"));
        assert!(found[3].contains("server 3 does not answer"));
        let text = as_text(&cluster(), false);
        assert!(
            text.contains("crashed") && text.contains("no answer"),
            "{text}"
        );
    }

    #[test]
    fn data_directories_are_shown_when_asked_for_or_in_trouble() {
        let directory = |name: &str, left: Option<&str>| DataDirectoryStatus {
            name: name.to_owned(),
            left: left.map(str::to_owned),
            frames: 3,
            frame_bytes: 5 << 20,
            room: Some(7 << 30),
            mb_per_s: 480,
            ..DataDirectoryStatus::default()
        };
        let mut status = cluster();
        status.servers[0].data = vec![directory("/a", None)];
        status.servers.push(ServerStatus {
            id: ServerId(3),
            data: vec![directory("/b", None), directory("/c", None)],
            ..ServerStatus::default()
        });
        assert_eq!(directories_text(&status, false), None);
        let rows = |text: Option<String>| -> Vec<Vec<String>> {
            let text = text.expect("there are some");
            let words = |line: &str| line.split("  ").map(|w| w.trim().to_owned()).collect();
            let cells = text.lines().skip(1).map(words);
            let filled = |cells: Vec<String>| cells.into_iter().filter(|c| !c.is_empty());
            cells.map(|cells| filled(cells).collect()).collect()
        };
        let shown = rows(directories_text(&status, true));
        let expected = ["2", "/a", "3", "5MiB", "7GiB", "480", "used"];
        assert_eq!(
            (shown.len(), &shown[0][..]),
            (3, &expected.map(str::to_owned)[..])
        );
        status.servers[1].data[1] = directory("/c", Some("its disk hangs"));
        status.servers[1].data[0].trouble = Some("is slow".to_owned());
        let shown = rows(directories_text(&status, false));
        assert_eq!(shown.len(), 2, "{shown:?}");
        assert_eq!(shown[0].last().unwrap(), "used, in trouble: is slow");
        assert_eq!(shown[1].last().unwrap(), "left: its disk hangs");
        assert!(as_text(&status, false).contains("data directory"));
        let json = as_json(&status);
        assert_eq!(json["servers"][2]["data"][1]["left"], "its disk hangs");
        assert_eq!(json["servers"][1]["data"][0]["room"], 7_u64 << 30);
    }

    #[test]
    fn a_server_without_replicas_among_others_is_told() {
        let mut mixed = cluster();
        assert_eq!(mixed_text(&mixed), None);
        mixed.list.servers[2].volatile = true;
        let text = mixed_text(&mixed).unwrap();
        assert!(text.starts_with("server 3 with --replicas 0"), "{text}");
        mixed.list.servers[1].volatile = true;
        // One that has crashed does not count.
        assert_eq!(mixed_text(&mixed), None);
    }

    #[test]
    fn a_recovery_that_waits_for_backups_says_so() {
        let mut waiting = cluster();
        waiting.servers[0].replicas_needed = 2;
        waiting.servers[0].backups_up = 1;
        let recovery = RecoveryStatus {
            stage: RecoveryStage::Replaying {
                masters: 1,
                failures: RecoveryFailures::default(),
            },
            masters: Vec::new(),
            recovery: RecoveryId(1),
            crashed: ServerId(1),
            address: String::new(),
            done: false,
            attempts: 1,
            duration_ms: 0,
            tablets: 1,
            bytes: 0,
            objects: 0,
            segments: 0,
            planning_us: 0,
            last_partition: ReplayStats::default(),
        };
        assert_eq!(
            stage_text(&waiting, &recovery),
            "replaying on 1 server; waits for a backup (2 needed, 1 up): start a server"
        );
        let well = ClusterStatus {
            servers: Vec::new(),
            ..cluster()
        };
        assert_eq!(stage_text(&well, &recovery), "replaying on 1 server");
        assert_eq!(
            stage_text(&cluster(), &recovery),
            "replaying on 1 server; server 2 waits: too few backups"
        );
    }

    #[test]
    fn json_has_the_names_that_programs_rely_on() {
        let json = as_json(&cluster());
        assert_eq!(json["cluster"], "00000000000000ff");
        assert_eq!(json["servers"][0]["state"], "crashed");
        assert_eq!(json["servers"][1]["id"], 2);
        assert_eq!(json["servers"][1]["writes_wait"], "too few backups");
        assert_eq!(json["servers"][1]["memory_live"], 0);
        assert_eq!(json["servers"][2]["answers"], false);
    }
}
