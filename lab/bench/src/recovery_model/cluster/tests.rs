//! The model against closed forms, and against itself with other options.

use super::*;
use crate::recovery_model::{Costs, LostData};
use pluvio_units::Size;

/// So fast that it does not count.
const FAST: f64 = 1e9;

/// Everything costs nothing and chance plays no part.
const FREE: Costs = Costs {
    declare_ms: 0.0,
    ping_ms: 0.0,
    lease_ms: 0.0,
    wire_us: 0.0,
    request_us: 0.0,
    replica_us: 0.0,
    store_us: 0.0,
    segment_entry_bytes: 0.0,
    disk_mb_per_s: FAST,
    network_mb_per_s: FAST,
    sort_mb_per_s: FAST,
    replay_mb_per_s: FAST,
    transfer_ms_per_mb: 0.0,
    keep_ms_per_mb: 0.0,
};

/// Something like a real cluster.
const USUAL: Costs = Costs {
    declare_ms: 20.0,
    ping_ms: 100.0,
    lease_ms: 650.0,
    wire_us: 20.0,
    request_us: 10.0,
    replica_us: 1.0,
    store_us: 300.0,
    segment_entry_bytes: 40.0,
    disk_mb_per_s: 500.0,
    network_mb_per_s: 1250.0,
    sort_mb_per_s: 1000.0,
    replay_mb_per_s: 700.0,
    transfer_ms_per_mb: 0.4,
    keep_ms_per_mb: 0.4,
};

fn options(servers: usize, costs: Costs) -> ModelOptions {
    ModelOptions {
        servers,
        data: LostData::Fixed(Size(16_000_000_000)),
        object_bytes: 1064.0,
        replicas: 2,
        cores: 8,
        partition_mb: 1000.0,
        partition_objects: 2e6,
        segment_mb: 8.0,
        fetches: 4,
        buffer_segments: 16,
        candidates: 5,
        costs,
        seed: 1,
    }
}

fn total(options: &ModelOptions) -> f64 {
    recover(options).unwrap().total_s
}

fn close(found: f64, wanted: f64, part: f64) {
    assert!(
        (found - wanted).abs() <= part * wanted,
        "{found}, wanted {wanted}"
    );
}

#[test]
fn a_cluster_of_disks_reads_as_fast_as_its_slowest_share() {
    let costs = Costs {
        disk_mb_per_s: 100.0,
        ..FREE
    };
    let found = recover(&options(21, costs)).unwrap();
    // 16 GB in 16 partitions, 20 disks of 100 MB/s within a tenth, 100 segments each.
    assert!(found.disk_max_s >= found.disk_mean_s);
    close(found.disk_mean_s, 8.0, 0.05);
    close(found.total_s, found.disk_max_s, 0.001);
    let segment = 8.0 / 90.0;
    assert!(
        found.disk_max_s <= found.bound_s + 2.0 * segment,
        "{found:?}"
    );
}

#[test]
fn a_single_recovery_master_needs_what_its_replay_needs() {
    let costs = Costs {
        replay_mb_per_s: 400.0,
        ..FREE
    };
    let mut one = options(2, costs);
    one.data = LostData::Fixed(Size(400_000_000));
    close(total(&one), 1.0, 0.001);
    // Replay of a partition is one thread: more processors do not help, more servers do.
    one.cores = 64;
    close(total(&one), 1.0, 0.001);
    one.servers = 5;
    close(total(&one), 0.25, 0.001);
}

#[test]
fn what_exceeds_the_partitions_of_all_servers_is_recovered_in_rounds() {
    let costs = Costs {
        replay_mb_per_s: 500.0,
        ..FREE
    };
    let mut two = options(3, costs);
    two.partition_mb = 500.0;
    // Two partitions of 2 GB, which is more than 500 MB and less than eight times that; then three
    // for each of two servers.
    for (bytes, partitions, seconds) in [(4_000_000_000, 2, 4.0), (24_000_000_000, 6, 24.0)] {
        two.data = LostData::Fixed(Size(bytes));
        assert_eq!(recover(&two).unwrap().partitions, partitions);
        close(total(&two), seconds, 0.01);
    }
}

