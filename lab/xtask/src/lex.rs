//! Splits Rust source into what is code and what is comment, so that a check looks only where it
//! means to.
//!
//! Invariants
//! - LEX-1: both layers have the length and the line breaks of the source; what belongs to the
//!   other layer is blank. A position found in a layer is therefore a position in the source.
//! - LEX-2: the contents of string and character literals are in neither layer (their quotes are
//!   in the code layer), so that a check never trips over its own pattern.
//!
//! It does not parse: it knows literals, comments and nothing else.

/// A source file taken apart.
pub struct Layers {
    /// Code; comments and the contents of literals are blank.
    pub code: String,
    /// Comments, with their slashes; everything else is blank.
    pub comments: String,
}

#[derive(Clone, Copy)]
enum Layer {
    Code,
    Comment,
    Neither,
}

struct Splitter<'a> {
    source: &'a [u8],
    at: usize,
    code: Vec<u8>,
    comments: Vec<u8>,
}

/// Takes `source` apart.
pub fn split(source: &str) -> Layers {
    let mut splitter = Splitter {
        source: source.as_bytes(),
        at: 0,
        code: Vec::with_capacity(source.len()),
        comments: Vec::with_capacity(source.len()),
    };
    while splitter.at < splitter.source.len() {
        splitter.step();
    }
    let text = |bytes| String::from_utf8_lossy(bytes).into_owned();
    Layers {
        code: text(&splitter.code),
        comments: text(&splitter.comments),
    }
}

impl Splitter<'_> {
    fn step(&mut self) {
        let rest = &self.source[self.at..];
        match rest[0] {
            b'/' if rest.starts_with(b"//") => {
                let end = find(rest, b"\n").unwrap_or(rest.len());
                self.take(end, Layer::Comment);
            }
            b'/' if rest.starts_with(b"/*") => self.block_comment(),
            b'"' => self.string(),
            b'r' | b'b' | b'c' if self.starts_word() => self.prefixed(),
            b'\'' => self.quote(),
            _ => self.take(1, Layer::Code),
        }
    }

    /// Moves `count` bytes to `layer` and blanks them in the other one.
    fn take(&mut self, count: usize, layer: Layer) {
        for &byte in &self.source[self.at..self.at + count] {
            let blank = if byte == b'\n' { b'\n' } else { b' ' };
            let (code, comment) = match layer {
                Layer::Code => (byte, blank),
                Layer::Comment => (blank, byte),
                Layer::Neither => (blank, blank),
            };
            self.code.push(code);
            self.comments.push(comment);
        }
        self.at += count;
    }

    fn starts_word(&self) -> bool {
        self.at == 0 || !is_word(self.source[self.at - 1])
    }

    fn block_comment(&mut self) {
        let rest = &self.source[self.at..];
        let (mut end, mut depth) = (2, 1);
        while end < rest.len() && depth > 0 {
            if rest[end..].starts_with(b"/*") {
                depth += 1;
                end += 2;
            } else if rest[end..].starts_with(b"*/") {
                depth -= 1;
                end += 2;
            } else {
                end += 1;
            }
        }
        self.take(end.min(rest.len()), Layer::Comment);
    }

    /// A literal with escapes; stands on its opening quote.
    fn string(&mut self) {
        self.take(1, Layer::Code);
        let rest = &self.source[self.at..];
        let mut end = 0;
        while end < rest.len() && rest[end] != b'"' {
            end += if rest[end] == b'\\' { 2 } else { 1 };
        }
        let end = end.min(rest.len());
        let closed = end < rest.len();
        self.take(end, Layer::Neither);
        self.take(usize::from(closed), Layer::Code);
    }

    /// A word that starts with `r`, `b` or `c`: perhaps the prefix of a literal.
    fn prefixed(&mut self) {
        let rest = &self.source[self.at..];
        let letters = rest.iter().take_while(|b| b"rbc".contains(b)).count();
        let hashes = rest[letters..].iter().take_while(|&&b| b == b'#').count();
        let raw = rest[..letters].contains(&b'r');
        let quote = rest.get(letters + hashes);
        if raw && letters <= 2 && quote == Some(&b'"') {
            let opening = letters + hashes + 1;
            let mut closing = vec![b'"'];
            closing.resize(hashes + 1, b'#');
            let length = find(&rest[opening..], &closing).unwrap_or(rest.len() - opening);
            let tail = closing.len().min(rest.len() - opening - length);
            self.take(opening, Layer::Code);
            self.take(length, Layer::Neither);
            self.take(tail, Layer::Code);
        } else {
            self.take(1, Layer::Code);
        }
    }

    /// A character literal or a lifetime.
    fn quote(&mut self) {
        let rest = &self.source[self.at..];
        let length = match rest.get(1) {
            Some(b'\\') => rest
                .get(3..)
                .and_then(|tail| find(tail, b"'"))
                .map(|n| n + 2),
            Some(&first) => {
                let width = match first {
                    0xf0.. => 4,
                    0xe0.. => 3,
                    0xc0.. => 2,
                    _ => 1,
                };
                (rest.get(1 + width) == Some(&b'\'')).then_some(width)
            }
            None => None,
        };
        self.take(1, Layer::Code);
        if let Some(length) = length {
            self.take(length, Layer::Neither);
            self.take(1, Layer::Code);
        }
    }
}

