//! Spaces that are attached to this process, and the guard of a thread that is inside.
//!
//! All spans of an attached space are mapped, each at its address, and stay mapped. Entering maps
//! nothing, unless two heaps of this process have the same addresses (`window`): it takes the
//! locks, and gives a guard. The guard is the only way to the data, and no reference
//! leaves its call. The paper's confused dangling pointer does not compile.
//!
//! A reference does not leave the call that gave it:
//!
//! ```compile_fail
//! # use pluvio_spacejmp::{Entered, SegVec};
//! fn leak<'s>(entered: &'s Entered<'s>) -> &'s [u64] {
//!     entered.read::<SegVec<'_, u64>, _>("a", |root| &root[..]).unwrap()
//! }
//! ```
//!
//! A value does not leave its change, for another span or for later:
//!
//! ```compile_fail
//! # use pluvio_spacejmp::{Entered, SegVec};
//! fn leak(entered: &mut Entered<'_>) {
//!     let mut kept = None;
//!     let _ = entered.write::<SegVec<'_, u64>, _>("a", |_, root| {
//!         kept = Some(std::mem::take(root));
//!         Ok(())
//!     });
//! }
//! ```
//!
//! ```compile_fail
//! # use pluvio_spacejmp::{Part, SegVec};
//! fn mix(a: &mut Part<'_>, b: &mut Part<'_>) {
//!     let _ = a.write::<SegVec<'_, u64>, _>(|_, one| {
//!         b.write::<SegVec<'_, u64>, _>(|_, two| {
//!             std::mem::swap(one, two);
//!             Ok(())
//!         })
//!     });
//! }
//! ```
//!
//! A guard stays in its thread, and its space outlives it:
//!
//! ```compile_fail,E0277
//! # use pluvio_spacejmp::Entered;
//! fn send(entered: Entered<'_>) {
//!     std::thread::scope(|scope| scope.spawn(move || drop(entered)));
//! }
//! ```
//!
//! ```compile_fail,E0505
//! # use pluvio_spacejmp::Space;
//! fn drop_inside(space: Space) {
//!     let entered = space.enter();
//!     drop(space);
//!     drop(entered);
//! }
//! ```
//!
//! Invariants
//! - JUMP-5: a reader of a heap has its lock shared, and a writer has it exclusively, until the
//!   guard is dropped.
//!
//! Limits: a change is of one span. Changes of two spans become whole one after the other.

use crate::definition::{Access, SpaceDefinition};
use crate::error::{Result, SpaceError};
use crate::header::{Kind, Lock};
use crate::heap::HeapReport;
use crate::layout::SegSafe;
use crate::lock::Patience;
use crate::map::{Attached, Mapping};
use crate::part::Part;
use crate::registry::{Registry, What};
use crate::span::SpanInfo;
use crate::typed::Heap;
use core::cell::Cell;
use core::marker::PhantomData;
use core::sync::atomic::AtomicU64;
use core::time::Duration;

/// How long [`SpaceDefinition::check`] waits for each span.
const CHECK_PATIENCE: Duration = Duration::from_secs(2);

thread_local! {
    /// How many guards with locks this thread has.
    static GUARDS: Cell<usize> = const { Cell::new(0) };
}

/// Whether this thread has a guard with locks.
pub(crate) fn is_inside() -> bool {
    GUARDS.get() > 0
}

/// A span of an attached space.
#[derive(Debug)]
struct Member {
    attached: Attached,
    access: Access,
}

/// A space that is attached to this process (the paper's shadow address space). Any thread may
/// enter it. Dropping it detaches.
#[derive(Debug)]
pub struct Space {
    registry: Registry,
    definition: SpaceDefinition,
    /// In the order of their addresses, in which locks are taken.
    members: Vec<Member>,
    locks: bool,
}

/// How the spans of an attached space come to their addresses.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Backend {
    /// All of them are there all the time. Threads are in different spaces at one time.
    Resident,
    /// This process has attached another heap with the addresses of one of them. The one that is
    /// entered is moved there, while nobody is inside the other.
    Window,
}

/// A thread that is inside a space, until drop. Threads may be in different spaces at one time.
#[derive(Debug)]
#[must_use]
pub struct Entered<'s> {
    space: &'s Space,
    shared: bool,
    in_this_thread: PhantomData<*const ()>,
}

