//! The task that sends spans.

use crate::message::{
    ExportTraceServiceRequest, ExportTraceServiceResponse, InstrumentationScope, KeyValue,
    Resource, ResourceSpans, ScopeSpans, Span, Status,
};
use crate::settings::Settings;
use bytes::Bytes;
use core::time::Duration;
use http_body_util::{BodyExt, Full, Limited};
use hyper::client::conn::http1::handshake;
use hyper::header::{CONTENT_TYPE, HOST};
use hyper::{Method, Request};
use hyper_util::rt::TokioIo;
use pluvio_env::{Env, Moment, timeout};
use pluvio_trace::{Recorder, SpanKind, SpanRecord, Value};
use pluvio_units::CoreId;
use prost::Message;
use std::sync::Arc;
use tokio::net::TcpStream;

/// Spans of a request, at most: about 100 KiB.
const BATCH_MAX: usize = 512;
/// How often the exporter looks whether a batch is full.
const LOOK: Duration = Duration::from_millis(250);
/// Bytes of an answer that are read.
const ANSWER_MAX: usize = 64 << 10;

/// Sends the spans of a recorder.
pub struct Exporter {
    env: Env,
    recorder: Arc<Recorder>,
    settings: Settings,
    resource: Resource,
}

impl Exporter {
    /// One that sends what `recorder` gets. The process's `version` and `pid` go with it.
    #[must_use]
    pub fn new(
        env: &Env,
        recorder: Arc<Recorder>,
        settings: Settings,
        version: &str,
        pid: u32,
    ) -> Self {
        let instance = format!("{:016x}{:016x}", env.rng.next_u64(), env.rng.next_u64());
        let mut attributes = vec![
            KeyValue::text("service.name", settings.service.clone()),
            KeyValue::text("service.version", version),
            KeyValue::text("service.instance.id", instance),
            KeyValue::number("process.pid", pid.into()),
        ];
        let more = settings.attributes.iter();
        attributes.extend(more.map(|(name, value)| KeyValue::text(name, value.clone())));
        Self {
            env: env.clone(),
            recorder,
            settings,
            resource: Resource { attributes },
        }
    }

    /// Sends spans until it is dropped.
    pub async fn run(self: Arc<Self>) {
        let clock = &*self.env.clock;
        let mut last = clock.now();
        let mut failing = false;
        loop {
            clock.sleep(LOOK.min(self.settings.delay)).await;
            let is_full = self.recorder.len() >= BATCH_MAX;
            if !is_full && clock.now().since(last) < self.settings.delay {
                continue;
            }
            last = clock.now();
            match self.export().await {
                Ok(()) if failing => {
                    tracing::info!("the collector takes spans again");
                    failing = false;
                }
                Ok(()) => {}
                Err(why) if failing => tracing::debug!(why, "spans are dropped"),
                Err(why) => {
                    tracing::warn!(why, "spans are dropped");
                    failing = true;
                }
            }
        }
    }

    /// Sends what waits, for a process that is about to end.
    pub async fn flush(&self, limit: Duration) {
        let all = async {
            while !self.recorder.is_empty() {
                if let Err(why) = self.export().await {
                    tracing::debug!(why, "spans are dropped");
                    return;
                }
            }
        };
        let _late = timeout(&*self.env.clock, limit, all).await;
    }

    /// Sends one batch, if there is one (OTLP-1).
    async fn export(&self) -> Result<(), String> {
        let spans = self.recorder.take(BATCH_MAX);
        if spans.is_empty() {
            return Ok(());
        }
        // Counts also when the future is dropped.
        let mut batch = Batch {
            recorder: &self.recorder,
            dropped: spans.len(),
        };
        let body = Bytes::from(self.message(spans).encode_to_vec());
        let limit = self.settings.timeout;
        let posted = timeout(&*self.env.clock, limit, self.post(body)).await;
        let rejected = match posted {
            Ok(answer) => answer?,
            Err(_) => {
                let endpoint = self.settings.endpoint();
                return Err(format!("{endpoint} does not answer within {limit:?}"));
            }
        };
        batch.exported(rejected);
        Ok(())
    }

    fn message(&self, spans: Vec<SpanRecord>) -> ExportTraceServiceRequest {
        let scope = InstrumentationScope {
            name: "pluvio".to_owned(),
            version: String::new(),
        };
        ExportTraceServiceRequest {
            resource_spans: vec![ResourceSpans {
                resource: Some(self.resource.clone()),
                scope_spans: vec![ScopeSpans {
                    scope: Some(scope),
                    spans: spans.into_iter().map(span).collect(),
                }],
            }],
        }
    }

