//! `pluvio top servers`: what each server does, again and again.

use crate::cmd::rates::Rates;
use clap::Args;
use pluvio_client::ClusterStatus;
use pluvio_console::failure::Failure;
use pluvio_console::options::{Global, duration};
use pluvio_console::output::{bytes, number_of, print_json, print_line, table, table_text, time};
use pluvio_console::session::{Session, with_session};
use pluvio_wire::ServerState;
use serde_json::{Value, json};
use std::io::IsTerminal;
use std::process::ExitCode;
use std::time::Duration;

/// The flags.
#[derive(Args, Clone, Debug)]
pub struct Servers {
    /// Time between two looks; rates are averages over it
    #[arg(long, value_name = "TIME", default_value = "2s", value_parser = duration)]
    every: Duration,
    /// One table, and the end; so it is, too, when the output is no terminal
    #[arg(long)]
    once: bool,
}

/// Clears the screen and goes to its beginning.
const CLEAR: &str = "\x1b[H\x1b[2J";
/// Shortest time between two looks: the servers are to do other work, too.
const EVERY_MIN: Duration = Duration::from_millis(50);

/// Runs the command.
pub fn run(global: &Global, servers: &Servers) -> Result<ExitCode, Failure> {
    let (json, every) = (global.json, servers.every.max(EVERY_MIN));
    let once = servers.once || json || !std::io::stdout().is_terminal();
    with_session(global, 1, move |Session { client, env }| async move {
        let mut before = client.cluster_status().await?;
        loop {
            env.clock.sleep(every).await;
            let now = client.cluster_status().await?;
            if json {
                print_json(&as_json(&before, &now))?;
            } else if once {
                print_line(&as_text(&before, &now))?;
            } else {
                print_line(&format!("{CLEAR}{}", as_text(&before, &now)))?;
            }
            if once {
                return Ok(ExitCode::SUCCESS);
            }
            before = now;
        }
    })
}

/// A server of both looks.
fn rates(before: &ClusterStatus, now: &ClusterStatus) -> Vec<(u64, &'static str, Option<Rates>)> {
    let of = |info: &pluvio_wire::ServerInfo| {
        let (old, new) = (
            before.servers.iter().find(|s| s.id == info.id),
            now.servers.iter().find(|s| s.id == info.id),
        );
        let state = match (info.state, new) {
            (ServerState::Crashed, _) => "crashed",
            (ServerState::Up, None) => "no answer",
            (ServerState::Up, Some(s)) if s.writes_wait.is_some() => "waits",
            (ServerState::Up, Some(_)) if info.draining => "drained",
            (ServerState::Up, Some(_)) => "up",
        };
        let rates = old.zip(new).and_then(|(old, new)| Rates::between(old, new));
        (info.id.0, state, rates)
    };
    now.list.servers.iter().map(of).collect()
}

fn as_json(before: &ClusterStatus, now: &ClusterStatus) -> Value {
    let servers = rates(before, now).into_iter().map(|(id, state, rates)| {
        let s = now.servers.iter().find(|s| s.id.0 == id);
        let latency = rates.and_then(|rates| rates.latency);
        json!({
            "id": id,
            "state": state,
            "ops_per_s": rates.map(|rates| rates.operations),
            "commands_per_s": rates.map(|rates| rates.commands),
            "p50_us": latency.map(|(median, _)| median.as_micros() as u64),
            "p99_us": latency.map(|(_, high)| high.as_micros() as u64),
            "busy": rates.and_then(|rates| rates.busy),
            "memory_live": s.map(|s| s.memory_live),
            "memory_total": s.map(|s| s.memory_total),
        })
    });
    json!({
        "servers": servers.collect::<Vec<_>>(),
        "recoveries": now.recoveries.iter().filter(|r| !r.done).count(),
        "migrations": now.migrations.iter().filter(|m| !m.done).count(),
    })
}

/// Fits 80 columns.
fn as_text(before: &ClusterStatus, now: &ClusterStatus) -> String {
    let heads = [
        "server", "state", "ops/s", "p50 <", "p99 <", "busy", "live", "memory",
    ];
    let mut text = table(&heads, &[0, 2, 3, 4, 5, 6, 7]);
    for (id, state, rates) in rates(before, now) {
        let s = now.servers.iter().find(|s| s.id.0 == id);
        let nothing = || "-".to_owned();
        let latency = rates.and_then(|rates| rates.latency);
        let busy = rates.and_then(|rates| rates.busy);
        text.add_row([
            id.to_string(),
            state.to_owned(),
            rates.map_or_else(nothing, |rates| format!("{:.0}", rates.operations)),
            latency.map_or_else(nothing, |(median, _)| time(median)),
            latency.map_or_else(nothing, |(_, high)| time(high)),
            busy.map_or_else(nothing, |busy| format!("{:.0} %", busy * 100.0)),
            s.map_or_else(nothing, |s| bytes(s.memory_live)),
            s.map_or_else(nothing, |s| bytes(s.memory_total)),
        ]);
    }
    let mut parts = vec![table_text(&text)];
    for recovery in now.recoveries.iter().filter(|r| !r.done) {
        let (crashed, stage) = (recovery.crashed, &recovery.stage);
        parts.push(format!("recovery of server {crashed}: {stage}"));
    }
    let moves = now.migrations.iter().filter(|m| !m.done).count();
    if moves > 0 {
        parts.push(format!("{} under way", number_of(moves as u64, "move")));
    }
    parts.join("\n")
}
