//! Values side by side in a heap span.

use super::Heap;
use crate::active;
use crate::error::Result;
use crate::layout::{Brand, LayoutWalk, SegSafe};
use core::fmt;
use core::marker::PhantomData;
use core::ops::{Deref, DerefMut};
use core::ptr::NonNull;

/// The first room of a vector.
const ROOM_MIN: usize = 4;

/// A growing row of values in the heap of its span. Read it as a slice.
#[repr(C)]
pub struct SegVec<'id, T> {
    /// Dangling while there is no room.
    place: NonNull<T>,
    len: usize,
    room: usize,
    brand: PhantomData<(Brand<'id>, T)>,
}

impl<T> Default for SegVec<'_, T> {
    fn default() -> Self {
        Self {
            place: NonNull::dangling(),
            len: 0,
            room: 0,
            brand: PhantomData,
        }
    }
}

impl<'id, T: SegSafe> SegVec<'id, T> {
    /// An empty one, without room.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// An empty one with room for `count` values.
    ///
    /// # Errors
    /// [`crate::SpaceError::Full`].
    pub fn with_room(heap: &Heap<'id>, count: usize) -> Result<Self> {
        let mut made = Self::default();
        made.reserve(heap, count)?;
        Ok(made)
    }

    /// One with copies of these values.
    ///
    /// # Errors
    /// [`crate::SpaceError::Full`].
    pub fn from_slice(heap: &Heap<'id>, values: &[T]) -> Result<Self>
    where
        T: Copy,
    {
        let mut made = Self::default();
        made.extend_from_slice(heap, values)?;
        Ok(made)
    }

    /// Makes room for `more` values.
    ///
    /// # Errors
    /// [`crate::SpaceError::Full`]; the values stay.
    #[allow(unsafe_code)] // moves values between blocks
    pub fn reserve(&mut self, heap: &Heap<'id>, more: usize) -> Result<()> {
        let full = crate::SpaceError::Full { bytes: u64::MAX };
        let needed = self.len.checked_add(more).ok_or(full)?;
        if needed <= self.room {
            return Ok(());
        }
        let room = needed.max(self.room.saturating_mul(2)).max(ROOM_MIN);
        let place = heap.room::<T>(room)?;
        // SAFETY: the new block has room for more values than there are, and is another one.
        unsafe { place.copy_from_nonoverlapping(self.place, self.len) };
        self.give_back();
        self.place = place;
        self.room = room;
        Ok(())
    }

    /// Adds a value at the end.
    ///
    /// # Errors
    /// [`crate::SpaceError::Full`]; the value is dropped.
    #[inline]
    #[allow(unsafe_code)] // writes to a block
    pub fn push(&mut self, heap: &Heap<'id>, value: T) -> Result<()> {
        if self.len == self.room {
            self.reserve(heap, 1)?;
        }
        // SAFETY: there is room behind the last value.
        unsafe { self.place.add(self.len).write(value) };
        self.len += 1;
        Ok(())
    }

    /// Adds copies of values at the end.
    ///
    /// # Errors
    /// [`crate::SpaceError::Full`]; nothing was added.
    #[allow(unsafe_code)] // writes to a block
    pub fn extend_from_slice(&mut self, heap: &Heap<'id>, values: &[T]) -> Result<()>
    where
        T: Copy,
    {
        self.reserve(heap, values.len())?;
        let source = NonNull::from(values).cast::<T>();
        // SAFETY: there is room, and nobody has a reference to what lies behind the last value.
        unsafe {
            self.place
                .add(self.len)
                .copy_from_nonoverlapping(source, values.len());
        }
        self.len += values.len();
        Ok(())
    }

    /// Takes the last value.
    #[allow(unsafe_code)] // moves out of a block
    pub fn pop(&mut self) -> Option<T> {
        self.len = self.len.checked_sub(1)?;
        // SAFETY: it was the last value, and does not count any longer.
        Some(unsafe { self.place.add(self.len).read() })
    }

    /// Puts a value in front of that at `index`, or at the end.
    ///
    /// # Errors
    /// [`crate::SpaceError::Full`]; the value is dropped.
    ///
    /// # Panics
    /// When `index` lies behind the end. The change is taken back.
    pub fn insert(&mut self, heap: &Heap<'id>, index: usize, value: T) -> Result<()> {
        assert!(index <= self.len, "no place {index} of {}", self.len);
        self.push(heap, value)?;
        self[index..].rotate_right(1);
        Ok(())
    }

    /// Takes the value at `index`; those behind it move up.
    ///
    /// # Panics
    /// When there is none. The change is taken back.
    pub fn remove(&mut self, index: usize) -> T {
        self[index..].rotate_left(1);
        self.pop().expect("a value at `index`")
    }

    /// Takes the value at `index`; the last one takes its place.
    ///
    /// # Panics
    /// When there is none. The change is taken back.
    pub fn swap_remove(&mut self, index: usize) -> T {
        let last = self.len - 1;
        self.swap(index, last);
        self.pop().expect("a value at `index`")
    }

    /// Drops the values behind the first `len`.
    pub fn truncate(&mut self, len: usize) {
        while self.len > len {
            drop(self.pop());
        }
    }

    /// Drops all values. The room stays.
    pub fn clear(&mut self) {
        self.truncate(0);
    }
}

impl<T> SegVec<'_, T> {
    /// Gives the block back, whose values are gone or moved.
    #[allow(unsafe_code)] // frees a block
    fn give_back(&mut self) {
        if self.room > 0 {
            self.room = 0;
            // SAFETY: the vector owns its block, and no value of it is used.
            unsafe { active::free(self.place.cast()) };
        }
    }
}

impl<T> Deref for SegVec<'_, T> {
    type Target = [T];

    #[inline]
    #[allow(unsafe_code)] // references into the span
    fn deref(&self) -> &[T] {
        // SAFETY: the vector owns its values in its span, as a `SegBox` does.
        unsafe { core::slice::from_raw_parts(self.place.as_ptr(), self.len) }
    }
}

impl<T> DerefMut for SegVec<'_, T> {
    #[inline]
    #[allow(unsafe_code)] // references into the span
    fn deref_mut(&mut self) -> &mut [T] {
        // SAFETY: as in `deref`. A vector with values is reached by `&mut` inside a change only.
        unsafe { core::slice::from_raw_parts_mut(self.place.as_ptr(), self.len) }
    }
}

impl<T> Drop for SegVec<'_, T> {
    #[allow(unsafe_code)] // drops values in their place
    fn drop(&mut self) {
        let values: *mut [T] = &mut **self;
        self.len = 0;
        // SAFETY: the vector owns its values, and counts none of them any longer.
        unsafe { values.drop_in_place() };
        self.give_back();
    }
}

impl<T: fmt::Debug> fmt::Debug for SegVec<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        (**self).fmt(f)
    }
}

impl<'v, T> IntoIterator for &'v SegVec<'_, T> {
    type Item = &'v T;
    type IntoIter = core::slice::Iter<'v, T>;

    fn into_iter(self) -> Self::IntoIter {
        self.iter()
    }
}

// SAFETY: a pointer into the span of its brand, and two numbers, in the order of `repr(C)`. A
// program with addresses of another size is refused by `crate`.
#[allow(unsafe_code)]
unsafe impl<T: SegSafe> SegSafe for SegVec<'_, T> {
    type In<'id> = SegVec<'id, T::In<'id>>;

    fn describe(walk: &mut LayoutWalk) {
        walk.word("SegVec");
        T::describe(walk);
    }
}
