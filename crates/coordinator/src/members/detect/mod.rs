//! Failure detection: the coordinator's part [RAMCloud §7.2].
//!
//! Servers ping each other and report those that do not answer; that is only a hint. The
//! coordinator pings the suspect itself. A crash is certain when its port refuses connections
//! twice, or another life answers there. Silence alone must last for `dead_server_timeout`, over
//! several pings; twice as long for each server that was convicted for silence lately. On a starved
//! machine many servers are silent now and then, and each recovery starves it more.
//!
//! - DETECT-1: silence convicts a server only while another one answers. Otherwise this process
//!   itself may be cut off, and there is no server that could recover anything. A ping counts as
//!   silent only when another server has answered shortly before or meanwhile. After one that does
//!   not count, `PINGS` others must be silent, as connections come back one by one. Nor does a
//!   machine that cannot be reached prove a crash, as one that refuses the connection does. An
//!   answer to any ping ends the silence, so the suspect is no witness against itself. A verdict
//!   of any kind waits for its turn to be stored. It is void if the suspect answers meanwhile.
//! - DETECT-2: while servers fall silent again and again, the n-th conviction for silence needs
//!   2^(n-1) times `dead_server_timeout` without one answer, up to `silence_max`. A dead server
//!   stays silent for as long as that takes; a starved one answers before. A cascade of n servers
//!   needs all of them to stand still for that long.
//! - DETECT-3: a hint only makes this process ping. Hints of servers that are not up do not count.
//!   64 at once begin checks, and 20 a second in the long run.
//! - DETECT-4: servers of one rack that are silent together are one event. It begins when each
//!   server of a rack has been silent for `dead_server_timeout`, and servers elsewhere are more,
//!   and most of them are not silent. Those that were convicted for silence lately count, too. Then
//!   each of the rack is convicted without DETECT-2's further time. There is one such event in
//!   `silence_forgotten`: others that are silent wait as by DETECT-2. Servers that enlist after it
//!   began are others, too. So a partition never convicts a majority in this way.

use super::store_age::StoreAge;
use crate::ledger::Ledger;
use crate::options::CoordinatorOptions;
use crate::suspicion::{
    Convictions, Hints, PINGS, Sign, Suspicion, Verdict, rack_is_silent, who_is_there,
};
use crate::tasks::TaskGroup;
use core::pin::pin;
use core::time::Duration;
use futures_util::future::{Either, join_all, select};
use pluvio_env::{CallError, Env, Moment, NoConnection};
use pluvio_units::ServerId;
use pluvio_wire::{HintServerCrashed, RpcError, ServerInfo, ServerState};
use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The pause after a refused connection.
const REFUSED_PAUSE: Duration = Duration::from_millis(20);

/// Servers that are asked, before another one is convicted for silence, whether anybody answers.
const WITNESSES: usize = 8;

/// Finds out which servers have crashed.
pub(crate) struct Detector {
    env: Env,
    options: Arc<CoordinatorOptions>,
    tasks: Arc<TaskGroup>,
    ledger: Arc<Ledger>,
    store_age: Arc<StoreAge>,
    seen: Mutex<Seen>,
}

/// What pings have shown lately. A new incarnation finds out again.
#[derive(Default)]
struct Seen {
    /// Servers being checked, and when they have answered a ping last since, whatever it was sent
    /// for.
    suspects: BTreeMap<ServerId, Option<Moment>>,
    /// Servers that were declared crashed for silence.
    convictions: Convictions,
    /// When a server answered a ping last.
    last_answer: Option<Moment>,
    /// Suspects that have been silent for `dead_server_timeout`.
    silent: BTreeSet<ServerId>,
    /// The rack that was silent as a whole last (DETECT-4).
    silent_rack: Option<SilentRack>,
    /// The racks of servers that were convicted for silence in `silence_forgotten`, one for each,
    /// and when.
    convicted: Vec<(Option<String>, Moment)>,
    /// Hints that still count.
    hints: Option<Hints>,
}

/// A rack that was silent as a whole.
#[derive(Clone)]
struct SilentRack {
    name: String,
    /// When that was found.
    at: Moment,
    /// The last server that had been enlisted by then.
    last: ServerId,
}

impl SilentRack {
    fn has(&self, suspect: &ServerInfo) -> bool {
        suspect.rack.as_ref() == Some(&self.name) && suspect.id <= self.last
    }
}

impl Seen {
    /// Whether nobody checks this server yet; from now on somebody does.
    fn begin_check(&mut self, server: ServerId) -> bool {
        match self.suspects.entry(server) {
            Entry::Vacant(entry) => {
                entry.insert(None);
                true
            }
            Entry::Occupied(_) => false,
        }
    }

