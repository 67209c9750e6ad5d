//! Log reconstruction: from what backups have to what must be replayed [RAMCloud §7.4]. Pure.
//!
//! A master has several logs. Each has at least one open head at any time, whose digest lists all
//! segments of that log. A head is closed only after its successor is open on all its replicas. It
//! gets data only after its predecessor is closed on all of its replicas. So, per log:
//!
//! 1. Stale replicas are put aside: open ones whose segment lost a replica later, or that are
//!    older than such a segment [RAMCloud §8]. A closed replica is complete and never stale.
//! 2. Open replicas of heads that something shows to have been closed are put aside (COORD-8). A
//!    backup may lose bytes that it has confirmed. Where writes are only buffered, a loss of power
//!    can turn a closed frame into the open one it was before.
//! 3. The *lowest* head that is left gives the digest. If a higher one is open too, it holds no
//!    data yet.
//! 4. Every segment of the digest needs a replica that is closed, or that is of that very head.
//! 5. Replicas of that head on machines that lost power may lack their newest writes. They end the
//!    log only when as many are there as an acknowledgement needed. A replica that lost nothing
//!    ends it alone, and shorter ones are not read then. Where each may lack some, the longest is
//!    read (COORD-10).
//!
//! Answers that contradict themselves or each other are no evidence (COORD-9). Such are a head with
//! claims that no master makes, heads of one segment with different digests, and a segment outside
//! its digest's log. Without them something is missing.
//!
//! No open head for a log means that its latest data may be missing: nothing can be concluded,
//! and recovery waits for more backups.
//!
//! Logs of weak durability classes may be left out, if the rest is complete (COORD-21).
//!
//! Where the logs *end* is what an attempt replays last: a number of bytes of the head of each
//! log (COORD-13).
//!
//! - An end is where the shortest replica ends that lost nothing: it has what was acknowledged, and
//!   each replica found can give as much later. Where each may have lost some there is no end. Nor
//!   is there one where fewer replicas have as much than an acknowledgement needed. One failure
//!   could take that, and leave others that were never to have it. Such an end is *thin*: it has
//!   to be copied to other backups first.
//! - Once something was read, the ends are settled. Then each log ends in the same segment, and
//!   only replicas count that have as many bytes of it. Steps 2, 3 and 5 were taken before.
//!
//! The server may have died while it closed a head. Then some replicas of that are closed, others
//! are open, and its successor is empty. Where the log ends is settled by what was found, and
//! other replicas may be found later. It is not settled which of them say so:
//!
//! - The end is in the successor, since a closed replica was found. The length of the closed head
//!   is settled with it. An open replica counts as a closed one if it is not stale, has lost
//!   nothing, and has exactly that length. Where the head was closed durably there is no such one:
//!   all that recovery might find were closed. Otherwise nothing took the place of its bytes, so
//!   it is as long as the closed one, and the same.
//! - The end is in that head, since an open replica was found, which had lost nothing. So it was
//!   not closed durably, and its successor holds nothing (REP-4). A closed replica of it has all
//!   that the open one had, and the successor's digest says what belongs to the log. Nothing that
//!   the head's digest lists was freed, for the successor's did not count yet.

use crate::state::{Ends, Epochs, GivenUp, WeakLogs};
use core::cmp::Reverse;
use core::fmt;
use core::ops::Bound::{Excluded, Unbounded};
use pluvio_units::{
    LOGS_PER_MASTER_MAX, LogId, ReplicationEpoch, SEGMENT_BYTES, SegmentId, ServerId, TableId,
};
use pluvio_wire::{HeadInfo, MasterRoom, RecoverySegment, ReplicaInfo};
use std::collections::{BTreeMap, BTreeSet};

/// Reading speed assumed of a backup that has not measured its disk.
const DISK_MB_PER_S: u32 = 100;
/// Replicas that are not primary are read after all primary ones [RAMCloud §7.7].
const SECONDARY_US: u64 = 1_000_000_000_000;

