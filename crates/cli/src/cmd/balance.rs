//! `pluvio balance`: shows or switches how tablets move from full and busy servers to others.

use clap::{Args, ValueEnum};
use pluvio_console::failure::Failure;
use pluvio_console::options::Global;
use pluvio_console::output::{bytes, number_of, print_json, print_line};
use pluvio_console::session::with_session;
use pluvio_wire::{BalanceMove, BalanceStatus, BalanceWish};
use std::process::ExitCode;

/// `pluvio balance`.
#[derive(Args, Clone, Debug)]
pub struct Balance {
    /// What to do
    #[arg(value_enum, default_value = "status")]
    action: Action,
    /// Show the moves that it would make from here, and why; make none for it
    #[arg(long)]
    dry_run: bool,
}

#[derive(ValueEnum, Clone, Copy, PartialEq, Eq, Debug)]
enum Action {
    /// Move tablets from now on
    On,
    /// Begin no more moves; those that have begun go on
    Off,
    /// Show what it does
    Status,
}

/// Runs the command.
pub fn run(global: &Global, balance: &Balance) -> Result<ExitCode, Failure> {
    let json = global.json;
    let wish = match (balance.action, balance.dry_run) {
        (Action::On, false) => BalanceWish::On,
        (Action::Off, false) => BalanceWish::Off,
        (Action::Status, false) => BalanceWish::Look,
        (Action::Status, true) => BalanceWish::Plan,
        (Action::On | Action::Off, true) => {
            return Err(Failure::usage(
                "--dry-run goes with `pluvio balance` alone: it switches nothing",
            ));
        }
    };
    with_session(global, 1, move |session| async move {
        let status = session.client.balance(wish).await?;
        show(&status, wish, json)?;
        Ok(ExitCode::SUCCESS)
    })
}

fn show(status: &BalanceStatus, wish: BalanceWish, json: bool) -> Result<(), Failure> {
    if json {
        return print_json(&serde_json::json!(status));
    }
    print_line(&status_text(status))?;
    if wish != BalanceWish::Plan {
        return Ok(());
    }
    if status.moves.is_empty() {
        return print_line("it would move nothing");
    }
    for one in &status.moves {
        print_line(&move_text(one))?;
    }
    Ok(())
}

/// What balancing does, in one line.
fn status_text(status: &BalanceStatus) -> String {
    let switch = if status.on { "on" } else { "off" };
    let phase = match status.phase.as_str() {
        "" | "off" => String::new(),
        phase => format!(", {phase}"),
    };
    format!(
        "balancing is {switch}{phase}; since this coordinator leads: {} of {}, {}",
        number_of(status.begun, "move"),
        bytes(status.begun_bytes),
        number_of(status.joined, "join")
    )
}

fn move_text(one: &BalanceMove) -> String {
    format!(
        "table {} tablet {}: server {} to {}, {}: {}",
        one.name,
        one.range,
        one.from,
        one.to,
        bytes(one.bytes),
        one.why
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_says_whether_it_is_on_and_what_it_waits_for() {
        let mut status = BalanceStatus {
            on: true,
            phase: "even".into(),
            begun: 2,
            begun_bytes: 3 << 20,
            ..BalanceStatus::default()
        };
        let text = status_text(&status);
        assert!(text.starts_with("balancing is on, even;"), "{text}");
        assert!(text.contains("2 moves of 3MiB, 0 joins"), "{text}");
        (status.on, status.phase) = (false, "off".into());
        assert!(status_text(&status).starts_with("balancing is off;"));
    }
}
