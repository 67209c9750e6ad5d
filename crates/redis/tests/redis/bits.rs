//! Commands on bits and their exact replies.

use crate::bench::Bench;
use crate::updates::converse;

const BAD_OFFSET: &str = "-ERR bit offset is not an integer or out of range\r\n";
const BAD_BIT: &str = "-ERR bit is not an integer or out of range\r\n";
const BAD_TYPE: &str = "-ERR Invalid bitfield type. Use something like i16 u8. Note that u64 is \
                        not supported but i64 is.\r\n";
const NOT_INTEGER: &str = "-ERR value is not an integer or out of range\r\n";
const SYNTAX: &str = "-ERR syntax error\r\n";
const TOO_LONG: &str = "-ERR string exceeds maximum allowed size (1048576 bytes)\r\n";

#[test]
fn single_bits_are_set_and_read() {
    let mut bench = Bench::new();
    let mut c = bench.connect();
    converse(
        &mut c,
        &[
            ("GETBIT k 0", ":0\r\n"),
            ("EXISTS k", ":0\r\n"),
            ("SETBIT k 7 1", ":0\r\n"),
            ("SETBIT k 7 1", ":1\r\n"),
            ("GET k", "$1\r\n\u{1}\r\n"),
            ("GETBIT k 0", ":0\r\n"),
            ("GETBIT k 7", ":1\r\n"),
            ("GETBIT k 100", ":0\r\n"),
            ("GETBIT k 4294967295", ":0\r\n"),
            ("SETBIT k 7 0", ":1\r\n"),
            ("GET k", "$1\r\n\0\r\n"),
            ("SETBIT k 17 0", ":0\r\n"),
            ("STRLEN k", ":3\r\n"),
            ("SET k A", "+OK\r\n"),
            ("SETBIT k 6 1", ":0\r\n"),
            ("GET k", "$1\r\nC\r\n"),
            ("SETBIT k -1 1", BAD_OFFSET),
            ("SETBIT k x 1", BAD_OFFSET),
            ("SETBIT k 01 1", BAD_OFFSET),
            ("SETBIT k #1 1", BAD_OFFSET),
            ("SETBIT k 4294967296 1", BAD_OFFSET),
            ("SETBIT k 9223372036854775808 1", BAD_OFFSET),
            ("SETBIT k x 2", BAD_OFFSET),
            ("SETBIT k 0 2", BAD_BIT),
            ("SETBIT k 0 -1", BAD_BIT),
            ("SETBIT k 0 x", BAD_BIT),
            ("SETBIT k 4294967295 2", BAD_BIT),
            ("GETBIT k x", BAD_OFFSET),
            ("GETBIT k -1", BAD_OFFSET),
            ("GETBIT k #0", BAD_OFFSET),
            ("GETBIT k 4294967296", BAD_OFFSET),
            ("SETBIT k 8388608 1", TOO_LONG),
            ("SETBIT k 4294967295 0", TOO_LONG),
            ("GET k", "$1\r\nC\r\n"),
            ("SETBIT k 8388607 1", ":0\r\n"),
            ("STRLEN k", ":1048576\r\n"),
            ("GETBIT k 8388607", ":1\r\n"),
            ("BITCOUNT k", ":4\r\n"),
        ],
    );
}

#[test]
fn bits_are_counted() {
    let mut bench = Bench::new();
    let mut c = bench.connect();
    converse(
        &mut c,
        &[
            ("SET k foobar", "+OK\r\n"),
            ("BITCOUNT k", ":26\r\n"),
            ("BITCOUNT k 0 0", ":4\r\n"),
            ("BITCOUNT k 1 1", ":6\r\n"),
            ("BITCOUNT k 1 1 BYTE", ":6\r\n"),
            ("BITCOUNT k 5 30 BIT", ":17\r\n"),
            ("BITCOUNT k 5 30 bit", ":17\r\n"),
            ("BITCOUNT k 0 -5", ":10\r\n"),
            ("BITCOUNT k -2 -1 byte", ":7\r\n"),
            ("BITCOUNT k -1 -2", ":0\r\n"),
            ("BITCOUNT k 6 9", ":0\r\n"),
            ("BITCOUNT k 0 9223372036854775807", ":26\r\n"),
            ("BITCOUNT k 0", SYNTAX),
            ("BITCOUNT k 0 1 FOO", SYNTAX),
            ("BITCOUNT k 0 1 BIT more", SYNTAX),
            ("BITCOUNT k x 1", NOT_INTEGER),
            ("BITCOUNT k 1 x FOO", NOT_INTEGER),
            ("BITCOUNT none", ":0\r\n"),
            ("BITCOUNT none 0 -1 BIT", ":0\r\n"),
            ("BITCOUNT none x 1", NOT_INTEGER),
            ("SET k ", "+OK\r\n"),
            ("BITCOUNT k", ":0\r\n"),
            ("BITCOUNT k 0 -1", ":0\r\n"),
        ],
    );
}

