//! A registry: a directory whose files are the spans and spaces, with the file system's rights.
//!
//! ```text
//! lock                  locked while something is made, named or removed
//! spans/NAME.span       header, data, journal
//! spaces/NAME.space     a text: id, generation, a line for each span
//! */.new-USER-NAME      is being made; left by a process that died, removed by the next maker
//! ```
//!
//! There is no daemon, and nothing has to be started. A file gets its name as the last step.
//!
//! Invariants
//! - JUMP-2: a process may die after any system call that makes, changes, names or destroys
//!   something. The next process finds the old state or the new one.
//!
//! Threads: any number, of any processes.

use crate::error::{Result, SpaceError};
use crate::files::{self, RegistryLock};
use crate::header::{self, AddressRange, Found, Kind};
use crate::names::{self, SpanId};
use crate::robust::RobustLock;
use rustix::fd::OwnedFd;
use rustix::fs::{CWD, FileType, Mode};
use rustix::io::Errno;
use std::path::{Path, PathBuf};

/// The beginning of the name of a file that is being made. No other name begins with a point.
const NEW: &str = ".new-";

/// A directory of spans and spaces.
#[derive(Clone, Debug)]
pub struct Registry {
    root: PathBuf,
}

/// The two kinds of files.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum What {
    Span,
    Space,
}

impl What {
    pub(crate) fn word(self) -> &'static str {
        match self {
            Self::Span => "span",
            Self::Space => "space",
        }
    }

    fn folder(self) -> &'static str {
        match self {
            Self::Span => "spans",
            Self::Space => "spaces",
        }
    }

    /// The error for a name that is taken.
    pub(crate) fn name_taken(self, name: &str) -> SpaceError {
        SpaceError::Exists {
            what: self.word(),
            name: name.to_owned(),
        }
    }
}

impl Registry {
    /// The registry of this user: the directory in the environment variable `PLUVIO_SPACES`, else
    /// `pluvio-spaces` in `XDG_RUNTIME_DIR`, else in `/dev/shm` with the user's number behind it.
    /// The last two are in memory, and do not outlive the machine's next start.
    #[must_use]
    pub fn usual_root() -> PathBuf {
        let set = |name| std::env::var_os(name).filter(|value| !value.is_empty());
        if let Some(root) = set("PLUVIO_SPACES") {
            return root.into();
        }
        if let Some(run) = set("XDG_RUNTIME_DIR") {
            return Path::new(&run).join("pluvio-spaces");
        }
        shared_memory_root(rustix::process::getuid().as_raw())
    }

    /// Opens the registry in the directory `root`, and makes it, for this user alone, if there is
    /// none. For several users make `root`, `root/spans` and `root/spaces` before, with rights that
    /// let them in. A file system in memory is the usual place. Any other one works too if it can
    /// reserve room.
    ///
    /// # Errors
    /// The directories cannot be made or looked at. The place in `/dev/shm` that this user gets
    /// without asking belongs to another one.
    pub fn open(root: impl Into<PathBuf>) -> Result<Self> {
        let root = root.into();
        for folder in [
            root.clone(),
            root.join(What::Span.folder()),
            root.join(What::Space.folder()),
        ] {
            match rustix::fs::mkdirat(CWD, &folder, Mode::RWXU) {
                Ok(()) => files::step(),
                Err(Errno::EXIST) => check_owner(&folder, rustix::process::getuid().as_raw())?,
                Err(errno) => return Err(SpaceError::of("make", &folder, errno)),
            }
        }
        Ok(Self { root })
    }

    /// The directory.
    #[must_use]
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// The file of a span or space.
    pub(crate) fn path(&self, what: What, name: &str) -> Result<PathBuf> {
        names::check(name)?;
        let file = format!("{name}.{}", what.word());
        Ok(self.root.join(what.folder()).join(file))
    }

    /// Where a file is made before it gets its name.
    pub(crate) fn new_path(&self, what: What, name: &str) -> PathBuf {
        // With the user, who may be unable to remove a file that another one has left.
        let user = rustix::process::getuid().as_raw();
        let file = format!("{NEW}{user}-{name}");
        self.root.join(what.folder()).join(file)
    }

    pub(crate) fn not_found(&self, what: What, name: &str) -> SpaceError {
        SpaceError::NotFound {
            what: what.word(),
            name: name.to_owned(),
            root: self.root.clone(),
        }
    }

    /// Keeps all others from making, naming and removing, and removes what dead ones have begun.
    pub(crate) fn lock(&self) -> Result<RegistryLock> {
        let mode = rustix::fs::stat(&self.root)
            .map(|status| status.st_mode & 0o666)
            .unwrap_or(0o600);
        let held = files::lock(&self.root.join("lock"), mode)?;
        for what in [What::Span, What::Space] {
            let folder = self.root.join(what.folder());
            let begun = entries(&folder)?
                .into_iter()
                .filter(|name| name.starts_with(NEW));
            for name in begun {
                // Another user's: its next maker removes it.
                let _not_ours = files::remove(&folder.join(name));
            }
        }
        Ok(held)
    }

