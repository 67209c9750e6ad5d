//! A server crashes under load, and at each message of its recovery something else happens: a recovery master, a backup or the
//! coordinator dies, the table is dropped, or cut in two.

#![allow(clippy::unwrap_used)]

#[path = "../support/load.rs"]
mod load;
#[path = "../support/struck.rs"]
mod struck;
#[path = "../support/cluster.rs"]
mod support;

use bytes::Bytes;
use load::{Loaded, loaded};
use pluvio_env::Frame;
use pluvio_units::KeyHash;
use pluvio_wire::{Opcode, WriteReplica, decode};
use struck::{Cluster, Moment, Victim};

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Message {
    /// To backups.
    Start,
    /// To backups.
    Partitions,
    /// To recovery masters.
    Recover,
    /// From recovery masters to backups.
    Fetch,
    /// What was replayed, from recovery masters to backups.
    SideReplica,
    /// From recovery masters.
    Finished,
}

impl Message {
    const ALL: [Self; 6] = [
        Self::Start,
        Self::Partitions,
        Self::Recover,
        Self::Fetch,
        Self::SideReplica,
        Self::Finished,
    ];
}

impl struck::Message for Message {
    fn of(frame: &Frame) -> Option<Self> {
        let opcode = Opcode::from_number(frame.opcode)?;
        if opcode == Opcode::WriteReplica {
            let (_, request) = decode::<WriteReplica>(frame).unwrap();
            return request.side.then_some(Self::SideReplica);
        }
        let others = [
            (Opcode::StartRecovery, Self::Start),
            (Opcode::SetPartitions, Self::Partitions),
            (Opcode::Recover, Self::Recover),
            (Opcode::GetRecoveryData, Self::Fetch),
            (Opcode::RecoveryMasterFinished, Self::Finished),
        ];
        let found = others.into_iter().find(|(known, _)| *known == opcode);
        found.map(|(_, message)| message)
    }
}

const SERVERS: usize = 5;

fn at_every_message(seed: u64, act: impl Fn(Message, Moment, u64)) {
    for (seed, message) in (seed..).zip(Message::ALL) {
        for moment in [Moment::Before, Moment::After] {
            act(message, moment, seed);
        }
    }
}

/// The owner of the table crashes; at a message of its recovery another process does, too.
fn strike(message: Message, moment: Moment, seed: u64, victim: Option<Victim>) {
    let mut loaded: Loaded<Message> = loaded(seed, SERVERS);
    let victim = victim.unwrap_or(Victim::Process(loaded.cluster.coordinator));
    let what = format!("{victim:?} {moment:?} {message:?}");
    let owner = loaded.owner();
    loaded.cluster.arm(message, moment, victim);
    let process = loaded.cluster.process_of(owner);
    loaded.cluster.crash(process);
    loaded.cluster.until_struck(&what);
    loaded.check(&what);
}

#[test]
fn who_sends_is_killed_at_every_message_of_a_recovery() {
    at_every_message(100, |message, moment, seed| {
        strike(message, moment, seed, Some(Victim::Sender));
    });
}

#[test]
fn who_receives_is_killed_at_every_message_of_a_recovery() {
    at_every_message(200, |message, moment, seed| {
        strike(message, moment, seed, Some(Victim::Receiver));
    });
}

#[test]
fn the_coordinator_is_killed_at_every_message_of_a_recovery() {
    at_every_message(300, |message, moment, seed| {
        strike(message, moment, seed, None);
    });
}

#[test]
fn a_tablet_is_cut_at_every_message_of_its_recovery() {
    at_every_message(400, |message, moment, seed| {
        let mut loaded: Loaded<Message> = loaded(seed, SERVERS);
        let owner = loaded.owner();
        let (client, table) = (loaded.client.clone(), loaded.table.clone());
        loaded.cluster.arm_work(message, moment, async move {
            let middle = KeyHash(1 << 63);
            client.split_tablet(&table, Some(middle)).await.unwrap();
        });
        let process = loaded.cluster.process_of(owner);
        loaded.cluster.crash(process);
        let what = format!("cut {moment:?} {message:?}");
        loaded.cluster.until_struck(&what);
        loaded.check(&what);
    });
}

/// Nothing is left of the table, on whichever server it was to be.
#[test]
fn a_table_dropped_at_any_message_of_its_recovery_leaves_nothing_behind() {
    at_every_message(500, |message, moment, seed| {
        let what = format!("drop {moment:?} {message:?}");
        let mut cluster: Cluster<Message> = Cluster::new(seed, SERVERS);
        let client = cluster.new_client(&cluster.client);
        let table = cluster.table(&client);
        let (own, all) = (client.clone(), table.clone());
        cluster.block_on(async move {
            for number in 0..200 {
                let value = Bytes::from(vec![7; 1000]);
                let key = format!("key {number}");
                let written = own.write(&all, key.as_bytes(), value);
                written.await.unwrap();
            }
        });
        let owner = cluster.owner(&client, &table);
        let own = client.clone();
        cluster.arm_work(message, moment, async move {
            own.drop_table("t").await.unwrap();
        });
        let process = cluster.process_of(owner);
        cluster.crash(process);
        cluster.until_struck(&what);
        cluster.until_healthy(&client);
        for _ in 0..100 {
            let status = cluster.status(&client);
            let servers = &status.servers;
            if status.tables.is_empty()
                && servers.len() == SERVERS
                && servers.iter().all(|s| s.tablets == 0 && s.objects == 0)
            {
                return;
            }
            for _ in 0..100 {
                cluster.tend();
            }
        }
        panic!("{what}: {:?}", cluster.status(&client));
    });
}