#[test]
fn the_first_bit_is_found() {
    let mut bench = Bench::new();
    let mut c = bench.connect();
    for (value, command, reply) in [
        (&b"\xff\xf0\x00"[..], "BITPOS k 0", ":12\r\n"),
        (b"\x00\xff\xf0", "BITPOS k 1", ":8\r\n"),
        (b"\x00\xff\xf0", "BITPOS k 1 0", ":8\r\n"),
        (b"\x00\xff\xf0", "BITPOS k 1 2", ":16\r\n"),
        (b"\x00\xff\xf0", "BITPOS k 1 -1", ":16\r\n"),
        (b"\x00\xff\xf0", "BITPOS k 1 2 -1 BYTE", ":16\r\n"),
        (b"\x00\xff\xf0", "BITPOS k 1 7 15 BIT", ":8\r\n"),
        (b"\x00\xff\xf0", "BITPOS k 0 9 -1 bit", ":20\r\n"),
        (b"\x00\x00\x00", "BITPOS k 1", ":-1\r\n"),
        (b"\x00\x00\x00", "BITPOS k 1 7 -3 BIT", ":-1\r\n"),
        (b"\x00\x00\x00", "BITPOS k 0 3", ":-1\r\n"),
        (b"\x00\x00\x00", "BITPOS k 0 2 1", ":-1\r\n"),
        // Behind the end everything is 0, unless an end is given.
        (b"\xff\xff\xff", "BITPOS k 0", ":24\r\n"),
        (b"\xff\xff\xff", "BITPOS k 0 1", ":24\r\n"),
        (b"\xff\xff\xff", "BITPOS k 0 0 -1", ":-1\r\n"),
        (b"\xff\xff\xff", "BITPOS k 0 0 100 BIT", ":-1\r\n"),
        (b"", "BITPOS k 0", ":-1\r\n"),
        (b"", "BITPOS k 1", ":-1\r\n"),
        (b"x", "BITPOS none 0", ":0\r\n"),
        (b"x", "BITPOS none 1", ":-1\r\n"),
        (b"x", "BITPOS none 0 5", ":0\r\n"),
        (b"x", "BITPOS none 0 5 6 BIT", ":0\r\n"),
        (b"x", "BITPOS none 1 0 -1", ":-1\r\n"),
        (
            b"x",
            "BITPOS k 2",
            "-ERR The bit argument must be 1 or 0.\r\n",
        ),
        (
            b"x",
            "BITPOS k -1 x",
            "-ERR The bit argument must be 1 or 0.\r\n",
        ),
        (b"x", "BITPOS k x", NOT_INTEGER),
        (b"x", "BITPOS none 0 x", NOT_INTEGER),
        (b"x", "BITPOS k 0 0 x", NOT_INTEGER),
        (b"x", "BITPOS k 0 0 1 FOO", SYNTAX),
        (b"x", "BITPOS k 0 0 x FOO", SYNTAX),
        (b"x", "BITPOS k 0 x 1 FOO", NOT_INTEGER),
        (b"x", "BITPOS k 0 0 x BIT", NOT_INTEGER),
        (b"x", "BITPOS k 0 x 1 BIT more", SYNTAX),
    ] {
        assert_eq!(c.call(&[b"SET", &b"k"[..], value]), b"+OK\r\n");
        assert_eq!(c.say(command), reply, "{command} of {value:?}");
    }
}

