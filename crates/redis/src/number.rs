//! Numbers in the text of commands and values, read and written as Redis does.
//!
//! Integers are 64-bit and canonical: `+1`, `01` and ` 1` are no integers. Sums of INCRBYFLOAT are
//! computed in decimal with 17 digits after the point, so that 0.1 + 0.2 is 0.3, and in binary
//! once they do not fit 128 bits; Redis computes them in 80-bit binary, which shows only in digits
//! that `docs/redis.md` tells of.

/// The integer that `text` is, if printing it gives `text` again.
#[must_use]
pub fn integer(text: &[u8]) -> Option<i64> {
    let (negative, digits) = match text {
        [b'-', digits @ ..] => (true, digits),
        digits => (false, digits),
    };
    match digits {
        [b'0'] if !negative => return Some(0),
        [b'1'..=b'9', ..] if digits.len() <= 19 => {}
        _ => return None,
    }
    let mut value: i64 = 0;
    for digit in digits {
        if !digit.is_ascii_digit() {
            return None;
        }
        let digit = i64::from(digit - b'0');
        let shifted = value.checked_mul(10)?;
        value = if negative {
            shifted.checked_sub(digit)?
        } else {
            shifted.checked_add(digit)?
        };
    }
    Some(value)
}

/// Writes `value` in decimal.
pub fn push_integer(out: &mut Vec<u8>, value: i64) {
    let mut digits = [0_u8; 20];
    let mut at = digits.len();
    let mut left = value.unsigned_abs();
    loop {
        at -= 1;
        digits[at] = b'0' + u8::try_from(left % 10).expect("a digit");
        left /= 10;
        if left == 0 {
            break;
        }
    }
    if value < 0 {
        out.push(b'-');
    }
    out.extend_from_slice(&digits[at..]);
}

/// Digits after the point that sums keep, as many as Redis prints.
const SCALE_DIGITS: usize = 17;
const SCALE: i128 = 10_i128.pow(SCALE_DIGITS as u32);
/// Longest text that is looked at as a number: longer than any number of this size needs.
const TEXT_MAX: usize = 400;

/// Why two numbers have no sum.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum NoSum {
    /// One of the texts is no number.
    NotANumber,
    /// The sum is not finite.
    NotFinite,
}

/// The sum of two decimal texts, as text without exponent.
///
/// # Errors
/// See [`NoSum`].
pub fn add_floats(a: &[u8], b: &[u8]) -> Result<String, NoSum> {
    let (a, b) = (Float::parse(a)?, Float::parse(b)?);
    if let (Some(a), Some(b)) = (a.scaled, b.scaled)
        && let Some(sum) = a.checked_add(b)
    {
        return Ok(scaled_text(sum));
    }
    let sum = a.binary + b.binary;
    if sum.is_finite() {
        Ok(sum.to_string())
    } else {
        Err(NoSum::NotFinite)
    }
}

struct Float {
    binary: f64,
    /// The number times `SCALE`, rounded, when that fits.
    scaled: Option<i128>,
}

impl Float {
    fn parse(text: &[u8]) -> Result<Self, NoSum> {
        if text.is_empty() || text.len() > TEXT_MAX {
            return Err(NoSum::NotANumber);
        }
        let text = core::str::from_utf8(text).map_err(|_| NoSum::NotANumber)?;
        let unsigned = text.trim_start_matches(['+', '-']);
        if ["inf", "infinity"]
            .iter()
            .any(|w| unsigned.eq_ignore_ascii_case(w))
            && text.len() - unsigned.len() <= 1
        {
            return Err(NoSum::NotFinite);
        }
        let looks_right = text
            .bytes()
            .all(|b| b.is_ascii_digit() || b"+-.eE".contains(&b));
        let binary: f64 = text.parse().map_err(|_| NoSum::NotANumber)?;
        if !looks_right {
            return Err(NoSum::NotANumber);
        }
        if !binary.is_finite() {
            return Err(NoSum::NotFinite);
        }
        Ok(Self {
            binary,
            scaled: scaled(text),
        })
    }
}

