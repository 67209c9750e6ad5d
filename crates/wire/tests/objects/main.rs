//! Reads, mutations and their reply survive encoding, cost what they hold, and no bytes make
//! decoding panic.

mod chance;

use bytes::Bytes;
use chance::{Owned, OwnedGet, bytes, gets, mutations, results};
use core::pin::pin;
use core::task::{Context, Poll, Waker};
use core::time::Duration;
use pluvio_env::{
    Address, BoxFuture, CallError, Frame, Handled, Listening, Network, NetworkError, Service,
    StreamService,
};
use pluvio_units::{
    ClientId, ClusterId, KEY_MAX, ObjectVersion, OperationId, SequenceNumber, ServerId, TableId,
    VALUE_MAX,
};
use pluvio_wire::*;
use proptest::prelude::*;
use std::sync::{Arc, Mutex};

const SEQUENCE: u64 = 90;
/// Header, count and flags.
const ITEMS: usize = Header::LEN + 3;

fn header() -> Header {
    Header {
        operation: OperationId {
            client: ClientId(7),
            sequence: SequenceNumber(SEQUENCE),
            acknowledged_below: SequenceNumber(3),
            retry_ms: 77_000,
        },
        target: ServerId(9),
        cluster: ClusterId(0xfeed),
        deadline_us: 123,
    }
}

fn put(value: &[u8]) -> Mutation<'_> {
    Mutation {
        id: header().operation,
        ..Mutation::new(TableId(5), b"key", Change::Put(value.into()))
    }
}

fn reply_bytes(items: &Results) -> (Vec<u8>, Bytes) {
    let mut meta = Vec::new();
    let outcomes = Outcomes::from(items.clone());
    let payload = outcomes.encode(&mut meta);
    (meta, payload)
}

/// Decodes anything as each of the three messages and looks at all of it.
fn look_at(frame: &Frame) {
    if let Ok((_, gets)) = decode_get(frame) {
        assert_eq!(gets.iter().count(), gets.len());
    }
    if let Ok((_, mutations)) = decode_mutate(frame) {
        assert_eq!(mutations.iter().count(), mutations.len());
    }
    let _ = Outcomes::decode(&frame.meta, frame.payload.clone());
}

/// The frame, cut or with a flipped bit.
fn damaged(frame: &Frame, at: usize, bit: u8, cut: bool) -> Frame {
    let (mut meta, mut payload) = (frame.meta.to_vec(), frame.payload.to_vec());
    let all = meta.len() + payload.len();
    let at = at % all.max(1);
    let (part, at) = match at.checked_sub(meta.len()) {
        Some(behind) => (&mut payload, behind),
        None => (&mut meta, at),
    };
    if cut {
        part.truncate(at);
    } else if let Some(byte) = part.get_mut(at) {
        *byte ^= 1 << bit;
    }
    Frame {
        opcode: frame.opcode,
        meta: meta.into(),
        payload: payload.into(),
    }
}

proptest! {
    #[test]
    fn mutations_come_back(owned in mutations(), ordered: bool) {
        let sent: Vec<_> = owned.iter().map(Owned::lend).collect();
        let frame = encode_mutate(&header(), &sent, ordered);
        prop_assert_eq!(frame.opcode, Opcode::Mutate as u16);
        let (head, got) = decode_mutate(&frame).unwrap();
        prop_assert_eq!((head, got.ordered(), got.len()), (header(), ordered, sent.len()));
        prop_assert_eq!(got.iter().collect::<Vec<_>>(), sent);
    }

    #[test]
    fn reads_come_back(owned in gets()) {
        let sent: Vec<_> = owned.iter().map(OwnedGet::lend).collect();
        let frame = encode_get(&header(), &sent);
        prop_assert_eq!(frame.opcode, Opcode::Get as u16);
        let (head, got) = decode_get(&frame).unwrap();
        prop_assert_eq!((head, got.len()), (header(), sent.len()));
        prop_assert_eq!(got.iter().collect::<Vec<_>>(), sent);
    }

    // shows: WIRE-1
    #[test]
    fn outcomes_come_back(items in results()) {
        let (meta, payload) = reply_bytes(&items);
        prop_assert_eq!(Outcomes::decode(&meta, payload), Ok(Outcomes::from(items)));
    }

    // shows: WIRE-2
    #[test]
    fn any_bytes_are_a_message_or_a_refusal(
        mut meta in bytes(200), payload in bytes(50), count in 0u16..4, kind in 0u8..9, flags: u8
    ) {
        look_at(&Frame { opcode: 10, meta: meta.clone().into(), payload: payload.clone().into() });
        // The same, led on into the items.
        if let Some(front) = meta.get_mut(Header::LEN..ITEMS + 3) {
            front.copy_from_slice(&[count.to_le_bytes()[0], 0, 0, kind, flags, 0]);
        }
        look_at(&Frame { opcode: 10, meta: meta.into(), payload: payload.into() });
    }

    // shows: WIRE-2
    #[test]
    fn damaged_messages_are_messages_or_refusals(
        owned in mutations(), reads in gets(), items in results(),
        at: usize, bit in 0u8..8, cut: bool
    ) {
        let sent: Vec<_> = owned.iter().map(Owned::lend).collect();
        let reads: Vec<_> = reads.iter().map(OwnedGet::lend).collect();
        let (meta, payload) = reply_bytes(&items);
        let reply = Frame { opcode: 11, meta: meta.into(), payload };
        for frame in [encode_mutate(&header(), &sent, false), encode_get(&header(), &reads), reply] {
            look_at(&damaged(&frame, at, bit, cut));
        }
    }
}

