//! By the Redis ports: MULTI and EXEC, with and without WATCH, scripts, and single commands.

use super::super::redis::{IN_DOUBT, Redis};
use super::{parts, wish};
use pluvio_env::timeout;
use pluvio_load::resp::{Connection, Reply, command};
use pluvio_sim::cluster::several::{Shared, Told, Wanted, Wish, holds, steps};
use pluvio_sim::history::transactions::{Ended, Holds, Step, tokens};
use std::sync::Arc;

/// Does to each of its keys what two arguments say.
const SCRIPT: &str = "\
local out = {}
for i, key in ipairs(KEYS) do
  local word, token = ARGV[2 * i - 1], ARGV[2 * i]
  if token == '' then
    out[i] = redis.call(word, key)
  else
    out[i] = redis.call(word, key, token)
  end
end
return out";

/// What came back.
enum Back {
    /// This was told of each part.
    Told(Vec<Told>),
    /// A watched key had changed.
    Changed,
    /// An error, no answer, or nonsense.
    Lost,
}

/// The command of a part, and its token if it has one.
fn words(wish: Wish) -> (&'static str, Vec<u8>) {
    match wish {
        Wish::Read => ("GET", Vec::new()),
        Wish::Set(token) => ("SET", tokens::bytes(token)),
        Wish::Swap(token) => ("GETSET", tokens::bytes(token)),
        Wish::Append(token) => ("APPEND", tokens::bytes(token)),
        Wish::Delete => ("DEL", Vec::new()),
        Wish::Take => ("GETDEL", Vec::new()),
    }
}

fn put(bytes: &mut Vec<u8>, part: &Wanted) {
    let (word, token) = words(part.wish);
    let (word, key) = (word.as_bytes(), &part.key.key[..]);
    match token.is_empty() {
        true => command(bytes, &[word, key]),
        false => command(bytes, &[word, key, &token]),
    }
}

/// What a reply says of a part; `None`: no server may give such a reply.
fn told(part: &Wanted, reply: &Reply<'_>) -> Option<Told> {
    match (part.wish, reply) {
        (Wish::Read | Wish::Swap(_) | Wish::Take, Reply::Nil) => Told::value(None),
        (Wish::Read | Wish::Swap(_) | Wish::Take, Reply::Bulk(value)) => Told::value(Some(value)),
        (Wish::Set(_), Reply::Simple(text)) if text == "OK" => Some(Told::Done),
        (Wish::Append(_), Reply::Integer(bytes)) => Told::length(u64::try_from(*bytes).ok()?),
        (Wish::Delete, Reply::Integer(count @ (0 | 1))) => Some(Told::Found(*count == 1)),
        _ => None,
    }
}

impl Redis {
    /// One transaction, or one command on such a key.
    pub(in super::super) async fn step_of_several(&mut self, connection: Connection) {
        let keys = self.journal.pick_several(&mut self.draw);
        match self.draw.below(100) {
            0..25 => {
                let key = keys[self.draw.place(keys.len())].clone();
                self.single(connection, key).await;
            }
            25..50 => {
                let parts = parts(&self.journal, &mut self.draw, &keys);
                let mut bytes = Vec::new();
                command(&mut bytes, &["MULTI"]);
                parts.iter().for_each(|part| put(&mut bytes, part));
                command(&mut bytes, &["EXEC"]);
                let replies = parts.len() + 2;
                self.together(connection, "redis MULTI", &bytes, replies, &parts)
                    .await;
            }
            50..75 => self.watch(connection, &keys).await,
            _ => {
                let parts = parts(&self.journal, &mut self.draw, &keys);
                let bytes = script(&parts);
                self.together(connection, "redis EVAL", &bytes, 1, &parts)
                    .await;
            }
        }
    }

