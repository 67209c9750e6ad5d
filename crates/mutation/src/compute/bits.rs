//! Fields of bits inside a value: [`Change::Bits`](crate::Change::Bits) and
//! [`Projection::Bits`](crate::Projection::Bits), as Redis's BITFIELD computes
//! them.
//!
//! ```text
//! byte      0        1
//! bit    01234567 89......     a field: 5 bits from bit 7, highest first
//!        .......x xxxx....
//! ```
//!
//! A field is read and written through a window of 16 bytes from its first byte, as one big-endian
//! number. Bytes behind the value are 0. A width out of range counts as the nearest one within it.

use super::{NewValue, Step, grown};
use crate::value::{BitAction, BitOverflow, BitStep, Output, Unfit};
use pluvio_units::VALUE_MAX;

/// Takes all steps in their order. A value that ends before the last field of a `Set` or `Add`
/// grows to it. It grows even if the number does not fit that field, as in Redis.
pub(super) fn change(steps: &[BitStep], current: Option<&[u8]>) -> Result<Step<'static>, Unfit> {
    let before = current.unwrap_or_default();
    let writing = steps.iter().filter(|s| s.action != BitAction::Get);
    let Some(reach) = writing.map(bytes_reached).max() else {
        return Ok(Step::Keep(read(steps, before)));
    };
    let total = usize::try_from(reach)
        .unwrap_or(usize::MAX)
        .max(before.len());
    if total > VALUE_MAX {
        return Err(Unfit::TooLong);
    }
    let grows = current.is_none() || total > before.len();
    let mut draft = Draft {
        before,
        built: grows.then(|| grown(before, total)),
    };
    let numbers = steps.iter().map(|step| draft.take(step));
    let output = Output::Integers(numbers.collect::<Vec<_>>().into());
    Ok(match draft.built {
        Some(value) => Step::Put(NewValue::Built(value), output),
        None => Step::Keep(output),
    })
}

/// The numbers in the fields of `steps`, whatever their actions.
pub(super) fn read(steps: &[BitStep], value: &[u8]) -> Output {
    let numbers = steps.iter().map(|step| Some(Field::of(step).get(value)));
    Output::Integers(numbers.collect::<Vec<_>>().into())
}

/// A value that is copied at its first difference.
struct Draft<'v> {
    before: &'v [u8],
    built: Option<Vec<u8>>,
}

impl Draft<'_> {
    fn take(&mut self, step: &BitStep) -> Option<i64> {
        let field = Field::of(step);
        let old = field.get(self.built.as_deref().unwrap_or(self.before));
        let new = match step.action {
            BitAction::Get => return Some(old),
            BitAction::Set(number) => field.fit_set(number, step.overflow)?,
            BitAction::Add(by) => field.fit_sum(old, by, step.overflow)?,
        };
        if new != old {
            let value = self.built.get_or_insert_with(|| self.before.to_vec());
            field.set(value, new);
        }
        Some(match step.action {
            BitAction::Get | BitAction::Set(_) => old,
            BitAction::Add(_) => new,
        })
    }
}

/// Bytes that a value needs to hold the field of `step`.
fn bytes_reached(step: &BitStep) -> u64 {
    let field = Field::of(step);
    let last = field.offset.saturating_add(u64::from(field.width) - 1);
    last / 8 + 1
}

/// A field with a width that there can be.
#[derive(Clone, Copy)]
struct Field {
    offset: u64,
    /// 1 to 64.
    width: u32,
    signed: bool,
}

impl Field {
    fn of(step: &BitStep) -> Self {
        let most = if step.signed { 64 } else { 63 };
        Self {
            offset: step.offset,
            width: u32::from(step.width).clamp(1, most),
            signed: step.signed,
        }
    }

    /// The smallest and the largest number that fits.
    fn limits(self) -> (i128, i128) {
        if self.signed {
            let half = 1_i128 << (self.width - 1);
            (-half, half - 1)
        } else {
            (0, (1 << self.width) - 1)
        }
    }

    /// The number that the lowest bits of `number` are.
    fn wrap(self, number: i128) -> i64 {
        let unused = 64 - self.width;
        // Cut to 64 bits on purpose.
        let top = (number as u64) << unused;
        if self.signed {
            (top as i64) >> unused
        } else {
            (top >> unused) as i64
        }
    }

