//! `pluvio table`: create, set, show, drop, list and split tables, and move their tablets.

use crate::cmd::migrate;
use crate::cmd::objects::missing_to_change;
use clap::{Args, Subcommand, ValueEnum};
use pluvio_client::{DurabilityWish, ErrorKind, QuotaWish, TableInfo, TableOptions};
use pluvio_console::failure::Failure;
use pluvio_console::options::Global;
use pluvio_console::output::{
    bytes, count, number_of, print_json, print_line, table as new_table, table_text,
};
use pluvio_console::session::{Session, with_session};
use pluvio_units::{KeyHash, ParseSizeError, Size};
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
        #[command(flatten)]
        quota: Quota,
        #[command(flatten)]
        durability: Durability,
    },
    /// Change the quota of a table
    Set {
        /// Its name
        name: String,
        #[command(flatten)]
        quota: Quota,
    },
    /// Show a table: its tablets, its quota and how much of that it uses, its durability
    Show {
        /// Its name
        name: String,
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

/// The quota of a table.
#[derive(Args, Clone, Debug)]
struct Quota {
    /// Bytes of keys and values that the table may have: 512MiB, 4GiB, or `none`
    #[arg(long, value_name = "SIZE", value_parser = quota_bytes)]
    quota_bytes: Option<u64>,
    /// Operations on its objects that it may have in a second, or `none`
    #[arg(long, value_name = "N", value_parser = quota_operations)]
    quota_ops: Option<u64>,
}

impl Quota {
    fn wish(&self) -> QuotaWish {
        QuotaWish {
            bytes: self.quota_bytes,
            operations: self.quota_ops,
        }
    }
}

/// How the objects of a table are kept, if not as the cluster's settings say.
#[derive(Args, Clone, Debug)]
struct Durability {
    /// Where a write is when it is acknowledged: on its server (volatile), on others (buffered), or
    /// on their devices (synced) [default: as in the cluster]
    #[arg(long, value_name = "WHEN", value_enum)]
    durability: Option<When>,
    /// Replicas of its objects, on other servers' disks; 0 is volatile [default: as in the cluster]
    #[arg(long, value_name = "N")]
    replicas: Option<u32>,
}

/// When a write is acknowledged.
#[derive(ValueEnum, Clone, Copy, PartialEq, Eq, Debug)]
enum When {
    Volatile,
    Buffered,
    Synced,
}

impl Durability {
    /// # Errors
    /// The two do not go together.
    fn wish(&self) -> Result<DurabilityWish, Failure> {
        let (replicas, synced) = match (self.durability, self.replicas) {
            (Some(When::Volatile), None) => (Some(0), None),
            (Some(When::Volatile), Some(replicas)) if replicas > 0 => {
                return Err(Failure::usage(format!(
                    "--durability volatile with --replicas {replicas}: a volatile table has none; leave one of them out"
                )));
            }
            (Some(When::Buffered | When::Synced), Some(0)) => {
                return Err(Failure::usage(
                    "--replicas 0 with a durability: such a table is volatile; leave one of them out",
                ));
            }
            (when, replicas) => (replicas, when.map(|when| when == When::Synced)),
        };
        Ok(DurabilityWish { replicas, synced })
    }
}

fn quota_bytes(text: &str) -> Result<u64, String> {
    if text == "none" {
        return Ok(0);
    }
    let size: Size = text
        .parse()
        .map_err(|error: ParseSizeError| error.to_string())?;
    match size.bytes() {
        0 => Err("0 bytes: give a size, or `none`".to_owned()),
        bytes => Ok(bytes),
    }
}

fn quota_operations(text: &str) -> Result<u64, String> {
    if text == "none" {
        return Ok(0);
    }
    let operations = text.parse().ok().filter(|operations| *operations > 0);
    operations.ok_or_else(|| "not a number of operations: give 1 or more, or `none`".to_owned())
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
        What::Create {
            name,
            span,
            quota,
            durability,
        } => {
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
            let wish = quota.wish();
            if !is_new && !wish.is_empty() {
                return Err(Failure::usage(format!(
                    "table {name} was there already, and keeps its quota: change it with `pluvio table set {name}`"
                )));
            }
            let durability = durability.wish()?;
            if !is_new && !durability.is_empty() {
                return Err(Failure::usage(format!(
                    "table {name} was there already, and keeps its durability: a table never gets another one"
                )));
            }
            let options = TableOptions {
                hash: None,
                quota: wish,
                durability,
            };
            let table = client.create_table_with(&name, span, options).await?;
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
        What::Set { name, quota } => {
            let wish = quota.wish();
            if wish.is_empty() {
                return Err(Failure::usage(
                    "nothing to set: give --quota-bytes or --quota-ops",
                ));
            }
            let set = client.set_quota(&name, wish).await;
            let info = set.map_err(|error| missing_to_change(error, &name))?;
            if json {
                return print_json(&as_json(&info));
            }
            print_line(&format!("table {name} has now the quota: {}", info.quota))
        }
        What::Show { name } => {
            let table = client.table(&name).await?;
            let info = client.table_info(&table).await?;
            show(&info, "has", json)?;
            match json {
                true => Ok(()),
                false => {
                    print_line(&format!("quota: {}", quota_text(&info)))?;
                    print_line(&format!("durability: {}", durability_text(&info)))
                }
            }
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

/// The quota, and how much of it is used where that is known.
fn quota_text(info: &TableInfo) -> String {
    let quota = &info.quota;
    if quota.is_none() {
        return "none".to_owned();
    }
    let mut parts = Vec::new();
    if let Some(most) = quota.bytes {
        let used = info.quota_state.map(|state| bytes(state.bytes));
        let used = used.map_or(String::new(), |used| format!("{used} of "));
        parts.push(format!("{used}{}", bytes(most)));
    }
    if let Some(most) = quota.operations {
        let used = info.quota_state.map(|state| count(state.operations));
        let used = used.map_or(String::new(), |used| format!("{used} of "));
        parts.push(format!("{used}{}/s", count(most)));
    }
    let refused = info.quota_state.unwrap_or_default();
    let refused = refused.refused_bytes + refused.refused_operations;
    if refused > 0 {
        parts.push(format!("{} refused", count(refused)));
    }
    parts.join(", ")
}

/// How its objects are kept.
pub fn durability_text(info: &TableInfo) -> String {
    info.class
        .map_or_else(|| "as the cluster".to_owned(), |class| class.to_string())
}

fn list(tables: &[TableInfo], json: bool) -> Result<(), Failure> {
    if json {
        let all: Vec<_> = tables.iter().map(as_json).collect();
        return print_json(&json!({ "tables": all }));
    }
    let mut text = new_table(
        &[
            "table",
            "id",
            "tablets",
            "servers",
            "not served",
            "quota",
            "durability",
        ],
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
            quota_text(info),
            durability_text(info),
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
    let mut shown = json!({ "id": info.id, "name": info.name, "tablets": tablets });
    if !info.quota.is_none() {
        shown["quota"] = json!(info.quota);
        shown["quota_state"] = json!(info.quota_state);
    }
    if let Some(class) = &info.class {
        let word = match (class.is_volatile(), class.synced) {
            (true, _) => "volatile",
            (false, true) => "synced",
            (false, false) => "buffered",
        };
        shown["durability"] = json!({ "durability": word, "replicas": class.replicas });
    }
    shown
}
