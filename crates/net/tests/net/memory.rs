//! The memory of all connections of a process has one bound.

use crate::rig::{PATIENCE, Rig, frame, raw_welcomed, wait_until};
use bytes::Bytes;
use core::future::poll_fn;
use core::task::{Poll, Waker};
use core::time::Duration;
use pluvio_env::{Address, CallError, Frame, Handled, Network, Peer, Service, Traffic};
use pluvio_units::crc32c;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::{Arc, Barrier, Mutex};
use std::thread;

/// Asks for a reply of the largest size.
const LARGE_REPLY: u16 = 1;
/// Sent by servers alone.
const OF_SERVERS: u16 = 2;
/// Sent by servers, and answered always.
const REPLICATION: u16 = 3;
/// Gives the payload's length back.
const COUNT: u16 = 4;

const FRAME: usize = 1 << 20;
/// Sixteen frames and what is around them, at least.
const BOUND: usize = 24 << 20;
/// What the connections of one quarter may hold: of clients, in requests or in replies. To it comes
/// what each connection need not count, and what a turn of each core may add (NETMEM-1).
const QUARTER: usize = BOUND / 4 + PEERS * (16 << 10) + 2 * (FRAME + (256 << 10));
const PEERS: usize = 48;

struct Desk;

impl Service for Desk {
    fn handle(&self, _: Peer, request: Frame) -> Handled {
        Handled::Now(match request.opcode {
            LARGE_REPLY => frame(LARGE_REPLY, vec![7; FRAME]),
            opcode => {
                let count = request.payload.len().to_le_bytes();
                frame(opcode, Bytes::copy_from_slice(&count))
            }
        })
    }

    fn traffic(&self, opcode: u16, _: &[u8]) -> Traffic {
        Traffic {
            is_of_servers: opcode == OF_SERVERS || opcode == REPLICATION,
            never_waits: opcode == REPLICATION,
        }
    }
}

/// A process whose connections have little memory. Peers that hold some may stand still so long.
fn rig(still: Duration) -> Rig {
    Rig::with(2, |options| {
        options.frame_bytes_max = FRAME;
        options.reply_queue_bytes_max = 4 * FRAME;
        options.connections_bytes_max = BOUND;
        options.standstill_limit = still;
    })
}

/// As good as for ever.
const NEVER: Duration = Duration::from_secs(600);

fn peer(to: &Address) -> TcpStream {
    let stream = raw_welcomed(to);
    stream.set_write_timeout(Some(PATIENCE)).unwrap();
    stream
}

/// The header of a request of this kind.
fn header(opcode: u16, payload: usize) -> [u8; 32] {
    let mut bytes = [0; 32];
    bytes[..4].copy_from_slice(&[b'P', b'V', 1, 0]);
    bytes[4..6].copy_from_slice(&opcode.to_le_bytes());
    bytes[20..24].copy_from_slice(&u32::try_from(payload).unwrap().to_le_bytes());
    let checksum = crc32c(&[&bytes[..28]]);
    bytes[28..].copy_from_slice(&checksum.to_le_bytes());
    bytes
}

/// Sends the beginning of a frame of the largest size, as far as it is taken. Gives how many bytes
/// of the body are on their way.
fn begin(opcode: u16, to: &Address, bytes: usize) -> (TcpStream, usize) {
    let mut stream = peer(to);
    stream.write_all(&header(opcode, FRAME)).unwrap();
    stream.set_nonblocking(true).unwrap();
    let piece = vec![1; bytes];
    let mut sent = 0;
    while sent < bytes
        && let Ok(count) = stream.write(&piece[sent..])
    {
        sent += count;
    }
    stream.set_nonblocking(false).unwrap();
    (stream, sent)
}

/// Sends many requests for large replies, and takes none.
fn ask_and_take_nothing(opcode: u16, to: &Address) -> TcpStream {
    let mut stream = peer(to);
    let ask = header(opcode, 0);
    stream.write_all(&ask.repeat(64)).unwrap();
    stream
}

fn used(rig: &Rig) -> usize {
    rig.network.connections_memory().used
}

