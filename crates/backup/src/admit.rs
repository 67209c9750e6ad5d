//! Which writes may change a frame, and what is taken back of one that was not done.
//!
//! A write is checked before it waits for its frame's turn, and again behind it. Whatever was made
//! ready for it stays only if it is done: [`Admitted`] sees to that.

use crate::backup::Inner;
use crate::catalogue::Catalogue;
use crate::frame::{Frame, FrameState, ReplicaKey, Turn};
use crate::plan::{Plan, check_shape, plan};
use pluvio_wire::{FatalKind, Refusal, WriteReplica};
use std::sync::Arc;

/// The writer of a replica.
#[derive(Clone, Copy)]
pub(crate) enum Writer {
    /// Its master, as long as it lives.
    Master,
    /// The recovery of its master, which has fenced that here before.
    Recovery,
}

/// What was made ready for a write.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Ready {
    /// All was there.
    AsItWas,
    /// Its frame was made.
    Made,
    /// Its frame, of an earlier life, was counted among those that are open for writing.
    Reopened,
}

/// A write that may change its frame now.
pub(crate) struct Admitted<'a> {
    pub(crate) held: Held<'a>,
    /// What was known of the frame before.
    pub(crate) state: FrameState,
    pub(crate) plan: Plan,
}

/// A frame whose turn a write has.
pub(crate) struct Held<'a> {
    inner: &'a Inner,
    pub(crate) frame: Arc<Frame>,
    pub(crate) turn: Turn,
    ready: Ready,
}

impl Held<'_> {
    /// The write was done.
    pub(crate) fn done(&mut self) {
        self.ready = Ready::AsItWas;
    }
}

impl Drop for Held<'_> {
    fn drop(&mut self) {
        let has_file = self.turn.is_some();
        match self.ready {
            Ready::AsItWas => {}
            ready @ (Ready::Made | Ready::Reopened) => {
                let mut catalogue = self.inner.catalogue();
                catalogue.take_back(&self.frame, ready, has_file);
            }
        }
        // Nothing is asked of a device that was left: it may hang.
        if has_file && !self.frame.takes_writes() && !self.frame.home.is_left() {
            *self.turn = None;
        }
    }
}

impl Inner {
    /// Checks a write and waits for its frame's turn. The frame is made if the write opens one.
    ///
    /// # Errors
    /// See [`crate::Backup::write_replica`].
    pub(crate) async fn admit(
        &self,
        request: &WriteReplica,
        by: Writer,
    ) -> Result<Admitted<'_>, Refusal> {
        check_shape(request, self.options.segment_bytes)?;
        let (frame, ready) = {
            let mut catalogue = self.catalogue();
            check_writer(&catalogue, request, by)?;
            let (room, now) = (self.room(), self.env.clock.now());
            catalogue.frame_for(key_of(request), request, room, &self.directories, now)?
        };
        // A frame that was just made is lost with its data directory.
        let turn = frame.turn().await.ok_or_else(|| lost(request))?;
        self.admit_behind_turn(request, by, frame, turn, ready)
    }

    /// [`Inner::admit`] for a write of a master to a frame that this life has written, if nobody
    /// has the turn.
    pub(crate) fn admit_now(&self, request: &WriteReplica) -> Option<Admitted<'_>> {
        check_shape(request, self.options.segment_bytes).ok()?;
        let frame = {
            let catalogue = self.catalogue();
            check_writer(&catalogue, request, Writer::Master).ok()?;
            catalogue.written_frame(key_of(request))?
        };
        let turn = frame.try_turn()?;
        let admitted = self.admit_behind_turn(request, Writer::Master, frame, turn, Ready::AsItWas);
        admitted.ok()
    }

    fn admit_behind_turn(
        &self,
        request: &WriteReplica,
        by: Writer,
        frame: Arc<Frame>,
        turn: Turn,
        ready: Ready,
    ) -> Result<Admitted<'_>, Refusal> {
        let mut held = Held {
            inner: self,
            frame,
            turn,
            ready,
        };
        let frame = &held.frame;
        if frame.is_misplaced() {
            return Err(lost(request));
        }
        // BACKUP-4: recovery first fences the master, then takes each frame's turn.
        self.catalogue().check_writer(request.master, by)?;
        let state = frame.state();
        let plan = plan(&state, request)?;
        if plan.next.end as usize > self.options.file_bytes_max() {
            let segment = request.segment;
            let what = format!("too many small writes to the replica of segment {segment}");
            return Err(Refusal::malformed(what));
        }
        if state.found && !plan.next.found {
            held.ready = self.catalogue().reopen(frame, self.room())?;
        }
        Ok(Admitted { held, state, plan })
    }
}

