//! What holds for the whole cluster.

use crate::client::Client;
use crate::error::ClientError;
use pluvio_wire::{ChangeSettings, ClusterSettings, FinalizeReply, FinalizeVersion, SettingsWish};

impl Client {
    /// Changes how the cluster keeps its objects: what `change` names. Servers take it for segments
    /// that they open from then on; more replicas are made of the others, too.
    ///
    /// # Errors
    /// See [`Client`]; [`ErrorKind::Refused`](crate::ErrorKind::Refused) when the result makes no
    /// sense. Nothing is changed then.
    pub async fn change_settings(
        &self,
        change: SettingsWish,
    ) -> Result<ClusterSettings, ClientError> {
        let request = ChangeSettings { change };
        self.ask_for_change(&request, &mut self.attempts()).await
    }

    /// Lets the cluster speak the newest version that the leading coordinator knows. There is no
    /// way back.
    ///
    /// # Errors
    /// See [`Client`]; [`ErrorKind::Refused`](crate::ErrorKind::Refused) while a server does not
    /// speak it.
    pub async fn finalize_version(&self) -> Result<FinalizeReply, ClientError> {
        let request = FinalizeVersion {};
        self.ask_for_change(&request, &mut self.attempts()).await
    }
}
