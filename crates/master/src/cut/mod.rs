//! The master's part in a cut: all objects of a cluster as they are at one moment, for an archive.
//! Crate `client` goes through the steps (`docs/backup-and-restore.md`).
//!
//! 1. *Track*: changes of a tablet are noted from now on.
//! 2. *Changes*: what the noted keys are now.
//! 3. *Hold*: changes are refused. When those that had begun have ended, and no tracked key is
//!    locked, what is noted is copied.
//! 4. *Resume*: changes are taken again. Was none taken since the hold?
//! 5. *Copies*: what was copied, once this master's logs are durable up to the hold.
//!
//! - CUT-1: a change of a tracked tablet that takes effect after the answer to *track* is noted.
//!   The note stays until it was asked for and confirmed. Reads behind that answer and the
//!   notes together are the tablet.
//! - CUT-2: a tablet is tracked in the map of tablets (TAB-2). So it is no more when it leaves, and
//!   a later stay has another number. Of two tablets with different numbers that are joined, none
//!   is left.
//! - CUT-3: *resume* says that nothing changed only if the hold has not ended, and this master may
//!   serve (MASTER-4). All that the hold named must still be tracked and served here. So from the
//!   answer to *hold* to the request to resume nobody has changed any of it.
//! - CUT-4: while it is held, none of the tracked keys is locked. So of a transaction of several
//!   owners either all of these keys are as it left them, or none is.
//! - CUT-5: a hold ends by itself ([`HOLD_MAX`]), and a session does ([`LEASE`]): a backup that is
//!   gone stops nobody.
//! - CUT-6: copies are given when all that the logs had at the hold is durable. Then all changes
//!   that were told before are durable, too.
//! - CUT-7: notes are bounded. At the bound the session is lost, and no change waits for it.
//!
//! One session at a time. Threads: as [`Master`]; the lock is held for single steps.
//!
//! Not here: which masters are asked, and whether they have all tablets.

mod copy;
mod sessions;
mod steps;

pub(crate) use sessions::Cuts;

use crate::master::{Master, Served};
use crate::migrate::Leaving;
use pluvio_mutation::Outcome;
use pluvio_units::TableId;
use pluvio_wire::{Refusal, RetryReason};
use std::sync::Arc;
use std::time::Duration;

/// How long a session lives without a request of its backup.
const LEASE: Duration = Duration::from_secs(30);
/// No hold is longer, whatever is asked: clients wait so long.
const HOLD_MAX: Duration = Duration::from_secs(1);
/// Most notes that are copied during a hold. They take some milliseconds.
const HOLD_NOTES_MAX: usize = 2048;
/// Most bytes that are copied during a hold.
const HOLD_BYTES_MAX: usize = 16 << 20;
/// When a change that meets a hold is to come again.
const HELD_RETRY: Duration = Duration::from_millis(1);

/// Where a change is to be noted once it has taken effect.
pub(crate) struct Noting {
    leaving: Option<Arc<Leaving>>,
    cut: Option<(Arc<Cuts>, TableId, u64)>,
}

impl Noting {
    /// A change has taken effect.
    pub(crate) fn note(&self, key: &[u8], outcome: &Outcome) {
        if let Some(leaving) = &self.leaving {
            leaving.note(key, outcome);
        }
        if let Some((cuts, table, track)) = &self.cut {
            match outcome {
                Outcome::Written { .. } | Outcome::Deleted { .. } | Outcome::Together { .. } => {
                    cuts.note(*table, *track, key);
                }
                Outcome::Unchanged { .. } | Outcome::Rejected { .. } | Outcome::Refused(_) => {}
            }
        }
    }
}

impl Master {
    /// Where a change of this key is to be noted.
    ///
    /// # Errors
    /// `Retry` when there is no room for the note of a tablet that leaves (MOVE-4).
    pub(crate) fn noting(&self, served: &Served<'_>) -> Result<Noting, Refusal> {
        let leaving = self.leaving.of(served)?;
        let cut = served.tracked.map(|tracked| {
            let cuts = Arc::clone(&self.cuts);
            (cuts, served.table.id(), tracked.number)
        });
        Ok(Noting { leaving, cut })
    }

    /// The refusal of a change while changes of its tablet are held.
    #[inline]
    pub(crate) fn not_held_by_cut(&self, served: &Served<'_>) -> Result<(), Refusal> {
        match served.tracked {
            Some(tracked) if tracked.is_held && self.cuts.holds(self.monotonic()) => {
                pluvio_units::mark("cut-holds-change");
                Err(Refusal::retry(HELD_RETRY, RetryReason::NotReady))
            }
            Some(_) | None => Ok(()),
        }
    }

    /// How often changes were held so far, and for how long altogether.
    #[must_use]
    pub fn held(&self) -> (u64, Duration) {
        self.cuts.held()
    }
}
