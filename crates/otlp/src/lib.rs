//! Export of spans to a collector of OpenTelemetry: OTLP over HTTP, in protobuf.
//!
//! A task takes spans from the [`Recorder`](pluvio_trace::Recorder) every few seconds and posts
//! them. The variables of the environment that OpenTelemetry defines say where to
//! ([`Settings::read`]) and what is sampled ([`sampler`]).
//!
//! - OTLP-1: a batch is posted once. If the collector is gone, slow or refuses, its spans are
//!   dropped and counted. Nothing else waits for it.
//!
//! Limits: no gRPC, no JSON, no TLS. Send to an agent or collector of the same machine, which has
//! these.

mod export;
pub mod message;
mod settings;

pub use export::Exporter;
pub use settings::{Settings, sampler};
