//! Keys whose changes are held back for a transaction that would never be done without.
//!
//! 1. *Scattered*: its keys had pending entries in several logs. An object stays in a log as long
//!    as it is changed faster than that becomes durable (STORE-5).
//! 2. *Overtaken*: it reads first and then decides, elsewhere. Others changed its objects between
//!    its read and its commit, again and again. So its next read asks that they be kept as they
//!    are.
//!
//! - KEEP-1: a key is kept for one client at a time, for [`KEPT_MAX`] at most, and then for nobody
//!   for as long as it was. So changes in one step get their turn, too.
//! - KEEP-2: what was kept is free when its client has changed it, or locked it, or says so.
//!
//! Nothing here survives the server, and no promise rests on it. Bounded by [`HELD_BACK_MAX`] keys,
//! and in time. Any thread; the lock is held for single steps.

use core::time::Duration;
use pluvio_units::{ClientId, KeyPlace};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// How long changes of the keys of a scattered transaction are held back.
const SCATTERED_FOR: Duration = Duration::from_millis(20);
/// Longest time that keys are kept for one that was overtaken.
const KEPT_MAX: Duration = Duration::from_millis(50);
/// Most keys for which changes are held back.
const HELD_BACK_MAX: usize = 64 << 10;

/// See the module.
#[derive(Default)]
pub(crate) struct HeldBack {
    /// How many keys; read by every change.
    count: AtomicUsize,
    state: Mutex<HeldKeys>,
}

#[derive(Default)]
struct HeldKeys {
    keys: BTreeMap<KeyPlace, Held>,
    /// When all of them may be forgotten.
    last: Duration,
}

#[derive(Clone, Copy)]
struct Held {
    /// For whom; `None`: for any transaction.
    client: Option<ClientId>,
    since: Duration,
    until: Duration,
    /// It is kept for nobody before.
    rests_until: Duration,
}

impl Held {
    /// For the client that alone may change it.
    fn client_at(&self, now: Duration) -> Option<ClientId> {
        self.client.filter(|_| now < self.until)
    }
}

impl HeldKeys {
    fn room(&mut self, now: Duration) -> usize {
        if self.keys.len() >= HELD_BACK_MAX {
            self.keys.retain(|_, held| now < held.rests_until);
        }
        HELD_BACK_MAX.saturating_sub(self.keys.len())
    }
}

/// The state of keys that are held back, once a transaction on them is done.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Afterwards {
    /// They are free: it has changed or locked them, or its client says so (KEEP-2).
    Free,
    /// It has only read them.
    AsBefore,
}

impl HeldBack {
    /// Whether any key is held back.
    #[inline]
    pub(super) fn is_any(&self) -> bool {
        self.count.load(Ordering::Relaxed) > 0
    }

