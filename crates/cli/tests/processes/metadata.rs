//! The metadata stores outside of the process, against real servers. They keep the promises of all
//! stores, and say it when a server is away or its place is somebody else's. Scripted servers give
//! the answers that real ones give rarely.

use crate::support::cluster::Turn;
use crate::support::gate::http_request;
use crate::support::metadata::{Kind, MetadataServer};
use crate::support::native::runtime;
use pluvio_coordinator::{Change, Condition, MetadataStore, Outcome, StoreError, conformance};
use pluvio_metadata::{Login, Place};
use std::io::Write;
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread::Builder;

/// A store at a place, and what runs it.
struct Opened {
    runtime: pluvio_env_os::OsRuntime,
    store: Arc<dyn MetadataStore>,
}

fn open(place: &str) -> Opened {
    open_as(None, place)
}

fn open_as(login: Option<Login>, place: &str) -> Opened {
    let (runtime, env) = runtime();
    let place: Place = place.parse().unwrap();
    let store = place.open(&env, login).unwrap();
    Opened { runtime, store }
}

/// What a scripted server answers to a request: status and body.
type Script = dyn Fn(&str) -> (u16, String) + Send + Sync;

/// A server that speaks HTTP as etcd does; gives its address.
fn scripted(script: impl Fn(&str) -> (u16, String) + Send + Sync + 'static) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let script: Arc<Script> = Arc::new(script);
    let listening = Builder::new().spawn(move || {
        for client in listener.incoming().map_while(Result::ok) {
            let script = Arc::clone(&script);
            let answering = Builder::new().spawn(move || {
                // The client closes the connection when it likes.
                let _ = answer(&client, &*script);
            });
            answering.unwrap();
        }
    });
    listening.unwrap();
    address
}

/// Answers the requests of one connection.
fn answer(client: &TcpStream, script: &Script) -> std::io::Result<()> {
    let mut stream = client;
    loop {
        let request = http_request(&mut stream)?;
        let (status, body) = script(&String::from_utf8_lossy(&request));
        let length = body.len();
        write!(
            stream,
            "HTTP/1.1 {status} Scripted\r\nContent-Length: {length}\r\n\r\n{body}"
        )?;
    }
}

impl Opened {
    fn conforms(&self) {
        let store = Arc::clone(&self.store);
        self.runtime
            .block_on(async move { conformance::check(&*store).await });
    }

    fn has_kept(&self) {
        let store = Arc::clone(&self.store);
        self.runtime
            .block_on(async move { conformance::check_kept(&*store).await });
    }

    fn get(&self, key: &'static str) -> Result<Option<bytes::Bytes>, StoreError> {
        let store = Arc::clone(&self.store);
        self.runtime.block_on(async move { store.get(key).await })
    }

    fn create(&self, key: &str) -> Result<Outcome, StoreError> {
        let store = Arc::clone(&self.store);
        let key = key.to_owned();
        let put = Change::Put {
            key: key.clone(),
            value: "value".into(),
        };
        let condition = Condition { key, value: None };
        self.runtime
            .block_on(async move { store.apply_if(condition, vec![put]).await })
    }
}

/// Everything that is asked of a store, on one server.
fn is_a_metadata_store(kind: Kind) {
    let _turn = Turn::take();
    let mut server = MetadataServer::start(kind);
    let first = open(&server.place("/clusters/first"));
    first.conforms();
    // Places do not see each other, also where one's name begins with the other's.
    for place in ["/clusters/second", "/clusters/first-and-more", "/clusters"] {
        assert_eq!(open(&server.place(place)).get("t/2"), Ok(None));
    }
    let second = open(&server.place("/clusters/second"));
    second.conforms();
    first.has_kept();
    // Acknowledged changes are there after the server was killed, through old and new connections.
    server.kill();
    let away = first.get("t/2").unwrap_err().to_string();
    assert!(away.contains(&server.place("/clusters/first")), "{away}");
    server.restart(true);
    open(&server.place("/clusters/first")).has_kept();
    crate::support::wait_for("the old connections to be replaced", || {
        first.get("t/2").map_err(|error| error.to_string())
    });
    first.has_kept();
    assert_eq!(first.create("after"), Ok(Outcome::Applied));
    assert_eq!(first.create("after"), Ok(Outcome::Refused));
}

// shows: META-2
#[test]
fn a_server_that_is_not_there_is_named() {
    for scheme in ["etcd", "zookeeper"] {
        let place = format!("{scheme}://127.0.0.1:1/pluvio");
        let error = open(&place).get("leader").unwrap_err().to_string();
        assert!(error.contains(&place), "{error}");
    }
}

/// So are those of etcd that are no members yet (learners), and proxies whose servers are away.
#[test]
fn a_server_that_answers_with_an_error_of_its_own_is_left_for_the_next_one() {
    // A proxy, and learners of older and newer versions of etcd.
    let learner = r#"{"message":"etcdserver: rpc not supported for learner"}"#;
    let cases = [
        (502, "nobody is behind it", "502"),
        (503, learner, "not supported for learner"),
        (400, learner, "not supported for learner"),
    ];
    for (status, answer, words) in cases {
        let useless = scripted(move |_| (status, answer.to_owned()));
        let member = scripted(|_| (200, "{}".to_owned()));
        let both = open(&format!("etcd://{useless},{member}"));
        let error = both.get("leader").unwrap_err().to_string();
        assert!(error.contains(words), "{error}");
        assert_eq!(both.get("leader"), Ok(None));
        assert_eq!(both.get("leader"), Ok(None));
    }
}

/// As etcd with JSON web tokens does it.
#[test]
fn a_token_from_before_a_change_of_users_or_roles_is_replaced() {
    let logins = AtomicU32::new(0);
    let etcd = scripted(move |request| {
        if request.contains("/v3/auth/authenticate") {
            let number = logins.fetch_add(1, Ordering::Relaxed);
            return (200, format!("{{\"token\":\"token-{number}\"}}"));
        }
        let words = r#"{"message":"etcdserver: revision of auth store is old"}"#;
        match request.contains("token-0") {
            true => (400, words.to_owned()),
            false => (200, "{}".to_owned()),
        }
    });
    let login = Login {
        user: "pluvio".into(),
        password: "secret".into(),
    };
    let store = open_as(Some(login), &format!("etcd://{etcd}"));
    assert_eq!(store.get("leader"), Ok(None));
}

mod needs_etcd {
    use super::*;

    // shows: META-1
    #[test]
    fn etcd_is_a_metadata_store() {
        is_a_metadata_store(Kind::Etcd);
    }

    /// The second server of the list is asked when the first one is away.
    #[test]
    fn any_server_of_the_list_will_do() {
        let _turn = Turn::take();
        let server = MetadataServer::start(Kind::Etcd);
        let place = server.place("/pluvio");
        let address = place.strip_prefix("etcd://").unwrap();
        let both = open(&format!("etcd://127.0.0.1:1,{address}"));
        assert_eq!(both.create("key"), Ok(Outcome::Applied));
        assert_eq!(open(&place).create("key"), Ok(Outcome::Refused));
    }
}

mod needs_zookeeper {
    use super::*;

    // shows: META-1
    #[test]
    fn zookeeper_is_a_metadata_store() {
        is_a_metadata_store(Kind::ZooKeeper);
    }
}
