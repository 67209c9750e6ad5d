//! Going on without the part of a log that is lost for good: `docs/recovery.md` tells the whole
//! way.

use crate::codec::{Fields, Request};
use crate::data::request;
use crate::opcode::Opcode;
use pluvio_units::{LogId, SegmentId, ServerId};
use serde::{Deserialize, Serialize};

/// Asks what is lost of a crashed server's log, or lets its recovery go on without that.
///
/// Refused as [`NotFound`](crate::FatalKind::NotFound) when the server is not crashed. Refused as
/// [`Other`](crate::FatalKind::Other) when nothing is missing, or something else than the caller
/// has seen. Refused with "come again" while a server that is up has not said what it has. Nothing
/// was changed then.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct GiveUpLost {
    /// The crashed server.
    pub server: ServerId,
    /// The person or program that asks; 128 bytes at most are kept.
    pub by: String,
    /// [`Loss::token`] of what is given up. `None` only asks.
    #[serde(default)]
    pub confirmed: Option<u64>,
}
impl Fields for GiveUpLost {}
request!(GiveUpLost => GiveUpReply);

/// What is, or would be, given up.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct GiveUpReply {
    /// What is lost.
    pub loss: Loss,
    /// It is stored that recovery goes on without it.
    pub recorded: bool,
}
impl Fields for GiveUpReply {}

/// A part of a crashed server's log that is on no backup.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Loss {
    /// The crashed server.
    pub server: ServerId,
    /// Its address.
    pub address: String,
    /// When it was given up, in seconds since 1970; 0 when it was not.
    pub at_s: u64,
    /// By which person or program.
    pub by: String,
    /// How many segments that the log had are missing.
    pub segments: u64,
    /// The first of them, 32 at most.
    pub first_segments: Vec<SegmentId>,
    /// Logs whose end is missing: nobody knows which segments they had last.
    pub logs: Vec<LogId>,
    /// How many logs the server had; 0 when that is not known either.
    pub logs_total: u16,
    /// The tables of which something may be missing, 32 at most.
    pub tables: Vec<LostTable>,
    /// How many such tables there are.
    pub tables_total: u64,
    /// At most so many bytes are missing; `None` when that cannot be said.
    pub bytes_max: Option<u64>,
    /// At most so many objects are missing; `None` when that cannot be said.
    pub objects_max: Option<u64>,
    /// Names exactly this loss.
    pub token: u64,
}

/// A table of a [`Loss`].
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct LostTable {
    /// Its name.
    pub name: String,
    /// How many of its tablets wait for the recovery.
    pub tablets: u64,
}
