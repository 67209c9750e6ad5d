//! Where primary replicas lie, and how long reading them takes ([RAMCloud §7.1], figure 17).

use crate::error::{ExperimentError, within};
use pluvio_load::Random;

/// How the disk of a primary replica is chosen.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Placement {
    /// Any disk.
    Random,
    /// Of some candidates the one with the fewest.
    Even,
    /// Of some candidates the one that would have read its share first: what masters do.
    Refined,
}

impl Placement {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Random, Self::Even, Self::Refined];

    /// The name on the command line.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Random => "random",
            Self::Even => "even",
            Self::Refined => "refined",
        }
    }
}

/// How fast the disks of a cluster are.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Disks {
    /// All about as fast: within a tenth of the usual speed.
    Uniform,
    /// Half of them so; the others anywhere between a quarter of the usual speed and all of it.
    Varied,
}

impl Disks {
    /// Both.
    pub const ALL: [Self; 2] = [Self::Uniform, Self::Varied];

    /// The name on the command line.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Uniform => "uniform",
            Self::Varied => "varied",
        }
    }

    /// The speeds of `count` disks, in units of `usual`.
    pub(super) fn speeds(self, count: usize, usual: f64, random: &mut Random) -> Vec<f64> {
        let mut between = |low: f64, high: f64| usual * (low + (high - low) * random.unit());
        (0..count)
            .map(|disk| match self {
                Self::Varied if disk % 2 == 1 => between(0.25, 1.0),
                Self::Uniform | Self::Varied => between(0.9, 1.1),
            })
            .collect()
    }
}

/// Recoveries of one server, again and again with replicas placed anew.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct PlacementOptions {
    /// How replicas are placed.
    pub placement: Placement,
    /// How fast the disks are.
    pub disks: Disks,
    /// Disks of the cluster.
    pub count: usize,
    /// Segments of the crashed server.
    pub segments: usize,
    /// Megabytes of a segment.
    pub segment_mb: f64,
    /// Megabytes a second of a usual disk.
    pub disk_mb_per_s: f64,
    /// Candidates of which the best is taken.
    pub candidates: usize,
    /// Recoveries.
    pub recoveries: usize,
    /// Seed of speeds and choices.
    pub seed: u64,
}

impl PlacementOptions {
    /// They are sensible.
    ///
    /// # Errors
    /// An option is outside of its range; it is named as on the command line.
    pub fn check(&self) -> Result<(), ExperimentError> {
        within("disks", self.count, 1..=100_000)?;
        within("segments", self.segments, 1..=10_000_000)?;
        within("candidates", self.candidates, 1..=1000)?;
        within("recoveries", self.recoveries, 1..=100_000)?;
        within("segment-mb", self.segment_mb, 0.001..=1000.0)?;
        within("disk-mb-per-s", self.disk_mb_per_s, 1.0..=1e6)
    }

    fn speeds(&self) -> Vec<f64> {
        let mut random = Random::new(self.seed, 0);
        self.disks
            .speeds(self.count, self.disk_mb_per_s, &mut random)
    }
}

/// Seconds in which all disks together could read everything.
///
/// # Errors
/// An option is outside of its range.
pub fn ideal_read_time(options: &PlacementOptions) -> Result<f64, ExperimentError> {
    options.check()?;
    let speed: f64 = options.speeds().iter().sum();
    Ok(options.segments as f64 * options.segment_mb / speed)
}

/// Seconds that the last disk took to read its primaries, for each recovery, the shortest first.
///
/// # Errors
/// An option is outside of its range.
pub fn read_times(options: &PlacementOptions) -> Result<Vec<f64>, ExperimentError> {
    options.check()?;
    let speeds = options.speeds();
    let mut times: Vec<f64> = (0..options.recoveries)
        .map(|recovery| {
            let mut random = Random::new(options.seed, 1 + recovery as u64);
            let (way, segments) = (options.placement, options.segments);
            let disks = place(way, &speeds, segments, options.candidates, &mut random);
            let counts = counts(&disks, speeds.len());
            let reads = counts.iter().zip(&speeds);
            reads.fold(0.0, |most: f64, (&count, speed)| {
                most.max(f64::from(count) * options.segment_mb / speed)
            })
        })
        .collect();
    times.sort_by(f64::total_cmp);
    Ok(times)
}

