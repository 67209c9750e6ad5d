//! What is on the disk of one process: names, contents, and what a power loss would leave of them.
//!
//! A file's content is what a reader sees (the page cache). Beside it stand the writes that are
//! not yet certain to survive, each with the bytes it replaced, in order. A power loss undoes all
//! of them and does again those (or those 512-byte sectors of them) that the seed chooses.
//! Names work the same way: a list of changes per directory that no `sync_directory` has covered;
//! a power loss keeps some first part of each directory's list. A rename within one directory is
//! one change; one between directories is two, so both directories have to be synced.

use crate::executor::locked;
use crate::random::Stream;
use bytes::Bytes;
use pluvio_env::{DiskError, OpenMode};
use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

/// What a disk writes in one piece.
pub(crate) const SECTOR: u64 = 512;
/// The largest file. A larger offset is a mistake of the caller, not a reason to take all memory.
const FILE_MAX: u64 = 1 << 32;
/// Changes to directories that are not durable. File systems write the oldest ones by themselves
/// before long; who never syncs must not fill memory with files that were removed.
const CHANGES_MAX: usize = 128;

#[derive(Clone, Copy, PartialEq, Eq)]
enum Certainty {
    /// The next sync makes it durable.
    Pending,
    /// A failed sync has forgotten it: no later sync covers it.
    Forgotten,
    /// Durable, but listed because an earlier write is not.
    Durable,
}

/// A write that a power loss may undo.
struct Write {
    number: u64,
    offset: u64,
    data: Bytes,
    /// What was there before, as far as the file reached.
    replaced: Vec<u8>,
    length_before: u64,
    certainty: Certainty,
}

/// The content of one file.
pub(crate) struct Inode {
    content: Vec<u8>,
    writes: VecDeque<Write>,
    write_last: u64,
    /// Bytes used on the disk that this file is on.
    used: Arc<AtomicU64>,
}

pub(crate) type SharedInode = Arc<Mutex<Inode>>;

fn put(content: &mut Vec<u8>, offset: u64, data: &[u8]) {
    let (start, end) = (offset as usize, offset as usize + data.len());
    if content.len() < end {
        content.resize(end, 0);
    }
    content[start..end].copy_from_slice(data);
}

impl Inode {
    fn new(used: Arc<AtomicU64>) -> SharedInode {
        Arc::new(Mutex::new(Self {
            content: Vec::new(),
            writes: VecDeque::new(),
            write_last: 0,
            used,
        }))
    }

    pub(crate) fn len(&self) -> u64 {
        self.content.len() as u64
    }

    pub(crate) fn content(&self) -> &[u8] {
        &self.content
    }

    pub(crate) fn read(&self, offset: u64, length: usize) -> Bytes {
        let start = offset.min(self.len()) as usize;
        let end = start.saturating_add(length).min(self.content.len());
        Bytes::copy_from_slice(&self.content[start..end])
    }

    /// Writes as much of `data` as `capacity` allows; an error when that is not all.
    pub(crate) fn write(
        &mut self,
        path: &str,
        offset: u64,
        data: &Bytes,
        capacity: Option<u64>,
    ) -> Result<(), DiskError> {
        let end = offset.saturating_add(data.len() as u64);
        if end > FILE_MAX {
            return Err(DiskError::Other {
                path: path.into(),
                message: format!("a simulated file ends at {FILE_MAX} bytes, not {end}"),
            });
        }
        let growth = end.saturating_sub(self.len());
        let used = self.used.load(Ordering::Relaxed);
        let room = capacity.map_or(u64::MAX, |capacity| capacity.saturating_sub(used));
        if growth > room {
            let possible = (self.len() + room).saturating_sub(offset) as usize;
            if possible > 0 && possible < data.len() {
                self.apply(offset, data.slice(..possible));
            }
            return Err(DiskError::Full { path: path.into() });
        }
        self.apply(offset, data.clone());
        Ok(())
    }

    /// Writes `data` into the page cache.
    pub(crate) fn apply(&mut self, offset: u64, data: Bytes) {
        let length_before = self.len();
        self.write_last += 1;
        let replaced = self.read(offset, data.len()).to_vec();
        put(&mut self.content, offset, &data);
        let growth = self.len() - length_before;
        self.used.fetch_add(growth, Ordering::Relaxed);
        self.writes.push_back(Write {
            number: self.write_last,
            offset,
            data,
            replaced,
            length_before,
            certainty: Certainty::Pending,
        });
    }

