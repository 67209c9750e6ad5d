//! Deadlines in an embedded store: the clock that they are judged by, and the sweep by which memory
//! comes back.
//!
//! The threads that clean drive the sweep: each does a slice of it before each of its own steps,
//! and so does [`Store::clean_step`](crate::Store::clean_step). An idle cleaner thread looks some
//! thirty times a second. Reads and writes do not depend on that: they judge deadlines themselves.

use crate::embedded::sink::Deletions;
use crate::engine::{Engine, EngineError, Expired, Site};
use crate::expiry::{DeadlineTime, Place};
use core::time::Duration;
use pluvio_env::host::Host;
use pluvio_log::Awaited;
use pluvio_units::LogId;
use std::sync::Arc;

/// Keys that one slice drops at most: as long as a short step of the cleaner.
const KEYS_PER_SLICE: usize = 256;

/// The log that horizons and the tombstones of dropped objects go to. Every store has it.
const LOG: LogId = LogId(0);

/// The host's clocks.
struct HostTime(Arc<dyn Host>);

impl DeadlineTime for HostTime {
    fn monotonic(&self) -> Duration {
        self.0.monotonic()
    }

    fn wall(&self) -> Duration {
        self.0.unix_time()
    }
}

/// Drops what has expired.
pub(crate) struct Sweep {
    engine: Arc<Engine>,
    deletions: Arc<Deletions>,
}

impl Sweep {
    /// Starts the clock of an engine that is new.
    pub(crate) fn start(
        engine: &Arc<Engine>,
        host: &Arc<dyn Host>,
        deletions: &Arc<Deletions>,
    ) -> Self {
        engine.expiry().start(Box::new(HostTime(Arc::clone(host))));
        Self {
            engine: Arc::clone(engine),
            deletions: Arc::clone(deletions),
        }
    }

    /// Does a slice; gives whether there may be more to do now.
    pub(crate) fn step(&self) -> bool {
        let engine = &self.engine;
        // The clock follows the wall clock before there is any deadline, too.
        engine.tend_horizon(LOG);
        if !engine.expiry().is_used() {
            return false;
        }
        engine.walk_for_deadlines();
        let due = engine.due(KEYS_PER_SLICE);
        let is_more = due.len() == KEYS_PER_SLICE;
        let mut has_room = true;
        for place in due {
            // Where one finds no room for its tombstones, the others wait a second, too.
            has_room = has_room && self.drop_at(place);
            if !has_room {
                engine.due_again(place);
            }
        }
        is_more && has_room
    }

    /// Drops what has expired under this hash; false when there is no room for that now.
    fn drop_at(&self, (table, hash): Place) -> bool {
        // A table that was dropped has taken its objects along.
        let Some(table) = self.engine.tables.get(table) else {
            return true;
        };
        let site = Site {
            log: LOG,
            table: &table,
            hash,
            now_s: self.engine.space().time_s(),
            only_this_log: false,
        };
        loop {
            match self.engine.drop_expired(&site, |_, _| {}) {
                Ok(Expired::Dropped(Awaited::Now(durable))) => {
                    let _outcome = self.engine.settle(&table, durable);
                }
                Ok(Expired::Dropped(Awaited::Later(appended))) => {
                    self.deletions.keep(&table, appended);
                }
                Ok(Expired::Nothing) | Err(EngineError::NotHere) => return true,
                Err(_) => return false,
            }
        }
    }
}
