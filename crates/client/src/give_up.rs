//! Going on without what is lost for good.

use crate::client::Client;
use crate::error::ClientError;
use pluvio_units::ServerId;
use pluvio_wire::{GiveUpLost, GiveUpReply};

impl Client {
    /// Asks what is lost of a crashed server's log. With the [`token`](pluvio_wire::Loss::token) of
    /// such an answer in `confirmed`, it lets the recovery go on without that, for good. `by` names
    /// the one that asks, in the record that is kept.
    ///
    /// # Errors
    /// See [`Client`]; [`ErrorKind::Refused`](crate::ErrorKind::Refused) when the server does not
    /// wait for recovery, nothing is missing, or something else than was confirmed.
    pub async fn give_up_lost(
        &self,
        server: ServerId,
        by: &str,
        confirmed: Option<u64>,
    ) -> Result<GiveUpReply, ClientError> {
        let request = GiveUpLost {
            server,
            by: by.to_owned(),
            confirmed,
        };
        self.ask(&request, &mut self.attempts()).await
    }
}
