//! Removing archives, and packs that no manifest names.

use crate::claims::{Claim, Purpose, Ticks, unique};
use crate::directory::UNFINISHED;
use crate::error::ArchiveError;
use crate::ground::{Listed, Room};
use crate::manifest::Manifest;
use crate::place::{MANIFEST_SUFFIX, PACK_SUFFIX, Place};
use core::time::Duration;
use std::collections::{BTreeMap, BTreeSet};
use std::num::NonZeroUsize;

/// A file that belongs to no archive stays so long: the backup that was cut off, and is run again,
/// needs it.
pub const KEPT_FOR: Duration = Duration::from_secs(24 * 3600);

/// What was removed, or would be.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Pruned {
    /// Archives that stay.
    pub kept: usize,
    /// Archives that go, the oldest first.
    pub archives: Vec<String>,
    /// Packs that go, and what writes that were cut off left behind.
    pub files: u64,
    /// Their bytes.
    pub bytes: u64,
}

impl Place {
    /// Removes all archives but the newest `keep` of each cluster. Then it removes the packs that
    /// no remaining one names and that are older than [`KEPT_FOR`] (ARCHIVE-5). With `dry_run` it
    /// only looks.
    /// `ticks` is a clock that never goes back.
    ///
    /// # Errors
    /// - There are no archives; the place cannot be written.
    /// - A manifest that stays cannot be read: its packs are not known. Nothing was removed.
    /// - [`ArchiveError::Busy`] while a backup ends. Nothing was removed.
    pub fn prune(
        &self,
        keep: NonZeroUsize,
        dry_run: bool,
        ticks: Ticks<'_>,
    ) -> Result<Pruned, ArchiveError> {
        // Where there is nothing to prune, nothing is made.
        self.ids()?;
        self.prepare()?;
        let mut claim = Claim::make(self.ground(), ticks, Purpose::Prune, &unique(ticks))?;
        let found = self.found()?;
        let (kept, gone) = chosen(found.ids, keep);
        let mut named = BTreeSet::new();
        for id in &kept {
            named.extend(packs_of(self.manifest(Some(id))?));
        }
        // Somebody may have given a manifest another name. Its packs stay.
        for file in found.foreign.iter().filter(|file| !file.is_directory) {
            match self.read_manifest(&file.name) {
                Err(ArchiveError::Foreign(_)) => {}
                read => named.extend(packs_of(read?)),
            }
        }
        let mut pruned = Pruned {
            kept: kept.len(),
            archives: gone,
            ..Pruned::default()
        };
        // Their manifests first: an archive is whole or not there (ARCHIVE-1).
        if !dry_run && !pruned.archives.is_empty() {
            for id in &pruned.archives {
                claim.hold()?;
                let file = format!("{id}{MANIFEST_SUFFIX}");
                self.ground().remove((Room::Archives, &file))?;
            }
            self.ground().settle(Room::Archives)?;
        }
        let kept_ms = u64::try_from(KEPT_FOR.as_millis()).unwrap_or(u64::MAX);
        for room in [Room::Packs, Room::Archives] {
            for file in self.ground().list(room)? {
                let is_old = claim.now_ms.saturating_sub(file.written_ms) >= kept_ms;
                if is_old && is_nobodys(room, &file, &named) {
                    pruned.files += 1;
                    pruned.bytes += file.bytes;
                    if !dry_run {
                        claim.hold()?;
                        self.ground().remove((room, &file.name))?;
                    }
                }
            }
        }
        Ok(pruned)
    }
}

/// The names of the packs of an archive.
fn packs_of(manifest: Manifest) -> impl Iterator<Item = String> {
    let packs = manifest.tables.into_iter().flat_map(|table| table.packs);
    packs.map(|pack| pack.sha256)
}

/// Whether no archive needs the file, and a backup has made it.
fn is_nobodys(room: Room, file: &Listed, named: &BTreeSet<String>) -> bool {
    if file.is_directory {
        return false;
    }
    if file.name.starts_with(UNFINISHED) {
        return true;
    }
    let pack = file.name.strip_suffix(PACK_SUFFIX);
    room == Room::Packs && pack.is_some_and(|sha256| sha256.len() == 64 && !named.contains(sha256))
}

/// The archives that stay, and those that go.
fn chosen(ids: Vec<String>, keep: NonZeroUsize) -> (Vec<String>, Vec<String>) {
    let mut of_cluster: BTreeMap<String, usize> = BTreeMap::new();
    let (mut kept, mut gone) = (Vec::new(), Vec::new());
    // The newest first.
    for id in ids.into_iter().rev() {
        let cluster = id.split_once('-').map_or("", |(_, cluster)| cluster);
        let count = of_cluster.entry(cluster.to_owned()).or_default();
        *count += 1;
        match *count <= keep.get() {
            true => kept.push(id),
            false => gone.push(id),
        }
    }
    gone.reverse();
    (kept, gone)
}
