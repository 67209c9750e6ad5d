//! The experiments of the SpaceJMP paper (chapters VII to X of the Nibble dissertation) on stock
//! Linux, with crate `spacejmp` and with mapped reads.
//!
//! - `switch`, `attach`, `walk`, `gups`: what switching costs, and what mapping does.
//! - `redis`: a store that its clients enter, beside servers that they ask.
//! - `tools`: programs that leave their data in memory for the next one, beside files.
//! - `setting`: what all of them need to know. `turns`: contestants take turns. `children`:
//!   processes of an experiment. `place`: where spans lie. `raw`: mappings without crate
//!   `spacejmp`.
//!
//! Each experiment gives rows, ratios and a picture (`bench::experiment`).
//!
//! Each one's `Options` are those of its command, which `main` runs. Not here: judging results.

pub mod attach;
mod children;
mod error;
pub mod gups;
mod place;
mod raw;
pub mod redis;
pub mod role;
mod setting;
pub mod switch;
pub mod tools;
mod turns;
pub mod walk;

pub use children::{Program, is_installed};
pub use error::{JumpError, Result};
pub use setting::Setting;
