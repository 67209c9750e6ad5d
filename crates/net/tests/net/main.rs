//! Transports over real sockets and memory.

#![allow(clippy::unwrap_used)] // a test that fails shall say where

mod calls;
mod conformance;
mod datagrams;
mod every_transport;
mod fabric;
mod holds;
mod intruders;
mod memory;
mod posts;
mod rig;
mod rings;
mod said;
mod streams;
mod tls;
