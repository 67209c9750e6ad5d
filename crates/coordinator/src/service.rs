//! The coordinator as others see it: starting it, and the requests it answers.

use crate::context::Context;
use crate::lead::{Campaign, CampaignError, Tenure};
use crate::ledger::Ledger;
use crate::members::{Detector, Registry};
use crate::options::CoordinatorOptions;
use crate::refusals::{not_leader, stopping};
use crate::state::{LoadError, State};
use crate::status::cluster_status;
use crate::store::{MetadataStore, StoreError};
use crate::tasks::{LOOP, TaskGroup};
use crate::work::{Inventory, Supervisor, Works, reconstruct_without};
use core::time::Duration;
use pluvio_env::{Env, Frame, Handled, Peer, Service};
use pluvio_units::{ClusterId, ServerId};
use pluvio_wire::{
    Answer, Balance, ChangeSettings, CoordinatorOp, CreateTable, DrainServer, DropTable, Enlist,
    FatalKind, FinalizeVersion, GetClusterStatus, GetDrain, GetLeader, GetLeaderReply,
    GetMigration, GetServerList, GetServerListReply, GetServerStatus, GetTable, GiveUpLost, Header,
    HintServerCrashed, LeaveCluster, ListTables, ListTablesReply, MigrateTablet, Opcode,
    PartitionReplayed, Ping, PingReply, RecoveryMasterFinished, Refusal, Request, RetryReason,
    RoleOp, ServerOp, ServerStatus, SetReplicationEpoch, SetTable, SplitTablet, StartRecoveryReply,
    TRACED, TabletReceived, Versions, decode, handled, reply,
};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

/// Requests being worked on at a time; more are asked to come again. Each holds a few hundred
/// bytes; the limit is for floods.
const REQUESTS_MAX: usize = 4096;

/// Why a coordinator cannot start.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CoordinatorError {
    /// The metadata store failed. Retryable once its cause is gone.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The cluster speaks a version that this program does not. Nothing was changed.
    #[error(
        "the cluster speaks version {active}, and this program {own}: use a program that speaks it; there is no way back after `pluvio finalize`"
    )]
    UnknownVersion {
        /// The version that the cluster speaks.
        active: u16,
        /// The versions that this program speaks.
        own: Versions,
    },
    /// An option makes no sense. Nothing was changed.
    #[error("{0}")]
    Option(String),
    /// The store was written by a version of pluvio that this one does not understand.
    #[error(
        "the metadata has format {0}, which this version of pluvio does not know: use the version that wrote it"
    )]
    UnknownFormat(u16),
    /// A record of the store cannot be decoded, or is missing.
    #[error("the metadata is damaged: {0}: restore it from a copy")]
    Damaged(String),
    /// The store holds what no coordinator has written.
    #[error(
        "the metadata store holds {0} entries at this place, and none is a coordinator's: give it another path"
    )]
    Foreign(usize),
    /// The store was read before and is empty now, or holds another cluster. Nothing was written to
    /// it.
    #[error(
        "the metadata store {found}, but this coordinator has seen cluster {:016x} there: restore the store's data, or start the coordinator again to use it as it is", .cluster.0
    )]
    Lost {
        /// The cluster that was there.
        cluster: ClusterId,
        /// The data found instead.
        found: String,
    },
    /// The store holds older data than this coordinator or a server has seen of the same cluster.
    /// Nothing was written to it since that was found.
    #[error(
        "the metadata store has gone back: {0}: stop all coordinators and restore the newest copy of its data"
    )]
    WentBack(String),
}

impl CoordinatorError {
    /// The same, of a process that has seen a cluster in the store.
    pub(crate) fn after(error: CampaignError, known: Option<ClusterId>) -> Self {
        match (error, known) {
            (CampaignError::Store(error), _) => Self::Store(error),
            (CampaignError::Foreign(count), _) => Self::Foreign(count),
            (CampaignError::WentBack(why), _) => Self::WentBack(why),
            (CampaignError::Lost, Some(cluster)) => Self::lost(cluster),
            (CampaignError::Another(found), known) => Self::Lost {
                // Only a process that knows a cluster finds another one.
                cluster: known.unwrap_or(found),
                found: format!("holds cluster {:016x}", found.0),
            },
            (CampaignError::Lost, None) => Self::Store(StoreError(
                "is empty, but a leader's record was there".into(),
            )),
        }
    }

