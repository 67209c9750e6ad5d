//! The allocator of a heap span.
//!
//! ```text
//! data + 0      head: root, counts, free lists
//!      + 4096   a byte for each page of 64 KiB: free, class, first or later page of a run
//!      + …      pages: blocks of one class each, and runs for blocks over 32 KiB
//! ```
//!
//! Blocks of 16 B to 32 KiB come in 40 classes, four for each doubling. A free block holds the
//! offset of the next one. A larger block is a run of pages, the first that fits.
//!
//! It runs inside a change only, by one thread. So it needs no atomics, and no journal of its own:
//! its writes become whole with the change (JUMP-1), and are taken back with it.
//!
//! Limits: the pages of a class stay with it. A span has one heap.

use crate::error::{Result, SpaceError};
use crate::header::{GRANULE_BYTES, HEADER_BYTES};
use core::mem::size_of;
use core::ptr::NonNull;
use pluvio_units::crc32c;

const MAGIC: u64 = u64::from_le_bytes(*b"PLUVHEAP");
/// The format of the heap: head, classes, and the types of this crate that lie in it.
const FORMAT: u32 = 1;
/// A page of blocks.
pub(crate) const PAGE_BYTES: u64 = 64 << 10;
/// Blocks begin at multiples of this.
pub(crate) const BLOCK_ALIGN: usize = 16;
/// Larger blocks are runs of pages.
const CLASS_BYTES_MAX: u64 = 32 << 10;
const CLASSES: usize = 40;
/// Classes up to 128 B, one for each 16 B.
const FINE: usize = 8;
/// Where the bytes of the pages begin.
const PAGES_AT: u64 = 4096;

/// Bytes of pages. A class is its number plus one.
const FREE: u8 = 0;
const RUN: u8 = 254;
const RUN_ON: u8 = 255;

/// A class: its free blocks, and the rest of the page that it takes new ones from. Offsets in the
/// data; 0 is none.
#[derive(Clone, Copy)]
#[repr(C)]
struct Class {
    free: u64,
    next: u64,
    end: u64,
}

/// The head of a heap.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct Head {
    magic: u64,
    format: u32,
    crc: u32,
    reach_pages: u64,
    first_page: u64,
    /// Pages before it have been used.
    used_pages: u64,
    /// No page before it is free.
    lowest_free: u64,
    /// The root's offset in the data; 0 is none.
    pub(crate) root: u64,
    pub(crate) root_layout: u64,
    blocks: u64,
    block_bytes: u64,
    classes: [Class; CLASSES],
}

const _: () = assert!(size_of::<Head>() as u64 <= PAGES_AT);

impl Head {
    const EMPTY: Self = Self {
        magic: MAGIC,
        format: FORMAT,
        crc: 0,
        reach_pages: 0,
        first_page: 0,
        used_pages: 0,
        lowest_free: 0,
        root: 0,
        root_layout: 0,
        blocks: 0,
        block_bytes: 0,
        classes: [Class {
            free: 0,
            next: 0,
            end: 0,
        }; CLASSES],
    };

    #[allow(unsafe_code)] // the bytes of a value without padding
    fn bytes(&self) -> &[u8] {
        let start = (&raw const *self).cast::<u8>();
        // SAFETY: the struct is of `u64`, and of two `u32` side by side, so it has no padding.
        unsafe { core::slice::from_raw_parts(start, size_of::<Self>()) }
    }

    fn checksum(&self) -> u32 {
        crc32c(&[Self { crc: 0, ..*self }.bytes()])
    }

    /// Why this is no head of a heap with `size` bytes of data.
    fn fault(&self, size: u64) -> Option<&'static str> {
        if self.magic != MAGIC {
            return Some("its data is no heap");
        }
        if self.format != FORMAT {
            return Some("its heap has another format");
        }
        if self.crc != self.checksum() {
            return Some("the head of its heap has a wrong checksum");
        }
        let pages = size / PAGE_BYTES;
        let fits = pages <= self.reach_pages
            && self.first_page == first_page(self.reach_pages)
            && self.used_pages <= pages
            && self.root < size;
        (!fits).then_some("the head of its heap has impossible numbers")
    }
}

