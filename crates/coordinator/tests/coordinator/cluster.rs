//! The coordinator among scripted servers: membership, tables, recovery.

use crate::common::{Cluster, OnRecover, enlist};
use pluvio_sim::{NetworkFaults, SimOptions};
use pluvio_units::{ClusterId, HashKind, KeyHash, LogId, ReplicationEpoch, SegmentId, ServerId};
use pluvio_wire::{
    Balance, BalanceWish, CreateTable, DropTable, Enlist, FatalKind, GetTable, GiveUpLost,
    MigrateTablet, Ping, RecoveryStage, Refusal, RetryReason, RpcError, SetReplicationEpoch,
    SplitTablet, TableInfo, TableRef, TabletState, WhichTablet,
};
use std::collections::BTreeSet;
use std::time::Duration;

const SECOND: Duration = Duration::from_secs(1);

fn cluster(servers: usize) -> Cluster {
    Cluster::with_servers(7, SimOptions::default(), servers)
}

fn fatal<T: std::fmt::Debug>(result: Result<T, RpcError>) -> FatalKind {
    match result {
        Err(RpcError::Refused(refusal)) => refusal.fatal_kind().expect("a final refusal"),
        other => panic!("a refusal was expected, not {other:?}"),
    }
}

fn named(name: &str) -> TableRef {
    TableRef::Name(name.into())
}

#[test]
fn servers_that_enlist_are_known_to_all() {
    let cluster = cluster(4);
    let status = cluster.calm_down();
    let ids: Vec<u64> = status.list.servers.iter().map(|s| s.id.0).collect();
    assert_eq!(ids, [1, 2, 3, 4]);
    assert!(status.list.grown);
    assert_eq!(status.servers.len(), 4);
}

#[test]
fn a_table_is_answered_when_its_servers_have_it() {
    let cluster = cluster(3);
    let table = cluster.create_table("t");
    assert_eq!(table.tablets.len(), 3);
    assert_eq!(table.addresses.len(), 3);
    assert!(table.tablets.iter().all(|t| t.state == TabletState::Normal));
    assert!((0..3).all(|i| cluster.server(i).owned.len() == 1));
    assert_eq!(cluster.create_table("t"), table);
    assert_eq!(
        fatal(cluster.ask(GetTable { table: named("u") })),
        FatalKind::NoSuchTable
    );
    let bad = CreateTable {
        name: String::new(),
        span: None,
        hash: HashKind::Seeded,
        ..CreateTable::default()
    };
    assert_eq!(fatal(cluster.ask(bad)), FatalKind::BadTableName);
    cluster.calm_down();
}

#[test]
fn a_dropped_table_is_gone_everywhere_and_its_name_is_free() {
    let cluster = cluster(3);
    let old = cluster.create_table("t");
    cluster.ask(DropTable::of(named("t"))).unwrap();
    assert!((0..3).all(|i| cluster.server(i).owned.is_empty()));
    assert_eq!(
        fatal(cluster.ask(DropTable::of(named("t")))),
        FatalKind::NoSuchTable
    );
    assert_ne!(cluster.create_table("t").id, old.id);
    let status = cluster.calm_down();
    assert_eq!(status.tables.len(), 1);
}

#[test]
fn a_drop_is_answered_when_nobody_serves_the_table_however_often_it_is_asked_for() {
    for has_new_leader in [false, true] {
        let cluster = cluster(3);
        cluster.create_table("t");
        cluster.server(1).behaviour.drops_put_off = 40;
        let first = cluster.try_once(DropTable::of(named("t")));
        assert!(
            matches!(&first, Err(RpcError::Refused(Refusal::Retry { .. }))),
            "{first:?}"
        );
        assert!(!cluster.server(1).owned.is_empty());
        if has_new_leader {
            cluster.crash_coordinator();
            cluster.restart_coordinator();
        }
        // The name is free, but a caller that hears so must not find the old table served.
        let again = cluster.ask(DropTable::of(named("t")));
        assert_eq!(fatal(again), FatalKind::NoSuchTable);
        assert!(cluster.server(1).owned.is_empty());
        cluster.calm_down();
    }
}

