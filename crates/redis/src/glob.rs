//! Patterns as Redis matches them: `*`, `?`, `[a-z]`, `[^x]`, and `\` before a literal byte.
//!
//! Works on bytes, in time proportional to pattern times text: a pattern that makes backtracking
//! matchers explode costs nothing here. Quirks of Redis are kept:
//! - A class that does not close runs to the end of the pattern.
//! - The ends of a range may be exchanged and compare as signed bytes.
//! - The empty text matches only the empty pattern.

/// Whether `text` as a whole matches `pattern`.
#[must_use]
pub fn matches(pattern: &[u8], text: &[u8]) -> bool {
    search(pattern, text, false)
}

/// [`fn@matches`], whatever the case of ASCII letters.
#[must_use]
pub fn matches_any_case(pattern: &[u8], text: &[u8]) -> bool {
    search(pattern, text, true)
}

fn search(pattern: &[u8], text: &[u8], any_case: bool) -> bool {
    if text.is_empty() {
        return pattern.is_empty();
    }
    let (mut p, mut t) = (0, 0);
    // After the last star: where the pattern goes on, and where in the text to try next. Earlier
    // stars need no second try: what they could still give, the last one can.
    let mut star: Option<(usize, usize)> = None;
    while t < text.len() {
        if pattern.get(p) == Some(&b'*') {
            p += 1;
            star = Some((p, t));
        } else if let Some(next) = one(pattern, p, text[t], any_case) {
            p = next;
            t += 1;
        } else if let Some((after, from)) = &mut star {
            *from += 1;
            (p, t) = (*after, *from);
        } else {
            return false;
        }
    }
    pattern[p..].iter().all(|byte| *byte == b'*')
}

/// Matches one byte; where the pattern goes on if it does.
fn one(pattern: &[u8], at: usize, byte: u8, any_case: bool) -> Option<usize> {
    let fold = |b: u8| if any_case { b.to_ascii_lowercase() } else { b };
    match pattern.get(at)? {
        b'?' => Some(at + 1),
        b'[' => class(pattern, at + 1, byte, any_case),
        b'\\' if at + 1 < pattern.len() => (fold(pattern[at + 1]) == fold(byte)).then_some(at + 2),
        literal => (fold(*literal) == fold(byte)).then_some(at + 1),
    }
}

/// Matches one byte with the class whose content begins at `at`.
fn class(pattern: &[u8], mut at: usize, byte: u8, any_case: bool) -> Option<usize> {
    let fold = |b: u8| if any_case { b.to_ascii_lowercase() } else { b };
    let signed = |b: u8| fold(b).cast_signed();
    let not = pattern.get(at) == Some(&b'^');
    if not {
        at += 1;
    }
    let mut hit = false;
    let next = loop {
        match &pattern[at.min(pattern.len())..] {
            [] => break at,
            [b'\\', escaped, ..] => {
                hit |= *escaped == byte;
                at += 2;
            }
            [b']', ..] => break at + 1,
            [first, b'-', last, ..] => {
                // Redis exchanges the ends before it folds them.
                let (low, high) = if first.cast_signed() > last.cast_signed() {
                    (*last, *first)
                } else {
                    (*first, *last)
                };
                hit |= (signed(low)..=signed(high)).contains(&signed(byte));
                at += 3;
            }
            [literal, ..] => {
                hit |= fold(*literal) == fold(byte);
                at += 1;
            }
        }
    };
    (hit != not).then_some(next)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn patterns_match_as_in_redis() {
        for (pattern, text, expected) in [
            ("*", "", false),
            ("", "", true),
            ("", "a", false),
            ("*", "abc", true),
            ("a*c", "abbbc", true),
            ("a*c", "abbbd", false),
            ("h?llo", "hello", true),
            ("h?llo", "hllo", false),
            ("h[ae]llo", "hallo", true),
            ("h[^e]llo", "hello", false),
            ("h[a-b]llo", "hbllo", true),
            ("h[b-a]llo", "hbllo", true),
            ("a\\*", "a*", true),
            ("a\\*", "ab", false),
            ("[abc", "c", true),
            ("[a-", "-", true),
            ("x[\\]]", "x]", true),
            ("user:*:name", "user:12:name", true),
            ("**a**", "bab", true),
            ("a*", "a", true),
            ("\\", "\\", true),
            ("A", "a", false),
        ] {
            let got = matches(pattern.as_bytes(), text.as_bytes());
            assert_eq!(got, expected, "{pattern:?} {text:?}");
        }
        assert!(matches_any_case(b"MAX[A-Z]em*", b"maxMemory"));
    }

    #[test]
    fn nested_stars_stay_cheap() {
        let pattern = "a*".repeat(50) + "b";
        let text = "a".repeat(10_000);
        assert!(!matches(pattern.as_bytes(), text.as_bytes()));
    }

    /// The definition, for small inputs.
    fn reference(pattern: &[u8], text: &[u8]) -> bool {
        match (pattern.first(), text.first()) {
            (None, None) => true,
            (Some(b'*'), _) => (0..=text.len()).any(|n| reference(&pattern[1..], &text[n..])),
            (Some(_), Some(byte)) => one(pattern, 0, *byte, false)
                .is_some_and(|next| reference(&pattern[next..], &text[1..])),
            (None, Some(_)) | (Some(_), None) => false,
        }
    }

    proptest! {
        #[test]
        fn star_by_star_equals_the_definition(
            pattern in "[ab*?\\[\\]^\\\\-]{0,8}", text in "[ab\\]-]{1,8}"
        ) {
            prop_assert_eq!(
                matches(pattern.as_bytes(), text.as_bytes()),
                reference(pattern.as_bytes(), text.as_bytes())
            );
        }
    }
}
