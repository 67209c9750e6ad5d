//! A cluster whose servers crash after they have executed a mutation and before its answer
//! arrives.
use crate::support::{self, run_coordinator, run_server};
use core::time::Duration;
use pluvio_client::{Client, Table};
use pluvio_coordinator::{CoordinatorOptions, MemoryStore};
use pluvio_env::{Address, BoxFuture, CallError, Frame, Network};
use pluvio_sim::{Intercepted, Interceptor, ProcessEnv, ProcessId, Sim, SimHandle};
use pluvio_units::Size;
use pluvio_wire::{Opcode, Outcomes};
use std::sync::{Arc, Mutex};

const SERVERS: u32 = 5;

/// How many requests to strike at.
pub type Armed = Arc<Mutex<u32>>;

/// Crashes the server that executed a mutation, and keeps its answer.
struct Saboteur {
    sim: SimHandle,
    armed: Armed,
}

impl Saboteur {
    fn strikes(&self, opcode: u16, answer: &Frame) -> bool {
        let outcomes = Outcomes::of_reply(answer);
        let is_executed = outcomes.is_some_and(|all| all.items.iter().any(Result::is_ok));
        let mut armed = self.armed.lock().unwrap();
        if opcode != Opcode::Mutate as u16 || !is_executed || *armed == 0 {
            return false;
        }
        *armed -= 1;
        true
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
            if self.strikes(opcode, &answer) {
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

/// Starts a coordinator, whose process it gives, and servers.
pub fn start(sim: &Sim) -> ProcessId {
    let process = sim.process("coordinator");
    let options = CoordinatorOptions::default();
    let serving = run_coordinator(process.env.clone(), MemoryStore::new(), options);
    sim.spawn(process.id, "coordinator", serving);
    for number in 0..SERVERS {
        let name = format!("server-{number}");
        let process = sim.process(&name);
        let serving = run_server(process.env.clone(), name, Size::mib(40), |_| ());
        sim.spawn(process.id, "server", serving);
    }
    process.id
}

/// A client in `process` whose answers are lost with their servers, and what arms that.
pub fn client(sim: &Sim, process: &ProcessEnv) -> (Client, Armed) {
    let armed = Armed::default();
    let saboteur = Saboteur {
        sim: sim.handle(),
        armed: Arc::clone(&armed),
    };
    let network = Intercepted::new(process.env.network.clone(), saboteur);
    (support::client(&process.env, network), armed)
}

/// A table with a tablet on each server.
pub async fn table(client: &Client) -> Table {
    loop {
        // Not before all servers have joined.
        match client.create_table("t", Some(SERVERS)).await {
            Ok(table) => return table,
            Err(error) => assert!(error.is_retryable(), "{error}"),
        }
    }
}
