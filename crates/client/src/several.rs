//! Transactions whose keys belong to several servers (`docs/transactions.md`).
//!
//! ```text
//!  client                  server of the home key            other servers
//!    │ prepare ───────────────► locks, votes                       │
//!    │ prepare ──────────────────────────────────────────► locks, votes
//!    │ ◄──────────── yes ───────────┘                              │
//!    │ ◄──────────── yes ──────────────────────────────────────────┘
//!   the caller is told: all votes are durable, so it is committed
//!    │ decide ────────────────► records it                         │
//!    │ release ──────────────────────────────────────────► keys become what they are to be
//!    │ release ───────────────► the home key, last                 │
//! ```
//!
//! - SEVERAL-1: it is committed exactly when all owners vote yes. Then nothing can abort it: the
//!   decision is recorded once, and whoever asks the owners finds the same votes.
//! - SEVERAL-2: the home key is released last. So as long as any key is locked, its owner finds
//!   there which keys there are, and what was decided.
//! - SEVERAL-3: nobody waits for a lock while it holds others, except in the order of servers. So
//!   transactions do not wait for each other in a circle.
//! - SEVERAL-4: nobody waits for room while it holds locks. An owner without room makes the others
//!   release their keys, and it is tried again after a pause.
//!
//! When the client dies, the servers whose keys are locked go on in its place
//! ([`Client::resolve`]).

mod reads;
mod requests;

pub use reads::ReadFirst;

use crate::client::Client;
use crate::error::{ClientError, ErrorKind};
use crate::request::DataRequest;
use crate::retry::Attempts;
use crate::table::Table;
use core::time::Duration;
use futures_util::future::join_all;
use pluvio_env::Backoff;
use pluvio_units::{
    ClientId, DECISION, KeyHash, KeyPlace, OperationId, SequenceNumber, ServerId, Share, TableId,
    VOTES_KEPT,
};
use pluvio_wire::{
    Decide, Decided, FatalKind, Outcome, Release, RetryReason, TransactionStep, Vote, Whole,
};
use requests::{Prepare, ReleaseOf};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, Ordering};

/// How long an owner is asked again to lock keys that others have locked, while more are locked.
const PATIENCE: Duration = Duration::from_millis(2);
/// The same where owners are asked in their order.
const PATIENCE_IN_ORDER: Duration = Duration::from_secs(1);
/// After this many conflicts owners are asked in their order, one after the other.
const CONFLICTS_AT_ONCE: u32 = 2;
/// How long an aborted transaction is concluded at servers that have no room. Then they go on
/// alone.
const ROOM_TO_ABORT: Duration = Duration::from_millis(100);
/// The pauses before a transaction that met others is tried again.
const BACKOFF: Backoff = Backoff::new(Duration::from_micros(100), Duration::from_millis(20));

/// The steps of a transaction that one server has.
struct Part<'s> {
    sequence: SequenceNumber,
    /// The numbers of the steps among all.
    numbers: Vec<usize>,
    steps: Vec<TransactionStep<'s>>,
    tables: Vec<&'s Table>,
}

impl Part<'_> {
    fn key(&self, at: usize) -> KeyPlace {
        let operation = &self.steps[at].operation;
        let hash = operation.hash().expect("it was computed before");
        (operation.table(), hash)
    }

    fn share(&self) -> Share {
        let mut seen = BTreeSet::new();
        let all = (0..self.steps.len()).map(|at| self.key(at));
        let keys = all.filter(|key| seen.insert(*key)).collect();
        Share {
            sequence: self.sequence,
            keys,
        }
    }
}

/// A transaction under way.
struct Under<'s> {
    client: ClientId,
    parts: Vec<Part<'s>>,
    shares: Vec<Share>,
    /// Whether a request to lock keys was not answered. It may arrive late.
    is_one_lost: AtomicBool,
}

impl Under<'_> {
    /// Whether nobody will ask about it once it is over: nothing of it is on its way.
    fn forgets(&self) -> bool {
        !self.is_one_lost.load(Ordering::Relaxed)
    }

    fn home(&self) -> KeyPlace {
        self.shares[0].keys[0]
    }

    fn conclusion<'t>(&'t self, tables: &'t BTreeMap<TableId, Table>) -> Conclusion<'t> {
        Conclusion {
            client: self.client,
            home: self.home(),
            shares: &self.shares,
            tables,
            forgets: self.forgets(),
        }
    }
}

