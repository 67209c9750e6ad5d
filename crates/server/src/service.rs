//! Requests that arrive on the RPC port, and who answers them.

use crate::limits::Limits;
use crate::local::{Local, log_of};
use crate::membership::Membership;
use crate::status::WholeStatus;
use crate::traced::execute_traced;
use core::task::Waker;
use pluvio_backup::Backup;
use pluvio_client::LocalMaster;
use pluvio_env::{Frame, Handled, HeldReply, Peer, Service, Traffic};
use pluvio_master::{Master, ObjectsOp};
use pluvio_units::{ClusterId, CoreId, LogId, LogPosition, Waits};
use pluvio_wire::{
    BackupOp, ChangeServerList, Class, CopyReplica, Cut, DataOp, DropTablets, EndMigration,
    FatalKind, FreeReplica, GetDoor, GetDoorReply, GetRecoveryData, GetServerStatus, GetTabletData,
    GetTopKeys, HasServerList, Header, IsReplicaNeeded, JoinTabletsLocal, MasterOp, MasterRoom,
    Opcode, Ping, ReadReplica, ReceiveTablet, Recover, Refusal, ReplicasLost, Request, RetryReason,
    RoleOp, ServerOp, SetPartitions, ShareQuotas, SplitTabletLocal, StartRecovery, TRACED,
    TakeTablets, UpdateServerList, WriteReplica, decode, reply, traced_opcode,
};
use std::sync::Arc;
use std::time::Duration;

/// When to ask a server again that is not enlisted yet, or not any more.
const NOT_SERVING_RETRY: Duration = Duration::from_millis(20);

/// The RPC side of a server. It works from the moment the port is open; requests that need a master
/// are put off until the server is enlisted.
pub(crate) struct ServerService {
    pub(crate) membership: Arc<Membership>,
    pub(crate) local: Local,
    pub(crate) backup: Backup,
    pub(crate) limits: Arc<Limits>,
    pub(crate) status: Arc<WholeStatus>,
}

/// An answer that is ready.
fn now<R: Request>(result: &Result<R::Reply, Refusal>) -> Handled {
    Handled::Now(reply::<R>(result))
}

/// Decodes a request, or gives the refusal to send.
fn decoded<R: Request>(frame: &Frame, answer: impl FnOnce(Header, R) -> Handled) -> Handled {
    match decode::<R>(frame) {
        Ok((header, request)) => answer(header, request),
        Err(refusal) => now::<R>(&Err(refusal)),
    }
}

/// A refusal in the form that every caller understands: a refused reply needs no type.
fn refuse(opcode: u16, refusal: Refusal) -> Handled {
    let frame = reply::<Ping>(&Err(refusal));
    Handled::Now(Frame { opcode, ..frame })
}

impl Service for ServerService {
    fn handle(&self, peer: Peer, request: Frame) -> Handled {
        let Some(opcode) = Opcode::from_number(request.opcode) else {
            return self.handle_other(peer, &request);
        };
        // First of all: who hears "busy" comes back, who hears "not serving" looks for the new
        // owner.
        if opcode.class() == Class::Data
            && let Err(refusal) = self.master()
        {
            return refuse(request.opcode, refusal);
        }
        let permit = match self.limits.admit(opcode.class(), request.len()) {
            Ok(permit) => permit,
            Err(refusal) => return refuse(request.opcode, refusal),
        };
        match self.dispatch(opcode, peer.core, &request) {
            Handled::Now(frame) => Handled::Now(frame),
            Handled::Later(answer) => Handled::Later(Box::pin(async move {
                let frame = answer.await;
                drop(permit);
                frame
            })),
        }
    }

    fn traffic(&self, opcode: u16, begun: &[u8]) -> Traffic {
        traffic(opcode, begun)
    }

    fn handle_or_hold(&self, peer: Peer, request: Frame) -> Result<Handled, HeldReply> {
        let op = match Opcode::from_number(request.opcode).map(Opcode::by_role) {
            Some(RoleOp::Data(op)) => ObjectsOp::of(op),
            Some(_) | None => None,
        };
        let Some(op) = op else {
            return Ok(self.handle(peer, request));
        };
        let master = match self.master() {
            Ok(master) => master,
            Err(refusal) => return Ok(refuse(request.opcode, refusal)),
        };
        let charge = request.len();
        let permit = match self.limits.admit(Class::Data, charge) {
            Ok(permit) => permit,
            Err(refusal) => return Ok(refuse(request.opcode, refusal)),
        };
        let (reply, waits) = master.handle_objects(op, log_of(peer.core), &request);
        let Some(waits) = waits else {
            return Ok(Handled::Now(reply));
        };
        if let Some(permit) = permit {
            permit.keep();
        }
        Err(HeldReply {
            waits,
            reply,
            charge,
        })
    }

