//! One file for each command.

pub mod bench;
pub mod sim;
pub mod simulate;
