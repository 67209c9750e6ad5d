//! Which appends a full memory still takes.
//!
//! - LOG-7: an append never waits. A group that does not fit is refused with a delay.
//! - LOG-8: objects leave the last seglets to tombstones, so a delete works when objects are
//!   refused.

use super::AppendClass;
use crate::error::{AppendError, FullReason};
use crate::geometry::Geometry;
use crate::segments::Storage;
use core::sync::atomic::{AtomicBool, Ordering};
use core::time::Duration;
use pluvio_format::Encoded;

/// After this the cleaner has usually finished a pass over a few segments.
const RETRY_AFTER_CLEANING: Duration = Duration::from_millis(2);
/// Only somebody's delete helps; there is no use in asking often.
const RETRY_AFTER_DELETING: Duration = Duration::from_millis(100);

/// See the module.
#[derive(Default)]
pub(crate) struct Admission {
    /// Live objects were at their limit when a seglet was taken last: what makes them more is
    /// looked at each time.
    at_live_limit: AtomicBool,
    /// An append failed for want of seglets or slots since the last pass began.
    cleaning_wanted: AtomicBool,
}

impl Admission {
    /// Whether live objects were at their limit when that was looked at last.
    #[inline(always)]
    pub(crate) fn is_at_live_limit(&self) -> bool {
        self.at_live_limit.load(Ordering::Relaxed)
    }

    /// Whether an append was refused since this was asked last.
    pub(crate) fn take_wanted(&self) -> bool {
        self.cleaning_wanted.swap(false, Ordering::Relaxed)
    }

    /// What was wanted is wanted still.
    pub(crate) fn want_cleaning(&self) {
        self.cleaning_wanted.store(true, Ordering::Relaxed);
    }

    /// Live objects are looked at only when a seglet is taken, or when they were at the limit at
    /// the last look. So the limit holds to 64 KiB a log, and the usual append does not read every
    /// log's counter.
    pub(crate) fn check_live_limit(
        &self,
        storage: &Storage,
        class: AppendClass,
        encoded: &[Encoded<'_>],
    ) -> Result<(), AppendError> {
        let live = storage.live_bytes();
        let at_limit = live >= storage.geometry.limits.live_bytes;
        // The load keeps the line shared.
        if self.at_live_limit.load(Ordering::Relaxed) != at_limit {
            self.at_live_limit.store(at_limit, Ordering::Relaxed);
        }
        let growth = growth(class, encoded);
        let limit = if growth <= u64::from(class.graves_bytes()) {
            storage.geometry.limits.live_bytes_with_graves
        } else {
            storage.geometry.limits.live_bytes
        };
        if growth == 0 || live + growth <= limit {
            return Ok(());
        }
        // The bytes of dropped segments (an aborted side log's) count until these are freed.
        if storage.reclaim() > 0 && storage.live_bytes() + growth <= limit {
            return Ok(());
        }
        Err(self.full(FullReason::LiveObjects))
    }

    /// An error for a full memory; tells the cleaner when it can help.
    pub(crate) fn full(&self, why: FullReason) -> AppendError {
        let retry_after = match why {
            FullReason::LiveObjects => RETRY_AFTER_DELETING,
            FullReason::Seglets | FullReason::Segments => {
                self.want_cleaning();
                RETRY_AFTER_CLEANING
            }
        };
        AppendError::Full { retry_after, why }
    }
}

/// Seglets of the default pool that an append has to leave to others.
pub(crate) fn seglets_left_by(
    geometry: &Geometry,
    class: AppendClass,
    encoded: &[Encoded<'_>],
) -> usize {
    match class {
        AppendClass::Normal => geometry.reserves_of_growth(),
        AppendClass::Replace { .. } if growth(class, encoded) > u64::from(class.graves_bytes()) => {
            geometry.reserves_of_growth()
        }
        AppendClass::Replace { .. } | AppendClass::Replay | AppendClass::Outcome => {
            geometry.reserves.delete
        }
        AppendClass::Delete | AppendClass::Internal => 0,
    }
}

/// Bytes by which an append makes live objects more, at most.
fn growth(class: AppendClass, encoded: &[Encoded<'_>]) -> u64 {
    let replaced = match class {
        AppendClass::Normal => 0,
        AppendClass::Replace { old_bytes, .. } => old_bytes as usize,
        AppendClass::Replay
        | AppendClass::Delete
        | AppendClass::Outcome
        | AppendClass::Internal => return 0,
    };
    let added: usize = encoded
        .iter()
        .filter(|e| e.kind().is_object())
        .map(Encoded::len)
        .sum();
    added.saturating_sub(replaced) as u64
}
