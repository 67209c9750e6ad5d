//! Calls over real UDP sockets, with and without a link that loses, beside those of
//! `every_transport`.

use crate::rig::{Lcg, Rig, SIZES, Serve, echo, frame};
use core::time::Duration;
use pluvio_env::{Address, CallError, Handled, Listening, Network, NoConnection};
use std::collections::VecDeque;
use std::net::UdpSocket;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Mutex};

const PORT: &str = "udp:127.0.0.1:0";

fn listen(rig: &Rig, service: impl pluvio_env::Service + 'static) -> Listening {
    rig.listen_at(PORT, service)
}

/// `host:port` of a port of datagrams.
fn place(address: &Address) -> String {
    address.0.strip_prefix("udp:").unwrap().to_owned()
}

#[test]
fn the_largest_frame_passes_and_a_larger_one_does_not() {
    let rig = Rig::new(1);
    let listening = listen(&rig, echo());
    let most = (16 << 20) + (64 << 10);
    let largest = frame(1, vec![7; most]);
    assert_eq!(rig.call(&listening.address, largest.clone()), Ok(largest));
    let error = rig.call(&listening.address, frame(1, vec![7; most + 1]));
    assert_eq!(error, Err(CallError::TooLarge(most + 1, most)));
}

#[test]
fn nobody_listening_is_refused_at_once() {
    let rig = Rig::new(1);
    let to = listen(&rig, echo()).address;
    let refused = CallError::Unreachable(to.clone(), NoConnection::Refused);
    // The port is freed when its task has ended.
    while rig.call(&to, frame(1, "x")) != Err(refused.clone()) {}
    let error = rig.call(&Address::from("udp:no port:here"), frame(1, "x"));
    assert!(
        matches!(error, Err(CallError::Unreachable(..))),
        "{error:?}"
    );
}

#[test]
fn a_port_that_answers_nothing_is_unreachable_in_words() {
    let rig = Rig::with(1, |options| {
        options.connect_limit = Duration::from_millis(300)
    });
    let silent = UdpSocket::bind("127.0.0.1:0").unwrap();
    let to = Address::from(format!("udp:{}", silent.local_addr().unwrap()).as_str());
    let error = rig.call(&to, frame(1, "x")).unwrap_err().to_string();
    assert!(error.contains("no answer within 300ms"), "{error}");
}

#[test]
fn a_port_in_use_is_named_with_what_to_do_and_streams_are_refused() {
    let rig = Rig::new(2);
    let listening = listen(&rig, echo());
    for (address, words) in [
        (&*listening.address.0, "already in use"),
        ("udp:192.0.2.1:0", "not an address of this machine"),
        ("udp:0.0.0.0:0", "the others reach"),
    ] {
        let address = Address::from(address);
        let error = rig.run(|network| async move {
            let listening = network.listen(&address, Arc::new(echo())).await;
            listening.err().unwrap()
        });
        assert!(error.message.contains(words), "{error}");
    }
}

// shows: NET-2
#[test]
fn garbage_at_a_port_is_counted_and_others_are_served() {
    let rig = Rig::new(1);
    let listening = listen(&rig, echo());
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    socket.connect(place(&listening.address)).unwrap();
    for bytes in [&b"GET / HTTP/1.1"[..], b"", &[0xff; 2_000], b"PU\x01\x04"] {
        socket.send(bytes).unwrap();
    }
    rig.call(&listening.address, frame(1, "x")).unwrap();
    let totals = rig.network.counters().totals();
    assert_eq!(totals.datagrams_garbage, 4);
    assert_eq!(totals.requests_received, 1);
}

#[test]
fn a_session_too_many_is_told_so() {
    let server = Rig::with(1, |options| options.connections_max = 1);
    let listening = listen(&server, echo());
    let to = &listening.address;
    let (first, second) = (Rig::new(1), Rig::new(1));
    first.call(to, frame(1, "x")).unwrap();
    let error = second.call(to, frame(1, "x")).unwrap_err().to_string();
    assert!(
        error.contains("it refused: too many connections: this server takes 1"),
        "{error}"
    );
    // The place of one that leaves is free once the server has heard of it.
    drop(first);
    while let Err(error) = second.call(to, frame(1, "x")) {
        assert!(matches!(error, CallError::Unreachable(..)), "{error}");
    }
}

/// Stands between one client and a server. It loses a fifth of the datagrams, doubles a tenth, and
/// holds some back until others have overtaken them.
struct BadLink {
    address: Address,
    stop: Arc<AtomicBool>,
    thread: Option<std::thread::JoinHandle<()>>,
}

impl BadLink {
    fn before(server: &Address) -> Self {
        let front = UdpSocket::bind("127.0.0.1:0").unwrap();
        let back = UdpSocket::bind("127.0.0.1:0").unwrap();
        back.connect(place(server)).unwrap();
        for socket in [&front, &back] {
            let pause = Duration::from_millis(1);
            socket.set_read_timeout(Some(pause)).unwrap();
        }
        let address = Address::from(format!("udp:{}", front.local_addr().unwrap()).as_str());
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&stop);
        let thread = std::thread::Builder::new().spawn(move || {
            let client = Mutex::new(None);
            let ways = [
                Way::new(1, |buffer| {
                    let (count, from) = front.recv_from(buffer).ok()?;
                    *client.lock().unwrap() = Some(from);
                    Some(count)
                }),
                Way::new(2, |buffer| back.recv(buffer).ok()),
            ];
            let [mut there, mut here] = ways;
            while !stopped.load(SeqCst) {
                there.pass(|datagram| drop(back.send(datagram)));
                let client = *client.lock().unwrap();
                here.pass(|datagram| drop(front.send_to(datagram, client.unwrap())));
            }
        });
        Self {
            address,
            stop,
            thread: Some(thread.unwrap()),
        }
    }
}

