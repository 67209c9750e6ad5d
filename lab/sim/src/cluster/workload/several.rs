//! Transactions over registers and lists that lie on several servers, and single operations on the
//! same keys.

use super::Worker;
use crate::check::{Check, Violation};
use crate::cluster::plan::OperationKind;
use crate::cluster::several::{
    Shared, Told, Wanted, Wish, by_library, holds, operation, steps, told, written,
};
use crate::history::transactions::{Ended, Holds, Step, What, tokens};
use bytes::Bytes;
use pluvio_client::{ClientError, Commit, Operation, Table, WhichTablet};
use pluvio_units::KeyHash;

/// The table of their keys, or the first of them.
const TABLE: &str = "several";

impl Worker {
    /// One transaction, or one operation on such a key.
    pub(super) async fn several(&mut self, kind: OperationKind) {
        let Some(tables) = self.shared_tables().await else {
            self.shared.journal.count_only(kind, false);
            return;
        };
        let keys = self.shared.journal.pick_several();
        match self.several.below(100) {
            0..5 => self.move_shared(&tables, &keys).await,
            5..35 => {
                let key = self.one_of(&keys);
                let wish = self.wish(key.holds);
                self.single(&tables, Wanted { key, wish }).await;
            }
            35..75 => {
                let count = 2 + self.several.below(3);
                let parts = (0..count).map(|_| {
                    let key = self.one_of(&keys);
                    let wish = self.wish(key.holds);
                    Wanted { key, wish }
                });
                let parts = parts.collect();
                self.together(&tables, parts).await;
            }
            _ => self.optimistic(&tables, &keys).await,
        }
        // The client's changes are counted for other checkers.
        let _repeats = self.attempts.repeats(false);
    }

    async fn shared_tables(&mut self) -> Option<Vec<Table>> {
        if self.shared_keys.is_empty() {
            self.shared_keys = self.open_one_of_each(TABLE, None).await;
        }
        (!self.shared_keys.is_empty()).then(|| self.shared_keys.clone())
    }

    fn one_of(&mut self, keys: &[Shared]) -> Shared {
        keys[self.several.below(keys.len() as u64) as usize].clone()
    }

    fn wish(&mut self, holds: Holds) -> Wish {
        let journal = &self.shared.journal;
        Wish::of(holds, self.several.below(100), || journal.value_number())
    }

    /// Lets some of the keys go to another server.
    async fn move_shared(&mut self, tables: &[Table], keys: &[Shared]) {
        let Ok(list) = self.client.server_list().await else {
            return;
        };
        let up: Vec<_> = list.up().map(|info| info.id).collect();
        if up.is_empty() {
            return;
        }
        let to = up[self.several.below(up.len() as u64) as usize];
        let key = self.one_of(keys);
        let table = key.table(tables);
        let tablet = WhichTablet::Containing(KeyHash(table.hash(&key.key).0));
        drop(self.client.start_migration(table, tablet, to).await);
    }

    /// An operation on one key, without a transaction. False: it was not done.
    async fn single(&mut self, tables: &[Table], part: Wanted) -> bool {
        let parts = [part];
        let begun = self.begin_transaction(steps(&parts, None));
        let value = written(parts[0].wish);
        let table = parts[0].key.table(tables);
        let outcome = match operation(&parts[0], &value, table) {
            Operation::Get(get) => self.client.get(table, get).await,
            Operation::Mutate(mutation) => self.client.mutate(table, mutation).await,
        };
        let answer = outcome.map(|outcome| told(&parts[0], &outcome).map(|told| vec![told]));
        self.end_parts(begun, &parts, answer)
    }

    /// Reads a key. False: that is not possible.
    pub(in crate::cluster) async fn read_shared(&mut self, key: &Shared) -> bool {
        let Some(tables) = self.shared_tables().await else {
            return false;
        };
        let (key, wish) = (key.clone(), Wish::Read);
        self.single(&tables, Wanted { key, wish }).await
    }

