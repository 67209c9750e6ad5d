//! An open file of a data directory.
//!
//! Invariants
//! - FILE-1: once a sync has failed, every later sync of this handle fails. The kernel marks the
//!   pages it could not write as clean, so a second sync would succeed without the data. Syncs of
//!   one handle run one after the other, because the kernel tells only one of two at the same time.
//! - FILE-2: a write whose future is dropped is either finished all the same, or has never begun.
//!
//! - FILE-3: at most one small write in a second waits for the device on an event loop. While the
//!   device stays slow, they get rarer, down to one in 64 seconds. Where the file system knows of
//!   writes that do not wait, none does.
//!
//! Which thread does the work:
//! - A small write is copied to the page cache on the event loop. That takes microseconds, less
//!   than handing it to another thread. While such writes are slow they go to blocking threads
//!   ([`SmallWrites`]).
//! - A small read is tried on the event loop without waiting for the device (`RWF_NOWAIT`).
//! - Everything else runs on a blocking thread.

use crate::disk::{DirectoryLock, Turns, blocking, disk_error};
use crate::small_writes::{Place, SmallWrites, sleeps};
use bytes::{Bytes, BytesMut};
use core::time::Duration;
use pluvio_env::buffers::Buffer;
use pluvio_env::{BoxFuture, DiskError, File};
use rustix::io::{Errno, ReadWriteFlags, preadv2, pwritev, pwritev2};
use std::fs;
use std::io::{self, IoSlice, IoSliceMut};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::sync::{Arc, Mutex, PoisonError};
use tokio::runtime::Handle;

/// Reads and writes below this size are done (tried) on the event loop. Copying 64 KiB takes about
/// 10 µs, as much as waking another thread.
const INLINE_BYTES: usize = 64 << 10;

#[derive(Debug)]
pub(crate) struct OsFile {
    inner: Arc<Inner>,
    fallback: Handle,
}

#[derive(Debug)]
struct Inner {
    file: fs::File,
    /// For messages: the path below the data directory.
    path: String,
    /// FILE-1. Held during the kernel's sync, on blocking threads only.
    sync_failed: Mutex<bool>,
    /// ENVOS-3.
    _lock: Arc<DirectoryLock>,
    /// Small writes and turns of the whole data directory.
    small_writes: Arc<SmallWrites>,
    turns: Arc<Turns>,
}

impl OsFile {
    pub(crate) fn new(
        file: fs::File,
        path: &str,
        lock: Arc<DirectoryLock>,
        small_writes: Arc<SmallWrites>,
        turns: Arc<Turns>,
        fallback: Handle,
    ) -> Self {
        Self {
            inner: Arc::new(Inner {
                file,
                path: path.to_owned(),
                sync_failed: Mutex::new(false),
                _lock: lock,
                small_writes,
                turns,
            }),
            fallback,
        }
    }

    async fn write_parts(&self, offset: u64, first: Bytes, second: Bytes) -> Result<(), DiskError> {
        if first.len() + second.len() >= INLINE_BYTES {
            let write = move |inner: &Inner| inner.write(offset, [&first, &second]);
            return self.blocking(write).await;
        }
        if let Some(done) = self.inner.write_here(offset, [&first, &second]) {
            return done;
        }
        let write = move |inner: &Inner| {
            let took = SmallWrites::took_elsewhere;
            inner.write_timed(offset, [&first, &second], took)
        };
        self.blocking(write).await
    }

    async fn blocking<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Inner) -> Result<T, DiskError> + Send + 'static,
    ) -> Result<T, DiskError> {
        let inner = Arc::clone(&self.inner);
        let Inner { path, turns, .. } = &*self.inner;
        blocking(&self.fallback, turns, path, move |_| work(&inner)).await
    }
}

impl Inner {
    fn error(&self, error: &io::Error) -> DiskError {
        disk_error(&self.path, error)
    }

    /// The bytes from the page cache; `None` if it lacks some of them.
    fn read_cached(&self, offset: u64, length: usize) -> Option<Bytes> {
        // To `preadv2`, -1 is no position but the file's own.
        i64::try_from(offset).ok()?;
        let mut buffer = BytesMut::zeroed(length);
        let mut slices = [IoSliceMut::new(&mut buffer)];
        match preadv2(&self.file, &mut slices, offset, ReadWriteFlags::NOWAIT) {
            Ok(count) if count == length => Some(buffer.freeze()),
            Ok(_) | Err(_) => None,
        }
    }

    fn read(&self, offset: u64, length: usize) -> Result<Bytes, DiskError> {
        // A length from a damaged header must not become an allocation: never more than the file
        // has.
        let there = self.size()?.saturating_sub(offset);
        let length = usize::try_from(there).map_or(length, |there| length.min(there));
        let mut buffer = Buffer::of_anything(length);
        let mut filled = 0;
        while filled < length {
            match self
                .file
                .read_at(&mut buffer[filled..], offset + filled as u64)
            {
                Ok(0) => break,
                Ok(count) => filled += count,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(self.error(&error)),
            }
        }
        buffer.truncate(filled);
        Ok(buffer.freeze())
    }

