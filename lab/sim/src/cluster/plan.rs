//! What one run is like: drawn from its seed, so that many seeds together reach many corners
//! ("swarm testing": each run leaves much out, and does the rest much).

use crate::cluster::classes::Durability;
use crate::cluster::faults::{Fault, Faults};
use crate::cluster::narrow::Keep;
use crate::options::NetworkFaults;
use crate::random::{MILLION, Stream};
use core::time::Duration;
use pluvio_wire::ClusterSettings;
use serde::{Deserialize, Serialize};

/// Where memory is to fill up, values are so long at least; elsewhere usual ones are shorter.
const HEAVY_VALUES_MIN: u32 = 1 << 17;

/// The largest datagrams of a run; UDP takes little more.
const LARGEST_DATAGRAM: usize = 60_000;

/// The kinds of operations of clients.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum OperationKind {
    /// Read one object.
    Read,
    /// Read one object under a condition: some of the reads.
    ConditionalRead,
    /// Write one object.
    Write,
    /// Write one object under a condition.
    ConditionalWrite,
    /// Delete one object.
    Delete,
    /// Delete one object under a condition.
    ConditionalDelete,
    /// Add to a number.
    Increment,
    /// Add a floating-point number: the increments of some keys.
    IncrementFloat,
    /// Read several objects.
    MultiRead,
    /// Write several objects.
    MultiWrite,
    /// Delete several objects.
    MultiDelete,
    /// Go through a table.
    Enumerate,
    /// Cut a tablet in two.
    Split,
    /// Let a tablet move to another server.
    Migrate,
    /// Create a table, use it, drop it, create it again.
    Scratch,
    /// Put bytes behind a value.
    Append,
    /// Replace bytes in a value.
    SetRange,
    /// Steps on fields of bits.
    Bits,
    /// Add an integer to what may be no number.
    AddInteger,
    /// Add a decimal number to what may be no number.
    AddDecimal,
    /// Write an object if it has the value that is expected.
    CompareAndSet,
    /// Delete an object if it has the value that is expected.
    CompareAndDelete,
    /// Write an object and learn its old value, often under a condition.
    GetAndSet,
    /// Delete an object and learn its old value.
    GetAndDelete,
    /// Write an object with a version that it had elsewhere.
    PutVersion,
    /// Read an object, or a part of it.
    Project,
    /// Several mutations of any kinds.
    MultiMutate,
    /// Several reads of objects or parts of them.
    MultiGet,
    /// Several mutations one after the other.
    InOrder,
    /// Read all that ordered mutations append to.
    Audit,
    /// Change an object that expires: mostly write it, with a lifetime.
    WriteVolatile,
    /// Change when such an object expires.
    Touch,
    /// Read such an object, or when it expires.
    ReadVolatile,
    /// A transaction that moves an amount between two accounts, or reads them all.
    Transfer,
    /// A transaction over registers and lists, or one operation on such a key.
    Several,
    /// Read or write an object of a volatile table.
    Cache,
}

impl OperationKind {
    /// Kinds that are drawn, and how often they are asked for in a usual run.
    const ALL: [(Self, u32); 12] = [
        (Self::Read, 300),
        (Self::Write, 300),
        (Self::ConditionalWrite, 100),
        (Self::Delete, 60),
        (Self::ConditionalDelete, 30),
        (Self::Increment, 100),
        (Self::MultiRead, 40),
        (Self::MultiWrite, 40),
        (Self::MultiDelete, 15),
        (Self::Enumerate, 10),
        (Self::Split, 2),
        (Self::Scratch, 4),
    ];

    /// Kinds that are drawn where there are keys that expire, and how often they are asked for.
    const OF_VOLATILES: [(Self, u32); 3] = [
        (Self::WriteVolatile, 120),
        (Self::Touch, 50),
        (Self::ReadVolatile, 250),
    ];

    /// How often transactions are asked for, in runs that have some.
    const TRANSFERS: (Self, u32) = (Self::Transfer, 200);

