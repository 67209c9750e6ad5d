//! The child's side of a contestant: holds it and does what the parent asks.

#[cfg(feature = "peers")]
use super::ample;
#[cfg(feature = "peers")]
use super::maps::{Dash, Papaya, Scc};
use super::plain::Plain;
use super::pluvio::Ours;
use super::process::{Answer, Ask, is_stopped_while_it_waits};
use super::servers::Server;
#[cfg(feature = "peers")]
use super::slab_lru::SlabLru;
use super::{KeyValue, Kind, Setup, memory, refused};
use crate::error::ExperimentError;
use crate::run::{self, Drawn};
use rustix::process::{Signal, set_parent_process_death_signal};
use std::io::{BufRead, Write};

/// The contestant of this process.
enum Opened {
    Ours(Ours),
    #[cfg(feature = "peers")]
    Dash(Dash),
    #[cfg(feature = "peers")]
    Papaya(Papaya),
    #[cfg(feature = "peers")]
    Scc(Scc),
    #[cfg(feature = "peers")]
    SlabLru(SlabLru),
    Plain(Plain),
    Server(Server),
}

/// Calls a function that is generic over the contestant.
macro_rules! with {
    ($opened:expr, $store:ident => $body:expr) => {
        match $opened {
            Opened::Ours($store) => $body,
            #[cfg(feature = "peers")]
            Opened::Dash($store) => $body,
            #[cfg(feature = "peers")]
            Opened::Papaya($store) => $body,
            #[cfg(feature = "peers")]
            Opened::Scc($store) => $body,
            #[cfg(feature = "peers")]
            Opened::SlabLru($store) => $body,
            Opened::Plain($store) => $body,
            Opened::Server($store) => $body,
        }
    };
}

/// A contestant, and what its process held before it.
struct Host {
    opened: Opened,
    /// Bytes in memory that are not the contestant's.
    base: u64,
    /// Keys that its runs share.
    drawn: Drawn,
}

/// Does what is asked on `input`, line by line, until it ends.
///
/// # Errors
/// A pipe broke, or a line is not from a parent of this version.
pub fn serve(input: impl BufRead, mut output: impl Write) -> Result<(), ExperimentError> {
    let broken = |problem: String| ExperimentError::Process {
        contestant: "this process".into(),
        problem,
    };
    let mut host = None;
    for line in input.lines() {
        let line = line.map_err(|error| broken(error.to_string()))?;
        let ask = serde_json::from_str(&line).map_err(|error| broken(error.to_string()))?;
        let answer = match act(&mut host, ask) {
            Ok(answer) => answer,
            Err(error @ ExperimentError::Contestant { .. }) => {
                // The parent names the contestant itself.
                let text = error.to_string();
                Answer::Failed(
                    text.split_once(": ")
                        .map_or(text.clone(), |(_, why)| why.into()),
                )
            }
            Err(other) => Answer::Failed(other.to_string()),
        };
        let text = serde_json::to_string(&answer).map_err(|error| broken(error.to_string()))?;
        writeln!(output, "{text}").map_err(|error| broken(error.to_string()))?;
        output.flush().map_err(|error| broken(error.to_string()))?;
    }
    Ok(())
}

