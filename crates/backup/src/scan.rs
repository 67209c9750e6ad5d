//! The look at the disk at start: which frames a former life left, and whether they are whole.

use crate::buckets::check_groups;
use crate::directory::{Directory, FRAMES as DIRECTORY};
use crate::error::BackupError;
use crate::frame::{Frame, FrameState, ReplicaKey, Stage};
use crate::options::BackupOptions;
use crate::stats::{Counters, count};
use pluvio_env::{DiskError, Env, File, OpenMode};
use pluvio_format::{
    AtPlace, CertificatePlace, FRAME_DATA_OFFSET, FRAME_SLOT_BYTES, FRAME_SLOTS, FrameError,
    FrameHeader, SegmentKind, newest_frame_header,
};
use pluvio_units::{ClusterId, LogId, ReplicationEpoch, ServerId};
use std::collections::BTreeMap;
use std::sync::Arc;

/// What a former life left.
pub(crate) struct Found {
    pub(crate) cluster: Option<ClusterId>,
    pub(crate) frames: Vec<Arc<Frame>>,
}

/// Reads the header of every frame, and the data of those that were open.
///
/// # Errors
/// See [`BackupError`]. A damaged frame is no error: it is counted and kept, so that people can
/// look at it and recovery can say what is wrong.
pub(crate) async fn scan(
    home: &Arc<Directory>,
    cluster: Option<ClusterId>,
    options: &BackupOptions,
    counters: &Counters,
) -> Result<Found, BackupError> {
    let env = &home.env;
    let mut found = Found {
        cluster,
        frames: Vec::new(),
    };
    // Everything is looked at before anything is removed: a foreign directory stays as it is.
    let mut leftovers = Vec::new();
    for name in env.disk.list(DIRECTORY).await? {
        let Some((key, rewriting)) = ReplicaKey::parse(&name) else {
            tracing::warn!(name, "a stranger among the frames, left alone");
            continue;
        };
        if rewriting {
            leftovers.push(key.rewriting_path());
            continue;
        }
        let state = match look(env, options, key).await? {
            Looked::Empty => {
                leftovers.push(key.path());
                continue;
            }
            Looked::Frame(cluster, state) => {
                match found.cluster {
                    Some(ours) if ours != cluster => {
                        return Err(BackupError::foreign(key.path(), cluster, ours));
                    }
                    Some(_) | None => found.cluster = Some(cluster),
                }
                state
            }
            Looked::Damaged(state) => state,
        };
        if let Stage::Damaged(why) = &state.stage {
            pluvio_units::mark("backup-damaged-frame");
            tracing::warn!(path = key.path(), why, "a damaged frame");
            count(&counters.damaged, 1);
        }
        found.frames.push(Frame::new(key, state, home));
    }
    for path in leftovers {
        env.disk.remove(&path).await?;
    }
    sync_found(env, &found.frames, counters).await?;
    Ok(found)
}

/// Syncs the names of the frames, and the head of each log that was closed last. A process may have
/// ended between a write and its sync. A loss of power undoes such a write: a new frame vanishes,
/// and a closed one is open again. A recovery that was told of frames has to find them alike in all
/// its attempts (COORD-13).
///
/// - A head that is open again ends its log too early. Heads before the last one are synced: no
///   later head gets data before.
/// - Open frames are synced when they are read ([`look`]).
/// - Side segments count once a digest lists them. They are synced by then.
async fn sync_found(
    env: &Env,
    frames: &[Arc<Frame>],
    counters: &Counters,
) -> Result<(), BackupError> {
    if frames.is_empty() {
        return Ok(());
    }
    env.disk.sync_directory(DIRECTORY).await?;
    let mut last: BTreeMap<(ServerId, LogId), &Arc<Frame>> = BTreeMap::new();
    for frame in frames {
        let state = frame.state();
        let is_usable = matches!(state.stage, Stage::Usable);
        if is_usable && state.closed && state.boot == 0 && state.kind == SegmentKind::Head {
            let newest = last.entry((frame.key.master, state.log)).or_insert(frame);
            if newest.key < frame.key {
                *newest = frame;
            }
        }
    }
    for frame in last.into_values() {
        let path = frame.key.path();
        let file = env.disk.open(&path, OpenMode::Existing).await?;
        if let Err(error) = file.sync().await {
            let mut state = frame.state();
            let why = error.to_string();
            tracing::warn!(path, why, "a damaged frame");
            count(&counters.damaged, 1);
            state.stage = Stage::Damaged(why);
            frame.set(state);
        }
    }
    Ok(())
}

enum Looked {
    /// Its first write never ended: nobody was told that it exists.
    Empty,
    Frame(ClusterId, FrameState),
    Damaged(FrameState),
}

