//! Packs of tables at one moment: what was read, with what has changed since put into it.
//!
//! Objects of a piece come in the order of their ranks, and go to packs in that order. What has
//! changed is kept in memory. When that is much, and at the end, the packs that have such keys are
//! read and written anew. So an archive of one moment is packs like any other.

use super::archiver::{Archiver, on_disk};
use super::each_object_helps;
use pluvio_archive::{ArchivedObject, ArchivedTable, PackBuilder, PackRef, records};
use pluvio_client::{ChangedTo, EnumeratedObject, Part, Table};
use pluvio_console::failure::Failure;
use pluvio_console::output::say;
use pluvio_units::{HashRange, KeyHash, ObjectVersion, Rank, TableId};
use std::collections::BTreeMap;
use std::time::Duration;

/// Bytes of changed objects that are kept in memory.
const CHANGED_BYTES_MAX: usize = 64 << 20;
/// What an entry costs besides key and value.
const ENTRY_BYTES: usize = 100;
/// The longest sleep of a backup with a rate: servers are asked for changes in between.
const SLEEP_MAX: Duration = Duration::from_secs(1);

/// A changed key, by its place in packs, and what it has become.
type Changed = BTreeMap<(Rank, Vec<u8>), Option<ChangedTo>>;

/// A pack of a piece.
#[derive(Clone)]
struct Kept {
    pack: PackRef,
    /// Keys and values.
    bytes: u64,
    newest: ObjectVersion,
    /// Of its last object.
    last: Rank,
}

/// A pack in the making.
#[derive(Default)]
struct Making {
    builder: PackBuilder,
    bytes: u64,
    newest: ObjectVersion,
    last: Rank,
}

/// A piece of a table.
#[derive(Default)]
struct Piece {
    packs: Vec<Kept>,
    making: Making,
    /// Where reading goes on; `None`: all of it was read.
    next: Option<Rank>,
}

struct OfTable {
    table: Table,
    pieces: BTreeMap<KeyHash, (HashRange, Piece)>,
    changed: Changed,
}

impl OfTable {
    fn rank(&self, key: &[u8]) -> Rank {
        self.table.hash_kind().rank(self.table.hash(key))
    }

    /// The piece that has this key, if it is being read.
    fn piece_of(&self, key: &[u8]) -> Option<&Piece> {
        let hash = self.table.hash(key);
        let (_, (range, piece)) = self.pieces.range(..=hash).next_back()?;
        range.contains(hash).then_some(piece)
    }
}

/// The parts of an archive of one moment, and how long changes stood still for it.
pub(super) struct AtOneMoment {
    pub(super) tables: Vec<ArchivedTable>,
    pub(super) held: Duration,
}

fn size_of_change(key: &[u8], now: Option<&ChangedTo>) -> usize {
    ENTRY_BYTES + key.len() + now.map_or(0, |now| now.value.len())
}

/// The tables that an archive is made of.
struct Packing<'a, 's> {
    archiver: &'a mut Archiver<'s>,
    tables: BTreeMap<TableId, OfTable>,
    changed_bytes: usize,
    /// Whether those that were dropped may be left out.
    all: bool,
}

/// Reads tables at one moment, and writes packs.
///
/// # Errors
/// There was no such moment, or a disk or a server failed.
pub(super) async fn read(
    archiver: &mut Archiver<'_>,
    tables: Vec<Table>,
    all: bool,
) -> Result<AtOneMoment, Failure> {
    let client = archiver.session.client.clone();
    let mut moment = client.one_moment(tables, all);
    let mut packing = Packing {
        archiver,
        tables: BTreeMap::new(),
        changed_bytes: 0,
        all,
    };
    let read = packing.take_all(&mut moment).await;
    if read.is_err() {
        moment.end().await;
    }
    let held = read?;
    packing.fold(None).await?;
    let tables = packing.tables.into_values().map(archived).collect();
    Ok(AtOneMoment { tables, held })
}

fn archived(of: OfTable) -> ArchivedTable {
    let mut archived = ArchivedTable {
        name: of.table.name().to_owned(),
        hash: of.table.hash_kind().into(),
        durability: None,
        objects: 0,
        bytes: 0,
        newest_version: ObjectVersion(0),
        packs: Vec::new(),
    };
    for kept in of.pieces.into_values().flat_map(|(_, piece)| piece.packs) {
        archived.objects += kept.pack.objects;
        archived.bytes += kept.bytes;
        archived.newest_version = archived.newest_version.max(kept.newest);
        archived.packs.push(kept.pack);
    }
    archived
}

