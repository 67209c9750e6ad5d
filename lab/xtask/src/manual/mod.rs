//! Tasks that a person starts, because they take long or need more than CI has.

pub mod example;
pub mod long;
pub mod measure;
pub mod porcupine;
pub mod tsan;
