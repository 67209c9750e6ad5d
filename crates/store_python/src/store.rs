//! A store, which is its table `main` as well.

use crate::errors::{ClosedError, LimitError, TableError, of_kept, of_sink};
use crate::table::{Open, Table};
use pluvio_kept::{KeptError, KeptStore};
use pluvio_store::{Experiments, HugePages, KeyHashing, Size, UpdatePolicy};
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyTuple};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};

/// The table that a store is.
const MAIN: &str = "main";

/// A store inside this process.
#[pyclass(module = "pluvio_store", extends = Table, subclass, frozen)]
pub(crate) struct Store {
    kept: RwLock<Option<Arc<KeptStore>>>,
    /// What closing closes. Handles that are gone are left out as others come.
    tables: Mutex<Vec<Open>>,
}

impl Store {
    fn kept(&self) -> PyResult<Arc<KeptStore>> {
        let kept = self.kept.read().unwrap_or_else(PoisonError::into_inner);
        let kept = kept.as_ref().map(Arc::clone);
        kept.ok_or_else(|| ClosedError::new_err("the store is closed"))
    }

    fn tables(&self) -> MutexGuard<'_, Vec<Open>> {
        self.tables.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[pymethods]
impl Store {
    #[new]
    #[pyo3(signature = (folder=None, *, memory=268_435_456, segment=None, heads=None,
        cleaner_threads=None, in_place=false, keyed_hashing=false, huge_pages=true, populate=false,
        live_percent_max=90))]
    #[allow(clippy::too_many_arguments)] // keywords of Python
    fn new(
        py: Python<'_>,
        folder: Option<PathBuf>,
        memory: u64,
        segment: Option<u64>,
        heads: Option<u16>,
        cleaner_threads: Option<u16>,
        in_place: bool,
        keyed_hashing: bool,
        huge_pages: bool,
        populate: bool,
        live_percent_max: u32,
    ) -> PyResult<PyClassInitializer<Self>> {
        let mut builder = pluvio_store::Store::builder()
            .memory(Size(memory))
            .huge_pages(HugePages::from(huge_pages))
            .populate(populate)
            .live_percent_max(live_percent_max);
        if in_place {
            builder = builder.update(UpdatePolicy::InPlace);
        }
        if keyed_hashing {
            builder = builder.hashing(KeyHashing::Keyed);
        }
        if let Some(threads) = cleaner_threads {
            builder = builder.cleaner_threads(threads);
        }
        if let Some(heads) = heads {
            builder = builder.heads(heads);
        }
        if let Some(segment) = segment {
            builder = builder.experiments(Experiments {
                segment_size: Some(Size(segment)),
                ..Experiments::default()
            });
        }
        let opened = py.detach(|| {
            let kept = KeptStore::open(builder, folder.as_deref())?;
            let main = kept.open_table(MAIN, true)?;
            Ok::<_, KeptError>((kept, main))
        });
        let (kept, main) = opened.map_err(|why| of_kept(py, &why))?;
        let main = Table::new(main);
        let this = Self {
            kept: RwLock::new(Some(Arc::new(kept))),
            tables: Mutex::new(vec![main.handle()]),
        };
        Ok(PyClassInitializer::from(main).add_subclass(this))
    }

    #[pyo3(signature = (name, *, create=true))]
    fn table(&self, py: Python<'_>, name: &str, create: bool) -> PyResult<Table> {
        let kept = self.kept()?;
        let opened = py.detach(|| kept.open_table(name, create));
        let table = Table::new(opened.map_err(|why| of_kept(py, &why))?);
        let mut tables = self.tables();
        // Under the lock of the tables, which `close` takes after it has taken the store.
        self.kept()?;
        tables.retain(|open| Arc::strong_count(open) > 1);
        tables.push(table.handle());
        Ok(table)
    }

    fn table_names(&self) -> PyResult<Vec<String>> {
        Ok(self.kept()?.store().table_names())
    }

    fn drop_table(&self, py: Python<'_>, name: &str) -> PyResult<()> {
        if name == MAIN {
            return Err(LimitError::new_err("the table `main` stays"));
        }
        let kept = self.kept()?;
        match py
            .detach(|| kept.drop_table(name))
            .map_err(|why| of_kept(py, &why))?
        {
            true => Ok(()),
            false => Err(TableError::new_err(format!("there is no table {name:?}"))),
        }
    }

    fn sync(&self, py: Python<'_>) -> PyResult<()> {
        let kept = self.kept()?;
        py.detach(|| kept.store().sync())
            .map_err(|why| of_sink(&why))
    }

    fn clean(&self, py: Python<'_>) -> PyResult<bool> {
        let kept = self.kept()?;
        Ok(py.detach(|| kept.store().clean_step()))
    }

    fn stats<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let stats = self.kept()?.store().stats();
        let all = PyDict::new(py);
        for (name, value) in [
            ("objects", stats.objects),
            ("expired", stats.expired),
            ("object_bytes", stats.object_bytes),
            ("live_bytes", stats.live_bytes),
            ("live_bytes_max", stats.live_bytes_max),
            ("log_bytes", stats.log_bytes),
            ("index_bytes", stats.index_bytes),
            ("resident_bytes", stats.resident_bytes),
            ("free_bytes", stats.free_bytes),
            ("memory_bytes", stats.memory_bytes),
            ("folder_bytes", stats.sink_bytes),
        ] {
            all.set_item(name, value)?;
        }
        Ok(all)
    }

    /// Views and iterators keep their memory; everything else is refused from now on.
    fn close(&self, py: Python<'_>) -> PyResult<()> {
        let taken = py.detach(|| {
            let mut kept = self.kept.write().unwrap_or_else(PoisonError::into_inner);
            kept.take()
        });
        let Some(kept) = taken else {
            return Ok(());
        };
        let tables = core::mem::take(&mut *self.tables());
        let synced = py.detach(|| {
            for open in tables {
                *open.write().unwrap_or_else(PoisonError::into_inner) = None;
            }
            let synced = kept.store().sync();
            drop(kept);
            synced
        });
        synced.map_err(|why| of_sink(&why))
    }

    fn __enter__(this: Bound<'_, Self>) -> Bound<'_, Self> {
        this
    }

    #[pyo3(signature = (*_reason))]
    fn __exit__(&self, py: Python<'_>, _reason: &Bound<'_, PyTuple>) -> PyResult<()> {
        self.close(py)
    }
}
