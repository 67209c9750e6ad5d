//! How a candidate waits for its turn, and takes it (LEAD-3).
//!
//! ```text
//! no record, or a released one ──────────────────────────────► take over
//! record of X ── X answers pings ──► wait
//!             └─ X is gone, or silent ──► challenge ── another record ──► wait
//!                                                └─ the same for TAKEOVER ──► take over
//! ```

use super::tenure::limited;
use super::{
    CHALLENGE, Challenge, LEADER, LeaderRecord, STORE_RETRY, TAKEOVER, Tenure, decode, encode,
};
use crate::candidate::Standing;
use crate::detect::{Sign, Suspicion, Verdict};
use crate::store::{Change, Condition, MetadataStore, Outcome, StoreError};
use bytes::Bytes;
use core::time::Duration;
use pluvio_env::{Address, CallError, Env};
use pluvio_wire::{GetLeader, Header, RpcError};
use std::sync::Arc;

/// How often a candidate looks whether the leader lives.
const WATCH: Duration = Duration::from_millis(200);
/// How long a leader may be silent before it is challenged.
const SILENCE: Duration = Duration::from_millis(800);
/// The limit of one ping.
const PING_LIMIT: Duration = Duration::from_millis(200);
/// How often the record is looked at after a challenge.
const CHALLENGE_LOOK: Duration = Duration::from_millis(50);
/// The pause after a challenge that was answered: a leader that this candidate cannot reach, but that
/// reaches the store, is left in peace most of the time.
const ANSWERED_PAUSE: Duration = Duration::from_secs(2);
/// How long a store is asked that has never answered yet: it may be starting as well.
const FIRST_ANSWER: Duration = Duration::from_secs(10);

/// Who stands for election.
pub(crate) struct Campaign {
    pub(crate) env: Env,
    pub(crate) store: Arc<dyn MetadataStore>,
    /// What this process drew at its start.
    pub(crate) candidate: u64,
    /// Where it answers.
    pub(crate) address: String,
}

/// Why nobody can lead on this store.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum CampaignError {
    /// It has never answered.
    Store(StoreError),
    /// It holds keys, but none of a coordinator's.
    Foreign(usize),
    /// It had a leader's record, which is gone.
    Lost,
}

impl Campaign {
    /// Waits until this candidate leads. `tell` hears how it stands meanwhile; `seen` says whether this process has seen a leader's record already.
    ///
    /// # Errors
    /// See [`CampaignError`].
    pub(crate) async fn run(
        &self,
        seen: &mut bool,
        tell: impl Fn(Standing),
    ) -> Result<Arc<Tenure>, CampaignError> {
        let clock = &self.env.clock;
        let give_up = clock.now() + FIRST_ANSWER;
        let mut answered = *seen;
        let mut reported = false;
        loop {
            match self.round(seen, &tell).await {
                Ok(Some(tenure)) => {
                    *seen = true;
                    return Ok(tenure);
                }
                Ok(None) => (answered, reported) = (true, false),
                Err(Trouble::Final(error)) => return Err(error),
                Err(Trouble::Store(error)) => {
                    if !answered && clock.now() >= give_up {
                        return Err(CampaignError::Store(error));
                    }
                    if !reported {
                        tracing::warn!(%error, "asking again until it answers");
                        reported = true;
                    }
                    tell(Standing::Looking);
                    clock.sleep(STORE_RETRY).await;
                }
            }
        }
    }

    async fn get(&self, key: &str) -> Result<Option<Bytes>, StoreError> {
        limited(&self.env, self.store.get(key)).await
    }

    /// One look at the record, and what follows from it; `None` when it is to be looked at again.
    async fn round(
        &self,
        seen: &mut bool,
        tell: &impl Fn(Standing),
    ) -> Result<Option<Arc<Tenure>>, Trouble> {
        let Some(found) = self.get(LEADER).await? else {
            if *seen {
                return Err(Trouble::Final(CampaignError::Lost));
            }
            return self.found_nothing().await;
        };
        *seen = true;
        let record: LeaderRecord = decode(LEADER, &found)?;
        if record.released || self.store.is_exclusive() {
            return self.take_over(Some((found, record))).await;
        }
        if self.lives(&record).await {
            tell(Standing::Waiting(record.address));
            self.env.clock.sleep(WATCH).await;
            return Ok(None);
        }
        tracing::info!(
            leader = record.address,
            "the leading coordinator does not answer"
        );
        tell(Standing::Deciding);
        if self.challenge(&found).await? {
            return self.take_over(Some((found, record))).await;
        }
        let Some(found) = self.get(LEADER).await? else {
            return Err(Trouble::Final(CampaignError::Lost));
        };
        let now: LeaderRecord = decode(LEADER, &found)?;
        if now.candidate == record.candidate {
            tracing::info!(leader = record.address, "it answered through the store");
            tell(Standing::Waiting(record.address));
            self.env.clock.sleep(ANSWERED_PAUSE).await;
        }
        Ok(None)
    }

