//! The code of the commands. Their rows are in `specs.rs`, and their kinds in `kinds.rs`.

mod acl;
mod bit_op;
mod bits;
mod client;
mod cluster;
mod config;
mod debug;
mod describe;
mod dump;
mod expiry;
mod function;
mod handshake;
mod help;
mod hot_keys;
mod info;
mod keys;
mod kinds;
mod lcs;
mod memory;
mod observe;
mod one_key;
mod overlay;
mod plan;
mod scan;
mod script;
mod server;
mod strings;
mod transaction;

pub use cluster::Query;
pub(crate) use handshake::{logs_in, selected, takes_time};
pub use kinds::{Data, EachKey, Now, Other, Own, ReadsFirst, Single, Survey};
pub(crate) use one_key::{OneKey, Scratch, Shape, one_key, without_object};
pub use script::Call;
pub(crate) use script::{ScriptAtOnce, at_once as run_script_at_once, library};
pub(crate) use transaction::{ClosedBlock, Deferred, run_deferred};

use crate::block::Block;
use crate::command_log::Kind;
use crate::database::DatabaseId;
use crate::failure::{AFTER_DOUBT, leaves_doubt};
use crate::memory::MemoryAccount;
use crate::parser::Command;
use crate::reply::{Failure, Reply};
use crate::session::Session;
use crate::shared::{Core, Timed};
use crate::table::{SPECS, find_called};
use pluvio_client::{Outcome, Projection};
use pluvio_units::{ObjectVersion, UnixMs};
use smallvec::{SmallVec, smallvec};

/// Whether a condition of a change did not hold.
fn is_rejected(outcome: &Outcome) -> bool {
    matches!(outcome, Outcome::Rejected { .. })
}

/// Whether a read found an object.
pub(crate) fn is_there(outcome: &Outcome) -> bool {
    matches!(outcome, Outcome::Unchanged { version, .. } if *version != ObjectVersion(0))
}

/// Whether a key exists; its value stays where it is.
async fn exists(core: &Core, db: DatabaseId, key: &[u8]) -> Result<bool, Failure> {
    let outcome = core.databases.get(db, key, Projection::Nothing).await?;
    Ok(is_there(&outcome))
}

/// What commands give.
pub(crate) type CommandResult = Result<Reply, Failure>;

/// Answers a command of the first kind.
pub(crate) fn run_now(core: &Core, what: Now, spec: u16, command: &Command) -> CommandResult {
    let name = SPECS[usize::from(spec)].name;
    match what {
        Now::Ping => server::ping(command),
        Now::Echo => Ok(Reply::Bulk(command.share(1))),
        Now::Time => Ok(server::time(core)),
        Now::Role => Ok(server::role()),
        Now::Help => Ok(help::lines(name)),
        Now::HotKeysReset => hot_keys::reset(core),
        Now::HotKeysStart => hot_keys::start(core, command),
        Now::HotKeysStop => hot_keys::stop(core),
        Now::Command => Ok(describe::all()),
        Now::CommandCount => Ok(describe::count()),
        Now::CommandDocs => Ok(describe::docs(command)),
        Now::CommandGetKeys => describe::keys(command, false),
        Now::CommandGetKeysAndFlags => describe::keys(command, true),
        Now::CommandInfo => Ok(describe::info(command)),
        Now::CommandList => describe::list(command),
        Now::ConfigGet => Ok(config::get(core, command)),
        Now::ConfigSet => config::set(core, command),
        Now::ConfigResetStat => {
            core.shared.reset_statistics();
            Ok(Reply::OK)
        }
        Now::ConfigRewrite => Err(config::NO_FILE),
        Now::ScriptKill => script::kill(core),
        Now::AclCat => acl::categories_or_commands(command),
        Now::AclFile => Err(acl::no_file()),
        Now::AclGenPass => acl::password(core, command),
        Now::AclLog => acl::log(core, command),
        Now::BgRewriteAof => Ok(server::rewrite_in_background()),
        Now::BgSave => server::save_in_background(command),
        Now::ClientPause => client::pause(core, command),
        Now::ClientTrackingInfo => Ok(client::tracking_info()),
        Now::ClientUnpause => Ok(client::unpause(core)),
        Now::CommandLogGet => observe::command_log_get(core, command),
        Now::CommandLogLen => observe::command_log_length(core, command),
        Now::CommandLogReset => observe::command_log_clear(core, command),
        Now::LastSave => Ok(server::last_save(core)),
        Now::LatencyDoctor => Ok(observe::doctor()),
        Now::LatencyGraph => Err(observe::graph(command)),
        Now::LatencyHistogram => Ok(observe::histogram(core, command)),
        Now::Lolwut => server::lolwut(core, command),
        Now::MemoryDoctor => Ok(memory::doctor(core)),
        Now::MemoryMallocStats => Ok(memory::allocator()),
        Now::MemoryStats => Ok(memory::stats(core)),
        Now::Shutdown => Err(server::shut_down(command)),
        Now::SlowLogGet => observe::slow_log_get(core, command),
        Now::SlowLogLen => Ok(observe::length(core, Kind::Slow)),
        Now::SlowLogReset => Ok(observe::clear(core, Kind::Slow)),
        Now::SwapDb => server::swap_databases(core, command),
        Now::Fine => Ok(Reply::OK),
        Now::Zero => Ok(Reply::Integer(0)),
        Now::EmptyList => Ok(Reply::Array(Vec::new())),
        Now::ClusterFlag => cluster::flag(core),
        Now::ClusterHelp => cluster::flag(core).map(|_| help::lines(name)),
        Now::ClusterKeySlot => cluster::key_slot(core, command),
    }
}

