//! Whether a connection may run what comes next: its login, and the rights of its user.

use super::{Connection, Resolved, Step};
use crate::block::Login;
use crate::commands::{Commands, Data, Own, Ran, takes_time};
use crate::database::DatabaseId;
use crate::failure::{NO_AUTH, no_longer_permitted, not_permitted};
use crate::parser::Command;
use crate::reply::Failure;
use crate::table::SPECS;
use crate::users::denials::Context;
use core::task;

impl<M, F> Connection<'_, M, F>
where
    M: Fn(bool, DatabaseId, Commands) -> F,
    F: Future<Output = Ran>,
{
    /// Takes over a login, the end of the connection, or a database, from a run that has ended.
    pub(super) fn take_news(&mut self) {
        let (database, login, ends) = self.block.take_news();
        if let Some(database) = database {
            self.session.set_database(database);
        }
        if let Some(Login { user, protocol }) = login {
            self.session.log_in(user);
            self.tell_caller();
            if let Some(protocol) = protocol {
                self.session.set_protocol(protocol);
            }
        }
        if ends {
            self.session.close();
        }
    }

    /// Takes over what has changed about the user. False: it was deleted.
    pub(super) fn follow_user(&mut self) -> bool {
        if self.session.follow(&self.core.options().users) {
            self.tell_caller();
        }
        !self.session.is_user_gone()
    }

    /// Tells runs on whose behalf they are.
    pub(super) fn tell_caller(&self) {
        let caller = self.session.caller(&self.core.shared);
        self.block.set_caller(caller);
    }

    /// Whether everything may be run.
    pub(super) fn is_free(&self) -> bool {
        self.session.is_in() && self.session.user().may_all()
    }

    /// Whether a command may be run, or put into a transaction.
    ///
    /// # Errors
    /// It may not; that was noted.
    pub(super) fn permit(&self, resolved: &Resolved) -> Result<(), Failure> {
        let row = &SPECS[usize::from(resolved.spec)];
        if !self.session.is_in() {
            return match row.has_flag("no_auth") {
                true => Ok(()),
                false => Err(NO_AUTH),
            };
        }
        let context = match self.block.is_open() {
            true if row.has_flag("no_multi") => return Ok(()),
            true => Context::Transaction,
            false => Context::Alone,
        };
        let Some(caller) = self.block.caller() else {
            return Ok(());
        };
        self.session.entry().set_command(resolved.spec);
        let checked = caller.check(context, resolved.spec, &resolved.command);
        checked.map_err(|denied| not_permitted(denied, &caller.user.name, row))
    }

    /// The same of a command that was put into a transaction a while ago.
    pub(super) fn permit_still(&self, spec: u16, command: &Command) -> Result<(), Failure> {
        let Some(caller) = self.block.caller() else {
            return Ok(());
        };
        let checked = caller.check(Context::Transaction, spec, command);
        checked.map_err(no_longer_permitted)
    }

    /// Whether a command may be run. Nothing is noted.
    pub(super) fn is_permitted(&self, step: &Step) -> bool {
        match step {
            Step::Run(resolved) => {
                let user = self.session.user();
                self.is_free() || user.check(resolved.spec, &resolved.command).is_ok()
            }
            Step::Refuse { .. } | Step::Broken(_) | Step::Intruder => true,
        }
    }

    /// Starts AUTH or HELLO as a run, if its password has to be computed.
    pub(super) fn starts_login(
        &mut self,
        what: Own,
        resolved: &Resolved,
        context: &mut task::Context<'_>,
    ) -> bool {
        if !takes_time(self.core, what, &resolved.command) {
            return false;
        }
        self.begin(resolved);
        self.is_logging_in = true;
        self.launch((Data::LogIn, resolved.command.clone()), None, context);
        true
    }
}