    /// Posts a message; how many spans the collector did not take.
    async fn post(&self, body: Bytes) -> Result<usize, String> {
        let Settings { host, path, .. } = &self.settings;
        let failed =
            |what: &str, error: &dyn core::fmt::Display| format!("{host}: {what}: {error}");
        let stream = TcpStream::connect(host).await;
        let stream = stream.map_err(|error| failed("cannot connect", &error))?;
        let (mut sender, connection) = handshake(TokioIo::new(stream))
            .await
            .map_err(|error| failed("no HTTP", &error))?;
        // Ends with the connection, which ends with `sender`.
        let _ends_by_itself = self.env.tasks.spawn(CoreId(0), "spans", async move {
            let _the_sender_hears_of_it = connection.await;
        });
        let mut request = Request::builder()
            .method(Method::POST)
            .uri(path)
            .header(HOST, host)
            .header(CONTENT_TYPE, "application/x-protobuf");
        for (name, value) in &self.settings.headers {
            request = request.header(name, value);
        }
        let request = request
            .body(Full::new(body))
            .map_err(|error| failed("OTEL_EXPORTER_OTLP_HEADERS", &error))?;
        let answer = sender.send_request(request).await;
        let answer = answer.map_err(|error| failed("no answer", &error))?;
        let status = answer.status();
        let body = Limited::new(answer.into_body(), ANSWER_MAX).collect().await;
        if !status.is_success() {
            return Err(format!("{host}: it answers {status}"));
        }
        let body = body.map(|body| body.to_bytes()).unwrap_or_default();
        let answer = ExportTraceServiceResponse::decode(body).unwrap_or_default();
        let rejected = answer.partial_success.map_or(0, |part| part.rejected_spans);
        Ok(usize::try_from(rejected).unwrap_or(0))
    }
}

/// Spans that are being sent, and count as dropped until they are not.
struct Batch<'a> {
    recorder: &'a Recorder,
    dropped: usize,
}

impl Batch<'_> {
    fn exported(&mut self, rejected: usize) {
        let taken = self.dropped.saturating_sub(rejected);
        self.recorder.left(taken, true);
        self.dropped -= taken;
    }
}

impl Drop for Batch<'_> {
    fn drop(&mut self) {
        self.recorder.left(self.dropped, false);
    }
}

/// A span as OTLP has it.
fn span(record: SpanRecord) -> Span {
    let context = record.context;
    let nanos = |time: Moment| u64::try_from(time.0.as_nanos()).unwrap_or(u64::MAX);
    let began = Moment(record.began);
    Span {
        trace_id: context.trace.to_be_bytes().to_vec(),
        span_id: context.span.to_be_bytes().to_vec(),
        parent_span_id: match record.parent {
            0 => Vec::new(),
            parent => parent.to_be_bytes().to_vec(),
        },
        name: record.name.to_owned(),
        kind: match record.kind {
            SpanKind::Internal => 1,
            SpanKind::Server => 2,
            SpanKind::Client => 3,
        },
        start_time_unix_nano: nanos(began),
        end_time_unix_nano: nanos(began + record.took),
        attributes: record
            .attributes
            .into_iter()
            .map(|(name, value)| match value {
                Value::Text(text) => KeyValue::text(name, text),
                Value::Number(number) => KeyValue::number(name, number),
            })
            .collect(),
        status: record.error.map(|message| Status { message, code: 2 }),
        flags: context.flags.into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use pluvio_trace::TraceContext;

    /// The bytes that `opentelemetry-proto` 0.33 reads as this span, and writes for it.
    const KNOWN: &str = "\
        0ab3010a210a1f0a0c736572766963652e6e616d65120f0a0d706c7576696f2d736572766572128d\
        01128a010a100102030400000000000000000000000512080000000000000a0b2208000000000000\
        0c0d2a064d757461746530033907002a36fe9c97174164002a36fe9c97174a210a0e736572766572\
        2e61646472657373120f0a0d31302e302e302e313a373730304a130a0d706c7576696f2e6261636b\
        7570120218037a0812046c6f73741802850101000000";

    #[test]
    fn spans_have_the_bytes_of_opentelemetry() {
        let record = SpanRecord {
            context: TraceContext::sampled(0x0102_0304 << 96 | 5, 0x0a0b),
            parent: 0x0c0d,
            name: "Mutate",
            kind: SpanKind::Client,
            began: Duration::new(1_700_000_000, 7),
            took: Duration::from_nanos(93),
            attributes: vec![
                ("server.address", Value::Text("10.0.0.1:7700".to_owned())),
                ("pluvio.backup", Value::Number(3)),
            ],
            error: Some("lost".to_owned()),
        };
        let resource = Resource {
            attributes: vec![KeyValue::text("service.name", "pluvio-server")],
        };
        let message = ExportTraceServiceRequest {
            resource_spans: vec![ResourceSpans {
                resource: Some(resource),
                scope_spans: vec![ScopeSpans {
                    scope: None,
                    spans: vec![span(record)],
                }],
            }],
        };
        let bytes = message.encode_to_vec();
        let hex: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
        assert_eq!(hex, KNOWN);
        assert_eq!(ExportTraceServiceRequest::decode(&bytes[..]), Ok(message));
    }
}
