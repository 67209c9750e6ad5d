//! Every transport does what every network must do.

use crate::rig::Rig;
use crate::rig::certificates::{Authority, Shape};
use pluvio_env::conformance::{CASES, Ground};
use pluvio_env::{Address, Network};
use pluvio_env_os::NoDisk;
use pluvio_net::Tls;
use std::sync::Arc;

/// Small frames keep the cases quick; they are still of many pieces.
const FRAME_BYTES_MAX: usize = 3 << 20;

/// Runs all cases between two processes of `cores` event loops.
fn all(cores: u16, address: impl Fn(usize) -> String) {
    all_with(cores, None, address);
}

/// The same with TLS, if there is any.
fn all_with(cores: u16, tls: Option<&Arc<Tls>>, address: impl Fn(usize) -> String) {
    for (number, (name, case)) in CASES.iter().enumerate() {
        println!("{name}");
        let rig = || {
            Rig::with_tls(cores, tls.cloned(), |options| {
                options.frame_bytes_max = FRAME_BYTES_MAX;
            })
        };
        let (server, client) = (rig(), rig());
        let env = |rig: &Rig| {
            let network: Arc<dyn Network> = Arc::<pluvio_net::OsNetwork>::clone(&rig.network);
            rig.runtime.env(network, Arc::new(NoDisk))
        };
        let ground = Ground {
            server: env(&server),
            client: env(&client),
            address: Address::from(&*address(number)),
            frame_bytes_max: FRAME_BYTES_MAX,
            bounds_replies: true,
        };
        client.runtime.block_on(case(ground));
    }
}

#[test]
fn tcp_is_a_network() {
    all(1, |_| "127.0.0.1:0".to_owned());
    all(2, |_| "tcp:127.0.0.1:0".to_owned());
}

#[test]
fn tcp_with_tls_is_a_network() {
    let authority = Authority::new("ours");
    authority.sign("server", Shape::default());
    let clock = Rig::new(1).runtime.clock();
    let tls = Arc::new(Tls::load(authority.own("server"), clock).unwrap());
    all_with(1, Some(&tls), |_| "127.0.0.1:0".to_owned());
    all_with(2, Some(&tls), |_| "127.0.0.1:0".to_owned());
}

// shows: DUPLEX-2, RING-1, RING-3
#[test]
fn rings_are_a_network() {
    let directory = tempfile::tempdir().unwrap();
    let place = |number| format!("shm:{}/{number}", directory.path().display());
    all(1, place);
    all(2, place);
}

#[test]
fn datagrams_are_a_network() {
    all(1, |_| "udp:127.0.0.1:0".to_owned());
    all(2, |_| "udp:127.0.0.1:0".to_owned());
}

#[cfg(feature = "fabric")]
mod needs_libfabric {
    use super::all;

    // shows: LINE-1, LINE-2, HUB-1, STREAM-1
    #[test]
    fn libfabric_over_tcp_is_a_network() {
        all(1, |_| "fabric:tcp:127.0.0.1:0".to_owned());
        all(2, |_| "fabric:tcp:127.0.0.1:0".to_owned());
    }

    // shows: LINE-1, LINE-2
    #[test]
    fn libfabric_over_shared_memory_is_a_network() {
        all(1, |_| "fabric:shm:127.0.0.1:0".to_owned());
        all(2, |_| "fabric:shm:127.0.0.1:0".to_owned());
    }

    #[test]
    fn an_address_of_tcp_and_libfabric_is_a_network() {
        all(1, |_| "127.0.0.1:0+fabric:tcp:127.0.0.1:0".to_owned());
    }
}

#[test]
fn an_address_of_both_is_a_network() {
    let directory = tempfile::tempdir().unwrap();
    all(1, |number| {
        format!("127.0.0.1:0+shm:{}/{number}", directory.path().display())
    });
}
