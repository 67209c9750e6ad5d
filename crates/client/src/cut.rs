//! Reading all objects of some tables, or of all, as they are at one moment
//! (`docs/backup-and-restore.md`).
//!
//! 1. The owner of each tablet is asked to *track* it: to note its changes. Then its objects are
//!    read.
//! 2. Changed objects are asked for, again and again, until few are left.
//! 3. All owners *hold*: they refuse changes. When all have answered, they *resume*.
//! 4. The last changes are fetched, with objects as they were during the hold.
//!
//! - MOMENT-1: the moment lies behind the last answer to *hold* and before the first request to
//!   *resume*. It counts only if each hash of each table was read from an owner that tracked it
//!   before. That owner must have held it, and have said after the moment that nothing had changed
//!   (CUT-3). So there was a moment at which no server changed any of it.
//! - MOMENT-2: where all tables are wanted, one that was made before the moment is among them: they
//!   are listed behind the moment.
//! - MOMENT-3: an object that is given later stands for an earlier one of its key. A part that was
//!   read and lost its owner is taken back, and comes again.
//! - MOMENT-4: without such a moment there is no end, but an error.
//! - MOMENT-5: a backup that meets another one gives back what it has before it waits. So two that
//!   want the same servers never wait for each other.
//!
//! A caller owns one of these and drives it. It holds one stretch of objects, and changes that the
//! caller has not taken: [`KEPT_BYTES_MAX`], and one answer of each owner.

use crate::client::Client;
use crate::enumerate::{Cursor, Enumeration};
use crate::error::{ClientError, ErrorKind};
use crate::table::Table;
use core::time::Duration;
use futures_util::future::join_all;
use pluvio_env::{Address, Moment};
use pluvio_units::{ClusterId, HashRange, KeyHash, Rank, ServerId, TableId};
use pluvio_wire::{
    ChangedObject, Cut, CutReply, CutStep, EnumeratedObject, FatalKind, Header, Refusal,
    RetryReason, RpcError, TrackedRange, call,
};
use std::collections::{BTreeMap, VecDeque};

/// How often owners are asked for changes while objects are read. Far below the time for which they
/// know a session.
const POLL_EVERY: Duration = Duration::from_secs(1);
/// Owners that have many changes left are asked so often before reading goes on.
const POLLS_MAX: u32 = 16;
/// All hold when no owner has more changes left than these: copying them takes a millisecond.
const FEW_CHANGES: u64 = 256;
/// Rounds of changes after which they hold, if owners do with what is left. Clients change as fast
/// as they are asked then.
const ROUNDS_MAX: u32 = 64;
/// Changes that nobody has taken yet: no more are asked for.
const KEPT_BYTES_MAX: usize = 16 << 20;
/// The first hold lasts no longer. Each next one may last twice as long.
const HOLD_FIRST: Duration = Duration::from_millis(20);
/// The longest hold is this many times as long.
const HOLD_DOUBLINGS: u32 = 5;
/// The longest hold for locks is this many times as long. Transactions that are under way give up
/// meanwhile. A lock whose client is gone takes longer than any hold.
const LOCKED_DOUBLINGS: u32 = 3;
/// How long an answer to a hold may take on its way.
const HOLD_WAY: Duration = Duration::from_millis(100);
/// How long an owner has for any other answer.
const ANSWER_MAX: Duration = Duration::from_secs(2);
/// Failures after which there is no moment.
const FAILURES_MAX: u32 = 120;
/// The longest pause behind a failure: a dead server is recovered in seconds.
const PAUSE_MAX: Duration = Duration::from_secs(1);
/// How often all that was read of a server may be lost. Where changes come faster than they can be
/// fetched, that happens again and again.
const OWNERS_LOST_MAX: u32 = 16;
/// How long another backup is waited for.
const OTHER_MAX: Duration = Duration::from_secs(600);
/// The shortest pause before another backup is looked for again. Chance adds up to as much.
const OTHER_PAUSE: Duration = Duration::from_secs(1);

