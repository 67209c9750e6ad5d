//! Exact sums of decimal text.
//!
//! A number is `[sign] digits [. digits] [e [sign] digits]`, as Redis reads it, without blanks and
//! hexadecimal forms. A sum is rounded once, half away from zero, to 17 digits after the point. It
//! is printed without exponent, without zeros at its end and without a sign at zero.
//!
//! The digits are added as one integer (`num-bigint`) at the finer scale of the two numbers. What
//! keeps that integer small:
//! - a number of 10^4932 or more is refused by its exponent, before it is expanded;
//! - digits beyond [`PLACES_MAX`] places after the point are cut off, and one digit stands for all
//!   of them.
//!
//! The cut does not change any sum. A number that has digits so far behind the point is below
//! 10^-64 because its text is short. So it matters only on which side of a rounding boundary it
//! moves the other number, and a single digit says that as well.

use crate::value::Unfit;
use num_bigint::{BigInt, BigUint, Sign};
use pluvio_units::VALUE_MAX;

/// Digits after the point that sums keep, as many as Redis prints.
const SUM_PLACES: u32 = 17;
/// Longest text that is looked at as a number; Redis's limit.
const TEXT_MAX: usize = 5119;
/// Digits before the point of the largest number; Redis's `long double` ends at 1.19 * 10^4932.
const WHOLE_DIGITS_MAX: u32 = 4932;
/// Places after the point that are told apart: all that a number of 10^-64 and more can have.
const PLACES_MAX: i32 = TEXT_MAX as i32 + 64;
/// Exponents are cut off here; all others are zero or too large whatever the digits say.
const EXPONENT_MAX: i32 = 1_000_000;

// A stored sum can be added to again: a sign, a point and all digits fit.
const _: () = assert!(2 + WHOLE_DIGITS_MAX + SUM_PLACES <= TEXT_MAX as u32);
const _: () = assert!(TEXT_MAX < VALUE_MAX);
const _: () = assert!(EXPONENT_MAX > 2 * PLACES_MAX + WHOLE_DIGITS_MAX as i32);

/// The sum of two numbers, as text.
///
/// # Errors
/// `NotANumber` when one of them is none; else `Overflow` when one of them or the sum is too large.
pub(super) fn add(a: &[u8], b: &[u8]) -> Result<Vec<u8>, Unfit> {
    let (a, b) = (parse(a)?, parse(b)?);
    let (Number::Finite(a), Number::Finite(b)) = (a, b) else {
        return Err(Unfit::Overflow);
    };
    let scale = a.scale.max(b.scale).max(SUM_PLACES);
    let (sign, mut magnitude) = (a.digits_at(scale) + b.digits_at(scale)).into_parts();
    if scale > SUM_PLACES {
        let unit = power_of_ten(scale - SUM_PLACES);
        magnitude = (magnitude + (&unit >> 1_u32)) / unit;
    }
    print(sign == Sign::Minus, &magnitude).ok_or(Unfit::Overflow)
}

enum Number {
    Finite(Decimal),
    /// It is infinite, or as good as that.
    TooLarge,
}

/// `digits` divided by 10^`scale`.
#[derive(Default)]
struct Decimal {
    digits: BigInt,
    scale: u32,
}

impl Decimal {
    /// The digits at a scale that is at least as fine.
    fn digits_at(self, scale: u32) -> BigInt {
        match scale.saturating_sub(self.scale) {
            0 => self.digits,
            finer => self.digits * BigInt::from(power_of_ten(finer)),
        }
    }
}

fn power_of_ten(exponent: u32) -> BigUint {
    BigUint::from(10_u32).pow(exponent)
}

