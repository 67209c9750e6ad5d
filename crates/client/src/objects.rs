//! Operations on single objects: each is a read or a mutation as a value, and what the caller wants
//! to know of its outcome.

use crate::client::Client;
use crate::error::ClientError;
use crate::request::{OneGet, OneMutation};
use crate::table::Table;
use bytes::Bytes;
use pluvio_units::{Deadline, ObjectVersion, OperationId};
use pluvio_wire::{
    Addend, BitStep, Change, FatalKind, Get, Lifetime, Mutation, Outcome, Output, Projection,
    RejectRules, TouchIf, Unfit, check_get, check_mutation,
};
use std::sync::Arc;

/// An object as it was read.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Object {
    /// Its version.
    pub version: ObjectVersion,
    /// Its value.
    pub value: Bytes,
}

/// What a write did.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct WriteReply {
    /// The object's new version.
    pub version: ObjectVersion,
    /// The version it replaced; 0 when the object is new.
    pub replaced: ObjectVersion,
}

/// What a delete did.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct DeleteReply {
    /// The version that was deleted; 0 when there was no object.
    pub deleted: ObjectVersion,
}

/// A number, as [`Client::increment`] adds it and objects hold it in decimal text.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Number {
    /// A 64-bit integer. Adding checks for overflow.
    Integer(i64),
    /// A decimal number. Sums are exact to 17 digits after the point.
    Float(f64),
}

/// The number after an increment.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct IncrementReply {
    /// The object's new version.
    pub version: ObjectVersion,
    /// The new number.
    pub value: Number,
}

/// The result of a change of a part of a value.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LengthReply {
    /// The object's version now.
    pub version: ObjectVersion,
    /// Bytes of its value now.
    pub length: u64,
}

/// The result of steps on bits.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct BitsReply {
    /// The object's version now.
    pub version: ObjectVersion,
    /// A number for each step; `None` where it did not fit.
    pub values: Arc<[Option<i64>]>,
}

impl Client {
    /// Applies a mutation: any change under any conditions, in one round trip, exactly once. That
    /// conditions did not hold, or that the value does not allow the change, is an outcome and no
    /// error. Table, hash and identity of `mutation` are set here.
    ///
    /// # Errors
    /// See [`Client`].
    pub async fn mutate(
        &self,
        table: &Table,
        mutation: Mutation<'_>,
    ) -> Result<Outcome, ClientError> {
        check_mutation(&mutation).map_err(ClientError::from_final)?;
        let hash = table.hash(mutation.key);
        let mutation = Mutation {
            id: OperationId::default(),
            table: table.id(),
            hash: Some(hash),
            ..mutation
        };
        self.on_hash(table, hash, &OneMutation(mutation)).await
    }

    /// Reads what `get` wants of an object; table and hash are set here. The outcome is
    /// [`Outcome::Unchanged`], with version 0 when there is no object, or [`Outcome::Rejected`].
    ///
    /// # Errors
    /// See [`Client`].
    pub async fn get(&self, table: &Table, get: Get<'_>) -> Result<Outcome, ClientError> {
        check_get(&get).map_err(ClientError::from_final)?;
        let hash = table.hash(get.key);
        let get = Get {
            table: table.id(),
            hash: Some(hash),
            ..get
        };
        if let Some(outcome) = self.get_mapped(table, hash, &get) {
            return Ok(outcome);
        }
        self.on_hash(table, hash, &OneGet(get)).await
    }

    /// The outcome of a read, if memory of its server is mapped and tells it: without waiting.
    pub(crate) fn get_mapped_now(&self, table: &Table, get: &Get<'_>) -> Option<Outcome> {
        check_get(get).ok()?;
        self.get_mapped(table, table.hash(get.key), get)
    }

    /// [`Client::mutate`] without conditions on the value, as an error when rules reject it.
    async fn change(
        &self,
        table: &Table,
        key: &[u8],
        rules: RejectRules,
        change: Change<'_>,
    ) -> Result<Outcome, ClientError> {
        let mutation = Mutation {
            rules,
            ..Mutation::new(table.id(), key, change)
        };
        done(&change, self.mutate(table, mutation).await?)
    }

