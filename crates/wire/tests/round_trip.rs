//! Messages survive encoding, and no bytes make decoding panic.

use bytes::Bytes;
use pluvio_env::Frame;
use pluvio_units::{
    ClientId, ClusterId, Deadline, HashRange, KeyHash, LogId, ObjectVersion, OperationId, Rank,
    ReplicationEpoch, SegmentId, SequenceNumber, ServerId, TableId,
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

fn objects() -> EnumerateReply {
    let object = |key: &[u8], value: &'static [u8]| EnumeratedObject {
        key: key.to_vec(),
        version: ObjectVersion(key.len() as u64),
        deadline: Deadline::new(key.len() as u64),
        value: Bytes::from_static(value),
    };
    let objects = vec![object(b"a", b""), object(b"", b"two"), object(b"cc", b"3")];
    EnumerateReply::new(
        objects,
        Seen {
            last: KeyHash(7),
            next: Some(Rank(5)),
        },
    )
}

fn write() -> WriteReplica {
    WriteReplica {
        cluster: ClusterId(1),
        master: ServerId(2),
        segment: SegmentId(3),
        log: LogId(4),
        side: false,
        epoch: ReplicationEpoch(5),
        open: true,
        rewriting: false,
        primary: true,
        offset: 6,
        certified: 7,
        close: false,
        synced: false,
        needed: 2,
        data: Bytes::from_static(b"value"),
    }
}

#[test]
fn a_request_arrives_with_its_header_and_payload() {
    let frame = encode(&header(), &write());
    assert_eq!(frame.opcode, Opcode::WriteReplica as u16);
    assert_eq!(decode::<WriteReplica>(&frame), Ok((header(), write())));
}

#[test]
fn each_flag_of_a_write_has_a_bit_of_its_own() {
    let flags: [fn(&mut WriteReplica) -> &mut bool; 6] = [
        |w| &mut w.side,
        |w| &mut w.open,
        |w| &mut w.rewriting,
        |w| &mut w.primary,
        |w| &mut w.close,
        |w| &mut w.synced,
    ];
    for set in 0..1_u32 << flags.len() {
        let mut request = write();
        for (i, flag) in flags.iter().enumerate() {
            *flag(&mut request) = set & 1 << i != 0;
        }
        let mut meta = Vec::new();
        let data = request.encode(&mut meta);
        assert_eq!(WriteReplica::decode(&meta, data), Ok(request));
        for wrong in [&meta[1..], &[&meta[..], &[0]].concat()] {
            let refused = WriteReplica::decode(wrong, Bytes::new()).unwrap_err();
            assert_eq!(refused.fatal_kind(), Some(FatalKind::Malformed));
        }
        *meta.last_mut().unwrap() |= 64;
        assert!(WriteReplica::decode(&meta, Bytes::new()).is_err());
    }
}

#[test]
fn several_objects_keep_their_values_apart() {
    let mut meta = Vec::new();
    let payload = objects().encode(&mut meta);
    assert_eq!(EnumerateReply::decode(&meta, payload), Ok(objects()));
}

#[test]
fn keys_of_top_lists_are_any_bytes() {
    let hot = HotKey {
        hash: KeyHash(u64::MAX),
        key: vec![0, 255, b'\n'],
        key_len: 70_000,
        per_s: 1.5,
        less: 0.5,
        more: f64::MAX,
    };
    let large = LargeKey {
        hash: KeyHash(1),
        key: Vec::new(),
        key_len: 0,
        bytes: u64::MAX,
    };
    let of_table = TopKeysOfTable {
        reads: vec![hot.clone()],
        writes: vec![hot],
        largest: vec![large],
        ..TopKeysOfTable::default()
    };
    let top = TopKeys {
        server: ServerId(9),
        seconds: 30.0,
        one_in: 4,
        tables: vec![of_table],
    };
    let mut meta = Vec::new();
    let payload = top.encode(&mut meta);
    assert_eq!(TopKeys::decode(&meta, payload), Ok(top));
}

