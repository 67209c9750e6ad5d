//! [`OsNetwork`]: finds the connection for a call, opens ports.

use crate::accept::{Door, Port, Role, open_port};
use crate::client::{Call, Connection, GivenUp, PeerMap, Posted, take_out};
use crate::client_io::{Closer, Shared, run};
use crate::counters::{Counters, add};
use crate::datagram;
use crate::fabric;
use crate::lock;
use crate::options::NetOptions;
use crate::ring::socket::{Meeting, bind as bind_socket, new_mark};
use crate::socket::{bind, resolve};
use crate::tls::Tls;
use bytes::Bytes;
use core::time::Duration;
use pluvio_env::{
    Address, BoxFuture, CallError, Clock, Frame, Listening, Moment, Network, NetworkError,
    NoConnection, Replies, Service, StreamService, Tasks, Transport, timeout,
};
use pluvio_units::CoreId;
use std::sync::Arc;

/// Connections that one call tries to use. On those that had ended, nothing was sent.
const ATTEMPTS_MAX: usize = 3;
/// A connection is replaced if it gave no byte for this long after a request that timed out. Its
/// bytes may be lost, and TCP repeats them later and later. After a cut it stays silent for as long
/// again as the cut has lasted. TCP's first repetition comes after 200 ms.
const SILENCE_MIN: Duration = Duration::from_millis(200);
/// The reason when no connection lives long enough to be used.
const ALWAYS_ENDED: &str = "its connections end as soon as they are made";
/// The reason to refuse requests on all addresses of a machine at once.
const NOT_ONE_ADDRESS: &str = "the cluster is told this address, and from another machine it leads nowhere; \
     give the address by which the others reach this machine";

/// The reason to refuse byte streams by another transport than TCP.
const NO_STREAMS: &str = "only TCP carries byte streams; give an address of TCP";

/// The memory that the connections of a process's RPC ports hold together.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct ConnectionsMemory {
    /// Bytes of frames that have come in part, and of replies that wait for their peers.
    pub used: usize,
    /// The most of that.
    pub bound: usize,
}

/// `env::Network` of the real system: the transport is chosen by address.
pub struct OsNetwork {
    shared: Arc<Shared>,
    /// Per core. The connections' tasks know it weakly.
    peers: Arc<Vec<PeerMap>>,
    current_core: fn() -> Option<CoreId>,
}

impl OsNetwork {
    /// `current_core` gives the core whose event loop runs on the calling thread
    /// (`pluvio_env_os::current_core`); the tasks and clock must be of that runtime.
    #[must_use]
    pub fn new(
        options: NetOptions,
        tasks: Arc<dyn Tasks>,
        clock: Arc<dyn Clock>,
        current_core: fn() -> Option<CoreId>,
    ) -> Self {
        Self::with_tls(options, None, tasks, clock, current_core)
    }

    /// The same with TLS on every TCP port and connection, if `tls` is some.
    #[must_use]
    pub fn with_tls(
        options: NetOptions,
        tls: Option<Arc<Tls>>,
        tasks: Arc<dyn Tasks>,
        clock: Arc<dyn Clock>,
        current_core: fn() -> Option<CoreId>,
    ) -> Self {
        let cores = tasks.cores();
        Self {
            peers: Arc::new((0..cores).map(|_| PeerMap::default()).collect()),
            shared: Arc::new(Shared::new(options, tls, tasks, clock)),
            current_core,
        }
    }

    /// What the connections of its RPC ports hold.
    #[must_use]
    pub fn connections_memory(&self) -> ConnectionsMemory {
        let memory = &self.shared.memory;
        ConnectionsMemory {
            used: memory.used(),
            bound: memory.bound(),
        }
    }

    /// The counts so far.
    #[must_use]
    pub fn counters(&self) -> &Counters {
        &self.shared.counters
    }

    /// The core whose connections the calling thread uses.
    fn core(&self) -> CoreId {
        (self.current_core)()
            .filter(|core| usize::from(core.0) < self.peers.len())
            .unwrap_or(CoreId(0))
    }

