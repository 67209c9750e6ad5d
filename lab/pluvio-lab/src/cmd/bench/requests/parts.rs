//! Where the time of a request goes: time stamps in client, master and backups, one caller, one
//! request under way.
//!
//! Each process notes spans of its own clock:
//!
//! ```text
//! client   |<------------------------- call ------------------------->|
//! master        |<-- handle -->|<------ until answered ------->|
//! master                   |<-------- call to a backup -------->|
//! backup                       |<- handle ->|<- until answered ->|
//! ```
//!
//! The time on the way is the difference of two spans: both directions together, as the authors of
//! RAMCloud could measure it. A row is the median of a span over all requests of a run.

use super::{BATCH_VALUE, Requests, Transport, latencies, table};
use crate::systems::Ours;
use crate::systems::batches::{self, Does};
use indicatif::ProgressBar;
use pluvio_bench::experiment::Row;
use pluvio_bench::run::{Collector, Latencies};
use pluvio_client::Opcode;
use pluvio_console::failure::Failure;
use pluvio_console::options::Global;
use pluvio_env::Env;
use pluvio_local::LocalOptions;
use pluvio_local::stamps::{Note, Notes, Stamped};
use pluvio_units::Size;
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

/// A request that is served less often than this share of the caller's requests is none of theirs:
/// the cluster's own life.
const SHARE_LEAST: f64 = 0.2;

/// Measures reads and writes, on a cluster each: a server writes its notes when it stops.
pub async fn parts(
    env: &Env,
    global: &Global,
    asked: (&Requests, Transport, Size),
    place: &Path,
    progress: &ProgressBar,
) -> Result<Vec<Row>, Failure> {
    let mut rows = Vec::new();
    for does in [Does::Reads, Does::Writes] {
        progress.set_message(format!("parts of a {}", does.name()));
        let own = place.join(does.name());
        rows.extend(of(env, global, asked, does, &own).await?);
        progress.inc(1);
    }
    Ok(rows)
}

async fn of(
    env: &Env,
    global: &Global,
    (bench, transport, memory): (&Requests, Transport, Size),
    does: Does,
    place: &Path,
) -> Result<Vec<Row>, Failure> {
    let notes = Notes::default();
    let mut env = env.clone();
    let (inner, clock) = (env.network.clone(), env.clock.clone());
    env.network = Arc::new(Stamped::new(inner, clock, notes.clone()));
    let (options, name) = bench.cluster(transport, memory, place);
    let options = LocalOptions {
        stamps: true,
        ..options
    };
    let cluster = Ours::with(&env, global, options, name).await?;
    let measured = measure(&env, bench, does, &cluster, &notes).await;
    cluster.stop().await;
    let (seen, client, (master, backups)) = measured?;
    let read = |number: usize| {
        let data = place.join(format!("server-{number}"));
        Notes::read(&data).map_err(|error| Failure::file(&data, &error))
    };
    let client = Spans::of(&client);
    let mut of_master = read(master)?;
    if let Some((opcode, calls)) = most(&client.called, 1) {
        keep_last(&mut of_master, opcode, calls.count);
    }
    let master = Spans::of(&of_master);
    let mut all = Vec::new();
    let shares = backups.len().max(1) as u64;
    for number in backups {
        let mut notes = read(number)?;
        if let Some((opcode, calls)) = most(&master.called, 1) {
            keep_last(&mut notes, opcode, calls.count / shares);
        }
        all.extend(notes);
    }
    Ok(rows(does, &seen, &client, &master, &Spans::of(&all)))
}

/// Keeps the last `count` requests of an operation that a server served, and what came between:
/// before them the table was filled.
fn keep_last(notes: &mut Vec<Note>, opcode: u16, count: u64) {
    let served = |note: &Note| matches!(note, Note::Served(served, ..) if *served == opcode);
    let mut left = count;
    let first = notes.iter().rposition(|note| {
        left -= u64::from(left > 0 && served(note));
        left == 0
    });
    notes.drain(..first.unwrap_or(0));
}

/// The caller's latencies, the client's notes, and the numbers of master and backups.
type Measured = (Latencies, Vec<Note>, (usize, Vec<usize>));

async fn measure(
    env: &Env,
    bench: &Requests,
    does: Does,
    cluster: &Ours,
    notes: &Notes,
) -> Result<Measured, Failure> {
    let objects = table(env, bench, cluster, BATCH_VALUE).await?;
    let _filling = notes.take();
    let spell = super::Spell {
        warmup: Duration::ZERO,
        ..bench.spell(1, BATCH_VALUE)
    };
    let seen = batches::run(env, &objects, &cluster.pids(), (does, 1), spell).await?;
    let client = notes.take();
    let numbers = cluster.master_and_backups(&objects.table).await?;
    Ok((seen.requests, client, numbers))
}

/// Spans of one process, or of some alike, by operation.
#[derive(Default)]
struct Spans {
    called: BTreeMap<u16, Collector>,
    handled: BTreeMap<u16, Collector>,
    answered: BTreeMap<u16, Collector>,
}

