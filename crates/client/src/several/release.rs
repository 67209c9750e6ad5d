//! Releasing the keys of a transaction that is decided.

use super::decide::Decision;
use super::requests::ReleaseOf;
use crate::client::Client;
use crate::error::{ClientError, ErrorKind};
use crate::retry::Attempts;
use crate::table::Table;
use core::time::Duration;
use futures_util::future::join_all;
use pluvio_units::{DECISION, KeyHash, KeyPlace, ServerId, Share, TableId};
use pluvio_wire::{FatalKind, Release};
use std::collections::BTreeMap;

impl Client {
    /// Releases all keys, the home key last (SEVERAL-2).
    pub(super) async fn release_all(
        &self,
        decision: Decision,
        shares: &[Share],
        tables: &BTreeMap<TableId, Table>,
        attempts: &mut Attempts<'_>,
    ) -> Result<(), ClientError> {
        let Some(home) = shares.first().and_then(|share| share.keys.first()) else {
            return Ok(());
        };
        let release = |keys: Vec<KeyPlace>, is_last: bool| {
            let is_there = |share: &&Share| {
                let first = share.keys.first();
                first.is_some_and(|first| keys.contains(first))
            };
            let known = shares.iter().filter(|_| decision.forgets).filter(is_there);
            let mut forget: Vec<_> = known.map(|share| share.sequence).collect();
            if is_last && decision.forgets {
                forget.push(DECISION);
            }
            Release {
                client: decision.client,
                committed: decision.committed,
                keys,
                forget,
            }
        };
        let keys = shares.iter().flat_map(|share| &share.keys);
        let mut left: Vec<KeyPlace> = keys.filter(|key| *key != home).copied().collect();
        let mut known = tables.clone();
        while !left.is_empty() {
            let mut by_owner: BTreeMap<Option<ServerId>, Vec<KeyPlace>> = BTreeMap::new();
            for (table, hash) in left.drain(..) {
                if let Some(handle) = self.known_table(table, &mut known).await? {
                    let owner = handle.owner(hash);
                    by_owner.entry(owner).or_default().push((table, hash));
                }
            }
            let shared = &*attempts;
            let known = &known;
            let each = by_owner.into_values().map(|keys| async move {
                let release = release(keys.clone(), false);
                (keys, self.release(release, known, shared).await)
            });
            for (keys, released) in join_all(each).await {
                match released {
                    Ok(()) => {}
                    // They have moved apart.
                    Err(error) if error.fatal_kind() == Some(FatalKind::SeveralOwners) => {
                        left.extend(keys);
                    }
                    Err(error) if error.kind() == ErrorKind::NoSuchTable => {
                        // Of several tables, the others go on alone.
                        let gone = keys[0].0;
                        left.extend(keys.into_iter().filter(|(table, _)| *table != gone));
                    }
                    Err(error) => return Err(error),
                }
            }
            if !left.is_empty() {
                attempts.failed("the keys of a transaction move".to_owned(), None);
                attempts.pause(Duration::ZERO).await?;
            }
        }
        if self.known_table(home.0, &mut known).await?.is_none() {
            return Ok(());
        }
        let last = release(vec![*home], true);
        match self.release(last, &known, attempts).await {
            Err(error) if error.kind() == ErrorKind::NoSuchTable => Ok(()),
            released => released,
        }
    }

    /// The handle of a table; `None` when it was dropped.
    async fn known_table(
        &self,
        id: TableId,
        known: &mut BTreeMap<TableId, Table>,
    ) -> Result<Option<Table>, ClientError> {
        if let Some(table) = known.get(&id) {
            return Ok(Some(table.clone()));
        }
        match self.table_by_id(id).await {
            Ok(table) => {
                known.insert(id, table.clone());
                Ok(Some(table))
            }
            Err(error) if error.kind() == ErrorKind::NoSuchTable => Ok(None),
            Err(error) => Err(error),
        }
    }

    async fn release(
        &self,
        release: Release,
        tables: &BTreeMap<TableId, Table>,
        attempts: &Attempts<'_>,
    ) -> Result<(), ClientError> {
        let (table, hash): (TableId, KeyHash) = release.keys[0];
        let request = ReleaseOf { release, tables };
        let table = &tables[&table];
        self.on_hash_within(table, hash, &request, attempts.clone())
            .await
    }
}
