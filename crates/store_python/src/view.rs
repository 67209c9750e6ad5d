//! Values that Python reads where they lie (PYTHON-2).

use core::ffi::c_int;
use pyo3::exceptions::PyBufferError;
use pyo3::ffi;
use pyo3::prelude::*;

/// A value where it lies in the store: a buffer that cannot be written.
#[pyclass(module = "pluvio_store", frozen)]
pub(crate) struct View {
    /// Dropped with the last `memoryview` of it: each has a reference of this object.
    view: pluvio_store::View,
}

impl View {
    pub(crate) fn new(view: pluvio_store::View) -> Self {
        Self { view }
    }
}

#[pymethods]
impl View {
    #[getter]
    fn version(&self) -> u64 {
        self.view.version().0
    }

    fn __len__(&self) -> usize {
        self.view.with(<[u8]>::len)
    }

    /// # Safety
    /// Python calls it with a buffer that may be written.
    unsafe fn __getbuffer__(
        this: Bound<'_, Self>,
        buffer: *mut ffi::Py_buffer,
        flags: c_int,
    ) -> PyResult<()> {
        if buffer.is_null() {
            return Err(PyBufferError::new_err("there is no buffer to fill"));
        }
        let (data, len) = this.get().view.with(|value| (value.as_ptr(), value.len()));
        // SAFETY: the bytes stay where they are while `this` lives (EMBED-6), of which the buffer
        // gets a reference; read-only, so nothing is written through the pointer.
        let filled = unsafe {
            ffi::PyBuffer_FillInfo(
                buffer,
                this.as_ptr(),
                data.cast_mut().cast(),
                len as ffi::Py_ssize_t,
                1,
                flags,
            )
        };
        match filled {
            0 => Ok(()),
            _ => Err(PyErr::fetch(this.py())),
        }
    }
}
