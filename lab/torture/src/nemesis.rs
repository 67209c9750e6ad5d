//! Does to the processes what the schedule says, and keeps the cluster within what it promises to
//! survive.
//!
//! - TORT-4: at most R - 1 servers are away at a time, and every server comes back on its own data.
//!   A server is away while it is killed, stopped, cut off, has a full disk, is without a data
//!   directory, or is not back yet. So nothing that was acknowledged may be lost, and nothing is
//!   forgiven.
//! - TORT-5: whatever ended is started again, whether a fault ended it or the cluster expelled it.
//!   An end that neither explains is a violation.

use super::disks::{self, Disks};
use super::draw::Draw;
use super::faults::{Act, Fault, Schedule};
use super::journal::Journal;
use super::links::{Host, Links};
use super::tables;
use pluvio_client::{ClientError, ClusterStatus};
use pluvio_console::failure::Failure;
use pluvio_console::session::Session;
use pluvio_env::Clock;
use pluvio_local::{Change, LocalCluster, SECOND_DIRECTORY, Which};
use pluvio_units::ServerId;
use pluvio_wire::{TabletState, WhichTablet};
use rustix::process::Signal;
use serde::Serialize;
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

/// Pause between two looks at the cluster while it heals.
const LOOK_PAUSE: Duration = Duration::from_millis(200);
/// How long one question to the cluster may take.
const STATUS_LIMIT: Duration = Duration::from_secs(5);
/// Tablets are cut while there are fewer: balancing joins small neighbours again.
const TABLETS_WANTED: usize = 4;
/// The last words of a server that was declared dead while it was silent.
const EXPELLED: &str = "no member of the cluster any more";
/// How long a server's tablets may take to move after SIGTERM.
pub(super) const DRAIN_LIMIT: Duration = Duration::from_secs(10);
/// How long after SIGTERM a server must have ended: the drain, and twice what the rest may take.
const LEAVE_LIMIT: Duration = Duration::from_secs(30);

/// Something that happened to the cluster.
#[derive(Clone, Debug, Serialize)]
pub struct Event {
    /// Seconds since the beginning.
    pub at: f64,
    /// Who and what.
    pub text: String,
}

/// The means to act on processes from outside, as far as this machine allows it.
pub struct Machine {
    /// Ways that can be cut.
    pub links: Option<Links>,
    /// Disks that can be full.
    pub disks: Option<Disks>,
    /// Data directories of the servers.
    pub folders: Vec<PathBuf>,
    /// The server whose disk flips bits.
    pub rotten: usize,
}

/// A way: who sends, and who does not receive.
type Way = (Host, Host);

/// How a server is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Standing {
    /// As it should be.
    Up,
    /// Not there, or not ready yet.
    Away,
    /// Stopped, cut off, with a full disk, or without one of its data directories.
    Hurt,
}

/// Something to do at some time.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Due {
    /// Start it again.
    Launch(Which),
    /// Let it go on.
    Continue(Which),
    /// Mend the ways of this cut.
    Mend(u64),
    /// Give the disk of this server room.
    Free(usize),
    /// Give this server its second data directory again, and start it again.
    PlugIn(usize),
    /// Kill a server that leaves: before it is through, or because it does not end.
    Kill { server: usize, late: bool },
}

impl Due {
    /// Whether it kills this server.
    fn kills(self, at: usize) -> bool {
        matches!(self, Self::Kill { server, .. } if server == at)
    }
}

/// The cluster, and who torments it.
pub struct Nemesis {
    /// The processes.
    pub cluster: LocalCluster,
    machine: Arc<Machine>,
    clock: Arc<dyn Clock>,
    journal: Journal,
    schedule: Schedule,
    next: Option<(Duration, Act)>,
    draw: Draw,
    /// Most servers that may be away at a time.
    away_max: usize,
    servers: Vec<Standing>,
    /// What is due, by time and number.
    due: BTreeMap<(Duration, u64), Due>,
    due_last: u64,
    /// Cuts: the server that each is about, and the ways.
    cuts: BTreeMap<u64, (usize, Vec<Way>)>,
    /// Servers that got SIGTERM, or were killed after it, and have not ended.
    leaving: BTreeSet<usize>,
    /// For moves: it gives up early.
    session: Session,
    /// How often each kind of fault happened.
    pub counts: BTreeMap<Fault, u64>,
    /// Servers that ended because they had been declared dead.
    pub expelled: u64,
    /// Everything that happened.
    pub events: Vec<Event>,
}

