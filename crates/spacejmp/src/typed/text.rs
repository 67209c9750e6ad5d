//! Text in a heap span.

use super::{Heap, SegVec};
use crate::error::Result;
use crate::layout::{LayoutWalk, SegSafe};
use core::fmt;
use core::ops::Deref;

/// A growing text in the heap of its span. Read it as a `str`.
#[derive(Default)]
#[repr(transparent)]
pub struct SegStr<'id> {
    /// Always UTF-8.
    bytes: SegVec<'id, u8>,
}

impl<'id> SegStr<'id> {
    /// An empty text.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// A copy of a text.
    ///
    /// # Errors
    /// [`crate::SpaceError::Full`].
    pub fn from_text(heap: &Heap<'id>, text: &str) -> Result<Self> {
        let bytes = SegVec::from_slice(heap, text.as_bytes())?;
        Ok(Self { bytes })
    }

    /// Adds a text at the end.
    ///
    /// # Errors
    /// [`crate::SpaceError::Full`]; nothing was added.
    pub fn push_str(&mut self, heap: &Heap<'id>, text: &str) -> Result<()> {
        self.bytes.extend_from_slice(heap, text.as_bytes())
    }

    /// Makes it a copy of another text.
    ///
    /// # Errors
    /// [`crate::SpaceError::Full`]; it is as it was.
    pub fn set(&mut self, heap: &Heap<'id>, text: &str) -> Result<()> {
        let more = text.len().saturating_sub(self.bytes.len());
        self.bytes.reserve(heap, more)?;
        self.bytes.clear();
        self.push_str(heap, text)
    }

    /// Makes it empty.
    pub fn clear(&mut self) {
        self.bytes.clear();
    }
}

impl Deref for SegStr<'_> {
    type Target = str;

    #[inline]
    #[allow(unsafe_code)] // bytes that are known to be a text
    fn deref(&self) -> &str {
        // SAFETY: only whole texts are put there.
        unsafe { str::from_utf8_unchecked(&self.bytes) }
    }
}

impl PartialEq for SegStr<'_> {
    fn eq(&self, other: &Self) -> bool {
        **self == **other
    }
}

impl Eq for SegStr<'_> {}

impl PartialEq<str> for SegStr<'_> {
    fn eq(&self, other: &str) -> bool {
        **self == *other
    }
}

impl fmt::Debug for SegStr<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        (**self).fmt(f)
    }
}

impl fmt::Display for SegStr<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        (**self).fmt(f)
    }
}

// SAFETY: as its bytes.
#[allow(unsafe_code)]
unsafe impl SegSafe for SegStr<'_> {
    type In<'id> = SegStr<'id>;

    fn describe(walk: &mut LayoutWalk) {
        walk.word("SegStr");
    }
}
