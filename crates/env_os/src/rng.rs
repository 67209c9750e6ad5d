//! Random numbers: xoshiro256++ (Blackman and Vigna, public domain), one state per thread, each
//! seeded by the kernel. No lock, no sharing. Secrets come from the kernel itself.

use core::cell::Cell;
use pluvio_env::Rng;
use rustix::rand::{GetRandomFlags, getrandom};

thread_local! {
    static STATE: Cell<[u64; 4]> = Cell::new(seed());
}

/// Fills `bytes` with random ones of the kernel.
fn fill(bytes: &mut [u8]) {
    let mut filled = 0;
    while filled < bytes.len() {
        match getrandom(&mut bytes[filled..], GetRandomFlags::empty()) {
            Ok(count) => filled += count,
            Err(rustix::io::Errno::INTR) => {}
            Err(error) => panic!("the kernel gives no random bytes: {error}"),
        }
    }
}

/// 256 bits from the kernel. All zero would be a fixed point of the generator, so it is avoided.
fn seed() -> [u64; 4] {
    let mut bytes = [0u8; 32];
    fill(&mut bytes);
    let mut state = [0u64; 4];
    for (word, bytes) in state.iter_mut().zip(bytes.chunks_exact(8)) {
        *word = u64::from_le_bytes(bytes.try_into().expect("chunks of eight bytes"));
    }
    state[0] |= u64::from(state == [0; 4]);
    state
}

/// A fast generator seeded by the operating system.
#[derive(Clone, Copy, Default, Debug)]
pub struct OsRng;

impl Rng for OsRng {
    fn next_u64(&self) -> u64 {
        STATE.with(|cell| {
            let mut s = cell.get();
            let result = s[0].wrapping_add(s[3]).rotate_left(23).wrapping_add(s[0]);
            let shifted = s[1] << 17;
            s[2] ^= s[0];
            s[3] ^= s[1];
            s[1] ^= s[2];
            s[0] ^= s[3];
            s[2] ^= shifted;
            s[3] = s[3].rotate_left(45);
            cell.set(s);
            result
        })
    }

    fn fill_secret(&self, bytes: &mut [u8]) {
        fill(bytes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn threads_draw_different_numbers() {
        let draw = || (0..4).map(|_| OsRng.next_u64()).collect::<Vec<_>>();
        let here = draw();
        let there = std::thread::scope(|scope| scope.spawn(draw).join().expect("no panic"));
        assert_ne!(here, there);
        assert_ne!(here, draw());
    }

    #[test]
    fn every_bit_comes_up() {
        let (ones, zeros) = (0..200)
            .map(|_| OsRng.next_u64())
            .fold((0, 0), |(ones, zeros), x| (ones | x, zeros | !x));
        assert_eq!((ones, zeros), (u64::MAX, u64::MAX));
    }
}
