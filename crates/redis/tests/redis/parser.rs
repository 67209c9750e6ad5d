//! The parser on any cut of any bytes.

use crate::bench::encode;
use bytes::BytesMut;
use pluvio_redis::{Command, Limits, Parsed, Parser, ProtocolError, TooLarge};
use proptest::prelude::*;

const SMALL: Limits = Limits {
    line_bytes_max: 64,
    arguments_max: 20,
    bulk_bytes_max: 200,
    argument_bytes_max: 50,
    command_bytes_max: 400,
};

/// All that comes out of bytes that arrive in these pieces.
fn parse(
    limits: Limits,
    pieces: impl IntoIterator<Item = Vec<u8>>,
) -> (Vec<Parsed>, Option<ProtocolError>) {
    let mut parser = Parser::new(limits);
    let mut input = BytesMut::new();
    let mut found = Vec::new();
    for piece in pieces {
        input.extend_from_slice(&piece);
        loop {
            match parser.next(&mut input) {
                Ok(Some(parsed)) => found.push(parsed),
                Ok(None) => break,
                Err(error) => return (found, Some(error)),
            }
        }
        let held = limits.command_bytes_max + piece.len() + limits.line_bytes_max + 2;
        assert!(input.len() <= held, "{} bytes are held", input.len());
    }
    (found, None)
}

fn cut(bytes: &[u8], places: &[prop::sample::Index]) -> Vec<Vec<u8>> {
    let mut places: Vec<_> = places.iter().map(|p| p.index(bytes.len() + 1)).collect();
    places.sort_unstable();
    places.push(bytes.len());
    let mut from = 0;
    let pieces = places.into_iter().map(|to| {
        let piece = bytes[from..to].to_vec();
        from = to;
        piece
    });
    pieces.collect()
}

/// Bytes that often mean something.
fn likely() -> impl Strategy<Value = Vec<u8>> {
    let piece = prop_oneof![
        Just(b"*".to_vec()),
        Just(b"$".to_vec()),
        Just(b"\r\n".to_vec()),
        Just(b"\n".to_vec()),
        Just(b"\"".to_vec()),
        Just(b"'".to_vec()),
        Just(b"\\x4".to_vec()),
        Just(b"*2\r\n$3\r\nGET\r\n".to_vec()),
        Just(b"$1\r\nk\r\n".to_vec()),
        Just(b"$60\r\n".to_vec()),
        Just(b"$201\r\n".to_vec()),
        Just(b"*-1\r\n".to_vec()),
        Just(b"*21\r\n".to_vec()),
        Just(vec![b'x'; 70]),
        "[0-9-]{1,3}".prop_map(String::into_bytes),
        "[ -~]{1,10}".prop_map(String::into_bytes),
        prop::collection::vec(any::<u8>(), 1..8),
        prop::collection::vec("[a-z ]{0,60}", 1..8).prop_map(|parts| encode(&parts)),
    ];
    prop::collection::vec(piece, 0..12).prop_map(|pieces| pieces.concat())
}

proptest! {
    // shows: PARSE-1, PARSE-3
    #[test]
    fn any_cut_of_any_bytes_gives_the_same(
        bytes in likely(), places in prop::collection::vec(any::<prop::sample::Index>(), 0..20)
    ) {
        let whole = parse(SMALL, [bytes.clone()]);
        prop_assert_eq!(&parse(SMALL, cut(&bytes, &places)), &whole);
        prop_assert_eq!(&parse(SMALL, bytes.iter().map(|b| vec![*b])), &whole);
    }

    #[test]
    fn commands_survive(
        commands in prop::collection::vec(
            prop::collection::vec(prop::collection::vec(any::<u8>(), 0..40), 1..6), 1..8),
        places in prop::collection::vec(any::<prop::sample::Index>(), 0..20)
    ) {
        let bytes: Vec<u8> = commands.iter().flat_map(|parts| encode(parts)).collect();
        let (found, error) = parse(SMALL, cut(&bytes, &places));
        prop_assert_eq!(error, None);
        let found: Vec<Vec<Vec<u8>>> = found
            .into_iter()
            .map(|parsed| match parsed {
                Parsed::Command(command) => command.from(0).map(<[u8]>::to_vec).collect(),
                Parsed::TooLarge { .. } => Vec::new(),
            })
            .collect();
        prop_assert_eq!(found, commands);
    }
}

