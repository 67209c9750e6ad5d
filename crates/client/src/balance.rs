//! Balancing of a cluster.

use crate::client::Client;
use crate::error::ClientError;
use pluvio_wire::{Balance, BalanceStatus, BalanceWish};

impl Client {
    /// Switches balancing on or off, or asks what it does and would do. Asking changes nothing.
    ///
    /// # Errors
    /// See [`Client`].
    pub async fn balance(&self, wish: BalanceWish) -> Result<BalanceStatus, ClientError> {
        let request = Balance { wish };
        let mut attempts = self.attempts();
        match wish {
            BalanceWish::On | BalanceWish::Off => {
                self.ask_for_change(&request, &mut attempts).await
            }
            BalanceWish::Look | BalanceWish::Plan => self.ask(&request, &mut attempts).await,
        }
    }
}
