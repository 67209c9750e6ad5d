//! The server's knowledge of the others, and how it looks after them [RAMCloud §7.2, §7.3, §7.11].
//!
//! - MEM-1: the server list only moves forward.
//! - MEM-2: a server that the list does not show as up never serves again in this life.
//! - MEM-3: a server that cannot reach anyone asks the coordinator whether it still belongs.
//! - MEM-4: an id that the list does not show is new only if it is above all ids that any list has
//!   shown. Otherwise its server is dead. So the witnesses of a dead server's read lease tell it
//!   so, also when it was the newest one and has left the list. They knew it, because they have
//!   kept replicas for it.
//! - MEM-5: a server asks the leading coordinator from time to time whether it is a member,
//!   whatever others say. So a server that was declared dead while it was out of reach learns of it
//!   as soon as it can. This holds also when it is the only server, or when those it pings do not
//!   know either.
//! - MEM-6: only the word of this cluster's own coordinator counts. One that was started on an
//!   empty store, or on another one, leads another cluster. Its lists get ahead of this one's, and
//!   its ids are the same.
//!
//! - MEM-7: a server that does not answer a ping is pinged again at once, by the same server. That
//!   goes on until it answers or the coordinator is told. So the time to find a dead server does
//!   not grow with the cluster.
//! - MEM-8: differences of a list are taken only by a server that has the list they begin at. The
//!   result must have the checksum of the whole new list. A coordinator on an older copy of the
//!   metadata gives versions once more, to other lists.
//!
//! Each server pings one other, chosen at random, at every interval. The work per server does not
//! grow with the cluster, and a dead server is found by the first that happens to ask. A backup
//! that a master's writes do not reach is pinged without waiting for chance
//! ([`pluvio_replication::Replication::watch_suspects`]).

mod seldom;

use self::seldom::{Seldom, Trouble};
use pluvio_env::{Address, CallError, Env, Moment, NoConnection, TaskHandle, watch};
use pluvio_units::{ClusterId, CoreId, ServerId, ServerListVersion};
use pluvio_wire::{
    ChangeServerList, Coordinators, GetServerList, Header, HintServerCrashed, Ping, PingReply,
    RpcError, ServerList, call,
};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// How a server looks after the others.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PingOptions {
    /// Time between pings ([RAMCloud §7.2]: 100 ms).
    pub interval: Duration,
    /// When a ping counts as failed. Generous, because a starved machine is not a dead one.
    pub limit: Duration,
    /// Failed pings to one server, in a row, before the coordinator is told. A refused connection
    /// tells at once.
    pub suspect_after: u32,
    /// Failed pings in a row, to anyone, before this server doubts itself.
    pub doubt_self_after: u32,
}

impl Default for PingOptions {
    fn default() -> Self {
        Self {
            interval: Duration::from_millis(100),
            limit: Duration::from_millis(400),
            suspect_after: 2,
            doubt_self_after: 5,
        }
    }
}

/// Time between two questions to the leading coordinator whether this server is a member (MEM-5).
const CONFIRM_INTERVAL: Duration = Duration::from_secs(2);
/// A server that writes do not reach is pinged out of turn at most once in this time.
const SUSPECT_PAUSE: Duration = Duration::from_millis(500);
/// How long to wait for the coordinator's answer to a question about membership.
const COORDINATOR_LIMIT: Duration = Duration::from_secs(1);

/// Where this server stands in the cluster.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Standing {
    /// Not enlisted yet.
    Joining,
    /// A member.
    Member,
    /// Declared dead; holds the reason. Final.
    Expelled(String),
    /// It left in order. Final.
    Left,
}

/// See the module's text.
pub struct Membership {
    me: Mutex<(ServerId, ClusterId)>,
    list: watch::Sender<Arc<ServerList>>,
    /// The highest id that any list has shown (MEM-4).
    newest: AtomicU64,
    standing: watch::Sender<Standing>,
    /// It has asked to leave: a list without it says that it has (LEFT-1).
    leaving: AtomicBool,
    /// Whether the coordinator that answered last leads another cluster (MEM-6).
    foreign: AtomicBool,
    /// What was traced a short time ago.
    seldom: Seldom,
}

impl Membership {
    /// Knows nobody yet.
    #[must_use]
    pub fn new() -> Arc<Self> {
        Arc::new(Self {
            me: Mutex::default(),
            list: watch::Sender::new(Arc::default()),
            newest: AtomicU64::new(0),
            standing: watch::Sender::new(Standing::Joining),
            leaving: AtomicBool::new(false),
            foreign: AtomicBool::new(false),
            seldom: Seldom::default(),
        })
    }

