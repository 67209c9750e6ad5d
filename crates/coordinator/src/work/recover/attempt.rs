//! One recovery, attempt by attempt; the head of `recover` says what its steps are.

use super::anew::{begin_anew, is_volatile};
use super::attempts::{Attempted, Attempts, Partition};
use super::changes::{LogEnds, Prepared};
use super::copies::{Thickened, ThinSince};
use super::experience::Experience;
use super::history::History;
use super::inventory::{announce, collect, collect_from};
use super::masters::{FailedMasters, Masters, Rooms};
use super::partition::{expected, first_part, first_parts_first, of_one_class, partition};
use super::plan::{Inventory, LogMap, Thin, reconstruct_without};
use super::replay::Replay;
use crate::context::Context;
use crate::state::{State, WeakLogs};
use core::time::Duration;
use futures_util::future::join;
use pluvio_env::{Moment, timeout};
use pluvio_units::{RecoveryId, ServerId};
use pluvio_wire::{RecoveryStage, TableClass, TabletSpec, TabletState};
use std::collections::BTreeSet;

/// What an attempt led to.
enum AttemptEnd {
    /// The server has no tablets left and is not listed any more.
    Over,
    /// Something is left; try again after this time, or when the server list changes.
    Again(Duration),
}

/// The replicas that backups have.
struct Replicas {
    inventories: Vec<Inventory>,
    /// When backups had fenced the crashed server, and everybody who may have answered reads since.
    fenced: Moment,
    /// Crashed masters that may have answered reads since, and that backups have fenced, too.
    readers: BTreeSet<ServerId>,
}

/// The log of an attempt.
struct Found {
    log: LogMap,
    ends: LogEnds,
    /// No weak log was left out (COORD-21).
    is_whole: bool,
}

/// Which ends of logs count as settled (COORD-13).
#[derive(Clone, Copy)]
enum Settled {
    /// Those that bind all attempts, since something was read up to them.
    Binding,
    /// All that are stored: those of this attempt, once it has begun.
    Stored,
}

/// Which logs need not be complete.
#[derive(Clone, Copy)]
enum MayLack {
    Nothing,
    /// Those of weak classes, if tablets of others wait (COORD-21).
    WeakLogs,
}

/// The partitions of an attempt.
struct Dealt {
    recovery: RecoveryId,
    /// How many masters they have.
    masters: usize,
    /// The tablets of each, with its master. A master has one, or a first part and the rest. First
    /// parts stand in front, since masters replay their partitions in the order of these numbers.
    partitions: Vec<(Vec<TabletSpec>, ServerId)>,
}

/// The answers of backups when the log was not complete. A fenced backup gets no further replica
/// of the crashed server. So only backups that are new have to be asked until the log is complete.
/// That is done while several servers are recovered. In a cold start each recovery asks each backup
/// once, and not at each change of the server list.
struct Known {
    inventories: Vec<Inventory>,
    /// When all were asked.
    asked: Moment,
}

/// After this time all backups are asked again: a disk may be readable again.
const ASK_ALL: Duration = Duration::from_secs(5);
/// The same for each backup and each recovery under way, so that a coordinator has time for more.
const ASK_ALL_EACH: Duration = Duration::from_micros(20);
/// After a change of the server list more changes follow. So the next look at a log that is not
/// complete waits this long for each recovery under way. That is so if they are more than a few.
const LOOK_EACH: Duration = Duration::from_millis(1);
const LOOK_MAX: Duration = Duration::from_millis(250);
const FEW: usize = 4;

/// The recovery of one server, as its task holds it.
pub(super) struct Recovery<'a> {
    context: &'a Context,
    attempts: &'a Attempts,
    history: &'a History,
    crashed: ServerId,
    began: Moment,
    /// Which masters may be asked.
    failed: FailedMasters,
    /// How finely what is left is cut.
    experience: Experience,
    /// Since the log was found to be incomplete.
    known: Option<Known>,
    thin_since: ThinSince,
}

/// Whether a table needs no log of a weak class that has replicas.
fn is_not_weak(class: Option<TableClass>) -> bool {
    class.is_none_or(|class| !class.weaker || class.is_volatile())
}

impl State {
    /// Whether a crashed server has tablets to be recovered that need no log of a weak class.
    fn waits_for_more_than_weak(&self, crashed: ServerId) -> bool {
        self.tables.values().any(|table| {
            let mut tablets = table.tablets.iter();
            !table.dropping
                && is_not_weak(table.class)
                && tablets.any(|t| t.owner == crashed && t.state == TabletState::Recovering)
        })
    }
}

