//! Moving tablets between servers that live [RAMCloud fig. 2]. `docs/migration.md` tells the whole
//! way.

use crate::codec::{Fields, Request};
use crate::control::{TableRef, TabletSpec};
use crate::data::{payload_is, request};
use crate::opcode::Opcode;
use bytes::Bytes;
use pluvio_units::{
    Acknowledged, ClusterId, HashRange, KeyHash, MetadataVersion, MigrationId, Rank, SegmentId,
    ServerId, TableId,
};
use serde::{Deserialize, Serialize};

/// Which tablet of a table.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum WhichTablet {
    /// The one that contains this hash.
    Containing(KeyHash),
    /// This range, which lies in one tablet and is cut out of it if it is smaller. In a slot table
    /// all hashes of its slots go along.
    Range(HashRange),
}

/// Moves a tablet to another server. Answered when that is stored; [`GetMigration`] tells the end.
/// One that is there already, or on its way there, is no error.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct MigrateTablet {
    /// The table.
    pub table: TableRef,
    /// The tablet.
    pub tablet: WhichTablet,
    /// The server that is to have it.
    pub to: ServerId,
}
impl Fields for MigrateTablet {}
request!(MigrateTablet => MigrateTabletReply);

/// What was begun.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct MigrateTabletReply {
    /// The migration; `None` when the tablet is there already.
    pub migration: Option<MigrationId>,
    /// The tablet's range.
    pub range: HashRange,
}
impl Fields for MigrateTabletReply {}

/// How does a migration go?
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct GetMigration {
    /// Which.
    pub migration: MigrationId,
}
impl Fields for GetMigration {}
request!(GetMigration => GetMigrationReply);

/// How a migration goes.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct GetMigrationReply {
    /// `None`: it has ended, and how is not known any more. Where the tablet is now tells.
    pub status: Option<MigrationStatus>,
}
impl Fields for GetMigrationReply {}

/// A migration, for people.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct MigrationStatus {
    /// Its number.
    pub migration: MigrationId,
    /// The table.
    pub table: TableId,
    /// The table's name.
    pub name: String,
    /// The tablet.
    pub range: HashRange,
    /// Who had it.
    pub from: ServerId,
    /// Who is to have it.
    pub to: ServerId,
    /// Its stage, or why it was given up.
    pub phase: String,
    /// Whether it has ended.
    pub done: bool,
    /// Whether the tablet is at its new owner.
    pub moved: bool,
    /// Milliseconds since it was begun, or since a new coordinator took it up.
    pub duration_ms: u64,
    /// What was copied so far.
    pub progress: MigrationProgress,
}

/// How much of a tablet was copied.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct MigrationProgress {
    /// Bytes of entries that came from the source.
    pub bytes: u64,
    /// Objects that are there now.
    pub objects: u64,
    /// Changes made during the copy that were copied too.
    pub changes: u64,
    /// How long the tablet was served by nobody so far, in microseconds.
    pub frozen_us: u64,
}

/// Asks a server to take over a tablet. Answered at once; the end is reported with
/// [`TabletReceived`]. Asked again it tells how far it is.
#[derive(Clone, Copy, PartialEq, Debug, Serialize, Deserialize)]
pub struct ReceiveTablet {
    /// The migration.
    pub migration: MigrationId,
    /// The tablet.
    pub tablet: TabletSpec,
    /// The server that serves it.
    pub from: ServerId,
}
impl Fields for ReceiveTablet {}
request!(ReceiveTablet => MigrationProgress);
impl Fields for MigrationProgress {}

/// A part of a tablet that moves. Asking for a part again is harmless: what it holds is replayed by
/// version.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum TabletPart {
    /// Objects whose ranks lie here or beyond.
    Objects(Rank),
    /// Changes made since the copy began that were noted behind this number; those up to it are not
    /// asked for again.
    Changes(u64),
    /// The changes behind this number; from now on the tablet is served no more.
    LastChanges(u64),
    /// Results of operations and what clients have acknowledged, both from this one on, and the
    /// safe version. Of a frozen tablet only.
    Results(u64),
}

/// The next part of a tablet that moves, asked by its receiver.
#[derive(Clone, Copy, PartialEq, Debug, Serialize, Deserialize)]
pub struct GetTabletData {
    /// The migration.
    pub migration: MigrationId,
    /// The tablet.
    pub tablet: TabletSpec,
    /// Which part.
    pub part: TabletPart,
}
impl Fields for GetTabletData {}
request!(GetTabletData => GetTabletDataReply);

/// A part of a tablet.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
pub struct GetTabletDataReply {
    /// Where the next part of this kind begins; `None` when there is nothing more for the moment.
    pub next: Option<u64>,
    /// Of changes: how many have been noted and are not in here.
    pub left: u64,
    /// With results: what clients have acknowledged, also of operations on other tablets.
    pub acknowledged: Vec<Acknowledged>,
    /// With last changes: for how many microseconds the tablet has been frozen. `None` from servers
    /// that do not say so.
    #[serde(default)]
    pub frozen_us: Option<u64>,
    /// Entries, one after the other without padding (the payload).
    #[serde(skip)]
    pub data: Bytes,
}
payload_is!(GetTabletDataReply.data);

/// Reports that a tablet was received and is durable, or why not.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct TabletReceived {
    /// The cluster; 0 from servers that do not name it yet.
    #[serde(default)]
    pub cluster: ClusterId,
    /// The migration.
    pub migration: MigrationId,
    /// The receiver.
    pub server: ServerId,
    /// Where its log of the tablet begins; see [`TabletSpec::since`].
    pub since: SegmentId,
    /// How much, or why not.
    pub result: Result<MigrationProgress, String>,
}
impl Fields for TabletReceived {}
request!(TabletReceived => TabletReceivedReply);

/// The coordinator's word on a received tablet.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct TabletReceivedReply {
    /// The receiver owns the tablet now. Otherwise it must forget what it received.
    pub accepted: bool,
}
impl Fields for TabletReceivedReply {}

/// Tells the former owner how a migration ended. Answered when nothing is left to do.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct EndMigration {
    /// The migration.
    pub migration: MigrationId,
    /// The tablet belongs to another server. Otherwise it stays, and is to be served again.
    pub moved: bool,
    /// The version of the metadata that says so; 0: not told.
    #[serde(default)]
    pub version: MetadataVersion,
}
impl Fields for EndMigration {}
request!(EndMigration => ());
