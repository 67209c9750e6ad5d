//! Real time, for what is measured here.

use std::time::Instant;

/// This moment.
#[inline]
#[expect(
    clippy::disallowed_methods,
    reason = "an experiment measures real time; nothing else here looks at it"
)]
pub(crate) fn now() -> Instant {
    Instant::now()
}
