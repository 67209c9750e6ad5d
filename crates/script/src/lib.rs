//! Lua 5.1 in a sandbox: the engine for scripts and functions of the Redis port.
//!
//! ```text
//!  source ──► Interpreter::run(script, keys, arguments, commands, budget) ──► Ended
//!                   │   redis.call(…)                 ▲
//!                   └──────────► Commands::call ──────┘
//! ```
//!
//! A script runs to its end, or is interrupted, in the thread that calls [`Interpreter::run`]. It
//! sees nothing but its keys, its arguments, the libraries here, and what [`Commands`] gives it.
//!
//! - SCRIPT-1: nothing of one script is there for the next: globals, tables of libraries and the
//!   metatable of strings are read only or made anew.
//! - SCRIPT-2: an interrupted script ends, whatever it does: `pcall` does not catch that. The
//!   budget counts instructions, and steps of pattern matching, which Lua does not count. It may
//!   have an end by time.
//! - SCRIPT-3: memory is bounded by the budget, and by [`MEMORY_MAX`]; `pcall` does not catch that,
//!   either.
//! - SCRIPT-4: no files, no network, no clock, no bytecode.
//!
//! An [`Interpreter`] belongs to one thread. Not here: what commands do, where scripts are kept.

mod arguments;
mod bits;
mod budget;
mod convert;
mod functions;
mod interpreter;
mod json;
mod msgpack;
mod numbers;
mod pattern;
mod random;
mod redis;
mod sandbox;
mod shebang;
mod structs;

pub use budget::{Budget, Stop};
pub use functions::{Function, Library};
pub use interpreter::{Ended, Interpreter, MEMORY_MAX};
pub use numbers::number_text;
pub use shebang::{Flags, Shebang, ShebangError};

use bytes::Bytes;
use smallvec::SmallVec;

/// A value of the Redis protocol, as scripts give and take it.
#[derive(Clone, PartialEq, Debug)]
pub enum Value {
    /// Nothing.
    Nil,
    /// An integer.
    Integer(i64),
    /// A status.
    Status(Vec<u8>),
    /// An error, with its code.
    Error(Vec<u8>),
    /// Bytes.
    Bulk(Bytes),
    /// A list.
    Array(Vec<Self>),
    /// Pairs, of protocol version 3.
    Map(Vec<(Self, Self)>),
    /// A set, of protocol version 3.
    Set(Vec<Self>),
    /// A number with a fraction, of protocol version 3.
    Double(f64),
    /// A truth value, of protocol version 3.
    Boolean(bool),
    /// An integer of any size, of protocol version 3.
    BigNumber(Vec<u8>),
    /// Text with its format of three letters, of protocol version 3.
    Verbatim(Vec<u8>, Vec<u8>),
}

/// The script cannot go on now. The side of [`Commands`] knows why.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Interrupted;

/// The parts of a command, one behind the other. There is at least one.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Parts {
    bytes: Vec<u8>,
    ends: Ends,
}

/// Where the parts of a command end. Most commands have few.
pub type Ends = SmallVec<[usize; 4]>;

impl Parts {
    fn with_capacity(bytes: usize) -> Self {
        Self {
            bytes: Vec::with_capacity(bytes),
            ends: Ends::new(),
        }
    }

    fn push(&mut self, part: &[u8]) {
        self.bytes.extend_from_slice(part);
        self.ends.push(self.bytes.len());
    }

    /// Each of them.
    pub fn iter(&self) -> impl Iterator<Item = &[u8]> {
        let starts = core::iter::once(0).chain(self.ends.iter().copied());
        let spans = starts.zip(&self.ends);
        spans.map(|(start, end)| &self.bytes[start..*end])
    }

    /// All bytes, and where each part ends.
    #[must_use]
    pub fn into_joined(self) -> (Vec<u8>, Ends) {
        (self.bytes, self.ends)
    }
}

/// The server, as a script sees it.
pub trait Commands {
    /// Runs a command. An error of the command is a value.
    ///
    /// # Errors
    /// The script is to be interrupted.
    fn call(&mut self, command: Parts) -> Result<Value, Interrupted>;
    /// Whether the user of the script may run a command; `None`: there is no such command.
    fn may_call(&mut self, command: Parts) -> Option<bool>;
    /// Writes a line to the server's log; `level` is 0 (debug) to 3 (warning).
    fn log(&mut self, level: u8, text: &[u8]);
    /// The script wants replies in this version of the protocol: 2 or 3.
    fn set_protocol(&mut self, version: u8);
}

/// The hash by which a script is called: SHA-1 of its source, in hexadecimal.
#[must_use]
pub fn sha1_hex(source: &[u8]) -> String {
    use core::fmt::Write;
    use sha1::Digest;
    let digest = sha1::Sha1::digest(source);
    digest.iter().fold(String::new(), |mut text, byte| {
        let _infallible = write!(text, "{byte:02x}");
        text
    })
}
