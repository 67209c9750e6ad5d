//! The data directories that frames lie in: which of them work, and which one takes the next frame.

use crate::misplaced::Looks;
use crate::options::{DataDirectory, FirstDirectory};
use crate::stats::Counters;
use crate::syncer::Syncer;
use bytes::Bytes;
use core::future::pending;
use core::pin::pin;
use core::time::Duration;
use futures_util::future::{Either, select};
use pluvio_env::{DiskError, Env, Moment, OpenMode};
use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::{AtomicI64, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use tokio::sync::Notify;

/// The directory of all frames below a data directory.
pub(crate) const FRAMES: &str = "frames";
const TRIAL: &str = "disk-trial.tmp";
/// So large that it is written on a thread that may block, wherever small writes go.
const TRIAL_BYTES: usize = 64 << 10;
/// Between the begins of two trials, where nothing asks for one earlier.
const TRIAL_PAUSE: Duration = Duration::from_secs(5);
/// A trial that takes longer has failed, in seconds.
const TRIAL_SECONDS_MAX: u64 = 10;
/// A trial that judges an error and takes longer has failed, in seconds.
const TRIAL_AFTER_ERROR_SECONDS_MAX: u64 = 5;
/// A data directory with this number of errors within [`ERRORS_TIME`] is left, even if trials of it
/// succeed.
const ERRORS_MAX: usize = 3;
/// See [`ERRORS_MAX`].
const ERRORS_TIME: Duration = Duration::from_secs(60);
/// How long a full data directory gets no new frames, if others will do.
const FULL_PAUSE: Duration = Duration::from_secs(5);
/// How long a data directory whose disk has failed gets no new frames, if others will do.
const ERROR_PAUSE: Duration = Duration::from_secs(10);
/// A data directory where something takes longer gets no new frames, if others will do.
pub(crate) const SLOW: Duration = Duration::from_secs(1);
/// A data directory where a write takes longer is left, if others work. Masters have left its
/// replicas behind since.
pub(crate) const WRITE_MAX: Duration = Duration::from_secs(10);
/// A data directory where a read or another request takes longer is left, if others work. Four
/// reads of segments at once take long on a slow disk.
pub(crate) const READ_MAX: Duration = Duration::from_secs(30);

/// A data directory, as its backup sees it.
pub(crate) struct Directory {
    pub(crate) name: String,
    /// Its number among those of the backup.
    pub(crate) index: usize,
    /// The server's environment, with this directory's disk.
    pub(crate) env: Env,
    pub(crate) syncer: Arc<Syncer>,
    pub(crate) mb_per_s: AtomicU32,
    /// There are no others: it is never left.
    is_only: bool,
    left: OnceLock<String>,
    was_left: Notify,
    health: Mutex<Health>,
    looks: Mutex<Looks>,
    /// Bytes and number of the frames in it. Changed behind the catalogue's lock.
    bytes: AtomicI64,
    frames: AtomicI64,
}

#[derive(Default)]
struct Health {
    /// Until when others are preferred because it was full.
    full_until: Option<Moment>,
    /// The same because it has failed.
    failed_until: Option<Moment>,
    /// When it failed, newest last.
    errors: VecDeque<Moment>,
    /// The trial that is under way: one at a time, and until its disk has answered.
    trial: Option<Trial>,
    /// When the last one began.
    tried: Option<Moment>,
    /// Why the last one that ended has failed.
    trouble: Option<String>,
    /// Trials find another directory in its place, or none: for how many looks, one a second.
    gone: Option<u64>,
    /// It is being asked how much room it has.
    asked_for_room: bool,
    /// Requests under way beside writes, by number, and since when.
    under_way: BTreeMap<u64, Moment>,
    last_number: u64,
    /// Bytes that the file system has left, if it says that.
    room: Option<u64>,
}

/// A trial that is under way.
#[derive(Clone, Copy)]
struct Trial {
    /// There was an error, which it judges.
    after_error: bool,
    /// Looks at it so far, one a second. Not what the clock shows: a process that stood still
    /// accuses no disk.
    seconds: u64,
}

impl Trial {
    fn is_late(&self) -> bool {
        let most = match self.after_error {
            true => TRIAL_AFTER_ERROR_SECONDS_MAX,
            false => TRIAL_SECONDS_MAX,
        };
        self.seconds >= most
    }

    fn why(&self) -> String {
        format!("a trial has not ended for {} s", self.seconds)
    }
}

/// A trial that has failed.
pub(crate) struct Failed {
    /// For people.
    pub(crate) why: String,
    /// It judged an error, or the directory is gone: there is no further trial.
    pub(crate) is_final: bool,
    /// The one before had not failed.
    pub(crate) is_new: bool,
}

/// What an error asks for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum AfterError {
    Nothing,
    Trial,
    Leave,
}

