//! Every kind of change and of read: alone, in batches, in order, and after lost messages.

use super::{Shape, cluster, key_of, shape};
use crate::testing::{FakeCluster, Fault};
use crate::{
    Addend, BitAction, BitOverflow, BitStep, Change, Client, ClientError, ErrorKind, FatalKind,
    Get, LengthReply, Mutation, Opcode, Outcome, Output, Projection, RejectRules, Span, Table,
    Unfit, blocking,
};
use bytes::Bytes;
use pluvio_units::{ObjectVersion, ServerId, TableId, VALUE_MAX};

/// A mutation of an object, and what it comes to.
struct Case {
    name: &'static str,
    before: Option<&'static [u8]>,
    mutation: Mutation<'static>,
    came_to: Shape,
    after: Option<&'static [u8]>,
}

pub(super) const fn step(action: BitAction, signed: bool, width: u8, offset: u64) -> BitStep {
    BitStep {
        action,
        signed,
        width,
        offset,
        overflow: BitOverflow::Fail,
    }
}

static SET_BIT: [BitStep; 1] = [step(BitAction::Set(1), false, 1, 1)];
static FIELDS: [BitStep; 3] = [
    step(BitAction::Set(7), false, 8, 0),
    step(BitAction::Add(9), true, 4, 8),
    step(BitAction::Get, false, 8, 0),
];

fn bytes(text: &'static [u8]) -> Output {
    Output::Bytes(Bytes::from_static(text))
}

fn change(change: Change<'static>) -> Mutation<'static> {
    Mutation::new(TableId(0), b"", change)
}

fn put(text: &'static str) -> Change<'static> {
    Change::Put(text.as_bytes().into())
}

fn integers(numbers: &[Option<i64>]) -> Output {
    Output::Integers(numbers.into())
}

/// Changes that compute.
fn computed() -> Vec<Case> {
    let case = |name, before, kind, came_to, after| Case {
        name,
        before,
        mutation: change(kind),
        came_to,
        after,
    };
    let append = |text: &'static [u8]| Change::Append(text.into());
    let set_range = |offset, text: &'static [u8]| Change::SetRange {
        offset,
        bytes: text.into(),
    };
    let written = |output| ("written", output);
    let number = Output::Integer;
    let refused = |unfit| (refusal_name(unfit), Output::Nothing);
    vec![
        case(
            "append to nothing",
            None,
            append(b"ab"),
            written(number(2)),
            Some(b"ab"),
        ),
        case(
            "append",
            Some(b"ab"),
            append(b"c"),
            written(number(3)),
            Some(b"abc"),
        ),
        case(
            "append nothing",
            Some(b"ab"),
            append(b""),
            ("unchanged", number(2)),
            Some(b"ab"),
        ),
        case(
            "set range",
            Some(b"a"),
            set_range(3, b"xy"),
            written(number(5)),
            Some(b"a\0\0xy"),
        ),
        case(
            "set no range",
            None,
            set_range(3, b""),
            ("unchanged", number(0)),
            None,
        ),
        case(
            "set a range too far",
            Some(b"a"),
            set_range(VALUE_MAX as u64, b"x"),
            refused(Unfit::TooLong),
            Some(b"a"),
        ),
        case(
            "set a bit",
            None,
            Change::Bits(&SET_BIT),
            written(integers(&[Some(0)])),
            Some(b"\x40"),
        ),
        case(
            "fields of bits",
            Some(b"a\0"),
            Change::Bits(&FIELDS),
            written(integers(&[Some(97), None, Some(7)])),
            Some(b"\x07\0"),
        ),
        case(
            "add an integer",
            Some(b"37"),
            Change::Add(Addend::Integer(5)),
            written(number(42)),
            Some(b"42"),
        ),
        case(
            "add a decimal",
            Some(b"0.2"),
            Change::Add(Addend::Decimal("0.1")),
            written(bytes(b"0.3")),
            Some(b"0.3"),
        ),
        case(
            "add to what is no number",
            Some(b"x"),
            Change::Add(Addend::Integer(1)),
            refused(Unfit::NotANumber),
            Some(b"x"),
        ),
    ]
}

/// Changes under conditions, and those that give the value from before.
fn conditional() -> Vec<Case> {
    let case = |name, before, mutation, came_to, after| Case {
        name,
        before,
        mutation,
        came_to,
        after,
    };
    let expecting = |value: &'static [u8], kind| Mutation {
        value_is: Some(value),
        ..change(kind)
    };
    let old = |kind, rules| Mutation {
        returns_old: true,
        rules,
        ..change(kind)
    };
    let none = RejectRules::NONE;
    let nothing = Output::Nothing;
    let (written, deleted, rejected) = ("written", "deleted", "rejected");
    let (a, b): (Option<&[u8]>, Option<&[u8]>) = (Some(b"a"), Some(b"b"));
    let is_nothing = |name: &'static str| (name, nothing.clone());
    vec![
        case(
            "set if equal",
            a,
            expecting(b"a", put("b")),
            is_nothing(written),
            b,
        ),
        case(
            "set if equal, other",
            a,
            expecting(b"x", put("b")),
            is_nothing(rejected),
            a,
        ),
        case(
            "set if equal, none",
            None,
            expecting(b"", put("b")),
            is_nothing(rejected),
            None,
        ),
        case(
            "delete if equal",
            a,
            expecting(b"a", Change::Delete),
            is_nothing(deleted),
            None,
        ),
        case(
            "delete, other",
            a,
            expecting(b"x", Change::Delete),
            is_nothing(rejected),
            a,
        ),
        case(
            "get and set",
            a,
            old(put("b"), none),
            (written, bytes(b"a")),
            b,
        ),
        case(
            "get and set, none",
            None,
            old(put("b"), none),
            is_nothing(written),
            b,
        ),
        case(
            "get and delete",
            a,
            old(Change::Delete, none),
            (deleted, bytes(b"a")),
            None,
        ),
        case(
            "get and delete, none",
            None,
            old(Change::Delete, none),
            is_nothing(deleted),
            None,
        ),
        case(
            "set if absent and get",
            a,
            old(put("b"), RejectRules::EXISTS),
            (rejected, bytes(b"a")),
            a,
        ),
        case(
            "set if present and get",
            a,
            old(put("b"), RejectRules::ABSENT),
            (written, bytes(b"a")),
            b,
        ),
        case(
            "append if absent",
            a,
            Mutation {
                rules: RejectRules::EXISTS,
                ..change(Change::Append(b"b".as_slice().into()))
            },
            is_nothing(rejected),
            a,
        ),
    ]
}