impl Nemesis {
    /// Torments a cluster that has just been started.
    pub fn new(
        cluster: LocalCluster,
        machine: Arc<Machine>,
        clock: Arc<dyn Clock>,
        journal: Journal,
        schedule: Schedule,
        seed: u64,
        away_max: usize,
    ) -> Self {
        let servers = cluster.servers().count();
        Self {
            session: cluster.session(STATUS_LIMIT),
            leaving: BTreeSet::new(),
            cluster,
            machine,
            clock,
            journal,
            schedule,
            next: None,
            draw: Draw::new(seed, "nemesis", 0),
            away_max,
            servers: vec![Standing::Up; servers],
            due: BTreeMap::new(),
            due_last: 0,
            cuts: BTreeMap::new(),
            counts: BTreeMap::new(),
            expelled: 0,
            events: Vec::new(),
        }
    }

    fn now(&self) -> Duration {
        self.journal.now()
    }

    /// Lets faults happen until `end` (a time of the journal).
    ///
    /// # Errors
    /// A process cannot be started.
    pub async fn torment(&mut self, end: Duration) -> Result<(), Failure> {
        self.draw_next();
        while self.now() < end {
            let act = self.next.as_ref().map(|(at, _)| *at);
            let due = self.due.keys().next().map(|(at, _)| *at);
            let wake = [act, due].into_iter().flatten().min().unwrap_or(end);
            self.wait(wake.min(end)).await;
            self.settle_due()?;
            if act.is_some_and(|at| at <= self.now()) {
                self.act().await?;
                self.draw_next();
            }
        }
        Ok(())
    }

    /// Ends all faults: what is stopped goes on, what is away is started.
    ///
    /// # Errors
    /// A process cannot be started.
    pub fn heal(&mut self) -> Result<(), Failure> {
        self.note("faults end".to_owned());
        for mut due in std::mem::take(&mut self.due).into_values() {
            // Those that leave have had no time to.
            if let Due::Kill { late, .. } = &mut due {
                *late = false;
            }
            self.do_due(due)?;
        }
        Ok(())
    }

    /// Kills everything at once with SIGKILL, and waits until it is gone.
    pub async fn kill_all(&mut self) {
        self.cluster.kill_all();
        for which in self.cluster.all() {
            self.cluster.kill(which).await;
        }
    }

    /// Kills everything at once with SIGKILL and starts it again: a cold start.
    ///
    /// # Errors
    /// A process cannot be started.
    pub async fn cold_start(&mut self) -> Result<(), Failure> {
        self.note("everything is killed, and started again".to_owned());
        self.kill_all().await;
        self.due.clear();
        self.leaving.clear();
        self.servers.fill(Standing::Away);
        for which in self.cluster.all() {
            self.launch(which)?;
        }
        Ok(())
    }

    /// Starts a process. A server has all of its data directories then: it would go on without
    /// those that are away.
    fn launch(&mut self, which: Which) -> Result<(), Failure> {
        if let Which::Server(at) = which {
            self.plug_in(at)?;
        }
        self.cluster.launch(which)
    }

