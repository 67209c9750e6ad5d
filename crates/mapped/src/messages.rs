//! The messages between a reader and the door of a store: their bytes.
//!
//! Each is one packet of a `SOCK_SEQPACKET` socket. The first byte is its kind, numbers are
//! little-endian. Files come with the packet that names them.
//!
//! ```text
//! reader                                owner
//! HELLO magic, protocol            ───►
//!                                  ◄─── WELCOME what is shared    + gate, log, seglets
//!                                       or REFUSED why, and the end
//! GET_MAP                          ───►
//!                                  ◄─── MAP version
//!                                  ◄─── TABLE id, hash, ranges ...     for each table
//!                                  ◄─── INDEX table, range, layout     + its file, if it is new
//!                                  ◄─── MAP_END version
//! ```
//!
//! An index file is sent once in a session as long as it stays in the map. A side that reads
//! something else than it may get ends the session. An owner that does not understand the greeting
//! sends its own one first: by that the reader knows that the owner is another version.

use pluvio_index::IndexLayout;
use pluvio_units::{ClusterId, HashKind, HashRange, KeyHash, ServerId, TableHash, TableId};

/// The first word of a session.
const MAGIC: u32 = u32::from_le_bytes(*b"PMAP");
/// Raised with each change of these messages.
const PROTOCOL: u16 = 2;

/// Longest packet.
pub const PACKET_MAX: usize = 48 << 10;
/// Most ranges that one packet names; others follow in further packets for the table.
pub const RANGES_MAX: usize = 1024;
/// Most files that come with a packet.
pub const FILES_MAX: usize = 3;
/// Most tables of a map, and most indexes: a reader of more asks by RPC.
pub const MAP_MAX: usize = 1 << 16;

/// Most characters of a refusal.
const WHY_MAX: usize = 1024;

const HELLO: u8 = 1;
const WELCOME: u8 = 2;
const REFUSED: u8 = 3;
const GET_MAP: u8 = 4;
const MAP: u8 = 5;
const TABLE: u8 = 6;
const INDEX: u8 = 7;
const MAP_END: u8 = 8;

/// The memory that the owner shares, and how it is read. Its files: gate, log and seglets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Welcome {
    /// The cluster; 0 for a store inside a program.
    pub cluster: ClusterId,
    /// The server; 0 for a store inside a program.
    pub server: ServerId,
    /// Readers have nobody to ask. Values that are not durable yet are shown. A deadline that is
    /// near is judged by the last time that the owner has judged by.
    pub alone: bool,
    /// Bytes of the gate's file.
    pub gate: u64,
    /// Bytes of the log's.
    pub log: u64,
    /// Bytes of the file of its table of seglets.
    pub seglets: u64,
    /// The owner's `CLOCK_BOOTTIME` when it sent this, in nanoseconds.
    pub boottime_ns: u64,
}

/// A table of a map, or more ranges of one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TableEntry {
    /// Its id.
    pub id: TableId,
    /// Its name; empty where readers know it by its id.
    pub name: String,
    /// How its keys are hashed.
    pub hash: TableHash,
    /// Ranges that are served.
    pub served: Vec<HashRange>,
}

/// An index of a table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct IndexEntry {
    /// The table.
    pub table: TableId,
    /// The range that it has of it.
    pub range: HashRange,
    /// How it lies in its memory.
    pub layout: IndexLayout,
    /// Whether its file comes with this.
    pub has_file: bool,
}

/// A message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Message {
    /// A reader has connected.
    Hello,
    /// It may read.
    Welcome(Welcome),
    /// It may not, for this reason.
    Refused(String),
    /// It wants the map.
    GetMap,
    /// A map of this version follows.
    Map(u64),
    /// See [`TableEntry`].
    Table(TableEntry),
    /// See [`IndexEntry`].
    Index(IndexEntry),
    /// The map is complete.
    MapEnd(u64),
}

/// A packet that is no message of this protocol.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the other side speaks another protocol, or another version of it")]
pub struct BadMessage;

