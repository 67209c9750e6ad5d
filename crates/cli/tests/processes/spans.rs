//! Traces of sampled requests over processes, as a collector of OpenTelemetry gets them.

use crate::support::cluster::Cluster;
use crate::support::{Reply, Resp, Setup, http, native, wait_for};
use bytes::Bytes;
use pluvio_client::{Client, ClientOptions, TraceContext};
use pluvio_otlp::message::{ExportTraceServiceRequest, KeyValue, Span};
use prost::Message;
use std::collections::{BTreeMap, BTreeSet};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::thread;

/// A collector: it takes whatever is posted.
struct Collector {
    address: String,
    spans: Arc<Mutex<Vec<(Process, Span)>>>,
}

/// The name of a service and the id of its process.
type Process = (String, u32);

impl Collector {
    fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let spans = Arc::<Mutex<Vec<_>>>::default();
        let kept = Arc::clone(&spans);
        let serving = move || {
            for stream in listener.incoming() {
                // A process that was killed in the middle sends no whole message.
                if let Some(message) = stream.ok().and_then(|stream| receive(&stream)) {
                    kept.lock().unwrap().extend(all(message));
                }
            }
        };
        thread::Builder::new().spawn(serving).unwrap();
        Self { address, spans }
    }

    /// The spans of each trace so far.
    fn traces(&self) -> BTreeMap<Vec<u8>, Vec<(Process, Span)>> {
        let mut traces = BTreeMap::<_, Vec<_>>::new();
        for span in self.spans.lock().unwrap().iter() {
            let of = traces.entry(span.1.trace_id.clone()).or_default();
            of.push(span.clone());
        }
        traces
    }

    /// Waits for a trace that `is_wanted`.
    #[track_caller]
    fn find(&self, what: &str, is_wanted: impl Fn(&[(Process, Span)]) -> bool) -> Trace {
        self.find_after(what, is_wanted, || {})
    }

    /// The same. It does something before each look.
    #[track_caller]
    fn find_after(
        &self,
        what: &str,
        is_wanted: impl Fn(&[(Process, Span)]) -> bool,
        mut act: impl FnMut(),
    ) -> Trace {
        wait_for(what, || {
            act();
            let traces = self.traces();
            let found = traces.values().find(|spans| is_wanted(spans));
            found.cloned().map(Trace).ok_or_else(|| {
                let names = |spans: &Vec<(Process, Span)>| Trace(spans.clone()).shown();
                format!("{:#?}", traces.values().map(names).collect::<Vec<_>>())
            })
        })
    }
}

/// One message of a connection, which is answered.
fn receive(mut stream: &TcpStream) -> Option<ExportTraceServiceRequest> {
    let mut reader = BufReader::new(stream);
    let mut length = 0;
    let mut kind = String::new();
    for line in reader.by_ref().lines().map_while(Result::ok) {
        if line.is_empty() {
            break;
        }
        let line = line.to_ascii_lowercase();
        if let Some(value) = line.strip_prefix("content-length:") {
            length = value.trim().parse().ok()?;
        }
        if let Some(value) = line.strip_prefix("content-type:") {
            value.trim().clone_into(&mut kind);
        }
    }
    assert_eq!(kind, "application/x-protobuf");
    let mut body = vec![0; length];
    reader.read_exact(&mut body).ok()?;
    stream
        .write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
        .ok()?;
    Some(ExportTraceServiceRequest::decode(&body[..]).expect("a message of OTLP"))
}

fn all(message: ExportTraceServiceRequest) -> Vec<(Process, Span)> {
    let mut found = Vec::new();
    for of_process in message.resource_spans {
        let resource = of_process.resource.unwrap().attributes;
        let process = (text(&resource, "service.name"), pid(&resource));
        let spans = of_process.scope_spans.into_iter().flat_map(|of| of.spans);
        found.extend(spans.map(|span| (process.clone(), span)));
    }
    found
}

fn value<'a>(of: &'a [KeyValue], key: &str) -> &'a pluvio_otlp::message::Value {
    let found = of.iter().find(|attribute| attribute.key == key).unwrap();
    found.value.as_ref().unwrap().value.as_ref().unwrap()
}

fn text(of: &[KeyValue], key: &str) -> String {
    match value(of, key) {
        pluvio_otlp::message::Value::StringValue(text) => text.clone(),
        other @ pluvio_otlp::message::Value::IntValue(_) => panic!("{key} is no text: {other:?}"),
    }
}

fn pid(of: &[KeyValue]) -> u32 {
    match value(of, "process.pid") {
        pluvio_otlp::message::Value::IntValue(pid) => u32::try_from(*pid).unwrap(),
        other @ pluvio_otlp::message::Value::StringValue(_) => panic!("no number: {other:?}"),
    }
}

/// The spans of one trace.
#[derive(Clone)]
struct Trace(Vec<(Process, Span)>);

const INTERNAL: i32 = 1;
const SERVER: i32 = 2;
const CLIENT: i32 = 3;

