//! What a connection tells of its commands: counters, times and logs, to MONITOR, and to those that
//! look at its entry. And whether CLIENT PAUSE holds a command up.

use super::{Connection, Resolved, Step};
use crate::commands::{Commands, Ran};
use crate::database::DatabaseId;
use crate::output::Out;
use crate::parser::Command;
use crate::pause::Paused;
use crate::queue::Leaving;
use crate::reply::Reply;
use crate::table::{SPECS, find_called};
use pluvio_env::Moment;

impl<M, F> Connection<'_, M, F>
where
    M: Fn(bool, DatabaseId, Commands) -> F,
    F: Future<Output = Ran>,
{
    /// The moment now, as it was read after the last command.
    pub(super) fn stamp(&mut self) -> Moment {
        *self.stamp.get_or_insert_with(|| self.core.shared.now())
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
        let now = self.core.shared.now();
        self.stamp = Some(now);
        let Resolved { spec, command, .. } = resolved;
        let entry = self.session.entry();
        self.core
            .note_run(entry, *spec, command, reply, (started, now));
    }

    /// [`Self::ran`] of a command whose reply is a value that was sent on at once.
    pub(super) fn ran_and_gave(&mut self, resolved: &Resolved, bytes: usize, started: Moment) {
        let now = self.core.shared.now();
        self.stamp = Some(now);
        let Resolved { spec, command, .. } = resolved;
        let entry = self.session.entry();
        self.core
            .note(entry, *spec, Some(command), false, (started, now));
        self.core.note_reply(entry, *spec, command, bytes);
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
        if let Some((spec, started)) = leaving.held {
            let is_error = matches!(leaving.reply, Reply::Error(_));
            let (now, entry) = (self.stamp(), self.session.entry());
            self.core.note(entry, spec, None, is_error, (started, now));
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
        let writes = |spec: u16| SPECS[usize::from(spec)].has_flag("write");
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