    /// The connection of `core` to `to`, made if there is none (or only `ended`).
    fn connection(
        &self,
        core: CoreId,
        to: &Address,
        ended: Option<&Arc<Connection>>,
    ) -> Result<Arc<Connection>, CallError> {
        let options = &self.shared.options;
        let connection = {
            let mut peers = lock(&self.peers[usize::from(core.0)]);
            match peers.get(to) {
                Some(there) if !ended.is_some_and(|ended| Arc::ptr_eq(ended, there)) => {
                    return Ok(Arc::clone(there));
                }
                Some(_) => {}
                None if peers.len() >= options.peers_max => {
                    let why = format!("this process has its most connections ({})", peers.len());
                    return Err(CallError::Unreachable(to.clone(), why.into()));
                }
                None => {}
            }
            let connection = Arc::new(Connection::new(
                to.clone(),
                core,
                options.calls_max,
                options.send_queue_bytes_max,
            ));
            peers.insert(to.clone(), Arc::clone(&connection));
            connection
        };
        let closer = Closer::new(
            Arc::clone(&self.shared),
            Arc::downgrade(&self.peers),
            Arc::clone(&connection),
        );
        // Outside the lock: a runtime that stops drops the task, and with it the closer, here.
        let task = self
            .shared
            .tasks
            .spawn_on(core, "rpc-client", Box::pin(run(closer)));
        connection.run_by(task);
        Ok(connection)
    }

    /// One call without its time limit. `progress` tells the caller the state when time is up.
    async fn exchange(
        &self,
        to: &Address,
        mut request: Frame,
        progress: &mut Progress,
    ) -> Result<Frame, CallError> {
        let core = self.core();
        let mut connection = self.connection(core, to, None)?;
        // A connection may end between being found and being used. If fresh ones have ended too,
        // this process is stopping.
        for _ in 0..ATTEMPTS_MAX {
            match connection.begin_with_room(request).await {
                Ok(call) => {
                    let attempt = Attempt {
                        call,
                        connection: &connection,
                        progress,
                    };
                    return attempt.outcome().await;
                }
                Err(given_back) => request = given_back,
            }
            connection = self.connection(core, to, Some(&connection))?;
        }
        Err(CallError::Unreachable(
            to.clone(),
            NoConnection::Other(ALWAYS_ENDED.to_owned()),
        ))
    }

    /// Puts a request on the way whose outcome goes to `replies`.
    ///
    /// # Errors
    /// Why that was not possible; nothing was sent.
    fn start_post(
        &self,
        to: &Address,
        mut request: Frame,
        number: u64,
        replies: &Arc<dyn Replies>,
    ) -> Result<(), CallError> {
        let frame_max = self.shared.options.frame_bytes_max;
        if request.len() > frame_max {
            return Err(CallError::TooLarge(request.len(), frame_max));
        }
        let core = self.core();
        let mut connection = self.connection(core, to, None)?;
        for _ in 0..ATTEMPTS_MAX {
            match connection.post(request, number, replies) {
                Posted::Waiting => return Ok(()),
                Posted::Crowded => {
                    let why = "its connection has too many requests under way".to_owned();
                    return Err(CallError::Unreachable(to.clone(), why.into()));
                }
                Posted::Closed(given_back) => request = given_back,
            }
            connection = self.connection(core, to, Some(&connection))?;
        }
        Err(CallError::Unreachable(
            to.clone(),
            NoConnection::Other(ALWAYS_ENDED.to_owned()),
        ))
    }

    /// Lets the next call to a peer make a new connection if this one has been silent for long
    /// enough. This one ends with its other calls.
    fn replace_if_silent(&self, connection: &Arc<Connection>, since: Moment) {
        let silent = self.shared.clock.now().since(since);
        if silent >= SILENCE_MIN && take_out(&self.peers, connection) {
            let counters = self.shared.counters.of(connection.core);
            add(&counters.connects_replaced, 1);
            tracing::debug!(peer = %connection.address, ?silent, "silent connection replaced");
            connection.retire();
        }
    }
}

/// How far a call has come when its time is up.
enum Progress {
    NotSent,
    PerhapsSent {
        /// The connection, and the start of its silence, if nothing came on it since the request
        /// was sent.
        unheard: Option<(Arc<Connection>, Moment)>,
    },
}

