//! A server dies while it closes a segment: one replica is closed, and the other one is open.

use super::SERVERS;
use crate::struck::{self, At, Cluster, Moment, Victim};
use bytes::Bytes;
use core::time::Duration;
use pluvio_env::Frame;
use pluvio_format::{
    FRAME_DATA_OFFSET, FRAME_SLOT_BYTES, FRAME_SLOTS, FrameHeader, SegmentKind, newest_frame_header,
};
use pluvio_sim::ProcessId;
use pluvio_units::ServerId;
use pluvio_wire::{Opcode, TabletState, WriteReplica, decode};
use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};

#[derive(Clone, Copy, PartialEq, Debug)]
enum Message {
    /// To a backup that has the primary replica of a head.
    ClosesPrimary,
    /// To the other one.
    ClosesOther,
    /// What was replayed, from recovery masters to backups.
    SideReplica,
}

impl struck::Message for Message {
    fn of(frame: &Frame) -> Option<Self> {
        if Opcode::from_number(frame.opcode)? != Opcode::WriteReplica {
            return None;
        }
        let (_, write) = decode::<WriteReplica>(frame).unwrap();
        match (write.side, write.close, write.primary) {
            (true, ..) => Some(Self::SideReplica),
            (false, true, true) => Some(Self::ClosesPrimary),
            (false, true, false) => Some(Self::ClosesOther),
            (false, false, _) => None,
        }
    }
}

/// Longer than anything that is waited for here.
const LONG: Duration = Duration::from_secs(60);
/// Enough of them for some segments.
const OBJECTS: u32 = 60;

fn value(number: u32) -> Bytes {
    Bytes::from(vec![number as u8; 500_000])
}

/// The replicas of the head before a server's last one in its log, by the processes that have them.
fn frames(cluster: &Cluster<Message>, of: ServerId) -> Vec<(ProcessId, String, FrameHeader)> {
    let mut found = Vec::new();
    for process in cluster.running() {
        for path in cluster.sim.files(process) {
            let Some(content) = cluster.sim.file_content(process, &path) else {
                continue;
            };
            let slots = content.get(..FRAME_SLOTS * FRAME_SLOT_BYTES);
            let Some(Ok(header)) = slots.map(newest_frame_header) else {
                continue;
            };
            if header.server == of && header.kind == SegmentKind::Head {
                found.push((process, path, header));
            }
        }
    }
    let last = found.iter().max_by_key(|(_, _, h)| h.segment);
    let (last, log) = last.map(|(_, _, h)| (h.segment, h.log)).unwrap();
    found.retain(|(_, _, h)| h.log == log && h.segment != last);
    let last = found.iter().map(|(_, _, h)| h.segment).max();
    found.retain(|(_, _, h)| Some(h.segment) == last);
    found
}

/// Runs until every tablet is read from a server that has no replicas of it. Gives those servers.
fn until_read_early(cluster: &mut Cluster<Message>, owner: ServerId) -> BTreeSet<ServerId> {
    let client = cluster.new_client(&cluster.client);
    for _ in 0..10_000 {
        cluster.tend();
        let status = cluster.status(&client);
        let tablets = &status.tables[0].tablets;
        let is_read = |reader| reader != owner && status.list.is_up(reader);
        let mut read = tablets
            .iter()
            .map(|t| t.state == TabletState::Normal && is_read(t.owner));
        if status.recoveries.iter().any(|r| !r.done) && read.all(|is_read| is_read) {
            return tablets.iter().map(|t| t.owner).collect();
        }
    }
    panic!("nothing is read early");
}

/// The closed replica is damaged after something was read.
// shows: COORD-13
#[test]
fn an_open_replica_will_do_where_the_closed_one_is_damaged_after_something_was_read() {
    for seed in 790..793 {
        let mut cluster: Cluster<Message> = Cluster::new(seed, SERVERS);
        let client = cluster.new_client(&cluster.client);
        let table = cluster.table(&client);
        let owner = cluster.owner(&client, &table);
        let process = cluster.process_of(owner);
        cluster.hold(Message::ClosesOther, LONG);
        let closes = At::first(Message::ClosesPrimary, Moment::After);
        cluster.arm(closes, Victim::Sender);
        let written = Arc::new(Mutex::new(0));
        let (own, all, told) = (client.clone(), table.clone(), Arc::clone(&written));
        cluster.sim.spawn(cluster.client.id, "write", async move {
            for number in 0..OBJECTS {
                let key = format!("object {number}");
                own.write(&all, key.as_bytes(), value(number))
                    .await
                    .unwrap();
                *told.lock().unwrap() = number + 1;
            }
        });
        cluster.until_struck("a head is closed");
        assert!(!cluster.running().contains(&process), "the owner closed it");
        cluster.hold(Message::SideReplica, LONG);
        let readers = until_read_early(&mut cluster, owner);

        let mut replicas = frames(&cluster, owner);
        replicas.sort_by_key(|(_, _, header)| header.closed);
        let [(_, _, open), (process, path, closed)] = &replicas[..] else {
            panic!("seed {seed}: {replicas:?}");
        };
        assert!(closed.closed && !open.closed, "seed {seed}");
        let bit = (FRAME_DATA_OFFSET as u64 + 100_000) * 8;
        assert!(cluster.sim.flip_bit(*process, path, bit));
        for reader in readers {
            let process = cluster.process_of(reader);
            cluster.crash(process);
        }
        cluster.release();
        cluster.until_healthy(&client);
        while *written.lock().unwrap() < OBJECTS {
            cluster.tend();
        }
        let (own, all) = (client.clone(), table.clone());
        cluster.block_on(async move {
            for number in 0..OBJECTS {
                let key = format!("object {number}");
                let found = own.read(&all, key.as_bytes()).await.unwrap();
                assert!(found.unwrap().value == value(number), "{key}");
            }
        });
    }
}