fn refusal_name(unfit: Unfit) -> &'static str {
    shape(&Outcome::Refused(unfit)).0
}

#[derive(Clone, Copy, Debug)]
enum Way {
    Single,
    Batch,
    InOrder,
}

async fn mutate(
    client: &Client,
    table: &Table,
    mutations: &[Mutation<'_>],
    way: Way,
    plan: impl Fn(),
) -> Vec<Outcome> {
    let items: Vec<_> = mutations.iter().map(|m| (table, *m)).collect();
    match way {
        Way::Single => {
            let mut outcomes = Vec::new();
            for mutation in mutations {
                plan();
                outcomes.push(client.mutate(table, *mutation).await.unwrap());
            }
            outcomes
        }
        Way::Batch => {
            plan();
            let results = client.multi_mutate(&items).await;
            results.into_iter().map(Result::unwrap).collect()
        }
        Way::InOrder => {
            plan();
            client.mutate_in_order(&items).await.unwrap()
        }
    }
}

/// Does all mutations on one cluster, and looks at what they gave and left.
fn all_do_what_they_say(way: Way, fault: Option<&Fault>) {
    let (cluster, client, table) = cluster(3);
    let mut cases = computed();
    cases.extend(conditional());
    let keys: Vec<_> = cases
        .iter()
        .map(|case| format!("key of {}", case.name))
        .collect();
    let mutations: Vec<_> = cases
        .iter()
        .zip(&keys)
        .map(|(case, key)| Mutation {
            key: key.as_bytes(),
            ..case.mutation
        })
        .collect();
    let plan = || {
        if let Some(fault) = fault {
            cluster.plan(Opcode::Mutate, fault.clone(), 2);
        }
    };
    cluster.run(async {
        for (case, key) in cases.iter().zip(&keys) {
            if let Some(before) = case.before {
                let value = Bytes::from_static(before);
                client.write(&table, key.as_bytes(), value).await.unwrap();
            }
        }
        let outcomes = mutate(&client, &table, &mutations, way, plan).await;
        assert_eq!(outcomes.len(), cases.len());
        let mut versions = Vec::new();
        for ((case, key), outcome) in cases.iter().zip(&keys).zip(&outcomes) {
            let about = format!("{}, {way:?}, {fault:?}: {outcome:?}", case.name);
            assert_eq!(shape(outcome), case.came_to, "{about}");
            let object = client.read(&table, key.as_bytes()).await.unwrap();
            let after = object.as_ref().map(|object| &object.value[..]);
            assert_eq!(after, case.after, "{about}");
            if let Outcome::Written { version, .. } = outcome {
                assert_eq!(object.unwrap().version, *version, "once: {about}");
                versions.push(version.0);
            }
        }
        // The fake cluster counts the writes of a table by versions.
        versions.sort_unstable();
        let first = versions[0];
        let once: Vec<_> = (first..first + versions.len() as u64).collect();
        assert_eq!(versions, once, "{way:?}, {fault:?}");
    });
}

#[test]
fn every_change_does_what_it_says_alone_and_in_batches() {
    for way in [Way::Single, Way::Batch, Way::InOrder] {
        all_do_what_they_say(way, None);
    }
}

#[test]
fn every_change_is_executed_once_and_gives_one_outcome_whatever_is_lost() {
    let faults = [
        Fault::LoseReply,
        Fault::DelayReply,
        Fault::LoseRequest,
        Fault::Unreachable,
    ];
    for way in [Way::Single, Way::Batch, Way::InOrder] {
        for fault in &faults {
            all_do_what_they_say(way, Some(fault));
        }
    }
}

#[test]
fn the_operations_by_name_do_the_same() {
    let (cluster, client, table) = cluster(2);
    let t = &table;
    cluster.run(async {
        let length = |version, length| {
            let version = ObjectVersion(version);
            Ok(LengthReply { version, length })
        };
        assert_eq!(client.append(t, b"k", b"Hello").await, length(1, 5));
        assert_eq!(client.append(t, b"k", b"").await, length(1, 5));
        assert_eq!(client.set_range(t, b"k", 4, b"\0!").await, length(2, 6));
        assert_eq!(client.set_bit(t, b"b", 7, true).await, Ok(false));
        assert_eq!(client.set_bit(t, b"b", 7, false).await, Ok(true));
        let fields = client.bit_field(t, b"b", &FIELDS).await.unwrap();
        assert_eq!(fields.values[..], [Some(0), None, Some(7)]);
        let sum = client.add_decimal(t, b"n", "1.10").await;
        assert_eq!(sum, Ok(Bytes::from_static(b"1.1")));
        let value = |text: &'static str| Bytes::from_static(text.as_bytes());
        assert_eq!(
            client.compare_and_set(t, b"n", b"1", value("2")).await,
            Ok(false)
        );
        assert_eq!(
            client.compare_and_set(t, b"n", b"1.1", value("2")).await,
            Ok(true)
        );
        assert_eq!(
            client.get_and_set(t, b"n", value("3")).await,
            Ok(Some(value("2")))
        );
        assert_eq!(client.compare_and_delete(t, b"n", b"2").await, Ok(false));
        assert_eq!(client.compare_and_delete(t, b"n", b"3").await, Ok(true));
        assert_eq!(client.get_and_delete(t, b"n").await, Ok(None));
        assert_eq!(client.get_and_set(t, b"n", value("4")).await, Ok(None));
        assert_eq!(client.get_and_delete(t, b"n").await, Ok(Some(value("4"))));
        client.write(t, b"n", value("x")).await.unwrap();
        let error = client.add_decimal(t, b"n", "1").await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::BadNumber);
        let far = VALUE_MAX as u64;
        let error = client.set_range(t, b"n", far, b"x").await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::BadArgument);
        let error = client.set_bit(t, b"n", 8 * far, true).await.unwrap_err();
        assert_eq!(error.fatal_kind(), Some(FatalKind::ValueTooLong));
        assert_eq!(client.read(t, b"n").await.unwrap().unwrap().value, "x");
    });
}

