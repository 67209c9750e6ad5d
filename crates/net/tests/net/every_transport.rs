//! Calls over connections of TCP and over sessions of datagrams: what both have to do alike.
//! `calls` and `datagrams` have what only one of them does, `conformance` the shorter cases.

use crate::rig::{PATIENCE, Rig, SIZES, Serve, echo, frame};
use core::time::Duration;
use futures_util::future::{join, join_all, select};
use pluvio_env::{CallError, Frame, Handled, Network};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use tokio::sync::{Notify, Semaphore};

const TCP: &str = "127.0.0.1:0";
const DATAGRAMS: &str = "udp:127.0.0.1:0";

/// Runs a case over each transport. What it prints is shown if it fails.
fn over_each(case: impl Fn(&str)) {
    for port in [TCP, DATAGRAMS] {
        println!("{port}");
        case(port);
    }
}

// shows: NET-4
#[test]
fn many_concurrent_calls_of_all_sizes_get_their_own_replies() {
    over_each(|port| {
        let rig = Rig::new(2);
        // Every third answer comes later, in an order of its own.
        let service = Serve(|_, request: Frame| {
            if request.opcode.is_multiple_of(3) {
                Handled::Later(Box::pin(async move {
                    for _ in 0..request.opcode % 7 {
                        tokio::task::yield_now().await;
                    }
                    request
                }))
            } else {
                Handled::Now(request)
            }
        });
        let listening = rig.listen_at(port, service);
        rig.call_from_all_cores(&listening.address, 400, SIZES);
        let totals = rig.network.counters().totals();
        assert_eq!(totals.connects, 2, "one per core and peer");
        assert_eq!(
            (totals.requests_received, totals.replies_received),
            (800, 800)
        );
    });
}

// shows: NET-4
#[test]
fn a_connection_that_breaks_ends_its_calls_as_lost() {
    over_each(|port| {
        let rig = Rig::new(1);
        let arrived = Arc::new(Notify::new());
        let handled = Arc::new(AtomicUsize::new(0));
        let service = {
            let (arrived, handled) = (Arc::clone(&arrived), Arc::clone(&handled));
            Serve(move |_, _| {
                handled.fetch_add(1, SeqCst);
                arrived.notify_one();
                Handled::Later(Box::pin(core::future::pending()))
            })
        };
        let listening = rig.listen_at(port, service);
        let to = listening.address.clone();
        let outcome = rig.run(|network| async move {
            let call = network.call(&to, frame(1, "x"), PATIENCE);
            let breaking = async {
                arrived.notified().await;
                drop(listening);
            };
            join(call, breaking).await.0
        });
        assert!(matches!(outcome, Err(CallError::Lost(_))), "{outcome:?}");
        assert_eq!(handled.load(SeqCst), 1);
        assert_eq!(rig.network.counters().totals().calls_lost, 1);
    });
}

// shows: ACCEPT-2, CALL-2
#[test]
fn calls_work_again_after_the_server_restarted_on_its_port() {
    over_each(|port| {
        let client = Rig::new(1);
        let server = Rig::new(2);
        let mut listening = server.listen_at(port, echo());
        let to = listening.address.clone();
        for round in 0..5 {
            let reply = client.call(&to, frame(round, "hello")).unwrap();
            assert_eq!(reply.opcode, round);
            drop(listening);
            // The end of the old connection may reach the client only with this call.
            let down = client.call(&to, frame(9, "nobody there")).unwrap_err();
            assert!(
                matches!(down, CallError::Unreachable(..) | CallError::Lost(_)),
                "{down}"
            );
            listening = server.listen_at(&to.0, echo());
        }
    });
}

// shows: CALL-1
#[test]
fn a_late_reply_is_dropped_and_the_connection_goes_on() {
    over_each(|port| {
        let rig = Rig::new(1);
        let release = Arc::new(Notify::new());
        let service = {
            let release = Arc::clone(&release);
            Serve(move |_, request: Frame| {
                if request.opcode == 0 {
                    return Handled::Now(request);
                }
                let release = Arc::clone(&release);
                Handled::Later(Box::pin(async move {
                    release.notified().await;
                    request
                }))
            })
        };
        let listening = rig.listen_at(port, service);
        rig.run(|network| async move {
            let to = &listening.address;
            let limit = Duration::from_millis(30);
            let first = network.call(to, frame(0, "connects"), PATIENCE).await;
            first.unwrap();
            let late = network.call(to, frame(1, "waits"), limit).await;
            assert_eq!(late, Err(CallError::TimedOut(to.clone(), limit)));
            release.notify_one();
            while network.counters().totals().replies_late == 0 {
                let next = network.call(to, frame(0, "goes on"), PATIENCE).await;
                next.unwrap();
            }
            release.notify_one();
            let answered = network.call(to, frame(1, "answered"), PATIENCE).await;
            answered.unwrap();
            let totals = network.counters().totals();
            assert_eq!((totals.connects, totals.calls_timed_out), (1, 1));
            assert_eq!(totals.replies_late, 1);
        });
    });
}

