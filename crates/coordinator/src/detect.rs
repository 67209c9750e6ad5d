//! Failure detection: the coordinator's part (003 §7.2).
//!
//! Servers ping each other and report who does not answer; that is only a hint. The coordinator
//! pings the suspect itself. A crash is certain when its port refuses connections twice, or
//! another life answers there. Silence alone must last for `dead_server_timeout`, over several
//! pings, and convicts at most one server per `silent_death_interval`: on a starved machine many
//! servers are silent, and each recovery would starve it more.
//!
//! - DETECT-1: silence convicts nobody while no other server answers: then it may as well be this process that is cut off,
//!   and without servers that answer there is nobody to recover anything. Nor does a machine that cannot be
//!   reached prove a crash, as one that refuses the connection does.

use crate::shared::Shared;
use core::time::Duration;
use futures_util::future::join_all;
use pluvio_env::{Address, CallError, Moment, Network, NoConnection};
use pluvio_units::ServerId;
use pluvio_wire::{Header, Ping, PingReply, RpcError, ServerInfo, ServerState};
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
    /// Its port refused the connection, or another life answered there.
    Gone,
    /// Nothing came back, or nothing that says who answered.
    Silent,
}

/// What was found out about a suspect so far. Pure, for tests.
#[derive(Debug)]
pub(crate) struct Suspicion {
    refusals: u32,
    silences: u32,
    silent_until: Moment,
}

/// What follows from a [`Suspicion`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Verdict {
    Alive,
    /// Ping again.
    Open,
    /// Silent for long enough, if no other server was convicted for silence lately.
    Silent,
    /// Certainly gone.
    Gone,
}

impl Suspicion {
    pub(crate) fn new(now: Moment, timeout: Duration) -> Self {
        Self {
            refusals: 0,
            silences: 0,
            silent_until: now + timeout,
        }
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
                    self.silent_until = self.silent_until + took;
                } else {
                    self.silences += 1;
                }
            }
        }
        if now >= self.silent_until && self.silences >= PINGS {
            Verdict::Silent
        } else {
            Verdict::Open
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
        (self.options.dead_server_timeout / PINGS).max(Duration::from_millis(10))
    }

    /// Checks a server that somebody takes for crashed, unless that is done already.
    pub(crate) fn suspect(self: &Arc<Self>, server: ServerId) {
        if self.state().is_up(server) && self.memory().suspects.insert(server) {
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
            let (sign, sent) = self.ping(&record.info, limit).await;
            let why = match suspicion.ping(sign, sent, clock.now(), limit) {
                Verdict::Alive => {
                    pluvio_units::mark("detect-suspect-answers");
                    return;
                }
                Verdict::Open => None,
                Verdict::Gone => Some("its process is gone"),
                Verdict::Silent if self.others_answer(server).await => {
                    pluvio_units::mark("detect-silent");
                    // They may do so since a moment ago, when this process was reconnected: the suspect is asked after them.
                    let (sign, _) = self.ping(&record.info, limit).await;
                    if sign == Sign::Alive {
                        return;
                    }
                    self.may_convict_for_silence().then_some("it was silent")
                }
                Verdict::Silent => {
                    // All of it may have been this process's own silence. When it is over, somebody is the first to answer, and the
                    // others must not be convicted for what was before.
                    suspicion = Suspicion::new(clock.now(), self.options.dead_server_timeout);
                    None
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

    /// Whether some other server that should be there answers (DETECT-1). Asks a few of those that nobody suspects, unless
    /// one has answered just now.
    async fn others_answer(&self, besides: ServerId) -> bool {
        let now = self.env.clock.now();
        // Half of the time for which the suspect has been silent: an answer from before that would be no sign of this process's
        // own contact since.
        let recently = |last: Moment| now.since(last) < self.options.dead_server_timeout / 2;
        if self.memory().last_answer.is_some_and(recently) {
            return true;
        }
        let state = self.state();
        let mut others: Vec<ServerInfo> = {
            let memory = self.memory();
            let others = state.up().filter(|s| s.id != besides);
            others
                .filter(|s| !memory.suspects.contains(&s.id))
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

    /// One ping, and when it was sent.
    async fn ping(&self, to: &ServerInfo, limit: Duration) -> (Sign, Moment) {
        let sent = self.env.clock.now();
        let result = self.who_is_there(&to.address, limit).await;
        let took = self.env.clock.now().since(sent);
        let sign = match result {
            Ok(reply) if reply.server == to.id => Sign::Alive,
            // Another life has the address.
            Ok(reply) if reply.server != ServerId(0) => Sign::Gone,
            Err(RpcError::Call(CallError::Unreachable(_, NoConnection::Refused))) => Sign::Gone,
            // Somebody who has no id yet: a new life before it enlists, or this very one that has not
            // received its id yet. Or a broken connection, or no way to that machine: this one's own network may be
            // down. None of them proves anything at once.
            Ok(_) | Err(_) => {
                self.env.clock.sleep(limit.saturating_sub(took)).await;
                Sign::Silent
            }
        };
        if sign == Sign::Alive {
            self.memory().last_answer = Some(self.env.clock.now());
        }
        (sign, sent)
    }

    /// Whether another server may be declared crashed for silence now; the right is used up.
    fn may_convict_for_silence(&self) -> bool {
        let now = self.env.clock.now();
        let mut memory = self.memory();
        let free = memory
            .silent_death
            .is_none_or(|last| now.since(last) >= self.options.silent_death_interval);
        if free {
            memory.silent_death = Some(now);
        }
        free
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
        assert_eq!(verdict, Verdict::Silent);
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
        let mut s = suspicion();
        let verdict = s.ping(Sign::Silent, at(0), at(5000), LIMIT);
        assert_eq!(verdict, Verdict::Open);
        for n in 0..3 {
            let (sent, now) = (at(5000 + n * 250), at(5250 + n * 250));
            assert_eq!(s.ping(Sign::Silent, sent, now, LIMIT), Verdict::Open);
        }
        assert_eq!(
            s.ping(Sign::Silent, at(5750), at(6000), LIMIT),
            Verdict::Silent
        );
    }
}
