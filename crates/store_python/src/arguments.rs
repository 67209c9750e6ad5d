//! Keys and values of Python (PYTHON-1).

use pyo3::buffer::PyBuffer;
use pyo3::prelude::*;
use pyo3::pybacked::{PyBackedBytes, PyBackedStr};
use pyo3::types::{PyBytes, PyString};

/// A key or a value.
pub(crate) enum Bytes {
    /// Of a `bytes`.
    Borrowed(PyBackedBytes),
    /// The UTF-8 of a `str`.
    Text(PyBackedStr),
    /// A copy of any other buffer.
    Copy(Vec<u8>),
}

impl Bytes {
    pub(crate) fn get(&self) -> &[u8] {
        match self {
            Self::Borrowed(bytes) => bytes,
            Self::Text(text) => text.as_bytes(),
            Self::Copy(bytes) => bytes,
        }
    }
}

impl<'a, 'py> FromPyObject<'a, 'py> for Bytes {
    type Error = PyErr;

    fn extract(object: Borrowed<'a, 'py, PyAny>) -> PyResult<Self> {
        if let Ok(bytes) = object.cast::<PyBytes>() {
            return Ok(Self::Borrowed(bytes.to_owned().into()));
        }
        if let Ok(text) = object.cast::<PyString>() {
            return Ok(Self::Text(text.to_owned().try_into()?));
        }
        let buffer = PyBuffer::<u8>::get(&object)?;
        Ok(Self::Copy(buffer.to_vec(object.py())?))
    }
}
