//! The error texts, and what errors of the cluster become in the protocol.
//!
//! Texts that Redis has are Redis's, because programs compare them. The others say what is wrong
//! and what to do.

use crate::parser::Command;
use crate::reply::{Effect, Failure};
use crate::table::Spec;
use crate::users::rights::Denied;
use core::time::Duration;
use pluvio_client::{ClientError, ErrorKind, FatalKind, RetryReason, TRANSACTION_STEPS_MAX, Unfit};
use pluvio_units::VALUE_MAX;

pub(crate) const SYNTAX: Failure = Failure::fixed("ERR syntax error");
pub(crate) const NOT_INTEGER: Failure =
    Failure::fixed("ERR value is not an integer or out of range");
/// Where Redis keeps the number in an `int`.
pub(crate) const NOT_INT: Failure =
    Failure::fixed("ERR value is out of range, value must between -2147483648 and 2147483647");
pub(crate) const NOT_FLOAT: Failure = Failure::fixed("ERR value is not a valid float");
pub(crate) const NOT_FINITE: Failure =
    Failure::fixed("ERR increment would produce NaN or Infinity");
pub(crate) const OVERFLOW: Failure = Failure::fixed("ERR increment or decrement would overflow");
pub(crate) const DECREMENT_OVERFLOW: Failure = Failure::fixed("ERR decrement would overflow");
pub(crate) const OFFSET: Failure = Failure::fixed("ERR offset is out of range");
pub(crate) const NO_SUCH_KEY: Failure = Failure::fixed("ERR no such key");
pub(crate) const NEGATIVE_TIMEOUT: Failure = Failure::fixed("ERR timeout is negative");
pub(crate) const BAD_TIMEOUT: Failure =
    Failure::fixed("ERR timeout is not an integer or out of range");
pub(crate) const BUSY_KEY: Failure = Failure::fixed("BUSYKEY Target key name already exists.");
pub(crate) const BAD_CURSOR: Failure = Failure::fixed("ERR invalid cursor");
pub(crate) const BAD_DATABASE: Failure = Failure::fixed("ERR DB index is out of range");
pub(crate) const CROSS_SLOT: Failure =
    Failure::fixed("CROSSSLOT Keys in request don't hash to the same slot");
pub(crate) const EXEC_ABORT: Failure =
    Failure::fixed("EXECABORT Transaction discarded because of previous errors.");
pub(crate) const EXEC_WITHOUT_MULTI: Failure = Failure::fixed("ERR EXEC without MULTI");
pub(crate) const DISCARD_WITHOUT_MULTI: Failure = Failure::fixed("ERR DISCARD without MULTI");
pub(crate) const NESTED_MULTI: Failure = Failure::fixed("ERR MULTI calls can not be nested");
/// EXEC itself was refused. As in Redis, with or without MULTI.
pub(crate) fn exec_aborted(why: &Failure) -> Failure {
    let start = b"EXECABORT Transaction discarded because of: ";
    let text = why.text();
    let text = text.strip_prefix(b"ERR ").unwrap_or(text);
    Failure::new([&start[..], text].concat())
}
pub(crate) const NOT_IN_MULTI: Failure =
    Failure::fixed("ERR Command not allowed inside a transaction");
/// Inside EXEC nothing waits.
pub(crate) const MONITOR_IN_MULTI: Failure =
    Failure::fixed("ERR MONITOR isn't allowed for DENY BLOCKING client");
pub(crate) const WATCH_IN_MULTI: Failure = Failure::fixed("ERR WATCH inside MULTI is not allowed");
pub(crate) const SAME_OBJECT: Failure =
    Failure::fixed("ERR source and destination objects are the same");
pub(crate) const NO_MOVE: Failure = Failure::fixed("ERR MOVE is not allowed in cluster mode");
pub(crate) const NO_COPY_ELSEWHERE: Failure =
    Failure::fixed("ERR Copying to another database is not allowed in cluster mode");
