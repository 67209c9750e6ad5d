//! CONFIG: parameters that clients ask for. They come from the configuration of the server and
//! are read only; `docs/redis.md` says what stands for what.

use crate::database::DATABASES;
use crate::glob;
use crate::parser::Command;
use crate::reply::{Failure, Reply};
use crate::shared::Core;
use std::collections::BTreeMap;

pub(super) const NO_FILE: Failure =
    Failure::fixed("ERR The server is running without a config file");

/// All parameters and their values now, by name.
fn parameters(core: &Core) -> BTreeMap<&'static str, String> {
    let options = core.options();
    let status = core.shared.status();
    let durable = if status.replicas_wanted > 0 {
        "yes"
    } else {
        "no"
    };
    let clustered = match options.cluster {
        Some(_) => "yes",
        None => "no",
    };
    BTreeMap::from([
        (
            "appendfsync",
            if options.synced { "always" } else { "no" }.to_owned(),
        ),
        ("appendonly", durable.to_owned()),
        ("cluster-enabled", clustered.to_owned()),
        ("databases", DATABASES.to_string()),
        ("hz", "10".to_owned()),
        ("lazyfree-lazy-user-del", "yes".to_owned()),
        ("lazyfree-lazy-user-flush", "yes".to_owned()),
        ("maxclients", options.connections_max.to_string()),
        ("maxmemory", status.memory_total.to_string()),
        ("maxmemory-clients", options.memory.bound().to_string()),
        ("maxmemory-policy", "noeviction".to_owned()),
        ("min-replicas-to-write", status.replicas_needed.to_string()),
        ("notify-keyspace-events", String::new()),
        ("port", core.shared.port().to_string()),
        (
            "proto-max-bulk-len",
            options.limits.bulk_bytes_max.to_string(),
        ),
        ("requirepass", String::new()),
        ("save", String::new()),
        ("slowlog-log-slower-than", "-1".to_owned()),
        ("slowlog-max-len", "0".to_owned()),
        ("tcp-keepalive", "300".to_owned()),
        ("timeout", "0".to_owned()),
    ])
}

/// Names are answered as they were asked for, in that order; patterns after them by name.
pub(super) fn get(core: &Core, command: &Command) -> Reply {
    let mut left = parameters(core);
    let mut pairs = Vec::new();
    for name in command.from(2) {
        let lower = String::from_utf8_lossy(name).to_ascii_lowercase();
        if let Some(value) = left.remove(lower.as_str()) {
            pairs.push((Reply::copy(name), Reply::Bulk(value.into())));
        }
    }
    let wanted = |name: &str| {
        let mut patterns = command.from(2);
        patterns.any(|pattern| glob::matches_any_case(pattern, name.as_bytes()))
    };
    let found = left.into_iter().filter(|(name, _)| wanted(name));
    pairs.extend(found.map(|(name, value)| (Reply::Text(name), Reply::Bulk(value.into()))));
    Reply::Map(pairs)
}

/// Always refused, in the form Redis has for parameters it does not know or cannot change.
pub(super) fn set(core: &Core, command: &Command) -> Failure {
    let known = parameters(core);
    let pairs: Vec<_> = (2..command.len()).step_by(2).collect();
    let unknown = |at: &&usize| {
        let name = command.get(**at).to_ascii_lowercase();
        let is_there = known.keys().any(|k| k.as_bytes() == name);
        !is_there || **at + 1 >= command.len()
    };
    if let Some(at) = pairs.iter().find(unknown) {
        let text = "ERR Unknown option or number of arguments for CONFIG SET - '";
        return Failure::new([text.as_bytes(), command.get(*at), b"'"].concat());
    }
    let first = String::from_utf8_lossy(command.get(2)).into_owned();
    Failure::new(format!(
        "ERR CONFIG SET failed (possibly related to argument '{first}') - can't set immutable config"
    ))
}
