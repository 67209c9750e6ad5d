//! Which data directories belong together.
//!
//! The first one has the server's identity, and a list of the others (`directories.json`). Each of
//! the others says whose it is (`directory.json`). So a device that is not mounted is noticed, and
//! the empty directory that stands in its place is not filled.
//!
//! - DATADIR-1: a data directory that the list names and that is missing, empty or unreadable stops the
//!   start, unless its loss was allowed. What is found in one that comes back counts as much as
//!   what a restarted backup finds.

use crate::options::{FurtherDirectory, MissingData, ServerOptions};
use bytes::Bytes;
use pluvio_backup::DataDirectory;
use pluvio_env::{Disk, DiskError, Env, OpenMode};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// In the first data directory: the others.
const LIST: &str = "directories.json";
const LIST_NEW: &str = "directories.json.new";
/// In each of the others: whose it is.
const MARK: &str = "directory.json";
const MARK_NEW: &str = "directory.json.new";
/// What says that a data directory is the first one of a server.
const IDENTITY: &str = "identity.json";
/// Version of both files.
const FORMAT_VERSION: u32 = 1;
/// What is wrong with a directory that is known, and has no mark.
const EMPTY: &str = "has lost its files, or is another one";
/// What is wrong with one that was not given.
const NOT_GIVEN: &str = "is not among those given, or has moved";
/// Longer files are damaged.
const LENGTH_MAX: usize = 1 << 20;

/// Why the data directories cannot be used together. Nothing was changed in those named.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DirectoriesError {
    /// A disk refused. Retryable once the cause is mended.
    #[error("cannot use data directory {name}: {error}")]
    Disk {
        /// The directory.
        name: String,
        /// What it said.
        error: DiskError,
    },
    /// One of the two files cannot be understood. Not retryable.
    #[error("{file} in data directory {name} is damaged ({why}): restore it")]
    Damaged {
        /// The directory.
        name: String,
        /// The file.
        file: &'static str,
        /// What is wrong.
        why: String,
    },
    /// A known directory is not there, or has lost its files. Retryable when it is back, or with
    /// another [`MissingData`].
    #[error(
        "data directory {name} of this server {why}: mount its device; or start with --missing-data leave-out to go on without its frames for now, or with --missing-data forget if they are lost for good"
    )]
    Missing {
        /// The directory.
        name: String,
        /// What is wrong with it.
        why: String,
    },
    /// A directory of another server. Not retryable.
    #[error(
        "data directory {name} belongs to {whose}: give each server its own; to use its frames here, remove {file} in it"
    )]
    Foreign {
        /// The directory.
        name: String,
        /// The owner.
        whose: String,
        /// What says so.
        file: &'static str,
    },
    /// One directory was given twice, or copied. Not retryable.
    #[error(
        "data directories {first} and {second} are the same, or one is a copy of the other: give each once"
    )]
    Twice {
        /// One.
        first: String,
        /// The other.
        second: String,
    },
    /// Another one must be given first. Not retryable.
    #[error(
        "data directory {name} is a further one of a server whose first one is {first}: give that one first"
    )]
    NotFirst {
        /// The directory that was given first.
        name: String,
        /// The one that should be.
        first: String,
    },
}

#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
struct List {
    format_version: u32,
    /// Directories of one server share it.
    set: u64,
    further: Vec<Known>,
}

#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
struct Known {
    id: u64,
    /// Where it was last.
    name: String,
}

#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
struct Mark {
    format_version: u32,
    set: u64,
    id: u64,
    /// Where the first data directory was.
    first: String,
}

/// What came of it.
pub(crate) struct Together {
    /// Those that may be used.
    pub(crate) further: Vec<DataDirectory>,
    /// Those that are left out, and why.
    pub(crate) missing: Vec<(String, String)>,
}

/// A further data directory that works, and what it says of itself.
struct Seen<'a> {
    name: &'a String,
    disk: &'a Arc<dyn Disk>,
    mark: Option<Mark>,
}