/// What [`OneMoment::next`] gives.
#[derive(Debug)]
pub enum Part {
    /// Objects of this table come.
    Table(Table),
    /// The table was dropped: nothing of it counts.
    Dropped(TableId),
    /// The next objects of a piece, in the order of their ranks. All of a piece come in that order.
    Objects {
        /// The table.
        table: TableId,
        /// The piece: it has the objects with these hashes.
        range: HashRange,
        /// Some of them.
        objects: Vec<EnumeratedObject>,
        /// Objects of this rank and higher ones come later; `None`: these were the last.
        next: Option<Rank>,
    },
    /// Everything of the piece is to be forgotten, changes included. It comes again.
    Void {
        /// The table.
        table: TableId,
        /// The hashes.
        range: HashRange,
    },
    /// These objects have changed; each of them may lie in a piece that comes later.
    Changed(Vec<ChangedObject>),
    /// Another backup is at work, and is waited for. Given once each time.
    Waits,
    /// All that was given is what the tables were at one moment.
    Done(Standstill),
}

/// How long changes were refused until there was a moment.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Standstill {
    /// The longest time at once, on the server where it took longest.
    pub longest: Duration,
    /// All times together.
    pub in_all: Duration,
    /// How often.
    pub times: u64,
}

/// A piece of a table.
struct Piece {
    range: HashRange,
    owner: ServerId,
    track: u64,
}

struct OfTable {
    table: Table,
    /// By ascending range; they do not overlap.
    pieces: Vec<Piece>,
}

/// An owner of pieces.
struct OwnerAt {
    address: Address,
    cluster: ClusterId,
    /// The name of the session there.
    known_as: u64,
    /// Changes up to this number have come.
    after: u64,
    /// How many have not.
    left: u64,
}

struct Reading {
    table: Table,
    range: HashRange,
    objects: Enumeration,
    /// Of the last object.
    rank: Rank,
    /// Where reading goes on; 0 before it has begun.
    next: Rank,
}

/// See the module.
pub struct OneMoment {
    client: Client,
    session: u64,
    /// Whether all tables are wanted.
    all: bool,
    tables: Vec<OfTable>,
    owners: BTreeMap<ServerId, OwnerAt>,
    /// Owners that nothing is wanted of any more, and that have not been told.
    let_go: Vec<(ServerId, OwnerAt)>,
    reading: Option<Reading>,
    given: VecDeque<Part>,
    /// Of changes among what is given.
    given_bytes: usize,
    polled: Moment,
    /// Rounds of changes since everything was read.
    rounds: u32,
    is_caught_up: bool,
    holds: u64,
    held: Standstill,
    /// Holds that were too short.
    holds_too_short: u32,
    /// Holds in which transactions still had keys locked at the end.
    holds_locked: u32,
    failures: u32,
    owners_lost: u32,
    /// Since when another backup is waited for.
    waits_since: Option<Moment>,
    last_failure: String,
    is_over: bool,
}

impl Client {
    /// Reads tables as they are at one moment, while they are used. `all`: these are all tables
    /// that there are, and those that others make meanwhile are wanted, too.
    #[must_use]
    pub fn one_moment(&self, tables: Vec<Table>, all: bool) -> OneMoment {
        let parts = &self.shared.parts;
        let given = tables.iter().cloned().map(Part::Table).collect();
        let of_table = |table| OfTable {
            table,
            pieces: Vec::new(),
        };
        OneMoment {
            client: self.clone(),
            session: parts.rng.next_u64().max(1),
            all,
            tables: tables.into_iter().map(of_table).collect(),
            owners: BTreeMap::new(),
            let_go: Vec::new(),
            reading: None,
            given,
            given_bytes: 0,
            polled: parts.clock.now(),
            rounds: 0,
            is_caught_up: false,
            holds: 0,
            held: Standstill::default(),
            holds_too_short: 0,
            holds_locked: 0,
            failures: 0,
            owners_lost: 0,
            waits_since: None,
            last_failure: String::new(),
            is_over: false,
        }
    }
}

impl OneMoment {
    /// The next part; nothing comes behind [`Part::Done`], which is given again.
    ///
    /// # Errors
    /// See [`Client`]. Without a moment it is [`ErrorKind::TimedOut`], and nothing that was given
    /// counts (MOMENT-4). [`FatalKind::Unsupported`]: a server is older than that.
    pub async fn next(&mut self) -> Result<Part, ClientError> {
        loop {
            if let Some(part) = self.given.pop_front() {
                if let Part::Changed(objects) = &part {
                    self.given_bytes -= bytes_of(objects);
                }
                return Ok(part);
            }
            if self.is_over || self.tables.is_empty() {
                return Ok(Part::Done(self.held));
            }
            self.tend().await?;
            if self.reading.is_some() {
                self.read_on().await?;
            } else if let Some((table, gap)) = self.gap() {
                (self.rounds, self.is_caught_up) = (0, false);
                self.begin_piece(&table, gap).await?;
            } else if !self.is_caught_up {
                self.catch_up().await?;
            } else {
                self.find_moment().await?;
            }
        }
    }

