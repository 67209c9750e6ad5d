//! Which processors a thread may run on, and which memory is near them.

use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use std::path::Path;

/// The processor for the `index`-th event loop: the `index`-th that the process may use, counted
/// round when there are fewer.
///
/// # Errors
/// The kernel does not say which ones these are, for example inside a sandbox.
pub(crate) fn processor_for(index: usize) -> rustix::io::Result<usize> {
    let allowed = sched_getaffinity(None)?;
    let processors: Vec<usize> = (0..CpuSet::MAX_CPU)
        .filter(|&n| allowed.is_set(n))
        .collect();
    match processors.len() {
        0 => Err(rustix::io::Errno::INVAL),
        count => Ok(processors[index % count]),
    }
}

/// Binds the calling thread to the processor for the `index`-th event loop. Gives the processor's
/// number.
///
/// # Errors
/// The kernel refuses, for example inside a sandbox. The thread then runs on as before.
pub(crate) fn pin_current_thread(index: usize) -> rustix::io::Result<usize> {
    let chosen = processor_for(index)?;
    let mut only = CpuSet::new();
    only.set(chosen);
    sched_setaffinity(None, &only)?;
    Ok(chosen)
}

/// Lets the calling thread run on these processors, if there are any. A kernel that refuses only
/// makes it slower.
pub(crate) fn run_on(processors: &[usize]) {
    let mut set = CpuSet::new();
    for &processor in processors.iter().filter(|&&p| p < CpuSet::MAX_CPU) {
        set.set(processor);
    }
    if set.count() > 0 {
        let _only_slower = sched_setaffinity(None, &set);
    }
}

/// The memory node of a processor, as Linux describes processors in `directory`; `None` when it
/// does not.
pub(crate) fn memory_node(directory: &Path, processor: usize) -> Option<u32> {
    let of_processor = directory.join(format!("cpu{processor}"));
    let entries = std::fs::read_dir(of_processor).ok()?.flatten();
    let number = |name: &str| name.strip_prefix("node")?.parse().ok();
    entries
        .filter_map(|entry| number(entry.file_name().to_str()?))
        .next()
}

/// Where Linux describes processors.
pub(crate) const PROCESSORS: &str = "/sys/devices/system/cpu";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_processor_names_its_memory_node() {
        let directory = tempfile::tempdir().unwrap();
        for path in ["cpu3/node1", "cpu3/topology", "cpu4/nodes", "cpu4/cache"] {
            std::fs::create_dir_all(directory.path().join(path)).unwrap();
        }
        let nodes = [3, 4, 5].map(|n| memory_node(directory.path(), n));
        assert_eq!(nodes, [Some(1), None, None]);
    }
}
