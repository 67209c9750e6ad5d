//! Transactions: amounts that move between accounts. In some runs they have one owner, by their
//! hash tag, in others several.

use super::Worker;
use crate::check::transfers::{ACCOUNTS, Did};
use crate::cluster::plan::OperationKind;
use pluvio_client::{
    Addend, Change, ClientError, Get, Mutation, Operation, Outcome, Output, Table, Transacted,
    TransactionStep, WhichTablet,
};
use pluvio_units::{KeyHash, ObjectVersion};

/// The table of the accounts.
const TABLE: &str = "accounts";
/// Counts the transfers.
const COUNT: &[u8] = b"{account}count";

fn add<'a>(key: &'a [u8], by: i64, table: &Table) -> TransactionStep<'a> {
    let change = Change::Add(Addend::Integer(by));
    TransactionStep::new(Operation::Mutate(Mutation::new(table.id(), key, change)))
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

impl Worker {
    /// The table of an account. Where tables have several durabilities, accounts lie in all of
    /// them.
    fn table_of_account(tables: &[Table], number: usize) -> &Table {
        &tables[number % tables.len()]
    }

    /// The key of an account. Tags that are apart have slots that are.
    fn account(&self, number: usize) -> Vec<u8> {
        match self.shared.plan.accounts_are_apart {
            true => format!("{{account {number}}}").into_bytes(),
            false => format!("{{account}}{number}").into_bytes(),
        }
    }

    /// Moves an amount, or reads all accounts, at one moment.
    pub(super) async fn transfer(&mut self, kind: OperationKind) {
        let Some(tables) = self.accounts().await else {
            self.shared.journal.count_only(kind, false);
            return;
        };
        match self.transfers.below(16) {
            0 => self.move_accounts(&tables).await,
            1..=5 => drop(self.read_accounts(kind).await),
            _ => self.move_amount(kind, &tables).await,
        }
    }

    async fn accounts(&mut self) -> Option<Vec<Table>> {
        if self.accounts.is_empty() {
            let span = (!self.shared.plan.accounts_are_apart).then_some(1);
            self.accounts = self.open_one_of_each(TABLE, span).await;
        }
        (!self.accounts.is_empty()).then(|| self.accounts.clone())
    }

    /// Lets the accounts, or some of them, go to another server.
    async fn move_accounts(&mut self, tables: &[Table]) {
        let Ok(list) = self.client.server_list().await else {
            return;
        };
        let up: Vec<_> = list.up().map(|info| info.id).collect();
        if up.is_empty() {
            return;
        }
        let to = up[self.transfers.below(up.len() as u64) as usize];
        let number = self.transfers.below(ACCOUNTS as u64) as usize;
        let some = self.account(number);
        // One owner is to have all of them, in whatever table, or any has some.
        let moved = match self.shared.plan.accounts_are_apart {
            true => vec![Self::table_of_account(tables, number)],
            false => tables.iter().collect(),
        };
        for table in moved {
            let tablet = WhichTablet::Containing(KeyHash(table.hash(&some).0));
            drop(self.client.start_migration(table, tablet, to).await);
        }
    }

    async fn move_amount(&mut self, kind: OperationKind, tables: &[Table]) {
        let draw = &mut self.transfers;
        let mut place = || draw.below(ACCOUNTS as u64) as usize;
        let (from, to) = (place(), place());
        let amount = 1 + draw.below(100) as i64;
        // Now and then a condition that never holds: nothing may be done then.
        let is_doomed = draw.below(8) == 0;
        let (source, target) = (self.account(from), self.account(to));
        let [out_of, into, counted] =
            [from, to, 0].map(|number| Self::table_of_account(tables, number));
        let mut steps = vec![
            (out_of, add(&source, -amount, out_of)),
            (into, add(&target, amount, into)),
            (counted, add(COUNT, 1, counted)),
        ];
        if is_doomed {
            let never = ObjectVersion(u64::MAX);
            let step = TransactionStep::version_is(into.id(), &target, never);
            steps.push((into, step));
        }
        let begun = self.begin_deed(Some((from, to, amount)));
        let did = match self.client.transact(&steps).await {
            Ok(Transacted::Committed(outcomes)) => match outcomes.get(2).and_then(number) {
                Some(count) if !is_doomed => Did::Moved { count },
                Some(_) | None => Did::Strange,
            },
            Ok(Transacted::Refused { step: 3, .. }) => Did::Nothing,
            Ok(Transacted::Refused { .. }) => Did::Strange,
            Err(error) => self.failed_deed(&error),
        };
        self.end_deed(kind, begun, did);
    }

