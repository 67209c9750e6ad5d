//! Makes things go wrong, within what the cluster promises to survive.
//!
//! Processes die but their disks stay, and all of them come back: no replica is ever destroyed.
//! Power is only lost in clusters that run `synced`.

use crate::cluster::faults::Fault;
use crate::cluster::nodes::Nodes;
use crate::cluster::plan::Plan;
use crate::options::NetworkFaults;
use crate::random::Stream;
use crate::sim::Sim;
use core::time::Duration;
use std::collections::BTreeMap;
use std::sync::Arc;

/// Makes things go wrong.
pub(super) struct Nemesis {
    plan: Arc<Plan>,
    draw: Stream,
    next: Duration,
    injected: BTreeMap<Fault, u64>,
    network: NetworkFaults,
}

impl Nemesis {
    pub(super) fn new(seed: u64, plan: &Arc<Plan>) -> Self {
        Self {
            plan: Arc::clone(plan),
            draw: Stream::new(seed, "nemesis"),
            next: Duration::ZERO,
            injected: BTreeMap::new(),
            network: Plan::calm_network(),
        }
    }

    /// What it did so far, without what each message met.
    pub(super) fn injected(&self) -> &BTreeMap<Fault, u64> {
        &self.injected
    }

    fn pause(&mut self) -> Duration {
        let (low, high) = (self.plan.fault_pause_min, self.plan.fault_pause_max);
        self.below(high.saturating_sub(low)) + low
    }

    fn below(&mut self, most: Duration) -> Duration {
        let nanos = u64::try_from(most.as_nanos()).unwrap_or(u64::MAX);
        Duration::from_nanos(self.draw.between(0, nanos))
    }

    /// Does the next thing, when its time has come.
    pub(super) fn act(&mut self, sim: &Sim, nodes: &mut Nodes) {
        if self.plan.faults.is_empty() || sim.now() < self.next {
            return;
        }
        self.next = sim.now() + self.pause();
        let kinds: Vec<Fault> = self.plan.faults.iter().collect();
        let fault = kinds[self.draw.below(kinds.len() as u64) as usize];
        let done = match fault {
            Fault::Delay | Fault::Loss | Fault::Duplication | Fault::Reordering => {
                self.change_network(sim, fault);
                1
            }
            Fault::Crash => {
                let downtime = self.plan.downtime_max;
                self.strike(nodes, downtime, |nodes, server, downtime| {
                    nodes.crash(sim, server, downtime);
                })
            }
            Fault::Restart => {
                let downtime = Duration::from_millis(300);
                self.strike(nodes, downtime, |nodes, server, downtime| {
                    nodes.crash(sim, server, downtime);
                })
            }
            Fault::Power if !self.plan.synced => 0,
            Fault::Power => {
                let downtime = self.plan.downtime_max;
                self.strike(nodes, downtime, |nodes, server, downtime| {
                    nodes.power_loss(sim, server, downtime);
                })
            }
            Fault::Coordinator => match nodes.coordinator_to_crash() {
                None => 0,
                Some(number) => {
                    let downtime = self.below(self.plan.downtime_max);
                    nodes.crash_coordinator(sim, number, downtime);
                    1
                }
            },
        };
        *self.injected.entry(fault).or_default() += done;
    }

    /// Ends one server, two, or all of them. Gives how many.
    fn strike(
        &mut self,
        nodes: &mut Nodes,
        downtime_max: Duration,
        mut end: impl FnMut(&mut Nodes, usize, Duration),
    ) -> u64 {
        let mut up: Vec<usize> = (0..nodes.servers()).filter(|s| nodes.is_up(*s)).collect();
        let everybody = self.draw.below(100) < u64::from(self.plan.everybody_percent);
        let most = if everybody {
            up.len()
        } else {
            1 + usize::from(self.draw.below(4) == 0)
        };
        let mut struck = 0;
        while struck < most && !up.is_empty() {
            let server = up.swap_remove(self.draw.below(up.len() as u64) as usize);
            let downtime = self.below(downtime_max);
            end(nodes, server, downtime);
            struck += 1;
        }
        struck as u64
    }

    /// Switches one trouble of the network on or off, at some strength.
    fn change_network(&mut self, sim: &Sim, fault: Fault) {
        let on = self.draw.below(3) > 0;
        // Mostly weak, sometimes strong.
        let mut strength = |most: u32| {
            let part = self.draw.below(u64::from(most)) as u32;
            if on {
                part.min(self.draw.below(u64::from(most)) as u32) + 1
            } else {
                0
            }
        };
        match fault {
            Fault::Delay => {
                self.network.tail_ppm = strength(200_000);
                self.network.tail_max = Duration::from_millis(1 + u64::from(strength(200)));
            }
            Fault::Loss => self.network.loss_ppm = strength(100_000),
            Fault::Duplication => self.network.duplicate_ppm = strength(300_000),
            Fault::Reordering => self.network.reorder_ppm = strength(1_000_000),
            Fault::Crash | Fault::Restart | Fault::Coordinator | Fault::Power => {}
        }
        sim.set_network(self.network.clone());
    }
}
