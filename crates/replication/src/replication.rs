//! The replication of one master, as others see it.

use crate::machine::Machine;
use crate::options::ReplicationOptions;
use crate::placement::{Placement, View};
use crate::status::{Places, ReplicationStatus};
use crate::task::{LogShare, LogTask};
use crate::waiters::Synced;
use core::task::Waker;
use pluvio_env::{Env, TaskHandle, watch};
use pluvio_log::LogSpace;
use pluvio_trace::TraceContext;
use pluvio_units::{ClusterId, CoreId, LogId, LogPosition, SegmentId, ServerId};
use pluvio_wire::{
    FatalKind, IsReplicaNeeded, IsReplicaNeededReply, Refusal, ReplicasLost, ServerList,
};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio::sync::Notify;

/// The replication of one master. Cheap to clone; all clones are the same.
#[derive(Clone)]
pub struct Replication {
    inner: Arc<Inner>,
    logs: Arc<[Arc<LogShare>]>,
    tasks: Arc<Mutex<BTreeMap<LogId, TaskHandle>>>,
}

pub(crate) struct Inner {
    pub(crate) env: Env,
    pub(crate) space: Arc<LogSpace>,
    pub(crate) options: ReplicationOptions,
    placement: Mutex<Placement>,
    list: Mutex<Arc<ServerList>>,
    /// Told whenever a digest or a side segment has become durable.
    pub(crate) progress: Notify,
    doubt: watch::Sender<Option<String>>,
    /// The backup that a write did not reach last.
    suspects: watch::Sender<Option<ServerId>>,
    /// Whether enough backups are up for an acknowledgement; follows the server list.
    enough_backups: AtomicBool,
}

impl Replication {
    /// Starts a task for every log of `space` that has a head, each on the core of its log. Nothing
    /// becomes durable before [`Replication::server_list_changed`] has shown enough backups.
    #[must_use]
    pub fn start(env: Env, space: Arc<LogSpace>, options: ReplicationOptions) -> Self {
        let view = View {
            me: options.me,
            rack: options.rack.clone(),
            list: Arc::default(),
            settings: options.settings,
        };
        let inner = Arc::new(Inner {
            env,
            space,
            options,
            placement: Mutex::default(),
            list: Mutex::default(),
            progress: Notify::new(),
            doubt: watch::Sender::new(None),
            suspects: watch::Sender::new(None),
            enough_backups: AtomicBool::new(false),
        });
        let all = inner.space.all_logs();
        let logs = all.map(|_| Arc::new(LogShare::new(Machine::new(view.clone()))));
        let replication = Self {
            logs: logs.collect(),
            inner,
            tasks: Arc::default(),
        };
        for log in replication.inner.space.logs() {
            replication.start_log(log);
        }
        replication
    }

    /// Starts the task of a log that has got its head since, unless it runs.
    pub fn start_log(&self, log: LogId) {
        let mut tasks = self.tasks.lock().unwrap_or_else(PoisonError::into_inner);
        tasks.entry(log).or_insert_with(|| {
            let (inner, share) = (&self.inner, self.share(log));
            let notify = Arc::clone(&share.notify);
            inner
                .space
                .set_append_hook(log, Box::new(move || notify.notify_one()));
            let task = LogTask::new(Arc::clone(inner), log, Arc::clone(share));
            let core = CoreId(log.0 % inner.env.tasks.cores());
            inner.env.tasks.spawn(core, "replicate log", task.run())
        });
    }

    /// Waits until a log has a head durably open.
    pub async fn log_opened(&self, log: LogId) {
        self.until(|| self.share(log).machine().is_open()).await;
    }

    /// A new server list. Older ones are ignored. Replicas on servers that are no longer up are
    /// replaced.
    pub fn server_list_changed(&self, list: &ServerList) {
        {
            let mut current = self
                .inner
                .list
                .lock()
                .unwrap_or_else(PoisonError::into_inner);
            if current.version >= list.version {
                return;
            }
            *current = Arc::new(list.clone());
        }
        let view = self.inner.view();
        let enough = view.places() >= view.needed();
        self.inner.enough_backups.store(enough, Ordering::Relaxed);
        for (log, share) in self.inner.space.all_logs().zip(self.logs.iter()) {
            let mut machine = share.machine();
            let mut placement = self.inner.placement();
            placement.keep_listed(list);
            // Read again: of two lists that come at the same time the newer one wins.
            machine.view_changed(self.inner.view_of(log), &mut placement);
            share.notify.notify_one();
        }
    }

