//! Exceptions.

use pluvio_kept::KeptError;
use pluvio_store::{IncrementError, SinkError, StoreError};
use pyo3::create_exception;
use pyo3::exceptions::PyException;
use pyo3::prelude::*;

create_exception!(pluvio_store, Error, PyException, "What the store refuses.");
create_exception!(
    pluvio_store,
    FullError,
    Error,
    "Memory is full; see `retry_after`."
);
create_exception!(
    pluvio_store,
    ConditionError,
    Error,
    "It does not hold; see `found`."
);
create_exception!(pluvio_store, TableError, Error, "There is no such table.");
create_exception!(
    pluvio_store,
    LimitError,
    Error,
    "A key, value or option is out of range."
);
create_exception!(
    pluvio_store,
    NumberError,
    Error,
    "No number, or a sum over 64 bits."
);
create_exception!(
    pluvio_store,
    FolderError,
    Error,
    "The folder fails, or is in use."
);
create_exception!(pluvio_store, ClosedError, Error, "The store is closed.");

pub(crate) fn add(module: &Bound<'_, PyModule>) -> PyResult<()> {
    let py = module.py();
    module.add("Error", py.get_type::<Error>())?;
    module.add("FullError", py.get_type::<FullError>())?;
    module.add("ConditionError", py.get_type::<ConditionError>())?;
    module.add("TableError", py.get_type::<TableError>())?;
    module.add("LimitError", py.get_type::<LimitError>())?;
    module.add("NumberError", py.get_type::<NumberError>())?;
    module.add("FolderError", py.get_type::<FolderError>())?;
    module.add("ClosedError", py.get_type::<ClosedError>())
}

pub(crate) fn of_store(py: Python<'_>, why: &StoreError) -> PyErr {
    let text = why.to_string();
    match why {
        StoreError::Full { retry_after } => {
            let error = FullError::new_err(text);
            with(py, error, "retry_after", retry_after.as_secs_f64())
        }
        StoreError::Condition { found } => {
            let error = ConditionError::new_err(text);
            with(py, error, "found", found.map(|version| version.0))
        }
        StoreError::TableDropped(_) | StoreError::TableExists(_) | StoreError::UnknownTable(_) => {
            TableError::new_err(text)
        }
        StoreError::KeyTooLong(..) | StoreError::ValueTooLong(..) => LimitError::new_err(text),
        StoreError::NoTable(_) | StoreError::NoDeadlines => Error::new_err(text),
    }
}

/// An exception with an attribute.
fn with<'py>(py: Python<'py>, error: PyErr, name: &str, value: impl IntoPyObject<'py>) -> PyErr {
    match error.value(py).setattr(name, value) {
        Ok(()) => error,
        Err(other) => other,
    }
}

pub(crate) fn of_increment(py: Python<'_>, why: &IncrementError) -> PyErr {
    match why {
        IncrementError::Store(why) => of_store(py, why),
        IncrementError::NotANumber | IncrementError::Overflow { .. } => {
            NumberError::new_err(why.to_string())
        }
    }
}

pub(crate) fn of_sink(why: &SinkError) -> PyErr {
    FolderError::new_err(why.to_string())
}

pub(crate) fn of_kept(py: Python<'_>, why: &KeptError) -> PyErr {
    match why {
        KeptError::Store(why) => of_store(py, why),
        KeptError::Build(_) | KeptError::NameTooLong(_) => LimitError::new_err(why.to_string()),
        KeptError::Sink(_)
        | KeptError::File { .. }
        | KeptError::InUse(_)
        | KeptError::Damaged { .. } => FolderError::new_err(why.to_string()),
    }
}
