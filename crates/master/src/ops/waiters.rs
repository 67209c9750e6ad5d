//! Transactions of several owners that wait for keys which others have locked.
//!
//! A lock that is refused is asked for again and again. Where many transactions want the same keys,
//! one that wants many of them would find all free by chance only. So keys are kept for the one
//! that has waited longest: others are refused, as if it had locked them.
//!
//! - WAIT-1: of two transactions that wait at a server, only the later one is refused for the
//!   other. So the one that has waited longest gets its keys when those who have locked them
//!   release them. Two never keep keys from each other. Of its first [`KEYS_MAX`] keys, that is.
//! - WAIT-2: keys are kept only for a transaction that asks for them all the time. So one whose
//!   client died is in the way for [`SILENCE_MAX`] at most.
//!
//! Nothing here survives the server, and no promise rests on it.

use core::time::Duration;
use pluvio_units::{ClientId, KeyPlace};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Keys are kept for a transaction that has asked for so long. Kept keys stand idle until it asks
/// again, so chance does better for those that wait less. One that asks all its owners at once
/// gives up before, and releases what it has elsewhere (SEVERAL-3).
const KEPT_AFTER: Duration = Duration::from_millis(50);
/// A transaction that has not asked for so long waits no more.
const SILENCE_MAX: Duration = Duration::from_millis(40);
/// When one is to come again that waits behind another one, which has to lock its keys first and to
/// release them.
const AGAIN: Duration = Duration::from_micros(500);
/// So much later for each that waits: together they ask no more often, however many they are.
const AGAIN_EACH: Duration = Duration::from_micros(20);
/// How often those are forgotten that wait no more.
const SWEPT_EACH: Duration = Duration::from_millis(10);
/// Most transactions that are known to wait. Others wait as well, by chance.
const WAITERS_MAX: usize = 1024;
/// Most keys of one of them.
const KEYS_MAX: usize = 1024;

/// A transaction that waits.
struct Waiter {
    /// When it was refused first, and last.
    since: Duration,
    asked: Duration,
    keys: Vec<KeyPlace>,
}

impl Waiter {
    fn waits(&self, now: Duration) -> bool {
        now.saturating_sub(self.asked) < SILENCE_MAX
    }

    fn is_kept_for(&self, now: Duration) -> bool {
        self.waits(now) && self.asked.saturating_sub(self.since) >= KEPT_AFTER
    }
}

/// See the module. Any thread; the lock is held for single steps.
#[derive(Default)]
pub(crate) struct Waiters {
    /// How many there are: no lock is taken where nobody waits.
    count: AtomicUsize,
    all: Mutex<State>,
}

#[derive(Default)]
struct State {
    waiters: BTreeMap<ClientId, Waiter>,
    /// The transaction that has waited longest for each key.
    longest: BTreeMap<KeyPlace, ClientId>,
    /// When those were forgotten last that wait no more.
    swept: Duration,
}

impl State {
    fn remove(&mut self, client: ClientId) {
        let Some(waiter) = self.waiters.remove(&client) else {
            return;
        };
        for key in waiter.keys {
            if self.longest.get(&key) == Some(&client) {
                self.longest.remove(&key);
            }
        }
    }

    fn sweep(&mut self, now: Duration) {
        if now.saturating_sub(self.swept) < SWEPT_EACH {
            return;
        }
        self.swept = now;
        let silent = self.waiters.iter().filter(|(_, waiter)| !waiter.waits(now));
        let silent: Vec<_> = silent.map(|(client, _)| *client).collect();
        for client in silent {
            self.remove(client);
        }
    }
}

impl Waiters {
    fn state(&self) -> MutexGuard<'_, State> {
        self.all.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Where any of these keys is kept for a transaction that has waited longer (WAIT-1): when to
    /// come again.
    pub(super) fn come_again(
        &self,
        client: ClientId,
        keys: impl Iterator<Item = KeyPlace>,
        now: Duration,
    ) -> Option<Duration> {
        if self.count.load(Ordering::Relaxed) == 0 {
            return None;
        }
        let mut state = self.state();
        // Many give up without a word. So this is where the last of them is forgotten.
        state.sweep(now);
        self.count.store(state.waiters.len(), Ordering::Relaxed);
        let since = state.waiters.get(&client).map_or(now, |own| own.since);
        let is_before = |other: &ClientId| {
            let waiter = state.waiters.get(other);
            waiter.is_some_and(|w| w.is_kept_for(now) && (w.since, *other) < (since, client))
        };
        let mut longest = keys.filter_map(|key| state.longest.get(&key));
        let is_behind = longest.any(is_before);
        let many = u32::try_from(state.waiters.len()).unwrap_or(u32::MAX);
        is_behind.then(|| AGAIN + AGAIN_EACH.saturating_mul(many))
    }