#[test]
fn fields_of_bits_are_read_set_and_added_to() {
    let mut bench = Bench::new();
    let mut c = bench.connect();
    converse(
        &mut c,
        &[
            ("BITFIELD k", "*0\r\n"),
            ("BITFIELD_RO k", "*0\r\n"),
            ("BITFIELD k OVERFLOW SAT", "*0\r\n"),
            ("BITFIELD k GET u8 0 GET i64 100", "*2\r\n:0\r\n:0\r\n"),
            ("EXISTS k", ":0\r\n"),
            ("BITFIELD a INCRBY i5 100 1 GET u4 0", "*2\r\n:1\r\n:0\r\n"),
            ("STRLEN a", ":14\r\n"),
            (
                "BITFIELD k SET i8 #0 100 SET i8 #1 200",
                "*2\r\n:0\r\n:0\r\n",
            ),
        ],
    );
    assert_eq!(c.call(&["GET", "k"]), b"$2\r\nd\xc8\r\n");
    converse(
        &mut c,
        &[
            (
                "BITFIELD k GET i8 #1 GET u8 8 GET u4 #1",
                "*3\r\n:-56\r\n:200\r\n:4\r\n",
            ),
            ("BITFIELD_RO k get u8 8 overflow wrap", "*1\r\n:200\r\n"),
            (
                "BITFIELD k set u8 0 65 get u8 0 set u8 0 66",
                "*3\r\n:100\r\n:65\r\n:65\r\n",
            ),
            ("DEL k", ":1\r\n"),
            (
                "BITFIELD k INCRBY u2 100 1 OVERFLOW SAT INCRBY u2 102 1",
                "*2\r\n:1\r\n:1\r\n",
            ),
            (
                "BITFIELD k INCRBY u2 100 1 OVERFLOW SAT INCRBY u2 102 1",
                "*2\r\n:2\r\n:2\r\n",
            ),
            (
                "BITFIELD k INCRBY u2 100 1 OVERFLOW SAT INCRBY u2 102 1",
                "*2\r\n:3\r\n:3\r\n",
            ),
            (
                "BITFIELD k INCRBY u2 100 1 OVERFLOW SAT INCRBY u2 102 1",
                "*2\r\n:0\r\n:3\r\n",
            ),
            ("BITFIELD k OVERFLOW FAIL INCRBY u2 102 1", "*1\r\n$-1\r\n"),
            (
                "BITFIELD k overflow fail set u2 102 4 overflow sat set u2 102 4 overflow wrap \
                 incrby u2 102 1",
                "*3\r\n$-1\r\n:3\r\n:0\r\n",
            ),
            (
                "BITFIELD k SET i64 0 -9223372036854775808 GET i64 0",
                "*2\r\n:0\r\n:-9223372036854775808\r\n",
            ),
            (
                "BITFIELD k SET u63 0 9223372036854775807 GET u63 0",
                "*2\r\n:4611686018427387904\r\n:9223372036854775807\r\n",
            ),
        ],
    );
    c.say("HELLO 3");
    let fail = "BITFIELD k OVERFLOW FAIL SET u1 0 2";
    assert_eq!(c.say(fail), "*1\r\n_\r\n");
}

