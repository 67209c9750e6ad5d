//! The values: mutations, reads, outcomes, and what they are made of.

use crate::kind::{ChangeKind, ProjectionKind};
use bytes::Bytes;
use pluvio_units::{Deadline, KeyHash, ObjectVersion, OperationId, TableId, UnixMs};
use std::sync::Arc;

/// Most steps of one [`Change::Bits`] or [`Projection::Bits`].
pub const BIT_STEPS_MAX: usize = 4096;

/// Conditions on existence and version under which an operation is refused [RAMCloud fig. 2]. The
/// default refuses nothing.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct RejectRules {
    /// Refuse when the object exists.
    pub exists: bool,
    /// Refuse when it does not exist.
    pub does_not_exist: bool,
    /// Refuse when it exists with exactly this version.
    pub version_equal: Option<ObjectVersion>,
    /// Refuse when it exists with another version than this.
    pub version_not_equal: Option<ObjectVersion>,
    /// Refuse when it exists with a version below this.
    pub version_less: Option<ObjectVersion>,
}

impl RejectRules {
    /// Refuses nothing.
    pub const NONE: Self = Self {
        exists: false,
        does_not_exist: false,
        version_equal: None,
        version_not_equal: None,
        version_less: None,
    };
    /// Refuses when the object exists.
    pub const EXISTS: Self = Self {
        exists: true,
        ..Self::NONE
    };
    /// Refuses when the object does not exist.
    pub const ABSENT: Self = Self {
        does_not_exist: true,
        ..Self::NONE
    };

    /// Go ahead only when the object has exactly this version; 0 means "does not exist".
    #[must_use]
    pub fn unless_version(version: ObjectVersion) -> Self {
        if version == ObjectVersion(0) {
            return Self::EXISTS;
        }
        Self {
            version_not_equal: Some(version),
            ..Self::ABSENT
        }
    }

    /// Whether an object in this state is refused. `current` is `None` when there is no object.
    #[must_use]
    pub fn reject(&self, current: Option<ObjectVersion>) -> bool {
        match current {
            None => self.does_not_exist,
            Some(version) => {
                self.exists
                    || self.version_equal == Some(version)
                    || self.version_not_equal.is_some_and(|v| v != version)
                    || self.version_less.is_some_and(|v| version < v)
            }
        }
    }
}

/// Bytes of a request, and the buffer that they lie in if it can be shared instead of copied.
#[derive(Clone, Copy, Debug)]
pub struct Payload<'a> {
    bytes: &'a [u8],
    shared: Option<&'a Bytes>,
}

impl<'a> Payload<'a> {
    /// The bytes.
    #[must_use]
    pub fn bytes(&self) -> &'a [u8] {
        self.bytes
    }

    /// The bytes as a buffer of their own: shared where that is possible.
    #[must_use]
    pub fn to_shared(&self) -> Bytes {
        match self.shared {
            Some(shared) => shared.clone(),
            None => Bytes::copy_from_slice(self.bytes),
        }
    }
}

impl PartialEq for Payload<'_> {
    fn eq(&self, other: &Self) -> bool {
        self.bytes == other.bytes
    }
}

impl Eq for Payload<'_> {}

impl<'a> From<&'a [u8]> for Payload<'a> {
    fn from(bytes: &'a [u8]) -> Self {
        Self {
            bytes,
            shared: None,
        }
    }
}

impl<'a> From<&'a Bytes> for Payload<'a> {
    fn from(shared: &'a Bytes) -> Self {
        Self {
            bytes: shared,
            shared: Some(shared),
        }
    }
}

/// What [`Change::Add`] adds.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Addend<'a> {
    /// A 64-bit integer; the object holds one as canonical decimal text. Overflow is refused.
    Integer(i64),
    /// A decimal number, perhaps with a point and an exponent; the sum is exact to 17 digits after
    /// the point.
    Decimal(&'a str),
}

/// What a [`BitStep`] does with its field.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum BitAction {
    /// Read it.
    Get,
    /// Set it; gives the number that it held.
    Set(i64),
    /// Add to it; gives the sum.
    Add(i64),
}

