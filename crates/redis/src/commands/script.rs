//! EVAL, FCALL and their kin: a script is a transaction.
//!
//! 1. The objects of the keys that it names are read ([`overlay`](super::overlay) says when).
//! 2. It runs on an [overlay](super::overlay), from its beginning to its end: nothing waits inside
//!    it. Where it wants an object that was not read, or a command that works on no key, it is
//!    interrupted. That is fetched, and it runs anew. Objects that it may want next are read with
//!    it ([`ahead`]).
//! 3. A script that takes long, or much memory, is interrupted, and runs anew outside the event
//!    loop.
//! 4. Its changes are made at one moment, if nothing that it read has changed meanwhile. Else all
//!    of it is done again. A script that fails changes nothing. One that changed nothing, and read
//!    at one moment only, is done (OVERLAY-1).
//!
//! A script that names one key of this server goes through steps 1, 2 and 4 without waiting where
//! that is possible ([`at_once`]).
//!
//! - EVAL-1: a script sees one state of its objects, and others see all that it does, or nothing.
//! - EVAL-2: scripts of one process that name the same key, and may change it, take turns. So they
//!   do not meet again and again in their commits.

mod ahead;
mod at_once;
mod server;

pub(crate) use at_once::{ScriptAtOnce, at_once};

use self::ahead::Ahead;
use self::server::{Server, reply_of};
use super::overlay::{ObjectAt, Objects, Overlay};
use super::{CommandResult, Data, run_now};
use crate::database::{DatabaseId, NotTransacted};
use crate::failure;
use crate::give_way::give_way;
use crate::memory::MemoryAccount;
use crate::monitor::Told;
use crate::number::integer;
use crate::parser::Command;
use crate::reply::{Failure, Reply};
use crate::scripts::{Body, HASH_DIGITS, RunningFunction};
use crate::shared::Core;
use crate::table::{Run, SPECS, resolve};
use crate::users::caller::Caller;
use bytes::Bytes;
use core::cell::{Cell, RefCell};
use core::time::Duration;
use pluvio_env::{Clock, Moment, timeout};
use pluvio_script::{Budget, Ended, Interpreter, MEMORY_MAX, Shebang, Stop};
use smallvec::SmallVec;
use std::rc::Rc;
use std::sync::Arc;

/// Instructions after which a script goes on outside the event loop: a millisecond or so.
const INLINE: u64 = 200_000;
/// Time after which it does: operations on strings take longer than others.
const INLINE_TIME: Duration = Duration::from_millis(2);
/// Memory beyond which it does, so that no single operation takes long.
const INLINE_MEMORY: usize = 1 << 20;
/// Time and memory of a library that is loaded, on the event loop.
const LOAD_TIME: Duration = Duration::from_millis(100);
const LOAD_MEMORY: usize = 4 << 20;
/// Instructions after which it is given up: some ten seconds.
const MOST: u64 = 4_000_000_000;
/// How many keys a script may use that it has not named, and how often it may want something that
/// was not read.
const WANTS_MAX: usize = 1000;

thread_local! {
    static INTERPRETER: RefCell<Option<Box<Interpreter>>> = const { RefCell::new(None) };
}

fn with_interpreter<R>(f: impl FnOnce(&Interpreter) -> R) -> R {
    // Taken out: nothing inside may ask for it again.
    let interpreter = INTERPRETER.try_with(|kept| kept.borrow_mut().take());
    let interpreter = interpreter.ok().flatten().unwrap_or_default();
    let result = f(&interpreter);
    let _exiting = INTERPRETER.try_with(|kept| *kept.borrow_mut() = Some(interpreter));
    result
}

/// Whether a script can be compiled.
///
/// # Errors
/// It cannot, in Redis's words.
pub(super) fn check(source: &[u8]) -> Result<(), Failure> {
    if let Err(error) = Shebang::of_script(source) {
        return Err(Failure::new([b"ERR ".as_slice(), &error.0].concat()));
    }
    with_interpreter(|interpreter| interpreter.check(source)).map_err(Failure::new)
}

