//! Walking a table.

use pluvio_store::Iter;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyTuple};
use std::sync::{Mutex, PoisonError};

/// What an iterator gives of each object.
#[derive(Clone, Copy)]
pub(crate) enum Gives {
    Keys,
    Values,
    Items,
}

/// An iterator over a table.
#[pyclass(module = "pluvio_store", name = "Iterator", frozen)]
pub(crate) struct Walk {
    iter: Mutex<Iter>,
    gives: Gives,
}

impl Walk {
    pub(crate) fn new(iter: Iter, gives: Gives) -> Self {
        Self {
            iter: Mutex::new(iter),
            gives,
        }
    }
}

#[pymethods]
impl Walk {
    fn __iter__(this: PyRef<'_, Self>) -> PyRef<'_, Self> {
        this
    }

    fn __next__<'py>(&self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyAny>>> {
        let next = py.detach(|| {
            let mut iter = self.iter.lock().unwrap_or_else(PoisonError::into_inner);
            iter.next()
        });
        let Some((key, value)) = next else {
            return Ok(None);
        };
        Ok(Some(match self.gives {
            Gives::Keys => PyBytes::new(py, &key).into_any(),
            Gives::Values => PyBytes::new(py, &value).into_any(),
            Gives::Items => {
                let pair = [PyBytes::new(py, &key), PyBytes::new(py, &value)];
                PyTuple::new(py, pair)?.into_any()
            }
        }))
    }
}
