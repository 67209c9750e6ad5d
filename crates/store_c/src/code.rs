//! Codes of errors, and the message of a thread's last failure; the border that no panic crosses
//! (CABI-2).

use core::cell::{Cell, RefCell};
use core::ffi::c_char;
use pluvio_kept::KeptError;
use pluvio_store::{BuildError, IncrementError, SinkError, StoreError};
use std::borrow::Cow;
use std::ffi::CString;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// What came of a call. After any but PLUVIO_OK, PLUVIO_NOT_FOUND and PLUVIO_END, `pluvio_message`
/// says more.
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[allow(clippy::enum_variant_names)] // C has one space of names
pub enum Code {
    /// It was done.
    PluvioOk = 0,
    /// There is no object with this key. No error.
    PluvioNotFound = 1,
    /// The iterator has given all objects. No error.
    PluvioEnd = 2,
    /// The condition does not hold; the version of the object was given, 0 where there is none.
    PluvioCondition = 3,
    /// The buffer is too small; the size of the value was given, and nothing was copied.
    PluvioBufferTooSmall = 4,
    /// Memory is full. Retry after `pluvio_retry_after_us`, or delete something.
    PluvioFull = 5,
    /// A pointer is null or not aligned, or a combination of arguments has no meaning.
    PluvioBadArgument = 6,
    /// The handle is of another kind, was never given, or is closed.
    PluvioBadHandle = 7,
    /// A key, value, name or batch is longer than is possible.
    PluvioTooLong = 8,
    /// An option is outside of its range.
    PluvioBadOption = 9,
    /// There is no table with this name, or it was dropped.
    PluvioNoTable = 10,
    /// The store overwrites values in place, and keeps no deadlines.
    PluvioNoDeadlines = 11,
    /// The value is no whole number of 64 bits.
    PluvioNotANumber = 12,
    /// The sum is outside of 64 bits.
    PluvioOverflow = 13,
    /// The system refuses memory or a thread, or there are too many handles.
    PluvioNoResources = 14,
    /// A file cannot be read or written. A retry may help.
    PluvioFile = 15,
    /// The folder is open already, or views or iterators of the store are open.
    PluvioInUse = 16,
    /// What the folder keeps is damaged.
    PluvioDamaged = 17,
    /// The library has an error. The store may be unusable; other stores are not touched.
    PluvioPanic = 18,
    /// Mapped memory does not tell it: the owner is to be asked.
    PluvioAsk = 19,
    /// The owner of mapped memory is gone, or lets this process not read. A retry may help.
    PluvioGone = 20,
}

/// Why a call failed.
#[derive(Debug)]
pub(crate) struct Failure {
    pub(crate) code: Code,
    message: Cow<'static, str>,
    retry_after_us: u64,
}

impl Failure {
    pub(crate) fn new(code: Code, message: impl Into<Cow<'static, str>>) -> Self {
        Self {
            code,
            message: message.into(),
            retry_after_us: 0,
        }
    }

    /// What is no error and needs no message.
    pub(crate) const fn silent(code: Code) -> Self {
        Self {
            code,
            message: Cow::Borrowed(""),
            retry_after_us: 0,
        }
    }
}

impl From<StoreError> for Failure {
    fn from(why: StoreError) -> Self {
        let code = match &why {
            StoreError::Full { retry_after } => {
                let us = u64::try_from(retry_after.as_micros()).unwrap_or(u64::MAX);
                return Self {
                    retry_after_us: us.max(1),
                    ..Self::new(Code::PluvioFull, why.to_string())
                };
            }
            StoreError::TableDropped(_)
            | StoreError::UnknownTable(_)
            | StoreError::TableExists(_) => Code::PluvioNoTable,
            StoreError::NoTable(_) => Code::PluvioNoResources,
            StoreError::KeyTooLong(..) | StoreError::ValueTooLong(..) => Code::PluvioTooLong,
            StoreError::NoDeadlines => Code::PluvioNoDeadlines,
            StoreError::Condition { .. } => Code::PluvioCondition,
        };
        Self::new(code, why.to_string())
    }
}

impl From<IncrementError> for Failure {
    fn from(why: IncrementError) -> Self {
        match why {
            IncrementError::Store(why) => why.into(),
            IncrementError::NotANumber => Self::new(Code::PluvioNotANumber, why.to_string()),
            IncrementError::Overflow { .. } => Self::new(Code::PluvioOverflow, why.to_string()),
        }
    }
}

