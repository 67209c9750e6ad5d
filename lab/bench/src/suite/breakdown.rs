//! The gain of each part of our store: epochs, heads and which thread appends to which, segments,
//! cleaner threads, copies, updates in place. It follows [Nibble fig. 12-13] and figures 21 to 33
//! there, as far as the store has options for them. Levels of cleaning differ only where there is a
//! disk: `cleaner` compares them.

use super::{Overhead, Rounds, Watch, bars, check_utilization, check_value_size, step, turns};
use crate::contestant::{
    Allocator, Contender, Copying, Epochs, HeadChoice, Kind, Process, Program, Setup,
};
use crate::error::{ExperimentError, within};
use crate::experiment::{Experiment, Panel, Picture, Row, Spread};
use crate::run::{KEYS_MAX, LoadPlan, RunPlan, THREADS_MAX};
use crate::suite::Step;
use crate::workload::Distribution;
use core::str::FromStr;
use pluvio_units::Size;

/// What to measure.
#[derive(Clone, PartialEq, Debug)]
pub struct BreakdownOptions {
    /// Keys.
    pub objects: u64,
    /// Bytes of a value; several give a row each.
    pub value_sizes: Vec<usize>,
    /// Reads of a hundred operations; several give a row each.
    pub get_percents: Vec<u8>,
    /// Which keys; several give a row each.
    pub distributions: Vec<Distribution>,
    /// Threads.
    pub threads: usize,
    /// The parts to compare.
    pub parts: Vec<Part>,
    /// Numbers of heads to compare.
    pub heads: Vec<u16>,
    /// Numbers of cleaner threads to compare.
    pub cleaner_threads: Vec<u16>,
    /// Sizes of segments to compare, in bytes.
    pub segments: Vec<u64>,
    /// Live objects in percent of the log; several give a row each.
    pub utilizations: Vec<u8>,
    /// How long, and how often.
    pub rounds: Rounds,
}

/// A part of the store that has several values.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Part {
    /// What reclaim epochs are counted with.
    Epochs,
    /// How many heads, and which one an append goes to.
    Heads,
    /// How many threads clean.
    CleanerThreads,
    /// Bytes of a segment.
    Segment,
    /// How objects are copied into the log.
    Copy,
    /// Whether updates append or overwrite.
    Update,
}

impl Part {
    /// All of them.
    pub const ALL: [Self; 6] = [
        Self::Epochs,
        Self::Heads,
        Self::CleanerThreads,
        Self::Segment,
        Self::Copy,
        Self::Update,
    ];

    /// What rows call it.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Epochs => "epochs",
            Self::Heads => "heads",
            Self::CleanerThreads => "cleaner threads",
            Self::Segment => "segment",
            Self::Copy => "copy",
            Self::Update => "update",
        }
    }
}

impl FromStr for Part {
    type Err = String;

    /// Its name, with a dash between words.
    fn from_str(text: &str) -> Result<Self, String> {
        let words = text.replace('-', " ");
        let found = Self::ALL.into_iter().find(|part| part.name() == words);
        found.ok_or_else(|| "give epochs, heads, cleaner-threads, segment, copy or update".into())
    }
}

/// Which operations on which keys.
#[derive(Clone, Copy)]
struct Mix {
    get_percent: u8,
    distribution: Distribution,
}

impl Mix {
    fn name(self) -> String {
        format!("{} % get, {}", self.get_percent, self.distribution.name())
    }
}

/// What the stores are filled with.
#[derive(Clone, Copy)]
struct Fill {
    value_size: usize,
    utilization: u8,
}

impl Fill {
    fn name(self) -> String {
        format!("{} B, {} % full", self.value_size, self.utilization)
    }
}

impl BreakdownOptions {
    fn fills(&self) -> Vec<Fill> {
        let mut fills = Vec::new();
        for &value_size in &self.value_sizes {
            fills.extend(self.utilizations.iter().map(|&utilization| Fill {
                value_size,
                utilization,
            }));
        }
        fills
    }

    fn mixes(&self) -> Vec<Mix> {
        let mut mixes = Vec::new();
        for &distribution in &self.distributions {
            mixes.extend(self.get_percents.iter().map(|&get_percent| Mix {
                get_percent,
                distribution,
            }));
        }
        mixes
    }
}

