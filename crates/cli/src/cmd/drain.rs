//! `pluvio drain`: moves all tablets of a server away, so that it can be stopped.

use clap::Args;
use pluvio_client::ErrorKind;
use pluvio_console::failure::Failure;
use pluvio_console::options::Global;
use pluvio_console::output::{number_of, print_json, print_line, say};
use pluvio_console::session::{Session, with_session};
use pluvio_units::ServerId;
use pluvio_wire::{DrainStatus, DrainWish};
use std::process::ExitCode;
use std::time::Duration;

/// How often the coordinator is asked how far it is.
const ASK: Duration = Duration::from_millis(100);

/// `pluvio drain`.
#[derive(Args, Clone, Debug)]
pub struct Drain {
    /// The id of the server, as `pluvio status` shows it
    server: u64,
    /// Take the drain back: the server keeps the tablets that it still has, and gets new ones again
    #[arg(long, conflicts_with = "no_wait")]
    cancel: bool,
    /// Do not wait until it has none; `pluvio status` shows how it goes
    #[arg(long)]
    no_wait: bool,
}

/// Runs the command.
pub fn run(global: &Global, drain: &Drain) -> Result<ExitCode, Failure> {
    let (drain, json, patience) = (drain.clone(), global.json, global.timeout);
    with_session(global, 1, move |session| async move {
        act(&session, &drain, json, patience).await?;
        Ok(ExitCode::SUCCESS)
    })
}

async fn act(
    session: &Session,
    drain: &Drain,
    json: bool,
    patience: Duration,
) -> Result<(), Failure> {
    let server = ServerId(drain.server);
    let wish = match drain.cancel {
        true => DrainWish::Cancel,
        false => DrainWish::Drain,
    };
    if drain.cancel {
        let status = session.client.drain_status(server).await?;
        if !status.draining {
            return show_nothing_to_cancel(&status, json);
        }
    }
    let status = session.client.drain_server(server, wish).await?;
    if drain.cancel || drain.no_wait {
        return show(&status, json);
    }
    let status = until_empty(session, status, patience).await?;
    show(&status, json)
}

/// Waits until the server has nothing.
///
/// # Errors
/// It crashed; somebody took the drain back; or nothing has moved for `patience`, and why.
async fn until_empty(
    session: &Session,
    mut status: DrainStatus,
    patience: Duration,
) -> Result<DrainStatus, Failure> {
    let server = status.server;
    let clock = &session.env.clock;
    // Since when the same reason keeps it waiting.
    let mut waits = (clock.now(), None);
    loop {
        if status.is_empty() {
            return Ok(status);
        }
        if !status.draining {
            return Err(Failure::new(format!(
                "the drain of server {server} was taken back meanwhile; it keeps {}",
                number_of(status.tablets, "tablet")
            )));
        }
        let why = match status.alone {
            true => Some("no other server can have its tablets; start one".to_owned()),
            false => status.waits.clone(),
        };
        if why != waits.1 {
            if let Some(why) = &why {
                say(format_args!("server {server}: {why}"));
            }
            waits = (clock.now(), why);
        }
        if let (since, Some(why)) = &waits
            && clock.now().since(*since) > patience
        {
            return Err(Failure::new(format!(
                "server {server} still has {}: {why}; the drain goes on, and `pluvio drain --cancel {server}` takes it back",
                number_of(status.tablets, "tablet")
            )));
        }
        clock.sleep(ASK).await;
        status = session.client.drain_status(server).await.map_err(|error| {
            match error.kind() {
                ErrorKind::Refused => Failure::new(format!(
                    "server {server} is gone: {error}; it left the cluster when it was empty, or it crashed, and `pluvio status` shows its recovery"
                )),
                _ => Failure::from(error),
            }
        })?;
    }
}

/// There was no drain. Nothing was changed.
fn show_nothing_to_cancel(status: &DrainStatus, json: bool) -> Result<(), Failure> {
    if json {
        return print_json(&serde_json::json!(status));
    }
    print_line(&format!(
        "server {} is not being drained: there was nothing to take back",
        status.server
    ))
}

fn show(status: &DrainStatus, json: bool) -> Result<(), Failure> {
    if json {
        return print_json(&serde_json::json!(status));
    }
    let DrainStatus {
        server, tablets, ..
    } = status;
    print_line(&match (status.draining, status.is_empty()) {
        (true, true) => format!("server {server} has no tablets any more: it can be stopped"),
        (true, false) => format!(
            "server {server} is being drained: {} left",
            number_of(*tablets, "tablet")
        ),
        (false, _) => format!(
            "the drain of server {server} is taken back: it keeps {}, and gets new ones again",
            number_of(*tablets, "tablet")
        ),
    })
}
