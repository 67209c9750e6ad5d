//! Numbers of a process in the text format of OpenMetrics, which Prometheus reads.
//!
//! Nothing is counted here: every page is built from what the owners of the numbers say at that
//! moment. Names begin with `pluvio_` and end with the unit; `docs/operations.md` lists them.

use pluvio_client::{DataDirectoryStatus, ServerStatus};
use pluvio_net::{ConnectionsMemory, Tls, Totals};
use pluvio_server::Latencies;
use pluvio_units::TimeSpread;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::text::encode;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric, MetricEncoder, NoLabelSet};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::registry::Registry;
use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

/// A label's name and value.
type Label = (&'static str, String);

/// One metric with its samples.
#[derive(Debug)]
struct Metric {
    name: String,
    help: String,
    grows: bool,
    samples: Vec<(Vec<Label>, Number)>,
    /// Distributions, where it is one.
    times: Vec<(Vec<Label>, Times)>,
}

/// The value of a sample.
#[derive(Clone, Copy, Debug)]
enum Number {
    Whole(u64),
    Seconds(f64),
}

/// How long things took.
#[derive(Debug)]
struct Times {
    seconds: f64,
    count: u64,
    /// Ends of buckets in seconds, and how many are in each.
    buckets: Vec<(f64, u64)>,
}

/// Ends of buckets in nanoseconds: a microsecond, and each of the others four times the one before
/// it, up to a second. Longer times are in the last one.
const BUCKET_ENDS: [u64; 11] = [
    1_000,
    4_000,
    16_000,
    64_000,
    256_000,
    1_000_000,
    4_000_000,
    16_000_000,
    64_000_000,
    256_000_000,
    u64::MAX,
];

impl Times {
    fn of_spread(times: &TimeSpread) -> Self {
        let end = |end: Option<Duration>| end.map_or(f64::INFINITY, |end| end.as_secs_f64());
        Self {
            seconds: times.total().as_secs_f64(),
            count: times.count(),
            buckets: times.counts().map(|(to, count)| (end(to), count)).collect(),
        }
    }

    fn of(times: &Latencies) -> Self {
        let mut counts = [0; BUCKET_ENDS.len()];
        let mut nanos = 0.0;
        for step in times.iter_recorded() {
            let (value, count) = (step.value_iterated_to(), step.count_at_value());
            let bucket = BUCKET_ENDS.iter().position(|end| value <= *end);
            counts[bucket.unwrap_or(BUCKET_ENDS.len() - 1)] += count;
            nanos += value as f64 * count as f64;
        }
        let end = |end: u64| match end {
            u64::MAX => f64::INFINITY,
            nanos => nanos as f64 / 1e9,
        };
        Self {
            seconds: nanos / 1e9,
            count: times.len(),
            buckets: BUCKET_ENDS.into_iter().map(end).zip(counts).collect(),
        }
    }
}

/// What the Redis front end counted. Names are those of its own tables, so there are few.
#[derive(Debug, Default)]
pub struct RedisNumbers {
    /// Commands run, by name.
    pub commands: Vec<(String, u64)>,
    /// How long they took.
    pub times: BTreeMap<&'static str, Latencies>,
    /// Commands that do not exist.
    pub commands_unknown: u64,
    /// Error replies, by prefix.
    pub errors: Vec<(String, u64)>,
    /// Connections open now.
    pub connections_open: u64,
    /// Connections accepted.
    pub connections: u64,
    /// Bytes received.
    pub bytes_in: u64,
    /// Bytes sent.
    pub bytes_out: u64,
    /// Connections closed for what they sent.
    pub protocol_errors: u64,
    /// Bytes that connections hold.
    pub memory: u64,
    /// Bytes that they may hold.
    pub memory_max: u64,
    /// Connections closed because they held most.
    pub evicted: u64,
    /// Times that a command waited for room for its reply.
    pub waited: u64,
    /// Logins, commands, keys and databases that were refused to users.
    pub denied: [u64; 4],
}

/// All numbers of a process.
#[derive(Debug, Default)]
pub struct Metrics(Vec<Metric>);

impl Metrics {
    /// A number that goes up and down.
    pub(super) fn gauge(&mut self, name: &str, help: &str, value: u64) {
        self.gauges(name, help, vec![(Vec::new(), value)]);
    }

    /// A number that goes up and down for each of a bounded set of labels.
    pub(super) fn gauges(&mut self, name: &str, help: &str, samples: Vec<(Vec<Label>, u64)>) {
        self.0.push(Metric {
            name: name.to_owned(),
            help: help.to_owned(),
            grows: false,
            samples: whole(samples),
            times: Vec::new(),
        });
    }

    /// A number that only grows while the process lives.
    pub(super) fn counter(&mut self, name: &str, help: &str, value: u64) {
        self.counters(name, help, vec![(Vec::new(), value)]);
    }

    /// A growing number for each of a bounded set of labels.
    pub(super) fn counters(&mut self, name: &str, help: &str, samples: Vec<(Vec<Label>, u64)>) {
        self.0.push(Metric {
            name: name.to_owned(),
            help: help.to_owned(),
            grows: true,
            samples: whole(samples),
            times: Vec::new(),
        });
    }

    /// A growing time for each of a bounded set of labels.
    pub(super) fn seconds(&mut self, name: &str, help: &str, samples: Vec<(Vec<Label>, f64)>) {
        let samples = samples.into_iter();
        self.0.push(Metric {
            name: name.to_owned(),
            help: help.to_owned(),
            grows: true,
            samples: samples.map(|(of, n)| (of, Number::Seconds(n))).collect(),
            times: Vec::new(),
        });
    }

    /// Of each event loop, for how many microseconds it has worked.
    pub fn loops(&mut self, busy_us: &[u64]) {
        let loops = (0..).zip(busy_us);
        let of = |(core, us): (u32, &u64)| (vec![("core", core.to_string())], *us as f64 / 1e6);
        self.seconds(
            "loop_busy_seconds",
            "Time for which an event loop has worked, by core.",
            loops.map(of).collect(),
        );
    }

    fn data_directories(&mut self, directories: &[DataDirectoryStatus]) {
        let mut of = |name: &str, help: &str, number: fn(&DataDirectoryStatus) -> Option<u64>| {
            let sample = |directory: &DataDirectoryStatus| {
                let label = vec![("directory", directory.name.clone())];
                number(directory).map(|number| (label, number))
            };
            self.gauges(name, help, directories.iter().filter_map(sample).collect());
        };
        of(
            "data_directory_up",
            "1 while a server uses a data directory, 0 when it goes on without.",
            |directory| Some(directory.left.is_none().into()),
        );
        of(
            "data_directory_fails",
            "1 while a data directory that is used fails or hangs.",
            |directory| Some(directory.trouble.is_some().into()),
        );
        of(
            "data_directory_frames",
            "Frames in a data directory.",
            |directory| Some(directory.frames),
        );
        of(
            "data_directory_frame_bytes",
            "Bytes of those frames.",
            |directory| Some(directory.frame_bytes),
        );
        of(
            "data_directory_room_bytes",
            "Bytes that its file system has left.",
            |directory| directory.room,
        );
    }

    /// A distribution of times for each of a bounded set of labels.
    fn histograms(&mut self, name: &str, help: &str, times: Vec<(Vec<Label>, Times)>) {
        if times.is_empty() {
            return;
        }
        self.0.push(Metric {
            name: name.to_owned(),
            help: help.to_owned(),
            grows: false,
            samples: Vec::new(),
            times,
        });
    }

    /// What a server has and does.
    pub fn server(&mut self, status: &ServerStatus) {
        let s = status;
        self.gauge("server_id", "Id of this life of the server.", s.id.0);
        self.gauge(
            "memory_total_bytes",
            "Log memory this server may use.",
            s.memory_total,
        );
        self.gauge("memory_log_bytes", "Log memory in segments.", s.memory_log);
        self.gauge(
            "memory_live_bytes",
            "Log memory of live entries.",
            s.memory_live,
        );
        self.gauge(
            "memory_index_bytes",
            "Memory of the indexes and of the log's tables.",
            s.memory_index,
        );
        self.gauge("index_bytes", "Memory of the indexes.", s.index_bytes);
        self.gauge("index_entries", "Entries in the indexes.", s.index_entries);
        self.gauge(
            "index_slots",
            "Entries the indexes have slots for.",
            s.index_slots,
        );
        self.gauge("objects", "Objects this server owns.", s.objects);
        self.gauge(
            "object_bytes",
            "Bytes of their keys and values.",
            s.object_bytes,
        );
        self.gauge(
            "objects_noted",
            "Keys noted because they have a deadline, about.",
            s.objects_noted,
        );
        self.counter(
            "objects_expired",
            "Objects dropped because their deadlines were past.",
            s.objects_expired,
        );
        self.gauge(
            "keys_locked",
            "Keys that transactions of several servers have locked.",
            s.keys_locked,
        );
        self.gauge(
            "keys_locked_ms_max",
            "Milliseconds for which one of them has been locked, at most.",
            s.keys_locked_ms_max,
        );
        self.gauge(
            "mapped_readers",
            "Processes that read this server's memory.",
            s.mapped.readers.len() as u64,
        );
        self.counter(
            "mapped_readers_let_in",
            "Processes that were let in to read this server's memory.",
            s.mapped.let_in,
        );
        self.counter(
            "mapped_readers_refused",
            "Processes that were not.",
            s.mapped.refused,
        );
        self.gauge("tablets", "Tablets this server serves.", s.tablets);
        self.gauge("segments", "Segments in the log.", s.segments);
        self.gauge(
            "segments_under_replicated",
            "Segments with fewer replicas than wanted.",
            s.segments_under_replicated,
        );
        self.gauge(
            "replicas_wanted",
            "Replicas of each segment that are wanted.",
            s.replicas_wanted.into(),
        );
        self.gauge(
            "replicas_needed",
            "Replicas without which writes wait.",
            s.replicas_needed.into(),
        );
        self.gauge(
            "backups_up",
            "Backups this server can use.",
            s.backups_up.into(),
        );
        self.gauge(
            "writes_wait",
            "1 while writes wait for backups.",
            s.writes_wait.is_some().into(),
        );
        self.gauge("frames", "Frames kept for other servers.", s.frames);
        self.gauge("frame_bytes", "Bytes of those frames.", s.frame_bytes);
        self.counter("frames_damaged", "Frames found damaged.", s.frames_damaged);
        self.data_directories(&s.data);
        self.counter(
            "cleaner_freed_bytes",
            "Log memory that cleaning freed.",
            s.cleaner_freed,
        );
        self.counter(
            "cleaner_moved_bytes",
            "Live bytes that cleaning moved.",
            s.cleaner_moved,
        );
        self.counter(
            "requests",
            "Requests for objects that were answered.",
            s.requests,
        );
        self.gauge(
            "uptime_seconds",
            "Seconds since the server started.",
            s.uptime_ms / 1000,
        );
        self.loops(&s.loops_busy_us);
        self.histograms(
            "replica_write_seconds",
            "Time until a backup has acknowledged a write to a replica.",
            vec![(Vec::new(), Times::of_spread(&s.replica_write_times))],
        );
        self.counter(
            "replica_written_bytes",
            "Bytes that backups acknowledged, of each replica.",
            s.replica_bytes,
        );
        self.counter(
            "replica_write_failures",
            "Writes to replicas that failed and were repeated.",
            s.replica_write_failures,
        );
        self.counter("replicas_lost", "Replicas lost.", s.replicas_lost);
        self.counter(
            "cleaner_compactions",
            "Segments compacted in memory.",
            s.compactions,
        );
        self.counter(
            "cleaner_passes",
            "Passes of the cleaner over memory and disk.",
            s.cleaner_passes,
        );
        self.counter(
            "moved_here_bytes",
            "Bytes of entries that came with tablets from other servers.",
            s.moved_here,
        );
        self.counter(
            "backup_holds",
            "Times that writes were held for an archive of one moment.",
            s.holds,
        );
        self.counter(
            "backup_hold_us",
            "Microseconds for which writes were held for archives of one moment.",
            s.held_us,
        );
        self.counter(
            "quota_bytes_refused",
            "Writes refused because a table had its quota of bytes.",
            s.quota_refused_bytes,
        );
        self.counter(
            "quota_operations_refused",
            "Operations refused because a table had its quota of operations.",
            s.quota_refused_operations,
        );
    }

    /// What the transport counted.
    pub fn net(&mut self, totals: &Totals) {
        for (name, value) in totals.named() {
            let (name, help) = net_words(name);
            self.counter(&name, &help, value);
        }
    }

    /// What connections of the RPC port hold.
    pub fn net_memory(&mut self, memory: ConnectionsMemory) {
        self.gauge(
            "net_connections_memory_bytes",
            "Bytes that connections of the RPC port hold, of requests and replies.",
            memory.used as u64,
        );
        self.gauge(
            "net_connections_memory_max_bytes",
            "Bytes that connections of the RPC port may hold together.",
            memory.bound as u64,
        );
    }

    /// The certificate of the process, if it has one.
    pub fn tls(&mut self, tls: Option<&Tls>) {
        if let Some(tls) = tls {
            self.gauge(
                "tls_certificate_expiry_timestamp_seconds",
                "When the certificate in use expires, in seconds since 1970.",
                tls.expires(),
            );
        }
    }

    /// Counts of spans, if this process records any.
    pub fn spans(&mut self) {
        let Some(recorder) = pluvio_trace::recorder() else {
            return;
        };
        let counts = recorder.counts();
        let help = "Spans of sampled requests that were recorded.";
        self.counter("trace_spans_recorded", help, counts.recorded);
        let help = "Spans that the collector took.";
        self.counter("trace_spans_exported", help, counts.exported);
        let help = "Spans that were dropped: the collector is gone, slow, or refuses them.";
        self.counter("trace_spans_dropped", help, counts.dropped);
    }

    /// Of a coordinator's process: whether it leads.
    pub fn coordinator(&mut self, leads: bool) {
        let help = "Whether this coordinator leads (1) or waits (0).";
        self.gauge("coordinator_leads", help, u64::from(leads));
    }

    /// What the Redis front end counted.
    pub fn redis(&mut self, numbers: &RedisNumbers) {
        let n = numbers;
        let labelled = |name: &'static str, all: &[(String, u64)]| {
            let sample = |(label, value): &(String, u64)| (vec![(name, label.clone())], *value);
            all.iter().map(sample).collect()
        };
        self.counters(
            "redis_commands",
            "Commands run, by name.",
            labelled("command", &n.commands),
        );
        let of = |(name, times): (&&'static str, &Latencies)| {
            (vec![("command", (*name).to_owned())], Times::of(times))
        };
        self.histograms(
            "redis_command_seconds",
            "Time from the start of a command until its outcome is durable, by name.",
            n.times.iter().map(of).collect(),
        );
        self.counter(
            "redis_commands_unknown",
            "Commands that do not exist.",
            n.commands_unknown,
        );
        self.counters(
            "redis_errors",
            "Error replies, by prefix.",
            labelled("prefix", &n.errors),
        );
        self.gauge(
            "redis_connections_open",
            "Connections of Redis clients.",
            n.connections_open,
        );
        self.counter(
            "redis_connections",
            "Connections of Redis clients accepted.",
            n.connections,
        );
        self.counter(
            "redis_received_bytes",
            "Bytes from Redis clients.",
            n.bytes_in,
        );
        self.counter("redis_sent_bytes", "Bytes to Redis clients.", n.bytes_out);
        self.counter(
            "redis_protocol_errors",
            "Connections closed because they sent what is no Redis protocol.",
            n.protocol_errors,
        );
        self.gauge(
            "redis_connections_memory_bytes",
            "Bytes that connections of Redis clients hold, of requests and replies.",
            n.memory,
        );
        self.gauge(
            "redis_connections_memory_max_bytes",
            "Bytes that connections of Redis clients may hold together.",
            n.memory_max,
        );
        self.counter(
            "redis_connections_evicted",
            "Connections closed because they held most of that memory.",
            n.evicted,
        );
        let [logins, commands, keys, databases] = n.denied;
        self.counter(
            "redis_logins_failed",
            "Logins with a wrong password, or of users that are not there.",
            logins,
        );
        self.counter(
            "redis_commands_denied",
            "Commands that users may not run, or not on these keys or in this database.",
            commands + keys + databases,
        );
        self.counter(
            "redis_large_replies_waited",
            "Times that a command waited for room for a large reply.",
            n.waited,
        );
    }
}