    /// How often transactions over registers and lists are asked for, in runs that have some.
    const SEVERALS: (Self, u32) = (Self::Several, 200);

    /// How often objects of a volatile table are read and written, in runs that have one.
    pub(super) const CACHE: (Self, u32) = (Self::Cache, 150);

    /// Kinds that are one mutation of a key whose bytes checkers know.
    pub(super) const MUTATIONS: [Self; 10] = [
        Self::Append,
        Self::SetRange,
        Self::Bits,
        Self::AddInteger,
        Self::AddDecimal,
        Self::CompareAndSet,
        Self::CompareAndDelete,
        Self::GetAndSet,
        Self::GetAndDelete,
        Self::PutVersion,
    ];

    /// Kinds that are drawn where there are such keys, and how often they are asked for.
    const OF_VALUES: [(Self, u32); 15] = [
        (Self::Append, 80),
        (Self::SetRange, 40),
        (Self::Bits, 40),
        (Self::AddInteger, 30),
        (Self::AddDecimal, 40),
        (Self::CompareAndSet, 50),
        (Self::CompareAndDelete, 30),
        (Self::GetAndSet, 50),
        (Self::GetAndDelete, 25),
        (Self::PutVersion, 25),
        (Self::Project, 120),
        (Self::MultiMutate, 20),
        (Self::MultiGet, 20),
        (Self::InOrder, 50),
        (Self::Audit, 15),
    ];
}

/// What one run is like.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Plan {
    /// Servers.
    pub servers: u32,
    /// Coordinators. One has the metadata store alone, several share one.
    pub coordinators: u32,
    /// Event loops, and so logs, of each process.
    pub cores: u16,
    /// Replicas of each segment.
    pub replicas: u32,
    /// Replicas without which writes wait; the usual number when `None`.
    pub min_replicas: Option<u32>,
    /// Whether replicas are on their devices before writes are acknowledged.
    pub synced: bool,
    /// Racks; 0: unknown.
    pub racks: u32,
    /// Log memory of each server, in MiB.
    pub memory_mib: u64,
    /// Tables.
    pub tables: u32,
    /// Over how many servers each table is spread.
    pub span: Option<u32>,
    /// Keys of each table.
    pub keys: u32,
    /// Keys beside those, in all tables together, whose bytes checkers know: they get mutations of
    /// every kind.
    pub values: u32,
    /// Keys beside those, in all tables together, whose objects expire.
    pub volatiles: u32,
    /// How many of a table's keys hold numbers, in percent.
    pub counters_percent: u32,
    /// How many of those numbers are floating-point ones, in percent.
    pub floats_percent: u32,
    /// How many conditions are others than one version, in percent; of other operations a quarter
    /// as many get any.
    pub other_rules_percent: u32,
    /// How many operations go to a tenth of the keys, in percent.
    pub hot_percent: u32,
    /// Longest usual value.
    pub value_max: u32,
    /// How many values have up to 1 MiB, in parts per million.
    pub huge_values_ppm: u32,
    /// Client processes, each with one operation at a time.
    pub clients: u32,
    /// The longest pause of a client between operations.
    pub think_max: Duration,
    /// The clients' limit of an operation.
    pub timeout: Duration,
    /// The clients' limit of an attempt.
    pub attempt_timeout: Duration,
    /// Operations and their weights.
    pub operations: Vec<(OperationKind, u32)>,
    /// The kinds of faults that this run has, of those it may have.
    pub faults: Faults,
    /// The least pause between two faults.
    pub fault_pause_min: Duration,
    /// The longest pause between two faults.
    pub fault_pause_max: Duration,
    /// How long a crashed process stays away at most.
    pub downtime_max: Duration,
    /// How many faults of servers meet all of them, in percent.
    pub everybody_percent: u32,
    /// Clocks run too fast or too slow by up to this, in parts per million.
    pub clock_drift_ppm_max: u32,
    /// The server whose disk may fail and rot, and lose what was not synced, and whose memory may
    /// rot, in clusters that keep two replicas of all that is acknowledged.
    pub weak_server: Option<u32>,
    /// Overwrites append tombstones too.
    pub every_tombstone: bool,
    /// The bytes of a datagram, where messages go by datagrams.
    pub datagram_bytes_max: Option<usize>,
    /// Whether the accounts of transfers are spread over the servers; else one server has all.
    pub accounts_are_apart: bool,
    /// Whether clients read in the memory of servers.
    pub mapped_reads: bool,
    /// Durabilities that tables ask for, beside that of the settings.
    pub classes: Vec<Durability>,
    /// Which of them the first table has; 0: that of the settings. The others follow in their
    /// order, and begin anew.
    pub first_class: u32,
}