    /// Asks for changes, if they were not asked for lately, or if many are left. To be called at
    /// least every ten seconds by a caller that does something else meanwhile. Answers are kept
    /// for [`OneMoment::next`]; where that is much, owners only hear that the caller is there.
    ///
    /// # Errors
    /// See [`OneMoment::next`].
    pub async fn tend(&mut self) -> Result<(), ClientError> {
        self.say_goodbye().await;
        if self.owners.is_empty() {
            return Ok(());
        }
        for _ in 0..POLLS_MAX {
            let is_behind = self.owners.values().any(|owner| owner.left > FEW_CHANGES);
            if self.given_bytes >= KEPT_BYTES_MAX || !(self.is_poll_due() || is_behind) {
                break;
            }
            self.poll().await?;
        }
        if !self.is_poll_due() {
            return Ok(());
        }
        for (server, answer) in self.ask_all(CutStep::Stay, ANSWER_MAX).await {
            if let Err(error) = answer {
                self.take_failure(server, &error)?;
            }
        }
        self.polled = self.client.shared.parts.clock.now();
        Ok(())
    }

    fn is_poll_due(&self) -> bool {
        let now = self.client.shared.parts.clock.now();
        now.since(self.polled) >= POLL_EVERY
    }

    /// Lets the servers forget it, for a caller that gives up. Otherwise they do soon.
    pub async fn end(&mut self) {
        self.let_go.extend(core::mem::take(&mut self.owners));
        self.say_goodbye().await;
    }

    /// Tells owners that nothing is wanted of them any more.
    async fn say_goodbye(&mut self) {
        let let_go = core::mem::take(&mut self.let_go);
        let this = &*self;
        let told = let_go.iter().map(|(server, owner)| async move {
            // One that does not hear it forgets the session by itself.
            let _answer = this.ask(*server, owner, (CutStep::End, ANSWER_MAX)).await;
        });
        join_all(told).await;
    }

    async fn ask(
        &self,
        server: ServerId,
        owner: &OwnerAt,
        (step, limit): (CutStep, Duration),
    ) -> Result<CutReply, RpcError> {
        let request = Cut {
            session: self.session,
            known_as: owner.known_as,
            step,
        };
        let header = Header::within(owner.cluster, server);
        let network = &*self.client.shared.parts.network;
        call(network, &owner.address, header, &request, limit).await
    }

    /// The same of all owners, at once.
    async fn ask_all(
        &self,
        step: CutStep,
        limit: Duration,
    ) -> Vec<(ServerId, Result<CutReply, RpcError>)> {
        let asked = self.owners.iter().map(|(server, owner)| async move {
            (*server, self.ask(*server, owner, (step, limit)).await)
        });
        join_all(asked).await
    }

    /// The first hash that no piece has, with those behind it.
    fn gap(&self) -> Option<(Table, HashRange)> {
        self.tables.iter().find_map(|of| {
            let mut next = KeyHash(0);
            for piece in &of.pieces {
                if next < piece.range.first {
                    let last = KeyHash(piece.range.first.0 - 1);
                    return Some((of.table.clone(), HashRange::new(next, last)));
                }
                next = KeyHash(piece.range.last.0.checked_add(1)?);
            }
            let rest = HashRange::new(next, HashRange::ALL.last);
            Some((of.table.clone(), rest))
        })
    }

    fn of(&mut self, table: TableId) -> Option<&mut OfTable> {
        self.tables.iter_mut().find(|of| of.table.id() == table)
    }