/// A caller that drops the second one must not find the first one served.
#[test]
fn a_drop_waits_for_earlier_tables_of_the_name_too() {
    let cluster = cluster(3);
    cluster.create_table("t");
    cluster.server(1).behaviour.drops_put_off = 40;
    let first = cluster.try_once(DropTable::of(named("t")));
    assert!(first.is_err(), "{first:?}");
    let second = cluster.create_table("t");
    assert!(cluster.server(1).behaviour.drops_put_off > 0);
    let waits_for_the_first = cluster.try_once(DropTable::of(TableRef::Id(second.id)));
    assert!(waits_for_the_first.is_err(), "{waits_for_the_first:?}");
    let only_wait = DropTable {
        table: named("t"),
        only_wait: true,
        keep_quota: false,
    };
    assert_eq!(fatal(cluster.ask(only_wait)), FatalKind::NoSuchTable);
    assert!(cluster.server(1).owned.is_empty());
    cluster.calm_down();
}

#[test]
fn a_request_that_only_waits_drops_nothing() {
    let cluster = cluster(1);
    let table = cluster.create_table("t");
    let only_wait = DropTable {
        table: named("t"),
        only_wait: true,
        keep_quota: false,
    };
    assert_eq!(fatal(cluster.ask(only_wait)), FatalKind::NoSuchTable);
    let found = cluster.ask(GetTable { table: named("t") }).unwrap();
    assert_eq!(found.id, table.id);
    cluster.calm_down();
}

#[test]
fn a_split_is_told_to_the_owner() {
    let cluster = cluster(1);
    let table = cluster.create_table("t");
    let at = Some(KeyHash(42));
    let split = SplitTablet {
        table: TableRef::Id(table.id),
        at,
    };
    let info = cluster.ask(split.clone()).unwrap();
    assert_eq!(info.tablets.len(), 2);
    assert_eq!(cluster.ask(split).unwrap(), info);
    cluster.until("the owner knows", |c| c.server(0).cuts == [KeyHash(42)]);
    cluster.calm_down();
}

#[test]
fn a_crashed_server_is_found_recovered_and_forgotten() {
    let cluster = cluster(4);
    cluster.create_table("t");
    cluster.create_table("u");
    let crashed = cluster.id(1);
    cluster.crash(1);
    let status = cluster.calm_down();
    assert_eq!(status.list.servers.len(), 3);
    let recovery = &status.recoveries[0];
    assert!(recovery.done);
    assert_eq!((recovery.crashed, recovery.tablets), (crashed, 2));
    assert_eq!((recovery.attempts, recovery.segments), (1, 2));
    // Refused connections, so it was fast, but not before a zombie could have known.
    assert!(recovery.duration_ms >= 250, "{recovery:?}");
    assert!(cluster.sim.now() < 10 * SECOND);
}

#[test]
fn a_big_server_is_recovered_by_all_others() {
    let cluster = cluster(5);
    cluster.server(0).behaviour.live_bytes = 1 << 30;
    cluster.create_table("t");
    cluster.crash(0);
    let status = cluster.calm_down();
    let recovery = &status.recoveries[0];
    assert_eq!(recovery.masters.len(), 4);
    // Each has a part, beside the tablet that it had.
    assert_eq!(status.tables[0].tablets.len(), 8);
}

// shows: COORD-18
#[test]
fn restarts_of_all_servers_again_and_again_do_not_use_up_the_tablets_of_a_table() {
    let _marks = pluvio_units::Marks::to_reach(&["tablets-joined", "balance-move"]);
    let servers = 8;
    let cluster = cluster(servers);
    for index in 0..servers {
        cluster.server(index).behaviour.live_bytes = 1 << 30;
    }
    cluster.create_table("t");
    let mut most = 0;
    for _ in 0..3 {
        for index in 0..servers {
            cluster.crash(index);
            cluster.restart(index);
            most = most.max(cluster.calm_down().tables[0].tablets.len());
        }
    }
    // Without joins there are about a hundred by now.
    assert!(most > 3 * servers, "cuts were made: {most}");
    for _ in 0..600 {
        cluster.sim.run_for(Duration::from_secs(1));
        if cluster.status().tables[0].tablets.len() <= 2 * servers + 8 {
            cluster.calm_down();
            return;
        }
    }
    panic!("the table stays in pieces: {:#?}", cluster.status());
}

