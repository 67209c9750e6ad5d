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
use tracing_subscriber::filter::LevelFilter;
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
    let wrong = |what: String| {
        format!(
            "{what}; give off, error, warn, info, debug, trace or a filter such as info,pluvio_server=debug"
        )
    };
    // A filter takes any word for the name of a crate. So a slip of the pen would silence all.
    let is_slip = |part: &&str| {
        let is_level = part.parse::<LevelFilter>().is_ok();
        part.is_empty() || !is_level && !part.contains(['=', '[']) && !part.starts_with("pluvio")
    };
    if let Some(slip) = wanted.split(',').map(str::trim).find(is_slip) {
        return Err(wrong(format!("{slip:?} is no level")));
    }
    EnvFilter::try_new(wanted).map_err(|error| wrong(error.to_string()))
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slip_of_the_pen_is_no_filter() {
        for wanted in [
            "info",
            "WARN",
            "off",
            "info,pluvio_server=debug",
            "pluvio_redis",
            "info,h2=off",
        ] {
            assert!(parse(wanted).is_ok(), "{wanted}");
        }
        for slip in ["inof", "wran", "nonsense!!", "info,debgu", "", "info,"] {
            let why = parse(slip).unwrap_err();
            assert!(why.contains("give off, error"), "{slip}: {why}");
        }
    }
}
