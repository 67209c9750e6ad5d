//! Reads before a decision: nothing is locked, and the commit compares.

use super::by_step;
use crate::client::Client;
use crate::error::ClientError;
use crate::request::OneOwner;
use crate::table::Table;
use core::time::Duration;
use futures_util::future::join_all;
use pluvio_units::OperationId;
use pluvio_wire::{
    FatalKind, Get, Operation, Outcome, RetryReason, TransactionStep, check_transaction,
};

/// For how long keys are kept, in milliseconds: many round trips, also where processors are busy.
const KEPT_MS: u32 = 50;

/// Objects that were read before a decision ([`Client::read_first`]).
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ReadFirst {
    /// One a read, in their order.
    pub outcomes: Vec<Outcome>,
    /// How many servers have them. The reads of each are true at one moment.
    pub moments: usize,
}

impl Client {
    /// Reads objects for one that decides by them and then commits, on condition of their versions.
    /// Those of one server are read at one moment, those of several at several. Nothing is locked.
    ///
    /// With `keep`, the servers keep the objects as they are until this client has changed them:
    /// changes of others have to come again. For 50 ms at most, and at most half of the time. It is
    /// for those whom others overtake again and again, because they change a key in one step. It is
    /// a favour, and no promise. [`Client::transact_and_free`] ends it where nothing is changed.
    ///
    /// # Errors
    /// As of [`Client::transact`].
    pub async fn read_first(
        &self,
        gets: &[(&Table, Get<'_>)],
        keep: bool,
    ) -> Result<ReadFirst, ClientError> {
        let (tables, steps): (Vec<&Table>, Vec<_>) = gets
            .iter()
            .map(|(table, get)| {
                let read = Operation::Get(*get).placed(table.id(), Some(table.hash(get.key)));
                (*table, TransactionStep::new(read))
            })
            .unzip();
        check_transaction(&steps).map_err(ClientError::from_final)?;
        if steps.is_empty() {
            return Ok(ReadFirst {
                outcomes: Vec::new(),
                moments: 0,
            });
        }
        match self.read_of_one(&steps, &tables, keep).await {
            Ok(outcomes) => Ok(ReadFirst {
                outcomes,
                moments: 1,
            }),
            Err(error) if has_several(&error) => {
                let work = Box::pin(self.read_of_several(&steps, &tables, keep));
                self.traced("reads of several servers", work).await
            }
            Err(error) => Err(error),
        }
    }

    async fn read_of_one(
        &self,
        steps: &[TransactionStep<'_>],
        tables: &[&Table],
        keep: bool,
    ) -> Result<Vec<Outcome>, ClientError> {
        let mut by = OperationId::default();
        let mut attempts = self.attempts();
        if keep {
            by.client = self.shared.sequence.client();
            by.retry_ms = KEPT_MS;
            attempts = attempts.for_locks();
        }
        let request = OneOwner::<false> { steps, tables, by };
        let hash = steps[0].operation.hash().expect("it was computed");
        let outcome = self.on_hash_within(tables[0], hash, &request, attempts);
        match outcome.await? {
            Outcome::Together {
                committed: true,
                steps: outcomes,
            } if outcomes.len() == steps.len() => Ok(outcomes.to_vec()),
            _ => Err(ClientError::Protocol(
                "reads were answered with other outcomes".to_owned(),
            )),
        }
    }

    async fn read_of_several(
        &self,
        steps: &[TransactionStep<'_>],
        tables: &[&Table],
        keep: bool,
    ) -> Result<ReadFirst, ClientError> {
        let mut attempts = self.attempts();
        loop {
            let participants = self
                .divide(steps, tables)
                .map(|transaction| transaction.participants);
            let mut results = Vec::new();
            match &participants {
                None => {}
                // In their order, so that those who keep objects do not wait in a circle.
                Some(participants) if keep => {
                    for participant in participants {
                        let read = self
                            .read_of_one(&participant.steps, &participant.tables, keep)
                            .await;
                        let is_failed = read.is_err();
                        results.push(read);
                        if is_failed {
                            break;
                        }
                    }
                }
                Some(participants) => {
                    let each = participants.iter().map(|participant| {
                        self.read_of_one(&participant.steps, &participant.tables, keep)
                    });
                    results = join_all(each).await;
                }
            }
            let read: Result<Vec<_>, _> = results.into_iter().collect();
            match (participants, read) {
                (Some(participants), Ok(outcomes)) => {
                    return Ok(ReadFirst {
                        outcomes: by_step(participants.iter().zip(outcomes)),
                        moments: participants.len(),
                    });
                }
                (Some(_), Err(error)) if !has_several(&error) => return Err(error),
                (None, _) | (Some(_), Err(_)) => {
                    attempts.failed(
                        "a tablet is not served, or has moved".to_owned(),
                        Some(RetryReason::TabletNotReady),
                    );
                    attempts.pause(Duration::ZERO).await?;
                    self.learn_tablets(tables).await?;
                }
            }
        }
    }
}

fn has_several(error: &ClientError) -> bool {
    error.fatal_kind() == Some(FatalKind::SeveralOwners)
}
