//! The native client: finds the server of every key, masks failures, and batches.
//!
//! A [`Client`] caches where tablets are and sends each operation straight to its server. It hides
//! that servers crash, tablets move and coordinators change: a call is then only late. An operation
//! that changes data has one identity over all its retries. `docs/client.md` tells how it decides
//! what to do.
//!
//! ```no_run
//! use bytes::Bytes;
//! use pluvio_client::{Client, ClientError, ClientOptions};
//!
//! async fn visits(env: &pluvio_env::Env) -> Result<(), ClientError> {
//!     let client = Client::new(env, ClientOptions::new(["127.0.0.1:7700"]));
//!     let table = client.create_table("pages", None).await?;
//!     client.write(&table, b"home", Bytes::from_static(b"<h1>hello</h1>")).await?;
//!     let page = client.read(&table, b"home").await?.expect("it was just written");
//!     // Replace it only if nobody else did since.
//!     client.conditional_write(&table, b"home", page.value, page.version).await?;
//!     client.increment(&table, b"visits", pluvio_client::Number::Integer(1)).await?;
//!     let mut objects = client.enumerate(&table);
//!     while let Some(batch) = objects.next_batch().await? {
//!         for object in batch {
//!             println!("{:?} has version {}", object.key, object.version);
//!         }
//!     }
//!     Ok(())
//! }
//! ```
//!
//! Invariants
//! - CLIENT-1: an operation keeps its identity over all its retries; an identity is acknowledged
//!   only when nobody waits for its result any more.
//! - CLIENT-2: every call ends within [`ClientOptions::timeout`] (an enumeration: every batch),
//!   whatever the cluster does.
//! - CLIENT-3: one request carries at most `MULTI_ITEMS_MAX` items and `MULTI_BYTES_MAX` bytes of
//!   keys and values, and a batch has at most 32 requests under way. A client, with all its clones,
//!   has at most 256 requests under way to one server. It has at most 8192 operations under way
//!   that change data. More wait, first come, first served.
//! - CLIENT-4: an operation on a tablet of the [`LocalMaster`] that is answered at once neither
//!   suspends nor boxes a future, nor reads the clock.
//! - CLIENT-5: an operation that changes data is not sent any more later than it told servers with
//!   any attempt.
//! - CLIENT-6: a holder of one of the 256 places of a server waits for that server's answer only,
//!   not for a turn to begin. So an operation that waits for a place while it is under way gets it,
//!   as batches and retries do.
//! - CLIENT-7: memory is read only of the server, and of the cluster, that the table's map names. A
//!   door that another one has by then stays shut.
//! - CLIENT-8: no operation waits for a door. A server has one task at most that looks for its
//!   door, and its pauses grow.
//!
//! Threads: everything is `Send + Sync`. Servers give each core its own clone
//! ([`Client::on_core`]); others need not care.
//!
//! Not here: connections (the `Network` keeps them), caching of values.

mod at_once;
mod balance;
mod batch;
pub mod blocking;
mod client;
mod control;
mod cut;
mod doors;
mod drain;
mod early;
mod enumerate;
mod error;
mod give_up;
mod local;
mod migrate;
mod objects;
mod options;
mod request;
mod retry;
mod sequence;
mod settings;
mod several;
mod table;
#[cfg(any(test, feature = "testing"))]
pub mod testing;
#[cfg(test)]
mod tests;
mod transaction;
mod window;

pub use at_once::{AtOnce, HeldOutcome, HeldWait};
pub use batch::{BatchStopped, Key};
pub use client::Client;
pub use control::TableOptions;
pub use cut::{OneMoment, Part, Standstill};
pub use enumerate::{Cursor, Enumeration};
pub use error::{ClientError, ErrorKind};
pub use local::LocalMaster;
pub use objects::{
    BitsReply, DeleteReply, IncrementReply, LengthReply, Number, Object, WriteReply,
};
pub use options::{ClientOptions, OnDelay, Parts};
pub use several::{Doubt, ReadFirst};
pub use table::{KnownTablet, Table};
pub use transaction::{Commit, Transacted, Transaction};

pub use pluvio_trace::Sampler;
pub use pluvio_units::{Deadline, TraceContext};
pub use pluvio_wire::{
    Addend, Answer, BIT_STEPS_MAX, BitAction, BitOverflow, BitStep, Change, ChangeKind,
    ChangedObject, ChangedTo, ClusterStatus, CountObjectsReply, DECIMAL_BYTES_MAX,
    DataDirectoryStatus, DurabilityWish, EnumeratedObject, FatalKind, Get, GetTopKeys, Lifetime,
    MULTI_BYTES_MAX, MigrateTabletReply, MigrationStatus, Mutation, Opcode, Operation, Outcome,
    Output, PUT_VERSION_MAX, Payload, Projection, ProjectionKind, QuotaState, QuotaWish,
    RejectRules, RetryReason, ServerInfo, ServerList, ServerStatus, Span, TOP_KEYS_MAX,
    TRANSACTION_STEPS_MAX, TableClass, TableInfo, TableQuota, TopKeys, TouchIf, TransactionStep,
    Unfit, WhichTablet,
};
