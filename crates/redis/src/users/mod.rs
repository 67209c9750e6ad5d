//! Users, their passwords and their rights.
//!
//! Users belong to the cluster. They lie in the table `redis:users`: the name is the key, the rules
//! that make the user are the value. A server reads the table again and again, so its knowledge is
//! about a second old at most. Its own changes it knows at once.
//!
//! - USERS-1: a change of a user is computed on the rules that are kept, and made only if those are
//!   still kept. So of two changes at a time each is there afterwards.
//! - USERS-2: nobody is let in before the users are known. While they cannot be read, those read
//!   last count.
//! - USERS-3: at most one password is checked at a time, [`WAITING_MAX`] wait, and
//!   [`WAITING_OF_ONE_MAX`] of one address. After a wrong one the next begins [`WRONG_PAUSE`]
//!   later. One that was right is known again without all that.
//!
//! Any thread; locks are held for single steps. Shared by the ports of a server.

pub(crate) mod caller;
mod databases;
pub(crate) mod denials;
pub(crate) mod password;
pub(crate) mod rights;
pub(crate) mod rules;

use crate::failure::{TOO_MANY_LOGINS, TOO_MANY_USERS, UNREADABLE_USER, WRONG_PASSWORD, of_client};
use crate::reply::Failure;
use crate::shared::Elsewhere;
use core::fmt;
use core::time::Duration;
use denials::Denials;
use password::{Cost, Password, Recipe, Sha, Stored};
use pluvio_client::{
    Change, Client, ClientError, ErrorKind, Mutation, Outcome, RejectRules, Table,
};
use pluvio_env::{Clock, Moment, Rng};
use pluvio_units::{ObjectVersion, TableId};
use rules::{DEFAULT, User, check_name, is_of_password};
use sha2::{Digest, Sha256};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use tokio::sync::Semaphore;

/// The table.
const TABLE: &str = "redis:users";
/// How long what was read counts as new.
const FRESH: Duration = Duration::from_millis(500);
/// Most users: all of them are read each time.
const USERS_MAX: usize = 1000;
/// How often a change is tried that others come in between.
const TRIES_MAX: usize = 32;
/// Passwords that wait to be checked.
const WAITING_MAX: usize = 64;
/// Those of one address.
const WAITING_OF_ONE_MAX: usize = 16;
/// The pause after a wrong password.
const WRONG_PAUSE: Duration = Duration::from_millis(50);
/// Passwords that are known again.
const RECENT_MAX: usize = 4096;

/// Known users by their names. `default` is always among them.
type All = BTreeMap<Box<[u8]>, Arc<User>>;

/// What was read of the table.
type Versions = BTreeMap<Vec<u8>, ObjectVersion>;

struct Known {
    /// When the table was asked; `None`: not yet.
    asked: Option<Moment>,
    /// The number of that reading.
    done: u64,
    /// The number of the last reading, if it failed.
    failed: Option<(u64, Failure)>,
    all: Arc<All>,
    seen: Option<(TableId, Versions)>,
    table: Option<Table>,
    /// Passwords that were right lately, as keyed hashes.
    recent: BTreeSet<[u8; 32]>,
}

/// What is made once, when there is randomness.
struct Secrets {
    key: [u8; 32],
    /// `default` until somebody sets it.
    first: Arc<User>,
    /// For passwords of users that are not there, so that these take as long.
    dummy: Recipe,
}

/// The users of a server's Redis ports.
pub struct Users {
    password: Option<Password>,
    is_kept: bool,
    cost: Cost,
    secrets: OnceLock<Secrets>,
    known: Mutex<Known>,
    generation: AtomicU64,
    reading: tokio::sync::Mutex<()>,
    /// How many readings have begun.
    begun: AtomicU64,
    turn: Arc<Semaphore>,
    waiting: Mutex<BTreeMap<String, usize>>,
    /// When the next password may be checked.
    next: Arc<Mutex<Option<Moment>>>,
    pub(crate) denials: Denials,
}

impl Default for Users {
    /// `default` alone, without a password; others may be set, and only this server looks for them.
    fn default() -> Self {
        Self::new(None, false, Cost::USUAL)
    }
}

impl fmt::Debug for Users {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Users").finish_non_exhaustive()
    }
}

