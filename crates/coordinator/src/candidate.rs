//! A coordinator among several on one store. It waits while another one leads, leads when that one
//! is gone, and waits again when it was deposed.
//!
//! It answers requests all the time. While it does not lead, it refuses them and says which one
//! does.

use crate::lead::{Campaign, End, Outlook, Tenure};
use crate::options::CoordinatorOptions;
use crate::service::{Coordinator, CoordinatorError, refuse_as_not_leader};
use crate::store::{MetadataStore, StoreError};
use crate::tasks::LOOP;
use core::time::Duration;
use pluvio_env::{Env, Frame, Handled, Peer, Service, watch};
use pluvio_units::ClusterId;
use pluvio_wire::{GetLeader, GetLeaderReply, Opcode, TRACED, decode, reply};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The pause before a store that failed while its state was read is read again.
const READ_RETRY: Duration = Duration::from_millis(500);

/// How long one that gave way lets others take over (LEAD-5). They do so at their next look; if
/// nobody does, it leads on.
const GIVE_WAY: Duration = Duration::from_secs(2);

/// What a candidate does.
#[derive(Clone)]
pub enum Standing {
    /// It does not know which one leads, and does nothing about it: it does not run yet, or the
    /// store fails.
    Looking,
    /// The leader does not answer. It takes over, or hears from the leader, within seconds.
    Deciding,
    /// Another one leads, at this address.
    Waiting(String),
    /// It leads.
    Leading(Arc<Coordinator>),
}

impl From<Outlook> for Standing {
    fn from(outlook: Outlook) -> Self {
        match outlook {
            Outlook::Looking => Self::Looking,
            Outlook::Deciding => Self::Deciding,
            Outlook::Waiting(leader) => Self::Waiting(leader),
        }
    }
}

/// One of several coordinators. Answers requests as a [`Service`]; give it to `Network::listen`,
/// then [run](Candidate::run) it.
pub struct Candidate {
    env: Env,
    options: CoordinatorOptions,
    /// Drawn at start, so that others know one process from the next at the same address.
    id: u64,
    standing: watch::Sender<Standing>,
    /// The trouble with the store while this one does not lead.
    trouble: Mutex<Option<String>>,
}

impl Candidate {
    /// A candidate that does not run yet.
    #[must_use]
    pub fn new(env: Env, options: CoordinatorOptions) -> Self {
        let id = env.rng.next_u64().max(1);
        Self {
            env,
            options,
            id,
            standing: watch::Sender::new(Standing::Looking),
            trouble: Mutex::default(),
        }
    }

    /// What it does now.
    #[must_use]
    pub fn standing(&self) -> Standing {
        self.standing.borrow().clone()
    }

    /// Waits until it leads, or knows which one does.
    pub async fn settled(&self) -> Standing {
        let mut standing = self.standing.subscribe();
        let settled = standing.wait_for(|now| match now {
            Standing::Looking | Standing::Deciding => false,
            Standing::Waiting(_) | Standing::Leading(_) => true,
        });
        settled.await.expect("the sender lives as long as this");
        self.standing()
    }

    /// Why the store does not do what it is asked, if it does not.
    #[must_use]
    pub fn trouble(&self) -> Option<String> {
        match &*self.standing.borrow() {
            Standing::Looking | Standing::Deciding | Standing::Waiting(_) => {
                self.store_trouble().clone()
            }
            Standing::Leading(coordinator) => coordinator.tenure().trouble(),
        }
    }

    fn store_trouble(&self) -> MutexGuard<'_, Option<String>> {
        // Held for single steps.
        self.trouble.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn note_trouble(&self, error: Option<&StoreError>) {
        *self.store_trouble() = error.map(ToString::to_string);
    }

