//! Checks by themselves, among servers that answer by a script: which are asked, when, and whose
//! answer counts (DETECT-1).

use super::*;
use crate::lead::Campaign;
use crate::state::State;
use crate::store::MemoryStore;
use crate::testing;
use pluvio_env::{Address, BoxFuture, Env, Frame, Network};
use pluvio_sim::{Intercepted, Interceptor, ProcessId, Sim, SimHandle, SimOptions};
use pluvio_units::{ClusterId, ServerListVersion};
use pluvio_wire::{Enlist, Opcode, PROTOCOL_VERSION, Ping, PingReply, reply};
use std::collections::BTreeSet;
use std::sync::Mutex;

const CLUSTER: ClusterId = ClusterId(1);
const SECOND: Duration = Duration::from_secs(1);

/// Whether a server answers a ping that is sent so long after the first one of all.
type Script = fn(ServerId, Duration) -> bool;

/// When pings were sent, and to which server.
type Noted = Arc<Mutex<Vec<(Duration, ServerId)>>>;

/// Answers pings in place of the network.
struct Tap {
    sim: SimHandle,
    answers: Script,
    pings: Noted,
}

impl Interceptor for Tap {
    fn call<'a>(
        &'a self,
        _: &'a dyn Network,
        to: &'a Address,
        request: Frame,
        limit: Duration,
    ) -> BoxFuture<'a, Result<Frame, CallError>> {
        assert_eq!(request.opcode, Opcode::Ping as u16);
        let server = ServerId(to.0.parse().expect("addresses are ids"));
        let now = self.sim.now();
        let first = {
            let mut pings = self.pings.lock().unwrap();
            pings.push((now, server));
            pings[0].0
        };
        let answer = if (self.answers)(server, now - first) {
            Ok(reply::<Ping>(&Ok(PingReply {
                server,
                server_list: ServerListVersion(1),
                caller_is_member: true,
                cluster: CLUSTER,
            })))
        } else {
            Err(CallError::TimedOut(to.clone(), limit))
        };
        Box::pin(core::future::ready(answer))
    }
}

/// A coordinator that pings only suspects that the test names.
struct Scene {
    sim: Sim,
    process: ProcessId,
    detector: Arc<Detector>,
    store: MemoryStore,
    pings: Noted,
}

/// Servers 1, 2, … that are all up.
fn scene(servers: u64, answers: Script) -> Scene {
    scene_in((0..servers).map(|_| None).collect(), answers)
}

/// The same, each in its rack.
fn scene_in(racks: Vec<Option<&str>>, answers: Script) -> Scene {
    let sim = Sim::new(7, SimOptions::default());
    let process = sim.process("coordinator");
    let pings = Noted::default();
    let tap = Tap {
        sim: sim.handle(),
        answers,
        pings: pings.clone(),
    };
    let env = Env {
        network: Intercepted::new(process.env.network.clone(), tap),
        ..process.env
    };
    let mut state = State::new(CLUSTER);
    for (id, rack) in (1..).zip(racks) {
        let enlisted = state.enlist(enlist(id, rack)).unwrap();
        assert_eq!(enlisted.server, ServerId(id));
    }
    let store = MemoryStore::new();
    let copy = store.clone();
    let starting = async move {
        let campaign = Campaign {
            env: env.clone(),
            store: Arc::new(copy),
            candidate: 1,
            address: String::new(),
            known: None,
        };
        let tenure = campaign.run(&mut None, |_| (), |_| ()).await;
        let tenure = tenure.expect("nobody else leads");
        let tasks = Arc::new(TaskGroup::new(&env));
        let ledger = Ledger::new(&env, tasks.clone(), tenure, state);
        Detector::new(&env, Arc::default(), tasks, ledger)
    };
    let detector = sim.block_on(process.id, starting, SECOND);
    Scene {
        process: process.id,
        detector: detector.expect("it leads"),
        store,
        pings,
        sim,
    }
}

fn enlist(id: u64, rack: Option<&str>) -> Enlist {
    Enlist {
        protocol: PROTOCOL_VERSION,
        expects: None,
        cluster: None,
        replaces: None,
        attempt: id,
        logs: 0,
        info: ServerInfo {
            rack: rack.map(str::to_owned),
            ..testing::server(0, id.to_string())
        },
    }
}

impl Scene {
    fn suspect(&self, server: u64) {
        let detector = self.detector.clone();
        self.sim.spawn(self.process, "suspects", async move {
            detector.suspect(ServerId(server));
        });
    }

    /// A server answers this many pings that are none of a check's, one every 400 ms.
    fn answers(&self, server: u64, times: u32) {
        let detector = self.detector.clone();
        self.sim.spawn(self.process, "answers", async move {
            for _ in 0..times {
                let now = detector.env.clock.now();
                detector.seen().note_answer(ServerId(server), now);
                detector.env.clock.sleep(Duration::from_millis(400)).await;
            }
        });
    }

    /// Declares a server crashed, without any check.
    fn declare(&self, server: u64) {
        let ledger = self.detector.ledger.clone();
        self.sim.spawn(self.process, "declares", async move {
            let change = ledger.change(move |state| Ok(state.mark_crashed(ServerId(server))));
            assert_eq!(change.await, Ok(true));
        });
    }

    /// One more server enlists.
    fn enlist(&self, server: u64, rack: &'static str) {
        let ledger = self.detector.ledger.clone();
        self.sim.spawn(self.process, "enlists", async move {
            let change = ledger.change(move |state| state.enlist(enlist(server, Some(rack))));
            assert_eq!(change.await.unwrap().server, ServerId(server));
        });
    }