impl Packing<'_, '_> {
    async fn take_all(
        &mut self,
        moment: &mut pluvio_client::OneMoment,
    ) -> Result<Duration, Failure> {
        let mut has_waited = false;
        loop {
            match moment.next().await.map_err(each_object_helps)? {
                Part::Table(table) => {
                    let of = OfTable {
                        table: table.clone(),
                        pieces: BTreeMap::new(),
                        changed: Changed::new(),
                    };
                    self.tables.insert(table.id(), of);
                }
                Part::Dropped(table) => self.dropped(table)?,
                Part::Objects {
                    table,
                    range,
                    objects,
                    next,
                } => {
                    if core::mem::take(&mut has_waited) {
                        self.archiver.begin_again();
                    }
                    self.take(table, range, (&objects, next)).await?;
                    self.wait(moment).await?;
                }
                Part::Void { table, range } => self.void(table, range),
                Part::Changed(objects) => {
                    for object in objects {
                        self.take_change(object.table, object.key.to_vec(), object.now);
                    }
                    if self.changed_bytes > CHANGED_BYTES_MAX {
                        self.fold(Some(moment)).await?;
                    }
                }
                Part::Waits => {
                    say(format_args!("another backup is at work: waiting for it"));
                    has_waited = true;
                }
                Part::Done(held) => return Ok(held.in_all),
            }
        }
    }

    fn dropped(&mut self, table: TableId) -> Result<(), Failure> {
        let Some(of) = self.tables.remove(&table) else {
            return Ok(());
        };
        self.count_changed();
        let name = of.table.name();
        match self.all {
            true => {
                say(format_args!(
                    "table {name:?} was dropped meanwhile, and is left out"
                ));
                Ok(())
            }
            false => Err(Failure::new(format!(
                "table {name:?} was dropped meanwhile"
            ))),
        }
    }

    /// Keeps below the rate.
    async fn wait(&mut self, moment: &mut pluvio_client::OneMoment) -> Result<(), Failure> {
        let clock = &self.archiver.session.env.clock;
        loop {
            let wait = self.archiver.pace.wait(clock.now()).min(SLEEP_MAX);
            if wait.is_zero() {
                return Ok(());
            }
            clock.sleep(wait).await;
            moment.tend().await.map_err(each_object_helps)?;
        }
    }

    async fn take(
        &mut self,
        table: TableId,
        range: HashRange,
        (objects, next): (&[EnumeratedObject], Option<Rank>),
    ) -> Result<(), Failure> {
        let Some(of) = self.tables.get_mut(&table) else {
            return Ok(());
        };
        let (kind, table) = (of.table.hash_kind(), of.table.clone());
        let new = || (range, Piece::default());
        let (_, piece) = of.pieces.entry(range.first).or_insert_with(new);
        for object in objects {
            let place = kind.rank(table.hash(&object.key));
            let object = ArchivedObject {
                key: &object.key,
                value: &object.value,
                version: object.version,
                deadline: object.deadline,
            };
            self.archiver.pace.read += (object.key.len() + object.value.len()) as u64;
            let making = &mut piece.making;
            add(self.archiver, making, &mut piece.packs, (place, &object)).await?;
        }
        piece.next = next;
        if next.is_none() {
            end(self.archiver, &mut piece.making, &mut piece.packs).await?;
        }
        self.archiver.progress.inc(objects.len() as u64);
        Ok(())
    }

    fn take_change(&mut self, table: TableId, key: Vec<u8>, now: Option<ChangedTo>) {
        let Some(of) = self.tables.get_mut(&table) else {
            return;
        };
        let rank = of.rank(&key);
        // A later read gives it as new, or newer.
        let is_read = |piece: &Piece| piece.next.is_none_or(|next| rank < next);
        if !of.piece_of(&key).is_some_and(is_read) {
            return;
        }
        let size = size_of_change(&key, now.as_ref());
        let at = (rank, key);
        let earlier = of
            .changed
            .get(&at)
            .map(|old| size_of_change(&at.1, old.as_ref()));
        self.changed_bytes = self.changed_bytes.saturating_sub(earlier.unwrap_or(0)) + size;
        of.changed.insert(at, now);
    }

    fn void(&mut self, table: TableId, range: HashRange) {
        if let Some(of) = self.tables.get_mut(&table) {
            of.pieces.remove(&range.first);
            let table = of.table.clone();
            let is_outside = |key: &[u8]| !range.contains(table.hash(key));
            of.changed.retain(|(_, key), _| is_outside(key));
        }
        self.count_changed();
    }

    fn count_changed(&mut self) {
        let all = self.tables.values().flat_map(|of| &of.changed);
        let sizes = all.map(|((_, key), now)| size_of_change(key, now.as_ref()));
        self.changed_bytes = sizes.sum();
    }

