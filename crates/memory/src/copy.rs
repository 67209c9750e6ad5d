//! Ways of copying bytes into a region: the C library's way, and two others that experiments
//! compare with it.
//!
//! - [`CopyMethod::Library`] is the default everywhere.
//! - [`CopyMethod::Streaming`] writes around the caches. That keeps in them what a reader may want,
//!   and makes the first reader of the copy wait.
//! - [`CopyMethod::StringMove`] is the one instruction that Nibble copies with [Nibble §5].
//!
//! On processors other than x86-64 all are the first.

/// How bytes are copied into log memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum CopyMethod {
    /// `memcpy`.
    #[default]
    Library,
    /// Stores that go around the caches, where a piece has at least 64 bytes.
    Streaming,
    /// `rep movsb`.
    StringMove,
}

/// Shorter pieces are copied through the caches: they would not fill a line, and the fence costs
/// more.
#[cfg(target_arch = "x86_64")]
const STREAM_MIN: usize = 64;

impl CopyMethod {
    /// Copies `data` over the beginning of `to`, which must be as long at least: for experiments
    /// that measure the copy alone.
    ///
    /// # Panics
    /// `to` is shorter.
    #[inline]
    pub fn copy_to(self, data: &[u8], to: &mut [u8]) {
        let to = &mut to[..data.len()];
        // SAFETY: `to` is borrowed for writing, has the length of `data`, and so overlaps nothing
        // else that is borrowed.
        unsafe { self.copy(data, to.as_mut_ptr()) }
    }

    /// Copies `data` to `to`. Other threads see the copy as any store, through a later release and
    /// an acquire.
    ///
    /// # Safety
    /// `to` may be written for the length of `data`, and does not overlap it. No other thread reads
    /// or writes there meanwhile.
    #[inline]
    pub(crate) unsafe fn copy(self, data: &[u8], to: *mut u8) {
        match self {
            // SAFETY: the caller's promise.
            Self::Library => unsafe {
                core::ptr::copy_nonoverlapping(data.as_ptr(), to, data.len())
            },
            // SAFETY: the caller's promise.
            Self::Streaming => unsafe { stream(data, to) },
            // SAFETY: the caller's promise.
            Self::StringMove => unsafe { string_move(data, to) },
        }
    }
}

/// # Safety
/// As of [`CopyMethod::copy`].
#[cfg(target_arch = "x86_64")]
unsafe fn stream(data: &[u8], to: *mut u8) {
    use core::arch::x86_64::{__m128i, _mm_loadu_si128, _mm_sfence, _mm_stream_si128};
    const WORD: usize = size_of::<__m128i>();
    let before = to.align_offset(WORD).min(data.len());
    if data.len() < STREAM_MIN {
        // SAFETY: the caller's promise.
        unsafe { core::ptr::copy_nonoverlapping(data.as_ptr(), to, data.len()) };
        return;
    }
    let (first, rest) = data.split_at(before);
    let (words, last) = rest.split_at(rest.len() / WORD * WORD);
    // SAFETY: the three parts lie one behind the other in the bytes that the caller lets us write.
    // The middle one begins at a multiple of 16, as the streaming store wants. Every x86-64
    // processor has these instructions. The fence makes the streaming stores visible before all
    // later stores, as the language expects.
    unsafe {
        core::ptr::copy_nonoverlapping(first.as_ptr(), to, first.len());
        let middle = to.add(before);
        for (at, word) in words.chunks_exact(WORD).enumerate() {
            let word = _mm_loadu_si128(word.as_ptr().cast());
            _mm_stream_si128(middle.add(at * WORD).cast(), word);
        }
        core::ptr::copy_nonoverlapping(last.as_ptr(), middle.add(words.len()), last.len());
        _mm_sfence();
    }
}

/// # Safety
/// As of [`CopyMethod::copy`].
#[cfg(target_arch = "x86_64")]
unsafe fn string_move(data: &[u8], to: *mut u8) {
    // SAFETY: reads `data` and writes only bytes that the caller lets us write. The direction flag
    // is clear between functions.
    unsafe {
        core::arch::asm!(
            "rep movsb",
            inout("rcx") data.len() => _,
            inout("rsi") data.as_ptr() => _,
            inout("rdi") to => _,
            options(nostack, preserves_flags),
        );
    }
}

#[cfg(not(target_arch = "x86_64"))]
unsafe fn stream(data: &[u8], to: *mut u8) {
    // SAFETY: the caller's promise.
    unsafe { core::ptr::copy_nonoverlapping(data.as_ptr(), to, data.len()) }
}

#[cfg(not(target_arch = "x86_64"))]
unsafe fn string_move(data: &[u8], to: *mut u8) {
    // SAFETY: the caller's promise.
    unsafe { core::ptr::copy_nonoverlapping(data.as_ptr(), to, data.len()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_method_copies_all_and_nothing_beside_it() {
        let data: Vec<u8> = (0..300).map(|n| n as u8 | 1).collect();
        for method in [
            CopyMethod::Library,
            CopyMethod::Streaming,
            CopyMethod::StringMove,
        ] {
            for offset in 0..20 {
                for len in [0, 1, 15, 16, 63, 64, 65, 100, 255, 256] {
                    let mut to = vec![0u8; 300];
                    method.copy_to(&data[offset..offset + len], &mut to[offset..]);
                    assert!(to[..offset].iter().all(|&byte| byte == 0));
                    assert_eq!(to[offset..offset + len], data[offset..offset + len]);
                    assert!(to[offset + len..].iter().all(|&byte| byte == 0));
                }
            }
        }
    }
}
