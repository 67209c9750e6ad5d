//! A server crashes under load, and at each kind of message of its recovery something else happens:
//! a recovery master, a backup or the coordinator dies, the table is dropped, or cut in two.

mod early;
mod half_closed;

use crate::load::{Loaded, loaded};
use crate::side_log::{Written, written};
use crate::struck::{self, At, Cluster, Moment, Victim};
use bytes::Bytes;
use pluvio_env::Frame;
use pluvio_units::KeyHash;
use pluvio_wire::{ChangeServerList, Opcode, ServerState, UpdateServerList, decode};

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
    /// From recovery masters: a partition is in memory. Answered only where replicas take longer
    /// than leases do.
    Replayed,
    /// What was replayed, from recovery masters to backups.
    SideReplica,
    /// From recovery masters.
    Finished,
    /// The head whose digest joins what was replayed to the log, from recovery masters to backups.
    Head,
    /// The server list with the crashed server, to servers.
    Crashed,
    /// The first server list without it, to servers.
    Gone,
    /// From recovery masters to backups: what was replayed is not wanted. Only when an attempt is
    /// given up.
    Free,
}

impl Message {
    /// Those of every recovery.
    const ALL: [Self; 9] = [
        Self::Start,
        Self::Partitions,
        Self::Recover,
        Self::Fetch,
        Self::SideReplica,
        Self::Finished,
        Self::Head,
        Self::Crashed,
        Self::Gone,
    ];

    /// Those of a recovery that serves early.
    const EARLY: [Self; 10] = [
        Self::Start,
        Self::Partitions,
        Self::Recover,
        Self::Fetch,
        Self::Replayed,
        Self::SideReplica,
        Self::Finished,
        Self::Head,
        Self::Crashed,
        Self::Gone,
    ];

    fn of_list(frame: &Frame) -> Option<Self> {
        let (header, update) = decode::<UpdateServerList>(frame).unwrap();
        let list = update.list;
        // The dead one is told as well, once.
        if !list.is_up(header.target) {
            return None;
        }
        let mut servers = list.servers.iter();
        let is_crashed = servers.any(|server| server.state == ServerState::Crashed);
        Some(if is_crashed {
            Self::Crashed
        } else {
            Self::Gone
        })
    }
}

impl Message {
    /// The same of a list that comes as differences.
    fn of_change(frame: &Frame) -> Option<Self> {
        let (_, change) = decode::<ChangeServerList>(frame).unwrap();
        let mut servers = change.list.servers.iter();
        if servers.any(|server| server.state == ServerState::Crashed) {
            return Some(Self::Crashed);
        }
        (!change.gone.is_empty()).then_some(Self::Gone)
    }
}

impl struck::Message for Message {
    fn of(frame: &Frame) -> Option<Self> {
        let opcode = Opcode::from_number(frame.opcode)?;
        if opcode == Opcode::WriteReplica {
            return written(frame).map(|what| match what {
                Written::Side => Self::SideReplica,
                Written::Joining => Self::Head,
            });
        }
        if opcode == Opcode::UpdateServerList {
            return Self::of_list(frame);
        }
        if opcode == Opcode::ChangeServerList {
            return Self::of_change(frame);
        }
        let others = [
            (Opcode::StartRecovery, Self::Start),
            (Opcode::SetPartitions, Self::Partitions),
            (Opcode::Recover, Self::Recover),
            (Opcode::GetRecoveryData, Self::Fetch),
            (Opcode::PartitionReplayed, Self::Replayed),
            (Opcode::RecoveryMasterFinished, Self::Finished),
            (Opcode::FreeReplica, Self::Free),
        ];
        let found = others.into_iter().find(|(known, _)| *known == opcode);
        found.map(|(_, message)| message)
    }
}

const SERVERS: usize = 5;

