//! Copies to and from bytes that others access meanwhile: in assembly, many at once.
//!
//! For the language these are accesses of the processor, not of the program, and no races. The
//! processor has words of any length at any address. Atomics of the language must instead agree on
//! which bytes are a word. A loaded value may be torn, and the caller finds that out. On x86-64
//! loads and stores take effect in their order, so the fences around a copy order it as they would
//! relaxed atomics.

use core::arch::asm;
use core::arch::x86_64::__m128i;

const BLOCK: usize = size_of::<__m128i>();

/// Copies `len` bytes from `from` to `to`; some twice.
///
/// # Safety
/// The bytes at `from` are mapped and initialised. Only the caller writes the `len` bytes at `to`.
#[inline(always)]
pub(crate) unsafe fn load(from: *const u8, to: *mut u8, len: usize) {
    // SAFETY: each piece lies within `len` bytes from `from` on, which are mapped. It goes to its
    // place within `len` bytes from `to` on, which the caller lets us write.
    unsafe {
        if len >= 4 * BLOCK {
            let (last, mut at) = (len - 4 * BLOCK, 0);
            while at < last {
                to.add(at)
                    .cast::<[__m128i; 4]>()
                    .write_unaligned(load_4_blocks(from.add(at)));
                at += 4 * BLOCK;
            }
            to.add(last)
                .cast::<[__m128i; 4]>()
                .write_unaligned(load_4_blocks(from.add(last)));
        } else if len >= BLOCK {
            let (last, mut at) = (len - BLOCK, 0);
            while at < last {
                to.add(at)
                    .cast::<__m128i>()
                    .write_unaligned(load_block(from.add(at)));
                at += BLOCK;
            }
            to.add(last)
                .cast::<__m128i>()
                .write_unaligned(load_block(from.add(last)));
        } else if len >= 8 {
            let (first, last) = (load_8(from), load_8(from.add(len - 8)));
            to.cast::<u64>().write_unaligned(first);
            to.add(len - 8).cast::<u64>().write_unaligned(last);
        } else if len >= 4 {
            let (first, last) = (load_4(from), load_4(from.add(len - 4)));
            to.cast::<u32>().write_unaligned(first);
            to.add(len - 4).cast::<u32>().write_unaligned(last);
        } else {
            for at in 0..len {
                to.add(at).write(load_1(from.add(at)));
            }
        }
    }
}

/// Whether the bytes at `from` are those; some are loaded twice.
///
/// # Safety
/// As many bytes are mapped and initialised there.
#[inline(always)]
pub(crate) unsafe fn is_same(from: *const u8, bytes: &[u8]) -> bool {
    let len = bytes.len();
    // SAFETY: each piece lies within `len` bytes from `from` on.
    unsafe {
        match (bytes.first_chunk::<8>(), bytes.last_chunk::<8>()) {
            (Some(first), Some(last)) => {
                let mut differ = load_8(from) ^ u64::from_ne_bytes(*first);
                differ |= load_8(from.add(len - 8)) ^ u64::from_ne_bytes(*last);
                let mut at = 8;
                while at + 8 < len {
                    let word = bytes.as_ptr().add(at).cast::<u64>().read_unaligned();
                    differ |= load_8(from.add(at)) ^ word;
                    at += 8;
                }
                differ == 0
            }
            (None, _) | (_, None) => {
                let mut places = bytes.iter().enumerate();
                places.all(|(at, byte)| load_1(from.add(at)) == *byte)
            }
        }
    }
}

/// Copies `data` to `to`; some bytes are stored twice.
///
/// # Safety
/// As many bytes are mapped there. No thread has a slice of them, and no other thread stores to
/// them meanwhile.
#[inline(always)]
pub(crate) unsafe fn store(to: *mut u8, data: &[u8]) {
    let (from, len) = (data.as_ptr(), data.len());
    // SAFETY: each piece lies within `data`. It goes to its place within `len` bytes from `to` on,
    // where only the caller stores.
    unsafe {
        if len >= 4 * BLOCK {
            let (last, mut at) = (len - 4 * BLOCK, 0);
            while at < last {
                store_4_blocks(
                    to.add(at),
                    from.add(at).cast::<[__m128i; 4]>().read_unaligned(),
                );
                at += 4 * BLOCK;
            }
            store_4_blocks(
                to.add(last),
                from.add(last).cast::<[__m128i; 4]>().read_unaligned(),
            );
        } else if len >= BLOCK {
            let (last, mut at) = (len - BLOCK, 0);
            while at < last {
                store_block(to.add(at), from.add(at).cast::<__m128i>().read_unaligned());
                at += BLOCK;
            }
            store_block(
                to.add(last),
                from.add(last).cast::<__m128i>().read_unaligned(),
            );
        } else if let (Some(first), Some(last)) = (data.first_chunk(), data.last_chunk()) {
            store_8(to, u64::from_ne_bytes(*first));
            store_8(to.add(len - 8), u64::from_ne_bytes(*last));
        } else if let (Some(first), Some(last)) = (data.first_chunk(), data.last_chunk()) {
            store_4(to, u32::from_ne_bytes(*first));
            store_4(to.add(len - 4), u32::from_ne_bytes(*last));
        } else {
            for (at, byte) in data.iter().enumerate() {
                store_1(to.add(at), *byte);
            }
        }
    }
}

