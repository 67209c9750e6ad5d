//! Objects that expire: those that are there too long, gone too early, back again, or told wrongly.

use super::broken;
use crate::check::{Check, check_history};
use crate::history::{Answer, Change, Clocks, History, KeyId, KeyKind, Request, Want};
use crate::random::Stream;
use bytes::Bytes;
use core::time::Duration;
use pluvio_mutation::{
    Current, Lifetime, Mutation, Now, Outcome, Output, TouchIf, Verdict, judge, look,
};
use pluvio_units::{Deadline, ObjectVersion, UnixMs};
use std::collections::BTreeSet;

/// What a right clock shows at the start.
const START: u64 = 1_000_000;

/// Clocks that are right within `bound`, and judge deadlines a second late at most, from time to
/// time.
fn clocks(bound: u64) -> Clocks {
    let second = |n: u64| (Duration::from_secs(n), START + n * 1_000 - bound);
    Clocks {
        start_ms: START,
        drift_ppm: 0,
        bounds: vec![(Duration::ZERO, bound, bound)],
        past: (1..1_000).map(second).collect(),
    }
}

fn at(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

fn put(text: &'static str, lifetime: Lifetime) -> Request {
    let Request::Mutate {
        condition,
        value_is,
        returns_old,
        change,
        ..
    } = Request::mutate(Change::Put(Bytes::from(text)))
    else {
        unreachable!("it is a mutation")
    };
    Request::Mutate {
        condition,
        value_is,
        returns_old,
        change,
        lifetime: Some(lifetime),
    }
}

fn touch(when: TouchIf, lifetime: Lifetime) -> Request {
    let Request::Mutate {
        condition,
        value_is,
        returns_old,
        ..
    } = put("", lifetime)
    else {
        unreachable!("it is a mutation")
    };
    Request::Mutate {
        condition,
        value_is,
        returns_old,
        change: Change::Touch(when),
        lifetime: Some(lifetime),
    }
}

fn written(version: u64, replaced: u64) -> Answer {
    let output = Output::Nothing;
    written_with(version, replaced, output)
}

fn written_with(version: u64, replaced: u64, output: Output) -> Answer {
    Answer::Given(Outcome::Written {
        version: ObjectVersion(version),
        replaced: ObjectVersion(replaced),
        output,
    })
}

fn told(version: u64, output: Output) -> Answer {
    Answer::Given(Outcome::Unchanged {
        version: ObjectVersion(version),
        output,
    })
}

fn deadline() -> Request {
    Request::Get {
        condition: Default::default(),
        want: Want::Deadline,
    }
}

/// A step, with when it begins and ends.
type Step = (u64, u64, Request, Answer);

fn reads(from: u64, version: u64, text: &'static str) -> Step {
    let output = Output::Bytes(Bytes::from(text));
    (from, from + 1, Request::read(), told(version, output))
}

fn absent(from: u64) -> Step {
    (from, from + 1, Request::read(), told(0, Output::Nothing))
}

fn until(ms: u64) -> Lifetime {
    Lifetime::Until(Deadline::new(START + ms).expect("it is not 0"))
}

fn history(steps: &[Step]) -> History {
    let mut history = History::default();
    let key = history.key("k", KeyKind::Volatile);
    for (from, to, request, answer) in steps {
        let begun = history.ask(key, 1, request.clone(), at(*from));
        history.answer(begun, answer.clone(), 0, at(*to));
    }
    history.set_clocks(clocks(100));
    history
}

fn found(steps: &[Step]) -> BTreeSet<Check> {
    broken(&history(steps))
}

fn wrong(also: &[Check]) -> BTreeSet<Check> {
    let also = also.iter().copied();
    also.chain([Check::Linearizable]).collect()
}

/// The mutant "reads ignore deadlines".
#[test]
fn what_is_there_after_its_deadline_is_found() {
    for lifetime in [Lifetime::For(2_000), until(3_000)] {
        let write = (1_000, 1_010, put("a", lifetime), written(1, 0));
        // It may be there, or not, until a look after the last possible deadline.
        for read in [reads(2_000, 1, "a"), reads(3_090, 1, "a"), absent(3_500)] {
            assert_eq!(found(&[write.clone(), read]), BTreeSet::new());
        }
        let late = found(&[write, reads(4_300, 1, "a")]);
        assert_eq!(late, wrong(&[Check::ExpiresInTime]));
    }
}

/// The mutant "lifetimes are too short", and a write that is lost.
#[test]
fn what_is_gone_before_its_deadline_is_found() {
    for lifetime in [Lifetime::For(2_000), until(3_000)] {
        let write = (1_000, 1_010, put("a", lifetime), written(1, 0));
        let early = found(&[write.clone(), absent(2_500)]);
        assert_eq!(early, wrong(&[Check::ExpiresInTime]));
        // A write that found nothing tells the same.
        let again = (2_500, 2_501, put("b", Lifetime::Endless), written(2, 0));
        assert_eq!(
            found(&[write.clone(), again]),
            wrong(&[Check::ExpiresInTime])
        );
        // A delete that may have happened explains it.
        let delete = Request::mutate(Change::Delete);
        let deleted = (1_500, 1_600, delete, Answer::Unknown);
        assert_eq!(found(&[write, deleted, absent(2_500)]), BTreeSet::new());
    }
    let endless = (1_000, 1_010, put("a", Lifetime::Endless), written(1, 0));
    let early = found(&[endless, absent(900_000)]);
    assert_eq!(early, wrong(&[Check::ExpiresInTime]));
}

/// The mutant "a new owner's clock begins with its wall clock, whatever the last owner judged by".
#[test]
fn what_expired_and_comes_back_is_found() {
    let write = (1_000, 1_010, put("a", Lifetime::For(2_000)), written(1, 0));
    let back = [write, absent(3_000), reads(3_010, 1, "a")];
    assert_eq!(found(&back), wrong(&[Check::DeletedStaysDeleted]));
    // What nobody saw as gone may be seen.
    assert_eq!(found(&[back[0].clone(), back[2].clone()]), BTreeSet::new());
}

/// The mutant "a dropped object leaves no version behind".
#[test]
fn versions_that_do_not_grow_over_an_expiry_are_found() {
    let write = (1_000, 1_010, put("a", Lifetime::For(500)), written(7, 0));
    let again = |version| {
        let lifetime = Lifetime::Endless;
        (2_000, 2_010, put("b", lifetime), written(version, 0))
    };
    assert_eq!(found(&[write.clone(), again(8)]), BTreeSet::new());
    let reused = found(&[write.clone(), again(7)]);
    assert!(reused.contains(&Check::VersionsGrow), "{reused:?}");
    let seen = found(&[write, absent(1_900), again(3)]);
    assert!(seen.contains(&Check::VersionsGrow), "{seen:?}");
}

/// The mutants "a put keeps the deadline" and "a touch changes nothing".
#[test]
fn a_change_of_a_deadline_that_has_no_effect_is_found() {
    let write = (1_000, 1_010, put("a", Lifetime::For(2_000)), written(1, 0));
    let done = Output::Integer(1);
    let persist = touch(TouchIf::Always, Lifetime::Endless);
    let changes = [
        (put("b", Lifetime::Endless), written(2, 1), "b"),
        (persist.clone(), written_with(2, 1, done.clone()), "a"),
    ];
    for (change, answer, text) in changes {
        let endless = (2_000, 2_010, change, answer);
        let steps = [write.clone(), endless, reads(9_000, 2, text)];
        assert_eq!(found(&steps), BTreeSet::new());
        let gone = found(&[steps[0].clone(), steps[1].clone(), absent(9_000)]);
        assert_eq!(gone, wrong(&[Check::ExpiresInTime]));
    }
    // It was told that nothing was there to be changed, or not to be changed so.
    let kept = |version| told(version, Output::Integer(0));
    for (request, answer, is_right) in [
        (persist.clone(), kept(1), false),
        (persist, kept(0), false),
        (touch(TouchIf::Endless, Lifetime::For(9)), kept(1), true),
        (touch(TouchIf::Bounded, Lifetime::For(9)), kept(1), false),
        (touch(TouchIf::Later, Lifetime::For(9)), kept(1), true),
        (touch(TouchIf::Later, Lifetime::For(9_000)), kept(1), false),
        (touch(TouchIf::Earlier, Lifetime::For(9)), kept(1), false),
    ] {
        let step = (2_000, 2_010, request, answer);
        let name = format!("{step:?}");
        assert_eq!(found(&[write.clone(), step]).is_empty(), is_right, "{name}");
    }
}

#[test]
fn a_deadline_that_is_told_wrongly_is_found() {
    let write = (1_000, 1_010, put("a", Lifetime::For(2_000)), written(1, 0));
    let tells = |number| {
        let answer = told(1, Output::Integer(number));
        (1_100, 1_101, deadline(), answer)
    };
    let start = i64::try_from(START).expect("it is small");
    assert_eq!(
        found(&[write.clone(), tells(start + 3_050)]),
        BTreeSet::new()
    );
    for number in [start + 3_200, start + 2_800, -1] {
        let steps = [write.clone(), tells(number)];
        assert_eq!(found(&steps), wrong(&[Check::ExpiresInTime]), "{number}");
    }
    let two = [write, tells(start + 3_050), tells(start + 3_060)];
    assert_eq!(found(&two), wrong(&[Check::ExpiresInTime]));
}

/// What is wrong with a cluster.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Flaw {
    None,
    /// Now and then a read shows what has expired.
    Ignores,
    /// Now and then the clock goes back, as with a new owner that knows of no horizon.
    GoesBack,
    /// Lifetimes are cut short.
    TooShort,
    /// Now and then a put keeps the deadline.
    Keeps,
}

