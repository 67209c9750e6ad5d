//! The server list: servers that enlist, and servers that crashed [RAMCloud §7.3].

use crate::ledger::Ledger;
use crate::refusals::not_a_member;
use crate::state::{ServerRecord, State, TabletRecord, Width};
use crate::suspicion::who_is_there;
use core::time::Duration;
use pluvio_env::{Env, Network};
use pluvio_units::{ClusterId, ReplicationEpoch, SegmentId, ServerId};
use pluvio_wire::{
    Enlist, EnlistReply, FatalKind, Refusal, RetryReason, ServerInfo, ServerState,
    SetReplicationEpoch, TabletState,
};
use std::collections::BTreeSet;
use std::sync::Arc;

/// Most servers in the list, crashed ones included. Lists travel whole: at about 200 bytes a
/// server this keeps them far below the size of a message.
const SERVERS_MAX: usize = 10_000;

/// How long the former owner of an address is given to answer. Its process is gone in nearly all
/// cases, and somebody else answers at once.
const ADDRESS_PING: Duration = Duration::from_millis(250);

impl State {
    /// Takes a server in. Its former life is over, and so is the server that had its address.
    pub(crate) fn enlist(&mut self, mut request: Enlist) -> Result<Enlisted, Refusal> {
        self.check_enlist(&request)?;
        let known = self.servers.values().find(|s| s.attempt == request.attempt);
        if let Some(record) = known {
            let id = record.info.id;
            return match record.info.state {
                ServerState::Up => Ok(Enlisted {
                    server: id,
                    ended: Vec::new(),
                }),
                ServerState::Crashed => Err(not_a_member(id)),
            };
        }
        if self.servers.len() >= SERVERS_MAX {
            let message = format!("the cluster has {SERVERS_MAX} servers, the most it can have");
            return Err(Refusal::fatal(FatalKind::Other, message));
        }
        self.match_settings(&mut request)?;
        let ended: Vec<ServerId> = self
            .up()
            .filter(|s| Some(s.id) == request.replaces || s.is_at(&request.info.address))
            .map(|s| s.id)
            .collect();
        for server in &ended {
            self.mark_crashed(*server);
        }
        let server = self.globals.last_server.next();
        self.globals.last_server = server;
        let info = ServerInfo {
            id: server,
            state: ServerState::Up,
            draining: false,
            ..request.info
        };
        let record = ServerRecord {
            logs: request.logs,
            ..ServerRecord::new(info, request.attempt)
        };
        self.servers.insert(server, Arc::new(record));
        Ok(Enlisted { server, ended })
    }

    fn check_enlist(&self, request: &Enlist) -> Result<(), Refusal> {
        self.match_version(request)?;
        let ours = self.globals.cluster;
        if let Some(theirs) = request.cluster.filter(|theirs| *theirs != ours) {
            let message = format!(
                "the server's data directory belongs to cluster {:016x}, this is cluster {:016x}: start it with another data directory, or at its own coordinator",
                theirs.0, ours.0
            );
            return Err(Refusal::fatal(FatalKind::WrongCluster, message));
        }
        // Ids that were given since would be given again, and replicas of the servers that had them
        // be freed.
        let last = self.globals.last_server;
        if let Some(former) = request.replaces.filter(|former| *former > last) {
            let message = format!(
                "the coordinator's metadata is older than the server's data directory, which is that of server {former}, while the last id in the metadata is {last}: stop the coordinator and restore the newest copy of its metadata; nothing was deleted"
            );
            return Err(Refusal::fatal(FatalKind::Other, message));
        }
        Ok(())
    }

    /// Declares a server crashed; its tablets wait for recovery. Those that stand on another
    /// crashed server are that one's again (COORD-15). Unconfirmed ones are empty; others get them
    /// when its lease is over (see `work::assign`). False when it was not up.
    pub(crate) fn mark_crashed(&mut self, server: ServerId) -> bool {
        let Some(record) = self.servers.get_mut(&server) else {
            return false;
        };
        if record.info.state == ServerState::Crashed {
            return false;
        }
        let info = &mut Arc::make_mut(record).info;
        (info.state, info.draining) = (ServerState::Crashed, false);
        for former in self.give_back(server, |_| true) {
            let former = self.servers.get_mut(&former);
            let former = former.expect("what a tablet stands on is listed (COORD-14)");
            Arc::make_mut(former).readers.insert(server);
        }
        let record = self.servers.get_mut(&server).expect("it was just found");
        let record = Arc::make_mut(record);
        for table in self.tables.values_mut() {
            if table.moves.iter().any(|m| m.concerns(server)) {
                Arc::make_mut(table).end_moves_of(server);
            }
            let hit = |t: &TabletRecord| t.owner == server && t.state == TabletState::Normal;
            if table.tablets.iter().any(hit) {
                let table = Arc::make_mut(table);
                let tablets = &mut table.tablets;
                for tablet in tablets.iter_mut().filter(|t| hit(t)) {
                    tablet.state = TabletState::Recovering;
                    let had = record.had.entry(table.id).or_default();
                    had.0 += Width::of(tablet.range).0;
                }
            }
        }
        true
    }

