//! Messages survive encoding, and no bytes make decoding panic.

use bytes::Bytes;
use pluvio_env::Frame;
use pluvio_units::{
    ClientId, ClusterId, ObjectVersion, OperationId, SequenceNumber, ServerId, TableId,
};
use pluvio_wire::*;
use proptest::prelude::*;

fn header() -> Header {
    Header {
        operation: OperationId {
            client: ClientId(7),
            sequence: SequenceNumber(u64::MAX),
            acknowledged_below: SequenceNumber(3),
            retry_ms: 77_000,
        },
        target: ServerId(9),
        cluster: ClusterId(0xfeed),
        deadline_us: 123,
    }
}

fn key(name: &[u8]) -> MultiKey {
    MultiKey {
        sequence: SequenceNumber(name.len() as u64),
        table: TableId(1),
        key: name.to_vec(),
        rules: RejectRules::unless_version(ObjectVersion(4)),
    }
}

#[test]
fn a_request_arrives_with_its_header_and_payload() {
    let write = Write {
        table: TableId(5),
        key: vec![0, 255, 10],
        rules: RejectRules {
            version_less: Some(ObjectVersion(2)),
            ..RejectRules::default()
        },
        value: Bytes::from_static(b"value"),
    };
    let frame = encode(&header(), &write);
    assert_eq!(frame.opcode, Opcode::Write as u16);
    assert_eq!(decode::<Write>(&frame), Ok((header(), write)));
}

#[test]
fn batches_keep_their_values_apart() {
    let batch = MultiWrite::new(vec![
        (key(b"a"), Bytes::from_static(b"")),
        (key(b""), Bytes::from_static(b"two")),
        (key(b"c"), Bytes::from_static(b"3")),
    ]);
    let (_, back) = decode::<MultiWrite>(&encode(&header(), &batch)).unwrap();
    assert_eq!(back, batch);
}

#[test]
fn a_batch_of_too_many_items_is_refused() {
    let batch = |count| MultiDelete {
        items: vec![key(b"a"); count],
    };
    let most = batch(MULTI_ITEMS_MAX);
    let frame = encode(&header(), &most);
    assert_eq!(decode::<MultiDelete>(&frame), Ok((header(), most)));
    let frame = encode(&header(), &batch(MULTI_ITEMS_MAX + 1));
    let refused = decode::<MultiDelete>(&frame).unwrap_err();
    assert_eq!(refused.fatal_kind(), Some(FatalKind::Malformed));
    assert!(refused.to_string().contains("at most 1024"), "{refused}");
}

#[test]
fn a_payload_that_does_not_fit_its_lengths_is_refused() {
    let batch = MultiWrite::new(vec![(key(b"a"), Bytes::from_static(b"12"))]);
    let frame = encode(&header(), &batch);
    for payload in ["", "1", "123"] {
        let broken = Frame {
            payload: Bytes::from_static(payload.as_bytes()),
            ..frame.clone()
        };
        assert_eq!(
            decode::<MultiWrite>(&broken).unwrap_err().fatal_kind(),
            Some(FatalKind::Malformed)
        );
    }
}

#[test]
fn reject_rules_say_what_they_mean() {
    let v = ObjectVersion;
    let none = RejectRules::default();
    assert!(!none.reject(None) && !none.reject(Some(v(1))));
    let create = RejectRules::unless_version(v(0));
    assert!(!create.reject(None) && create.reject(Some(v(1))));
    let swap = RejectRules::unless_version(v(3));
    assert!(swap.reject(None) && swap.reject(Some(v(2))) && !swap.reject(Some(v(3))));
    let newer = RejectRules {
        version_less: Some(v(5)),
        ..none
    };
    assert!(!newer.reject(None) && newer.reject(Some(v(4))) && !newer.reject(Some(v(5))));
}

proptest! {
    #[test]
    fn garbage_is_refused_without_panic(meta in proptest::collection::vec(any::<u8>(), 0..200), payload in proptest::collection::vec(any::<u8>(), 0..50)) {
        let frame = Frame { opcode: 1, meta: meta.into(), payload: payload.into() };
        let _ = decode::<Read>(&frame);
        let _ = decode::<MultiWrite>(&frame);
        let _ = decode::<Enlist>(&frame);
        let _ = decode::<WriteReplica>(&frame);
        let _ = decode::<Recover>(&frame);
    }

    #[test]
    fn a_flipped_bit_is_refused_or_gives_another_message(bit in 0usize..400) {
        let frame = encode(&header(), &MultiRead { items: vec![key(b"some key"), key(b"another")] });
        let mut meta = frame.meta.to_vec();
        let at = bit / 8 % meta.len();
        meta[at] ^= 1 << (bit % 8);
        let _ = decode::<MultiRead>(&Frame { meta: meta.into(), ..frame });
    }
}