#[test]
fn a_set_takes_few_bytes() {
    let mutation = Mutation {
        id: header().operation,
        ..Mutation::new(TableId(5), &[7; 16], Change::Put((&[8; 100][..]).into()))
    };
    let frame = encode_mutate(&header(), &[mutation], false);
    // Header 48, count 2, flags 1; kind 1, flags 2, length of the key 4, table 8; length of the
    // value 4; key 16.
    assert_eq!(frame.meta.len(), 48 + 2 + 1 + 1 + 2 + 4 + 8 + 4 + 16);
    assert_eq!((frame.meta.len(), frame.payload.len()), (86, 100));
    let mut item = vec![1, 0, 0, 16, 0, 0, 0, 5, 0, 0, 0, 0, 0, 0, 0, 100, 0, 0, 0];
    item.extend([7; 16]);
    assert_eq!(frame.meta[Header::LEN..ITEMS], [1, 0, 0]);
    assert_eq!(frame.meta[ITEMS..], item);

    let written = Outcome::Written {
        version: ObjectVersion(2),
        replaced: ObjectVersion(1),
        output: Output::Nothing,
    };
    let reply = reply_outcomes(
        Opcode::Mutate,
        &Ok(Outcomes::from(Results::from_iter([Ok(written)]))),
    );
    // Status 1, count 2, tag 1, versions 16, output 1.
    assert_eq!((reply.meta.len(), reply.payload.len()), (21, 0));
    let get = encode_get(&header(), &[Get::new(TableId(5), &[7; 16])]);
    assert_eq!((get.meta.len(), get.payload.len()), (82, 0));
}

#[test]
fn a_single_value_is_not_copied() {
    let value = Bytes::from(vec![1; 50]);
    let mutation = Mutation::new(TableId(1), b"k", Change::Put((&value).into()));
    let frame = encode_mutate(&header(), &[mutation], false);
    assert_eq!(frame.payload.as_ptr(), value.as_ptr());
    let (_, got) = decode_mutate(&frame).unwrap();
    let Some(Change::Put(arrived)) = got.iter().next().map(|m| m.change) else {
        panic!("one put was sent");
    };
    assert_eq!(arrived.to_shared().as_ptr(), value.as_ptr());

    let read = Outcome::Unchanged {
        version: ObjectVersion(3),
        output: Output::Bytes(value.clone()),
    };
    let (meta, payload) = reply_bytes(&Results::from_iter([Ok(read)]));
    assert_eq!(payload.as_ptr(), value.as_ptr());
    let mut items = Outcomes::decode(&meta, payload).unwrap().items;
    let Some(Ok(read)) = items.pop() else {
        panic!("one outcome was sent");
    };
    assert_eq!(read.into_output(), Output::Bytes(value));
}

#[test]
fn items_have_numbers_of_their_own_or_none() {
    let numbered = |sequence| Mutation {
        id: OperationId {
            sequence: SequenceNumber(sequence),
            ..header().operation
        },
        ..put(b"v")
    };
    let numbers = |sent: &[Mutation<'_>]| {
        let frame = encode_mutate(&header(), sent, true);
        let (_, got) = decode_mutate(&frame).unwrap();
        got.iter().map(|m| m.id.sequence.0).collect::<Vec<_>>()
    };
    assert_eq!(numbers(&[numbered(0)]), [SEQUENCE]);
    assert_eq!(numbers(&[numbered(4)]), [4]);
    let batch = [numbered(SEQUENCE), numbered(0), numbered(5)];
    assert_eq!(numbers(&batch), [SEQUENCE, 0, 5]);
}

