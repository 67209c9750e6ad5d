//! The leader dies at every step of every operation, on any ground.

use super::Cluster;
use super::ground::Ground;
use super::steps::{Fate, Side, Stepped, Steps};
use super::story::named;
use pluvio_sim::SimOptions;
use pluvio_units::{HashKind, KeyHash, ServerId};
use pluvio_wire::{
    ClusterStatus, CreateTable, DropTable, MigrateTablet, RpcError, ServerState, SplitTablet,
    TableInfo, WhichTablet,
};
use std::sync::Arc;
use std::time::Duration;

/// Machines of a cluster.
const SERVERS: usize = 3;
/// More steps than any operation has.
const STEPS_MAX: u64 = 200;
/// Where a tablet is cut: inside of the first one of three.
const CUT: KeyHash = KeyHash(1 << 40);

/// What is under way when the leader dies.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Operation {
    /// A table is created.
    Create,
    /// One is created while a server is dead of which nobody knows it yet: that one gets a tablet,
    /// and never confirms it.
    Replace,
    /// One is dropped.
    Drop,
    /// A tablet is cut.
    Split,
    /// A tablet moves.
    Migrate,
    /// A server has crashed and is recovered.
    Recover,
    /// A server crashes and comes back at once, on its former disk.
    Return,
}

impl Operation {
    pub const ALL: [Self; 7] = [
        Self::Create,
        Self::Replace,
        Self::Drop,
        Self::Split,
        Self::Migrate,
        Self::Recover,
        Self::Return,
    ];

    /// Asks for it once. The answer may be lost with the leader.
    fn begin(self, cluster: &Cluster, to: ServerId) {
        match self {
            Self::Create => drop(cluster.try_once(create())),
            Self::Replace => {
                cluster.crash(0);
                drop(cluster.try_once(create()));
            }
            Self::Drop => drop(cluster.try_once(drop_table())),
            Self::Split => drop(cluster.try_once(split())),
            Self::Migrate => drop(cluster.try_once(migrate(to))),
            Self::Recover => cluster.crash(0),
            Self::Return => {
                cluster.crash(0);
                cluster.restart(0);
            }
        }
    }

    /// Asks until it is answered, as a client does; nothing is done twice.
    fn insist(self, cluster: &Cluster, to: ServerId) {
        match self {
            Self::Create | Self::Replace => {
                drop(cluster.ask(create()).expect("nothing is wrong with it"));
            }
            Self::Drop => match cluster.ask(drop_table()) {
                Ok(()) => {}
                Err(RpcError::Refused(refusal)) if refusal.fatal_kind().is_some() => {}
                Err(other) => panic!("{other}"),
            },
            Self::Split => drop(cluster.ask(split()).expect("nothing is wrong with it")),
            Self::Migrate => {
                for _ in 0..10 {
                    let reply = cluster.ask(migrate(to)).expect("nothing is wrong with it");
                    if reply.migration.is_none() {
                        return;
                    }
                    cluster.calm_down();
                }
                panic!("the tablet never arrives");
            }
            // Nobody has to ask.
            Self::Recover | Self::Return => {}
        }
    }

    /// Whether all of it is done; panics when a part of it is.
    fn is_done(self, cluster: &Cluster, status: &ClusterStatus, to: ServerId) -> bool {
        let names: Vec<&str> = status.tables.iter().map(|t| t.name.as_str()).collect();
        let expected: &[&[&str]] = match self {
            Self::Create | Self::Replace => &[&["new", "t"], &["t"]],
            Self::Drop => &[&[], &["t"]],
            Self::Split | Self::Migrate | Self::Recover | Self::Return => &[&["t"]],
        };
        let mut sorted = names.clone();
        sorted.sort_unstable();
        assert!(expected.contains(&sorted.as_slice()), "{names:?}");
        // Former owners are told last.
        cluster.until("no tablet is frozen any more", |c| {
            c.machines.iter().all(|machine| {
                let server = machine.state();
                let lives = c.sim.is_up(machine.process) && !server.is_dead;
                !lives || server.frozen.is_empty()
            })
        });
        let t = status.tables.iter().find(|t| t.name == "t");
        let up = status
            .list
            .servers
            .iter()
            .filter(|s| s.state == ServerState::Up);
        let up: Vec<ServerId> = up.map(|s| s.id).collect();
        match self {
            Self::Create => names.len() == 2,
            Self::Replace => names.len() == 2 && up.len() == SERVERS - 1,
            Self::Drop => t.is_none(),
            Self::Split => {
                let tablets = t.map_or(0, |t| t.tablets.len());
                assert!([SERVERS, SERVERS + 1].contains(&tablets), "{tablets}");
                tablets > SERVERS
            }
            Self::Migrate => t.is_some_and(|t| owner(t) == to),
            Self::Recover => up.len() == SERVERS - 1,
            Self::Return => up.len() == SERVERS && up.iter().any(|id| id.0 > SERVERS as u64),
        }
    }
}

fn create() -> CreateTable {
    CreateTable {
        name: "new".into(),
        span: None,
        hash: HashKind::Slots,
        quota: pluvio_wire::QuotaWish::default(),
        durability: pluvio_wire::DurabilityWish::default(),
    }
}

fn drop_table() -> DropTable {
    DropTable::of(named("t"))
}

fn split() -> SplitTablet {
    SplitTablet {
        table: named("t"),
        at: Some(CUT),
    }
}

