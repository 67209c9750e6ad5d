//! Failure detection: the coordinator's part (003 §7.2).
//!
//! Servers ping each other and report who does not answer; that is only a hint. The coordinator
//! pings the suspect itself. A crash is certain when its port refuses connections twice, or another
//! life answers there. Silence alone must last for `dead_server_timeout`, over several pings, and
//! twice as long for each server that was convicted for silence lately: on a starved machine many
//! servers are silent now and then, and each recovery starves it more.
//!
//! - DETECT-1: silence convicts nobody while no other server answers: then it may as well be this
//!   process that is cut off, and without servers that answer there is nobody to recover anything.
//!   A ping counts as silent only when another server has answered shortly before or meanwhile.
//!   After one that does not count, [`PINGS`] others must be silent, as connections come back one
//!   by one. Nor does a machine that cannot be reached prove a crash, as one that refuses the
//!   connection does. An answer to any ping ends the silence, so the suspect is no witness against
//!   itself.
//! - DETECT-2: while servers fall silent again and again, the n-th conviction for silence needs
//!   2^(n-1) times `dead_server_timeout` without one answer, up to `silence_max`. Who is dead stays
//!   silent for as long as that takes; who is starved answers before. A cascade of n servers needs
//!   all of them to stand still for that long.

use crate::options::CoordinatorOptions;
use crate::shared::{Memory, Shared};
use core::pin::pin;
use core::time::Duration;
use futures_util::future::{Either, join_all, select};
use pluvio_env::{Address, CallError, Moment, Network, NoConnection};
use pluvio_units::ServerId;
use pluvio_wire::{Header, Ping, PingReply, RpcError, ServerInfo, ServerState};
use std::collections::btree_map::Entry;
use std::sync::Arc;

/// Pings in the time of `dead_server_timeout`.
const PINGS: u32 = 4;
/// Refused connections that prove a crash. One could be a full accept queue or a server that
/// just opens its port.
const REFUSALS: u32 = 2;
/// The pause after a refused connection.
const REFUSED_PAUSE: Duration = Duration::from_millis(20);

/// Servers that are asked, before another one is convicted for silence, whether anybody answers.
const WITNESSES: usize = 8;

/// Asks who answers at an address; any life will do.
pub(crate) async fn who_is_there(
    network: &dyn Network,
    address: &str,
    limit: Duration,
) -> Result<PingReply, RpcError> {
    let ping = Ping { from: ServerId(0) };
    let address = Address::from(address);
    pluvio_wire::call(network, &address, Header::default(), &ping, limit).await
}

/// What one ping showed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Sign {
    /// It answered.
    Alive,
    /// Its port refused the connection, or another life or another cluster's server answered there.
    Gone,
    /// Nothing came back, or nothing that says who answered.
    Silent,
}