/// A store that differs from the usual one in one thing.
struct Variant {
    part: &'static str,
    value: String,
    setup: Setup,
}

/// Runs the experiment.
///
/// # Errors
/// The store refused, or the parameters make no sense.
pub fn breakdown(
    program: &Program,
    options: &BreakdownOptions,
    watch: Watch<'_>,
) -> Result<(Experiment, Picture), ExperimentError> {
    options.rounds.check()?;
    for &percent in &options.utilizations {
        check_utilization(percent)?;
    }
    for &size in &options.value_sizes {
        check_value_size(size)?;
    }
    within("keys", options.objects, 1..=KEYS_MAX)?;
    within("threads", options.threads, 1..=THREADS_MAX)?;
    for &percent in &options.get_percents {
        within("get-percent", percent, 0..=100)?;
    }
    let overhead = Overhead::measure(program)?;
    let mixes = options.mixes();
    let runs = mixes.len() * (options.rounds.rounds + 1);
    let fills = options.fills();
    let each = variants(options, &|_| 0).len() * (1 + runs);
    watch(Step::Total((fills.len() * each) as u64));
    let parameters = Row::new()
        .with("objects", options.objects)
        .with("threads", options.threads)
        .and(options.rounds.cells());
    let mut experiment = Experiment::new("breakdown", parameters);
    let mut panels = Vec::new();
    for &fill in &fills {
        let bytes = options.objects * fill.value_size as u64;
        let utilization = f64::from(fill.utilization) / 100.0;
        let memory = |kind| overhead.memory(kind, options.objects, bytes, utilization);
        let variants = variants(options, &memory);
        let mut processes = Vec::new();
        for variant in &variants {
            let name = format!("{} {} loads", variant.part, variant.value);
            processes.push(step(watch, name, || {
                start(program, options, fill, variant)
            })?);
        }
        for &mix in &mixes {
            let rates = rounds(&mut processes, options, fill, mix, &variants, watch)?;
            panels.push(tell(&mut experiment, fill, mix, &variants, &rates));
        }
    }
    let picture = Picture {
        title: "What each part brings".into(),
        panels,
    };
    Ok((experiment, picture))
}

/// The rows, the ratios and the bars of one mix.
fn tell(
    experiment: &mut Experiment,
    fill: Fill,
    mix: Mix,
    variants: &[Variant],
    rates: &[Vec<f64>],
) -> Panel {
    let title = format!("{}, {}", fill.name(), mix.name());
    let names = variants.iter().map(|v| format!("{} {}", v.part, v.value));
    let mut panel = bars(title.clone(), "", "operations/s", names.collect());
    let usual = rates.first().map(Vec::as_slice).unwrap_or_default();
    for (number, (variant, rates)) in variants.iter().zip(rates).enumerate() {
        let rate = Spread::of(rates).unwrap_or_default();
        panel.point("operations/s", number as f64, rate.median);
        experiment.rows.push(
            Row::new()
                .with("part", variant.part)
                .with("value", variant.value.clone())
                .with("value_size", fill.value_size)
                .with("utilization_percent", fill.utilization)
                .with("get_percent", mix.get_percent)
                .with("distribution", mix.distribution.name())
                .and(rate.cells("ops_per_s")),
        );
        let name = format!("{title}: {} {} / usual", variant.part, variant.value);
        experiment.ratio_by_round(name, rates, usual);
    }
    panel
}