    pub(crate) fn lost(cluster: ClusterId) -> Self {
        let found = "is empty".to_owned();
        Self::Lost { cluster, found }
    }
}

impl From<LoadError> for CoordinatorError {
    fn from(error: LoadError) -> Self {
        match error {
            LoadError::Store(error) => Self::Store(error),
            LoadError::Format(format) => Self::UnknownFormat(format),
            LoadError::Damaged(what) => Self::Damaged(what),
        }
    }
}

/// The parts of a coordinator that leads.
struct Office {
    context: Arc<Context>,
    detector: Arc<Detector>,
    registry: Registry,
    works: Arc<Works>,
}

impl Office {
    /// Takes up what is unfinished.
    fn open(env: Env, tenure: Arc<Tenure>, options: CoordinatorOptions, state: State) -> Self {
        let options = Arc::new(options);
        let tasks = Arc::new(TaskGroup::new(&env));
        let ledger = Ledger::new(&env, tasks.clone(), tenure, state);
        let detector = Detector::new(&env, options.clone(), tasks.clone(), ledger.clone());
        let registry = Registry::new(&env, ledger.clone());
        let context = Context::new(env, options, tasks.clone(), ledger, &detector);
        let works = Works::new(&context);
        let supervisor = Supervisor::new(context.clone(), works.clone());
        tasks.spawn("supervise", supervisor.supervise());
        tasks.spawn("watch over", detector.clone().watch_over());
        Self {
            context,
            detector,
            registry,
            works,
        }
    }
}

/// A running coordinator. Answers requests as a [`Service`]; give it to `Network::listen`.
/// Everything it does ends when it is dropped.
pub struct Coordinator {
    office: Arc<Office>,
    /// What its process drew at its start.
    candidate: u64,
    in_progress: Arc<AtomicUsize>,
    requests: AtomicU64,
}

impl Coordinator {
    /// Leads as soon as nobody else does, and takes up what is unfinished. For stores that one
    /// process has alone; see [`Candidate`](crate::Candidate) for others.
    ///
    /// # Errors
    /// The store cannot be read or written, or holds what this version does not understand.
    pub async fn start(
        env: Env,
        store: Arc<dyn MetadataStore>,
        options: CoordinatorOptions,
    ) -> Result<Self, CoordinatorError> {
        let candidate = env.rng.next_u64().max(1);
        let campaign = Campaign {
            env: env.clone(),
            store,
            candidate,
            address: String::new(),
            known: None,
        };
        let tenure = campaign.run(&mut None, |_| (), |_| ()).await;
        let tenure = tenure.map_err(|error| CoordinatorError::after(error, None))?;
        env.tasks.spawn(LOOP, "keep", tenure.clone().keep());
        Self::take_office(env, tenure, options, candidate, None).await
    }

