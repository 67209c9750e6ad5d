//! A table: a dictionary of bytes, and methods for what dictionaries cannot do.

use crate::arguments::Bytes;
use crate::errors::{ClosedError, of_increment, of_store};
use crate::view::View;
use crate::walk::{Gives, Walk};
use pluvio_store::{Deadline, Lifetime, PutOptions, RejectRules, TouchIf, Version};
use pyo3::exceptions::{PyKeyError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyList};
use std::sync::{Arc, PoisonError, RwLock};

/// A handle of a table; `None` once its store is closed.
pub(crate) type Open = Arc<RwLock<Option<pluvio_store::Table>>>;

/// A table of a store.
#[pyclass(module = "pluvio_store", subclass, frozen, mapping)]
pub(crate) struct Table {
    open: Open,
}

/// From which keyword a condition comes.
fn rules(absent: bool, present: bool, version: Option<u64>) -> PyResult<RejectRules> {
    match (absent, present, version) {
        (false, false, None) => Ok(RejectRules::NONE),
        (true, false, None) => Ok(RejectRules::EXISTS),
        (false, true, None) => Ok(RejectRules::ABSENT),
        (false, false, Some(version)) => Ok(RejectRules::unless_version(Version(version))),
        _ => Err(PyValueError::new_err("only one condition is possible")),
    }
}

fn milliseconds(seconds: f64) -> PyResult<u64> {
    if !(0.0..=1e14).contains(&seconds) {
        return Err(PyValueError::new_err("a time is 0 to 1e14 seconds"));
    }
    Ok((seconds * 1000.0) as u64)
}

fn lifetime(ttl: Option<f64>, until: Option<f64>) -> PyResult<Lifetime> {
    match (ttl, until) {
        (None, None) => Ok(Lifetime::Endless),
        (Some(ttl), None) => Ok(Lifetime::For(milliseconds(ttl)?)),
        (None, Some(until)) => Deadline::new(milliseconds(until)?)
            .map(Lifetime::Until)
            .ok_or_else(|| PyValueError::new_err("`until` is 0, or too far away")),
        (Some(_), Some(_)) => Err(PyValueError::new_err(
            "`ttl` and `until` exclude each other",
        )),
    }
}

impl Table {
    pub(crate) fn new(table: pluvio_store::Table) -> Self {
        Self {
            open: Arc::new(RwLock::new(Some(table))),
        }
    }

    /// For its store, which closes it.
    pub(crate) fn handle(&self) -> Open {
        Arc::clone(&self.open)
    }

    fn table(&self) -> PyResult<pluvio_store::Table> {
        let open = self.open.read().unwrap_or_else(PoisonError::into_inner);
        open.clone()
            .ok_or_else(|| ClosedError::new_err("the store is closed"))
    }

    fn read(&self, py: Python<'_>, key: &Bytes) -> PyResult<Option<(u64, Vec<u8>)>> {
        let table = self.table()?;
        Ok(py.detach(|| table.get_with(key.get(), |version, value| (version.0, value.to_vec()))))
    }

    fn walk(&self, gives: Gives) -> PyResult<Walk> {
        Ok(Walk::new(self.table()?.iter(), gives))
    }
}

#[pymethods]
impl Table {
    fn __len__(&self) -> PyResult<usize> {
        Ok(usize::try_from(self.table()?.len()).unwrap_or(usize::MAX))
    }

    fn __contains__(&self, py: Python<'_>, key: Bytes) -> PyResult<bool> {
        let table = self.table()?;
        Ok(py.detach(|| table.contains(key.get())))
    }

