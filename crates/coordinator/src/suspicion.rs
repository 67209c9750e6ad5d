//! The sign that a ping gives of a server, and the verdict on several of them (DETECT-1, DETECT-2).
//! Pure, but for [`who_is_there`].

use crate::options::CoordinatorOptions;
use core::time::Duration;
use pluvio_env::{Address, Moment, Network};
use pluvio_units::ServerId;
use pluvio_wire::{Header, Ping, PingReply, RpcError};

/// Pings in the time of `dead_server_timeout`.
pub(super) const PINGS: u32 = 4;
/// Refused connections that prove a crash. One could be a full accept queue or a server that
/// just opens its port.
const REFUSALS: u32 = 2;

/// Hints that may begin checks at once, and again after a time without any: a rack of servers.
const HINTS_MAX: u32 = 64;
/// For so long a hint more may begin a check.
const HINT_PAUSE: Duration = Duration::from_millis(50);

/// Asks which server answers at an address; any life will do.
pub(crate) async fn who_is_there(
    network: &dyn Network,
    address: &str,
    limit: Duration,
) -> Result<PingReply, RpcError> {
    let ping = Ping { from: ServerId(0) };
    let address = Address::from(address);
    pluvio_wire::call(network, &address, Header::default(), &ping, limit).await
}

/// The sign that one ping gives.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Sign {
    /// It answered.
    Alive,
    /// Its port refused the connection, or another life or another cluster's server answered there.
    Gone,
    /// Nothing came back, or nothing that says which server answered.
    Silent,
}

/// The findings about a suspect so far. Pure, for tests.
#[derive(Debug)]
pub(crate) struct Suspicion {
    refusals: u32,
    silences: u32,
    /// When the silence began that counts.
    since: Moment,
    timeout: Duration,
}

/// What follows from a [`Suspicion`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Verdict {
    Alive,
    /// Ping again.
    Open,
    /// Silent for so long, which is enough if no other server was convicted for silence lately.
    Silent(Duration),
    /// Certainly gone.
    Gone,
}

impl Suspicion {
    pub(crate) fn new(now: Moment, timeout: Duration) -> Self {
        Self {
            refusals: 0,
            silences: 0,
            since: now,
            timeout,
        }
    }

    /// Takes in a silent ping, from `sent` to `now`, while no other server answered either: it may
    /// have been this process that was cut off. That time does not count, and pings are counted
    /// anew: the first answer after contact is back is no witness of what was before.
    pub(super) fn unwitnessed(&mut self, sent: Moment, now: Moment) -> Verdict {
        self.since = self.since + now.since(sent);
        self.silences = 0;
        Verdict::Open
    }

    /// Takes in one ping, from `sent` to `now`, that was limited to `limit`.
    pub(crate) fn ping(
        &mut self,
        sign: Sign,
        sent: Moment,
        now: Moment,
        limit: Duration,
    ) -> Verdict {
        match sign {
            Sign::Alive => return Verdict::Alive,
            Sign::Gone => {
                self.refusals += 1;
                if self.refusals >= REFUSALS {
                    return Verdict::Gone;
                }
            }
            Sign::Silent => {
                let took = now.since(sent);
                if took > 2 * limit {
                    // This process itself stood still: it cannot say which server was silent.
                    pluvio_units::mark("detect-coordinator-stood-still");
                    self.since = self.since + took;
                } else {
                    self.silences += 1;
                }
            }
        }
        let silent = now.since(self.since);
        if silent >= self.timeout && self.silences >= PINGS {
            Verdict::Silent(silent)
        } else {
            Verdict::Open
        }
    }
}

/// Hints that count, so that a flood of them costs a bounded number of checks (DETECT-3). Pure.
#[derive(Debug)]
pub(crate) struct Hints {
    left: u32,
    since: Moment,
}

impl Hints {
    pub(super) fn new(now: Moment) -> Self {
        Self {
            left: HINTS_MAX,
            since: now,
        }
    }

    /// Whether one more hint may begin a check at this time.
    pub(super) fn take(&mut self, now: Moment) -> bool {
        let more = now.since(self.since).as_millis() / HINT_PAUSE.as_millis();
        if more > 0 {
            let more = u32::try_from(more).unwrap_or(u32::MAX);
            self.left = self.left.saturating_add(more).min(HINTS_MAX);
            self.since = now;
        }
        let any = self.left > 0;
        self.left = self.left.saturating_sub(1);
        any
    }
}

