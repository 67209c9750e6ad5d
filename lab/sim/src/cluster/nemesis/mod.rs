//! Makes things go wrong, within what the cluster promises to survive.
//!
//! Processes die but their disks stay, and all of them come back: no replica is ever destroyed.
//! Where writes are only buffered, at most one server loses power, and only where others have all
//! that is acknowledged. What is cut heals, what stands still goes on.
//!
//! Invariants
//! - NEM-1: each event draws from a stream of its own, named by its number, so that leaving out one
//!   changes what the others do only through what they meet.
//! - NEM-2: after [`Nemesis::stop`] nothing of what it did goes on, but for processes that are
//!   down.

mod cuts;
mod disks;
mod stalls;

use crate::cluster::clients::Clients;
use crate::cluster::faults::Fault;
use crate::cluster::narrow::Keep;
use crate::cluster::nodes::{Asked, Nodes};
use crate::cluster::plan::Plan;
use crate::options::NetworkFaults;
use crate::random::Stream;
use crate::sim::Sim;
use crate::state::ProcessId;
use core::time::Duration;
use cuts::Cuts;
use disks::Disks;
use pluvio_wire::{BalanceWish, DrainWish};
use stalls::Stalls;
use std::collections::BTreeMap;
use std::sync::Arc;

/// The most that a wall clock jumps at once, in seconds.
const JUMP_MAX: u64 = 3_600;

/// The longest that a server has for its tablets to move away.
const DRAIN_MAX: Duration = Duration::from_secs(5);

/// The longest that a process stays away that is only restarted.
const RESTART_MAX: Duration = Duration::from_millis(300);

/// What a nemesis can strike.
pub(super) struct Targets<'a> {
    pub(super) sim: &'a Sim,
    pub(super) nodes: &'a mut Nodes,
    pub(super) clients: &'a mut Clients,
}

impl Targets<'_> {
    /// All processes of the cluster, coordinators first, then servers, then clients.
    fn processes(&self) -> Vec<ProcessId> {
        let mut all = self.nodes.coordinator_processes();
        all.extend(self.nodes.server_processes());
        all.extend(self.clients.processes());
        all
    }
}

/// Makes things go wrong.
pub(super) struct Nemesis {
    plan: Arc<Plan>,
    keep: Keep,
    seed: u64,
    /// When events come.
    pauses: Stream,
    next: Duration,
    /// How many events there were.
    events: u64,
    injected: BTreeMap<Fault, u64>,
    network: NetworkFaults,
    cuts: Cuts,
    stalls: Stalls,
    disks: Disks,
}

impl Nemesis {
    pub(super) fn new(seed: u64, plan: &Arc<Plan>, keep: &Keep) -> Self {
        Self {
            plan: Arc::clone(plan),
            keep: keep.clone(),
            seed,
            pauses: Stream::new(seed, "nemesis"),
            next: Duration::ZERO,
            events: 0,
            injected: BTreeMap::new(),
            network: Plan::calm_network(),
            cuts: Cuts::default(),
            stalls: Stalls::default(),
            disks: Disks::default(),
        }
    }

    /// What it did so far, without what each message met.
    pub(super) fn injected(&self) -> &BTreeMap<Fault, u64> {
        &self.injected
    }

    /// How many events there were, those that were left out included.
    pub(super) fn events(&self) -> u64 {
        self.events
    }

    fn pause(&mut self) -> Duration {
        let (low, high) = (self.plan.fault_pause_min, self.plan.fault_pause_max);
        below(&mut self.pauses, high.saturating_sub(low)) + low
    }

