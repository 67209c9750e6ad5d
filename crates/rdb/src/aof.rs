//! Append-only files: the commands in them, and the manifest that names the files of a set.
//!
//! ```text
//!  appendonlydir/appendonly.aof.manifest        file … seq 1 type b      the base
//!                                               file … seq 1 type i      commands after it, in order
//!  a file   RDB file (perhaps) │ *3 $3 SET $1 k $1 v │ #TS:1700000000 │ …
//! ```
//!
//! - AOF-1: reading is total. Any bytes give commands or an error that names a place.
//! - AOF-2: memory is bounded by what has arrived: words longer than [`VALUE_MAX`] are passed over.
//! - AOF-3: a command that is cut off is told by the place at which it begins. Whether that is an
//!   error is up to the reader of the set: Redis leaves it out at the end of the last file.

use crate::reader::{Error, Text, Why};
use pluvio_units::VALUE_MAX;
use std::io::{BufRead, BufReader, Read};

/// Longest line that is looked at: a length, or an annotation.
const LINE_MAX: u64 = 1024;
/// Words of a command, as in Redis.
const WORDS_MAX: u64 = i32::MAX as u64;

/// The files of a set, by their names in the directory of the manifest.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Manifest {
    /// The beginning of the set; a new one has none.
    pub base: Option<String>,
    /// Files of commands behind it, in their order.
    pub increments: Vec<String>,
}

/// A line of a manifest that makes no sense, with its number, from 1.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("line {line} of the manifest: {why}")]
pub struct BadManifest {
    /// The line.
    pub line: usize,
    /// What is wrong with it.
    pub why: &'static str,
}

impl Manifest {
    /// Reads a manifest.
    ///
    /// # Errors
    /// It is none, or of a version that is not known.
    pub fn parse(text: &str) -> Result<Self, BadManifest> {
        let mut manifest = Self::default();
        let mut last = 0;
        for (at, line) in text.lines().enumerate() {
            let bad = |why| BadManifest { line: at + 1, why };
            let line = line.trim();
            if line.is_empty() || line.starts_with('#') {
                continue;
            }
            let words = words(line).ok_or_else(|| bad("a quote is not closed"))?;
            let (mut file, mut number, mut kind) = (None, None, None);
            for pair in words.chunks(2) {
                let [name, value] = pair else {
                    return Err(bad("a name has no value"));
                };
                match &**name {
                    "file" => file = Some(value.clone()),
                    "seq" => number = value.parse::<u64>().ok(),
                    "type" => kind = Some(value.clone()),
                    _ => return Err(bad("it says what is not known: a newer Redis wrote it")),
                }
            }
            let (Some(file), Some(number), Some(kind)) = (file, number, kind) else {
                return Err(bad("give file, seq and type"));
            };
            if file.is_empty() || file.contains('/') {
                return Err(bad("a file lies in the directory of the manifest"));
            }
            match &*kind {
                // To be deleted.
                "h" => {}
                "b" if manifest.base.is_some() => return Err(bad("there is a base already")),
                "b" => manifest.base = Some(file),
                "i" if number <= last => return Err(bad("the numbers do not rise")),
                "i" => {
                    last = number;
                    manifest.increments.push(file);
                }
                _ => return Err(bad("the type is none of b, i and h")),
            }
        }
        Ok(manifest)
    }

    /// All of them, in the order in which they are read.
    pub fn files(&self) -> impl Iterator<Item = &str> {
        let increments = self.increments.iter();
        self.base.iter().chain(increments).map(String::as_str)
    }
}

/// Words of a line; one with blanks stands in double quotes.
fn words(line: &str) -> Option<Vec<String>> {
    let mut words = Vec::new();
    let mut rest = line.chars().peekable();
    while let Some(first) = rest.next() {
        if first.is_whitespace() {
            continue;
        }
        let mut word = String::new();
        if first != '"' {
            word.push(first);
            while let Some(next) = rest.next_if(|next| !next.is_whitespace()) {
                word.push(next);
            }
        } else {
            loop {
                match rest.next()? {
                    '"' => break,
                    '\\' => word.push(rest.next()?),
                    next => word.push(next),
                }
            }
        }
        words.push(word);
    }
    Some(words)
}