/// Finds out which of the further data directories may be used, takes in new ones, and remembers
/// all of them.
///
/// # Errors
/// See [`DirectoriesError`].
pub(crate) async fn together(
    env: &Env,
    options: &ServerOptions,
) -> Result<Together, DirectoriesError> {
    let (first, first_name) = (&*env.disk, &options.data_name);
    if let Some(mark) = load::<Mark>(first, first_name, MARK).await? {
        return Err(DirectoriesError::NotFirst {
            name: first_name.clone(),
            first: mark.first,
        });
    }
    let stored = load::<List>(first, first_name, LIST).await?;
    if options.further.is_empty() && stored.is_none() {
        return Ok(Together {
            further: Vec::new(),
            missing: Vec::new(),
        });
    }
    let mut list = stored.clone().unwrap_or_else(|| List {
        format_version: FORMAT_VERSION,
        set: env.rng.next_u64(),
        further: Vec::new(),
    });
    let mut out = BTreeMap::new();
    let seen = look(options, &list, &mut out).await?;
    let ids: BTreeSet<u64> = seen
        .iter()
        .filter_map(|s| Some(s.mark.as_ref()?.id))
        .collect();
    let mut used = Vec::new();
    for Seen { name, disk, mark } in seen {
        let id = match mark {
            Some(mark) => mark.id,
            None => {
                let of_name = |known: &Known| known.name == *name && !ids.contains(&known.id);
                if list.further.iter().any(of_name) {
                    missing(options, name, EMPTY)?;
                    if options.missing == MissingData::LeaveOut {
                        out.insert(name.clone(), EMPTY.to_owned());
                        continue;
                    }
                    list.further.retain(|known| !of_name(known));
                }
                begin(&**disk, name, &list, env.rng.next_u64(), first_name).await?
            }
        };
        match list.further.iter_mut().find(|known| known.id == id) {
            Some(known) => known.name.clone_from(name),
            None => list.further.push(Known {
                id,
                name: name.clone(),
            }),
        }
        used.push((id, name, disk));
    }
    let mut lost = BTreeSet::new();
    for known in &list.further {
        let is_used = used.iter().any(|(id, ..)| *id == known.id);
        if is_used {
            continue;
        }
        if !out.contains_key(&known.name) {
            missing(options, &known.name, NOT_GIVEN)?;
            out.insert(known.name.clone(), NOT_GIVEN.to_owned());
        }
        if options.missing == MissingData::Forget {
            lost.insert(known.id);
        }
    }
    list.further.retain(|known| !lost.contains(&known.id));
    if Some(&list) != stored.as_ref() {
        let kept = store(first, (LIST_NEW, LIST), &list).await;
        kept.map_err(|error| disk_error(first_name, error))?;
    }
    let directory = |(_, name, disk): (u64, &String, &Arc<dyn Disk>)| DataDirectory {
        name: name.clone(),
        disk: Arc::clone(disk),
    };
    let missing = match options.missing {
        MissingData::Refuse | MissingData::LeaveOut => out.into_iter().collect(),
        MissingData::Forget => Vec::new(),
    };
    Ok(Together {
        further: used.into_iter().map(directory).collect(),
        missing,
    })
}