    fn may_leave(&self, waits: &Waits) -> bool {
        self.local.is_durable(waits)
    }

    fn wake_when_durable(&self, wait: (LogId, LogPosition), party: u64, waker: &Waker) -> bool {
        self.local.wake_when_durable(wait, party, waker)
    }

    fn give_up_waiting(&self, wait: (LogId, LogPosition), party: u64) {
        self.local.give_up_waiting(wait, party);
    }

    fn held_left(&self, charge: usize) {
        self.limits.give_back(Class::Data, charge);
    }
}

impl ServerService {
    /// Answers what is no operation: an envelope, or something of a newer version.
    #[cold]
    fn handle_other(&self, peer: Peer, request: &Frame) -> Handled {
        if request.opcode != TRACED {
            let what = format!(
                "there is no operation {}: the caller is newer than this server",
                request.opcode
            );
            return refuse(request.opcode, Refusal::fatal(FatalKind::Unsupported, what));
        }
        let handled = pluvio_trace::answer(request, |context, request| {
            let op = Opcode::from_number(request.opcode).map(Opcode::by_role);
            // Of others, such as writes to a backup, the span of the request says enough.
            let Some(RoleOp::Data(op)) = op else {
                return self.handle(peer, request);
            };
            let may_append = match op {
                DataOp::Mutate
                | DataOp::Transact
                | DataOp::Decide
                | DataOp::Vote
                | DataOp::Release => true,
                DataOp::Get | DataOp::AwaitDurable | DataOp::Enumerate | DataOp::CountObjects => {
                    false
                }
            };
            let master = self.local.0.get().filter(|_| may_append);
            let log = log_of(peer.core);
            execute_traced(master, log, context, || self.handle(peer, request))
        });
        // In the words of any operation: the caller knows envelopes.
        handled.unwrap_or_else(|refusal| now::<Ping>(&Err(refusal)))
    }

    fn dispatch(&self, opcode: Opcode, core: CoreId, frame: &Frame) -> Handled {
        match opcode.by_role() {
            RoleOp::Data(op) => match self.master() {
                Ok(master) => master.handle_data(op, log_of(core), frame),
                Err(refusal) => refuse(opcode as u16, refusal),
            },
            RoleOp::Master(op) => self.master_op(op, core, frame),
            RoleOp::Backup(op) => self.backup_op(op, core, frame),
            RoleOp::Any(op) => self.server_op(op, frame),
            RoleOp::Coordinator(_) => {
                let what = self.no_coordinator();
                refuse(opcode as u16, Refusal::fatal(FatalKind::Unsupported, what))
            }
        }
    }

    fn master_op(&self, op: MasterOp, core: CoreId, frame: &Frame) -> Handled {
        match op {
            MasterOp::TakeTablets => self
                .master_later::<TakeTablets, _>(frame, |master, r| async move {
                    master.take_tablets(&r).await
                }),
            MasterOp::Recover => {
                self.master_now::<Recover>(frame, |master, r| master.recover(core, log_of(core), r))
            }
            MasterOp::ReceiveTablet => self.master_now::<ReceiveTablet>(frame, |master, r| {
                master.receive_tablet(core, log_of(core), r)
            }),
            MasterOp::GetTabletData => self
                .master_later::<GetTabletData, _>(frame, |master, r| async move {
                    master.give_tablet_data(r).await
                }),
            MasterOp::EndMigration => self
                .master_later::<EndMigration, _>(frame, |master, r| async move {
                    master.end_migration(core, r).await
                }),
            MasterOp::DropTablets => {
                self.master_later::<DropTablets, _>(frame, |master, r| async move {
                    master.drop_table(&r).await;
                    Ok(())
                })
            }
            MasterOp::SplitTabletLocal => {
                self.master_now::<SplitTabletLocal>(frame, |master, r| master.split_tablet(&r))
            }
            MasterOp::JoinTabletsLocal => {
                self.master_now::<JoinTabletsLocal>(frame, |master, r| master.join_tablets(&r))
            }
            MasterOp::Cut => {
                self.master_later::<Cut, _>(
                    frame,
                    |master, r| async move { master.cut(core, r).await },
                )
            }
            MasterOp::GetDoor => self.master_now::<GetDoor>(frame, |_, _| {
                let door = self.status.door.get().cloned();
                Ok(GetDoorReply { door })
            }),
            MasterOp::ShareQuotas => {
                self.master_now::<ShareQuotas>(frame, |master, r| Ok(master.share_quotas(&r)))
            }
            MasterOp::IsReplicaNeeded => self.master_now::<IsReplicaNeeded>(frame, |master, r| {
                master.replication().is_replica_needed(&r)
            }),
            MasterOp::ReplicasLost => self.master_now::<ReplicasLost>(frame, |master, r| {
                master.replication().replicas_lost(&r)
            }),
        }
    }

