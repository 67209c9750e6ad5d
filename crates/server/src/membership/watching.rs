//! A watcher among peers that do as they are told, and a coordinator that only listens.

use super::{Membership, PingOptions, Watcher, ask_coordinator, is_confirmed};
use pluvio_env::{Address, Frame, Handled, Peer, Service, watch};
use pluvio_sim::{NetworkFaults, ProcessEnv, ProcessId, Sim, SimOptions};
use pluvio_units::{ClusterId, ServerId, ServerListVersion};
use pluvio_wire::{
    Coordinators, GetServerList, GetServerListReply, HintServerCrashed, Opcode, Ping, PingReply,
    Refusal, RetryReason, ServerInfo, ServerList, decode, reply,
};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

const ME: ServerId = ServerId(1);

/// What happened, and when by virtual time.
type Noted = Arc<Mutex<Vec<(Duration, ServerId)>>>;

/// Notes pings, hints and questions for the list.
struct Scripted {
    sim: pluvio_sim::SimHandle,
    /// Its id in answers to pings; the coordinator answers none.
    as_server: ServerId,
    cluster: ClusterId,
    pings: Noted,
    hints: Noted,
    questions: Noted,
}

fn note(list: &Noted, at: Duration, who: ServerId) {
    let mut list = list.lock().unwrap_or_else(PoisonError::into_inner);
    list.push((at, who));
}

fn noted(list: &Noted) -> Vec<(Duration, ServerId)> {
    list.lock().unwrap_or_else(PoisonError::into_inner).clone()
}

impl Service for Scripted {
    fn handle(&self, _: Peer, frame: Frame) -> Handled {
        let now = self.sim.now();
        let opcode = Opcode::from_number(frame.opcode);
        Handled::Now(if opcode == Some(Opcode::HintServerCrashed) {
            let (_, hint) = decode::<HintServerCrashed>(&frame).expect("is well formed");
            note(&self.hints, now, hint.suspect);
            reply::<HintServerCrashed>(&Ok(()))
        } else if opcode == Some(Opcode::Ping) {
            note(&self.pings, now, self.as_server);
            reply::<Ping>(&Ok(PingReply {
                server: self.as_server,
                server_list: ServerListVersion(1),
                caller_is_member: true,
                cluster: self.cluster,
            }))
        } else {
            if opcode == Some(Opcode::GetServerList) {
                note(&self.questions, now, self.as_server);
            }
            let refusal = Refusal::retry(Duration::from_millis(1), RetryReason::Busy);
            let refused = reply::<Ping>(&Err(refusal));
            Frame {
                opcode: frame.opcode,
                ..refused
            }
        })
    }
}

struct Scene {
    sim: Sim,
    /// What the replication says.
    suspects: watch::Sender<Option<ServerId>>,
    /// Processes of servers 2, 3, ….
    peers: Vec<ProcessId>,
    pings: Noted,
    hints: Noted,
    questions: Noted,
}

fn info(id: u64) -> ServerInfo {
    ServerInfo::plain(ServerId(id), format!("server-{id}"))
}

/// A watcher and other servers of its cluster, which answer pings with these ids, or do not listen.
fn scene(answers: &[Option<u64>]) -> Scene {
    scene_in(ClusterId(1), answers)
}

/// The same with answers that name this cluster.
fn scene_in(cluster: ClusterId, answers: &[Option<u64>]) -> Scene {
    let options = SimOptions {
        network: NetworkFaults {
            tail_ppm: 0,
            refused_ppm: 1_000_000,
            ..NetworkFaults::default()
        },
        ..SimOptions::default()
    };
    let sim = Sim::new(7, options);
    let (pings, hints) = (Noted::default(), Noted::default());
    let questions = Noted::default();
    let listen = |name: &str, as_server: u64| {
        let process = sim.process(name);
        let service = Scripted {
            sim: sim.handle(),
            as_server: ServerId(as_server),
            cluster,
            pings: Arc::clone(&pings),
            hints: Arc::clone(&hints),
            questions: Arc::clone(&questions),
        };
        let at = Address::from(name);
        let env = process.env;
        sim.spawn(process.id, "listen", async move {
            let open = env.network.listen(&at, Arc::new(service)).await;
            let _open = open.expect("the address is free");
            std::future::pending::<()>().await;
        });
        process.id
    };
    listen("coordinator", 0);
    let mut peers = Vec::new();
    for (at, answer) in answers.iter().enumerate() {
        let name = format!("server-{}", at + 2);
        peers.push(match answer {
            Some(id) => listen(&name, *id),
            None => sim.process(&name).id,
        });
    }
    let me = sim.process("server-1");
    let suspects = watch::Sender::new(None);
    let membership = Membership::new();
    let list = ServerList {
        version: ServerListVersion(1),
        servers: (1..2 + answers.len() as u64).map(info).collect(),
        grown: true,
        ..ServerList::default()
    };
    membership.enlisted(ME, ClusterId(1), list);
    let watcher = Watcher {
        env: me.env,
        membership,
        coordinators: coordinators(),
        options: PingOptions::default(),
        suspects: suspects.subscribe(),
    };
    sim.spawn(me.id, "watch", watcher.run());
    Scene {
        suspects,
        sim,
        peers,
        pings,
        hints,
        questions,
    }
}

