//! SipHash-2-4 (Aumasson and Bernstein, public domain): a keyed check of 64 bits. A side without
//! the key can only guess it. It serves for the tags of datagrams, for cookies, and for numbers
//! that nobody may foresee.

/// A secret of 128 bits.
#[derive(Clone, Copy)]
pub(crate) struct Key(pub(crate) u64, pub(crate) u64);

impl Key {
    /// The key for one use of a secret: who knows it knows nothing of the secret.
    pub(crate) fn derive(self, label: u64) -> Self {
        let part = |half: u64| siphash(self, &[label, half].map(u64::to_le_bytes).concat());
        Self(part(0), part(1))
    }
}

/// The keyed check of `bytes`.
pub(crate) fn siphash(key: Key, bytes: &[u8]) -> u64 {
    let mut state = [
        key.0 ^ 0x736f_6d65_7073_6575,
        key.1 ^ 0x646f_7261_6e64_6f6d,
        key.0 ^ 0x6c79_6765_6e65_7261,
        key.1 ^ 0x7465_6462_7974_6573,
    ];
    let mut words = bytes.chunks_exact(8);
    for word in &mut words {
        absorb(&mut state, le_word(word));
    }
    let last = le_word(words.remainder()) | (bytes.len() as u64) << 56;
    absorb(&mut state, last);
    state[2] ^= 0xff;
    for _ in 0..4 {
        round(&mut state);
    }
    state.iter().fold(0, |all, word| all ^ word)
}

/// At most eight bytes as a number, zeros behind them.
fn le_word(bytes: &[u8]) -> u64 {
    let mut word = [0; 8];
    word[..bytes.len()].copy_from_slice(bytes);
    u64::from_le_bytes(word)
}

fn absorb(state: &mut [u64; 4], word: u64) {
    state[3] ^= word;
    round(state);
    round(state);
    state[0] ^= word;
}

fn round(v: &mut [u64; 4]) {
    v[0] = v[0].wrapping_add(v[1]);
    v[1] = v[1].rotate_left(13) ^ v[0];
    v[0] = v[0].rotate_left(32);
    v[2] = v[2].wrapping_add(v[3]);
    v[3] = v[3].rotate_left(16) ^ v[2];
    v[0] = v[0].wrapping_add(v[3]);
    v[3] = v[3].rotate_left(21) ^ v[0];
    v[2] = v[2].wrapping_add(v[1]);
    v[1] = v[1].rotate_left(17) ^ v[2];
    v[2] = v[2].rotate_left(32);
}

/// Numbers that nobody without the secret can foresee or tell from others.
pub(crate) struct Secret {
    key: Key,
    drawn: u64,
}

impl Secret {
    pub(crate) fn new(key: Key) -> Self {
        Self { key, drawn: 0 }
    }

    /// The next number; never zero, which stands for "no session".
    pub(crate) fn draw(&mut self) -> u64 {
        loop {
            self.drawn += 1;
            let number = siphash(self.key, &self.drawn.to_le_bytes());
            if number != 0 {
                return number;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_test_vectors_of_the_paper_come_out() {
        let key = Key(0x0706_0504_0302_0100, 0x0f0e_0d0c_0b0a_0908);
        let bytes: Vec<u8> = (0..15).collect();
        assert_eq!(siphash(key, &bytes), 0xa129_ca61_49be_45e5);
        assert_eq!(siphash(key, &[]), 0x726f_db47_dd0e_0e31);
    }
}
