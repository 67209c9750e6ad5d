//! One recovery, event by event.
//!
//! ```text
//! crash ─► declared crashed ─► replicas listed ─► partitions told ─► recovery masters asked
//!                                                      │                     │
//!   backup:          reads its primaries one by one ◄──┘                     │ several fetches under way
//!                    sorts each on a processor ───── bucket of a segment ───►│ replays, one at a time
//!   other backups:   store replicas  ◄────────────── what was replayed ──────┤
//!   coordinator:     one durable change each, not before leases have ended ◄─┘ all durable
//! ```
//!
//! Every server has a disk, a link with two directions and some processors, all of which serve one
//! job after the other. The coordinator has one processor and one link. All servers' disks and
//! sorting are followed. Recovery masters are all alike, so at most [`FETCHES_MAX`] fetches' worth
//! of them are followed. Each of those stands for some others. Its requests to backups weigh as if
//! those asked too, and their own servers are kept as busy as its own.
//!
//! A partition has the same part of each segment. Segments lie where randomization with refinement
//! puts them.

use super::options::{ModelOptions, Partitions};
use super::placement::{Disks, Placement, place};
use super::queue::{Agenda, Station, Time, nanoseconds, seconds};
use crate::error::ExperimentError;
use core::ops::Range;
use pluvio_load::Random;

/// Fetches that are followed: some seconds of work.
const FETCHES_MAX: usize = 2_000_000;
/// Least recovery masters that are followed: the last of them says when all are done.
const MASTERS_MIN: usize = 8;
/// Requests of one step that the coordinator has under way.
const WINDOW: usize = 64;
/// Megabytes of one replication request.
const REPLICATION_MB: f64 = 1.0;
/// Bytes that name a tablet in a request.
const TABLET_BYTES: f64 = 60.0;

/// What a recovery took. Seconds since the crash, unless it says otherwise.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub struct Recovered {
    /// Recovery partitions.
    pub partitions: usize,
    /// Segments of the crashed log.
    pub segments: usize,
    /// Megabytes lost.
    pub mb: f64,
    /// Until it was declared crashed.
    pub detected_s: f64,
    /// Until the last recovery master was asked.
    pub planned_s: f64,
    /// Until the last primary replica was read and sorted.
    pub read_s: f64,
    /// Until everything was replayed.
    pub replayed_s: f64,
    /// Until all of it was durable again.
    pub durable_s: f64,
    /// Until the coordinator had given away the last tablet.
    pub total_s: f64,
    /// Seconds that the disks were busy, on average.
    pub disk_mean_s: f64,
    /// Seconds that the busiest disk was.
    pub disk_max_s: f64,
    /// Least seconds that the disks, the links or the processors of all servers together would
    /// need.
    pub bound_s: f64,
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    /// A backup knows the partitions.
    Told { backup: u32 },
    /// A backup has read a segment.
    Read { segment: u32 },
    /// A segment is sorted.
    Sorted { segment: u32 },
    /// A recovery master knows what to do.
    Asked { master: u32 },
    /// A fetch has come to the backup.
    Wanted { master: u32, segment: u32 },
    /// A bucket is ready to leave the backup.
    Leaves { master: u32, segment: u32 },
    /// It has come to the recovery master's link.
    Comes { master: u32, segment: u32 },
    /// It is in the recovery master's memory.
    There { master: u32, segment: u32 },
    /// It was replayed.
    Replayed { master: u32 },
    /// A replication request has come to a backup's link.
    Copied { master: u32, backup: u32 },
    /// A backup has it in memory.
    Keeps { master: u32, backup: u32 },
    /// It is stored.
    Kept { master: u32 },
    /// A report has come to the coordinator.
    Reported,
}

/// A server that is left.
struct Server {
    disk: Station,
    speed: f64,
    processors: Station,
    outward: Station,
    inward: Station,
    /// Its primaries of the crashed server, in the order of reading.
    primaries: Vec<u32>,
    /// How many of them were begun, and how many are done with.
    begun: usize,
    done: usize,
    is_told: bool,
}

struct Segment {
    backup: u32,
    is_sorted: bool,
    /// Followed masters that wait for it, and those that still have to fetch it.
    waiting: Vec<u32>,
    unfetched: u32,
}