impl Trace {
    /// As people read it.
    fn shown(&self) -> Vec<String> {
        let one = |((service, pid), span): &(Process, Span)| {
            let name = &span.name;
            format!(
                "{service} {pid}: {name} ({}), {:02x?} in {:02x?}",
                span.kind, span.span_id, span.parent_span_id
            )
        };
        self.0.iter().map(one).collect()
    }

    /// The spans of this name and kind below another one.
    fn below<'a>(&'a self, parent: &'a [u8], name: &'a str, kind: i32) -> Vec<&'a (Process, Span)> {
        let is_it = move |(_, span): &&(Process, Span)| {
            span.parent_span_id == parent && span.name == name && span.kind == kind
        };
        self.0.iter().filter(is_it).collect()
    }

    /// The only one of these.
    #[track_caller]
    fn only<'a>(&'a self, parent: &'a [u8], name: &'a str, kind: i32) -> &'a (Process, Span) {
        let found = self.below(parent, name, kind);
        assert_eq!(found.len(), 1, "{name} ({kind}): {:#?}", self.shown());
        found[0]
    }
}

/// The change of a `trace` below this span: from the request to the owner to its backups.
#[track_caller]
fn check_change(trace: &Trace, parent: &[u8], backups: usize) -> BTreeSet<u32> {
    let owner = trace.only(parent, "Mutate", SERVER);
    check_execution(trace, owner, backups)
}

/// The part of an owner in a change, and of its backups.
#[track_caller]
fn check_execution(trace: &Trace, owner: &(Process, Span), backups: usize) -> BTreeSet<u32> {
    let (process, span) = owner;
    for part in ["execute", "wait"] {
        let (of, part) = trace.only(&span.span_id, part, INTERNAL);
        assert_eq!(of, process);
        assert!(part.start_time_unix_nano >= span.start_time_unix_nano);
    }
    let writes = trace.below(&span.span_id, "WriteReplica", CLIENT);
    assert_eq!(writes.len(), backups, "{:#?}", trace.shown());
    let mut there = BTreeSet::new();
    for (by, write) in writes {
        assert_eq!(by, process);
        let (backup, _) = trace.only(&write.span_id, "WriteReplica", SERVER);
        assert_ne!(backup, process, "a backup is another server");
        there.insert(backup.1);
    }
    assert_eq!(there.len(), backups, "{:#?}", trace.shown());
    there
}

/// How many spans there are of a name and a kind.
fn count(spans: &[(Process, Span)], name: &str, kind: i32) -> usize {
    let is_it = |(_, span): &&(Process, Span)| span.name == name && span.kind == kind;
    spans.iter().filter(is_it).count()
}

/// Whether all that an owner and its two backups do for a change has come.
fn has_change(spans: &[(Process, Span)]) -> bool {
    let wanted = [
        ("execute", INTERNAL, 1),
        ("wait", INTERNAL, 1),
        ("WriteReplica", CLIENT, 2),
        ("WriteReplica", SERVER, 2),
    ];
    let is_there = |(name, kind, n): &(&str, i32, usize)| count(spans, name, *kind) == *n;
    wanted.iter().all(is_there)
}

fn setup(collector: &str) -> Setup {
    Setup::servers(3)
        .variable("OTEL_EXPORTER_OTLP_ENDPOINT", format!("http://{collector}"))
        .variable("OTEL_BSP_SCHEDULE_DELAY", "50")
        .variable("OTEL_EXPORTER_OTLP_TIMEOUT", "200")
}

fn set(client: &mut Resp, n: usize) -> Reply {
    client.call(&["SET", &format!("key {n}"), "value"])
}

fn pids(cluster: &Cluster) -> BTreeSet<u32> {
    (0..3).map(|server| cluster.pid(server)).collect()
}

/// The metric on the admin port of a server.
fn metric(cluster: &Cluster, server: usize, name: &str) -> u64 {
    let admin = cluster.servers()[server]["admin"].as_str().unwrap();
    http::metric(admin, name)
}

