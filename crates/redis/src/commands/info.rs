//! INFO: what the server says of itself, in the sections and with the names of Redis where the
//! thing exists here.

use super::CommandResult;
use crate::clients::ClientEntry;
use crate::parser::Command;
use crate::reply::Reply;
use crate::shared::{Core, MachineUse};
use crate::version::REDIS_VERSION;
use core::fmt::Write;
use core::time::Duration;
use pluvio_env::timeout;
use std::sync::atomic::Ordering::Relaxed;

/// The sections, in their order, and whether they are shown unless asked for.
const SECTIONS: [(&str, bool); 13] = [
    ("server", true),
    ("clients", true),
    ("memory", true),
    ("persistence", true),
    ("stats", true),
    ("replication", true),
    ("cpu", true),
    ("modules", true),
    ("errorstats", true),
    ("commandstats", false),
    ("latencystats", false),
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
        let title = match section {
            "cpu" => "CPU".to_owned(),
            _ => first.to_uppercase() + rest,
        };
        line(&mut text, format_args!("# {title}"));
        match section {
            "server" => server(core, &mut text),
            "clients" => clients(core, &mut text),
            "memory" => memory(core, &mut text),
            "persistence" => persistence(core, &mut text),
            "stats" => {
                stats(core, &mut text);
                rates_of_bytes(core, &mut text);
            }
            "replication" => replication(core, &mut text),
            "cpu" => processor(core, &mut text),
            "modules" => {}
            "errorstats" => error_stats(core, &mut text),
            "commandstats" => command_stats(core, &mut text),
            "latencystats" => latency_stats(core, &mut text),
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

/// The processor that it is built for.
const ARCHITECTURE: &str = match (cfg!(target_arch = "x86_64"), cfg!(target_arch = "aarch64")) {
    (true, _) => "x86_64",
    (_, true) => "aarch64",
    _ => "unknown",
};

/// Lines of names and values.
fn lines<T: core::fmt::Display>(
    text: &mut String,
    pairs: impl IntoIterator<Item = (&'static str, T)>,
) {
    for (name, value) in pairs {
        line(text, format_args!("{name}:{value}"));
    }
}

/// Bytes as people read them, in Redis's form.
fn human(bytes: u64) -> String {
    let units = ["K", "M", "G", "T", "P"];
    if bytes < 1024 {
        return format!("{bytes}B");
    }
    let mut value = bytes as f64 / 1024.0;
    let mut unit = 0;
    while value >= 1024.0 && unit + 1 < units.len() {
        value /= 1024.0;
        unit += 1;
    }
    format!("{value:.2}{}", units[unit])
}

fn server(core: &Core, text: &mut String) {
    let options = core.options();
    let up = core.shared.now().since(core.shared.started).as_secs();
    let status = core.shared.status();
    let (seconds, micros) = core.shared.wall_clock();
    let pairs = [
        ("redis_version", REDIS_VERSION.to_owned()),
        ("redis_git_sha1", "00000000".to_owned()),
        ("redis_git_dirty", "0".to_owned()),
        ("server_name", "pluvio".to_owned()),
        ("pluvio_version", options.version.clone()),
        ("redis_mode", core.options().mode().to_owned()),
        ("os", format!("Linux {ARCHITECTURE}")),
        ("arch_bits", usize::BITS.to_string()),
        ("process_id", options.process_id.to_string()),
        ("run_id", format!("{:040x}", status.id.0)),
        ("tcp_port", core.shared.port().to_string()),
        (
            "server_time_usec",
            (seconds * 1_000_000 + u64::from(micros)).to_string(),
        ),
        ("uptime_in_seconds", up.to_string()),
        ("uptime_in_days", (up / 86_400).to_string()),
        ("hz", "10".to_owned()),
        ("configured_hz", "10".to_owned()),
        ("executable", String::new()),
        ("config_file", String::new()),
        ("io_threads_active", "0".to_owned()),
    ];
    lines(text, pairs);
}

fn clients(core: &Core, text: &mut String) {
    let all = core.shared.clients.all();
    let most = |of: fn(&ClientEntry) -> usize| all.iter().map(|c| of(c)).max().unwrap_or(0);
    let watched: usize = all.iter().map(|client| client.watched()).sum();
    let watching = all.iter().filter(|client| client.watched() > 0).count();
    let pairs = [
        ("connected_clients", all.len()),
        ("cluster_connections", 0),
        ("maxclients", core.options().connections_max),
        (
            "client_recent_max_input_buffer",
            most(|c| c.input_bytes.load(Relaxed)),
        ),
        (
            "client_recent_max_output_buffer",
            most(|c| c.output_bytes.load(Relaxed)),
        ),
        ("blocked_clients", 0),
        ("tracking_clients", 0),
        ("pubsub_clients", 0),
        ("watching_clients", watching),
        ("clients_in_timeout_table", 0),
        ("total_watched_keys", watched),
        ("total_blocking_keys", 0),
        ("total_blocking_keys_on_nokey", 0),
    ];
    lines(text, pairs);
}

fn machine(core: &Core) -> Option<MachineUse> {
    core.options().machine.as_ref().map(|machine| (machine.0)())
}

fn memory(core: &Core, text: &mut String) {
    let status = core.shared.status();
    let used = status.memory_log + status.memory_index;
    let peak = core.shared.memory_peak(used);
    let clients = core.options().memory.stats();
    let machine = machine(core);
    let sizes = [
        ("used_memory", Some(used)),
        ("used_memory_rss", machine.map(|m| m.resident_bytes)),
        ("used_memory_peak", Some(peak)),
        ("total_system_memory", machine.map(|m| m.total_bytes)),
        ("used_memory_lua", Some(0)),
        ("used_memory_scripts", Some(0)),
        ("maxmemory", Some(status.memory_total)),
    ];
    for (name, bytes) in sizes
        .into_iter()
        .filter_map(|(name, bytes)| Some((name, bytes?)))
    {
        line(text, format_args!("{name}:{bytes}"));
        line(text, format_args!("{name}_human:{}", human(bytes)));
    }
    let percent = |part: u64, of: u64| format!("{:.2}%", part as f64 * 100.0 / of.max(1) as f64);
    let ratio = |part: u64, of: u64| format!("{:.2}", part as f64 / of.max(1) as f64);
    let mut pairs = vec![
        ("used_memory_peak_perc", percent(used, peak)),
        (
            "used_memory_overhead",
            used.saturating_sub(status.memory_live).to_string(),
        ),
        ("used_memory_startup", "0".to_owned()),
        ("used_memory_dataset", status.memory_live.to_string()),
        (
            "used_memory_dataset_perc",
            percent(status.memory_live, used),
        ),
        ("maxmemory_policy", "noeviction".to_owned()),
        ("mem_clients_normal", clients.used.to_string()),
        ("mem_clients_slaves", "0".to_owned()),
        ("mem_aof_buffer", "0".to_owned()),
        ("mem_replication_backlog", "0".to_owned()),
        ("mem_allocator", "libc".to_owned()),
        ("active_defrag_running", "0".to_owned()),
        ("lazyfree_pending_objects", "0".to_owned()),
        ("lazyfreed_objects", "0".to_owned()),
        ("number_of_cached_scripts", "0".to_owned()),
        ("maxmemory_clients", clients.bound.to_string()),
        ("pluvio_memory_log", status.memory_log.to_string()),
        ("pluvio_memory_live", status.memory_live.to_string()),
        ("pluvio_memory_index", status.memory_index.to_string()),
    ];
    if let Some(machine) = machine {
        let rss = machine.resident_bytes;
        pairs.push(("mem_fragmentation_ratio", ratio(rss, used)));
        pairs.push((
            "mem_fragmentation_bytes",
            (rss as i64 - used as i64).to_string(),
        ));
        pairs.push((
            "used_memory_rss_max",
            machine.resident_bytes_max.to_string(),
        ));
    }
    lines(text, pairs);
}

fn persistence(core: &Core, text: &mut String) {
    let status = core.shared.status();
    let now = core.shared.wall_clock().0;
    let on = u64::from(status.replicas_wanted > 0);
    let numbers = [
        ("loading", 0),
        ("async_loading", 0),
        ("rdb_changes_since_last_save", 0),
        ("rdb_bgsave_in_progress", 0),
        ("rdb_last_save_time", now),
        ("rdb_saves", 0),
        ("aof_enabled", on),
        ("aof_rewrite_in_progress", 0),
        ("aof_rewrite_scheduled", 0),
    ];
    lines(text, numbers);
    let words = [
        ("rdb_last_bgsave_status", "ok"),
        ("rdb_last_bgsave_time_sec", "-1"),
        ("rdb_current_bgsave_time_sec", "-1"),
        ("aof_last_rewrite_time_sec", "-1"),
        ("aof_current_rewrite_time_sec", "-1"),
        ("aof_last_bgrewrite_status", "ok"),
        (
            "aof_last_write_status",
            if status.writes_wait.is_some() {
                "err"
            } else {
                "ok"
            },
        ),
    ];
    lines(text, words);
    if let Some(why) = status.writes_wait {
        let why = why.replace(['\r', '\n'], " ");
        line(text, format_args!("pluvio_writes_wait:{why}"));
    }
}

fn stats(core: &Core, text: &mut String) {
    let (totals, expired) = core.shared.totals_shown();
    let errors: u64 = totals.errors.values().sum();
    let memory = core.options().memory.stats();
    let [logins, commands, keys, databases] = core.options().users.denials.counts();
    let rates = core.shared.rates();
    let monitors = u64::from(!core.shared.monitors.is_empty());
    let pairs = [
        ("total_connections_received", totals.connections),
        ("total_commands_processed", totals.commands_total()),
        ("instantaneous_ops_per_sec", rates.commands.round() as u64),
        ("total_net_input_bytes", totals.bytes_in),
        ("total_net_output_bytes", totals.bytes_out),
        ("rejected_connections", totals.connections_refused),
        ("acl_access_denied_auth", logins),
        ("acl_access_denied_cmd", commands),
        ("acl_access_denied_key", keys),
        ("acl_access_denied_channel", 0),
        ("acl_access_denied_db", databases),
        ("sync_full", 0),
        ("sync_partial_ok", 0),
        ("sync_partial_err", 0),
        ("expired_keys", expired),
        ("evicted_keys", 0),
        ("evicted_clients", memory.evicted),
        ("keyspace_hits", totals.hits),
        ("keyspace_misses", totals.misses),
        ("pubsub_channels", 0),
        ("pubsub_patterns", 0),
        ("pubsubshard_channels", 0),
        ("latest_fork_usec", 0),
        ("total_forks", 0),
        ("migrate_cached_sockets", 0),
        ("active_defrag_hits", 0),
        ("active_defrag_misses", 0),
        ("tracking_total_keys", 0),
        ("tracking_total_items", 0),
        ("tracking_total_prefixes", 0),
        ("unexpected_error_replies", 0),
        ("total_error_replies", errors),
        ("dump_payload_sanitizations", 0),
        ("total_reads_processed", totals.reads),
        ("total_writes_processed", totals.writes),
        ("pluvio_large_replies_waited", memory.waited),
        ("pluvio_is_monitored", monitors),
    ];
    lines(text, pairs);
}

fn rates_of_bytes(core: &Core, text: &mut String) {
    let rates = core.shared.rates();
    let kilobytes = |rate: f64| format!("{:.2}", rate / 1024.0);
    let pairs = [
        ("instantaneous_input_kbps", kilobytes(rates.bytes_in)),
        ("instantaneous_output_kbps", kilobytes(rates.bytes_out)),
    ];
    lines(text, pairs);
}

fn processor(core: &Core, text: &mut String) {
    if let Some(machine) = machine(core) {
        let seconds = |time: Duration| format!("{:.6}", time.as_secs_f64());
        let pairs = [
            ("used_cpu_sys", seconds(machine.system_time)),
            ("used_cpu_user", seconds(machine.user_time)),
            ("used_cpu_sys_children", seconds(Duration::ZERO)),
            ("used_cpu_user_children", seconds(Duration::ZERO)),
        ];
        lines(text, pairs);
    }
}

fn replication(core: &Core, text: &mut String) {
    let status = core.shared.status();
    line(text, format_args!("role:master"));
    line(text, format_args!("connected_slaves:0"));
    line(text, format_args!("master_failover_state:no-failover"));
    line(text, format_args!("master_replid:{:040x}", status.id.0));
    line(text, format_args!("master_replid2:{:040x}", 0));
    let none = [
        "master_repl_offset",
        "repl_backlog_active",
        "repl_backlog_size",
        "repl_backlog_first_byte_offset",
        "repl_backlog_histlen",
    ];
    lines(text, none.map(|name| (name, 0)));
    line(text, format_args!("second_repl_offset:-1"));
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
    for (prefix, count) in core.shared.totals_shown().0.errors {
        line(text, format_args!("errorstat_{prefix}:count={count}"));
    }
}

fn command_stats(core: &Core, text: &mut String) {
    for (name, count) in core.shared.totals_shown().0.commands {
        let each = count.nanos as f64 / 1000.0 / count.timed.max(1) as f64;
        line(
            text,
            format_args!(
                "cmdstat_{name}:calls={},usec={},usec_per_call={each:.2},rejected_calls={},\
                 failed_calls={}",
                count.calls,
                count.nanos / 1000,
                count.rejected,
                count.failed
            ),
        );
    }
}

fn latency_stats(core: &Core, text: &mut String) {
    let percentiles = core.options().parameters.percentiles();
    for (name, times) in core.shared.times() {
        let shown = percentiles.iter().map(|(word, percentile)| {
            let micros = times.value_at_percentile(*percentile) as f64 / 1000.0;
            format!("p{word}={micros:.3}")
        });
        let shown: Vec<_> = shown.collect();
        line(
            text,
            format_args!("latency_percentiles_usec_{name}:{}", shown.join(",")),
        );
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
