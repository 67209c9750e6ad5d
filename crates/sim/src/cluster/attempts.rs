//! A network that notes to whom a client sent each change, and whether an answer came: so that a report
//! says how often an operation could have been executed by two masters.

use pluvio_env::{
    Address, BoxFuture, CallError, Frame, Listening, Network, NetworkError, Service, StreamService,
};
use pluvio_units::{SequenceNumber, ServerId};
use pluvio_wire::{Header, Opcode};
use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// The first byte of a reply that says that the request was executed.
const EXECUTED: u8 = 0;

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
            batch: matches!(opcode, Opcode::MultiWrite | Opcode::MultiDelete),
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
                if reply.meta.first() == Some(&EXECUTED) && !attempt.batch {
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

/// The recording network.
pub(super) struct Recorder {
    pub(super) inner: Arc<dyn Network>,
    pub(super) attempts: Attempts,
}

impl Network for Recorder {
    fn call<'a>(
        &'a self,
        to: &'a Address,
        request: Frame,
        limit: Duration,
    ) -> BoxFuture<'a, Result<Frame, CallError>> {
        Box::pin(async move {
            let index = self.attempts.begin(&request);
            let result = self.inner.call(to, request, limit).await;
            if let Some(index) = index {
                self.attempts.end(index, &result);
            }
            result
        })
    }

    fn listen(
        &self,
        address: &Address,
        service: Arc<dyn Service>,
    ) -> BoxFuture<'_, Result<Listening, NetworkError>> {
        self.inner.listen(address, service)
    }

    fn listen_streams(
        &self,
        address: &Address,
        connections_max: usize,
        refusal: bytes::Bytes,
        service: Arc<dyn StreamService>,
    ) -> BoxFuture<'_, Result<Listening, NetworkError>> {
        self.inner
            .listen_streams(address, connections_max, refusal, service)
    }
}
