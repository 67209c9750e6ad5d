//! `pluvio bench transactions`: a transaction that reads and writes one key, at one owner and at
//! each of two. It runs beside a single write, by the native client and by EXEC.
//!
//! The keys are those of two servers, found by the client's map. Redis callers are connected to the
//! owner of the first key, as a cluster client would be.

use crate::experiment::{Files, tell};
use crate::systems::batches::write_all;
use crate::systems::pipeline::{Pipeline, answered};
use crate::systems::turns::{Caller, Length, Turns, p50_us, server_us, turn};
use crate::systems::{Keeps, Ours};
use bytes::Bytes;
use clap::Args;
use indicatif::ProgressBar;
use pluvio_bench::experiment::{Experiment, Panel, Picture, Row, Shape};
use pluvio_client::{Change, Client, Get, Mutation, Operation, Table, Transacted, TransactionStep};
use pluvio_console::failure::Failure;
use pluvio_console::options::Global;
use pluvio_console::output::bar;
use pluvio_console::tls::TlsArgs;
use pluvio_env::Env;
use pluvio_load::resp::Reply;
use pluvio_load::{KEY_BYTES, Machine, Random, key};
use pluvio_local::{LocalOptions, temporary};
use pluvio_units::{ServerId, Size, VALUE_MAX};
use std::collections::BTreeMap;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

/// `pluvio bench transactions`.
#[derive(Args, Clone, Debug)]
pub struct Transactions {
    /// Servers of the cluster
    #[arg(long, value_name = "N", default_value_t = 3)]
    servers: u32,
    /// Replicas of each write, on other servers
    #[arg(long, value_name = "N", default_value_t = 2)]
    replicas: u32,
    /// Callers, each with one transaction under way; several give rows each
    #[arg(long, value_name = "LIST", value_delimiter = ',', default_values_t = [1, 16])]
    callers: Vec<usize>,
    /// Keys of each of the two servers
    #[arg(long, value_name = "N", default_value_t = 10_000)]
    keys: usize,
    /// Bytes of a value
    #[arg(long, value_name = "BYTES", default_value_t = 100)]
    value_size: usize,
    /// How long each turn is, in seconds
    #[arg(long, value_name = "S", default_value_t = 0.5)]
    seconds: f64,
    /// Rounds, in each of which every load has a turn
    #[arg(long, value_name = "N", default_value_t = 7)]
    rounds: usize,
    /// Seed of keys and values
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
    #[command(flatten)]
    files: Files,
}

/// How long a turn runs before it counts, as a part of its length.
const WARMUP_SHARE: f64 = 0.2;
/// Keys that are written at once before anything is measured.
const FILL_BATCH: usize = 100;
/// Memory of each server.
const MEMORY: Size = Size(512 << 20);

/// What is done again and again.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Load {
    /// One write.
    Write,
    /// A transaction that reads and writes one key.
    OneOwner,
    /// The same with a key of each of two servers.
    TwoOwners,
}

/// How it is asked for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum By {
    Native,
    Redis,
}

const LOADS: [Load; 3] = [Load::Write, Load::OneOwner, Load::TwoOwners];
const WAYS: [By; 2] = [By::Native, By::Redis];

impl Load {
    fn name(self) -> &'static str {
        match self {
            Self::Write => "write",
            Self::OneOwner => "one owner",
            Self::TwoOwners => "two owners",
        }
    }
}

impl By {
    fn name(self) -> &'static str {
        match self {
            Self::Native => "native",
            Self::Redis => "redis",
        }
    }
}

/// Runs `pluvio bench transactions`.
pub fn transactions(global: &Global, bench: &Transactions) -> Result<ExitCode, Failure> {
    check(bench)?;
    let machine = Machine::this();
    let progress = bar(bench.turns() as u64, "starting", false);
    let directory = temporary::directory("pluvio-bench-", "set TMPDIR")?;
    let (own, job, place) = (global.clone(), bench.clone(), directory.path().to_owned());
    let told = progress.clone();
    let result = temporary::until_stopped(&TlsArgs::default(), move |env| async move {
        let options = LocalOptions::for_a_while(job.servers, job.replicas, MEMORY, &place);
        let name = Keeps::Replicated.name();
        let cluster = Ours::with(&env, &own, options, name).await?;
        let seen = play(&env, &job, &cluster, &told).await;
        cluster.stop().await;
        seen
    });
    temporary::end(directory, result.as_ref().err());
    progress.finish_and_clear();
    let seen = result?;
    let mut experiment = Experiment::new("transactions", parameters(bench));
    experiment.machine = machine;
    let picture = report(&mut experiment, &seen);
    tell(global, &bench.files, &experiment, &picture)?;
    Ok(ExitCode::SUCCESS)
}