/// Reads what further data directories say of themselves. Those that do not work, and may be left
/// out, go to `out`.
async fn look<'a>(
    options: &'a ServerOptions,
    list: &List,
    out: &mut BTreeMap<String, String>,
) -> Result<Vec<Seen<'a>>, DirectoriesError> {
    let mut seen: Vec<Seen<'_>> = Vec::new();
    for FurtherDirectory { name, disk } in &options.further {
        let looked = match disk {
            Ok(disk) => marks_of(&**disk, name).await.map(|marks| (disk, marks)),
            Err(error) => Err(disk_error(name, error.clone())),
        };
        let (disk, (mark, is_first)) = match looked {
            Ok(looked) => looked,
            Err(error) => {
                let DirectoriesError::Disk { error: disk, .. } = &error else {
                    return Err(error);
                };
                // Another process that works with it is no failure of the device.
                if matches!(disk, DiskError::InUse { .. }) {
                    return Err(error);
                }
                let is_known = list.further.iter().any(|known| known.name == *name);
                if !is_known && options.missing == MissingData::Refuse {
                    return Err(error);
                }
                let why = format!("cannot be used ({disk})");
                missing(options, name, &why)?;
                out.insert(name.clone(), why);
                continue;
            }
        };
        let foreign = |whose: String, file| DirectoriesError::Foreign {
            name: name.clone(),
            whose,
            file,
        };
        if is_first {
            let whose = "another server, whose identity is in it".to_owned();
            return Err(foreign(whose, IDENTITY));
        }
        if let Some(mark) = &mark {
            if mark.set != list.set {
                let whose = format!(
                    "the server whose first data directory is, or was, {}",
                    mark.first
                );
                return Err(foreign(whose, MARK));
            }
            let same = |other: &&Seen<'_>| other.mark.as_ref().is_some_and(|m| m.id == mark.id);
            if let Some(other) = seen.iter().find(same) {
                return Err(DirectoriesError::Twice {
                    first: other.name.clone(),
                    second: name.clone(),
                });
            }
        }
        seen.push(Seen { name, disk, mark });
    }
    Ok(seen)
}

/// A further data directory is missing.
///
/// # Errors
/// That must not be.
fn missing(options: &ServerOptions, name: &str, why: &str) -> Result<(), DirectoriesError> {
    match options.missing {
        MissingData::Refuse => Err(DirectoriesError::Missing {
            name: name.to_owned(),
            why: why.to_owned(),
        }),
        MissingData::LeaveOut => {
            pluvio_units::mark("server-leaves-directory-out");
            tracing::warn!(
                directory = name,
                why,
                "starts without a data directory: its frames are lost for now"
            );
            Ok(())
        }
        MissingData::Forget => {
            tracing::warn!(
                directory = name,
                why,
                "forgets a data directory: its frames are lost"
            );
            Ok(())
        }
    }
}

/// What a further data directory says of itself, and whether it is the first one of some server.
async fn marks_of(disk: &dyn Disk, name: &str) -> Result<(Option<Mark>, bool), DirectoriesError> {
    let is_first = match disk.open(IDENTITY, OpenMode::Existing).await {
        Ok(_) => true,
        Err(DiskError::NotFound { .. }) => false,
        Err(error) => return Err(disk_error(name, error)),
    };
    Ok((load(disk, name, MARK).await?, is_first))
}

/// Takes in a new data directory. Its mark is there before the list names it, so none of both is
/// ever mistaken for a loss.
async fn begin(
    disk: &dyn Disk,
    name: &str,
    list: &List,
    id: u64,
    first: &str,
) -> Result<u64, DirectoriesError> {
    let mark = Mark {
        format_version: FORMAT_VERSION,
        set: list.set,
        id,
        first: first.to_owned(),
    };
    tracing::info!(directory = name, "takes in a data directory");
    let stored = store(disk, (MARK_NEW, MARK), &mark).await;
    stored.map_err(|error| disk_error(name, error))?;
    Ok(id)
}

fn disk_error(name: &str, error: DiskError) -> DirectoriesError {
    DirectoriesError::Disk {
        name: name.to_owned(),
        error,
    }
}