// shows: COORD-18
#[test]
fn a_tablet_that_was_cut_by_a_migration_is_whole_again_when_the_part_comes_back() {
    let cluster = cluster(3);
    cluster.create_table("t");
    let whole = cluster.status().tables[0].tablets[0];
    let [part, _] = whole.range.split(2)[..] else {
        panic!("two parts");
    };
    let other = cluster.status().tables[0].tablets[1].owner;
    for (to, tablets) in [(other, 4), (whole.owner, 3)] {
        let (table, tablet) = (named("t"), WhichTablet::Range(part));
        cluster.ask(MigrateTablet { table, tablet, to }).unwrap();
        let is_done =
            |info: &TableInfo| info.tablets.len() == tablets && info.tablets[0].owner == to;
        for _ in 0..100 {
            if is_done(&cluster.status().tables[0]) {
                break;
            }
            cluster.sim.run_for(Duration::from_millis(100));
        }
        let status = cluster.calm_down();
        assert!(is_done(&status.tables[0]), "{:#?}", status.tables);
    }
    // What somebody cut by hand stays in two.
    let at = Some(part.last);
    cluster
        .ask(SplitTablet {
            table: named("t"),
            at,
        })
        .unwrap();
    cluster.sim.run_for(Duration::from_secs(20));
    assert_eq!(cluster.status().tables[0].tablets.len(), 4);
}

// shows: COORD-2
#[test]
fn the_switch_of_balancing_outlives_the_coordinator() {
    let cluster = cluster(2);
    cluster.create_table("t");
    let ask = |wish| cluster.ask(Balance { wish }).unwrap();
    assert!(ask(BalanceWish::Look).on);
    assert!(!ask(BalanceWish::Off).on);
    cluster.crash_coordinator();
    cluster.restart_coordinator();
    let off = ask(BalanceWish::Look);
    assert_eq!((off.on, off.phase.as_str()), (false, "off"));
    assert!(ask(BalanceWish::On).on && ask(BalanceWish::Plan).moves.is_empty());
}

#[test]
fn more_partitions_than_masters_take_several_attempts() {
    // A load too large for one partition of 500 MB may still be one of several times that; see
    // `partition`.
    for (gib, attempts) in [(3, 1), (12, 4)] {
        let cluster = cluster(2);
        cluster.server(0).behaviour.live_bytes = gib << 30;
        cluster.create_table("t");
        cluster.crash(0);
        let status = cluster.calm_down();
        let found = &status.recoveries;
        assert_eq!(found[0].attempts, attempts, "{gib} GiB: {found:?}");
    }
}

#[test]
fn a_restarted_server_is_a_new_one_and_its_former_life_is_recovered() {
    let cluster = cluster(3);
    cluster.create_table("t");
    let old = cluster.id(2);
    cluster.crash(2);
    cluster.restart(2);
    let status = cluster.calm_down();
    let new = cluster.id(2);
    assert_ne!(new, old);
    assert!(status.list.is_up(new) && status.list.get(old).is_none());
    assert_eq!(status.recoveries[0].crashed, old);
}

#[test]
fn the_only_server_recovers_from_its_own_disk() {
    let cluster = cluster(1);
    cluster.create_table("t");
    cluster.crash(0);
    cluster.restart(0);
    let status = cluster.calm_down();
    assert!(!status.list.grown);
    assert_eq!(status.tables[0].tablets[0].owner, cluster.id(0));
    assert!(status.recoveries[0].done);
}

#[test]
fn a_cold_start_brings_everything_back() {
    let cluster = cluster(5);
    for name in ["a", "b", "c"] {
        cluster.create_table(name);
    }
    for index in 0..5 {
        cluster.crash(index);
    }
    cluster.crash_coordinator();
    cluster.sim.run_for(SECOND);
    cluster.restart_coordinator();
    cluster.sim.run_for(5 * SECOND);
    for index in 0..5 {
        cluster.restart(index);
        cluster.sim.run_for(SECOND / 3);
    }
    let status = cluster.calm_down();
    assert_eq!(status.recoveries.len(), 5);
    assert_eq!(status.tables.len(), 3);
    assert_eq!(status.list.servers.len(), 5);
}

#[test]
fn an_incomplete_log_is_waited_for_and_said_so() {
    let cluster = cluster(3);
    cluster.create_table("t");
    for index in [1, 2] {
        cluster.server(index).behaviour.disk_lost = true;
    }
    cluster.crash(0);
    cluster.sim.run_for(5 * SECOND);
    let status = cluster.status();
    let recovery = &status.recoveries[0];
    assert!(!recovery.done && recovery.attempts > 3);
    let is_missing = matches!(
        &recovery.stage,
        RecoveryStage::AwaitingBackups { missing } if missing.contains("none has an open head")
    );
    assert!(is_missing, "{}", recovery.stage);
    assert!(recovery.duration_ms > 2000);
    cluster.server(2).behaviour.disk_lost = false;
    let status = cluster.calm_down();
    assert!(status.recoveries[0].done);
}

