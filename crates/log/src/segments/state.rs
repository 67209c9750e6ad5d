//! The life of a segment, and which party has it.
//!
//! A segment goes through five states, in this order and never back. Each row is one method of
//! [`Life`]; it asserts that the state before is one of those in its first column.
//!
//! ```text
//! before          │ after            │ method       │ when
//! ────────────────┼──────────────────┼──────────────┼────────────────────────────────────────
//! -               │ Open             │ new          │ a head, side segment or survivor is opened
//! Open            │ Closed           │ close        │ nothing more is appended
//! Closed          │ Durable          │ make_durable │ every replica of a side segment has all of
//!                 │                  │              │ it (heads stay Closed: the log's durable
//!                 │                  │              │ position says how far they are)
//! Closed, Durable │ Leaving(Dropped) │ leave        │ the next digest does not list it: an
//!                 │                  │              │ emergency head, or a side log given up
//! Closed, Durable │ Leaving(Cleaned) │ leave        │ the same, once a combined pass has moved
//!                 │                  │              │ what lives
//! Leaving(why)    │ Freed(why)       │ free         │ a digest without it is durable (LOG-4); its
//!                 │                  │              │ memory is used again later (LOG-5)
//! ```
//!
//! Which party has a segment is another question, since a cleaner may read what replication copies.
//! Each row is one method of [`Uses`].
//!
//! ```text
//! before               │ after        │ method        │ when
//! ─────────────────────┼──────────────┼───────────────┼───────────────────────────────────────
//! Free                 │ Scanning     │ claim         │ a combined pass chooses the segment
//! Free, bytes not held │ Compacting   │ claim         │ a compaction chooses it
//! Scanning, Compacting │ Free         │ end_pass      │ the pass is over, or goes on without it
//! Free, SideLog        │ SideLog      │ hold          │ a side log joins the log
//! SideLog              │ Free         │ release       │ it is clear that the side log stays
//! any but Compacting   │ + bytes held │ hold_bytes    │ replication copies it out in pieces
//! bytes held           │ - bytes held │ release_bytes │ every replica is there and closed
//! ```
//!
//! A segment of a replicated log is born with its bytes held.

use core::sync::atomic::{AtomicU8, Ordering};

/// Why a segment leaves the log.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Departure {
    /// Nothing in it is needed.
    Dropped,
    /// Every live entry was moved elsewhere: nothing may count as live when it is freed (CLEAN-7).
    Cleaned,
}

/// Where a segment stands in its life. See the module.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum SegmentState {
    /// Its one writer appends to it.
    Open,
    /// Nothing more is appended.
    Closed,
    /// A side segment of which every replica has all.
    Durable,
    /// The next digest does not list it.
    Leaving(Departure),
    /// It is gone from disk. Its memory stays as long as a guard may see it.
    Freed(Departure),
}

impl SegmentState {
    const ALL: [Self; 7] = [
        Self::Open,
        Self::Closed,
        Self::Durable,
        Self::Leaving(Departure::Dropped),
        Self::Leaving(Departure::Cleaned),
        Self::Freed(Departure::Dropped),
        Self::Freed(Departure::Cleaned),
    ];

    /// Whether nothing more is appended.
    pub(crate) const fn is_closed(self) -> bool {
        match self {
            Self::Open => false,
            Self::Closed | Self::Durable | Self::Leaving(_) | Self::Freed(_) => true,
        }
    }

    /// Whether replication has said that all of it is on all replicas; asked of side segments in
    /// the log. A segment that left the log had become durable before it joined it.
    pub(crate) const fn is_durable(self) -> bool {
        match self {
            Self::Open | Self::Closed => false,
            Self::Durable | Self::Leaving(_) | Self::Freed(_) => true,
        }
    }

    /// Whether the next digest does not list it.
    pub(crate) const fn is_leaving(self) -> bool {
        match self {
            Self::Open | Self::Closed | Self::Durable => false,
            Self::Leaving(_) | Self::Freed(_) => true,
        }
    }

    /// Whether it is gone from disk.
    pub(crate) const fn is_freed(self) -> bool {
        match self {
            Self::Open | Self::Closed | Self::Durable | Self::Leaving(_) => false,
            Self::Freed(_) => true,
        }
    }

    const fn code(self) -> u8 {
        match self {
            Self::Open => 0,
            Self::Closed => 1,
            Self::Durable => 2,
            Self::Leaving(Departure::Dropped) => 3,
            Self::Leaving(Departure::Cleaned) => 4,
            Self::Freed(Departure::Dropped) => 5,
            Self::Freed(Departure::Cleaned) => 6,
        }
    }
}

impl core::fmt::Display for SegmentState {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str(match self {
            Self::Open => "open",
            Self::Closed => "closed",
            Self::Durable => "durable",
            Self::Leaving(Departure::Dropped) => "leaving",
            Self::Leaving(Departure::Cleaned) => "leaving, cleaned",
            Self::Freed(Departure::Dropped) => "freed",
            Self::Freed(Departure::Cleaned) => "freed, cleaned",
        })
    }
}

