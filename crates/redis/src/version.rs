//! As which server the front end presents itself. Clients choose by it what they may send, so it
//! names the Redis whose behaviour this is; Pluvio's own version stands beside it.

/// What HELLO calls the server.
pub(crate) const SERVER_NAME: &str = "redis";
/// The version of Redis whose behaviour this is.
pub(crate) const REDIS_VERSION: &str = "7.2.4";
