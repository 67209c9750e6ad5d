//! Going through all objects of a table.

use crate::client::Client;
use crate::error::ClientError;
use crate::table::Table;
use pluvio_units::KeyHash;
use pluvio_wire::{Enumerate, EnumeratedObject, MULTI_ITEMS_MAX};

/// Objects of a batch unless [`Enumeration::batch_items`] says otherwise.
const BATCH_ITEMS: u32 = 256;

/// Goes through a table in the order of key hashes.
///
/// Each object that is there all along comes exactly once, also while tablets split, move and are
/// recovered. Objects that come or go meanwhile may or may not be seen. The place in the table is
/// one hash, so an enumeration can be stopped and resumed at any time, by any client.
pub struct Enumeration {
    client: Client,
    table: Table,
    next: Option<KeyHash>,
    items: u32,
    values: bool,
}

impl Client {
    /// Goes through all objects of a table, with their values.
    #[must_use]
    pub fn enumerate(&self, table: &Table) -> Enumeration {
        self.enumerate_from(table, KeyHash(0))
    }

    /// Goes through the objects of a table from a [`Enumeration::cursor`] on.
    #[must_use]
    pub fn enumerate_from(&self, table: &Table, cursor: KeyHash) -> Enumeration {
        Enumeration {
            client: self.clone(),
            table: table.clone(),
            next: Some(cursor),
            items: BATCH_ITEMS,
            values: true,
        }
    }
}

impl Enumeration {
    /// Without values: only keys and versions are sent.
    #[must_use]
    pub fn keys_only(mut self) -> Self {
        self.values = false;
        self
    }

    /// Sets about how many objects a batch has, at least 1 and at most 1024. All objects of one
    /// hash come together, so there may be a few more; large values make batches smaller.
    #[must_use]
    pub fn batch_items(mut self, items: usize) -> Self {
        self.items = u32::try_from(items.clamp(1, MULTI_ITEMS_MAX)).expect("at most 1024");
        self
    }

    /// The hash of the next object to come; `None` at the end. Give it to
    /// [`Client::enumerate_from`] to go on later.
    #[must_use]
    pub fn cursor(&self) -> Option<KeyHash> {
        self.next
    }

    /// The next objects, at least one; `None` at the end. After an error the place is as before,
    /// so the call can be repeated.
    ///
    /// # Errors
    /// See [`Client`]. Large empty stretches count as one batch each against the time.
    pub async fn next_batch(&mut self) -> Result<Option<Vec<EnumeratedObject>>, ClientError> {
        while self.next.is_some() {
            let objects = self.next_stretch().await?;
            if !objects.is_empty() {
                return Ok(Some(objects));
            }
        }
        Ok(None)
    }

    /// One request's worth: like [`Enumeration::next_batch`], but may be empty before the end. For
    /// callers that must not take long.
    ///
    /// # Errors
    /// See [`Client`].
    pub async fn next_stretch(&mut self) -> Result<Vec<EnumeratedObject>, ClientError> {
        let Some(from) = self.next else {
            return Ok(Vec::new());
        };
        let request = Enumerate {
            table: self.table.id(),
            from,
            items: self.items,
            values: self.values,
        };
        let reply = self.client.on_hash(&self.table, from, &request).await?;
        if reply.next.is_some_and(|next| next <= from) {
            return Err(ClientError::Protocol(format!(
                "an enumeration of table {:?} does not advance past {from}",
                self.table.name()
            )));
        }
        self.next = reply.next;
        Ok(reply.objects)
    }
}
