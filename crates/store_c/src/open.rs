//! Stores: opening, closing, their tables, their numbers.

use crate::arguments::{Place, shown, text};
use crate::code::{Code, Failure, border};
use crate::handles::{Handles, value};
use core::ffi::c_char;
use core::sync::atomic::{AtomicU64, Ordering};
use pluvio_kept::KeptStore;
use pluvio_store::{Experiments, HugePages, KeyHashing, Size, Store, Table, UpdatePolicy};
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

/// A store. A value of 0 is none.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct StoreHandle {
    /// Of no meaning to others.
    pub id: u64,
}

/// As many cleaner threads as a store has by default.
pub const PLUVIO_CLEANERS_USUAL: u16 = 65535;

/// A table of a store. A value of 0 is none.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct TableHandle {
    /// Of no meaning to others.
    pub id: u64,
}

/// Options of a store: begin with `pluvio_options_init`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// The size of this structure.
    pub size: usize,
    /// Bytes of log memory. Default 256 MiB.
    pub memory: u64,
    /// Bytes of a segment; 0, the default: a 256th of the memory, within 2.5 to 8 MiB.
    pub segment: u64,
    /// The folder that keeps the store; null, the default: none, and nothing outlives the store.
    pub folder: *const c_char,
    /// Bytes of the longest key. Default 64 KiB, and no more.
    pub key_max: u32,
    /// Bytes of the longest value; 0, the default: as long as is possible, about 1 MiB.
    pub value_max: u32,
    /// Most live objects, in percent of the memory. Default 90.
    pub live_percent_max: u32,
    /// Places where threads append side by side; 0, the default: one for each processor.
    pub heads: u16,
    /// Threads that clean. Default: PLUVIO_CLEANERS_USUAL, which is 1, or one for each memory node
    /// where the memory is large enough. With 0 call `pluvio_store_clean`.
    pub cleaner_threads: u16,
    /// Not 0: a value that fits overwrites the old one. Not with a folder, no deadlines.
    pub in_place: u8,
    /// Not 0: strangers choose the keys.
    pub keyed_hashing: u8,
    /// 0: no huge pages. 1, the default: if possible. 2: required.
    pub huge_pages: u8,
    /// Not 0: fetch all memory at once.
    pub populate: u8,
}

/// Numbers of a store, as of one moment each.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct Stats {
    /// Objects in all tables.
    pub objects: u64,
    /// Objects dropped since the start because their deadlines were past.
    pub expired: u64,
    /// Bytes of keys and values.
    pub object_bytes: u64,
    /// Bytes that live objects take in the log.
    pub live_bytes: u64,
    /// Most that they may take.
    pub live_bytes_max: u64,
    /// Bytes of log memory in use, live or dead.
    pub log_bytes: u64,
    /// Bytes of all indexes.
    pub index_bytes: u64,
    /// Memory that was touched and not given back.
    pub resident_bytes: u64,
    /// Log memory that is free.
    pub free_bytes: u64,
    /// Log memory.
    pub memory_bytes: u64,
    /// Bytes of the log in the folder; 0 without one.
    pub folder_bytes: u64,
    /// Views and iterators that are open.
    pub views: u64,
}

/// Set once the store is closed; the other bits count its views and iterators.
const CLOSED: u64 = 1 << 63;

/// A store, and what C has open of it.
pub(crate) struct Opened {
    kept: KeptStore,
    /// Counts views and iterators; see [`CLOSED`].
    uses: AtomicU64,
    tables: Mutex<Vec<u64>>,
}

/// A table, and its store.
pub(crate) struct OpenTable {
    pub(crate) table: Table,
    opened: Arc<Opened>,
}

/// A view or an iterator is open (CABI-3).
pub(crate) struct Use(Arc<Opened>);

impl OpenTable {
    /// Counts a view or an iterator as open.
    pub(crate) fn begin_use(&self) -> Result<Use, Failure> {
        // AcqRel: with that of `close`, one of the two sees the other.
        let before = self.opened.uses.fetch_add(1, Ordering::AcqRel);
        let this = Use(Arc::clone(&self.opened));
        if before & CLOSED != 0 {
            return Err(Failure::new(
                Code::PluvioBadHandle,
                "the store is being closed",
            ));
        }
        Ok(this)
    }
}

