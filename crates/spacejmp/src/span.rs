//! Spans: SpaceJMP's segments. Made, found, listed, changed, copied and destroyed by name.
//!
//! A span is a file with a fixed address. Its memory is reserved when it is made, so that touching
//! it never fails. It outlives its maker, and those who have it attached keep it when it is
//! destroyed. The rights are those of its file: a user who may read the file may attach it for
//! reading.

use crate::error::{Result, SpaceError};
use crate::files;
use crate::header::{self, AddressRange, GRANULE_BYTES, HEADER_BYTES, Header, Kind, Lock};
use crate::heap;
use crate::journal;
use crate::lock::{KernelLock, Patience};
use crate::map;
use crate::names::SpanId;
use crate::registry::{Registry, What};
use crate::robust::RobustLock;
use pluvio_units::Size;
use rustix::fd::{AsFd, OwnedFd};
use std::path::Path;

/// Where spans lie that choose no address: clear of programs, libraries, stacks and heaps.
const AUTO: std::ops::Range<u64> = 64 << 40..80 << 40;
/// Spans without a chosen address, and their reach, are multiples of this.
const AUTO_STEP: u64 = 1 << 30;
/// Most bytes that are copied by one call.
const COPY_BYTES: usize = 1 << 30;

/// Where a span lies in the address spaces of all who attach it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Base {
    /// Where no span of the registry lies, between 64 and 80 TiB.
    Auto,
    /// At this address, a multiple of 64 KiB.
    At(u64),
}

/// A span to be made: `registry.span("towns").size(1 << 20).create()`.
#[derive(Debug)]
#[must_use]
pub struct SpanBuilder<'r> {
    registry: &'r Registry,
    name: String,
    size: u64,
    reach: Option<u64>,
    base: Base,
    kind: Kind,
    lock: Option<Lock>,
    mode: u32,
}

/// What is known of a span.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SpanInfo {
    /// Its name.
    pub name: String,
    /// Which one it is, whatever its name.
    pub id: SpanId,
    /// The first address that belongs to it.
    pub base: u64,
    /// Bytes of data, which begin 64 KiB behind `base`.
    pub size: u64,
    /// Bytes of address space that belong to it: it can grow so far.
    pub reach: u64,
    /// What it holds.
    pub kind: Kind,
    /// Whether entering locks it.
    pub lock: Lock,
    /// The rights of its file, as of `chmod`.
    pub mode: u32,
    /// How many changes its heap has seen.
    pub changes: u64,
}

impl SpanInfo {
    /// The addresses that belong to it.
    pub(crate) fn range(&self) -> AddressRange {
        let (base, reach) = (self.base, self.reach);
        AddressRange { base, reach }
    }
}

/// The lock of a span, until drop.
enum Held<'f> {
    Kernel(#[expect(dead_code, reason = "its drop unlocks")] KernelLock<'f>),
    Robust(RobustLock),
}

impl Drop for Held<'_> {
    fn drop(&mut self) {
        match self {
            Self::Kernel(_) => {}
            Self::Robust(lock) => lock.leave(),
        }
    }
}

