//! The scripts and libraries of functions that a cluster keeps.
//!
//! They lie in the table `redis:scripts`: a script under its hash, a library under its name. So a
//! script that was loaded through one server is called through any. A server remembers what it has
//! seen, up to [`CACHE_BYTES_MAX`] bytes of memory. Its knowledge of libraries is at most a second
//! old.
//!
//! - FUNCTION-1: libraries change at one moment, all that a command changes or none, and no two
//!   functions have one name. Each change compares and changes one object, the edition. So of
//!   two changes at the same time one sees the other.
//!
//! Any thread; locks are held for single steps, turns over awaits.

use crate::commands::library;
use crate::failure::{CONTENDED, NO_FUNCTION, NO_LIBRARY, NO_SCRIPT, of_client};
use crate::parser::Command;
use crate::reply::Failure;
use bytes::Bytes;
use core::pin::pin;
use core::time::Duration;
use futures_util::future::{Either, select};
use pluvio_client::{
    Change, Client, ErrorKind, Mutation, Operation, Table, Transacted, TransactionStep,
};
use pluvio_env::{Clock, Moment, timeout};
use pluvio_script::{Flags, Library, Shebang, Stop, sha1_hex};
use pluvio_units::{ObjectVersion, TableId};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio::sync::Notify;

/// Digits of the hash of a script.
pub(crate) const HASH_DIGITS: usize = 40;
/// The table.
const TABLE: &str = "redis:scripts";
/// What stands before the names of libraries: no hash begins so.
const LIBRARY: &[u8] = b"library ";
/// The key of the object that every change of libraries changes (FUNCTION-1). No library has an
/// empty name.
const EDITION: &[u8] = LIBRARY;
/// Most libraries of a cluster: replacing all of them is one transaction.
pub(crate) const LIBRARIES_MAX: usize = 2000;
/// How often a change of libraries is tried. Each time that it meets another one, that was made.
const EDITS_MAX: usize = 100;
/// Most bytes of memory for scripts that a server remembers.
const CACHE_BYTES_MAX: usize = 16 << 20;
/// Bytes that a script takes beside its source: its body, its name, and its entries in the maps.
/// Nodes of those are half full at the worst.
const SCRIPT_BYTES: usize = 512;
/// How old the known libraries may be.
const LIBRARIES_AGE: Duration = Duration::from_secs(1);
/// Turns of scripts (EVAL-2).
const TURNS: usize = 256;

/// A script or a function, ready to run.
#[derive(Clone, Debug)]
pub(crate) struct Body {
    pub(crate) source: Bytes,
    /// The hash of a script, the name of a function.
    pub(crate) name: Arc<str>,
    pub(crate) flags: Flags,
    pub(crate) is_library: bool,
}

/// Libraries and their sources, by their names.
pub(crate) type Known = Arc<BTreeMap<String, (Library, Bytes)>>;

/// The fate of libraries that are there when others are restored.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Existing {
    /// They stay; one of the same name is an error.
    Keep,
    /// They stay; one of the same name is an error, unless its source is the same.
    KeepEqual,
    /// Those of the same name are replaced.
    Replace,
    /// They go.
    Forget,
}

impl Existing {
    /// Whether one that is there prevents a new one.
    fn forbids(
        self,
        known: &BTreeMap<String, (Library, Bytes)>,
        name: &str,
        source: &Bytes,
    ) -> bool {
        let there = known.get(name).map(|(_, source)| source);
        match self {
            Self::Keep => there.is_some(),
            Self::KeepEqual => there.is_some_and(|there| there != source),
            Self::Replace | Self::Forget => false,
        }
    }
}

#[derive(Default)]
struct Libraries {
    /// When they were asked for.
    asked: Option<Moment>,
    all: Known,
}

/// Scripts that were seen before.
#[derive(Default)]
struct ScriptCache {
    scripts: BTreeMap<Arc<str>, Arc<Body>>,
    by_source: BTreeMap<Bytes, Arc<str>>,
    /// Those that the cluster does not keep yet.
    only_here: BTreeSet<Arc<str>>,
    bytes: usize,
}