impl Message {
    /// Its bytes.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(128);
        match self {
            Self::Hello => {
                out.push(HELLO);
                out.extend(MAGIC.to_le_bytes());
                out.extend(PROTOCOL.to_le_bytes());
            }
            Self::Welcome(welcome) => {
                out.push(WELCOME);
                out.push(u8::from(welcome.alone));
                let Welcome {
                    cluster,
                    server,
                    alone: _,
                    gate,
                    log,
                    seglets,
                    boottime_ns,
                } = *welcome;
                put(&mut out, &[cluster.0, server.0, gate, log, seglets]);
                put(&mut out, &[boottime_ns]);
            }
            Self::Refused(why) => {
                out.push(REFUSED);
                out.extend(why.chars().take(WHY_MAX).collect::<String>().as_bytes());
            }
            Self::GetMap => out.push(GET_MAP),
            Self::Map(version) => {
                out.push(MAP);
                put(&mut out, &[*version]);
            }
            Self::Table(table) => {
                out.push(TABLE);
                out.push(kind_code(table.hash.kind));
                put(&mut out, &[table.id.0, table.hash.seed]);
                let name = table.name.as_bytes();
                put(&mut out, &[name.len() as u64]);
                out.extend(name);
                for range in &table.served {
                    put(&mut out, &[range.first.0, range.last.0]);
                }
            }
            Self::Index(index) => {
                out.push(INDEX);
                out.push(u8::from(index.has_file));
                out.push(kind_code(index.layout.kind));
                let (range, layout) = (index.range, index.layout);
                let expected = layout.expected;
                put(&mut out, &[index.table.0, range.first.0, range.last.0]);
                put(&mut out, &[layout.id, layout.bytes]);
                put(&mut out, &[layout.lines_min, layout.lines_max]);
                put(&mut out, &[expected.first.0, expected.last.0]);
            }
            Self::MapEnd(version) => {
                out.push(MAP_END);
                put(&mut out, &[*version]);
            }
        }
        debug_assert!(out.len() <= PACKET_MAX, "a packet of {} bytes", out.len());
        out
    }

    /// Reads a packet.
    ///
    /// # Errors
    /// [`BadMessage`].
    pub fn decode(packet: &[u8]) -> Result<Self, BadMessage> {
        let mut rest = packet;
        let message = match take_byte(&mut rest)? {
            HELLO => {
                let (magic, protocol) = (take::<4>(&mut rest)?, take::<2>(&mut rest)?);
                let is_ours =
                    u32::from_le_bytes(magic) == MAGIC && u16::from_le_bytes(protocol) == PROTOCOL;
                is_ours.then_some(Self::Hello).ok_or(BadMessage)?
            }
            WELCOME => Self::Welcome(Welcome {
                alone: take_flag(&mut rest)?,
                cluster: ClusterId(take_word(&mut rest)?),
                server: ServerId(take_word(&mut rest)?),
                gate: take_word(&mut rest)?,
                log: take_word(&mut rest)?,
                seglets: take_word(&mut rest)?,
                boottime_ns: take_word(&mut rest)?,
            }),
            REFUSED => {
                let why = String::from_utf8_lossy(rest).into_owned();
                rest = &[];
                Self::Refused(why)
            }
            GET_MAP => Self::GetMap,
            MAP => Self::Map(take_word(&mut rest)?),
            TABLE => {
                let kind = take_kind(&mut rest)?;
                let id = TableId(take_word(&mut rest)?);
                let seed = take_word(&mut rest)?;
                let name_len = usize::try_from(take_word(&mut rest)?).map_err(|_| BadMessage)?;
                let (name, ranges) = rest.split_at_checked(name_len).ok_or(BadMessage)?;
                let name = String::from_utf8(name.to_vec()).map_err(|_| BadMessage)?;
                rest = ranges;
                let mut served = Vec::new();
                while !rest.is_empty() {
                    if served.len() == RANGES_MAX {
                        return Err(BadMessage);
                    }
                    served.push(take_range(&mut rest)?);
                }
                let hash = TableHash { kind, seed };
                Self::Table(TableEntry {
                    id,
                    name,
                    hash,
                    served,
                })
            }
            INDEX => {
                let has_file = take_flag(&mut rest)?;
                let kind = take_kind(&mut rest)?;
                let table = TableId(take_word(&mut rest)?);
                let range = take_range(&mut rest)?;
                let layout = IndexLayout {
                    id: take_word(&mut rest)?,
                    bytes: take_word(&mut rest)?,
                    lines_min: take_word(&mut rest)?,
                    lines_max: take_word(&mut rest)?,
                    expected: take_range(&mut rest)?,
                    kind,
                };
                Self::Index(IndexEntry {
                    table,
                    range,
                    layout,
                    has_file,
                })
            }
            MAP_END => Self::MapEnd(take_word(&mut rest)?),
            _ => return Err(BadMessage),
        };
        match rest.is_empty() {
            true => Ok(message),
            false => Err(BadMessage),
        }
    }
}