    /// Ends what is over, and does the next thing when its time has come.
    pub(super) fn act(&mut self, targets: &mut Targets<'_>) {
        let now = targets.sim.now();
        self.cuts.heal(targets.sim, Some(now));
        self.stalls.tend(targets.sim, Some(now));
        self.disks.mend(targets, Some(now));
        if self.plan.faults.is_empty() || now < self.next {
            return;
        }
        self.next = now + self.pause();
        let number = self.events;
        self.events += 1;
        let mut draw = Stream::numbered(self.seed, "nemesis event", number);
        let kinds: Vec<Fault> = self.plan.faults.iter().collect();
        let fault = kinds[draw.below(kinds.len() as u64) as usize];
        let is_kept = { self.keep.events.as_ref() }.is_none_or(|events| events.has(number)) && {
            self.keep.faults.as_ref()
        }
        .is_none_or(|faults| faults.has(fault));
        if !is_kept {
            return;
        }
        let done = self.inject(fault, &mut draw, targets);
        *self.injected.entry(fault).or_default() += done;
    }

    /// Ends all that does not end by itself, beside the downtime of processes (NEM-2).
    pub(super) fn stop(&mut self, targets: &mut Targets<'_>) {
        targets.sim.set_network(Plan::calm_network());
        self.cuts.heal(targets.sim, None);
        self.stalls.tend(targets.sim, None);
        self.disks.mend(targets, None);
        let faults = &self.plan.faults;
        if faults.has(Fault::Device) {
            self.disks.plug_in(targets);
        }
        if faults.has(Fault::Drain) || faults.has(Fault::Balance) {
            for server in 0..targets.nodes.servers() {
                targets.nodes.ask(server, Asked::Calm);
            }
        }
    }

    /// Does one thing. Gives how many processes or ways it struck.
    fn inject(&mut self, fault: Fault, draw: &mut Stream, targets: &mut Targets<'_>) -> u64 {
        let downtime_max = self.plan.downtime_max;
        let sim = targets.sim;
        match fault {
            Fault::Delay
            | Fault::Loss
            | Fault::Duplication
            | Fault::Reordering
            | Fault::Datagrams => {
                self.change_network(sim, fault, draw);
                1
            }
            Fault::Crash => {
                self.strike(draw, targets.nodes, downtime_max, |nodes, server, away| {
                    nodes.crash(sim, server, away);
                })
            }
            Fault::Restart => {
                self.strike(draw, targets.nodes, RESTART_MAX, |nodes, server, away| {
                    nodes.crash(sim, server, away);
                })
            }
            Fault::Power if !self.plan.synced => {
                let weak = self.plan.weak_server.map(|n| n as usize);
                let weak = weak.filter(|server| targets.nodes.is_up(*server));
                // Often back before anybody noticed, with older replicas than masters believe.
                let most = match draw.below(2) {
                    0 => RESTART_MAX,
                    _ => downtime_max,
                };
                weak.map_or(0, |server| {
                    targets.nodes.power_loss(sim, server, below(draw, most));
                    1
                })
            }
            Fault::Power => {
                self.strike(draw, targets.nodes, downtime_max, |nodes, server, away| {
                    nodes.power_loss(sim, server, away);
                })
            }
            Fault::Coordinator => match targets.nodes.coordinator_to_strike() {
                None => 0,
                Some(number) => {
                    let downtime = below(draw, downtime_max);
                    targets.nodes.crash_coordinator(sim, number, downtime);
                    1
                }
            },
            Fault::Cut => self.cuts.cut(draw, targets, downtime_max),
            Fault::Stall => self.stalls.begin(draw, targets, downtime_max),
            Fault::Clock => {
                let all = targets.processes();
                let process = all[draw.below(all.len() as u64) as usize];
                // Small ones as well: they are noticed by other code than large ones.
                let most = if draw.below(2) == 0 { JUMP_MAX } else { 10 };
                let jump = i64::try_from(draw.between(1, most)).expect("a few thousand");
                let back = draw.below(2) == 0;
                sim.jump_unix_seconds(process, if back { -jump } else { jump });
                1
            }
            Fault::Client => targets.clients.crash_one(sim, draw, downtime_max),
            Fault::Disk => {
                let weak = self.plan.weak_server.map(|n| n as usize);
                self.disks.trouble(draw, targets, weak, downtime_max)
            }
            Fault::Device => self.disks.trouble_device(draw, targets, downtime_max),
            Fault::Bitrot => self.plan.weak_server.map_or(0, |weak| {
                let process = targets.nodes.server_processes()[weak as usize];
                disks::rot(draw, sim, process)
            }),
            Fault::Drain => {
                let up: Vec<usize> = { 0..targets.nodes.servers() }
                    .filter(|server| targets.nodes.is_up(*server))
                    .collect();
                if up.is_empty() {
                    return 0;
                }
                let server = up[draw.below(up.len() as u64) as usize];
                let wish = match draw.below(6) {
                    // Sometimes too short.
                    0..3 => Asked::Leave(below(draw, DRAIN_MAX)),
                    3 => Asked::Wish(DrainWish::Drain),
                    _ => Asked::Wish(DrainWish::Cancel),
                };
                u64::from(targets.nodes.ask(server, wish))
            }
            Fault::Balance => {
                let wish = match draw.below(4) {
                    0 => BalanceWish::Off,
                    1 => BalanceWish::Plan,
                    _ => BalanceWish::On,
                };
                let server = draw.below(targets.nodes.servers() as u64) as usize;
                u64::from(targets.nodes.ask(server, Asked::Balance(wish)))
            }
            Fault::Memory => self.plan.weak_server.map_or(0, |weak| {
                u64::from(targets.nodes.flip_in_memory(weak as usize, draw))
            }),
        }
    }