/// What was found out about a suspect so far. Pure, for tests.
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

    /// Takes in a silent ping, from `sent` to `now`, while nobody else answered either: it may have
    /// been this process that was cut off. That time does not count, and pings are counted anew:
    /// who answers first when contact is back is no witness of what was before.
    fn unwitnessed(&mut self, sent: Moment, now: Moment) -> Verdict {
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
                    // This process itself stood still: it cannot tell who was silent.
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
    fn convict(&mut self, now: Moment, silent: Duration, options: &CoordinatorOptions) -> bool {
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
}

impl Memory {
    /// Whether nobody checks this server yet; from now on somebody does.
    fn begin_check(&mut self, server: ServerId) -> bool {
        match self.suspects.entry(server) {
            Entry::Vacant(entry) => {
                entry.insert(false);
                true
            }
            Entry::Occupied(_) => false,
        }
    }

    /// A server has answered a ping.
    fn note_answer(&mut self, server: ServerId, now: Moment) {
        self.last_answer = Some(now);
        if let Some(has_answered) = self.suspects.get_mut(&server) {
            *has_answered = true;
        }
    }
}

impl Shared {
    /// Pings a random server now and then, for as long as the coordinator runs.
    pub(crate) async fn watch_over(self: Arc<Self>) {
        loop {
            self.env.clock.sleep(self.options.ping_interval).await;
            let state = self.state();
            let up: Vec<ServerInfo> = state.up().cloned().collect();
            if up.is_empty() {
                continue;
            }
            let chosen = up[self.env.rng.below(up.len() as u64) as usize].clone();
            let limit = self.ping_limit();
            let (sign, _) = self.ping(&chosen, limit).await;
            self.tenure.contact().note(sign);
            if sign != Sign::Alive {
                self.suspect(chosen.id);
            }
        }
    }

    fn ping_limit(&self) -> Duration {
        let shortest = CoordinatorOptions::DEAD_SERVER_TIMEOUT_MIN;
        self.options.dead_server_timeout.max(shortest) / PINGS
    }

    /// Checks a server that somebody takes for crashed, unless that is done already.
    pub(crate) fn suspect(self: &Arc<Self>, server: ServerId) {
        if self.state().is_up(server) && self.memory().begin_check(server) {
            let shared = self.clone();
            self.spawn("check", async move {
                shared.check(server).await;
                shared.memory().suspects.remove(&server);
            });
        }
    }

    async fn check(self: &Arc<Self>, server: ServerId) {
        let clock = &self.env.clock;
        let limit = self.ping_limit();
        let mut suspicion = Suspicion::new(clock.now(), self.options.dead_server_timeout);
        loop {
            let state = self.state();
            let Some(record) = state.servers.get(&server) else {
                return;
            };
            if record.info.state != ServerState::Up {
                return;
            }
            let (sign, sent, witnessed) = self.ping_beside_others(&record.info, limit).await;
            let now = clock.now();
            let verdict = match sign {
                Sign::Silent if !witnessed => suspicion.unwitnessed(sent, now),
                Sign::Silent | Sign::Alive | Sign::Gone => suspicion.ping(sign, sent, now, limit),
            };
            let why = match verdict {
                Verdict::Alive => {
                    pluvio_units::mark("detect-suspect-answers");
                    return;
                }
                Verdict::Open => None,
                Verdict::Gone => Some("its process is gone"),
                Verdict::Silent(silent) => {
                    pluvio_units::mark("detect-silent");
                    // The others may have answered later than the suspect was asked: it is asked
                    // after them.
                    let (sign, _) = self.ping_suspect(&record.info, limit).await;
                    if sign == Sign::Alive {
                        return;
                    }
                    let now = clock.now();
                    let convicted = self
                        .memory()
                        .convictions
                        .convict(now, silent, &self.options);
                    convicted.then_some("it was silent")
                }
            };
            if let Some(why) = why {
                self.declare_crashed(server, why).await;
                return;
            }
            if sign == Sign::Gone {
                clock.sleep(REFUSED_PAUSE).await;
            }
        }
    }

    /// Asks who answers at an address; any life will do.
    pub(crate) async fn who_is_there(
        &self,
        address: &str,
        limit: Duration,
    ) -> Result<PingReply, RpcError> {
        who_is_there(&*self.env.network, address, limit).await
    }

    /// Whether some other server that should be there answers (DETECT-1). Asks a few of those that
    /// nobody suspects, unless one has answered just now.
    async fn others_answer(self: &Arc<Self>, besides: ServerId) -> bool {
        let now = self.env.clock.now();
        // Half of the time for which a suspect must be silent: an answer from before that would be
        // no sign of this process's own contact.
        let recently = |last: Moment| now.since(last) < self.options.dead_server_timeout / 2;
        if self.memory().last_answer.is_some_and(recently) {
            return true;
        }
        let state = self.state();
        let mut others: Vec<ServerInfo> = {
            let memory = self.memory();
            let others = state.up().filter(|s| s.id != besides);
            others
                .filter(|s| !memory.suspects.contains_key(&s.id))
                .cloned()
                .collect()
        };
        self.env.rng.shuffle(&mut others);
        others.truncate(WITNESSES);
        let limit = self.ping_limit();
        let asked = others.iter().map(|other| self.ping(other, limit));
        let signs = join_all(asked).await;
        signs.iter().any(|(sign, _)| *sign == Sign::Alive)
    }

    /// One ping to a server that is being checked, when it was sent, and whether some other server
    /// answered shortly before or meanwhile, which means something only when it was silent.
    async fn ping_beside_others(
        self: &Arc<Self>,
        suspect: &ServerInfo,
        limit: Duration,
    ) -> (Sign, Moment, bool) {
        let others = pin!(self.others_answer(suspect.id));
        let ping = pin!(self.ping_suspect(suspect, limit));
        match select(ping, others).await {
            Either::Left(((Sign::Silent, sent), others)) => (Sign::Silent, sent, others.await),
            Either::Left(((sign @ (Sign::Alive | Sign::Gone), sent), _)) => (sign, sent, true),
            Either::Right((witnessed, ping)) => {
                let (sign, sent) = ping.await;
                (sign, sent, witnessed)
            }
        }
    }

    /// One ping to a server that is being checked, and when it was sent. Silence does not count if
    /// the server has answered another ping meanwhile.
    async fn ping_suspect(
        self: &Arc<Self>,
        suspect: &ServerInfo,
        limit: Duration,
    ) -> (Sign, Moment) {
        let (sign, sent) = self.ping(suspect, limit).await;
        let has_answered = self.memory().suspects.get(&suspect.id) == Some(&true);
        match sign {
            Sign::Silent if has_answered => (Sign::Alive, sent),
            Sign::Silent | Sign::Alive | Sign::Gone => (sign, sent),
        }
    }

    /// One ping, and when it was sent.
    async fn ping(self: &Arc<Self>, to: &ServerInfo, limit: Duration) -> (Sign, Moment) {
        let sent = self.env.clock.now();
        let result = self.who_is_there(&to.address, limit).await;
        let took = self.env.clock.now().since(sent);
        if let Ok(reply) = &result {
            self.note_list(&to.address, reply.server_list);
        }
        let ours = self.state().globals.cluster;
        let sign = match result {
            Ok(reply) if reply.is_by(ours, to.id) => Sign::Alive,
            // Another life has the address, or another cluster's server.
            Ok(reply) if reply.server != ServerId(0) => Sign::Gone,
            Err(RpcError::Call(CallError::Unreachable(_, NoConnection::Refused))) => Sign::Gone,
            // Somebody who has no id yet: a new life before it enlists, or this very one that has
            // not received its id yet. Or a broken connection, or no way to that machine: this
            // one's own network may be down. None of them proves anything at once.
            Ok(_) | Err(_) => {
                self.env.clock.sleep(limit.saturating_sub(took)).await;
                Sign::Silent
            }
        };
        if sign == Sign::Alive {
            self.memory().note_answer(to.id, self.env.clock.now());
        }
        (sign, sent)
    }

    async fn declare_crashed(self: &Arc<Self>, server: ServerId, why: &str) {
        let declared = self
            .change(move |state| Ok(state.mark_crashed(server)))
            .await;
        if declared == Ok(true) {
            tracing::info!(%server, why, "server crashed");
        }
    }
}

#[cfg(test)]
mod witnesses;

#[cfg(test)]
mod tests {
    use super::*;

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
        // What was silent before the next cut is not enough for the first ping after it.
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
