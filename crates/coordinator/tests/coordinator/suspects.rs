//! Whom the coordinator suspects, what it takes for a sign of life, and whom it tells: by what it
//! sends, and what comes back.

use crate::common::ground::Ground;
use crate::common::{Cluster, Shared, enlist};
use pluvio_coordinator::{MemoryStore, MetadataStore};
use pluvio_env::{Address, BoxFuture, CallError, Env, Frame, Network, NoConnection};
use pluvio_sim::{Intercepted, Interceptor, ProcessEnv, SimHandle, SimOptions};
use pluvio_units::{ClusterId, ServerId, ServerListVersion};
use pluvio_wire::{
    FatalKind, Opcode, Ping, PingReply, Recover, Refusal, RetryReason, RpcError, UpdateServerList,
    decode, reply,
};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

const SECOND: Duration = Duration::from_secs(1);
/// The longest time of a message and its answer, when nobody is silent.
const MOMENT: Duration = Duration::from_millis(50);

/// The reply that a call gets in place of its answer; `None`: it is made.
type Rule = Box<dyn FnMut(&str, &Frame) -> Option<Result<Frame, CallError>> + Send>;

/// A store whose coordinator's calls are noted, and answered by a rule.
#[derive(Clone, Default)]
struct Wire {
    store: MemoryStore,
    /// When each ping was sent, and where to.
    pings: Shared<Vec<(Duration, String)>>,
    rule: Shared<Option<Rule>>,
}

impl Ground for Wire {
    fn open(&self, sim: &SimHandle, process: &ProcessEnv) -> (Env, Arc<dyn MetadataStore>) {
        let tap = Tap {
            wire: self.clone(),
            sim: sim.clone(),
        };
        let env = Env {
            network: Intercepted::new(process.env.network.clone(), tap),
            ..process.env.clone()
        };
        (env, self.look())
    }

    fn look(&self) -> Arc<dyn MetadataStore> {
        Arc::new(self.store.clone())
    }
}

struct Tap {
    wire: Wire,
    sim: SimHandle,
}

impl Interceptor for Tap {
    fn call<'a>(
        &'a self,
        network: &'a dyn Network,
        to: &'a Address,
        request: Frame,
        limit: Duration,
    ) -> BoxFuture<'a, Result<Frame, CallError>> {
        if request.opcode == Opcode::Ping as u16 {
            let ping = (self.sim.now(), to.to_string());
            self.wire.pings.lock().unwrap().push(ping);
        }
        let mut rule = self.wire.rule.lock().unwrap();
        let instead = rule.as_mut().and_then(|rule| rule(&to.0, &request));
        drop(rule);
        Box::pin(async move {
            match instead {
                Some(answer) => answer,
                None => network.call(to, request, limit).await,
            }
        })
    }
}

fn cluster(servers: usize) -> (Cluster, Wire) {
    let wire = Wire::default();
    let ground = Arc::new(wire.clone());
    let mut cluster = Cluster::on(7, SimOptions::default(), 1, ground);
    for _ in 0..servers {
        let index = cluster.add_machine();
        cluster.until("it is enlisted", |c| c.id(index) != ServerId(0));
    }
    cluster.calm_down();
    (cluster, wire)
}

fn obey(
    wire: &Wire,
    rule: impl FnMut(&str, &Frame) -> Option<Result<Frame, CallError>> + Send + 'static,
) {
    *wire.rule.lock().unwrap() = Some(Box::new(rule));
}

/// Where the server of a machine listens.
fn address(index: usize) -> String {
    format!("server-{index}:7000")
}

/// Every ping of a server is answered like this.
fn answer_pings(
    wire: &Wire,
    index: usize,
    answer: impl Fn() -> Result<Frame, CallError> + Send + 'static,
) {
    let address = address(index);
    obey(wire, move |to, frame| {
        let is_asked = to == address && frame.opcode == Opcode::Ping as u16;
        is_asked.then(&answer)
    });
}

fn answer_as(id: u64) -> Result<Frame, CallError> {
    answer_in(ClusterId(0), ServerId(id))
}

fn answer_in(cluster: ClusterId, server: ServerId) -> Result<Frame, CallError> {
    Ok(reply::<Ping>(&Ok(PingReply {
        server,
        server_list: ServerListVersion(1),
        caller_is_member: true,
        cluster,
    })))
}

fn hint(cluster: &Cluster, index: usize) {
    let suspect = cluster.id(index);
    cluster.hint(suspect).unwrap();
}

fn is_up(cluster: &Cluster, id: ServerId) -> bool {
    cluster.status().list.is_up(id)
}

