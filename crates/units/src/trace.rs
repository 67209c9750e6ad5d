//! The place of a request in a trace, as W3C Trace Context and OpenTelemetry define it.

use core::fmt;
use core::str::FromStr;

/// The place of a request in a trace: what it makes happen elsewhere has this span as its parent.
///
/// Written as a `traceparent` of W3C Trace Context:
/// `00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01`.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct TraceContext {
    /// The trace; never 0.
    pub trace: u128,
    /// The span; never 0.
    pub span: u64,
    /// Flags. Bit 0: the trace is sampled.
    pub flags: u8,
}

/// The flag of sampled traces.
const SAMPLED: u8 = 1;

impl TraceContext {
    /// A span of a sampled trace.
    #[must_use]
    pub fn sampled(trace: u128, span: u64) -> Self {
        Self {
            trace: trace.max(1),
            span: span.max(1),
            flags: SAMPLED,
        }
    }

    /// Whether spans of the trace are to be recorded.
    #[must_use]
    pub fn is_sampled(&self) -> bool {
        self.flags & SAMPLED != 0
    }

    /// Another span of the same trace.
    #[must_use]
    pub fn with_span(self, span: u64) -> Self {
        Self {
            span: span.max(1),
            ..self
        }
    }
}

impl fmt::Display for TraceContext {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "00-{:032x}-{:016x}-{:02x}",
            self.trace, self.span, self.flags
        )
    }
}

/// The text is no `traceparent`. Not retryable.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ParseTraceError;

impl fmt::Display for ParseTraceError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(
            "no traceparent: give VERSION-TRACE-SPAN-FLAGS with 2, 32, 16 and 2 hexadecimal digits",
        )
    }
}

impl core::error::Error for ParseTraceError {}

impl FromStr for TraceContext {
    type Err = ParseTraceError;

    fn from_str(text: &str) -> Result<Self, ParseTraceError> {
        let mut parts = text.split('-');
        let mut next = |digits: usize| {
            let part = parts.next().filter(|part| part.len() == digits);
            let is_hex = |part: &&str| {
                part.bytes()
                    .all(|b| b.is_ascii_digit() || (b'a'..=b'f').contains(&b))
            };
            let part = part.filter(is_hex).ok_or(ParseTraceError)?;
            u128::from_str_radix(part, 16).map_err(|_| ParseTraceError)
        };
        let (version, trace, span, flags) = (next(2)?, next(32)?, next(16)?, next(2)?);
        // Later versions may say more behind it.
        let is_whole = version != 0 || parts.next().is_none();
        if version == 0xff || trace == 0 || span == 0 || !is_whole {
            return Err(ParseTraceError);
        }
        Ok(Self {
            trace,
            span: u64::try_from(span).map_err(|_| ParseTraceError)?,
            flags: u8::try_from(flags).map_err(|_| ParseTraceError)?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_traceparent_is_read_as_it_is_written() {
        let text = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
        let context: TraceContext = text.parse().unwrap();
        assert_eq!(context.span, 0xb7ad_6b71_6920_3331);
        assert!(context.is_sampled());
        assert_eq!(context.to_string(), text);
        let later = "42-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-00-more";
        assert!(!later.parse::<TraceContext>().unwrap().is_sampled());
    }

    #[test]
    fn other_texts_are_refused() {
        for text in [
            "",
            "00",
            "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331",
            "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01-more",
            "00-0AF7651916CD43DD8448EB211C80319C-b7ad6b7169203331-01",
            "00-00000000000000000000000000000000-b7ad6b7169203331-01",
            "00-0af7651916cd43dd8448eb211c80319c-0000000000000000-01",
            "ff-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
            "00-+af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
        ] {
            assert_eq!(text.parse::<TraceContext>(), Err(ParseTraceError), "{text}");
        }
    }
}
