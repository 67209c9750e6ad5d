//! [`Endpoint`]: one endpoint of libfabric, behind a lock.
//!
//! Owns the C half's endpoint and the table of its peers.
//!
//! Invariants
//! - FABRIC-1: calls into the library for one endpoint never overlap. The lock sees to it.
//! - FABRIC-2: a message goes only to a peer that is in the library's table. A [`Peer`] keeps it
//!   there, and the endpoint open.
//! - FABRIC-3: the library gets a peer's name only when it has the form of this endpoint's own. The
//!   library reads as many bytes as that form says.
//!
//! Threads: any thread may use it. One lock is held for a call of the library, none of which waits.
//!
//! Limits: it gives messages no meaning, and tells of no peer's end.

#![allow(unsafe_code)] // the calls of the C half

use core::ffi::{c_char, c_int, c_void};
use core::net::IpAddr;
use core::ptr::NonNull;
use std::collections::BTreeMap;
use std::ffi::CString;
use std::io;
use std::os::fd::BorrowedFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Bytes of the largest message; `PF_MESSAGE_BYTES_MAX` of the C half.
pub const MESSAGE_BYTES_MAX: usize = 4096;
/// Bytes of the longest name of an endpoint. Providers have names of 16 to some 60 bytes.
pub const NAME_BYTES_MAX: usize = 256;
/// Bytes of the C half's words for a failure.
const WHY_BYTES: usize = 256;

/// The C half's endpoint.
#[repr(C)]
struct Raw {
    _opaque: [u8; 0],
}

unsafe extern "C" {
    fn pf_open(
        provider: *const c_char,
        node: *const c_char,
        why: *mut c_char,
        why_bytes: usize,
    ) -> *mut Raw;
    fn pf_close(endpoint: *mut Raw);
    fn pf_wait_fd(endpoint: *const Raw) -> c_int;
    fn pf_names_are_text(endpoint: *const Raw) -> c_int;
    fn pf_name(endpoint: *mut Raw, into: *mut c_void, room: usize) -> usize;
    fn pf_add_peer(endpoint: *mut Raw, name: *const c_void, peer: *mut u64) -> c_int;
    fn pf_remove_peer(endpoint: *mut Raw, peer: u64);
    fn pf_send(
        endpoint: *mut Raw,
        peer: u64,
        head: *const c_void,
        head_bytes: usize,
        data: *const c_void,
        data_bytes: usize,
    ) -> c_int;
    fn pf_take(endpoint: *mut Raw, into: *mut c_void, peer: *mut u64) -> isize;
    fn pf_under_way(endpoint: *const Raw) -> usize;
    fn pf_may_sleep(endpoint: *mut Raw) -> c_int;
}

/// The number of a peer in its endpoint's table.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct PeerId(u64);

/// The endpoint, or the way to one peer, has failed. Not retryable.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Broken(pub i32);

impl From<Broken> for io::Error {
    fn from(broken: Broken) -> Self {
        Self::new(
            io::ErrorKind::BrokenPipe,
            format!("the fabric failed ({})", broken.0),
        )
    }
}

/// What [`Endpoint::take`] found.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Taken {
    /// Nothing has come.
    Nothing,
    /// A message, with its length in bytes.
    Message(usize),
    /// A message to this peer was not delivered. So were perhaps later ones.
    Undelivered(PeerId),
}

/// The C half's endpoint and its table.
struct Inside {
    raw: NonNull<Raw>,
    /// By name: the peer's number and the number of [`Peer`]s.
    peers: BTreeMap<Box<[u8]>, (PeerId, usize)>,
}

// SAFETY: the C half's endpoint belongs to no thread. libfabric asks only that calls do not overlap
// (`FI_THREAD_DOMAIN`), and `Inside` is reached through one lock (FABRIC-1).
unsafe impl Send for Inside {}

impl Drop for Inside {
    fn drop(&mut self) {
        // SAFETY: `raw` came from `pf_open`, this is its only close, and no call follows.
        unsafe { pf_close(self.raw.as_ptr()) }
    }
}

/// One endpoint of a provider on this machine.
pub struct Endpoint {
    inside: Mutex<Inside>,
    name: Box<[u8]>,
    names_are_text: bool,
    wait_fd: c_int,
}

