//! Loads that take turns: each is driven for a short while, then the next one, round after round.
//! So a machine that is slow for a while is so for all of them.

use super::drive::{all, on_a_core};
use pluvio_bench::experiment::{Row, Spread};
use pluvio_bench::processor_us;
use pluvio_bench::run::{Collector, Latencies};
use pluvio_console::failure::Failure;
use pluvio_env::Env;
use std::time::Duration;

/// One caller of a load.
pub trait Caller: Sized + Send + 'static {
    /// What all callers of the load know.
    type Load: Clone + Send + 'static;

    /// The caller with this number, connected.
    fn open(load: &Self::Load, number: usize)
    -> impl Future<Output = Result<Self, Failure>> + Send;

    /// Sends what goes out at once, and waits for the answers: how many operations that were. 0:
    /// there is no more to do.
    fn next(&mut self) -> impl Future<Output = Result<u64, Failure>> + Send;
}

/// How long a turn is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Length {
    /// This long, after a warm-up.
    Time {
        /// How long it runs before latencies count.
        warmup: Duration,
        /// How long they count.
        measured: Duration,
    },
    /// Until no caller has more to do.
    Work,
}

/// What was seen in a turn.
#[derive(Clone, Debug)]
pub struct Turn {
    /// Operations a second.
    pub ops_per_s: f64,
    /// Latencies of what goes out at once.
    pub latencies: Latencies,
    /// Microseconds of the system's processors for each operation.
    pub server_us: f64,
}

#[derive(Default)]
struct Tally {
    latencies: Collector,
    operations: u64,
}

/// Drives a load by this many callers.
///
/// # Errors
/// The system refused or is gone.
pub async fn turn<C: Caller>(
    env: &Env,
    load: &C::Load,
    pids: &[u32],
    callers: usize,
    length: Length,
) -> Result<Turn, Failure> {
    let start = env.clock.now();
    let (from, until) = match length {
        Length::Time { warmup, measured } => (start + warmup, Some(start + warmup + measured)),
        Length::Work => (start, None),
    };
    let before = processor_us(pids);
    let mut ends = Vec::new();
    for number in 0..callers {
        let (clock, load) = (env.clock.clone(), load.clone());
        let work = async move {
            let mut caller = C::open(&load, number).await?;
            let mut tally = Tally::default();
            loop {
                let start = clock.now();
                if until.is_some_and(|until| start >= until) {
                    return Ok(tally);
                }
                let operations = caller.next().await?;
                if operations == 0 {
                    return Ok(tally);
                }
                tally.operations += operations;
                if start >= from {
                    tally.latencies.record(clock.now().since(start));
                }
            }
        };
        ends.push(on_a_core(env, number, work));
    }
    let mut total = Tally::default();
    for tally in all(ends).await? {
        total.latencies.add(&tally.latencies);
        total.operations += tally.operations;
    }
    let took = env.clock.now().since(start).as_secs_f64();
    Ok(Turn {
        ops_per_s: total.operations as f64 / took.max(1e-9),
        latencies: total.latencies.latencies(),
        server_us: (processor_us(pids) - before) / total.operations.max(1) as f64,
    })
}

/// The turns of one load.
#[derive(Clone, Debug, Default)]
pub struct Turns(pub Vec<Turn>);

impl Turns {
    /// A number of each turn.
    pub fn each(&self, number: impl Fn(&Turn) -> f64) -> Vec<f64> {
        self.0.iter().map(number).collect()
    }

    /// Medians over the turns, as cells of a row.
    pub fn cells(&self) -> Row {
        let spread = |number: &dyn Fn(&Turn) -> f64| {
            let each = self.each(number).into_iter();
            let each: Vec<f64> = each.filter(|number| number.is_finite()).collect();
            Spread::of(&each).unwrap_or_default()
        };
        Row::new()
            .and(spread(&server_us).cells("server_us"))
            .and(spread(&p50_us).cells("p50_us"))
            .with("p99_us", spread(&|turn| turn.latencies.us(0.99)).median)
            .with("ops_per_s", spread(&|turn| turn.ops_per_s).median)
    }
}

/// See [`Turn::server_us`].
pub fn server_us(turn: &Turn) -> f64 {
    turn.server_us
}

/// The median latency.
pub fn p50_us(turn: &Turn) -> f64 {
    turn.latencies.us(0.5)
}