/// What a library registers.
///
/// # Errors
/// It makes no sense, in Redis's words, or takes too long.
pub(crate) fn library(
    source: &[u8],
    clock: &Arc<dyn Clock>,
) -> Result<pluvio_script::Library, Failure> {
    let limits = Limits {
        instructions: INLINE,
        memory: LOAD_MEMORY,
        ..Limits::inline(clock, LOAD_TIME)
    };
    let budget = limits.budget(Rc::default());
    let loaded = with_interpreter(|interpreter| interpreter.load_library(source, &budget));
    loaded.map_err(|error| Failure::new([b"ERR ".as_slice(), &error].concat()))
}

/// A command that runs a script.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Call {
    by: Lookup,
    is_read_only: bool,
}

/// What a command names its script by.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Lookup {
    Source,
    Hash,
    Function,
}

impl Call {
    pub(crate) const EVAL: Self = Self::changing(Lookup::Source);
    pub(crate) const EVAL_RO: Self = Self::EVAL.read_only();
    pub(crate) const EVALSHA: Self = Self::changing(Lookup::Hash);
    pub(crate) const EVALSHA_RO: Self = Self::EVALSHA.read_only();
    pub(crate) const FCALL: Self = Self::changing(Lookup::Function);
    pub(crate) const FCALL_RO: Self = Self::FCALL.read_only();

    const fn changing(by: Lookup) -> Self {
        Self {
            by,
            is_read_only: false,
        }
    }

    const fn read_only(self) -> Self {
        Self {
            is_read_only: true,
            ..self
        }
    }

    /// The call that a command is, if it is one.
    pub(crate) fn of(what: Data) -> Option<Self> {
        match what {
            Data::Script(call) => Some(call),
            Data::Single(_)
            | Data::EachKey(_)
            | Data::ReadsFirst(_)
            | Data::Survey(_)
            | Data::Exec
            | Data::LogIn
            | Data::Watch
            | Data::Other(_) => None,
        }
    }

    /// Whether it may change nothing.
    pub(crate) fn is_read_only(self) -> bool {
        self.is_read_only
    }

    /// What is told when it was stopped.
    pub(super) fn killed(self) -> Failure {
        match self.by {
            Lookup::Source | Lookup::Hash => failure::SCRIPT_KILLED,
            Lookup::Function => failure::FUNCTION_KILLED,
        }
    }
}

/// Where the keys of a command begin that runs a script.
const FIRST_KEY: usize = 3;

/// The number of keys.
fn arguments(command: &Command) -> Result<usize, Failure> {
    let count = integer(command.get(2)).ok_or(failure::NOT_INTEGER)?;
    if count < 0 {
        return Err(Failure::fixed("ERR Number of keys can't be negative"));
    }
    let keys = usize::try_from(count).unwrap_or(usize::MAX);
    match keys <= command.len() - FIRST_KEY {
        true => Ok(keys),
        false => Err(Failure::fixed(
            "ERR Number of keys can't be greater than number of args",
        )),
    }
}

/// What is to be run.
#[derive(Clone)]
struct Job {
    body: Arc<Body>,
    db: DatabaseId,
    /// How many keys the command names.
    keys: usize,
    is_read_only: bool,
    /// The command that runs it.
    command: Command,
    /// The user, if there is something that it may not do.
    caller: Option<Arc<Caller>>,
    /// Whether MONITOR is told of its commands.
    is_told: bool,
}

impl Job {
    fn keys(&self) -> impl Iterator<Item = &[u8]> {
        self.command.from(FIRST_KEY).take(self.keys)
    }
}

/// What a script wanted when it was interrupted.
enum Want {
    /// Objects that were not read.
    Objects {
        places: Vec<ObjectAt>,
        /// How many at the front are certain. The others are guessed.
        sure: usize,
    },
    /// A command that works on no key.
    Outside(DatabaseId, Command),
}

