//! What a write does to a frame: decided here, without touching the disk.

use crate::frame::{FrameState, Stage};
use core::time::Duration;
use pluvio_format::{LastWrite, SegmentKind};
use pluvio_units::ReplicationEpoch;
use pluvio_wire::{FatalKind, Refusal, RetryReason, WriteReplica};

/// What to do.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Plan {
    /// This many bytes of the request's data are there already.
    pub(crate) skip: usize,
    /// The state once everything is written.
    pub(crate) next: FrameState,
    /// Write a header.
    pub(crate) header: bool,
    /// Sync the data before the header is written (BACKUP-10).
    pub(crate) sync_first: bool,
    /// Sync before answering.
    pub(crate) sync: bool,
    /// The replica becomes visible: rename its file.
    pub(crate) complete: bool,
}

/// The state of a frame that an open creates.
pub(crate) fn created(request: &WriteReplica) -> FrameState {
    FrameState {
        stage: if request.rewriting {
            Stage::Rewriting
        } else {
            Stage::Creating
        },
        log: request.log,
        kind: kind_of(request),
        primary: request.primary,
        epoch: ReplicationEpoch(0),
        closed: false,
        certified: 0,
        written: 0,
        sequence: 0,
        unsynced: false,
        boot: 0,
        needed: request.needed,
        last_write: LastWrite::default(),
        found: false,
        has_remains: false,
    }
}

fn kind_of(request: &WriteReplica) -> SegmentKind {
    if request.side {
        SegmentKind::Side
    } else {
        SegmentKind::Head
    }
}

/// Checks what does not depend on the frame.
///
/// # Errors
/// `Malformed`.
pub(crate) fn check_shape(request: &WriteReplica, segment_bytes: usize) -> Result<(), Refusal> {
    let bad = |what: String| {
        Err(Refusal::malformed(format!(
            "write to replica of segment {}: {what}",
            request.segment
        )))
    };
    let end = request.offset as usize + request.data.len();
    if end > segment_bytes {
        return bad(format!(
            "byte {end} is beyond the segment's {segment_bytes}"
        ));
    }
    if request.segment.0 == 0 || request.master.0 == 0 {
        return bad("no such segment or master can exist".to_owned());
    }
    if request.rewriting && request.close {
        return bad("a replica cannot be closed while it is being rewritten".to_owned());
    }
    Ok(())
}

/// Decides what `request` does to a frame in `state`. A late or repeated request gives a plan that
/// writes nothing (BACKUP-3).
///
/// # Errors
/// `Stale`, `Corrupt`, `Malformed`; `NotReady` when the frame went away meanwhile.
pub(crate) fn plan(state: &FrameState, request: &WriteReplica) -> Result<Plan, Refusal> {
    match &state.stage {
        Stage::Creating | Stage::Rewriting | Stage::Usable => {}
        Stage::Damaged(why) => {
            return Err(Refusal::fatal(
                FatalKind::Corrupt,
                format!("replica of segment {}: {why}", request.segment),
            ));
        }
        Stage::Gone => {
            return Err(Refusal::retry(
                Duration::from_millis(1),
                RetryReason::NotReady,
            ));
        }
    }
    if request.log != state.log || kind_of(request) != state.kind {
        return Err(Refusal::malformed(format!(
            "segment {} is not of that log and kind",
            request.segment
        )));
    }
    if request.epoch < state.epoch {
        pluvio_units::mark("backup-refuses-old-epoch");
        let message = format!(
            "replication epoch {} is over, the replica has {}",
            request.epoch, state.epoch
        );
        return Err(Refusal::fatal(FatalKind::Stale, message));
    }
    let data_len = u32::try_from(request.data.len()).expect("checked against the segment's size");
    let end = request.offset + data_len;
    if request.offset > state.written {
        return Err(Refusal::malformed(format!(
            "write at {} leaves a gap behind byte {} of segment {}",
            request.offset, state.written, request.segment
        )));
    }
    if request.certified > end.max(state.written) {
        return Err(Refusal::malformed(format!(
            "certifies {} bytes of segment {}, {} are there",
            request.certified,
            request.segment,
            end.max(state.written)
        )));
    }
    if state.closed {
        if end > state.written || request.certified > state.certified {
            return Err(Refusal::fatal(
                FatalKind::Stale,
                format!("the replica of segment {} is closed", request.segment),
            ));
        }
        return Ok(nothing(state, request));
    }
    if request.rewriting && state.stage != Stage::Rewriting {
        return if end <= state.written {
            Ok(nothing(state, request))
        } else {
            Err(Refusal::malformed(format!(
                "the replica of segment {} is not being rewritten",
                request.segment
            )))
        };
    }
    Ok(write(state, request, data_len, end))
}

/// A request that was executed before. Its data may still have to be synced.
fn nothing(state: &FrameState, request: &WriteReplica) -> Plan {
    Plan {
        skip: request.data.len(),
        next: state.clone(),
        header: false,
        sync_first: false,
        sync: request.synced && state.unsynced,
        complete: false,
    }
}

