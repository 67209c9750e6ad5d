//! `pluvio import`: the records of a file into a table.

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
    table: String,
    /// The file; `-` reads standard input
    file: PathBuf,
    /// How the file is written
    #[arg(long, value_enum)]
    format: Format,
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
    let has_fields = match import.format {
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
    let (input, length) = open(&import.file)?;
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
    let mut records = read(input, import.format, names, blank.clone()).peekable();
    // An import that fails at once, such as one with a wrong --key, leaves no table.
    if let Some(Err(bad)) = records.peek()
        && let Some(failure) = end(bad, import.skip_bad)
    {
        progress.finish_and_clear();
        return Err(failure);
    }
    let (import, json) = (import.clone(), global.json);
    let (summary, took) = with_session(global, 0, move |session| async move {
        load(&session, import, records, progress, by_bytes).await
    })?;
    report(&summary, blank.count(), took, json)
}

async fn load(
    session: &Session,
    import: Import,
    records: Peekable<Records>,
    progress: ProgressBar,
    by_bytes: bool,
) -> Result<(Summary, Duration), Failure> {
    let table = session.client.create_table(&import.table, None).await?;
    let start = session.env.clock.now();
    let options = Options {
        workers: usize::from(import.threads),
        skip_bad: import.skip_bad,
    };
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
fn open(path: &Path) -> Result<(Box<dyn Read + Send>, Option<u64>), Failure> {
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

fn report(summary: &Summary, blank: u64, took: Duration, json: bool) -> Result<ExitCode, Failure> {
    let seconds = took.as_secs_f64();
    let rate = summary.records as f64 / seconds.max(1e-9);
    for told in &summary.told {
        say(format_args!("skipped {told}"));
    }
    let untold = summary.bad - summary.told.len() as u64;
    if untold > 0 {
        say(format_args!("skipped {untold} more"));
    }
    if blank > 0 {
        say(format_args!(
            "passed over {}: blank lines are no records",
            number_of(blank, "blank line")
        ));
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
            "blank_lines": blank,
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
