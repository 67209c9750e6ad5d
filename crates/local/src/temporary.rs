//! For commands that run a cluster for a while: a directory that is removed at the end, and an
//! earlier end by a signal.

use crate::KILL_PAUSE;
use pluvio_console::failure::Failure;
use pluvio_console::output::say;
use pluvio_console::session::with_runtime;
use pluvio_console::tls::TlsArgs;
use pluvio_env::Env;
use pluvio_env_os::StopSignals;
use tempfile::TempDir;

/// A new directory, called `prefix` and something.
///
/// # Errors
/// There is no room for it; `instead` says what else to do.
pub fn directory(prefix: &str, instead: &str) -> Result<TempDir, Failure> {
    let made = tempfile::Builder::new().prefix(prefix).tempdir();
    made.map_err(|error| {
        Failure::new(format!(
            "cannot make a temporary directory: {error}; {instead}"
        ))
    })
}

/// Removes it; says so when that is not possible.
pub fn remove(directory: TempDir) {
    if let Err(error) = directory.close() {
        say(format_args!("cannot remove the temporary data: {error}"));
    }
}

/// Removes it, unless `failure` names something in it: somebody will look there.
pub fn end(directory: TempDir, failure: Option<&Failure>) {
    let path = directory.path().display().to_string();
    match failure.is_some_and(|failure| failure.to_string().contains(&path)) {
        true => {
            let _path = directory.keep();
        }
        false => remove(directory),
    }
}

/// Runs `work` on an event loop of its own until it ends, or until SIGINT or SIGTERM comes. A
/// signal drops it, and with it the processes that it has started.
///
/// # Errors
/// What `work` gives, or that it was stopped.
pub fn until_stopped<T, F>(
    tls: &TlsArgs,
    work: impl FnOnce(Env) -> F + Send + 'static,
) -> Result<T, Failure>
where
    T: Send + 'static,
    F: Future<Output = Result<T, Failure>> + Send + 'static,
{
    with_runtime(1, tls, move |env| async move {
        let mut signals = StopSignals::new()
            .map_err(|error| Failure::new(format!("cannot receive signals: {error}")))?;
        let stopped = tokio::select! {
            biased;
            signal = signals.next() => signal,
            result = work(env.clone()) => return result,
        };
        // The processes were killed with their handles.
        env.clock.sleep(KILL_PAUSE).await;
        Err(Failure::new(format!("stopped by {stopped}")))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_failure_names_is_kept() {
        let made = || {
            let directory = directory("pluvio-test-", "set TMPDIR").unwrap();
            (directory.path().to_owned(), directory)
        };
        let (path, directory) = made();
        let trace = path.join("logs/x.log");
        let named = Failure::new(format!("its trace is {}", trace.display()));
        end(directory, Some(&named));
        assert!(path.exists());
        std::fs::remove_dir_all(path).unwrap();
        for failure in [None, Some(&Failure::new("no port is free"))] {
            let (path, directory) = made();
            end(directory, failure);
            assert!(!path.exists());
        }
    }
}
