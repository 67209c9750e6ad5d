//! What a read costs: in the owner's process, in mapped memory, and over a unix socket. And what it
//! costs an owner that its memory is shared.
//!
//! `cargo run --release -p pluvio-door --example figures`. The mapped reads and those over the
//! socket are done by a process of its own. All that is compared takes turns, round by round. Each
//! figure is the median of the rounds, and each ratio the median of the rounds' ratios. The socket
//! speaks Redis's protocol to a thread of the owner, one request at a time: the least that a server
//! does.

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
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::Arc;
use std::time::Instant;

const KEYS: u64 = 1_000_000;
const VALUE: usize = 100;
const ROUNDS: usize = 15;
const OPERATIONS: u32 = 200_000;
/// Requests over the socket in a round.
const REQUESTS: u32 = 5_000;
/// The place of the door, for the other process.
const PLACE: &str = "PLUVIO_FIGURES_PLACE";

type Failure = Box<dyn std::error::Error>;

fn main() -> Result<(), Failure> {
    match std::env::var_os(PLACE) {
        Some(place) => read_from_outside(Path::new(&place)),
        None => {
            let directory = format!("pluvio-figures-{}", std::process::id());
            let directory = std::env::temp_dir().join(directory);
            std::fs::create_dir_all(&directory)?;
            let measured = compare_reads(&directory);
            std::fs::remove_dir_all(&directory)?;
            measured?;
            compare_stores()
        }
    }
}

/// A store with all keys.
fn filled(shared: bool, huge_pages: bool) -> Result<(Store, Table), Failure> {
    let store = Store::builder()
        .memory(Size::mib(512))
        .shared(shared)
        .huge_pages(huge_pages)
        .build()?;
    let table = store.create_table("t")?;
    for key in 0..KEYS {
        table.put(&key.to_le_bytes(), &[key as u8; VALUE])?;
    }
    Ok((store, table))
}

/// Random keys, the same ones in each run.
struct Keys(u64);

impl Keys {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_mul(0xd134_2543_de82_ef95).wrapping_add(1);
        (self.0 >> 20) % KEYS
    }

    /// Nanoseconds that one of `count` operations takes.
    fn round(
        &mut self,
        count: u32,
        mut operation: impl FnMut(u64) -> Result<(), Failure>,
    ) -> Result<f64, Failure> {
        let begin = Instant::now();
        for _ in 0..count {
            operation(self.next())?;
        }
        Ok(begin.elapsed().as_nanos() as f64 / f64::from(count))
    }

    fn gets(&mut self, table: &Table) -> Result<f64, Failure> {
        let mut into = Vec::new();
        self.round(OPERATIONS, |key| {
            table.get_into(&key.to_le_bytes(), &mut into);
            black_box(&into);
            Ok(())
        })
    }

    fn puts(&mut self, table: &Table) -> Result<f64, Failure> {
        self.round(OPERATIONS, |key| {
            table.put(&key.to_le_bytes(), &[key as u8; VALUE])?;
            Ok(())
        })
    }
}

fn median(of: impl Iterator<Item = f64>) -> f64 {
    let mut all: Vec<f64> = of.collect();
    all.sort_by(f64::total_cmp);
    all[all.len() / 2]
}

/// Says the figures of the ways, whose rounds took turns, and what each is to the first one.
fn tell(what: &str, ways: &[(&str, Vec<f64>)]) {
    println!("{what}");
    for (way, rounds) in ways {
        let all = || rounds.iter().copied();
        let (least, most) = (all().reduce(f64::min), all().reduce(f64::max));
        let ratio = median(all().zip(&ways[0].1).map(|(one, first)| one / first));
        println!(
            "  {way:<32} {:>8.0} ns ({:.0} to {:.0}), ratio {ratio:.3}",
            median(all()),
            least.unwrap_or_default(),
            most.unwrap_or_default(),
        );
    }
}

/// Another process that reads, a round at a time.
struct Outside {
    process: Child,
    orders: ChildStdin,
    results: BufReader<ChildStdout>,
}

