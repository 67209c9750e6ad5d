//! HTTP for operators, on the admin port of every process.
//!
//! Pages: `/metrics`, `/metrics/redis`, `/healthz`, `/readyz` and `/log`. A coordinator also has
//! the page of the cluster at `/`.
//!
//! - ADM-1: a flood or a slow peer on this port costs a bounded number of files and nothing else.
//!   There are at most [`CONNECTIONS_MAX`] connections, each for at most [`CONNECTION_LIMIT`].
//!   Those that ask nothing, or never finish asking, give their places to others after
//!   [`QUIET_LIMIT`].
//! - ADM-3: keys of users are shown, and anything is changed, only on a port that is open on the
//!   loopback alone. The request must name the loopback as its host, too. So no page of the web
//!   reaches them by a name that it points here. The rights of a user decide about the [`console`]
//!   instead.

mod cluster;
mod cluster_metrics;
mod compatible;
mod console;
mod listener;
pub mod metrics;
mod sampler;

pub use sampler::Sampler;

use crate::admin::console::{Console, REQUEST_MAX};
use crate::admin::listener::{Bounded, Bounds};
use crate::admin::metrics::{Metrics, redis_text, text};
use axum::Router;
use axum::body::{Body, to_bytes};
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use pluvio_console::failure::Failure;
use pluvio_console::traces;
use pluvio_env::{BoxFuture, Env, Rng, TaskHandle};
use pluvio_net::Tls;
use pluvio_units::CoreId;
use serde_json::{Value, json};
use std::io::ErrorKind;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::TcpListener;

/// How long a port may be taken at the start, and how often it is tried.
const BIND_PATIENCE: Duration = Duration::from_secs(2);
const BIND_AGAIN: Duration = Duration::from_millis(100);
/// Connections open at a time; more wait until one ends. Scrapers and probes need a handful.
const CONNECTIONS_MAX: usize = 64;
/// How long a connection lives. Clients come again.
const CONNECTION_LIMIT: Duration = Duration::from_secs(60);
/// How long a connection may be without a request, and how long one may take from its first byte to
/// that of its answer. The slowest page waits up to 3 s for servers.
const QUIET_LIMIT: Duration = Duration::from_secs(5);

/// Bytes of a filter of traces.
const FILTER_MAX: usize = 1024;

/// The page of the cluster. A random number is put in place of each NONCE, and the token of the
/// console, if there is one, in place of [`TOKEN_PLACE`].
const PAGE: &str = include_str!("page.html");
const TOKEN_PLACE: &str = "CONSOLE-TOKEN";

/// What the pages tell of.
pub trait Subject: Send + Sync {
    /// Whether the process can do its work, and why not.
    fn readiness(&self) -> (bool, String);
    /// All its numbers, as they are now.
    fn metrics(&self) -> BoxFuture<'static, Metrics>;
    /// Its numbers with the names of redis_exporter; `None` if it has no port for Redis clients.
    fn redis_metrics(&self) -> Option<Metrics> {
        None
    }
    /// The cluster for the page, with keys of users or without; `None` if the process is no
    /// coordinator.
    fn cluster(&self, _with_keys: bool) -> Option<BoxFuture<'static, Value>> {
        None
    }
    /// Whether it has the page.
    fn has_page(&self) -> bool {
        false
    }
    /// Redis ports of servers that are up, for the console.
    fn redis_ports(&self) -> BoxFuture<'static, Vec<String>> {
        Box::pin(std::future::ready(Vec::new()))
    }
}

/// What all pages know.
#[derive(Clone)]
struct Port {
    subject: Arc<dyn Subject>,
    rng: Arc<dyn Rng>,
    /// Whether it is open on the loopback alone.
    is_local: bool,
    console: Option<Arc<Console>>,
    tls: Option<Arc<Tls>>,
}

impl Port {
    /// Whether a request comes from this machine, and from no page of another site (ADM-3).
    fn is_trusted(&self, headers: &HeaderMap) -> bool {
        let host = headers.get(header::HOST);
        let host = host.and_then(|host| host.to_str().ok()).unwrap_or_default();
        self.is_local && is_loopback(host)
    }
}

/// Whether a host with or without a port is the loopback of this machine.
fn is_loopback(host: &str) -> bool {
    let name = match host.rsplit_once(':') {
        Some((name, port)) if port.bytes().all(|b| b.is_ascii_digit()) => name,
        Some(_) | None => host,
    };
    let ip = name.trim_start_matches('[').trim_end_matches(']');
    let is_local = |ip: IpAddr| ip.to_canonical().is_loopback();
    name.eq_ignore_ascii_case("localhost") || ip.parse().is_ok_and(is_local)
}

