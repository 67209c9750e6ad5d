//! The core workloads of YCSB [Cooper et al., SoCC 2010]: which operation comes next, and on which
//! record.
//!
//! - Keys are YCSB's: `user` and the hash of the record's number, so neighbours are scattered.
//! - *Zipfian* is YCSB's scrambled one: a rank among ten thousand million with skew 0.99, hashed to
//!   a record. *Latest* counts a zipfian rank back from the newest record.
//! - YCSB-1: an operation names only records whose insert was acknowledged.
//!
//! Workload E scans ranges of keys in order. Tables are hashed here, so it has no place.
//!
//! Not here: sending operations.

use super::{Distribution, Draw};
use pluvio_load::Random;
use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The skew of both distributions.
const SKEW: f64 = 0.99;
/// Ranks that the scrambled distribution draws from, whatever the number of records.
const SCRAMBLED_RANKS: u64 = 10_000_000_000;

/// A core workload.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Ycsb {
    /// Half reads, half updates; zipfian. A session store.
    A,
    /// 95 % reads, 5 % updates; zipfian. Tags of photos.
    B,
    /// Reads only; zipfian. A cache of profiles.
    C,
    /// 95 % reads of the latest records, 5 % inserts. Status updates.
    D,
    /// Half reads, half reads followed by a write of the same record; zipfian. A user database.
    F,
}

impl Ycsb {
    /// All that are served, in YCSB's order of a run: D comes last, since it adds records.
    pub const ALL: [Self; 5] = [Self::A, Self::B, Self::C, Self::F, Self::D];

    /// Its letter.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::A => "A",
            Self::B => "B",
            Self::C => "C",
            Self::D => "D",
            Self::F => "F",
        }
    }

    /// How many of a hundred operations read and do nothing else.
    #[must_use]
    pub fn read_percent(self) -> u64 {
        match self {
            Self::A | Self::F => 50,
            Self::B | Self::D => 95,
            Self::C => 100,
        }
    }

    fn other(self, record: impl FnOnce() -> u64, records: &Records) -> Operation {
        match self {
            Self::A | Self::B | Self::C => Operation::Update(record()),
            Self::D => Operation::Insert(records.insert()),
            Self::F => Operation::Modify(record()),
        }
    }
}

impl std::str::FromStr for Ycsb {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text.to_ascii_uppercase().as_str() {
            "A" => Ok(Self::A),
            "B" => Ok(Self::B),
            "C" => Ok(Self::C),
            "D" => Ok(Self::D),
            "F" => Ok(Self::F),
            "E" => Err(E_IS_NOT_SERVED.into()),
            _ => Err("give A, B, C, D or F".into()),
        }
    }
}

/// Why there is no workload E.
pub const E_IS_NOT_SERVED: &str =
    "workload E scans ranges of keys in order, and Pluvio's tables are hashed: it is not served";

/// One operation on records.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Operation {
    /// Read a record.
    Read(u64),
    /// Write a record that is there.
    Update(u64),
    /// Write a new record; [`Records::acknowledge`] it when it is answered.
    Insert(u64),
    /// Read a record, then write it.
    Modify(u64),
}

/// The key of a record.
#[must_use]
pub fn ycsb_key(record: u64) -> String {
    format!("user{}", hash(record))
}

/// FNV-1a of the number's eight bytes, as YCSB takes it: without the sign.
fn hash(number: u64) -> u64 {
    let step = |hash: u64, byte: u8| (hash ^ u64::from(byte)).wrapping_mul(1_099_511_628_211);
    let hash = number
        .to_le_bytes()
        .into_iter()
        .fold(0xCBF2_9CE4_8422_2325, step);
    hash.cast_signed().unsigned_abs()
}

/// The records of one system: which are there. Callers share it.
#[derive(Debug)]
pub struct Records(Mutex<Counts>);

#[derive(Debug)]
struct Counts {
    /// The number that the next insert takes.
    next: u64,
    /// All records below it are there.
    there: u64,
    /// Records above it that are there too: at most one for each caller.
    early: BTreeSet<u64>,
}

impl Records {
    /// The first `count` records are there; at least one.
    #[must_use]
    pub fn loaded(count: u64) -> Self {
        let count = count.max(1);
        Self(Mutex::new(Counts {
            next: count,
            there: count,
            early: BTreeSet::new(),
        }))
    }

    fn counts(&self) -> MutexGuard<'_, Counts> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// How many are there, without a gap.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.counts().there
    }

    fn insert(&self) -> u64 {
        let mut counts = self.counts();
        counts.next += 1;
        counts.next - 1
    }

    /// A new record is there.
    pub fn acknowledge(&self, record: u64) {
        let mut counts = self.counts();
        counts.early.insert(record);
        let mut there = counts.there;
        while counts.early.remove(&there) {
            there += 1;
        }
        counts.there = there;
    }
}

/// One caller's operations: a function of workload, seed and stream, and of what was inserted
/// meanwhile.
#[derive(Debug)]
pub struct Operations {
    workload: Ycsb,
    records: Arc<Records>,
    random: Random,
    scrambled: Draw,
    /// Over the number of records when it was made.
    latest: Draw,
}

