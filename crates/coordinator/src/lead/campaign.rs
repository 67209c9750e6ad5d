//! How a candidate waits for its turn, and takes it (LEAD-3).
//!
//! ```text
//! no record, or a released one ──────────────────────────────► take over
//! record of X ── X answers pings ──► wait
//!             └─ X is gone, or silent, or reaches no servers ──► challenge ── another record ──► wait
//!                                                                   └─ the same for TAKEOVER ──► take over
//! ```

use super::tenure::limited;
use super::{
    CHALLENGE, Challenge, LEADER, LeaderRecord, STORE_LIMIT, STORE_RETRY, TAKEOVER, Tenure, decode,
    encode,
};
use crate::state::{LoadError, State};
use crate::store::{Change, Condition, MetadataStore, Outcome, StoreError};
use crate::suspicion::{Sign, Suspicion, Verdict, who_is_there};
use bytes::Bytes;
use core::time::Duration;
use futures_util::future::join_all;
use pluvio_env::{Address, CallError, Env, NoConnection, timeout};
use pluvio_units::ClusterId;
use pluvio_wire::{GetLeader, Header, RpcError, ServerInfo};
use std::sync::Arc;

/// How often a candidate looks whether the leader lives.
const WATCH: Duration = Duration::from_millis(200);
/// How long a leader may be silent before it is challenged.
const SILENCE: Duration = Duration::from_millis(800);
/// The limit of one ping.
const PING_LIMIT: Duration = Duration::from_millis(200);
/// How often the record is looked at after a challenge.
const CHALLENGE_LOOK: Duration = Duration::from_millis(50);
/// The pause after a challenge that was answered. A leader that reaches the store, but not this
/// candidate, is left in peace most of the time.
const ANSWERED_PAUSE: Duration = Duration::from_secs(2);
/// How long the store may take to say which servers there are; a takeover waits for it.
const LOAD_LIMIT: Duration = Duration::from_millis(500);
/// Servers that a candidate asks before it says that it reaches them.
const ASKED: usize = 8;
/// How long a store is asked that has never answered yet: it may be starting as well.
const FIRST_ANSWER: Duration = Duration::from_secs(10);

/// How a candidate stands while another one leads, or none.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Outlook {
    /// It does not know which coordinator leads: the store fails.
    Looking,
    /// The leader does not answer. It takes over, or hears from the leader, within seconds.
    Deciding,
    /// Another one leads, at this address.
    Waiting(String),
}

/// A candidate that stands for election.
pub(crate) struct Campaign {
    pub(crate) env: Env,
    pub(crate) store: Arc<dyn MetadataStore>,
    /// What this process drew at its start.
    pub(crate) candidate: u64,
    /// Where it answers.
    pub(crate) address: String,
    /// The cluster that this process has led. A store with another one is not written to.
    pub(crate) known: Option<ClusterId>,
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
    /// It holds another cluster than before.
    Another(ClusterId),
    /// Its leader's record is of an earlier term than one that was there; says so.
    WentBack(String),
}

