//! A table with a quota of bytes in a simulated cluster. Servers and coordinators crash and tablets
//! move while clients fill it.

use crate::rig::Rig;
use bytes::Bytes;
use pluvio_client::{Client, ClientOptions, ErrorKind, QuotaWish, Table};
use std::time::Duration;

const SERVERS: usize = 4;
const QUOTA: u64 = 200 << 10;
const VALUE: usize = 4 << 10;

/// Fills the table until it refuses for good; gives the bytes that it has then.
async fn fill(client: Client, table: Table, prefix: String) -> u64 {
    for n in 0..100 {
        let key = format!("{prefix}-{n}");
        let value = Bytes::from(vec![1; VALUE]);
        match client.write(&table, key.as_bytes(), value).await {
            Ok(_) => {}
            Err(error) if error.kind() == ErrorKind::OverQuota => {
                return client.count(&table).await.expect("it is served").bytes;
            }
            Err(error) => assert!(error.is_retryable(), "{error}"),
        }
    }
    panic!("the table was never full");
}

async fn delete_some(client: Client, table: Table) {
    let mut objects = client.enumerate(&table).keys_only();
    let mut keys = Vec::new();
    while let Some(batch) = objects.next_batch().await.expect("it is served") {
        keys.extend(batch.into_iter().map(|object| object.key));
    }
    for key in keys.iter().take(12) {
        client.delete(&table, key).await.expect("it is deleted");
    }
}

// shows: COORD-20, MASTER-7, QUOTA-1
#[test]
fn a_table_keeps_to_its_quota_while_everything_dies_once() {
    for seed in 0..5 {
        let mut rig = Rig::of(seed, SERVERS, 2);
        rig.all_started();
        let options = ClientOptions::new(["coordinator"]).timeout(Duration::from_secs(20));
        let client = Client::new(&rig.client.env, options);
        let quota = QuotaWish {
            bytes: Some(QUOTA),
            operations: None,
        };
        let creating = client.clone();
        let table = rig.run(&rig.client, async move {
            let created = creating.create_table_with_quota("t", None, quota).await;
            created.expect("it is created")
        });
        for round in 0..2 * SERVERS {
            let deleting = delete_some(client.clone(), table.clone());
            rig.run(&rig.client, deleting);
            match round % 4 {
                0 => rig.restart_coordinator(),
                1 => rig.migrate(&table, round % SERVERS),
                2 | 3 => rig.restart(round % SERVERS, 2),
                _ => {}
            }
            let prefix = format!("{seed}-{round}");
            let filling = fill(client.clone(), table.clone(), prefix.clone());
            let bytes = rig.run(&rig.client, filling);
            assert!(bytes <= QUOTA, "{prefix}: {bytes}");
            // Once all is quiet there is room for what was deleted.
            rig.sim.run_for(Duration::from_secs(5));
            let filling = fill(client.clone(), table.clone(), format!("{prefix}-quiet"));
            let bytes = rig.run(&rig.client, filling);
            assert!(bytes <= QUOTA, "{prefix}, quiet: {bytes}");
            let most = QUOTA - 2 * VALUE as u64;
            assert!(bytes > most, "{prefix}, quiet: {bytes} of {most}");
        }
    }
}
