//! What C hands over: pointers, lengths, places for results.
//!
//! The head of the header is the contract: a pointer that is not null is valid for its length, and
//! a place for a result may be written. Every `SAFETY` comment of this crate rests on it.

use crate::code::{Code, Failure};
use core::ffi::{CStr, c_char};

/// Bytes of the caller.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Bytes {
    /// Where they begin. May be null if there are none.
    pub data: *const u8,
    /// How many.
    pub size: usize,
}

/// A key and a value of the caller.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Pair {
    /// The key.
    pub key: Bytes,
    /// The value.
    pub value: Bytes,
}

/// The items of the caller, at most `most`.
///
/// # Safety
/// A pointer that is not null is valid for `len` items as long as the result is used.
pub(crate) unsafe fn items<'a, T>(
    what: &'static str,
    data: *const T,
    len: usize,
    most: usize,
) -> Result<&'a [T], Failure> {
    if len > most {
        let message = format!("{len} is over the {most} that is possible: {what}");
        return Err(Failure::new(Code::PluvioTooLong, message));
    }
    if len == 0 {
        return Ok(&[]);
    }
    check(what, data)?;
    // SAFETY: valid by contract, not null, aligned; the length is below isize::MAX, because `most`
    // is.
    Ok(unsafe { core::slice::from_raw_parts(data, len) })
}

/// A text of the caller.
///
/// # Safety
/// A pointer that is not null is valid up to a zero byte as long as the result is used.
pub(crate) unsafe fn text<'a>(what: &'static str, text: *const c_char) -> Result<&'a str, Failure> {
    check(what, text)?;
    // SAFETY: valid by contract, and not null.
    let text = unsafe { CStr::from_ptr(text) };
    text.to_str()
        .map_err(|_| Failure::new(Code::PluvioBadArgument, format!("{what} is no UTF-8")))
}

/// A structure of the caller.
///
/// # Safety
/// A pointer that is not null is valid as long as the result is used.
pub(crate) unsafe fn shown<'a, T>(what: &'static str, at: *const T) -> Result<&'a T, Failure> {
    check(what, at)?;
    // SAFETY: valid by contract, not null, aligned.
    Ok(unsafe { &*at })
}

/// A place for a result that has to be there.
pub(crate) struct Place<T>(*mut T);

impl<T> Place<T> {
    /// # Safety
    /// A pointer that is not null may be written as long as this lives.
    pub(crate) unsafe fn new(what: &'static str, at: *mut T) -> Result<Self, Failure> {
        check(what, at)?;
        Ok(Self(at))
    }

    pub(crate) fn write(&self, value: T) {
        // SAFETY: may be written by the contract of `new`, not null, aligned.
        unsafe { self.0.write(value) }
    }
}

/// A place for a result; null if it is not wanted.
pub(crate) struct Wanted<T>(Option<Place<T>>);

impl<T> Wanted<T> {
    /// # Safety
    /// As of [`Place::new`].
    pub(crate) unsafe fn new(what: &'static str, at: *mut T) -> Result<Self, Failure> {
        if at.is_null() {
            return Ok(Self(None));
        }
        // SAFETY: the contract is the same.
        Ok(Self(Some(unsafe { Place::new(what, at) }?)))
    }

    pub(crate) fn write(&self, value: T) {
        if let Some(place) = &self.0 {
            place.write(value);
        }
    }
}

fn check<T>(what: &'static str, at: *const T) -> Result<(), Failure> {
    let wrong = if at.is_null() {
        "null"
    } else if !at.is_aligned() {
        "not aligned"
    } else {
        return Ok(());
    };
    Err(Failure::new(
        Code::PluvioBadArgument,
        format!("{what} is {wrong}"),
    ))
}