/// The treatment of a number that does not fit its field.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum BitOverflow {
    /// The lowest bits are kept.
    Wrap,
    /// The nearest number that fits is taken.
    Saturate,
    /// The step changes nothing and gives none.
    Fail,
}

/// One step of a change of bits: a field of up to 64 bits at some bit of the value. Bits count from
/// the highest of the first byte, as in Redis.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct BitStep {
    /// What to do.
    pub action: BitAction,
    /// Whether the field holds a number in two's complement.
    pub signed: bool,
    /// Bits of the field: 1 to 64, or to 63 when unsigned.
    pub width: u8,
    /// Its first bit.
    pub offset: u64,
    /// What to do with what does not fit.
    pub overflow: BitOverflow,
}

impl BitStep {
    /// Reads one bit.
    #[must_use]
    pub fn get_bit(offset: u64) -> Self {
        Self {
            action: BitAction::Get,
            signed: false,
            width: 1,
            offset,
            overflow: BitOverflow::Wrap,
        }
    }

    /// Sets one bit and gives what it was.
    #[must_use]
    pub fn set_bit(offset: u64, bit: bool) -> Self {
        Self {
            action: BitAction::Set(i64::from(bit)),
            ..Self::get_bit(offset)
        }
    }

    /// Whether the field is one that there can be.
    #[must_use]
    pub fn is_sound(&self) -> bool {
        let most = if self.signed { 64 } else { 63 };
        (1..=most).contains(&self.width) && self.offset.checked_add(64).is_some()
    }
}

/// How long an object lives once a change has written it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Lifetime {
    /// As long as it would have without the change; a new object for ever.
    Keep,
    /// For ever.
    Endless,
    /// Until then.
    Until(Deadline),
    /// This number of milliseconds from when its owner judges the change. Those of a retry count
    /// from the first time.
    For(u64),
}

impl Lifetime {
    /// The one that a change has unless its request says another: a put makes a new object, and
    /// the others change one.
    #[must_use]
    pub fn of_change(change: &Change<'_>) -> Self {
        match change {
            Change::Put(_) | Change::PutVersion { .. } => Self::Endless,
            Change::Delete
            | Change::Add(_)
            | Change::Append(_)
            | Change::SetRange { .. }
            | Change::Bits(_)
            | Change::Touch(_) => Self::Keep,
        }
    }

    /// The deadline that an object with the deadline `current` gets.
    #[must_use]
    pub fn deadline(self, current: Option<Deadline>, now: UnixMs) -> Option<Deadline> {
        match self {
            Self::Keep => current,
            Self::Endless => None,
            Self::Until(deadline) => Some(deadline),
            Self::For(ms) => Some(Deadline::after(now, ms)),
        }
    }

    /// Whether it names a time, so that somebody has to say what time it is.
    #[must_use]
    pub fn is_bounded(self) -> bool {
        match self {
            Self::Keep | Self::Endless => false,
            Self::Until(_) | Self::For(_) => true,
        }
    }
}

/// When [`Change::Touch`] changes the deadline. An object without one counts as one whose deadline
/// is later than all.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum TouchIf {
    /// Always.
    Always,
    /// It has none.
    Endless,
    /// It has one.
    Bounded,
    /// The new one is later.
    Later,
    /// The new one is earlier.
    Earlier,
    /// It has one, and the new one is earlier.
    BoundedAndEarlier,
}

impl TouchIf {
    /// All of them, by their numbers on the wire.
    pub const ALL: [Self; 6] = [
        Self::Always,
        Self::Endless,
        Self::Bounded,
        Self::Later,
        Self::Earlier,
        Self::BoundedAndEarlier,
    ];

