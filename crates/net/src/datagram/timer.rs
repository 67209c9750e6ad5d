//! The timer of a task that has one deadline at a time.

use core::task::Context;
use pluvio_env::{BoxFuture, Clock, Moment};

#[derive(Default)]
pub(crate) struct Timer(Option<(Moment, BoxFuture<'static, ()>)>);

impl Timer {
    /// Gives whether nothing is to be done before `deadline`; the task is woken then. A timer that
    /// runs already and ends earlier serves as well: moving it for each datagram would cost more.
    pub(crate) fn rests_until(
        &mut self,
        clock: &dyn Clock,
        deadline: Option<Moment>,
        cx: &mut Context<'_>,
    ) -> bool {
        let Some(deadline) = deadline else {
            return true;
        };
        let running = self.0.take().filter(|running| running.0 <= deadline);
        let (at, mut timer) =
            running.unwrap_or_else(|| (deadline, clock.sleep(deadline.since(clock.now()))));
        if timer.as_mut().poll(cx).is_ready() {
            return false;
        }
        self.0 = Some((at, timer));
        true
    }
}
