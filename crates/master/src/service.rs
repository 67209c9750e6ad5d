//! Requests from the network: decoding, exactly-once within this server's life, encoding.

use crate::completions::{Admission, Execution};
use crate::master::Master;
use pluvio_env::{Frame, Handled};
use pluvio_units::LogId;
use pluvio_wire::{
    Answer, CountObjects, Delete, Enumerate, Header, Increment, MultiDelete, MultiRead, MultiWrite,
    Opcode, Read, Refusal, Request, Write, decode, handled, reply,
};
use std::sync::Arc;

impl Master {
    /// Answers an operation on objects; `None` when the opcode is none of those.
    pub fn handle_data(
        self: &Arc<Self>,
        opcode: Opcode,
        log: LogId,
        frame: &Frame,
    ) -> Option<Handled> {
        let master = self;
        Some(match opcode {
            Opcode::Read => asks::<Read>(frame, |header, r| master.read(header, &r)),
            Opcode::MultiRead => asks::<MultiRead>(frame, |header, r| master.multi_read(header, r)),
            Opcode::Enumerate => asks::<Enumerate>(frame, |header, r| master.enumerate(header, &r)),
            Opcode::CountObjects => {
                asks::<CountObjects>(frame, |header, r| master.count(header, &r))
            }
            Opcode::Write => {
                self.changes::<Write>(frame, |header, r| master.write(log, header, &r))
            }
            Opcode::Delete => {
                self.changes::<Delete>(frame, |header, r| master.delete(log, header, &r))
            }
            Opcode::Increment => {
                self.changes::<Increment>(frame, |header, r| master.increment(log, header, &r))
            }
            Opcode::MultiWrite => {
                self.changes::<MultiWrite>(frame, |header, r| master.multi_write(log, header, r))
            }
            Opcode::MultiDelete => {
                self.changes::<MultiDelete>(frame, |header, r| master.multi_delete(log, header, r))
            }
            Opcode::WriteReplica
            | Opcode::FreeReplica
            | Opcode::IsReplicaNeeded
            | Opcode::StartRecovery
            | Opcode::SetPartitions
            | Opcode::GetRecoveryData
            | Opcode::Recover
            | Opcode::RecoveryMasterFinished
            | Opcode::Ping
            | Opcode::UpdateServerList
            | Opcode::TakeTablets
            | Opcode::DropTablets
            | Opcode::SplitTabletLocal
            | Opcode::GetServerStatus
            | Opcode::Enlist
            | Opcode::HintServerCrashed
            | Opcode::GetServerList
            | Opcode::SetReplicationEpoch
            | Opcode::GetTable
            | Opcode::CreateTable
            | Opcode::DropTable
            | Opcode::ListTables
            | Opcode::SplitTablet
            | Opcode::GetClusterStatus => return None,
        })
    }

    /// A change: done once, however often the request comes (COMP-1).
    fn changes<R: Request>(
        self: &Arc<Self>,
        frame: &Frame,
        execute: impl FnOnce(&Header, R) -> Answer<R::Reply>,
    ) -> Handled
    where
        R::Reply: 'static,
    {
        let (header, request) = match decode::<R>(frame) {
            Ok(decoded) => decoded,
            Err(refusal) => return Handled::Now(reply::<R>(&Err(refusal))),
        };
        let execution = match self.completions.admit(header.operation) {
            Admission::Execute(execution) => execution,
            Admission::Answer(frame) => return Handled::Now(frame),
            Admission::Refuse(refusal) => return Handled::Now(reply::<R>(&Err(refusal))),
        };
        match execute(&header, request) {
            Answer::Now(result) => Handled::Now(finish::<R>(execution, &result)),
            Answer::Later(future) => {
                Handled::Later(Box::pin(
                    async move { finish::<R>(execution, &future.await) },
                ))
            }
        }
    }
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

/// Keeps the result for retries, unless nothing was decided: then a retry is executed.
fn finish<R: Request>(execution: Option<Execution>, result: &Result<R::Reply, Refusal>) -> Frame {
    let frame = reply::<R>(result);
    let decided = match result {
        Ok(_) | Err(Refusal::Rejected { .. } | Refusal::Fatal { .. }) => true,
        Err(Refusal::Retry { .. } | Refusal::Refresh) => false,
    };
    if let Some(execution) = execution
        && decided
    {
        execution.complete(frame.clone());
    }
    frame
}
