//! DEBUG, for tests: refused unless the options of the front end allow it.

use super::{CommandResult, is_there};
use crate::database::DatabaseId;
use crate::failure;
use crate::parser::Command;
use crate::reply::{Failure, Reply};
use crate::shared::Core;
use core::time::Duration;
use pluvio_client::{Output, Projection};

/// Longest DEBUG SLEEP.
const SLEEP_MAX: Duration = Duration::from_secs(60);

const NOT_ALLOWED: Failure = Failure::fixed(
    "ERR DEBUG command not allowed. If the enable-debug-command option is set to \"local\", you \
     can run it from a local connection, otherwise you need to set this option in the \
     configuration file, and then restart the server.",
);
const NO_JMAP: Failure = Failure::fixed("ERR DEBUG JMAP is not supported");

pub(super) async fn debug(core: &Core, db: DatabaseId, command: &Command) -> CommandResult {
    if !core.options().debug {
        return Err(NOT_ALLOWED);
    }
    let wrong = || {
        let text = [
            b"ERR unknown subcommand or wrong number of arguments for '",
            command.get(1),
            b"'. Try DEBUG HELP.",
        ];
        Failure::new(text.concat())
    };
    match command.len() {
        2 if command.is(1, "JMAP") => Err(NO_JMAP),
        2 if command.is(1, "HELP") => Ok(Reply::Array(
            [
                "DEBUG <subcommand> [<arg> [value] [opt] ...]. Subcommands are:",
                "OBJECT <key>",
                "    Tells what is known of a value.",
                "SET-ACTIVE-EXPIRE <0|1>",
                "    Accepted: keys that are past are always cleared away.",
                "SLEEP <seconds>",
                "    Answers that much later; other connections are served.",
            ]
            .map(Reply::Status)
            .to_vec(),
        )),
        3 if command.is(1, "SLEEP") => {
            let seconds = core::str::from_utf8(command.get(2)).ok();
            let seconds: Option<f64> = seconds.and_then(|text| text.parse().ok());
            let time = seconds.and_then(|seconds| Duration::try_from_secs_f64(seconds).ok());
            let time = time.ok_or(failure::NOT_FLOAT)?.min(SLEEP_MAX);
            core.databases.parts().clock.sleep(time).await;
            Ok(Reply::OK)
        }
        3 if command.is(1, "SET-ACTIVE-EXPIRE") => Ok(Reply::OK),
        3 if command.is(1, "OBJECT") => object(core, db, command.get(2)).await,
        _ => Err(wrong()),
    }
}

async fn object(core: &Core, db: DatabaseId, key: &[u8]) -> CommandResult {
    let outcome = core.databases.get(db, key, Projection::Value).await?;
    if !is_there(&outcome) {
        return Err(failure::NO_SUCH_KEY);
    }
    let Output::Bytes(value) = outcome.into_output() else {
        return Err(failure::NO_SUCH_KEY);
    };
    let encoding = super::keys::encoding_of(&value);
    let length = crate::rdb::dump(&value).len() - crate::rdb::FRAME_BYTES;
    Ok(Reply::Word(format!(
        "Value at:0x0 refcount:1 encoding:{encoding} serializedlength:{length} lru:0 \
         lru_seconds_idle:0"
    )))
}