/// Whether the writer of this may write at all (BACKUP-4, BACKUP-5).
fn check_writer(catalogue: &Catalogue, request: &WriteReplica, by: Writer) -> Result<(), Refusal> {
    match by {
        Writer::Master => catalogue.check_member(request.master, request.cluster)?,
        Writer::Recovery => catalogue.check_cluster(request.cluster)?,
    }
    catalogue.check_writer(request.master, by)
}

fn key_of(request: &WriteReplica) -> ReplicaKey {
    ReplicaKey {
        master: request.master,
        segment: request.segment,
    }
}

/// The refusal of a write to a frame that is lost with its data directory, or alone (BACKUP-14,
/// BACKUP-17). The backup itself is of use still.
pub(crate) fn lost(request: &WriteReplica) -> Refusal {
    let what = format!("the replica of segment {} is lost", request.segment);
    Refusal::fatal(FatalKind::NotFound, what)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Backup, BackupOptions};
    use bytes::Bytes;
    use core::time::Duration;
    use pluvio_sim::{Sim, SimOptions};
    use pluvio_units::{
        ClusterId, LogId, ReplicationEpoch, SegmentId, ServerId, ServerListVersion,
    };
    use pluvio_wire::{ServerInfo, ServerList};

    /// A recovery begins after the frame of an open was made, and before the open has its turn.
    // shows: BACKUP-4
    #[test]
    fn a_frame_whose_first_write_is_fenced_is_forgotten() {
        let sim = Sim::new(1, SimOptions::default());
        let process = sim.process("backup");
        let starts = Backup::start(process.env, BackupOptions::default());
        let backup = sim.block_on(process.id, starts, Duration::from_secs(60));
        let backup = backup.expect("ends in time").expect("starts");
        let (cluster, master) = (ClusterId(1), ServerId(2));
        backup.enlisted(ServerId(1), cluster).expect("joins");
        backup.server_list_changed(&ServerList {
            version: ServerListVersion(1),
            servers: vec![ServerInfo::plain(master, "server-2")],
            ..ServerList::default()
        });
        let inner = &*backup.0;
        for (segment, rewriting) in [(3, false), (4, true)] {
            let request = WriteReplica {
                cluster,
                master,
                segment: SegmentId(segment),
                log: LogId(0),
                side: false,
                epoch: ReplicationEpoch(0),
                open: true,
                rewriting,
                primary: true,
                offset: 0,
                certified: 0,
                close: false,
                synced: true,
                needed: 1,
                data: Bytes::from_static(b"data"),
            };
            let (homes, now) = (&inner.directories, inner.env.clock.now());
            let key = key_of(&request);
            let made = { inner.catalogue() }.frame_for(key, &request, inner.room(), homes, now);
            let (frame, ready) = made.expect("there is room");
            let turn = frame.try_turn().expect("nobody has it");
            let stats = backup.stats();
            assert_eq!((stats.frames, stats.frames_open), (1, 1));
            inner.catalogue().fence(master);
            let refused = inner.admit_behind_turn(&request, Writer::Master, frame, turn, ready);
            let refused = refused.err().expect("it is fenced");
            assert_eq!(refused.fatal_kind(), Some(FatalKind::Stale));
            let stats = backup.stats();
            assert_eq!((stats.frames, stats.frames_open), (0, 0));
        }
    }
}
