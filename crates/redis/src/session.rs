//! The state of one connection that its commands see and change.

use crate::clients::ClientEntry;
use crate::database::DatabaseId;
use crate::monitor::{Feed, Monitors};
use crate::reply::Protocol;
use crate::shared::Shared;
use crate::users::Users;
use crate::users::caller::Caller;
use crate::users::rules::{DEFAULT, User};
use std::sync::Arc;

/// Which commands are answered (CLIENT REPLY).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) enum Answers {
    /// All.
    #[default]
    On,
    /// None, until CLIENT REPLY ON.
    Off,
    /// Neither this one nor the next.
    SkipNext,
    /// Not this one.
    Skip,
}

/// Whether two states are of one user. `default` is always the same.
pub(crate) fn is_same(one: &User, other: &User) -> bool {
    one.name == other.name && (one.life == other.life || &*one.name == DEFAULT)
}

/// The state of one connection.
pub(crate) struct Session {
    entry: Arc<ClientEntry>,
    database: DatabaseId,
    protocol: Protocol,
    answers: Answers,
    closing: bool,
    /// What MONITOR gives.
    feed: Option<Arc<Feed>>,
    user: Arc<User>,
    /// Whether it has logged in, or needs no login.
    is_in: bool,
    /// The users of this generation are known to it.
    generation: u64,
    is_user_gone: bool,
}

impl Session {
    pub(crate) fn new(entry: Arc<ClientEntry>, users: &Users) -> Self {
        let generation = users.generation();
        let user = users.default_user();
        Self {
            entry,
            is_in: user.is_open(),
            user,
            generation,
            is_user_gone: false,
            database: DatabaseId::default(),
            protocol: Protocol::default(),
            answers: Answers::default(),
            closing: false,
            feed: None,
        }
    }

    pub(crate) fn entry(&self) -> &ClientEntry {
        &self.entry
    }

    pub(crate) fn database(&self) -> DatabaseId {
        self.database
    }

    pub(crate) fn protocol(&self) -> Protocol {
        self.protocol
    }

    pub(crate) fn is_closing(&self) -> bool {
        self.closing
    }

    /// The user of the connection; of one that has to log in, `default`.
    pub(crate) fn user(&self) -> &Arc<User> {
        &self.user
    }

    /// The user and the connection, if there is something that the user may not do.
    pub(crate) fn caller(&self, shared: &Arc<Shared>) -> Option<Arc<Caller>> {
        let caller = || Caller {
            user: Arc::clone(&self.user),
            client: Arc::clone(&self.entry),
            shared: Arc::clone(shared),
        };
        (!self.user.may_all()).then(|| Arc::new(caller()))
    }

    /// Whether it has logged in, or needs no login.
    pub(crate) fn is_in(&self) -> bool {
        self.is_in
    }

    /// Whether its user was deleted.
    pub(crate) fn is_user_gone(&self) -> bool {
        self.is_user_gone
    }

    /// Takes over what has changed about its user. Whether something may have.
    pub(crate) fn follow(&mut self, users: &Users) -> bool {
        let generation = users.generation();
        if generation == self.generation {
            return false;
        }
        self.generation = generation;
        match users.get(&self.user.name) {
            Some(user) if is_same(&user, &self.user) => self.user = user,
            Some(_) | None => self.is_user_gone = true,
        }
        // Nobody needs a login any more.
        self.is_in |= &*self.user.name == DEFAULT && self.user.is_open();
        self.entry.set_user(&self.user.name, self.user.life);
        true
    }

    /// A login.
    pub(crate) fn log_in(&mut self, user: Arc<User>) {
        self.entry.set_user(&user.name, user.life);
        self.user = user;
        self.is_in = true;
    }

    pub(crate) fn set_database(&mut self, database: DatabaseId) {
        self.database = database;
        self.entry.set_session(self.database, self.protocol);
    }

    pub(crate) fn set_protocol(&mut self, protocol: Protocol) {
        self.protocol = protocol;
        self.entry.set_session(self.database, self.protocol);
    }

    pub(crate) fn set_answers(&mut self, answers: Answers) {
        self.answers = answers;
    }

    /// The next command is not answered; changes nothing where none is.
    pub(crate) fn skip_next(&mut self) {
        if self.answers != Answers::Off {
            self.answers = Answers::SkipNext;
        }
    }

    /// No more commands are run; due replies are still sent.
    pub(crate) fn close(&mut self) {
        self.closing = true;
    }

    /// MONITOR.
    pub(crate) fn start_feed(&mut self, monitors: &Monitors) {
        if self.feed.is_none() {
            self.feed = Some(monitors.enter(Arc::clone(&self.entry)));
            self.entry.set_monitor(true);
        }
    }

    /// What MONITOR gives, if it was asked for.
    pub(crate) fn feed(&self) -> Option<&Feed> {
        self.feed.as_deref()
    }

    /// As new, but for its number.
    pub(crate) fn reset(&mut self, monitors: &Monitors, users: &Users) {
        self.user = users.default_user();
        self.is_in = self.user.is_open();
        self.entry.set_user(&self.user.name, self.user.life);
        if self.feed.take().is_some() {
            monitors.leave(self.entry.id);
            self.entry.set_monitor(false);
        }
        self.database = DatabaseId::default();
        self.protocol = Protocol::default();
        // CLIENT REPLY SKIP is about the command that resets, too.
        if self.answers != Answers::Skip {
            self.answers = Answers::default();
        }
        self.entry.set_session(self.database, self.protocol);
        self.entry.change_texts(|texts| texts.name.clear());
    }

    /// Whether every command is answered.
    pub(crate) fn answers_all(&self) -> bool {
        self.answers == Answers::On
    }

    /// Ends a command: gives whether it is answered, and goes on to the next one. Called once a
    /// command.
    pub(crate) fn take_answered(&mut self) -> bool {
        match self.answers {
            Answers::On => true,
            Answers::Off => false,
            Answers::SkipNext => {
                self.answers = Answers::Skip;
                false
            }
            Answers::Skip => {
                self.answers = Answers::On;
                false
            }
        }
    }
}