#[test]
fn values_that_lie_together_are_sent_from_there() {
    let joined = Bytes::from_static(b"firstsecond");
    let value = |range| {
        let (version, output) = (ObjectVersion(1), Output::Bytes(joined.slice(range)));
        Ok(Outcome::Unchanged { version, output })
    };
    let items: Results = [value(0..5), Err(Refusal::Refresh), value(5..11)]
        .into_iter()
        .collect();
    let apart = Outcomes::from(items.clone());
    let together = Outcomes::from(items).with_joined(joined.clone());
    let (mut meta, mut others) = (Vec::new(), Vec::new());
    let payload = together.encode(&mut meta);
    assert_eq!(payload, apart.encode(&mut others));
    assert_eq!(meta, others);
    assert_eq!(payload.as_ptr(), joined.as_ptr());
    assert_eq!(Outcomes::decode(&meta, payload), Ok(apart));
}

#[test]
fn an_early_answer_says_what_it_rests_on() {
    let position = pluvio_units::LogPosition {
        segment: pluvio_units::SegmentId(7 << 40),
        offset: 123_456,
    };
    let mut outcomes = Outcomes::from(Results::new());
    outcomes.rests_on = vec![(pluvio_units::LogId(3), position)];
    let mut meta = Vec::new();
    let payload = outcomes.encode(&mut meta);
    assert_eq!(Outcomes::decode(&meta, payload.clone()), Ok(outcomes));
    meta.pop();
    assert!(Outcomes::decode(&meta, payload).is_err());
    let early = pluvio_wire::encode_mutate_early(&header(), &[put(b"v")]);
    let (_, mutations) = decode_mutate(&early).expect("it is a request");
    assert!(mutations.early() && mutations.ordered());
}

/// What a changed request is refused with.
fn refused(sent: &Mutation<'_>, change: impl FnOnce(&mut Vec<u8>)) -> Refusal {
    let frame = encode_mutate(&header(), &[*sent], false);
    let mut meta = frame.meta.to_vec();
    change(&mut meta);
    let frame = Frame {
        meta: meta.into(),
        ..frame
    };
    decode_mutate(&frame)
        .map(|_| ())
        .expect_err("the change is to be refused")
}

// shows: WIRE-4
#[test]
fn what_is_not_known_is_refused_in_words() {
    let unknown = |refusal: Refusal, words: &[&str]| {
        assert_eq!(refusal.fatal_kind(), Some(FatalKind::Unsupported));
        let said = refusal.to_string();
        for word in words
            .iter()
            .chain(&["the caller is newer than this server"])
        {
            assert!(said.contains(word), "{said}");
        }
    };
    let kind = refused(&put(b"v"), |meta| meta[ITEMS] = 10);
    let known = ["kind of change: 10 ", "1 put, 2 delete", "9 put version"];
    unknown(kind, &known);
    let flag = refused(&put(b"v"), |meta| meta[ITEMS + 2] = 2);
    unknown(flag, &["512 ", "within 511"]);
    let forever = Mutation {
        lifetime: Lifetime::Endless,
        ..Mutation::new(TableId(1), b"", Change::Touch(TouchIf::Always))
    };
    unknown(
        refused(&forever, |meta| meta[ITEMS + 15] = 4),
        &["lifetime: 4 "],
    );
    unknown(
        refused(&forever, |meta| meta[ITEMS + 24] = 6),
        &["condition on a deadline: 6 "],
    );
    let usual = refused(&forever, |meta| meta[ITEMS + 15] = 0);
    assert_eq!(usual.fatal_kind(), Some(FatalKind::Malformed));
    let no_deadline = refused(&forever, |meta| meta[ITEMS + 15] = 2);
    assert_eq!(no_deadline.fatal_kind(), Some(FatalKind::Malformed));
    for version in [0, PUT_VERSION_MAX.0 + 1] {
        let put = Change::PutVersion {
            value: b"v".as_slice().into(),
            version: ObjectVersion(1),
        };
        let put = Mutation::new(TableId(1), b"", put);
        let refusal = refused(&put, |meta| {
            meta[ITEMS + 15..ITEMS + 23].copy_from_slice(&u64::to_le_bytes(version));
        });
        assert_eq!(refusal.fatal_kind(), Some(FatalKind::Malformed));
    }
    let flag = refused(&put(b"v"), |meta| meta[ITEMS - 1] = 12);
    unknown(flag, &["flag of a request: 12 "]);

    let read = |at: usize, byte: u8| {
        let span = Projection::BitCount(Span::ALL);
        let get = Get {
            projection: span,
            ..Get::new(TableId(1), b"")
        };
        let frame = encode_get(&header(), &[get]);
        let mut meta = frame.meta.to_vec();
        meta[at] = byte;
        let frame = Frame {
            meta: meta.into(),
            ..frame
        };
        decode_get(&frame).map(|_| ()).unwrap_err()
    };
    unknown(read(ITEMS, 0), &["kind of read: 0 ", "7 bit position"]);
    unknown(read(ITEMS + 1, 32), &["32 ", "within 31"]);
    unknown(read(ITEMS + 15, 4), &["flags of a span: 4 "]);

    let steps = [BitStep::get_bit(3)];
    let bits = Mutation::new(TableId(1), b"", Change::Bits(&steps));
    for action in [3, 0b1_1000] {
        unknown(
            refused(&bits, |meta| meta[ITEMS + 17] = action),
            &["a step on bits"],
        );
    }
}

