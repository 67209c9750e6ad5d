//! One span of a space that a thread is inside of: reads and changes of its data.

use crate::active;
use crate::definition::Access;
use crate::error::{Result, SpaceError};
use crate::header::Kind;
use crate::heap::{self, HeapReport, RawHeap};
use crate::layout::{LayoutWalk, SegSafe};
use crate::map::Mapping;
use crate::typed::Heap;
use core::any::{TypeId, type_name};
use core::marker::PhantomData;
use core::ptr::NonNull;
use core::sync::atomic::{AtomicU64, Ordering};

/// One span of the space that the thread is inside of.
#[derive(Debug)]
pub struct Part<'g> {
    mapping: &'g Mapping,
    writable: bool,
    in_this_thread: PhantomData<*const ()>,
}

/// The words of a span, for reading.
#[derive(Clone, Copy, Debug)]
pub struct Words<'g>(&'g [AtomicU64]);

/// A change that is taken back when it is dropped.
struct Change<'m>(Option<&'m Mapping>);

impl Change<'_> {
    /// Makes it stay.
    ///
    /// # Safety
    /// As of [`Mapping::commit`].
    #[allow(unsafe_code)] // the caller's promise
    unsafe fn commit(mut self, heap: RawHeap) -> Result<()> {
        heap.seal();
        let used = heap.used_bytes();
        match self.0.take() {
            // SAFETY: the caller's promise.
            Some(mapping) => unsafe { mapping.commit(used) },
            None => Ok(()),
        }
    }
}

impl Drop for Change<'_> {
    #[allow(unsafe_code)] // the maker's promise
    fn drop(&mut self) {
        if let Some(mapping) = self.0 {
            // SAFETY: made in `Part::change` only, which has the exclusive lock; the references
            // into the data ended with the call that failed or panicked.
            unsafe { mapping.take_back() };
        }
    }
}

impl<'g> Part<'g> {
    /// The part of a guard that holds the span's lock, exclusively if it is writable.
    pub(crate) fn new(mapping: &'g Mapping, writable: bool) -> Self {
        Self {
            mapping,
            writable,
            in_this_thread: PhantomData,
        }
    }

