//! The state of one connection that its commands see and change.

use crate::clients::ClientEntry;
use crate::database::DatabaseId;
use crate::monitor::{Feed, Monitors};
use crate::reply::Protocol;
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

/// The state of one connection.
pub(crate) struct Session {
    entry: Arc<ClientEntry>,
    database: DatabaseId,
    protocol: Protocol,
    answers: Answers,
    closing: bool,
    /// What MONITOR gives.
    feed: Option<Arc<Feed>>,
}

impl Session {
    pub(crate) fn new(entry: Arc<ClientEntry>) -> Self {
        Self {
            entry,
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
    pub(crate) fn reset(&mut self, monitors: &Monitors) {
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

    /// Whether the command that ran last is answered. Called once a command.
    pub(crate) fn is_answered(&mut self) -> bool {
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