    fn backup_op(&self, op: BackupOp, core: CoreId, frame: &Frame) -> Handled {
        match op {
            BackupOp::WriteReplica => self.write_replica(core, frame),
            BackupOp::FreeReplica => self.backup::<FreeReplica, _>(frame, |backup, r| async move {
                backup.free_replica(core, r).await
            }),
            BackupOp::StartRecovery => self.backup::<StartRecovery, _>(frame, |backup, r| {
                let master = self.local.0.get().cloned();
                async move {
                    let mut reply = backup.start_recovery(r).await?;
                    reply.room = master.map(|master| room_of(&master));
                    Ok(reply)
                }
            }),
            BackupOp::SetPartitions => self
                .backup::<SetPartitions, _>(frame, |backup, r| async move {
                    backup.set_partitions(core, r).await
                }),
            BackupOp::GetRecoveryData => self
                .backup::<GetRecoveryData, _>(frame, |backup, r| async move {
                    backup.get_recovery_data(core, r).await
                }),
            BackupOp::CopyReplica => self.backup::<CopyReplica, _>(frame, |backup, r| async move {
                backup.copy_replica(core, r).await
            }),
            BackupOp::ReadReplica => self.backup::<ReadReplica, _>(frame, |backup, r| async move {
                backup.read_replica(r).await
            }),
        }
    }

    fn write_replica(&self, core: CoreId, frame: &Frame) -> Handled {
        let request = self.for_backup::<WriteReplica>(frame);
        match request.map(|r| (self.backup.write_now(&r), r)) {
            Ok((Some(result), _)) => now::<WriteReplica>(&result),
            Ok((None, request)) => {
                let backup = self.backup.clone();
                Handled::Later(Box::pin(async move {
                    reply::<WriteReplica>(&backup.write_replica(core, request).await)
                }))
            }
            Err(refusal) => now::<WriteReplica>(&Err(refusal)),
        }
    }

    fn server_op(&self, op: ServerOp, frame: &Frame) -> Handled {
        match op {
            ServerOp::Ping => decoded::<Ping>(frame, |_, ping| {
                let mut answer = self.membership.answer_ping(ping.from);
                // LEASE-1: a server that is being recovered asks its backups whether it still
                // serves.
                answer.caller_is_member &= !self.backup.is_fenced(ping.from);
                now::<Ping>(&Ok(answer))
            }),
            ServerOp::UpdateServerList => decoded::<UpdateServerList>(frame, |header, update| {
                now::<UpdateServerList>(&self.take_list(header, update))
            }),
            ServerOp::ChangeServerList => decoded::<ChangeServerList>(frame, |header, change| {
                now::<ChangeServerList>(&self.change_list(header, &change))
            }),
            ServerOp::GetServerStatus => decoded::<GetServerStatus>(frame, |_, _| {
                now::<GetServerStatus>(&Ok(self.status.read()))
            }),
            ServerOp::GetTopKeys => decoded::<GetTopKeys>(frame, |_, request| {
                let top = self.master().map(|master| master.top_keys(&request));
                now::<GetTopKeys>(&top)
            }),
        }
    }

    /// The master, if this server is a member.
    fn master(&self) -> Result<&Arc<Master>, Refusal> {
        let member = self.membership.is_member();
        let master = self.local.0.get().filter(|_| member);
        master.ok_or_else(|| Refusal::retry(NOT_SERVING_RETRY, RetryReason::NotServing))
    }

    /// The words for a caller that takes this server for a coordinator.
    fn no_coordinator(&self) -> String {
        let (list, id) = (self.membership.list(), self.membership.id());
        let who = match list.get(id) {
            Some(own) => format!("{} is", own.address),
            None => "this is".to_owned(),
        };
        format!("{who} a server, not a coordinator; give the coordinator's address")
    }

    /// Whether the caller means this life of the server in this cluster.
    fn check_target(&self, header: &Header) -> Result<(), Refusal> {
        if header.means(self.membership.cluster(), self.membership.id()) {
            Ok(())
        } else {
            Err(Refusal::Refresh)
        }
    }