async fn look(env: &Env, options: &BackupOptions, key: ReplicaKey) -> Result<Looked, BackupError> {
    let file = env.disk.open(&key.path(), OpenMode::Existing).await?;
    let area = match file.read_at(0, FRAME_SLOTS * FRAME_SLOT_BYTES).await {
        Ok(area) => area,
        Err(error) => return unreadable(error).map(Looked::Damaged),
    };
    let header = match newest_frame_header(&area) {
        Ok(header) => header,
        Err(FrameError::BadVersion(version)) => {
            return Err(BackupError::FormatVersion {
                path: key.path(),
                version,
            });
        }
        Err(_) if area.iter().all(|b| *b == 0) => return Ok(Looked::Empty),
        Err(error) => return Ok(Looked::Damaged(useless(error.to_string()))),
    };
    if let Some(slot) = rotten_slot(&area) {
        let why = format!("slot {slot} of its header is damaged");
        return Ok(Looked::Damaged(useless(why)));
    }
    if header.server != key.master || header.segment != key.segment {
        let why = format!(
            "its header is of segment {} of server {}",
            header.segment, header.server
        );
        return Ok(Looked::Damaged(useless(why)));
    }
    let length = header.certified_length as usize;
    if length > options.segment_bytes {
        let why = format!("certifies {length} bytes, more than a segment has");
        return Ok(Looked::Damaged(useless(why)));
    }
    let mut state = state_of(&header);
    let checked = match CertificatePlace::first(&header) {
        Some(first) if header.closed => bytes_of(&*file, &first, options, &mut state).await,
        Some(first) => follow(env, &*file, &header, first, options, &mut state).await,
        None => {
            let older = (0..FRAME_SLOTS)
                .filter_map(|slot| FrameHeader::decode(&area[slot * FRAME_SLOT_BYTES..]).ok())
                .find(|other| other.sequence + 1 == header.sequence);
            // The header was written behind what it certifies, and the machine has lost nothing
            // since: what is missing has rotted.
            let is_of_this_boot = header.boot != 0 && header.boot == env.disk.boot();
            let older = older.filter(|_| !is_of_this_boot);
            let certified = verify(&*file, &header, older.as_ref(), options).await;
            certified.map(|certified| {
                (state.certified, state.written, state.end) = (certified, certified, certified);
            })
        }
    };
    // An open frame that says it was synced may be that of a process that ended between a write
    // and its sync. A recovery that is told of these bytes now has to find them later (COORD-13).
    let checked = match checked {
        Ok(()) if !header.closed && state.boot == 0 => file.sync().await.map_err(|e| e.to_string()),
        checked => checked,
    };
    if let Err(why) = checked {
        state.stage = Stage::Damaged(why);
    }
    Ok(Looked::Frame(header.cluster, state))
}

/// A slot of the header area that holds something, but no header. Slots are sectors, which are
/// written whole, so a header stood there once, perhaps the newest. The header in the other slot
/// must not count then. It may call open a frame that was closed long since, and a recovery would
/// take that for the end of the log.
fn rotten_slot(area: &[u8]) -> Option<usize> {
    let slots = area.chunks_exact(FRAME_SLOT_BYTES).take(FRAME_SLOTS);
    slots.enumerate().find_map(|(number, slot)| {
        let is_empty = slot.iter().all(|byte| *byte == 0);
        (!is_empty && FrameHeader::decode(slot).is_err()).then_some(number)
    })
}

/// How many bytes of a frame without certificates in line count. A closed frame is believed;
/// recovery will check it. An open one is read: after a power loss its newest header may certify
/// bytes that never reached the device.
/// The header before it, `older`, counts instead if two things hold. The bytes before the last
/// write are whole, and a part of the last write never reached the device. Such a write was not
/// answered as synced. A last write that is complete and damaged has rotted (BACKUP-12).
async fn verify(
    file: &dyn File,
    header: &FrameHeader,
    older: Option<&FrameHeader>,
    options: &BackupOptions,
) -> Result<u32, String> {
    if header.closed {
        return Ok(header.certified_length);
    }
    let length = header.certified_length as usize;
    let image = file
        .read_at(FRAME_DATA_OFFSET as u64, length)
        .await
        .map_err(|e| e.to_string())?;
    let (valid, damage) = match check_groups(&image, options.seglet_bytes) {
        Ok(()) if image.len() == length => return Ok(header.certified_length),
        Ok(()) => (image.len(), "the file is too short".to_owned()),
        Err((valid, damage)) => (valid, damage.to_string()),
    };
    // Without syncs more than the last write may be torn; such a frame is doubtful in any case
    // (BACKUP-11).
    let is_synced = header.boot == 0;
    let has_all = image.len() == length && !header.last_write.is_torn(&image);
    match older {
        Some(older) if older.certified_length as usize > valid => Err(damage),
        Some(_) if is_synced && has_all => {
            pluvio_units::mark("backup-last-write-rotten");
            Err(damage)
        }
        Some(older) => {
            pluvio_units::mark("backup-last-write-cut-off");
            tracing::info!(segment = %header.segment, master = %header.server, damage, "the last write to a frame was cut off");
            Ok(older.certified_length)
        }
        None => Err(damage),
    }
}