/// A call that notes on being dropped whether its request was sent.
struct Attempt<'a, 'b> {
    call: Call<'a>,
    connection: &'a Arc<Connection>,
    progress: &'b mut Progress,
}

impl Attempt<'_, '_> {
    async fn outcome(mut self) -> Result<Frame, CallError> {
        self.call.outcome().await
    }
}

impl Drop for Attempt<'_, '_> {
    fn drop(&mut self) {
        match self.call.give_up() {
            GivenUp::Unsent => {}
            GivenUp::Sent { unheard_since } => {
                let unheard = unheard_since.map(|since| (Arc::clone(self.connection), since));
                *self.progress = Progress::PerhapsSent { unheard };
            }
        }
    }
}

impl Drop for OsNetwork {
    fn drop(&mut self) {
        for peers in self.peers.iter() {
            // Out of the lock first: ending a task may take its connection out of this map.
            let connections: Vec<_> = lock(peers).values().cloned().collect();
            for connection in connections {
                connection.abort();
            }
        }
    }
}

impl Network for OsNetwork {
    fn call<'a>(
        &'a self,
        to: &'a Address,
        request: Frame,
        limit: Duration,
    ) -> BoxFuture<'a, Result<Frame, CallError>> {
        Box::pin(async move {
            let frame_max = self.shared.options.frame_bytes_max;
            if request.len() > frame_max {
                return Err(CallError::TooLarge(request.len(), frame_max));
            }
            let mut progress = Progress::NotSent;
            let exchange = self.exchange(to, request, &mut progress);
            match timeout(&*self.shared.clock, limit, exchange).await {
                Ok(outcome) => outcome,
                Err(_) => {
                    let counters = self.shared.counters.of(self.core());
                    add(&counters.calls_timed_out, 1);
                    Err(match progress {
                        Progress::PerhapsSent { unheard } => {
                            if let Some((connection, since)) = unheard {
                                self.replace_if_silent(&connection, since);
                            }
                            CallError::TimedOut(to.clone(), limit)
                        }
                        Progress::NotSent => CallError::Unreachable(
                            to.clone(),
                            format!("the request could not be sent within {limit:?}").into(),
                        ),
                    })
                }
            }
        })
    }

    fn post(
        &self,
        to: &Address,
        request: Frame,
        number: u64,
        replies: &Arc<dyn Replies>,
    ) -> Option<Frame> {
        if let Err(error) = self.start_post(to, request, number, replies) {
            replies.replied(number, Err(error));
        }
        None
    }

    fn give_up(&self, to: &Address, number: u64, replies: &Arc<dyn Replies>) {
        let core = self.core();
        let connection = lock(&self.peers[usize::from(core.0)]).get(to).cloned();
        let Some(connection) = connection else {
            return;
        };
        let given_up = connection.give_up_post(number, replies);
        if given_up.is_some() {
            add(&self.shared.counters.of(core).calls_timed_out, 1);
        }
        if let Some(GivenUp::Sent {
            unheard_since: Some(since),
        }) = given_up
        {
            self.replace_if_silent(&connection, since);
        }
    }

    fn listen(
        &self,
        address: &Address,
        service: Arc<dyn Service>,
    ) -> BoxFuture<'_, Result<Listening, NetworkError>> {
        let connections_max = self.shared.options.connections_max;
        self.open(address.clone(), connections_max, Role::Rpc(service))
    }

    fn listen_streams(
        &self,
        address: &Address,
        connections_max: usize,
        refusal: Bytes,
        service: Arc<dyn StreamService>,
    ) -> BoxFuture<'_, Result<Listening, NetworkError>> {
        let role = Role::Streams { service, refusal };
        self.open(address.clone(), connections_max, role)
    }
}