    /// Reads all accounts at one moment. False: they could not be read.
    pub(in crate::cluster) async fn read_accounts(&mut self, kind: OperationKind) -> bool {
        let Some(tables) = self.accounts().await else {
            return false;
        };
        let keys: Vec<Vec<u8>> = (0..ACCOUNTS).map(|number| self.account(number)).collect();
        let read = |number, key| {
            let table = Self::table_of_account(&tables, number);
            let get = Operation::Get(Get::new(table.id(), key));
            (table, TransactionStep::new(get))
        };
        let accounts = keys.iter().enumerate();
        let accounts = accounts.map(|(number, key)| read(number, &key[..]));
        let steps: Vec<_> = accounts.chain([read(0, COUNT)]).collect();
        let begun = self.begin_deed(None);
        let did = match self.client.transact(&steps).await {
            Ok(Transacted::Committed(outcomes)) => {
                let numbers: Option<Vec<i64>> = outcomes.iter().map(number).collect();
                match numbers.and_then(|mut all| Some((all.pop()?, all))) {
                    Some((count, balances)) => Did::Read { count, balances },
                    None => Did::Strange,
                }
            }
            Ok(Transacted::Refused { .. }) => Did::Strange,
            Err(error) => match self.failed_deed(&error) {
                // A read changes nothing, whatever happened to it.
                Did::Unknown => Did::Nothing,
                other => other,
            },
        };
        let is_read = matches!(did, Did::Read { .. });
        self.end_deed(kind, begun, did);
        is_read
    }

    /// Reads the accounts one by one until two rounds find the same. That is one moment while
    /// nobody transfers: only what clients left behind is still concluded. Locks of a transaction
    /// over several servers need memory, and these reads do not (`docs/transactions.md`,
    /// Weaknesses).
    pub(in crate::cluster) async fn read_accounts_singly(&mut self, kind: OperationKind) -> bool {
        const ROUNDS_MAX: usize = 10;
        let Some(tables) = self.accounts().await else {
            return false;
        };
        let mut keys: Vec<Vec<u8>> = (0..ACCOUNTS).map(|number| self.account(number)).collect();
        keys.push(COUNT.to_vec());
        let mut before = Vec::new();
        for _ in 0..ROUNDS_MAX {
            let begun = self.begin_deed(None);
            let mut numbers = Vec::new();
            for (place, key) in keys.iter().enumerate() {
                // The count, which is the last one, lies with the first account.
                let table = Self::table_of_account(&tables, place % ACCOUNTS);
                let read = TransactionStep::new(Operation::Get(Get::new(table.id(), key)));
                if let Ok(Transacted::Committed(found)) =
                    self.client.transact(&[(table, read)]).await
                {
                    numbers.extend(found.first().and_then(number));
                }
            }
            let is_stable = numbers.len() == keys.len() && numbers == before;
            before.clone_from(&numbers);
            let did = match numbers.pop() {
                Some(count) if is_stable => Did::Read {
                    count,
                    balances: numbers,
                },
                Some(_) | None => Did::Nothing,
            };
            self.end_deed(kind, begun, did);
            if is_stable {
                return true;
            }
        }
        false
    }

    fn failed_deed(&self, error: &ClientError) -> Did {
        self.shared.journal.failure(error);
        match error.maybe_executed() {
            true => Did::Unknown,
            false => Did::Nothing,
        }
    }

    /// Of unknown outcome as long as this client has not ended it: it may die.
    fn begin_deed(&self, moved: Option<(usize, usize, i64)>) -> usize {
        self.shared.journal.begin_deed(self.number, moved)
    }

    fn end_deed(&mut self, kind: OperationKind, begun: usize, did: Did) {
        // The client's changes are counted for other checkers.
        let _repeats = self.attempts.repeats(did == Did::Unknown);
        let is_done = matches!(did, Did::Moved { .. } | Did::Read { .. });
        self.shared.journal.count_only(kind, is_done);
        self.shared.journal.end_deed(begun, did);
    }
}