    /// The number of the last write so far: what a sync that is called now has to cover.
    pub(crate) fn write_last(&self) -> u64 {
        self.write_last
    }

    /// Makes the writes up to number `upto` durable.
    pub(crate) fn sync(&mut self, upto: u64) {
        self.mark(upto, Certainty::Durable);
        while let Some(write) = self.writes.front() {
            if write.certainty != Certainty::Durable {
                break;
            }
            self.writes.pop_front();
        }
    }

    /// A sync failed and the system forgets that these writes are not durable.
    pub(crate) fn forget(&mut self, upto: u64) {
        self.mark(upto, Certainty::Forgotten);
    }

    fn mark(&mut self, upto: u64, certainty: Certainty) {
        for write in self
            .writes
            .iter_mut()
            .take_while(|write| write.number <= upto)
        {
            if write.certainty == Certainty::Pending {
                write.certainty = certainty;
            }
        }
    }

    /// Turns one bit over, in what readers see and in what is durable.
    pub(crate) fn flip_bit(&mut self, bit: u64) -> bool {
        let Some(byte) = self.content.get_mut((bit / 8) as usize) else {
            return false;
        };
        *byte ^= 1 << (bit % 8);
        true
    }

    /// The power fails: what is not durable survives as the seed wants.
    fn power_loss(&mut self, random: &mut Stream) {
        let writes = std::mem::take(&mut self.writes);
        let length_before = self.len();
        for write in writes.iter().rev() {
            self.content.truncate(write.length_before as usize);
            let start = write.offset as usize;
            if !write.replaced.is_empty() {
                self.content[start..start + write.replaced.len()].copy_from_slice(&write.replaced);
            }
        }
        // Half of the files as a system leaves them that had time to write some of it: the newest
        // writes are missing, no others.
        let oldest = (random.below(2) == 0).then(|| random.below(writes.len() as u64 + 1));
        for (number, write) in (0u64..).zip(&writes) {
            if write.certainty == Certainty::Durable || oldest.is_some_and(|kept| number < kept) {
                put(&mut self.content, write.offset, &write.data);
                continue;
            }
            if oldest.is_some() {
                continue;
            }
            match random.below(3) {
                0 => {}
                1 => put(&mut self.content, write.offset, &write.data),
                _ => self.tear(write, random),
            }
        }
        let lost = length_before.saturating_sub(self.len());
        self.used.fetch_sub(lost, Ordering::Relaxed);
    }

    /// Some sectors of `write` reach the disk. The file may have its new length, with zeros.
    fn tear(&mut self, write: &Write, random: &mut Stream) {
        let end = write.offset + write.data.len() as u64;
        if random.below(2) == 0 && self.len() < end {
            self.content.resize(end as usize, 0);
        }
        let mut at = write.offset;
        while at < end {
            let next = ((at / SECTOR + 1) * SECTOR).min(end);
            if random.below(2) == 0 {
                let piece = (at - write.offset) as usize..(next - write.offset) as usize;
                put(&mut self.content, at, &write.data[piece]);
            }
            at = next;
        }
    }
}

impl Drop for Inode {
    fn drop(&mut self) {
        self.used.fetch_sub(self.len(), Ordering::Relaxed);
    }
}

/// A change to a directory that a power loss may undo.
struct Change {
    directory: String,
    number: u64,
    /// New files of names; `None` where a name goes away.
    names: Vec<(String, Option<SharedInode>)>,
}

/// One disk.
#[derive(Default)]
pub(crate) struct Storage {
    names: BTreeMap<String, SharedInode>,
    durable: BTreeMap<String, SharedInode>,
    changes: VecDeque<Change>,
    change_last: u64,
    used: Arc<AtomicU64>,
    power_losses: u64,
}

fn directory_of(path: &str) -> &str {
    path.rsplit_once('/').map_or("", |(directory, _)| directory)
}

/// `""` is the data directory itself.
fn clean(directory: &str) -> &str {
    match directory.trim_end_matches('/') {
        "." => "",
        other => other,
    }
}

fn set(names: &mut BTreeMap<String, SharedInode>, name: &str, inode: Option<&SharedInode>) {
    match inode {
        Some(inode) => {
            names.insert(name.into(), Arc::clone(inode));
        }
        None => {
            names.remove(name);
        }
    }
}

impl Storage {
    pub(crate) fn get(&self, path: &str) -> Option<&SharedInode> {
        self.names.get(path)
    }

    /// All paths, sorted.
    pub(crate) fn paths(&self) -> impl Iterator<Item = &String> {
        self.names.keys()
    }