/// What an attempt came to.
enum Attempt {
    Done(Reply, Told),
    /// It failed: its changes do not count.
    Failed(Failure, Told),
    Wants(Want),
    /// Its budget is used up.
    TooLong,
    /// SCRIPT KILL or FUNCTION KILL has stopped it.
    Killed,
}

/// Runs a script on an overlay, after what was run there before.
///
/// # Errors
/// Its objects could not be read.
pub(super) async fn run(
    overlay: &mut Overlay<'_>,
    db: DatabaseId,
    call: Call,
    command: &Command,
) -> Result<Reply, NotTransacted> {
    let core = overlay.core();
    let clock = &core.databases.parts().clock;
    // All attempts together, and all scripts of a block, take no longer than an operation may.
    let until = overlay.until();
    let left = until.since(clock.now());
    if left.is_zero() {
        return Ok(Reply::Error(failure::SCRIPT_TOO_SLOW));
    }
    // The other half is for the script, where the cluster cannot keep it.
    let job = match find_job(core, db, (call, left / 2), command).await {
        Ok(job) => Job {
            caller: overlay.caller(),
            ..job
        },
        Err(failure) => return Ok(Reply::Error(failure)),
    };
    let keys = job.keys().map(|key| (db, Bytes::copy_from_slice(key)));
    overlay.read(keys.collect(), job.keys).await?;
    let mut script = RunningScript {
        before: overlay.objects().clone(),
        overlay,
        job,
        fetched: None,
        fetched_bytes: 0,
        is_long: false,
        ahead: Ahead::new(WANTS_MAX),
    };
    for _ in 0..WANTS_MAX {
        if clock.now() >= until {
            return Ok(script.fail(failure::SCRIPT_TOO_SLOW));
        }
        match script.attempt().await {
            Attempt::Done(reply, told) => {
                script.overlay.tell(told);
                return Ok(reply);
            }
            Attempt::Failed(failure, told) => {
                script.overlay.tell(told);
                return Ok(script.fail(failure));
            }
            Attempt::Killed => {
                script.overlay.set_killed(call.killed());
                return Ok(script.fail(call.killed()));
            }
            Attempt::TooLong if script.is_long => {
                return Ok(script.fail(failure::SCRIPT_TOO_SLOW));
            }
            Attempt::TooLong => {
                script.undo();
                script.is_long = true;
            }
            Attempt::Wants(Want::Objects { places, sure }) => {
                if !script.read(places, sure).await? {
                    break;
                }
                // Keys of this process are read without waiting.
                give_way().await;
            }
            Attempt::Wants(Want::Outside(db, command)) => {
                if let Err(failure) = script.fetch(db, command).await {
                    return Ok(script.fail(failure));
                }
            }
        }
    }
    Ok(script.fail(Failure::new(format!(
        "ERR the script used more than {WANTS_MAX} keys that it had not named: pass them as keys"
    ))))
}

/// A script between its attempts.
struct RunningScript<'r, 'c> {
    overlay: &'r mut Overlay<'c>,
    job: Job,
    /// The objects as each attempt finds them.
    before: Objects,
    fetched: Fetched,
    fetched_bytes: usize,
    /// Whether it goes on outside the event loop.
    is_long: bool,
    ahead: Ahead,
}

impl RunningScript<'_, '_> {
    /// Runs it from its beginning.
    async fn attempt(&mut self) -> Attempt {
        let core = self.overlay.core();
        let until = self.overlay.until();
        let ahead = match self.overlay.may_guess() {
            true => self.ahead.next(),
            false => 0,
        };
        let objects = self.overlay.objects();
        if self.is_long {
            return elsewhere(core, &self.job, objects, &self.fetched, (until, ahead)).await;
        }
        let limits = Limits {
            ahead,
            ..Limits::inline(&core.databases.parts().clock, INLINE_TIME)
        };
        attempt(&self.job, objects, &self.fetched, limits)
    }