    /// Waits, leads, waits again, for ever. `address` is where others reach this candidate.
    ///
    /// # Errors
    /// No coordinator can lead on this store: see [`CoordinatorError`].
    pub async fn run(
        &self,
        store: Arc<dyn MetadataStore>,
        address: &str,
    ) -> Result<core::convert::Infallible, CoordinatorError> {
        let mut campaign = Campaign {
            env: self.env.clone(),
            store,
            candidate: self.id,
            address: address.to_owned(),
            known: None,
        };
        let mut seen = None;
        loop {
            let tell = |now: Outlook| self.stands(now.into());
            let trouble = |error: Option<&StoreError>| self.note_trouble(error);
            let won = campaign.run(&mut seen, tell, trouble).await;
            let known = campaign.known;
            let tenure = won.map_err(|error| CoordinatorError::after(error, known))?;
            let keeping = tenure.clone().keep();
            self.env.tasks.spawn(LOOP, "keep", keeping);
            let leading = async {
                let coordinator = self.take_office(&tenure, known).await?;
                campaign.known = Some(coordinator.cluster());
                self.standing.send_replace(Standing::Leading(coordinator));
                core::future::pending::<Result<(), CoordinatorError>>().await
            };
            let end = tokio::select! {
                biased;
                end = tenure.ended() => end,
                failed = leading => {
                    tenure.release().await;
                    failed?;
                    tenure.ended().await
                }
            };
            pluvio_units::mark("coordinator-deposed");
            tracing::warn!(why = %end, "does not lead any more");
            // Dropped here, which ends its tasks.
            self.standing.send_replace(Standing::Looking);
            match end {
                End::Over(_) => {}
                End::GaveWay => self.env.clock.sleep(GIVE_WAY).await,
                End::WentBack(why) => return Err(CoordinatorError::WentBack(why)),
            }
        }
    }

    /// Reads the state; tries again while the store fails.
    async fn take_office(
        &self,
        tenure: &Arc<Tenure>,
        known: Option<ClusterId>,
    ) -> Result<Arc<Coordinator>, CoordinatorError> {
        loop {
            let (env, options) = (self.env.clone(), self.options.clone());
            let tenure = tenure.clone();
            match Coordinator::take_office(env, tenure, options, self.id, known).await {
                Ok(coordinator) => return Ok(Arc::new(coordinator)),
                Err(CoordinatorError::Store(error)) => {
                    tracing::error!(%error, "cannot read the state; trying again");
                    self.note_trouble(Some(&error));
                    self.env.clock.sleep(READ_RETRY).await;
                }
                Err(other) => return Err(other),
            }
        }
    }

    fn stands(&self, next: Standing) {
        self.standing.send_if_modified(|now| {
            let same = match (&*now, &next) {
                (Standing::Looking, Standing::Looking)
                | (Standing::Deciding, Standing::Deciding) => true,
                (Standing::Waiting(a), Standing::Waiting(b)) => a == b,
                (_, _) => false,
            };
            if !same {
                *now = next;
            }
            !same
        });
    }

    /// Gives up leading, so that another one need not wait; for processes that are about to end.
    pub async fn resign(&self) {
        if let Standing::Leading(coordinator) = self.standing() {
            coordinator.tenure().release().await;
        }
    }
}

impl Service for Candidate {
    fn handle(&self, peer: Peer, request: Frame) -> Handled {
        let standing = self.standing();
        let (leader, deciding) = match standing {
            Standing::Leading(coordinator) => return coordinator.handle(peer, request),
            Standing::Waiting(leader) => (Some(leader), false),
            Standing::Deciding => (None, true),
            Standing::Looking => (None, false),
        };
        if request.opcode == TRACED {
            let handled = pluvio_trace::answer(&request, |_, request| self.handle(peer, request));
            return handled.unwrap_or_else(|_| refuse_as_not_leader(TRACED));
        }
        if request.opcode != Opcode::GetLeader as u16 {
            return refuse_as_not_leader(request.opcode);
        }
        let answer = decode::<GetLeader>(&request).map(|_| GetLeaderReply {
            candidate: self.id,
            leads: false,
            leader,
            deciding,
            lost_servers: false,
            trouble: self.trouble(),
        });
        Handled::Now(reply::<GetLeader>(&answer))
    }
}
