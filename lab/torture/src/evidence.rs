//! Where a run keeps what shows what happened: in a directory of the user's, or in a temporary one.
//!
//! TORT-6 (`report.rs`) is kept here: a temporary directory stays from the moment on at which
//! something is to be shown. It stays also when not all of that can be written.

use super::journal::Material;
use super::lines;
use super::report::Report;
use pluvio_console::failure::Failure;
use pluvio_local::temporary;
use std::fs;
use std::path::{Path, PathBuf};
use tempfile::TempDir;

/// The directory of a run: data and traces of its processes, and at the end history, faults and
/// report.
pub struct Evidence {
    folder: PathBuf,
    temporary: Option<TempDir>,
}

impl Evidence {
    /// This directory, which must be empty or new, or a temporary one.
    ///
    /// # Errors
    /// It is not empty, or cannot be made.
    pub fn new(keep: Option<&Path>) -> Result<Self, Failure> {
        let Some(path) = keep else {
            let directory = temporary::directory("pluvio-torture-", "use --keep")?;
            return Ok(Self {
                folder: directory.path().to_owned(),
                temporary: Some(directory),
            });
        };
        let fail = |error: std::io::Error| Failure::file(path, &error);
        fs::create_dir_all(path).map_err(fail)?;
        if fs::read_dir(path).map_err(fail)?.next().is_some() {
            return Err(Failure::usage(format!(
                "--keep {}: it is not empty; give a new directory",
                path.display()
            )));
        }
        Ok(Self {
            folder: path.canonicalize().map_err(fail)?,
            temporary: None,
        })
    }

    /// Where it is.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// Nothing is to be shown: a temporary directory is removed. One of the user's stays as it is.
    pub fn remove(self) {
        self.temporary.into_iter().for_each(temporary::remove);
    }

    /// Nothing is to be shown but what `failure` names: if that is in a temporary directory, it
    /// stays.
    pub fn end(self, failure: &Failure) {
        if let Some(directory) = self.temporary {
            temporary::end(directory, Some(failure));
        }
    }

    /// Lets the directory stay, and writes what happened beside data and traces.
    ///
    /// # Errors
    /// A file cannot be written. The directory stays all the same.
    pub fn keep(self, report: &Report, material: &Material) -> Result<(), Failure> {
        if let Some(directory) = self.temporary {
            let _path = directory.keep();
        }
        let folder = &self.folder;
        lines::write(material, &folder.join("history.jsonl"))?;
        let text = |value: Result<String, serde_json::Error>| {
            value.map_err(|error| Failure::new(format!("cannot write the report: {error}")))
        };
        let mut events = String::new();
        for event in &report.events {
            events += &text(serde_json::to_string(event))?;
            events.push('\n');
        }
        let report = text(serde_json::to_string_pretty(report))?;
        for (name, text) in [("faults.jsonl", events), ("report.json", report)] {
            let path = folder.join(name);
            fs::write(&path, text).map_err(|error| Failure::file(&path, &error))?;
        }
        Ok(())
    }
}