impl Directory {
    pub(crate) fn new(
        name: String,
        index: usize,
        env: Env,
        is_only: bool,
        counters: &Arc<Counters>,
    ) -> Arc<Self> {
        Arc::new(Self {
            name,
            index,
            syncer: Syncer::new(env.clone(), FRAMES, Arc::clone(counters)),
            env,
            mb_per_s: AtomicU32::new(1),
            is_only,
            left: OnceLock::new(),
            was_left: Notify::new(),
            health: Mutex::default(),
            looks: Mutex::default(),
            bytes: AtomicI64::new(0),
            frames: AtomicI64::new(0),
        })
    }

    /// All of a backup: the first one, with the disk of `env`, and the others.
    pub(crate) fn all(
        env: &Env,
        first: &FirstDirectory,
        further: &[DataDirectory],
        counters: &Arc<Counters>,
    ) -> Vec<Arc<Self>> {
        let is_only = further.is_empty();
        let own = (first.0.clone(), env.clone());
        let others = further.iter().map(|further| {
            let env = Env {
                disk: Arc::clone(&further.disk),
                ..env.clone()
            };
            (further.name.clone(), env)
        });
        let all = core::iter::once(own).chain(others).enumerate();
        all.map(|(index, (name, env))| Self::new(name, index, env, is_only, counters))
            .collect()
    }

    fn health(&self) -> MutexGuard<'_, Health> {
        self.health.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// How far looks at its files are.
    pub(crate) fn looks(&self) -> MutexGuard<'_, Looks> {
        self.looks.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Why it is of no use any more, in this life of the server.
    pub(crate) fn why_left(&self) -> Option<&str> {
        self.left.get().map(String::as_str)
    }

    /// Whether it is of no use any more.
    pub(crate) fn is_left(&self) -> bool {
        self.left.get().is_some()
    }

    /// It is of no use from now on, for good. Those that wait for it are told by
    /// [`Self::tell_left`].
    pub(crate) fn set_left(&self, why: String) {
        // Whoever comes second has nothing to add.
        let _is_first = self.left.set(why);
    }

    /// Wakes those who wait for something in it.
    pub(crate) fn tell_left(&self) {
        self.was_left.notify_waiters();
    }

    /// Ends when it is left. Never, where there are no others.
    async fn waits_left(&self) {
        if self.is_only {
            return pending().await;
        }
        loop {
            // Registered before the look, so that nothing that happens after it is missed.
            let mut told = pin!(self.was_left.notified());
            told.as_mut().enable();
            if self.is_left() {
                return;
            }
            told.await;
        }
    }

    /// Does `work` in it; `None` when it is left before that ends.
    pub(crate) async fn unless_left<T>(&self, work: impl Future<Output = T>) -> Option<T> {
        if self.is_only {
            return Some(work.await);
        }
        match select(pin!(self.waits_left()), pin!(work)).await {
            Either::Left(_) => None,
            Either::Right((done, _)) => Some(done),
        }
    }

    /// Something that is no write is under way as long as the value lives.
    pub(crate) fn under_way(self: &Arc<Self>) -> UnderWay {
        let now = self.env.clock.now();
        let mut health = self.health();
        health.last_number += 1;
        let number = health.last_number;
        health.under_way.insert(number, now);
        drop(health);
        UnderWay {
            directory: Arc::clone(self),
            number,
        }
    }

    /// For how long the oldest trial or request beside writes has been under way.
    pub(crate) fn beside_writes_for(&self, now: Moment) -> Duration {
        let trial = Duration::from_secs(self.trial_seconds());
        let oldest = self.health().under_way.values().min().copied();
        oldest.map_or(trial, |since| now.since(since).max(trial))
    }

