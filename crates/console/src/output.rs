//! What commands print: tables, sizes, escaped bytes, progress bars.
//!
//! Results go to standard output, everything else to standard error. Bars are drawn only when
//! standard error is a terminal.

use crate::failure::Failure;
use comfy_table::{CellAlignment, ContentArrangement, Table};
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use serde::Serialize;
use std::borrow::Cow;
use std::fmt::{Display, Write as _};
use std::io::Write as _;
use std::time::Duration;

/// Prints one line of JSON.
///
/// # Errors
/// Standard output is closed.
pub fn print_json(value: &impl Serialize) -> Result<(), Failure> {
    let text = serde_json::to_string(value)
        .map_err(|error| Failure::new(format!("cannot write the result as JSON: {error}")))?;
    print_line(&text)
}

/// Prints one line.
///
/// # Errors
/// Standard output is closed.
pub fn print_line(text: &str) -> Result<(), Failure> {
    let mut out = std::io::stdout().lock();
    out.write_all(text.as_bytes())?;
    out.write_all(b"\n")?;
    Ok(out.flush()?)
}

/// Prints a text that ends with its last line.
///
/// # Errors
/// Standard output is closed.
pub fn print_text(text: &[u8]) -> Result<(), Failure> {
    let mut out = std::io::stdout().lock();
    out.write_all(text)?;
    Ok(out.flush()?)
}

/// Says one line on standard error. When nobody can hear it, that is no reason to stop.
pub fn say(text: impl Display) {
    let _unheard = writeln!(std::io::stderr().lock(), "{text}");
}

/// An empty table with these column heads; `right` says which columns hold numbers.
pub fn table(heads: &[&str], right: &[usize]) -> Table {
    let mut table = Table::new();
    table
        .load_style(comfy_table::presets::NOTHING)
        .set_content_arrangement(ContentArrangement::Disabled)
        .set_header(heads.iter().copied());
    for &index in right {
        if let Some(column) = table.column_mut(index) {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    table
}

/// A table's text without trailing blanks.
pub fn table_text(table: &Table) -> String {
    let mut text = String::new();
    for line in table.to_string().lines() {
        let line = line.strip_prefix(' ').unwrap_or(line);
        let _infallible = writeln!(text, "{}", line.trim_end());
    }
    text.truncate(text.trim_end().len());
    text
}

/// A number of bytes for people, with one decimal.
pub fn bytes(n: u64) -> String {
    pluvio_units::Size(n).to_string()
}

/// A time for people.
pub fn time(duration: Duration) -> String {
    let seconds = duration.as_secs_f64();
    if seconds < 1e-3 {
        format!("{:.0} us", seconds * 1e6)
    } else if seconds < 1.0 {
        format!("{:.1} ms", seconds * 1e3)
    } else {
        format!("{seconds:.2} s")
    }
}

/// A count with thin groups of three digits.
pub fn count(n: u64) -> String {
    let digits = n.to_string();
    let mut text = String::with_capacity(digits.len() * 4 / 3);
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            text.push(' ');
        }
        text.push(digit);
    }
    text
}

/// A count with what is counted: `1 server`, `2 servers`.
pub fn number_of(n: u64, what: &str) -> String {
    let plural = if n == 1 { "" } else { "s" };
    format!("{} {what}{plural}", count(n))
}

/// Bytes as text: as they are when they are printable UTF-8, with `\n`, `\r`, `\t`, `\\` and `\xNN`
/// for the rest. Never contains a tab or a line break.
pub fn escaped(bytes: &[u8]) -> Cow<'_, str> {
    let plain = |text: &str| !text.chars().any(|c| c.is_control() || c == '\\');
    if let Ok(text) = std::str::from_utf8(bytes)
        && plain(text)
    {
        return Cow::Borrowed(text);
    }
    let mut out = String::with_capacity(bytes.len() + 16);
    for chunk in bytes.utf8_chunks() {
        for c in chunk.valid().chars() {
            match c {
                '\n' => out.push_str("\\n"),
                '\r' => out.push_str("\\r"),
                '\t' => out.push_str("\\t"),
                '\\' => out.push_str("\\\\"),
                c if c.is_control() => {
                    let mut buffer = [0; 4];
                    for byte in c.encode_utf8(&mut buffer).bytes() {
                        let _infallible = write!(out, "\\x{byte:02x}");
                    }
                }
                c => out.push(c),
            }
        }
        for byte in chunk.invalid() {
            let _infallible = write!(out, "\\x{byte:02x}");
        }
    }
    Cow::Owned(out)
}

/// A bar for work of known length.
pub fn bar(length: u64, what: &str, of_bytes: bool) -> ProgressBar {
    let template = if of_bytes {
        "{msg:<22} [{bar:30}] {bytes}/{total_bytes} {bytes_per_sec} {eta}"
    } else {
        "{msg:<22} [{bar:30}] {human_pos}/{human_len} {per_sec} {eta}"
    };
    styled(
        ProgressBar::with_draw_target(Some(length), target()),
        template,
        what,
    )
}

/// A counter for work of unknown length.
pub fn spinner(what: &str) -> ProgressBar {
    let bar = ProgressBar::with_draw_target(None, target());
    styled(bar, "{spinner} {msg:<40} {human_pos} {elapsed}", what)
}

fn target() -> ProgressDrawTarget {
    ProgressDrawTarget::stderr_with_hz(10)
}

fn styled(bar: ProgressBar, template: &str, what: &str) -> ProgressBar {
    let style = ProgressStyle::with_template(template).expect("the templates above are valid");
    bar.set_style(style);
    bar.set_message(what.to_owned());
    bar
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_are_escaped_only_where_needed() {
        assert_eq!(escaped("Zürich".as_bytes()), "Zürich");
        assert_eq!(escaped(b"a\tb\nc\\d"), "a\\tb\\nc\\\\d");
        assert_eq!(escaped(b"\xff\x00ok"), "\\xff\\x00ok");
        assert_eq!(escaped(b""), "");
    }

    #[test]
    fn counts_are_grouped() {
        assert_eq!(count(0), "0");
        assert_eq!(count(999), "999");
        assert_eq!(count(1000), "1 000");
        assert_eq!(count(1_234_567), "1 234 567");
    }
}