    /// Bytes of all files.
    pub(crate) fn used(&self) -> u64 {
        self.used.load(Ordering::Relaxed)
    }

    fn change(&mut self, directory: &str, names: Vec<(String, Option<SharedInode>)>) {
        for (name, inode) in &names {
            set(&mut self.names, name, inode.as_ref());
        }
        self.change_last += 1;
        self.changes.push_back(Change {
            directory: directory.into(),
            number: self.change_last,
            names,
        });
        if self.changes.len() > CHANGES_MAX {
            let oldest = self.changes.pop_front();
            for (name, inode) in oldest.iter().flat_map(|change| &change.names) {
                set(&mut self.durable, name, inode.as_ref());
            }
        }
    }

    pub(crate) fn open(&mut self, path: &str, mode: OpenMode) -> Result<SharedInode, DiskError> {
        match (self.names.get(path), mode) {
            (Some(inode), OpenMode::Existing | OpenMode::Create) => Ok(Arc::clone(inode)),
            (Some(_), OpenMode::New) => Err(DiskError::Other {
                path: path.into(),
                message: "the file exists already".into(),
            }),
            (None, OpenMode::Existing) => Err(DiskError::NotFound { path: path.into() }),
            (None, OpenMode::New | OpenMode::Create) => {
                let inode = Inode::new(Arc::clone(&self.used));
                let name = (path.to_string(), Some(Arc::clone(&inode)));
                self.change(directory_of(path), vec![name]);
                Ok(inode)
            }
        }
    }

    pub(crate) fn remove(&mut self, path: &str) {
        if self.names.contains_key(path) {
            self.change(directory_of(path), vec![(path.into(), None)]);
        }
    }

    pub(crate) fn rename(&mut self, from: &str, to: &str) -> Result<(), DiskError> {
        let Some(inode) = self.names.get(from).cloned() else {
            return Err(DiskError::NotFound { path: from.into() });
        };
        if from == to {
            return Ok(());
        }
        let gone = (from.to_string(), None);
        let there = (to.to_string(), Some(inode));
        if directory_of(from) == directory_of(to) {
            self.change(directory_of(to), vec![gone, there]);
        } else {
            self.change(directory_of(to), vec![there]);
            self.change(directory_of(from), vec![gone]);
        }
        Ok(())
    }

    pub(crate) fn list(&self, directory: &str) -> Vec<String> {
        let directory = clean(directory);
        self.names
            .keys()
            .filter(|path| directory_of(path) == directory)
            .map(|path| path.rsplit('/').next().unwrap_or(path).to_string())
            .collect()
    }

    /// Which start of the machine this is.
    pub(crate) fn boot(&self) -> u64 {
        1 + self.power_losses
    }

    pub(crate) fn change_last(&self) -> u64 {
        self.change_last
    }

    /// Makes the changes in `directory` up to number `upto` durable.
    pub(crate) fn sync_directory(&mut self, directory: &str, upto: u64) {
        let directory = clean(directory);
        let durable = &mut self.durable;
        self.changes.retain(|change| {
            let covered = change.directory == directory && change.number <= upto;
            if covered {
                for (name, inode) in &change.names {
                    set(durable, name, inode.as_ref());
                }
            }
            !covered
        });
    }