struct Master {
    /// Its server, and those of the masters that it stands for.
    servers: Range<usize>,
    /// The next segment to ask for, in the list's order.
    next: usize,
    replayed: usize,
    /// Replay is one thread.
    replay: Station,
    /// Replication requests begun, to all replicas at a time.
    sent: usize,
    /// Copies under way.
    unkept: usize,
}

struct Model<'o> {
    options: &'o ModelOptions,
    agenda: Agenda<Event>,
    random: Random,
    servers: Vec<Server>,
    segments: Vec<Segment>,
    /// Segments as recovery masters ask for them.
    order: Vec<u32>,
    masters: Vec<Master>,
    cut: Partitions,
    /// Recovery masters for each one that is followed.
    weight: f64,
    /// Replication requests of a partition, and the megabytes of each.
    requests: usize,
    request_mb: f64,
    coordinator: Station,
    not_before: Time,
    found: Recovered,
}

/// Recovers one server.
///
/// # Errors
/// An option is outside of its range.
pub fn recover(options: &ModelOptions) -> Result<Recovered, ExperimentError> {
    options.check()?;
    let mut model = Model::new(options);
    model.plan();
    while let Some((now, event)) = model.agenda.next() {
        model.happens(now, event);
    }
    Ok(model.outcome())
}

impl<'o> Model<'o> {
    fn new(options: &'o ModelOptions) -> Self {
        let (left, count) = (options.left(), options.segments());
        let cut = options.partitions();
        let mut random = Random::new(options.seed, 0);
        let speeds = Disks::Uniform.speeds(left, options.costs.disk_mb_per_s, &mut random);
        let mut servers: Vec<Server> = speeds
            .iter()
            .map(|&speed| Server {
                disk: Station::new(1),
                speed,
                processors: Station::new(options.cores),
                outward: Station::new(1),
                inward: Station::new(1),
                primaries: Vec::new(),
                begun: 0,
                done: 0,
                is_told: false,
            })
            .collect();
        let places = place(
            Placement::Refined,
            &speeds,
            count,
            options.candidates,
            &mut random,
        );
        for (segment, &backup) in places.iter().enumerate() {
            servers[backup as usize].primaries.push(segment as u32);
        }
        // In the order in which backups should have read them.
        let mut ready: Vec<(Time, u32)> = Vec::with_capacity(count);
        for server in &servers {
            for (before, &segment) in server.primaries.iter().enumerate() {
                let mb = (before + 1) as f64 * options.segment_mb;
                ready.push((nanoseconds(mb / server.speed), segment));
            }
        }
        ready.sort_unstable();
        let followed = (FETCHES_MAX / count).max(MASTERS_MIN).min(cut.at_a_time);
        let segments = places.iter().map(|&backup| Segment {
            backup,
            is_sorted: false,
            waiting: Vec::new(),
            unfetched: followed as u32,
        });
        let masters = (0..followed).map(|index| Master {
            servers: index * cut.at_a_time / followed..(index + 1) * cut.at_a_time / followed,
            next: 0,
            replayed: 0,
            replay: Station::new(1),
            sent: 0,
            unkept: 0,
        });
        let requests = (cut.mb / REPLICATION_MB).ceil().max(1.0) as usize;
        Self {
            segments: segments.collect(),
            order: ready.into_iter().map(|(_, segment)| segment).collect(),
            masters: masters.collect(),
            weight: cut.at_a_time as f64 / followed as f64,
            requests,
            request_mb: cut.mb / requests as f64,
            agenda: Agenda::new(),
            coordinator: Station::new(1),
            not_before: 0,
            found: Recovered {
                partitions: cut.all,
                segments: count,
                mb: options.data.mb(left),
                ..Recovered::default()
            },
            options,
            random,
            servers,
            cut,
        }
    }

