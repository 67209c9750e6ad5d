//! How many requests of a class may be in progress (rule D; [RAMCloud §5.3]).
//!
//! Operations of clients may wait for replication; replication waits for nobody. Operations of
//! clients must never take the last place that replication needs, on a connection or in memory:
//! waits would form a cycle. So beyond these limits they are answered at once with "busy".

use pluvio_wire::{Class, Refusal, RetryReason};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

/// When a client should try again.
const BUSY_RETRY: Duration = Duration::from_millis(1);

/// Requests and their bytes in progress, of one class.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Bound {
    requests: usize,
    bytes: usize,
}

/// Both are below the limit of requests in progress on one connection of the transport
/// (`docs/transport.md`). So others get through even if all of them came over one connection.
const DATA: Bound = Bound {
    requests: 768,
    bytes: 32 << 20,
};
const RECOVERY: Bound = Bound {
    requests: 128,
    bytes: 16 << 20,
};

#[derive(Default)]
struct Usage {
    requests: AtomicUsize,
    bytes: AtomicUsize,
}

/// Counts what is in progress.
#[derive(Default)]
pub(crate) struct Limits {
    data: Usage,
    recovery: Usage,
}

/// A place that is given back when dropped.
pub(crate) struct Permit {
    limits: Arc<Limits>,
    class: Class,
    bytes: usize,
}

impl Limits {
    fn of(&self, class: Class) -> Option<(&Usage, Bound)> {
        match class {
            Class::Data => Some((&self.data, DATA)),
            Class::Recovery => Some((&self.recovery, RECOVERY)),
            Class::Replication | Class::Control | Class::Ping => None,
        }
    }

    /// Takes a place for a request of `bytes`; `None` for classes without a limit.
    pub(crate) fn admit(
        self: &Arc<Self>,
        class: Class,
        bytes: usize,
    ) -> Result<Option<Permit>, Refusal> {
        let Some((usage, bound)) = self.of(class) else {
            return Ok(None);
        };
        let permit = Permit {
            limits: Arc::clone(self),
            class,
            bytes,
        };
        let requests = usage.requests.fetch_add(1, Ordering::Relaxed);
        let held = usage.bytes.fetch_add(bytes, Ordering::Relaxed);
        // A lone request is always admitted, however large.
        if requests >= bound.requests || (held > 0 && held + bytes > bound.bytes) {
            return Err(Refusal::retry(BUSY_RETRY, RetryReason::Busy));
        }
        Ok(Some(permit))
    }
}

impl Limits {
    /// Takes back the place of a request of `bytes`.
    pub(crate) fn give_back(&self, class: Class, bytes: usize) {
        if let Some((usage, _)) = self.of(class) {
            usage.requests.fetch_sub(1, Ordering::Relaxed);
            usage.bytes.fetch_sub(bytes, Ordering::Relaxed);
        }
    }
}

impl Permit {
    /// Keeps the place until [`Limits::give_back`].
    pub(crate) fn keep(mut self) {
        // A class without a limit has no place to give back.
        self.class = Class::Ping;
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        self.limits.give_back(self.class, self.bytes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clients_leave_room_for_replication() {
        let limits = Arc::<Limits>::default();
        let held: Vec<_> = (0..DATA.requests)
            .map(|_| limits.admit(Class::Data, 1).unwrap())
            .collect();
        assert!(matches!(
            limits.admit(Class::Data, 1),
            Err(Refusal::Retry { .. })
        ));
        assert!(limits.admit(Class::Replication, 1 << 20).unwrap().is_none());
        drop(held);
        assert!(
            limits.admit(Class::Data, DATA.bytes + 1).is_ok(),
            "a lone request is admitted"
        );
        assert!(
            limits.admit(Class::Data, 1).is_ok(),
            "refused and finished requests gave their places back"
        );
    }

    /// Also when all of them come over one connection, which reads no more at its own bounds.
    #[test]
    fn what_clients_and_recoveries_may_have_in_progress_leaves_room_on_one_connection() {
        let connection = pluvio_net::NetOptions::default();
        let requests = DATA.requests + RECOVERY.requests;
        assert!(requests < connection.requests_max, "{connection:?}");
        // A lone request is admitted, however large.
        let most = |bound: Bound| bound.bytes.max(connection.frame_bytes_max);
        let bytes = most(DATA) + most(RECOVERY);
        let write = pluvio_replication::WRITE_BYTES_MAX as usize;
        assert!(
            bytes + write < connection.request_bytes_max,
            "{connection:?}"
        );
    }
}
