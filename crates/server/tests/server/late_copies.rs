//! Requests that come when everything about them is over. Operations: their tablet has moved away
//! and come back, and their client has its result from the server between. Requests to take a new
//! tablet: it has moved away, was cut or dropped.

use crate::rig::objects::mutate;
use crate::rig::{LONG, Rig};
use pluvio_client::Table;
use pluvio_env::Address;
use pluvio_units::{
    ClientId, HashRange, KeyHash, MetadataVersion, ObjectVersion, OperationId, SegmentId,
    SequenceNumber, TableId,
};
use pluvio_wire::{Addend, Change, Mutation, Outcome, Output};
use pluvio_wire::{
    DropTablets, FatalKind, Header, Request, RpcError, SplitTabletLocal, TabletSpec, TakeTablets,
    call,
};
use std::time::Duration;

const KEY: &[u8] = b"n";

/// A table of one tablet, at this server if that is said.
fn table_at(rig: &Rig, owner: Option<usize>) -> Table {
    let mut made = ('a'..='z').map(|name| {
        let client = rig.connect(&rig.client);
        rig.run(&rig.client, async move {
            let made = client.create_table(&name.to_string(), Some(1)).await;
            made.expect("a table can be made")
        })
    });
    let is_there = |table: &Table| owner.is_none() || rig.owner(table, KEY) == owner;
    let found = made.find(is_there);
    found.expect("one of many tables goes to each server")
}

/// Sends a request to a server.
fn send<R: Request + Sync + 'static>(rig: &Rig, of: usize, request: R) -> Result<R::Reply, RpcError>
where
    R::Reply: 'static,
{
    let env = rig.client.env.clone();
    let header = Header::to(rig.server(of).expect("it has started").id());
    rig.run(&rig.client, async move {
        let to = Address::from(&*format!("server-{of}"));
        let limit = Duration::from_secs(1);
        call(&*env.network, &to, header, &request, limit).await
    })
}

/// Sends one attempt of an operation of one client that has the results of all before it.
fn change(
    rig: &Rig,
    of: usize,
    sequence: u64,
    table: TableId,
    change: Change<'static>,
) -> Result<Outcome, RpcError> {
    let operation = OperationId {
        client: ClientId(7_000_000),
        sequence: SequenceNumber(sequence),
        acknowledged_below: SequenceNumber(sequence),
        retry_ms: 10_000,
    };
    let env = rig.client.env.clone();
    let header = Header {
        operation,
        ..Header::to(rig.server(of).expect("it has started").id())
    };
    rig.run(&rig.client, async move {
        let to = Address::from(&*format!("server-{of}"));
        let limit = Duration::from_secs(1);
        let mutation = Mutation::new(table, KEY, change);
        mutate(&*env.network, &to, header, &mutation, limit).await
    })
}

/// EO-1, COMP-6. The first attempt is sent while the tablet is at its first owner, and is long on
/// its way. Nothing that lies with the tablet speaks of its client when it arrives.
// shows: COMP-6, EO-1, EO-6, MIG-4
#[test]
fn a_late_copy_is_not_executed_when_its_tablet_has_come_back() {
    for seed in 0..3 {
        let rig = Rig::of(seed, 3, 2);
        rig.all_started();
        let table = table_at(&rig, None);
        let first = rig.owner(&table, KEY).expect("somebody serves it");
        let second = (first + 1) % 3;
        let other = table_at(&rig, Some(second));
        let increment = |server, sequence| {
            let add = Change::Add(Addend::Integer(1));
            change(&rig, server, sequence, table.id(), add)
        };
        rig.migrate(&table, second);
        let done = increment(second, 17).unwrap();
        assert_eq!(done.output(), &Output::Integer(1));
        let write = Change::Put(b"".as_slice().into());
        change(&rig, second, 18, other.id(), write).unwrap();
        rig.migrate(&table, first);

        let late = increment(first, 17);
        let forgotten = matches!(&late, Err(RpcError::Refused(refusal))
            if refusal.fatal_kind() == Some(FatalKind::ResultForgotten));
        assert!(forgotten, "seed {seed}: {late:?}");
        let next = increment(first, 19).unwrap();
        assert_eq!(next.output(), &Output::Integer(2), "seed {seed}");
    }
}

