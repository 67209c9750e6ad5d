//! The server as a script sees it: it runs the script's commands on the objects that were read.
//!
//! It waits for nothing. Where it cannot go on, it interrupts the script and says what is wanted.

use super::super::overlay::{Missing, ObjectAt, Objects};
use super::{Fetched, Job, NOT_ALLOWED, Want, too_much_memory};
use crate::commands::Own;
use crate::database::DatabaseId;
use crate::failure;
use crate::monitor::Told;
use crate::number::integer;
use crate::parser::Command;
use crate::reply::{Failure, Reply};
use crate::table::{Run, SPECS, find_called, marks, resolve};
use crate::users::caller::Caller;
use crate::users::denials::Context;
use bytes::Bytes;
use core::cell::Cell;
use pluvio_script::{Commands, Interrupted, MEMORY_MAX, Parts, Value, number_text};
use std::rc::Rc;
use std::sync::Arc;

/// The server, as a script sees it.
pub(super) struct Server {
    objects: Objects,
    db: DatabaseId,
    is_read_only: bool,
    caller: Option<Arc<Caller>>,
    protocol: u8,
    fetched: Fetched,
    used: usize,
    want: Option<Want>,
    /// How many more objects it may go on without.
    ahead: usize,
    /// Whether it goes on without one.
    guesses: Rc<Cell<bool>>,
    /// The objects before it went on without one. All that it does then counts for nothing.
    before_guesses: Option<Objects>,
    /// Its commands, where MONITOR is told of them.
    told: Option<Told>,
}

/// The state that a script leaves when it ends.
pub(super) struct Left {
    pub(super) objects: Objects,
    /// Its wish, where it was interrupted for one.
    pub(super) want: Option<Want>,
    /// Its commands, for MONITOR.
    pub(super) told: Told,
}

impl Server {
    /// For a script that may go on without `ahead` objects, and says so in `guesses`.
    pub(super) fn new(
        job: &Job,
        objects: Objects,
        fetched: Fetched,
        ahead: usize,
        guesses: Rc<Cell<bool>>,
    ) -> Self {
        Self {
            objects,
            db: job.db,
            is_read_only: job.is_read_only,
            caller: job.caller.clone(),
            protocol: 2,
            fetched,
            used: 0,
            want: None,
            ahead,
            guesses,
            before_guesses: None,
            told: job.is_told.then(Told::default),
        }
    }

    /// Takes out what the script has left: the objects as they were before it went on without one.
    pub(super) fn take(&mut self) -> Left {
        Left {
            objects: match self.before_guesses.take() {
                Some(before) => before,
                None => self.objects.take(),
            },
            want: self.want.take(),
            told: self.told.take().unwrap_or_default(),
        }
    }

    fn run(&mut self, command: &Command) -> Result<Reply, Interrupted> {
        let refuse = |text| Ok(Reply::Error(Failure::fixed(text)));
        let Ok(found) = resolve(command, command.len()) else {
            let sub = (command.len() > 1).then(|| command.get(1));
            return match find_called(command.get(0), sub) {
                Some(_) => refuse("ERR Wrong number of args calling Redis command from script"),
                None => Ok(Reply::Error(failure::unknown_in_script(command))),
            };
        };
        let row = &SPECS[usize::from(found)];
        let marks = marks(found);
        if marks.no_script {
            return Ok(Reply::Error(NOT_ALLOWED));
        }
        if let Some(caller) = self.caller.as_ref().filter(|_| self.guesses.get())
            && caller.user.check(found, self.db, command).is_err()
        {
            return Err(Interrupted);
        }
        if let Some(caller) = &self.caller
            && let Err(denied) = caller.check(Context::Script, found, self.db, command)
        {
            let name = &caller.user.name;
            let failure = failure::not_permitted_in_script(denied, name, row);
            return Ok(Reply::Error(failure));
        }
        if self.is_read_only && marks.writes {
            return refuse("ERR Write commands are not allowed from read-only scripts.");
        }
        if marks.writes && self.objects.changed_bytes() > MEMORY_MAX {
            return Ok(Reply::Error(too_much_memory()));
        }
        match row.run {
            Run::Data(what) => loop {
                match self.objects.run(self.db, (what, row), command) {
                    Some(Ok(reply)) => {
                        self.tell(command);
                        return Ok(reply);
                    }
                    Some(Err(Missing(places))) => self.miss(places)?,
                    None if marks.writes => return Ok(Reply::Error(NOT_ALLOWED)),
                    None => return self.outside(command),
                }
            },
            Run::Now(_) => self.outside(command),
            Run::Own(Own::Select) => match integer(command.get(1)).and_then(DatabaseId::new) {
                Some(db) => {
                    self.tell(command);
                    self.db = db;
                    Ok(Reply::OK)
                }
                None if integer(command.get(1)).is_none() => Ok(Reply::Error(failure::NOT_INTEGER)),
                None => Ok(Reply::Error(failure::BAD_DATABASE)),
            },
            Run::Own(_) | Run::Container => Ok(Reply::Error(NOT_ALLOWED)),
        }
    }

    /// Objects are wanted that were not read. Lets the script go on as if there were none, if it
    /// may do so.
    ///
    /// # Errors
    /// It may not.
    fn miss(&mut self, places: Vec<ObjectAt>) -> Result<(), Interrupted> {
        match &mut self.want {
            Some(Want::Objects { places: wanted, .. }) => {
                let left = self.ahead.checked_sub(places.len());
                self.ahead = left.ok_or(Interrupted)?;
                wanted.extend_from_slice(&places);
            }
            Some(Want::Outside(..)) => return Err(Interrupted),
            None => {
                self.want = Some(Want::Objects {
                    sure: places.len(),
                    places: places.clone(),
                });
            }
        }
        if self.ahead == 0 {
            return Err(Interrupted);
        }
        if self.before_guesses.is_none() {
            self.before_guesses = Some(self.objects.clone());
            self.guesses.set(true);
        }
        self.objects.imagine_none(places);
        Ok(())
    }