    /// It is full.
    pub(crate) fn was_full(&self) {
        let until = self.env.clock.now() + FULL_PAUSE;
        self.health().full_until = Some(until);
    }

    /// Its disk has failed once more.
    pub(crate) fn failed(&self) -> AfterError {
        let now = self.env.clock.now();
        let mut health = self.health();
        health.failed_until = Some(now + ERROR_PAUSE);
        health.errors.push_back(now);
        let is_old = |at: &Moment| now.since(*at) > ERRORS_TIME;
        while health.errors.len() > ERRORS_MAX || health.errors.front().is_some_and(is_old) {
            health.errors.pop_front();
        }
        if health.errors.len() >= ERRORS_MAX {
            return AfterError::Leave;
        }
        match &mut health.trial {
            Some(under_way) => {
                under_way.after_error = true;
                AfterError::Nothing
            }
            none => {
                *none = Some(Trial {
                    after_error: true,
                    seconds: 0,
                });
                health.tried = Some(now);
                AfterError::Trial
            }
        }
    }

    /// Whether it is time for a trial without an error: [`Self::trial`] is then to be called.
    pub(crate) fn begin_trial(&self, now: Moment) -> bool {
        let mut health = self.health();
        let is_early = |began: Moment| now.since(began) < TRIAL_PAUSE;
        if self.is_left() || health.trial.is_some() || health.tried.is_some_and(is_early) {
            return false;
        }
        health.trial = Some(Trial {
            after_error: false,
            seconds: 0,
        });
        health.tried = Some(now);
        true
    }

    /// Finds out whether it is still there, and its disk does what a disk should. A full one does.
    /// Ends when the disk has answered, however late, or when the directory is left.
    ///
    /// # Errors
    /// It does not.
    pub(crate) async fn trial(&self) -> Result<(), Failed> {
        let after_error = self.health().trial.is_some_and(|trial| trial.after_error);
        let outcome = self.unless_left(self.try_disk(after_error)).await;
        if self.is_only {
            // Of several ones it is asked more often: see `look_at_room`.
            let room = self.env.disk.room().await;
            self.health().room = room;
        }
        let is_gone = matches!(outcome, Some(Err(DiskError::Gone { .. })));
        let mut health = self.health();
        let trial = health.trial.take();
        health.gone = is_gone.then(|| health.gone.unwrap_or(0));
        let error = match outcome {
            None | Some(Ok(()) | Err(DiskError::Full { .. } | DiskError::TooManyFiles { .. })) => {
                None
            }
            Some(Err(error)) => Some(error.to_string()),
        };
        let before = core::mem::replace(&mut health.trouble, error.clone());
        drop(health);
        match error {
            Some(why) => Err(Failed {
                why,
                is_final: is_gone || trial.is_some_and(|trial| trial.after_error),
                is_new: before.is_none(),
            }),
            None => {
                if before.is_some() && !self.is_left() {
                    tracing::info!(directory = self.name, "a data directory works again");
                }
                Ok(())
            }
        }
    }

    async fn try_disk(&self, after_error: bool) -> Result<(), DiskError> {
        static DATA: [u8; TRIAL_BYTES] = [0xa5; TRIAL_BYTES];
        let disk = &*self.env.disk;
        // Files that are open tell nothing of that.
        disk.same_directory(FRAMES).await?;
        if after_error {
            disk.remove(TRIAL).await?;
        }
        // Without an error the file stays: to overwrite it is one write for most file systems.
        let file = disk.open(TRIAL, OpenMode::Create).await?;
        file.write_at(0, Bytes::from_static(&DATA)).await?;
        file.sync().await?;
        file.read_at(0, TRIAL_BYTES).await?;
        if after_error {
            disk.remove(TRIAL).await?;
            disk.sync_directory(FRAMES).await?;
        }
        Ok(())
    }

    /// A second has passed. Says why the directory is to be left, if its trial is late.
    pub(crate) fn look_at_trial(&self) -> Option<String> {
        let mut health = self.health();
        if let Some(seconds) = &mut health.gone {
            *seconds += 1;
        }
        let trial = health.trial.as_mut()?;
        trial.seconds += 1;
        trial.is_late().then(|| trial.why())
    }