#[test]
fn a_server_that_does_not_do_what_it_is_told_is_suspected() {
    for opcode in [
        Opcode::UpdateServerList,
        Opcode::TakeTablets,
        Opcode::StartRecovery,
        Opcode::SetPartitions,
        Opcode::Recover,
    ] {
        let (mut cluster, wire) = cluster(8);
        let failed: Shared<Option<(Duration, String)>> = Arc::default();
        let (note, sim) = (failed.clone(), cluster.sim.handle());
        obey(&wire, move |to, frame| {
            let mut failed = note.lock().unwrap();
            if frame.opcode != opcode as u16 || failed.is_some() {
                return None;
            }
            *failed = Some((sim.now(), to.to_owned()));
            let limit = Duration::from_millis(1);
            Some(Err(CallError::TimedOut(Address::from(to), limit)))
        });
        cluster.create_table("t");
        cluster.add_machine();
        cluster.crash(0);
        cluster.calm_down();
        let (at, who) = failed.lock().unwrap().clone().expect("it was sent");
        let pings = wire.pings.lock().unwrap();
        let soon = at..at + Duration::from_millis(1);
        assert!(
            pings
                .iter()
                .any(|(when, to)| *to == who && soon.contains(when)),
            "{}: {who} was not looked at",
            opcode.name()
        );
    }
}

/// The first request and every other one are lost, the ones between are put off.
#[test]
fn a_recovery_master_is_asked_three_times_in_an_attempt() {
    for (in_vain, attempts) in [(2, 1), (3, 2)] {
        let (cluster, wire) = cluster(2);
        cluster.create_table("t");
        let mut asked = 0;
        obey(&wire, move |to, frame| {
            if frame.opcode != Opcode::Recover as u16 {
                return None;
            }
            asked += 1;
            let answer = if asked % 2 == 1 {
                Err(CallError::TimedOut(Address::from(to), MOMENT))
            } else {
                let refusal = Refusal::retry(MOMENT, RetryReason::TabletNotReady);
                Ok(reply::<Recover>(&Err(refusal)))
            };
            (asked <= in_vain).then_some(answer)
        });
        cluster.crash(0);
        let status = cluster.calm_down();
        let recovery = &status.recoveries[0];
        assert_eq!(recovery.attempts, attempts, "{in_vain}: {recovery:?}");
    }
}

/// Its process is there and has not received its id yet, or is a new one that has none.
#[test]
fn who_answers_without_an_id_counts_as_silent() {
    let (cluster, wire) = cluster(4);
    let id = cluster.id(1);
    answer_pings(&wire, 1, || answer_as(0));
    hint(&cluster, 1);
    cluster.sim.run_for(SECOND * 9 / 10);
    assert!(is_up(&cluster, id), "that proves nothing at once");
    cluster.sim.run_for(SECOND);
    assert!(!is_up(&cluster, id), "nor does it acquit");
}

#[test]
fn a_machine_that_cannot_be_reached_is_no_proof_of_a_crash() {
    let (cluster, wire) = cluster(4);
    let id = cluster.id(1);
    answer_pings(&wire, 1, || {
        let why = NoConnection::Other("no route to host".into());
        Err(CallError::Unreachable(Address::from("server-1:7000"), why))
    });
    hint(&cluster, 1);
    cluster.sim.run_for(SECOND * 9 / 10);
    assert!(is_up(&cluster, id), "the network may be down");
    cluster.sim.run_for(SECOND);
    assert!(!is_up(&cluster, id), "silence it is");
}

/// Most pings are lost; of those that are answered some are not the check's own.
// shows: DETECT-1
#[test]
fn the_only_server_is_not_convicted_while_it_answers_some_pings() {
    let (cluster, wire) = cluster(1);
    let id = cluster.id(0);
    let mut turn = 0_u32;
    obey(&wire, move |to, frame| {
        if frame.opcode != Opcode::Ping as u16 {
            return None;
        }
        turn += 1;
        let is_lost = turn.wrapping_mul(0x9e37_79b9) >> 30 != 0;
        is_lost.then(|| {
            Err(CallError::TimedOut(
                Address::from(to),
                Duration::from_millis(1),
            ))
        })
    });
    for _ in 0..120 {
        cluster.sim.run_for(SECOND / 2);
        assert!(is_up(&cluster, id), "at {:?}", cluster.sim.now());
    }
}

#[test]
fn another_life_that_answers_and_a_port_that_refuses_are_proof_of_a_crash() {
    let refuse = || {
        let address = Address::from("server-1:7000");
        Err(CallError::Unreachable(address, NoConnection::Refused))
    };
    let answers: [fn() -> Result<Frame, CallError>; 2] = [|| answer_as(99), refuse];
    for answer in answers {
        let (cluster, wire) = cluster(4);
        let id = cluster.id(1);
        answer_pings(&wire, 1, answer);
        hint(&cluster, 1);
        cluster.sim.run_for(MOMENT);
        assert!(!is_up(&cluster, id));
    }
}

/// Each cluster numbers its servers from 1, so its server may well have the id of the one that had
/// the address.
#[test]
fn another_clusters_server_of_the_same_id_is_another_one() {
    let stranger = ClusterId(77);
    let (cluster, wire) = cluster(4);
    let (first, second) = (cluster.id(1), cluster.id(2));
    answer_pings(&wire, 1, move || answer_in(stranger, first));
    hint(&cluster, 1);
    cluster.sim.run_for(MOMENT);
    assert!(!is_up(&cluster, first), "its process is gone");
    answer_pings(&wire, 2, move || answer_in(stranger, second));
    cluster.try_once(enlist(77, &address(2))).unwrap();
    assert!(!is_up(&cluster, second), "nobody of it has the address");
}