/// No backup has an open head any more, nor will it come back.
// shows: COORD-19
#[test]
fn what_is_lost_for_good_is_given_up_when_exactly_that_is_named() {
    let _marks = pluvio_units::Marks::to_reach(&["recovery-gives-up"]);
    let cluster = cluster(3);
    cluster.create_table("t");
    let dead = cluster.id(0);
    let give_up = |confirmed| {
        cluster.ask(GiveUpLost {
            server: dead,
            by: "operator".into(),
            confirmed,
        })
    };
    assert_eq!(fatal(give_up(None)), FatalKind::NotFound, "it is up");
    for index in [1, 2] {
        cluster.server(index).behaviour.disk_lost = true;
    }
    cluster.crash(0);
    let stage = |c: &Cluster| c.status().recoveries.first().map(|r| r.stage.clone());
    let waits = |c: &Cluster| matches!(stage(c), Some(RecoveryStage::AwaitingBackups { .. }));
    cluster.sim.run_for(5 * SECOND);
    assert!(waits(&cluster));
    let seen = give_up(None).unwrap();
    assert!(!seen.recorded);
    let named: Vec<_> = seen.loss.tables.iter().map(|t| t.name.as_str()).collect();
    assert_eq!((named, seen.loss.bytes_max), (vec!["t"], None));
    let token = seen.loss.token;
    assert_eq!(fatal(give_up(Some(token + 1))), FatalKind::Other);
    cluster.sim.run_for(20 * SECOND);
    assert!(waits(&cluster), "to ask changes nothing");
    assert_eq!(cluster.status().losses, []);
    assert!(give_up(Some(token)).unwrap().recorded);
    cluster.crash_coordinator();
    cluster.restart_coordinator();
    let status = cluster.calm_down();
    assert!(status.list.get(dead).is_none());
    let [loss] = &status.losses[..] else {
        panic!("{:?}", status.losses);
    };
    assert_eq!((loss.server, loss.by.as_str()), (dead, "operator"));
    assert!(loss.at_s > 0);
    assert_eq!(
        fatal(give_up(Some(token))),
        FatalKind::NotFound,
        "it is over"
    );
}

/// A backup that is up may have what seems to be lost.
// shows: COORD-19
#[test]
fn nothing_is_given_up_while_a_server_has_not_said_what_it_has() {
    let cluster = cluster(3);
    cluster.create_table("t");
    let dead = cluster.id(0);
    cluster.server(1).behaviour.disk_lost = true;
    cluster.server(2).behaviour.silent_backup = true;
    cluster.crash(0);
    cluster.until("it is dead", |c| !c.server(1).list.is_up(dead));
    let request = GiveUpLost {
        server: dead,
        by: String::new(),
        confirmed: None,
    };
    let asked = cluster.ask_once(request, 5 * SECOND);
    assert!(
        !matches!(asked, Ok(_) | Err(RpcError::Refused(Refusal::Fatal { .. }))),
        "{asked:?}"
    );
    cluster.server(2).behaviour.silent_backup = false;
    let status = cluster.calm_down();
    assert_eq!(status.losses, []);
}

#[test]
fn what_one_recovery_master_cannot_do_another_attempt_does() {
    for script in [OnRecover::Fail, OnRecover::Refuse] {
        let cluster = cluster(4);
        cluster.create_table("t");
        for index in 1..4 {
            cluster.server(index).behaviour.on_recover = vec![script];
        }
        cluster.crash(0);
        let status = cluster.calm_down();
        assert!(status.recoveries[0].attempts > 1, "{:?}", status.recoveries);
    }
}

#[test]
fn a_recovery_master_that_failed_is_not_asked_before_others() {
    let mut failed = 0;
    for seed in 0..10 {
        let cluster = Cluster::with_servers(seed, SimOptions::default(), 3);
        cluster.create_table("t");
        cluster.server(1).behaviour.on_recover = vec![OnRecover::Fail; 100];
        cluster.crash(0);
        let status = cluster.calm_down();
        let attempts = status.recoveries[0].attempts;
        assert!(attempts <= 2, "seed {seed}: {:?}", status.recoveries);
        failed += usize::from(attempts == 2);
    }
    assert!(failed > 0, "it was never asked");
}