/// What is known of a password without computing.
pub(crate) enum Glance {
    /// It is right.
    In(Arc<User>),
    /// It has to be computed.
    Unknown,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A place among the passwords that wait.
struct Place<'u>(&'u Users, String);

impl Drop for Place<'_> {
    fn drop(&mut self) {
        let mut waiting = lock(&self.0.waiting);
        if let Some(count) = waiting.get_mut(&self.1) {
            *count -= 1;
            if *count == 0 {
                waiting.remove(&self.1);
            }
        }
    }
}

impl Users {
    /// `password` is that of `default`, as long as the cluster has no such user. `is_kept`: other
    /// servers may change users. `cost` is that of new passwords.
    #[must_use]
    pub fn new(password: Option<Password>, is_kept: bool, cost: Cost) -> Self {
        let first = Arc::new(User::default_user(None));
        Self {
            password,
            is_kept,
            cost,
            secrets: OnceLock::new(),
            known: Mutex::new(Known {
                asked: None,
                failed: None,
                done: 0,
                all: Arc::new(BTreeMap::from([(DEFAULT.into(), first)])),
                seen: None,
                table: None,
                recent: BTreeSet::new(),
            }),
            generation: AtomicU64::new(0),
            reading: tokio::sync::Mutex::default(),
            begun: AtomicU64::new(0),
            turn: Arc::new(Semaphore::new(1)),
            waiting: Mutex::default(),
            next: Arc::default(),
            denials: Denials::default(),
        }
    }

    /// Before the first connection. Computes a hash, if there is a password.
    pub(crate) fn prepare(&self, rng: &dyn Rng) {
        let mut is_new = false;
        let secrets = self.secrets.get_or_init(|| {
            is_new = true;
            let mut key = [0; 32];
            rng.fill_secret(&mut key);
            let recipe = self.recipe(rng);
            let sha = self.password.as_ref().map(Password::digest);
            let stored = sha.map(|sha| recipe.hash(sha));
            Secrets {
                key,
                first: Arc::new(User::default_user(stored)),
                dummy: recipe,
            }
        });
        if is_new {
            let first = &secrets.first;
            if let (Some(password), Some(stored)) = (&self.password, first.passwords.first()) {
                let tag = self.tag(first, password.digest(), stored);
                lock(&self.known).recent.insert(tag);
            }
            let all = BTreeMap::from([(DEFAULT.into(), Arc::clone(first))]);
            lock(&self.known).all = Arc::new(all);
            self.generation.fetch_add(1, Ordering::Release);
        }
    }

    fn secrets(&self) -> &Secrets {
        self.secrets.get().expect("prepared by the service")
    }

    fn recipe(&self, rng: &dyn Rng) -> Recipe {
        let mut salt = [0; 16];
        rng.fill_secret(&mut salt);
        Recipe {
            cost: self.cost,
            salt,
        }
    }

    /// Grows whenever a user has changed.
    pub(crate) fn generation(&self) -> u64 {
        // Pairs with the releases where it grows: the users of that generation are seen.
        self.generation.load(Ordering::Acquire)
    }

    /// All users as they are known.
    pub(crate) fn all(&self) -> Arc<All> {
        Arc::clone(&lock(&self.known).all)
    }

    pub(crate) fn get(&self, name: &[u8]) -> Option<Arc<User>> {
        lock(&self.known).all.get(name).cloned()
    }

    pub(crate) fn default_user(&self) -> Arc<User> {
        self.get(DEFAULT).expect("there always is one")
    }

    /// Whether a password of the configuration counts no more, because the cluster has a user
    /// `default`.
    #[must_use]
    pub(crate) fn password_is_unused(&self) -> bool {
        self.password.is_some() && self.default_user().life != 0
    }

    // --- reading ----------------------------------------------------------------------------

    /// Waits until the users are known (USERS-2).
    ///
    /// # Errors
    /// They cannot be read.
    pub(crate) async fn ready(&self, client: &Client, clock: &dyn Clock) -> Result<(), Failure> {
        let is_unknown = self.is_kept && lock(&self.known).asked.is_none();
        match is_unknown {
            true => self.read(client, clock).await,
            false => Ok(()),
        }
    }