    /// Reads an object; `None` when there is none.
    ///
    /// # Errors
    /// See [`Client`].
    pub async fn read(&self, table: &Table, key: &[u8]) -> Result<Option<Object>, ClientError> {
        self.read_if(table, key, RejectRules::NONE).await
    }

    /// Reads an object unless `rules` reject it; `None` when there is none.
    ///
    /// # Errors
    /// See [`Client`].
    pub async fn read_if(
        &self,
        table: &Table,
        key: &[u8],
        rules: RejectRules,
    ) -> Result<Option<Object>, ClientError> {
        let get = Get {
            rules,
            ..Get::new(table.id(), key)
        };
        object(self.get(table, get).await?)
    }

    /// Reads a part of a value, or what can be computed from it: see [`Projection`]. `None` when
    /// there is no object.
    ///
    /// # Errors
    /// See [`Client`].
    pub async fn project(
        &self,
        table: &Table,
        key: &[u8],
        projection: Projection<'_>,
    ) -> Result<Option<Output>, ClientError> {
        let get = Get {
            projection,
            ..Get::new(table.id(), key)
        };
        projected(self.get(table, get).await?)
    }

    /// Writes an object.
    ///
    /// # Errors
    /// See [`Client`].
    pub async fn write(
        &self,
        table: &Table,
        key: &[u8],
        value: Bytes,
    ) -> Result<WriteReply, ClientError> {
        self.write_if(table, key, value, RejectRules::NONE).await
    }

    /// Writes an object that expires. The deadline is judged by the clock of the object's owner.
    ///
    /// # Errors
    /// See [`Client`].
    pub async fn write_for(
        &self,
        table: &Table,
        key: &[u8],
        value: Bytes,
        lifetime: Lifetime,
    ) -> Result<WriteReply, ClientError> {
        let change = Change::Put((&value).into());
        let put = Mutation {
            lifetime,
            ..Mutation::new(table.id(), key, change)
        };
        written(done(&change, self.mutate(table, put).await?)?)
    }

    /// Writes an object that is to have the version that it had elsewhere, 1 to
    /// [`PUT_VERSION_MAX`](crate::PUT_VERSION_MAX). It gets a higher one where [`Self::write`]
    /// would give that.
    ///
    /// # Errors
    /// See [`Client`].
    pub async fn write_version(
        &self,
        table: &Table,
        key: &[u8],
        value: Bytes,
        version: ObjectVersion,
    ) -> Result<WriteReply, ClientError> {
        let value = (&value).into();
        let change = Change::PutVersion { value, version };
        written(self.change(table, key, RejectRules::NONE, change).await?)
    }

    /// Gives an object another lifetime, if its deadline fulfils the condition; gives whether it
    /// got it. One that is over at once deletes the object.
    ///
    /// # Errors
    /// See [`Client`].
    pub async fn touch(
        &self,
        table: &Table,
        key: &[u8],
        lifetime: Lifetime,
        when: TouchIf,
    ) -> Result<bool, ClientError> {
        let change = Change::Touch(when);
        let touch = Mutation {
            lifetime,
            ..Mutation::new(table.id(), key, change)
        };
        match done(&change, self.mutate(table, touch).await?)? {
            Outcome::Written { .. } | Outcome::Deleted { .. } => Ok(true),
            Outcome::Unchanged { .. } => Ok(false),
            other => Err(misunderstood(&other)),
        }
    }

    /// The deadline of an object; `None` when there is no object, `Some(None)` when it does not
    /// expire.
    ///
    /// # Errors
    /// See [`Client`].
    pub async fn deadline(
        &self,
        table: &Table,
        key: &[u8],
    ) -> Result<Option<Option<Deadline>>, ClientError> {
        match self.project(table, key, Projection::Deadline).await? {
            Some(Output::Integer(ms)) => Ok(Some(u64::try_from(ms).ok().and_then(Deadline::new))),
            Some(_) | None => Ok(None),
        }
    }

    /// Writes an object if it has exactly this version; version 0 means that it does not exist.
    ///
    /// # Errors
    /// See [`Client`].
    pub async fn conditional_write(
        &self,
        table: &Table,
        key: &[u8],
        value: Bytes,
        version: ObjectVersion,
    ) -> Result<WriteReply, ClientError> {
        self.write_if(table, key, value, RejectRules::unless_version(version))
            .await
    }