/// One object of a cluster whose clock is ahead or behind, within bounds.
struct Fake {
    draw: Stream,
    flaw: Flaw,
    history: History,
    now: u64,
    judged: u64,
    object: Option<(u64, Bytes, Option<Deadline>)>,
    version_last: u64,
}

/// By how much the clock may be wrong.
const WRONG_MAX: u64 = 300;

impl Fake {
    fn new(seed: u64, flaw: Flaw) -> Self {
        let mut history = History::default();
        history.key("k", KeyKind::Volatile);
        Self {
            draw: Stream::new(seed, "fake"),
            flaw,
            history,
            now: 5_000,
            judged: 0,
            object: None,
            version_last: 0,
        }
    }

    fn lifetime(&mut self) -> Lifetime {
        let ms = self.draw.below(3_000);
        match self.draw.below(8) {
            0 => Lifetime::Endless,
            1 => Lifetime::Keep,
            2..=4 => until(self.now + ms),
            _ => Lifetime::For(ms),
        }
    }

    fn request(&mut self) -> Request {
        let lifetime = self.lifetime();
        let when = TouchIf::ALL[self.draw.below(6) as usize];
        match self.draw.below(10) {
            0..=2 => put("a", lifetime),
            3 => put("b", lifetime),
            4 => touch(when, lifetime),
            5 => Request::mutate(Change::Delete),
            6 => deadline(),
            _ => Request::read(),
        }
    }