fn act(host: &mut Option<Host>, ask: Ask) -> Result<Answer, ExperimentError> {
    let ask = match ask {
        Ask::Open(setup) => {
            if is_stopped_while_it_waits(setup.kind) {
                die_with_parent(setup.kind)?;
            }
            let before = memory::resident(None);
            let opened = open(&setup)?;
            let base = match opened {
                Opened::Server(_) => 0,
                Opened::Plain(_) => memory::resident(None),
                _ => before,
            };
            let drawn = Drawn::default();
            *host = Some(Host {
                opened,
                base,
                drawn,
            });
            return Ok(Answer::Done);
        }
        other => other,
    };
    let Some(Host {
        opened,
        base,
        drawn,
    }) = host
    else {
        return Err(ExperimentError::Parameters("no store is open".into()));
    };
    let mut answer = with!(opened, store => answer(store, ask, drawn))?;
    let base = match opened {
        Opened::Server(_) => 0,
        _ => *base + drawn.bytes(),
    };
    match &mut answer {
        Answer::Loaded(loaded) => deduct(&mut loaded.holdings.resident, base),
        Answer::Ran(ran) => deduct(&mut ran.after.resident, base),
        Answer::Replayed(replayed) => {
            let base = match opened {
                Opened::Server(_) => 0,
                _ => base + replayed.driver_bytes,
            };
            deduct(&mut replayed.resident_peak, base);
            for mark in &mut replayed.marks {
                deduct(&mut mark.resident, base);
                deduct(&mut mark.peak, base);
            }
        }
        Answer::Holdings(holdings) => deduct(&mut holdings.resident, base),
        Answer::Done | Answer::Idle(_) | Answer::Failed(_) => {}
    }
    Ok(answer)
}

/// One that is stopped cannot see that its parent is gone.
fn die_with_parent(kind: Kind) -> Result<(), ExperimentError> {
    let asked = set_parent_process_death_signal(Some(Signal::KILL));
    asked.map_err(|error| refused(kind, format!("cannot be tied to its parent: {error}")))
}

fn deduct(bytes: &mut u64, base: u64) {
    *bytes = bytes.saturating_sub(base);
}

fn answer<S: KeyValue>(store: &S, ask: Ask, drawn: &mut Drawn) -> Result<Answer, ExperimentError> {
    Ok(match ask {
        Ask::Load(plan) => Answer::Loaded(run::load(store, &plan)?),
        Ask::Run(plan) => Answer::Ran(run::run(store, &plan, drawn)?),
        Ask::Replay(plan) => Answer::Replayed(run::replay(store, &plan)?),
        Ask::Idle(plan) => Answer::Idle(run::idle(&plan)),
        Ask::Holdings => Answer::Holdings(store.holdings()),
        Ask::Open(_) => Answer::Done,
    })
}

fn open(setup: &Setup) -> Result<Opened, ExperimentError> {
    Ok(match setup.kind {
        Kind::Pluvio | Kind::PluvioInPlace => Opened::Ours(Ours::open(setup)?),
        Kind::Malloc => Opened::Plain(Plain::new(setup.objects)),
        Kind::Redis | Kind::Memcached => Opened::Server(Server::start(setup)?),
        Kind::Dashmap | Kind::DashmapInPlace | Kind::Papaya | Kind::Scc | Kind::SlabLru => {
            open_map(setup)?
        }
    })
}

#[cfg(feature = "peers")]
fn open_map(setup: &Setup) -> Result<Opened, ExperimentError> {
    let objects = setup.objects as usize;
    let hasher = foldhash::fast::RandomState::default();
    Ok(match setup.kind {
        Kind::Dashmap | Kind::DashmapInPlace => Opened::Dash(Dash {
            map: dashmap::DashMap::with_capacity_and_hasher(objects, hasher),
            in_place: setup.kind == Kind::DashmapInPlace,
        }),
        Kind::Papaya => Opened::Papaya(Papaya(papaya::HashMap::with_capacity_and_hasher(
            objects, hasher,
        ))),
        Kind::Scc => Opened::Scc(Scc(scc::HashMap::with_capacity_and_hasher(objects, hasher))),
        Kind::SlabLru => Opened::SlabLru(SlabLru::new(setup.objects, ample(setup.memory))),
        other => return Err(refused(other, "is no map")),
    })
}

#[cfg(not(feature = "peers"))]
fn open_map(setup: &Setup) -> Result<Opened, ExperimentError> {
    let problem = "is not built in; build with `cargo build --release --features peers`";
    Err(refused(setup.kind, problem))
}
