//! The stored records: one of globals, one for each server and for each table.

use pluvio_units::{
    ClusterId, HashKind, HashRange, KeyHash, LogId, MetadataVersion, MigrationId, ObjectVersion,
    RecoveryId, ReplicationEpoch, SegmentId, ServerId, ServerListVersion, TableId,
};
use pluvio_wire::{
    ClusterSettings, Loss, ServerInfo, TableClass, TableQuota, TabletSpec, TabletState, Versions,
};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};

/// Most tablets of one table. Maps of tables travel whole; this is 64 KiB at most.
pub(crate) const TABLETS_MAX: usize = 1024;

/// What exists once.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub(crate) struct Globals {
    pub(crate) format: u16,
    pub(crate) cluster: ClusterId,
    /// The version of all that is stored (COORD-12). Stays 0 in metadata of a program that did not
    /// count: one such program may lead again, and would set it back.
    #[serde(default)]
    pub(crate) version: MetadataVersion,
    pub(crate) list_version: ServerListVersion,
    pub(crate) grown: bool,
    pub(crate) last_server: ServerId,
    pub(crate) last_table: TableId,
    pub(crate) last_recovery: RecoveryId,
    #[serde(default)]
    pub(crate) last_migration: MigrationId,
    /// How objects are kept (SETTINGS-1). Nobody has said so in a new cluster, and in metadata of a
    /// program in which each server had its own.
    #[serde(default)]
    pub(crate) settings: Option<ClusterSettings>,
    /// The version that the cluster speaks (VERSION-1).
    #[serde(default = "Versions::active_unsaid")]
    pub(crate) active: u16,
    /// Balancing is switched off. An earlier program that leads meanwhile switches it on again.
    #[serde(default)]
    pub(crate) balance_off: bool,
    /// What was given up of logs, oldest first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) losses: Vec<Loss>,
    /// Quotas of tables that were emptied, by name: the next table of that name has it.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub(crate) kept_quotas: BTreeMap<String, TableQuota>,
    /// The durability classes that there are or were, by ascending number (COORD-22).
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) classes: Vec<TableClass>,
    /// Classes of tables that were emptied, by name: the next table of that name has it.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub(crate) kept_classes: BTreeMap<String, TableClass>,
    /// How often tablets have begun anew (COORD-23).
    #[serde(default, skip_serializing_if = "is_zero")]
    pub(crate) begun_anew: u64,
    /// Tablets that begin anew give no version below this. 0: none has.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub(crate) first_version: ObjectVersion,
}

/// One server in the list.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub(crate) struct ServerRecord {
    pub(crate) info: ServerInfo,
    /// What its process drew at start.
    pub(crate) attempt: u64,
    /// Per log: the open segment that lost a replica last, and its epoch since.
    pub(crate) epochs: Epochs,
    /// Of a crashed server: how much of each table it had when it crashed. Its statistics are
    /// about all of that, also when some has been recovered already.
    pub(crate) had: BTreeMap<TableId, Width>,
    /// Of a crashed server: where its logs end, as the latest attempt has it. Empty while that is
    /// open.
    #[serde(default)]
    pub(crate) ends: Places,
    /// What stands in front of them ([`Ends::before`]). An earlier program that leads meanwhile
    /// forgets it, as it forgets it with each change of `ends`. Then recovery waits for more.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub(crate) before_ends: Places,
    /// Something was read from a log with these ends: they hold for ever (COORD-13).
    #[serde(default)]
    pub(crate) ends_bind: bool,
    /// Of a crashed server: crashed masters that may still answer reads of tablets that have come
    /// back to it (COORD-15).
    #[serde(default)]
    pub(crate) readers: BTreeSet<ServerId>,
    /// Of a crashed server: the part of its log without which it is recovered (COORD-19).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) given_up: Option<GivenUp>,
    /// How many logs its cores have; 0: it has not said.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub(crate) logs: u16,
}

fn is_zero<T: Default + PartialEq>(number: &T) -> bool {
    *number == T::default()
}