pub(crate) const BITOP_NOT: Failure =
    Failure::fixed("ERR BITOP NOT must be called with a single source key.");
pub(crate) const TOO_MANY_WATCHED: Failure = Failure::fixed(
    "ERR a connection watches at most 4096 keys: UNWATCH, EXEC and DISCARD let go of them",
);
/// Others changed the keys of a transaction until its time was over.
pub(crate) const CONTENDED: Failure =
    Failure::fixed("TRYAGAIN not executed: others changed the keys again and again; try again");
pub(crate) const NO_SCRIPT: Failure =
    Failure::fixed("NOSCRIPT No matching script. Please use EVAL.");
/// The number of keys of a function that is there.
pub(crate) const BAD_KEYS: Failure = Failure::fixed("ERR Bad number of keys provided");
pub(crate) const NO_FUNCTION: Failure = Failure::fixed("ERR Function not found");
pub(crate) const NO_LIBRARY: Failure = Failure::fixed("ERR Library not found");
pub(crate) const BAD_FOOTER: Failure =
    Failure::fixed("ERR DUMP payload version or checksum are wrong");
/// A script that ran until its time was over, or the time of the EXEC that it is in.
pub(crate) const SCRIPT_TOO_SLOW: Failure = Failure::fixed(
    "ERR Error running script: its time was over; it changed nothing: let it do less at a time",
);
/// A script that was stopped, or that was not to wait for its turn any more. The words before the
/// semicolon are Redis's.
pub(crate) const SCRIPT_KILLED: Failure = Failure::fixed(
    "ERR Error running script: Script killed by user with SCRIPT KILL; it changed nothing",
);
/// The same of a function.
pub(crate) const FUNCTION_KILLED: Failure = Failure::fixed(
    "ERR Error running script: Script killed by user with FUNCTION KILL; it changed nothing",
);
/// A script that waited for its turn until its time was over.
pub(crate) const NO_TURN: Failure = Failure::fixed(
    "TRYAGAIN not executed: scripts before it that name the same keys took all the time; let them \
     do less, stop them with SCRIPT KILL, or try again",
);
pub(crate) const BAD_SLOT: Failure = Failure::fixed("ERR Invalid or out of range slot");
pub(crate) const NO_SELECT: Failure = Failure::fixed("ERR SELECT is not allowed in cluster mode");
/// A database 0 that was made when there were no slot tables.
pub(crate) const SEEDED_DATABASE: Failure = Failure::fixed(
    "ERR database 0 is not hashed by slots: use the ordinary Redis port, or export table redis:0, \
     send FLUSHDB and import it",
);
pub(crate) const NO_CLUSTER: Failure =
    Failure::fixed("ERR This instance has cluster support disabled");
pub(crate) const BAD_BIT: Failure = Failure::fixed("ERR bit is not an integer or out of range");
pub(crate) const BAD_BIT_OFFSET: Failure =
    Failure::fixed("ERR bit offset is not an integer or out of range");
pub(crate) const BIT_IS_NEITHER: Failure = Failure::fixed("ERR The bit argument must be 1 or 0.");
pub(crate) const BAD_FIELD: Failure = Failure::fixed(
    "ERR Invalid bitfield type. Use something like i16 u8. Note that u64 is not supported but i64 is.",
);
pub(crate) const BAD_OVERFLOW: Failure = Failure::fixed("ERR Invalid OVERFLOW type specified");
pub(crate) const GET_ONLY: Failure =
    Failure::fixed("ERR BITFIELD_RO only supports the GET subcommand");
pub(crate) const WRONG_PASSWORD: Failure =
    Failure::fixed("WRONGPASS invalid username-password pair or user is disabled.");
pub(crate) const NO_AUTH: Failure = Failure::fixed("NOAUTH Authentication required.");
pub(crate) const NO_AUTH_HELLO: Failure = Failure::fixed(
    "NOAUTH HELLO must be called with the client already authenticated, otherwise the HELLO \
     <proto> AUTH <user> <pass> option can be used to authenticate the client and select the RESP \
     protocol version at the same time",
);
pub(crate) const NO_AUTH_IN_MULTI: Failure =
    Failure::fixed("ERR AUTH is not allowed inside a transaction: it would change the user");