impl Endpoint {
    /// Opens an endpoint of the provider with this name, as `fi_info -l` lists them, for instance
    /// `tcp`, `shm` or `verbs;ofi_rxm`. One that lives in the internet takes the interface of
    /// `node`. This may take some 100 ms: call it outside the event loops.
    ///
    /// # Errors
    /// Text for people. The provider is missing, or does not work here.
    pub fn open(provider: &str, node: IpAddr) -> Result<Self, String> {
        let text = |text: &str| CString::new(text).map_err(|_| "it has a zero in it".to_owned());
        let (name, node) = (text(provider)?, text(&node.to_string())?);
        let mut why = [0u8; WHY_BYTES];
        // SAFETY: both texts end with a zero and live through the call. `why` has the length that
        // is named.
        let raw = unsafe {
            pf_open(
                name.as_ptr(),
                node.as_ptr(),
                why.as_mut_ptr().cast(),
                WHY_BYTES,
            )
        };
        let Some(raw) = NonNull::new(raw) else {
            let end = why.iter().position(|&byte| byte == 0).unwrap_or(0);
            let why = String::from_utf8_lossy(&why[..end]);
            return Err(format!("libfabric's provider {provider}: {why}"));
        };
        let inside = Inside {
            raw,
            peers: BTreeMap::new(),
        };
        let mut own = [0u8; NAME_BYTES_MAX];
        // SAFETY: `raw` is open, and `own` has the length that is named.
        let (bytes, names_are_text, wait_fd) = unsafe {
            (
                pf_name(raw.as_ptr(), own.as_mut_ptr().cast(), NAME_BYTES_MAX),
                pf_names_are_text(raw.as_ptr()) != 0,
                pf_wait_fd(raw.as_ptr()),
            )
        };
        if bytes == 0 {
            return Err(format!("libfabric's provider {provider} names no address"));
        }
        Ok(Self {
            inside: Mutex::new(inside),
            name: own[..bytes].into(),
            names_are_text,
            wait_fd,
        })
    }

    fn lock(&self) -> MutexGuard<'_, Inside> {
        // The protected state is valid after every statement, so also after a panic.
        self.inside.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Its name, by which others add it as a peer.
    #[must_use]
    pub fn name(&self) -> &[u8] {
        &self.name
    }

    /// Whether the provider can wake a sleeping task ([`crate::Watch`]). `shm` cannot, for one.
    #[must_use]
    pub fn can_wake(&self) -> bool {
        self.wait_fd >= 0
    }