    /// Reads the state, or begins a new cluster in an empty store, and takes up what is unfinished.
    ///
    /// # Errors
    /// As of [`Coordinator::start`]; [`CoordinatorError::Lost`] when there is another cluster than
    /// `known`.
    pub(crate) async fn take_office(
        env: Env,
        tenure: Arc<Tenure>,
        options: CoordinatorOptions,
        candidate: u64,
        known: Option<ClusterId>,
    ) -> Result<Self, CoordinatorError> {
        let deposed = || StoreError("has another leader meanwhile".into());
        tenure.unpack().await?.map_err(|_| deposed())?;
        let mut state = match State::load(tenure.store()).await? {
            Some(state) => match known.filter(|known| *known != state.globals.cluster) {
                None => state,
                Some(cluster) => {
                    let found = format!("holds cluster {:016x}", state.globals.cluster.0);
                    return Err(CoordinatorError::Lost { cluster, found });
                }
            },
            None => {
                if let Some(cluster) = known {
                    return Err(CoordinatorError::lost(cluster));
                }
                let mut state = State::new(ClusterId(env.rng.next_u64().max(1)));
                state.globals.active = options.versions.newest;
                let settled = state.begin_settings(&options.settings);
                settled.map_err(CoordinatorError::Option)?;
                let stored = tenure.apply(state.all_changes()).await;
                stored.map_err(|_| deposed())?;
                tracing::info!(cluster = %format_args!("{:016x}", state.globals.cluster.0), "new cluster");
                state
            }
        };
        if let Err(broken) = state.holds() {
            // If another one leads by now, it may have changed something between two reads.
            return Err(match tenure.holds_office().await? {
                true => CoordinatorError::Damaged(broken),
                false => deposed().into(),
            });
        }
        let (active, own) = (state.globals.active, options.versions);
        if !own.speak(active) {
            return Err(CoordinatorError::UnknownVersion { active, own });
        }
        let before = state.clone();
        let settled = state.begin_settings(&options.settings);
        if settled.map_err(CoordinatorError::Option)? {
            state.settle_list(&before);
            let stored = tenure.apply(state.changes_since(&before)).await;
            stored.map_err(|_| deposed())?;
        }
        tracing::info!(
            term = tenure.term(),
            active,
            servers = state.servers.len(),
            tables = state.tables.len(),
            "coordinator started"
        );
        Ok(Self {
            office: Arc::new(Office::open(env, tenure, options, state)),
            candidate,
            in_progress: Arc::new(AtomicUsize::new(0)),
            requests: AtomicU64::new(0),
        })
    }

    /// Whether it leads for sure at this moment.
    #[must_use]
    pub fn leads(&self) -> bool {
        self.tenure().leads()
    }

    pub(crate) fn tenure(&self) -> &Arc<Tenure> {
        self.office.context.ledger.tenure()
    }

    /// The cluster's id.
    #[must_use]
    pub fn cluster(&self) -> ClusterId {
        self.office.context.state().globals.cluster
    }

    /// Whether the log of a member would be found complete if it had crashed and backups offered
    /// this. For checkers.
    ///
    /// # Errors
    /// What would be missing, for people.
    pub fn would_recover(
        &self,
        master: ServerId,
        offers: Vec<(ServerId, StartRecoveryReply)>,
    ) -> Result<(), String> {
        let state = self.office.context.state();
        let Some(record) = state.servers.get(&master) else {
            return Err(format!("server {master} is no member"));
        };
        let inventory = |(backup, offer): (ServerId, StartRecoveryReply)| Inventory {
            backup,
            disk_mb_per_s: 0,
            room: None,
            replicas: offer.replicas,
        };
        let inventories: Vec<_> = offers.into_iter().map(inventory).collect();
        let weak = state.weak_logs(record);
        let map = reconstruct_without(&inventories, &record.epochs, None, None, &weak);
        map.map(drop).map_err(|incomplete| incomplete.to_string())
    }

    /// Decodes a request and answers it at once.
    fn now<R: Request>(
        request: &Frame,
        act: impl FnOnce(R) -> Result<R::Reply, Refusal>,
    ) -> Handled {
        Handled::Now(reply::<R>(&decode::<R>(request).and_then(|(_, r)| act(r))))
    }

    /// Decodes a request and answers it when `work` ends; `work` runs to its end in any case.
    fn later<R, F>(&self, request: &Frame, work: impl FnOnce(Arc<Office>, R) -> F) -> Handled
    where
        R: Request + 'static,
        R::Reply: 'static,
        F: Future<Output = Result<R::Reply, Refusal>> + Send + 'static,
    {
        let request = match decode::<R>(request) {
            Ok((_, request)) => request,
            Err(refusal) => return Handled::Now(reply::<R>(&Err(refusal))),
        };
        let Some(slot) = Slot::take(&self.in_progress) else {
            let busy = Refusal::retry(Duration::from_millis(20), RetryReason::Busy);
            return Handled::Now(reply::<R>(&Err(busy)));
        };
        let work = work(self.office.clone(), request);
        let tasks = self.office.context.tasks.clone();
        handled::<R>(Answer::Later(Box::pin(async move {
            let _slot = slot;
            tasks.detached(R::OPCODE.name(), work).await
        })))
    }
}

