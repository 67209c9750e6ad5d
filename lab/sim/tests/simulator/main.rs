//! The simulator itself: what it does to messages, processes, clocks and disks.

#![allow(clippy::unwrap_used)] // a test that fails shall say where

mod conformance;
mod determinism;
mod network;
mod processes;
mod support;
