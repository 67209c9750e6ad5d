//! One or several Redis servers on unix sockets, as one caller sees them: a key is at one of them.

use crate::error::{JumpError, Result};
use pluvio_units::KeyHash;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;

/// Writes that are sent before their answers are read, when the servers are filled.
const AHEAD: usize = 256;

/// Connections to all servers.
pub(super) struct Servers(Vec<BufReader<UnixStream>>);

fn failed(error: std::io::Error) -> JumpError {
    JumpError::of("redis-server", error)
}

impl Servers {
    pub(super) fn connect(sockets: &[PathBuf]) -> Result<Self> {
        let connect = |path| {
            UnixStream::connect(path)
                .map(BufReader::new)
                .map_err(failed)
        };
        match sockets {
            [] => Err(JumpError::Parameters("no server".to_owned())),
            sockets => Ok(Self(sockets.iter().map(connect).collect::<Result<_>>()?)),
        }
    }

    fn of(&mut self, key: &str) -> &mut BufReader<UnixStream> {
        let number = KeyHash::of(0, key.as_bytes()).0 as usize % self.0.len();
        &mut self.0[number]
    }

    pub(super) fn get(&mut self, key: &str, into: &mut Vec<u8>) -> Result<bool> {
        let server = self.of(key);
        let request = format!("*2\r\n$3\r\nGET\r\n${}\r\n{key}\r\n", key.len());
        server
            .get_mut()
            .write_all(request.as_bytes())
            .map_err(failed)?;
        let head = line(server)?;
        let length = head
            .strip_prefix('$')
            .and_then(|length| length.parse::<i64>().ok());
        match length.map(usize::try_from) {
            None => Err(JumpError::of("redis-server", head)),
            Some(Err(_)) => Ok(false),
            Some(Ok(length)) => {
                into.resize(length + 2, 0);
                server.read_exact(into).map_err(failed)?;
                into.truncate(length);
                Ok(true)
            }
        }
    }

    pub(super) fn set(&mut self, key: &str, value: &str) -> Result<()> {
        let server = self.of(key);
        let request = set_request(key, value);
        server
            .get_mut()
            .write_all(request.as_bytes())
            .map_err(failed)?;
        ok(server)
    }

    /// Writes many, some ahead of their answers.
    pub(super) fn fill<'a>(
        &mut self,
        pairs: impl Iterator<Item = (&'a str, &'a str)>,
    ) -> Result<()> {
        let all = self.0.len();
        let (mut waiting, mut requests) = (vec![0; all], vec![String::new(); all]);
        for (key, value) in pairs {
            let number = KeyHash::of(0, key.as_bytes()).0 as usize % all;
            requests[number] += &set_request(key, value);
            waiting[number] += 1;
            if waiting[number] == AHEAD {
                self.exchange(number, &mut requests[number], &mut waiting[number])?;
            }
        }
        for number in 0..all {
            self.exchange(number, &mut requests[number], &mut waiting[number])?;
        }
        Ok(())
    }

    fn exchange(
        &mut self,
        number: usize,
        requests: &mut String,
        waiting: &mut usize,
    ) -> Result<()> {
        let server = &mut self.0[number];
        let sent = std::mem::take(requests);
        server
            .get_mut()
            .write_all(sent.as_bytes())
            .map_err(failed)?;
        for _ in 0..std::mem::take(waiting) {
            ok(server)?;
        }
        Ok(())
    }
}

fn set_request(key: &str, value: &str) -> String {
    let (long, wide) = (key.len(), value.len());
    format!("*3\r\n$3\r\nSET\r\n${long}\r\n{key}\r\n${wide}\r\n{value}\r\n")
}

fn line(server: &mut BufReader<UnixStream>) -> Result<String> {
    let mut line = String::new();
    match server.read_line(&mut line).map_err(failed)? {
        0 => Err(JumpError::of("redis-server", "it closed the connection")),
        _ => Ok(line.trim_end().to_owned()),
    }
}

fn ok(server: &mut BufReader<UnixStream>) -> Result<()> {
    match line(server)? {
        line if line == "+OK" => Ok(()),
        other => Err(JumpError::of("redis-server", other)),
    }
}
