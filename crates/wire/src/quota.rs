//! Quotas of tables: what a table may hold and how many operations a second it may have
//! (`docs/quotas.md`).

use crate::codec::{Fields, Request};
use crate::control::{TableInfo, TableRef};
use crate::data::request;
use crate::opcode::Opcode;
use core::fmt;
use pluvio_units::TableId;
use serde::{Deserialize, Serialize};

/// The first version of a cluster in which tables may have quotas: earlier programs do not keep
/// them, and do not know the refusals.
pub const QUOTAS_SINCE: u16 = 8;
/// Most bytes of a quota: sums of them stay far from the ends of 64 bits.
pub const QUOTA_BYTES_MAX: u64 = 1 << 60;
/// Most operations a second of a quota.
pub const QUOTA_OPERATIONS_MAX: u64 = 1 << 30;

/// What a table may have at most.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct TableQuota {
    /// Bytes of keys and values.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bytes: Option<u64>,
    /// Operations on objects a second.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub operations: Option<u64>,
}

impl TableQuota {
    /// No quota.
    pub const NONE: Self = Self {
        bytes: None,
        operations: None,
    };

    /// Whether there is none.
    #[must_use]
    pub fn is_none(&self) -> bool {
        *self == Self::NONE
    }

    /// This one after a change.
    ///
    /// # Errors
    /// The change asks for more than a quota may be, for people.
    pub fn with(self, wish: &QuotaWish) -> Result<Self, String> {
        let changed = |was: Option<u64>, wish: Option<u64>| match wish {
            None => was,
            Some(0) => None,
            wish => wish,
        };
        let quota = Self {
            bytes: changed(self.bytes, wish.bytes),
            operations: changed(self.operations, wish.operations),
        };
        if quota.bytes.is_some_and(|bytes| bytes > QUOTA_BYTES_MAX) {
            return Err(format!("a quota has at most {QUOTA_BYTES_MAX} bytes"));
        }
        let operations = quota.operations;
        if operations.is_some_and(|operations| operations > QUOTA_OPERATIONS_MAX) {
            return Err(format!(
                "a quota has at most {QUOTA_OPERATIONS_MAX} operations a second"
            ));
        }
        Ok(quota)
    }
}

impl fmt::Display for TableQuota {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.bytes, self.operations) {
            (None, None) => f.write_str("none"),
            (Some(bytes), None) => write!(f, "{bytes} bytes"),
            (None, Some(operations)) => write!(f, "{operations} operations a second"),
            (Some(bytes), Some(operations)) => {
                write!(f, "{bytes} bytes, {operations} operations a second")
            }
        }
    }
}

/// A change of a quota.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct QuotaWish {
    /// Bytes; 0 lifts the bound. `None`: stays as it is.
    pub bytes: Option<u64>,
    /// Operations a second; 0 lifts the bound. `None`: stays as it is.
    pub operations: Option<u64>,
}

impl QuotaWish {
    /// Whether nothing is to change.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

/// Change the quota of a table. Answered when it is stored; its owners hear of it within about a
/// second. Repeating it does no harm.
///
/// Refused as [`WrongVersion`](crate::FatalKind::WrongVersion) while the cluster speaks a version
/// before [`QUOTAS_SINCE`], and as [`Other`](crate::FatalKind::Other) when the quota is larger than
/// one may be.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct SetTable {
    /// Which.
    pub table: TableRef,
    /// The change.
    pub quota: QuotaWish,
}
impl Fields for SetTable {}
request!(SetTable => TableInfo);

/// How a table uses its quota, as its owners said last.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct QuotaState {
    /// Bytes of keys and values.
    pub bytes: u64,
    /// Operations a second between the two latest looks.
    pub operations: u64,
    /// Writes refused for want of bytes, since its owners have it.
    pub refused_bytes: u64,
    /// Operations refused because there were too many, since its owners have it.
    pub refused_operations: u64,
}

/// Which round of sharing quotas: a leader counts its own, and later leaders have larger terms.
#[derive(
    Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default, Serialize, Deserialize,
)]
pub struct QuotaRound {
    /// The term of the leader.
    pub term: u64,
    /// The number of the message within it.
    pub number: u64,
}

/// Say how you use the quotas of these tables, and take these shares of them. Shares of an earlier
/// round than one that was heard of are ignored (MASTER-7).
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct ShareQuotas {
    /// The number of this message.
    pub round: QuotaRound,
    /// The tables; those that are not here are left out of the answer.
    pub tables: Vec<QuotaShare>,
}
impl Fields for ShareQuotas {}
request!(ShareQuotas => ShareQuotasReply);

/// A table with a quota, and a server's share.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct QuotaShare {
    /// The table.
    pub table: TableId,
    /// The share; `None` only asks.
    pub grant: Option<QuotaGrant>,
}

/// A server's share of a quota.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct QuotaGrant {
    /// Which ownership it is for ([`QuotaUse::instance`]): for another one it is ignored.
    pub instance: u64,
    /// The table's name, for those that are refused.
    pub name: String,
    /// The quota of the whole table.
    pub quota: TableQuota,
    /// The most that [`QuotaUse::grown`] may be after a write; `None`: there is no bound.
    pub grown_max: Option<i64>,
    /// `grown` with all that the table has left. A write beyond it is refused for good. `None`: that
    /// is not known.
    pub grown_full: Option<i64>,
    /// Operations in a thousand seconds; `None`: there is no bound.
    pub operations_milli: Option<u64>,
}

/// The use that a server makes of a table's quota.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct QuotaUse {
    /// The table.
    pub table: TableId,
    /// Changes when the server owns something of the table again after it owned nothing. What
    /// follows is counted since then.
    pub instance: u64,
    /// Bytes of keys and values that are here, also of tablets that come or go.
    pub bytes: u64,
    /// By how much operations have made that grow, less what they made it shrink.
    pub grown: i64,
    /// The bound of `grown`; `None`: there is none.
    pub grown_max: Option<i64>,
    /// The bound of operations in a thousand seconds; `None`: there is none.
    pub operations_milli: Option<u64>,
    /// Operations done.
    pub operations: u64,
    /// The largest growth that was refused since the latest grant.
    pub wanted: u64,
    /// Writes refused for want of bytes.
    pub refused_bytes: u64,
    /// Operations refused because there were too many.
    pub refused_operations: u64,
    /// Whether nothing of the table comes to this server or leaves it.
    pub settled: bool,
}

/// How a server uses quotas.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
pub struct ShareQuotasReply {
    /// The tables of those asked for that are here, after what was to be taken.
    pub uses: Vec<QuotaUse>,
}
impl Fields for ShareQuotasReply {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wish_changes_what_it_names_and_zero_lifts() {
        let both = QuotaWish {
            bytes: Some(1 << 20),
            operations: Some(100),
        };
        let quota = TableQuota::NONE.with(&both).unwrap();
        assert_eq!(quota.to_string(), "1048576 bytes, 100 operations a second");
        let lift = QuotaWish {
            bytes: Some(0),
            operations: None,
        };
        let quota = quota.with(&lift).unwrap();
        assert_eq!((quota.bytes, quota.operations), (None, Some(100)));
        let too_large = QuotaWish {
            bytes: Some(u64::MAX),
            operations: None,
        };
        assert!(quota.with(&too_large).is_err() && QuotaWish::default().is_empty());
    }
}
