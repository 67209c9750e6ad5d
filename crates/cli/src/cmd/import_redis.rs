//! `pluvio import --from`: the strings of a Redis or Valkey into the tables of its databases.
//!
//! A file is read twice. A running Redis gives a file first, and append-only files become one
//! ([`crate::ingest::redis`]). With
//! `--follow` the commands that it takes after that are played, until the user says that it is
//! enough.

use crate::cmd::import::{open, report};
use crate::ingest::redis::aof::{self, Loaded};
use crate::ingest::redis::follow::{Follower, Goal, check_port};
use crate::ingest::redis::replica::{Link, Source, fetch};
use crate::ingest::redis::sections::Sections;
use crate::ingest::redis::survey::Survey;
use crate::ingest::write::{Options, Summary, write_all};
use indicatif::ProgressBar;
use pluvio_console::failure::Failure;
use pluvio_console::options::Global;
use pluvio_console::output::{bar, number_of, say, spinner};
use pluvio_console::session::{Session, with_session};
use pluvio_env_os::StopSignals;
use pluvio_local::REDIS_PASSWORD;
use pluvio_rdb::reader::{Error, Why};
use pluvio_redis::DatabaseId;
use std::fs::File;
use std::io::{self, Seek};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;
use tokio::sync::oneshot;

/// Holds the password where the address has none; `redis-cli` reads the same one.
const PASSWORD: &str = "REDISCLI_AUTH";

/// What the user asks for.
pub struct How {
    /// A file or an address.
    pub source: String,
    /// Leave out what is no string.
    pub skip_types: bool,
    /// The address of a Redis port of Pluvio, to follow a running server.
    pub follow: Option<String>,
    /// The lag in bytes with which following ends.
    pub until_lag: Option<u64>,
}

/// What was got.
struct Got {
    file: File,
    /// The append-only files that are to become the file.
    logs: Vec<PathBuf>,
    /// The database that is asked for.
    only: Option<DatabaseId>,
    live: Option<(Source, Link)>,
}

/// Runs the command.
pub fn run(global: &Global, how: How, options: Options) -> Result<ExitCode, Failure> {
    let password = std::env::var(REDIS_PASSWORD).ok();
    let port = how.follow.as_deref();
    let port = port.map(|port| Source::parse(port, password)).transpose();
    let port = port.map_err(|why| Failure::usage(format!("--follow: {why}")))?;
    let got = get(&how.source, port.is_some())?;
    let json = global.json;
    with_session(global, 0, move |session| async move {
        let (summary, took, left_out) = import(&session, &how, got, port, options).await?;
        report(&summary, took, json, ("left_out", left_out))
    })
}

/// Gives what was written of the file, how long that took, and how much was left out.
async fn import(
    session: &Session,
    how: &How,
    got: Got,
    port: Option<Source>,
    options: Options,
) -> Result<(Summary, Duration, u64), Failure> {
    let Got {
        mut file,
        logs,
        only,
        live,
    } = got;
    let mut beside = (Vec::new(), Vec::new());
    if !logs.is_empty() {
        let loaded = load_logs(session, logs).await?;
        file = loaded.file;
        beside = (loaded.others, loaded.too_long);
        if let Some(cut) = loaded.cut {
            say(cut);
        }
    }
    let followed = match (port, live) {
        (Some(port), Some((source, link))) => {
            check_port(&port).await?;
            check_empty(session).await?;
            Some((port, source, Follower::start(link, session)?))
        }
        _ => None,
    };
    let (mut file, survey) = survey(session, file, only).await?;
    let mut survey = survey.map_err(|error| damage(&how.source, &error))?;
    survey.add(&beside.0, &beside.1);
    if let Some(modules) = survey.modules() {
        say(format_args!(
            "passed over data of modules that belong to no key: {modules}"
        ));
    }
    survey.judge(how.skip_types, options.skip_bad)?;
    if let Some(words) = survey.words() {
        say(format_args!("left out: {words}"));
    }
    let length = length_of(&mut file)?;
    let progress = bar(length, "importing", true);
    let sections = Sections::of(progress.wrap_read(file), only);
    let sections = sections.map_err(|error| damage(&how.source, &error))?;
    let clock = &*session.env.clock;
    let begin = clock.now();
    let summary = load(session, sections, options).await;
    let took = clock.now().since(begin);
    progress.finish_and_clear();
    let summary = summary?;
    if let Some((port, source, follower)) = followed {
        // Until here they end the program.
        let mut signals = StopSignals::new()?;
        let goal = Goal {
            source: &source,
            port: &port,
            until_lag: how.until_lag,
        };
        let commands = follower.play(&goal, clock, &mut signals).await?;
        say(format_args!("played {}", number_of(commands, "command")));
    }
    Ok((summary, took, survey.left_out()))
}