/// A part of a log that is lost for good, and the rest that recovery must still find.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Default, Serialize, Deserialize)]
pub(crate) struct GivenUp {
    /// How many logs the server had, as far as that is known.
    pub(crate) logs: u16,
    /// Segments of the digests that need not be there, and heads that may end a log although they
    /// may lack their newest writes.
    pub(crate) segments: BTreeSet<SegmentId>,
    /// Logs that need no head, and the segments that were found of each.
    pub(crate) headless: BTreeMap<LogId, BTreeSet<SegmentId>>,
}

impl ServerRecord {
    /// The record of a server that has just enlisted.
    pub(crate) fn new(info: ServerInfo, attempt: u64) -> Self {
        Self {
            info,
            attempt,
            epochs: Epochs::new(),
            had: BTreeMap::new(),
            ends: Places::new(),
            before_ends: Places::new(),
            ends_bind: false,
            readers: BTreeSet::new(),
            given_up: None,
            logs: 0,
        }
    }

    /// Where its logs end, as the latest attempt has it.
    pub(crate) fn ends(&self) -> Ends {
        Ends {
            last: self.ends.clone(),
            before: self.before_ends.clone(),
        }
    }

    pub(crate) fn set_ends(&mut self, ends: Ends) {
        (self.ends, self.before_ends) = (ends.last, ends.before);
    }
}

/// How many key hashes, in units of 2^16: the whole range is 2^48.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Width(pub(crate) u64);

impl Width {
    pub(crate) fn of(range: HashRange) -> Self {
        // At least one: smaller ranges than the unit hold something, too.
        Self(((range.last.0 - range.first.0) >> 16) + 1)
    }
}

/// See [`ServerRecord::epochs`].
pub(crate) type Epochs = BTreeMap<LogId, (SegmentId, ReplicationEpoch)>;

/// Per log: a segment, and a number of its bytes.
pub(crate) type Places = BTreeMap<LogId, (SegmentId, u32)>;

/// Where logs end.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(crate) struct Ends {
    /// The last segment, and how many bytes of that belong to the log.
    pub(crate) last: Places,
    /// Logs whose last segment was found empty: the head before it, which was found closed, and how
    /// long that head is. The server may have died while it closed that head. Then an open replica
    /// of that length is as good as a closed one.
    pub(crate) before: Places,
}

/// One table.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub(crate) struct TableRecord {
    pub(crate) id: TableId,
    pub(crate) name: String,
    pub(crate) seed: u64,
    #[serde(default)]
    pub(crate) hash: HashKind,
    /// It has no name any more; its tablets are listed until their owners have forgotten them.
    pub(crate) dropping: bool,
    /// By ascending range.
    pub(crate) tablets: Vec<TabletRecord>,
    /// Cuts that the owner has not confirmed yet: first hashes of upper parts.
    pub(crate) cuts: Vec<KeyHash>,
    /// Cuts that somebody asked for: first hashes of upper parts. Nothing is joined there.
    #[serde(default)]
    pub(crate) kept: BTreeSet<KeyHash>,
    /// Migrations that have not ended for everybody.
    #[serde(default)]
    pub(crate) moves: Vec<MoveRecord>,
    /// What it may have at most. `None`: it never had a quota, and no owner has to be told.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) quota: Option<TableQuota>,
    /// Its durability class, if it has one of its own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) class: Option<TableClass>,
}

/// One tablet.
#[derive(Clone, Copy, PartialEq, Debug, Serialize, Deserialize)]
pub(crate) struct TabletRecord {
    pub(crate) range: HashRange,
    pub(crate) owner: ServerId,
    pub(crate) state: TabletState,
    /// The partition of the recovery by which its owner got it (COORD-6).
    pub(crate) recovered_by: Option<(RecoveryId, u32)>,
    /// The migration by which its owner got it (COORD-6).
    #[serde(default)]
    pub(crate) moved_by: Option<MigrationId>,
    /// Where its owner's log of it begins; that of the server it stands on while it stands on one.
    #[serde(default)]
    pub(crate) since: SegmentId,
    /// The crashed server whose replicas it stands on. Its owner answers reads and takes no writes
    /// (COORD-14).
    #[serde(default)]
    pub(crate) stands_on: Option<ServerId>,
    /// It has begun anew, and its owner has not confirmed it yet. Others may take that owner for
    /// the one that it was before (COORD-24).
    #[serde(default, skip_serializing_if = "is_zero")]
    pub(crate) anew: bool,
}

