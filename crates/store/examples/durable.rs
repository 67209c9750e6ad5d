//! A store that survives a crash: its log goes to files, one for each segment, and is read back at
//! the next start.
//!
//! `cargo run --release -p pluvio-store --example durable -- FOLDER` counts how often it was
//! started.
//!
//! A file begins with eight bytes, the certified length; the segment follows. What lies behind that
//! length was under way when the program ended, and does not count.

// An example with files: the door of this program is its standard library.
#![allow(clippy::disallowed_methods)]

use pluvio_store::{
    Kept, KeptSegment, LogId, ReplicaSink, SegmentId, SinkAnswer, SinkError, SinkWrite, Size,
    Store, read_back,
};
use std::collections::BTreeMap;
use std::error::Error;
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

/// Bytes before the segment.
const LENGTH: usize = 8;

/// Segments as files of one folder: `3.open` while it is written, then `3.closed`.
struct Files {
    folder: PathBuf,
    open: BTreeMap<SegmentId, File>,
}

impl Files {
    fn new(folder: &Path) -> io::Result<Self> {
        fs::create_dir_all(folder)?;
        Ok(Self {
            folder: folder.into(),
            open: BTreeMap::new(),
        })
    }

    fn path(&self, segment: SegmentId, state: &str) -> PathBuf {
        self.folder.join(format!("{}.{state}", segment.0))
    }

    /// Names of files are durable when their folder is.
    fn sync_names(&self) -> io::Result<()> {
        File::open(&self.folder)?.sync_all()
    }

    fn put(&mut self, write: &SinkWrite<'_>) -> io::Result<()> {
        if !self.open.contains_key(&write.segment) {
            let file = File::create(self.path(write.segment, "open"))?;
            self.sync_names()?;
            self.open.insert(write.segment, file);
        }
        let Some(file) = self.open.get(&write.segment) else {
            return Ok(());
        };
        let end = u64::from(write.offset) + write.bytes.len() as u64;
        file.write_all_at(write.bytes, (LENGTH + write.offset as usize) as u64)?;
        if write.certified {
            // First the bytes, then the length that says they count.
            file.sync_data()?;
            file.write_all_at(&end.to_le_bytes(), 0)?;
            file.sync_data()?;
        }
        Ok(())
    }
}

fn failed(error: io::Error) -> SinkError {
    SinkError(error.to_string())
}

impl ReplicaSink for Files {
    fn write(&mut self, write: &SinkWrite<'_>) -> Result<SinkAnswer, SinkError> {
        self.put(write).map_err(failed)?;
        Ok(SinkAnswer::Taken)
    }

    fn close(&mut self, _log: LogId, segment: SegmentId) -> Result<(), SinkError> {
        self.open.remove(&segment);
        fs::rename(self.path(segment, "open"), self.path(segment, "closed")).map_err(failed)?;
        self.sync_names().map_err(failed)
    }

    fn free(&mut self, _log: LogId, segment: SegmentId) -> Result<(), SinkError> {
        self.open.remove(&segment);
        for state in ["open", "closed"] {
            match fs::remove_file(self.path(segment, state)) {
                Ok(()) => {}
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(error) => return Err(failed(error)),
            }
        }
        Ok(())
    }
}

/// What a former run left in this folder; `None` when there is nothing.
fn former(folder: &Path) -> Result<Option<Kept>, Box<dyn Error>> {
    let mut segments = Vec::new();
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        let bytes = fs::read(&path)?;
        // A file without its length was made and never written.
        let Some((length, segment)) = bytes.split_first_chunk::<LENGTH>() else {
            continue;
        };
        let length = u64::from_le_bytes(*length) as usize;
        segments.push(KeptSegment {
            bytes: segment[..length.min(segment.len())].to_vec(),
            closed: path.extension().is_some_and(|state| state == "closed"),
        });
    }
    match segments.is_empty() {
        true => Ok(None),
        false => Ok(Some(read_back(&segments)?)),
    }
}

fn main() -> Result<(), Box<dyn Error>> {
    let folder = std::env::args().nth(1).ok_or("give a folder")?;
    let folder = Path::new(&folder);
    fs::create_dir_all(folder)?;
    // Each life has a folder of its own, named by its number. The one before counts until
    // everything is in the new one; a later one is that of a start which did not get so far.
    let lives = fs::read_dir(folder)?
        .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse::<u64>().ok());
    let last = lives.min();
    let kept = match last {
        Some(life) => former(&folder.join(life.to_string()))?,
        None => None,
    };
    let this = folder.join((last.unwrap_or(0) + 1).to_string());
    if this.exists() {
        fs::remove_dir_all(&this)?;
    }
    let mut builder = Store::builder()
        .memory(Size::mib(64))
        .sink(Files::new(&this)?);
    if let Some(kept) = &kept {
        builder = builder.first_version(kept.next_version);
    }
    let store = builder.build()?;
    let table = store.create_table("counters")?;
    for object in kept.iter().flat_map(|kept| &kept.objects) {
        table.put_for(&object.key, &object.value, object.lifetime())?;
    }
    let starts = table.increment(b"starts", 1)?;
    store.sync()?;
    if let Some(life) = last {
        // Gone at once under its name, whenever the program ends.
        let old = folder.join("old");
        fs::rename(folder.join(life.to_string()), &old)?;
        fs::remove_dir_all(old)?;
    }
    println!("start number {starts}");
    Ok(())
}