    fn state(&self) -> MutexGuard<'_, HeldKeys> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The state, without those whose time is over; `None` where there are no others.
    fn current(&self, now: Duration) -> Option<MutexGuard<'_, HeldKeys>> {
        if !self.is_any() {
            return None;
        }
        let mut state = self.state();
        if now < state.last {
            return Some(state);
        }
        state.keys.clear();
        self.count.store(0, Ordering::Relaxed);
        None
    }

    /// Whether a change outside of a transaction has to wait.
    pub(super) fn holds(&self, key: KeyPlace, now: Duration) -> bool {
        let state = self.current(now);
        state.is_some_and(|state| state.keys.get(&key).is_some_and(|held| now < held.until))
    }

    /// Whether any of these keys is kept for another client, and none for this one. Two that keep
    /// keys from each other do not wait for each other.
    pub(super) fn is_kept_from(
        &self,
        client: ClientId,
        keys: impl Iterator<Item = KeyPlace>,
        now: Duration,
    ) -> bool {
        let Some(state) = self.current(now) else {
            return false;
        };
        let held = keys.filter_map(|key| state.keys.get(&key));
        let mut others = 0;
        for kept_for in held.filter_map(|held| held.client_at(now)) {
            if kept_for == client {
                return false;
            }
            others += 1;
        }
        others > 0
    }

    /// Holds the keys of a scattered transaction back.
    pub(super) fn hold_scattered(&self, keys: impl Iterator<Item = KeyPlace>, now: Duration) {
        let until = now + SCATTERED_FOR;
        let held = Held {
            client: None,
            since: now,
            until,
            rests_until: until,
        };
        let mut state = self.state();
        let room = state.room(now);
        for key in keys.take(room) {
            let before = state.keys.entry(key).or_insert(held);
            // Those that are kept for its client stay so.
            if before.client_at(now).is_none() {
                *before = held;
            }
        }
        self.grown(state, until);
    }

    fn grown(&self, mut state: MutexGuard<'_, HeldKeys>, last: Duration) {
        state.last = state.last.max(last);
        self.count.store(state.keys.len(), Ordering::Relaxed);
    }

    /// Keeps keys for a client that was overtaken. False, with nothing done: one of them is kept
    /// for another one, or for nobody yet (KEEP-1).
    pub(super) fn keep(
        &self,
        client: ClientId,
        keys: impl Iterator<Item = KeyPlace> + Clone,
        time: Duration,
        now: Duration,
    ) -> bool {
        let until = now + time.min(KEPT_MAX);
        let held = Held {
            client: Some(client),
            since: now,
            until,
            rests_until: until + (until - now),
        };
        let mut state = self.state();
        let is_own = |held: &Held| held.client_at(now) == Some(client);
        let is_free = |held: &Held| now >= held.rests_until || is_own(held);
        let mut others = keys.clone().filter_map(|key| state.keys.get(&key));
        if others.any(|held| !is_free(held)) {
            return false;
        }
        let room = state.room(now);
        for key in keys.take(room) {
            let before = state.keys.entry(key).or_insert(held);
            // Its time does not begin anew.
            if !is_own(before) {
                *before = held;
            }
        }
        self.grown(state, held.rests_until);
        true
    }

    /// A transaction on these keys is done.
    pub(super) fn release(
        &self,
        keys: impl Iterator<Item = KeyPlace>,
        afterwards: Afterwards,
        now: Duration,
    ) {
        if afterwards == Afterwards::AsBefore {
            return;
        }
        let Some(mut state) = self.current(now) else {
            return;
        };
        for key in keys {
            let Some(held) = state.keys.get_mut(&key) else {
                continue;
            };
            match held.client {
                None => drop(state.keys.remove(&key)),
                Some(_) if now >= held.until => {}
                Some(_) => {
                    held.until = now;
                    held.rests_until = now + now.saturating_sub(held.since);
                }
            }
        }
        self.count.store(state.keys.len(), Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use pluvio_units::{KeyHash, TableId};

    const ONE: ClientId = ClientId(1);
    const OTHER: ClientId = ClientId(2);
    const LONG: Duration = Duration::from_secs(9);

    fn at(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    fn key(n: u64) -> KeyPlace {
        (TableId(1), KeyHash(n))
    }

    fn keys(of: core::ops::Range<u64>) -> impl Iterator<Item = KeyPlace> + Clone {
        of.map(key)
    }

    #[test]
    fn scattered_keys_are_held_back_for_a_time_or_until_the_transaction_is_done() {
        let held = HeldBack::default();
        held.hold_scattered(keys(1..3), at(0));
        assert!(held.is_any() && held.holds(key(1), at(19)) && !held.holds(key(3), at(1)));
        assert!(!held.is_kept_from(ONE, keys(1..3), at(1)), "it may come");
        assert!(!held.holds(key(1), at(20)), "its time is over");
        assert!(!held.is_any(), "nobody came again, and all were forgotten");
        held.hold_scattered(keys(1..3), at(20));
        held.release(keys(1..3), Afterwards::AsBefore, at(21));
        assert!(held.holds(key(1), at(21)), "a read frees nothing");
        held.release(keys(1..3), Afterwards::Free, at(21));
        assert!(!held.is_any());
        held.hold_scattered(keys(0..HELD_BACK_MAX as u64 + 9), at(30));
        assert_eq!(held.state().keys.len(), HELD_BACK_MAX);
        held.hold_scattered(keys(u64::MAX - 1..u64::MAX), at(60));
        assert_eq!(held.state().keys.len(), 1, "expired ones were dropped");
    }

    // shows: KEEP-1
    #[test]
    fn a_key_is_kept_for_one_at_a_time_and_then_for_nobody() {
        let held = HeldBack::default();
        assert!(held.keep(ONE, keys(1..3), LONG, at(100)));
        assert!(held.holds(key(1), at(149)), "changes wait");
        assert!(held.is_kept_from(OTHER, keys(2..9), at(149)));
        assert!(!held.is_kept_from(ONE, keys(1..9), at(149)));
        assert!(held.keep(OTHER, keys(5..6), LONG, at(120)));
        for client in [ONE, OTHER] {
            assert!(!held.is_kept_from(client, keys(1..6), at(149)), "no circle");
        }
        assert!(!held.keep(OTHER, keys(0..2), LONG, at(149)));
        assert!(!held.holds(key(0), at(149)), "nothing of it was done");
        assert!(held.keep(ONE, keys(1..3), LONG, at(140)));
        assert!(!held.holds(key(1), at(150)), "its time did not begin anew");
        for client in [ONE, OTHER] {
            assert!(!held.keep(client, keys(1..2), LONG, at(199)), "it rests");
        }
        assert!(held.keep(OTHER, keys(1..2), at(7), at(200)));
        assert!(held.holds(key(1), at(206)) && !held.holds(key(1), at(207)));
        assert!(!held.holds(key(1), at(300)) && !held.is_any(), "forgotten");
    }

    // shows: KEEP-2
    #[test]
    fn a_key_is_free_once_it_was_changed() {
        let held = HeldBack::default();
        assert!(held.keep(ONE, keys(1..3), LONG, at(100)));
        held.release(keys(1..3), Afterwards::AsBefore, at(105));
        assert!(held.holds(key(1), at(105)), "a read frees nothing");
        held.release(keys(1..2), Afterwards::Free, at(110));
        assert!(!held.holds(key(1), at(110)) && held.holds(key(2), at(110)));
        assert!(!held.keep(OTHER, keys(1..2), LONG, at(119)), "it rests");
        assert!(held.keep(OTHER, keys(1..2), LONG, at(120)));
        held.release(keys(1..2), Afterwards::Free, at(125));
        held.hold_scattered(keys(1..2), at(126));
        assert!(held.holds(key(1), at(127)), "also while it rests");
    }
}