    /// Has the tablet at the start of a gap tracked, and begins to read it.
    async fn begin_piece(&mut self, table: &Table, gap: HashRange) -> Result<(), ClientError> {
        let client = self.client.clone();
        let mut attempts = client.attempts();
        loop {
            let map = table.map();
            let step = CutStep::Track {
                table: table.id(),
                hash: gap.first,
            };
            let again = if let Some(tablet) = map.locate(gap.first) {
                let known = self.owners.get(&tablet.owner);
                let owner = OwnerAt {
                    address: tablet.address.clone(),
                    cluster: table.cluster(),
                    known_as: known.map_or(0, |known| known.known_as),
                    after: known.map_or(0, |known| known.after),
                    left: 0,
                };
                let limit = attempts.next_limit();
                match self.ask(tablet.owner, &owner, (step, limit)).await {
                    Ok(reply) => {
                        self.waits_since = None;
                        return self.take_piece((table, gap), tablet.owner, owner, &reply);
                    }
                    Err(error) if is_stale(&error) => {
                        self.last_failure = format!("server {}: {error}", tablet.owner);
                        return self.lose_owner(tablet.owner);
                    }
                    Err(error) if is_busy(&error) => return self.wait_for_another().await,
                    Err(error) => client.after_failure(error, false, &mut attempts)?,
                }
            } else {
                let why = format!("a tablet of table {:?} is not served", table.name());
                attempts.failed(why, Some(RetryReason::TabletNotReady));
                crate::client::Again {
                    refresh: true,
                    ..crate::client::Again::AT_ONCE
                }
            };
            attempts.pause(again.after).await?;
            if again.refresh {
                self.refresh(table, map.generation, &mut attempts).await?;
                if self.of(table.id()).is_none() {
                    return Ok(());
                }
            }
            self.tend().await?;
        }
    }

    /// Gives back what it has, and waits for another backup (MOMENT-5).
    async fn wait_for_another(&mut self) -> Result<(), ClientError> {
        let client = self.client.clone();
        let parts = &client.shared.parts;
        let now = parts.clock.now();
        pluvio_units::mark("cut-backup-waits");
        self.void_where(|_, _| true);
        self.say_goodbye().await;
        match self.waits_since {
            None => {
                self.waits_since = Some(now);
                self.given.push_back(Part::Waits);
            }
            Some(since) if now.since(since) > OTHER_MAX => {
                return Err(ClientError::TimedOut {
                    limit: OTHER_MAX,
                    reason: Some(RetryReason::OtherBackup),
                    last: "another backup was at work all the time".to_owned(),
                    maybe_executed: false,
                });
            }
            Some(_) => {}
        }
        let more = parts.rng.below(OTHER_PAUSE.as_millis() as u64);
        let pause = OTHER_PAUSE + Duration::from_millis(more);
        parts.clock.sleep(pause).await;
        Ok(())
    }

    async fn refresh(
        &mut self,
        table: &Table,
        seen: u64,
        attempts: &mut crate::retry::Attempts<'_>,
    ) -> Result<(), ClientError> {
        match self.client.refresh(table, seen, attempts).await {
            Err(error) if error.kind() == ErrorKind::NoSuchTable => {
                self.drop_table(table.id());
                Ok(())
            }
            refreshed => refreshed,
        }
    }

    fn take_piece(
        &mut self,
        (table, gap): (&Table, HashRange),
        server: ServerId,
        owner: OwnerAt,
        reply: &CutReply,
    ) -> Result<(), ClientError> {
        let tracked = reply.tracked.first();
        let tracked = tracked.filter(|tracked| tracked.range.contains(gap.first));
        let Some(tracked) = tracked else {
            let why = "a server tracks something else than it was asked for";
            return Err(ClientError::Protocol(why.to_owned()));
        };
        let range = HashRange::new(gap.first, tracked.range.last.min(gap.last));
        let after = match owner.known_as == reply.known_as {
            true => owner.after,
            false => 0,
        };
        let known_as = reply.known_as;
        let known = OwnerAt {
            known_as,
            after,
            ..owner
        };
        self.owners.insert(server, known);
        let piece = Piece {
            range,
            owner: server,
            track: tracked.track,
        };
        let Some(of) = self.of(table.id()) else {
            return Ok(());
        };
        let at = of.pieces.partition_point(|p| p.range.first < range.first);
        of.pieces.insert(at, piece);
        let kind = table.hash_kind();
        let from = Cursor {
            stretch: range,
            ..Cursor::before(kind, range.first)
        };
        self.reading = Some(Reading {
            table: table.clone(),
            range,
            objects: self.client.enumerate_from(table, from),
            rank: Rank(0),
            next: Rank(0),
        });
        Ok(())
    }

