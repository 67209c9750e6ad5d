//! What a stream consists of [Nibble fig. 15]: which operations in which part of it, and how often
//! objects are used.

use super::stream::{Operation, Plan};
use crate::error::ExperimentError;
use std::collections::BTreeMap;

/// Parts of a stream that are told of one by one.
const PARTS: usize = 20;
/// The share of the operations that [`Census::uses_of_most`] is of.
const MOST: f64 = 0.8;

/// What is done to an object.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Use {
    /// It is read.
    Get,
    /// It is written, and was there.
    Overwrite,
    /// It is written, and was not there.
    Insert,
    /// It is deleted.
    Delete,
}

impl Use {
    /// All of them.
    pub const ALL: [Self; 4] = [Self::Get, Self::Overwrite, Self::Insert, Self::Delete];

    /// What rows call it.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Get => "get",
            Self::Overwrite => "overwrite",
            Self::Insert => "insert",
            Self::Delete => "delete",
        }
    }
}

/// What one thread's stream consists of. An append is a read and a write.
#[derive(Clone, PartialEq, Debug)]
pub struct Census {
    /// All uses, in their order.
    uses: Vec<Use>,
    /// Of how many uses are those of objects that are used so often.
    by_count: BTreeMap<u64, u64>,
}

impl Census {
    /// Of the stream that thread 0 has.
    ///
    /// # Errors
    /// As [`Plan::stream`].
    pub fn of(plan: &Plan, seed: u64) -> Result<Self, ExperimentError> {
        let mut stream = plan.stream(seed, 0, 1)?;
        let mut uses = Vec::new();
        // How often a key was used, and whether it is there. A key that is inserted again is a new
        // object.
        let mut keys: BTreeMap<u64, (u64, bool)> = BTreeMap::new();
        let mut by_count = BTreeMap::new();
        let mut end = |count: u64| *by_count.entry(count).or_default() += count;
        while let Some(operation) = stream.next() {
            let (key, done): (u64, &[Use]) = match operation {
                Operation::Put { key, .. } => match keys.get(&key) {
                    Some((_, true)) => (key, &[Use::Overwrite]),
                    Some((_, false)) | None => (key, &[Use::Insert]),
                },
                Operation::Get { key } => (key, &[Use::Get]),
                Operation::Append { key, .. } => (key, &[Use::Get, Use::Overwrite]),
                Operation::Delete { key } => (key, &[Use::Delete]),
                Operation::Mark(_) => continue,
            };
            uses.extend_from_slice(done);
            let known = keys.entry(key).or_default();
            if done == [Use::Insert] {
                end(known.0);
                *known = (0, true);
            }
            known.0 += done.len() as u64;
            known.1 &= done != [Use::Delete];
        }
        for (count, _) in keys.into_values() {
            end(count);
        }
        Ok(Self { uses, by_count })
    }

    /// The share of a kind of use, of all or of a part.
    fn share(uses: &[Use], of: Use) -> f64 {
        let found = uses.iter().filter(|one| **one == of).count();
        found as f64 / uses.len().max(1) as f64
    }

    /// Uses of objects.
    #[must_use]
    pub fn count(&self) -> usize {
        self.uses.len()
    }

    /// Percent of all uses.
    #[must_use]
    pub fn percent(&self, of: Use) -> f64 {
        100.0 * Self::share(&self.uses, of)
    }

    /// For each part of the stream, in order: where it ends, and the share of a kind of use in it,
    /// both in percent.
    #[must_use]
    pub fn by_part(&self, of: Use) -> Vec<(f64, f64)> {
        let part = self.uses.len().div_ceil(PARTS).max(1);
        let parts = self.uses.chunks(part).enumerate();
        let ends = |at: usize| ((at + 1) * part).min(self.uses.len());
        let point = |(at, uses): (usize, &[Use])| {
            let end = ends(at) as f64 / self.uses.len() as f64;
            (100.0 * end, 100.0 * Self::share(uses, of))
        };
        parts.map(point).collect()
    }

    /// For each number of uses: percent of all uses that are of objects with at most as many.
    #[must_use]
    pub fn by_uses(&self) -> Vec<(u64, f64)> {
        let mut sum = 0;
        let all = self.uses.len().max(1) as f64;
        let counts = self.by_count.iter().filter(|(count, _)| **count > 0);
        counts
            .map(|(count, uses)| {
                sum += uses;
                (*count, 100.0 * sum as f64 / all)
            })
            .collect()
    }

    /// Objects that are used at most so often have four fifths of all uses.
    #[must_use]
    pub fn uses_of_most(&self) -> u64 {
        let all = self.by_uses();
        let found = all.iter().find(|(_, percent)| *percent >= 100.0 * MOST);
        found.map_or(0, |(count, _)| *count)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::workload::Postmark;

    #[test]
    fn every_use_is_counted_with_its_object_and_in_its_part() {
        let plan = Plan::Postmark(Postmark {
            files: 1000,
            transactions: 4000,
            sizes: (10, 20),
            subdirectories: 7,
        });
        let census = Census::of(&plan, 1).unwrap();
        let percent: Vec<f64> = Use::ALL.map(|of| census.percent(of)).to_vec();
        assert!((percent.iter().sum::<f64>() - 100.0).abs() < 1e-9);
        let [_, overwritten, inserted, deleted] = percent[..] else {
            panic!("four kinds");
        };
        // All files are deleted in the end.
        assert_eq!(inserted, deleted);
        assert!((10.0..25.0).contains(&overwritten), "{percent:?}");
        let inserts = census.by_part(Use::Insert);
        assert_eq!((inserts.len(), inserts[19].0), (20, 100.0));
        // The first part creates files, the last one deletes them.
        assert_eq!(inserts[0].1, 100.0);
        assert_eq!(inserts[19].1, 0.0);
        let by_uses = census.by_uses();
        let last = by_uses.last().unwrap();
        assert!((last.1 - 100.0).abs() < 1e-9, "{by_uses:?}");
        assert!(by_uses[0].0 >= 2, "a file is created and deleted at least");
        let most = census.uses_of_most();
        assert!(most > 2 && most <= last.0, "{most} of {by_uses:?}");
    }
}