    /// Gives tablets that stand on a crashed server back to it, of those that `owner` answers reads
    /// of and that `which` names. Gives those crashed servers.
    pub(crate) fn give_back(
        &mut self,
        owner: ServerId,
        which: impl Fn(&TabletRecord) -> bool,
    ) -> BTreeSet<ServerId> {
        let mut formers = BTreeSet::new();
        let hit = |t: &TabletRecord| t.owner == owner && t.stands_on.is_some() && which(t);
        for table in self.tables.values_mut() {
            if !table.tablets.iter().any(hit) {
                continue;
            }
            for tablet in &mut Arc::make_mut(table).tablets {
                if let Some(former) = tablet.stands_on.filter(|_| hit(tablet)) {
                    pluvio_units::mark("recovery-standing-tablet-given-back");
                    tablet.owner = former;
                    tablet.state = TabletState::Recovering;
                    tablet.stands_on = None;
                    tablet.recovered_by = None;
                    formers.insert(former);
                }
            }
        }
        formers
    }

    /// # Errors
    /// `WrongCluster`: nothing is said of another cluster's server, whose id is another server's
    /// here.
    pub(crate) fn check_cluster(&self, cluster: ClusterId) -> Result<(), Refusal> {
        if cluster == self.globals.cluster {
            return Ok(());
        }
        let message = "this is the coordinator of another cluster";
        Err(Refusal::fatal(FatalKind::WrongCluster, message))
    }

    /// Whether a report that something has ended may be heard: from members, and not from those of
    /// another cluster.
    ///
    /// # Errors
    /// Fatal: `WrongCluster`; `NotInCluster`.
    pub(crate) fn check_report(&self, cluster: ClusterId, server: ServerId) -> Result<(), Refusal> {
        if cluster != ClusterId(0) {
            self.check_cluster(cluster)?;
        }
        if !self.is_up(server) {
            return Err(not_a_member(server));
        }
        Ok(())
    }

    /// Replicas of an open segment below an epoch are stale from now on.
    pub(crate) fn set_epoch(&mut self, request: &SetReplicationEpoch) -> Result<(), Refusal> {
        self.check_cluster(request.cluster)?;
        if !self.is_up(request.server) {
            return Err(not_a_member(request.server));
        }
        let record = self
            .servers
            .get_mut(&request.server)
            .expect("it is up, so it is listed");
        let new = (request.segment, request.epoch);
        let old = record.epochs.get(&request.log).copied();
        if old.unwrap_or((SegmentId(0), ReplicationEpoch(0))) < new {
            Arc::make_mut(record).epochs.insert(request.log, new);
        }
        Ok(())
    }
}

/// What an enlistment did.
pub(crate) struct Enlisted {
    pub(crate) server: ServerId,
    /// Lives that are over by it.
    pub(crate) ended: Vec<ServerId>,
}

/// Takes servers into the list.
pub(crate) struct Registry {
    network: Arc<dyn Network>,
    ledger: Arc<Ledger>,
}

impl Registry {
    pub(crate) fn new(env: &Env, ledger: Arc<Ledger>) -> Self {
        let network = env.network.clone();
        Self { network, ledger }
    }

    /// A server that enlists from the address of one that is up ends that one. A request that is
    /// merely late must not: its process died, and the next one has enlisted already. So the server
    /// that answers there is asked first which one it is.
    ///
    /// # Errors
    /// The server that is listed still answers.
    async fn check_address(&self, request: &Enlist) -> Result<(), Refusal> {
        let state = self.ledger.state();
        let here = |s: &&ServerInfo| s.is_at(&request.info.address);
        let Some(listed) = state.up().find(here) else {
            return Ok(());
        };
        if state.servers[&listed.id].attempt == request.attempt {
            return Ok(());
        }
        match who_is_there(&*self.network, &listed.address, ADDRESS_PING).await {
            Ok(reply) if reply.is_by(state.globals.cluster, listed.id) => {
                Err(Refusal::retry(ADDRESS_PING, RetryReason::Busy))
            }
            Ok(_) | Err(_) => Ok(()),
        }
    }