    /// Waits until the cluster is healthy: every process there, every tablet served, nothing to
    /// recover, no segment short of replicas. Starts what ends meanwhile. Gives how long it took.
    ///
    /// # Errors
    /// A process cannot be started; the text says what was missing at `limit`.
    pub async fn healthy(&mut self, limit: Duration) -> Result<Result<Duration, String>, Failure> {
        let began = self.now();
        let session = self.cluster.session(STATUS_LIMIT);
        let mut missing = "the coordinator did not answer".to_owned();
        while self.now() - began < limit {
            self.settle_due()?;
            let looked = tokio::select! {
                biased;
                change = self.cluster.change() => Err(change),
                looked = session.client.cluster_status() => Ok(looked),
            };
            match looked {
                Err(change) => self.changed(change),
                Ok(Err(error)) => missing = error.to_string(),
                Ok(Ok(status)) => match self.missing(&status) {
                    None => return Ok(Ok(self.now() - began)),
                    Some(what) => missing = what,
                },
            }
            self.wait(self.now() + LOOK_PAUSE).await;
        }
        Ok(Err(missing))
    }

    /// What keeps the cluster from being healthy.
    fn missing(&self, status: &ClusterStatus) -> Option<String> {
        for which in self.cluster.all() {
            if self.cluster.announced(which).is_none() {
                return Some(format!("{which:?} is not ready"));
            }
        }
        let ids = self.cluster.servers().filter_map(|server| server.id);
        for id in ids.map(ServerId) {
            if !status.list.is_up(id) {
                return Some(format!("server {id} is not up"));
            }
            let Some(server) = status.servers.iter().find(|server| server.id == id) else {
                return Some(format!("server {id} does not answer"));
            };
            if server.segments_under_replicated > 0 {
                let short = server.segments_under_replicated;
                return Some(format!(
                    "{short} segments of server {id} are short of replicas"
                ));
            }
        }
        if let Some(recovery) = status.recoveries.iter().find(|recovery| !recovery.done) {
            let (crashed, stage) = (recovery.crashed, &recovery.stage);
            return Some(format!("server {crashed} is being recovered: {stage}"));
        }
        let mut tablets = status.tables.iter().flat_map(|table| &table.tablets);
        tablets
            .any(|tablet| tablet.state != TabletState::Normal)
            .then(|| "not every tablet is served".to_owned())
    }

    /// Waits until then, and notes what changes.
    async fn wait(&mut self, until: Duration) {
        while let Some(left) = until.checked_sub(self.now()).filter(|left| !left.is_zero()) {
            let change = tokio::select! {
                biased;
                change = self.cluster.change() => change,
                () = self.clock.sleep(left) => return,
            };
            self.changed(change);
        }
    }

    fn changed(&mut self, change: Change) {
        match change {
            Change::Ready(which) => {
                if let Which::Server(at) = which {
                    self.servers[at] = Standing::Up;
                }
                let id = self.cluster.announced(which).and_then(|a| a.id);
                let id = id.map_or_else(String::new, |id| format!(" as server {id}"));
                self.note(format!("{} is back{id}", name(which)));
            }
            Change::Ended(which, why) => {
                let mut asked = false;
                if let Which::Server(at) = which {
                    self.servers[at] = Standing::Away;
                    asked = self.leaving.remove(&at);
                    self.due.retain(|_, due| !due.kills(at));
                }
                match why.contains(EXPELLED) {
                    true => self.expelled += 1,
                    false if asked => {}
                    false => self.journal.wrong(format!("it ended by itself: {why}")),
                }
                self.note(why);
                // Nothing else is to be done to it.
                self.due.retain(|_, due| *due != Due::Continue(which));
                let pause = self.draw.millis(100, 2_000);
                self.later(pause, Due::Launch(which));
            }
        }
    }

    fn draw_next(&mut self) {
        let now = self.now();
        self.next = self.schedule.next().map(|act| (now + act.after, act));
    }

