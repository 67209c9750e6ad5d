//! Which of `n` things an operation is about.

use pluvio_load::Random;

/// The skew of YCSB's zipfian distribution.
const YCSB_SKEW: f64 = 0.99;
/// The share of things that are hot, and the share of operations on them. In the seed experiments
/// of LFS and RAMCloud 90 % of writes go to 10 % of the data.
const HOT: (f64, f64) = (0.1, 0.9);
/// The mean of the exponential distribution, as a share of all things: 90 % of the operations
/// fall on 23 % of them.
const EXPONENTIAL_MEAN: f64 = 0.1;

/// How often each of several things is drawn.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Distribution {
    /// All alike.
    Uniform,
    /// Nine of ten draws fall on one tenth of the things; within both parts all are alike.
    HotCold,
    /// The thing at rank `r` of `n` is drawn as often as `exp(-10 r / n)` says.
    Exponential,
    /// The thing at rank `r` (from 1) is drawn as often as `r` to the power of minus this skew
    /// says; zero is uniform.
    Zipfian(f64),
}

impl Distribution {
    /// The name on the command line.
    #[must_use]
    pub fn name(self) -> String {
        match self {
            Self::Uniform => "uniform".into(),
            Self::HotCold => "hot-cold".into(),
            Self::Exponential => "exponential".into(),
            Self::Zipfian(skew) if skew == YCSB_SKEW => "zipfian".into(),
            Self::Zipfian(skew) => format!("zipfian:{skew}"),
        }
    }

    /// Prepares draws among `n` things; `n` is at least one.
    #[must_use]
    pub fn over(self, n: u64) -> Draw {
        let n = n.max(1);
        let kind = match self {
            Self::Uniform => Kind::Uniform,
            Self::HotCold if n < 10 => Kind::Uniform,
            Self::HotCold => Kind::HotCold {
                hot: (n as f64 * HOT.0) as u64,
            },
            Self::Exponential => Kind::Exponential {
                tail: 1.0 - (-1.0 / EXPONENTIAL_MEAN).exp(),
            },
            Self::Zipfian(skew) if skew <= 0.0 => Kind::Uniform,
            Self::Zipfian(skew) => Kind::Zipfian(Zipf::new(n, skew)),
        };
        Draw {
            n,
            step: step(n),
            reciprocal: u64::MAX / n,
            kind,
        }
    }
}

impl std::str::FromStr for Distribution {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text.split_once(':').unwrap_or((text, "")) {
            ("uniform", "") => Ok(Self::Uniform),
            ("hot-cold", "") => Ok(Self::HotCold),
            ("exponential", "") => Ok(Self::Exponential),
            ("zipfian", "") => Ok(Self::Zipfian(YCSB_SKEW)),
            ("zipfian", skew) => match skew.parse() {
                Ok(skew) if (0.0..=10.0).contains(&skew) => Ok(Self::Zipfian(skew)),
                _ => Err("the skew must be 0 to 10".into()),
            },
            _ => Err("give uniform, zipfian, zipfian:SKEW, hot-cold or exponential".into()),
        }
    }
}

/// Draws ranks from a distribution: rank 0 is drawn most often.
#[derive(Clone, Debug)]
pub struct Draw {
    n: u64,
    /// Multiplies ranks to spread them.
    step: u64,
    /// 2^64 over `n`, for remainders without a division.
    reciprocal: u64,
    kind: Kind,
}

#[derive(Clone, Debug)]
enum Kind {
    Uniform,
    HotCold { hot: u64 },
    Exponential { tail: f64 },
    Zipfian(Zipf),
}

