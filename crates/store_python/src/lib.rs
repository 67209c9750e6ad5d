//! The embedded store for Python: the module `pluvio_store`, over the Rust store and pyo3.
//!
//! What it owns: the classes, and how errors become exceptions. `pluvio_store.pyi` documents them.
//!
//! Invariants
//! - PYTHON-1: no bytes that Python may change are read without its lock: what is not `bytes`
//!   or `str` is copied first.
//! - PYTHON-2: the memory of a view stays while a `memoryview` of it lives.
//!
//! Threads: every call that reads or changes objects, or waits, releases Python's lock. Counts and
//! names are told while it is held.

#![cfg(feature = "python")]

mod arguments;
mod errors;
mod store;
mod table;
#[allow(unsafe_code)] // the buffer protocol
mod view;
mod walk;

use pyo3::prelude::*;

/// A log-structured key-value store inside your process.
#[pymodule]
#[pyo3(name = "pluvio_store")]
fn pluvio_store_module(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<table::Table>()?;
    module.add_class::<store::Store>()?;
    module.add_class::<view::View>()?;
    module.add_class::<walk::Walk>()?;
    errors::add(module)
}