    fn clock(&mut self) -> Now {
        let shown = START + self.now - WRONG_MAX + self.draw.below(2 * WRONG_MAX);
        let back = self.flaw == Flaw::GoesBack && self.draw.below(3) == 0;
        // Judged by an earlier time than what is shown.
        let judged = shown - self.draw.below(200);
        self.judged = if back {
            judged
        } else {
            self.judged.max(judged)
        };
        Now {
            judged: UnixMs(self.judged),
            shown: UnixMs(shown.max(self.judged)),
        }
    }

    fn execute(&mut self, request: &Request) -> Outcome {
        let mut now = self.clock();
        let ignores = self.flaw == Flaw::Ignores && self.draw.below(3) == 0;
        if ignores && request.is_read() {
            now.judged = UnixMs(0);
        }
        let object = self.object.clone();
        let current = object.as_ref().map(|(version, value, deadline)| Current {
            version: ObjectVersion(*version),
            value,
            deadline: *deadline,
        });
        if let Some(get) = request.get(b"") {
            return look(&get, current, now);
        }
        let mut mutation: Mutation<'_> = request.mutation(b"").expect("it is no read");
        if let (Flaw::TooShort, Lifetime::For(ms)) = (self.flaw, mutation.lifetime) {
            mutation.lifetime = Lifetime::For(ms / 2);
        }
        if self.flaw == Flaw::Keeps && self.draw.below(3) == 0 {
            mutation.lifetime = Lifetime::Keep;
        }
        let there = current.filter(|current| !current.is_gone(now));
        let replaced = there.map_or(ObjectVersion(0), |current| current.version);
        match judge(&mutation, current, now) {
            Verdict::Put(value, deadline, output) => {
                self.version_last += 1;
                let version = ObjectVersion(self.version_last);
                let value = Bytes::copy_from_slice(&value);
                self.object = Some((self.version_last, value, deadline));
                Outcome::Written {
                    version,
                    replaced,
                    output,
                }
            }
            Verdict::Delete(output) => {
                self.object = None;
                Outcome::Deleted {
                    version: replaced,
                    output,
                }
            }
            Verdict::Keep(outcome) => outcome,
        }
    }

