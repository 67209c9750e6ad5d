//! The memory that runs leave behind, as the kernel counts it; alone in its process for that.

use pluvio_sim::cluster::{RunOptions, run};

/// Reserved address space of this process, in bytes. Every store reserves gigabytes of it.
fn reserved() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").expect("Linux tells it");
    let line = status.lines().find(|line| line.starts_with("VmSize:"));
    let kib = line.and_then(|line| line.split_whitespace().nth(1));
    kib.and_then(|kib| kib.parse::<u64>().ok()).expect("a size") * 1024
}

#[test]
fn stores_of_ended_processes_are_freed() {
    let mut least = u64::MAX;
    // Many servers; one server that starts again and again.
    for seed in [2, 5] {
        let report = run(&RunOptions::new(seed));
        assert!(report.is_ok(), "{report}");
        assert!(report.recoveries > 0, "{report}");
        let after = reserved();
        assert!(
            after < least.saturating_add(1 << 30),
            "{least} bytes were reserved after one run, {after} after seed {seed}"
        );
        least = least.min(after);
    }
}