/// Refuses what cannot be measured before anything is.
fn check(bench: &Transactions) -> Result<(), Failure> {
    let refused = |text: String| Err(Failure::usage(text));
    let within =
        |name: &str, value: u64, least: u64, most: u64| match (least..=most).contains(&value) {
            true => Ok(()),
            false => refused(format!("--{name} {value}: {least} to {most} are possible")),
        };
    within("servers", bench.servers.into(), 2, 16)?;
    within(
        "replicas",
        bench.replicas.into(),
        0,
        u64::from(bench.servers) - 1,
    )?;
    for callers in &bench.callers {
        within("callers", *callers as u64, 1, 1000)?;
    }
    within("keys", bench.keys as u64, 1, 1_000_000)?;
    within("value-size", bench.value_size as u64, 1, VALUE_MAX as u64)?;
    within("rounds", bench.rounds as u64, 1, 1000)?;
    match (0.001..=3600.0).contains(&bench.seconds) {
        true => Ok(()),
        false => refused(format!(
            "--seconds {}: 0.001 to 3600 are possible",
            bench.seconds
        )),
    }
}

fn parameters(bench: &Transactions) -> Row {
    Row::new()
        .with("servers", bench.servers)
        .with("replicas", bench.replicas)
        .with("keys", bench.keys)
        .with("value_size", bench.value_size)
        .with("seconds", bench.seconds)
        .with("rounds", bench.rounds)
        .with("seed", bench.seed)
}

impl Transactions {
    fn turns(&self) -> usize {
        WAYS.len() * LOADS.len() * self.callers.len() * self.rounds
    }

    fn length(&self) -> Length {
        Length::Time {
            warmup: Duration::from_secs_f64(self.seconds * WARMUP_SHARE),
            measured: Duration::from_secs_f64(self.seconds),
        }
    }
}

/// A load by a way with some callers, and what was seen of it.
struct Seen {
    by: By,
    load: Load,
    callers: usize,
    turns: Turns,
}

async fn play(
    env: &Env,
    bench: &Transactions,
    cluster: &Ours,
    progress: &ProgressBar,
) -> Result<Vec<Seen>, Failure> {
    let mut seen = Vec::new();
    for &callers in &bench.callers {
        for by in WAYS {
            for load in LOADS {
                seen.push(Seen {
                    by,
                    load,
                    callers,
                    turns: Turns::default(),
                });
            }
        }
    }
    let native = native(bench, cluster).await?;
    let redis = redis(bench, cluster).await?;
    let pids: Vec<u32> = cluster.servers().map(|server| server.pid).collect();
    for round in 0..bench.rounds {
        for place in 0..seen.len() {
            // Each round another one is first.
            let at = (round + place) % seen.len();
            let one = &mut seen[at];
            let ((by, load), callers) = ((one.by, one.load), one.callers);
            progress.set_message(format!("{}, {}, {callers} callers", by.name(), load.name()));
            let plan = Plan {
                place: match by {
                    By::Native => native.clone(),
                    By::Redis => redis.clone(),
                },
                load,
                seed: bench.seed.wrapping_add(round as u64),
            };
            let ran = turn::<Transactor>(env, &plan, &pids, callers, bench.length());
            one.turns.0.push(ran.await?);
            progress.inc(1);
        }
    }
    Ok(seen)
}

/// Keys of two servers, where they are, and a value.
struct Place {
    way: Way,
    keys: [Vec<[u8; KEY_BYTES]>; 2],
    value: Bytes,
}

/// How they are reached.
enum Way {
    Native(Client, Table),
    /// The Redis port of the first keys' owner.
    Redis(String),
}