/// What one backup has of the crashed master.
#[derive(Clone, Debug)]
pub(crate) struct Inventory {
    pub(crate) backup: ServerId,
    pub(crate) disk_mb_per_s: u32,
    /// How full the master beside it is, if it said so.
    pub(crate) room: Option<MasterRoom>,
    pub(crate) replicas: Vec<ReplicaInfo>,
}

/// Bytes and entries.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Load {
    pub(crate) bytes: u64,
    pub(crate) entries: u64,
}

/// How much the crashed master held, as far as it had written down.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(crate) struct Stats {
    /// The biggest tables.
    pub(crate) tables: BTreeMap<TableId, Load>,
    /// All other tables together.
    pub(crate) other: Load,
    /// Bytes of open heads: at most so much came after the statistics were written.
    pub(crate) unaccounted: u64,
}

/// A complete log: what to replay.
#[derive(Clone, PartialEq, Debug)]
pub(crate) struct LogMap {
    /// Every segment and where to read it, in the order in which it should be ready.
    pub(crate) segments: Vec<RecoverySegment>,
    pub(crate) stats: Stats,
    /// Where the logs end; `None` where a later attempt may find less.
    pub(crate) ends: Option<Ends>,
    /// Ends that have to be copied before they can be settled.
    pub(crate) thin: Vec<Thin>,
}

/// The end of a log that fewer backups have than an acknowledgement needed, or the closed head in
/// front of an end that is empty.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Thin {
    pub(crate) segment: SegmentId,
    pub(crate) log: LogId,
    pub(crate) epoch: ReplicationEpoch,
    /// Bytes that belong to the log.
    pub(crate) length: u32,
    pub(crate) closed: bool,
    /// Replicas that an acknowledgement needed.
    pub(crate) needed: u8,
    /// How many more backups have to have it.
    pub(crate) lacking: usize,
    /// Backups that have as much and lost nothing; those that have no more first.
    pub(crate) sources: Vec<ServerId>,
}

/// Why the log is not complete.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Incomplete {
    backups: usize,
    /// Logs without a usable open head; `None` when not even their number is known.
    headless: Option<Vec<LogId>>,
    /// Segments without a usable replica.
    missing: Vec<SegmentId>,
    /// Heads of which all that was found may lack its newest writes.
    doubtful: Vec<SegmentId>,
    /// A settled end is on no backup, and each replica found of its head may have lost some.
    lost_ends: bool,
}

impl Incomplete {
    /// The log may be complete where its settled ends are not there: their replicas were on
    /// machines that lost power, and only buffered them.
    pub(crate) fn lost_ends(&self) -> bool {
        self.lost_ends
    }
}

impl fmt::Display for Incomplete {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        /// Names the first few.
        fn some<T: fmt::Display>(items: &[T]) -> String {
            let names: Vec<_> = items.iter().take(8).map(ToString::to_string).collect();
            let more = if items.len() > names.len() {
                ", …"
            } else {
                ""
            };
            names.join(", ") + more
        }
        write!(
            f,
            "the log is not complete on the {} backups that answered: ",
            self.backups
        )?;
        let Some(headless) = &self.headless else {
            return f.write_str("none has an open head; waiting for more backups");
        };
        if !headless.is_empty() {
            write!(f, "no open head of log {}; ", some(headless))?;
        }
        if !self.missing.is_empty() {
            let count = self.missing.len();
            write!(
                f,
                "{count} segments are missing ({}); ",
                some(&self.missing)
            )?;
        }
        if !self.doubtful.is_empty() {
            write!(
                f,
                "the machines of all backups that have the head lost power since, and not all of its replicas are there (segment {}); ",
                some(&self.doubtful)
            )?;
        }
        f.write_str("waiting for more backups")
    }
}