/// It has the address of a server that is gone. Lists of its cluster say nothing of this one's
/// store.
#[test]
fn a_server_of_another_cluster_does_not_end_the_coordinator() {
    let (cluster, wire) = cluster(4);
    let id = cluster.id(1);
    let (stranger, asked) = (address(1), Shared::<bool>::default());
    let note = asked.clone();
    obey(&wire, move |to, frame| {
        if to != stranger {
            return None;
        }
        if frame.opcode == Opcode::Ping as u16 {
            return Some(Ok(reply::<Ping>(&Ok(PingReply {
                server: ServerId(99),
                server_list: ServerListVersion(1000),
                caller_is_member: true,
                cluster: ClusterId(0),
            }))));
        }
        let is_list = frame.opcode == Opcode::UpdateServerList as u16;
        is_list.then(|| {
            *note.lock().unwrap() = true;
            let refusal = Refusal::fatal(FatalKind::WrongCluster, "another cluster");
            Ok(reply::<UpdateServerList>(&Err(refusal)))
        })
    });
    cluster.sim.run_for(10 * SECOND);
    assert!(*asked.lock().unwrap());
    assert!(!is_up(&cluster, id), "its process is gone");
    assert_eq!(cluster.leaders(), [0]);
}

#[test]
fn a_server_that_still_answers_keeps_its_address() {
    let (cluster, _) = cluster(3);
    let id = cluster.id(1);
    let asked = cluster.try_once(enlist(77, &address(1)));
    assert!(
        matches!(asked, Err(RpcError::Refused(Refusal::Retry { .. }))),
        "{asked:?}"
    );
    assert!(is_up(&cluster, id));
    cluster.sim.pause(cluster.machines[1].process);
    cluster.try_once(enlist(77, &address(1))).unwrap();
    assert!(!is_up(&cluster, id), "who does not answer has lost it");
}

#[test]
fn a_crashed_server_is_told_once() {
    let (cluster, wire) = cluster(4);
    let (victim, other) = (cluster.id(1), cluster.id(2));
    // It runs, and only its pings do not arrive.
    let told: Shared<BTreeMap<ServerId, u32>> = Arc::default();
    let note = told.clone();
    let (silent, later) = (address(1), Arc::new(Mutex::new(false)));
    let also = later.clone();
    obey(&wire, move |to, frame| {
        if frame.opcode == Opcode::UpdateServerList as u16 {
            let (header, update) = decode::<UpdateServerList>(frame).unwrap();
            if !update.list.is_up(header.target) {
                *note.lock().unwrap().entry(header.target).or_default() += 1;
            }
        }
        let is_dead = to == silent || *also.lock().unwrap() && to == "server-2:7000";
        (is_dead && frame.opcode == Opcode::Ping as u16).then(|| answer_as(0))
    });
    hint(&cluster, 1);
    cluster.until("it knows", |c| c.server(1).is_dead);
    // The list changes again and again: it leaves, and another one crashes.
    cluster.calm_down();
    *later.lock().unwrap() = true;
    hint(&cluster, 2);
    cluster.until("it knows", |c| c.server(2).is_dead);
    cluster.calm_down();
    cluster.sim.run_for(10 * SECOND);
    let expected = BTreeMap::from([(victim, 1), (other, 1)]);
    assert_eq!(*told.lock().unwrap(), expected);
}

/// The word of a client, of a server that was declared dead, and of the suspect itself.
// shows: DETECT-3
#[test]
fn hints_of_strangers_do_not_make_the_coordinator_ping() {
    let _marks = pluvio_units::Marks::to_reach(&["detect-hint-of-a-stranger"]);
    let (cluster, wire) = cluster(3);
    let dead = cluster.id(2);
    cluster.crash(2);
    cluster.until("it is dead", |c| !c.server(1).list.is_up(dead));
    cluster.calm_down();
    let suspect = cluster.id(0);
    let checks = |from: ServerId| {
        wire.pings.lock().unwrap().clear();
        // The coordinator's own pings do not come soon after.
        cluster
            .ask(pluvio_wire::HintServerCrashed { suspect, from })
            .unwrap();
        let asked = cluster.sim.now();
        cluster.sim.run_for(Duration::from_millis(5));
        let pings = wire.pings.lock().unwrap();
        let soon = |(at, _): &&(Duration, String)| *at <= asked;
        pings
            .iter()
            .filter(|(_, to)| *to == address(0))
            .filter(soon)
            .count()
    };
    let counted = |from| (0..20).map(|_| checks(from)).sum::<usize>();
    for stranger in [ServerId(0), ServerId(77), dead, suspect] {
        assert!(counted(stranger) <= 2, "{stranger}");
    }
    assert!(counted(cluster.id(1)) >= 18);
}