    /// A server has answered a ping.
    fn note_answer(&mut self, server: ServerId, now: Moment) {
        self.last_answer = Some(now);
        self.silent.remove(&server);
        if let Some(answered) = self.suspects.get_mut(&server) {
            *answered = Some(now);
        }
    }

    /// When a server that is being checked has answered last, if it has.
    fn answered(&self, suspect: ServerId) -> Option<Moment> {
        self.suspects.get(&suspect).copied().flatten()
    }
}

impl Detector {
    pub(crate) fn new(
        env: &Env,
        options: Arc<CoordinatorOptions>,
        tasks: Arc<TaskGroup>,
        ledger: Arc<Ledger>,
    ) -> Arc<Self> {
        let store_age = StoreAge::new(env, &options, tasks.clone(), ledger.clone());
        Arc::new(Self {
            env: env.clone(),
            options,
            tasks,
            ledger,
            store_age,
            seen: Mutex::default(),
        })
    }

    fn seen(&self) -> MutexGuard<'_, Seen> {
        // Held for single steps.
        self.seen.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Pings a random server now and then, for as long as the coordinator runs.
    pub(crate) async fn watch_over(self: Arc<Self>) {
        loop {
            self.env.clock.sleep(self.options.ping_interval).await;
            let state = self.ledger.state();
            let up: Vec<ServerInfo> = state.up().cloned().collect();
            if up.is_empty() {
                continue;
            }
            let chosen = up[self.env.rng.below(up.len() as u64) as usize].clone();
            let limit = self.ping_limit();
            let (sign, _) = self.ping(&chosen, limit).await;
            self.ledger.tenure().contact().note(sign);
            if sign != Sign::Alive {
                self.suspect(chosen.id);
            }
        }
    }

    fn ping_limit(&self) -> Duration {
        let shortest = CoordinatorOptions::DEAD_SERVER_TIMEOUT_MIN;
        self.options.dead_server_timeout.max(shortest) / PINGS
    }

    /// A server says that another one may have crashed (DETECT-3).
    pub(crate) fn hinted(self: &Arc<Self>, hint: &HintServerCrashed) {
        let state = self.ledger.state();
        if !state.is_up(hint.from) || hint.from == hint.suspect {
            pluvio_units::mark("detect-hint-of-a-stranger");
            return;
        }
        let now = self.env.clock.now();
        let counts = {
            let mut seen = self.seen();
            // One that is checked already costs nothing.
            seen.suspects.contains_key(&hint.suspect)
                || seen.hints.get_or_insert_with(|| Hints::new(now)).take(now)
        };
        if counts {
            self.suspect(hint.suspect);
        }
    }

    /// Checks a server that somebody takes for crashed, unless that is done already.
    pub(crate) fn suspect(self: &Arc<Self>, server: ServerId) {
        if self.ledger.state().is_up(server) && self.seen().begin_check(server) {
            let this = self.clone();
            self.tasks.spawn("check", async move {
                this.check(server).await;
                let mut seen = this.seen();
                seen.suspects.remove(&server);
                seen.silent.remove(&server);
            });
        }
    }