#[test]
fn a_recovery_master_that_crashes_is_replaced_at_once() {
    let cluster = cluster(4);
    cluster.create_table("t");
    for index in 1..4 {
        cluster.server(index).behaviour.on_recover = vec![OnRecover::Forget];
    }
    cluster.crash(0);
    let busy = |c: &Cluster| (1..4).find(|i| !c.server(*i).recoveries.is_empty());
    cluster.until("somebody recovers", |c| busy(c).is_some());
    for index in 1..4 {
        cluster.server(index).behaviour.on_recover.clear();
    }
    let second = busy(&cluster).unwrap();
    cluster.crash(second);
    let status = cluster.calm_down();
    assert_eq!(status.list.servers.len(), 2);
    assert_eq!(status.recoveries.len(), 2);
}

#[test]
fn a_table_dropped_while_it_is_recovered_leaves_nothing_behind() {
    for delay in [0, 200, 300, 310, 330, 400] {
        let cluster = cluster(3);
        cluster.create_table("t");
        cluster.create_table("u");
        cluster.crash(0);
        cluster.sim.run_for(Duration::from_millis(delay));
        match cluster.ask(DropTable::of(named("t"))) {
            Ok(()) => {}
            // Refused at first: until the owner's death is known its tablet counts as served.
            again => assert_eq!(fatal(again), FatalKind::NoSuchTable),
        }
        let status = cluster.calm_down();
        assert_eq!(status.tables.len(), 1);
    }
}

#[test]
fn a_table_is_created_although_an_owner_crashes_before_it_confirms() {
    let cluster = cluster(3);
    // It does not answer, and is not yet known to be dead.
    cluster.sim.pause(cluster.machines[1].process);
    let table = cluster.create_table("t");
    assert_eq!(table.tablets.len(), 3);
    cluster.crash(1);
    let status = cluster.calm_down();
    assert_eq!(status.list.servers.len(), 2);
    assert_eq!(status.recoveries[0].tablets, 0);
}

#[test]
fn what_a_crashed_owner_did_not_confirm_is_given_away_when_its_lease_is_over() {
    let cluster = cluster(3);
    let [survivor, late] = [0, 2];
    let crashed = cluster.id(1);
    cluster.sim.pause(cluster.machines[1].process);
    let asked = cluster.try_once(CreateTable {
        name: "t".into(),
        span: None,
        hash: HashKind::Seeded,
        ..CreateTable::default()
    });
    assert!(asked.is_err(), "server 1 did not confirm: {asked:?}");
    cluster.sim.pause(cluster.machines[late].process);
    cluster.crash(1);
    cluster.until("one survivor takes part", |c| {
        c.server(survivor).fenced.contains(&crashed)
    });
    // Less than what would make it a suspect that is convicted.
    cluster.sim.run_for(SECOND * 9 / 10);
    assert!(!cluster.server(late).fenced.contains(&crashed));
    let owned = |c: &Cluster| c.server(survivor).owned.len() + c.server(late).owned.len();
    assert_eq!(owned(&cluster), 2, "before the lease of server 1 is over");
    cluster.sim.resume(cluster.machines[late].process);
    cluster.until("all survivors take part", |c| {
        c.server(late).fenced.contains(&crashed)
    });
    let fenced = cluster.sim.now();
    cluster.until("the tablet has another owner", |c| owned(c) == 3);
    let grace = cluster.sim.now() - fenced;
    assert!(grace >= Duration::from_millis(650), "{grace:?}");
    cluster.calm_down();
}

#[test]
fn living_owners_are_asked_while_a_crashed_one_is_replaced() {
    let cluster = cluster(3);
    let crashed = cluster.id(1);
    cluster.sim.pause(cluster.machines[1].process);
    cluster.server(2).behaviour.takes_put_off = 1;
    let asked = cluster.try_once(CreateTable {
        name: "t".into(),
        span: None,
        hash: HashKind::Seeded,
        ..CreateTable::default()
    });
    assert!(asked.is_err(), "two have not confirmed: {asked:?}");
    assert!(cluster.server(2).owned.is_empty());
    cluster.crash(1);
    cluster.until("the survivors take part", |c| {
        [0, 2]
            .into_iter()
            .all(|i| c.server(i).fenced.contains(&crashed))
    });
    let fenced = cluster.sim.now();
    cluster.until("server 2 has its tablet", |c| !c.server(2).owned.is_empty());
    let waited = cluster.sim.now() - fenced;
    assert!(waited < Duration::from_millis(100), "{waited:?}");
    let owned = cluster.server(0).owned.len() + cluster.server(2).owned.len();
    assert_eq!(owned, 2, "before the lease of server 1 is over");
    cluster.calm_down();
}

