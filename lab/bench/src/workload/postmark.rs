//! A Postmark-like load: many small files that are created, read, appended to and deleted.
//!
//! The parameters are those of the Nibble dissertation, with fewer files and transactions; a file
//! is one object. (Its table 4 has 2 million files of 500 to 4096 bytes, 32 million transactions,
//! ten thousand sub-directories.) Each transaction is, as in Postmark, a read or an append of some
//! file, and the creation or deletion of one. At the end all files are deleted.
//!
//! A key is a file's path: the number of its sub-directory, which is drawn when it is created, and
//! then its own. No other file of the thread ever has that number. Sub-directories are no objects.
//!
//! ```text
//!  key:  thread  |  sub-directory  |  file
//! ```

use super::stream::{KEYS_OF_THREAD, Live, Operation, Stream};
use crate::error::{ExperimentError, within};
use pluvio_load::Random;
use serde::{Deserialize, Serialize};

/// A file that is longer is not appended to.
const APPENDED_MAX: u32 = 16 << 10;

/// The parameters.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Postmark {
    /// Files at the beginning.
    pub files: u64,
    /// Transactions.
    pub transactions: u64,
    /// Least and largest size of a new file.
    pub sizes: (u32, u32),
    /// Sub-directories among which files are dealt out; 0 for none.
    pub subdirectories: u64,
}

impl Postmark {
    /// There are keys for all files.
    ///
    /// # Errors
    /// There are too many sub-directories for the files and transactions.
    pub fn check(&self) -> Result<(), ExperimentError> {
        // Any transaction may create a file, and all may be in one sub-directory.
        let numbers = self.files.saturating_add(self.transactions).max(1);
        let most = KEYS_OF_THREAD / numbers;
        within("subdirectories", self.subdirectories, 0..=most)
    }

    /// Keys that each sub-directory has.
    fn keys_of_subdirectory(&self) -> u64 {
        KEYS_OF_THREAD / self.subdirectories.max(1)
    }

    /// Most bytes of a file.
    #[must_use]
    pub fn largest(&self) -> u32 {
        self.sizes.1.max(APPENDED_MAX)
    }
}

enum Stage {
    Create(u64),
    /// Transactions left, and whether the second half of one is due.
    Transact(u64, bool),
    Remove,
}

/// The stream.
pub(super) struct PostmarkStream {
    plan: Postmark,
    stage: Stage,
    files: Vec<(u64, u32)>,
    first_key: u64,
    next_number: u64,
    bytes: u64,
    random: Random,
}

impl PostmarkStream {
    pub(super) fn new(plan: &Postmark, seed: u64, thread: usize, first_key: u64) -> Self {
        Self {
            stage: Stage::Create(plan.files),
            files: Vec::with_capacity(plan.files as usize * 2),
            first_key,
            next_number: 0,
            bytes: 0,
            random: Random::new(seed, thread as u64),
            plan: plan.clone(),
        }
    }

    fn create(&mut self) -> Operation {
        let (least, largest) = self.plan.sizes;
        let size = least + self.random.below(u64::from(largest - least) + 1) as u32;
        let subdirectory = match self.plan.subdirectories {
            0 => 0,
            count => self.random.below(count),
        };
        let path = subdirectory * self.plan.keys_of_subdirectory() + self.next_number;
        let key = self.first_key + path;
        self.next_number += 1;
        self.files.push((key, size));
        self.bytes += u64::from(size);
        Operation::Put { key, size }
    }

    fn any(&mut self) -> usize {
        self.random.below(self.files.len() as u64) as usize
    }

    fn touch(&mut self) -> Operation {
        let at = self.any();
        let more = 1 + self.random.below(u64::from(self.plan.sizes.0.max(1))) as u32;
        let file = &mut self.files[at];
        if self.random.below(2) == 0 || file.1 + more > APPENDED_MAX {
            return Operation::Get { key: file.0 };
        }
        file.1 += more;
        self.bytes += u64::from(more);
        Operation::Append { key: file.0, more }
    }

    fn remove(&mut self, at: usize) -> Operation {
        let (key, size) = self.files.swap_remove(at);
        self.bytes -= u64::from(size);
        Operation::Delete { key }
    }
}

