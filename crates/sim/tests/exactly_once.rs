//! An operation whose server executed it and crashed before it answered: the retry finds the tablet's next
//! owner, which has the completion record from the recovery.

#![allow(clippy::unwrap_used)]

#[path = "support/cluster.rs"]
mod support;

use bytes::Bytes;
use core::time::Duration;
use pluvio_client::{Client, Key, Number, RejectRules, Table};
use pluvio_coordinator::MemoryStore;
use pluvio_env::{Address, BoxFuture, CallError, Frame, Network};
use pluvio_sim::{Intercepted, Interceptor, ProcessId, Sim, SimHandle, SimOptions};
use pluvio_units::{ObjectVersion, Size};
use pluvio_wire::Opcode;
use std::sync::{Arc, Mutex};
use support::{LIMIT, run_coordinator, run_server};

const SERVERS: u32 = 5;

/// The kind of request to strike at, and how often.
type Armed = Arc<Mutex<Option<(Opcode, u32)>>>;

/// Crashes the server that answered a request of one kind, and keeps its answer.
struct Saboteur {
    sim: SimHandle,
    armed: Armed,
}

impl Saboteur {
    fn strikes(&self, opcode: u16) -> bool {
        let mut armed = self.armed.lock().unwrap();
        match &mut *armed {
            Some((wanted, times)) if *wanted as u16 == opcode && *times > 0 => {
                *times -= 1;
                true
            }
            _ => false,
        }
    }
}

impl Interceptor for Saboteur {
    fn call<'a>(
        &'a self,
        network: &'a dyn Network,
        to: &'a Address,
        request: Frame,
        limit: Duration,
    ) -> BoxFuture<'a, Result<Frame, CallError>> {
        Box::pin(async move {
            let opcode = request.opcode;
            let answer = network.call(to, request, limit).await?;
            // The first byte of an answer says whether it is a result.
            if answer.meta.first() == Some(&0) && self.strikes(opcode) {
                let name = to.0.split(':').next().unwrap();
                let processes = self.sim.processes();
                let (process, _) = processes.iter().find(|(_, n)| n == name).unwrap();
                self.sim.crash(*process);
                return Err(CallError::Lost(to.clone()));
            }
            Ok(answer)
        })
    }
}

/// A cluster with a client process and what arms the saboteur.
fn cluster(seed: u64) -> (Sim, ProcessId, Client, Armed) {
    let sim = Sim::new(seed, SimOptions::default());
    let process = sim.process("coordinator");
    let serving = run_coordinator(process.env.clone(), MemoryStore::new());
    sim.spawn(process.id, "coordinator", serving);
    for number in 0..SERVERS {
        let name = format!("server-{number}");
        let process = sim.process(&name);
        let serving = run_server(process.env.clone(), name, Size::mib(40), |_| ());
        sim.spawn(process.id, "server", serving);
    }
    let process = sim.process("client");
    let armed = Arc::new(Mutex::new(None));
    let saboteur = Saboteur {
        sim: sim.handle(),
        armed: Arc::clone(&armed),
    };
    let network = Intercepted::new(process.env.network.clone(), saboteur);
    (
        sim,
        process.id,
        support::client(&process.env, network),
        armed,
    )
}

async fn table(client: &Client) -> Table {
    loop {
        // Not before all servers have joined.
        match client.create_table("t", Some(SERVERS)).await {
            Ok(table) => return table,
            Err(error) => assert!(error.is_retryable(), "{error}"),
        }
    }
}

#[test]
fn a_retry_after_the_owner_crashed_is_answered_not_repeated() {
    for seed in 0..3 {
        let (sim, process, client, armed) = cluster(seed);
        let work = async move {
            let table = table(&client).await;
            let added = client.increment(&table, b"n", Number::Integer(5)).await;
            assert_eq!(added.unwrap().value, Number::Integer(5));

            *armed.lock().unwrap() = Some((Opcode::Increment, 1));
            let added = client.increment(&table, b"n", Number::Integer(7)).await;
            assert_eq!(added.unwrap().value, Number::Integer(12));

            *armed.lock().unwrap() = Some((Opcode::Write, 1));
            let new = ObjectVersion(0);
            let written = client.conditional_write(&table, b"k", Bytes::new(), new);
            assert_eq!(written.await.unwrap().replaced, new);

            assert_eq!(*armed.lock().unwrap(), Some((Opcode::Write, 0)));
            let number = client.read(&table, b"n").await.unwrap().unwrap();
            assert_eq!(number.value, "12");
        };
        sim.block_on(process, work, LIMIT).unwrap();
    }
}

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
            *armed.lock().unwrap() = Some((Opcode::MultiWrite, 1));
            for result in client.multi_write(&objects).await {
                assert_eq!(result.unwrap().replaced, ObjectVersion(0));
            }
            assert_eq!(*armed.lock().unwrap(), Some((Opcode::MultiWrite, 0)));
        };
        sim.block_on(process, work, LIMIT).unwrap();
    }
}
