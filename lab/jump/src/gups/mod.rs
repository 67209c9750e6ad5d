//! GUPS: random updates of a large table in several windows [SpaceJMP §10.2, fig. 48 and 49]. A set
//! of updates goes to one window, the next one to another.
//!
//! - `direct`: all windows are there, and nobody switches. This is the bound.
//! - `resident`: each window is a span in a space of its own. A set enters the space and leaves it.
//! - `window`: windows take turns at one range of addresses, by moving page tables.
//! - `map`: a set for another window unmaps the one that is there, and maps its own (the paper's
//!   MAP). The pages are in memory already.
//! - `processes`: each window has a process, which gets the updates as messages and answers. It is
//!   the paper's MP, with pipes instead of OpenMPI.
//! - `processes, busy`: the same by words in a span. Both sides look all the time, as OpenMPI does.
//!
//! - GUPS-1: all ways make the same table of the same updates, or the experiment fails.

mod processes;

pub(crate) use processes::{serve_busy, serve_pipe};

use crate::error::{JumpError, Result};
use crate::place::{Place, SPAN_HEADER_BYTES};
use crate::raw::{Mapping, Pages, Turning};
use crate::setting::Setting;
use crate::turns::{Contestant, Numbers, add_rows, now, ns_since, of, take_turns};
use core::sync::atomic::{AtomicU64, Ordering::Relaxed};
use core::time::Duration;
use pluvio_bench::experiment::{Axis, Experiment, Panel, Picture, Row, Shape};
use pluvio_load::Random;
use pluvio_spacejmp::{Entered, Lock, Space};
use pluvio_units::Size;
use processes::{Busy, Piped};
use std::cell::RefCell;
use std::fs::File;

/// What to measure.
#[derive(clap::Args, Clone, Debug)]
pub struct Options {
    /// How long a turn takes, in milliseconds
    #[arg(long, value_name = "MS", default_value = "200", value_parser = Turn::of_millis)]
    pub turn: Turn,
    /// Numbers of windows
    #[arg(
        long,
        value_name = "N",
        value_delimiter = ',',
        default_value = "1,2,4,8,16"
    )]
    pub windows: Vec<u32>,
    /// Updates of a set
    #[arg(long, value_name = "N", value_delimiter = ',', default_value = "16,64")]
    pub sets: Vec<u32>,
    /// Size of a window
    #[arg(long, value_name = "SIZE", default_value = "64MiB")]
    pub window: Size,
    /// Most windows with a process each
    #[arg(long, value_name = "N", default_value_t = 8)]
    pub processes_max: u32,
}

/// How much a turn does.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Turn {
    /// Sets until this time is over.
    For(Duration),
    /// This number of sets.
    Sets(u32),
}

impl Turn {
    fn of_millis(text: &str) -> std::result::Result<Self, std::num::ParseIntError> {
        Ok(Self::For(Duration::from_millis(text.parse()?)))
    }
}

/// Most updates of a set, for the processes' messages.
pub(crate) const SET_MAX: usize = 1024;
/// Windows and sets whose tables are compared before anything is measured.
const CHECKED_WINDOWS: u32 = 4;
const CHECKED_SETS: u32 = 100;
/// Sets between two looks at the clock.
const LOOK_SETS: u32 = 64;

/// One update: the word at an index of its window is combined with a number.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Update {
    pub(crate) index: u64,
    pub(crate) number: u64,
}

/// How a set of updates gets to its window.
pub(crate) trait Way {
    fn apply(&mut self, window: usize, updates: &[Update]) -> Result<()>;
}

/// Does a set. Updates of different processes do not meet, so nothing is locked.
#[inline]
pub(crate) fn update(words: &[AtomicU64], updates: &[Update]) {
    for update in updates {
        if let Some(word) = words.get(update.index as usize) {
            word.store(word.load(Relaxed) ^ update.number, Relaxed);
        }
    }
}

/// The windows of an experiment, as spans of words, each in a space of its own.
pub(crate) struct Windows {
    place: Place,
    names: Vec<String>,
    spaces: Vec<Space>,
    files: Vec<File>,
    bytes: usize,
}

