//! `pluvio table`: create, drop, list and split tables, and move their tablets.

use crate::cmd::migrate;
use clap::{Args, Subcommand};
use pluvio_client::{ErrorKind, TableInfo};
use pluvio_console::failure::Failure;
use pluvio_console::options::Global;
use pluvio_console::output::{number_of, print_json, print_line, table as new_table, table_text};
use pluvio_console::session::{Session, with_session};
use pluvio_units::KeyHash;
use pluvio_wire::TabletState;
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::process::ExitCode;

/// `pluvio table`.
#[derive(Args, Clone, Debug)]
pub struct Table {
    #[command(subcommand)]
    what: What,
}

#[derive(Subcommand, Clone, Debug)]
enum What {
    /// Create a table; one that exists is left as it is
    Create {
        /// Its name
        name: String,
        /// Over how many servers to spread it [default: all]
        #[arg(long, value_name = "SERVERS")]
        span: Option<u32>,
    },
    /// Drop a table and all its objects
    Drop {
        /// Its name
        name: String,
    },
    /// List all tables
    List,
    /// Cut one of a table's tablets in two
    Split {
        /// The table's name
        name: String,
        /// The first key hash of the upper part, in hexadecimal digits [default: the middle of the
        /// widest tablet]
        #[arg(long, value_name = "HASH", value_parser = key_hash)]
        at: Option<KeyHash>,
    },
    /// Move a tablet to another server, while it is served
    Migrate(migrate::Migrate),
}

pub fn key_hash(text: &str) -> Result<KeyHash, String> {
    let digits = text.strip_prefix("0x").unwrap_or(text);
    u64::from_str_radix(digits, 16)
        .map(KeyHash)
        .map_err(|_| "not a key hash: give up to 16 hexadecimal digits".to_owned())
}

/// Runs the command.
pub fn run(global: &Global, table: &Table) -> Result<ExitCode, Failure> {
    let (what, json) = (table.what.clone(), global.json);
    with_session(global, 1, move |session| async move {
        act(&session, what, json).await?;
        Ok(ExitCode::SUCCESS)
    })
}

async fn act(session: &Session, what: What, json: bool) -> Result<(), Failure> {
    let client = &session.client;
    match what {
        What::Create { name, span } => {
            if span == Some(0) {
                return Err(Failure::usage(
                    "--span 0: a table needs at least one server",
                ));
            }
            // Somebody else may create it meanwhile: then both have.
            let is_new = match client.table(&name).await {
                Err(error) if error.kind() == ErrorKind::NoSuchTable => true,
                found => found.map(|_| false)?,
            };
            let table = client.create_table(&name, span).await?;
            let info = client.table_info(&table).await?;
            if json {
                let mut shown = as_json(&info);
                shown["created"] = is_new.into();
                return print_json(&shown);
            }
            let what = if is_new {
                "was created"
            } else {
                "was there already"
            };
            show(&info, what, json)
        }
        What::Drop { name } => {
            client.drop_table(&name).await?;
            if json {
                return print_json(&json!({ "dropped": name }));
            }
            print_line(&format!("table {name} was dropped"))
        }
        What::List => list(&client.list_tables().await?, json),
        What::Split { name, at } => {
            let table = client.table(&name).await?;
            show(&client.split_tablet(&table, at).await?, "now", json)
        }
        What::Migrate(wanted) => migrate::run(session, &wanted, json).await,
    }
}

fn show(info: &TableInfo, what: &str, json: bool) -> Result<(), Failure> {
    if json {
        return print_json(&as_json(info));
    }
    let tablets = number_of(info.tablets.len() as u64, "tablet");
    let servers = number_of(owners(info) as u64, "server");
    print_line(&format!(
        "table {} {what}: {tablets} on {servers}",
        info.name
    ))
}

fn list(tables: &[TableInfo], json: bool) -> Result<(), Failure> {
    if json {
        let all: Vec<_> = tables.iter().map(as_json).collect();
        return print_json(&json!({ "tables": all }));
    }
    let mut text = new_table(
        &["table", "id", "tablets", "servers", "not served"],
        &[1, 2, 3, 4],
    );
    for info in tables {
        let waiting = info
            .tablets
            .iter()
            .filter(|t| t.state != TabletState::Normal);
        text.add_row([
            info.name.clone(),
            info.id.to_string(),
            info.tablets.len().to_string(),
            owners(info).to_string(),
            waiting.count().to_string(),
        ]);
    }
    print_line(&table_text(&text))
}

fn owners(info: &TableInfo) -> usize {
    let owners: BTreeSet<_> = info.tablets.iter().map(|t| t.owner).collect();
    owners.len()
}

/// A table with its tablets; hashes as text, because JSON numbers do not carry 64 bits everywhere.
pub fn as_json(info: &TableInfo) -> Value {
    let tablets: Vec<_> = info
        .tablets
        .iter()
        .map(|t| {
            json!({
                "first": format!("{:016x}", t.range.first.0),
                "last": format!("{:016x}", t.range.last.0),
                "server": t.owner,
                "state": t.state,
            })
        })
        .collect();
    json!({ "id": info.id, "name": info.name, "tablets": tablets })
}
