//! Which keys are used most: the Space-Saving summary [Metwally et al., 2005], with weights that
//! fade.
//!
//! A list counts a fixed number of keys. A key that it does not count takes the place of the one
//! with the least weight. It inherits that weight, because it may have been used as much before.
//!
//! - TOP-1: a key is on the list if its uses are more than those of all keys divided by the number
//!   of places. A weight is too high by what its key inherited at most, and never too low.
//!
//! Owned by [`Samples`](super::Samples), under its lock.

use pluvio_units::KeyHash;

/// Keys that a list counts.
pub(super) const PLACES: usize = 64;
/// Bytes of a key that are remembered, so that memory is bounded.
pub(super) const KEY_SHOWN: usize = 256;
/// A weight that has faded to this is gone.
const FADED: f64 = 0.5;

/// A key, as far as it is remembered. Keys of one table with one hash count as one.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct ShownKey {
    pub(super) hash: KeyHash,
    pub(super) start: Box<[u8]>,
    pub(super) len: usize,
}

impl ShownKey {
    pub(super) fn of(hash: KeyHash, key: &[u8]) -> Self {
        let start = &key[..key.len().min(KEY_SHOWN)];
        Self {
            hash,
            start: start.into(),
            len: key.len(),
        }
    }
}

/// A key and how much it was used.
#[derive(Clone, Debug)]
pub(super) struct Counted {
    pub(super) key: ShownKey,
    /// Uses that its samples stand for, and what it inherited. Not too low (TOP-1).
    pub(super) weight: f64,
    /// By how much the weight may be too high.
    pub(super) inherited: f64,
    /// The variance of the weight that sampling brings.
    pub(super) variance: f64,
}

/// See the module.
#[derive(Default, Debug)]
pub(super) struct TopList {
    counted: Vec<Counted>,
    /// The weight of all keys, also of those not on the list.
    total: f64,
}

impl TopList {
    /// Counts a sample of a key. `weight`: the uses that it stands for.
    pub(super) fn count(&mut self, hash: KeyHash, key: &[u8], weight: f64) {
        self.total += weight;
        // Of w uses one is sampled: the estimate w has the variance w (w - 1).
        let variance = weight * (weight - 1.0);
        if let Some(known) = self.counted.iter_mut().find(|c| c.key.hash == hash) {
            known.weight += weight;
            known.variance += variance;
            return;
        }
        let mut new = Counted {
            key: ShownKey::of(hash, key),
            weight,
            inherited: 0.0,
            variance,
        };
        if self.counted.len() < PLACES {
            self.counted.push(new);
            return;
        }
        let least = self.counted.iter_mut();
        let least = least.min_by(|a, b| a.weight.total_cmp(&b.weight));
        let least = least.expect("a full list is not empty");
        new.weight += least.weight;
        new.inherited = least.weight;
        *least = new;
    }

    /// The weight of all keys.
    pub(super) fn total(&self) -> f64 {
        self.total
    }

    /// Halves all weights, as often as it says.
    pub(super) fn fade(&mut self, halvings: u32) {
        let factor = 0.5_f64.powi(i32::try_from(halvings).unwrap_or(i32::MAX));
        self.total *= factor;
        for counted in &mut self.counted {
            counted.weight *= factor;
            counted.inherited *= factor;
            counted.variance *= factor * factor;
        }
        self.counted.retain(|counted| counted.weight > FADED);
    }

    pub(super) fn is_empty(&self) -> bool {
        self.counted.is_empty()
    }

    /// The keys that are certain to be used most, most first.
    pub(super) fn most(&self, count: usize) -> Vec<Counted> {
        let certain = |counted: &Counted| counted.weight - counted.inherited;
        let mut all = self.counted.clone();
        all.sort_by(|a, b| certain(b).total_cmp(&certain(a)));
        all.truncate(count);
        all
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(n: u64) -> Vec<u8> {
        n.to_string().into_bytes()
    }

    // shows: TOP-1
    #[test]
    fn what_is_used_much_is_on_the_list_and_not_counted_too_low() {
        let mut list = TopList::default();
        // Three keys take 3, 2 and 1 of each 16 uses; the others are used once.
        for n in 0..16_000_u64 {
            let used = match n % 16 {
                0..3 => 1,
                3..5 => 2,
                5 => 3,
                _ => 1000 + n,
            };
            list.count(KeyHash(used), &key(used), 1.0);
        }
        let most = list.most(3);
        for (counted, (name, uses)) in most.iter().zip([(1, 3000.0), (2, 2000.0), (3, 1000.0)]) {
            assert_eq!(*counted.key.start, *key(name));
            assert!(counted.weight >= uses, "{counted:?}");
            assert!(counted.weight - counted.inherited <= uses, "{counted:?}");
            assert!(counted.inherited <= 16_000.0 / PLACES as f64, "{counted:?}");
        }
        assert_eq!(list.counted.len(), PLACES);
        assert!((list.total() - 16_000.0).abs() < 1.0);
    }

    #[test]
    fn what_is_used_no_more_fades() {
        let mut list = TopList::default();
        list.count(KeyHash(1), b"old", 100.0);
        list.fade(3);
        list.count(KeyHash(2), b"new", 20.0);
        let most = list.most(9);
        assert_eq!(*most[0].key.start, *b"new");
        assert!((most[1].weight - 12.5).abs() < 1e-9);
        list.fade(64);
        assert!(list.is_empty());
    }

    #[test]
    fn long_keys_are_cut() {
        let mut list = TopList::default();
        list.count(KeyHash(1), &[7; 5000], 1.0);
        let most = list.most(1);
        assert_eq!(
            (most[0].key.start.len(), most[0].key.len),
            (KEY_SHOWN, 5000)
        );
    }
}
