//! `pluvio simulate recovery`: its arguments, its rows and its pictures.

use crate::experiment::{Files, tell};
use clap::{Args, ValueEnum};
use pluvio_bench::ExperimentError;
use pluvio_bench::experiment::{Axis, Experiment, Panel, Picture, Row, Shape};
use pluvio_bench::recovery_model::{
    Costs, Disks, LostData, ModelOptions, Placement, PlacementOptions, Recovered, ideal_read_time,
    read_times, recover,
};
use pluvio_console::failure::Failure;
use pluvio_console::options::Global;
use pluvio_console::output::bar;
use pluvio_units::{PARTITION_BYTES_MAX, PARTITION_ENTRIES_MAX};
use std::process::ExitCode;

/// `pluvio simulate recovery`.
#[derive(Args, Clone, Debug)]
pub struct Recovery {
    /// What to simulate: cluster (recovery time by servers and data), placement (how evenly primary
    /// replicas load the disks) [default: both]
    #[arg(long, value_name = "LIST", value_delimiter = ',', value_enum)]
    part: Vec<Part>,
    /// Servers, with the one that crashes; several give a row each
    #[arg(long, value_name = "LIST", value_delimiter = ',', default_values_t = [10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10_000])]
    servers: Vec<usize>,
    /// What the crashed server had: a size, or a size for each server that is left, as 500MB/server
    #[arg(long, value_name = "LIST", value_delimiter = ',', default_values = ["16GB", "64GB", "256GB"])]
    data: Vec<LostData>,
    /// Bytes of an object in the log
    #[arg(long, value_name = "N", default_value_t = 1064.0)]
    object_bytes: f64,
    /// Replicas of what is replayed
    #[arg(long, value_name = "R", default_value_t = 3)]
    replicas: usize,
    /// Processors of a server
    #[arg(long, value_name = "N", default_value_t = 8)]
    cores: usize,
    /// Megabytes of a partition at most
    #[arg(long, value_name = "MB", default_value_t = PARTITION_BYTES_MAX as f64 / 1e6)]
    partition_mb: f64,
    /// Objects of a partition at most
    #[arg(long, value_name = "N", default_value_t = PARTITION_ENTRIES_MAX as f64)]
    partition_objects: f64,
    /// Megabytes of a segment
    #[arg(long, value_name = "MB", default_value_t = 8.0)]
    segment_mb: f64,
    /// Segments that a recovery master asks for at a time
    #[arg(long, value_name = "N", default_value_t = 4)]
    fetches: usize,
    /// Sorted segments that a backup keeps in memory
    #[arg(long, value_name = "N", default_value_t = 16)]
    buffer_segments: usize,
    /// Candidates for a primary replica, of which the best is taken
    #[arg(long, value_name = "N", default_value_t = 5)]
    candidates: usize,
    #[command(flatten)]
    prices: Prices,
    /// Placement: disks of the cluster
    #[arg(long, value_name = "N", default_value_t = 120)]
    disks: usize,
    /// Placement: megabytes a second of a disk
    #[arg(long, value_name = "MB/S", default_value_t = 100.0)]
    placement_disk_mb_per_s: f64,
    /// Placement: segments of the crashed server
    #[arg(long, value_name = "N", default_value_t = 1500)]
    segments: usize,
    /// Placement: recoveries, each with replicas placed anew
    #[arg(long, value_name = "N", default_value_t = 120)]
    recoveries: usize,
    /// Seed of chance
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
    #[command(flatten)]
    files: Files,
}

/// A part of the simulation.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
enum Part {
    /// Recovery time by servers and data
    Cluster,
    /// How evenly primary replicas load the disks
    Placement,
}

/// The prices of things. The defaults of sorting, replaying, sending and storing add up, for two
/// replicas, to the measured processor time a megabyte. A whole recovery of 1 GiB took 12.6 to 14.5
/// ms. Replaying and storing were measured alone; how the rest is divided between sorting and
/// sending is assumed (`docs/measurements/recovery.md`).
#[derive(Args, Clone, Copy, Debug)]
struct Prices {
    /// From the first ping that the dead server does not answer to its being declared crashed (a
    /// killed process, whose port refuses)
    #[arg(long, value_name = "MS", default_value_t = 20.0)]
    declare_ms: f64,
    /// Between two pings of a server
    #[arg(long, value_name = "MS", default_value_t = 100.0)]
    ping_ms: f64,
    /// How long the crashed server's read leases are waited for
    #[arg(long, value_name = "MS", default_value_t = 650.0)]
    lease_ms: f64,
    /// A message's way, one direction (assumed: one rack)
    #[arg(long, value_name = "US", default_value_t = 20.0)]
    wire_us: f64,
    /// Processor time of a request, at each end (assumed)
    #[arg(long, value_name = "US", default_value_t = 10.0)]
    request_us: f64,
    /// The coordinator's time for each replica that a backup lists (assumed)
    #[arg(long, value_name = "US", default_value_t = 1.0)]
    replica_us: f64,
    /// A durable change at the coordinator (assumed: embedded store)
    #[arg(long, value_name = "US", default_value_t = 300.0)]
    store_us: f64,
    /// Bytes for each segment in the request to a recovery master (assumed)
    #[arg(long, value_name = "N", default_value_t = 40.0)]
    segment_entry_bytes: f64,
    /// A backup's disk (assumed: one flash disk)
    #[arg(long, value_name = "MB/S", default_value_t = 500.0)]
    disk_mb_per_s: f64,
    /// A server's link, each direction (assumed: 10 Gbit/s)
    #[arg(long, value_name = "MB/S", default_value_t = 1250.0)]
    network_mb_per_s: f64,
    /// The speed at which one processor of a backup checks and sorts (part of the measured time)
    #[arg(long, value_name = "MB/S", default_value_t = 400.0)]
    sort_mb_per_s: f64,
    /// The speed at which one processor of a recovery master replays objects of 1 KB (measured)
    #[arg(long, value_name = "MB/S", default_value_t = 700.0)]
    replay_mb_per_s: f64,
    /// Processor time to send or to receive a megabyte (part of what was measured)
    #[arg(long, value_name = "MS", default_value_t = 1.3)]
    transfer_ms_per_mb: f64,
    /// Processor time of a backup to store a megabyte of a replica (measured)
    #[arg(long, value_name = "MS", default_value_t = 0.95)]
    keep_ms_per_mb: f64,
}

