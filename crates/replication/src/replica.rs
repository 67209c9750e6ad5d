//! One replica of one segment, as the master sees it: decided here, without touching the network.

use core::time::Duration;
use pluvio_env::Moment;
use pluvio_units::{ReplicationEpoch, ServerId};
use smallvec::SmallVec;

/// Where a replica stands.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum ReplicaStage {
    /// One of the first replicas of a segment; nothing is acknowledged yet. Once sent, recovery
    /// might find it.
    Opening,
    /// Added later, and invisible to recovery until it has everything (REP-7).
    Rewriting,
    /// The write that makes it visible was sent, and certifies this many bytes. It may be there
    /// or not.
    Completing(u32),
    /// Counts.
    Current,
    /// Its backup had no space for the rest, or was late. Its bytes are of this epoch at most. They
    /// are of no use to recovery: fenced for a head, closed only when whole for a side segment. It
    /// may catch up under that epoch. The write that makes it complete gives it the segment's epoch
    /// (REP-7).
    Lagging(ReplicationEpoch),
}

/// Most writes under way to one replica. More would only wait at the backup.
pub(crate) const FLIGHTS_MAX: usize = 4;

/// What a write under way will have done.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Flight {
    /// No other write of this log has this number.
    pub(crate) number: u64,
    pub(crate) end: u32,
    pub(crate) certified: u32,
    pub(crate) epoch: ReplicationEpoch,
    pub(crate) rewriting: bool,
    pub(crate) close: bool,
}

/// How far a replica is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Progress {
    /// It counts, with this epoch or closed, and this number of certified bytes.
    Counts {
        epoch: ReplicationEpoch,
        certified: u32,
        closed: bool,
    },
    /// It has more than this number of bytes, or counts.
    Beyond(u32),
}

/// A progress that a replica has yet to make, since some time.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Owed {
    pub(crate) since: Moment,
    pub(crate) progress: Progress,
}

/// One replica.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Replica {
    pub(crate) server: ServerId,
    pub(crate) primary: bool,
    pub(crate) stage: ReplicaStage,
    /// Something was sent that may have arrived.
    pub(crate) sent: bool,
    /// Bytes it has.
    pub(crate) acked: u32,
    /// How many of the acknowledged bytes are certified.
    pub(crate) certified: u32,
    /// The epoch it has.
    pub(crate) epoch: ReplicationEpoch,
    /// It is closed.
    pub(crate) closed: bool,
    /// The writes under way, in the order in which they were sent (REP-10).
    pub(crate) flights: SmallVec<[Flight; FLIGHTS_MAX]>,
    /// A write failed. Those behind it may lack what it should have brought, so all of them have to
    /// end before the next one is sent (REP-15).
    pub(crate) broken: bool,
    /// It counts against the limit of writes that are not for heads.
    pub(crate) background: bool,
    /// Its backup had no space, or was late: another place may be used instead.
    pub(crate) aside: bool,
    /// The latest that its backup said is that it has no space, also while it is asked again.
    pub(crate) full: bool,
    /// Failures in a row.
    pub(crate) failures: u32,
    /// Not before then.
    pub(crate) next_try: Moment,
    /// The progress by which it is measured (REP-14).
    pub(crate) owed: Option<Owed>,
    /// How many times in a row it took long to make it.
    pub(crate) slow: u32,
    /// It was late. A write that leaves it behind has to succeed before one that makes it count.
    pub(crate) probes: bool,
}

/// The first pause after a failure, doubled with each further one.
const PAUSE_MIN: Duration = Duration::from_millis(5);
/// The longest pause: how late a backup that came back is noticed.
const PAUSE_MAX: Duration = Duration::from_millis(500);

/// How long to wait after this number of failures in a row.
pub(crate) fn pause(failures: u32) -> Duration {
    PAUSE_MIN
        .saturating_mul(1 << failures.min(10))
        .min(PAUSE_MAX)
}

