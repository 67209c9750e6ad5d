//! RPC messages, their encoding, and the one table of operations.
//!
//! A message is an [`env::Frame`](pluvio_env::Frame): an opcode, a small `meta` part and a bulk
//! `payload` that is never parsed on the way. `meta` of a request is a fixed header ([`Header`])
//! and the message's fields. `meta` of a reply is a status byte and either the reply's fields or a
//! [`Refusal`].
//!
//! Most messages have their fields in msgpack with their names ([`Fields`]). Reads and mutations of
//! objects and their reply have fixed binary layouts, drawn in `objects.rs`.
//!
//! Invariants
//! - WIRE-1: every reply says what its caller can do: use it, retry, refresh its map, see a reject
//!   rule that fired, or give up ([`Refusal`]). A retry has a time to wait.
//! - WIRE-2: decoding is total: any bytes give a message or a [`Refusal`], never a panic. Memory is
//!   taken only in proportion to the bytes that arrived.
//! - WIRE-3: opcode numbers, field names, codes and flags are never used again for something else.

mod balance;
mod classes;
mod codec;
mod control;
mod coordinators;
mod cut;
mod data;
mod door;
mod drain;
mod give_up;
mod header;
mod limits;
mod list_change;
mod migration;
mod objects;
mod opcode;
mod quota;
mod recovery;
mod recovery_stage;
mod refusal;
mod replication;
mod settings;
mod top_keys;
mod traced;

pub use balance::*;
pub use classes::*;
pub use codec::{
    Answer, Body, Fields, Request, RpcError, call, decode, encode, handled, reply, reply_to,
};
pub use control::*;
pub use coordinators::Coordinators;
pub use cut::*;
pub use data::*;
pub use door::*;
pub use drain::*;
pub use give_up::*;
pub use header::Header;
pub use limits::{check_key, check_table_name, check_value};
pub use list_change::{ChangeServerList, HasServerList};
pub use migration::*;
pub use objects::{
    DECIMAL_BYTES_MAX, Gets, Mutations, Outcomes, Results, Steps, Whole, call_frame, check_get,
    check_mutation, check_transaction, decode_get, decode_mutate, decode_transact, encode_get,
    encode_mutate, encode_mutate_early, encode_prepare, encode_transact, handled_outcomes,
    reply_outcomes,
};
pub use opcode::{
    BackupOp, Class, CoordinatorOp, DataOp, MasterOp, Opcode, Role, RoleOp, ServerOp,
};
pub use pluvio_mutation::{
    Addend, BIT_STEPS_MAX, BitAction, BitOverflow, BitStep, Change, ChangeKind, Get, Lifetime,
    Mutation, Operation, Outcome, Output, PUT_VERSION_MAX, Payload, Projection, ProjectionKind,
    RejectRules, Span, TRANSACTION_STEPS_MAX, TouchIf, TransactionStep, Unfit,
};
pub use quota::*;
pub use recovery::*;
pub use recovery_stage::{RecoveryFailure, RecoveryFailures, RecoveryStage};
pub use refusal::{FatalKind, Refusal, RetryReason};
pub use replication::*;
pub use settings::*;
pub use top_keys::*;
pub use traced::{TRACED, TRACED_SINCE, is_unknown, traced_opcode, unwrap_traced, wrap_traced};

/// The newest version of the protocol between processes that this program speaks, and of what they
/// store. A cluster uses one version, which `pluvio finalize` raises: `docs/versions.md`.
pub const PROTOCOL_VERSION: u16 = 8;
/// The oldest version that this program speaks: the one before, or the same.
pub const PROTOCOL_OLDEST: u16 = 7;
/// Most items of one read or mutation of objects; clients split larger batches.
pub const MULTI_ITEMS_MAX: usize = 1024;
/// Most payload bytes of one request or reply that carries objects; clients split larger batches.
pub const MULTI_BYTES_MAX: usize = 4 << 20;