#[test]
fn frames_over_the_limit_are_refused_on_the_way_out_and_the_connection_lives() {
    over_each(|port| {
        let small = Rig::with(1, |options| options.frame_bytes_max = 1_000);
        let rig = Rig::new(1);
        let service = Serve(|_, request: Frame| {
            Handled::Now(frame(request.opcode, vec![1; 10 * request.len()]))
        });
        let listening = small.listen_at(port, service);
        let to = &listening.address;
        assert_eq!(rig.call(to, frame(1, vec![0; 100])).unwrap().len(), 1_000);
        let error = rig.call(to, frame(1, vec![0; 1_001]));
        assert_eq!(error, Err(CallError::TooLarge(1_001, 1_000)), "the peer's");
        let error = rig.call(to, frame(1, vec![0; 101]));
        assert_eq!(error, Err(CallError::TooLarge(1_010, 1_000)), "the reply");
        let error = rig.call(to, frame(1, vec![0; 20 << 20]));
        assert!(matches!(error, Err(CallError::TooLarge(..))), "the own");
        assert_eq!(rig.call(to, frame(1, vec![0; 10])).unwrap().len(), 100);
        assert_eq!(rig.network.counters().totals().connects, 1);
    });
}

// shows: NET-5
#[test]
fn a_begun_request_is_finished_although_its_caller_is_gone() {
    over_each(|port| {
        let server = Rig::new(1);
        let (release, finished) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
        let arrived = Arc::new(Notify::new());
        let service = {
            let (release, finished) = (Arc::clone(&release), Arc::clone(&finished));
            let arrived = Arc::clone(&arrived);
            Serve(move |_, request| {
                arrived.notify_one();
                let (release, finished) = (Arc::clone(&release), Arc::clone(&finished));
                Handled::Later(Box::pin(async move {
                    release.notified().await;
                    finished.notify_one();
                    request
                }))
            })
        };
        let listening = server.listen_at(port, service);
        let to = listening.address.clone();
        {
            let client = Rig::new(1);
            client.run(|network| async move {
                let call = network.call(&to, frame(1, "x"), PATIENCE);
                select(call, Box::pin(arrived.notified())).await;
            });
            client.runtime.shutdown(PATIENCE);
        }
        server.run(|_| async move {
            release.notify_one();
            finished.notified().await;
        });
    });
}

// shows: NET-3
#[test]
fn the_service_never_holds_more_requests_than_the_bound() {
    over_each(|port| {
        let rig = Rig::with(1, |options| options.requests_max = 4);
        let (held, most) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
        let service = {
            let (held, most) = (Arc::clone(&held), Arc::clone(&most));
            Serve(move |_, request| {
                most.fetch_max(held.fetch_add(1, SeqCst) + 1, SeqCst);
                let held = Arc::clone(&held);
                Handled::Later(Box::pin(async move {
                    tokio::task::yield_now().await;
                    held.fetch_sub(1, SeqCst);
                    request
                }))
            })
        };
        let listening = rig.listen_at(port, service);
        rig.run(|network| async move {
            let to = &listening.address;
            let calls = (0..200).map(|n| network.call(to, frame(n, "x"), PATIENCE));
            for reply in join_all(calls).await {
                reply.unwrap();
            }
        });
        let most = most.load(SeqCst);
        // Requests of one connection come together. Datagrams may come one by one.
        let least = if port == TCP { 4 } else { 1 };
        assert!((least..=4).contains(&most), "{most}");
    });
}

// shows: NET-3
#[test]
fn calls_over_the_bound_wait_for_room_and_all_end() {
    over_each(|port| {
        let rig = Rig::with(1, |options| {
            options.calls_max = 3;
            options.send_queue_bytes_max = 1_000;
        });
        let gate = Arc::new(Semaphore::new(0));
        let service = {
            let gate = Arc::clone(&gate);
            Serve(move |_, request| {
                let gate = Arc::clone(&gate);
                Handled::Later(Box::pin(async move {
                    gate.acquire().await.unwrap().forget();
                    request
                }))
            })
        };
        let listening = rig.listen_at(port, service);
        rig.run(|network| async move {
            let to = &listening.address;
            let calls = (0..100).map(|n| network.call(to, frame(n, vec![7; 900]), PATIENCE));
            let open = async {
                for _ in 0..100 {
                    gate.add_permits(1);
                    tokio::task::yield_now().await;
                }
            };
            for reply in join(join_all(calls), open).await.0 {
                reply.unwrap();
            }
        });
    });
}