    /// The power fails: what is not durable survives as the seed wants.
    pub(crate) fn power_loss(&mut self, random: &mut Stream) {
        self.power_losses += 1;
        let mut counts: BTreeMap<String, u64> = BTreeMap::new();
        for change in &self.changes {
            *counts.entry(change.directory.clone()).or_default() += 1;
        }
        for count in counts.values_mut() {
            *count = random.below(*count + 1);
        }
        for change in std::mem::take(&mut self.changes) {
            let kept = counts.get_mut(&change.directory).expect("counted above");
            if *kept > 0 {
                *kept -= 1;
                for (name, inode) in &change.names {
                    set(&mut self.durable, name, inode.as_ref());
                }
            }
        }
        self.names = self.durable.clone();
        for inode in self.names.values() {
            locked(inode).power_loss(random);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn random(seed: u64) -> Stream {
        Stream::new(seed, "test")
    }

    fn create(storage: &mut Storage, path: &str) -> SharedInode {
        storage.open(path, OpenMode::New).unwrap()
    }

    #[test]
    fn synced_writes_survive_every_power_loss_and_others_tear_by_sector() {
        let (mut torn, mut whole, mut gone) = (0, 0, 0);
        for seed in 0..300 {
            let mut storage = Storage::default();
            let inode = create(&mut storage, "d/a");
            storage.sync_directory("d", storage.change_last());
            {
                let mut inode = locked(&inode);
                inode.apply(0, Bytes::from(vec![1; 4096]));
                let upto = inode.write_last();
                inode.apply(1000, Bytes::from(vec![2; 2000]));
                inode.sync(upto);
            }
            storage.power_loss(&mut random(seed));
            let inode = locked(storage.get("d/a").unwrap());
            let content = inode.content();
            assert_eq!(content.len(), 4096);
            assert!(content[..1000].iter().all(|byte| *byte == 1));
            assert!(content[3000..].iter().all(|byte| *byte == 1));
            for sector in content.chunks(512) {
                let area = sector.iter().filter(|byte| **byte == 2).count();
                // A sector of the write is there or not; its ends lie inside sectors.
                assert!([0, 24, 512, 440].contains(&area), "{area}");
            }
            match content.iter().filter(|byte| **byte == 2).count() {
                0 => gone += 1,
                2000 => whole += 1,
                _ => torn += 1,
            }
        }
        assert!(
            torn > 50 && whole > 50 && gone > 50,
            "{torn} {whole} {gone}"
        );
    }

    #[test]
    fn a_write_forgotten_by_a_failed_sync_is_not_saved_by_the_next_one() {
        let mut lost = 0;
        for seed in 0..100 {
            let mut storage = Storage::default();
            let inode = create(&mut storage, "a");
            storage.sync_directory("", storage.change_last());
            {
                let mut inode = locked(&inode);
                inode.apply(0, Bytes::from_static(b"first "));
                let upto = inode.write_last();
                inode.forget(upto);
                inode.apply(3, Bytes::from_static(b"second"));
                let upto = inode.write_last();
                inode.sync(upto);
            }
            storage.power_loss(&mut random(seed));
            let inode = locked(storage.get("a").unwrap());
            assert_eq!(&inode.content()[3..], b"second");
            lost += u32::from(&inode.content()[..3] != b"fir");
        }
        assert!(lost > 20 && lost < 80, "{lost}");
    }

    #[test]
    fn files_removed_long_ago_take_no_memory_though_nothing_is_synced() {
        let mut storage = Storage::default();
        for round in 0..CHANGES_MAX {
            let path = format!("d/{round}");
            locked(&create(&mut storage, &path)).apply(0, Bytes::from_static(b"byte"));
            storage.remove(&path);
        }
        assert_eq!(storage.used() as usize, CHANGES_MAX / 2 * 4);
        storage.power_loss(&mut random(1));
        assert!(
            storage.paths().count() <= 1,
            "each was removed before the next"
        );
    }

    #[test]
    fn directory_changes_without_sync_survive_as_a_first_part() {
        let mut seen = [0; 3];
        for seed in 0..100 {
            let mut storage = Storage::default();
            let old = create(&mut storage, "map");
            locked(&old).apply(0, Bytes::from_static(b"old"));
            locked(&old).sync(1);
            storage.sync_directory("", storage.change_last());
            let new = create(&mut storage, "map.new");
            locked(&new).apply(0, Bytes::from_static(b"new"));
            locked(&new).sync(1);
            storage.rename("map.new", "map").unwrap();
            storage.power_loss(&mut random(seed));
            let content = locked(storage.get("map").unwrap()).content().to_vec();
            let is_new = content == b"new";
            assert!(is_new || content == b"old");
            let both = storage.get("map.new").is_some();
            assert!(!(is_new && both), "the rename is one step");
            seen[usize::from(is_new) * 2 + usize::from(both)] += 1;
        }
        assert!(seen.iter().all(|count| *count > 10), "{seen:?}");
    }

    #[test]
    fn a_full_disk_takes_a_part_and_removal_makes_room() {
        let mut storage = Storage::default();
        let inode = create(&mut storage, "a");
        let data = Bytes::from(vec![7; 1000]);
        assert!(locked(&inode).write("a", 0, &data, Some(1500)).is_ok());
        let full = locked(&inode).write("a", 1000, &data, Some(1500));
        assert_eq!(full, Err(DiskError::Full { path: "a".into() }));
        assert_eq!(storage.used(), 1500);
        storage.remove("a");
        storage.sync_directory("", storage.change_last());
        assert_eq!(storage.used(), 1500, "an open handle keeps the bytes");
        drop(inode);
        assert_eq!(storage.used(), 0);
    }
}
