//! The console of the page: commands of people, run at a Redis port with the rights of a user.
//!
//! ```text
//!  page ── POST /api/console ──► this port ── TCP or TLS ──► Redis port of a server
//!          user, password, line             AUTH, SELECT, the command
//! ```
//!
//! - CONSOLE-1: it is off unless it was asked for. The port must be open on the loopback alone, or
//!   have TLS: passwords cannot be overheard there.
//! - CONSOLE-2: a request counts only if it comes from the page of this very port. It is a POST of
//!   JSON, names the port as its origin, and has the token that stands in the page. So no page of
//!   another site can send one.
//! - CONSOLE-3: a server decides what the user may do, as on any connection to its Redis port. A
//!   port that other machines reach asks for a name and a password. It does nothing while the user
//!   `default` needs none: servers on this machine would take everybody for a neighbour.
//! - CONSOLE-4: bytes of a request and of a reply, their number and their time are bounded.
//!   Commands that wait, or that belong to a connection that stays, are refused.
//!
//! Each command has a connection of its own. The password is used for it and not kept.

use axum::http::{HeaderMap, StatusCode, header};
use bytes::BytesMut;
use core::fmt::Write as _;
use pluvio_env::{Clock, Env, timeout};
use pluvio_load::resp::{Reply, command, parse};
use pluvio_net::Tls;
use serde::Deserialize;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::Semaphore;

/// Bytes of a request: a command as people type it.
pub const REQUEST_MAX: usize = 64 << 10;
/// Bytes of a reply.
const REPLY_MAX: usize = 256 << 10;
/// Commands under way.
const COMMANDS_MAX: usize = 4;
/// The time of a command, with all that comes before it.
const LIMIT: Duration = Duration::from_secs(3);
/// The time to connect to one server.
const CONNECT_LIMIT: Duration = Duration::from_secs(1);
/// Servers that are tried.
const TRIES_MAX: usize = 3;
/// The header with the token of the page.
const TOKEN: &str = "x-pluvio-token";

/// Commands that wait, stream, or change only the connection.
const REFUSED: &[&str] = &[
    "AUTH",
    "BLMOVE",
    "BLMPOP",
    "BLPOP",
    "BRPOP",
    "BRPOPLPUSH",
    "BZMPOP",
    "BZPOPMAX",
    "BZPOPMIN",
    "DISCARD",
    "EXEC",
    "HELLO",
    "MONITOR",
    "MULTI",
    "PSUBSCRIBE",
    "PSYNC",
    "QUIT",
    "REPLCONF",
    "RESET",
    "SELECT",
    "SHUTDOWN",
    "SSUBSCRIBE",
    "SUBSCRIBE",
    "SYNC",
    "UNWATCH",
    "WAIT",
    "WAITAOF",
    "WATCH",
    "XREAD",
    "XREADGROUP",
];

/// What the page sends.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Asked {
    user: String,
    password: String,
    database: u8,
    line: String,
}

/// The console of a port.
pub struct Console {
    token: String,
    /// Whether the port is open on the loopback alone.
    is_local: bool,
    tls: Option<Arc<Tls>>,
    clock: Arc<dyn Clock>,
    places: Semaphore,
}

/// Why nothing came of a request, for its sender.
type Refused = (StatusCode, String);

fn refused(status: StatusCode, why: &str) -> Refused {
    (status, why.to_owned())
}

impl Console {
    /// The console of a port, which has this TLS if any (CONSOLE-1).
    ///
    /// # Errors
    /// The port is open to others and has no TLS.
    pub fn new(env: &Env, is_local: bool, tls: Option<Arc<Tls>>) -> Result<Self, String> {
        if !is_local && tls.is_none() {
            return Err(
                "passwords could be overheard: open --admin on the loopback (127.0.0.1), or give TLS (--tls-cert)"
                    .to_owned(),
            );
        }
        let mut token = [0; 16];
        env.rng.fill_secret(&mut token);
        Ok(Self {
            token: token.iter().fold(String::new(), |mut text, byte| {
                let _memory_takes_it = write!(text, "{byte:02x}");
                text
            }),
            is_local,
            tls,
            clock: Arc::clone(&env.clock),
            places: Semaphore::new(COMMANDS_MAX),
        })
    }

    /// The secret that stands in the page and in no other.
    pub fn token(&self) -> &str {
        &self.token
    }

