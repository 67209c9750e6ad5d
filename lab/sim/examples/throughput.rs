//! How many events the simulator handles in a second of real time:
//! `cargo run --release -p pluvio-sim --example throughput`.
//!
//! Four clients keep 16 calls under way each, to two servers; every call has a limit, so half of
//! the events in the queue are timers that never fire.
#![allow(clippy::disallowed_methods)]

use bytes::Bytes;
use core::time::Duration;
use pluvio_env::{Address, Frame, Handled, Peer, Service};
use pluvio_sim::{Sim, SimOptions};
use pluvio_units::CoreId;
use std::sync::Arc;

struct Echo;

impl Service for Echo {
    fn handle(&self, _: Peer, request: Frame) -> Handled {
        Handled::Now(request)
    }
}

fn main() {
    let sim = Sim::new(1, SimOptions::default());
    for name in ["s:0", "s:1"] {
        let process = sim.process(name);
        sim.spawn(process.id, "listen", async move {
            let network = process.env.network;
            let port = network.listen(&name.into(), Arc::new(Echo)).await;
            let _port = port.expect("nobody else has this address");
            std::future::pending::<()>().await;
        });
    }
    for name in ["a", "b", "c", "d"] {
        let process = sim.process(name);
        for i in 0..16_u64 {
            let env = process.env.clone();
            let to = Address::from(if i % 2 == 0 { "s:0" } else { "s:1" });
            let task = async move {
                loop {
                    let request = Frame {
                        opcode: 1,
                        meta: Bytes::from_static(b"sixteen bytes on"),
                        payload: Bytes::from_static(&[7; 100]),
                    };
                    let _ = env.network.call(&to, request, Duration::from_secs(1)).await;
                }
            };
            process.env.tasks.spawn(CoreId(0), "client", task);
        }
    }
    let start = std::time::Instant::now();
    sim.run_for(Duration::from_secs(2));
    let real = start.elapsed().as_secs_f64();
    let events = sim.trace_events();
    let calls = sim.network_stats().delivered;
    println!(
        "{events} events, {calls} calls, {:.1} virtual s in {real:.2} s: {:.2} M events/s, {:.2} M calls/s, trace {:016x}",
        sim.now().as_secs_f64(),
        events as f64 / real / 1e6,
        calls as f64 / real / 1e6,
        sim.trace_hash(),
    );
}