/// A number that is known to be well formed, times `SCALE`.
fn scaled(text: &str) -> Option<i128> {
    let (negative, text) = match text.as_bytes().first() {
        Some(b'-') => (true, &text[1..]),
        Some(b'+') => (false, &text[1..]),
        _ => (false, text),
    };
    let (mantissa, exponent) = match text.split_once(['e', 'E']) {
        Some((mantissa, exponent)) => (mantissa, exponent.parse::<i32>().ok()?),
        None => (text, 0),
    };
    let (whole, fraction) = mantissa.split_once('.').unwrap_or((mantissa, ""));
    let fraction = fraction.trim_end_matches('0');
    let digits = [whole, fraction].concat();
    let digits = digits.trim_start_matches('0');
    if digits.is_empty() {
        return Some(0);
    }
    // The value is `digits` times ten to this power, after scaling.
    let shift = exponent
        .checked_sub(i32::try_from(fraction.len()).ok()?)?
        .checked_add(SCALE_DIGITS as i32)?;
    let magnitude = if shift >= 0 {
        let digits: i128 = digits.parse().ok()?;
        digits.checked_mul(10_i128.checked_pow(u32::try_from(shift).ok()?)?)?
    } else {
        let cut = usize::try_from(shift.unsigned_abs()).ok()?;
        let kept = digits.len().saturating_sub(cut);
        let rounded_up = cut <= digits.len() && digits.as_bytes()[kept] >= b'5';
        let kept: i128 = if kept == 0 {
            0
        } else {
            digits[..kept].parse().ok()?
        };
        kept.checked_add(i128::from(rounded_up))?
    };
    Some(if negative { -magnitude } else { magnitude })
}

fn scaled_text(scaled: i128) -> String {
    let sign = if scaled < 0 { "-" } else { "" };
    let (magnitude, unit) = (scaled.unsigned_abs(), SCALE.unsigned_abs());
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
    use proptest::prelude::*;

    #[test]
    fn integers_are_canonical() {
        for (text, value) in [
            ("0", 0),
            ("-1", -1),
            ("9223372036854775807", i64::MAX),
            ("-9223372036854775808", i64::MIN),
        ] {
            assert_eq!(integer(text.as_bytes()), Some(value));
        }
        for text in [
            "",
            "-",
            "+1",
            "01",
            "-0",
            " 1",
            "1 ",
            "1a",
            "--1",
            "9223372036854775808",
        ] {
            assert_eq!(integer(text.as_bytes()), None, "{text:?}");
        }
    }

    fn sum(a: &str, b: &str) -> Result<String, NoSum> {
        add_floats(a.as_bytes(), b.as_bytes())
    }

    #[test]
    fn decimal_sums_are_exact() {
        for (a, b, expected) in [
            ("0.1", "0.2", "0.3"),
            ("10.50", "0.1", "10.6"),
            ("5.0e3", "2.0e2", "5200"),
            ("-0.5", "0.5", "0"),
            ("1e-3", "0", "0.001"),
            ("3", "1.000000000000000005", "4.00000000000000001"),
            ("1e-30", "1", "1"),
            ("1e300", "1e300", &2e300_f64.to_string()),
        ] {
            assert_eq!(sum(a, b).as_deref(), Ok(expected), "{a} + {b}");
        }
    }

    #[test]
    fn what_is_no_number_has_no_sum() {
        for text in [
            "", " 1", "1 ", "nan", "1e", "1.2.3", "-", ".", "0x10", "--inf",
        ] {
            assert_eq!(sum(text, "1"), Err(NoSum::NotANumber), "{text:?}");
        }
        assert_eq!(sum("inf", "1"), Err(NoSum::NotFinite));
        assert_eq!(sum("1e308", "1e308"), Err(NoSum::NotFinite));
    }

    proptest! {
        #[test]
        fn integers_survive_the_round_trip(value: i64) {
            let mut text = Vec::new();
            push_integer(&mut text, value);
            prop_assert_eq!(&text, &value.to_string().into_bytes());
            prop_assert_eq!(integer(&text), Some(value));
        }

        #[test]
        fn sums_of_any_text_do_not_panic(a in "[-+0-9.eE]{0,12}", b in "[-+0-9.eE]{0,12}") {
            let _ = sum(&a, &b);
        }
    }
}