    /// Ends one server, two, or all of them. Gives how many.
    fn strike(
        &self,
        draw: &mut Stream,
        nodes: &mut Nodes,
        downtime_max: Duration,
        mut end: impl FnMut(&mut Nodes, usize, Duration),
    ) -> u64 {
        let mut up: Vec<usize> = (0..nodes.servers()).filter(|s| nodes.is_up(*s)).collect();
        let everybody = draw.below(100) < u64::from(self.plan.everybody_percent);
        let most = if everybody {
            up.len()
        } else {
            1 + usize::from(draw.below(4) == 0)
        };
        let mut struck = 0;
        while struck < most && !up.is_empty() {
            let server = up.swap_remove(draw.below(up.len() as u64) as usize);
            let downtime = below(draw, downtime_max);
            end(nodes, server, downtime);
            struck += 1;
        }
        struck as u64
    }

    /// Switches one trouble of the network on or off, at some strength.
    fn change_network(&mut self, sim: &Sim, fault: Fault, draw: &mut Stream) {
        let on = draw.below(3) > 0;
        // Mostly weak, sometimes strong.
        let mut strength = |most: u32| {
            let part = draw.below(u64::from(most)) as u32;
            if on {
                part.min(draw.below(u64::from(most)) as u32) + 1
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
            Fault::Datagrams => {
                self.network.loss_ppm = strength(200_000);
                self.network.duplicate_ppm = strength(200_000);
                self.network.reorder_ppm = strength(1_000_000);
                self.network.replay_ppm = strength(5_000);
                self.network.damage_ppm = strength(20_000);
                // Half of the time as bad as it gets.
                if on && draw.below(2) == 0 {
                    self.network.loss_ppm = 200_000;
                    self.network.duplicate_ppm = 200_000;
                }
            }
            Fault::Crash
            | Fault::Restart
            | Fault::Coordinator
            | Fault::Power
            | Fault::Cut
            | Fault::Stall
            | Fault::Clock
            | Fault::Client
            | Fault::Disk
            | Fault::Bitrot
            | Fault::Memory
            | Fault::Drain
            | Fault::Balance
            | Fault::Device => {}
        }
        sim.set_network(self.network.clone());
    }
}

/// A time up to `most`.
pub(super) fn below(draw: &mut Stream, most: Duration) -> Duration {
    let nanos = u64::try_from(most.as_nanos()).unwrap_or(u64::MAX);
    Duration::from_nanos(draw.between(0, nanos))
}

/// A time for a trouble: half of them short, so that nobody is declared dead for it.
fn trouble(draw: &mut Stream, most: Duration) -> Duration {
    /// Well below the second of silence that the coordinator waits.
    const SHORT: Duration = Duration::from_millis(600);
    if draw.below(2) == 0 {
        below(draw, SHORT)
    } else {
        below(draw, most)
    }
}