impl Registry {
    /// A new span of that name. Without more it is a heap of 1 MiB, for this user alone.
    pub fn span(&self, name: &str) -> SpanBuilder<'_> {
        SpanBuilder {
            registry: self,
            name: name.to_owned(),
            size: 1 << 20,
            reach: None,
            base: Base::Auto,
            kind: Kind::Heap,
            lock: None,
            mode: 0o600,
        }
    }

    /// Finds a span (the paper's `seg_find`).
    ///
    /// # Errors
    /// It is not there, or may not be read, or its file is damaged or of another format.
    pub fn find_span(&self, name: &str) -> Result<SpanInfo> {
        let (file, found) = self.open_span(name, false)?;
        let path = self.path(What::Span, name)?;
        let status =
            rustix::fs::fstat(&file).map_err(|errno| SpaceError::of("look at", &path, errno))?;
        let Header {
            id,
            base,
            size,
            reach,
            kind,
            lock,
            number: _,
        } = found.header;
        Ok(SpanInfo {
            name: name.to_owned(),
            id,
            base,
            size,
            reach,
            kind,
            lock,
            mode: status.st_mode & 0o7777,
            changes: found.decided,
        })
    }

    /// All spans, by name, each with what is known of it or why nothing is.
    ///
    /// # Errors
    /// The directory cannot be read.
    pub fn spans(&self) -> Result<Vec<(String, Result<SpanInfo>)>> {
        let names = self.names(What::Span)?;
        let look = |name: String| {
            let info = self.find_span(&name);
            (name, info)
        };
        Ok(names.into_iter().map(look).collect())
    }

    /// Destroys a span: takes its name. Its memory goes when nobody has it attached.
    ///
    /// # Errors
    /// It is not there, a space lists it, or this user may not remove it.
    pub fn destroy_span(&self, name: &str) -> Result<()> {
        let path = self.path(What::Span, name)?;
        let _held = self.lock()?;
        self.check_unlisted(name)?;
        files::remove(&path).map_err(|errno| match errno {
            rustix::io::Errno::NOENT => self.not_found(What::Span, name),
            errno => SpaceError::of("remove", &path, errno),
        })
    }

    /// Gives a span another name.
    ///
    /// # Errors
    /// It is not there, a space lists it, or the new name is taken.
    pub fn rename_span(&self, name: &str, to: &str) -> Result<()> {
        let (from, target) = (self.path(What::Span, name)?, self.path(What::Span, to)?);
        let _held = self.lock()?;
        self.open_span(name, false)?;
        self.check_unlisted(name)?;
        match files::name_new(&from, &target)? {
            true => Ok(()),
            false => Err(What::Span.name_taken(to)),
        }
    }

    /// Sets the rights of a span, as of `chmod`. Processes that have it attached keep it.
    ///
    /// # Errors
    /// It is not there, or belongs to another user.
    pub fn set_span_mode(&self, name: &str, mode: u32) -> Result<()> {
        let path = self.path(What::Span, name)?;
        let (file, _) = self.open_span(name, false)?;
        files::set_mode(file, &path, mode & 0o777)
    }

    /// Lets a span grow to `size` bytes of data, rounded up to 64 KiB. Programs that have it
    /// attached have to attach it again. Spans do not shrink.
    ///
    /// # Errors
    /// [`SpaceError::WouldBlock`]: somebody is inside; retryable. The size is less than it is, or
    /// more than the reach; no room; it is not there or may not be written.
    pub fn grow_span(&self, name: &str, size: u64) -> Result<()> {
        let path = self.path(What::Span, name)?;
        let size = granules(size)?;
        let _held = self.lock()?;
        let (file, found) = self.open_span(name, true)?;
        let _inside = self.hold(&file, &found.header, true, name)?;
        journal::finish(file.as_fd(), &path)?;
        let mut header = found.header;
        if size < header.size {
            return Err(SpaceError::BadRange(format!(
                "`{name}` has {}, and spans do not shrink to {}",
                Size(header.size),
                Size(size)
            )));
        }
        let most = header.reach - HEADER_BYTES;
        if size > most {
            return Err(SpaceError::BadRange(format!(
                "`{name}` can grow to {} and not to {}: its addresses end there; make a new span \
                 of that size, and move the data into it",
                Size(most),
                Size(size)
            )));
        }
        header::check_range(header.base, size, header.reach)?;
        // The journal lies where the new data will.
        files::truncate(&file, &path, header.mapped())?;
        header.size = size;
        header.number += 1;
        files::reserve(&file, &path, header.mapped())?;
        header::write_next(&file, &path, &header)
    }

    /// Copies a span to a new one (the paper's `seg_clone`). A heap keeps its addresses, because it
    /// holds pointers. So a process is inside one of the two at a time. Words get addresses of
    /// their own.
    ///
    /// # Errors
    /// [`SpaceError::WouldBlock`]: a writer is inside; retryable. Else as of
    /// [`SpanBuilder::create`] and [`Self::find_span`].
    pub fn clone_span(&self, name: &str, to: &str) -> Result<SpanInfo> {
        let path = self.path(What::Span, name)?;
        let held = self.lock()?;
        let (file, found) = self.open_span(name, false)?;
        let _inside = self.hold(&file, &found.header, false, name)?;
        // Read under the lock, which keeps changes away.
        let found = header::read(&file, &path)?;
        if found.decided != found.written {
            return Err(SpaceError::Unfinished(name.to_owned()));
        }
        let mut header = found.header;
        header.number = 1;
        header.id = SpanId::random()?;
        if header.kind == Kind::Words {
            header.base = self.auto_base(header.id, header.reach)?;
        }
        self.check_free(What::Span, to)?;
        let new = self.new_path(What::Span, to);
        let copy = files::make(&new)?;
        let filled = files::reserve(&copy, &new, header.mapped())
            .and_then(|()| copy_data(&file, &copy, &new, header.mapped()))
            .and_then(|()| header::write_first(&copy, &new, &header));
        self.finish(filled, to)?;
        drop(held);
        self.find_span(to)
    }

    /// Takes the span's lock, if it is free.
    fn hold<'f>(
        &self,
        file: &'f OwnedFd,
        header: &Header,
        exclusive: bool,
        name: &str,
    ) -> Result<Held<'f>> {
        match header.lock {
            Lock::None | Lock::Kernel => {
                let lock = KernelLock::at_once(file.as_fd(), exclusive);
                let lock = lock.map_err(|why| why.of(name))?;
                match header::is_marked(file, &self.path(What::Span, name)?)? {
                    true => Err(SpaceError::Poisoned(name.to_owned())),
                    false => Ok(Held::Kernel(lock)),
                }
            }
            Lock::Robust => {
                let lock = self.open_robust(name, header.id, header.kind)?;
                match exclusive {
                    true => lock.enter_exclusive(Patience::None, false)?,
                    false => lock.enter_shared(Patience::None)?,
                }
                Ok(Held::Robust(lock))
            }
        }
    }

    /// Gives a new file its name, or removes it.
    fn finish(&self, filled: Result<()>, name: &str) -> Result<()> {
        let done = filled.and_then(|()| self.publish(What::Span, name));
        if done.is_err() {
            let _the_next_maker_does = files::remove(&self.new_path(What::Span, name));
        }
        done
    }

    fn check_unlisted(&self, span: &str) -> Result<()> {
        for space in self.names(What::Space)? {
            let Ok(definition) = self.find_space(&space) else {
                continue;
            };
            if definition
                .members()
                .iter()
                .any(|member| member.name == span)
            {
                return Err(SpaceError::InUse {
                    span: span.to_owned(),
                    space,
                });
            }
        }
        Ok(())
    }

    /// The first free addresses from a random place on. So spans of other users, whose addresses
    /// this one may not read, are rarely met. Those of other registries that this process has
    /// attached are passed over.
    fn auto_base(&self, id: SpanId, reach: u64) -> Result<u64> {
        let ranges = self.ranges()?;
        let steps = (AUTO.end - AUTO.start) / AUTO_STEP;
        let first = id.seed() % steps;
        (0..steps)
            .map(|step| AUTO.start + (first + step) % steps * AUTO_STEP)
            .filter(|base| base + reach <= AUTO.end)
            .find(|&base| {
                let range = AddressRange { base, reach };
                owner_of(&ranges, range).is_none() && !map::is_taken(range)
            })
            .ok_or_else(|| {
                SpaceError::BadRange(format!("no free addresses for a reach of {reach:#x} bytes"))
            })
    }
}