fn is_stale(replica: &ReplicaInfo, epochs: &Epochs) -> bool {
    !replica.closed
        && epochs
            .get(&replica.log)
            .is_some_and(|recorded| (replica.segment, replica.epoch) < *recorded)
}

/// Whether a master can have such a head in such a log (COORD-9).
fn may_be(log: LogId, head: &HeadInfo) -> bool {
    head.logs <= LOGS_PER_MASTER_MAX && log.0 < head.logs
}

/// Whether an open replica of a head has all that it ever had.
fn is_certain(replica: &ReplicaInfo) -> bool {
    replica.head.as_ref().is_some_and(|info| !info.may_lack)
}

/// The open head of one log that gives the digest.
struct Head<'a> {
    segment: SegmentId,
    info: &'a HeadInfo,
    /// COORD-10: the log may end here.
    believed: bool,
    /// The head before it, if this one holds no data and that one was found closed.
    before: Option<SegmentId>,
}

/// The heads of one log, as all backups together know them.
#[derive(Default)]
struct Heads<'a> {
    /// Open replicas that are not stale, by the backups that have them.
    open: BTreeMap<SegmentId, BTreeMap<ServerId, &'a HeadInfo>>,
    /// The last one that was closed on some backup.
    closed_last: Option<SegmentId>,
}

impl<'a> Heads<'a> {
    fn add(&mut self, backup: ServerId, replica: &'a ReplicaInfo, epochs: &Epochs) {
        if replica.side {
            return;
        }
        if replica.closed {
            self.closed_last = self.closed_last.max(Some(replica.segment));
        } else if is_stale(replica, epochs) {
            pluvio_units::mark("recovery-stale-head");
        } else if let Some(info) = &replica.head
            && may_be(replica.log, info)
        {
            let replicas = self.open.entry(replica.segment).or_default();
            replicas.insert(backup, info);
        }
    }

    /// COORD-8: whether a head cannot be where the log ends, although replicas of it are open. It
    /// was closed on some backup, or a later head was, which needs all before it to be closed. Or a
    /// later head is open that holds data, or has another open head before it, or does not list
    /// this one.
    fn was_closed(&self, head: SegmentId) -> bool {
        let shows = |info: &&HeadInfo| info.has_data || !info.digest.contains(&head);
        let mut later = self.open.range((Excluded(head), Unbounded));
        self.closed_last >= Some(head)
            || later.clone().nth(1).is_some()
            || later.any(|(_, replicas)| replicas.values().any(shows))
    }

    /// The head that is settled to be the last one.
    fn at(&self, segment: SegmentId) -> Option<Head<'a>> {
        let replicas = self.open.get(&segment)?;
        Some(Head {
            segment,
            info: agreed(segment, replicas)?,
            believed: true,
            before: None,
        })
    }

    /// The empty head after the one that is settled to be the last. That was found open. Closed
    /// replicas of it alone may be left, which have no digest. The log does not go on behind it:
    /// it was not durably closed, or no such open replica of it would have counted.
    fn empty_after(&self, segment: SegmentId) -> Option<Head<'a>> {
        let mut later = self.open.range((Excluded(segment), Unbounded));
        let (next, replicas) = later.next()?;
        let is_odd = later.next().is_some()
            || self.closed_last > Some(segment)
            || replicas.values().any(|info| info.has_data);
        let head = self.at(*next).filter(|_| !is_odd)?;
        if !head.info.digest.contains(&segment) {
            return None;
        }
        pluvio_units::mark("recovery-digest-of-empty-head");
        Some(head)
    }

    /// The head whose digest says what belongs to the log.
    fn last(&self) -> Option<Head<'a>> {
        let mut open = self.open.iter();
        let (segment, replicas) = open.find(|(segment, _)| {
            let was_closed = self.was_closed(**segment);
            if was_closed {
                pluvio_units::mark("recovery-closed-head");
            }
            !was_closed
        })?;
        let info = agreed(*segment, replicas)?;
        let enough = |info: &&HeadInfo| usize::from(info.copies) <= replicas.len();
        let believed = replicas.values().any(enough);
        if !believed {
            pluvio_units::mark("recovery-doubtful-head");
        }
        let is_empty = !replicas.values().any(|info| info.has_data);
        let before = self.closed_last.filter(|_| is_empty);
        Some(Head {
            segment: *segment,
            info,
            believed,
            before: before.filter(|before| info.digest.contains(before)),
        })
    }
}