/// Silent servers of one rack, as one event (DETECT-4). Pure.
///
/// `servers` has the rack of each server, and whether it is silent for long enough by itself. Says
/// whether the rack of a suspect is silent as a whole. Then it has several servers, and all of them
/// are silent. Other racks have more than half of all servers, most of which answer.
pub(crate) fn rack_is_silent<'a>(
    rack: &str,
    servers: impl Iterator<Item = (Option<&'a str>, bool)>,
) -> bool {
    let (mut inside, mut talks, mut outside, mut silent) = (0_usize, 0_usize, 0_usize, 0_usize);
    for (of, is_silent) in servers {
        match of == Some(rack) {
            true => {
                inside += 1;
                talks += usize::from(!is_silent);
            }
            false => {
                outside += 1;
                silent += usize::from(is_silent);
            }
        }
    }
    inside > 1 && talks == 0 && outside > inside && 2 * silent < outside
}

/// Convictions for silence, so that there are few on a starved machine (DETECT-2). Pure, for tests.
#[derive(Debug, Default)]
pub(crate) struct Convictions {
    /// How many since there was last no silence for `silence_forgotten`.
    count: u32,
    /// When the last of them was.
    last: Option<Moment>,
    /// When a server was last silent for long enough to be convicted, had it been the first one.
    last_silence: Option<Moment>,
}

impl Convictions {
    /// Whether a server may be declared crashed that has been silent for this long; the right is
    /// used up.
    pub(super) fn convict(
        &mut self,
        now: Moment,
        silent: Duration,
        options: &CoordinatorOptions,
    ) -> bool {
        let lasts = |since: Option<Moment>, span| since.is_some_and(|at| now.since(at) < span);
        if !lasts(self.last_silence, options.silence_forgotten) {
            self.count = 0;
        }
        self.last_silence = Some(now);
        let doubled = 1_u32.checked_shl(self.count).unwrap_or(u32::MAX);
        let needed = options.dead_server_timeout.saturating_mul(doubled);
        let needed = needed.min(options.silence_max.max(options.dead_server_timeout));
        if silent < needed || lasts(self.last, options.dead_server_timeout) {
            pluvio_units::mark("detect-silence-not-convicted");
            return false;
        }
        self.count += 1;
        self.last = Some(now);
        true
    }