impl Plan {
    /// Draws a plan. `steps` operations are divided among the clients.
    pub(super) fn draw(seed: u64, servers: Option<u32>, allowed: &Faults, steps: u64) -> Self {
        let mut draw = Stream::new(seed, "plan");
        // Drawn in any case, so that a fixed number of servers changes nothing else.
        let drawn = 1 + draw.below(6) as u32;
        // Little memory for much data. Costs real time, so it is not common, and clusters are
        // small.
        let heavy = draw.below(12) == 0;
        let drawn = if heavy { drawn.div_ceil(2) } else { drawn };
        let servers = servers.unwrap_or(drawn).max(1);
        let replicas_max = 3.min(servers.saturating_sub(1).max(1));
        let replicas = 1 + draw.below(u64::from(replicas_max)) as u32;
        let min_replicas = (draw.below(3) == 0).then(|| 1 + draw.below(u64::from(replicas)) as u32);
        // Drawn apart, so that it changes nothing else. Often more than usual, because more of the
        // code is about it then.
        let strict = Stream::new(seed, "needed replicas").below(2) == 0;
        let min_replicas = min_replicas.or_else(|| strict.then(|| (replicas - 1).max(1)));
        let faults = Self::draw_faults(&mut draw, allowed);
        let synced = draw.below(4) == 0;
        let cores = 1 + draw.below(3) as u16;
        let memory_mib = if heavy {
            36 + 2 * u64::from(cores)
        } else {
            [40, 48, 64, 96][draw.below(4) as usize]
        };
        let value_max = if heavy {
            HEAVY_VALUES_MIN << draw.below(4)
        } else {
            1 << (4 + draw.below(11))
        };
        let keys = if heavy {
            // From half of what fits to more than that; a value has a third of the most on average.
            let fits = (memory_mib << 20) * u64::from(servers) / u64::from(value_max / 3);
            (fits * draw.between(50, 150) / 100) as u32
        } else {
            1 << draw.below(9)
        };
        let clients = 1 + draw.below(8) as u32;
        let each = (steps / u64::from(clients)).max(1);
        // Long enough for several faults, unless there are very many operations.
        let length = Duration::from_secs(draw.between(5, 30));
        let think_max = (length / u32::try_from(each).unwrap_or(u32::MAX) * 2)
            .clamp(Duration::from_micros(100), Duration::from_secs(1));
        let fault_pause_min = Duration::from_millis(draw.between(20, 500));
        // Drawn apart, so that it changes nothing else.
        let several = Stream::new(seed, "coordinators").below(3) == 0;
        let mut plan = Self {
            servers,
            coordinators: if several { 2 } else { 1 },
            cores,
            replicas,
            min_replicas,
            synced,
            racks: draw.below(4) as u32,
            memory_mib,
            tables: if heavy { 1 } else { 1 + draw.below(2) as u32 },
            span: (draw.below(2) == 0).then(|| 1 + draw.below(u64::from(servers)) as u32),
            keys,
            counters_percent: if heavy {
                10
            } else {
                [0, 10, 10, 30, 30, 100][draw.below(6) as usize]
            },
            // These are drawn apart, so that they change nothing else.
            volatiles: [0, 0, 4, 10][Stream::new(seed, "volatiles").below(4) as usize],
            values: [0, 5, 5, 10][Stream::new(seed, "values").below(4) as usize],
            floats_percent: [0, 50, 100][Stream::new(seed, "floats").below(3) as usize],
            other_rules_percent: [0, 20, 20, 60][Stream::new(seed, "rules").below(4) as usize],
            hot_percent: if heavy {
                0
            } else {
                [0, 50, 90][draw.below(3) as usize]
            },
            value_max,
            huge_values_ppm: [0, 0, 5_000, 30_000][draw.below(4) as usize],
            clients,
            think_max,
            timeout: Duration::from_millis(draw.between(2_000, 12_000)),
            attempt_timeout: Duration::from_millis(draw.between(300, 2_000)),
            operations: Self::draw_operations(&mut draw, heavy),
            faults,
            fault_pause_min,
            fault_pause_max: fault_pause_min + Duration::from_millis(draw.between(50, 2_500)),
            downtime_max: Duration::from_millis(draw.between(500, 6_000)),
            everybody_percent: [0, 10, 40][draw.below(3) as usize],
            clock_drift_ppm_max: [0, 0, 200][draw.below(3) as usize],
            weak_server: None,
            every_tombstone: draw.below(4) == 0,
            datagram_bytes_max: None,
            accounts_are_apart: Stream::new(seed, "accounts").below(2) == 0,
            mapped_reads: Stream::new(seed, "mapped reads").below(2) == 0,
            classes: Vec::new(),
            first_class: 0,
        };
        // Some, or so many that one seldom ends before the next begins. Drawn apart, too.
        let migrations =
            [0, 15, 15, 15, 15, 15, 120, 120][Stream::new(seed, "migrations").below(8) as usize];
        if migrations > 0 && servers > 1 {
            plan.operations.push((OperationKind::Migrate, migrations));
        }
        plan.draw_mutations(seed);
        if plan.volatiles > 0 {
            plan.operations.extend(OperationKind::OF_VOLATILES);
        }
        if Stream::new(seed, "transfers").below(3) == 0 {
            plan.operations.push(OperationKind::TRANSFERS);
        }
        if Stream::new(seed, "several").below(3) == 0 {
            plan.operations.push(OperationKind::SEVERALS);
        }
        if plan.faults.has(Fault::Clock) {
            // Leases are made for clocks that differ by a quarter at most (`docs/membership.md`).
            let drifts = [200, 20_000, 100_000];
            let drawn = Stream::new(seed, "clocks").below(drifts.len() as u64) as usize;
            plan.clock_drift_ppm_max = drifts[drawn];
        }
        plan.faults = Self::with_memory(seed, plan.faults, allowed);
        plan.faults = Self::with_drain(seed, plan.faults, allowed);
        plan.faults = Self::with_balance(seed, plan.faults, allowed);
        plan.choose_datagrams(seed, allowed);
        plan.choose_weak_server(seed);
        plan.choose_devices(seed, allowed);
        // Where all servers may lose power, only what is synced survives; where one may, the others
        // have what it loses.
        let one = plan.weak_server.is_some() && Stream::new(seed, "power").below(2) == 0;
        plan.synced |= plan.faults.has(Fault::Power) && !one;
        plan.choose_classes(seed);
        plan.choose_cache(seed);
        plan
    }