impl Drop for Coordinator {
    fn drop(&mut self) {
        self.office.context.tasks.end();
    }
}

/// One of the requests in progress.
struct Slot(Arc<AtomicUsize>);

impl Slot {
    fn take(count: &Arc<AtomicUsize>) -> Option<Self> {
        // Relaxed: a count, nothing is published by it.
        if count.fetch_add(1, Ordering::Relaxed) >= REQUESTS_MAX {
            count.fetch_sub(1, Ordering::Relaxed);
            return None;
        }
        Some(Self(count.clone()))
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// The answer to an operation that the coordinator does not have.
fn unsupported(number: u16) -> Handled {
    let message = format!("the coordinator does not answer operation {number}");
    refused(number, Refusal::fatal(FatalKind::Unsupported, message))
}

fn refused(opcode: u16, refusal: Refusal) -> Handled {
    Handled::Now(Frame {
        // Refusals of all operations are encoded alike.
        opcode,
        ..reply::<Ping>(&Err(refusal))
    })
}

/// The answer of a coordinator that does not lead.
pub(crate) fn refuse_as_not_leader(opcode: u16) -> Handled {
    refused(opcode, not_leader())
}

impl Service for Coordinator {
    fn handle(&self, _peer: Peer, request: Frame) -> Handled {
        self.answer(request)
    }
}

impl Coordinator {
    fn answer(&self, request: Frame) -> Handled {
        self.requests.fetch_add(1, Ordering::Relaxed);
        let Some(opcode) = Opcode::from_number(request.opcode) else {
            if request.opcode != TRACED {
                return unsupported(request.opcode);
            }
            let handled = pluvio_trace::answer(&request, |_, request| self.answer(request));
            return handled.unwrap_or_else(|refusal| Handled::Now(reply::<Ping>(&Err(refusal))));
        };
        if self.office.context.tasks.is_ending() {
            return refused(request.opcode, stopping());
        }
        if !self.tenure().leads() && opcode != Opcode::GetLeader {
            return refuse_as_not_leader(request.opcode);
        }
        if let Err(refusal) = self.check_meant(&request) {
            return refused(request.opcode, refusal);
        }
        match opcode.by_role() {
            RoleOp::Coordinator(op) => self.coordinator_op(op, &request),
            RoleOp::Any(op) => self.server_op(op, &request),
            RoleOp::Data(_) | RoleOp::Master(_) | RoleOp::Backup(_) => unsupported(request.opcode),
        }
    }

    /// # Errors
    /// The caller means the coordinator of another cluster.
    fn check_meant(&self, request: &Frame) -> Result<(), Refusal> {
        let (header, _) = Header::decode(&request.meta)?;
        match header.cluster {
            ClusterId(0) => Ok(()),
            meant => self.office.context.state().check_cluster(meant),
        }
    }

    fn coordinator_op(&self, op: CoordinatorOp, request: &Frame) -> Handled {
        let state = || self.office.context.state();
        match op {
            CoordinatorOp::GetLeader => Self::now::<GetLeader>(request, |_| {
                Ok(GetLeaderReply {
                    candidate: self.candidate,
                    leads: self.tenure().leads(),
                    lost_servers: self.tenure().contact().is_lost(),
                    trouble: self.tenure().trouble(),
                    ..GetLeaderReply::default()
                })
            }),
            CoordinatorOp::GetServerList => Self::now::<GetServerList>(request, |_| {
                let state = state();
                Ok(GetServerListReply {
                    cluster: state.globals.cluster,
                    list: state.list(),
                })
            }),
            CoordinatorOp::GetTable => Self::now::<GetTable>(request, |get| {
                let state = state();
                let info = state.info(state.find(&get.table)?);
                Ok(self.office.works.quotas.described(info))
            }),
            CoordinatorOp::ListTables => Self::now::<ListTables>(request, |_| {
                let quotas = &self.office.works.quotas;
                let infos = state().infos().into_iter();
                Ok(ListTablesReply {
                    tables: infos.map(|info| quotas.described(info)).collect(),
                })
            }),
            CoordinatorOp::HintServerCrashed => Self::now::<HintServerCrashed>(request, |hint| {
                self.office.detector.hinted(&hint);
                Ok(())
            }),
            CoordinatorOp::Enlist => self
                .later::<Enlist, _>(request, |office, enlist| async move {
                    office.registry.enlist(enlist).await
                }),
            CoordinatorOp::SetReplicationEpoch => {
                self.later::<SetReplicationEpoch, _>(request, |office, set| async move {
                    let ledger = &office.context.ledger;
                    ledger.change(move |state| state.set_epoch(&set)).await
                })
            }
            CoordinatorOp::CreateTable => self
                .later::<CreateTable, _>(request, |office, create| async move {
                    office.works.assignments.create_table(create).await
                }),
            CoordinatorOp::DropTable => self
                .later::<DropTable, _>(request, |office, drop| async move {
                    office.works.drops.drop_table(drop).await
                }),
            CoordinatorOp::SetTable => self
                .later::<SetTable, _>(request, |office, set| async move {
                    office.works.quotas.set_table(set).await
                }),
            CoordinatorOp::SplitTablet => self
                .later::<SplitTablet, _>(request, |office, split| async move {
                    office.works.splits.split_tablet(split).await
                }),
            CoordinatorOp::MigrateTablet => {
                self.later::<MigrateTablet, _>(request, |office, migrate| async move {
                    office.works.migrations.migrate_for_caller(migrate).await
                })
            }
            CoordinatorOp::GetMigration => Self::now::<GetMigration>(request, |get| {
                Ok(self.office.works.migrations.get(get.migration))
            }),
            CoordinatorOp::DrainServer => self
                .later::<DrainServer, _>(request, |office, drain| async move {
                    office.works.drains.drain_server(drain).await
                }),
            CoordinatorOp::GetDrain => {
                Self::now::<GetDrain>(request, |get| self.office.works.drains.status(get.server))
            }
            CoordinatorOp::LeaveCluster => self
                .later::<LeaveCluster, _>(request, |office, leave| async move {
                    office.works.drains.leave(leave).await
                }),
            CoordinatorOp::Balance => self
                .later::<Balance, _>(request, |office, request| async move {
                    office.works.balances.ask(request.wish).await
                }),
            CoordinatorOp::GiveUpLost => self
                .later::<GiveUpLost, _>(request, |office, lost| async move {
                    office.works.recoveries.give_up(lost).await
                }),
            CoordinatorOp::TabletReceived => self
                .later::<TabletReceived, _>(request, |office, report| async move {
                    office.works.migrations.tablet_received(report).await
                }),
            CoordinatorOp::ChangeSettings => {
                self.later::<ChangeSettings, _>(request, |office, change| async move {
                    let ledger = &office.context.ledger;
                    let changing =
                        ledger.change_for_caller(move |state| state.change_settings(&change));
                    let settings = changing.await?;
                    tracing::info!(%settings, "settings of the cluster");
                    Ok(settings)
                })
            }
            CoordinatorOp::FinalizeVersion => {
                self.later::<FinalizeVersion, _>(request, |office, _| async move {
                    let (ledger, own) = (&office.context.ledger, office.context.options.versions);
                    let raised = ledger
                        .change_for_caller(move |state| state.finalize(own))
                        .await?;
                    tracing::info!(
                        former = raised.former,
                        active = raised.active,
                        "version of the cluster"
                    );
                    Ok(raised)
                })
            }
            CoordinatorOp::GetClusterStatus => self
                .later::<GetClusterStatus, _>(request, |office, _| async move {
                    cluster_status(&office.context, &office.works).await
                }),
            CoordinatorOp::PartitionReplayed => self
                .later::<PartitionReplayed, _>(request, |office, report| async move {
                    office.works.recoveries.replayed(report).await
                }),
            CoordinatorOp::RecoveryMasterFinished => self
                .later::<RecoveryMasterFinished, _>(request, |office, report| async move {
                    office.works.recoveries.finished(report).await
                }),
        }
    }

    /// What every process answers.
    fn server_op(&self, op: ServerOp, request: &Frame) -> Handled {
        match op {
            ServerOp::Ping => Self::now::<Ping>(request, |ping| {
                let state = self.office.context.state();
                Ok(PingReply {
                    server: ServerId(0),
                    server_list: state.globals.list_version,
                    caller_is_member: ping.from == ServerId(0) || state.is_up(ping.from),
                    cluster: state.globals.cluster,
                })
            }),
            ServerOp::GetServerStatus => Self::now::<GetServerStatus>(request, |_| {
                Ok(ServerStatus {
                    requests: self.requests.load(Ordering::Relaxed),
                    ..ServerStatus::default()
                })
            }),
            ServerOp::UpdateServerList | ServerOp::ChangeServerList | ServerOp::GetTopKeys => {
                unsupported(request.opcode)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::MemoryStore;
    use pluvio_env::Address;
    use pluvio_sim::{Sim, SimOptions};
    use pluvio_units::{CoreId, HashKind, ServerId};
    use pluvio_wire::{QuotaWish, RpcError, encode, reply_to};

    #[test]
    fn a_caller_that_means_another_cluster_is_refused() {
        let sim = Sim::new(1, SimOptions::default());
        let process = sim.process("coordinator");
        let (store, options) = (Arc::new(MemoryStore::new()), CoordinatorOptions::default());
        let starting = Coordinator::start(process.env, store, options);
        let started = sim.block_on(process.id, starting, Duration::from_secs(10));
        let coordinator = started.expect("it ends").expect("the store is empty");
        let own = coordinator.cluster();
        let list = |meant: ClusterId| {
            let peer = Peer {
                address: Address::from("client"),
                core: CoreId(0),
            };
            let header = Header::within(meant, ServerId(0));
            let handled = coordinator.handle(peer, encode(&header, &ListTables {}));
            let Handled::Now(answer) = handled else {
                panic!("it is answered at once");
            };
            reply_to::<ListTables>(&Address::from("coordinator"), answer)
        };
        assert!(list(own).is_ok() && list(ClusterId(0)).is_ok());
        let Err(RpcError::Refused(refused)) = list(ClusterId(own.0 ^ 1)) else {
            panic!("it is another one");
        };
        assert_eq!(refused.fatal_kind(), Some(FatalKind::WrongCluster));
    }

    #[test]
    fn whoever_comes_while_4096_requests_are_in_progress_is_asked_to_come_again() {
        let sim = Sim::new(1, SimOptions::default());
        let process = sim.process("coordinator");
        let store = Arc::new(MemoryStore::new());
        let options = CoordinatorOptions::default();
        let starting = Coordinator::start(process.env, store, options);
        let started = sim.block_on(process.id, starting, Duration::from_secs(10));
        let coordinator = started.expect("it ends").expect("the store is empty");
        let (name, span, hash) = ("t".to_owned(), None, HashKind::Seeded);
        let request = encode(
            &Header::default(),
            &CreateTable {
                name,
                span,
                hash,
                quota: QuotaWish::default(),
                durability: pluvio_wire::DurabilityWish::default(),
            },
        );
        let handle = || {
            let peer = Peer {
                address: Address::from("client"),
                core: CoreId(0),
            };
            coordinator.handle(peer, request.clone())
        };
        // Nobody drives them, so they stay.
        let mut in_progress: Vec<Handled> = (0..4096).map(|_| handle()).collect();
        let is_later = |handled: &Handled| matches!(handled, Handled::Later(_));
        assert!(in_progress.iter().all(is_later));
        for _ in 0..2 {
            let Handled::Now(refused) = handle() else {
                panic!("it is one too many");
            };
            let busy = Refusal::retry(Duration::from_millis(20), RetryReason::Busy);
            assert_eq!(refused, reply::<CreateTable>(&Err(busy)));
        }
        in_progress.pop();
        assert!(is_later(&handle()), "there is room again");
    }
}
