//! Whether a connection may run what comes next: its login, and the rights of its user.

use super::{Connection, Resolved, Step};
use crate::block::{Login, News};
use crate::commands::{Commands, Data, Own, Ran, run_deferred, selected, takes_time};
use crate::database::DatabaseId;
use crate::failure::{NO_AUTH, no_longer_permitted, not_permitted};
use crate::parser::Command;
use crate::reply::Failure;
use crate::table::{Run, SPECS};
use crate::users::caller::Caller;
use crate::users::denials::Context;
use core::task;

impl<M, F> Connection<'_, M, F>
where
    M: Fn(bool, DatabaseId, Commands) -> F,
    F: Future<Output = Ran>,
{
    /// Takes over a login, the end of the connection, a database, or the rest of EXEC, from a run
    /// that has ended.
    pub(super) fn take_news(&mut self) {
        let News {
            database,
            deferred,
            login,
            ends,
        } = self.block.take_news();
        if let Some(database) = database {
            self.session.set_database(database);
        }
        if !deferred.is_empty() {
            let (core, session, block) = (self.core, &mut self.session, self.block);
            self.queue
                .amend(|reply| run_deferred(core, session, block, deferred, reply));
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
        let database = self.next_database();
        let checked = caller.check(context, resolved.spec, database, &resolved.command);
        checked.map_err(|denied| not_permitted(denied, &caller.user.name, row))
    }

    /// The database of the next command: inside a transaction, that of EXEC by then.
    fn next_database(&self) -> DatabaseId {
        let selected = self.block.selected();
        selected.unwrap_or(self.session.database())
    }

    /// The database that a command chooses.
    pub(super) fn selected(&self, resolved: &Resolved) -> Option<DatabaseId> {
        let is_select = SPECS[usize::from(resolved.spec)].run == Run::Own(Own::Select);
        let selected = || selected(self.core, &resolved.command).ok();
        is_select.then(selected).flatten()
    }

    /// Whether a command may be run. Nothing is noted.
    pub(super) fn is_permitted(&self, step: &Step) -> bool {
        match step {
            Step::Run(resolved) => {
                let user = self.session.user();
                let check = || user.check(resolved.spec, self.next_database(), &resolved.command);
                self.is_free() || check().is_ok()
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
        self.launch((Data::LogIn, resolved.command.clone()), None, context);
        true
    }
}

/// Whether a command may be run that was put into a transaction a while ago.
///
/// # Errors
/// It may not any more; that was noted.
pub(super) fn permit_still(
    caller: Option<&Caller>,
    spec: u16,
    database: DatabaseId,
    command: &Command,
) -> Result<(), Failure> {
    let Some(caller) = caller else {
        return Ok(());
    };
    let checked = caller.check(Context::Transaction, spec, database, command);
    checked.map_err(no_longer_permitted)
}