    /// For how many seconds its trial is under way, 0 without one.
    pub(crate) fn trial_seconds(&self) -> u64 {
        self.health().trial.map_or(0, |trial| trial.seconds)
    }

    /// Why trials do not find it, if the server cannot go on without it. That is so if it is the
    /// only one, or if none of the others has worked for `others_max`.
    pub(crate) fn why_gone(&self, others_max: Duration) -> Option<String> {
        let health = self.health();
        let seconds = health.gone?;
        let is_over = self.is_only || seconds >= others_max.as_secs();
        is_over.then(|| health.trouble.clone()).flatten()
    }

    /// The complaint of trials about it while it is used.
    pub(crate) fn trouble(&self) -> Option<String> {
        if self.is_left() {
            return None;
        }
        let health = self.health();
        let late = health.trial.filter(Trial::is_late);
        late.map(|trial| trial.why())
            .or_else(|| health.trouble.clone())
    }

    /// Whether nothing speaks against it, beside what is under way.
    pub(crate) fn is_well(&self, now: Moment) -> bool {
        let health = self.health();
        let failed = health.failed_until.is_some_and(|until| until > now);
        let on_trial = health.trial.is_some_and(|trial| trial.after_error);
        !self.is_left() && !on_trial && !failed && health.gone.is_none()
    }

    /// Whether it was full a moment ago.
    pub(crate) fn is_full(&self, now: Moment) -> bool {
        self.health().full_until.is_some_and(|until| until > now)
    }

    /// Asks the file system how much room there is.
    pub(crate) async fn look_at_room(self: &Arc<Self>) {
        if core::mem::replace(&mut self.health().asked_for_room, true) {
            return;
        }
        let under_way = self.under_way();
        let room = self.unless_left(self.env.disk.room()).await.flatten();
        drop(under_way);
        let mut health = self.health();
        (health.room, health.asked_for_room) = (room, false);
    }

    pub(crate) fn room(&self) -> Option<u64> {
        self.health().room
    }

    /// Frames and bytes more, or less.
    pub(crate) fn holds_more(&self, frames: i64, bytes: i64) {
        // Relaxed: all changes are behind the catalogue's lock.
        self.frames.fetch_add(frames, Ordering::Relaxed);
        self.bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    /// Frames in it, and their bytes.
    pub(crate) fn holds(&self) -> (u64, u64) {
        let of = |number: &AtomicI64| number.load(Ordering::Relaxed).max(0).unsigned_abs();
        (of(&self.frames), of(&self.bytes))
    }

    pub(crate) fn speed(&self) -> u32 {
        self.mb_per_s.load(Ordering::Relaxed).max(1)
    }
}

/// See [`Directory::under_way`].
pub(crate) struct UnderWay {
    directory: Arc<Directory>,
    number: u64,
}

impl Drop for UnderWay {
    fn drop(&mut self) {
        let _since = self.directory.health().under_way.remove(&self.number);
    }
}

/// The known facts of a data directory that may take the next frame.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Offer {
    /// Its frames' bytes; those of open ones as if they were full.
    pub(crate) bytes: u64,
    /// Bytes that there is room for, if that is known.
    pub(crate) room: Option<u64>,
    pub(crate) mb_per_s: u32,
    /// It is full, slow, or has failed: others are preferred.
    pub(crate) avoided: bool,
}

