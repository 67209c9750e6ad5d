//! Locking the keys of a transaction, and what their owners say to it.

use super::requests::Prepare;
use super::{DistributedTransaction, Participant};
use crate::client::Client;
use crate::error::ClientError;
use crate::retry::Attempts;
use core::time::Duration;
use futures_util::future::join_all;
use pluvio_units::{DECISION, LOCKED_LONG, OperationId, VOTES_KEPT};
use pluvio_wire::{FatalKind, Outcome, RetryReason, Whole};
use std::sync::atomic::{AtomicBool, Ordering};

/// How long an owner is asked again, while others have locked keys: for keys that somebody else has
/// locked, or for room.
pub(super) const PATIENCE: Duration = Duration::from_millis(2);
/// The same where owners are asked in their order, and keys are locked: for all of them together.
/// Later the owners of the locked ones would look after them, and abort it.
const PATIENCE_IN_ORDER: Duration = Duration::from_millis(800);
const _: () = assert!(PATIENCE_IN_ORDER.as_millis() < LOCKED_LONG.as_millis());
/// After this many conflicts owners are asked in their order, one after the other.
const CONFLICTS_AT_ONCE: u32 = 2;

/// The answer of an owner to a request to lock keys.
pub(super) enum ParticipantVote {
    /// They are locked: the outcomes of its steps.
    Yes(Vec<Outcome>),
    /// A step that must hold does not. `None`: somebody has said "no" in the owner's place.
    No(Option<RefusedStep>),
    /// It was not asked.
    NotAsked,
    /// Others have locked them, or changes are held for a cut.
    Met,
    /// It locks nothing at the moment for another reason.
    Waits(Wait),
    /// It never locks them.
    Failed(ClientError),
    /// It did not answer: it may vote yes yet.
    Unknown(ClientError),
}

/// A step that must hold and does not.
pub(super) struct RefusedStep {
    /// Which one of all.
    pub(super) step: usize,
    pub(super) outcome: Outcome,
}

/// Why a transaction is to be tried again later.
pub(super) struct Wait {
    pub(super) reason: Option<RetryReason>,
    pub(super) why: String,
    /// Its keys may have other owners by now.
    pub(super) has_moved: bool,
}

impl ParticipantVote {
    /// Whether the owner has not voted yes, and never will.
    pub(super) fn is_never_yes(&self) -> bool {
        match self {
            Self::No(_) | Self::NotAsked | Self::Met | Self::Waits(_) | Self::Failed(_) => true,
            Self::Yes(_) | Self::Unknown(_) => false,
        }
    }

    /// The same where the transaction is aborted by now: an owner that has not answered is as one
    /// that has refused.
    pub(super) fn of_aborted(self) -> Self {
        match self {
            Self::Unknown(error) => Self::refused(error),
            other => other,
        }
    }

    fn of(
        participant: &Participant<'_>,
        voted: Result<Outcome, ClientError>,
        is_lost: bool,
    ) -> Self {
        match voted {
            Ok(Outcome::Together {
                committed: true,
                steps,
            }) => Self::Yes(steps.to_vec()),
            Ok(Outcome::Together {
                committed: false,
                steps,
            }) => Self::No(steps.last().and_then(|outcome| {
                let step = participant.numbers.get(steps.len() - 1)?;
                Some(RefusedStep {
                    step: *step,
                    outcome: outcome.clone(),
                })
            })),
            Ok(other) => Self::Unknown(ClientError::Protocol(format!(
                "a vote is the outcome of one operation: {other:?}"
            ))),
            Err(error) if is_lost || error.maybe_executed() => Self::Unknown(error),
            Err(error) => Self::refused(error),
        }
    }

    fn refused(error: ClientError) -> Self {
        match error {
            ClientError::Refused {
                kind: FatalKind::SeveralOwners,
                message,
            } => Self::Waits(Wait {
                reason: None,
                why: message,
                has_moved: true,
            }),
            ClientError::TimedOut {
                reason: Some(RetryReason::Locked | RetryReason::NotReady),
                ..
            } => Self::Met,
            ClientError::TimedOut { reason, last, .. } => Self::Waits(Wait {
                reason,
                why: last,
                has_moved: matches!(
                    reason,
                    None | Some(RetryReason::TabletNotReady | RetryReason::NotServing)
                ),
            }),
            ClientError::Rejected { .. }
            | ClientError::MaybeExecuted(_)
            | ClientError::Refused { .. }
            | ClientError::NoCoordinator
            | ClientError::Protocol(_) => Self::Failed(error),
        }
    }
}

impl Client {
    /// Asks all owners to lock their keys: all at once, or one after the other where others are in
    /// the way again and again (SEVERAL-3).
    pub(super) async fn prepare_all(
        &self,
        transaction: &DistributedTransaction<'_>,
        conflicts: u32,
        attempts: &Attempts<'_>,
    ) -> Vec<ParticipantVote> {
        let participants = 0..transaction.participants.len();
        if conflicts < CONFLICTS_AT_ONCE {
            return join_all(
                participants.map(|at| self.prepare(transaction, at, PATIENCE, attempts)),
            )
            .await;
        }
        let clock = &self.shared.parts.clock;
        let mut locked_since = None;
        let mut votes = Vec::with_capacity(participants.len());
        for at in participants {
            let patience = match locked_since {
                Some(since) => PATIENCE_IN_ORDER
                    .saturating_sub(clock.now().since(since))
                    .max(PATIENCE),
                None => PATIENCE_IN_ORDER,
            };
            let vote = self.prepare(transaction, at, patience, attempts).await;
            let is_yes = matches!(vote, ParticipantVote::Yes(_));
            votes.push(vote);
            if !is_yes {
                break;
            }
            locked_since.get_or_insert_with(|| clock.now());
        }
        votes.resize_with(transaction.participants.len(), || ParticipantVote::NotAsked);
        votes
    }

    /// Asks one owner to lock its keys. Where others have locked them, it is asked so long.
    pub(super) async fn prepare(
        &self,
        transaction: &DistributedTransaction<'_>,
        at: usize,
        patience: Duration,
        attempts: &Attempts<'_>,
    ) -> ParticipantVote {
        let participant = &transaction.participants[at];
        let (_, hash) = participant.key(0);
        let request = Prepare {
            participant,
            whole: Whole {
                home: transaction.home(),
                shares: match at {
                    0 => transaction.shares.clone(),
                    _ => Vec::new(),
                },
            },
            operation: OperationId {
                client: transaction.client,
                sequence: participant.sequence,
                acknowledged_below: DECISION,
                retry_ms: VOTES_KEPT.as_millis() as u32,
            },
            patience,
            is_lost: AtomicBool::new(false),
        };
        let attempts = attempts.clone().for_locks();
        let voted = self.on_hash_within(participant.tables[0], hash, &request, attempts);
        let voted = voted.await;
        let is_lost = request.is_lost.into_inner();
        if is_lost {
            transaction.is_one_lost.store(true, Ordering::Relaxed);
        }
        ParticipantVote::of(participant, voted, is_lost)
    }
}