#[test]
fn a_change_is_one_trace_from_the_redis_port_over_its_owner_to_the_backups() {
    let collector = Collector::start();
    let cluster = setup(&collector.address)
        .variable("OTEL_TRACES_SAMPLER", "always_on")
        .start();
    let port = cluster.pid(0);
    let mut client = cluster.connect(0);
    for n in 0..64 {
        assert!(set(&mut client, n).is_ok());
    }
    // The first one finds no table: the coordinator makes it.
    let first = collector.find("a trace over the coordinator", |spans| {
        let names: BTreeSet<_> = spans.iter().map(|(p, s)| (&*p.0, &*s.name)).collect();
        names.contains(&("pluvio-coordinator", "CreateTable"))
            && names.contains(&("pluvio-server", "set"))
    });
    let (_, root) = first.only(b"", "set", SERVER);
    let (_, asked) = first.only(&root.span_id, "CreateTable", CLIENT);
    let (process, _) = first.only(&asked.span_id, "CreateTable", SERVER);
    assert_eq!(process.0, "pluvio-coordinator");

    // The owner is another server than the one with the port.
    let servers = |spans: &[(Process, Span)]| {
        let all = spans.iter().filter(|(p, _)| p.0 == "pluvio-server");
        all.map(|(p, _)| p.1).collect::<BTreeSet<_>>()
    };
    let is_whole = |spans: &[(Process, Span)]| {
        let rest = [
            ("set", SERVER, 1),
            ("Mutate", CLIENT, 1),
            ("Mutate", SERVER, 1),
        ];
        has_change(spans)
            && rest
                .iter()
                .all(|(name, kind, n)| count(spans, name, *kind) == *n)
    };
    // A backup that comes late, as one that starts last, is sent what it lacks outside of any
    // trace, and meanwhile one replica is enough. So there are changes until one has both.
    let mut later = 64..;
    let mut change = || {
        for n in later.by_ref().take(8) {
            assert!(set(&mut client, n).is_ok());
        }
    };
    let remote = collector.find_after("a change at another server", is_whole, &mut change);
    let (process, root) = remote.only(b"", "set", SERVER);
    assert_eq!(process.1, port);
    let (process, sent) = remote.only(&root.span_id, "Mutate", CLIENT);
    assert_eq!(process.1, port);
    let owner = &remote.only(&sent.span_id, "Mutate", SERVER).0;
    assert_ne!(owner.1, port);
    let backups = check_change(&remote, &sent.span_id, 2);
    assert!(backups.contains(&port), "each server is a backup");
    assert_eq!(servers(&remote.0), pids(&cluster));

    // The owner is the server with the port: no request between them.
    let is_here_and_whole = |spans: &[(Process, Span)]| {
        let is_here = spans.iter().all(|(_, span)| span.name != "Mutate");
        is_here && has_change(spans) && count(spans, "set", SERVER) == 1
    };
    let local = collector.find_after(
        "a change at the same server",
        is_here_and_whole,
        &mut change,
    );
    let root = local.only(b"", "set", SERVER);
    assert_eq!(root.0.1, port);
    check_execution(&local, root, 2);

    // A read has no more than its execution, or a request to its owner.
    client.call(&["GET", "key 1"]);
    let read = collector.find("a read", |spans| {
        let names: BTreeSet<_> = spans.iter().map(|(_, span)| &*span.name).collect();
        names.contains("get") && names.contains("execute")
    });
    read.only(b"", "get", SERVER);
    assert!(read.0.iter().all(|(_, span)| span.name != "WriteReplica"));

    for server in 0..3 {
        assert!(metric(&cluster, server, "pluvio_trace_spans_exported_total") > 0);
        assert_eq!(
            metric(&cluster, server, "pluvio_trace_spans_dropped_total"),
            0
        );
    }
}

#[test]
fn a_change_of_a_client_is_a_part_of_the_trace_that_the_client_gives() {
    let collector = Collector::start();
    let cluster = setup(&collector.address).start();
    let (runtime, env) = native::runtime();
    let client = Client::new(&env, ClientOptions::new(cluster.coordinators().split(',')));
    let given: TraceContext = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
        .parse()
        .unwrap();
    let value = Bytes::from_static(b"x");
    let (traced, before) = (client.with_trace(given), value.clone());
    let table = runtime.block_on(async move {
        let table = client.create_table("pages", None).await.unwrap();
        client.write(&table, b"before", before).await.unwrap();
        table
    });
    // A backup that starts last is sent what it lacks outside of any trace.
    cluster.wait_replicated();
    let written = runtime.block_on(async move { traced.write(&table, b"key", value).await });
    written.unwrap();
    let trace = collector.find("the trace of the client", |spans| {
        has_change(spans) && count(spans, "Mutate", SERVER) == 1
    });
    assert_eq!(trace.0[0].1.trace_id, given.trace.to_be_bytes());
    check_change(&trace, &given.span.to_be_bytes(), 2);
    // Nothing else was sampled.
    assert_eq!(collector.traces().len(), 1);
}

// shows: TRACE-1, OTLP-1
#[test]
fn without_a_collector_spans_are_dropped_and_counted_and_nothing_waits() {
    // One that takes connections and never answers.
    let mute = TcpListener::bind("127.0.0.1:0").unwrap();
    let cluster = setup(&mute.local_addr().unwrap().to_string())
        .variable("OTEL_TRACES_SAMPLER", "traceidratio")
        .variable("OTEL_TRACES_SAMPLER_ARG", "1.0")
        .start();
    let mut client = cluster.connect(0);
    for n in 0..200 {
        assert!(set(&mut client, n).is_ok());
    }
    wait_for("spans to be dropped", || {
        let dropped = metric(&cluster, 0, "pluvio_trace_spans_dropped_total");
        let recorded = metric(&cluster, 0, "pluvio_trace_spans_recorded_total");
        (dropped > 0)
            .then_some(())
            .ok_or(format!("{dropped} of {recorded}"))
    });
    assert_eq!(metric(&cluster, 0, "pluvio_trace_spans_exported_total"), 0);
    wait_for("the trace of it", || {
        let is_said = cluster.traced("spans are dropped");
        is_said.then_some(()).ok_or_else(|| cluster.traces())
    });
}
