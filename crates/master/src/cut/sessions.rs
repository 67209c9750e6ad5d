//! The session of a backup, and its holds.

use super::{HOLD_MAX, HOLD_NOTES_MAX, LEASE};
use crate::migrate::ChangeNotes;
use pluvio_env::Moment;
use pluvio_units::{LogId, LogPosition, TableId};
use pluvio_wire::{ChangedObject, Cut, CutStep, FatalKind, Refusal, RetryReason, TrackedRange};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// When another backup may ask again.
const OTHER_RETRY: Duration = Duration::from_secs(1);
/// When to ask again for a hold that cannot begin.
const HOLD_RETRY: Duration = Duration::from_millis(5);

/// How far a hold is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Stage {
    /// Operations that had begun end, locks go.
    Draining,
    /// Nothing changes.
    Held,
    /// Changes are taken again.
    Over(EndOfHold),
}

/// How a hold ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct EndOfHold {
    /// No change was taken until the backup asked (CUT-3).
    pub(super) lasted: bool,
    /// How long it was, in microseconds.
    pub(super) us: u64,
}

/// One hold.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct HoldName {
    /// The session's name here.
    pub(super) known_as: u64,
    /// The backup's number for the hold: later ones have higher numbers.
    pub(super) number: u64,
}

/// Changes of tracked tablets are refused.
pub(super) struct Hold {
    pub(super) number: u64,
    pub(super) began: Moment,
    pub(super) until: Moment,
    pub(super) stage: Stage,
    /// What is held.
    pub(super) tracked: Vec<TrackedRange>,
    /// The noted objects, as they are while they are held.
    pub(super) copies: Vec<ChangedObject>,
    /// Where the logs end.
    pub(super) ends: Vec<(LogId, LogPosition)>,
}

/// A backup that asks.
pub(super) struct Session {
    caller: u64,
    /// Its name here, below all its tracks.
    pub(super) known_as: u64,
    lease: Moment,
    pub(super) notes: ChangeNotes,
    pub(super) hold: Option<Hold>,
}

#[derive(Default)]
pub(super) struct Inner {
    pub(super) session: Option<Session>,
    /// The last name or track that was given.
    last: u64,
}

impl Inner {
    pub(super) fn next_number(&mut self) -> u64 {
        self.last += 1;
        self.last
    }

    /// The session with this name.
    ///
    /// # Errors
    /// It is gone.
    pub(super) fn session(&mut self, known_as: u64) -> Result<&mut Session, Refusal> {
        let session = self.session.as_mut();
        session.filter(|s| s.known_as == known_as).ok_or_else(lost)
    }

    /// The hold with this name.
    ///
    /// # Errors
    /// Its session is gone, or had a later hold.
    pub(super) fn hold(&mut self, name: HoldName) -> Result<&mut Hold, Refusal> {
        let hold = self.session(name.known_as)?.hold.as_mut();
        hold.filter(|hold| hold.number == name.number)
            .ok_or_else(late)
    }
}

/// See the module.
#[derive(Default)]
pub(crate) struct Cuts {
    inner: Mutex<Inner>,
    /// Until when changes of held tablets are refused, in nanoseconds of this process's clock.
    until: AtomicU64,
    holds: AtomicU64,
    held_us: AtomicU64,
}

/// Nothing is known of the session any more.
pub(super) fn lost() -> Refusal {
    let message = "this server does not know the backup any more";
    Refusal::fatal(FatalKind::Stale, message)
}

/// A request about another hold than the last.
fn late() -> Refusal {
    Refusal::retry(HOLD_RETRY, RetryReason::InProgress)
}

fn nanos(moment: Moment) -> u64 {
    u64::try_from(moment.0.as_nanos()).unwrap_or(u64::MAX)
}