    /// This server's id, 0 before it is enlisted.
    #[must_use]
    pub fn id(&self) -> ServerId {
        self.me.lock().unwrap_or_else(PoisonError::into_inner).0
    }

    /// The cluster's id, 0 before this server is enlisted.
    #[must_use]
    pub fn cluster(&self) -> ClusterId {
        self.me.lock().unwrap_or_else(PoisonError::into_inner).1
    }

    /// The latest server list.
    #[must_use]
    pub fn list(&self) -> Arc<ServerList> {
        self.list.borrow().clone()
    }

    /// Follows the server list.
    #[must_use]
    pub fn watch_list(&self) -> watch::Receiver<Arc<ServerList>> {
        self.list.subscribe()
    }

    /// Follows this server's standing.
    #[must_use]
    pub fn watch_standing(&self) -> watch::Receiver<Standing> {
        self.standing.subscribe()
    }

    /// Whether requests of clients may be served.
    #[must_use]
    pub fn is_member(&self) -> bool {
        *self.standing.borrow() == Standing::Member
    }

    /// The coordinator has given this server its id, and pings find it from now on. It may take a
    /// while until it can serve.
    pub fn named(&self, id: ServerId, cluster: ClusterId) {
        *self.me.lock().unwrap_or_else(PoisonError::into_inner) = (id, cluster);
    }

    /// This server can do what members do.
    pub fn enlisted(&self, id: ServerId, cluster: ClusterId, list: ServerList) {
        self.named(id, cluster);
        self.standing.send_replace(Standing::Member);
        self.update(list);
        // A newer list may have come while this server was not a member yet and could not be
        // expelled.
        self.check_standing();
    }

    /// Takes over a newer list (MEM-1); an older one is ignored.
    pub fn update(&self, list: ServerList) {
        // Before the list is shown, whose lock orders both: who sees the list sees this.
        let newest = list.servers.iter().map(|s| s.id.0).max();
        self.newest
            .fetch_max(newest.unwrap_or(0), Ordering::Relaxed);
        let newer = self.list.send_if_modified(|current| {
            let newer = list.version > current.version;
            if newer {
                *current = Arc::new(list);
            }
            newer
        });
        if newer {
            self.check_standing();
        }
    }

    /// Takes over a newer list by its differences (MEM-1, MEM-8). Gives the version of the list
    /// that this server has then.
    pub fn change(&self, change: &ChangeServerList) -> ServerListVersion {
        match change.apply(&self.list()) {
            Some(list) => self.update(list),
            None => pluvio_units::mark("server-list-not-that-one"),
        }
        self.list().version
    }

    /// MEM-2.
    fn check_standing(&self) {
        let (me, list) = (self.id(), self.list());
        if me != ServerId(0) && !list.is_up(me) {
            let version = list.version;
            self.expel(format!(
                "server list {version} no longer shows server {me} as up"
            ));
        }
    }

    fn expel(&self, why: String) {
        self.standing.send_if_modified(|standing| {
            let first = *standing == Standing::Member;
            if first {
                // Relaxed: set by the task that leaves, long before a list can say so.
                *standing = match self.leaving.load(Ordering::Relaxed) {
                    true => Standing::Left,
                    false => Standing::Expelled(why),
                };
            }
            first
        });
    }

    /// This server is about to ask whether it may leave, or was told that it may not yet.
    pub(crate) fn set_leaving(&self, leaving: bool) {
        self.leaving.store(leaving, Ordering::Relaxed);
    }

    /// This server has left (LEFT-1).
    pub(crate) fn left(&self) {
        self.standing.send_if_modified(|standing| {
            let first = *standing == Standing::Member;
            if first {
                *standing = Standing::Left;
            }
            first
        });
    }

    /// Whether this server is drained, as far as it knows.
    #[must_use]
    pub fn is_draining(&self) -> bool {
        let list = self.list.borrow();
        list.get(self.id()).is_some_and(|info| info.draining)
    }

    /// MEM-6: whether a coordinator that names this cluster is the own one. Another one's first
    /// answer is told.
    fn is_ours(&self, theirs: ClusterId) -> bool {
        let ours = self.cluster();
        let foreign = theirs != ours;
        // Relaxed: nothing is published by it; it bounds the traces.
        if !self.foreign.swap(foreign, Ordering::Relaxed) && foreign {
            pluvio_units::mark("server-ignores-coordinator");
            tracing::warn!(
                ours = %format_args!("{:016x}", ours.0),
                theirs = %format_args!("{:016x}", theirs.0),
                "the coordinator leads another cluster and is ignored: its metadata store was lost, or is not this cluster's: stop it, and start it again on this cluster's store or on a copy that has every change"
            );
        }
        !foreign
    }