impl ScriptCache {
    fn known(&self, source: &[u8]) -> Option<Arc<Body>> {
        let name = self.by_source.get(source)?;
        self.scripts.get(name).cloned()
    }
}

/// See the module.
pub(crate) struct Scripts {
    clock: Arc<dyn Clock>,
    cache: Mutex<ScriptCache>,
    libraries: Mutex<Libraries>,
    table: Mutex<Option<Table>>,
    turns: Box<[tokio::sync::Mutex<()>]>,
    /// How many wait for their turns.
    waiting: AtomicUsize,
    /// Tells those that wait to give up.
    killed: Notify,
    running: Mutex<Vec<(Stop, Option<RunningFunction>)>>,
}

/// A function that runs outside the event loops.
#[derive(Clone, Debug)]
pub(crate) struct RunningFunction {
    pub(crate) name: Arc<str>,
    /// The command that called it.
    pub(crate) command: Command,
    pub(crate) since: Moment,
}

/// A script that runs outside the event loops, as long as this lives.
pub(crate) struct Running<'s> {
    scripts: &'s Scripts,
    stop: Stop,
}

impl Drop for Running<'_> {
    fn drop(&mut self) {
        // A script that nobody waits for any more is to end.
        self.stop.stop();
        lock(&self.scripts.running).retain(|(stop, _)| !stop.is_stopped());
    }
}

/// A script that waits for its turns, as long as this lives.
struct Waiting<'s>(&'s AtomicUsize);

impl<'s> Waiting<'s> {
    fn among(count: &'s AtomicUsize) -> Self {
        // Relaxed: it is only a number.
        count.fetch_add(1, Ordering::Relaxed);
        Self(count)
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// The turn of a key. Several keys may share one.
fn turn_of(key: &[u8]) -> usize {
    pluvio_units::KeyHash::of(0, key).0 as usize % TURNS
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Scripts {
    pub(crate) fn new(clock: Arc<dyn Clock>) -> Self {
        Self {
            clock,
            cache: Mutex::default(),
            libraries: Mutex::default(),
            table: Mutex::default(),
            turns: (0..TURNS).map(|_| tokio::sync::Mutex::default()).collect(),
            waiting: AtomicUsize::new(0),
            killed: Notify::new(),
            running: Mutex::default(),
        }
    }

    /// Waits until no other script of this process that names one of these keys runs. `None`: it
    /// was stopped meanwhile.
    pub(crate) async fn turns<'k>(
        &self,
        keys: impl Iterator<Item = &'k [u8]>,
    ) -> Option<Vec<tokio::sync::MutexGuard<'_, ()>>> {
        // In one order, so that two never wait for each other.
        let places: BTreeSet<usize> = keys.map(turn_of).collect();
        let _waiting = Waiting::among(&self.waiting);
        let mut killed = pin!(self.killed.notified());
        // From now on, not from the first poll on.
        killed.as_mut().enable();
        let taken = pin!(async {
            let mut turns = Vec::with_capacity(places.len());
            for place in places {
                turns.push(self.turns[place].lock().await);
            }
            turns
        });
        // The left one is looked at first: what is killed takes no turn that just came.
        match select(killed, taken).await {
            Either::Left(_) => None,
            Either::Right((turns, _)) => Some(turns),
        }
    }

    /// The turn of a script that names one key, if nobody has it.
    pub(crate) fn turn_now(&self, key: &[u8]) -> Option<tokio::sync::MutexGuard<'_, ()>> {
        self.turns[turn_of(key)].try_lock().ok()
    }

