//! `pluvio import`: the records of a file into a table. `--from`: the strings of a Redis
//! (`import_redis.rs`).

use crate::cmd::import_redis::{self, How};
use crate::ingest::records::{BlankLines, Format, Names, Records, read};
use crate::ingest::write::{Options, Summary, end, write_all};
use clap::Args;
use indicatif::ProgressBar;
use pluvio_console::failure::Failure;
use pluvio_console::options::Global;
use pluvio_console::output::{
    bar, bytes, count, number_of, print_json, print_line, say, spinner, time,
};
use pluvio_console::session::{Session, with_session};
use serde_json::json;
use std::fs::File;
use std::io::Read;
use std::iter::Peekable;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

/// `pluvio import`.
#[derive(Args, Clone, Debug)]
pub struct Import {
    /// The table; created if there is none
    #[arg(required_unless_present = "from")]
    table: Option<String>,
    /// The file; `-` reads standard input
    #[arg(required_unless_present = "from")]
    file: Option<PathBuf>,
    /// How the file is written
    #[arg(long, value_enum, required_unless_present = "from")]
    format: Option<Format>,
    /// Read the strings of a Redis or Valkey instead, database N into table redis:N. SOURCE is an
    /// RDB file, or append-only files: a directory, a `.manifest`, a `.aof`. Or it is a server:
    /// `redis://[USER[:PASSWORD]@]HOST[:PORT][/DATABASE]` (the password also from REDISCLI_AUTH)
    #[arg(long, value_name = "SOURCE", conflicts_with_all = ["table", "file", "format", "key", "expires_at"])]
    from: Option<String>,
    /// With --from: leave out values of types that Pluvio has not, instead of refusing all
    #[arg(long, requires = "from")]
    skip_types: bool,
    /// With --from redis://…: play the commands that the server takes after that into this Redis port
    /// of Pluvio, until SIGINT or SIGTERM. An address as above; its password also from
    /// PLUVIO_REDIS_PASSWORD. Databases must be empty
    #[arg(long, value_name = "ADDRESS", requires = "from")]
    follow: Option<String>,
    /// With --follow: end as soon as Pluvio is at most this many bytes of commands behind
    #[arg(long, value_name = "BYTES", requires = "follow")]
    until_lag: Option<u64>,
    /// The field that is the key (csv, jsonl) [default: the record's number]
    #[arg(long, value_name = "FIELD")]
    key: Option<String>,
    /// The field that has the record's deadline, in milliseconds since 1970 (csv, jsonl) [default:
    /// records live for ever]
    #[arg(long, value_name = "FIELD")]
    expires_at: Option<String>,
    /// Batches under way at a time
    #[arg(long, value_name = "N", default_value_t = 8, value_parser = clap::value_parser!(u16).range(1..=256))]
    threads: u16,
    /// Count bad records and go on, instead of stopping at the first
    #[arg(long)]
    skip_bad: bool,
}

/// Runs the command.
pub fn run(global: &Global, import: &Import) -> Result<ExitCode, Failure> {
    let options = Options {
        workers: usize::from(import.threads),
        skip_bad: import.skip_bad,
        unit: if import.from.is_some() {
            "byte"
        } else {
            "line"
        },
    };
    match import {
        Import {
            from: Some(source), ..
        } => {
            let how = How {
                source: source.clone(),
                skip_types: import.skip_types,
                follow: import.follow.clone(),
                until_lag: import.until_lag,
            };
            import_redis::run(global, how, options)
        }
        Import {
            table: Some(table),
            file: Some(file),
            format: Some(format),
            ..
        } => run_file(
            global,
            import,
            (table.as_str(), file.as_path()),
            *format,
            options,
        ),
        _ => Err(Failure::usage("give TABLE, FILE and --format, or --from")),
    }
}

