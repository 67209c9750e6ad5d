//! Which of several coordinators on one store leads, and why no other one can change anything
//! [RAMCloud §9].
//!
//! ```text
//! leader       LeaderRecord: term, candidate, address, number of the last batch
//! challenge    Challenge: a candidate doubts that the leader lives
//! part/<n>     the n-th part of a batch that is too large for the store
//! ```
//!
//! Invariants
//! - LEAD-1: every batch is applied only if the leader's record is exactly the one that this leader
//!   wrote last. It writes the next record, with a number one higher. So batches of one leader are
//!   applied in order and once, however often and late they arrive. Once there is a new leader,
//!   nothing of the former one is applied.
//! - LEAD-2: a leader answers and acts only for [`LEASE`] after one of two events. It asked the
//!   store, and found its own record and no new challenge. Or it began a batch that was applied. An
//!   applied batch answers every challenge before it. A leader that has begun to release its record
//!   answers nothing: the release may be stored long before it hears so.
//! - LEAD-3: a candidate takes over only with a record that has not changed for [`TAKEOVER`] after
//!   its challenge was stored. `TAKEOVER` is longer than `LEASE`, so the former leader has stopped
//!   by then.
//! - LEAD-4: a batch larger than the store takes is stored in parts. It becomes valid with the one
//!   record that says how many parts there are. The next leader unpacks them first.
//!
//! - LEAD-5: a leader gives way only to a challenger that reaches more than half of the servers it
//!   asked. Its own pings must have reached a quarter of them at most. So a leader stays while no
//!   other candidate is better off, for example when all servers are down. Two that are equally
//!   well off never take turns. See `contact`.
//!
//! A leader without a challenger only reads: the lease costs two reads now and then. (Where
//! every renewal is a write, etcd keeps all of them until somebody compacts its history.) Safety
//! needs clocks for LEAD-2 and LEAD-3 alone, which compare spans of time on two of them.
//!
//! A store that is exclusive needs no lease: the process that has it open leads.

mod campaign;
mod contact;
mod tenure;

pub(crate) use campaign::{Campaign, CampaignError, Outlook};
pub(crate) use tenure::{End, Tenure};

use crate::store::{Change, StoreError};
use bytes::Bytes;
use core::time::Duration;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

/// How long one look at the store lets a leader answer.
pub(crate) const LEASE: Duration = Duration::from_millis(1000);
/// How long a leader may leave a challenge unanswered. Longer than [`LEASE`] by a quarter, for
/// clocks that run unevenly.
pub(crate) const TAKEOVER: Duration = Duration::from_millis(1300);
/// How often a leader looks at the store: three times a lease, so that a slow answer costs nothing.
const LOOK: Duration = Duration::from_millis(300);
/// Between two looks whether a store that no other process can have still has what is stored.
const CHECK: Duration = Duration::from_secs(5);
/// How long a store may take for one request. Later answers are not waited for; LEAD-1 makes it
/// safe to ask again.
const STORE_LIMIT: Duration = Duration::from_secs(5);
/// The pause before a store that failed is asked again.
const STORE_RETRY: Duration = Duration::from_millis(500);

pub(crate) const LEADER: &str = "leader";
pub(crate) const CHALLENGE: &str = "challenge";
pub(crate) const PARTS: &str = "part/";

/// The record of the coordinator that leads.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) struct LeaderRecord {
    /// Every takeover adds one.
    pub(crate) term: u64,
    /// What the leader's process drew at its start.
    pub(crate) candidate: u64,
    /// Where it answers.
    pub(crate) address: String,
    /// Every batch adds one, over all terms.
    pub(crate) number: u64,
    /// Parts of a large batch that is valid and still packed.
    pub(crate) parts: u32,
    /// It has ended in an orderly way: anybody may take over at once.
    pub(crate) released: bool,
}

impl LeaderRecord {
    fn encode(&self) -> Bytes {
        encode(self)
    }

    fn put(&self) -> Change {
        Change::Put {
            key: LEADER.into(),
            value: self.encode(),
        }
    }
}

/// A candidate doubts that the leader lives. Each challenge is different.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
struct Challenge {
    candidate: u64,
    nonce: u64,
    /// The challenger reaches more than half of the servers that it asked (LEAD-5).
    #[serde(default)]
    reaches_servers: bool,
}

fn encode(record: &impl Serialize) -> Bytes {
    rmp_serde::to_vec_named(record)
        .expect("writing msgpack to memory cannot fail: records hold no type that msgpack lacks")
        .into()
}

fn decode<T: DeserializeOwned>(key: &str, bytes: &Bytes) -> Result<T, StoreError> {
    rmp_serde::from_slice(bytes)
        .map_err(|e| StoreError(format!("holds a damaged record {key:?}: {e}")))
}