/// A span as it was found by [`SpaceDefinition::check`].
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SpanReport {
    /// What is known of it.
    pub info: SpanInfo,
    /// How the space has it.
    pub access: Access,
    /// What its heap holds, if it is one.
    pub heap: Option<HeapReport>,
}

impl SpaceDefinition {
    /// Maps all spans of the space into this process, each at its address (the paper's
    /// `vas_attach`).
    ///
    /// # Errors
    /// A span is gone, may not be opened as the space has it, is damaged or of another format. Its
    /// addresses are taken in this process. Nothing stays attached.
    ///
    /// # Safety
    /// The following holds as long as a space of the registry is attached. Those who may write the
    /// files of spans do so by this crate alone, and do not truncate them. The values in a heap
    /// were put there by types whose [`SegSafe`] is right. Spans of words are accessed by atomics
    /// alone. After `fork`, the child does not use what the parent has attached.
    #[allow(unsafe_code)] // a promise that the file system cannot keep
    pub unsafe fn attach(&self) -> Result<Space> {
        self.attach_trusted()
    }

    pub(crate) fn attach_trusted(&self) -> Result<Space> {
        let registry = Registry::open(&self.registry_root)?;
        let mut space = Space {
            registry,
            definition: self.clone(),
            members: Vec::new(),
            locks: false,
        };
        space.attach_members()?;
        Ok(space)
    }

    /// Attaches the space, enters it as a reader, looks at all of its heaps, and detaches. It
    /// follows no pointer, and checks every number before it uses it.
    ///
    /// # Errors
    /// Those of [`Self::attach`] and [`Space::enter_within`], and [`SpaceError::Damaged`] for a
    /// heap whose structure is not sound.
    pub fn check(&self) -> Result<Vec<SpanReport>> {
        let space = self.attach_trusted()?;
        let entered = space.enter_by(true, Patience::of(CHECK_PATIENCE))?;
        let mut reports = Vec::new();
        for member in &space.members {
            let mapping: &Mapping = &member.attached;
            let heap = match mapping.header.kind {
                Kind::Words => None,
                Kind::Heap => Some(entered.part_of(member).check()?),
            };
            reports.push(SpanReport {
                info: space.registry.find_span(&mapping.name)?,
                access: member.access,
                heap,
            });
        }
        Ok(reports)
    }
}

impl Space {
    fn attach_members(&mut self) -> Result<()> {
        let mut members = Vec::new();
        for listed in self.definition.members() {
            let gone = || SpaceError::Gone {
                space: self.definition.name().to_owned(),
                span: listed.name.clone(),
            };
            let attached = match Attached::new(&self.registry, &listed.name, listed.access) {
                Err(SpaceError::NotFound { .. }) => return Err(gone()),
                attached => attached?,
            };
            // Another span may have got the name.
            if attached.header.id != listed.id {
                return Err(gone());
            }
            members.push(Member {
                attached,
                access: listed.access,
            });
        }
        self.members = members;
        self.sort();
        Ok(())
    }

    fn sort(&mut self) {
        self.members
            .sort_by_key(|member| member.attached.header.base);
        let locked = |member: &Member| member.attached.header.lock != Lock::None;
        self.locks = self.members.iter().any(locked);
    }

    fn member(&self, span: &str) -> Result<&Member> {
        let mut members = self.members.iter();
        members
            .find(|member| member.attached.name == span)
            .ok_or_else(|| SpaceError::NotAttached(span.to_owned()))
    }

    /// The definition as it was attached.
    #[must_use]
    pub fn definition(&self) -> &SpaceDefinition {
        &self.definition
    }

    /// How its spans come to their addresses. It changes as spaces are attached and detached.
    #[must_use]
    pub fn backend(&self) -> Backend {
        let mut members = self.members.iter();
        match members.any(|member| member.attached.shares_window()) {
            true => Backend::Window,
            false => Backend::Resident,
        }
    }

    /// Whether the definition has changed since.
    ///
    /// # Errors
    /// As of [`Registry::find_space`]; the space may have been destroyed.
    pub fn is_stale(&self) -> Result<bool> {
        let newest = self.registry.find_space(self.definition.name())?;
        Ok(newest.id() != self.definition.id()
            || newest.generation() != self.definition.generation())
    }