    /// Whether a deadline may be replaced by that other one.
    #[must_use]
    pub fn allows(self, current: Option<Deadline>, new: Option<Deadline>) -> bool {
        let is_later = |one: Option<Deadline>, other: Option<Deadline>| match (one, other) {
            (Some(one), Some(other)) => one > other,
            (None, Some(_)) => true,
            (_, None) => false,
        };
        match self {
            Self::Always => true,
            Self::Endless => current.is_none(),
            Self::Bounded => current.is_some(),
            Self::Later => is_later(new, current),
            Self::Earlier => is_later(current, new),
            Self::BoundedAndEarlier => current.is_some() && is_later(current, new),
        }
    }
}

/// The highest version that [`Change::PutVersion`] may ask for: half of all, so that writes never
/// come to the end.
pub const PUT_VERSION_MAX: ObjectVersion = ObjectVersion(1 << 63);

/// A change of the value of an object.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Change<'a> {
    /// It is this from now on.
    Put(Payload<'a>),
    /// There is no object any more.
    Delete,
    /// A number is added to it; an absent object counts as 0. Gives the sum.
    Add(Addend<'a>),
    /// Bytes are put behind it; an absent object counts as empty. Gives the length.
    Append(Payload<'a>),
    /// Bytes in it are replaced, behind zeros where it is shorter. An empty `bytes` leaves the
    /// value as it is. Gives the length.
    SetRange {
        /// The first byte replaced.
        offset: u64,
        /// The new bytes.
        bytes: Payload<'a>,
    },
    /// Steps on fields of bits, in their order, behind zeros where it is shorter. Gives a number
    /// for each step.
    Bits(&'a [BitStep]),
    /// The value stays; the object gets the lifetime of the mutation. One that is over at once
    /// deletes it. Gives 1 where an object got its lifetime, else 0.
    Touch(TouchIf),
    /// It is this from now on, as after [`Self::Put`], and has the version that it had in another
    /// cluster. Where a put would give a higher one, it gets that one. The safe version stays:
    /// other objects are to get theirs back, too.
    PutVersion {
        /// The value.
        value: Payload<'a>,
        /// The version that it had: 1 to [`PUT_VERSION_MAX`].
        version: ObjectVersion,
    },
}

impl Change<'_> {
    /// Its kind.
    #[must_use]
    pub fn kind(&self) -> ChangeKind {
        match self {
            Self::Put(_) => ChangeKind::Put,
            Self::Delete => ChangeKind::Delete,
            Self::Add(Addend::Integer(_)) => ChangeKind::AddInteger,
            Self::Add(Addend::Decimal(_)) => ChangeKind::AddDecimal,
            Self::Append(_) => ChangeKind::Append,
            Self::SetRange { .. } => ChangeKind::SetRange,
            Self::Bits(_) => ChangeKind::Bits,
            Self::Touch(_) => ChangeKind::Touch,
            Self::PutVersion { .. } => ChangeKind::PutVersion,
        }
    }

    /// The least version that an object has once the change has written it; 0: the next one.
    #[must_use]
    #[inline]
    pub fn least_version(&self) -> ObjectVersion {
        match self {
            Self::PutVersion { version, .. } => *version,
            Self::Put(_)
            | Self::Delete
            | Self::Add(_)
            | Self::Append(_)
            | Self::SetRange { .. }
            | Self::Bits(_)
            | Self::Touch(_) => ObjectVersion(0),
        }
    }

    /// Whether it can answer with the value from before.
    #[must_use]
    pub fn may_return_old(&self) -> bool {
        match self {
            Self::Put(_) | Self::Delete | Self::Touch(_) => true,
            Self::Add(_)
            | Self::Append(_)
            | Self::SetRange { .. }
            | Self::Bits(_)
            | Self::PutVersion { .. } => false,
        }
    }

    /// Whether this is an outcome that the change may have. A retry whose kept outcome is another
    /// one's was numbered wrongly.
    #[must_use]
    pub fn gives(&self, outcome: &Outcome) -> bool {
        match (self, outcome) {
            (_, Outcome::Rejected { .. })
            | (
                Self::Put(_) | Self::PutVersion { .. },
                Outcome::Written { .. } | Outcome::Refused(_),
            )
            | (Self::Delete, Outcome::Deleted { .. })
            | (Self::Add(_), Outcome::Written { .. } | Outcome::Refused(_))
            | (
                Self::Append(_) | Self::SetRange { .. } | Self::Bits(_),
                Outcome::Written { .. } | Outcome::Unchanged { .. } | Outcome::Refused(_),
            )
            | (
                Self::Touch(_),
                Outcome::Written { .. } | Outcome::Unchanged { .. } | Outcome::Deleted { .. },
            ) => true,
            (Self::Put(_) | Self::Delete | Self::Add(_) | Self::Touch(_), _)
            | (Self::PutVersion { .. }, _)
            | (Self::Append(_) | Self::SetRange { .. } | Self::Bits(_), _) => false,
        }
    }

    /// Bytes of the change that are bulk: about what it takes beside its key.
    #[must_use]
    pub fn bulk_len(&self) -> usize {
        match self {
            Self::Put(bytes)
            | Self::Append(bytes)
            | Self::SetRange { bytes, .. }
            | Self::PutVersion { value: bytes, .. } => bytes.bytes().len(),
            Self::Delete | Self::Add(Addend::Integer(_)) | Self::Touch(_) => 0,
            Self::Add(Addend::Decimal(text)) => text.len(),
            Self::Bits(steps) => core::mem::size_of_val(*steps),
        }
    }
}

/// A request to change one object.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Mutation<'a> {
    /// The operation; without identity where a retry cannot happen.
    pub id: OperationId,
    /// Its table.
    pub table: TableId,
    /// Its key.
    pub key: &'a [u8],
    /// The hash of the key, where this process has computed it. It is not sent.
    pub hash: Option<KeyHash>,
    /// When to refuse, by existence and version.
    pub rules: RejectRules,
    /// Refuse unless the object exists with exactly this value.
    pub value_is: Option<&'a [u8]>,
    /// Whether the outcome is to hold the value from before, where the change allows that
    /// ([`Change::may_return_old`]).
    pub returns_old: bool,
    /// How long the object lives then.
    pub lifetime: Lifetime,
    /// What to do.
    pub change: Change<'a>,
}

impl<'a> Mutation<'a> {
    /// A mutation without conditions and without identity. An object that is put lives for ever,
    /// one that is changed as long as before.
    #[must_use]
    pub fn new(table: TableId, key: &'a [u8], change: Change<'a>) -> Self {
        Self {
            id: OperationId::default(),
            table,
            key,
            hash: None,
            rules: RejectRules::NONE,
            value_is: None,
            returns_old: false,
            lifetime: Lifetime::of_change(&change),
            change,
        }
    }
}

/// A part of a value, by bytes or by bits, the last one included. Negative places count from the
/// end, as in Redis.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Span {
    /// The first place.
    pub start: i64,
    /// The last place; `None`: as far as the value goes.
    pub end: Option<i64>,
    /// Whether places are bits.
    pub bits: bool,
}

