//! The mappings of spans in this process: one for each span, at its address (`window`).
//!
//! Owns the process-wide table of what is mapped. A heap that may be written is mapped privately:
//! the pages that a writer touches become private copies, and the others show the file. So nothing
//! of a change is in the file before it is decided (`journal`), and a change is taken back by
//! dropping the copies. All other mappings show the file itself.
//!
//! Invariants
//! - JUMP-3: outside of a change, no page of a mapping is a private copy: it shows the file.
//! - JUMP-13: a writer that dies inside words with the kernel's lock leaves its mark in the header.
//!   Nobody enters before somebody has recovered the span.
//!
//! Threads: any. A thread that reads or changes data has the lock of the span (`lock`).
//!
//! Limits: a child made by `fork` does not have the mappings. It has to `exec`, unless it is a
//! worker of this crate (`worker`).

use crate::copies::PageMap;
use crate::definition::Access;
use crate::error::{Result, SpaceError};
use crate::files::{self, step};
use crate::header::{AddressRange, Header, Kind, Lock};
use crate::header::{DECIDED_AT, HEADER_BYTES, MARK_AT, NUMBER_AT, SLOTS_AT, WRITTEN_AT};
use crate::journal::{self, Journal};
use crate::lock::{Gate, Patience};
use crate::registry::{Registry, What};
use crate::robust::RobustLock;
use crate::window::Window;
use core::any::TypeId;
use core::ffi::c_void;
use core::sync::atomic::{AtomicU64, Ordering, fence};
use rustix::fd::{AsFd, OwnedFd};
use rustix::io::Errno;
use rustix::mm::{Advice, MapFlags, ProtFlags};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// How often one call of enter finishes changes of dead processes.
const FINISHES_MAX: usize = 4;
/// The mark of words with the kernel's lock (`header`): no writer is inside.
const UNMARKED: u64 = 0;
/// A writer is inside, or has died there.
const WRITER: u64 = 1;
/// A writer has died inside, and another one recovers the span, or has died or panicked then.
const POISON: u64 = 2;

/// The mappings of this process, each with the number of its attachments.
static MAPPED: Mutex<Vec<(Arc<Mapping>, usize)>> = Mutex::new(Vec::new());

fn mapped() -> MutexGuard<'static, Vec<(Arc<Mapping>, usize)>> {
    // Entries are added and removed whole.
    MAPPED.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Whether a span that this process has attached has one of these addresses.
pub(crate) fn is_taken(range: AddressRange) -> bool {
    let all = mapped();
    let mut ranges = all.iter().map(|(mapping, _)| mapping.header.range());
    ranges.any(|other| other.overlaps(range))
}

/// Empties the table in a forked child, which has none of the mappings. The things that they own
/// lie in this process as a copy that nothing uses.
pub(crate) fn forget_all() {
    for (mapping, _) in core::mem::take(&mut *mapped()) {
        core::mem::forget(mapping);
    }
}

/// A span at its address.
#[derive(Debug)]
pub(crate) struct Mapping {
    pub(crate) name: String,
    path: PathBuf,
    pub(crate) header: Header,
    access: Access,
    file: OwnedFd,
    /// For a heap that may be written: which pages are private copies.
    pagemap: Option<PageMap>,
    gate: Gate,
    /// Instead of the gate and the kernel's lock.
    robust: Option<RobustLock>,
    /// Its addresses.
    window: Arc<Window>,
    /// Layouts of types, as they were worked out in this process.
    layouts: Mutex<Vec<(TypeId, u64)>>,
}

/// One attachment of a span. The last one that is dropped unmaps it.
#[derive(Debug)]
pub(crate) struct Attached {
    mapping: Arc<Mapping>,
}

impl core::ops::Deref for Attached {
    type Target = Mapping;

    fn deref(&self) -> &Mapping {
        &self.mapping
    }
}

impl Drop for Attached {
    fn drop(&mut self) {
        let mut all = mapped();
        let place = all
            .iter()
            .position(|(mapping, _)| Arc::ptr_eq(mapping, &self.mapping));
        let Some(place) = place else {
            return;
        };
        all[place].1 -= 1;
        if all[place].1 == 0 {
            all.swap_remove(place);
            // Under the lock of the table, so that another thread can attach the span at once.
            self.mapping.window.remove(self.mapping.header.id);
        }
    }
}