/// The word of an open head's replicas, if they agree (COORD-9).
fn agreed<'a>(
    segment: SegmentId,
    replicas: &BTreeMap<ServerId, &'a HeadInfo>,
) -> Option<&'a HeadInfo> {
    let info = *replicas.values().next()?;
    let same = |other: &&HeadInfo| other.digest == info.digest && other.logs == info.logs;
    if !replicas.values().all(same) {
        tracing::warn!(%segment, "backups contradict each other about an open head");
        return None;
    }
    Some(info)
}

/// The last head of each log, as far as there is one.
fn heads<'a>(
    inventories: &'a [Inventory],
    epochs: &Epochs,
    ends: Option<&Ends>,
    weak: &WeakLogs,
) -> BTreeMap<LogId, Head<'a>> {
    let mut logs: BTreeMap<LogId, Heads<'a>> = BTreeMap::new();
    for inventory in inventories {
        for replica in &inventory.replicas {
            if weak.leaves_out(replica.log) {
                continue;
            }
            let end = ends.and_then(|ends| ends.last.get(&replica.log));
            let is_short = |(at, length): &(SegmentId, u32)| {
                replica.segment == *at && !replica.closed && replica.length < *length
            };
            if end.is_some_and(is_short) {
                pluvio_units::mark("recovery-shorter-than-end");
                continue;
            }
            let heads = logs.entry(replica.log).or_default();
            heads.add(inventory.backup, replica, epochs);
        }
    }
    let last = |(log, heads): (LogId, Heads<'a>)| {
        let head = match ends {
            Some(ends) => match ends.last.get(&log) {
                Some((segment, _)) => {
                    let empty_after = || heads.empty_after(*segment);
                    heads.at(*segment).or_else(empty_after)
                }
                // The rest was recovered first, and this has no settled end.
                None if weak.logs.contains(&log) => heads.last(),
                None => None,
            },
            None => heads.last(),
        };
        Some((log, head?))
    };
    logs.into_iter().filter_map(last).collect()
}

/// Whether an open replica of a log may be one of its heads.
fn is_open_in(log: LogId, replica: &ReplicaInfo, epochs: &Epochs) -> bool {
    let head = replica.head.as_ref();
    let may_be = head.is_some_and(|info| may_be(log, info));
    let is_open = !replica.side && !replica.closed && !is_stale(replica, epochs);
    replica.log == log && may_be && is_open
}

/// Where one log ends.
struct EndOfLog {
    /// The segment, and how many of its bytes belong to the log.
    last: (SegmentId, u32),
    /// The closed head before an end that is empty, and how long it is.
    before: Option<(SegmentId, u32)>,
    /// It is settled, or may be.
    is_safe: bool,
    /// The end that has to be copied before it may be.
    thin: Vec<Thin>,
}

impl EndOfLog {
    /// Whether a replica has all of the segment that belongs to the log.
    fn has_all(&self, replica: &ReplicaInfo) -> bool {
        let (segment, length) = self.last;
        replica.segment == segment && replica.length >= length
    }
}

