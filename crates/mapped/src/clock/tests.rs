//! Tests of the bound: with the machine's clock and counter, and with made ones that fail.

use super::*;
use core::sync::atomic::AtomicU64;

const MS: u64 = 1_000_000;

/// A machine whose time is made.
struct Made {
    /// True time in nanoseconds.
    now: u64,
    /// The clock, which the system may let run faster or slower by a tenth.
    clock: u64,
    /// In tenths.
    pace: u64,
    /// Ticks, at the pace of the next field.
    ticks: u64,
    ticks_a_us: u64,
    /// Drawn from.
    random: u64,
    /// Longest time that a thread loses its processor for before a look.
    lost_max: u64,
}

impl Made {
    fn new(seed: u64) -> Self {
        Self {
            now: 0,
            clock: 5_000 * MS,
            pace: 10,
            ticks: seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 8,
            ticks_a_us: 1_000,
            random: seed,
            lost_max: 0,
        }
    }

    fn below(&mut self, end: u64) -> u64 {
        self.random = self
            .random
            .wrapping_mul(0xd134_2543_de82_ef95)
            .wrapping_add(1);
        (self.random >> 20) % end.max(1)
    }

    fn pass(&mut self, ns: u64) {
        self.now += ns;
        self.clock += ns * self.pace / 10;
        self.ticks += ns * self.ticks_a_us / 1_000;
    }

    fn lose_processor(&mut self) {
        let lost = self.below(self.lost_max + 1);
        self.pass(lost);
    }
}

impl Times for Made {
    fn ticks(&mut self, _: TickCounter) -> u64 {
        self.lose_processor();
        self.ticks
    }

    fn clock_ns(&mut self) -> u64 {
        self.lose_processor();
        self.clock
    }
}

/// One that trusts the counter; `None` where the processor has none.
fn trusting() -> Option<Trust> {
    let trust = Trust::unknown();
    trust.look(Some("tsc\n"));
    if trust.counter().is_none() {
        println!("skipped: no steady counter");
    }
    trust.counter().is_some().then_some(trust)
}

// shows: MAP-3
#[test]
fn the_bound_holds_for_clocks_of_any_pace_and_threads_that_lose_their_processor() {
    for seed in 1..=200 {
        let Some(trust) = trusting() else { return };
        let mut made = Made::new(seed);
        made.ticks_a_us = 250 + made.below(5_000);
        made.lost_max = [0, 1_000, MS, 3_000 * MS][seed as usize % 4];
        let (mut answer, mut asked) = (Answer::NONE, 0);
        for _look in 0..2_000 {
            made.pace = 9 + made.below(3);
            let step = [300, 50_000, 20 * MS][made.below(3) as usize];
            let step = made.below(step);
            made.pass(step);
            // The look at the counter, which may come before what the bound is for.
            let known = answer.latest_ns(made.ticks);
            let early = made.below(MS / 2);
            let at_look = made.clock;
            match known {
                Some(latest) => {
                    made.pass(early);
                    assert!(made.clock <= latest, "seed {seed}: too early");
                    assert!(latest <= at_look + AGE_NS, "seed {seed}: too late");
                }
                None => {
                    asked += 1;
                    let latest = trust.ask(&mut answer, &mut made);
                    assert!((at_look..=made.clock).contains(&latest), "seed {seed}");
                }
            }
        }
        assert!(trust.counter().is_some(), "seed {seed}: trust is lost");
        // A thread that loses its processor for seconds has an old answer each time.
        let is_of_use = asked < 2_000;
        assert!(is_of_use || made.lost_max > MS, "seed {seed}: of no use");
    }
}

// shows: MAP-3
#[test]
fn the_bound_of_this_machine_is_between_two_looks_at_its_clock() {
    for trusted in [false, true] {
        if trusted {
            look_at_system();
        }
        for _look in 0..200_000 {
            let before = boottime_ns();
            let latest = latest_ns();
            let after = boottime_ns();
            assert!(before <= latest && latest <= after + AGE_NS);
        }
    }
}

