//! `pluvio export`: the objects of a table as JSON lines, which `pluvio import --format export`
//! reads back.
//!
//! A line is `{"key":…,"value":…}`; a part that is not UTF-8 stands in base64 as `key_base64` or
//! `value_base64`. An object that expires has `"expires_at_ms":…`, too. That is wall-clock time, so
//! its deadline stays where it is however long the file lies. Objects that have expired are left
//! out: the owners of the keys judge that when they are read.
//!
//! With `--to`, the tables of the Redis port become an RDB file, which Redis and Valkey load.
//!
//! A file appears under its name when it is complete. Pipes and devices are written to as they are:
//! a rename would put a file in their place.

use crate::cmd::lifetime::put_deadline;
use crate::cmd::objects::put_bytes;
use clap::Args;
use pluvio_client::Deadline;
use pluvio_console::failure::Failure;
use pluvio_console::options::Global;
use pluvio_console::output::{bar, bytes, number_of, print_json, say, spinner, time};
use pluvio_console::session::{Session, with_session};
use pluvio_rdb::writer::Writer;
use pluvio_redis::DatabaseId;
use serde_json::{Map, json};
use std::collections::BTreeSet;
use std::fs::{self, File, OpenOptions};
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// `pluvio export`.
#[derive(Args, Clone, Debug)]
pub struct Export {
    /// The table
    #[arg(required_unless_present = "to")]
    table: Option<String>,
    /// The file; `-` writes to standard output
    #[arg(required_unless_present = "to")]
    file: Option<PathBuf>,
    /// Write all tables of the Redis port (redis:0 to redis:15) into this RDB file instead
    #[arg(long, value_name = "FILE", conflicts_with_all = ["table", "file"])]
    to: Option<PathBuf>,
}

/// What is written.
#[derive(Clone)]
enum What {
    /// A table, as JSON lines.
    Table(String),
    /// The tables of the Redis port, as an RDB file.
    Databases,
}

/// Where the lines go.
enum Target {
    /// Standard output, a pipe, a device.
    Stream(BufWriter<Box<dyn Write + Send>>),
    /// Written under another name first.
    File(BufWriter<File>, Partial),
}

/// A file that is not complete. Removed when dropped, so that a full disk is not left full.
struct Partial {
    name: PathBuf,
    wanted: PathBuf,
}

impl Drop for Partial {
    fn drop(&mut self) {
        // After the rename there is none.
        let _there_or_not = fs::remove_file(&self.name);
    }
}

/// Runs the command.
pub fn run(global: &Global, export: &Export) -> Result<ExitCode, Failure> {
    let (what, file) = match (&export.to, &export.table, &export.file) {
        (Some(file), _, _) => (What::Databases, file.clone()),
        (None, Some(table), Some(file)) => (What::Table(table.clone()), file.clone()),
        (None, _, _) => return Err(Failure::usage("give TABLE and FILE, or --to")),
    };
    let json = global.json;
    let to_output = file.as_os_str() == "-";
    if to_output && json {
        return Err(Failure::usage(
            "--json and FILE `-` both want standard output; name a file",
        ));
    }
    with_session(global, 1, move |session| async move {
        let start = session.env.clock.now();
        let (objects, size) = match &what {
            What::Table(table) => write(&session, table, &file).await?,
            What::Databases => write_rdb(&session, &file).await?,
        };
        let took = session.env.clock.now().since(start);
        if json {
            print_json(&json!({
                "objects": objects,
                "bytes": size,
                "seconds": took.as_secs_f64(),
            }))?;
        } else if !to_output {
            say(format_args!(
                "{}, a file of {}, in {}",
                number_of(objects, "object"),
                bytes(size),
                time(took)
            ));
        }
        Ok(ExitCode::SUCCESS)
    })
}