    async fn check(self: &Arc<Self>, server: ServerId) {
        let clock = &self.env.clock;
        let limit = self.ping_limit();
        let mut suspicion = Suspicion::new(clock.now(), self.options.dead_server_timeout);
        loop {
            let state = self.ledger.state();
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
                    self.convict(&record.info, now, silent)
                }
            };
            if let Some(why) = why {
                self.declare_crashed(&record.info, limit, why).await;
                return;
            }
            if sign == Sign::Gone {
                clock.sleep(REFUSED_PAUSE).await;
            }
        }
    }

    /// Whether a server that has been silent for this long is convicted for it now, and why
    /// (DETECT-2, DETECT-4).
    fn convict(&self, suspect: &ServerInfo, now: Moment, silent: Duration) -> Option<&'static str> {
        let state = self.ledger.state();
        let mut seen = self.seen();
        seen.silent.insert(suspect.id);
        let lasts = |at: &Moment| now.since(*at) < self.options.silence_forgotten;
        seen.convicted.retain(|(_, at)| lasts(at));
        let event = seen.silent_rack.clone().filter(|event| lasts(&event.at));
        if let Some(rack) = suspect.rack.as_deref() {
            let up = state.up();
            let up = up.map(|s| (s.rack.as_deref(), seen.silent.contains(&s.id)));
            // Without these the rest of a majority would look like a minority.
            let convicted = seen.convicted.iter();
            let servers = up.chain(convicted.map(|(rack, _)| (rack.as_deref(), true)));
            let is_first = event.is_none();
            let belongs = match &event {
                Some(event) => event.has(suspect),
                None => rack_is_silent(rack, servers),
            };
            if belongs {
                pluvio_units::mark("detect-rack-silent");
                seen.convictions.convict_with_rack(now, is_first);
                if is_first {
                    seen.silent_rack = Some(SilentRack {
                        name: rack.to_owned(),
                        at: now,
                        last: state.globals.last_server,
                    });
                }
                seen.convicted.push((suspect.rack.clone(), now));
                return Some("it was silent together with its rack");
            }
        }
        if !seen.convictions.convict(now, silent, &self.options) {
            return None;
        }
        seen.convicted.push((suspect.rack.clone(), now));
        Some("it was silent")
    }

    /// Whether some other server that should be there answers (DETECT-1). Asks a few of those that
    /// nobody suspects, unless one has answered just now.
    async fn others_answer(self: &Arc<Self>, besides: ServerId) -> bool {
        let now = self.env.clock.now();
        // Half of the time for which a suspect must be silent: an answer from before that would be
        // no sign of this process's own contact.
        let recently = |last: Moment| now.since(last) < self.options.dead_server_timeout / 2;
        if self.seen().last_answer.is_some_and(recently) {
            return true;
        }
        let state = self.ledger.state();
        let mut others: Vec<ServerInfo> = {
            let seen = self.seen();
            let others = state.up().filter(|s| s.id != besides);
            others
                .filter(|s| !seen.suspects.contains_key(&s.id))
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
    /// answered shortly before or meanwhile. The last counts only when the ping was silent.
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
        let answered = self.seen().answered(suspect.id);
        match sign {
            Sign::Silent if answered.is_some() => (Sign::Alive, sent),
            Sign::Silent | Sign::Alive | Sign::Gone => (sign, sent),
        }
    }

    /// One ping, and when it was sent.
    async fn ping(self: &Arc<Self>, to: &ServerInfo, limit: Duration) -> (Sign, Moment) {
        let sent = self.env.clock.now();
        let result = who_is_there(&*self.env.network, &to.address, limit).await;
        let took = self.env.clock.now().since(sent);
        if let Ok(reply) = &result {
            self.store_age.note_list(&to.address, reply.server_list);
        }
        let ours = self.ledger.state().globals.cluster;
        let sign = match result {
            Ok(reply) if reply.is_by(ours, to.id) => Sign::Alive,
            // Another life has the address, or another cluster's server.
            Ok(reply) if reply.server != ServerId(0) => Sign::Gone,
            Err(RpcError::Call(CallError::Unreachable(_, NoConnection::Refused))) => Sign::Gone,
            // A process that has no id yet: a new life before it enlists, or this very one that has
            // not received its id yet. Or a broken connection, or no way to that machine: this
            // one's own network may be down. None of them proves anything at once.
            Ok(_) | Err(_) => {
                self.env.clock.sleep(limit.saturating_sub(took)).await;
                Sign::Silent
            }
        };
        if sign == Sign::Alive {
            self.seen().note_answer(to.id, self.env.clock.now());
        }
        (sign, sent)
    }

    /// Has a verdict stored. That may take long, as other changes and the store do. So the suspect
    /// is pinged on, and the verdict is void if it has answered since (DETECT-1).
    async fn declare_crashed(
        self: &Arc<Self>,
        suspect: &ServerInfo,
        limit: Duration,
        why: &'static str,
    ) {
        let (server, verdict) = (suspect.id, self.env.clock.now());
        let this = self.clone();
        let declare = self.ledger.change(move |state| {
            let answered = this.seen().answered(server);
            if answered.is_some_and(|at| at >= verdict) {
                pluvio_units::mark("detect-verdict-void");
                return Ok(false);
            }
            Ok(state.mark_crashed(server))
        });
        let declared = tokio::select! {
            biased;
            declared = declare => declared,
            () = self.ping_on(suspect, limit) => unreachable!("it pings for ever"),
        };
        if declared == Ok(true) {
            tracing::info!(%server, why, "server crashed");
        }
    }

    /// Pings a server again and again; its answers are noted.
    async fn ping_on(self: &Arc<Self>, server: &ServerInfo, limit: Duration) {
        loop {
            self.env.clock.sleep(limit).await;
            let _is_noted = self.ping(server, limit).await;
        }
    }
}

#[cfg(test)]
mod witnesses;