impl Stream for PostmarkStream {
    fn next(&mut self) -> Option<Operation> {
        match self.stage {
            Stage::Create(0) => {
                self.stage = Stage::Transact(self.plan.transactions, false);
                Some(Operation::Mark("created"))
            }
            Stage::Create(left) => {
                self.stage = Stage::Create(left - 1);
                Some(self.create())
            }
            Stage::Transact(0, _) => {
                self.stage = Stage::Remove;
                Some(Operation::Mark("transacted"))
            }
            Stage::Transact(left, false) if !self.files.is_empty() => {
                self.stage = Stage::Transact(left, true);
                Some(self.touch())
            }
            Stage::Transact(left, _) => {
                self.stage = Stage::Transact(left - 1, false);
                // One file stays, so that there is something to read.
                match self.random.below(2) == 0 || self.files.len() < 2 {
                    true => Some(self.create()),
                    false => {
                        let at = self.any();
                        Some(self.remove(at))
                    }
                }
            }
            Stage::Remove => {
                let last = self.files.len().checked_sub(1)?;
                Some(self.remove(last))
            }
        }
    }

    fn live(&self) -> Live {
        Live {
            objects: self.files.len() as u64,
            bytes: self.bytes,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn all_files_are_created_and_deleted_once() {
        let plan = Postmark {
            files: 100,
            transactions: 1000,
            sizes: (500, 4096),
            subdirectories: 0,
        };
        let mut stream = PostmarkStream::new(&plan, 1, 0, 7 << 40);
        let (mut puts, mut deletes, mut appends, mut gets) = (0, 0, 0, 0);
        while let Some(operation) = stream.next() {
            match operation {
                Operation::Put { key, size } => {
                    assert!((500..=4096).contains(&size) && key >> 40 == 7);
                    puts += 1;
                }
                Operation::Get { .. } => gets += 1,
                Operation::Append { .. } => appends += 1,
                Operation::Delete { .. } => deletes += 1,
                Operation::Mark(_) => {}
            }
        }
        assert_eq!(puts, deletes);
        assert!(
            puts > 500 && gets > 400 && appends > 400,
            "{puts} {gets} {appends}"
        );
        assert_eq!(stream.live(), Live::default());
    }

    #[test]
    fn files_are_dealt_out_to_all_subdirectories_and_found_in_theirs() {
        let plan = Postmark {
            files: 100,
            transactions: 1000,
            sizes: (1, 1),
            subdirectories: 30,
        };
        plan.check().unwrap();
        let first_key = 7 * KEYS_OF_THREAD;
        let mut stream = PostmarkStream::new(&plan, 1, 0, first_key);
        let (mut live, mut ever) = (BTreeSet::new(), BTreeSet::new());
        while let Some(operation) = stream.next() {
            match operation {
                Operation::Put { key, .. } => {
                    assert!((first_key..first_key + KEYS_OF_THREAD).contains(&key));
                    assert!(ever.insert(key) && live.insert(key), "{key} again");
                }
                Operation::Get { key } | Operation::Append { key, .. } => {
                    assert!(live.contains(&key), "{key}");
                }
                Operation::Delete { key } => assert!(live.remove(&key), "{key}"),
                Operation::Mark(_) => {}
            }
        }
        let of = |key: &u64| (key - first_key) / plan.keys_of_subdirectory();
        let found: BTreeSet<u64> = ever.iter().map(of).collect();
        assert_eq!(found, (0..30).collect::<BTreeSet<u64>>());
        let numbers = ever
            .iter()
            .map(|key| (key - first_key) % plan.keys_of_subdirectory());
        assert_eq!(numbers.collect::<BTreeSet<u64>>().len(), ever.len());
    }

    #[test]
    fn there_is_a_key_for_each_path() {
        let plan = |subdirectories| Postmark {
            files: 2_000_000,
            transactions: 32_000_000,
            sizes: (500, 4096),
            subdirectories,
        };
        plan(10_000).check().unwrap();
        let error = plan(100_000).check().unwrap_err().to_string();
        assert_eq!(error, "--subdirectories 100000: 0 to 32338 are possible");
    }
}
