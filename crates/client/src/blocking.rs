//! The client for code that blocks its thread.
//!
//! A program implements [`BlockOn`] for its runtime (the production runtime of `env_os` does).
//! [`Client`] then offers the operations of the [asynchronous client](crate::Client) as plain
//! calls. It must not be used on an event loop: it would wait for itself.

use crate::error::ClientError;
use crate::objects::{object, projected};
use crate::{
    BitStep, BitsReply, ClusterStatus, CountObjectsReply, Deadline, DeleteReply, EnumeratedObject,
    Get, IncrementReply, LengthReply, Lifetime, MigrateTabletReply, MigrationStatus, Mutation,
    Number, Object, Outcome, Output, Projection, QuotaWish, RejectRules, ServerList, Table,
    TableInfo, TableOptions, TouchIf, WhichTablet, WriteReply,
};
use bytes::Bytes;
use pluvio_env::Frame;
use pluvio_units::{KeyHash, MigrationId, ObjectVersion, ServerId, TableId};
use pluvio_wire::{
    Gets, Header, Mutations, check_get, check_mutation, decode_get, decode_mutate, encode_get,
    encode_mutate,
};

/// Runs a future to its end while the calling thread waits.
pub trait BlockOn {
    /// Runs `future` where its timers and connections work, and gives its result.
    fn block_on<T: Send + 'static>(&self, future: impl Future<Output = T> + Send + 'static) -> T;
}

/// A client whose calls block. Errors are those of the [asynchronous client](crate::Client).
#[derive(Clone)]
pub struct Client<B> {
    inner: crate::Client,
    runtime: B,
}

/// One object of a blocking batch.
#[derive(Clone, Debug)]
pub struct Key {
    /// Its table.
    pub table: Table,
    /// Its key.
    pub key: Vec<u8>,
    /// When to refuse.
    pub rules: RejectRules,
}

impl Key {
    /// An object, without reject rules.
    pub fn new(table: &Table, key: impl Into<Vec<u8>>) -> Self {
        Self {
            table: table.clone(),
            key: key.into(),
            rules: RejectRules::default(),
        }
    }

    fn borrow(&self) -> crate::Key<'_> {
        crate::Key::new(&self.table, &self.key).rules(self.rules)
    }
}

/// A mutation that owns its bytes: as the wire carries it.
fn pack(mutation: &Mutation<'_>) -> Result<Frame, ClientError> {
    check_mutation(mutation).map_err(ClientError::from_final)?;
    let mutations = core::slice::from_ref(mutation);
    Ok(encode_mutate(&Header::default(), mutations, false))
}

/// What [`pack`] packed.
fn unpack(frame: &Frame) -> Result<Mutations<'_>, ClientError> {
    let (_, mutations) = decode_mutate(frame).map_err(ClientError::from_final)?;
    Ok(mutations)
}

/// A mutation of a batch, packed, or why it cannot be done.
type Packed = Result<(Table, Frame), ClientError>;

fn unpack_of_table(packed: &Packed) -> Result<(&Table, Mutations<'_>), ClientError> {
    match packed {
        Ok((table, frame)) => Ok((table, unpack(frame)?)),
        Err(error) => Err(error.clone()),
    }
}

/// A read that owns its bytes: as the wire carries it.
fn pack_get(get: &Get<'_>) -> Result<Frame, ClientError> {
    check_get(get).map_err(ClientError::from_final)?;
    Ok(encode_get(&Header::default(), core::slice::from_ref(get)))
}

/// What [`pack_get`] packed.
fn unpack_get(frame: &Frame) -> Result<Gets<'_>, ClientError> {
    let (_, gets) = decode_get(frame).map_err(ClientError::from_final)?;
    Ok(gets)
}

const PACKED: &str = "one was packed";

/// One call: clones what the future needs, because it may run on another thread.
macro_rules! call {
    ($self:ident, $client:ident => $body:expr) => {{
        let $client = $self.inner.clone();
        $self.runtime.block_on(async move { $body })
    }};
}

impl<B: BlockOn> Client<B> {
    /// A blocking client over an asynchronous one.
    pub fn new(client: crate::Client, runtime: B) -> Self {
        Self {
            inner: client,
            runtime,
        }
    }

    /// The asynchronous client below.
    pub fn asynchronous(&self) -> &crate::Client {
        &self.inner
    }

    /// See [`crate::Client::create_table`].
    ///
    /// # Errors
    /// As there.
    pub fn create_table(&self, name: &str, span: Option<u32>) -> Result<Table, ClientError> {
        let name = name.to_owned();
        call!(self, client => client.create_table(&name, span).await)
    }