fn run_file(
    global: &Global,
    import: &Import,
    (table, file): (&str, &Path),
    format: Format,
    options: Options,
) -> Result<ExitCode, Failure> {
    let has_fields = match format {
        Format::Csv | Format::Jsonl => true,
        Format::Lines | Format::Export => false,
    };
    if import.key.is_some() && !has_fields {
        return Err(Failure::usage(
            "--key is for csv and jsonl; in the other formats each record has its own key",
        ));
    }
    if import.expires_at.is_some() && !has_fields {
        return Err(Failure::usage(
            "--expires-at is for csv and jsonl; records of export have their own deadlines, lines have none",
        ));
    }
    // Looked for before the cluster is asked for anything.
    let (input, length) = open(file)?;
    let progress = match length {
        Some(length) => bar(length, "importing", true),
        None => spinner("importing"),
    };
    let by_bytes = length.is_some();
    let input: Box<dyn Read + Send> = if by_bytes {
        Box::new(progress.wrap_read(input))
    } else {
        input
    };
    let blank = BlankLines::default();
    let names = Names {
        key: import.key.clone(),
        deadline: import.expires_at.clone(),
    };
    let mut records = read(input, format, names, blank.clone()).peekable();
    // An import that fails at once, such as one with a wrong --key, leaves no table.
    if let Some(Err(bad)) = records.peek()
        && let Some(failure) = end(bad, options)
    {
        progress.finish_and_clear();
        return Err(failure);
    }
    let table = table.to_owned();
    let (summary, took) = with_session(global, 0, move |session| async move {
        load(&session, &table, records, options, progress, by_bytes).await
    })?;
    let blank = blank.count();
    if blank > 0 {
        say(format_args!(
            "passed over {}: blank lines are no records",
            number_of(blank, "blank line")
        ));
    }
    report(&summary, took, global.json, ("blank_lines", blank))
}

async fn load(
    session: &Session,
    table: &str,
    records: Peekable<Records>,
    options: Options,
    progress: ProgressBar,
    by_bytes: bool,
) -> Result<(Summary, Duration), Failure> {
    let table = session.client.create_table(table, None).await?;
    let start = session.env.clock.now();
    let shown = progress.clone();
    let seen = move |_: &_| {
        if !by_bytes {
            shown.inc(1);
        }
    };
    let result = write_all(session, &table, records, options, seen).await;
    progress.finish_and_clear();
    Ok((result?, session.env.clock.now().since(start)))
}

/// The input, and its length if that is known.
pub fn open(path: &Path) -> Result<(Box<dyn Read + Send>, Option<u64>), Failure> {
    if path.as_os_str() == "-" {
        return Ok((Box::new(std::io::stdin()), None));
    }
    let fail = |error: std::io::Error| Failure::file(path, &error);
    let file = File::open(path).map_err(fail)?;
    let about = file.metadata().map_err(fail)?;
    if about.is_dir() {
        return Err(Failure::new(format!(
            "{} is a directory; give a file",
            path.display()
        )));
    }
    let length = about.is_file().then_some(about.len());
    Ok((Box::new(file), length))
}

/// Tells what was done; `more` is counted as well.
pub fn report(
    summary: &Summary,
    took: Duration,
    json: bool,
    more: (&str, u64),
) -> Result<ExitCode, Failure> {
    let seconds = took.as_secs_f64();
    let rate = summary.records as f64 / seconds.max(1e-9);
    for told in &summary.told {
        say(format_args!("skipped {told}"));
    }
    let untold = summary.bad - summary.told.len() as u64;
    if untold > 0 {
        say(format_args!("skipped {untold} more"));
    }
    if summary.expired > 0 {
        say(format_args!(
            "passed over {} that had expired",
            number_of(summary.expired, "record")
        ));
    }
    if json {
        print_json(&json!({
            "records": summary.records,
            "bytes": summary.bytes,
            "seconds": seconds,
            "records_per_s": rate,
            "duplicates": summary.duplicates,
            "expired": summary.expired,
            "bad": summary.bad,
            more.0: more.1,
        }))?;
    } else {
        print_line(&format!(
            "{}, {} of keys and values, in {}: {} records/s; {} duplicates, {} bad",
            number_of(summary.records, "record"),
            bytes(summary.bytes),
            time(took),
            count(rate as u64),
            count(summary.duplicates),
            count(summary.bad),
        ))?;
    }
    Ok(ExitCode::SUCCESS)
}
