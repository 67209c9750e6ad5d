//! The trace: everything that happens, folded into one number and, when asked, kept as text.

use crate::slab::Key;
use crate::state::{Owner, ProcessId};
use core::fmt;
use std::collections::VecDeque;
use std::sync::Arc;
use twox_hash::XxHash3_64;

/// WARN and ERROR lines kept for [`crate::SimHandle::warnings`]; the first ones matter most.
const WARNINGS_MAX: usize = 1_000;

/// One thing that happened.
pub(crate) enum Fact<'a> {
    Poll {
        task: Key,
    },
    Timer {
        owner: Owner,
    },
    Arrived {
        what: &'static str,
        from: ProcessId,
        to: ProcessId,
        call: u64,
        opcode: u16,
        length: usize,
        content: u64,
    },
    Lost {
        why: &'static str,
        from: ProcessId,
        to: Option<ProcessId>,
        call: u64,
        opcode: u16,
    },
    Disk {
        what: &'static str,
        process: ProcessId,
        path: &'a str,
        offset: u64,
        length: u64,
        ok: bool,
    },
    Step {
        what: &'static str,
        owner: Owner,
        name: &'static str,
    },
    Process {
        what: &'static str,
        owner: Owner,
    },
    Link {
        what: &'static str,
        from: ProcessId,
        to: ProcessId,
    },
}

fn text(text: &str) -> u64 {
    XxHash3_64::oneshot(text.as_bytes())
}

/// Takes the lines of the trace as they come.
pub(crate) type Sink = Box<dyn FnMut(&str) + Send>;

pub(crate) struct Trace {
    hash: u64,
    events: u64,
    lines: VecDeque<String>,
    lines_max: usize,
    warnings: Vec<String>,
    warnings_missed: u64,
    pub(crate) sink: Option<Sink>,
}

impl Trace {
    pub(crate) fn new(seed: u64, lines_max: usize) -> Self {
        Self {
            hash: seed,
            events: 0,
            lines: VecDeque::new(),
            lines_max,
            warnings: Vec::new(),
            warnings_missed: 0,
            sink: None,
        }
    }

    pub(crate) fn hash(&self) -> u64 {
        self.hash
    }

    /// Facts recorded so far.
    pub(crate) fn events(&self) -> u64 {
        self.events
    }

    pub(crate) fn lines(&self) -> impl Iterator<Item = &String> {
        self.lines.iter()
    }

    pub(crate) fn warnings(&self) -> (&[String], u64) {
        (&self.warnings, self.warnings_missed)
    }

    fn fold(&mut self, word: u64) {
        // Multiply-fold, rotated so that a zero product does not forget what was before.
        let product = u128::from(self.hash ^ word ^ 0x9e37_79b9_7f4a_7c15) * 0xd6e8_feb8_6659_fd93;
        self.hash = (product >> 64) as u64 ^ product as u64 ^ self.hash.rotate_left(29);
    }

    fn fold_all<const N: usize>(&mut self, words: [u64; N]) {
        for word in words {
            self.fold(word);
        }
    }

