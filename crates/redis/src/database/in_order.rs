//! Operations of a pipeline that are done one after the other, with one message to each owner.

use super::{DatabaseId, Databases, of_nothing};
use crate::reply::Failure;
use pluvio_client::{Get, Mutation, Operation, Outcome};
use pluvio_mutation::{Now, look};

/// Operations to be done in their order: all are reads, or all are changes, as in a message to an
/// owner.
#[derive(Debug)]
pub(crate) enum InOrder<'a> {
    Gets(Vec<Get<'a>>),
    Changes(Vec<Mutation<'a>>),
}

impl<'a> InOrder<'a> {
    /// Of operations of one kind; `None` of both kinds.
    pub(crate) fn of(operations: impl ExactSizeIterator<Item = Operation<'a>>) -> Option<Self> {
        let count = operations.len();
        let (mut gets, mut changes) = (Vec::new(), Vec::new());
        for operation in operations {
            match operation {
                Operation::Get(get) => gets.push(get),
                Operation::Mutate(mutation) => changes.push(mutation),
            }
        }
        match (gets.len() == count, changes.len() == count) {
            (true, _) => Some(Self::Gets(gets)),
            (false, true) => Some(Self::Changes(changes)),
            (false, false) => None,
        }
    }

    fn len(&self) -> usize {
        match self {
            Self::Gets(gets) => gets.len(),
            Self::Changes(changes) => changes.len(),
        }
    }

    /// The outcomes from one on where there are no objects, unless one makes an object.
    fn without_objects(&self, from: usize) -> Option<Vec<Outcome>> {
        match self {
            Self::Gets(gets) => {
                let outcomes = gets[from..]
                    .iter()
                    .map(|get| look(get, None, Now::default()));
                Some(outcomes.collect())
            }
            Self::Changes(changes) => changes[from..].iter().map(of_nothing).collect(),
        }
    }
}

impl Databases {
    /// Reads or changes keys one after the other. The outcomes of the first of them, and why the
    /// next could not be done, if one could not.
    pub(crate) async fn in_order(
        &self,
        database: DatabaseId,
        requests: &InOrder<'_>,
    ) -> (Vec<Outcome>, Option<Failure>) {
        let mut tries = self.tries(database);
        let mut done = Vec::new();
        while done.len() < requests.len() {
            let from = done.len();
            let table = match tries.table_or(|| requests.without_objects(from)).await {
                Ok(Ok(table)) => table,
                Ok(Err(outcomes)) => {
                    done.extend(outcomes);
                    break;
                }
                Err(failure) => return (done, Some(failure)),
            };
            let ended = match requests {
                InOrder::Gets(gets) => {
                    let rest = gets[from..].iter().map(|get| (&*table, *get));
                    self.client.get_in_order(&rest.collect::<Vec<_>>()).await
                }
                InOrder::Changes(changes) => {
                    let rest = changes[from..].iter().map(|change| (&*table, *change));
                    let rest: Vec<_> = rest.collect();
                    self.client.mutate_in_order_early(&rest).await
                }
            };
            match ended {
                Ok(outcomes) => done.extend(outcomes),
                Err(stopped) => {
                    done.extend(stopped.done);
                    if let Err(failure) = tries.again(&table, &stopped.error).await {
                        return (done, Some(failure));
                    }
                }
            }
        }
        (done, None)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::database::{mutation, reading};
    use pluvio_client::{Change, Projection};

    #[test]
    fn reads_and_changes_make_no_list_together() {
        let get = Operation::Get(reading(b"a", Projection::Value));
        let change = Operation::Mutate(mutation(b"b", Change::Delete));
        let of = |list: &[Operation<'static>]| InOrder::of(list.iter().copied());
        assert!(matches!(of(&[get, get]), Some(InOrder::Gets(gets)) if gets.len() == 2));
        assert!(matches!(of(&[change]), Some(InOrder::Changes(changes)) if changes.len() == 1));
        assert!(of(&[get, change]).is_none());
    }
}