    /// Sends these bytes, and gives this number of replies.
    async fn replies(
        &self,
        connection: &mut Connection,
        bytes: &[u8],
        count: usize,
    ) -> Option<Vec<Reply<'static>>> {
        let clock = Arc::clone(&self.clock);
        let exchange = async {
            connection.send(bytes).await.ok()?;
            let mut replies = Vec::new();
            for _ in 0..count {
                let reply = connection.reply(|reply| reply.into_owned()).await;
                replies.push(reply.ok()?);
            }
            Some(replies)
        };
        let answered = timeout(&*clock, self.patience, exchange).await;
        let replies = answered.ok().flatten();
        if replies.is_none() {
            self.journal.error("redis: no reply".to_owned());
        }
        replies
    }

    /// Sends these bytes, and gives the last of this number of replies.
    async fn last_reply(
        &self,
        connection: &mut Connection,
        bytes: &[u8],
        count: usize,
    ) -> Option<Reply<'static>> {
        self.replies(connection, bytes, count).await?.pop()
    }

    /// Sends a transaction of these parts, whose replies are the last one.
    async fn together(
        &mut self,
        mut connection: Connection,
        kind: &str,
        bytes: &[u8],
        replies: usize,
        parts: &[Wanted],
    ) {
        let begun = self
            .journal
            .begin_transaction(self.number, steps(parts, None));
        let reply = self.last_reply(&mut connection, bytes, replies).await;
        if reply.is_some() {
            self.connection = Some(connection);
        }
        let back = self.understood(kind, parts, reply);
        let changes = parts.iter().any(|part| part.wish != Wish::Read);
        let (ended, steps) = match back {
            Back::Told(told) => (Ended::Done, steps(parts, Some(&told))),
            Back::Changed => {
                self.journal
                    .wrong(format!("{kind} was given up, without WATCH"));
                (Ended::Unknown, steps(parts, None))
            }
            Back::Lost if changes => (Ended::Unknown, steps(parts, None)),
            // A read changes nothing, whatever happened to it.
            Back::Lost => (Ended::NotDone, steps(parts, None)),
        };
        self.journal.end_transaction(kind, begun, ended, steps);
    }

    /// What a reply says.
    fn understood(&self, kind: &str, parts: &[Wanted], reply: Option<Reply<'static>>) -> Back {
        match reply {
            None => Back::Lost,
            Some(Reply::Array(replies)) if replies.len() == parts.len() => {
                let both = parts.iter().zip(&replies);
                match both.map(|(part, reply)| told(part, reply)).collect() {
                    Some(told) => Back::Told(told),
                    None => {
                        let message = format!("{kind} of {parts:?} was answered with {replies:?}");
                        self.journal.wrong(message);
                        Back::Lost
                    }
                }
            }
            Some(Reply::Nil) => Back::Changed,
            Some(Reply::Error(text)) => {
                self.refused(kind, &text);
                Back::Lost
            }
            Some(other) => {
                self.journal
                    .wrong(format!("{kind} was answered with {other:?}"));
                Back::Lost
            }
        }
    }

    /// Counts an error. One that tells of a defect is a violation.
    fn refused(&self, kind: &str, text: &str) {
        let word = text.split(' ').next().unwrap_or_default();
        match word {
            "TRYAGAIN" | "OOM" | "NOREPLICAS" | "EXECABORT" => {
                self.journal.error(format!("{kind}: {word}"))
            }
            _ if text.contains(IN_DOUBT) => self.journal.error(format!("{kind}: in doubt")),
            // Nothing is asked for that could be refused for good.
            _ => self
                .journal
                .wrong(format!("{kind} was answered with {text:?}")),
        }
    }

    /// A command on one key, without a transaction.
    async fn single(&mut self, mut connection: Connection, key: Shared) {
        let is_new = key.holds == Holds::Register && self.draw.percent(20);
        let wish = match is_new {
            true => Wish::Set(self.journal.token()),
            false => wish(&self.journal, &mut self.draw, key.holds),
        };
        let parts = [Wanted { key, wish }];
        let mut bytes = Vec::new();
        let mut begins = steps(&parts, None);
        if is_new {
            let (_, token) = words(wish);
            command(&mut bytes, &[b"SETNX", &parts[0].key.key[..], &token]);
            begins.insert(0, holds(&parts[0].key, &[]));
        } else {
            put(&mut bytes, &parts[0]);
        }
        let begun = self.journal.begin_transaction(self.number, begins.clone());
        let reply = self.last_reply(&mut connection, &bytes, 1).await;
        if reply.is_some() {
            self.connection = Some(connection);
        }
        let kind = "redis single";
        let told = reply.as_ref().and_then(|reply| told(&parts[0], reply));
        let (ended, steps) = match (reply, told) {
            (Some(Reply::Integer(1)), _) if is_new => (Ended::Done, begins),
            (Some(Reply::Integer(0)), _) if is_new => (Ended::NotDone, begins),
            (_, Some(told)) if !is_new => (Ended::Done, steps(&parts, Some(&[told]))),
            (reply, _) => {
                match &reply {
                    Some(Reply::Error(text)) => self.refused(kind, text),
                    Some(other) => {
                        self.journal
                            .wrong(format!("{wish:?} was answered with {other:?}"));
                    }
                    None => {}
                }
                match wish {
                    Wish::Read => (Ended::NotDone, begins),
                    _ => (Ended::Unknown, begins),
                }
            }
        };
        self.journal.end_transaction(kind, begun, ended, steps);
    }

    /// Watches keys and reads them. `None`: it did not work, or one was changed meanwhile.
    ///
    /// They are read before, too. A key that is absent, watched, written, read and deleted counts
    /// as unchanged (`docs/redis.md`), and what was read of it would be of no moment.
    async fn watched(&self, connection: &mut Connection, reads: &[Wanted]) -> Option<Vec<Told>> {
        let mut bytes = Vec::new();
        for word in ["MGET", "WATCH", "MGET"] {
            let mut words: Vec<&[u8]> = vec![word.as_bytes()];
            words.extend(reads.iter().map(|part| &part.key.key[..]));
            command(&mut bytes, &words);
        }
        let mut replies = self.replies(connection, &bytes, 3).await?.into_iter();
        let (before, watch, after) = (replies.next()?, replies.next()?, replies.next()?);
        match watch {
            reply if reply.is_ok() => {}
            Reply::Error(text) => {
                self.refused("redis WATCH", &text);
                return None;
            }
            reply => {
                let message = format!("WATCH was answered with {reply:?}");
                self.journal.wrong(message);
                return None;
            }
        }
        let before = self.understood("redis MGET", reads, Some(before));
        let after = self.understood("redis MGET", reads, Some(after));
        match (before, after) {
            (Back::Told(before), Back::Told(after)) if before == after => Some(after),
            _ => None,
        }
    }

    /// Watches some keys, reads them, and writes some, if all are as they were.
    async fn watch(&mut self, mut connection: Connection, keys: &[Shared]) {
        // Different ones, from a place on.
        let (first, count) = (self.draw.place(keys.len()), 2 + self.draw.place(2));
        let all = keys.iter().cycle().skip(first).take(count);
        let watched: Vec<&Shared> = all.collect();
        let reads: Vec<Wanted> = watched
            .iter()
            .map(|key| Wanted {
                key: (*key).clone(),
                wish: Wish::Read,
            })
            .collect();
        // Watched keys go with a connection that is not used any more.
        let Some(saw) = self.watched(&mut connection, &reads).await else {
            return;
        };
        let mut bytes = Vec::new();
        command(&mut bytes, &["MULTI"]);
        let mut parts = Vec::new();
        for key in watched {
            if self.draw.percent(60) {
                let wish = wish(&self.journal, &mut self.draw, key.holds);
                let key = key.clone();
                parts.push(Wanted { key, wish });
            }
        }
        parts.iter().for_each(|part| put(&mut bytes, part));
        command(&mut bytes, &["EXEC"]);
        let before = steps(&reads, Some(&saw));
        let all = |told: Option<&[Told]>| -> Vec<Step> {
            before.iter().cloned().chain(steps(&parts, told)).collect()
        };
        let begun = self.journal.begin_transaction(self.number, all(None));
        let replies = parts.len() + 2;
        let reply = self.last_reply(&mut connection, &bytes, replies).await;
        if reply.is_some() {
            self.connection = Some(connection);
        }
        let kind = "redis WATCH";
        let changes = parts.iter().any(|part| part.wish != Wish::Read);
        let (ended, steps) = match self.understood(kind, &parts, reply) {
            Back::Told(told) => (Ended::Done, all(Some(&told))),
            Back::Changed => (Ended::NotDone, all(None)),
            Back::Lost if changes => (Ended::Unknown, all(None)),
            Back::Lost => (Ended::NotDone, all(None)),
        };
        self.journal.end_transaction(kind, begun, ended, steps);
    }
}

