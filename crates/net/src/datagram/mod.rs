//! Datagrams with delivery of our own: sessions, acks, retransmission and windows over UDP.
//! `docs/datagrams.md` draws the datagram and tells how a session lives.
//!
//! From the inside out:
//! - `packet` and `opening` are the bytes; `siphash` is the keyed check; `ranges` are sets of
//!   numbers.
//! - `outbox`, `inbox` and `flight` are the three parts of a [`session::Session`]: messages that go
//!   out, messages that come in, datagrams under way.
//! - [`caller::Caller`] is the client's side of one session, [`endpoint::Endpoint`] the server's
//!   side of all sessions of a socket.
//! - `client_io` and `serve` are the tasks that give them sockets and time. `machines` shows them
//!   to programs with a network of their own.
//!
//! All but those two tasks know no socket, clock or task, and are tested in virtual time.

mod caller;
pub(crate) mod client_io;
mod endpoint;
mod flight;
mod inbox;
#[cfg(feature = "machines")]
pub mod machines;
mod opening;
mod outbox;
mod packet;
mod ranges;
pub(crate) mod serve;
mod session;
mod siphash;
mod socket;
#[cfg(test)]
mod tests;
mod timer;