impl Attached {
    /// Maps the span, or shares the mapping of this process.
    ///
    /// # Errors
    /// The file is not there, may not be opened, is damaged or of another format. Its addresses are
    /// taken. This process has it attached in another way.
    pub(crate) fn new(registry: &Registry, name: &str, access: Access) -> Result<Self> {
        let (file, found) = registry.open_span(name, access == Access::Write)?;
        let wanted = Wanted {
            name,
            path: registry.path(What::Span, name)?,
            header: found.header,
            access,
        };
        let mut all = mapped();
        let there = all
            .iter_mut()
            .find(|(mapping, _)| mapping.header.id == wanted.header.id);
        if let Some((mapping, count)) = there {
            wanted.check_same(mapping)?;
            *count += 1;
            let mapping = Arc::clone(mapping);
            return Ok(Self { mapping });
        }
        let window = |wanted: &Wanted<'_>| wanted.window(all.iter().map(|(other, _)| other));
        let mapping = Arc::new(wanted.into_mapping(registry, file, window)?);
        all.push((Arc::clone(&mapping), 1));
        Ok(Self { mapping })
    }
}

/// A span that is to be mapped.
struct Wanted<'n> {
    name: &'n str,
    path: PathBuf,
    header: Header,
    access: Access,
}

impl Wanted<'_> {
    fn conflict(&self, why: &'static str) -> SpaceError {
        SpaceError::Conflict {
            name: self.name.to_owned(),
            base: self.header.base,
            why,
        }
    }

    /// Whether the mapping that this process has of the span will do.
    fn check_same(&self, mapping: &Mapping) -> Result<()> {
        if mapping.access < self.access {
            let why = "this process has it attached for reading; detach that first";
            return Err(self.conflict(why));
        }
        if mapping.header.size != self.header.size {
            let why =
                "this process has it attached with the size before it grew; detach that first";
            return Err(self.conflict(why));
        }
        Ok(())
    }

    /// Its window: that of a heap with the same addresses, or a new one.
    fn window<'m>(
        &self,
        mut others: impl Iterator<Item = &'m Arc<Mapping>>,
    ) -> Result<Arc<Window>> {
        let (base, reach) = (self.header.base, self.header.reach);
        let is_heap = |header: &Header| header.kind == Kind::Heap;
        let shared = others.find(|other| {
            is_heap(&self.header) && is_heap(&other.header) && other.window.is_at(base, reach)
        });
        if let Some(other) = shared {
            return Ok(Arc::clone(&other.window));
        }
        let reserved = Window::reserve(base, reach).map_err(|errno| match errno {
            Errno::EXIST => self.conflict("another mapping of this process lies there"),
            errno => SpaceError::of("reserve the addresses of", &self.path, errno),
        });
        reserved.map(Arc::new)
    }

    /// Maps it, in the window that `window` gives.
    fn into_mapping(
        self,
        registry: &Registry,
        file: OwnedFd,
        window: impl FnOnce(&Self) -> Result<Arc<Window>>,
    ) -> Result<Mapping> {
        let header = &self.header;
        let robust = match header.lock {
            Lock::Robust => Some(registry.open_robust(self.name, header.id, header.kind)?),
            Lock::None | Lock::Kernel => None,
        };
        let has_copies = header.kind == Kind::Heap && self.access == Access::Write;
        let pagemap = has_copies.then(PageMap::open).transpose()?;
        files::refuse_huge_pages(&file, &self.path)?;
        let window = window(&self)?;
        let added = window.add(header.id, header.mapped(), &|| {
            map(&file, header, self.access)
        });
        if let Err(errno) = added {
            window.abandon();
            return Err(SpaceError::of("map", &self.path, errno));
        }
        Ok(Mapping {
            name: self.name.to_owned(),
            path: self.path,
            header: self.header,
            access: self.access,
            file,
            pagemap,
            gate: Gate::new(),
            robust,
            window,
            layouts: Mutex::new(Vec::new()),
        })
    }
}

