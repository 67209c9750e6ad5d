//! Walking a table.

use crate::arguments::{Bytes, Place};
use crate::code::{Code, Failure, border};
use crate::handles::{Handles, value};
use crate::open::{TABLES, TableHandle, Use};
use pluvio_store::Iter;
use std::sync::{Mutex, PoisonError};

/// An iterator over a table. A value of 0 is none.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct IterHandle {
    /// Of no meaning to others.
    pub id: u64,
}

struct Walk {
    iter: Iter,
    /// What C looks at.
    current: (Vec<u8>, Vec<u8>),
    _in_use: Use,
}

static WALKS: Handles<Mutex<Walk>> = Handles::new("iterator");

/// Opens an iterator over all objects of a table, in no useful order. An object that is there all
/// the time comes exactly once; one that is changed meanwhile may or may not come.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pluvio_iter_open(table: TableHandle, iter: *mut IterHandle) -> Code {
    border(|| {
        // SAFETY: by the contract of the header.
        let place = unsafe { Place::new("iter", iter) }?;
        place.write(IterHandle { id: 0 });
        let found = TABLES.find(table.id)?;
        let table = value(&found);
        let walk = Walk {
            _in_use: table.begin_use()?,
            iter: table.table.iter(),
            current: Default::default(),
        };
        let id = WALKS.give(Mutex::new(walk))?;
        place.write(IterHandle { id });
        Ok(())
    })
}

/// Gives the next object, or PLUVIO_END. Both are valid until the next call with this iterator,
/// which one thread uses at a time.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pluvio_iter_next(
    iter: IterHandle,
    key: *mut Bytes,
    value_place: *mut Bytes,
) -> Code {
    border(|| {
        // SAFETY: by the contract of the header.
        let places = unsafe { (Place::new("key", key)?, Place::new("value", value_place)?) };
        let found = WALKS.find(iter.id)?;
        let mut walk = value(&found).lock().unwrap_or_else(PoisonError::into_inner);
        walk.current = walk.iter.next().ok_or(Failure::silent(Code::PluvioEnd))?;
        let shown = |bytes: &[u8]| Bytes {
            data: bytes.as_ptr(),
            size: bytes.len(),
        };
        places.0.write(shown(&walk.current.0));
        places.1.write(shown(&walk.current.1));
        Ok(())
    })
}

/// Closes an iterator.
#[unsafe(no_mangle)]
pub extern "C" fn pluvio_iter_close(iter: IterHandle) -> Code {
    border(|| {
        drop(WALKS.take(iter.id)?);
        Ok(())
    })
}
