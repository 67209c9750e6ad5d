//! Replies that leave once something is durable, over real loopback connections.

use crate::rig::{Rig, collector, frame};
use core::task::Waker;
use pluvio_env::{CallError, Frame, Handled, HeldReply, Network, Peer, Service};
use pluvio_units::{LogId, LogPosition, SegmentId, Waits};
use std::sync::{Arc, Mutex, MutexGuard};
use tokio::sync::Notify;

/// A service whose replies rest on the position of their opcode.
#[derive(Default)]
struct Holding {
    state: Mutex<State>,
    arrived: Notify,
}

#[derive(Default)]
struct State {
    durable: u32,
    wakers: Vec<Waker>,
    requests: u16,
    charged: usize,
}

impl Holding {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap()
    }

    fn make_durable(&self, offset: u32) {
        let wakers = {
            let mut state = self.state();
            state.durable = offset;
            core::mem::take(&mut state.wakers)
        };
        wakers.into_iter().for_each(Waker::wake);
    }

    async fn until_requests(&self, count: u16) {
        while self.state().requests < count {
            self.arrived.notified().await;
        }
    }
}

impl Service for Held {
    fn handle(&self, _: Peer, request: Frame) -> Handled {
        Handled::Now(request)
    }

    fn handle_or_hold(&self, _: Peer, request: Frame) -> Result<Handled, HeldReply> {
        let position = LogPosition {
            segment: SegmentId(1),
            offset: request.opcode.into(),
        };
        let mut state = self.state();
        state.requests += 1;
        state.charged += 10;
        self.arrived.notify_one();
        Err(HeldReply {
            waits: Waits::new(LogId(0), position),
            reply: request,
            charge: 10,
        })
    }

    fn may_leave(&self, waits: &Waits) -> bool {
        waits.first().1.offset <= self.state().durable
    }

    fn wake_when_durable(&self, wait: (LogId, LogPosition), _: u64, waker: &Waker) -> bool {
        let mut state = self.state();
        let waits = wait.1.offset > state.durable;
        if waits {
            state.wakers.push(waker.clone());
        }
        waits
    }

    fn held_left(&self, charge: usize) {
        self.state().charged -= charge;
        self.arrived.notify_one();
    }
}

/// The service at its port.
struct Held(Arc<Holding>);

impl core::ops::Deref for Held {
    type Target = Holding;
    fn deref(&self) -> &Holding {
        &self.0
    }
}

// shows: HOLD-1
#[test]
fn held_replies_leave_when_they_are_durable_and_not_before() {
    let rig = Rig::new(1);
    let service = Arc::<Holding>::default();
    let listening = rig.listen(Held(Arc::clone(&service)));
    rig.run(|network| async move {
        let (replies, mut outcomes) = collector();
        let to = listening.address.clone();
        for n in 1..=10 {
            network.post(&to, frame(n, "x"), n.into(), &replies);
        }
        service.until_requests(10).await;
        for (durable, expected) in [(0, 0), (5, 5), (9, 4), (10, 1)] {
            service.make_durable(durable);
            for _ in 0..expected {
                let (number, outcome) = outcomes.recv().await.unwrap();
                assert!(number <= u64::from(durable) && outcome.is_ok());
            }
            assert!(outcomes.try_recv().is_err(), "beyond {durable}");
        }
        assert_eq!(service.state().charged, 0);
        network.post(&to, frame(11, "x"), 11, &replies);
        service.until_requests(11).await;
        drop(listening);
        let (_, outcome) = outcomes.recv().await.unwrap();
        assert!(matches!(outcome, Err(CallError::Lost(_))));
        while service.state().charged > 0 {
            service.arrived.notified().await;
        }
    });
}
