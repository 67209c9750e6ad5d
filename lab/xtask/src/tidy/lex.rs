//! Splits Rust source into what is code and what is comment, so that a check looks only where it
//! means to. The compiler's tokens (crate `proc-macro2`) say which is which.
//!
//! Invariants
//! - LEX-1: both layers have the length and the line breaks of the source; text of the other layer
//!   is blank. A position found in a layer is therefore a position in the source.
//! - LEX-2: the contents of string and character literals are in neither layer, so that a check
//!   never trips over its own pattern. Their quotes are in the code layer.

use proc_macro2::{Delimiter, TokenStream, TokenTree};
use std::ops::Range;
use std::str::FromStr;

const QUOTES: [char; 2] = ['"', '\''];

/// A source file taken apart.
pub struct Layers {
    /// Code; comments and the contents of literals are blank.
    pub code: String,
    /// Comments, with their slashes; everything else is blank.
    pub comments: String,
    /// The compiler's tokens; `None` when the source is no Rust: then all of it is in the code
    /// layer.
    pub tokens: Option<TokenStream>,
}

/// Takes `source` apart.
pub fn split(source: &str) -> Layers {
    let Ok(tokens) = TokenStream::from_str(source) else {
        return Layers {
            code: source.to_owned(),
            comments: blank(source),
            tokens: None,
        };
    };
    let mut splitter = Splitter {
        source,
        code: blank(source).into_bytes(),
        comments: source.as_bytes().to_vec(),
    };
    splitter.take_all(tokens.clone());
    let text = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).into_owned();
    Layers {
        code: text(splitter.code),
        comments: text(splitter.comments),
        tokens: Some(tokens),
    }
}

/// `source` with spaces in place of everything but line breaks.
fn blank(source: &str) -> String {
    let bytes = source.bytes();
    bytes
        .map(|byte| if byte == b'\n' { '\n' } else { ' ' })
        .collect()
}

struct Splitter<'a> {
    source: &'a str,
    code: Vec<u8>,
    /// Everything at first.
    comments: Vec<u8>,
}

impl Splitter<'_> {
    /// Moves the text of `tokens` from the comments to the code.
    fn take_all(&mut self, tokens: TokenStream) {
        for token in tokens {
            let range = token.span().byte_range();
            let text = &self.source[range.clone()];
            // A comment that documents comes as an attribute whose tokens all have its place.
            if text.starts_with("//") || text.starts_with("/*") {
                continue;
            }
            match token {
                TokenTree::Group(group) => {
                    if group.delimiter() != Delimiter::None {
                        self.take(group.span_open().byte_range());
                        self.take(group.span_close().byte_range());
                    }
                    self.take_all(group.stream());
                }
                TokenTree::Literal(_) => self.take_literal(range),
                TokenTree::Ident(_) | TokenTree::Punct(_) => self.take(range),
            }
        }
    }

    fn take(&mut self, range: Range<usize>) {
        self.code[range.clone()].copy_from_slice(&self.source.as_bytes()[range.clone()]);
        self.drop(range);
    }

    /// A literal without what stands between its quotes.
    fn take_literal(&mut self, range: Range<usize>) {
        let text = &self.source[range.clone()];
        let quotes = (text.find(QUOTES), text.rfind(QUOTES));
        let (Some(first), Some(last)) = quotes else {
            return self.take(range);
        };
        let (first, last) = (range.start + first, range.start + last);
        self.take(range.start..first + 1);
        self.drop(first + 1..last);
        self.take(last..range.end);
    }

    /// Blanks what is no comment.
    fn drop(&mut self, range: Range<usize>) {
        for byte in &mut self.comments[range] {
            if *byte != b'\n' {
                *byte = b' ';
            }
        }
    }
}

/// Whether `byte` can be part of an identifier.
pub fn is_word(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || byte == b'_'
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

    // shows: LEX-1, LEX-2
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

    // shows: LEX-1
    #[test]
    fn comments_that_document_are_comments() {
        let source =
            "//! who\n/// ät \"all\"\n#[doc = \"code\"]\nfn f() { /** in */ let ü = 1 / 2; }\n";
        let layers = split(source);
        for comment in ["//! who\n", "/// ät \"all\"\n", "/** in */"] {
            assert!(layers.comments.contains(comment), "{}", layers.comments);
        }
        assert!(layers.code.contains("#[doc = \"    \"]\nfn f() {"));
        assert!(layers.code.contains("let ü = 1 / 2; }"));
        assert_eq!(layers.code.len(), source.len());
    }

    #[test]
    fn lifetimes_are_not_characters() {
        let layers =
            split("fn f<'a>(x: &'a str) -> char { if x == \"'\" { '\\'' } else { 'ß' } } // end");
        assert!(layers.code.contains("<'a>(x: &'a str)"));
        assert!(!layers.code.contains('ß'));
        assert!(layers.comments.ends_with("// end"));
    }

    // shows: LEX-1, LEX-2
    #[test]
    fn escaped_quotes_and_byte_strings() {
        let layers = split(r#"a("\"unwrap()"); b(b"\\"); c('\u{1F600}'); d(br"\"); e"#);
        assert!(!layers.code.contains("unwrap"));
        assert!(!layers.code.contains("1F600"));
        assert!(layers.code.ends_with("; e"));
    }

    #[test]
    fn what_is_no_rust_is_all_code() {
        for source in ["\"", "'\\", "/*", "r#\"", "b\"\\", "fn f( {"] {
            let layers = split(source);
            assert!(layers.tokens.is_none(), "{source}");
            assert_eq!(layers.code, source);
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
