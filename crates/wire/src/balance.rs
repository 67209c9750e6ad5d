//! Balancing: `docs/balance.md` tells the whole way.

use crate::codec::{Fields, Request};
use crate::data::request;
use crate::opcode::Opcode;
use pluvio_units::{HashRange, ServerId, TableId};
use serde::{Deserialize, Serialize};

/// What is asked of balancing.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum BalanceWish {
    /// Tablets move from full or busy servers to others.
    On,
    /// No more migrations are begun for the sake of balance. Those that have begun go on.
    Off,
    /// Only what it does.
    Look,
    /// Only what it does, and the moves that it would make one after the other from here. None is
    /// made for it.
    Plan,
}

/// Switches balancing, or asks what it does. A switch is answered when it is stored, also when it
/// was so before.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Balance {
    /// What is asked.
    pub wish: BalanceWish,
}
impl Fields for Balance {}
request!(Balance => BalanceStatus);

/// What balancing does.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct BalanceStatus {
    /// Whether it is on.
    pub on: bool,
    /// What it does or waits for, for people.
    pub phase: String,
    /// Moves that were begun since this coordinator leads.
    pub begun: u64,
    /// The bytes of those, about.
    pub begun_bytes: u64,
    /// Joins of neighbouring tablets since this coordinator leads.
    pub joined: u64,
    /// The moves that it would make from here, if they were asked for: the first of them.
    pub moves: Vec<BalanceMove>,
}
impl Fields for BalanceStatus {}

/// One move for the sake of balance.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct BalanceMove {
    /// The table.
    pub table: TableId,
    /// Its name.
    pub name: String,
    /// The tablet, or the part of it that is cut out first.
    pub range: HashRange,
    /// Its owner.
    pub from: ServerId,
    /// Its next owner.
    pub to: ServerId,
    /// What it holds, about.
    pub bytes: u64,
    /// Why, for people.
    pub why: String,
}
