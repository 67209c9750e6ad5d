//! Migrations, for people: what is under way, and the latest that ended.

use crate::state::{MoveRecord, TableRecord};
use pluvio_env::Moment;
use pluvio_units::MigrationId;
use pluvio_wire::{MigrationProgress, MigrationStatus};
use std::collections::VecDeque;

/// Ended migrations that are kept: more than a caller that waits for one can miss.
const ENDED_MAX: usize = 64;

/// See the module.
#[derive(Default)]
pub(super) struct History(VecDeque<Entry>);

struct Entry {
    since: Moment,
    status: MigrationStatus,
    /// Why it was given up.
    failure: Option<String>,
}

impl History {
    fn find(&mut self, id: MigrationId) -> Option<&mut Entry> {
        let mut entries = self.0.iter_mut();
        entries.find(|e| e.status.migration == id && !e.status.done)
    }

    /// A migration is taken up; nothing happens when it is known.
    pub(super) fn begin(&mut self, table: &TableRecord, record: &MoveRecord, now: Moment) {
        if self.0.iter().any(|e| e.status.migration == record.id) {
            return;
        }
        let status = MigrationStatus {
            migration: record.id,
            table: table.id,
            name: table.name.clone(),
            range: record.range,
            from: record.from,
            to: record.to,
            phase: "asking the receiver".into(),
            done: false,
            moved: false,
            duration_ms: 0,
            progress: MigrationProgress::default(),
        };
        self.0.push_back(Entry {
            since: now,
            status,
            failure: None,
        });
    }

    fn note(&mut self, id: MigrationId, change: impl FnOnce(&mut Entry)) {
        if let Some(entry) = self.find(id) {
            change(entry);
        }
    }

    /// The receiver is at work.
    pub(super) fn copying(&mut self, id: MigrationId, progress: MigrationProgress) {
        self.note(id, |entry| {
            entry.status.phase = "copying".into();
            entry.status.progress = progress;
        });
    }

    /// The receiver cannot begin yet.
    pub(super) fn waiting(&mut self, id: MigrationId, why: String) {
        self.note(id, |entry| entry.status.phase = format!("waiting: {why}"));
    }

    /// It is given up.
    pub(super) fn failed(&mut self, id: MigrationId, why: String) {
        self.note(id, |entry| {
            // The first reason counts: others follow from it.
            let why = entry.failure.get_or_insert(why);
            entry.status.phase = format!("given up: {why}");
        });
    }

    /// The receiver owns the tablet.
    pub(super) fn moved(&mut self, id: MigrationId) {
        self.note(id, |entry| {
            entry.status.moved = true;
            entry.failure = None;
            entry.status.phase = "moved; its former owner forgets it".into();
        });
    }

    /// It has ended for everybody; gives its final status.
    pub(super) fn finish(
        &mut self,
        id: MigrationId,
        moved: bool,
        now: Moment,
    ) -> Option<MigrationStatus> {
        let entry = self.find(id)?;
        let moved = moved || entry.status.moved;
        entry.status.done = true;
        entry.status.moved = moved;
        entry.status.duration_ms = milliseconds(entry.since, now);
        entry.status.phase = match (moved, entry.failure.take()) {
            (true, _) => "done".into(),
            (false, Some(why)) => why,
            (false, None) => "a server crashed or the table was dropped".into(),
        };
        let last = entry.status.clone();
        let ended = self.0.iter().filter(|e| e.status.done).count();
        if ended > ENDED_MAX
            && let Some(oldest) = self.0.iter().position(|e| e.status.done)
        {
            self.0.remove(oldest);
        }
        Some(last)
    }

    /// One of them, if it is known.
    pub(super) fn get(&self, id: MigrationId, now: Moment) -> Option<MigrationStatus> {
        let mut entries = self.0.iter();
        let entry = entries.find(|e| e.status.migration == id)?;
        Some(entry.at(now))
    }

    /// All of them, oldest first.
    pub(super) fn list(&self, now: Moment) -> Vec<MigrationStatus> {
        self.0.iter().map(|entry| entry.at(now)).collect()
    }
}

impl Entry {
    fn at(&self, now: Moment) -> MigrationStatus {
        let mut status = self.status.clone();
        if !status.done {
            status.duration_ms = milliseconds(self.since, now);
        }
        status
    }
}

fn milliseconds(since: Moment, now: Moment) -> u64 {
    u64::try_from(now.since(since).as_millis()).unwrap_or(u64::MAX)
}