    /// The act that is next, unless it would leave what the cluster promises to survive.
    async fn act(&mut self) -> Result<(), Failure> {
        let Some((_, act)) = self.next.take() else {
            return Ok(());
        };
        let away = self.servers.iter().filter(|s| **s != Standing::Up).count();
        let calm = away == 0 && self.due.is_empty();
        if !calm && !act.joins {
            return Ok(());
        }
        let victim = match away < self.away_max {
            true => self.server(act.victim),
            false => None,
        };
        let done = match (act.fault, victim) {
            (Fault::Coordinator, _) => match self.coordinator(act.victim) {
                Some(which) if act.shape.is_multiple_of(4) => self.stop(which, &act),
                Some(which) => self.kill(which, &act).await,
                None => false,
            },
            (Fault::Flip, _) => self.flip(),
            (Fault::Kill, Some(at)) => self.kill(Which::Server(at), &act).await,
            (Fault::Stop, Some(at)) => self.stop(Which::Server(at), &act),
            (Fault::Cut, Some(at)) => self.cut(at, &act)?,
            (Fault::Disk, Some(at)) => self.fill(at, &act)?,
            (Fault::Leave, Some(at)) => self.leave(at, &act),
            (Fault::Device, Some(at)) => self.unplug(at, &act),
            (Fault::Move, _) => self.move_tablet(&act).await,
            (
                Fault::Kill | Fault::Stop | Fault::Cut | Fault::Disk | Fault::Leave | Fault::Device,
                None,
            ) => false,
        };
        if done {
            *self.counts.entry(act.fault).or_default() += 1;
        }
        Ok(())
    }

    async fn kill(&mut self, which: Which, act: &Act) -> bool {
        self.note_act(&name(which), "is killed", act);
        self.cluster.kill(which).await;
        self.later(act.lasts, Due::Launch(which));
        if let Which::Server(at) = which {
            self.servers[at] = Standing::Away;
        }
        true
    }

    fn stop(&mut self, which: Which, act: &Act) -> bool {
        if !self.cluster.signal(which, Signal::STOP) {
            return false;
        }
        self.note_act(&name(which), "is stopped", act);
        self.later(act.lasts, Due::Continue(which));
        if let Which::Server(at) = which {
            self.servers[at] = Standing::Hurt;
        }
        true
    }

    /// Cuts ways of a server: all of them or some, in both directions or in one.
    fn cut(&mut self, at: usize, act: &Act) -> Result<bool, Failure> {
        let machine = Arc::clone(&self.machine);
        let Some(links) = &machine.links else {
            return Ok(false);
        };
        let all = self.cluster.all();
        let coordinators = all.len() - self.servers.len();
        let own = Host::Process(coordinators + at);
        let others = (0..all.len())
            .map(Host::Process)
            .filter(|host| *host != own);
        let others: Vec<Host> = others.chain([Host::Clients]).collect();
        let out = |to: &[Host]| -> Vec<Way> { to.iter().map(|to| (own, *to)).collect() };
        let into = |from: &[Host]| -> Vec<Way> { from.iter().map(|from| (*from, own)).collect() };
        let both = |with: &[Host]| [out(with), into(with)].concat();
        let peer = (at + 1 + self.draw.place(self.servers.len() - 1)) % self.servers.len();
        let (what, ways) = match act.shape % 6 {
            0 | 1 => ("is cut off from everybody".to_owned(), both(&others)),
            2 => ("is not heard by anybody".to_owned(), out(&others)),
            3 => ("hears nobody".to_owned(), into(&others)),
            4 => (
                format!("is cut off from {}", name(Which::Server(peer))),
                both(&[Host::Process(coordinators + peer)]),
            ),
            _ => (
                "is cut off from the coordinators".to_owned(),
                both(&others[..coordinators]),
            ),
        };
        for (from, to) in &ways {
            links.cut(*from, *to)?;
        }
        self.note_act(&name(Which::Server(at)), &what, act);
        self.later(act.lasts, Due::Mend(self.due_last + 1));
        self.cuts.insert(self.due_last, (at, ways));
        self.servers[at] = Standing::Hurt;
        Ok(true)
    }

    fn fill(&mut self, at: usize, act: &Act) -> Result<bool, Failure> {
        let machine = Arc::clone(&self.machine);
        let Some(disks) = &machine.disks else {
            return Ok(false);
        };
        disks.fill(at)?;
        self.note_act(&name(Which::Server(at)), "has a full disk", act);
        self.later(act.lasts, Due::Free(at));
        self.servers[at] = Standing::Hurt;
        Ok(true)
    }

