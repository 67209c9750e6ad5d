//! Records to servers: a reader, and workers that write batches.
//!
//! One blocking thread reads records and deals them out by key; each worker writes its batches one
//! after the other.
//!
//! - ING-1: records of one key are written in the order of the input, so the last one wins. A key
//!   always goes to the same worker, and a batch holds a key once.
//! - ING-2: memory is bounded: each worker has one batch in the making, [`QUEUED`] waiting, one
//!   under way; a batch has [`BATCH_RECORDS`] records or [`BATCH_BYTES`].

use crate::ingest::records::{BadRecord, Record};
use pluvio_client::{Change, Client, ClientError, Lifetime, Mutation, Outcome, Table};
use pluvio_console::failure::Failure;
use pluvio_console::session::Session;
use pluvio_env::Clock;
use pluvio_units::{CoreId, FixedMap, KeyHash, ObjectVersion, UnixMs};
use pluvio_wire::{check_key, check_value};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use tokio::sync::{mpsc, oneshot};

/// Large enough that a request's costs are shared, small enough that a batch is a few milliseconds.
const BATCH_RECORDS: usize = 512;
const BATCH_BYTES: usize = 512 << 10;
/// Keeps workers busy while the reader fills the next batches.
const QUEUED: usize = 2;
/// Bad records that are told one by one.
const TOLD: usize = 10;

/// What was done.
#[derive(Clone, Default, Debug)]
pub struct Summary {
    /// Records written.
    pub records: u64,
    /// Bytes of their keys and values.
    pub bytes: u64,
    /// Records whose key was there already, from this input or from before.
    pub duplicates: u64,
    /// Records passed over because their deadlines were past.
    pub expired: u64,
    /// Records that came with a version, and got a higher one.
    pub raised: u64,
    /// The highest version that was given.
    pub newest: ObjectVersion,
    /// Records passed over because they were bad.
    pub bad: u64,
    /// What was wrong with the first of them.
    pub told: Vec<String>,
}

impl Summary {
    /// Counts what another one counts, too.
    pub fn add(&mut self, other: Self) {
        self.records += other.records;
        self.bytes += other.bytes;
        self.duplicates += other.duplicates;
        self.raised += other.raised;
        self.newest = self.newest.max(other.newest);
        self.expired += other.expired;
        self.bad += other.bad;
        let room = TOLD - self.told.len();
        self.told.extend(other.told.into_iter().take(room));
    }
}

/// How to write.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// Workers, at least 1.
    pub workers: usize,
    /// Pass over bad records instead of stopping at the first.
    pub skip_bad: bool,
    /// What [`Record::line`] counts.
    pub unit: &'static str,
}

/// Objects of one batch, each key once.
#[derive(Default)]
struct Batch {
    objects: Vec<Record>,
    places: FixedMap<Vec<u8>, usize>,
    bytes: usize,
    summary: Summary,
}

impl Batch {
    fn add(&mut self, record: Record) {
        let bytes = record.key.len() + record.value.len();
        self.summary.records += 1;
        self.summary.bytes += bytes as u64;
        self.bytes += bytes;
        if let Some(&place) = self.places.get(&record.key) {
            self.summary.duplicates += 1;
            self.objects[place] = record;
        } else {
            self.places.insert(record.key.clone(), self.objects.len());
            self.objects.push(record);
        }
    }

    fn full(&self) -> bool {
        self.objects.len() >= BATCH_RECORDS || self.bytes >= BATCH_BYTES
    }
}

/// What reader and workers share.
#[derive(Default)]
struct Shared {
    /// Something failed: nobody goes on. Relaxed: only saves work, the failure itself is locked.
    stopped: AtomicBool,
    failure: Mutex<Option<Failure>>,
    written: Mutex<Summary>,
}

impl Shared {
    fn fail(&self, failure: Failure) {
        self.stopped.store(true, Ordering::Relaxed);
        let mut place = self.failure.lock().unwrap_or_else(PoisonError::into_inner);
        place.get_or_insert(failure);
    }

