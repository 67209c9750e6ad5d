//! Redis's RDB files, and the payloads of DUMP and RESTORE.
//!
//! - [`reader`] reads a file once, from its beginning to its end. It gives strings, and passes over
//!   the values of other types.
//! - [`writer`] writes a file of strings.
//! - [`aof`] reads append-only files: the commands in them, and their manifest.
//! - [`payload`] is for single values and for libraries of functions.
//! - [`number`] has the integers that stand in commands and in files.
//!
//! Not here: files of the system, and what is done with the objects.

pub mod aof;
mod crc64;
pub mod number;
mod pass;
pub mod payload;
pub mod reader;
mod string;
pub mod writer;