    /// Reads the table, unless that was done a moment ago.
    ///
    /// # Errors
    /// It cannot be read; the users stay as they were known.
    pub(crate) async fn read_if_old(
        &self,
        client: &Client,
        clock: &dyn Clock,
    ) -> Result<(), Failure> {
        let is_fresh = |asked: Moment| clock.now().since(asked) < FRESH;
        let is_new = lock(&self.known).asked.is_some_and(is_fresh);
        match is_new {
            true => Ok(()),
            false => self.read(client, clock).await,
        }
    }

    /// Reads the table. Somebody who waits for another reading hears what came of that, and does
    /// not begin to wait anew.
    ///
    /// # Errors
    /// It cannot be read; the users stay as they were known.
    pub(crate) async fn read(&self, client: &Client, clock: &dyn Clock) -> Result<(), Failure> {
        let begun = self.begun.load(Ordering::Acquire);
        let _one = match self.reading.try_lock() {
            Ok(one) => one,
            Err(_) => {
                let one = self.reading.lock().await;
                let known = lock(&self.known);
                if let Some((number, failure)) = &known.failed
                    && *number >= begun
                {
                    return Err(failure.clone());
                }
                drop(known);
                one
            }
        };
        // Somebody else began to read after that, and has read.
        if lock(&self.known).done > begun {
            return Ok(());
        }
        let (now, number) = (clock.now(), self.begun.fetch_add(1, Ordering::AcqRel) + 1);
        let read = self.read_now(client, (now, number)).await;
        let failure = read.as_ref().err().cloned();
        lock(&self.known).failed = failure.map(|failure| (number, failure));
        read
    }

    async fn read_now(&self, client: &Client, (now, number): (Moment, u64)) -> Result<(), Failure> {
        let mut read = BTreeMap::new();
        let table = self.existing(client).await?;
        if let Some(table) = &table {
            let mut enumeration = client.enumerate(table);
            loop {
                let batch = enumeration.next_batch().await;
                let Some(Some(objects)) = self.unless_dropped(batch)? else {
                    break;
                };
                for object in objects {
                    read.insert(object.key, (object.version, object.value));
                }
            }
        }
        let versions: Versions = read
            .iter()
            .map(|(name, (version, _))| (name.clone(), *version))
            .collect();
        let seen = table.map(|table| (table.id(), versions));
        let mut known = lock(&self.known);
        known.asked = Some(now);
        known.done = number;
        if known.seen == seen {
            return Ok(());
        }
        let mut all = BTreeMap::from([(DEFAULT.into(), Arc::clone(&self.secrets().first))]);
        for (name, (_, record)) in read {
            match User::of_record(&name, &record) {
                Some(user) => drop(all.insert(name.into(), Arc::new(user))),
                // It cannot log in.
                None => drop(all.insert(name[..].into(), Arc::new(User::new(&name, u64::MAX)))),
            }
        }
        known.all = Arc::new(all);
        known.seen = seen;
        drop(known);
        self.generation.fetch_add(1, Ordering::Release);
        Ok(())
    }

    async fn existing(&self, client: &Client) -> Result<Option<Table>, Failure> {
        let known = lock(&self.known).table.clone();
        if known.is_some() {
            return Ok(known);
        }
        match client.table(TABLE).await {
            Ok(table) => {
                lock(&self.known).table = Some(table.clone());
                Ok(Some(table))
            }
            Err(error) if error.kind() == ErrorKind::NoSuchTable => Ok(None),
            Err(error) => Err(of_client(&error)),
        }
    }

    /// `None` when the table was dropped.
    fn unless_dropped<T>(&self, result: Result<T, ClientError>) -> Result<Option<T>, Failure> {
        match result {
            Ok(done) => Ok(Some(done)),
            Err(error) if error.kind() == ErrorKind::NoSuchTable => {
                lock(&self.known).table = None;
                Ok(None)
            }
            Err(error) => Err(of_client(&error)),
        }
    }

    // --- changing ---------------------------------------------------------------------------

