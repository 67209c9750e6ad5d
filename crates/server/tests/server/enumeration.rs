//! Going through a table while its tablets are cut, move and are recovered: with real servers.

use crate::rig::{LONG, Rig};
use bytes::Bytes;
use pluvio_client::Table;
use pluvio_env::Moment;
use pluvio_units::{HashKind, KeyHash, ServerId};
use pluvio_wire::WhichTablet;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// Objects that are there all the time.
const STEADY: u32 = 300;
/// Of each kind of event.
const EVENTS: u64 = 4;

/// Times by the clock of the process that goes through the table.
struct Scan {
    begun: Moment,
    ended: Moment,
    /// How often each key came.
    seen: BTreeMap<Vec<u8>, u32>,
}

#[derive(Default)]
struct Scans {
    done: Vec<Scan>,
    enough: bool,
}

/// Goes through the table again and again, in small steps.
fn scan(rig: &Rig, table: &Table) -> Arc<Mutex<Scans>> {
    let scans = Arc::<Mutex<Scans>>::default();
    for batch in [3, 40] {
        let (client, table, scans) = (rig.connect(&rig.client), table.clone(), scans.clone());
        let clock = rig.client.env.clock.clone();
        rig.sim.spawn(rig.client.id, "scans", async move {
            while !scans.lock().unwrap().enough {
                let (begun, mut seen) = (clock.now(), BTreeMap::new());
                let mut enumeration = client.enumerate(&table).keys_only().batch_items(batch);
                while let Some(objects) = enumeration.next_batch().await.unwrap() {
                    for object in objects {
                        *seen.entry(object.key).or_default() += 1;
                    }
                    clock.sleep(Duration::from_millis(3)).await;
                }
                let ended = clock.now();
                let scan = Scan { begun, ended, seen };
                scans.lock().unwrap().done.push(scan);
            }
        });
    }
    scans
}

/// Objects that come and go.
fn change(rig: &Rig, table: &Table) {
    let (client, table) = (rig.connect(&rig.other), table.clone());
    rig.sim.spawn(rig.other.id, "changes", async move {
        for turn in 0_u32.. {
            let key = format!("passing {}", turn % 50);
            let done = match turn / 50 % 2 {
                0 => client
                    .write(&table, key.as_bytes(), Bytes::from("x"))
                    .await
                    .map(drop),
                _ => client.delete(&table, key.as_bytes()).await.map(drop),
            };
            done.unwrap();
        }
    });
}

/// Moves the tablet of a hash to another server, to its end.
fn migrate(rig: &Rig, table: &Table, hash: KeyHash) {
    let (client, table) = (rig.connect(&rig.other), table.clone());
    let clock = rig.other.env.clock.clone();
    let ids: Vec<ServerId> = (0..rig.servers.len())
        .filter_map(|i| Some(rig.server(i)?.id()))
        .collect();
    rig.run(&rig.other, async move {
        let tablets = client.table_info(&table).await.unwrap().tablets;
        let owner = tablets
            .iter()
            .find(|t| t.range.contains(hash))
            .unwrap()
            .owner;
        let to = ids.into_iter().find(|id| *id != owner).unwrap();
        let which = WhichTablet::Containing(hash);
        let begun = client.start_migration(&table, which, to).await.unwrap();
        let Some(migration) = begun.migration else {
            return;
        };
        while let Some(status) = client.migration(migration).await.unwrap() {
            if status.done {
                assert!(status.moved, "{}", status.phase);
                return;
            }
            clock.sleep(Duration::from_millis(5)).await;
        }
    });
}

fn scenario(seed: u64) {
    let rig = Rig::of(seed, 5, 2);
    rig.all_started();
    let kind = [HashKind::Seeded, HashKind::Slots][(seed % 2) as usize];
    let table = rig.fill_hashed("t", STEADY, kind);
    let scans = scan(&rig, &table);
    change(&rig, &table);
    let mut events: BTreeMap<&str, Vec<Moment>> = BTreeMap::new();
    let mut note = |what| {
        let now = rig.client.env.clock.now();
        events.entry(what).or_default().push(now);
    };
    for event in 0..EVENTS {
        // Somewhere in the table, elsewhere each time.
        let hash = KeyHash((seed + event + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15));
        rig.sim.run_for(Duration::from_millis(20));
        let (client, also) = (rig.connect(&rig.other), table.clone());
        note("cut");
        rig.run(&rig.other, async move {
            client.split_tablet(&also, Some(hash)).await.unwrap();
        });
        rig.sim.run_for(Duration::from_millis(20));
        note("moved");
        migrate(&rig, &table, hash);
        note("moved");
        rig.sim.run_for(Duration::from_millis(20));
        let victim = rig.owner(&table, format!("key {event}").as_bytes());
        let victim = victim.expect("somebody serves it");
        note("crashed");
        rig.restart(victim, 2);
        rig.all_started();
        rig.check("t", STEADY);
    }
    scans.lock().unwrap().enough = true;
    let before = scans.lock().unwrap().done.len();
    rig.sim
        .run_until(|| scans.lock().unwrap().done.len() >= before + 2, LONG)
        .unwrap_or_else(|stuck| panic!("seed {seed}: {stuck}"));

    let scans = std::mem::take(&mut scans.lock().unwrap().done);
    for Scan { begun, ended, seen } in &scans {
        let when = format!("seed {seed}, from {begun:?} to {ended:?}");
        for i in 0..STEADY {
            let times = seen.get(format!("key {i}").as_bytes()).copied();
            assert_eq!(times, Some(1), "{when}: key {i}");
        }
        // Keys that come and go are in one place too.
        assert!(seen.values().all(|times| *times == 1), "{when}");
    }
    for (what, times) in events {
        let met = |at: &&Moment| scans.iter().any(|s| s.begun < **at && **at < s.ended);
        let met = times.iter().filter(met).count();
        assert!(met > 0, "seed {seed}: nobody met a tablet that was {what}");
    }
}

#[test]
fn objects_that_stay_come_exactly_once_while_tablets_are_cut_and_move_and_servers_crash() {
    (0..3).for_each(scenario);
}
