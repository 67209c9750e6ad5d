//! One of several devices of a process: a part of its simulated disk, which can fail and hang by
//! itself.

use bytes::Bytes;
use core::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use pluvio_env::{BoxFuture, Disk, DiskError, File, FileAt, OpenMode, watch};
use std::sync::Arc;

/// What a device does.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum DeviceMode {
    /// What it is asked to.
    #[default]
    Works,
    /// It answers each request with an error. Of the changes every other one was done all the same.
    Fails,
    /// It answers when it works again.
    Hangs,
    /// There is no space left for new bytes.
    Full,
    /// Its directory has no name any more: open files go on working, no others are found or made.
    Gone,
}

/// Says what a device does. Outlives the process that uses it.
#[derive(Clone)]
pub struct DeviceSwitch {
    mode: Arc<watch::Sender<DeviceMode>>,
    is_odd: Arc<AtomicBool>,
    waiting: Arc<AtomicUsize>,
}

impl Default for DeviceSwitch {
    fn default() -> Self {
        let (mode, _) = watch::channel(DeviceMode::Works);
        Self {
            mode: Arc::new(mode),
            is_odd: Arc::default(),
            waiting: Arc::default(),
        }
    }
}

/// Counts a request that waits, as long as it lives.
struct Waits(Arc<AtomicUsize>);

impl Waits {
    fn begin(waiting: &Arc<AtomicUsize>) -> Self {
        waiting.fetch_add(1, Ordering::Relaxed);
        Self(Arc::clone(waiting))
    }
}

impl Drop for Waits {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

impl DeviceSwitch {
    /// From now on.
    pub fn set(&self, mode: DeviceMode) {
        self.mode.send_replace(mode);
    }

    /// What it does now.
    #[must_use]
    pub fn mode(&self) -> DeviceMode {
        *self.mode.borrow()
    }

    /// Requests that wait until it does not hang any more.
    #[must_use]
    pub fn waiting(&self) -> usize {
        self.waiting.load(Ordering::Relaxed)
    }

    /// Every other time.
    fn is_odd(&self) -> bool {
        self.is_odd.fetch_not(Ordering::Relaxed)
    }

    /// Waits while the device hangs.
    async fn answers(&self) -> DeviceMode {
        let _waits = Waits::begin(&self.waiting);
        let mut mode = self.mode.subscribe();
        // The switch is there as long as this waits.
        let _answers = mode.wait_for(|mode| *mode != DeviceMode::Hangs).await;
        self.mode()
    }

    /// Does what changes nothing.
    async fn look<T>(
        &self,
        path: &str,
        work: impl Future<Output = Result<T, DiskError>>,
    ) -> Result<T, DiskError> {
        match self.answers().await {
            DeviceMode::Works | DeviceMode::Full | DeviceMode::Gone => work.await,
            DeviceMode::Fails | DeviceMode::Hangs => Err(failed(path)),
        }
    }

    /// Does what changes something.
    async fn change<T>(
        &self,
        path: &str,
        takes_space: bool,
        work: impl Future<Output = Result<T, DiskError>>,
    ) -> Result<T, DiskError> {
        match self.answers().await {
            DeviceMode::Full if takes_space => Err(DiskError::Full { path: path.into() }),
            DeviceMode::Works | DeviceMode::Full | DeviceMode::Gone => work.await,
            DeviceMode::Fails | DeviceMode::Hangs => {
                if self.is_odd() {
                    // Nobody is told.
                    drop(work.await);
                }
                Err(failed(path))
            }
        }
    }
}

fn failed(path: &str) -> DiskError {
    DiskError::Other {
        path: path.into(),
        message: "the simulated device has failed".into(),
    }
}

/// See the module. Names begin with the device's own.
pub struct Device {
    disk: Arc<dyn Disk>,
    folder: &'static str,
    switch: DeviceSwitch,
}

impl Device {
    /// A part of `disk`, below `folder`, which ends with `/` if it is not empty.
    #[must_use]
    pub fn of(disk: Arc<dyn Disk>, folder: &'static str, switch: DeviceSwitch) -> Arc<dyn Disk> {
        Arc::new(Self {
            disk,
            folder,
            switch,
        })
    }

    fn path(&self, path: &str) -> String {
        format!("{}{path}", self.folder)
    }

    fn gone(&self) -> DiskError {
        let path = self.directory("");
        DiskError::Gone { path }
    }