impl Cuts {
    pub(super) fn inner(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether changes of held tablets are refused now.
    #[inline]
    pub(super) fn holds(&self, now: Duration) -> bool {
        nanos(Moment(now)) < self.until.load(Ordering::Relaxed)
    }

    pub(super) fn held(&self) -> (u64, Duration) {
        let us = self.held_us.load(Ordering::Relaxed);
        let holds = self.holds.load(Ordering::Relaxed);
        (holds, Duration::from_micros(us))
    }

    /// Notes a change that has taken effect (CUT-1).
    pub(super) fn note(&self, table: TableId, track: u64, key: &[u8]) {
        let mut inner = self.inner();
        let Some(session) = inner.session.as_mut().filter(|s| s.known_as < track) else {
            return;
        };
        if session.notes.is_full() {
            let lost = inner.session.take();
            drop(inner);
            tracing::warn!("a backup does not ask for changes as fast as they come, and is lost");
            // Its many notes are given back while nobody waits for the lock.
            drop(lost);
            return;
        }
        let mut place = Vec::with_capacity(size_of::<u64>() + key.len());
        place.extend_from_slice(&table.0.to_le_bytes());
        place.extend_from_slice(key);
        session.notes.add(&place, None);
    }

    /// The name of the caller's session, which lives on. The first step of one begins it.
    ///
    /// # Errors
    /// `Retry` while there is another backup's. `Stale` when it is gone.
    pub(super) fn enter(&self, request: &Cut, now: Moment) -> Result<u64, Refusal> {
        let mut inner = self.inner();
        if inner.session.as_ref().is_some_and(|s| s.lease <= now) {
            inner.session = None;
        }
        match &mut inner.session {
            Some(known) if known.caller == request.session => {
                if ![0, known.known_as].contains(&request.known_as) {
                    return Err(lost());
                }
                known.lease = now + LEASE;
                return Ok(known.known_as);
            }
            Some(_) if request.known_as == 0 => {
                return Err(Refusal::retry(OTHER_RETRY, RetryReason::OtherBackup));
            }
            Some(_) => return Err(lost()),
            None => {}
        }
        let begins = request.known_as == 0 && matches!(request.step, CutStep::Track { .. });
        if !begins {
            return Err(lost());
        }
        let known_as = inner.next_number();
        inner.session = Some(Session {
            caller: request.session,
            known_as,
            lease: now + LEASE,
            notes: ChangeNotes::default(),
            hold: None,
        });
        Ok(known_as)
    }

    /// Lets a hold begin: changes are refused from now on wherever the map says "held".
    ///
    /// # Errors
    /// `Retry` while too much is noted. The session is gone, or had a later hold.
    pub(super) fn begin_hold(
        &self,
        inner: &mut Inner,
        name: HoldName,
        limit: Duration,
        now: Moment,
    ) -> Result<Moment, Refusal> {
        let session = inner.session(name.known_as)?;
        if session
            .hold
            .as_ref()
            .is_some_and(|h| h.number >= name.number)
        {
            return Err(late());
        }
        if session.notes.len() > HOLD_NOTES_MAX {
            return Err(Refusal::retry(HOLD_RETRY, RetryReason::Busy));
        }
        let until = now + limit.min(HOLD_MAX);
        session.hold = Some(Hold {
            number: name.number,
            began: now,
            until,
            stage: Stage::Draining,
            tracked: Vec::new(),
            copies: Vec::new(),
            ends: Vec::new(),
        });
        // Before the map says so: an operation that sees the new map sees this.
        self.until.store(nanos(until), Ordering::Relaxed);
        Ok(until)
    }

    /// Ends a hold, unless it has ended before. It has `lasted` if the caller says so and it was
    /// not over by itself. Gives how it ended.
    ///
    /// # Errors
    /// It is another one by now.
    pub(super) fn end_hold(
        &self,
        inner: &mut Inner,
        name: HoldName,
        lasted: bool,
        now: Moment,
    ) -> Result<EndOfHold, Refusal> {
        let hold = inner.hold(name)?;
        if let Stage::Over(end) = hold.stage {
            return Ok(end);
        }
        let lasted = lasted && hold.stage == Stage::Held && now < hold.until;
        let end = now.min(hold.until);
        let us = u64::try_from(end.since(hold.began).as_micros()).unwrap_or(u64::MAX);
        let ended = EndOfHold { lasted, us };
        hold.stage = Stage::Over(ended);
        if !lasted {
            hold.copies = Vec::new();
        }
        self.until.store(0, Ordering::Relaxed);
        self.holds.fetch_add(1, Ordering::Relaxed);
        self.held_us.fetch_add(us, Ordering::Relaxed);
        Ok(ended)
    }

    /// Forgets the session, if it is this one; without a name: if its time is over. Gives whether
    /// one is left.
    pub(super) fn forget(&self, known_as: Option<u64>, now: Moment) -> bool {
        let mut inner = self.inner();
        let ends = inner.session.as_ref().is_some_and(|session| {
            known_as.map_or(session.lease <= now, |name| session.known_as == name)
        });
        if ends {
            inner.session = None;
        }
        inner.session.is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::migrate::NOTES_MAX;
    use pluvio_units::KeyHash;

    fn at(ms: u64) -> Moment {
        Moment(Duration::from_millis(ms))
    }

    fn asks(session: u64, known_as: u64, begins: bool) -> Cut {
        let (table, hash) = (TableId(1), KeyHash(7));
        Cut {
            session,
            known_as,
            step: match begins {
                true => CutStep::Track { table, hash },
                false => CutStep::Changes(0),
            },
        }
    }

    // shows: CUT-5
    #[test]
    fn a_session_lives_as_long_as_its_backup_asks() {
        let cuts = Cuts::default();
        assert!(
            cuts.enter(&asks(5, 0, false), at(0)).is_err(),
            "it begins with a tablet"
        );
        let name = cuts.enter(&asks(5, 0, true), at(0)).unwrap();
        assert_eq!(
            cuts.enter(&asks(5, 0, true), at(1)),
            Ok(name),
            "its answer was lost"
        );
        assert_eq!(cuts.enter(&asks(5, name, false), at(20_000)), Ok(name));
        let other = cuts.enter(&asks(6, 0, true), at(49_999)).unwrap_err();
        assert!(matches!(other, Refusal::Retry { .. }));
        assert!(cuts.forget(None, at(49_999)));
        let next = cuts.enter(&asks(6, 0, true), at(50_000)).unwrap();
        assert!(next > name);
        let late = cuts.enter(&asks(5, name, false), at(50_001)).unwrap_err();
        assert_eq!(late.fatal_kind(), Some(FatalKind::Stale));
        assert!(!cuts.forget(Some(next), at(50_002)));
    }

    // shows: CUT-3, CUT-5
    #[test]
    fn a_hold_ends_by_itself_and_is_not_said_to_have_lasted() {
        let cuts = Cuts::default();
        let known_as = cuts.enter(&asks(5, 0, true), at(0)).unwrap();
        let mut inner = cuts.inner();
        let name = |number| HoldName { known_as, number };
        let begin = |inner: &mut Inner, number, ms| {
            let limit = Duration::from_millis(20);
            cuts.begin_hold(inner, name(number), limit, at(ms))
        };
        let end = |inner: &mut Inner, number, ms| {
            let ended = cuts.end_hold(inner, name(number), true, at(ms));
            ended.map(|end| (end.lasted, end.us))
        };
        assert_eq!(begin(&mut inner, 1, 100), Ok(at(120)));
        assert!(cuts.holds(at(119).0) && !cuts.holds(at(120).0));
        assert_eq!(
            end(&mut inner, 1, 105).unwrap(),
            (false, 5000),
            "it was not held yet"
        );
        assert!(begin(&mut inner, 1, 106).is_err(), "it came late");
        begin(&mut inner, 2, 200).unwrap();
        inner.hold(name(2)).unwrap().stage = Stage::Held;
        assert_eq!(end(&mut inner, 2, 220).unwrap(), (false, 20_000));
        begin(&mut inner, 3, 300).unwrap();
        inner.hold(name(3)).unwrap().stage = Stage::Held;
        assert_eq!(end(&mut inner, 3, 319).unwrap(), (true, 19_000));
        assert_eq!(
            end(&mut inner, 3, 500).unwrap(),
            (true, 19_000),
            "asked again"
        );
        assert!(!cuts.holds(at(319).0) && end(&mut inner, 2, 501).is_err());
        assert_eq!(cuts.held(), (3, Duration::from_millis(44)));
    }

    // shows: CUT-7
    #[test]
    fn a_backup_that_does_not_ask_for_changes_is_lost() {
        let cuts = Cuts::default();
        let name = cuts.enter(&asks(5, 0, true), at(0)).unwrap();
        cuts.note(TableId(1), name, b"of an earlier session");
        for n in 0..NOTES_MAX as u64 {
            cuts.note(TableId(1), name + 1, &n.to_le_bytes());
        }
        assert_eq!(cuts.inner().session(name).unwrap().notes.len(), NOTES_MAX);
        cuts.note(TableId(1), name + 1, b"one more");
        let lost = cuts.enter(&asks(5, name, false), at(1)).unwrap_err();
        assert_eq!(lost.fatal_kind(), Some(FatalKind::Stale));
    }
}
