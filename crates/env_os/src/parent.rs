//! Ending together with the process that started this one.

use rustix::process::{Pid, Signal, getppid, set_parent_process_death_signal};
use std::io;

/// Asks the kernel to kill this process when its parent `parent` dies, however it dies. Must be
/// called on the main thread: the kernel keeps the wish with the thread that has it.
///
/// Gives `false` when the parent has died already; the process should then end by itself.
///
/// # Errors
/// The kernel refuses. Not retryable.
pub fn die_with_parent(parent: u32) -> io::Result<bool> {
    set_parent_process_death_signal(Some(Signal::KILL))?;
    // Asked afterwards: a parent that died before the call above sends no signal.
    let now = getppid().map(Pid::as_raw_nonzero);
    Ok(now.is_some_and(|now| u32::try_from(now.get()) == Ok(parent)))
}