/// Whether `byte` can be part of an identifier.
pub fn is_word(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || byte == b'_'
}

/// Where `needle` starts in `bytes`.
pub fn find(bytes: &[u8], needle: &[u8]) -> Option<usize> {
    bytes.windows(needle.len()).position(|w| w == needle)
}

/// Where `word` stands in `text` as a whole word, all places.
pub fn word_positions<'a>(text: &'a str, word: &'a str) -> impl Iterator<Item = usize> + 'a {
    let bytes = text.as_bytes();
    text.match_indices(word)
        .map(|(at, _)| at)
        .filter(move |&at| {
            let end = at + word.len();
            (at == 0 || !is_word(bytes[at - 1])) && bytes.get(end).is_none_or(|&b| !is_word(b))
        })
}

/// The position after the bracket that closes the one at `open`; the end of `code` when none does.
pub fn after_closing(code: &[u8], open: usize) -> usize {
    let mut depth = 0_usize;
    for (at, byte) in code.iter().enumerate().skip(open) {
        match byte {
            b'(' | b'[' | b'{' => depth += 1,
            b')' | b']' | b'}' => {
                depth = depth.saturating_sub(1);
                if depth == 0 {
                    return at + 1;
                }
            }
            _ => {}
        }
    }
    code.len()
}

/// The number of the line (from 1) that holds position `at`.
pub fn line_of(text: &str, at: usize) -> usize {
    1 + text.as_bytes()[..at]
        .iter()
        .filter(|&&b| b == b'\n')
        .count()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn comments_and_literals_leave_the_code_layer() {
        let source =
            "let a = \"x // no\"; // yes 'tis\nlet b = r#\"he said \"hi\"\"#; /* a /* b */ c */ d";
        let layers = split(source);
        assert_eq!(layers.code.len(), source.len());
        assert_eq!(layers.comments.len(), source.len());
        assert!(!layers.code.contains("no") && !layers.code.contains("hi"));
        assert!(layers.code.ends_with(" d"));
        assert!(layers.comments.contains("// yes 'tis"));
        assert!(layers.comments.contains("/* a /* b */ c */"));
        assert!(!layers.comments.contains("let"));
    }

    #[test]
    fn lifetimes_are_not_characters() {
        let layers =
            split("fn f<'a>(x: &'a str) -> char { if x == \"'\" { '\\'' } else { 'ß' } } // end");
        assert!(layers.code.contains("<'a>(x: &'a str)"));
        assert!(!layers.code.contains('ß'));
        assert!(layers.comments.ends_with("// end"));
    }

    #[test]
    fn escaped_quotes_and_byte_strings() {
        let layers = split(r#"a("\"unwrap()"); b(b"\\"); c('\u{1F600}'); d(br"\"); e"#);
        assert!(!layers.code.contains("unwrap"));
        assert!(!layers.code.contains("1F600"));
        assert!(layers.code.ends_with("; e"));
    }

    #[test]
    fn unfinished_source_does_not_panic() {
        for source in ["\"", "'", "'\\", "/*", "r#\"", "b\"\\", "r", "'é"] {
            let layers = split(source);
            assert_eq!(layers.code.len(), source.len(), "{source}");
        }
    }

    #[test]
    fn words_are_whole() {
        assert_eq!(
            word_positions("match rematch matches match", "match").collect::<Vec<_>>(),
            [0, 22]
        );
    }
}
