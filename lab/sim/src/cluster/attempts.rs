//! What stands before a client's network and notes to whom it sent each change, and whether an
//! answer came: so that a report says how often an operation could have been executed by two
//! masters.

use crate::intercept::Interceptor;
use pluvio_env::{Address, BoxFuture, CallError, Frame, Network};
use pluvio_units::{SequenceNumber, ServerId};
use pluvio_wire::{Header, Opcode, Outcomes, decode_mutate};
use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// Whether a reply says that its only item was executed.
fn is_executed(reply: &Frame) -> bool {
    let outcomes = Outcomes::of_reply(reply);
    outcomes.is_some_and(|outcomes| matches!(&outcomes.items[..], [Ok(_)]))
}

struct Attempt {
    target: ServerId,
    sequence: SequenceNumber,
    /// Whether it is a batch: its reply tells of each item, not of the whole.
    batch: bool,
    /// Whether it may have been executed without anybody having heard of it.
    silent: bool,
}

/// What was sent since the last [`Attempts::repeats`].
#[derive(Clone, Default)]
pub(super) struct Attempts(Arc<Mutex<Vec<Attempt>>>);

impl Attempts {
    fn list(&self) -> std::sync::MutexGuard<'_, Vec<Attempt>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Ends an operation: how many lives of servers may have executed it unheard, beside the
    /// execution that its outcome tells of. `unknown`: its outcome tells of none.
    pub(super) fn repeats(&self, unknown: bool) -> u8 {
        let silent: BTreeSet<ServerId> = std::mem::take(&mut *self.list())
            .into_iter()
            .filter(|attempt| attempt.silent)
            .map(|attempt| attempt.target)
            .collect();
        let beside = silent.len().saturating_sub(usize::from(unknown));
        u8::try_from(beside).unwrap_or(u8::MAX)
    }

    fn begin(&self, request: &Frame) -> Option<usize> {
        let opcode = Opcode::from_number(request.opcode)?;
        let changes = !opcode.is_idempotent();
        let (header, _) = Header::decode(&request.meta).ok().filter(|_| changes)?;
        let mut list = self.list();
        list.push(Attempt {
            target: header.target,
            sequence: header.operation.sequence,
            batch: decode_mutate(request).is_ok_and(|(_, mutations)| mutations.len() > 1),
            silent: true,
        });
        Some(list.len() - 1)
    }

    fn end(&self, index: usize, result: &Result<Frame, CallError>) {
        let mut list = self.list();
        let Some(attempt) = list.get_mut(index) else {
            return;
        };
        match result {
            Ok(reply) => {
                attempt.silent = false;
                if !attempt.batch && is_executed(reply) {
                    // A master answers a retry from its memory: what it may have executed before
                    // is what it tells of now.
                    let (target, sequence) = (attempt.target, attempt.sequence);
                    for same in list.iter_mut() {
                        same.silent &= same.target != target || same.sequence != sequence;
                    }
                }
            }
            Err(CallError::Unreachable(..) | CallError::TooLarge(..)) => attempt.silent = false,
            Err(_) => {}
        }
    }
}

impl Interceptor for Attempts {
    fn call<'a>(
        &'a self,
        network: &'a dyn Network,
        to: &'a Address,
        request: Frame,
        limit: Duration,
    ) -> BoxFuture<'a, Result<Frame, CallError>> {
        Box::pin(async move {
            let index = self.begin(&request);
            let result = network.call(to, request, limit).await;
            if let Some(index) = index {
                self.end(index, &result);
            }
            result
        })
    }
}
