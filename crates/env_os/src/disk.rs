//! A data directory.
//!
//! Owns the directory's lock. Names are checked before they reach the kernel: plain components,
//! joined with `/`, that cannot leave the directory. A symbolic link that an administrator has put
//! inside is followed: a way to put frames on another device.
//!
//! - DIR-1: once a sync of a directory has failed, every later sync of it fails, or of a directory
//!   below it. FILE-1 says the same for files. Each sync opens a new handle, and the kernel reports
//!   an error only once.
//! - DIR-3: of the blocking threads of an event loop a data directory takes three quarters at most.
//!   So a device that hangs does not stop the work in other directories.
//!
//! Calls that change or read directories run on blocking threads. Directories are made with the
//! first file in them. They are never removed: callers see no difference between an empty directory
//! and none, and a removal would race with the creation of a file.

use crate::file::OsFile;
use crate::runtime::{current_core, own_loop};
use crate::small_writes::SmallWrites;
use pluvio_env::{BoxFuture, Disk, DiskError, File, FileAt, OpenMode};
use pluvio_units::CoreId;
use rustix::fs::{FlockOperation, flock};
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio::runtime::Handle;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// The file whose lock says that the directory is in use. Not part of the data.
const LOCK_NAME: &str = ".pluvio-lock";
/// Where Linux tells the name of this start of the machine.
const BOOT_ID: &str = "/proc/sys/kernel/random/boot_id";

/// Most blocking threads of one event loop that work for one data directory: three quarters of them
/// all. So one whose device hangs leaves some to the others.
const THREADS_MAX: usize = 24;

/// The turns of a data directory on blocking threads, by event loop (DIR-3).
#[derive(Debug, Default)]
pub(crate) struct Turns(Mutex<BTreeMap<Option<CoreId>, Arc<Semaphore>>>);

impl Turns {
    /// Waits until a thread of this loop may work for the directory.
    async fn next(&self) -> Option<OwnedSemaphorePermit> {
        let here = {
            let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            let new = || Arc::new(Semaphore::new(THREADS_MAX));
            Arc::clone(all.entry(current_core()).or_insert_with(new))
        };
        // Semaphores are never closed.
        here.acquire_owned().await.ok()
    }
}

/// A directory of the file system that this process holds alone.
#[derive(Debug)]
pub struct OsDisk {
    root: Arc<Root>,
    lock: Arc<DirectoryLock>,
    fallback: Handle,
    small_writes: Arc<SmallWrites>,
    turns: Arc<Turns>,
    boot: u64,
    /// DIR-1: directories whose sync has failed. Locked during a sync, because of two at the same
    /// time only one might get an error that concerns both.
    failed_syncs: Arc<Mutex<BTreeSet<PathBuf>>>,
}

/// The directory that was opened.
#[derive(Debug)]
struct Root {
    path: PathBuf,
    /// Which directory the path led to then (ENVOS-5).
    known: Known,
    /// The same for directories in it ([`Disk::same_directory`]).
    below: Mutex<BTreeMap<PathBuf, Known>>,
}

/// A directory that must stay where it is. As long as it is open, no new one gets its inode.
#[derive(Clone, Debug)]
struct Known(Arc<fs::File>);

impl Known {
    fn of(directory: &Path) -> io::Result<Self> {
        fs::File::open(directory).map(|open| Self(Arc::new(open)))
    }

    /// Fails with [`DiskError::Gone`] when the path leads to another directory, or to none.
    fn check(&self, path: &Path) -> Result<(), DiskError> {
        use io::ErrorKind::{NotADirectory, NotFound};
        use std::os::unix::fs::MetadataExt;
        let shown = path.display().to_string();
        let fail = |error: io::Error| disk_error(&shown, &error);
        // Both anew: some file systems change inodes while a machine runs.
        let known = self.0.metadata().map_err(fail)?;
        match fs::metadata(path) {
            Ok(found) if (found.dev(), found.ino()) == (known.dev(), known.ino()) => Ok(()),
            Err(error) if !matches!(error.kind(), NotFound | NotADirectory) => Err(fail(error)),
            Ok(_) | Err(_) => Err(DiskError::Gone { path: shown }),
        }
    }
}

