//! Reads of many objects in one request.

use crate::rig::{LONG, Rig, objects};
use pluvio_env::Address;
use pluvio_units::{ObjectVersion, TableId};
use pluvio_wire::{
    Get, Header, Outcome, Output, Projection, Refusal, RejectRules, call_frame, encode_get,
};

/// Objects of the table.
const OBJECTS: u32 = 50;
/// A table that nobody has made.
const NO_TABLE: TableId = TableId(7_000);

/// The reads of a request: whole values among others, absent keys, conditions, and a table that is
/// not served.
fn gets(table: TableId, keys: &[Vec<u8>]) -> Vec<Get<'_>> {
    let get = |place: usize| {
        let get = Get::new(table, keys[place].as_slice());
        match place % 10 {
            2 => Get {
                projection: Projection::Length,
                ..get
            },
            4 => Get {
                rules: RejectRules::EXISTS,
                ..get
            },
            6 => Get {
                rules: RejectRules::ABSENT,
                ..get
            },
            8 => Get {
                table: NO_TABLE,
                ..get
            },
            _ => get,
        }
    };
    (0..keys.len()).map(get).collect()
}

/// The outcome of a read at this place of the request; `None`: it is refused.
fn expected(place: usize, value: Option<&[u8]>, version: ObjectVersion) -> Option<Outcome> {
    let output = match (place % 10, value) {
        (8, _) => return None,
        (4, Some(_)) | (6, None) => {
            let output = Output::Nothing;
            return Some(Outcome::Rejected { version, output });
        }
        (2, value) => Output::Integer(value.map_or(0, |value| value.len() as i64)),
        (_, Some(value)) => Output::Bytes(value.to_vec().into()),
        (_, None) => Output::Nothing,
    };
    Some(Outcome::Unchanged { version, output })
}

#[test]
fn each_item_of_a_request_gets_its_own_result() {
    // With a replica, a value that was just written is not durable yet.
    for (seed, replicas) in [(31, 0), (32, 1)] {
        let rig = Rig::of(seed, 2, replicas);
        let table = rig.fill("t", OBJECTS);
        // Every third key is absent.
        let keys = (0..OBJECTS).map(|i| format!("{} {i}", if i % 3 == 1 { "no" } else { "key" }));
        let keys: Vec<Vec<u8>> = keys.map(String::into_bytes).collect();
        let owners: Vec<_> = keys.iter().map(|key| rig.owner(&table, key)).collect();
        for server in 0..2 {
            let of_server = keys.iter().zip(&owners);
            let of_server = of_server.filter(|(_, owner)| **owner == Some(server));
            let keys: Vec<_> = of_server.map(|(key, _)| key.clone()).collect();
            let (network, id) = (
                rig.client.env.network.clone(),
                rig.server(server).expect("it has started").id(),
            );
            let (address, table) = (Address::from(&*format!("server-{server}")), table.id());
            rig.run(&rig.client, async move {
                let frame = encode_get(&Header::to(id), &gets(table, &keys));
                let written = keys.iter().position(|key| key.starts_with(b"key"));
                let written = written.expect("some key is there");
                let object = (table, &keys[written][..], b"written meanwhile".as_slice());
                let write = objects::write(&*network, &address, Header::to(id), object, LONG);
                let read = call_frame(&*network, &address, frame, LONG);
                let (write, read) = futures_util::join!(write, read);
                write.expect("it is written");
                let items = read.expect("it is answered").items;
                assert_eq!(items.len(), keys.len());
                for (place, (item, key)) in items.into_iter().zip(&keys).enumerate() {
                    let value = key.strip_prefix(b"key ".as_slice());
                    let value = value.map(|number| [b"value ", number].concat());
                    let version = match &item {
                        Ok(Outcome::Unchanged { version, .. }) => *version,
                        Ok(Outcome::Rejected { version, .. }) => *version,
                        other => {
                            assert!(matches!(other, Err(Refusal::Refresh)), "{other:?}");
                            ObjectVersion(0)
                        }
                    };
                    assert_eq!(
                        version > ObjectVersion(0),
                        place % 10 != 8 && value.is_some()
                    );
                    let was = expected(place, value.as_deref(), version);
                    let mut right = item.clone().ok() == was;
                    if place == written {
                        right |= item.clone().ok()
                            == expected(place, Some(b"written meanwhile"), version);
                    }
                    assert!(right, "{place}: {item:?} where {was:?} was expected");
                }
            });
        }
    }
}