#[test]
fn limits_are_kept() {
    let of = |mutation: &Mutation<'_>| {
        let frame = encode_mutate(&header(), &[*mutation], false);
        decode_mutate(&frame)
            .map(|_| ())
            .map_err(|refusal| refusal.fatal_kind().unwrap())
    };
    let change = |change| of(&Mutation::new(TableId(1), b"k", change));
    let long = vec![b'1'; VALUE_MAX + 1];
    let key = |length| of(&Mutation::new(TableId(1), &long[..length], Change::Delete));
    assert_eq!(key(KEY_MAX), Ok(()));
    assert_eq!(key(KEY_MAX + 1), Err(FatalKind::KeyTooLong));
    assert_eq!(change(Change::Put((&long[1..]).into())), Ok(()));
    let too_long = Err(FatalKind::ValueTooLong);
    assert_eq!(change(Change::Put((&long[..]).into())), too_long);
    assert_eq!(change(Change::Append((&long[..]).into())), too_long);
    let compare = Mutation {
        value_is: Some(&long),
        ..put(b"v")
    };
    assert_eq!(of(&compare), too_long);
    for (offset, fits) in [(u64::MAX - 2, Ok(())), (u64::MAX - 1, too_long)] {
        let bytes = (&long[..2]).into();
        assert_eq!(change(Change::SetRange { offset, bytes }), fits);
    }
    let malformed = Err(FatalKind::Malformed);
    for (length, fits) in [
        (DECIMAL_BYTES_MAX, Ok(())),
        (DECIMAL_BYTES_MAX + 1, malformed),
        (70_000, malformed),
    ] {
        let text = core::str::from_utf8(&long[..length]).unwrap();
        assert_eq!(change(Change::Add(Addend::Decimal(text))), fits);
    }
    let steps = vec![BitStep::set_bit(1, true); 70_000];
    for (count, fits) in [
        (0, malformed),
        (1, Ok(())),
        (BIT_STEPS_MAX, Ok(())),
        (BIT_STEPS_MAX + 1, malformed),
        (70_000, malformed),
    ] {
        assert_eq!(change(Change::Bits(&steps[..count])), fits, "{count}");
    }
    assert_eq!(
        change(Change::Bits(&[BitStep::get_bit(u64::MAX)])),
        malformed
    );
    let old = Mutation {
        returns_old: true,
        ..Mutation::new(TableId(1), b"k", Change::Add(Addend::Integer(1)))
    };
    assert_eq!(of(&old), malformed);

    let get = Get {
        projection: Projection::Bits(&steps[..1]),
        ..Get::new(TableId(1), b"k")
    };
    let frame = encode_get(&header(), &[get]);
    let refusal = decode_get(&frame).map(|_| ()).unwrap_err();
    assert_eq!(refusal.fatal_kind(), Some(FatalKind::Malformed));
}