/// The open port. Closes when dropped.
pub struct Admin {
    /// Where it listens.
    pub address: String,
    task: TaskHandle,
}

/// Binds a port. One that is taken may be that of the former process, which is ending.
async fn bind(env: &Env, address: &str) -> std::io::Result<TcpListener> {
    let until = env.clock.now() + BIND_PATIENCE;
    loop {
        match TcpListener::bind(address).await {
            Err(error) if error.kind() == ErrorKind::AddrInUse && env.clock.now() < until => {
                env.clock.sleep(BIND_AGAIN).await;
            }
            bound => return bound,
        }
    }
}

impl Admin {
    /// Opens the port. With `tls` it speaks HTTPS, and asks its clients for no certificate: probes
    /// of schedulers have none. With `has_console` the page runs commands.
    ///
    /// # Errors
    /// It cannot be opened, or cannot have a console.
    pub async fn start(
        env: &Env,
        address: &str,
        tls: Option<Arc<Tls>>,
        subject: Arc<dyn Subject>,
        has_console: bool,
    ) -> Result<Self, Failure> {
        let fail = |error: std::io::Error| {
            Failure::new(format!(
                "cannot listen on {address} for metrics: {error}; choose another port with --admin"
            ))
        };
        let listener = bind(env, address).await.map_err(fail)?;
        let bound = listener.local_addr().map_err(fail)?;
        let is_local = bound.ip().to_canonical().is_loopback();
        let console = has_console.then(|| Console::new(env, is_local, tls.clone()));
        let console = console.transpose();
        let console = console.map_err(|why| Failure::usage(format!("--admin-console: {why}")))?;
        let port = Port {
            subject,
            rng: Arc::clone(&env.rng),
            is_local,
            console: console.map(Arc::new),
            tls: tls.clone(),
        };
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
            .route("/metrics/redis", get(redis_metrics))
            .route("/api/cluster", get(cluster))
            .route("/api/console", post(run_command))
            .route("/log", get(log).put(change_log))
            .with_state(port);
        let task = env.tasks.spawn(CoreId(0), "admin", async move {
            if let Err(error) = axum::serve(listener, router).await {
                tracing::error!(%error, "the admin port has closed");
            }
        });
        Ok(Self {
            address: bound.to_string(),
            task,
        })
    }
}

