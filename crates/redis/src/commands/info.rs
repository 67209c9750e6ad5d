//! INFO: what the server says of itself, in the sections and with the names of Redis where the
//! thing exists here.

use super::CommandResult;
use crate::parser::Command;
use crate::reply::Reply;
use crate::shared::Core;
use crate::version::REDIS_VERSION;
use core::fmt::Write;
use core::time::Duration;
use pluvio_env::timeout;

/// The sections, in their order, and whether they are shown unless asked for.
const SECTIONS: [(&str, bool); 10] = [
    ("server", true),
    ("clients", true),
    ("memory", true),
    ("persistence", true),
    ("stats", true),
    ("replication", true),
    ("errorstats", true),
    ("commandstats", false),
    ("cluster", true),
    ("keyspace", true),
];

/// How long the counts of the databases may take; they are left out then. Clients ask for INFO
/// when they connect, and must not wait for a server that is being recovered.
const KEYSPACE_TIME: Duration = Duration::from_millis(500);

pub(super) async fn info(core: &Core, command: &Command) -> CommandResult {
    let asked = |name: &str, by_default: bool| {
        if command.len() == 1 {
            return by_default;
        }
        (1..command.len()).any(|at| {
            command.is(at, name)
                || command.is(at, "all")
                || command.is(at, "everything")
                || (by_default && command.is(at, "default"))
        })
    };
    let mut text = String::new();
    for (section, by_default) in SECTIONS {
        if !asked(section, by_default) {
            continue;
        }
        if !text.is_empty() {
            text.push_str("\r\n");
        }
        let (first, rest) = section.split_at(1);
        let title = first.to_uppercase() + rest;
        line(&mut text, format_args!("# {title}"));
        match section {
            "server" => server(core, &mut text),
            "clients" => clients(core, &mut text),
            "memory" => memory(core, &mut text),
            "persistence" => persistence(core, &mut text),
            "stats" => stats(core, &mut text),
            "replication" => replication(core, &mut text),
            "errorstats" => error_stats(core, &mut text),
            "commandstats" => command_stats(core, &mut text),
            "cluster" => {
                let enabled = u8::from(core.options().cluster.is_some());
                line(&mut text, format_args!("cluster_enabled:{enabled}"));
            }
            _ => keyspace(core, &mut text).await,
        }
    }
    Ok(Reply::Verbatim(text))
}

fn line(text: &mut String, line: core::fmt::Arguments<'_>) {
    // Writing to a string cannot fail.
    let _ = text.write_fmt(line);
    text.push_str("\r\n");
}

fn server(core: &Core, text: &mut String) {
    let options = core.options();
    let up = core.shared.now().since(core.shared.started).as_secs();
    let status = core.shared.status();
    let pairs = [
        ("redis_version", REDIS_VERSION.to_owned()),
        ("server_name", "pluvio".to_owned()),
        ("pluvio_version", options.version.clone()),
        ("redis_mode", core.options().mode().to_owned()),
        ("arch_bits", usize::BITS.to_string()),
        ("process_id", options.process_id.to_string()),
        ("run_id", format!("{:040x}", status.id.0)),
        ("tcp_port", core.shared.port().to_string()),
        ("uptime_in_seconds", up.to_string()),
        ("uptime_in_days", (up / 86_400).to_string()),
    ];
    for (name, value) in pairs {
        line(text, format_args!("{name}:{value}"));
    }
}

fn clients(core: &Core, text: &mut String) {
    let open = core.shared.totals().connections_open();
    line(text, format_args!("connected_clients:{open}"));
    let most = core.options().connections_max;
    line(text, format_args!("maxclients:{most}"));
    line(text, format_args!("blocked_clients:0"));
}

fn memory(core: &Core, text: &mut String) {
    let status = core.shared.status();
    let pairs = [
        ("used_memory", status.memory_log + status.memory_index),
        ("used_memory_dataset", status.memory_live),
        ("mem_clients_normal", core.options().memory.stats().used),
        ("maxmemory_clients", core.options().memory.stats().bound),
        ("pluvio_memory_log", status.memory_log),
        ("pluvio_memory_live", status.memory_live),
        ("pluvio_memory_index", status.memory_index),
        ("maxmemory", status.memory_total),
    ];
    for (name, value) in pairs {
        line(text, format_args!("{name}:{value}"));
    }
    line(text, format_args!("maxmemory_policy:noeviction"));
}

fn persistence(core: &Core, text: &mut String) {
    let status = core.shared.status();
    let on = u8::from(status.replicas_wanted > 0);
    line(text, format_args!("loading:0"));
    line(text, format_args!("async_loading:0"));
    line(text, format_args!("rdb_bgsave_in_progress:0"));
    line(text, format_args!("rdb_last_bgsave_status:ok"));
    line(text, format_args!("aof_enabled:{on}"));
    line(text, format_args!("aof_rewrite_in_progress:0"));
    line(text, format_args!("aof_last_write_status:ok"));
    if let Some(why) = status.writes_wait {
        let why = why.replace(['\r', '\n'], " ");
        line(text, format_args!("pluvio_writes_wait:{why}"));
    }
}

fn stats(core: &Core, text: &mut String) {
    let totals = core.shared.totals();
    let errors: u64 = totals.errors.values().sum();
    let memory = core.options().memory.stats();
    let pairs = [
        ("total_connections_received", totals.connections),
        ("total_commands_processed", totals.commands_total()),
        ("total_net_input_bytes", totals.bytes_in),
        ("total_net_output_bytes", totals.bytes_out),
        ("total_error_replies", errors),
        ("evicted_clients", memory.evicted),
        ("pluvio_large_replies_waited", memory.waited),
        ("expired_keys", core.shared.status().objects_expired),
        ("evicted_keys", 0),
    ];
    for (name, value) in pairs {
        line(text, format_args!("{name}:{value}"));
    }
}

fn replication(core: &Core, text: &mut String) {
    let status = core.shared.status();
    line(text, format_args!("role:master"));
    line(text, format_args!("connected_slaves:0"));
    line(text, format_args!("master_failover_state:no-failover"));
    let pairs = [
        ("pluvio_replicas_wanted", u64::from(status.replicas_wanted)),
        ("pluvio_replicas_needed", u64::from(status.replicas_needed)),
        ("pluvio_backups_up", u64::from(status.backups_up)),
        (
            "pluvio_segments_under_replicated",
            status.segments_under_replicated,
        ),
    ];
    for (name, value) in pairs {
        line(text, format_args!("{name}:{value}"));
    }
}

fn error_stats(core: &Core, text: &mut String) {
    for (prefix, count) in core.shared.totals().errors {
        line(text, format_args!("errorstat_{prefix}:count={count}"));
    }
}

fn command_stats(core: &Core, text: &mut String) {
    for (name, count) in core.shared.totals().commands {
        line(text, format_args!("cmdstat_{name}:calls={count}"));
    }
}

async fn keyspace(core: &Core, text: &mut String) {
    let clock = core.databases.parts().clock.clone();
    let counted = timeout(&*clock, KEYSPACE_TIME, async {
        let mut lines = String::new();
        let existing = core.databases.existing().await;
        for db in existing.unwrap_or_default() {
            let Ok(count) = core.databases.count(db).await else {
                continue;
            };
            if count.objects > 0 {
                let (number, keys) = (db.number(), count.objects);
                let expires = count.bounded;
                line(
                    &mut lines,
                    format_args!("db{number}:keys={keys},expires={expires},avg_ttl=0"),
                );
            }
        }
        lines
    });
    if let Ok(lines) = counted.await {
        text.push_str(&lines);
    }
}
