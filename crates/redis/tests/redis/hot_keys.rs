//! HOTKEYS: sessions of the server in whose process the port is.

use crate::bench::Bench;
use pluvio_client::testing::FakeCluster;
use pluvio_redis::{HotKeys, HotKeysOf, HotSession, HotTable, RedisOptions};
use pluvio_units::TableId;
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// A server that has seen what it is told.
#[derive(Default)]
struct Server(Mutex<Option<HotSession>>);

impl HotKeys for Server {
    fn start(&self, count: usize, lasts: Option<Duration>) -> bool {
        let started = HotSession {
            is_active: true,
            count,
            lasted: lasts.unwrap_or_default(),
            one_in: 4,
            ..HotSession::default()
        };
        *self.0.lock().unwrap() = Some(started);
        true
    }

    fn stop(&self) -> bool {
        let mut session = self.0.lock().unwrap();
        session
            .as_mut()
            .is_some_and(|session| std::mem::take(&mut session.is_active))
    }

    fn reset(&self) -> bool {
        let mut session = self.0.lock().unwrap();
        let is_active = session.as_ref().is_some_and(|session| session.is_active);
        if !is_active {
            *session = None;
        }
        !is_active
    }

    fn session(&self) -> Option<HotSession> {
        self.0.lock().unwrap().clone()
    }
}

#[test]
fn a_session_is_started_shown_stopped_and_forgotten() {
    let cluster = FakeCluster::new(1);
    let client = cluster.client();
    let server = Arc::new(Server::default());
    let mut options = RedisOptions::default();
    options.hot_keys = Some(HotKeysOf::new(Arc::clone(&server) as Arc<dyn HotKeys>));
    let mut bench = Bench::with(cluster.clone(), &client, options);
    let mut c = bench.connect();
    let (ok, nil) = ("+OK\r\n", "$-1\r\n");
    assert_eq!(c.say("HOTKEYS GET"), nil);
    assert_eq!(c.say("HOTKEYS STOP"), nil);
    assert_eq!(c.say("HOTKEYS RESET"), ok);
    assert_eq!(
        c.say("HOTKEYS START METRICS 1 CPU"),
        "-ERR METRICS CPU is not measured here. Supported: NET\r\n"
    );
    assert_eq!(c.say("HOTKEYS START METRICS 1 NET COUNT 2 DURATION 60"), ok);
    // This is told before mistakes.
    for again in ["HOTKEYS START METRICS 1 NET", "HOTKEYS START"] {
        assert_eq!(
            c.say(again),
            "-ERR hotkey tracking session already in progress\r\n"
        );
    }
    assert_eq!(
        c.say("HOTKEYS RESET"),
        "-ERR hotkey tracking session in progress, stop tracking first\r\n"
    );
    assert_eq!(c.say("SET k v"), ok);
    assert_eq!(c.say("SELECT 3"), ok);
    assert_eq!(c.say("SET k v"), ok);
    let table = |name: &str| cluster.run(client.table(name)).unwrap().id();
    let of = |bytes, keys: &[(&[u8], u64)]| HotTable {
        bytes,
        keys: keys.iter().map(|(key, n)| (key.to_vec(), *n)).collect(),
    };
    server.0.lock().unwrap().as_mut().unwrap().tables = [
        (table("redis:0"), of(100, &[(b"a", 60), (b"b", 5)])),
        (table("redis:3"), of(30, &[(b"\r\n", 30)])),
        // A table of another kind of client.
        (TableId(999), of(5000, &[(b"c", 5000)])),
    ]
    .into();
    let shown = c.say("HOTKEYS GET");
    let ends = "$32\r\nnet-bytes-all-commands-all-slots\r\n:130\r\n\
                $15\r\ntotal-net-bytes\r\n:130\r\n\
                $12\r\nby-net-bytes\r\n*4\r\n$1\r\na\r\n:60\r\n$2\r\n\r\n\r\n:30\r\n";
    assert!(shown.starts_with("*1\r\n*16\r\n$15\r\ntracking-active\r\n:1\r\n"));
    assert!(shown.contains("$22\r\ncollection-duration-ms\r\n:60000\r\n"));
    assert!(shown.ends_with(ends), "{shown}");
    assert_eq!(c.say("HOTKEYS STOP"), ok);
    assert_eq!(c.say("HOTKEYS STOP"), nil);
    assert!(c.say("HOTKEYS GET").contains("tracking-active\r\n:0\r\n"));
    assert_eq!(c.say("HOTKEYS RESET"), ok);
    assert_eq!(c.say("HOTKEYS GET"), nil);
}

#[test]
fn where_no_server_is_keys_are_not_sampled() {
    let mut bench = Bench::new();
    let mut c = bench.connect();
    for command in ["GET", "STOP", "RESET", "START METRICS 1 NET"] {
        assert_eq!(
            c.say(&format!("HOTKEYS {command}")),
            "-ERR keys are not sampled here\r\n"
        );
    }
    assert_eq!(
        c.say("HOTKEYS"),
        "-ERR wrong number of arguments for 'hotkeys' command\r\n"
    );
}
