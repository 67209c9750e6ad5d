//! Why a measurement failed.

use pluvio_client::ClientError;

/// Why a measurement failed. What was written before stays.
#[derive(Clone, PartialEq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BenchError {
    /// No connection could be made, or one broke. Retryable when the server is back.
    #[error("connection to {address}: {message}; is a server there?")]
    Connection {
        /// The server.
        address: String,
        /// What happened.
        message: String,
    },
    /// The server sent what is no Redis protocol. Not retryable.
    #[error("{address} does not speak the Redis protocol: {message}")]
    Protocol {
        /// The server.
        address: String,
        /// What it sent.
        message: String,
    },
    /// The server refused an operation. Whether a retry helps is in the text.
    #[error("the server refused: {0}")]
    Refused(String),
    /// The native client failed.
    #[error(transparent)]
    Client(#[from] ClientError),
    /// The parameters make no sense.
    #[error("{0}")]
    Parameters(String),
}