    /// Draws the operations on keys whose bytes checkers know. Drawn apart, too.
    fn draw_mutations(&mut self, seed: u64) {
        if self.values == 0 {
            return;
        }
        let mut draw = Stream::new(seed, "mutations");
        for (kind, usual) in OperationKind::OF_VALUES {
            let weight = match draw.below(6) {
                0 => 0,
                1 => usual * 5,
                _ => usual,
            };
            if weight > 0 {
                self.operations.push((kind, weight));
            }
        }
    }

    /// Messages go by datagrams in one run of eight, or wherever nothing else may happen. Drawn
    /// apart, so that it changes nothing else.
    fn choose_datagrams(&mut self, seed: u64, allowed: &Faults) {
        let mut draw = Stream::new(seed, "datagrams");
        let alone = self.faults.is_empty();
        if !allowed.has(Fault::Datagrams) || !alone && draw.below(8) > 0 {
            return;
        }
        let faults = core::mem::take(&mut self.faults);
        self.faults = faults.with(Fault::Datagrams);
        let sizes = [1_400, 9_000, LARGEST_DATAGRAM];
        let drawn = sizes[draw.below(sizes.len() as u64) as usize];
        // Much data in small datagrams costs real time.
        self.datagram_bytes_max = Some(if self.is_heavy() {
            LARGEST_DATAGRAM
        } else {
            drawn
        });
    }