impl SpanBuilder<'_> {
    /// Bytes of data, rounded up to 64 KiB.
    pub fn size(mut self, bytes: u64) -> Self {
        self.size = bytes;
        self
    }

    /// Bytes of address space, rounded up to 64 KiB: how far the span can grow. By default the next
    /// GiB.
    pub fn reach(mut self, bytes: u64) -> Self {
        self.reach = Some(bytes);
        self
    }

    /// Where it lies.
    pub fn base(mut self, base: Base) -> Self {
        self.base = base;
        self
    }

    /// What it holds.
    pub fn kind(mut self, kind: Kind) -> Self {
        self.kind = kind;
        self
    }

    /// Whether entering locks it. By default heaps are locked and words are not.
    pub fn lock(mut self, lock: Lock) -> Self {
        self.lock = Some(lock);
        self
    }

    /// The rights of the file, as of `chmod`. Access control lists can be set on the file.
    pub fn mode(mut self, mode: u32) -> Self {
        self.mode = mode;
        self
    }

    /// Makes the span (the paper's `seg_alloc`). Its memory is zero.
    ///
    /// # Errors
    /// The name is taken or none; the addresses are taken or none; the file system has no room.
    /// Nothing stays of a span that could not be made.
    pub fn create(self) -> Result<SpanInfo> {
        let lock = self.lock.unwrap_or(match self.kind {
            Kind::Heap => Lock::Kernel,
            Kind::Words => Lock::None,
        });
        if self.kind == Kind::Heap && lock == Lock::None {
            return Err(SpaceError::BadRange("a heap needs a lock".to_owned()));
        }
        let size = granules(self.size.max(1))?;
        let reach = match self.reach {
            Some(reach) => granules(reach)?,
            None => size
                .checked_add(HEADER_BYTES)
                .and_then(|mapped| mapped.checked_next_multiple_of(AUTO_STEP))
                .ok_or_else(|| too_many(size))?,
        };
        let registry = self.registry;
        let held = registry.lock()?;
        registry.check_free(What::Span, &self.name)?;
        let id = SpanId::random()?;
        let base = match self.base {
            Base::Auto => registry.auto_base(id, reach)?,
            Base::At(base) => base,
        };
        header::check_range(base, size, reach)?;
        let range = AddressRange { base, reach };
        if let Some(other) = owner_of(&registry.ranges()?, range) {
            let (name, other) = (self.name, other.to_owned());
            return Err(SpaceError::RangeTaken { name, other });
        }
        let header = Header {
            number: 1,
            id,
            base,
            size,
            reach,
            kind: self.kind,
            lock,
        };
        let new = registry.new_path(What::Span, &self.name);
        let file = files::make(&new)?;
        let filled = fill(&file, &new, &header, self.mode);
        registry.finish(filled, &self.name)?;
        drop(held);
        registry.find_span(&self.name)
    }
}

