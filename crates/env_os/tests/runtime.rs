//! Event loops, background workers and shutdown.

#![allow(clippy::unwrap_used)] // of the helpers too

use core::time::Duration;
use pluvio_env::buffers::{self, Buffer};
use pluvio_env::{Clock, Pace};
use pluvio_env_os::{OsOptions, OsRuntime, StopSignal, StopSignals, current_core};
use pluvio_units::CoreId;
use rustix::thread::sched_getaffinity;
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver, Sender};

const HOUR: Duration = Duration::from_secs(3600);
/// How long a test waits for what must happen at once; only a failing test waits that long.
const PATIENCE: Duration = Duration::from_secs(20);

fn start(cores: u16) -> OsRuntime {
    OsRuntime::start(&OsOptions::with_cores(cores)).unwrap()
}

/// Sends a message when it is dropped.
struct Farewell(Sender<&'static str>);

impl Drop for Farewell {
    fn drop(&mut self) {
        self.0.send("gone").unwrap();
    }
}

fn expect(receiver: &Receiver<&'static str>, message: &str) {
    assert_eq!(receiver.recv_timeout(PATIENCE), Ok(message));
}

// shows: ENVOS-1
#[test]
fn tasks_run_on_the_core_they_were_given_to() {
    let runtime = start(3);
    let tasks = runtime.tasks();
    assert_eq!(current_core(), None);
    let cores = runtime.block_on(async move {
        let mut seen = vec![current_core()];
        for core in 0..tasks.cores() {
            let (give, take) = tokio::sync::oneshot::channel();
            tasks.spawn(CoreId(core), "test", async move {
                give.send(current_core()).unwrap();
            });
            seen.push(take.await.unwrap());
        }
        seen
    });
    assert_eq!(cores, [0, 0, 1, 2].map(|core| Some(CoreId(core))));
}

#[test]
fn a_panic_of_the_main_future_reaches_the_main_thread() {
    let runtime = start(1);
    let caught = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        runtime.block_on(async { panic!("on purpose") });
    }));
    assert_eq!(
        caught.unwrap_err().downcast_ref::<&str>(),
        Some(&"on purpose")
    );
    assert_eq!(runtime.block_on(async { 5 }), 5);
}

#[test]
fn an_aborted_task_is_dropped_at_its_suspension() {
    let runtime = start(1);
    let (send, receive) = mpsc::channel();
    let farewell = Farewell(send.clone());
    let task = runtime.tasks().spawn(CoreId(0), "test", async move {
        let _farewell = farewell;
        send.send("runs").unwrap();
        core::future::pending::<()>().await;
    });
    expect(&receive, "runs");
    task.abort();
    task.abort();
    expect(&receive, "gone");
}

// shows: TASKS-2
#[test]
fn a_waiting_background_worker_stops_at_once_when_aborted() {
    let runtime = start(1);
    let (send, receive) = mpsc::channel();
    let farewell = Farewell(send.clone());
    let mut steps = 0;
    let step = move || {
        let _keep = &farewell;
        steps += 1;
        if steps < 3 {
            return Pace::Again;
        }
        send.send("waits").unwrap();
        Pace::After(HOUR)
    };
    let worker = runtime.tasks().background("test", Box::new(step));
    expect(&receive, "waits");
    worker.abort();
    expect(&receive, "gone");
    worker.abort();
}

// shows: ENVOS-4
#[test]
fn shutdown_ends_workers_and_drops_tasks() {
    let runtime = start(2);
    let (send, receive) = mpsc::channel();
    let tasks = runtime.tasks();
    let farewell = Farewell(send.clone());
    tasks.background(
        "test",
        Box::new(move || {
            let _keep = &farewell;
            Pace::After(HOUR)
        }),
    );
    let farewell = Farewell(send.clone());
    tasks.spawn(CoreId(1), "test", async move {
        let _farewell = farewell;
        core::future::pending::<()>().await;
    });
    runtime.shutdown(PATIENCE);
    assert_eq!(receive.try_iter().collect::<Vec<_>>(), ["gone", "gone"]);
    // What comes too late is dropped, not run.
    let farewell = Farewell(send.clone());
    tasks.spawn(CoreId(0), "test", async move {
        farewell.0.send("ran").unwrap();
    });
    let farewell = Farewell(send);
    tasks.background(
        "test",
        Box::new(move || {
            farewell.0.send("ran").unwrap();
            Pace::Done
        }),
    );
    assert_eq!(receive.try_iter().collect::<Vec<_>>(), ["gone", "gone"]);
}