/// Maps the file at its base, over the reservation of its window.
#[allow(unsafe_code)] // a mapping at a fixed address
fn map(file: &OwnedFd, header: &Header, access: Access) -> std::result::Result<(), Errno> {
    let base = header.base as usize as *mut c_void;
    let len = header.mapped() as usize;
    let protection = match access {
        Access::Read => ProtFlags::READ,
        Access::Write => ProtFlags::READ | ProtFlags::WRITE,
    };
    let sharing = match (header.kind, access) {
        (Kind::Heap, Access::Write) => MapFlags::PRIVATE | MapFlags::NORESERVE,
        (Kind::Heap, Access::Read) | (Kind::Words, _) => MapFlags::SHARED,
    };
    // SAFETY: the window calls this while it owns the range and nobody is inside (JUMP-6). The
    // file has `len` bytes (`header::read`), all of them reserved when it was made.
    unsafe {
        rustix::mm::mmap(base, len, protection, sharing | MapFlags::FIXED, file, 0)?;
        // A child shares neither locks nor private copies in a way that keeps JUMP-3.
        rustix::mm::madvise(base, len, Advice::LinuxDontFork)
    }
}

impl Mapping {
    /// The file.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// How the file was opened and mapped.
    pub(crate) fn access(&self) -> Access {
        self.access
    }

    /// The first byte of the data.
    pub(crate) fn data(&self) -> *mut u8 {
        (self.header.base + HEADER_BYTES) as usize as *mut u8
    }

    /// A word of the header. It is never a private copy, so it shows the file.
    #[allow(unsafe_code)] // a reference to mapped memory
    fn word_at(&self, at: u64) -> &AtomicU64 {
        assert!(at.is_multiple_of(8) && at < HEADER_BYTES, "no word at {at}");
        let place = (self.header.base + at) as usize as *mut u64;
        // SAFETY: inside the mapping, which lives as long as `self` is in the table, and aligned.
        // Other processes write it, some by system calls, so it is an atomic.
        unsafe { AtomicU64::from_ptr(place) }
    }

    fn word(&self, at: u64) -> u64 {
        self.word_at(at).load(Ordering::Acquire)
    }

    /// The mark of words with the kernel's lock. Other spans have none.
    fn mark(&self) -> Option<&AtomicU64> {
        let (kind, lock) = (self.header.kind, self.header.lock);
        (kind == Kind::Words && lock == Lock::Kernel).then(|| self.word_at(MARK_AT))
    }

    /// Whether the span's description is the one that is mapped.
    #[inline]
    pub(crate) fn is_current(&self) -> bool {
        let newest = SLOTS_AT.map(|at| self.word(at + NUMBER_AT));
        newest[0].max(newest[1]) == self.header.number
    }

    /// The words of the data.
    #[allow(unsafe_code)] // a slice of mapped memory
    pub(crate) fn words(&self) -> &[AtomicU64] {
        assert!(
            self.header.kind == Kind::Words,
            "words of a heap would be torn from their types"
        );
        let count = (self.header.size / 8) as usize;
        // SAFETY: `size` bytes are mapped and initialised as long as `self` is borrowed. All who
        // attach the span use atomics, by the promise of `SpaceDefinition::attach`.
        unsafe { core::slice::from_raw_parts(self.data().cast::<AtomicU64>(), count) }
    }

    /// The bytes of the data of a heap, for a look at them.
    ///
    /// # Safety
    /// The caller has the span's lock, and no change is under way, as long as the slice lives.
    #[allow(unsafe_code)] // a slice of mapped memory
    pub(crate) unsafe fn bytes(&self) -> &[u8] {
        // SAFETY: `size` bytes are mapped and initialised; nobody changes them, by the caller.
        unsafe { core::slice::from_raw_parts(self.data(), self.header.size as usize) }
    }

