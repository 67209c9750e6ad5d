//! The Redis experiment [SpaceJMP §10.4]: callers enter the store, beside callers that ask a
//! server.
//!
//! - `space`: the store is a map in a span (RedisJMP as the paper has it).
//! - `mapped`: callers read the memory of a Pluvio server, and write by RPC.
//! - `rpc`: callers ask the same server for everything.
//! - `redis`, `redis x6`: redis-server on unix sockets, one and several.
//!
//! Each caller is a process with one operation at a time. Nobody keeps anything on disk.

mod caller;
mod load;
mod resp;
mod servers;
mod span;

pub use caller::{Caller, Way};
pub(crate) use caller::{call, fill};

use crate::children::{Child, is_installed, run as run_child};
use crate::error::{JumpError, Result};
use crate::place::Place;
use crate::setting::Setting;
use crate::turns::{Contestant, Numbers, add_rows, of, take_turns};
use load::Done;
use pluvio_bench::experiment::{Axis, Experiment, Panel, Picture, Row, Shape, Spread};
use pluvio_units::Size;
use servers::{Ours, REDIS, Redis};
use std::cell::RefCell;
use std::path::PathBuf;

/// What to measure.
#[derive(clap::Args, Clone, Debug)]
pub struct Options {
    /// How long a turn takes, in milliseconds
    #[arg(long = "turn", value_name = "MS", default_value_t = 500)]
    pub turn_ms: u64,
    /// Keys, each with 100 bytes
    #[arg(long, value_name = "N", default_value_t = 100_000, value_parser = clap::value_parser!(u64).range(1..))]
    pub keys: u64,
    /// Numbers of callers
    #[arg(long, value_name = "N", value_delimiter = ',', default_value = "1,2,4")]
    pub callers: Vec<u32>,
    /// Of a hundred operations, how many write
    #[arg(
        long,
        value_name = "N",
        value_delimiter = ',',
        default_value = "0,5,50"
    )]
    pub set_percent: Vec<u64>,
    /// Redis servers of the contestant that has several
    #[arg(long, value_name = "N", default_value_t = 6, value_parser = clap::value_parser!(u32).range(1..=64))]
    pub servers: u32,
    /// Log memory of our server
    #[arg(long, value_name = "SIZE", default_value = "256MiB")]
    pub memory: Size,
    /// Let callers ask our server by rings in shared memory instead of TCP
    #[arg(long)]
    pub rings: bool,
    /// The program `pluvio` [default: the one beside this program]
    #[arg(long, value_name = "FILE")]
    pub pluvio: Option<PathBuf>,
    /// Leave our server out
    #[arg(long, conflicts_with = "pluvio")]
    pub no_pluvio: bool,
}

/// A store, and how its callers reach it.
struct Store {
    name: String,
    way: Way,
    at: Vec<String>,
}

const SPACE: &str = "space";
const MAPPED: &str = "mapped";
const RPC: &str = "rpc";
const ONE: &str = "redis";

/// Measures all mixes and numbers of callers.
///
/// # Errors
/// A server does not start; a caller failed, or read a wrong value.
pub fn run(setting: &Setting, options: &Options) -> Result<(Experiment, Picture)> {
    let place = Place::new(setting.folder.as_deref())?;
    let folder = place.path();
    let text = |path: &std::path::Path| path.to_string_lossy().into_owned();
    let several = format!("redis x{}", options.servers);
    let mut stores = vec![Store {
        name: SPACE.to_owned(),
        way: Way::Space,
        at: vec![text(place.registry().root())],
    }];
    let mut store = |name: &str, way, at| {
        let name = name.to_owned();
        stores.push(Store { name, way, at });
    };
    let ours = match options.no_pluvio {
        true => None,
        false => {
            let pluvio = options.pluvio.clone();
            let pluvio = pluvio.unwrap_or_else(|| setting.program.beside("pluvio"));
            Some(Ours::start(&pluvio, folder, options.memory, options.rings)?)
        }
    };
    if let Some(ours) = &ours {
        let (coordinator, door) = (ours.coordinator.clone(), text(&ours.door));
        store(MAPPED, Way::Mapped, vec![coordinator.clone(), door]);
        store(RPC, Way::Rpc, vec![coordinator]);
    }
    let mut redis = Vec::new();
    if is_installed(REDIS) {
        for number in 0..=options.servers {
            redis.push(Redis::start(folder, &format!("redis-{number}"))?);
        }
        let sockets: Vec<String> = redis.iter().map(|one| text(&one.socket)).collect();
        store(ONE, Way::Redis, sockets[..1].to_vec());
        store(&several, Way::Redis, sockets[1..].to_vec());
    }
    for store in stores.iter().filter(|store| store.name != RPC) {
        let mut command = setting.program.child("fill");
        command.args(arguments(options, store));
        run_child(&store.name, &mut command)?;
    }
    let parameters = Row::new()
        .with("rounds", setting.rounds)
        .with("turn_ms", options.turn_ms)
        .with("keys", options.keys)
        .with("rings", options.rings);
    let mut experiment = Experiment::new("redis", parameters);
    let mut panels = Vec::new();
    for &set in &options.set_percent {
        let mut panel = Panel {
            title: format!("{set} % writes"),
            x: "callers".into(),
            y: "operations a second".into(),
            shape: Shape::Lines {
                x: Axis::Linear,
                y: Axis::Logarithmic,
            },
            series: Vec::new(),
        };
        for &callers in &options.callers {
            let from = experiment.rows.len();
            measure(setting, options, &mut experiment, &stores, (set, callers))?;
            for row in &experiment.rows[from..] {
                let rate = row.number("ops_s").unwrap_or(f64::NAN);
                panel.point(&row.text("contestant"), f64::from(callers), rate);
            }
        }
        panels.push(panel);
    }
    let picture = Picture {
        title: "Entering a store and asking a server".into(),
        panels,
    };
    Ok((experiment, picture))
}

