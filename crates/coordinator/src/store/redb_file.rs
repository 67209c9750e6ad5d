//! The embedded store: one redb file.
//!
//! redb opens its file itself, synchronously, with its own locking and fsync. It is therefore the
//! one part of the coordinator that does not go through `env::Disk` (rule A); the simulator uses
//! [`super::MemoryStore`] in its place. Every access runs through `Tasks::run_blocking`: a commit
//! waits for the device, and pings must be answered meanwhile.
//!
//! Invariants
//! - REDB-1: after any error the file is closed, and opened again by the next request. redb then
//!   takes the newest commit that is whole in the file. So a batch whose commit failed is there as
//!   a whole or not at all, and an acknowledged one is there. Opening overwrites what the file has
//!   already, so on most file systems it needs no room.
//! - REDB-2: what redb finds when it opens the file is on the device. After a sync that failed, the
//!   kernel takes pages for written that are not, and later syncs succeed. A batch among them would
//!   be found, acknowledged, and gone with the next loss of power. The commit that redb adds when
//!   it opens would make the file unreadable then. So the file is settled before it is opened.
//! - REDB-3: what is written to a file that has lost its name is gone with this process. So nothing
//!   is read or written once another file, or none, has the name. The file stays open: it may be
//!   the only copy.
//!
//! Threads: accesses go one after the other, under the lock of `File::opened`.

use super::{Change, Condition, MetadataStore, Outcome, StoreError};
use bytes::Bytes;
use pluvio_env::{BoxFuture, Tasks};
use redb::{Database, ReadableDatabase, ReadableTable, TableDefinition, TableError};
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use tokio::sync::oneshot;

const TABLE: TableDefinition<'static, &str, &[u8]> = TableDefinition::new("metadata");

/// A store in one file. Only one process can have it open.
pub struct RedbStore {
    file: Arc<File>,
    tasks: Arc<dyn Tasks>,
}

/// How the file is opened after an error. One that is gone or empty by then is not begun anew: this
/// process knows what was in it.
pub(super) type Reopen = Box<dyn Fn(&Path) -> Result<Database, redb::Error> + Send + Sync>;

struct File {
    path: PathBuf,
    reopen: Reopen,
    /// See [`FileDoor::identity`].
    identity: Identity,
    /// `None` after an error: redb refuses everything then until it is opened anew (REDB-1).
    opened: Mutex<Option<Opened>>,
}

/// Gives the device and the number of the file that has a path.
pub type Identity = fn(&Path) -> io::Result<(u64, u64)>;

/// The questions of a store to the file system, beside those of redb.
#[derive(Clone, Copy)]
pub struct FileDoor {
    /// Gives the whole file to the device, whatever the kernel takes for written (REDB-2). A
    /// missing file is no error. Called before each opening; refuses a file that another process
    /// has open.
    pub settle: fn(&Path) -> io::Result<()>,
    /// The device and the number of the file that has this path.
    pub identity: Identity,
}

struct Opened {
    database: Database,
    /// The device and the number of the file.
    identity: Option<(u64, u64)>,
}

impl Opened {
    /// # Errors
    /// The file at the path is another one by now, or none (REDB-3).
    fn has_name(&self, file: &File) -> Result<(), StoreError> {
        let Some(own) = self.identity else {
            return Ok(());
        };
        let path = &file.path;
        if (file.identity)(path).is_ok_and(|there| there == own) {
            return Ok(());
        }
        let why = "the file was removed or replaced while it was in use, so nothing is stored any more; put a copy of it \
             back and start this coordinator again (until it ends, its open files below /proc are such a copy)";
        Err(StoreError(format!("{}: {why}", path.display())))
    }
}

fn failed(path: &Path, error: impl Into<redb::Error>) -> StoreError {
    let error = error.into();
    let damaged =
        || format!("{error}; restore a copy of it, or choose an empty directory for a new cluster");
    let said = match &error {
        redb::Error::DatabaseAlreadyOpen => "it is in use by another process".to_owned(),
        redb::Error::Corrupted(_) => damaged(),
        redb::Error::Io(system) => match system.kind() {
            // A file that is none of redb's.
            ErrorKind::InvalidData => damaged(),
            ErrorKind::StorageFull | ErrorKind::QuotaExceeded => {
                "no space left on the device; make room there".to_owned()
            }
            ErrorKind::ReadOnlyFilesystem => {
                "the file system is read-only; mount it for writing".to_owned()
            }
            _ => error.to_string(),
        },
        _ => error.to_string(),
    };
    StoreError(format!("{}: {said}", path.display()))
}

