//! How many requests a client has under way to one server.
//!
//! A server answers "busy" when too many requests are in progress. Were all of a client's
//! operations sent at once, most would be refused, come back later and push out others, in no
//! order. So a client sends each server no more than the server takes; the rest waits here, first
//! come, first served.

use core::time::Duration;
use pluvio_env::{Clock, timeout};
use pluvio_units::{FixedMap, ServerId};
use std::sync::{Arc, Mutex, PoisonError};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Requests under way from one client to one server, at most. It is a third of what the server
/// takes, so a few large clients fit beside each other.
pub(crate) const WINDOW: usize = 256;
/// Servers that are remembered without need, at most.
const IDLE_MAX: usize = 64;
/// How often one that waits looks whether another server has its tablet now.
const LOOK: Duration = Duration::from_millis(100);

/// The windows of one client.
#[derive(Default)]
pub(crate) struct Windows {
    servers: Mutex<FixedMap<ServerId, Arc<Semaphore>>>,
}

/// A request's place; dropping it gives the place to the next one.
pub(crate) struct WindowPlace {
    _permit: OwnedSemaphorePermit,
}

impl Windows {
    fn of(&self, server: ServerId) -> Arc<Semaphore> {
        // Every change of the map is one step, so a panic elsewhere leaves it whole.
        let mut servers = self.servers.lock().unwrap_or_else(PoisonError::into_inner);
        if servers.len() >= IDLE_MAX && !servers.contains_key(&server) {
            // One that is used is held by its permits and by those who wait.
            servers.retain(|_, window| Arc::strong_count(window) > 1);
        }
        let window = servers.entry(server);
        Arc::clone(window.or_insert_with(|| Arc::new(Semaphore::new(WINDOW))))
    }

    /// A place among the requests to `server`; `None` when `limit` passed or `is_in_vain` said so
    /// before there was one.
    pub(crate) async fn enter(
        &self,
        server: ServerId,
        clock: &dyn Clock,
        limit: Duration,
        is_in_vain: impl Fn() -> bool,
    ) -> Option<WindowPlace> {
        let window = self.of(server);
        if let Ok(permit) = Arc::clone(&window).try_acquire_owned() {
            return Some(WindowPlace { _permit: permit });
        }
        let deadline = clock.now() + limit;
        let mut turn = core::pin::pin!(window.acquire_owned());
        loop {
            let left = deadline.since(clock.now());
            if left.is_zero() || is_in_vain() {
                return None;
            }
            if let Ok(permit) = timeout(clock, left.min(LOOK), turn.as_mut()).await {
                let permit = permit.expect("the semaphore is never closed");
                return Some(WindowPlace { _permit: permit });
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::FakeCluster;
    use futures_util::future::join;

    const SERVER: ServerId = ServerId(1);
    const SECOND: Duration = Duration::from_secs(1);

    /// All places of a window, taken.
    async fn full(windows: &Windows, clock: &dyn Clock) -> Vec<WindowPlace> {
        let mut places = Vec::new();
        for _ in 0..WINDOW {
            let place = windows.enter(SERVER, clock, SECOND, || false).await;
            places.push(place.expect("there is room"));
        }
        places
    }

    #[test]
    fn those_who_wait_enter_in_the_order_in_which_they_came() {
        let cluster = FakeCluster::new(1);
        let clock = cluster.parts().clock;
        let windows = Windows::default();
        cluster.run(async {
            let mut places = full(&windows, &*clock).await;
            let order = Mutex::new(Vec::new());
            let enter = |name: u32| {
                let (windows, clock, order) = (&windows, &*clock, &order);
                async move {
                    let place = windows.enter(SERVER, clock, SECOND, || false).await;
                    order.lock().unwrap().push(name);
                    place.expect("a place became free")
                }
            };
            let free = async {
                clock.sleep(LOOK * 3).await;
                assert!(order.lock().unwrap().is_empty());
                places.pop();
                clock.sleep(LOOK).await;
                assert_eq!(*order.lock().unwrap(), [1], "who leaves makes room for one");
                places.pop();
                clock.sleep(LOOK).await;
                assert_eq!(*order.lock().unwrap(), [1, 2]);
            };
            join(join(enter(1), enter(2)), free).await;
            let other = windows.enter(ServerId(2), &*clock, SECOND, || false).await;
            assert!(other.is_some(), "servers have their own windows");
        });
    }

    #[test]
    fn waiting_ends_with_its_time_or_its_purpose() {
        let cluster = FakeCluster::new(1);
        let clock = cluster.parts().clock;
        let windows = Windows::default();
        cluster.run(async {
            let _places = full(&windows, &*clock).await;
            let start = cluster.now();
            let late = windows.enter(SERVER, &*clock, SECOND, || false).await;
            assert!(late.is_none());
            assert_eq!(cluster.now() - start, SECOND);
            let start = cluster.now();
            let moved = || cluster.now() >= start + 2 * LOOK;
            let moved = windows.enter(SERVER, &*clock, SECOND, moved).await;
            assert!(moved.is_none());
            assert_eq!(cluster.now() - start, 2 * LOOK);
        });
    }

    #[test]
    fn servers_that_are_gone_are_forgotten() {
        let windows = Windows::default();
        for server in 0..10 * IDLE_MAX as u64 {
            drop(windows.of(ServerId(server)));
        }
        assert!(windows.servers.lock().unwrap().len() <= IDLE_MAX);
    }
}
