//! Patterns as Redis matches them: `*`, `?`, `[a-z]`, `[^x]`, and `\` before a literal byte.
//!
//! [`Pattern`] is for patterns of strangers and any number of texts. It is cut at its stars once:
//!
//! - The first part is compared with the start of the text, the last part with its end.
//! - A part between two stars is looked for. Plain bytes are found in time proportional to the text
//!   (Knuth, Morris, Pratt).
//! - A part with `?` or a class may take time proportional to part times text. So the work is
//!   counted, and others get their turn in between (GLOB-1).
//!
//! Invariants
//! - GLOB-1: a [`Pattern`] compares at most about [`STEPS_MAX`] bytes before it gives way.
//!
//! Quirks of Redis are kept:
//! - A class that does not close runs to the end of the pattern.
//! - The ends of a range may be exchanged and compare as signed bytes.
//! - The empty text matches only the empty pattern.

use crate::give_way::give_way;
use core::ops::Range;

/// Bytes that are compared before others get their turn: a fraction of a millisecond.
const STEPS_MAX: usize = 64 << 10;

/// Whether `text` as a whole matches `pattern`, whatever the case of ASCII letters. For patterns
/// and texts that are both short: the time is up to their product.
#[must_use]
pub fn matches_any_case(pattern: &[u8], text: &[u8]) -> bool {
    search(pattern, text, true)
}

/// [`matches_any_case`], but for the case of letters.
#[must_use]
pub(crate) fn matches(pattern: &[u8], text: &[u8]) -> bool {
    search(pattern, text, false)
}

/// A part of a pattern between two stars.
#[derive(Debug)]
struct Part<'a> {
    /// It as it stands in the pattern.
    source: &'a [u8],
    /// Bytes of text that it matches: always as many.
    length: usize,
    plain: Option<Plain>,
}

/// A part of bytes that match only themselves.
#[derive(Debug)]
struct Plain {
    bytes: Vec<u8>,
    /// Of each start of the bytes, the length of the longest shorter start that it ends with.
    borders: Vec<u32>,
}

impl<'a> Part<'a> {
    fn new(source: &'a [u8], is_looked_for: bool) -> Self {
        let (mut at, mut length) = (0, 0);
        let mut plain = Some(Vec::new());
        while at < source.len() {
            let (next, byte) = match source[at] {
                b'?' => (at + 1, None),
                b'[' => (end_of_class(source, at + 1), None),
                b'\\' if at + 1 < source.len() => (at + 2, Some(source[at + 1])),
                literal => (at + 1, Some(literal)),
            };
            match byte {
                Some(byte) => {
                    plain = plain.map(|mut bytes| {
                        bytes.push(byte);
                        bytes
                    })
                }
                None => plain = None,
            }
            length += 1;
            at = next;
        }
        Self {
            source,
            length,
            plain: plain.filter(|_| is_looked_for).map(Plain::new),
        }
    }

    /// Whether the text begins with it.
    fn is_start_of(&self, text: &[u8], steps: &mut usize) -> bool {
        let mut at = 0;
        for byte in text.iter().take(self.length) {
            *steps += 1;
            match one(self.source, at, *byte, false) {
                Some(next) => at = next,
                None => return false,
            }
        }
        text.len() >= self.length
    }

    /// Where its first place in the text ends.
    async fn find(&self, text: &[u8], steps: &mut usize) -> Option<usize> {
        if let Some(plain) = &self.plain {
            *steps += text.len();
            return plain.find(text);
        }
        let last = text.len().checked_sub(self.length)?;
        for start in 0..=last {
            if self.is_start_of(&text[start..], steps) {
                return Some(start + self.length);
            }
            pause(steps).await;
        }
        None
    }
}

impl Plain {
    fn new(bytes: Vec<u8>) -> Self {
        let mut borders = vec![0; bytes.len()];
        let mut border = 0_u32;
        for at in 1..bytes.len() {
            while border > 0 && bytes[border as usize] != bytes[at] {
                border = borders[border as usize - 1];
            }
            border += u32::from(bytes[border as usize] == bytes[at]);
            borders[at] = border;
        }
        Self { bytes, borders }
    }

    fn find(&self, text: &[u8]) -> Option<usize> {
        let mut matched = 0;
        for (at, byte) in text.iter().enumerate() {
            if matched == self.bytes.len() {
                return Some(at);
            }
            while matched > 0 && self.bytes[matched] != *byte {
                matched = self.borders[matched - 1] as usize;
            }
            matched += usize::from(self.bytes[matched] == *byte);
        }
        (matched == self.bytes.len()).then_some(text.len())
    }
}

