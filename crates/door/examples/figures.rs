//! What a read costs: in the owner's process, in mapped memory, and over a unix socket.
//!
//! `cargo run --release -p pluvio-door --example figures`. The mapped reads and the socket are used
//! by a process of its own. Each figure is the median of some rounds. The socket speaks Redis's
//! protocol to a thread of the owner, one request at a time: the least that a server does.

#![allow(
    clippy::disallowed_methods,
    reason = "it measures time, in threads of its own"
)]

use pluvio_door::{Door, DoorOptions};
use pluvio_store::{Size, Store, Table};
use std::hint::black_box;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::time::Instant;

const KEYS: u64 = 1_000_000;
const VALUE: usize = 100;
const ROUNDS: usize = 9;
/// The place of the door, for the other process.
const PLACE: &str = "PLUVIO_FIGURES_PLACE";

type Failure = Box<dyn std::error::Error>;

fn main() -> Result<(), Failure> {
    match std::env::var_os(PLACE) {
        Some(place) => read_from_outside(Path::new(&place)),
        None => own(),
    }
}

/// The owner: fills the store, reads it, and has another process read it.
fn own() -> Result<(), Failure> {
    let directory = std::env::temp_dir().join(format!("pluvio-figures-{}", std::process::id()));
    std::fs::create_dir_all(&directory)?;
    let measured = own_in(&directory);
    std::fs::remove_dir_all(&directory)?;
    measured
}

fn own_in(directory: &Path) -> Result<(), Failure> {
    let place = directory.join("door");
    let store = Store::builder()
        .memory(Size::mib(512))
        .shared(true)
        .build()?;
    let table = store.create_table("t")?;
    for key in 0..KEYS {
        table.put(&key.to_le_bytes(), &[key as u8; VALUE])?;
    }
    let mut into = Vec::new();
    tell("in the owner's process", 200_000, |key| {
        table.get_into(&key.to_le_bytes(), &mut into);
        black_box(&into);
        Ok(())
    })?;
    let _door = Door::open(&place, Arc::new(store), DoorOptions::default())?;
    let socket = UnixListener::bind(directory.join("socket"))?;
    std::thread::spawn(move || {
        if let Some(Ok(connection)) = socket.incoming().next() {
            // The other side has gone.
            let _end = serve(connection, &table);
        }
    });
    let status = Command::new(std::env::current_exe()?)
        .env(PLACE, &place)
        .status()?;
    match status.success() {
        true => Ok(()),
        false => Err("the other process failed".into()),
    }
}

/// Answers GETs until the connection ends.
fn serve(connection: UnixStream, table: &Table) -> Result<(), Failure> {
    let mut requests = BufReader::new(connection.try_clone()?);
    let (mut replies, mut line, mut value) = (connection, String::new(), Vec::new());
    loop {
        line.clear();
        if requests.read_line(&mut line)? == 0 {
            return Ok(());
        }
        // *2 $3 GET $8 and the key.
        let mut rest = [0; 4 + 5 + 4 + 8 + 2];
        requests.read_exact(&mut rest)?;
        let mut reply = Vec::with_capacity(VALUE + 16);
        match table.get_into(&rest[13..21], &mut value) {
            true => {
                write!(reply, "${}\r\n", value.len())?;
                reply.extend_from_slice(&value);
                reply.extend_from_slice(b"\r\n");
            }
            false => reply.extend_from_slice(b"$-1\r\n"),
        }
        replies.write_all(&reply)?;
    }
}

/// The other process.
fn read_from_outside(place: &Path) -> Result<(), Failure> {
    let begin = Instant::now();
    let table = pluvio_mapped::Store::open(place)?.table("t")?;
    println!("to connect and map: {:?}", begin.elapsed());
    let mut into = Vec::new();
    tell("in mapped memory", 200_000, |key| {
        table.get_into(&key.to_le_bytes(), &mut into)?;
        black_box(&into);
        Ok(())
    })?;
    let mut socket = UnixStream::connect(place.with_file_name("socket"))?;
    let mut reply = [0; VALUE + 8];
    tell("over a unix socket", 5_000, |key| {
        let mut request = b"*2\r\n$3\r\nGET\r\n$8\r\n".to_vec();
        request.extend_from_slice(&key.to_le_bytes());
        request.extend_from_slice(b"\r\n");
        socket.write_all(&request)?;
        socket.read_exact(&mut reply)?;
        black_box(&reply);
        Ok(())
    })
}

/// Says what a read of a random key takes.
fn tell(
    what: &str,
    reads: u32,
    mut read: impl FnMut(u64) -> Result<(), Failure>,
) -> Result<(), Failure> {
    let (mut state, mut rounds) = (1_u64, Vec::new());
    for round in 0..=ROUNDS {
        let begin = Instant::now();
        for _ in 0..reads {
            state = state.wrapping_mul(0xd134_2543_de82_ef95).wrapping_add(1);
            read((state >> 20) % KEYS)?;
        }
        // The first round warms up.
        if round > 0 {
            rounds.push(begin.elapsed() / reads);
        }
    }
    rounds.sort_unstable();
    println!("{what}: {:?} a read", rounds[ROUNDS / 2]);
    Ok(())
}