    /// The content of the field after it was set to `number`.
    fn fit_set(self, number: i64, overflow: BitOverflow) -> Option<i64> {
        let (low, high) = self.limits();
        // Redis takes a negative number for an unsigned field as a large one.
        let number = if self.signed {
            i128::from(number)
        } else {
            i128::from(number.cast_unsigned())
        };
        // Redis takes a number as too large when its distance from the largest one that fits
        // overflows, although it is negative.
        let above = number > high || high - number > i128::from(i64::MAX);
        let fits = (low..=high).contains(&number);
        self.fit(number, fits, above, overflow)
    }

    /// The content of the field after `by` was added to `old`.
    fn fit_sum(self, old: i64, by: i64, overflow: BitOverflow) -> Option<i64> {
        let (low, high) = self.limits();
        let sum = i128::from(old) + i128::from(by);
        self.fit(sum, (low..=high).contains(&sum), sum > high, overflow)
    }

    /// The content of the field for `number`. `above` says on which side a number lies that does
    /// not fit.
    fn fit(self, number: i128, fits: bool, above: bool, overflow: BitOverflow) -> Option<i64> {
        let (low, high) = self.limits();
        match overflow {
            BitOverflow::Saturate if !fits => Some(self.wrap(if above { high } else { low })),
            BitOverflow::Fail if !fits => None,
            BitOverflow::Wrap | BitOverflow::Saturate | BitOverflow::Fail => {
                Some(self.wrap(number))
            }
        }
    }

    /// The field in its window, before and behind it other bits.
    fn window(self, value: &[u8]) -> [u8; 16] {
        let mut window = [0; 16];
        let first = usize::try_from(self.offset / 8).unwrap_or(usize::MAX);
        if let Some(bytes) = value.get(first..) {
            let length = bytes.len().min(window.len());
            window[..length].copy_from_slice(&bytes[..length]);
        }
        window
    }

    /// Bits of the window behind the field: 57 or more.
    fn shift(self) -> u32 {
        128 - self.width - (self.offset % 8) as u32
    }

    fn get(self, value: &[u8]) -> i64 {
        let window = u128::from_be_bytes(self.window(value));
        self.wrap((window >> self.shift()) as i128)
    }

