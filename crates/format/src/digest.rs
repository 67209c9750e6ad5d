//! The log digest: which segments make up a log.

use crate::varint::{Fields, push_varint};
use pluvio_units::{LogId, SegmentId};

/// The ids of all segments of one log at the time a head was opened [LSM-DRAM §4]. Recovery takes
/// the digest of a log's newest head and knows from it whether it has found every segment.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct LogDigest {
    /// The log described.
    pub log: LogId,
    /// How many logs the master has; recovery must find a digest for each.
    pub logs_of_master: u16,
    /// Ids in strictly ascending order, the segment with this digest included.
    pub segments: Vec<SegmentId>,
}

impl LogDigest {
    /// Appends the body: log, number of logs, number of ids, and the ids. Each id is written as the
    /// difference to the one before it, in one or two bytes.
    pub(crate) fn encode_body(&self, to: &mut Vec<u8>) {
        push_varint(to, u64::from(self.log.0));
        push_varint(to, u64::from(self.logs_of_master));
        push_varint(to, self.segments.len() as u64);
        let mut last = 0;
        for id in &self.segments {
            push_varint(to, id.0 - last);
            last = id.0;
        }
    }

    /// Whether the ids ascend and are not zero, which the encoding relies on.
    pub(crate) fn is_ordered(&self) -> bool {
        self.segments.first().is_none_or(|id| id.0 > 0)
            && self.segments.windows(2).all(|pair| pair[0] < pair[1])
    }

    pub(crate) fn decode_body(body: &[u8]) -> Option<Self> {
        let mut fields = Fields::new(body);
        let log = LogId(fields.varint_u16()?);
        let logs_of_master = fields.varint_u16()?;
        let count = usize::try_from(fields.varint()?).ok()?;
        // Every id takes at least a byte: a wild count cannot make us reserve wild memory.
        if count > body.len() {
            return None;
        }
        let mut segments = Vec::with_capacity(count);
        let mut last = 0u64;
        for _ in 0..count {
            let step = fields.varint()?;
            if step == 0 {
                return None;
            }
            last = last.checked_add(step)?;
            segments.push(SegmentId(last));
        }
        fields.end()?;
        Some(Self {
            log,
            logs_of_master,
            segments,
        })
    }
}