    /// One copy of everything may be lost where two are always there.
    fn choose_weak_server(&mut self, seed: u64) {
        let wanted = [Fault::Disk, Fault::Bitrot, Fault::Power, Fault::Memory];
        let wanted = wanted.into_iter().any(|fault| self.faults.has(fault));
        let replicas_max = 3.min(self.servers.saturating_sub(1));
        if !wanted || replicas_max < 2 {
            return;
        }
        let mut draw = Stream::new(seed, "weak server");
        let weak = draw.below(u64::from(self.servers)) as u32;
        // Drawn so that many runs have one, here and below: otherwise few had enough replicas.
        if self.replicas < 2 && draw.below(4) > 0 {
            self.replicas = draw.between(2, u64::from(replicas_max)) as u32;
        }
        if self.replicas < 2 {
            return;
        }
        if self.needed() < 2 && draw.below(4) > 0 {
            self.min_replicas = Some(2);
        }
        if self.needed() >= 2 && self.spares_a_backup() {
            self.weak_server = Some(weak);
        }
    }

    /// Servers have two devices in one run of four, or wherever nothing else may happen. Drawn
    /// apart, so that it changes nothing else.
    fn choose_devices(&mut self, seed: u64, allowed: &Faults) {
        let drawn = self.faults.is_empty() || Stream::new(seed, "devices").below(4) == 0;
        if allowed.has(Fault::Device) && drawn && self.spares_a_backup() {
            self.faults = core::mem::take(&mut self.faults).with(Fault::Device);
        }
    }

    /// Replicas without which writes wait.
    fn needed(&self) -> u32 {
        self.min_replicas
            .unwrap_or(ClusterSettings::USUAL.min_replicas)
    }

    /// Whether there is little memory for the data.
    pub(super) fn is_heavy(&self) -> bool {
        self.value_max >= HEAVY_VALUES_MIN
    }

    /// Whether all servers can write without one of the others: a backup that failed a replica of a
    /// head is not used again for that head, and where no other is left, writes wait for as long as
    /// it runs (`docs/replication.md`, Weaknesses).
    fn spares_a_backup(&self) -> bool {
        self.servers >= self.needed() + 2
    }

    /// Whether segments may lack replicas for good: a backup whose disk failed under a replica is
    /// not used again for its segment (`docs/replication.md`, REP-8), and there may be no other.
    pub(super) fn may_lack_replicas(&self) -> bool {
        self.weak_server.is_some() && self.servers <= self.most_replicas() + 1
    }

    /// Leaves out what is not kept, and changes nothing else.
    pub(super) fn narrow(&mut self, keep: &Keep) {
        self.clients = keep.clients.unwrap_or(u32::MAX).clamp(1, self.clients);
        if keep.faults.as_ref().is_some_and(|f| !f.has(Fault::Clock)) {
            self.clock_drift_ppm_max = 0;
        }
    }

