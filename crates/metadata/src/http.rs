//! Requests over HTTP to one of several servers that are as good as each other.
//!
//! Connections are kept for the next request. After a failure, the next server of the list takes
//! over: if a server cannot be reached, is too slow, or reports a fault of its own.

use bytes::Bytes;
use core::time::Duration;
use http_body_util::{BodyExt, Full};
use hyper::client::conn::http1::{SendRequest, handshake};
use hyper::header::{AUTHORIZATION, CONTENT_TYPE, HOST};
use hyper::{Method, Request, StatusCode};
use hyper_util::rt::TokioIo;
use pluvio_env::{Env, timeout};
use pluvio_units::CoreId;
use std::sync::{Mutex, MutexGuard, PoisonError};
use tokio::net::TcpStream;

/// Limit for making a connection.
const CONNECT_LIMIT: Duration = Duration::from_secs(1);
/// Limit for an answer. A quorum that elects a leader takes a second or so.
const ANSWER_LIMIT: Duration = Duration::from_secs(3);
/// Idle connections that are kept. A coordinator has three requests under way at most.
const IDLE_MAX: usize = 4;
/// Where a learner's words begin in its answer, in bytes; answers with values are long.
const LEARNER_WITHIN: usize = 256;

type Connection = SendRequest<Full<Bytes>>;

/// The servers and the connections to them.
pub(crate) struct Http {
    env: Env,
    servers: Vec<String>,
    place: Mutex<Connections>,
}

#[derive(Default)]
struct Connections {
    /// The server that is asked now.
    current: usize,
    /// Connections to that one.
    idle: Vec<Connection>,
}

/// An answer: its status and body.
pub(crate) type Answer = (StatusCode, Bytes);

impl Http {
    pub(crate) fn new(env: Env, servers: Vec<String>) -> Self {
        Self {
            env,
            servers,
            place: Mutex::default(),
        }
    }

    fn place(&self) -> MutexGuard<'_, Connections> {
        // Held for single steps.
        self.place.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Posts JSON to a path of one server, as the user that has `token`. After a failure to connect
    /// it tries each of the others. An answer with an error of the server's is given as it is, and
    /// the next request goes to another server.
    ///
    /// # Errors
    /// The failure, for people. The request may have been executed.
    pub(crate) async fn post(
        &self,
        path: &str,
        token: Option<&str>,
        body: &Bytes,
    ) -> Result<Answer, String> {
        let mut problem = String::new();
        for _ in 0..self.servers.len() {
            let (server, idle) = {
                let mut place = self.place();
                (place.current, place.idle.pop())
            };
            // A kept connection may have been closed meanwhile.
            let kept = idle.filter(|connection| !connection.is_closed());
            let connection = match kept {
                Some(connection) => connection,
                None => match self.connect(server).await {
                    Ok(connection) => connection,
                    Err(error) => {
                        problem = error;
                        self.leave(server);
                        continue;
                    }
                },
            };
            return self.send(server, connection, path, token, body).await;
        }
        Err(problem)
    }

    async fn send(
        &self,
        server: usize,
        mut connection: Connection,
        path: &str,
        token: Option<&str>,
        body: &Bytes,
    ) -> Result<Answer, String> {
        let name = &self.servers[server];
        let mut request = Request::builder()
            .method(Method::POST)
            .uri(path)
            .header(HOST, name)
            .header(CONTENT_TYPE, "application/json");
        if let Some(token) = token {
            request = request.header(AUTHORIZATION, token);
        }
        let request = request
            .body(Full::new(body.clone()))
            .map_err(|error| error.to_string())?;
        let asked = async {
            let answer = connection.send_request(request).await?;
            let status = answer.status();
            let body = answer.into_body().collect().await?.to_bytes();
            Ok::<_, hyper::Error>((status, body, connection))
        };
        let failed = match timeout(&*self.env.clock, ANSWER_LIMIT, asked).await {
            Ok(Ok((status, body, _))) if status.is_server_error() || is_of_learner(&body) => {
                // A server that can never answer must not be asked for ever: a learner, or a proxy
                // without a server behind it. A server that says so in passing costs only a
                // connection.
                self.leave(server);
                return Ok((status, body));
            }
            Ok(Ok((status, body, connection))) => {
                let mut place = self.place();
                if place.current == server && place.idle.len() < IDLE_MAX {
                    place.idle.push(connection);
                }
                return Ok((status, body));
            }
            Ok(Err(error)) => format!("{name}: {error}"),
            Err(_) => format!("{name} does not answer within {ANSWER_LIMIT:?}"),
        };
        self.leave(server);
        Err(failed)
    }

    async fn connect(&self, server: usize) -> Result<Connection, String> {
        let name = &self.servers[server];
        let connecting = async {
            let stream = TcpStream::connect(name).await?;
            stream.set_nodelay(true)?;
            Ok::<_, std::io::Error>(stream)
        };
        let stream = timeout(&*self.env.clock, CONNECT_LIMIT, connecting)
            .await
            .map_err(|_| format!("cannot connect to {name} within {CONNECT_LIMIT:?}"))?
            .map_err(|error| format!("cannot connect to {name}: {error}"))?;
        let (sender, connection) = handshake(TokioIo::new(stream))
            .await
            .map_err(|error| format!("{name}: {error}"))?;
        self.env
            .tasks
            .spawn(CoreId(0), "metadata store", async move {
                // The waiting caller hears of errors.
                let _ = connection.await;
            });
        Ok(sender)
    }

    /// Goes on to the next server, unless that was done already.
    fn leave(&self, server: usize) {
        let mut place = self.place();
        if place.current == server {
            place.current = (server + 1) % self.servers.len();
            place.idle.clear();
        }
    }
}

/// Whether an etcd server that does not vote yet gave this answer. Some versions give it a status
/// of their own fault, others one of ours.
fn is_of_learner(body: &[u8]) -> bool {
    let words = b"not supported for learner";
    body.windows(words.len())
        .take(LEARNER_WITHIN)
        .any(|at| at == words)
}
