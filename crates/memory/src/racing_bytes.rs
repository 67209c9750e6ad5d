//! Bytes of a region that are overwritten while others read them.
//!
//! Owns nothing. Their place was checked when the region gave them out, so a holder loads and
//! stores without another check of borders. On x86-64 the copies are those of `racing`. Elsewhere
//! they are relaxed atomic loads and stores of words, and of bytes at the ends.

use crate::region::Region;
use core::marker::PhantomData;
use core::ptr::NonNull;
#[cfg(any(test, not(target_arch = "x86_64")))]
use core::sync::atomic::{AtomicU8, AtomicU64, Ordering};

/// Bytes that may change while they are read. A loaded value may be torn, and the caller finds that
/// out by a version. Loads and stores act as relaxed atomic ones.
///
/// While a thread may change the bytes, all users take them in the same parts ([`Self::split_at`]).
/// They load or store from the beginning of a part. Where atomics are used, all users then agree
/// which bytes are accessed as words.
#[derive(Clone, Copy, Debug)]
pub struct RacingBytes<'a> {
    start: NonNull<u8>,
    len: usize,
    region: PhantomData<&'a Region>,
}

impl<'a> RacingBytes<'a> {
    /// # Safety
    /// They are mapped and initialised as long as `'a`.
    #[inline(always)]
    pub(crate) unsafe fn new(start: NonNull<u8>, len: usize) -> Self {
        Self {
            start,
            len,
            region: PhantomData,
        }
    }

