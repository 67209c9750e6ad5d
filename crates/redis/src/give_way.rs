//! Lets other tasks of the core run in between. Work on keys of the same process never waits by
//! itself.

use core::future::poll_fn;
use core::task::Poll;

/// Lets other tasks of the core run.
pub(crate) async fn give_way() {
    let mut given = false;
    poll_fn(|context| {
        if given {
            return Poll::Ready(());
        }
        given = true;
        context.waker().wake_by_ref();
        Poll::Pending
    })
    .await;
}
