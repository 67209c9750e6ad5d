//! Several objects in one call.

use crate::arguments::{Bytes, Pair, Wanted, items};
use crate::code::{Code, Failure, border};
use crate::data::{key_of, value_of};
use crate::handles::value;
use crate::open::{TABLES, TableHandle};
use core::ffi::c_void;

/// Most items of one batch: they are looked at before the first is done.
pub const PLUVIO_BATCH_MAX: usize = 65536;

/// Is shown the value of the key at place `at`; `value` is null when there is no object. The value
/// is valid during the call, and the function must return. It may call the library.
pub type Visit =
    Option<unsafe extern "C" fn(context: *mut c_void, at: usize, value: *const u8, size: usize)>;

/// Shows `visit` the value of each of `count` keys, in their order. Faster than one by one: waits
/// for memory overlap.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pluvio_get_batch(
    table: TableHandle,
    keys: *const Bytes,
    count: usize,
    visit: Visit,
    context: *mut c_void,
) -> Code {
    border(|| {
        let visit = visit.ok_or_else(|| Failure::new(Code::PluvioBadArgument, "visit is null"))?;
        // SAFETY: by the contract of the header.
        let keys: Vec<&[u8]> = unsafe {
            let keys = items("keys", keys, count, PLUVIO_BATCH_MAX)?.iter();
            keys.map(|key| key_of(key.data, key.size))
                .collect::<Result<_, _>>()?
        };
        let found = TABLES.find(table.id)?;
        value(&found).table.get_batch(&keys, |at, bytes| {
            let (data, size) = match bytes {
                Some(bytes) => (bytes.as_ptr(), bytes.len()),
                None => (core::ptr::null(), 0),
            };
            // SAFETY: by the contract of the header it is a function of this type, which returns.
            unsafe { visit(context, at, data, size) };
        });
        Ok(())
    })
}

/// Stores `count` pairs in their order, up to the first error. `stored`, where it is not null, gets
/// how many were stored; they stay.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pluvio_put_batch(
    table: TableHandle,
    pairs: *const Pair,
    count: usize,
    stored: *mut usize,
) -> Code {
    border(|| {
        // SAFETY: by the contract of the header.
        let (stored, pairs) = unsafe {
            let stored = Wanted::new("stored", stored)?;
            stored.write(0);
            let pairs = items("pairs", pairs, count, PLUVIO_BATCH_MAX)?.iter();
            let pairs: Vec<(&[u8], &[u8])> = pairs
                .map(|Pair { key, value }| {
                    Ok((
                        key_of(key.data, key.size)?,
                        value_of(value.data, value.size)?,
                    ))
                })
                .collect::<Result<_, Failure>>()?;
            (stored, pairs)
        };
        let found = TABLES.find(table.id)?;
        match value(&found).table.put_batch(&pairs) {
            Ok(()) => {
                stored.write(pairs.len());
                Ok(())
            }
            Err((before, why)) => {
                stored.write(before);
                Err(why.into())
            }
        }
    })
}
