//! The embedded store for programs in C: the library `libpluvio_store_c`, whose header is
//! `include/pluvio_store.h`.
//!
//! What it owns: handles, codes of errors, and messages.
//!
//! Invariants
//! - CABI-1: a handle is a number that is given once. A null pointer, a wrong or closed handle, and
//!   a length over its limit give an error. Nothing is read or written through them.
//! - CABI-2: no panic leaves a function: it is [`Code::PluvioPanic`](code::Code).
//! - CABI-3: a store is not closed while a view or an iterator of it is open.
//!
//! Threads: any number may call, with the same handles too. A message belongs to its thread.
//!
//! Limits: a pointer that is not null has to be valid; no function can find out.

// Only C calls these functions. The head of the header states the contract of them all.
#![allow(clippy::missing_safety_doc)]

#[allow(unsafe_code)] // pointers of C
mod arguments;
#[allow(unsafe_code)] // exported functions
mod batches;
#[allow(unsafe_code)] // exported functions
mod code;
#[allow(unsafe_code)] // exported functions
mod data;
mod handles;
#[allow(unsafe_code)] // exported functions
mod mapped;
#[allow(unsafe_code)] // exported functions
mod open;
#[allow(unsafe_code)] // exported functions
mod walk;