impl Drop for Use {
    fn drop(&mut self) {
        self.0.uses.fetch_sub(1, Ordering::AcqRel);
    }
}

static STORES: Handles<Arc<Opened>> = Handles::new("store");
pub(crate) static TABLES: Handles<OpenTable> = Handles::new("table");

/// Sets all options to their defaults.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pluvio_options_init(options: *mut Options) -> Code {
    border(|| {
        // SAFETY: by the contract of the header.
        let options = unsafe { Place::new("options", options) }?;
        options.write(Options {
            size: size_of::<Options>(),
            memory: 256 << 20,
            segment: 0,
            folder: core::ptr::null(),
            key_max: 64 << 10,
            value_max: 0,
            live_percent_max: 90,
            heads: 0,
            cleaner_threads: PLUVIO_CLEANERS_USUAL,
            in_place: 0,
            keyed_hashing: 0,
            huge_pages: 1,
            populate: 0,
        });
        Ok(())
    })
}

/// Opens a store. With a folder it reads what that keeps.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pluvio_store_open(
    options: *const Options,
    store: *mut StoreHandle,
) -> Code {
    border(|| {
        // SAFETY: by the contract of the header.
        let (options, store) = unsafe { (shown("options", options)?, Place::new("store", store)?) };
        store.write(StoreHandle { id: 0 });
        if options.size != size_of::<Options>() {
            let message = "options: of another version, or without pluvio_options_init";
            return Err(Failure::new(Code::PluvioBadArgument, message));
        }
        let folder = match options.folder.is_null() {
            true => None,
            // SAFETY: by the contract of the header.
            false => Some(Path::new(unsafe { text("folder", options.folder) }?)),
        };
        let kept = KeptStore::open(builder(options)?, folder)?;
        let opened = Arc::new(Opened {
            kept,
            uses: AtomicU64::new(0),
            tables: Mutex::default(),
        });
        let id = STORES.give(opened)?;
        store.write(StoreHandle { id });
        Ok(())
    })
}

fn builder(options: &Options) -> Result<pluvio_store::StoreBuilder, Failure> {
    let huge_pages = match options.huge_pages {
        0 => HugePages::No,
        1 => HugePages::IfPossible,
        2 => HugePages::Required,
        other => {
            let message = format!("option huge_pages: {other}; 0 to 2 are possible");
            return Err(Failure::new(Code::PluvioBadOption, message));
        }
    };
    let (update, value_max) = match options.in_place {
        0 => (UpdatePolicy::Append, 1 << 20),
        _ => (UpdatePolicy::InPlace, (1 << 20) - 12),
    };
    let value_max = match options.value_max {
        0 => value_max,
        some => some as usize,
    };
    let mut builder = Store::builder()
        .memory(Size(options.memory))
        .limits(options.key_max as usize, value_max)
        .live_percent_max(options.live_percent_max)
        .update(update)
        .hashing(match options.keyed_hashing {
            0 => KeyHashing::Fast,
            _ => KeyHashing::Keyed,
        })
        .huge_pages(huge_pages)
        .populate(options.populate != 0);
    if options.cleaner_threads != PLUVIO_CLEANERS_USUAL {
        builder = builder.cleaner_threads(options.cleaner_threads);
    }
    if options.heads > 0 {
        builder = builder.heads(options.heads);
    }
    if options.segment > 0 {
        builder = builder.experiments(Experiments {
            segment_size: Some(Size(options.segment)),
            ..Experiments::default()
        });
    }
    Ok(builder)
}

/// Closes a store and its tables. With a folder it waits until that has everything; if that fails
/// the store is closed all the same. PLUVIO_IN_USE, and nothing is done, while views or iterators
/// of it are open. Calls that other threads are in keep its memory until they return.
#[unsafe(no_mangle)]
pub extern "C" fn pluvio_store_close(store: StoreHandle) -> Code {
    border(|| {
        let opened = Arc::clone(value(&STORES.find(store.id)?));
        // AcqRel: see `begin_use`.
        let idle = opened
            .uses
            .compare_exchange(0, CLOSED, Ordering::AcqRel, Ordering::Acquire);
        if let Err(uses) = idle {
            let message = format!("{} views and iterators are open", uses & !CLOSED);
            return Err(Failure::new(Code::PluvioInUse, message));
        }
        drop(STORES.take(store.id)?);
        let tables =
            core::mem::take(&mut *opened.tables.lock().unwrap_or_else(PoisonError::into_inner));
        for table in tables {
            // It may be closed already.
            drop(TABLES.take(table));
        }
        Ok(opened.kept.store().sync()?)
    })
}

