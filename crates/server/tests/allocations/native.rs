//! Requests of the native protocol. A request with its reply makes five allocations, however many
//! are under way:
//!
//! - `meta` and, if it has bytes, `payload` of the request (`FrameReader::next_frame`), because
//!   small frames are copied out of the buffer,
//! - `meta` of the reply, and the record by which its bytes are shared (`reply_with`),
//! - of a read of one object: the value, and the record by which it is shared (`project`,
//!   `BulkWriter::finish`),
//! - of a write: the set of the client's outcomes that are not needed any more
//!   (`Client::acknowledge`), for requests whose client has heard earlier ones.

use crate::rig::{Coordinator, Loop, Member};
use bytes::Bytes;
use futures_util::future::join_all;
use pluvio_client::{Client, Key, Table};

/// Requests of a measurement.
const REQUESTS: u32 = 10_000;
/// Requests under way at a time.
const WINDOW: u32 = 16;
/// Objects of a large request.
const OBJECTS: u32 = 100;
/// Bytes of a value.
const VALUE: usize = 100;

/// A client, the table that it uses, and its server.
struct Rig {
    client: Client,
    table: Table,
    own: Loop,
    members: Vec<Member>,
    _coordinator: Coordinator,
}

impl Rig {
    /// A server that has all data, with this number of others that keep replicas.
    fn start(replicas: u32) -> Self {
        let coordinator = Coordinator::start();
        let first = Member::start(&coordinator, replicas);
        let (own, client) = coordinator.client();
        let makes = client.clone();
        let table = async move { makes.create_table("objects", Some(1)).await };
        let table = own.runtime.block_on(table).unwrap();
        let others = (0..replicas).map(|_| Member::start(&coordinator, replicas));
        let members = core::iter::once(first).chain(others).collect();
        Self {
            client,
            table,
            own,
            members,
            _coordinator: coordinator,
        }
    }

    /// Has `request` made `times` times, `window` at a time.
    fn ask<F>(&self, times: u32, window: u32, request: impl Fn(Client, Table) -> F)
    where
        F: Future<Output = ()> + Send + 'static,
    {
        for _ in 0..times / window {
            let requests = (0..window).map(|_| request(self.client.clone(), self.table.clone()));
            self.own.runtime.block_on(join_all(requests));
        }
    }

    /// Requests that the server has had.
    fn requests(&self) -> u64 {
        let counters = self.members[0].own.network.counters();
        counters.totals().requests_received
    }
}

fn value() -> Bytes {
    Bytes::from(vec![b'v'; VALUE])
}

fn keys() -> Vec<Vec<u8>> {
    let key = |number| format!("key {number}").into_bytes();
    (0..OBJECTS).map(key).collect()
}

async fn write(client: Client, table: Table) {
    client.write(&table, b"key", value()).await.unwrap();
}

async fn read(client: Client, table: Table) {
    let read = client.read(&table, b"key").await.unwrap();
    assert_eq!(read.unwrap().value.len(), VALUE);
}

async fn write_many(client: Client, table: Table) {
    let keys = keys();
    let objects = keys.iter().map(|key| (Key::new(&table, key), value()));
    let objects: Vec<_> = objects.collect();
    for written in client.multi_write(&objects).await {
        written.unwrap();
    }
}

async fn read_many(client: Client, table: Table) {
    let keys = keys();
    let keys: Vec<_> = keys.iter().map(|key| Key::new(&table, key)).collect();
    for read in client.multi_read(&keys).await {
        assert_eq!(read.unwrap().unwrap().value.len(), VALUE);
    }
}

#[test]
fn a_read_allocates_for_its_frames_and_its_value() {
    let rig = Rig::start(0);
    rig.ask(1, 1, write);
    for window in [1, WINDOW] {
        let what = format!("read, {window} at a time");
        rig.members[0].assert_at_most(&what, 7.0, REQUESTS, |times| {
            rig.ask(times, window, read);
        });
    }
}

#[test]
fn a_write_allocates_for_its_frames() {
    let rig = Rig::start(0);
    for window in [1, WINDOW] {
        let what = format!("write, {window} at a time");
        rig.members[0].assert_at_most(&what, 7.0, REQUESTS, |times| {
            rig.ask(times, window, write);
        });
    }
}

/// Two more allocations tell what the reply waits for (`Replies::awaited`, `Replies::into_early`).
/// The write to the backup makes 13, which the requests under way share. Counted are 20.1 and 7.0.
#[test]
fn writes_that_wait_for_a_replica_share_what_its_write_allocates() {
    let rig = Rig::start(1);
    for (window, most) in [(1, 28.0), (WINDOW, 14.0)] {
        let what = format!("write with a replica, {window} at a time");
        rig.members[0].assert_at_most(&what, most, REQUESTS, |times| {
            rig.ask(times, window, write);
        });
    }
}

/// One request for each batch. Values that are read are copied once, to where the reply has them:
/// 10.5 allocations for 100 objects. A write of 100 makes 34, most of them for lists of 16 objects
/// that are done together.
#[test]
fn a_batch_is_one_request_and_allocates_for_no_object() {
    let rig = Rig::start(0);
    let batches = REQUESTS / OBJECTS;
    rig.ask(1, 1, write_many);
    let before = rig.requests();
    rig.ask(batches, 1, read_many);
    rig.ask(batches, 1, write_many);
    // Others ask the server, too, but seldom.
    let requests = rig.requests() - before;
    let sent = 2 * u64::from(batches);
    assert!(
        (sent..sent + 50).contains(&requests),
        "{requests} for {sent}"
    );
    rig.members[0].assert_at_most("read of 100 objects", 16.0, batches, |times| {
        rig.ask(times, 1, read_many);
    });
    rig.members[0].assert_at_most("write of 100 objects", 60.0, batches, |times| {
        rig.ask(times, 1, write_many);
    });
}