    /// Writes an object unless `rules` reject it.
    ///
    /// # Errors
    /// See [`Client`].
    pub async fn write_if(
        &self,
        table: &Table,
        key: &[u8],
        value: Bytes,
        rules: RejectRules,
    ) -> Result<WriteReply, ClientError> {
        let put = Change::Put((&value).into());
        written(self.change(table, key, rules, put).await?)
    }

    /// Writes an object if its value is exactly `expected`; gives whether it was.
    ///
    /// # Errors
    /// See [`Client`].
    pub async fn compare_and_set(
        &self,
        table: &Table,
        key: &[u8],
        expected: &[u8],
        value: Bytes,
    ) -> Result<bool, ClientError> {
        let put = Mutation {
            value_is: Some(expected),
            ..Mutation::new(table.id(), key, Change::Put((&value).into()))
        };
        went_ahead(self.mutate(table, put).await?)
    }

    /// Deletes an object if its value is exactly `expected`; gives whether it was.
    ///
    /// # Errors
    /// See [`Client`].
    pub async fn compare_and_delete(
        &self,
        table: &Table,
        key: &[u8],
        expected: &[u8],
    ) -> Result<bool, ClientError> {
        let delete = Mutation {
            value_is: Some(expected),
            ..Mutation::new(table.id(), key, Change::Delete)
        };
        went_ahead(self.mutate(table, delete).await?)
    }

    /// Writes an object and gives the value that it replaced.
    ///
    /// # Errors
    /// See [`Client`].
    pub async fn get_and_set(
        &self,
        table: &Table,
        key: &[u8],
        value: Bytes,
    ) -> Result<Option<Bytes>, ClientError> {
        let put = Mutation {
            returns_old: true,
            ..Mutation::new(table.id(), key, Change::Put((&value).into()))
        };
        old_value(self.mutate(table, put).await?)
    }

    /// Deletes an object and gives the value that it had.
    ///
    /// # Errors
    /// See [`Client`].
    pub async fn get_and_delete(
        &self,
        table: &Table,
        key: &[u8],
    ) -> Result<Option<Bytes>, ClientError> {
        let delete = Mutation {
            returns_old: true,
            ..Mutation::new(table.id(), key, Change::Delete)
        };
        old_value(self.mutate(table, delete).await?)
    }

    /// Deletes an object; deleting what does not exist is no error.
    ///
    /// # Errors
    /// See [`Client`].
    pub async fn delete(&self, table: &Table, key: &[u8]) -> Result<DeleteReply, ClientError> {
        self.delete_if(table, key, RejectRules::NONE).await
    }

    /// Deletes an object unless `rules` reject it.
    ///
    /// # Errors
    /// See [`Client`].
    pub async fn delete_if(
        &self,
        table: &Table,
        key: &[u8],
        rules: RejectRules,
    ) -> Result<DeleteReply, ClientError> {
        deleted(self.change(table, key, rules, Change::Delete).await?)
    }

    /// Adds to the number an object holds as decimal text; a missing object counts as 0.
    ///
    /// # Errors
    /// See [`Client`], and [`ErrorKind::BadNumber`](crate::ErrorKind::BadNumber) when the object is
    /// no such number or the result does not fit.
    pub async fn increment(
        &self,
        table: &Table,
        key: &[u8],
        by: Number,
    ) -> Result<IncrementReply, ClientError> {
        self.increment_if(table, key, by, RejectRules::NONE).await
    }

    /// [`Client::increment`] unless `rules` reject it.
    ///
    /// # Errors
    /// See [`Client::increment`].
    pub async fn increment_if(
        &self,
        table: &Table,
        key: &[u8],
        by: Number,
        rules: RejectRules,
    ) -> Result<IncrementReply, ClientError> {
        let text;
        let by = match by {
            Number::Integer(by) => Addend::Integer(by),
            Number::Float(by) => {
                text = by.to_string();
                Addend::Decimal(&text)
            }
        };
        sum(self.change(table, key, rules, Change::Add(by)).await?)
    }

