//! A leader's work on the store, and how it notices that it leads no more.
//!
//! Locks: `chain` is held while a batch is stored, so batches follow each other. `seen` is for
//! single steps.

use super::contact::Contact;
use super::{
    CHALLENGE, CHECK, Challenge, LEADER, LEASE, LOOK, LeaderRecord, PARTS, STORE_LIMIT,
    STORE_RETRY, decode, encode,
};
use crate::store::{Change, Condition, Limits, MetadataStore, Outcome, StoreError};
use bytes::Bytes;
use core::fmt;
use core::time::Duration;
use futures_util::future::join;
use pluvio_env::{Env, Moment, timeout, watch};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The tenure has ended. Nothing more can be stored.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Deposed;

/// How a tenure ended.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum End {
    /// Another coordinator leads, or somebody asked for the end; says which.
    Over(String),
    /// It made room for another coordinator, which has not taken over yet (LEAD-5).
    GaveWay,
    /// The store has older records than were stored there; says what shows it. Nobody is to lead on
    /// them.
    WentBack(String),
}

impl fmt::Display for End {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Over(why) => f.write_str(why),
            Self::GaveWay => {
                f.write_str("it does not reach the servers, and another coordinator does")
            }
            Self::WentBack(why) => write!(f, "the metadata store has gone back: {why}"),
        }
    }
}

/// The time for which one coordinator leads.
pub(crate) struct Tenure {
    env: Env,
    store: Arc<dyn MetadataStore>,
    term: u64,
    candidate: u64,
    /// The record as it was stored last (LEAD-1).
    chain: tokio::sync::Mutex<LeaderRecord>,
    seen: Mutex<Seen>,
    contact: Mutex<Contact>,
    ended: watch::Sender<Option<End>>,
}

#[derive(Default)]
struct Seen {
    /// Until when this coordinator may act (LEAD-2). Not used where the store is exclusive.
    until: Moment,
    /// Its record is being released: it may be stored already, and another coordinator lead. Final.
    releasing: bool,
    /// The number of the record that was stored last, as far as that is known.
    number: u64,
    /// Why the store does not do what it is asked, if it does not.
    trouble: Option<String>,
    /// The batch that is to be stored failed, and is given to the store again.
    is_stuck: bool,
}

impl Tenure {
    /// Begins with the record that was just stored; the batch with it was begun at `sent`.
    pub(crate) fn begin(
        env: Env,
        store: Arc<dyn MetadataStore>,
        record: LeaderRecord,
        sent: Moment,
    ) -> Arc<Self> {
        let seen = Seen {
            until: sent + LEASE,
            number: record.number,
            ..Seen::default()
        };
        Arc::new(Self {
            env,
            store,
            term: record.term,
            candidate: record.candidate,
            chain: tokio::sync::Mutex::new(record),
            seen: Mutex::new(seen),
            contact: Mutex::default(),
            ended: watch::Sender::new(None),
        })
    }

    fn seen(&self) -> MutexGuard<'_, Seen> {
        // Held for single steps.
        self.seen.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What its pings show of the servers.
    pub(crate) fn contact(&self) -> MutexGuard<'_, Contact> {
        // Held for single steps.
        self.contact.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The store, for reading.
    pub(crate) fn store(&self) -> &dyn MetadataStore {
        &*self.store
    }

    pub(crate) fn term(&self) -> u64 {
        self.term
    }

    /// Whether this coordinator may answer and act now (LEAD-2).
    pub(crate) fn leads(&self) -> bool {
        let ended = self.ended.borrow().is_some();
        let seen = self.seen();
        let may_act = self.store.is_exclusive() || self.env.clock.now() < seen.until;
        !ended && !seen.releasing && may_act
    }

    /// Waits until [`Tenure::leads`]; for ever when it has ended.
    pub(crate) async fn until_it_leads(&self) {
        /// Short against a lease.
        const PAUSE: Duration = Duration::from_millis(50);
        while !self.leads() {
            self.env.clock.sleep(PAUSE).await;
        }
    }