    /// Puts what has changed into the packs.
    async fn fold(
        &mut self,
        mut moment: Option<&mut pluvio_client::OneMoment>,
    ) -> Result<(), Failure> {
        for of in self.tables.values_mut() {
            let mut by_piece: BTreeMap<KeyHash, Changed> = BTreeMap::new();
            let mut left = Changed::new();
            for (at, now) in core::mem::take(&mut of.changed) {
                let hash = of.table.hash(&at.1);
                let found = of.pieces.range(..=hash).next_back();
                if let Some((first, (_, piece))) = found {
                    let last = piece.packs.last().map(|kept| kept.last);
                    // The rest of what was read is not in a pack yet.
                    if piece.next.is_none() || last.is_some_and(|last| at.0 <= last) {
                        by_piece.entry(*first).or_default().insert(at, now);
                    } else {
                        left.insert(at, now);
                    }
                }
            }
            of.changed = left;
            for (first, mut changed) in by_piece {
                let Some((_, piece)) = of.pieces.get_mut(&first) else {
                    continue;
                };
                let old = core::mem::take(&mut piece.packs);
                let count = old.len();
                let mut making = Making::default();
                for (number, kept) in old.into_iter().enumerate() {
                    let is_last = number + 1 == count && piece.next.is_none();
                    let behind = match is_last {
                        true => Changed::new(),
                        false => split_behind(&mut changed, kept.last),
                    };
                    if changed.is_empty() {
                        piece.packs.push(kept);
                    } else {
                        let packs = &mut piece.packs;
                        merge(self.archiver, (&of.table, &kept), changed, packs).await?;
                    }
                    changed = behind;
                    if let Some(moment) = &mut moment {
                        moment.tend().await.map_err(each_object_helps)?;
                    }
                }
                // Of a piece that had no packs.
                for ((rank, key), now) in changed {
                    let packs = &mut piece.packs;
                    add_changed(self.archiver, &mut making, packs, (rank, &key, now)).await?;
                }
                end(self.archiver, &mut making, &mut piece.packs).await?;
            }
        }
        self.count_changed();
        Ok(())
    }
}

/// Takes out what lies behind a rank.
fn split_behind(changed: &mut Changed, last: Rank) -> Changed {
    match last.0.checked_add(1) {
        Some(next) => changed.split_off(&(Rank(next), Vec::new())),
        None => Changed::new(),
    }
}

/// Writes a pack anew, with what has changed in it.
async fn merge(
    archiver: &mut Archiver<'_>,
    (table, kept): (&Table, &Kept),
    mut changed: Changed,
    packs: &mut Vec<Kept>,
) -> Result<(), Failure> {
    let (place, pack) = (archiver.place.clone(), kept.pack.clone());
    let bytes = on_disk(&archiver.session.env, move || place.pack(&pack)).await?;
    let path = archiver.place.path_of(&kept.pack);
    let mut making = Making::default();
    let kind = table.hash_kind();
    for object in records(&path, &bytes).map_err(super::unusable)? {
        let object = object.map_err(super::unusable)?;
        let rank = kind.rank(table.hash(object.key));
        while let Some(first) = changed.first_entry()
            && first.key().0 < rank
        {
            let ((rank, key), now) = first.remove_entry();
            add_changed(archiver, &mut making, packs, (rank, &key, now)).await?;
        }
        match changed.remove(&(rank, object.key.to_vec())) {
            Some(now) => {
                add_changed(archiver, &mut making, packs, (rank, object.key, now)).await?;
            }
            None => add(archiver, &mut making, packs, (rank, &object)).await?,
        }
    }
    for ((rank, key), now) in changed {
        add_changed(archiver, &mut making, packs, (rank, &key, now)).await?;
    }
    end(archiver, &mut making, packs).await
}

async fn add_changed(
    archiver: &mut Archiver<'_>,
    making: &mut Making,
    packs: &mut Vec<Kept>,
    (rank, key, now): (Rank, &[u8], Option<ChangedTo>),
) -> Result<(), Failure> {
    let Some(now) = now else {
        return Ok(());
    };
    let object = ArchivedObject {
        key,
        value: &now.value,
        version: now.version,
        deadline: now.deadline,
    };
    add(archiver, making, packs, (rank, &object)).await
}

/// Adds an object. Objects of one rank go to one pack.
async fn add(
    archiver: &mut Archiver<'_>,
    making: &mut Making,
    packs: &mut Vec<Kept>,
    (rank, object): (Rank, &ArchivedObject<'_>),
) -> Result<(), Failure> {
    if making.builder.is_full() && rank != making.last {
        end(archiver, making, packs).await?;
    }
    making.builder.add(object);
    making.bytes += (object.key.len() + object.value.len()) as u64;
    making.newest = making.newest.max(object.version);
    making.last = rank;
    Ok(())
}

async fn end(
    archiver: &mut Archiver<'_>,
    making: &mut Making,
    packs: &mut Vec<Kept>,
) -> Result<(), Failure> {
    let mut made = core::mem::take(making);
    if made.builder.objects() == 0 {
        return Ok(());
    }
    let pack = archiver.write(&mut made.builder).await?;
    packs.push(Kept {
        pack,
        bytes: made.bytes,
        newest: made.newest,
        last: made.last,
    });
    Ok(())
}
