//! One connection: bytes in, commands started in order, replies out in order.
//!
//! A turn of the loop:
//!
//! 1. reads ahead: a group of commands that have arrived is parsed, and the memory of their keys is
//!    asked for together;
//! 2. executes or starts every one of them that may start. A command on a key that is here is
//!    executed at once. Its reply is written to the output, or held until it is durable;
//! 3. writes all replies that are ready with one call;
//! 4. waits for bytes, for durability, for commands under way, or to be ended by CLIENT KILL.
//!
//! Nothing is read while a command has to wait or too many replies are unsent. So a peer that sends
//! faster than it is served, or does not read, is held up by its own socket.
//!
//! Invariants
//! - CONN-1: commands start in the order of the stream (QUEUE-1 and QUEUE-2 do the rest).
//! - CONN-2: a run under way is driven in every wait, also while replies are written to a peer that
//!   does not read. It may hold turns that others wait for.
//! - CONN-3: the memory of a connection is bounded. Input: one command's bytes and one read.
//!   Output: `output_bytes_max`, one reply, and the replies of commands under way (QUEUE-3). While
//!   memory is scarce it is [`SCARCE_OUTPUT_BYTES`] instead of `output_bytes_max`. An idle
//!   connection holds two buffers of at most [`IDLE_BYTES_MAX`], and no queues. The memory that a
//!   connection holds counts in the bound of all (CLIMEM-1).
//! - CONN-4: one timer is set for all held replies of a connection, not one for each.
//! - CONN-5: when it is not known whether a command was executed, those that have arrived behind it
//!   are not executed.
//! - CONN-6: a connection reads and writes about [`TURN_BYTES`] before others of its core get their
//!   turn, however large its values are.
//! - CONN-7: when a connection is known to be broken, its run is dropped: building a reply ends
//!   when its taker is gone.
//! - CONN-8: what follows a run that may change the user or the database begins when that is done.

mod noting;
mod rights;
mod start;
mod waiting;

use crate::block::Block;
use crate::commands::{Commands, ConnectionContext, Data, Own, Ran, Scratch, one_key, run_data};
use crate::counters::add;
use crate::database::{DatabaseId, KnownHash, PREFETCH_MAX};
use crate::failure::{evicted, too_long};
use crate::give_way::give_way;
use crate::memory::MemoryAccount;
use crate::output::Output;
use crate::parser::{Command, Parsed, Parser, ProtocolError, TooLarge};
use crate::queue::Queue;
use crate::reply::{Failure, Reply};
use crate::session::Session;
use crate::shared::Core;
use crate::spare::{self, Spare};
use crate::table::{Keys, Run, SPECS, Spec, resolve};
use bytes::BytesMut;
use core::future::poll_fn;
use core::pin::Pin;
use core::task::{Context, Poll};
use noting::Group;
use pluvio_client::{HeldWait, Operation};
use pluvio_env::{ByteStream, Moment, StreamError};
use pluvio_units::UnixMs;
use smallvec::SmallVec;
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use waiting::{Alarm, Woke};

/// Buffers above this size are given back when a connection has nothing to do.
const IDLE_BYTES_MAX: usize = 4 << 10;
/// Turns without waiting after which other connections of the core get theirs.
const TURNS_MAX: u32 = 16;
/// Bytes that are read or written before other connections of the core get their turn. The kernel
/// takes some ten microseconds for them.
const TURN_BYTES: usize = 128 << 10;
/// From this many bytes of replies on, a connection starts no more commands while memory is scarce.
const SCARCE_OUTPUT_BYTES: usize = 64 << 10;
/// A run that was polled this often may take long. From then on the connection is checked: the peer
/// may be gone.
const POLLS_BEFORE_LOOK: u32 = 4;

thread_local! {
    /// Queues of commands read ahead. One takes at most 2 KiB. Few connections of a core hold one
    /// at a time: those whose commands wait.
    static SPARE_AHEAD: Spare<Step> = const { Spare::new(PREFETCH_MAX, 8) };
}