const MS: Duration = Duration::from_millis(1);

#[test]
fn one_other_server_chosen_at_random_is_pinged_every_100_ms() {
    let scene = scene(&[Some(2), Some(3), Some(4)]);
    scene.sim.run_for(Duration::from_secs(30));
    let pings = noted(&scene.pings);
    let gaps = pings.windows(2).map(|pair| pair[1].0 - pair[0].0);
    for gap in gaps {
        assert!((99 * MS..102 * MS).contains(&gap), "{gap:?}");
    }
    let mut all = 0;
    for id in 2..5 {
        let share = pings.iter().filter(|(_, to)| *to == ServerId(id)).count();
        assert!(share > 60, "server {id}: {share} of {}", pings.len());
        all += share;
    }
    assert!((290..=300).contains(&all), "{all}");
    // At random, not in turns.
    let repeated = pings.windows(2).filter(|pair| pair[0].1 == pair[1].1);
    assert!(repeated.count() > 50);
    assert_eq!(noted(&scene.hints), []);
}

#[test]
fn a_refused_connection_is_told_at_once_and_so_is_another_life_or_cluster() {
    for (cluster, answer) in [(1, None), (1, Some(99)), (2, Some(2))] {
        let scene = scene_in(ClusterId(cluster), &[answer]);
        scene.sim.run_for(110 * MS);
        let hints = noted(&scene.hints);
        assert!(
            matches!(hints[..], [(_, ServerId(2))]),
            "{cluster} {answer:?}: {hints:?}"
        );
    }
}

#[test]
fn silence_is_told_the_second_time() {
    let scene = scene(&[Some(2)]);
    scene.sim.isolate(scene.peers[0]);
    // A pause, and the limit of a ping twice.
    scene.sim.run_for(895 * MS);
    assert_eq!(noted(&scene.hints), []);
    scene.sim.run_for(10 * MS);
    let hints = noted(&scene.hints);
    assert!(matches!(hints[..], [(_, ServerId(2))]), "{hints:?}");
}

/// It was slow for a moment, and again later.
#[test]
fn an_answer_between_two_silences_is_a_sign_of_life() {
    let scene = scene(&[Some(2)]);
    for _ in 0..5 {
        scene.sim.isolate(scene.peers[0]);
        scene.sim.run_for(450 * MS);
        scene.sim.heal_all();
        let before = noted(&scene.pings).len();
        let answered = || noted(&scene.pings).len() > before;
        scene
            .sim
            .run_until(answered, Duration::from_secs(2))
            .expect("it is pinged again");
        scene.sim.run_for(MS);
    }
    assert_eq!(noted(&scene.hints), []);
}

/// MEM-3: it may be this server that is cut off, and that was declared dead for it. It does not
/// matter whom it pinged.
// shows: MEM-3
#[test]
fn five_pings_in_a_row_without_an_answer_make_a_server_ask_the_coordinator() {
    let scene = scene(&[Some(2), Some(3), Some(4)]);
    let asked = || noted(&scene.questions).len();
    let silence = |span: Duration| {
        for peer in &scene.peers {
            scene.sim.isolate(*peer);
        }
        scene.sim.run_for(span);
    };
    // The limit of a ping, five times, and a pause before each server.
    silence(2295 * MS);
    assert_eq!(asked(), 0);
    scene.sim.run_for(30 * MS);
    assert_eq!(asked(), 1);
    scene.sim.heal_all();
    let before = noted(&scene.pings).len();
    let answered = || noted(&scene.pings).len() > before;
    scene
        .sim
        .run_until(answered, Duration::from_secs(2))
        .expect("somebody is pinged again");
    scene.sim.run_for(10 * MS);
    // From an answer on it counts anew: these are four.
    let before = asked();
    silence(2150 * MS);
    assert_eq!(asked(), before);
}

/// Chance would lead it back to the silent one only after many others.
// shows: MEM-7
#[test]
fn a_silent_server_among_many_is_pinged_again_before_any_other() {
    let scene = scene(&(2..42).map(Some).collect::<Vec<_>>());
    scene.sim.isolate(scene.peers[17]);
    let told = || !noted(&scene.hints).is_empty();
    scene
        .sim
        .run_until(told, Duration::from_secs(60))
        .expect("it is told");
    let hints = noted(&scene.hints);
    let [(told, ServerId(19))] = hints[..] else {
        panic!("{hints:?}");
    };
    let pings = noted(&scene.pings);
    let gaps = pings.windows(2).map(|pair| pair[1].0 - pair[0].0);
    for gap in gaps {
        assert!(gap < 102 * MS, "{gap:?}: it went on to another one");
    }
    let last = pings.last().expect("others were pinged").0;
    assert!(told - last < 910 * MS, "{:?}", told - last);
}