impl<'a> Recovery<'a> {
    pub(super) fn new(
        context: &'a Context,
        attempts: &'a Attempts,
        history: &'a History,
        crashed: ServerId,
    ) -> Self {
        Self {
            context,
            attempts,
            history,
            crashed,
            began: context.now(),
            failed: FailedMasters::default(),
            experience: Experience::default(),
            known: None,
            thin_since: ThinSince::default(),
        }
    }

    /// Attempts until nothing is left.
    pub(super) async fn run(mut self, is_volatile: bool) {
        if is_volatile {
            // No backup fences it. It serves by the coordinator's word, which it has had no more
            // since it was declared dead (LEASE-4).
            self.enter(RecoveryStage::AwaitingLease);
            self.context.sleep(self.context.options.zombie_grace).await;
        }
        loop {
            let version = self.context.state().globals.list_version;
            let outcome = match self.attempt().await {
                Ok(attempted) => self.learn(&attempted),
                Err(outcome) => outcome,
            };
            let AttemptEnd::Again(pause) = outcome else {
                return;
            };
            let ledger = &self.context.ledger;
            let changed = ledger.until(|state| state.globals.list_version != version);
            if pause > Duration::ZERO {
                // Both ends mean the same: look again.
                let _ = timeout(&*self.context.env.clock, pause, changed).await;
                let crowd = self.crowd();
                if self.known.is_some() && crowd > FEW {
                    let wait = LOOK_EACH * u32::try_from(crowd).unwrap_or(u32::MAX);
                    self.context.sleep(wait.min(LOOK_MAX)).await;
                }
            }
        }
    }

    /// Servers that are recovered.
    fn crowd(&self) -> usize {
        let state = self.context.state();
        state.servers.len() - state.up().count()
    }

    /// Looks whether backups that are new make a log complete that was not (`Known`).
    ///
    /// # Errors
    /// They do not.
    async fn look_at_new(&mut self) -> Result<(), AttemptEnd> {
        let Some(mut known) = self.known.take() else {
            return Ok(());
        };
        let (state, crowd) = (self.context.state(), self.crowd());
        let calls = u32::try_from(state.up().count() * crowd).unwrap_or(u32::MAX);
        let is_old = self.context.now().since(known.asked) >= ASK_ALL.max(ASK_ALL_EACH * calls);
        if is_old || crowd <= FEW {
            return Ok(());
        }
        known.inventories.retain(|i| state.is_up(i.backup));
        let asked: BTreeSet<ServerId> = known.inventories.iter().map(|i| i.backup).collect();
        let new = state.up().filter(|info| !asked.contains(&info.id));
        let new = collect_from(self.context, self.crashed, new.cloned().collect()).await;
        known.inventories.extend(new);
        known.inventories.sort_by_key(|i| i.backup);
        let replicas = Replicas {
            inventories: known.inventories,
            fenced: self.context.now(),
            readers: BTreeSet::new(),
        };
        let log = self.complete_log(&replicas, MayLack::WeakLogs, Settled::Binding);
        let Err(incomplete) = log else { return Ok(()) };
        pluvio_units::mark("recovery-asks-new-backups-only");
        self.known = Some(Known {
            inventories: replicas.inventories,
            ..known
        });
        Err(incomplete)
    }

    /// One attempt.
    ///
    /// # Errors
    /// It ended before there was anything to replay.
    async fn attempt(&mut self) -> Result<Attempted, AttemptEnd> {
        let mut tablets = self.prepare().await?;
        self.look_at_new().await?;
        let asked = self.context.now();
        let mut replicas = self.collect().await?;
        let mut found = self.complete_log(&replicas, MayLack::WeakLogs, Settled::Binding);
        if let Ok(Found { log, .. }) = &found
            && self.thicken(log, &replicas).await?
        {
            replicas = self.collect().await?;
            found = self.complete_log(&replicas, MayLack::WeakLogs, Settled::Binding);
            if let Ok(Found { log, .. }) = &found
                && !log.thin.is_empty()
            {
                // Not all copies were made.
                return Err(self.await_copies(&log.thin));
            }
        }
        let found = match found {
            Ok(found) => found,
            Err(incomplete) => {
                let inventories = replicas.inventories;
                self.known = Some(Known { inventories, asked });
                return Err(incomplete);
            }
        };
        if !found.is_whole {
            // COORD-21.
            pluvio_units::mark("recovery-without-weak-logs");
            tablets.retain(|tablet| is_not_weak(tablet.class));
        }
        let (volatile, tablets): (Vec<_>, Vec<_>) = tablets.into_iter().partition(is_volatile);
        let anew = begin_anew(self.context, self.crashed, volatile, replicas.fenced);
        let (recovered, ()) = join(self.recover_tablets(&tablets, found, replicas), anew).await;
        recovered
    }

