//! The service that a network gives connections to.

use crate::connection::serve;
use crate::counters::{Latencies, Totals, add};
use crate::failure::DENIED;
use crate::memory::ClientMemory;
use crate::parameters::Number;
use crate::reply::{Failure, Protocol, Reply};
use crate::shared::{Core, RedisOptions, Shared, StatusFn};
use crate::users::Tools;
use bytes::Bytes;
use pluvio_client::{Client, Parts};
use pluvio_env::{Address, BoxFuture, ByteStream, StreamService};
use pluvio_units::TimeSpread;
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Serves the Redis protocol. Cheap to clone; clones are the same service.
#[derive(Clone)]
pub struct RedisService {
    shared: Arc<Shared>,
    cores: Arc<[Arc<Core>]>,
}

impl RedisService {
    /// The message to a connection over the limit before it is closed.
    pub const REFUSAL: Bytes = Bytes::from_static(b"-ERR max number of clients reached\r\n");

    /// A service over `client`, on a process with this number of event loops. `status` tells what
    /// the server has and does.
    pub fn new(
        parts: impl Into<Parts>,
        client: &Client,
        cores: u16,
        options: RedisOptions,
        status: StatusFn,
    ) -> Self {
        let parts = parts.into();
        options.users.prepare(&*parts.rng);
        let cores = cores.max(1);
        let shared = Arc::new(Shared::new(options, parts.clock.clone(), status, cores));
        let core = |n| Arc::new(Core::new(&shared, client, &parts, n));
        Self {
            cores: (0..cores).map(core).collect(),
            shared,
        }
    }

    /// Tells it the port that it has, where any free one was asked for.
    pub fn bound(&self, port: u16) {
        self.shared.port.store(port, Ordering::Relaxed);
    }

    /// Looks for users that have changed, and closes the connections of those that are no more. To
    /// be called about once a second.
    pub async fn refresh_users(&self) {
        let core = &self.cores[0];
        let Tools { client, clock, .. } = core.tools();
        let users = &core.options().users;
        if let Err(failure) = users.read_if_old(client, &**clock).await {
            let why = String::from_utf8_lossy(failure.text()).into_owned();
            tracing::debug!(why, "users cannot be read");
        }
        self.shared.close_gone(None);
    }

    /// Whether the password of the configuration counts no more, because the cluster keeps a user
    /// `default`.
    #[must_use]
    pub fn password_is_unused(&self) -> bool {
        self.shared.options.users.password_is_unused()
    }

    /// Logins, commands, keys and databases that were refused, of all ports that share the users.
    #[must_use]
    pub fn denied(&self) -> [u64; 4] {
        self.shared.options.users.denials.counts()
    }

    /// The memory that the connections hold, of all ports that share its bound.
    #[must_use]
    pub fn memory(&self) -> Arc<ClientMemory> {
        Arc::clone(&self.shared.options.memory)
    }

    /// What was counted since the start.
    #[must_use]
    pub fn totals(&self) -> Totals {
        self.shared.totals()
    }

    /// Lets every connection end as soon as all that it sent is answered, also those that come from
    /// now on. [`Totals::connections_open`] tells how many are left.
    pub fn retire(&self) {
        self.shared.clients.retire();
    }

    /// How long commands took since the start, all together.
    #[must_use]
    pub fn spread(&self) -> TimeSpread {
        self.shared.spread()
    }

    /// How long commands took since the start, by command.
    #[must_use]
    pub fn times(&self) -> BTreeMap<&'static str, Latencies> {
        self.shared.all_times()
    }
}

impl StreamService for RedisService {
    fn serve(&self, stream: Box<dyn ByteStream>) -> BoxFuture<'static, ()> {
        let at = usize::from(stream.peer().core.0) % self.cores.len();
        let core = self.cores[at].clone();
        Box::pin(async move {
            let mut stream = stream;
            match Place::take(core.options()) {
                Some(_place) => match admit(&core, &stream.peer().address).await {
                    Ok(()) => serve(&core, stream).await,
                    Err(failure) => {
                        let mut words = Vec::new();
                        Reply::Error(failure).write(Protocol::default(), &mut words);
                        drop(stream.write_all(&words).await);
                    }
                },
                // An error means that the peer is gone: nobody is left to tell.
                None => {
                    add(&core.counters.connections_refused, 1);
                    drop(stream.write_all(&Self::REFUSAL).await);
                }
            }
        })
    }
}

/// Whether a connection is answered at all.
///
/// # Errors
/// It is not, in words for the peer.
async fn admit(core: &Core, peer: &Address) -> Result<(), Failure> {
    let Tools { client, clock, .. } = core.tools();
    let users = &core.options().users;
    users.ready(client, &**clock).await?;
    let is_protected = core.options().parameters.number(Number::IsProtected) != 0;
    if is_protected && users.default_user().needs_none && !is_of_this_machine(peer) {
        let second = core.shared.wall_clock().0;
        users.denials.trace_stranger(peer, second);
        return Err(DENIED);
    }
    Ok(())
}

fn is_of_this_machine(peer: &Address) -> bool {
    let peer = peer.0.parse::<SocketAddr>();
    peer.is_ok_and(|peer| peer.ip().to_canonical().is_loopback())
}

/// A connection that counts in the limit of its ports. The network has the same limit for each of
/// them.
struct Place(Arc<AtomicUsize>);

impl Place {
    fn take(options: &RedisOptions) -> Option<Self> {
        let place = Self(Arc::clone(&options.connections));
        let before = place.0.fetch_add(1, Ordering::Relaxed);
        (before < options.connections_max).then_some(place)
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}