/// The usual store first, then one for each other value of each part.
fn variants(options: &BreakdownOptions, memory: &dyn Fn(Kind) -> u64) -> Vec<Variant> {
    let usual = Setup::new(Kind::Pluvio, options.objects, memory(Kind::Pluvio));
    let mut all = vec![Variant {
        part: "usual",
        value: "distributed counter epochs, a head a core, memcpy, append".into(),
        setup: usual.clone(),
    }];
    let mut add = |part: Part, value: String, change: &dyn Fn(&mut Setup)| {
        if !options.parts.contains(&part) {
            return;
        }
        let mut setup = usual.clone();
        change(&mut setup);
        let part = part.name();
        all.push(Variant { part, value, setup });
    };
    for (name, epochs) in [
        ("one counter for all", Epochs::SharedCounter),
        ("tsc", Epochs::Tsc),
    ] {
        add(Part::Epochs, name.into(), &|setup| setup.epochs = epochs);
    }
    for &heads in &options.heads {
        add(Part::Heads, heads.to_string(), &|setup| {
            setup.heads = Some(heads)
        });
    }
    for (name, choice) in [
        ("a core, drawn at random", HeadChoice::Random),
        ("a core, by the key's hash", HeadChoice::ByHash),
    ] {
        add(Part::Heads, name.into(), &|setup| {
            setup.head_choice = choice
        });
    }
    for &threads in &options.cleaner_threads {
        add(Part::CleanerThreads, threads.to_string(), &|setup| {
            setup.cleaner_threads = threads;
        });
    }
    for &segment in &options.segments {
        add(Part::Segment, Size(segment).to_string(), &|setup| {
            setup.segment = Some(segment);
        });
    }
    for (name, copying) in [
        ("around the caches", Copying::Streaming),
        ("rep movsb", Copying::StringMove),
    ] {
        add(Part::Copy, name.into(), &|setup| setup.copying = copying);
    }
    add(Part::Update, "in place".into(), &|setup| {
        setup.kind = Kind::PluvioInPlace;
        setup.memory = memory(Kind::PluvioInPlace);
    });
    all
}

fn start(
    program: &Program,
    options: &BreakdownOptions,
    fill: Fill,
    variant: &Variant,
) -> Result<Process, ExperimentError> {
    let who = Contender {
        kind: variant.setup.kind,
        allocator: Allocator::Glibc,
    };
    let mut process = Process::start(program, who, &variant.setup)?;
    process.load(&LoadPlan {
        objects: options.objects,
        until: None,
        value_size: fill.value_size,
        seed: options.rounds.seed,
    })?;
    Ok(process)
}

/// All rounds of one mix, in turn; the first, which only warms up, is left out.
fn rounds(
    processes: &mut [Process],
    options: &BreakdownOptions,
    fill: Fill,
    mix: Mix,
    variants: &[Variant],
    watch: Watch<'_>,
) -> Result<Vec<Vec<f64>>, ExperimentError> {
    let mut rates = vec![Vec::new(); processes.len()];
    for round in 0..=options.rounds.rounds {
        for at in turns(round, processes.len()) {
            let variant = &variants[at];
            let plan = RunPlan {
                lead_in: RunPlan::usual_lead_in(options.rounds.seconds, mix.get_percent),
                seconds: options.rounds.seconds,
                puts_min: 0,
                threads: options.threads,
                objects: options.objects,
                value_size: fill.value_size,
                get_percent: mix.get_percent,
                distribution: mix.distribution.name(),
                batch: 1,
                put_batch: 1,
                seed: options.rounds.seed + round as u64,
                latencies: false,
                inserts: false,
                measured: true,
            };
            let name = format!("{} {}, {}", variant.part, variant.value, mix.name());
            let ran = step(watch, name, || processes[at].run(&plan))?;
            if round > 0 {
                rates[at].push(ran.per_second);
            }
        }
    }
    Ok(rates)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_parts_that_are_asked_for_are_compared_with_the_usual_store() {
        let options = |parts: &[Part]| BreakdownOptions {
            objects: 1,
            value_sizes: vec![64],
            get_percents: vec![50],
            distributions: vec![Distribution::Uniform],
            threads: 1,
            parts: parts.to_vec(),
            heads: vec![1],
            cleaner_threads: vec![2],
            segments: vec![4 << 20, 8 << 20],
            utilizations: vec![90],
            rounds: Rounds {
                seconds: 1.0,
                rounds: 1,
                seed: 1,
            },
        };
        let found = |parts: &[Part]| {
            let all = variants(&options(parts), &|_| 0);
            let named = all.iter().map(|one| format!("{} {}", one.part, one.value));
            named.skip(1).collect::<Vec<_>>()
        };
        assert_eq!(found(&[]), [""; 0]);
        assert_eq!(found(&[Part::Segment]), ["segment 4MiB", "segment 8MiB"]);
        let all = found(&Part::ALL);
        assert_eq!(all.len(), 2 + 3 + 1 + 2 + 2 + 1);
        for part in Part::ALL {
            let option = part.name().replace(' ', "-");
            assert_eq!(option.parse::<Part>(), Ok(part));
            assert!(all.iter().any(|name| name.starts_with(part.name())));
        }
        assert!(all.contains(&"heads a core, by the key's hash".to_owned()));
    }
}