    /// Takes back the changes of the last attempt.
    fn undo(&mut self) {
        self.overlay.objects().restore(&self.before);
    }

    /// The reply of a script that changes nothing, as it failed.
    fn fail(&mut self, failure: Failure) -> Reply {
        self.undo();
        Reply::Error(failure)
    }

    /// Reads objects for the next attempt, of which the first are `sure` to be used. False: the
    /// script has used too many that it had not named.
    async fn read(&mut self, places: Vec<ObjectAt>, sure: usize) -> Result<bool, NotTransacted> {
        let unused = self.overlay.objects().guesses();
        self.ahead.wanted(places.len(), unused);
        self.undo();
        let in_vain = places.len() - sure + unused;
        if self.ahead.keys().saturating_sub(in_vain) > WANTS_MAX {
            return Ok(false);
        }
        self.overlay.read(places, sure).await?;
        self.before = self.overlay.objects().clone();
        Ok(true)
    }

    /// Runs a command that works on no key for the next attempt.
    ///
    /// # Errors
    /// All that the script asked for is too large together.
    async fn fetch(&mut self, db: DatabaseId, command: Command) -> Result<(), Failure> {
        self.undo();
        let (core, account) = (self.overlay.core(), self.overlay.account());
        let reply = Box::pin(outside(core, account, db, command)).await;
        self.fetched_bytes = self.fetched_bytes.saturating_add(reply.size());
        if self.fetched_bytes > MEMORY_MAX {
            return Err(too_much_memory());
        }
        let fetched: &mut Arc<Vec<Reply>> = self.fetched.get_or_insert_default();
        Arc::make_mut(fetched).push(reply);
        Ok(())
    }
}

/// Finds what is to be run. A new script is kept before, if the cluster does so within a time.
async fn find_job(
    core: &Core,
    db: DatabaseId,
    (call, keeping): (Call, Duration),
    command: &Command,
) -> Result<Job, Failure> {
    let count = arguments(command);
    let scripts = &core.shared.scripts;
    let client = core.databases.client();
    // Of several mistakes, Redis tells this one first.
    let (count, body) = match call.by {
        Lookup::Source => {
            let (count, source) = (count?, command.share(1));
            if !scripts.knows(&source) {
                check(&source)?;
            }
            (count, scripts.keep(client, source, keeping).await)
        }
        Lookup::Hash if command.get(1).len() != HASH_DIGITS => return Err(failure::NO_SCRIPT),
        Lookup::Hash => (count?, scripts.by_hash(client, command.get(1)).await?),
        Lookup::Function => {
            let body = scripts.function(client, command.get(1)).await?;
            if integer(command.get(2)).is_none() {
                return Err(failure::BAD_KEYS);
            }
            (count?, body)
        }
    };
    job_of(core, db, call, (command, count), body)
}

/// The job of a body that was found.
fn job_of(
    core: &Core,
    db: DatabaseId,
    call: Call,
    (command, keys): (&Command, usize),
    body: Arc<Body>,
) -> Result<Job, Failure> {
    let flags = body.flags;
    if call.is_read_only && call.by == Lookup::Function && !flags.no_writes {
        return Err(Failure::fixed(
            "ERR Can not execute a script with write flag using *_ro command.",
        ));
    }
    if flags.no_cluster && core.options().cluster.is_some() {
        return Err(Failure::fixed(
            "ERR Can not run script on cluster, 'no-cluster' flag is set.",
        ));
    }
    Ok(Job {
        body,
        db,
        keys,
        is_read_only: call.is_read_only || flags.no_writes,
        command: command.clone(),
        caller: None,
        is_told: !core.shared.monitors.is_empty(),
    })
}

/// What an attempt may use.
struct Limits {
    instructions: u64,
    stop: Stop,
    clock: Arc<dyn Clock>,
    end: End,
    memory: usize,
    /// How many objects it may go on without, to tell which ones it may want next.
    ahead: usize,
}