    /// There is no record: the store is empty, or of a version without leaders, or somebody else's.
    async fn found_nothing(&self) -> Result<Option<Arc<Tenure>>, Trouble> {
        let all = limited(&self.env, self.store.list_prefix("")).await?;
        let ours = all
            .iter()
            .any(|(key, _)| key == crate::state::GLOBALS || key == LEADER);
        if !ours && !all.is_empty() {
            return Err(Trouble::Final(CampaignError::Foreign(all.len())));
        }
        self.take_over(None).await
    }

    /// Whether the leader of this record answers.
    async fn lives(&self, record: &LeaderRecord) -> bool {
        let clock = &self.env.clock;
        let mut suspicion = Suspicion::new(clock.now(), SILENCE);
        loop {
            let sent = clock.now();
            let sign = self.ping(record).await;
            match suspicion.ping(sign, sent, clock.now(), PING_LIMIT) {
                Verdict::Alive => return true,
                Verdict::Open => {}
                Verdict::Silent | Verdict::Gone => return false,
            }
            let took = clock.now().since(sent);
            let pause = match sign {
                Sign::Gone => Duration::from_millis(20),
                Sign::Alive | Sign::Silent => PING_LIMIT.saturating_sub(took),
            };
            clock.sleep(pause).await;
        }
    }

    async fn ping(&self, record: &LeaderRecord) -> Sign {
        let network = &*self.env.network;
        let to = Address::from(record.address.as_str());
        let asked =
            pluvio_wire::call(network, &to, Header::default(), &GetLeader {}, PING_LIMIT).await;
        match asked {
            Ok(reply) if reply.candidate != record.candidate => Sign::Gone,
            Ok(reply) if reply.leads => Sign::Alive,
            Err(RpcError::Call(CallError::Unreachable(..))) => Sign::Gone,
            Ok(_) | Err(_) => Sign::Silent,
        }
    }

    /// Challenges the leader of a record; gives whether the record stayed the same for long enough.
    async fn challenge(&self, found: &Bytes) -> Result<bool, Trouble> {
        let clock = &self.env.clock;
        let challenge = Challenge {
            candidate: self.candidate,
            nonce: self.env.rng.next_u64(),
        };
        let put = Change::Put {
            key: CHALLENGE.into(),
            value: encode(&challenge),
        };
        let same = Condition {
            key: LEADER.into(),
            value: Some(found.clone()),
        };
        let stored = self.store.apply_if(same, vec![put]);
        if limited(&self.env, stored).await? == Outcome::Refused {
            return Ok(false);
        }
        let due = clock.now() + TAKEOVER;
        while clock.now() < due {
            clock.sleep(CHALLENGE_LOOK).await;
            if self.get(LEADER).await?.as_ref() != Some(found) {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Replaces a record by one of this candidate; `None` when somebody else was faster.
    async fn take_over(
        &self,
        former: Option<(Bytes, LeaderRecord)>,
    ) -> Result<Option<Arc<Tenure>>, Trouble> {
        let (value, former) = former.unzip();
        let record = LeaderRecord {
            term: former.as_ref().map_or(1, |f| f.term + 1),
            candidate: self.candidate,
            address: self.address.clone(),
            number: former.as_ref().map_or(1, |f| f.number + 1),
            parts: former.as_ref().map_or(0, |f| f.parts),
            released: false,
        };
        let condition = Condition {
            key: LEADER.into(),
            value,
        };
        let sent = self.env.clock.now();
        let stored = self.store.apply_if(condition, vec![record.put()]);
        let outcome = match limited(&self.env, stored).await {
            Ok(outcome) => outcome,
            Err(error) => {
                // It may be stored all the same, and nobody would know.
                match self.get(LEADER).await? {
                    Some(found) if found == record.encode() => Outcome::Applied,
                    Some(_) | None => return Err(error.into()),
                }
            }
        };
        if outcome == Outcome::Refused {
            return Ok(None);
        }
        let (env, store) = (self.env.clone(), self.store.clone());
        Ok(Some(Tenure::begin(env, store, record, sent)))
    }
}

enum Trouble {
    Store(StoreError),
    Final(CampaignError),
}

impl From<StoreError> for Trouble {
    fn from(error: StoreError) -> Self {
        Self::Store(error)
    }
}