async fn load<T: DeserializeOwned>(
    disk: &dyn Disk,
    name: &str,
    path: &'static str,
) -> Result<Option<T>, DirectoriesError> {
    let file = match disk.open(path, OpenMode::Existing).await {
        Ok(file) => file,
        Err(DiskError::NotFound { .. }) => return Ok(None),
        Err(error) => return Err(disk_error(name, error)),
    };
    let text = file.read_at(0, LENGTH_MAX).await;
    let text = text.map_err(|error| disk_error(name, error))?;
    let damaged = |why: String| DirectoriesError::Damaged {
        name: name.to_owned(),
        file: path,
        why,
    };
    let value: serde_json::Value =
        serde_json::from_slice(&text).map_err(|error| damaged(error.to_string()))?;
    let version = value
        .get("format_version")
        .and_then(serde_json::Value::as_u64);
    if version != Some(u64::from(FORMAT_VERSION)) {
        return Err(damaged(format!("its version is not {FORMAT_VERSION}")));
    }
    let value = serde_json::from_value(value).map_err(|error| damaged(error.to_string()))?;
    Ok(Some(value))
}

/// Replaces a file in one step that survives a power loss.
async fn store(
    disk: &dyn Disk,
    (new, path): (&'static str, &'static str),
    value: &impl Serialize,
) -> Result<(), DiskError> {
    let text = serde_json::to_vec_pretty(value).expect("numbers and names can be written as JSON");
    disk.remove(new).await?;
    let file = disk.open(new, OpenMode::New).await?;
    file.write_at(0, Bytes::from(text)).await?;
    file.sync().await?;
    disk.rename(new, path).await?;
    disk.sync_directory("").await
}

#[cfg(test)]
mod tests {
    use super::*;
    use pluvio_env::Address;
    use pluvio_sim::{Device, DeviceMode, DeviceSwitch, ProcessEnv, Sim, SimOptions};
    use std::time::Duration;

    const FOLDERS: [&str; 3] = ["a/", "b/", "c/"];

    /// A machine with three devices.
    struct Machine {
        sim: Sim,
        process: ProcessEnv,
        switches: [DeviceSwitch; 3],
    }

    impl Machine {
        fn new() -> Self {
            let sim = Sim::new(1, SimOptions::default());
            Self {
                process: sim.process("server"),
                sim,
                switches: Default::default(),
            }
        }

        fn disk(&self, number: usize) -> Arc<dyn Disk> {
            let disk = Arc::clone(&self.process.env.disk);
            Device::of(disk, FOLDERS[number], self.switches[number].clone())
        }

        /// What a start with these says, the first one first: those used, and those left out.
        fn start(
            &self,
            data: &[usize],
            missing: MissingData,
        ) -> Result<(Vec<String>, usize), DirectoriesError> {
            let name = |number: &usize| FOLDERS[*number].trim_end_matches('/').to_owned();
            let mut options = ServerOptions::new(Address::default(), Address::default());
            options.data_name = name(&data[0]);
            options.missing = missing;
            let further = data[1..].iter().map(|number| FurtherDirectory {
                name: name(number),
                disk: Ok(self.disk(*number)),
            });
            options.further = further.collect();
            let mut env = self.process.env.clone();
            env.disk = self.disk(data[0]);
            let work = async move { together(&env, &options).await };
            let limit = Duration::from_secs(10);
            let done = self
                .sim
                .block_on(self.process.id, work, limit)
                .expect("ends");
            done.map(|together| {
                let used = together.further.into_iter().map(|further| further.name);
                (used.collect(), together.missing.len())
            })
        }

        fn remove(&self, number: usize) {
            let disk = self.disk(number);
            let work = async move { disk.remove(MARK).await };
            let removed = self
                .sim
                .block_on(self.process.id, work, Duration::from_secs(1));
            assert_eq!(removed.expect("ends"), Ok(()));
        }
    }

    fn used(names: &[&str], missing: usize) -> Result<(Vec<String>, usize), DirectoriesError> {
        Ok((names.iter().map(ToString::to_string).collect(), missing))
    }

    use MissingData::{Forget, LeaveOut, Refuse};

    #[test]
    fn one_directory_needs_no_list() {
        let machine = Machine::new();
        assert_eq!(machine.start(&[0], Refuse), used(&[], 0));
        assert_eq!(machine.sim.files(machine.process.id), Vec::<String>::new());
    }

