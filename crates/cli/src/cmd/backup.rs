//! `pluvio backup`: an archive of a cluster that runs, and a look at archives.
//!
//! Tables are read one after the other, each in the order of ranks. Objects that change meanwhile
//! are read again, so that all are as they were at one moment ([`one_moment`]). The manifest is
//! written last (ARCHIVE-1), so a command that fails leaves no archive. The packs that it wrote are
//! used by the next one (ARCHIVE-2). Nobody removes packs while it is written (ARCHIVE-5).

mod one_moment;

use clap::{Args, Subcommand};
use indicatif::ProgressBar;
use pluvio_archive::{
    ArchiveError, ArchivedObject, ArchivedTable, Consistency, Manifest, PackBuilder, PackRef,
    Place, archive_id, records,
};
use pluvio_client::{ClientError, ErrorKind, FatalKind, TableInfo};
use pluvio_console::failure::Failure;
use pluvio_console::options::Global;
use pluvio_console::output::{
    bytes, number_of, print_json, print_line, say, spinner, table as new_table, table_text, time,
};
use pluvio_console::session::{Session, with_runtime, with_session};
use pluvio_env::{Clock, Env, Moment};
use pluvio_units::{ObjectVersion, Size};
use serde_json::json;
use std::num::NonZeroUsize;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::oneshot;

/// How often a backup tries to write its manifest while packs are removed: for longer than the
/// claim of a killed command counts.
const CLAIM_TRIES: u32 = 200;
/// The pause between two tries.
const CLAIM_PAUSE: Duration = Duration::from_secs(5);

/// `pluvio backup`.
#[derive(Args, Clone, Debug)]
#[command(args_conflicts_with_subcommands = true, subcommand_negates_reqs = true)]
pub struct Backup {
    /// The place of the archives: a directory, made if there is none, or s3://BUCKET/PREFIX.
    /// Archives in one place share what did not change
    #[arg(required = true)]
    place: Option<String>,
    /// Only this table; may be given several times [default: all tables, those with users and
    /// functions included]
    #[arg(long, value_name = "NAME")]
    table: Vec<String>,
    /// How many bytes of objects to read in a second, at most [default: no limit]
    #[arg(long, value_name = "SIZE")]
    rate: Option<Size>,
    /// Do without one moment for all objects: each is as it was at some moment while the command
    /// ran. No write is delayed then
    #[arg(long)]
    each_object: bool,
    /// A look at archives, or an end of some.
    #[command(subcommand)]
    what: Option<What>,
}

#[derive(Subcommand, Clone, Debug)]
enum What {
    /// List the archives of a place
    List {
        /// The place of the archives
        place: String,
    },
    /// Read an archive back, and compare all of it with its checksums
    Verify {
        /// The place of the archives
        place: String,
        /// Which archive [default: the newest]
        #[arg(long, value_name = "ID")]
        archive: Option<String>,
    },
    /// Remove old archives, and the packs that no archive names
    ///
    /// Packs younger than a day stay: a backup that was cut off may need them. It may run while
    /// backups do.
    Prune {
        /// The place of the archives
        place: String,
        /// How many archives of each cluster stay: the newest ones
        #[arg(long, value_name = "N")]
        keep: NonZeroUsize,
        /// Say what would be removed, and remove nothing
        #[arg(long)]
        dry_run: bool,
    },
}

/// An archive that cannot be used. The errors say what to do.
pub fn unusable(error: ArchiveError) -> Failure {
    match error {
        ArchiveError::NoPlace(_)
        | ArchiveError::NoObjectStores(_)
        | ArchiveError::NoBucket { .. } => Failure::usage(error.to_string()),
        error => Failure::new(error.to_string()),
    }
}