    /// A server with the data directory of one that is up ends that one, whose process is gone: it
    /// held the directory. Unless that is a copy: then the former life answers at its own address,
    /// and lives on. One that comes back to that address is its own successor.
    ///
    /// # Errors
    /// It answers.
    async fn check_copy(&self, request: &Enlist) -> Result<(), Refusal> {
        let state = self.ledger.state();
        let ours = state.globals.cluster;
        if request.cluster.is_some_and(|theirs| theirs != ours) {
            // It is refused for that.
            return Ok(());
        }
        let former = state.up().find(|s| Some(s.id) == request.replaces);
        let Some(former) = former.filter(|s| s.address != request.info.address) else {
            return Ok(());
        };
        match who_is_there(&*self.network, &former.address, ADDRESS_PING).await {
            Ok(reply) if reply.is_by(ours, former.id) => {
                let message = format!(
                    "the server's data directory is a copy of that of server {}, which runs at {}: start it with another data directory, or stop that server",
                    former.id, former.address
                );
                Err(Refusal::fatal(FatalKind::AlreadyRunning, message))
            }
            Ok(_) | Err(_) => Ok(()),
        }
    }

    pub(crate) async fn enlist(&self, request: Enlist) -> Result<EnlistReply, Refusal> {
        let address = request.info.address.clone();
        self.check_address(&request).await?;
        self.check_copy(&request).await?;
        let (enlisted, is_new) = self
            .ledger
            .change(move |state| {
                let last = state.globals.last_server;
                let enlisted = state.enlist(request)?;
                Ok((enlisted, state.globals.last_server != last))
            })
            .await?;
        if is_new {
            tracing::info!(server = %enlisted.server, address, "server enlisted");
        }
        for server in enlisted.ended {
            tracing::info!(%server, why = "it was started again", "server crashed");
        }
        let state = self.ledger.state();
        Ok(EnlistReply {
            server: enlisted.server,
            cluster: state.globals.cluster,
            list: state.list(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::state::{TableRecord, TabletRecord};
    use pluvio_units::{ClusterId, HashKind, HashRange, LogId, TableId};
    use pluvio_wire::PROTOCOL_VERSION;

    fn request(attempt: u64, replaces: Option<u64>) -> Enlist {
        Enlist {
            protocol: PROTOCOL_VERSION,
            expects: None,
            cluster: None,
            replaces: replaces.map(ServerId),
            attempt,
            logs: 0,
            info: ServerInfo {
                pid: 1,
                cores: 2,
                disk_mb_per_s: 100,
                state: ServerState::Crashed,
                ..ServerInfo::plain(ServerId(99), format!("host:{attempt}"))
            },
        }
    }

    fn enlist(state: &mut State, request: Enlist) -> ServerId {
        let before = state.clone();
        let id = state.enlist(request).unwrap().server;
        state.settle_list(&before);
        state.check();
        id
    }

    fn state() -> State {
        State::new(ClusterId(7))
    }

    #[test]
    fn a_repeated_enlistment_gives_the_same_id() {
        let mut state = state();
        let first = enlist(&mut state, request(1, None));
        assert_eq!(first, ServerId(1));
        let version = state.globals.list_version;
        assert_eq!(enlist(&mut state, request(1, None)), first);
        assert_eq!(state.globals.list_version, version);
        assert!(!state.globals.grown);
        assert_eq!(enlist(&mut state, request(2, None)), ServerId(2));
        assert!(state.globals.grown);
    }

    // shows: COORD-4, COORD-5, SRV-1
    #[test]
    fn a_restarted_server_ends_its_former_life_and_is_no_growth() {
        let mut state = state();
        let old = enlist(&mut state, request(1, None));
        let tablet = TabletRecord {
            state: TabletState::Normal,
            ..TabletRecord::new(HashRange::ALL, old)
        };
        let table = TableRecord {
            id: TableId(1),
            name: "t".into(),
            seed: 1,
            hash: HashKind::Seeded,
            dropping: false,
            tablets: vec![tablet],
            cuts: Vec::new(),
            kept: BTreeSet::new(),
            moves: Vec::new(),
            quota: None,
            class: None,
        };
        state.tables.insert(TableId(1), Arc::new(table));
        let new = enlist(&mut state, request(2, Some(old.0)));
        assert!(!state.is_up(old) && state.is_up(new));
        assert!(!state.globals.grown);
        let tablet = state.tables[&TableId(1)].tablets[0];
        assert_eq!((tablet.owner, tablet.state), (old, TabletState::Recovering));
        // The life that is over cannot come back.
        let refused = state.enlist(request(1, None)).err().unwrap();
        assert_eq!(refused.fatal_kind(), Some(FatalKind::NotInCluster));
    }

    #[test]
    fn an_address_has_one_server() {
        let mut state = state();
        let old = enlist(&mut state, request(1, None));
        let mut same_place = request(2, None);
        same_place.info.address = "host:1".into();
        let new = enlist(&mut state, same_place);
        assert!(!state.is_up(old) && state.is_up(new));
    }

    #[test]
    fn strangers_are_refused() {
        let mut state = state();
        let mut other = request(1, None);
        other.cluster = Some(ClusterId(8));
        let kind = state.enlist(other).err().unwrap().fatal_kind();
        assert_eq!(kind, Some(FatalKind::WrongCluster));
        let mut old = request(1, None);
        old.protocol += 1;
        let kind = state.enlist(old).err().unwrap().fatal_kind();
        assert_eq!(kind, Some(FatalKind::WrongVersion));
        assert!(state.servers.is_empty());
    }

    #[test]
    fn who_is_newer_than_the_metadata_is_refused() {
        let mut state = state();
        enlist(&mut state, request(1, None));
        enlist(&mut state, request(2, None));
        let copy = state.clone();
        let newest = enlist(&mut state, request(3, Some(2)));
        // An old copy of the metadata was restored.
        let mut state = copy;
        let refused = state.enlist(request(4, Some(newest.0))).err().unwrap();
        assert_eq!(refused.fatal_kind(), Some(FatalKind::Other));
        assert!(
            refused.to_string().contains("metadata is older"),
            "{refused}"
        );
        assert_eq!(state.globals.last_server, ServerId(2));
        assert!(state.is_up(ServerId(1)) && state.is_up(ServerId(2)));
        // A server that had the last id is no stranger.
        assert_eq!(enlist(&mut state, request(5, Some(2))), newest);
    }

    #[test]
    fn a_list_has_10000_servers_at_most() {
        let mut state = state();
        let first = enlist(&mut state, request(1, None));
        let record = ServerRecord::clone(&state.servers[&first]);
        for id in 2..=9999 {
            let mut other = record.clone();
            other.attempt = id;
            other.info.id = ServerId(id);
            other.info.address = format!("host:{id}");
            state.servers.insert(ServerId(id), Arc::new(other));
        }
        state.globals.last_server = ServerId(9999);
        enlist(&mut state, request(10_000, None));
        let before = state.clone();
        // A server that comes back is one more, too, so its former life goes on.
        for replaces in [None, Some(1)] {
            let refused = state.enlist(request(10_001, replaces)).err().unwrap();
            assert_eq!(refused.fatal_kind(), Some(FatalKind::Other));
        }
        assert!(state.servers == before.servers && state.globals == before.globals);
        // One that is there is known, and one that is gone makes room.
        assert_eq!(enlist(&mut state, request(1, None)), first);
        state.servers.remove(&ServerId(2));
        enlist(&mut state, request(10_001, None));
    }

    // shows: MEM-6
    #[test]
    fn epochs_only_grow_and_only_for_members() {
        let mut state = state();
        let server = enlist(&mut state, request(1, None));
        let mut set = |segment, epoch| {
            let request = SetReplicationEpoch {
                cluster: ClusterId(7),
                server,
                log: LogId(0),
                segment: SegmentId(segment),
                epoch: ReplicationEpoch(epoch),
            };
            let result = state.set_epoch(&request);
            (result, state.servers[&server].epochs[&LogId(0)])
        };
        assert_eq!(set(5, 1), (Ok(()), (SegmentId(5), ReplicationEpoch(1))));
        assert_eq!(set(4, 9), (Ok(()), (SegmentId(5), ReplicationEpoch(1))));
        assert_eq!(set(5, 2), (Ok(()), (SegmentId(5), ReplicationEpoch(2))));
        assert_eq!(set(6, 1), (Ok(()), (SegmentId(6), ReplicationEpoch(1))));
        let mut request = SetReplicationEpoch {
            cluster: ClusterId(8),
            server,
            log: LogId(0),
            segment: SegmentId(7),
            epoch: ReplicationEpoch(1),
        };
        let kind = state.set_epoch(&request).unwrap_err().fatal_kind();
        assert_eq!(kind, Some(FatalKind::WrongCluster));
        request.cluster = ClusterId(7);
        state.mark_crashed(server);
        let kind = state.set_epoch(&request).unwrap_err().fatal_kind();
        assert_eq!(kind, Some(FatalKind::NotInCluster));
    }
}
