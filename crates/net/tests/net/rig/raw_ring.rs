//! One end of a connection over rings, written by hand: with plain reads and writes of the memory
//! file, one store at a time.

use super::{PATIENCE, hello, read_exact_hello};
use rustix::fs::{MemfdFlags, SealFlags};
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags,
};
use std::fs::File;
use std::io::{IoSlice, IoSliceMut, Read, Write};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::thread::JoinHandle;

const HEAD: u64 = 4096;
const CONTROL: u64 = 256;
const CONSUMER: u64 = 128;

/// The side that connected.
pub struct RawRing {
    socket: UnixStream,
    file: File,
    capacity: u64,
    /// Of the own ring.
    tail: u64,
    /// Of the other ring.
    head: u64,
    taken: Vec<u8>,
}

impl RawRing {
    pub fn connect(path: &str) -> Self {
        let mut socket = UnixStream::connect(path).unwrap();
        socket.set_read_timeout(Some(PATIENCE)).unwrap();
        socket.write_all(&hello(1, 1)).unwrap();
        read_exact_hello(&mut socket);
        let mut message = [0; 8];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let received = rustix::net::recvmsg(
            &socket,
            &mut [IoSliceMut::new(&mut message)],
            &mut control,
            RecvFlags::CMSG_CLOEXEC,
        );
        assert_eq!(received.unwrap().bytes, 8);
        let file = control
            .drain()
            .find_map(|part| match part {
                RecvAncillaryMessage::ScmRights(mut files) => files.next(),
                _ => None,
            })
            .unwrap();
        Self {
            socket,
            file: file.into(),
            capacity: u64::from(u32::from_le_bytes(message[..4].try_into().unwrap())),
            tail: 0,
            head: 0,
            taken: Vec::new(),
        }
    }

    pub fn socket(&self) -> &UnixStream {
        &self.socket
    }

    pub fn memory_bytes(&self) -> u64 {
        HEAD + 2 * self.capacity
    }

    /// The word of a record of this length.
    pub fn word(len: u64) -> u64 {
        len | (!len << 32)
    }

    fn load(&self, offset: u64) -> u64 {
        let mut word = [0; 8];
        self.file.read_exact_at(&mut word, offset).unwrap();
        u64::from_le_bytes(word)
    }

    pub fn store(&self, offset: u64, word: u64) {
        self.write_at(offset, &word.to_le_bytes());
    }

    pub fn write_at(&self, offset: u64, bytes: &[u8]) {
        self.file.write_all_at(bytes, offset).unwrap();
    }

    fn own(&self, position: u64) -> u64 {
        HEAD + position % self.capacity
    }

    fn other(&self, position: u64) -> u64 {
        HEAD + self.capacity + position % self.capacity
    }

    /// The offset of the next own record.
    pub fn next_at(&self) -> u64 {
        self.own(self.tail)
    }

    /// The stores that put a record in, in their order.
    pub fn stores(&self, bytes: &[u8]) -> Vec<(u64, u64)> {
        let mut stores = Vec::new();
        let mut position = self.tail + 8;
        for word in bytes.chunks(8) {
            let mut whole = [0; 8];
            whole[..word.len()].copy_from_slice(word);
            stores.push((self.own(position), u64::from_le_bytes(whole)));
            position += 8;
        }
        stores.push((self.own(position), 0));
        stores.push((self.own(self.tail), Self::word(bytes.len() as u64)));
        stores
    }

    /// Puts a record in when there is room, and wakes the other side if it sleeps.
    pub fn put(&mut self, bytes: &[u8]) {
        let len = bytes.len() as u64;
        assert!(len <= self.capacity / 8, "one small record");
        while self.tail + len + 32 > self.load(CONSUMER) + self.capacity {
            std::thread::yield_now();
        }
        for (offset, word) in self.stores(bytes) {
            self.store(offset, word);
        }
        self.tail += 8 + len.next_multiple_of(8);
        if self.load(CONSUMER + 8) != 0 {
            self.store(CONSUMER + 8, 0);
            self.wake();
        }
    }

    pub fn wake(&self) {
        // The other side may have ended the connection.
        let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
        let _ended = rustix::net::send(&self.socket, &[1], flags);
    }

    /// Says that this side sleeps, though it does not.
    pub fn say_asleep(&self) {
        self.store(CONTROL + CONSUMER + 8, 1);
    }

