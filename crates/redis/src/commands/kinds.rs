//! The kinds of commands, and which command is of which: each row of `specs.rs` names one.
//!
//! The kind decides how a command is run, alone, inside EXEC and by scripts. No other list of
//! commands does: code for a kind takes the enum of that kind, and names each command of it.
//!
//! - [`Now`] answers at once;
//! - [`Own`] concerns its own connection;
//! - [`Data`] works on the database.

use super::cluster::Query;
use super::script::Call;

/// A command that is answered at once from what the process knows.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[allow(missing_docs)] // they are named after their commands
pub enum Now {
    Ping,
    Echo,
    Time,
    Role,
    Help,
    HotKeysReset,
    HotKeysStart,
    HotKeysStop,
    Command,
    CommandCount,
    CommandDocs,
    CommandGetKeys,
    CommandGetKeysAndFlags,
    CommandInfo,
    CommandList,
    ConfigGet,
    ConfigSet,
    ConfigRewrite,
    /// SCRIPT KILL and FUNCTION KILL.
    ScriptKill,
    ConfigResetStat,
    AclCat,
    /// ACL LOAD and ACL SAVE.
    AclFile,
    AclGenPass,
    AclLog,
    BgRewriteAof,
    BgSave,
    ClientPause,
    ClientTrackingInfo,
    ClientUnpause,
    CommandLogGet,
    CommandLogLen,
    CommandLogReset,
    LastSave,
    LatencyDoctor,
    LatencyGraph,
    LatencyHistogram,
    Lolwut,
    MemoryDoctor,
    MemoryMallocStats,
    MemoryStats,
    Shutdown,
    SlowLogGet,
    SlowLogLen,
    SlowLogReset,
    SwapDb,
    /// `+OK`.
    Fine,
    /// `:0`.
    Zero,
    /// `*0`.
    EmptyList,
    /// READONLY and the like.
    ClusterFlag,
    ClusterHelp,
    ClusterKeySlot,
}

/// A command that looks at or changes its connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[allow(missing_docs)] // they are named after their commands
pub enum Own {
    AclWhoAmI,
    Auth,
    Hello,
    Quit,
    Discard,
    Monitor,
    Multi,
    Reset,
    Select,
    Unwatch,
    Wait,
    WaitAof,
    ClientGetName,
    ClientGetRedirection,
    ClientId,
    ClientInfo,
    ClientKill,
    ClientList,
    ClientNoEvict,
    ClientNoTouch,
    ClientReply,
    ClientSetInfo,
    ClientSetName,
    ClientUnblock,
}

/// A command that works on the database, by the way in which it is run.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Data {
    /// One read or one change of one key: the owner of the key does it, in one round trip.
    Single(Single),
    /// The same operation on each of its keys.
    EachKey(EachKey),
    /// Reads its objects, then decides: on an [overlay](super::overlay).
    ReadsFirst(ReadsFirst),
    /// Runs a script, on an [overlay](super::overlay).
    Script(Call),
    /// Tells something of no certain moment. Scripts may ask for it.
    Survey(Survey),
    /// EXEC: runs the block that MULTI opened.
    Exec,
    /// AUTH or HELLO with a password that takes time.
    LogIn,
    /// WATCH: makes EXEC depend on keys.
    Watch,
    /// All others. They run by themselves also inside EXEC, and scripts may not call them.
    Other(Other),
}

/// One read or one change of one key.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[allow(missing_docs)] // they are named after their commands
pub enum Single {
    Append,
    BitCount,
    BitField,
    BitFieldRo,
    BitPos,
    Decr,
    DecrBy,
    DelIfEq,
    Dump,
    Expire,
    ExpireAt,
    ExpireTime,
    Get,
    GetBit,
    GetDel,
    GetEx,
    GetRange,
    GetSet,
    Incr,
    IncrBy,
    IncrByFloat,
    PExpire,
    PExpireAt,
    PExpireTime,
    PSetEx,
    PTtl,
    Persist,
    Restore,
    Set,
    SetBit,
    SetEx,
    SetNx,
    SetRange,
    StrLen,
    Ttl,
    Type,
}

/// The same operation on each key. With one key, most are a read or a change of it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[allow(missing_docs)] // they are named after their commands
pub enum EachKey {
    Del,
    Exists,
    MGet,
    MSet,
    Touch,
}

/// Commands that read their objects before they know what to do with them.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[allow(missing_docs)] // they are named after their commands
pub enum ReadsFirst {
    BitOp,
    Copy,
    MSetEx,
    MSetNx,
    Move,
    Rename,
    RenameNx,
}

/// Commands that change nothing, and whose replies are of no certain moment.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[allow(missing_docs)] // they are named after their commands
pub enum Survey {
    DbSize,
    Info,
    Keys,
    MemoryUsage,
    ObjectEncoding,
    RandomKey,
    Scan,
}

/// Commands of [`Data::Other`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[allow(missing_docs)] // they are named after their commands
pub enum Other {
    AclDelUser,
    AclDryRun,
    AclGetUser,
    AclList,
    AclSetUser,
    AclUsers,
    Cluster(Query),
    Debug,
    FlushAll,
    FlushDb,
    FunctionDelete,
    FunctionDump,
    FunctionFlush,
    FunctionList,
    FunctionLoad,
    FunctionRestore,
    FunctionStats,
    HotKeysGet,
    Lcs,
    ObjectFreq,
    ObjectIdleTime,
    ObjectRefCount,
    ScriptExists,
    ScriptFlush,
    ScriptLoad,
}
