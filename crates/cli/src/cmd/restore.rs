//! `pluvio restore`: the objects of an archive into a cluster of any size.
//!
//! 1. All of the archive is read and compared with its checksums.
//! 2. The tables must be empty, or not there, unless it is asked to write over objects. Those that
//!    are not there are made with the durability that they had.
//! 3. The objects are written, with the versions that they had, or higher ones where the cluster
//!    would give these; their deadlines stay where they are.
//! 4. The tables are read back, and compared with the archive.
//! 5. The safe version of every owner is raised above all versions that were restored. Not before:
//!    a new object gets at least the safe version, and so would those not written yet.
//!
//! A restore that was cut off left objects behind; with `--overwrite` it is done again.

use crate::cmd::backup::look::{moment_of, tell_foreign, verify};
use crate::cmd::backup::unusable;
use crate::ingest::records::{BadRecord, Record};
use crate::ingest::write::{Options, Summary, write_all};
use bytes::Bytes;
use clap::Args;
use indicatif::ProgressBar;
use pluvio_archive::{ArchivedDurability, ArchivedTable, Manifest, Place, records};
use pluvio_client::{
    Change, Client, ClientError, DurabilityWish, FatalKind, Mutation, Operation, Table,
    TableOptions, Transacted, TransactionStep,
};
use pluvio_console::failure::Failure;
use pluvio_console::options::Global;
use pluvio_console::output::{bar, number_of, print_json, print_line, say, time};
use pluvio_console::session::{Session, with_session};
use pluvio_units::{HashRange, KeyHash, ObjectVersion};
use serde_json::json;
use std::collections::BTreeSet;
use std::process::ExitCode;
use std::sync::{Arc, Mutex, PoisonError};

/// How often the tablets of a table are looked at again because they were cut meanwhile.
const TABLET_ROUNDS: u32 = 4;
/// Keys that are tried to find one for each tablet: some for each of a million tablets.
const PROBES_MAX: u64 = 1 << 24;

/// `pluvio restore`.
#[derive(Args, Clone, Debug)]
pub struct Restore {
    /// The place of the archives: a directory, or s3://BUCKET/PREFIX
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
    /// Keep tables that had a durability of their own as this cluster's settings say
    #[arg(long)]
    as_cluster: bool,
    /// Batches under way at a time
    #[arg(long, value_name = "N", default_value_t = 8, value_parser = clap::value_parser!(u16).range(1..=256))]
    threads: u16,
}