    /// The names of all spans or spaces, sorted.
    pub(crate) fn names(&self, what: What) -> Result<Vec<String>> {
        let ending = format!(".{}", what.word());
        let mut names: Vec<String> = entries(&self.root.join(what.folder()))?
            .iter()
            .filter_map(|name| name.strip_suffix(&ending))
            .filter(|name| names::check(name).is_ok())
            .map(str::to_owned)
            .collect();
        names.sort_unstable();
        Ok(names)
    }

    /// Opens a span's file and reads its header.
    pub(crate) fn open_span(&self, name: &str, writable: bool) -> Result<(OwnedFd, Found)> {
        let path = self.path(What::Span, name)?;
        let file = match files::open(&path, writable) {
            Ok(file) => file,
            Err(Errno::NOENT) => return Err(self.not_found(What::Span, name)),
            Err(errno) => {
                let doing = if writable { "write" } else { "read" };
                return Err(SpaceError::of(doing, &path, errno));
            }
        };
        let found = header::read(&file, &path)?;
        Ok((file, found))
    }

    /// A place at the robust lock of the span `id`.
    ///
    /// # Errors
    /// This user may not write the span, or it is another one now; as of [`RobustLock::open`].
    pub(crate) fn open_robust(&self, name: &str, id: SpanId, kind: Kind) -> Result<RobustLock> {
        let (file, found) = self.open_span(name, true)?;
        if found.header.id != id {
            return Err(self.not_found(What::Span, name));
        }
        RobustLock::open(file, name, kind == Kind::Heap)
    }

    /// The addresses of all spans that this user may read, in ascending order, with their names.
    /// A span and its copies have the same.
    pub(crate) fn ranges(&self) -> Result<Vec<(AddressRange, String)>> {
        let mut ranges = Vec::new();
        for name in self.names(What::Span)? {
            if let Ok((_, found)) = self.open_span(&name, false) {
                ranges.push((found.header.range(), name));
            }
        }
        ranges.sort_by_key(|(range, _)| range.base);
        Ok(ranges)
    }

    /// Gives the file that was made for `name` its name.
    pub(crate) fn publish(&self, what: What, name: &str) -> Result<()> {
        let path = self.path(what, name)?;
        match files::name_new(&self.new_path(what, name), &path)? {
            true => Ok(()),
            false => Err(what.name_taken(name)),
        }
    }

    /// Fails if the name is taken.
    pub(crate) fn check_free(&self, what: What, name: &str) -> Result<()> {
        let path = self.path(what, name)?;
        match rustix::fs::lstat(&path) {
            Err(Errno::NOENT) => Ok(()),
            Ok(_) => Err(what.name_taken(name)),
            Err(errno) => Err(SpaceError::of("look at", &path, errno)),
        }
    }
}

/// Where a user without a directory of its own has spans. Everybody can make something of that
/// name.
fn shared_memory_root(user: u32) -> PathBuf {
    format!("/dev/shm/pluvio-spaces-{user}").into()
}

/// Whether the place that a user gets without asking is a directory of that user. Another one may
/// have made it before, with spans that say anything.
///
/// # Errors
/// It is not.
fn check_owner(folder: &Path, user: u32) -> Result<()> {
    if folder != shared_memory_root(user) {
        return Ok(());
    }
    let status = rustix::fs::lstat(folder);
    let status = status.map_err(|errno| SpaceError::of("look at", folder, errno))?;
    let is_directory = FileType::from_raw_mode(status.st_mode) == FileType::Directory;
    match is_directory && status.st_uid == user {
        true => Ok(()),
        false => Err(SpaceError::of("trust", folder, Errno::ACCESS)),
    }
}

/// The names in a directory. Names that are no text are none of ours.
fn entries(folder: &Path) -> Result<Vec<String>> {
    let failed = |source| SpaceError::System {
        doing: "list",
        path: folder.to_owned(),
        source,
    };
    let mut names = Vec::new();
    for entry in std::fs::read_dir(folder).map_err(failed)? {
        if let Ok(name) = entry.map_err(failed)?.file_name().into_string() {
            names.push(name);
        }
    }
    Ok(names)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_place_that_nobody_chose_has_to_be_the_users_own() {
        let mine = rustix::process::getuid().as_raw();
        // No user of this machine has that number; removed at once.
        let other = u32::MAX - 7 - std::process::id() % 1000;
        let place = shared_memory_root(other);
        if rustix::fs::mkdirat(CWD, &place, Mode::RWXU).is_err() {
            return;
        }
        let refused = check_owner(&place, other);
        let chosen = check_owner(&place, mine);
        std::fs::remove_dir(&place).expect("an empty directory of ours");
        assert!(matches!(refused, Err(SpaceError::Denied { .. })));
        assert!(chosen.is_ok(), "somebody named it");
    }
}
