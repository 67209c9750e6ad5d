//! The kinds of changes and projections: one list each of numbers and names.
//!
//! Encoder, decoder, the texts of refusals and the generators of tests go by these lists. So the
//! compiler, or a test, names each place that a new kind needs.
//!
//! Values only; any thread. Not here: what a kind carries ([`Change`](crate::Change),
//! [`Projection`](crate::Projection)), and how that is encoded (crate `wire`).

macro_rules! kinds {
    ($(#[$about:meta])* $name:ident { $($(#[$what:meta])* $kind:ident = $code:literal, $text:literal;)+ }) => {
        $(#[$about])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
        pub enum $name {
            $($(#[$what])* $kind,)+
        }

        impl $name {
            /// All of them, by their numbers.
            pub const ALL: &[Self] = &[$(Self::$kind),+];

            /// The number on the wire.
            #[must_use]
            pub const fn code(self) -> u8 {
                match self {
                    $(Self::$kind => $code,)+
                }
            }

            /// The kind with this number; `None` where this version has none.
            #[must_use]
            pub const fn of_code(code: u8) -> Option<Self> {
                match code {
                    $($code => Some(Self::$kind),)+
                    _ => None,
                }
            }

            /// The name, for people.
            #[must_use]
            pub const fn text(self) -> &'static str {
                match self {
                    $(Self::$kind => $text,)+
                }
            }
        }
    };
}

kinds! {
    /// The kind of a [`Change`](crate::Change). A new one takes the next free number; numbers are
    /// never reused.
    ChangeKind {
        /// [`Change::Put`](crate::Change::Put).
        Put = 1, "put";
        /// [`Change::Delete`](crate::Change::Delete).
        Delete = 2, "delete";
        /// [`Change::Add`](crate::Change::Add) of an integer.
        AddInteger = 3, "add integer";
        /// [`Change::Add`](crate::Change::Add) of a decimal number.
        AddDecimal = 4, "add decimal";
        /// [`Change::Append`](crate::Change::Append).
        Append = 5, "append";
        /// [`Change::SetRange`](crate::Change::SetRange).
        SetRange = 6, "set range";
        /// [`Change::Bits`](crate::Change::Bits).
        Bits = 7, "bits";
        /// [`Change::Touch`](crate::Change::Touch).
        Touch = 8, "touch";
        /// [`Change::PutVersion`](crate::Change::PutVersion).
        PutVersion = 9, "put version";
    }
}

kinds! {
    /// The kind of a [`Projection`](crate::Projection). A new one takes the next free number;
    /// numbers are never reused.
    ProjectionKind {
        /// [`Projection::Value`](crate::Projection::Value).
        Value = 1, "value";
        /// [`Projection::Nothing`](crate::Projection::Nothing).
        Nothing = 2, "nothing";
        /// [`Projection::Length`](crate::Projection::Length).
        Length = 3, "length";
        /// [`Projection::Range`](crate::Projection::Range).
        Range = 4, "range";
        /// [`Projection::Bits`](crate::Projection::Bits).
        Bits = 5, "bits";
        /// [`Projection::BitCount`](crate::Projection::BitCount).
        BitCount = 6, "bit count";
        /// [`Projection::BitPosition`](crate::Projection::BitPosition).
        BitPosition = 7, "bit position";
        /// [`Projection::Deadline`](crate::Projection::Deadline).
        Deadline = 8, "deadline";
        /// [`Projection::TimeLeft`](crate::Projection::TimeLeft).
        TimeLeft = 9, "time left";
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_count_up_from_one() {
        for (kind, code) in ChangeKind::ALL.iter().zip(1..) {
            assert_eq!(
                (kind.code(), ChangeKind::of_code(code)),
                (code, Some(*kind))
            );
        }
        for (kind, code) in ProjectionKind::ALL.iter().zip(1..) {
            let of_code = ProjectionKind::of_code(code);
            assert_eq!((kind.code(), of_code), (code, Some(*kind)));
        }
    }
}
