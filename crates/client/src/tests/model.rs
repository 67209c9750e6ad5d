//! Random operations under random faults against a map.

use super::{Shape, cluster, shape};
use crate::testing::{FakeCluster, Fault};
use crate::{
    Addend, BitAction, BitStep, Change, ChangeKind, Client, Key, Lifetime, Mutation, Object,
    Opcode, Output, Projection, RejectRules, RetryReason, Table, TouchIf,
};
use bytes::Bytes;
use core::time::Duration;
use pluvio_env::Rng;
use pluvio_units::{KeyHash, ObjectVersion, ServerId, TableId};
use pluvio_wire::Refusal;
use std::collections::{BTreeMap, BTreeSet};

type Model = BTreeMap<Vec<u8>, Bytes>;

const SERVERS: u64 = 4;

fn some_fault(rng: &FakeCluster) -> (Opcode, Fault) {
    let opcode = match rng.below(8) {
        0 | 1 => Opcode::Get,
        2 => Opcode::Enumerate,
        3 => Opcode::GetTable,
        _ => Opcode::Mutate,
    };
    let fault = match rng.below(6) {
        0 => Fault::LoseRequest,
        1 => Fault::LoseReply,
        2 => Fault::DelayReply,
        3 => Fault::Unreachable,
        4 => Fault::Refuse(Refusal::retry(Duration::from_millis(3), RetryReason::Busy)),
        // The coordinator of a fault-free cluster never says so.
        _ if opcode != Opcode::GetTable => Fault::Refuse(Refusal::Refresh),
        _ => Fault::LoseReply,
    };
    (opcode, fault)
}

/// A mutation of a random kind, and what it means.
struct Op {
    key: Vec<u8>,
    what: What,
    value_is: Option<Bytes>,
    returns_old: bool,
    rules: RejectRules,
}

enum What {
    Put(Bytes),
    Delete,
    Add(i64),
    /// A number of halves, and their text.
    AddHalves(i64, String),
    Append(Bytes),
    SetRange(u64, Bytes),
    SetBits([BitStep; 2]),
    /// Gives it a lifetime that is over at once, or one that is over after all tests.
    Touch(bool),
    /// A put with a version.
    PutVersion(Bytes, u64),
}

/// Nothing with this lifetime expires in a test.
const FOR_LONG_MS: u64 = 1 << 50;
/// Keys below this one hold numbers, the others bytes.
const NUMBERS: u64 = 20;

fn halves_text(halves: i64) -> String {
    let sign = if halves < 0 { "-" } else { "" };
    let (whole, half) = (halves.abs() / 2, halves % 2 != 0);
    format!("{sign}{whole}{}", if half { ".5" } else { "" })
}

fn halves_of(text: &[u8]) -> i64 {
    let text = std::str::from_utf8(text).unwrap();
    (text.parse::<f64>().unwrap() * 2.0) as i64
}

impl Op {
    fn some(rng: &FakeCluster, model: &Model) -> Self {
        let number = rng.below(40);
        let key = number.to_string().into_bytes();
        let digits = |rng: &FakeCluster| Bytes::from(rng.below(1000).to_string());
        let some_halves = |rng: &FakeCluster| 3 - rng.below(7).cast_signed();
        let what = match (rng.below(8), number < NUMBERS) {
            (7, _) => What::Touch(rng.below(2) == 0),
            (0, _) => What::Put(digits(rng)),
            (1, _) => What::PutVersion(digits(rng), 1 + rng.below(1000)),
            (2, _) => What::Delete,
            (3 | 4, true) => What::Add(rng.below(9).cast_signed() - 4),
            (_, true) => {
                let halves = some_halves(rng);
                What::AddHalves(halves, halves_text(halves))
            }
            (3 | 4, false) => What::Append(digits(rng)),
            (5, false) => What::SetRange(rng.below(12), digits(rng)),
            (_, false) => {
                let bit = |offset| BitStep::set_bit(offset, rng.below(2) == 1);
                What::SetBits([bit(rng.below(80)), bit(rng.below(80))])
            }
        };
        let bare = matches!(what, What::Put(_) | What::Delete | What::Touch(..));
        let value_is = (bare && rng.below(3) == 0).then(|| match model.get(&key) {
            Some(value) if rng.below(3) > 0 => value.clone(),
            _ => digits(rng),
        });
        Self {
            key,
            what,
            value_is,
            returns_old: bare && rng.below(2) == 0,
            rules: match rng.below(6) {
                0 => RejectRules::EXISTS,
                1 => RejectRules::ABSENT,
                _ => RejectRules::NONE,
            },
        }
    }