#[test]
fn links_carry_the_data_once_and_each_replica_once_more() {
    let mut nine = options(
        9,
        Costs {
            network_mb_per_s: 1000.0,
            ..FREE
        },
    );
    for (replicas, wanted) in [(0, 2.0), (2, 6.0)] {
        nine.replicas = replicas;
        let found = recover(&nine).unwrap();
        close(found.bound_s, wanted, 0.001);
        // Random backups are not loaded evenly, and copies wait for what they copy.
        assert!(
            found.total_s >= wanted * 0.999 && found.total_s < 1.35 * wanted,
            "{found:?}"
        );
    }
}

// shows: MODEL-2
#[test]
fn nothing_is_quicker_than_its_parts() {
    for servers in [3, 10, 60, 400] {
        for replicas in [0, 3] {
            let found = recover(&ModelOptions {
                replicas,
                ..options(servers, USUAL)
            })
            .unwrap();
            assert!(
                found.bound_s <= found.total_s - found.detected_s,
                "{found:?}"
            );
            let steps = [
                found.detected_s,
                found.planned_s,
                found.read_s,
                found.replayed_s,
                found.durable_s,
                found.total_s,
            ];
            assert!(steps.is_sorted(), "{steps:?}");
        }
    }
}

#[test]
fn more_servers_recover_the_same_data_sooner_and_more_data_takes_longer() {
    let by_servers = [5, 10, 20, 40, 80].map(|servers| total(&options(servers, USUAL)));
    assert!(by_servers.is_sorted_by(|a, b| a > b), "{by_servers:?}");
    let by_data = [4, 8, 16, 32].map(|gb| {
        let data = LostData::Fixed(Size(gb * 1_000_000_000));
        total(&ModelOptions {
            data,
            ..options(20, USUAL)
        })
    });
    assert!(by_data.is_sorted_by(|a, b| a < b), "{by_data:?}");
}

#[test]
fn tablets_are_not_given_away_before_leases_have_ended() {
    let costs = Costs {
        lease_ms: 30_000.0,
        ..USUAL
    };
    let found = recover(&options(40, costs)).unwrap();
    assert!(found.durable_s < 30.0 && found.total_s > 30.0, "{found:?}");
}

#[test]
fn masters_that_are_not_followed_weigh_as_much() {
    // 1000 segments on 100 servers are 100 000 fetches, all followed; with smaller segments a part
    // is.
    let all = options(101, USUAL);
    let sampled = ModelOptions {
        segment_mb: 0.2,
        ..all
    };
    let weight = |options: &ModelOptions| Model::new(options).weight;
    assert_eq!(weight(&all), 1.0);
    assert!(weight(&sampled) > 3.0);
    let busy = |options: &ModelOptions| {
        let mut model = Model::new(options);
        model.plan();
        while let Some((now, event)) = model.agenda.next() {
            model.happens(now, event);
        }
        let seconds = |of: fn(&Server) -> &Station| {
            model
                .servers
                .iter()
                .map(|s| seconds(of(s).busy))
                .sum::<f64>()
        };
        [
            seconds(|s| &s.inward),
            seconds(|s| &s.outward),
            seconds(|s| &s.disk),
        ]
    };
    for (all, sampled) in busy(&all).into_iter().zip(busy(&sampled)) {
        close(sampled, all, 0.03);
    }
}

// shows: MODEL-1
#[test]
fn runs_repeat() {
    let one = options(30, USUAL);
    assert_eq!(recover(&one).unwrap(), recover(&one).unwrap());
    let other = ModelOptions { seed: 2, ..one };
    assert_ne!(recover(&one).unwrap(), recover(&other).unwrap());
}

#[test]
fn senseless_options_are_refused_by_name() {
    type Change = (fn(&mut ModelOptions), &'static str);
    let changes: [Change; 6] = [
        (|o| o.servers = 1, "--servers 1: 2 to 100000"),
        (|o| o.cores = 0, "--cores 0: 1 to 1024"),
        (|o| o.fetches = 0, "--fetches 0: 1 to 1024"),
        (|o| o.costs.disk_mb_per_s = 0.0, "--disk-mb-per-s 0: 0.1 to"),
        (|o| o.costs.store_us = f64::NAN, "--store-us NaN: 0 to"),
        (
            |o| o.data = LostData::Fixed(Size(10)),
            "--data 10B: 1 MB to",
        ),
    ];
    for (change, reason) in changes {
        let mut wrong = options(10, USUAL);
        change(&mut wrong);
        let error = recover(&wrong).unwrap_err().to_string();
        assert!(error.contains(reason), "{error}");
    }
}
