//! The tests that CI runs, and the simulator's seeds among them.

pub mod seeds;
pub mod test;