impl Draw {
    /// How many things there are.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.n
    }

    /// A rank below `n`.
    #[inline]
    pub fn rank(&self, random: &mut Random) -> u64 {
        match &self.kind {
            Kind::Uniform => random.below(self.n),
            Kind::HotCold { hot } => match random.unit() < HOT.1 {
                true => random.below(*hot),
                false => hot + random.below(self.n - hot),
            },
            Kind::Exponential { tail } => {
                let share = -EXPONENTIAL_MEAN * (-random.unit() * tail).ln_1p();
                ((share * self.n as f64) as u64).min(self.n - 1)
            }
            Kind::Zipfian(zipf) => zipf.rank(random),
        }
    }

    #[inline]
    fn scatter(&self, rank: u64) -> u64 {
        if self.n <= 1 << 32 {
            // Both are below `n`. The quotient is right, or too small by one.
            let product = rank * self.step;
            let quotient = (u128::from(product) * u128::from(self.reciprocal)) >> 64;
            let rest = product - quotient as u64 * self.n;
            return if rest < self.n { rest } else { rest - self.n };
        }
        (u128::from(rank) * u128::from(self.step) % u128::from(self.n)) as u64
    }

    /// A rank below `n`, spread: things that are drawn often are no neighbours. The spreading is
    /// one to one, so every distribution keeps its shape.
    #[inline]
    pub fn spread(&self, random: &mut Random) -> u64 {
        let rank = self.rank(random);
        match self.kind {
            Kind::Uniform => rank,
            Kind::HotCold { .. } | Kind::Exponential { .. } | Kind::Zipfian(_) => {
                self.scatter(rank)
            }
        }
    }
}

/// A multiplier that makes `rank * step % n` a permutation: it has no divisor in common with `n`.
fn step(n: u64) -> u64 {
    // By the golden ratio neighbours come far apart.
    let mut step = ((n as f64 * 0.618_033_988_75) as u64).max(1);
    while greatest_common_divisor(step, n) != 1 {
        step += 1;
    }
    step
}

fn greatest_common_divisor(mut a: u64, mut b: u64) -> u64 {
    while b != 0 {
        (a, b) = (b, a % b);
    }
    a
}

/// Zipf's distribution for any positive skew and any `n`, in constant time and memory:
/// rejection-inversion (W. Hörmann and G. Derflinger, 1996).
#[derive(Clone, Debug)]
struct Zipf {
    n: f64,
    skew: f64,
    area_first: f64,
    area_all: f64,
    shortcut: f64,
}

impl Zipf {
    fn new(n: u64, skew: f64) -> Self {
        let mut zipf = Self {
            n: n as f64,
            skew,
            area_first: 0.0,
            area_all: 0.0,
            shortcut: 0.0,
        };
        zipf.area_first = zipf.area(1.5) - 1.0;
        zipf.area_all = zipf.area(zipf.n + 0.5);
        zipf.shortcut = 2.0 - zipf.inverse(zipf.area(2.5) - zipf.height(2.0));
        zipf
    }

    fn rank(&self, random: &mut Random) -> u64 {
        loop {
            let area = self.area_all + random.unit() * (self.area_first - self.area_all);
            let x = self.inverse(area);
            let rank = (x + 0.5).floor().clamp(1.0, self.n);
            if rank - x <= self.shortcut || area >= self.area(rank + 0.5) - self.height(rank) {
                return rank as u64 - 1;
            }
        }
    }

    /// The frequency at `x`.
    fn height(&self, x: f64) -> f64 {
        (-self.skew * x.ln()).exp()
    }

    /// The integral of the frequency.
    fn area(&self, x: f64) -> f64 {
        let log = x.ln();
        exp_minus_one_over((1.0 - self.skew) * log) * log
    }

    /// The inverse of `area`.
    fn inverse(&self, area: f64) -> f64 {
        let t = (area * (1.0 - self.skew)).max(-1.0);
        (log_one_plus_over(t) * area).exp()
    }
}

/// `(e^x - 1) / x`, also where x is zero.
fn exp_minus_one_over(x: f64) -> f64 {
    match x.abs() > 1e-8 {
        true => x.exp_m1() / x,
        false => 1.0 + x / 2.0,
    }
}

