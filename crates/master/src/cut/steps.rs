//! The steps of a backup, as a master answers them.

use super::sessions::{EndOfHold, HoldName, Stage};
use crate::master::{DOUBT_RETRY, Master};
use crate::tablets::{OLD_MAPS_PAUSE, OldMaps, TabletPhase, until_gone};
use pluvio_units::{CoreId, KeyHash, TableId};
use pluvio_wire::{Cut, CutReply, CutStep, Refusal, RetryReason, TrackedRange};
use std::sync::Arc;
use std::time::Duration;

/// When to hold again where the time was too short.
const AGAIN: Duration = Duration::from_millis(5);

fn too_short() -> Refusal {
    Refusal::retry(AGAIN, RetryReason::Busy)
}

impl Master {
    /// One step towards a cut.
    ///
    /// # Errors
    /// `Stale` when nothing is known of the session: the caller begins anew. `Retry` while another
    /// backup is at it, or a hold cannot be had now.
    pub async fn cut(self: &Arc<Self>, core: CoreId, request: Cut) -> Result<CutReply, Refusal> {
        if !self.may_serve() {
            return Err(Refusal::retry(DOUBT_RETRY, RetryReason::NotServing));
        }
        let known_as = self.cuts.enter(&request, self.env.clock.now())?;
        match request.step {
            CutStep::Track { table, hash } => self.track(known_as, table, hash).await,
            CutStep::Changes(after) => {
                let master = Arc::clone(self);
                let read = move || master.noted_behind(known_as, after);
                self.elsewhere(read).await.ok_or_else(Self::not_ready)?
            }
            CutStep::Hold { number, limit_us } => {
                let limit = Duration::from_micros(limit_us.into());
                self.hold(core, HoldName { known_as, number }, limit).await
            }
            CutStep::Resume(number) => self.resume(HoldName { known_as, number }),
            CutStep::Copies(from) => {
                let ends = {
                    let mut inner = self.cuts.inner();
                    let hold = inner.session(known_as)?.hold.as_ref();
                    hold.map_or_else(Vec::new, |hold| hold.ends.clone())
                };
                // CUT-6.
                for (log, position) in ends {
                    self.replication().synced(log, position).await;
                }
                self.copies_from(known_as, from)
            }
            CutStep::Stay => Ok(CutReply::to(known_as)),
            CutStep::End => {
                self.cuts.forget(Some(known_as), self.env.clock.now());
                self.untrack();
                Ok(CutReply::default())
            }
        }
    }

    /// Lets the session of a backup that is gone end (CUT-5); to be called about every second.
    pub(crate) fn tend_cuts(&self) {
        if self.tablets().is_any_tracked() && !self.cuts.forget(None, self.env.clock.now()) {
            self.untrack();
        }
    }

    fn untrack(&self) {
        self.tablets().edit_all(|tablet| tablet.tracked = None);
    }

    async fn track(
        &self,
        known_as: u64,
        table: TableId,
        hash: KeyHash,
    ) -> Result<CutReply, Refusal> {
        let number = {
            let mut inner = self.cuts.inner();
            inner.session(known_as)?;
            inner.next_number()
        };
        let is_of_session = |track: u64| track > known_as;
        let tracked = self.tablets().track(table, hash, number, is_of_session);
        let (tracked, mut old) = tracked?;
        // From here on every change under way is noted (TAB-2).
        until_gone(&*self.env.clock, || old.is_gone()).await;
        let mut reply = CutReply::to(known_as);
        reply.tracked.push(tracked);
        Ok(reply)
    }

    async fn hold(
        self: &Arc<Self>,
        core: CoreId,
        name: HoldName,
        limit: Duration,
    ) -> Result<CutReply, Refusal> {
        let clock = &self.env.clock;
        let (until, old) = {
            let mut inner = self.cuts.inner();
            let until = self.cuts.begin_hold(&mut inner, name, limit, clock.now())?;
            // Under the lock, as where it ends: the map says what the last of both says.
            let old = self.tablets().edit_all(|tablet| {
                if let Some(tracked) = &mut tablet.tracked {
                    tracked.is_held = tracked.number > name.known_as;
                }
            });
            (until, old)
        };
        let master = Arc::clone(self);
        // Whatever becomes of the backup and of this request (CUT-5).
        let ends = async move {
            let now = master.env.clock.now();
            master.env.clock.sleep(until.since(now)).await;
            // An error: it is over.
            let _over = master.end_hold(name, false);
        };
        self.env.tasks.spawn(core, "hold ends", ends);
        let held = self.hold_still(name, old).await;
        if held.is_err() {
            let _over = self.end_hold(name, false);
        }
        let mut reply = CutReply::to(name.known_as);
        reply.tracked = held?;
        Ok(reply)
    }

