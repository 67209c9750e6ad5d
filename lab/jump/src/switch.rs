//! The cost of one switch [SpaceJMP §10.1, table 6]. A space is entered and left by each way that
//! crate `spacejmp` has. Beside it are a system call, a new mapping, and a hand-off to a process.

use crate::children::Echo;
use crate::error::{JumpError, Result};
use crate::place::{Place, SPAN_HEADER_BYTES, attach};
use crate::raw::{Mapping, PAGE_BYTES, Pages, Turning};
use crate::setting::Setting;
use crate::turns::{Contestant, Numbers, add_rows, now, ns_since, of, take_turns};
use core::sync::atomic::Ordering::Relaxed;
use pluvio_bench::experiment::{Axis, Experiment, Panel, Picture, Row, Shape};
use pluvio_spacejmp::{Access, Lock, SegVec, Space};
use pluvio_units::Size;
use std::hint::black_box;

/// What to measure.
#[derive(clap::Args, Clone, Debug)]
pub struct Options {
    /// Cheap switches of a turn; it has fewer of dearer ones
    #[arg(long, value_name = "N", default_value_t = 200_000)]
    pub switches: u32,
    /// Sizes of spans that have to be moved or mapped
    #[arg(
        long,
        value_name = "SIZE",
        value_delimiter = ',',
        default_value = "1MiB,64MiB,512MiB"
    )]
    pub sizes: Vec<Size>,
}

/// Bytes that a turn maps with all of their pages, at least once: a GiB takes as long as many of
/// the other calls.
const POPULATED_BYTES: usize = 64 << 20;

/// The name of a contestant that is compared with others.
const RESIDENT: &str = "resident, no lock";
/// The dearest baseline.
const MAP: &str = "mmap and munmap";

/// A turn: nanoseconds of one of `count` calls.
fn each(count: u32, mut call: impl FnMut(usize) -> Result<()>) -> Result<f64> {
    let count = count.max(1);
    let begin = now();
    for number in 0..count {
        call(number as usize)?;
    }
    Ok(ns_since(begin) / f64::from(count))
}

/// Measures all.
///
/// # Errors
/// A mapping or a process failed.
pub fn run(setting: &Setting, options: &Options) -> Result<(Experiment, Picture)> {
    let parameters = Row::new()
        .with("rounds", setting.rounds)
        .with("switches", options.switches);
    let mut experiment = Experiment::new("switch", parameters);
    let fixed = whatever_the_size(setting, options)?;
    add_rows(
        &mut experiment,
        &Row::new().with("size_mib", 0),
        "ns",
        &fixed,
    );
    let mut largest = Vec::new();
    for size in &options.sizes {
        largest = of_size(setting, options, *size)?;
        let head = Row::new().with("size_mib", size.bytes() >> 20);
        add_rows(&mut experiment, &head, "ns", &largest);
    }
    let resident = of(&fixed, RESIDENT).to_vec();
    experiment.ratio_by_round(
        "system call / resident",
        of(&fixed, "system call (getppid)"),
        &resident,
    );
    experiment.ratio_by_round(
        "hand-off to a process / resident",
        of(&fixed, "hand-off to a process"),
        &resident,
    );
    experiment.ratio_by_round("mmap and munmap / resident", of(&largest, MAP), &resident);
    let picture = draw(&experiment);
    Ok((experiment, picture))
}

/// Those that move or map nothing.
fn whatever_the_size(setting: &Setting, options: &Options) -> Result<Vec<Numbers>> {
    let place = Place::new(setting.folder.as_deref())?;
    let two = |name: &str, lock| -> Result<[Space; 2]> {
        Ok([
            place.words(&format!("{name}-1"), 1 << 16, lock)?,
            place.words(&format!("{name}-2"), 1 << 16, lock)?,
        ])
    };
    let free = two("free", Lock::None)?;
    let locked = two("locked", Lock::Kernel)?;
    let names = ["free-1", "free-2"];
    let mut echo = Echo::start(&setting.program)?;
    let (many, some) = (options.switches, options.switches / 20);
    let all = vec![
        Contestant::new("system call (getppid)", || {
            each(many, |_| {
                black_box(rustix::process::getppid());
                Ok(())
            })
        }),
        Contestant::new(RESIDENT, || {
            each(many, |number| {
                drop(black_box(free[number % 2].enter()?));
                Ok(())
            })
        }),
        Contestant::new("resident, no lock, one word read", || {
            each(many, |number| {
                let mut inside = free[number % 2].enter()?;
                let part = inside.part(names[number % 2])?;
                black_box(part.words_to_read()?.load(0));
                Ok(())
            })
        }),
        Contestant::new("resident, kernel's lock shared", || {
            each(some, |number| {
                drop(black_box(locked[number % 2].enter_shared()?));
                Ok(())
            })
        }),
        Contestant::new("resident, kernel's lock exclusive", || {
            each(some, |number| {
                drop(black_box(locked[number % 2].enter()?));
                Ok(())
            })
        }),
        Contestant::new("hand-off to a process", || {
            // There and back are two.
            Ok(each(some, |_| echo.there_and_back())? / 2.0)
        }),
    ];
    take_turns(setting.rounds, all)
}