async fn native(bench: &Transactions, cluster: &Ours) -> Result<Arc<Place>, Failure> {
    let client = cluster.session.client.clone();
    let table = client.create_table("transactions", Some(bench.servers));
    let table = table.await?;
    let (_, keys) = keys_of_two(bench, &client, &table).await?;
    let value = Bytes::from(Random::new(bench.seed, 0).bytes(bench.value_size));
    for part in keys.iter().flat_map(|keys| keys.chunks(FILL_BATCH)) {
        write_all(&client, &table, part, &value).await?;
    }
    Ok(Arc::new(Place {
        way: Way::Native(client, table),
        keys,
        value,
    }))
}

async fn redis(bench: &Transactions, cluster: &Ours) -> Result<Arc<Place>, Failure> {
    let ports: Vec<(Option<u64>, String)> = cluster
        .servers()
        .filter_map(|server| Some((server.id, server.redis.clone()?)))
        .collect();
    let none = || Failure::new("no server has a Redis port");
    let (_, any) = ports.first().ok_or_else(none)?;
    // The first write makes the table.
    let mut first = Pipeline::open(any).await?;
    first.call(&[b"SET", b"first", b"1"]).await?;
    let client = &cluster.session.client;
    let table = client.table(DATABASE).await?;
    let (owner, keys) = keys_of_two(bench, client, &table).await?;
    let value = Bytes::from(Random::new(bench.seed, 0).bytes(bench.value_size));
    for part in keys.iter().flat_map(|keys| keys.chunks(FILL_BATCH)) {
        for one in part {
            first.add(&[b"SET", one, &value]);
        }
        first.run(|_, reply| answered(reply).map(drop)).await?;
    }
    let port = ports.iter().find(|(id, _)| *id == Some(owner.0));
    let (_, port) = port.ok_or_else(none)?;
    Ok(Arc::new(Place {
        way: Way::Redis(port.clone()),
        keys,
        value,
    }))
}

/// The table of the Redis port's first database.
const DATABASE: &str = "redis:0";

/// The owner of the first keys, and keys of it and of another one.
async fn keys_of_two(
    bench: &Transactions,
    client: &Client,
    table: &Table,
) -> Result<(ServerId, [Vec<[u8; KEY_BYTES]>; 2]), Failure> {
    let info = client.table_info(table).await?;
    let mut owners: Vec<ServerId> = Vec::new();
    for tablet in &info.tablets {
        if !owners.contains(&tablet.owner) {
            owners.push(tablet.owner);
        }
    }
    let [first, second, ..] = owners[..] else {
        return Err(Failure::new("one server has all keys of the table"));
    };
    let mut found: BTreeMap<ServerId, Vec<[u8; KEY_BYTES]>> = BTreeMap::new();
    let has_enough =
        |found: &BTreeMap<_, Vec<_>>, id| found.get(&id).map_or(0, Vec::len) >= bench.keys;
    for number in 0.. {
        if has_enough(&found, first) && has_enough(&found, second) {
            break;
        }
        let one = key(number);
        let hash = table.hash(&one);
        let tablet = info.tablets.iter().find(|t| t.range.contains(hash));
        if let Some(tablet) = tablet {
            found.entry(tablet.owner).or_default().push(one);
        }
    }
    let mut of = |id| {
        let mut keys = found.remove(&id).unwrap_or_default();
        keys.truncate(bench.keys);
        keys
    };
    let keys = [of(first), of(second)];
    Ok((first, keys))
}

/// What a caller needs.
#[derive(Clone)]
struct Plan {
    place: Arc<Place>,
    load: Load,
    seed: u64,
}

struct Transactor {
    plan: Plan,
    random: Random,
    pipeline: Option<Pipeline>,
}

impl Caller for Transactor {
    type Load = Plan;

    async fn open(plan: &Plan, number: usize) -> Result<Self, Failure> {
        Ok(Self {
            plan: plan.clone(),
            random: Random::new(plan.seed, number as u64),
            pipeline: match &plan.place.way {
                Way::Native(..) => None,
                Way::Redis(address) => Some(Pipeline::open(address).await?),
            },
        })
    }

