//! Waiting for a state of another process, with a limit far above what is usual.

use std::time::{Duration, Instant};

/// Longer than anything that a test waits for takes, on a machine that does much else.
pub const LONG: Duration = Duration::from_secs(60);
/// Between two looks: short beside what is waited for, long beside what a look costs.
const PAUSE: Duration = Duration::from_millis(10);

/// A moment after which waiting is over.
#[derive(Clone, Copy)]
pub struct Deadline(Instant);

impl Deadline {
    /// From now on.
    #[allow(
        clippy::disallowed_methods,
        reason = "the clock of other processes is the real one"
    )]
    pub fn after(limit: Duration) -> Self {
        Self(Instant::now() + limit)
    }

    /// What is left.
    #[allow(
        clippy::disallowed_methods,
        reason = "the clock of other processes is the real one"
    )]
    pub fn left(self) -> Duration {
        self.0.saturating_duration_since(Instant::now())
    }

    /// Whether nothing is left.
    pub fn over(self) -> bool {
        self.left().is_zero()
    }
}

/// Measures how long something takes.
#[derive(Clone, Copy)]
pub struct Watch(Instant);

impl Watch {
    /// From now on.
    #[allow(
        clippy::disallowed_methods,
        reason = "the clock of other processes is the real one"
    )]
    pub fn start() -> Self {
        Self(Instant::now())
    }

    /// The time since the start.
    #[allow(
        clippy::disallowed_methods,
        reason = "the clock of other processes is the real one"
    )]
    pub fn passed(self) -> Duration {
        Instant::now().saturating_duration_since(self.0)
    }
}

/// Lets other processes run.
#[allow(
    clippy::disallowed_methods,
    reason = "another process gives no signal when it reaches a state"
)]
pub fn pause(time: Duration) {
    std::thread::sleep(time);
}

/// Looks with `probe` until it gives something. Its errors say what is still missing; the last
/// one is in the panic at the limit.
#[track_caller]
pub fn wait_for<T>(what: &str, mut probe: impl FnMut() -> Result<T, String>) -> T {
    let deadline = Deadline::after(LONG);
    loop {
        match probe() {
            Ok(found) => return found,
            Err(missing) if deadline.over() => {
                panic!("waited {LONG:?} for this: {what}; at last: {missing}")
            }
            Err(_) => pause(PAUSE),
        }
    }
}