    /// What comes before replay: all of it is the coordinator's.
    fn plan(&mut self) {
        let (options, costs) = (self.options, self.options.costs);
        let left = options.left();
        let detected = self.detection();
        self.found.detected_s = seconds(detected);
        // The crash is stored before anybody hears of it.
        let now = self.coordinator.serve(detected, micros(costs.store_us));
        let listed = options.segments() as f64 * options.replicas.max(1) as f64 / left as f64;
        let listing = costs.request_us + listed * costs.replica_us;
        let collected = self.ask_all(now, left, listing, 0.0, |_, _| {});
        self.not_before = collected + millis(costs.lease_ms);
        // The attempt is stored.
        let now = self.coordinator.serve(collected, micros(costs.store_us));
        let tablets = self.cut.at_a_time as f64 * TABLET_BYTES;
        let mut told = Vec::with_capacity(left);
        let now = self.ask_all(now, left, costs.request_us, tablets, |backup, at| {
            told.push((
                at,
                Event::Told {
                    backup: backup as u32,
                },
            ));
        });
        let entries = self.segments.len() as f64 * costs.segment_entry_bytes;
        let (followed, all) = (self.masters.len(), self.cut.at_a_time);
        let mut asked = vec![0; followed];
        let planned = self.ask_all(now, all, costs.request_us, entries, |index, at| {
            // The last one that each stands for: a recovery is as late as its last part.
            asked[index * followed / all] = at;
        });
        self.found.planned_s = seconds(planned);
        for (at, event) in told {
            self.agenda.at(at, event);
        }
        for (master, at) in asked.into_iter().enumerate() {
            self.agenda.at(
                at,
                Event::Asked {
                    master: master as u32,
                },
            );
        }
    }

    /// Until the crash is known: one of the pings that all servers send, each to a random other,
    /// meets the dead one.
    fn detection(&mut self) -> Time {
        let (others, costs) = (self.options.left() as u64, &self.options.costs);
        let mut first = f64::MAX;
        for _ in 0..others {
            // Each server at its own time; each ping finds the dead one with the same chance.
            let mut at = self.random.unit() * costs.ping_ms;
            while at < first && self.random.below(others) != 0 {
                at += costs.ping_ms;
                if costs.ping_ms == 0.0 {
                    break;
                }
            }
            first = first.min(at);
        }
        millis(first + costs.declare_ms)
    }

    /// The coordinator asks `count` servers, some at a time, with requests of `bytes` more; `heard`
    /// is told when each has the request. Gives when the last has answered.
    fn ask_all(
        &mut self,
        now: Time,
        count: usize,
        request_us: f64,
        bytes: f64,
        mut heard: impl FnMut(usize, Time),
    ) -> Time {
        let costs = &self.options.costs;
        let mb = bytes / 1e6;
        let processor = micros(request_us) + millis(mb * costs.transfer_ms_per_mb);
        let link = nanoseconds(mb / costs.network_mb_per_s);
        let way = micros(costs.wire_us);
        let mut outward = Station::new(1);
        let mut window = vec![now; WINDOW.min(count)];
        for index in 0..count {
            let slot = index % window.len();
            let sent = self.coordinator.serve(window[slot], processor);
            let arrived = outward.serve(sent, link) + way;
            heard(index, arrived);
            window[slot] = arrived + micros(costs.request_us) + way;
        }
        window.into_iter().max().unwrap_or(now)
    }

    fn happens(&mut self, now: Time, event: Event) {
        let (options, costs) = (self.options, self.options.costs);
        let way = micros(costs.wire_us);
        match event {
            Event::Told { backup } => {
                self.servers[backup as usize].is_told = true;
                self.read_next(now, backup);
            }
            Event::Read { segment } => {
                let backup = self.segments[segment as usize].backup;
                let takes = nanoseconds(options.segment_mb / costs.sort_mb_per_s);
                let end = self.servers[backup as usize].processors.serve(now, takes);
                self.agenda.at(end, Event::Sorted { segment });
                self.read_next(now, backup);
            }
            Event::Sorted { segment } => {
                self.found.read_s = self.found.read_s.max(seconds(now));
                let this = &mut self.segments[segment as usize];
                this.is_sorted = true;
                for master in std::mem::take(&mut this.waiting) {
                    self.answer(now, master, segment);
                }
            }
            Event::Asked { master } => {
                for _ in 0..options.fetches {
                    self.fetch_next(now, master);
                }
            }
            Event::Wanted { master, segment } => {
                let this = &mut self.segments[segment as usize];
                match this.is_sorted {
                    true => self.answer(now, master, segment),
                    false => this.waiting.push(master),
                }
            }
            Event::Leaves { master, segment } => {
                let backup = self.segments[segment as usize].backup;
                let takes = nanoseconds(self.bucket_mb() * self.weight / costs.network_mb_per_s);
                let sent = self.servers[backup as usize].outward.serve(now, takes);
                self.agenda.at(sent + way, Event::Comes { master, segment });
                self.fetched(now, segment);
            }
            Event::Comes { master, segment } => {
                let takes = nanoseconds(self.bucket_mb() / costs.network_mb_per_s);
                let there = self.server_of(master).inward.serve(now, takes);
                self.agenda.at(there, Event::There { master, segment });
            }
            Event::There { master, .. } => {
                let mb = self.bucket_mb();
                let receive = millis(mb * costs.transfer_ms_per_mb) + micros(costs.request_us);
                let takes = receive + nanoseconds(mb / costs.replay_mb_per_s);
                let end = self.server_of(master).processors.serve(now, takes);
                let end = self.masters[master as usize]
                    .replay
                    .serve_from(now, end - takes, takes);
                self.agenda.at(end, Event::Replayed { master });
            }
            Event::Replayed { master } => self.replayed(now, master),
            Event::Copied { master, backup } => {
                let takes = nanoseconds(self.request_mb / costs.network_mb_per_s);
                let there = self.servers[backup as usize].inward.serve(now, takes);
                self.agenda.at(there, Event::Keeps { master, backup });
            }
            Event::Keeps { master, backup } => {
                let cost = costs.transfer_ms_per_mb + costs.keep_ms_per_mb;
                let takes = millis(self.request_mb * cost);
                let end = self.servers[backup as usize].processors.serve(now, takes);
                self.agenda.at(end + way, Event::Kept { master });
            }
            Event::Kept { master } => {
                self.masters[master as usize].unkept -= 1;
                self.ended(now, master);
            }
            Event::Reported => {
                let begin = now.max(self.not_before);
                // Those that it stands for report at the same time.
                let takes = micros((costs.request_us + costs.store_us) * self.weight);
                let end = self.coordinator.serve(begin, takes);
                self.found.total_s = self.found.total_s.max(seconds(end));
            }
        }
    }