/// Waits until the folder has everything that was written before. Without one it does nothing.
#[unsafe(no_mangle)]
pub extern "C" fn pluvio_store_sync(store: StoreHandle) -> Code {
    border(|| Ok(value(&STORES.find(store.id)?).kept.store().sync()?))
}

/// Does a part of the cleaner's work. Call it once a second at least if there are no cleaner
/// threads.
#[unsafe(no_mangle)]
pub extern "C" fn pluvio_store_clean(store: StoreHandle) -> Code {
    border(|| {
        value(&STORES.find(store.id)?).kept.store().clean_step();
        Ok(())
    })
}

/// The numbers of a store.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pluvio_store_stats(store: StoreHandle, stats: *mut Stats) -> Code {
    border(|| {
        // SAFETY: by the contract of the header.
        let place = unsafe { Place::new("stats", stats) }?;
        let found = STORES.find(store.id)?;
        let opened = value(&found);
        let stats = opened.kept.store().stats();
        place.write(Stats {
            objects: stats.objects,
            expired: stats.expired,
            object_bytes: stats.object_bytes,
            live_bytes: stats.live_bytes,
            live_bytes_max: stats.live_bytes_max,
            log_bytes: stats.log_bytes,
            index_bytes: stats.index_bytes,
            resident_bytes: stats.resident_bytes,
            free_bytes: stats.free_bytes,
            memory_bytes: stats.memory_bytes,
            folder_bytes: stats.sink_bytes,
            views: opened.uses.load(Ordering::Acquire) & !CLOSED,
        });
        Ok(())
    })
}

/// Opens the table with this name (UTF-8). If it is missing and `create` is not 0, it is made.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pluvio_table_open(
    store: StoreHandle,
    name: *const c_char,
    create: i32,
    table: *mut TableHandle,
) -> Code {
    border(|| {
        // SAFETY: by the contract of the header.
        let (name, place) = unsafe { (text("name", name)?, Place::new("table", table)?) };
        place.write(TableHandle { id: 0 });
        let found = STORES.find(store.id)?;
        let opened = value(&found);
        let table = opened.kept.open_table(name, create != 0)?;
        let opened = Arc::clone(opened);
        let mut tables = opened.tables.lock().unwrap_or_else(PoisonError::into_inner);
        if opened.uses.load(Ordering::Acquire) & CLOSED != 0 {
            return Err(Failure::new(
                Code::PluvioBadHandle,
                "the store is being closed",
            ));
        }
        let id = TABLES.give(OpenTable {
            table,
            opened: Arc::clone(&opened),
        })?;
        tables.push(id);
        place.write(TableHandle { id });
        Ok(())
    })
}

/// Closes a handle of a table; the table and other handles of it stay.
#[unsafe(no_mangle)]
pub extern "C" fn pluvio_table_close(table: TableHandle) -> Code {
    border(|| {
        let taken = TABLES.take(table.id)?;
        let tables = &taken.value.opened.tables;
        let mut tables = tables.lock().unwrap_or_else(PoisonError::into_inner);
        tables.retain(|id| *id != table.id);
        Ok(())
    })
}

/// Drops the table with this name and all it holds. PLUVIO_NO_TABLE when there is none.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pluvio_table_drop(store: StoreHandle, name: *const c_char) -> Code {
    border(|| {
        // SAFETY: by the contract of the header.
        let name = unsafe { text("name", name) }?;
        if value(&STORES.find(store.id)?).kept.drop_table(name)? {
            return Ok(());
        }
        let message = format!("there is no table {name:?}");
        Err(Failure::new(Code::PluvioNoTable, message))
    })
}

/// Number of objects of a table; while others write, some number it had.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pluvio_table_size(table: TableHandle, size: *mut u64) -> Code {
    border(|| {
        // SAFETY: by the contract of the header.
        let size = unsafe { Place::new("size", size) }?;
        size.write(value(&TABLES.find(table.id)?).table.len());
        Ok(())
    })
}
