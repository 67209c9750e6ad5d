//! Where clients on a server's machine find its memory.

use crate::codec::{Fields, Request, is_default};
use crate::data::request;
use crate::opcode::Opcode;
use serde::{Deserialize, Serialize};

/// Where on its machine may processes map this server's memory? A server of an earlier build
/// refuses it as [`Unsupported`](crate::FatalKind::Unsupported): it has no door that clients find.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct GetDoor {}
impl Fields for GetDoor {}
request!(GetDoor => GetDoorReply);

/// Where that is.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct GetDoorReply {
    /// `None`: its memory is not to be mapped.
    #[serde(default, skip_serializing_if = "is_default")]
    pub door: Option<DoorPlace>,
}
impl Fields for GetDoorReply {}

/// The place of a door.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct DoorPlace {
    /// The machine, as long as it runs. Processes of another one need not look.
    pub machine: String,
    /// The path of its socket there.
    pub path: String,
    /// The user that the server runs as.
    pub uid: u32,
}
