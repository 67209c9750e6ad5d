//! A server without replicas that overwrites values where they lie.

use crate::rig::objects::mutate;
use crate::rig::{LONG, Rig};
use bytes::Bytes;
use pluvio_env::Address;
use pluvio_server::ServerOptions;
use pluvio_sim::DiskFaults;
use pluvio_units::{ClientId, OperationId, SequenceNumber};
use pluvio_wire::{Addend, Change, Header, Mutation, Outcome, Output};

fn server_in_place() -> Rig {
    let mut rig = Rig::new(1);
    rig.in_place = true;
    rig.add(0, DiskFaults::default());
    rig.all_started();
    rig
}

/// An operation of one client, which has the results of all before it.
fn operation(sequence: u64) -> OperationId {
    OperationId {
        client: ClientId(7_000_000),
        sequence: SequenceNumber(sequence),
        acknowledged_below: SequenceNumber(sequence),
        retry_ms: 10_000,
    }
}

#[test]
fn values_of_all_sizes_are_written_overwritten_and_read() {
    let rig = server_in_place();
    let table = rig.fill("t", 3);
    let client = rig.connect(&rig.client);
    let sizes = [0, 10, 5_000, 100_000, (1 << 20) - 12];
    rig.run(&rig.client, async move {
        let mut last = client
            .read(&table, b"key 1")
            .await
            .unwrap()
            .unwrap()
            .version;
        for (round, len) in sizes.into_iter().rev().chain(sizes).enumerate() {
            let value = Bytes::from(vec![round as u8; len]);
            let written = client.write(&table, b"key 1", value.clone()).await.unwrap();
            let version = written.version;
            assert!(version > last, "STORE-1");
            let found = client.read(&table, b"key 1").await.unwrap().unwrap();
            assert_eq!((found.version, &found.value), (version, &value));
            last = version;
        }
        let too_long = Bytes::from(vec![0; 1 << 20]);
        let refused = client.write(&table, b"key 1", too_long).await.unwrap_err();
        assert!(refused.to_string().contains("1048564"), "{refused}");
        let found = client.read(&table, b"key 0").await.unwrap().unwrap();
        assert_eq!(found.value, "value 0");
    });
    let master = rig.server(0).unwrap().master().unwrap();
    let live = master.store().space().stats().live_bytes;
    assert!(live < 2 << 20, "one long value is there, not ten: {live}");
}

/// Outcomes are kept in memory, as objects are.
#[test]
fn updates_at_the_owner_are_done_once_however_often_they_are_sent() {
    let rig = server_in_place();
    let table = rig.fill("t", 1);
    let id = table.id();
    const LONG_TEXT: &[u8] = &[b'x'; 70_000];
    let changes = [
        (
            b"n".as_slice(),
            Change::Add(Addend::Integer(41)),
            Output::Integer(41),
        ),
        (b"n", Change::Add(Addend::Integer(1)), Output::Integer(42)),
        (
            b"key 0",
            Change::Append(b" and more".as_slice().into()),
            Output::Integer(16),
        ),
        (
            b"key 0",
            Change::Append(LONG_TEXT.into()),
            Output::Integer(70_016),
        ),
    ];
    let header = Header::to(rig.server(0).unwrap().id());
    let env = rig.client.env.clone();
    rig.run(&rig.client, async move {
        let to = Address::from("server-0");
        for (n, (key, change, expected)) in changes.into_iter().enumerate() {
            let header = Header {
                operation: operation(n as u64 + 1),
                ..header
            };
            let mutation = Mutation::new(id, key, change);
            let once = mutate(&*env.network, &to, header, &mutation, LONG)
                .await
                .unwrap();
            let again = mutate(&*env.network, &to, header, &mutation, LONG)
                .await
                .unwrap();
            assert_eq!(once, again, "a retry has the outcome of the first attempt");
            let output = match once {
                Outcome::Written { output, .. } => output,
                other => panic!("{other:?}"),
            };
            assert_eq!(output, expected);
        }
    });
    let client = rig.connect(&rig.client);
    rig.run(&rig.client, async move {
        let n = client.read(&table, b"n").await.unwrap().unwrap();
        assert_eq!(n.value, "42");
        let appended = client.read(&table, b"key 0").await.unwrap().unwrap();
        assert_eq!(appended.value.len(), 70_016);
        assert!(appended.value.starts_with(b"value 0 and morexxx"));
    });
}

#[test]
fn replicas_and_overwriting_do_not_go_together() {
    let mut options = ServerOptions::new(Address::default(), Address::default());
    options.in_place = true;
    assert!(options.problem().is_some(), "the cluster may have replicas");
    options.replicas = Some(3);
    let problem = options.problem().unwrap();
    assert!(
        problem.contains("update in-place needs replicas 0, not 3"),
        "{problem}"
    );
    options.replicas = Some(0);
    assert_eq!(options.problem(), None);
}
