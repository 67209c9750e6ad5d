//! Keys that expire: objects with all kinds of lifetimes, and changes of those.

use super::Worker;
use crate::cluster::plan::OperationKind;
use crate::history::{Change, Condition, KeyId, KeyKind, Outcome, Request, Want};
use crate::sim::UNIX_START;
use bytes::Bytes;
use core::time::Duration;
use pluvio_client::{Deadline, Lifetime, TouchIf};

/// The shortest lifetime but none at all.
const SHORT_MS: u64 = 100;
/// The longest one that passes during a run.
pub(in crate::cluster) const LIFETIME_MAX: Duration = Duration::from_secs(20);
/// The shortest one that no run comes to the end of.
const LONG_MS: u64 = 1_200_000;

impl Worker {
    pub(super) async fn volatile(&mut self, kind: OperationKind) {
        let keys = self.shared.keys.of_kind(KeyKind::Volatile);
        let some = self.lifetimes.below(keys.len() as u64) as usize;
        let Some(key) = keys.get(some).copied() else {
            return;
        };
        let request = self.volatile_request(kind, key);
        self.ask(kind, key, request).await;
    }

    /// Reads a key that expires, and when it does.
    pub(in crate::cluster) async fn read_volatile(&mut self, key: KeyId) -> Outcome {
        let condition = Condition::default();
        let want = Want::Deadline;
        let deadline = Request::Get { condition, want };
        self.ask(OperationKind::ReadVolatile, key, deadline).await;
        self.ask(OperationKind::ReadVolatile, key, Request::read())
            .await
    }

    /// Deletes a key that expires.
    pub(in crate::cluster) async fn delete_volatile(&mut self, key: KeyId) -> Outcome {
        let request = Request::mutate(Change::Delete);
        self.ask(OperationKind::WriteVolatile, key, request).await
    }

    fn volatile_request(&mut self, kind: OperationKind, key: KeyId) -> Request {
        let last = self.versions.get(&key).copied().unwrap_or(0);
        let draw = &mut self.lifetimes;
        let conditional = draw.below(6) == 0;
        let condition = conditional.then(|| Condition::draw(draw, last));
        let condition = condition.unwrap_or_default();
        let want = match draw.below(10) {
            0 | 1 => Want::Deadline,
            2 => Want::TimeLeft,
            3 => Want::Nothing,
            4 => Want::Length,
            _ => Want::Value,
        };
        if kind == OperationKind::ReadVolatile {
            return Request::Get { condition, want };
        }
        let returns_old = draw.below(4) == 0;
        let expected = (draw.below(8) == 0).then(|| self.seen.get(&key).cloned());
        let value_is = expected.map(Option::unwrap_or_default);
        if kind == OperationKind::Touch {
            let all = TouchIf::ALL;
            let when = match draw.below(2) {
                0 => TouchIf::Always,
                _ => all[draw.below(all.len() as u64) as usize],
            };
            return Request::Mutate {
                condition,
                value_is,
                returns_old,
                change: Change::Touch(when),
                lifetime: Some(self.lifetime()),
            };
        }
        let text = |number: u64| Bytes::from(format!("v{number};"));
        let (change, lifetime) = match draw.below(16) {
            0 | 1 => (Change::Delete, None),
            // A change of an object keeps its deadline. The rule says that there is one: otherwise
            // one whose outcome is unknown could have made either of two values.
            2 | 3 => {
                let present = Condition {
                    present: true,
                    absent: false,
                    ..condition
                };
                let number = self.shared.journal.value_number();
                return Request::Mutate {
                    condition: present,
                    value_is,
                    returns_old: false,
                    change: Change::Append(text(number)),
                    lifetime: None,
                };
            }
            _ => {
                let number = self.shared.journal.value_number();
                (Change::Put(text(number)), Some(self.lifetime()))
            }
        };
        Request::Mutate {
            condition,
            value_is,
            returns_old,
            change,
            lifetime,
        }
    }

    /// Mostly one that ends in the run.
    fn lifetime(&mut self) -> Lifetime {
        let now = self.shared.sim.now().as_millis();
        let now = u64::try_from(now).expect("a run is short") + UNIX_START * 1_000;
        let draw = &mut self.lifetimes;
        let until = |ms: u64| Deadline::new(ms).map_or(Lifetime::Endless, Lifetime::Until);
        let short_max = u64::try_from(LIFETIME_MAX.as_millis()).expect("seconds");
        // Short ones more often than long ones.
        let short = draw.between(SHORT_MS, short_max);
        let short = short.min(draw.between(SHORT_MS, short_max));
        let long = LONG_MS * draw.between(1, 6);
        match draw.below(16) {
            0 => Lifetime::Endless,
            1 => Lifetime::Keep,
            2 => Lifetime::For(0),
            3 => until(now - short),
            4 => until(now + long),
            5 | 6 => Lifetime::For(long),
            7..=10 => until(now + short),
            _ => Lifetime::For(short),
        }
    }
}