impl Span {
    /// All of it.
    pub const ALL: Self = Self {
        start: 0,
        end: None,
        bits: false,
    };
}

/// The part of a value that a read asks for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Projection<'a> {
    /// All of it, as bytes.
    Value,
    /// Nothing: whether the object exists, and its version.
    Nothing,
    /// Its length.
    Length,
    /// Some of its bytes.
    Range(Span),
    /// Fields of bits; steps that read only.
    Bits(&'a [BitStep]),
    /// How many bits are set.
    BitCount(Span),
    /// Where the first such bit is; -1 when there is none. Behind the end everything is 0, unless
    /// the span has one.
    BitPosition {
        /// The bit looked for.
        bit: bool,
        /// Where to look.
        span: Span,
    },
    /// When it expires, in milliseconds since 1970; -1 when it does not.
    Deadline,
    /// Milliseconds until it expires; -1 when it does not.
    TimeLeft,
}

impl Projection<'_> {
    /// Its kind.
    #[must_use]
    pub fn kind(&self) -> ProjectionKind {
        match self {
            Self::Value => ProjectionKind::Value,
            Self::Nothing => ProjectionKind::Nothing,
            Self::Length => ProjectionKind::Length,
            Self::Range(_) => ProjectionKind::Range,
            Self::Bits(_) => ProjectionKind::Bits,
            Self::BitCount(_) => ProjectionKind::BitCount,
            Self::BitPosition { .. } => ProjectionKind::BitPosition,
            Self::Deadline => ProjectionKind::Deadline,
            Self::TimeLeft => ProjectionKind::TimeLeft,
        }
    }
}

