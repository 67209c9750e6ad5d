//! Processor time that processes have taken.

use std::path::Path;

/// Microseconds that all threads of these processes have run, in user and system mode. A thread or
/// a process that is gone counts nothing.
#[must_use]
pub fn processor_us(pids: &[u32]) -> f64 {
    pids.iter().map(|pid| of_process(*pid)).sum()
}

fn of_process(pid: u32) -> f64 {
    let threads = std::fs::read_dir(format!("/proc/{pid}/task"));
    let threads = threads.into_iter().flatten().flatten();
    threads.map(|thread| of_thread(&thread.path())).sum()
}

fn of_thread(thread: &Path) -> f64 {
    let text = std::fs::read_to_string(thread.join("schedstat")).unwrap_or_default();
    let first = text.split_whitespace().next();
    let ns: f64 = first.and_then(|n| n.parse().ok()).unwrap_or(0.0);
    ns / 1e3
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_of_this_process_grows() {
        let me = [std::process::id()];
        let before = processor_us(&me);
        let mut sum = 0u64;
        while processor_us(&me) == before {
            sum = (0..1_000_000u64).fold(sum, |sum, n| sum.wrapping_add(n * n));
        }
        assert!(std::hint::black_box(sum) > 0);
        assert_eq!(processor_us(&[]), 0.0);
    }
}
