//! A connection to a Redis port that sends several commands at once.

use pluvio_console::failure::Failure;
use pluvio_load::resp::{self, Reply, command};
use std::io;

/// A connection, and the commands that it sends next.
pub struct Pipeline {
    address: String,
    connection: resp::Connection,
    out: Vec<u8>,
    commands: usize,
}

impl Pipeline {
    /// Connects.
    ///
    /// # Errors
    /// Nobody answers there.
    pub async fn open(address: &str) -> Result<Self, Failure> {
        let connection = resp::Connection::open(address).await;
        Ok(Self {
            connection: connection.map_err(|error| broken(address, &error))?,
            address: address.to_owned(),
            out: Vec::new(),
            commands: 0,
        })
    }

    /// Adds a command to those that are sent next.
    pub fn add(&mut self, arguments: &[&[u8]]) {
        command(&mut self.out, arguments);
        self.commands += 1;
    }

    /// Sends what was added, and gives each reply to `each`, with its number from 0. After a
    /// failure the connection is of no more use.
    ///
    /// # Errors
    /// The connection broke, or what `each` gives.
    pub async fn run(
        &mut self,
        mut each: impl FnMut(usize, Reply<'_>) -> Result<(), Failure> + Send,
    ) -> Result<(), Failure> {
        let sent = self.connection.send(&self.out).await;
        self.out.clear();
        sent.map_err(|error| broken(&self.address, &error))?;
        for number in 0..std::mem::take(&mut self.commands) {
            let taken = self.connection.reply(|reply| each(number, reply)).await;
            taken.map_err(|error| broken(&self.address, &error))??;
        }
        Ok(())
    }

    /// One command, and its reply.
    ///
    /// # Errors
    /// The connection broke, or the reply is an error.
    pub async fn call(&mut self, arguments: &[&[u8]]) -> Result<Reply<'static>, Failure> {
        let mut only = Reply::Nil;
        self.add(arguments);
        let take = |_, reply: Reply<'_>| {
            only = answered(reply)?.into_owned();
            Ok(())
        };
        self.run(take).await?;
        Ok(only)
    }
}

/// A reply that is no error, nor a list that holds one (SYS-1).
///
/// # Errors
/// It is.
pub fn answered(reply: Reply<'_>) -> Result<Reply<'_>, Failure> {
    match first_error(&reply) {
        Some(text) => Err(Failure::new(format!("a command was refused: {text}"))),
        None => Ok(reply),
    }
}

fn first_error<'r>(reply: &'r Reply<'_>) -> Option<&'r str> {
    match reply {
        Reply::Error(text) => Some(text),
        Reply::Array(items) => items.iter().find_map(first_error),
        Reply::Simple(_) | Reply::Integer(_) | Reply::Bulk(_) | Reply::Nil => None,
    }
}

fn broken(address: &str, error: &io::Error) -> Failure {
    Failure::new(format!("{address}: {error}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    // shows: SYS-1
    #[test]
    fn an_error_inside_a_list_counts() {
        let error = || Reply::Error("ERR no".into());
        let fine = Reply::Array(vec![Reply::Integer(1), Reply::Nil]);
        assert!(answered(fine).is_ok());
        for wrong in [error(), Reply::Array(vec![Reply::Nil, error()])] {
            let failure = answered(wrong).unwrap_err().to_string();
            assert!(failure.ends_with("ERR no"), "{failure}");
        }
    }
}
