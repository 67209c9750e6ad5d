//! [`Watch`]: has a task of tokio sleep until an endpoint has news.
//!
//! Threads: it belongs to the event loop on which it was made.

#![allow(unsafe_code)] // one registration

use crate::Endpoint;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};
use std::sync::Arc;
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

/// The descriptor of an endpoint, which it keeps open.
struct WaitFd(Arc<Endpoint>);

impl AsFd for WaitFd {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.wait_fd().expect("`Watch::new` has looked")
    }
}

impl AsRawFd for WaitFd {
    fn as_raw_fd(&self) -> RawFd {
        self.as_fd().as_raw_fd()
    }
}

/// An endpoint's descriptor on an event loop.
pub struct Watch(AsyncFd<WaitFd>);

impl Watch {
    /// Puts the descriptor on the event loop of the calling task. `None`: the provider has none.
    ///
    /// # Errors
    /// The system's.
    pub fn new(endpoint: &Arc<Endpoint>) -> io::Result<Option<Self>> {
        if endpoint.wait_fd().is_none() {
            return Ok(None);
        }
        let fd = WaitFd(Arc::clone(endpoint));
        // SAFETY: the endpoint has one descriptor from its opening to its end, and `fd` keeps it
        // from ending.
        let registered = unsafe { AsyncFd::register_with_interest(fd, Interest::READABLE) };
        Ok(Some(Self(registered?)))
    }

    /// Sleeps until the descriptor is readable. [`Endpoint::may_sleep`] must have said yes since
    /// the last news was taken.
    pub async fn news(&self) {
        // An error: the event loop is ending, and so is this task.
        if let Ok(mut guard) = self.0.readable().await {
            guard.clear_ready();
        }
    }
}
