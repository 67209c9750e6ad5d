//! Byte streams over real loopback connections.

use crate::rig::{PATIENCE, Rig, raw, read_to_end};
use bytes::{Bytes, BytesMut};
use core::time::Duration;
use futures_util::FutureExt;
use pluvio_env::{Address, BoxFuture, ByteStream, Listening, Network, StreamService};
use std::io::{Read, Write};
use std::sync::{Arc, Mutex, mpsc};
use tokio::sync::Notify;

/// Gives back what comes, and notes on which cores. `END` makes it close.
#[derive(Default)]
struct EchoBytes {
    cores: Arc<Mutex<Vec<u16>>>,
}

impl StreamService for EchoBytes {
    fn serve(&self, mut stream: Box<dyn ByteStream>) -> BoxFuture<'static, ()> {
        self.cores.lock().unwrap().push(stream.peer().core.0);
        Box::pin(async move {
            let mut buffer = BytesMut::new();
            while let Ok(count) = stream.read(&mut buffer).await {
                if count == 0 || stream.write_all(&buffer).await.is_err() || &buffer[..] == b"END" {
                    return;
                }
                buffer.clear();
            }
        })
    }
}

fn listen(rig: &Rig, most: usize, service: impl StreamService + 'static) -> Listening {
    let (at, refusal) = (Address::from("127.0.0.1:0"), Bytes::from("-ERR full\r\n"));
    rig.run(|network| async move {
        network
            .listen_streams(&at, most, refusal, Arc::new(service))
            .await
    })
    .unwrap()
}

#[test]
fn bytes_come_back_however_many() {
    let rig = Rig::new(2);
    let listening = listen(&rig, 10, EchoBytes::default());
    let mut stream = raw(&listening.address);
    let sent: Vec<u8> = (0..3_000_000u32).map(|i| (i / 7) as u8).collect();
    let mut writer = stream.try_clone().unwrap();
    let to_write = sent.clone();
    let thread = std::thread::Builder::new()
        .spawn(move || writer.write_all(&to_write).unwrap())
        .unwrap();
    let mut received = vec![0; sent.len()];
    stream.read_exact(&mut received).unwrap();
    thread.join().unwrap();
    assert_eq!(received, sent);
    stream.write_all(b"END").unwrap();
    assert_eq!(read_to_end(&mut stream), b"END");
    let totals = rig.network.counters().totals();
    assert_eq!(totals.streams_accepted, 1);
    assert_eq!(
        (totals.bytes_received, totals.bytes_sent),
        (3_000_003, 3_000_003)
    );
}

// shows: ACCEPT-1
#[test]
fn connections_are_dealt_evenly_and_places_given_up_are_used_again() {
    let rig = Rig::new(3);
    let service = EchoBytes::default();
    let cores = Arc::clone(&service.cores);
    let listening = listen(&rig, 300, service);
    let mut streams: Vec<_> = (0..300).map(|_| raw(&listening.address)).collect();
    for stream in &mut streams {
        stream.write_all(b"x").unwrap();
        stream.read_exact(&mut [0]).unwrap();
    }
    for core in 0..3 {
        assert_eq!(
            cores.lock().unwrap().iter().filter(|&&c| c == core).count(),
            100
        );
    }
    let mut refused = raw(&listening.address);
    assert_eq!(read_to_end(&mut refused), b"-ERR full\r\n");
    for mut stream in streams.drain(..200) {
        stream.write_all(b"END").unwrap();
        assert_eq!(read_to_end(&mut stream), b"END");
    }
    // The last of them may not have given up its place yet; those before it have.
    for _ in 0..190 {
        let mut stream = raw(&listening.address);
        stream.write_all(b"y").unwrap();
        stream.read_exact(&mut [0]).unwrap();
        streams.push(stream);
    }
}

// shows: ACCEPT-2
#[test]
fn closing_the_port_closes_its_connections() {
    let rig = Rig::new(2);
    let listening = listen(&rig, 10, EchoBytes::default());
    let to = listening.address.clone();
    let mut streams: Vec<_> = (0..4).map(|_| raw(&to)).collect();
    for stream in &mut streams {
        stream.write_all(b"x").unwrap();
        stream.read_exact(&mut [0]).unwrap();
    }
    drop(listening);
    for stream in &mut streams {
        assert!(read_to_end(stream).is_empty());
    }
    assert!(std::net::TcpStream::connect(&*to.0).is_err());
}

/// Writes more than sockets hold, and tells whether all of it was taken.
struct Pour(mpsc::Sender<bool>);

const POURED_BYTES: usize = 64 << 20;

