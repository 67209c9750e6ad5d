//! Transactions between accounts: strictly serializable.
//!
//! Each transfer adds one to a count, and its answer tells the sum: its place in the one order of
//! all transfers. A read of all accounts tells how many came before it.
//!
//! - No two transfers have one place, and places grow in real time.
//! - Balances add up to 0 in every read.
//! - A read is what the transfers before it give. Where some of unknown outcome may be among them,
//!   some choice of those must explain it.

use super::{Check, Violation};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Accounts.
pub const ACCOUNTS: usize = 6;
/// Most transfers of unknown outcome among which a choice is looked for.
const UNKNOWN_MAX: usize = 14;

/// What came of a transaction.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Did {
    /// The amount was moved, as this one of all transfers.
    Moved {
        /// Its place.
        count: i64,
    },
    /// All accounts were read.
    Read {
        /// Transfers before.
        count: i64,
        /// What the accounts held.
        balances: Vec<i64>,
    },
    /// Nothing.
    Nothing,
    /// It is not known.
    Unknown,
    /// An answer that no server may give.
    Strange,
}

/// A transaction of a client.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Deed {
    /// Whose.
    pub client: u16,
    /// Before everything that it saw.
    pub invoked: u64,
    /// After it.
    pub returned: u64,
    /// From, to, and how much; `None`: a read.
    pub moved: Option<(usize, usize, i64)>,
    /// What came of it.
    pub did: Did,
}

impl Deed {
    fn place(&self) -> Option<i64> {
        match self.did {
            Did::Moved { count } | Did::Read { count, .. } => Some(count),
            Did::Nothing | Did::Unknown | Did::Strange => None,
        }
    }
}

/// What does not hold.
#[must_use]
pub fn strictly_serializable(deeds: &[Deed]) -> Vec<Violation> {
    let mut found = Vec::new();
    let mut complain = |message: String, evidence: &[&Deed]| {
        found.push(Violation {
            check: Check::StrictlySerializable,
            message,
            evidence: evidence.iter().map(|deed| format!("{deed:?}")).collect(),
        });
    };
    let mut moved: BTreeMap<i64, &Deed> = BTreeMap::new();
    for deed in deeds {
        match deed.did {
            Did::Strange => complain("a transaction has an impossible answer".to_owned(), &[deed]),
            Did::Moved { count } => {
                if let Some(other) = moved.insert(count, deed) {
                    let message = format!("two transfers are number {count}");
                    complain(message, &[other, deed]);
                }
            }
            Did::Read { .. } | Did::Nothing | Did::Unknown => {}
        }
    }
    // Places grow in real time: each is above the largest that had returned before it began.
    let mut placed: Vec<&Deed> = deeds.iter().filter(|deed| deed.place().is_some()).collect();
    placed.sort_by_key(|deed| deed.invoked);
    let mut by_return = placed.clone();
    by_return.sort_by_key(|deed| deed.returned);
    let mut ended = by_return.into_iter().peekable();
    let mut largest: Option<&Deed> = None;
    for deed in placed {
        while let Some(before) = ended.next_if(|before| before.returned < deed.invoked) {
            if largest.is_none_or(|largest| largest.place() < before.place()) {
                largest = Some(before);
            }
        }
        let Some(largest) = largest else { continue };
        let is_read = matches!(deed.did, Did::Read { .. });
        let is_later = match is_read {
            true => deed.place() >= largest.place(),
            false => deed.place() > largest.place(),
        };
        if !is_later {
            let message = "a transaction does not see one that had ended before it began";
            complain(message.to_owned(), &[largest, deed]);
        }
    }
    for deed in deeds {
        let Did::Read { count, balances } = &deed.did else {
            continue;
        };
        let sum: i64 = balances.iter().sum();
        if sum != 0 {
            let message = format!("{sum} too much in all accounts: a part of a transfer is seen");
            complain(message, &[deed]);
        }
        if let Some(message) = unexplained(*count, balances, deed, &moved, deeds) {
            complain(message, &[deed]);
        }
    }
    found
}