    /// Becomes readable when [`Self::take`] must be called.
    pub(crate) fn wait_fd(&self) -> Option<BorrowedFd<'_>> {
        // SAFETY: the descriptor is the library's, open until `self` is closed, and the result
        // borrows `self`.
        (self.wait_fd >= 0).then(|| unsafe { BorrowedFd::borrow_raw(self.wait_fd) })
    }

    /// FABRIC-3.
    fn is_name(&self, name: &[u8]) -> bool {
        if self.names_are_text {
            let zero = name.iter().position(|&byte| byte == 0);
            return name.len() <= NAME_BYTES_MAX && zero.is_some_and(|at| at + 1 == name.len());
        }
        // The family of addresses is in the first two bytes of those of the internet.
        name.len() == self.name.len() && name.iter().zip(&self.name).take(2).all(|(a, b)| a == b)
    }

    /// The peer with this name, which came from another process.
    ///
    /// # Errors
    /// It is no name for this provider, or the table is full.
    pub fn peer(self: &Arc<Self>, name: &[u8]) -> io::Result<Peer> {
        if !self.is_name(name) {
            let what = "the peer's name is none of this provider";
            return Err(io::Error::new(io::ErrorKind::InvalidData, what));
        }
        let mut inside = self.lock();
        let raw = inside.raw;
        let id = match inside.peers.get_mut(name) {
            Some((id, count)) => {
                *count += 1;
                *id
            }
            None => {
                let mut id = 0;
                // SAFETY: `raw` is open, the lock is held (FABRIC-1), and the name has the form
                // that the library expects (FABRIC-3).
                let result = unsafe { pf_add_peer(raw.as_ptr(), name.as_ptr().cast(), &mut id) };
                if result != 0 {
                    return Err(Broken(result).into());
                }
                inside.peers.insert(name.into(), (PeerId(id), 1));
                PeerId(id)
            }
        };
        drop(inside);
        Ok(Peer {
            endpoint: Arc::clone(self),
            name: name.into(),
            id,
        })
    }

    /// Takes the next news; a message is copied to `into`.
    ///
    /// # Errors
    /// The endpoint is of no use any more.
    pub fn take(&self, into: &mut [u8; MESSAGE_BYTES_MAX]) -> Result<Taken, Broken> {
        let mut peer = 0;
        let inside = self.lock();
        // SAFETY: `raw` is open, the lock is held (FABRIC-1), and `into` has room for the largest
        // message.
        let result = unsafe { pf_take(inside.raw.as_ptr(), into.as_mut_ptr().cast(), &mut peer) };
        drop(inside);
        match usize::try_from(result) {
            Ok(bytes) => Ok(Taken::Message(bytes.min(MESSAGE_BYTES_MAX))),
            Err(_) => match error_of(result) {
                Error::Again => Ok(Taken::Nothing),
                Error::Reset => Ok(Taken::Undelivered(PeerId(peer))),
                Error::Other(broken) => Err(broken),
            },
        }
    }

    /// The number of messages whose sending has not ended. One to a peer that died may never end.
    #[must_use]
    pub fn under_way(&self) -> usize {
        let inside = self.lock();
        // SAFETY: `raw` is open, and the lock is held (FABRIC-1).
        unsafe { pf_under_way(inside.raw.as_ptr()) }
    }

    /// Whether the descriptor will become readable at the next news. If not, there are some.
    #[must_use]
    pub fn may_sleep(&self) -> bool {
        let inside = self.lock();
        // SAFETY: `raw` is open, and the lock is held (FABRIC-1).
        unsafe { pf_may_sleep(inside.raw.as_ptr()) != 0 }
    }
}

/// A negative result of the C half.
enum Error {
    Again,
    Reset,
    Other(Broken),
}

fn error_of(result: isize) -> Error {
    let code = i32::try_from(result).unwrap_or(i32::MIN);
    match io::Error::from_raw_os_error(code.saturating_neg()).kind() {
        io::ErrorKind::WouldBlock => Error::Again,
        io::ErrorKind::ConnectionReset => Error::Reset,
        _ => Error::Other(Broken(code)),
    }
}

/// A peer in an endpoint's table, for as long as this value lives.
pub struct Peer {
    endpoint: Arc<Endpoint>,
    name: Box<[u8]>,
    id: PeerId,
}

impl Peer {
    /// Its number in the table.
    #[must_use]
    pub fn id(&self) -> PeerId {
        self.id
    }

