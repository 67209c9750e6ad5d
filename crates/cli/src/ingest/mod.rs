//! Writing many records into a table: `pluvio import` and the demo.
//!
//! `records` turns a file into records, with `csv_file` for one kind of file; `write` brings them
//! to the servers.

pub mod csv_file;
pub mod records;
pub mod redis;
pub mod write;