fn call_within(
    rig: &Rig,
    to: &Address,
    request: Frame,
    limit: Duration,
) -> Result<Frame, CallError> {
    let to = to.clone();
    rig.run(|network| async move { network.call(&to, request, limit).await })
}

/// A large request of another client.
fn is_served(rig: &Rig, to: &Address, opcode: u16) {
    let reply = rig.call(to, frame(opcode, vec![1; FRAME])).unwrap();
    assert_eq!(reply.payload[..], FRAME.to_le_bytes());
}

// shows: NETMEM-1, NETMEM-2
#[test]
fn frames_that_come_in_part_hold_no_more_than_their_share_and_others_are_served() {
    let rig = rig(Duration::from_millis(200));
    let listening = rig.listen(Desk);
    let to = listening.address.clone();
    let mut most = 0;
    let mut halves = Vec::new();
    for _ in 0..PEERS {
        halves.push(begin(COUNT, &to, FRAME - 1));
        most = most.max(used(&rig));
    }
    for _ in 0..20 {
        is_served(&rig, &to, COUNT);
        most = most.max(used(&rig));
    }
    let totals = rig.network.counters().totals();
    assert!(most <= QUARTER, "{most} of {QUARTER}");
    assert!(most >= FRAME, "{most}: nothing was counted");
    assert!(
        totals.connections_evicted > 0 && totals.connections_waited > 0,
        "{totals:?}"
    );
    assert_eq!(totals.frames_overdue, 0, "nobody else closed them");
    drop(halves);
    wait_until("the end of all that was held", || used(&rig) == 0);
}

// shows: NETMEM-1, NETMEM-2
#[test]
fn replies_that_nobody_takes_hold_no_more_than_their_share_and_others_are_served() {
    let rig = rig(Duration::from_millis(200));
    let listening = rig.listen(Desk);
    let to = listening.address.clone();
    let mut most = 0;
    let mut lazy = Vec::new();
    for _ in 0..PEERS {
        lazy.push(ask_and_take_nothing(LARGE_REPLY, &to));
        most = most.max(used(&rig));
    }
    // The kernel takes replies of each, so only a moment shows the memory full.
    wait_until("memory that is scarce", || used(&rig) >= BOUND / 8);
    for _ in 0..20 {
        let reply = rig.call(&to, frame(LARGE_REPLY, "")).unwrap();
        assert_eq!(reply.payload.len(), FRAME);
        most = most.max(used(&rig));
    }
    let totals = rig.network.counters().totals();
    assert!(most <= QUARTER, "{most} of {QUARTER}");
    assert_eq!(totals.peers_stalled, 0, "nobody else closed them");
    drop(lazy);
    wait_until("the end of all that was held", || used(&rig) == 0);
}

/// Nobody is closed here, so clients wait for ever. Servers do not notice.
#[test]
fn servers_wait_for_no_memory_that_clients_hold() {
    let rig = rig(NEVER);
    let listening = rig.listen(Desk);
    let to = listening.address.clone();
    let _halves: Vec<_> = (0..PEERS).map(|_| begin(COUNT, &to, FRAME - 1)).collect();
    let _lazy: Vec<_> = (0..PEERS)
        .map(|_| ask_and_take_nothing(LARGE_REPLY, &to))
        .collect();
    wait_until("memory that is scarce", || used(&rig) >= BOUND / 8);
    // A connection that was a server's before.
    for _ in 0..10 {
        is_served(&rig, &to, OF_SERVERS);
        is_served(&rig, &to, REPLICATION);
    }
    let short = Duration::from_millis(300);
    let client = Rig::with(1, |options| options.frame_bytes_max = FRAME);
    let waits = call_within(&client, &to, frame(COUNT, vec![1; FRAME]), short);
    assert!(waits.is_err(), "{waits:?}");
    assert_eq!(rig.network.counters().totals().connections_evicted, 0);
}

