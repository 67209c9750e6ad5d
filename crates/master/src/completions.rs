//! Results of operations that change something, kept until their client has them, so that a
//! retry is answered and not done again (003 §10.3).
//!
//! The table lies in memory: it covers lost replies, duplicated and delayed requests while the
//! master lives. A retry that reaches the tablet's next owner is done again.
//!
//! - COMP-1: of one operation at most one execution is running or done here.
//! - COMP-2: an operation that its client has acknowledged is never executed again.
//! - COMP-3: memory is bounded: [`CLIENTS_MAX`] clients and [`OPERATIONS_MAX`] operations each, and one:
//!   the oldest operation that a client waits for is always admitted. Until it is done none of the
//!   others can be forgotten, so refusing it would refuse everything.
//!
//! Weakness: a client that is forgotten for a newer one (COMP-3) can have a delayed duplicate
//! done twice.

use bytes::Bytes;
use pluvio_env::Frame;
use pluvio_units::{ClientId, FixedMap, SequenceNumber};
use pluvio_wire::{FatalKind, OperationId, Refusal, RetryReason};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// Clients that are remembered, in all; the one longest unused is forgotten for a new one.
pub const CLIENTS_MAX: usize = 64 << 10;
/// Operations of one client that are remembered; clients have fewer in flight.
pub const OPERATIONS_MAX: usize = 4096;
/// Independent parts of the table, so that cores seldom meet.
const SHARDS: usize = 64;
/// How long the sender of a duplicate should wait for the original to end.
const DUPLICATE_RETRY: Duration = Duration::from_micros(500);

enum Record {
    Running,
    Done(Frame),
}

#[derive(Default)]
struct Client {
    acknowledged_below: SequenceNumber,
    operations: BTreeMap<SequenceNumber, Record>,
    last_used: u64,
}

#[derive(Default)]
struct Shard {
    clients: FixedMap<ClientId, Client>,
    uses: u64,
}

/// See the module's text.
pub struct Completions {
    shards: Vec<Mutex<Shard>>,
}

/// What to do with an operation.
pub enum Admission {
    /// New: execute it, and end the execution with the token.
    Execute(Option<Execution>),
    /// Done before: send this result again.
    Answer(Frame),
    /// Must not be executed.
    Refuse(Refusal),
}

/// An operation being executed. Dropping it without [`Execution::complete`] means that nothing was
/// done, so that a retry is executed.
pub struct Execution {
    table: Arc<Completions>,
    id: OperationId,
    completed: bool,
}

impl Completions {
    /// An empty table.
    #[must_use]
    pub fn new() -> Arc<Self> {
        Arc::new(Self {
            shards: (0..SHARDS).map(|_| Mutex::default()).collect(),
        })
    }

    fn shard(&self, client: ClientId) -> std::sync::MutexGuard<'_, Shard> {
        // Client ids are random numbers: their low bits spread them well.
        let shard = &self.shards[(client.0 % SHARDS as u64) as usize];
        shard.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Decides whether an operation is to be executed.
    pub fn admit(self: &Arc<Self>, id: OperationId) -> Admission {
        if id.client == ClientId(0) {
            return Admission::Execute(None);
        }
        let mut shard = self.shard(id.client);
        shard.uses += 1;
        let uses = shard.uses;
        if shard.clients.len() >= CLIENTS_MAX / SHARDS && !shard.clients.contains_key(&id.client) {
            forget_one(&mut shard);
        }
        let client = shard.clients.entry(id.client).or_default();
        client.last_used = uses;
        if id.acknowledged_below > client.acknowledged_below {
            client.acknowledged_below = id.acknowledged_below;
            client.operations = client.operations.split_off(&id.acknowledged_below);
        }
        if id.sequence < client.acknowledged_below {
            return Admission::Refuse(Refusal::fatal(
                FatalKind::ResultForgotten,
                "the client has this operation's result already",
            ));
        }
        match client.operations.get(&id.sequence) {
            Some(Record::Running) => {
                Admission::Refuse(Refusal::retry(DUPLICATE_RETRY, RetryReason::InProgress))
            }
            Some(Record::Done(result)) => Admission::Answer(result.clone()),
            None if client.operations.len() >= OPERATIONS_MAX
                && id.sequence > client.acknowledged_below =>
            {
                Admission::Refuse(Refusal::retry(DUPLICATE_RETRY, RetryReason::Busy))
            }
            None => {
                client.operations.insert(id.sequence, Record::Running);
                Admission::Execute(Some(Execution {
                    table: Arc::clone(self),
                    id,
                    completed: false,
                }))
            }
        }
    }
}

