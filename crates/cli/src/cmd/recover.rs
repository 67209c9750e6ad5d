//! `pluvio recover`: lets the recovery of a dead server go on without what is lost for good.

use clap::Args;
use pluvio_console::failure::Failure;
use pluvio_console::options::Global;
use pluvio_console::output::{bytes, count, number_of, print_json, print_line, say};
use pluvio_console::session::{Session, with_session};
use pluvio_units::ServerId;
use pluvio_wire::Loss;
use std::io::{IsTerminal, stdin};
use std::process::ExitCode;

/// `pluvio recover`.
#[derive(Args, Clone, Debug)]
pub struct Recover {
    /// The dead server, as `pluvio status` shows it. Without --yes only says what would be lost,
    /// and asks if there is a terminal
    #[arg(long, value_name = "SERVER")]
    give_up: u64,
    /// Do not ask
    #[arg(long)]
    yes: bool,
    /// The name that is recorded; default: $USER
    #[arg(long, value_name = "NAME")]
    by: Option<String>,
}

/// Runs the command.
pub fn run(global: &Global, recover: &Recover) -> Result<ExitCode, Failure> {
    let (recover, json) = (recover.clone(), global.json);
    with_session(global, 1, move |session| async move {
        act(&session, &recover, json).await?;
        Ok(ExitCode::SUCCESS)
    })
}

async fn act(session: &Session, recover: &Recover, json: bool) -> Result<(), Failure> {
    let server = ServerId(recover.give_up);
    let by = recover.by.clone().or_else(|| std::env::var("USER").ok());
    let by = by.unwrap_or_else(|| "unknown".to_owned());
    let client = &session.client;
    let seen = client.give_up_lost(server, &by, None).await?.loss;
    if !recover.yes {
        if !stdin().is_terminal() {
            show(&seen, json)?;
            say("nothing was changed; --yes gives it up");
            return Ok(());
        }
        say(lost_text(&seen));
        say(format_args!(
            "Type the number of the server to give this up for good:"
        ));
        let mut line = String::new();
        let read = stdin().read_line(&mut line);
        read.map_err(|error| Failure::new(format!("cannot read the answer: {error}")))?;
        if line.trim() != server.0.to_string() {
            return Err(Failure::new("nothing was changed".to_owned()));
        }
    }
    let token = Some(seen.token);
    let loss = client.give_up_lost(server, &by, token).await?.loss;
    show(&loss, json)
}

fn show(loss: &Loss, json: bool) -> Result<(), Failure> {
    match (json, loss.at_s) {
        (true, _) => print_json(loss),
        (false, 0) => print_line(&lost_text(loss)),
        (false, _) => print_line(&given_up_text(loss)),
    }
}

/// What would be lost, and what that means.
fn lost_text(loss: &Loss) -> String {
    let tables: Vec<String> = loss
        .tables
        .iter()
        .map(|t| format!("{} ({})", t.name, number_of(t.tablets, "tablet")))
        .collect();
    format!(
        "of the log of server {} ({}) no server that is up has {}\n\
         tables of which something may be lost: {}{}\n\
         at most: {}\n\
         What is lost is gone for good. A key whose newest value is lost shows an older value, or is \
         absent. A deleted key whose tombstone is lost may come back.\n\
         If a server that has a replica can come back, start it: then nothing is lost.\n\
         Be sure that no process of a server that was declared dead still runs: it would go on \
         serving clients that reach it.",
        loss.server,
        loss.address,
        missing_text(loss),
        tables.join(", "),
        if loss.tables_total > loss.tables.len() as u64 {
            ", …"
        } else {
            ""
        },
        most_text(loss),
    )
}

fn missing_text(loss: &Loss) -> String {
    let mut parts = Vec::new();
    if loss.segments > 0 {
        let first: Vec<_> = loss
            .first_segments
            .iter()
            .map(ToString::to_string)
            .collect();
        let more = loss.segments > first.len() as u64;
        let more = if more { ", …" } else { "" };
        let segments = number_of(loss.segments, "segment");
        parts.push(format!("{segments} ({}{more})", first.join(", ")));
    }
    if !loss.logs.is_empty() {
        let logs = number_of(loss.logs.len() as u64, "log");
        parts.push(format!("the end of {logs} of {}", loss.logs_total));
    }
    if parts.is_empty() {
        parts.push("anything".to_owned());
    }
    parts.join(", and ")
}

fn most_text(loss: &Loss) -> String {
    match (loss.bytes_max, loss.objects_max) {
        (Some(most), Some(entries)) => {
            format!("{}, {} objects", bytes(most), count(entries))
        }
        (Some(most), None) => bytes(most),
        (None, _) => "nobody knows how much, all that it had if nothing is left".to_owned(),
    }
}

/// The record of a loss.
pub fn given_up_text(loss: &Loss) -> String {
    format!(
        "server {} was recovered without {}: given up by {} at {} (at most {})",
        loss.server,
        missing_text(loss),
        loss.by,
        loss.at_s,
        most_text(loss)
    )
}