impl Prices {
    fn costs(self) -> Costs {
        Costs {
            declare_ms: self.declare_ms,
            ping_ms: self.ping_ms,
            lease_ms: self.lease_ms,
            wire_us: self.wire_us,
            request_us: self.request_us,
            replica_us: self.replica_us,
            store_us: self.store_us,
            segment_entry_bytes: self.segment_entry_bytes,
            disk_mb_per_s: self.disk_mb_per_s,
            network_mb_per_s: self.network_mb_per_s,
            sort_mb_per_s: self.sort_mb_per_s,
            replay_mb_per_s: self.replay_mb_per_s,
            transfer_ms_per_mb: self.transfer_ms_per_mb,
            keep_ms_per_mb: self.keep_ms_per_mb,
        }
    }

    fn row(self) -> Row {
        Row::new()
            .with("declare_ms", self.declare_ms)
            .with("ping_ms", self.ping_ms)
            .with("lease_ms", self.lease_ms)
            .with("wire_us", self.wire_us)
            .with("request_us", self.request_us)
            .with("replica_us", self.replica_us)
            .with("store_us", self.store_us)
            .with("segment_entry_bytes", self.segment_entry_bytes)
            .with("disk_mb_per_s", self.disk_mb_per_s)
            .with("network_mb_per_s", self.network_mb_per_s)
            .with("sort_mb_per_s", self.sort_mb_per_s)
            .with("replay_mb_per_s", self.replay_mb_per_s)
            .with("transfer_ms_per_mb", self.transfer_ms_per_mb)
            .with("keep_ms_per_mb", self.keep_ms_per_mb)
    }
}

/// Shares of recoveries that a row of the placement part tells the time of.
const PERCENTS: [u32; 11] = [0, 10, 20, 30, 40, 50, 60, 70, 80, 90, 100];

/// Runs `pluvio simulate recovery`.
pub fn run(global: &Global, recovery: &Recovery) -> Result<ExitCode, Failure> {
    let wants = |part| recovery.part.is_empty() || recovery.part.contains(&part);
    let clusters = if wants(Part::Cluster) {
        clusters(recovery)
    } else {
        Vec::new()
    };
    let placements = if wants(Part::Placement) {
        placements(recovery)
    } else {
        Vec::new()
    };
    for options in &clusters {
        options.check().map_err(failure)?;
    }
    for options in &placements {
        options.check().map_err(failure)?;
    }
    let mut experiment = Experiment::new("simulate recovery", parameters(recovery));
    let mut panels = Vec::new();
    let progress = bar(
        (clusters.len() + placements.len()) as u64,
        "simulating",
        false,
    );
    let done = (|| {
        if !clusters.is_empty() {
            panels.push(panel(
                "recovery time",
                "servers",
                "seconds",
                Axis::Logarithmic,
            ));
        }
        for options in clusters {
            progress.set_message(format!("{}, {} servers", options.data, options.servers));
            let found = recover(&options)?;
            let seconds = (options.servers as f64, found.total_s);
            panels[0].point(&options.data.to_string(), seconds.0, seconds.1);
            experiment.rows.push(cluster_row(&options, &found));
            progress.inc(1);
        }
        for options in placements {
            placement(&options, &mut experiment, &mut panels)?;
            progress.inc(1);
        }
        Ok(())
    })();
    progress.finish_and_clear();
    done.map_err(failure)?;
    let picture = Picture {
        title: "Recovery, simulated".into(),
        panels,
    };
    tell(global, &recovery.files, &experiment, &picture)?;
    Ok(ExitCode::SUCCESS)
}

fn failure(error: ExperimentError) -> Failure {
    Failure::usage(error.to_string())
}