/// Puts into `state` how long the file of a closed frame is. The frame is believed, unless it is
/// longer than any that was written here: recovery reads all of it.
async fn bytes_of(
    file: &dyn File,
    first: &CertificatePlace,
    options: &BackupOptions,
    state: &mut FrameState,
) -> Result<(), String> {
    let size = file.size().await.map_err(|e| e.to_string())?;
    let there = size.saturating_sub(FRAME_DATA_OFFSET as u64);
    let end = u32::try_from(there).ok();
    let end = end.filter(|end| *end as usize <= options.file_bytes_max());
    state.end = end.ok_or_else(|| format!("the file is too long: {size} bytes"))?;
    state.in_line_from = Some(first.at);
    Ok(())
}

/// Follows the certificates of an open frame, and puts into `state` what they say. A write behind
/// the last good one is left out if it was cut off. Otherwise it has rotted (BACKUP-12).
async fn follow(
    env: &Env,
    file: &dyn File,
    header: &FrameHeader,
    first: CertificatePlace,
    options: &BackupOptions,
    state: &mut FrameState,
) -> Result<(), String> {
    let disk_error = |e: DiskError| e.to_string();
    let size = file.size().await.map_err(disk_error)?;
    let there = usize::try_from(size).unwrap_or(usize::MAX);
    let length = there.min(options.file_bytes_max());
    let area = file.read_at(FRAME_DATA_OFFSET as u64, length).await;
    let area = area.map_err(disk_error)?;
    let raw = first.at.min(header.certified_length) as usize;
    let begin = area.get(..raw).ok_or("the file is too short")?;
    check_groups(begin, options.seglet_bytes).map_err(|(_, damage)| damage.to_string())?;
    let mut place = first;
    let rest = loop {
        match place.look(&area) {
            AtPlace::Whole(certificate, next) => {
                state.certified = certificate.certified_length;
                state.epoch = certificate.replication_epoch;
                state.boot = certificate.boot;
                state.needed = certificate.needed;
                place = next;
            }
            other => break other,
        }
    };
    // A header that tells of remains is written behind certificates, which may be lost.
    let certified = state.certified.min(place.written);
    if certified < header.certified_length {
        return Err(format!("only {certified} certified bytes are there"));
    }
    state.written = place.written;
    state.end = place.at;
    state.place = Some(place);
    if rest == AtPlace::End {
        return Ok(());
    }
    let is_of_this_boot = state.boot != 0 && state.boot == env.disk.boot();
    let cut_off = match rest {
        AtPlace::End | AtPlace::Whole(..) => true,
        AtPlace::Short => true,
        _ if header.has_remains => true,
        // The machine has lost nothing since, so what is missing has rotted.
        AtPlace::Torn | AtPlace::Damaged if is_of_this_boot => false,
        // Without syncs anything may be missing; such a frame is doubtful in any case (BACKUP-11).
        AtPlace::Torn | AtPlace::Damaged if state.boot != 0 => true,
        AtPlace::Torn => !place.is_followed(&area),
        AtPlace::Damaged => {
            pluvio_units::mark("backup-last-write-rotten");
            false
        }
    };
    if !cut_off {
        return Err(format!("a write behind byte {} is damaged", place.written));
    }
    pluvio_units::mark("backup-last-write-cut-off");
    tracing::info!(segment = %header.segment, master = %header.server, "the last write to a frame was cut off");
    state.has_remains = true;
    state.tells_remains = header.has_remains;
    Ok(())
}

fn state_of(header: &FrameHeader) -> FrameState {
    let length = header.certified_length;
    let is_earlier_head =
        header.kind == SegmentKind::Head && !header.closed && header.in_line_from.is_none();
    FrameState {
        stage: Stage::Usable,
        log: header.log,
        kind: header.kind,
        primary: header.primary,
        epoch: header.replication_epoch,
        closed: header.closed,
        certified: length,
        written: length,
        sequence: header.sequence,
        unsynced: true,
        boot: header.boot,
        needed: header.needed,
        found: true,
        end: length,
        in_line_from: header.in_line_from,
        place: None,
        // An earlier program wrote bytes before it certified them.
        has_remains: header.has_remains || is_earlier_head,
        tells_remains: header.has_remains,
    }
}

/// A frame whose header says nothing.
fn useless(why: String) -> FrameState {
    FrameState {
        stage: Stage::Damaged(why),
        log: LogId(0),
        kind: SegmentKind::Head,
        primary: false,
        epoch: ReplicationEpoch(0),
        closed: false,
        certified: 0,
        written: 0,
        sequence: 0,
        unsynced: false,
        boot: 0,
        needed: 0,
        found: true,
        end: 0,
        in_line_from: None,
        place: None,
        has_remains: false,
        tells_remains: false,
    }
}

fn unreadable(error: DiskError) -> Result<FrameState, BackupError> {
    match error {
        DiskError::Other { message, .. } => Ok(useless(message)),
        error => Err(error.into()),
    }
}