/// The file, and the database that is asked for.
fn get(source: &str, follows: bool) -> Result<Got, Failure> {
    if source.contains("://") {
        let source = Source::parse(source, std::env::var(PASSWORD).ok()).map_err(Failure::usage)?;
        let only = match source.database {
            None => None,
            Some(_) if follows => {
                return Err(Failure::usage("--follow is for all databases of a server"));
            }
            Some(number) => Some(DatabaseId::new(number).ok_or_else(|| {
                Failure::usage(format!("there is no database {number} in Pluvio"))
            })?),
        };
        let progress: ProgressBar = spinner("receiving");
        let fetched = fetch(&source, |bytes| progress.inc(bytes));
        progress.finish_and_clear();
        let (file, link) = fetched?;
        return Ok(Got {
            file,
            logs: Vec::new(),
            only,
            // Without `--follow` the server is left alone from here on.
            live: follows.then_some((source, link)),
        });
    }
    if follows {
        return Err(Failure::usage("--follow needs --from redis://…"));
    }
    let path = Path::new(source);
    if let Some(logs) = aof::find(path)? {
        return Ok(Got {
            file: tempfile::tempfile()?,
            logs,
            only: None,
            live: None,
        });
    }
    let (mut input, length) = open(path)?;
    let fail = |error: io::Error| Failure::file(path, &error);
    let file = match length {
        Some(_) => File::open(path).map_err(fail)?,
        // It cannot be read twice where it is.
        None => {
            let mut file = tempfile::tempfile().map_err(fail)?;
            io::copy(&mut input, &mut file).map_err(fail)?;
            file
        }
    };
    Ok(Got {
        file,
        logs: Vec::new(),
        only: None,
        live: None,
    })
}

/// A copy that is to be the same as its source must not begin with objects of something else.
async fn check_empty(session: &Session) -> Result<(), Failure> {
    for table in session.client.list_tables().await? {
        if !DatabaseId::all().any(|database| database.table_name() == table.name) {
            continue;
        }
        let handle = session.client.table(&table.name).await?;
        let objects = session.client.count(&handle).await?.objects;
        if objects > 0 {
            return Err(Failure::new(format!(
                "{} has {}; a server is followed from empty databases: FLUSHALL empties them",
                table.name,
                number_of(objects, "object")
            )));
        }
    }
    Ok(())
}

/// Goes to the beginning, and gives the length.
fn length_of(file: &mut File) -> io::Result<u64> {
    file.rewind()?;
    Ok(file.metadata()?.len())
}

/// Does the commands of append-only files, on a thread of its own.
async fn load_logs(session: &Session, logs: Vec<PathBuf>) -> Result<Loaded, Failure> {
    let now = session.env.clock.unix_time().as_millis();
    let now = i64::try_from(now).unwrap_or(i64::MAX);
    let progress = spinner("reading commands");
    let (give, take) = oneshot::channel();
    let work = move || {
        let loaded = aof::load(&logs, now);
        progress.finish_and_clear();
        // Its receiver waits below.
        let _ = give.send(loaded);
    };
    session.env.tasks.run_blocking(Box::new(work)).await;
    take.await
        .map_err(|_| Failure::new("the reading of the files broke off"))?
}

/// Reads the file a first time, on a thread of its own.
async fn survey(
    session: &Session,
    mut file: File,
    only: Option<DatabaseId>,
) -> Result<(File, Result<Survey, Error>), Failure> {
    let progress = bar(length_of(&mut file)?, "checking", true);
    let (give, take) = oneshot::channel();
    let work = move || {
        let survey = Survey::of(progress.wrap_read(&file), only);
        progress.finish_and_clear();
        // Its receiver waits below.
        let _ = give.send((file, survey));
    };
    session.env.tasks.run_blocking(Box::new(work)).await;
    take.await
        .map_err(|_| Failure::new("the reading of the file broke off"))
}

/// A source without secrets.
fn shown(source: &str) -> &str {
    match source.contains("://") {
        true => source.rsplit_once('@').map_or(source, |(_, place)| place),
        false => source,
    }
}

fn damage(source: &str, error: &Error) -> Failure {
    let advice = match error.why {
        Why::NoRdb | Why::More => {
            "; an append-only file has a name that ends with .aof, or give its directory"
        }
        Why::Version(_) => "; a newer Pluvio may know it",
        Why::Io(_)
        | Why::Cut
        | Why::NoCommand
        | Why::Nonsense
        | Why::Packed
        | Why::Record(_)
        | Why::Early(_)
        | Why::Checksum => "",
    };
    Failure::new(format!(
        "{}: {error}{advice}; nothing was written",
        shown(source)
    ))
}

async fn load(
    session: &Session,
    sections: Sections<impl io::Read + Send + 'static>,
    options: Options,
) -> Result<Summary, Failure> {
    let mut summary = Summary::default();
    while let Some((database, section)) = sections.next_section() {
        let name = database.table_name();
        let table = session.client.create_table(&name, None).await?;
        let written = write_all(session, &table, section, options, |_: &_| {}).await;
        summary.add(written.map_err(|failure| Failure::new(format!("{name}: {failure}")))?);
    }
    Ok(summary)
}
