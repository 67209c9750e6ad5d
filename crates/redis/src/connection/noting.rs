//! What a connection tells of its commands: counters, times and logs, lines to MONITOR, and its
//! entry in CLIENT LIST. And whether CLIENT PAUSE holds a command up.
//!
//! - TIMES-1: at most [`GROUP_MAX`] commands are timed together. To read the clock costs a good
//!   part of a read of a key that is here. So commands of a pipeline that have one name and are
//!   done at once share a measurement. Each has its share of the time.
//!   Where shorter times than [`GROUPED_MICROS_MIN`] count as slow, each is timed by itself.

use super::{Connection, Resolved, Step};
use crate::commands::{Commands, Ran};
use crate::database::DatabaseId;
use crate::output::Out;
use crate::parameters::Number;
use crate::parser::Command;
use crate::pause::Paused;
use crate::queue::{Begun, Leaving};
use crate::reply::Reply;
use crate::shared::Timed;
use crate::table::{SPECS, find_called};
use pluvio_env::Moment;

/// Commands that are timed together at most, and that share a moment.
const GROUP_MAX: u64 = 16;
/// See TIMES-1.
const GROUPED_MICROS_MIN: i64 = 1000;

/// A command that was done at once, as it is counted.
pub(super) struct Done {
    /// Bytes of its reply.
    pub(super) bytes: usize,
    /// Whether its reply is an error.
    pub(super) failed: bool,
    /// Of a read, whether it found its key.
    pub(super) found: Option<bool>,
}

impl Done {
    /// Of a reply, whatever was found.
    pub(super) fn of(reply: &Reply) -> Self {
        Self {
            bytes: reply.size(),
            failed: matches!(reply, Reply::Error(_)),
            found: None,
        }
    }
}

/// Commands of one name that were done at once, one after the other.
pub(super) struct Group {
    spec: u16,
    count: u64,
    failed: u64,
    hits: u64,
    misses: u64,
    started: Moment,
    /// Held commands that began in the same time.
    others: u64,
    /// The first of them, while it is the only one.
    command: Option<Command>,
}

