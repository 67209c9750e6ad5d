//! Traces to standard error.
//!
//! A trace that cannot be written (the reader is gone, the disk with the file is full) is dropped.
//! It must not end a process that serves data.
//!
//! The filter can be changed while the process runs ([`change`]).

use crate::failure::Failure;
use crate::options::{Global, LogFormat};
use std::io::IsTerminal;
use std::sync::{Mutex, OnceLock, PoisonError};
use tracing_subscriber::EnvFilter;
use tracing_subscriber::fmt;
use tracing_subscriber::reload::Handle;

/// The filter in use as text, and the way to change it.
struct Filter {
    text: Mutex<String>,
    reload: Box<dyn Fn(EnvFilter) -> Result<(), String> + Send + Sync>,
}

static FILTER: OnceLock<Filter> = OnceLock::new();

fn keep<S: 'static>(wanted: &str, handle: Handle<EnvFilter, S>) {
    let reload = move |filter| handle.reload(filter).map_err(|error| error.to_string());
    let kept = Filter {
        text: Mutex::new(wanted.to_owned()),
        reload: Box::new(reload),
    };
    // Traces start once in a process: a second start fails before it comes here.
    let _first = FILTER.set(kept);
}

/// A level or a filter as `--log` takes it.
fn parse(wanted: &str) -> Result<EnvFilter, String> {
    EnvFilter::try_new(wanted)
        .map_err(|error| format!("{error}; give off, error, warn, info, debug, trace or a filter"))
}

/// The filter in use; `None` if traces have not begun.
pub fn current() -> Option<String> {
    let text = FILTER.get()?.text.lock();
    Some(text.unwrap_or_else(PoisonError::into_inner).clone())
}

/// Uses another filter from here on, of the form that `--log` takes.
///
/// # Errors
/// It is no filter, or traces have not begun; the old one stays in use. For people.
pub fn change(wanted: &str) -> Result<(), String> {
    let filter = FILTER.get().ok_or("traces have not begun")?;
    let parsed = parse(wanted)?;
    let mut text = filter.text.lock().unwrap_or_else(PoisonError::into_inner);
    (filter.reload)(parsed)?;
    wanted.clone_into(&mut text);
    Ok(())
}

/// Begins to write traces; `level` holds when `--log` says nothing.
///
/// # Errors
/// `--log` is no level and no filter.
pub fn start(global: &Global, level: &str) -> Result<(), Failure> {
    let wanted = global.log.as_deref().unwrap_or(level);
    let filter =
        parse(wanted).map_err(|error| Failure::usage(format!("--log {wanted:?}: {error}")))?;
    let builder = fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        // The report of a failed write would go to standard error too, and panic.
        .log_internal_errors(false);
    let started = match global.log_format {
        LogFormat::Text => {
            let builder = builder
                .with_ansi(std::io::stderr().is_terminal())
                .with_filter_reloading();
            let handle = builder.reload_handle();
            builder.try_init().map(|()| keep(wanted, handle))
        }
        LogFormat::Json => {
            let builder = builder.json().flatten_event(true).with_filter_reloading();
            let handle = builder.reload_handle();
            builder.try_init().map(|()| keep(wanted, handle))
        }
    };
    started.map_err(|error| Failure::new(format!("cannot write traces: {error}")))
}
