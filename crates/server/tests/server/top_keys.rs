//! Which keys are used most, as real servers tell it.

use crate::rig::Rig;
use bytes::Bytes;
use pluvio_client::{Client, GetTopKeys, Number, Table, TopKeys};
use pluvio_env::Address;
use pluvio_wire::{HotKey, TopKeysOfTable};

/// The top lists of a table at one server.
async fn asked(client: &Client, owner: usize, table: &Table) -> (TopKeys, TopKeysOfTable) {
    let address = Address::from(&*format!("server-{owner}"));
    let request = GetTopKeys {
        table: Some(table.id()),
        count: 5,
    };
    let top = client.top_keys(&address, &request).await.unwrap();
    let of_table = top.tables.first().cloned().unwrap_or_default();
    (top, of_table)
}

/// How often the first key was used, where every operation was sampled.
fn uses(top: &TopKeys, keys: &[HotKey]) -> u64 {
    assert_eq!(top.one_in, 1, "so few operations are all sampled");
    assert_eq!((keys[0].less, keys[0].more), (0.0, 0.0));
    (keys[0].per_s * top.seconds).round() as u64
}

#[test]
fn a_server_tells_which_of_its_keys_are_used_most_and_which_are_largest() {
    let rig = Rig::of(7, 3, 1);
    rig.all_started();
    let table = rig.fill("t", 30);
    let owner = rig.owner(&table, b"key 7").expect("somebody serves it");
    let (client, of) = (rig.connect(&rig.client), table.clone());
    rig.run(&rig.client, async move {
        for n in 0..300 {
            client.read(&of, b"key 7").await.unwrap();
            if n % 6 == 0 {
                client
                    .increment(&of, b"count", Number::Integer(1))
                    .await
                    .unwrap();
            }
        }
        // In one request, and in transactions.
        let keys = [&b"key 7"[..]; 20];
        let gets = keys.map(|key| (&of, pluvio_wire::Get::new(of.id(), key)));
        for outcome in client.multi_get(&gets).await {
            outcome.unwrap();
        }
        let transaction = client.transaction();
        transaction.get(&of, b"key 7").await.unwrap();
        transaction.put(&of, b"key 7", "new");
        transaction.commit().await.unwrap();
        client
            .write(&of, b"key 7", Bytes::from(vec![7; 100_000]))
            .await
            .unwrap();

        let (top, of_table) = asked(&client, owner, &of).await;
        assert_eq!(of_table.table, of.id());
        assert_eq!(of_table.reads[0].key, b"key 7");
        // The transaction reads, and then compares.
        assert_eq!(uses(&top, &of_table.reads), 300 + 20 + 2);
        assert!(of_table.reads_per_s >= of_table.reads[0].per_s);
        assert_eq!(of_table.largest[0].key, b"key 7");
        assert_eq!(of_table.largest[0].bytes, 100_005);
        let count = owner_of_count(&client, &of).await;
        let (top, of_table) = asked(&client, count, &of).await;
        assert_eq!(of_table.writes[0].key, b"count");
        assert_eq!(uses(&top, &of_table.writes), 50);

        // An object that became small, or is gone, is not large.
        client.write(&of, b"key 7", Bytes::from("s")).await.unwrap();
        let (_, of_table) = asked(&client, owner, &of).await;
        let small = of_table.largest.iter().find(|large| large.key == b"key 7");
        assert_eq!(small.map(|small| small.bytes), Some(6));
        client.delete(&of, b"key 7").await.unwrap();
        let (_, of_table) = asked(&client, owner, &of).await;
        assert!(of_table.largest.iter().all(|large| large.key != b"key 7"));
        // Nobody waits for a dropped table.
        client.drop_table("t").await.unwrap();
        let (top, _) = asked(&client, owner, &of).await;
        assert!(top.tables.is_empty(), "{top:?}");
    });
}

/// The server that tells of writes of the key `count`.
async fn owner_of_count(client: &Client, table: &Table) -> usize {
    for server in 0..3 {
        let (_, of_table) = asked(client, server, table).await;
        if of_table.writes.iter().any(|hot| hot.key == b"count") {
            return server;
        }
    }
    panic!("no server tells of the key");
}