    /// Says that this side has read up to there.
    pub fn lie(&self, head: u64) {
        self.store(CONTROL + CONSUMER, head);
    }

    /// Waits until something is there.
    pub fn wait_for_reply(&self) {
        while self.load(self.other(self.head)) == 0 {
            std::thread::yield_now();
        }
    }

    /// Takes as many bytes.
    pub fn take(&mut self, count: usize) -> Vec<u8> {
        while self.taken.len() < count {
            self.wait_for_reply();
            let word = self.load(self.other(self.head));
            let len = word & 0xffff_ffff;
            assert_eq!(word, Self::word(len));
            self.head += 8;
            let mut left = len;
            while left > 0 {
                let bytes = self.load(self.other(self.head)).to_le_bytes();
                let taken = left.min(8);
                self.taken.extend_from_slice(&bytes[..taken as usize]);
                left -= taken;
                self.head += 8;
            }
            self.lie(self.head);
            if self.load(CONTROL) != 0 {
                self.store(CONTROL, 0);
                self.wake();
            }
        }
        let rest = self.taken.split_off(count);
        std::mem::replace(&mut self.taken, rest)
    }

    /// Waits until the other side closes.
    pub fn wait_for_end(&mut self) {
        let mut thrown = [0; 64];
        loop {
            match self.socket.read(&mut thrown) {
                Ok(0) => return,
                Ok(_) => {}
                Err(error) if error.kind() == std::io::ErrorKind::ConnectionReset => return,
                Err(error) => panic!("the other side did not close: {error}"),
            }
        }
    }
}

/// A listening side that breaks the protocol.
#[derive(Clone, Copy)]
pub enum Peer {
    SharesNothing,
    ClosesBehindHello,
    SharesUnsealed,
    SharesTooLittle,
    SharesDisk,
    HasOddRings(u32),
    AnswersGarbage,
}

fn memfd(len: u64, is_sealed: bool) -> OwnedFd {
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    let file = rustix::fs::memfd_create("lies", flags).unwrap();
    rustix::fs::ftruncate(&file, len).unwrap();
    if is_sealed {
        let seals = SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL;
        rustix::fs::fcntl_add_seals(&file, seals).unwrap();
    }
    file
}

/// Takes one connection.
pub fn lying_server(path: &str, peer: Peer) -> JoinHandle<()> {
    let listener = UnixListener::bind(path).unwrap();
    let thread = std::thread::Builder::new().spawn(move || {
        let (mut socket, _) = listener.accept().unwrap();
        read_exact_hello(&mut socket);
        socket.write_all(&hello(1, 1)).unwrap();
        let ring: u32 = 64 << 10;
        let whole = (HEAD + 2 * u64::from(ring)).next_multiple_of(64 << 10);
        let (ring, file) = match peer {
            Peer::ClosesBehindHello => return,
            Peer::SharesNothing => {
                socket.write_all(&[0, 0, 1, 0, 0, 0, 0, 0]).unwrap();
                let _until_it_closes = socket.read(&mut [0; 8]);
                return;
            }
            Peer::SharesUnsealed => (ring, memfd(whole, false)),
            Peer::SharesTooLittle => (ring, memfd(whole - 4096, true)),
            Peer::SharesDisk => (ring, File::open("/proc/self/exe").unwrap().into()),
            Peer::HasOddRings(odd) => (odd, memfd(whole, true)),
            Peer::AnswersGarbage => (ring, memfd(whole, true)),
        };
        let mut message = [0; 8];
        message[..4].copy_from_slice(&ring.to_le_bytes());
        let files = [file.as_fd()];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        assert!(control.push(SendAncillaryMessage::ScmRights(&files)));
        let parts = [IoSlice::new(&message)];
        rustix::net::sendmsg(&socket, &parts, &mut control, SendFlags::NOSIGNAL).unwrap();
        if matches!(peer, Peer::AnswersGarbage) {
            let file = File::from(file.try_clone().unwrap());
            let mut word = [0; 8];
            while u64::from_le_bytes(word) == 0 {
                file.read_exact_at(&mut word, HEAD).unwrap();
                std::thread::yield_now();
            }
            let garbage = vec![0xa5; ring as usize];
            file.write_all_at(&garbage, HEAD + u64::from(ring)).unwrap();
            // Whoever looks at the ring in time closes the connection before it is woken.
            let _closed = socket.write_all(&[1]);
        }
        let _until_it_closes = socket.read_to_end(&mut Vec::new());
    });
    thread.unwrap()
}