    /// Every other kind of those that are allowed, at least one.
    fn draw_faults(draw: &mut Stream, allowed: &Faults) -> Faults {
        let apart = [
            Fault::Memory,
            Fault::Datagrams,
            Fault::Drain,
            Fault::Balance,
            Fault::Device,
        ];
        let all = allowed.iter().filter(|fault| !apart.contains(fault));
        let all: Vec<Fault> = all.collect();
        if all.is_empty() {
            return Faults::none();
        }
        let sure = all[draw.below(all.len() as u64) as usize];
        let everything = draw.below(4) == 0;
        all.into_iter()
            .filter(|f| draw.below(2) == 0 || *f == sure || everything)
            .collect()
    }

    /// Bits turn over in memory in one run of four, or wherever nothing else may happen. Drawn
    /// apart, so that it changes nothing else.
    fn with_memory(seed: u64, faults: Faults, allowed: &Faults) -> Faults {
        let alone = faults.is_empty();
        if allowed.has(Fault::Memory) && (alone || Stream::new(seed, "memory").below(4) == 0) {
            faults.with(Fault::Memory)
        } else {
            faults
        }
    }

    /// Servers are drained in one run of six, or wherever nothing else may happen. Drawn apart, so
    /// that it changes nothing else.
    fn with_drain(seed: u64, faults: Faults, allowed: &Faults) -> Faults {
        let alone = faults.is_empty();
        if allowed.has(Fault::Drain) && (alone || Stream::new(seed, "drain").below(6) == 0) {
            faults.with(Fault::Drain)
        } else {
            faults
        }
    }

    /// Tablets are balanced without need in one run of four, or wherever nothing else may happen.
    /// Drawn apart, so that it changes nothing else.
    fn with_balance(seed: u64, faults: Faults, allowed: &Faults) -> Faults {
        let alone = faults.is_empty();
        if allowed.has(Fault::Balance) && (alone || Stream::new(seed, "balance").below(4) == 0) {
            faults.with(Fault::Balance)
        } else {
            faults
        }
    }

    fn draw_operations(draw: &mut Stream, heavy: bool) -> Vec<(OperationKind, u32)> {
        let mut operations = Vec::new();
        for (kind, usual) in OperationKind::ALL {
            let weight = match draw.below(6) {
                0 => 0,
                1 => usual * 5,
                _ => usual,
            };
            // Without writes there would be nothing to check, and memory would not fill up.
            let weight = match kind {
                OperationKind::Write => weight.max(usual),
                OperationKind::MultiWrite if heavy => weight.max(usual * 10),
                _ => weight,
            };
            if weight > 0 {
                operations.push((kind, weight));
            }
        }
        operations
    }

    /// A kind of operation, by the weights.
    pub(super) fn operation(&self, draw: &mut Stream) -> OperationKind {
        let all: u32 = self.operations.iter().map(|(_, weight)| weight).sum();
        let mut at = draw.below(u64::from(all)) as u32;
        for (kind, weight) in &self.operations {
            if at < *weight {
                return *kind;
            }
            at -= weight;
        }
        OperationKind::Read
    }

    /// A length of a value: mostly short, sometimes empty, rarely huge.
    pub(super) fn value_length(&self, draw: &mut Stream) -> usize {
        use super::values::LENGTH_MIN;
        if draw.chance(self.huge_values_ppm) {
            return draw.between(LENGTH_MIN as u64, 1 << 20) as usize;
        }
        if draw.chance(MILLION / 50) {
            return 0;
        }
        let most = u64::from(self.value_max).max(LENGTH_MIN as u64);
        // The smaller of two: short values are more common.
        let length = draw
            .between(LENGTH_MIN as u64, most)
            .min(draw.between(LENGTH_MIN as u64, most));
        length as usize
    }

    /// A network without faults.
    pub(super) fn calm_network() -> NetworkFaults {
        NetworkFaults {
            tail_ppm: 0,
            reorder_ppm: 0,
            ..NetworkFaults::default()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_mutation_has_its_share_of_a_run() {
        for kind in OperationKind::MUTATIONS {
            let mut drawn = OperationKind::OF_VALUES.iter();
            assert!(drawn.any(|(one, _)| *one == kind), "{kind:?}");
        }
    }
}
