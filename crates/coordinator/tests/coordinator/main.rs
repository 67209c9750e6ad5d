//! The coordinator, with scripted servers in the simulator.

#![allow(clippy::unwrap_used)] // a test that fails shall say where

mod attempts;
mod chaos;
mod cluster;
mod common;
mod every_step;
mod migrations;
mod recovery_times;
mod restart;
mod size;
mod suspects;
mod takeover;
