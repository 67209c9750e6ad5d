//! By the client library: steps that are sent together, optimistic transactions, and single
//! operations.

use super::super::journal::Journal;
use super::super::native::Native;
use super::{parts, wish};
use pluvio_client::{Client, ClientError, Commit, Operation, RejectRules, Table};
use pluvio_sim::cluster::several::{
    Shared, Told, Wanted, Wish, by_library, holds, operation, steps, told, written,
};
use pluvio_sim::history::transactions::{Ended, Holds, Step, What, tokens};

/// Reads all keys of a group at one moment.
///
/// # Errors
/// It was not possible in time.
pub async fn read_all(
    journal: &Journal,
    (client, tables): (&Client, &[Table]),
    number: u16,
    keys: Vec<Shared>,
) -> Result<(), ClientError> {
    let read = |key| Wanted {
        key,
        wish: Wish::Read,
    };
    let parts: Vec<Wanted> = keys.into_iter().map(read).collect();
    let begun = journal.begin_transaction(number, steps(&parts, None));
    let told = by_library(client, tables, &parts).await;
    let error = told.as_ref().err().cloned();
    let (ended, steps) = ended(journal, &parts, told.ok());
    journal.end_transaction("last transaction", begun, ended, steps);
    error.map_or(Ok(()), Err)
}

/// How a transaction without an error ended, and its steps; `None`: it changed nothing.
fn ended(
    journal: &Journal,
    parts: &[Wanted],
    answer: Option<Option<Vec<Told>>>,
) -> (Ended, Vec<Step>) {
    match answer {
        Some(Some(told)) => (Ended::Done, steps(parts, Some(&told))),
        Some(None) => {
            journal.wrong(format!("a transaction has an impossible answer: {parts:?}"));
            (Ended::Unknown, steps(parts, None))
        }
        None => (Ended::NotDone, steps(parts, None)),
    }
}

impl Native {
    /// One transaction, or one operation on such a key.
    pub(in super::super) async fn step_of_several(&mut self) {
        let keys = self.journal.pick_several_of_all(&mut self.draw);
        match self.draw.below(100) {
            0..30 => {
                let key = keys[self.draw.place(keys.len())].clone();
                self.single(key).await;
            }
            30..70 => {
                let parts = parts(&self.journal, &mut self.draw, &keys);
                self.together("native steps", parts).await;
            }
            _ => self.optimistic(&keys).await,
        }
    }

    async fn together(&mut self, kind: &str, parts: Vec<Wanted>) {
        let begun = self
            .journal
            .begin_transaction(self.number, steps(&parts, None));
        let (ended, steps) = match by_library(&self.client, &self.tables, &parts).await {
            Ok(told) => ended(&self.journal, &parts, Some(told)),
            Err(error) => (self.lost(&error, &parts), steps(&parts, None)),
        };
        self.journal.end_transaction(kind, begun, ended, steps);
    }

    /// How a transaction with an error ended.
    fn lost(&self, error: &ClientError, parts: &[Wanted]) -> Ended {
        self.failed(error);
        // A read changes nothing, whatever happened to it.
        let changes = parts.iter().any(|part| part.wish != Wish::Read);
        match error.maybe_executed() && changes {
            true => Ended::Unknown,
            false => Ended::NotDone,
        }
    }

    /// An operation on one key, without a transaction.
    async fn single(&mut self, key: Shared) {
        if key.holds == Holds::Register && self.draw.percent(30) {
            return self.compare_and_set(&key).await;
        }
        let wish = wish(&self.journal, &mut self.draw, key.holds);
        let parts = [Wanted { key, wish }];
        let begun = self
            .journal
            .begin_transaction(self.number, steps(&parts, None));
        let value = written(wish);
        let (client, table) = (&self.client, parts[0].key.table(&self.tables));
        let outcome = match operation(&parts[0], &value, table) {
            Operation::Get(get) => client.get(table, get).await,
            Operation::Mutate(mutation) => client.mutate(table, mutation).await,
        };
        let (ended, steps) = match outcome {
            Ok(outcome) => {
                let told = told(&parts[0], &outcome).map(|told| vec![told]);
                ended(&self.journal, &parts, Some(told))
            }
            Err(error) => (self.lost(&error, &parts), steps(&parts, None)),
        };
        self.journal
            .end_transaction("native single", begun, ended, steps);
    }

