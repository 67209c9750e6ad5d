//! What is left out of a run, so that a failing one can be made smaller and run again.

use crate::cluster::faults::Faults;
use core::fmt;
use core::str::FromStr;
use std::collections::BTreeSet;

/// What is kept of what a seed makes of a run: `None` keeps all. The rest of the run is drawn as if
/// nothing were left out, so it is as much the same run as it can be.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Keep {
    /// Kinds of faults that happen.
    pub faults: Option<Faults>,
    /// Clients, from the first on.
    pub clients: Option<u32>,
    /// Operations, from the first on.
    pub steps: Option<u64>,
    /// The events of faults that happen, by their numbers.
    pub events: Option<Numbers>,
}

impl Keep {
    /// As flags of `pluvio sim`, each with a space before it.
    #[must_use]
    pub fn flags(&self) -> String {
        let flag = |name: &str, value: Option<String>| {
            value.map_or_else(String::new, |value| format!(" --keep-{name} {value}"))
        };
        [
            flag("faults", self.faults.as_ref().map(ToString::to_string)),
            flag("clients", self.clients.map(|n| n.to_string())),
            flag("steps", self.steps.map(|n| n.to_string())),
            flag("events", self.events.as_ref().map(ToString::to_string)),
        ]
        .concat()
    }
}

/// A set of numbers. Read from and shown as a list with commas, ranges with a hyphen: `0-3,7`; the
/// empty set is `none`.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Numbers(BTreeSet<u64>);

impl Numbers {
    /// Most numbers of one range: more than any run has events.
    const RANGE_MAX: u64 = 1_000_000;

    /// Whether this number is among them.
    #[must_use]
    pub fn has(&self, number: u64) -> bool {
        self.0.contains(&number)
    }

    /// How many there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The numbers, ascending.
    pub fn iter(&self) -> impl Iterator<Item = u64> {
        self.0.iter().copied()
    }
}

impl FromIterator<u64> for Numbers {
    fn from_iter<I: IntoIterator<Item = u64>>(numbers: I) -> Self {
        Self(numbers.into_iter().collect())
    }
}

impl fmt::Display for Numbers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0.is_empty() {
            return f.write_str("none");
        }
        let mut ranges: Vec<(u64, u64)> = Vec::new();
        for number in self.iter() {
            match ranges.last_mut() {
                Some((_, last)) if *last + 1 == number => *last = number,
                _ => ranges.push((number, number)),
            }
        }
        let words: Vec<String> = { ranges.into_iter() }
            .map(|(first, last)| match first == last {
                true => first.to_string(),
                false => format!("{first}-{last}"),
            })
            .collect();
        f.write_str(&words.join(","))
    }
}

/// Text that is no list of numbers. Not retryable.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{0:?} is not a list of numbers: give none, or numbers and ranges with commas, as 0-3,7")]
pub struct BadNumbers(String);

impl FromStr for Numbers {
    type Err = BadNumbers;

    fn from_str(text: &str) -> Result<Self, BadNumbers> {
        if text.trim() == "none" {
            return Ok(Self::default());
        }
        let bad = || BadNumbers(text.to_owned());
        let mut numbers = BTreeSet::new();
        for word in text.split(',').map(str::trim) {
            let (first, last) = word.split_once('-').unwrap_or((word, word));
            let first: u64 = first.parse().map_err(|_| bad())?;
            let last: u64 = last.parse().map_err(|_| bad())?;
            if last < first || last - first >= Self::RANGE_MAX {
                return Err(bad());
            }
            numbers.extend(first..=last);
        }
        Ok(Self(numbers))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_read_as_they_are_shown() {
        for (list, text) in [
            (vec![], "none"),
            (vec![7], "7"),
            (vec![0, 1, 2, 3, 7, 9, 10], "0-3,7,9-10"),
        ] {
            let numbers: Numbers = list.into_iter().collect();
            assert_eq!(numbers.to_string(), text);
            assert_eq!(text.parse(), Ok(numbers));
        }
        for bad in ["", "x", "3-1", "1-", "0-99999999", "1,,2"] {
            assert!(bad.parse::<Numbers>().is_err(), "{bad}");
        }
    }
}