impl Operations {
    /// The operations of the caller with this number.
    #[must_use]
    pub fn new(workload: Ycsb, records: &Arc<Records>, seed: u64, caller: u64) -> Self {
        let zipfian = Distribution::Zipfian(SKEW);
        Self {
            workload,
            records: records.clone(),
            random: Random::new(seed, caller),
            scrambled: zipfian.over(SCRAMBLED_RANKS),
            latest: zipfian.over(records.count()),
        }
    }

    /// The next one.
    pub fn draw(&mut self) -> Operation {
        if self.random.below(100) < self.workload.read_percent() {
            return Operation::Read(self.record());
        }
        let (workload, records) = (self.workload, self.records.clone());
        workload.other(|| self.record(), &records)
    }

    /// A record that is there. YCSB-1: its number is below the count of those without a gap.
    fn record(&mut self) -> u64 {
        let count = self.records.count();
        match self.workload {
            Ycsb::A | Ycsb::B | Ycsb::C | Ycsb::F => {
                hash(self.scrambled.rank(&mut self.random)) % count
            }
            Ycsb::D => {
                if self.latest.count() != count {
                    self.latest = Distribution::Zipfian(SKEW).over(count);
                }
                count - 1 - self.latest.rank(&mut self.random)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_those_of_ycsb() {
        // What YCSB's CoreWorkload gives for the first records.
        assert_eq!(ycsb_key(0), "user6284781860667377211");
        assert_eq!(ycsb_key(1), "user8517097267634966620");
    }

    #[test]
    fn mixes_are_those_of_the_workloads() {
        for (workload, reads) in [
            (Ycsb::A, 0.5),
            (Ycsb::B, 0.95),
            (Ycsb::C, 1.0),
            (Ycsb::D, 0.95),
            (Ycsb::F, 0.5),
        ] {
            let records = Arc::new(Records::loaded(1000));
            let mut operations = Operations::new(workload, &records, 1, 0);
            let mut seen: f64 = 0.0;
            for _ in 0..20_000 {
                match operations.draw() {
                    Operation::Read(_) => seen += 1.0 / 20_000.0,
                    Operation::Update(_) => assert!(matches!(workload, Ycsb::A | Ycsb::B)),
                    Operation::Insert(record) => {
                        assert_eq!(workload, Ycsb::D);
                        records.acknowledge(record);
                    }
                    Operation::Modify(_) => assert_eq!(workload, Ycsb::F),
                }
            }
            assert!((seen - reads).abs() < 0.02, "{workload:?}: {seen}");
        }
    }

    #[test]
    fn zipfian_records_are_hot_and_scattered() {
        let records = Arc::new(Records::loaded(1000));
        let mut operations = Operations::new(Ycsb::C, &records, 1, 0);
        let mut counts = vec![0u32; 1000];
        for _ in 0..100_000 {
            let Operation::Read(record) = operations.draw() else {
                panic!("C reads only");
            };
            counts[record as usize] += 1;
        }
        // Rank 0 has 1 / zeta(10^10, 0.99) of all draws, which is 1 / 26.47.
        let hottest = (hash(0) % 1000) as usize;
        let share = f64::from(counts[hottest]) / 100_000.0;
        assert!((share - 1.0 / 26.47).abs() < 0.005, "{share}");
        assert!(counts.iter().filter(|count| **count > 0).count() > 900);
    }

    #[test]
    fn latest_records_are_the_newest_that_are_there() {
        let records = Arc::new(Records::loaded(1000));
        let mut operations = Operations::new(Ycsb::D, &records, 1, 0);
        let (mut newest, mut reads) = (0u32, 0u32);
        for _ in 0..20_000 {
            match operations.draw() {
                Operation::Read(record) => {
                    let count = records.count();
                    assert!(record < count, "YCSB-1");
                    reads += 1;
                    newest += u32::from(count - record <= count / 100);
                }
                Operation::Insert(record) => records.acknowledge(record),
                other => panic!("{other:?}"),
            }
        }
        assert!(records.count() > 1900);
        // A hundredth of the records has about half of the draws.
        assert!(newest * 10 > reads * 3, "{newest} of {reads}");
    }

    // shows: YCSB-1
    #[test]
    fn a_record_is_drawn_only_when_those_before_it_are_there() {
        let records = Records::loaded(10);
        let (first, second) = (records.insert(), records.insert());
        records.acknowledge(second);
        assert_eq!(records.count(), 10);
        records.acknowledge(first);
        assert_eq!(records.count(), 12);
    }

    #[test]
    fn workload_e_is_refused_with_the_reason() {
        assert_eq!("e".parse::<Ycsb>(), Err(E_IS_NOT_SERVED.to_owned()));
        for workload in Ycsb::ALL {
            assert_eq!(workload.name().parse(), Ok(workload));
        }
        assert!("G".parse::<Ycsb>().is_err());
    }
}