impl Spans {
    fn of(notes: &[Note]) -> Self {
        let mut spans = Self::default();
        let add = |all: &mut BTreeMap<u16, Collector>, opcode, took| {
            all.entry(opcode).or_default().record(took);
        };
        for note in notes {
            match *note {
                Note::Called(opcode, took) => add(&mut spans.called, opcode, took),
                Note::Served(opcode, handled, answered) => {
                    add(&mut spans.handled, opcode, handled);
                    add(&mut spans.answered, opcode, answered);
                }
            }
        }
        spans
    }
}

/// The operation that a process did most, and its spans.
fn most(spans: &BTreeMap<u16, Collector>, least: u64) -> Option<(u16, Latencies)> {
    let all = spans
        .iter()
        .map(|(opcode, spans)| (*opcode, spans.latencies()));
    let often = all.filter(|(_, spans)| spans.count >= least);
    often.max_by_key(|(_, spans)| spans.count)
}

fn rows(does: Does, seen: &Latencies, client: &Spans, master: &Spans, backups: &Spans) -> Vec<Row> {
    let least = ((seen.count as f64 * SHARE_LEAST) as u64).max(1);
    let mut rows = Vec::new();
    let mut add = |process: &str, what: &str, opcode: Option<u16>, spans: &Latencies| {
        let row = Row::new()
            .with("operation", does.name())
            .with("value_size", BATCH_VALUE)
            .with("callers", 1)
            .with("process", process)
            .with("span", what)
            .with("request", opcode.map(name).unwrap_or_default())
            .and(latencies("", spans));
        rows.push(row);
    };
    add("caller", "whole", None, seen);
    let asked = most(&client.called, least);
    if let Some((opcode, spans)) = &asked {
        add("client", "call", Some(*opcode), spans);
    }
    let opcode = asked.as_ref().map(|(opcode, _)| *opcode);
    for (what, all) in [
        ("handle", &master.handled),
        ("until answered", &master.answered),
    ] {
        let spans = opcode.and_then(|opcode| Some((opcode, all.get(&opcode)?.latencies())));
        if let Some((opcode, spans)) = spans {
            add("master", what, Some(opcode), &spans);
        }
    }
    if does == Does::Writes
        && let Some((opcode, spans)) = most(&master.called, least)
    {
        add("master", "call to a backup", Some(opcode), &spans);
        for (what, all) in [
            ("handle", &backups.handled),
            ("until answered", &backups.answered),
        ] {
            if let Some(spans) = all.get(&opcode) {
                add("backup", what, Some(opcode), &spans.latencies());
            }
        }
    }
    rows
}

fn name(opcode: u16) -> String {
    match Opcode::from_number(opcode) {
        Some(opcode) => format!("{opcode:?}"),
        None => opcode.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_filled_the_table_is_left_out() {
        let us = Duration::from_micros;
        let served = |us_taken| Note::Served(5, us(us_taken), us(us_taken));
        let called = Note::Called(6, us(1));
        let mut notes = vec![called, served(900), called, served(1), called, served(2)];
        let kept = notes[3..].to_vec();
        keep_last(&mut notes, 5, 2);
        assert_eq!(notes, kept);
        keep_last(&mut notes, 5, 9);
        assert_eq!(notes, kept);
    }

    #[test]
    fn spans_of_a_write_are_found_by_what_each_process_does_most() {
        let us = Duration::from_micros;
        let (write, append, ping) = (Opcode::Ping as u16 + 1, 999, Opcode::Ping as u16);
        let repeat = |note: Note| vec![note; 100];
        let client = Spans::of(&repeat(Note::Called(write, us(100))));
        let mut of_master = repeat(Note::Served(write, us(5), us(70)));
        of_master.extend(repeat(Note::Called(append, us(50))));
        of_master.push(Note::Called(ping, us(900)));
        let master = Spans::of(&of_master);
        let backups = Spans::of(&repeat(Note::Served(append, us(3), us(20))));
        let mut seen = Collector::new();
        (0..100).for_each(|_| seen.record(us(105)));
        let rows = rows(Does::Writes, &seen.latencies(), &client, &master, &backups);
        let found: Vec<_> = rows
            .iter()
            .map(|row| {
                let us = row.number("p50_us").unwrap().round() as u64;
                (row.text("process"), row.text("span"), us)
            })
            .collect();
        let wanted = [
            ("caller", "whole", 105),
            ("client", "call", 100),
            ("master", "handle", 5),
            ("master", "until answered", 70),
            ("master", "call to a backup", 50),
            ("backup", "handle", 3),
            ("backup", "until answered", 20),
        ];
        assert_eq!(found.len(), wanted.len());
        for ((process, span, us), (p, s, u)) in found.iter().zip(wanted) {
            assert_eq!((process.as_str(), span.as_str()), (p, s));
            assert!(us.abs_diff(u) <= 1, "{process} {span}: {us}");
        }
    }
}
