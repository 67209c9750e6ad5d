//! The numbers of a server's Redis ports under the names of redis_exporter, for dashboards and
//! alerts that exist.
//!
//! Only what is true of this server is told. `redis_db_keys` is not: a database is a table of the
//! whole cluster, and each server would tell the same keys again.

use super::metrics::Metrics;
use pluvio_client::ServerStatus;
use pluvio_server::{CommandTotals, RedisTotals};

impl Metrics {
    /// The numbers, with names that lack the prefix `redis_`.
    pub fn like_redis_exporter(&mut self, s: &ServerStatus, t: &RedisTotals) {
        self.gauge("up", "Whether the server answers.", 1);
        self.gauge(
            "uptime_in_seconds",
            "Seconds since the server started.",
            s.uptime_ms / 1000,
        );
        self.gauge(
            "connected_clients",
            "Connections of clients.",
            t.connections_open(),
        );
        self.counter(
            "connections_received",
            "Connections accepted.",
            t.connections,
        );
        self.counter(
            "rejected_connections",
            "Connections refused because there were too many.",
            t.connections_refused,
        );
        self.commands_like_redis_exporter(t);
        self.gauge(
            "memory_used_bytes",
            "Memory of log and indexes.",
            s.memory_log + s.memory_index,
        );
        self.gauge(
            "memory_max_bytes",
            "Log memory this server may use.",
            s.memory_total,
        );
        self.counter("keyspace_hits", "Keys that reads found.", t.hits);
        self.counter("keyspace_misses", "Keys that reads did not find.", t.misses);
        self.counter(
            "expired_keys",
            "Objects dropped because their deadlines were past.",
            s.objects_expired,
        );
        self.counter("evicted_keys", "None: nothing is evicted.", 0);
        self.counter("net_input_bytes", "Bytes from clients.", t.bytes_in);
        self.counter("net_output_bytes", "Bytes to clients.", t.bytes_out);
    }

    fn commands_like_redis_exporter(&mut self, t: &RedisTotals) {
        self.counter(
            "commands_processed",
            "Commands of all names.",
            t.commands_total(),
        );
        let of = |get: fn(&CommandTotals) -> u64| {
            let commands = t.commands.iter();
            let sample = |(name, totals): (&&str, &CommandTotals)| {
                (vec![("cmd", (*name).to_owned())], get(totals))
            };
            commands.map(sample).collect()
        };
        self.counters("commands", "Commands run, by name.", of(|c| c.calls));
        self.counters(
            "commands_failed_calls",
            "Commands that ended with an error, by name.",
            of(|c| c.failed),
        );
        self.counters(
            "commands_rejected_calls",
            "Commands refused before they were run, by name.",
            of(|c| c.rejected),
        );
        let took = t.commands.iter().map(|(name, totals)| {
            let seconds = totals.nanos as f64 / 1e9;
            (vec![("cmd", (*name).to_owned())], seconds)
        });
        self.seconds(
            "commands_duration_seconds",
            "Time that commands took, by name; without those of transactions.",
            took.collect(),
        );
        let errors = t.errors.iter();
        let errors = errors.map(|(prefix, n)| (vec![("err", prefix.clone())], *n));
        self.counters("errors", "Error replies, by prefix.", errors.collect());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::admin::metrics::redis_text;

    #[test]
    fn numbers_have_the_names_of_the_exporter() {
        let mut totals = RedisTotals {
            hits: 5,
            ..RedisTotals::default()
        };
        let get = CommandTotals {
            calls: 3,
            nanos: 1_500_000_000,
            ..CommandTotals::default()
        };
        totals.commands.insert("get", get);
        totals.errors.insert("OOM".to_owned(), 2);
        let mut metrics = Metrics::default();
        metrics.like_redis_exporter(&ServerStatus::default(), &totals);
        let page = redis_text(metrics);
        for line in [
            "redis_up 1",
            "redis_commands_failed_calls_total{cmd=\"get\"} 0",
            "redis_commands_rejected_calls_total{cmd=\"get\"} 0",
            "redis_net_input_bytes_total 0",
            "redis_net_output_bytes_total 0",
            "redis_commands_total{cmd=\"get\"} 3",
            "redis_commands_duration_seconds_total{cmd=\"get\"} 1.5",
            "redis_keyspace_hits_total 5",
            "redis_errors_total{err=\"OOM\"} 2",
            "# EOF",
        ] {
            assert!(page.lines().any(|l| l == line), "{line} is not in\n{page}");
        }
        let doc = include_str!("../../../../docs/operations.md");
        let names = page.lines().filter_map(|line| line.strip_prefix("# TYPE "));
        for (name, kind) in names.filter_map(|line| line.split_once(' ')) {
            let total = if kind == "counter" { "_total" } else { "" };
            let name = format!("`{name}{total}`");
            assert!(doc.contains(&name), "{name} is not in docs/operations.md");
        }
    }
}
