//! A tablet is cut under load, and its owner dies when it is told, or the coordinator that tells
//! it.

use crate::load::{Loaded, loaded};
use crate::struck::{self, At, Moment, Victim};
use pluvio_env::Frame;
use pluvio_units::{HashRange, KeyHash};
use pluvio_wire::{Opcode, TabletInfo};

/// The message that tells an owner where its tablet was cut.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Cut;

impl struck::Message for Cut {
    fn of(frame: &Frame) -> Option<Self> {
        let opcode = Opcode::from_number(frame.opcode)?;
        (opcode == Opcode::SplitTabletLocal).then_some(Self)
    }
}

const MIDDLE: KeyHash = KeyHash(1 << 63);

impl Loaded<Cut> {
    /// What the coordinator says of the table's tablets.
    fn tablets(&mut self) -> Vec<TabletInfo> {
        let (client, table) = (self.client.clone(), self.table.clone());
        self.cluster
            .block_on(async move { client.table_info(&table).await.unwrap().tablets })
    }

    /// Runs until servers serve `wanted` tablets, by their own word.
    fn until_served(&mut self, wanted: u64, what: &str) {
        let mut served: u64 = 0;
        for _ in 0..100 {
            let status = self.cluster.status(&self.client);
            served = status.servers.iter().map(|server| server.tablets).sum();
            if served == wanted {
                return;
            }
            for _ in 0..100 {
                self.cluster.tend();
            }
        }
        panic!("{what}: {served} tablets are served");
    }
}

fn strike(seed: u64, moment: Moment, victim: Victim) {
    let what = format!("{victim:?} {moment:?}, seed {seed}");
    let mut loaded: Loaded<Cut> = loaded(seed, 4);
    loaded.cluster.arm(At::first(Cut, moment), victim);
    let (client, table) = (loaded.client.clone(), loaded.table.clone());
    loaded.cluster.block_on(async move {
        client.split_tablet(&table, Some(MIDDLE)).await.unwrap();
    });
    loaded.cluster.until_struck(&what);
    loaded.cluster.until_healthy(&loaded.client);
    let cut = loaded.tablets();
    let ranges: Vec<HashRange> = cut.iter().map(|tablet| tablet.range).collect();
    let halves = [
        HashRange::new(KeyHash(0), KeyHash(MIDDLE.0 - 1)),
        HashRange::new(MIDDLE, KeyHash(u64::MAX)),
    ];
    assert_eq!(ranges, halves, "{what}");
    // Who owns them knows it, too.
    loaded.until_served(2, &what);
    // The lower one goes, the upper one stays.
    let to = loaded.another();
    assert!(loaded.migrate(to), "{what}");
    let moved = loaded.tablets();
    assert_eq!(moved.len(), 2, "{what}: {moved:?}");
    assert_eq!(moved[0].owner, to, "{what}");
    assert_eq!(moved[1], cut[1], "{what}");
    loaded.check(&what);
}

fn strike_at_the_cut(victim: Victim) {
    for moment in [Moment::Before, Moment::After] {
        for seed in [1, 2] {
            strike(seed, moment, victim);
        }
    }
}

#[test]
fn the_owner_is_killed_when_it_is_told_where_its_tablet_was_cut() {
    strike_at_the_cut(Victim::Receiver);
}

#[test]
fn the_coordinator_is_killed_when_it_tells_an_owner_where_its_tablet_was_cut() {
    strike_at_the_cut(Victim::Sender);
}