    /// Adds a decimal number, given as text, to the one that an object holds; gives the sum as
    /// text. It is exact to 17 digits after the point.
    ///
    /// # Errors
    /// See [`Client::increment`].
    pub async fn add_decimal(
        &self,
        table: &Table,
        key: &[u8],
        by: &str,
    ) -> Result<Bytes, ClientError> {
        let add = Change::Add(Addend::Decimal(by));
        let outcome = self.change(table, key, RejectRules::NONE, add).await?;
        match outcome {
            Outcome::Written {
                output: Output::Bytes(sum),
                ..
            } => Ok(sum),
            other => Err(misunderstood(&other)),
        }
    }

    /// Puts bytes behind a value; a missing object counts as empty.
    ///
    /// # Errors
    /// See [`Client`], and [`ErrorKind::BadArgument`](crate::ErrorKind::BadArgument) when the value
    /// would be too long.
    pub async fn append(
        &self,
        table: &Table,
        key: &[u8],
        bytes: &[u8],
    ) -> Result<LengthReply, ClientError> {
        let append = Change::Append(bytes.into());
        length(self.change(table, key, RejectRules::NONE, append).await?)
    }

    /// Replaces the bytes of a value from `offset` on, behind zeros where it is shorter; a missing
    /// object counts as empty. An empty `bytes` leaves the value as it is.
    ///
    /// # Errors
    /// As of [`Client::append`].
    pub async fn set_range(
        &self,
        table: &Table,
        key: &[u8],
        offset: u64,
        bytes: &[u8],
    ) -> Result<LengthReply, ClientError> {
        let bytes = bytes.into();
        let change = Change::SetRange { offset, bytes };
        length(self.change(table, key, RejectRules::NONE, change).await?)
    }

    /// Sets a bit, behind zeros where the value is shorter; gives what it was.
    ///
    /// # Errors
    /// As of [`Client::append`].
    pub async fn set_bit(
        &self,
        table: &Table,
        key: &[u8],
        offset: u64,
        bit: bool,
    ) -> Result<bool, ClientError> {
        let steps = [BitStep::set_bit(offset, bit)];
        let reply = self.bit_field(table, key, &steps).await?;
        Ok(reply.values.first() == Some(&Some(1)))
    }

    /// Reads, sets and adds to fields of bits, in the order of the steps.
    ///
    /// # Errors
    /// As of [`Client::append`]; [`ErrorKind::Refused`](crate::ErrorKind::Refused) for a field that
    /// cannot be.
    pub async fn bit_field(
        &self,
        table: &Table,
        key: &[u8],
        steps: &[BitStep],
    ) -> Result<BitsReply, ClientError> {
        let change = Change::Bits(steps);
        let outcome = self.change(table, key, RejectRules::NONE, change).await?;
        match outcome {
            Outcome::Written {
                version,
                output: Output::Integers(values),
                ..
            }
            | Outcome::Unchanged {
                version,
                output: Output::Integers(values),
            } => Ok(BitsReply { version, values }),
            other => Err(misunderstood(&other)),
        }
    }
}

/// An outcome of a mutation that is an error when it changed nothing for a reason.
fn done(change: &Change<'_>, outcome: Outcome) -> Result<Outcome, ClientError> {
    match outcome {
        Outcome::Rejected { version, .. } => Err(ClientError::Rejected { version }),
        Outcome::Refused(unfit) => Err(unfit_error(change, unfit)),
        other => Ok(other),
    }
}

/// Why a value does not allow a change.
pub(crate) fn unfit_error(change: &Change<'_>, unfit: Unfit) -> ClientError {
    let decimal = matches!(change, Change::Add(Addend::Decimal(_)));
    let (kind, message) = match (unfit, decimal) {
        (Unfit::NotANumber, false) => (
            FatalKind::NotANumber,
            "value is not an integer or out of range",
        ),
        (Unfit::NotANumber, true) => (FatalKind::NotANumber, "value is not a valid float"),
        (Unfit::Overflow, false) => (FatalKind::Overflow, "increment or decrement would overflow"),
        (Unfit::Overflow, true) => (
            FatalKind::Overflow,
            "increment would produce NaN or Infinity",
        ),
        (Unfit::TooLong, _) => (
            FatalKind::ValueTooLong,
            "the value would be longer than is allowed: split it into several objects",
        ),
    };
    ClientError::Refused {
        kind,
        message: message.into(),
    }
}