    /// The rest of an attempt: what has replicas is replayed.
    async fn recover_tablets(
        &mut self,
        tablets: &[TabletSpec],
        found: Found,
        replicas: Replicas,
    ) -> Result<Attempted, AttemptEnd> {
        let Found {
            log,
            ends,
            is_whole,
        } = found;
        if tablets.is_empty() {
            return Err(AttemptEnd::Again(Duration::ZERO));
        }
        let masters = self.choose_masters(tablets, &log, &replicas)?;
        let dealt = self.deal(tablets, &log, masters, &replicas, ends).await?;
        let replicas = self.announce(&dealt, replicas).await;
        // As it is stored by now.
        let may_lack = match is_whole {
            true => MayLack::Nothing,
            false => MayLack::WeakLogs,
        };
        let found = self.complete_log(&replicas, may_lack, Settled::Stored)?;
        Ok(self.replay(dealt, &replicas, found.log).await)
    }

    /// Has the ends of the logs copied that too few backups have (COORD-13). Says whether the
    /// replicas have changed.
    ///
    /// # Errors
    /// Nobody has taken a copy yet.
    async fn thicken(&mut self, log: &LogMap, replicas: &Replicas) -> Result<bool, AttemptEnd> {
        let (context, found) = (self.context, &replicas.inventories);
        let thickened = self
            .thin_since
            .thicken(context, self.crashed, &log.thin, found);
        match thickened.await {
            Thickened::GoOn => Ok(false),
            Thickened::AskAgain => Ok(true),
            Thickened::Wait => Err(self.await_copies(&log.thin)),
        }
    }

    /// The attempt ends here: too few backups have an end, and others take no copy now.
    fn await_copies(&self, thin: &[Thin]) -> AttemptEnd {
        let segments = thin.iter().map(|thin| thin.segment.to_string());
        let segments = segments.collect::<Vec<_>>().join(", ");
        self.await_backups(&format!(
            "too few backups have the end of the log (segment {segments}), and no other takes a copy"
        ));
        self.look_again()
    }

    /// The recovery is at this stage from now on.
    fn enter(&self, stage: RecoveryStage) {
        tracing::debug!(crashed = %self.crashed, stage = stage.name(), "recovery");
        self.history
            .note(self.crashed, |status| status.stage = stage);
    }

    /// The attempt ends here, and the next one begins in a while.
    fn look_again(&self) -> AttemptEnd {
        AttemptEnd::Again(self.context.options.incomplete_retry)
    }

    /// Settles what needs no recovery; gives what does.
    async fn prepare(&self) -> Result<Vec<TabletSpec>, AttemptEnd> {
        let crashed = self.crashed;
        let now_s = self.context.env.clock.unix_seconds();
        let rng = self.context.env.rng.clone();
        let prepare = self
            .context
            .ledger
            .change(move |state| Ok(state.prepare_recovery(crashed, now_s, &*rng)));
        match prepare.await {
            Ok(Prepared::Tablets(tablets)) => {
                self.history.note(crashed, |s| s.attempts += 1);
                Ok(tablets)
            }
            Ok(Prepared::Removed) => Err(AttemptEnd::Over),
            Ok(Prepared::Wait) => {
                self.enter(RecoveryStage::Reassigning);
                Err(self.look_again())
            }
            Ok(Prepared::Lost(count)) => {
                tracing::warn!(
                    %crashed, tablets = count,
                    "THE OBJECTS OF A CRASHED SERVER ARE LOST: it had no replicas (--replicas 0); its tablets start anew, empty"
                );
                self.enter(RecoveryStage::Reassigning);
                Err(self.look_again())
            }
            Err(_) => Err(self.look_again()),
        }
    }

