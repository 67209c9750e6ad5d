//! Emptying servers.

use crate::client::Client;
use crate::error::ClientError;
use pluvio_units::ServerId;
use pluvio_wire::{DrainServer, DrainStatus, DrainWish, GetDrain};

impl Client {
    /// Has all tablets of a server moved to others, and does not wait for it:
    /// [`Client::drain_status`] tells how far that is. The server gets no tablets until that is
    /// taken back with [`DrainWish::Cancel`], or its process ends.
    ///
    /// # Errors
    /// See [`Client`]; [`ErrorKind::Refused`](crate::ErrorKind::Refused) when the server is not up,
    /// or no other one can have its tablets.
    pub async fn drain_server(
        &self,
        server: ServerId,
        wish: DrainWish,
    ) -> Result<DrainStatus, ClientError> {
        let request = DrainServer { server, wish };
        let mut attempts = self.attempts();
        self.ask_for_change(&request, &mut attempts).await
    }

    /// How far the drain of a server is.
    ///
    /// # Errors
    /// See [`Client`]; [`ErrorKind::Refused`](crate::ErrorKind::Refused) when the server is not up.
    pub async fn drain_status(&self, server: ServerId) -> Result<DrainStatus, ClientError> {
        self.ask(&GetDrain { server }, &mut self.attempts()).await
    }
}
