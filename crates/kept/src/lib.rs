//! An embedded store that a folder of files keeps, table names included. It is for programs without
//! a sink of their own, and for the bindings of other languages.
//!
//! ```
//! use pluvio_kept::KeptStore;
//! use pluvio_store::{Size, Store};
//!
//! # let folder = tempfile::tempdir()?;
//! # let folder = folder.path();
//! let kept = KeptStore::open(Store::builder().memory(Size::mib(64)), Some(folder))?;
//! let towns = kept.open_table("towns", true)?;
//! towns.put(b"Bern", b"134794")?;
//! kept.store().sync()?;
//! # drop((kept, towns));
//! # let kept = KeptStore::open(Store::builder().memory(Size::mib(64)), Some(folder))?;
//! # assert_eq!(kept.open_table("towns", false)?.get(b"Bern").as_deref(), Some(&b"134794"[..]));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! ```text
//! folder/lock          held by the process that has the store open
//! folder/7/            a life: what one opening wrote
//! folder/7/tables      ids and names of its tables
//! folder/7/3.open      a segment, behind eight bytes that say how much of it counts
//! folder/7/2.closed
//! ```
//!
//! Invariants
//! - KEPT-1: the lowest life is complete. A new life takes its place when the sink has all of it.
//! - KEPT-2: a table's name is in the folder before its first object, and is gone from there before
//!   the table is dropped.
//! - KEPT-3: a folder has one store at a time, whose last handle gives it free.
//!
//! Threads: every method takes `&self`. Making and dropping tables takes a mutex.
//!
//! Limits: opening reads all that is kept and writes it again. It takes twice the objects' memory,
//! and twice their room on disk.

mod files;

use files::Life;
use pluvio_store::{BuildError, ReadBackError, SinkError, Store, StoreBuilder, StoreError, Table};
pub use pluvio_units::TABLE_NAME_MAX;
use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// How often loading waits for memory before it gives up.
const LOAD_ATTEMPTS_MAX: u32 = 100;

/// Why a store cannot be opened, or a table not be made or dropped.
#[derive(Debug, thiserror::Error)]
pub enum KeptError {
    /// See [`BuildError`].
    #[error(transparent)]
    Build(#[from] BuildError),
    /// See [`StoreError`]. While opening: what is kept does not fit the options.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The sink failed. A retry may help.
    #[error("the folder does not take the log: {0}")]
    Sink(#[from] SinkError),
    /// A file cannot be read or written. A retry may help.
    #[error("{}: {why}", path.display())]
    File {
        /// Which one.
        path: PathBuf,
        /// Why.
        #[source]
        why: io::Error,
    },
    /// Another store has the folder open. A retry helps when that one is closed.
    #[error("{} is open already", .0.display())]
    InUse(PathBuf),
    /// What is kept is damaged. Not retryable.
    #[error("{}: {why}", path.display())]
    Damaged {
        /// Where it lies.
        path: PathBuf,
        /// What is wrong.
        why: String,
    },
    /// The name is longer than [`TABLE_NAME_MAX`]. Not retryable.
    #[error("a table's name of {0} bytes is over the {TABLE_NAME_MAX} that are possible")]
    NameTooLong(usize),
}

impl KeptError {
    fn damaged(path: &Path, why: &ReadBackError) -> Self {
        Self::Damaged {
            path: path.into(),
            why: why.to_string(),
        }
    }
}

/// Gives a path to an error of the file system.
fn at(path: &Path) -> impl FnOnce(io::Error) -> KeptError + '_ {
    move |why| KeptError::File {
        path: path.into(),
        why,
    }
}

/// A store, and the folder that keeps it if there is one.
#[derive(Debug)]
pub struct KeptStore {
    store: Store,
    /// Where names are kept; the mutex orders changes of tables.
    life: Mutex<Option<Life>>,
}

impl KeptStore {
    /// Opens the store in a folder, which is made if it is missing; without one, a store in memory.
    /// The builder must have no sink.
    ///
    /// # Errors
    /// See [`KeptError`]; the folder keeps the same objects.
    pub fn open(builder: StoreBuilder, folder: Option<&Path>) -> Result<Self, KeptError> {
        let Some(folder) = folder else {
            return Ok(Self {
                store: builder.build()?,
                life: Mutex::default(),
            });
        };
        fs::create_dir_all(folder).map_err(at(folder))?;
        let lock = lock(folder)?;
        let numbers = files::lives(folder)?;
        let former = numbers.first().copied();
        for incomplete in numbers.iter().skip(1) {
            files::remove(folder, &folder.join(incomplete.to_string()))?;
        }
        let former = former.map(|number| (number, folder.join(number.to_string())));
        let kept = match &former {
            Some((_, path)) => files::read(path)?,
            None => files::Read::default(),
        };
        let number = former.as_ref().map_or(1, |(number, _)| number + 1);
        let life = Life::new(folder.join(number.to_string()))?;
        let mut builder = builder.sink(life.sink(lock));
        if let Some(version) = kept.next_version {
            builder = builder.first_version(version);
        }
        let this = Self {
            store: builder.build()?,
            life: Mutex::new(Some(life)),
        };
        this.load(&kept)?;
        files::sync(folder)?;
        if let Some((_, path)) = former {
            files::remove(folder, &path)?;
        }
        Ok(this)
    }

