//! One file for each command.

pub mod bench;
pub mod demo;
pub mod dev;
pub mod drain;
pub mod export;
pub mod import;
pub mod lifetime;
pub mod migrate;
pub mod objects;
pub mod recover;
pub mod scan;
pub mod status;
pub mod table;
pub mod top;
