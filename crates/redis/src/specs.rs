//! The rows of the command table (`table.rs`), by name.

use crate::commands::{Call, Data, EachKey, Now, Other, Own, Query, ReadsFirst, Single, Survey};
use crate::table::{Keys, Run, Spec};

use Run::Container as BOX;

const fn now(now: Now) -> Run {
    Run::Now(now)
}
const fn own(own: Own) -> Run {
    Run::Own(own)
}
const fn data(data: Data) -> Run {
    Run::Data(data)
}
const fn single(command: Single) -> Run {
    data(Data::Single(command))
}
const fn each_key(command: EachKey) -> Run {
    data(Data::EachKey(command))
}
const fn reads_first(command: ReadsFirst) -> Run {
    data(Data::ReadsFirst(command))
}
const fn script(call: Call) -> Run {
    data(Data::Script(call))
}
const fn survey(command: Survey) -> Run {
    data(Data::Survey(command))
}
const fn other(command: Other) -> Run {
    data(Data::Other(command))
}

/// One row: name, arity, who runs it, flags, categories, keys, access, group, since, summary, tips.
macro_rules! rows {
    ($($name:literal $arity:literal $run:expr,
       $flags:literal, $categories:literal, $keys:ident $access:literal,
       $group:literal $since:literal $summary:literal $(tips $tips:literal)?;)*) => {
        /// All commands and subcommands, by name.
        pub const SPECS: &[Spec] = &[$(Spec {
            name: $name, arity: $arity, run: $run, flags: $flags, categories: $categories,
            keys: Keys::$keys, access: $access, group: $group, since: $since, summary: $summary,
            tips: concat!("" $(, $tips)?),
        }),*];
    };
}

