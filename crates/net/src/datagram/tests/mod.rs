//! The machines against each other over a network made of faults, by seed.

mod full;
mod hostile;
mod lossy;
mod world;
