//! Equal seeds give equal runs, bit for bit; other seeds do not.

use crate::support::{Echo, MILLI, SECOND, call, listen};
use bytes::Bytes;
use core::time::Duration;
use futures_util::stream::{FuturesUnordered, StreamExt};
use pluvio_env::{Env, OpenMode, Pace, timeout};
use pluvio_sim::{DiskFaults, NetworkFaults, Sim, SimOptions};
use pluvio_units::CoreId;
use std::sync::Arc;

async fn client(env: Env) {
    let (sender, mut receiver) = tokio::sync::mpsc::channel::<u64>(4);
    let drawing = env.clone();
    env.tasks.spawn(CoreId(1), "draw", async move {
        for _ in 0..100 {
            let number = drawing.rng.below(1000);
            drawing.clock.sleep(MILLI).await;
            if sender.send(number).await.is_err() {
                return;
            }
        }
    });
    let file = env.disk.open("d/notes", OpenMode::Create).await;
    let mut offset = 0;
    while let Some(number) = receiver.recv().await {
        let calls: FuturesUnordered<_> = (0..3)
            .map(|i| call(&env, "server:1", number * 10 + i, 20 * MILLI))
            .collect();
        let replies: Vec<_> = calls.collect().await;
        let line = Bytes::from(format!("{replies:?}"));
        if let Ok(file) = &file {
            offset += line.len() as u64;
            let _ = file.write_at(offset, line).await;
            let _ = timeout(&*env.clock, 3 * MILLI, file.sync()).await;
        }
    }
}

/// A run with every kind of fault: its trace hash, its text, and how much happened.
fn run(seed: u64, lines: usize) -> (u64, Vec<String>, u64) {
    let options = SimOptions {
        clock_drift_ppm_max: 200,
        network: NetworkFaults::bad(),
        disk: DiskFaults {
            write_error_ppm: 20_000,
            sync_error_ppm: 20_000,
            ..DiskFaults::default()
        },
        trace_lines: lines,
        ..SimOptions::default()
    };
    let sim = Sim::new(seed, options);
    let server = sim.process("server");
    let start = |env: Env| async move {
        let _port = listen(&env, "server:1", Echo::new(&env, MILLI)).await;
        std::future::pending::<()>().await;
    };
    sim.spawn(server.id, "server", start(server.env.clone()));
    for name in ["a", "b"] {
        let process = sim.process(name);
        sim.spawn(process.id, "client", client(process.env.clone()));
        let rng = Arc::clone(&process.env.rng);
        process.env.tasks.background(
            "work",
            Box::new(move || match rng.below(3) {
                0 => Pace::After(Duration::from_micros(rng.below(5000))),
                _ => Pace::Again,
            }),
        );
    }
    sim.run_for(50 * MILLI);
    sim.power_loss(server.id);
    sim.run_for(20 * MILLI);
    let server = sim.restart(server.id);
    sim.spawn(server.id, "server", start(server.env.clone()));
    sim.run_for(SECOND);
    (sim.trace_hash(), sim.trace_lines(), sim.trace_events())
}

// shows: ENV-2
#[test]
fn equal_seeds_give_equal_traces_and_other_seeds_do_not() {
    let mut hashes = Vec::new();
    for seed in 0..5 {
        let (hash, lines, events) = run(seed, 1_000_000);
        assert!(events > 1_000, "{events}");
        assert!(lines.len() > 500);
        assert_eq!((hash, lines, events), run(seed, 1_000_000));
        hashes.push(hash);
    }
    hashes.sort_unstable();
    hashes.dedup();
    assert_eq!(hashes.len(), 5);
}

#[test]
fn keeping_text_does_not_change_the_run() {
    assert_eq!(run(3, 0).0, run(3, 100).0);
}

#[test]
fn processes_draw_from_streams_of_their_own() {
    let sim = Sim::new(1, SimOptions::default());
    let (a, b) = (sim.process("a"), sim.process("b"));
    let first = a.env.rng.next_u64();
    assert_ne!(first, b.env.rng.next_u64());
    sim.crash(a.id);
    assert_ne!(first, sim.restart(a.id).env.rng.next_u64());
    let again = Sim::new(1, SimOptions::default());
    let _ = again.process("b");
    assert_eq!(first, again.process("a").env.rng.next_u64());
}