/// Also while replies that other servers do not take fill the memory of servers.
#[test]
fn replication_waits_for_no_room_for_replies() {
    let rig = rig(NEVER);
    let listening = rig.listen(Servers);
    let to = listening.address.clone();
    let _lazy: Vec<_> = (0..PEERS)
        .map(|_| ask_and_take_nothing(OF_SERVERS, &to))
        .collect();
    wait_until("memory that is scarce", || used(&rig) >= BOUND / 8);
    for _ in 0..10 {
        is_served(&rig, &to, REPLICATION);
    }
}

/// As [`Desk`], with large replies to servers.
struct Servers;

impl Service for Servers {
    fn handle(&self, peer: Peer, request: Frame) -> Handled {
        match request.opcode {
            OF_SERVERS => Handled::Now(frame(OF_SERVERS, vec![7; FRAME])),
            _ => Desk.handle(peer, request),
        }
    }

    fn traffic(&self, opcode: u16, begun: &[u8]) -> Traffic {
        Desk.traffic(opcode, begun)
    }
}

/// None of them stands still by its own fault, and none is closed.
// shows: NETMEM-3
#[test]
fn frames_that_all_begin_at_once_are_all_read_to_their_end() {
    let rig = rig(NEVER);
    let listening = rig.listen(Desk);
    let to = listening.address.clone();
    let begun = Arc::new(Barrier::new(PEERS));
    let peers = (0..PEERS).map(|_| {
        let (to, begun) = (to.clone(), Arc::clone(&begun));
        let run = move || {
            let (mut stream, sent) = begin(COUNT, &to, FRAME / 3);
            begun.wait();
            stream.write_all(&vec![1; FRAME - sent]).unwrap();
            let mut reply = [0; 40];
            stream.read_exact(&mut reply).unwrap();
            assert_eq!(reply[32..], FRAME.to_le_bytes());
        };
        thread::Builder::new().spawn(run).unwrap()
    });
    for peer in peers.collect::<Vec<_>>() {
        peer.join().unwrap();
    }
    let totals = rig.network.counters().totals();
    assert_eq!(totals.connections_evicted, 0, "{totals:?}");
    assert!(totals.connections_waited > 0, "{totals:?}");
    wait_until("the end of all that was held", || used(&rig) == 0);
}

/// Connections that wait for room for a reply hold hardly more than the request that waits.
// shows: NETMEM-1
#[test]
fn requests_that_wait_for_room_for_replies_hold_no_buffers() {
    const WAITING: usize = 250;
    // A connection that takes no more requests has 64 KiB of replies at least.
    const LAZY: usize = BOUND / 4 / (64 << 10) + 16;
    let rig = rig(NEVER);
    let listening = rig.listen(Desk);
    let to = listening.address.clone();
    let _lazy: Vec<_> = (0..LAZY)
        .map(|_| ask_and_take_nothing(LARGE_REPLY, &to))
        .collect();
    wait_until("replies that fill their quarter", || {
        used(&rig) >= BOUND / 4
    });
    let before = used(&rig);
    let waited = || rig.network.counters().totals().connections_waited;
    let waited_before = waited();
    let _waiting: Vec<_> = (0..WAITING)
        .map(|_| {
            let mut stream = peer(&to);
            stream.write_all(&header(COUNT, 0)).unwrap();
            stream
        })
        .collect();
    wait_until("requests that wait", || {
        waited() >= waited_before + WAITING as u64
    });
    let grown = used(&rig).saturating_sub(before);
    let most = BOUND / 4 + WAITING * (16 << 10);
    assert!(grown <= most, "{grown} of {most}");
}

/// Asks for a reply of the largest size, which comes when the service is told so.
const LARGE_LATER: u16 = 5;

/// As [`Desk`]; holds replies back until it is told.
#[derive(Clone, Default)]
struct Later(Arc<Mutex<Told>>);

#[derive(Default)]
struct Told {
    /// Replies that may be made.
    go: usize,
    asked: usize,
    waiting: Vec<Waker>,
}

impl Later {
    /// Lets `count` more replies be made.
    fn go(&self, count: usize) {
        let mut told = self.0.lock().unwrap();
        told.go += count;
        told.waiting.drain(..).for_each(Waker::wake);
    }