/// Serves a connection until it ends.
pub(crate) async fn serve(core: &Core, stream: Box<dyn ByteStream>) {
    let shared = &core.shared;
    let entry = shared
        .clients
        .enter(stream.peer().address, stream.local(), shared.now());
    let _leave = Leave(core, entry.id);
    add(&core.counters.connections, 1);
    let options = core.options();
    let account = options.memory.enter(Arc::clone(&entry));
    let block = Block::default();
    let run = |is_hasty: bool, database: DatabaseId, commands: Commands| {
        let core = if is_hasty { core.hasty() } else { core };
        let context = ConnectionContext {
            account: &account,
            block: &block,
        };
        run_data(core, context, database, commands)
    };
    let mut connection = Connection {
        core,
        account: &account,
        block: &block,
        stream,
        session: Session::new(Arc::clone(&entry), &options.users),
        parser: Parser::new(options.limits),
        input: BytesMut::new(),
        output: Output::default(),
        queue: Queue::new(options.queue_max),
        ahead: VecDeque::new(),
        same: None,
        scratch: Scratch::default(),
        held_wait: core.databases.client().wait_for_held(),
        alarm: None,
        held_until: None,
        stamp: None,
        stamp_uses: 0,
        group: None,
        group_started: (shared.now(), 0),
        paused_until: None,
        pause_alarm: None,
        ended: false,
        is_in_change: false,
        running_bytes: 0,
        spent: 0,
        until_sampled: core.until_sampled(),
        run_data: run,
    };
    connection.tell_caller();
    // An error means that the peer is gone: nobody is left to tell.
    let ended = connection.run().await;
    if ended.is_ok() && account.is_evicted() {
        connection.say_last_words().await;
    }
}

/// Takes the connection off the list, however it ends.
struct Leave<'a>(&'a Core, u64);

impl Drop for Leave<'_> {
    fn drop(&mut self) {
        self.0.shared.monitors.leave(self.1);
        self.0.shared.clients.leave(self.1);
        add(&self.0.counters.connections_ended, 1);
    }
}

/// A command that was read and looked up.
enum Step {
    Run(Resolved),
    /// It cannot be run.
    Refuse {
        failure: Failure,
        is_exec: bool,
    },
    /// The stream makes no sense from here on.
    Broken(ProtocolError),
    /// The peer is a web browser that somebody tricked into talking to us.
    Intruder,
}

impl Step {
    /// Bytes that it holds.
    fn bytes_held(&self) -> usize {
        match self {
            Self::Run(resolved) => resolved.command.bytes_held(),
            Self::Refuse { .. } | Self::Broken(_) | Self::Intruder => 0,
        }
    }

    /// The command on the database that it is.
    fn data(&self) -> Option<(Data, &Command)> {
        match self {
            Self::Run(resolved) => match SPECS[usize::from(resolved.spec)].run {
                Run::Data(what) => Some((what, &resolved.command)),
                Run::Container | Run::Now(_) | Run::Own(_) => None,
            },
            Self::Refuse { .. } | Self::Broken(_) | Self::Intruder => None,
        }
    }
}

/// A command with its row of the table, and the hash of its key if it has one and that is known.
struct Resolved {
    spec: u16,
    command: Command,
    hash: Option<KnownHash>,
}

/// Why no more commands can be started.
enum Pause {
    /// More bytes are needed.
    Hungry,
    /// Commands under way have to land, or replies to be sent.
    Blocked,
    /// The connection is over.
    Over,
}

struct Connection<'a, M, F> {
    core: &'a Core,
    account: &'a MemoryAccount,
    block: &'a Block,
    stream: Box<dyn ByteStream>,
    session: Session,
    parser: Parser,
    input: BytesMut,
    output: Output,
    queue: Queue<F>,
    /// Commands that were read and are not started.
    ahead: VecDeque<Step>,
    /// The row of the last command, if another one may be found without a look at the table.
    same: Option<u16>,
    scratch: Scratch,
    /// The wait for the first held reply.
    held_wait: HeldWait,
    /// The timer of the first held reply (CONN-4).
    alarm: Alarm,
    /// When outcomes that are held in this turn are given up.
    held_until: Option<Moment>,
    /// A moment not long ago, if the clock was read since the last wait.
    stamp: Option<Moment>,
    /// Commands that have begun since, and were not timed one by one.
    stamp_uses: u64,
    /// Commands that are timed together, and when a new group begins.
    group: Option<Group>,
    group_started: (Moment, u64),
    /// Until when the next command waits for the end of CLIENT PAUSE.
    paused_until: Option<Moment>,
    pause_alarm: Alarm,
    /// Whether the peer sends nothing more.
    ended: bool,
    /// Whether the run under way may change the user or the database (CONN-8).
    is_in_change: bool,
    /// Bytes of the commands of the run under way, and of what EXEC took out of the block.
    running_bytes: usize,
    /// Bytes read and written since others had their turn.
    spent: usize,
    /// Commands on the database until the next one that is sampled.
    until_sampled: u64,
    run_data: M,
}

