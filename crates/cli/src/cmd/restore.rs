//! `pluvio restore`: the objects of an archive into a cluster of any size.
//!
//! 1. All of the archive is read and compared with its checksums.
//! 2. The tables must be empty, or not there, unless it is asked to write over objects.
//! 3. The objects are written; their deadlines stay where they are.
//! 4. The tables are read back, and compared with the archive.
//!
//! A restore that was cut off left objects behind; with `--overwrite` it is done again.

use crate::cmd::backup::{unusable, verify};
use crate::ingest::records::{BadRecord, Record};
use crate::ingest::write::{Options, write_all};
use bytes::Bytes;
use clap::Args;
use pluvio_archive::{ArchivedTable, Manifest, Place, records};
use pluvio_client::Table;
use pluvio_console::failure::Failure;
use pluvio_console::options::Global;
use pluvio_console::output::{bar, number_of, print_json, print_line, time};
use pluvio_console::session::{Session, with_session};
use pluvio_units::KeyHash;
use serde_json::json;
use std::collections::BTreeSet;
use std::process::ExitCode;
use std::sync::{Arc, Mutex, PoisonError};

/// `pluvio restore`.
#[derive(Args, Clone, Debug)]
pub struct Restore {
    /// The directory of the archives
    place: String,
    /// Which archive, as `pluvio backup list` shows it [default: the newest]
    #[arg(long, value_name = "ID")]
    archive: Option<String>,
    /// Only this table; may be given several times [default: all tables of the archive]
    #[arg(long, value_name = "NAME")]
    table: Vec<String>,
    /// Also into tables that have objects: the archive's replace those of the same key, others
    /// stay. Needed after a restore that was cut off
    #[arg(long)]
    overwrite: bool,
    /// Batches under way at a time
    #[arg(long, value_name = "N", default_value_t = 8, value_parser = clap::value_parser!(u16).range(1..=256))]
    threads: u16,
}

/// Runs the command.
pub fn run(global: &Global, restore: &Restore) -> Result<ExitCode, Failure> {
    let place = Place::named(&restore.place).map_err(unusable)?;
    let mut manifest = place
        .manifest(restore.archive.as_deref())
        .map_err(unusable)?;
    choose(&mut manifest, &restore.table)?;
    verify(&place, &manifest)?;
    let (restore, json) = (restore.clone(), global.json);
    with_session(global, 0, move |session| async move {
        let began = session.env.clock.now();
        let done = all(&session, &restore, &place, &manifest).await?;
        let took = session.env.clock.now().since(began);
        if json {
            print_json(&json!({
                "archive": manifest.id,
                "tables": manifest.tables.len(),
                "objects": done.objects,
                "expired": done.expired,
                "seconds": took.as_secs_f64(),
            }))?;
        } else {
            print_line(&format!(
                "archive {} is restored: {} in {}, {} had expired, in {}",
                manifest.id,
                number_of(done.objects, "object"),
                number_of(manifest.tables.len() as u64, "table"),
                done.expired,
                time(took)
            ))?;
        }
        Ok(ExitCode::SUCCESS)
    })
}

/// Leaves the tables that are wanted.
fn choose(manifest: &mut Manifest, names: &[String]) -> Result<(), Failure> {
    let there: BTreeSet<&str> = manifest.tables.iter().map(|t| &*t.name).collect();
    if let Some(missing) = names.iter().find(|name| !there.contains(name.as_str())) {
        return Err(Failure::new(format!(
            "archive {} has no table {missing:?}; it has {}",
            manifest.id,
            there.into_iter().collect::<Vec<_>>().join(", ")
        )));
    }
    manifest
        .tables
        .retain(|table| names.is_empty() || names.contains(&table.name));
    Ok(())
}

#[derive(Default)]
struct Done {
    objects: u64,
    expired: u64,
}