/// The state of a segment, in one atomic.
///
/// All accesses are `SeqCst`. A segment is freed before its reclaim epoch is retired, and a reader
/// asks under a guard. A reader that does not see `Freed` took its guard before, so the memory
/// stays while it reads. A thread that sees a state sees all that was written before the segment
/// came to it.
pub(crate) struct Life(AtomicU8);

impl Life {
    pub(crate) fn new() -> Self {
        Self(AtomicU8::new(SegmentState::Open.code()))
    }

    pub(crate) fn get(&self) -> SegmentState {
        SegmentState::ALL[usize::from(self.0.load(Ordering::SeqCst))]
    }

    /// Gives the state before; `Err` with it, and nothing has changed, where `next` names none.
    fn step(
        &self,
        next: impl Fn(SegmentState) -> Option<SegmentState>,
    ) -> Result<SegmentState, SegmentState> {
        let of = |code: u8| SegmentState::ALL[usize::from(code)];
        let changed = self
            .0
            .fetch_update(Ordering::SeqCst, Ordering::SeqCst, |code| {
                next(of(code)).map(SegmentState::code)
            });
        changed.map(of).map_err(of)
    }

    /// Nothing more is appended.
    pub(crate) fn close(&self) {
        let before = self.step(|now| match now {
            SegmentState::Open => Some(SegmentState::Closed),
            SegmentState::Closed
            | SegmentState::Durable
            | SegmentState::Leaving(_)
            | SegmentState::Freed(_) => None,
        });
        assert!(
            before.is_ok(),
            "LOG-2: a segment is closed twice: {before:?}"
        );
    }

    /// All replicas of a closed side segment have all of it. Replication may find that out when the
    /// segment has left already: then nothing changes.
    pub(crate) fn make_durable(&self) {
        let before = self.step(|now| match now {
            SegmentState::Closed => Some(SegmentState::Durable),
            SegmentState::Open
            | SegmentState::Durable
            | SegmentState::Leaving(_)
            | SegmentState::Freed(_) => None,
        });
        assert!(
            before != Err(SegmentState::Open),
            "LOG-11: a segment became durable while open"
        );
    }

    /// The next digest does not list it.
    pub(crate) fn leave(&self, why: Departure) {
        let before = self.step(|now| match now {
            SegmentState::Closed | SegmentState::Durable => Some(SegmentState::Leaving(why)),
            SegmentState::Open | SegmentState::Leaving(_) | SegmentState::Freed(_) => None,
        });
        assert!(
            before.is_ok(),
            "LOG-4: a segment leaves the log that is {before:?}"
        );
    }

    /// It is gone from disk.
    pub(crate) fn free(&self) {
        let before = self.step(|now| match now {
            SegmentState::Leaving(why) => Some(SegmentState::Freed(why)),
            SegmentState::Open
            | SegmentState::Closed
            | SegmentState::Durable
            | SegmentState::Freed(_) => None,
        });
        assert!(
            before.is_ok(),
            "LOG-4: a segment is freed that is {before:?}, although a digest may list it"
        );
    }
}

/// Which party has a segment for itself. See the module.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Use {
    /// None.
    Free,
    /// A combined pass, which reads it.
    Scanning,
    /// A compaction, which will exchange its bytes.
    Compacting,
    /// A side log that may have to be taken back as a whole: cleaners leave it alone.
    SideLog,
}

/// The use that a pass of a cleaner has for a segment.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Claim {
    /// A combined pass, which leaves the bytes as they are.
    Scan,
    /// A compaction.
    Compact,
}

/// The bits of [`Uses`] that hold the [`Use`].
const USE: u8 = 3;
/// Replication copies the bytes out, and needs them as they are.
const BYTES_HELD: u8 = 4;

impl Use {
    const ALL: [Self; 4] = [Self::Free, Self::Scanning, Self::Compacting, Self::SideLog];

    const fn of(bits: u8) -> Self {
        Self::ALL[(bits & USE) as usize]
    }

    const fn code(self) -> u8 {
        match self {
            Self::Free => 0,
            Self::Scanning => 1,
            Self::Compacting => 2,
            Self::SideLog => 3,
        }
    }
}

/// Which parties have a segment: one exclusive [`Use`], and replication beside it.
pub(crate) struct Uses(AtomicU8);

impl Uses {
    pub(crate) fn new(bytes_held: bool) -> Self {
        Self(AtomicU8::new(match bytes_held {
            true => BYTES_HELD,
            false => 0,
        }))
    }

    /// The exclusive use.
    pub(crate) fn get(&self) -> Use {
        Use::of(self.0.load(Ordering::Acquire))
    }

    /// Whether replication needs the bytes as they are.
    pub(crate) fn are_bytes_held(&self) -> bool {
        self.0.load(Ordering::Acquire) & BYTES_HELD != 0
    }

    /// Acquire and release: a party that takes a segment sees what the one before did to it.
    fn step(&self, next: impl Fn(Use, bool) -> Option<(Use, bool)>) -> Result<Use, Use> {
        let changed = self
            .0
            .fetch_update(Ordering::AcqRel, Ordering::Acquire, |bits| {
                let (now, held) = next(Use::of(bits), bits & BYTES_HELD != 0)?;
                Some(now.code() | if held { BYTES_HELD } else { 0 })
            });
        changed.map(Use::of).map_err(Use::of)
    }