    /// Asks the backups, which fence the crashed server, and everybody who may answer reads of its
    /// tablets (COORD-15).
    async fn collect(&self) -> Result<Replicas, AttemptEnd> {
        self.enter(RecoveryStage::Collecting);
        let inventories = collect(self.context, self.crashed).await;
        let readers = self.context.state().servers[&self.crashed].readers.clone();
        for reader in &readers {
            pluvio_units::mark("recovery-fences-reader");
            let found = collect(self.context, *reader).await;
            let state = self.context.state();
            let record = &state.servers[reader];
            let given_up = record.given_up.as_ref();
            let weak = state.weak_logs(record).all_left_out();
            let log = reconstruct_without(&found, &record.epochs, None, given_up, &weak);
            if let Err(incomplete) = log {
                self.await_backups(&format!("server {reader} may answer reads: {incomplete}"));
                return Err(self.look_again());
            }
        }
        Ok(Replicas {
            inventories,
            fenced: self.context.now(),
            readers,
        })
    }

    fn await_backups(&self, missing: &str) {
        pluvio_units::mark("recovery-log-incomplete");
        tracing::debug!(crashed = %self.crashed, missing, "cannot recover yet");
        self.enter(RecoveryStage::AwaitingBackups {
            missing: missing.to_owned(),
        });
    }

    /// Proves the log complete, or says in the status what is missing. Where only weak logs lack
    /// something, the rest will do if it `may_lack` them and there are other tablets (COORD-21).
    fn complete_log(
        &self,
        replicas: &Replicas,
        may_lack: MayLack,
        settled: Settled,
    ) -> Result<Found, AttemptEnd> {
        let state = self.context.state();
        let record = &state.servers[&self.crashed];
        let is_settled = match settled {
            Settled::Binding => record.ends_bind,
            Settled::Stored => !record.ends.is_empty(),
        };
        let settled = is_settled.then(|| record.ends());
        let inventories = &replicas.inventories;
        let given_up = record.given_up.as_ref();
        let reconstruct = |weak: &WeakLogs| {
            let reconstruct =
                |ends| reconstruct_without(inventories, &record.epochs, ends, given_up, weak);
            let found = |log, ends| Found {
                log,
                ends,
                is_whole: !weak.left_out,
            };
            match reconstruct(settled.as_ref()) {
                Err(incomplete) if incomplete.lost_ends() && record.ends_bind => {
                    let log = reconstruct(None);
                    log.map(|log| found(log, LogEnds::Lost))
                }
                log => log.map(|log| {
                    let ends = log.ends.clone();
                    found(log, ends.map_or(LogEnds::Open, LogEnds::At))
                }),
            }
        };
        let mut weak = state.weak_logs(record);
        let incomplete = match reconstruct(&weak) {
            Ok(found) => return Ok(found),
            Err(incomplete) => incomplete,
        };
        let may_leave_out = match may_lack {
            MayLack::Nothing => false,
            MayLack::WeakLogs => {
                !weak.logs.is_empty() && state.waits_for_more_than_weak(self.crashed)
            }
        };
        if may_leave_out {
            weak.left_out = true;
            if let Ok(found) = reconstruct(&weak) {
                return Ok(found);
            }
        }
        self.await_backups(&incomplete.to_string());
        Err(self.look_again())
    }

    /// The masters to ask, of the servers that are up. They are in random order before
    /// [`FailedMasters::choose`] sorts them; those that recover something already are busy. Tablets
    /// that have replicas must never end on a server that keeps none. Servers without room for
    /// their share are left out ([`Masters::with_room`]).
    fn choose_masters(
        &mut self,
        tablets: &[TabletSpec],
        log: &LogMap,
        replicas: &Replicas,
    ) -> Result<Masters, AttemptEnd> {
        let state = self.context.state();
        let rooms = replicas.inventories.iter();
        let rooms: Rooms = rooms.filter_map(|i| Some((i.backup, i.room?))).collect();
        let able = || state.up().filter(|info| !info.volatile);
        // Those that are drained only if there is nobody else (COORD-16).
        let only_drained = able().all(|info| info.draining);
        let mut masters: Vec<ServerId> = able()
            .filter(|info| only_drained || !info.draining)
            .map(|info| info.id)
            .collect();
        self.context.env.rng.shuffle(&mut masters);
        let masters = self.failed.choose(masters, &self.attempts.busy(), &rooms);
        if masters.asked.is_empty() {
            let volatile = state.up().any(|info| info.volatile);
            self.enter(RecoveryStage::AwaitingMaster { volatile });
            return Err(self.look_again());
        }
        let had = &state.servers[&self.crashed].had;
        let bytes = expected(tablets, &log.stats, had).bytes;
        let finer = self.experience.granularity().finer;
        Ok(masters.with_room(&rooms, bytes, finer))
    }

