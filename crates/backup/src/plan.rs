//! What a write does to a frame: decided here, without touching the disk.

use crate::frame::{FrameState, Stage};
use core::time::Duration;
use pluvio_format::{CERTIFICATE_BYTES, SegmentKind};
use pluvio_units::ReplicationEpoch;
use pluvio_wire::{FatalKind, Refusal, RetryReason, WriteReplica};

/// When a master should send again that has sent a write without one before it.
const GAP_PAUSE: Duration = Duration::from_micros(200);

/// What to do.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Plan {
    /// This many bytes of the request's data are there already.
    pub(crate) skip: usize,
    /// The state once everything is written. Only the certificate's writer knows its place.
    pub(crate) next: FrameState,
    /// Before all else, write a header that says this much.
    pub(crate) header_first: Option<FrameState>,
    /// The data, which may be none, has a certificate in line.
    pub(crate) in_line: bool,
    /// Write a header behind the data.
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
        found: false,
        end: 0,
        in_line_from: None,
        place: None,
        has_remains: false,
        tells_remains: false,
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
    if request.certified as usize > end {
        return bad(format!(
            "certifies {} bytes, and ends with byte {end}",
            request.certified
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

/// Decides what `request`, whose shape was checked, does to a frame in `state`. A late or repeated
/// request gives a plan that writes nothing (BACKUP-3).
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
        // One before it is late, or lost: the master sends again from there (REP-15).
        pluvio_units::mark("backup-refuses-gap");
        return Err(Refusal::retry(GAP_PAUSE, RetryReason::NotReady));
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
        header_first: None,
        in_line: false,
        header: false,
        sync_first: false,
        sync: request.synced && state.unsynced,
        complete: false,
    }
}

fn write(state: &FrameState, request: &WriteReplica, data_len: u32, end: u32) -> Plan {
    let skip = (state.written - request.offset).min(data_len);
    let fresh = data_len - skip;
    let complete = !request.rewriting && state.stage == Stage::Rewriting;
    let mut next = state.clone();
    next.epoch = request.epoch;
    next.needed = request.needed;
    next.written = end.max(state.written);
    next.end += fresh;
    if request.rewriting {
        // Nothing counts yet, so there is nothing to certify (BACKUP-2).
        next.unsynced |= fresh > 0;
        return Plan {
            skip: skip as usize,
            header_first: None,
            in_line: false,
            header: false,
            sync_first: false,
            sync: request.synced && next.unsynced,
            next,
            complete: false,
        };
    }
    next.certified = state.certified.max(request.certified);
    next.closed = request.close;
    next.stage = Stage::Usable;
    next.found = false;
    let changed = complete || fresh > 0 || next != *state;
    // A side segment counts only when it is closed, so nothing certifies it before.
    let is_head = state.kind == SegmentKind::Head;
    let header = changed && (complete || request.close || state.sequence == 0);
    let in_line = is_head && !complete && state.sequence > 0 && (fresh > 0 || changed && !header);
    let header_first = (in_line && !header_says_all(state)).then(|| with_whole_header(state));
    if let Some(first) = &header_first {
        next.sequence = first.sequence;
        next.in_line_from = first.in_line_from;
        next.tells_remains = true;
    }
    if in_line {
        next.end += CERTIFICATE_BYTES as u32;
    }
    if header {
        next.sequence += 1;
        next.tells_remains = true;
        if is_head && !next.closed {
            next.in_line_from = Some(next.written);
        }
    }
    next.unsynced |= changed;
    let data_unsynced = state.unsynced || fresh > 0;
    Plan {
        skip: skip as usize,
        header_first,
        in_line,
        header,
        sync_first: request.synced && data_unsynced && (complete || request.close),
        sync: request.synced && next.unsynced,
        next,
        complete,
    }
}

/// Whether the header of an open head says all that the readers of its certificates must know.
fn header_says_all(state: &FrameState) -> bool {
    state.in_line_from.is_some() && (state.tells_remains || !state.has_remains)
}

/// The same with a header that says so. A frame of an earlier program becomes one with certificates
/// in line thereby.
fn with_whole_header(state: &FrameState) -> FrameState {
    FrameState {
        sequence: state.sequence + 1,
        in_line_from: state.in_line_from.or(Some(state.written)),
        tells_remains: true,
        ..state.clone()
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

    fn certifies(plan: &Plan) -> bool {
        plan.header || plan.in_line
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
                header_first: None,
                in_line: false,
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
        assert!(plan.in_line && plan.sync && !plan.header && !plan.sync_first);
        assert_eq!(plan.next.end, 140 + CERTIFICATE_BYTES as u32);
    }

    // shows: BACKUP-1
    #[test]
    fn a_late_write_never_takes_certified_bytes_back() {
        let plan = plan(&open(100), &request(0, 50, 50)).expect("is accepted");
        assert_eq!(plan.next.certified, 100, "BACKUP-1");
        assert!(!certifies(&plan));
    }

    // shows: BACKUP-1
    #[test]
    fn gaps_and_certificates_beyond_the_data_are_refused() {
        let gap = plan(&open(100), &request(101, 1, 102));
        assert!(matches!(gap, Err(Refusal::Retry { .. })), "{gap:?}");
        for (bad, segment_bytes) in [(request(100, 1, 102), 1000), (request(10, 7, 5), 16)] {
            let refused = check_shape(&bad, segment_bytes).unwrap_err();
            assert_eq!(refused.fatal_kind(), Some(FatalKind::Malformed));
        }
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
        let again = plan(&closed, &close).expect("is a repetition");
        assert!(!certifies(&again));
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
            !certifies(&begun) && begun.next.certified == 0 && begun.next.stage == Stage::Rewriting,
            "BACKUP-2"
        );
        let last = plan(&begun.next, &request(100, 0, 100)).expect("completes");
        assert!(last.complete && last.header && last.sync_first);
        assert_eq!(
            (last.next.certified, last.next.stage.clone()),
            (100, Stage::Usable)
        );
        let late = plan(&last.next, &part).expect("is late");
        assert!(!certifies(&late) && !late.complete, "BACKUP-3");
        let more = plan(&last.next, &request(100, 10, 110)).expect("goes on");
        assert!(more.in_line && !more.header);
    }

    #[test]
    fn an_epoch_alone_has_a_certificate_of_its_own() {
        let epoch = WriteReplica {
            epoch: ReplicationEpoch(2),
            ..request(100, 0, 100)
        };
        let plan = plan(&open(100), &epoch).expect("is accepted");
        assert!(plan.in_line && plan.header_first.is_none());
        assert_eq!(plan.next.end, 100 + CERTIFICATE_BYTES as u32);
    }

    /// Recovery believes closed ones only.
    #[test]
    fn a_side_segment_is_certified_when_it_is_closed() {
        let side = |request: WriteReplica| WriteReplica {
            side: true,
            ..request
        };
        let first = side(request(0, 100, 100));
        let opened = plan(&created(&first), &first).expect("opens");
        assert!(opened.header && opened.next.in_line_from.is_none());
        let more = plan(&opened.next, &side(request(100, 10, 110))).expect("is accepted");
        assert!(!certifies(&more) && more.sync);
        assert_eq!((more.next.certified, more.next.end), (110, 110));
        let close = WriteReplica {
            close: true,
            ..side(request(110, 5, 115))
        };
        let closed = plan(&more.next, &close).expect("closes");
        assert!(closed.header && !closed.in_line && closed.sync_first);
        assert_eq!((closed.next.certified, closed.next.end), (115, 115));
    }

    #[test]
    fn a_header_tells_of_remains_before_anything_is_written_behind_them() {
        let failed = FrameState {
            has_remains: true,
            ..open(100)
        };
        let failed = FrameState {
            tells_remains: false,
            ..failed
        };
        let again = plan(&failed, &request(100, 10, 110)).expect("is accepted");
        let first = again.header_first.expect("is written first");
        assert_eq!((first.sequence, first.certified), (2, 100));
        assert!(first.has_remains && again.in_line);
        assert_eq!(again.next.sequence, 2);
        let more = plan(&again.next, &request(110, 10, 120)).expect("is accepted");
        assert!(more.header_first.is_none() && more.in_line);
    }

    /// It has no certificates in line, and bytes that do not count may lie behind those that do.
    #[test]
    fn a_frame_of_an_earlier_program_begins_its_certificates_with_a_header() {
        let before = FrameState {
            in_line_from: None,
            has_remains: true,
            tells_remains: false,
            found: true,
            ..open(100)
        };
        let more = plan(&before, &request(100, 10, 110)).expect("is accepted");
        let first = more.header_first.expect("is written first");
        assert_eq!(first.in_line_from, Some(100));
        assert_eq!(more.next.in_line_from, Some(100));
        let close = WriteReplica {
            close: true,
            ..request(100, 0, 100)
        };
        let closed = plan(&before, &close).expect("closes");
        assert!(closed.header && closed.header_first.is_none() && !closed.in_line);
    }
}
