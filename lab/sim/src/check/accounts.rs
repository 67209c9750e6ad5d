//! Accounts: what servers have is what somebody uses.

use pluvio_units::{SegmentId, ServerId};
use std::collections::BTreeMap;

/// What one server says that it has, and that its master uses.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Account {
    /// Whose.
    pub server: ServerId,
    /// Log memory it may use, in bytes.
    pub memory_total: u64,
    /// Bytes of it in segments.
    pub memory_log: u64,
    /// Bytes of it in live entries.
    pub memory_live: u64,
    /// Objects of its master.
    pub objects: u64,
    /// Keys' and values' bytes of those.
    pub object_bytes: u64,
    /// Frames that its backup holds, by master and segment, and whether they are of any use.
    pub frames: BTreeMap<(ServerId, SegmentId), bool>,
    /// Whether some may be damaged. Those are kept, so that people can look at them.
    pub may_be_damaged: bool,
    /// Replicas that its master wants, of all segments.
    pub replicas_wanted: u64,
    /// Places at backups that may have a replica of one of its master's segments, and whether it
    /// counts.
    pub places: BTreeMap<(ServerId, SegmentId), bool>,
}

/// What clients find when they go through all tables.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Contents {
    /// Objects.
    pub objects: u64,
    /// Keys' and values' bytes of those.
    pub bytes: u64,
}

impl Contents {
    /// One more object, with `bytes` of key and value.
    pub fn add(&mut self, bytes: usize) {
        self.objects += 1;
        self.bytes += bytes as u64;
    }
}

/// What does not add up: frames that are no replica of any segment, replicas without a frame,
/// missing ones, or more memory in use than there is. Segments may lack replicas where
/// `may_lack_replicas`. Holds only when nothing is under way.
#[must_use]
pub fn not_accounted_for(accounts: &[Account], may_lack_replicas: bool) -> Option<String> {
    let in_order = |a: &Account| {
        let bytes = [a.object_bytes, a.memory_live, a.memory_log, a.memory_total];
        bytes.is_sorted()
    };
    if let Some(a) = accounts.iter().find(|a| !in_order(a)) {
        return Some(format!(
            "server {}: {} bytes of objects, {} bytes live, {} in segments, {} in all",
            a.server, a.object_bytes, a.memory_live, a.memory_log, a.memory_total
        ));
    }
    let of = |server| accounts.iter().find(|a| a.server == server);
    for backup in accounts {
        for ((master, segment), useful) in &backup.frames {
            let place = (backup.server, *segment);
            let wanted = of(*master).is_some_and(|m| m.places.contains_key(&place));
            let problem = match (useful, wanted) {
                (true, true) => continue,
                (true, false) => "is no replica of any segment",
                (false, _) if backup.may_be_damaged => continue,
                (false, _) => "is damaged",
            };
            return Some(format!(
                "the frame of segment {segment} of server {master} on server {} {problem}",
                backup.server
            ));
        }
    }
    for master in accounts {
        let replicas = { master.places.iter() }.filter(|(_, counts)| **counts);
        let number = replicas.clone().count() as u64;
        if number < master.replicas_wanted && !may_lack_replicas {
            return Some(format!(
                "server {} has {number} replicas and wants {}",
                master.server, master.replicas_wanted
            ));
        }
        for ((backup, segment), _) in replicas {
            let frame = of(*backup).and_then(|b| b.frames.get(&(master.server, *segment)));
            if frame != Some(&true) {
                return Some(format!(
                    "server {} takes server {backup} for one that has segment {segment}, and it has none",
                    master.server
                ));
            }
        }
    }
    None
}

/// What servers hold and nobody finds, or the other way round. Holds only when nothing is under
/// way, and nothing has changed since `found`.
#[must_use]
pub fn not_found(accounts: &[Account], found: Contents) -> Option<String> {
    let held = Contents {
        objects: accounts.iter().map(|a| a.objects).sum(),
        bytes: accounts.iter().map(|a| a.object_bytes).sum(),
    };
    (held != found).then(|| {
        format!(
            "servers count {} objects of {} bytes, clients find {} of {}",
            held.objects, held.bytes, found.objects, found.bytes
        )
    })
}