    /// The number of bytes.
    #[must_use]
    #[inline(always)]
    #[expect(
        clippy::len_without_is_empty,
        reason = "a room that may be empty, but that nobody asks it of"
    )]
    pub fn len(self) -> usize {
        self.len
    }

    /// The first `at` bytes, and the others.
    ///
    /// # Panics
    /// When there are fewer.
    #[must_use]
    #[inline(always)]
    pub fn split_at(self, at: usize) -> (RacingBytes<'a>, RacingBytes<'a>) {
        assert!(at <= self.len, "{at} bytes of {}", self.len);
        let part = |start, len| Self {
            start,
            len,
            region: PhantomData,
        };
        // SAFETY: the place is at most the end of the mapped bytes.
        let behind = unsafe { self.start.add(at) };
        (part(self.start, at), part(behind, self.len - at))
    }

    /// Copies the first bytes out.
    ///
    /// # Panics
    /// When there are fewer than `into` has.
    #[inline]
    pub fn load(self, into: &mut [u8]) {
        assert!(
            into.len() <= self.len,
            "{} bytes of {}",
            into.len(),
            self.len
        );
        #[cfg(target_arch = "x86_64")]
        // SAFETY: mapped and initialised, as `new` was promised; `into` has room for its length.
        unsafe {
            crate::racing::load(self.start.as_ptr(), into.as_mut_ptr(), into.len());
        }
        #[cfg(not(target_arch = "x86_64"))]
        self.load_atomics(into);
    }

    /// Whether they are those bytes. An answer means no more than a copy would.
    #[must_use]
    #[inline(always)]
    pub fn is_same(self, bytes: &[u8]) -> bool {
        if self.len != bytes.len() {
            return false;
        }
        #[cfg(target_arch = "x86_64")]
        // SAFETY: mapped and initialised, as `new` was promised, and as many as `bytes`.
        unsafe {
            crate::racing::is_same(self.start.as_ptr(), bytes)
        }
        #[cfg(not(target_arch = "x86_64"))]
        self.is_same_by_atomics(bytes)
    }

    /// [`Self::is_same`] by atomic loads of bytes and words.
    #[cfg(any(test, not(target_arch = "x86_64")))]
    fn is_same_by_atomics(self, bytes: &[u8]) -> bool {
        let (edge, words, end) = self.atomics();
        let (first, rest) = bytes.split_at(edge.len());
        let (middle, last) = rest.split_at(8 * words.len());
        let same = |at: &AtomicU8, byte: &u8| at.load(Ordering::Relaxed) == *byte;
        let same_word = |at: &AtomicU64, word: &[u8; 8]| {
            at.load(Ordering::Relaxed) == u64::from_ne_bytes(*word)
        };
        let (middle, _) = middle.as_chunks::<8>();
        edge.iter().zip(first).all(|(at, byte)| same(at, byte))
            && words
                .iter()
                .zip(middle)
                .all(|(at, word)| same_word(at, word))
            && end.iter().zip(last).all(|(at, byte)| same(at, byte))
    }

    /// Lets `into` hold a copy of the first `len` of them.
    ///
    /// # Panics
    /// When there are fewer.
    #[inline(always)]
    pub fn load_vec(self, len: usize, into: &mut Vec<u8>) {
        assert!(len <= self.len, "{len} bytes of {}", self.len);
        into.clear();
        #[cfg(target_arch = "x86_64")]
        {
            into.reserve(len);
            // SAFETY: mapped and initialised, as `new` was promised. The vector has that much
            // capacity, and all of it up to its new length is written.
            unsafe {
                crate::racing::load(self.start.as_ptr(), into.as_mut_ptr(), len);
                into.set_len(len);
            }
        }
        #[cfg(not(target_arch = "x86_64"))]
        {
            into.resize(len, 0);
            self.load_atomics(into);
        }
    }

    /// All `N` bytes, each loaded once: the parts of the result can be used at once, without a way
    /// through memory.
    ///
    /// # Panics
    /// When there are not `N`.
    #[must_use]
    #[inline(always)]
    pub fn load_array<const N: usize>(self) -> [u8; N] {
        assert!(self.len == N, "{N} bytes of {}", self.len);
        #[cfg(target_arch = "x86_64")]
        // SAFETY: mapped and initialised, as `new` was promised.
        unsafe {
            crate::racing::load_array(self.start.as_ptr())
        }
        #[cfg(not(target_arch = "x86_64"))]
        {
            let mut array = [0; N];
            self.load_atomics(&mut array);
            array
        }
    }

    /// Overwrites the first bytes; the content of the others is unspecified afterwards.
    ///
    /// # Panics
    /// When there are fewer than `data` has.
    ///
    /// # Safety
    /// No slice of [`Region::bytes`] covers one of them, and no [`Region::write`] to them is under
    /// way. No other thread stores to them at the same time.
    #[inline(always)]
    pub unsafe fn store(self, data: &[u8]) {
        assert!(
            data.len() <= self.len,
            "{} bytes of {}",
            data.len(),
            self.len
        );
        #[cfg(target_arch = "x86_64")]
        // SAFETY: mapped; only the caller stores there, and no thread has a slice.
        unsafe {
            crate::racing::store(self.start.as_ptr(), data);
        }
        #[cfg(not(target_arch = "x86_64"))]
        self.store_atomics(data);
    }

    /// Overwrites all `N` of them, each once.
    ///
    /// # Panics
    /// When there are not `N`.
    ///
    /// # Safety
    /// As of [`Self::store`].
    #[inline(always)]
    pub unsafe fn store_array<const N: usize>(self, array: &[u8; N]) {
        assert!(self.len == N, "{N} bytes of {}", self.len);
        #[cfg(target_arch = "x86_64")]
        // SAFETY: mapped; only the caller stores there, and no thread has a slice.
        unsafe {
            crate::racing::store_array(self.start.as_ptr(), array);
        }
        #[cfg(not(target_arch = "x86_64"))]
        self.store_atomics(array);
    }

    /// [`Self::load`] by atomic loads of bytes and words.
    #[cfg(any(test, not(target_arch = "x86_64")))]
    fn load_atomics(self, into: &mut [u8]) {
        let (edge, words, end) = self.atomics();
        let (first, rest) = into.split_at_mut(edge.len().min(into.len()));
        for (to, from) in first.iter_mut().zip(edge) {
            *to = from.load(Ordering::Relaxed);
        }
        let mut chunks = rest.chunks_exact_mut(8);
        let mut from = words.iter();
        for (to, word) in (&mut chunks).zip(&mut from) {
            to.copy_from_slice(&word.load(Ordering::Relaxed).to_ne_bytes());
        }
        let last = chunks.into_remainder();
        match from.next() {
            // The wanted bytes end inside a word.
            Some(word) => {
                let bytes = word.load(Ordering::Relaxed).to_ne_bytes();
                last.copy_from_slice(&bytes[..last.len()]);
            }
            None => {
                for (to, from) in last.iter_mut().zip(end) {
                    *to = from.load(Ordering::Relaxed);
                }
            }
        }
    }

    /// [`Self::store`] by atomic stores of bytes and words. Bytes behind `data`, up to the end of
    /// its last word, become zero.
    #[cfg(any(test, not(target_arch = "x86_64")))]
    fn store_atomics(self, data: &[u8]) {
        let (edge, words, end) = self.atomics();
        let (first, rest) = data.split_at(edge.len().min(data.len()));
        for (to, from) in edge.iter().zip(first) {
            to.store(*from, Ordering::Relaxed);
        }
        let mut to = words.iter();
        let (chunks, last) = rest.as_chunks::<8>();
        for (from, word) in chunks.iter().zip(&mut to) {
            word.store(u64::from_ne_bytes(*from), Ordering::Relaxed);
        }
        match to.next() {
            Some(word) if !last.is_empty() => {
                let mut bytes = [0; 8];
                bytes[..last.len()].copy_from_slice(last);
                word.store(u64::from_ne_bytes(bytes), Ordering::Relaxed);
            }
            Some(_) => {}
            None => {
                for (to, from) in end.iter().zip(last) {
                    to.store(*from, Ordering::Relaxed);
                }
            }
        }
    }

    /// The bytes before the first whole word, the whole words, and the bytes behind the last one.
    #[cfg(any(test, not(target_arch = "x86_64")))]
    fn atomics(self) -> (&'a [AtomicU8], &'a [AtomicU64], &'a [AtomicU8]) {
        let at = self.start.addr().get();
        let edge = (at.next_multiple_of(8) - at).min(self.len);
        let words = (self.len - edge) / 8;
        // SAFETY: mapped and initialised, as `new` was promised; bytes have no alignment. Every
        // thread with another kind of access at the same time promised to have none.
        let bytes: &[AtomicU8] =
            unsafe { core::slice::from_raw_parts(self.start.as_ptr().cast(), self.len) };
        let (edge, rest) = bytes.split_at(edge);
        let (middle, end) = rest.split_at(8 * words);
        let words: &[AtomicU64] = match words {
            0 => &[],
            // SAFETY: the length of `middle` is a multiple of eight bytes. It begins at a multiple
            // of 8, because it is not empty.
            _ => unsafe { core::slice::from_raw_parts(middle.as_ptr().cast(), words) },
        };
        (edge, words, end)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn racing_bytes_are_stored_and_loaded_at_every_alignment_and_length() {
        let region = Region::anonymous(1, false).unwrap();
        // As long as four blocks and a part, and twice that.
        let rooms = || (0..40).chain([63, 64, 65, 100, 127, 128, 129, 200]);
        for (offset, room) in (0..9).flat_map(|o| rooms().map(move |r| (o, r))) {
            let bytes = region.racing_in_granule(offset, room);
            for len in 0..=room {
                let data: Vec<u8> = (0..len).map(|n| n as u8 + 1).collect();
                // SAFETY: this thread alone uses the region.
                unsafe {
                    region.write(offset, &[0xff; 256][..room + 1]);
                    bytes.store(&data);
                }
                let mut back = vec![0; len];
                bytes.load(&mut back);
                assert_eq!(back, data, "{len} of {room} at {offset}");
                let mut back = vec![7; 20];
                bytes.load_vec(len, &mut back);
                assert_eq!(back, data, "{len} of {room} at {offset}");
                bytes.store_atomics(&data);
                let mut back = vec![0; len];
                bytes.load_atomics(&mut back);
                assert_eq!(back, data, "{len} of {room} at {offset}");
                // SAFETY: as above.
                let behind = unsafe { region.bytes(offset + room as u64, 1) };
                assert_eq!(behind, [0xff], "the neighbour stays");
            }
        }
    }

    #[test]
    fn racing_bytes_are_compared_at_every_alignment_and_length() {
        let region = Region::anonymous(1, false).unwrap();
        for (offset, len) in (0..9).flat_map(|o| (0..70).map(move |len| (o, len))) {
            let bytes = region.racing_in_granule(offset, len);
            let mut data: Vec<u8> = (0..len).map(|n| n as u8 + 1).collect();
            // SAFETY: this thread alone uses the region.
            unsafe { bytes.store(&data) };
            assert!(bytes.is_same(&data) && bytes.is_same_by_atomics(&data));
            for at in 0..len {
                data[at] ^= 0x80;
                let found = (bytes.is_same(&data), bytes.is_same_by_atomics(&data));
                assert_eq!(found, (false, false), "byte {at} of {len} at {offset}");
                data[at] ^= 0x80;
            }
            data.push(0);
            assert!(!bytes.is_same(&data), "another length");
        }
    }

    #[test]
    fn racing_arrays_are_stored_and_loaded_whole() {
        fn check<const N: usize>(region: &Region) {
            for offset in 8..17 {
                let array: [u8; N] = core::array::from_fn(|at| at as u8 + 1);
                let around = region.racing_in_granule(offset - 1, N + 2);
                let (_, behind) = around.split_at(1);
                let (middle, last) = behind.split_at(N);
                assert_eq!((middle.len(), last.len()), (N, 1));
                // SAFETY: this thread alone uses the region.
                unsafe {
                    region.write(offset - 1, &[0xff; 64][..N + 2]);
                    middle.store_array(&array);
                }
                assert_eq!(middle.load_array::<N>(), array);
                let mut all = vec![0; N + 2];
                around.load(&mut all);
                assert_eq!(all, [&[0xff], &array[..], &[0xff]].concat());
            }
        }
        let region = Region::anonymous(1, false).unwrap();
        check::<1>(&region);
        check::<7>(&region);
        check::<8>(&region);
        check::<12>(&region);
        check::<31>(&region);
    }

    #[test]
    #[should_panic(expected = "M1")]
    fn racing_bytes_end_in_their_granule() {
        let region = Region::anonymous(2 * crate::REGION_GRANULE_BYTES, false).unwrap();
        let _too_long = region.racing_in_granule(crate::REGION_GRANULE_BYTES - 10, 11);
    }
}