/// Gives way when there were many steps since the last time.
async fn pause(steps: &mut usize) {
    if *steps >= STEPS_MAX {
        *steps = 0;
        give_way().await;
    }
}

/// A pattern, cut at its stars.
#[derive(Debug)]
pub(crate) struct Pattern<'a> {
    /// At least one. With one there is no star.
    parts: Vec<Part<'a>>,
    /// Steps since it last gave way.
    steps: usize,
}

impl<'a> Pattern<'a> {
    pub(crate) fn new(pattern: &'a [u8]) -> Self {
        let mut cuts = Vec::new();
        let (mut start, mut at) = (0, 0);
        while at < pattern.len() {
            at = match pattern[at] {
                b'*' => {
                    cuts.push(start..at);
                    start = at + 1;
                    start
                }
                b'[' => end_of_class(pattern, at + 1),
                b'\\' => (at + 2).min(pattern.len()),
                _ => at + 1,
            };
        }
        cuts.push(start..pattern.len());
        let last = cuts.len() - 1;
        // Stars in a row are as one.
        let is_used = |(n, cut): &(usize, Range<usize>)| *n == 0 || *n == last || !cut.is_empty();
        let parts = cuts.into_iter().enumerate().filter(is_used);
        let parts = parts.map(|(n, cut)| Part::new(&pattern[cut], n > 0 && n < last));
        Self {
            parts: parts.collect(),
            steps: 0,
        }
    }

    /// Whether `text` as a whole matches it (GLOB-1).
    pub(crate) async fn matches(&mut self, text: &[u8]) -> bool {
        let Self { parts, steps } = self;
        *steps += 1;
        pause(steps).await;
        let Some((first, rest)) = parts.split_first() else {
            return false;
        };
        if text.is_empty() {
            // Redis: the empty text matches only the empty pattern.
            return rest.is_empty() && first.length == 0;
        }
        let Some((last, between)) = rest.split_last() else {
            return text.len() == first.length && first.is_start_of(text, steps);
        };
        let Some(end) = text.len().checked_sub(last.length) else {
            return false;
        };
        if end < first.length
            || !first.is_start_of(text, steps)
            || !last.is_start_of(&text[end..], steps)
        {
            return false;
        }
        let mut left = &text[first.length..end];
        for part in between {
            match part.find(left, steps).await {
                Some(end) => left = &left[end..],
                None => return false,
            }
            pause(steps).await;
        }
        true
    }
}

/// Where a class ends whose content begins at `at`.
fn end_of_class(pattern: &[u8], mut at: usize) -> usize {
    if pattern.get(at) == Some(&b'^') {
        at += 1;
    }
    loop {
        match &pattern[at.min(pattern.len())..] {
            [] => return pattern.len(),
            [b'\\', _, ..] => at += 2,
            [b']', ..] => return at + 1,
            [_, b'-', _, ..] => at += 3,
            [_, ..] => at += 1,
        }
    }
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
    use core::task::{Context, Poll, Waker};
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
            let got = search(pattern.as_bytes(), text.as_bytes(), false);
            assert_eq!(got, expected, "{pattern:?} {text:?}");
        }
        assert!(matches_any_case(b"MAX[A-Z]em*", b"maxMemory"));
    }

    /// Whether it matches, and how often it gave way.
    fn matched(pattern: &[u8], text: &[u8]) -> (bool, usize) {
        let mut pattern = Pattern::new(pattern);
        let mut matching = core::pin::pin!(pattern.matches(text));
        let mut context = Context::from_waker(Waker::noop());
        let mut turns = 0;
        loop {
            match matching.as_mut().poll(&mut context) {
                Poll::Ready(matches) => return (matches, turns),
                Poll::Pending => turns += 1,
            }
        }
    }

    fn matches(pattern: &[u8], text: &[u8]) -> bool {
        matched(pattern, text).0
    }

    #[test]
    fn nested_stars_stay_cheap() {
        let pattern = "a*".repeat(50) + "b";
        let text = "a".repeat(10_000);
        assert_eq!(matched(pattern.as_bytes(), text.as_bytes()), (false, 0));
    }

    // shows: GLOB-1
    #[test]
    fn patterns_of_an_enemy_give_way_or_cost_nothing() {
        let text = "a".repeat(20_000);
        let many = "a".repeat(10_000);
        for (pattern, gives_way) in [
            (format!("*{many}b"), false),
            (format!("*{many}b*"), false),
            (format!("*{many}[b]*"), true),
            (format!("*{many}?b*"), true),
        ] {
            let (found, turns) = matched(pattern.as_bytes(), text.as_bytes());
            assert!(!found);
            assert_eq!(turns > 100, gives_way, "{turns} turns");
        }
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
