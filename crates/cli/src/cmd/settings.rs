//! `pluvio settings` and `pluvio finalize`: what holds for the whole cluster.

use clap::{Args, Subcommand};
use pluvio_console::failure::Failure;
use pluvio_console::options::Global;
use pluvio_console::output::{print_json, print_line};
use pluvio_console::session::{Session, with_session};
use pluvio_wire::{ClusterSettings, SettingsWish};
use serde_json::{Value, json};
use std::process::ExitCode;

/// `pluvio settings`.
#[derive(Args, Clone, Debug)]
pub struct Settings {
    /// What to do; shows them when missing.
    #[command(subcommand)]
    action: Option<Action>,
}

#[derive(Subcommand, Clone, Debug)]
enum Action {
    /// Change some of them, while the cluster runs
    Set(Set),
}

/// `pluvio settings set`.
#[derive(Args, Clone, Debug)]
struct Set {
    /// replicas=N, min-replicas=N, durability=buffered or durability=synced, racks=preferred or
    /// racks=strict
    #[arg(required = true, value_name = "NAME=VALUE")]
    changes: Vec<String>,
}

/// `pluvio finalize`.
#[derive(Args, Clone, Debug)]
pub struct Finalize {}

/// Runs `pluvio settings`.
pub fn run(global: &Global, settings: &Settings) -> Result<ExitCode, Failure> {
    let json = global.json;
    let change = match &settings.action {
        Some(Action::Set(set)) => Some(wish(&set.changes).map_err(Failure::usage)?),
        None => None,
    };
    with_session(global, 1, move |Session { client, .. }| async move {
        let settings = match change {
            Some(change) => Some(client.change_settings(change).await?),
            None => client.cluster_status().await?.list.settings,
        };
        match (settings, json) {
            (Some(settings), true) => print_json(&as_json(&settings))?,
            (Some(settings), false) => print_line(&settings.to_string())?,
            (None, true) => print_json(&Value::Null)?,
            (None, false) => print_line("none yet: the first server that joins begins them")?,
        }
        Ok(ExitCode::SUCCESS)
    })
}

/// Runs `pluvio finalize`.
pub fn finalize(global: &Global) -> Result<ExitCode, Failure> {
    let json = global.json;
    with_session(global, 1, move |Session { client, .. }| async move {
        let raised = client.finalize_version().await?;
        let (former, active) = (raised.former, raised.active);
        if json {
            print_json(&json!({ "former": former, "active": active }))?;
        } else {
            print_line(&match former == active {
                true => format!("the cluster speaks version {active} already"),
                false => format!(
                    "the cluster speaks version {active} from here on, and {former} no more: there is no way back"
                ),
            })?;
        }
        Ok(ExitCode::SUCCESS)
    })
}

/// The settings for programs.
pub fn as_json(settings: &ClusterSettings) -> Value {
    json!({
        "replicas": settings.replicas,
        "min_replicas": settings.min_replicas,
        "durability": settings.durability(),
        "racks": if settings.strict_racks { "strict" } else { "preferred" },
    })
}

fn wish(changes: &[String]) -> Result<SettingsWish, String> {
    let mut wish = SettingsWish::default();
    for change in changes {
        let unknown = || {
            format!(
                "{change}: no setting; give replicas=N, min-replicas=N, durability=buffered or durability=synced, racks=preferred or racks=strict"
            )
        };
        let (name, value) = change.split_once('=').ok_or_else(unknown)?;
        let number = || value.parse().map_err(|_| unknown());
        let is_again = match name {
            "replicas" => wish.replicas.replace(number()?).is_some(),
            "min-replicas" => wish.min_replicas.replace(number()?).is_some(),
            "durability" => {
                let synced = match value {
                    "synced" => true,
                    "buffered" => false,
                    _ => return Err(unknown()),
                };
                wish.synced.replace(synced).is_some()
            }
            "racks" => {
                let strict = match value {
                    "strict" => true,
                    "preferred" => false,
                    _ => return Err(unknown()),
                };
                wish.strict_racks.replace(strict).is_some()
            }
            _ => return Err(unknown()),
        };
        if is_again {
            return Err(format!("{name} is given twice"));
        }
    }
    Ok(wish)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<SettingsWish, String> {
        let changes: Vec<String> = text.split(' ').map(str::to_owned).collect();
        wish(&changes)
    }

    #[test]
    fn settings_are_read_and_mistakes_are_told() {
        let all = SettingsWish {
            replicas: Some(3),
            min_replicas: Some(2),
            synced: Some(true),
            strict_racks: Some(true),
        };
        let text = "replicas=3 durability=synced min-replicas=2 racks=strict";
        assert_eq!(read(text), Ok(all));
        for wrong in [
            "replicas",
            "replicas=",
            "replicas=-1",
            "replicas=4294967296",
            "durability=none",
            "racks=3",
            "size=3",
            "replicas=1 replicas=2",
        ] {
            assert!(read(wrong).is_err(), "{wrong}");
        }
    }
}