/// The first page behind the bytes of the pages.
fn first_page(reach_pages: u64) -> u64 {
    // The number of a damaged head may be any.
    PAGES_AT.saturating_add(reach_pages).div_ceil(PAGE_BYTES)
}

/// The first bytes of the data of an empty heap. All others are zero.
///
/// # Errors
/// [`SpaceError::BadRange`]: it is too small.
pub(crate) fn first_bytes(size: u64, reach: u64) -> Result<Vec<u8>> {
    let reach_pages = (reach - HEADER_BYTES) / GRANULE_BYTES;
    let first = first_page(reach_pages);
    if first >= size / PAGE_BYTES {
        return Err(SpaceError::BadRange(format!(
            "a heap with reach {reach:#x} needs {:#x} bytes at least",
            (first + 1) * PAGE_BYTES
        )));
    }
    let mut head = Head {
        reach_pages,
        first_page: first,
        used_pages: first,
        lowest_free: first,
        ..Head::EMPTY
    };
    head.crc = head.checksum();
    Ok(head.bytes().to_vec())
}

/// The class of a block of at most [`CLASS_BYTES_MAX`].
#[inline]
fn class_of(bytes: u64) -> usize {
    let units = bytes.max(1).div_ceil(BLOCK_ALIGN as u64);
    if units <= FINE as u64 {
        return units as usize - 1;
    }
    let last = bytes - 1;
    let doubling = last.ilog2();
    let quarter = (last - (1 << doubling)) >> (doubling - 2);
    FINE + 4 * (doubling as usize - 7) + quarter as usize
}

/// The bytes of a block of a class.
#[inline]
const fn class_bytes(class: usize) -> u64 {
    if class < FINE {
        return (class as u64 + 1) * BLOCK_ALIGN as u64;
    }
    let doubling = 7 + (class - FINE) / 4;
    let quarter = (class - FINE) % 4;
    (1 << doubling) + ((quarter as u64 + 1) << (doubling - 2))
}

/// A heap that is mapped and may be changed.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RawHeap {
    data: NonNull<u8>,
    /// Bytes of data.
    size: u64,
    /// Seed of hashes, the same in all programs.
    pub(crate) seed: u64,
}