// shows: LEASE-4
#[test]
fn tablets_without_replicas_start_anew_after_a_crash() {
    let mut cluster = cluster(0);
    for _ in 0..2 {
        let index = cluster.add_machine();
        cluster.server(index).behaviour.volatile = true;
        cluster.until("it is enlisted", |c| c.id(index) != ServerId(0));
    }
    let index = 1;
    cluster.create_table("t");
    let crashed = cluster.id(index);
    cluster.crash(index);
    let status = cluster.calm_down();
    assert!(status.list.get(crashed).is_none());
    assert!(cluster.server(0).recoveries.is_empty());
    // It may have served that long after it was declared dead (LEASE-4).
    assert!(status.recoveries[0].duration_ms >= 650, "{status:?}");
    let (warnings, _) = cluster.sim.warnings();
    assert!(
        warnings.iter().any(|w| w.contains("ARE LOST")),
        "{warnings:?}"
    );
}

/// One server that was started with `--replicas 0` by mistake makes no new table unsafe.
#[test]
fn new_tables_go_to_servers_that_keep_replicas_if_there_are_any() {
    let mut cluster = cluster(2);
    let index = cluster.add_machine();
    cluster.server(index).behaviour.volatile = true;
    cluster.until("it is enlisted", |c| c.id(index) != ServerId(0));
    let table = cluster.create_table("t");
    let owners: BTreeSet<ServerId> = table.tablets.iter().map(|t| t.owner).collect();
    assert_eq!(owners, BTreeSet::from([cluster.id(0), cluster.id(1)]));
}

#[test]
fn a_server_that_pauses_for_a_moment_stays_a_member() {
    let cluster = cluster(3);
    cluster.create_table("t");
    for _ in 0..10 {
        cluster.sim.pause(cluster.machines[0].process);
        let suspect = cluster.id(0);
        cluster.hint(suspect).unwrap();
        cluster.sim.run_for(Duration::from_millis(700));
        cluster.sim.resume(cluster.machines[0].process);
        cluster.sim.run_for(Duration::from_millis(300));
    }
    let status = cluster.calm_down();
    assert!(status.recoveries.is_empty());
    assert_eq!(status.list.servers.len(), 3);
}

/// DETECT-2
// shows: DETECT-2
#[test]
fn silent_servers_are_declared_dead_one_by_one() {
    let cluster = cluster(6);
    cluster.create_table("t");
    let began = cluster.sim.now();
    for index in 0..4 {
        cluster.sim.pause(cluster.machines[index].process);
        let suspect = cluster.id(index);
        cluster.hint(suspect).unwrap();
    }
    // After one second, two, four and eight, and the pings before a verdict.
    for (dead, seconds) in [(1, 1), (2, 2), (3, 4), (4, 8)] {
        let up = |c: &Cluster| c.server(5).list.up().count();
        cluster.until("one more is dead", |c| up(c) <= 6 - dead);
        assert_eq!(up(&cluster), 6 - dead);
        let silent = cluster.sim.now() - began;
        let expected = (seconds * SECOND * 9 / 10)..(seconds * SECOND + 3 * SECOND / 2);
        assert!(expected.contains(&silent), "the {dead}. after {silent:?}");
    }
    // They come back as zombies, learn it, and everything is with the two others.
    for index in 0..4 {
        cluster.sim.resume(cluster.machines[index].process);
    }
    let status = cluster.calm_down();
    assert_eq!(status.list.servers.len(), 2);
    cluster.until("the zombies know", |c| (0..4).all(|i| c.server(i).is_dead));
}

/// Of ten servers four stand in one rack, which loses its power.
// shows: DETECT-4
#[test]
fn a_rack_that_falls_silent_is_declared_dead_as_one() {
    let _marks = pluvio_units::Marks::to_reach(&["detect-rack-silent"]);
    let dead_after = |racks: bool| {
        let mut cluster = cluster(0);
        for index in 0..10 {
            let rack = if index < 4 { 'a' } else { 'b' };
            let added = cluster.add_machine();
            cluster.server(added).behaviour.rack = racks.then(|| rack.to_string());
            cluster.until("it is enlisted", |c| c.id(added) != ServerId(0));
        }
        cluster.create_table("t");
        let began = cluster.sim.now();
        for index in 0..4 {
            cluster.sim.pause(cluster.machines[index].process);
            cluster.hint(cluster.id(index)).unwrap();
        }
        let up = |c: &Cluster| c.server(9).list.up().count();
        cluster.until("the rack is dead", |c| up(c) <= 6);
        let took = cluster.sim.now() - began;
        cluster.sim.run_for(10 * SECOND);
        assert_eq!(up(&cluster), 6);
        took
    };
    let (with, without) = (dead_after(true), dead_after(false));
    assert!(with < 4 * SECOND, "{with:?}");
    assert!(without > 7 * SECOND, "{without:?}");
}