    /// Why the store does not do what it is asked, if it does not.
    pub(crate) fn trouble(&self) -> Option<String> {
        let (trouble, releasing) = {
            let seen = self.seen();
            (seen.trouble.clone(), seen.releasing)
        };
        let is_slow = !releasing && !self.leads() && self.ended.borrow().is_none();
        trouble.or_else(|| {
            is_slow.then(|| {
                format!("metadata store is slow: it did not say within {LEASE:?} who leads, so nobody is told anything meanwhile")
            })
        })
    }

    /// Whether the store did not take the batch that it was given last, so that all others wait
    /// behind that one. One that can be read may be in this state and in no other trouble.
    pub(crate) fn is_stuck(&self) -> bool {
        self.seen().is_stuck
    }

    /// Waits for the end; gives how it came.
    pub(crate) async fn ended(&self) -> End {
        let mut ended = self.ended.subscribe();
        let waited = ended.wait_for(Option::is_some).await;
        waited.expect("the sender lives as long as this");
        let end = self.ended.borrow().clone();
        end.expect("an end is final")
    }

    fn end(&self, end: End) {
        self.ended.send_if_modified(|ended| {
            let first = ended.is_none();
            if first {
                *ended = Some(end);
            }
            first
        });
    }

    /// Ends the tenure because the store has older records than were stored there; `why` says what
    /// shows it.
    pub(crate) fn store_went_back(&self, why: String) {
        self.end(End::WentBack(why));
    }

    fn extend(&self, from: Moment) {
        let mut seen = self.seen();
        if !seen.releasing {
            seen.until = seen.until.max(from + LEASE);
        }
        // A store that can be read and takes nothing is in trouble all the same.
        if !seen.is_stuck {
            seen.trouble = None;
        }
    }

    /// Looks at the store now and then, and answers challenges; ends with the tenure.
    pub(crate) async fn keep(self: Arc<Self>) {
        if self.store.is_exclusive() {
            return self.check_store().await;
        }
        let mut answered = None;
        while self.ended.borrow().is_none() {
            if let Err(error) = self.look(&mut answered).await {
                self.troubled(&error);
            }
            self.env.clock.sleep(LOOK).await;
        }
    }

    /// Looks now and then whether an exclusive store still has what is stored.
    async fn check_store(&self) {
        let mut was_wrong = false;
        while self.ended.borrow().is_none() {
            self.env.clock.sleep(CHECK).await;
            let checked = self.store.check().await;
            if let Err(error) = &checked {
                self.troubled(error);
            } else if was_wrong && !self.is_stuck() {
                self.seen().trouble = None;
            }
            was_wrong = checked.is_err();
        }
    }

    async fn look(&self, answered: &mut Option<Bytes>) -> Result<(), StoreError> {
        let asked = self.env.clock.now();
        let number = self.seen().number;
        let (challenge, record) = join(self.get(CHALLENGE), self.get(LEADER)).await;
        let (challenge, record) = (challenge?, record?);
        if !self.is_mine(record.as_ref(), number)? {
            return Ok(());
        }
        if challenge == *answered {
            self.extend(asked);
            return Ok(());
        }
        // The challenger waits for another record.
        let mut chain = self.chain.lock().await;
        let gives_way = self.gives_way_to(challenge.as_ref());
        if gives_way {
            self.seen().releasing = true;
        }
        let stored = self.step(&mut chain, Vec::new(), |record| record.released = gives_way);
        if stored.await.is_ok() {
            *answered = challenge;
            if gives_way {
                self.end(End::GaveWay);
            }
        }
        Ok(())
    }

    /// LEAD-5.
    fn gives_way_to(&self, challenge: Option<&Bytes>) -> bool {
        let challenge = challenge.map(|bytes| decode::<Challenge>(CHALLENGE, bytes));
        // One that cannot be read is answered like any other.
        let better_off = matches!(challenge, Some(Ok(challenge)) if challenge.reaches_servers);
        better_off && self.contact().is_lost()
    }