    fn directory(&self, path: &str) -> String {
        self.path(path).trim_end_matches('/').to_owned()
    }
}

impl Disk for Device {
    fn open(&self, path: &str, mode: OpenMode) -> BoxFuture<'_, Result<Arc<dyn File>, DiskError>> {
        let path = self.path(path);
        Box::pin(async move {
            if self.switch.answers().await == DeviceMode::Gone {
                return Err(match mode {
                    OpenMode::Existing => DiskError::NotFound { path },
                    OpenMode::New | OpenMode::Create => self.gone(),
                });
            }
            let opened = self.disk.open(&path, mode);
            let file = self.switch.change(&path, false, opened).await?;
            let switch = self.switch.clone();
            let file: Arc<dyn File> = Arc::new(DeviceFile { file, path, switch });
            Ok(file)
        })
    }

    fn remove(&self, path: &str) -> BoxFuture<'_, Result<(), DiskError>> {
        let path = self.path(path);
        Box::pin(async move {
            if self.switch.answers().await == DeviceMode::Gone {
                return Ok(());
            }
            let removed = self.disk.remove(&path);
            self.switch.change(&path, false, removed).await
        })
    }

    fn rename(&self, from: &str, to: &str) -> BoxFuture<'_, Result<(), DiskError>> {
        let (from, to) = (self.path(from), self.path(to));
        Box::pin(async move {
            if self.switch.answers().await == DeviceMode::Gone {
                return Err(DiskError::NotFound { path: from });
            }
            let renamed = self.disk.rename(&from, &to);
            self.switch.change(&to, false, renamed).await
        })
    }

    fn list(&self, directory: &str) -> BoxFuture<'_, Result<Vec<String>, DiskError>> {
        let directory = self.directory(directory);
        Box::pin(async move {
            if self.switch.answers().await == DeviceMode::Gone {
                return Ok(Vec::new());
            }
            let listed = self.disk.list(&directory);
            self.switch.look(&directory, listed).await
        })
    }

    fn sync_directory(&self, directory: &str) -> BoxFuture<'_, Result<(), DiskError>> {
        let directory = self.directory(directory);
        Box::pin(async move {
            if self.switch.answers().await == DeviceMode::Gone {
                return Ok(());
            }
            let synced = self.disk.sync_directory(&directory);
            self.switch.change(&directory, false, synced).await
        })
    }

    /// The system knows names without asking a device.
    fn same_directory(&self, _directory: &str) -> BoxFuture<'_, Result<(), DiskError>> {
        let found = match self.switch.mode() {
            DeviceMode::Gone => Err(self.gone()),
            DeviceMode::Works | DeviceMode::Fails | DeviceMode::Hangs | DeviceMode::Full => Ok(()),
        };
        Box::pin(core::future::ready(found))
    }

    /// The same.
    fn misplaced(&self, mut files: Vec<FileAt>) -> BoxFuture<'_, Result<Vec<usize>, DiskError>> {
        if self.switch.mode() == DeviceMode::Gone {
            return Box::pin(core::future::ready(Err(self.gone())));
        }
        for file in &mut files {
            file.path = self.path(&file.path);
        }
        self.disk.misplaced(files)
    }

    fn boot(&self) -> u64 {
        self.disk.boot()
    }
}

struct DeviceFile {
    file: Arc<dyn File>,
    path: String,
    switch: DeviceSwitch,
}

impl File for DeviceFile {
    fn read_at(&self, offset: u64, length: usize) -> BoxFuture<'_, Result<Bytes, DiskError>> {
        let read = self.file.read_at(offset, length);
        Box::pin(async move { self.switch.look(&self.path, read).await })
    }

    fn write_at(&self, offset: u64, data: Bytes) -> BoxFuture<'_, Result<(), DiskError>> {
        let written = self.file.write_at(offset, data);
        Box::pin(async move { self.switch.change(&self.path, true, written).await })
    }

    fn write_both_at(
        &self,
        offset: u64,
        first: Bytes,
        second: Bytes,
    ) -> BoxFuture<'_, Result<(), DiskError>> {
        let written = self.file.write_both_at(offset, first, second);
        Box::pin(async move { self.switch.change(&self.path, true, written).await })
    }

    fn write_both_now(
        &self,
        offset: u64,
        first: &[u8],
        second: &[u8],
    ) -> Option<Result<(), DiskError>> {
        match self.switch.mode() {
            DeviceMode::Works | DeviceMode::Gone => self.file.write_both_now(offset, first, second),
            DeviceMode::Fails | DeviceMode::Hangs | DeviceMode::Full => None,
        }
    }

    fn sync(&self) -> BoxFuture<'_, Result<(), DiskError>> {
        let synced = self.file.sync();
        Box::pin(async move { self.switch.change(&self.path, false, synced).await })
    }

    fn identity(&self) -> Option<(u64, u64)> {
        self.file.identity()
    }

    fn size(&self) -> BoxFuture<'_, Result<u64, DiskError>> {
        let size = self.file.size();
        Box::pin(async move { self.switch.look(&self.path, size).await })
    }
}
