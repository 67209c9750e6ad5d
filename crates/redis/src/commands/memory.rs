//! MEMORY: what the store and its connections take.

use crate::reply::Reply;
use crate::shared::Core;

/// MEMORY STATS: the fields of Redis that there are numbers for.
pub(super) fn stats(core: &Core) -> Reply {
    let status = core.shared.status();
    let clients = core.options().memory.stats();
    let total = status.memory_log + status.memory_index;
    let overhead = total.saturating_sub(status.memory_live);
    let each = status.memory_live.checked_div(status.objects).unwrap_or(0);
    let pairs = [
        ("total.allocated", total),
        ("clients.normal", clients.used),
        ("overhead.total", overhead),
        ("keys.count", status.objects),
        ("keys.bytes-per-key", each),
        ("dataset.bytes", status.memory_live),
        ("pluvio.log", status.memory_log),
        ("pluvio.live", status.memory_live),
        ("pluvio.index", status.memory_index),
        ("pluvio.log.max", status.memory_total),
        ("pluvio.clients.max", clients.bound),
    ];
    let pairs = pairs.map(|(name, value)| (Reply::Text(name), Reply::count(value)));
    Reply::Map(pairs.to_vec())
}

/// Live bytes of the log, of a hundred, from which on the cleaner has much to do.
const FULL_PERCENT: u64 = 90;

/// MEMORY DOCTOR.
pub(super) fn doctor(core: &Core) -> Reply {
    let status = core.shared.status();
    let clients = core.options().memory.stats();
    let mut words = Vec::new();
    if status.memory_live.saturating_mul(100) >= status.memory_total.saturating_mul(FULL_PERCENT) {
        words.push(format!(
            "Live objects take {} of {} bytes of the log: add memory or servers, or delete.",
            status.memory_live, status.memory_total
        ));
    }
    if clients.used.saturating_mul(2) >= clients.bound {
        words.push(format!(
            "Connections hold {} of {} bytes: large replies wait for each other.",
            clients.used, clients.bound
        ));
    }
    if let Some(why) = status.writes_wait {
        words.push(format!("Writes wait: {why}."));
    }
    if words.is_empty() {
        words.push("Nothing is wrong with the memory of this server.".to_owned());
    }
    Reply::Verbatim(words.join("\n") + "\n")
}

/// MEMORY MALLOC-STATS.
pub(super) fn allocator() -> Reply {
    Reply::Text("Stats not supported for the current allocator")
}
