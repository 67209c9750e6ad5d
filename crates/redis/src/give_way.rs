//! Lets other tasks of the core run in between. Work on keys of the same process never waits by
//! itself.

/// Lets other tasks of the core run, and the event loop look for what has arrived.
///
/// Waking oneself would not do: an event loop that always has a task to run looks for arrivals only
/// now and then.
pub(crate) async fn give_way() {
    tokio::task::yield_now().await;
}