    /// Megabytes of a segment that belong to one partition.
    fn bucket_mb(&self) -> f64 {
        self.cut.mb / self.segments.len() as f64
    }

    fn server_of(&mut self, master: u32) -> &mut Server {
        let server = self.masters[master as usize].servers.start;
        &mut self.servers[server]
    }

    /// A backup reads one more primary, if it may and has one.
    fn read_next(&mut self, now: Time, backup: u32) {
        let server = &mut self.servers[backup as usize];
        let has_room = server.begun < server.done + self.options.buffer_segments;
        let Some(&segment) = server.primaries.get(server.begun) else {
            return;
        };
        if !server.is_told || !has_room {
            return;
        }
        server.begun += 1;
        let takes = nanoseconds(self.options.segment_mb / server.speed);
        let end = server.disk.serve(now, takes);
        self.agenda.at(end, Event::Read { segment });
    }

    fn fetch_next(&mut self, now: Time, master: u32) {
        let this = &mut self.masters[master as usize];
        if let Some(&segment) = self.order.get(this.next) {
            this.next += 1;
            let arrives = now + micros(self.options.costs.wire_us);
            self.agenda.at(arrives, Event::Wanted { master, segment });
        }
    }

    /// A backup sends a bucket that is ready.
    fn answer(&mut self, now: Time, master: u32, segment: u32) {
        let costs = &self.options.costs;
        let mb = self.bucket_mb();
        let each = millis(mb * costs.transfer_ms_per_mb) + micros(costs.request_us);
        let takes = (each as f64 * self.weight) as Time;
        let backup = self.segments[segment as usize].backup as usize;
        let end = self.servers[backup].processors.serve(now, takes);
        self.agenda.at(end, Event::Leaves { master, segment });
    }

    /// One master less has to fetch a segment; the last one makes room for another.
    fn fetched(&mut self, now: Time, segment: u32) {
        let this = &mut self.segments[segment as usize];
        this.unfetched -= 1;
        if this.unfetched == 0 {
            let backup = this.backup;
            self.servers[backup as usize].done += 1;
            self.read_next(now, backup);
        }
    }

    fn replayed(&mut self, now: Time, master: u32) {
        let segments = self.segments.len();
        let this = &mut self.masters[master as usize];
        this.replayed += 1;
        let due = this.replayed * self.requests / segments;
        let new = due - std::mem::replace(&mut this.sent, due);
        if this.replayed == segments {
            self.found.replayed_s = self.found.replayed_s.max(seconds(now));
        }
        for _ in 0..new {
            self.replicate(now, master);
            self.follow_suit(now, master);
        }
        self.fetch_next(now, master);
        self.ended(now, master);
    }

