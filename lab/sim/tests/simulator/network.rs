//! What may happen to messages, and what may not.

use crate::support::{Echo, MILLI, SECOND, call, frame, listen, quiet};
use futures_util::future::join_all;
use pluvio_env::{Address, CallError, Env, NetworkError};
use pluvio_sim::{NetworkFaults, ProcessEnv, Sim, SimOptions, StuckWhy};
use std::sync::Arc;

/// A server that listens at `s:1` and a client.
fn pair(sim: &Sim, delay: core::time::Duration) -> (ProcessEnv, Arc<Echo>, ProcessEnv) {
    let server = sim.process("s");
    let echo = serve(sim, &server, delay);
    (server, echo, sim.process("c"))
}

fn serve(sim: &Sim, server: &ProcessEnv, delay: core::time::Duration) -> Arc<Echo> {
    let echo = Echo::new(&server.env, delay);
    let (env, service) = (server.env.clone(), Arc::clone(&echo));
    sim.spawn(server.id, "listen", async move {
        let _port = listen(&env, "s:1", service).await;
        std::future::pending::<()>().await;
    });
    sim.run_for(MILLI);
    echo
}

/// Makes `count` calls, all at once; gives the number of replies.
fn many(sim: &Sim, client: &ProcessEnv, count: u64, limit: core::time::Duration) -> usize {
    let env: Env = client.env.clone();
    let work = async move {
        let calls = (0..count).map(|number| call(&env, "s:1", number, limit));
        let results = join_all(calls).await;
        results.into_iter().filter(Result::is_ok).count()
    };
    sim.block_on(client.id, work, 100 * SECOND).unwrap()
}

fn with(network: NetworkFaults) -> SimOptions {
    SimOptions {
        network,
        ..SimOptions::default()
    }
}

#[test]
fn a_call_gets_the_reply_of_the_service() {
    let sim = Sim::new(1, quiet());
    let (_, echo, client) = pair(&sim, MILLI);
    let env = client.env.clone();
    let work = async move { call(&env, "s:1", 5, SECOND).await };
    let reply = sim.block_on(client.id, work, SECOND).unwrap();
    assert_eq!(reply, Ok(frame(5)));
    assert_eq!(echo.requests(), 1);
}

#[test]
fn messages_get_lost_duplicated_and_reordered_as_often_as_asked() {
    let sim = Sim::new(
        2,
        with(NetworkFaults {
            loss_ppm: 100_000,
            duplicate_ppm: 200_000,
            reorder_ppm: 500_000,
            ..NetworkFaults::default()
        }),
    );
    let (_, echo, client) = pair(&sim, core::time::Duration::ZERO);
    let replies = many(&sim, &client, 10_000, SECOND);
    let stats = sim.network_stats();
    // Both messages of a call arrive with probability 0.81.
    assert!((7_900..8_300).contains(&replies), "{replies}");
    assert!((1_750..2_050).contains(&stats.lost), "{stats:?}");
    assert!((3_200..3_700).contains(&stats.duplicated), "{stats:?}");
    assert!(
        (1_600..2_000).contains(&stats.duplicates_filtered),
        "{stats:?}"
    );
    assert!(stats.reordered > 3_000, "{stats:?}");
    assert_eq!(echo.times_seen_max(), 1);
    assert_eq!(echo.requests() as u64, stats.delivered);
}

#[test]
fn without_reordering_requests_arrive_in_the_order_of_their_sending() {
    let sim = Sim::new(3, quiet());
    let (_, echo, client) = pair(&sim, core::time::Duration::ZERO);
    assert_eq!(many(&sim, &client, 1_000, SECOND), 1_000);
    let order = echo.order.lock().unwrap().clone();
    let sent: Vec<_> = (0..1_000).map(|number| frame(number).meta).collect();
    assert_eq!(order, sent);
}

#[test]
fn a_service_sees_a_request_once_over_any_number_of_restarts() {
    let mut executed = 0;
    for seed in 0..30 {
        let sim = Sim::new(
            seed,
            with(NetworkFaults {
                duplicate_ppm: 500_000,
                ..NetworkFaults::bad()
            }),
        );
        let (server, first, client) = pair(&sim, core::time::Duration::ZERO);
        let env = client.env.clone();
        sim.spawn(client.id, "calls", async move {
            for round in 0..100 {
                let calls = (0..5).map(|i| call(&env, "s:1", round * 5 + i, 30 * MILLI));
                join_all(calls).await;
            }
        });
        let mut all = vec![first];
        for _ in 0..5 {
            sim.run_for(60 * MILLI);
            sim.crash(server.id);
            sim.run_for(10 * MILLI);
            let server = sim.restart(server.id);
            all.push(serve(&sim, &server, core::time::Duration::ZERO));
        }
        let mut seen = std::collections::BTreeMap::new();
        for echo in all {
            for (request, times) in echo.seen.lock().unwrap().iter() {
                *seen.entry(request.clone()).or_insert(0) += times;
            }
        }
        executed += seen.len();
        assert!(seen.values().all(|times| *times == 1), "seed {seed}");
    }
    assert!(executed > 1_500, "{executed}");
}

#[test]
fn the_filter_can_be_switched_off_for_requests() {
    let sim = Sim::new(
        4,
        with(NetworkFaults {
            duplicate_ppm: 1_000_000,
            duplicate_requests: true,
            ..NetworkFaults::default()
        }),
    );
    let (_, echo, client) = pair(&sim, core::time::Duration::ZERO);
    many(&sim, &client, 50, SECOND);
    sim.run_for(SECOND);
    assert_eq!(echo.requests(), 100);
    assert_eq!(echo.times_seen_max(), 2);
}

