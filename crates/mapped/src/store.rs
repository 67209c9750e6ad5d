//! The store inside another program, as its readers see it: there is nobody to ask by RPC.

use crate::reader::{Answer, Reader, Why};
use crate::session::OpenError;
use core::cell::RefCell;
use pluvio_units::{ObjectVersion, TableId};
use std::path::Path;
use std::sync::Arc;

/// Reads of one call that others spoilt, before it gives up.
const ATTEMPTS_MAX: u32 = 1_000;

/// Why a read has no result.
#[derive(Debug, thiserror::Error)]
pub enum ReadError {
    /// The owner is gone, or lets this process read no more. Retryable: it may come back.
    #[error("the owner of the store is gone: {0}")]
    Gone(#[from] OpenError),
    /// There is no table with this name. Retryable: it may come.
    #[error("there is no table {0:?}")]
    UnknownTable(String),
    /// The owner stands still: it was stopped, or gets no processor. Retryable.
    #[error("the owner of the store stands still ({0:?})")]
    Stalled(Why),
}

/// A store of another process. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Store(Arc<Reader>);

/// A table of it. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Table {
    reader: Arc<Reader>,
    name: Arc<str>,
    id: TableId,
}

impl Store {
    /// Connects to the door at `path`.
    ///
    /// # Errors
    /// See [`OpenError`].
    pub fn open(path: impl AsRef<Path>) -> Result<Self, OpenError> {
        Reader::open(path).map(|reader| Self(Arc::new(reader)))
    }

    /// The table with this name.
    ///
    /// # Errors
    /// [`ReadError::UnknownTable`], [`ReadError::Gone`].
    pub fn table(&self, name: &str) -> Result<Table, ReadError> {
        let mut id = self.0.table_named(name);
        if id.is_none() {
            self.0.refresh()?;
            id = self.0.table_named(name);
        }
        Ok(Table {
            reader: Arc::clone(&self.0),
            name: name.into(),
            id: id.ok_or_else(|| ReadError::UnknownTable(name.into()))?,
        })
    }

    /// The reader behind it.
    #[must_use]
    pub fn reader(&self) -> &Reader {
        &self.0
    }

    /// The reader behind it, to be kept.
    #[must_use]
    pub fn shared_reader(&self) -> Arc<Reader> {
        Arc::clone(&self.0)
    }
}

impl Table {
    /// A copy of the value.
    ///
    /// # Errors
    /// As of [`Self::get_into`].
    pub fn get(&self, key: &[u8]) -> Result<Option<Vec<u8>>, ReadError> {
        thread_local!(static BUFFER: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) });
        BUFFER.with_borrow_mut(|buffer| {
            let found = self.get_into(key, buffer)?;
            Ok(found.then(|| buffer.clone()))
        })
    }

    /// Lets `into` hold a copy of the value; false, and `into` is empty, when there is no object.
    ///
    /// # Errors
    /// [`ReadError::UnknownTable`] when the table was dropped. [`ReadError::Gone`] and
    /// [`ReadError::Stalled`]. `into` is empty then.
    #[inline]
    pub fn get_into(&self, key: &[u8], into: &mut Vec<u8>) -> Result<bool, ReadError> {
        Ok(self.version_into(key, into)?.is_some())
    }

    /// [`Self::get_into`], and gives the version of the object.
    ///
    /// # Errors
    /// As there.
    #[inline]
    pub fn version_into(
        &self,
        key: &[u8],
        into: &mut Vec<u8>,
    ) -> Result<Option<ObjectVersion>, ReadError> {
        match self.reader.read(self.id, key, into) {
            Answer::Found(version) => Ok(Some(version)),
            Answer::Absent => {
                into.clear();
                Ok(None)
            }
            Answer::Ask(why) => self.again(why, key, into),
        }
    }

    /// A read that could not be told at once: a new map, or another attempt.
    #[cold]
    fn again(
        &self,
        mut why: Why,
        key: &[u8],
        into: &mut Vec<u8>,
    ) -> Result<Option<ObjectVersion>, ReadError> {
        for _attempt in 0..ATTEMPTS_MAX {
            match why {
                Why::OldMap | Why::NotFresh => {
                    if let Err(gone) = self.reader.refresh() {
                        into.clear();
                        return Err(gone.into());
                    }
                }
                Why::NotHere => {
                    into.clear();
                    return Err(ReadError::UnknownTable(self.name.to_string()));
                }
                Why::Pending | Why::Locked | Why::Deadline => {}
                Why::Reused | Why::Busy | Why::Broken => std::thread::yield_now(),
            }
            match self.reader.read(self.id, key, into) {
                Answer::Found(version) => return Ok(Some(version)),
                Answer::Absent => {
                    into.clear();
                    return Ok(None);
                }
                Answer::Ask(next) => why = next,
            }
        }
        into.clear();
        Err(ReadError::Stalled(why))
    }
}