/// A command of a file.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Command {
    /// The number of the byte at which it begins.
    pub at: u64,
    /// Its name and arguments; at least one word.
    pub words: Vec<Text>,
}

/// The commands of a file, from the place where they begin.
pub struct Log<R> {
    input: BufReader<R>,
    at: u64,
}

impl<R: Read> Log<R> {
    /// Commands from the beginning of a file.
    pub fn new(input: R) -> Self {
        Self::behind(BufReader::new(input), 0)
    }

    /// Commands behind what was read already.
    pub(crate) fn behind(input: BufReader<R>, at: u64) -> Self {
        Self { input, at }
    }

    /// The next command. `None` at the end of the file.
    ///
    /// # Errors
    /// Nothing can be read from here on. [`Why::Cut`]: the file ends in the command that begins at
    /// that place (AOF-3).
    pub fn next_command(&mut self) -> Result<Option<Command>, Error> {
        loop {
            let at = self.at;
            let of_cut = |error: Error| match error.why {
                Why::Cut => Error { at, why: Why::Cut },
                _ => error,
            };
            let Some(line) = self.line().map_err(of_cut)? else {
                return Ok(None);
            };
            match line.split_first() {
                // An annotation, such as the time.
                Some((b'#', _)) => {}
                Some((b'*', count)) => {
                    let words = self.words(at, count).map_err(of_cut)?;
                    return Ok(Some(Command { at, words }));
                }
                Some(_) | None => return Err(no_command(at)),
            }
        }
    }

    fn words(&mut self, at: u64, count: &[u8]) -> Result<Vec<Text>, Error> {
        let count = number(count).filter(|count| (1..=WORDS_MAX).contains(count));
        let count = count.ok_or_else(|| no_command(at))?;
        let mut words = Vec::new();
        for _ in 0..count {
            let at = self.at;
            let Some(line) = self.line()? else {
                return Err(self.cut());
            };
            let length = line.strip_prefix(b"$").and_then(number);
            let length = length.ok_or_else(|| no_command(at))?;
            words.push(self.word(length)?);
            if self.take(2)? != b"\r\n" {
                return Err(no_command(at));
            }
        }
        Ok(words)
    }

    fn word(&mut self, length: u64) -> Result<Text, Error> {
        if length <= VALUE_MAX as u64 {
            return Ok(Text::Whole(self.take(length)?.into()));
        }
        let passed = std::io::copy(&mut (&mut self.input).take(length), &mut std::io::sink());
        let passed = passed.map_err(|error| self.error(Why::Io(error)))?;
        self.at += passed;
        match passed == length {
            true => Ok(Text::TooLong(length)),
            false => Err(self.cut()),
        }
    }

    /// A line without its end; `None` at the end of the file.
    fn line(&mut self) -> Result<Option<Vec<u8>>, Error> {
        let at = self.at;
        let mut line = Vec::new();
        let read = (&mut self.input)
            .take(LINE_MAX)
            .read_until(b'\n', &mut line);
        read.map_err(|error| self.error(Why::Io(error)))?;
        self.at += line.len() as u64;
        match (line.strip_suffix(b"\r\n"), line.len() as u64) {
            (_, 0) => Ok(None),
            (Some(text), _) => Ok(Some(text.to_vec())),
            (None, LINE_MAX) => Err(no_command(at)),
            (None, _) if line.ends_with(b"\n") => Err(no_command(at)),
            (None, _) => Err(self.cut()),
        }
    }

    fn take(&mut self, length: u64) -> Result<Vec<u8>, Error> {
        let mut bytes = Vec::new();
        let read = (&mut self.input).take(length).read_to_end(&mut bytes);
        self.at += bytes.len() as u64;
        match read {
            Ok(_) if bytes.len() as u64 == length => Ok(bytes),
            Ok(_) => Err(self.cut()),
            Err(error) => Err(self.error(Why::Io(error))),
        }
    }

    fn cut(&self) -> Error {
        self.error(Why::Cut)
    }

    fn error(&self, why: Why) -> Error {
        Error { at: self.at, why }
    }
}

fn no_command(at: u64) -> Error {
    Error {
        at,
        why: Why::NoCommand,
    }
}