    /// Writes one part behind the other; mostly in one call of the system.
    fn write(&self, mut offset: u64, parts: [&[u8]; 2]) -> Result<(), DiskError> {
        let length = parts.iter().map(|part| part.len() as u64).sum();
        let end = offset.checked_add(length);
        if end.is_none_or(|end| i64::try_from(end).is_err()) {
            return Err(self.error(&Errno::FBIG.into()));
        }
        let [mut first, mut second] = parts;
        // With nothing in front the rest is one plain write.
        while !first.is_empty() {
            match pwritev(
                &self.file,
                &[IoSlice::new(first), IoSlice::new(second)],
                offset,
            ) {
                Ok(0) => return Err(self.error(&io::ErrorKind::WriteZero.into())),
                Ok(count) => {
                    offset += count as u64;
                    second = &second[count.saturating_sub(first.len())..];
                    first = &first[count.min(first.len())..];
                }
                Err(Errno::INTR) => {}
                Err(error) => return Err(self.error(&error.into())),
            }
        }
        self.file
            .write_all_at(second, offset)
            .map_err(|error| self.error(&error))
    }

    /// Writes on the event loop. `None` when another thread has to do it: it would wait here.
    fn write_here(&self, offset: u64, parts: [&[u8]; 2]) -> Option<Result<(), DiskError>> {
        let small = &self.small_writes;
        // To `pwritev2`, -1 is no position but the file's own.
        if small.may_ask() && i64::try_from(offset).is_ok() {
            let slices = parts.map(IoSlice::new);
            let length: usize = parts.iter().map(|part| part.len()).sum();
            match pwritev2(&self.file, &slices, offset, ReadWriteFlags::NOWAIT) {
                Ok(count) if count == length => return Some(Ok(())),
                Err(Errno::OPNOTSUPP | Errno::NOSYS | Errno::INVAL) => small.cannot_ask(),
                // A full disk, for example, is found out there.
                Ok(_) | Err(_) => return None,
            }
        }
        match small.place(small.now()) {
            Place::Here => Some(self.write_timed(offset, parts, SmallWrites::took)),
            Place::Trial => Some(self.write_tried(offset, parts)),
            Place::Elsewhere => None,
        }
    }

    /// [`Self::write_timed`], with a look whether the thread slept.
    fn write_tried(&self, offset: u64, parts: [&[u8]; 2]) -> Result<(), DiskError> {
        let slept = sleeps();
        let began = self.small_writes.now();
        let result = self.write(offset, parts);
        let ended = self.small_writes.now();
        // Where nobody knows, a long one slept.
        let slept = slept.is_none_or(|before| sleeps().is_none_or(|after| after > before));
        self.small_writes.tried(began, ended, slept);
        result
    }

    /// Writes, and lets `took` know how long that took.
    fn write_timed(
        &self,
        offset: u64,
        parts: [&[u8]; 2],
        took: impl FnOnce(&SmallWrites, Duration, Duration),
    ) -> Result<(), DiskError> {
        let began = self.small_writes.now();
        let result = self.write(offset, parts);
        took(&self.small_writes, began, self.small_writes.now());
        result
    }

    fn sync(&self) -> Result<(), DiskError> {
        let mut failed = self
            .sync_failed
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        if *failed {
            return Err(DiskError::Other {
                path: self.path.clone(),
                message: "an earlier sync failed; what was written before it may be lost"
                    .to_owned(),
            });
        }
        self.file.sync_data().map_err(|error| {
            *failed = true;
            self.error(&error)
        })
    }

    fn size(&self) -> Result<u64, DiskError> {
        match self.file.metadata() {
            Ok(metadata) => Ok(metadata.len()),
            Err(error) => Err(self.error(&error)),
        }
    }
}

impl File for OsFile {
    fn read_at(&self, offset: u64, length: usize) -> BoxFuture<'_, Result<Bytes, DiskError>> {
        Box::pin(async move {
            if length <= INLINE_BYTES
                && let Some(bytes) = self.inner.read_cached(offset, length)
            {
                return Ok(bytes);
            }
            self.blocking(move |inner| inner.read(offset, length)).await
        })
    }

    fn write_at(&self, offset: u64, data: Bytes) -> BoxFuture<'_, Result<(), DiskError>> {
        Box::pin(async move { self.write_parts(offset, Bytes::new(), data).await })
    }

    fn write_both_at(
        &self,
        offset: u64,
        first: Bytes,
        second: Bytes,
    ) -> BoxFuture<'_, Result<(), DiskError>> {
        Box::pin(async move { self.write_parts(offset, first, second).await })
    }

    fn write_both_now(
        &self,
        offset: u64,
        first: &[u8],
        second: &[u8],
    ) -> Option<Result<(), DiskError>> {
        let is_small = first.len() + second.len() < INLINE_BYTES;
        is_small.then(|| self.inner.write_here(offset, [first, second]))?
    }

    fn sync(&self) -> BoxFuture<'_, Result<(), DiskError>> {
        Box::pin(self.blocking(Inner::sync))
    }

    fn identity(&self) -> Option<(u64, u64)> {
        let known = self.inner.file.metadata().ok()?;
        Some((known.dev(), known.ino()))
    }

    fn size(&self) -> BoxFuture<'_, Result<u64, DiskError>> {
        // Returns at once: the kernel has the metadata of an open file in memory.
        Box::pin(core::future::ready(self.inner.size()))
    }
}