    /// A recovery master sends a part of its side log to other backups.
    fn replicate(&mut self, now: Time, master: u32) {
        let costs = self.options.costs;
        let me = self.masters[master as usize].servers.start;
        let link = nanoseconds(self.request_mb / costs.network_mb_per_s);
        for _ in 0..self.options.replicas {
            let send = millis(self.request_mb * costs.transfer_ms_per_mb);
            let ready = self.servers[me].processors.serve(now, send);
            let sent = self.servers[me].outward.serve(ready, link);
            let backup = self.other(me) as u32;
            self.masters[master as usize].unkept += 1;
            let arrives = sent + micros(costs.wire_us);
            self.agenda.at(arrives, Event::Copied { master, backup });
        }
    }

    /// The masters that this one stands for have received, replayed and sent as much as it has.
    fn follow_suit(&mut self, now: Time, master: u32) {
        let (options, costs, mb) = (self.options, self.options.costs, self.request_mb);
        let copies = options.replicas as f64;
        let replay = nanoseconds(mb / costs.replay_mb_per_s);
        let transfer = millis(mb * costs.transfer_ms_per_mb * (1.0 + copies));
        let link = nanoseconds(mb / costs.network_mb_per_s);
        let keep = millis(mb * (costs.transfer_ms_per_mb + costs.keep_ms_per_mb));
        let mut others = self.masters[master as usize].servers.clone();
        others.next();
        for at in others {
            let server = &mut self.servers[at];
            server.processors.serve(now, replay + transfer);
            server.inward.serve(now, link);
            for _ in 0..options.replicas {
                self.servers[at].outward.serve(now, link);
                let backup = self.other(at);
                self.servers[backup].inward.serve(now, link);
                self.servers[backup].processors.serve(now, keep);
            }
        }
    }

    /// Any server but this one, if there is another.
    fn other(&mut self, than: usize) -> usize {
        let left = self.servers.len();
        match left {
            1 => than,
            _ => (than + 1 + self.random.below(left as u64 - 1) as usize) % left,
        }
    }

    /// Reports when nothing is left to do.
    fn ended(&mut self, now: Time, master: u32) {
        let this = &self.masters[master as usize];
        if this.replayed < self.segments.len() || this.unkept > 0 {
            return;
        }
        self.found.durable_s = self.found.durable_s.max(seconds(now));
        let arrives = now + micros(self.options.costs.wire_us);
        self.agenda.at(arrives, Event::Reported);
    }

    fn outcome(self) -> Recovered {
        let mut found = self.found;
        let busy = || self.servers.iter().map(|server| seconds(server.disk.busy));
        found.disk_mean_s = busy().sum::<f64>() / self.servers.len() as f64;
        found.disk_max_s = busy().fold(0.0, f64::max);
        let speed = self.servers.iter().map(|server| server.speed).sum();
        found.bound_s = bound(self.options, &self.cut, speed);
        // Partitions that found no server wait for the next attempts, which do the same again.
        let again = (self.cut.rounds - 1) as f64;
        let one = found.total_s - found.detected_s;
        for end in [
            &mut found.read_s,
            &mut found.replayed_s,
            &mut found.durable_s,
            &mut found.total_s,
        ] {
            *end += again * one;
        }
        found
    }
}

/// Least seconds for a perfectly even cluster without waits: the scarcest of disks, links,
/// processors and replay.
fn bound(options: &ModelOptions, cut: &Partitions, disk_mb_per_s: f64) -> f64 {
    let (left, costs) = (options.left() as f64, &options.costs);
    let all = options.data.mb(options.left());
    let each = all / left;
    let copies = options.replicas as f64;
    let disk = all / disk_mb_per_s;
    let link = each * (1.0 + copies) / costs.network_mb_per_s;
    let transfers = 2.0 * (1.0 + copies) * costs.transfer_ms_per_mb / 1e3;
    let keep = copies * costs.keep_ms_per_mb / 1e3;
    let work = 1.0 / costs.sort_mb_per_s + 1.0 / costs.replay_mb_per_s + transfers + keep;
    let processors = each * work / options.cores as f64;
    let replay = cut.mb * cut.rounds as f64 / costs.replay_mb_per_s;
    disk.max(link).max(processors).max(replay)
}

fn micros(us: f64) -> Time {
    nanoseconds(us / 1e6)
}

fn millis(ms: f64) -> Time {
    nanoseconds(ms / 1e3)
}

#[cfg(test)]
mod tests;