    /// Applies rules to a user, who is made if there is none (USERS-1). Whether it is new.
    ///
    /// # Errors
    /// A rule makes no sense, or it cannot be kept; unless the failure leaves that open, nothing
    /// was changed.
    pub(crate) async fn change(
        &self,
        tools: Tools<'_>,
        name: &[u8],
        rules: Vec<Vec<u8>>,
    ) -> Result<bool, Failure> {
        check_name(name)?;
        if !User::takes(&rules) {
            return Err(Failure::new(format!("ERR {}", rules::RuleError::TooMany)));
        }
        let Tools {
            client, clock, rng, ..
        } = tools;
        let rules = Arc::new(rules);
        // The table is made once the rules have made sense.
        let mut table = self.existing(client).await?;
        for _ in 0..TRIES_MAX {
            let found = match &table {
                Some(table) => self.unless_dropped(client.read(table, name).await)?,
                None => Some(None),
            };
            let Some(found) = found else {
                table = None;
                continue;
            };
            let version = found.as_ref().map(|object| object.version);
            let user = match &found {
                // Written by a newer version, perhaps. It must not be lost.
                Some(object) => User::of_record(name, &object.value).ok_or(UNREADABLE_USER)?,
                None if name == DEFAULT => {
                    User::clone(&self.secrets().first).in_life(self.life(rng))
                }
                None if self.all().len() >= USERS_MAX => return Err(TOO_MANY_USERS),
                None => User::new(name, self.life(rng)),
            };
            let user = self.apply(tools, user, Arc::clone(&rules)).await?;
            let place = match &table {
                Some(table) => table,
                None => {
                    // At one server: all of it is read again and again.
                    let created = client.create_table(TABLE, Some(1)).await;
                    let created = created.map_err(|error| of_client(&error))?;
                    lock(&self.known).table = Some(created.clone());
                    table.insert(created)
                }
            };
            let record = bytes::Bytes::from(user.record());
            let mut put = Mutation::new(place.id(), name, Change::Put((&record).into()));
            put.rules = match version {
                Some(version) => RejectRules {
                    does_not_exist: true,
                    version_not_equal: Some(version),
                    ..RejectRules::NONE
                },
                None => RejectRules::EXISTS,
            };
            match self.unless_dropped(client.mutate(place, put).await)? {
                Some(Outcome::Rejected { .. }) => {}
                Some(_) => {
                    self.read(client, &**clock).await?;
                    return Ok(version.is_none());
                }
                None => table = None,
            }
        }
        Err(crate::failure::CONTENDED)
    }

    fn life(&self, rng: &dyn Rng) -> u64 {
        // 0 is that of users that are kept nowhere.
        rng.next_u64().max(1)
    }

    async fn apply(
        &self,
        tools: Tools<'_>,
        mut user: User,
        rules: Arc<Vec<Vec<u8>>>,
    ) -> Result<User, Failure> {
        let recipe = self.recipe(tools.rng);
        let takes_long = rules.iter().any(|rule| is_of_password(rule));
        let work = move || {
            for rule in &*rules {
                user.apply(rule, recipe).map_err(|error| {
                    let start = b"ERR Error in ACL SETUSER modifier '";
                    let end = format!("': {error}");
                    Failure::new([&start[..], shown(rule), end.as_bytes()].concat())
                })?;
            }
            match user.fits() {
                true => Ok(user),
                false => Err(Failure::new(format!("ERR {}", rules::RuleError::TooMany))),
            }
        };
        match takes_long {
            false => work(),
            true => {
                let turn = Arc::clone(&self.turn).acquire_owned().await;
                let turn = turn.expect("it is never closed");
                let work = move || (work(), drop(turn)).0;
                elsewhere(tools.elsewhere, work).await
            }
        }
    }

    /// Deletes users. How many there were.
    ///
    /// # Errors
    /// It cannot be done, or only in part.
    pub(crate) async fn delete(
        &self,
        tools: Tools<'_>,
        names: impl Iterator<Item = &[u8]>,
    ) -> Result<Vec<Vec<u8>>, Failure> {
        let Tools { client, clock, .. } = tools;
        let mut deleted = Vec::new();
        if let Some(table) = self.existing(client).await? {
            for name in names {
                let delete = Mutation {
                    rules: RejectRules {
                        does_not_exist: true,
                        ..RejectRules::NONE
                    },
                    ..Mutation::new(table.id(), name, Change::Delete)
                };
                match self.unless_dropped(client.mutate(&table, delete).await)? {
                    Some(Outcome::Rejected { .. }) => {}
                    Some(_) => deleted.push(name.to_vec()),
                    None => break,
                }
            }
        }
        if !deleted.is_empty() {
            self.read(client, &**clock).await?;
        }
        Ok(deleted)
    }

    // --- passwords --------------------------------------------------------------------------