/// A request to take all of a table's hashes.
fn take(table: &Table, version: MetadataVersion) -> TakeTablets {
    let tablet = TabletSpec {
        table: table.id(),
        seed: table.seed(),
        hash: pluvio_units::HashKind::Seeded,
        range: HashRange::ALL,
        since: SegmentId(0),
        quota: pluvio_wire::TableQuota::NONE,
        class: None,
    };
    let tablets = vec![tablet];
    TakeTablets {
        version,
        tablets,
        first_version: ObjectVersion(0),
    }
}

fn is_stale<T>(answer: &Result<T, RpcError>) -> bool {
    matches!(answer, Err(RpcError::Refused(refusal))
        if refusal.fatal_kind() == Some(FatalKind::Stale))
}

/// MASTER-6. Nobody would be sent to the tablets that such a server had then, and nobody would ask
/// it to forget them.
// shows: COORD-12, MASTER-6
#[test]
fn what_is_older_than_what_was_said_of_a_table_is_refused() {
    let rig = Rig::of(4, 3, 2);
    rig.all_started();
    let table = table_at(&rig, None);
    let owner = rig.owner(&table, KEY).expect("somebody serves it");
    let send = |request| send(&rig, owner, request);
    let cut = |version, at| {
        let (table, at) = (table.id(), KeyHash(at));
        let version = MetadataVersion(version);
        self::send(&rig, owner, SplitTabletLocal { version, table, at })
    };
    let ranges = || {
        let server = rig.server(owner).expect("it has started");
        let map = server
            .master()
            .expect("it is a member")
            .tablets()
            .snapshot();
        let local = map.get(&table.id());
        local.map(|local| local.tablets.iter().map(|t| t.range.first.0).collect())
    };
    let (older, newer) = (1 << 40, 1 << 41);
    cut(newer, 1 << 63).expect("it is newer than the request to take it");
    cut(newer, 1 << 63).expect("it has been done");
    let late = cut(older, 1 << 62);
    assert!(is_stale(&late), "{late:?}");
    let late = send(take(&table, MetadataVersion(older)));
    assert!(is_stale(&late), "{late:?}");
    assert_eq!(ranges(), Some(vec![0, 1 << 63]));

    // The copy of a drop is never too late, and nothing comes after it.
    for version in [newer + 1, older] {
        let version = MetadataVersion(version);
        let drop = DropTablets {
            version,
            table: table.id(),
        };
        self::send(&rig, owner, drop).expect("it is dropped");
    }
    for version in [older, newer + 9] {
        let late = send(take(&table, MetadataVersion(version)));
        assert!(is_stale(&late), "{late:?}");
    }
    assert_eq!(ranges(), None);
}

/// MIG-7. The owner of a new table's tablet would serve it once more, and empty, beside the one to
/// which it has moved.
// shows: MIG-7
#[test]
fn a_late_request_to_take_a_tablet_is_refused_where_it_has_moved_away() {
    let rig = Rig::of(3, 3, 2);
    rig.all_started();
    let table = table_at(&rig, None);
    let first = rig.owner(&table, KEY).expect("somebody serves it");
    // Newer than all that was said of the table, so that only its departure speaks against it.
    let take = || send(&rig, first, take(&table, MetadataVersion(1 << 40)));
    take().expect("it has it, as it would if the first answer had been lost");
    let second = (first + 1) % 3;
    rig.migrate(&table, second);
    let master = rig.server(first).and_then(|server| server.master());
    let master = master.expect("it is a member");
    let is_gone = || !master.tablets().snapshot().contains_key(&table.id());
    rig.sim.run_until(is_gone, LONG).unwrap();

    let late = take();
    assert!(is_stale(&late), "{late:?}");
    assert_eq!(rig.owner(&table, KEY), Some(second));
}