/// A time that any thread has read is no later than what any other one takes for the latest.
// shows: MAP-3
#[test]
fn no_thread_is_behind_what_another_one_has_read() {
    look_at_system();
    let read = AtomicU64::new(0);
    std::thread::scope(|threads| {
        for _thread in 0..4 {
            threads.spawn(|| {
                for _look in 0..100_000 {
                    let before = read.load(Ordering::SeqCst);
                    assert!(before <= latest_ns());
                    read.fetch_max(boottime_ns(), Ordering::SeqCst);
                }
            });
        }
    });
}

#[test]
fn where_the_system_has_another_clock_each_read_asks_it() {
    for source in [
        None,
        Some("kvm-clock"),
        Some("hpet\n"),
        Some(""),
        Some("tsc-early"),
    ] {
        let trust = Trust::unknown();
        let mut made = Made::new(1);
        let mut answer = Answer::NONE;
        for _look in 0..3 {
            trust.look(source);
            made.pass(10);
            assert_eq!(trust.ask(&mut answer, &mut made), made.clock);
            assert!(answer.counter.is_none(), "{source:?}");
        }
    }
    // Before anybody has looked.
    let mut answer = Answer::NONE;
    let (trust, mut made) = (Trust::unknown(), Made::new(1));
    assert_eq!(trust.ask(&mut answer, &mut made), made.clock);
    assert!(answer.counter.is_none());
}

#[test]
fn a_system_that_leaves_the_counter_is_followed() {
    let Some(trust) = trusting() else { return };
    let (mut made, mut answer) = (Made::new(1), Answer::NONE);
    trust.ask(&mut answer, &mut made);
    assert!(answer.latest_ns(made.ticks).is_some());
    trust.look(Some("acpi_pm\n"));
    made.pass(2 * MS);
    assert_eq!(trust.ask(&mut answer, &mut made), made.clock);
    assert!(answer.counter.is_none());
    trust.look(Some("tsc\n"));
    assert!(trust.counter().is_none(), "not a second time");
}

/// As after a sleep of the machine, or its move to another one.
#[test]
fn a_jump_is_noticed_and_ends_the_use_of_the_counter() {
    type Jump = fn(&mut Made);
    let jumps: [(Jump, bool); 4] = [
        // The clock went on while the counter stood.
        (|made| made.clock += 3_600_000 * MS, false),
        // The counter began anew.
        (|made| made.ticks = 5, false),
        (|made| made.ticks -= 1 << 30, false),
        // A counter that is ahead makes threads ask earlier, and that is all.
        (|made| made.ticks += 1 << 40, true),
    ];
    for (at, (jump, is_harmless)) in jumps.into_iter().enumerate() {
        let Some(trust) = trusting() else { return };
        let (mut made, mut answer) = (Made::new(7), Answer::NONE);
        for _ask in 0..3 {
            made.pass(5 * MS);
            assert!(answer.latest_ns(made.ticks).is_none());
            trust.ask(&mut answer, &mut made);
        }
        jump(&mut made);
        made.pass(5 * MS);
        assert_eq!(answer.latest_ns(made.ticks), None, "jump {at}");
        assert_eq!(trust.ask(&mut answer, &mut made), made.clock, "jump {at}");
        assert_eq!(trust.counter().is_some(), is_harmless, "jump {at}");
        assert_eq!(answer.counter.is_some(), is_harmless, "jump {at}");
    }
}

#[test]
fn a_counter_that_is_too_slow_is_not_used_on() {
    let Some(trust) = trusting() else { return };
    let (mut made, mut answer) = (Made::new(7), Answer::NONE);
    made.ticks_a_us = 100;
    for _ask in 0..2 {
        trust.ask(&mut answer, &mut made);
        made.pass(100 * MS);
    }
    assert!(trust.counter().is_none());
}
