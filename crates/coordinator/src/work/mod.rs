//! The works of a coordinator. Each kind of `Work` has a file or folder. It holds the request that
//! leads to the work, its changes of the state, and the task that does it.

mod assign;
mod balance;
mod drain;
mod drop;
mod join;
mod migrate;
mod push;
mod quotas;
mod recover;
mod sizes;
mod split;
mod supervise;

pub(crate) use recover::{Inventory, reconstruct_without};
pub(crate) use supervise::{Supervisor, Works};

#[cfg(test)]
mod tests;