/// A script of these parts.
fn script(parts: &[Wanted]) -> Vec<u8> {
    let count = parts.len().to_string();
    let mut all: Vec<Vec<u8>> = vec![b"EVAL".to_vec(), SCRIPT.into(), count.into_bytes()];
    all.extend(parts.iter().map(|part| part.key.key.clone()));
    for part in parts {
        let (word, token) = words(part.wish);
        all.push(word.into());
        all.push(token);
    }
    let mut bytes = Vec::new();
    command(&mut bytes, &all);
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;
    use pluvio_sim::history::transactions::What;

    #[test]
    fn replies_that_no_server_gives_are_not_understood() {
        let part = |wish| Wanted {
            key: Shared {
                id: 0,
                holds: Holds::Register,
                key: b"s-1".to_vec(),
                table: 0,
            },
            wish,
        };
        let value = Reply::bulk(tokens::bytes(9));
        assert_eq!(told(&part(Wish::Read), &value), Some(Told::Value(vec![9])));
        assert_eq!(
            told(&part(Wish::Take), &Reply::Nil),
            Some(Told::Value(vec![]))
        );
        assert_eq!(
            told(&part(Wish::Append(1)), &Reply::Integer(24)),
            Some(Told::Length(3))
        );
        assert_eq!(
            told(&part(Wish::Delete), &Reply::Integer(1)),
            Some(Told::Found(true))
        );
        for (wish, reply) in [
            (Wish::Read, Reply::bulk("no token")),
            (Wish::Read, Reply::Integer(1)),
            (Wish::Append(1), Reply::Integer(9)),
            (Wish::Append(1), Reply::Integer(-8)),
            (Wish::Delete, Reply::Integer(2)),
            (Wish::Set(1), Reply::Nil),
        ] {
            assert_eq!(told(&part(wish), &reply), None, "{wish:?} {reply:?}");
        }
        let steps = steps(&[part(Wish::Set(7))], None);
        assert_eq!(steps[0].what, What::Set { token: 7 });
    }
}