impl From<BuildError> for Failure {
    fn from(why: BuildError) -> Self {
        let code = match &why {
            BuildError::MemoryTooSmall { .. }
            | BuildError::TooManyHeads { .. }
            | BuildError::OutOfRange { .. } => Code::PluvioBadOption,
            BuildError::Unreservable(_)
            | BuildError::NoHugePages(_)
            | BuildError::Topology(_)
            | BuildError::CleanerThread(_)
            | BuildError::SinkThread(_) => Code::PluvioNoResources,
        };
        Self::new(code, why.to_string())
    }
}

impl From<SinkError> for Failure {
    fn from(why: SinkError) -> Self {
        Self::new(Code::PluvioFile, why.to_string())
    }
}

impl From<KeptError> for Failure {
    fn from(why: KeptError) -> Self {
        let code = match why {
            KeptError::Build(why) => return why.into(),
            KeptError::Store(why) => return why.into(),
            KeptError::Sink(_) | KeptError::File { .. } => Code::PluvioFile,
            KeptError::InUse(_) => Code::PluvioInUse,
            KeptError::Damaged { .. } => Code::PluvioDamaged,
            KeptError::NameTooLong(_) => Code::PluvioTooLong,
        };
        Self::new(code, why.to_string())
    }
}

thread_local! {
    static MESSAGE: RefCell<CString> = RefCell::default();
    static RETRY_AFTER_US: Cell<u64> = const { Cell::new(0) };
}

/// Keeps the message for its thread; a thread that ends has none any more.
fn remember(failure: Failure) -> Code {
    let bytes: Vec<u8> = failure.message.bytes().filter(|byte| *byte != 0).collect();
    let message = CString::new(bytes).unwrap_or_default();
    let _ending = MESSAGE.try_with(|last| last.replace(message));
    let _ending = RETRY_AFTER_US.try_with(|last| last.set(failure.retry_after_us));
    failure.code
}

/// Does the work of an exported function (CABI-2).
pub(crate) fn border(work: impl FnOnce() -> Result<(), Failure>) -> Code {
    // After a panic only the store's own state matters, and that has its own rules (EMBED-3).
    match catch_unwind(AssertUnwindSafe(work)) {
        Ok(Ok(())) => Code::PluvioOk,
        Ok(Err(failure)) => match failure.code {
            Code::PluvioNotFound | Code::PluvioEnd => failure.code,
            _ => remember(failure),
        },
        Err(panic) => {
            let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
            let text = text.or_else(|| panic.downcast_ref::<String>().cloned());
            // The thrown value may panic when it is dropped.
            core::mem::forget(panic);
            let text = text.unwrap_or_else(|| "a panic without a text".into());
            remember(Failure::new(Code::PluvioPanic, text))
        }
    }
}

/// Says why the last call of this thread that failed did so. Valid until the next one that fails;
/// never null.
#[unsafe(no_mangle)]
pub extern "C" fn pluvio_message() -> *const c_char {
    MESSAGE
        .try_with(|last| last.borrow().as_ptr())
        .unwrap_or(c"".as_ptr())
}

/// When to retry after the last PLUVIO_FULL of this thread, in microseconds.
#[unsafe(no_mangle)]
pub extern "C" fn pluvio_retry_after_us() -> u64 {
    RETRY_AFTER_US.try_with(Cell::get).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message() -> String {
        MESSAGE.with(|last| last.borrow().to_str().unwrap_or_default().to_owned())
    }

    // shows: CABI-2
    #[test]
    fn a_panic_is_a_code_with_its_text_and_other_threads_have_messages_of_their_own() {
        assert_eq!(border(|| panic!("half {}", "way")), Code::PluvioPanic);
        assert_eq!(message(), "half way");
        std::thread::scope(|scope| {
            scope.spawn(|| assert_eq!(message(), ""));
        });
        assert_eq!(border(|| Ok(())), Code::PluvioOk);
        assert_eq!(
            border(|| Err(Failure::silent(Code::PluvioNotFound))),
            Code::PluvioNotFound
        );
        assert_eq!(message(), "half way", "that is no failure");
        let full = StoreError::Full {
            retry_after: core::time::Duration::from_millis(2),
        };
        assert_eq!(border(|| Err(full.into())), Code::PluvioFull);
        assert_eq!(pluvio_retry_after_us(), 2000);
        assert!(message().starts_with("memory is full"));
        assert_eq!(
            border(|| Err(Failure::new(Code::PluvioFile, "a\0b"))),
            Code::PluvioFile
        );
        assert_eq!(message(), "ab");
    }
}