fn arguments(options: &Options, store: &Store) -> Vec<String> {
    let mut arguments = vec![store.way.word().to_owned()];
    for at in &store.at {
        arguments.extend(["--at".to_owned(), at.clone()]);
    }
    arguments.extend(["--keys".to_owned(), options.keys.to_string()]);
    arguments
}

/// All stores in turns, with some callers.
fn measure(
    setting: &Setting,
    options: &Options,
    experiment: &mut Experiment,
    stores: &[Store],
    (set, callers): (u64, u32),
) -> Result<()> {
    let latencies = RefCell::new(Vec::<(&str, Done)>::new());
    let turn = |store| {
        let done = turn(setting, options, store, (set, callers))?;
        let rate = done.iter().map(|done| done.rate).sum();
        let of_it = done.into_iter().map(|done| (store.name.as_str(), done));
        latencies.borrow_mut().extend(of_it);
        Ok(rate)
    };
    let contestants = stores
        .iter()
        .map(|store| Contestant::new(&store.name, move || turn(store)));
    let contestants = contestants.collect();
    let numbers = take_turns(setting.rounds, contestants)?;
    let head = Row::new().with("set_percent", set).with("callers", callers);
    let from = experiment.rows.len();
    add_rows(experiment, &head, "ops_s", &numbers);
    let latencies = latencies.into_inner();
    for row in &mut experiment.rows[from..] {
        let name = row.text("contestant");
        let of_it = latencies.iter().filter(|(who, _)| *who == name);
        let (p50, p99): (Vec<f64>, Vec<f64>) =
            of_it.map(|(_, done)| (done.p50_us, done.p99_us)).unzip();
        for (column, each) in [("p50_us", p50), ("p99_us", p99)] {
            if let Some(spread) = Spread::of(&each) {
                row.set(column, spread.median);
            }
        }
    }
    let ratio = |experiment: &mut Experiment, ours: &Numbers, theirs: &str| {
        let name = format!(
            "{} / {theirs}, {set} % writes, {callers} callers",
            ours.name
        );
        experiment.ratio_by_round(name, &ours.each, of(&numbers, theirs));
    };
    for ours in numbers
        .iter()
        .filter(|one| one.name == SPACE || one.name == MAPPED)
    {
        for theirs in &numbers {
            if ![SPACE, MAPPED].contains(&theirs.name.as_str()) {
                ratio(experiment, ours, &theirs.name);
            }
        }
    }
    Ok(())
}

/// One store with some callers.
fn turn(
    setting: &Setting,
    options: &Options,
    store: &Store,
    (set, callers): (u64, u32),
) -> Result<Vec<Done>> {
    let mut all = Vec::new();
    for number in 0..callers {
        let mut command = setting.program.child("caller");
        command.args(arguments(options, store));
        command.args([
            "--set-percent",
            &set.to_string(),
            "--millis",
            &options.turn_ms.to_string(),
        ]);
        command.args(["--number", &number.to_string()]);
        all.push(Child::start(&store.name, &mut command)?);
    }
    for caller in &mut all {
        caller.line()?;
    }
    for caller in &mut all {
        caller.send(b"\n")?;
    }
    let mut done = Vec::new();
    for caller in &mut all {
        let line = caller.line()?;
        let said = serde_json::from_str(&line);
        done.push(said.map_err(|error| JumpError::of(&store.name, format!("{error}: {line}")))?);
    }
    Ok(done)
}
