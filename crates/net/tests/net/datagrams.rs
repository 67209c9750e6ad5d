//! Calls over real UDP sockets, with and without a link that loses.

use crate::rig::{Lcg, PATIENCE, Rig, Serve, echo, frame};
use core::time::Duration;
use futures_util::future::{join, join_all, select};
use pluvio_env::{Address, CallError, Frame, Handled, Listening, Network, NoConnection};
use pluvio_units::CoreId;
use std::collections::VecDeque;
use std::net::UdpSocket;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use tokio::sync::{Notify, Semaphore, oneshot};

const PORT: &str = "udp:127.0.0.1:0";

fn listen(rig: &Rig, service: impl pluvio_env::Service + 'static) -> Listening {
    rig.listen_at(PORT, service)
}

/// `host:port` of a port of datagrams.
fn place(address: &Address) -> String {
    address.0.strip_prefix("udp:").unwrap().to_owned()
}

/// Calls of all sizes from each core at once, each checked against its reply.
fn call_from_all_cores(rig: &Rig, to: &Address, calls: u16) {
    call_with_sizes(rig, to, calls, [0, 1, 100, 5_000, 70_000, 300_000]);
}

/// The same, with at most one of these sizes of payloads.
fn call_with_sizes(rig: &Rig, to: &Address, calls: u16, sizes: [usize; 6]) {
    let (to, tasks) = (to.clone(), rig.runtime.tasks());
    rig.run(|network| async move {
        let mut ends = Vec::new();
        for core in 0..tasks.cores() {
            let (network, to) = (Arc::clone(&network), to.clone());
            let (give, take) = oneshot::channel();
            ends.push(take);
            tasks.spawn(CoreId(core), "test", async move {
                let mut random = Lcg(u64::from(core));
                let calls = (0..calls).map(|opcode| {
                    let most = sizes[random.below(6)];
                    let request = Frame {
                        opcode,
                        meta: vec![opcode as u8; random.below(200)].into(),
                        payload: vec![!opcode as u8; random.below(most + 1)].into(),
                    };
                    let (network, to) = (&network, &to);
                    async move {
                        let reply = network.call(to, request.clone(), PATIENCE).await;
                        assert_eq!(reply.unwrap(), request);
                    }
                });
                join_all(calls).await;
                give.send(()).unwrap();
            });
        }
        for end in ends {
            end.await.unwrap();
        }
    });
}

