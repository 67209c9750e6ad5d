//! The committed lists of tests that are left out: `tests/applications/left-out/SUITE.txt`.
//!
//! A line is a pattern of names of tests and, behind ` | `, why they are left out. In a pattern `*`
//! stands for any text. Lines that begin with `#` are notes.

use anyhow::{Context, Result, bail};
use std::path::Path;

/// A list.
#[derive(Default)]
pub struct LeftOut {
    patterns: Vec<String>,
}

impl LeftOut {
    /// Reads a list; a missing one is empty.
    ///
    /// # Errors
    /// A line gives no reason.
    pub fn read(file: &Path) -> Result<Self> {
        if !file.exists() {
            return Ok(Self::default());
        }
        let text = std::fs::read_to_string(file)?;
        Self::parse(&text).with_context(|| file.display().to_string())
    }

    pub fn parse(text: &str) -> Result<Self> {
        let mut patterns = Vec::new();
        let lines = text.lines().filter(|line| !line.trim().is_empty());
        for line in lines.filter(|line| !line.starts_with('#')) {
            match line.split_once(" | ") {
                Some((pattern, why)) if !why.trim().is_empty() => {
                    patterns.push(pattern.trim().to_owned());
                }
                _ => bail!("no reason: {line}"),
            }
        }
        Ok(Self { patterns })
    }

    /// The patterns, in the order of the file.
    pub fn patterns(&self) -> &[String] {
        &self.patterns
    }

    /// The patterns that a name fits.
    pub fn of<'a>(&'a self, name: &'a str) -> impl Iterator<Item = &'a String> {
        self.patterns
            .iter()
            .filter(move |pattern| fits(pattern, name))
    }

    /// One regular expression for all patterns, for runners that take one; `None` without patterns.
    pub fn expression(&self) -> Option<String> {
        let each = self.patterns.iter().map(|pattern| {
            let parts = pattern.split('*').map(escaped);
            parts.collect::<Vec<_>>().join(".*")
        });
        let each: Vec<String> = each.collect();
        (!each.is_empty()).then(|| format!("(^|[\\s:])({})$", each.join("|")))
    }
}

fn escaped(text: &str) -> String {
    let mut out = String::new();
    for c in text.chars() {
        if r"\.+*?()|[]{}^$".contains(c) {
            out.push('\\');
        }
        out.push(c);
    }
    out
}

/// Whether all of a name is what a pattern describes.
fn fits(pattern: &str, name: &str) -> bool {
    let mut parts = pattern.split('*');
    let first = parts.next().unwrap_or_default();
    let Some(mut rest) = name.strip_prefix(first) else {
        return false;
    };
    let mut parts = parts.peekable();
    if parts.peek().is_none() {
        return rest.is_empty();
    }
    while let Some(part) = parts.next() {
        if parts.peek().is_none() {
            return rest.ends_with(part);
        }
        match rest.find(part) {
            Some(at) => rest = &rest[at + part.len()..],
            None => return false,
        }
    }
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_star_stands_for_any_text() {
        for (pattern, name, does) in [
            ("a", "a", true),
            ("a", "ab", false),
            ("a*", "ab", true),
            ("*b", "ab", true),
            ("*b", "ba", false),
            ("a*c*e", "abcde", true),
            ("a*c*e", "abde", false),
            ("*test_z*[True]", "x::test_zadd[True]", true),
            ("", "a", false),
        ] {
            assert_eq!(fits(pattern, name), does, "{pattern} {name}");
        }
    }

    #[test]
    fn a_list_has_a_reason_for_every_line() {
        let list = LeftOut::parse("# note\n\na.b* | why\nc | other\n").expect("a good list");
        assert_eq!(list.patterns(), ["a.b*", "c"]);
        assert_eq!(list.expression().as_deref(), Some(r"(^|[\s:])(a\.b.*|c)$"));
        assert_eq!(list.of("a.bc").count(), 1);
        assert!(LeftOut::parse("a\n").is_err() && LeftOut::parse("a | \n").is_err());
        assert_eq!(LeftOut::default().expression(), None);
    }
}
