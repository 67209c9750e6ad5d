//! Clients that use the Redis ports, in pipelines, over connections that break. They use any
//! server's ordinary port, or as cluster clients the port of each key's owner (`slots`).
//!
//! A command without an answer has an unknown outcome, except for one that was never sent.

use super::bank;
use super::draw::Draw;
use super::journal::{Journal, Subject};
use super::native::{addend, appendix, appends, length, new_value, replaced};
use super::several;
use super::slots::Slots;
use pluvio_env::{Clock, timeout};
use pluvio_load::resp::{Connection, Reply, command};
use pluvio_sim::cluster::values;
use pluvio_sim::history::{Action, Begun, Condition, Content, KeyKind, Outcome, Plain, WHOLE};
use std::sync::Arc;
use std::time::Duration;

/// Commands of a pipeline.
pub(super) const PIPELINE_MAX: u64 = 4;
/// How long a connection may take to be made.
const CONNECT_LIMIT: Duration = Duration::from_secs(1);
/// Pause after a connection could not be made.
pub(super) const CONNECT_PAUSE: Duration = Duration::from_millis(100);

/// How the answer begins when the server does not know whether a command was executed.
pub(super) const IN_DOUBT: &str = "ERR it is not known whether the command was executed: ";

/// One client.
pub struct Redis {
    /// Where it records.
    pub journal: Journal,
    /// Limits of waiting go by it.
    pub clock: Arc<dyn Clock>,
    /// Where servers listen.
    pub servers: Vec<String>,
    /// How long a reply may take before the client gives up and connects anew.
    pub patience: Duration,
    /// Names it in the history.
    pub number: u16,
    /// Its dice.
    pub draw: Draw,
    /// The connection, if there is one.
    pub connection: Option<Connection>,
    /// What a cluster client knows; `None`: it is an ordinary one.
    pub slots: Option<Slots>,
}

/// A command.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Kind {
    Get,
    Set,
    SetNew,
    SetGet,
    GetSet,
    Delete,
    GetDelete,
    Add,
    /// In decimal, and whole, so that integers can be added after it.
    AddDecimal,
    Append,
    Length,
    /// Of no bytes: it tells the length and changes nothing.
    SetNoRange,
}

impl Kind {
    fn name(self, of_cluster: bool) -> &'static str {
        if of_cluster {
            return self.cluster_name();
        }
        match self {
            Self::Get => "redis GET",
            Self::Set => "redis SET",
            Self::SetNew => "redis SETNX",
            Self::SetGet => "redis SET GET",
            Self::GetSet => "redis GETSET",
            Self::Delete => "redis DEL",
            Self::GetDelete => "redis GETDEL",
            Self::Add => "redis INCRBY",
            Self::AddDecimal => "redis INCRBYFLOAT",
            Self::Append => "redis APPEND",
            Self::Length => "redis STRLEN",
            Self::SetNoRange => "redis SETRANGE",
        }
    }

    fn cluster_name(self) -> &'static str {
        match self {
            Self::Get => "redis cluster GET",
            Self::Set => "redis cluster SET",
            Self::SetNew => "redis cluster SETNX",
            Self::SetGet => "redis cluster SET GET",
            Self::GetSet => "redis cluster GETSET",
            Self::Delete => "redis cluster DEL",
            Self::GetDelete => "redis cluster GETDEL",
            Self::Add => "redis cluster INCRBY",
            Self::AddDecimal => "redis cluster INCRBYFLOAT",
            Self::Append => "redis cluster APPEND",
            Self::Length => "redis cluster STRLEN",
            Self::SetNoRange => "redis cluster SETRANGE",
        }
    }

    /// Whether it changes nothing.
    fn is_read(self) -> bool {
        matches!(self, Self::Get | Self::Length | Self::SetNoRange)
    }

    /// What to do with a key.
    fn draw(subject: &Subject, draw: &mut Draw) -> Self {
        match (subject.kind, draw.below(100)) {
            (KeyKind::Counter, 0..20) if subject.is_length => Self::Length,
            (KeyKind::Counter, 20..30) if subject.is_length => Self::SetNoRange,
            (KeyKind::Counter, _) if subject.is_length => Self::Append,
            (_, 0..30) => Self::Get,
            (KeyKind::Counter, 30..60) => Self::AddDecimal,
            (KeyKind::Counter, _) => Self::Add,
            (KeyKind::Register, 30..55) => Self::Set,
            (KeyKind::Register, 55..70) => Self::SetNew,
            (KeyKind::Register, 70..77) => Self::SetGet,
            (KeyKind::Register, 77..85) => Self::GetSet,
            (KeyKind::Register, 85..90) => Self::GetDelete,
            (KeyKind::Register, _) => Self::Delete,
            (KeyKind::Value | KeyKind::Tokens | KeyKind::Volatile, _) => {
                unreachable!("there are no such keys here")
            }
        }
    }
}

