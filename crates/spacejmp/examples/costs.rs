//! The costs of calling a worker, of entering a space, of changing a heap and of allocating in it,
//! beside mimalloc.
//!
//! `cargo run --release -p pluvio-spacejmp --example costs`. Numbers count on a quiet machine only.

use mimalloc::MiMalloc;
use pluvio_spacejmp::{Access, Kind, Lock, Registry, Result, SegBox, SegMap, SegVec, Space};
use rustix::time::{ClockId, clock_gettime};
use std::alloc::{GlobalAlloc, Layout};
use std::hint::black_box;

/// Repetitions of each measurement; the least time is shown.
const TURNS: usize = 5;

fn now_ns() -> f64 {
    let now = clock_gettime(ClockId::Monotonic);
    now.tv_sec as f64 * 1e9 + now.tv_nsec as f64
}

/// The least time of one of `count` rounds, in nanoseconds.
fn least(what: &str, count: u32, mut all: impl FnMut(u32) -> Result<()>) -> Result<()> {
    let mut least = f64::INFINITY;
    for _ in 0..TURNS {
        let start = now_ns();
        all(count)?;
        least = least.min((now_ns() - start) / f64::from(count));
    }
    println!("{what:<48} {least:>10.1} ns");
    Ok(())
}

#[allow(unsafe_code)] // its own directory
fn attach(registry: &Registry, name: &str) -> Result<Space> {
    // SAFETY: nothing but this program writes the directory.
    unsafe { registry.find_space(name)?.attach() }
}

fn enter(registry: &Registry) -> Result<()> {
    registry.span("words").kind(Kind::Words).create()?;
    registry.create_space("words", &[("words", Access::Write)])?;
    let space = attach(registry, "words")?;
    least("enter and leave, no lock", 1_000_000, |count| {
        for _ in 0..count {
            drop(black_box(space.enter()?));
        }
        Ok(())
    })?;
    let robust = registry.span("robust").kind(Kind::Words);
    robust.lock(Lock::Robust).create()?;
    registry.create_space("robust", &[("robust", Access::Write)])?;
    let space = attach(registry, "robust")?;
    least("enter and leave, robust shared lock", 1_000_000, |count| {
        for _ in 0..count {
            drop(black_box(space.enter_shared()?));
        }
        Ok(())
    })?;
    least("enter and leave, robust exclusive lock", 100_000, |count| {
        for _ in 0..count {
            drop(black_box(space.enter()?));
        }
        Ok(())
    })?;
    registry.span("tree").lock(Lock::Robust).create()?;
    registry.create_space("tree", &[("tree", Access::Write)])?;
    let space = attach(registry, "tree")?;
    least("the same of a heap, shared", 1_000_000, |count| {
        for _ in 0..count {
            drop(black_box(space.enter_shared()?));
        }
        Ok(())
    })?;
    let kernel = registry.span("kernel").kind(Kind::Words);
    kernel.lock(Lock::Kernel).create()?;
    registry.create_space("kernel", &[("kernel", Access::Write)])?;
    let space = attach(registry, "kernel")?;
    least(
        "enter and leave, exclusive lock of words",
        100_000,
        |count| {
            for _ in 0..count {
                drop(black_box(space.enter()?));
            }
            Ok(())
        },
    )?;
    let space = attach(registry, "heap")?;
    least("enter and leave, shared lock", 100_000, |count| {
        for _ in 0..count {
            drop(black_box(space.enter_shared()?));
        }
        Ok(())
    })?;
    least("enter and leave, exclusive lock", 100_000, |count| {
        for _ in 0..count {
            drop(black_box(space.enter()?));
        }
        Ok(())
    })
}

fn change(registry: &Registry) -> Result<()> {
    let space = attach(registry, "heap")?;
    let mut inside = space.enter()?;
    inside.init::<SegVec<'_, u64>>("heap", |heap| SegVec::from_slice(heap, &[0; 1 << 20]))?;
    for pages in [0, 1, 10, 100, 1000] {
        let what = format!("change of {pages} pages, 8 MiB heap");
        least(&what, 200, |count| {
            for _ in 0..count {
                inside.write::<SegVec<'_, u64>, _>("heap", |_, row| {
                    for page in 0..pages {
                        row[page * 512] += 1;
                    }
                    Ok(())
                })?;
            }
            Ok(())
        })?;
    }
    inside.part("heap")?.clear()
}

