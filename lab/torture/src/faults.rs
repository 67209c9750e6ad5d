//! What is done to a cluster, and when: a schedule that follows from the seed alone.
//!
//! - TORT-1: the schedule is a function of seed and kinds of faults. What the cluster makes of it
//!   is not: real processes have no seed.

use super::draw::Draw;
use serde::Serialize;
use std::collections::BTreeSet;
use std::fmt;
use std::str::FromStr;
use std::time::Duration;

/// One kind of fault.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Fault {
    /// A server gets SIGKILL, and is started again on its data after up to 6 s.
    Kill,
    /// A server gets SIGSTOP, and SIGCONT after up to 8 s: mostly after it was declared dead.
    Stop,
    /// The coordinator that leads, or any other one, gets SIGKILL or SIGSTOP.
    Coordinator,
    /// Ways between processes lose everything for up to 8 s.
    Cut,
    /// The disk of a server is full for up to 8 s.
    Disk,
    /// A bit flips in a frame of the one server whose disk is rotten.
    Flip,
    /// A server gets SIGTERM: its tablets move away, it ends, and is started again on its data. One
    /// of four is killed on the way.
    Leave,
    /// A tablet is cut in two, or goes to another server.
    Move,
    /// One of the two data directories of a server is gone for up to 15 s. It is there again when
    /// the server is started again, which gets SIGKILL for that.
    Device,
}

impl Fault {
    /// All kinds.
    pub const ALL: [Self; 9] = [
        Self::Kill,
        Self::Stop,
        Self::Coordinator,
        Self::Cut,
        Self::Disk,
        Self::Flip,
        Self::Leave,
        Self::Move,
        Self::Device,
    ];

    /// Its name, as in `--faults`.
    pub fn name(self) -> &'static str {
        match self {
            Self::Kill => "kill",
            Self::Stop => "stop",
            Self::Coordinator => "coordinator",
            Self::Cut => "cut",
            Self::Disk => "disk",
            Self::Flip => "flip",
            Self::Leave => "leave",
            Self::Move => "move",
            Self::Device => "device",
        }
    }

    /// How often it happens, beside the others.
    fn weight(self) -> u64 {
        match self {
            Self::Kill => 5,
            Self::Stop => 4,
            Self::Coordinator | Self::Disk | Self::Move | Self::Device => 2,
            Self::Cut => 4,
            Self::Flip | Self::Leave => 3,
        }
    }

    /// How long it lasts. Short ones are over before anybody notices; a server that is silent for a
    /// second is declared dead.
    fn lasts(self, draw: &mut Draw) -> Duration {
        match self {
            Self::Kill if draw.percent(40) => draw.millis(0, 400),
            Self::Kill => draw.millis(1_500, 6_000),
            Self::Stop if draw.percent(30) => draw.millis(200, 900),
            Self::Stop => draw.millis(1_500, 8_000),
            Self::Coordinator => draw.millis(0, 4_000),
            Self::Cut if draw.percent(30) => draw.millis(200, 900),
            Self::Cut | Self::Disk => draw.millis(1_500, 8_000),
            // A server notices by itself within some seconds.
            Self::Device => draw.millis(3_000, 15_000),
            // Of those that are killed on the way: so long after SIGTERM.
            Self::Leave => draw.millis(20, 1_500),
            Self::Flip | Self::Move => Duration::ZERO,
        }
    }
}

/// The kinds of faults that a run has. Read from and shown as a list with commas; `all` and `none`
/// are lists too.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize)]
#[serde(transparent)]
pub struct Faults(BTreeSet<Fault>);

impl Faults {
    /// All kinds.
    pub fn all() -> Self {
        Self(Fault::ALL.into_iter().collect())
    }

    /// Whether this kind is among them.
    pub fn has(&self, fault: Fault) -> bool {
        self.0.contains(&fault)
    }

    /// Takes one away; whether it was there.
    pub fn remove(&mut self, fault: Fault) -> bool {
        self.0.remove(&fault)
    }
}

