//! Reads tables object by object, and writes them as packs.

use super::{unix_ms, unusable};
use indicatif::ProgressBar;
use pluvio_archive::{ArchiveError, ArchivedObject, ArchivedTable, PackBuilder, PackRef, Place};
use pluvio_client::{ClientError, ErrorKind, TableInfo};
use pluvio_console::failure::Failure;
use pluvio_console::session::Session;
use pluvio_env::{Env, Moment};
use pluvio_units::{ObjectVersion, Size};
use std::time::Duration;
use tokio::sync::oneshot;

/// How much was written, and what was there.
#[derive(Default)]
pub(super) struct Written {
    pub(super) new_bytes: u64,
    pub(super) known_bytes: u64,
}

/// Keeps the reading below a rate.
pub(super) struct Pace {
    pub(super) began: Moment,
    pub(super) rate: Option<Size>,
    /// Bytes of keys and values.
    pub(super) read: u64,
}

impl Pace {
    /// How long to wait before reading on.
    pub(super) fn wait(&self, now: Moment) -> Duration {
        let Some(Size(rate)) = self.rate else {
            return Duration::ZERO;
        };
        let due = Duration::from_secs_f64(self.read as f64 / rate as f64);
        due.saturating_sub(now.since(self.began))
    }
}

/// Why a table is not archived.
pub(super) enum NotArchived {
    /// It is there no more.
    Dropped,
    /// A disk or a server failed.
    Failed(Failure),
}

impl From<ClientError> for NotArchived {
    fn from(error: ClientError) -> Self {
        match error.kind() {
            ErrorKind::NoSuchTable => Self::Dropped,
            _ => Self::Failed(error.into()),
        }
    }
}

/// Reads tables, and writes packs.
pub(super) struct Archiver<'s> {
    pub(super) session: &'s Session,
    pub(super) place: Place,
    pub(super) written: Written,
    /// When reading began, in milliseconds since 1970.
    pub(super) began_ms: u64,
    pub(super) pace: Pace,
    pub(super) progress: ProgressBar,
}

impl Archiver<'_> {
    /// Begins only now: it has waited until here.
    pub(super) fn begin_again(&mut self) {
        let clock = &self.session.env.clock;
        self.began_ms = unix_ms(self.session);
        (self.pace.began, self.pace.read) = (clock.now(), 0);
    }

    /// Archives a table, each object as it is when it is read.
    pub(super) async fn table(&mut self, info: &TableInfo) -> Result<ArchivedTable, NotArchived> {
        let client = &self.session.client;
        let table = client.table_by_id(info.id).await?;
        let mut archived = ArchivedTable {
            name: info.name.clone(),
            hash: info.hash.into(),
            durability: None,
            objects: 0,
            bytes: 0,
            newest_version: ObjectVersion(0),
            packs: Vec::new(),
        };
        let mut pack = PackBuilder::default();
        let mut objects = client.enumerate(&table);
        while let Some(batch) = objects.next_batch().await? {
            for object in &batch {
                pack.add(&ArchivedObject {
                    key: &object.key,
                    value: &object.value,
                    version: object.version,
                    deadline: object.deadline,
                });
                let bytes = (object.key.len() + object.value.len()) as u64;
                archived.objects += 1;
                archived.bytes += bytes;
                archived.newest_version = archived.newest_version.max(object.version);
                self.pace.read += bytes;
                if pack.is_full() {
                    self.keep(&mut pack, &mut archived).await?;
                }
            }
            self.progress.inc(batch.len() as u64);
            let wait = self.pace.wait(self.session.env.clock.now());
            if !wait.is_zero() {
                self.session.env.clock.sleep(wait).await;
            }
        }
        if pack.objects() > 0 {
            self.keep(&mut pack, &mut archived).await?;
        }
        Ok(archived)
    }

    async fn keep(
        &mut self,
        pack: &mut PackBuilder,
        archived: &mut ArchivedTable,
    ) -> Result<(), NotArchived> {
        let written = self.write(pack).await.map_err(NotArchived::Failed)?;
        archived.packs.push(written);
        Ok(())
    }

    /// Writes a pack; a new one begins.
    pub(super) async fn write(&mut self, pack: &mut PackBuilder) -> Result<PackRef, Failure> {
        let (objects, bytes) = (u64::from(pack.objects()), pack.take());
        let (place, len) = (self.place.clone(), bytes.len() as u64);
        let written = on_disk(&self.session.env, move || place.put_pack(&bytes, objects)).await?;
        match written.is_new {
            true => self.written.new_bytes += len,
            false => self.written.known_bytes += len,
        }
        Ok(written.pack)
    }
}

/// Does something that waits for a disk.
pub(super) async fn on_disk<T: Send + 'static>(
    env: &Env,
    work: impl FnOnce() -> Result<T, ArchiveError> + Send + 'static,
) -> Result<T, Failure> {
    let (done, result) = oneshot::channel();
    let work = Box::new(move || drop(done.send(work())));
    env.tasks.run_blocking(work).await;
    match result.await {
        Ok(result) => result.map_err(unusable),
        Err(_) => Err(Failure::new("the command was stopped")),
    }
}