    /// Takes the span's lock, if it has one, and looks whether the span can be used. A change that
    /// a dead process has decided is finished, if this one may.
    ///
    /// # Errors
    /// Those of [`Gate::enter`]; [`SpaceError::Stale`], [`SpaceError::Unfinished`]. Nothing stays
    /// locked.
    pub(crate) fn enter(&self, exclusive: bool, patience: Patience) -> Result<()> {
        if self.header.lock == Lock::None {
            return self.check_current();
        }
        for _ in 0..FINISHES_MAX {
            self.lock(exclusive, patience, false)?;
            let current = self.check_current();
            if current.is_ok() && (self.header.kind == Kind::Words || self.is_whole()) {
                return Ok(());
            }
            self.leave();
            current?;
            if self.access == Access::Read {
                break;
            }
            self.lock(true, patience, false)?;
            let finished = journal::finish(self.file.as_fd(), &self.path);
            self.leave();
            finished?;
        }
        Err(SpaceError::Unfinished(self.name.clone()))
    }

    /// Takes the lock, a poisoned one too if it `recovers`, and brings the span to its addresses.
    fn lock(&self, exclusive: bool, patience: Patience, recovers: bool) -> Result<()> {
        match &self.robust {
            Some(robust) if exclusive => robust.enter_exclusive(patience, recovers)?,
            Some(robust) => robust.enter_shared(patience)?,
            None => {
                let file = self.file.as_fd();
                let taken = self.gate.enter(file, exclusive, patience);
                taken.map_err(|why| why.of(&self.name))?;
                if !self.set_mark(exclusive, recovers) {
                    self.gate.leave(file);
                    return Err(SpaceError::Poisoned(self.name.clone()));
                }
            }
        }
        self.bring(patience)
    }

    /// Marks that a writer is inside. False: another one has died there. The caller has the
    /// kernel's lock, so nobody else changes the mark.
    fn set_mark(&self, exclusive: bool, recovers: bool) -> bool {
        let Some(mark) = self.mark() else {
            return true;
        };
        let found = mark.load(Ordering::Acquire);
        if found != UNMARKED && !recovers {
            return false;
        }
        if exclusive {
            let kept = if found == UNMARKED { WRITER } else { POISON };
            mark.store(kept, Ordering::Relaxed);
            // The process may die after any store to the words, which all come after this one.
            fence(Ordering::SeqCst);
            step();
        }
        true
    }

    /// Takes back the mark of this writer, if it is one. Readers have found none.
    fn take_mark(&self) {
        if let Some(mark) = self.mark()
            && mark.load(Ordering::Relaxed) == WRITER
        {
            mark.store(UNMARKED, Ordering::Release);
            step();
        }
    }

    /// Brings the span to its addresses; the caller has the lock, and has it no more if that fails.
    #[inline]
    fn bring(&self, patience: Patience) -> Result<()> {
        if !self.moves() {
            return Ok(());
        }
        let map_file = || map(&self.file, &self.header, self.access);
        if let Err(why) = self.window.enter(self.header.id, patience, &map_file) {
            self.unlock();
            return Err(why.of(&self.name));
        }
        Ok(())
    }

    fn unlock(&self) {
        match &self.robust {
            Some(robust) => robust.leave(),
            None => {
                self.take_mark();
                self.gate.leave(self.file.as_fd());
            }
        }
    }