    async fn read_on(&mut self) -> Result<(), ClientError> {
        let Some(reading) = &mut self.reading else {
            return Ok(());
        };
        let (table, range) = (reading.table.clone(), reading.range);
        let mut objects = match reading.objects.next_stretch().await {
            Ok(objects) => objects,
            Err(error) if error.kind() == ErrorKind::NoSuchTable => {
                self.drop_table(table.id());
                return Ok(());
            }
            Err(error) => return Err(error),
        };
        let kind = table.hash_kind();
        objects.retain(|object| range.contains(table.hash(&object.key)));
        let mut is_in_order = true;
        for object in &objects {
            let rank = kind.rank(table.hash(&object.key));
            is_in_order &= reading.rank <= rank;
            reading.rank = rank;
        }
        let next = match reading.objects.cursor() {
            Some(next) if next.stretch.first <= range.last => Some(next.rank),
            Some(_) | None => None,
        };
        is_in_order &= next.is_none_or(|next| reading.next < next);
        if !is_in_order {
            // A tablet of slots was cut while it was read.
            self.void(table.id(), range);
            return Ok(());
        }
        match next {
            Some(next) => reading.next = next,
            None => self.reading = None,
        }
        self.given.push_back(Part::Objects {
            table: table.id(),
            range,
            objects,
            next,
        });
        Ok(())
    }

    /// Takes a piece back (MOMENT-3).
    fn void(&mut self, table: TableId, range: HashRange) {
        if let Some(of) = self.of(table) {
            of.pieces.retain(|piece| piece.range != range);
        }
        let is_it = |reading: &Reading| (reading.table.id(), reading.range) == (table, range);
        if self.reading.as_ref().is_some_and(is_it) {
            self.reading = None;
        }
        self.given.push_back(Part::Void { table, range });
    }

    /// Takes back the pieces for which this holds.
    fn void_where(&mut self, is_void: impl Fn(&Table, &Piece) -> bool) -> bool {
        let mut all = Vec::new();
        for of in &self.tables {
            let void = of.pieces.iter().filter(|piece| is_void(&of.table, piece));
            all.extend(void.map(|piece| (of.table.id(), piece.range)));
        }
        for (table, range) in &all {
            pluvio_units::mark("cut-piece-read-again");
            self.void(*table, *range);
        }
        let is_idle = |server: &ServerId| {
            let mut pieces = self.tables.iter().flat_map(|of| &of.pieces);
            pieces.all(|piece| piece.owner != *server)
        };
        let idle: Vec<ServerId> = self.owners.keys().copied().filter(is_idle).collect();
        for server in idle {
            let owner = self.owners.remove(&server);
            self.let_go.extend(owner.map(|owner| (server, owner)));
        }
        !all.is_empty()
    }

    /// A server does not know the session any more.
    ///
    /// # Errors
    /// That happens too often.
    fn lose_owner(&mut self, server: ServerId) -> Result<(), ClientError> {
        self.owners.remove(&server);
        self.void_where(|_, piece| piece.owner == server);
        self.owners_lost += 1;
        if self.owners_lost <= OWNERS_LOST_MAX {
            return Ok(());
        }
        Err(self.without_moment())
    }

    fn without_moment(&self) -> ClientError {
        ClientError::TimedOut {
            limit: PAUSE_MAX * FAILURES_MAX,
            reason: None,
            last: format!(
                "no moment was found at which all servers stood still: {}",
                self.last_failure
            ),
            maybe_executed: false,
        }
    }

    fn drop_table(&mut self, table: TableId) {
        self.tables.retain(|of| of.table.id() != table);
        if self.reading.as_ref().is_some_and(|r| r.table.id() == table) {
            self.reading = None;
        }
        self.given.push_back(Part::Dropped(table));
    }

    /// Asks all owners for changes once. Gives whether all have answered.
    async fn poll(&mut self) -> Result<bool, ClientError> {
        let this = &*self;
        let asked = this.owners.iter().map(|(server, owner)| async move {
            let step = (CutStep::Changes(owner.after), ANSWER_MAX);
            (*server, this.ask(*server, owner, step).await)
        });
        let answers = join_all(asked).await;
        let mut all = true;
        for (server, answer) in answers {
            match answer {
                Ok(reply) => {
                    if let Some(owner) = self.owners.get_mut(&server) {
                        owner.after = reply.next.unwrap_or(owner.after);
                        owner.left = reply.left;
                    }
                    self.give(reply.objects);
                }
                Err(error) => {
                    all = false;
                    self.take_failure(server, &error)?;
                }
            }
        }
        self.polled = self.client.shared.parts.clock.now();
        Ok(all)
    }