/// A request to read one object.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Get<'a> {
    /// Its table.
    pub table: TableId,
    /// Its key.
    pub key: &'a [u8],
    /// The hash of the key, where this process has computed it. It is not sent.
    pub hash: Option<KeyHash>,
    /// When to refuse.
    pub rules: RejectRules,
    /// The part of its value that is asked for.
    pub projection: Projection<'a>,
}

impl<'a> Get<'a> {
    /// Reads the whole value.
    #[must_use]
    pub fn new(table: TableId, key: &'a [u8]) -> Self {
        Self {
            table,
            key,
            hash: None,
            rules: RejectRules::NONE,
            projection: Projection::Value,
        }
    }
}

/// The result of an operation beside versions.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub enum Output {
    /// Nothing, or that there was no value.
    #[default]
    Nothing,
    /// A number: a sum, a length, a count, a place.
    Integer(i64),
    /// A value, a part of one, or the text of a decimal sum.
    Bytes(Bytes),
    /// One number for each step on bits; `None` where it did not fit.
    Integers(Arc<[Option<i64>]>),
}

impl Output {
    /// Bytes that it takes beyond a fixed size.
    #[must_use]
    pub fn bulk_len(&self) -> usize {
        match self {
            Self::Nothing | Self::Integer(_) => 0,
            Self::Bytes(bytes) => bytes.len(),
            Self::Integers(numbers) => core::mem::size_of_val(&numbers[..]),
        }
    }
}

/// Why the value does not allow a change. Nothing was changed; trying again gives the same while
/// the value stays.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Unfit {
    /// The value is no number of that kind.
    NotANumber,
    /// The sum does not fit, or is not finite.
    Overflow,
    /// The value would be longer than [`VALUE_MAX`](pluvio_units::VALUE_MAX).
    TooLong,
}

/// The result of an operation: its reply is made from this alone.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Outcome {
    /// A value was written.
    Written {
        /// The object's new version.
        version: ObjectVersion,
        /// The version it replaced; 0 when the object is new.
        replaced: ObjectVersion,
        /// What the change gives.
        output: Output,
    },
    /// Nothing had to be changed, or was asked to be.
    Unchanged {
        /// The object's version; 0 when there is no object.
        version: ObjectVersion,
        /// What the operation gives.
        output: Output,
    },
    /// The object is gone.
    Deleted {
        /// The version that was deleted; 0 when there was no object.
        version: ObjectVersion,
        /// Its value, if the request asked for it.
        output: Output,
    },
    /// A condition did not hold; nothing was changed.
    Rejected {
        /// The object's version; 0 when there was no object.
        version: ObjectVersion,
        /// Its value, if the request asked for the old one.
        output: Output,
    },
    /// The value does not allow the change; nothing was changed.
    Refused(Unfit),
    /// Several operations were one transaction.
    Together {
        /// Whether they were done. If not, nothing was changed by any of them.
        committed: bool,
        /// One for each step, in their order. Where they were not done: up to the step that did not
        /// hold.
        steps: Arc<[Outcome]>,
    },
}

impl Outcome {
    /// Bytes that it holds beyond a fixed size.
    #[must_use]
    pub fn bulk_len(&self) -> usize {
        match self {
            Self::Together { steps, .. } => steps.iter().map(Self::bulk_len_as_step).sum(),
            other => other.output().bulk_len(),
        }
    }