    fn __getitem__<'py>(&self, py: Python<'py>, key: Bytes) -> PyResult<Bound<'py, PyBytes>> {
        match self.read(py, &key)? {
            Some((_, value)) => Ok(PyBytes::new(py, &value)),
            None => Err(PyKeyError::new_err(PyBytes::new(py, key.get()).unbind())),
        }
    }

    fn __setitem__(&self, py: Python<'_>, key: Bytes, value: Bytes) -> PyResult<()> {
        let table = self.table()?;
        let stored = py.detach(|| table.put(key.get(), value.get()));
        stored.map_err(|why| of_store(py, &why)).map(drop)
    }

    fn __delitem__(&self, py: Python<'_>, key: Bytes) -> PyResult<()> {
        let table = self.table()?;
        let deleted = py.detach(|| table.delete(key.get()));
        match deleted.map_err(|why| of_store(py, &why))? {
            true => Ok(()),
            false => Err(PyKeyError::new_err(PyBytes::new(py, key.get()).unbind())),
        }
    }

    fn __iter__(&self) -> PyResult<Walk> {
        self.walk(Gives::Keys)
    }

    fn keys(&self) -> PyResult<Walk> {
        self.walk(Gives::Keys)
    }

    fn values(&self) -> PyResult<Walk> {
        self.walk(Gives::Values)
    }

    fn items(&self) -> PyResult<Walk> {
        self.walk(Gives::Items)
    }

    #[getter]
    fn name(&self) -> PyResult<String> {
        Ok(self.table()?.name().to_owned())
    }

    #[pyo3(signature = (key, default=None))]
    fn get<'py>(
        &self,
        py: Python<'py>,
        key: Bytes,
        default: Option<Bound<'py, PyAny>>,
    ) -> PyResult<Option<Bound<'py, PyAny>>> {
        let found = self.read(py, &key)?;
        let found = found.map(|(_, value)| PyBytes::new(py, &value).into_any());
        Ok(found.or(default))
    }

    fn get_with_version<'py>(
        &self,
        py: Python<'py>,
        key: Bytes,
    ) -> PyResult<Option<(Bound<'py, PyBytes>, u64)>> {
        let found = self.read(py, &key)?;
        Ok(found.map(|(version, value)| (PyBytes::new(py, &value), version)))
    }

    fn view(&self, py: Python<'_>, key: Bytes) -> PyResult<Option<View>> {
        let table = self.table()?;
        Ok(py.detach(|| table.view(key.get())).map(View::new))
    }

    #[pyo3(signature = (key, value, *, ttl=None, until=None, if_absent=false, if_present=false,
        if_version=None))]
    #[allow(clippy::too_many_arguments)] // keywords of Python
    fn put(
        &self,
        py: Python<'_>,
        key: Bytes,
        value: Bytes,
        ttl: Option<f64>,
        until: Option<f64>,
        if_absent: bool,
        if_present: bool,
        if_version: Option<u64>,
    ) -> PyResult<u64> {
        let options = PutOptions {
            rules: rules(if_absent, if_present, if_version)?,
            lifetime: lifetime(ttl, until)?,
        };
        let table = self.table()?;
        let stored = py.detach(|| table.put_with(key.get(), value.get(), options));
        stored
            .map(|version| version.0)
            .map_err(|why| of_store(py, &why))
    }

    #[pyo3(signature = (key, *, if_version=None))]
    fn delete(&self, py: Python<'_>, key: Bytes, if_version: Option<u64>) -> PyResult<bool> {
        let rules = rules(false, false, if_version)?;
        let table = self.table()?;
        let deleted = py.detach(|| table.delete_if(key.get(), rules));
        deleted.map_err(|why| of_store(py, &why))
    }

    #[pyo3(signature = (key, by=1))]
    fn increment(&self, py: Python<'_>, key: Bytes, by: i64) -> PyResult<i64> {
        let table = self.table()?;
        let sum = py.detach(|| table.increment(key.get(), by));
        sum.map_err(|why| of_increment(py, &why))
    }

    #[pyo3(signature = (key, *, ttl=None, until=None))]
    fn touch(
        &self,
        py: Python<'_>,
        key: Bytes,
        ttl: Option<f64>,
        until: Option<f64>,
    ) -> PyResult<bool> {
        let lifetime = lifetime(ttl, until)?;
        let table = self.table()?;
        let touched = py.detach(|| table.touch(key.get(), lifetime, TouchIf::Always));
        touched.map_err(|why| of_store(py, &why))
    }

    fn deadline(&self, py: Python<'_>, key: Bytes) -> PyResult<Option<f64>> {
        let table = self.table()?;
        let deadline = py.detach(|| table.deadline(key.get()));
        Ok(deadline
            .flatten()
            .map(|deadline| deadline.ms() as f64 / 1000.0))
    }

    fn get_many<'py>(&self, py: Python<'py>, keys: Vec<Bytes>) -> PyResult<Bound<'py, PyList>> {
        let table = self.table()?;
        let found = py.detach(|| {
            let keys: Vec<&[u8]> = keys.iter().map(Bytes::get).collect();
            let mut found = Vec::with_capacity(keys.len());
            table.get_batch(&keys, |_, value| found.push(value.map(<[u8]>::to_vec)));
            found
        });
        let found = found
            .iter()
            .map(|value| value.as_ref().map(|v| PyBytes::new(py, v)));
        PyList::new(py, found.collect::<Vec<_>>())
    }

    fn put_many(&self, py: Python<'_>, pairs: Vec<(Bytes, Bytes)>) -> PyResult<()> {
        let table = self.table()?;
        let stored = py.detach(|| {
            let pairs: Vec<(&[u8], &[u8])> =
                pairs.iter().map(|(k, v)| (k.get(), v.get())).collect();
            table.put_batch(&pairs)
        });
        stored.map_err(|(_, why)| of_store(py, &why))
    }
}
