//! `pluvio scan`: the objects of a table, in the order of their key hashes.

use crate::cmd::lifetime::put_deadline;
use crate::cmd::objects::put_bytes;
use clap::Args;
use pluvio_console::failure::Failure;
use pluvio_console::options::Global;
use pluvio_console::output::escaped;
use pluvio_console::session::{Session, with_session};
use serde_json::Map;
use std::ffi::OsString;
use std::io::{BufWriter, Write as _};
use std::os::unix::ffi::OsStringExt as _;
use std::process::ExitCode;

/// `pluvio scan`.
#[derive(Args, Clone, Debug)]
pub struct Scan {
    /// The table
    table: String,
    /// Stop after this many objects
    #[arg(long, value_name = "N")]
    limit: Option<u64>,
    /// Only keys that begin so. All keys are looked at: tables are ordered by hash
    #[arg(long, value_name = "PREFIX")]
    prefix: Option<OsString>,
    /// Without values
    #[arg(long)]
    keys_only: bool,
}

/// Runs the command: a line for each object, key and value with a tab between them.
pub fn run(global: &Global, scan: &Scan) -> Result<ExitCode, Failure> {
    let (scan, json) = (scan.clone(), global.json);
    with_session(global, 1, move |session| async move {
        act(&session, scan, json).await?;
        Ok(ExitCode::SUCCESS)
    })
}

async fn act(Session { client, .. }: &Session, scan: Scan, json: bool) -> Result<(), Failure> {
    let table = client.table(&scan.table).await?;
    let prefix = scan.prefix.map(OsString::into_vec).unwrap_or_default();
    let mut left = scan.limit.unwrap_or(u64::MAX);
    let mut objects = client.enumerate(&table);
    if scan.keys_only {
        objects = objects.keys_only();
    }
    if left < 256 && prefix.is_empty() {
        objects = objects.batch_items(usize::try_from(left).unwrap_or(256));
    }
    while left > 0 {
        let Some(batch) = objects.next_batch().await? else {
            break;
        };
        // One lock for each batch: nothing is held while the next one is on its way.
        let mut out = BufWriter::new(std::io::stdout().lock());
        for object in batch.iter().filter(|o| o.key.starts_with(&prefix)) {
            if left == 0 {
                break;
            }
            left -= 1;
            if json {
                let mut shown = Map::new();
                put_bytes(&mut shown, "key", &object.key);
                if !scan.keys_only {
                    put_bytes(&mut shown, "value", &object.value);
                }
                shown.insert("version".into(), object.version.0.into());
                put_deadline(&mut shown, object.deadline);
                let text = serde_json::to_string(&shown).map_err(std::io::Error::other)?;
                writeln!(out, "{text}")?;
            } else if scan.keys_only {
                writeln!(out, "{}", escaped(&object.key))?;
            } else {
                writeln!(out, "{}\t{}", escaped(&object.key), escaped(&object.value))?;
            }
        }
        out.flush()?;
    }
    Ok(())
}
