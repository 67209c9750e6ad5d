//! Connections over libfabric: processes that come, go and are killed, and peers that break rules.

#![cfg(feature = "fabric")]

/// The name says what must be installed.
mod needs_libfabric {
    use crate::rig::victims::kill_callers;
    use crate::rig::{
        PATIENCE, Rig, Serve, echo, frame, header, hello, read_exact_hello, wait_until,
    };
    use core::time::Duration;
    use pluvio_env::{Address, CallError, Frame, Handled, Listening, Network, Transport};
    use pluvio_fabric::{Endpoint, MESSAGE_BYTES_MAX, Peer, Taken};
    use std::io::{Read, Write};
    use std::net::{IpAddr, Ipv4Addr, TcpStream};
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

    const PROVIDERS: [&str; 2] = ["tcp", "shm"];
    const HERE: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);

    fn place(provider: &str) -> String {
        format!("fabric:{provider}:127.0.0.1:0")
    }

    /// Where the two sides meet over TCP.
    fn meeting(listening: &Listening) -> String {
        let place = listening.address.place_of(Transport::Fabric).unwrap();
        place.split_once(':').unwrap().1.to_owned()
    }

    #[test]
    fn callers_come_and_go() {
        for provider in PROVIDERS {
            let rig = Rig::new(2);
            let listening = rig.listen_at(&place(provider), echo());
            for round in 0..20 {
                let client = Rig::new(1);
                let request = frame(round, vec![round as u8; 10_000]);
                let reply = client.call(&listening.address, request.clone());
                assert!(
                    reply.as_ref() == Ok(&request),
                    "{provider} {round} {:?}",
                    reply.err()
                );
            }
            let totals = rig.network.counters().totals();
            assert_eq!(totals.fabrics_accepted, 20);
            let waits = || rig.network.counters().totals().connections_ended == 20;
            wait_until("the end of all connections", waits);
        }
    }

    /// Only over TCP: a process that is killed inside libfabric's shared memory may leave a lock
    /// there taken, for which its peer waits for ever.
    #[test]
    fn a_process_that_is_killed_ends_its_connections_at_once() {
        let rig = Rig::new(1);
        let listening = rig.listen_at(&place("tcp"), echo());
        kill_callers(&rig, &listening.address, 1_000);
    }

    #[test]
    fn a_server_that_ends_is_lost_to_its_callers() {
        for provider in PROVIDERS {
            let server = Rig::new(1);
            let service = Serve(|_, _| Handled::Later(Box::pin(core::future::pending())));
            let listening = server.listen_at(&place(provider), service);
            let (client, to) = (Rig::new(1), listening.address.clone());
            let begun = || server.network.counters().totals().requests_received > 0;
            let waiter = std::thread::Builder::new();
            let waiter = waiter.spawn(move || client.call(&to, frame(1, "x")));
            wait_until("the request", begun);
            drop(listening);
            let outcome = waiter.unwrap().join().unwrap();
            assert!(matches!(outcome, Err(CallError::Lost(_))), "{outcome:?}");
        }
    }

    #[test]
    fn what_cannot_be_opened_or_reached_is_told_in_words() {
        let rig = Rig::new(1);
        let open = |address: &str| {
            let address = Address::from(address);
            rig.run(|network| async move { network.listen(&address, Arc::new(echo())).await })
        };
        for (address, words) in [
            ("fabric:nonsense:127.0.0.1:0", "nonsense"),
            ("fabric:tcp:0.0.0.0:0", "leads nowhere"),
            ("fabric:tcp:192.0.2.77:1", "provider tcp"),
        ] {
            let error = open(address).err().unwrap().to_string();
            assert!(error.contains(words), "{error}");
        }
        let error = rig.call(&Address::from("fabric:tcp:127.0.0.1:1"), frame(1, "x"));
        let error = error.unwrap_err().to_string();
        assert!(error.contains("nothing listens"), "{error}");
    }

    // shows: ACCEPT-1
    #[test]
    fn a_caller_without_the_provider_or_beyond_the_bound_takes_tcp() {
        let rig = Rig::with(1, |options| options.fabric_connections_max = 1);
        let both = format!("127.0.0.1:0+{}", place("tcp"));
        let listening = rig.listen_at(&both, echo());
        let tcp = listening.address.place_of(Transport::Tcp).unwrap();
        let other = Address::from(&*format!("{tcp}+fabric:nonsense:{}", meeting(&listening)));
        rig.call(&other, frame(1, "x")).unwrap();
        assert_eq!(rig.network.counters().totals().fabrics_made, 0);
        // The place of that attempt is given up a little later.
        let mut first = Rig::new(1);
        wait_until("room", || {
            first = Rig::new(1);
            first.call(&listening.address, frame(1, "x")).unwrap();
            first.network.counters().totals().fabrics_made == 1
        });
        let second = Rig::new(1);
        second.call(&listening.address, frame(1, "x")).unwrap();
        assert_eq!(second.network.counters().totals().fabrics_made, 0);
        let alone = Address::from(&*format!("fabric:tcp:{}", meeting(&listening)));
        let error = Rig::new(1).call(&alone, frame(1, "x")).unwrap_err();
        assert!(error.to_string().contains("too many"), "{error}");
    }

    /// A side that connects, written by hand.
    struct Raw {
        life: TcpStream,
        endpoint: Arc<Endpoint>,
        peer: Peer,
        key: u64,
    }

    const OWN_KEY: u64 = 77;

    impl Raw {
        fn greeted(listening: &Listening) -> TcpStream {
            let mut life = TcpStream::connect(meeting(listening)).unwrap();
            life.set_read_timeout(Some(PATIENCE)).unwrap();
            life.write_all(&hello(1, 1)).unwrap();
            read_exact_hello(&mut life);
            life
        }

        fn introduction(length: u16, window: u32, name: &[u8]) -> Vec<u8> {
            let mut bytes = length.to_le_bytes().to_vec();
            bytes.extend([0, 0]);
            bytes.extend(window.to_le_bytes());
            bytes.extend(OWN_KEY.to_le_bytes());
            bytes.extend(name);
            bytes
        }

        fn connect(provider: &str, listening: &Listening) -> Self {
            let mut life = Self::greeted(listening);
            let endpoint = Arc::new(Endpoint::open(provider, HERE).unwrap());
            let name = endpoint.name();
            let own = Self::introduction(name.len() as u16, 64 << 10, name);
            life.write_all(&own).unwrap();
            let mut head = [0; 16];
            life.read_exact(&mut head).unwrap();
            let mut name = vec![0; usize::from(u16::from_le_bytes([head[0], head[1]]))];
            life.read_exact(&mut name).unwrap();
            let peer = endpoint.peer(&name).unwrap();
            let key = u64::from_le_bytes(head[8..].try_into().unwrap());
            let raw = Self {
                life,
                endpoint,
                peer,
                key,
            };
            raw.send([raw.key, 0, 0], &[]);
            assert_eq!(raw.take()[..8], OWN_KEY.to_le_bytes());
            raw
        }

        fn try_take(&self) -> Option<Vec<u8>> {
            let mut bytes = [0; MESSAGE_BYTES_MAX];
            match self.endpoint.take(&mut bytes) {
                Ok(Taken::Message(len)) => Some(bytes[..len].to_vec()),
                Ok(Taken::Nothing | Taken::Undelivered(_)) | Err(_) => None,
            }
        }

        fn take(&self) -> Vec<u8> {
            let mut taken = None;
            wait_until("a message", || {
                taken = self.try_take();
                taken.is_some()
            });
            taken.unwrap()
        }

        /// Sends a message with these three words in front, and wakes the other side.
        fn send(&self, words: [u64; 3], bytes: &[u8]) {
            let head: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
            wait_until("room", || {
                // The other side may have ended it.
                let sent = self.peer.send(&head, bytes).unwrap_or(true);
                if !sent {
                    self.endpoint.take(&mut [0; MESSAGE_BYTES_MAX]).ok();
                }
                sent
            });
            let _ended = (&self.life).write(&[0]);
        }

        /// Waits until the other side closes; keeps the endpoint moving.
        fn wait_for_end(&mut self) {
            self.life.set_nonblocking(true).unwrap();
            let (life, endpoint) = (&mut self.life, &self.endpoint);
            wait_until("the end", || {
                endpoint.take(&mut [0; MESSAGE_BYTES_MAX]).ok();
                match life.read(&mut [0; 64]) {
                    Ok(0) => true,
                    Ok(_) => false,
                    Err(error) => error.kind() == std::io::ErrorKind::ConnectionReset,
                }
            });
        }
    }

    #[test]
    fn strangers_at_the_port_get_an_answer_or_the_end() {
        let rig = Rig::with(1, |options| {
            options.handshake_limit = Duration::from_millis(300);
        });
        let listening = rig.listen_at(&place("tcp"), echo());
        let mut stream = TcpStream::connect(meeting(&listening)).unwrap();
        stream.write_all(b"PING\r\n").unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        assert!(answer.contains("Pluvio's RPC port"), "{answer}");
        let long = vec![7; 300];
        for introduction in [
            Vec::new(),
            Raw::introduction(16, 1 << 16, &[9; 16]),
            Raw::introduction(3, 1 << 16, &[2, 0, 9]),
            Raw::introduction(300, 1 << 16, &long),
            Raw::introduction(u16::MAX, 1 << 16, &long),
            Raw::introduction(0, 1 << 16, &[]),
            Raw::introduction(16, 0, &[2; 16]),
            Raw::introduction(16, u32::MAX, &[2; 16]),
        ] {
            let mut life = Raw::greeted(&listening);
            life.write_all(&introduction).unwrap();
            let mut rest = Vec::new();
            // A reset is an end, too.
            let _end = life.read_to_end(&mut rest);
        }
        let failed = || rig.network.counters().totals().handshakes_failed;
        wait_until("nine failures", || failed() == 9);
        let client = Rig::new(1);
        client.call(&listening.address, frame(1, "x")).unwrap();
    }

    // shows: LINE-1, LINE-2, HUB-1
    #[test]
    fn messages_that_cannot_be_end_their_connection_and_no_other() {
        for provider in PROVIDERS {
            let rig = Rig::new(1);
            let listening = rig.listen_at(&place(provider), echo());
            let client = Rig::new(1);
            let serves = || client.call(&listening.address, frame(1, "x")).unwrap();
            serves();
            let request = header(1, 0, 0);
            let mut good = Raw::connect(provider, &listening);
            good.send([good.key ^ 1, 0, 0], &request);
            good.send([good.key, 0, 0], &request);
            let reply = good.take();
            assert_eq!(reply[24..26], *b"PV", "{provider}");
            assert_eq!(rig.network.counters().totals().fabric_strays, 1);
            // What it has read, it cannot unread.
            good.send([good.key, 32, 32], &[]);
            good.send([good.key, 32, 31], &[]);
            good.wait_for_end();
            for (number, taken, bytes) in [
                (1, 0, &request[..]),
                (u64::MAX, 0, &request[..]),
                (0, 1, &request[..]),
                (0, u64::MAX, &[]),
                (0, 0, &[0xff; 32]),
            ] {
                let mut bad = Raw::connect(provider, &listening);
                bad.send([bad.key, number, taken], bytes);
                bad.wait_for_end();
            }
            serves();
        }
    }

    // shows: LINE-1
    #[test]
    fn a_peer_that_reads_nothing_costs_its_window_and_no_more() {
        let handled = Arc::new(AtomicUsize::new(0));
        let count = Arc::clone(&handled);
        let rig = Rig::with(1, |options| {
            options.reply_queue_bytes_max = 64 << 10;
            options.stall_limit = Duration::from_millis(500);
        });
        let listening = rig.listen_at(
            &place("tcp"),
            Serve(move |_, mut request: Frame| {
                count.fetch_add(1, Relaxed);
                request.payload = vec![1; 32 << 10].into();
                Handled::Now(request)
            }),
        );
        let mut raw = Raw::connect("tcp", &listening);
        let mut number = 0;
        for id in 0..200u64 {
            let request = header(id, 0, 0);
            raw.send([raw.key, number, 0], &request);
            number += request.len() as u64;
        }
        // It says never that it has read something.
        raw.wait_for_end();
        assert!(handled.load(Relaxed) < 50, "{handled:?}");
        assert_eq!(rig.network.counters().totals().peers_stalled, 1);
    }
}
