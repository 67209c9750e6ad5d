//! A backup as the model has it, and its dice.

use crate::machine::WriteOutcome;
use crate::segment::WriteOrder;
use core::time::Duration;
use pluvio_env::{Moment, Rng};
use pluvio_format::SegmentKind;
use pluvio_units::{ReplicationEpoch, SegmentId};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicU64, Ordering};

pub(super) struct Dice(pub(super) AtomicU64);

impl Rng for Dice {
    fn next_u64(&self) -> u64 {
        let mut x = self.0.fetch_add(0x9e37_79b9_7f4a_7c15, Ordering::Relaxed);
        x = (x ^ x >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        x = (x ^ x >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        x ^ x >> 31
    }
}

/// A replica on a backup.
#[derive(Clone, Debug)]
pub(super) struct Frame {
    pub(super) kind: SegmentKind,
    pub(super) epoch: ReplicationEpoch,
    pub(super) written: u32,
    pub(super) certified: u32,
    pub(super) closed: bool,
    /// The bytes it was begun with.
    pub(super) image: Option<u32>,
}

#[derive(Clone, Default, Debug)]
pub(super) struct ModelBackup {
    pub(super) frames: BTreeMap<SegmentId, Frame>,
    pub(super) rewriting: BTreeMap<SegmentId, Frame>,
    pub(super) freed: BTreeSet<SegmentId>,
    /// Frames in a data directory that it has left. They are there again when it is restarted, or
    /// never.
    pub(super) lost: BTreeMap<SegmentId, Frame>,
    pub(super) full: bool,
}

impl ModelBackup {
    pub(super) fn write(&mut self, order: &WriteOrder, now: Moment) -> WriteOutcome {
        let flight = order.flight;
        if self.freed.contains(&order.segment) || self.lost.contains_key(&order.segment) {
            return WriteOutcome::Useless;
        }
        let rewriting = self.rewriting.contains_key(&order.segment);
        let frames = if rewriting || flight.rewriting && !self.frames.contains_key(&order.segment) {
            &mut self.rewriting
        } else {
            &mut self.frames
        };
        if self.full
            && order.offset < flight.end
            && frames
                .get(&order.segment)
                .is_none_or(|f| f.written < flight.end)
        {
            return WriteOutcome::Full(now + Duration::from_secs(1));
        }
        if !frames.contains_key(&order.segment) && !order.open {
            return WriteOutcome::Useless;
        }
        let epoch = ReplicationEpoch(0);
        let fresh = Frame {
            kind: order.kind,
            epoch,
            written: 0,
            certified: 0,
            closed: false,
            image: order.image,
        };
        let frame = frames.entry(order.segment).or_insert(fresh);
        if order.offset < flight.end {
            assert_eq!(
                frame.image, order.image,
                "REP-12: two kinds of bytes in one replica: {order:?} {frame:?}"
            );
        }
        if flight.epoch < frame.epoch {
            return WriteOutcome::Later(None);
        }
        if order.offset > frame.written {
            // One before it was lost, or comes later.
            assert!(!frame.closed, "{order:?} {frame:?}");
            return WriteOutcome::Later(None);
        }
        if frame.closed {
            assert!(
                flight.end <= frame.written && flight.certified <= frame.certified,
                "{order:?} {frame:?}"
            );
            return WriteOutcome::Done;
        }
        if flight.rewriting && !rewriting && frame.certified > 0 {
            return WriteOutcome::Done;
        }
        frame.epoch = flight.epoch;
        frame.written = frame.written.max(flight.end);
        if !flight.rewriting {
            frame.certified = frame.certified.max(flight.certified);
            frame.closed = flight.close;
            if let Some(frame) = self.rewriting.remove(&order.segment) {
                self.frames.insert(order.segment, frame);
            }
        }
        WriteOutcome::Done
    }

    /// Leaves the data directory that a frame is in.
    pub(super) fn lose(&mut self, segment: SegmentId) {
        let frame = self.frames.remove(&segment);
        if let Some(frame) = frame.or_else(|| self.rewriting.remove(&segment)) {
            self.lost.insert(segment, frame);
        }
    }

    pub(super) fn free(&mut self, segment: SegmentId) {
        self.freed.insert(segment);
        self.frames.remove(&segment);
        self.rewriting.remove(&segment);
    }
}