fn write(state: &FrameState, request: &WriteReplica, data_len: u32, end: u32) -> Plan {
    let skip = (state.written - request.offset).min(data_len);
    let fresh = data_len > skip;
    let complete = !request.rewriting && state.stage == Stage::Rewriting;
    let mut next = state.clone();
    next.epoch = request.epoch;
    next.needed = request.needed;
    next.written = end.max(state.written);
    if request.rewriting {
        // Nothing counts yet, so there is nothing for a header to say (BACKUP-2).
        next.unsynced |= fresh;
        return Plan {
            skip: skip as usize,
            sync_first: false,
            sync: request.synced && next.unsynced,
            next,
            header: false,
            complete: false,
        };
    }
    next.certified = state.certified.max(request.certified);
    next.closed = request.close;
    next.stage = Stage::Usable;
    next.found = false;
    let header = complete || fresh || next != *state;
    if header {
        next.sequence += 1;
        next.unsynced = true;
    }
    let data_unsynced = state.unsynced || fresh;
    Plan {
        skip: skip as usize,
        header,
        sync_first: request.synced && data_unsynced && (complete || request.close),
        sync: request.synced && next.unsynced,
        next,
        complete,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bytes::Bytes;
    use pluvio_units::{ClusterId, LogId, SegmentId, ServerId};

    fn request(offset: u32, data: usize, certified: u32) -> WriteReplica {
        WriteReplica {
            cluster: ClusterId(1),
            master: ServerId(2),
            segment: SegmentId(3),
            log: LogId(0),
            side: false,
            epoch: ReplicationEpoch(1),
            open: true,
            rewriting: false,
            primary: true,
            offset,
            certified,
            close: false,
            synced: true,
            needed: 1,
            data: Bytes::from(vec![1; data]),
        }
    }

    fn open(written: u32) -> FrameState {
        let first = request(0, written as usize, written);
        plan(&created(&first), &first).expect("opens").next
    }

    fn kind(result: Result<Plan, Refusal>) -> Option<FatalKind> {
        result.expect_err("is refused").fatal_kind()
    }

    // shows: BACKUP-3
    #[test]
    fn a_repeated_write_writes_nothing() {
        let state = FrameState {
            unsynced: false,
            ..open(100)
        };
        let plan = plan(&state, &request(0, 100, 100)).expect("is accepted");
        assert_eq!(
            plan,
            Plan {
                skip: 100,
                next: state,
                header: false,
                sync_first: false,
                sync: false,
                complete: false
            }
        );
    }

    // shows: BACKUP-10
    #[test]
    fn a_repeated_write_is_synced_if_the_first_was_not() {
        assert!(
            plan(&open(100), &request(0, 100, 100))
                .expect("is accepted")
                .sync
        );
    }

    // shows: BACKUP-3
    #[test]
    fn an_overlapping_write_adds_only_what_is_new() {
        let plan = plan(&open(100), &request(40, 100, 140)).expect("is accepted");
        assert_eq!(
            (plan.skip, plan.next.written, plan.next.certified),
            (60, 140, 140)
        );
        assert!(plan.header && plan.sync && !plan.sync_first);
    }

    // shows: BACKUP-1
    #[test]
    fn a_late_write_never_takes_certified_bytes_back() {
        let plan = plan(&open(100), &request(0, 50, 50)).expect("is accepted");
        assert_eq!(plan.next.certified, 100, "BACKUP-1");
        assert!(!plan.header);
    }

    // shows: BACKUP-1
    #[test]
    fn gaps_and_certificates_beyond_the_data_are_refused() {
        assert_eq!(
            kind(plan(&open(100), &request(101, 1, 102))),
            Some(FatalKind::Malformed)
        );
        assert_eq!(
            kind(plan(&open(100), &request(100, 1, 102))),
            Some(FatalKind::Malformed)
        );
        assert!(check_shape(&request(10, 7, 5), 16).is_err());
    }

    #[test]
    fn an_older_replication_epoch_is_stale() {
        let old = WriteReplica {
            epoch: ReplicationEpoch(0),
            ..request(100, 1, 101)
        };
        assert_eq!(kind(plan(&open(100), &old)), Some(FatalKind::Stale));
    }

    // shows: BACKUP-3
    #[test]
    fn a_closed_replica_takes_repetitions_and_nothing_else() {
        let close = WriteReplica {
            close: true,
            ..request(100, 10, 110)
        };
        let closing = plan(&open(100), &close).expect("closes");
        assert!(closing.sync_first, "BACKUP-10");
        let closed = closing.next;
        assert!(!plan(&closed, &close).expect("is a repetition").header);
        assert_eq!(
            kind(plan(&closed, &request(110, 1, 111))),
            Some(FatalKind::Stale)
        );
    }

    #[test]
    fn a_rewritten_replica_counts_from_its_first_plain_write() {
        let part = WriteReplica {
            rewriting: true,
            ..request(0, 100, 100)
        };
        let begun = plan(&created(&part), &part).expect("begins");
        assert!(
            !begun.header && begun.next.certified == 0 && begun.next.stage == Stage::Rewriting,
            "BACKUP-2"
        );
        let last = plan(&begun.next, &request(100, 0, 100)).expect("completes");
        assert!(last.complete && last.header && last.sync_first);
        assert_eq!(
            (last.next.certified, last.next.stage.clone()),
            (100, Stage::Usable)
        );
        let late = plan(&last.next, &part).expect("is late");
        assert!(!late.header && !late.complete, "BACKUP-3");
    }
}