    /// The span's name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.mapping.name
    }

    /// Whether it can be changed.
    #[must_use]
    pub fn is_writable(&self) -> bool {
        self.writable
    }

    /// Whether the heap has a root.
    ///
    /// # Errors
    /// [`SpaceError::WrongKind`], [`SpaceError::Damaged`].
    pub fn has_root(&self) -> Result<bool> {
        Ok(self.heap()?.root().is_some())
    }

    /// Reads the root. No reference leaves the call of `look`.
    ///
    /// # Errors
    /// [`SpaceError::NoRoot`], [`SpaceError::WrongLayout`], [`SpaceError::WrongKind`],
    /// [`SpaceError::Damaged`].
    #[allow(unsafe_code)] // a reference into the span
    pub fn read<T: SegSafe + 'static, R>(
        &self,
        look: impl for<'id> FnOnce(&T::In<'id>) -> R,
    ) -> Result<R> {
        let root = self.root::<T>(self.heap()?)?.cast::<T::In<'_>>();
        // SAFETY: a value of this layout was put there by `init`, and lies in the mapping. The
        // guard has the lock, and no change is under way, because that would borrow this part.
        Ok(look(unsafe { root.as_ref() }))
    }

    /// Changes what is reached from the root. When `change` gives `Ok`, all of its changes stay,
    /// whatever is killed after this call. A `kill -9` before that leaves all of them or none. When
    /// it fails or panics, all of them are taken back.
    ///
    /// # Errors
    /// That of `change`, and those of [`Self::read`]; [`SpaceError::NotWritable`];
    /// [`SpaceError::NoSpace`] for the journal: nothing has changed. [`SpaceError::Unfinished`]:
    /// the change counts, and the next writer finishes it.
    pub fn write<T: SegSafe + 'static, R>(
        &mut self,
        change: impl for<'id> FnOnce(&Heap<'id>, &mut T::In<'id>) -> Result<R>,
    ) -> Result<R> {
        let raw = self.writable_heap()?;
        let root = self.root::<T>(raw)?;
        self.change(raw, || write_root::<T, R>(raw, root, change))
    }

    /// Gives the heap its root, as a change.
    ///
    /// # Errors
    /// [`SpaceError::RootExists`], and as of [`Self::write`].
    #[allow(unsafe_code)] // writes to a block
    pub fn init<T: SegSafe + 'static>(
        &mut self,
        make: impl for<'id> FnOnce(&Heap<'id>) -> Result<T::In<'id>>,
    ) -> Result<()> {
        let raw = self.writable_heap()?;
        if raw.root().is_some() {
            return Err(SpaceError::RootExists(self.mapping.name.clone()));
        }
        let layout = self.layout::<T>();
        self.change(raw, || {
            let heap = Heap::new(raw);
            let value = make(&heap)?;
            let place = heap.room::<T::In<'_>>(1)?;
            // SAFETY: a block for one such value, which nobody else has.
            unsafe { place.write(value) };
            raw.set_root(place.cast(), layout);
            Ok(())
        })
    }

    /// Makes the heap empty, without a root, as a change. Its values are forgotten, not
    /// dropped.
    ///
    /// # Errors
    /// As of [`Self::write`].
    pub fn clear(&mut self) -> Result<()> {
        let raw = self.writable_heap()?;
        self.change(raw, || {
            raw.clear();
            Ok(())
        })
    }

    /// Looks at the heap's own structure, and believes none of it.
    ///
    /// # Errors
    /// [`SpaceError::WrongKind`], [`SpaceError::Damaged`].
    #[allow(unsafe_code)] // a slice of the span
    pub fn check(&self) -> Result<HeapReport> {
        self.check_kind(Kind::Heap)?;
        self.mapping.make_whole(self.writable)?;
        // SAFETY: the guard has the lock, and no change is under way, because that would borrow
        // this part.
        let bytes = unsafe { self.mapping.bytes() };
        heap::check(bytes).map_err(|why| self.damaged(why))
    }

    /// The words of the span, which all who are inside change at the same time.
    ///
    /// # Errors
    /// [`SpaceError::WrongKind`], [`SpaceError::NotWritable`].
    #[inline]
    pub fn words(&self) -> Result<&[AtomicU64]> {
        self.check_kind(Kind::Words)?;
        if self.mapping.access() != Access::Write || !self.writable {
            return Err(SpaceError::NotWritable(self.mapping.name.clone()));
        }
        Ok(self.mapping.words())
    }

    /// The words of the span, for reading.
    ///
    /// # Errors
    /// [`SpaceError::WrongKind`].
    #[inline]
    pub fn words_to_read(&self) -> Result<Words<'_>> {
        self.check_kind(Kind::Words)?;
        Ok(Words(self.mapping.words()))
    }

    fn check_kind(&self, asked: Kind) -> Result<()> {
        let kind = self.mapping.header.kind;
        match kind == asked {
            true => Ok(()),
            false => Err(SpaceError::WrongKind {
                name: self.mapping.name.clone(),
                is: kind.name(),
                asked: asked.name(),
            }),
        }
    }

    fn damaged(&self, why: impl Into<String>) -> SpaceError {
        SpaceError::damaged(self.mapping.path(), why)
    }

    #[allow(unsafe_code)] // opens a mapped heap
    fn heap(&self) -> Result<RawHeap> {
        self.check_kind(Kind::Heap)?;
        self.mapping.make_whole(self.writable)?;
        let data = NonNull::new(self.mapping.data());
        let data = data.ok_or_else(|| self.damaged("it lies nowhere"))?;
        let header = &self.mapping.header;
        // SAFETY: `size` bytes are mapped there, and the guard has the lock. Methods that change
        // the heap are called by `change`, for a part that may be written.
        let opened = unsafe { RawHeap::open(data, header.size, header.id.seed()) };
        opened.map_err(|why| self.damaged(why))
    }

    fn writable_heap(&self) -> Result<RawHeap> {
        let heap = self.heap()?;
        match self.writable {
            true => Ok(heap),
            false => Err(SpaceError::NotWritable(self.mapping.name.clone())),
        }
    }

    fn layout<T: SegSafe + 'static>(&self) -> u64 {
        self.mapping.layout(TypeId::of::<T>(), LayoutWalk::of::<T>)
    }

    /// The root, which is a `T`.
    fn root<T: SegSafe + 'static>(&self, heap: RawHeap) -> Result<NonNull<u8>> {
        let Some((root, found)) = heap.root() else {
            return Err(SpaceError::NoRoot(self.mapping.name.clone()));
        };
        let wanted = self.layout::<T>();
        match found == wanted {
            true => Ok(root),
            false => Err(SpaceError::WrongLayout {
                name: self.mapping.name.clone(),
                asked: type_name::<T>(),
                found,
                wanted,
            }),
        }
    }

    #[allow(unsafe_code)] // ends a change
    fn change<R>(&mut self, raw: RawHeap, change: impl FnOnce() -> Result<R>) -> Result<R> {
        assert!(self.writable, "JUMP-5: a change without the exclusive lock");
        let under_way = Change(Some(self.mapping));
        let done = active::during(raw, change)?;
        // SAFETY: the part is writable, so the guard has the exclusive lock. The references into
        // the data ended with the call.
        unsafe { under_way.commit(raw) }?;
        Ok(done)
    }
}

/// Calls `change` with the root.
#[allow(unsafe_code)] // a reference into the span
fn write_root<T: SegSafe + 'static, R>(
    raw: RawHeap,
    root: NonNull<u8>,
    change: impl for<'id> FnOnce(&Heap<'id>, &mut T::In<'id>) -> Result<R>,
) -> Result<R> {
    let mut root = root.cast::<T::In<'_>>();
    // SAFETY: a value of this layout was put there by `init`. The guard has the exclusive lock,
    // and the part is borrowed by this change alone. The heap's own memory lies elsewhere.
    change(&Heap::new(raw), unsafe { root.as_mut() })
}

impl Words<'_> {
    /// How many there are.
    #[must_use]
    pub fn count(&self) -> usize {
        self.0.len()
    }

    /// Reads a word. `None` behind the end.
    #[must_use]
    #[inline]
    pub fn load(&self, index: usize) -> Option<u64> {
        Some(self.0.get(index)?.load(Ordering::Relaxed))
    }
}