    /// Waits until nothing changes any more, and copies what is noted.
    async fn hold_still(
        self: &Arc<Self>,
        name: HoldName,
        mut old: OldMaps,
    ) -> Result<Vec<TrackedRange>, Refusal> {
        let clock = &self.env.clock;
        loop {
            let is_locked = self.is_any_held_locked();
            if old.is_gone() && !is_locked {
                break;
            }
            if self.cuts.inner().hold(name)?.until <= clock.now() {
                // A longer hold does not help against a lock whose client is gone.
                let locked = is_locked.then(|| Refusal::retry(AGAIN, RetryReason::Locked));
                return Err(locked.unwrap_or_else(too_short));
            }
            clock.sleep(OLD_MAPS_PAUSE).await;
        }
        let master = Arc::clone(self);
        let copy = move || master.copy_noted(name.known_as);
        let copies = self.elsewhere(copy).await.ok_or_else(Self::not_ready)??;
        let space = self.store().space();
        let ends = match self.is_replicated() {
            true => { space.logs().map(|log| (log, space.end_position(log))) }.collect(),
            false => Vec::new(),
        };
        let tracked = self.held_ranges(name.known_as);
        let mut inner = self.cuts.inner();
        let hold = inner.hold(name)?;
        if hold.stage != Stage::Draining || hold.until <= clock.now() {
            return Err(too_short());
        }
        hold.stage = Stage::Held;
        hold.tracked.clone_from(&tracked);
        hold.copies = copies;
        hold.ends = ends;
        Ok(tracked)
    }

    /// Whether a transaction has locked a key of a tablet that is held (CUT-4).
    fn is_any_held_locked(&self) -> bool {
        let snapshot = self.tablets().snapshot();
        self.store().is_locked_among(|(table, hash)| {
            let tablet = snapshot.get(&table).and_then(|local| local.tablet_of(hash));
            tablet.is_some_and(|tablet| tablet.tracked.is_some_and(|t| t.is_held))
        })
    }

    /// What is held and served here.
    fn held_ranges(&self, known_as: u64) -> Vec<TrackedRange> {
        let snapshot = self.tablets().snapshot();
        let mut held: Vec<TrackedRange> = Vec::new();
        for (table, local) in snapshot.iter() {
            for tablet in &local.tablets {
                // A frozen tablet may belong to another server at any moment.
                let is_here = match tablet.phase {
                    TabletPhase::Serving | TabletPhase::Copying => true,
                    TabletPhase::Standing
                    | TabletPhase::Recovering
                    | TabletPhase::Frozen
                    | TabletPhase::Left => false,
                };
                let tracked = tablet
                    .tracked
                    .filter(|tracked| is_here && tracked.is_held && tracked.number > known_as);
                held.extend(tracked.map(|tracked| TrackedRange {
                    table: *table,
                    range: tablet.range,
                    track: tracked.number,
                }));
            }
        }
        held
    }

    fn resume(&self, name: HoldName) -> Result<CutReply, Refusal> {
        let named = {
            let mut inner = self.cuts.inner();
            inner.hold(name)?.tracked.clone()
        };
        let now_held = self.held_ranges(name.known_as);
        let is_there = named.iter().all(|range| range.is_within(&now_held));
        // CUT-3: that it may serve is looked at last.
        let lasted = is_there && self.may_serve();
        let ended = self.end_hold(name, lasted)?;
        let mut reply = CutReply::to(name.known_as);
        (reply.held, reply.held_us) = (ended.lasted, ended.us);
        Ok(reply)
    }

    /// Takes changes again; see [`super::Cuts::end_hold`].
    fn end_hold(&self, name: HoldName, lasted: bool) -> Result<EndOfHold, Refusal> {
        let mut inner = self.cuts.inner();
        let now = self.env.clock.now();
        let ended = self.cuts.end_hold(&mut inner, name, lasted, now);
        if !self.cuts.holds(now.0) && self.tablets().is_any_held() {
            self.tablets().edit_all(|tablet| {
                if let Some(tracked) = &mut tablet.tracked {
                    tracked.is_held = false;
                }
            });
        }
        ended
    }
}