    /// Attaches the newest definition instead. Spans that were added privately are detached.
    ///
    /// # Errors
    /// As of [`SpaceDefinition::attach`]; then the space has no spans until a refresh succeeds.
    pub fn refresh(&mut self) -> Result<()> {
        self.definition = self.registry.find_space(self.definition.name())?;
        self.members.clear();
        self.attach_members()
    }

    /// Adds a span of the same registry to this attachment alone (the paper's `seg_attach` to a
    /// handle).
    ///
    /// # Errors
    /// As of [`SpaceDefinition::attach`], and [`SpaceError::Exists`] if the space has it.
    pub fn add_private(&mut self, span: &str, access: Access) -> Result<()> {
        let attached = Attached::new(&self.registry, span, access)?;
        let id = attached.header.id;
        if self.members.iter().any(|old| old.attached.header.id == id) {
            return Err(What::Span.name_taken(span));
        }
        let range = attached.header.range();
        let mut members = self.members.iter();
        let meets = |old: &&Member| old.attached.header.range().overlaps(range);
        if let Some(other) = members.find(meets) {
            return Err(SpaceError::RangeTaken {
                name: span.to_owned(),
                other: other.attached.name.clone(),
            });
        }
        self.members.push(Member { attached, access });
        self.sort();
        Ok(())
    }

    /// Takes a span out of this attachment alone.
    ///
    /// # Errors
    /// [`SpaceError::NotAttached`].
    pub fn detach(&mut self, span: &str) -> Result<()> {
        let place = self
            .members
            .iter()
            .position(|member| member.attached.name == span)
            .ok_or_else(|| SpaceError::NotAttached(span.to_owned()))?;
        self.members.remove(place);
        self.sort();
        Ok(())
    }

    /// Enters the space (the paper's `vas_switch`): takes the locks of lockable spans. The lock is
    /// shared if the space has the span for reading, and exclusive if for writing. Waits for them
    /// as long as it takes. Without lockable spans it does nothing but look whether the spans have
    /// grown.
    ///
    /// # Errors
    /// [`SpaceError::Nested`], [`SpaceError::Stale`], [`SpaceError::Unfinished`], or the system's.
    /// Nothing stays locked.
    #[inline]
    pub fn enter(&self) -> Result<Entered<'_>> {
        self.enter_by(false, Patience::ForEver)
    }

    /// [`Self::enter`] for reading: all locks are shared, and no span can be changed.
    ///
    /// # Errors
    /// As of [`Self::enter`].
    #[inline]
    pub fn enter_shared(&self) -> Result<Entered<'_>> {
        self.enter_by(true, Patience::ForEver)
    }

    /// [`Self::enter`] without waiting. A thread that is inside another space may use it.
    ///
    /// # Errors
    /// [`SpaceError::WouldBlock`], and as of [`Self::enter`].
    pub fn try_enter(&self) -> Result<Entered<'_>> {
        self.enter_by(false, Patience::None)
    }

    /// [`Self::enter_shared`] without waiting. A thread that is inside another space may use it.
    ///
    /// # Errors
    /// [`SpaceError::WouldBlock`], and as of [`Self::enter`].
    pub fn try_enter_shared(&self) -> Result<Entered<'_>> {
        self.enter_by(true, Patience::None)
    }

    /// [`Self::enter`] that gives up when `time` is over.
    ///
    /// # Errors
    /// [`SpaceError::TimedOut`], and as of [`Self::enter`].
    pub fn enter_within(&self, time: Duration) -> Result<Entered<'_>> {
        self.enter_by(false, Patience::of(time))
    }

    /// [`Self::enter_shared`] that gives up when `time` is over.
    ///
    /// # Errors
    /// [`SpaceError::TimedOut`], and as of [`Self::enter`].
    pub fn enter_shared_within(&self, time: Duration) -> Result<Entered<'_>> {
        self.enter_by(true, Patience::of(time))
    }

    /// Makes the words of a span usable again after a writer has died inside. `fix` has them alone,
    /// and sees whatever the dead process has left. If it panics, or this process dies in it, the
    /// span stays poisoned. Nothing else happens to a span without poison.
    ///
    /// # Errors
    /// [`SpaceError::WrongKind`] of a heap, which needs no recovery; [`SpaceError::NotWritable`],
    /// [`SpaceError::NotAttached`], and as of [`Self::enter`].
    pub fn recover<R>(&self, span: &str, fix: impl FnOnce(&[AtomicU64]) -> R) -> Result<R> {
        let member = self.member(span)?;
        if member.attached.header.kind == Kind::Heap {
            return Err(SpaceError::WrongKind {
                name: span.to_owned(),
                is: Kind::Heap.name(),
                asked: Kind::Words.name(),
            });
        }
        if member.access != Access::Write {
            return Err(SpaceError::NotWritable(span.to_owned()));
        }
        if GUARDS.get() > 0 {
            return Err(SpaceError::Nested);
        }
        member.attached.recover(fix)
    }

    #[inline]
    fn enter_by(&self, shared: bool, patience: Patience) -> Result<Entered<'_>> {
        if self.locks {
            self.lock_all(shared, patience)?;
        } else {
            for member in &self.members {
                member.attached.enter(false, patience)?;
            }
        }
        Ok(Entered {
            space: self,
            shared,
            in_this_thread: PhantomData,
        })
    }

    fn lock_all(&self, shared: bool, patience: Patience) -> Result<()> {
        if GUARDS.get() > 0 && !matches!(patience, Patience::None) {
            return Err(SpaceError::Nested);
        }
        for (count, member) in self.members.iter().enumerate() {
            let exclusive = member.access == Access::Write && !shared;
            if let Err(error) = member.attached.enter(exclusive, patience) {
                self.unlock(count);
                return Err(error);
            }
        }
        GUARDS.set(GUARDS.get() + 1);
        Ok(())
    }

    /// Gives the locks of the first `count` spans back, the last one first.
    fn unlock(&self, count: usize) {
        for member in self.members[..count].iter().rev() {
            member.attached.leave();
        }
    }
}