/// Where a log ends: as it is settled, or as it was found.
fn end_of(
    log: LogId,
    head: &Head<'_>,
    ends: Option<&Ends>,
    sources: &Sources<'_>,
    epochs: &Epochs,
) -> EndOfLog {
    if let Some(ends) = ends
        && let Some(last) = ends.last.get(&log)
    {
        return EndOfLog {
            last: *last,
            before: ends.before.get(&log).copied(),
            is_safe: true,
            thin: Vec::new(),
        };
    }
    let is_open = |r: &ReplicaInfo| is_open_in(log, r, epochs);
    let is_head = |r: &ReplicaInfo| r.segment == head.segment && is_open(r);
    let (least, safety) = sources.least_certain(head.segment, is_head);
    let needed = sources.needed(head.segment, is_head);
    let with_length = |before| (before, sources.longest_closed(log, before));
    let before = head.before.map(with_length);
    let thin_before = before.and_then(|(before, whole)| {
        let is_whole =
            |r: &ReplicaInfo| r.closed || is_open(r) && is_certain(r) && r.length == whole;
        let has_it = |r: &ReplicaInfo| r.log == log && !r.side && is_whole(r);
        sources.thin(before, whole, needed, has_it)
    });
    let is_safe = thin_before.is_none() && safety == Safety::Safe;
    let has_it = |r: &ReplicaInfo| is_head(r) && r.length >= least;
    let thin_end = match safety {
        Safety::Thin => sources.thin(head.segment, least, needed, has_it),
        Safety::Safe | Safety::Doubtful => None,
    };
    EndOfLog {
        last: (head.segment, least),
        before,
        is_safe,
        thin: thin_before.into_iter().chain(thin_end).collect(),
    }
}

/// The segments of a log that are to be replayed: those of the digest, and the head.
fn wanted(head: &Head<'_>, end: &EndOfLog) -> BTreeSet<SegmentId> {
    let in_digest = head.info.digest.iter().copied();
    let mut wanted: BTreeSet<SegmentId> = in_digest.chain([head.segment]).collect();
    if head.segment > end.last.0 {
        // It holds nothing, and the log ends before it.
        wanted.remove(&head.segment);
    }
    wanted
}

/// Puts the log together, without what was given up (COORD-19), and perhaps without logs of weak
/// classes. `ends` is where it ends, if that is settled.
///
/// # Errors
/// What is missing besides. Nothing is lost yet: backups that come back may have it.
pub(crate) fn reconstruct_without(
    inventories: &[Inventory],
    epochs: &Epochs,
    ends: Option<&Ends>,
    given_up: Option<&GivenUp>,
    weak: &WeakLogs,
) -> Result<LogMap, Incomplete> {
    let heads = heads(inventories, epochs, ends, weak);
    let mut incomplete = Incomplete {
        backups: inventories.len(),
        headless: None,
        missing: Vec::new(),
        doubtful: Vec::new(),
        lost_ends: ends.is_some_and(|ends| lost_power(inventories, ends)),
    };
    let known = heads.values().map(|h| h.info.logs).max();
    let Some(logs) = known.max(given_up.map(|lost| lost.logs)) else {
        return Err(incomplete);
    };
    let is_given_up =
        |segment: &SegmentId| given_up.is_some_and(|lost| lost.segments.contains(segment));
    let without_head = given_up.map(|lost| &lost.headless);
    let mut found_ends = ends.cloned().unwrap_or_default();
    let mut are_safe = true;
    let mut thin = Vec::new();
    let headless: Vec<LogId> = (0..logs)
        .map(LogId)
        .filter(|l| !heads.contains_key(l) && !weak.leaves_out(*l))
        .filter(|l| without_head.is_none_or(|lost| !lost.contains_key(l)))
        .collect();
    let mut sources = Sources::new(inventories);
    for (log, head) in &heads {
        if !head.believed && !is_given_up(&head.segment) {
            incomplete.doubtful.push(head.segment);
        }
        let end = end_of(*log, head, ends, &sources, epochs);
        let before = end.before.filter(|_| ends.is_some());
        let is_usable = |r: &ReplicaInfo| {
            let is_last = r.segment == head.segment && end.has_all(r);
            let is_whole = before == Some((r.segment, r.length)) && is_certain(r);
            r.log == *log && (r.closed || is_open_in(*log, r, epochs) && (is_last || is_whole))
        };
        for segment in wanted(head, &end) {
            if !sources.add(segment, is_usable) && !is_given_up(&segment) {
                incomplete.missing.push(segment);
            }
        }
        found_ends.last.insert(*log, end.last);
        found_ends
            .before
            .extend(end.before.map(|before| (*log, before)));
        are_safe &= end.is_safe;
        thin.extend(end.thin);
    }
    for (log, found) in without_head.into_iter().flatten() {
        if heads.contains_key(log) || weak.leaves_out(*log) {
            continue;
        }
        for segment in found {
            if !sources.add(*segment, |r| r.log == *log && r.closed) {
                incomplete.missing.push(*segment);
            }
        }
    }
    let found = incomplete.missing.is_empty() && incomplete.doubtful.is_empty();
    if !headless.is_empty() || !found {
        incomplete.headless = Some(headless);
        return Err(incomplete);
    }
    Ok(LogMap {
        segments: sources.ordered(),
        stats: stats(&heads, inventories),
        ends: (are_safe && given_up.is_none()).then_some(found_ends),
        // Nothing is settled where a part of the log was given up.
        thin: if given_up.is_none() { thin } else { Vec::new() },
    })
}