    /// The answer to a ping from `from`.
    #[must_use]
    pub fn answer_ping(&self, from: ServerId) -> PingReply {
        let list = self.list.borrow();
        // MEM-4. The list alone would not do: the newest server may have left it.
        let unknown_yet = from.0 > self.newest.load(Ordering::Relaxed);
        PingReply {
            server: self.id(),
            server_list: list.version,
            caller_is_member: from == ServerId(0) || unknown_yet || list.is_up(from),
            cluster: self.cluster(),
        }
    }
}

/// Pings others for ever; started once this server is enlisted.
pub struct Watcher {
    /// The operating system.
    pub env: Env,
    /// What is known.
    pub membership: Arc<Membership>,
    /// Where the coordinator is.
    pub coordinators: Arc<Coordinators>,
    /// How to look after others.
    pub options: PingOptions,
    /// The latest server that this one's writes did not reach.
    pub suspects: watch::Receiver<Option<ServerId>>,
}

/// What came of pings to one server.
enum Found {
    /// It answers.
    Alive,
    /// Another life answers at the address, or another cluster's server: the one in the list is
    /// over.
    Another,
    /// It is to be reported.
    Dead,
    /// It cannot be said yet.
    Unclear,
}

impl Watcher {
    /// Starts pinging, and asking the coordinator.
    pub fn start(self) -> [TaskHandle; 2] {
        let tasks = Arc::clone(&self.env.tasks);
        let (env, coordinators) = (self.env.clone(), Arc::clone(&self.coordinators));
        let confirm = confirm(env, coordinators, Arc::clone(&self.membership));
        [
            tasks.spawn(CoreId(0), "ping", self.run()),
            tasks.spawn(CoreId(0), "confirm", confirm),
        ]
    }

    async fn run(mut self) {
        let mut failed_in_a_row = 0;
        // When servers that writes did not reach were pinged out of turn.
        let mut out_of_turn: BTreeMap<ServerId, Moment> = BTreeMap::new();
        let mut turn = self.env.clock.now() + self.options.interval;
        loop {
            let chosen = match self.pause(turn).await {
                None => self.choose(),
                Some(suspect) => {
                    let now = self.env.clock.now();
                    out_of_turn.retain(|_, at| now.since(*at) < SUSPECT_PAUSE);
                    if out_of_turn.contains_key(&suspect) {
                        continue;
                    }
                    out_of_turn.insert(suspect, now);
                    self.another(suspect)
                }
            };
            if let Some((suspect, address)) = chosen {
                self.look_at(suspect, &address, &mut failed_in_a_row).await;
            }
            turn = self.env.clock.now() + self.options.interval;
        }
    }

    /// Waits for the turn of the next ping. Gives a server that writes did not reach, if one comes
    /// first.
    async fn pause(&mut self, turn: Moment) -> Option<ServerId> {
        let mut rest = self.env.clock.sleep(turn.since(self.env.clock.now()));
        let suspects = &mut self.suspects;
        tokio::select! {
            biased;
            () = &mut rest => return None,
            changed = suspects.changed() => {
                if changed.is_ok() {
                    return *suspects.borrow_and_update();
                }
            }
        }
        // Nobody writes any more.
        rest.await;
        None
    }

    /// Pings a server until it answers or is reported (MEM-7).
    async fn look_at(&self, suspect: ServerId, address: &Address, failed_in_a_row: &mut u32) {
        for time in 1..=self.options.suspect_after.max(1) {
            let found = self.find_out(suspect, address, time).await;
            match found {
                Found::Alive => {
                    *failed_in_a_row = 0;
                    return;
                }
                // Another process: this server is not cut off.
                Found::Another => return self.hint(suspect).await,
                Found::Dead => self.hint(suspect).await,
                Found::Unclear => {}
            }
            *failed_in_a_row += 1;
            if *failed_in_a_row >= self.options.doubt_self_after {
                ask_coordinator(&self.env, &self.coordinators, &self.membership).await;
            }
            if matches!(found, Found::Dead) {
                return;
            }
        }
    }