    /// See [`crate::Client::table`].
    ///
    /// # Errors
    /// As there.
    pub fn table(&self, name: &str) -> Result<Table, ClientError> {
        let name = name.to_owned();
        call!(self, client => client.table(&name).await)
    }

    /// See [`crate::Client::table_by_id`].
    ///
    /// # Errors
    /// As there.
    pub fn table_by_id(&self, id: TableId) -> Result<Table, ClientError> {
        call!(self, client => client.table_by_id(id).await)
    }

    /// See [`crate::Client::create_table_with_quota`].
    ///
    /// # Errors
    /// See there.
    pub fn create_table_with_quota(
        &self,
        name: &str,
        span: Option<u32>,
        quota: QuotaWish,
    ) -> Result<Table, ClientError> {
        let name = name.to_owned();
        call!(self, client => client.create_table_with_quota(&name, span, quota).await)
    }

    /// See [`crate::Client::create_table_with`].
    ///
    /// # Errors
    /// See there.
    pub fn create_table_with(
        &self,
        name: &str,
        span: Option<u32>,
        options: TableOptions,
    ) -> Result<Table, ClientError> {
        let name = name.to_owned();
        call!(self, client => client.create_table_with(&name, span, options).await)
    }

    /// See [`crate::Client::set_quota`].
    ///
    /// # Errors
    /// See there.
    pub fn set_quota(&self, name: &str, quota: QuotaWish) -> Result<TableInfo, ClientError> {
        let name = name.to_owned();
        call!(self, client => client.set_quota(&name, quota).await)
    }

    /// See [`crate::Client::drop_table`].
    ///
    /// # Errors
    /// As there.
    pub fn drop_table(&self, name: &str) -> Result<(), ClientError> {
        let name = name.to_owned();
        call!(self, client => client.drop_table(&name).await)
    }

    /// See [`crate::Client::list_tables`].
    ///
    /// # Errors
    /// As there.
    pub fn list_tables(&self) -> Result<Vec<TableInfo>, ClientError> {
        call!(self, client => client.list_tables().await)
    }

    /// See [`crate::Client::table_info`].
    ///
    /// # Errors
    /// As there.
    pub fn table_info(&self, table: &Table) -> Result<TableInfo, ClientError> {
        let table = table.clone();
        call!(self, client => client.table_info(&table).await)
    }

    /// See [`crate::Client::split_tablet`].
    ///
    /// # Errors
    /// As there.
    pub fn split_tablet(
        &self,
        table: &Table,
        at: Option<KeyHash>,
    ) -> Result<TableInfo, ClientError> {
        let table = table.clone();
        call!(self, client => client.split_tablet(&table, at).await)
    }

    /// See [`crate::Client::start_migration`].
    ///
    /// # Errors
    /// As there.
    pub fn start_migration(
        &self,
        table: &Table,
        tablet: WhichTablet,
        to: ServerId,
    ) -> Result<MigrateTabletReply, ClientError> {
        let table = table.clone();
        call!(self, client => client.start_migration(&table, tablet, to).await)
    }

    /// See [`crate::Client::migration`].
    ///
    /// # Errors
    /// As there.
    pub fn migration(
        &self,
        migration: MigrationId,
    ) -> Result<Option<MigrationStatus>, ClientError> {
        call!(self, client => client.migration(migration).await)
    }

    /// See [`crate::Client::cluster_status`].
    ///
    /// # Errors
    /// As there.
    pub fn cluster_status(&self) -> Result<ClusterStatus, ClientError> {
        call!(self, client => client.cluster_status().await)
    }

    /// See [`crate::Client::server_list`].
    ///
    /// # Errors
    /// As there.
    pub fn server_list(&self) -> Result<ServerList, ClientError> {
        call!(self, client => client.server_list().await)
    }

    /// See [`crate::Client::count`].
    ///
    /// # Errors
    /// As there.
    pub fn count(&self, table: &Table) -> Result<CountObjectsReply, ClientError> {
        let table = table.clone();
        call!(self, client => client.count(&table).await)
    }

    /// See [`crate::Client::read`].
    ///
    /// # Errors
    /// As there.
    pub fn read(&self, table: &Table, key: &[u8]) -> Result<Option<Object>, ClientError> {
        self.read_if(table, key, RejectRules::default())
    }

