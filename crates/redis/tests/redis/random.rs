//! Random commands, often right, sometimes wrong.

use pluvio_units::KeyHash;

/// Numbers that depend on nothing but the seed.
pub struct Dice(pub u64);

impl Dice {
    pub fn below(&mut self, bound: usize) -> usize {
        self.0 += 1;
        let hash = KeyHash::of(self.0, b"dice").0;
        usize::try_from(hash % bound as u64).unwrap()
    }

    pub fn one<'a, T: ?Sized>(&mut self, of: &[&'a T]) -> &'a T {
        of[self.below(of.len())]
    }
}

pub type Parts = Vec<Vec<u8>>;

pub fn words(text: &str) -> Parts {
    text.split(' ').map(|w| w.as_bytes().to_vec()).collect()
}

pub const KEYS: [&str; 6] = ["a", "b", "c", "d", "", "k\u{e9}y"];
const VALUES: [&str; 14] = [
    "",
    "1",
    "-5",
    "10",
    "0",
    "9223372036854775807",
    "-9223372036854775808",
    "3.5",
    "abc",
    "1e3",
    "hello world",
    "\0\r\n",
    " 1",
    "0.1",
];
const INTEGERS: [&str; 12] = [
    "0",
    "1",
    "-1",
    "5",
    "-5",
    "100",
    "9223372036854775807",
    "-9223372036854775808",
    "x",
    "",
    "1.5",
    "9223372036854775808",
];
const FLOATS: [&str; 10] = [
    "0", "0.1", "-0.5", "1e2", "3", "abc", "", "1.", ".5", "-3.25",
];
const SMALL: [&str; 8] = ["0", "1", "3", "-1", "-3", "7", "20", "x"];

const BIT_TYPES: [&str; 12] = [
    "u1", "u4", "u8", "u63", "i1", "i5", "i8", "i64", "u64", "i65", "u0", "x",
];
const BIT_OFFSETS: [&str; 10] = [
    "0",
    "3",
    "7",
    "64",
    "#0",
    "#1",
    "#2",
    "-1",
    "#x",
    "4294967296",
];
/// Ends of spans. Where a key does not exist, Redis 7.0 does not look at wrong ones.
const PLACES: [&str; 10] = [
    "0",
    "1",
    "-1",
    "2",
    "-2",
    "9",
    "-9",
    "100",
    "-100",
    "9223372036854775807",
];

/// BITFIELD or BITFIELD_RO of a key.
fn fields(dice: &mut Dice, key: &[u8]) -> Parts {
    let name = dice.one(&["BITFIELD", "BITFIELD", "BITFIELD", "BITFIELD_RO"]);
    let mut parts = vec![name.as_bytes().to_vec(), key.to_vec()];
    for _ in 0..=dice.below(3) {
        let operation = dice.one(&["GET", "SET", "INCRBY", "incrby", "OVERFLOW", "overflow"]);
        let mut words = vec![operation];
        if operation.eq_ignore_ascii_case("overflow") {
            words.push(dice.one(&["WRAP", "sat", "FAIL", "SAT", "fail", "FOO"]));
        } else {
            // Mostly of types and at offsets that there can be.
            let limit = if dice.below(4) == 0 { 0 } else { 4 };
            words.push(dice.one(&BIT_TYPES[..BIT_TYPES.len() - limit]));
            words.push(dice.one(&BIT_OFFSETS[..BIT_OFFSETS.len() - limit * 3 / 4]));
            if operation != "GET" {
                words.push(dice.one(&INTEGERS[..INTEGERS.len() - limit]));
            }
        }
        parts.extend(words.iter().map(|word| word.as_bytes().to_vec()));
    }
    parts
}

/// A command on bits.
fn on_bits(dice: &mut Dice, key: Vec<u8>) -> Parts {
    let name = |text: &str| text.as_bytes().to_vec();
    let (bit, offset) = (dice.one(&["0", "1"]), dice.one(&BIT_OFFSETS));
    let mut parts = match dice.below(6) {
        0 => {
            return vec![
                name("SETBIT"),
                key,
                name(offset),
                name(dice.one(&["0", "1", "2"])),
            ];
        }
        1 => return vec![name("GETBIT"), key, name(offset)],
        2 => vec![name("BITCOUNT"), key],
        3 => vec![name("BITPOS"), key, name(bit)],
        _ => return fields(dice, &key),
    };
    match dice.below(4) {
        0 => {}
        1 if parts[0] == b"BITPOS" => parts.push(name(dice.one(&PLACES))),
        more => {
            let (start, end) = (dice.one(&PLACES), dice.one(&PLACES));
            parts.extend([name(start), name(end)]);
            if more == 3 {
                parts.push(name(dice.one(&["BIT", "bit", "BYTE"])));
            }
        }
    }
    parts
}

/// Seconds far away, so that nothing expires while replies are compared; and times that are past
/// wherever the clock stands.
const SECONDS: [&str; 4] = ["9999999991", "9999999992", "9999999993", "1"];