/// The rules that are kept of a user are none that this version knows.
pub(crate) const UNREADABLE_USER: Failure = Failure::fixed(
    "ERR this server cannot read the user that is kept: change it at a newer server, or delete it",
);
/// More logins wait than may.
pub(crate) const TOO_MANY_LOGINS: Failure =
    Failure::fixed("ERR too many passwords wait to be checked: try again later");
pub(crate) const TOO_MANY_USERS: Failure = Failure::fixed("ERR there are at most 1000 users");
/// The first words are those that programs look at.
pub(crate) const DENIED: Failure = Failure::fixed(
    "DENIED Redis is running in protected mode because protected mode is enabled and no password \
     is set for the default user. This server answers only connections of its own machine. To let \
     others in: 1) start it with --redis-password-file; or 2) set a password from this machine: \
     ACL SETUSER default resetpass >password; or 3) if nobody but you can reach this port, start \
     it with --redis-protected-mode no, or send CONFIG SET protected-mode no from this machine.",
);
pub(crate) const OUT_OF_MEMORY: Failure =
    Failure::of_full_memory("OOM command not allowed when used memory > 'maxmemory'.");
/// Operations wait a while before they are refused so.
pub(crate) const TOO_MANY_OPERATIONS: Failure =
    Failure::fixed("BUSY not executed: the database has its quota of operations a second");
/// Where the quota would be exceeded by several servers together, and by none alone.
pub(crate) const NO_SHARE: Failure = Failure::fixed(
    "OOM not executed: the database's quota of bytes leaves too little room where the command needs it",
);
pub(crate) const TOO_FEW_REPLICAS: Failure =
    Failure::fixed("NOREPLICAS Not enough good replicas to write.");

/// A command that the user may not run.
pub(crate) fn not_permitted(denied: Denied, user: &[u8], spec: &Spec) -> Failure {
    Failure::new([b"NOPERM ", &reason(denied, user, spec, None)[..]].concat())
}

/// The same of a command of a script.
pub(crate) fn not_permitted_in_script(denied: Denied, user: &[u8], spec: &Spec) -> Failure {
    let reason = reason(denied, user, spec, None);
    Failure::new([b"ERR ACL failure in script: ", &reason[..]].concat())
}

/// The same of a command that was put into a transaction when the user had other rights.
pub(crate) fn no_longer_permitted(denied: Denied) -> Failure {
    let reason = match denied {
        Denied::Database(_) => "no permission",
        Denied::Command => "no permission to execute the command or subcommand",
        Denied::Key(_) => "no permission to touch the specified keys",
    };
    Failure::new(format!(
        "NOPERM ACLs rules changed between the moment the transaction was accumulated and the \
         EXEC call. This command is no longer allowed for the following reason: {reason}"
    ))
}

/// Why a user may not run a command. With the key or the number of the database, where it is given.
pub(crate) fn reason(denied: Denied, user: &[u8], spec: &Spec, object: Option<&[u8]>) -> Vec<u8> {
    let user = [b"User ", user, b" has no permissions to "].concat();
    match (denied, object) {
        (Denied::Command, _) => {
            let name = spec.name.as_bytes();
            [&user, b"run the '".as_slice(), name, b"' command"].concat()
        }
        (Denied::Key(_), Some(key)) => [&user, b"access the '".as_slice(), key, b"' key"].concat(),
        (Denied::Key(_), None) => b"No permissions to access a key".to_vec(),
        (Denied::Database(_), Some(number)) => {
            [&user, b"access database ".as_slice(), number].concat()
        }
        (Denied::Database(_), None) => b"No permissions to access database".to_vec(),
    }
}

