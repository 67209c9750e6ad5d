//! The values of objects that transactions of several owners have locked, and of those that such a
//! lock left as they were.
//!
//! ```text
//!  prepared:  client u64 · home table varint · home key hash u64 · flags u8 ·
//!             with 1: version varint · deadline varint, 0 for none · length varint · old value ·
//!             with 2: deadline varint, 0 for none · length varint · new value ·
//!             shares: count varint · for each: sequence varint · count varint ·
//!                     for each key: table varint · key hash u64
//!  flags:     1 there was an object · 2 it is to be put · 4 it is to be deleted
//!
//!  restored:  version as clients know it varint · value, up to the end
//! ```

use crate::varint::{Fields, VARINT_MAX, push_varint};
use pluvio_mutation::TRANSACTION_STEPS_MAX;
use pluvio_units::{
    ClientId, Deadline, KeyHash, KeyPlace, ObjectVersion, SequenceNumber, Share, TableId, VALUE_MAX,
};

const HAS_OLD: u8 = 1;
const IS_PUT: u8 = 2;
const IS_DELETE: u8 = 4;

/// Most bytes of shares: a key each at least.
const SHARES_MAX: usize = TRANSACTION_STEPS_MAX * (3 * VARINT_MAX + 8) + VARINT_MAX;
/// Most bytes of the value of a prepared object: two values, and the shares.
pub const PREPARED_MAX: usize = 2 * VALUE_MAX + SHARES_MAX + 128;

/// The value of a prepared object. Its key is locked until the transaction is decided. Then the
/// object becomes what it is to be, or what it was before.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Prepared<'a> {
    /// The client of the transaction, which has this one only.
    pub client: ClientId,
    /// The key with which the decision is kept.
    pub home: KeyPlace,
    /// The object before, if there was one.
    pub old: Option<OldObject<'a>>,
    /// The change that a commit makes.
    pub change: PreparedChange<'a>,
    /// All shares of the transaction; of the home key only, empty for others.
    pub shares: Vec<Share>,
}

/// An object before it was prepared, as clients know it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct OldObject<'a> {
    /// Its version.
    pub version: ObjectVersion,
    /// When it expires, if it does.
    pub deadline: Option<Deadline>,
    /// Its value.
    pub value: &'a [u8],
}

/// The change of an object that waits for a decision.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum PreparedChange<'a> {
    /// Nothing: it was read, or compared.
    Nothing,
    /// It gets this value and this deadline.
    Put(&'a [u8], Option<Deadline>),
    /// It is deleted.
    Delete,
}

impl<'a> Prepared<'a> {
    /// Its bytes.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let old = self.old.as_ref().map_or(0, |old| old.value.len());
        let new = match self.change {
            PreparedChange::Put(value, _) => value.len(),
            PreparedChange::Nothing | PreparedChange::Delete => 0,
        };
        let keys: usize = self.shares.iter().map(|share| share.keys.len() + 1).sum();
        let mut bytes = Vec::with_capacity(64 + old + new + 12 * keys);
        bytes.extend_from_slice(&self.client.0.to_le_bytes());
        push_place(&mut bytes, self.home);
        let change = match self.change {
            PreparedChange::Nothing => 0,
            PreparedChange::Put(..) => IS_PUT,
            PreparedChange::Delete => IS_DELETE,
        };
        bytes.push(change | if self.old.is_some() { HAS_OLD } else { 0 });
        if let Some(old) = &self.old {
            push_varint(&mut bytes, old.version.0);
            push_value(&mut bytes, old.value, old.deadline);
        }
        if let PreparedChange::Put(value, deadline) = self.change {
            push_value(&mut bytes, value, deadline);
        }
        push_varint(&mut bytes, self.shares.len() as u64);
        for share in &self.shares {
            push_varint(&mut bytes, share.sequence.0);
            push_varint(&mut bytes, share.keys.len() as u64);
            for key in &share.keys {
                push_place(&mut bytes, *key);
            }
        }
        bytes
    }

    /// Reads it; `None` when the bytes are none.
    #[must_use]
    pub fn decode(bytes: &'a [u8]) -> Option<Self> {
        let mut fields = Fields::new(bytes);
        let client = ClientId(fields.u64()?);
        let home = take_place(&mut fields)?;
        let flags = fields.u8()?;
        if flags & !(HAS_OLD | IS_PUT | IS_DELETE) != 0 {
            return None;
        }
        let old = match flags & HAS_OLD {
            0 => None,
            _ => {
                let version = ObjectVersion(fields.varint()?);
                let (value, deadline) = take_value(&mut fields)?;
                Some(OldObject {
                    version,
                    deadline,
                    value,
                })
            }
        };
        let change = match flags & (IS_PUT | IS_DELETE) {
            0 => PreparedChange::Nothing,
            IS_PUT => {
                let (value, deadline) = take_value(&mut fields)?;
                PreparedChange::Put(value, deadline)
            }
            IS_DELETE => PreparedChange::Delete,
            _ => return None,
        };
        let shares = take_shares(&mut fields)?;
        fields.end()?;
        (client != ClientId(0)).then_some(Self {
            client,
            home,
            old,
            change,
            shares,
        })
    }

    /// Whose object this is, read without the rest.
    #[must_use]
    pub fn client_of(bytes: &[u8]) -> Option<ClientId> {
        Fields::new(bytes).u64().map(ClientId)
    }
}

