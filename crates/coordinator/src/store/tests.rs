//! The stores of this crate keep the promises of all stores.

use super::*;
use pluvio_env::{Env, Tasks};
use pluvio_sim::{Sim, SimOptions};
use redb::backends::FileBackend;
use redb::{Database, StorageBackend};
use std::collections::BTreeSet;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

const LIMIT: Duration = Duration::from_secs(10);
const DOOR: FileDoor = FileDoor {
    settle: |_| Ok(()),
    identity,
};

fn identity(path: &Path) -> io::Result<(u64, u64)> {
    let there = std::fs::metadata(path)?;
    Ok((there.dev(), there.ino()))
}

/// What a device gives room in.
const PAGE_BYTES: u64 = 4096;

fn in_simulation(test: impl FnOnce(Env) -> BoxFuture<'static, ()>) {
    let sim = Sim::new(1, SimOptions::default());
    let process = sim.process("store");
    sim.block_on(process.id, test(process.env), LIMIT).unwrap();
}

#[test]
fn memory_store_behaves_as_a_map() {
    in_simulation(|_| Box::pin(async { conformance::check(&MemoryStore::new()).await }));
}

#[test]
fn redb_store_behaves_as_a_map_and_keeps_what_it_was_told() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("metadata");
    in_simulation(|env| {
        Box::pin(async move {
            let open = |tasks: &Arc<dyn Tasks>| RedbStore::open(path.clone(), tasks.clone(), DOOR);
            let store = open(&env.tasks).unwrap();
            let in_use = open(&env.tasks).err().unwrap();
            assert!(in_use.to_string().contains("in use"), "{in_use}");
            conformance::check(&store).await;
            drop(store);
            let store = open(&env.tasks).unwrap();
            conformance::check_kept(&store).await;
        })
    });
}

#[test]
fn redb_refuses_a_file_that_is_something_else() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("metadata");
    std::fs::write(
        &path,
        b"these are not the bytes you are looking for".repeat(100),
    )
    .unwrap();
    in_simulation(|env| {
        Box::pin(async move {
            let error = RedbStore::open(path, env.tasks, DOOR);
            let error = error.err().unwrap();
            let error = error.to_string();
            assert!(
                error.contains("metadata") && error.contains("restore"),
                "{error}"
            );
        })
    });
}

fn is_full(_: &Path) -> io::Result<()> {
    Err(io::ErrorKind::StorageFull.into())
}

/// REDB-2.
// shows: REDB-2
#[test]
fn redb_opens_no_file_that_is_not_settled() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("metadata");
    in_simulation(|env| {
        Box::pin(async move {
            let refused = RedbStore::open(
                path.clone(),
                env.tasks,
                FileDoor {
                    settle: is_full,
                    ..DOOR
                },
            );
            let refused = refused.err().unwrap().to_string();
            assert!(refused.contains("make room"), "{refused}");
            assert!(!path.exists());
        })
    });
}

// shows: REDB-3
#[test]
fn redb_stores_nothing_in_a_file_that_has_lost_its_name() {
    let directory = tempfile::tempdir().unwrap();
    let (path, away) = (
        directory.path().join("metadata"),
        directory.path().join("away"),
    );
    in_simulation(|env| {
        Box::pin(async move {
            let store = RedbStore::open(path.clone(), env.tasks, DOOR).unwrap();
            let put = |value: &'static str| Change::Put {
                key: "k".to_owned(),
                value: Bytes::from(value),
            };
            let is_not_there = || Condition {
                key: "none".to_owned(),
                value: None,
            };
            let stored = store.apply_if(is_not_there(), vec![put("1")]).await;
            assert_eq!(stored, Ok(Outcome::Applied));
            assert_eq!(store.check().await, Ok(()));
            std::fs::rename(&path, &away).unwrap();
            for other_is_there in [false, true] {
                if other_is_there {
                    std::fs::copy(&away, &path).unwrap();
                }
                let refused = store.apply_if(is_not_there(), vec![put("2")]).await;
                let refused = refused.unwrap_err().to_string();
                assert!(refused.contains("removed or replaced"), "{refused}");
                assert!(store.check().await.is_err());
            }
            std::fs::rename(&away, &path).unwrap();
            assert_eq!(store.check().await, Ok(()), "it has its name again");
            assert_eq!(store.get("k").await, Ok(Some(Bytes::from("1"))));
        })
    });
}

/// A device that gets full, or fails.
#[derive(Debug, Default)]
struct Device {
    is_full: AtomicBool,
    /// Pages that have their room.
    pages: Mutex<BTreeSet<u64>>,
    /// How many more writes and syncs succeed, if one is to fail, and all behind it.
    until_failure: Mutex<Option<u32>>,
    /// How often its file was opened.
    opened: AtomicU32,
}

impl Device {
    fn fail_after(&self, count: Option<u32>) {
        *self.until_failure.lock().unwrap() = count;
    }

    fn fill(&self, is_full: bool) {
        self.is_full.store(is_full, Ordering::SeqCst);
    }

    fn work(&self) -> io::Result<()> {
        let mut left = self.until_failure.lock().unwrap();
        match left.as_mut() {
            None => Ok(()),
            Some(0) => Err(io::Error::other("the device fails")),
            Some(left) => {
                *left -= 1;
                Ok(())
            }
        }
    }

    fn take_room(&self, offset: u64, length: usize) -> io::Result<()> {
        let wanted = offset / PAGE_BYTES..(offset + length as u64).div_ceil(PAGE_BYTES);
        let mut pages = self.pages.lock().unwrap();
        let lacks = wanted.clone().any(|page| !pages.contains(&page));
        if lacks && self.is_full.load(Ordering::SeqCst) {
            return Err(io::ErrorKind::StorageFull.into());
        }
        pages.extend(wanted);
        Ok(())
    }