    /// Cuts the tablets into partitions, at most one for each master; the rest comes next time.
    /// Large ones are cut into a first part and the rest, unless an attempt has been in vain. The
    /// cuts are stored, which begins the attempt.
    async fn deal(
        &self,
        tablets: &[TabletSpec],
        log: &LogMap,
        masters: Masters,
        replicas: &Replicas,
        ends: LogEnds,
    ) -> Result<Dealt, AttemptEnd> {
        let state = self.context.state();
        let had = &state.servers[&self.crashed].had;
        let tablets_of = |table| state.tables.get(&table).map_or(0, |t| t.tablets.len());
        let granularity = self.experience.granularity();
        let (stats, cut_for) = (&log.stats, masters.cut_for);
        let mut partitions = partition(tablets, stats, had, cut_for, granularity, tablets_of);
        partitions = of_one_class(partitions);
        partitions.truncate(masters.asked.len());
        let masters_asked = partitions.len();
        let bytes_min = match granularity.may_crowd {
            true => self.context.options.early_bytes_min,
            false => u64::MAX,
        };
        let first = |tablets: &[TabletSpec]| first_part(tablets, stats, had, bytes_min, tablets_of);
        let partitions = first_parts_first(partitions.into_iter().zip(masters.asked), first);
        let cut: Vec<_> = partitions
            .iter()
            .map(|(tablets, _)| tablets.clone())
            .collect();
        let (crashed, ended) = (self.crashed, replicas.readers.clone());
        let ledger = &self.context.ledger;
        let begin =
            ledger.change(move |state| Ok(state.begin_attempt(crashed, &cut, &ends, &ended)));
        match begin.await {
            Ok(recovery) => Ok(Dealt {
                recovery,
                masters: masters_asked,
                partitions,
            }),
            Err(_) => Err(self.look_again()),
        }
    }

    /// Sends the backups the partitions; gives the replicas of those that know them now.
    async fn announce(&self, dealt: &Dealt, replicas: Replicas) -> Replicas {
        self.enter(RecoveryStage::Announcing);
        let (crashed, recovery) = (self.crashed, dealt.recovery);
        let found = replicas.inventories;
        let partitions = dealt.partitions.iter().map(|(tablets, _)| tablets.clone());
        let inventories = announce(self.context, crashed, recovery, partitions.collect(), found);
        Replicas {
            inventories: inventories.await,
            ..replicas
        }
    }

    /// Lets the masters replay, and waits for their reports.
    async fn replay(&self, dealt: Dealt, replicas: &Replicas, log: LogMap) -> Attempted {
        let (crashed, recovery) = (self.crashed, dealt.recovery);
        let planning = self.context.now().since(self.began);
        tracing::info!(
            %crashed, %recovery, ms = planning.as_millis() as u64,
            segments = log.segments.len(), backups = replicas.inventories.len(),
            partitions = dealt.partitions.len(), masters = dealt.masters,
            "log complete; replay begins"
        );
        self.history.note(crashed, |status| {
            status.recovery = recovery;
            status.segments = u32::try_from(log.segments.len()).unwrap_or(u32::MAX);
            status.planning_us = u64::try_from(planning.as_micros()).unwrap_or(u64::MAX);
        });
        let pairs = dealt.partitions.into_iter();
        let partitions: Vec<Partition> = pairs
            .map(|(tablets, master)| Partition::new(tablets, master))
            .collect();
        self.enter(RecoveryStage::Replaying {
            masters: u32::try_from(dealt.masters).unwrap_or(u32::MAX),
            failures: self.failed.summary(),
        });
        let replay = Replay {
            context: self.context,
            attempts: self.attempts,
            recovery,
            crashed,
            fenced: replicas.fenced,
            segments: log.segments.into(),
        };
        replay.run(partitions).await
    }

    /// Learns from a replay for the next attempt. A crash of a master changes the list, so it need
    /// not be waited for; other failures may last.
    fn learn(&mut self, attempted: &Attempted) -> AttemptEnd {
        self.failed.learn(attempted);
        self.experience.learn(attempted.recovered.is_empty());
        if attempted.failed.is_empty() || attempted.master_crashed {
            return AttemptEnd::Again(Duration::ZERO);
        }
        pluvio_units::mark("recovery-partition-again");
        self.enter(RecoveryStage::AwaitingRetry {
            failures: self.failed.summary(),
        });
        AttemptEnd::Again(self.context.options.recovery_retry)
    }
}
