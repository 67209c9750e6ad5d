//! Accounts: what servers have is what somebody uses.

use pluvio_units::ServerId;

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
    /// Frames that its backup holds.
    pub frames: u64,
    /// Replicas that its master wants, of all segments.
    pub replicas_wanted: u64,
    /// Places at backups that may have a replica of one of its master's segments.
    pub places: u64,
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
    /// One more object, with so many bytes of key and value.
    pub fn add(&mut self, bytes: usize) {
        self.objects += 1;
        self.bytes += bytes as u64;
    }
}

/// What need not add up, for a reason that the harness knows.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Allowed {
    /// Segments may lack replicas for good.
    pub lacking_replicas: bool,
    /// Frames that were damaged are kept, so that people can look at them.
    pub damaged_frames: bool,
}

/// What does not add up: frames that are no replica of any segment, missing ones, or more memory in use than there is. Holds only when
/// nothing is under way.
#[must_use]
pub fn not_accounted_for(accounts: &[Account], allowed: Allowed) -> Option<String> {
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
    let sum = |what: fn(&Account) -> u64| accounts.iter().map(what).sum::<u64>();
    let (frames, replicas) = (sum(|a| a.frames), sum(|a| a.replicas_wanted));
    let places = sum(|a| a.places);
    let enough = replicas <= frames || allowed.lacking_replicas;
    let add_up = enough && (frames <= places || allowed.damaged_frames);
    (!add_up).then(|| {
        format!("{frames} frames for {replicas} replicas that are wanted, at {places} places")
    })
}

/// What servers hold and nobody finds, or the other way round. Holds only when nothing is under way, and nothing has changed since `found`.
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
