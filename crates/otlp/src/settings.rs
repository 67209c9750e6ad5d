//! The export as the environment says it, in the variables that OpenTelemetry defines.

use core::time::Duration;
use hyper::Uri;
use pluvio_trace::Sampler;

/// Where spans go, and as whose.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Settings {
    /// Host and port of the collector.
    pub(crate) host: String,
    /// The path there.
    pub(crate) path: String,
    /// More headers of each request.
    pub(crate) headers: Vec<(String, String)>,
    /// How long a request may take.
    pub(crate) timeout: Duration,
    /// The pause between two of them.
    pub(crate) delay: Duration,
    /// The name of the service.
    pub(crate) service: String,
    /// More attributes of the process.
    pub(crate) attributes: Vec<(String, String)>,
}

/// The path of traces at an endpoint for all signals.
const TRACES: &str = "/v1/traces";

impl Settings {
    /// What these variables say. `None`: they name no collector, or switch the export off.
    ///
    /// # Errors
    /// A variable makes no sense, or asks for what this export cannot do; for people.
    pub fn read(
        variable: impl Fn(&str) -> Option<String>,
        service: &str,
    ) -> Result<Option<Self>, String> {
        let given = |name: &str| variable(name).filter(|value| !value.trim().is_empty());
        // The one for traces counts before the one for all signals.
        let either = |name: &str| {
            let of_traces = format!("OTEL_EXPORTER_OTLP_TRACES_{name}");
            let of_all = format!("OTEL_EXPORTER_OTLP_{name}");
            match given(&of_traces) {
                Some(value) => Some((of_traces, value)),
                None => Some((of_all.clone(), given(&of_all)?)),
            }
        };
        let is_off = given("OTEL_SDK_DISABLED").is_some_and(|is| is.eq_ignore_ascii_case("true"))
            || given("OTEL_TRACES_EXPORTER").is_some_and(|exporter| exporter == "none");
        let Some((name, endpoint)) = either("ENDPOINT").filter(|_| !is_off) else {
            return Ok(None);
        };
        if let Some((name, protocol)) = either("PROTOCOL")
            && protocol != "http/protobuf"
        {
            return Err(format!("{name}={protocol}: only http/protobuf is known"));
        }
        let wrong = || format!("{name}={endpoint}: give http://HOST:PORT");
        let uri: Uri = endpoint.parse().map_err(|_| wrong())?;
        if uri.scheme_str() == Some("https") {
            return Err(format!(
                "{name}={endpoint}: https is not known; send to a collector of this machine"
            ));
        }
        let host = uri.host().filter(|_| uri.scheme_str() == Some("http"));
        let host = host.ok_or_else(wrong)?;
        let path = match name.contains("TRACES") {
            true => uri.path().to_owned(),
            false => format!("{}{TRACES}", uri.path().trim_end_matches('/')),
        };
        let millis = |name: &str, value: Option<String>, usual: u64| match value {
            None => Ok(Duration::from_millis(usual)),
            Some(text) => match text.trim().parse() {
                Ok(millis @ 1..=3_600_000) => Ok(Duration::from_millis(millis)),
                Ok(_) | Err(_) => Err(format!("{name}={text}: give milliseconds, 1 to 3600000")),
            },
        };
        Ok(Some(Self {
            host: format!("{host}:{}", uri.port_u16().unwrap_or(80)),
            path,
            headers: match either("HEADERS") {
                Some((name, text)) => pairs(&text).map_err(|why| format!("{name}: {why}"))?,
                None => Vec::new(),
            },
            timeout: match either("TIMEOUT") {
                Some((name, text)) => millis(&name, Some(text), 0)?,
                None => Duration::from_secs(10),
            },
            delay: millis(
                "OTEL_BSP_SCHEDULE_DELAY",
                given("OTEL_BSP_SCHEDULE_DELAY"),
                5000,
            )?,
            service: given("OTEL_SERVICE_NAME").unwrap_or_else(|| service.to_owned()),
            attributes: match given("OTEL_RESOURCE_ATTRIBUTES") {
                Some(text) => {
                    pairs(&text).map_err(|why| format!("OTEL_RESOURCE_ATTRIBUTES: {why}"))?
                }
                None => Vec::new(),
            },
        }))
    }

    /// Where spans are sent.
    #[must_use]
    pub fn endpoint(&self) -> String {
        format!("http://{}{}", self.host, self.path)
    }
}

/// Pairs of names and values: `a=1,b=2`. Other characters are written as `%2C`.
fn pairs(text: &str) -> Result<Vec<(String, String)>, String> {
    let parts = text.split(',').filter(|part| !part.trim().is_empty());
    let pair = |part: &str| {
        let (name, value) = part.split_once('=').ok_or("give NAME=VALUE,NAME=VALUE")?;
        let decoded = decoded(value.trim()).ok_or("a value has a % that is no character")?;
        Ok::<_, &str>((name.trim().to_owned(), decoded))
    };
    let pairs: Result<_, _> = parts.map(pair).collect();
    pairs.map_err(str::to_owned)
}

fn decoded(value: &str) -> Option<String> {
    let mut parts = value.split('%');
    let mut bytes = parts.next()?.as_bytes().to_vec();
    for part in parts {
        let (digits, rest) = part.split_at_checked(2)?;
        bytes.push(u8::from_str_radix(digits, 16).ok()?);
        bytes.extend_from_slice(rest.as_bytes());
    }
    String::from_utf8(bytes).ok()
}