/// When an attempt ends.
#[derive(Clone, Copy)]
enum End {
    /// This long after the first look at the clock, some hundred instructions after its beginning.
    After(Duration),
    At(Moment),
}

impl Limits {
    /// On the event loop, for this long.
    fn inline(clock: &Arc<dyn Clock>, time: Duration) -> Self {
        Self {
            instructions: INLINE,
            stop: Stop::NEVER,
            end: End::After(time),
            clock: Arc::clone(clock),
            memory: INLINE_MEMORY,
            ahead: 0,
        }
    }

    /// The budget of an attempt. From the moment on that `guesses` says so, it is in vain, and ends
    /// soon.
    fn budget(self, guesses: Rc<Cell<bool>>) -> Rc<Budget> {
        let clock = self.clock;
        let budget = Budget::new(self.instructions, self.stop).memory(self.memory);
        let (begun, guessed) = (Cell::new(None), Cell::new(None));
        let is_over = |since: &Cell<Option<Moment>>, now: Moment, time: Duration| {
            let first = since.get().unwrap_or(now);
            since.set(Some(first));
            now >= first + time
        };
        Rc::new(budget.until(move || {
            let now = clock.now();
            let is_late = match self.end {
                End::At(end) => now >= end,
                End::After(time) => is_over(&begun, now, time),
            };
            is_late || guesses.get() && is_over(&guessed, now, INLINE_TIME)
        }))
    }
}

/// The replies of commands on no key, in the order in which a script wants them.
type Fetched = Option<Arc<Vec<Reply>>>;

/// Runs a script from its beginning.
fn attempt(job: &Job, objects: &mut Objects, fetched: &Fetched, limits: Limits) -> Attempt {
    let (is_small, ahead) = (limits.memory < MEMORY_MAX, limits.ahead);
    let guesses = Rc::new(Cell::new(false));
    let budget = limits.budget(Rc::clone(&guesses));
    // The interpreter's functions share it, so it borrows nothing.
    let server = Server::new(job, objects.take(), fetched.clone(), ahead, guesses);
    let server = Rc::new(RefCell::new(server));
    let parts: SmallVec<[&[u8]; 6]> = job.command.from(FIRST_KEY).collect();
    let given = parts.split_at(job.keys);
    let script = (&job.body.source[..], &job.body.name[..]);
    let ended = with_interpreter(|interpreter| match job.body.is_library {
        true => interpreter.run_function(script, given, &server, &budget),
        false => interpreter.run(script, given, &server, &budget),
    });
    let left = server.borrow_mut().take();
    *objects = left.objects;
    match (ended, left.want) {
        (_, Some(want)) => Attempt::Wants(want),
        (Ended::Interrupted, None) => Attempt::TooLong,
        (Ended::OutOfMemory, None) if is_small => Attempt::TooLong,
        // An error that it returns is a reply, and its changes count.
        (Ended::Value(value), None) => Attempt::Done(reply_of(value), left.told),
        (Ended::Failed(text), None) => Attempt::Failed(Failure::new(text), left.told),
        (Ended::OutOfMemory, None) => Attempt::Failed(too_much_memory(), left.told),
    }
}

fn too_much_memory() -> Failure {
    Failure::new(format!(
        "ERR the script needs more than {MEMORY_MAX} bytes of memory"
    ))
}

