//! How much a transaction makes its tables grow.

use crate::engine::EngineError;
use crate::engine::apply::{Target, bytes_of, growth_of};
use crate::table::EngineTable;
use pluvio_mutation::{Draft, DraftChange};

/// Whether the tables may become as large as the drafts would make them (QUOTA-2). A lock holds
/// more, and that does not count: a transaction of deletions is always done.
///
/// # Errors
/// One of them may not.
pub(super) fn may_grow(
    drafts: &[Draft<'_, '_>],
    targets: &[Target<'_>],
) -> Result<(), EngineError> {
    let mut growth: Vec<(&EngineTable, i64)> = Vec::new();
    for (draft, target) in drafts.iter().zip(targets) {
        let by = match draft.change() {
            DraftChange::Nothing => continue,
            DraftChange::Put(value, _) => growth_of(target, value.len()),
            DraftChange::Delete => -bytes_of(target.replaced().map_or(0, |old| old.object_bytes)),
        };
        let is_of = |of: &&mut (&EngineTable, i64)| of.0.id() == target.table.id();
        match growth.iter_mut().find(is_of) {
            Some((_, sum)) => *sum += by,
            None => growth.push((target.table, by)),
        }
    }
    let mut growth = growth.into_iter();
    growth.try_for_each(|(table, by)| table.may_grow(by).map_err(EngineError::Quota))
}