impl fmt::Display for Faults {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0.len() == Fault::ALL.len() {
            return f.write_str("all");
        }
        if self.0.is_empty() {
            return f.write_str("none");
        }
        let names: Vec<&str> = self.0.iter().map(|fault| fault.name()).collect();
        f.write_str(&names.join(","))
    }
}

impl FromStr for Faults {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let mut faults = Self::default();
        for name in text.split(',').map(str::trim) {
            match name {
                "all" => faults = Self::all(),
                "none" => {}
                _ => {
                    let found = Fault::ALL.into_iter().find(|fault| fault.name() == name);
                    let known = Fault::ALL.map(Fault::name).join(", ");
                    let unknown = || {
                        format!(
                            "{name:?} is not a fault: give all, none, or a list with commas of {known}"
                        )
                    };
                    faults.0.insert(found.ok_or_else(unknown)?);
                }
            }
        }
        Ok(faults)
    }
}

/// Something to do to the cluster.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Act {
    /// So long after the one before.
    pub after: Duration,
    /// What.
    pub fault: Fault,
    /// Names who is hit, among those who can be.
    pub victim: u64,
    /// How long it lasts.
    pub lasts: Duration,
    /// Which form it has.
    pub shape: u64,
    /// Whether it may happen while another fault lasts.
    pub joins: bool,
}

/// All that is to be done, one after the other.
#[derive(Clone, Debug)]
pub struct Schedule {
    faults: Vec<Fault>,
    draw: Draw,
}

impl Schedule {
    /// The schedule of the run with `seed`.
    pub fn new(seed: u64, faults: &Faults) -> Self {
        Self {
            faults: faults.0.iter().copied().collect(),
            draw: Draw::new(seed, "faults", 0),
        }
    }
}

impl Iterator for Schedule {
    type Item = Act;

    /// The next act; `None` when the run has no faults.
    fn next(&mut self) -> Option<Act> {
        let draw = &mut self.draw;
        let all: u64 = self.faults.iter().map(|fault| fault.weight()).sum();
        let mut at = draw.below(all);
        let fault = *self.faults.iter().find(|fault| {
            let hit = at < fault.weight();
            at = at.saturating_sub(fault.weight());
            hit
        })?;
        Some(Act {
            after: draw.millis(300, 4_000),
            fault,
            victim: draw.next(),
            lasts: fault.lasts(draw),
            shape: draw.next(),
            joins: draw.percent(35),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_are_read_as_they_are_shown() {
        for text in ["all", "none", "kill,coordinator"] {
            assert_eq!(text.parse::<Faults>().unwrap().to_string(), text);
        }
        let error = "kill,fire".parse::<Faults>().unwrap_err();
        assert!(
            error.contains("\"fire\"") && error.contains("stop"),
            "{error}"
        );
    }

    // shows: TORT-1
    #[test]
    fn a_seed_has_one_schedule_and_every_fault_is_in_it() {
        let acts = |seed| -> Vec<Act> { Schedule::new(seed, &Faults::all()).take(200).collect() };
        assert_eq!(acts(7), acts(7));
        assert_ne!(acts(7), acts(8));
        for fault in Fault::ALL {
            assert!(acts(7).iter().any(|act| act.fault == fault), "{fault:?}");
        }
        // `lab/pluvio-lab/tests/processes/torture.rs` relies on these, on every machine.
        for left_out in [
            &[][..],
            &[Fault::Cut],
            &[Fault::Disk],
            &[Fault::Cut, Fault::Disk],
        ] {
            let mut faults = Faults::all();
            assert!(left_out.iter().all(|fault| faults.remove(*fault)));
            let first: Vec<Act> = Schedule::new(2_010_396, &faults).take(2).collect();
            let kinds = [first[0].fault, first[1].fault];
            assert_eq!(kinds, [Fault::Kill, Fault::Stop], "{left_out:?}");
            assert!(first[1].joins && first[1].lasts > Duration::from_secs(2));
            assert!(first[0].after + first[1].after < Duration::from_secs(3));
        }
        let one = Schedule::new(7, &"stop".parse().unwrap());
        assert!(one.take(50).all(|act| act.fault == Fault::Stop));
        assert_eq!(Schedule::new(7, &Faults::default()).next(), None);
    }
}