/// The data directory for the next frame, which may grow to `frame_bytes`: where frames take the
/// least of its share. Its share is that of its speed among all, or of its size if that is smaller.
/// So all of them would be read in about the same time, but a small one fills more slowly.
pub(crate) fn choose(offers: &[(usize, Offer)], frame_bytes: u64) -> Option<usize> {
    let has_room = |offer: &Offer| offer.room.is_none_or(|room| room >= frame_bytes);
    let first = |offer: &&(usize, Offer)| !offer.1.avoided && has_room(&offer.1);
    let preferred: Vec<_> = offers.iter().filter(first).copied().collect();
    let offers = match preferred.is_empty() {
        true => offers.to_vec(),
        false => preferred,
    };
    let speeds: u64 = offers
        .iter()
        .map(|(_, offer)| u64::from(offer.mb_per_s))
        .sum();
    let size = |offer: &Offer| offer.room.map(|room| offer.bytes.saturating_add(room));
    let sizes: Option<u128> = { offers.iter() }
        .map(|(_, offer)| size(offer).map(u128::from))
        .sum();
    let share = |offer: &Offer| -> u128 {
        const WHOLE: u128 = 1 << 32;
        let of_speed = u128::from(offer.mb_per_s) * WHOLE / u128::from(speeds.max(1));
        let of_size = match (size(offer), sizes) {
            (Some(size), Some(all)) => u128::from(size) * WHOLE / all.max(1),
            _ => WHOLE,
        };
        of_speed.min(of_size).max(1)
    };
    let used =
        |offer: &Offer| (u128::from(offer.bytes.saturating_add(frame_bytes)) << 32) / share(offer);
    let best = offers
        .iter()
        .min_by_key(|(index, offer)| (used(offer), *index));
    best.map(|(index, _)| *index)
}

#[cfg(test)]
mod tests {
    use super::*;

    const FRAME: u64 = 8 << 20;

    fn offer(mb_per_s: u32, room: Option<u64>) -> Offer {
        Offer {
            bytes: 0,
            room,
            mb_per_s,
            avoided: false,
        }
    }

    /// Fills directories with frames until there is room for none; how many each got, after
    /// `frames` and at the end.
    fn fill(mut offers: Vec<Offer>, frames: usize) -> Vec<u64> {
        for _ in 0..frames {
            let all: Vec<_> = offers.iter().copied().enumerate().collect();
            let chosen = choose(&all, FRAME).expect("there are some");
            let offer = &mut offers[chosen];
            offer.bytes += FRAME;
            offer.room = offer.room.map(|room| room - FRAME);
        }
        offers.iter().map(|offer| offer.bytes / FRAME).collect()
    }

    #[test]
    fn frames_are_spread_by_speed() {
        assert_eq!(choose(&[], FRAME), None);
        assert_eq!(
            fill(vec![offer(100, None), offer(100, None)], 100),
            [50, 50]
        );
        assert_eq!(
            fill(vec![offer(100, None), offer(300, None)], 100),
            [25, 75]
        );
    }

    #[test]
    fn a_small_directory_gets_fewer_frames() {
        let room = |frames: u64| Some(frames * FRAME);
        let same = vec![offer(100, room(100)), offer(100, room(900))];
        assert_eq!(
            fill(same.clone(), 100),
            [16, 84],
            "one part in ten, and in two"
        );
        assert_eq!(fill(same, 1000), [100, 900], "all of the room is used");
        let slow = vec![offer(10, room(500)), offer(90, room(500))];
        let half = fill(slow.clone(), 250);
        assert!((25..75).contains(&half[0]), "{half:?}");
        assert_eq!(fill(slow, 1000), [500, 500], "all of the room is used");
    }

    #[test]
    fn a_directory_that_is_avoided_gets_frames_only_where_there_is_no_other() {
        let avoided = Offer {
            avoided: true,
            ..offer(1000, None)
        };
        let full = offer(1000, Some(FRAME - 1));
        let other = offer(1, None);
        for odd in [avoided, full] {
            assert_eq!(choose(&[(0, odd), (1, other)], FRAME), Some(1));
            assert_eq!(choose(&[(0, odd)], FRAME), Some(0));
        }
    }

    /// Whatever the numbers are, somebody is chosen, and nobody who has no room while another has.
    #[test]
    fn the_choice_is_one_of_those_with_room() {
        let numbers = [0, 1, FRAME - 1, FRAME, 1 << 40, u64::MAX];
        for first in numbers {
            for second in numbers {
                for speed in [1, u32::MAX] {
                    let mut one = offer(speed, Some(first));
                    one.bytes = second;
                    let two = offer(100, Some(second));
                    let chosen = choose(&[(0, one), (1, two)], FRAME);
                    match (first >= FRAME, second >= FRAME) {
                        (true, false) => assert_eq!(chosen, Some(0)),
                        (false, true) => assert_eq!(chosen, Some(1)),
                        _ => assert!(chosen.is_some()),
                    }
                }
            }
        }
    }
}
