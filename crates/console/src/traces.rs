//! Traces to standard error.
//!
//! A trace that cannot be written (the reader is gone, the disk with the file is full) is dropped.
//! It must not end a process that serves data.

use crate::failure::Failure;
use crate::options::{Global, LogFormat};
use std::io::IsTerminal;
use tracing_subscriber::EnvFilter;
use tracing_subscriber::fmt;

/// Begins to write traces; `level` holds when `--log` says nothing.
///
/// # Errors
/// `--log` is no level and no filter.
pub fn start(global: &Global, level: &str) -> Result<(), Failure> {
    let wanted = global.log.as_deref().unwrap_or(level);
    let filter = EnvFilter::try_new(wanted).map_err(|error| {
        Failure::usage(format!(
            "--log {wanted:?}: {error}; give off, error, warn, info, debug, trace or a filter"
        ))
    })?;
    let builder = fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        // The report of a failed write would go to standard error too, and panic.
        .log_internal_errors(false);
    let started = match global.log_format {
        LogFormat::Text => builder
            .with_ansi(std::io::stderr().is_terminal())
            .try_init(),
        LogFormat::Json => builder.json().flatten_event(true).try_init(),
    };
    started.map_err(|error| Failure::new(format!("cannot write traces: {error}")))
}