    /// Whether a request comes from the page of this port (CONSOLE-2). `is_own_host`: its host is
    /// one that this port can have.
    ///
    /// # Errors
    /// It does not.
    pub fn check(&self, headers: &HeaderMap, is_own_host: bool) -> Result<(), Refused> {
        let text = |name: &str| headers.get(name).and_then(|value| value.to_str().ok());
        let no = |why| Err(refused(StatusCode::FORBIDDEN, why));
        let host = text(header::HOST.as_str()).unwrap_or_default();
        let scheme = if self.tls.is_some() { "https" } else { "http" };
        if !is_own_host || text("origin") != Some(&*format!("{scheme}://{host}")) {
            return no("this is not the page of this port");
        }
        if text("sec-fetch-site").is_some_and(|site| site != "same-origin") {
            return no("this is the page of another site");
        }
        let given = text(TOKEN).unwrap_or_default().as_bytes();
        let differences = given.iter().zip(self.token.as_bytes());
        let differences = differences.fold(0, |all, (given, own)| all | (given ^ own));
        if given.len() != self.token.len() || differences != 0 {
            return no("the page is older than this process: load it again");
        }
        match text(header::CONTENT_TYPE.as_str()) {
            Some("application/json") => Ok(()),
            Some(_) | None => Err(refused(
                StatusCode::UNSUPPORTED_MEDIA_TYPE,
                "give application/json",
            )),
        }
    }

    /// Runs the command of a request at one of these Redis ports; the reply as text.
    ///
    /// # Errors
    /// It was not run, or it is not known whether it was; for people.
    pub async fn run(&self, body: &[u8], ports: &[String]) -> Result<String, Refused> {
        let bad = |why: &str| refused(StatusCode::BAD_REQUEST, why);
        let asked: Asked = serde_json::from_slice(body).map_err(|_| bad("no such request"))?;
        let words = split(&asked.line).ok_or_else(|| bad("a quote is not closed"))?;
        let Some(first) = words.first() else {
            return Err(bad("give a command"));
        };
        let name = String::from_utf8_lossy(first).to_ascii_uppercase();
        let is_refused = REFUSED.contains(&&*name);
        let replies = words.get(1).map(|word| word.eq_ignore_ascii_case(b"REPLY"));
        if is_refused || (name == "CLIENT" && replies == Some(true)) {
            return Err(bad(&format!(
                "{name} does nothing useful here: each command has a connection of its own, and must not wait"
            )));
        }
        if !self.is_local && (asked.user.is_empty() || asked.password.is_empty()) {
            let why = "other machines reach this port: give a user and a password";
            return Err(refused(StatusCode::UNAUTHORIZED, why));
        }
        let Ok(_place) = self.places.try_acquire() else {
            let why = "too many commands at a time; try again";
            return Err(refused(StatusCode::SERVICE_UNAVAILABLE, why));
        };
        let exchange = self.exchange(&asked, &name, &words, ports);
        match timeout(&*self.clock, LIMIT, exchange).await {
            Ok(result) => result.map_err(|why| (StatusCode::BAD_GATEWAY, why)),
            Err(_) => Err((
                StatusCode::GATEWAY_TIMEOUT,
                format!("no reply within {LIMIT:?}; it is not known whether it was executed"),
            )),
        }
    }

    async fn exchange(
        &self,
        asked: &Asked,
        name: &str,
        words: &[Vec<u8>],
        ports: &[String],
    ) -> Result<String, String> {
        let mut line = self.connect(ports).await?;
        if !self.is_local {
            // CONSOLE-3
            let open = line.ask(&[b"PING"]).await?;
            if !open
                .error()
                .is_some_and(|error| error.starts_with("NOAUTH"))
            {
                return Err("the user default needs no password: give it one first".to_owned());
            }
        }
        if !(asked.user.is_empty() && asked.password.is_empty()) {
            let user = match &*asked.user {
                "" => "default",
                user => user,
            };
            let answer = line.ask(&["AUTH", user, &asked.password]).await?;
            if let Some(error) = answer.error() {
                return Ok(format!("(error) {error}"));
            }
            tracing::info!(target: "audit", user, command = name, "a command from the page");
        } else {
            tracing::info!(target: "audit", command = name, "a command from the page");
        }
        if asked.database != 0 {
            let answer = line.ask(&["SELECT", &asked.database.to_string()]).await?;
            if let Some(error) = answer.error() {
                return Ok(format!("(error) {error}"));
            }
        }
        let answer = line.ask(words).await?;
        let mut text = String::new();
        show(&answer, 0, &mut text);
        Ok(text)
    }

    /// A connection to the first of some ports that takes one.
    async fn connect(&self, ports: &[String]) -> Result<Line, String> {
        let mut problem = "no server with a Redis port is up".to_owned();
        for port in ports.iter().take(TRIES_MAX) {
            match timeout(&*self.clock, CONNECT_LIMIT, self.connect_to(port)).await {
                Ok(Ok(stream)) => {
                    return Ok(Line {
                        stream,
                        input: BytesMut::new(),
                    });
                }
                Ok(Err(why)) => problem = format!("{port}: {why}"),
                Err(_) => problem = format!("{port}: no connection within {CONNECT_LIMIT:?}"),
            }
        }
        Err(problem)
    }