    fn flip(&mut self) -> bool {
        let rotten = self.machine.rotten;
        let flipped = disks::flip(&self.machine.folders[rotten], &mut self.draw);
        let Some(place) = flipped else { return false };
        let who = name(Which::Server(rotten));
        self.note(format!("{who}: {place} flips"));
        true
    }

    /// Takes the second data directory of a server away. Files that are open go on.
    fn unplug(&mut self, at: usize, act: &Act) -> bool {
        let (second, away) = second_directory(&self.machine.folders[at]);
        if std::fs::rename(second, away).is_err() {
            return false;
        }
        self.note_act(&name(Which::Server(at)), "is without a data directory", act);
        self.later(act.lasts, Due::PlugIn(at));
        self.servers[at] = Standing::Hurt;
        true
    }

    /// Gives a server its second data directory again, if that is away; whether it was.
    fn plug_in(&mut self, at: usize) -> Result<bool, Failure> {
        let (second, away) = second_directory(&self.machine.folders[at]);
        if !away.exists() {
            return Ok(false);
        }
        std::fs::rename(away, &second)
            .map_err(|error| Failure::new(format!("{}: {error}", second.display())))?;
        self.note(format!(
            "{} has its data directory again",
            name(Which::Server(at))
        ));
        Ok(true)
    }

    /// Asks a server to end in order. It is away from then on.
    fn leave(&mut self, at: usize, act: &Act) -> bool {
        let which = Which::Server(at);
        if !self.cluster.signal(which, Signal::TERM) {
            return false;
        }
        self.note(format!("{} is asked to leave", name(which)));
        self.leaving.insert(at);
        self.servers[at] = Standing::Away;
        let (after, late) = match act.shape.is_multiple_of(4) {
            true => (act.lasts, false),
            false => (LEAVE_LIMIT, true),
        };
        self.later(after, Due::Kill { server: at, late });
        true
    }

    /// Cuts the widest tablet in two, or lets one go to another server. Whether it began: the
    /// cluster may refuse it, and does while it has trouble.
    async fn move_tablet(&mut self, act: &Act) -> bool {
        let what = match self.begin_move(act).await {
            Ok(Some(what)) => what,
            Ok(None) => return false,
            Err(error) => {
                self.note(format!("no tablet moves: {error}"));
                return false;
            }
        };
        self.note(what);
        true
    }

    async fn begin_move(&self, act: &Act) -> Result<Option<String>, ClientError> {
        let client = &self.session.client;
        let number = usize::try_from(act.shape >> 32).unwrap_or(0) % tables::NAMES.len();
        let table = client.table(tables::NAMES[number]).await?;
        let tables = client.list_tables().await?;
        let info = tables.into_iter().find(|info| info.id == table.id());
        let tablets = info.map(|info| info.tablets).unwrap_or_default();
        if tablets.len() < TABLETS_WANTED {
            client.split_tablet(&table, None).await?;
            return Ok(Some("a tablet is cut in two".to_owned()));
        }
        let ids: Vec<u64> = self.cluster.servers().filter_map(|s| s.id).collect();
        let (Some(tablet), Some(to)) = (pick(&tablets, act.victim), pick(&ids, act.shape)) else {
            return Ok(None);
        };
        let range = WhichTablet::Range(tablet.range);
        client.start_migration(&table, range, ServerId(to)).await?;
        Ok(Some(format!("a tablet goes to server {to}")))
    }

    /// A server is not hurt any more. If it was declared dead meanwhile, it notices that by itself
    /// and ends.
    fn recovers(&mut self, at: usize, why: &str) {
        self.note(format!("{} {why}", name(Which::Server(at))));
        if self.servers[at] == Standing::Hurt {
            self.servers[at] = Standing::Up;
        }
    }

    fn note_act(&mut self, who: &str, what: &str, act: &Act) {
        let lasts = act.lasts.as_secs_f64();
        self.note(format!("{who} {what} for {lasts:.1} s"));
    }

