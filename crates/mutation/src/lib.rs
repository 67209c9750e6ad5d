//! A mutation as a value: what a client wants done to one object, what it makes of the value, and
//! what came of it.
//!
//! ```text
//!  Mutation { table, key, rules, value_is, change, … }        Get { table, key, rules, projection }
//!        │  judge, under the lock of the object's bucket             │  look
//!        ▼                                                           ▼
//!     Verdict ── put, delete: the store appends ──► Outcome ◄────────┘
//!        └────── keep ────────────────────────────────▲
//! ```
//!
//! A [`Mutation`] names an object, the conditions under which it is refused, and one [`Change`].
//! The owner of the object judges it, by its own clock where the object has a deadline. An object
//! whose deadline is past counts as absent. The [`Outcome`] is what a completion record holds, and
//! what every reply is made from: the first one and those to retries. A read is answered by an
//! `Outcome` too: one that changed nothing.
//!
//! Several operations on objects of one owner may be one transaction. Each object has a [`Draft`],
//! on which the steps are done one after the other.
//!
//! Adding a change means adding a variant of [`Change`]; `docs/how-to/add-data-operation.md` lists
//! the places.
//!
//! Pure functions and plain values; any thread. Not here: how they are encoded (crates `wire` and
//! `format`), where they take effect (crate `store`).

mod compute;
mod judge;
mod kind;
mod transaction;
mod value;

pub use compute::{NewValue, Step, change, project};
pub use judge::{Current, Now, Verdict, judge, look};
pub use kind::{ChangeKind, ProjectionKind};
pub use transaction::{Draft, DraftChange, Operation, TRANSACTION_STEPS_MAX, TransactionStep};
pub use value::{
    Addend, BIT_STEPS_MAX, BitAction, BitOverflow, BitStep, Change, Get, Lifetime, Mutation,
    Outcome, Output, PUT_VERSION_MAX, Payload, Projection, RejectRules, Span, TouchIf, Unfit,
};