    /// Whether enough backups are up for an acknowledgement. While not, nothing new should be
    /// appended: it would fill the memory and its writers would wait. One load.
    #[must_use]
    pub fn enough_backups(&self) -> bool {
        self.inner.enough_backups.load(Ordering::Relaxed)
    }

    /// Waits until `log` is durable up to `position` (REP-11). Cheap; any number may wait.
    pub fn synced(&self, log: LogId, position: LogPosition) -> Synced {
        Synced {
            space: Arc::clone(&self.inner.space),
            waiters: Arc::clone(&self.share(log).waiters),
            log,
            position,
            key: None,
        }
    }

    /// Lets `waker` be woken once `log` is durable up to `position`, unless it is already: then
    /// this gives false. [`Replication::give_up_waiting`] takes it back. `number` tells those who
    /// wait for one position apart; it has its top bit set.
    #[must_use]
    pub fn wake_when_durable(
        &self,
        log: LogId,
        position: LogPosition,
        number: u64,
        waker: &Waker,
    ) -> bool {
        let waiters = &self.share(log).waiters;
        waiters.enter(position, number, waker);
        // REP-11: the position may have become durable before the waker was there to be woken.
        let waits = !self.inner.space.is_durable(log, position);
        if !waits {
            waiters.leave(position, number);
        }
        waits
    }

    /// Takes back what was asked for by [`Replication::wake_when_durable`].
    pub fn give_up_waiting(&self, log: LogId, position: LogPosition, number: u64) {
        self.share(log).waiters.leave(position, number);
    }

    /// Waits until every log has a head durably open: from then on recovery can prove that it has
    /// found the whole log of this master.
    pub async fn opened(&self) {
        let is_open = |log: LogId| self.share(log).machine().is_open();
        self.until(|| self.inner.space.logs().all(is_open)).await;
    }

    /// Waits until side segments of `log`, which the caller has closed, are durable, so that their
    /// side log can be committed. Segments that were freed count as durable.
    pub async fn side_segments_durable(&self, log: LogId, segments: &[SegmentId]) {
        let share = self.share(log);
        self.until(|| {
            let machine = share.machine();
            segments.iter().all(|id| machine.is_side_durable(*id))
        })
        .await;
    }

    async fn until(&self, condition: impl Fn() -> bool) {
        loop {
            // Registered before the look, so that nothing that happens after it is missed.
            let told = self.inner.progress.notified();
            if condition() {
                return;
            }
            told.await;
        }
    }

    /// Whether replicas that a restarted backup has found are still of use [RAMCloud §8].
    ///
    /// # Errors
    /// `WrongCluster`: they are those of another master.
    pub fn is_replica_needed(
        &self,
        question: &IsReplicaNeeded,
    ) -> Result<IsReplicaNeededReply, Refusal> {
        self.check_cluster(question.cluster)?;
        let from = question.backup;
        let needed = |id: &SegmentId| {
            let mut logs = self.logs.iter();
            logs.any(|share| share.machine().is_needed(from, *id))
        };
        Ok(IsReplicaNeededReply {
            needed: question.segments.iter().map(needed).collect(),
        })
    }

    /// A backup goes on without these replicas: they are replaced (REP-16).
    ///
    /// # Errors
    /// `WrongCluster`: they are those of another master.
    pub fn replicas_lost(&self, message: &ReplicasLost) -> Result<(), Refusal> {
        self.check_cluster(message.cluster)?;
        let (server, segments) = (message.backup, message.segments.len());
        tracing::warn!(%server, segments, "a backup has lost replicas");
        for share in self.logs.iter() {
            {
                let mut machine = share.machine();
                let mut placement = self.inner.placement();
                for id in &message.segments {
                    machine.lost_at(*id, server, &mut placement);
                }
            }
            share.notify.notify_one();
        }
        Ok(())
    }

