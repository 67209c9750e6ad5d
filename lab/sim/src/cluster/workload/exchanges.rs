//! Mutations and reads of every kind, alone, in batches, and in ordered batches.

use super::requests::{Target, request};
use super::{Worker, failed};
use crate::check::{Check, Violation};
use crate::cluster::plan::OperationKind;
use crate::history::{
    Answer, Begun, Change, Condition, Exchange, KeyId, KeyKind, Outcome, Record, Request,
};
use crate::random::Stream;
use bytes::Bytes;
use pluvio_client::{self as client, ClientError, ErrorKind, Table};
use std::sync::Arc;

/// Most items of most batches.
const ITEMS_MAX: u64 = 8;
/// Most items of a few: more than a server looks up at a time.
const MANY_ITEMS_MAX: u64 = 40;

type Item = (KeyId, Request);

impl Worker {
    /// One mutation or read of this kind.
    pub(super) async fn exchange(&mut self, kind: OperationKind) {
        let Some((key, request)) = self.item(kind) else {
            return;
        };
        self.ask(kind, key, request).await;
    }

    /// Reads the whole value of a key.
    pub(super) async fn read_value(&mut self, key: KeyId) -> Outcome {
        self.ask(OperationKind::Project, key, Request::read()).await
    }

    pub(super) async fn ask(
        &mut self,
        kind: OperationKind,
        key: KeyId,
        request: Request,
    ) -> Outcome {
        let begun = self.begin_exchange(key, request.clone());
        let keys = Arc::clone(&self.shared.keys);
        let (table, bytes) = (&self.tables[keys.table(key)], keys.bytes(key));
        let result = if let Some(get) = request.get(bytes) {
            self.client.get(table, get).await
        } else {
            let mutation = request.mutation(bytes).expect("it is no read");
            self.client.mutate(table, mutation).await
        };
        let answer = self.answer(key, &request, result);
        let repeats = self.attempts.repeats(answer == Answer::Unknown);
        self.end_exchange(kind, key, begun, answer, repeats)
    }

    /// Several mutations in no order.
    pub(super) async fn multi_mutate(&mut self, kind: OperationKind) {
        let items = self.items(|_| any_mutation);
        let begun = self.begin_all(&items);
        let keys = Arc::clone(&self.shared.keys);
        let mutations: Vec<_> = { items.iter() }
            .map(|(key, request)| {
                let mutation = request.mutation(keys.bytes(*key));
                (self.table_of(*key), mutation.expect("it is no read"))
            })
            .collect();
        let results = self.client.multi_mutate(&mutations).await;
        self.end_all(kind, &items, begun, results);
    }

    /// Several reads of what is wanted of each.
    pub(super) async fn multi_get(&mut self, kind: OperationKind) {
        let items = self.items(|_| |_| OperationKind::Project);
        let begun = self.begin_all(&items);
        let keys = Arc::clone(&self.shared.keys);
        let gets: Vec<_> = { items.iter() }
            .map(|(key, request)| {
                let get = request.get(keys.bytes(*key));
                (self.table_of(*key), get.expect("it is a read"))
            })
            .collect();
        let results = self.client.multi_get(&gets).await;
        self.end_all(kind, &items, begun, results);
    }

    /// Several mutations one after the other; most of them append tokens.
    pub(super) async fn in_order(&mut self, kind: OperationKind) {
        let items = self.items(|is_token| match is_token {
            true => |_| OperationKind::Append,
            false => any_mutation,
        });
        let begun = self.begin_all(&items);
        self.note_order(&items);
        let keys = Arc::clone(&self.shared.keys);
        let mutations: Vec<_> = { items.iter() }
            .map(|(key, request)| {
                let mutation = request.mutation(keys.bytes(*key));
                (self.table_of(*key), mutation.expect("it is no read"))
            })
            .collect();
        let (done, error) = match self.client.mutate_in_order(&mutations).await {
            Ok(done) => (done, None),
            Err(stopped) => (stopped.done, Some(stopped.error)),
        };
        if error.is_none() && done.len() != items.len() {
            let (done, asked) = (done.len(), items.len());
            self.wrong(format!("{done} of {asked} ordered mutations were answered"));
        }
        let unanswered = ClientError::Protocol("no outcome and no error".to_owned());
        let error = error.unwrap_or(unanswered);
        // A server whose answer was lost may have gone on behind the last known outcome.
        let rest = core::iter::repeat_with(|| Err(error.clone()));
        let results = done.into_iter().map(Ok).chain(rest).take(items.len());
        let results = results.collect();
        self.end_all(kind, &items, begun, results);
    }

    /// Reads all keys with tokens one after the other, in any order.
    pub(super) async fn audit(&mut self, kind: OperationKind) {
        let mut keys = self.shared.keys.of_kind(KeyKind::Tokens);
        while !keys.is_empty() {
            let next = self.values.below(keys.len() as u64) as usize;
            let key = keys.swap_remove(next);
            self.ask(kind, key, Request::read()).await;
        }
    }

    fn table_of(&self, key: KeyId) -> &Table {
        &self.tables[self.shared.keys.table(key)]
    }

