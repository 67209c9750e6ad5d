//! The questions of HOTKEYS to the server in whose process the Redis port is.

use core::time::Duration;
use pluvio_units::TableId;
use std::collections::BTreeMap;
use std::sync::Arc;

/// A table's keys that made most traffic.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct HotTable {
    /// Bytes of keys and values of all operations on the table.
    pub bytes: u64,
    /// Keys, as far as they are remembered, and their bytes; most first.
    pub keys: Vec<(Vec<u8>, u64)>,
}

/// What a session of HOTKEYS has seen.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct HotSession {
    /// Whether it goes on.
    pub is_active: bool,
    /// How many keys its starter wanted to see.
    pub count: usize,
    /// How long ago it began.
    pub since_start: Duration,
    /// How long it has lasted.
    pub lasted: Duration,
    /// The mean distance between samples, in operations.
    pub one_in: u32,
    /// By table, of all tables of the server.
    pub tables: BTreeMap<TableId, HotTable>,
}

/// Notes which keys of a server make most traffic. Called on any event loop; must not block.
pub trait HotKeys: Send + Sync {
    /// Begins a session, for this time or until it is stopped. `count`: how many keys its starter
    /// wants to see. False: one is on.
    fn start(&self, count: usize, lasts: Option<Duration>) -> bool;
    /// Ends the session. False: none is on.
    fn stop(&self) -> bool;
    /// Forgets the session. False: it is on.
    fn reset(&self) -> bool;
    /// What the latest session has seen.
    fn session(&self) -> Option<HotSession>;
}

/// The [`HotKeys`] of a server, as an option.
#[derive(Clone)]
pub struct HotKeysOf(pub(crate) Arc<dyn HotKeys>);

impl HotKeysOf {
    /// Of this server.
    #[must_use]
    pub fn new(server: Arc<dyn HotKeys>) -> Self {
        Self(server)
    }
}

impl core::fmt::Debug for HotKeysOf {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("HotKeysOf").finish_non_exhaustive()
    }
}