    async fn connect_to(&self, port: &str) -> Result<Box<dyn Stream>, String> {
        let stream = TcpStream::connect(port).await;
        let stream = stream.map_err(|error| error.to_string())?;
        match &self.tls {
            None => Ok(Box::new(stream)),
            Some(tls) => {
                let limit = (&*self.clock, CONNECT_LIMIT);
                Ok(Box::new(tls.connect(stream, port, limit).await?))
            }
        }
    }
}

trait Stream: AsyncRead + AsyncWrite + Unpin + Send {}

impl<T: AsyncRead + AsyncWrite + Unpin + Send> Stream for T {}

/// A connection to a Redis port.
struct Line {
    stream: Box<dyn Stream>,
    input: BytesMut,
}

impl Line {
    async fn ask<A: AsRef<[u8]>>(&mut self, words: &[A]) -> Result<Reply<'static>, String> {
        let mut bytes = Vec::new();
        command(&mut bytes, words);
        let broken = |error: std::io::Error| format!("the connection broke: {error}");
        self.stream.write_all(&bytes).await.map_err(broken)?;
        loop {
            let parsed = parse(&self.input).map_err(broken)?;
            let length = parsed
                .as_ref()
                .map_or(self.input.len(), |(_, length)| *length);
            if length > REPLY_MAX {
                let most = REPLY_MAX >> 10;
                return Err(format!("the reply is longer than {most} KiB"));
            }
            if let Some((reply, length)) = parsed {
                let reply = reply.into_owned();
                let _done = self.input.split_to(length);
                return Ok(reply);
            }
            if self
                .stream
                .read_buf(&mut self.input)
                .await
                .map_err(broken)?
                == 0
            {
                return Err("the server closed the connection".to_owned());
            }
        }
    }
}

/// Words of a line, with the quotes of `redis-cli`: `"a\n\x00"`, `'a b'`. `None`: a quote is not
/// closed, or something stands right behind one.
fn split(line: &str) -> Option<Vec<Vec<u8>>> {
    let mut words = Vec::new();
    let mut rest = line.as_bytes();
    loop {
        rest = rest.trim_ascii_start();
        if rest.is_empty() {
            return Some(words);
        }
        let mut word = Vec::new();
        loop {
            match rest {
                [] => break,
                [b'"', ..] => {
                    rest = quoted(&rest[1..], &mut word)?;
                    break;
                }
                [b'\'', behind @ ..] => {
                    rest = plainly_quoted(behind, &mut word)?;
                    break;
                }
                [byte, ..] if byte.is_ascii_whitespace() => break,
                [byte, behind @ ..] => {
                    word.push(*byte);
                    rest = behind;
                }
            }
        }
        words.push(word);
    }
}

/// The rest behind a word in quotes, if a word may end there.
fn behind_quote(rest: &[u8]) -> Option<&[u8]> {
    let is_end = rest.first().is_none_or(u8::is_ascii_whitespace);
    is_end.then_some(rest)
}

fn quoted<'a>(mut rest: &'a [u8], word: &mut Vec<u8>) -> Option<&'a [u8]> {
    loop {
        (rest, _) = match rest {
            [b'"', behind @ ..] => return behind_quote(behind),
            [b'\\', b'x', high, low, behind @ ..]
                if high.is_ascii_hexdigit() && low.is_ascii_hexdigit() =>
            {
                let digit = |byte: u8| char::from(byte).to_digit(16).unwrap_or(0) as u8;
                (behind, word.push(digit(*high) << 4 | digit(*low)))
            }
            [b'\\', byte, behind @ ..] => {
                let byte = match byte {
                    b'n' => b'\n',
                    b'r' => b'\r',
                    b't' => b'\t',
                    b'b' => 8,
                    b'a' => 7,
                    other => *other,
                };
                (behind, word.push(byte))
            }
            [byte, behind @ ..] => (behind, word.push(*byte)),
            [] => return None,
        };
    }
}

fn plainly_quoted<'a>(mut rest: &'a [u8], word: &mut Vec<u8>) -> Option<&'a [u8]> {
    loop {
        (rest, _) = match rest {
            [b'\'', behind @ ..] => return behind_quote(behind),
            [b'\\', b'\'', behind @ ..] => (behind, word.push(b'\'')),
            [byte, behind @ ..] => (behind, word.push(*byte)),
            [] => return None,
        };
    }
}