#[test]
fn changed_objects_keep_their_keys_and_values_apart() {
    let object = |key: &'static [u8], now| ChangedObject {
        table: TableId(3),
        key: Bytes::from_static(key),
        now,
    };
    let to = |value: &'static [u8], ms| ChangedTo {
        version: ObjectVersion(7),
        deadline: Deadline::new(ms),
        value: Bytes::from_static(value),
    };
    let objects = vec![
        object(b"gone", None),
        object(b"", Some(to(b"value", 0))),
        object(b"key", Some(to(b"", 99))),
    ];
    let reply = CutReply::to(5).with(objects);
    let mut meta = Vec::new();
    let payload = reply.encode(&mut meta);
    assert_eq!(CutReply::decode(&meta, payload.clone()), Ok(reply));
    let short = payload.slice(1..);
    assert!(CutReply::decode(&meta, short).is_err());
}

#[test]
fn a_range_that_was_cut_is_tracked_and_one_that_has_gaps_is_not() {
    let of = |first, last, track| TrackedRange {
        table: TableId(1),
        range: HashRange::new(KeyHash(first), KeyHash(last)),
        track,
    };
    let held = [
        of(0, 9, 4),
        of(10, 49, 4),
        of(60, 70, 5),
        of(71, u64::MAX, 4),
    ];
    for (wanted, is_within) in [
        (of(0, 49, 4), true),
        (of(5, 20, 4), true),
        (of(71, u64::MAX, 4), true),
        (of(72, 80, 4), true),
        (of(60, 80, 4), false),
        (of(0, 60, 4), false),
        (of(0, 9, 5), false),
        (of(60, 70, 5), true),
        (of(60, 71, 5), false),
    ] {
        assert_eq!(wanted.is_within(&held), is_within, "{wanted:?}");
    }
}

#[test]
fn a_payload_that_does_not_fit_its_lengths_is_refused() {
    let mut meta = Vec::new();
    objects().encode(&mut meta);
    for payload in ["", "two", "two34"] {
        let refused = EnumerateReply::decode(&meta, Bytes::from_static(payload.as_bytes()));
        assert_eq!(
            refused.unwrap_err().fatal_kind(),
            Some(FatalKind::Malformed)
        );
    }
}

proptest! {
    // shows: WIRE-2
    #[test]
    fn garbage_is_refused_without_panic(meta in proptest::collection::vec(any::<u8>(), 0..200), payload in proptest::collection::vec(any::<u8>(), 0..50)) {
        let frame = Frame { opcode: 1, meta: meta.into(), payload: payload.into() };
        let _ = decode::<Enumerate>(&frame);
        let _ = EnumerateReply::decode(&frame.meta, frame.payload.clone());
        let _ = decode::<Enlist>(&frame);
        let _ = decode::<DrainServer>(&frame);
        let _ = decode::<LeaveCluster>(&frame);
        let _ = decode::<Balance>(&frame);
        let _ = decode::<JoinTabletsLocal>(&frame);
        let _ = decode::<WriteReplica>(&frame);
        let _ = decode::<Recover>(&frame);
        let _ = decode::<GetTopKeys>(&frame);
        let _ = decode::<Cut>(&frame);
        let _ = CutReply::decode(&frame.meta, frame.payload.clone());
        let _ = decode::<GetDoor>(&frame);
        let _ = reply_to::<GetDoor>(&"a".into(), frame.clone());
        let _ = TopKeys::decode(&frame.meta, frame.payload.clone());
    }

    #[test]
    fn a_flipped_bit_is_refused_or_gives_another_message(bit in 0usize..1600) {
        let frame = encode(&header(), &write());
        let mut meta = frame.meta.to_vec();
        let at = bit / 8 % meta.len();
        meta[at] ^= 1 << (bit % 8);
        let _ = decode::<WriteReplica>(&Frame { meta: meta.into(), ..frame });
    }
}