    /// A command was run.
    fn tell(&mut self, command: &Command) {
        if let Some(told) = &mut self.told {
            told.add(self.db, command.clone());
        }
    }

    fn outside(&mut self, command: &Command) -> Result<Reply, Interrupted> {
        if self.guesses.get() {
            return Err(Interrupted);
        }
        let fetched = self.fetched.as_ref();
        match fetched.and_then(|fetched| fetched.get(self.used)) {
            Some(reply) => {
                self.used += 1;
                let reply = reply.clone();
                self.tell(command);
                Ok(reply)
            }
            None => {
                self.want = Some(Want::Outside(self.db, command.clone()));
                Err(Interrupted)
            }
        }
    }
}

impl Commands for Server {
    fn call(&mut self, command: Parts) -> Result<Value, Interrupted> {
        let reply = self.run(&of_script(command))?;
        Ok(value_of(reply, self.protocol))
    }

    fn may_call(&mut self, command: Parts) -> Option<bool> {
        let command = of_script(command);
        let sub = (command.len() > 1).then(|| command.get(1));
        let spec = find_called(command.get(0), sub)?;
        let db = self.db;
        let may = |caller: &Arc<Caller>| caller.user.check(spec, db, &command).is_ok();
        Some(self.caller.as_ref().is_none_or(may))
    }

    fn log(&mut self, level: u8, text: &[u8]) {
        if self.guesses.get() {
            return;
        }
        let text = String::from_utf8_lossy(text);
        match level {
            0 | 1 => tracing::debug!(%text, "a script says"),
            2 => tracing::info!(%text, "a script says"),
            _ => tracing::warn!(%text, "a script says"),
        }
    }

    fn set_protocol(&mut self, version: u8) {
        self.protocol = version;
    }
}

fn of_script(parts: Parts) -> Command {
    let (bytes, ends) = parts.into_joined();
    Command::from_joined(bytes, &ends)
}

/// A reply, as a script gets it.
fn value_of(reply: Reply, protocol: u8) -> Value {
    let list = |items: Vec<Reply>| {
        items
            .into_iter()
            .map(|item| value_of(item, protocol))
            .collect()
    };
    match reply {
        Reply::Status(text) => Value::Status(text.into()),
        Reply::Line(text) => Value::Status(text),
        Reply::Word(text) => Value::Status(text.into_bytes()),
        Reply::Error(failure) => Value::Error(failure.text().to_vec()),
        Reply::Integer(number) => Value::Integer(number),
        Reply::Double(number) if protocol == 3 => Value::Double(number),
        Reply::Double(number) => Value::Bulk(number_text(number, 17).into()),
        Reply::Boolean(truth) if protocol == 3 => Value::Boolean(truth),
        Reply::Boolean(truth) => Value::Integer(truth.into()),
        Reply::BigNumber(digits) if protocol == 3 => Value::BigNumber(digits),
        Reply::Bulk(bytes) => Value::Bulk(bytes),
        Reply::Text(text) => Value::Bulk(Bytes::from_static(text.as_bytes())),
        Reply::Verbatim(text) if protocol == 3 => {
            Value::Verbatim(b"txt".to_vec(), text.into_bytes())
        }
        Reply::Verbatim(text) => Value::Bulk(text.into()),
        Reply::Marked(format, text) if protocol == 3 => Value::Verbatim(format, text),
        Reply::BigNumber(text) | Reply::Marked(_, text) => Value::Bulk(text.into()),
        Reply::Nil | Reply::NoList => Value::Nil,
        Reply::Array(items) => Value::Array(list(items)),
        Reply::Set(items) if protocol == 3 => Value::Set(list(items)),
        Reply::Set(items) => Value::Array(list(items)),
        Reply::Bulks(bulks) => {
            Value::Array(bulks.items().map(|item| Value::Bulk(item.into())).collect())
        }
        Reply::Map(pairs) if protocol == 3 => {
            let pair = |(k, v)| (value_of(k, protocol), value_of(v, protocol));
            Value::Map(pairs.into_iter().map(pair).collect())
        }
        Reply::Map(pairs) => {
            Value::Array(list(pairs.into_iter().flat_map(|(k, v)| [k, v]).collect()))
        }
    }
}

/// What a script gave, as a reply.
pub(super) fn reply_of(value: Value) -> Reply {
    let list = |items: Vec<Value>| items.into_iter().map(reply_of).collect();
    match value {
        Value::Nil => Reply::Nil,
        Value::Integer(number) => Reply::Integer(number),
        Value::Status(text) => Reply::Line(text),
        Value::Error(text) => Reply::Error(Failure::new(text)),
        Value::Bulk(bytes) => Reply::Bulk(bytes),
        Value::BigNumber(digits) => Reply::BigNumber(digits),
        Value::Verbatim(format, text) => Reply::Marked(format, text),
        Value::Array(items) => Reply::Array(list(items)),
        Value::Set(items) => Reply::Set(list(items)),
        Value::Double(number) => Reply::Double(number),
        Value::Boolean(truth) => Reply::Boolean(truth),
        Value::Map(pairs) => {
            let pair = |(k, v)| (reply_of(k), reply_of(v));
            Reply::Map(pairs.into_iter().map(pair).collect())
        }
    }
}
