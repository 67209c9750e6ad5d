//! Requests of a backup to masters so that its archive is the cluster at one moment (crate `client`,
//! `docs/backup-and-restore.md`).

use crate::codec::{Fields, Request};
use crate::data::{cut, join, nothing_left, request};
use crate::opcode::Opcode;
use crate::refusal::Refusal;
use bytes::Bytes;
use pluvio_units::{Deadline, HashRange, KeyHash, ObjectVersion, TableId};
use serde::{Deserialize, Serialize};

/// Most objects of one [`CutReply`].
pub const CUT_OBJECTS_MAX: usize = 1024;

/// One step towards a cut. Every step keeps the session of the caller alive.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Cut {
    /// The caller, by a number that it drew.
    pub session: u64,
    /// The name of the session here, by the first reply; 0 in the first step.
    pub known_as: u64,
    /// What to do.
    pub step: CutStep,
}
impl Fields for Cut {}
request!(Cut => CutReply);

/// The steps, in the order in which a backup takes them.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum CutStep {
    /// From before the answer on, note changes of the tablet that has this hash.
    Track {
        /// Its table.
        table: TableId,
        /// A hash of it.
        hash: KeyHash,
    },
    /// Give objects whose changes were noted behind this number. Those up to it are not asked for
    /// again.
    Changes(u64),
    /// Refuse changes, and answer when those that had begun have ended and no tracked key is
    /// locked.
    Hold {
        /// Grows with each hold of a session.
        number: u64,
        /// For how long at most, from now on, in microseconds.
        limit_us: u32,
    },
    /// Take changes again, and say whether none was taken since the hold with this number.
    Resume(u64),
    /// Give objects from this one on of those that were copied during the hold, once all that they
    /// rest on is durable.
    Copies(u64),
    /// Nothing: the backup is busy with something else.
    Stay,
    /// Forget the session.
    End,
}

/// A stretch of a tablet whose changes are noted.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize, Deserialize)]
pub struct TrackedRange {
    /// The table.
    pub table: TableId,
    /// The hashes.
    pub range: HashRange,
    /// Since when: never the same for two stays of a tablet on one life of a server.
    pub track: u64,
}

impl TrackedRange {
    /// Whether all of it is there with its number; it may have been cut since. `held` is ordered
    /// by table and range.
    #[must_use]
    pub fn is_within(&self, held: &[Self]) -> bool {
        let mut next = self.range.first;
        let before = |part: &Self| (part.table, part.range.last) < (self.table, next);
        let from = held.partition_point(before);
        for part in held.iter().skip(from) {
            let is_next =
                (part.table, part.track) == (self.table, self.track) && part.range.contains(next);
            if !is_next {
                return false;
            }
            match part.range.last.0.checked_add(1) {
                Some(after) if after <= self.range.last.0 => next = KeyHash(after),
                Some(_) | None => return true,
            }
        }
        false
    }
}

/// An object that was changed, as it is now.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ChangedObject {
    /// Its table.
    pub table: TableId,
    /// Its key.
    pub key: Bytes,
    /// What it is; `None`: there is none.
    pub now: Option<ChangedTo>,
}

/// What an object has become.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ChangedTo {
    /// Its version.
    pub version: ObjectVersion,
    /// When it expires, if it does.
    pub deadline: Option<Deadline>,
    /// Its value.
    pub value: Bytes,
}

#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
struct Head {
    table: TableId,
    key_len: u32,
    /// Version, deadline in milliseconds or 0, length of the value.
    now: Option<(ObjectVersion, u64, u32)>,
}

/// The answer to a [`Cut`]. Whatever a step does not ask for is empty.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
pub struct CutReply {
    /// The name of the session here. Another name than before: nothing of it is known any more.
    pub known_as: u64,
    /// Of [`CutStep::Track`]: the tablet. Of [`CutStep::Hold`]: all that is tracked and held.
    pub tracked: Vec<TrackedRange>,
    /// Where to go on; `None` when there is nothing more for the moment.
    pub next: Option<u64>,
    /// How many noted changes are not in here.
    pub left: u64,
    /// Of [`CutStep::Resume`]: whether nothing was changed since the hold.
    pub held: bool,
    /// Of [`CutStep::Resume`]: for how long changes were refused, in microseconds.
    pub held_us: u64,
    heads: Vec<Head>,
    /// Of changes and copies.
    #[serde(skip)]
    pub objects: Vec<ChangedObject>,
}

impl CutReply {
    /// An answer to the session that has this name.
    #[must_use]
    pub fn to(known_as: u64) -> Self {
        Self {
            known_as,
            ..Self::default()
        }
    }

    /// The same with these objects.
    #[must_use]
    pub fn with(self, objects: Vec<ChangedObject>) -> Self {
        let len = |bytes: &Bytes| u32::try_from(bytes.len()).expect("keys and values are short");
        let head = |object: &ChangedObject| Head {
            table: object.table,
            key_len: len(&object.key),
            now: object.now.as_ref().map(|now| {
                let deadline = now.deadline.map_or(0, Deadline::ms);
                (now.version, deadline, len(&now.value))
            }),
        };
        Self {
            heads: objects.iter().map(head).collect(),
            objects,
            ..self
        }
    }
}

impl Fields for CutReply {
    fn payload(&self) -> Bytes {
        join(self.objects.iter().flat_map(|object| {
            let value = object.now.as_ref().map(|now| &now.value);
            core::iter::once(&object.key).chain(value)
        }))
    }
    fn attach(&mut self, mut payload: Bytes) -> Result<(), Refusal> {
        for head in &self.heads {
            let key = cut(&mut payload, head.key_len)?;
            let now = match head.now {
                None => None,
                Some((version, ms, len)) => Some(ChangedTo {
                    version,
                    deadline: match ms {
                        0 => None,
                        ms => Some(Deadline::new(ms).ok_or_else(impossible)?),
                    },
                    value: cut(&mut payload, len)?,
                }),
            };
            let table = head.table;
            self.objects.push(ChangedObject { table, key, now });
        }
        nothing_left(&payload)
    }
}

fn impossible() -> Refusal {
    Refusal::malformed("an impossible deadline")
}
