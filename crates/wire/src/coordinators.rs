//! Where the coordinators are, and which of them leads. Servers and clients find it in this one
//! way.
//!
//! - LEADER-1: an address is left for another one when it failed, does not lead, or answers for
//!   another cluster. The next address is the leader that it names, else the next of the list. One
//!   that is about to take over is asked again. So a process that knows one running coordinator
//!   finds the leader.
//!
//! Not here: trying again. One call is one attempt; callers have their own pauses and limits.

use crate::codec::{Request, RpcError, call};
use crate::control::GetLeader;
use crate::header::Header;
use crate::refusal::{FatalKind, Refusal, RetryReason};
use core::time::Duration;
use pluvio_env::{Address, Network};
use pluvio_units::{ClusterId, ServerId};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// How long a coordinator that does not lead is given to say who does. It answers at once.
const LEADER_LIMIT: Duration = Duration::from_millis(250);

/// The coordinators of a cluster, as one process knows them.
#[derive(Debug)]
pub struct Coordinators {
    known: Vec<Address>,
    current: Mutex<Current>,
}

#[derive(Debug)]
struct Current {
    /// The one that is asked. Not in the list when another coordinator named it.
    address: Address,
    /// The place in the list that is tried next.
    next: usize,
}

impl Coordinators {
    /// The coordinators of this list; it should not be empty.
    #[must_use]
    pub fn new(known: Vec<Address>) -> Self {
        let address = known.first().cloned().unwrap_or_default();
        Self {
            known,
            current: Mutex::new(Current { address, next: 1 }),
        }
    }

    /// Whether there is none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.known.is_empty()
    }

    /// Those of the list.
    #[must_use]
    pub fn known(&self) -> &[Address] {
        &self.known
    }

    /// The one that is asked next.
    #[must_use]
    pub fn current(&self) -> Address {
        self.place().address.clone()
    }

    fn place(&self) -> MutexGuard<'_, Current> {
        // Every change is one step.
        self.current.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sends a request to the coordinator that led last, once. When it fails, or answers that it
    /// does not lead, the next call goes to another one.
    ///
    /// # Errors
    /// See [`RpcError`].
    pub async fn call<R: Request>(
        &self,
        network: &dyn Network,
        request: &R,
        limit: Duration,
    ) -> Result<R::Reply, RpcError> {
        let any = ClusterId(0);
        self.call_within(any, network, request, limit).await
    }

    /// [`Coordinators::call`] of a caller that belongs to a cluster: the coordinator of another one
    /// refuses it as [`FatalKind::WrongCluster`]. With cluster 0 each one answers. So does one of a
    /// version before.
    ///
    /// # Errors
    /// See [`RpcError`].
    pub async fn call_within<R: Request>(
        &self,
        cluster: ClusterId,
        network: &dyn Network,
        request: &R,
        limit: Duration,
    ) -> Result<R::Reply, RpcError> {
        let to = self.current();
        let header = Header::within(cluster, ServerId(0));
        let result = call(network, &to, header, request, limit).await;
        match &result {
            Err(RpcError::Refused(Refusal::Retry {
                why: RetryReason::NotLeader,
                ..
            })) => {
                self.follow(network, &to, limit).await;
            }
            Err(RpcError::Call(_) | RpcError::BadReply(..)) => self.leave(&to, None),
            // Another cluster's: the own one may be at another address.
            Err(RpcError::Refused(refusal))
                if refusal.fatal_kind() == Some(FatalKind::WrongCluster) =>
            {
                self.leave(&to, None);
            }
            Ok(_) | Err(RpcError::Refused(_)) => {}
        }
        result
    }

    /// Goes where one that does not lead says.
    async fn follow(&self, network: &dyn Network, at: &Address, limit: Duration) {
        let limit = limit.min(LEADER_LIMIT);
        let asked = call(network, at, Header::default(), &GetLeader {}, limit).await;
        let reply = asked.unwrap_or_default();
        if reply.deciding || reply.leads {
            return;
        }
        let leader = reply.leader.map(|leader| Address::from(leader.as_str()));
        self.leave(at, leader.filter(|leader| leader != at));
    }

    /// Goes on from `from` to `leader`, or to the next of the list; unless others have already.
    fn leave(&self, from: &Address, leader: Option<Address>) {
        let mut current = self.place();
        if current.address != *from || self.known.is_empty() {
            return;
        }
        if let Some(leader) = leader {
            current.address = leader;
            return;
        }
        // Not the same one again if there is another.
        for _ in 0..self.known.len() {
            let place = current.next % self.known.len();
            current.next = place + 1;
            if self.known[place] != *from {
                current.address = self.known[place].clone();
                return;
            }
        }
        // It was the only one of the list.
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(name: &str) -> Address {
        Address::from(name)
    }

    // shows: LEADER-1
    #[test]
    fn addresses_that_fail_are_left_in_turn_and_named_leaders_are_tried_first() {
        let all = Coordinators::new(["a", "b", "c"].map(address).to_vec());
        assert_eq!(all.current(), address("a"));
        all.leave(&address("a"), None);
        assert_eq!(all.current(), address("b"));
        // Somebody else's failure at an address that was left already.
        all.leave(&address("a"), None);
        assert_eq!(all.current(), address("b"));
        all.leave(&address("b"), Some(address("x")));
        assert_eq!(all.current(), address("x"));
        all.leave(&address("x"), None);
        assert_eq!(all.current(), address("c"));
        all.leave(&address("c"), None);
        assert_eq!(all.current(), address("a"));
    }

    // shows: LEADER-1
    #[test]
    fn a_lone_coordinator_is_asked_again() {
        let one = Coordinators::new(vec![address("a")]);
        one.leave(&address("a"), None);
        assert_eq!(one.current(), address("a"));
        one.leave(&address("a"), Some(address("b")));
        one.leave(&address("b"), None);
        assert_eq!(one.current(), address("a"));
        let none = Coordinators::new(Vec::new());
        none.leave(&none.current(), None);
        assert!(none.is_empty());
    }
}