fn push_place(bytes: &mut Vec<u8>, (table, hash): KeyPlace) {
    push_varint(bytes, table.0);
    bytes.extend_from_slice(&hash.0.to_le_bytes());
}

fn take_place(fields: &mut Fields<'_>) -> Option<KeyPlace> {
    Some((TableId(fields.varint()?), KeyHash(fields.u64()?)))
}

fn push_value(bytes: &mut Vec<u8>, value: &[u8], deadline: Option<Deadline>) {
    push_varint(bytes, deadline.map_or(0, Deadline::ms));
    push_varint(bytes, value.len() as u64);
    bytes.extend_from_slice(value);
}

fn take_value<'a>(fields: &mut Fields<'a>) -> Option<(&'a [u8], Option<Deadline>)> {
    let deadline = match fields.varint()? {
        0 => None,
        ms => Some(Deadline::new(ms)?),
    };
    let len = usize::try_from(fields.varint()?).ok()?;
    let value = fields.bytes(len)?;
    (value.len() <= VALUE_MAX).then_some((value, deadline))
}

fn take_shares(fields: &mut Fields<'_>) -> Option<Vec<Share>> {
    let count = fields.varint()?;
    let mut left = TRANSACTION_STEPS_MAX;
    let mut shares = Vec::new();
    for _ in 0..count {
        let sequence = SequenceNumber(fields.varint()?);
        let keys = usize::try_from(fields.varint()?).ok()?;
        if keys == 0 {
            return None;
        }
        left = left.checked_sub(keys)?;
        let keys = (0..keys)
            .map(|_| take_place(fields))
            .collect::<Option<_>>()?;
        shares.push(Share { sequence, keys });
    }
    Some(shares)
}

/// The value of a restored object: a lock gave it a later version, and left it as it was.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Restored<'a> {
    /// The version by which clients know it.
    pub version: ObjectVersion,
    /// Its value.
    pub value: &'a [u8],
}

impl<'a> Restored<'a> {
    /// Most bytes before the value.
    pub(crate) const FRONT_MAX: usize = VARINT_MAX;

    /// Its bytes.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(Self::FRONT_MAX + self.value.len());
        push_varint(&mut bytes, self.version.0);
        bytes.extend_from_slice(self.value);
        bytes
    }

    /// Reads it; `None` when the bytes are none.
    #[must_use]
    pub fn decode(bytes: &'a [u8]) -> Option<Self> {
        let mut fields = Fields::new(bytes);
        let version = ObjectVersion(fields.varint()?);
        let value = fields.take_rest();
        (value.len() <= VALUE_MAX).then_some(Self { version, value })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn deadline() -> impl Strategy<Value = Option<Deadline>> {
        proptest::option::of(1..u64::MAX >> 1).prop_map(|ms| ms.and_then(Deadline::new))
    }

    fn place() -> impl Strategy<Value = KeyPlace> {
        any::<(u64, u64)>().prop_map(|(table, hash)| (TableId(table), KeyHash(hash)))
    }

    fn shares() -> impl Strategy<Value = Vec<Share>> {
        let share = (any::<u64>(), proptest::collection::vec(place(), 1..5));
        let share = share.prop_map(|(sequence, keys)| Share {
            sequence: SequenceNumber(sequence),
            keys,
        });
        proptest::collection::vec(share, 0..4)
    }

    proptest! {
        // shows: FORMAT-2
        #[test]
        fn what_is_prepared_comes_back_and_nothing_else_is_read(
            client in 1_u64..,
            home in place(),
            old in proptest::option::of((any::<u64>(), deadline(), any::<Vec<u8>>())),
            change in 0..3,
            new in (any::<Vec<u8>>(), deadline()),
            shares in shares(),
            cut in any::<prop::sample::Index>(),
        ) {
            let prepared = Prepared {
                client: ClientId(client),
                home,
                old: old.as_ref().map(|(version, deadline, value)| OldObject {
                    version: ObjectVersion(*version),
                    deadline: *deadline,
                    value,
                }),
                change: match change {
                    0 => PreparedChange::Nothing,
                    1 => PreparedChange::Put(&new.0, new.1),
                    _ => PreparedChange::Delete,
                },
                shares,
            };
            let mut bytes = prepared.encode();
            prop_assert_eq!(Prepared::decode(&bytes), Some(prepared.clone()));
            prop_assert_eq!(Prepared::client_of(&bytes), Some(ClientId(client)));
            prop_assert_eq!(Prepared::decode(&bytes[..cut.index(bytes.len())]), None);
            bytes.push(0);
            prop_assert_eq!(Prepared::decode(&bytes), None);
        }

        #[test]
        fn wild_bytes_are_read_without_a_panic(bytes in any::<Vec<u8>>()) {
            if let Some(prepared) = Prepared::decode(&bytes) {
                prop_assert_eq!(prepared.encode(), bytes.clone());
            }
            if let Some(restored) = Restored::decode(&bytes) {
                prop_assert_eq!(restored.encode(), bytes);
            }
        }
    }
}