/// The owner of the table crashes; at a message of its recovery another process does, too. Gives
/// whether there was such a message.
fn strike(at: At<Message>, seed: u64, victim: Option<Victim>) -> bool {
    let mut loaded: Loaded<Message> = loaded(seed, SERVERS);
    let victim = victim.unwrap_or(Victim::Process(loaded.cluster.coordinator));
    let what = format!("{victim:?} {at:?}, seed {seed}");
    let owner = loaded.owner();
    loaded.cluster.arm(at, victim);
    let process = loaded.cluster.process_of(owner);
    loaded.cluster.crash(process);
    let struck = loaded.cluster.let_strike(at, &loaded.client, &what);
    loaded.check(&what);
    struck
}

/// `None` is the coordinator.
fn strike_at_every_message(seed: u64, victim: Option<Victim>) {
    let later = struck::at_every_message(&Message::ALL, |at| {
        let seed = seed + at.message as u64 + 20 * u64::from(at.nth);
        strike(at, seed, victim)
    });
    // Four backups are asked, told the partitions and told of the crash; what was replayed and the
    // head have two replicas each.
    assert!(later >= 8, "{later}");
}

#[test]
fn who_sends_is_killed_at_every_message_of_a_recovery() {
    strike_at_every_message(100, Some(Victim::Sender));
}

#[test]
fn who_receives_is_killed_at_every_message_of_a_recovery() {
    strike_at_every_message(200, Some(Victim::Receiver));
}

#[test]
fn the_coordinator_is_killed_at_every_message_of_a_recovery() {
    strike_at_every_message(300, None);
}

/// The coordinator dies before it hears that a recovery master is done, and its successor begins
/// anew: what was replayed is freed.
fn strike_at_a_free(seed: u64, moment: Moment, victim: Option<Victim>) {
    let mut loaded: Loaded<Message> = loaded(seed, SERVERS);
    let coordinator = Victim::Process(loaded.cluster.coordinator);
    let victim = victim.unwrap_or(coordinator);
    let what = format!("{victim:?} {moment:?} a free, seed {seed}");
    let owner = loaded.owner();
    let finished = At::first(Message::Finished, Moment::Before);
    loaded.cluster.arm(finished, coordinator);
    let process = loaded.cluster.process_of(owner);
    loaded.cluster.crash(process);
    loaded.cluster.until_struck(&what);
    let freed = At::first(Message::Free, moment);
    loaded.cluster.arm(freed, victim);
    loaded.cluster.until_struck(&what);
    loaded.check(&what);
}

#[test]
fn a_process_is_killed_when_what_a_refused_attempt_replayed_is_freed() {
    let _marks = pluvio_units::Marks::to_reach(&["recovery-report-not-accepted"]);
    for (seed, moment) in [(600, Moment::Before), (610, Moment::After)] {
        strike_at_a_free(seed, moment, Some(Victim::Sender));
        strike_at_a_free(seed + 1, moment, Some(Victim::Receiver));
        strike_at_a_free(seed + 2, moment, None);
    }
}

fn at_first_messages(seed: u64, act: impl Fn(At<Message>, u64)) {
    for (seed, message) in (seed..).zip(Message::ALL) {
        for moment in [Moment::Before, Moment::After] {
            act(At::first(message, moment), seed);
        }
    }
}

#[test]
fn a_tablet_is_cut_at_every_message_of_its_recovery() {
    at_first_messages(400, |at, seed| {
        let mut loaded: Loaded<Message> = loaded(seed, SERVERS);
        let owner = loaded.owner();
        let (client, table) = (loaded.client.clone(), loaded.table.clone());
        loaded.cluster.arm_work(at, async move {
            let middle = KeyHash(1 << 63);
            client.split_tablet(&table, Some(middle)).await.unwrap();
        });
        let process = loaded.cluster.process_of(owner);
        loaded.cluster.crash(process);
        let what = format!("cut {at:?}");
        loaded.cluster.until_struck(&what);
        loaded.check(&what);
    });
}

/// Nothing is left of the table, on whichever server it was to be.
#[test]
fn a_table_dropped_at_any_message_of_its_recovery_leaves_nothing_behind() {
    at_first_messages(500, |at, seed| {
        let what = format!("drop {at:?}");
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
        cluster.arm_work(at, async move {
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