/// What the caller of a read gets.
pub(crate) fn object(outcome: Outcome) -> Result<Option<Object>, ClientError> {
    match outcome {
        Outcome::Unchanged {
            version: ObjectVersion(0),
            ..
        } => Ok(None),
        Outcome::Unchanged { version, output } => Ok(Some(Object {
            version,
            value: match output {
                Output::Bytes(value) => value,
                Output::Nothing | Output::Integer(_) | Output::Integers(_) => Bytes::new(),
            },
        })),
        Outcome::Rejected { version, .. } => Err(ClientError::Rejected { version }),
        other => Err(misunderstood(&other)),
    }
}

/// What the caller of a projection gets.
pub(crate) fn projected(outcome: Outcome) -> Result<Option<Output>, ClientError> {
    match outcome {
        Outcome::Unchanged { version, output } => {
            Ok((version != ObjectVersion(0)).then_some(output))
        }
        other => Err(misunderstood(&other)),
    }
}

/// What the caller of a write gets.
pub(crate) fn written(outcome: Outcome) -> Result<WriteReply, ClientError> {
    match outcome {
        Outcome::Written {
            version, replaced, ..
        } => Ok(WriteReply { version, replaced }),
        Outcome::Rejected { version, .. } => Err(ClientError::Rejected { version }),
        other => Err(misunderstood(&other)),
    }
}

/// What the caller of a delete gets.
pub(crate) fn deleted(outcome: Outcome) -> Result<DeleteReply, ClientError> {
    match outcome {
        Outcome::Deleted { version, .. } => Ok(DeleteReply { deleted: version }),
        Outcome::Rejected { version, .. } => Err(ClientError::Rejected { version }),
        other => Err(misunderstood(&other)),
    }
}

fn sum(outcome: Outcome) -> Result<IncrementReply, ClientError> {
    let (version, output) = match outcome {
        Outcome::Written {
            version, output, ..
        } => (version, output),
        other => return Err(misunderstood(&other)),
    };
    let value = match &output {
        Output::Integer(sum) => Some(Number::Integer(*sum)),
        Output::Bytes(text) => core::str::from_utf8(text)
            .ok()
            .and_then(|text| text.parse().ok())
            .map(Number::Float),
        Output::Nothing | Output::Integers(_) => None,
    };
    let value = value
        .ok_or_else(|| ClientError::Protocol(format!("a sum that is no number: {output:?}")))?;
    Ok(IncrementReply { version, value })
}

fn length(outcome: Outcome) -> Result<LengthReply, ClientError> {
    match outcome {
        Outcome::Written {
            version,
            output: Output::Integer(length),
            ..
        }
        | Outcome::Unchanged {
            version,
            output: Output::Integer(length),
        } => Ok(LengthReply {
            version,
            length: length.unsigned_abs(),
        }),
        other => Err(misunderstood(&other)),
    }
}

fn went_ahead(outcome: Outcome) -> Result<bool, ClientError> {
    match outcome {
        Outcome::Written { .. } | Outcome::Deleted { .. } => Ok(true),
        Outcome::Rejected { .. } => Ok(false),
        other @ (Outcome::Unchanged { .. } | Outcome::Refused(_) | Outcome::Together { .. }) => {
            Err(misunderstood(&other))
        }
    }
}

fn old_value(outcome: Outcome) -> Result<Option<Bytes>, ClientError> {
    match outcome {
        Outcome::Written {
            output: Output::Bytes(value),
            ..
        }
        | Outcome::Deleted {
            output: Output::Bytes(value),
            ..
        } => Ok(Some(value)),
        Outcome::Written {
            output: Output::Nothing,
            ..
        }
        | Outcome::Deleted {
            output: Output::Nothing,
            ..
        } => Ok(None),
        other => Err(misunderstood(&other)),
    }
}

/// An outcome that the operation cannot have.
fn misunderstood(outcome: &Outcome) -> ClientError {
    ClientError::Protocol(format!(
        "the server answered something else than was asked: {outcome:?}"
    ))
}