    /// What stands for a password that was right.
    fn tag(&self, user: &User, sha: Sha, stored: &Stored) -> [u8; 32] {
        let mut hash = Sha256::new();
        hash.update(self.secrets().key);
        hash.update(user.life.to_be_bytes());
        hash.update(stored.recipe.salt);
        hash.update(stored.hash());
        hash.update(sha.bytes());
        hash.finalize().into()
    }

    /// Looks whether a password is known.
    pub(crate) fn glance(&self, name: &[u8], sha: Sha) -> Glance {
        let known = lock(&self.known);
        let Some(user) = known.all.get(name).filter(|user| user.is_on) else {
            return Glance::Unknown;
        };
        let mut passwords = user.passwords.iter();
        let is_recent = |stored: &Stored| known.recent.contains(&self.tag(user, sha, stored));
        match user.needs_none || passwords.any(is_recent) {
            true => Glance::In(Arc::clone(user)),
            false => Glance::Unknown,
        }
    }

    fn take_place(&self, peer: &str) -> Option<Place<'_>> {
        // All ports of one machine are one address.
        let address = peer.rsplit_once(':').map_or(peer, |(host, _)| host);
        let mut waiting = lock(&self.waiting);
        let all: usize = waiting.values().sum();
        let own = waiting.get(address).copied().unwrap_or(0);
        if all >= WAITING_MAX || own >= WAITING_OF_ONE_MAX {
            return None;
        }
        *waiting.entry(address.to_owned()).or_default() += 1;
        Some(Place(self, address.to_owned()))
    }

    /// Checks a password (USERS-3).
    ///
    /// # Errors
    /// It is wrong, or too many others wait.
    pub(crate) async fn check(
        &self,
        tools: Tools<'_>,
        peer: &str,
        name: &[u8],
        sha: Sha,
    ) -> Result<Arc<User>, Failure> {
        let _place = self.take_place(peer).ok_or(TOO_MANY_LOGINS)?;
        let turn = Arc::clone(&self.turn).acquire_owned().await;
        let turn = turn.expect("it is never closed");
        let pause = lock(&self.next).map(|next| next.since(tools.clock.now()));
        if let Some(pause) = pause.filter(|pause| !pause.is_zero()) {
            tools.clock.sleep(pause).await;
        }
        if let Glance::In(user) = self.glance(name, sha) {
            return Ok(user);
        }
        let user = self.get(name).filter(|user| user.is_on);
        let dummy = self.secrets().dummy;
        let (next, clock) = (Arc::clone(&self.next), Arc::clone(tools.clock));
        let work = move || {
            let found = match &user {
                Some(user) if !user.passwords.is_empty() => user.find(sha).copied(),
                Some(_) | None => {
                    let _as_long = dummy.hash(sha);
                    None
                }
            };
            if found.is_none() {
                *lock(&next) = Some(clock.now() + WRONG_PAUSE);
            }
            // Not before: whoever waited may be gone.
            drop(turn);
            found.zip(user)
        };
        let (stored, user) = elsewhere(tools.elsewhere, work)
            .await
            .ok_or(WRONG_PASSWORD)?;
        let tag = self.tag(&user, sha, &stored);
        let mut known = lock(&self.known);
        if known.recent.len() >= RECENT_MAX {
            known.recent.clear();
        }
        known.recent.insert(tag);
        Ok(user)
    }
}

/// What of a rule is told back.
fn shown(rule: &[u8]) -> &[u8] {
    match rule.first() {
        Some(b'>') => b">(redacted)",
        Some(b'<') => b"<(redacted)",
        _ => rule,
    }
}

/// What the work on users needs.
#[derive(Clone, Copy)]
pub(crate) struct Tools<'t> {
    pub(crate) client: &'t Client,
    pub(crate) clock: &'t Arc<dyn Clock>,
    pub(crate) rng: &'t dyn Rng,
    pub(crate) elsewhere: Option<&'t Elsewhere>,
}

/// Does work that takes long, outside the event loop if there is a way.
async fn elsewhere<T: Send + 'static>(
    elsewhere: Option<&Elsewhere>,
    work: impl FnOnce() -> T + Send + 'static,
) -> T {
    let Some(elsewhere) = elsewhere else {
        return work();
    };
    let (done, result) = tokio::sync::oneshot::channel();
    let run = elsewhere.0(Box::new(move || drop(done.send(work()))));
    run.await;
    result.await.expect("the work is done")
}
