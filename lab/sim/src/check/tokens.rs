//! Tokens: each append puts one behind the value that no other puts anywhere. So an append shows
//! at once that is lost, done twice, or done before its turn in an ordered batch.
//!
//! ```text
//! 1f;a0;20;       the tokens 0x1f, 0xa0 and 0x20
//! ```

use crate::check::{Check, Subject, Violation, name_of};
use crate::history::{Answer, Change, Exchange, History, KeyId, KeyKind, OrderedBatch, Request};
use bytes::Bytes;
use std::collections::{BTreeMap, BTreeSet};

/// What an append of this token appends.
#[must_use]
pub fn text(token: u64) -> Bytes {
    format!("{token:x};").into()
}

/// The first token of these bytes.
#[must_use]
pub fn first(bytes: &[u8]) -> Option<u64> {
    tokens(bytes).next().flatten()
}

/// The tokens of a value; `None` stands for what is none.
fn tokens(value: &[u8]) -> impl Iterator<Item = Option<u64>> {
    value.split_inclusive(|byte| *byte == b';').map(|text| {
        let digits = core::str::from_utf8(text.strip_suffix(b";")?).ok()?;
        u64::from_str_radix(digits, 16).ok()
    })
}

fn appended(exchange: &Exchange) -> Option<u64> {
    match &exchange.request {
        Request::Mutate {
            change: Change::Append(bytes),
            ..
        } => first(bytes),
        Request::Mutate { .. } | Request::Get { .. } => None,
    }
}

/// Whether something may have taken tokens away between tick `since` and the end of `read`.
fn removal_between(exchanges: &[Exchange], since: u64, read: &Exchange) -> bool {
    exchanges.iter().any(|exchange| {
        let removes = matches!(
            exchange.request,
            Request::Mutate {
                change: Change::Put(_) | Change::Delete,
                ..
            }
        );
        let overlaps = exchange.effect_end() > since && exchange.invoked < read.returned;
        removes && exchange.may_change() && overlaps
    })
}

fn complain(key: &Subject<'_>, check: Check, message: &str, evidence: &[&Exchange]) -> Violation {
    Violation {
        check,
        message: format!("key {}: {message}", key.key.name),
        evidence: evidence.iter().map(ToString::to_string).collect(),
    }
}

/// Every token is in a value once at most, was appended, and is there once its append is
/// acknowledged.
pub(super) fn each_once(subject: &Subject<'_>) -> Vec<Violation> {
    if subject.key.kind != KeyKind::Tokens {
        return Vec::new();
    }
    let exchanges = &subject.key.exchanges;
    let appends: BTreeMap<u64, &Exchange> = exchanges
        .iter()
        .filter_map(|exchange| Some((appended(exchange)?, exchange)))
        .collect();
    let shown = exchanges.iter().filter_map(|e| Some((e, e.shows()?)));
    let found = shown.map(|(read, value)| {
        strange(subject, &appends, read, value).or_else(|| lost(subject, &appends, read, value))
    });
    found.flatten().take(1).collect()
}

/// A token that nobody appended, or not in time, or twice.
fn strange(
    subject: &Subject<'_>,
    appends: &BTreeMap<u64, &Exchange>,
    read: &Exchange,
    value: &[u8],
) -> Option<Violation> {
    let mut there = BTreeSet::new();
    for token in tokens(value) {
        let append = token.and_then(|token| appends.get(&token));
        let Some((token, append)) = token.zip(append) else {
            let message = "something was read that nobody appended to this key";
            let check = Check::NotDoneHasNoEffect;
            return Some(complain(subject, check, message, &[read]));
        };
        let evidence = [append, read];
        if !append.may_change() || append.invoked > read.returned {
            let message = "an append shows that was not executed";
            let check = Check::NotDoneHasNoEffect;
            return Some(complain(subject, check, message, &evidence));
        }
        if !there.insert(token) {
            let message = format!("token {token:x} is there twice: it was appended twice");
            return Some(complain(subject, Check::ExactlyOnce, &message, &evidence));
        }
    }
    None
}

/// A token whose append was acknowledged, that nothing may have taken away, and that is not there.
fn lost(
    subject: &Subject<'_>,
    appends: &BTreeMap<u64, &Exchange>,
    read: &Exchange,
    value: &[u8],
) -> Option<Violation> {
    let there: BTreeSet<u64> = tokens(value).flatten().collect();
    let (token, append) = appends.iter().find(|(token, append)| {
        let is_done = matches!(append.answer, Answer::Given(_)) && append.may_change();
        is_done
            && append.returned < read.invoked
            && !there.contains(token)
            && !removal_between(&subject.key.exchanges, append.invoked, read)
    })?;
    let message = format!("token {token:x} was appended, and is not there");
    let check = Check::AcknowledgedWriteIsReadable;
    Some(complain(subject, check, &message, &[append, read]))
}

/// What was read of one key.
struct Seen<'a> {
    exchange: &'a Exchange,
    tokens: BTreeSet<u64>,
}

/// All reads of keys with tokens.
pub(super) struct Reads<'a> {
    history: &'a History,
    of: BTreeMap<KeyId, Vec<Seen<'a>>>,
}

impl<'a> Reads<'a> {
    pub(super) fn new(history: &'a History) -> Self {
        let keys = history
            .keys()
            .filter(|(_, key)| key.kind == KeyKind::Tokens);
        let of = keys.map(|(id, key)| {
            let seen = key.exchanges.iter().filter_map(|exchange| {
                Some(Seen {
                    exchange,
                    tokens: tokens(exchange.shows()?).flatten().collect(),
                })
            });
            (id, seen.collect())
        });
        Self {
            history,
            of: of.collect(),
        }
    }

    fn of(&self, key: KeyId) -> &[Seen<'a>] {
        self.of.get(&key).map_or(&[], Vec::as_slice)
    }

    /// No item of an ordered batch takes effect before one that stands before it. So a read that
    /// begins after a later token was seen sees the earlier one.
    pub(super) fn in_order(&self, batch: &OrderedBatch) -> Option<Violation> {
        for (place, (later, token)) in batch.appended.iter().enumerate() {
            let shows = self.of(*later).iter().filter(|s| s.tokens.contains(token));
            let Some(first) = shows.min_by_key(|s| s.exchange.returned) else {
                continue;
            };
            for (earlier, before) in &batch.appended[..place] {
                let exchanges = &self.history.of(*earlier).exchanges;
                let lacks = self.of(*earlier).iter().find(|seen| {
                    let same = core::ptr::eq(seen.exchange, first.exchange);
                    let is_later = seen.exchange.invoked > first.exchange.returned;
                    (is_later || same)
                        && !seen.tokens.contains(before)
                        && !removal_between(exchanges, batch.invoked, seen.exchange)
                });
                if let Some(lacks) = lacks {
                    let message = format!(
                        "token {token:x} was in key {} while token {before:x}, which the same batch \
                         appended to key {} before it, was not",
                        name_of(self.history, *later),
                        name_of(self.history, *earlier),
                    );
                    let append = |key: KeyId, token: u64| {
                        let exchanges = self.history.of(key).exchanges.iter();
                        exchanges.filter(move |exchange| appended(exchange) == Some(token))
                    };
                    let evidence = append(*earlier, *before).chain(append(*later, *token));
                    let evidence = evidence.chain([first.exchange, lacks.exchange]);
                    return Some(Violation {
                        check: Check::BatchesInOrder,
                        message,
                        evidence: evidence.map(ToString::to_string).collect(),
                    });
                }
            }
        }
        None
    }
}