/// A command that was sent.
pub(super) struct Sent {
    kind: Kind,
    begun: Begun,
}

impl Redis {
    /// One pipeline.
    pub async fn step(&mut self) {
        if let Some(slots) = self.slots.take() {
            self.slots = Some(self.step_of_cluster(slots).await);
            return;
        }
        let Some(mut connection) = self.connected().await else {
            self.clock.sleep(CONNECT_PAUSE).await;
            return;
        };
        if let Some(deal) = bank::draw(&mut self.draw) {
            self.deal(connection, deal).await;
            return;
        }
        if several::draw(&mut self.draw) {
            self.step_of_several(connection).await;
            return;
        }
        let (mut bytes, mut sent) = (Vec::new(), Vec::new());
        for _ in 0..=self.draw.below(PIPELINE_MAX) {
            let subject = self.journal.pick(&mut self.draw);
            sent.push(self.one(&subject, &mut bytes));
        }
        let clock = Arc::clone(&self.clock);
        let mut is_whole = timeout(&*clock, self.patience, connection.send(&bytes))
            .await
            .is_ok_and(|result| result.is_ok());
        for sent in sent {
            let mut outcome = None;
            if is_whole {
                let reply = connection.reply(|reply| self.outcome(&sent, reply));
                let waited = timeout(&*clock, self.patience, reply).await;
                outcome = waited.ok().and_then(Result::ok);
                is_whole = outcome.is_some();
            }
            self.end(sent, outcome, false);
        }
        if is_whole && !self.draw.percent(2) {
            self.connection = Some(connection);
        }
    }

    /// Ends a command. `None`: there was no reply to it.
    pub(super) fn end(&self, sent: Sent, outcome: Option<Outcome>, of_cluster: bool) {
        let Sent { kind, begun } = sent;
        let outcome = match outcome {
            Some(outcome) => outcome,
            None => {
                self.journal.error("redis: no reply".to_owned());
                Outcome::Unknown
            }
        };
        // A read changes nothing, whatever happened to it.
        let outcome = match (kind, outcome) {
            (kind, Outcome::Unknown) if kind.is_read() => Outcome::NotDone,
            (_, outcome) => outcome,
        };
        let name = kind.name(of_cluster);
        self.journal.end(name, begun, outcome);
    }

    async fn connected(&mut self) -> Option<Connection> {
        if let Some(connection) = self.connection.take() {
            return Some(connection);
        }
        let server = &self.servers[self.draw.place(self.servers.len())];
        self.open(server).await
    }

    pub(super) async fn open(&self, server: &str) -> Option<Connection> {
        let opened = timeout(&*self.clock, CONNECT_LIMIT, Connection::open(server)).await;
        opened.ok().and_then(Result::ok)
    }