    /// See [`crate::Client::read_if`].
    ///
    /// # Errors
    /// As there.
    pub fn read_if(
        &self,
        table: &Table,
        key: &[u8],
        rules: RejectRules,
    ) -> Result<Option<Object>, ClientError> {
        let get = Get {
            rules,
            ..Get::new(table.id(), key)
        };
        if let Some(outcome) = self.inner.get_mapped_now(table, &get) {
            return object(outcome);
        }
        let (table, key) = (table.clone(), key.to_vec());
        call!(self, client => client.read_if(&table, &key, rules).await)
    }

    /// See [`crate::Client::write`].
    ///
    /// # Errors
    /// As there.
    pub fn write(
        &self,
        table: &Table,
        key: &[u8],
        value: impl Into<Bytes>,
    ) -> Result<WriteReply, ClientError> {
        self.write_if(table, key, value, RejectRules::default())
    }

    /// See [`crate::Client::write_if`].
    ///
    /// # Errors
    /// As there.
    pub fn write_if(
        &self,
        table: &Table,
        key: &[u8],
        value: impl Into<Bytes>,
        rules: RejectRules,
    ) -> Result<WriteReply, ClientError> {
        let (table, key, value) = (table.clone(), key.to_vec(), value.into());
        call!(self, client => client.write_if(&table, &key, value, rules).await)
    }

    /// See [`crate::Client::conditional_write`].
    ///
    /// # Errors
    /// As there.
    pub fn conditional_write(
        &self,
        table: &Table,
        key: &[u8],
        value: impl Into<Bytes>,
        version: ObjectVersion,
    ) -> Result<WriteReply, ClientError> {
        self.write_if(table, key, value, RejectRules::unless_version(version))
    }

    /// See [`crate::Client::delete`].
    ///
    /// # Errors
    /// As there.
    pub fn delete(&self, table: &Table, key: &[u8]) -> Result<DeleteReply, ClientError> {
        self.delete_if(table, key, RejectRules::default())
    }

    /// See [`crate::Client::delete_if`].
    ///
    /// # Errors
    /// As there.
    pub fn delete_if(
        &self,
        table: &Table,
        key: &[u8],
        rules: RejectRules,
    ) -> Result<DeleteReply, ClientError> {
        let (table, key) = (table.clone(), key.to_vec());
        call!(self, client => client.delete_if(&table, &key, rules).await)
    }

    /// See [`crate::Client::increment`].
    ///
    /// # Errors
    /// As there.
    pub fn increment(
        &self,
        table: &Table,
        key: &[u8],
        by: Number,
    ) -> Result<IncrementReply, ClientError> {
        let (table, key) = (table.clone(), key.to_vec());
        call!(self, client => client.increment(&table, &key, by).await)
    }

    /// See [`crate::Client::mutate`].
    ///
    /// # Errors
    /// As there.
    pub fn mutate(&self, table: &Table, mutation: Mutation<'_>) -> Result<Outcome, ClientError> {
        let (table, frame) = (table.clone(), pack(&mutation)?);
        call!(self, client => {
            let mutations = unpack(&frame)?;
            let mutation = mutations.iter().next().expect(PACKED);
            client.mutate(&table, mutation).await
        })
    }

    /// See [`crate::Client::get`].
    ///
    /// # Errors
    /// As there.
    pub fn get(&self, table: &Table, get: Get<'_>) -> Result<Outcome, ClientError> {
        if let Some(outcome) = self.inner.get_mapped_now(table, &get) {
            return Ok(outcome);
        }
        let (table, frame) = (table.clone(), pack_get(&get)?);
        call!(self, client => {
            let gets = unpack_get(&frame)?;
            client.get(&table, gets.iter().next().expect(PACKED)).await
        })
    }

    /// See [`crate::Client::project`].
    ///
    /// # Errors
    /// As there.
    pub fn project(
        &self,
        table: &Table,
        key: &[u8],
        projection: Projection<'_>,
    ) -> Result<Option<Output>, ClientError> {
        let get = Get {
            projection,
            ..Get::new(table.id(), key)
        };
        if let Some(outcome) = self.inner.get_mapped_now(table, &get) {
            return projected(outcome);
        }
        let (table, frame) = (table.clone(), pack_get(&get)?);
        call!(self, client => {
            let gets = unpack_get(&frame)?;
            let get = gets.iter().next().expect(PACKED);
            client.project(&table, get.key, get.projection).await
        })
    }

