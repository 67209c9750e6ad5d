//! The works of a coordinator. Each kind of `Work` has a file or folder: the request that leads to
//! it, the changes of the state that it makes, and the task that does it.

mod assign;
mod drop;
mod migrate;
mod push;
mod recover;
mod split;
mod supervise;

pub(crate) use recover::{Inventory, reconstruct};
pub(crate) use supervise::{Supervisor, Works};

#[cfg(test)]
mod tests;