    async fn together(&mut self, tables: &[Table], parts: Vec<Wanted>) {
        let begun = self.begin_transaction(steps(&parts, None));
        let answer = by_library(&self.client, tables, &parts).await;
        self.end_parts(begun, &parts, answer);
    }

    /// Reads some keys, one after the other, and writes some of them.
    async fn optimistic(&mut self, tables: &[Table], keys: &[Shared]) {
        let transaction = self.client.transaction();
        let mut record = Vec::new();
        // Different ones, from a place on.
        let first = self.several.below(keys.len() as u64) as usize;
        let count = 2 + self.several.below(2) as usize;
        for key in keys.iter().cycle().skip(first).take(count) {
            let value = match transaction.get(key.table(tables), &key.key).await {
                Ok(value) => value,
                Err(error) => return self.shared.journal.failure(&error),
            };
            let Some(mut saw) = self.tokens_of(value) else {
                return;
            };
            record.push(holds(key, &saw));
            if self.several.below(10) < 4 {
                continue;
            }
            let token = self.shared.journal.value_number();
            let what = match key.holds {
                Holds::Register => {
                    saw = vec![token];
                    What::Set { token }
                }
                Holds::List => {
                    saw.push(token);
                    let length = Some(saw.len() as u64);
                    What::Append { token, length }
                }
            };
            let value: Vec<u8> = saw.into_iter().flat_map(tokens::bytes).collect();
            transaction.put(key.table(tables), &key.key, value);
            record.push(Step { key: key.id, what });
        }
        let begun = self.begin_transaction(record.clone());
        let ended = match transaction.commit().await {
            Ok(Commit::Done) => Ended::Done,
            Ok(Commit::Conflict(_)) => Ended::NotDone,
            Err(error) => self.lost(&error, record.iter().any(|step| !step.what.is_read())),
        };
        self.end_transaction(begun, ended, record);
    }

    /// The tokens of a value. Others are a violation.
    fn tokens_of(&self, value: Option<Bytes>) -> Option<Vec<u64>> {
        let Some(value) = value else {
            return Some(Vec::new());
        };
        let tokens = tokens::read(&value);
        if tokens.is_none() {
            self.strange(format!("{value:?} was read, which nobody wrote"));
        }
        tokens
    }

    fn strange(&self, message: String) {
        self.shared.journal.violation(Violation {
            check: Check::StrictlySerializable,
            message,
            evidence: Vec::new(),
        });
    }

    /// How a transaction with an error ended.
    fn lost(&self, error: &ClientError, changes: bool) -> Ended {
        self.shared.journal.failure(error);
        // A read changes nothing, whatever happened to it.
        match error.maybe_executed() && changes {
            true => Ended::Unknown,
            false => Ended::NotDone,
        }
    }

    /// Ends parts with their answer. False: nobody knows that they were done.
    fn end_parts(
        &mut self,
        begun: usize,
        parts: &[Wanted],
        answer: Result<Option<Vec<Told>>, ClientError>,
    ) -> bool {
        let (ended, steps) = match answer {
            Ok(Some(told)) => (Ended::Done, steps(parts, Some(&told))),
            Ok(None) => {
                self.strange(format!("a transaction has an impossible answer: {parts:?}"));
                (Ended::Unknown, steps(parts, None))
            }
            Err(error) => {
                let changes = parts.iter().any(|part| part.wish != Wish::Read);
                (self.lost(&error, changes), steps(parts, None))
            }
        };
        self.end_transaction(begun, ended, steps);
        ended == Ended::Done
    }

    /// Of unknown outcome as long as this client has not ended it: it may die.
    fn begin_transaction(&self, steps: Vec<Step>) -> usize {
        let now = self.shared.sim.now();
        let journal = &self.shared.journal;
        journal.begin_transaction(self.number, steps, now)
    }

    fn end_transaction(&self, begun: usize, ended: Ended, steps: Vec<Step>) {
        let now = self.shared.sim.now();
        let journal = &self.shared.journal;
        journal.end_transaction(begun, ended, steps, now);
    }
}