    fn give(&mut self, changed: Vec<ChangedObject>) {
        if !changed.is_empty() {
            self.given_bytes += bytes_of(&changed);
            self.given.push_back(Part::Changed(changed));
        }
    }

    /// # Errors
    /// No retry helps.
    fn take_failure(&mut self, server: ServerId, error: &RpcError) -> Result<(), ClientError> {
        self.last_failure = format!("server {server}: {error}");
        if is_stale(error) {
            return self.lose_owner(server);
        }
        match error {
            // Another process has this address now.
            RpcError::Refused(Refusal::Refresh) => self.lose_owner(server),
            RpcError::Refused(Refusal::Retry { .. }) | RpcError::Call(_) => Ok(()),
            RpcError::Refused(refusal @ (Refusal::Fatal { .. } | Refusal::Rejected { .. })) => {
                Err(ClientError::from_final(refusal.clone()))
            }
            RpcError::BadReply(..) => Err(ClientError::Protocol(error.to_string())),
        }
    }

    /// Asks for changes until few are left.
    async fn catch_up(&mut self) -> Result<(), ClientError> {
        if !self.poll().await? {
            return self.failed().await;
        }
        self.rounds += 1;
        let most = self.owners.values().map(|owner| owner.left).max();
        self.is_caught_up = most.unwrap_or(0) <= FEW_CHANGES || self.rounds >= ROUNDS_MAX;
        Ok(())
    }

    /// Waits a moment behind a failure, and looks where tablets are.
    async fn failed(&mut self) -> Result<(), ClientError> {
        self.failures += 1;
        (self.rounds, self.is_caught_up) = (0, false);
        if self.failures > FAILURES_MAX {
            self.end().await;
            return Err(self.without_moment());
        }
        let pause = Duration::from_millis(10 << self.failures.min(10)).min(PAUSE_MAX);
        let client = self.client.clone();
        client.shared.parts.clock.sleep(pause).await;
        let infos = client.list_tables().await?;
        let gone = |of: &&OfTable| infos.iter().all(|info| info.id != of.table.id());
        let gone: Vec<_> = self
            .tables
            .iter()
            .filter(gone)
            .map(|of| of.table.id())
            .collect();
        for table in gone {
            self.drop_table(table);
        }
        for info in &infos {
            client.learn(info);
        }
        self.void_where(|table, piece| {
            let mut tablets = table.tablets().into_iter();
            tablets.any(|t| t.range.overlaps(&piece.range) && t.owner != piece.owner)
        });
        Ok(())
    }

    /// Lets all hold at once.
    async fn find_moment(&mut self) -> Result<(), ClientError> {
        self.holds += 1;
        let too_short = self.holds_too_short.min(HOLD_DOUBLINGS);
        let limit = HOLD_FIRST * (1 << too_short.max(self.holds_locked.min(LOCKED_DOUBLINGS)));
        let hold = CutStep::Hold {
            number: self.holds,
            limit_us: u32::try_from(limit.as_micros()).unwrap_or(u32::MAX),
        };
        let held = self.ask_all(hold, limit + HOLD_WAY).await;
        // The moment is here (MOMENT-1).
        let resumed = self.ask_all(CutStep::Resume(self.holds), ANSWER_MAX).await;
        let (mut is_held, mut is_locked) = (true, false);
        let (mut ranges, mut longest) = (BTreeMap::new(), 0);
        for (server, answer) in held {
            match answer {
                Ok(reply) => {
                    ranges.insert(server, reply.tracked);
                }
                Err(error) => {
                    is_held = false;
                    is_locked |= is_refused(&error, RetryReason::Locked);
                    self.take_failure(server, &error)?;
                }
            }
        }
        for (server, answer) in resumed {
            match answer {
                Ok(reply) => {
                    longest = reply.held_us.max(longest);
                    if !reply.held && is_held {
                        is_held = false;
                        self.last_failure = format!("server {server}: the time was too short");
                    }
                }
                Err(error) => {
                    is_held = false;
                    if !matches!(&error, RpcError::Refused(Refusal::Retry { .. })) {
                        self.take_failure(server, &error)?;
                    }
                }
            }
        }
        let longest = Duration::from_micros(longest);
        self.held = Standstill {
            longest: self.held.longest.max(longest),
            in_all: self.held.in_all + longest,
            times: self.holds,
        };
        if self.void_where(|table, piece| is_not_tracked(&ranges, table, piece)) {
            is_held = false;
            self.last_failure = "a tablet has moved".to_owned();
        }
        let mut pieces = self.tables.iter().flat_map(|of| &of.pieces);
        is_held &= pieces.all(|piece| ranges.contains_key(&piece.owner));
        if !is_held {
            pluvio_units::mark("cut-hold-in-vain");
            match is_locked {
                true => self.holds_locked += 1,
                false => self.holds_too_short += 1,
            }
            return self.failed().await;
        }
        if self.all && self.has_new_tables().await? {
            return Ok(());
        }
        let Some(copies) = self.copies().await? else {
            return self.failed().await;
        };
        self.end().await;
        self.give(copies);
        self.is_over = true;
        Ok(())
    }

