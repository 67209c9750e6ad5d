//! The system calls that change files. Each is a step, after which the process may die.
//!
//! Tests let a child process die after each step in turn (`crate::steps`); nothing of that is built
//! into programs.

use crate::error::{Result, SpaceError};
use rustix::fd::{AsFd, OwnedFd};
use rustix::fs::{AtFlags, CWD, FallocateFlags, FlockOperation, Mode, OFlags, RenameFlags};
use rustix::io::Errno;
use std::path::Path;

/// The number of a file system of huge pages.
const HUGETLBFS_MAGIC: u64 = 0x9584_58f6;

#[cfg(test)]
pub(crate) use crate::steps::step;

#[cfg(not(test))]
#[inline(always)]
pub(crate) fn step() {}

/// Opens a file for reading, or for reading and writing.
pub(crate) fn open(path: &Path, writable: bool) -> std::result::Result<OwnedFd, Errno> {
    let access = match writable {
        true => OFlags::RDWR,
        false => OFlags::RDONLY,
    };
    let flags = access | OFlags::CLOEXEC | OFlags::NOFOLLOW | OFlags::NONBLOCK;
    rustix::fs::open(path, flags, Mode::empty())
}

/// Makes a new file, for this user alone.
pub(crate) fn make(path: &Path) -> Result<OwnedFd> {
    let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
    let made = rustix::fs::open(path, flags, Mode::RUSR | Mode::WUSR);
    let file = made.map_err(|errno| SpaceError::of("create", path, errno))?;
    step();
    Ok(file)
}

/// Files of huge pages cannot be written, nor mapped privately page by page.
///
/// # Errors
/// [`SpaceError::BadRange`]: the file system has only such files.
pub(crate) fn refuse_huge_pages(file: impl AsFd, path: &Path) -> Result<()> {
    let found = rustix::fs::fstatfs(file);
    let found = found.map_err(|errno| SpaceError::of("look at", path, errno))?;
    if u64::try_from(found.f_type) != Ok(HUGETLBFS_MAGIC) {
        return Ok(());
    }
    Err(SpaceError::BadRange(format!(
        "{} lies in a file system of huge pages; choose another directory",
        path.display()
    )))
}

/// Reserves the file's first `len` bytes, which fails here when there is no room, and never when
/// they are touched.
pub(crate) fn reserve(file: impl AsFd, path: &Path, len: u64) -> Result<()> {
    rustix::fs::fallocate(file, FallocateFlags::empty(), 0, len)
        .map_err(|errno| SpaceError::of("reserve the memory of", path, errno))?;
    step();
    Ok(())
}

/// Leaves the first `len` bytes of the file.
pub(crate) fn truncate(file: impl AsFd, path: &Path, len: u64) -> Result<()> {
    rustix::fs::ftruncate(file, len).map_err(|errno| SpaceError::of("truncate", path, errno))?;
    step();
    Ok(())
}

/// Writes all of `bytes` at `offset`.
pub(crate) fn write(file: impl AsFd, path: &Path, mut bytes: &[u8], mut offset: u64) -> Result<()> {
    while !bytes.is_empty() {
        let done = match rustix::io::pwrite(&file, bytes, offset) {
            Ok(0) => return Err(SpaceError::of("write", path, Errno::IO)),
            Ok(done) => done,
            Err(Errno::INTR) => continue,
            Err(errno) => return Err(SpaceError::of("write", path, errno)),
        };
        bytes = &bytes[done..];
        offset += done as u64;
    }
    step();
    Ok(())
}

/// Reads all of `bytes` from `offset` on; false if the file ends before.
pub(crate) fn read(
    file: impl AsFd,
    path: &Path,
    bytes: &mut [u8],
    mut offset: u64,
) -> Result<bool> {
    let mut filled = 0;
    while filled < bytes.len() {
        match rustix::io::pread(&file, &mut bytes[filled..], offset) {
            Ok(0) => return Ok(false),
            Ok(done) => {
                filled += done;
                offset += done as u64;
            }
            Err(Errno::INTR) => {}
            Err(errno) => return Err(SpaceError::of("read", path, errno)),
        }
    }
    Ok(true)
}

/// Bytes of the file.
pub(crate) fn length(file: impl AsFd, path: &Path) -> Result<u64> {
    let status = rustix::fs::fstat(file).map_err(|errno| SpaceError::of("look at", path, errno))?;
    u64::try_from(status.st_size).map_err(|_| SpaceError::of("look at", path, Errno::IO))
}

/// Sets the rights.
pub(crate) fn set_mode(file: impl AsFd, path: &Path, mode: u32) -> Result<()> {
    rustix::fs::fchmod(file, Mode::from_raw_mode(mode))
        .map_err(|errno| SpaceError::of("change the rights of", path, errno))?;
    step();
    Ok(())
}

/// Gives the file `from` the name `to`, which nothing may have. `false`: something has it.
pub(crate) fn name_new(from: &Path, to: &Path) -> Result<bool> {
    match rustix::fs::renameat_with(CWD, from, CWD, to, RenameFlags::NOREPLACE) {
        Ok(()) => {
            step();
            Ok(true)
        }
        Err(Errno::EXIST) => Ok(false),
        Err(errno) => Err(SpaceError::of("name", to, errno)),
    }
}

/// Puts the file `from` in the place of `to`.
pub(crate) fn replace(from: &Path, to: &Path) -> Result<()> {
    rustix::fs::rename(from, to).map_err(|errno| SpaceError::of("replace", to, errno))?;
    step();
    Ok(())
}

/// Takes the name from a file. Processes that have it mapped keep its memory.
pub(crate) fn remove(path: &Path) -> std::result::Result<(), Errno> {
    rustix::fs::unlinkat(CWD, path, AtFlags::empty())?;
    step();
    Ok(())
}

/// The lock of a registry, held until drop or death.
pub(crate) struct RegistryLock(#[allow(dead_code)] OwnedFd); // closing it unlocks

/// Waits for the lock in `path`. The file is made with rights `mode` if there is none.
pub(crate) fn lock(path: &Path, mode: u32) -> Result<RegistryLock> {
    let failed = |errno| SpaceError::of("lock", path, errno);
    let file = match open(path, false) {
        Err(Errno::NOENT) => {
            let flags = OFlags::RDONLY | OFlags::CREATE | OFlags::CLOEXEC;
            let made = rustix::fs::open(path, flags, Mode::from_raw_mode(mode));
            step();
            made
        }
        opened => opened,
    };
    let file = file.map_err(failed)?;
    loop {
        match rustix::fs::flock(&file, FlockOperation::LockExclusive) {
            Ok(()) => return Ok(RegistryLock(file)),
            Err(Errno::INTR) => {}
            Err(errno) => return Err(failed(errno)),
        }
    }
}