/// A transaction that is to be decided, and its keys released, as far as the caller knows it.
#[derive(Clone, Copy)]
struct Conclusion<'t> {
    client: ClientId,
    home: KeyPlace,
    /// Its keys. Needed where the home key, which tells them, is not locked.
    shares: &'t [Share],
    /// Handles of its tables. Others are looked up.
    tables: &'t BTreeMap<TableId, Table>,
    /// Nobody will ask for a vote any more.
    forgets: bool,
}

/// A transaction that is decided.
#[derive(Clone, Copy)]
struct Decision {
    client: ClientId,
    committed: bool,
    /// Nobody will ask for a vote any more.
    forgets: bool,
}

/// A key that a transaction has locked for long, as its server found it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Doubt {
    /// The client of the transaction.
    pub client: ClientId,
    /// Its home key.
    pub home: KeyPlace,
    /// Locked keys of this server.
    pub keys: Vec<KeyPlace>,
}

/// What the votes of an attempt come to.
enum Votes {
    /// All are yes: the outcomes of all steps.
    Committed(Vec<Outcome>),
    /// A step that must hold does not.
    Refused(usize, Outcome),
    /// It is to be tried again: others are in the way, or keys have moved.
    Again { moved: bool },
    /// The same, as an owner has no room: why, in words too.
    Full(RetryReason, String),
    /// It cannot be done.
    Failed(ClientError),
}