fn parse(text: &[u8]) -> Result<Number, Unfit> {
    if text.len() > TEXT_MAX {
        return Err(Unfit::NotANumber);
    }
    let (negative, unsigned) = split_sign(text);
    if unsigned.eq_ignore_ascii_case(b"inf") || unsigned.eq_ignore_ascii_case(b"infinity") {
        return Ok(Number::TooLarge);
    }
    let (mantissa, exponent) = match split_at_byte(unsigned, |b| matches!(b, b'e' | b'E')) {
        Some((mantissa, exponent)) => (mantissa, parse_exponent(exponent)?),
        None => (unsigned, 0),
    };
    let (whole, fraction) = split_at_byte(mantissa, |b| b == b'.').unwrap_or((mantissa, b""));
    let digits = [whole, fraction].concat();
    if digits.is_empty() || !digits.iter().all(u8::is_ascii_digit) {
        return Err(Unfit::NotANumber);
    }
    scale(negative, &digits, exponent - small(fraction.len()))
}

/// The number that `digits` times 10^`exponent` is.
fn scale(negative: bool, digits: &[u8], exponent: i32) -> Result<Number, Unfit> {
    let is_zero = |digit: &u8| *digit == b'0';
    let leading = digits.iter().take_while(|d| is_zero(d)).count();
    let trailing = digits.iter().rev().take_while(|d| is_zero(d)).count();
    if leading == digits.len() {
        return Ok(Number::Finite(Decimal::default()));
    }
    let mut digits = digits[leading..digits.len() - trailing].to_vec();
    // The last digit counts 10^lowest; the number is below 10^highest.
    let mut lowest = exponent + small(trailing);
    let highest = lowest + small(digits.len());
    if highest > WHOLE_DIGITS_MAX as i32 {
        return Ok(Number::TooLarge);
    }
    if lowest < -PLACES_MAX {
        digits.truncate(usize::try_from(highest + PLACES_MAX).unwrap_or(0));
        digits.push(b'1');
        lowest = -PLACES_MAX - 1;
    }
    let magnitude = BigUint::parse_bytes(&digits, 10).ok_or(Unfit::NotANumber)?;
    let sign = if negative { Sign::Minus } else { Sign::Plus };
    let digits = BigInt::from_biguint(sign, magnitude);
    Ok(Number::Finite(if lowest > 0 {
        Decimal {
            digits: digits * BigInt::from(power_of_ten(lowest.unsigned_abs())),
            scale: 0,
        }
    } else {
        Decimal {
            digits,
            scale: lowest.unsigned_abs(),
        }
    }))
}

/// Whether there is a minus sign, and what is behind the sign.
fn split_sign(text: &[u8]) -> (bool, &[u8]) {
    match text {
        [b'-', unsigned @ ..] => (true, unsigned),
        [b'+', unsigned @ ..] => (false, unsigned),
        unsigned => (false, unsigned),
    }
}

fn split_at_byte(text: &[u8], is_split: fn(u8) -> bool) -> Option<(&[u8], &[u8])> {
    let at = text.iter().position(|b| is_split(*b))?;
    Some((&text[..at], &text[at + 1..]))
}

/// The exponent, cut off at [`EXPONENT_MAX`].
fn parse_exponent(text: &[u8]) -> Result<i32, Unfit> {
    let (negative, digits) = split_sign(text);
    if digits.is_empty() || !digits.iter().all(u8::is_ascii_digit) {
        return Err(Unfit::NotANumber);
    }
    let magnitude = digits.iter().fold(0, |value: i32, digit| {
        (value * 10 + i32::from(digit - b'0')).min(EXPONENT_MAX)
    });
    Ok(if negative { -magnitude } else { magnitude })
}

/// A length of at most [`TEXT_MAX`].
fn small(length: usize) -> i32 {
    i32::try_from(length).unwrap_or(PLACES_MAX)
}

