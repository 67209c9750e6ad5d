//! GUPS with a process for each window: the driver sends a set of updates, and waits until they are
//! done.

use super::{SET_MAX, Update, Way, update};
use crate::children::{Child, Pinned, Program, processors};
use crate::error::{JumpError, Result};
use crate::place::{Place, attach};
use core::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use pluvio_spacejmp::{Lock, Registry, Space};
use std::io::{Read, Write};
use std::path::Path;

/// Bytes of an update in a message.
const UPDATE_BYTES: usize = 16;
/// Looks at the mailbox before the processor is given to others for a moment.
const LOOKS: u32 = 1000;

/// Starts a process for each window, each on a processor of its own as long as there are enough.
/// The first one is the driver's.
fn start(
    program: &Program,
    place: &Place,
    names: &[String],
    role: &str,
    rest: &[&str],
) -> Result<Vec<Child>> {
    let processors = processors();
    let mut children = Vec::new();
    for (number, name) in names.iter().enumerate() {
        let mut command = program.child(role);
        command.arg(place.registry().root()).arg(name).args(rest);
        let mut child = Child::start(name, &mut command)?;
        child.pin(processors[(number + 1) % processors.len()])?;
        child.line()?;
        children.push(child);
    }
    Ok(children)
}

fn driver() -> Result<Pinned> {
    Pinned::to(processors().first().copied().unwrap_or(0))
}

/// Messages in pipes; those that wait sleep.
pub(crate) struct Piped {
    children: Vec<Child>,
    message: Vec<u8>,
}

impl Piped {
    pub(crate) fn start(
        program: &Program,
        place: &Place,
        names: &[String],
        set: u32,
    ) -> Result<Self> {
        let set = set.to_string();
        Ok(Self {
            children: start(program, place, names, "window", &[&set])?,
            message: Vec::new(),
        })
    }
}

impl Way for Piped {
    fn apply(&mut self, window: usize, updates: &[Update]) -> Result<()> {
        self.message.clear();
        for update in updates {
            self.message.extend(update.index.to_le_bytes());
            self.message.extend(update.number.to_le_bytes());
        }
        let child = &mut self.children[window];
        child.send(&self.message)?;
        child.receive(&mut [0])
    }
}

fn words_space(root: &Path, name: &str) -> Result<Space> {
    attach(&Registry::open(root)?, name)
}

/// The child of [`Piped`]: applies sets of `set` updates to the window `name`.
pub(crate) fn serve_pipe(root: &Path, name: &str, set: usize) -> Result<()> {
    let space = words_space(root, name)?;
    let mut inside = space.enter()?;
    let part = inside.part(name)?;
    let words = part.words()?;
    let (mut input, mut output) = (std::io::stdin().lock(), std::io::stdout().lock());
    let mut message = vec![0; set * UPDATE_BYTES];
    ready_on(&mut output)?;
    // Ends when the parent has closed the pipe.
    while input.read_exact(&mut message).is_ok() {
        let updates: Vec<Update> = message.chunks_exact(UPDATE_BYTES).map(decode).collect();
        update(words, &updates);
        ready_byte(&mut output)?;
    }
    Ok(())
}

/// Tells the parent that the process is there.
fn ready_on(output: &mut impl Write) -> Result<()> {
    let told = writeln!(output, "ready").and_then(|()| output.flush());
    told.map_err(|error| JumpError::of("a window", error))
}

fn ready_byte(output: &mut impl Write) -> Result<()> {
    let told = output.write_all(&[1]).and_then(|()| output.flush());
    told.map_err(|error| JumpError::of("a window", error))
}

fn decode(bytes: &[u8]) -> Update {
    let word = |from: usize| {
        let part = bytes
            .get(from..from + 8)
            .and_then(|part| part.try_into().ok());
        part.map_or(0, u64::from_le_bytes)
    };
    Update {
        index: word(0),
        number: word(8),
    }
}

/// The span of a window's mailbox: a word of state, the number of updates, and the updates.
fn mailbox_of(name: &str) -> String {
    format!("{name}.mailbox")
}

/// Nothing to do.
const DONE: u64 = 0;
/// A set waits.
const SET: u64 = 1;
/// The process shall end.
const END: u64 = 2;

/// Messages in a span; those that wait look at it all the time.
pub(crate) struct Busy {
    boxes: Vec<(String, Space)>,
    _children: Vec<Child>,
    _here: Pinned,
}

impl Busy {
    pub(crate) fn start(program: &Program, place: &Place, names: &[String]) -> Result<Self> {
        let mut boxes = Vec::new();
        for name in names {
            let mailbox = mailbox_of(name);
            let bytes = (2 + 2 * SET_MAX) * 8;
            let space = place.words(&mailbox, bytes as u64, Lock::None)?;
            boxes.push((mailbox, space));
        }
        Ok(Self {
            boxes,
            _children: start(program, place, names, "busy-window", &[])?,
            _here: driver()?,
        })
    }
}

/// Looks until a word is, or is not, a number.
fn wait(look: impl Fn() -> bool) {
    let mut looks = 0_u32;
    while !look() {
        looks += 1;
        match looks.is_multiple_of(LOOKS) {
            true => std::thread::yield_now(),
            false => core::hint::spin_loop(),
        }
    }
}

impl Way for Busy {
    fn apply(&mut self, window: usize, updates: &[Update]) -> Result<()> {
        let (name, space) = &self.boxes[window];
        let mut inside = space.enter()?;
        let part = inside.part(name)?;
        let words = part.words()?;
        let [state, count, rest @ ..] = words else {
            return Err(JumpError::of(name, "it is too short"));
        };
        for (pair, update) in rest.chunks_exact(2).zip(updates) {
            pair[0].store(update.index, Relaxed);
            pair[1].store(update.number, Relaxed);
        }
        count.store(updates.len() as u64, Relaxed);
        // Pairs with the other process's load: it sees the updates.
        state.store(SET, Release);
        wait(|| state.load(Acquire) == DONE);
        Ok(())
    }
}

impl Drop for Busy {
    fn drop(&mut self) {
        for (name, space) in &self.boxes {
            // A child that is not told is killed.
            let _told = space.enter().and_then(|mut inside| {
                if let Some(state) = inside.part(name)?.words()?.first() {
                    state.store(END, Release);
                }
                Ok(())
            });
        }
    }
}

/// The child of [`Busy`].
pub(crate) fn serve_busy(root: &Path, name: &str) -> Result<()> {
    let (space, mailbox) = (words_space(root, name)?, mailbox_of(name));
    let mail = words_space(root, &mailbox)?;
    let (mut inside, mut mail) = (space.enter()?, mail.enter()?);
    let (part, letters) = (inside.part(name)?, mail.part(&mailbox)?);
    let (words, letters) = (part.words()?, letters.words()?);
    let [state, count, rest @ ..] = letters else {
        return Err(JumpError::of(mailbox, "it is too short"));
    };
    let mut updates = Vec::new();
    ready_on(&mut std::io::stdout().lock())?;
    loop {
        // Pairs with the driver's store.
        wait(|| state.load(Acquire) != DONE);
        if state.load(Acquire) == END {
            return Ok(());
        }
        updates.clear();
        let letters = rest.chunks_exact(2).take(count.load(Relaxed) as usize);
        updates.extend(letters.map(|pair| Update {
            index: pair[0].load(Relaxed),
            number: pair[1].load(Relaxed),
        }));
        update(words, &updates);
        // Pairs with the driver's load: it sees the table.
        state.store(DONE, Release);
    }
}