impl Client {
    /// Does all steps at one moment, or none, where they have several owners.
    pub(crate) async fn transact_several(
        &self,
        steps: &[TransactionStep<'_>],
        tables: &[&Table],
    ) -> Result<Outcome, ClientError> {
        let mut attempts = self.attempts().at_most(VOTES_KEPT);
        let mut conflicts = 0;
        loop {
            let Some(under) = self.divide(steps, tables) else {
                attempts.failed(
                    "a tablet of the transaction is not served".to_owned(),
                    Some(RetryReason::TabletNotReady),
                );
                attempts.pause(Duration::ZERO).await?;
                self.learn_tablets(tables).await?;
                continue;
            };
            let votes = self.prepare_all(&under, conflicts, &attempts).await;
            let moved = match self.votes(&under, votes, &attempts).await? {
                Votes::Committed(outcomes) => {
                    return Ok(Outcome::Together {
                        committed: true,
                        steps: outcomes.into(),
                    });
                }
                Votes::Refused(step, outcome) => {
                    // As many as an only owner would tell.
                    let before = (0..step).map(|_| outcome.clone());
                    return Ok(Outcome::Together {
                        committed: false,
                        steps: before.chain([outcome.clone()]).collect(),
                    });
                }
                Votes::Failed(error) => return Err(error),
                Votes::Full(reason, why) => {
                    attempts.failed(why, Some(reason));
                    attempts.pause(Duration::ZERO).await?;
                    continue;
                }
                Votes::Again { moved } => moved,
            };
            // It met something else than a full memory.
            attempts.progressed();
            if attempts.is_over() {
                attempts.failed(RetryReason::Locked.to_string(), Some(RetryReason::Locked));
                return Err(attempts.timed_out());
            }
            if moved {
                self.learn_tablets(tables).await?;
            }
            conflicts += 1;
            self.pause_after(conflicts).await;
        }
    }

    /// Waits before the next try of a transaction with this number of conflicts, at least one.
    pub(crate) async fn pause_after(&self, conflicts: u32) {
        let parts = &self.shared.parts;
        BACKOFF
            .pause(&*parts.clock, &*parts.rng, conflicts - 1)
            .await;
    }

    /// The parts of a transaction by their owners, in the order of those; `None` while one is not
    /// known.
    fn divide<'s>(
        &self,
        steps: &'s [TransactionStep<'_>],
        tables: &'s [&'s Table],
    ) -> Option<Under<'s>> {
        let mut parts: BTreeMap<ServerId, Part<'s>> = BTreeMap::new();
        for (number, (step, table)) in steps.iter().zip(tables).enumerate() {
            let owner = table.owner(step.operation.hash()?)?;
            let part = parts.entry(owner).or_insert_with(|| Part {
                sequence: SequenceNumber(0),
                numbers: Vec::new(),
                steps: Vec::new(),
                tables: Vec::new(),
            });
            part.numbers.push(number);
            part.steps.push(*step);
            part.tables.push(table);
        }
        let mut parts: Vec<_> = parts.into_values().collect();
        for (at, part) in parts.iter_mut().enumerate() {
            part.sequence = SequenceNumber(DECISION.0 + 1 + at as u64);
        }
        let shares = parts.iter().map(Part::share).collect();
        // Zero means "no identity".
        let client = ClientId(self.shared.parts.rng.next_u64().max(1));
        Some(Under {
            client,
            parts,
            shares,
            is_one_lost: AtomicBool::new(false),
        })
    }

    /// Asks all owners to lock their keys: all at once, or one after the other where others are in
    /// the way again and again (SEVERAL-3).
    async fn prepare_all(
        &self,
        under: &Under<'_>,
        conflicts: u32,
        attempts: &Attempts<'_>,
    ) -> Vec<Option<Result<Outcome, ClientError>>> {
        if conflicts < CONFLICTS_AT_ONCE {
            let all = (0..under.parts.len()).map(|at| self.prepare(under, at, PATIENCE, attempts));
            return join_all(all).await.into_iter().map(Some).collect();
        }
        let mut votes: Vec<_> = under.parts.iter().map(|_| None).collect();
        for (at, vote) in votes.iter_mut().enumerate() {
            let prepared = self.prepare(under, at, PATIENCE_IN_ORDER, attempts).await;
            let is_yes = prepared.as_ref().is_ok_and(is_yes);
            *vote = Some(prepared);
            if !is_yes {
                break;
            }
        }
        votes
    }

    async fn prepare(
        &self,
        under: &Under<'_>,
        at: usize,
        patience: Duration,
        attempts: &Attempts<'_>,
    ) -> Result<Outcome, ClientError> {
        let part = &under.parts[at];
        let (_, hash) = part.key(0);
        let request = Prepare {
            part,
            whole: Whole {
                home: under.home(),
                shares: match at {
                    0 => under.shares.clone(),
                    _ => Vec::new(),
                },
            },
            operation: OperationId {
                client: under.client,
                sequence: part.sequence,
                acknowledged_below: DECISION,
                retry_ms: VOTES_KEPT.as_millis() as u32,
            },
            patience,
            is_one_lost: &under.is_one_lost,
        };
        let attempts = attempts.clone().for_locks();
        self.on_hash_within(part.tables[0], hash, &request, attempts)
            .await
    }

    /// What the votes come to. Where they are not all yes, the transaction is aborted first.
    ///
    /// # Errors
    /// It may be committed, or not.
    async fn votes(
        &self,
        under: &Under<'_>,
        mut votes: Vec<Option<Result<Outcome, ClientError>>>,
        attempts: &Attempts<'_>,
    ) -> Result<Votes, ClientError> {
        let all_yes = |votes: &[Option<Result<Outcome, ClientError>>]| {
            votes
                .iter()
                .all(|vote| matches!(vote, Some(Ok(outcome)) if is_yes(outcome)))
        };
        if all_yes(&votes) {
            self.conclude_behind(under).await?;
            return Ok(Votes::Committed(in_order(under, votes)));
        }
        let tables = tables_of(under);
        let briefly = self.with_full_timeout(ROOM_TO_ABORT);
        let decided = briefly.conclude(under.conclusion(&tables), Some(false));
        let decided = decided.await;
        let refusal = refusal_among(under, &votes);
        let mut full = None;
        match decided {
            // Those who looked after it found that all had voted yes. The votes are kept.
            Ok(Some(true)) => {
                for (at, vote) in votes.iter_mut().enumerate() {
                    if !matches!(vote, Some(Ok(outcome)) if is_yes(outcome)) {
                        *vote = Some(self.prepare(under, at, VOTES_KEPT, attempts).await);
                    }
                }
                match all_yes(&votes) {
                    true => return Ok(Votes::Committed(in_order(under, votes))),
                    false => {
                        let why = "the outcome of a committed transaction is not known";
                        return Err(ClientError::MaybeExecuted(why.to_owned()));
                    }
                }
            }
            Ok(Some(false) | None) => {}
            // A vote that is no is enough to know.
            Err(_) if refusal.is_some() => {}
            // So is one that was not given, and never will be.
            Err(error) if votes.iter().any(|vote| is_never_yes(under, vote)) => {
                match error.full() {
                    Some(why) => full = Some(why),
                    None => return Ok(Votes::Failed(error.into_not_executed())),
                }
            }
            Err(error) => {
                let why = format!("nobody said what became of the transaction: {error}");
                return Err(ClientError::MaybeExecuted(why));
            }
        }
        if let Some((step, outcome)) = refusal {
            return Ok(Votes::Refused(step, outcome));
        }
        let mut moved = false;
        for error in votes.into_iter().flatten().filter_map(Result::err) {
            match (error.fatal_kind(), error.retry_reason()) {
                (Some(FatalKind::SeveralOwners), _) => moved = true,
                (None, Some(RetryReason::Locked | RetryReason::NotReady)) => {}
                _ => match error.full() {
                    Some(why) => full = Some(why),
                    None => return Ok(Votes::Failed(error.into_not_executed())),
                },
            }
        }
        Ok(match full {
            Some((reason, why)) => Votes::Full(reason, why),
            None => Votes::Again { moved },
        })
    }

    /// Concludes a committed transaction, while the caller goes on if there is somebody to do it.
    /// Of several tables one may be dropped, and the vote of its owner with it. So there the caller
    /// hears of it only when the decision is recorded and the keys are released.
    ///
    /// # Errors
    /// That could not be done in time.
    async fn conclude_behind(&self, under: &Under<'_>) -> Result<(), ClientError> {
        let client = self.clone();
        let (id, home) = (under.client, under.home());
        let (shares, forgets) = (under.shares.clone(), under.forgets());
        let tables = tables_of(under);
        let has_several_tables = tables.len() > 1;
        let task = async move {
            let mut attempts = client.attempts();
            let decide = Decide {
                client: id,
                home,
                wish: Some(true),
            };
            match client.decide(decide, &tables, &attempts).await {
                Ok(Decided {
                    committed: Some(true),
                    ..
                }) => {}
                // Its home key is gone. Only this client knows of the others what became of them.
                Err(error) if error.kind() == ErrorKind::NoSuchTable => {}
                Ok(other) => {
                    let why = format!("all have voted for what is decided otherwise: {other:?}");
                    return Err(ClientError::Protocol(why));
                }
                Err(error) => return Err(ClientError::MaybeExecuted(error.to_string())),
            }
            let decision = Decision {
                client: id,
                committed: true,
                forgets,
            };
            let released = client.release_all(decision, &shares, &tables, &mut attempts);
            // Where this fails, the servers go on.
            drop(released.await);
            Ok(())
        };
        match &self.shared.parts.tasks {
            Some(tasks) if !has_several_tables => {
                let task = async move { drop(task.await) };
                // Dropping the handle leaves it running.
                drop(tasks.spawn(self.core(), "transaction", task));
                Ok(())
            }
            Some(_) | None if has_several_tables => task.await,
            Some(_) | None => {
                drop(task.await);
                Ok(())
            }
        }
    }

    /// Decides, as wished where nothing was decided yet, and releases all keys. Without a wish the
    /// votes decide. Gives what is decided; `None` where nothing is known of the transaction any
    /// more.
    async fn conclude(
        &self,
        conclusion: Conclusion<'_>,
        wish: Option<bool>,
    ) -> Result<Option<bool>, ClientError> {
        let Conclusion {
            client,
            home,
            shares: known,
            tables,
            forgets,
        } = conclusion;
        let decide = |wish| Decide { client, home, wish };
        let mut attempts = self.attempts();
        let mut decided = match self.decide(decide(wish), tables, &attempts).await {
            // Its home key is gone: nobody can have told that it is committed, but the client.
            Err(error) if error.kind() == ErrorKind::NoSuchTable => Decided {
                committed: Some(false),
                shares: Vec::new(),
            },
            decided => decided?,
        };
        if decided.committed.is_none() {
            let mut all_yes = true;
            for share in &decided.shares {
                let Some(key) = share.keys.first().copied() else {
                    let why = "a share of a transaction has no keys";
                    return Err(ClientError::Protocol(why.to_owned()));
                };
                let vote = Vote {
                    client,
                    sequence: share.sequence,
                    key,
                };
                let voted = self.on_place(vote.key, &vote, tables, &attempts).await;
                all_yes &= match voted {
                    Ok(voted) => voted.yes,
                    // A dropped table holds nothing that could be committed.
                    Err(error) if error.kind() == ErrorKind::NoSuchTable => false,
                    Err(error) => return Err(error),
                };
            }
            let decide = decide(Some(all_yes));
            decided = self.decide(decide, tables, &attempts).await?;
        }
        let Some(committed) = decided.committed else {
            return Ok(None);
        };
        let decision = Decision {
            client,
            committed,
            forgets,
        };
        let shares = match decided.shares.is_empty() {
            true => known,
            false => &decided.shares,
        };
        self.release_all(decision, shares, tables, &mut attempts)
            .await?;
        Ok(Some(committed))
    }

    async fn decide(
        &self,
        decide: Decide,
        tables: &BTreeMap<TableId, Table>,
        attempts: &Attempts<'_>,
    ) -> Result<Decided, ClientError> {
        self.on_place(decide.home, &decide, tables, attempts).await
    }

    async fn on_place<R: DataRequest>(
        &self,
        (table, hash): KeyPlace,
        request: &R,
        tables: &BTreeMap<TableId, Table>,
        attempts: &Attempts<'_>,
    ) -> Result<R::Done, ClientError> {
        let table = match tables.get(&table) {
            Some(table) => table.clone(),
            None => self.table_by_id(table).await?,
        };
        self.on_hash_within(&table, hash, request, attempts.clone())
            .await
    }

    /// Releases all keys, the home key last (SEVERAL-2).
    async fn release_all(
        &self,
        decision: Decision,
        shares: &[Share],
        tables: &BTreeMap<TableId, Table>,
        attempts: &mut Attempts<'_>,
    ) -> Result<(), ClientError> {
        let Some(home) = shares.first().and_then(|share| share.keys.first()) else {
            return Ok(());
        };
        let release = |keys: Vec<KeyPlace>, is_last: bool| {
            let is_there = |share: &&Share| {
                let first = share.keys.first();
                first.is_some_and(|first| keys.contains(first))
            };
            let known = shares.iter().filter(|_| decision.forgets).filter(is_there);
            let mut forget: Vec<_> = known.map(|share| share.sequence).collect();
            if is_last && decision.forgets {
                forget.push(DECISION);
            }
            Release {
                client: decision.client,
                committed: decision.committed,
                keys,
                forget,
            }
        };
        let keys = shares.iter().flat_map(|share| &share.keys);
        let mut left: Vec<KeyPlace> = keys.filter(|key| *key != home).copied().collect();
        let mut known = tables.clone();
        while !left.is_empty() {
            let mut by_owner: BTreeMap<Option<ServerId>, Vec<KeyPlace>> = BTreeMap::new();
            for (table, hash) in left.drain(..) {
                if let Some(handle) = self.known_table(table, &mut known).await? {
                    let owner = handle.owner(hash);
                    by_owner.entry(owner).or_default().push((table, hash));
                }
            }
            let shared = &*attempts;
            let known = &known;
            let each = by_owner.into_values().map(|keys| async move {
                let release = release(keys.clone(), false);
                (keys, self.release(release, known, shared).await)
            });
            for (keys, released) in join_all(each).await {
                match released {
                    Ok(()) => {}
                    // They have moved apart.
                    Err(error) if error.fatal_kind() == Some(FatalKind::SeveralOwners) => {
                        left.extend(keys);
                    }
                    Err(error) if error.kind() == ErrorKind::NoSuchTable => {
                        // Of several tables, the others go on alone.
                        let gone = keys[0].0;
                        left.extend(keys.into_iter().filter(|(table, _)| *table != gone));
                    }
                    Err(error) => return Err(error),
                }
            }
            if !left.is_empty() {
                attempts.failed("the keys of a transaction move".to_owned(), None);
                attempts.pause(Duration::ZERO).await?;
            }
        }
        if self.known_table(home.0, &mut known).await?.is_none() {
            return Ok(());
        }
        let last = release(vec![*home], true);
        match self.release(last, &known, attempts).await {
            Err(error) if error.kind() == ErrorKind::NoSuchTable => Ok(()),
            released => released,
        }
    }

    /// The handle of a table; `None` when it was dropped.
    async fn known_table(
        &self,
        id: TableId,
        known: &mut BTreeMap<TableId, Table>,
    ) -> Result<Option<Table>, ClientError> {
        if let Some(table) = known.get(&id) {
            return Ok(Some(table.clone()));
        }
        match self.table_by_id(id).await {
            Ok(table) => {
                known.insert(id, table.clone());
                Ok(Some(table))
            }
            Err(error) if error.kind() == ErrorKind::NoSuchTable => Ok(None),
            Err(error) => Err(error),
        }
    }

    async fn release(
        &self,
        release: Release,
        tables: &BTreeMap<TableId, Table>,
        attempts: &Attempts<'_>,
    ) -> Result<(), ClientError> {
        let (table, hash): (TableId, KeyHash) = release.keys[0];
        let request = ReleaseOf { release, tables };
        let table = &tables[&table];
        self.on_hash_within(table, hash, &request, attempts.clone())
            .await
    }

    /// Goes on with a transaction in place of its client, which may be gone: for servers whose keys
    /// it has locked for long. Gives whether it is over.
    ///
    /// # Errors
    /// See [`Client`]. Nothing is lost by trying again.
    pub async fn resolve(&self, doubt: &Doubt) -> Result<Option<bool>, ClientError> {
        let none = BTreeMap::new();
        let asked = Conclusion {
            client: doubt.client,
            home: doubt.home,
            shares: &[],
            tables: &none,
            forgets: false,
        };
        let known = self.conclude(asked, None).await?;
        // Locks of messages that came late: the transaction is over, and its keys were released
        // before its home key was.
        let late = Share {
            sequence: DECISION,
            keys: doubt.keys.clone(),
        };
        let mut attempts = self.attempts();
        let decision = Decision {
            client: doubt.client,
            committed: false,
            forgets: false,
        };
        self.release_all(decision, &[late], &none, &mut attempts)
            .await?;
        Ok(known)
    }
}