impl<M, F> Connection<'_, M, F>
where
    M: Fn(bool, DatabaseId, Commands) -> F,
    F: Future<Output = Ran>,
{
    async fn run(&mut self) -> Result<(), StreamError> {
        let mut turns = 0;
        loop {
            turns += 1;
            if turns > TURNS_MAX || self.spent >= TURN_BYTES {
                turns = 0;
                self.spent = 0;
                give_way().await;
                if self.session.entry().was_killed() {
                    return Ok(());
                }
            }
            let pause = poll_fn(|context| Poll::Ready(self.start_all(context))).await;
            self.close_group();
            self.take_feed();
            if !self.output.is_empty() {
                self.send().await?;
                continue;
            }
            match pause {
                Pause::Over => return Ok(()),
                Pause::Blocked => {}
                Pause::Hungry => {
                    let got = self.stream.try_read(&mut self.input)?;
                    if let Some(count) = got {
                        self.received(count);
                        continue;
                    }
                    self.shrink();
                }
            }
            turns = 0;
            self.spent = 0;
            match self.wait(matches!(pause, Pause::Hungry)).await? {
                Woke::Landed => {}
                Woke::Read(count) => self.received(count),
                Woke::Killed => return Ok(()),
            }
        }
    }

    fn received(&mut self, count: usize) {
        self.ended |= count == 0;
        self.spent += count;
        add(&self.core.counters.bytes_in, count as u64);
        add(&self.core.counters.reads, 1);
        self.session.entry().set_active(self.core.shared.now());
        if self.input.capacity() > TURN_BYTES {
            self.tell();
        }
    }

    /// Reports the bytes that this connection holds to the bound of all connections (CLIMEM-1).
    fn tell(&self) {
        let ahead: usize = self.ahead.iter().map(Step::bytes_held).sum();
        let input = self.input.capacity() + ahead + self.running_bytes + self.block.bytes();
        let entry = self.session.entry();
        entry.input_bytes.store(input, Relaxed);
        entry.output_bytes.store(self.output.bytes_held(), Relaxed);
        entry
            .waiting_bytes
            .store(self.queue.bytes_waiting(), Relaxed);
        self.tell_block();
        self.account.tell();
    }

    /// Tells the peer why the connection is closed, unless it is in the middle of a reply, or does
    /// not take it at once.
    async fn say_last_words(&mut self) {
        if !self.output.is_empty() {
            return;
        }
        let mut words = Vec::new();
        let failure = evicted(self.account.memory().bound());
        Reply::Error(failure).write(self.session.protocol(), &mut words);
        let mut write = self.stream.write_all(&words);
        let _ = poll_fn(|context| Poll::Ready(Pin::new(&mut write).poll(context))).await;
    }

    /// Starts all commands that have arrived and may start, and collects replies that may leave.
    fn start_all(&mut self, context: &mut Context<'_>) -> Pause {
        self.poll_run(context);
        self.held_until = None;
        self.stamp = None;
        loop {
            let mut limit = self.core.options().output_bytes_max;
            if self.account.memory().is_scarce() {
                limit = limit.min(SCARCE_OUTPUT_BYTES);
            }
            while self.output.len() < limit
                && let Some(leaving) = self.queue.next_reply(self.core.databases.client())
            {
                self.let_go(leaving);
            }
            if self.output.len() + self.queue.bytes_waiting() >= limit {
                return Pause::Blocked;
            }
            if self.is_in_change {
                return Pause::Blocked;
            }
            let next = if self.session.is_closing() {
                None
            } else {
                if self.ahead.is_empty() {
                    self.read_ahead();
                }
                self.ahead.pop_front()
            };
            let Some(step) = next else {
                if self.queue.is_empty() {
                    self.queue.all_answered();
                }
                let is_retired = self.session.entry().is_retired();
                let over = self.ended || self.session.is_closing() || is_retired;
                return match (over, self.queue.is_empty()) {
                    (true, true) => Pause::Over,
                    (true, false) => Pause::Blocked,
                    (false, _) => Pause::Hungry,
                };
            };
            if let Some(until) = self.pauses(&step) {
                self.paused_until = Some(until);
                self.ahead.push_front(step);
                return Pause::Blocked;
            }
            match self.start(step, context) {
                Ok(()) => {}
                Err(Wait::For(step)) => {
                    self.ahead.push_front(step);
                    return Pause::Blocked;
                }
                Err(Wait::Forever) => return Pause::Over,
            }
        }
    }

    /// Drives the run under way, and takes over what a run that has ended leaves.
    fn poll_run(&mut self, context: &mut Context<'_>) {
        let _ended = self.queue.poll(context);
        self.take_news();
        self.is_in_change &= self.queue.is_running();
    }

    /// Parses the commands that have arrived, as many as a group has, and asks for the memory of
    /// their keys.
    fn read_ahead(&mut self) {
        spare::take(&SPARE_AHEAD, &mut self.ahead);
        let database = self.session.database();
        let mut keys: SmallVec<[KnownHash; PREFETCH_MAX]> = SmallVec::new();
        // Commands behind a login may be larger than those before it.
        self.parser.set_stranger(!self.session.is_in());
        self.read_on(if self.session.is_in() {
            PREFETCH_MAX
        } else {
            1
        });
        for step in &mut self.ahead {
            if let Step::Run(resolved) = step
                && let Some(key) = only_key(&SPECS[usize::from(resolved.spec)], &resolved.command)
            {
                resolved.hash = self.core.databases.hash(database, key);
                keys.extend(resolved.hash);
            }
        }
        // A lone command asks for the memory of its key as early without this.
        if keys.len() > 1 {
            self.core.databases.prefetch(database, &keys);
        }
    }

    /// Parses commands that have arrived until `most` of them are ahead.
    fn read_on(&mut self, most: usize) {
        let goes_on = |last: Option<&Step>| {
            last.is_none_or(|step| matches!(step, Step::Run(_) | Step::Refuse { .. }))
        };
        while self.ahead.len() < most
            && goes_on(self.ahead.back())
            && let Some(step) = self.next_step()
        {
            self.ahead.push_back(step);
        }
    }

    /// The next command in the input, looked up.
    fn next_step(&mut self) -> Option<Step> {
        let parsed = match self.parser.next(&mut self.input) {
            Ok(parsed) => parsed?,
            Err(error) => return Some(Step::Broken(error)),
        };
        let (command, parts, too_large) = match parsed {
            Parsed::Command(command) => {
                let parts = command.len();
                (command, parts, None)
            }
            Parsed::TooLarge { start, parts, why } => (start, parts, Some(why)),
        };
        if command.is(0, "post") || command.is(0, "host:") {
            return Some(Step::Intruder);
        }
        let found = match self.same {
            Some(same) if SPECS[usize::from(same)].is_called(command.get(0), parts) => Ok(same),
            Some(_) | None => {
                let found = resolve(&command, parts);
                // A subcommand is not called by the name of its row.
                let is_plain = |spec: &u16| SPECS[usize::from(*spec)].container().is_none();
                self.same = found.as_ref().ok().copied().filter(is_plain);
                found
            }
        };
        let is_refused = too_large.is_some();
        match &found {
            Ok(spec) if is_refused => self.core.counters.rejected(*spec),
            Ok(_) => {}
            Err(_) => self.note_refused(&command),
        }
        let failure = match (found, too_large) {
            (Err(failure), _) => failure,
            (Ok(_), Some(TooLarge::Argument(_))) => too_long(),
            (Ok(_), Some(TooLarge::Command)) => {
                let limit = self.core.options().limits.command_bytes_max;
                Failure::new(format!(
                    "ERR the command is longer than {limit} bytes: split it into several"
                ))
            }
            (Ok(spec), None) => {
                return Some(Step::Run(Resolved {
                    spec,
                    command,
                    hash: None,
                }));
            }
        };
        let is_exec = command.is(0, "exec");
        Some(Step::Refuse { failure, is_exec })
    }

    fn answer(&mut self, reply: Reply, answered: bool) {
        if let Some(reply) = self.queue.answer(reply, answered) {
            self.emit(reply);
        }
    }

    fn emit(&mut self, reply: Reply) {
        if let Reply::Error(failure) = &reply {
            self.core.counters.error(failure.prefix());
        }
        self.output.reply(reply, self.session.protocol());
    }
}