    /// One ping, the `time`th in a row that this server does not answer, if it does not.
    async fn find_out(&self, suspect: ServerId, address: &Address, time: u32) -> Found {
        match self.ping(address).await {
            Ok(reply) if reply.is_by(self.membership.cluster(), suspect) => {
                if !reply.caller_is_member || reply.server_list > self.membership.list().version {
                    ask_coordinator(&self.env, &self.coordinators, &self.membership).await;
                }
                Found::Alive
            }
            Ok(_) => Found::Another,
            Err(error) => {
                let refused = matches!(
                    error,
                    RpcError::Call(CallError::Unreachable(_, NoConnection::Refused))
                );
                if !refused && time < self.options.suspect_after {
                    return Found::Unclear;
                }
                let trouble = Trouble::Silent(suspect);
                if (self.membership.seldom).may_tell(trouble, self.env.clock.now()) {
                    tracing::info!(%suspect, %error, "server does not answer, telling the coordinator");
                }
                Found::Dead
            }
        }
    }

    /// Another server, at random.
    fn choose(&self) -> Option<(ServerId, Address)> {
        let list = self.membership.list();
        let me = self.membership.id();
        let others: Vec<_> = list.up().filter(|s| s.id != me).collect();
        if others.is_empty() {
            return None;
        }
        let chosen = others[self.env.rng.below(others.len() as u64) as usize];
        Some((chosen.id, Address::from(chosen.address.as_str())))
    }

    /// This one, if it is another server that is up.
    fn another(&self, server: ServerId) -> Option<(ServerId, Address)> {
        let list = self.membership.list();
        let me = self.membership.id();
        let info = list.up().find(|s| s.id == server && s.id != me)?;
        Some((info.id, Address::from(info.address.as_str())))
    }

    async fn ping(&self, to: &Address) -> Result<PingReply, RpcError> {
        let ping = Ping {
            from: self.membership.id(),
        };
        call(
            &*self.env.network,
            to,
            Header::default(),
            &ping,
            self.options.limit,
        )
        .await
    }

    async fn hint(&self, suspect: ServerId) {
        let hint = HintServerCrashed {
            suspect,
            from: self.membership.id(),
        };
        let network = &*self.env.network;
        let sent = self
            .coordinators
            .call(network, &hint, COORDINATOR_LIMIT)
            .await;
        let trouble = Trouble::Untold(suspect);
        if let Err(error) = sent
            && (self.membership.seldom).may_tell(trouble, self.env.clock.now())
        {
            tracing::info!(%suspect, %error, "the coordinator cannot be told of a suspect");
        }
    }
}

/// Asks for ever whether this server is a member (MEM-5).
async fn confirm(env: Env, coordinators: Arc<Coordinators>, membership: Arc<Membership>) {
    loop {
        env.clock.sleep(CONFIRM_INTERVAL).await;
        is_confirmed(&env, &coordinators, &membership, COORDINATOR_LIMIT).await;
    }
}

/// Whether the leading coordinator says within `limit` that this server is up. If it says no, the
/// server list is asked for as well.
pub(crate) async fn is_confirmed(
    env: &Env,
    coordinators: &Coordinators,
    membership: &Membership,
    limit: Duration,
) -> bool {
    let ping = Ping {
        from: membership.id(),
    };
    match coordinators.call(&*env.network, &ping, limit).await {
        Ok(reply) if !membership.is_ours(reply.cluster) => false,
        Ok(reply) if reply.caller_is_member => membership.is_member(),
        Ok(_) => {
            ask_coordinator(env, coordinators, membership).await;
            false
        }
        Err(_) => false,
    }
}

/// Asks the coordinator for the server list: it says whether this server still belongs (MEM-3).
pub(crate) async fn ask_coordinator(
    env: &Env,
    coordinators: &Coordinators,
    membership: &Membership,
) -> bool {
    let ask = GetServerList {};
    match coordinators
        .call(&*env.network, &ask, COORDINATOR_LIMIT)
        .await
    {
        Ok(reply) if !membership.is_ours(reply.cluster) => false,
        Ok(reply) => {
            let up = reply.list.is_up(membership.id());
            membership.update(reply.list);
            up && membership.is_member()
        }
        Err(error) => {
            if (membership.seldom).may_tell(Trouble::NoList, env.clock.now()) {
                tracing::info!(%error, "the coordinator cannot be asked for the server list");
            }
            false
        }
    }
}

#[cfg(test)]
mod watching;

#[cfg(test)]
mod tests {
    use super::*;
    use pluvio_units::ServerListVersion;
    use pluvio_wire::{ServerInfo, ServerState};

