//! Counts steps, and ends the process after the one that a test has chosen.

use core::sync::atomic::{AtomicI64, Ordering};

/// The step that is the last one; zero and less: none is.
static LEFT: AtomicI64 = AtomicI64::new(0);

/// The process dies, as by `kill -9`, when `count` more steps and one are done.
pub(crate) fn die_after(count: u32) {
    LEFT.store(i64::from(count) + 1, Ordering::SeqCst);
}

pub(crate) fn step() {
    if LEFT.load(Ordering::SeqCst) > 0 && LEFT.fetch_sub(1, Ordering::SeqCst) == 1 {
        let own = rustix::process::getpid();
        let _dies = rustix::process::kill_process(own, rustix::process::Signal::KILL);
        loop {
            std::thread::yield_now();
        }
    }
}
