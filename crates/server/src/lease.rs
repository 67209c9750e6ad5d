//! How long this server's master may answer (MASTER-4; [RAMCloud §7.11]).
//!
//! Where there are replicas, writes need no care: backups that take part in a recovery refuse them.
//! Reads need no backup, so a server that was declared dead and does not know it would go on
//! showing what others have changed. So:
//!
//! - LEASE-1: the master answers for [`LEASE`] from the moment when it asked its witnesses, if
//!   all said that they take part in no recovery of it. The witnesses are the backups of its first
//!   log's open heads ([`Replication::witnesses`]); every recovery needs one of them. A backup that
//!   may have a head is one of them.
//! - LEASE-2: the coordinator gives tablets away only when more than that time has passed since the
//!   backups that answered began to take part (its `zombie_grace`).
//! - LEASE-3: without witnesses, the leading coordinator's word does as well. This server was still
//!   up after the question, and every recovery of it begins later. So reads go on when too few
//!   backups are left for writes.
//! - LEASE-4: a server without replicas (`--replicas 0`) never has witnesses. The coordinator lets
//!   its tablets begin anew elsewhere only when more time than a lease has passed since it was
//!   declared dead.
//!
//! The coordinator need not be there for LEASE-1, and each server asks only a few others. Both
//! sides measure time spans on their own clocks; the difference between the two times is for clocks
//! that run unevenly.
//!
//! Not here: finding out who is dead, and leaving the cluster: that is `membership`.

use crate::membership::{Membership, ask_coordinator, is_confirmed};
use futures_util::future::join_all;
use pluvio_backup::Backup;
use pluvio_env::{Address, Env, Moment, TaskHandle, watch};
use pluvio_master::Master;
use pluvio_replication::Replication;
use pluvio_units::{CoreId, ServerId};
use pluvio_wire::{Coordinators, Header, Ping, call};
use std::sync::Arc;
use std::time::Duration;

/// How long one round of answers lets the master answer. Below the coordinator's `zombie_grace`.
pub const LEASE: Duration = Duration::from_millis(500);
/// Time between rounds: one may be lost without effect.
const INTERVAL: Duration = Duration::from_millis(100);
/// Time between rounds while the master may not answer.
const INTERVAL_LAPSED: Duration = Duration::from_millis(20);
/// How long to wait for a witness.
const LIMIT: Duration = Duration::from_millis(250);

/// Asks the witnesses for ever; started once this server is enlisted.
pub(crate) struct Lease {
    pub(crate) env: Env,
    pub(crate) membership: Arc<Membership>,
    pub(crate) coordinators: Arc<Coordinators>,
    pub(crate) backup: Backup,
    pub(crate) master: Arc<Master>,
}

impl Lease {
    /// Starts asking.
    pub(crate) fn start(self) -> Vec<TaskHandle> {
        let tasks = Arc::clone(&self.env.tasks);
        let doubt = self.master.replication().watch_doubt();
        let me = Arc::new(self);
        let also = Arc::clone(&me);
        vec![
            tasks.spawn(CoreId(0), "lease", async move { me.renew().await }),
            tasks.spawn(CoreId(0), "doubt", async move { also.doubt(doubt).await }),
        ]
    }

    async fn renew(&self) {
        let mut until = Moment::default();
        loop {
            if let Some(asked) = self.round().await {
                until = asked + LEASE;
                self.master.serve_until(until);
            }
            let lapsed = until <= self.env.clock.now();
            let pause = if lapsed { INTERVAL_LAPSED } else { INTERVAL };
            self.env.clock.sleep(pause).await;
        }
    }

    /// When those were asked who stand by this server: all witnesses, or else the coordinator
    /// (LEASE-3).
    async fn round(&self) -> Option<Moment> {
        if let Some(witnesses) = self.replication().witnesses() {
            let asked = self.env.clock.now();
            let answers = witnesses.into_iter().map(|witness| self.ask(witness));
            if join_all(answers).await.into_iter().all(|yes| yes) {
                return Some(asked);
            }
        }
        let asked = self.env.clock.now();
        let stands = is_confirmed(&self.env, &self.coordinators, &self.membership, LIMIT).await;
        if stands {
            pluvio_units::mark("lease-by-coordinator");
        }
        stands.then_some(asked)
    }

    async fn ask(&self, witness: ServerId) -> bool {
        let me = self.membership.id();
        if witness == me {
            return self.membership.is_member() && !self.backup.is_fenced(me);
        }
        let list = self.membership.list();
        let Some(info) = list.get(witness) else {
            return false;
        };
        let address = Address::from(info.address.as_str());
        let ping = Ping { from: me };
        let network = &*self.env.network;
        match call(network, &address, Header::default(), &ping, LIMIT).await {
            Ok(reply) if reply.server != witness || reply.cluster != self.membership.cluster() => {
                false
            }
            Ok(reply) => {
                if !reply.caller_is_member {
                    ask_coordinator(&self.env, &self.coordinators, &self.membership).await;
                }
                reply.caller_is_member
            }
            Err(_) => false,
        }
    }

    /// A backup or the coordinator refused us: the server list must tell whether that is the end.
    async fn doubt(&self, mut doubt: watch::Receiver<Option<String>>) {
        while doubt.changed().await.is_ok() {
            ask_coordinator(&self.env, &self.coordinators, &self.membership).await;
        }
    }

    fn replication(&self) -> &Replication {
        self.master.replication()
    }
}
