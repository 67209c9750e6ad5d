//! The simulated network does what every network must do.

use crate::support::{SECOND, quiet};
use pluvio_env::Address;
use pluvio_env::conformance::{CASES, Ground};
use pluvio_sim::Sim;

#[test]
fn the_simulated_network_is_a_network() {
    every_case(None);
}

#[test]
fn sessions_of_datagrams_are_a_network() {
    for datagram_bytes_max in [1_400, 60_000] {
        every_case(Some(datagram_bytes_max));
    }
}

fn every_case(datagram_bytes_max: Option<usize>) {
    for (seed, (name, case)) in (1..).zip(CASES) {
        println!("{name}");
        let mut options = quiet();
        options.network.refused_ppm = 1_000_000;
        options.datagram_bytes_max = datagram_bytes_max;
        let frame_bytes_max = options.network.message_bytes_max;
        let sim = Sim::new(seed, options);
        let (server, client) = (sim.process("s"), sim.process("c"));
        let ground = Ground {
            server: server.env,
            client: client.env,
            address: Address::from("s:0"),
            frame_bytes_max,
            bounds_replies: false,
        };
        sim.block_on(client.id, case(ground), 1_000 * SECOND)
            .unwrap();
    }
}