/// A reply as `redis-cli` shows it.
fn show(reply: &Reply<'_>, depth: usize, into: &mut String) {
    match reply {
        Reply::Simple(text) => into.push_str(text),
        Reply::Error(text) => {
            into.push_str("(error) ");
            into.push_str(text);
        }
        Reply::Integer(number) => into.push_str(&format!("(integer) {number}")),
        Reply::Nil => into.push_str("(nil)"),
        Reply::Bulk(value) => {
            into.push('"');
            for chunk in value.utf8_chunks() {
                for shown in chunk.valid().chars() {
                    match shown {
                        '"' | '\\' => into.extend(['\\', shown]),
                        '\n' => into.push_str("\\n"),
                        '\r' => into.push_str("\\r"),
                        '\t' => into.push_str("\\t"),
                        other if other.is_control() => into.extend(other.escape_unicode()),
                        other => into.push(other),
                    }
                }
                for byte in chunk.invalid() {
                    into.push_str(&format!("\\x{byte:02x}"));
                }
            }
            into.push('"');
        }
        Reply::Array(items) if items.is_empty() => into.push_str("(empty array)"),
        Reply::Array(items) => {
            let width = items.len().to_string().len();
            for (at, item) in items.iter().enumerate() {
                if at > 0 {
                    into.push('\n');
                    into.push_str(&" ".repeat(depth));
                }
                into.push_str(&format!("{:>width$}) ", at + 1));
                show(item, depth + width + 2, into);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use axum::http::{HeaderName, HeaderValue};
    use pluvio_env_os::{NoDisk, OsOptions, OsRuntime, current_core};
    use pluvio_net::{NetOptions, OsNetwork};

    fn words(line: &str) -> Option<Vec<String>> {
        let words = split(line)?.into_iter();
        Some(words.map(|word| String::from_utf8(word).unwrap()).collect())
    }

    #[test]
    fn lines_are_split_as_redis_cli_does() {
        let of = |line: &str| words(line).unwrap();
        assert_eq!(of("  "), [""; 0]);
        assert_eq!(of(" SET  k v "), ["SET", "k", "v"]);
        assert_eq!(of(r#"SET "a b" 'c "d" \'e'"#), ["SET", "a b", "c \"d\" 'e"]);
        assert_eq!(of(r#"SET "\x41\n\"\\" """#), ["SET", "A\n\"\\", ""]);
        assert_eq!(split(r#""\xff""#), Some(vec![vec![0xff]]));
        for open in ["\"a", "'a", "\"a\"b", "'a'b", r#""a\"#] {
            assert_eq!(split(open), None, "{open}");
        }
    }

    #[test]
    fn replies_are_shown_as_redis_cli_does() {
        let inner = Reply::Array(vec![Reply::bulk("a\u{1}\"é"), Reply::bulk(b"\xff\n")]);
        let reply = Reply::Array(vec![inner, Reply::Nil, Reply::Integer(-3)]);
        let mut text = String::new();
        show(&reply, 0, &mut text);
        let wanted = "1) 1) \"a\\u{1}\\\"é\"\n   2) \"\\xff\\n\"\n2) (nil)\n3) (integer) -3";
        assert_eq!(text, wanted);
    }

    fn env() -> (OsRuntime, Env) {
        let runtime = OsRuntime::start(&OsOptions::with_cores(1)).unwrap();
        let network = OsNetwork::new(
            NetOptions::default(),
            runtime.tasks(),
            runtime.clock(),
            current_core,
        );
        let env = runtime.env(Arc::new(network), Arc::new(NoDisk));
        (runtime, env)
    }

    // shows: CONSOLE-1, CONSOLE-2
    #[test]
    fn only_the_page_of_this_port_is_heard() {
        let (_runtime, env) = env();
        assert!(Console::new(&env, false, None).is_err());
        let console = Console::new(&env, true, None).unwrap();
        let good = [
            ("host", "127.0.0.1:9000"),
            ("origin", "http://127.0.0.1:9000"),
            (TOKEN, console.token()),
            ("content-type", "application/json"),
        ];
        let check = |changes: &[(&'static str, &str)]| {
            let mut headers = HeaderMap::new();
            for (name, value) in good.iter().chain(changes) {
                let name = HeaderName::from_static(name);
                headers.insert(name, HeaderValue::from_str(value).unwrap());
            }
            console
                .check(&headers, true)
                .map_err(|(status, _)| status.as_u16())
        };
        assert_eq!(check(&[]), Ok(()));
        assert_eq!(check(&[("sec-fetch-site", "same-origin")]), Ok(()));
        for (name, value, status) in [
            ("origin", "http://evil.example", 403),
            ("origin", "https://127.0.0.1:9000", 403),
            ("origin", "null", 403),
            ("host", "evil.example", 403),
            ("sec-fetch-site", "cross-site", 403),
            ("sec-fetch-site", "same-site", 403),
            (TOKEN, "", 403),
            (TOKEN, "00000000000000000000000000000000", 403),
            ("content-type", "text/plain", 415),
        ] {
            assert_eq!(check(&[(name, value)]), Err(status), "{name}: {value}");
        }
        assert!(console.check(&HeaderMap::new(), true).is_err());
    }
}