/// Runs the command.
pub fn run(global: &Global, restore: &Restore) -> Result<ExitCode, Failure> {
    let place = Place::named(&restore.place).map_err(unusable)?;
    tell_foreign(&place)?;
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
                "consistency": manifest.consistency,
                "tables": manifest.tables.len(),
                "objects": done.objects,
                "expired": done.expired,
                "higher_versions": done.raised,
                "seconds": took.as_secs_f64(),
            }))?;
        } else {
            print_line(&format!(
                "archive {} is restored: {} in {}, {}, {} had expired, {} got higher versions, in {}",
                manifest.id,
                number_of(done.objects, "object"),
                number_of(manifest.tables.len() as u64, "table"),
                moment_of(&manifest),
                done.expired,
                done.raised,
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
    /// Objects that got a higher version than they had.
    raised: u64,
}

/// A table to be restored.
struct Target<'m> {
    archived: &'m ArchivedTable,
    table: Table,
    /// It had no objects, so that all it has afterwards can be compared.
    was_empty: bool,
}

async fn all(
    session: &Session,
    restore: &Restore,
    place: &Place,
    manifest: &Manifest,
) -> Result<Done, Failure> {
    let client = &session.client;
    let targets = targets(client, restore, manifest).await?;
    tell_other_durabilities(client, restore, &targets).await?;
    let progress = bar(manifest.objects(), "restoring", false);
    let mut done = Done::default();
    let mut newest = Vec::new();
    for target in &targets {
        let summary = one(session, restore, place, target, &progress).await?;
        done.objects += summary.records;
        done.expired += summary.expired;
        done.raised += summary.raised;
        newest.push((&target.table, summary.newest));
    }
    progress.finish_and_clear();
    for (table, newest) in newest {
        raise_safe_versions(client, table, newest).await?;
    }
    Ok(done)
}

/// Creates the tables that are missing. Refuses those that have objects, unless they are to be
/// overwritten; nothing is written before all have been looked at.
async fn targets<'m>(
    client: &Client,
    restore: &Restore,
    manifest: &'m Manifest,
) -> Result<Vec<Target<'m>>, Failure> {
    let there: BTreeSet<String> = { client.list_tables().await?.into_iter() }
        .map(|info| info.name)
        .collect();
    // Those that may be refused come first.
    let mut tables: Vec<&ArchivedTable> = manifest.tables.iter().collect();
    tables.sort_by_key(|archived| archived.durability.is_none());
    let mut targets = Vec::new();
    for archived in tables {
        let hash = archived.hash.into();
        let durability = match (restore.as_cluster, there.contains(&archived.name)) {
            (false, false) => archived.durability,
            (true, _) | (_, true) => None,
        };
        let options = TableOptions {
            hash: Some(hash),
            durability: durability.map_or_else(DurabilityWish::default, |had| DurabilityWish {
                replicas: Some(had.replicas),
                synced: Some(had.synced),
            }),
            ..TableOptions::default()
        };
        let table = client
            .create_table_with(&archived.name, None, options)
            .await
            .map_err(|error| as_cluster_helps(&archived.name, durability, error))?;
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
        targets.push(Target {
            archived,
            table,
            was_empty: before == 0,
        });
    }
    Ok(targets)
}

/// The failure of making a table, with what may help.
fn as_cluster_helps(
    name: &str,
    durability: Option<ArchivedDurability>,
    error: ClientError,
) -> Failure {
    let is_refused = matches!(
        error.fatal_kind(),
        Some(FatalKind::Other | FatalKind::WrongVersion)
    );
    match durability.filter(|_| is_refused) {
        None => error.into(),
        Some(had) => Failure::new(format!(
            "table {name:?} had a durability of its own ({had}), which this cluster cannot give: {error}. No object was written. Change the cluster's settings, or use --as-cluster to keep such tables as they say"
        )),
    }
}