/// Why no choice of transfers gives what was read, if none does.
fn unexplained(
    count: i64,
    balances: &[i64],
    read: &Deed,
    moved: &BTreeMap<i64, &Deed>,
    deeds: &[Deed],
) -> Option<String> {
    let mut missing: Vec<i64> = balances.to_vec();
    // Takes a transfer back.
    let apply = |deed: &Deed, left: &mut Vec<i64>| {
        if let Some((from, target, amount)) = deed.moved {
            left[from] += amount;
            left[target] -= amount;
        }
    };
    let mut known = 0;
    for deed in moved.range(..=count).map(|(_, deed)| *deed) {
        apply(deed, &mut missing);
        known += 1;
    }
    let others = usize::try_from(count - known).ok()?;
    let unknown: Vec<&Deed> = deeds
        .iter()
        .filter(|deed| deed.did == Did::Unknown && deed.moved.is_some())
        .filter(|deed| deed.invoked < read.returned)
        .collect();
    if others > unknown.len() {
        return Some(format!(
            "{count} transfers are counted, and {known} and {} at most can be among them",
            unknown.len()
        ));
    }
    if unknown.len() > UNKNOWN_MAX {
        return None;
    }
    let is_explained = (0_u32..1 << unknown.len())
        .filter(|choice| choice.count_ones() as usize == others)
        .any(|choice| {
            let mut left = missing.clone();
            for (at, deed) in unknown.iter().enumerate() {
                if choice & 1 << at != 0 {
                    apply(deed, &mut left);
                }
            }
            left.iter().all(|left| *left == 0)
        });
    (!is_explained).then(|| {
        format!(
            "no choice of {others} among {} open transfers explains the balances",
            unknown.len()
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn transfer(times: (u64, u64), amount: i64, did: Did) -> Deed {
        Deed {
            client: 1,
            invoked: times.0,
            returned: times.1,
            moved: Some((0, 1, amount)),
            did,
        }
    }

    fn read(times: (u64, u64), count: i64, first: i64) -> Deed {
        let mut balances = vec![0; ACCOUNTS];
        (balances[0], balances[1]) = (first, -first);
        Deed {
            client: 2,
            invoked: times.0,
            returned: times.1,
            moved: None,
            did: Did::Read { count, balances },
        }
    }

    fn moved(count: i64) -> Did {
        Did::Moved { count }
    }

    // shows: CHECK-1
    #[test]
    fn what_a_correct_cluster_gives_is_explained() {
        let history = [
            transfer((1, 4), 5, moved(1)),
            transfer((2, 3), 7, Did::Unknown),
            read((5, 8), 2, -12),
            transfer((6, 7), 1, moved(3)),
            read((9, 10), 3, -13),
            transfer((11, 12), 9, Did::Nothing),
            read((13, 14), 3, -13),
        ];
        assert_eq!(strictly_serializable(&history), []);
    }

    // shows: CHECK-2
    #[test]
    fn planted_errors_are_found() {
        let mut torn = read((5, 6), 1, -5);
        if let Did::Read { balances, .. } = &mut torn.did {
            balances[1] = 0;
        }
        for (what, history) in [
            (
                "twice",
                vec![transfer((1, 2), 5, moved(1)), transfer((3, 4), 5, moved(1))],
            ),
            (
                "back",
                vec![transfer((1, 2), 5, moved(2)), transfer((3, 4), 5, moved(1))],
            ),
            (
                "lost",
                vec![transfer((1, 2), 5, moved(1)), read((3, 4), 0, 0)],
            ),
            ("torn", vec![transfer((1, 2), 5, moved(1)), torn]),
            (
                "undone",
                vec![transfer((1, 2), 5, Did::Nothing), read((3, 4), 1, -5)],
            ),
            (
                "wrong",
                vec![transfer((1, 2), 5, moved(1)), read((3, 4), 1, -6)],
            ),
            ("strange", vec![transfer((1, 2), 5, Did::Strange)]),
        ] {
            let found = strictly_serializable(&history);
            let is_named = |v: &Violation| v.check == Check::StrictlySerializable;
            assert!(found.iter().any(is_named), "{what}");
        }
    }
}