/// The part of a log that has to be given up before the rest can be recovered. With it, how much
/// the crashed server had, as far as that is known. `None`: nothing is missing.
pub(crate) fn lost_part(
    inventories: &[Inventory],
    epochs: &Epochs,
    ends: Option<&Ends>,
    given_up: Option<&GivenUp>,
    weak: &WeakLogs,
) -> Option<(GivenUp, Option<Stats>)> {
    let incomplete = reconstruct_without(inventories, epochs, ends, given_up, weak).err()?;
    let heads = heads(inventories, epochs, ends, weak);
    let mut lost = given_up.cloned().unwrap_or_default();
    lost.segments.extend(incomplete.missing);
    lost.segments.extend(incomplete.doubtful);
    let replicas = || inventories.iter().flat_map(|i| &i.replicas);
    let seen = replicas().map(|r| r.log.0.saturating_add(1)).max();
    let known = heads.values().map(|h| h.info.logs).max();
    let logs = known.or(seen).unwrap_or(0).min(LOGS_PER_MASTER_MAX);
    lost.logs = lost.logs.max(logs);
    for log in (0..lost.logs).map(LogId) {
        if heads.contains_key(&log) || weak.leaves_out(log) {
            continue;
        }
        let closed = replicas().filter(|r| r.log == log && r.closed);
        let found = closed.map(|r| r.segment).collect();
        lost.headless.insert(log, found);
    }
    let stats = known.map(|_| stats(&heads, inventories));
    Some((lost, stats))
}

/// Whether a settled end is lost: no backup that answered has it. As many of them lost power as an
/// acknowledgement needed, so what was acknowledged could be lost, too (COORD-10).
fn lost_power(inventories: &[Inventory], ends: &Ends) -> bool {
    ends.last.iter().any(|(log, (segment, length))| {
        let replicas = inventories.iter().flat_map(|i| &i.replicas);
        let mut heads = replicas.filter(|r| r.log == *log && r.segment == *segment && !r.closed);
        let mut lost = 0_usize;
        let mut needed = 1;
        let is_gone = heads.all(|r| {
            if let Some(head) = r.head.as_ref().filter(|_| !is_certain(r)) {
                lost += 1;
                needed = needed.max(usize::from(head.copies));
            }
            r.length < *length
        });
        is_gone && lost >= needed
    })
}

/// Whether the end of a log that was found may be settled.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Safety {
    /// As many replicas have it as an acknowledgement needed, and one lost nothing.
    Safe,
    /// One lost nothing, and too few have as much.
    Thin,
    /// Each may have lost some.
    Doubtful,
}

