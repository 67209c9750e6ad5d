//! The real redis-server as a child process.

use crate::bench::{encode, split};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};

/// A redis-server that keeps nothing.
pub struct RealServer {
    child: Child,
    port: u16,
}

impl RealServer {
    /// Starts one on a free port.
    pub fn start() -> Self {
        let port = TcpListener::bind("127.0.0.1:0")
            .unwrap()
            .local_addr()
            .unwrap()
            .port();
        let mut command = Command::new("redis-server");
        let port_text = port.to_string();
        command.args(["--port", &port_text, "--save", "", "--appendonly", "no"]);
        command.args(["--bind", "127.0.0.1", "--logfile", ""]);
        let mut child = command
            .stdout(Stdio::piped())
            .spawn()
            .unwrap_or_else(|error| panic!("redis-server: {error}; run `cargo xtask setup`"));
        let mut lines = BufReader::new(child.stdout.take().unwrap());
        let server = Self { child, port };
        let mut line = String::new();
        while lines.read_line(&mut line).unwrap() > 0 {
            if line.contains("Ready to accept connections") {
                return server;
            }
            line.clear();
        }
        panic!("redis-server ended before it was ready");
    }

    pub fn connect(&self) -> RealConnection {
        let stream = TcpStream::connect(("127.0.0.1", self.port)).unwrap();
        stream.set_nodelay(true).unwrap();
        RealConnection(stream)
    }
}

impl Drop for RealServer {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

pub struct RealConnection(TcpStream);

impl RealConnection {
    /// Sends a command and takes its reply.
    pub fn call<T: AsRef<[u8]>>(&mut self, parts: &[T]) -> Vec<u8> {
        let parts: Vec<_> = parts.iter().map(AsRef::as_ref).collect();
        self.pipeline(&[parts]).concat()
    }

    /// Sends commands together and takes their replies.
    pub fn pipeline<T: AsRef<[u8]>>(&mut self, commands: &[Vec<T>]) -> Vec<Vec<u8>> {
        let bytes: Vec<u8> = commands.iter().flat_map(|parts| encode(parts)).collect();
        self.0.write_all(&bytes).unwrap();
        let mut bytes = Vec::new();
        let mut buffer = vec![0; 64 << 10];
        while split(&bytes).len() < commands.len() {
            let count = self.0.read(&mut buffer).unwrap();
            assert!(count > 0, "redis-server closed the connection");
            bytes.extend_from_slice(&buffer[..count]);
        }
        split(&bytes).into_iter().map(<[u8]>::to_vec).collect()
    }

    /// Sends bytes and no more; all that comes back until the server closes.
    pub fn exchange(mut self, bytes: &[u8]) -> Vec<u8> {
        // The server may close before it has read everything.
        let _ = self.0.write_all(bytes);
        let _ = self.0.shutdown(std::net::Shutdown::Write);
        let mut answer = Vec::new();
        let _ = self.0.read_to_end(&mut answer);
        answer
    }
}