    /// A server is declared crashed together with its rack: that counts as one conviction at most.
    pub(super) fn convict_with_rack(&mut self, now: Moment, is_first: bool) {
        self.last_silence = Some(now);
        if is_first {
            self.count += 1;
            self.last = Some(now);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // shows: DETECT-3
    #[test]
    fn hints_come_in_bursts_and_are_twenty_a_second_in_the_long_run() {
        let mut hints = Hints::new(at(0));
        let burst = (0..1000).filter(|_| hints.take(at(10))).count();
        assert_eq!(burst, 64);
        let later = (10..10_010).filter(|ms| hints.take(at(*ms))).count();
        assert!((195..=201).contains(&later), "{later}");
        let burst = (0..1000).filter(|_| hints.take(at(60_000))).count();
        assert_eq!(burst, 64);
    }

    // shows: DETECT-4
    #[test]
    fn a_rack_is_silent_when_all_of_it_is_and_the_others_are_more_and_talk() {
        let is_silent = |inside: &[bool], outside: &[bool]| {
            let of = |rack, all: &[bool]| -> Vec<_> {
                all.iter().map(|silent| (Some(rack), *silent)).collect()
            };
            let servers = of("a", inside).into_iter().chain(of("b", outside));
            rack_is_silent("a", servers)
        };
        let (silent, talks) = (true, false);
        assert!(is_silent(&[silent; 2], &[talks; 3]));
        assert!(!is_silent(&[silent, talks], &[talks; 3]), "a part of it");
        assert!(!is_silent(&[silent], &[talks; 3]), "a server is no rack");
        assert!(!is_silent(&[silent; 3], &[talks; 3]), "half of all");
        let cut_off = [silent, silent, talks];
        assert!(!is_silent(&[silent; 2], &cut_off), "most are silent");
        assert!(is_silent(&[silent; 2], &[silent, talks, talks]));
    }

    const LIMIT: Duration = Duration::from_millis(250);

    fn at(ms: u64) -> Moment {
        Moment(Duration::from_millis(ms))
    }

    fn suspicion() -> Suspicion {
        Suspicion::new(at(0), Duration::from_secs(1))
    }

    #[test]
    fn silence_convicts_only_after_the_whole_time_and_all_pings() {
        let mut s = suspicion();
        for n in 0..3 {
            let (sent, now) = (at(n * 250), at(n * 250 + 250));
            assert_eq!(s.ping(Sign::Silent, sent, now, LIMIT), Verdict::Open);
        }
        let verdict = s.ping(Sign::Silent, at(750), at(1000), LIMIT);
        assert_eq!(verdict, Verdict::Silent(Duration::from_secs(1)));
    }

    #[test]
    fn one_answer_acquits() {
        let mut s = suspicion();
        s.ping(Sign::Silent, at(0), at(250), LIMIT);
        s.ping(Sign::Gone, at(250), at(251), LIMIT);
        assert_eq!(s.ping(Sign::Alive, at(260), at(261), LIMIT), Verdict::Alive);
    }

    #[test]
    fn two_refused_connections_convict_at_once() {
        let mut s = suspicion();
        assert_eq!(s.ping(Sign::Gone, at(0), at(1), LIMIT), Verdict::Open);
        assert_eq!(s.ping(Sign::Gone, at(21), at(22), LIMIT), Verdict::Gone);
    }

    #[test]
    fn a_coordinator_that_stood_still_does_not_blame_others() {
        let _marks = pluvio_units::Marks::to_reach(&["detect-coordinator-stood-still"]);
        let mut s = suspicion();
        let verdict = s.ping(Sign::Silent, at(0), at(5000), LIMIT);
        assert_eq!(verdict, Verdict::Open);
        for n in 0..3 {
            let (sent, now) = (at(5000 + n * 250), at(5250 + n * 250));
            assert_eq!(s.ping(Sign::Silent, sent, now, LIMIT), Verdict::Open);
        }
        assert_eq!(
            s.ping(Sign::Silent, at(5750), at(6000), LIMIT),
            Verdict::Silent(Duration::from_secs(1))
        );
    }

    // shows: DETECT-1
    #[test]
    fn silence_that_nobody_else_witnesses_does_not_count_and_the_rest_does() {
        let mut s = suspicion();
        // Every four seconds this process has no contact for one.
        let mut silent = Duration::ZERO;
        for sent in (0..40_000).step_by(250) {
            let verdict = if sent % 4000 < 3000 {
                s.ping(Sign::Silent, at(sent), at(sent + 250), LIMIT)
            } else {
                s.unwitnessed(at(sent), at(sent + 250))
            };
            if let Verdict::Silent(so_long) = verdict {
                silent = so_long;
            }
        }
        assert_eq!(silent, Duration::from_secs(30));
    }

    // shows: DETECT-1
    #[test]
    fn silence_counts_anew_once_this_process_has_contact_again() {
        let mut s = suspicion();
        for sent in (0..10_000).step_by(250) {
            let verdict = s.unwitnessed(at(sent), at(sent + 250));
            assert_eq!(verdict, Verdict::Open);
        }
        // Now another server answers. The connection to the suspect may come back a little later.
        let verdict = s.ping(Sign::Silent, at(10_000), at(10_300), LIMIT);
        assert_eq!(verdict, Verdict::Open);
        for sent in [10_300, 10_550] {
            let verdict = s.ping(Sign::Silent, at(sent), at(sent + 250), LIMIT);
            assert_eq!(verdict, Verdict::Open);
        }
        let verdict = s.ping(Sign::Silent, at(10_800), at(11_050), LIMIT);
        assert_eq!(verdict, Verdict::Silent(Duration::from_millis(1050)));
        // The silence before the next cut is not enough for the first ping after it.
        s.unwitnessed(at(11_050), at(11_300));
        let verdict = s.ping(Sign::Silent, at(11_300), at(11_550), LIMIT);
        assert_eq!(verdict, Verdict::Open);
    }

    /// The milliseconds at which those are convicted who fall silent at `from` and are looked at
    /// every quarter of a second.
    fn convicted(convictions: &mut Convictions, servers: usize, from: u64, until: u64) -> Vec<u64> {
        let options = CoordinatorOptions::default();
        let mut times = Vec::new();
        for ms in (from + 1000..until).step_by(250) {
            let silent = Duration::from_millis(ms - from);
            let left = servers - times.len();
            let convicted = (0..left).filter(|_| convictions.convict(at(ms), silent, &options));
            times.extend(convicted.map(|_| ms - from));
        }
        times
    }

    // shows: DETECT-2
    #[test]
    fn each_conviction_for_silence_needs_twice_the_silence_of_the_one_before() {
        let _marks = pluvio_units::Marks::to_reach(&["detect-silence-not-convicted"]);
        let mut convictions = Convictions::default();
        let times = convicted(&mut convictions, 8, 0, 60_000);
        let expected = [1000, 2000, 4000, 8000, 16_000, 30_000, 31_000, 32_000];
        assert_eq!(times, expected);
    }

    // shows: DETECT-2
    #[test]
    fn servers_that_answer_again_after_a_while_are_not_convicted_one_by_one() {
        let mut convictions = Convictions::default();
        let mut dead = 0;
        for jerk in 0..1000 {
            dead += convicted(&mut convictions, 4, jerk * 2000, jerk * 2000 + 1900).len();
        }
        assert_eq!(dead, 1);
    }

    // shows: DETECT-2
    #[test]
    fn a_silence_long_after_the_last_one_convicts_at_once() {
        let mut convictions = Convictions::default();
        assert_eq!(convicted(&mut convictions, 2, 0, 9000), [1000, 2000]);
        assert_eq!(convicted(&mut convictions, 1, 60_000, 69_000), [1000]);
        assert_eq!(convicted(&mut convictions, 1, 80_000, 89_000), [2000]);
    }
}