    /// Whether the store has this tenure's record; ends the tenure otherwise. For callers that
    /// have read much, piece by piece.
    ///
    /// # Errors
    /// The store does not say.
    pub(crate) async fn holds_office(&self) -> Result<bool, StoreError> {
        let number = self.seen().number;
        let found = self.get(LEADER).await?;
        self.is_mine(found.as_ref(), number)
    }

    /// Whether a record that was just read is one of this tenure, and at least as new as this
    /// number, which was stored before. Ends the tenure otherwise.
    fn is_mine(&self, record: Option<&Bytes>, number: u64) -> Result<bool, StoreError> {
        let Some(bytes) = record else {
            let gone = "the leader's record is gone from the metadata store";
            self.end(End::Over(gone.into()));
            return Ok(false);
        };
        let record: LeaderRecord = decode(LEADER, bytes)?;
        if (record.term, record.candidate) != (self.term, self.candidate) {
            let successor = format!("the coordinator at {} took over", record.address);
            self.end(End::Over(successor));
            return Ok(false);
        }
        if record.number < number {
            let found = record.number;
            self.store_went_back(format!(
                "its last change is number {found}, and number {number} was stored"
            ));
            return Ok(false);
        }
        Ok(true)
    }

    async fn get(&self, key: &str) -> Result<Option<Bytes>, StoreError> {
        limited(&self.env, self.store.get(key)).await
    }

    fn troubled(&self, error: &StoreError) {
        let before = self.seen().trouble.replace(error.to_string());
        if before.as_deref() != Some(&error.to_string()) {
            tracing::error!(%error, "asking again until it answers, nothing is changed before");
        }
    }

    /// Stores a batch. Ends only when it is stored, however long the store fails.
    ///
    /// # Errors
    /// [`Deposed`]; then it is not stored, or was taken over with everything else.
    pub(crate) async fn apply(&self, batch: Vec<Change>) -> Result<(), Deposed> {
        let mut chain = self.chain.lock().await;
        let limits = self.room();
        if fits(&batch, limits) {
            return self.step(&mut chain, batch, |_| ()).await;
        }
        let parts = split(batch, limits);
        for (number, part) in parts.iter().enumerate() {
            let value = encode(part);
            let key = part_key(number);
            let put = vec![Change::Put { key, value }];
            self.step(&mut chain, put, |_| ()).await?;
        }
        let count = u32::try_from(parts.len()).expect("a batch has less than 2^32 changes");
        // From here on the batch is valid (LEAD-4).
        self.step(&mut chain, Vec::new(), |record| record.parts = count)
            .await?;
        let keys = (0..parts.len()).map(part_key).collect();
        self.unpack_parts(&mut chain, parts, keys).await
    }

    /// Finishes a large batch that a former leader has made valid. To be called before anything is
    /// read.
    ///
    /// # Errors
    /// The store cannot be read, or this coordinator does not lead any more: then nothing is to be
    /// done.
    pub(crate) async fn unpack(&self) -> Result<Result<(), Deposed>, StoreError> {
        let mut chain = self.chain.lock().await;
        let stored = limited(&self.env, self.store.list_prefix(PARTS)).await?;
        let valid = chain.parts as usize;
        let mut parts = Vec::new();
        for (key, bytes) in stored.iter().take(valid) {
            parts.push(decode::<Vec<Change>>(key, bytes)?);
        }
        if parts.len() < valid {
            let message = format!("lacks {} parts of a batch", valid - parts.len());
            return Err(StoreError(message));
        }
        // Others are of a batch that never became valid, or are left of one that is done.
        let keys: Vec<String> = stored.into_iter().map(|(key, _)| key).collect();
        if keys.is_empty() {
            return Ok(Ok(()));
        }
        Ok(self.unpack_parts(&mut chain, parts, keys).await)
    }

    async fn unpack_parts(
        &self,
        chain: &mut LeaderRecord,
        parts: Vec<Vec<Change>>,
        keys: Vec<String>,
    ) -> Result<(), Deposed> {
        for part in parts {
            self.step(chain, part, |_| ()).await?;
        }
        self.step(chain, Vec::new(), |record| record.parts = 0)
            .await?;
        // A leader that dies here leaves parts that mean nothing; the next leader removes them.
        let gone = keys.into_iter().map(|key| Change::Delete { key });
        for part in split(gone.collect(), self.room()) {
            self.step(chain, part, |_| ()).await?;
        }
        Ok(())
    }

