//! The cost of getting a region of memory into the address space, by its size [SpaceJMP fig. 6 and
//! 37]. New mappings pay for each page. Entering what is attached pays for none.

use crate::error::Result;
use crate::place::{Place, SPAN_HEADER_BYTES, attach};
use crate::raw::{Mapping, PAGE_BYTES, Pages, Turning};
use crate::setting::Setting;
use crate::turns::{Contestant, Numbers, add_rows, now, ns_since, of, take_turns};
use core::sync::atomic::{AtomicU64, Ordering::Relaxed};
use pluvio_bench::experiment::{Axis, Experiment, Panel, Picture, Row, Shape};
use pluvio_spacejmp::Lock;
use pluvio_units::Size;
use std::cell::Cell;
use std::hint::black_box;

/// What to measure.
#[derive(clap::Args, Clone, Debug)]
pub struct Options {
    /// Sizes of the region
    #[arg(
        long,
        value_name = "SIZE",
        value_delimiter = ',',
        default_value = "1MiB,4MiB,16MiB,64MiB,256MiB,1GiB"
    )]
    pub sizes: Vec<Size>,
}

/// Times that cheap ways are repeated in a turn.
const REPEATED: u32 = 100;
const SPACE: &str = "attach of a space";
const ENTER: &str = "enter of an attached space";
const POPULATED: &str = "mmap, all pages at once";

/// Measures all sizes.
///
/// # Errors
/// A mapping failed.
pub fn run(setting: &Setting, options: &Options) -> Result<(Experiment, Picture)> {
    let mut experiment = Experiment::new("attach", Row::new().with("rounds", setting.rounds));
    let mut panel = Panel {
        title: "Getting at a region of memory".into(),
        x: "MiB".into(),
        y: "microseconds".into(),
        shape: Shape::Lines {
            x: Axis::Logarithmic,
            y: Axis::Logarithmic,
        },
        series: Vec::new(),
    };
    for size in &options.sizes {
        let numbers = of_size(setting, *size)?;
        let mib = size.bytes() as f64 / f64::from(1 << 20);
        let from = experiment.rows.len();
        add_rows(
            &mut experiment,
            &Row::new().with("size_mib", mib),
            "us",
            &numbers,
        );
        for row in &experiment.rows[from..] {
            panel.point(
                &row.text("contestant"),
                mib,
                row.number("us").unwrap_or(f64::NAN),
            );
        }
        for cheap in [SPACE, ENTER] {
            let name = format!("{POPULATED} / {cheap}, {mib} MiB");
            experiment.ratio_by_round(name, of(&numbers, POPULATED), of(&numbers, cheap));
        }
    }
    let picture = Picture {
        title: "Attaching".into(),
        panels: vec![panel],
    };
    Ok((experiment, picture))
}

fn touch(words: &[AtomicU64]) {
    let pages = words.iter().step_by(PAGE_BYTES / 8);
    black_box(pages.map(|word| word.load(Relaxed)).sum::<u64>());
}

/// Microseconds of one of several calls.
fn each(count: u32, mut call: impl FnMut(u32) -> Result<()>) -> Result<f64> {
    let begin = now();
    for number in 0..count {
        call(number)?;
    }
    Ok(ns_since(begin) / 1e3 / f64::from(count))
}

fn of_size(setting: &Setting, size: Size) -> Result<Vec<Numbers>> {
    let place = Place::new(setting.folder.as_deref())?;
    let bytes = size.bytes() as usize;
    let attached = place.words("here", 1 << 16, Lock::None)?;
    let mut files = Vec::new();
    for name in ["a", "b"] {
        drop(place.words(name, size.bytes(), Lock::None)?);
        files.push(place.open_file(name)?);
    }
    let mut turning = Turning::new(&files, SPAN_HEADER_BYTES, bytes)?;
    let file = &files[0];
    let map = |pages| Mapping::of_file(file, SPAN_HEADER_BYTES, bytes, pages);
    let unmapping = Cell::new(0.0);
    let all = vec![
        Contestant::new("mmap, each page touched", || {
            each(1, |_| {
                touch(map(Pages::Lazy)?.words());
                Ok(())
            })
        }),
        Contestant::new(POPULATED, || {
            let begin = now();
            let mapping = map(Pages::Populated)?;
            let us = ns_since(begin) / 1e3;
            let begin = now();
            mapping.unmap();
            unmapping.set(ns_since(begin) / 1e3);
            Ok(us)
        }),
        Contestant::new("munmap of that", || Ok(unmapping.get())),
        Contestant::new(SPACE, || {
            each(1, |_| {
                drop(black_box(attach(place.registry(), "a")?));
                Ok(())
            })
        }),
        Contestant::new("window's two moves (mremap)", || {
            each(REPEATED, |number| {
                black_box(turning.bring(number as usize % 2)?[0].load(Relaxed));
                Ok(())
            })
        }),
        Contestant::new(ENTER, || {
            each(100 * REPEATED, |_| {
                drop(black_box(attached.enter()?));
                Ok(())
            })
        }),
    ];
    take_turns(setting.rounds, all)
}