/// Runs the command.
pub fn run(global: &Global, backup: &Backup) -> Result<ExitCode, Failure> {
    let json = global.json;
    match &backup.what {
        Some(What::List { place }) => list(&Place::named(place).map_err(unusable)?, json)?,
        Some(What::Verify { place, archive }) => {
            let place = Place::named(place).map_err(unusable)?;
            let manifest = place.manifest(archive.as_deref()).map_err(unusable)?;
            verify(&place, &manifest)?;
            show(&manifest, "is whole", None, json)?;
        }
        Some(What::Prune {
            place,
            keep,
            dry_run,
        }) => {
            let place = Place::named(place).map_err(unusable)?;
            prune(global, place, *keep, *dry_run)?;
        }
        None => {
            let name = backup.place.as_deref().unwrap_or_default();
            let place = Place::named(name).map_err(unusable)?;
            if backup.rate == Some(Size(0)) {
                return Err(Failure::usage("--rate 0: nothing would be read"));
            }
            let backup = backup.clone();
            with_session(global, 1, move |session| async move {
                make(&session, &backup, place, json).await
            })?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// How much was written, and what was there.
#[derive(Default)]
struct Written {
    new_bytes: u64,
    known_bytes: u64,
}

async fn make(session: &Session, backup: &Backup, place: Place, json: bool) -> Result<(), Failure> {
    let began = session.env.clock.now();
    let began_ms = unix_ms(session);
    let infos = wanted_tables(session, &backup.table).await?;
    let Some(cluster) = infos.first().map(|info| info.cluster) else {
        return Err(Failure::new(
            "the cluster has no tables; nothing was written",
        ));
    };
    let prepared = place.clone();
    on_disk(&session.env, move || prepared.prepare()).await?;
    let mut archiver = Archiver {
        session,
        place,
        written: Written::default(),
        pace: Pace {
            began,
            rate: backup.rate,
            read: 0,
        },
        progress: spinner("archiving"),
    };
    let read = match backup.each_object {
        true => each_object(&mut archiver, backup, &infos)
            .await
            .map(|tables| (tables, None)),
        false => at_one_moment(&mut archiver, backup, &infos).await,
    };
    archiver.progress.finish_and_clear();
    let none = |failure: Failure| Failure::new(format!("{failure}; there is no new archive"));
    let (tables, held) = read.map_err(none)?;
    let manifest = Manifest {
        id: archive_id(cluster, began_ms),
        cluster,
        program: env!("CARGO_PKG_VERSION").to_owned(),
        began_ms,
        ended_ms: unix_ms(session),
        consistency: match backup.each_object {
            true => Consistency::EachObject,
            false => Consistency::OneMoment,
        },
        held_us: held.map(|held| u64::try_from(held.as_micros()).unwrap_or(u64::MAX)),
        all_tables: backup.table.is_empty(),
        tables,
    };
    put_manifest(session, &archiver.place, &manifest).await?;
    let took = session.env.clock.now().since(began);
    show(&manifest, "is made", Some((&archiver.written, took)), json)
}

/// The tables as they are at one moment, and how long writes stood still for it.
async fn at_one_moment(
    archiver: &mut Archiver<'_>,
    backup: &Backup,
    infos: &[TableInfo],
) -> Result<(Vec<ArchivedTable>, Option<Duration>), Failure> {
    let client = archiver.session.client.clone();
    let all = backup.table.is_empty();
    let mut tables = Vec::new();
    for info in infos {
        match client.table_by_id(info.id).await {
            Ok(table) => tables.push(table),
            // A command that drops a table does not want it.
            Err(error) if all && error.kind() == ErrorKind::NoSuchTable => {}
            Err(error) => return Err(error.into()),
        }
    }
    let mut read = one_moment::read(archiver, tables, all).await?;
    read.tables.sort_by(|a, b| a.name.cmp(&b.name));
    Ok((read.tables, Some(read.held)))
}

/// The failure of reading at one moment, with what may help.
fn each_object_helps(error: ClientError) -> Failure {
    let help = match (error.fatal_kind(), error.is_retryable()) {
        (Some(FatalKind::Unsupported), _) => "Upgrade all servers, or use --each-object".to_owned(),
        (_, true) => "Run the command again, or with --each-object".to_owned(),
        (_, false) => return error.into(),
    };
    Failure::new(format!("{error}. {help}"))
}

/// The tables, each object as it was at some moment.
async fn each_object(
    archiver: &mut Archiver<'_>,
    backup: &Backup,
    infos: &[TableInfo],
) -> Result<Vec<ArchivedTable>, Failure> {
    let mut tables = Vec::new();
    for info in infos {
        match archiver.table(info).await {
            Ok(table) => tables.push(table),
            // Whoever drops a table while it is read does not want it.
            Err(NotArchived::Dropped) if backup.table.is_empty() => {
                say(format_args!(
                    "table {:?} was dropped meanwhile, and is left out",
                    info.name
                ));
            }
            Err(NotArchived::Dropped) => {
                let why = format!("table {:?} was dropped meanwhile", info.name);
                return Err(Failure::new(why));
            }
            Err(NotArchived::Failed(failure)) => return Err(failure),
        }
    }
    Ok(tables)
}

/// Writes the manifest, once nobody removes packs.
async fn put_manifest(
    session: &Session,
    place: &Place,
    manifest: &Manifest,
) -> Result<(), Failure> {
    for left in (0..CLAIM_TRIES).rev() {
        let (place, manifest) = (place.clone(), manifest.clone());
        let clock = Arc::clone(&session.env.clock);
        let (said, made) = oneshot::channel();
        let work = move || {
            let ticks = ticks(&*clock);
            let made = match place.put_manifest(&manifest, &ticks) {
                Err(ArchiveError::Busy(_)) if left > 0 => Ok(false),
                made => made.map(|()| true),
            };
            let _whoever_waits = said.send(made.as_ref().is_ok_and(|made| *made));
            made.map(|_| ())
        };
        on_disk(&session.env, work).await?;
        if made.await.unwrap_or(false) {
            break;
        }
        session.env.clock.sleep(CLAIM_PAUSE).await;
    }
    Ok(())
}

/// Time that passes, for commands that keep it short.
fn ticks(clock: &dyn Clock) -> impl Fn() -> Duration + '_ {
    let began = clock.now();
    move || clock.now().since(began)
}

/// The tables to be archived, by name.
async fn wanted_tables(session: &Session, names: &[String]) -> Result<Vec<TableInfo>, Failure> {
    let mut infos = session.client.list_tables().await?;
    if let Some(missing) = names
        .iter()
        .find(|name| infos.iter().all(|info| info.name != **name))
    {
        return Err(Failure::new(format!(
            "there is no table {missing:?}; see `pluvio table list`"
        )));
    }
    infos.retain(|info| names.is_empty() || names.contains(&info.name));
    infos.sort_by(|a, b| a.name.cmp(&b.name));
    Ok(infos)
}

fn unix_ms(session: &Session) -> u64 {
    u64::try_from(session.env.clock.unix_time().as_millis()).unwrap_or(u64::MAX)
}

/// Does something that waits for a disk.
async fn on_disk<T: Send + 'static>(
    env: &Env,
    work: impl FnOnce() -> Result<T, ArchiveError> + Send + 'static,
) -> Result<T, Failure> {
    let (done, result) = oneshot::channel();
    let work = Box::new(move || drop(done.send(work())));
    env.tasks.run_blocking(work).await;
    match result.await {
        Ok(result) => result.map_err(unusable),
        Err(_) => Err(Failure::new("the command was stopped")),
    }
}

/// Keeps the reading below a rate.
struct Pace {
    began: Moment,
    rate: Option<Size>,
    read: u64,
}

impl Pace {
    /// How long to wait before reading on.
    fn wait(&self, now: Moment) -> Duration {
        let Some(Size(rate)) = self.rate else {
            return Duration::ZERO;
        };
        let due = Duration::from_secs_f64(self.read as f64 / rate as f64);
        due.saturating_sub(now.since(self.began))
    }
}

enum NotArchived {
    Dropped,
    Failed(Failure),
}

impl From<ClientError> for NotArchived {
    fn from(error: ClientError) -> Self {
        match error.kind() {
            ErrorKind::NoSuchTable => Self::Dropped,
            _ => Self::Failed(error.into()),
        }
    }
}

/// Reads tables, and writes packs.
struct Archiver<'s> {
    session: &'s Session,
    place: Place,
    written: Written,
    pace: Pace,
    progress: ProgressBar,
}

