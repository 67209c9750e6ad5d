//! Users and their rights, beside those of redis-server.

use super::{show, without_databases};
use crate::bench::Bench;
use crate::real_server::RealServer;

/// Sets users, and tries what they may. Of what is not permitted, the words differ between versions
/// of Redis.
const OF_USERS: &[&str] = &[
    "acl setuser",
    "acl setuser a",
    "acl setuser a on nopass",
    "acl setuser a ~x* +get",
    "acl list",
    "acl setuser a -@all +set",
    "acl getuser a",
    "acl setuser a +@all -config",
    "acl list",
    "acl setuser a resetkeys %R~r* %W~w* %rw~b*",
    "acl getuser a",
    "acl setuser a clearselectors (+get ~s*) (~t* +set)",
    "acl getuser a",
    "acl list",
    "acl setuser b -set +set",
    "acl list",
    "acl setuser b reset +config|get +config",
    "acl list",
    "acl deluser b",
    "ACL Cat connection x",
    "ACL GENPASS 1 2",
    "acl setuser a foo",
    "acl setuser a +nosuch",
    "acl setuser a +@nosuch",
    "acl setuser a #123",
    "acl setuser a !123",
    "acl setuser a allkeys ~x",
    "acl setuser a allchannels &x",
    "acl setuser a (+get",
    "acl setuser a (+nosuch)",
    "acl setuser a %X~foo",
    "acl setuser a +config|get|x",
    "acl setuser a +config|nosuch",
    "acl setuser a -select|0",
    "acl setuser a reset",
    "acl list",
    "acl setuser a on nopass +@all -@dangerous -select +select|0 ~x %R~r* %W~w* (+ping|x)",
    "acl dryrun a select 0",
    "acl dryrun nobody get x",
    "acl dryrun a nosuch",
    "acl dryrun a get",
    "acl dryrun a get x",
    "acl dryrun a auth x",
    "acl users",
    "acl whoami",
    "acl deluser nobody",
    "acl deluser default",
    "acl deluser",
    "acl genpass 0",
    "acl genpass 5000",
    "acl genpass x",
    "acl save",
    "acl load",
    "acl log x",
    "acl log 1 2",
    "acl log reset",
    "acl cat",
    "acl cat connection x",
    "auth a",
    "auth nobody x",
    "auth a x y",
    "auth a x",
    "acl whoami",
    "get x",
    "get y",
    "get r1",
    "get w1",
    "set w1 v",
    "set w1 v get",
    "set r1 v",
    "getset x 1",
    "incr x",
    "append w1 x",
    "strlen w1",
    "strlen y",
    "exists x r1 w1",
    "exists x y",
    "mget x r1",
    "mset x 1 w1 2",
    "mset x 1 r1 2",
    "rename x w1",
    "rename r1 w1",
    "copy r1 w1",
    "copy w1 r1",
    "bitop not w1 r1",
    "bitop not r1 w1",
    "bitfield r1 get u8 0",
    "bitfield r1 set u8 0 1",
    "select 1",
    "select 0",
    "flushall",
    "keys *",
    "ping",
    "ping x",
    "watch y",
    "watch x",
    "multi",
    "set x 1",
    "set r1 1",
    "exec",
    "multi",
    "set x 1",
    "exec",
    "eval return(1) 1 y",
    "eval return(1) 1 x",
    "hello 2 auth nobody x",
    "reset",
    "acl whoami",
    "acl setuser default off",
    "ping",
    "reset",
    "ping",
    "get x",
    "auth default x",
    "auth a x",
    "ping",
];

// shows: REDIS-3
#[test]
fn users_may_the_same() {
    let real = RealServer::start();
    let mut bench = Bench::new();
    let (mut ours, mut theirs) = (bench.connect(), real.connect());
    let mut differences = Vec::new();
    for words in OF_USERS {
        let parts: Vec<_> = words.split(' ').collect();
        let (got, expected) = (without_databases(ours.call(&parts)), theirs.call(&parts));
        let replies = [&got, &expected];
        let both_refuse = replies.iter().all(|reply| reply.starts_with(b"-NOPERM "));
        if !both_refuse && got != expected {
            differences.push(format!("{words}: {} but {}", show(&got), show(&expected)));
        }
    }
    assert!(differences.is_empty(), "{differences:#?}");
}