fn put(out: &mut Vec<u8>, words: &[u64]) {
    out.extend(words.iter().flat_map(|word| word.to_le_bytes()));
}

fn take<const N: usize>(rest: &mut &[u8]) -> Result<[u8; N], BadMessage> {
    let (first, others) = rest.split_first_chunk().ok_or(BadMessage)?;
    *rest = others;
    Ok(*first)
}

fn take_byte(rest: &mut &[u8]) -> Result<u8, BadMessage> {
    take::<1>(rest).map(|[byte]| byte)
}

fn take_word(rest: &mut &[u8]) -> Result<u64, BadMessage> {
    take(rest).map(u64::from_le_bytes)
}

fn take_flag(rest: &mut &[u8]) -> Result<bool, BadMessage> {
    match take_byte(rest)? {
        0 => Ok(false),
        1 => Ok(true),
        _ => Err(BadMessage),
    }
}

fn take_range(rest: &mut &[u8]) -> Result<HashRange, BadMessage> {
    let (first, last) = (take_word(rest)?, take_word(rest)?);
    match first <= last {
        true => Ok(HashRange::new(KeyHash(first), KeyHash(last))),
        false => Err(BadMessage),
    }
}

fn kind_code(kind: HashKind) -> u8 {
    match kind {
        HashKind::Seeded => 0,
        HashKind::Slots => 1,
    }
}

fn take_kind(rest: &mut &[u8]) -> Result<HashKind, BadMessage> {
    match take_byte(rest)? {
        0 => Ok(HashKind::Seeded),
        1 => Ok(HashKind::Slots),
        _ => Err(BadMessage),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all() -> Vec<Message> {
        let range = HashRange::new(KeyHash(3), KeyHash(9));
        let hash = TableHash {
            kind: HashKind::Slots,
            seed: 5,
        };
        let layout = IndexLayout {
            id: 8,
            bytes: 1 << 20,
            lines_min: 16,
            lines_max: 900,
            expected: range,
            kind: HashKind::Seeded,
        };
        let welcome = Welcome {
            cluster: ClusterId(6),
            server: ServerId(1),
            alone: true,
            gate: 2,
            log: 3,
            seglets: 4,
            boottime_ns: 5,
        };
        let table = TableEntry {
            id: TableId(7),
            name: "Zürich".into(),
            hash,
            served: vec![range; 3],
        };
        let index = IndexEntry {
            table: TableId(7),
            range,
            layout,
            has_file: true,
        };
        vec![
            Message::Hello,
            Message::Welcome(welcome),
            Message::Refused("user 7 may not".into()),
            Message::GetMap,
            Message::Map(4),
            Message::Table(table),
            Message::Index(index),
            Message::MapEnd(4),
        ]
    }

    #[test]
    fn a_message_comes_out_as_it_went_in_and_a_cut_or_changed_one_does_no_harm() {
        for message in all() {
            let bytes = message.encode();
            assert_eq!(Message::decode(&bytes), Ok(message.clone()));
            for end in 0..bytes.len() {
                let _any = Message::decode(&bytes[..end]);
            }
            for at in 0..bytes.len() {
                for bit in 0..8 {
                    let mut other = bytes.clone();
                    other[at] ^= 1 << bit;
                    let _any = Message::decode(&other);
                }
            }
            let mut longer = bytes.clone();
            longer.push(0);
            assert!(Message::decode(&longer) != Ok(message));
        }
    }

    #[test]
    fn the_longest_message_fits_a_packet() {
        let Some(Message::Table(mut table)) = all().into_iter().nth(5) else {
            panic!("the sixth message is a table");
        };
        table.name = "n".repeat(1024);
        table.served = vec![HashRange::ALL; RANGES_MAX];
        assert!(Message::Table(table).encode().len() <= PACKET_MAX);
        let long = Message::Refused("ß".repeat(4000)).encode();
        assert!(long.len() <= PACKET_MAX && Message::decode(&long).is_ok());
    }
}