    fn claimed(claim: Claim, now: Use, held: bool) -> Option<Use> {
        match (now, claim) {
            (Use::Free, Claim::Scan) => Some(Use::Scanning),
            (Use::Free, Claim::Compact) => (!held).then_some(Use::Compacting),
            (Use::Scanning | Use::Compacting | Use::SideLog, _) => None,
        }
    }

    pub(crate) fn can_be_claimed(&self, claim: Claim) -> bool {
        Self::claimed(claim, self.get(), self.are_bytes_held()).is_some()
    }

    /// Takes the segment for a pass of a cleaner, which others then leave alone.
    pub(crate) fn claim(&self, claim: Claim) -> bool {
        self.step(|now, held| Some((Self::claimed(claim, now, held)?, held)))
            .is_ok()
    }

    /// The pass is over, or goes on without the segment.
    pub(crate) fn end_pass(&self) {
        let before = self.step(|now, held| match now {
            Use::Scanning | Use::Compacting => Some((Use::Free, held)),
            Use::Free | Use::SideLog => None,
        });
        assert!(
            before.is_ok(),
            "CLEAN-1: a pass ends that does not have its segment: {before:?}"
        );
    }

    /// Cleaners must leave it alone.
    pub(crate) fn hold(&self) {
        let before = self.step(|now, held| match now {
            Use::Free | Use::SideLog => Some((Use::SideLog, held)),
            Use::Scanning | Use::Compacting => None,
        });
        assert!(
            before.is_ok(),
            "LOG-11: a cleaner has a segment that is not in the log yet: {before:?}"
        );
    }

    /// Cleaners may have it again. Nothing changes where no side log holds it.
    pub(crate) fn release(&self) {
        let _was_not_held = self.step(|now, held| match now {
            Use::SideLog => Some((Use::Free, held)),
            Use::Free | Use::Scanning | Use::Compacting => None,
        });
    }

    /// Keeps the bytes as they are; false while they are being exchanged.
    pub(crate) fn hold_bytes(&self) -> bool {
        self.step(|now, _| match now {
            Use::Free | Use::Scanning | Use::SideLog => Some((now, true)),
            Use::Compacting => None,
        })
        .is_ok()
    }

    /// The bytes may be exchanged.
    pub(crate) fn release_bytes(&self) {
        let _always = self.step(|now, _| Some((now, false)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn states_come_one_after_the_other_and_are_told_apart() {
        let life = Life::new();
        let mut seen = vec![life.get()];
        let steps: [fn(&Life); 4] = [
            Life::close,
            Life::make_durable,
            |life| life.leave(Departure::Cleaned),
            Life::free,
        ];
        for step in steps {
            step(&life);
            seen.push(life.get());
        }
        assert_eq!(
            seen,
            [
                SegmentState::Open,
                SegmentState::Closed,
                SegmentState::Durable,
                SegmentState::Leaving(Departure::Cleaned),
                SegmentState::Freed(Departure::Cleaned),
            ]
        );
        life.make_durable();
        assert_eq!(Some(&life.get()), seen.last(), "replication comes late");
        for (code, state) in (0..).zip(SegmentState::ALL) {
            assert_eq!(state.code(), code);
        }
    }

    #[test]
    fn steps_from_other_states_are_refused() {
        let refused = |before: &[fn(&Life)], step: fn(&Life)| {
            let life = Life::new();
            before.iter().for_each(|earlier| earlier(&life));
            std::panic::catch_unwind(core::panic::AssertUnwindSafe(|| step(&life))).is_err()
        };
        let leave: fn(&Life) = |life| life.leave(Departure::Dropped);
        assert!(refused(&[], Life::make_durable));
        assert!(refused(&[], leave) && refused(&[], Life::free));
        assert!(refused(&[Life::close], Life::close));
        assert!(refused(&[Life::close], Life::free));
        assert!(refused(&[Life::close, leave], leave));
        assert!(refused(&[Life::close, leave, Life::free], Life::free));
        assert!(!refused(&[Life::close, leave], Life::free));
    }

    #[test]
    fn a_compaction_and_replication_exclude_each_other() {
        let uses = Uses::new(true);
        assert!(!uses.can_be_claimed(Claim::Compact) && !uses.claim(Claim::Compact));
        assert!(uses.claim(Claim::Scan) && uses.hold_bytes());
        assert!(!uses.claim(Claim::Scan), "another pass has it");
        uses.end_pass();
        uses.release_bytes();
        assert!(uses.claim(Claim::Compact) && !uses.hold_bytes());
        uses.end_pass();
        uses.hold();
        assert!(!uses.claim(Claim::Scan) && uses.hold_bytes());
        uses.release();
        assert!(uses.are_bytes_held() && uses.claim(Claim::Scan));
        uses.release();
        assert_eq!(uses.get(), Use::Scanning, "no side log held it");
    }
}
