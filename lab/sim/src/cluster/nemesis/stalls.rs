//! Processes that stand still, or run by jerks.

use crate::cluster::nemesis::{Targets, trouble};
use crate::random::Stream;
use crate::sim::Sim;
use crate::state::ProcessId;
use core::time::Duration;

/// A process that stands still, all the time or most of it.
struct Stall {
    process: ProcessId,
    until: Duration,
    /// Looks of the harness from one at which it runs to the next; `None`: it never runs.
    beat: Option<u64>,
    looks: u64,
}

/// The stalls that go on.
#[derive(Default)]
pub(super) struct Stalls(Vec<Stall>);

impl Stalls {
    /// Lets some processes stall for some time. Gives how many.
    pub(super) fn begin(
        &mut self,
        draw: &mut Stream,
        targets: &Targets<'_>,
        time_max: Duration,
    ) -> u64 {
        let servers = targets.nodes.server_processes();
        let clients = targets.clients.processes();
        let one = |draw: &mut Stream, all: &[ProcessId]| all[draw.below(all.len() as u64) as usize];
        let victims = match draw.below(10) {
            0..6 => vec![one(draw, &servers)],
            6 => servers.into_iter().filter(|_| draw.below(2) == 0).collect(),
            7 | 8 => targets
                .nodes
                .coordinator_process_to_strike()
                .into_iter()
                .collect(),
            _ => vec![one(draw, &clients)],
        };
        let until = targets.sim.now() + trouble(draw, time_max);
        // One in three runs for 5 ms out of 10 to 200.
        let beat = (draw.below(3) == 0).then(|| draw.between(2, 40));
        for process in &victims {
            targets.sim.pause(*process);
            self.0.push(Stall {
                process: *process,
                until,
                beat,
                looks: 0,
            });
        }
        victims.len() as u64
    }

    /// Lets processes go on that are due at `now`, or all of them. Called at every look.
    pub(super) fn tend(&mut self, sim: &Sim, now: Option<Duration>) {
        self.0.retain_mut(|stall| {
            let stays = now.is_some_and(|now| now < stall.until);
            stall.looks += 1;
            let runs = stall
                .beat
                .is_some_and(|beat| stall.looks.is_multiple_of(beat));
            if runs || !stays {
                sim.resume(stall.process);
            } else {
                // Also when it has been started again meanwhile: the machine is slow, whatever runs
                // on it.
                sim.pause(stall.process);
            }
            stays
        });
    }
}