const LAST_THREE: Span = Span {
    start: -3,
    ..Span::ALL
};

#[test]
fn reads_give_what_is_wanted_and_no_more() {
    let (cluster, client, table) = cluster(2);
    let steps = [step(BitAction::Get, false, 8, 8)];
    let wanted = [
        (Projection::Value, Some(bytes(b"Hello"))),
        (Projection::Nothing, Some(Output::Nothing)),
        (Projection::Length, Some(Output::Integer(5))),
        (Projection::Range(LAST_THREE), Some(bytes(b"llo"))),
        (Projection::Bits(&steps), Some(integers(&[Some(101)]))),
        (Projection::BitCount(Span::ALL), Some(Output::Integer(20))),
        (
            Projection::BitPosition {
                bit: true,
                span: Span::ALL,
            },
            Some(Output::Integer(1)),
        ),
    ];
    cluster.run(async {
        client.append(&table, b"k", b"Hello").await.unwrap();
        cluster.plan(Opcode::Get, Fault::LoseReply, 1);
        let gets = wanted.each_ref().map(|(projection, _)| {
            let get = Get {
                projection: *projection,
                ..Get::new(TableId(0), b"k")
            };
            (&table, get)
        });
        let together = client.multi_get(&gets).await;
        for ((projection, output), batched) in wanted.iter().zip(together) {
            let alone = client.project(&table, b"k", *projection).await;
            assert_eq!(alone.as_ref(), Ok(output), "{projection:?}");
            assert_eq!(Some(batched.unwrap().into_output()), *output);
            assert_eq!(client.project(&table, b"none", *projection).await, Ok(None));
        }
        let absent = Get {
            rules: RejectRules::ABSENT,
            ..Get::new(TableId(0), b"none")
        };
        let rejected = client.get(&table, absent).await.unwrap();
        assert_eq!(shape(&rejected), ("rejected", Output::Nothing));
    });
}

