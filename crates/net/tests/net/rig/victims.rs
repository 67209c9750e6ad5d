//! Processes that call and are killed. Such a process is this test program again, with one test.

use super::{Lcg, PATIENCE, Rig, frame, wait_until};
use pluvio_env::{Address, Network};
use std::process::{Command, Stdio};
use std::sync::Arc;

/// Set in a process that is to be killed: the address to call.
const VICTIM: &str = "PLUVIO_TEST_VICTIM";

/// The work of a process that is to be killed; alone it does nothing.
#[test]
fn victim() {
    let Ok(address) = std::env::var(VICTIM) else {
        return;
    };
    let rig = Rig::new(1);
    let to = Address::from(&*address);
    rig.run(|network| async move {
        let one = |size: usize| {
            let (network, to) = (Arc::clone(&network), to.clone());
            async move {
                loop {
                    let request = frame(1, vec![1; size]);
                    network.call(&to, request, PATIENCE).await.unwrap();
                }
            }
        };
        futures_util::future::join3(one(100), one(5_000), one(1 << 20)).await;
    });
}

/// Kills processes that call `to`, a port of `server`, in the middle of up to `calls_max` calls.
/// Each connection ends, none sends half a frame, and others are served.
pub fn kill_callers(server: &Rig, to: &Address, calls_max: usize) {
    let mut random = Lcg(11);
    let totals = || server.network.counters().totals();
    for round in 0..6 {
        let before = totals();
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "rig::victims::victim", "--nocapture"])
            .env(VICTIM, &*to.0)
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        let least = before.requests_received + 1 + random.below(calls_max) as u64;
        wait_until("a busy child", || totals().requests_received >= least);
        child.kill().unwrap();
        child.wait().unwrap();
        wait_until("the end of its connection", || {
            totals().connections_ended == before.connections_ended + 1
        });
        assert_eq!(totals().frames_rejected, 0, "round {round}");
    }
    server.call(to, frame(1, "others are served")).unwrap();
}
