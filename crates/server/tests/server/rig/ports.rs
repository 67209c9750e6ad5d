//! The ports that a server opens, in the hands of a test. It gives requests to the services behind
//! them, and connections made of two queues of bytes.

use bytes::{Bytes, BytesMut};
use core::task::{Context, Poll, Waker};
use pluvio_env::{
    Address, BoxFuture, ByteStream, CallError, Frame, Listening, Network, NetworkError, Peer,
    Service, StreamError, StreamService,
};
use pluvio_units::CoreId;
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// The services of one server.
#[derive(Clone, Default)]
pub struct Ports(Arc<Mutex<Services>>);

#[derive(Default)]
struct Services {
    rpc: Option<Arc<dyn Service>>,
    redis: Option<Arc<dyn StreamService>>,
}

impl Ports {
    /// The service behind the RPC port.
    pub fn rpc(&self) -> Arc<dyn Service> {
        let rpc = self.0.lock().unwrap().rpc.clone();
        rpc.expect("the port is open")
    }

    /// The service behind the Redis port.
    pub fn redis(&self) -> Arc<dyn StreamService> {
        let redis = self.0.lock().unwrap().redis.clone();
        redis.expect("the port is open")
    }
}

/// A network that notes which services are put behind ports.
pub struct Noting {
    pub network: Arc<dyn Network>,
    pub ports: Ports,
}

impl Network for Noting {
    fn call<'a>(
        &'a self,
        to: &'a Address,
        request: Frame,
        limit: Duration,
    ) -> BoxFuture<'a, Result<Frame, CallError>> {
        self.network.call(to, request, limit)
    }

    fn listen(
        &self,
        address: &Address,
        service: Arc<dyn Service>,
    ) -> BoxFuture<'_, Result<Listening, NetworkError>> {
        self.ports.0.lock().unwrap().rpc = Some(Arc::clone(&service));
        self.network.listen(address, service)
    }

    /// The simulated network carries no streams. A test makes them.
    fn listen_streams(
        &self,
        address: &Address,
        _: usize,
        _: Bytes,
        service: Arc<dyn StreamService>,
    ) -> BoxFuture<'_, Result<Listening, NetworkError>> {
        self.ports.0.lock().unwrap().redis = Some(service);
        let address = address.clone();
        Box::pin(async move {
            Ok(Listening {
                address,
                guard: Box::new(()),
            })
        })
    }
}

/// A connection of a Redis client, which both ends share.
#[derive(Clone, Default)]
pub struct Pipe(Arc<Mutex<Queues>>);

#[derive(Default)]
struct Queues {
    to_server: Vec<u8>,
    to_client: Vec<u8>,
    server: Option<Waker>,
}

impl Pipe {
    /// Sends words as a command.
    pub fn send(&self, words: &[&str]) {
        let mut bytes = format!("*{}\r\n", words.len());
        for word in words {
            bytes += &format!("${}\r\n{word}\r\n", word.len());
        }
        let waker = {
            let mut queues = self.0.lock().unwrap();
            queues.to_server.extend_from_slice(bytes.as_bytes());
            queues.server.take()
        };
        waker.into_iter().for_each(Waker::wake);
    }

    /// What has arrived.
    pub fn arrived(&self) -> String {
        String::from_utf8(self.0.lock().unwrap().to_client.clone()).unwrap()
    }

    /// Takes what has arrived.
    pub fn take(&self) -> String {
        let bytes = std::mem::take(&mut self.0.lock().unwrap().to_client);
        String::from_utf8(bytes).unwrap()
    }
}

impl ByteStream for Pipe {
    fn poll_read(
        &mut self,
        context: &mut Context<'_>,
        into: &mut BytesMut,
    ) -> Poll<Result<usize, StreamError>> {
        if let Some(count) = self.try_read(into)? {
            return Poll::Ready(Ok(count));
        }
        self.0.lock().unwrap().server = Some(context.waker().clone());
        Poll::Pending
    }

    fn try_read(&mut self, into: &mut BytesMut) -> Result<Option<usize>, StreamError> {
        let bytes = std::mem::take(&mut self.0.lock().unwrap().to_server);
        into.extend_from_slice(&bytes);
        Ok((!bytes.is_empty()).then_some(bytes.len()))
    }

    fn gone(&mut self) -> BoxFuture<'_, ()> {
        Box::pin(core::future::pending())
    }

    fn poll_write_all(
        &mut self,
        _: &mut Context<'_>,
        rest: &mut &[u8],
    ) -> Poll<Result<(), StreamError>> {
        self.0.lock().unwrap().to_client.extend_from_slice(rest);
        *rest = &[];
        Poll::Ready(Ok(()))
    }

    fn peer(&self) -> Peer {
        Peer {
            address: Address::from("127.0.0.1:40000"),
            core: CoreId(0),
        }
    }

    fn local(&self) -> Address {
        Address::from("127.0.0.1:6379")
    }
}