    fn run(mut self) -> History {
        for _ in 0..150 {
            let request = self.request();
            let begun = self.history.ask(KeyId(0), 1, request.clone(), at(self.now));
            let from = self.now;
            self.now += self.draw.below(30);
            let lost = self.draw.below(12) == 0;
            let executed = !lost || self.draw.below(2) == 0;
            let outcome = executed.then(|| self.execute(&request));
            let answer = match outcome {
                Some(outcome) if !lost => Answer::Given(outcome),
                _ if request.is_read() => Answer::NotDone,
                _ => Answer::Unknown,
            };
            self.now = from.max(self.now) + self.draw.below(30);
            self.history.answer(begun, answer, 0, at(self.now));
            self.now += self.draw.below(700);
        }
        let mut clocks = clocks(WRONG_MAX);
        for (_, past) in &mut clocks.past {
            // The latest time that is surely judged by.
            *past -= 200;
        }
        self.history.set_clocks(clocks);
        self.history
    }
}

#[test]
fn correct_clusters_whose_objects_expire_have_no_violations() {
    for seed in 0..300 {
        let verdict = check_history(&Fake::new(seed, Flaw::None).run(), 100_000);
        assert_eq!(verdict.violations, Vec::new(), "seed {seed}");
        assert_eq!(verdict.linearizable, 1, "seed {seed}");
    }
}

#[test]
fn clusters_that_err_in_deadlines_are_found_out() {
    for (flaw, check) in [
        (Flaw::Ignores, Check::ExpiresInTime),
        (Flaw::GoesBack, Check::DeletedStaysDeleted),
        (Flaw::TooShort, Check::ExpiresInTime),
        (Flaw::Keeps, Check::ExpiresInTime),
    ] {
        let (mut found, mut named) = (0, 0);
        for seed in 0..120 {
            // Where there is no order, the search for one may be long.
            let verdict = check_history(&Fake::new(seed, flaw).run(), 10_000);
            let broken: BTreeSet<Check> = verdict.violations.iter().map(|v| v.check).collect();
            found += u32::from(broken.contains(&Check::Linearizable));
            named += u32::from(broken.contains(&check));
        }
        // Some flaws stay without a witness.
        assert!(found >= 15, "{flaw:?}: {found}");
        assert!(named >= 10, "{flaw:?}: {named} by name");
    }
}