    /// A script runs outside the event loops.
    pub(crate) fn enter(&self, stop: &Stop, function: Option<RunningFunction>) -> Running<'_> {
        lock(&self.running).push((stop.clone(), function));
        Running {
            scripts: self,
            stop: stop.clone(),
        }
    }

    /// Stops all scripts that run outside the event loops, and those that wait for their turns.
    /// False: there are none.
    pub(crate) fn stop_all(&self) -> bool {
        let is_any_waiting = self.waiting.load(Ordering::Relaxed) > 0;
        // Before the others give up their turns.
        self.killed.notify_waiters();
        let mut running = lock(&self.running);
        let is_any = !running.is_empty() || is_any_waiting;
        running.drain(..).for_each(|(stop, _)| stop.stop());
        is_any
    }

    /// The function that has run outside the event loops for longest.
    pub(crate) fn running_function(&self) -> Option<RunningFunction> {
        let running = lock(&self.running);
        running.iter().find_map(|(_, function)| function.clone())
    }

    /// Whether a script was seen before.
    pub(crate) fn knows(&self, source: &Bytes) -> bool {
        lock(&self.cache).by_source.contains_key(source)
    }

    /// A script that was seen before, by its source.
    pub(crate) fn of_source(&self, source: &[u8]) -> Option<Arc<Body>> {
        lock(&self.cache).known(source)
    }

    fn remember(&self, source: &Bytes) -> (Arc<Body>, bool) {
        let mut cache = lock(&self.cache);
        if let Some(known) = cache.known(source) {
            return (known, false);
        }
        // It does not hold on to the command that brought it.
        let source = Bytes::copy_from_slice(source);
        let body = Arc::new(Body {
            name: sha1_hex(&source).into(),
            flags: Shebang::of_script(&source)
                .ok()
                .flatten()
                .unwrap_or_default()
                .flags,
            source: source.clone(),
            is_library: false,
        });
        let bytes = source.len() + SCRIPT_BYTES;
        if cache.bytes + bytes > CACHE_BYTES_MAX {
            *cache = ScriptCache::default();
        }
        cache.bytes += bytes;
        cache.by_source.insert(source, Arc::clone(&body.name));
        cache
            .scripts
            .insert(Arc::clone(&body.name), Arc::clone(&body));
        (body, true)
    }

    /// A script that was seen before, by the hash as it is written.
    pub(crate) fn remembered(&self, hash: &str) -> Option<Arc<Body>> {
        lock(&self.cache).scripts.get(hash).cloned()
    }

    /// Keeps a script, here and in the cluster. When the cluster cannot keep it within a time, this
    /// server does.
    pub(crate) async fn keep(&self, client: &Client, source: Bytes, time: Duration) -> Arc<Body> {
        let (body, is_new) = self.remember(&source);
        if !is_new {
            return body;
        }
        let why = match timeout(&*self.clock, time, self.store_script(client, &body)).await {
            Ok(Ok(())) => return body,
            Ok(Err(failure)) => String::from_utf8_lossy(failure.text()).into_owned(),
            Err(_) => "its time was over".to_owned(),
        };
        tracing::debug!(why, "a script is not kept by the cluster");
        body
    }

    /// Keeps a script, here and in the cluster.
    ///
    /// # Errors
    /// The cluster cannot keep it now. This server does.
    pub(crate) async fn load(&self, client: &Client, source: Bytes) -> Result<Arc<Body>, Failure> {
        let (body, is_new) = self.remember(&source);
        let is_missing = is_new || lock(&self.cache).only_here.contains(&body.name);
        if is_missing {
            self.store_script(client, &body).await?;
        }
        Ok(body)
    }

    async fn store_script(&self, client: &Client, body: &Body) -> Result<(), Failure> {
        lock(&self.cache).only_here.insert(Arc::clone(&body.name));
        self.store(client, body.name.as_bytes(), &body.source)
            .await?;
        lock(&self.cache).only_here.remove(&body.name);
        Ok(())
    }

    /// The script with this hash.
    ///
    /// # Errors
    /// There is none, or it cannot be looked for.
    pub(crate) async fn by_hash(&self, client: &Client, hash: &[u8]) -> Result<Arc<Body>, Failure> {
        let name = String::from_utf8_lossy(hash);
        if let Some(known) = self.remembered(&name) {
            return Ok(known);
        }
        let name = name.to_ascii_lowercase();
        if let Some(known) = self.remembered(&name) {
            return Ok(known);
        }
        if name.len() != HASH_DIGITS {
            return Err(NO_SCRIPT);
        }
        let Some(table) = self.existing(client).await? else {
            return Err(NO_SCRIPT);
        };
        let found = client.read(&table, name.as_bytes()).await;
        match self.unless_dropped(found)?.flatten() {
            Some(object) => Ok(self.remember(&object.value).0),
            None => Err(NO_SCRIPT),
        }
    }

    /// Forgets all scripts.
    pub(crate) async fn flush(&self, client: &Client) -> Result<(), Failure> {
        *lock(&self.cache) = ScriptCache::default();
        let Some(table) = self.existing(client).await? else {
            return Ok(());
        };
        let mut all = client.enumerate(&table);
        let mut hashes = Vec::new();
        while let Some(objects) = all.next_batch().await.map_err(|error| of_client(&error))? {
            let is_script = |key: &Vec<u8>| !key.starts_with(LIBRARY);
            hashes.extend(
                objects
                    .into_iter()
                    .map(|object| object.key)
                    .filter(is_script),
            );
        }
        self.delete_all(client, &table, &hashes).await
    }

    async fn delete_all(
        &self,
        client: &Client,
        table: &Table,
        keys: &[Vec<u8>],
    ) -> Result<(), Failure> {
        let deletes: Vec<_> = keys
            .iter()
            .map(|key| (table, Mutation::new(table.id(), key, Change::Delete)))
            .collect();
        for result in client.multi_mutate(&deletes).await {
            self.unless_dropped(result)?;
        }
        Ok(())
    }

    // --- the table ------------------------------------------------------------------------------

    async fn existing(&self, client: &Client) -> Result<Option<Table>, Failure> {
        if let Some(table) = &*lock(&self.table) {
            return Ok(Some(table.clone()));
        }
        match client.table(TABLE).await {
            Ok(table) => {
                *lock(&self.table) = Some(table.clone());
                Ok(Some(table))
            }
            Err(error) if error.kind() == ErrorKind::NoSuchTable => Ok(None),
            Err(error) => Err(of_client(&error)),
        }
    }

    async fn create(&self, client: &Client) -> Result<Table, Failure> {
        let created = client.create_table(TABLE, None).await;
        let table = created.map_err(|error| of_client(&error))?;
        *lock(&self.table) = Some(table.clone());
        Ok(table)
    }

    /// `None` when the table was dropped.
    fn unless_dropped<T>(
        &self,
        result: Result<T, pluvio_client::ClientError>,
    ) -> Result<Option<T>, Failure> {
        match result {
            Ok(done) => Ok(Some(done)),
            Err(error) if error.kind() == ErrorKind::NoSuchTable => {
                *lock(&self.table) = None;
                Ok(None)
            }
            Err(error) => Err(of_client(&error)),
        }
    }

    async fn store(&self, client: &Client, key: &[u8], value: &Bytes) -> Result<(), Failure> {
        for _ in 0..2 {
            let table = match self.existing(client).await? {
                Some(table) => table,
                None => self.create(client).await?,
            };
            let put = Mutation::new(table.id(), key, Change::Put(value.into()));
            let written = client.mutate(&table, put).await;
            if self.unless_dropped(written)?.is_some() {
                return Ok(());
            }
        }
        Ok(())
    }

    // --- functions ------------------------------------------------------------------------------

    /// All libraries by their names, at most a second old.
    async fn known(&self, client: &Client) -> Result<Known, Failure> {
        let now = self.clock.now();
        {
            let libraries = lock(&self.libraries);
            let is_fresh = |asked: Moment| now.since(asked) < LIBRARIES_AGE;
            if libraries.asked.is_some_and(is_fresh) {
                return Ok(Arc::clone(&libraries.all));
            }
        }
        self.libraries(client).await
    }

    /// All libraries by their names, as they are at one moment.
    pub(crate) async fn libraries(&self, client: &Client) -> Result<Known, Failure> {
        let now = self.clock.now();
        let mut before = self.edition(client).await?;
        for _ in 0..EDITS_MAX {
            let all = match &before {
                Some((table, _)) => self.enumerate(client, table).await?,
                None => Known::default(),
            };
            let after = self.edition(client).await?;
            // Nothing was changed in between.
            if places(&before) == places(&after) {
                let mut libraries = lock(&self.libraries);
                libraries.asked = Some(now);
                libraries.all = Arc::clone(&all);
                return Ok(all);
            }
            before = after;
        }
        Err(CONTENDED)
    }

    /// The table, if it exists, and the version of the object that all changes of libraries
    /// change (FUNCTION-1).
    async fn edition(&self, client: &Client) -> Result<Option<(Table, ObjectVersion)>, Failure> {
        for _ in 0..2 {
            let Some(table) = self.existing(client).await? else {
                return Ok(None);
            };
            let found = client.read(&table, EDITION).await;
            if let Some(object) = self.unless_dropped(found)? {
                let version = object.map_or(ObjectVersion(0), |object| object.version);
                return Ok(Some((table, version)));
            }
        }
        Err(CONTENDED)
    }

    async fn enumerate(&self, client: &Client, table: &Table) -> Result<Known, Failure> {
        let mut all = BTreeMap::new();
        let mut enumeration = client.enumerate(table);
        loop {
            let batch = enumeration.next_batch().await;
            let Some(Some(objects)) = self.unless_dropped(batch)? else {
                return Ok(Arc::new(all));
            };
            for object in objects.into_iter().filter(|o| o.key.starts_with(LIBRARY)) {
                if object.key == EDITION {
                    continue;
                }
                if let Ok(library) = library(&object.value, &self.clock) {
                    all.insert(library.name.clone(), (library, object.value));
                }
            }
        }
    }

    /// The function of this name.
    pub(crate) async fn function(
        &self,
        client: &Client,
        name: &[u8],
    ) -> Result<Arc<Body>, Failure> {
        let libraries = self.known(client).await?;
        for (library, source) in libraries.values() {
            let mut functions = library.functions.iter();
            if let Some(function) = functions.find(|function| function.name.as_bytes() == name) {
                return Ok(Arc::new(Body {
                    source: source.clone(),
                    name: function.name.as_str().into(),
                    flags: function.flags,
                    is_library: true,
                }));
            }
        }
        Err(NO_FUNCTION)
    }

    /// Changes libraries, at one moment (FUNCTION-1). `edit` gets the libraries as they are, and
    /// gives those to keep under their names, and `None` for those to forget.
    async fn edit(
        &self,
        client: &Client,
        edit: impl Fn(&BTreeMap<String, (Library, Bytes)>) -> Result<Edits, Failure>,
    ) -> Result<(), Failure> {
        for _ in 0..EDITS_MAX {
            let edition = self.edition(client).await?;
            let known = match &edition {
                Some((table, _)) => self.enumerate(client, table).await?,
                None => Known::default(),
            };
            let edits = edit(&known)?;
            if edits.is_empty() {
                // The libraries that this server remembers may be older than those just found.
                lock(&self.libraries).asked = None;
                return Ok(());
            }
            let Some((table, version)) = edition else {
                self.create(client).await?;
                continue;
            };
            let id = table.id();
            let change = |key, change| {
                TransactionStep::new(Operation::Mutate(Mutation::new(id, key, change)))
            };
            let keys = edits.keys().map(|name| [LIBRARY, name.as_bytes()].concat());
            let keys: Vec<_> = keys.collect();
            // The edition is compared first: what was enumerated is as it was then.
            let empty = Bytes::new();
            let mut steps = vec![
                TransactionStep::version_is(id, EDITION, version),
                change(EDITION, Change::Put((&empty).into())),
            ];
            steps.extend(keys.iter().zip(edits.values()).map(|(key, source)| {
                let becomes = source.as_ref().map(|source| Change::Put(source.into()));
                change(key, becomes.unwrap_or(Change::Delete))
            }));
            let steps: Vec<_> = steps.into_iter().map(|step| (&table, step)).collect();
            let done = client.transact(&steps).await;
            lock(&self.libraries).asked = None;
            if let Some(Transacted::Committed(_)) = self.unless_dropped(done)? {
                return Ok(());
            }
        }
        Err(CONTENDED)
    }

    /// Keeps a library.
    pub(crate) async fn load_library(
        &self,
        client: &Client,
        library: Library,
        source: Bytes,
        how: Existing,
    ) -> Result<(), Failure> {
        let quoted = |name: &str| format!("ERR Library '{name}' already exists");
        self.edit(client, |known| {
            if how.forbids(known, &library.name, &source) {
                return Err(Failure::new(quoted(&library.name)));
            }
            joined(known, &[(library.clone(), source.clone())], how)
        })
        .await
    }

    /// Keeps several libraries, all or none of them. Their names differ, and those of their
    /// functions.
    pub(crate) async fn restore_libraries(
        &self,
        client: &Client,
        libraries: &[(Library, Bytes)],
        how: Existing,
    ) -> Result<(), Failure> {
        self.edit(client, |known| joined(known, libraries, how))
            .await
    }

    /// Forgets a library. That one is absent is an error, unless `may_be_absent`.
    pub(crate) async fn delete_library(
        &self,
        client: &Client,
        name: &[u8],
        may_be_absent: bool,
    ) -> Result<(), Failure> {
        let name = String::from_utf8_lossy(name).into_owned();
        self.edit(client, |known| match known.contains_key(&name) {
            true => Ok(Edits::from([(name.clone(), None)])),
            false if may_be_absent => Ok(Edits::new()),
            false => Err(NO_LIBRARY),
        })
        .await
    }

    /// Forgets all libraries.
    pub(crate) async fn flush_libraries(&self, client: &Client) -> Result<(), Failure> {
        self.edit(client, |known| joined(known, &[], Existing::Forget))
            .await
    }
}

