//! Cuts of the network, and their healing.

use crate::cluster::nemesis::{Targets, trouble};
use crate::random::Stream;
use crate::sim::Sim;
use crate::state::ProcessId;
use core::time::Duration;
use std::collections::BTreeMap;

/// From one process to another.
type Way = (ProcessId, ProcessId);

/// The ways that are cut, and until when.
#[derive(Default)]
pub(super) struct Cuts(BTreeMap<Way, Duration>);

/// What a cut separates.
enum Shape {
    /// Two processes.
    Pair,
    /// A server from some other servers, but from nobody else.
    FromServers,
    /// The coordinators from some servers.
    FromCoordinators,
    /// One server, or the coordinators, from everybody.
    Island,
    /// The cluster into two parts; clients fall to either.
    Halves,
}

/// Some of `all`, at least one.
fn some(draw: &mut Stream, all: &[ProcessId]) -> Vec<ProcessId> {
    let sure = draw.below(all.len() as u64) as usize;
    let chosen = all.iter().enumerate();
    let chosen = chosen.filter(|(index, _)| draw.below(2) == 0 || *index == sure);
    chosen.map(|(_, process)| *process).collect()
}

fn one(draw: &mut Stream, all: &[ProcessId]) -> ProcessId {
    all[draw.below(all.len() as u64) as usize]
}

fn without(all: &[ProcessId], left_out: &[ProcessId]) -> Vec<ProcessId> {
    let kept = all.iter().filter(|process| !left_out.contains(process));
    kept.copied().collect()
}

impl Cuts {
    /// Cuts some ways for some time. Gives how many.
    pub(super) fn cut(
        &mut self,
        draw: &mut Stream,
        targets: &Targets<'_>,
        time_max: Duration,
    ) -> u64 {
        let shape = [
            Shape::Pair,
            Shape::Pair,
            Shape::FromServers,
            Shape::FromCoordinators,
            Shape::Island,
            Shape::Halves,
        ];
        let shape = &shape[draw.below(shape.len() as u64) as usize];
        let (here, there) = sides(shape, draw, targets);
        // Both directions, or only what one side says is not heard.
        let direction = draw.below(4);
        let until = targets.sim.now() + trouble(draw, time_max);
        let mut cut = 0;
        for a in &here {
            for b in &there {
                if direction != 0 {
                    self.one_way(targets.sim, (*a, *b), until);
                    cut += 1;
                }
                if direction != 1 {
                    self.one_way(targets.sim, (*b, *a), until);
                    cut += 1;
                }
            }
        }
        cut
    }

    fn one_way(&mut self, sim: &Sim, way: Way, until: Duration) {
        let latest = self.0.entry(way).or_default();
        *latest = until.max(*latest);
        sim.cut(way.0, way.1);
    }

    /// Heals what is due at `now`, or everything.
    pub(super) fn heal(&mut self, sim: &Sim, now: Option<Duration>) {
        self.0.retain(|(from, to), until| {
            let stays = now.is_some_and(|now| now < *until);
            if !stays {
                sim.heal(*from, *to);
            }
            stays
        });
    }
}

/// Who is cut from whom.
fn sides(
    shape: &Shape,
    draw: &mut Stream,
    targets: &Targets<'_>,
) -> (Vec<ProcessId>, Vec<ProcessId>) {
    let all = targets.processes();
    let servers = targets.nodes.server_processes();
    let coordinators = targets.nodes.coordinator_processes();
    match shape {
        Shape::Pair => {
            let first = one(draw, &all);
            let second = one(draw, &without(&all, &[first]));
            (vec![first], vec![second])
        }
        Shape::FromServers => {
            let server = one(draw, &servers);
            let others = without(&servers, &[server]);
            if others.is_empty() {
                return (Vec::new(), Vec::new());
            }
            (vec![server], some(draw, &others))
        }
        Shape::FromCoordinators => (coordinators, some(draw, &servers)),
        Shape::Island => {
            let island = match draw.below(4) {
                0 => coordinators,
                _ => vec![one(draw, &servers)],
            };
            let others = without(&all, &island);
            (island, others)
        }
        Shape::Halves => {
            let half = some(draw, &all);
            let others = without(&all, &half);
            (half, others)
        }
    }
}
