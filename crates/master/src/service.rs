//! Requests of clients from the network: decoding, encoding.

use crate::master::Master;
use pluvio_env::{Frame, Handled};
use pluvio_units::{LogId, Waits};
use pluvio_wire::{
    Answer, AwaitDurable, CountObjects, DataOp, Decide, Enumerate, Header, Opcode, Refusal,
    Release, Request, Results, Vote, decode, decode_get, decode_mutate, decode_transact, handled,
    handled_outcomes, reply, reply_outcomes,
};
use std::sync::Arc;

/// An operation whose reply is a list of outcomes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ObjectsOp {
    /// Reads objects.
    Get,
    /// Changes objects.
    Mutate,
    /// Does all steps, or none.
    Transact,
}

impl ObjectsOp {
    /// `None`: this operation has another kind of reply.
    #[must_use]
    pub fn of(op: DataOp) -> Option<Self> {
        match op {
            DataOp::Get => Some(Self::Get),
            DataOp::Mutate => Some(Self::Mutate),
            DataOp::Transact => Some(Self::Transact),
            DataOp::AwaitDurable
            | DataOp::Enumerate
            | DataOp::CountObjects
            | DataOp::Decide
            | DataOp::Vote
            | DataOp::Release => None,
        }
    }

    fn opcode(self) -> Opcode {
        match self {
            Self::Get => Opcode::Get,
            Self::Mutate => Opcode::Mutate,
            Self::Transact => Opcode::Transact,
        }
    }
}

impl Master {
    /// Answers an operation on objects at once. The reply must not leave before the positions
    /// beside it are durable, if there are some.
    pub fn handle_objects(
        &self,
        op: ObjectsOp,
        log: LogId,
        frame: &Frame,
    ) -> (Frame, Option<Waits>) {
        let opcode = op.opcode();
        let (replies, early) = match op {
            ObjectsOp::Mutate => match decode_mutate(frame) {
                Ok((header, mutations)) => {
                    let (items, ordered) = (mutations.iter(), mutations.ordered());
                    let replies = self.mutate_all(log, &header, items, ordered);
                    (replies, mutations.early())
                }
                Err(refusal) => (Err(refusal), false),
            },
            ObjectsOp::Transact => {
                let transact = decode_transact(frame);
                let replies = transact.and_then(|(header, steps)| {
                    self.transact_all(log, &header, steps.whole(), steps.iter())
                });
                (replies, false)
            }
            ObjectsOp::Get => {
                let get = decode_get(frame);
                let replies = get.and_then(|(header, gets)| self.get_all(&header, gets.iter()));
                (replies, false)
            }
        };
        let replies = match replies {
            Ok(replies) => replies,
            Err(refusal) => return (reply_outcomes(opcode, &Err(refusal)), None),
        };
        let waits = replies.rests_on().filter(|_| !early);
        let mut outcomes = replies.into_early();
        if !early {
            outcomes.rests_on.clear();
        }
        (reply_outcomes(opcode, &Ok(outcomes)), waits)
    }

    /// Answers an operation on objects.
    pub fn handle_data(self: &Arc<Self>, op: DataOp, log: LogId, frame: &Frame) -> Handled {
        match op {
            DataOp::Get => {
                let get = decode_get(frame);
                let replies = get.and_then(|(header, gets)| self.get_all(&header, gets.iter()));
                match replies {
                    // All is durable. As `Outcomes`, values that lie together are sent from there;
                    // `into_answer` gives `Results`, whose values are joined by another copy.
                    Ok(replies) if !replies.is_waiting() => {
                        Handled::Now(reply_outcomes(Opcode::Get, &Ok(replies.into_early())))
                    }
                    Ok(replies) => objects(Opcode::Get, Ok(replies.into_answer(self))),
                    Err(refusal) => objects(Opcode::Get, Err(refusal)),
                }
            }
            DataOp::Mutate => {
                let (header, mutations) = match decode_mutate(frame) {
                    Ok(decoded) => decoded,
                    Err(refusal) => return objects(Opcode::Mutate, Err(refusal)),
                };
                if mutations.early() {
                    let done = self.mutate_early(log, &header, mutations.iter());
                    return Handled::Now(reply_outcomes(Opcode::Mutate, &done));
                }
                let answer = self.mutate(log, &header, mutations.iter(), mutations.ordered());
                objects(Opcode::Mutate, Ok(answer))
            }
            DataOp::Transact => {
                let transact = decode_transact(frame);
                objects(
                    Opcode::Transact,
                    transact.map(|(header, steps)| {
                        self.transact(log, &header, steps.whole(), steps.iter())
                    }),
                )
            }
            DataOp::AwaitDurable => {
                asks::<AwaitDurable>(frame, |header, r| self.await_durable(header, &r.positions))
            }
            DataOp::Decide => asks::<Decide>(frame, |header, r| self.decide(log, header, &r)),
            DataOp::Vote => asks::<Vote>(frame, |header, r| self.vote(log, header, &r)),
            DataOp::Release => asks::<Release>(frame, |header, r| self.release(log, header, &r)),
            DataOp::Enumerate => asks::<Enumerate>(frame, |header, r| self.enumerate(header, &r)),
            DataOp::CountObjects => asks::<CountObjects>(frame, |header, r| self.count(header, &r)),
        }
    }
}

/// A request that cannot be decoded is refused.
fn objects(opcode: Opcode, answer: Result<Answer<Results>, Refusal>) -> Handled {
    let answer = answer.unwrap_or_else(|refusal| Answer::Now(Err(refusal)));
    handled_outcomes(opcode, answer)
}

fn asks<R: Request>(frame: &Frame, execute: impl FnOnce(&Header, R) -> Answer<R::Reply>) -> Handled
where
    R::Reply: 'static,
{
    match decode::<R>(frame) {
        Ok((header, request)) => handled::<R>(execute(&header, request)),
        Err(refusal) => Handled::Now(reply::<R>(&Err(refusal))),
    }
}
