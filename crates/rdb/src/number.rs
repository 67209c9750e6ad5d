//! Numbers in the text of commands and values, read and written as Redis does.
//!
//! Integers are 64-bit and canonical: `+1`, `01` and ` 1` are no integers.
//!
//! Not here: sums. The owner of a key adds (crate `mutation`).

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

    proptest! {
        #[test]
        fn integers_survive_the_round_trip(value: i64) {
            let mut text = Vec::new();
            push_integer(&mut text, value);
            prop_assert_eq!(&text, &value.to_string().into_bytes());
            prop_assert_eq!(integer(&text), Some(value));
        }
    }
}