    /// Ends the tenure so that others need not wait. Gives up when the store does not answer.
    pub(crate) async fn release(&self) {
        self.seen().releasing = true;
        let releasing = async {
            let mut chain = self.chain.lock().await;
            self.step(&mut chain, Vec::new(), |record| record.released = true)
                .await
        };
        // Late: others take over by themselves.
        let _ = timeout(&*self.env.clock, LEASE, releasing).await;
        self.end(End::Over("it was asked to".into()));
    }

    /// The room that the store's limits leave beside the leader's record, for one part's encoding
    /// too.
    fn room(&self) -> Limits {
        /// The leader's record, and what encoding adds to changes: some 20 bytes each.
        const RESERVED: usize = 4096;
        let limits = self.store.limits();
        Limits {
            changes: limits.changes.saturating_sub(1).max(1),
            bytes: limits.bytes.saturating_sub(RESERVED).max(1),
        }
    }

    /// Stores one batch that fits, with the next record (LEAD-1).
    async fn step(
        &self,
        chain: &mut LeaderRecord,
        mut batch: Vec<Change>,
        alter: impl FnOnce(&mut LeaderRecord),
    ) -> Result<(), Deposed> {
        /// The pause before a batch that was refused without need is given again.
        const AGAIN: Duration = Duration::from_millis(10);
        let mut next = chain.clone();
        next.number += 1;
        alter(&mut next);
        batch.push(next.put());
        let condition = Condition {
            key: LEADER.into(),
            value: Some(chain.encode()),
        };
        while self.ended.borrow().is_none() {
            let sent = self.env.clock.now();
            let tried = self.store.apply_if(condition.clone(), batch.clone());
            let failed = match limited(&self.env, tried).await {
                Ok(Outcome::Applied) => {
                    *chain = next;
                    {
                        let mut seen = self.seen();
                        seen.number = chain.number;
                        seen.is_stuck = false;
                    }
                    self.extend(sent);
                    return Ok(());
                }
                // Applied by an earlier try whose answer was lost, or somebody else leads.
                Ok(Outcome::Refused) => match self.get(LEADER).await {
                    Ok(Some(found)) if found == next.encode() => {
                        *chain = next;
                        let mut seen = self.seen();
                        seen.number = chain.number;
                        seen.trouble = None;
                        seen.is_stuck = false;
                        return Ok(());
                    }
                    // Still the one before: an answer of the store came late. Asked again.
                    Ok(found) => {
                        self.env.clock.sleep(AGAIN).await;
                        self.is_mine(found.as_ref(), chain.number).err()
                    }
                    Err(error) => Some(error),
                },
                Err(error) => Some(error),
            };
            if let Some(error) = failed {
                self.troubled(&error);
                self.seen().is_stuck = true;
                self.env.clock.sleep(STORE_RETRY).await;
            }
        }
        Err(Deposed)
    }
}

/// Asks the store with a limit.
pub(super) async fn limited<T>(
    env: &Env,
    asked: impl Future<Output = Result<T, StoreError>>,
) -> Result<T, StoreError> {
    timeout(&*env.clock, STORE_LIMIT, asked)
        .await
        .unwrap_or_else(|_| {
            Err(StoreError(format!(
                "does not answer within {STORE_LIMIT:?}"
            )))
        })
}

fn part_key(number: usize) -> String {
    format!("{PARTS}{number:08}")
}

fn fits(batch: &[Change], limits: Limits) -> bool {
    batch.len() <= limits.changes && batch.iter().map(Change::size).sum::<usize>() <= limits.bytes
}

