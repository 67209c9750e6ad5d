//! What the experiments do to a store: which keys, how often, how large.

mod distribution;

pub use distribution::{Distribution, Draw};