impl Archiver<'_> {
    async fn table(&mut self, info: &TableInfo) -> Result<ArchivedTable, NotArchived> {
        let client = &self.session.client;
        let table = client.table_by_id(info.id).await?;
        let mut archived = ArchivedTable {
            name: info.name.clone(),
            hash: info.hash.into(),
            objects: 0,
            bytes: 0,
            newest_version: ObjectVersion(0),
            packs: Vec::new(),
        };
        let mut pack = PackBuilder::default();
        let mut objects = client.enumerate(&table);
        while let Some(batch) = objects.next_batch().await? {
            for object in &batch {
                pack.add(&ArchivedObject {
                    key: &object.key,
                    value: &object.value,
                    version: object.version,
                    deadline: object.deadline,
                });
                let bytes = (object.key.len() + object.value.len()) as u64;
                archived.objects += 1;
                archived.bytes += bytes;
                archived.newest_version = archived.newest_version.max(object.version);
                self.pace.read += bytes;
                if pack.is_full() {
                    self.keep(&mut pack, &mut archived).await?;
                }
            }
            self.progress.inc(batch.len() as u64);
            let wait = self.pace.wait(self.session.env.clock.now());
            if !wait.is_zero() {
                self.session.env.clock.sleep(wait).await;
            }
        }
        if pack.objects() > 0 {
            self.keep(&mut pack, &mut archived).await?;
        }
        Ok(archived)
    }

    async fn keep(
        &mut self,
        pack: &mut PackBuilder,
        archived: &mut ArchivedTable,
    ) -> Result<(), NotArchived> {
        let written = self.write(pack).await.map_err(NotArchived::Failed)?;
        archived.packs.push(written);
        Ok(())
    }

    /// Writes a pack; a new one begins.
    async fn write(&mut self, pack: &mut PackBuilder) -> Result<PackRef, Failure> {
        let (objects, bytes) = (u64::from(pack.objects()), pack.take());
        let (place, len) = (self.place.clone(), bytes.len() as u64);
        let written = on_disk(&self.session.env, move || place.put_pack(&bytes, objects)).await?;
        match written.is_new {
            true => self.written.new_bytes += len,
            false => self.written.known_bytes += len,
        }
        Ok(written.pack)
    }
}

