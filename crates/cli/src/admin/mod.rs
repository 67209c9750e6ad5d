//! HTTP for operators, on the admin port of every process: `/metrics`, `/healthz`, `/readyz`.
//!
//! - ADM-1: a flood or a slow peer on this port costs a bounded number of files and nothing else.
//!   There are at most [`CONNECTIONS_MAX`] connections, each for at most [`CONNECTION_LIMIT`].
//!   Those that ask nothing, or never finish asking, give their places to others after
//!   [`QUIET_LIMIT`].

mod listener;
pub mod metrics;

use crate::admin::listener::{Bounded, Bounds};
use crate::admin::metrics::{Metrics, text};
use axum::Router;
use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::IntoResponse;
use axum::routing::get;
use pluvio_console::failure::Failure;
use pluvio_env::{BoxFuture, Env, TaskHandle};
use pluvio_net::Tls;
use pluvio_units::CoreId;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::TcpListener;

/// Connections open at a time; more wait until one ends. Scrapers and probes need a handful.
const CONNECTIONS_MAX: usize = 64;
/// How long a connection lives. Clients come again.
const CONNECTION_LIMIT: Duration = Duration::from_secs(60);
/// How long a connection may be without a request, and how long one may take from its first byte to
/// that of its answer. The slowest page waits up to 3 s for servers.
const QUIET_LIMIT: Duration = Duration::from_secs(5);

/// What the pages tell of.
pub trait Subject: Send + Sync {
    /// Whether the process can do its work, and why not.
    fn readiness(&self) -> (bool, String);
    /// All its numbers, as they are now.
    fn metrics(&self) -> BoxFuture<'static, Metrics>;
}

/// The open port. Closes when dropped.
pub struct Admin {
    /// Where it listens.
    pub address: String,
    task: TaskHandle,
}

impl Admin {
    /// Opens the port. With `tls` it speaks HTTPS, and asks its clients for no certificate: probes
    /// of schedulers have none.
    ///
    /// # Errors
    /// It cannot be opened.
    pub async fn start(
        env: &Env,
        address: &str,
        tls: Option<Arc<Tls>>,
        subject: Arc<dyn Subject>,
    ) -> Result<Self, Failure> {
        let fail = |error: std::io::Error| {
            Failure::new(format!(
                "cannot listen on {address} for metrics: {error}; choose another port with --admin"
            ))
        };
        let listener = TcpListener::bind(address).await.map_err(fail)?;
        let bound = listener.local_addr().map_err(fail)?.to_string();
        let bounds = Bounds {
            connections: CONNECTIONS_MAX,
            life: CONNECTION_LIMIT,
            quiet: QUIET_LIMIT,
        };
        let listener = Bounded::new(listener, tls, env.clock.clone(), bounds);
        let router = Router::new()
            .route("/", get(index))
            .route("/healthz", get(healthy))
            .route("/readyz", get(ready))
            .route("/metrics", get(metrics))
            .with_state(subject);
        let task = env.tasks.spawn(CoreId(0), "admin", async move {
            if let Err(error) = axum::serve(listener, router).await {
                tracing::error!(%error, "the admin port has closed");
            }
        });
        Ok(Self {
            address: bound,
            task,
        })
    }
}

impl Drop for Admin {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn index() -> &'static str {
    "pluvio: /metrics /healthz /readyz\n"
}

/// The process runs and its event loop turns: that is what this answer shows.
async fn healthy() -> &'static str {
    "ok\n"
}

async fn ready(State(subject): State<Arc<dyn Subject>>) -> impl IntoResponse {
    match subject.readiness() {
        (true, _) => (StatusCode::OK, "ready\n".to_owned()),
        (false, why) => (
            StatusCode::SERVICE_UNAVAILABLE,
            format!("not ready: {why}\n"),
        ),
    }
}

async fn metrics(State(subject): State<Arc<dyn Subject>>) -> impl IntoResponse {
    let numbers = subject.metrics().await;
    let kind = "application/openmetrics-text; version=1.0.0; charset=utf-8";
    ([(header::CONTENT_TYPE, kind)], text(numbers))
}