/// The requests that begin a trace, as the environment says it. Without a word of it, none does:
/// unlike OpenTelemetry's own default, which is all.
///
/// # Errors
/// It makes no sense; for people.
pub fn sampler(variable: impl Fn(&str) -> Option<String>) -> Result<Sampler, String> {
    let ratio = || {
        let Some(text) = variable("OTEL_TRACES_SAMPLER_ARG") else {
            return Ok(Sampler::ratio(1.0));
        };
        match text.trim().parse() {
            Ok(ratio) if (0.0..=1.0).contains(&ratio) => Ok(Sampler::ratio(ratio)),
            Ok(_) | Err(_) => Err(format!(
                "OTEL_TRACES_SAMPLER_ARG={text}: give a part of all requests, 0 to 1"
            )),
        }
    };
    match variable("OTEL_TRACES_SAMPLER").as_deref().map(str::trim) {
        None | Some("" | "always_off" | "parentbased_always_off") => Ok(Sampler::OFF),
        Some("always_on" | "parentbased_always_on") => Ok(Sampler::ratio(1.0)),
        Some("traceidratio" | "parentbased_traceidratio") => ratio(),
        Some(other) => Err(format!(
            "OTEL_TRACES_SAMPLER={other}: always_on, always_off and traceidratio are known, and these with parentbased_"
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of<'a>(all: &'a [(&'a str, &'a str)]) -> impl Fn(&str) -> Option<String> + 'a {
        |name| {
            let found = all.iter().find(|(given, _)| *given == name)?;
            Some(found.1.to_owned())
        }
    }

    fn read(all: &[(&str, &str)]) -> Result<Option<Settings>, String> {
        Settings::read(of(all), "pluvio-server")
    }

    #[test]
    fn nothing_is_exported_unless_a_collector_is_named() {
        assert_eq!(read(&[]), Ok(None));
        assert_eq!(read(&[("OTEL_EXPORTER_OTLP_ENDPOINT", " ")]), Ok(None));
        let off = [
            ("OTEL_EXPORTER_OTLP_ENDPOINT", "http://here:1"),
            ("OTEL_SDK_DISABLED", "TRUE"),
        ];
        assert_eq!(read(&off), Ok(None));
    }

    #[test]
    fn the_variables_of_opentelemetry_count() {
        let settings = read(&[
            ("OTEL_EXPORTER_OTLP_ENDPOINT", "http://collector:4318/base/"),
            ("OTEL_EXPORTER_OTLP_PROTOCOL", "http/protobuf"),
            ("OTEL_EXPORTER_OTLP_HEADERS", "key=a%2Cb, more = x"),
            ("OTEL_EXPORTER_OTLP_TIMEOUT", "250"),
            ("OTEL_BSP_SCHEDULE_DELAY", "100"),
            ("OTEL_SERVICE_NAME", "cache"),
            ("OTEL_RESOURCE_ATTRIBUTES", "zone=north"),
        ]);
        let settings = settings.unwrap().unwrap();
        assert_eq!(settings.endpoint(), "http://collector:4318/base/v1/traces");
        let pair = |name: &str, value: &str| (name.to_owned(), value.to_owned());
        assert_eq!(settings.headers, [pair("key", "a,b"), pair("more", "x")]);
        assert_eq!(settings.timeout, Duration::from_millis(250));
        assert_eq!(settings.delay, Duration::from_millis(100));
        assert_eq!(settings.service, "cache");
        assert_eq!(settings.attributes, [pair("zone", "north")]);
        let both = read(&[
            ("OTEL_EXPORTER_OTLP_ENDPOINT", "http://here:1"),
            ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "http://[::1]/t"),
        ]);
        let both = both.unwrap().unwrap();
        assert_eq!(both.endpoint(), "http://[::1]:80/t");
        assert_eq!(both.service, "pluvio-server");
    }

    #[test]
    fn what_makes_no_sense_is_said() {
        let here = ("OTEL_EXPORTER_OTLP_ENDPOINT", "http://here:1");
        for (name, value) in [
            ("OTEL_EXPORTER_OTLP_ENDPOINT", "https://here:1"),
            ("OTEL_EXPORTER_OTLP_ENDPOINT", "here:1"),
            ("OTEL_EXPORTER_OTLP_ENDPOINT", "unix:/here"),
            ("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc"),
            ("OTEL_EXPORTER_OTLP_HEADERS", "nonsense"),
            ("OTEL_EXPORTER_OTLP_HEADERS", "a=%zz"),
            ("OTEL_EXPORTER_OTLP_HEADERS", "a=%"),
            ("OTEL_EXPORTER_OTLP_TIMEOUT", "0"),
            ("OTEL_BSP_SCHEDULE_DELAY", "soon"),
        ] {
            let refused = read(&[(name, value), here]).unwrap_err();
            assert!(refused.contains(name), "{name}={value}: {refused}");
        }
    }

    #[test]
    fn nothing_is_sampled_unless_it_is_said() {
        assert_eq!(sampler(of(&[])), Ok(Sampler::OFF));
        let by = |name, ratio| {
            sampler(of(&[
                ("OTEL_TRACES_SAMPLER", name),
                ("OTEL_TRACES_SAMPLER_ARG", ratio),
            ]))
        };
        assert_eq!(by("always_on", "x"), Ok(Sampler::ratio(1.0)));
        assert_eq!(by("parentbased_always_off", "1"), Ok(Sampler::OFF));
        let ratio = by("parentbased_traceidratio", "0.25");
        assert_eq!(ratio, Ok(Sampler::ratio(0.25)));
        assert!(by("traceidratio", "2").is_err());
        assert!(by("traceidratio", "NaN").is_err());
        assert!(by("jaeger_remote", "1").is_err());
    }
}
