//! Memory out of the log that a reader may still see.
//!
//! - LOG-5: freed memory is used again only when every guard taken before has been dropped.

use super::OnTheirWay;
use super::segment::Segment;
use core::mem;
use pluvio_memory::{ReclaimEpochs, ReclaimStamp};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Memory out of the log that a guard may still protect.
pub(crate) enum Retired {
    /// All of a segment.
    Segment(Arc<Segment>),
    /// The seglets that a compaction replaced.
    Seglets(Vec<u32>),
}

/// Retired memory that is not free yet, each piece with the epoch that must be over.
#[derive(Default)]
pub(crate) struct RetiredList(Mutex<Vec<(ReclaimStamp, Retired)>>);

impl RetiredList {
    pub(crate) fn push(&self, retired: Retired, epochs: &ReclaimEpochs) {
        let stamp = epochs.retire_epoch();
        self.locked().push((stamp, retired));
    }

    /// Takes what no guard protects any more.
    pub(crate) fn take_ready(&self, epochs: &ReclaimEpochs) -> Vec<Retired> {
        let mut list = self.locked();
        if list.is_empty() {
            return Vec::new();
        }
        let frontier = epochs.frontier();
        let (ready, waiting) = mem::take(&mut *list)
            .into_iter()
            .partition::<Vec<_>, _>(|(stamp, _)| frontier.covers(*stamp));
        *list = waiting;
        ready.into_iter().map(|(_, retired)| retired).collect()
    }

    /// Adds what is retired.
    pub(crate) fn add_to(&self, way: &mut OnTheirWay) {
        for (_, retired) in self.locked().iter() {
            match retired {
                Retired::Segment(segment) => {
                    way.seglets += segment.contents().seglets();
                    way.slots += 1;
                }
                Retired::Seglets(seglets) => way.seglets += seglets.len(),
            }
        }
    }

    fn locked(&self) -> MutexGuard<'_, Vec<(ReclaimStamp, Retired)>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
