//! Encoding and decoding, and the typed call.

use crate::header::Header;
use crate::opcode::Opcode;
use crate::refusal::Refusal;
use bytes::Bytes;
use core::time::Duration;
use pluvio_env::{Address, BoxFuture, CallError, Frame, Handled, Network};
use serde::Serialize;
use serde::de::DeserializeOwned;

/// A request or reply as the two parts of a frame: its fields at the end of `meta`, its bulk bytes
/// in `payload`.
pub trait Body: Sized + Send {
    /// Appends the fields to `meta` and gives the payload.
    fn encode(&self, meta: &mut Vec<u8>) -> Bytes;
    /// Reads what [`Self::encode`] made.
    ///
    /// # Errors
    /// A final refusal when the bytes are no such message.
    fn decode(fields: &[u8], payload: Bytes) -> Result<Self, Refusal>;
}

/// A message whose fields stand in msgpack with their names, so that fields can be added without
/// breaking older peers.
pub trait Fields: Serialize + DeserializeOwned + Send {
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

impl<T: Fields> Body for T {
    fn encode(&self, meta: &mut Vec<u8>) -> Bytes {
        pack(self, meta);
        self.payload()
    }
    fn decode(fields: &[u8], payload: Bytes) -> Result<Self, Refusal> {
        let mut message: Self = unpack(fields)?;
        message.attach(payload)?;
        Ok(message)
    }
}

impl Fields for () {}

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
    /// To be driven on the core that asked. Dropping it gives up waiting; the request's effect
    /// stays.
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

pub(crate) const STATUS_OK: u8 = 0;
pub(crate) const STATUS_REFUSED: u8 = 1;

/// For fields that are left out when they say nothing.
pub(crate) fn is_default<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}

pub(crate) fn pack(value: &impl Serialize, into: &mut Vec<u8>) {
    rmp_serde::encode::write_named(into, value).expect(
        "writing msgpack to memory cannot fail: our messages hold no type that msgpack lacks",
    );
}

pub(crate) fn unpack<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, Refusal> {
    rmp_serde::from_slice(bytes)
        .map_err(|e| Refusal::malformed(format!("cannot decode a message: {e}")))
}

/// Encodes a request.
pub fn encode<R: Request>(header: &Header, request: &R) -> Frame {
    let mut meta = Vec::with_capacity(Header::LEN + 64);
    header.encode(&mut meta);
    let payload = request.encode(&mut meta);
    Frame {
        opcode: R::OPCODE as u16,
        meta: meta.into(),
        payload,
    }
}

/// Decodes a request whose opcode was looked at already.
///
/// # Errors
/// A final refusal that can be sent back when the bytes are not such a request.
pub fn decode<R: Request>(frame: &Frame) -> Result<(Header, R), Refusal> {
    let (header, fields) = Header::decode(&frame.meta)?;
    let request = R::decode(fields, frame.payload.clone())?;
    Ok((header, request))
}

/// Encodes the answer to a request.
pub fn reply<R: Request>(result: &Result<R::Reply, Refusal>) -> Frame {
    reply_with(R::OPCODE, result, 64)
}

/// Encodes the answer to a request with this opcode; its `meta` takes about `room` bytes.
pub(crate) fn reply_with<B: Body>(
    opcode: Opcode,
    result: &Result<B, Refusal>,
    room: usize,
) -> Frame {
    let mut meta = Vec::with_capacity(room);
    let payload = match result {
        Ok(body) => {
            meta.push(STATUS_OK);
            body.encode(&mut meta)
        }
        Err(refusal) => {
            meta.push(STATUS_REFUSED);
            pack(refusal, &mut meta);
            Bytes::new()
        }
    };
    Frame {
        opcode: opcode as u16,
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
    let header = header.waiting(limit);
    let answer = network.call(to, encode(&header, request), limit).await?;
    answered(to, answer)
}

/// What the reply to a request says.
///
/// # Errors
/// The refusal in it, or that it cannot be understood.
pub fn reply_to<R: Request>(by: &Address, reply: Frame) -> Result<R::Reply, RpcError> {
    answered(by, reply)
}

/// What a reply says.
pub(crate) fn answered<B: Body>(by: &Address, reply: Frame) -> Result<B, RpcError> {
    let bad = |what: String| RpcError::BadReply(by.clone(), what);
    match reply.meta.split_first() {
        Some((&STATUS_OK, fields)) => {
            B::decode(fields, reply.payload).map_err(|e| bad(e.to_string()))
        }
        Some((&STATUS_REFUSED, fields)) => Err(RpcError::Refused(
            unpack(fields).map_err(|e| bad(e.to_string()))?,
        )),
        Some((other, _)) => Err(bad(format!("unknown status {other}"))),
        None => Err(bad("empty".into())),
    }
}