/// Gives the number of objects and of bytes written.
async fn write(
    Session { client, .. }: &Session,
    table: &str,
    path: &Path,
) -> Result<(u64, u64), Failure> {
    let table = client.table(table).await?;
    let expected = client.count(&table).await?.objects;
    let mut target = Target::open(path)?;
    let progress = bar(expected, "exporting", false);
    let mut objects = client.enumerate(&table);
    let (mut written, mut size) = (0, 0);
    let fail = |error| target_failure(path, error);
    while let Some(batch) = objects.next_batch().await? {
        for object in &batch {
            let mut line = Map::new();
            put_bytes(&mut line, "key", &object.key);
            put_bytes(&mut line, "value", &object.value);
            put_deadline(&mut line, object.deadline);
            let text = serde_json::to_vec(&line)
                .map_err(io::Error::other)
                .map_err(fail)?;
            let out = target.writer();
            out.write_all(&text)
                .and_then(|()| out.write_all(b"\n"))
                .map_err(fail)?;
            size += text.len() as u64 + 1;
        }
        written += batch.len() as u64;
        progress.set_position(written);
    }
    progress.finish_and_clear();
    target.finish().map_err(fail)?;
    Ok((written, size))
}

/// Gives the number of objects and of bytes written.
async fn write_rdb(Session { client, .. }: &Session, path: &Path) -> Result<(u64, u64), Failure> {
    let fail = |error| target_failure(path, error);
    let names: Vec<_> = client.list_tables().await?;
    let names: BTreeSet<_> = names.into_iter().map(|table| table.name).collect();
    let mut target = Target::open(path)?;
    let mut writer = Writer::new(target.writer()).map_err(fail)?;
    let progress = spinner("exporting");
    let mut written = 0;
    for database in DatabaseId::all() {
        let name = database.table_name();
        if !names.contains(&name) {
            continue;
        }
        let table = client.table(&name).await?;
        let expected = client.count(&table).await?.objects;
        let number = u64::from(database.number());
        writer.select(number, expected).map_err(fail)?;
        let mut objects = client.enumerate(&table);
        while let Some(batch) = objects.next_batch().await? {
            for object in &batch {
                let deadline = object.deadline.map(Deadline::ms);
                let object = writer.object(&object.key, &object.value, deadline);
                object.map_err(fail)?;
            }
            written += batch.len() as u64;
            progress.set_position(written);
        }
    }
    progress.finish_and_clear();
    let (_, size) = writer.finish().map_err(fail)?;
    target.finish().map_err(fail)?;
    Ok((written, size))
}

fn target_failure(path: &Path, error: io::Error) -> Failure {
    if path.as_os_str() == "-" {
        return error.into();
    }
    Failure::file(path, &error)
}

impl Target {
    fn open(path: &Path) -> Result<Self, Failure> {
        if path.as_os_str() == "-" {
            return Ok(Self::Stream(BufWriter::new(Box::new(io::stdout()))));
        }
        let fail = |error| Failure::file(path, &error);
        let there = fs::metadata(path).ok();
        if there.as_ref().is_some_and(fs::Metadata::is_dir) {
            return Err(Failure::new(format!(
                "{} is a directory; give a file",
                path.display()
            )));
        }
        if there.as_ref().is_some_and(|there| !there.is_file()) {
            let stream = OpenOptions::new().write(true).open(path).map_err(fail)?;
            return Ok(Self::Stream(BufWriter::new(Box::new(stream))));
        }
        // Behind a link the file is replaced, not the link.
        let wanted = match there {
            Some(_) => path.canonicalize().map_err(fail)?,
            None => path.to_owned(),
        };
        let mut name = wanted.as_os_str().to_owned();
        name.push(".partial");
        let name = PathBuf::from(name);
        let file = File::create(&name).map_err(|error| Failure::file(&name, &error))?;
        Ok(Self::File(BufWriter::new(file), Partial { name, wanted }))
    }

    fn writer(&mut self) -> &mut (dyn Write + Send) {
        match self {
            Self::Stream(stream) => stream,
            Self::File(file, _) => file,
        }
    }

    fn finish(self) -> io::Result<()> {
        match self {
            Self::Stream(mut stream) => stream.flush(),
            Self::File(file, partial) => {
                file.into_inner()
                    .map_err(io::IntoInnerError::into_error)?
                    .sync_all()?;
                fs::rename(&partial.name, &partial.wanted)?;
                let folder = partial.wanted.parent();
                let folder = folder.filter(|folder| !folder.as_os_str().is_empty());
                // The name outlives a power loss, too, where the file system can promise that.
                let _synced =
                    File::open(folder.unwrap_or(Path::new("."))).map(|folder| folder.sync_all());
                Ok(())
            }
        }
    }
}
