//! `pluvio table migrate`: moves a tablet to another server.

use crate::cmd::table::key_hash;
use clap::Args;
use pluvio_client::{Client, MigrateTabletReply, MigrationStatus, Table, WhichTablet};
use pluvio_console::failure::Failure;
use pluvio_console::output::{bytes, count, print_json, print_line, time};
use pluvio_console::session::Session;
use pluvio_units::{HashRange, MigrationId, ServerId};
use serde_json::{Value, json};
use std::time::Duration;

/// How often the coordinator is asked whether it has ended.
const ASK: Duration = Duration::from_millis(50);

/// `pluvio table migrate`.
#[derive(Args, Clone, Debug)]
pub struct Migrate {
    /// The table's name
    name: String,
    /// The id of the server that is to have the tablet, as `pluvio status` shows it
    #[arg(long, value_name = "SERVER")]
    to: u64,
    /// A key hash of the tablet, in hexadecimal digits [default: the table has one tablet]
    #[arg(long, value_name = "HASH", value_parser = key_hash, conflicts_with = "tablet")]
    at: Option<pluvio_units::KeyHash>,
    /// The tablet, by its first and last key hash; a part of a tablet is cut out first
    #[arg(long, value_name = "FIRST-LAST", value_parser = range)]
    tablet: Option<HashRange>,
    /// Do not wait until it has moved; `pluvio status` shows how it goes
    #[arg(long)]
    no_wait: bool,
}

fn range(text: &str) -> Result<HashRange, String> {
    let (first, last) = text
        .split_once('-')
        .ok_or("give two key hashes with a - between them")?;
    let (first, last) = (key_hash(first)?, key_hash(last)?);
    if last < first {
        return Err("the first key hash is larger than the last".to_owned());
    }
    Ok(HashRange::new(first, last))
}

/// Runs the command.
pub async fn run(session: &Session, wanted: &Migrate, json: bool) -> Result<(), Failure> {
    let client = &session.client;
    let table = client.table(&wanted.name).await?;
    let tablet = which(client, &table, wanted).await?;
    let to = ServerId(wanted.to);
    let begun = client.start_migration(&table, tablet, to).await?;
    let Some(migration) = begun.migration else {
        return show_there(wanted, begun, true, json);
    };
    if wanted.no_wait {
        if json {
            return print_json(&json!({
                "migration": migration,
                "first": hash(begun.range.first.0),
                "last": hash(begun.range.last.0),
                "to": to,
            }));
        }
        return print_line(&format!("migration {migration} to server {to} has begun"));
    }
    match ended(session, migration).await? {
        Some(status) if status.moved => show(&status, json),
        Some(status) => Err(Failure::new(format!(
            "the tablet stays on server {}: {}; `pluvio status` shows the servers",
            status.from, status.phase
        ))),
        // Another coordinator leads by now.
        None => {
            let info = client.table_info(&table).await?;
            let inside = |t: &&pluvio_wire::TabletInfo| begun.range.contains(t.range.first);
            if info.tablets.iter().filter(inside).all(|t| t.owner == to) {
                return show_there(wanted, begun, false, json);
            }
            Err(Failure::new(
                "the tablet stays where it was: a server or the table went away; see `pluvio status`",
            ))
        }
    }
}

async fn which(client: &Client, table: &Table, wanted: &Migrate) -> Result<WhichTablet, Failure> {
    if let Some(range) = wanted.tablet {
        return Ok(WhichTablet::Range(range));
    }
    if let Some(hash) = wanted.at {
        return Ok(WhichTablet::Containing(hash));
    }
    let info = client.table_info(table).await?;
    match &info.tablets[..] {
        [one] => Ok(WhichTablet::Containing(one.range.first)),
        several => Err(Failure::usage(format!(
            "table {} has {} tablets: say which with --at or --tablet; `pluvio table list --json` shows them",
            wanted.name,
            several.len()
        ))),
    }
}