// shows: MEM-7
#[test]
fn a_server_that_writes_do_not_reach_is_pinged_out_of_turn_and_not_too_often() {
    let scene = scene(&(2..42).map(Some).collect::<Vec<_>>());
    scene.sim.run_for(10 * MS);
    let of_19 = || {
        let pings = noted(&scene.pings);
        pings.iter().filter(|(_, to)| *to == ServerId(19)).count()
    };
    // More often than the turns of others come.
    for _ in 0..98 {
        scene.suspects.send_replace(Some(ServerId(19)));
        scene.sim.run_for(5 * MS);
    }
    let all = noted(&scene.pings).len();
    assert!((1..=2).contains(&of_19()), "{}", of_19());
    assert!(all >= 4, "others have had their turns: {all}");
    scene.sim.isolate(scene.peers[17]);
    scene.sim.run_for(30 * MS);
    scene.suspects.send_replace(Some(ServerId(19)));
    scene.sim.run_for(950 * MS);
    let hints = noted(&scene.hints);
    assert!(matches!(hints[..], [(_, ServerId(19))]), "{hints:?}");
    // This server itself is not pinged.
    scene.suspects.send_replace(Some(ME));
    scene.sim.run_for(200 * MS);
    assert_eq!(noted(&scene.hints).len(), 1);
}

/// The coordinator of a cluster in which nobody is up any more.
struct Ousting {
    cluster: ClusterId,
    /// What it says to pings all the same.
    caller_is_member: bool,
}

impl Service for Ousting {
    fn handle(&self, _: Peer, frame: Frame) -> Handled {
        let version = ServerListVersion(2);
        Handled::Now(if frame.opcode == Opcode::Ping as u16 {
            reply::<Ping>(&Ok(PingReply {
                server: ServerId(0),
                server_list: version,
                caller_is_member: self.caller_is_member,
                cluster: self.cluster,
            }))
        } else {
            assert_eq!(frame.opcode, Opcode::GetServerList as u16);
            reply::<GetServerList>(&Ok(GetServerListReply {
                cluster: self.cluster,
                list: ServerList {
                    version,
                    servers: Vec::new(),
                    grown: true,
                    ..ServerList::default()
                },
            }))
        })
    }
}

/// The only server of cluster 1, and a coordinator.
fn pair(answering: Ousting) -> (Sim, ProcessEnv, Arc<Membership>) {
    let sim = Sim::new(7, SimOptions::default());
    let (coordinator, me) = (sim.process("coordinator"), sim.process("server-1"));
    let env = coordinator.env;
    sim.spawn(coordinator.id, "listen", async move {
        let at = Address::from("coordinator");
        let open = env.network.listen(&at, Arc::new(answering)).await;
        let _open = open.expect("the address is free");
        std::future::pending::<()>().await;
    });
    let membership = Membership::new();
    let list = ServerList {
        version: ServerListVersion(1),
        servers: vec![info(ME.0)],
        grown: true,
        ..ServerList::default()
    };
    membership.enlisted(ME, ClusterId(1), list);
    (sim, me, membership)
}

fn coordinators() -> Arc<Coordinators> {
    Arc::new(Coordinators::new(vec![Address::from("coordinator")]))
}

/// It pings nobody, and nobody pings it any more: only the coordinator can tell (MEM-5).
// shows: MEM-5
#[test]
fn the_only_server_learns_that_it_was_declared_dead() {
    let (sim, me, membership) = pair(Ousting {
        cluster: ClusterId(1),
        caller_is_member: false,
    });
    let _tasks = Watcher {
        env: me.env,
        membership: Arc::clone(&membership),
        coordinators: coordinators(),
        options: PingOptions::default(),
        suspects: watch::Sender::new(None).subscribe(),
    }
    .start();
    sim.run_for(MS);
    assert!(membership.is_member());
    sim.run_for(Duration::from_secs(5));
    assert!(!membership.is_member());
}

/// Neither its list nor its word that the server is up counts (MEM-6).
// shows: MEM-6
#[test]
fn a_coordinator_of_another_cluster_neither_ousts_nor_confirms() {
    for (cluster, caller_is_member) in [(1, true), (2, true), (2, false)] {
        let (sim, me, membership) = pair(Ousting {
            cluster: ClusterId(cluster),
            caller_is_member,
        });
        let (env, members) = (me.env, Arc::clone(&membership));
        let ask = async move {
            let limit = Duration::from_secs(1);
            let confirmed = is_confirmed(&env, &coordinators(), &members, limit).await;
            ask_coordinator(&env, &coordinators(), &members).await;
            confirmed
        };
        let confirmed = sim.block_on(me.id, ask, Duration::from_secs(5));
        let is_ours = cluster == 1;
        assert_eq!(confirmed.expect("it is answered"), is_ours);
        assert_eq!(membership.is_member(), !is_ours, "cluster {cluster}");
    }
}
