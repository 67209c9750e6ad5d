//! The ports of a process: one task for each core, with a socket of its own.

use super::Ground;
use super::socket::{Arrived, Socket};
use core::future::poll_fn;
use core::task::{Context, Poll, Waker};
use pluvio_env::{
    Address, BoxFuture, Frame, Handled, Listening, Moment, NetworkError, Peer, Service,
};
use pluvio_net::machines::Server;
use pluvio_units::CoreId;
use std::sync::{Arc, Mutex, PoisonError};

/// Rounds before other tasks have their turn.
const ROUNDS_MAX: usize = 16;
/// Datagrams received before others are sent.
const RECEIVED_MAX: usize = 64;

/// Replies that the service has given later, for their port.
#[derive(Default)]
struct Late {
    replies: Vec<(u64, u64, usize, Frame)>,
    task: Option<Waker>,
    is_closed: bool,
}

type Shelf = Arc<Mutex<Late>>;

fn late(shelf: &Shelf) -> std::sync::MutexGuard<'_, Late> {
    shelf.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Opens a port.
pub(super) fn open(
    ground: &Ground,
    address: &Address,
    service: &Arc<dyn Service>,
) -> Result<Listening, NetworkError> {
    let failed = |message: &str| NetworkError {
        address: address.clone(),
        message: message.into(),
    };
    let mut state = ground.shared.lock();
    if !state.is_alive(ground.owner) {
        return Err(failed("this incarnation of the process is dead"));
    }
    let process = ground.owner.process;
    let name = match address.0.strip_suffix(":0") {
        Some(host) => {
            state.port_last += 1;
            Address::from(format!("{host}:{}", state.port_last).as_str())
        }
        None => address.clone(),
    };
    let at = state.sockets.name(&name, process);
    if state.sockets.is_bound(at) {
        return Err(failed("address already in use; choose another one"));
    }
    let cores = state.options.cores;
    drop(state);
    let mut shelves = Vec::new();
    for core in 0..cores {
        let shelf = Shelf::default();
        let socket = Socket::bind(&ground.shared, ground.owner, Some(at));
        let mut port = Port {
            ground: ground.clone(),
            core,
            server: Server::new(ground.fresh_key(), &ground.options, Arc::clone(service)),
            service: Arc::clone(service),
            socket,
            shelf: Arc::clone(&shelf),
            timer: None,
        };
        let work = async move { poll_fn(|cx| port.poll(cx)).await };
        let shared = &ground.shared;
        shared.spawn(ground.owner, core, "datagrams", Box::pin(work));
        shelves.push(shelf);
    }
    Ok(Listening {
        address: name,
        guard: Box::new(PortGuard(shelves)),
    })
}

struct PortGuard(Vec<Shelf>);

impl Drop for PortGuard {
    fn drop(&mut self) {
        for shelf in &self.0 {
            let mut late = late(shelf);
            late.is_closed = true;
            let task = late.task.take();
            drop(late);
            if let Some(task) = task {
                task.wake();
            }
        }
    }
}

struct Port {
    ground: Ground,
    core: u16,
    server: Server,
    service: Arc<dyn Service>,
    socket: Socket,
    shelf: Shelf,
    timer: Option<(Moment, BoxFuture<'static, ()>)>,
}

impl Port {
    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        for _ in 0..ROUNDS_MAX {
            let now = self.ground.clock.now();
            if late(&self.shelf).is_closed {
                return Poll::Ready(());
            }
            let received = self.receive(cx, now);
            self.handle_requests();
            let replies = core::mem::take(&mut late(&self.shelf).replies);
            for (session, call, bytes, reply) in replies {
                self.server.reply(session, call, bytes, reply);
            }
            self.server.alarm(now);
            let seen = self.server.take_seen();
            self.ground.shared.lock().network_stats.count(seen);
            let mut datagram = Vec::new();
            while let Some(to) = self.server.transmit(now, &mut datagram) {
                self.socket.send(to, core::mem::take(&mut datagram));
            }
            if received == 0 && self.rests(cx) {
                return Poll::Pending;
            }
        }
        cx.waker().wake_by_ref();
        Poll::Pending
    }

    fn rests(&mut self, cx: &mut Context<'_>) -> bool {
        let mut late = late(&self.shelf);
        if late.is_closed || !late.replies.is_empty() {
            return false;
        }
        let old = late.task.replace(cx.waker().clone());
        drop(late);
        drop(old);
        super::rests_until(&self.ground, &mut self.timer, self.server.deadline(), cx)
    }

    fn receive(&mut self, cx: &mut Context<'_>, now: Moment) -> usize {
        for received in 0..RECEIVED_MAX {
            match self.socket.poll_receive(cx) {
                Poll::Pending => return received,
                // Clients that are gone are noticed by their silence.
                Poll::Ready(Arrived::Refused) => {}
                Poll::Ready(Arrived::Datagram(from, datagram)) => {
                    self.server.receive(now, from, &datagram);
                }
            }
        }
        RECEIVED_MAX
    }

    fn handle_requests(&mut self) {
        for request in self.server.take_requests() {
            let (session, call, bytes) = (request.session, request.call, request.frame.len());
            let peer = Peer {
                address: request.peer,
                core: CoreId(self.core),
            };
            match self.service.handle(peer, request.frame) {
                Handled::Now(reply) => self.server.reply(session, call, bytes, reply),
                Handled::Later(answer) => {
                    let shelf = Arc::clone(&self.shelf);
                    let work = async move {
                        let reply = answer.await;
                        let mut late = late(&shelf);
                        late.replies.push((session, call, bytes, reply));
                        let task = late.task.take();
                        drop(late);
                        if let Some(task) = task {
                            task.wake();
                        }
                    };
                    let (shared, owner) = (&self.ground.shared, self.ground.owner);
                    shared.spawn(owner, self.core, "serve", Box::pin(work));
                }
            }
        }
    }
}
