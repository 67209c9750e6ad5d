//! A planned stop: the server has its tablets moved away, and leaves the cluster in order.
//!
//! - LEFT-1: a server says that it leaves only after the coordinator said that it has nothing. Once
//!   it has left, it serves nothing more in this life (MEM-2).

use crate::membership::{Membership, Standing};
use core::time::Duration;
use pluvio_env::{Env, Moment};
use pluvio_redis::RedisService;
use pluvio_wire::{
    Coordinators, DrainServer, DrainStatus, DrainWish, GetDrain, LeaveCluster, Refusal, Request,
    RpcError,
};
use std::sync::Arc;

/// The pause between two questions how far it is.
const ASK: Duration = Duration::from_millis(50);
/// How long Redis clients have to take the last replies.
const CLIENTS_MAX: Duration = Duration::from_secs(1);
/// Between two looks whether they have.
const CLIENTS_LOOK: Duration = Duration::from_millis(10);
/// How long the coordinator has for an answer.
const ANSWER: Duration = Duration::from_secs(1);
/// How long a server goes on without any coordinator's answer: longer than another one takes to
/// lead. Where all are stopped, a stop takes this long.
const SILENCE_MAX: Duration = Duration::from_secs(5);

/// Why a server did not leave in order. Tablets that it still has are recovered when its process
/// ends, if it keeps replicas.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum NotLeft {
    /// The coordinator refuses: nobody else can have its tablets, or has room for them.
    #[error("{0}")]
    Refused(String),
    /// All others that could have its tablets are gone, or are drained, too.
    #[error("no other server can have its tablets")]
    Alone,
    /// Somebody took the drain back.
    #[error("its drain was cancelled")]
    Cancelled,
    /// No coordinator answered for some seconds.
    #[error("the coordinator does not answer: {0}")]
    Silence(String),
    /// The time is over.
    #[error("the time for it is over; {left} of its tablets are left{}", why(.waits.as_deref()))]
    TooLate {
        /// Tablets that did not move.
        left: u64,
        /// Why they did not, if the coordinator knows.
        waits: Option<String>,
    },
    /// The cluster has declared it dead meanwhile.
    #[error("it was declared dead: {0}")]
    Expelled(String),
}

fn why(waits: Option<&str>) -> String {
    waits.map_or_else(String::new, |waits| format!(": {waits}"))
}

/// What a leaving server needs.
pub(crate) struct Leaving {
    pub(crate) env: Env,
    pub(crate) membership: Arc<Membership>,
    pub(crate) coordinators: Arc<Coordinators>,
    /// Its ports for Redis clients.
    pub(crate) redis: Vec<RedisService>,
}

impl Leaving {
    /// Ends when this server is no member any more.
    ///
    /// # Errors
    /// See [`NotLeft`].
    pub(crate) async fn leave(&self, limit: Duration) -> Result<(), NotLeft> {
        let began = self.env.clock.now();
        let mut answered = began;
        let mut status = self.begin(began, limit).await?;
        let mut retired = false;
        loop {
            if status.is_empty() {
                if !std::mem::replace(&mut retired, true) {
                    self.retire_clients().await;
                }
                match self.say_goodbye().await {
                    Ok(()) => return Ok(()),
                    Err(error) => self.check_answered(&mut answered, &error)?,
                }
            } else if !status.draining {
                return Err(NotLeft::Cancelled);
            } else if status.alone {
                return Err(NotLeft::Alone);
            }
            if self.env.clock.now().since(began) >= limit {
                pluvio_units::mark("server-not-drained-in-time");
                let DrainStatus { tablets, waits, .. } = status;
                return Err(NotLeft::TooLate {
                    left: tablets,
                    waits,
                });
            }
            self.pause().await?;
            match self
                .ask(&GetDrain {
                    server: self.membership.id(),
                })
                .await
            {
                Ok(newer) => {
                    answered = self.env.clock.now();
                    status = newer;
                }
                Err(error) => self.check_answered(&mut answered, &error)?,
            }
        }
    }

    /// Asks for the drain, until the coordinator has stored it.
    async fn begin(&self, began: Moment, limit: Duration) -> Result<DrainStatus, NotLeft> {
        let server = self.membership.id();
        let wish = DrainWish::Drain;
        let mut answered = began;
        loop {
            let error = match self.ask(&DrainServer { server, wish }).await {
                Ok(status) => return Ok(status),
                Err(error) => error,
            };
            if let RpcError::Refused(refusal) = &error
                && refusal.fatal_kind().is_some()
            {
                // A server that has nothing may go all the same.
                let status = self.ask(&GetDrain { server }).await;
                let empty = status.ok().filter(DrainStatus::is_empty);
                return empty.ok_or_else(|| NotLeft::Refused(refusal.to_string()));
            }
            self.check_answered(&mut answered, &error)?;
            if self.env.clock.now().since(began) >= limit {
                return Err(NotLeft::Silence(error.to_string()));
            }
            self.pause().await?;
        }
    }

    async fn ask<R: Request>(&self, request: &R) -> Result<R::Reply, RpcError> {
        let network = &*self.env.network;
        self.coordinators.call(network, request, ANSWER).await
    }

    /// Lets the connections of Redis clients end between two commands. Those that do not are closed
    /// with the server.
    async fn retire_clients(&self) {
        for port in &self.redis {
            port.retire();
        }
        let open = || {
            self.redis
                .iter()
                .map(|port| port.totals().connections_open())
        };
        let until = self.env.clock.now() + CLIENTS_MAX;
        while open().sum::<u64>() > 0 && self.env.clock.now() < until {
            self.env.clock.sleep(CLIENTS_LOOK).await;
        }
    }

    /// LEFT-1. An answer may be lost, and the next list say it.
    async fn say_goodbye(&self) -> Result<(), RpcError> {
        let (cluster, server) = (self.membership.cluster(), self.membership.id());
        self.membership.set_leaving(true);
        match self.ask(&LeaveCluster { cluster, server }).await {
            Ok(()) => {
                self.membership.left();
                Ok(())
            }
            Err(error) => {
                if *self.membership.watch_standing().borrow() == Standing::Left {
                    return Ok(());
                }
                if matches!(error, RpcError::Refused(_)) {
                    self.membership.set_leaving(false);
                }
                Err(error)
            }
        }
    }

    /// Notes that a coordinator answered, or that none did.
    ///
    /// # Errors
    /// None has for too long.
    fn check_answered(&self, answered: &mut Moment, error: &RpcError) -> Result<(), NotLeft> {
        let now = self.env.clock.now();
        let leads = |refusal: &Refusal| {
            !matches!(
                refusal,
                Refusal::Retry {
                    why: pluvio_wire::RetryReason::NotLeader,
                    ..
                }
            )
        };
        match error {
            RpcError::Refused(refusal) if leads(refusal) => *answered = now,
            _ if now.since(*answered) >= SILENCE_MAX => {
                return Err(NotLeft::Silence(error.to_string()));
            }
            _ => {}
        }
        Ok(())
    }

    /// # Errors
    /// This server was declared dead.
    async fn pause(&self) -> Result<(), NotLeft> {
        self.env.clock.sleep(ASK).await;
        match &*self.membership.watch_standing().borrow() {
            Standing::Expelled(why) => Err(NotLeft::Expelled(why.clone())),
            Standing::Joining | Standing::Member | Standing::Left => Ok(()),
        }
    }
}
