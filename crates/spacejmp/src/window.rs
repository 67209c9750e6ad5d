//! Windows: the address ranges of this process's spans. Heaps with the same range share a window,
//! one at a time.
//!
//! A span and its copies have one range. A process that attaches several of them has them all
//! mapped, one in the window and the others parked elsewhere. A thread that enters a parked one
//! waits until nobody is inside the one in the window. Then page tables move, by `mremap`, which
//! takes the same time for a page and for a GiB. Nothing is unmapped meanwhile, so nothing else of
//! the process can take the addresses.
//!
//! Owns the mappings at the range and at the parking places. A forked child has none of them, so
//! that a worker finds the addresses free.
//!
//! Invariants
//! - JUMP-4: a range belongs to one window, and lies where nothing else of the process lay.
//! - JUMP-6: the span in the window changes only while no thread is inside.

use crate::lock::{NotEntered, Patience, wait_for};
use crate::names::SpanId;
use core::ffi::c_void;
use rustix::io::Errno;
use rustix::mm::{Advice, MapFlags, MremapFlags, ProtFlags};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

/// Parking places lie like their windows in units of this, so that page tables of whole units move
/// at once.
const UNIT_BYTES: u64 = 1 << 30;

/// A range of addresses, and the spans that share it.
#[derive(Debug)]
pub(crate) struct Window {
    base: u64,
    reach: u64,
    state: Mutex<State>,
    left: Condvar,
}

#[derive(Debug)]
struct State {
    /// The span in the window.
    here: Option<SpanId>,
    /// Threads that are inside it.
    threads: usize,
    guests: Vec<Guest>,
}

/// A span of the window.
#[derive(Debug)]
struct Guest {
    id: SpanId,
    /// Bytes that are mapped.
    len: u64,
    /// Where it is while another one is in the window. Before it has been in the window it is
    /// nowhere.
    parking: Option<u64>,
}

/// Maps the file of a span at its base, over any other mapping.
pub(crate) type MapFile<'a> = &'a dyn Fn() -> std::result::Result<(), Errno>;

fn at(address: u64) -> *mut c_void {
    address as usize as *mut c_void
}

/// Covers a range that this module owns with memory that nobody can touch.
#[allow(unsafe_code)] // mappings at fixed addresses
fn cover(address: u64, len: u64) -> std::result::Result<(), Errno> {
    if len == 0 {
        return Ok(());
    }
    let flags = MapFlags::PRIVATE | MapFlags::NORESERVE | MapFlags::FIXED;
    let nothing = ProtFlags::empty();
    // SAFETY: the range is of a window or of a parking place, and nobody is inside (JUMP-6).
    unsafe { rustix::mm::mmap_anonymous(at(address), len as usize, nothing, flags) }?;
    hide(address, len)
}

/// Keeps a range of this module from forked children.
#[allow(unsafe_code)] // advice about a mapping
fn hide(address: u64, len: u64) -> std::result::Result<(), Errno> {
    // SAFETY: the range is of this module. This process keeps it as it is.
    unsafe { rustix::mm::madvise(at(address), len as usize, Advice::LinuxDontFork) }
}

/// Moves a mapping between a window and a parking place, over any other mapping.
#[allow(unsafe_code)] // moves a mapping
fn shift(from: u64, to: u64, len: u64) -> std::result::Result<(), Errno> {
    let flags = MremapFlags::MAYMOVE | MremapFlags::DONTUNMAP;
    let len = len as usize;
    // SAFETY: both ranges are of this module, and nobody is inside (JUMP-6). The old range stays
    // mapped, without pages.
    unsafe { rustix::mm::mremap_fixed(at(from), len, len, flags, at(to)) }.map(drop)
}

#[allow(unsafe_code)] // unmaps
fn unmap(address: u64, len: u64) {
    if len > 0 {
        // SAFETY: the range is of this module, and nobody uses it any longer.
        let done = unsafe { rustix::mm::munmap(at(address), len as usize) };
        debug_assert!(done.is_ok(), "munmap of an own mapping: {done:?}");
    }
}

/// Reserves `reach` bytes that lie in their unit as `base` does.
#[allow(unsafe_code)] // a mapping where nothing lies
fn parking_place(base: u64, reach: u64) -> std::result::Result<u64, Errno> {
    let all = reach + UNIT_BYTES;
    let flags = MapFlags::PRIVATE | MapFlags::NORESERVE;
    let nothing = ProtFlags::empty();
    // SAFETY: the kernel chooses addresses where nothing lies.
    let start =
        unsafe { rustix::mm::mmap_anonymous(core::ptr::null_mut(), all as usize, nothing, flags)? };
    let start = start.addr() as u64;
    let skip = (base % UNIT_BYTES + UNIT_BYTES - start % UNIT_BYTES) % UNIT_BYTES;
    unmap(start, skip);
    unmap(start + skip + reach, UNIT_BYTES - skip);
    hide(start + skip, reach)?;
    Ok(start + skip)
}