/// The disk of each segment.
pub(super) fn place(
    placement: Placement,
    speeds: &[f64],
    segments: usize,
    candidates: usize,
    random: &mut Random,
) -> Vec<u32> {
    let mut have = vec![0u32; speeds.len()];
    let mut chosen = Vec::with_capacity(segments);
    for _ in 0..segments {
        let mut any = || random.below(speeds.len() as u64) as usize;
        let tries = match placement {
            Placement::Random => 1,
            Placement::Even | Placement::Refined => candidates,
        };
        let cost = |disk: usize| match placement {
            Placement::Random => 0.0,
            Placement::Even => f64::from(have[disk]),
            Placement::Refined => f64::from(have[disk] + 1) / speeds[disk],
        };
        let mut best = any();
        for _ in 1..tries {
            let other = any();
            if cost(other) < cost(best) {
                best = other;
            }
        }
        have[best] += 1;
        chosen.push(best as u32);
    }
    chosen
}

fn counts(chosen: &[u32], disks: usize) -> Vec<u32> {
    let mut counts = vec![0; disks];
    for &disk in chosen {
        counts[disk as usize] += 1;
    }
    counts
}

#[cfg(test)]
mod tests {
    use super::*;

    fn options(placement: Placement, disks: Disks) -> PlacementOptions {
        PlacementOptions {
            placement,
            disks,
            count: 120,
            segments: 1500,
            segment_mb: 8.0,
            disk_mb_per_s: 100.0,
            candidates: 5,
            recoveries: 60,
            seed: 3,
        }
    }

    fn mean(options: &PlacementOptions) -> f64 {
        let times = read_times(options).unwrap();
        times.iter().sum::<f64>() / times.len() as f64
    }

    #[test]
    fn with_every_disk_a_candidate_reading_ends_within_a_segment_of_the_ideal() {
        for disks in Disks::ALL {
            let mut all = options(Placement::Refined, disks);
            // Each disk is drawn almost surely.
            all.candidates = 1000;
            all.recoveries = 3;
            let ideal = ideal_read_time(&all).unwrap();
            let slowest = all.speeds().into_iter().fold(f64::MAX, f64::min);
            for time in read_times(&all).unwrap() {
                assert!(time >= ideal, "{time} is less than {ideal}");
                assert!(
                    time <= ideal + all.segment_mb / slowest,
                    "{time}, ideal {ideal}"
                );
            }
        }
    }

    #[test]
    fn devices_get_as_many_replicas_as_the_paper_says() {
        // [RAMCloud §7.1]: 8000 replicas on 1000 devices. At random some get 15 to 20. With two
        // choices 8 to 10 is typical; with five the most and the mean typically differ by one.
        let speeds = vec![1.0; 1000];
        let most = |placement, candidates| {
            let mut random = Random::new(5, 0);
            let chosen = place(placement, &speeds, 8000, candidates, &mut random);
            counts(&chosen, 1000).into_iter().max().unwrap()
        };
        assert!((15..=21).contains(&most(Placement::Random, 1)));
        assert!((9..=11).contains(&most(Placement::Even, 2)));
        assert!((9..=10).contains(&most(Placement::Refined, 5)));
    }

    #[test]
    fn refinement_is_best_and_needs_speeds_only_where_they_differ() {
        for disks in Disks::ALL {
            let [random, even, refined] = Placement::ALL.map(|way| mean(&options(way, disks)));
            assert!(refined < even && even < random, "{refined} {even} {random}");
            let ideal = ideal_read_time(&options(Placement::Refined, disks)).unwrap();
            assert!(refined < 1.25 * ideal, "{refined}, ideal {ideal}");
        }
        let gap = |disks| {
            mean(&options(Placement::Even, disks)) / mean(&options(Placement::Refined, disks))
        };
        assert!(gap(Disks::Varied) > 2.0 * gap(Disks::Uniform));
    }

    #[test]
    fn runs_repeat() {
        let one = options(Placement::Random, Disks::Varied);
        assert_eq!(read_times(&one).unwrap(), read_times(&one).unwrap());
        let other = PlacementOptions { seed: 4, ..one };
        assert_ne!(read_times(&one).unwrap(), read_times(&other).unwrap());
    }

    #[test]
    fn senseless_options_are_refused_by_name() {
        type Change = (fn(&mut PlacementOptions), &'static str);
        let changes: [Change; 4] = [
            (|o| o.count = 0, "--disks 0: 1 to 100000"),
            (|o| o.candidates = 0, "--candidates 0: 1 to 1000"),
            (|o| o.recoveries = 0, "--recoveries 0: 1 to 100000"),
            (|o| o.disk_mb_per_s = f64::NAN, "--disk-mb-per-s NaN: 1 to"),
        ];
        for (change, reason) in changes {
            let mut wrong = options(Placement::Even, Disks::Uniform);
            change(&mut wrong);
            let error = read_times(&wrong).unwrap_err().to_string();
            assert!(error.contains(reason), "{error}");
        }
    }
}
