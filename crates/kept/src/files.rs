//! The files of a life: segments, and the names of tables.

use crate::{KeptError, TABLE_NAME_MAX, at};
use pluvio_store::{
    KeptObject, KeptSegment, LogId, ReplicaSink, SegmentId, SinkAnswer, SinkError, SinkWrite,
    Version, read_back,
};
use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, Write};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

/// Bytes before the segment in its file: the length that counts.
const LENGTH: usize = 8;

/// The folder of a life, and the names in it.
#[derive(Debug)]
pub(crate) struct Life {
    path: PathBuf,
    tables: BTreeMap<u64, String>,
}

/// What a life kept.
#[derive(Default)]
pub(crate) struct Read {
    /// By table and key.
    pub(crate) objects: Vec<KeptObject>,
    pub(crate) tables: BTreeMap<u64, String>,
    pub(crate) next_version: Option<Version>,
}

/// The numbers of all lives, the lowest first.
pub(crate) fn lives(folder: &Path) -> Result<Vec<u64>, KeptError> {
    let mut lives = Vec::new();
    for entry in fs::read_dir(folder).map_err(at(folder))? {
        let name = entry.map_err(at(folder))?.file_name();
        lives.extend(name.to_str().and_then(|name| name.parse::<u64>().ok()));
    }
    lives.sort_unstable();
    Ok(lives)
}

/// Names of files are durable when their folder is.
pub(crate) fn sync(folder: &Path) -> Result<(), KeptError> {
    sync_names(folder).map_err(at(folder))
}

fn sync_names(folder: &Path) -> io::Result<()> {
    File::open(folder)?.sync_all()
}

/// Removes a life: gone at once under its name, whenever the program ends.
pub(crate) fn remove(folder: &Path, life: &Path) -> Result<(), KeptError> {
    let old = folder.join("old");
    match fs::remove_dir_all(&old) {
        Err(why) if why.kind() != io::ErrorKind::NotFound => return Err(at(&old)(why)),
        Ok(()) | Err(_) => {}
    }
    fs::rename(life, &old).map_err(at(life))?;
    sync(folder)?;
    fs::remove_dir_all(&old).map_err(at(&old))
}

/// Reads a life.
pub(crate) fn read(path: &Path) -> Result<Read, KeptError> {
    let mut segments = Vec::new();
    let mut tables = BTreeMap::new();
    for entry in fs::read_dir(path).map_err(at(path))? {
        let file = entry.map_err(at(path))?.path();
        let state = file.extension().and_then(|state| state.to_str());
        let closed = match state {
            None if file.ends_with("tables") => {
                let bytes = fs::read(&file).map_err(at(&file))?;
                tables = parse(&bytes).ok_or_else(|| KeptError::Damaged {
                    path: file.clone(),
                    why: "the names of tables are not as they were written".into(),
                })?;
                continue;
            }
            Some("open") => false,
            Some("closed") => true,
            Some(_) | None => continue,
        };
        let bytes = fs::read(&file).map_err(at(&file))?;
        // A file without its length was made and never written.
        let Some((length, segment)) = bytes.split_first_chunk::<LENGTH>() else {
            continue;
        };
        let length = usize::try_from(u64::from_le_bytes(*length)).unwrap_or(usize::MAX);
        segments.push(KeptSegment {
            bytes: segment[..length.min(segment.len())].to_vec(),
            closed,
        });
    }
    if segments.is_empty() {
        return Ok(Read {
            tables,
            ..Read::default()
        });
    }
    let kept = read_back(&segments).map_err(|why| KeptError::damaged(path, &why))?;
    Ok(Read {
        objects: kept.objects,
        tables,
        next_version: Some(kept.next_version),
    })
}

impl Life {
    pub(crate) fn new(path: PathBuf) -> Result<Self, KeptError> {
        fs::create_dir(&path).map_err(at(&path))?;
        Ok(Self {
            path,
            tables: BTreeMap::new(),
        })
    }

    /// The sink of this life, with the lock of the folder.
    pub(crate) fn sink(&self, lock: File) -> Segments {
        Segments {
            _lock: lock,
            folder: self.path.clone(),
            open: BTreeMap::new(),
        }
    }

    pub(crate) fn add_table(&mut self, id: u64, name: &str) -> Result<(), KeptError> {
        let mut tables = self.tables.clone();
        tables.insert(id, name.into());
        self.write(tables)
    }