/// Runs a command of the second kind.
pub(crate) fn run_own(
    core: &Core,
    session: &mut Session,
    block: &Block,
    what: Own,
    command: &Command,
) -> CommandResult {
    match what {
        Own::AclWhoAmI => Ok(acl::who_am_i(session)),
        Own::Auth => handshake::auth(core, session, block, command),
        Own::Discard => block.discard().map(|()| Reply::OK),
        Own::Multi => block.begin().map(|()| Reply::OK),
        Own::Monitor => {
            session.start_feed(&core.shared.monitors);
            Ok(Reply::OK)
        }
        Own::Unwatch => {
            block.unwatch();
            Ok(Reply::OK)
        }
        Own::Hello => handshake::hello(core, session, block, command),
        Own::Quit => {
            session.close();
            Ok(Reply::OK)
        }
        Own::Reset => {
            session.reset(&core.shared.monitors, &core.options().users);
            block.reset();
            block.set_caller(session.caller(&core.shared));
            Ok(Reply::Status("RESET"))
        }
        Own::Select => handshake::select(core, session, command),
        Own::Wait => server::wait(core, session, command),
        Own::WaitAof => server::wait_for_files(core, session, command),
        Own::ClientGetName => Ok(client::get_name(session)),
        Own::ClientGetRedirection => Ok(Reply::Integer(-1)),
        Own::ClientId => Ok(Reply::count(session.entry().id)),
        Own::ClientInfo => Ok(client::info(core, session)),
        Own::ClientKill => client::kill(core, session, command),
        Own::ClientList => client::list(core, command),
        Own::ClientNoEvict | Own::ClientNoTouch => client::on_or_off(command),
        Own::ClientReply => client::reply(session, command),
        Own::ClientSetInfo => client::set_info(session, command),
        Own::ClientSetName => client::set_name(session.entry(), command.get(2)),
        Own::ClientUnblock => client::unblock(command),
    }
}

/// The parts of a connection that a command of the third kind may use.
#[derive(Clone, Copy)]
pub(crate) struct ConnectionContext<'c> {
    /// The memory that it holds.
    pub(crate) account: &'c MemoryAccount,
    /// The transaction that it is about to make.
    pub(crate) block: &'c Block,
}

/// The result of a run of commands.
pub(crate) struct Ran {
    /// A reply for each of them.
    pub(crate) replies: SmallVec<[Reply; 1]>,
    /// Whether it is not known if one of them was executed, or a part of one that is EXEC.
    pub(crate) in_doubt: bool,
}

/// Commands of the third kind, to be executed in their order.
pub(crate) struct Commands {
    /// If there are several, each is on one key, and all are reads or all are changes.
    pub(crate) all: SmallVec<[(Data, Command); 1]>,
    /// The wall clock by which that is so: it tells which lifetimes are too long.
    pub(crate) read_at: UnixMs,
}

/// Runs commands of the third kind, as far as they are not done at once.
pub(crate) async fn run_data(
    core: &Core,
    connection: ConnectionContext<'_>,
    database: DatabaseId,
    commands: Commands,
) -> Ran {
    let started = core.shared.now();
    let replies = match &commands.all[..] {
        [(what, command)] => {
            smallvec![run_single(core, connection, database, *what, command).await]
        }
        several
            if several
                .iter()
                .all(|(what, command)| cluster::is_here(core, *what, command)) =>
        {
            one_key::run_in_order(core, database, &commands).await
        }
        several => Box::pin(run_each(core, connection, database, several)).await,
    };
    let ended = core.shared.now();
    for ((_, command), reply) in commands.all.iter().zip(&replies) {
        let sub = (command.len() > 1).then(|| command.get(1));
        if let Some(spec) = find_called(command.get(0), sub) {
            let entry = connection.account.entry();
            core.note_run(entry, spec, command, reply, Timed { started, ended });
        }
    }
    let mut each = commands.all.iter().zip(&replies);
    Ran {
        in_doubt: each.any(|((what, _), reply)| is_in_doubt(*what, reply)),
        replies,
    }
}

/// Whether it is not known if a command was executed, or a command of the block of EXEC.
fn is_in_doubt(what: Data, reply: &Reply) -> bool {
    match reply {
        Reply::Array(replies) if matches!(what, Data::Exec) => replies.iter().any(is_doubtful),
        reply => is_doubtful(reply),
    }
}

