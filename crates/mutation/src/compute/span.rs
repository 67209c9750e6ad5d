//! Parts of a value, by bytes or bits, and what is in them: as Redis's GETRANGE, BITCOUNT and
//! BITPOS cut and look.

use crate::value::Span;

/// The bytes of `value` in `span`; whether places are bits does not matter.
pub(super) fn range(span: Span, value: &[u8]) -> &[u8] {
    let places = if crosses(span) {
        None
    } else {
        places(span, value.len() as u64)
    };
    places.map_or(&[], |(first, last)| bytes_between(value, first, last))
}

/// Bits of `value` that are 1 in `span`.
pub(super) fn count(span: Span, value: &[u8]) -> i64 {
    if crosses(span) {
        return 0;
    }
    let Some((first, last)) = bit_places(span, value) else {
        return 0;
    };
    let bytes = bytes_between(value, first / 8, last / 8);
    let (words, rest) = bytes.as_chunks::<8>();
    let words = words
        .iter()
        .map(|w| u64::from(u64::from_ne_bytes(*w).count_ones()));
    let rest = rest.iter().map(|b| u64::from(b.count_ones()));
    let all = words.sum::<u64>() + rest.sum::<u64>();
    let ahead = bytes.first().map_or(0, |b| b & !from_bit(first));
    let behind = bytes
        .last()
        .map_or(0, |b| b & from_bit(last) & !bit_at(last));
    let outside = u64::from(ahead.count_ones() + behind.count_ones());
    number(all.saturating_sub(outside))
}

/// The first bit of `value` in `span` that is `bit`; -1 when there is none. Without an end, the
/// first 0 may be behind the value, unless nothing is in the span.
pub(super) fn position(bit: bool, span: Span, value: &[u8]) -> i64 {
    // Unlike the others, Redis's BITPOS lets places before the value that cross be its first.
    let Some((first, last)) = bit_places(span, value) else {
        return -1;
    };
    match first_bit(bit, value, first) {
        Some(at) if at <= last => number(at),
        _ if !bit && span.end.is_none() => number(value.len() as u64 * 8),
        _ => -1,
    }
}

/// The first bit that is `bit`, from `first` to the end of the value.
fn first_bit(bit: bool, value: &[u8], first: u64) -> Option<u64> {
    // After this, a 1 is looked for.
    let flip: u8 = if bit { 0 } else { u8::MAX };
    let start = usize::try_from(first / 8).ok()?;
    let (head, rest) = value.get(start..)?.split_first()?;
    let head = (head ^ flip) & from_bit(first);
    if head != 0 {
        return Some(start as u64 * 8 + u64::from(head.leading_zeros()));
    }
    let nothing = u64::from_ne_bytes([flip; 8]);
    let (words, tail) = rest.as_chunks::<8>();
    let skipped = words
        .iter()
        .take_while(|w| u64::from_ne_bytes(**w) == nothing)
        .count();
    let words = words[skipped..].as_flattened().iter();
    let (more, byte) = words
        .chain(tail)
        .map(|b| b ^ flip)
        .enumerate()
        .find(|(_, b)| *b != 0)?;
    let at = start + 1 + skipped * 8 + more;
    Some(at as u64 * 8 + u64::from(byte.leading_zeros()))
}

/// Ends that cross, both counted from the end.
fn crosses(span: Span) -> bool {
    span.end
        .is_some_and(|end| end < 0 && span.start < 0 && span.start > end)
}

/// The first and the last bit in `span`; `None` when there is nothing in it.
fn bit_places(span: Span, value: &[u8]) -> Option<(u64, u64)> {
    let bytes = value.len() as u64;
    if span.bits {
        return places(span, bytes * 8);
    }
    let (first, last) = places(span, bytes)?;
    Some((first * 8, last * 8 + 7))
}

/// The first and the last place in `span` of those below `total`; `None` when there is none.
fn places(span: Span, total: u64) -> Option<(u64, u64)> {
    let place = |at: i64| match u64::try_from(at) {
        Ok(at) => at,
        Err(_) => total.saturating_sub(at.unsigned_abs()),
    };
    let end = total.checked_sub(1)?;
    let last = span.end.map_or(end, |at| place(at).min(end));
    let first = place(span.start);
    (first <= last).then_some((first, last))
}

fn bytes_between(value: &[u8], first: u64, last: u64) -> &[u8] {
    match (usize::try_from(first), usize::try_from(last)) {
        (Ok(first), Ok(last)) => value.get(first..=last).unwrap_or_default(),
        _ => &[],
    }
}

/// The bits of a byte from that one on.
fn from_bit(place: u64) -> u8 {
    u8::MAX >> (place % 8)
}

fn bit_at(place: u64) -> u8 {
    0x80 >> (place % 8)
}