/// Reads all of an archive, and compares it with its checksums and counts.
pub fn verify(place: &Place, manifest: &Manifest) -> Result<(), Failure> {
    let progress = spinner("verifying");
    for table in &manifest.tables {
        let mut found = (0, 0);
        for pack in &table.packs {
            let bytes = place.pack(pack).map_err(unusable)?;
            let path = place.path_of(pack);
            for object in records(&path, &bytes).map_err(unusable)? {
                let object = object.map_err(unusable)?;
                found.0 += 1;
                found.1 += (object.key.len() + object.value.len()) as u64;
            }
            progress.inc(pack.objects);
        }
        if found != (table.objects, table.bytes) {
            progress.finish_and_clear();
            return Err(Failure::new(format!(
                "archive {}: table {:?} has {} and {} instead of {} and {}; use another archive",
                manifest.id,
                table.name,
                number_of(found.0, "object"),
                bytes(found.1),
                number_of(table.objects, "object"),
                bytes(table.bytes),
            )));
        }
    }
    progress.finish_and_clear();
    Ok(())
}

fn prune(global: &Global, place: Place, keep: NonZeroUsize, dry_run: bool) -> Result<(), Failure> {
    let pruned = with_runtime(1, &global.tls, move |env| async move {
        let clock = Arc::clone(&env.clock);
        let work = move || place.prune(keep, dry_run, &ticks(&*clock));
        on_disk(&env, work).await
    })?;
    if global.json {
        return print_json(&json!({
            "kept": pruned.kept,
            "archives": pruned.archives,
            "files": pruned.files,
            "bytes": pruned.bytes,
            "dry_run": dry_run,
        }));
    }
    let is_done = match dry_run {
        true => "would be removed",
        false => "removed",
    };
    for id in &pruned.archives {
        print_line(&format!("archive {id} {is_done}"))?;
    }
    print_line(&format!(
        "{} {is_done} with {}, {} stay",
        number_of(pruned.files, "pack"),
        bytes(pruned.bytes),
        number_of(pruned.kept as u64, "archive"),
    ))
}