impl RawHeap {
    /// The heap in `size` bytes of data, if its head is sound.
    ///
    /// # Errors
    /// Why it is not.
    ///
    /// # Safety
    /// The bytes are mapped, page by page as [`Head`] says, and nobody changes them during the
    /// call. If the methods that change it are called: the caller is the only one inside, and may
    /// write.
    #[allow(unsafe_code)] // reads mapped memory
    pub(crate) unsafe fn open(
        data: NonNull<u8>,
        size: u64,
        seed: u64,
    ) -> std::result::Result<Self, &'static str> {
        // SAFETY: the caller's promise; any bytes are a `Head`.
        let head = unsafe { data.cast::<Head>().read() };
        match head.fault(size) {
            None => Ok(Self { data, size, seed }),
            Some(why) => Err(why),
        }
    }

    /// Whether the address lies in the data.
    #[inline]
    pub(crate) fn holds(&self, place: NonNull<u8>) -> bool {
        (self.data.addr().get()..self.data.addr().get() + self.size as usize)
            .contains(&place.addr().get())
    }

    /// The head, which no reference points to.
    #[inline]
    #[allow(unsafe_code, clippy::mut_from_ref)] // memory outside of the language's
    fn head(&self) -> &mut Head {
        // SAFETY: it is mapped (`open`), and one thread uses it (`open`). No caller keeps the
        // reference over a call that makes another one.
        unsafe { self.data.cast::<Head>().as_mut() }
    }

    #[inline]
    fn offset(&self, place: NonNull<u8>) -> u64 {
        (place.addr().get() - self.data.addr().get()) as u64
    }

    #[inline]
    #[allow(unsafe_code)] // a place in mapped memory
    pub(crate) fn at(&self, offset: u64) -> NonNull<u8> {
        assert!(offset < self.size, "no offset {offset} in the heap");
        // SAFETY: inside the mapping.
        unsafe { self.data.add(offset as usize) }
    }

    #[inline]
    #[allow(unsafe_code)] // reads mapped memory
    fn page(&self, page: u64) -> u8 {
        assert!(page < self.size / PAGE_BYTES, "no page {page} in the heap");
        // SAFETY: the byte lies in front of `first_page`, which is inside (`Head::fault`).
        unsafe { self.at(PAGES_AT + page).read() }
    }

    #[inline]
    #[allow(unsafe_code)] // writes mapped memory
    fn set_page(&self, page: u64, state: u8) {
        assert!(page < self.size / PAGE_BYTES, "no page {page} in the heap");
        // SAFETY: as in `page`; the caller may write (`open`).
        unsafe { self.at(PAGES_AT + page).write(state) }
    }

    /// The root, and the layout of its type. For readers too.
    #[allow(unsafe_code)] // reads mapped memory
    pub(crate) fn root(&self) -> Option<(NonNull<u8>, u64)> {
        // SAFETY: mapped (`open`), and nobody changes it during the call.
        let head = unsafe { self.data.cast::<Head>().as_ref() };
        let (root, layout) = (head.root, head.root_layout);
        (root != 0).then(|| (self.at(root), layout))
    }

    /// Makes a block the root.
    pub(crate) fn set_root(&self, place: NonNull<u8>, layout: u64) {
        let head = self.head();
        head.root = self.offset(place);
        head.root_layout = layout;
    }

    /// Makes the heap empty: no root, no blocks.
    #[allow(unsafe_code)] // writes mapped memory
    pub(crate) fn clear(&self) {
        let head = self.head();
        let (reach_pages, first, used) = (head.reach_pages, head.first_page, head.used_pages);
        *head = Head {
            reach_pages,
            first_page: first,
            // The bytes of pages that were used are written below.
            used_pages: used,
            lowest_free: first,
            ..Head::EMPTY
        };
        for page in first..used {
            self.set_page(page, FREE);
        }
    }

    /// Bytes of data that have been used, from the first one on.
    pub(crate) fn used_bytes(&self) -> u64 {
        self.head().used_pages * PAGE_BYTES
    }

    /// Ends a change: the head gets its checksum.
    pub(crate) fn seal(&self) {
        let head = self.head();
        head.crc = head.checksum();
    }

    /// A block of at least `bytes` bytes, at a multiple of 16. Its content is left over from
    /// others.
    ///
    /// # Errors
    /// [`SpaceError::Full`].
    #[inline]
    pub(crate) fn allocate(&self, bytes: u64) -> Result<NonNull<u8>> {
        if bytes > CLASS_BYTES_MAX {
            return self.allocate_run(bytes);
        }
        let class = class_of(bytes);
        let head = self.head();
        let Class { free, next, end } = head.classes[class];
        let room = class_bytes(class);
        let offset = if free != 0 {
            head.classes[class].free = self.link(free);
            free
        } else if next + room <= end {
            head.classes[class].next = next + room;
            next
        } else {
            let page = self.take_pages(1, bytes)?;
            self.set_page(page, class as u8 + 1);
            let start = page * PAGE_BYTES;
            self.head().classes[class] = Class {
                free: 0,
                next: start + room,
                end: start + PAGE_BYTES,
            };
            start
        };
        let head = self.head();
        head.blocks += 1;
        head.block_bytes += room;
        Ok(self.at(offset))
    }

    /// The offset of the next free block, which stands in a free one.
    #[inline]
    #[allow(unsafe_code)] // reads mapped memory
    fn link(&self, free: u64) -> u64 {
        assert!(
            free.is_multiple_of(BLOCK_ALIGN as u64),
            "the heap is damaged: a free block at {free}"
        );
        // SAFETY: inside (`at`) and aligned, and no object lies in a free block.
        unsafe { self.at(free).cast::<u64>().read() }
    }

    fn allocate_run(&self, bytes: u64) -> Result<NonNull<u8>> {
        let count = bytes.div_ceil(PAGE_BYTES);
        let first = self.take_pages(count, bytes)?;
        self.set_page(first, RUN);
        for page in first + 1..first + count {
            self.set_page(page, RUN_ON);
        }
        let head = self.head();
        head.blocks += 1;
        head.block_bytes += count * PAGE_BYTES;
        Ok(self.at(first * PAGE_BYTES))
    }

    /// The first of `count` free pages that are neighbours. They are still marked free.
    fn take_pages(&self, count: u64, bytes: u64) -> Result<u64> {
        let pages = self.size / PAGE_BYTES;
        let head = self.head();
        let (lowest, used) = (head.lowest_free.max(head.first_page), head.used_pages);
        let (mut first, mut page) = (lowest, lowest);
        let mut lowest_free = None;
        // Pages that were never used are free, so the search ends there at the latest.
        while page < used && page - first < count {
            if self.page(page) == FREE {
                lowest_free = lowest_free.or(Some(page));
            } else {
                first = page + 1;
            }
            page += 1;
        }
        let end = first.checked_add(count).filter(|&end| end <= pages);
        let Some(end) = end else {
            return Err(SpaceError::Full { bytes });
        };
        let head = self.head();
        head.used_pages = used.max(end);
        head.lowest_free = match lowest_free {
            Some(free) if free < first => free,
            Some(_) | None => end,
        };
        Ok(first)
    }

    /// Gives a block back.
    ///
    /// # Panics
    /// When there is no such block: the heap is damaged. The change is taken back.
    ///
    /// # Safety
    /// It is a block of this heap, and nothing uses it.
    #[inline]
    #[allow(unsafe_code)] // writes mapped memory
    pub(crate) unsafe fn free(&self, place: NonNull<u8>) {
        let offset = self.offset(place);
        let page = offset / PAGE_BYTES;
        let state = self.page(page);
        match state {
            RUN => self.free_run(page),
            FREE | RUN_ON => panic!("the heap is damaged: no block at {offset}"),
            _ => {
                let class = usize::from(state) - 1;
                let head = self.head();
                let next = head.classes[class].free;
                head.classes[class].free = offset;
                head.blocks -= 1;
                head.block_bytes -= class_bytes(class);
                // SAFETY: a block has 16 bytes at least, and nothing uses it, by the caller.
                unsafe { place.cast::<u64>().write(next) }
            }
        }
    }

    fn free_run(&self, first: u64) {
        let used = self.head().used_pages;
        let mut page = first;
        loop {
            self.set_page(page, FREE);
            page += 1;
            if page >= used || self.page(page) != RUN_ON {
                break;
            }
        }
        let head = self.head();
        head.blocks -= 1;
        head.block_bytes -= (page - first) * PAGE_BYTES;
        head.lowest_free = head.lowest_free.min(first);
    }
}