/// The coordinator has lost contact to the larger rack.
// shows: DETECT-4
#[test]
fn a_rack_with_the_majority_is_never_declared_dead_as_one() {
    let mut cluster = cluster(0);
    for index in 0..7 {
        let added = cluster.add_machine();
        let rack = if index < 4 { 'a' } else { 'b' };
        cluster.server(added).behaviour.rack = Some(rack.to_string());
        cluster.until("it is enlisted", |c| c.id(added) != ServerId(0));
    }
    for index in 0..4 {
        cluster.sim.pause(cluster.machines[index].process);
        cluster.hint(cluster.id(index)).unwrap();
    }
    let began = cluster.sim.now();
    let up = |c: &Cluster| c.server(6).list.up().count();
    cluster.until("one by one", |c| up(c) <= 3);
    assert!(cluster.sim.now() - began > 7 * SECOND);
}

/// DETECT-2: on a starved machine most servers stand still most of the time.
// shows: DETECT-2
#[test]
fn servers_that_run_by_jerks_are_not_declared_dead_one_after_the_other() {
    let cluster = cluster(6);
    cluster.create_table("t");
    for _ in 0..40 {
        for index in 0..4 {
            cluster.sim.pause(cluster.machines[index].process);
            let suspect = cluster.id(index);
            cluster.hint(suspect).unwrap();
        }
        cluster.sim.run_for(Duration::from_millis(1_800));
        for index in 0..4 {
            cluster.sim.resume(cluster.machines[index].process);
        }
        cluster.sim.run_for(Duration::from_millis(200));
    }
    let status = cluster.calm_down();
    assert_eq!(status.list.servers.len(), 5, "one is taken for dead");
    assert_eq!(status.recoveries.len(), 1);
}

#[test]
fn a_stale_head_is_not_recovered_from_even_by_another_incarnation() {
    let cluster = cluster(3);
    cluster.create_table("t");
    let (of, server) = (cluster.status().cluster, cluster.id(0));
    let set = |segment, epoch| SetReplicationEpoch {
        cluster: of,
        server,
        log: LogId(0),
        segment: SegmentId(segment),
        epoch: ReplicationEpoch(epoch),
    };
    cluster.ask(set(2, 3)).unwrap();
    cluster.crash_coordinator();
    cluster.restart_coordinator();
    cluster.server(1).behaviour.epoch = 2;
    cluster.server(2).behaviour.epoch = 2;
    cluster.crash(0);
    cluster.sim.run_for(5 * SECOND);
    assert!(!cluster.status().recoveries[0].done);
    assert_eq!(fatal(cluster.ask(set(2, 4))), FatalKind::NotInCluster);
    cluster.server(2).behaviour.epoch = 3;
    cluster.calm_down();
}

#[test]
fn strangers_are_refused() {
    let cluster = cluster(1);
    let other_cluster = Enlist {
        cluster: Some(ClusterId(1)),
        ..enlist(1, "elsewhere")
    };
    assert_eq!(fatal(cluster.ask(other_cluster)), FatalKind::WrongCluster);
    let unknown = pluvio_env::Frame {
        opcode: 9999,
        ..pluvio_wire::encode(&pluvio_wire::Header::default(), &Ping { from: ServerId(0) })
    };
    assert_eq!(cluster.send(unknown).opcode, 9999);
    let garbage = pluvio_env::Frame {
        opcode: pluvio_wire::Opcode::Enlist as u16,
        meta: vec![0xff; 50].into(),
        payload: bytes::Bytes::new(),
    };
    assert_eq!(cluster.send(garbage).meta[0], 1);
    cluster.calm_down();
}

