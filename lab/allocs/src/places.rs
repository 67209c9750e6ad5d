//! Where a thread allocates: the stack of each of the next few allocations.

use std::backtrace::Backtrace;
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::fmt;

/// Stacks that a thread keeps at most.
const KEPT_MAX: usize = 256;
/// Functions of a stack that are shown at most.
const SHOWN_MAX: usize = 24;

thread_local! {
    /// Allocations whose stacks are still wanted. Zero while a stack is taken, which allocates.
    static WANTED: Cell<usize> = const { Cell::new(0) };
    static STACKS: RefCell<Vec<Backtrace>> = const { RefCell::new(Vec::new()) };
}

/// From now on the calling thread notes where it allocates, up to 256 times.
pub fn note_places() {
    STACKS.take();
    WANTED.set(KEPT_MAX);
}

/// Called in the allocator.
pub(crate) fn note() {
    let wanted = WANTED.get();
    if wanted == 0 {
        return;
    }
    WANTED.set(0);
    let stack = Backtrace::force_capture();
    // A thread that ends keeps none any more.
    let _ended = STACKS.try_with(|stacks| stacks.borrow_mut().push(stack));
    WANTED.set(wanted - 1);
}

/// Where the calling thread has allocated since [`note_places`]. It stops noting.
#[must_use]
pub fn places_here() -> Places {
    WANTED.set(0);
    let mut places = BTreeMap::new();
    for stack in STACKS.take() {
        *places.entry(functions_of(&stack)).or_insert(0) += 1;
    }
    let mut places: Vec<_> = places.into_iter().collect();
    places.sort_by_key(|(_, times)| core::cmp::Reverse(*times));
    Places(places)
}

/// Stacks of allocations, the most frequent first.
#[derive(Debug)]
pub struct Places(Vec<(String, usize)>);

impl fmt::Display for Places {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (functions, times) in &self.0 {
            writeln!(f, "{times} times:\n{functions}")?;
        }
        Ok(())
    }
}

/// The functions of a stack from the innermost on, without those of the allocator and of the
/// runtime around it.
fn functions_of(stack: &Backtrace) -> String {
    let text = stack.to_string();
    // A line `12: name` for each function, and lines `at file` where these are known.
    let names = text.lines().filter_map(|line| {
        let (number, name) = line.trim_start().split_once(": ")?;
        number.parse::<u32>().is_ok().then_some(name)
    });
    let is_ours = |name: &&str| {
        let inner = ["backtrace", "pluvio_allocs::", "__rust", "alloc::alloc::"];
        !inner.iter().any(|part| name.contains(part))
    };
    let shown = names.filter(is_ours).take(SHOWN_MAX);
    shown.map(|name| format!("    {name}\n")).collect()
}