impl OsNetwork {
    /// Opens every endpoint of `address`. Either all of them are open in the end, or none.
    fn open(
        &self,
        address: Address,
        connections_max: usize,
        role: Role,
    ) -> BoxFuture<'_, Result<Listening, NetworkError>> {
        Box::pin(async move {
            let mut opened: Option<Listening> = None;
            for endpoint in address.endpoints() {
                let next = match endpoint.transport {
                    Transport::Tcp => {
                        self.open_tcp(endpoint.place, connections_max, role.clone())
                            .await
                    }
                    Transport::Datagrams => match &role {
                        Role::Rpc(service) => {
                            self.open_datagrams(endpoint.place, connections_max, service)
                                .await
                        }
                        Role::Streams { .. } => Err(NO_STREAMS.to_owned()),
                    },
                    Transport::Ring => self.open_ring(endpoint.place, role.clone()),
                    Transport::Fabric => self.open_fabric(endpoint.place, role.clone()).await,
                };
                let next = next.map_err(|message| NetworkError {
                    address: address.clone(),
                    message,
                })?;
                opened = Some(match opened {
                    None => next,
                    Some(before) => Listening {
                        address: before.address.and(&next.address),
                        guard: Box::new((before.guard, next.guard)),
                    },
                });
            }
            Ok(opened.expect("an address has an endpoint"))
        })
    }

    async fn open_datagrams(
        &self,
        place: &str,
        connections_max: usize,
        service: &Arc<dyn Service>,
    ) -> Result<Listening, String> {
        self.shared.may_be_open("udp")?;
        let found = resolve(&*self.shared.tasks, place).await?;
        let at = *found.first().ok_or("no address")?;
        if at.ip().to_canonical().is_unspecified() {
            return Err(NOT_ONE_ADDRESS.to_owned());
        }
        datagram::serve::open_port(&self.shared, at, connections_max, Arc::clone(service)).await
    }

    async fn open_tcp(
        &self,
        place: &str,
        connections_max: usize,
        role: Role,
    ) -> Result<Listening, String> {
        let found = resolve(&*self.shared.tasks, place).await?;
        let at = *found.first().ok_or("no address")?;
        if matches!(role, Role::Rpc(_)) && at.ip().to_canonical().is_unspecified() {
            return Err(NOT_ONE_ADDRESS.to_owned());
        }
        let listener = bind(at)?;
        let bound = listener.local_addr().map_err(|error| error.to_string())?;
        let address = Address::from(bound.to_string().as_str());
        let port = Port::new(Arc::clone(&self.shared), role, connections_max, 0, None);
        open_port(port, address, Door::Tcp(listener)).map_err(|error| error.to_string())
    }

    /// The place is `provider:host:port`. The port is one of TCP.
    async fn open_fabric(&self, place: &str, role: Role) -> Result<Listening, String> {
        if matches!(role, Role::Streams { .. }) {
            return Err(NO_STREAMS.to_owned());
        }
        self.shared.may_be_open("libfabric")?;
        let (provider, meeting) = place.split_once(':').ok_or("no provider is named")?;
        let found = resolve(&*self.shared.tasks, meeting).await?;
        let at = *found.first().ok_or("no address")?;
        if at.ip().to_canonical().is_unspecified() {
            return Err(NOT_ONE_ADDRESS.to_owned());
        }
        fabric::check(&self.shared, provider, at.ip().to_canonical()).await?;
        let listener = bind(at)?;
        let bound = listener.local_addr().map_err(|error| error.to_string())?;
        let address = Address::from(format!("fabric:{provider}:{bound}").as_str());
        let connections_max = self.shared.options.fabric_connections_max;
        let shared = Arc::clone(&self.shared);
        let port = Port::new(shared, role, connections_max, 0, Some(provider.into()));
        open_port(port, address, Door::Tcp(listener)).map_err(|error| error.to_string())
    }

    fn open_ring(&self, place: &str, role: Role) -> Result<Listening, String> {
        if matches!(role, Role::Streams { .. }) {
            return Err(NO_STREAMS.to_owned());
        }
        let mut meeting = Meeting::parse(place);
        if meeting.mark == 0 {
            meeting.mark = new_mark();
        }
        let (listener, file) = bind_socket(meeting.path)?;
        let shared = Arc::clone(&self.shared);
        let connections_max = shared.options.ring_connections_max;
        let port = Port::new(shared, role, connections_max, meeting.mark, None);
        let address = Address::from(meeting.address().as_str());
        let door = Door::Ring(listener, Some(file));
        open_port(port, address, door).map_err(|error| error.to_string())
    }
}