fn allocate(registry: &Registry) -> Result<()> {
    let space = attach(registry, "heap")?;
    let mut inside = space.enter()?;
    inside.init::<SegVec<'_, Option<SegBox<'_, [u64; 8]>>>>("heap", |heap| {
        let mut row = SegVec::with_room(heap, 1000)?;
        for _ in 0..1000 {
            row.push(heap, None)?;
        }
        Ok(row)
    })?;
    type Row<'id> = SegVec<'id, Option<SegBox<'id, [u64; 8]>>>;
    inside.write::<Row<'_>, _>("heap", |heap, row| {
        least("heap: free and allocate 64 B", 1_000_000, |count| {
            for index in 0..count as usize {
                let place = &mut row[index * 7 % 1000];
                *place = None;
                *place = Some(SegBox::new(heap, [index as u64; 8])?);
            }
            Ok(())
        })
    })?;
    inside.part("heap")?.clear()?;
    let mut row: Vec<*mut u8> = vec![std::ptr::null_mut(); 1000];
    let layout = Layout::new::<[u64; 8]>();
    least("mimalloc: free and allocate 64 B", 1_000_000, |count| {
        for index in 0..count as usize {
            let place = &mut row[index * 7 % 1000];
            again(place, layout, index as u64);
        }
        Ok(())
    })
}

/// Calls of a worker, one behind the other, and with pauses in which it falls asleep.
#[allow(unsafe_code)] // its own directory
fn call(registry: &Registry) -> Result<()> {
    // SAFETY: nothing but this program writes the directory; all of its code is loaded.
    let worker = unsafe { registry.find_space("heap")?.start_worker()? };
    let number = |_: &mut Space, number: u64| Ok(number);
    least("call of a worker, and its answer", 50_000, |count| {
        for index in 0..count {
            black_box(worker.call(u64::from(index), number)?);
        }
        Ok(())
    })?;
    let mut times = Vec::new();
    for index in 0..5_000 {
        let start = now_ns();
        black_box(worker.call(index, number)?);
        let end = now_ns();
        times.push(end - start);
        // Longer than it looks before it sleeps.
        while now_ns() - end < 200_000.0 {
            core::hint::spin_loop();
        }
    }
    times.sort_by(f64::total_cmp);
    for (name, at) in [("p50", times.len() / 2), ("p99", times.len() * 99 / 100)] {
        let what = format!("the same, of one that sleeps: {name}");
        println!("{what:<48} {:>10.1} ns", times[at]);
    }
    Ok(())
}

#[allow(unsafe_code)] // calls an allocator
fn again(place: &mut *mut u8, layout: Layout, value: u64) {
    // SAFETY: `place` is null, or a block of this layout that nobody else uses.
    unsafe {
        if !place.is_null() {
            MiMalloc.dealloc(*place, layout);
        }
        *place = MiMalloc.alloc(layout);
        place.cast::<[u64; 8]>().write([value; 8]);
    }
}

fn look_up(registry: &Registry) -> Result<()> {
    type Numbers<'id> = SegMap<'id, u64, u64>;
    let space = attach(registry, "heap")?;
    let mut inside = space.enter()?;
    inside.init::<Numbers<'_>>("heap", |_| Ok(SegMap::new()))?;
    inside.write::<Numbers<'_>, _>("heap", |heap, numbers| {
        for key in 0..100_000 {
            numbers.insert(heap, key, key)?;
        }
        Ok(())
    })?;
    inside.read::<Numbers<'_>, _>("heap", |numbers| {
        least("SegMap: get of 100 000 keys", 1_000_000, |count| {
            for index in 0..u64::from(count) {
                black_box(numbers.get(&(index * 7919 % 100_000)));
            }
            Ok(())
        })
    })?
}

fn main() -> Result<()> {
    let place = tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir());
    let place = place.expect("a temporary directory");
    let registry = Registry::open(place.path())?;
    registry.span("heap").size(64 << 20).create()?;
    registry.create_space("heap", &[("heap", Access::Write)])?;
    call(&registry)?;
    enter(&registry)?;
    change(&registry)?;
    allocate(&registry)?;
    look_up(&registry)
}
