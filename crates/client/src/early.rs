//! Answers that come when something is executed, before it is durable.
//!
//! Mutations in order go from one server to the next as their keys do. Where the caller allows it,
//! a server answers when its run is executed, so the next run need not wait for replicas. At the
//! end each server is asked once whether all is durable.
//!
//! - EARLY-1: an outcome that came before it was durable is told only when its server has said that
//!   it is, in the same life. When that cannot be said, it is not known whether that item, and all
//!   behind it, were executed. None of them is tried again: others may have seen those behind it.

use crate::client::Client;
use crate::error::ClientError;
use crate::retry::Attempts;
use core::future::poll_fn;
use core::task::Poll;
use core::time::Duration;
use futures_util::future::join_all;
use pluvio_env::{Address, timeout};
use pluvio_units::{ClusterId, LogId, LogPosition, ServerId, Waits};
use pluvio_wire::{AwaitDurable, Header, Refusal, RpcError, call};

/// How often a server without an answer is asked whether its early answers are durable.
const SETTLE_TRIES: u32 = 3;

/// Items that were done, and are not known to be durable.
pub(crate) struct Early {
    /// The first of them.
    pub(crate) first: usize,
    pub(crate) cluster: ClusterId,
    pub(crate) owner: ServerId,
    pub(crate) address: Address,
    pub(crate) positions: Vec<(LogId, LogPosition)>,
}

impl Early {
    /// Rests on these, too.
    fn also(&mut self, positions: &[(LogId, LogPosition)]) {
        for &(log, position) in positions {
            match self.positions.iter_mut().find(|(known, _)| *known == log) {
                Some((_, known)) => *known = (*known).max(position),
                None => self.positions.push((log, position)),
            }
        }
    }
}

/// It was executed, and may be gone with its server.
fn unknown_now(why: &str) -> ClientError {
    ClientError::MaybeExecuted(format!("it was executed and not seen durable: {why}"))
}

impl Client {
    /// Waits until early answers are durable (EARLY-1).
    ///
    /// # Errors
    /// Nobody knows that of some, beside the first item of those.
    pub(crate) async fn settle(
        &self,
        early: Vec<Early>,
        attempts: &mut Attempts<'_>,
    ) -> Result<(), (usize, ClientError)> {
        let mut of_servers: Vec<Early> = Vec::new();
        for one in early {
            match of_servers.iter_mut().find(|of| of.owner == one.owner) {
                Some(of) => of.also(&one.positions),
                None => of_servers.push(one),
            }
        }
        let shared = &*attempts;
        let waits = of_servers.iter().map(|of| async move {
            let mut own = shared.clone();
            let result = self.settle_one(of, &mut own).await;
            result.map_err(|error| (of.first, error))
        });
        let mut first_failure = Ok(());
        for result in join_all(waits).await {
            let Err(failure) = result else { continue };
            match &first_failure {
                Err((first, _)) if *first <= failure.0 => {}
                Err(_) | Ok(()) => first_failure = Err(failure),
            }
        }
        first_failure
    }

    async fn settle_one(&self, of: &Early, attempts: &mut Attempts<'_>) -> Result<(), ClientError> {
        if let Some(master) = self.local(of.owner) {
            let mut wait = self.wait_for_held();
            let durable = poll_fn(|context| {
                let is_durable =
                    |at: (LogId, LogPosition)| master.is_durable(&Waits::new(at.0, at.1));
                let positions = of.positions.iter().copied();
                let waits = positions.filter(|at| !is_durable(*at));
                match wait.wake_at(waits, context.waker()) {
                    true => Poll::Pending,
                    false => Poll::Ready(()),
                }
            });
            let clock = &*self.shared.parts.clock;
            let durable = timeout(clock, attempts.remaining(), durable).await;
            return durable.map_err(|_| unknown_now("it did not become durable in time"));
        }
        let request = AwaitDurable {
            positions: of.positions.clone(),
        };
        let header = Header::within(of.cluster, of.owner);
        let mut lost = 0;
        loop {
            if attempts.is_over() {
                return Err(unknown_now("it did not become durable in time"));
            }
            let network = &*self.shared.parts.network;
            let limit = attempts.next_limit();
            let why = match call(network, &of.address, header, &request, limit).await {
                Ok(()) => return Ok(()),
                Err(RpcError::Refused(Refusal::Retry { after_us, .. })) => {
                    let after = Duration::from_micros(after_us.into());
                    let paused = attempts.pause(after).await;
                    paused.map_err(|_| unknown_now("its owner was busy"))?;
                    continue;
                }
                Err(RpcError::Call(error)) => error.to_string(),
                Err(error) => return Err(unknown_now(&error.to_string())),
            };
            // The connection may have broken, and the server be there.
            lost += 1;
            if lost == SETTLE_TRIES {
                return Err(unknown_now(&why));
            }
            let paused = attempts.pause(Duration::ZERO).await;
            paused.map_err(|_| unknown_now(&why))?;
        }
    }
}
