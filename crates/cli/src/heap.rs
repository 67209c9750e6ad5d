//! Memory that was freed goes back to the system after a burst of large requests and replies.

use pluvio_env::{Clock, Tasks};
use pluvio_memory::{bound_heap, give_back_heap};
use pluvio_server::ClientMemory;
use std::sync::Arc;
use std::time::Duration;

/// Between two looks: "within seconds".
const LOOK_PAUSE: Duration = Duration::from_secs(1);
/// So much less than at the peak is worth a call.
const FREED_BYTES_MIN: u64 = 16 << 20;

/// Bounds what the heap keeps where [`keep_small`] does not reach it.
pub fn bound() {
    let is_bound = bound_heap();
    tracing::debug!(is_bound, "bounded what the heap keeps");
}

/// Gives freed memory back whenever the connections hold much less than they did, and once more at
/// the next look. A connection counts its buffers no more a moment before they are free. Runs as
/// long as the process.
pub async fn keep_small(clock: Arc<dyn Clock>, tasks: Arc<dyn Tasks>, memory: Arc<ClientMemory>) {
    let mut peak = 0;
    let mut once_more = false;
    loop {
        clock.sleep(LOOK_PAUSE).await;
        // The most since the last look: under a steady load what is freed is used again at once.
        let most = memory.take_peak();
        let has_fallen = most + FREED_BYTES_MIN <= peak;
        peak = if has_fallen { most } else { peak.max(most) };
        if has_fallen || once_more {
            let give_back = || {
                let is_any = give_back_heap();
                tracing::debug!(is_any, "gave free memory back to the system");
            };
            tasks.run_blocking(Box::new(give_back)).await;
        }
        once_more = has_fallen;
    }
}