#[test]
fn local_mutations_give_the_same_without_a_message() {
    let cluster = FakeCluster::new(2);
    let local = cluster.local_master(ServerId(1));
    let client = Client::embedded(cluster.parts(), cluster.options(), local);
    let table = cluster.run(client.create_table("t", None)).unwrap();
    let key = key_of(&table, ServerId(1));
    let sent = cluster.sent().len();
    let mut cases = computed();
    cases.extend(conditional());
    cluster.run(async {
        for case in &cases {
            match case.before {
                Some(before) => {
                    let value = Bytes::from_static(before);
                    client.write(&table, &key, value).await.unwrap();
                }
                None => {
                    client.delete(&table, &key).await.unwrap();
                }
            }
            let mutation = Mutation {
                key: &key,
                ..case.mutation
            };
            let outcome = client.mutate(&table, mutation).await.unwrap();
            assert_eq!(shape(&outcome), case.came_to, "{}", case.name);
        }
    });
    assert_eq!(cluster.sent().len(), sent);
}

#[test]
fn blocking_calls_give_the_same() {
    let cluster = FakeCluster::new(2);
    let client = blocking::Client::new(cluster.client(), cluster.clone());
    let t = &client.create_table("t", None).unwrap();
    let value = |text: &'static str| Bytes::from_static(text.as_bytes());
    assert_eq!(client.append(t, b"k", b"ab").unwrap().length, 2);
    assert_eq!(client.set_range(t, b"k", 3, b"c").unwrap().length, 4);
    assert_eq!(client.set_bit(t, b"k", 23, true), Ok(false));
    let fields = client.bit_field(t, b"f", &FIELDS).unwrap();
    assert_eq!(fields.values[..], [Some(0), None, Some(7)]);
    assert_eq!(client.add_decimal(t, b"n", "0.5"), Ok(value("0.5")));
    assert_eq!(client.compare_and_set(t, b"n", b"0.5", "1"), Ok(true));
    assert_eq!(client.get_and_set(t, b"n", "2"), Ok(Some(value("1"))));
    assert_eq!(client.compare_and_delete(t, b"n", b"1"), Ok(false));
    assert_eq!(client.get_and_delete(t, b"n"), Ok(Some(value("2"))));
    let length = client.project(t, b"k", Projection::Length);
    assert_eq!(length, Ok(Some(Output::Integer(4))));
    let got = client.get(t, Get::new(TableId(0), b"k")).unwrap();
    assert_eq!(shape(&got), ("unchanged", bytes(b"ab\x01c")));
    let mut cases = computed();
    cases.extend(conditional());
    for case in &cases {
        client.delete(t, b"c").unwrap();
        if let Some(before) = case.before {
            client.write(t, b"c", before).unwrap();
        }
        let mutation = Mutation {
            key: b"c",
            ..case.mutation
        };
        let outcome = client.mutate(t, mutation).unwrap();
        assert_eq!(shape(&outcome), case.came_to, "{}", case.name);
    }
    let big = vec![0; VALUE_MAX + 1];
    let append = |key, text| Mutation::new(t.id(), key, Change::Append(text));
    let results = client.multi_mutate(&[
        (t, append(b"x", b"1".as_slice().into())),
        (t, append(b"y", big[..].into())),
        (t, append(b"z", b"333".as_slice().into())),
    ]);
    let came_to = |result: &Result<_, ClientError>| result.as_ref().ok().map(|done| shape(done).1);
    let came_to: Vec<_> = results.iter().map(came_to).collect();
    assert_eq!(
        came_to,
        [Some(Output::Integer(1)), None, Some(Output::Integer(3))]
    );
}