fn forget_one(shard: &mut Shard) {
    let idle = |client: &Client| {
        !client
            .operations
            .values()
            .any(|r| matches!(r, Record::Running))
    };
    let oldest = shard
        .clients
        .iter()
        .filter(|(_, c)| idle(c))
        .min_by_key(|(_, c)| c.last_used)
        .map(|(id, _)| *id);
    if let Some(id) = oldest {
        shard.clients.remove(&id);
    }
}

impl Execution {
    /// The operation was executed with this result.
    pub fn complete(mut self, result: Frame) {
        self.completed = true;
        // Results of data operations are small; a copy of its own keeps no larger buffer alive.
        let result = Frame {
            meta: Bytes::copy_from_slice(&result.meta),
            ..result
        };
        let mut shard = self.table.shard(self.id.client);
        if let Some(client) = shard.clients.get_mut(&self.id.client)
            && let Some(record) = client.operations.get_mut(&self.id.sequence)
        {
            *record = Record::Done(result);
        }
    }
}

impl Drop for Execution {
    fn drop(&mut self) {
        if self.completed {
            return;
        }
        let mut shard = self.table.shard(self.id.client);
        if let Some(client) = shard.clients.get_mut(&self.id.client) {
            client.operations.remove(&self.id.sequence);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(client: u64, sequence: u64, acknowledged_below: u64) -> OperationId {
        OperationId {
            client: ClientId(client),
            sequence: SequenceNumber(sequence),
            acknowledged_below: SequenceNumber(acknowledged_below),
        }
    }

    fn execute(table: &Arc<Completions>, id: OperationId) -> Execution {
        match table.admit(id) {
            Admission::Execute(Some(execution)) => execution,
            Admission::Execute(None) | Admission::Answer(_) | Admission::Refuse(_) => {
                panic!("must be executed")
            }
        }
    }

    fn result() -> Frame {
        Frame {
            opcode: 2,
            meta: Bytes::from_static(b"done"),
            payload: Bytes::new(),
        }
    }

    #[test]
    fn a_retry_gets_the_first_result() {
        let table = Completions::new();
        execute(&table, id(1, 5, 0)).complete(result());
        assert!(matches!(table.admit(id(1, 5, 0)), Admission::Answer(frame) if frame == result()));
        assert!(
            matches!(table.admit(id(2, 5, 0)), Admission::Execute(Some(_))),
            "another client's operation is another one"
        );
    }

    #[test]
    fn a_duplicate_of_a_running_operation_must_wait() {
        let table = Completions::new();
        let running = execute(&table, id(1, 5, 0));
        assert!(matches!(
            table.admit(id(1, 5, 0)),
            Admission::Refuse(Refusal::Retry { .. })
        ));
        drop(running);
        execute(&table, id(1, 5, 0)).complete(result());
    }

    #[test]
    fn an_acknowledged_operation_is_never_executed_again() {
        let table = Completions::new();
        execute(&table, id(1, 5, 0)).complete(result());
        execute(&table, id(1, 6, 6)).complete(result());
        let late = table.admit(id(1, 5, 0));
        assert!(
            matches!(late, Admission::Refuse(r) if r.fatal_kind() == Some(FatalKind::ResultForgotten))
        );
    }

    #[test]
    fn the_oldest_operation_is_admitted_however_many_later_ones_are_remembered() {
        let table = Completions::new();
        for sequence in 6..6 + OPERATIONS_MAX as u64 {
            execute(&table, id(1, sequence, 5)).complete(result());
        }
        let newer = id(1, 6 + OPERATIONS_MAX as u64, 5);
        assert!(matches!(table.admit(newer), Admission::Refuse(_)));
        execute(&table, id(1, 5, 5)).complete(result());
        // With that, the client acknowledges all of them.
        let newer = id(1, 6 + OPERATIONS_MAX as u64, 6 + OPERATIONS_MAX as u64);
        execute(&table, newer).complete(result());
    }

    #[test]
    fn operations_without_identity_are_always_executed() {
        let table = Completions::new();
        assert!(matches!(table.admit(id(0, 0, 0)), Admission::Execute(None)));
        assert!(matches!(table.admit(id(0, 0, 0)), Admission::Execute(None)));
    }

    #[test]
    fn memory_is_bounded() {
        let table = Completions::new();
        for client in 1..=CLIENTS_MAX as u64 + 500 {
            execute(&table, id(client, 1, 0)).complete(result());
        }
        let remembered: usize = table
            .shards
            .iter()
            .map(|s| s.lock().unwrap().clients.len())
            .sum();
        assert_eq!(remembered, CLIENTS_MAX);
        for sequence in 0..OPERATIONS_MAX as u64 {
            execute(&table, id(1, sequence, 0)).complete(result());
        }
        assert!(matches!(
            table.admit(id(1, u64::from(u32::MAX), 0)),
            Admission::Refuse(Refusal::Retry { .. })
        ));
    }
}
