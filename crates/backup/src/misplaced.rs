//! Misses files of frames that were removed or exchanged while the server runs, and tells the
//! masters (BACKUP-17).

use crate::backup::{Backup, Inner};
use crate::directory::{Directory, FRAMES};
use crate::frame::{Frame, ReplicaKey, Stage};
use crate::write::path_of;
use core::time::Duration;
use pluvio_env::{DiskError, File, FileAt};
use pluvio_units::{CoreId, SegmentId, ServerId};
use std::sync::{Arc, Weak};

/// Most frames that are open for writing, and of all others, that one look may visit. So a few
/// thousand have their turn within seconds, and a look asks for a few thousand names at most.
const VISITS_MAX: usize = 1024;
/// The same where looks are slow.
const VISITS_MIN: usize = 32;
/// A look that takes longer is followed by one at half as many.
const SLOW_LOOK: Duration = Duration::from_millis(100);

/// Which frames of a data directory come next. They are visited round and round.
pub(crate) struct Looks {
    /// One look at a data directory at a time.
    under_way: bool,
    /// How many it may visit.
    pub(crate) visits: usize,
    /// The last one of those that are open for writing.
    pub(crate) last_open: ReplicaKey,
    /// The last one of all.
    pub(crate) last: ReplicaKey,
}

impl Default for Looks {
    fn default() -> Self {
        let none = ReplicaKey {
            master: ServerId(0),
            segment: SegmentId(0),
        };
        Self {
            under_way: false,
            visits: VISITS_MAX,
            last_open: none,
            last: none,
        }
    }
}

impl Looks {
    /// A look has ended after this time.
    fn ended(&mut self, took: Duration) {
        self.under_way = false;
        self.visits = match took > SLOW_LOOK {
            true => (self.visits / 2).max(VISITS_MIN),
            false => (self.visits * 2).min(VISITS_MAX),
        };
    }
}

impl Backup {
    /// Looks at the files of the next frames in a data directory, in the background.
    pub(crate) fn look_at_files(&self, home: &Arc<Directory>) {
        let frames = {
            let mut looks = home.looks();
            if looks.under_way {
                return;
            }
            let frames = self.0.catalogue().next_to_visit(home, &mut looks);
            looks.under_way = !frames.is_empty();
            frames
        };
        if frames.is_empty() {
            return;
        }
        // It may never end, so it keeps nobody from ending.
        let (me, home) = (Weak::clone(&self.0.me), Arc::clone(home));
        let tasks = &self.0.env.tasks;
        tasks.spawn(CoreId(0), "look at frames", async move {
            let began = home.env.clock.now();
            let suspects = home.unless_left(misplaced(&home, frames)).await;
            let took = home.env.clock.now().since(began);
            if let Some(suspects) = suspects.filter(|suspects| !suspects.is_empty())
                && let Some(me) = Weak::upgrade(&me).map(Self)
            {
                me.judge(&home, suspects).await;
            }
            home.looks().ended(took);
        });
    }

    /// Loses those whose files are really not where they should be.
    async fn judge(&self, home: &Directory, suspects: Vec<Arc<Frame>>) {
        let mut lost = Vec::new();
        for frame in suspects {
            if self.0.is_lost(&frame).await {
                lost.push(frame.key);
            }
        }
        let (Some(first), frames) = (lost.first(), lost.len()) else {
            return;
        };
        pluvio_units::mark("backup-misses-frame");
        tracing::error!(
            directory = home.name,
            frames,
            first = first.path(),
            "files of frames were removed or exchanged: their replicas are lost, and masters replace them"
        );
        self.tell_lost(lost);
    }
}

impl Inner {
    /// Whether the file of a frame is gone; the frame is lost then. Its turn is held, so that
    /// nothing that removes, renames or makes the file is half done.
    async fn is_lost(&self, frame: &Arc<Frame>) -> bool {
        let Some(mut turn) = frame.turn().await else {
            return false;
        };
        let Some(file) = file_of(frame, turn.clone()) else {
            return false;
        };
        if !self.catalogue().holds(frame) {
            return false;
        }
        let home = &*frame.home;
        let look = async {
            // A directory that is gone is left, or ends the server (BACKUP-14, BACKUP-13).
            home.env.disk.same_directory(FRAMES).await?;
            home.env.disk.misplaced(vec![file]).await
        };
        let gone = home.unless_left(look).await;
        if !gone.is_some_and(|gone| gone.is_ok_and(|gone| !gone.is_empty())) {
            return false;
        }
        *turn = None;
        frame.set_misplaced();
        self.damaged(frame, "its file was removed or exchanged".to_owned());
        // Nobody counts on what an earlier life has left.
        !frame.is_found()
    }
}

/// Those frames whose files seem not to be where they should be. None where that cannot be asked:
/// a trial finds out why.
async fn misplaced(home: &Directory, frames: Vec<Arc<Frame>>) -> Vec<Arc<Frame>> {
    let with_file = |frame: Arc<Frame>| Some((file_of(&frame, frame.opened())?, frame));
    let (files, frames): (Vec<FileAt>, Vec<_>) = frames.into_iter().filter_map(with_file).unzip();
    let missing: Result<_, DiskError> = home.env.disk.misplaced(files).await;
    let missing = missing.unwrap_or_default().into_iter();
    let suspect = |number: usize| frames.get(number).cloned();
    missing.filter_map(suspect).collect()
}

/// The file of a frame, and its place. `None` if it has none yet, or does not count.
fn file_of(frame: &Frame, open: Option<Arc<dyn File>>) -> Option<FileAt> {
    let state = frame.state();
    match state.stage {
        Stage::Rewriting | Stage::Usable => {}
        Stage::Creating | Stage::Damaged(_) | Stage::Gone => return None,
    }
    let has_file = state.sequence > 0 || state.written > 0;
    has_file.then(|| FileAt {
        path: path_of(frame, &state),
        open,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    // shows: BACKUP-17
    #[test]
    fn a_look_that_takes_long_is_followed_by_a_smaller_one() {
        let mut looks = Looks::default();
        assert_eq!(looks.visits, VISITS_MAX);
        for _ in 0..20 {
            looks.ended(SLOW_LOOK * 2);
        }
        assert_eq!(looks.visits, VISITS_MIN);
        for _ in 0..20 {
            looks.ended(SLOW_LOOK);
        }
        assert_eq!(looks.visits, VISITS_MAX);
    }
}
