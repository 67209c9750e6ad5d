//! Lets other processes of this machine map a store's memory, to read it without a system call.
//!
//! The door is a socket in the file system. It looks at the credentials of each process that
//! connects, and hands the memory files to those that may read (crate `pluvio-mapped` is their
//! side). Its one thread keeps the page fresh that says whether what they copied counts.
//!
//! ```
//! use pluvio_door::{Door, DoorOptions};
//! use pluvio_store::{Size, Store};
//! use std::sync::Arc;
//!
//! let store = Store::builder().memory(Size::mib(64)).shared(true).build()?;
//! store.create_table("towns")?.put(b"Bern", b"134794")?;
//! let place = std::env::temp_dir().join(format!("door-{}.sock", std::process::id()));
//! let _door = Door::open(&place, Arc::new(store), DoorOptions::default())?;
//!
//! // In another process:
//! let towns = pluvio_mapped::Store::open(&place)?.table("towns")?;
//! assert_eq!(towns.get(b"Bern")?.as_deref(), Some(&b"134794"[..]));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! Invariants:
//! - DOOR-1: nothing that a reader can write is believed. Its packets are decoded with bounds, and
//!   they are all that it can write.
//! - DOOR-2: the door waits for no reader: sends and receives do not block. A reader that takes
//!   nothing for some seconds is let go. Its requests are bounded.
//! - DOOR-3: files go only to processes whose credentials the policy allows.
//!
//! Threads: one of its own. Limits: it knows nothing of tables and tablets; its owner does.

mod door;
mod owner;
mod session;

pub use door::{Allowed, Door, DoorError, DoorOptions, DoorStats};
pub use owner::{FRESH_FOR, Owner};
pub use pluvio_store::{Engine, ReadableMap, ReadableTable};
pub use session::ReaderInfo;