fn one(limits: Limits, bytes: &[u8]) -> Result<Parsed, ProtocolError> {
    let (mut found, error) = parse(limits, [bytes.to_vec()]);
    error.map_or_else(|| Ok(found.remove(0)), Err)
}

#[test]
fn inline_commands_are_split_as_in_a_shell() {
    for (line, parts) in [
        ("PING\r\n", vec!["PING"]),
        ("  set k  v\n", vec!["set", "k", "v"]),
        (
            "set k \"a b\\x41\\n\\\"\"\r\n",
            vec!["set", "k", "a bA\n\""],
        ),
        ("set k 'a\\'b \\n'\r\n", vec!["set", "k", "a'b \\n"]),
        ("set \"\" ''\r\n", vec!["set", "", ""]),
        ("\r\n\n  \r\nPING\r\n", vec!["PING"]),
        ("*0\r\n*-1\r\nPING\r\n", vec!["PING"]),
        ("a\"b c\"\r\n", vec!["ab c"]),
    ] {
        let expected = Parsed::Command(Command::from_parts(&parts));
        let found = one(SMALL, line.as_bytes()).map(|parsed| match parsed {
            Parsed::Command(command) => {
                let parts: Vec<_> = command.from(0).collect();
                Parsed::Command(Command::from_parts(&parts))
            }
            other => other,
        });
        assert_eq!(found, Ok(expected), "{line:?}");
    }
}

// shows: REDIS-3
#[test]
fn broken_framing_gives_the_errors_of_redis() {
    let long = [b'x'; 100];
    for (bytes, expected) in [
        (&b"*abc\r\n"[..], "invalid multibulk length"),
        (b"*21\r\n", "invalid multibulk length"),
        (b"*+1\r\n", "invalid multibulk length"),
        (b"*1\r\n$abc\r\n", "invalid bulk length"),
        (b"*1\r\n$-1\r\n", "invalid bulk length"),
        (b"*1\r\n$201\r\n", "invalid bulk length"),
        (b"*1\r\nPING\r\n", "expected '$', got 'P'"),
        (b"PING \"a\r\n", "unbalanced quotes in request"),
        (b"PING \"a\"b\r\n", "unbalanced quotes in request"),
        (&long, "too big inline request"),
        (&[b"*", &long[..]].concat(), "too big mbulk count string"),
        (
            &[b"*1\r\n$", &long[..]].concat(),
            "too big bulk count string",
        ),
    ] {
        let error = one(SMALL, bytes).unwrap_err();
        let expected = format!("ERR Protocol error: {expected}");
        assert_eq!(String::from_utf8(error.text()).unwrap(), expected);
    }
}

// shows: PARSE-2
#[test]
fn what_is_too_large_is_skipped_and_the_stream_goes_on() {
    let argument = encode(&[&b"SET"[..], b"k", &[b'v'; 51], b"NX"]);
    let command = encode(&[&[b'a'; 40]; 12]);
    let ping = encode(&["PING"]);
    let bytes = [&argument[..], &ping, &command, &ping].concat();
    let (found, error) = parse(SMALL, bytes.chunks(7).map(<[u8]>::to_vec));
    assert_eq!(error, None);
    let describe = |parsed: &Parsed| match parsed {
        Parsed::Command(command) => format!("{command:?}"),
        Parsed::TooLarge { start, parts, why } => {
            format!("{:?} {parts} {why:?}", start.get(0).len())
        }
    };
    let found: Vec<_> = found.iter().map(describe).collect();
    let too_large = [TooLarge::Argument(51), TooLarge::Command];
    assert_eq!(
        found,
        [
            format!("3 4 {:?}", too_large[0]),
            "[\"PING\"]".to_owned(),
            format!("40 12 {:?}", too_large[1]),
            "[\"PING\"]".to_owned(),
        ]
    );
}

// shows: PARSE-2, REDIS-4
#[test]
fn an_announced_gigabyte_takes_no_memory() {
    let mut parser = Parser::new(Limits::default());
    let mut input = BytesMut::from(&b"*1048576\r\n$536870912\r\n"[..]);
    assert_eq!(parser.next(&mut input), Ok(None));
    let before = input.capacity();
    for _ in 0..1000 {
        input.extend_from_slice(&[b'x'; 4096]);
        assert_eq!(parser.next(&mut input), Ok(None));
        assert!(input.is_empty());
    }
    assert!(input.capacity() <= before.max(64 << 10));
}
