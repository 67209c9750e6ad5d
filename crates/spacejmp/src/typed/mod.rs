//! The types of heaps: box, vector, text, map. They hold real addresses, and know their span by
//! brand.
//!
//! A value is freed when it is dropped. A value that is forgotten stays in the span for ever.

mod boxed;
mod map;
mod text;
mod vector;

pub use boxed::SegBox;
pub use map::{SegKey, SegMap};
pub use text::SegStr;
pub use vector::SegVec;

use crate::error::Result;
use crate::heap::{BLOCK_ALIGN, RawHeap};
use crate::layout::{Brand, brand};
use core::marker::PhantomData;
use core::ptr::NonNull;

/// The heap of the span that is being changed: new values are made in it.
#[derive(Debug)]
pub struct Heap<'id> {
    raw: RawHeap,
    brand: PhantomData<Brand<'id>>,
}

impl Heap<'_> {
    /// The heap, for the change that has just begun.
    pub(crate) fn new(raw: RawHeap) -> Self {
        Self {
            raw,
            brand: PhantomData,
        }
    }

    /// Room for `count` values of `T`, of which none is there yet.
    ///
    /// # Errors
    /// [`crate::SpaceError::Full`].
    #[inline]
    pub(crate) fn room<T>(&self, count: usize) -> Result<NonNull<T>> {
        const { assert!(size_of::<T>() > 0, "values without bytes have no place") };
        const { assert!(align_of::<T>() <= BLOCK_ALIGN, "aligned to more than 16") };
        let bytes = (count as u64).checked_mul(size_of::<T>() as u64);
        let bytes = bytes.ok_or(crate::SpaceError::Full { bytes: u64::MAX })?;
        Ok(self.raw.allocate(bytes)?.cast())
    }

    fn seed(&self) -> u64 {
        self.raw.seed
    }
}

const _: Brand<'static> = brand();
