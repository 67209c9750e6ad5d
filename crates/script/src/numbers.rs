//! Numbers as text.

/// A number as C prints it with `%.*g`: with this number of digits, at least one.
#[must_use]
pub fn number_text(number: f64, digits: usize) -> String {
    if number.is_nan() {
        return if number.is_sign_negative() {
            "-nan"
        } else {
            "nan"
        }
        .to_owned();
    }
    if number.is_infinite() {
        return if number < 0.0 { "-inf" } else { "inf" }.to_owned();
    }
    if number == 0.0 {
        return if number.is_sign_negative() { "-0" } else { "0" }.to_owned();
    }
    let scientific = format!("{number:.*e}", digits.saturating_sub(1));
    let (mantissa, exponent) = scientific.split_once('e').unwrap_or((&scientific, "0"));
    let exponent: i32 = exponent.parse().unwrap_or(0);
    let trimmed = |text: &str| match text.contains('.') {
        true => text.trim_end_matches('0').trim_end_matches('.').to_owned(),
        false => text.to_owned(),
    };
    if exponent < -4 || exponent >= digits as i32 {
        let sign = if exponent < 0 { '-' } else { '+' };
        return format!("{}e{sign}{:02}", trimmed(mantissa), exponent.abs());
    }
    let decimals = usize::try_from(digits as i32 - 1 - exponent).unwrap_or(0);
    trimmed(&format!("{number:.decimals$}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_printed_as_c_does() {
        for (number, digits, text) in [
            (0.1, 14, "0.1"),
            (0.1, 17, "0.10000000000000001"),
            (1e15, 14, "1e+15"),
            (1e15, 17, "1000000000000000"),
            (123_456.0, 14, "123456"),
            (1.5e-7, 14, "1.5e-07"),
            (-2.5, 14, "-2.5"),
            (0.0, 14, "0"),
            (1e100, 14, "1e+100"),
            (100.0, 14, "100"),
        ] {
            assert_eq!(number_text(number, digits), text);
        }
    }
}
