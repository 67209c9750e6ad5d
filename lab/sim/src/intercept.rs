//! A network that somebody looks into: what a process asks of others passes by an [`Interceptor`]
//! first.

use core::time::Duration;
use pluvio_env::{
    Address, BoxFuture, CallError, Frame, Listening, Network, NetworkError, Service, StreamService,
};
use std::sync::Arc;

/// Sees every call of a process, and decides what becomes of it.
pub trait Interceptor: Send + Sync {
    /// Makes the call by `network`, or does something else in its place.
    fn call<'a>(
        &'a self,
        network: &'a dyn Network,
        to: &'a Address,
        request: Frame,
        limit: Duration,
    ) -> BoxFuture<'a, Result<Frame, CallError>>;
}

/// A network whose calls pass by an interceptor. Listening is left alone.
pub struct Intercepted<I> {
    network: Arc<dyn Network>,
    interceptor: I,
}

impl<I: Interceptor> Intercepted<I> {
    /// `network`, with this interceptor before it.
    pub fn new(network: Arc<dyn Network>, interceptor: I) -> Arc<Self> {
        Arc::new(Self {
            network,
            interceptor,
        })
    }
}

impl<I: Interceptor> Network for Intercepted<I> {
    fn call<'a>(
        &'a self,
        to: &'a Address,
        request: Frame,
        limit: Duration,
    ) -> BoxFuture<'a, Result<Frame, CallError>> {
        self.interceptor.call(&*self.network, to, request, limit)
    }

    fn listen(
        &self,
        address: &Address,
        service: Arc<dyn Service>,
    ) -> BoxFuture<'_, Result<Listening, NetworkError>> {
        self.network.listen(address, service)
    }

    fn listen_streams(
        &self,
        address: &Address,
        connections_max: usize,
        refusal: bytes::Bytes,
        service: Arc<dyn StreamService>,
    ) -> BoxFuture<'_, Result<Listening, NetworkError>> {
        self.network
            .listen_streams(address, connections_max, refusal, service)
    }
}
