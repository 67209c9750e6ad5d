//! Both ends of a request of a sampled trace: who sends it, and who answers.

use crate::current::{current, follow, within};
use crate::span::{Span, SpanKind, Value};
use core::time::Duration;
use pluvio_env::{
    Address, BoxFuture, CallError, Frame, Handled, Listening, Moment, Network, NetworkError,
    Replies, Service, StreamService,
};
use pluvio_units::TraceContext;
use pluvio_wire::{Opcode, Refusal, is_unknown, unwrap_traced, wrap_traced};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

/// How long a process is taken for one that does not know envelopes, after it has said so.
const UNKNOWN_FOR: Duration = Duration::from_secs(60);
/// Such processes that are remembered.
const UNKNOWN_MAX: usize = 1024;

/// A network whose calls carry the trace that the caller works for ([`current`]).
pub struct Traceable {
    inner: Arc<dyn Network>,
    clock: Arc<dyn pluvio_env::Clock>,
    /// Processes that do not know envelopes, and until when that is believed.
    unknown: Mutex<BTreeMap<Address, Moment>>,
}

impl Traceable {
    /// Sends by way of `inner`.
    pub fn new(inner: Arc<dyn Network>, clock: Arc<dyn pluvio_env::Clock>) -> Self {
        Self {
            inner,
            clock,
            unknown: Mutex::default(),
        }
    }

    fn is_unknown_at(&self, to: &Address) -> bool {
        let unknown = self.unknown.lock().unwrap_or_else(PoisonError::into_inner);
        let until = unknown.get(to).copied();
        until.is_some_and(|until| self.clock.now() < until)
    }

    fn remember(&self, to: &Address) {
        let mut unknown = self.unknown.lock().unwrap_or_else(PoisonError::into_inner);
        if unknown.len() >= UNKNOWN_MAX {
            unknown.clear();
        }
        unknown.insert(to.clone(), self.clock.now() + UNKNOWN_FOR);
    }

    async fn call_traced(
        &self,
        context: TraceContext,
        to: &Address,
        request: Frame,
        limit: Duration,
    ) -> Result<Frame, CallError> {
        let began = self.clock.now();
        let name = Opcode::from_number(request.opcode).map_or("request", Opcode::name);
        let mut span = Span::child(context, SpanKind::Client, name);
        span.note("server.address", || Value::Text(to.to_string()));
        let mut outcome = None;
        if !self.is_unknown_at(to) {
            let envelope = wrap_traced(&span.context(), &request);
            let reply = self.inner.call(to, envelope, limit).await;
            match &reply {
                // TRACE-3
                Ok(reply) if is_unknown(reply) => self.remember(to),
                Ok(_) | Err(_) => outcome = Some(reply),
            }
        }
        let outcome = match outcome {
            Some(outcome) => outcome,
            None => {
                let rest = limit.saturating_sub(self.clock.now().since(began));
                self.inner.call(to, request, rest).await
            }
        };
        if let Err(error) = &outcome {
            span.fail(|| error.to_string());
        }
        outcome
    }
}