impl Outside {
    fn start(place: &Path) -> Result<Self, Failure> {
        let mut process = Command::new(std::env::current_exe()?)
            .env(PLACE, place)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()?;
        let (orders, results) = (process.stdin.take(), process.stdout.take());
        Ok(Self {
            process,
            orders: orders.ok_or("no pipe")?,
            results: BufReader::new(results.ok_or("no pipe")?),
        })
    }

    fn round(&mut self, way: &str) -> Result<f64, Failure> {
        writeln!(self.orders, "{way}")?;
        let mut line = String::new();
        self.results.read_line(&mut line)?;
        Ok(line.trim().parse()?)
    }

    fn end(mut self) -> Result<(), Failure> {
        drop(self.orders);
        match self.process.wait()?.success() {
            true => Ok(()),
            false => Err("the other process failed".into()),
        }
    }
}

fn compare_reads(directory: &Path) -> Result<(), Failure> {
    let place = directory.join("door");
    let (store, table) = filled(true, true)?;
    let _door = Door::open(&place, Arc::new(store), DoorOptions::default())?;
    let socket = UnixListener::bind(directory.join("socket"))?;
    let mut ways = [
        ("in the owner's process", Vec::new()),
        ("in mapped memory", Vec::new()),
        ("over a unix socket", Vec::new()),
    ];
    let served = table.clone();
    std::thread::spawn(move || {
        if let Some(Ok(connection)) = socket.incoming().next() {
            // The other side has gone.
            let _end = serve(connection, &served);
        }
    });
    let mut outside = Outside::start(&place)?;
    let mut keys = Keys(1);
    // The first round warms up.
    for round in 0..=ROUNDS {
        let took = [
            keys.gets(&table)?,
            outside.round("mapped")?,
            outside.round("socket")?,
        ];
        for ((_, rounds), took) in ways.iter_mut().zip(took) {
            if round > 0 {
                rounds.push(took);
            }
        }
    }
    outside.end()?;
    tell("get of a random key", &ways);
    Ok(())
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

/// The other process: a round for each line that it is sent.
fn read_from_outside(place: &Path) -> Result<(), Failure> {
    let begin = Instant::now();
    let table = pluvio_mapped::Store::open(place)?.table("t")?;
    eprintln!("to connect and map: {:?}", begin.elapsed());
    let mut socket = UnixStream::connect(place.with_file_name("socket"))?;
    let mut keys = Keys(1);
    let (mut into, mut reply) = (Vec::new(), [0; VALUE + 8]);
    for way in std::io::stdin().lines() {
        let took = match way?.as_str() {
            "mapped" => keys.round(OPERATIONS, |key| {
                table.get_into(&key.to_le_bytes(), &mut into)?;
                black_box(&into);
                Ok(())
            })?,
            _ => keys.round(REQUESTS, |key| {
                let mut request = b"*2\r\n$3\r\nGET\r\n$8\r\n".to_vec();
                request.extend_from_slice(&key.to_le_bytes());
                request.extend_from_slice(b"\r\n");
                socket.write_all(&request)?;
                socket.read_exact(&mut reply)?;
                black_box(&reply);
                Ok(())
            })?,
        };
        println!("{took}");
    }
    Ok(())
}

/// A store in anonymous memory, beside ones in memory that others may map. Nobody reads there.
fn compare_stores() -> Result<(), Failure> {
    let kinds = [
        ("anonymous", false, true),
        ("anonymous, small pages", false, false),
        ("shared", true, true),
        ("shared, small pages", true, false),
    ];
    let mut stores = Vec::new();
    let (mut gets, mut puts) = (Vec::new(), Vec::new());
    for (what, shared, huge_pages) in kinds {
        stores.push(filled(shared, huge_pages)?);
        gets.push((what, Vec::new()));
        puts.push((what, Vec::new()));
    }
    let mut keys = Keys(1);
    for round in 0..=ROUNDS {
        for (at, (_, table)) in stores.iter().enumerate() {
            let took = (keys.gets(table)?, keys.puts(table)?);
            if round > 0 {
                gets[at].1.push(took.0);
                puts[at].1.push(took.1);
            }
        }
    }
    tell("get of a random key", &gets);
    tell("put of a random key", &puts);
    Ok(())
}