/// What a heap holds.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct HeapReport {
    /// Blocks in use.
    pub blocks: u64,
    /// Their bytes, each rounded up to its class or to pages.
    pub block_bytes: u64,
    /// Bytes of blocks that wait in free lists.
    pub free_bytes: u64,
    /// Bytes of pages that no class and no block has, in all of the span.
    pub unused_bytes: u64,
    /// The layout of the root's type; none without a root.
    pub root_layout: Option<u64>,
}

/// Looks at all of a heap's own structure, and believes none of it. Every page belongs to one class
/// or one run, and every block is in use or in one free list.
///
/// # Errors
/// What is wrong.
pub(crate) fn check(data: &[u8]) -> std::result::Result<HeapReport, String> {
    let head = read_head(data)?;
    let size = data.len() as u64;
    let pages = &data[PAGES_AT as usize..][..(size / PAGE_BYTES) as usize];
    let mut pages_of = [0_u64; CLASSES];
    let (mut runs, mut run_pages, mut unused, mut before) = (0, 0, 0, FREE);
    for (page, &state) in pages.iter().enumerate().skip(head.first_page as usize) {
        match state {
            FREE => unused += 1,
            RUN => runs += 1,
            RUN_ON if before == RUN || before == RUN_ON => {}
            class if (1..=CLASSES as u8).contains(&class) => {
                pages_of[usize::from(class) - 1] += 1;
            }
            _ => return Err(format!("page {page} is in no possible state")),
        }
        run_pages += u64::from(state == RUN || state == RUN_ON);
        if state != FREE && page as u64 >= head.used_pages {
            return Err(format!("page {page} is used, and was never taken"));
        }
        before = state;
    }
    let (mut blocks, mut block_bytes, mut free_bytes) = (runs, run_pages * PAGE_BYTES, 0);
    for (class, list) in head.classes.iter().enumerate() {
        let room = class_bytes(class);
        let rest = list.end.saturating_sub(list.next) / room;
        let all = pages_of[class] * (PAGE_BYTES / room);
        let free = free_blocks(data, pages, class, list.free, all)?;
        let in_use = all
            .checked_sub(free + rest)
            .ok_or_else(|| format!("class {class} has more free blocks than blocks"))?;
        blocks += in_use;
        block_bytes += in_use * room;
        free_bytes += (free + rest) * room;
    }
    if (blocks, block_bytes) != (head.blocks, head.block_bytes) {
        return Err(format!(
            "{blocks} blocks of {block_bytes} bytes are in use, and the head counts {} of {}",
            head.blocks, head.block_bytes
        ));
    }
    Ok(HeapReport {
        blocks,
        block_bytes,
        free_bytes,
        unused_bytes: unused * PAGE_BYTES,
        root_layout: (head.root != 0).then_some(head.root_layout),
    })
}

