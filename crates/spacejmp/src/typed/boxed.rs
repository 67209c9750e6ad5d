//! One value in a heap span.

use super::Heap;
use crate::active;
use crate::error::Result;
use crate::layout::{Brand, LayoutWalk, SegSafe};
use core::fmt;
use core::marker::PhantomData;
use core::ops::{Deref, DerefMut};
use core::ptr::NonNull;

/// A value in the heap of its span.
#[repr(transparent)]
pub struct SegBox<'id, T> {
    place: NonNull<T>,
    brand: PhantomData<(Brand<'id>, T)>,
}

impl<'id, T: SegSafe> SegBox<'id, T> {
    /// Moves a value into the heap.
    ///
    /// # Errors
    /// [`crate::SpaceError::Full`]; the value is dropped.
    #[allow(unsafe_code)] // writes to a block
    pub fn new(heap: &Heap<'id>, value: T) -> Result<Self> {
        let place = heap.room::<T>(1)?;
        // SAFETY: a block for one `T`, which nobody else has.
        unsafe { place.write(value) };
        Ok(Self {
            place,
            brand: PhantomData,
        })
    }

    /// Takes the value out of the heap.
    #[must_use]
    #[allow(unsafe_code)] // moves out of a block
    pub fn into_inner(self) -> T {
        let this = core::mem::ManuallyDrop::new(self);
        // SAFETY: the box owns its value, and is not used after this; then the block is unused.
        unsafe {
            let value = this.place.read();
            active::free(this.place.cast());
            value
        }
    }
}

impl<T> Deref for SegBox<'_, T> {
    type Target = T;

    #[inline]
    #[allow(unsafe_code)] // a reference into the span
    fn deref(&self) -> &T {
        // SAFETY: the box owns a value in its span. The span is locked as long as the brand lives,
        // and nobody else changes it (see `crate::space`).
        unsafe { self.place.as_ref() }
    }
}

impl<T> DerefMut for SegBox<'_, T> {
    #[inline]
    #[allow(unsafe_code)] // a reference into the span
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: as in `deref`. A box is reached by `&mut` inside a change only.
        unsafe { self.place.as_mut() }
    }
}

impl<T> Drop for SegBox<'_, T> {
    #[allow(unsafe_code)] // gives the block back
    fn drop(&mut self) {
        // SAFETY: the box owns its value and its block. A box is owned inside a change only.
        unsafe {
            self.place.drop_in_place();
            active::free(self.place.cast());
        }
    }
}

impl<T: fmt::Debug> fmt::Debug for SegBox<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        (**self).fmt(f)
    }
}

// SAFETY: one pointer into the span of its brand.
#[allow(unsafe_code)]
unsafe impl<T: SegSafe> SegSafe for SegBox<'_, T> {
    type In<'id> = SegBox<'id, T::In<'id>>;

    fn describe(walk: &mut LayoutWalk) {
        walk.word("SegBox");
        T::describe(walk);
    }
}

// SAFETY: as the box; `None` is the null pointer, because the box is transparent over `NonNull`.
#[allow(unsafe_code)]
unsafe impl<T: SegSafe> SegSafe for Option<SegBox<'_, T>> {
    type In<'id> = Option<SegBox<'id, T::In<'id>>>;

    fn describe(walk: &mut LayoutWalk) {
        walk.word("Option");
        SegBox::<'_, T>::describe(walk);
    }
}