    pub(crate) fn record<'n>(
        &mut self,
        now: u64,
        fact: &Fact<'_>,
        name: &dyn Fn(ProcessId) -> &'n str,
    ) {
        self.events += 1;
        self.fold(now);
        match fact {
            Fact::Poll { task } => self.fold(task.word()),
            Fact::Timer { owner } => self.fold_all([1, owner.word()]),
            Fact::Arrived {
                what,
                from,
                to,
                call,
                opcode,
                length,
                content,
            } => self.fold_all([
                text(what),
                from.word() << 32 | to.word(),
                *call,
                u64::from(*opcode) << 48 | *length as u64,
                *content,
            ]),
            Fact::Lost {
                why,
                from,
                to,
                call,
                opcode,
            } => self.fold_all([
                text(why),
                from.word() << 32 | to.map_or(u64::from(u32::MAX), ProcessId::word),
                *call,
                u64::from(*opcode),
            ]),
            Fact::Disk {
                what,
                process,
                path,
                offset,
                length,
                ok,
            } => self.fold_all([
                text(what),
                process.word() << 1 | u64::from(*ok),
                text(path),
                *offset,
                *length,
            ]),
            Fact::Step { what, owner, name } => {
                self.fold_all([text(what), owner.word(), text(name)]);
            }
            Fact::Process { what, owner } => self.fold_all([text(what), owner.word()]),
            Fact::Link { what, from, to } => {
                self.fold_all([text(what), from.word() << 32 | to.word()]);
            }
        }
        if (self.lines_max > 0 || self.sink.is_some()) && !matches!(fact, Fact::Poll { .. }) {
            self.line(now, &Line(fact, name).to_string());
        }
    }

    /// Adds a line of text that is not part of the hash.
    pub(crate) fn line(&mut self, now: u64, what: &str) {
        if self.lines_max == 0 && self.sink.is_none() {
            return;
        }
        let line = format!("{} {what}", Seconds(now));
        if let Some(sink) = &mut self.sink {
            sink(&line);
        }
        if self.lines_max > 0 {
            if self.lines.len() == self.lines_max {
                self.lines.pop_front();
            }
            self.lines.push_back(line);
        }
    }

    pub(crate) fn warning(&mut self, now: u64, what: &str) {
        if self.warnings.len() < WARNINGS_MAX {
            self.warnings.push(format!("{} {what}", Seconds(now)));
        } else {
            self.warnings_missed += 1;
        }
    }
}

/// Virtual time as text.
pub(crate) struct Seconds(pub(crate) u64);

impl fmt::Display for Seconds {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (seconds, nanos) = (self.0 / 1_000_000_000, self.0 % 1_000_000_000);
        write!(f, "{seconds:>4}.{nanos:09}")
    }
}

/// What the parts of a message say, as one number.
pub(crate) fn content(frame: &pluvio_env::Frame) -> u64 {
    let meta = XxHash3_64::oneshot_with_seed(u64::from(frame.opcode), &frame.meta);
    if frame.payload.is_empty() {
        return meta;
    }
    XxHash3_64::oneshot_with_seed(meta, &frame.payload)
}

struct Line<'a, 'n>(&'a Fact<'a>, &'a dyn Fn(ProcessId) -> &'n str);

impl fmt::Display for Line<'_, '_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self(fact, name) = self;
        match fact {
            Fact::Poll { task } => write!(f, "poll {}", task.word()),
            Fact::Timer { owner } => write!(f, "{} timer", name(owner.process)),
            Fact::Arrived {
                what,
                from,
                to,
                call,
                opcode,
                length,
                content,
            } => write!(
                f,
                "{} -> {} {what} #{call} opcode {opcode} {length} bytes {content:016x}",
                name(*from),
                name(*to)
            ),
            Fact::Lost {
                why,
                from,
                to,
                call,
                opcode,
            } => write!(
                f,
                "{} -> {} lost: {why} #{call} opcode {opcode}",
                name(*from),
                to.map_or("nobody", |to| name(to))
            ),
            Fact::Disk {
                what,
                process,
                path,
                offset,
                length,
                ok,
            } => write!(
                f,
                "{} disk {what} {path} at {offset} length {length}{}",
                name(*process),
                if *ok { "" } else { " FAILED" }
            ),
            Fact::Step {
                what,
                owner,
                name: step,
            } => write!(f, "{} {what} {step}", name(owner.process)),
            Fact::Process { what, owner } => write!(
                f,
                "{} {what} (incarnation {})",
                name(owner.process),
                owner.incarnation
            ),
            Fact::Link { what, from, to } => {
                write!(f, "{} -> {} {what}", name(*from), name(*to))
            }
        }
    }
}

/// Names of processes by id, for lines of text.
pub(crate) fn names<'a>(processes: &'a [Arc<str>]) -> impl Fn(ProcessId) -> &'a str {
    move |id| processes.get(id.0 as usize).map_or("?", |name| &**name)
}