impl TabletRecord {
    /// A tablet that holds nothing and that its owner has not confirmed.
    pub(crate) fn new(range: HashRange, owner: ServerId) -> Self {
        Self {
            range,
            owner,
            state: TabletState::Assigning,
            recovered_by: None,
            moved_by: None,
            since: SegmentId(0),
            stands_on: None,
            anew: false,
        }
    }

    /// It is served whole, from its owner's log.
    pub(crate) fn is_settled(&self) -> bool {
        self.state == TabletState::Normal && self.stands_on.is_none()
    }
}

/// One migration.
#[derive(Clone, Copy, PartialEq, Debug, Serialize, Deserialize)]
pub(crate) struct MoveRecord {
    pub(crate) id: MigrationId,
    /// The tablet.
    pub(crate) range: HashRange,
    /// Its owner when the migration began.
    pub(crate) from: ServerId,
    /// Its owner when the migration has succeeded.
    pub(crate) to: ServerId,
    pub(crate) stage: MoveStage,
}

impl MoveRecord {
    pub(crate) fn concerns(&self, server: ServerId) -> bool {
        self.from == server || self.to == server
    }
}

/// How far a migration is.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum MoveStage {
    /// The receiver is to take the tablet over; `from` owns it.
    Copying,
    /// `to` owns it; `from` is to forget it.
    Moved,
    /// It was given up; `from` is to serve the tablet as before.
    Stays,
}

impl TableRecord {
    pub(crate) fn has(&self, state: TabletState) -> bool {
        self.tablets.iter().any(|t| t.state == state)
    }

    pub(crate) fn spec(&self, tablet: &TabletRecord) -> TabletSpec {
        TabletSpec {
            table: self.id,
            seed: self.seed,
            hash: self.hash,
            range: tablet.range,
            since: tablet.since,
            quota: self.quota.unwrap_or(TableQuota::NONE),
            class: self.class,
        }
    }

    /// COORD-5.
    pub(crate) fn cover_holds(&self) -> Result<(), String> {
        if self.dropping {
            return Ok(());
        }
        let broken = || {
            let id = self.id;
            Err(format!(
                "the tablets of table {id} do not cover every hash once (COORD-5)"
            ))
        };
        let mut next = Some(0);
        for tablet in &self.tablets {
            if next != Some(tablet.range.first.0) || !self.hash.may_be_tablet(tablet.range) {
                return broken();
            }
            next = tablet.range.last.0.checked_add(1);
        }
        match next {
            None => Ok(()),
            Some(_) => broken(),
        }
    }

    /// Cuts the tablet that holds `at`, so that `at` is the first hash of the upper part. False
    /// when it is cut there already.
    pub(crate) fn cut(&mut self, at: KeyHash) -> bool {
        let index = self
            .tablets
            .iter()
            .position(|t| t.range.contains(at))
            .expect("tablets cover every hash (COORD-5)");
        let lower = &mut self.tablets[index];
        if lower.range.first == at {
            return false;
        }
        let mut upper = *lower;
        upper.range.first = at;
        lower.range.last = KeyHash(at.0 - 1);
        self.tablets.insert(index + 1, upper);
        true
    }

    /// Whether a migration of something in this range has not ended for everybody.
    pub(crate) fn moves_within(&self, range: HashRange) -> bool {
        self.moves.iter().any(|m| m.range.overlaps(&range))
    }

    pub(crate) fn find_move(&mut self, id: MigrationId) -> Option<&mut MoveRecord> {
        self.moves.iter_mut().find(|m| m.id == id)
    }

    /// All migrations that are under way end without effect.
    pub(crate) fn give_up_moves(&mut self) {
        for record in &mut self.moves {
            if record.stage == MoveStage::Copying {
                record.stage = MoveStage::Stays;
            }
        }
    }

    /// A server has crashed: what it owned is recovered from its log, and what it was to receive
    /// stays where it is.
    pub(crate) fn end_moves_of(&mut self, server: ServerId) {
        self.moves.retain(|m| m.from != server);
        for record in &mut self.moves {
            if record.to == server && record.stage == MoveStage::Copying {
                record.stage = MoveStage::Stays;
            }
        }
    }
}