fn fill(file: &OwnedFd, path: &Path, header: &Header, mode: u32) -> Result<()> {
    files::refuse_huge_pages(file, path)?;
    files::reserve(file, path, header.mapped())?;
    if header.kind == Kind::Heap {
        let first = heap::first_bytes(header.size, header.reach)?;
        files::write(file, path, &first, HEADER_BYTES)?;
    }
    header::write_first(file, path, header)?;
    files::set_mode(file, path, mode & 0o777)
}

/// Copies the data of one file to another.
fn copy_data(from: &OwnedFd, to: &OwnedFd, path: &Path, end: u64) -> Result<()> {
    let (mut read_at, mut write_at) = (HEADER_BYTES, HEADER_BYTES);
    while read_at < end {
        let left = usize::try_from(end - read_at).unwrap_or(COPY_BYTES);
        let (source, target) = (Some(&mut read_at), Some(&mut write_at));
        let copied = rustix::fs::copy_file_range(from, source, to, target, left.min(COPY_BYTES));
        match copied {
            Ok(0) => return Err(SpaceError::of("copy to", path, rustix::io::Errno::IO)),
            Ok(_) | Err(rustix::io::Errno::INTR) => files::step(),
            Err(errno) => return Err(SpaceError::of("copy to", path, errno)),
        }
    }
    Ok(())
}

/// Rounded up to what spans have.
fn granules(bytes: u64) -> Result<u64> {
    let whole = bytes.checked_next_multiple_of(GRANULE_BYTES);
    whole.ok_or_else(|| too_many(bytes))
}

fn too_many(bytes: u64) -> SpaceError {
    SpaceError::BadRange(format!("{bytes:#x} bytes are too many"))
}

/// The name of a span that has one of these addresses.
fn owner_of(ranges: &[(AddressRange, String)], wanted: AddressRange) -> Option<&str> {
    let owner = ranges.iter().find(|(range, _)| range.overlaps(wanted))?;
    Some(&owner.1)
}
