//! The simulated log: segments, files, and the cleaner that makes clean segments.

use super::{Options, Outcome, Policy};

/// Most segments one cleaning gains: enough survivors to sort by age, and few clean segments idle.
const GAIN_MAX: usize = 4;

/// A segment's bookkeeping. Its files are in the slots `index * segment_files ..`.
#[derive(Clone, Debug, Default)]
struct Segment {
    /// Slots used.
    filled: usize,
    /// Slots that hold a file's newest version.
    live: usize,
    /// When the segment was opened.
    opened: u64,
    /// When the youngest file written here was last modified.
    youngest: u64,
}

/// The log on its disk. Time counts new writes.
pub(super) struct Disk {
    policy: Policy,
    segment_files: usize,
    gain: usize,
    segments: Vec<Segment>,
    /// Per slot, the file written there.
    slots: Vec<u32>,
    /// Per file, the slot of its newest version.
    places: Vec<u32>,
    /// Per file, when it was last overwritten.
    modified: Vec<u64>,
    clean: Vec<usize>,
    head: usize,
    /// Where the cleaner writes; stays open from one cleaning to the next.
    survivors: usize,
    now: u64,
    counts: Counts,
}

#[derive(Clone, Copy, Default)]
struct Counts {
    new: u64,
    read: u64,
    moved: u64,
    cleaned: u64,
    cleaned_live: u64,
    /// Segments that are not clean, summed over new segments opened.
    used: u64,
    opened: u64,
}

impl Disk {
    pub(super) fn new(options: &Options, segments: usize) -> Self {
        let files = options.live_segments * options.segment_files;
        let spare = segments - options.live_segments;
        let mut disk = Self {
            policy: options.policy,
            segment_files: options.segment_files,
            gain: (spare / 8).clamp(1, GAIN_MAX),
            segments: vec![Segment::default(); segments],
            slots: vec![0; segments * options.segment_files],
            places: vec![u32::MAX; files],
            modified: vec![0; files],
            clean: (2..segments).rev().collect(),
            head: 0,
            survivors: 1,
            now: 1,
            counts: Counts::default(),
        };
        for file in 0..files as u32 {
            disk.overwrite(file);
        }
        disk.forget_counts();
        disk
    }

    /// Begins to measure here.
    pub(super) fn forget_counts(&mut self) {
        self.counts = Counts::default();
    }

    pub(super) fn outcome(&self) -> Outcome {
        let c = self.counts;
        let over = |a: u64, b: u64| a as f64 / b.max(1) as f64;
        let files = self.segment_files as u64;
        Outcome {
            write_cost: over(c.new + c.read + c.moved, c.new),
            write_amplification: over(c.new + c.moved, c.new),
            cleaned_utilization: over(c.cleaned_live, c.cleaned * files),
            effective_utilization: over(self.places.len() as u64 * c.opened, c.used * files),
            writes: c.new,
        }
    }

    /// Writes a file anew at the head.
    pub(super) fn overwrite(&mut self, file: u32) {
        if self.segments[self.head].filled == self.segment_files {
            if self.clean.is_empty() {
                self.clean();
            }
            self.head = self.open();
            self.counts.opened += 1;
            self.counts.used += (self.segments.len() - self.clean.len()) as u64;
        }
        if let Some(old) = self
            .places
            .get(file as usize)
            .filter(|&&old| old != u32::MAX)
        {
            self.segments[*old as usize / self.segment_files].live -= 1;
        }
        self.now += 1;
        self.counts.new += 1;
        self.modified[file as usize] = self.now;
        self.place(file, self.head);
    }

    fn open(&mut self) -> usize {
        let segment = self.clean.pop().expect("a cleaning leaves a clean segment");
        self.segments[segment] = Segment {
            opened: self.now,
            ..Segment::default()
        };
        segment
    }

    fn place(&mut self, file: u32, to: usize) {
        let segment = &mut self.segments[to];
        let slot = to * self.segment_files + segment.filled;
        segment.filled += 1;
        segment.live += 1;
        segment.youngest = segment.youngest.max(self.modified[file as usize]);
        self.slots[slot] = file;
        self.places[file as usize] = slot as u32;
    }

    /// Cleans the best segments until `gain` are clean, survivors subtracted.
    fn clean(&mut self) {
        let mut survivors: Vec<u32> = Vec::new();
        let mut freed = 0;
        for segment in self.candidates() {
            let live = self.segments[segment].live;
            self.counts.cleaned += 1;
            self.counts.cleaned_live += live as u64;
            if live > 0 {
                self.counts.read += self.segment_files as u64;
                let from = segment * self.segment_files;
                let slots = from..from + self.segments[segment].filled;
                survivors.extend(
                    slots
                        .filter(|&slot| self.places[self.slots[slot] as usize] == slot as u32)
                        .map(|slot| self.slots[slot]),
                );
            }
            self.segments[segment].live = 0;
            self.clean.push(segment);
            freed += self.segment_files;
            if freed >= survivors.len() + self.gain * self.segment_files {
                break;
            }
        }
        survivors.sort_by_key(|&file| self.modified[file as usize]);
        self.counts.moved += survivors.len() as u64;
        for file in survivors {
            if self.segments[self.survivors].filled == self.segment_files {
                self.survivors = self.open();
            }
            self.place(file, self.survivors);
        }
    }

    /// All full segments, best first.
    fn candidates(&self) -> Vec<usize> {
        let mut scored: Vec<(f64, usize)> = self
            .segments
            .iter()
            .enumerate()
            .filter(|(index, segment)| {
                segment.filled == self.segment_files && ![self.head, self.survivors].contains(index)
            })
            .map(|(index, segment)| (self.score(segment), index))
            .collect();
        scored.sort_by(|a, b| b.0.total_cmp(&a.0).then(a.1.cmp(&b.1)));
        scored.into_iter().map(|(_, index)| index).collect()
    }

    fn score(&self, segment: &Segment) -> f64 {
        let u = segment.live as f64 / self.segment_files as f64;
        let by_age = |since: u64| (1.0 - u) * (self.now - since + 1) as f64 / (1.0 + u);
        match self.policy {
            Policy::Greedy => 1.0 - u,
            Policy::YoungestFile => by_age(segment.youngest),
            Policy::SegmentAge => by_age(segment.opened),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::workload::Distribution;
    use pluvio_load::Random;

    #[test]
    fn every_file_is_live_in_one_slot() {
        let options = Options {
            policy: Policy::SegmentAge,
            pattern: Distribution::Uniform,
            utilization: 0.8,
            live_segments: 20,
            segment_files: 16,
            turnovers: 1,
            seed: 1,
        };
        let mut disk = Disk::new(&options, 25);
        let mut random = Random::new(1, 0);
        for _ in 0..20_000 {
            disk.overwrite(random.below(320) as u32);
        }
        let mut live = vec![0; 25];
        for (file, &slot) in disk.places.iter().enumerate() {
            assert_eq!(disk.slots[slot as usize], file as u32, "LFS-1");
            live[slot as usize / 16] += 1;
        }
        let counted: Vec<_> = disk.segments.iter().map(|segment| segment.live).collect();
        assert_eq!(live, counted, "LFS-1");
        for &clean in &disk.clean {
            assert_eq!(live[clean], 0, "LFS-1");
        }
    }
}
