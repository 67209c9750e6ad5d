//! Which processors a thread may run on.

use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

/// Binds the calling thread to the `index`-th processor that the process may use, counted
/// round when there are fewer. Gives the processor's number.
///
/// # Errors
/// The kernel refuses, for example inside a sandbox. The thread then runs on as before.
pub(crate) fn pin_current_thread(index: usize) -> rustix::io::Result<usize> {
    let allowed = sched_getaffinity(None)?;
    let processors: Vec<usize> = (0..CpuSet::MAX_CPU)
        .filter(|&n| allowed.is_set(n))
        .collect();
    let chosen = match processors.len() {
        0 => return Err(rustix::io::Errno::INVAL),
        count => processors[index % count],
    };
    let mut only = CpuSet::new();
    only.set(chosen);
    sched_setaffinity(None, &only)?;
    Ok(chosen)
}