/// Types that this server does not have, and how Redis's commands for them begin. Commands that it
/// has are found before anyone looks here.
const ABSENT: [(&str, &[&str]); 8] = [
    (
        "lists",
        &[
            "lindex", "linsert", "llen", "lm", "lpo", "lpush", "lrange", "lrem", "lset", "ltrim",
            "rpo", "rpush", "blm", "blpop", "brpop",
        ],
    ),
    ("sorted sets", &["z", "bz", "geo"]),
    ("streams", &["x"]),
    ("HyperLogLogs", &["pf"]),
    (
        "publish and subscribe",
        &[
            "publish",
            "spublish",
            "subscribe",
            "psubscribe",
            "ssubscribe",
        ],
    ),
    (
        "sets",
        &[
            "sadd",
            "scard",
            "sdiff",
            "sinter",
            "sismember",
            "smembers",
            "smismember",
            "smove",
            "spop",
            "srandmember",
            "srem",
            "sscan",
            "sunion",
        ],
    ),
    ("hashes", &["h"]),
    ("values that can be sorted", &["sort"]),
];

/// A script called a command that there is not.
pub(crate) fn unknown_in_script(command: &Command) -> Failure {
    let text = "ERR Unknown Redis command called from script";
    let name = String::from_utf8_lossy(command.get(0)).to_ascii_lowercase();
    let starts =
        |(_, starts): &&(&str, &[&str])| starts.iter().any(|start| name.starts_with(start));
    let is_name = name.len() <= 32 && name.bytes().all(|byte| byte.is_ascii_alphabetic());
    match ABSENT.iter().find(starts).filter(|_| is_name) {
        Some((what, _)) => Failure::new(format!("{text}: this server has no {what} ({name})")),
        None => Failure::fixed("ERR Unknown Redis command called from script"),
    }
}

/// A value that would be longer than objects may be.
pub(crate) fn too_long() -> Failure {
    Failure::new(format!(
        "ERR string exceeds maximum allowed size ({VALUE_MAX} bytes)"
    ))
}

/// A reply that would take more memory than one reply may.
pub(crate) fn reply_too_long(limit: usize) -> Failure {
    Failure::new(format!(
        "ERR the reply would be longer than {limit} bytes: ask for fewer keys at a time, or use SCAN"
    ))
}

/// Values of keys that are more than may be read for one transaction.
pub(crate) fn keys_hold_too_much(limit: usize) -> Failure {
    Failure::new(format!(
        "ERR the keys that are named hold more than {limit} bytes: name fewer at a time"
    ))
}

/// Changes that a transaction makes step by step, of more bytes than it may.
pub(crate) fn changes_too_much(limit: usize) -> Failure {
    Failure::new(format!(
        "ERR the changed values take more than {limit} bytes together: change fewer at a time"
    ))
}

/// A command, or commands together, whose commit would have more steps than a transaction may have.
/// The first words are those of a commit that is refused by the cluster.
pub(crate) fn too_many_steps(steps: usize) -> Failure {
    Failure::new(format!(
        "ERR a transaction has {steps} steps, at most {TRANSACTION_STEPS_MAX} are allowed: use \
         several"
    ))
}

/// A reply for which there was no room in the memory of all connections.
pub(crate) fn connections_are_full() -> Failure {
    Failure::fixed(
        "TRYAGAIN not executed: the connections of this server hold too much memory; let their \
         clients take their replies, or raise --redis-memory",
    )
}

/// The last words to a connection that is closed because of all it held most memory.
pub(crate) fn evicted(bound: usize) -> Failure {
    Failure::new(format!(
        "OOM this connection is closed: the connections of this server held {bound} bytes \
         (--redis-memory), and this one most of them"
    ))
}

/// A word that EXPIRE does not know.
pub(crate) fn unsupported_option(word: &[u8]) -> Failure {
    Failure::new([b"ERR Unsupported option ".as_slice(), word].concat())
}

/// [`bad_expiry`] of GETEX.
pub(crate) const BAD_EXPIRY_OF_GETEX: Failure =
    Failure::fixed("ERR invalid expire time in 'getex' command");

