//! Random histories of a cluster of one object that is correct, or has one flaw.

use super::{READ, broken, found, wrote};
use crate::check::{Check, check_history};
use crate::history::{Action, Condition, Content, History, KeyId, KeyKind, Outcome};
use crate::random::Stream;
use core::time::Duration;

/// What is wrong with a cluster.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Flaw {
    None,
    /// Now and then it forgets the latest change.
    LosesWrites,
    /// Now and then a read gives what was there before.
    StaleReads,
    /// Now and then it executes a write again later.
    RepeatsWrites,
    /// Now and then it goes ahead although the condition does not hold.
    IgnoresRules,
    /// Now and then it rejects although the condition holds.
    RejectsForNothing,
}

/// One object and clients that use it at the same time; replies take their time, some are lost.
struct Fake {
    draw: Stream,
    flaw: Flaw,
    flawed: bool,
    history: History,
    now: Option<(u64, u64)>,
    before: Option<(u64, u64)>,
    version_last: u64,
    pending: Vec<Pending>,
    ids: u64,
}

struct Pending {
    begun: crate::history::Begun,
    action: Action,
    outcome: Option<Outcome>,
    given_up: bool,
}

impl Fake {
    fn new(seed: u64, flaw: Flaw) -> Self {
        let mut history = History::default();
        history.key("k", KeyKind::Register);
        Self {
            draw: Stream::new(seed, "fake"),
            flaw,
            flawed: false,
            history,
            now: None,
            before: None,
            version_last: 0,
            pending: Vec::new(),
            ids: 0,
        }
    }

    fn begin(&mut self) {
        self.ids += 1;
        let condition = (self.draw.below(3) == 0).then(|| self.condition());
        let action = match (self.draw.below(6), condition) {
            (0, _) | (1, None) => READ,
            (1, Some(condition)) => Action::ReadIf { condition },
            (2, condition) => Action::Delete { condition },
            _ => Action::Write {
                content: Content::Bytes(self.ids),
                condition,
            },
        };
        let client = self.pending.len() as u16;
        let begun = self
            .history
            .invoke(KeyId(0), client, action, Duration::ZERO);
        self.pending.push(Pending {
            begun,
            action,
            outcome: None,
            given_up: false,
        });
    }

    /// Mostly one version, or rules that say something of it.
    fn condition(&mut self) -> Condition {
        let version = self.version_last.saturating_sub(self.draw.below(2));
        match self.draw.below(2) {
            0 => Condition::version(version),
            _ => Condition::draw(&mut self.draw, version),
        }
    }

    fn change(&mut self, to: Option<(u64, u64)>) {
        self.before = self.now;
        self.now = to;
    }

    fn execute(&mut self, action: Action) -> Outcome {
        let version = self.now.map_or(0, |(version, _)| version);
        if self.flaw == Flaw::LosesWrites && self.draw.below(20) == 0 && self.before != self.now {
            self.now = self.before;
            self.flawed = true;
            return self.execute(READ);
        }
        if let Some(condition) = action.condition() {
            let rejects = self.flaw == Flaw::RejectsForNothing && self.draw.below(10) == 0;
            let ignores = self.flaw == Flaw::IgnoresRules && self.draw.below(10) == 0;
            let holds = condition.holds(version);
            self.flawed |= rejects && holds || ignores && !holds;
            if rejects || !holds && !ignores {
                return Outcome::Rejected { version };
            }
        }
        match action {
            Action::Read | Action::ReadIf { .. } => {
                let stale = self.flaw == Flaw::StaleReads
                    && self.draw.below(10) == 0
                    && self.before != self.now;
                self.flawed |= stale;
                let shown = if stale { self.before } else { self.now };
                shown.map_or(Outcome::Missing, |(version, id)| found(version, id))
            }
            Action::Write {
                content: Content::Bytes(id),
                ..
            } => {
                self.version_last += 1 + self.draw.below(2);
                self.change(Some((self.version_last, id)));
                wrote(self.version_last, version)
            }
            Action::Delete { .. } => {
                self.change(None);
                Outcome::Deleted { version }
            }
            Action::Write { .. } | Action::Add { .. } | Action::Mutate { .. } => {
                unreachable!("not asked for")
            }
        }
    }

    fn step(&mut self) {
        if self.pending.len() < 4 && self.draw.below(2) == 0 {
            return self.begin();
        }
        if self.pending.is_empty() {
            return;
        }
        let at = self.draw.below(self.pending.len() as u64) as usize;
        let Pending {
            begun,
            action,
            outcome,
            given_up,
        } = self.pending[at];
        if outcome.is_none() {
            if self.draw.below(12) == 0 && !given_up {
                self.pending[at].given_up = true;
                self.history
                    .finish(begun, Outcome::Unknown, 0, Duration::ZERO);
                return;
            }
            let is_read = action.is_read();
            let outcome = self.execute(action);
            let shown = matches!(outcome, Outcome::Found { .. } | Outcome::Missing);
            let matches = is_read == shown || matches!(outcome, Outcome::Rejected { .. });
            // The flaw that forgets answers as a read; nobody hears of that.
            if matches || is_read {
                self.pending[at].outcome = Some(outcome);
            }
            return;
        }
        let repeat = self.flaw == Flaw::RepeatsWrites && self.draw.below(6) == 0;
        self.pending.swap_remove(at);
        if !given_up {
            self.history
                .finish(begun, outcome.expect("it was executed"), 0, Duration::ZERO);
        }
        if repeat && matches!(outcome, Some(Outcome::Wrote { .. })) {
            self.execute(action);
            self.flawed |= self.now.map(|(v, _)| v) == Some(self.version_last);
        }
    }

    fn run(mut self) -> (History, bool) {
        for _ in 0..400 {
            self.step();
        }
        (self.history, self.flawed)
    }
}

impl Copy for Pending {}
impl Clone for Pending {
    fn clone(&self) -> Self {
        *self
    }
}

#[test]
fn correct_clusters_have_no_violations() {
    for seed in 0..150 {
        let (history, _) = Fake::new(seed, Flaw::None).run();
        let verdict = check_history(&history, 100_000);
        assert_eq!(verdict.violations, Vec::new(), "seed {seed}");
        assert_eq!(verdict.linearizable, 1, "seed {seed}");
    }
}

#[test]
fn clusters_that_lose_confuse_or_repeat_are_found_out() {
    for (flaw, check) in [
        (Flaw::LosesWrites, Check::AcknowledgedWriteIsReadable),
        (Flaw::StaleReads, Check::ReadsNeverGoBack),
        (Flaw::RepeatsWrites, Check::ExactlyOnce),
        (Flaw::IgnoresRules, Check::OneWinner),
        (Flaw::RejectsForNothing, Check::OneWinner),
    ] {
        let (mut flawed, mut found, mut named) = (0, 0, 0);
        for seed in 0..60 {
            let (history, is_flawed) = Fake::new(seed, flaw).run();
            let broken = broken(&history);
            assert!(is_flawed || broken.is_empty(), "seed {seed}: {broken:?}");
            flawed += u32::from(is_flawed);
            found += u32::from(broken.contains(&Check::Linearizable));
            named += u32::from(broken.contains(&check));
        }
        assert!(flawed > 40, "{flaw:?} happened in {flawed}");
        // Some flaws stay without a witness.
        assert!(found * 3 > flawed * 2, "{flaw:?}: {found} of {flawed}");
        assert!(named * 4 > flawed, "{flaw:?}: {named} of {flawed} by name");
    }
}
