//! Where an experiment keeps its spans and files: a directory of its own in memory, removed at the
//! end.

use crate::error::{JumpError, Result};
use pluvio_spacejmp::{Access, Kind, Lock, Registry, Space};
use std::fs::File;
use std::path::{Path, PathBuf};
use tempfile::TempDir;

/// Bytes in front of the data of a span: its header, of the size of a granule.
pub(crate) const SPAN_HEADER_BYTES: u64 = pluvio_spacejmp::GRANULE_BYTES;
/// Where files in memory lie, if `--folder` names nothing else.
const IN_MEMORY: &str = "/dev/shm";

/// The directory of an experiment, with a registry of spans in it.
#[derive(Debug)]
pub(crate) struct Place {
    directory: TempDir,
    registry: Registry,
}

impl Place {
    /// Makes one below `folder`, or in memory.
    pub(crate) fn new(folder: Option<&Path>) -> Result<Self> {
        let below = folder.unwrap_or(Path::new(IN_MEMORY));
        let failed =
            |error| JumpError::system(format!("make a directory in {}", below.display()), error);
        let mut builder = tempfile::Builder::new();
        builder.prefix("pluvio-jump-");
        let directory = builder.tempdir_in(below).map_err(failed)?;
        let registry = Registry::open(directory.path().join("spaces"))?;
        Ok(Self {
            directory,
            registry,
        })
    }

    pub(crate) fn path(&self) -> &Path {
        self.directory.path()
    }

    pub(crate) fn registry(&self) -> &Registry {
        &self.registry
    }

    /// Makes a span of words, and a space of the same name with it alone; attaches that.
    pub(crate) fn words(&self, name: &str, bytes: u64, lock: Lock) -> Result<Space> {
        let span = self.registry.span(name).kind(Kind::Words).lock(lock);
        span.size(bytes).create()?;
        self.registry.create_space(name, &[(name, Access::Write)])?;
        attach(&self.registry, name)
    }

    /// Opens the file of a span, to be mapped without crate `spacejmp`.
    pub(crate) fn open_file(&self, span: &str) -> Result<File> {
        let path: PathBuf = self
            .registry
            .root()
            .join("spans")
            .join(format!("{span}.span"));
        let file = File::options().read(true).write(true).open(path);
        file.map_err(|error| JumpError::system("open a span", error))
    }
}

/// Attaches a space of an experiment.
#[allow(unsafe_code)] // a promise that the file system cannot keep
pub(crate) fn attach(registry: &Registry, name: &str) -> Result<Space> {
    let definition = registry.find_space(name)?;
    // SAFETY: the registry lies in a directory of the experiment. Its processes alone write there,
    // by crate `spacejmp`, and by `raw` words that every reader takes as numbers. They do not fork.
    Ok(unsafe { definition.attach() }?)
}
