//! Copies to and from bytes that others access meanwhile: in assembly, many at once.
//!
//! For the language these are accesses of the processor, not of the program, and no races; words of any length and at any
//! address are what the processor has, while atomics of the language have to agree on which bytes are a word. What is
//! loaded may be torn, and the caller finds out whether it is. On x86-64 loads and stores take effect in their order, so that
//! the fences around a copy order it as they would relaxed atomics.

use core::arch::asm;
use core::arch::x86_64::__m128i;

const BLOCK: usize = size_of::<__m128i>();

/// Copies `into.len()` bytes from `from`.
///
/// # Safety
/// They are mapped, and initialised.
#[inline]
pub(crate) unsafe fn load(from: *const u8, into: &mut [u8]) {
    let len = into.len();
    // SAFETY: each piece lies within `len` bytes from `from` on, which are mapped, as the caller promises.
    unsafe {
        if len >= BLOCK {
            let (blocks, _) = into.as_chunks_mut::<BLOCK>();
            for (at, block) in blocks.iter_mut().enumerate() {
                *block = load_block(from.add(at * BLOCK));
            }
            if let Some(last) = into.last_chunk_mut() {
                *last = load_block(from.add(len - BLOCK));
            }
        } else if len >= 8 {
            let (first, last) = (load_8(from), load_8(from.add(len - 8)));
            into[..8].copy_from_slice(&first.to_ne_bytes());
            into[len - 8..].copy_from_slice(&last.to_ne_bytes());
        } else if len >= 4 {
            let (first, last) = (load_4(from), load_4(from.add(len - 4)));
            into[..4].copy_from_slice(&first.to_ne_bytes());
            into[len - 4..].copy_from_slice(&last.to_ne_bytes());
        } else {
            for (at, byte) in into.iter_mut().enumerate() {
                *byte = load_1(from.add(at));
            }
        }
    }
}

/// Copies `data` to `to`; some bytes are stored twice.
///
/// # Safety
/// As many bytes are mapped there; nobody has a slice of them, and nobody else stores to them meanwhile.
#[inline]
pub(crate) unsafe fn store(to: *mut u8, data: &[u8]) {
    let len = data.len();
    // SAFETY: each piece lies within `len` bytes from `to` on, to which the caller alone stores.
    unsafe {
        if let Some(last) = data.last_chunk::<BLOCK>() {
            let (blocks, _) = data.as_chunks::<BLOCK>();
            for (at, block) in blocks.iter().enumerate() {
                store_block(to.add(at * BLOCK), *block);
            }
            store_block(to.add(len - BLOCK), *last);
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

/// # Safety
/// The bytes are mapped. So for its siblings.
#[inline(always)]
unsafe fn load_block(from: *const u8) -> [u8; BLOCK] {
    let block: __m128i;
    // SAFETY: reads these bytes and nothing else, and every x86-64 processor has the instruction.
    unsafe {
        asm!("movdqu {block}, [{from}]", from = in(reg) from, block = out(xmm_reg) block,
            options(readonly, nostack, preserves_flags));
        core::mem::transmute::<__m128i, [u8; BLOCK]>(block)
    }
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
unsafe fn store_block(to: *mut u8, block: [u8; BLOCK]) {
    // SAFETY: writes these bytes and nothing else, and every x86-64 processor has the instruction.
    unsafe {
        let block = core::mem::transmute::<[u8; BLOCK], __m128i>(block);
        asm!("movdqu [{to}], {block}", to = in(reg) to, block = in(xmm_reg) block,
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
