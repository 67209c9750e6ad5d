//! Processes of another cluster speak to a server, or in the place of those that it knows. Each
//! cluster numbers its servers from 1, so only the cluster's id tells them apart.

use crate::rig::{LONG, Rig};
use pluvio_env::{Address, Frame, Handled, Peer, Service};
use pluvio_units::{ClusterId, ServerId, ServerListVersion};
use pluvio_wire::{
    FatalKind, Header, Opcode, Ping, PingReply, Refusal, RetryReason, RpcError, ServerList,
    UpdateServerList, call, reply,
};
use std::sync::Arc;
use std::time::Duration;

const SECOND: Duration = Duration::from_secs(1);

/// Answers pings, and does nothing else.
struct Impostor {
    server: ServerId,
    cluster: ClusterId,
}

impl Service for Impostor {
    fn handle(&self, _: Peer, frame: Frame) -> Handled {
        Handled::Now(if frame.opcode == Opcode::Ping as u16 {
            reply::<Ping>(&Ok(PingReply {
                server: self.server,
                server_list: ServerListVersion(1),
                caller_is_member: true,
                cluster: self.cluster,
            }))
        } else {
            let refusal = Refusal::retry(SECOND, RetryReason::Busy);
            Frame {
                opcode: frame.opcode,
                ..reply::<Ping>(&Err(refusal))
            }
        })
    }
}

/// Of a cluster of three one server is left. Impostors have the places of the others: their ids are
/// higher by `ids_apart`, and that of their cluster by `clusters_apart`. There is no coordinator.
/// Whether the server may answer two seconds later.
fn serves_among_impostors(ids_apart: u64, clusters_apart: u64) -> bool {
    let rig = Rig::of(11, 3, 2);
    rig.all_started();
    rig.sim.run_for(2 * SECOND);
    let table = rig.fill("t", 1);
    rig.sim.run_for(2 * SECOND);
    let left = rig.owner(&table, b"key 0").expect("somebody serves it");
    let server = rig.server(left).expect("it has started");
    let master = server.master().expect("it is a member");
    let witnesses = master.replication().witnesses();
    let witnesses = witnesses.expect("backups have its log");
    assert!(!witnesses.is_empty() && !witnesses.contains(&server.id()));
    rig.sim.crash(rig.coordinator.id);
    for place in (0..3).filter(|place| *place != left) {
        let id = rig.server(place).expect("it has started").id();
        rig.kill(place);
        let process = rig.sim.restart(rig.servers[place]);
        let impostor = Impostor {
            server: ServerId(id.0 + ids_apart),
            cluster: ClusterId(server.cluster().0.wrapping_add(clusters_apart)),
        };
        let env = process.env;
        rig.sim.spawn(process.id, "impostor", async move {
            let at = Address::from(&*format!("server-{place}"));
            let _open = env.network.listen(&at, Arc::new(impostor)).await.unwrap();
            std::future::pending::<()>().await;
        });
    }
    assert!(master.may_serve());
    rig.sim.run_for(2 * SECOND);
    master.may_serve()
}

/// LEASE-1: it keeps no replica of this server, and takes part in no recovery of it whatever
/// happens here.
// shows: LEASE-1
#[test]
fn a_witness_of_another_cluster_is_none() {
    assert!(serves_among_impostors(0, 0), "these pass for its witnesses");
    assert!(!serves_among_impostors(0, 1), "another cluster");
    assert!(!serves_among_impostors(100, 0), "other lives");
}

/// It would declare this one dead.
// shows: MEM-6
#[test]
fn a_list_of_another_cluster_is_refused_and_changes_nothing() {
    let rig = Rig::of(12, 2, 1);
    rig.all_started();
    rig.sim.run_for(2 * SECOND);
    let server = rig.server(0).expect("it has started");
    let before = server.server_list();
    let send = |cluster, list| {
        let (env, header) = (rig.client.env.clone(), Header::to(server.id()));
        rig.run(&rig.client, async move {
            let (to, update) = (
                Address::from("server-0"),
                UpdateServerList { cluster, list },
            );
            call(&*env.network, &to, header, &update, LONG).await
        })
    };
    let foreign = ServerList {
        version: ServerListVersion(before.version.0 + 1),
        servers: Vec::new(),
        grown: true,
        ..ServerList::default()
    };
    let refused = send(ClusterId(server.cluster().0 ^ 1), foreign);
    let is_foreign = matches!(&refused, Err(RpcError::Refused(refusal))
        if refusal.fatal_kind() == Some(FatalKind::WrongCluster));
    assert!(is_foreign, "{refused:?}");
    assert_eq!(server.server_list(), before);
    rig.sim.run_for(SECOND);
    assert!(server.readiness().ready, "{:?}", server.readiness());
    let own = send(server.cluster(), ServerList::clone(&before));
    own.expect("nothing but its cluster was wrong");
}
