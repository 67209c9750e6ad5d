//! Trace files: comma-separated values with a head line that names time, operation, key and size.
//!
//! Block traces fit too: `op` is an operation, `lbn` a key; SCSI's codes 28 and 2a read and write.
//! A key that a trace reads before it writes it is written before the trace begins: it was there
//! when the trace was taken. The times of a trace are ignored: an operation begins when the one
//! before has ended.

use super::stream::{LOADED, Live, Operation, Stream};
use crate::error::ExperimentError;
use pluvio_units::{FixedMap, VALUE_MAX};
use serde::{Deserialize, Serialize};
use std::fs::File;
use std::io::{BufRead, BufReader};
use std::sync::Arc;

/// A trace file.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct TracePlan {
    /// Where it is.
    pub path: String,
    /// How often it is replayed, one after the other.
    pub repeat: u32,
}

/// What a trace holds.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct TraceFacts {
    /// Operations.
    pub operations: u64,
    /// Different keys.
    pub objects: u64,
    /// Bytes of all values at the largest size each ever has.
    pub bytes: u64,
    /// Most bytes of a value.
    pub largest: u32,
    /// Operations whose size was cut to the most that a value can have.
    pub cut: u64,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Verb {
    Get,
    Put,
    Delete,
}

/// One line: keys are numbered in the order in which they come.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Line {
    verb: Verb,
    object: u32,
    size: u32,
    /// The file has a larger size.
    cut: bool,
}

/// The part of a trace that one thread replays.
pub(super) struct TraceStream {
    lines: Arc<[Line]>,
    /// Objects to write first, with their sizes.
    first: Vec<(u32, u32)>,
    at: usize,
    rounds: u32,
    sizes: Vec<u32>,
    live: Live,
    begun: bool,
}

impl TracePlan {
    /// What the file holds.
    ///
    /// # Errors
    /// It cannot be read, or is no trace; the text names the line.
    pub fn facts(&self) -> Result<TraceFacts, ExperimentError> {
        let lines = read(&self.path)?;
        let objects = lines.iter().map(|line| line.object + 1).max().unwrap_or(0);
        let mut sizes = vec![0; objects as usize];
        for line in &lines {
            let size = &mut sizes[line.object as usize];
            *size = line.size.max(*size);
        }
        Ok(TraceFacts {
            operations: lines.len() as u64,
            objects: u64::from(objects),
            bytes: sizes.iter().map(|&size| u64::from(size)).sum(),
            largest: sizes.iter().copied().max().unwrap_or(0),
            cut: lines.iter().filter(|line| line.cut).count() as u64,
        })
    }
}

impl TraceStream {
    pub(super) fn read(
        plan: &TracePlan,
        thread: usize,
        threads: usize,
    ) -> Result<Self, ExperimentError> {
        let mut lines = read(&plan.path)?;
        lines.retain(|line| line.object as usize % threads == thread);
        let objects = lines.iter().map(|line| line.object + 1).max().unwrap_or(0);
        let mut known = vec![false; objects as usize];
        let mut first = Vec::new();
        for line in &lines {
            if !std::mem::replace(&mut known[line.object as usize], true) && line.verb == Verb::Get
            {
                first.push((line.object, line.size));
            }
        }
        // Taken from the end.
        first.reverse();
        Ok(Self {
            lines: lines.into(),
            first,
            at: 0,
            rounds: plan.repeat.max(1),
            sizes: vec![0; objects as usize],
            live: Live::default(),
            begun: false,
        })
    }

    fn resize(&mut self, object: u32, size: u32, there: bool) {
        // One more than the size, so that an empty value is there as well.
        let now = if there { size + 1 } else { 0 };
        let old = std::mem::replace(&mut self.sizes[object as usize], now);
        let bytes = |held: u32| u64::from(held.saturating_sub(1));
        self.live.bytes = self.live.bytes + bytes(now) - bytes(old);
        self.live.objects = self.live.objects + u64::from(now > 0) - u64::from(old > 0);
    }
}

impl Stream for TraceStream {
    fn next(&mut self) -> Option<Operation> {
        if let Some((object, size)) = self.first.pop() {
            self.resize(object, size, true);
            return Some(Operation::Put {
                key: u64::from(object),
                size,
            });
        }
        if !std::mem::replace(&mut self.begun, true) {
            return Some(Operation::Mark(LOADED));
        }
        if self.at == self.lines.len() {
            self.rounds -= 1;
            self.at = 0;
            if self.rounds == 0 || self.lines.is_empty() {
                self.at = self.lines.len();
                self.rounds = 1;
                return None;
            }
        }
        let line = self.lines[self.at];
        self.at += 1;
        let key = u64::from(line.object);
        Some(match line.verb {
            Verb::Get => Operation::Get { key },
            Verb::Put => {
                self.resize(line.object, line.size, true);
                Operation::Put {
                    key,
                    size: line.size,
                }
            }
            Verb::Delete => {
                self.resize(line.object, 0, false);
                Operation::Delete { key }
            }
        })
    }

    fn live(&self) -> Live {
        self.live
    }
}

/// Where the columns are.
struct Columns {
    verb: usize,
    key: usize,
    size: usize,
}

impl Columns {
    fn of(head: &str) -> Option<Self> {
        let names: Vec<String> = fields(head).map(str::to_lowercase).collect();
        let find = |known: &[&str]| names.iter().position(|name| known.contains(&name.as_str()));
        Some(Self {
            verb: find(&["operation", "op", "command", "type"])?,
            key: find(&["key", "obj_id", "object", "lbn", "lba", "block"])?,
            size: find(&["size", "value_size", "bytes", "length"])?,
        })
    }
}

