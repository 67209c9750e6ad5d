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

use crate::children::Program;
use crate::error::{JumpError, Result};
use crate::place::{Place, SPAN_HEADER_BYTES};
use crate::raw::{Mapping, Pages, Turning};
use crate::turns::{Contestant, add_rows, now, ns_since, of, take_turns};
use core::sync::atomic::{AtomicU64, Ordering::Relaxed};
use core::time::Duration;
use pluvio_bench::experiment::{Axis, Experiment, Panel, Picture, Row, Shape};
use pluvio_load::Random;
use pluvio_spacejmp::{Entered, Lock, Space};
use pluvio_units::Size;
use processes::{Busy, Piped};
use std::cell::RefCell;
use std::fs::File;
use std::path::PathBuf;

/// What to measure.
#[derive(Clone, Debug)]
pub struct Options {
    /// Rounds, of which the median counts.
    pub rounds: u32,
    /// How long a turn takes at least.
    pub turn: Turn,
    /// Numbers of windows.
    pub windows: Vec<u32>,
    /// Updates of a set.
    pub sets: Vec<u32>,
    /// Bytes of a window.
    pub window: Size,
    /// Most windows with a process each.
    pub processes_max: u32,
    /// Where the spans lie; in memory when `None`.
    pub folder: Option<PathBuf>,
    /// The program of children.
    pub program: Program,
}

/// How much a turn does.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Turn {
    /// Sets until this time is over.
    For(Duration),
    /// This number of sets.
    Sets(u32),
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
    fn new(options: &Options, count: u32) -> Result<Self> {
        let place = Place::new(options.folder.as_deref())?;
        let names: Vec<String> = (0..count)
            .map(|number| format!("window-{number}"))
            .collect();
        let bytes = options.window.bytes();
        let (mut spaces, mut files) = (Vec::new(), Vec::new());
        for name in &names {
            spaces.push(place.words(name, bytes, Lock::None)?);
            let file = File::options()
                .read(true)
                .write(true)
                .open(place.file_of(name));
            files.push(file.map_err(|error| JumpError::system("open a span", error))?);
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
const MAP: &str = "map";

/// Measures all numbers of windows and sizes of sets.
///
/// # Errors
/// A mapping or a process failed; a set has no updates, or more than 1024.
pub fn run(options: &Options) -> Result<(Experiment, Picture)> {
    if options
        .sets
        .iter()
        .any(|&set| set == 0 || set as usize > SET_MAX)
        || options.windows.contains(&0)
    {
        let problem = format!("between 1 and {SET_MAX} updates, and at least one window");
        return Err(JumpError::Parameters(problem));
    }
    check(options)?;
    let parameters = Row::new()
        .with("rounds", options.rounds)
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
            measure(options, &mut experiment, set, count)?;
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

/// All ways once for a number of windows.
fn measure(options: &Options, experiment: &mut Experiment, set: u32, count: u32) -> Result<()> {
    let windows = Windows::new(options, count)?;
    let rates = RefCell::new(Vec::<(&str, f64)>::new());
    let mut entered: Vec<Entered<'_>> = Vec::new();
    for space in &windows.spaces {
        entered.push(space.enter()?);
    }
    let numbers = {
        let mut parts = Vec::new();
        for (inside, name) in entered.iter_mut().zip(&windows.names) {
            parts.push(inside.part(name)?);
        }
        let mut all_words = Vec::new();
        for part in &parts {
            all_words.push(part.words()?);
        }
        let mut direct = Direct(all_words);
        let mut resident = Resident(&windows);
        let mut turning = Turning::new(&windows.files, SPAN_HEADER_BYTES, windows.bytes)?;
        let mut map = Map::new(&windows);
        let run = |way: &mut dyn FnMut() -> Result<Done>, name| {
            let done = way()?;
            rates.borrow_mut().push((name, done.sets_s));
            Ok(done.updates_us)
        };
        let (windows, until) = (&windows, options.turn);
        let mut all = vec![
            Contestant::new(DIRECT, || {
                run(&mut || turn(&mut direct, windows, set, until), DIRECT)
            }),
            Contestant::new(RESIDENT, || {
                run(&mut || turn(&mut resident, windows, set, until), RESIDENT)
            }),
            Contestant::new("window", || {
                run(&mut || turn(&mut turning, windows, set, until), "window")
            }),
            Contestant::new(MAP, || {
                run(&mut || turn(&mut map, windows, set, until), MAP)
            }),
        ];
        if count <= options.processes_max {
            let mut piped = Piped::start(&options.program, &windows.place, &windows.names, set)?;
            all.push(Contestant::new("processes", move || {
                run(&mut || turn(&mut piped, windows, set, until), "processes")
            }));
        }
        let mut numbers = take_turns(options.rounds, all)?;
        // Those that never pause would take the processors from all others.
        if count <= options.processes_max {
            let mut busy = Busy::start(&options.program, &windows.place, &windows.names)?;
            let name = "processes, busy";
            let turn = || run(&mut || turn(&mut busy, windows, set, until), name);
            numbers.extend(take_turns(
                options.rounds,
                vec![Contestant::new(name, turn)],
            )?);
        }
        numbers
    };
    let head = Row::new().with("set", set).with("windows", count);
    let from = experiment.rows.len();
    add_rows(experiment, &head, "mups", &numbers);
    let rates = rates.into_inner();
    for row in &mut experiment.rows[from..] {
        let who = row.text("contestant");
        let mut of_it: Vec<f64> = rates
            .iter()
            .filter(|(name, _)| *name == who)
            .map(|(_, rate)| *rate)
            .collect();
        of_it.sort_by(f64::total_cmp);
        let median = of_it.get(of_it.len() / 2).copied().unwrap_or(f64::NAN);
        row.set("switches_s", median.round());
    }
    for (ours, theirs) in [(RESIDENT, DIRECT), (RESIDENT, MAP), (RESIDENT, "processes")] {
        let name = format!("{ours} / {theirs}, {count} windows, {set} updates");
        experiment.ratio_by_round(name, of(&numbers, ours), of(&numbers, theirs));
    }
    Ok(())
}

/// Applies the same sets by every way, and compares the tables.
fn check(options: &Options) -> Result<()> {
    let most = options.windows.iter().copied().max().unwrap_or(1);
    let count = most.min(CHECKED_WINDOWS);
    let set = options.sets.first().copied().unwrap_or(1);
    let windows = Windows::new(options, count)?;
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
    compare("window", &mut || turn(&mut turning, all, set, until))?;
    compare(MAP, &mut || turn(&mut Map::new(all), all, set, until))?;
    if count <= options.processes_max {
        let mut piped = Piped::start(&options.program, place, names, set)?;
        compare("processes", &mut || turn(&mut piped, all, set, until))?;
        let mut busy = Busy::start(&options.program, place, names)?;
        compare("processes, busy", &mut || turn(&mut busy, all, set, until))?;
    }
    Ok(())
}
