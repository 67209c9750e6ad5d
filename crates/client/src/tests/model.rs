//! Random operations under random faults against a map.

use super::cluster;
use crate::testing::{FakeCluster, Fault};
use crate::{Key, Number, Object, Opcode, RetryReason, Table};
use bytes::Bytes;
use core::time::Duration;
use pluvio_env::Rng;
use pluvio_units::{KeyHash, ServerId};
use pluvio_wire::Refusal;
use std::collections::BTreeMap;

type Model = BTreeMap<Vec<u8>, Bytes>;

const SERVERS: u64 = 4;

fn some_fault(rng: &FakeCluster) -> (Opcode, Fault) {
    let opcodes = [
        Opcode::Get,
        Opcode::Mutate,
        Opcode::Mutate,
        Opcode::Enumerate,
        Opcode::GetTable,
    ];
    let opcode = opcodes[rng.below(opcodes.len() as u64) as usize];
    let fault = match rng.below(6) {
        0 => Fault::LoseRequest,
        1 => Fault::LoseReply,
        2 => Fault::DelayReply,
        3 => Fault::Unreachable,
        4 => Fault::Refuse(Refusal::retry(Duration::from_millis(3), RetryReason::Busy)),
        // The coordinator of a fault-free cluster never says so.
        _ if opcode != Opcode::GetTable => Fault::Refuse(Refusal::Refresh),
        _ => Fault::LoseReply,
    };
    (opcode, fault)
}

async fn some_operation(
    rng: &FakeCluster,
    client: &crate::Client,
    table: &Table,
    model: &mut Model,
) {
    let key = rng.below(40).to_string().into_bytes();
    match rng.below(6) {
        0 => {
            let value = Bytes::from(rng.below(1000).to_string());
            client.write(table, &key, value.clone()).await.unwrap();
            model.insert(key, value);
        }
        1 => {
            let done = client.delete(table, &key).await.unwrap();
            assert_eq!(done.deleted.0 != 0, model.remove(&key).is_some());
        }
        2 => {
            let done = client
                .increment(table, &key, Number::Integer(1))
                .await
                .unwrap();
            let old = model.get(&key).map_or(0, |text| {
                std::str::from_utf8(text).unwrap().parse::<i64>().unwrap()
            });
            assert_eq!(done.value, Number::Integer(old + 1));
            model.insert(key, (old + 1).to_string().into());
        }
        3 => {
            let read = client.read(table, &key).await.unwrap();
            assert_eq!(read.map(|object| object.value).as_ref(), model.get(&key));
        }
        4 => {
            let keys: Vec<_> = (0..rng.below(40))
                .map(|n| n.to_string().into_bytes())
                .collect();
            let items: Vec<_> = keys.iter().map(|key| Key::new(table, key)).collect();
            let read = client.multi_read(&items).await;
            for (key, object) in keys.iter().zip(read) {
                let value = object.unwrap().map(|Object { value, .. }| value);
                assert_eq!(value.as_ref(), model.get(key));
            }
        }
        _ => {
            let value = Bytes::from(rng.below(1000).to_string());
            let keys: Vec<_> = (0..rng.below(40))
                .map(|n| n.to_string().into_bytes())
                .collect();
            let items: Vec<_> = keys
                .iter()
                .map(|k| (Key::new(table, k), value.clone()))
                .collect();
            for (key, result) in keys.iter().zip(client.multi_write(&items).await) {
                result.unwrap();
                model.insert(key.clone(), value.clone());
            }
        }
    }
}

#[test]
fn faults_change_nothing_but_the_time_it_takes() {
    for seed in 0..20 {
        let (cluster, client, table) = cluster(SERVERS);
        for _ in 0..seed {
            cluster.next_u64();
        }
        let mut model = Model::new();
        cluster.run(async {
            for _ in 0..150 {
                if cluster.below(3) == 0 {
                    let (opcode, fault) = some_fault(&cluster);
                    cluster.plan(opcode, fault, 1);
                }
                if cluster.below(20) == 0 {
                    let from = ServerId(1 + cluster.below(SERVERS));
                    cluster.recover(from, ServerId(1 + cluster.below(SERVERS)));
                }
                if cluster.below(30) == 0 {
                    let at = KeyHash(cluster.next_u64());
                    client.split_tablet(&table, Some(at)).await.unwrap();
                }
                some_operation(&cluster, &client, &table, &mut model).await;
            }
            let mut seen = Model::new();
            let mut objects = client.enumerate(&table).batch_items(3);
            while let Some(batch) = objects.next_batch().await.unwrap() {
                for object in batch {
                    assert!(seen.insert(object.key, object.value).is_none());
                }
            }
            assert_eq!(seen, model);
        });
    }
}
