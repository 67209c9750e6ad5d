//! Backups: replicas on disks.

#![allow(clippy::unwrap_used)] // a test that fails shall say where

mod admission;
mod copies;
mod directories;
mod hang;
mod misplaced;
mod open_frames;
mod recovery;
mod replicas;
mod speed;
mod support;