impl Drop for Admin {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn index(State(port): State<Port>) -> Response {
    if !port.subject.has_page() {
        return "pluvio: /metrics /metrics/redis /healthz /readyz /log\n".into_response();
    }
    let nonce = format!("{:016x}{:016x}", port.rng.next_u64(), port.rng.next_u64());
    // The browser runs nothing that is not of this page, and asks nobody but this port.
    let policy = format!(
        "default-src 'none'; script-src 'nonce-{nonce}'; style-src 'nonce-{nonce}'; connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    );
    let headers = [
        (header::CONTENT_TYPE, "text/html; charset=utf-8".to_owned()),
        (header::CONTENT_SECURITY_POLICY, policy),
        (header::CACHE_CONTROL, "no-store".to_owned()),
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff".to_owned()),
        (header::REFERRER_POLICY, "no-referrer".to_owned()),
    ];
    let token = port.console.as_ref().map_or("", |console| console.token());
    let page = PAGE.replace("NONCE", &nonce).replace(TOKEN_PLACE, token);
    (headers, page).into_response()
}

/// The process runs and its event loop turns: that is what this answer shows.
async fn healthy() -> &'static str {
    "ok\n"
}

/// A certificate that somebody should see to is no reason to end connections that have begun.
async fn ready(State(port): State<Port>) -> impl IntoResponse {
    let (status, mut text) = match port.subject.readiness() {
        (true, _) => (StatusCode::OK, "ready\n".to_owned()),
        (false, why) => (
            StatusCode::SERVICE_UNAVAILABLE,
            format!("not ready: {why}\n"),
        ),
    };
    let warnings = port.tls.iter().flat_map(|tls| tls.warnings());
    text.extend(warnings.map(|warning| format!("warning: {warning}\n")));
    (status, text)
}

/// The type of pages with numbers.
const OPEN_METRICS: [(header::HeaderName, &str); 1] = [(
    header::CONTENT_TYPE,
    "application/openmetrics-text; version=1.0.0; charset=utf-8",
)];

async fn metrics(State(port): State<Port>) -> impl IntoResponse {
    let numbers = port.subject.metrics().await;
    (OPEN_METRICS, text(numbers))
}

async fn redis_metrics(State(port): State<Port>) -> Response {
    match port.subject.redis_metrics() {
        Some(numbers) => (OPEN_METRICS, redis_text(numbers)).into_response(),
        None => not_here("this process serves no Redis clients"),
    }
}

fn not_here(why: &str) -> Response {
    (StatusCode::NOT_FOUND, format!("{why}\n")).into_response()
}

/// What JSON comes with.
const JSON: [(header::HeaderName, &str); 3] = [
    (header::CONTENT_TYPE, "application/json"),
    (header::CACHE_CONTROL, "no-store"),
    (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
];

async fn cluster(State(port): State<Port>, headers: HeaderMap) -> Response {
    match port.subject.cluster(port.is_trusted(&headers)) {
        Some(told) => (JSON, told.await.to_string()).into_response(),
        None => not_here("this process is no coordinator"),
    }
}

/// Runs a command of the page.
async fn run_command(State(port): State<Port>, headers: HeaderMap, body: Body) -> Response {
    let Some(console) = &port.console else {
        return not_here("there is no console: --admin-console switches it on");
    };
    let is_own_host = !port.is_local || port.is_trusted(&headers);
    let asked = async {
        console.check(&headers, is_own_host)?;
        let too_long = |_| (StatusCode::PAYLOAD_TOO_LARGE, "it is too long".to_owned());
        let body = to_bytes(body, REQUEST_MAX).await.map_err(too_long)?;
        let ports = port.subject.redis_ports().await;
        console.run(&body, &ports).await
    };
    let (status, text) = match asked.await {
        Ok(text) => (StatusCode::OK, text),
        Err(refused) => refused,
    };
    let told = json!({ "failed": status != StatusCode::OK, "text": text });
    (status, JSON, told.to_string()).into_response()
}

/// The filter of traces in use.
async fn log() -> String {
    format!("{}\n", traces::current().unwrap_or_default())
}

/// Uses another filter of traces. A PUT: a page of another site cannot send one.
async fn change_log(State(port): State<Port>, headers: HeaderMap, body: Body) -> Response {
    if !port.is_trusted(&headers) {
        let why =
            "the filter can be changed only where the admin port is open on the loopback alone\n";
        return (StatusCode::FORBIDDEN, why).into_response();
    }
    let refuse = |why: &str| (StatusCode::BAD_REQUEST, format!("{why}\n")).into_response();
    let Ok(body) = to_bytes(body, FILTER_MAX).await else {
        return refuse("the filter is too long");
    };
    let Some(wanted) = core::str::from_utf8(&body).ok().map(str::trim) else {
        return refuse("the filter is no text");
    };
    if wanted.is_empty() {
        return refuse("give a level or a filter, as with --log");
    }
    match traces::change(wanted) {
        Ok(()) => {
            tracing::warn!(filter = wanted, "the filter of traces was changed");
            format!("{wanted}\n").into_response()
        }
        Err(why) => refuse(&why),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // shows: ADM-3
    #[test]
    fn hosts_of_the_loopback_are_trusted_and_no_names() {
        for host in [
            "127.0.0.1:9000",
            "127.0.0.1",
            "localhost:80",
            "LOCALHOST",
            "[::1]:9000",
            "[::1]",
        ] {
            assert!(is_loopback(host), "{host}");
        }
        for host in [
            "",
            "localhost.example:1",
            "10.0.0.1:9000",
            "127.0.0.1.example",
        ] {
            assert!(!is_loopback(host), "{host}");
        }
    }

    #[test]
    fn the_page_has_no_other_origin_and_sets_texts_only() {
        for part in ["innerHTML", "insertAdjacent", "document.write", "eval("] {
            assert!(!PAGE.contains(part), "{part}");
        }
        let links = PAGE.matches("http").count();
        assert_eq!(
            links,
            PAGE.matches("\"http://www.w3.org/2000/svg\"").count() + PAGE.matches("http-").count()
        );
        assert_eq!(PAGE.matches("nonce=\"NONCE\"").count(), 2);
        assert_eq!(PAGE.matches("NONCE").count(), 2);
        assert!(!PAGE.contains(" style=") && !PAGE.contains(" onclick="));
        assert_eq!(PAGE.matches(TOKEN_PLACE).count(), 1);
    }
}
