//! Grouped syncing: many writes share one round of `fdatasync`.
//!
//! One round runs at a time. A caller that comes during a round waits for the next one, together
//! with all others. So the number of syncs grows with the device's speed and not with the number of
//! writers. A round syncs each file once, all of them side by side, and the directory once if any
//! of the files is new.

use crate::stats::{Counters, count};
use futures_util::future::join_all;
use pluvio_env::{DiskError, Env, File};
use pluvio_units::CoreId;
use std::sync::{Arc, Mutex, PoisonError};
use tokio::sync::oneshot;

/// Most files of one round. Bounds how long a round takes, and the threads it occupies.
const ROUND_FILES_MAX: usize = 64;

pub(crate) struct Syncer {
    env: Env,
    directory: &'static str,
    counters: Arc<Counters>,
    queue: Mutex<Queue>,
}

#[derive(Default)]
struct Queue {
    waiting: Vec<Ticket>,
    running: bool,
}

struct Ticket {
    file: Arc<dyn File>,
    directory: bool,
    done: oneshot::Sender<Result<(), DiskError>>,
}

impl Syncer {
    pub(crate) fn new(env: Env, directory: &'static str, counters: Arc<Counters>) -> Arc<Self> {
        Arc::new(Self {
            env,
            directory,
            counters,
            queue: Mutex::default(),
        })
    }

    /// Makes all that was written to `file` before survive a power loss; with `directory` also
    /// its name.
    ///
    /// # Errors
    /// The device refuses. The bytes count as lost for good: a later sync that succeeds says
    /// nothing about them.
    pub(crate) async fn sync(
        self: &Arc<Self>,
        file: Arc<dyn File>,
        directory: bool,
    ) -> Result<(), DiskError> {
        let (done, wait) = oneshot::channel();
        let start = {
            let mut queue = self.queue.lock().unwrap_or_else(PoisonError::into_inner);
            queue.waiting.push(Ticket {
                file,
                directory,
                done,
            });
            !std::mem::replace(&mut queue.running, true)
        };
        if start {
            let me = Arc::clone(self);
            self.env
                .tasks
                .spawn(CoreId(0), "backup sync", async move { me.run().await });
        }
        wait.await.unwrap_or_else(|_| {
            Err(DiskError::Other {
                path: self.directory.to_owned(),
                message: "the process is stopping".to_owned(),
            })
        })
    }

    async fn run(&self) {
        while let Some(round) = self.next_round() {
            count(&self.counters.sync_rounds, 1);
            let results = join_all(round.iter().map(|ticket| ticket.file.sync())).await;
            let directory = if round.iter().any(|ticket| ticket.directory) {
                self.env.disk.sync_directory(self.directory).await
            } else {
                Ok(())
            };
            for (ticket, result) in round.into_iter().zip(results) {
                let result = if ticket.directory {
                    result.and(directory.clone())
                } else {
                    result
                };
                // A writer that has gone needs no answer.
                drop(ticket.done.send(result));
            }
        }
    }

    fn next_round(&self) -> Option<Vec<Ticket>> {
        let mut queue = self.queue.lock().unwrap_or_else(PoisonError::into_inner);
        if queue.waiting.is_empty() {
            queue.running = false;
            return None;
        }
        let n = queue.waiting.len().min(ROUND_FILES_MAX);
        Some(queue.waiting.drain(..n).collect())
    }
}
