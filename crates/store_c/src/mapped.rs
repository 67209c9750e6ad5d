//! Reads in the memory of another process: of a store that it shares, or of a server.

use crate::arguments::{Place, Wanted, text};
use crate::code::{Code, Failure, border};
use crate::data::{copy_out, key_of};
use crate::handles::{Handles, value};
use core::cell::RefCell;
use core::ffi::c_char;
use pluvio_mapped::{Answer, OpenError, ReadError, Reader, Store, Table, Why};
use pluvio_units::TableId;
use std::sync::Arc;

/// Mapped memory of another process. A value of 0 is none.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct ReaderHandle {
    /// Of no meaning to others.
    pub id: u64,
}

/// A table in mapped memory. A value of 0 is none.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct MappedTableHandle {
    /// Of no meaning to others.
    pub id: u64,
}

/// The owner of mapped memory.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct MappedOwner {
    /// The id of the server's cluster; 0 for a store inside a program.
    pub cluster: u64,
    /// The id of the server; 0 for a store inside a program.
    pub server: u64,
}

enum MappedTable {
    /// Of a store inside a program.
    Named(Table),
    /// Of a server.
    Numbered(Arc<Reader>, TableId),
}

static READERS: Handles<Store> = Handles::new("reader");
static MAPPED_TABLES: Handles<MappedTable> = Handles::new("mapped table");

impl From<OpenError> for Failure {
    fn from(why: OpenError) -> Self {
        Self::new(Code::PluvioGone, why.to_string())
    }
}

impl From<ReadError> for Failure {
    fn from(why: ReadError) -> Self {
        let code = match &why {
            ReadError::Gone(_) => Code::PluvioGone,
            ReadError::UnknownTable(_) => Code::PluvioNoTable,
            ReadError::Stalled(_) => Code::PluvioAsk,
        };
        Self::new(code, why.to_string())
    }
}

/// Connects to the door at `path`, and maps what its owner shares: a program with an embedded
/// store, or a server that runs with --mapped-reads. PLUVIO_GONE: nobody is there, or this process
/// may not read. May wait for the owner, some seconds at most. A child made by fork() may go on
/// with a reader.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pluvio_reader_open(
    path: *const c_char,
    reader: *mut ReaderHandle,
) -> Code {
    border(|| {
        // SAFETY: by the contract of the header.
        let (path, place) = unsafe { (text("path", path)?, Place::new("reader", reader)?) };
        place.write(ReaderHandle { id: 0 });
        let id = READERS.give(Store::open(path)?)?;
        place.write(ReaderHandle { id });
        Ok(())
    })
}

/// Closes a reader. Its memory goes back when its tables are closed, too.
#[unsafe(no_mangle)]
pub extern "C" fn pluvio_reader_close(reader: ReaderHandle) -> Code {
    border(|| {
        drop(READERS.take(reader.id)?);
        Ok(())
    })
}

/// Tells who owns the memory.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pluvio_reader_owner(
    reader: ReaderHandle,
    owner: *mut MappedOwner,
) -> Code {
    border(|| {
        // SAFETY: by the contract of the header.
        let place = unsafe { Place::new("owner", owner) }?;
        let found = READERS.find(reader.id)?;
        let (cluster, server) = value(&found).reader().owner();
        place.write(MappedOwner {
            cluster: cluster.0,
            server: server.0,
        });
        Ok(())
    })
}

/// Opens a table of an embedded store by its name.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pluvio_reader_table(
    reader: ReaderHandle,
    name: *const c_char,
    table: *mut MappedTableHandle,
) -> Code {
    border(|| {
        // SAFETY: by the contract of the header.
        let (name, place) = unsafe { (text("name", name)?, Place::new("table", table)?) };
        place.write(MappedTableHandle { id: 0 });
        let found = READERS.find(reader.id)?;
        let table = value(&found).table(name)?;
        let id = MAPPED_TABLES.give(MappedTable::Named(table))?;
        place.write(MappedTableHandle { id });
        Ok(())
    })
}