/// Loads `N` bytes, none of them twice: the parts of the result can be used at once, without a way
/// through memory.
///
/// # Safety
/// As of [`load`].
#[inline(always)]
pub(crate) unsafe fn load_array<const N: usize>(from: *const u8) -> [u8; N] {
    let mut array = [0; N];
    let (words, rest) = array.as_chunks_mut::<8>();
    let (halves, bytes) = rest.as_chunks_mut::<4>();
    let mut at = 0;
    // SAFETY: each piece lies within `N` bytes from `from` on.
    unsafe {
        for word in words {
            *word = load_8(from.add(at)).to_ne_bytes();
            at += 8;
        }
        for half in halves {
            *half = load_4(from.add(at)).to_ne_bytes();
            at += 4;
        }
        for byte in bytes {
            *byte = load_1(from.add(at));
            at += 1;
        }
    }
    array
}

/// Stores `N` bytes, each once.
///
/// # Safety
/// As of [`store`].
#[inline(always)]
pub(crate) unsafe fn store_array<const N: usize>(to: *mut u8, array: &[u8; N]) {
    let (words, rest) = array.as_chunks::<8>();
    let (halves, bytes) = rest.as_chunks::<4>();
    let mut at = 0;
    // SAFETY: each piece lies within `N` bytes from `to` on.
    unsafe {
        for word in words {
            store_8(to.add(at), u64::from_ne_bytes(*word));
            at += 8;
        }
        for half in halves {
            store_4(to.add(at), u32::from_ne_bytes(*half));
            at += 4;
        }
        for byte in bytes {
            store_1(to.add(at), *byte);
            at += 1;
        }
    }
}

/// # Safety
/// The bytes are mapped. So for its siblings.
#[inline(always)]
unsafe fn load_block(from: *const u8) -> __m128i {
    let block: __m128i;
    // SAFETY: reads these bytes and nothing else, and every x86-64 processor has the instruction.
    unsafe {
        asm!("movdqu {block}, [{from}]", from = in(reg) from, block = out(xmm_reg) block,
            options(readonly, nostack, preserves_flags));
    }
    block
}

#[inline(always)]
unsafe fn load_4_blocks(from: *const u8) -> [__m128i; 4] {
    let (a, b, c, d): (__m128i, __m128i, __m128i, __m128i);
    // SAFETY: as in `load_block`.
    unsafe {
        asm!("movdqu {a}, [{from}]", "movdqu {b}, [{from} + 16]", "movdqu {c}, [{from} + 32]", "movdqu {d}, [{from} + 48]",
            from = in(reg) from, a = out(xmm_reg) a, b = out(xmm_reg) b, c = out(xmm_reg) c, d = out(xmm_reg) d,
            options(readonly, nostack, preserves_flags));
    }
    [a, b, c, d]
}

#[inline(always)]
unsafe fn load_8(from: *const u8) -> u64 {
    let word: u64;
    // SAFETY: as in `load_block`.
    unsafe {
        asm!("mov {word}, [{from}]", from = in(reg) from, word = out(reg) word,
            options(readonly, nostack, preserves_flags));
    }
    word
}

#[inline(always)]
unsafe fn load_4(from: *const u8) -> u32 {
    let word: u32;
    // SAFETY: as in `load_block`.
    unsafe {
        asm!("mov {word:e}, [{from}]", from = in(reg) from, word = out(reg) word,
            options(readonly, nostack, preserves_flags));
    }
    word
}

#[inline(always)]
unsafe fn load_1(from: *const u8) -> u8 {
    let byte: u32;
    // SAFETY: as in `load_block`.
    unsafe {
        asm!("movzx {byte:e}, byte ptr [{from}]", from = in(reg) from, byte = out(reg) byte,
            options(readonly, nostack, preserves_flags));
    }
    byte as u8
}

/// # Safety
/// The bytes are mapped, and the caller may store to them. So for its siblings.
#[inline(always)]
unsafe fn store_block(to: *mut u8, block: __m128i) {
    // SAFETY: writes these bytes and nothing else, and every x86-64 processor has the instruction.
    unsafe {
        asm!("movdqu [{to}], {block}", to = in(reg) to, block = in(xmm_reg) block,
            options(nostack, preserves_flags));
    }
}

#[inline(always)]
unsafe fn store_4_blocks(to: *mut u8, [a, b, c, d]: [__m128i; 4]) {
    // SAFETY: as in `store_block`.
    unsafe {
        asm!("movdqu [{to}], {a}", "movdqu [{to} + 16], {b}", "movdqu [{to} + 32], {c}", "movdqu [{to} + 48], {d}",
            to = in(reg) to, a = in(xmm_reg) a, b = in(xmm_reg) b, c = in(xmm_reg) c, d = in(xmm_reg) d,
            options(nostack, preserves_flags));
    }
}

#[inline(always)]
unsafe fn store_8(to: *mut u8, word: u64) {
    // SAFETY: as in `store_block`.
    unsafe {
        asm!("mov [{to}], {word}", to = in(reg) to, word = in(reg) word,
            options(nostack, preserves_flags));
    }
}

#[inline(always)]
unsafe fn store_4(to: *mut u8, word: u32) {
    // SAFETY: as in `store_block`.
    unsafe {
        asm!("mov [{to}], {word:e}", to = in(reg) to, word = in(reg) word,
            options(nostack, preserves_flags));
    }
}

#[inline(always)]
unsafe fn store_1(to: *mut u8, byte: u8) {
    // SAFETY: as in `store_block`.
    unsafe {
        asm!("mov [{to}], {byte}", to = in(reg) to, byte = in(reg_byte) byte,
            options(nostack, preserves_flags));
    }
}
