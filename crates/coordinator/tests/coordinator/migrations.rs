//! Migrations that somebody asks for by hand.

use crate::common::Cluster;
use pluvio_sim::SimOptions;
use pluvio_wire::{
    Balance, BalanceWish, FatalKind, MigrateTablet, MigrateTabletReply, RpcError, TableRef,
    WhichTablet,
};

fn refused(result: Result<MigrateTabletReply, RpcError>) -> FatalKind {
    match result {
        Err(RpcError::Refused(refusal)) => refusal.fatal_kind().expect("a final refusal"),
        other => panic!("a refusal was expected, not {other:?}"),
    }
}

#[test]
fn a_tablet_goes_to_no_server_without_room_for_it() {
    let cluster = Cluster::with_servers(7, SimOptions::default(), 2);
    for (server, mib) in [(0, 60), (1, 50)] {
        let behaviour = &mut cluster.server(server).behaviour;
        (behaviour.live_bytes, behaviour.live_max) = (mib << 20, 100 << 20);
    }
    // Somebody balances by hand.
    let wish = BalanceWish::Off;
    cluster.ask(Balance { wish }).unwrap();
    cluster.create_table("t");
    let (from, to) = (cluster.id(0), cluster.id(1));
    let tablets = cluster.status().tables[0].tablets.clone();
    let its = tablets.iter().find(|t| t.owner == from).unwrap().range;
    let ask = |range| {
        let (table, tablet) = (TableRef::Name("t".into()), WhichTablet::Range(range));
        cluster.ask(MigrateTablet { table, tablet, to })
    };
    assert_eq!(refused(ask(its)), FatalKind::Other);
    assert!(cluster.status().migrations.is_empty());
    let [half, _] = its.split(2)[..] else {
        panic!("two parts");
    };
    let begun = ask(half).unwrap();
    // The same again while it is under way, or done.
    cluster.server(1).behaviour.live_bytes = 99 << 20;
    assert_eq!(ask(half).unwrap().range, begun.range);
}