/// Whether a command on one key is a change, if its arguments make sense at this time; `None` of
/// others.
fn kind_of(what: Data, command: &Command, now: UnixMs) -> Option<bool> {
    match one_key(what, command, &mut Scratch::default(), &|| now) {
        Some(Ok(one)) => Some(matches!(one.request, Operation::Mutate(_))),
        Some(Err(_)) | None => None,
    }
}

/// Whether a command waits for EXEC, if there was MULTI.
fn is_put_into_blocks(run: Run) -> bool {
    match run {
        Run::Now(_) | Run::Container => true,
        Run::Own(what) => !matches!(what, Own::Discard | Own::Multi | Own::Quit | Own::Reset),
        Run::Data(what) => !matches!(what, Data::Exec | Data::Watch),
    }
}

/// Whether a command in this row is on one key, its first argument.
fn is_of_one_key(row: &Spec) -> bool {
    row.keys.first == Keys::ONE.first && matches!(row.run, Run::Data(_))
}

/// The key of a command that is on one key, or of a script that names one.
fn only_key<'c>(row: &Spec, command: &'c Command) -> Option<&'c [u8]> {
    match row.run {
        Run::Data(_) if is_of_one_key(row) => Some(command.get(1)),
        Run::Data(_) if row.keys == Keys::COUNTED && command.get(2) == b"1" => {
            Some(command.get(row.keys.first))
        }
        Run::Data(_) | Run::Container | Run::Now(_) | Run::Own(_) => None,
    }
}

/// Why a command did not start.
enum Wait {
    /// It has to wait for others.
    For(Step),
    /// The connection is over.
    Forever,
}