/// Conditions of EXPIRE that exclude each other.
pub(crate) const NX_AND_OTHERS: Failure =
    Failure::fixed("ERR NX and XX, GT or LT options at the same time are not compatible");
/// See [`NX_AND_OTHERS`].
pub(crate) const GT_AND_LT: Failure =
    Failure::fixed("ERR GT and LT options at the same time are not compatible");

/// An expiry time that Redis refuses too.
pub(crate) fn bad_expiry(command: &str) -> Failure {
    Failure::new(format!("ERR invalid expire time in '{command}' command"))
}

/// Why a value does not allow a change; `is_decimal` where a decimal number was to be added.
pub(crate) fn of_unfit(is_decimal: bool, unfit: Unfit) -> Failure {
    match (unfit, is_decimal) {
        (Unfit::NotANumber, false) => NOT_INTEGER,
        (Unfit::NotANumber, true) => NOT_FLOAT,
        (Unfit::Overflow, false) => OVERFLOW,
        (Unfit::Overflow, true) => NOT_FINITE,
        (Unfit::TooLong, _) => too_long(),
    }
}

/// More operations than one BITFIELD may have.
pub(crate) fn too_many_operations(limit: usize) -> Failure {
    Failure::new(format!(
        "ERR a BITFIELD has at most {limit} operations: split it into several"
    ))
}

/// What an error of the cluster becomes: `ERR` when the command may have been executed. Clients
/// send what was answered with `TRYAGAIN` again by themselves.
pub(crate) fn of_client(error: &ClientError) -> Failure {
    if error.maybe_executed() {
        let text = format!("ERR it is not known whether the command was executed: {error}");
        return Failure::new(text).with_effect(Effect::Unknown);
    }
    match error.retry_reason() {
        Some(RetryReason::MemoryFull) => return OUT_OF_MEMORY,
        Some(RetryReason::TooFewBackups) => return TOO_FEW_REPLICAS,
        Some(RetryReason::QuotaOperations) => return TOO_MANY_OPERATIONS,
        Some(RetryReason::QuotaShare) => return NO_SHARE,
        _ => {}
    }
    match error.kind() {
        // The prefix of a full memory: programs know that deleting helps.
        ErrorKind::OverQuota => Failure::new(format!("OOM {error}")),
        ErrorKind::TimedOut => Failure::new(format!(
            "TRYAGAIN the cluster did not do it in time: {error}"
        )),
        // Servers have different limits: the error names the one that counts.
        ErrorKind::BadArgument if error.fatal_kind() == Some(FatalKind::ValueTooLong) => {
            Failure::new(format!("ERR string exceeds maximum allowed size: {error}"))
        }
        _ => Failure::new(format!("ERR {error}")),
    }
}

/// An executed command whose outcome did not become durable in time.
pub(crate) fn not_durable(limit: Duration, is_change: bool) -> Failure {
    of_client(&ClientError::TimedOut {
        limit,
        reason: None,
        last: "it did not become durable".to_owned(),
        maybe_executed: is_change,
    })
}

/// [`of_client`] for finding or creating a table: whatever became of that, nobody was asked for the
/// command itself.
pub(crate) fn of_table(error: ClientError) -> Failure {
    of_client(&error.into_not_executed())
}

/// Whether it is not known if the command was executed.
pub(crate) fn leaves_doubt(failure: &Failure) -> bool {
    failure.effect() == Effect::Unknown
}

/// The command was not executed, because of one before it in the same pipeline.
pub(crate) const AFTER_DOUBT: Failure = Failure::fixed(
    "TRYAGAIN not executed: it is not known whether an earlier command of the pipeline was",
);

/// The error of several that says most of what became of them: one that leaves doubt, else the
/// first.
pub(crate) fn worst<'a>(
    mut errors: impl Iterator<Item = &'a ClientError> + Clone,
) -> Option<&'a ClientError> {
    let doubtful = errors.clone().find(|error| error.maybe_executed());
    doubtful.or_else(|| errors.next())
}