/// The tablet below the cut, which is cut out by this.
fn migrate(to: ServerId) -> MigrateTablet {
    MigrateTablet {
        table: named("t"),
        tablet: WhichTablet::Containing(KeyHash(0)),
        to,
    }
}

/// Who has the first tablet.
fn owner(table: &TableInfo) -> ServerId {
    let first = table
        .tablets
        .iter()
        .find(|t| t.range.contains(KeyHash(0)))
        .expect("tablets cover every hash");
    first.owner
}

/// Plays one operation; the leader dies at a step of it, and another one goes on. `heir`: that one
/// dies too, at a step of its own, and a third one goes on.
fn play(
    ground: Arc<dyn Ground>,
    operation: Operation,
    (at, side): (u64, Side),
    heir: Option<(u64, Side)>,
) -> Steps {
    let alone = ground.look().is_exclusive();
    let steps = Steps::default();
    let ground = Arc::new(Stepped::new(ground, steps.clone()));
    let coordinators = match heir {
        _ if alone => 1,
        None => 2,
        Some(_) => 3,
    };
    let mut cluster = Cluster::on(1, SimOptions::default(), coordinators, ground);
    for index in 0..SERVERS {
        cluster.add_machine();
        cluster.until("it is enlisted", |c| c.id(index) != ServerId(0));
    }
    let table = cluster.create_table("t");
    cluster.calm_down();
    let from = owner(&table);
    let to = (1..=SERVERS as u64).map(ServerId).find(|id| *id != from);
    let to = to.expect("there are others");
    let leader = cluster.leader();
    if alone {
        cluster.keep_coordinator_running();
    }
    steps.arm(cluster.coordinators[leader], at, side);
    if let Some((at, side)) = heir {
        steps.arm_heir(at, side);
    }

    operation.begin(&cluster, to);
    // A crash is found out within a second or so, and the next leader leads after two or three.
    cluster.sim.run_for(Duration::from_secs(3));
    // Checks that each tablet is served by exactly the server that the coordinator names.
    let status = cluster.calm_down();
    operation.is_done(&cluster, &status, to);
    operation.insist(&cluster, to);
    let status = cluster.calm_down();
    assert!(operation.is_done(&cluster, &status, to), "{status:#?}");
    // Once more changes nothing.
    let stored = cluster.stored();
    operation.insist(&cluster, to);
    let again = cluster.calm_down();
    assert_eq!((&again.tables, &again.list), (&status.tables, &status.list));
    assert_eq!(stored, cluster.stored());
    assert!(cluster.leaders().len() == 1);
    let new = again.tables.iter().find(|t| t.name == "new");
    if operation == Operation::Replace && steps.deaths() == 0 {
        let widths = new.map(|new| new.tablets.iter().map(|t| t.range.last.0 - t.range.first.0));
        let smallest = widths.and_then(Iterator::min).expect("the table is there");
        assert!(
            smallest < u64::MAX / 5 * 2,
            "the dead server was to get a third, too"
        );
    }
    steps
}

/// Lets the leader die before and after every step of every operation, each time on a new ground.
/// Gives how many deaths that were.
pub fn the_leader_dies_at_every_step(new_ground: &dyn Fn() -> Arc<dyn Ground>) -> usize {
    let mut deaths = 0;
    for operation in Operation::ALL {
        let mut at = 0;
        loop {
            assert!(at < STEPS_MAX, "{operation:?} never ends");
            let fates = [Side::Before, Side::After].map(|side| {
                let note = Note(format!("{operation:?}, {side:?} step {at}"));
                let steps = play(new_ground(), operation, (at, side), None);
                drop(note);
                steps.fate()
            });
            let died = fates.iter().filter(|fate| matches!(fate, Fate::Died(_)));
            deaths += died.count();
            if fates[0] == Fate::NotReached {
                break;
            }
            at += 1;
        }
        // At least the change itself and one message; otherwise nothing was tested.
        assert!(at >= 2, "{operation:?} has only {at} steps");
    }
    deaths
}

/// Steps of a second leader at which it dies: those in which it takes over and takes up what the
/// first one left.
const HEIR_STEPS: u64 = 12;

/// Lets the leader die after every step of every operation, and the next one at each of its first
/// steps. Gives how many times both died.
pub fn the_next_leader_dies_too(new_ground: &dyn Fn() -> Arc<dyn Ground>) -> usize {
    let mut deaths = 0;
    for operation in Operation::ALL {
        for at in 0..STEPS_MAX {
            let mut first_died = false;
            for heir_at in 0..HEIR_STEPS {
                // Each side of half of them: the neighbours make up for the other one.
                let side = match (at + heir_at) % 2 {
                    0 => Side::Before,
                    _ => Side::After,
                };
                let what = format!("{operation:?}, after step {at}, the next {side:?} {heir_at}");
                let note = Note(what);
                let heir = Some((heir_at, side));
                let steps = play(new_ground(), operation, (at, Side::After), heir);
                drop(note);
                first_died |= steps.deaths() > 0;
                deaths += usize::from(steps.deaths() == 2);
                if steps.fate() == Fate::NotReached {
                    break;
                }
            }
            if !first_died {
                break;
            }
        }
    }
    deaths
}

/// Says where a panic was.
struct Note(String);

impl Drop for Note {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("the leader was to die: {}", self.0);
        }
    }
}
