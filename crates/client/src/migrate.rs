//! Moving tablets.

use crate::client::Client;
use crate::error::ClientError;
use crate::table::Table;
use pluvio_units::{MigrationId, ServerId};
use pluvio_wire::{
    GetMigration, MigrateTablet, MigrateTabletReply, MigrationStatus, TableRef, WhichTablet,
};

impl Client {
    /// Lets a tablet move to another server, and does not wait for it: [`Client::migration`] tells
    /// the end. A tablet that is there already, or on its way there, is no error. The tablet is
    /// served all the while, but for some milliseconds at the end.
    ///
    /// # Errors
    /// See [`Client`]; [`ErrorKind::Refused`](crate::ErrorKind::Refused) when there is no such
    /// server or tablet.
    pub async fn start_migration(
        &self,
        table: &Table,
        tablet: WhichTablet,
        to: ServerId,
    ) -> Result<MigrateTabletReply, ClientError> {
        let request = MigrateTablet {
            table: TableRef::Id(table.id()),
            tablet,
            to,
        };
        let mut attempts = self.attempts();
        self.ask_for_change(&request, &mut attempts).await
    }

    /// How a migration goes. `None`: it has ended and its end is forgotten, because another
    /// coordinator leads or many have ended since. The place of the tablet tells its end.
    ///
    /// # Errors
    /// See [`Client`].
    pub async fn migration(
        &self,
        migration: MigrationId,
    ) -> Result<Option<MigrationStatus>, ClientError> {
        let request = GetMigration { migration };
        let reply = self.ask(&request, &mut self.attempts()).await?;
        Ok(reply.status)
    }
}