/// Waits for the end.
async fn ended(
    session: &Session,
    migration: MigrationId,
) -> Result<Option<MigrationStatus>, Failure> {
    loop {
        match session.client.migration(migration).await? {
            Some(status) if !status.done => session.env.clock.sleep(ASK).await,
            ended => return Ok(ended),
        }
    }
}

fn hash(of: u64) -> String {
    format!("{of:016x}")
}

/// The tablet is where it is wanted; `already` when nothing had to be moved.
fn show_there(
    wanted: &Migrate,
    begun: MigrateTabletReply,
    already: bool,
    json: bool,
) -> Result<(), Failure> {
    match json {
        true => print_json(&there_json(wanted, begun, already)),
        false => print_line(&there_text(wanted, begun, already)),
    }
}

fn there_json(wanted: &Migrate, begun: MigrateTabletReply, already: bool) -> Value {
    json!({
        "migration": begun.migration,
        "name": wanted.name,
        "first": hash(begun.range.first.0),
        "last": hash(begun.range.last.0),
        "to": wanted.to,
        "moved": true,
        "already_there": already,
    })
}

fn there_text(wanted: &Migrate, begun: MigrateTabletReply, already: bool) -> String {
    let Migrate { name, to, .. } = wanted;
    let range = begun.range;
    match already {
        true => format!(
            "tablet {range} of table {name} is on server {to} already: there is nothing to move"
        ),
        false => format!("tablet {range} of table {name} is on server {to}"),
    }
}

fn show(status: &MigrationStatus, json: bool) -> Result<(), Failure> {
    if json {
        return print_json(&as_json(status));
    }
    let MigrationStatus {
        name,
        from,
        to,
        progress,
        ..
    } = status;
    print_line(&format!(
        "a tablet of table {name} moved from server {from} to server {to}: {} objects, {}, in {}; served by nobody for {}",
        count(progress.objects),
        bytes(progress.bytes),
        time(Duration::from_millis(status.duration_ms)),
        time(Duration::from_micros(progress.frozen_us)),
    ))
}

/// A migration as JSON; hashes as text, because JSON numbers do not carry 64 bits everywhere.
pub fn as_json(status: &MigrationStatus) -> Value {
    let progress = &status.progress;
    json!({
        "migration": status.migration,
        "table": status.table,
        "name": status.name,
        "first": hash(status.range.first.0),
        "last": hash(status.range.last.0),
        "from": status.from,
        "to": status.to,
        "phase": status.phase,
        "done": status.done,
        "moved": status.moved,
        "duration_ms": status.duration_ms,
        "bytes": progress.bytes,
        "objects": progress.objects,
        "changes": progress.changes,
        "frozen_us": progress.frozen_us,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use pluvio_units::KeyHash;

    #[test]
    fn a_tablet_that_is_there_already_is_told() {
        let wanted = Migrate {
            name: "t".to_owned(),
            to: 3,
            at: None,
            tablet: None,
            no_wait: false,
        };
        let begun = MigrateTabletReply {
            migration: None,
            range: HashRange::new(KeyHash(0), KeyHash(u64::MAX)),
        };
        let text = there_text(&wanted, begun, true);
        assert!(
            text.ends_with("of table t is on server 3 already: there is nothing to move"),
            "{text}"
        );
        assert_eq!(there_json(&wanted, begun, true)["already_there"], true);
        assert!(!there_text(&wanted, begun, false).contains("already"));
    }

    #[test]
    fn ranges_are_two_hashes() {
        let whole = HashRange::new(KeyHash(0), KeyHash(u64::MAX));
        assert_eq!(range("0-ffffffffffffffff"), Ok(whole));
        let some = HashRange::new(KeyHash(0x10), KeyHash(0x1f));
        assert_eq!(range("0x10-0x1f"), Ok(some));
        for wrong in ["", "7", "x-y", "2-1", "1-2-3"] {
            assert!(range(wrong).is_err(), "{wrong}");
        }
    }
}
