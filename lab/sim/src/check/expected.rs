//! WARN and ERROR traces: every one that is not in the list of expected ones is a violation.

use crate::check::{Check, Violation};

/// A trace that faults explain.
struct Expected {
    /// A part of its text.
    part: &'static str,
    /// When it is expected, and what explains it. For readers.
    #[expect(dead_code, reason = "for readers; a reason for each is asked for")]
    why: &'static str,
}

/// Traces that a run with faults may give.
const EXPECTED: [Expected; 12] = [
    Expected {
        part: "no room is kept for the next start",
        why: "the disk is full, or gave an error",
    },
    Expected {
        part: "a backup has no space",
        why: "its disk is full: a fault fills it up",
    },
    Expected {
        part: "it does not reach the servers, and another coordinator does",
        why: "its messages were lost, or servers died, and the challenger of its leadership heard more of them (LEAD-5)",
    },
    Expected {
        part: "does not lead any more",
        why: "it stood still or was cut off for so long that the other coordinator took over",
    },
    Expected {
        part: "this server may no longer be a member",
        why: "a backup has heard of its death before it did itself",
    },
    Expected {
        part: "damaged replica",
        why: "the coordinator hears of such a frame from the backup that has it",
    },
    Expected {
        part: "this server was declared dead and stops serving",
        why: "its messages were late or lost for so long that nobody could tell it from a dead one",
    },
    Expected {
        part: "it was freed",
        why: "a write to a replica was still on its way when the segment left the log and was freed",
    },
    Expected {
        part: "a backup is late",
        why: "its disk or the network was slow, or a cut lay between, for some seconds",
    },
    Expected {
        part: "cannot join the cluster yet",
        why: "the coordinator is down or cut off for some seconds while a server starts",
    },
    Expected {
        part: "tablets of volatile tables have lost their server",
        why: "a server died, or was taken for dead",
    },
    Expected {
        part: "a damaged frame",
        why: "a crash in the middle of the first writes of a frame that nobody counted on yet",
    },
];

/// Traces that a run may give beside those when disks may fail and rot.
const EXPECTED_OF_DISKS: [Expected; 10] = [
    Expected {
        part: "a replica is lost: its disk failed",
        why: "a write or a sync gave an error",
    },
    Expected {
        part: "a backup cannot keep a replica",
        why: "what the master hears of that",
    },
    Expected {
        part: "a replica is damaged",
        why: "a bit turned over in it, or it cannot be read; recovery uses another one",
    },
    Expected {
        part: "an open head cannot be read",
        why: "it cannot be read",
    },
    Expected {
        part: "a trial of a data directory has failed",
        why: "its write or its sync gave an error",
    },
    Expected {
        part: "left a data directory",
        why: "one of two devices fails or hangs",
    },
    Expected {
        part: "a backup has lost replicas",
        why: "what masters hear of that",
    },
    Expected {
        part: "starts without a data directory",
        why: "a device that failed does so at a restart, and its loss is allowed",
    },
    Expected {
        part: "a data directory cannot be read, and is left",
        why: "its device fails while a server starts on it, and its loss is allowed",
    },
    Expected {
        part: "cannot remove a frame",
        why: "the disk gave an error; tried again",
    },
];

/// Most lines given as evidence.
const LINES_MAX: usize = 20;

/// Checks the WARN and ERROR lines of a run; `missed`: how many there were that nobody kept.
/// `any_faults`: whether there was any fault; without, nothing is expected. `of_disks`: whether
/// disks could fail.
#[must_use]
pub fn only_expected(
    lines: &[String],
    missed: u64,
    any_faults: bool,
    of_disks: bool,
) -> Option<Violation> {
    let has = |line: &str, list: &[Expected]| list.iter().any(|e| line.contains(e.part));
    let is_expected = |line: &&String| {
        any_faults && has(line, &EXPECTED) || of_disks && has(line, &EXPECTED_OF_DISKS)
    };
    let unexpected: Vec<&String> = lines.iter().filter(|line| !is_expected(line)).collect();
    if unexpected.is_empty() {
        return None;
    }
    Some(Violation {
        check: Check::OnlyExpectedTraces,
        message: format!(
            "{} of {} warnings and errors are not expected{}",
            unexpected.len(),
            lines.len(),
            if missed > 0 {
                format!(" ({missed} more were not kept)")
            } else {
                String::new()
            }
        ),
        evidence: unexpected.into_iter().take(LINES_MAX).cloned().collect(),
    })
}
