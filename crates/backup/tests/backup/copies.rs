//! Replicas that recovery has copied from one backup to another.

use crate::support::{CLUSTER, CORE, Image, MASTER, Node, list, replicas};
use pluvio_backup::{Backup, BackupOptions};
use pluvio_env::{Address, Frame, Handled, Peer, Service};
use pluvio_format::FRAME_DATA_OFFSET;
use pluvio_format::SegmentKind::Head;
use pluvio_units::{LogId, Marks, ReplicationEpoch, SegmentId, ServerId};
use pluvio_wire::{
    CopyReplica, FatalKind, ReadReplica, Refusal, RetryReason, ServerState, StartRecovery, decode,
    reply,
};
use std::sync::Arc;

const SOURCE: ServerId = ServerId(2);
const SEGMENT: SegmentId = SegmentId(2);

/// The other backup, as the network has it.
struct Other(Backup);

impl Service for Other {
    fn handle(&self, _: Peer, request: Frame) -> Handled {
        let backup = self.0.clone();
        Handled::Later(Box::pin(async move {
            let (_, read) = decode::<ReadReplica>(&request).expect("it is asked for a replica");
            reply::<ReadReplica>(&backup.read_replica(read).await)
        }))
    }
}

/// A backup that listens, and one that is to copy from it. Both are on one machine.
fn both(node: &Node) -> (Backup, Backup) {
    let start = |process: &str, id| {
        let env = node.sim.process(process).env;
        let (network, address) = (env.network.clone(), Address::from("server-2"));
        let backup = node.run(async move {
            let backup = Backup::start(env, BackupOptions::default()).await;
            let backup = backup.expect("starts");
            if id == SOURCE {
                let other = Arc::new(Other(backup.clone()));
                let open = network.listen(&address, other).await;
                std::mem::forget(open.expect("the address is free"));
            }
            backup
        });
        backup.enlisted(id, CLUSTER).expect("is the right cluster");
        backup.server_list_changed(&list(
            1,
            &[
                (1, ServerState::Up),
                (2, ServerState::Up),
                (3, ServerState::Up),
            ],
        ));
        backup
    };
    (start("source", SOURCE), start("target", ServerId(1)))
}

fn asked(length: u32) -> CopyReplica {
    CopyReplica {
        crashed: MASTER,
        segment: SEGMENT,
        log: LogId(0),
        epoch: ReplicationEpoch(0),
        length,
        closed: false,
        needed: 2,
        from: SOURCE,
    }
}

fn copy(node: &Node, backup: &Backup, request: CopyReplica) -> Result<(), Refusal> {
    let backup = backup.clone();
    node.run(async move { backup.copy_replica(CORE, request).await })
}

/// The source has a head with 20 objects, and the master is recovered.
fn found(node: &Node) -> (Backup, Backup, Image) {
    let (source, target) = both(node);
    let image = Image::new(2, Head, 20);
    let write = image.request(2, Head, 0, 21);
    node.write(&source, write).expect("is written");
    let fence = source.clone();
    node.run(async move { fence.start_recovery(StartRecovery::of(MASTER)).await })
        .expect("lists");
    (source, target, image)
}

// shows: BACKUP-16, COORD-13
#[test]
fn a_copy_is_as_long_as_was_asked_for_and_outlives_a_loss_of_power() {
    let _marks = Marks::to_reach(&["backup-copies-end-of-log"]);
    let node = Node::new(1);
    let (_source, target, image) = found(&node);
    let length = image.ends[10];
    for _ in 0..2 {
        copy(&node, &target, asked(length)).expect("is copied");
    }
    let [replica] = &replicas(&node, &target)[..] else {
        panic!("one replica");
    };
    assert_eq!((replica.segment, replica.length), (SEGMENT, length));
    let head = replica.head.as_ref().expect("is an open head");
    assert!(head.has_data && !head.may_lack && head.needed == 2);
    // The master is refused, as everywhere where it is recovered.
    let zombie = image.request(2, Head, 0, 21);
    let refused = node.write(&target, zombie).unwrap_err();
    assert_eq!(refused.fatal_kind(), Some(FatalKind::Stale));
    // As much is there.
    copy(&node, &target, asked(image.ends[5])).expect("is there");
    // More is not, and nothing takes its place.
    let more = copy(&node, &target, asked(image.ends[11])).unwrap_err();
    assert_eq!(more.fatal_kind(), Some(FatalKind::Stale));
    assert_eq!(replicas(&node, &target)[0].length, length);
}

// shows: BACKUP-16
#[test]
fn a_closed_head_is_copied_as_a_closed_one() {
    let node = Node::new(2);
    let (source, target) = both(&node);
    let image = Image::new(2, Head, 20);
    let mut write = image.request(2, Head, 0, 21);
    write.close = true;
    node.write(&source, write).expect("is written");
    assert!(replicas(&node, &source)[0].closed);
    let request = CopyReplica {
        closed: true,
        ..asked(image.len())
    };
    copy(&node, &target, request).expect("is copied");
    let copied = replicas(&node, &target);
    assert!(copied[0].closed && copied[0].length == image.len());
}

// shows: BACKUP-16
#[test]
fn what_is_not_whole_is_not_copied() {
    let node = Node::new(3);
    let (source, target, image) = found(&node);
    let too_long = copy(&node, &target, asked(image.len() + 1)).unwrap_err();
    assert!(matches!(
        too_long,
        Refusal::Retry {
            why: RetryReason::Busy,
            ..
        }
    ));
    let gone = CopyReplica {
        crashed: ServerId(9),
        ..asked(image.len())
    };
    let gone = copy(&node, &target, gone).unwrap_err();
    let not_serving = matches!(
        gone,
        Refusal::Retry {
            why: RetryReason::NotServing,
            ..
        }
    );
    assert!(not_serving, "{gone:?}");
    // Whoever asks for a living master's replica is refused.
    let read = ReadReplica {
        crashed: ServerId(4),
        segment: SEGMENT,
        length: 10,
    };
    let asked_for = source.clone();
    let living = node.run(async move { asked_for.read_replica(read).await });
    assert_eq!(living.unwrap_err().fatal_kind(), Some(FatalKind::Stale));

    let all = node.sim.processes();
    let (process, _) = all.iter().find(|(_, name)| name == "source").unwrap();
    let files = node.sim.files(*process);
    let frame = files.iter().find(|path| path.starts_with("frames/"));
    let bit = (FRAME_DATA_OFFSET as u64 + 1000) * 8;
    assert!(node.sim.flip_bit(*process, frame.unwrap(), bit));
    let damaged = copy(&node, &target, asked(image.ends[10])).unwrap_err();
    assert!(matches!(
        damaged,
        Refusal::Retry {
            why: RetryReason::Busy,
            ..
        }
    ));
    assert!(replicas(&node, &target).is_empty());
    assert!(
        replicas(&node, &source).is_empty(),
        "it is known as damaged"
    );
}