    fn asked(&self) -> usize {
        self.0.lock().unwrap().asked
    }
}

impl Service for Later {
    fn handle(&self, peer: Peer, request: Frame) -> Handled {
        if request.opcode != LARGE_LATER {
            return Desk.handle(peer, request);
        }
        let told = Arc::clone(&self.0);
        told.lock().unwrap().asked += 1;
        Handled::Later(Box::pin(poll_fn(move |cx| {
            let mut told = told.lock().unwrap();
            if told.go > 0 {
                told.go -= 1;
                return Poll::Ready(frame(LARGE_LATER, vec![7; FRAME]));
            }
            told.waiting.push(cx.waker().clone());
            Poll::Pending
        })))
    }
}

/// Also where replies are made long after their requests were taken: all at once, or one by one.
// shows: NETMEM-1
#[test]
fn replies_that_come_later_hold_no_more_than_their_share() {
    const LAZY: usize = 4;
    const QUEUE: usize = FRAME / 2;
    for at_a_time in [LAZY * 64, 1] {
        let rig = Rig::with(2, |options| {
            options.frame_bytes_max = FRAME;
            options.reply_queue_bytes_max = QUEUE;
            options.connections_bytes_max = BOUND;
            options.standstill_limit = NEVER;
        });
        let service = Later::default();
        let listening = rig.listen(service.clone());
        let to = listening.address.clone();
        let _lazy: Vec<_> = (0..LAZY)
            .map(|_| ask_and_take_nothing(LARGE_LATER, &to))
            .collect();
        wait_until("all requests", || service.asked() == LAZY * 64);
        let mut most = 0;
        for _ in (0..LAZY * 64).step_by(at_a_time) {
            service.go(at_a_time);
            for _ in 0..200_000 / (LAZY * 64) * at_a_time {
                most = most.max(used(&rig));
            }
        }
        // Each may leave eight queues and a frame, and takes a queue and a frame in a turn.
        let of_late_ones = QUARTER + LAZY * (9 * QUEUE + 2 * FRAME);
        assert!(most <= of_late_ones, "{most} of {of_late_ones}");
        wait_until("connections that are closed", || {
            rig.network.counters().totals().connections_evicted > 0
        });
    }
}

/// A peer that takes no replies is left unread, which is its own doing. So the frame
/// that it has begun gives way to others.
// shows: NETMEM-3
#[test]
fn frames_of_peers_that_take_no_replies_give_way() {
    const REPLIES: usize = 12;
    let rig = Rig::with(2, |options| {
        options.frame_bytes_max = FRAME;
        options.reply_queue_bytes_max = FRAME;
        options.connections_bytes_max = BOUND;
        options.standstill_limit = Duration::from_millis(200);
        // Such a peer may take a byte now and then.
        options.stall_limit = NEVER;
    });
    let service = Later::default();
    let listening = rig.listen(service.clone());
    let to = listening.address.clone();
    let _halves: Vec<_> = (0..12)
        .map(|_| {
            let mut stream = peer(&to);
            let asks = header(LARGE_LATER, 0).repeat(REPLIES);
            stream.write_all(&asks).unwrap();
            stream.write_all(&header(COUNT, FRAME)).unwrap();
            stream.set_nonblocking(true).unwrap();
            let piece = vec![1; FRAME / 2];
            let mut sent = 0;
            while sent < piece.len()
                && let Ok(count) = stream.write(&piece[sent..])
            {
                sent += count;
            }
            stream
        })
        .collect();
    wait_until("all requests", || service.asked() == 12 * REPLIES);
    wait_until("frames that hold their quarter", || {
        used(&rig) >= BOUND / 4 - FRAME
    });
    service.go(12 * REPLIES);
    let client = Rig::with(1, |options| options.frame_bytes_max = FRAME);
    let limit = Duration::from_secs(10);
    let served = call_within(&client, &to, frame(COUNT, vec![1; FRAME]), limit);
    assert!(served.is_ok(), "{served:?}");
}