    fn mutation(&self) -> Mutation<'_> {
        let change = match &self.what {
            What::Put(value) => Change::Put(value.into()),
            What::Delete => Change::Delete,
            What::Add(by) => Change::Add(Addend::Integer(*by)),
            What::AddHalves(_, text) => Change::Add(Addend::Decimal(text)),
            What::Append(bytes) => Change::Append(bytes.into()),
            What::SetRange(offset, bytes) => Change::SetRange {
                offset: *offset,
                bytes: bytes.into(),
            },
            What::SetBits(steps) => Change::Bits(steps),
            What::Touch(_) => Change::Touch(TouchIf::Always),
            What::PutVersion(value, version) => Change::PutVersion {
                value: value.into(),
                version: ObjectVersion(*version),
            },
        };
        let usual = Lifetime::of_change(&change);
        Mutation {
            lifetime: match self.what {
                What::Touch(is_over) if is_over => Lifetime::For(0),
                What::Touch(_) => Lifetime::For(FOR_LONG_MS),
                _ => usual,
            },
            value_is: self.value_is.as_deref(),
            returns_old: self.returns_old,
            rules: self.rules,
            ..Mutation::new(TableId(0), &self.key, change)
        }
    }

    /// Does it to the model, and gives what it has to come to.
    fn expect(&self, model: &mut Model) -> Shape {
        let before = model.get(&self.key).cloned();
        let old = match &before {
            Some(value) if self.returns_old => Output::Bytes(value.clone()),
            _ => Output::Nothing,
        };
        let is_other = self.value_is.is_some() && self.value_is != before;
        let absent = before.is_none();
        if is_other || (self.rules.exists && !absent) || (self.rules.does_not_exist && absent) {
            return ("rejected", old);
        }
        if let (What::Touch(_), None) = (&self.what, &before) {
            let none = Output::Integer(0);
            return ("unchanged", if self.returns_old { old } else { none });
        }
        let (after, output) = match self.compute(before.as_deref()) {
            Some((after, output)) => (after, output),
            None => return ("not a number", Output::Nothing),
        };
        let output = if self.returns_old { old } else { output };
        match after {
            None => {
                model.remove(&self.key);
                ("deleted", output)
            }
            Some(after) => {
                let same = before.as_ref() == Some(&after);
                model.insert(self.key.clone(), after);
                match self.what {
                    What::SetBits(_) if same => ("unchanged", output),
                    _ => ("written", output),
                }
            }
        }
    }

    /// The value after it and what it gives; `None` when the value is no number.
    fn compute(&self, before: Option<&[u8]>) -> Option<(Option<Bytes>, Output)> {
        let mut value = before.unwrap_or_default().to_vec();
        let number = |value: &[u8]| {
            if value.is_empty() {
                0
            } else {
                halves_of(value)
            }
        };
        let length = |value: Vec<u8>| {
            let output = Output::Integer(value.len() as i64);
            (Some(Bytes::from(value)), output)
        };
        Some(match &self.what {
            What::Put(bytes) | What::PutVersion(bytes, _) => (Some(bytes.clone()), Output::Nothing),
            What::Delete => (None, Output::Nothing),
            What::Touch(true) => (None, Output::Integer(1)),
            What::Touch(false) => (Some(value.into()), Output::Integer(1)),
            What::Add(by) => {
                if value.contains(&b'.') {
                    return None;
                }
                let sum = number(&value) / 2 + by;
                (Some(sum.to_string().into()), Output::Integer(sum))
            }
            What::AddHalves(by, _) => {
                let sum = Bytes::from(halves_text(number(&value) + by));
                (Some(sum.clone()), Output::Bytes(sum))
            }
            What::Append(bytes) => {
                value.extend_from_slice(bytes);
                length(value)
            }
            What::SetRange(offset, bytes) => {
                let (start, end) = (*offset as usize, *offset as usize + bytes.len());
                value.resize(value.len().max(end), 0);
                value[start..end].copy_from_slice(bytes);
                length(value)
            }
            What::SetBits(steps) => {
                let mut numbers = Vec::new();
                for step in steps {
                    let (byte, mask) = (step.offset as usize / 8, 0x80 >> (step.offset % 8));
                    value.resize(value.len().max(byte + 1), 0);
                    numbers.push(Some(i64::from(value[byte] & mask != 0)));
                    value[byte] &= !mask;
                    if step.action == BitAction::Set(1) {
                        value[byte] |= mask;
                    }
                }
                (Some(value.into()), Output::Integers(numbers.into()))
            }
        })
    }
}

/// Some mutations, of keys that differ if they are done in no order.
fn some_ops(rng: &FakeCluster, model: &Model, ordered: bool) -> Vec<Op> {
    let mut keys = BTreeSet::new();
    let ops = (0..rng.below(30)).map(|_| Op::some(rng, model));
    let mut ops: Vec<_> = ops.collect();
    ops.retain(|op| ordered || keys.insert(op.key.clone()));
    ops
}