    /// Reads a register, and writes it if it is still so.
    async fn compare_and_set(&mut self, key: &Shared) {
        let (client, table) = (&self.client, key.table(&self.tables));
        let old = match client.read(table, &key.key).await {
            Ok(old) => old,
            Err(error) => {
                self.failed(&error);
                return;
            }
        };
        let Some(saw) = self.tokens(old.as_ref().map(|old| &old.value[..])) else {
            return;
        };
        let token = self.journal.token();
        let set = Step {
            key: key.id,
            what: What::Set { token },
        };
        let steps = vec![holds(key, &saw), set];
        let begun = self.journal.begin_transaction(self.number, steps.clone());
        let value = tokens::bytes(token);
        let (client, table) = (&self.client, key.table(&self.tables));
        let went_ahead = match old {
            Some(old) => {
                let (old, value) = (&old.value, value.into());
                client.compare_and_set(table, &key.key, old, value).await
            }
            None => {
                let rules = RejectRules::EXISTS;
                let written = client.write_if(table, &key.key, value.into(), rules);
                written.await.map(|_| true)
            }
        };
        let ended = match went_ahead {
            Ok(true) => Ended::Done,
            Ok(false) | Err(ClientError::Rejected { .. }) => Ended::NotDone,
            Err(error) => {
                self.failed(&error);
                match error.maybe_executed() {
                    true => Ended::Unknown,
                    false => Ended::NotDone,
                }
            }
        };
        self.journal
            .end_transaction("native compare", begun, ended, steps);
    }

    /// The tokens of a value. Others are a violation.
    fn tokens(&self, value: Option<&[u8]>) -> Option<Vec<u64>> {
        let Some(value) = value else {
            return Some(Vec::new());
        };
        let tokens = tokens::read(value);
        if tokens.is_none() {
            let text = String::from_utf8_lossy(value);
            self.journal
                .wrong(format!("{text:?} was read, which nobody wrote"));
        }
        tokens
    }

    /// Reads some keys, one after the other, and writes some of them.
    async fn optimistic(&mut self, keys: &[Shared]) {
        let transaction = self.client.transaction();
        let mut record = Vec::new();
        let mut changes = false;
        // Different ones, from a place on.
        let (first, count) = (self.draw.place(keys.len()), 2 + self.draw.place(2));
        for key in keys.iter().cycle().skip(first).take(count) {
            let writes = self.draw.percent(60);
            let blind = writes && key.holds == Holds::Register && self.draw.percent(30);
            let mut saw = Vec::new();
            if !blind {
                let value = match transaction.get(key.table(&self.tables), &key.key).await {
                    Ok(value) => value,
                    Err(error) => {
                        self.failed(&error);
                        return;
                    }
                };
                match self.tokens(value.as_deref()) {
                    Some(tokens) => saw = tokens,
                    None => return,
                }
                record.push(holds(key, &saw));
            }
            if !writes {
                continue;
            }
            changes = true;
            let token = self.journal.token();
            let (what, tokens) = match key.holds {
                Holds::Register if !blind && self.draw.percent(20) => {
                    let found = Some(!saw.is_empty());
                    (What::Delete { found }, Vec::new())
                }
                Holds::Register => (What::Set { token }, vec![token]),
                Holds::List => {
                    saw.push(token);
                    let length = Some(saw.len() as u64);
                    (What::Append { token, length }, saw)
                }
            };
            match tokens.is_empty() {
                true => transaction.delete(key.table(&self.tables), &key.key),
                false => {
                    let value: Vec<u8> = tokens.into_iter().flat_map(tokens::bytes).collect();
                    transaction.put(key.table(&self.tables), &key.key, value);
                }
            }
            record.push(Step { key: key.id, what });
        }
        let begun = self.journal.begin_transaction(self.number, record.clone());
        let ended = match transaction.commit().await {
            Ok(Commit::Done) => Ended::Done,
            Ok(Commit::Conflict(_)) => Ended::NotDone,
            Err(error) => {
                self.failed(&error);
                match error.maybe_executed() && changes {
                    true => Ended::Unknown,
                    false => Ended::NotDone,
                }
            }
        };
        let kind = "native optimistic";
        self.journal.end_transaction(kind, begun, ended, record);
    }
}