    /// Bytes that it adds to the outcome of a transaction of which it is a step.
    #[must_use]
    pub fn bulk_len_as_step(&self) -> usize {
        size_of::<Self>() + self.bulk_len()
    }

    /// Whether a condition did not hold, or the value did not allow the change.
    #[must_use]
    pub fn is_failure(&self) -> bool {
        match self {
            Self::Rejected { .. } | Self::Refused(_) => true,
            Self::Together { committed, .. } => !committed,
            Self::Written { .. } | Self::Unchanged { .. } | Self::Deleted { .. } => false,
        }
    }

    /// The result beside versions.
    #[must_use]
    pub fn output(&self) -> &Output {
        const NOTHING: &Output = &Output::Nothing;
        match self {
            Self::Written { output, .. }
            | Self::Unchanged { output, .. }
            | Self::Deleted { output, .. }
            | Self::Rejected { output, .. } => output,
            Self::Refused(_) | Self::Together { .. } => NOTHING,
        }
    }

    /// [`Self::output`], taken out.
    #[must_use]
    pub fn into_output(self) -> Output {
        match self {
            Self::Written { output, .. }
            | Self::Unchanged { output, .. }
            | Self::Deleted { output, .. }
            | Self::Rejected { output, .. } => output,
            Self::Refused(_) | Self::Together { .. } => Output::Nothing,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rules_refuse_what_they_say() {
        let (v3, v4) = (ObjectVersion(3), ObjectVersion(4));
        let none = RejectRules::NONE;
        assert!(!none.reject(None) && !none.reject(Some(v3)));
        assert!(RejectRules::EXISTS.reject(Some(v3)) && !RejectRules::EXISTS.reject(None));
        assert!(RejectRules::ABSENT.reject(None) && !RejectRules::ABSENT.reject(Some(v3)));
        let exactly = RejectRules::unless_version(v3);
        assert!(exactly.reject(None) && exactly.reject(Some(v4)) && !exactly.reject(Some(v3)));
        let less = RejectRules {
            version_less: Some(v4),
            ..none
        };
        assert!(less.reject(Some(v3)) && !less.reject(Some(v4)) && !less.reject(None));
        let equal = RejectRules {
            version_equal: Some(v4),
            ..none
        };
        assert!(equal.reject(Some(v4)) && !equal.reject(Some(v3)));
    }

    #[test]
    fn an_endless_object_counts_as_one_with_the_latest_deadline() {
        let at = |ms| Deadline::new(ms);
        for (rule, current, new, allowed) in [
            (TouchIf::Always, at(5), at(1), true),
            (TouchIf::Endless, None, at(5), true),
            (TouchIf::Endless, at(9), at(5), false),
            (TouchIf::Bounded, None, at(5), false),
            (TouchIf::Bounded, at(9), at(5), true),
            (TouchIf::Later, at(5), at(6), true),
            (TouchIf::Later, at(5), at(5), false),
            (TouchIf::Later, None, at(5), false),
            (TouchIf::Earlier, at(5), at(4), true),
            (TouchIf::Earlier, at(5), at(5), false),
            (TouchIf::Earlier, None, at(5), true),
            (TouchIf::BoundedAndEarlier, None, at(5), false),
            (TouchIf::BoundedAndEarlier, at(6), at(5), true),
            (TouchIf::BoundedAndEarlier, at(5), at(6), false),
        ] {
            assert_eq!(
                rule.allows(current, new),
                allowed,
                "{rule:?} {current:?} {new:?}"
            );
        }
    }

    #[test]
    fn fields_of_bits_have_limits() {
        assert!(BitStep::get_bit(0).is_sound() && BitStep::set_bit(u64::MAX - 64, true).is_sound());
        assert!(!BitStep::get_bit(u64::MAX).is_sound());
        for (signed, width, sound) in [(true, 64, true), (false, 64, false), (false, 0, false)] {
            let step = BitStep {
                signed,
                width,
                ..BitStep::get_bit(0)
            };
            assert_eq!(step.is_sound(), sound, "{step:?}");
        }
    }
}