async fn all(
    session: &Session,
    restore: &Restore,
    place: &Place,
    manifest: &Manifest,
) -> Result<Done, Failure> {
    let client = &session.client;
    let mut tables = Vec::new();
    for archived in &manifest.tables {
        let hash = archived.hash.into();
        let table = client
            .create_table_hashed(&archived.name, None, hash)
            .await?;
        if table.hash_kind() != hash {
            return Err(Failure::new(format!(
                "table {:?} is there and hashes its keys in another way; drop it, and run the command again",
                archived.name
            )));
        }
        let before = client.count(&table).await?.objects;
        if before > 0 && !restore.overwrite {
            return Err(Failure::new(format!(
                "table {:?} has {}; nothing was written. Drop it, or use --overwrite, also after a restore that was cut off",
                archived.name,
                number_of(before, "object")
            )));
        }
        tables.push((archived, table, before == 0));
    }
    let progress = bar(manifest.objects(), "restoring", false);
    let mut done = Done::default();
    for (archived, table, was_empty) in tables {
        let written = Arc::<Mutex<Sum>>::default();
        let source = source(place.clone(), archived.clone());
        let options = Options {
            workers: usize::from(restore.threads),
            skip_bad: false,
            unit: "record",
        };
        let (shown, sum) = (progress.clone(), Arc::clone(&written));
        let seen = move |record: &Record| {
            shown.inc(1);
            let mut sum = sum.lock().unwrap_or_else(PoisonError::into_inner);
            sum.add(&record.key, &record.value, record.deadline.is_some());
        };
        let again = |failure| {
            Failure::new(format!(
                "{failure}. Run the command again with --overwrite to go on"
            ))
        };
        let summary = write_all(session, &table, source, options, seen)
            .await
            .map_err(again)?;
        done.objects += summary.records;
        done.expired += summary.expired;
        let written = *written.lock().unwrap_or_else(PoisonError::into_inner);
        if was_empty {
            let found = read_back(session, &table).await?;
            if found != written {
                return Err(Failure::new(format!(
                    "table {:?} does not have what was written: {} without a deadline instead of {}; do clients change it? Otherwise drop it, and run the command again",
                    archived.name,
                    number_of(found.objects, "object"),
                    number_of(written.objects, "object"),
                )));
            }
        }
    }
    progress.finish_and_clear();
    Ok(done)
}

/// The objects of a table of an archive. Packs are read as they are needed.
fn source(
    place: Place,
    table: ArchivedTable,
) -> impl Iterator<Item = Result<Record, BadRecord>> + Send {
    let mut line = 0;
    table.packs.into_iter().flat_map(move |pack| {
        let path = place.path_of(&pack);
        let read = || {
            let bytes = place.pack(&pack)?;
            let owned = records(&path, &bytes)?.map(|object| {
                object.map(|object| Record {
                    line: 0,
                    key: object.key.to_vec(),
                    value: Bytes::copy_from_slice(object.value),
                    deadline: object.deadline,
                })
            });
            owned.collect::<Result<Vec<_>, _>>()
        };
        let all = match read() {
            Ok(records) => records.into_iter().map(Ok).collect(),
            Err(error) => vec![Err(error)],
        };
        let numbered: Vec<_> = all
            .into_iter()
            .map(|record| {
                line += 1;
                match record {
                    Ok(record) => Ok(Record { line, ..record }),
                    Err(error) => Err(BadRecord {
                        line,
                        message: error.to_string(),
                        last: true,
                    }),
                }
            })
            .collect();
        numbered
    })
}

/// What is compared of a table: its objects without deadlines, in any order.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
struct Sum {
    objects: u64,
    hashes: u64,
}

impl Sum {
    fn add(&mut self, key: &[u8], value: &[u8], expires: bool) {
        // One that expires may be gone when it is read back.
        if !expires {
            let hash = KeyHash::of(KeyHash::of(0, key).0, value);
            self.objects += 1;
            self.hashes = self.hashes.wrapping_add(hash.0);
        }
    }
}

async fn read_back(session: &Session, table: &Table) -> Result<Sum, Failure> {
    let mut sum = Sum::default();
    let mut objects = session.client.enumerate(table);
    while let Some(batch) = objects.next_batch().await? {
        for object in &batch {
            sum.add(&object.key, &object.value, object.deadline.is_some());
        }
    }
    Ok(sum)
}