    /// Writes the lowest bits of `number`, as far as the value goes.
    fn set(self, value: &mut [u8], number: i64) {
        let mask = (u128::MAX >> (128 - self.width)) << self.shift();
        let bits = ((number as u128) << self.shift()) & mask;
        let window = u128::from_be_bytes(self.window(value)) & !mask | bits;
        let first = usize::try_from(self.offset / 8).unwrap_or(usize::MAX);
        if let Some(bytes) = value.get_mut(first..) {
            let length = bytes.len().min(16);
            bytes[..length].copy_from_slice(&window.to_be_bytes()[..length]);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    use BitAction::{Add, Get, Set};
    use BitOverflow::{Fail, Saturate, Wrap};

    fn step(kind: &str, offset: u64, action: BitAction, overflow: BitOverflow) -> BitStep {
        BitStep {
            action,
            signed: kind.starts_with('i'),
            width: kind[1..].parse().unwrap(),
            offset,
            overflow,
        }
    }

    fn numbers(output: &Output) -> Vec<Option<i64>> {
        match output {
            Output::Integers(numbers) => numbers.to_vec(),
            other => panic!("{other:?}"),
        }
    }

    /// The value behind the steps and their numbers.
    fn run(steps: &[BitStep], current: Option<&[u8]>) -> (Option<Vec<u8>>, Vec<Option<i64>>) {
        match change(steps, current).unwrap() {
            Step::Put(value, output) => (Some(value.to_vec()), numbers(&output)),
            Step::Keep(output) => (current.map(<[u8]>::to_vec), numbers(&output)),
            Step::Delete => panic!("deleted"),
        }
    }

    #[test]
    fn the_examples_of_redis_come_out_the_same() {
        let steps = [step("i5", 100, Add(1), Wrap), step("u4", 0, Get, Wrap)];
        let (value, numbers) = run(&steps, None);
        assert_eq!(numbers, [Some(1), Some(0)]);
        assert_eq!(value.unwrap().len(), 14);

        let steps = [
            step("u2", 100, Add(1), Wrap),
            step("u2", 102, Add(1), Saturate),
        ];
        let mut value = None;
        for expected in [(1, 1), (2, 2), (3, 3), (0, 3)] {
            let (next, numbers) = run(&steps, value.as_deref());
            assert_eq!(numbers, [Some(expected.0), Some(expected.1)]);
            value = next;
        }
        let (_, numbers) = run(&[step("u2", 102, Add(1), Fail)], value.as_deref());
        assert_eq!(numbers, [None]);

        // The picture in the head of Redis's implementation.
        let (value, _) = run(&[step("u5", 7, Set(23), Wrap)], None);
        assert_eq!(value.unwrap(), [0b0000_0001, 0b0111_0000]);
    }

    #[test]
    fn numbers_that_do_not_fit_are_treated_as_in_redis() {
        let max = i64::MAX;
        let min = i64::MIN;
        // Kind, what the field holds, action; the field with Wrap, Saturate, and whether Fail
        // fails.
        for (kind, old, action, wrapped, saturated, fails) in [
            ("u8", 250, Add(10), 4, 255, true),
            ("u8", 5, Add(-10), 251, 0, true),
            ("u8", 5, Add(max), 4, 255, true),
            ("u8", 5, Add(min), 5, 0, true),
            ("u8", 250, Add(5), 255, 255, false),
            ("i8", 120, Add(10), -126, 127, true),
            ("i8", -120, Add(-10), 126, -128, true),
            ("i8", 1, Add(max), 0, 127, true),
            ("i8", -1, Add(min), -1, -128, true),
            ("i8", -128, Add(255), 127, 127, false),
            ("i64", max, Add(1), min, max, true),
            ("i64", min, Add(-1), max, min, true),
            ("i64", min, Add(max), -1, -1, false),
            ("u63", max, Add(1), 0, max, true),
            ("u63", 0, Add(min), 0, 0, true),
            ("u63", max, Add(-max), 0, 0, false),
            ("u8", 1, Set(256), 0, 255, true),
            ("u8", 1, Set(-1), 255, 255, true),
            ("u63", 1, Set(-1), max, max, true),
            ("i8", 1, Set(128), -128, 127, true),
            ("i8", 1, Set(-129), 127, -128, true),
            ("i8", 1, Set(-128), -128, -128, false),
            ("i64", 1, Set(min), min, min, false),
            // In Redis the distance of these from the largest number overflows.
            ("i8", 1, Set(min), 0, 127, true),
            ("i8", 1, Set(min + 127), 127, 127, true),
            ("i8", 1, Set(min + 128), -128, -128, true),
            ("i1", 0, Set(1), -1, 0, true),
            ("i1", 0, Add(-1), -1, -1, false),
        ] {
            let (start, _) = run(&[step(kind, 3, Set(old), Fail)], None);
            for (overflow, expected) in [
                (Wrap, Some(wrapped)),
                (Saturate, Some(saturated)),
                (Fail, (!fails).then_some(wrapped)),
            ] {
                let (value, given) = run(&[step(kind, 3, action, overflow)], start.as_deref());
                let (_, held) = run(&[step(kind, 3, Get, Wrap)], value.as_deref());
                let what = format!("{kind} {old} {action:?} {overflow:?}");
                assert_eq!(held, [Some(expected.unwrap_or(old))], "{what}");
                let gives = match action {
                    Set(_) => expected.map(|_| old),
                    Get | Add(_) => expected,
                };
                assert_eq!(given, [gives], "{what}");
            }
        }
    }

    #[test]
    fn a_value_grows_to_all_that_is_written_and_for_nothing_else() {
        let reads = [step("u8", 1 << 40, Get, Wrap)];
        assert_eq!(run(&reads, None), (None, vec![Some(0)]));
        assert_eq!(run(&[], Some(b"x")), (Some(b"x".to_vec()), vec![]));
        // A field of which only the beginning is there.
        let across = [step("u16", 0, Get, Wrap), step("i16", 4, Get, Wrap)];
        let (_, numbers) = run(&across, Some(b"\xff"));
        assert_eq!(numbers, [Some(0xff00), Some(-0x1000)]);
        // What fails grows it too.
        let fails = [step("u8", 9, Set(256), Fail)];
        assert_eq!(run(&fails, None), (Some(vec![0; 3]), vec![None]));
        assert_eq!(run(&fails, Some(b"x")).0, Some(b"x\0\0".to_vec()));
        let same = change(&fails, Some(b"xyz")).unwrap();
        assert_eq!(same, Step::Keep(Output::Integers([None].into())));
        let same = change(&[step("u8", 0, Set(120), Wrap)], Some(b"xyz")).unwrap();
        assert_eq!(same, Step::Keep(Output::Integers([Some(120)].into())));
    }

    #[test]
    fn single_bits_are_set_as_in_redis() {
        let (value, old) = run(&[BitStep::set_bit(7, true)], None);
        assert_eq!(
            (value.as_deref(), &old[..]),
            (Some(&[1][..]), &[Some(0)][..])
        );
        let (value, old) = run(&[BitStep::set_bit(7, false)], value.as_deref());
        assert_eq!(
            (value.as_deref(), &old[..]),
            (Some(&[0][..]), &[Some(1)][..])
        );
        assert_eq!(
            run(&[BitStep::set_bit(17, false)], None).0,
            Some(vec![0; 3])
        );
        let last = VALUE_MAX as u64 * 8 - 1;
        let (value, _) = run(&[BitStep::set_bit(last, true)], Some(b"x"));
        assert_eq!(value.unwrap().len(), VALUE_MAX);
        for offset in [last + 1, u64::MAX] {
            let steps = [BitStep::set_bit(0, true), BitStep::set_bit(offset, true)];
            assert_eq!(change(&steps, Some(b"x")), Err(Unfit::TooLong));
        }
    }

    /// Bit by bit.
    fn naive_get(bits: &[bool], step: &BitStep) -> i128 {
        let places = step.offset..step.offset + u64::from(step.width);
        let bit = |at| bits.get(usize::try_from(at).unwrap()) == Some(&true);
        let number = places.fold(0, |n, at| n * 2 + i128::from(bit(at)));
        let negative = step.signed && number >> (step.width - 1) == 1;
        number - (i128::from(negative) << step.width)
    }

    fn naive_step(bits: &mut [bool], step: &BitStep) -> Option<i64> {
        let old = naive_get(bits, step);
        let (low, high) = match step.signed {
            true => (-(1 << (step.width - 1)), (1 << (step.width - 1)) - 1),
            false => (0, (1_i128 << step.width) - 1),
        };
        let wanted = match step.action {
            Get => return Some(old.try_into().unwrap()),
            Set(number) if step.signed => number.into(),
            Set(number) => i128::from(number as u64),
            Add(by) => old + i128::from(by),
        };
        let new = match step.overflow {
            Fail if wanted < low || wanted > high => return None,
            Saturate => wanted.clamp(low, high),
            Wrap | Fail => (wanted - low).rem_euclid(high - low + 1) + low,
        };
        for at in 0..step.width {
            let place = usize::try_from(step.offset).unwrap() + usize::from(at);
            bits[place] = (new >> (step.width - 1 - at)) & 1 == 1;
        }
        let gives = if matches!(step.action, Set(_)) {
            old
        } else {
            new
        };
        Some(gives.try_into().unwrap())
    }

    fn any_number() -> impl Strategy<Value = i64> {
        prop_oneof![any::<i64>(), -300..300_i64, Just(i64::MAX), Just(i64::MIN)]
    }

    fn any_step() -> impl Strategy<Value = BitStep> {
        let action = prop_oneof![
            Just(Get),
            any_number().prop_map(Set),
            any_number().prop_map(Add),
        ];
        let overflow = prop_oneof![Just(Wrap), Just(Saturate), Just(Fail)];
        let kind = (any::<bool>(), 1_u8..=63);
        (action, kind, 0_u64..200, overflow).prop_map(
            |(action, (signed, width), offset, overflow)| {
                // The model does not know of the negative numbers that Redis takes for too large.
                let number_is_odd = signed && matches!(action, Set(n) if n < i64::MIN / 2);
                BitStep {
                    action,
                    signed,
                    width: width + u8::from(signed),
                    offset,
                    overflow: if number_is_odd { Wrap } else { overflow },
                }
            },
        )
    }

    proptest! {
        #[test]
        fn steps_equal_those_of_a_model_bit_by_bit(
            value in proptest::option::of(proptest::collection::vec(any::<u8>(), 0..30)),
            steps in proptest::collection::vec(any_step(), 0..12),
        ) {
            let writes = steps.iter().filter(|s| s.action != Get);
            let reach = writes.map(|s| (s.offset as usize + s.width as usize).div_ceil(8)).max();
            let mut bytes = value.clone().unwrap_or_default();
            bytes.resize(bytes.len().max(reach.unwrap_or(0)), 0);
            let mut bits: Vec<bool> = bytes
                .iter()
                .flat_map(|byte| (0..8).map(move |bit| byte >> (7 - bit) & 1 == 1))
                .collect();
            let expected: Vec<_> = steps.iter().map(|s| naive_step(&mut bits, s)).collect();
            let after: Vec<u8> = bits
                .chunks(8)
                .map(|bits| bits.iter().fold(0, |byte, bit| byte << 1 | u8::from(*bit)))
                .collect();
            let (new, given) = run(&steps, value.as_deref());
            prop_assert_eq!(given, expected);
            prop_assert_eq!(new, (value.is_some() || reach.is_some()).then_some(after));
        }
    }
}