fn number(places: u64) -> i64 {
    i64::try_from(places).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn span(start: i64, end: impl Into<Option<i64>>, bits: bool) -> Span {
        Span {
            start,
            end: end.into(),
            bits,
        }
    }

    #[test]
    fn ranges_are_cut_as_in_redis() {
        for (value, start, end, expected) in [
            ("Hello", 0, -1, "Hello"),
            ("Hello", 1, 2, "el"),
            ("Hello", -3, -2, "ll"),
            ("Hello", -2, -3, ""),
            ("Hello", 3, 1, ""),
            ("Hello", -100, 100, "Hello"),
            ("Hello", 5, 9, ""),
            ("Hello", i64::MIN, i64::MAX, "Hello"),
            ("Hello", 0, i64::MIN, "H"),
            ("Hello", i64::MAX, i64::MAX, ""),
            ("Hello", -100, -200, ""),
            ("Hello", -200, -100, "H"),
            ("", 0, -1, ""),
            ("", -1, -1, ""),
            ("This is a string", 0, 3, "This"),
            ("This is a string", -3, -1, "ing"),
            ("This is a string", 0, -1, "This is a string"),
            ("This is a string", 10, 100, "string"),
        ] {
            let part = range(span(start, end, false), value.as_bytes());
            assert_eq!(part, expected.as_bytes(), "{value:?} {start} {end}");
        }
        assert_eq!(range(span(2, None, false), b"Hello"), b"llo");
        assert_eq!(range(span(-2, None, false), b"Hello"), b"lo");
        assert_eq!(range(Span::ALL, b"Hello"), b"Hello");
    }

    #[test]
    fn bits_are_counted_as_in_redis() {
        for (start, end, bits, expected) in [
            (0, None, false, 26),
            (0, Some(0), false, 4),
            (1, Some(1), false, 6),
            (5, Some(30), true, 17),
            (0, Some(-5), false, 10),
            (-2, Some(-1), false, 7),
            (-1, Some(-2), false, 0),
            (-2, Some(-1), true, 1),
            (-100, Some(-200), false, 0),
            (-200, Some(-100), false, 4),
            (6, Some(9), false, 0),
            (i64::MIN, Some(i64::MAX), true, 26),
        ] {
            let found = count(span(start, end, bits), b"foobar");
            assert_eq!(found, expected, "{start} {end:?} {bits}");
        }
        assert_eq!(count(Span::ALL, b""), 0);
    }

    #[test]
    fn bits_are_found_as_in_redis() {
        let ones: &[u8] = b"\xff\xff\xff";
        let zeros: &[u8] = b"\0\0\0";
        let mixed: &[u8] = b"\x00\xff\xf0";
        for (value, bit, start, end, bits, expected) in [
            (&b"\xff\xf0\x00"[..], false, 0, None, false, 12),
            (mixed, true, 0, None, false, 8),
            (mixed, true, 2, None, false, 16),
            (mixed, true, 2, Some(-1), false, 16),
            (mixed, true, 7, Some(15), true, 8),
            (mixed, true, 7, Some(-3), true, 8),
            (mixed, false, 8, Some(19), true, -1),
            (mixed, false, 8, Some(20), true, 20),
            (zeros, true, 0, None, false, -1),
            (zeros, true, 7, Some(-3), true, -1),
            // Behind a value without end there are zeros.
            (ones, false, 0, None, false, 24),
            (ones, false, 2, None, false, 24),
            (ones, false, 20, None, true, 24),
            (ones, false, 0, Some(-1), false, -1),
            (ones, false, 0, Some(100), false, -1),
            (ones, false, 3, None, false, -1),
            (ones, false, 24, None, true, -1),
            (ones, true, 1, Some(0), false, -1),
            // Places before the value that cross are its first.
            (zeros, false, -100, Some(-200), false, 0),
            (b"", false, 0, None, false, -1),
            (b"", true, 0, None, false, -1),
        ] {
            let found = position(bit, span(start, end, bits), value);
            assert_eq!(found, expected, "{value:?} {bit} {start} {end:?} {bits}");
        }
    }

    fn any_place(bytes: usize) -> impl Strategy<Value = i64> {
        let near = i64::try_from(bytes * 8).unwrap() + 10;
        prop_oneof![8 => -near..near, 1 => any::<i64>()]
    }

    /// A value of mostly equal bytes, so that first bits are far away, and a span in it.
    fn any_case() -> impl Strategy<Value = (Vec<u8>, Span)> {
        (0_usize..80, any::<bool>()).prop_flat_map(|(bytes, high)| {
            let usual = if high { 0xff } else { 0 };
            let byte = prop_oneof![30 => Just(usual), 1 => any::<u8>()];
            let value = proptest::collection::vec(byte, bytes);
            let end = proptest::option::of(any_place(bytes));
            (value, any_place(bytes), end, any::<bool>())
                .prop_map(|(value, start, end, bits)| (value, span(start, end, bits)))
        })
    }

    /// The bits in the span with their places, found one by one.
    fn naive(value: &[u8], span: Span) -> Vec<(i64, bool)> {
        let unit = if span.bits { 1 } else { 8 };
        let total = i128::from(i64::try_from(value.len()).unwrap()) * 8 / unit;
        let place = |at: i64| match at {
            0.. => i128::from(at),
            _ => (total + i128::from(at)).max(0),
        };
        let first = place(span.start);
        let last = span.end.map_or(total - 1, place);
        let places = (0..total * unit).filter(|at| (first..=last).contains(&(at / unit)));
        places
            .map(|at| {
                let byte = value[usize::try_from(at / 8).unwrap()];
                (at.try_into().unwrap(), byte >> (7 - at % 8) & 1 == 1)
            })
            .collect()
    }

    proptest! {
        #[test]
        fn spans_equal_those_of_a_model_bit_by_bit((value, span) in any_case(), bit: bool) {
            let inside = naive(&value, span);
            let found = inside.iter().find(|(_, b)| *b == bit).map(|(at, _)| *at);
            let behind = !bit && span.end.is_none() && !inside.is_empty();
            let behind = behind.then_some(value.len() as i64 * 8);
            prop_assert_eq!(position(bit, span, &value), found.or(behind).unwrap_or(-1));

            let inside = if crosses(span) { vec![] } else { inside };
            let ones = inside.iter().filter(|(_, b)| *b).count();
            prop_assert_eq!(count(span, &value), ones as i64);

            let bytes = Span { bits: false, ..span };
            let inside = if crosses(bytes) { vec![] } else { naive(&value, bytes) };
            let part = inside.iter().step_by(8).map(|(at, _)| value[*at as usize / 8]);
            prop_assert_eq!(range(span, &value), part.collect::<Vec<_>>());
        }
    }
}