/// Replicas by segment, and when each could have been read.
struct Sources<'a> {
    replicas: BTreeMap<SegmentId, Vec<(u64, ServerId, &'a ReplicaInfo)>>,
    chosen: Vec<(u64, RecoverySegment)>,
}

impl<'a> Sources<'a> {
    fn new(inventories: &'a [Inventory]) -> Self {
        let mut replicas: BTreeMap<_, Vec<_>> = BTreeMap::new();
        for inventory in inventories {
            let speed = match inventory.disk_mb_per_s {
                0 => DISK_MB_PER_S,
                measured => measured,
            };
            // A megabyte a second is a byte a microsecond.
            let read_us = SEGMENT_BYTES as u64 / u64::from(speed);
            // As backups do it: the newest first, and secondaries behind all primaries.
            let mut in_order: Vec<&ReplicaInfo> = inventory.replicas.iter().collect();
            in_order.sort_by_key(|replica| (!replica.primary, Reverse(replica.segment)));
            let mut ready_us = 0;
            for replica in in_order {
                ready_us += read_us;
                let bias = if replica.primary { 0 } else { SECONDARY_US };
                let source = (ready_us + bias, inventory.backup, replica);
                replicas.entry(replica.segment).or_default().push(source);
            }
        }
        Self {
            replicas,
            chosen: Vec::new(),
        }
    }

    /// The least length of every open replica of a head that may be read (COORD-10). It is that of
    /// the shortest replica that lost nothing. When each may have lost some, it is that of the
    /// longest. Says, too, whether that length may be an end.
    fn least_certain(
        &self,
        head: SegmentId,
        is_head: impl Fn(&ReplicaInfo) -> bool + Copy,
    ) -> (u32, Safety) {
        let heads = || self.of(head, is_head).map(|(_, r)| r);
        let shortest = heads().filter(|r| is_certain(r)).map(|r| r.length).min();
        let longest = heads().map(|r| r.length).max();
        let least = shortest.or(longest).unwrap_or(0);
        let have_it = self.backups_of(head, |r| is_head(r) && r.length >= least);
        let safety = match shortest {
            None => Safety::Doubtful,
            Some(_) if have_it < usize::from(self.needed(head, is_head)) => Safety::Thin,
            Some(_) => Safety::Safe,
        };
        (least, safety)
    }

    /// How many replicas of a head an acknowledgement needed.
    fn needed(&self, head: SegmentId, is_head: impl Fn(&ReplicaInfo) -> bool) -> u8 {
        let heads = self.of(head, is_head);
        let needed = heads.filter_map(|(_, r)| Some(r.head.as_ref()?.needed));
        needed.max().unwrap_or(0)
    }

    /// The copies to make so that as many backups as are needed have so much of a segment. Replicas
    /// that have as much are those that `has_it` says.
    fn thin(
        &self,
        segment: SegmentId,
        length: u32,
        needed: u8,
        has_it: impl Fn(&ReplicaInfo) -> bool + Copy,
    ) -> Option<Thin> {
        let have_it = self.backups_of(segment, has_it);
        let lacking = usize::from(needed).checked_sub(have_it)?;
        let can_give = |r: &ReplicaInfo| has_it(r) && (r.closed || is_certain(r));
        let mut sources: Vec<_> = self.of(segment, can_give).collect();
        sources.sort_by_key(|(backup, r)| (!r.closed, r.length != length, *backup));
        let (_, first) = sources.first()?;
        (lacking > 0).then(|| Thin {
            segment,
            log: first.log,
            epoch: first.epoch,
            length,
            closed: first.closed,
            needed,
            lacking,
            sources: sources.iter().map(|(backup, _)| *backup).collect(),
        })
    }