    /// A key for requests of this kind, and one.
    fn item(&mut self, kind: OperationKind) -> Option<Item> {
        let keep_tokens = self.values.below(8) > 0;
        let keys = Arc::clone(&self.shared.keys);
        let all = keys.with_exchanges();
        let fits = |key: &KeyId| match (keys.kind(*key), kind) {
            (KeyKind::Tokens, OperationKind::Append | OperationKind::Project) => true,
            (KeyKind::Tokens, OperationKind::GetAndDelete | OperationKind::CompareAndDelete) => {
                !keep_tokens
            }
            (of, _) => of == KeyKind::Value,
        };
        let all: Vec<KeyId> = all.into_iter().filter(fits).collect();
        let key = *all.get(self.values.below(all.len() as u64) as usize)?;
        Some((key, self.request(kind, key)))
    }

    fn request(&mut self, kind: OperationKind, key: KeyId) -> Request {
        let last = self.versions.get(&key).copied().unwrap_or(0);
        let conditional = self.values.below(6) == 0;
        let condition = conditional.then(|| Condition::draw(&mut self.values, last));
        let target = Target {
            kind: self.shared.keys.kind(key),
            seen: self.seen.get(&key),
            condition,
            token: self.shared.journal.value_number(),
        };
        request(&mut self.values, kind, &target)
    }

    /// Items of a batch, each of a kind that is drawn; the kind of two thirds is that for tokens.
    fn items(&mut self, kinds: impl Fn(bool) -> fn(&mut Stream) -> OperationKind) -> Vec<Item> {
        let most = match self.values.below(8) {
            0 => MANY_ITEMS_MAX,
            _ => ITEMS_MAX,
        };
        let count = self.values.between(1, most);
        let mut items = Vec::new();
        for _ in 0..count {
            let is_token = self.values.below(3) > 0;
            let kind = kinds(is_token)(&mut self.values);
            items.extend(self.item(kind));
        }
        items
    }

    /// Notes what must be seen in its order: appends that nothing can refuse.
    fn note_order(&self, items: &[Item]) {
        let appended = items.iter().filter_map(|(key, request)| {
            let Request::Mutate {
                condition,
                change: Change::Append(bytes),
                ..
            } = request
            else {
                return None;
            };
            let is_sure = *condition == Condition::default();
            let token = crate::check::tokens::first(bytes)?;
            (is_sure && self.shared.keys.kind(*key) == KeyKind::Tokens).then_some((*key, token))
        });
        self.shared.journal.ordered(appended.collect());
    }

    fn begin_exchange(&self, key: KeyId, request: Request) -> Begun {
        let now = self.shared.sim.now();
        self.shared.journal.ask(key, self.number, request, now)
    }

    fn begin_all(&self, items: &[Item]) -> Vec<Begun> {
        let begun = items.iter();
        begun
            .map(|(key, request)| self.begin_exchange(*key, request.clone()))
            .collect()
    }

    /// Ends a batch: all items may have been sent again if one was.
    fn end_all(
        &mut self,
        kind: OperationKind,
        items: &[Item],
        begun: Vec<Begun>,
        results: Vec<Result<client::Outcome, ClientError>>,
    ) {
        let repeats = self.attempts.repeats(false);
        for (((key, request), begun), result) in items.iter().zip(begun).zip(results) {
            let answer = self.answer(*key, request, result);
            let beside = repeats.saturating_sub(u8::from(answer == Answer::Unknown));
            self.end_exchange(kind, *key, begun, answer, beside);
        }
    }

    fn answer(
        &mut self,
        key: KeyId,
        request: &Request,
        result: Result<client::Outcome, ClientError>,
    ) -> Answer {
        let error = match result {
            Ok(outcome) => return Answer::Given(outcome),
            Err(error) => error,
        };
        if !matches!(error.kind(), ErrorKind::TimedOut | ErrorKind::MaybeExecuted) {
            // Nothing is asked for that may be refused.
            let name = self.shared.journal.name_of(key);
            self.wrong(format!("key {name}: {request:?}: {error}"));
        }
        match failed(&self.shared.journal, &error) {
            // A read changes nothing, whatever happened to it.
            Outcome::Unknown if !request.is_read() => Answer::Unknown,
            _ => Answer::NotDone,
        }
    }

    fn wrong(&self, message: String) {
        self.shared.journal.violation(Violation {
            check: Check::Linearizable,
            message,
            evidence: Vec::new(),
        });
    }

    fn end_exchange(
        &mut self,
        kind: OperationKind,
        key: KeyId,
        begun: Begun,
        answer: Answer,
        repeats: u8,
    ) -> Outcome {
        let now = self.shared.sim.now();
        let journal = &self.shared.journal;
        let (outcome, shown) = journal.answer(kind, begun, answer, repeats, now);
        if let Some(value) = shown {
            self.seen.insert(key, value);
        }
        self.remember(key, outcome);
        outcome
    }
}

fn any_mutation(draw: &mut Stream) -> OperationKind {
    let all = OperationKind::MUTATIONS;
    all[draw.below(all.len() as u64) as usize]
}

/// A read of a whole value that an enumeration gives.
pub(super) fn enumerated(record: &Record, value: Bytes) -> Exchange {
    let version = record.seen().unwrap_or(0);
    Exchange {
        client: record.client,
        request: Request::read(),
        invoked: record.invoked,
        returned: record.returned,
        answer: Answer::Given(client::Outcome::Unchanged {
            version: pluvio_units::ObjectVersion(version),
            output: client::Output::Bytes(value),
        }),
        at: record.at,
        until: record.until,
    }
}
