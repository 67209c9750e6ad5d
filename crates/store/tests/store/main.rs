//! The engine, and the embedded store over it.

#![allow(clippy::unwrap_used)] // a test that fails shall say where

mod batches;
mod clocks;
mod corruption;
mod disk;
mod dropped;
mod embedded;
mod embedded_expiry;
mod embedded_full;
mod embedded_model;
mod embedded_sink;
mod embedded_threads;
mod expiry;
mod in_place;
mod large_memory;
mod leave;
mod model;
mod once;
mod ops;
mod read_back;
mod shrinking;
mod slots;
mod support;
mod views;