    async fn next(&mut self) -> Result<u64, Failure> {
        let place = Arc::clone(&self.plan.place);
        let count = match self.plan.load {
            Load::Write | Load::OneOwner => 1,
            Load::TwoOwners => 2,
        };
        let drawn: Vec<&[u8]> = place.keys[..count]
            .iter()
            .map(|keys| &keys[self.random.below(keys.len() as u64) as usize][..])
            .collect();
        match (&place.way, &mut self.pipeline) {
            (Way::Native(client, table), _) if self.plan.load == Load::Write => {
                client.write(table, drawn[0], place.value.clone()).await?;
            }
            (Way::Native(client, table), _) => {
                transact(client, table, &drawn, &place.value).await?;
            }
            (Way::Redis(_), Some(pipeline)) if self.plan.load == Load::Write => {
                pipeline.call(&[b"SET", drawn[0], &place.value]).await?;
            }
            (Way::Redis(_), Some(pipeline)) => exec(pipeline, &drawn, &place.value).await?,
            (Way::Redis(_), None) => return Err(Failure::new("there is no connection")),
        }
        Ok(1)
    }
}

/// Reads and writes all keys at one moment.
async fn transact(
    client: &Client,
    table: &Table,
    keys: &[&[u8]],
    value: &Bytes,
) -> Result<(), Failure> {
    let mut steps = Vec::with_capacity(2 * keys.len());
    for key in keys {
        let get = Operation::Get(Get::new(table.id(), key));
        let put = Mutation::new(table.id(), key, Change::Put(value.into()));
        steps.push((table, TransactionStep::new(get)));
        steps.push((table, TransactionStep::new(Operation::Mutate(put))));
    }
    match client.transact(&steps).await? {
        Transacted::Committed(_) => Ok(()),
        Transacted::Refused { .. } => Err(Failure::new("a transaction was refused")),
    }
}

/// The same by a block of commands, which goes out at once.
async fn exec(pipeline: &mut Pipeline, keys: &[&[u8]], value: &Bytes) -> Result<(), Failure> {
    pipeline.add(&[b"MULTI"]);
    for key in keys {
        pipeline.add(&[b"GET", key]);
        pipeline.add(&[b"SET", key, value]);
    }
    pipeline.add(&[b"EXEC"]);
    let last = 2 * keys.len() + 1;
    let check = |number: usize, reply: Reply<'_>| match (number == last, answered(reply)?) {
        (true, Reply::Array(_)) | (false, _) => Ok(()),
        (true, other) => Err(Failure::new(format!("EXEC gave {other:?}"))),
    };
    pipeline.run(check).await
}

/// Fills in rows and ratios, and draws the picture.
fn report(experiment: &mut Experiment, seen: &[Seen]) -> Picture {
    let groups: Vec<String> = LOADS.map(|load| load.name().to_owned()).to_vec();
    let panel = |title: &str, y: &str| Panel {
        title: title.into(),
        x: "load".into(),
        y: y.into(),
        shape: Shape::Bars {
            groups: groups.clone(),
        },
        series: Vec::new(),
    };
    let mut panels = [
        panel("median latency", "us"),
        panel("time of all servers", "us"),
    ];
    for one in seen {
        let row = Row::new()
            .with("way", one.by.name())
            .with("load", one.load.name())
            .with("callers", one.callers)
            .and(one.turns.cells());
        let series = format!("{}, {} callers", one.by.name(), one.callers);
        let group = LOADS.iter().position(|load| *load == one.load);
        let group = group.unwrap_or(0) as f64;
        for (panel, column) in panels.iter_mut().zip(["p50_us", "server_us"]) {
            panel.point(&series, group, row.number(column).unwrap_or(f64::NAN));
        }
        experiment.rows.push(row);
        let is_base =
            |base: &&Seen| (base.by, base.callers, base.load) == (one.by, one.callers, Load::Write);
        let Some(base) = seen
            .iter()
            .find(is_base)
            .filter(|_| one.load != Load::Write)
        else {
            continue;
        };
        let name = format!(
            "{}, {} callers: {} / write",
            one.by.name(),
            one.callers,
            one.load.name()
        );
        let p50 = (one.turns.each(p50_us), base.turns.each(p50_us));
        experiment.ratio_by_round(format!("{name}, p50"), &p50.0, &p50.1);
        let time = (one.turns.each(server_us), base.turns.each(server_us));
        experiment.ratio_by_round(format!("{name}, server time"), &time.0, &time.1);
    }
    Picture {
        title: "Transactions".into(),
        panels: panels.to_vec(),
    }
}
