//! The file that children are started from.
//!
//! - PROG-1: all processes of a cluster are of one version: they are started by a name that holds
//!   also when the file was replaced meanwhile.

use pluvio_console::failure::Failure;
use pluvio_console::handover::{PRODUCT, beside};
use std::fs::File;
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// The program `pluvio`. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Program {
    /// How a child of this process finds the file.
    path: PathBuf,
    /// How any process of this machine does.
    path_for_all: PathBuf,
    /// Keeps both valid.
    _open: Option<Arc<File>>,
}

impl Program {
    /// The program that this process runs.
    ///
    /// # Errors
    /// It is not known.
    pub fn own() -> Result<Self, Failure> {
        match Self::in_proc("exe", None) {
            Some(own) => Ok(own),
            None => match std::env::current_exe() {
                Ok(path) => Ok(Self::at(path)),
                Err(error) => Err(Failure::new(format!(
                    "cannot find this program's own file: {error}"
                ))),
            },
        }
    }

    /// The one that lies beside this process's program, which is another one.
    ///
    /// # Errors
    /// There is none.
    pub fn beside_own() -> Result<Self, Failure> {
        let path = beside(PRODUCT)?;
        let open = File::open(&path).map_err(|error| Failure::file(&path, &error))?;
        let name = format!("fd/{}", open.as_raw_fd());
        Ok(Self::in_proc(&name, Some(Arc::new(open))).unwrap_or_else(|| Self::at(path)))
    }

    fn in_proc(name: &str, open: Option<Arc<File>>) -> Option<Self> {
        let path = PathBuf::from(format!("/proc/self/{name}"));
        path.exists().then(|| Self {
            path,
            path_for_all: PathBuf::from(format!("/proc/{}/{name}", std::process::id())),
            _open: open,
        })
    }

    fn at(path: PathBuf) -> Self {
        Self {
            path_for_all: path.clone(),
            path,
            _open: None,
        }
    }

    /// The file, as a child of this process finds it.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The file, as any process of this machine finds it.
    pub fn path_for_all(&self) -> &Path {
        &self.path_for_all
    }
}