    fn is_up(&self, server: u64) -> bool {
        self.detector.ledger.state().is_up(ServerId(server))
    }

    /// How many milliseconds after the first ping of all a server was pinged.
    fn pings_of(&self, server: u64) -> Vec<u128> {
        let pings = self.pings.lock().unwrap();
        let of_it = pings.iter().filter(|(_, to)| *to == ServerId(server));
        of_it
            .map(|(at, _)| (*at - pings[0].0).as_millis())
            .collect()
    }
}

/// The others may have answered later than the suspect was asked for the fourth time, and contact
/// may be back since.
// shows: DETECT-1
#[test]
fn a_suspect_is_asked_once_more_before_it_is_convicted_and_one_answer_acquits_it() {
    let at_last: Script = |server, at| server == ServerId(2) || at >= SECOND;
    let never: Script = |server, _| server == ServerId(2);
    for (answers, is_up) in [(at_last, true), (never, false)] {
        let scene = scene(2, answers);
        scene.suspect(1);
        scene.sim.run_for(3 * SECOND);
        assert_eq!(scene.is_up(1), is_up);
        assert_eq!(scene.pings_of(1), [0, 250, 500, 750, 1000]);
    }
}

/// The store takes nothing for a while, and another change waits for it first.
// shows: DETECT-1
#[test]
fn a_verdict_is_void_if_the_suspect_answers_before_it_is_stored() {
    let _marks = pluvio_units::Marks::to_reach(&["detect-verdict-void"]);
    let later: Script = |server, at| server != ServerId(1) || at >= 3 * SECOND;
    let never: Script = |server, _| server != ServerId(1);
    for (answers, is_up) in [(later, true), (never, false)] {
        let scene = scene(3, answers);
        scene.store.fail_next(u32::MAX);
        scene.declare(3);
        scene.suspect(1);
        scene.sim.run_for(20 * SECOND);
        assert!(scene.is_up(1) && scene.is_up(3), "nothing is stored");
        scene.store.fail_next(0);
        scene.sim.run_for(5 * SECOND);
        assert_eq!((scene.is_up(1), scene.is_up(3)), (is_up, false));
    }
}

/// The only other server is silent when the check asks it, and has answered other pings: just now
/// each time, or once. The single answer came 100 ms before the first ping of the suspect.
// shows: DETECT-1
#[test]
fn an_answer_of_the_last_half_second_is_a_witness_and_an_earlier_one_is_none() {
    for (times, is_up, asked) in [(100, false, None), (1, true, Some(500))] {
        let scene = scene(2, |_, _| false);
        scene.answers(2, times);
        scene.sim.run_for(Duration::from_millis(100));
        scene.suspect(1);
        scene.sim.run_for(5 * SECOND);
        assert_eq!(scene.is_up(1), is_up, "{times} answers");
        assert_eq!(scene.pings_of(2).first().copied(), asked);
    }
}

// shows: DETECT-1
#[test]
fn eight_servers_that_nobody_suspects_are_asked_whether_anybody_answers() {
    let scene = scene(12, |_, _| false);
    for suspect in [2, 3] {
        assert!(scene.detector.seen().begin_check(ServerId(suspect)));
    }
    scene.suspect(1);
    scene.sim.run_for(10 * SECOND);
    let pings = scene.pings.lock().unwrap();
    // A round begins with the suspect.
    let rounds: Vec<_> = pings.split(|(_, to)| *to == ServerId(1)).skip(1).collect();
    assert!(rounds.len() >= 40, "{}", rounds.len());
    let mut all = BTreeSet::new();
    for round in rounds {
        let asked: BTreeSet<ServerId> = round.iter().map(|(_, to)| *to).collect();
        assert_eq!((round.len(), asked.len()), (8, 8), "{round:?}");
        all.extend(asked);
    }
    // Not always the same ones.
    assert_eq!(all, (4..=12).map(ServerId).collect());
}

/// A switch restarts, the rack is declared dead, and its processes come back as new lives.
// shows: DETECT-4
#[test]
fn servers_that_enlist_after_their_rack_was_silent_are_no_part_of_that() {
    let _marks = pluvio_units::Marks::to_reach(&["detect-rack-silent"]);
    let (a, b) = (Some("a"), Some("b"));
    let scene = scene_in(vec![a, a, b, b, b], |server, _| (3..=5).contains(&server.0));
    scene.suspect(1);
    scene.suspect(2);
    scene.sim.run_for(2 * SECOND);
    assert!(!scene.is_up(1) && !scene.is_up(2), "as one event");
    scene.enlist(6, "a");
    scene.sim.run_for(SECOND);
    scene.suspect(6);
    scene.sim.run_for(SECOND * 7 / 2);
    assert!(scene.is_up(6), "DETECT-2: two were convicted");
    scene.sim.run_for(2 * SECOND);
    assert!(!scene.is_up(6));
}

#[test]
fn convictions_are_remembered_for_a_while_also_where_no_server_names_a_rack() {
    let scene = scene(2, |_, _| true);
    let detector = &scene.detector;
    let suspect = testing::server(1, "1");
    for round in 0..10 {
        let now = scene.sim.now() + SECOND * 40 * round;
        let why = detector.convict(&suspect, Moment(now), 30 * SECOND);
        assert_eq!(why, Some("it was silent"));
        assert_eq!(detector.seen().convicted.len(), 1);
    }
}