    fn check_cluster(&self, theirs: ClusterId) -> Result<(), Refusal> {
        let ours = self.inner.options.cluster;
        if ours == theirs {
            return Ok(());
        }
        let message = format!(
            "this master belongs to cluster {:016x}, the backup to {:016x}",
            ours.0, theirs.0
        );
        Err(Refusal::fatal(FatalKind::WrongCluster, message))
    }

    /// How it stands.
    #[must_use]
    pub fn status(&self) -> ReplicationStatus {
        let now = self.inner.env.clock.now();
        let mut all = ReplicationStatus::default();
        for log in self.inner.space.logs() {
            let machine = self.share(log).machine();
            let mut status = machine.status(&self.inner.placement(), now);
            if log.0 >= self.inner.space.first_logs() {
                // The status of the server tells the cluster's settings.
                status.replicas_wanted = all.replicas_wanted;
                status.replicas_needed = all.replicas_needed;
                status.synced = all.synced;
            }
            all.add(status);
        }
        all
    }

    /// Every place that may have a replica, for checkers.
    #[must_use]
    pub fn places(&self) -> Places {
        let mut places = Places::new();
        for share in self.logs.iter() {
            share.machine().places(&mut places);
        }
        places
    }

    /// The backups of which every recovery of this master needs at least one; `None` while that
    /// cannot be said. As recovery needs a head of every log, one log is enough to ask.
    #[must_use]
    pub fn witnesses(&self) -> Option<Vec<ServerId>> {
        self.logs.first()?.machine().witnesses()
    }

    /// Follows signs that this master is no longer a member: a backup or the coordinator refused
    /// it. The server must ask the coordinator then [RAMCloud §7.11]. Its lease says which requests
    /// it may answer meanwhile.
    #[must_use]
    pub fn watch_doubt(&self) -> watch::Receiver<Option<String>> {
        self.inner.doubt.subscribe()
    }

    /// Follows the backups that writes did not reach, the latest one: nothing listens there, or no
    /// answer came. It may be down, or its disk slow: a ping tells. Told again for each such write.
    #[must_use]
    pub fn watch_suspects(&self) -> watch::Receiver<Option<ServerId>> {
        self.inner.suspects.subscribe()
    }

    /// Makes the next bytes that `log` sends to backups a part of a trace, or none of them. To be
    /// called on the core of the log, just before an operation that may append; with `None` if it
    /// appended nothing. The write that has the bytes may have those of other operations, too. A
    /// later call takes the place of an earlier one.
    pub fn trace_next(&self, log: LogId, context: Option<TraceContext>) {
        self.share(log).traced.set(context);
    }

    /// Ends all tasks: nothing becomes durable any more.
    pub fn stop(&self) {
        let tasks = self.tasks.lock().unwrap_or_else(PoisonError::into_inner);
        for task in tasks.values() {
            task.abort();
        }
    }

    fn share(&self, log: LogId) -> &Arc<LogShare> {
        &self.logs[usize::from(log.0)]
    }
}

impl Inner {
    pub(crate) fn placement(&self) -> MutexGuard<'_, Placement> {
        self.placement
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn list(&self) -> Arc<ServerList> {
        Arc::clone(&self.list.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn view(&self) -> View {
        let list = self.list();
        let given = list.settings.filter(|_| self.options.follows_list);
        let mut settings = given.unwrap_or(self.options.settings);
        // Only logs of classes may keep none (REP-20).
        settings.replicas = settings.replicas.max(1);
        View {
            me: self.options.me,
            rack: self.options.rack.clone(),
            list,
            settings,
        }
    }

    /// [`Inner::view`] of a log: those of classes are replicated as their class says (REP-18).
    fn view_of(&self, log: LogId) -> View {
        let mut view = self.view();
        if let Some(number) = log.0.checked_sub(self.space.first_logs())
            && let Some(class) = view.list.class(number + 1)
        {
            view.settings = class.settings(&view.settings);
        }
        view
    }

    /// A write did not reach a backup.
    pub(crate) fn suspect(&self, server: ServerId) {
        self.suspects.send_replace(Some(server));
    }

    pub(crate) fn doubt(&self, why: String) {
        self.doubt.send_if_modified(|current| {
            let new = current.as_ref() != Some(&why);
            if new {
                tracing::warn!(why, "this server may no longer be a member");
                *current = Some(why);
            }
            new
        });
    }
}