    /// Puts what a former life kept into this one.
    fn load(&self, kept: &files::Read) -> Result<(), KeptError> {
        for (id, name) in &kept.tables {
            let table = self.open_table(name, true)?;
            // By table, then key.
            let from = kept.objects.partition_point(|object| object.table.0 < *id);
            let objects = kept.objects[from..].iter();
            for object in objects.take_while(|object| object.table.0 == *id) {
                let mut attempts = 0;
                loop {
                    let done = table.put_for(&object.key, &object.value, object.lifetime());
                    match done {
                        Ok(_) => break,
                        Err(StoreError::Full { .. }) if attempts < LOAD_ATTEMPTS_MAX => {
                            attempts += 1;
                            self.store.sync()?;
                            self.store.clean_step();
                        }
                        Err(why) => return Err(why.into()),
                    }
                }
            }
        }
        Ok(self.store.sync()?)
    }

    /// The store. Its tables are made and dropped here and not there, so that their names are kept.
    pub fn store(&self) -> &Store {
        &self.store
    }

    /// The table with this name; makes it if it is missing and `create` says so.
    ///
    /// # Errors
    /// [`StoreError::UnknownTable`], or see [`KeptError`]; nothing changed.
    pub fn open_table(&self, name: &str, create: bool) -> Result<Table, KeptError> {
        if name.len() > TABLE_NAME_MAX {
            return Err(KeptError::NameTooLong(name.len()));
        }
        let mut life = self.life();
        match self.store.table(name) {
            Err(StoreError::UnknownTable(_)) if create => {}
            found => return Ok(found?),
        }
        let table = self.store.create_table(name)?;
        // KEPT-2: nobody else has the table yet.
        if let Some(life) = &mut *life
            && let Err(why) = life.add_table(table.id().0, name)
        {
            self.store.drop_table(name);
            return Err(why);
        }
        Ok(table)
    }

    /// Drops a table with all it holds; false when there is none with this name.
    ///
    /// # Errors
    /// [`KeptError::File`]; nothing changed.
    pub fn drop_table(&self, name: &str) -> Result<bool, KeptError> {
        let mut life = self.life();
        if let Some(life) = &mut *life {
            life.remove_table(name)?;
        }
        Ok(self.store.drop_table(name))
    }

    fn life(&self) -> MutexGuard<'_, Option<Life>> {
        // Names in memory change after those on disk: nothing is half done after a panic.
        self.life.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn lock(folder: &Path) -> Result<File, KeptError> {
    let path = folder.join("lock");
    let mut options = File::options();
    let options = options.create(true).truncate(false).write(true);
    let file = options.open(&path).map_err(at(&path))?;
    match file.try_lock() {
        Ok(()) => Ok(file),
        Err(fs::TryLockError::WouldBlock) => Err(KeptError::InUse(folder.into())),
        Err(fs::TryLockError::Error(why)) => Err(at(&path)(why)),
    }
}
