//! Incarnations, clocks, tasks, disks: what a crash takes and what it leaves.

use crate::support::{Echo, MILLI, SECOND, call, listen, quiet};
use bytes::Bytes;
use core::time::Duration;
use pluvio_env::{DiskError, OpenMode, Pace, TimedOut, timeout};
use pluvio_sim::{DiskFaults, Sim, SimOptions, StuckWhy};
use pluvio_units::CoreId;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

fn counter() -> (Arc<AtomicU64>, Arc<AtomicU64>) {
    let counter = Arc::new(AtomicU64::new(0));
    (Arc::clone(&counter), counter)
}

#[test]
fn sleeping_takes_virtual_time_only_and_a_timeout_drops_its_future() {
    let sim = Sim::new(1, SimOptions::default());
    let process = sim.process("p");
    let env = process.env.clone();
    let work = async move {
        let start = env.clock.now();
        env.clock.sleep(1_000_000 * SECOND).await;
        assert_eq!(env.clock.now().since(start), 1_000_000 * SECOND);
        let late = env.clock.sleep(SECOND);
        timeout(&*env.clock, MILLI, late).await
    };
    let result = sim.block_on(process.id, work, 2_000_000 * SECOND);
    assert_eq!(result.unwrap(), Err(TimedOut));
    assert_eq!(sim.now(), 1_000_000 * SECOND + MILLI);
}

#[test]
fn a_crash_ends_tasks_workers_and_timers_and_closes_ports() {
    let sim = Sim::new(2, quiet());
    let process = sim.process("p");
    let (ticks, count) = counter();
    let (steps, step_count) = counter();
    let held = Arc::new(());
    let (env, marker) = (process.env.clone(), Arc::clone(&held));
    sim.spawn(process.id, "tick", async move {
        let _port = listen(&env, "p:1", Echo::new(&env, MILLI)).await;
        let _marker = marker;
        loop {
            env.clock.sleep(MILLI).await;
            ticks.fetch_add(1, Ordering::Relaxed);
        }
    });
    let step = move || {
        steps.fetch_add(1, Ordering::Relaxed);
        Pace::After(MILLI)
    };
    process.env.tasks.background("step", Box::new(step));
    sim.run_for(100 * MILLI);
    let (before, steps_before) = (
        count.load(Ordering::Relaxed),
        step_count.load(Ordering::Relaxed),
    );
    assert!(before > 90 && steps_before > 90, "{before} {steps_before}");
    sim.crash(process.id);
    assert!(!sim.is_up(process.id));
    assert_eq!(Arc::strong_count(&held), 1, "what the task held is dropped");
    sim.run_for(100 * MILLI);
    assert_eq!(before, count.load(Ordering::Relaxed));
    assert_eq!(steps_before, step_count.load(Ordering::Relaxed));

    // The dead incarnation's environment does nothing any more.
    let env = process.env.clone();
    env.tasks
        .spawn(CoreId(0), "ghost", async { panic!("a ghost runs") });
    let next = sim.restart(process.id);
    let ghost = async move { call(&env, "p:1", 1, MILLI).await };
    let stuck = sim.block_on(next.id, ghost, SECOND).unwrap_err();
    assert_eq!(stuck.why, StuckWhy::Idle);
    let env = next.env.clone();
    let open = async move { listen(&env, "p:1", Echo::new(&env, MILLI)).await.address };
    sim.block_on(next.id, open, SECOND).unwrap();
}

#[test]
fn a_task_may_crash_its_own_process() {
    let sim = Sim::new(3, quiet());
    let process = sim.process("p");
    let (handle, id) = (sim.handle(), process.id);
    let work = async move {
        handle.crash(id);
        std::future::pending::<()>().await;
    };
    let stuck = sim.block_on(id, work, SECOND).unwrap_err();
    assert_eq!(stuck.why, StuckWhy::Gone);
}

#[test]
fn a_process_that_is_abandoned_runs_on_unheard_and_leaves_its_things_later() {
    /// Takes the lock when it is dropped.
    struct Locker(Arc<Mutex<u32>>);
    impl Drop for Locker {
        fn drop(&mut self) {
            *self.0.lock().unwrap() += 1;
        }
    }
    let sim = Sim::new(3, quiet());
    let (process, other) = (sim.process("p"), sim.process("other"));
    let (ticks, count) = counter();
    let env = other.env.clone();
    sim.spawn(other.id, "serve", async move {
        let _port = listen(&env, "other:1", Echo::new(&env, MILLI)).await;
        std::future::pending::<()>().await;
    });
    let lock = Arc::new(Mutex::new(0));
    let locker = Locker(Arc::clone(&lock));
    sim.spawn(process.id, "waits", async move {
        let _locker = locker;
        std::future::pending::<()>().await;
    });
    let (handle, id, env) = (sim.handle(), process.id, process.env.clone());
    let inner = Arc::clone(&lock);
    let work = async move {
        {
            let locked = inner.lock().unwrap();
            handle.abandon(id);
            handle.abandon(id);
            assert_eq!(*locked, 0, "what it left is dropped later");
        }
        let late = async move {
            ticks.fetch_add(1, Ordering::Relaxed);
        };
        env.tasks.spawn(CoreId(0), "late", late);
        call(&env, "other:1", 1, SECOND).await.map(drop)
    };
    let stuck = sim.block_on(id, work, SECOND).unwrap_err();
    assert_eq!(stuck.why, StuckWhy::Gone);
    assert_eq!(*lock.lock().unwrap(), 1);
    assert_eq!(count.load(Ordering::Relaxed), 0, "nothing new was begun");
    assert!(!sim.is_up(id));
    assert!(sim.is_up(sim.restart(id).id));
}