rows! {
    "acl" -2 BOX, "", "slow", NONE "",
        "server" "6.0.0" "Commands about users";
    "acl|cat" -2 now(Now::AclCat), "noscript loading stale", "slow", NONE "",
        "server" "6.0.0" "Lists the categories of commands, or the commands of one";
    "acl|deluser" -3 other(Other::AclDelUser), "admin noscript loading stale", "admin slow dangerous", NONE "",
        "server" "6.0.0" "Deletes users and closes their connections";
    "acl|dryrun" -4 other(Other::AclDryRun), "admin noscript loading stale", "admin slow dangerous", NONE "",
        "server" "7.0.0" "Tells whether a user may run a command";
    "acl|genpass" -2 now(Now::AclGenPass), "noscript loading stale", "slow", NONE "",
        "server" "6.0.0" "Draws a password";
    "acl|getuser" 3 other(Other::AclGetUser), "admin noscript loading stale", "admin slow dangerous", NONE "",
        "server" "6.0.0" "Gives the rules of a user";
    "acl|help" 2 now(Now::Help), "loading stale", "slow", NONE "",
        "server" "6.0.0" "Lists the subcommands";
    "acl|list" 2 other(Other::AclList), "admin noscript loading stale", "admin slow dangerous", NONE "",
        "server" "6.0.0" "Gives the rules of all users";
    "acl|load" 2 now(Now::AclFile), "admin noscript loading stale", "admin slow dangerous", NONE "",
        "server" "6.0.0" "Refused: there is no file of users";
    "acl|log" -2 now(Now::AclLog), "admin noscript loading stale", "admin slow dangerous", NONE "",
        "server" "6.0.0" "Gives what this server has refused to users";
    "acl|save" 2 now(Now::AclFile), "admin noscript loading stale", "admin slow dangerous", NONE "",
        "server" "6.0.0" "Refused: there is no file of users";
    "acl|setuser" -3 other(Other::AclSetUser), "admin noscript loading stale", "admin slow dangerous", NONE "",
        "server" "6.0.0" "Makes or changes a user";
    "acl|users" 2 other(Other::AclUsers), "admin noscript loading stale", "admin slow dangerous", NONE "",
        "server" "6.0.0" "Lists the users";
    "acl|whoami" 2 own(Own::AclWhoAmI), "noscript loading stale", "slow", NONE "",
        "server" "6.0.0" "Names the user of this connection";
    "append" 3 single(Single::Append), "write denyoom fast", "write string fast", ONE "RW insert",
        "string" "2.0.0" "Adds bytes to the end of a value";
    "asking" 1 now(Now::ClusterFlag), "fast", "fast connection", NONE "",
        "cluster" "3.0.0" "Accepted on the cluster port: slots are never half moved";
    "auth" -2 own(Own::Auth), "noscript loading stale fast no_auth allow_busy", "fast connection", NONE "",
        "connection" "1.0.0" "Checks a user's name and password";
    "bgrewriteaof" 1 now(Now::BgRewriteAof), "admin noscript no_async_loading", "admin slow dangerous", NONE "",
        "server" "1.0.0" "Accepted: the log cleans itself";
    "bgsave" -1 now(Now::BgSave), "admin noscript no_async_loading", "admin slow dangerous", NONE "",
        "server" "1.0.0" "Accepted: answered writes are durable";
    "bitcount" -2 single(Single::BitCount), "readonly", "read bitmap slow", ONE "RO access",
        "bitmap" "2.6.0" "Counts the bits of a value, or of a part of it, that are 1";
    "bitfield" -2 single(Single::BitField), "write denyoom", "write bitmap slow", ONE "RW access update variable_flags",
        "bitmap" "3.2.0" "Reads, sets and adds to integers of any width in a value";
    "bitfield_ro" -2 single(Single::BitFieldRo), "readonly fast", "read bitmap fast", ONE "RO access",
        "bitmap" "6.0.0" "Reads integers of any width in a value";
    "bitop" -4 reads_first(ReadsFirst::BitOp), "write denyoom", "write bitmap slow", FROM_SECOND "OW update/RO access",
        "bitmap" "2.6.0" "Combines values bit by bit";
    "bitpos" -3 single(Single::BitPos), "readonly", "read bitmap slow", ONE "RO access",
        "bitmap" "2.8.7" "Finds the first bit that is 1, or 0";
    "client" -2 BOX, "", "slow", NONE "",
        "connection" "2.4.0" "Commands about connections";
    "client|capa" -3 now(Now::Fine), "noscript loading stale", "slow connection", NONE "",
        "connection" "valkey 8.0.0" "Accepted: what the client can do changes nothing";
    "client|getname" 2 own(Own::ClientGetName), "noscript loading stale", "slow connection", NONE "",
        "connection" "2.6.9" "Gives the name of this connection";
    "client|getredir" 2 own(Own::ClientGetRedirection), "noscript loading stale", "slow connection", NONE "",
        "connection" "6.0.0" "Gives -1: tracking is never on";
    "client|help" 2 now(Now::Help), "loading stale", "slow connection", NONE "",
        "connection" "5.0.0" "Lists the subcommands";
    "client|id" 2 own(Own::ClientId), "noscript loading stale", "slow connection", NONE "",
        "connection" "5.0.0" "Gives the number of this connection";
    "client|info" 2 own(Own::ClientInfo), "noscript loading stale", "slow connection", NONE "",
        "connection" "6.2.0" "Describes this connection";
    "client|kill" -3 own(Own::ClientKill), "admin noscript loading stale", "admin slow dangerous connection", NONE "",
        "connection" "2.4.0" "Closes connections of this server";
    "client|list" -2 own(Own::ClientList), "admin noscript loading stale", "admin slow dangerous connection", NONE "",
        "connection" "2.4.0" "Describes the connections of this server"
        tips "nondeterministic_output";
    "client|no-evict" 3 own(Own::ClientNoEvict), "admin noscript loading stale", "admin slow dangerous connection", NONE "",
        "connection" "7.0.0" "Accepted: it changes nothing, the bound on memory holds for all";
    "client|no-touch" 3 own(Own::ClientNoTouch), "noscript loading stale", "slow connection", NONE "",
        "connection" "7.2.0" "Accepted: reads never count as use";
    "client|pause" -3 now(Now::ClientPause), "admin noscript loading stale", "admin slow dangerous connection", NONE "",
        "connection" "3.0.0" "Holds up writes, or all commands, for a while";
    "client|reply" 3 own(Own::ClientReply), "noscript loading stale", "slow connection", NONE "",
        "connection" "3.2.0" "Says which commands of this connection are answered";
    "client|setinfo" 4 own(Own::ClientSetInfo), "noscript loading stale", "slow connection", NONE "",
        "connection" "7.2.0" "Tells the name and version of the client library";
    "client|setname" 3 own(Own::ClientSetName), "noscript loading stale", "slow connection", NONE "",
        "connection" "2.6.9" "Names this connection";
    "client|trackinginfo" 2 now(Now::ClientTrackingInfo), "noscript loading stale", "slow connection", NONE "",
        "connection" "6.2.0" "Answers that tracking is off";
    "client|unblock" -3 own(Own::ClientUnblock), "admin noscript loading stale", "admin slow dangerous connection", NONE "",
        "connection" "5.0.0" "Gives 0: no command blocks";
    "client|unpause" 2 now(Now::ClientUnpause), "admin noscript loading stale", "admin slow dangerous connection", NONE "",
        "connection" "6.2.0" "Ends CLIENT PAUSE";
    "cluster" -2 BOX, "", "slow", NONE "",
        "cluster" "3.0.0" "Commands about the cluster port";
    "cluster|countkeysinslot" 3 other(Other::Cluster(Query::CountKeysInSlot)), "stale", "slow", NONE "",
        "cluster" "3.0.0" "Counts the keys of a slot of this server";
    "cluster|help" 2 now(Now::ClusterHelp), "loading stale", "slow", NONE "",
        "cluster" "5.0.0" "Lists the subcommands";
    "cluster|info" 2 other(Other::Cluster(Query::Info)), "stale", "slow", NONE "",
        "cluster" "3.0.0" "Tells that all slots are served"
        tips "nondeterministic_output";
    "cluster|keyslot" 3 now(Now::ClusterKeySlot), "stale", "slow", NONE "",
        "cluster" "3.0.0" "Gives the slot of a key";
    "cluster|links" 2 other(Other::Cluster(Query::Links)), "stale", "slow", NONE "",
        "cluster" "7.0.0" "Gives nothing: there is no bus between nodes";
    "cluster|myid" 2 other(Other::Cluster(Query::MyId)), "stale", "slow", NONE "",
        "cluster" "3.0.0" "Gives the id of this node";
    "cluster|nodes" 2 other(Other::Cluster(Query::Nodes)), "stale", "slow", NONE "",
        "cluster" "3.0.0" "Lists nodes and their slots"
        tips "nondeterministic_output";
    "cluster|shards" 2 other(Other::Cluster(Query::Shards)), "stale", "slow", NONE "",
        "cluster" "7.0.0" "Lists nodes by slots";
    "cluster|slots" 2 other(Other::Cluster(Query::Slots)), "stale", "slow", NONE "",
        "cluster" "3.0.0" "Lists slots and their nodes"
        tips "nondeterministic_output";
    "command" -1 now(Now::Command), "loading stale", "slow connection", NONE "",
        "server" "2.8.13" "Describes all commands"
        tips "nondeterministic_output_order";
    "commandlog" -2 BOX, "", "slow", NONE "",
        "server" "valkey 8.1.0" "Commands about slow and large commands";
    "commandlog|get" 4 now(Now::CommandLogGet), "admin loading stale", "admin slow dangerous", NONE "",
        "server" "valkey 8.1.0" "Gives slow commands, or those with large requests or replies";
    "commandlog|help" 2 now(Now::Help), "loading stale", "slow", NONE "",
        "server" "valkey 8.1.0" "Lists the subcommands";
    "commandlog|len" 3 now(Now::CommandLogLen), "admin loading stale", "admin slow dangerous", NONE "",
        "server" "valkey 8.1.0" "Counts the entries of a log";
    "commandlog|reset" 3 now(Now::CommandLogReset), "admin loading stale", "admin slow dangerous", NONE "",
        "server" "valkey 8.1.0" "Empties a log";
    "command|count" 2 now(Now::CommandCount), "loading stale", "slow connection", NONE "",
        "server" "2.8.13" "Gives the number of commands";
    "command|docs" -2 now(Now::CommandDocs), "loading stale", "slow connection", NONE "",
        "server" "7.0.0" "Gives the documentation of commands";
    "command|getkeys" -3 now(Now::CommandGetKeys), "loading stale", "slow connection", NONE "",
        "server" "2.8.13" "Finds the keys in a command";
    "command|getkeysandflags" -3 now(Now::CommandGetKeysAndFlags), "loading stale", "slow connection", NONE "",
        "server" "7.0.0" "Finds the keys in a command and what it does with them";
    "command|help" 2 now(Now::Help), "loading stale", "slow connection", NONE "",
        "server" "5.0.0" "Lists the subcommands";
    "command|info" -2 now(Now::CommandInfo), "loading stale", "slow connection", NONE "",
        "server" "2.8.13" "Describes commands";
    "command|list" -2 now(Now::CommandList), "loading stale", "slow connection", NONE "",
        "server" "7.0.0" "Lists names of commands";
    "config" -2 BOX, "", "slow", NONE "",
        "server" "2.0.0" "Commands about the configuration";
    "config|get" -3 now(Now::ConfigGet), "admin noscript loading stale", "admin slow dangerous", NONE "",
        "server" "2.0.0" "Gives parameters that match patterns";
    "config|help" 2 now(Now::Help), "loading stale", "slow", NONE "",
        "server" "5.0.0" "Lists the subcommands";
    "config|resetstat" 2 now(Now::ConfigResetStat), "admin noscript loading stale", "admin slow dangerous", NONE "",
        "server" "2.0.0" "Lets the counters of INFO and LATENCY HISTOGRAM begin anew";
    "config|rewrite" 2 now(Now::ConfigRewrite), "admin noscript loading stale", "admin slow dangerous", NONE "",
        "server" "2.8.0" "Refused: there is no configuration file of this form";
    "config|set" -4 now(Now::ConfigSet), "admin noscript loading stale", "admin slow dangerous", NONE "",
        "server" "2.0.0" "Sets parameters that can be changed at run time"
        tips "request_policy:all_nodes response_policy:all_succeeded";
    "copy" -3 reads_first(ReadsFirst::Copy), "write denyoom", "keyspace write slow", TWO "RO access/OW update",
        "generic" "6.2.0" "Copies a value and its deadline to another key";
    "dbsize" 1 survey(Survey::DbSize), "readonly fast", "keyspace read fast", NONE "",
        "server" "1.0.0" "Counts the keys of the database"
        tips "request_policy:all_shards response_policy:agg_sum";
    "debug" -2 other(Other::Debug), "admin noscript loading stale", "admin slow dangerous", NONE "",
        "server" "1.0.0" "For tests; refused unless it is allowed";
    "decr" 2 single(Single::Decr), "write denyoom fast", "write string fast", ONE "RW access update",
        "string" "1.0.0" "Subtracts 1 from an integer";
    "decrby" 3 single(Single::DecrBy), "write denyoom fast", "write string fast", ONE "RW access update",
        "string" "1.0.0" "Subtracts from an integer";
    "del" -2 each_key(EachKey::Del), "write", "keyspace write slow", ALL "RM delete",
        "generic" "1.0.0" "Deletes keys"
        tips "request_policy:multi_shard response_policy:agg_sum";
    "delifeq" 3 single(Single::DelIfEq), "write fast", "write string fast", ONE "RW access delete",
        "string" "valkey 9.0.0" "Deletes a key if it has this value";
    "discard" 1 own(Own::Discard), "noscript loading stale fast allow_busy", "fast transaction", NONE "",
        "transactions" "2.0.0" "Throws away what was put into a transaction";
    "dump" 2 single(Single::Dump), "readonly", "keyspace read slow", ONE "RO access",
        "generic" "2.6.0" "Gives a value in the encoding of Redis's files"
        tips "nondeterministic_output";
    "echo" 2 now(Now::Echo), "loading stale fast", "fast connection", NONE "",
        "connection" "1.0.0" "Gives its argument back";
    "eval" -3 script(Call::EVAL), "noscript stale skip_monitor no_mandatory_keys movablekeys", "slow scripting", COUNTED "RW access update",
        "scripting" "2.6.0" "Runs a script as a transaction";
    "eval_ro" -3 script(Call::EVAL_RO), "readonly noscript stale skip_monitor no_mandatory_keys movablekeys", "slow scripting", COUNTED "RO access",
        "scripting" "7.0.0" "Runs a script that only reads";
    "evalsha" -3 script(Call::EVALSHA), "noscript stale skip_monitor no_mandatory_keys movablekeys", "slow scripting", COUNTED "RW access update",
        "scripting" "2.6.0" "Runs a script by its hash";
    "evalsha_ro" -3 script(Call::EVALSHA_RO), "readonly noscript stale skip_monitor no_mandatory_keys movablekeys", "slow scripting", COUNTED "RO access",
        "scripting" "7.0.0" "Runs a script that only reads by its hash";
    "exec" 1 data(Data::Exec), "noscript loading stale skip_slowlog", "slow transaction", NONE "",
        "transactions" "1.2.0" "Runs a transaction";
    "exists" -2 each_key(EachKey::Exists), "readonly fast", "keyspace read fast", ALL "RO",
        "generic" "1.0.0" "Counts keys that exist"
        tips "request_policy:multi_shard response_policy:agg_sum";
    "expire" -3 single(Single::Expire), "write fast", "keyspace write fast", ONE "RW update",
        "generic" "1.0.0" "Lets a key expire after so many seconds";
    "expireat" -3 single(Single::ExpireAt), "write fast", "keyspace write fast", ONE "RW update",
        "generic" "1.2.0" "Lets a key expire at a second since 1970";
    "expiretime" 2 single(Single::ExpireTime), "readonly fast", "keyspace read fast", ONE "RO access",
        "generic" "7.0.0" "Gives the second since 1970 at which a key expires";
    "fcall" -3 script(Call::FCALL), "noscript stale skip_monitor no_mandatory_keys movablekeys", "slow scripting", COUNTED "RW access update",
        "scripting" "7.0.0" "Runs a function as a transaction";
    "fcall_ro" -3 script(Call::FCALL_RO), "readonly noscript stale skip_monitor no_mandatory_keys movablekeys", "slow scripting", COUNTED "RO access",
        "scripting" "7.0.0" "Runs a function that only reads";
    "flushall" -1 other(Other::FlushAll), "write", "keyspace write slow dangerous", NONE "",
        "server" "1.0.0" "Deletes all keys of all databases"
        tips "request_policy:all_shards response_policy:all_succeeded";
    "flushdb" -1 other(Other::FlushDb), "write", "keyspace write slow dangerous", NONE "",
        "server" "1.0.0" "Deletes all keys of the database"
        tips "request_policy:all_shards response_policy:all_succeeded";
    "function" -2 BOX, "", "slow", NONE "",
        "scripting" "7.0.0" "Commands about functions";
    "function|delete" 3 other(Other::FunctionDelete), "write noscript", "write slow scripting", NONE "",
        "scripting" "7.0.0" "Forgets a library";
    "function|dump" 2 other(Other::FunctionDump), "noscript", "slow scripting", NONE "",
        "scripting" "7.0.0" "Gives all libraries in the encoding of Redis's files";
    "function|flush" -2 other(Other::FunctionFlush), "write noscript", "write slow scripting", NONE "",
        "scripting" "7.0.0" "Forgets all libraries";
    "function|help" 2 now(Now::Help), "loading stale", "slow scripting", NONE "",
        "scripting" "7.0.0" "Lists the subcommands";
    "function|kill" 2 now(Now::ScriptKill), "noscript allow_busy", "slow scripting", NONE "",
        "scripting" "7.0.0" "Stops the scripts and functions that take long";
    "function|list" -2 other(Other::FunctionList), "noscript", "slow scripting", NONE "",
        "scripting" "7.0.0" "Lists the libraries and their functions";
    "function|load" -3 other(Other::FunctionLoad), "write denyoom noscript", "write slow scripting", NONE "",
        "scripting" "7.0.0" "Keeps a library of functions";
    "function|restore" -3 other(Other::FunctionRestore), "write denyoom noscript", "write slow scripting", NONE "",
        "scripting" "7.0.0" "Keeps the libraries that FUNCTION DUMP gave";
    "function|stats" 2 other(Other::FunctionStats), "noscript allow_busy", "slow scripting", NONE "",
        "scripting" "7.0.0" "Counts libraries and functions";
    "get" 2 single(Single::Get), "readonly fast", "read string fast", ONE "RO access",
        "string" "1.0.0" "Gives a value";
    "getbit" 3 single(Single::GetBit), "readonly fast", "read bitmap fast", ONE "RO access",
        "bitmap" "2.2.0" "Gives a bit of a value";
    "getdel" 2 single(Single::GetDel), "write fast", "write string fast", ONE "RW access delete",
        "string" "6.2.0" "Gives a value and deletes its key";
    "getex" -2 single(Single::GetEx), "write fast", "write string fast", ONE "RW access update",
        "string" "6.2.0" "Gives a value, and may change when its key expires";
    "getrange" 4 single(Single::GetRange), "readonly", "read string slow", ONE "RO access",
        "string" "2.4.0" "Gives a part of a value";
    "getset" 3 single(Single::GetSet), "write denyoom fast", "write string fast", ONE "RW access update",
        "string" "1.0.0" "Replaces a value and gives the old one";
    "hello" -1 own(Own::Hello), "noscript loading stale fast no_auth allow_busy", "fast connection", NONE "",
        "connection" "6.0.0" "Chooses the version of the protocol";
    "hotkeys" -2 BOX, "", "slow", NONE "",
        "server" "8.6.0" "Commands about the keys that make most traffic";
    "hotkeys|get" 2 other(Other::HotKeysGet), "admin noscript", "admin slow dangerous", NONE "",
        "server" "8.6.0" "Gives the keys of this server that made most traffic";
    "hotkeys|help" 2 now(Now::Help), "loading stale", "slow", NONE "",
        "server" "8.6.0" "Lists the subcommands";
    "hotkeys|reset" 2 now(Now::HotKeysReset), "admin noscript", "admin slow dangerous", NONE "",
        "server" "8.6.0" "Forgets what was noted";
    "hotkeys|start" -2 now(Now::HotKeysStart), "admin noscript", "admin slow dangerous", NONE "",
        "server" "8.6.0" "Begins to note which keys make most traffic";
    "hotkeys|stop" 2 now(Now::HotKeysStop), "admin noscript", "admin slow dangerous", NONE "",
        "server" "8.6.0" "Ends that; what was noted is kept";
    "incr" 2 single(Single::Incr), "write denyoom fast", "write string fast", ONE "RW access update",
        "string" "1.0.0" "Adds 1 to an integer";
    "incrby" 3 single(Single::IncrBy), "write denyoom fast", "write string fast", ONE "RW access update",
        "string" "1.0.0" "Adds to an integer";
    "incrbyfloat" 3 single(Single::IncrByFloat), "write denyoom fast", "write string fast", ONE "RW access update",
        "string" "2.6.0" "Adds to a number";
    "info" -1 survey(Survey::Info), "loading stale", "slow dangerous", NONE "",
        "server" "1.0.0" "Describes the server"
        tips "nondeterministic_output request_policy:all_shards response_policy:special";
    "keys" 2 survey(Survey::Keys), "readonly", "keyspace read slow dangerous", NONE "",
        "generic" "1.0.0" "Lists all keys that match a pattern"
        tips "request_policy:all_shards nondeterministic_output_order";
    "lastsave" 1 now(Now::LastSave), "loading stale fast", "admin fast dangerous", NONE "",
        "server" "1.0.0" "Gives the time: answered writes are durable"
        tips "nondeterministic_output";
    "latency" -2 BOX, "", "slow", NONE "",
        "server" "2.8.13" "Commands about slow events";
    "latency|doctor" 2 now(Now::LatencyDoctor), "admin noscript loading stale", "admin slow dangerous", NONE "",
        "server" "2.8.13" "Says where to look: events are not recorded here"
        tips "nondeterministic_output request_policy:all_nodes response_policy:special";
    "latency|graph" 3 now(Now::LatencyGraph), "admin noscript loading stale", "admin slow dangerous", NONE "",
        "server" "2.8.13" "Refused: events are not recorded here"
        tips "nondeterministic_output request_policy:all_nodes response_policy:special";
    "latency|help" 2 now(Now::Help), "loading stale", "slow", NONE "",
        "server" "2.8.13" "Lists the subcommands";
    "latency|histogram" -2 now(Now::LatencyHistogram), "admin noscript loading stale", "admin slow dangerous", NONE "",
        "server" "7.0.0" "Gives histograms of how long commands took"
        tips "nondeterministic_output request_policy:all_nodes response_policy:special";
    "latency|history" 3 now(Now::EmptyList), "admin noscript loading stale", "admin slow dangerous", NONE "",
        "server" "2.8.13" "Gives nothing: events are not recorded here"
        tips "nondeterministic_output request_policy:all_nodes response_policy:special";
    "latency|latest" 2 now(Now::EmptyList), "admin noscript loading stale", "admin slow dangerous", NONE "",
        "server" "2.8.13" "Gives nothing: events are not recorded here"
        tips "nondeterministic_output request_policy:all_nodes response_policy:special";
    "latency|reset" -2 now(Now::Zero), "admin noscript loading stale", "admin slow dangerous", NONE "",
        "server" "2.8.13" "Gives 0: events are not recorded here"
        tips "request_policy:all_nodes response_policy:all_succeeded";
    "lcs" -3 other(Other::Lcs), "readonly", "read string slow", TWO "RO access",
        "string" "7.0.0" "Gives the longest bytes that two values have in common";
    "lolwut" -1 now(Now::Lolwut), "readonly fast", "read fast", NONE "",
        "server" "5.0.0" "Draws rain, and gives the version";
    "memory" -2 BOX, "", "slow", NONE "",
        "server" "4.0.0" "Commands about memory";
    "memory|doctor" 2 now(Now::MemoryDoctor), "", "slow", NONE "",
        "server" "4.0.0" "Says what is wrong with the memory"
        tips "nondeterministic_output request_policy:all_shards response_policy:special";
    "memory|help" 2 now(Now::Help), "loading stale", "slow", NONE "",
        "server" "4.0.0" "Lists the subcommands";
    "memory|malloc-stats" 2 now(Now::MemoryMallocStats), "", "slow", NONE "",
        "server" "4.0.0" "Says that the allocator has no statistics"
        tips "nondeterministic_output request_policy:all_shards response_policy:special";
    "memory|purge" 2 now(Now::Fine), "", "slow", NONE "",
        "server" "4.0.0" "Accepted: freed memory goes back by itself"
        tips "request_policy:all_shards response_policy:all_succeeded";
    "memory|stats" 2 now(Now::MemoryStats), "", "slow", NONE "",
        "server" "4.0.0" "Gives what memory is used for"
        tips "nondeterministic_output request_policy:all_shards response_policy:special";
    "memory|usage" -3 survey(Survey::MemoryUsage), "readonly", "read slow", SECOND "RO",
        "server" "4.0.0" "Gives the bytes that a key and its value take in the log";
    "mget" -2 each_key(EachKey::MGet), "readonly fast", "read string fast", ALL "RO access",
        "string" "1.0.0" "Gives several values"
        tips "request_policy:multi_shard";
    "monitor" 1 own(Own::Monitor), "admin noscript loading stale", "admin slow dangerous", NONE "",
        "server" "1.0.0" "Tells this connection what all others run";
    "move" 3 reads_first(ReadsFirst::Move), "write fast", "keyspace write fast", ONE "RW access update",
        "generic" "1.0.0" "Moves a key to another database";
    "mset" -3 each_key(EachKey::MSet), "write denyoom", "write string slow", PAIRS "OW update",
        "string" "1.0.1" "Sets several values"
        tips "request_policy:multi_shard response_policy:all_succeeded";
    "msetex" -4 reads_first(ReadsFirst::MSetEx), "write denyoom movablekeys", "write string slow", COUNTED_PAIRS "OW update",
        "string" "8.4.0" "Sets several values that may expire";
    "msetnx" -3 reads_first(ReadsFirst::MSetNx), "write denyoom", "write string slow", PAIRS "OW insert",
        "string" "1.0.1" "Sets several values if none of the keys exists"
        tips "request_policy:multi_shard response_policy:agg_min";
    "multi" 1 own(Own::Multi), "noscript loading stale fast allow_busy", "fast transaction", NONE "",
        "transactions" "1.2.0" "Begins a transaction";
    "object" -2 BOX, "", "slow", NONE "",
        "generic" "2.2.3" "Commands about how values are kept";
    "object|encoding" 3 survey(Survey::ObjectEncoding), "readonly", "keyspace read slow", SECOND "RO",
        "generic" "2.2.3" "Names the encoding Redis would choose for the value"
        tips "nondeterministic_output";
    "object|freq" 3 other(Other::ObjectFreq), "readonly", "keyspace read slow", SECOND "RO",
        "generic" "4.0.0" "Refused: the use of keys is not counted"
        tips "nondeterministic_output";
    "object|help" 2 now(Now::Help), "loading stale", "keyspace slow", NONE "",
        "generic" "6.2.0" "Lists the subcommands";
    "object|idletime" 3 other(Other::ObjectIdleTime), "readonly", "keyspace read slow", SECOND "RO",
        "generic" "2.2.3" "Refused: the use of keys is not noted"
        tips "nondeterministic_output";
    "object|refcount" 3 other(Other::ObjectRefCount), "readonly", "keyspace read slow", SECOND "RO",
        "generic" "2.2.3" "Gives 1: values are not shared"
        tips "nondeterministic_output";
    "persist" 2 single(Single::Persist), "write fast", "keyspace write fast", ONE "RW update",
        "generic" "2.2.0" "Lets a key live for ever";
    "pexpire" -3 single(Single::PExpire), "write fast", "keyspace write fast", ONE "RW update",
        "generic" "2.6.0" "Lets a key expire after so many milliseconds";
    "pexpireat" -3 single(Single::PExpireAt), "write fast", "keyspace write fast", ONE "RW update",
        "generic" "2.6.0" "Lets a key expire at a millisecond since 1970";
    "pexpiretime" 2 single(Single::PExpireTime), "readonly fast", "keyspace read fast", ONE "RO access",
        "generic" "7.0.0" "Gives the millisecond since 1970 at which a key expires";
    "ping" -1 now(Now::Ping), "fast", "fast connection", NONE "",
        "connection" "1.0.0" "Answers PONG or its argument"
        tips "request_policy:all_shards response_policy:all_succeeded";
    "psetex" 4 single(Single::PSetEx), "write denyoom", "write string slow", ONE "OW update",
        "string" "2.6.0" "Sets a value that expires after so many milliseconds";
    "pttl" 2 single(Single::PTtl), "readonly fast", "keyspace read fast", ONE "RO access",
        "generic" "2.6.0" "Gives the milliseconds until a key expires";
    "quit" -1 own(Own::Quit), "noscript loading stale fast no_auth allow_busy", "fast connection", NONE "",
        "connection" "1.0.0" "Closes this connection";
    "randomkey" 1 survey(Survey::RandomKey), "readonly", "keyspace read slow", NONE "",
        "generic" "1.0.0" "Gives one key at random"
        tips "request_policy:all_shards nondeterministic_output";
    "readonly" 1 now(Now::ClusterFlag), "loading stale fast", "fast connection", NONE "",
        "cluster" "3.0.0" "Accepted on the cluster port: every node is a master";
    "readwrite" 1 now(Now::ClusterFlag), "loading stale fast", "fast connection", NONE "",
        "cluster" "3.0.0" "Accepted on the cluster port";
    "rename" 3 reads_first(ReadsFirst::Rename), "write", "keyspace write slow", TWO "RW access delete/OW update",
        "generic" "1.0.0" "Renames a key";
    "renamenx" 3 reads_first(ReadsFirst::RenameNx), "write fast", "keyspace write fast", TWO "RW access delete/OW insert",
        "generic" "1.0.0" "Renames a key if the new name is free";
    "reset" 1 own(Own::Reset), "noscript loading stale fast no_auth allow_busy", "fast connection", NONE "",
        "connection" "6.2.0" "Makes this connection as new";
    "restore" -4 single(Single::Restore), "write denyoom", "keyspace write slow dangerous", ONE "OW update",
        "generic" "2.6.0" "Sets a key to what DUMP gave";
    "restore-asking" -4 single(Single::Restore), "write denyoom asking", "keyspace write slow dangerous", ONE "OW update",
        "server" "3.0.0" "RESTORE, as nodes of Redis Cluster send it";
    "role" 1 now(Now::Role), "noscript loading stale fast", "admin fast dangerous", NONE "",
        "server" "2.8.12" "Answers that the server is a master without Redis replicas";
    "save" 1 now(Now::Fine), "admin noscript no_async_loading no_multi", "admin slow dangerous", NONE "",
        "server" "1.0.0" "Accepted: answered writes are durable";
    "scan" -2 survey(Survey::Scan), "readonly", "keyspace read slow", NONE "",
        "generic" "2.8.0" "Goes through the keys of the database in steps"
        tips "nondeterministic_output request_policy:special";
    "script" -2 BOX, "", "slow", NONE "",
        "scripting" "2.6.0" "Commands about scripts";
    "script|exists" -3 other(Other::ScriptExists), "noscript", "slow scripting", NONE "",
        "scripting" "2.6.0" "Tells which scripts are kept";
    "script|flush" -2 other(Other::ScriptFlush), "noscript", "slow scripting", NONE "",
        "scripting" "2.6.0" "Forgets all scripts";
    "script|help" 2 now(Now::Help), "loading stale", "slow scripting", NONE "",
        "scripting" "5.0.0" "Lists the subcommands";
    "script|kill" 2 now(Now::ScriptKill), "noscript allow_busy", "slow scripting", NONE "",
        "scripting" "2.6.0" "Stops the scripts that take long";
    "script|load" 3 other(Other::ScriptLoad), "noscript stale", "slow scripting", NONE "",
        "scripting" "2.6.0" "Keeps a script and gives its hash";
    "select" 2 own(Own::Select), "loading stale fast", "fast connection", NONE "",
        "connection" "1.0.0" "Chooses the database";
    "set" -3 single(Single::Set), "write denyoom", "write string slow", ONE "RW access update variable_flags",
        "string" "1.0.0" "Sets a value, which may expire";
    "setbit" 4 single(Single::SetBit), "write denyoom", "write bitmap slow", ONE "RW access update",
        "bitmap" "2.2.0" "Sets a bit of a value and gives the old one";
    "setex" 4 single(Single::SetEx), "write denyoom", "write string slow", ONE "OW update",
        "string" "2.0.0" "Sets a value that expires after so many seconds";
    "setnx" 3 single(Single::SetNx), "write denyoom fast", "write string fast", ONE "OW insert",
        "string" "1.0.0" "Sets a value of a key that does not exist";
    "setrange" 4 single(Single::SetRange), "write denyoom", "write string slow", ONE "RW update",
        "string" "2.2.0" "Overwrites a part of a value";
    "shutdown" -1 now(Now::Shutdown), "admin noscript loading stale no_multi allow_busy", "admin slow dangerous", NONE "",
        "server" "1.0.0" "Refused: the process is stopped by its operator";
    "slowlog" -2 BOX, "", "slow", NONE "",
        "server" "2.2.12" "Commands about slow commands";
    "slowlog|get" -2 now(Now::SlowLogGet), "admin loading stale", "admin slow dangerous", NONE "",
        "server" "2.2.12" "Gives the newest slow commands"
        tips "request_policy:all_nodes nondeterministic_output";
    "slowlog|help" 2 now(Now::Help), "loading stale", "slow", NONE "",
        "server" "6.2.0" "Lists the subcommands";
    "slowlog|len" 2 now(Now::SlowLogLen), "admin loading stale", "admin slow dangerous", NONE "",
        "server" "2.2.12" "Counts the slow commands that are kept"
        tips "request_policy:all_nodes response_policy:agg_sum nondeterministic_output";
    "slowlog|reset" 2 now(Now::SlowLogReset), "admin loading stale", "admin slow dangerous", NONE "",
        "server" "2.2.12" "Forgets the slow commands"
        tips "request_policy:all_nodes response_policy:all_succeeded";
    "strlen" 2 single(Single::StrLen), "readonly fast", "read string fast", ONE "RO",
        "string" "2.2.0" "Gives the length of a value";
    "substr" 4 single(Single::GetRange), "readonly", "read string slow", ONE "RO access",
        "string" "1.0.0" "Old name of GETRANGE";
    "swapdb" 3 now(Now::SwapDb), "write fast", "keyspace write fast dangerous", NONE "",
        "server" "4.0.0" "Refused: tables cannot be exchanged at one moment";
    "time" 1 now(Now::Time), "loading stale fast", "fast", NONE "",
        "server" "2.6.0" "Gives the server's clock"
        tips "nondeterministic_output";
    "touch" -2 each_key(EachKey::Touch), "readonly fast", "keyspace read fast", ALL "RO",
        "generic" "3.2.1" "Counts keys that exist"
        tips "request_policy:multi_shard response_policy:agg_sum";
    "ttl" 2 single(Single::Ttl), "readonly fast", "keyspace read fast", ONE "RO access",
        "generic" "1.0.0" "Gives the seconds until a key expires";
    "type" 2 single(Single::Type), "readonly fast", "keyspace read fast", ONE "RO",
        "generic" "1.0.0" "Gives the type of a value: string or none";
    "unlink" -2 each_key(EachKey::Del), "write fast", "keyspace write fast", ALL "RM delete",
        "generic" "4.0.0" "Deletes keys"
        tips "request_policy:multi_shard response_policy:agg_sum";
    "unwatch" 1 own(Own::Unwatch), "noscript loading stale fast allow_busy", "fast transaction", NONE "",
        "transactions" "2.2.0" "Lets go of all watched keys";
    "wait" 3 own(Own::Wait), "noscript", "slow connection", NONE "",
        "generic" "3.0.0" "Gives the number of replicas that every acknowledged write has at least"
        tips "request_policy:all_shards response_policy:agg_min";
    "waitaof" 4 own(Own::WaitAof), "noscript", "slow connection", NONE "",
        "generic" "7.2.0" "Gives the files of backups that have every acknowledged write";
    "watch" -2 data(Data::Watch), "noscript loading stale fast allow_busy", "fast transaction", ALL "RO",
        "transactions" "2.2.0" "Makes the next transaction depend on keys";
}
