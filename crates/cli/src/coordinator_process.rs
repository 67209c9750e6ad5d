//! `pluvio coordinator`: the coordinator as a process.

use crate::admin::metrics::Metrics;
use crate::admin::{Admin, Subject};
use crate::args::{Coordinator as Arguments, Global};
use crate::failure::Failure;
use crate::process::{self, Announcement, Parts};
use pluvio_client::{Client, ClientOptions};
use pluvio_coordinator::{Coordinator, CoordinatorOptions, RedbStore};
use pluvio_env::{Address, BoxFuture};
use pluvio_net::TcpNetwork;
use std::process::ExitCode;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// The metadata below the data directory.
const METADATA: &str = "metadata.redb";
/// How long a metrics page waits for what the servers say. Scrapers give up after 10 s.
const STATUS_LIMIT: Duration = Duration::from_secs(3);

/// Runs the coordinator until it is asked to stop.
///
/// # Errors
/// It cannot start.
pub fn run(global: &Global, arguments: &Arguments) -> Result<ExitCode, Failure> {
    let (given, json) = (arguments.clone(), global.json);
    process::run(
        global,
        &arguments.process,
        1,
        &arguments.data,
        move |parts| serve(parts, given, json),
    )
}

async fn serve(parts: Parts, arguments: Arguments, json: bool) -> Result<(), Failure> {
    let Parts {
        env,
        network,
        mut signals,
    } = parts;
    let fail = |what: &dyn std::fmt::Display| {
        Failure::new(format!(
            "data directory {}: {what}",
            arguments.data.display()
        ))
    };
    let subject = Arc::new(Pages {
        client: Mutex::new(None),
        network,
    });
    let admin = match &arguments.admin {
        Some(address) => Some(Admin::start(&env, address, subject.clone()).await?),
        None => None,
    };
    let store = RedbStore::open(arguments.data.join(METADATA), env.tasks.clone())
        .map_err(|error| fail(&error))?;
    let mut options = CoordinatorOptions::default();
    options.dead_server_timeout = arguments.dead_server_timeout;
    let coordinator = Coordinator::start(env.clone(), Arc::new(store), options)
        .await
        .map_err(|error| fail(&error))?;
    let address = Address::from(arguments.listen.as_str());
    let port = env
        .network
        .listen(&address, Arc::new(coordinator))
        .await
        .map_err(|error| Failure::new(error.to_string()))?;
    let own = ClientOptions::new([port.address.clone()])
        .timeout(STATUS_LIMIT)
        .attempt_timeout(STATUS_LIMIT);
    *subject.place() = Some(Client::new(&env, own));
    Announcement {
        ready: true,
        role: "coordinator".into(),
        id: None,
        pid: std::process::id(),
        addr: port.address.to_string(),
        redis: None,
        admin: admin.as_ref().map(|a| a.address.clone()),
    }
    .tell(json)?;
    let signal = signals.next().await;
    tracing::info!(%signal, "stopping");
    Ok(())
}

/// What the admin port tells of this process.
struct Pages {
    /// Asks this very process, as others do; `None` until it listens.
    client: Mutex<Option<Client>>,
    network: Arc<TcpNetwork>,
}

impl Pages {
    fn place(&self) -> std::sync::MutexGuard<'_, Option<Client>> {
        self.client.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Subject for Pages {
    fn readiness(&self) -> (bool, String) {
        match &*self.place() {
            Some(_) => (true, String::new()),
            None => (false, "the metadata is being read".into()),
        }
    }

    fn metrics(&self) -> BoxFuture<'static, Metrics> {
        let mut metrics = Metrics::default();
        metrics.net(&self.network.counters().totals());
        let client = self.place().clone();
        Box::pin(async move {
            if let Some(client) = client {
                match client.cluster_status().await {
                    Ok(status) => metrics.cluster(&status),
                    Err(error) => tracing::warn!(%error, "a metrics page lacks the cluster"),
                }
            }
            metrics
        })
    }
}
