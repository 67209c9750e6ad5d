//! How finely the rest is cut, by the experience of earlier attempts.

use super::partition::Granularity;

/// Partitions are doubled this often at most for attempts in vain.
const CUTS_MAX: u32 = 6;

/// See the module.
#[derive(Default)]
pub(super) struct Experience {
    /// Attempts in vain, less those that recovered a partition since; as many as count.
    in_vain: u32,
    /// There was an attempt in vain.
    was_in_vain: bool,
}

impl Experience {
    /// Factor by which the next attempt over-partitions the remaining data, where tablets can be
    /// cut. After one attempt in vain other masters are asked. Each further one doubles the factor:
    /// a tablet that fits no master as a whole may fit several in parts. Each attempt that recovers
    /// a partition halves it.
    fn finer(&self) -> u64 {
        1 << self.in_vain.saturating_sub(1)
    }

    /// How the next attempt is to cut. A partition that was too much for a master is never tried
    /// again as large.
    pub(super) fn granularity(&self) -> Granularity {
        Granularity {
            finer: self.finer(),
            may_crowd: !self.was_in_vain,
        }
    }

    /// Takes in an attempt; one in which no master recovered its partition was in vain.
    pub(super) fn learn(&mut self, was_in_vain: bool) {
        self.in_vain = match was_in_vain {
            true => {
                pluvio_units::mark("recovery-attempt-in-vain");
                self.was_in_vain = true;
                (self.in_vain + 1).min(CUTS_MAX + 1)
            }
            // The rest is as hard, but a master that has recovered a part has less room now.
            false => self.in_vain.saturating_sub(1),
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn partitions_double_with_attempts_in_vain_up_to_64_and_halve_with_others() {
        let mut experience = Experience::default();
        let mut finer = Vec::new();
        for _ in 0..10 {
            finer.push(experience.granularity().finer);
            experience.learn(true);
        }
        assert_eq!(finer, [1, 1, 2, 4, 8, 16, 32, 64, 64, 64]);
        finer.clear();
        for _ in 0..8 {
            experience.learn(false);
            finer.push(experience.granularity().finer);
        }
        assert_eq!(finer, [32, 16, 8, 4, 2, 1, 1, 1]);
        // A partition that was too much once is not tried again as large.
        assert!(!experience.granularity().may_crowd);
    }
}