    fn list(version: u64, servers: &[(u64, ServerState)]) -> ServerList {
        let info = |&(id, state): &(u64, ServerState)| ServerInfo {
            state,
            ..ServerInfo::plain(ServerId(id), format!("s{id}"))
        };
        ServerList {
            version: ServerListVersion(version),
            servers: servers.iter().map(info).collect(),
            grown: true,
            ..ServerList::default()
        }
    }

    // shows: MEM-1
    #[test]
    fn an_old_list_is_ignored() {
        let members = Membership::new();
        members.enlisted(
            ServerId(2),
            ClusterId(1),
            list(5, &[(1, ServerState::Up), (2, ServerState::Up)]),
        );
        members.update(list(4, &[(1, ServerState::Up)]));
        assert_eq!(members.list().version, ServerListVersion(5));
        assert!(members.is_member());
    }

    // shows: MEM-8
    #[test]
    fn differences_from_another_list_change_nothing() {
        let _marks = pluvio_units::Marks::to_reach(&["server-list-not-that-one"]);
        let members = Membership::new();
        let both = [(1, ServerState::Up), (2, ServerState::Up)];
        members.enlisted(ServerId(2), ClusterId(1), list(5, &both));
        let after = list(6, &[(1, ServerState::Crashed), (2, ServerState::Up)]);
        let mut change = ChangeServerList {
            cluster: ClusterId(1),
            since: ServerListVersion(4),
            list: list(6, &[(1, ServerState::Crashed)]),
            gone: Vec::new(),
            digest: after.digest(),
        };
        assert_eq!(members.change(&change), ServerListVersion(5));
        change.since = ServerListVersion(5);
        change.digest += 1;
        assert_eq!(members.change(&change), ServerListVersion(5));
        change.digest -= 1;
        assert_eq!(members.change(&change), ServerListVersion(6));
        assert_eq!(*members.list(), after);
        assert!(members.is_member());
    }

    // shows: MEM-2, SRV-1
    #[test]
    fn a_server_that_is_declared_dead_stays_dead() {
        let members = Membership::new();
        members.enlisted(
            ServerId(2),
            ClusterId(1),
            list(5, &[(1, ServerState::Up), (2, ServerState::Up)]),
        );
        members.update(list(6, &[(1, ServerState::Up), (2, ServerState::Crashed)]));
        assert!(!members.is_member());
        members.update(list(7, &[(1, ServerState::Up), (2, ServerState::Up)]));
        assert!(!members.is_member(), "MEM-2");
    }

    // shows: MEM-2, SRV-1
    #[test]
    fn a_server_that_was_declared_dead_before_it_heard_its_id_stays_dead() {
        let members = Membership::new();
        members.update(list(6, &[(1, ServerState::Up), (2, ServerState::Crashed)]));
        members.enlisted(
            ServerId(2),
            ClusterId(1),
            list(5, &[(1, ServerState::Up), (2, ServerState::Up)]),
        );
        assert!(!members.is_member(), "MEM-1, MEM-2");
    }

    // shows: MEM-2, SRV-1
    #[test]
    fn pings_tell_the_dead_from_the_new() {
        let members = Membership::new();
        members.enlisted(
            ServerId(2),
            ClusterId(1),
            list(5, &[(1, ServerState::Crashed), (2, ServerState::Up)]),
        );
        assert!(!members.answer_ping(ServerId(1)).caller_is_member);
        assert!(
            members.answer_ping(ServerId(3)).caller_is_member,
            "it may have joined since"
        );
        assert!(
            members.answer_ping(ServerId(0)).caller_is_member,
            "clients have no id"
        );
    }

    // shows: MEM-4
    #[test]
    fn the_newest_server_is_not_taken_for_a_new_one_when_it_has_left() {
        let members = Membership::new();
        let both = [(1, ServerState::Up), (2, ServerState::Up)];
        members.enlisted(ServerId(1), ClusterId(1), list(5, &both));
        assert!(members.answer_ping(ServerId(2)).caller_is_member);
        members.update(list(6, &[(1, ServerState::Up), (2, ServerState::Crashed)]));
        assert!(!members.answer_ping(ServerId(2)).caller_is_member);
        members.update(list(7, &[(1, ServerState::Up)]));
        assert!(!members.answer_ping(ServerId(2)).caller_is_member, "MEM-4");
        assert!(members.answer_ping(ServerId(3)).caller_is_member);
    }
}