/// Opens a table of a server by its number (`pluvio table list --json` has it). A table that the
/// server does not have is one of which all reads give PLUVIO_ASK.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pluvio_reader_table_numbered(
    reader: ReaderHandle,
    number: u64,
    table: *mut MappedTableHandle,
) -> Code {
    border(|| {
        // SAFETY: by the contract of the header.
        let place = unsafe { Place::new("table", table) }?;
        place.write(MappedTableHandle { id: 0 });
        let found = READERS.find(reader.id)?;
        let table = MappedTable::Numbered(value(&found).shared_reader(), TableId(number));
        let id = MAPPED_TABLES.give(table)?;
        place.write(MappedTableHandle { id });
        Ok(())
    })
}

/// Closes a table in mapped memory.
#[unsafe(no_mangle)]
pub extern "C" fn pluvio_mapped_table_close(table: MappedTableHandle) -> Code {
    border(|| {
        drop(MAPPED_TABLES.take(table.id)?);
        Ok(())
    })
}

/// Copies a value out of mapped memory into `buffer`, as `pluvio_get` does. It makes no system call
/// as long as the owner's tables stay where they are. Else it asks the owner for their new places,
/// once, and may wait some seconds if the owner hangs.
///
/// PLUVIO_ASK: memory does not tell it now. A server knows; of an embedded store, try again.
/// PLUVIO_GONE: the owner is gone, or lets this process read no more. A later call may find it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pluvio_mapped_get(
    table: MappedTableHandle,
    key: *const u8,
    key_size: usize,
    buffer: *mut u8,
    capacity: usize,
    size: *mut usize,
    version: *mut u64,
) -> Code {
    thread_local!(static COPY: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) });
    border(|| {
        // SAFETY: by the contract of the header.
        let (key, size, version) = unsafe {
            let size = Wanted::new("size", size)?;
            let version = Wanted::new("version", version)?;
            (key_of(key, key_size)?, size, version)
        };
        if buffer.is_null() && capacity > 0 {
            return Err(Failure::new(Code::PluvioBadArgument, "buffer is null"));
        }
        let found = MAPPED_TABLES.find(table.id)?;
        let copied = COPY.try_with(|copy| {
            let copy = &mut *copy.borrow_mut();
            let found = value(&found).read(key, copy)?;
            version.write(found);
            // SAFETY: the buffer has room for `capacity` bytes by the contract of the header.
            unsafe { copy_out(copy, (buffer, capacity), &size) }
        });
        copied.unwrap_or_else(|_| {
            let message = "the thread ends, and reads no more";
            Err(Failure::new(Code::PluvioNoResources, message))
        })
    })
}

impl MappedTable {
    /// The version of an object whose value `into` holds then.
    fn read(&self, key: &[u8], into: &mut Vec<u8>) -> Result<u64, Failure> {
        let found = match self {
            Self::Named(table) => table.version_into(key, into)?,
            Self::Numbered(reader, table) => read_of_server(reader, *table, key, into)?,
        };
        let version = found.ok_or(Failure::silent(Code::PluvioNotFound))?;
        Ok(version.0)
    }
}

fn read_of_server(
    reader: &Reader,
    table: TableId,
    key: &[u8],
    into: &mut Vec<u8>,
) -> Result<Option<pluvio_store::Version>, Failure> {
    let mut answer = reader.read(table, key, into);
    if matches!(answer, Answer::Ask(Why::OldMap | Why::NotFresh)) {
        reader.refresh()?;
        answer = reader.read(table, key, into);
    }
    match answer {
        Answer::Found(version) => Ok(Some(version)),
        Answer::Absent => Ok(None),
        Answer::Ask(why) => {
            let message = format!("memory does not tell it: {}", why.name());
            Err(Failure::new(Code::PluvioAsk, message))
        }
    }
}