    /// Sends two parts as one message, of [`MESSAGE_BYTES_MAX`] at most. `false`: not now; try
    /// again after [`Endpoint::take`].
    ///
    /// # Errors
    /// The way to this peer has failed.
    pub fn send(&self, head: &[u8], data: &[u8]) -> Result<bool, Broken> {
        let inside = self.endpoint.lock();
        // SAFETY: `raw` is open and the lock is held (FABRIC-1). The peer is in the table while
        // `self` lives (FABRIC-2). Both parts have the lengths that are named, and are copied.
        let result = unsafe {
            pf_send(
                inside.raw.as_ptr(),
                self.id.0,
                head.as_ptr().cast(),
                head.len(),
                data.as_ptr().cast(),
                data.len(),
            )
        };
        drop(inside);
        match result {
            0 => Ok(true),
            _ => match error_of(result as isize) {
                Error::Again => Ok(false),
                Error::Reset => Err(Broken(result)),
                Error::Other(broken) => Err(broken),
            },
        }
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        let mut inside = self.endpoint.lock();
        let raw = inside.raw;
        let Some((id, count)) = inside.peers.get_mut(&self.name) else {
            return;
        };
        *count -= 1;
        if *count == 0 {
            let id = *id;
            inside.peers.remove(&self.name);
            // SAFETY: `raw` is open, the lock is held (FABRIC-1), and the peer is in the table. It
            // was added once and this is its only removal.
            unsafe { pf_remove_peer(raw.as_ptr(), id.0) }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use core::net::Ipv4Addr;

    const HERE: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);

    /// Takes until a message comes.
    fn wait(at: &Endpoint, others: &[&Endpoint]) -> Vec<u8> {
        let mut bytes = [0; MESSAGE_BYTES_MAX];
        for _ in 0..10_000_000 {
            for other in others {
                assert_eq!(other.take(&mut [0; MESSAGE_BYTES_MAX]), Ok(Taken::Nothing));
            }
            if let Taken::Message(len) = at.take(&mut bytes).unwrap() {
                return bytes[..len].to_vec();
            }
        }
        panic!("no message came");
    }

    fn exchange(provider: &str) {
        let open = || Arc::new(Endpoint::open(provider, HERE).unwrap());
        let (a, b) = (open(), open());
        let (to_b, to_a) = (a.peer(b.name()).unwrap(), b.peer(a.name()).unwrap());
        let again = a.peer(b.name()).unwrap();
        assert_eq!(again.id(), to_b.id());
        drop(again);
        for round in 0..2_000usize {
            let data = vec![round as u8; (round * 37) % (MESSAGE_BYTES_MAX - 8)];
            let head = (round as u64).to_le_bytes();
            while !to_b.send(&head, &data).unwrap() {
                assert_eq!(a.take(&mut [0; MESSAGE_BYTES_MAX]), Ok(Taken::Nothing));
                assert_eq!(b.take(&mut [0; MESSAGE_BYTES_MAX]), Ok(Taken::Nothing));
            }
            let got = wait(&b, &[&a]);
            assert_eq!(got[..8], head);
            assert!(got[8..] == data, "round {round}");
        }
        while !to_a.send(b"back", &[]).unwrap() {
            assert_eq!(b.take(&mut [0; MESSAGE_BYTES_MAX]), Ok(Taken::Nothing));
        }
        assert_eq!(wait(&a, &[&b]), b"back");
    }

    // shows: FABRIC-1, FABRIC-2, FABRIC-4
    #[test]
    fn messages_of_every_length_arrive_in_order_over_tcp() {
        exchange("tcp");
    }

    // shows: FABRIC-2
    #[test]
    fn messages_of_every_length_arrive_in_order_over_shared_memory() {
        exchange("shm");
    }

    // shows: FABRIC-3
    #[test]
    fn names_of_another_form_are_no_peers() {
        let tcp = Arc::new(Endpoint::open("tcp", HERE).unwrap());
        let shm = Arc::new(Endpoint::open("shm", HERE).unwrap());
        let short = &tcp.name()[1..];
        let mut other = tcp.name().to_vec();
        other[0] ^= 1;
        for name in [&[][..], short, &other, shm.name()] {
            assert!(tcp.peer(name).is_err(), "{name:?}");
        }
        for name in [&[][..], b"fi_shm://1:0:0", b"fi_shm\0:1\0", tcp.name()] {
            assert!(shm.peer(name).is_err(), "{name:?}");
        }
        let long = vec![1; NAME_BYTES_MAX];
        assert!(shm.peer(&[&long[..], b"\0"].concat()).is_err());
    }

    #[test]
    fn an_unknown_provider_is_told_in_words() {
        let error = Endpoint::open("nonsense", HERE).err().unwrap();
        assert!(error.contains("nonsense"), "{error}");
        assert!(Endpoint::open("a\0b", HERE).is_err());
    }

    #[test]
    fn an_endpoint_may_be_its_own_peer() {
        for provider in ["tcp", "shm"] {
            let endpoint = Arc::new(Endpoint::open(provider, HERE).unwrap());
            let itself = endpoint.peer(endpoint.name()).unwrap();
            while !itself.send(b"to ", b"me").unwrap() {
                assert_eq!(
                    endpoint.take(&mut [0; MESSAGE_BYTES_MAX]),
                    Ok(Taken::Nothing)
                );
            }
            assert_eq!(wait(&endpoint, &[]), b"to me");
        }
    }

    #[test]
    fn too_long_a_message_is_not_sent() {
        let a = Arc::new(Endpoint::open("tcp", HERE).unwrap());
        let to_itself = a.peer(a.name()).unwrap();
        let long = [0; MESSAGE_BYTES_MAX];
        assert!(to_itself.send(&[0], &long).is_err());
        assert!(to_itself.send(&long, &[0]).is_err());
    }
}
