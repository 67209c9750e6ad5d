//! What the model is fed with.

use crate::error::{ExperimentError, within};
use pluvio_units::{PARTITION_BYTES_MIN, PARTITION_CROWD_MAX, Size};
use std::fmt;
use std::str::FromStr;

/// How much data the crashed server had.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum LostData {
    /// This much, whatever the cluster's size.
    Fixed(Size),
    /// This much for each server that is left, as in [RAMCloud fig. 16].
    PerServer(Size),
}

impl LostData {
    /// Megabytes, with `left` servers left.
    pub(super) fn mb(self, left: usize) -> f64 {
        match self {
            Self::Fixed(size) => size.bytes() as f64 / 1e6,
            Self::PerServer(size) => size.bytes() as f64 / 1e6 * left as f64,
        }
    }
}

impl fmt::Display for LostData {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = |size: Size| match size.bytes() {
            bytes if bytes.is_multiple_of(1_000_000_000) => format!("{}GB", bytes / 1_000_000_000),
            bytes if bytes.is_multiple_of(1_000_000) => format!("{}MB", bytes / 1_000_000),
            _ => size.to_string(),
        };
        match self {
            Self::Fixed(size) => f.write_str(&text(*size)),
            Self::PerServer(size) => write!(f, "{}/server", text(*size)),
        }
    }
}

impl FromStr for LostData {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let size = |text: &str| text.parse::<Size>().map_err(|error| error.to_string());
        match text.strip_suffix("/server") {
            Some(each) => Ok(Self::PerServer(size(each)?)),
            None => Ok(Self::Fixed(size(text)?)),
        }
    }
}

/// What things cost.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Costs {
    /// Milliseconds from the first ping that a dead server does not answer to its being declared
    /// crashed.
    pub declare_ms: f64,
    /// Milliseconds between two pings of a server, each of another one.
    pub ping_ms: f64,
    /// Milliseconds after the last backup was asked for its replicas in which no tablet is given
    /// away.
    pub lease_ms: f64,
    /// Microseconds of a message's way, one direction.
    pub wire_us: f64,
    /// Microseconds of processor time for a request, at each end.
    pub request_us: f64,
    /// Microseconds of the coordinator for each replica that backups list.
    pub replica_us: f64,
    /// Microseconds of a durable change at the coordinator, one after the other.
    pub store_us: f64,
    /// Bytes for each segment in the request to a recovery master.
    pub segment_entry_bytes: f64,
    /// Megabytes a second that a backup's disk reads.
    pub disk_mb_per_s: f64,
    /// Megabytes a second of a server's link, each direction.
    pub network_mb_per_s: f64,
    /// Megabytes a second that one processor of a backup checks and sorts by partition.
    pub sort_mb_per_s: f64,
    /// Megabytes a second that one processor of a recovery master replays.
    pub replay_mb_per_s: f64,
    /// Milliseconds of processor time to send or to receive a megabyte.
    pub transfer_ms_per_mb: f64,
    /// Milliseconds of processor time of a backup to store a megabyte of a replica.
    pub keep_ms_per_mb: f64,
}

/// One recovery.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct ModelOptions {
    /// Servers, with the one that crashes.
    pub servers: usize,
    /// What it had.
    pub data: LostData,
    /// Bytes of an object in the log.
    pub object_bytes: f64,
    /// Replicas of what is replayed.
    pub replicas: usize,
    /// Processors of a server.
    pub cores: usize,
    /// Megabytes of a partition at most.
    pub partition_mb: f64,
    /// Objects of a partition at most.
    pub partition_objects: f64,
    /// Megabytes of a segment.
    pub segment_mb: f64,
    /// Segments that a recovery master asks for at a time.
    pub fetches: usize,
    /// Sorted segments that a backup keeps in memory.
    pub buffer_segments: usize,
    /// Candidates for a primary replica.
    pub candidates: usize,
    /// What things cost.
    pub costs: Costs,
    /// Seed of chance.
    pub seed: u64,
}

