//! The processor's knowledge of pages behind a switch [SpaceJMP fig. 47]. Measured is the time to
//! load one line of a random page, by the number of pages, after different events.
//!
//! Only the load is timed. The paper writes register CR3, with tags and without. No program of
//! Linux may do that. A hand-off to a process on the same processor is a switch of page tables with
//! tags (PCID), though the other process takes room, too. A change of rights of 64 pages makes the
//! processor forget everything, as a switch without tags does.

use crate::children::Echo;
use crate::error::{JumpError, Result};
use crate::raw::{Mapping, PAGE_BYTES, ticks};
use crate::setting::Setting;
use crate::turns::{Contestant, Numbers, add_rows, now, ns_since, of, take_turns};
use core::sync::atomic::Ordering::Relaxed;
use pluvio_bench::experiment::{Axis, Experiment, Panel, Picture, Row, Shape};
use pluvio_load::Random;
use std::cell::{Cell, RefCell};
use std::hint::black_box;

/// What to measure.
#[derive(clap::Args, Clone, Debug)]
pub struct Options {
    /// Loads of a turn
    #[arg(long, value_name = "N", default_value_t = 10_000)]
    pub loads: u32,
    /// Numbers of pages
    #[arg(
        long,
        value_name = "N",
        value_delimiter = ',',
        default_value = "1,4,16,64,256,512,1024,2048,4096,16384,65536"
    )]
    pub pages: Vec<u32>,
}

/// Pages whose rights change: more than the kernel forgets one by one.
const FLIPPED: usize = 64;
/// Most pages: 4 GiB.
const PAGES_MAX: u32 = 1 << 20;
const NOTHING: &str = "nothing between";
const FLUSHED: &str = "change of rights (all forgotten)";
const TAGGED: &str = "hand-off to a process (tags)";

/// Measures all numbers of pages.
///
/// # Errors
/// A mapping or a process failed; a number of pages is zero or too large.
pub fn run(setting: &Setting, options: &Options) -> Result<(Experiment, Picture)> {
    let most = options.pages.iter().copied().max().unwrap_or(0);
    if most > PAGES_MAX || options.pages.contains(&0) {
        return Err(JumpError::Parameters(format!(
            "between 1 and {PAGES_MAX} pages"
        )));
    }
    let parameters = Row::new()
        .with("rounds", setting.rounds)
        .with("loads", options.loads);
    let mut experiment = Experiment::new("walk", parameters);
    let mut panel = Panel {
        title: "Load of a line of a random page".into(),
        x: "pages".into(),
        y: "nanoseconds".into(),
        shape: Shape::Lines {
            x: Axis::Logarithmic,
            y: Axis::Linear,
        },
        series: Vec::new(),
    };
    let memory = Mapping::own(most as usize * PAGE_BYTES)?;
    for (page, words) in memory.words().chunks(PAGE_BYTES / 8).enumerate() {
        words[0].store(page as u64, Relaxed);
    }
    for &pages in &options.pages {
        let numbers = of_pages(setting, options.loads, &memory, pages)?;
        let from = experiment.rows.len();
        add_rows(
            &mut experiment,
            &Row::new().with("pages", pages),
            "ns",
            &numbers,
        );
        for row in &experiment.rows[from..] {
            let ns = row.number("ns").unwrap_or(f64::NAN);
            panel.point(&row.text("contestant"), f64::from(pages), ns);
        }
        for dear in [TAGGED, FLUSHED] {
            let name = format!("{dear} / {NOTHING}, {pages} pages");
            experiment.ratio_by_round(name, of(&numbers, dear), of(&numbers, NOTHING));
        }
    }
    let picture = Picture {
        title: "What a switch makes the processor forget".into(),
        panels: vec![panel],
    };
    Ok((experiment, picture))
}

/// A turn of `count` loads: nanoseconds of one, without the clock's own time.
fn loads(
    count: u32,
    memory: &Mapping,
    pages: u32,
    stream: u64,
    mut between: impl FnMut() -> Result<()>,
) -> Result<f64> {
    let (words, count) = (memory.words(), count.max(1));
    let mut random = Random::new(u64::from(pages), stream);
    let (mut loads, mut clock) = (0, 0);
    let (begin, first) = (now(), ticks());
    for _ in 0..count {
        let page = random.below(u64::from(pages)) as usize;
        // Another line in each page, so that all parts of the cache are used.
        let word = &words[page * PAGE_BYTES / 8 + page * 8 % (PAGE_BYTES / 8)];
        between()?;
        let before = ticks();
        black_box(word.load(Relaxed));
        let behind = ticks();
        loads += behind - before;
        clock += ticks() - behind;
    }
    let ns_a_tick = ns_since(begin) / (ticks() - first).max(1) as f64;
    let ticks = loads.saturating_sub(clock) as f64;
    Ok(ticks * ns_a_tick / f64::from(count))
}

fn of_pages(setting: &Setting, count: u32, memory: &Mapping, pages: u32) -> Result<Vec<Numbers>> {
    let flipped = Mapping::own(FLIPPED * PAGE_BYTES)?;
    let echo = RefCell::new(Echo::start(&setting.program)?);
    let turn = |name: &str, between: Box<dyn Fn() -> Result<()>>| (name.to_owned(), between);
    let touched = move || {
        for words in flipped.words().chunks(PAGE_BYTES / 8) {
            words[0].store(1, Relaxed);
        }
        flipped.flip_rights()
    };
    let ways = vec![
        turn(NOTHING, Box::new(|| Ok(()))),
        turn(
            "system call",
            Box::new(|| {
                black_box(rustix::process::getppid());
                Ok(())
            }),
        ),
        turn(TAGGED, Box::new(move || echo.borrow_mut().there_and_back())),
        turn(FLUSHED, Box::new(touched)),
    ];
    let streams = Cell::new(0);
    let all = ways.into_iter().map(|(name, between)| {
        let streams = &streams;
        Contestant::new(name, move || {
            // No turn finds in the cache what another one has loaded.
            streams.set(streams.get() + 1);
            loads(count, memory, pages, streams.get(), &between)
        })
    });
    take_turns(setting.rounds, all.collect())
}