    /// See [`crate::Client::compare_and_set`].
    ///
    /// # Errors
    /// As there.
    pub fn compare_and_set(
        &self,
        table: &Table,
        key: &[u8],
        expected: &[u8],
        value: impl Into<Bytes>,
    ) -> Result<bool, ClientError> {
        let (table, key) = (table.clone(), key.to_vec());
        let (expected, value) = (expected.to_vec(), value.into());
        call!(self, client => client.compare_and_set(&table, &key, &expected, value).await)
    }

    /// See [`crate::Client::compare_and_delete`].
    ///
    /// # Errors
    /// As there.
    pub fn compare_and_delete(
        &self,
        table: &Table,
        key: &[u8],
        expected: &[u8],
    ) -> Result<bool, ClientError> {
        let (table, key, expected) = (table.clone(), key.to_vec(), expected.to_vec());
        call!(self, client => client.compare_and_delete(&table, &key, &expected).await)
    }

    /// See [`crate::Client::get_and_set`].
    ///
    /// # Errors
    /// As there.
    pub fn get_and_set(
        &self,
        table: &Table,
        key: &[u8],
        value: impl Into<Bytes>,
    ) -> Result<Option<Bytes>, ClientError> {
        let (table, key, value) = (table.clone(), key.to_vec(), value.into());
        call!(self, client => client.get_and_set(&table, &key, value).await)
    }

    /// See [`crate::Client::get_and_delete`].
    ///
    /// # Errors
    /// As there.
    pub fn get_and_delete(&self, table: &Table, key: &[u8]) -> Result<Option<Bytes>, ClientError> {
        let (table, key) = (table.clone(), key.to_vec());
        call!(self, client => client.get_and_delete(&table, &key).await)
    }

    /// See [`crate::Client::add_decimal`].
    ///
    /// # Errors
    /// As there.
    pub fn add_decimal(&self, table: &Table, key: &[u8], by: &str) -> Result<Bytes, ClientError> {
        let (table, key, by) = (table.clone(), key.to_vec(), by.to_owned());
        call!(self, client => client.add_decimal(&table, &key, &by).await)
    }

    /// See [`crate::Client::write_for`].
    ///
    /// # Errors
    /// As there.
    pub fn write_for(
        &self,
        table: &Table,
        key: &[u8],
        value: Bytes,
        lifetime: Lifetime,
    ) -> Result<WriteReply, ClientError> {
        let (table, key) = (table.clone(), key.to_vec());
        call!(self, client => client.write_for(&table, &key, value, lifetime).await)
    }

    /// See [`crate::Client::write_version`].
    ///
    /// # Errors
    /// As there.
    pub fn write_version(
        &self,
        table: &Table,
        key: &[u8],
        value: Bytes,
        version: ObjectVersion,
    ) -> Result<WriteReply, ClientError> {
        let (table, key) = (table.clone(), key.to_vec());
        call!(self, client => client.write_version(&table, &key, value, version).await)
    }

    /// See [`crate::Client::touch`].
    ///
    /// # Errors
    /// As there.
    pub fn touch(
        &self,
        table: &Table,
        key: &[u8],
        lifetime: Lifetime,
        when: TouchIf,
    ) -> Result<bool, ClientError> {
        let (table, key) = (table.clone(), key.to_vec());
        call!(self, client => client.touch(&table, &key, lifetime, when).await)
    }

    /// See [`crate::Client::deadline`].
    ///
    /// # Errors
    /// As there.
    pub fn deadline(
        &self,
        table: &Table,
        key: &[u8],
    ) -> Result<Option<Option<Deadline>>, ClientError> {
        let (table, key) = (table.clone(), key.to_vec());
        call!(self, client => client.deadline(&table, &key).await)
    }

    /// See [`crate::Client::append`].
    ///
    /// # Errors
    /// As there.
    pub fn append(
        &self,
        table: &Table,
        key: &[u8],
        bytes: &[u8],
    ) -> Result<LengthReply, ClientError> {
        let (table, key, bytes) = (table.clone(), key.to_vec(), bytes.to_vec());
        call!(self, client => client.append(&table, &key, &bytes).await)
    }

    /// See [`crate::Client::set_range`].
    ///
    /// # Errors
    /// As there.
    pub fn set_range(
        &self,
        table: &Table,
        key: &[u8],
        offset: u64,
        bytes: &[u8],
    ) -> Result<LengthReply, ClientError> {
        let (table, key, bytes) = (table.clone(), key.to_vec(), bytes.to_vec());
        call!(self, client => client.set_range(&table, &key, offset, &bytes).await)
    }