#[test]
fn mistakes_in_fields_of_bits_are_told_in_the_words_of_redis() {
    let mut bench = Bench::new();
    let mut c = bench.connect();
    converse(
        &mut c,
        &[
            ("BITFIELD k FOO", SYNTAX),
            ("BITFIELD k GET", SYNTAX),
            ("BITFIELD k GET u8", SYNTAX),
            ("BITFIELD k SET u8 0", SYNTAX),
            ("BITFIELD k INCRBY u64 0", SYNTAX),
            ("BITFIELD k OVERFLOW", SYNTAX),
            ("BITFIELD k GET u8 0 1", SYNTAX),
            (
                "BITFIELD k OVERFLOW FOO",
                "-ERR Invalid OVERFLOW type specified\r\n",
            ),
            (
                "BITFIELD k OVERFLOW GET u8 0",
                "-ERR Invalid OVERFLOW type specified\r\n",
            ),
            ("BITFIELD k GET u64 0", BAD_TYPE),
            ("BITFIELD k GET i65 0", BAD_TYPE),
            ("BITFIELD k GET u0 0", BAD_TYPE),
            ("BITFIELD k GET i-1 0", BAD_TYPE),
            ("BITFIELD k GET U8 0", BAD_TYPE),
            ("BITFIELD k GET x8 0", BAD_TYPE),
            ("BITFIELD k GET i 0", BAD_TYPE),
            ("BITFIELD k GET  0", BAD_TYPE),
            ("BITFIELD k GET u08 0", BAD_TYPE),
            ("BITFIELD k SET u64 x x", BAD_TYPE),
            ("BITFIELD k GET u8 -1", BAD_OFFSET),
            ("BITFIELD k GET u8 x", BAD_OFFSET),
            ("BITFIELD k GET u8 #", BAD_OFFSET),
            ("BITFIELD k GET u8 #x", BAD_OFFSET),
            ("BITFIELD k GET u8 #-1", BAD_OFFSET),
            ("BITFIELD k GET u8 4294967295", "*1\r\n:0\r\n"),
            ("BITFIELD k GET u8 4294967296", BAD_OFFSET),
            ("BITFIELD k GET u8 #536870911", "*1\r\n:0\r\n"),
            ("BITFIELD k GET u8 #536870912", BAD_OFFSET),
            ("BITFIELD k GET i64 #9223372036854775807", BAD_OFFSET),
            ("BITFIELD k SET u8 x x", BAD_OFFSET),
            ("BITFIELD k SET u8 0 x", NOT_INTEGER),
            ("BITFIELD k INCRBY u8 0 9223372036854775808", NOT_INTEGER),
            ("BITFIELD_RO k SET u8 0 x", NOT_INTEGER),
            (
                "BITFIELD_RO k GET u8 0 SET u8 0 1",
                "-ERR BITFIELD_RO only supports the GET subcommand\r\n",
            ),
            (
                "BITFIELD_RO k INCRBY u8 0 0",
                "-ERR BITFIELD_RO only supports the GET subcommand\r\n",
            ),
            ("BITFIELD k SET u8 0 1 SET u8 8388608 1", TOO_LONG),
            ("BITFIELD k OVERFLOW FAIL SET u1 4294967295 2", TOO_LONG),
            ("EXISTS k", ":0\r\n"),
            (
                "BITFIELD",
                "-ERR wrong number of arguments for 'bitfield' command\r\n",
            ),
            (
                "BITFIELD_RO",
                "-ERR wrong number of arguments for 'bitfield_ro' command\r\n",
            ),
            (
                "SETBIT k 0",
                "-ERR wrong number of arguments for 'setbit' command\r\n",
            ),
            (
                "GETBIT k",
                "-ERR wrong number of arguments for 'getbit' command\r\n",
            ),
            (
                "BITPOS k",
                "-ERR wrong number of arguments for 'bitpos' command\r\n",
            ),
            (
                "BITCOUNT",
                "-ERR wrong number of arguments for 'bitcount' command\r\n",
            ),
        ],
    );
}

#[test]
fn the_number_of_operations_on_bits_is_bounded() {
    let mut bench = Bench::new();
    let mut c = bench.connect();
    let command = |operation: &str, count| format!("BITFIELD k{}", operation.repeat(count));
    let replies = c.say(&command(" INCRBY u16 0 1", 4096));
    assert!(replies.starts_with("*4096\r\n:1\r\n:2\r\n") && replies.ends_with(":4096\r\n"));
    let replies = c.say(&command(" GET u16 0", 4096));
    assert!(replies.starts_with("*4096\r\n:4096\r\n"));
    for operation in [" INCRBY u16 0 1", " GET u16 0"] {
        assert_eq!(
            c.say(&command(operation, 4097)),
            "-ERR a BITFIELD has at most 4096 operations: split it into several\r\n"
        );
    }
    assert_eq!(c.say("BITFIELD k GET u16 0"), "*1\r\n:4096\r\n");
}
