//! Transactions between accounts that lie on several servers, by the client library and as blocks
//! of the Redis ports.
//!
//! Each transfer adds one to a count in the same transaction. So its answer tells its place among
//! all transfers, and the [checker](pluvio_sim::check::transfers) knows the one order that there
//! may be.

use super::draw::Draw;
use super::journal::Journal;
use super::native::Native;
use super::redis::Redis;
use pluvio_client::{
    Addend, Change, Client, ClientError, Get, Mutation, Operation, Outcome, Output, Table,
    Transacted, TransactionStep,
};
use pluvio_env::timeout;
use pluvio_load::resp::{Connection, Reply, command};
use pluvio_sim::check::transfers::{ACCOUNTS, Did};
use std::sync::Arc;

/// Of a hundred steps of a client this many are transactions.
const PERCENT: u64 = 12;
/// Of a hundred transactions this many read all accounts.
const READS_PERCENT: u64 = 25;
/// Counts the transfers.
const COUNT: &[u8] = b"bank count";

fn account(number: usize) -> Vec<u8> {
    format!("bank {number}").into_bytes()
}

/// A transfer: from, to, and how much. `None`: a read of all accounts.
type Deal = Option<(usize, usize, i64)>;

/// The next step of a client, if it is a transaction.
pub fn draw(draw: &mut Draw) -> Option<Deal> {
    if !draw.percent(PERCENT) {
        return None;
    }
    if draw.percent(READS_PERCENT) {
        return Some(None);
    }
    let amount = 1 + i64::try_from(draw.below(100)).expect("a small number");
    Some(Some((draw.place(ACCOUNTS), draw.place(ACCOUNTS), amount)))
}

/// The number in an outcome; an absent one is 0.
fn number(outcome: &Outcome) -> Option<i64> {
    match outcome.output() {
        Output::Nothing => Some(0),
        Output::Integer(number) => Some(*number),
        Output::Bytes(text) => core::str::from_utf8(text).ok()?.parse().ok(),
        Output::Integers(_) => None,
    }
}

/// The numbers of a transaction's answer; `None`: no server may give such an answer.
fn did(deal: Deal, numbers: Option<Vec<i64>>) -> Did {
    match (deal, numbers) {
        (Some(_), Some(numbers)) if numbers.len() == 3 => Did::Moved { count: numbers[2] },
        (None, Some(mut numbers)) if numbers.len() == ACCOUNTS + 1 => {
            let count = numbers.pop().expect("there are some");
            let balances = numbers;
            Did::Read { count, balances }
        }
        (Some(_) | None, _) => Did::Strange,
    }
}

/// A read changes nothing, whatever happened to it.
fn not_known(deal: Deal) -> Did {
    deal.map_or(Did::Nothing, |_| Did::Unknown)
}

/// A transaction by the client library.
///
/// # Errors
/// It was not done, or nobody knows.
pub async fn by_library(client: &Client, table: &Table, deal: Deal) -> Result<Did, ClientError> {
    let keys: Vec<Vec<u8>> = (0..ACCOUNTS).map(account).collect();
    let add = |key, by| {
        let change = Change::Add(Addend::Integer(by));
        Operation::Mutate(Mutation::new(table.id(), key, change))
    };
    let read = |key| Operation::Get(Get::new(table.id(), key));
    let operations: Vec<Operation<'_>> = match deal {
        Some((from, to, amount)) => {
            vec![
                add(&keys[from], -amount),
                add(&keys[to], amount),
                add(COUNT, 1),
            ]
        }
        None => {
            let all = keys.iter().map(|key| read(&key[..]));
            all.chain([read(COUNT)]).collect()
        }
    };
    let steps = operations.into_iter().map(TransactionStep::new);
    let steps: Vec<_> = steps.map(|step| (table, step)).collect();
    Ok(match client.transact(&steps).await? {
        Transacted::Committed(outcomes) => did(deal, outcomes.iter().map(number).collect()),
        Transacted::Refused { .. } => Did::Strange,
    })
}

impl Native {
    /// One transaction.
    pub async fn deal(&mut self, deal: Deal) {
        let begun = self.journal.begin_deed(self.number, deal);
        let did = match by_library(&self.client, &self.tables[0], deal).await {
            Ok(did) => did,
            Err(error) => {
                self.failed(&error);
                match error.maybe_executed() {
                    true => not_known(deal),
                    false => Did::Nothing,
                }
            }
        };
        self.journal.end_deed("native transaction", begun, did);
    }
}

impl Redis {
    /// One block.
    pub(super) async fn deal(&mut self, mut connection: Connection, deal: Deal) {
        let (bytes, commands) = block(deal);
        let begun = self.journal.begin_deed(self.number, deal);
        let clock = Arc::clone(&self.clock);
        let exchange = async {
            connection.send(&bytes).await.ok()?;
            for _ in 0..=commands {
                connection.reply(|_| ()).await.ok()?;
            }
            connection
                .reply(|reply| end_of(&self.journal, deal, reply))
                .await
                .ok()
        };
        let answered = timeout(&*clock, self.patience, exchange).await;
        let did = answered.ok().flatten();
        if did.is_some() {
            self.connection = Some(connection);
        } else {
            self.journal.error("redis: no reply".to_owned());
        }
        let did = did.unwrap_or_else(|| not_known(deal));
        self.journal.end_deed("redis EXEC", begun, did);
    }
}

/// The bytes of a block, and how many commands stand between MULTI and EXEC.
fn block(deal: Deal) -> (Vec<u8>, usize) {
    let mut bytes = Vec::new();
    command(&mut bytes, &[b"MULTI"]);
    let commands = match deal {
        Some((from, to, amount)) => {
            let add = |bytes: &mut Vec<u8>, key: &[u8], by: i64| {
                command(bytes, &[b"INCRBY", key, by.to_string().as_bytes()]);
            };
            add(&mut bytes, &account(from), -amount);
            add(&mut bytes, &account(to), amount);
            add(&mut bytes, COUNT, 1);
            3
        }
        None => {
            for number in 0..ACCOUNTS {
                command(&mut bytes, &[b"GET".as_slice(), &account(number)]);
            }
            command(&mut bytes, &[b"GET", COUNT]);
            ACCOUNTS + 1
        }
    };
    command(&mut bytes, &[b"EXEC"]);
    (bytes, commands)
}

/// What the reply to EXEC says.
fn end_of(journal: &Journal, deal: Deal, reply: Reply<'_>) -> Did {
    let number = |reply: &Reply<'_>| match reply {
        Reply::Integer(number) => Some(*number),
        Reply::Bulk(text) => core::str::from_utf8(text).ok()?.parse().ok(),
        Reply::Nil => Some(0),
        Reply::Simple(_) | Reply::Error(_) | Reply::Array(_) => None,
    };
    match reply {
        Reply::Array(replies) => did(deal, replies.iter().map(number).collect()),
        Reply::Error(text) => {
            let word = text.split(' ').next().unwrap_or_default();
            journal.error(format!("redis EXEC: {word}"));
            not_known(deal)
        }
        _ => Did::Strange,
    }
}