/// Says which tables were there already and are kept in another way than they were.
async fn tell_other_durabilities(
    client: &Client,
    restore: &Restore,
    targets: &[Target<'_>],
) -> Result<(), Failure> {
    if restore.as_cluster {
        return Ok(());
    }
    let infos = client.list_tables().await?;
    for target in targets {
        let info = infos.iter().find(|info| info.id == target.table.id());
        let has = info.and_then(|info| info.class);
        let has = has.map(|class| ArchivedDurability {
            replicas: class.replicas,
            synced: class.synced,
        });
        let had = target.archived.durability;
        if has != had {
            let text = |one: Option<ArchivedDurability>| {
                one.map_or_else(|| "as the cluster".to_owned(), |one| one.to_string())
            };
            say(format_args!(
                "table {:?} is there and keeps its durability ({}); in the archive it is {}",
                target.archived.name,
                text(has),
                text(had)
            ));
        }
    }
    Ok(())
}

/// Writes a table, and reads back one that was empty.
async fn one(
    session: &Session,
    restore: &Restore,
    place: &Place,
    target: &Target<'_>,
    progress: &ProgressBar,
) -> Result<Summary, Failure> {
    let Target {
        archived, table, ..
    } = target;
    let written = Arc::<Mutex<Sum>>::default();
    let options = Options {
        workers: usize::from(restore.threads),
        skip_bad: false,
        unit: "record",
    };
    let (shown, sum) = (progress.clone(), Arc::clone(&written));
    let seen = move |record: &Record| {
        shown.inc(1);
        let mut sum = sum.lock().unwrap_or_else(PoisonError::into_inner);
        let version = record.version.unwrap_or_default();
        sum.add(
            (&record.key, version),
            &record.value,
            record.deadline.is_some(),
        );
    };
    let again = |failure| {
        Failure::new(format!(
            "{failure}. Run the command again with --overwrite to go on"
        ))
    };
    let source = source(place.clone(), (*archived).clone());
    let written_all = write_all(session, table, source, options, seen).await;
    let summary = written_all.map_err(again)?;
    let mut written = *written.lock().unwrap_or_else(PoisonError::into_inner);
    if target.was_empty {
        let mut found = read_back(session, table).await?;
        if summary.raised > 0 {
            (written.versions, found.versions) = (0, 0);
        }
        if found != written {
            return Err(Failure::new(format!(
                "table {:?} does not have what was written: {} without a deadline instead of {}; do clients change it? Otherwise drop it, and run the command again",
                archived.name,
                number_of(found.objects, "object"),
                number_of(written.objects, "object"),
            )));
        }
    }
    Ok(summary)
}

/// Raises the safe versions of the owners of a table above this one. Each tablet gets a transaction
/// that writes an object with the version, and deletes it (STORE-6); nobody sees that.
async fn raise_safe_versions(
    client: &Client,
    table: &Table,
    newest: ObjectVersion,
) -> Result<(), Failure> {
    if newest == ObjectVersion(0) {
        return Ok(());
    }
    let mut known = tablets(client, table).await?;
    for _ in 0..TABLET_ROUNDS {
        let mut left = known.clone();
        for number in 0..PROBES_MAX {
            if left.is_empty() {
                break;
            }
            let key = format!("\0pluvio restore {number}").into_bytes();
            let hash = table.hash(&key);
            let Some(at) = left.iter().position(|range| range.contains(hash)) else {
                continue;
            };
            let put = Change::PutVersion {
                value: b"".as_slice().into(),
                version: newest,
            };
            let steps = [Change::Delete, put].map(|change| Mutation::new(table.id(), &key, change));
            let [delete, put] = steps.map(|m| TransactionStep::must_hold(Operation::Mutate(m)));
            let absent = TransactionStep::version_is(table.id(), &key, ObjectVersion(0));
            let steps = [absent, put, delete].map(|step| (table, step));
            match client.transact(&steps).await? {
                Transacted::Committed(_) => _ = left.swap_remove(at),
                // Somebody has an object of this name.
                Transacted::Refused { .. } => {}
            }
        }
        // What was cut meanwhile may have other owners.
        let now = tablets(client, table).await?;
        if now == known {
            break;
        }
        known = now;
    }
    Ok(())
}

async fn tablets(client: &Client, table: &Table) -> Result<Vec<HashRange>, Failure> {
    let tables = client.list_tables().await?;
    let info = tables.into_iter().find(|info| info.id == table.id());
    let tablets = info.into_iter().flat_map(|info| info.tablets);
    Ok(tablets.map(|tablet| tablet.range).collect())
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
                    version: Some(object.version),
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
    /// With the versions; compared where the cluster gave none of its own.
    versions: u64,
}

impl Sum {
    fn add(&mut self, (key, version): (&[u8], ObjectVersion), value: &[u8], expires: bool) {
        // One that expires may be gone when it is read back.
        if !expires {
            let hash = KeyHash::of(KeyHash::of(0, key).0, value);
            self.objects += 1;
            self.hashes = self.hashes.wrapping_add(hash.0);
            let versioned = KeyHash::of(hash.0, &version.0.to_le_bytes());
            self.versions = self.versions.wrapping_add(versioned.0);
        }
    }
}

async fn read_back(session: &Session, table: &Table) -> Result<Sum, Failure> {
    let mut sum = Sum::default();
    let mut objects = session.client.enumerate(table);
    while let Some(batch) = objects.next_batch().await? {
        for object in &batch {
            let key = (&object.key[..], object.version);
            sum.add(key, &object.value, object.deadline.is_some());
        }
    }
    Ok(sum)
}
