//! The messages of a drain.

use crate::struck;
use pluvio_env::Frame;
use pluvio_wire::Opcode;

/// A kind of message.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Message {
    Drain,
    GetDrain,
    /// The coordinator asks the owner how large a tablet is.
    Count,
    Receive,
    Data,
    Received,
    End,
    Leave,
}

impl Message {
    pub const ALL: [Self; 8] = [
        Self::Drain,
        Self::GetDrain,
        Self::Count,
        Self::Receive,
        Self::Data,
        Self::Received,
        Self::End,
        Self::Leave,
    ];
}

impl struck::Message for Message {
    fn of(frame: &Frame) -> Option<Self> {
        let opcode = Opcode::from_number(frame.opcode)?;
        let known = [
            (Opcode::DrainServer, Self::Drain),
            (Opcode::GetDrain, Self::GetDrain),
            (Opcode::CountObjects, Self::Count),
            (Opcode::ReceiveTablet, Self::Receive),
            (Opcode::GetTabletData, Self::Data),
            (Opcode::TabletReceived, Self::Received),
            (Opcode::EndMigration, Self::End),
            (Opcode::LeaveCluster, Self::Leave),
        ];
        let found = known.into_iter().find(|(known, _)| *known == opcode);
        found.map(|(_, message)| message)
    }
}
