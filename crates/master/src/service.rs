//! Requests from the network: decoding, encoding.

use crate::master::Master;
use pluvio_env::{Frame, Handled};
use pluvio_units::LogId;
use pluvio_wire::{
    Answer, CountObjects, Delete, Enumerate, Header, Increment, MultiDelete, MultiRead, MultiWrite,
    Opcode, Read, Request, Write, decode, handled, reply,
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
            Opcode::Write => asks::<Write>(frame, |header, r| master.write(log, header, &r)),
            Opcode::Delete => asks::<Delete>(frame, |header, r| master.delete(log, header, &r)),
            Opcode::Increment => {
                asks::<Increment>(frame, |header, r| master.increment(log, header, &r))
            }
            Opcode::MultiWrite => {
                asks::<MultiWrite>(frame, |header, r| master.multi_write(log, header, r))
            }
            Opcode::MultiDelete => {
                asks::<MultiDelete>(frame, |header, r| master.multi_delete(log, header, r))
            }
            Opcode::WriteReplica
            | Opcode::FreeReplica
            | Opcode::IsReplicaNeeded
            | Opcode::StartRecovery
            | Opcode::SetPartitions
            | Opcode::GetRecoveryData
            | Opcode::Recover
            | Opcode::RecoveryMasterFinished
            | Opcode::ReceiveTablet
            | Opcode::GetTabletData
            | Opcode::TabletReceived
            | Opcode::EndMigration
            | Opcode::MigrateTablet
            | Opcode::GetMigration
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
            | Opcode::GetClusterStatus
            | Opcode::GetLeader => return None,
        })
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
