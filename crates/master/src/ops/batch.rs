//! Several operations in one request. Each item succeeds or fails by itself; all of them are
//! started before the first is waited for, so that they share their replication.

use crate::master::Master;
use bytes::Bytes;
use futures_util::future::join_all;
use pluvio_units::{LogId, OperationId, SequenceNumber};
use pluvio_wire::{
    Answer, Delete, Header, MULTI_BYTES_MAX, MULTI_ITEMS_MAX, MultiDelete, MultiDeleteReply,
    MultiRead, MultiReadReply, MultiWrite, MultiWriteReply, Read, Refusal, RetryReason, Write,
};
use std::sync::Arc;
use std::time::Duration;

/// When to ask again for items that did not fit a reply.
const REST_OF_BATCH: Duration = Duration::from_micros(0);

impl Master {
    /// Reads several objects.
    pub fn multi_read(
        self: &Arc<Self>,
        header: &Header,
        request: MultiRead,
    ) -> Answer<MultiReadReply> {
        if let Err(refusal) = check_items(request.items.len()) {
            return Answer::Now(Err(refusal));
        }
        let mut size = 0;
        let mut answers = Vec::with_capacity(request.items.len());
        for item in request.items {
            if size >= MULTI_BYTES_MAX {
                answers.push(Answer::Now(Err(Refusal::retry(
                    REST_OF_BATCH,
                    RetryReason::Busy,
                ))));
                continue;
            }
            let read = Read {
                table: item.table,
                key: item.key,
                rules: item.rules,
            };
            let (answer, bytes) = self.read_sized(header, &read);
            size += bytes;
            answers.push(answer);
        }
        gather(answers, MultiReadReply::new)
    }

    /// Writes several objects.
    pub fn multi_write(
        self: &Arc<Self>,
        log: LogId,
        header: &Header,
        request: MultiWrite,
    ) -> Answer<MultiWriteReply> {
        if let Err(refusal) = check_items(request.items.len()) {
            return Answer::Now(Err(refusal));
        }
        let objects = request.items.into_iter().zip(request.values);
        let answers = objects.map(|(item, value): (_, Bytes)| {
            let write = Write {
                table: item.table,
                key: item.key,
                rules: item.rules,
                value,
            };
            self.write(log, &of_item(header, item.sequence), &write)
        });
        gather(answers.collect(), |items| MultiWriteReply { items })
    }

    /// Deletes several objects.
    pub fn multi_delete(
        self: &Arc<Self>,
        log: LogId,
        header: &Header,
        request: MultiDelete,
    ) -> Answer<MultiDeleteReply> {
        if let Err(refusal) = check_items(request.items.len()) {
            return Answer::Now(Err(refusal));
        }
        let answers = request.items.into_iter().map(|item| {
            let delete = Delete {
                table: item.table,
                key: item.key,
                rules: item.rules,
            };
            self.delete(log, &of_item(header, item.sequence), &delete)
        });
        gather(answers.collect(), |items| MultiDeleteReply { items })
    }
}

/// Each item of a batch is an operation of its own.
fn of_item(header: &Header, sequence: SequenceNumber) -> Header {
    let operation = OperationId {
        sequence,
        ..header.operation
    };
    Header {
        operation,
        ..*header
    }
}

fn check_items(items: usize) -> Result<(), Refusal> {
    if items > MULTI_ITEMS_MAX {
        return Err(Refusal::malformed(format!(
            "a batch of {items} items is over the limit of {MULTI_ITEMS_MAX}"
        )));
    }
    Ok(())
}

/// One answer from many: at once if all are there, else when the last one comes.
fn gather<T: Send + 'static, R: Send + 'static>(
    answers: Vec<Answer<T>>,
    reply: impl FnOnce(Vec<Result<T, Refusal>>) -> R + Send + 'static,
) -> Answer<R> {
    if answers.iter().all(|a| matches!(a, Answer::Now(_))) {
        let results = answers.into_iter().filter_map(|a| match a {
            Answer::Now(result) => Some(result),
            Answer::Later(_) => None,
        });
        return Answer::Now(Ok(reply(results.collect())));
    }
    Answer::Later(Box::pin(async move {
        Ok(reply(join_all(answers.into_iter().map(Answer::wait)).await))
    }))
}
