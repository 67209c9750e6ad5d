//! An RDB file of strings, as Redis 5 and later, and Valkey, load it.

use crate::crc64::Crc64;
use crate::payload::TYPE_STRING;
use crate::reader::{OPCODE_END, OPCODE_EXPIRE_MS, OPCODE_RESIZE, OPCODE_SELECT};
use crate::string::{push_length, push_string};
use std::io::{self, Write};

/// The version of Redis 5. Later ones load it, and strings have not changed since.
const HEAD: &[u8] = b"REDIS0009";

/// Writes a file. All methods give the errors of the system, behind which the file is worthless.
#[derive(Debug)]
pub struct Writer<W> {
    out: W,
    sum: Crc64,
    bytes: u64,
    record: Vec<u8>,
}

impl<W: Write> Writer<W> {
    /// Begins a file.
    ///
    /// # Errors
    /// Those of the system.
    pub fn new(out: W) -> io::Result<Self> {
        let mut writer = Self {
            out,
            sum: Crc64::default(),
            bytes: 0,
            record: HEAD.to_vec(),
        };
        writer.put()?;
        Ok(writer)
    }

    /// Says of which database the objects behind this are, and about how many it has.
    ///
    /// # Errors
    /// Those of the system.
    pub fn select(&mut self, database: u64, objects: u64) -> io::Result<()> {
        self.record.push(OPCODE_SELECT);
        push_length(database, &mut self.record);
        self.record.push(OPCODE_RESIZE);
        push_length(objects, &mut self.record);
        push_length(0, &mut self.record);
        self.put()
    }

    /// Writes an object. Its deadline is in milliseconds since 1970.
    ///
    /// # Errors
    /// Those of the system.
    pub fn object(&mut self, key: &[u8], value: &[u8], deadline: Option<u64>) -> io::Result<()> {
        if let Some(deadline) = deadline {
            let deadline = i64::try_from(deadline).unwrap_or(i64::MAX);
            self.record.push(OPCODE_EXPIRE_MS);
            self.record.extend_from_slice(&deadline.to_le_bytes());
        }
        self.record.push(TYPE_STRING);
        push_string(key, &mut self.record);
        push_string(value, &mut self.record);
        self.put()
    }

    /// Ends the file, and gives the number of its bytes.
    ///
    /// # Errors
    /// Those of the system.
    pub fn finish(mut self) -> io::Result<(W, u64)> {
        self.record.push(OPCODE_END);
        self.put()?;
        self.record.extend_from_slice(&self.sum.get().to_le_bytes());
        self.put()?;
        Ok((self.out, self.bytes))
    }

    fn put(&mut self) -> io::Result<()> {
        self.sum.add(&self.record);
        self.bytes += self.record.len() as u64;
        self.out.write_all(&self.record)?;
        self.record.clear();
        Ok(())
    }
}