fn parameters(recovery: &Recovery) -> Row {
    Row::new()
        .with("object_bytes", recovery.object_bytes)
        .with("replicas", recovery.replicas)
        .with("cores", recovery.cores)
        .with("partition_mb", recovery.partition_mb)
        .with("partition_objects", recovery.partition_objects)
        .with("segment_mb", recovery.segment_mb)
        .with("fetches", recovery.fetches)
        .with("buffer_segments", recovery.buffer_segments)
        .with("candidates", recovery.candidates)
        .and(recovery.prices.row())
        .with("disks", recovery.disks)
        .with("placement_disk_mb_per_s", recovery.placement_disk_mb_per_s)
        .with("segments", recovery.segments)
        .with("recoveries", recovery.recoveries)
        .with("seed", recovery.seed)
}

fn clusters(recovery: &Recovery) -> Vec<ModelOptions> {
    let mut all = Vec::new();
    for &data in &recovery.data {
        all.extend(recovery.servers.iter().map(|&servers| ModelOptions {
            servers,
            data,
            object_bytes: recovery.object_bytes,
            replicas: recovery.replicas,
            cores: recovery.cores,
            partition_mb: recovery.partition_mb,
            partition_objects: recovery.partition_objects,
            segment_mb: recovery.segment_mb,
            fetches: recovery.fetches,
            buffer_segments: recovery.buffer_segments,
            candidates: recovery.candidates,
            costs: recovery.prices.costs(),
            seed: recovery.seed,
        }));
    }
    all
}

fn placements(recovery: &Recovery) -> Vec<PlacementOptions> {
    let mut all = Vec::new();
    for disks in Disks::ALL {
        all.extend(Placement::ALL.map(|placement| PlacementOptions {
            placement,
            disks,
            count: recovery.disks,
            segments: recovery.segments,
            segment_mb: recovery.segment_mb,
            disk_mb_per_s: recovery.placement_disk_mb_per_s,
            candidates: recovery.candidates,
            recoveries: recovery.recoveries,
            seed: recovery.seed,
        }));
    }
    all
}

fn cluster_row(options: &ModelOptions, found: &Recovered) -> Row {
    Row::new()
        .with("part", "cluster")
        .with("data", options.data.to_string())
        .with("servers", options.servers)
        .with("partitions", found.partitions)
        .with("total_s", found.total_s)
        .with("gb_per_s", found.mb / 1e3 / found.total_s)
        .with("detected_s", found.detected_s)
        .with("planned_s", found.planned_s)
        .with("read_s", found.read_s)
        .with("replayed_s", found.replayed_s)
        .with("durable_s", found.durable_s)
        .with("disk_mean_s", found.disk_mean_s)
        .with("disk_max_s", found.disk_max_s)
        .with("bound_s", found.bound_s)
}

/// The rows and the curve of one way to place replicas.
fn placement(
    options: &PlacementOptions,
    experiment: &mut Experiment,
    panels: &mut Vec<Panel>,
) -> Result<(), ExperimentError> {
    let (way, disks) = (options.placement.name(), options.disks.name());
    let times = read_times(options)?;
    let ideal = ideal_read_time(options)?;
    let mean = times.iter().sum::<f64>() / times.len() as f64;
    let title = format!("{disks} disks: recoveries that have read everything");
    let at = panels.iter().position(|panel| panel.title == title);
    let at = at.unwrap_or_else(|| {
        panels.push(panel(&title, "seconds", "percent", Axis::Linear));
        panels.len() - 1
    });
    for (index, time) in times.iter().enumerate() {
        let percent = 100.0 * (index + 1) as f64 / times.len() as f64;
        panels[at].point(way, *time, percent);
    }
    let mut row = Row::new()
        .with("part", "placement")
        .with("disks", disks)
        .with("placement", way)
        .with("ideal_s", ideal)
        .with("mean_s", mean);
    for percent in PERCENTS {
        let last = times.len() - 1;
        let time = times[last * percent as usize / 100];
        row.set(&format!("p{percent}_s"), time);
    }
    experiment.rows.push(row);
    experiment.ratio(format!("{disks} disks: {way}, mean / ideal"), mean, ideal);
    Ok(())
}

fn panel(title: &str, x: &str, y: &str, across: Axis) -> Panel {
    Panel {
        title: title.into(),
        x: x.into(),
        y: y.into(),
        shape: Shape::Lines {
            x: across,
            y: match across {
                Axis::Logarithmic => Axis::Logarithmic,
                Axis::Linear => Axis::Linear,
            },
        },
        series: Vec::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        prices: Prices,
    }

    /// Each megabyte is sorted, replayed, stored twice, and sent and received three times.
    #[test]
    fn the_defaults_add_up_to_what_a_megabyte_took() {
        let costs = Line::parse_from(["simulate"]).prices.costs();
        let sorted_and_replayed = 1e3 / costs.sort_mb_per_s + 1e3 / costs.replay_mb_per_s;
        let sum = sorted_and_replayed + 6.0 * costs.transfer_ms_per_mb + 2.0 * costs.keep_ms_per_mb;
        assert!((12.6..=14.5).contains(&sum), "{sum} ms");
    }
}
