//! Randomness.

/// A source of random numbers. Not for secrets.
pub trait Rng: Send + Sync {
    /// 64 random bits.
    fn next_u64(&self) -> u64;

    /// Fills `bytes` with random ones that strangers cannot guess: for salts, keys and passwords.
    /// Numbers of [`Rng::next_u64`] may be guessed from others of them. In a simulation these are
    /// no better.
    fn fill_secret(&self, bytes: &mut [u8]) {
        for chunk in bytes.chunks_mut(8) {
            let word = self.next_u64().to_le_bytes();
            chunk.copy_from_slice(&word[..chunk.len()]);
        }
    }

    /// A number in `0..bound`, every one equally likely up to 2^-32 for small bounds.
    ///
    /// # Panics
    /// When `bound` is zero.
    fn below(&self, bound: u64) -> u64 {
        assert!(bound > 0, "there is no number below zero");
        ((u128::from(self.next_u64()) * u128::from(bound)) >> 64) as u64
    }
}

impl dyn Rng + '_ {
    /// Puts `items` in random order.
    pub fn shuffle<T>(&self, items: &mut [T]) {
        for i in (1..items.len()).rev() {
            items.swap(i, self.below(i as u64 + 1) as usize);
        }
    }
}