/// Whether the vote is no, or it is none and nothing is on its way that would bring a yes.
fn is_never_yes(under: &Under<'_>, vote: &Option<Result<Outcome, ClientError>>) -> bool {
    match vote {
        None => true,
        Some(Ok(outcome)) => !is_yes(outcome),
        Some(Err(error)) => under.forgets() && !error.maybe_executed(),
    }
}

fn is_yes(outcome: &Outcome) -> bool {
    matches!(
        outcome,
        Outcome::Together {
            committed: true,
            ..
        }
    )
}

fn tables_of(under: &Under<'_>) -> BTreeMap<TableId, Table> {
    let tables = under.parts.iter().flat_map(|part| &part.tables);
    tables.map(|table| (table.id(), (*table).clone())).collect()
}

/// The outcomes of all steps, in the order of the steps.
fn in_order(under: &Under<'_>, votes: Vec<Option<Result<Outcome, ClientError>>>) -> Vec<Outcome> {
    let mut all: Vec<(usize, Outcome)> = Vec::new();
    for (part, vote) in under.parts.iter().zip(votes) {
        if let Some(Ok(Outcome::Together { steps, .. })) = vote {
            all.extend(part.numbers.iter().copied().zip(steps.iter().cloned()));
        }
    }
    all.sort_by_key(|(number, _)| *number);
    all.into_iter().map(|(_, outcome)| outcome).collect()
}

/// The first step that must hold and does not, as far as owners said.
fn refusal_among(
    under: &Under<'_>,
    votes: &[Option<Result<Outcome, ClientError>>],
) -> Option<(usize, Outcome)> {
    let refused = under.parts.iter().zip(votes).filter_map(|(part, vote)| {
        let Some(Ok(Outcome::Together {
            committed: false,
            steps,
        })) = vote
        else {
            return None;
        };
        // None: others said "no" for it.
        let last = steps.len().checked_sub(1)?;
        Some((*part.numbers.get(last)?, steps[last].clone()))
    });
    refused.min_by_key(|(number, _)| *number)
}