/// A command on when a key expires, by times that do not depend on the clock.
fn on_deadlines(dice: &mut Dice, key: Vec<u8>, value: Vec<u8>) -> Parts {
    let name = |text: &str| text.as_bytes().to_vec();
    let seconds = name(dice.one(&SECONDS));
    let far = name(dice.one(&SECONDS[..3]));
    match dice.below(10) {
        0 => vec![name("SET"), key, value, name("EXAT"), far],
        1 => vec![name("SET"), key, value, name("KEEPTTL"), name("GET")],
        2 => vec![name("GETEX"), key, name("EXAT"), far],
        3 => vec![name("GETEX"), key, name("PERSIST")],
        4 => vec![name("PERSIST"), key],
        5 => vec![name("EXPIRETIME"), key],
        6 => vec![name("PEXPIRETIME"), key],
        7 => vec![name("PEXPIREAT"), key, [&far[..], b"123"].concat()],
        8 => vec![
            name(dice.one(&["EXPIRE", "PEXPIRE"])),
            key,
            name(dice.one(&["-1", "0", "x"])),
        ],
        _ => {
            let mut parts = vec![name("EXPIREAT"), key, seconds];
            for _ in 0..dice.below(3) {
                parts.push(name(dice.one(&["NX", "XX", "GT", "LT", "lt", "FOO"])));
            }
            parts
        }
    }
}

/// A command on several keys that reads first and then decides.
fn on_several(dice: &mut Dice) -> Parts {
    let name = |text: &str| text.as_bytes().to_vec();
    let mut key = || dice.one(&KEYS).as_bytes().to_vec();
    let (key, other, third) = (key(), key(), key());
    let database = name(dice.one(&["0", "1", "2", "16", "x"]));
    match dice.below(7) {
        0 => vec![name("RENAME"), key, other],
        1 => vec![name("RENAMENX"), key, other],
        2 => {
            let mut parts = vec![name("COPY"), key, other];
            if dice.below(3) == 0 {
                parts.extend([name("DB"), database]);
            }
            if dice.below(2) == 0 {
                parts.push(name(dice.one(&["REPLACE", "FOO"])));
            }
            parts
        }
        3 => vec![name("MSETNX"), key, name("5"), other, name("six")],
        4 => vec![name("MOVE"), key, database],
        _ => {
            let operation = name(dice.one(&["AND", "or", "XOR", "NOT", "FOO"]));
            let mut parts = vec![name("BITOP"), operation, key, other];
            if dice.below(2) == 0 {
                parts.push(third);
            }
            parts
        }
    }
}

/// A command that may stand in a transaction.
pub fn in_transactions(dice: &mut Dice) -> Parts {
    match dice.below(4) {
        0 => on_several(dice),
        _ => loop {
            let parts = command(dice);
            if parts[0] != b"INCRBYFLOAT" {
                break parts;
            }
        },
    }
}

/// A command, often right, sometimes wrong.
pub fn command(dice: &mut Dice) -> Parts {
    let key = dice.one(&KEYS).as_bytes().to_vec();
    let other = dice.one(&KEYS).as_bytes().to_vec();
    let value = dice.one(&VALUES).as_bytes().to_vec();
    let integer = dice.one(&INTEGERS).as_bytes().to_vec();
    let small = dice.one(&SMALL).as_bytes().to_vec();
    let second = dice.one(&SMALL).as_bytes().to_vec();
    let float = dice.one(&FLOATS).as_bytes().to_vec();
    let name = |text: &str| text.as_bytes().to_vec();
    let mut parts = match dice.below(54) {
        0..4 => vec![name("SET"), key, value],
        4 => {
            let option = ["NX", "XX", "GET", "KEEPTTL", "nx", "FOO", "EX"];
            let mut parts = vec![name("SET"), key, value];
            for _ in 0..=dice.below(2) {
                parts.push(name(dice.one(&option)));
            }
            parts
        }
        5 => vec![name("SETNX"), key, value],
        6 => vec![name("GETSET"), key, value],
        7 => vec![name("GETDEL"), key],
        8 => vec![name("GETEX"), key],
        9 => vec![name("APPEND"), key, value],
        10 => vec![name("STRLEN"), key],
        11 => vec![name("GETRANGE"), key, small, second],
        12 => vec![name("SETRANGE"), key, small, value],
        13 => vec![name("INCR"), key],
        14 => vec![name("DECR"), key],
        15 => vec![name("INCRBY"), key, integer],
        16 => vec![name("DECRBY"), key, integer],
        17 => vec![name("INCRBYFLOAT"), key, float],
        18 => vec![name("MGET"), key, other],
        19 => vec![name("MSET"), key, value, other, integer],
        20 => vec![name("MSETNX"), key, value],
        21 => vec![name("DEL"), key, other],
        22 => vec![name("UNLINK"), key],
        23 => vec![name("EXISTS"), key, other],
        24 => vec![name("TOUCH"), key, other],
        25 => vec![name("TYPE"), key],
        26 => vec![name("RENAME"), key.clone(), key],
        27 => vec![name("RENAMENX"), key.clone(), key],
        28 => vec![name("DBSIZE")],
        29 => vec![name("SELECT"), small],
        30 => vec![name(dice.one(&["FLUSHDB", "FLUSHALL"]))],
        31 => vec![name("ECHO"), value],
        32 => vec![name("PING")],
        33 => vec![name("GET"), key],
        34 => vec![name("SUBSTR"), key, small, second],
        35 => vec![name("OBJECT"), name("ENCODING"), name("nokey")],
        36 => vec![
            name(dice.one(&["nosuch", "client", "object", "config", "COMMAND", "slowlog"])),
            key,
            value,
        ],
        37..43 => return on_bits(dice, key),
        43..51 => on_deadlines(dice, key, value),
        _ => vec![name("GET"), key],
    };
    // Sometimes the number of arguments is wrong.
    match dice.below(40) {
        0 => {
            parts.pop();
        }
        1 => parts.push(b"more".to_vec()),
        _ => {}
    }
    if parts.is_empty() || (parts.len() == 1 && parts[0].eq_ignore_ascii_case(b"command")) {
        parts = words("PING");
    }
    parts
}
