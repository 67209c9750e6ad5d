//! What the system says of a process's memory.

use std::fs;

/// Bytes of a process (this one without an id) that are in memory; 0 when the system does not say.
pub(crate) fn resident(process: Option<u32>) -> u64 {
    let path = match process {
        Some(id) => format!("/proc/{id}/smaps_rollup"),
        None => "/proc/self/smaps_rollup".into(),
    };
    let text = fs::read_to_string(path).unwrap_or_default();
    let line = text.lines().find_map(|line| line.strip_prefix("Rss:"));
    let kib = line.and_then(|rest| rest.trim().strip_suffix("kB")?.trim().parse::<u64>().ok());
    kib.unwrap_or(0) << 10
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_process_is_in_memory() {
        let before = resident(None);
        assert!(before > 1 << 20, "{before}");
        let touched = vec![1u8; 64 << 20];
        let grown = resident(None) - before;
        assert!(grown > 60 << 20, "{grown} of {}", touched.len());
    }
}