impl Windows {
    fn new(setting: &Setting, window: Size, count: u32) -> Result<Self> {
        let place = Place::new(setting.folder.as_deref())?;
        let names: Vec<String> = (0..count)
            .map(|number| format!("window-{number}"))
            .collect();
        let bytes = window.bytes();
        let (mut spaces, mut files) = (Vec::new(), Vec::new());
        for name in &names {
            spaces.push(place.words(name, bytes, Lock::None)?);
            files.push(place.open_file(name)?);
        }
        let windows = Self {
            place,
            names,
            spaces,
            files,
            bytes: bytes as usize,
        };
        windows.clear()?;
        Ok(windows)
    }

    /// Makes all words zero, and all pages there.
    fn clear(&self) -> Result<()> {
        for (space, name) in self.spaces.iter().zip(&self.names) {
            let mut inside = space.enter()?;
            for word in inside.part(name)?.words()? {
                word.store(0, Relaxed);
            }
        }
        Ok(())
    }

    /// A number for the content of all windows.
    fn digest(&self) -> Result<u64> {
        let mut digest = 0;
        for (space, name) in self.spaces.iter().zip(&self.names) {
            let mut inside = space.enter()?;
            digest = digest_of(digest, inside.part(name)?.words()?);
        }
        Ok(digest)
    }
}

fn digest_of(before: u64, words: &[AtomicU64]) -> u64 {
    words.iter().fold(before, |digest, word| {
        let mixed = digest.rotate_left(5).wrapping_mul(31);
        mixed.wrapping_add(word.load(Relaxed))
    })
}

/// A table in the process's own memory, to compare the others with.
struct Plain(Vec<Vec<AtomicU64>>);

impl Way for Plain {
    fn apply(&mut self, window: usize, updates: &[Update]) -> Result<()> {
        update(&self.0[window], updates);
        Ok(())
    }
}

/// All windows at once.
struct Direct<'w>(Vec<&'w [AtomicU64]>);

impl Way for Direct<'_> {
    #[inline]
    fn apply(&mut self, window: usize, updates: &[Update]) -> Result<()> {
        update(self.0[window], updates);
        Ok(())
    }
}

struct Resident<'w>(&'w Windows);

impl Way for Resident<'_> {
    #[inline]
    fn apply(&mut self, window: usize, updates: &[Update]) -> Result<()> {
        let mut inside = self.0.spaces[window].enter()?;
        let part = inside.part(&self.0.names[window])?;
        update(part.words()?, updates);
        Ok(())
    }
}

impl Way for Turning {
    fn apply(&mut self, window: usize, updates: &[Update]) -> Result<()> {
        update(self.bring(window)?, updates);
        Ok(())
    }
}

/// One window at a time. A set for the window that is there finds it mapped.
struct Map<'w> {
    windows: &'w Windows,
    here: Option<(usize, Mapping)>,
}

impl<'w> Map<'w> {
    fn new(windows: &'w Windows) -> Self {
        Self {
            windows,
            here: None,
        }
    }
}

impl Way for Map<'_> {
    fn apply(&mut self, window: usize, updates: &[Update]) -> Result<()> {
        let mapping = match self.here.take() {
            Some((old, mapping)) if old == window => mapping,
            old => {
                // Unmapped first: there is room for one window.
                drop(old);
                let file = &self.windows.files[window];
                let bytes = self.windows.bytes;
                Mapping::of_file(file, SPAN_HEADER_BYTES, bytes, Pages::Lazy)?
            }
        };
        update(mapping.words(), updates);
        self.here = Some((window, mapping));
        Ok(())
    }
}

/// What a turn did.
#[derive(Clone, Copy, Debug)]
struct Done {
    updates_us: f64,
    sets_s: f64,
}