/// Whether it is not known if a command was executed.
fn is_doubtful(reply: &Reply) -> bool {
    matches!(reply, Reply::Error(failure) if leaves_doubt(failure))
}

/// Runs commands of which some may be for another node of the cluster, each by itself. Those behind
/// one that is in doubt are not executed.
async fn run_each(
    core: &Core,
    connection: ConnectionContext<'_>,
    database: DatabaseId,
    commands: &[(Data, Command)],
) -> SmallVec<[Reply; 1]> {
    let mut replies: SmallVec<[Reply; 1]> = SmallVec::new();
    let mut in_doubt = false;
    for (what, command) in commands {
        let reply = match in_doubt {
            true => Reply::Error(AFTER_DOUBT),
            false => run_single(core, connection, database, *what, command).await,
        };
        in_doubt |= is_in_doubt(*what, &reply);
        replies.push(reply);
    }
    replies
}

async fn run_single(
    core: &Core,
    connection: ConnectionContext<'_>,
    database: DatabaseId,
    what: Data,
    command: &Command,
) -> Reply {
    if !cluster::is_here(core, what, command) {
        let admitted = Box::pin(cluster::admit(core, database, what, command));
        if let Err(failure) = admitted.await {
            return Reply::Error(failure);
        }
    }
    let mut scratch = Scratch::default();
    match one_key(what, command, &mut scratch, &|| core.wall_ms()) {
        Some(Ok(one)) => return one_key::run_one(core, database, one).await,
        Some(Err(failure)) => return Reply::Error(failure),
        None => {}
    }
    // Boxed, so that the futures of commands on one key stay small.
    Box::pin(run_other(core, connection, database, what, command))
        .await
        .into()
}

/// Runs a command that is not a single read or change of one key.
async fn run_other(
    core: &Core,
    connection: ConnectionContext<'_>,
    db: DatabaseId,
    what: Data,
    command: &Command,
) -> CommandResult {
    match what {
        Data::Single(_) => unreachable!("{what:?} is a command on one key"),
        Data::EachKey(each) => match each {
            EachKey::Del => keys::delete(core, db, command).await,
            EachKey::Exists | EachKey::Touch => keys::exist(core, db, command).await,
            EachKey::MGet => keys::get_all(core, connection.account, db, command).await,
            EachKey::MSet => keys::set_all(core, db, command).await,
        },
        Data::ReadsFirst(_) | Data::Script(_) => {
            transaction::alone(core, connection, db, what, command).await
        }
        Data::Survey(survey) => run_survey(core, connection.account, db, survey, command).await,
        Data::Exec => transaction::exec(core, connection).await,
        Data::LogIn => handshake::log_in(core, connection, command).await,
        Data::Watch => transaction::watch(core, connection.block, db, command).await,
        Data::Other(other) => match other {
            Other::AclDelUser => acl::delete(core, connection, command).await,
            Other::AclDryRun => acl::dry_run(core, db, command).await,
            Other::AclGetUser => acl::user(core, command).await,
            Other::AclList => acl::list(core).await,
            Other::AclSetUser => acl::set(core, connection.account, command).await,
            Other::AclUsers => acl::users(core).await,
            Other::Cluster(query) => cluster::query(core, query, command).await,
            Other::Debug => debug::debug(core, db, command).await,
            Other::FlushAll => keys::flush_all(core, command).await,
            Other::FlushDb => keys::flush_db(core, db, command).await,
            Other::FunctionDelete => function::delete(core, command).await,
            Other::FunctionDump => function::dump(core).await,
            Other::FunctionFlush => function::flush(core, command).await,
            Other::FunctionList => function::list(core, command).await,
            Other::FunctionLoad => function::load(core, command).await,
            Other::FunctionRestore => function::restore(core, command).await,
            Other::FunctionStats => function::stats(core).await,
            Other::HotKeysGet => hot_keys::get(core).await,
            Other::Lcs => lcs::lcs(core, connection.account, db, command).await,
            Other::ObjectFreq => keys::frequency(core, db, command).await,
            Other::ObjectIdleTime => keys::idle_time(core, db, command).await,
            Other::ObjectRefCount => keys::references(core, db, command).await,
            Other::ScriptExists => script::exist(core, command).await,
            Other::ScriptFlush => script::flush(core, command).await,
            Other::ScriptLoad => script::load(core, command).await,
        },
    }
}

/// Runs a command that tells something of no certain moment, also for a script.
async fn run_survey(
    core: &Core,
    account: &MemoryAccount,
    db: DatabaseId,
    survey: Survey,
    command: &Command,
) -> CommandResult {
    match survey {
        Survey::DbSize => keys::db_size(core, db).await,
        Survey::Info => info::info(core, command).await,
        Survey::Keys => scan::keys(core, account, db, command).await,
        Survey::MemoryUsage => keys::memory_usage(core, db, command).await,
        Survey::ObjectEncoding => keys::encoding(core, db, command).await,
        Survey::RandomKey => scan::random_key(core, db).await,
        Survey::Scan => scan::scan(core, account, db, command).await,
    }
}
