//! How a command of a connection is started: refused, run in place, put into a block, executed at
//! once, or launched as a run.

use super::noting::Done;
use super::rights::permit_still;
use super::{Connection, Resolved, Step, Wait, is_of_one_key, is_put_into_blocks, kind_of};
use crate::block::Queued;
use crate::commands::{
    ClosedBlock, Commands, Data, Now, OneKey, Own, Ran, ScriptAtOnce, is_there, logs_in, one_key,
    run_now, run_own, run_script_at_once,
};
use crate::counters::add;
use crate::database::DatabaseId;
use crate::failure::{AFTER_DOUBT, NO_AUTH_IN_MULTI, NOT_IN_MULTI, exec_aborted};
use crate::parser::Command;
use crate::queue::{Answer, Begun, HeldReply};
use crate::reply::{Failure, Reply};
use crate::table::{Keys, Run, SPECS};
use core::task::Context;
use pluvio_client::{AtOnce, HeldOutcome, Operation};
use pluvio_mutation::Current;
use pluvio_trace::{Span, SpanKind, Value};
use smallvec::SmallVec;

impl<M, F> Connection<'_, M, F>
where
    M: Fn(bool, DatabaseId, Commands) -> F,
    F: Future<Output = Ran>,
{
    /// Starts a command, or gives it back when it has to wait.
    pub(super) fn start(&mut self, step: Step, context: &mut Context<'_>) -> Result<(), Wait> {
        let Step::Run(resolved) = step else {
            return self.start_none(step);
        };
        let row = &SPECS[usize::from(resolved.spec)];
        if !self.follow_user() {
            return Err(Wait::Forever);
        }
        if !self.is_free() {
            if !self.queue.has_place() {
                return Err(Wait::For(Step::Run(resolved)));
            }
            if let Err(failure) = self.permit(&resolved) {
                let failure = self.refused(row.run == Run::Data(Data::Exec), failure);
                self.block.spoil();
                self.reject(resolved.spec, failure);
                return Ok(());
            }
        }
        if self.block.is_open() && is_put_into_blocks(row.run) {
            return self.put_into_block(resolved);
        }
        match row.run {
            Run::Now(what) => self.start_now(what, resolved),
            Run::Own(what) => self.start_own(what, resolved, context),
            Run::Data(what) => self.start_data(what, resolved, context),
            Run::Container => {
                // `resolve` refuses it in these words already.
                let failure = crate::table::wrong_arity(row.name);
                self.answer(Reply::Error(failure), true);
                Ok(())
            }
        }
    }

    /// Answers something that is no command to be run.
    #[cold]
    fn start_none(&mut self, step: Step) -> Result<(), Wait> {
        match step {
            Step::Refuse { .. } | Step::Broken(_) if !self.queue.has_place() => {
                return Err(Wait::For(step));
            }
            Step::Refuse { failure, is_exec } => {
                let failure = self.refused(is_exec, failure);
                self.block.spoil();
                let answered = self.session.take_answered();
                self.answer(Reply::Error(failure), answered);
            }
            Step::Broken(error) => {
                add(&self.core.counters.protocol_errors, 1);
                let peer = &self.session.entry().address;
                tracing::debug!(%peer, ?error, "closing a connection: protocol error");
                self.session.close();
                let answered = self.session.take_answered();
                self.answer(Reply::Error(Failure::new(error.text())), answered);
            }
            Step::Intruder => {
                let peer = &self.session.entry().address;
                tracing::debug!(%peer, "closing a connection: it speaks HTTP");
                // Replies that wait are not sent: what is to be sent keeps a connection going, and
                // the lines that follow would be read as commands.
                self.output.clear();
                return Err(Wait::Forever);
            }
            Step::Run(_) => {}
        }
        Ok(())
    }

    /// Answers a command of this row that is not run.
    fn reject(&mut self, spec: u16, failure: Failure) {
        self.core.counters.rejected(spec);
        let answered = self.session.take_answered();
        self.answer(Reply::Error(failure), answered);
    }

    /// Runs a command that needs nothing of the connection and no objects.
    fn start_now(&mut self, what: Now, resolved: Resolved) -> Result<(), Wait> {
        if !self.queue.has_place() {
            return Err(Wait::For(Step::Run(resolved)));
        }
        self.begin(&resolved);
        let started = self.start_alone();
        let answered = self.session.take_answered();
        let reply = run_now(self.core, what, resolved.spec, &resolved.command).into();
        self.ran(&resolved, &reply, started);
        self.answer(reply, answered);
        Ok(())
    }

    /// Runs a command that concerns the connection, once all before it are answered.
    fn start_own(
        &mut self,
        what: Own,
        resolved: Resolved,
        context: &mut Context<'_>,
    ) -> Result<(), Wait> {
        if !self.queue.is_empty() {
            return Err(Wait::For(Step::Run(resolved)));
        }
        if self.starts_login(what, &resolved, context) {
            return Ok(());
        }
        self.begin(&resolved);
        let started = self.start_alone();
        let (core, command) = (self.core, &resolved.command);
        let reply = run_own(core, &mut self.session, self.block, what, command).into();
        let answered = self.session.take_answered();
        self.ran(&resolved, &reply, started);
        self.answer(reply, answered);
        Ok(())
    }

    /// Runs a command on objects: at once where that is possible.
    #[inline]
    fn start_data(
        &mut self,
        what: Data,
        resolved: Resolved,
        context: &mut Context<'_>,
    ) -> Result<(), Wait> {
        if !self.queue.may_execute() {
            return Err(Wait::For(Step::Run(resolved)));
        }
        self.begin(&resolved);
        if self.queue.is_in_doubt() {
            let failure = self.refused(what == Data::Exec, AFTER_DOUBT);
            self.reject(resolved.spec, failure);
            return Ok(());
        }
        self.until_sampled -= 1;
        let is_sampled = self.until_sampled == 0;
        // The commands that EXEC takes out of the block are held until its run ends.
        let taken = match matches!(what, Data::Exec) {
            true => self.block.bytes(),
            false => 0,
        };
        let row = &SPECS[usize::from(resolved.spec)];
        let is_done = match what {
            Data::Exec => !self.close_block(&resolved),
            // A sampled one takes the long way, on which its parts are seen.
            _ if is_sampled => false,
            _ if is_of_one_key(row) => self.execute(what, &resolved),
            _ => row.keys == Keys::COUNTED && self.execute_script(what, &resolved),
        };
        let span = is_sampled.then(|| self.sampled(row.name));
        if !is_done {
            self.launch((what, resolved.command), span, context);
            self.running_bytes += taken;
        }
        Ok(())
    }

    /// The failure of a command that is refused before it is run. A refused EXEC discards its
    /// block: else the commands behind it would wait for another EXEC.
    fn refused(&self, is_exec: bool, failure: Failure) -> Failure {
        if !is_exec {
            return failure;
        }
        let _block_or_none = self.block.discard();
        exec_aborted(&failure)
    }

    /// Puts a command into the block that MULTI opened.
    fn put_into_block(&mut self, resolved: Resolved) -> Result<(), Wait> {
        if !self.queue.has_place() {
            return Err(Wait::For(Step::Run(resolved)));
        }
        self.begin(&resolved);
        let selected = self.selected(&resolved);
        let Resolved { spec, command, .. } = resolved;
        let row = &SPECS[usize::from(spec)];
        let refused = match row.run {
            _ if row.has_flag("no_multi") => Some(NOT_IN_MULTI),
            Run::Own(what) if logs_in(self.core, what, &command) => Some(NO_AUTH_IN_MULTI),
            _ => None,
        };
        if let Some(failure) = refused {
            self.block.spoil();
            self.core.counters.rejected(spec);
            let answered = self.session.take_answered();
            self.answer(Reply::Error(failure), answered);
            return Ok(());
        }
        let limit = self.core.options().limits.command_bytes_max;
        let reply = match self.block.queue(Queued { spec, command }, selected, limit) {
            Ok(()) => Reply::Status("QUEUED"),
            Err(failure) => Reply::Error(failure),
        };
        let answered = self.session.take_answered();
        self.answer(reply, answered);
        Ok(())
    }

    /// Prepares what EXEC is to do. False: there is nothing, and that was answered.
    fn close_block(&mut self, resolved: &Resolved) -> bool {
        let started = self.start_alone();
        let taken = match self.block.close() {
            Ok(taken) => taken,
            Err(failure) => {
                let (reply, answered) = (Reply::Error(failure), self.session.take_answered());
                self.ran(resolved, &reply, started);
                self.answer(reply, answered);
                return false;
            }
        };
        let database = self.session.database();
        let caller = self.block.caller();
        let permit = |spec, database, command: &Command| {
            permit_still(caller.as_deref(), spec, database, command)
        };
        let closed = ClosedBlock::of(self.core, taken, database, permit);
        self.block.set_closed(closed);
        true
    }

    /// Executes a command on one key at once. False: nothing was done, and it has to take the long
    /// way.
    fn execute(&mut self, what: Data, resolved: &Resolved) -> bool {
        let mut scratch = core::mem::take(&mut self.scratch);
        let core = self.core;
        let one = one_key(what, &resolved.command, &mut scratch, &|| core.wall_ms());
        let is_done = one.is_some_and(|one| self.execute_one(one, resolved));
        scratch.clear();
        self.scratch = scratch;
        is_done
    }

    fn execute_one(&mut self, one: Result<OneKey<'_>, Failure>, resolved: &Resolved) -> bool {
        let known = resolved.hash;
        let one = match one {
            Ok(one) => one,
            Err(failure) => {
                let started = self.start_alone();
                let (reply, answered) = (Reply::Error(failure), self.session.take_answered());
                self.ran(resolved, &reply, started);
                self.answer(reply, answered);
                return true;
            }
        };
        self.start_in_group(resolved.spec);
        let (core, database) = (self.core, self.session.database());
        let databases = &core.databases;
        if one.is_plain_get() && self.session.answers_all() && self.queue.is_empty() {
            let (protocol, output) = (self.session.protocol(), &mut self.output);
            let mut length = None;
            let mut show = |current: Option<Current<'_>>| {
                let value = current.map(|current| current.value);
                length = value.map(<[u8]>::len);
                output.value_or_nil(value, protocol);
            };
            if databases.show_at_once(database, one.request.key(), known, &mut show) {
                let is_there = length.is_some();
                let done = Done {
                    bytes: length.unwrap_or(0),
                    failed: false,
                    found: Some(is_there),
                };
                self.did(resolved, done);
                return true;
            }
        }
        match databases.at_once(database, &one.request, known) {
            AtOnce::Done(outcome) => {
                let is_read = matches!(one.request, Operation::Get(_));
                let found = is_read.then(|| is_there(&outcome));
                let answered = self.session.take_answered();
                let reply = one.shape.reply(outcome);
                let done = Done {
                    found,
                    ..Done::of(&reply)
                };
                self.did(resolved, done);
                self.answer(reply, answered);
            }
            AtOnce::Held(held) => {
                let is_change = matches!(one.request, Operation::Mutate(_));
                self.hold(resolved, held, (Answer::Shaped(one.shape), is_change));
            }
            AtOnce::Later => return false,
        }
        true
    }

    /// Holds the answer to a command that was executed until its outcome is durable.
    fn hold(
        &mut self,
        resolved: &Resolved,
        held: HeldOutcome,
        (answer, is_change): (Answer, bool),
    ) {
        let core = self.core;
        let answered = self.session.take_answered();
        let limit = core.databases.client().timeout();
        // Its arguments are let go of here.
        core.note_request(self.session.entry(), resolved.spec, &resolved.command);
        self.close_group();
        let started = self.stamp();
        self.stamp_uses += 1;
        let until = *self.held_until.get_or_insert(started + limit);
        let reply = HeldReply {
            begun: Begun {
                spec: resolved.spec,
                started,
            },
            held,
            answer,
            is_change,
            until,
        };
        self.queue.hold(reply, answered);
    }

    /// Runs a script at once. False: nothing was done, and it has to take the long way.
    fn execute_script(&mut self, what: Data, resolved: &Resolved) -> bool {
        self.start_in_group(resolved.spec);
        let (core, database) = (self.core, self.session.database());
        let caller = || self.block.caller();
        let at = (database, resolved.hash);
        match run_script_at_once(core, caller, at, what, &resolved.command) {
            ScriptAtOnce::Done(reply) => {
                let answered = self.session.take_answered();
                self.did(resolved, Done::of(&reply));
                self.answer(reply, answered);
            }
            ScriptAtOnce::Held(held, reply) => {
                self.hold(resolved, held, (Answer::Reply(reply), true));
            }
            ScriptAtOnce::Later => return false,
        }
        true
    }

    /// Starts the future of a command on the database, and of those behind it that can be asked for
    /// with it.
    pub(super) fn launch(
        &mut self,
        (what, command): (Data, Command),
        span: Option<Span>,
        context: &mut Context<'_>,
    ) {
        self.close_group();
        let mut answered: SmallVec<[bool; 1]> = SmallVec::new();
        answered.push(self.session.take_answered());
        // A sampled one goes by itself: the trace is its own.
        let read_at = self.core.wall_ms();
        let kind = kind_of(what, &command, read_at).filter(|_| span.is_none());
        let mut commands: SmallVec<[(Data, Command); 1]> = SmallVec::new();
        let mut bytes = command.bytes_held();
        commands.push((what, command));
        if kind.is_some() {
            self.read_on(self.queue.run_max());
        }
        while commands.len() < self.queue.run_max()
            && self
                .ahead
                .front()
                .is_some_and(|step| self.pauses(step).is_none() && self.is_permitted(step))
            && let Some((what, next)) = self.ahead.front().and_then(Step::data)
            && kind.is_some()
            && kind_of(what, next, read_at) == kind
            && self.until_sampled > 1
            && bytes + next.bytes_held() <= self.core.options().run_bytes_max
        {
            bytes += next.bytes_held();
            self.until_sampled -= 1;
            let Some(Step::Run(next)) = self.ahead.pop_front() else {
                unreachable!("looked at a moment ago")
            };
            self.begin(&next);
            answered.push(self.session.take_answered());
            commands.push((what, next.command));
        }
        self.stamp = None;
        let is_hasty = self.queue.is_full();
        let commands = Commands {
            all: commands,
            read_at,
        };
        let run = (self.run_data)(is_hasty, self.session.database(), commands);
        self.running_bytes = bytes;
        self.queue.begin(run, answered, span);
        self.is_in_change = matches!(what, Data::LogIn | Data::Exec);
        self.poll_run(context);
    }

    /// The span of a sampled command, and when the next one is sampled.
    #[cold]
    fn sampled(&mut self, name: &'static str) -> Span {
        self.until_sampled = self.core.until_sampled();
        let mut span = Span::root(&*self.core.databases.parts().rng, SpanKind::Server, name);
        span.note("db.system.name", || Value::Text("redis".to_owned()));
        let database = self.session.database().number();
        span.note("db.namespace", || Value::Text(database.to_string()));
        span
    }
}
