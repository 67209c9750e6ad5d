//! How a contestant is set up.

use super::Kind;
use core::fmt;
use core::str::FromStr;
use serde::{Deserialize, Serialize};

/// How a contestant is set up. What it has no option for it ignores.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Setup {
    /// Who.
    pub kind: Kind,
    /// Most objects at a time: maps are sized for them.
    pub objects: u64,
    /// Memory of our store in bytes.
    pub memory: u64,
    /// Number of heads; by default one for each processor.
    pub heads: Option<u16>,
    /// Which head an append goes to.
    pub head_choice: HeadChoice,
    /// Cleaner threads.
    pub cleaner_threads: u16,
    /// Whether segments are compacted by themselves too, where there is a disk.
    pub two_level: bool,
    /// What reclaim epochs are counted with.
    pub epochs: Epochs,
    /// Bytes of a segment; by default what fits the memory.
    pub segment: Option<u64>,
    /// How objects are copied into the log.
    pub copying: Copying,
    /// Whether our store's memory is fetched before it is used.
    pub populate: bool,
    /// What the log is written to beside memory.
    pub disk: Disk,
    /// How overwritten objects are kept dead on that disk.
    pub tombstones: Tombstones,
}

/// Which head of our store an append goes to.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub enum HeadChoice {
    /// That of the thread's processor.
    #[default]
    ByProcessor,
    /// One that is drawn for each append.
    Random,
    /// That of the key's hash.
    ByHash,
}

/// How overwritten objects are kept dead on our store's disk.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub enum Tombstones {
    /// The object that overwrites it; only deletes write tombstones.
    #[default]
    Deletes,
    /// A tombstone for every overwrite.
    Every,
}

/// What reclaim epochs are counted with.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub enum Epochs {
    /// A counter that is rarely written.
    #[default]
    Counter,
    /// A counter that every operation advances.
    SharedCounter,
    /// The processor's time stamp counter.
    Tsc,
}

/// How objects are copied into the log.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub enum Copying {
    /// `memcpy`.
    #[default]
    Library,
    /// Stores around the caches.
    Streaming,
    /// `rep movsb`.
    StringMove,
}

/// The disk to which our store's log is written beside memory.
#[derive(Clone, Copy, PartialEq, Debug, Default, Serialize, Deserialize)]
pub enum Disk {
    /// Nothing: the store is volatile, and there is no disk to spare.
    #[default]
    None,
    /// A sink that takes everything at once: what is written to it is counted.
    Unlimited,
    /// A sink that takes this many bytes a second while it is measured.
    Limited(f64),
}

/// Bytes of a megabyte, as disks are sold.
const MEGABYTE: f64 = 1e6;

impl Setup {
    /// The usual options.
    #[must_use]
    pub fn new(kind: Kind, objects: u64, memory: u64) -> Self {
        Self {
            kind,
            objects,
            memory,
            heads: None,
            head_choice: HeadChoice::default(),
            cleaner_threads: 1,
            two_level: true,
            epochs: Epochs::default(),
            segment: None,
            copying: Copying::default(),
            populate: false,
            disk: Disk::default(),
            tombstones: Tombstones::default(),
        }
    }
}

impl fmt::Display for Disk {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::None => f.write_str("none"),
            Self::Unlimited => f.write_str("unlimited"),
            Self::Limited(rate) => write!(f, "{}", rate / MEGABYTE),
        }
    }
}

impl FromStr for Disk {
    type Err = String;

    /// `none`, `unlimited`, or megabytes a second.
    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "none" => Ok(Self::None),
            "unlimited" => Ok(Self::Unlimited),
            number => match number.parse::<f64>() {
                // At least a segment in a quarter of an hour; NaN is refused too.
                Ok(rate) if (0.01..=1e6).contains(&rate) => Ok(Self::Limited(rate * MEGABYTE)),
                Ok(_) | Err(_) => {
                    Err("give none, unlimited, or 0.01 to 1000000 megabytes a second".into())
                }
            },
        }
    }
}

impl fmt::Display for Tombstones {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Deletes => "deletes",
            Self::Every => "every",
        })
    }
}

impl FromStr for Tombstones {
    type Err = String;

    /// `deletes` or `every`.
    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "deletes" => Ok(Self::Deletes),
            "every" => Ok(Self::Every),
            _ => Err("give deletes or every".into()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tombstones_are_read_back() {
        for text in ["deletes", "every"] {
            assert_eq!(text.parse::<Tombstones>().unwrap().to_string(), text);
        }
        assert!("none".parse::<Tombstones>().is_err());
    }

    #[test]
    fn disks_are_read_back() {
        for text in ["none", "unlimited", "233", "0.5"] {
            assert_eq!(text.parse::<Disk>().unwrap().to_string(), text);
        }
        for wrong in ["", "0", "-1", "nan", "fast", "1e9"] {
            assert!(wrong.parse::<Disk>().is_err(), "{wrong}");
        }
    }
}
