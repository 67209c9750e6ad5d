//! A small service and clients that the tests of the simulator share.
use bytes::Bytes;
use core::time::Duration;
use pluvio_env::{Address, CallError, Env, Frame, Handled, Listening, Peer, Service};
use pluvio_sim::{NetworkFaults, SimOptions};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

pub const SECOND: Duration = Duration::from_secs(1);
pub const MILLI: Duration = Duration::from_millis(1);

/// Counts how often it saw each request, and answers with the request; after `delay` when that is
/// not zero.
pub struct Echo {
    pub env: Env,
    pub delay: Duration,
    pub seen: Mutex<BTreeMap<Bytes, u32>>,
    pub order: Mutex<Vec<Bytes>>,
}

impl Echo {
    pub fn new(env: &Env, delay: Duration) -> Arc<Self> {
        Arc::new(Self {
            env: env.clone(),
            delay,
            seen: Mutex::default(),
            order: Mutex::default(),
        })
    }

    pub fn times_seen_max(&self) -> u32 {
        self.seen
            .lock()
            .unwrap()
            .values()
            .copied()
            .max()
            .unwrap_or(0)
    }

    pub fn requests(&self) -> usize {
        self.order.lock().unwrap().len()
    }
}

impl Service for Echo {
    fn handle(&self, _: Peer, request: Frame) -> Handled {
        let meta = request.meta.clone();
        *self.seen.lock().unwrap().entry(meta.clone()).or_default() += 1;
        self.order.lock().unwrap().push(meta);
        if self.delay.is_zero() {
            return Handled::Now(request);
        }
        let sleep = self.env.clock.sleep(self.delay);
        Handled::Later(Box::pin(async move {
            sleep.await;
            request
        }))
    }
}

/// A port that stays open for ever.
pub async fn listen(env: &Env, address: &str, service: Arc<dyn Service>) -> Listening {
    env.network
        .listen(&Address::from(address), service)
        .await
        .unwrap()
}

pub fn frame(number: u64) -> Frame {
    Frame {
        opcode: 7,
        meta: Bytes::copy_from_slice(&number.to_le_bytes()),
        payload: Bytes::new(),
    }
}

pub async fn call(env: &Env, to: &str, number: u64, limit: Duration) -> Result<Frame, CallError> {
    let address = Address::from(to);
    env.network.call(&address, frame(number), limit).await
}

/// A network without tails and surprises.
pub fn quiet() -> SimOptions {
    SimOptions {
        network: NetworkFaults {
            tail_ppm: 0,
            reorder_ppm: 0,
            ..NetworkFaults::default()
        },
        ..SimOptions::default()
    }
}