// shows: NET-4
#[test]
fn many_concurrent_calls_of_all_sizes_get_their_own_replies() {
    let rig = Rig::new(2);
    let listening = listen(
        &rig,
        Serve(|_, request: Frame| {
            if request.opcode.is_multiple_of(3) {
                Handled::Later(Box::pin(async move {
                    for _ in 0..request.opcode % 7 {
                        tokio::task::yield_now().await;
                    }
                    request
                }))
            } else {
                Handled::Now(request)
            }
        }),
    );
    call_from_all_cores(&rig, &listening.address, 400);
    let totals = rig.network.counters().totals();
    assert_eq!(totals.connects, 2, "one session per core and peer");
    assert_eq!(
        (totals.requests_received, totals.replies_received),
        (800, 800)
    );
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
fn frames_over_the_limit_are_refused_on_the_way_out_and_the_session_lives() {
    let small = Rig::with(1, |options| options.frame_bytes_max = 1_000);
    let rig = Rig::new(1);
    let listening = listen(
        &small,
        Serve(|_, request: Frame| Handled::Now(frame(request.opcode, vec![1; 10 * request.len()]))),
    );
    let to = &listening.address;
    assert_eq!(rig.call(to, frame(1, vec![0; 100])).unwrap().len(), 1_000);
    let error = rig.call(to, frame(1, vec![0; 1_001]));
    assert_eq!(error, Err(CallError::TooLarge(1_001, 1_000)), "the peer's");
    let error = rig.call(to, frame(1, vec![0; 101]));
    assert_eq!(error, Err(CallError::TooLarge(1_010, 1_000)), "the reply");
    assert_eq!(rig.call(to, frame(1, vec![0; 10])).unwrap().len(), 100);
    assert_eq!(rig.network.counters().totals().connects, 1);
}

// shows: NET-4
#[test]
fn a_port_that_closes_ends_its_calls_as_lost() {
    let rig = Rig::new(1);
    let arrived = Arc::new(Notify::new());
    let handled = Arc::new(AtomicUsize::new(0));
    let listening = listen(&rig, {
        let (arrived, handled) = (Arc::clone(&arrived), Arc::clone(&handled));
        Serve(move |_, _| {
            handled.fetch_add(1, SeqCst);
            arrived.notify_one();
            Handled::Later(Box::pin(core::future::pending()))
        })
    });
    let to = listening.address.clone();
    let outcome = rig.run(|network| async move {
        let call = network.call(&to, frame(1, "x"), PATIENCE);
        let breaking = async {
            arrived.notified().await;
            drop(listening);
        };
        join(call, breaking).await.0
    });
    assert!(matches!(outcome, Err(CallError::Lost(_))), "{outcome:?}");
    assert_eq!(handled.load(SeqCst), 1);
}

// shows: CALL-2
#[test]
fn calls_work_again_after_the_server_restarted_on_its_port() {
    let client = Rig::new(1);
    let server = Rig::new(2);
    let mut listening = listen(&server, echo());
    let to = listening.address.clone();
    for round in 0..5 {
        let reply = client.call(&to, frame(round, "hello")).unwrap();
        assert_eq!(reply.opcode, round);
        drop(listening);
        let down = client.call(&to, frame(9, "nobody there")).unwrap_err();
        assert!(
            matches!(down, CallError::Unreachable(..) | CallError::Lost(_)),
            "{down}"
        );
        listening = server.listen_at(&to.0, echo());
    }
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

// shows: CALL-1
#[test]
fn a_late_reply_is_dropped_and_the_session_goes_on() {
    let rig = Rig::new(1);
    let release = Arc::new(Notify::new());
    let listening = listen(&rig, {
        let release = Arc::clone(&release);
        Serve(move |_, request: Frame| {
            if request.opcode == 0 {
                return Handled::Now(request);
            }
            let release = Arc::clone(&release);
            Handled::Later(Box::pin(async move {
                release.notified().await;
                request
            }))
        })
    });
    rig.run(|network| async move {
        let to = &listening.address;
        let limit = Duration::from_millis(30);
        let first = network.call(to, frame(0, "connects"), PATIENCE).await;
        first.unwrap();
        let late = network.call(to, frame(1, "waits"), limit).await;
        assert_eq!(late, Err(CallError::TimedOut(to.clone(), limit)));
        release.notify_one();
        while network.counters().totals().replies_late == 0 {
            let next = network.call(to, frame(0, "goes on"), PATIENCE).await;
            next.unwrap();
        }
        assert_eq!(network.counters().totals().connects, 1);
    });
}

// shows: NET-5
#[test]
fn a_begun_request_is_finished_although_its_caller_is_gone() {
    let server = Rig::new(1);
    let (release, finished) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
    let arrived = Arc::new(Notify::new());
    let listening = listen(&server, {
        let (release, finished) = (Arc::clone(&release), Arc::clone(&finished));
        let arrived = Arc::clone(&arrived);
        Serve(move |_, request| {
            arrived.notify_one();
            let (release, finished) = (Arc::clone(&release), Arc::clone(&finished));
            Handled::Later(Box::pin(async move {
                release.notified().await;
                finished.notify_one();
                request
            }))
        })
    });
    let to = listening.address.clone();
    {
        let client = Rig::new(1);
        client.run(|network| async move {
            let call = network.call(&to, frame(1, "x"), PATIENCE);
            select(call, Box::pin(arrived.notified())).await;
        });
        client.runtime.shutdown(PATIENCE);
    }
    server.run(|_| async move {
        release.notify_one();
        finished.notified().await;
    });
}

// shows: NET-3
#[test]
fn the_service_never_holds_more_requests_than_the_bound() {
    let rig = Rig::with(1, |options| options.requests_max = 4);
    let (held, most) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let listening = listen(&rig, {
        let (held, most) = (Arc::clone(&held), Arc::clone(&most));
        Serve(move |_, request| {
            most.fetch_max(held.fetch_add(1, SeqCst) + 1, SeqCst);
            let held = Arc::clone(&held);
            Handled::Later(Box::pin(async move {
                tokio::task::yield_now().await;
                held.fetch_sub(1, SeqCst);
                request
            }))
        })
    });
    rig.run(|network| async move {
        let calls = (0..200).map(|n| network.call(&listening.address, frame(n, "x"), PATIENCE));
        for reply in join_all(calls).await {
            reply.unwrap();
        }
    });
    let most = most.load(SeqCst);
    assert!((1..=4).contains(&most), "{most}");
}

// shows: NET-3
#[test]
fn calls_over_the_bound_wait_for_room_and_all_end() {
    let rig = Rig::with(1, |options| {
        options.calls_max = 3;
        options.send_queue_bytes_max = 1_000;
    });
    let gate = Arc::new(Semaphore::new(0));
    let listening = listen(&rig, {
        let gate = Arc::clone(&gate);
        Serve(move |_, request| {
            let gate = Arc::clone(&gate);
            Handled::Later(Box::pin(async move {
                gate.acquire().await.unwrap().forget();
                request
            }))
        })
    });
    rig.run(|network| async move {
        let calls =
            (0..100).map(|n| network.call(&listening.address, frame(n, vec![7; 900]), PATIENCE));
        let open = async {
            for _ in 0..100 {
                gate.add_permits(1);
                tokio::task::yield_now().await;
            }
        };
        for reply in join(join_all(calls), open).await.0 {
            reply.unwrap();
        }
    });
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
    call_from_all_cores(&client, &link.address, 150);
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
        call_with_sizes(&rig, &listening.address, 40, sizes);
        // The relay makes some late, and overtaken.
        let link = BadLink::before(&listening.address);
        let client = Rig::new(1);
        call_with_sizes(&client, &link.address, 20, sizes);
        assert_eq!(handled.load(SeqCst), 100);
        let totals = rig.network.counters().totals();
        assert!(totals.datagrams_lost > 20, "{totals:?}");
        assert_eq!(totals.calls_lost, 0);
    }
}
