//! The user for whom scripts and transactions run. They check the rights of their commands
//! themselves.

use super::denials::{Context, Denial, Reason};
use super::rights::Denied;
use super::rules::User;
use crate::clients::ClientEntry;
use crate::database::DatabaseId;
use crate::parser::Command;
use crate::shared::Shared;
use crate::table::SPECS;
use std::sync::Arc;

/// A user that may not do everything, and its connection.
pub(crate) struct Caller {
    pub(crate) user: Arc<User>,
    pub(crate) client: Arc<ClientEntry>,
    pub(crate) shared: Arc<Shared>,
}

impl Caller {
    /// Whether a command may be run in a database.
    ///
    /// # Errors
    /// It may not; that was noted.
    pub(crate) fn check(
        &self,
        context: Context,
        spec: u16,
        database: DatabaseId,
        command: &Command,
    ) -> Result<(), Denied> {
        let checked = self.user.check(spec, database, command);
        checked.inspect_err(|denied| {
            let name = SPECS[usize::from(spec)].name.as_bytes();
            let (reason, object) = match denied {
                Denied::Database(0) => (Reason::Database, name),
                Denied::Database(at) => (Reason::Database, command.get(*at)),
                Denied::Command => (Reason::Command, name),
                Denied::Key(at) => (Reason::Key, command.get(*at)),
            };
            self.shared.options.users.denials.push(&Denial {
                reason,
                context,
                object,
                user: Some(&self.user.name),
                client: &self.client,
                now: self.shared.now(),
                wall: self.shared.wall_clock(),
            });
        })
    }
}
