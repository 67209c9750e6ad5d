//! One caller of a Redis port: pipelines of SET, GET, PING and WAIT, and what INFO says.

use crate::error::BenchError;
use crate::plan::key;
use crate::resp::{self, Reply, command};
use std::io;

/// A connection to one server, and the commands that it sends next.
pub(crate) struct Connection {
    address: String,
    stream: resp::Connection,
    out: Vec<u8>,
}

impl Connection {
    pub(crate) async fn open(address: &str) -> Result<Self, BenchError> {
        let opened = resp::Connection::open(address).await;
        Ok(Self {
            stream: opened.map_err(|error| broken(address, &error))?,
            address: address.to_owned(),
            out: Vec::new(),
        })
    }

    /// Adds a GET to what [`Connection::flush`] sends.
    pub(crate) fn get(&mut self, number: u64) {
        command(&mut self.out, &[b"GET".as_slice(), &key(number)]);
    }

    /// Adds a SET to what [`Connection::flush`] sends.
    pub(crate) fn set(&mut self, number: u64, value: &[u8]) {
        command(&mut self.out, &[b"SET".as_slice(), &key(number), value]);
    }

    /// Adds a PING to what [`Connection::flush`] sends.
    pub(crate) fn ping(&mut self) {
        command(&mut self.out, &["PING"]);
    }

    /// Adds a WAIT without a limit of time to what [`Connection::flush`] sends.
    pub(crate) fn wait(&mut self, replicas: u32) {
        command(&mut self.out, &["WAIT", &replicas.to_string(), "0"]);
    }

    /// Sends the added commands.
    pub(crate) async fn flush(&mut self) -> Result<(), BenchError> {
        let sent = self.stream.send(&self.out).await;
        self.out.clear();
        sent.map_err(|error| broken(&self.address, &error))
    }

    /// Waits for the next reply, and gives it to `take`.
    pub(crate) async fn reply<T>(
        &mut self,
        take: impl FnOnce(Reply<'_>) -> T,
    ) -> Result<T, BenchError> {
        let taken = self.stream.reply(take).await;
        taken.map_err(|error| broken(&self.address, &error))
    }

    /// The names and versions that the server's INFO tells.
    pub(crate) async fn describe(&mut self) -> Result<String, BenchError> {
        command(&mut self.out, &["INFO", "server"]);
        self.flush().await?;
        self.reply(|reply| match reply {
            Reply::Bulk(text) => versions(&String::from_utf8_lossy(&text)),
            Reply::Simple(_)
            | Reply::Error(_)
            | Reply::Integer(_)
            | Reply::Nil
            | Reply::Array(_) => versions(""),
        })
        .await
    }
}

fn broken(address: &str, error: &io::Error) -> BenchError {
    let (address, message) = (address.to_owned(), error.to_string());
    match error.kind() {
        io::ErrorKind::InvalidData => BenchError::Protocol { address, message },
        _ => BenchError::Connection { address, message },
    }
}

/// The lines that tell name and version.
fn versions(info: &str) -> String {
    let names = [
        "server_name:",
        "redis_version:",
        "pluvio_version:",
        "valkey_version:",
    ];
    let lines = info.lines().map(str::trim);
    let found: Vec<_> = lines
        .filter(|line| names.iter().any(|name| line.starts_with(name)))
        .collect();
    match found.is_empty() {
        true => "unknown".to_owned(),
        false => found.join(" "),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_found_in_info() {
        let info = "# Server\r\nredis_version:7.2.5\r\nserver_name:pluvio\r\n";
        assert_eq!(versions(info), "redis_version:7.2.5 server_name:pluvio");
        assert_eq!(versions(""), "unknown");
    }
}