#[allow(unsafe_code)] // a value of any bytes
fn read_head(data: &[u8]) -> std::result::Result<Head, String> {
    if data.len() < PAGE_BYTES as usize {
        return Err("its data is no heap".to_owned());
    }
    // SAFETY: there are enough bytes, any bytes are a `Head`, and alignment is not asked for.
    let head = unsafe { data.as_ptr().cast::<Head>().read_unaligned() };
    match head.fault(data.len() as u64) {
        None => Ok(head),
        Some(why) => Err(why.to_owned()),
    }
}

/// The length of a free list, each of whose blocks lies in a page of the class.
fn free_blocks(
    data: &[u8],
    pages: &[u8],
    class: usize,
    first: u64,
    most: u64,
) -> std::result::Result<u64, String> {
    let (mut at, mut count) = (first, 0);
    while at != 0 {
        let page = (at / PAGE_BYTES) as usize;
        let inside = pages.get(page) == Some(&(class as u8 + 1));
        if !inside || !(at % PAGE_BYTES).is_multiple_of(class_bytes(class)) || count == most {
            return Err(format!("the free list of class {class} leads astray"));
        }
        count += 1;
        let link = &data[at as usize..][..8];
        at = u64::from_le_bytes(link.try_into().expect("8 bytes"));
    }
    Ok(count)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_head_with_any_number_of_pages_is_refused_and_no_panic() {
        let size = 4 * PAGE_BYTES;
        let bytes = first_bytes(size, 1 << 30).expect("large enough");
        let mut data = vec![0; size as usize];
        data[..bytes.len()].copy_from_slice(&bytes);
        let good = read_head(&data).expect("sound");
        for reach_pages in [0, 1 << 40, u64::MAX] {
            let mut head = Head {
                reach_pages,
                ..good
            };
            head.crc = head.checksum();
            assert!(head.fault(size).is_some(), "{reach_pages}");
        }
    }

    #[test]
    fn classes_are_those_of_their_blocks() {
        for bytes in 1..=CLASS_BYTES_MAX {
            let class = class_of(bytes);
            assert!(class_bytes(class) >= bytes, "{bytes}");
            assert!(class == 0 || class_bytes(class - 1) < bytes, "{bytes}");
        }
        assert_eq!(class_of(CLASS_BYTES_MAX), CLASSES - 1);
        for class in 0..CLASSES {
            assert!(class_bytes(class).is_multiple_of(BLOCK_ALIGN as u64));
        }
    }
}
