//! `pluvio backup`: an archive of a cluster that runs, and a look at archives.
//!
//! Tables are read one after the other, each in the order of ranks. Objects that change meanwhile
//! are read again, so that all are as they were at one moment ([`one_moment`]). The manifest is
//! written last (ARCHIVE-1), so a command that fails leaves no archive. The packs that it wrote are
//! used by the next one (ARCHIVE-2). Nobody removes packs while it is written (ARCHIVE-5).

mod archiver;
pub mod look;
mod one_moment;

use archiver::{Archiver, NotArchived, Pace, Written, on_disk};
use clap::{Args, Subcommand};
use look::{list, prune, show, tell_foreign, verify};
use pluvio_archive::{
    ArchiveError, ArchivedDurability, ArchivedTable, Consistency, Manifest, Place, archive_id,
};
use pluvio_client::{ClientError, ErrorKind, FatalKind, TableInfo};
use pluvio_console::failure::Failure;
use pluvio_console::options::Global;
use pluvio_console::output::{say, spinner};
use pluvio_console::session::{Session, with_session};
use pluvio_env::Clock;
use pluvio_units::Size;
use std::num::NonZeroUsize;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

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
        #[arg(long, value_name = "N", value_parser = kept)]
        keep: NonZeroUsize,
        /// Say what would be removed, and remove nothing
        #[arg(long)]
        dry_run: bool,
    },
}

/// How many archives stay.
fn kept(text: &str) -> Result<NonZeroUsize, String> {
    let kept = text.parse().ok().and_then(NonZeroUsize::new);
    kept.ok_or_else(|| "give 1 or more: the newest archive always stays".to_owned())
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
            tell_foreign(&place)?;
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
            tell_foreign(&place)?;
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

async fn make(session: &Session, backup: &Backup, place: Place, json: bool) -> Result<(), Failure> {
    let began = session.env.clock.now();
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
        began_ms: unix_ms(session),
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
    let (mut tables, held) = read.map_err(none)?;
    note_durabilities(session, &infos, &mut tables).await?;
    let began_ms = archiver.began_ms;
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
    let manifest = put_manifest(session, &archiver.place, manifest).await?;
    let took = session.env.clock.now().since(began);
    show(&manifest, "is made", Some((&archiver.written, took)), json)
}

/// Notes how the tables are kept. `infos` tells it of those that were dropped meanwhile.
async fn note_durabilities(
    session: &Session,
    infos: &[TableInfo],
    tables: &mut [ArchivedTable],
) -> Result<(), Failure> {
    let now = session.client.list_tables().await?;
    for table in tables {
        let mut known = now.iter().chain(infos);
        let class = known.find(|info| info.name == table.name);
        let class = class.and_then(|info| info.class);
        table.durability = class.map(|class| ArchivedDurability {
            replicas: class.replicas,
            synced: class.synced,
        });
    }
    Ok(())
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

/// Writes the manifest, once nobody removes packs. Gives it with the name that it has got.
async fn put_manifest(
    session: &Session,
    place: &Place,
    manifest: Manifest,
) -> Result<Manifest, Failure> {
    let mut left = CLAIM_TRIES;
    loop {
        left -= 1;
        let (place, mut manifest) = (place.clone(), manifest.clone());
        let clock = Arc::clone(&session.env.clock);
        let work = move || match place.put_manifest(&mut manifest, &ticks(&*clock)) {
            Err(ArchiveError::Busy(_)) if left > 0 => Ok(None),
            made => made.map(|()| Some(manifest)),
        };
        if let Some(made) = on_disk(&session.env, work).await? {
            return Ok(made);
        }
        session.env.clock.sleep(CLAIM_PAUSE).await;
    }
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

/// Time that passes, for commands that keep it short.
fn ticks(clock: &dyn Clock) -> impl Fn() -> Duration + '_ {
    let began = clock.now();
    move || clock.now().since(began)
}