impl Root {
    fn of(path: PathBuf) -> io::Result<Self> {
        Ok(Self {
            known: Known::of(&path)?,
            path,
            below: Mutex::default(),
        })
    }

    fn below(&self) -> MutexGuard<'_, BTreeMap<PathBuf, Known>> {
        self.below.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The directory of this path must stay from now on. It is made if it is missing.
    ///
    /// # Errors
    /// It has not stayed, or the file system refuses.
    fn must_stay(&self, full: &Path, shown: &str) -> Result<(), DiskError> {
        // Checks those that are known, this one too.
        self.make_parents(&full.join(LOCK_NAME), shown)?;
        if full != self.path && !self.below().contains_key(full) {
            let known = Known::of(full).map_err(|error| disk_error(shown, &error))?;
            self.below().entry(full.to_owned()).or_insert(known);
        }
        Ok(())
    }

    /// Makes the directories above a file. Everything that makes or names a file calls this first,
    /// so nothing is made in another directory than the one that was opened (ENVOS-5). `shown` is
    /// the file's name in errors.
    ///
    /// # Errors
    /// A path leads to another directory by now, or to none: a retry does not help before that one
    /// is back. Or the file system refuses.
    fn make_parents(&self, full: &Path, shown: &str) -> Result<(), DiskError> {
        self.known.check(&self.path)?;
        // Collected, so that nobody waits for the lock while the device hangs.
        let above: Vec<_> = {
            let below = self.below();
            let above = below.iter().filter(|(path, _)| full.starts_with(path));
            above.map(|(path, k)| (path.clone(), k.clone())).collect()
        };
        for (path, known) in above {
            known.check(&path)?;
        }
        match full.parent() {
            Some(parent) if parent != self.path => {
                fs::create_dir_all(parent).map_err(|error| disk_error(shown, &error))
            }
            Some(_) | None => Ok(()),
        }
    }
}

/// Holds the lock as long as it lives; the kernel releases it when the process dies.
#[derive(Debug)]
pub(crate) struct DirectoryLock {
    _file: fs::File,
}

impl OsDisk {
    /// Opens `root`, creating it if it does not exist, and locks it. Blocks for a moment.
    /// `fallback` is the event loop whose blocking threads serve callers that run on none.
    ///
    /// # Errors
    /// [`DiskError::InUse`] when a process (this one too) holds it, otherwise what the file
    /// system says.
    pub fn open(root: &Path, fallback: Handle) -> Result<Self, DiskError> {
        let shown = root.display().to_string();
        let fail = |error: io::Error| disk_error(&shown, &error);
        let lock_shown = root.join(LOCK_NAME).display().to_string();
        // Protects against later changes of the working directory.
        let root = make_directory(root)?;
        let file = fs::OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .open(root.join(LOCK_NAME))
            .map_err(|error| disk_error(&lock_shown, &error))?;
        match flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => {}
            Err(rustix::io::Errno::WOULDBLOCK) => return Err(DiskError::InUse { path: shown }),
            Err(error) => return Err(fail(error.into())),
        }
        Ok(Self {
            root: Arc::new(Root::of(root).map_err(fail)?),
            lock: Arc::new(DirectoryLock { _file: file }),
            fallback,
            small_writes: Arc::new(SmallWrites::new()),
            turns: Arc::default(),
            boot: boot_number(),
            failed_syncs: Arc::default(),
        })
    }

    /// Where the directory is.
    #[must_use]
    pub fn root(&self) -> &Path {
        &self.root.path
    }

    /// Runs `work` on the file `path` on a blocking thread.
    fn run<T: Send + 'static>(
        &self,
        path: &str,
        work: impl FnOnce(&Root, &str) -> Result<T, DiskError> + Send + 'static,
    ) -> BoxFuture<'_, Result<T, DiskError>> {
        let path = path.to_owned();
        let root = Arc::clone(&self.root);
        let (fallback, turns) = (self.fallback.clone(), Arc::clone(&self.turns));
        Box::pin(
            async move { blocking(&fallback, &turns, &path, move |path| work(&root, path)).await },
        )
    }
}