impl RedbStore {
    /// Opens the store's file, or creates it; one that is empty is taken for new. Blocks on the
    /// disk; call it at start.
    ///
    /// # Errors
    /// The file is in use by another process, is no redb file, or cannot be read, settled or
    /// created.
    pub fn open(
        path: impl Into<PathBuf>,
        tasks: Arc<dyn Tasks>,
        door: FileDoor,
    ) -> Result<Self, StoreError> {
        let FileDoor { settle, identity } = door;
        let path: PathBuf = path.into();
        settle(&path).map_err(|e| failed(&path, e))?;
        let database = Database::create(&path).map_err(|e| failed(&path, e))?;
        let reopen = move |path: &Path| -> Result<Database, redb::Error> {
            settle(path)?;
            Ok(Database::open(path)?)
        };
        let parts = (Box::new(reopen) as Reopen, identity);
        Ok(Self::on(path, database, parts, tasks))
    }

    /// A store on an open database.
    pub(super) fn on(
        path: PathBuf,
        database: Database,
        (reopen, identity): (Reopen, Identity),
        tasks: Arc<dyn Tasks>,
    ) -> Self {
        let opened = Opened {
            database,
            identity: identity(&path).ok(),
        };
        let file = File {
            path,
            reopen,
            identity,
            opened: Mutex::new(Some(opened)),
        };
        Self {
            file: Arc::new(file),
            tasks,
        }
    }

    fn run<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Database) -> Result<T, redb::Error> + Send + 'static,
    ) -> BoxFuture<'_, Result<T, StoreError>> {
        let file = self.file.clone();
        Box::pin(async move {
            let (done, result) = oneshot::channel();
            let job = Box::new(move || {
                // Nobody waits any more when the coordinator is stopping.
                let _ = done.send(file.with(work));
            });
            self.tasks.run_blocking(job).await;
            result
                .await
                .unwrap_or_else(|_| Err(StoreError("the work was dropped".into())))
        })
    }
}

impl File {
    fn with<T>(
        &self,
        work: impl FnOnce(&Database) -> Result<T, redb::Error>,
    ) -> Result<T, StoreError> {
        let mut place = self.opened.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(opened) = &*place {
            opened.has_name(self)?;
        }
        let opened = match place.take() {
            Some(opened) => opened,
            None => {
                let database = (self.reopen)(&self.path).map_err(|e| failed(&self.path, e))?;
                Opened {
                    database,
                    identity: (self.identity)(&self.path).ok(),
                }
            }
        };
        // Put back only after success; an error closes the file, so that the next call starts anew.
        let value = work(&opened.database).map_err(|e| failed(&self.path, e))?;
        let has_name = opened.has_name(self);
        *place = Some(opened);
        has_name.map(|()| value)
    }
}

fn apply_if(
    database: &Database,
    condition: &Condition,
    batch: &[Change],
) -> Result<Outcome, redb::Error> {
    // The default durability: when commit returns, the batch is on the device.
    let transaction = database.begin_write()?;
    {
        let mut table = transaction.open_table(TABLE)?;
        let holds = {
            let found = table.get(condition.key.as_str())?;
            found.as_ref().map(|found| found.value()) == condition.value.as_deref()
        };
        if !holds {
            // Dropping the transaction undoes it.
            return Ok(Outcome::Refused);
        }
        for change in batch {
            match change {
                Change::Put { key, value } => drop(table.insert(key.as_str(), value.as_ref())?),
                Change::Delete { key } => drop(table.remove(key.as_str())?),
            }
        }
    }
    transaction.commit()?;
    Ok(Outcome::Applied)
}

fn list(database: &Database, prefix: &str) -> Result<Vec<(String, Bytes)>, redb::Error> {
    let table = match database.begin_read()?.open_table(TABLE) {
        Ok(table) => table,
        // Nothing was ever written.
        Err(TableError::TableDoesNotExist(_)) => return Ok(Vec::new()),
        Err(other) => return Err(other.into()),
    };
    let mut found = Vec::new();
    for entry in table.range(prefix..)? {
        let (key, value) = entry?;
        if !key.value().starts_with(prefix) {
            break;
        }
        let value = Bytes::copy_from_slice(value.value());
        found.push((key.value().to_owned(), value));
    }
    Ok(found)
}

impl MetadataStore for RedbStore {
    fn get(&self, key: &str) -> BoxFuture<'_, Result<Option<Bytes>, StoreError>> {
        let key = key.to_owned();
        self.run(move |database| {
            let found = list(database, &key)?;
            // The first key with the prefix is the key itself, if it is there.
            Ok(found
                .into_iter()
                .next()
                .filter(|(found, _)| *found == key)
                .map(|(_, value)| value))
        })
    }

    fn list_prefix(&self, prefix: &str) -> BoxFuture<'_, Result<Vec<(String, Bytes)>, StoreError>> {
        let prefix = prefix.to_owned();
        self.run(move |database| list(database, &prefix))
    }

    fn apply_if(
        &self,
        condition: Condition,
        batch: Vec<Change>,
    ) -> BoxFuture<'_, Result<Outcome, StoreError>> {
        self.run(move |database| apply_if(database, &condition, &batch))
    }

    fn is_exclusive(&self) -> bool {
        true
    }

    fn check(&self) -> BoxFuture<'_, Result<(), StoreError>> {
        self.run(|_| Ok(()))
    }
}