    fn written(&self) -> std::sync::MutexGuard<'_, Summary> {
        self.written.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Writes all records into `table`. `seen` is told about every record read.
///
/// # Errors
/// A bad record, unless they are to be skipped; a write that the cluster could not do. Earlier
/// writes stay; the message counts them.
pub async fn write_all(
    session: &Session,
    table: &Table,
    records: impl Iterator<Item = Result<Record, BadRecord>> + Send + 'static,
    options: Options,
    seen: impl Fn(&Record) + Send + 'static,
) -> Result<Summary, Failure> {
    let shared = Arc::<Shared>::default();
    let mut queues = Vec::new();
    let mut ends = Vec::new();
    for worker in 0..options.workers.max(1) {
        let (give, take) = mpsc::channel(QUEUED);
        let (done, end) = oneshot::channel();
        queues.push(give);
        ends.push(end);
        let work = work(session.client.clone(), table.clone(), take, shared.clone());
        let core =
            CoreId(u16::try_from(worker % usize::from(session.env.tasks.cores())).unwrap_or(0));
        session.env.tasks.spawn(core, "import", async move {
            work.await;
            // Its receiver waits below.
            let _ = done.send(());
        });
    }
    let reader = Reader {
        table: table.clone(),
        queues,
        shared: shared.clone(),
        options,
        clock: session.env.clock.clone(),
    };
    let reading = move || reader.run(records, seen);
    session.env.tasks.run_blocking(Box::new(reading)).await;
    for end in ends {
        // A worker that is gone has said why.
        let _ = end.await;
    }
    let summary = shared.written().clone();
    let failure = shared
        .failure
        .lock()
        .unwrap_or_else(PoisonError::into_inner)
        .take();
    match failure {
        None => Ok(summary),
        Some(failure) => Err(Failure::new(format!(
            "{failure}; {} records were written before",
            summary.records
        ))),
    }
}

/// The thread that reads records.
struct Reader {
    table: Table,
    queues: Vec<mpsc::Sender<Batch>>,
    shared: Arc<Shared>,
    options: Options,
    clock: Arc<dyn Clock>,
}

impl Reader {
    fn run(self, records: impl Iterator<Item = Result<Record, BadRecord>>, seen: impl Fn(&Record)) {
        let mut batches: Vec<Batch> = self.queues.iter().map(|_| Batch::default()).collect();
        for record in records {
            if self.shared.stopped.load(Ordering::Relaxed) {
                return;
            }
            match record.and_then(check) {
                Ok(record) => {
                    seen(&record);
                    if self.is_past(&record) {
                        self.shared.written().expired += 1;
                        continue;
                    }
                    let worker = worker_of(self.table.hash(&record.key), batches.len());
                    batches[worker].add(record);
                    if batches[worker].full() && !self.send(worker, &mut batches) {
                        return;
                    }
                }
                Err(bad) => {
                    if !self.bad(&bad) {
                        return;
                    }
                }
            }
        }
        for worker in 0..batches.len() {
            if !batches[worker].objects.is_empty() && !self.send(worker, &mut batches) {
                return;
            }
        }
    }

    /// Whether a record expired before it was read. One that expires on its way is dropped by the
    /// owner of its key.
    fn is_past(&self, record: &Record) -> bool {
        record.deadline.is_some_and(|deadline| {
            let now = u64::try_from(self.clock.unix_time().as_millis()).unwrap_or(u64::MAX);
            deadline.is_past(UnixMs(now))
        })
    }

    /// Gives whether to go on.
    fn send(&self, worker: usize, batches: &mut [Batch]) -> bool {
        let batch = std::mem::take(&mut batches[worker]);
        self.queues[worker].blocking_send(batch).is_ok()
    }

