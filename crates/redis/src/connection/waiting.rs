//! What a connection does between its turns: it sends, and it waits.

use super::{Connection, IDLE_BYTES_MAX, POLLS_BEFORE_LOOK, SPARE_AHEAD, TURN_BYTES};
use crate::commands::{Commands, Ran};
use crate::counters::add;
use crate::database::DatabaseId;
use crate::give_way::give_way;
use crate::monitor::Feed;
use crate::shared::{Core, Timed};
use crate::spare;
use bytes::BytesMut;
use core::future::poll_fn;
use core::pin::Pin;
use core::task::{Context, Poll};
use pluvio_env::{BoxFuture, ByteStream, Moment, ReadSome, StreamError};
use std::sync::atomic::Ordering::Relaxed;

/// When a connection wakes by itself.
pub(super) type Alarm = Option<(Moment, BoxFuture<'static, ()>)>;

/// What ended a wait.
pub(super) enum Woke {
    Landed,
    Read(usize),
    Killed,
}

/// What a waiting connection wants of its stream.
enum Wish<'s> {
    /// More bytes.
    Bytes(ReadSome<'s>),
    /// Nothing yet; the stream is kept for [`Wish::End`].
    Nothing(Option<&'s mut Box<dyn ByteStream>>),
    /// To know when it is broken (CONN-7).
    End(BoxFuture<'s, ()>),
}

fn killed() -> StreamError {
    StreamError("ended by CLIENT KILL, or because it held most memory".to_owned())
}

fn broken() -> StreamError {
    StreamError("the peer is gone".to_owned())
}

impl<M, F> Connection<'_, M, F>
where
    M: Fn(bool, DatabaseId, Commands) -> F,
    F: Future<Output = Ran>,
{
    /// Sends what has been collected.
    pub(super) async fn send(&mut self) -> Result<(), StreamError> {
        self.release_run();
        while !self.output.is_empty() {
            let is_large = self.output.len() > TURN_BYTES;
            if is_large {
                self.tell();
            }
            let length = self.output.first().len();
            let mut sent = 0;
            while sent < length {
                let end = length.min(sent + TURN_BYTES);
                self.send_part(sent, end).await?;
                self.spent += end - sent;
                sent = end;
                if sent < length || is_large {
                    self.session.entry().set_active(self.core.shared.now());
                    self.give_way().await?;
                }
            }
            add(&self.core.counters.bytes_out, length as u64);
            add(&self.core.counters.writes, 1);
            self.output.sent_first();
        }
        let entry = self.session.entry();
        if entry.output_bytes.load(Relaxed) + entry.waiting_bytes.load(Relaxed) > 0 {
            self.tell();
        }
        Ok(())
    }

    /// Lets others have their turn in the middle of what is sent (CONN-6).
    async fn give_way(&mut self) -> Result<(), StreamError> {
        self.spent = 0;
        give_way().await;
        match self.session.entry().was_killed() {
            true => Err(killed()),
            false => Ok(()),
        }
    }

    /// Sends a part of the first piece, and drives the run under way meanwhile (CONN-2).
    async fn send_part(&mut self, start: usize, end: usize) -> Result<(), StreamError> {
        let Self {
            stream,
            output,
            queue,
            session,
            ..
        } = self;
        let entry = session.entry();
        let mut is_told = false;
        let mut write = stream.write_all(&output.first()[start..end]);
        let written = poll_fn(|context| {
            let _ended = queue.poll(context);
            match Pin::new(&mut write).poll(context) {
                Poll::Pending if entry.is_killed(context.waker()) => Poll::Ready(Err(killed())),
                Poll::Pending => {
                    if !is_told {
                        is_told = true;
                        self.account.set_owed(false);
                        entry.output_bytes.store(output.bytes_held(), Relaxed);
                        entry.waiting_bytes.store(queue.bytes_waiting(), Relaxed);
                        self.account.tell();
                    }
                    Poll::Pending
                }
                polled => polled,
            }
        });
        written.await
    }

    /// Counts the commands of a run no more once it has ended.
    fn release_run(&mut self) {
        if !self.queue.is_running() {
            self.running_bytes = 0;
        }
    }

    /// Waits for bytes (when `hungry`), for durability, for commands under way, or for the end.
    pub(super) async fn wait(&mut self, hungry: bool) -> Result<Woke, StreamError> {
        self.release_run();
        self.account.set_owed(!hungry || !self.queue.is_empty());
        self.tell();
        let Self {
            core,
            stream,
            input,
            queue,
            session,
            held_wait,
            alarm,
            paused_until,
            pause_alarm,
            ..
        } = self;
        let paused = paused_until.take();
        let entry = session.entry();
        let mut wish = match hungry {
            true => Wish::Bytes(stream.read(input)),
            false => Wish::Nothing(Some(stream)),
        };
        let mut polls = 0;
        poll_fn(|context| {
            // Asked first: it leaves the waker.
            let is_killed = entry.is_killed(context.waker());
            if is_killed || hungry && queue.is_empty() && entry.is_retired() {
                return Poll::Ready(Ok(Woke::Killed));
            }
            if queue.poll(context).is_ready() {
                return Poll::Ready(Ok(Woke::Landed));
            }
            if session.feed().is_some_and(Feed::has_lines) {
                return Poll::Ready(Ok(Woke::Landed));
            }
            if let Some(until) = paused {
                let is_over = !core.shared.pause.is_on();
                if is_over || rings(core, pause_alarm, until, context) {
                    return Poll::Ready(Ok(Woke::Landed));
                }
            }
            if let Some((held, until)) = queue.first_held() {
                if !held_wait.wake(held, context.waker()) {
                    return Poll::Ready(Ok(Woke::Landed));
                }
                if rings(core, alarm, until, context) {
                    if let Some(begun) = queue.give_up(core.databases.client().timeout()) {
                        let timed = Timed {
                            started: begun.started,
                            ended: core.shared.now(),
                        };
                        core.note(entry, begun.spec, None, true, timed);
                    }
                    return Poll::Ready(Ok(Woke::Landed));
                }
            }
            polls += 1;
            if let Wish::Nothing(stream) = &mut wish
                && polls >= POLLS_BEFORE_LOOK
                && let Some(stream) = stream.take()
            {
                wish = Wish::End(stream.gone());
            }
            match &mut wish {
                Wish::Bytes(read) => Pin::new(read)
                    .poll(context)
                    .map(|read| Ok(Woke::Read(read?))),
                Wish::End(gone) => gone.as_mut().poll(context).map(|()| Err(broken())),
                Wish::Nothing(_) => Poll::Pending,
            }
        })
        .await
    }

    /// Gives back what an idle connection does not need.
    pub(super) fn shrink(&mut self) {
        let (length, capacity) = (self.input.len(), self.input.capacity());
        if length == 0 && capacity > IDLE_BYTES_MAX {
            self.input = BytesMut::new();
        } else if capacity > TURN_BYTES && length < capacity / 8 {
            // The rest of a large command that is done.
            self.input = BytesMut::from(&self.input[..]);
        }
        self.output.shrink(IDLE_BYTES_MAX);
        spare::give(&SPARE_AHEAD, &mut self.ahead);
        self.queue.shrink();
    }
}

/// Whether the time of a held reply is over. If it is not, the task is woken when it is (CONN-4).
/// An alarm that rings earlier stays set, and is set anew then.
fn rings(core: &Core, alarm: &mut Alarm, until: Moment, context: &mut Context<'_>) -> bool {
    loop {
        let clock = &core.databases.parts().clock;
        let (_, ring) = match alarm {
            Some(set) if set.0 <= until => set,
            Some(_) | None => {
                let sleep = clock.sleep(until.since(clock.now()));
                alarm.insert((until, sleep))
            }
        };
        if ring.as_mut().poll(context).is_pending() {
            return false;
        }
        *alarm = None;
        if until <= clock.now() {
            return true;
        }
    }
}