/// A turn: draws sets and has them applied.
fn turn(way: &mut impl Way, windows: &Windows, set: u32, until: Turn) -> Result<Done> {
    let mut random = Random::new(1, u64::from(set));
    let words = (windows.bytes / 8) as u64;
    let mut updates = vec![
        Update {
            index: 0,
            number: 0
        };
        set as usize
    ];
    let begin = now();
    let mut sets = 0;
    loop {
        let over = match until {
            Turn::For(time) => sets % LOOK_SETS == 0 && begin.elapsed() >= time,
            Turn::Sets(count) => sets >= count,
        };
        if over {
            break;
        }
        for update in &mut updates {
            let number = random.next();
            let index = number % words;
            *update = Update { index, number };
        }
        let window = random.below(windows.spaces.len() as u64) as usize;
        way.apply(window, &updates)?;
        sets += 1;
    }
    let seconds = ns_since(begin) / 1e9;
    Ok(Done {
        updates_us: f64::from(sets) * f64::from(set) / seconds / 1e6,
        sets_s: f64::from(sets) / seconds,
    })
}

const DIRECT: &str = "direct";
const RESIDENT: &str = "resident";
const WINDOW: &str = "window";
const MAP: &str = "map";
const PROCESSES: &str = "processes";
const BUSY: &str = "processes, busy";

/// Measures all numbers of windows and sizes of sets.
///
/// # Errors
/// A mapping or a process failed; a set has no updates, or more than 1024.
pub fn run(setting: &Setting, options: &Options) -> Result<(Experiment, Picture)> {
    if options
        .sets
        .iter()
        .any(|&set| set == 0 || set as usize > SET_MAX)
        || options.windows.contains(&0)
    {
        let problem = format!("between 1 and {SET_MAX} updates, and at least one window");
        return Err(JumpError::Parameters(problem));
    }
    check(setting, options)?;
    let parameters = Row::new()
        .with("rounds", setting.rounds)
        .with("window_mib", options.window.bytes() >> 20);
    let mut experiment = Experiment::new("gups", parameters);
    let mut panels = Vec::new();
    for &set in &options.sets {
        let mut panel = Panel {
            title: format!("{set} updates a set"),
            x: "windows".into(),
            y: "million updates a second".into(),
            shape: Shape::Lines {
                x: Axis::Linear,
                y: Axis::Logarithmic,
            },
            series: Vec::new(),
        };
        for &count in &options.windows {
            let from = experiment.rows.len();
            measure(setting, options, &mut experiment, set, count)?;
            for row in &experiment.rows[from..] {
                let mups = row.number("mups").unwrap_or(f64::NAN);
                panel.point(&row.text("contestant"), f64::from(count), mups);
            }
        }
        panels.push(panel);
    }
    let picture = Picture {
        title: "GUPS by number of windows".into(),
        panels,
    };
    Ok((experiment, picture))
}