/// The text of `magnitude` divided by 10^[`SUM_PLACES`], unless it is too large.
fn print(negative: bool, magnitude: &BigUint) -> Option<Vec<u8>> {
    let places = SUM_PLACES as usize;
    let digits = format!("{magnitude:0>width$}", width = places + 1);
    if digits.len() > WHOLE_DIGITS_MAX as usize + places {
        return None;
    }
    let (whole, fraction) = digits.split_at(digits.len() - places);
    let fraction = fraction.trim_end_matches('0');
    let sign = if negative { "-" } else { "" };
    let point = if fraction.is_empty() { "" } else { "." };
    // A sum that was rounded to zero has no sign.
    let sign = if magnitude.bits() == 0 { "" } else { sign };
    Some([sign, whole, point, fraction].concat().into_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn sum(a: &str, b: &str) -> Result<String, Unfit> {
        add(a.as_bytes(), b.as_bytes()).map(|text| String::from_utf8(text).unwrap())
    }

    #[test]
    fn sums_are_exact() {
        for (a, b, expected) in [
            ("0.1", "0.2", "0.3"),
            ("10.50", "0.1", "10.6"),
            ("10.6", "-5", "5.6"),
            ("5.0e3", "2.0e2", "5200"),
            ("-0.5", "0.5", "0"),
            ("-0", "-0.0", "0"),
            ("1e-3", "0", "0.001"),
            ("+.5", "5.", "5.5"),
            ("00012", "1E+1", "22"),
            ("9007199254740993", "1", "9007199254740994"),
            ("9223372036854775807", "0.5", "9223372036854775807.5"),
            ("0e99999999999999999999", "1", "1"),
            ("1.23", "-1e0", "0.23"),
        ] {
            assert_eq!(sum(a, b).as_deref(), Ok(expected), "{a} + {b}");
            assert_eq!(sum(b, a).as_deref(), Ok(expected), "{b} + {a}");
        }
        let large = sum("1e300", "1").unwrap();
        assert_eq!(large, format!("1{}1", "0".repeat(299)));
        let twice = format!("2{}", "0".repeat(300));
        assert_eq!(sum("1e300", "1e300").as_ref(), Ok(&twice));
        assert_eq!(sum("1e308", "1e308").map(|text| text.len()), Ok(309));
    }

    #[test]
    fn sums_are_rounded_half_away_from_zero_and_once() {
        for (a, b, expected) in [
            ("3", "1.000000000000000005", "4.00000000000000001"),
            ("-3", "-1.000000000000000005", "-4.00000000000000001"),
            ("3", "1.0000000000000000049", "4"),
            ("4e-18", "4e-18", "0.00000000000000001"),
            ("4e-18", "0", "0"),
            ("-4e-18", "0", "0"),
            ("1e-30", "1", "1"),
            ("1e-999999999", "1", "1"),
            ("-1e-999999999", "-1e-99999999999999999999", "0"),
            ("5e-18", "0", "0.00000000000000001"),
            ("5e-18", "-1e-999999999", "0"),
            ("5e-18", "-1e-5184", "0"),
            ("5e-18", "-1e-5182", "0"),
            ("5e-18", "1e-999999999", "0.00000000000000001"),
            ("-5e-18", "1e-999999999", "0"),
            ("0.99999999999999999", "5e-18", "1"),
        ] {
            assert_eq!(sum(a, b).as_deref(), Ok(expected), "{a} + {b}");
        }
    }

    #[test]
    fn what_is_no_number_has_no_sum() {
        for text in [
            "",
            " 1",
            "1 ",
            "nan",
            "NaN",
            "-nan",
            "1e",
            "1e+",
            "e5",
            ".e5",
            "1.2.3",
            "-",
            "+",
            ".",
            "0x10",
            "0x1p3",
            "--inf",
            "--1",
            "+-1",
            "1_000",
            "1e5.0",
            "1e5e5",
            "1,5",
            "infinit",
            "infinity1",
            "\0",
            "1\n",
            "٣",
        ] {
            assert_eq!(sum(text, "1"), Err(Unfit::NotANumber), "{text:?}");
            assert_eq!(sum("1", text), Err(Unfit::NotANumber), "{text:?}");
            assert_eq!(sum("inf", text), Err(Unfit::NotANumber), "{text:?}");
        }
        assert_eq!(add(b"\xff", b"1"), Err(Unfit::NotANumber));
    }

    #[test]
    fn what_is_too_large_is_refused_before_it_is_expanded() {
        for text in [
            "inf",
            "-inf",
            "+Infinity",
            "INF",
            "1e4932",
            "-1e4932",
            "1e999999999",
            "0.000001e999999999",
            "1e99999999999999999999999999",
        ] {
            assert_eq!(sum(text, "1"), Err(Unfit::Overflow), "{text:?}");
            assert_eq!(sum("1", text), Err(Unfit::Overflow), "{text:?}");
        }
        assert_eq!(sum("1e4931", "0").map(|text| text.len()), Ok(4932));
        assert_eq!(sum("9e4931", "9e4931"), Err(Unfit::Overflow));
        let nines = format!("{}.99999999999999999", "9".repeat(4932));
        assert_eq!(sum(&nines, "0").as_ref(), Ok(&nines));
        assert_eq!(sum(&nines, "5e-18"), Err(Unfit::Overflow));
    }

    #[test]
    fn texts_up_to_the_limit_of_redis_are_numbers() {
        let longest = format!("0.{}1", "0".repeat(5116));
        assert_eq!(longest.len(), 5119);
        assert_eq!(sum(&longest, "1").as_deref(), Ok("1"));
        assert_eq!(sum(&format!("{longest}0"), "1"), Err(Unfit::NotANumber));
        let zeros = format!("{}7", "0".repeat(5118));
        assert_eq!(sum(&zeros, "1").as_deref(), Ok("8"));
        let long_exponent = format!("1e{}2", "0".repeat(5000));
        assert_eq!(sum(&long_exponent, "1").as_deref(), Ok("101"));
        assert_eq!(sum(&"9".repeat(5119), "1"), Err(Unfit::Overflow));
    }

    #[test]
    fn what_a_sum_stores_can_be_added_to_again() {
        let nines = format!("-{}.99999999999999999", "9".repeat(4932));
        for number in ["1e300", "-1e4931", "1e-17", "-0.12345678901234567", &nines] {
            let once = sum("0", number).unwrap();
            assert!(once.len() <= TEXT_MAX);
            assert_eq!(sum(&once, "0").as_ref(), Ok(&once));
            let back = number
                .strip_prefix('-')
                .map_or(format!("-{number}"), String::from);
            assert_eq!(sum(&once, &back).as_deref(), Ok("0"));
        }
    }

    fn fixed(value: i128, places: usize) -> String {
        let digits = format!("{:0>width$}", value.unsigned_abs(), width = places + 1);
        let (whole, fraction) = digits.split_at(digits.len() - places);
        let sign = if value < 0 { "-" } else { "" };
        format!("{sign}{whole}.{fraction}")
    }

    proptest! {
        #[test]
        fn sums_equal_those_of_integers(a: i64, b: i64, places in 0_usize..24) {
            let exact = i128::from(a) + i128::from(b);
            let unit = 10_i128.pow(u32::try_from(places.saturating_sub(17)).unwrap());
            let half = if exact < 0 { -unit / 2 } else { unit / 2 };
            let text = fixed((exact + half) / unit, places.min(17));
            let text = text.trim_end_matches('0').trim_end_matches('.');
            let expected = if text == "-0" { "0" } else { text };
            let plain = sum(&fixed(a.into(), places), &fixed(b.into(), places));
            prop_assert_eq!(plain.as_deref(), Ok(expected));
            let exponents = sum(&format!("{a}e-{places}"), &format!("{b}00E-{}", places + 2));
            prop_assert_eq!(exponents.as_deref(), Ok(expected));
        }

        #[test]
        fn sums_of_any_text_do_not_panic(a in "[-+0-9.eE]{0,12}", b in "[-+0-9.eEinfx ]{0,12}") {
            if let Ok(text) = sum(&a, &b) {
                prop_assert_eq!(sum(&text, "0"), Ok(text));
            }
        }
    }
}