/// Makes a data directory if it is missing, and gives its full path. Blocks for a moment.
///
/// # Errors
/// The name belongs to something else, or the file system refuses.
pub fn make_directory(path: &Path) -> Result<PathBuf, DiskError> {
    let shown = path.display().to_string();
    let fail = |error: io::Error| disk_error(&shown, &error);
    let refuse = |message: &str| {
        Err(DiskError::Other {
            path: shown.clone(),
            message: message.to_owned(),
        })
    };
    if path.is_dir() {
        return fs::canonicalize(path).map_err(fail);
    }
    if path.exists() {
        return refuse("it is no directory; choose another data directory");
    }
    match fs::create_dir_all(path) {
        Ok(()) => {}
        // The name is taken, but leads nowhere.
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
            return refuse(
                "it, or a directory above it, is a symbolic link to something that is not there; \
                 is a device not mounted? Make what it points to, or choose another data directory",
            );
        }
        Err(error) => return Err(fail(error)),
    }
    if let Some(parent) = path.parent().filter(|p| !p.as_os_str().is_empty()) {
        sync_one(parent).map_err(fail)?;
    }
    fs::canonicalize(path).map_err(fail)
}

impl Disk for OsDisk {
    fn open(&self, path: &str, mode: OpenMode) -> BoxFuture<'_, Result<Arc<dyn File>, DiskError>> {
        let lock = Arc::clone(&self.lock);
        let small_writes = Arc::clone(&self.small_writes);
        let (fallback, turns) = (self.fallback.clone(), Arc::clone(&self.turns));
        self.run(path, move |root, path| {
            let file = open_file(root, path, mode)?;
            let file: Arc<dyn File> =
                Arc::new(OsFile::new(file, path, lock, small_writes, turns, fallback));
            Ok(file)
        })
    }

    fn remove(&self, path: &str) -> BoxFuture<'_, Result<(), DiskError>> {
        self.run(path, |root, path| {
            match fs::remove_file(resolve(root, path)?) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => {
                    Err(disk_error(path, &error))
                }
                Ok(()) | Err(_) => Ok(()),
            }
        })
    }

    fn rename(&self, from: &str, to: &str) -> BoxFuture<'_, Result<(), DiskError>> {
        let to = to.to_owned();
        self.run(from, move |root, from| {
            let source = resolve(root, from)?;
            let target = resolve(root, &to)?;
            // Asked first, so that a missing source is not mistaken for a missing directory.
            fs::symlink_metadata(&source).map_err(|error| disk_error(from, &error))?;
            root.make_parents(&target, &to)?;
            fs::rename(&source, &target).map_err(|error| disk_error(from, &error))
        })
    }

    fn list(&self, directory: &str) -> BoxFuture<'_, Result<Vec<String>, DiskError>> {
        self.run(directory, |root, directory| {
            let full = resolve_directory(root, directory)?;
            list_files(&full).map_err(|error| disk_error(directory, &error))
        })
    }

    fn sync_directory(&self, directory: &str) -> BoxFuture<'_, Result<(), DiskError>> {
        let failed = Arc::clone(&self.failed_syncs);
        self.run(directory, move |root, directory| {
            let full = resolve_directory(root, directory)?;
            let mut failed = failed.lock().unwrap_or_else(PoisonError::into_inner);
            sync_up_to(&root.path, &full, &mut failed)
                .map_err(|error| disk_error(directory, &error))
        })
    }

    fn same_directory(&self, directory: &str) -> BoxFuture<'_, Result<(), DiskError>> {
        self.run(directory, |root, directory| {
            let full = resolve_directory(root, directory)?;
            root.must_stay(&full, directory)
        })
    }

    fn misplaced(&self, files: Vec<FileAt>) -> BoxFuture<'_, Result<Vec<usize>, DiskError>> {
        self.run("", move |root, _| {
            let mut misplaced = Vec::new();
            for (number, file) in files.iter().enumerate() {
                if !is_at_its_path(root, file)? {
                    misplaced.push(number);
                }
            }
            Ok(misplaced)
        })
    }

    fn room(&self) -> BoxFuture<'_, Option<u64>> {
        let room = self.run("", |root, path| {
            let system = rustix::fs::statvfs(&root.path);
            let system = system.map_err(|error| disk_error(path, &error.into()))?;
            Ok(system.f_bavail.saturating_mul(system.f_frsize))
        });
        Box::pin(async move { room.await.ok() })
    }

    fn boot(&self) -> u64 {
        self.boot
    }
}