    pub(super) fn one(&mut self, subject: &Subject, bytes: &mut Vec<u8>) -> Sent {
        let kind = Kind::draw(subject, &mut self.draw);
        let key = subject.key.as_slice();
        let action = match kind {
            Kind::Get => {
                command(bytes, &[b"GET", key]);
                Action::Read
            }
            Kind::Length => {
                command(bytes, &[b"STRLEN", key]);
                Action::Read
            }
            Kind::SetNoRange => {
                command(bytes, &[b"SETRANGE", key, b"1", b""]);
                Action::Read
            }
            Kind::Delete | Kind::GetDelete => {
                let name: &[u8] = match kind {
                    Kind::GetDelete => b"GETDEL",
                    _ => b"DEL",
                };
                command(bytes, &[name, key]);
                Action::Delete { condition: None }
            }
            Kind::Add | Kind::AddDecimal => {
                let by = addend(&mut self.draw);
                let name: &[u8] = match kind {
                    Kind::AddDecimal => b"INCRBYFLOAT",
                    _ => b"INCRBY",
                };
                command(bytes, &[name, key, by.to_string().as_bytes()]);
                Action::Add {
                    by: by * WHOLE,
                    condition: None,
                }
            }
            Kind::Append => {
                let more = appendix(&mut self.draw);
                command(bytes, &[b"APPEND", key, more]);
                appends(more)
            }
            Kind::Set | Kind::SetNew | Kind::SetGet | Kind::GetSet => {
                let (value, content) = new_value(&self.journal, &mut self.draw);
                match kind {
                    Kind::SetNew => command(bytes, &[b"SETNX", key, &value]),
                    Kind::SetGet => command(bytes, &[b"SET", key, &value, b"GET"]),
                    Kind::GetSet => command(bytes, &[b"GETSET", key, &value]),
                    _ => command(bytes, &[b"SET", key, &value]),
                }
                let condition = (kind == Kind::SetNew).then(|| Condition::version(0));
                Action::Write { content, condition }
            }
        };
        let begun = self.journal.begin(subject.id, self.number, action);
        Sent { kind, begun }
    }

    pub(super) fn outcome(&self, sent: &Sent, reply: Reply<'_>) -> Outcome {
        let kind = sent.kind;
        let plain = match (kind, reply) {
            (Kind::Get, Reply::Nil) => return Outcome::Missing,
            (Kind::Get, Reply::Bulk(value)) => Plain::Found {
                content: values::content(&value),
            },
            (Kind::Set, Reply::Simple(text)) if text == "OK" => Plain::Wrote,
            (Kind::SetNew, Reply::Integer(1)) => Plain::Wrote,
            (Kind::SetNew, Reply::Integer(0)) => Plain::Refused,
            (Kind::SetGet | Kind::GetSet, Reply::Nil) => return replaced(None),
            (Kind::SetGet | Kind::GetSet | Kind::GetDelete, Reply::Bulk(value)) => {
                return replaced(Some(value.into_owned().into()));
            }
            (Kind::Delete, Reply::Integer(0)) | (Kind::GetDelete, Reply::Nil) => {
                return Outcome::Deleted { version: 0 };
            }
            (Kind::Delete, Reply::Integer(1)) => Plain::Deleted,
            (Kind::Add, Reply::Integer(sum)) => Plain::Added {
                sum: sum.saturating_mul(WHOLE),
            },
            (Kind::AddDecimal, Reply::Bulk(text)) => match values::content(&text) {
                Content::Number(sum) => Plain::Added { sum },
                other => {
                    self.journal.wrong(format!("INCRBYFLOAT gave {other}"));
                    return Outcome::Unknown;
                }
            },
            (Kind::Append, Reply::Integer(bytes)) => Plain::Added {
                sum: length(bytes.unsigned_abs()),
            },
            // Nothing empty is ever appended.
            (Kind::Length | Kind::SetNoRange, Reply::Integer(0)) => return Outcome::Missing,
            (Kind::Length | Kind::SetNoRange, Reply::Integer(bytes)) => Plain::Found {
                content: Content::Number(length(bytes.unsigned_abs())),
            },
            (_, Reply::Error(text)) => {
                self.error(kind, &text);
                // The text is for people; whether it was executed is not said by all of them.
                return Outcome::Unknown;
            }
            (_, reply) => {
                self.journal
                    .wrong(format!("{kind:?} was answered with {reply:?}"));
                return Outcome::Unknown;
            }
        };
        Outcome::Plain(plain)
    }

    fn error(&self, kind: Kind, text: &str) {
        let word = text.split(' ').next().unwrap_or_default();
        match word {
            "TRYAGAIN" | "OOM" | "NOREPLICAS" => self.journal.error(format!("redis: {word}")),
            _ if text.starts_with(IN_DOUBT) => self.journal.error("redis: in doubt".to_owned()),
            // Nothing is asked for that could be refused for good.
            _ => self
                .journal
                .wrong(format!("{kind:?} was answered with {text:?}")),
        }
    }
}
