//! Transactions of several servers whose client, or a server, dies at each of their messages.

use crate::lost_answers::{start, table};
use crate::support::{self, LIMIT};
use core::time::Duration;
use pluvio_client::{
    Addend, Change, Client, ClientError, Mutation, Operation, Table, Transacted, TransactionStep,
};
use pluvio_env::{Address, BoxFuture, CallError, Frame, Network};
use pluvio_sim::{Intercepted, Interceptor, Sim, SimHandle, SimOptions};
use pluvio_units::Marks;
use pluvio_wire::Opcode;
use std::sync::{Arc, Mutex};

/// More messages than a transaction over three servers has.
const MESSAGES: u32 = 10;

/// What happens at one message of a transaction.
#[derive(Clone, Copy, PartialEq, Debug)]
enum Blow {
    /// Its client dies before it is sent.
    ClientBefore,
    /// Its client dies before the reply.
    ClientBehind,
    /// The server dies before the reply.
    Server,
    /// Both die before the reply.
    Both,
}

/// Strikes at the message with this number.
struct Striker {
    sim: SimHandle,
    blow: Blow,
    left: Mutex<Option<u32>>,
}

impl Striker {
    /// `None` once the client is dead; else whether this message is struck.
    fn next(&self, opcode: u16) -> Option<bool> {
        let of_transaction = [
            Opcode::Transact,
            Opcode::Decide,
            Opcode::Vote,
            Opcode::Release,
        ];
        let mut left = self.left.lock().unwrap();
        let now = (*left)?;
        if !of_transaction.iter().any(|op| *op as u16 == opcode) {
            return Some(false);
        }
        *left = match (now, self.blow) {
            (1, Blow::Server) => Some(u32::MAX),
            (1, _) => None,
            (many, _) => Some(many - 1),
        };
        Some(now == 1)
    }
}

impl Interceptor for Striker {
    fn call<'a>(
        &'a self,
        network: &'a dyn Network,
        to: &'a Address,
        request: Frame,
        limit: Duration,
    ) -> BoxFuture<'a, Result<Frame, CallError>> {
        Box::pin(async move {
            let Some(struck) = self.next(request.opcode) else {
                return core::future::pending().await;
            };
            if struck && self.blow == Blow::ClientBefore {
                return core::future::pending().await;
            }
            let answer = network.call(to, request, limit).await;
            if struck && matches!(self.blow, Blow::Server | Blow::Both) {
                let name = to.0.split(':').next().unwrap();
                let processes = self.sim.processes();
                let (process, _) = processes.iter().find(|(_, n)| n == name).unwrap();
                self.sim.crash(*process);
            }
            match self.left.lock().unwrap().is_none() {
                true => {}
                false if struck => return Err(CallError::Lost(to.clone())),
                false => return answer,
            }
            core::future::pending().await
        })
    }
}

fn keys(table: &Table) -> Vec<Vec<u8>> {
    let mut keys: Vec<Vec<u8>> = Vec::new();
    let mut owners = Vec::new();
    for n in 0.. {
        let key = format!("key-{n}").into_bytes();
        let owner = table.tablet_of(table.hash(&key)).unwrap().owner;
        if !owners.contains(&owner) {
            owners.push(owner);
            keys.push(key);
        }
        if keys.len() == 3 {
            break;
        }
    }
    keys
}

async fn add(client: &Client, table: &Table, keys: &[Vec<u8>]) -> Result<bool, ClientError> {
    let steps: Vec<_> = keys
        .iter()
        .map(|key| {
            let change = Change::Add(Addend::Integer(1));
            let mutation = Mutation::new(table.id(), key, change);
            (table, TransactionStep::new(Operation::Mutate(mutation)))
        })
        .collect();
    let done = client.transact(&steps).await?;
    Ok(matches!(done, Transacted::Committed(_)))
}

async fn values(client: &Client, table: &Table, keys: &[Vec<u8>]) -> Vec<Vec<u8>> {
    let mut values = Vec::new();
    for key in keys {
        let object = client.read(table, key).await.unwrap();
        values.push(object.map_or_else(Vec::new, |object| object.value.to_vec()));
    }
    values
}

/// Runs a transaction that is struck at one message, and looks at its keys.
fn strike(seed: u64, blow: Blow, message: u32) {
    let sim = Sim::new(seed, SimOptions::default());
    start(&sim);
    let (doomed, watching) = (sim.process("doomed"), sim.process("watching"));
    let striker = Striker {
        sim: sim.handle(),
        blow,
        left: Mutex::new(Some(message)),
    };
    let network = Intercepted::new(doomed.env.network.clone(), striker);
    let client = support::client(&doomed.env, network);
    let other = support::client(&watching.env, watching.env.network.clone());
    let told: Arc<Mutex<Option<Result<bool, ClientError>>>> = Arc::default();
    let tells = Arc::clone(&told);
    let clock = Arc::clone(&watching.env.clock);
    let work = async move {
        let table = table(&other).await;
        let keys = keys(&table);
        for key in &keys {
            other.write(&table, key, "5".into()).await.unwrap();
        }
        let own = client.table("t").await.unwrap();
        let (same, its) = (keys.clone(), client.clone());
        let running = async move {
            let done = add(&its, &own, &same).await;
            *tells.lock().unwrap() = Some(done);
        };
        drop(
            doomed
                .env
                .tasks
                .spawn(pluvio_units::CoreId(0), "doomed", running),
        );
        clock.sleep(Duration::from_secs(30)).await;
        let found = values(&other, &table, &keys).await;
        let told = told.lock().unwrap().take();
        let expected = match &told {
            Some(Ok(committed)) => {
                assert!(*committed, "nothing stands against it");
                vec![b"6".to_vec(); 3]
            }
            Some(Err(error)) if !error.maybe_executed() => vec![b"5".to_vec(); 3],
            Some(Err(_)) | None => vec![found[0].clone(); 3],
        };
        assert_eq!(found, expected, "{blow:?} at message {message}: {told:?}");
        // Nothing is locked.
        assert!(add(&other, &table, &keys).await.unwrap());
    };
    sim.block_on(watching.id, work, LIMIT).unwrap();
}

#[test]
fn servers_go_on_for_clients_that_die_at_any_message() {
    let _marks = Marks::to_reach(&["transaction-resolved-by-server"]);
    for message in 1..=MESSAGES {
        strike(u64::from(message), Blow::ClientBefore, message);
        strike(u64::from(message), Blow::ClientBehind, message);
    }
}

#[test]
fn a_server_that_dies_at_any_message_is_a_delay() {
    for message in 1..=MESSAGES {
        strike(u64::from(message), Blow::Server, message);
    }
}

#[test]
fn a_server_and_the_client_may_die_at_once() {
    for message in 1..=MESSAGES {
        strike(u64::from(message), Blow::Both, message);
    }
}