fn number(digits: &[u8]) -> Option<u64> {
    let digits = core::str::from_utf8(digits).ok()?;
    digits.bytes().all(|b| b.is_ascii_digit()).then_some(())?;
    digits.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(bytes: &[u8]) -> (Vec<Vec<String>>, Option<Error>) {
        let mut log = Log::new(bytes);
        let mut all = Vec::new();
        loop {
            let shown = |word: Text| match word {
                Text::Whole(text) => String::from_utf8(text.to_vec()).unwrap(),
                Text::TooLong(bytes) => format!("{bytes} bytes"),
            };
            match log.next_command() {
                Ok(Some(command)) => all.push(command.words.into_iter().map(shown).collect()),
                Ok(None) => return (all, None),
                Err(error) => return (all, Some(error)),
            }
        }
    }

    const TWO: &[u8] =
        b"*2\r\n$6\r\nSELECT\r\n$1\r\n0\r\n#TS:17\r\n*2\r\n$3\r\nDEL\r\n$2\r\n\r\n\r\n";

    // shows: AOF-3
    #[test]
    fn commands_are_read_and_a_cut_is_told_by_its_beginning() {
        let (all, end) = read(TWO);
        assert_eq!(all, [vec!["SELECT", "0"], vec!["DEL", "\r\n"]]);
        assert!(end.is_none());
        let begins = [0, 23, 31];
        for length in 1..TWO.len() {
            let (all, end) = read(&TWO[..length]);
            if begins.contains(&length) {
                assert!(end.is_none(), "{length}");
                continue;
            }
            let end = end.unwrap();
            assert!(matches!(end.why, Why::Cut), "{length}: {end}");
            let begin = begins.iter().rev().find(|begin| **begin < length);
            assert_eq!(Some(&usize::try_from(end.at).unwrap()), begin, "{length}");
            assert_eq!(all.len(), usize::from(length > 23));
        }
    }

    // shows: AOF-1
    #[test]
    fn bytes_that_are_no_commands_are_refused() {
        for bad in [
            &b"SET a b\r\n"[..],
            b"*0\r\n",
            b"*-1\r\n",
            b"*1\n$1\nA\n",
            b"*1\r\n$-1\r\n",
            b"*1\r\n$1\r\nABC",
            b"*99999999999\r\n",
            &[b'*'; 2000],
        ] {
            let (all, end) = read(bad);
            assert!(all.is_empty());
            assert!(matches!(end.unwrap().why, Why::NoCommand), "{bad:?}");
        }
        let mut flipped = TWO.to_vec();
        for at in 0..flipped.len() {
            flipped[at] ^= 0x11;
            let _any_end = read(&flipped);
            flipped[at] ^= 0x11;
        }
    }

    // shows: AOF-2
    #[test]
    fn long_words_are_passed_over() {
        let long = VALUE_MAX + 1;
        let mut file = format!("*2\r\n$1\r\na\r\n${long}\r\n").into_bytes();
        file.resize(file.len() + long, b'x');
        file.extend_from_slice(b"\r\n*1\r\n$1\r\nb\r\n");
        let (all, end) = read(&file);
        assert!(end.is_none());
        assert_eq!(
            all,
            [
                vec!["a".to_owned(), format!("{long} bytes")],
                vec!["b".to_owned()]
            ]
        );
    }

    #[test]
    fn a_manifest_names_its_files_in_order() {
        let text = "# made by hand\nfile a.2.base.rdb seq 2 type b\nfile a.1.incr.aof seq 1 type h\n\
                    file \"a b\\\".incr.aof\" seq 3 type i\n\nfile a.4.incr.aof seq 4 type i\n";
        let manifest = Manifest::parse(text).unwrap();
        let files: Vec<_> = manifest.files().collect();
        assert_eq!(files, ["a.2.base.rdb", "a b\".incr.aof", "a.4.incr.aof"]);
        for (bad, words) in [
            ("file a seq 1", "give file"),
            ("file a seq 1 type x", "none of"),
            ("file ../a seq 1 type b", "directory"),
            ("file a seq 1 type b\nfile b seq 2 type b", "already"),
            ("file a seq 2 type i\nfile b seq 2 type i", "rise"),
            ("file a seq 1 type i from 7", "newer"),
            ("file \"a", "quote"),
            ("file", "no value"),
        ] {
            let error = Manifest::parse(bad).unwrap_err().to_string();
            assert!(error.contains(words), "{bad}: {error}");
        }
    }
}