#[test]
fn a_reply_after_the_limit_is_dropped() {
    let sim = Sim::new(5, quiet());
    let (_, echo, client) = pair(&sim, 10 * MILLI);
    let env = client.env.clone();
    let started = sim.now();
    let work = async move { call(&env, "s:1", 1, 5 * MILLI).await };
    let result = sim.block_on(client.id, work, SECOND).unwrap();
    assert_eq!(result, Err(CallError::TimedOut("s:1".into(), 5 * MILLI)));
    assert_eq!(sim.now() - started, 5 * MILLI);
    sim.run_for(SECOND);
    assert_eq!(echo.requests(), 1);
    assert_eq!(sim.network_stats().replies_unwanted, 1);
}

#[test]
fn a_cut_is_one_way_until_healed() {
    let sim = Sim::new(6, quiet());
    let (server, echo, client) = pair(&sim, core::time::Duration::ZERO);
    sim.cut(server.id, client.id);
    assert_eq!(many(&sim, &client, 10, MILLI), 0);
    assert_eq!(echo.requests(), 10, "requests still arrive");
    sim.heal_all();
    sim.isolate(client.id);
    assert_eq!(many(&sim, &client, 10, MILLI), 0);
    assert_eq!(echo.requests(), 10);
    sim.heal_all();
    assert_eq!(many(&sim, &client, 10, MILLI), 10);
}

#[test]
fn a_call_to_nobody_is_refused_or_silent() {
    let sim = Sim::new(7, quiet());
    let client = sim.process("c");
    let env = client.env.clone();
    let work = async move { join_all((0..1_000).map(|i| call(&env, "s:1", i, SECOND))).await };
    let results = sim.block_on(client.id, work, 10 * SECOND).unwrap();
    let refused = results
        .iter()
        .filter(|result| matches!(result, Err(CallError::Unreachable(..))))
        .count();
    assert!((750..850).contains(&refused), "{refused}");
    assert!(results.iter().all(Result::is_err));
}

#[test]
fn clients_of_a_crashed_process_lose_their_connection_or_time_out() {
    let sim = Sim::new(8, quiet());
    let (server, _, client) = pair(&sim, SECOND);
    let env = client.env.clone();
    let handle = sim.handle();
    let work = async move {
        let calls = join_all((0..1_000).map(|i| call(&env, "s:1", i, SECOND)));
        let crash = async {
            env.clock.sleep(10 * MILLI).await;
            handle.crash(server.id);
        };
        futures_util::future::join(calls, crash).await.0
    };
    let results = sim.block_on(client.id, work, 10 * SECOND).unwrap();
    let count = |lost: bool| {
        let is_lost = |result: &Result<_, CallError>| matches!(result, Err(CallError::Lost(_)));
        results
            .iter()
            .filter(|result| is_lost(result) == lost)
            .count()
    };
    assert!((430..570).contains(&count(true)), "{}", count(true));
    assert!(results.iter().all(Result::is_err));
}

#[test]
fn too_large_requests_are_not_sent() {
    let mut options = quiet();
    options.network.message_bytes_max = 4;
    let sim = Sim::new(9, options);
    let (_, echo, client) = pair(&sim, core::time::Duration::ZERO);
    let env = client.env.clone();
    let work = async move { call(&env, "s:1", 1, SECOND).await };
    let result = sim.block_on(client.id, work, SECOND).unwrap();
    assert_eq!(result, Err(CallError::TooLarge(8, 4)));
    assert_eq!(echo.requests(), 0);
}

#[test]
fn an_address_is_taken_until_its_port_closes_and_port_zero_finds_a_free_one() {
    let sim = Sim::new(10, quiet());
    let process = sim.process("p");
    let env = process.env.clone();
    let work = async move {
        let echo = Echo::new(&env, MILLI);
        let first = listen(&env, "p:1", Arc::clone(&echo) as _).await;
        let taken: Result<_, NetworkError> = env
            .network
            .listen(&Address::from("p:1"), Arc::clone(&echo) as _)
            .await;
        assert!(taken.is_err());
        drop(first);
        let _again = listen(&env, "p:1", Arc::clone(&echo) as _).await;
        let a = listen(&env, "p:0", Arc::clone(&echo) as _).await;
        let b = listen(&env, "p:0", Arc::clone(&echo) as _).await;
        assert_ne!(a.address, b.address);
        call(&env, &a.address.0, 1, SECOND).await.unwrap();
    };
    sim.block_on(process.id, work, SECOND).unwrap();
}

#[test]
fn a_stuck_run_names_what_it_waits_for() {
    let sim = Sim::new(11, quiet());
    let (_, _, client) = pair(&sim, 10 * SECOND);
    let env = client.env.clone();
    let work = async move { call(&env, "s:1", 1, 60 * SECOND).await };
    let stuck = sim.block_on(client.id, work, SECOND).unwrap_err();
    assert_eq!(stuck.why, StuckWhy::Limit);
    let text = stuck.to_string();
    assert!(
        text.contains("c: task block_on waits for a reply from s:1 to opcode 7"),
        "{text}"
    );
    assert!(
        text.contains("s: task serve waits for a sleep until"),
        "{text}"
    );

    let never = std::future::pending::<()>();
    let sim = Sim::new(12, quiet());
    let process = sim.process("p");
    let stuck = sim.block_on(process.id, never, SECOND).unwrap_err();
    assert_eq!(stuck.why, StuckWhy::Idle);
}
