//! Several rounds of one measurement as three numbers.

use super::Row;
use serde::{Deserialize, Serialize};

/// The median of several rounds, with the least and the most.
#[derive(Clone, Copy, PartialEq, Debug, Default, Serialize, Deserialize)]
pub struct Spread {
    /// The median; between two, their mean.
    pub median: f64,
    /// The least.
    pub min: f64,
    /// The most.
    pub max: f64,
}

impl Spread {
    /// Of these rounds. `None` when there was none.
    #[must_use]
    pub fn of(rounds: &[f64]) -> Option<Self> {
        let mut sorted = rounds.to_vec();
        sorted.sort_by(f64::total_cmp);
        let (min, max) = (*sorted.first()?, *sorted.last()?);
        let half = sorted.len() / 2;
        let median = match sorted.len().is_multiple_of(2) {
            true => (sorted[half - 1] + sorted[half]) / 2.0,
            false => sorted[half],
        };
        Some(Self { median, min, max })
    }

    /// As cells of a row: `name`, `name_min`, `name_max`.
    #[must_use]
    pub fn cells(&self, name: &str) -> Row {
        Row::new()
            .with(name, self.median)
            .with(&format!("{name}_min"), self.min)
            .with(&format!("{name}_max"), self.max)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_is_in_the_middle() {
        let odd = Spread::of(&[3.0, 1.0, 2.0]).unwrap();
        assert_eq!((odd.median, odd.min, odd.max), (2.0, 1.0, 3.0));
        let even = Spread::of(&[4.0, 1.0, 2.0, 3.0]).unwrap();
        assert_eq!(even.median, 2.5);
        assert_eq!(Spread::of(&[]), None);
    }
}