fn fields(line: &str) -> impl Iterator<Item = &str> {
    line.split(',').map(|field| field.trim().trim_matches('"'))
}

fn read(path: &str) -> Result<Vec<Line>, ExperimentError> {
    let failed = |problem: String| ExperimentError::File {
        path: path.into(),
        problem,
    };
    let file = File::open(path).map_err(|error| failed(error.to_string()))?;
    parse(BufReader::new(file)).map_err(failed)
}

fn parse(mut text: impl BufRead) -> Result<Vec<Line>, String> {
    let mut head = String::new();
    text.read_line(&mut head)
        .map_err(|error| error.to_string())?;
    let columns = Columns::of(&head)
        .ok_or("line 1 must name the columns: operation, key, size, and what else there is")?;
    let mut numbers: FixedMap<String, u32> = FixedMap::default();
    let mut lines = Vec::new();
    for (index, line) in text.lines().enumerate() {
        let line = line.map_err(|error| format!("line {}: {error}", index + 2))?;
        if line.is_empty() {
            continue;
        }
        let parsed = parse_line(&line, &columns, &mut numbers);
        lines.push(parsed.map_err(|problem| format!("line {}: {problem}", index + 2))?);
    }
    Ok(lines)
}

fn parse_line(
    line: &str,
    columns: &Columns,
    numbers: &mut FixedMap<String, u32>,
) -> Result<Line, String> {
    let all: Vec<&str> = fields(line).collect();
    let field = |at: usize| all.get(at).copied().ok_or("has too few columns");
    let name = field(columns.verb)?.to_lowercase();
    let verb = match name.as_str() {
        "get" | "gets" | "read" | "r" | "28" => Verb::Get,
        "put" | "set" | "add" | "cas" | "replace" | "write" | "w" | "2a" => Verb::Put,
        "delete" | "del" | "remove" | "d" => Verb::Delete,
        _ => {
            return Err(format!(
                "no operation is called {name:?}; give get, put or delete"
            ));
        }
    };
    let size = field(columns.size)?;
    let size: u64 = size.parse().map_err(|_| format!("{size:?} is no size"))?;
    let next = numbers.len() as u32;
    let object = match numbers.get(field(columns.key)?) {
        Some(&known) => known,
        None => *numbers
            .entry(field(columns.key)?.to_owned())
            .or_insert(next),
    };
    Ok(Line {
        verb,
        object,
        size: size.min(VALUE_MAX as u64) as u32,
        cut: size > VALUE_MAX as u64,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_kinds_of_heads_are_understood() {
        let ours = "time,operation,key,size\n1,get,a,10\n2,put,b,20\n3,delete,a,0\n";
        let lines = parse(ours.as_bytes()).unwrap();
        let verbs: Vec<_> = lines.iter().map(|line| (line.verb, line.object)).collect();
        assert_eq!(verbs, [(Verb::Get, 0), (Verb::Put, 1), (Verb::Delete, 0)]);
        let blocks = "version,time,op,size,lbn\n1,5,2a,512,7\n1,6,28,4096,7\n";
        let lines = parse(blocks.as_bytes()).unwrap();
        assert_eq!((lines[0].verb, lines[0].size), (Verb::Put, 512));
        assert_eq!((lines[1].verb, lines[1].object), (Verb::Get, 0));
    }

    #[test]
    fn sizes_that_no_value_can_have_are_cut_and_counted() {
        let text = "operation,key,size\nput,a,1048576\nput,b,1048577\nget,b,9999999999\n";
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("trace.csv");
        std::fs::write(&path, text).unwrap();
        let plan = TracePlan {
            path: path.to_str().unwrap().into(),
            repeat: 1,
        };
        let facts = plan.facts().unwrap();
        assert_eq!((facts.cut, facts.bytes), (2, 2 << 20));
        assert_eq!(facts.largest, 1 << 20);
    }

    #[test]
    fn nonsense_names_its_line() {
        for (text, problem) in [
            ("a,b,c\n", "line 1"),
            ("operation,key,size\nget,a\n", "line 2"),
            ("operation,key,size\nget,a,1\njump,a,1\n", "line 3"),
            ("operation,key,size\nget,a,-1\n", "line 2"),
        ] {
            let error = parse(text.as_bytes()).unwrap_err();
            assert!(error.contains(problem), "{error}");
        }
    }

    #[test]
    fn what_is_read_first_was_there_before() {
        let text = "operation,key,size\nget,a,10\nput,b,20\nget,b,20\nput,a,30\ndelete,b,0\n";
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("trace.csv");
        std::fs::write(&path, text).unwrap();
        let plan = TracePlan {
            path: path.to_str().unwrap().into(),
            repeat: 2,
        };
        let facts = plan.facts().unwrap();
        assert_eq!((facts.operations, facts.objects, facts.bytes), (5, 2, 50));
        let mut stream = TraceStream::read(&plan, 0, 1).unwrap();
        let mut all = Vec::new();
        while let Some(operation) = stream.next() {
            all.push(operation);
        }
        assert_eq!(all[0], Operation::Put { key: 0, size: 10 });
        assert_eq!(all[1], Operation::Mark(LOADED));
        assert_eq!(all.len(), 2 + 2 * 5);
        assert_eq!(
            stream.live(),
            Live {
                objects: 1,
                bytes: 30
            }
        );
        assert_eq!(stream.next(), None);
    }
}