/// [`attempt`] outside the event loop, until a moment.
async fn elsewhere(
    core: &Core,
    job: &Job,
    objects: &mut Objects,
    fetched: &Fetched,
    (until, ahead): (Moment, usize),
) -> Attempt {
    let clock = &core.databases.parts().clock;
    let stop = Stop::default();
    let limits = Limits {
        instructions: MOST,
        stop: stop.clone(),
        clock: Arc::clone(clock),
        end: End::At(until),
        memory: MEMORY_MAX,
        ahead,
    };
    let Some(run) = &core.options().elsewhere else {
        return attempt(job, objects, fetched, limits);
    };
    let function = job.body.is_library.then(|| RunningFunction {
        name: Arc::clone(&job.body.name),
        command: job.command.clone(),
        since: core.shared.now(),
    });
    let _running = core.shared.scripts.enter(&stop, function);
    let (done, result) = tokio::sync::oneshot::channel();
    let (job, mut copy, fetched) = (job.clone(), objects.clone(), fetched.clone());
    let work = move || {
        let attempt = attempt(&job, &mut copy, &fetched, limits);
        drop(done.send((attempt, copy)));
    };
    let running = run.0(Box::new(work));
    let limit = until.since(clock.now());
    let waited = timeout(&**clock, limit, async {
        running.await;
        result.await
    });
    let waited = waited.await;
    // Nobody else stops it before this ends.
    let is_killed = stop.is_stopped();
    match waited {
        Ok(Ok((Attempt::TooLong | Attempt::Wants(_), _))) if is_killed => Attempt::Killed,
        Ok(Ok((attempt, changed))) => {
            *objects = changed;
            attempt
        }
        Ok(Err(_)) | Err(_) => {
            stop.stop();
            match is_killed {
                true => Attempt::Killed,
                false => Attempt::TooLong,
            }
        }
    }
}

/// A command that works on no key, for a script: what it tells is of no certain moment.
async fn outside(core: &Core, account: &MemoryAccount, db: DatabaseId, command: Command) -> Reply {
    let Ok(spec) = resolve(&command, command.len()) else {
        return Reply::Nil;
    };
    match SPECS[usize::from(spec)].run {
        Run::Now(what) => run_now(core, what, spec, &command).into(),
        Run::Data(Data::Survey(survey)) => super::run_survey(core, account, db, survey, &command)
            .await
            .into(),
        Run::Data(_) | Run::Own(_) | Run::Container => Reply::Error(NOT_ALLOWED),
    }
}

const NOT_ALLOWED: Failure = Failure::fixed("ERR This Redis command is not allowed from script");

/// The keys that a script names, for turns (EVAL-2).
pub(super) fn named_keys(command: &Command) -> impl Iterator<Item = &[u8]> {
    let count = arguments(command).unwrap_or(0);
    command.from(FIRST_KEY).take(count)
}

// --- SCRIPT -------------------------------------------------------------------------------------

/// SCRIPT LOAD.
pub(super) async fn load(core: &Core, command: &Command) -> CommandResult {
    let source = command.share(2);
    check(&source)?;
    let kept = core
        .shared
        .scripts
        .load(core.databases.client(), source)
        .await?;
    Ok(Reply::copy(kept.name.as_bytes()))
}

/// SCRIPT EXISTS.
pub(super) async fn exist(core: &Core, command: &Command) -> CommandResult {
    let mut known = Vec::new();
    for at in 2..command.len() {
        let found = core
            .shared
            .scripts
            .by_hash(core.databases.client(), command.get(at));
        known.push(Reply::flag(found.await.is_ok()));
    }
    Ok(Reply::Array(known))
}

/// SCRIPT FLUSH.
pub(super) async fn flush(core: &Core, command: &Command) -> CommandResult {
    let is_mode = command.is(2, "SYNC") || command.is(2, "ASYNC");
    if command.len() > 3 || (command.len() == 3 && !is_mode) {
        return Err(Failure::fixed(
            "ERR SCRIPT FLUSH only support SYNC|ASYNC option",
        ));
    }
    core.shared.scripts.flush(core.databases.client()).await?;
    Ok(Reply::OK)
}

/// SCRIPT KILL and FUNCTION KILL.
pub(super) fn kill(core: &Core) -> CommandResult {
    match core.shared.scripts.stop_all() {
        true => Ok(Reply::OK),
        false => Err(Failure::fixed("NOTBUSY No scripts in execution right now.")),
    }
}