impl ModelOptions {
    /// They are sensible.
    ///
    /// # Errors
    /// An option is outside of its range; it is named as on the command line.
    pub fn check(&self) -> Result<(), ExperimentError> {
        within("servers", self.servers, 2..=100_000)?;
        within("replicas", self.replicas, 0..=16)?;
        within("cores", self.cores, 1..=1024)?;
        within("fetches", self.fetches, 1..=1024)?;
        within("buffer-segments", self.buffer_segments, 1..=1_000_000)?;
        within("candidates", self.candidates, 1..=1000)?;
        within("object-bytes", self.object_bytes, 1.0..=2e6)?;
        within("partition-mb", self.partition_mb, 1.0..=1e6)?;
        within("partition-objects", self.partition_objects, 1.0..=1e12)?;
        within("segment-mb", self.segment_mb, 0.1..=1000.0)?;
        let costs = &self.costs;
        for (name, rate) in [
            ("disk-mb-per-s", costs.disk_mb_per_s),
            ("network-mb-per-s", costs.network_mb_per_s),
            ("sort-mb-per-s", costs.sort_mb_per_s),
            ("replay-mb-per-s", costs.replay_mb_per_s),
        ] {
            within(name, rate, 0.1..=1e9)?;
        }
        for (name, cost) in [
            ("declare-ms", costs.declare_ms),
            ("ping-ms", costs.ping_ms),
            ("lease-ms", costs.lease_ms),
            ("wire-us", costs.wire_us),
            ("request-us", costs.request_us),
            ("replica-us", costs.replica_us),
            ("store-us", costs.store_us),
            ("segment-entry-bytes", costs.segment_entry_bytes),
            ("transfer-ms-per-mb", costs.transfer_ms_per_mb),
            ("keep-ms-per-mb", costs.keep_ms_per_mb),
        ] {
            within(name, cost, 0.0..=1e6)?;
        }
        let mb = self.data.mb(self.left());
        let text = self.data.to_string();
        match (1.0..=1e8).contains(&mb) {
            true => Ok(()),
            false => Err(ExperimentError::OutOfRange {
                option: "data",
                value: text,
                first: "1 MB".into(),
                last: "100 TB in all".into(),
            }),
        }
    }

    /// Servers that are left.
    pub(super) fn left(&self) -> usize {
        self.servers - 1
    }

    /// Segments of the crashed log.
    pub(super) fn segments(&self) -> usize {
        (self.data.mb(self.left()) / self.segment_mb)
            .ceil()
            .max(1.0) as usize
    }

    /// Recovery partitions: as many as the limits ask for, and one for each server where that is
    /// worth it. Larger ones where servers are fewer. No more than servers at a time: `rounds` of
    /// them, one after the other.
    pub(super) fn partitions(&self) -> Partitions {
        let mb = self.data.mb(self.left());
        let objects = mb * 1e6 / self.object_bytes;
        let servers = self.left() as f64;
        let usual = (mb / self.partition_mb).max(objects / self.partition_objects);
        let needed = match usual.ceil() > servers {
            true => (usual / PARTITION_CROWD_MAX as f64).ceil().max(servers),
            false => usual.ceil(),
        };
        let worthwhile = (mb * 1e6 / PARTITION_BYTES_MIN as f64).min(servers);
        let all = needed.max(worthwhile.floor()).max(1.0) as usize;
        Partitions {
            all,
            at_a_time: all.min(self.left()),
            rounds: all.div_ceil(self.left()),
            mb: mb / all as f64,
        }
    }
}

/// How the data is cut.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(super) struct Partitions {
    pub(super) all: usize,
    pub(super) at_a_time: usize,
    pub(super) rounds: usize,
    /// Megabytes of each.
    pub(super) mb: f64,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn data_is_fixed_or_for_each_server() {
        let fixed: LostData = "64GB".parse().unwrap();
        let each: LostData = "500MB/server".parse().unwrap();
        assert_eq!((fixed.mb(7), each.mb(7)), (64_000.0, 3500.0));
        assert_eq!(each, LostData::PerServer(Size(500_000_000)));
        for text in ["64GB", "500MB/server", "1MiB"] {
            assert_eq!(text.parse::<LostData>().unwrap().to_string(), text);
        }
        assert!("64GB/rack".parse::<LostData>().is_err());
    }
}