#[test]
fn aborted_tasks_and_finished_workers_do_not_run_again() {
    let sim = Sim::new(4, quiet());
    let process = sim.process("p");
    let (ticks, count) = counter();
    let env = process.env.clone();
    let handle = sim.spawn(process.id, "tick", async move {
        loop {
            env.clock.sleep(MILLI).await;
            ticks.fetch_add(1, Ordering::Relaxed);
        }
    });
    let (steps, step_count) = counter();
    let step = move || {
        if steps.fetch_add(1, Ordering::Relaxed) == 9 {
            Pace::Done
        } else {
            Pace::Again
        }
    };
    let worker = process.env.tasks.background("step", Box::new(step));
    sim.run_for(10 * MILLI);
    handle.abort();
    handle.abort();
    worker.abort();
    sim.run_for(10 * MILLI);
    assert_eq!(count.load(Ordering::Relaxed), 10);
    assert_eq!(step_count.load(Ordering::Relaxed), 10);
    let idle = sim.run_until(|| false, SECOND).unwrap_err();
    assert_eq!(idle.why, StuckWhy::Idle);
}

#[test]
fn blocking_work_runs_once_and_later() {
    let sim = Sim::new(5, quiet());
    let process = sim.process("p");
    let (runs, count) = counter();
    let env = process.env.clone();
    let seen = Arc::clone(&count);
    let work = async move {
        let blocking = env.tasks.run_blocking(Box::new(move || {
            runs.fetch_add(1, Ordering::Relaxed);
        }));
        assert_eq!(seen.load(Ordering::Relaxed), 0);
        blocking.await;
        seen.load(Ordering::Relaxed)
    };
    assert_eq!(sim.block_on(process.id, work, SECOND).unwrap(), 1);
    assert_eq!(count.load(Ordering::Relaxed), 1);
}

#[test]
fn a_paused_process_stands_still_and_then_sees_what_it_missed() {
    let sim = Sim::new(6, quiet());
    let server = sim.process("s");
    let echo = Echo::new(&server.env, Duration::ZERO);
    let (env, service) = (server.env.clone(), Arc::clone(&echo));
    sim.spawn(server.id, "listen", async move {
        let _port = listen(&env, "s:1", service).await;
        std::future::pending::<()>().await;
    });
    sim.run_for(MILLI);
    sim.pause(server.id);
    let client = sim.process("c");
    let env = client.env.clone();
    let handle = sim.handle();
    let work = async move {
        let early = call(&env, "s:1", 1, SECOND).await;
        handle.resume(server.id);
        (early, call(&env, "s:1", 2, SECOND).await)
    };
    let (early, late) = sim.block_on(client.id, work, 10 * SECOND).unwrap();
    assert!(early.is_err());
    assert!(late.is_ok());
    assert_eq!(echo.requests(), 2, "the old request is executed, late");
}

#[test]
#[should_panic(expected = "without progress of time; the busiest: task spin of p")]
fn an_endless_loop_without_progress_of_time_is_found() {
    let options = SimOptions {
        polls_per_instant_max: 10_000,
        ..SimOptions::default()
    };
    let sim = Sim::new(7, options);
    let process = sim.process("p");
    sim.spawn(process.id, "spin", async {
        loop {
            let mut yielded = false;
            std::future::poll_fn(|context| {
                if std::mem::replace(&mut yielded, true) {
                    return std::task::Poll::Ready(());
                }
                context.waker().wake_by_ref();
                std::task::Poll::Pending
            })
            .await;
        }
    });
    sim.run_for(SECOND);
}

#[test]
fn a_simulation_lets_go_of_everything_when_dropped() {
    let held = Arc::new(());
    {
        let sim = Sim::new(8, quiet());
        let process = sim.process("p");
        let (env, marker) = (process.env.clone(), Arc::clone(&held));
        let handle = sim.handle();
        sim.spawn(process.id, "holds", async move {
            let _all = (
                handle,
                marker,
                listen(&env, "p:1", Echo::new(&env, MILLI)).await,
            );
            env.clock.sleep(SECOND).await;
        });
        sim.run_for(MILLI);
    }
    assert_eq!(Arc::strong_count(&held), 1);
}