/// The page.
pub fn text(metrics: Metrics) -> String {
    page(Registry::with_prefix("pluvio"), metrics)
}

/// The page of numbers with the names of redis_exporter.
pub fn redis_text(metrics: Metrics) -> String {
    page(Registry::with_prefix("redis"), metrics)
}

fn page(mut registry: Registry, metrics: Metrics) -> String {
    registry.register_collector(Box::new(metrics));
    let mut page = String::new();
    encode(&mut page, &registry).expect("writing to a string does not fail");
    page
}

impl Collector for Metrics {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
        for metric in &self.0 {
            let kind = match (metric.times.is_empty(), metric.grows) {
                (false, _) => MetricType::Histogram,
                (true, true) => MetricType::Counter,
                (true, false) => MetricType::Gauge,
            };
            let mut to = encoder.encode_descriptor(&metric.name, &metric.help, None, kind)?;
            for (labels, times) in &metric.times {
                let Times {
                    seconds,
                    count,
                    buckets,
                } = times;
                if labels.is_empty() {
                    to.encode_histogram::<NoLabelSet>(*seconds, *count, buckets, None)?;
                    break;
                }
                let mut to = to.encode_family(labels)?;
                to.encode_histogram::<NoLabelSet>(*seconds, *count, buckets, None)?;
            }
            for (labels, value) in &metric.samples {
                if labels.is_empty() {
                    metric.encode_value(*value, to)?;
                    break;
                }
                metric.encode_value(*value, to.encode_family(labels)?)?;
            }
        }
        Ok(())
    }
}