    fn bad(&self, bad: &BadRecord) -> bool {
        if let Some(failure) = end(bad, self.options) {
            self.shared.fail(failure);
            return false;
        }
        let mut written = self.shared.written();
        written.bad += 1;
        if written.told.len() < TOLD {
            let told = format!("{} {}: {}", self.options.unit, bad.line, bad.message);
            written.told.push(told);
        }
        true
    }
}

/// With what a bad record ends an import; `None` when it is passed over.
pub fn end(bad: &BadRecord, options: Options) -> Option<Failure> {
    let advice = match (bad.last, options.skip_bad) {
        (true, _) => "",
        (false, false) => "; mend it, or use --skip-bad",
        (false, true) => return None,
    };
    let (unit, line, message) = (options.unit, bad.line, &bad.message);
    Some(Failure::new(format!("{unit} {line}: {message}{advice}")))
}

/// The upper bits choose the worker: the same ones choose the tablet, so that a worker's batches
/// go to few servers.
fn worker_of(hash: KeyHash, workers: usize) -> usize {
    ((u128::from(hash.0) * workers as u128) >> 64) as usize
}

/// The limits of the data model, told with the record's line.
fn check(record: Record) -> Result<Record, BadRecord> {
    match check_key(&record.key).and_then(|()| check_value(&record.value)) {
        Ok(()) => Ok(record),
        Err(refusal) => Err(BadRecord {
            line: record.line,
            message: refusal.to_string(),
            last: false,
        }),
    }
}

/// Writes the batches of one worker.
async fn work(
    client: Client,
    table: Table,
    mut batches: mpsc::Receiver<Batch>,
    shared: Arc<Shared>,
) {
    while let Some(mut batch) = batches.recv().await {
        if shared.stopped.load(Ordering::Relaxed) {
            return;
        }
        match write(&client, &table, &batch).await {
            Ok(written) => {
                batch.summary.duplicates += written.replaced;
                batch.summary.raised += written.raised;
                batch.summary.newest = written.newest;
                shared.written().add(std::mem::take(&mut batch.summary));
            }
            Err(error) => return shared.fail(error.into()),
        }
    }
}

/// What a batch came to.
#[derive(Default)]
struct Written {
    /// Objects that were there before.
    replaced: u64,
    /// See [`Summary::raised`].
    raised: u64,
    /// See [`Summary::newest`].
    newest: ObjectVersion,
}

async fn write(client: &Client, table: &Table, batch: &Batch) -> Result<Written, ClientError> {
    let puts: Vec<_> = batch
        .objects
        .iter()
        .map(|record| {
            let value = (&record.value).into();
            let change = match record.version {
                Some(version) => Change::PutVersion { value, version },
                None => Change::Put(value),
            };
            let put = Mutation {
                lifetime: record.deadline.map_or(Lifetime::Endless, Lifetime::Until),
                ..Mutation::new(table.id(), &record.key, change)
            };
            (table, put)
        })
        .collect();
    let mut written = Written::default();
    for (outcome, record) in client
        .multi_mutate(&puts)
        .await
        .into_iter()
        .zip(&batch.objects)
    {
        match outcome? {
            Outcome::Written {
                replaced, version, ..
            } => {
                written.replaced += u64::from(replaced != ObjectVersion(0));
                written.newest = written.newest.max(version);
                written.raised += u64::from(record.version.is_some_and(|own| own < version));
            }
            other => {
                let why = format!("a put was answered with {other:?}");
                return Err(ClientError::Protocol(why));
            }
        }
    }
    Ok(written)
}

#[cfg(test)]
mod tests {
    use super::*;
    use bytes::Bytes;

    fn record(key: &str, value: &str) -> Record {
        Record {
            line: 1,
            key: key.into(),
            value: value.to_owned().into(),
            version: None,
            deadline: None,
        }
    }

    // shows: ING-1
    #[test]
    fn a_batch_holds_a_key_once_with_its_last_value() {
        let mut batch = Batch::default();
        for (key, value) in [("a", "1"), ("b", "2"), ("a", "3")] {
            batch.add(record(key, value));
        }
        let objects: Vec<_> = batch
            .objects
            .iter()
            .map(|record| (&record.key[..], &record.value[..]))
            .collect();
        assert_eq!(objects, [(&b"a"[..], &b"3"[..]), (b"b", b"2")]);
        assert_eq!((batch.summary.records, batch.summary.duplicates), (3, 1));
    }

    // shows: ING-1
    #[test]
    fn every_hash_has_one_worker() {
        assert_eq!(worker_of(KeyHash(0), 3), 0);
        assert_eq!(worker_of(KeyHash(u64::MAX), 3), 2);
        assert_eq!(worker_of(KeyHash(u64::MAX), 1), 0);
    }

    #[test]
    fn limits_are_told_with_the_line() {
        let long = Record {
            line: 7,
            key: vec![0; pluvio_units::KEY_MAX + 1],
            value: Bytes::new(),
            version: None,
            deadline: None,
        };
        assert_eq!(check(long).unwrap_err().line, 7);
    }
}
