//! Numbers in objects: decimal text, as Redis keeps them, so that every client sees the same.
//!
//! Integers are 64-bit. Floating-point sums are computed in decimal with 17 digits after the
//! point while they fit 128 bits, so that 0.1 + 0.2 is 0.3; beyond that in binary.

use pluvio_units::{KEY_MAX, VALUE_MAX};
use pluvio_wire::{FatalKind, Number, Refusal};

/// Digits after the point that sums keep.
const SCALE_DIGITS: usize = 17;
const SCALE: i128 = 10_i128.pow(SCALE_DIGITS as u32);
/// Longest text that is looked at as a number: longer than any sum is written, so that what an
/// increment stores can be incremented again. The longest are the smallest numbers, some 330 bytes
/// without an exponent.
const TEXT_MAX: usize = 400;

const _: () = assert!(TEXT_MAX < VALUE_MAX && TEXT_MAX < KEY_MAX);

/// Adds `by` to the number in `text` (`None` counts as 0): the new number and its text.
///
/// # Errors
/// `NotANumber` when the text is no number of that kind, `Overflow` when the sum does not fit.
/// Nothing was changed.
pub fn add(text: Option<&[u8]>, by: Number) -> Result<(Number, Vec<u8>), Refusal> {
    match by {
        Number::Integer(by) => {
            let old = text.map_or(Ok(0), parse_integer)?;
            let new = old
                .checked_add(by)
                .ok_or_else(|| overflow(Number::Integer(by)))?;
            Ok((Number::Integer(new), new.to_string().into_bytes()))
        }
        Number::Float(by) => {
            let old = text.map_or(Ok("0"), float_text)?;
            let sum = match (decimal(old), decimal(&by.to_string())) {
                (Some(a), Some(b)) => a.checked_add(b).map(decimal_text),
                (None, _) | (_, None) => None,
            };
            let sum = match sum {
                Some(text) => text,
                None => (parse_float(old)? + by).to_string(),
            };
            let value: f64 = sum.parse().map_err(|_| not_a_number(Number::Float(0.0)))?;
            if value.is_finite() {
                Ok((Number::Float(value), sum.into_bytes()))
            } else {
                Err(overflow(Number::Float(by)))
            }
        }
    }
}

/// What is there is no number to which such a one can be added.
pub(crate) fn not_a_number(by: Number) -> Refusal {
    let what = match by {
        Number::Integer(_) => "value is not an integer or out of range",
        Number::Float(_) => "value is not a valid float",
    };
    Refusal::fatal(FatalKind::NotANumber, what)
}

/// The sum with such a number does not fit.
pub(crate) fn overflow(by: Number) -> Refusal {
    let what = match by {
        Number::Integer(_) => "increment or decrement would overflow",
        Number::Float(_) => "increment would produce NaN or Infinity",
    };
    Refusal::fatal(FatalKind::Overflow, what)
}

/// Only the text that printing an integer would give: no plus sign, blanks or leading zeros.
fn parse_integer(text: &[u8]) -> Result<i64, Refusal> {
    let wrong = || not_a_number(Number::Integer(0));
    let digits = text.strip_prefix(b"-").unwrap_or(text);
    let canonical = match digits {
        [b'0'] => digits.len() == text.len(),
        [b'1'..=b'9', rest @ ..] => rest.iter().all(u8::is_ascii_digit),
        _ => false,
    };
    if !canonical || text.len() > 20 {
        return Err(wrong());
    }
    std::str::from_utf8(text)
        .ok()
        .and_then(|t| t.parse().ok())
        .ok_or_else(wrong)
}

fn float_text(text: &[u8]) -> Result<&str, Refusal> {
    let wrong = || not_a_number(Number::Float(0.0));
    if text.is_empty() || text.len() > TEXT_MAX {
        return Err(wrong());
    }
    let text = std::str::from_utf8(text).map_err(|_| wrong())?;
    parse_float(text)?;
    Ok(text)
}

fn parse_float(text: &str) -> Result<f64, Refusal> {
    let looks_right = text
        .bytes()
        .all(|b| b.is_ascii_digit() || b"+-.eE".contains(&b));
    match text.parse::<f64>() {
        Ok(value) if looks_right && value.is_finite() => Ok(value),
        Ok(_) | Err(_) => Err(not_a_number(Number::Float(0.0))),
    }
}

