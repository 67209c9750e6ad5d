//! An operation whose server executed it and crashed before it answered: the retry finds the
//! tablet's next owner, which has the completion record from the recovery.

use crate::lost_answers::{self, Armed, table};
use crate::support::LIMIT;
use bytes::Bytes;
use pluvio_client::{Client, Key, Number, RejectRules};
use pluvio_sim::{ProcessId, Sim, SimOptions};
use pluvio_units::ObjectVersion;

/// A cluster with a client process and what arms the loss of its answers.
fn cluster(seed: u64) -> (Sim, ProcessId, Client, Armed) {
    let sim = Sim::new(seed, SimOptions::default());
    lost_answers::start(&sim);
    let process = sim.process("client");
    let (client, armed) = lost_answers::client(&sim, &process);
    (sim, process.id, client, armed)
}

// shows: EO-1, MASTER-5
#[test]
fn a_retry_after_the_owner_crashed_is_answered_not_repeated() {
    for seed in 0..3 {
        let (sim, process, client, armed) = cluster(seed);
        let work = async move {
            let table = table(&client).await;
            let added = client.increment(&table, b"n", Number::Integer(5)).await;
            assert_eq!(added.unwrap().value, Number::Integer(5));

            *armed.lock().unwrap() = 1;
            let added = client.increment(&table, b"n", Number::Integer(7)).await;
            assert_eq!(added.unwrap().value, Number::Integer(12));

            *armed.lock().unwrap() = 1;
            let new = ObjectVersion(0);
            let written = client.conditional_write(&table, b"k", Bytes::new(), new);
            assert_eq!(written.await.unwrap().replaced, new);

            assert_eq!(*armed.lock().unwrap(), 0);
            let number = client.read(&table, b"n").await.unwrap().unwrap();
            assert_eq!(number.value, "12");
        };
        sim.block_on(process, work, LIMIT).unwrap();
    }
}

// shows: EO-1
#[test]
fn a_batch_whose_items_were_executed_by_a_crashed_server_is_not_executed_twice() {
    for seed in 0..3 {
        let (sim, process, client, armed) = cluster(seed);
        let work = async move {
            let table = table(&client).await;
            let create = RejectRules {
                exists: true,
                ..RejectRules::default()
            };
            let names: Vec<_> = (0..100).map(|n| format!("key-{n}")).collect();
            let objects: Vec<_> = names
                .iter()
                .map(|name| {
                    let key = Key::new(&table, name.as_bytes()).rules(create);
                    (key, Bytes::from(name.clone()))
                })
                .collect();
            *armed.lock().unwrap() = 1;
            for result in client.multi_write(&objects).await {
                assert_eq!(result.unwrap().replaced, ObjectVersion(0));
            }
            assert_eq!(*armed.lock().unwrap(), 0);
        };
        sim.block_on(process, work, LIMIT).unwrap();
    }
}
