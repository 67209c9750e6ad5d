//! The keys that are used most, and the largest ones, as servers tell them.

use crate::codec::{Fields, Request};
use crate::data::request;
use crate::opcode::Opcode;
use pluvio_units::{KeyHash, ServerId, TableId};
use serde::{Deserialize, Serialize};

/// Most keys of one list of one table.
pub const TOP_KEYS_MAX: u32 = 64;

/// Which keys of this server are used most, and which are the largest that it has noticed?
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct GetTopKeys {
    /// Only those of this table.
    #[serde(default)]
    pub table: Option<TableId>,
    /// At most this number in each list, and [`TOP_KEYS_MAX`].
    #[serde(default)]
    pub count: u32,
}
impl Fields for GetTopKeys {}
request!(GetTopKeys => TopKeys);

/// The top lists of a server.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct TopKeys {
    /// The server.
    pub server: ServerId,
    /// The rates are averages over about this time.
    pub seconds: f64,
    /// The mean distance between samples, in operations.
    pub one_in: u32,
    /// The tables of which keys were used.
    pub tables: Vec<TopKeysOfTable>,
}
impl Fields for TopKeys {}

/// The top lists of a table at one server.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct TopKeysOfTable {
    /// The table.
    pub table: TableId,
    /// Reads of all its keys in a second.
    pub reads_per_s: f64,
    /// Changes of all its keys in a second.
    pub writes_per_s: f64,
    /// The keys that are read most, most first.
    pub reads: Vec<HotKey>,
    /// The keys that are changed most, most first.
    pub writes: Vec<HotKey>,
    /// The largest objects that were noticed, largest first.
    pub largest: Vec<LargeKey>,
}

/// A key that is used much.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct HotKey {
    /// Its hash.
    pub hash: KeyHash,
    /// Its first bytes.
    #[serde(with = "serde_bytes")]
    pub key: Vec<u8>,
    /// Bytes of all of it.
    pub key_len: u32,
    /// Operations in a second, as estimated.
    pub per_s: f64,
    /// It may be as many less, 19 times of 20.
    pub less: f64,
    /// It may be as many more, 19 times of 20.
    pub more: f64,
}

/// A large object.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct LargeKey {
    /// The hash of its key.
    pub hash: KeyHash,
    /// The first bytes of its key.
    #[serde(with = "serde_bytes")]
    pub key: Vec<u8>,
    /// Bytes of all of the key.
    pub key_len: u32,
    /// Bytes of key and value.
    pub bytes: u64,
}
