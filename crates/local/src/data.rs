//! The contents of a cluster's data directory on this machine: servers' directories, and the
//! metadata.
//!
//! Looks only; changes nothing. Any thread; blocks on the file system.

use crate::announcement::{METADATA_FILE, Role};
use pluvio_metadata::Place;
use std::collections::BTreeSet;
use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

/// Where the metadata of a data directory is, unless it has another place.
pub(crate) fn metadata_directory(data: &Path) -> PathBuf {
    data.join("coordinator")
}

/// The data of servers without the metadata that says what it is.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct LostMetadata {
    /// The file that is missing.
    pub file: PathBuf,
    /// The numbers of the servers, in ascending order.
    pub servers: Vec<u32>,
}

/// Whether servers below `data` have data while the metadata, in `place` or below `data`, is
/// missing. A coordinator would begin a new cluster there. Looks only, and only at directories.
#[must_use]
pub fn lost_metadata(data: &Path, place: Option<&Place>) -> Option<LostMetadata> {
    let directory = match place {
        Some(place) => place.directory()?.to_owned(),
        None => metadata_directory(data),
    };
    let file = directory.join(METADATA_FILE);
    let found = file.symlink_metadata();
    let is_missing = found.is_err_and(|error| error.kind() == ErrorKind::NotFound);
    let servers = servers_there(data);
    (is_missing && !servers.is_empty()).then_some(LostMetadata { file, servers })
}

/// The servers that a data directory knows: each N in ascending order whose `server-N` holds what a
/// server keeps.
pub(crate) fn servers_there(data: &Path) -> Vec<u32> {
    let Ok(entries) = fs::read_dir(data) else {
        return Vec::new();
    };
    let names = entries.filter_map(|entry| entry.ok()?.file_name().into_string().ok());
    let numbers = names.filter_map(|name| name.strip_prefix("server-")?.parse::<u32>().ok());
    // What a coordinator refuses is a server's.
    let holds = |n: &u32| {
        let directory = data.join(format!("server-{n}"));
        Role::Coordinator.check_directory(&directory).is_err()
    };
    let known: BTreeSet<u32> = numbers.filter(|n| *n > 0 && holds(n)).collect();
    known.into_iter().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn servers_are_found_in_the_data() {
        let folder = tempfile::tempdir().unwrap();
        assert!(servers_there(folder.path()).is_empty());
        for name in [
            "server-1/frames",
            "server-3/identity.json",
            "server-4000000000",
            "server-02/frames",
            "server-0/frames",
            "server-x/frames",
            "coordinator",
            "logs",
        ] {
            fs::create_dir_all(folder.path().join(name)).unwrap();
        }
        assert_eq!(servers_there(folder.path()), [1, 3]);
        assert!(servers_there(&folder.path().join("nothing")).is_empty());
    }

    #[test]
    fn data_of_servers_without_their_metadata_is_seen() {
        let folder = tempfile::tempdir().unwrap();
        let data = folder.path();
        assert_eq!(lost_metadata(data, None), None, "nothing is there yet");
        fs::create_dir_all(data.join("server-2/frames")).unwrap();
        let lost = |file: PathBuf| {
            Some(LostMetadata {
                file,
                servers: vec![2],
            })
        };
        let own = data.join("coordinator/metadata.redb");
        assert_eq!(lost_metadata(data, None), lost(own.clone()));
        fs::create_dir_all(data.join("coordinator")).unwrap();
        assert_eq!(lost_metadata(data, None), lost(own.clone()));
        fs::write(own, "").unwrap();
        assert_eq!(lost_metadata(data, None), None);
        let elsewhere = Place::Embedded(data.join("elsewhere"));
        let file = data.join("elsewhere/metadata.redb");
        assert_eq!(lost_metadata(data, Some(&elsewhere)), lost(file));
        let etcd = "etcd://127.0.0.1:2379".parse().unwrap();
        assert_eq!(lost_metadata(data, Some(&etcd)), None);
    }
}
