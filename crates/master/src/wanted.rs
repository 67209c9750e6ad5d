//! Work that others may give up.

use futures_util::future::{Either, select};
use std::future::Future;
use std::pin::pin;
use std::sync::atomic::{AtomicBool, Ordering};
use tokio::sync::Notify;

/// Whether somebody waits for a piece of work. Once it is withdrawn it stays so.
pub(crate) struct Wanted {
    is_withdrawn: AtomicBool,
    withdrawal: Notify,
    /// What the end of work that was withdrawn is explained by.
    why: &'static str,
}

impl Wanted {
    pub(crate) fn new(why: &'static str) -> Self {
        Self {
            is_withdrawn: AtomicBool::new(false),
            withdrawal: Notify::new(),
            why,
        }
    }

    /// Nobody waits for it: it should end soon.
    pub(crate) fn withdraw(&self) {
        self.is_withdrawn.store(true, Ordering::Release);
        self.withdrawal.notify_waiters();
    }

    /// Why it should end that nobody waits for.
    pub(crate) fn check(&self) -> Result<(), String> {
        match self.is_withdrawn.load(Ordering::Acquire) {
            true => Err(self.why.to_owned()),
            false => Ok(()),
        }
    }

    /// Waits until it is withdrawn.
    async fn withdrawn(&self) -> String {
        // It hears of a withdrawal from here on, also of one between the look and the wait.
        let told = self.withdrawal.notified();
        match self.check() {
            Ok(()) => told.await,
            Err(why) => return why,
        }
        self.why.to_owned()
    }

    /// Waits for a part of the work, until it is withdrawn at most; the part is dropped then.
    pub(crate) async fn unless_withdrawn<T>(
        &self,
        part: impl Future<Output = T>,
    ) -> Result<T, String> {
        match select(pin!(self.withdrawn()), pin!(part)).await {
            Either::Left((why, _)) => Err(why),
            Either::Right((value, _)) => Ok(value),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures_util::FutureExt;
    use std::future::{pending, ready};

    #[test]
    fn work_goes_on_until_it_is_withdrawn() {
        let wanted = Wanted::new("given up");
        assert_eq!(wanted.check(), Ok(()));
        assert_eq!(
            wanted.unless_withdrawn(ready(7)).now_or_never(),
            Some(Ok(7))
        );
        let mut waits = pin!(wanted.unless_withdrawn(pending::<()>()));
        assert_eq!(waits.as_mut().now_or_never(), None);
        wanted.withdraw();
        let ended = Some(Err("given up".to_owned()));
        assert_eq!(waits.now_or_never(), ended);
        assert_eq!(
            wanted.unless_withdrawn(pending()).now_or_never(),
            ended,
            "what begins later ends at once"
        );
    }
}