type Row64<'id> = SegVec<'id, u64>;

/// Makes two heaps with the same addresses, full of numbers, and attaches both.
fn two_copies(place: &Place, size: Size) -> Result<[Space; 2]> {
    let registry = place.registry();
    registry.span("copy-1").size(size.bytes()).create()?;
    registry.create_space("writer", &[("copy-1", Access::Write)])?;
    // The allocator takes some of it.
    let count = (size.bytes() / 8 * 3 / 4) as usize;
    let writer = attach(registry, "writer")?;
    writer.enter()?.init::<Row64<'_>>("copy-1", |heap| {
        let mut row = SegVec::with_room(heap, count)?;
        let numbers = vec![1; 1 << 12];
        while row.len() + numbers.len() <= count {
            row.extend_from_slice(heap, &numbers)?;
        }
        Ok(row)
    })?;
    drop(writer);
    registry.clone_span("copy-1", "copy-2")?;
    let read = |name: &str| {
        registry.create_space(name, &[(name, Access::Read)])?;
        attach(registry, name)
    };
    let spaces = [read("copy-1")?, read("copy-2")?];
    for (space, name) in spaces.iter().zip(["copy-1", "copy-2"]) {
        let inside = space.enter()?;
        // Every page is touched once, so that page tables are full.
        let sum = inside
            .read::<Row64<'_>, _>(name, |row| row.iter().step_by(PAGE_BYTES / 8).sum::<u64>())?;
        if sum == 0 {
            return Err(JumpError::of(name, "the copy is empty"));
        }
    }
    Ok(spaces)
}

/// Those that move or map a span of this size.
fn of_size(setting: &Setting, options: &Options, size: Size) -> Result<Vec<Numbers>> {
    let place = Place::new(setting.folder.as_deref())?;
    let copies = two_copies(&place, size)?;
    let name = |number: usize| format!("file-{number}");
    let mut files = Vec::new();
    for number in 0..2 {
        drop(place.words(&name(number), size.bytes(), Lock::None)?);
        files.push(place.open_file(&name(number))?);
    }
    let bytes = size.bytes() as usize;
    let mut turning = Turning::new(&files, SPAN_HEADER_BYTES, bytes)?;
    let some = options.switches / 200;
    let few = (POPULATED_BYTES / bytes).clamp(1, some.max(1) as usize);
    let all = vec![
        Contestant::new("window (two heaps at one address)", || {
            each(some, |number| {
                drop(black_box(copies[number % 2].enter()?));
                Ok(())
            })
        }),
        Contestant::new("window's two moves alone (mremap)", || {
            each(some, |number| {
                black_box(turning.bring(number % 2)?[0].load(Relaxed));
                Ok(())
            })
        }),
        Contestant::new(MAP, || {
            each(some, |number| {
                let file = &files[number % 2];
                let mapping = Mapping::of_file(file, SPAN_HEADER_BYTES, bytes, Pages::Lazy)?;
                black_box(mapping.words()[0].load(Relaxed));
                mapping.unmap();
                Ok(())
            })
        }),
        Contestant::new("mmap with all pages, and munmap", || {
            each(few as u32, |number| {
                let file = &files[number % 2];
                let mapping = Mapping::of_file(file, SPAN_HEADER_BYTES, bytes, Pages::Populated)?;
                black_box(mapping.words()[0].load(Relaxed));
                mapping.unmap();
                Ok(())
            })
        }),
    ];
    take_turns(setting.rounds, all)
}

/// Short names of those that move nothing, in their order.
const GROUPS: [&str; 6] = [
    "call",
    "resident",
    "and a word",
    "shared",
    "exclusive",
    "hand-off",
];

/// Bars of those that move nothing, as logarithms: they lie three powers of ten apart. And lines of
/// the others by size.
fn draw(experiment: &Experiment) -> Picture {
    let mut bars = Panel {
        title: "Nothing is moved, log10 of nanoseconds".into(),
        x: String::new(),
        y: "log10(ns)".into(),
        shape: Shape::Bars {
            groups: GROUPS.iter().map(|&name| name.to_owned()).collect(),
        },
        series: Vec::new(),
    };
    let mut lines = Panel {
        title: "Spans are moved or mapped".into(),
        x: "MiB".into(),
        y: "nanoseconds".into(),
        shape: Shape::Lines {
            x: Axis::Logarithmic,
            y: Axis::Logarithmic,
        },
        series: Vec::new(),
    };
    for (number, row) in experiment.rows.iter().enumerate() {
        let ns = row.number("ns").unwrap_or(f64::NAN);
        match row.number("size_mib") {
            Some(size) if size > 0.0 => lines.point(&row.text("contestant"), size, ns),
            _ => bars.point("median", number as f64, ns.max(1.0).log10()),
        }
    }
    Picture {
        title: "Switching between address spaces".into(),
        panels: vec![bars, lines],
    }
}
