//! Reads and writes of single objects.

use crate::arguments::{Place, Wanted, items, shown};
use crate::code::{Code, Failure, border};
use crate::handles::{Handles, value};
use crate::open::{TABLES, TableHandle, Use};
use pluvio_store::{
    Deadline, Lifetime, PutOptions, RejectRules, StoreError, TouchIf, Version, View,
};
use pluvio_units::{KEY_MAX, VALUE_MAX};

/// The object must not exist.
pub const PLUVIO_IF_ABSENT: u32 = 1;
/// The object must exist.
pub const PLUVIO_IF_PRESENT: u32 = 2;
/// The object must have the version that the conditions name; 0: must not exist.
pub const PLUVIO_IF_VERSION: u32 = 4;

/// Under which conditions an object is changed, and how long it lives. All zero: no condition, for
/// ever.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct Conditions {
    /// One of PLUVIO_IF_ABSENT, PLUVIO_IF_PRESENT, PLUVIO_IF_VERSION, or 0.
    pub when: u32,
    /// For PLUVIO_IF_VERSION.
    pub version: u64,
    /// Milliseconds that the object lives; 0: for ever, or until `deadline_ms`.
    pub ttl_ms: u64,
    /// Milliseconds since 1970 of its end; 0: none. Not together with `ttl_ms`.
    pub deadline_ms: u64,
}

/// A value where it lies in the store.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct ViewHandle {
    /// The value. Never null; of no meaning when `size` is 0.
    pub data: *const u8,
    /// Its size in bytes.
    pub size: usize,
    /// The version of the object.
    pub version: u64,
    /// Of no meaning to others.
    pub id: u64,
}

static VIEWS: Handles<(View, Use)> = Handles::new("view");

pub(crate) unsafe fn key_of<'a>(key: *const u8, size: usize) -> Result<&'a [u8], Failure> {
    // SAFETY: by the contract of the header.
    unsafe { items("key", key, size, KEY_MAX) }
}

pub(crate) unsafe fn value_of<'a>(value: *const u8, size: usize) -> Result<&'a [u8], Failure> {
    // SAFETY: by the contract of the header.
    unsafe { items("value", value, size, VALUE_MAX) }
}

/// The conditions of the caller; null: none.
unsafe fn options_of(conditions: *const Conditions) -> Result<PutOptions, Failure> {
    if conditions.is_null() {
        return Ok(PutOptions::default());
    }
    // SAFETY: by the contract of the header.
    let conditions = unsafe { shown("conditions", conditions) }?;
    let rules = match conditions.when {
        0 => RejectRules::NONE,
        PLUVIO_IF_ABSENT => RejectRules::EXISTS,
        PLUVIO_IF_PRESENT => RejectRules::ABSENT,
        PLUVIO_IF_VERSION => RejectRules::unless_version(Version(conditions.version)),
        other => {
            let message = format!("conditions: `when` is {other}; 0, 1, 2 and 4 are possible");
            return Err(Failure::new(Code::PluvioBadArgument, message));
        }
    };
    let lifetime = lifetime_of(conditions.ttl_ms, conditions.deadline_ms)?;
    Ok(PutOptions { rules, lifetime })
}

fn lifetime_of(ttl_ms: u64, deadline_ms: u64) -> Result<Lifetime, Failure> {
    match (ttl_ms, deadline_ms) {
        (0, 0) => Ok(Lifetime::Endless),
        (ttl_ms, 0) => Ok(Lifetime::For(ttl_ms)),
        (0, deadline_ms) => match Deadline::new(deadline_ms) {
            Some(deadline) => Ok(Lifetime::Until(deadline)),
            None => Err(Failure::new(
                Code::PluvioBadArgument,
                "the deadline is too far away",
            )),
        },
        _ => {
            let message = "ttl_ms and deadline_ms are not possible together";
            Err(Failure::new(Code::PluvioBadArgument, message))
        }
    }
}