impl Campaign {
    /// Waits until this candidate leads. `tell` hears how it stands meanwhile, `trouble` what is
    /// wrong with the store. `seen` is the newest term of which this process has seen a leader's
    /// record.
    ///
    /// # Errors
    /// See [`CampaignError`].
    pub(crate) async fn run(
        &self,
        seen: &mut Option<u64>,
        tell: impl Fn(Outlook),
        trouble: impl Fn(Option<&StoreError>),
    ) -> Result<Arc<Tenure>, CampaignError> {
        let clock = &self.env.clock;
        let give_up = clock.now() + FIRST_ANSWER;
        let mut answered = seen.is_some();
        let mut reported = false;
        loop {
            match self.round(seen, &tell).await {
                Ok(Some(tenure)) => {
                    *seen = Some(tenure.term());
                    trouble(None);
                    return Ok(tenure);
                }
                Ok(None) => {
                    (answered, reported) = (true, false);
                    trouble(None);
                }
                Err(Trouble::Final(error)) => return Err(error),
                Err(Trouble::Store(error)) => {
                    if !answered && clock.now() >= give_up {
                        return Err(CampaignError::Store(error));
                    }
                    if !reported {
                        tracing::warn!(%error, "asking again until it answers");
                        reported = true;
                    }
                    trouble(Some(&error));
                    tell(Outlook::Looking);
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
        seen: &mut Option<u64>,
        tell: &impl Fn(Outlook),
    ) -> Result<Option<Arc<Tenure>>, Trouble> {
        let Some(found) = self.get(LEADER).await? else {
            if seen.is_some() {
                return Err(Trouble::Final(CampaignError::Lost));
            }
            return self.found_nothing().await;
        };
        let record: LeaderRecord = decode(LEADER, &found)?;
        if let Some(newer) = seen.filter(|term| record.term < *term) {
            self.check_cluster().await?;
            let older = record.term;
            let why = format!("its leader's record is of term {older}, and was of term {newer}");
            return Err(Trouble::Final(CampaignError::WentBack(why)));
        }
        *seen = Some(record.term);
        if record.released || self.store.is_exclusive() {
            self.check_cluster().await?;
            return self.take_over(Some((found, record))).await;
        }
        let reaches_servers = match self.look_after(&record).await {
            Health::Leads => {
                tell(Outlook::Waiting(record.address));
                self.env.clock.sleep(WATCH).await;
                return Ok(None);
            }
            Health::LeadsNobody if !self.reaches_servers().await => {
                tell(Outlook::Waiting(record.address));
                self.env.clock.sleep(ANSWERED_PAUSE).await;
                return Ok(None);
            }
            Health::LeadsNobody => {
                let leader = &record.address;
                tracing::info!(leader, "the leading coordinator does not reach the servers");
                true
            }
            Health::Silent => {
                let leader = &record.address;
                tracing::info!(leader, "the leading coordinator does not answer");
                self.reaches_servers().await
            }
            Health::Gone => {
                tracing::info!(leader = record.address, "the leading coordinator is gone");
                false
            }
        };
        self.check_cluster().await?;
        tell(Outlook::Deciding);
        if self.challenge(&found, reaches_servers).await? {
            pluvio_units::mark("coordinator-takes-over");
            return self.take_over(Some((found, record))).await;
        }
        let Some(found) = self.get(LEADER).await? else {
            return Err(Trouble::Final(CampaignError::Lost));
        };
        let now: LeaderRecord = decode(LEADER, &found)?;
        if now.candidate == record.candidate && !now.released {
            tracing::info!(leader = record.address, "it answered through the store");
            tell(Outlook::Waiting(record.address));
            self.env.clock.sleep(ANSWERED_PAUSE).await;
        }
        Ok(None)
    }

    /// Looks whose data the store holds, before anything is written to it.
    async fn check_cluster(&self) -> Result<(), Trouble> {
        let Some(known) = self.known else {
            return Ok(());
        };
        let looking = timeout(
            &*self.env.clock,
            STORE_LIMIT,
            State::cluster_in(&*self.store),
        );
        match looking.await {
            Ok(Ok(Some(found))) if found == known => Ok(()),
            Ok(Ok(Some(found))) => Err(Trouble::Final(CampaignError::Another(found))),
            Ok(Ok(None)) => Err(Trouble::Final(CampaignError::Lost)),
            Ok(Err(LoadError::Store(error))) => Err(error.into()),
            // The part that reads the state says what is wrong with it.
            Ok(Err(LoadError::Format(_) | LoadError::Damaged(_))) => Ok(()),
            Err(_) => Err(StoreError(format!("does not answer within {STORE_LIMIT:?}")).into()),
        }
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

    /// How the leader of this record is.
    async fn look_after(&self, record: &LeaderRecord) -> Health {
        let clock = &self.env.clock;
        let mut suspicion = Suspicion::new(clock.now(), SILENCE);
        loop {
            let sent = clock.now();
            let (sign, reaches) = self.ping(record).await;
            match suspicion.ping(sign, sent, clock.now(), PING_LIMIT) {
                Verdict::Alive if reaches => return Health::Leads,
                Verdict::Alive => return Health::LeadsNobody,
                Verdict::Open => {}
                Verdict::Silent(_) => return Health::Silent,
                Verdict::Gone => return Health::Gone,
            }
            let took = clock.now().since(sent);
            let pause = match sign {
                Sign::Gone => Duration::from_millis(20),
                Sign::Alive | Sign::Silent => PING_LIMIT.saturating_sub(took),
            };
            clock.sleep(pause).await;
        }
    }

    /// The sign that a ping gives, and whether the leader says that it reaches servers.
    async fn ping(&self, record: &LeaderRecord) -> (Sign, bool) {
        let network = &*self.env.network;
        let to = Address::from(record.address.as_str());
        let asked =
            pluvio_wire::call(network, &to, Header::default(), &GetLeader {}, PING_LIMIT).await;
        match asked {
            Ok(reply) if reply.candidate != record.candidate => (Sign::Gone, false),
            Ok(reply) if reply.leads => (Sign::Alive, !reply.lost_servers),
            Err(RpcError::Call(CallError::Unreachable(_, NoConnection::Refused))) => {
                (Sign::Gone, false)
            }
            Ok(_) | Err(_) => (Sign::Silent, false),
        }
    }

    /// Whether more than half of the servers answer, of a few that are asked (LEAD-5).
    async fn reaches_servers(&self) -> bool {
        let loading = timeout(&*self.env.clock, LOAD_LIMIT, State::load(&*self.store));
        let Ok(Ok(Some(state))) = loading.await else {
            return false;
        };
        let mut servers: Vec<ServerInfo> = state.up().cloned().collect();
        self.env.rng.shuffle(&mut servers);
        servers.truncate(ASKED);
        let (network, cluster) = (&*self.env.network, state.globals.cluster);
        let asked = servers.iter().map(|server| async move {
            let answer = who_is_there(network, &server.address, PING_LIMIT).await;
            answer.is_ok_and(|reply| reply.is_by(cluster, server.id))
        });
        let answered = join_all(asked).await.into_iter().filter(|yes| *yes);
        2 * answered.count() > servers.len()
    }

    /// Challenges the leader of a record; gives whether the record stayed the same for long enough.
    async fn challenge(&self, found: &Bytes, reaches_servers: bool) -> Result<bool, Trouble> {
        let clock = &self.env.clock;
        let challenge = Challenge {
            candidate: self.candidate,
            nonce: self.env.rng.next_u64(),
            reaches_servers,
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

/// How a leader is, as far as a candidate can tell.
enum Health {
    /// It answers.
    Leads,
    /// It answers, and says that it reaches no servers.
    LeadsNobody,
    /// Nothing is heard of it.
    Silent,
    /// Its process is gone.
    Gone,
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
