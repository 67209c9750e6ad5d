//! The metadata stores outside of the process, against real servers: the promises of all stores, and what
//! is told when a server is away or its place is somebody else's.

use crate::support::cluster::Turn;
use crate::support::metadata::{Kind, MetadataServer};
use crate::support::native::runtime;
use pluvio_coordinator::{Change, Condition, MetadataStore, Outcome, StoreError, conformance};
use pluvio_metadata::Place;
use std::sync::Arc;

/// A store at a place, and what runs it.
struct Opened {
    runtime: pluvio_env_os::OsRuntime,
    store: Arc<dyn MetadataStore>,
}

fn open(place: &str) -> Opened {
    let (runtime, env) = runtime();
    let place: Place = place.parse().unwrap();
    let store = place.open(&env, None).unwrap();
    Opened { runtime, store }
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
    // What was acknowledged is there when the server was killed, through old and new connections.
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

#[test]
fn a_server_that_is_not_there_is_named() {
    for scheme in ["etcd", "zookeeper"] {
        let place = format!("{scheme}://127.0.0.1:1/pluvio");
        let error = open(&place).get("leader").unwrap_err().to_string();
        assert!(error.contains(&place), "{error}");
    }
}

mod needs_etcd {
    use super::*;

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

    #[test]
    fn zookeeper_is_a_metadata_store() {
        is_a_metadata_store(Kind::ZooKeeper);
    }
}