/// The number times `SCALE`, when it is written without exponent and is exact in that form.
fn decimal(text: &str) -> Option<i128> {
    let (negative, text) = match text.strip_prefix('-') {
        Some(rest) => (true, rest),
        None => (false, text.strip_prefix('+').unwrap_or(text)),
    };
    let (whole, fraction) = text.split_once('.').unwrap_or((text, ""));
    let all_digits = |part: &str| part.bytes().all(|b| b.is_ascii_digit());
    if (whole.is_empty() && fraction.is_empty())
        || !all_digits(whole)
        || !all_digits(fraction)
        || fraction.len() > SCALE_DIGITS
    {
        return None;
    }
    let whole: i128 = if whole.is_empty() {
        0
    } else {
        whole.parse().ok()?
    };
    let fraction: i128 = format!("{fraction:0<SCALE_DIGITS$}").parse().ok()?;
    let scaled = whole.checked_mul(SCALE)?.checked_add(fraction)?;
    Some(if negative { -scaled } else { scaled })
}

fn decimal_text(scaled: i128) -> String {
    let sign = if scaled < 0 { "-" } else { "" };
    let magnitude = scaled.unsigned_abs();
    let unit = SCALE.unsigned_abs();
    let (whole, fraction) = (magnitude / unit, magnitude % unit);
    if fraction == 0 {
        return format!("{sign}{whole}");
    }
    let fraction = format!("{fraction:0SCALE_DIGITS$}");
    format!("{sign}{whole}.{}", fraction.trim_end_matches('0'))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn float(text: &str, by: f64) -> String {
        String::from_utf8(add(Some(text.as_bytes()), Number::Float(by)).unwrap().1).unwrap()
    }

    fn integer(text: &[u8], by: i64) -> Option<String> {
        add(Some(text), Number::Integer(by))
            .ok()
            .map(|(_, text)| String::from_utf8(text).unwrap())
    }

    #[test]
    fn a_missing_number_counts_as_zero() {
        assert_eq!(
            add(None, Number::Integer(-3)),
            Ok((Number::Integer(-3), b"-3".to_vec()))
        );
        assert_eq!(
            add(None, Number::Float(1.5)),
            Ok((Number::Float(1.5), b"1.5".to_vec()))
        );
    }

    #[test]
    fn integers_must_be_canonical_and_must_not_overflow() {
        assert_eq!(integer(b"41", 1).as_deref(), Some("42"));
        assert_eq!(
            integer(b"-9223372036854775808", 1).as_deref(),
            Some("-9223372036854775807")
        );
        for text in [
            "",
            " 1",
            "1 ",
            "+1",
            "01",
            "-0",
            "1.0",
            "x",
            "9223372036854775808",
            "--1",
        ] {
            assert_eq!(integer(text.as_bytes(), 1), None, "{text:?}");
        }
        let error = add(Some(b"9223372036854775807"), Number::Integer(1)).unwrap_err();
        assert_eq!(error.fatal_kind(), Some(FatalKind::Overflow));
    }

    #[test]
    fn decimal_sums_are_exact() {
        assert_eq!(float("0.1", 0.2), "0.3");
        assert_eq!(float("10.50", 0.1), "10.6");
        assert_eq!(float("10.6", -5.0), "5.6");
        assert_eq!(float("-0.5", 0.5), "0");
        assert_eq!(float("5.0e3", 200.0), "5200");
    }

    #[test]
    fn numbers_too_large_for_decimal_are_added_in_binary() {
        assert_eq!(float("1e300", 1e300).parse::<f64>().unwrap(), 2e300);
        let error = add(Some(b"1e308"), Number::Float(1e308)).unwrap_err();
        assert_eq!(error.fatal_kind(), Some(FatalKind::Overflow));
    }

    #[test]
    fn what_an_increment_stores_can_be_incremented_again() {
        let longest = -f64::MIN_POSITIVE;
        for number in [1e300, -1e300, f64::MIN, 1e-300, longest, 5e-324] {
            let once = float("0", number);
            assert_eq!(once.parse::<f64>(), Ok(number), "{once}");
            assert_eq!(float(&once, -number).parse::<f64>(), Ok(0.0), "{once}");
        }
        let large = float("1e300", 1.0);
        assert!(large.len() > 256, "{large}");
        assert_eq!(float(&large, 1.0), large);
    }

    #[test]
    fn what_is_no_number_is_refused() {
        for text in ["", " 1", "nan", "inf", "0x10", "1e", "1.2.3", "-"] {
            assert!(
                add(Some(text.as_bytes()), Number::Float(1.0)).is_err(),
                "{text:?}"
            );
        }
    }
}