    /// Opens its file, or creates it.
    fn open(self: &Arc<Self>, path: &Path) -> Result<Database, redb::Error> {
        self.opened.fetch_add(1, Ordering::SeqCst);
        let mut options = std::fs::OpenOptions::new();
        let options = options.read(true).write(true).create(true).truncate(false);
        let file = OnDevice {
            file: FileBackend::new(options.open(path)?)?,
            device: self.clone(),
        };
        Ok(Database::builder().create_with_backend(file)?)
    }

    /// A store on it.
    fn store(self: &Arc<Self>, path: &Path, tasks: &Arc<dyn Tasks>) -> RedbStore {
        let database = self.open(path).unwrap();
        let own = self.clone();
        let reopen = Box::new(move |path: &Path| own.open(path));
        RedbStore::on(path.to_owned(), database, (reopen, identity), tasks.clone())
    }
}

/// A file on a device.
#[derive(Debug)]
struct OnDevice {
    file: FileBackend,
    device: Arc<Device>,
}

impl StorageBackend for OnDevice {
    fn len(&self) -> io::Result<u64> {
        self.file.len()
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        self.file.read(offset, out)
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.file.set_len(len)
    }

    fn sync_data(&self) -> io::Result<()> {
        self.device.work()?;
        self.file.sync_data()
    }

    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        self.device.work()?;
        self.device.take_room(offset, data.len())?;
        self.file.write(offset, data)
    }
}

fn text(number: usize) -> Bytes {
    Bytes::from(number.to_string())
}

/// Gives a store the batch with this number, from 0, as the coordinator does: each depends on the
/// one before (LEAD-1). An error is no answer; a caller that gives it again hears how it ended.
async fn give(store: &RedbStore, number: usize) -> Result<(), StoreError> {
    let put = |key: String, value: Bytes| Change::Put { key, value };
    let batch = vec![
        put("chain".into(), text(number)),
        put(format!("t/{number:05}"), vec![7_u8; 300].into()),
    ];
    let condition = Condition {
        key: "chain".into(),
        value: number.checked_sub(1).map(text),
    };
    match store.apply_if(condition, batch).await? {
        Outcome::Applied => {}
        // By an earlier try.
        Outcome::Refused => assert_eq!(store.get("chain").await?, Some(text(number))),
    }
    Ok(())
}

/// Checks that a store has the first `count` batches, and at most one more, each as a whole.
async fn assert_holds(store: &RedbStore, count: usize) {
    let found = store.list_prefix("t/").await.unwrap();
    let found: Vec<String> = found.into_iter().map(|(key, _)| key).collect();
    let there = found.len();
    assert!(there == count || there == count + 1, "{there} of {count}");
    let all: Vec<String> = (0..there).map(|number| format!("t/{number:05}")).collect();
    assert_eq!(found, all);
    let last = there.checked_sub(1).map(text);
    assert_eq!(store.get("chain").await.unwrap(), last);
}

/// REDB-1.
// shows: REDB-1
#[test]
fn a_batch_whose_commit_failed_anywhere_is_there_as_a_whole_or_not_at_all() {
    const BEFORE: usize = 5;
    let directory = tempfile::tempdir().unwrap();
    in_simulation(|env| {
        Box::pin(async move {
            for failure in 0_u32.. {
                let device = Arc::new(Device::default());
                let path = directory.path().join(failure.to_string());
                let store = device.store(&path, &env.tasks);
                for number in 0..BEFORE {
                    give(&store, number).await.unwrap();
                }
                device.fail_after(Some(failure));
                if give(&store, BEFORE).await.is_ok() {
                    assert!(failure > 3, "a commit writes, and syncs");
                    device.fail_after(None);
                    break;
                }
                // Opened again at each try, and to no avail before the device is well.
                assert!(store.get("chain").await.is_err());
                assert_eq!(device.opened.load(Ordering::SeqCst), 2);
                device.fail_after(None);
                assert_holds(&store, BEFORE).await;
                give(&store, BEFORE).await.unwrap();
                assert_holds(&store, BEFORE + 1).await;
                assert_eq!(device.opened.load(Ordering::SeqCst), 3);
                drop(store);
                assert_holds(&device.store(&path, &env.tasks), BEFORE + 1).await;
            }
        })
    });
}

/// REDB-1.
// shows: REDB-1
#[test]
fn a_full_device_takes_no_batches_and_loses_none() {
    /// How often the same batch is refused before nothing is expected to fit any more.
    const REFUSALS: u32 = 3;
    /// Far more than fits what is free within the file.
    const BATCHES_MAX: usize = 10_000;
    let directory = tempfile::tempdir().unwrap();
    in_simulation(|env| {
        Box::pin(async move {
            let device = Arc::new(Device::default());
            let path = directory.path().join("metadata");
            let store = device.store(&path, &env.tasks);
            let mut count = 0;
            while count < 20 {
                give(&store, count).await.unwrap();
                count += 1;
            }
            device.fill(true);
            let mut refusals = 0;
            while refusals < REFUSALS {
                match give(&store, count).await {
                    Ok(()) => (count, refusals) = (count + 1, 0),
                    Err(error) => {
                        refusals += 1;
                        let said = error.to_string();
                        assert!(said.contains("no space left"), "{said}");
                        // It can be read all the time.
                        assert_holds(&store, count).await;
                    }
                }
                assert!(count < BATCHES_MAX, "it is never full");
            }
            // The next process finds all of it, on the full device and after.
            drop(store);
            let store = device.store(&path, &env.tasks);
            assert_holds(&store, count).await;
            device.fill(false);
            for number in count..count + 20 {
                give(&store, number).await.unwrap();
            }
            assert_holds(&store, count + 20).await;
        })
    });
}