impl Metric {
    fn encode_value(&self, value: Number, to: MetricEncoder<'_>) -> Result<(), fmt::Error> {
        let value = match value {
            Number::Seconds(seconds) => return ConstCounter::new(seconds).encode(to),
            Number::Whole(value) => value,
        };
        if self.grows {
            return ConstCounter::new(value).encode(to);
        }
        // Gauges are signed in this format; no size reaches the difference.
        ConstGauge::new(i64::try_from(value).unwrap_or(i64::MAX)).encode(to)
    }
}

fn whole(samples: Vec<(Vec<Label>, u64)>) -> Vec<(Vec<Label>, Number)> {
    let samples = samples.into_iter();
    samples.map(|(of, n)| (of, Number::Whole(n))).collect()
}

/// Name and help of one of the transport's counts.
fn net_words(name: &str) -> (String, String) {
    let help = format!("Transport: {}.", name.replace('_', " "));
    match name.strip_prefix("bytes_") {
        Some(direction) => (format!("net_{direction}_bytes"), help),
        None => (format!("net_{name}"), help),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use pluvio_client::ClusterStatus;
    use pluvio_wire::ServerList;

    fn everything() -> Metrics {
        let mut all = Metrics::default();
        all.server(&ServerStatus {
            memory_live: 7,
            requests: 3,
            ..ServerStatus::default()
        });
        all.loops(&[1]);
        all.net(&Totals::default());
        all.net_memory(ConnectionsMemory::default());
        all.cluster(&ClusterStatus {
            cluster: pluvio_units::ClusterId(1),
            list: ServerList::default(),
            servers: Vec::new(),
            tables: Vec::new(),
            recoveries: Vec::new(),
            migrations: Vec::new(),
            drains: Vec::new(),
            balance: Default::default(),
            losses: Vec::new(),
            begun_anew: 0,
            metadata_trouble: None,
        });
        all.redis(&RedisNumbers {
            commands: vec![("get".into(), 2), ("client|id".into(), 1)],
            times: BTreeMap::from([("get", {
                let bounds = Latencies::new_with_bounds(1, 1_000_000_000, 2);
                let mut times = bounds.unwrap();
                times.record(900).unwrap();
                times.record(500_000).unwrap();
                times
            })]),
            ..RedisNumbers::default()
        });
        all
    }

    #[test]
    fn numbers_have_the_prefix_and_their_kind() {
        let page = text(everything());
        for line in [
            "# TYPE pluvio_memory_live_bytes gauge",
            "pluvio_memory_live_bytes 7",
            "# TYPE pluvio_requests counter",
            "pluvio_requests_total 3",
            "pluvio_redis_commands_total{command=\"get\"} 2",
            "pluvio_redis_commands_total{command=\"client|id\"} 1",
            "# TYPE pluvio_redis_command_seconds histogram",
            "pluvio_redis_command_seconds_bucket{le=\"0.000001\",command=\"get\"} 1",
            "pluvio_redis_command_seconds_bucket{le=\"0.001\",command=\"get\"} 2",
            "pluvio_redis_command_seconds_bucket{le=\"+Inf\",command=\"get\"} 2",
            "pluvio_redis_command_seconds_count{command=\"get\"} 2",
            "pluvio_net_sent_bytes_total 0",
            "# EOF",
        ] {
            assert!(page.lines().any(|l| l == line), "{line} is not in\n{page}");
        }
    }

    #[test]
    fn the_operations_page_lists_every_metric() {
        let page = include_str!("../../../../docs/operations.md");
        for metric in everything().0 {
            let name = format!(
                "`pluvio_{}{}`",
                metric.name,
                if metric.grows { "_total" } else { "" }
            );
            assert!(page.contains(&name), "{name} is not in docs/operations.md");
        }
    }
}