/// Cuts a batch into parts that fit, also when encoded as the value of one change.
fn split(batch: Vec<Change>, limits: Limits) -> Vec<Vec<Change>> {
    /// What encoding adds to a change: names of variant and fields, lengths.
    const ENCODING: usize = 24;
    let mut parts: Vec<Vec<Change>> = Vec::new();
    let mut bytes = 0;
    for change in batch {
        let size = change.size() + ENCODING;
        match parts.last_mut() {
            Some(part) if part.len() < limits.changes && bytes + size <= limits.bytes => {
                bytes += size;
                part.push(change);
            }
            _ => {
                bytes = size;
                parts.push(vec![change]);
            }
        }
    }
    parts
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::{MemoryStore, Stop};
    use pluvio_env::BoxFuture;
    use pluvio_sim::{Sim, SimOptions};

    fn in_simulation(test: impl FnOnce(Env) -> BoxFuture<'static, ()>) {
        let sim = Sim::new(1, SimOptions::default());
        let process = sim.process("leader");
        sim.block_on(process.id, test(process.env), Duration::from_secs(10))
            .unwrap();
    }

    /// A tenure that has stored its first record.
    async fn tenure(env: &Env, store: &MemoryStore) -> Arc<Tenure> {
        let record = LeaderRecord {
            term: 1,
            candidate: 1,
            address: "leader".into(),
            number: 1,
            parts: 0,
            released: false,
        };
        let condition = Condition {
            key: LEADER.into(),
            value: None,
        };
        let sent = env.clock.now();
        let stored = store.apply_if(condition, vec![record.put()]).await;
        assert_eq!(stored, Ok(Outcome::Applied));
        Tenure::begin(env.clone(), Arc::new(store.clone()), record, sent)
    }

    fn batch(key: &str) -> Vec<Change> {
        vec![Change::Put {
            key: key.into(),
            value: "value".into(),
        }]
    }

    // shows: LEAD-1
    #[test]
    fn a_batch_on_a_store_that_was_set_back_ends_the_tenure() {
        in_simulation(|env| {
            Box::pin(async move {
                let store = MemoryStore::shared();
                let tenure = tenure(&env, &store).await;
                let before = store.dump();
                assert_eq!(tenure.apply(batch("first")).await, Ok(()));
                // As etcd is when it is restored from a snapshot of the same tenure.
                store.replace(before.clone());
                assert_eq!(tenure.apply(batch("second")).await, Err(Deposed));
                assert!(matches!(tenure.ended().await, End::WentBack(_)));
                assert!(!tenure.leads());
                assert_eq!(store.dump(), before);
            })
        });
    }

    // shows: LEAD-2, LEAD-3
    #[test]
    fn who_releases_its_record_does_not_lead_while_the_answer_is_late() {
        in_simulation(|env| {
            Box::pin(async move {
                let store = MemoryStore::shared();
                let tenure = tenure(&env, &store).await;
                // Stored, and never answered: another one takes over as soon as it sees that.
                store.set_stop(Some(Stop::After(1)));
                let looking = async {
                    env.clock.sleep(Duration::from_millis(10)).await;
                    let record: LeaderRecord = decode(LEADER, &store.dump()[LEADER]).unwrap();
                    assert!(record.released && !tenure.leads());
                    assert_eq!(tenure.trouble(), None);
                };
                join(tenure.release(), looking).await;
            })
        });
    }

    // shows: LEAD-4
    #[test]
    fn batches_are_cut_into_parts_that_fit() {
        let change = |n: usize| Change::Put {
            key: format!("k{n}"),
            value: vec![0; 100].into(),
        };
        let batch: Vec<_> = (0..10).map(change).collect();
        let limits = |changes, bytes| Limits { changes, bytes };
        assert!(fits(&batch, limits(10, 1020)) && !fits(&batch, limits(9, 1020)));
        for (limits, parts) in [
            (limits(4, 1 << 20), 3),
            (limits(9, 256), 5),
            (limits(1, 1), 10),
        ] {
            let cut = split(batch.clone(), limits);
            assert_eq!(cut.len(), parts, "{limits:?}");
            assert_eq!(cut.concat(), batch);
            for part in cut.iter().filter(|part| part.len() > 1) {
                assert!(fits(part, limits) && encode(part).len() <= limits.bytes + 64);
            }
        }
    }
}