/// Writes 4096 bytes, syncs the first half of the file, and leaves the rest to chance.
async fn half_synced(env: pluvio_env::Env) -> Result<(), DiskError> {
    let file = env.disk.open("frames/1", OpenMode::New).await?;
    file.write_at(0, Bytes::from(vec![1; 4096])).await?;
    file.sync().await?;
    env.disk.sync_directory("frames").await?;
    file.write_at(4096, Bytes::from(vec![2; 4096])).await?;
    env.disk.open("frames/2", OpenMode::New).await?;
    Ok(())
}

#[test]
fn a_crash_keeps_what_was_written_and_a_power_loss_only_what_was_synced() {
    let (mut torn, mut unnamed) = (0, 0);
    for seed in 0..120 {
        let sim = Sim::new(seed, quiet());
        let process = sim.process("p");
        let work = half_synced(process.env.clone());
        sim.block_on(process.id, work, SECOND).unwrap().unwrap();
        sim.crash(process.id);
        let content = sim.file_content(process.id, "frames/1").unwrap();
        assert_eq!(content.len(), 8192);
        assert_eq!(sim.files(process.id), ["frames/1", "frames/2"]);

        sim.power_loss(process.id);
        let content = sim.file_content(process.id, "frames/1").unwrap();
        assert!(content[..4096].iter().all(|byte| *byte == 1));
        let rest = &content[4096..];
        let there = rest
            .chunks(512)
            .filter(|sector| sector.iter().all(|byte| *byte == 2));
        torn += u32::from((1..8).contains(&there.count()));
        unnamed += u32::from(sim.files(process.id).len() == 1);

        let env = sim.restart(process.id).env;
        let read = async move {
            let file = env.disk.open("frames/1", OpenMode::Existing).await?;
            let size = file.size().await?;
            assert_eq!(file.read_at(size, 10).await?, Bytes::new());
            file.read_at(4000, 96 + rest_len(size)).await
        };
        let read = sim.block_on(process.id, read, SECOND).unwrap().unwrap();
        assert_eq!(read[..], content[4000..]);
    }
    assert!(torn > 10 && unnamed > 10, "{torn} {unnamed}");
}

fn rest_len(size: u64) -> usize {
    usize::try_from(size).unwrap() - 4096
}

#[test]
fn disks_fail_fill_up_and_rot_as_asked() {
    let sim = Sim::new(9, quiet());
    let process = sim.process("p");
    sim.set_disk(
        process.id,
        DiskFaults {
            capacity: Some(1000),
            ..DiskFaults::default()
        },
    );
    let (env, handle, id) = (process.env.clone(), sim.handle(), process.id);
    let work = async move {
        let file = env.disk.open("a", OpenMode::Create).await.unwrap();
        file.write_at(0, Bytes::from(vec![0; 900])).await.unwrap();
        let full = file.write_at(900, Bytes::from(vec![0; 200])).await;
        assert_eq!(full, Err(DiskError::Full { path: "a".into() }));
        assert!(handle.flip_bit(id, "a", 8 * 10 + 3));
        assert_eq!(file.read_at(10, 1).await.unwrap()[..], [8]);
        let failing = DiskFaults {
            read_error_ppm: 1_000_000,
            sync_error_ppm: 1_000_000,
            ..DiskFaults::default()
        };
        handle.set_disk(id, failing);
        assert!(file.read_at(0, 1).await.is_err());
        assert!(file.sync().await.is_err());
        let missing = env.disk.open("b", OpenMode::Existing).await.err();
        assert_eq!(missing, Some(DiskError::NotFound { path: "b".into() }));
    };
    sim.block_on(id, work, SECOND).unwrap();
}

#[test]
fn warnings_are_kept_with_virtual_time_process_and_task() {
    let options = SimOptions {
        trace_lines: 10,
        ..quiet()
    };
    let sim = Sim::new(10, options);
    let process = sim.process("p");
    let env = process.env.clone();
    let work = async move {
        env.clock.sleep(MILLI).await;
        tracing::warn!(segment = 7, "replica lost");
        tracing::info!("not of interest");
    };
    sim.block_on(process.id, work, SECOND).unwrap();
    let (warnings, missed) = sim.warnings();
    assert_eq!(missed, 0);
    assert_eq!(warnings.len(), 1);
    let wanted = "   0.001000000 p [block_on] WARN simulator::processes: replica lost segment=7";
    assert_eq!(warnings[0], wanted);
    assert!(sim.trace_lines().contains(&wanted.to_string()));
}