impl Drop for Entered<'_> {
    #[inline]
    fn drop(&mut self) {
        if self.space.locks {
            self.space.unlock(self.space.members.len());
            GUARDS.set(GUARDS.get() - 1);
        }
    }
}

impl Entered<'_> {
    fn part_of<'g>(&'g self, member: &'g Member) -> Part<'g> {
        let writable = member.access == Access::Write && !self.shared;
        Part::new(&member.attached, writable)
    }

    /// One span, to be read and changed.
    ///
    /// # Errors
    /// [`SpaceError::NotAttached`].
    pub fn part(&mut self, span: &str) -> Result<Part<'_>> {
        Ok(self.part_of(self.space.member(span)?))
    }

    /// All spans, in the order of their addresses, so that one can be changed while another one is
    /// read.
    pub fn parts(&mut self) -> Vec<Part<'_>> {
        let members = self.space.members.iter();
        members.map(|member| self.part_of(member)).collect()
    }

    /// [`Part::read`] of a span.
    ///
    /// # Errors
    /// As of [`Part::read`], and [`SpaceError::NotAttached`].
    pub fn read<T: SegSafe + 'static, R>(
        &self,
        span: &str,
        look: impl for<'id> FnOnce(&T::In<'id>) -> R,
    ) -> Result<R> {
        self.part_of(self.space.member(span)?).read::<T, R>(look)
    }

    /// [`Part::write`] of a span.
    ///
    /// # Errors
    /// As of [`Part::write`], and [`SpaceError::NotAttached`].
    pub fn write<T: SegSafe + 'static, R>(
        &mut self,
        span: &str,
        change: impl for<'id> FnOnce(&Heap<'id>, &mut T::In<'id>) -> Result<R>,
    ) -> Result<R> {
        self.part(span)?.write::<T, R>(change)
    }

    /// [`Part::init`] of a span.
    ///
    /// # Errors
    /// As of [`Part::init`], and [`SpaceError::NotAttached`].
    pub fn init<T: SegSafe + 'static>(
        &mut self,
        span: &str,
        make: impl for<'id> FnOnce(&Heap<'id>) -> Result<T::In<'id>>,
    ) -> Result<()> {
        self.part(span)?.init::<T>(make)
    }
}
