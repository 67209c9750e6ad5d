//! Encoding and decoding, and the typed call.

use crate::header::Header;
use crate::opcode::Opcode;
use crate::refusal::Refusal;
use bytes::Bytes;
use core::time::Duration;
use pluvio_env::{Address, BoxFuture, CallError, Frame, Handled, Network};
use serde::Serialize;
use serde::de::DeserializeOwned;

/// A request or reply: its fields go to `meta`, its bulk bytes to `payload`.
pub trait Body: Serialize + DeserializeOwned + Send {
    /// The bulk bytes.
    fn payload(&self) -> Bytes {
        Bytes::new()
    }
    /// Puts the bulk bytes back after decoding.
    ///
    /// # Errors
    /// When they do not fit the fields.
    fn attach(&mut self, payload: Bytes) -> Result<(), Refusal> {
        if payload.is_empty() {
            Ok(())
        } else {
            Err(Refusal::malformed("unexpected payload"))
        }
    }
}

impl Body for () {}

/// A request and what answers it.
pub trait Request: Body {
    /// Its number.
    const OPCODE: Opcode;
    /// The reply when it was done.
    type Reply: Body;
}

/// What answering a request gives: at once, or later without blocking the core.
pub enum Answer<T> {
    /// Nothing had to be waited for.
    Now(Result<T, Refusal>),
    /// To be driven on the core that asked. Dropping it gives up waiting; what the request did
    /// stays done.
    Later(BoxFuture<'static, Result<T, Refusal>>),
}

impl<T> Answer<T> {
    /// The result, whenever it comes.
    ///
    /// # Errors
    /// The refusal of the request.
    pub async fn wait(self) -> Result<T, Refusal> {
        match self {
            Self::Now(result) => result,
            Self::Later(future) => future.await,
        }
    }
}

const STATUS_OK: u8 = 0;
const STATUS_REFUSED: u8 = 1;

fn pack(value: &impl Serialize, into: &mut Vec<u8>) {
    rmp_serde::encode::write_named(into, value).expect(
        "writing msgpack to memory cannot fail: our messages hold no type that msgpack lacks",
    );
}

fn unpack<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, Refusal> {
    rmp_serde::from_slice(bytes)
        .map_err(|e| Refusal::malformed(format!("cannot decode a message: {e}")))
}

/// Encodes a request.
pub fn encode<R: Request>(header: &Header, request: &R) -> Frame {
    let mut meta = Vec::with_capacity(Header::LEN + 64);
    header.encode(&mut meta);
    pack(request, &mut meta);
    Frame {
        opcode: R::OPCODE as u16,
        meta: meta.into(),
        payload: request.payload(),
    }
}

/// Decodes a request whose opcode was looked at already.
///
/// # Errors
/// A final refusal that can be sent back when the bytes are not such a request.
pub fn decode<R: Request>(frame: &Frame) -> Result<(Header, R), Refusal> {
    let (header, fields) = Header::decode(&frame.meta)?;
    let mut request: R = unpack(fields)?;
    request.attach(frame.payload.clone())?;
    Ok((header, request))
}

/// Encodes the answer to a request.
pub fn reply<R: Request>(result: &Result<R::Reply, Refusal>) -> Frame {
    let mut meta = Vec::with_capacity(64);
    let payload = match result {
        Ok(body) => {
            meta.push(STATUS_OK);
            pack(body, &mut meta);
            body.payload()
        }
        Err(refusal) => {
            meta.push(STATUS_REFUSED);
            pack(refusal, &mut meta);
            Bytes::new()
        }
    };
    Frame {
        opcode: R::OPCODE as u16,
        meta: meta.into(),
        payload,
    }
}

/// Turns the answer to a request into what a network service gives back.
pub fn handled<R: Request>(answer: Answer<R::Reply>) -> Handled
where
    R::Reply: 'static,
{
    match answer {
        Answer::Now(result) => Handled::Now(reply::<R>(&result)),
        Answer::Later(future) => Handled::Later(Box::pin(async move { reply::<R>(&future.await) })),
    }
}

/// Why a typed call gave no result.
#[derive(Clone, PartialEq, Debug, thiserror::Error)]
pub enum RpcError {
    /// No reply came.
    #[error(transparent)]
    Call(#[from] CallError),
    /// The other side refused.
    #[error(transparent)]
    Refused(#[from] Refusal),
    /// The reply could not be understood. The request may have been executed.
    #[error("cannot understand the reply of {0}: {1}")]
    BadReply(Address, String),
}

/// Sends a request and waits for its reply, at most for `limit`.
///
/// # Errors
/// See [`RpcError`]; whether the request was executed is said there.
pub async fn call<R: Request>(
    network: &dyn Network,
    to: &Address,
    header: Header,
    request: &R,
    limit: Duration,
) -> Result<R::Reply, RpcError> {
    let header = Header {
        deadline_us: u32::try_from(limit.as_micros()).unwrap_or(u32::MAX),
        ..header
    };
    let answer = network.call(to, encode(&header, request), limit).await?;
    let bad = |what: String| RpcError::BadReply(to.clone(), what);
    match answer.meta.split_first() {
        Some((&STATUS_OK, fields)) => {
            let mut body: R::Reply = unpack(fields).map_err(|e| bad(e.to_string()))?;
            body.attach(answer.payload)
                .map_err(|e| bad(e.to_string()))?;
            Ok(body)
        }
        Some((&STATUS_REFUSED, fields)) => Err(RpcError::Refused(
            unpack(fields).map_err(|e| bad(e.to_string()))?,
        )),
        Some((other, _)) => Err(bad(format!("unknown status {other}"))),
        None => Err(bad("empty".into())),
    }
}
