//! A volatile table, whose objects are lost with their server (`docs/classes.md`). Three things are
//! true over each loss. Each operation is held against them:
//!
//! - A version of a key has one content.
//! - Versions of a key grow in real-time order.
//! - Without faults nothing is lost.

use super::Worker;
use crate::check::{Check, Violation};
use crate::cluster::plan::OperationKind;
use bytes::Bytes;
use pluvio_client::{DurabilityWish, Table, TableOptions};
use pluvio_units::HashKind;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The keys of the table.
const KEYS: u64 = 8;

/// One key, as clients know it.
#[derive(Default)]
struct Known {
    /// The newest version that an operation saw which has ended.
    newest: u64,
    /// The content of each version that was seen.
    contents: BTreeMap<u64, Bytes>,
}

/// The volatile table, as all clients of a run know it.
#[derive(Clone, Default)]
pub(in crate::cluster) struct Cache(Arc<Mutex<BTreeMap<u64, Known>>>);

impl Cache {
    fn keys(&self) -> MutexGuard<'_, BTreeMap<u64, Known>> {
        // Held for single steps.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The newest version that was seen before now.
    fn newest(&self, key: u64) -> u64 {
        self.keys().entry(key).or_default().newest
    }

    /// Notes what an operation saw or made. `before` was the newest version when it began, and
    /// `is_new` says that it made one. Says what is wrong.
    fn note(
        &self,
        key: u64,
        (version, content): (u64, &Bytes),
        (before, is_new): (u64, bool),
    ) -> Option<String> {
        let mut keys = self.keys();
        let known = keys.entry(key).or_default();
        known.newest = known.newest.max(version);
        let first = known.contents.entry(version);
        let first = first.or_insert_with(|| content.clone());
        if first != content {
            return Some(format!(
                "version {version} was {first:?} and is {content:?}"
            ));
        }
        if version < before + u64::from(is_new) {
            return Some(format!("version {version} comes behind {before}"));
        }
        None
    }
}

impl Worker {
    /// The volatile table, once it is there.
    async fn cache_table(&mut self) -> Option<Table> {
        if self.cache.is_none() {
            let options = TableOptions {
                durability: DurabilityWish {
                    replicas: Some(0),
                    synced: None,
                },
                hash: Some(HashKind::Slots),
                ..TableOptions::default()
            };
            let made = self.client.create_table_with("cache", None, options).await;
            self.cache = made.ok();
        }
        self.cache.clone()
    }

    /// Reads or writes a key of the volatile table.
    pub(super) async fn use_cache(&mut self, kind: OperationKind) {
        let Some(table) = self.cache_table().await else {
            self.shared.journal.count_only(kind, false);
            return;
        };
        let number = self.caches.below(KEYS);
        let key = format!("cached {number}").into_bytes();
        let cache = self.shared.cache.clone();
        let before = cache.newest(number);
        let (done, wrong) = match self.caches.below(2) {
            0 => {
                let value = Bytes::from(self.shared.journal.value_number().to_string());
                let written = self.client.write(&table, &key, value.clone()).await;
                let wrong = written.as_ref().ok().and_then(|reply| {
                    cache.note(number, (reply.version.0, &value), (before, true))
                });
                (written.is_ok(), wrong)
            }
            _ => match self.client.read(&table, &key).await {
                Ok(Some(found)) => {
                    let seen = (found.version.0, &found.value);
                    (true, cache.note(number, seen, (before, false)))
                }
                Ok(None) => {
                    let is_lost = before > 0 && self.shared.plan.faults.is_empty();
                    (true, is_lost.then(|| format!("version {before} is lost")))
                }
                Err(_) => (false, None),
            },
        };
        if let Some(wrong) = wrong {
            self.shared.journal.violation(Violation {
                check: Check::VersionsGrow,
                message: format!("volatile table, key {number}: {wrong}"),
                evidence: Vec::new(),
            });
        }
        self.shared.journal.count_only(kind, done);
    }
}
