//! The client processes: each works until no steps are left, dies when the nemesis says so, and
//! another one comes in its place, with nothing of what it knew.

use crate::cluster::nemesis::below;
use crate::cluster::workload::{Shared, Worker};
use crate::random::Stream;
use crate::sim::{ProcessEnv, Sim};
use crate::state::ProcessId;
use core::time::Duration;

struct Place {
    process: ProcessId,
    /// When it shall run again; `None`: it runs.
    starts_at: Option<Duration>,
}

/// The client processes.
pub(super) struct Clients {
    shared: Shared,
    places: Vec<Place>,
    /// Lives of clients so far. Each has a number of its own in the history: what it does is in its
    /// order.
    lives: u16,
}

/// Counts a worker as long as it lives.
struct Working(Shared);

impl Working {
    fn begin(shared: &Shared) -> Self {
        shared.journal.worker_begins();
        Self(shared.clone())
    }
}

impl Drop for Working {
    fn drop(&mut self) {
        self.0.journal.worker_ends();
    }
}

impl Clients {
    /// Starts as many as the plan says.
    pub(super) fn start(sim: &Sim, shared: &Shared) -> Self {
        let mut clients = Self {
            shared: shared.clone(),
            places: Vec::new(),
            lives: 0,
        };
        for number in 0..shared.plan.clients {
            let process = sim.process(&format!("client-{number}"));
            clients.places.push(Place {
                process: process.id,
                starts_at: None,
            });
            clients.run(sim, &process);
        }
        clients
    }

    fn run(&mut self, sim: &Sim, process: &ProcessEnv) {
        let worker = Worker::new(self.lives, &process.env, &self.shared);
        self.lives += 1;
        let working = Working::begin(&self.shared);
        sim.spawn(process.id, "client", async move {
            worker.run().await;
            drop(working);
        });
    }

    /// The processes, also those that are down.
    pub(super) fn processes(&self) -> Vec<ProcessId> {
        self.places.iter().map(|place| place.process).collect()
    }

    /// Whether any works, or will.
    pub(super) fn are_busy(&self) -> bool {
        self.shared.journal.workers() > 0 || self.places.iter().any(|p| p.starts_at.is_some())
    }

    /// Ends one that runs, for a while. Gives how many.
    pub(super) fn crash_one(&mut self, sim: &Sim, draw: &mut Stream, away_max: Duration) -> u64 {
        let mut up: Vec<&mut Place> = { self.places.iter_mut() }
            .filter(|place| place.starts_at.is_none())
            .collect();
        let chosen = draw.below(up.len() as u64) as usize;
        let Some(place) = up.get_mut(chosen) else {
            return 0;
        };
        place.starts_at = Some(sim.now() + below(draw, away_max));
        // What it had under way stays without an end in the history.
        sim.crash(place.process);
        1
    }

    /// Starts what is due; `all`: everything at once.
    pub(super) fn tend(&mut self, sim: &Sim, all: bool) {
        let now = sim.now();
        for place in 0..self.places.len() {
            let at = &mut self.places[place];
            if at.starts_at.is_some_and(|at| all || at <= now) {
                at.starts_at = None;
                let process = sim.restart(at.process);
                self.run(sim, &process);
            }
        }
    }
}