/// The version that a condition found goes to its place.
fn with_found_version(why: StoreError, version: &Wanted<u64>) -> Failure {
    if let StoreError::Condition { found } = &why {
        version.write(found.map_or(0, |found| found.0));
    }
    why.into()
}

/// Copies a value into the caller's buffer, and tells its size.
///
/// # Safety
/// The buffer may be written as far as its capacity goes, and overlaps no value.
pub(crate) unsafe fn copy_out(
    bytes: &[u8],
    (buffer, capacity): (*mut u8, usize),
    size: &Wanted<usize>,
) -> Result<(), Failure> {
    size.write(bytes.len());
    if bytes.len() > capacity {
        let message = "the buffer is too small";
        return Err(Failure::new(Code::PluvioBufferTooSmall, message));
    }
    if !bytes.is_empty() {
        // SAFETY: the capacity is at least this by the check, so the buffer is not null. It is the
        // caller's, so nothing overlaps.
        unsafe { core::ptr::copy_nonoverlapping(bytes.as_ptr(), buffer, bytes.len()) };
    }
    Ok(())
}

/// Copies a value into `buffer`, which has room for `capacity` bytes. `size`, where it is not null,
/// gets the size of the value, also with PLUVIO_BUFFER_TOO_SMALL; `version` the version.
/// PLUVIO_NOT_FOUND: there is no object.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pluvio_get(
    table: TableHandle,
    key: *const u8,
    key_size: usize,
    buffer: *mut u8,
    capacity: usize,
    size: *mut usize,
    version: *mut u64,
) -> Code {
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
        let found = TABLES.find(table.id)?;
        let copied = value(&found).table.get_with(key, |of, bytes| {
            version.write(of.0);
            // SAFETY: the buffer has room for `capacity` bytes by the contract of the header. It is
            // the caller's, so it does not overlap the store's memory.
            unsafe { copy_out(bytes, (buffer, capacity), &size) }
        });
        copied.unwrap_or(Err(Failure::silent(Code::PluvioNotFound)))
    })
}

/// Shows a value where it lies, until `pluvio_view_release`; any thread may release it. The store
/// gives no memory back while a view of it is open: hold it briefly. For values of some KiB and
/// more; `pluvio_get` is faster for small ones. PLUVIO_NOT_FOUND: there is no object.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pluvio_view_get(
    table: TableHandle,
    key: *const u8,
    key_size: usize,
    view: *mut ViewHandle,
) -> Code {
    border(|| {
        // SAFETY: by the contract of the header.
        let (key, place) = unsafe { (key_of(key, key_size)?, Place::new("view", view)?) };
        let nothing = ViewHandle {
            data: core::ptr::NonNull::dangling().as_ptr(),
            size: 0,
            version: 0,
            id: 0,
        };
        place.write(nothing);
        let found = TABLES.find(table.id)?;
        let table = value(&found);
        let in_use = table.begin_use()?;
        let view = table.table.view(key);
        let view = view.ok_or(Failure::silent(Code::PluvioNotFound))?;
        // The same at each call, until the view is dropped (EMBED-6).
        let (data, size) = view.with(|bytes| (bytes.as_ptr(), bytes.len()));
        let version = view.version().0;
        let id = VIEWS.give((view, in_use))?;
        place.write(ViewHandle {
            data,
            size,
            version,
            id,
        });
        Ok(())
    })
}

/// Ends a view, and sets it to nothing. PLUVIO_BAD_HANDLE if it was ended before.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pluvio_view_release(view: *mut ViewHandle) -> Code {
    border(|| {
        // SAFETY: by the contract of the header: the view was written by `pluvio_view_get`.
        let (id, place) = unsafe { (shown("view", view)?.id, Place::new("view", view)?) };
        drop(VIEWS.take(id)?);
        place.write(ViewHandle {
            data: core::ptr::NonNull::dangling().as_ptr(),
            size: 0,
            version: 0,
            id: 0,
        });
        Ok(())
    })
}