    /// A server that is up.
    fn server(&self, victim: u64) -> Option<usize> {
        let up = self.servers.iter().enumerate();
        let up: Vec<usize> = up
            .filter(|(_, standing)| **standing == Standing::Up)
            .map(|(at, _)| at)
            .collect();
        pick(&up, victim)
    }

    /// A coordinator that runs and is not stopped; mostly the one that leads is hit, in the long
    /// run all are.
    fn coordinator(&self, victim: u64) -> Option<Which> {
        let all = self.cluster.all().into_iter();
        let running: Vec<Which> = all
            .filter(|which| matches!(which, Which::Coordinator(_)))
            .filter(|which| self.cluster.announced(*which).is_some())
            .filter(|which| !self.due.values().any(|due| *due == Due::Continue(*which)))
            .collect();
        pick(&running, victim)
    }

    fn later(&mut self, after: Duration, due: Due) {
        self.due_last += 1;
        self.due.insert((self.now() + after, self.due_last), due);
    }

    /// Does what is due.
    fn settle_due(&mut self) -> Result<(), Failure> {
        while let Some(entry) = self
            .due
            .first_entry()
            .filter(|e| e.key().0 <= self.journal.now())
        {
            let due = entry.remove();
            self.do_due(due)?;
        }
        Ok(())
    }

    fn do_due(&mut self, due: Due) -> Result<(), Failure> {
        match due {
            Due::Launch(which) if self.cluster.is_there(which) => Ok(()),
            Due::Launch(which) => self.launch(which),
            Due::Continue(which) => {
                self.cluster.signal(which, Signal::CONT);
                match which {
                    Which::Server(at) => self.recovers(at, "goes on"),
                    Which::Coordinator(_) => self.note(format!("{} goes on", name(which))),
                }
                Ok(())
            }
            Due::Mend(cut) => {
                let machine = Arc::clone(&self.machine);
                if let (Some((at, ways)), Some(links)) = (self.cuts.remove(&cut), &machine.links) {
                    for (from, to) in ways {
                        links.heal(from, to)?;
                    }
                    self.recovers(at, "is heard again");
                }
                Ok(())
            }
            Due::Kill { server, late } => {
                let which = Which::Server(server);
                if late {
                    let who = name(which);
                    self.journal
                        .wrong(format!("{who} did not end after SIGTERM"));
                }
                self.cluster.signal(which, Signal::KILL);
                self.note(format!("{} is killed while it leaves", name(which)));
                Ok(())
            }
            Due::PlugIn(at) => {
                let which = Which::Server(at);
                if !self.plug_in(at)? {
                    return Ok(());
                }
                // One that is up, or on its way, may go on without it.
                if self.cluster.signal(which, Signal::KILL) {
                    self.leaving.insert(at);
                    self.servers[at] = Standing::Away;
                }
                Ok(())
            }
            Due::Free(at) => {
                if let Some(disks) = &self.machine.disks {
                    disks.free(at)?;
                }
                self.recovers(at, "has room on its disk");
                Ok(())
            }
        }
    }

    fn note(&mut self, text: String) {
        let at = self.now().as_secs_f64();
        self.events.push(Event { at, text });
    }
}

/// The second data directory of a server, and where it is while it is away.
fn second_directory(folder: &Path) -> (PathBuf, PathBuf) {
    let second = folder.join(SECOND_DIRECTORY);
    let away = folder.join(format!("{SECOND_DIRECTORY}-away"));
    (second, away)
}

fn name(which: Which) -> String {
    match which {
        Which::Coordinator(at) => format!("coordinator {}", at + 1),
        Which::Server(at) => format!("server process {}", at + 1),
    }
}

fn pick<T: Copy>(of: &[T], victim: u64) -> Option<T> {
    let length = u64::try_from(of.len()).ok().filter(|length| *length > 0)?;
    of.get(usize::try_from(victim % length).ok()?).copied()
}
