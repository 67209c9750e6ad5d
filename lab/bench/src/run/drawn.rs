//! Keys of random operations: drawn on the way where that is cheap, beforehand where it costs more
//! than an operation.

use crate::workload::{Distribution, Draw};
use pluvio_load::Random;

/// Draws that are made beforehand where drawing costs more than an operation. They are read in
/// order, so they cost little memory bandwidth, and a thread does fewer in a second. Cheap draws
/// are made on the way.
const DRAWN: usize = 8 << 20;

/// Keys drawn beforehand: they are kept, so that one draw serves all rounds of a contestant.
#[derive(Default)]
pub(crate) struct Drawn {
    of: Option<(Distribution, u64)>,
    keys: Vec<u32>,
}

impl Drawn {
    /// Bytes that it takes of the process.
    pub(crate) fn bytes(&self) -> u64 {
        (self.keys.capacity() * size_of::<u32>()) as u64
    }

    /// Keys of this distribution, from the seed of the first run that needs them; none where
    /// drawing is cheap.
    pub(super) fn of(
        &mut self,
        distribution: Distribution,
        draw: &Draw,
        seed: u64,
    ) -> Option<&[u32]> {
        let cheap = match distribution {
            Distribution::Uniform | Distribution::HotCold => true,
            Distribution::Exponential | Distribution::Zipfian(_) => false,
        };
        if cheap || draw.count() > u64::from(u32::MAX) {
            return None;
        }
        let of = Some((distribution, draw.count()));
        if self.of != of {
            let mut random = Random::new(seed, 0);
            self.keys.clear();
            self.keys
                .extend((0..DRAWN).map(|_| draw.spread(&mut random) as u32));
            self.of = of;
        }
        Some(self.keys.as_slice())
    }
}

/// A thread's keys.
pub(super) enum Keys<'a> {
    Draw(&'a Draw),
    Drawn { keys: &'a [u32], at: usize },
}

impl<'a> Keys<'a> {
    /// Threads, and rounds, begin at different places of what was drawn beforehand.
    pub(super) fn new(draw: &'a Draw, drawn: Option<&'a [u32]>, random: &mut Random) -> Self {
        match drawn {
            None => Self::Draw(draw),
            Some(keys) => Self::Drawn {
                keys,
                at: random.below(keys.len() as u64) as usize,
            },
        }
    }

    #[inline]
    pub(super) fn next(&mut self, random: &mut Random) -> u64 {
        match self {
            Self::Draw(draw) => draw.spread(random),
            Self::Drawn { keys, at } => {
                *at += 1;
                if *at >= keys.len() {
                    *at = 0;
                }
                u64::from(keys[*at])
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_drawn_once_for_all_rounds_where_that_costs_much() {
        let mut drawn = Drawn::default();
        let uniform = Distribution::Uniform.over(1000);
        assert!(drawn.of(Distribution::Uniform, &uniform, 1).is_none());
        assert_eq!(drawn.bytes(), 0);
        let skewed = Distribution::Zipfian(0.99);
        let draw = skewed.over(1000);
        let first = drawn.of(skewed, &draw, 1).unwrap().to_vec();
        assert_eq!(first.len(), DRAWN);
        assert!(drawn.of(skewed, &draw, 2).unwrap() == first);
        assert!(drawn.bytes() >= 4 * DRAWN as u64);
        let fewer = skewed.over(10);
        let keys = drawn.of(skewed, &fewer, 1).unwrap();
        assert!(keys.iter().all(|key| *key < 10));
    }
}
