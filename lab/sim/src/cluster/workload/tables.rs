//! What clients do with whole tables and tablets.

use super::exchanges::enumerated;
use super::{Worker, found, wrote};
use crate::check::accounts::Contents;
use crate::cluster::plan::OperationKind;
use crate::cluster::values;
use crate::history::{Action, Content, KeyKind, Outcome, Record, Scan};
use bytes::Bytes;
use pluvio_client::{Client, ClientError, ErrorKind, Table, TableOptions, WhichTablet};
use pluvio_units::{HashKind, HashRange, KeyHash};
use std::sync::Arc;

impl Worker {
    /// Lets some tablet, or a part of one, move to some server; does not wait for the end.
    pub(super) async fn migrate(&mut self, kind: OperationKind) {
        let table = self.draw.below(self.tables.len() as u64) as usize;
        let at = KeyHash(self.draw.below(u64::MAX));
        let (some, part) = (self.draw.below(u64::MAX), self.draw.below(8) == 0);
        let Ok(list) = self.client.server_list().await else {
            self.shared.journal.count_only(kind, false);
            return;
        };
        let up: Vec<_> = list.up().map(|info| info.id).collect();
        if up.is_empty() {
            return;
        }
        let to = up[(some % up.len() as u64) as usize];
        let tablet = if part {
            let last = KeyHash(at.0.saturating_add(1 << 61));
            WhichTablet::Range(HashRange::new(at, last))
        } else {
            WhichTablet::Containing(at)
        };
        let asked = self.client.start_migration(&self.tables[table], tablet, to);
        let begun = asked.await.is_ok();
        self.shared.journal.count_only(kind, begun);
    }

    /// Goes through a whole table; `None` when that failed.
    pub(in crate::cluster) async fn enumerate(
        &mut self,
        kind: OperationKind,
        table: usize,
    ) -> Option<Contents> {
        let journal = self.shared.journal.clone();
        let keys = Arc::clone(&self.shared.keys);
        let items = 1 + self.draw.below(64) as usize;
        let mut enumeration = self
            .client
            .enumerate(&self.tables[table])
            .batch_items(items);
        let invoked = journal.tick();
        let (mut found, mut strangers) = (Vec::new(), Vec::new());
        let mut contents = Contents::default();
        let mut records = Vec::new();
        loop {
            let (began, at) = (journal.tick(), self.shared.sim.now());
            let batch = match enumeration.next_batch().await {
                Ok(Some(batch)) => batch,
                Ok(None) => break,
                Err(_) => {
                    journal.count_only(kind, false);
                    return None;
                }
            };
            let (returned, until) = (journal.tick(), self.shared.sim.now());
            for object in batch {
                contents.add(object.key.len() + object.value.len());
                let Some(key) = keys.find(table, &object.key) else {
                    strangers.push(format!("{:?}", Bytes::from(object.key)));
                    continue;
                };
                found.push(key);
                let has_exchanges = keys.kind(key).has_exchanges();
                let outcome = Outcome::Found {
                    version: object.version.0,
                    content: match has_exchanges {
                        true => Content::of_bytes(&object.value),
                        false => values::content(&object.value),
                    },
                };
                let record = Record {
                    client: self.number,
                    action: Action::Read,
                    invoked: began,
                    returned,
                    outcome,
                    repeats: 0,
                    at,
                    until,
                };
                let exchange = has_exchanges.then(|| enumerated(&record, object.value));
                records.push((key, record, exchange));
            }
        }
        let scan = Scan {
            invoked,
            returned: journal.tick(),
            keys: keys.of_table(table),
            found,
            strangers,
        };
        journal.scanned(kind, scan, records);
        Some(contents)
    }

    /// What is in tables that are not the run's, such as those of clients that died while they used
    /// one.
    pub(in crate::cluster) async fn contents_of_others(&self) -> Result<Contents, ClientError> {
        let mut contents = Contents::default();
        for info in self.client.list_tables().await? {
            if self.shared.keys.tables.contains(&info.name) {
                continue;
            }
            let table = self.client.table(&info.name).await?;
            let mut enumeration = self.client.enumerate(&table);
            while let Some(batch) = enumeration.next_batch().await? {
                let sizes = batch.iter().map(|o| o.key.len() + o.value.len());
                sizes.for_each(|bytes| contents.add(bytes));
            }
        }
        Ok(contents)
    }

    /// Number of objects of a table.
    pub(in crate::cluster) async fn count(&self, table: usize) -> Result<u64, ClientError> {
        let reply = self.client.count(&self.tables[table]).await?;
        Ok(reply.objects)
    }

    /// The client library, for questions to the coordinator.
    pub(in crate::cluster) fn client(&self) -> &Client {
        &self.client
    }

    async fn make_scratch(
        &mut self,
        name: &str,
        span: Option<u32>,
        hash: HashKind,
    ) -> Result<Table, ClientError> {
        let options = TableOptions {
            durability: self.shared.plan.some_durability(&mut self.durabilities),
            hash: Some(hash),
            ..TableOptions::default()
        };
        self.client.create_table_with(name, span, options).await
    }

    /// Creates a table, uses it, drops it, creates it again: nothing of it may be left.
    pub(super) async fn scratch(&mut self, kind: OperationKind) {
        self.scratch_last += 1;
        let name = format!("scratch {} {}", self.number, self.scratch_last);
        let bytes = b"key";
        let journal = self.shared.journal.clone();
        let made = self.make_scratch(&name, Some(1), HashKind::Slots).await;
        let Ok(table) = made else {
            journal.count_only(kind, false);
            return;
        };
        let key = journal.new_key(format!("key of table {name}"), KeyKind::Register);
        let (value, content) = self.new_value();
        let action = Action::Write {
            content,
            condition: None,
        };
        let begun = self.begin(key, action);
        let result = self.client.write(&table, bytes, value).await;
        self.end(
            OperationKind::Write,
            key,
            begun,
            wrote(&self.shared.journal, result),
        );
        let begun = self.begin(key, Action::Read);
        let result = self.client.read(&table, bytes).await;
        self.end(
            OperationKind::Read,
            key,
            begun,
            found(&self.shared.journal, result),
        );
        if let Err(error) = self.client.drop_table(&name).await {
            let gone = error.kind() == ErrorKind::NoSuchTable;
            journal.count_only(kind, gone);
            return;
        }
        let Ok(again) = self.make_scratch(&name, None, HashKind::Seeded).await else {
            journal.count_only(kind, false);
            return;
        };
        // A key of its own: whatever is found in it, nobody wrote.
        let key = journal.new_key(format!("key of the second table {name}"), KeyKind::Register);
        let begun = self.begin(key, Action::Read);
        let result = self.client.read(&again, bytes).await;
        self.end(
            OperationKind::Read,
            key,
            begun,
            found(&self.shared.journal, result),
        );
        let dropped = self.client.drop_table(&name).await;
        journal.count_only(kind, dropped.is_ok());
    }
}