    /// Lets `fix` make the words right that a dead writer may have left.
    ///
    /// # Errors
    /// As of [`Self::enter`].
    pub(crate) fn recover<R>(&self, fix: impl FnOnce(&[AtomicU64]) -> R) -> Result<R> {
        /// Leaves, also by a panic.
        struct Leave<'m>(&'m Mapping);
        impl Drop for Leave<'_> {
            fn drop(&mut self) {
                self.0.leave();
            }
        }
        if self.header.lock != Lock::None {
            self.lock(true, Patience::ForEver, true)?;
        }
        let _leave = Leave(self);
        self.check_current()?;
        let fixed = fix(self.words());
        if let Some(robust) = &self.robust {
            robust.heal();
        }
        if let Some(mark) = self.mark() {
            mark.store(WRITER, Ordering::Release);
        }
        Ok(fixed)
    }

    /// Whether other spans may come to its addresses. Words share their window with nobody
    /// ([`Wanted::window`]), so they are there all the time.
    fn moves(&self) -> bool {
        self.header.kind == Kind::Heap
    }

    /// Whether another span of this process has the same addresses.
    pub(crate) fn shares_window(&self) -> bool {
        self.window.is_shared()
    }

    /// Gives the lock back.
    pub(crate) fn leave(&self) {
        if self.header.lock == Lock::None {
            return;
        }
        if self.moves() {
            self.window.leave();
        }
        self.unlock();
    }

    #[inline]
    fn check_current(&self) -> Result<()> {
        match self.is_current() {
            true => Ok(()),
            false => Err(SpaceError::Stale(self.name.clone())),
        }
    }

    fn is_whole(&self) -> bool {
        self.word(DECIDED_AT) == self.word(WRITTEN_AT)
    }

    /// Looks that no decided change is unfinished, and finishes it if `writable`: a change of this
    /// guard may have failed so.
    ///
    /// # Errors
    /// [`SpaceError::Unfinished`], or why it cannot be finished.
    #[inline]
    pub(crate) fn make_whole(&self, writable: bool) -> Result<()> {
        match (self.is_whole(), writable) {
            (true, _) => Ok(()),
            (false, true) => journal::finish(self.file.as_fd(), &self.path),
            (false, false) => Err(SpaceError::Unfinished(self.name.clone())),
        }
    }

    fn journal(&self) -> Journal<'_> {
        Journal {
            file: self.file.as_fd(),
            path: &self.path,
            at: self.header.mapped(),
        }
    }

    /// The address behind the first `used` bytes of data.
    fn data_end(&self, used: u64) -> u64 {
        self.header.base + HEADER_BYTES + used
    }

    /// Makes the change in the first `used` bytes of data stay, all of it or nothing.
    ///
    /// # Errors
    /// [`SpaceError::Unfinished`]: it counts, and the next writer finishes it. All others: it was
    /// taken back.
    ///
    /// # Safety
    /// The caller has the exclusive lock, and no reference into the data.
    #[allow(unsafe_code)] // slices of mapped memory
    pub(crate) unsafe fn commit(&self, used: u64) -> Result<()> {
        let copies = match &self.pagemap {
            Some(pagemap) => pagemap.copies(self.header.base + HEADER_BYTES, self.data_end(used)),
            None => Ok(Vec::new()),
        };
        let copies = match copies {
            Ok(copies) => copies,
            Err(error) => {
                // SAFETY: the caller's promise.
                unsafe { self.take_back() };
                return Err(error);
            }
        };
        if copies.is_empty() {
            return Ok(());
        }
        let runs: Vec<(u64, &[u8])> = copies
            .iter()
            .map(|&(start, len)| {
                let bytes = start as usize as *const u8;
                // SAFETY: pages inside the mapping; nobody changes them, by the caller's promise.
                let bytes = unsafe { core::slice::from_raw_parts(bytes, len as usize) };
                (start - self.header.base, bytes)
            })
            .collect();
        let number = self.word(WRITTEN_AT) + 1;
        let page = rustix::param::page_size();
        let done = self.journal().commit(number, page, &runs);
        drop(runs);
        for (start, len) in copies {
            // SAFETY: the caller's promise; the slices are gone.
            unsafe { self.drop_copies(start - self.header.base, len) };
        }
        done
    }

    /// Drops all private copies: the data is that of the file again.
    ///
    /// # Safety
    /// As of [`Self::commit`].
    #[allow(unsafe_code)] // changes mapped memory
    pub(crate) unsafe fn take_back(&self) {
        // SAFETY: the caller's promise.
        unsafe { self.drop_copies(HEADER_BYTES, self.header.size) };
    }

    /// # Safety
    /// As of [`Self::commit`].
    #[allow(unsafe_code)] // changes mapped memory
    unsafe fn drop_copies(&self, offset: u64, len: u64) {
        let start = (self.header.base + offset) as usize as *mut c_void;
        // SAFETY: whole pages of our own private mapping, to which the caller has no reference.
        let done = unsafe { rustix::mm::madvise(start, len as usize, Advice::LinuxDontNeed) };
        if done.is_err() {
            // Going on would show changes that do not count (JUMP-3).
            std::process::abort();
        }
    }

    /// The layout of a type, worked out once.
    pub(crate) fn layout(&self, of: TypeId, work_out: impl FnOnce() -> u64) -> u64 {
        let mut layouts = self.layouts.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((_, layout)) = layouts.iter().find(|(id, _)| *id == of) {
            return *layout;
        }
        let layout = work_out();
        layouts.push((of, layout));
        layout
    }
}