/// The failure of a command that has changed some of its keys: clients are not to send it again by
/// themselves. One that leaves doubt says so already, and what became of the others is not known.
pub(crate) fn in_part(failure: Failure) -> Failure {
    if leaves_doubt(&failure) {
        return failure;
    }
    let start = b"ERR some of the keys were changed, others not: ";
    // Words that would say that nothing was done.
    let misleading = [
        b"TRYAGAIN ".as_slice(),
        b"BUSY ",
        b"ERR ",
        b"not executed: ",
    ];
    let rest = misleading.iter().fold(failure.text(), |text, words| {
        text.strip_prefix(*words).unwrap_or(text)
    });
    let told = failure.with_text([start.as_slice(), rest].concat());
    told.with_effect(Effect::Part)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(reason: Option<RetryReason>, maybe_executed: bool) -> String {
        let failure = of_client(&ClientError::TimedOut {
            limit: Duration::from_secs(10),
            reason,
            last: "x".into(),
            maybe_executed,
        });
        String::from_utf8(failure.text().to_vec()).unwrap()
    }

    #[test]
    fn waiting_in_vain_gets_the_prefix_clients_know() {
        assert_eq!(
            text(Some(RetryReason::MemoryFull), false),
            "OOM command not allowed when used memory > 'maxmemory'."
        );
        assert_eq!(
            text(Some(RetryReason::TooFewBackups), false),
            "NOREPLICAS Not enough good replicas to write."
        );
        assert!(text(Some(RetryReason::QuotaOperations), false).starts_with("BUSY not executed"));
        assert!(text(Some(RetryReason::QuotaShare), false).starts_with("OOM not executed"));
        let full = of_client(&ClientError::Refused {
            kind: FatalKind::QuotaFull,
            message: "table redis:0 has its quota of 10 bytes".into(),
        });
        assert_eq!(full.text(), b"OOM table redis:0 has its quota of 10 bytes");
        for reason in [Some(RetryReason::TabletNotReady), None] {
            assert!(text(reason, false).starts_with("TRYAGAIN "), "{reason:?}");
        }
    }

    #[test]
    fn what_may_have_been_executed_says_so_whatever_was_refused() {
        for reason in [
            Some(RetryReason::MemoryFull),
            Some(RetryReason::TooFewBackups),
            Some(RetryReason::TabletNotReady),
            None,
        ] {
            let text = text(reason, true);
            let expected = "ERR it is not known whether the command was executed: ";
            assert!(text.starts_with(expected), "{text}");
        }
    }

    #[test]
    fn what_was_done_in_part_is_not_to_be_sent_again() {
        for (failure, cause) in [
            (Failure::fixed("TRYAGAIN later"), "later"),
            (
                OUT_OF_MEMORY,
                "OOM command not allowed when used memory > 'maxmemory'.",
            ),
            (
                TOO_MANY_OPERATIONS,
                "the database has its quota of operations a second",
            ),
            (Failure::fixed("ERR a mistake"), "a mistake"),
        ] {
            let told = in_part(failure.clone());
            let expected = format!("ERR some of the keys were changed, others not: {cause}");
            assert_eq!(told.text(), expected.as_bytes());
            assert_eq!(told.effect(), Effect::Part);
            // Those behind it need not wait for memory, either.
            assert_eq!(told.is_of_full_memory(), failure.is_of_full_memory());
        }
        // That is more than what the others met.
        let doubtful = not_durable(Duration::from_secs(10), true);
        assert!(leaves_doubt(&doubtful));
        assert_eq!(in_part(doubtful.clone()), doubtful);
    }

    #[test]
    fn the_same_text_alone_is_no_such_failure() {
        for failure in [OUT_OF_MEMORY, not_durable(Duration::from_secs(10), true)] {
            let feigned = Failure::new(failure.text());
            assert!(!leaves_doubt(&feigned) && !feigned.is_of_full_memory());
            assert_ne!(feigned, failure);
        }
    }
}
