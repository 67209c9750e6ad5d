//! Writing many records into a table: `pluvio import` and the demo.
//!
//! `records` turns a file into records, `write` brings them to the servers.

pub mod records;
pub mod write;
