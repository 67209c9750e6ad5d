//! The log and its cleaner.

#![allow(clippy::unwrap_used)] // a test that fails shall say where

mod ahead;
mod appending;
mod choosing;
mod full_memory;
mod full_threads;
mod model;
mod pages;
mod parts;
mod support;
mod threads;
mod two_levels;