async fn some_mutations(rng: &FakeCluster, client: &Client, table: &Table, model: &mut Model) {
    let one = rng.below(2) == 0;
    let ordered = rng.below(2) == 0;
    let ops = if one {
        vec![Op::some(rng, model)]
    } else {
        some_ops(rng, model, ordered)
    };
    let items: Vec<_> = ops.iter().map(|op| (table, op.mutation())).collect();
    let outcomes = if one {
        vec![client.mutate(table, items[0].1).await.unwrap()]
    } else if ordered {
        client.mutate_in_order(&items).await.unwrap()
    } else {
        let results = client.multi_mutate(&items).await;
        results.into_iter().map(Result::unwrap).collect()
    };
    assert_eq!(outcomes.len(), ops.len());
    for (op, outcome) in ops.iter().zip(&outcomes) {
        assert_eq!(shape(outcome), op.expect(model), "{:?}", op.mutation());
    }
}

async fn some_reads(rng: &FakeCluster, client: &Client, table: &Table, model: &Model) {
    let key = rng.below(40).to_string().into_bytes();
    let value = model.get(&key);
    match rng.below(3) {
        0 => {
            let read = client.read(table, &key).await.unwrap();
            assert_eq!(read.map(|object| object.value).as_ref(), value);
        }
        1 => {
            let length = client.project(table, &key, Projection::Length).await;
            let expected = value.map(|value| Output::Integer(value.len() as i64));
            assert_eq!(length.unwrap(), expected);
        }
        _ => {
            let keys = some_keys(rng);
            let items: Vec<_> = keys.iter().map(|key| Key::new(table, key)).collect();
            let read = client.multi_read(&items).await;
            for (key, object) in keys.iter().zip(read) {
                let value = object.unwrap().map(|Object { value, .. }| value);
                assert_eq!(value.as_ref(), model.get(key));
            }
        }
    }
}

fn some_keys(rng: &FakeCluster) -> Vec<Vec<u8>> {
    (0..rng.below(40))
        .map(|n| n.to_string().into_bytes())
        .collect()
}

async fn has_all(client: &Client, table: &Table, model: &Model) {
    let mut seen = Model::new();
    let mut objects = client.enumerate(table).batch_items(3);
    while let Some(batch) = objects.next_batch().await.unwrap() {
        for object in batch {
            assert!(seen.insert(object.key, object.value).is_none());
        }
    }
    assert_eq!(&seen, model);
}

async fn some_operation(rng: &FakeCluster, client: &Client, table: &Table, model: &mut Model) {
    match rng.below(6) {
        0 | 1 => some_mutations(rng, client, table, model).await,
        2 | 3 => some_reads(rng, client, table, model).await,
        4 => has_all(client, table, model).await,
        _ => {
            let value = Bytes::from(rng.below(1000).to_string());
            let keys = some_keys(rng);
            let items: Vec<_> = keys
                .iter()
                .map(|k| (Key::new(table, k), value.clone()))
                .collect();
            for (key, result) in keys.iter().zip(client.multi_write(&items).await) {
                result.unwrap();
                model.insert(key.clone(), value.clone());
            }
        }
    }
}

#[test]
fn changes_of_every_kind_are_drawn() {
    let (cluster, model) = (FakeCluster::new(1), Model::new());
    let drawn: Vec<Op> = (0..500).map(|_| Op::some(&cluster, &model)).collect();
    for kind in ChangeKind::ALL {
        let is_there = drawn.iter().any(|op| op.mutation().change.kind() == *kind);
        assert!(is_there, "{kind:?}");
    }
}

#[test]
fn faults_change_nothing_but_the_time_it_takes() {
    for seed in 0..20 {
        let (cluster, client, table) = cluster(SERVERS);
        for _ in 0..seed {
            cluster.next_u64();
        }
        let mut model = Model::new();
        cluster.run(async {
            for _ in 0..150 {
                if cluster.below(3) == 0 {
                    let (opcode, fault) = some_fault(&cluster);
                    cluster.plan(opcode, fault, 1);
                }
                if cluster.below(20) == 0 {
                    let from = ServerId(1 + cluster.below(SERVERS));
                    cluster.recover(from, ServerId(1 + cluster.below(SERVERS)));
                }
                if cluster.below(30) == 0 {
                    let at = KeyHash(cluster.next_u64());
                    client.split_tablet(&table, Some(at)).await.unwrap();
                }
                some_operation(&cluster, &client, &table, &mut model).await;
            }
            has_all(&client, &table, &model).await;
        });
    }
}
