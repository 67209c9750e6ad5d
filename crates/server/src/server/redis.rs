//! The ports for Redis clients of a starting server.

use super::{RedisPort, ServerError, Starting};
use crate::status::StatusSource;
use pluvio_client::{Client, ClientOptions};
use pluvio_env::{Address, Clock, Listening, TaskHandle};
use pluvio_redis::{
    ClientMemory, ClusterPort, Cost, Elsewhere, HotKeysOf, RedisOptions, RedisService, Users,
};
use pluvio_units::CoreId;
use std::sync::Arc;
use std::time::Duration;

/// How long a Redis client waits while servers say only that memory is full. The cleaner gets its
/// chance. The answer comes before the two seconds after which several client libraries give up.
const REDIS_FULL_PATIENCE: Duration = Duration::from_millis(1500);

/// How often changes of Redis users are looked for: so that they are known within a second.
const USERS_PERIOD: Duration = Duration::from_millis(750);

/// Keeps up with changes of Redis users, as long as it is not dropped.
async fn follow_users(clock: Arc<dyn Clock>, services: Vec<RedisService>) {
    let mut was_unused = false;
    loop {
        for service in &services {
            service.refresh_users().await;
        }
        let is_unused = services.iter().any(RedisService::password_is_unused);
        if is_unused && !was_unused {
            tracing::info!(
                "the password of --redis-password-file is not used: the cluster keeps a user default"
            );
        }
        was_unused = is_unused;
        clock.sleep(USERS_PERIOD).await;
    }
}

impl Starting {
    /// Keeps up with changes of users, if there are ports for Redis clients.
    pub(super) fn follow_redis_users(&self, ports: [&Option<RedisPort>; 2]) -> Option<TaskHandle> {
        let services = ports.into_iter().flatten();
        let services: Vec<_> = services.map(|port| port.service.clone()).collect();
        let follow = follow_users(Arc::clone(&self.env.clock), services.clone());
        let spawn = || {
            self.env
                .tasks
                .spawn(CoreId(0), "Redis users", Box::pin(follow))
        };
        (!services.is_empty()).then(spawn)
    }

    /// The ordinary port and the one for cluster clients.
    pub(super) async fn open_redis(
        &self,
        status: &Arc<StatusSource>,
        ports: &mut Vec<Listening>,
    ) -> Result<(Option<RedisPort>, Option<RedisPort>), ServerError> {
        let membership = Arc::clone(&self.membership);
        let servers = move || (membership.id(), membership.list());
        let cluster = ClusterPort::new(Arc::new(servers));
        // Both ports share the limit of connections, and that of what these hold.
        let bound = usize::try_from(self.options.redis_memory().bytes()).unwrap_or(usize::MAX);
        let mut options = RedisOptions::default().with_memory(ClientMemory::new(bound));
        options.connections_max = self.options.redis_connections_max;
        let tasks = Arc::clone(&self.env.tasks);
        options.elsewhere = Some(Elsewhere::new(move |work| tasks.run_blocking(work)));
        options.trace = self.options.trace;
        options.hot_keys = Some(HotKeysOf::new(Arc::new(self.local.clone())));
        let password = self.options.redis_password.clone();
        options.users = Arc::new(Users::new(password, true, Cost::USUAL));
        options = options.with_protected_mode(self.options.redis_protected);
        let redis = match &self.options.redis {
            Some(at) => Some(
                self.open_redis_port(at, options.clone(), status, ports)
                    .await?,
            ),
            None => None,
        };
        options.cluster = Some(cluster);
        let redis_cluster = match &self.options.redis_cluster {
            Some(at) => Some(self.open_redis_port(at, options, status, ports).await?),
            None => None,
        };
        Ok((redis, redis_cluster))
    }

    async fn open_redis_port(
        &self,
        address: &Address,
        mut options: RedisOptions,
        status: &Arc<StatusSource>,
        ports: &mut Vec<Listening>,
    ) -> Result<RedisPort, ServerError> {
        let mut client_options = ClientOptions::new(self.options.coordinators.clone());
        client_options.timeout = self.options.redis_timeout;
        client_options.full_timeout = REDIS_FULL_PATIENCE;
        let client = Client::embedded(&self.env, client_options, Arc::new(self.local.clone()));
        options.port = port_of(address);
        options.process_id = self.options.pid;
        options.machine.clone_from(&self.options.machine);
        let source = Arc::clone(status);
        let cores = self.env.tasks.cores();
        let redis = RedisService::new(
            &self.env,
            &client,
            cores,
            options,
            Arc::new(move || source.read()),
        );
        let most = self.options.redis_connections_max;
        let service = Arc::new(redis.clone());
        let port = self
            .env
            .network
            .listen_streams(address, most, RedisService::REFUSAL, service);
        let port = port.await?;
        redis.bound(port_of(&port.address));
        let address = port.address.clone();
        ports.push(port);
        Ok(RedisPort {
            service: redis,
            address,
        })
    }
}

/// 0 when there is none.
fn port_of(address: &Address) -> u16 {
    let port = address.0.rsplit(':').next();
    port.and_then(|p| p.parse().ok()).unwrap_or(0)
}