    #[test]
    fn directories_are_taken_in_and_found_in_any_order() {
        let machine = Machine::new();
        assert_eq!(machine.start(&[0, 1], Refuse), used(&["b"], 0));
        assert_eq!(machine.start(&[0, 1, 2], Refuse), used(&["b", "c"], 0));
        assert_eq!(machine.start(&[0, 2, 1], Refuse), used(&["c", "b"], 0));
    }

    // shows: DATADIR-1
    #[test]
    fn one_that_is_missing_stops_the_start_unless_that_was_allowed() {
        let _marks = pluvio_units::Marks::to_reach(&["server-leaves-directory-out"]);
        let is_missing = |result: Result<_, DirectoriesError>, of: &str| match result {
            Err(DirectoriesError::Missing { name, .. }) => assert_eq!(name, of),
            other => panic!("{other:?}"),
        };
        let machine = Machine::new();
        assert_eq!(machine.start(&[0, 1, 2], Refuse), used(&["b", "c"], 0));
        // Not given.
        is_missing(machine.start(&[0, 2], Refuse), "b");
        assert_eq!(machine.start(&[0, 2], LeaveOut), used(&["c"], 1));
        is_missing(machine.start(&[0, 2], Refuse), "b");
        // Its device does not work.
        machine.switches[1].set(DeviceMode::Fails);
        is_missing(machine.start(&[0, 1, 2], Refuse), "b");
        assert_eq!(machine.start(&[0, 1, 2], LeaveOut), used(&["c"], 1));
        machine.switches[1].set(DeviceMode::Works);
        assert_eq!(machine.start(&[0, 1, 2], Refuse), used(&["b", "c"], 0));
        // It has lost its files, or something else is in its place.
        machine.remove(1);
        is_missing(machine.start(&[0, 1, 2], Refuse), "b");
        assert_eq!(machine.start(&[0, 1, 2], LeaveOut), used(&["c"], 1));
        is_missing(machine.start(&[0, 1, 2], Refuse), "b");
        assert_eq!(machine.start(&[0, 1, 2], Forget), used(&["b", "c"], 0));
        assert_eq!(machine.start(&[0, 1, 2], Refuse), used(&["b", "c"], 0));
        // One is gone for good.
        assert_eq!(machine.start(&[0, 2], Forget), used(&["c"], 0));
        assert_eq!(machine.start(&[0, 2], Refuse), used(&["c"], 0));
        // It comes back all the same.
        assert_eq!(machine.start(&[0, 1, 2], Refuse), used(&["b", "c"], 0));
    }

    #[test]
    fn a_new_one_that_does_not_work_stops_the_start() {
        let machine = Machine::new();
        machine.switches[1].set(DeviceMode::Fails);
        let error = machine.start(&[0, 1], Refuse).unwrap_err();
        assert!(matches!(error, DirectoriesError::Disk { .. }), "{error}");
        assert_eq!(machine.start(&[0, 1], LeaveOut), used(&[], 1));
        machine.switches[1].set(DeviceMode::Works);
        assert_eq!(machine.start(&[0, 1], Refuse), used(&["b"], 0));
    }

    #[test]
    fn directories_of_others_are_refused_whatever_may_be_missing() {
        let machine = Machine::new();
        assert_eq!(machine.start(&[0, 1], Refuse), used(&["b"], 0));
        for missing in [Refuse, LeaveOut, Forget] {
            let error = machine.start(&[2, 1], missing).unwrap_err();
            assert!(matches!(error, DirectoriesError::Foreign { .. }), "{error}");
            let error = machine.start(&[1, 0], missing).unwrap_err();
            assert!(
                matches!(error, DirectoriesError::NotFirst { .. }),
                "{error}"
            );
            let error = machine.start(&[0, 1, 1], missing).unwrap_err();
            assert!(matches!(error, DirectoriesError::Twice { .. }), "{error}");
        }
        // The first one is lost: another one takes its place.
        machine.remove(1);
        assert_eq!(machine.start(&[1, 2], Refuse), used(&["c"], 0));
    }
}