/// Runs `work` on a blocking thread of the current event loop, when it is the directory's turn.
/// Once it has begun it runs to its end, even when the waiting future is dropped.
pub(crate) async fn blocking<T: Send + 'static>(
    fallback: &Handle,
    turns: &Turns,
    path: &str,
    work: impl FnOnce(&str) -> Result<T, DiskError> + Send + 'static,
) -> Result<T, DiskError> {
    let for_work = path.to_owned();
    let turn = turns.next().await;
    let joined = own_loop(fallback)
        .spawn_blocking(move || {
            let _turn = turn;
            work(&for_work)
        })
        .await;
    joined.unwrap_or_else(|error| match error.try_into_panic() {
        Ok(panic) => std::panic::resume_unwind(panic),
        Err(_) => Err(DiskError::Other {
            path: path.to_owned(),
            message: "not done: the process is shutting down".to_owned(),
        }),
    })
}

/// A number made from the name that the kernel gives to each start of the machine; 0 if there is
/// none.
fn boot_number() -> u64 {
    match fs::read_to_string(BOOT_ID) {
        Ok(name) => number_of(&name).unwrap_or(0),
        Err(error) => {
            tracing::warn!(%error, "{BOOT_ID} cannot be read: losses of power cannot be told from restarts");
            0
        }
    }
}

/// Both halves of a UUID in one number.
fn number_of(name: &str) -> Option<u64> {
    let digits = name.trim().replace('-', "");
    let both = u128::from_str_radix(&digits, 16).ok()?;
    Some((both >> 64) as u64 ^ both as u64)
}

/// The kernel's answer, with advice.
pub(crate) fn disk_error(path: &str, error: &io::Error) -> DiskError {
    use rustix::io::Errno;
    let path = path.to_owned();
    let errno = Errno::from_io_error(error);
    let message = match errno {
        Some(Errno::NOENT) => return DiskError::NotFound { path },
        Some(Errno::NOSPC | Errno::DQUOT) => return DiskError::Full { path },
        Some(Errno::MFILE | Errno::NFILE) => return DiskError::TooManyFiles { path },
        Some(Errno::EXIST) => "the file exists already".to_owned(),
        Some(Errno::ROFS) => {
            "the file system is read-only; mount it for writing or choose another data directory"
                .to_owned()
        }
        Some(Errno::NOTDIR) => {
            "a file stands where a directory belongs; move it away or choose another data directory"
                .to_owned()
        }
        Some(Errno::ISDIR) => {
            "a directory stands where a file belongs; move it away or choose another data directory"
                .to_owned()
        }
        Some(Errno::ACCESS | Errno::PERM) => {
            "permission denied; the user that runs this process must own the data directory"
                .to_owned()
        }
        Some(Errno::FBIG) => "the file system does not carry files of this size".to_owned(),
        Some(Errno::IO) => "the device reports an error; its data may be damaged".to_owned(),
        Some(_) | None => error.to_string(),
    };
    DiskError::Other { path, message }
}

/// The full path of a file, if `path` is a plain name below the directory.
fn resolve(root: &Root, path: &str) -> Result<PathBuf, DiskError> {
    let refuse = |message: &str| {
        Err(DiskError::Other {
            path: path.to_owned(),
            message: message.to_owned(),
        })
    };
    if path.contains('\0') {
        return refuse("a name cannot contain a zero byte");
    }
    for part in path.split('/') {
        match part {
            "" | "." | ".." => {
                return refuse("not a plain path below the data directory");
            }
            LOCK_NAME => return refuse("this name is the lock of the data directory"),
            _ => {}
        }
    }
    Ok(root.path.join(path))
}

/// As [`resolve`], with the empty name for the data directory itself.
fn resolve_directory(root: &Root, directory: &str) -> Result<PathBuf, DiskError> {
    if directory.is_empty() {
        Ok(root.path.clone())
    } else {
        resolve(root, directory)
    }
}