/// `ln(1 + x) / x`, also where x is zero.
fn log_one_plus_over(x: f64) -> f64 {
    match x.abs() > 1e-8 {
        true => x.ln_1p() / x,
        false => 1.0 - x / 2.0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DRAWS: usize = 200_000;

    fn shares(distribution: Distribution, n: u64) -> Vec<f64> {
        let draw = distribution.over(n);
        let mut random = Random::new(1, 0);
        let mut counts = vec![0.0; n as usize];
        for _ in 0..DRAWS {
            counts[draw.rank(&mut random) as usize] += 1.0 / DRAWS as f64;
        }
        counts
    }

    #[test]
    fn hot_things_get_nine_of_ten() {
        let shares = shares(Distribution::HotCold, 100);
        let hot: f64 = shares[..10].iter().sum();
        assert!((hot - 0.9).abs() < 0.01, "{hot}");
        assert!((shares[0] - shares[9]).abs() < 0.01);
        assert!((shares[50] - 0.1 / 90.0).abs() < 0.001);
    }

    #[test]
    fn exponential_draws_follow_the_curve() {
        let shares = shares(Distribution::Exponential, 100);
        let first: f64 = shares[..23].iter().sum();
        assert!((first - 0.9).abs() < 0.01, "{first}");
        assert!((shares[0] / shares[10] - std::f64::consts::E).abs() < 0.2);
    }

    #[test]
    fn zipfian_draws_follow_the_power_law() {
        for skew in [0.3, 0.99, 1.0, 1.8] {
            let n = 1000;
            let shares = shares(Distribution::Zipfian(skew), n);
            let whole: f64 = (1..=n).map(|rank| (rank as f64).powf(-skew)).sum();
            for rank in [1, 2, 3, 10] {
                let wanted = (rank as f64).powf(-skew) / whole;
                let seen = shares[rank - 1];
                assert!(
                    (seen - wanted).abs() < 0.005 + 0.05 * wanted,
                    "skew {skew}, rank {rank}: {seen}, not {wanted}"
                );
            }
        }
    }

    #[test]
    fn one_thing_is_always_drawn() {
        for distribution in [
            Distribution::Uniform,
            Distribution::HotCold,
            Distribution::Exponential,
            Distribution::Zipfian(0.99),
        ] {
            let draw = distribution.over(1);
            assert_eq!(draw.spread(&mut Random::new(3, 0)), 0, "{distribution:?}");
        }
    }

    #[test]
    fn spreading_is_a_permutation() {
        for n in [1, 2, 10, 97, 1000, 1 << 12] {
            let draw = Distribution::HotCold.over(n);
            let mut seen: Vec<u64> = (0..n).map(|rank| draw.scatter(rank)).collect();
            seen.sort_unstable();
            assert_eq!(seen, (0..n).collect::<Vec<_>>());
        }
    }

    #[test]
    fn remainders_are_those_of_a_division() {
        let mut random = Random::new(5, 0);
        let few = [1, 2, 3, 10, 1 << 20, u64::from(u32::MAX), 1 << 32];
        for n in few.into_iter().chain([(1 << 32) + 1, 1 << 36]) {
            let draw = Distribution::HotCold.over(n);
            let ranks = (0..1000).map(|_| random.below(n)).chain([0, n - 1]);
            for rank in ranks {
                let wide = u128::from(rank) * u128::from(draw.step) % u128::from(n);
                assert_eq!(u128::from(draw.scatter(rank)), wide, "{rank} of {n}");
            }
        }
    }

    #[test]
    fn names_are_read_back() {
        for text in [
            "uniform",
            "hot-cold",
            "exponential",
            "zipfian",
            "zipfian:1.2",
        ] {
            let distribution: Distribution = text.parse().unwrap();
            assert_eq!(distribution.name(), text);
        }
        for wrong in ["", "zipf", "zipfian:-1", "zipfian:x", "uniform:2"] {
            assert!(wrong.parse::<Distribution>().is_err(), "{wrong}");
        }
    }
}