#[test]
fn blocking_work_runs_beside_the_loop_and_gives_its_panic_to_the_waiter() {
    let runtime = start(1);
    let tasks = runtime.tasks();
    let (send, receive) = mpsc::channel();
    let place = runtime.block_on({
        let tasks = Arc::clone(&tasks);
        async move {
            tasks
                .run_blocking(Box::new(move || send.send(current_core()).unwrap()))
                .await;
            receive.recv().unwrap()
        }
    });
    assert_eq!(place, None);
    let caught = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        runtime.block_on(async move {
            tasks.run_blocking(Box::new(|| panic!("on purpose"))).await;
        });
    }));
    assert!(caught.is_err());
}

/// Processors that a background worker may use whom the loop of core 0 has started, and that loop.
fn processors(pin: bool) -> (u32, u32) {
    let mut options = OsOptions::with_cores(1);
    options.pin = pin;
    let runtime = OsRuntime::start(&options).unwrap();
    let tasks = runtime.tasks();
    let may_use = || sched_getaffinity(None).unwrap().count();
    let (give, take) = mpsc::channel();
    let of_loop = runtime.block_on(async move {
        let step = move || {
            give.send(may_use()).unwrap();
            Pace::Done
        };
        let _ends_itself = tasks.background("test", Box::new(step));
        may_use()
    });
    (take.recv_timeout(PATIENCE).unwrap(), of_loop)
}

// shows: TASKS-3
#[test]
fn a_background_worker_stays_on_no_processor_that_a_loop_is_bound_to() {
    let all = sched_getaffinity(None).unwrap().count();
    assert_eq!(processors(false), (all, all));
    assert_eq!(processors(true), (all, 1));
}

#[test]
fn a_spinning_pinned_loop_still_serves_timers_and_other_loops() {
    let mut options = OsOptions::with_cores(2);
    options.spin = Duration::from_micros(200);
    options.pin = true;
    let runtime = OsRuntime::start(&options).unwrap();
    let (clock, tasks) = (runtime.clock(), runtime.tasks());
    runtime.block_on(async move {
        for round in 0..50u64 {
            let (give, take) = tokio::sync::oneshot::channel();
            tasks.spawn(CoreId(1), "test", async move { give.send(round).unwrap() });
            assert_eq!(take.await, Ok(round));
        }
        let before = clock.now();
        clock.sleep(Duration::from_millis(5)).await;
        assert!(clock.now().since(before) >= Duration::from_millis(5));
    });
}

#[test]
fn the_clock_works_on_threads_without_a_loop() {
    let runtime = start(1);
    let clock: Arc<dyn Clock> = runtime.clock();
    // Made here, awaited there.
    let sleep = clock.sleep(Duration::from_millis(1));
    runtime.block_on(sleep);
    assert!(clock.unix_seconds() > 1_700_000_000);
    assert!(clock.now() > pluvio_env::Moment::default());
}

#[test]
fn the_limit_of_open_files_is_raised_to_what_is_allowed() {
    let runtime = start(1);
    let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile);
    assert_eq!(limit.current, limit.maximum);
    assert_eq!(runtime.open_files_max(), limit.current.unwrap_or(u64::MAX));
}

#[test]
fn stop_signals_are_received_again_and_again() {
    let runtime = start(1);
    runtime.block_on(async {
        let mut signals = StopSignals::new().unwrap();
        let itself = rustix::process::getpid();
        for (signal, expected) in [
            (rustix::process::Signal::TERM, StopSignal::Terminate),
            (rustix::process::Signal::INT, StopSignal::Interrupt),
            (rustix::process::Signal::TERM, StopSignal::Terminate),
        ] {
            rustix::process::kill_process(itself, signal).unwrap();
            assert_eq!(signals.next().await, expected);
        }
    });
}

#[test]
fn unused_memory_goes_back_to_the_system() {
    let runtime = start(1);
    let clock = runtime.clock();
    drop(Buffer::with_capacity(5 << 20));
    let empty = runtime.block_on(async move {
        for _look in 0..600 {
            if buffers::kept_bytes() == 0 {
                return true;
            }
            clock.sleep(Duration::from_millis(100)).await;
        }
        false
    });
    assert!(empty, "{} bytes are kept", buffers::kept_bytes());
}