fn open_file(root: &Root, path: &str, mode: OpenMode) -> Result<fs::File, DiskError> {
    let full = resolve(root, path)?;
    let mut options = fs::OpenOptions::new();
    options.read(true).write(true);
    match mode {
        OpenMode::Existing => {}
        OpenMode::New => {
            root.make_parents(&full, path)?;
            options.create_new(true);
        }
        OpenMode::Create => {
            root.make_parents(&full, path)?;
            options.create(true).truncate(false);
        }
    }
    options.open(full).map_err(|error| disk_error(path, &error))
}

/// Whether the path leads to the file.
fn is_at_its_path(root: &Root, file: &FileAt) -> Result<bool, DiskError> {
    use std::os::unix::fs::MetadataExt;
    let found = match fs::metadata(resolve(root, &file.path)?) {
        Ok(found) => (found.dev(), found.ino()),
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(false),
        Err(error) => return Err(disk_error(&file.path, &error)),
    };
    // Both anew: some file systems change inodes while a machine runs.
    let open = file.open.as_ref().and_then(|open| open.identity());
    Ok(open.is_none_or(|open| open == found))
}

fn list_files(directory: &Path) -> io::Result<Vec<String>> {
    let entries = match fs::read_dir(directory) {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(error),
    };
    let mut names = Vec::new();
    for entry in entries {
        let entry = entry?;
        if entry.file_type()?.is_dir() {
            continue;
        }
        match entry.file_name().into_string() {
            Ok(name) if name == LOCK_NAME => {}
            Ok(name) => names.push(name),
            Err(name) => tracing::warn!(?name, ?directory, "a foreign file is ignored"),
        }
    }
    names.sort_unstable();
    Ok(names)
}

fn sync_one(directory: &Path) -> io::Result<()> {
    fs::File::open(directory)?.sync_all()
}

/// Syncs a directory and those above it, because they may be new. A missing directory holds nothing
/// to lose. The directories whose sync fails are added to `failed` (DIR-1).
fn sync_up_to(root: &Path, directory: &Path, failed: &mut BTreeSet<PathBuf>) -> io::Result<()> {
    let mut at = directory;
    loop {
        if failed.contains(at) {
            return Err(io::Error::other(
                "an earlier sync failed; what was created or renamed before it may be lost",
            ));
        }
        match fs::File::open(at) {
            Ok(open) => {
                if let Err(error) = open.sync_all() {
                    failed.insert(at.to_owned());
                    return Err(error);
                }
            }
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            Err(_) => {}
        }
        match at.parent() {
            Some(parent) if at != root => at = parent,
            Some(_) | None => return Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_name_of_a_start_of_the_machine_is_a_number() {
        let name = "00000000-0000-0001-8000-0000000000ff\n";
        assert_eq!(number_of(name), Some(0x8000_0000_0000_00fe));
        assert_eq!(number_of(""), None);
        assert_eq!(number_of("none"), None);
    }

    // shows: DIR-3
    #[test]
    fn a_directory_that_hangs_leaves_threads_to_others() {
        use futures_util::FutureExt;
        let (hangs, works) = (Turns::default(), Turns::default());
        let mut under_way = Vec::new();
        let refused = loop {
            match hangs.next().now_or_never() {
                Some(turn) if under_way.len() < 1000 => under_way.push(turn),
                other => break other.is_none(),
            }
        };
        assert!(refused);
        let all = crate::runtime::OsOptions::default().blocking_threads_max;
        assert!(under_way.len() < all, "{}", under_way.len());
        assert!(works.next().now_or_never().is_some());
        under_way.pop();
        assert!(hangs.next().now_or_never().is_some());
    }

    #[test]
    fn a_file_that_cannot_be_opened_for_want_of_files_is_not_a_broken_one() {
        use rustix::io::Errno;
        let path = "frames/1".to_owned();
        let expected = DiskError::TooManyFiles { path };
        for errno in [Errno::MFILE, Errno::NFILE] {
            assert_eq!(disk_error("frames/1", &errno.into()), expected);
        }
    }
}
