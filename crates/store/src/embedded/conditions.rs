//! Writes of an embedded store under conditions, and with a lifetime.

use crate::embedded::error::StoreError;
use crate::embedded::table::Table;
use pluvio_mutation::{Change, Lifetime, Mutation, Outcome, RejectRules};
use pluvio_units::ObjectVersion;

/// Under which conditions [`Table::put_with`] stores a value, and for how long.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PutOptions {
    /// What refuses it. Default: nothing.
    pub rules: RejectRules,
    /// How long the object lives. Default: for ever.
    pub lifetime: Lifetime,
}

impl Default for PutOptions {
    fn default() -> Self {
        Self {
            rules: RejectRules::NONE,
            lifetime: Lifetime::Endless,
        }
    }
}

impl From<RejectRules> for PutOptions {
    fn from(rules: RejectRules) -> Self {
        Self {
            rules,
            ..Self::default()
        }
    }
}

impl From<Lifetime> for PutOptions {
    fn from(lifetime: Lifetime) -> Self {
        Self {
            lifetime,
            ..Self::default()
        }
    }
}

impl Table {
    /// [`Table::put_if`] and [`Table::put_for`] in one: conditions and lifetime.
    ///
    /// ```
    /// # use pluvio_store::{Lifetime, PutOptions, RejectRules, Size, Store};
    /// let store = Store::builder().memory(Size::mib(64)).build()?;
    /// let locks = store.create_table("locks")?;
    /// let options = PutOptions {
    ///     rules: RejectRules::EXISTS,
    ///     lifetime: Lifetime::For(30_000),
    /// };
    /// locks.put_with(b"job 7", b"Zoe", options)?;
    /// assert!(locks.put_with(b"job 7", b"Tom", options).is_err());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`StoreError::Condition`], [`StoreError::NoDeadlines`], or as [`Table::put`]; nothing
    /// changed.
    pub fn put_with(
        &self,
        key: &[u8],
        value: &[u8],
        options: PutOptions,
    ) -> Result<ObjectVersion, StoreError> {
        self.check(key, value)?;
        self.check_lifetime(options.lifetime)?;
        let put = Mutation {
            rules: options.rules,
            lifetime: options.lifetime,
            ..Mutation::new(self.table.id(), key, Change::Put(value.into()))
        };
        let applied = self.apply(self.table.hash(key), &put)?;
        match applied.pending().outcome() {
            Outcome::Written { version, .. } => Ok(*version),
            Outcome::Rejected { version, .. } => Err(not_fulfilled(*version)),
            other => unreachable!("a put writes or is rejected: {other:?}"),
        }
    }

    /// Removes the object unless the rules reject it; says whether there was one.
    ///
    /// ```
    /// # use pluvio_store::{RejectRules, Size, Store};
    /// let store = Store::builder().memory(Size::mib(64)).build()?;
    /// let towns = store.create_table("towns")?;
    /// let first = towns.put(b"Bern", b"134794")?;
    /// let second = towns.put(b"Bern", b"137000")?;
    /// assert!(towns.delete_if(b"Bern", RejectRules::unless_version(first)).is_err());
    /// assert!(towns.delete_if(b"Bern", RejectRules::unless_version(second))?);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`StoreError::Condition`], or as [`Table::delete`]; nothing changed.
    pub fn delete_if(&self, key: &[u8], rules: RejectRules) -> Result<bool, StoreError> {
        self.check(key, &[])?;
        let delete = Mutation {
            rules,
            ..Mutation::new(self.table.id(), key, Change::Delete)
        };
        let applied = self.apply(self.table.hash(key), &delete)?;
        let deleted = match applied.pending().outcome() {
            Outcome::Deleted { version, .. } => *version > ObjectVersion(0),
            Outcome::Rejected { version, .. } => return Err(not_fulfilled(*version)),
            other => unreachable!("a delete deletes or is rejected: {other:?}"),
        };
        if deleted {
            self.keep_deletion(applied);
        }
        Ok(deleted)
    }
}

/// The object has this version; 0 where there is none.
fn not_fulfilled(version: ObjectVersion) -> StoreError {
    StoreError::Condition {
        found: (version > ObjectVersion(0)).then_some(version),
    }
}