impl StreamService for Pour {
    fn serve(&self, mut stream: Box<dyn ByteStream>) -> BoxFuture<'static, ()> {
        let tell = self.0.clone();
        Box::pin(async move {
            let all = stream.write_all(&vec![7; POURED_BYTES]).await.is_ok();
            tell.send(all).unwrap();
        })
    }
}

#[test]
fn a_client_that_does_not_read_for_a_while_gets_everything_and_one_that_never_does_is_given_up() {
    let short = Duration::from_millis(200);
    let (tell, told) = mpsc::channel();
    let rig = Rig::with(1, |options| options.stall_limit = short);
    let listening = listen(&rig, 1, Pour(tell.clone()));
    let mut stream = raw(&listening.address);
    let clock = rig.runtime.clock();
    rig.run(|_| async move { clock.sleep(5 * short).await });
    assert_eq!(read_to_end(&mut stream).len(), POURED_BYTES);
    assert!(told.recv_timeout(PATIENCE).unwrap());
    assert_eq!(rig.network.counters().totals().peers_stalled, 0);

    let rig = Rig::with(1, |options| options.stream_stall_limit = short);
    let listening = listen(&rig, 1, Pour(tell));
    let _stream = raw(&listening.address);
    assert!(!told.recv_timeout(PATIENCE).unwrap());
    assert_eq!(rig.network.counters().totals().peers_stalled, 1);
}

/// Waits for a word, then looks without waiting.
struct Peek {
    go: Arc<Notify>,
    seen: Arc<Mutex<Vec<Option<usize>>>>,
}

impl StreamService for Peek {
    fn serve(&self, mut stream: Box<dyn ByteStream>) -> BoxFuture<'static, ()> {
        let (go, seen) = (Arc::clone(&self.go), Arc::clone(&self.seen));
        Box::pin(async move {
            let mut buffer = BytesMut::new();
            let look = |stream: &mut Box<dyn ByteStream>, buffer: &mut BytesMut| {
                let found = stream.try_read(buffer).unwrap();
                seen.lock().unwrap().push(found);
            };
            stream.read(&mut buffer).await.unwrap();
            look(&mut stream, &mut buffer);
            assert_ne!(stream.local(), stream.peer().address);
            stream.write_all(b"looked").await.unwrap();
            go.notified().await;
            // The event loop has seen by now what came before the word was given.
            tokio::task::yield_now().await;
            while stream.try_read(&mut buffer).unwrap().is_none() {
                tokio::task::yield_now().await;
            }
            stream.write_all(&buffer).await.unwrap();
        })
    }
}

#[test]
fn looking_without_waiting_finds_nothing_something_or_the_end() {
    let rig = Rig::new(1);
    let (go, seen) = (Arc::new(Notify::new()), Arc::default());
    let service = Peek {
        go: Arc::clone(&go),
        seen: Arc::clone(&seen),
    };
    let listening = listen(&rig, 1, service);
    let mut stream = raw(&listening.address);
    stream.write_all(b"first ").unwrap();
    stream.read_exact(&mut [0; 6]).unwrap();
    assert_eq!(*seen.lock().unwrap(), [None]);
    stream.write_all(b"second").unwrap();
    go.notify_one();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    assert_eq!(read_to_end(&mut stream), b"first second");
}

/// Reads to the end, and tells whether the peer was gone then. Then waits for it to be gone.
struct Watcher(mpsc::Sender<&'static str>);

impl StreamService for Watcher {
    fn serve(&self, mut stream: Box<dyn ByteStream>) -> BoxFuture<'static, ()> {
        let say = self.0.clone();
        Box::pin(async move {
            let mut buffer = BytesMut::new();
            while stream.read(&mut buffer).await.is_ok_and(|count| count > 0) {}
            let is_gone = stream.gone().now_or_never().is_some();
            say.send(if is_gone { "gone at once" } else { "ended" })
                .unwrap();
            stream.gone().await;
            say.send("gone").unwrap();
        })
    }
}

#[test]
fn a_peer_that_sends_nothing_more_is_not_gone_and_one_that_resets_is() {
    let rig = Rig::new(1);
    let (say, hear) = mpsc::channel();
    let listening = listen(&rig, 10, Watcher(say));
    let mut stream = raw(&listening.address);
    stream.write_all(b"x").unwrap();
    stream.shutdown(std::net::Shutdown::Write).unwrap();
    assert_eq!(hear.recv_timeout(PATIENCE), Ok("ended"));
    let linger = Some(Duration::ZERO);
    socket2::SockRef::from(&stream).set_linger(linger).unwrap();
    drop(stream);
    assert_eq!(hear.recv_timeout(PATIENCE), Ok("gone"));
}