    /// Decodes a request for this life of the backup.
    fn for_backup<R: Request>(&self, frame: &Frame) -> Result<R, Refusal> {
        let (header, request) = decode::<R>(frame)?;
        self.check_target(&header).map(|()| request)
    }

    /// Decodes a request for this life of the backup and answers it later.
    fn backup<R, F>(&self, frame: &Frame, answer: impl FnOnce(Backup, R) -> F) -> Handled
    where
        R: Request,
        F: Future<Output = Result<R::Reply, Refusal>> + Send + 'static,
    {
        match self.for_backup::<R>(frame) {
            Ok(request) => {
                let answer = answer(self.backup.clone(), request);
                Handled::Later(Box::pin(async move { reply::<R>(&answer.await) }))
            }
            Err(refusal) => now::<R>(&Err(refusal)),
        }
    }

    /// Decodes a request for this life of the master and answers it at once.
    fn master_now<R: Request>(
        &self,
        frame: &Frame,
        answer: impl FnOnce(&Arc<Master>, R) -> Result<R::Reply, Refusal>,
    ) -> Handled {
        let request = decode::<R>(frame)
            .and_then(|(header, request)| self.check_target(&header).map(|()| request));
        now::<R>(&request.and_then(|request| answer(self.master()?, request)))
    }

    /// Decodes a request for this life of the master and answers it later.
    fn master_later<R, F>(&self, frame: &Frame, answer: impl FnOnce(Arc<Master>, R) -> F) -> Handled
    where
        R: Request,
        F: Future<Output = Result<R::Reply, Refusal>> + Send + 'static,
    {
        let request = decode::<R>(frame)
            .and_then(|(header, request)| self.check_target(&header).map(|()| request));
        match request.and_then(|r| Ok((r, Arc::clone(self.master()?)))) {
            Ok((request, master)) => {
                let answer = answer(master, request);
                Handled::Later(Box::pin(async move { reply::<R>(&answer.await) }))
            }
            Err(refusal) => now::<R>(&Err(refusal)),
        }
    }

    fn take_list(&self, header: Header, update: UpdateServerList) -> Result<(), Refusal> {
        self.check_target(&header)?;
        self.check_cluster(update.cluster)?;
        self.membership.update(update.list);
        Ok(())
    }

    fn change_list(
        &self,
        header: Header,
        change: &ChangeServerList,
    ) -> Result<HasServerList, Refusal> {
        self.check_target(&header)?;
        self.check_cluster(change.cluster)?;
        let version = self.membership.change(change);
        Ok(HasServerList { version })
    }

    fn check_cluster(&self, theirs: ClusterId) -> Result<(), Refusal> {
        match self.membership.cluster() == theirs {
            true => Ok(()),
            false => Err(Refusal::fatal(
                FatalKind::WrongCluster,
                "this server belongs to another cluster",
            )),
        }
    }
}

/// How full a master is, for coordinators that choose recovery masters.
fn room_of(master: &Master) -> MasterRoom {
    let log = master.store().space().stats();
    MasterRoom {
        live_bytes: log.live_bytes,
        live_bytes_max: log.live_bytes_max,
    }
}

/// Rule D: replication waits for nobody, with a trace or without. Nor do pings, by which leases are
/// held.
fn traffic(opcode: u16, begun: &[u8]) -> Traffic {
    let opcode = match opcode {
        TRACED => traced_opcode(begun),
        opcode => Some(opcode),
    };
    let class = opcode.and_then(Opcode::from_number).map(Opcode::class);
    let (is_of_servers, never_waits) = match class {
        Some(Class::Replication) => (true, true),
        Some(Class::Recovery) => (true, false),
        Some(Class::Ping) => (false, true),
        Some(Class::Data | Class::Control) | None => (false, false),
    };
    Traffic {
        is_of_servers,
        never_waits,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use pluvio_units::TraceContext;
    use pluvio_wire::wrap_traced;

    #[test]
    fn a_write_of_a_replica_waits_for_nobody_with_a_trace_either() {
        let write = Frame {
            opcode: Opcode::WriteReplica as u16,
            ..Frame::default()
        };
        let traced = wrap_traced(&TraceContext::sampled(1, 2), &write);
        let expected = Traffic {
            is_of_servers: true,
            never_waits: true,
        };
        assert_eq!(traffic(write.opcode, &write.meta), expected);
        assert_eq!(traffic(traced.opcode, &traced.meta), expected);
        let begun = traffic(traced.opcode, &traced.meta[..2]);
        assert_eq!(begun, Traffic::default(), "it does not tell yet");
    }
}
