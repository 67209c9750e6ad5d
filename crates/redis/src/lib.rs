//! The Redis protocol, RESP2 and RESP3, on every server: any server answers for any key.
//!
//! [`RedisService`] takes connections from a network and cuts their bytes into commands. It runs
//! them through the client library, which answers in place for keys of the same process, and writes
//! replies in order. `docs/redis.md` lists the commands and where they differ from Redis.
//!
//! The way of a command:
//!
//! 1. `connection.rs` reads bytes.
//! 2. `parser.rs` cuts a command from them.
//! 3. `table.rs` finds it; the rows of the table are in `specs.rs`.
//! 4. `commands` runs it.
//! 5. `queue.rs` keeps outcomes that are not durable, and replies, in order.
//! 6. `reply.rs` writes the reply into `output.rs`.
//!
//! Between MULTI and EXEC, commands go into `block.rs` instead; EXEC runs them as one transaction.
//!
//! `counters.rs` and `command_log.rs` keep what INFO, SLOWLOG and LATENCY tell, `monitor.rs` what
//! MONITOR tells, and `pause.rs` what CLIENT PAUSE holds up. `parameters.rs` is for CONFIG SET. The
//! payloads of DUMP and RESTORE are those of crate `rdb`.
//!
//! `users` keeps users, their passwords and their rights; `connection/rights.rs` asks for them.
//!
//! `memory.rs` bounds what all connections hold, and `spare.rs` keeps memory that they lend each
//! other. `database.rs` turns database numbers into tables.
//!
//! Invariants
//! - REDIS-1: replies of a connection leave in the order of its commands.
//! - REDIS-2: commands of a connection take effect in their order, whichever servers have their
//!   keys; a command is acknowledged only when its replicas have it.
//! - REDIS-3: errors that Redis has have the texts of Redis: clients choose their way by them.
//! - REDIS-4: input of a peer costs memory only as it arrives, and within bounds, and so do the
//!   replies. There are bounds of one connection (PARSE-2, CONN-3, QUEUE-3), and one of all
//!   connections of a server together (CLIMEM-1).
//! - REDIS-5: a command is run only if the connection's user may run it (RIGHTS-1), also inside
//!   transactions and scripts.
//!
//! Threads: a connection stays on the core that accepted it. Cores share the list of connections,
//! and counters that are only added up to be shown.
//!
//! Not here: sockets, publish and subscribe.

mod block;
mod clients;
mod command_log;
mod commands;
mod connection;
mod counters;
mod database;
mod failure;
mod give_way;
mod glob;
mod hot_keys;
mod memory;
mod monitor;
mod output;
mod parameters;
mod parser;
mod pause;
mod queue;
mod reply;
mod scripts;
mod service;
mod session;
mod shared;
mod spare;
mod specs;
mod table;
mod users;
mod version;

// Under their short names: most commands read numbers.
use pluvio_rdb::{number, payload as rdb};

pub use counters::{CommandTotals, Latencies, Totals};
pub use database::DatabaseId;
pub use hot_keys::{HotKeys, HotKeysOf, HotSession, HotTable};
pub use memory::{ClientMemory, ClientMemoryStats};
pub use parameters::Parameters;
pub use parser::{Command, Limits, Parsed, Parser, ProtocolError, TooLarge};
pub use reply::{Bulks, Failure, Protocol, Reply};
pub use service::RedisService;
pub use shared::{
    ClusterPort, Elsewhere, MachineFn, MachineUse, RedisOptions, ServersFn, StatusFn,
};
pub use table::{Keys, SPECS, Spec};
pub use users::Users;
pub use users::password::{Cost, Password};
