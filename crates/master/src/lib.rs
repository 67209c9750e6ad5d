//! The master part of a server: its tablets and the operations on them. It recovers tablets that
//! other masters lost, and migrates tablets between masters that live.
//!
//! It owns which tablets are here and whether they are served. The store owns the objects and the
//! results of operations, replication the replicas.
//!
//! Invariants
//! - MASTER-1: an operation is done only on a tablet that is served here, by the server life that
//!   the caller means (TAB-2).
//! - MASTER-2: a reply that tells of a change is made from a `Durable`. A reply that rests on the
//!   change of another operation waits until that one is durable.
//! - MASTER-3: a tablet is served only after every log of this master is durably open. A recovered
//!   one is served only after the coordinator has recorded the new owner. It takes changes only
//!   after the coordinator has recorded that the tablet is durable here (REC-7).
//! - MASTER-4: nothing is answered later than the server allowed ([`Master::serve_until`]): it
//!   knows how long nobody else can have been given the tablets.
//! - MASTER-5: an operation with an identity is looked up among the results of the store only after
//!   its tablet was found to be served here. So the results of a recovered tablet are there.
//! - MASTER-6: orders of the coordinator about a table (take, cut, drop) are done in the order of
//!   the metadata's versions. A late one is refused (COORD-12). So is every request to take or to
//!   cut something of a table that was dropped. A drop is for ever, and never late.
//!
//! MASTER, COMP (crate store) and CLIENT (crate client) together give an operation with an identity
//! these promises (`docs/exactly-once.md`):
//! - EO-1: of one operation at most one execution takes effect, over lost replies, late and doubled
//!   requests, crashes, recoveries and migrations (COMP-1, COMP-2, MASTER-5).
//! - EO-2: a retry is told the result of the execution, also where that was a rejection.
//! - EO-3: a result is told only when it is durable, with all that it rests on (MASTER-2, STORE-5).
//! - EO-4: a server knows a client, with all its unacknowledged results, for longer than the client
//!   repeats any of its operations (COMP-3).
//! - EO-5: results are bounded; at the bound an operation is refused with "retry" and is never
//!   executed without a place for its result (COMP-4).
//! - EO-6: the acknowledgement of an operation is known wherever its tablet goes among living
//!   servers. That lasts as long as a copy of the request can be on its way (COMP-6).
//!
//! Threads: every method takes `&self` and may be called on any core; the log of a change is that
//! of the core it came to. Nothing blocks.
//!
//! Not here: membership (crate server), the places of tablets (coordinator).

mod cancel;
mod classes;
mod cut;
mod master;
mod migrate;
mod ops;
mod orders;
mod quotas;
mod readers;
mod recover;
mod recovery_attempts;
mod service;
mod settlements;
mod side_log;
mod tablets;
mod top_keys;

pub use master::{Master, MasterParts};
pub use ops::Replies;
pub use pluvio_mutation::Current;
pub use recover::{AddressBook, RecoveryOptions};
pub use service::ObjectsOp;
pub use tablets::{LocalTable, Snapshot, Tablet, TabletMap, TabletPhase, Tracked};
pub use top_keys::{TableTraffic, Traffic};
