//! The envelope of a request that belongs to a sampled trace.
//!
//! It is a frame with an opcode of its own. In its `meta` stands, in front of that of the request:
//!
//! ```text
//!  0        1       2          4          20       28
//!  | layout | flags | opcode   | trace    | span   | meta of the request
//!  | u8 = 0 | u8    | u16 (le) | 16 bytes | 8 bytes|
//! ```
//!
//! Trace and span have the bytes of W3C Trace Context, most significant first. The payload is that
//! of the request. The reply is that of the request, with its opcode.
//!
//! - WIRE-5: a request outside a sampled trace has no envelope. Nothing of it is different, and a
//!   server finds out by the opcode that it looks at in any case.
//! - WIRE-6: a process that does not know the envelope refuses it as an unknown operation, and
//!   executes nothing. The caller sees that by the reply's opcode and sends the request without it.

use crate::codec::STATUS_REFUSED;
use crate::opcode::Opcode;
use crate::refusal::{FatalKind, Refusal};
use bytes::Bytes;
use pluvio_env::Frame;
use pluvio_units::TraceContext;

/// The opcode of the envelope. It is no operation, so it is not in the table of them, whose numbers
/// are all below.
pub const TRACED: u16 = 1000;
/// The first version of the protocol whose servers know it ([`ServerList::active`]).
///
/// [`ServerList::active`]: crate::ServerList::active
pub const TRACED_SINCE: u16 = 8;

/// Bytes in front of the request's own.
const HEAD: usize = 28;

/// Puts a request into an envelope.
#[must_use]
pub fn wrap_traced(context: &TraceContext, request: &Frame) -> Frame {
    let mut meta = Vec::with_capacity(HEAD + request.meta.len());
    meta.extend_from_slice(&[0, context.flags]);
    meta.extend_from_slice(&request.opcode.to_le_bytes());
    meta.extend_from_slice(&context.trace.to_be_bytes());
    meta.extend_from_slice(&context.span.to_be_bytes());
    meta.extend_from_slice(&request.meta);
    Frame {
        opcode: TRACED,
        meta: meta.into(),
        payload: request.payload.clone(),
    }
}

/// The operation in an envelope of which this has come, if it tells that yet.
#[must_use]
pub fn traced_opcode(begun: &[u8]) -> Option<u16> {
    let opcode = begun.get(2..4)?;
    Some(u16::from_le_bytes(opcode.try_into().ok()?))
}

/// Takes a request out of its envelope.
///
/// # Errors
/// A final refusal when the bytes are no envelope of a known operation.
pub fn unwrap_traced(envelope: &Frame) -> Result<(TraceContext, Frame), Refusal> {
    let Some((head, _)) = envelope.meta.split_first_chunk::<HEAD>() else {
        return Err(Refusal::malformed("an envelope is shorter than its head"));
    };
    let opcode = u16::from_le_bytes([head[2], head[3]]);
    if head[0] != 0 || Opcode::from_number(opcode).is_none() {
        let what = format!("layout {} of an envelope, operation {opcode}", head[0]);
        return Err(Refusal::fatal(FatalKind::Unsupported, what));
    }
    let number = |bytes: &[u8]| bytes.iter().fold(0, |n: u128, b| n << 8 | u128::from(*b));
    let (trace, span) = (number(&head[4..20]), number(&head[20..28]) as u64);
    if trace == 0 || span == 0 {
        return Err(Refusal::malformed("an envelope names no trace or no span"));
    }
    let context = TraceContext {
        trace,
        span,
        flags: head[1],
    };
    let request = Frame {
        opcode,
        meta: envelope.meta.slice(HEAD..),
        payload: Bytes::clone(&envelope.payload),
    };
    Ok((context, request))
}

/// Whether this reply to an envelope comes from a process that does not know envelopes. Nothing was
/// executed (WIRE-6).
#[must_use]
pub fn is_unknown(reply: &Frame) -> bool {
    if reply.opcode != TRACED {
        return false;
    }
    let Some((&STATUS_REFUSED, refusal)) = reply.meta.split_first() else {
        return false;
    };
    let refusal = crate::codec::unpack::<Refusal>(refusal);
    refusal.is_ok_and(|refusal| refusal.fatal_kind() == Some(FatalKind::Unsupported))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Header, Ping, encode, reply};
    use pluvio_units::ServerId;

    fn context() -> TraceContext {
        TraceContext::sampled(0x0102_0304 << 96, 0x0a0b)
    }

    fn ping() -> Frame {
        encode(&Header::default(), &Ping { from: ServerId(0) })
    }

    // shows: WIRE-5
    #[test]
    fn an_envelope_gives_back_the_request_and_no_request_is_one() {
        let envelope = wrap_traced(&context(), &ping());
        assert_eq!(envelope.meta[..8], [0, 1, 40, 0, 1, 2, 3, 4]);
        assert_eq!(envelope.meta[26..28], [0x0a, 0x0b]);
        assert_eq!(unwrap_traced(&envelope), Ok((context(), ping())));
        assert_eq!(traced_opcode(&envelope.meta), Some(Opcode::Ping as u16));
        assert_eq!(traced_opcode(&envelope.meta[..3]), None);
        assert!(Opcode::from_number(TRACED).is_none());
        assert!(Opcode::ALL.iter().all(|op| (*op as u16) < TRACED));
    }

    // shows: WIRE-2
    #[test]
    fn bytes_that_are_no_envelope_are_refused() {
        let good = wrap_traced(&context(), &ping());
        for length in 0..HEAD {
            let meta = good.meta.slice(..length);
            assert!(
                unwrap_traced(&Frame {
                    meta,
                    ..good.clone()
                })
                .is_err()
            );
        }
        for (at, byte) in [(0, 1), (3, 200), (4, 0), (27, 0)] {
            let mut meta = good.meta.to_vec();
            meta[at] = byte;
            if at == 4 {
                meta[4..20].fill(0);
            }
            if at == 27 {
                meta[20..28].fill(0);
            }
            let bad = Frame {
                meta: meta.into(),
                ..good.clone()
            };
            assert!(unwrap_traced(&bad).is_err(), "byte {at}");
        }
        let nested = wrap_traced(&context(), &good);
        assert!(
            unwrap_traced(&nested).is_err(),
            "an envelope in another one"
        );
    }

    // shows: WIRE-6
    #[test]
    fn a_process_that_does_not_know_envelopes_is_told_from_one_that_refuses() {
        let refusal = Err(Refusal::fatal(FatalKind::Unsupported, "no operation 1000"));
        let old = Frame {
            opcode: TRACED,
            ..reply::<Ping>(&refusal)
        };
        assert!(is_unknown(&old));
        assert!(!is_unknown(&reply::<Ping>(&refusal)), "it knows envelopes");
        let other = Frame {
            opcode: TRACED,
            ..reply::<Ping>(&Err(Refusal::Refresh))
        };
        assert!(!is_unknown(&other));
    }
}
