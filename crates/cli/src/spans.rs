//! Export of the spans of sampled requests, if the environment names a collector.

use pluvio_env::Env;
use pluvio_otlp::{Exporter, Settings};
use pluvio_trace::{Recorder, Sampler};
use pluvio_units::CoreId;
use std::sync::Arc;
use std::time::Duration;

/// How long the end of a process waits for its last spans to be sent.
pub const FLUSH_LIMIT: Duration = Duration::from_secs(1);

fn variable(name: &str) -> Option<String> {
    std::env::var(name).ok()
}

/// Begins to record spans and to send them to the collector that the environment names. Variables
/// that make no sense are said: they may be meant for all programs of a machine, and must not keep
/// this one from serving.
pub fn start(env: &Env, service: &str) -> Option<Arc<Exporter>> {
    let settings = match Settings::read(variable, service) {
        Ok(settings) => settings?,
        Err(why) => {
            tracing::warn!(why, "spans are not exported");
            return None;
        }
    };
    let recorder = Arc::new(Recorder::new(Arc::clone(&env.clock), Arc::clone(&env.rng)));
    if !pluvio_trace::install(Arc::clone(&recorder)) {
        return None;
    }
    tracing::info!(
        to = settings.endpoint(),
        "spans of sampled requests are exported"
    );
    let (version, pid) = (env!("CARGO_PKG_VERSION"), std::process::id());
    let exporter = Arc::new(Exporter::new(env, recorder, settings, version, pid));
    let run = Arc::clone(&exporter).run();
    let _runs_to_the_end = env.tasks.spawn(CoreId(0), "export spans", run);
    Some(exporter)
}

/// Which commands of Redis clients begin a trace: this part of them, or what the environment says.
pub fn sampler(given: Option<f64>) -> Sampler {
    let sampler = match given {
        Some(ratio) => Sampler::ratio(ratio),
        None => pluvio_otlp::sampler(variable).unwrap_or_else(|why| {
            tracing::warn!(why, "no request begins a trace");
            Sampler::OFF
        }),
    };
    if given.is_some() && !sampler.is_off() && pluvio_trace::recorder().is_none() {
        tracing::warn!(
            "--trace-sample: this server exports no spans; OTEL_EXPORTER_OTLP_ENDPOINT says where to"
        );
    }
    sampler
}

/// A part of all requests.
///
/// # Errors
/// It is none; for people.
pub fn ratio(text: &str) -> Result<f64, String> {
    let ratio = text
        .parse()
        .ok()
        .filter(|ratio| (0.0..=1.0).contains(ratio));
    ratio.ok_or_else(|| "give a part of all commands: 0 for none, 0.001, 1 for all".to_owned())
}