    /// See [`crate::Client::set_bit`].
    ///
    /// # Errors
    /// As there.
    pub fn set_bit(
        &self,
        table: &Table,
        key: &[u8],
        offset: u64,
        bit: bool,
    ) -> Result<bool, ClientError> {
        let (table, key) = (table.clone(), key.to_vec());
        call!(self, client => client.set_bit(&table, &key, offset, bit).await)
    }

    /// See [`crate::Client::bit_field`].
    ///
    /// # Errors
    /// As there.
    pub fn bit_field(
        &self,
        table: &Table,
        key: &[u8],
        steps: &[BitStep],
    ) -> Result<BitsReply, ClientError> {
        let (table, key, steps) = (table.clone(), key.to_vec(), steps.to_vec());
        call!(self, client => client.bit_field(&table, &key, &steps).await)
    }

    /// See [`crate::Client::multi_read`].
    pub fn multi_read(&self, keys: Vec<Key>) -> Vec<Result<Option<Object>, ClientError>> {
        call!(self, client => {
            let keys: Vec<_> = keys.iter().map(Key::borrow).collect();
            client.multi_read(&keys).await
        })
    }

    /// See [`crate::Client::multi_write`].
    pub fn multi_write(&self, objects: Vec<(Key, Bytes)>) -> Vec<Result<WriteReply, ClientError>> {
        call!(self, client => {
            let objects: Vec<_> = objects.iter().map(|(k, v)| (k.borrow(), v.clone())).collect();
            client.multi_write(&objects).await
        })
    }

    /// See [`crate::Client::multi_delete`].
    pub fn multi_delete(&self, keys: Vec<Key>) -> Vec<Result<DeleteReply, ClientError>> {
        call!(self, client => {
            let keys: Vec<_> = keys.iter().map(Key::borrow).collect();
            client.multi_delete(&keys).await
        })
    }

    /// See [`crate::Client::multi_mutate`].
    pub fn multi_mutate(
        &self,
        mutations: &[(&Table, Mutation<'_>)],
    ) -> Vec<Result<Outcome, ClientError>> {
        let pack = |(table, mutation): &(&Table, _)| Ok(((*table).clone(), pack(mutation)?));
        let packed: Vec<Result<(Table, Frame), ClientError>> = mutations.iter().map(pack).collect();
        call!(self, client => {
            let unpacked: Vec<_> = packed.iter().map(unpack_of_table).collect();
            let sound = unpacked.iter().flatten();
            let sound: Vec<_> = sound
                .map(|(table, one)| (*table, one.iter().next().expect(PACKED)))
                .collect();
            let mut done = client.multi_mutate(&sound).await.into_iter();
            let results = unpacked.iter().map(|one| match one {
                Ok(_) => done.next().expect("one result an item"),
                Err(error) => Err(error.clone()),
            });
            results.collect()
        })
    }

    /// Goes through all objects of a table; see [`crate::Client::enumerate`]. Iterate over the
    /// result; after an error the iteration may go on, and tries the same place again.
    pub fn enumerate(&self, table: &Table) -> Objects<B>
    where
        B: Clone,
    {
        self.objects(self.inner.enumerate(table))
    }

    /// The objects of an [`Enumeration`](crate::Enumeration) that was set up on the asynchronous
    /// client: from a cursor, say, or without values.
    pub fn objects(&self, enumeration: crate::Enumeration) -> Objects<B>
    where
        B: Clone,
    {
        Objects {
            enumeration: Some(enumeration),
            batch: Vec::new().into_iter(),
            runtime: self.runtime.clone(),
        }
    }
}

/// The objects of a table, one after the other.
pub struct Objects<B> {
    enumeration: Option<crate::Enumeration>,
    batch: std::vec::IntoIter<EnumeratedObject>,
    runtime: B,
}

impl<B: BlockOn> Iterator for Objects<B> {
    type Item = Result<EnumeratedObject, ClientError>;

    fn next(&mut self) -> Option<Self::Item> {
        if let Some(object) = self.batch.next() {
            return Some(Ok(object));
        }
        let mut enumeration = self.enumeration.take()?;
        let (enumeration, batch) = self.runtime.block_on(async move {
            let batch = enumeration.next_batch().await;
            (enumeration, batch)
        });
        match batch {
            Ok(Some(batch)) => {
                self.enumeration = Some(enumeration);
                self.batch = batch.into_iter();
                self.batch.next().map(Ok)
            }
            Ok(None) => None,
            Err(error) => {
                self.enumeration = Some(enumeration);
                Some(Err(error))
            }
        }
    }
}