impl Replica {
    pub(crate) fn new(server: ServerId, primary: bool, stage: ReplicaStage) -> Self {
        Self {
            server,
            primary,
            stage,
            sent: false,
            acked: 0,
            certified: 0,
            epoch: ReplicationEpoch(0),
            closed: false,
            flights: SmallVec::new(),
            broken: false,
            background: false,
            aside: false,
            full: false,
            failures: 0,
            next_try: Moment::default(),
            owed: None,
            slow: 0,
            probes: false,
        }
    }

    /// Whether recovery might find it although it is not known to count.
    pub(crate) fn is_uncertain(&self) -> bool {
        match self.stage {
            ReplicaStage::Opening | ReplicaStage::Completing(_) => true,
            ReplicaStage::Rewriting | ReplicaStage::Current | ReplicaStage::Lagging(_) => false,
        }
    }

    /// Whether it is as far as that.
    pub(crate) fn has_made(&self, progress: Progress) -> bool {
        match progress {
            Progress::Counts {
                epoch,
                certified,
                closed,
            } => {
                self.is_current()
                    && self.certified >= certified
                    && (self.closed || !closed && self.epoch >= epoch)
            }
            Progress::Beyond(bytes) => self.acked > bytes || self.is_current(),
        }
    }

    /// Takes the time of the progress that it owed, if it has made it. `long` is a long time.
    pub(crate) fn settle(&mut self, now: Moment, long: Duration) {
        let Some(owed) = self.owed.filter(|owed| self.has_made(owed.progress)) else {
            return;
        };
        self.owed = None;
        self.slow = match now.since(owed.since) >= long {
            true => self.slow + 1,
            false => 0,
        };
    }

    /// Whether its backup is expected to do a write for it.
    pub(crate) fn awaits_its_backup(&self) -> bool {
        !self.is_idle() || self.failures > 0
    }

    /// Whether no write to it is under way.
    pub(crate) fn is_idle(&self) -> bool {
        self.flights.is_empty()
    }

    /// Whether it counts.
    pub(crate) fn is_current(&self) -> bool {
        self.stage == ReplicaStage::Current
    }

    /// Whether recovery might find it open, so that its loss must be fenced (REP-5).
    pub(crate) fn may_be_found_open(&self) -> bool {
        match self.stage {
            ReplicaStage::Opening => self.sent || !self.is_idle(),
            ReplicaStage::Rewriting | ReplicaStage::Lagging(_) => false,
            ReplicaStage::Completing(_) => true,
            ReplicaStage::Current => !self.closed,
        }
    }

    /// The write of this number, if it is under way.
    pub(crate) fn flight(&self, number: u64) -> Option<Flight> {
        let mut flights = self.flights.iter();
        flights.find(|flight| flight.number == number).copied()
    }

    /// A write under way was acknowledged, and with it all before it: a backup that lacks one of
    /// them refuses the next (REP-15).
    pub(crate) fn acknowledged(&mut self, flight: Flight) {
        self.flights.retain(|other| other.number > flight.number);
        self.broken &= !self.is_idle();
        self.failures = 0;
        self.aside = false;
        self.full = false;
        self.probes = false;
        self.acked = self.acked.max(flight.end);
        match self.stage {
            ReplicaStage::Rewriting | ReplicaStage::Lagging(_) => {}
            ReplicaStage::Opening | ReplicaStage::Completing(_) | ReplicaStage::Current => {
                assert!(
                    flight.certified >= self.certified,
                    "REP-1: certified bytes only grow"
                );
                self.certified = flight.certified;
                self.epoch = flight.epoch;
                self.closed |= flight.close;
                self.stage = ReplicaStage::Current;
            }
        }
    }

    /// A write under way has no good answer. `arrived` says that it may have been executed.
    pub(crate) fn failed(
        &mut self,
        flight: Flight,
        now: Moment,
        after: Option<Duration>,
        arrived: bool,
    ) {
        self.flights.retain(|other| other.number != flight.number);
        self.broken = !self.is_idle();
        self.full = false;
        self.sent |= arrived;
        let next_try = now + after.unwrap_or_else(|| pause(self.failures));
        // One that was late is left in peace for longer.
        self.next_try = self.next_try.max(next_try);
        self.failures = self.failures.saturating_add(1);
    }
}