impl<M, F> Connection<'_, M, F>
where
    M: Fn(bool, DatabaseId, Commands) -> F,
    F: Future<Output = Ran>,
{
    /// The moment now, as it was read a few commands ago at most.
    pub(super) fn stamp(&mut self) -> Moment {
        if self.stamp_uses >= GROUP_MAX {
            self.stamp = None;
        }
        match self.stamp {
            Some(stamp) => stamp,
            None => self.read_clock(),
        }
    }

    fn read_clock(&mut self) -> Moment {
        let now = self.core.shared.now();
        self.stamp = Some(now);
        self.stamp_uses = 0;
        now
    }

    /// The moment at which a command begins that is timed by itself.
    pub(super) fn start_alone(&mut self) -> Moment {
        self.close_group();
        match self.stamp_uses {
            0 => self.stamp(),
            _ => self.read_clock(),
        }
    }

    /// Counts a command that was done at once (TIMES-1).
    pub(super) fn did(&mut self, resolved: &Resolved, done: Done) {
        let Done {
            bytes,
            failed,
            found,
        } = done;
        let Resolved { spec, command, .. } = resolved;
        self.core.note_request(self.session.entry(), *spec, command);
        self.core
            .note_reply(self.session.entry(), *spec, command, bytes);
        let (hit, miss) = (
            u64::from(found == Some(true)),
            u64::from(found == Some(false)),
        );
        match &mut self.group {
            Some(group) if group.spec == *spec => {
                group.count += 1;
                group.failed += u64::from(failed);
                group.hits += hit;
                group.misses += miss;
                group.command = None;
            }
            // A command of another name has closed the group before this one began.
            Some(_) | None => {
                self.group = Some(Group {
                    spec: *spec,
                    count: 1,
                    failed: u64::from(failed),
                    hits: hit,
                    misses: miss,
                    started: self.group_started.0,
                    others: self.group_started.1,
                    command: Some(command.clone()),
                });
            }
        }
        let slow = self.core.options().parameters.number(Number::SlowMicros);
        let is_fine = (0..GROUPED_MICROS_MIN).contains(&slow);
        if is_fine
            || self
                .group
                .as_ref()
                .is_some_and(|group| group.count >= GROUP_MAX)
        {
            self.close_group();
        }
    }

    /// A command that may be done at once begins. The moment is that of its group.
    pub(super) fn start_in_group(&mut self, spec: u16) {
        if self.group.as_ref().is_none_or(|group| group.spec != spec) {
            self.close_group();
            self.group_started = (self.stamp(), self.stamp_uses);
        }
    }

    /// Counts the commands that were timed together.
    pub(super) fn close_group(&mut self) {
        let Some(group) = self.group.take() else {
            return;
        };
        let now = self.read_clock();
        let Group { spec, count, .. } = group;
        debug_assert!(count <= GROUP_MAX, "TIMES-1: {count} commands together");
        // Their share of the time.
        let all = u32::try_from(count + group.others).unwrap_or(u32::MAX);
        let took = now.since(group.started) / all * u32::try_from(count).unwrap_or(1);
        let (entry, counts) = (self.session.entry(), (count, group.failed));
        self.core
            .note_group(entry, spec, counts, group.command.as_ref(), (took, now));
        for (is_there, count) in [(true, group.hits), (false, group.misses)] {
            if count > 0 {
                self.core.counters.found_together(is_there, count);
            }
        }
    }

    /// A command is about to be started.
    pub(super) fn begin(&self, resolved: &Resolved) {
        self.session.entry().set_command(resolved.spec);
        let shared = &self.core.shared;
        if !shared.monitors.is_empty() {
            let spec = &SPECS[usize::from(resolved.spec)];
            let at = shared.wall_clock();
            shared
                .monitors
                .tell(at, &self.session, spec, &resolved.command);
        }
    }

    /// A command has its reply.
    pub(super) fn ran(&mut self, resolved: &Resolved, reply: &Reply, started: Moment) {
        let ended = self.read_clock();
        let Resolved { spec, command, .. } = resolved;
        let entry = self.session.entry();
        let timed = Timed { started, ended };
        self.core.note_run(entry, *spec, command, reply, timed);
    }

    /// A command could not be run as it was called.
    pub(super) fn note_refused(&self, command: &Command) {
        let sub = (command.len() > 1).then(|| command.get(1));
        match find_called(command.get(0), sub) {
            Some(spec) => self.core.counters.rejected(spec),
            None => self.core.counters.unknown(),
        }
    }

    /// A reply leaves.
    pub(super) fn let_go(&mut self, leaving: Leaving) {
        if let Some(Begun { spec, started }) = leaving.held {
            let is_error = matches!(leaving.reply, Reply::Error(_));
            let ended = self.stamp();
            let timed = Timed { started, ended };
            self.core
                .note(self.session.entry(), spec, None, is_error, timed);
        }
        if let Some(is_there) = leaving.found {
            self.core.counters.found(is_there);
        }
        if leaving.answered {
            self.emit(leaving.reply);
        }
    }

    /// Puts what MONITOR gives behind the replies.
    pub(super) fn take_feed(&mut self) {
        if let Some(feed) = self.session.feed()
            && self.output.is_empty()
            && self.queue.is_empty()
            && feed.has_lines()
        {
            self.output.small().extend_from_slice(&feed.take());
        }
    }

    /// Until when CLIENT PAUSE holds up what comes next, if it does (PAUSE-1).
    pub(super) fn pauses(&self, step: &Step) -> Option<Moment> {
        let pause = &self.core.shared.pause;
        if !pause.is_on() {
            return None;
        }
        let Step::Run(resolved) = step else {
            return None;
        };
        let (paused, until) = pause.now(self.core.shared.now())?;
        let spec = &SPECS[usize::from(resolved.spec)];
        let writes = |spec: u16| SPECS[usize::from(spec)].may_change();
        let waits = match paused {
            Paused::All => spec.name != "client|unpause",
            Paused::Writes if spec.name == "exec" => self.block.has(writes),
            Paused::Writes => !self.block.is_open() && writes(resolved.spec),
        };
        waits.then_some(until)
    }

    /// Shows others how far the transaction is that is being put together.
    pub(super) fn tell_block(&self) {
        let (queued, watched) = self.block.counts();
        self.session.entry().set_block(queued, watched);
    }
}
