//! The messages of a migration.

use crate::side_log::{Written, written};
use crate::struck;
use pluvio_env::Frame;
use pluvio_wire::{GetTabletData, Opcode, TabletPart, decode};

/// A kind of message; parts of a tablet count as kinds.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Message {
    Receive,
    Objects,
    Changes,
    LastChanges,
    Results,
    Received,
    End,
    /// Of the side log into which the receiver replays.
    Replica,
    /// The receiver's head whose digest joins that side log.
    Head,
}

impl Message {
    pub const ALL: [Self; 9] = [
        Self::Receive,
        Self::Objects,
        Self::Changes,
        Self::LastChanges,
        Self::Results,
        Self::Received,
        Self::End,
        Self::Replica,
        Self::Head,
    ];
}

impl struck::Message for Message {
    fn of(frame: &Frame) -> Option<Self> {
        let opcode = Opcode::from_number(frame.opcode)?;
        if opcode == Opcode::GetTabletData {
            let (_, request) = decode::<GetTabletData>(frame).unwrap();
            return Some(match request.part {
                TabletPart::Objects(_) => Self::Objects,
                TabletPart::Changes(_) => Self::Changes,
                TabletPart::LastChanges(_) => Self::LastChanges,
                TabletPart::Results(_) => Self::Results,
            });
        }
        if opcode == Opcode::WriteReplica {
            return written(frame).map(|what| match what {
                Written::Side => Self::Replica,
                Written::Joining => Self::Head,
            });
        }
        let others = [
            (Opcode::ReceiveTablet, Self::Receive),
            (Opcode::TabletReceived, Self::Received),
            (Opcode::EndMigration, Self::End),
        ];
        let found = others.into_iter().find(|(known, _)| *known == opcode);
        found.map(|(_, message)| message)
    }
}