    /// Adds the tables that others have made (MOMENT-2).
    async fn has_new_tables(&mut self) -> Result<bool, ClientError> {
        let infos = self.client.list_tables().await?;
        let mut is_any = false;
        for info in infos {
            if self.of(info.id).is_none() {
                is_any = true;
                let table = self.client.learn(&info);
                self.given.push_back(Part::Table(table.clone()));
                let pieces = Vec::new();
                self.tables.push(OfTable { table, pieces });
            }
        }
        Ok(is_any)
    }

    /// The copies that all owners have made during the hold; `None` when one does not give them.
    async fn copies(&mut self) -> Result<Option<Vec<ChangedObject>>, ClientError> {
        let this = &*self;
        let asked = this.owners.iter().map(|(server, owner)| async move {
            let (mut all, mut from) = (Vec::new(), Some(0));
            while let Some(next) = from {
                let step = (CutStep::Copies(next), 2 * ANSWER_MAX);
                match this.ask(*server, owner, step).await {
                    Ok(reply) => {
                        from = reply.next.filter(|_| !reply.objects.is_empty());
                        all.extend(reply.objects);
                    }
                    Err(error) => return (*server, Err(error)),
                }
            }
            (*server, Ok(all))
        });
        let mut copies = Vec::new();
        let mut is_whole = true;
        for (server, copied) in join_all(asked).await {
            match copied {
                Ok(some) => copies.extend(some),
                Err(error) => {
                    is_whole = false;
                    self.take_failure(server, &error)?;
                }
            }
        }
        Ok(is_whole.then_some(copies))
    }
}

/// Whether an owner has held, and has not tracked a piece since it was read.
fn is_not_tracked(
    held: &BTreeMap<ServerId, Vec<TrackedRange>>,
    table: &Table,
    piece: &Piece,
) -> bool {
    let wanted = TrackedRange {
        table: table.id(),
        range: piece.range,
        track: piece.track,
    };
    held.get(&piece.owner)
        .is_some_and(|held| !wanted.is_within(held))
}

fn bytes_of(objects: &[ChangedObject]) -> usize {
    let size = |object: &ChangedObject| {
        object.key.len() + object.now.as_ref().map_or(0, |now| now.value.len())
    };
    objects.iter().map(size).sum()
}

/// Whether a server does not know the session any more.
fn is_stale(error: &RpcError) -> bool {
    match error {
        RpcError::Refused(Refusal::Fatal { kind, .. }) => *kind == FatalKind::Stale,
        RpcError::Refused(Refusal::Refresh | Refusal::Retry { .. } | Refusal::Rejected { .. })
        | RpcError::Call(_)
        | RpcError::BadReply(..) => false,
    }
}

/// Whether a server has another backup's session.
fn is_busy(error: &RpcError) -> bool {
    is_refused(error, RetryReason::OtherBackup)
}

fn is_refused(error: &RpcError, reason: RetryReason) -> bool {
    match error {
        RpcError::Refused(Refusal::Retry { why, .. }) => *why == reason,
        RpcError::Refused(Refusal::Refresh | Refusal::Fatal { .. } | Refusal::Rejected { .. })
        | RpcError::Call(_)
        | RpcError::BadReply(..) => false,
    }
}