/// What is to become of libraries: their sources by their names, and `None` for those that go.
type Edits = BTreeMap<String, Option<Bytes>>;

fn places(edition: &Option<(Table, ObjectVersion)>) -> Option<(TableId, ObjectVersion)> {
    let (table, version) = edition.as_ref()?;
    Some((table.id(), *version))
}

/// The edits that bring new libraries among those that are there.
///
/// # Errors
/// They do not go together, in Redis's words.
fn joined(
    known: &BTreeMap<String, (Library, Bytes)>,
    new: &[(Library, Bytes)],
    how: Existing,
) -> Result<Edits, Failure> {
    let mut edits = match how {
        Existing::Keep | Existing::KeepEqual | Existing::Replace => Edits::new(),
        Existing::Forget => known.keys().map(|name| (name.clone(), None)).collect(),
    };
    for (library, source) in new {
        if how.forbids(known, &library.name, source) {
            let name = &library.name;
            return Err(Failure::new(format!("ERR Library {name} already exists")));
        }
        if how != Existing::KeepEqual || !known.contains_key(&library.name) {
            edits.insert(library.name.clone(), Some(source.clone()));
        }
    }
    let new = || new.iter().filter(|(l, _)| edits.contains_key(&l.name));
    let stay = || known.iter().filter(|(name, _)| !edits.contains_key(*name));
    let taken: BTreeSet<&str> = stay()
        .flat_map(|(_, (library, _))| &library.functions)
        .map(|function| &function.name[..])
        .collect();
    let mut names = new().flat_map(|(library, _)| &library.functions);
    if let Some(function) = names.find(|function| taken.contains(&function.name[..])) {
        let name = &function.name;
        return Err(Failure::new(format!("ERR Function {name} already exists")));
    }
    let added = new().count();
    if stay().count() + added > LIBRARIES_MAX && added > 0 {
        return Err(Failure::new(format!(
            "ERR a cluster keeps at most {LIBRARIES_MAX} libraries of functions"
        )));
    }
    Ok(edits)
}

#[cfg(test)]
mod tests {
    use super::*;
    use pluvio_client::testing::FakeCluster;

    #[test]
    fn small_scripts_count_with_the_memory_that_they_take() {
        let scripts = Scripts::new(FakeCluster::new(1).parts().clock);
        let most = CACHE_BYTES_MAX / SCRIPT_BYTES;
        let mut peak = 0;
        for n in 0..=most {
            let source = Bytes::from(format!("return {n}"));
            assert!(scripts.remember(&source).1);
            let cache = lock(&scripts.cache);
            let counted = cache
                .by_source
                .keys()
                .map(|source| source.len() + SCRIPT_BYTES);
            peak = peak.max(cache.scripts.len());
            if n.is_multiple_of(1000) {
                assert_eq!(cache.bytes, counted.sum::<usize>());
            }
        }
        assert!(peak > most / 2 && peak < most, "{peak} of {most}");
    }
}
