//! Work that can be cancelled, with the reason that explains its end.

use futures_util::future::{Either, select};
use std::pin::pin;
use tokio_util::sync::CancellationToken;

/// Whether a piece of work is cancelled. Once it is, it stays so.
pub(crate) struct Cancellation {
    token: CancellationToken,
    /// Explains the end of work that was cancelled.
    why: &'static str,
}

impl Cancellation {
    pub(crate) fn new(why: &'static str) -> Self {
        let token = CancellationToken::new();
        Self { token, why }
    }

    /// Nobody waits for the work: it should end soon.
    pub(crate) fn cancel(&self) {
        self.token.cancel();
    }

    /// # Errors
    /// The work is cancelled; says why.
    pub(crate) fn check(&self) -> Result<(), String> {
        match self.token.is_cancelled() {
            true => Err(self.why.to_owned()),
            false => Ok(()),
        }
    }

    /// Waits for a part of the work.
    ///
    /// # Errors
    /// The work is cancelled; says why. The part is dropped.
    pub(crate) async fn unless_cancelled<T>(
        &self,
        part: impl Future<Output = T>,
    ) -> Result<T, String> {
        // The token is looked at first: a part that is ready does not outrun it.
        match select(pin!(self.token.cancelled()), pin!(part)).await {
            Either::Left(((), _)) => Err(self.why.to_owned()),
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
    fn work_goes_on_until_it_is_cancelled() {
        let work = Cancellation::new("given up");
        assert_eq!(work.check(), Ok(()));
        assert_eq!(work.unless_cancelled(ready(7)).now_or_never(), Some(Ok(7)));
        let mut waits = pin!(work.unless_cancelled(pending::<()>()));
        assert_eq!(waits.as_mut().now_or_never(), None);
        work.cancel();
        let ended = Some(Err("given up".to_owned()));
        assert_eq!(waits.now_or_never(), ended);
        assert_eq!(
            work.unless_cancelled(pending()).now_or_never(),
            ended,
            "what begins later ends at once"
        );
        assert_eq!(
            work.unless_cancelled(ready(7)).now_or_never(),
            Some(Err("given up".into()))
        );
    }
}
