//! Tests of the front end as a whole: bytes in, bytes out, over a cluster in memory.

#![allow(clippy::unwrap_used)] // everything here is test code

mod bench;
mod bits;
mod cluster;
mod docs;
mod expiry;
mod faults;
mod held;
mod hot_keys;
mod memory;
mod needs_redis_server;
mod operators;
mod parser;
mod pipeline;
mod random;
mod real_server;
mod scripts;
mod session;
mod slot_moves;
mod transactions;
mod updates;
mod users;
mod users_and_databases;