    pub(crate) fn remove_table(&mut self, name: &str) -> Result<(), KeptError> {
        let mut tables = self.tables.clone();
        tables.retain(|_, kept| kept != name);
        if tables.len() == self.tables.len() {
            return Ok(());
        }
        self.write(tables)
    }

    fn write(&mut self, tables: BTreeMap<u64, String>) -> Result<(), KeptError> {
        let (new, path) = (self.path.join("new"), self.path.join("tables"));
        let write = || {
            let mut file = File::create(&new)?;
            file.write_all(&encode(&tables))?;
            file.sync_all()?;
            fs::rename(&new, &path)?;
            sync_names(&self.path)
        };
        write().map_err(at(&path))?;
        self.tables = tables;
        Ok(())
    }
}

/// Each name behind its id and its length, all behind their number.
fn encode(tables: &BTreeMap<u64, String>) -> Vec<u8> {
    let mut bytes = (tables.len() as u64).to_le_bytes().to_vec();
    for (id, name) in tables {
        bytes.extend(id.to_le_bytes());
        bytes.extend((name.len() as u64).to_le_bytes());
        bytes.extend(name.as_bytes());
    }
    bytes
}

fn parse(bytes: &[u8]) -> Option<BTreeMap<u64, String>> {
    fn number(bytes: &mut &[u8]) -> Option<u64> {
        let (number, rest) = bytes.split_first_chunk::<8>()?;
        *bytes = rest;
        Some(u64::from_le_bytes(*number))
    }
    let mut rest = bytes;
    let count = number(&mut rest)?;
    let mut tables = BTreeMap::new();
    for _ in 0..count {
        let id = number(&mut rest)?;
        let len = usize::try_from(number(&mut rest)?).ok()?;
        let (name, behind) = rest.split_at_checked(len.min(TABLE_NAME_MAX + 1))?;
        rest = behind;
        tables.insert(id, String::from_utf8(name.to_vec()).ok()?);
    }
    rest.is_empty().then_some(tables)
}

/// Segments as files: `3.open` while it is written, then `3.closed`.
pub(crate) struct Segments {
    /// Given free when nothing more is written (KEPT-3).
    _lock: File,
    folder: PathBuf,
    open: BTreeMap<SegmentId, File>,
}

impl Segments {
    fn path(&self, segment: SegmentId, state: &str) -> PathBuf {
        self.folder.join(format!("{}.{state}", segment.0))
    }

    fn put(&mut self, write: &SinkWrite<'_>) -> io::Result<()> {
        if !self.open.contains_key(&write.segment) {
            let file = File::create(self.path(write.segment, "open"))?;
            sync_names(&self.folder)?;
            self.open.insert(write.segment, file);
        }
        let Some(file) = self.open.get(&write.segment) else {
            return Ok(());
        };
        let end = u64::from(write.offset) + write.bytes.len() as u64;
        file.write_all_at(write.bytes, LENGTH as u64 + u64::from(write.offset))?;
        if write.certified {
            // First the bytes, then the length that says they count.
            file.sync_data()?;
            file.write_all_at(&end.to_le_bytes(), 0)?;
            file.sync_data()?;
        }
        Ok(())
    }

    fn close(&mut self, segment: SegmentId) -> io::Result<()> {
        self.open.remove(&segment);
        let (open, closed) = (self.path(segment, "open"), self.path(segment, "closed"));
        match fs::rename(open, &closed) {
            // Asked again after a failure behind the renaming.
            Err(why) if why.kind() == io::ErrorKind::NotFound && closed.exists() => {}
            renamed => renamed?,
        }
        sync_names(&self.folder)
    }

    fn free(&mut self, segment: SegmentId) -> io::Result<()> {
        self.open.remove(&segment);
        for state in ["open", "closed"] {
            match fs::remove_file(self.path(segment, state)) {
                Err(why) if why.kind() == io::ErrorKind::NotFound => {}
                removed => removed?,
            }
        }
        Ok(())
    }
}

fn failed(why: io::Error) -> SinkError {
    SinkError(why.to_string())
}

impl ReplicaSink for Segments {
    fn write(&mut self, write: &SinkWrite<'_>) -> Result<SinkAnswer, SinkError> {
        self.put(write).map_err(failed)?;
        Ok(SinkAnswer::Taken)
    }

    fn close(&mut self, _log: LogId, segment: SegmentId) -> Result<(), SinkError> {
        Self::close(self, segment).map_err(failed)
    }

    fn free(&mut self, _log: LogId, segment: SegmentId) -> Result<(), SinkError> {
        Self::free(self, segment).map_err(failed)
    }
}