fn list(place: &Place, json: bool) -> Result<(), Failure> {
    let ids = place.ids().map_err(unusable)?;
    let read = ids
        .into_iter()
        .map(|id| (place.manifest(Some(&id)).map_err(|e| e.to_string()), id));
    if json {
        let archives = read.map(|(manifest, id)| match manifest {
            Ok(manifest) => as_json(&manifest),
            Err(error) => json!({ "archive": id, "error": error }),
        });
        return print_json(&json!({ "archives": archives.collect::<Vec<_>>() }));
    }
    let mut text = new_table(
        &[
            "archive",
            "tables",
            "objects",
            "took",
            "all tables",
            "moment",
        ],
        &[1, 2],
    );
    for (manifest, id) in read {
        text.add_row(match manifest {
            Ok(manifest) => vec![
                id,
                manifest.tables.len().to_string(),
                manifest.objects().to_string(),
                time(took(&manifest)),
                if manifest.all_tables { "yes" } else { "no" }.to_owned(),
                match manifest.consistency {
                    Consistency::OneMoment => "one",
                    Consistency::EachObject => "each object's own",
                }
                .to_owned(),
            ],
            Err(error) => vec![id, error],
        });
    }
    print_line(&table_text(&text))
}

fn took(manifest: &Manifest) -> Duration {
    Duration::from_millis(manifest.ended_ms.saturating_sub(manifest.began_ms))
}

fn as_json(manifest: &Manifest) -> serde_json::Value {
    json!({
        "archive": manifest.id,
        "cluster": manifest.cluster,
        "began_ms": manifest.began_ms,
        "ended_ms": manifest.ended_ms,
        "consistency": manifest.consistency,
        "held_us": manifest.held_us,
        "all_tables": manifest.all_tables,
        "objects": manifest.objects(),
        "tables": manifest.tables.iter().map(|table| json!({
            "name": table.name,
            "objects": table.objects,
            "bytes": table.bytes,
            "newest_version": table.newest_version,
            "packs": table.packs.len(),
        })).collect::<Vec<_>>(),
    })
}

/// Says what became of an archive.
fn show(
    manifest: &Manifest,
    what: &str,
    written: Option<(&Written, Duration)>,
    json: bool,
) -> Result<(), Failure> {
    if json {
        let mut shown = as_json(manifest);
        if let Some((written, _)) = written {
            shown["new_bytes"] = written.new_bytes.into();
            shown["known_bytes"] = written.known_bytes.into();
        }
        return print_json(&shown);
    }
    let mut text = format!(
        "archive {} {what}: {} in {}",
        manifest.id,
        number_of(manifest.objects(), "object"),
        number_of(manifest.tables.len() as u64, "table"),
    );
    text += &format!(", {}", moment_of(manifest));
    if let Some((written, took)) = written {
        text += &format!(
            ", {} written, {} were there, in {}",
            bytes(written.new_bytes),
            bytes(written.known_bytes),
            time(took)
        );
        if let Some(held) = manifest.held_us {
            let held = time(Duration::from_micros(held));
            text += &format!("; writes stood still for {held}");
        }
    }
    print_line(&text)
}

/// How the objects of an archive belong together.
pub fn moment_of(manifest: &Manifest) -> &'static str {
    match manifest.consistency {
        Consistency::OneMoment => "all as they were at one moment",
        Consistency::EachObject => "each as it was at a moment of its own",
    }
}
