//! Limits that the kernel puts on the process.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Raises the number of files and sockets this process may have open to the hard limit, which the
/// administrator sets. Gives the number in force afterwards. A runtime does this at its start,
/// because the usual soft limit of 1024 is less than the connections of a busy server.
pub fn raise_open_files() -> u64 {
    let limit = getrlimit(Resource::Nofile);
    if limit.current == limit.maximum {
        return limit.current.unwrap_or(u64::MAX);
    }
    let wanted = Rlimit {
        current: limit.maximum,
        maximum: limit.maximum,
    };
    match setrlimit(Resource::Nofile, wanted) {
        Ok(()) => limit.maximum.unwrap_or(u64::MAX),
        Err(error) => {
            tracing::warn!(%error, limit = ?limit.current, "cannot raise the limit of open files");
            limit.current.unwrap_or(u64::MAX)
        }
    }
}