/// The sets a second of each turn, by the contestant's name.
type Rates = RefCell<Vec<(&'static str, f64)>>;

/// All ways once for a number of windows.
fn measure(
    setting: &Setting,
    options: &Options,
    experiment: &mut Experiment,
    set: u32,
    count: u32,
) -> Result<()> {
    let windows = Windows::new(setting, options.window, count)?;
    let rates = Rates::default();
    let numbers = take_all_turns(setting, options, &windows, set, &rates)?;
    let head = Row::new().with("set", set).with("windows", count);
    let from = experiment.rows.len();
    add_rows(experiment, &head, "mups", &numbers);
    let rates = rates.into_inner();
    for row in &mut experiment.rows[from..] {
        let who = row.text("contestant");
        let its = rates.iter().filter(|(name, _)| *name == who);
        let median = median(its.map(|(_, rate)| *rate).collect());
        row.set("switches_s", median.round());
    }
    for (ours, theirs) in [(RESIDENT, DIRECT), (RESIDENT, MAP), (RESIDENT, PROCESSES)] {
        let name = format!("{ours} / {theirs}, {count} windows, {set} updates");
        experiment.ratio_by_round(name, of(&numbers, ours), of(&numbers, theirs));
    }
    Ok(())
}

/// The higher of the two in the middle, if there are two; no number if there is none.
fn median(mut numbers: Vec<f64>) -> f64 {
    numbers.sort_by(f64::total_cmp);
    numbers.get(numbers.len() / 2).copied().unwrap_or(f64::NAN)
}

/// The updates of each way in its turns, in millions a second.
fn take_all_turns(
    setting: &Setting,
    options: &Options,
    windows: &Windows,
    set: u32,
    rates: &Rates,
) -> Result<Vec<Numbers>> {
    let mut entered: Vec<Entered<'_>> = Vec::new();
    for space in &windows.spaces {
        entered.push(space.enter()?);
    }
    let mut parts = Vec::new();
    for (inside, name) in entered.iter_mut().zip(&windows.names) {
        parts.push(inside.part(name)?);
    }
    let mut all_words = Vec::new();
    for part in &parts {
        all_words.push(part.words()?);
    }
    let mut direct = Direct(all_words);
    let mut resident = Resident(windows);
    let mut turning = Turning::new(&windows.files, SPAN_HEADER_BYTES, windows.bytes)?;
    let mut map = Map::new(windows);
    let measured = |done: Result<Done>, name| {
        let done = done?;
        rates.borrow_mut().push((name, done.sets_s));
        Ok(done.updates_us)
    };
    let until = options.turn;
    let mut all = vec![
        Contestant::new(DIRECT, || {
            measured(turn(&mut direct, windows, set, until), DIRECT)
        }),
        Contestant::new(RESIDENT, || {
            measured(turn(&mut resident, windows, set, until), RESIDENT)
        }),
        Contestant::new(WINDOW, || {
            measured(turn(&mut turning, windows, set, until), WINDOW)
        }),
        Contestant::new(MAP, || measured(turn(&mut map, windows, set, until), MAP)),
    ];
    let has_processes = windows.names.len() <= options.processes_max as usize;
    if has_processes {
        let mut piped = Piped::start(&setting.program, &windows.place, &windows.names, set)?;
        all.push(Contestant::new(PROCESSES, move || {
            measured(turn(&mut piped, windows, set, until), PROCESSES)
        }));
    }
    let mut numbers = take_turns(setting.rounds, all)?;
    // Those that never pause would take the processors from all others.
    if has_processes {
        let mut busy = Busy::start(&setting.program, &windows.place, &windows.names)?;
        let alone = Contestant::new(BUSY, || {
            measured(turn(&mut busy, windows, set, until), BUSY)
        });
        numbers.extend(take_turns(setting.rounds, vec![alone])?);
    }
    Ok(numbers)
}

/// Applies the same sets by every way, and compares the tables.
fn check(setting: &Setting, options: &Options) -> Result<()> {
    let most = options.windows.iter().copied().max().unwrap_or(1);
    let count = most.min(CHECKED_WINDOWS);
    let set = options.sets.first().copied().unwrap_or(1);
    let windows = Windows::new(setting, options.window, count)?;
    let until = Turn::Sets(CHECKED_SETS);
    let words = || (0..windows.bytes / 8).map(|_| AtomicU64::new(0)).collect();
    let mut plain = Plain((0..count).map(|_| words()).collect());
    turn(&mut plain, &windows, set, until)?;
    let expected = plain
        .0
        .iter()
        .fold(0, |before, words| digest_of(before, words));
    let (place, names) = (&windows.place, &windows.names);
    let compare = |name, way: &mut dyn FnMut() -> Result<Done>| {
        windows.clear()?;
        way()?;
        match windows.digest()? == expected {
            true => Ok(()),
            false => Err(JumpError::of(name, "GUPS-1: its table is another one")),
        }
    };
    let all = &windows;
    compare(RESIDENT, &mut || turn(&mut Resident(all), all, set, until))?;
    let mut turning = Turning::new(&all.files, SPAN_HEADER_BYTES, all.bytes)?;
    compare(WINDOW, &mut || turn(&mut turning, all, set, until))?;
    compare(MAP, &mut || turn(&mut Map::new(all), all, set, until))?;
    if count <= options.processes_max {
        let mut piped = Piped::start(&setting.program, place, names, set)?;
        compare(PROCESSES, &mut || turn(&mut piped, all, set, until))?;
        let mut busy = Busy::start(&setting.program, place, names)?;
        compare(BUSY, &mut || turn(&mut busy, all, set, until))?;
    }
    Ok(())
}