/// Stores a value. `conditions` may be null. `version`, where it is not null, gets the version of
/// the new object; with PLUVIO_CONDITION that of the object that is there, or 0.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pluvio_put(
    table: TableHandle,
    key: *const u8,
    key_size: usize,
    value_data: *const u8,
    value_size: usize,
    conditions: *const Conditions,
    version: *mut u64,
) -> Code {
    border(|| {
        // SAFETY: by the contract of the header.
        let (key, bytes, version) = unsafe {
            let version = Wanted::new("version", version)?;
            (
                key_of(key, key_size)?,
                value_of(value_data, value_size)?,
                version,
            )
        };
        let found = TABLES.find(table.id)?;
        let table = &value(&found).table;
        let stored = match conditions.is_null() {
            true => table.put(key, bytes),
            // SAFETY: by the contract of the header.
            false => table.put_with(key, bytes, unsafe { options_of(conditions) }?),
        };
        version.write(stored.map_err(|why| with_found_version(why, &version))?.0);
        Ok(())
    })
}

/// Removes an object; PLUVIO_NOT_FOUND when there is none. Of `conditions`, which may be null, only
/// `when` and `version` count. `version`, where it is not null, gets with PLUVIO_CONDITION the
/// version of the object that is there, or 0.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pluvio_delete(
    table: TableHandle,
    key: *const u8,
    key_size: usize,
    conditions: *const Conditions,
    version: *mut u64,
) -> Code {
    border(|| {
        // SAFETY: by the contract of the header.
        let (key, options, version) = unsafe {
            let version = Wanted::new("version", version)?;
            (key_of(key, key_size)?, options_of(conditions)?, version)
        };
        let found = TABLES.find(table.id)?;
        let table = &value(&found).table;
        let deleted = match conditions.is_null() {
            true => table.delete(key),
            false => table.delete_if(key, options.rules),
        };
        match deleted.map_err(|why| with_found_version(why, &version))? {
            true => Ok(()),
            false => Err(Failure::silent(Code::PluvioNotFound)),
        }
    })
}

/// Adds to a number, which is stored as decimal text; an object that is not there counts as 0.
/// `sum`, where it is not null, gets the sum.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pluvio_increment(
    table: TableHandle,
    key: *const u8,
    key_size: usize,
    by: i64,
    sum: *mut i64,
) -> Code {
    border(|| {
        // SAFETY: by the contract of the header.
        let (key, sum) = unsafe { (key_of(key, key_size)?, Wanted::new("sum", sum)?) };
        let found = TABLES.find(table.id)?;
        sum.write(value(&found).table.increment(key, by)?);
        Ok(())
    })
}

/// Gives an object another lifetime, for ever when both are 0. PLUVIO_NOT_FOUND: there is no
/// object.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pluvio_touch(
    table: TableHandle,
    key: *const u8,
    key_size: usize,
    ttl_ms: u64,
    deadline_ms: u64,
) -> Code {
    border(|| {
        // SAFETY: by the contract of the header.
        let key = unsafe { key_of(key, key_size) }?;
        let lifetime = lifetime_of(ttl_ms, deadline_ms)?;
        let found = TABLES.find(table.id)?;
        match value(&found).table.touch(key, lifetime, TouchIf::Always)? {
            true => Ok(()),
            false => Err(Failure::silent(Code::PluvioNotFound)),
        }
    })
}

/// The deadline of an object, in milliseconds since 1970; 0 when it lives for ever.
/// PLUVIO_NOT_FOUND: there is no object.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pluvio_deadline(
    table: TableHandle,
    key: *const u8,
    key_size: usize,
    deadline_ms: *mut u64,
) -> Code {
    border(|| {
        // SAFETY: by the contract of the header.
        let (key, place) = unsafe {
            (
                key_of(key, key_size)?,
                Place::new("deadline_ms", deadline_ms)?,
            )
        };
        let found = TABLES.find(table.id)?;
        let deadline = value(&found).table.deadline(key);
        let deadline = deadline.ok_or(Failure::silent(Code::PluvioNotFound))?;
        place.write(deadline.map_or(0, |deadline| deadline.ms()));
        Ok(())
    })
}