    /// A transaction was refused for the locks of others, or for those who wait longer.
    pub(super) fn refused(
        &self,
        client: ClientId,
        keys: impl Iterator<Item = KeyPlace>,
        now: Duration,
    ) {
        let mut state = self.state();
        state.sweep(now);
        if let Some(waiter) = state.waiters.get_mut(&client) {
            waiter.asked = now;
        } else if state.waiters.len() < WAITERS_MAX {
            let waiter = Waiter {
                since: now,
                asked: now,
                keys: keys.take(KEYS_MAX).collect(),
            };
            state.waiters.insert(client, waiter);
        }
        let State {
            waiters, longest, ..
        } = &mut *state;
        if let Some(own) = waiters.get(&client) {
            for key in &own.keys {
                let other = longest
                    .get(key)
                    .and_then(|other| waiters.get_key_value(other));
                let is_first = other
                    .is_none_or(|(other, waiter)| (own.since, client) < (waiter.since, *other));
                if is_first {
                    longest.insert(*key, client);
                }
            }
        }
        self.count.store(state.waiters.len(), Ordering::Relaxed);
    }

    /// A transaction waits no more.
    pub(super) fn ended(&self, client: ClientId) {
        if self.count.load(Ordering::Relaxed) == 0 {
            return;
        }
        let mut state = self.state();
        state.remove(client);
        self.count.store(state.waiters.len(), Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use pluvio_units::{KeyHash, TableId};

    fn at(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    fn keys(of: core::ops::Range<u64>) -> impl Iterator<Item = KeyPlace> {
        of.map(|n| (TableId(1), KeyHash(n)))
    }

    const FIRST: ClientId = ClientId(9);
    const LATER: ClientId = ClientId(5);
    const NEW: ClientId = ClientId(1);

    fn are_before(
        waiters: &Waiters,
        client: ClientId,
        keys: impl Iterator<Item = KeyPlace>,
        now: Duration,
    ) -> bool {
        waiters.come_again(client, keys, now).is_some()
    }

    /// Both were refused: one at 0 ms, the other one millisecond later. Both ask again until
    /// 60 ms.
    fn two_that_wait() -> Waiters {
        let waiters = Waiters::default();
        for ms in [0, 30, 60] {
            waiters.refused(FIRST, keys(0..4), at(ms));
            waiters.refused(LATER, keys(2..6), at(ms + 1));
        }
        waiters
    }

    // shows: WAIT-1
    #[test]
    fn keys_are_kept_for_the_one_that_has_waited_longest() {
        let waiters = two_that_wait();
        assert!(!are_before(&waiters, FIRST, keys(0..4), at(62)));
        assert!(are_before(&waiters, LATER, keys(2..6), at(62)));
        assert!(are_before(&waiters, NEW, keys(0..1), at(62)));
        assert!(are_before(&waiters, NEW, keys(5..6), at(62)));
        assert!(!are_before(&waiters, NEW, keys(6..9), at(62)));
        waiters.ended(FIRST);
        assert!(!are_before(&waiters, LATER, keys(2..6), at(62)));
        assert!(!are_before(&waiters, NEW, keys(0..1), at(62)));
        // It asks again, and keeps those that the first one kept.
        waiters.refused(LATER, keys(2..6), at(63));
        assert!(are_before(&waiters, NEW, keys(2..3), at(63)));
    }

    #[test]
    fn nothing_is_kept_for_one_that_has_just_come() {
        let waiters = Waiters::default();
        waiters.refused(FIRST, keys(0..4), at(0));
        waiters.refused(FIRST, keys(0..4), at(30));
        assert!(!are_before(&waiters, NEW, keys(0..1), at(59)));
        waiters.refused(FIRST, keys(0..4), at(60));
        assert!(are_before(&waiters, NEW, keys(0..1), at(60)));
    }

    // shows: WAIT-2
    #[test]
    fn nothing_is_kept_for_one_that_asks_no_more() {
        let waiters = two_that_wait();
        assert!(are_before(&waiters, NEW, keys(0..1), at(99)));
        assert!(!are_before(&waiters, NEW, keys(0..1), at(100)));
        assert!(!are_before(&waiters, NEW, keys(0..1), at(110)));
        assert_eq!(waiters.count.load(Ordering::Relaxed), 0, "no lock is taken");
        waiters.refused(NEW, keys(8..9), at(110));
        assert_eq!(
            waiters.state().waiters.len(),
            1,
            "silent ones are forgotten"
        );
        assert_eq!(waiters.state().longest.len(), 1);
    }

    #[test]
    fn few_are_remembered_with_few_keys() {
        let waiters = Waiters::default();
        for n in 0..WAITERS_MAX as u64 + 9 {
            waiters.refused(ClientId(n), keys(n..n + 1), at(0));
        }
        assert_eq!(waiters.state().waiters.len(), WAITERS_MAX);
        let waiters = Waiters::default();
        waiters.refused(FIRST, keys(0..KEYS_MAX as u64 + 9), at(0));
        assert_eq!(waiters.state().longest.len(), KEYS_MAX);
    }
}