#[test]
fn a_copy_of_a_live_servers_directory_does_not_end_that_server() {
    let cluster = cluster(2);
    let copy = Enlist {
        replaces: Some(cluster.id(0)),
        ..enlist(1, "elsewhere")
    };
    let of_another = Enlist {
        cluster: Some(ClusterId(1)),
        ..copy.clone()
    };
    assert_eq!(fatal(cluster.ask(of_another)), FatalKind::WrongCluster);
    let refused = fatal(cluster.ask(copy.clone()));
    assert_eq!(refused, FatalKind::AlreadyRunning);
    let status = cluster.calm_down();
    assert!(status.list.is_up(cluster.id(0)));
    // Without it there is nobody whose directory it could be a copy of.
    cluster.crash(0);
    let welcome = cluster.ask(copy).expect("it is the successor");
    assert!(!welcome.list.is_up(cluster.id(0)));
}

// shows: COORD-1
#[test]
fn a_store_that_fails_for_a_while_only_delays() {
    let cluster = cluster(2);
    cluster.store.fail_next(3);
    let began = cluster.sim.now();
    cluster.create_table("t");
    assert!(cluster.sim.now() - began > SECOND);
    cluster.calm_down();
}

#[test]
fn who_asks_for_a_change_is_told_that_the_store_takes_none() {
    let cluster = cluster(2);
    let create = |name: &str| {
        let name = name.to_owned();
        let asked = cluster.try_once(CreateTable {
            name,
            span: None,
            hash: HashKind::Slots,
            ..CreateTable::default()
        });
        match asked {
            Err(RpcError::Refused(Refusal::Retry { why, .. })) => why,
            other => panic!("a refusal was expected, not {other:?}"),
        }
    };
    let there = cluster.create_table("there");
    cluster.store.fail_next(u32::MAX);
    assert_eq!(create("begun"), RetryReason::MetadataTrouble);
    assert_eq!(cluster.create_table("there").id, there.id);
    let began = cluster.sim.now();
    assert_eq!(create("not begun"), RetryReason::MetadataTrouble);
    assert!(cluster.sim.now() - began < SECOND / 2, "at once");
    let status = cluster.status();
    let trouble = status.metadata_trouble.as_deref();
    assert!(trouble.is_some_and(|trouble| trouble.contains("a failure was asked for")));
    assert_eq!(status.tables.len(), 1);
    cluster.store.fail_next(0);
    cluster.create_table("later");
    let status = cluster.calm_down();
    let names: Vec<_> = status.tables.iter().map(|t| t.name.as_str()).collect();
    assert_eq!(names, ["begun", "later", "there"]);
    assert_eq!(status.metadata_trouble, None);
}

// shows: LEASE-4
#[test]
fn pings_say_who_is_a_member() {
    let cluster = cluster(2);
    let ping = |from| cluster.ask(Ping { from }).unwrap();
    assert!(ping(ServerId(0)).caller_is_member && ping(ServerId(2)).caller_is_member);
    cluster.crash(1);
    cluster.calm_down();
    assert!(!ping(ServerId(2)).caller_is_member);
    assert_eq!(ping(ServerId(1)).server, ServerId(0));
}

// shows: COORD-3
#[test]
fn on_a_bad_network_everything_still_happens_once() {
    for seed in 0..12 {
        let options = SimOptions {
            network: NetworkFaults {
                duplicate_requests: seed % 2 == 0,
                ..NetworkFaults::bad()
            },
            ..SimOptions::default()
        };
        eprintln!("seed {seed}");
        let cluster = Cluster::with_servers(seed, options, 4);
        cluster.server(0).behaviour.live_bytes = 100 << 20;
        cluster.create_table("t");
        cluster.create_table("u");
        let split = SplitTablet {
            table: named("t"),
            at: Some(KeyHash(1 << 40)),
        };
        cluster.ask(split).unwrap();
        cluster.crash(0);
        cluster.sim.run_for(Duration::from_millis(300));
        cluster.crash(1);
        cluster.sim.run_for(SECOND);
        cluster.restart(0);
        // The reply of an earlier try may have been lost.
        let dropped = cluster.ask(DropTable::of(named("u")));
        assert!(dropped.is_ok() || fatal(dropped) == FatalKind::NoSuchTable);
        cluster.restart(1);
        let status = cluster.calm_down();
        assert_eq!(status.tables.len(), 1, "seed {seed}");
        // The cut that was asked for stays.
        let mut tablets = status.tables[0].tablets.iter();
        assert!(
            tablets.any(|t| t.range.first == KeyHash(1 << 40)),
            "seed {seed}"
        );
    }
}