impl Window {
    /// Reserves the range.
    ///
    /// # Errors
    /// `EXIST`: something of this process lies there.
    #[allow(unsafe_code)] // a mapping where nothing lies
    pub(crate) fn reserve(base: u64, reach: u64) -> std::result::Result<Self, Errno> {
        let flags = MapFlags::PRIVATE | MapFlags::NORESERVE | MapFlags::FIXED_NOREPLACE;
        let nothing = ProtFlags::empty();
        // SAFETY: the flag keeps other mappings as they are. An old kernel may ignore it and choose
        // another place, which is looked at below.
        let place =
            unsafe { rustix::mm::mmap_anonymous(at(base), reach as usize, nothing, flags) }?;
        if place != at(base) {
            unmap(place.addr() as u64, reach);
            return Err(Errno::EXIST);
        }
        if let Err(errno) = hide(base, reach) {
            unmap(base, reach);
            return Err(errno);
        }
        Ok(Self {
            base,
            reach,
            state: Mutex::new(State {
                here: None,
                threads: 0,
                guests: Vec::new(),
            }),
            left: Condvar::new(),
        })
    }

    /// Whether it is this range.
    pub(crate) fn is_at(&self, base: u64, reach: u64) -> bool {
        (self.base, self.reach) == (base, reach)
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // Every change leaves a state that is true, also when it fails in the middle.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a span of `len` mapped bytes.
    ///
    /// # Errors
    /// There is nobody else, and its file cannot be mapped.
    pub(crate) fn add(
        &self,
        id: SpanId,
        len: u64,
        map_file: MapFile<'_>,
    ) -> std::result::Result<(), Errno> {
        let mut state = self.state();
        if state.here.is_none() {
            map_file()?;
            state.here = Some(id);
        }
        let parking = None;
        state.guests.push(Guest { id, len, parking });
        Ok(())
    }

    /// Gives the range back, if no span was added.
    pub(crate) fn abandon(&self) {
        if self.state().guests.is_empty() {
            unmap(self.base, self.reach);
        }
    }

    /// Whether several spans share it.
    pub(crate) fn is_shared(&self) -> bool {
        self.state().guests.len() > 1
    }

    /// Takes a span out, in which no thread is. The last one gives the range back.
    pub(crate) fn remove(&self, id: SpanId) {
        let mut state = self.state();
        let Some(index) = state.guests.iter().position(|guest| guest.id == id) else {
            return;
        };
        let guest = state.guests.remove(index);
        if let Some(parking) = guest.parking {
            unmap(parking, self.reach);
        }
        if state.guests.is_empty() {
            unmap(self.base, self.reach);
            state.here = None;
        } else if state.here == Some(id) {
            assert_eq!(state.threads, 0, "JUMP-6: a thread is inside");
            // If it fails, the file stays mapped until another span comes.
            let _stays = cover(self.base, self.reach);
            state.here = None;
        }
    }

    /// Brings the span into the window, and keeps it there until [`Self::leave`].
    ///
    /// # Errors
    /// Threads are inside another span of the window: [`NotEntered::WouldBlock`] or
    /// [`NotEntered::TimedOut`]. Or the system's.
    pub(crate) fn enter(
        &self,
        id: SpanId,
        patience: Patience,
        map_file: MapFile<'_>,
    ) -> std::result::Result<(), NotEntered> {
        let mut state = self.state();
        while state.here != Some(id) {
            if state.threads == 0 {
                self.bring(&mut state, id, map_file)
                    .map_err(|errno| NotEntered::System("map", errno))?;
                break;
            }
            state = wait_for(&self.left, state, patience)?;
        }
        state.threads += 1;
        Ok(())
    }

    /// A thread has left the span in the window.
    pub(crate) fn leave(&self) {
        let mut state = self.state();
        state.threads -= 1;
        if state.threads == 0 && state.guests.len() > 1 {
            drop(state);
            self.left.notify_all();
        }
    }

    /// Parks the span in the window, and moves another one in.
    fn bring(
        &self,
        state: &mut State,
        id: SpanId,
        map_file: MapFile<'_>,
    ) -> std::result::Result<(), Errno> {
        assert_eq!(state.threads, 0, "JUMP-6: a thread is inside");
        let here = state.here;
        if let Some(old) = state.guests.iter_mut().find(|guest| Some(guest.id) == here) {
            let parking = match old.parking {
                Some(parking) => parking,
                None => parking_place(self.base, self.reach)?,
            };
            old.parking = Some(parking);
            shift(self.base, parking, old.len)?;
        }
        state.here = None;
        let new = state.guests.iter().find(|guest| guest.id == id);
        let Some(new) = new else {
            return Err(Errno::INVAL);
        };
        match new.parking {
            Some(parking) => shift(parking, self.base, new.len)?,
            None => map_file()?,
        }
        // The rest of a longer one.
        cover(self.base + new.len, self.reach - new.len)?;
        state.here = Some(id);
        Ok(())
    }
}
