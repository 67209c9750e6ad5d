//! A slab: values under keys that are never given twice.
//!
//! Places are reused last-in first-out, so iteration order depends only on what was done.

/// Names one value of a [`Slab`] for ever: a later value in the same place has another key.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) struct Key {
    index: u32,
    generation: u32,
}

impl Key {
    /// A key that no value ever has.
    pub(crate) const NONE: Self = Self {
        index: u32::MAX,
        generation: u32::MAX,
    };

    /// The key as one word, for the trace.
    pub(crate) fn word(self) -> u64 {
        u64::from(self.generation) << 32 | u64::from(self.index)
    }
}

struct Place<T> {
    generation: u32,
    value: Option<T>,
}

pub(crate) struct Slab<T> {
    places: Vec<Place<T>>,
    free: Vec<u32>,
}

impl<T> Slab<T> {
    pub(crate) fn new() -> Self {
        Self {
            places: Vec::new(),
            free: Vec::new(),
        }
    }

    pub(crate) fn insert(&mut self, value: T) -> Key {
        self.insert_with(|_| value)
    }

    pub(crate) fn insert_with(&mut self, make: impl FnOnce(Key) -> T) -> Key {
        let index = self.free.pop().unwrap_or_else(|| {
            let index = u32::try_from(self.places.len()).expect("fewer than 2^32 live values");
            self.places.push(Place {
                generation: 0,
                value: None,
            });
            index
        });
        let place = &mut self.places[index as usize];
        let key = Key {
            index,
            generation: place.generation,
        };
        place.value = Some(make(key));
        key
    }

    pub(crate) fn get(&self, key: Key) -> Option<&T> {
        let place = self.places.get(key.index as usize)?;
        place
            .value
            .as_ref()
            .filter(|_| place.generation == key.generation)
    }

    pub(crate) fn get_mut(&mut self, key: Key) -> Option<&mut T> {
        let place = self.places.get_mut(key.index as usize)?;
        if place.generation == key.generation {
            place.value.as_mut()
        } else {
            None
        }
    }

    pub(crate) fn contains(&self, key: Key) -> bool {
        self.get(key).is_some()
    }

    pub(crate) fn remove(&mut self, key: Key) -> Option<T> {
        let place = self.places.get_mut(key.index as usize)?;
        if place.generation != key.generation {
            return None;
        }
        let value = place.value.take()?;
        place.generation = place.generation.wrapping_add(1);
        self.free.push(key.index);
        Some(value)
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (Key, &T)> {
        self.places.iter().enumerate().filter_map(|(index, place)| {
            let value = place.value.as_ref()?;
            let key = Key {
                index: u32::try_from(index).expect("as in insert_with"),
                generation: place.generation,
            };
            Some((key, value))
        })
    }

    /// Takes out all values that `choose` wants, in the order of their places.
    pub(crate) fn drain_where(&mut self, mut choose: impl FnMut(&T) -> bool) -> Vec<(Key, T)> {
        let keys: Vec<Key> = self
            .iter()
            .filter(|(_, value)| choose(value))
            .map(|(key, _)| key)
            .collect();
        keys.into_iter()
            .filter_map(|key| self.remove(key).map(|value| (key, value)))
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_old_key_does_not_reach_a_new_value() {
        let mut slab = Slab::new();
        let old = slab.insert('a');
        assert_eq!(slab.remove(old), Some('a'));
        let new = slab.insert('b');
        assert_ne!(old, new);
        assert_eq!(slab.get(old), None);
        assert_eq!(slab.remove(old), None);
        assert_eq!(slab.get(new), Some(&'b'));
        assert!(!slab.contains(Key::NONE));
    }
}