    /// The replicas of a segment that are meant, and the backups that have them.
    fn of(
        &self,
        segment: SegmentId,
        is_meant: impl Fn(&ReplicaInfo) -> bool,
    ) -> impl Iterator<Item = (ServerId, &'a ReplicaInfo)> {
        let replicas = self.replicas.get(&segment).into_iter().flatten();
        let replicas = replicas.map(|(_, backup, r)| (*backup, *r));
        replicas.filter(move |(_, r)| is_meant(r))
    }

    /// How many backups have such a replica.
    fn backups_of(&self, segment: SegmentId, is_meant: impl Fn(&ReplicaInfo) -> bool) -> usize {
        let backups = self.of(segment, is_meant).map(|(backup, _)| backup);
        backups.collect::<BTreeSet<_>>().len()
    }

    /// How long a head is that was found closed. Bytes that took the place of a closed segment's
    /// are fewer.
    fn longest_closed(&self, log: LogId, segment: SegmentId) -> u32 {
        let replicas = self.replicas.get(&segment).into_iter().flatten();
        let closed = replicas.filter(|(_, _, r)| r.log == log && r.closed && !r.side);
        closed.map(|(_, _, r)| r.length).max().unwrap_or(0)
    }

    /// Takes a segment with its usable replicas; false when there is none.
    fn add(&mut self, segment: SegmentId, usable: impl Fn(&ReplicaInfo) -> bool) -> bool {
        let mut sources: Vec<_> = self
            .replicas
            .get(&segment)
            .into_iter()
            .flatten()
            .filter(|(_, _, replica)| usable(replica))
            .copied()
            .collect();
        // Each replica of an open head has all acknowledged bytes, unless its disk lost the end of
        // it. A power loss where writes are only buffered does that, and damage does. So those that
        // lost nothing come first, then the longest; closed ones are whole.
        sources.sort_by_key(|(ready_us, backup, replica)| {
            let missing = match replica.closed {
                true => 0,
                false => u32::MAX - replica.length,
            };
            let doubtful = !replica.closed && !is_certain(replica);
            (!replica.closed, doubtful, missing, *ready_us, *backup)
        });
        let Some((ready_us, _, _)) = sources.first().copied() else {
            return false;
        };
        let mut backups: Vec<ServerId> = Vec::new();
        for (_, backup, _) in sources {
            if !backups.contains(&backup) {
                backups.push(backup);
            }
        }
        self.chosen
            .push((ready_us, RecoverySegment { segment, backups }));
        true
    }

    fn ordered(mut self) -> Vec<RecoverySegment> {
        self.chosen
            .sort_by_key(|(ready_us, s)| (*ready_us, s.segment));
        // Logs of one master share no segments; should digests say otherwise, one reading is
        // enough.
        let mut seen = BTreeSet::new();
        self.chosen
            .into_iter()
            .map(|(_, segment)| segment)
            .filter(|s| seen.insert(s.segment))
            .collect()
    }
}

/// The newest statistics: every head carries those of the whole master.
fn stats(heads: &BTreeMap<LogId, Head<'_>>, inventories: &[Inventory]) -> Stats {
    // There is one, unless all were given up.
    let Some(newest) = heads.values().max_by_key(|h| h.segment) else {
        return Stats::default();
    };
    let tables = newest.info.tables.iter().map(|t| {
        let load = Load {
            bytes: t.bytes,
            entries: t.entries,
        };
        (t.table, load)
    });
    let length_of = |segment: SegmentId| {
        let replicas = inventories.iter().flat_map(|i| &i.replicas);
        let lengths = replicas.filter(|r| r.segment == segment).map(|r| r.length);
        u64::from(lengths.max().unwrap_or(0))
    };
    Stats {
        tables: tables.collect(),
        other: Load {
            bytes: newest.info.other_bytes,
            entries: newest.info.other_entries,
        },
        unaccounted: heads.values().map(|h| length_of(h.segment)).sum(),
    }
}

#[cfg(test)]
mod tests;