impl Drop for BadLink {
    fn drop(&mut self) {
        self.stop.store(true, SeqCst);
        self.thread.take().unwrap().join().unwrap();
    }
}

/// Takes the next datagram that has arrived, and gives its length.
type Receive<'a> = dyn FnMut(&mut [u8]) -> Option<usize> + 'a;

/// One direction of a bad link.
struct Way<'a> {
    random: Lcg,
    receive: Box<Receive<'a>>,
    held: VecDeque<Vec<u8>>,
}

impl<'a> Way<'a> {
    fn new(seed: u64, receive: impl FnMut(&mut [u8]) -> Option<usize> + 'a) -> Self {
        Self {
            random: Lcg(seed),
            receive: Box::new(receive),
            held: VecDeque::new(),
        }
    }

    /// Passes some datagrams on.
    fn pass(&mut self, mut send: impl FnMut(&[u8])) {
        let mut buffer = [0; 2_000];
        for _ in 0..20 {
            let Some(count) = (self.receive)(&mut buffer) else {
                break;
            };
            match self.random.below(100) {
                0..20 => {}
                20..30 => {
                    send(&buffer[..count]);
                    send(&buffer[..count]);
                }
                30..45 => self.held.push_back(buffer[..count].to_vec()),
                _ => send(&buffer[..count]),
            }
        }
        while let Some(held) = self.held.pop_back() {
            send(&held);
        }
    }
}

// shows: NET-4
#[test]
fn calls_over_a_link_that_loses_doubles_and_reorders_are_executed_once_and_answered() {
    let server = Rig::new(1);
    let handled = Arc::new(AtomicUsize::new(0));
    let listening = listen(&server, {
        let handled = Arc::clone(&handled);
        Serve(move |_, request| {
            handled.fetch_add(1, SeqCst);
            Handled::Now(request)
        })
    });
    let link = BadLink::before(&listening.address);
    let client = Rig::new(1);
    client.call_from_all_cores(&link.address, 150, SIZES);
    assert_eq!(handled.load(SeqCst), 150);
    let totals = client.network.counters().totals();
    assert!(
        totals.datagrams_lost > 0 && totals.datagrams_repeated > 0,
        "{totals:?}"
    );
    assert_eq!((totals.connects, totals.calls_lost), (1, 0));
}

/// Needs a network namespace of its own in which nftables loses a fifth of all datagrams.
mod needs_lossy_link {
    use super::*;
    use std::process::Command;

    /// Bytes of a message that is cut into many hundreds.
    const LARGE: usize = 1 << 20;
    const INSIDE: &str = "PLUVIO_TEST_INSIDE_LOSSY_LINK";
    /// Run by a shell in the namespace, before the test.
    const PREPARE: &str = "ip link set lo up && nft -f - <<'END' && exec \"$@\"
table inet lossy {
  chain input {
    type filter hook input priority 0
    meta l4proto udp numgen random mod 100 < 20 drop
  }
}
END";

    /// Runs this test once more in a namespace of its own; gives whether this is that run.
    fn is_inside(test: &str) -> bool {
        if std::env::var_os(INSIDE).is_some() {
            return true;
        }
        let output = Command::new("unshare")
            .args(["--net", "sh", "-c", PREPARE, "sh"])
            .arg(std::env::current_exe().unwrap())
            .args(["--exact", test, "--nocapture"])
            .env(INSIDE, "1")
            .output()
            .unwrap();
        // Not shown unless it failed: its count would be taken for one more.
        let said = [output.stdout, output.stderr].concat();
        let said = String::from_utf8_lossy(&said);
        assert!(output.status.success(), "in the namespace: {said}");
        false
    }

    // shows: NET-4
    #[test]
    fn calls_over_a_link_that_loses_a_fifth_are_executed_once_and_answered() {
        let name = "datagrams::needs_lossy_link::calls_over_a_link_that_loses_a_fifth_are_executed_once_and_answered";
        if !is_inside(name) {
            return;
        }
        let rig = Rig::new(2);
        let handled = Arc::new(AtomicUsize::new(0));
        let listening = listen(&rig, {
            let handled = Arc::clone(&handled);
            Serve(move |_, request| {
                handled.fetch_add(1, SeqCst);
                Handled::Now(request)
            })
        });
        // Where a fifth is lost, seldom are more than two datagrams under way. Large ones take
        // long.
        let sizes = [0, 1, 100, 1_000, 5_000, 20_000];
        rig.call_from_all_cores(&listening.address, 40, sizes);
        // The relay makes some late, and overtaken.
        let link = BadLink::before(&listening.address);
        let client = Rig::new(1);
        client.call_from_all_cores(&link.address, 20, sizes);
        assert_eq!(handled.load(SeqCst), 100);
        // Large both ways.
        let large: Vec<u8> = (0..LARGE).map(|at| (at * 31 / 7) as u8).collect();
        let request = frame(7, large);
        assert_eq!(rig.call(&listening.address, request.clone()), Ok(request));
        assert_eq!(handled.load(SeqCst), 101);
        let totals = rig.network.counters().totals();
        assert!(totals.datagrams_lost > 20, "{totals:?}");
        assert_eq!(totals.calls_lost, 0);
    }
}