#[test]
fn a_batch_of_too_many_items_is_refused() {
    for (count, fits) in [(MULTI_ITEMS_MAX, true), (MULTI_ITEMS_MAX + 1, false)] {
        let frame = encode_mutate(&header(), &vec![put(b"v"); count], false);
        let got = decode_mutate(&frame).map(|(_, got)| got.len());
        assert_eq!(got.is_ok(), fits);
        if let Err(refusal) = got {
            assert_eq!(refusal.fatal_kind(), Some(FatalKind::Malformed));
            assert!(refusal.to_string().contains("at most 1024"), "{refusal}");
        }
        let frame = encode_get(&header(), &vec![Get::new(TableId(1), b""); count]);
        assert_eq!(decode_get(&frame).is_ok(), fits);
    }
}

#[test]
fn what_breaks_a_rule_is_malformed() {
    let malformed = |refusal: Refusal| assert_eq!(refusal.fatal_kind(), Some(FatalKind::Malformed));
    malformed(refused(&put(b"v"), |meta| meta.push(0)));
    malformed(refused(&put(b"v"), |meta| meta[ITEMS + 15] = 2));
    malformed(refused(&put(b"v"), |meta| meta[ITEMS + 15] = 0));
    let other = Mutation {
        id: OperationId {
            sequence: SequenceNumber(1),
            ..header().operation
        },
        ..put(b"v")
    };
    malformed(refused(&other, |meta| meta[ITEMS + 15] = 0));
    let text = Mutation::new(TableId(1), b"", Change::Add(Addend::Decimal("1")));
    malformed(refused(&text, |meta| meta[ITEMS + 17] = 0xff));
    let steps = [BitStep::get_bit(3)];
    let bits = Mutation::new(TableId(1), b"", Change::Bits(&steps));
    malformed(refused(&bits, |meta| *meta.last_mut().unwrap() = 1));
    let mut frame = encode_get(&header(), &[Get::new(TableId(1), b"")]);
    frame.payload = Bytes::from_static(b"1");
    malformed(decode_get(&frame).map(|_| ()).unwrap_err());
}

/// Answers every call with one frame and keeps what it was asked.
struct Echo {
    asked: Mutex<Vec<Frame>>,
    answer: Frame,
}

impl Network for Echo {
    fn call<'a>(
        &'a self,
        _: &'a Address,
        request: Frame,
        _: Duration,
    ) -> BoxFuture<'a, Result<Frame, CallError>> {
        self.asked.lock().expect("no call panics").push(request);
        Box::pin(async { Ok(self.answer.clone()) })
    }
    fn listen(
        &self,
        _: &Address,
        _: Arc<dyn Service>,
    ) -> BoxFuture<'_, Result<Listening, NetworkError>> {
        unreachable!("only calls are made")
    }
    fn listen_streams(
        &self,
        _: &Address,
        _: usize,
        _: Bytes,
        _: Arc<dyn StreamService>,
    ) -> BoxFuture<'_, Result<Listening, NetworkError>> {
        unreachable!("only calls are made")
    }
}

#[test]
fn a_call_carries_its_limit_and_brings_the_outcomes() {
    let done = Outcome::Deleted {
        version: ObjectVersion(4),
        output: Output::Nothing,
    };
    let items = Results::from_iter([Ok(done), Err(Refusal::Refresh)]);
    let frame = encode_mutate(&header(), &[put(b"v"), put(b"w")], true);
    let call = |answer| {
        let network = Echo {
            asked: Mutex::default(),
            answer,
        };
        let to = Address::from("there");
        let call = call_frame(&network, &to, frame.clone(), Duration::from_millis(5));
        let Poll::Ready(got) = pin!(call).poll(&mut Context::from_waker(Waker::noop())) else {
            panic!("the answer is there at once");
        };
        let asked = network.asked.into_inner().unwrap();
        let (asked, _) = decode_mutate(&asked[0]).unwrap();
        assert_eq!(asked, header().waiting(Duration::from_millis(5)));
        got
    };
    let answer = |answer| match handled_outcomes(Opcode::Mutate, Answer::Now(answer)) {
        Handled::Now(frame) => frame,
        Handled::Later(_) => panic!("the answer is there at once"),
    };
    assert_eq!(call(answer(Ok(items.clone()))), Ok(Outcomes::from(items)));
    assert_eq!(
        call(answer(Err(Refusal::Refresh))),
        Err(RpcError::Refused(Refusal::Refresh))
    );
    let bad = call(Frame::default());
    assert!(matches!(bad, Err(RpcError::BadReply(..))), "{bad:?}");
    // The caller's own frame is as it was.
    assert_eq!(decode_mutate(&frame).map(|(head, _)| head), Ok(header()));
}