impl Network for Traceable {
    fn call<'a>(
        &'a self,
        to: &'a Address,
        request: Frame,
        limit: Duration,
    ) -> BoxFuture<'a, Result<Frame, CallError>> {
        match current() {
            None => self.inner.call(to, request, limit),
            Some(context) => Box::pin(self.call_traced(context, to, request, limit)),
        }
    }

    fn post(
        &self,
        to: &Address,
        request: Frame,
        number: u64,
        replies: &Arc<dyn Replies>,
    ) -> Option<Frame> {
        self.inner.post(to, request, number, replies)
    }

    fn give_up(&self, to: &Address, number: u64, replies: &Arc<dyn Replies>) {
        self.inner.give_up(to, number, replies);
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

/// Answers a request in an envelope: `handle` gets it without, and with its place in the trace. The
/// span ends with the answer.
///
/// # Errors
/// A refusal to be sent back: it is no envelope of a known operation.
pub fn answer(
    envelope: &Frame,
    handle: impl FnOnce(TraceContext, Frame) -> Handled,
) -> Result<Handled, Refusal> {
    let (context, request) = unwrap_traced(envelope)?;
    let name = Opcode::from_number(request.opcode).map_or("request", Opcode::name);
    let span = Span::child(context, SpanKind::Server, name);
    let own = span.context();
    Ok(match within(own, || handle(own, request)) {
        Handled::Now(reply) => Handled::Now(reply),
        Handled::Later(reply) => Handled::Later(follow(span, reply)),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use core::task::{Context, Poll, Waker};
    use pluvio_env::{Clock, NoConnection};
    use pluvio_units::ServerId;
    use pluvio_wire::{FatalKind, Header, Ping, TRACED, encode, reply};

    #[derive(Default)]
    struct Stopped;

    impl Clock for Stopped {
        fn now(&self) -> Moment {
            Moment::default()
        }
        fn unix_seconds(&self) -> u64 {
            0
        }
        fn sleep(&self, _: Duration) -> BoxFuture<'static, ()> {
            Box::pin(core::future::pending())
        }
    }

    /// Answers with what it got, or as a process that does not know envelopes.
    struct Echo {
        knows_envelopes: bool,
        got: Mutex<Vec<u16>>,
    }

    impl Network for Echo {
        fn call<'a>(
            &'a self,
            _: &'a Address,
            request: Frame,
            _: Duration,
        ) -> BoxFuture<'a, Result<Frame, CallError>> {
            self.got.lock().unwrap().push(request.opcode);
            Box::pin(async move {
                if request.opcode != TRACED {
                    return Ok(request);
                }
                if self.knows_envelopes {
                    return Ok(unwrap_traced(&request).unwrap().1);
                }
                let refusal = Refusal::fatal(FatalKind::Unsupported, "there is no operation 1000");
                Ok(Frame {
                    opcode: TRACED,
                    ..reply::<Ping>(&Err(refusal))
                })
            })
        }
        fn listen(
            &self,
            address: &Address,
            _: Arc<dyn Service>,
        ) -> BoxFuture<'_, Result<Listening, NetworkError>> {
            Box::pin(core::future::ready(Err(NetworkError {
                address: address.clone(),
                message: NoConnection::Refused.to_string(),
            })))
        }
        fn listen_streams(
            &self,
            address: &Address,
            _: usize,
            _: bytes::Bytes,
            _: Arc<dyn StreamService>,
        ) -> BoxFuture<'_, Result<Listening, NetworkError>> {
            self.listen(address, Arc::new(Nobody))
        }
    }

    struct Nobody;

    impl Service for Nobody {
        fn handle(&self, _: pluvio_env::Peer, request: Frame) -> Handled {
            Handled::Now(request)
        }
    }

    fn sent(knows_envelopes: bool, context: Option<TraceContext>, calls: usize) -> Vec<u16> {
        let echo = Arc::new(Echo {
            knows_envelopes,
            got: Mutex::default(),
        });
        let network = Traceable::new(Arc::<Echo>::clone(&echo), Arc::new(Stopped));
        let to = Address::from("there");
        let request = encode(&Header::default(), &Ping { from: ServerId(7) });
        for _ in 0..calls {
            let make = || network.call(&to, request.clone(), Duration::from_secs(1));
            let mut call = match context {
                Some(context) => within(context, make),
                None => make(),
            };
            let polled = call.as_mut().poll(&mut Context::from_waker(Waker::noop()));
            let Poll::Ready(Ok(answer)) = polled else {
                panic!("no answer: {polled:?}");
            };
            assert_eq!(answer, request);
        }
        drop(network);
        Arc::into_inner(echo).unwrap().got.into_inner().unwrap()
    }

    // shows: TRACE-2
    #[test]
    fn only_requests_of_a_trace_have_an_envelope() {
        let ping = Opcode::Ping as u16;
        assert_eq!(sent(true, None, 2), [ping, ping]);
        let context = TraceContext::sampled(1, 2);
        assert_eq!(sent(true, Some(context), 2), [TRACED, TRACED]);
    }

    // shows: TRACE-3
    #[test]
    fn a_process_that_knows_no_envelopes_is_asked_without() {
        let context = TraceContext::sampled(1, 2);
        let ping = Opcode::Ping as u16;
        assert_eq!(sent(false, Some(context), 3), [TRACED, ping, ping, ping]);
    }

    #[test]
    fn answering_happens_under_the_span_of_the_caller() {
        let context = TraceContext::sampled(1, 2);
        let request = encode(&Header::default(), &Ping { from: ServerId(7) });
        let envelope = wrap_traced(&context, &request);
        let handled = answer(&envelope, |own, inner| {
            // Nobody records here: the place is handed on.
            assert_eq!((own, current()), (context, Some(context)));
            Handled::Later(Box::pin(async move {
                assert_eq!(current(), Some(context));
                inner
            }))
        });
        let Ok(Handled::Later(mut later)) = handled else {
            panic!("it comes later");
        };
        let polled = later.as_mut().poll(&mut Context::from_waker(Waker::noop()));
        assert_eq!(polled, Poll::Ready(request.clone()));
        assert_eq!(current(), None);
        assert!(answer(&request, |_, inner| Handled::Now(inner)).is_err());
    }
}
