//! A backup with two data directories, each on a device of its own.

use crate::support::{CLUSTER, CORE, Image, MASTER, Node, replicas};
use pluvio_backup::{Backup, BackupError, BackupOptions, DataDirectory, DirectoryStats};
use pluvio_env::{Address, Frame, Handled, Listening, Peer, Service};
use pluvio_format::SegmentKind::{Head, Side};
use pluvio_sim::{Device, DeviceMode, DeviceSwitch, DiskFaults};
use pluvio_units::{ReplicationEpoch, SegmentId, ServerId};
use pluvio_wire::{
    Answer, FatalKind, FreeReplica, IsReplicaNeeded, IsReplicaNeededReply, Opcode, Refusal,
    ReplicasLost, StartRecovery, WriteReplica, decode, handled,
};
use std::sync::{Arc, Mutex};
use std::time::Duration;

const SECOND: &str = "second/";

/// A machine with two devices.
pub struct Machine {
    pub node: Node,
    switches: [DeviceSwitch; 2],
    options: BackupOptions,
}

impl Machine {
    pub fn new(seed: u64) -> Self {
        let mut machine = Self {
            node: Node::new(seed),
            switches: Default::default(),
            options: BackupOptions::default(),
        };
        machine.plug();
        machine
    }

    fn plug(&mut self) {
        let disk = Arc::clone(&self.node.env.disk);
        let second = Device::of(Arc::clone(&disk), SECOND, self.switches[1].clone());
        self.node.env.disk = Device::of(disk, "", self.switches[0].clone());
        self.options.further = vec![DataDirectory {
            name: "/second".to_owned(),
            disk: second,
        }];
    }

    pub fn start(&self) -> Backup {
        self.node.start_with(self.options.clone())
    }

    pub fn restart(&mut self) -> Backup {
        self.node.sim.crash(self.node.process);
        self.node.restart();
        self.plug();
        self.start()
    }

    pub fn write(&self, backup: &Backup, request: WriteReplica) -> Result<(), Refusal> {
        self.node.write(backup, request)
    }

    /// Writes closed side segments.
    pub fn fill(&self, backup: &Backup, segments: std::ops::Range<u64>) {
        for segment in segments {
            let request = Image::new(segment, Side, 3).whole(segment, Side);
            self.write(backup, request).unwrap();
        }
    }

    pub fn free(&self, backup: &Backup, segment: u64) {
        let request = FreeReplica {
            cluster: CLUSTER,
            master: MASTER,
            segment: SegmentId(segment),
        };
        let backup = backup.clone();
        let freed = async move { backup.free_replica(CORE, request).await };
        assert_eq!(self.node.run(freed), Ok(()));
    }

    /// The segments whose frames lie in the second data directory.
    pub fn in_second(&self) -> Vec<u64> {
        self.segments_below(&format!("{SECOND}frames/"))
    }

    pub fn in_first(&self) -> Vec<u64> {
        self.segments_below("frames/")
    }

    fn segments_below(&self, folder: &str) -> Vec<u64> {
        let files = self.node.sim.files(self.node.process);
        let names = files.iter().filter_map(|path| path.strip_prefix(folder));
        let segment = |name: &str| u64::from_str_radix(name.split_once('-')?.1, 16).ok();
        names.filter_map(segment).collect()
    }

    pub fn run_for(&self, seconds: u64) {
        self.node.sim.run_for(Duration::from_secs(seconds));
    }

    /// Starts a master that notes what it is told.
    pub fn master(&self) -> (Arc<Mutex<Vec<u64>>>, Listening) {
        let told = Arc::<Mutex<Vec<u64>>>::default();
        let master = self.node.sim.process("master");
        let (network, service) = (master.env.network, Told(Arc::clone(&told)));
        let listens = async move {
            let address = Address::from("server-3");
            network.listen(&address, Arc::new(service)).await
        };
        let port = self
            .node
            .sim
            .block_on(master.id, listens, Duration::from_secs(1));
        (told, port.expect("ends").expect("listens"))
    }
}

/// A master that needs everything.
struct Told(Arc<Mutex<Vec<u64>>>);

impl Service for Told {
    fn handle(&self, _peer: Peer, request: Frame) -> Handled {
        if request.opcode == Opcode::IsReplicaNeeded as u16 {
            let (_, question) = decode::<IsReplicaNeeded>(&request).unwrap();
            let needed = vec![true; question.segments.len()];
            return handled::<IsReplicaNeeded>(Answer::Now(Ok(IsReplicaNeededReply { needed })));
        }
        let (_, message) = decode::<ReplicasLost>(&request).expect("is that message");
        assert_eq!((message.cluster, message.backup), (CLUSTER, ServerId(1)));
        let mut told = self.0.lock().unwrap();
        told.extend(message.segments.iter().map(|s| s.0));
        handled::<ReplicasLost>(Answer::Now(Ok(())))
    }
}

pub fn offered(machine: &Machine, backup: &Backup) -> Vec<u64> {
    let replicas = replicas(&machine.node, backup);
    let mut offered: Vec<u64> = replicas.iter().map(|r| r.segment.0).collect();
    offered.sort_unstable();
    offered
}

pub fn left(backup: &Backup) -> Vec<bool> {
    let directories = backup.directories();
    directories.iter().map(|d| d.left.is_some()).collect()
}

#[test]
fn frames_are_spread_and_found_again() {
    let mut machine = Machine::new(1);
    let backup = machine.start();
    machine.fill(&backup, 1..41);
    let (first, second) = (machine.in_first(), machine.in_second());
    assert!(
        first.len() >= 10 && second.len() >= 10,
        "{first:?} {second:?}"
    );
    let held: Vec<u64> = backup.directories().iter().map(|d| d.frames).collect();
    assert_eq!(held, [first.len() as u64, second.len() as u64]);
    machine.node.sim.power_loss(machine.node.process);
    let backup = machine.restart();
    for segment in [first[0], second[0]] {
        machine.free(&backup, segment);
    }
    let mut rest = [&first[1..], &second[1..]].concat();
    rest.sort_unstable();
    assert_eq!(offered(&machine, &backup), rest);
    assert_eq!(
        (machine.in_first().len(), machine.in_second().len()),
        (first.len() - 1, second.len() - 1)
    );
    let bytes: u64 = backup.directories().iter().map(|d| d.frame_bytes).sum();
    assert_eq!(bytes, backup.stats().frame_bytes);
}

// shows: BACKUP-14
#[test]
fn a_data_directory_that_fails_is_left_in_seconds_and_its_masters_are_told() {
    let _marks = pluvio_units::Marks::to_reach(&["backup-leaves-directory"]);
    for failing in [1, 0] {
        let mut machine = Machine::new(2);
        let (told, _port) = machine.master();
        let backup = machine.start();
        machine.fill(&backup, 1..21);
        let image = Image::new(50, Head, 10);
        machine
            .write(&backup, image.request(50, Head, 0, 1))
            .unwrap();
        let lost = match failing {
            0 => machine.in_first(),
            _ => machine.in_second(),
        };
        machine.switches[failing].set(DeviceMode::Fails);
        // Frames are refused until it is left; none is acknowledged that is lost then.
        let mut written = Vec::new();
        for segment in 100..120 {
            let request = Image::new(segment, Side, 3).whole(segment, Side);
            match machine.write(&backup, request) {
                Ok(()) => written.push(segment),
                Err(refusal) => assert_eq!(refusal.fatal_kind(), Some(FatalKind::NotFound)),
            }
        }
        if lost.contains(&50) {
            // The others may all have gone to the directory that has less.
            let rest = machine.write(&backup, image.request(50, Head, 1, 2));
            assert_eq!(rest.unwrap_err().fatal_kind(), Some(FatalKind::NotFound));
        }
        machine.run_for(10);
        let mut expected = [false; 2];
        expected[failing] = true;
        assert_eq!(left(&backup), expected);
        let mut known = told.lock().unwrap().clone();
        known.sort_unstable();
        known.dedup();
        let is_lost = |segment: &u64| lost.contains(segment);
        assert!(
            lost.iter().all(|segment| known.contains(segment)),
            "{known:?}"
        );
        // The rest of an open frame is refused where it was lost, and taken where it is.
        let rest = machine.write(&backup, image.request(50, Head, 1, 2));
        match is_lost(&50) {
            true => assert_eq!(rest.unwrap_err().fatal_kind(), Some(FatalKind::NotFound)),
            false => assert_eq!(rest, Ok(())),
        }
        machine.fill(&backup, 200..210);
        // A master may free what it has replaced, though the file stays.
        machine.free(&backup, lost[0]);
        let all = (1..21).chain([50]).chain(written.clone()).chain(200..210);
        let expected: Vec<u64> = all.filter(|segment| !known.contains(segment)).collect();
        assert_eq!(offered(&machine, &backup), expected);
        // The next life has them again.
        machine.switches[failing].set(DeviceMode::Works);
        let backup = machine.restart();
        assert_eq!(left(&backup), [false; 2]);
        let found = offered(&machine, &backup);
        let mut expected: Vec<u64> = (1..21).chain([50]).chain(written).chain(200..210).collect();
        expected.retain(|segment| !found.contains(segment));
        assert_eq!(expected, Vec::<u64>::new(), "found again");
    }
}

// shows: BACKUP-14
#[test]
fn a_data_directory_that_hangs_is_left_and_nobody_waits_for_it() {
    let machine = Machine::new(3);
    let backup = machine.start();
    let heads: Vec<u64> = (2..12).collect();
    for head in &heads {
        machine
            .write(&backup, image_of(*head).request(*head, Head, 0, 1))
            .unwrap();
    }
    let lost = machine.in_second();
    assert!(!lost.is_empty() && lost.len() < heads.len());
    machine.switches[1].set(DeviceMode::Hangs);
    let results = Arc::<Mutex<Vec<_>>>::default();
    for head in heads.clone() {
        let (writer, request) = (backup.clone(), image_of(head).request(head, Head, 1, 2));
        let results = Arc::clone(&results);
        machine
            .node
            .sim
            .spawn(machine.node.process, "writer", async move {
                let result = writer.write_replica(CORE, request).await;
                results.lock().unwrap().push((head, result));
            });
    }
    machine.run_for(5);
    assert_eq!(left(&backup), [false; 2]);
    // New frames go elsewhere at once.
    machine.fill(&backup, 100..110);
    assert_eq!(machine.in_second(), lost);
    machine.run_for(10);
    assert_eq!(left(&backup), [false, true]);
    let results = results.lock().unwrap().clone();
    assert_eq!(results.len(), heads.len(), "all were answered");
    for (head, result) in results {
        match lost.contains(&head) {
            true => assert_eq!(result.unwrap_err().fatal_kind(), Some(FatalKind::NotFound)),
            false => assert_eq!(result, Ok(())),
        }
    }
    // A recovery is told at once.
    let recovered = backup.clone();
    let listed = { machine.node }
        .run(async move { recovered.start_recovery(StartRecovery::of(MASTER)).await })
        .unwrap();
    let damaged: Vec<u64> = listed
        .damaged
        .iter()
        .map(|(segment, _)| segment.0)
        .collect();
    assert_eq!(damaged, lost);
}

pub fn image_of(segment: u64) -> Image {
    Image::new(segment, Head, 10)
}

// shows: BACKUP-14
#[test]
fn the_last_data_directory_is_never_left() {
    for mode in [DeviceMode::Fails, DeviceMode::Hangs] {
        let machine = Machine::new(4);
        let backup = machine.start();
        machine.fill(&backup, 1..11);
        for switch in &machine.switches {
            switch.set(mode);
        }
        for segment in 100..110 {
            let (writer, request) = (
                backup.clone(),
                Image::new(segment, Side, 3).whole(segment, Side),
            );
            machine
                .node
                .sim
                .spawn(machine.node.process, "writer", async move {
                    drop(writer.write_replica(CORE, request).await);
                });
        }
        machine.run_for(40);
        assert!(left(&backup).contains(&false), "{mode:?}");
        if mode == DeviceMode::Hangs {
            assert_eq!(left(&backup), [false; 2], "none works, so none is left");
        }
    }
}

#[test]
fn a_frame_that_one_full_directory_refuses_goes_to_another_one() {
    let _marks = pluvio_units::Marks::to_reach(&["backup-opens-frame-elsewhere"]);
    let machine = Machine::new(5);
    let backup = machine.start();
    machine.switches[1].set(DeviceMode::Full);
    machine.fill(&backup, 1..21);
    assert_eq!(machine.in_first().len(), 20);
    assert_eq!(left(&backup), [false; 2]);
    machine.switches[1].set(DeviceMode::Works);
    machine.run_for(6);
    machine.fill(&backup, 21..31);
    assert_eq!(machine.in_second(), (21..31).collect::<Vec<_>>());
    for switch in &machine.switches {
        switch.set(DeviceMode::Full);
    }
    let request = Image::new(40, Side, 3).whole(40, Side);
    let refusal = machine.write(&backup, request).unwrap_err();
    assert!(refusal.to_string().contains("space"), "{refusal}");
}

/// A server started without its second device gets a replica again that lies there, too.
// shows: BACKUP-14
#[test]
fn of_a_replica_that_two_directories_have_the_better_one_is_kept() {
    let _marks = pluvio_units::Marks::to_reach(&["backup-finds-frame-twice"]);
    for first_is_closed in [true, false] {
        let mut machine = Machine::new(6);
        let image = Image::new(2, Head, 10);
        let further = machine.options.further.clone();
        // Alone in the second directory, as it was when the first one was lost.
        machine.node.env.disk = Arc::clone(&further[0].disk);
        machine.options.further.clear();
        let backup = machine.start();
        let mut request = image.request(2, Head, 0, 5);
        if !first_is_closed {
            request.epoch = ReplicationEpoch(3);
        }
        machine.write(&backup, request).unwrap();
        machine.node.sim.crash(machine.node.process);
        machine.node.restart();
        machine.plug();
        machine.options.further.clear();
        let backup = machine.start();
        let request = match first_is_closed {
            true => image.whole(2, Head),
            false => image.request(2, Head, 0, 7),
        };
        machine.write(&backup, request).unwrap();
        assert_eq!(
            (machine.in_first(), machine.in_second()),
            (vec![2], vec![2])
        );
        let backup = machine.restart();
        let kept = replicas(&machine.node, &backup);
        assert_eq!(kept.len(), 1);
        assert_eq!(
            (kept[0].closed, kept[0].epoch),
            match first_is_closed {
                true => (true, ReplicationEpoch(0)),
                false => (false, ReplicationEpoch(3)),
            }
        );
        let files = (machine.in_first(), machine.in_second());
        assert_eq!(
            files,
            match first_is_closed {
                true => (vec![2], vec![]),
                false => (vec![], vec![2]),
            }
        );
        assert_eq!(backup.stats().frames, 1);
    }
}

// shows: BACKUP-14
#[test]
fn a_directory_that_fails_at_start_stops_it_unless_it_may_be_left() {
    let mut machine = Machine::new(7);
    let backup = machine.start();
    machine.fill(&backup, 1..11);
    let there = machine.in_first();
    machine.node.sim.crash(machine.node.process);
    machine.node.restart();
    machine.plug();
    machine.switches[1].set(DeviceMode::Fails);
    let error = machine
        .node
        .try_start(machine.options.clone())
        .err()
        .unwrap();
    assert!(matches!(error, BackupError::FurtherDisk { .. }), "{error}");
    assert!(error.to_string().contains("/second"), "{error}");
    machine.options.leaves_failed = true;
    machine.options.missing = vec![("/third".to_owned(), "is gone".to_owned())];
    let backup = machine.start();
    assert_eq!(left(&backup), [false, true, true]);
    assert_eq!(offered(&machine, &backup), there);
    let third = backup.directories()[2].clone();
    let expected = DirectoryStats {
        name: "/third".to_owned(),
        left: Some("is gone".to_owned()),
        ..DirectoryStats::default()
    };
    assert_eq!(third, expected);
}

impl Machine {
    /// One without the second data directory.
    pub fn of_one(seed: u64) -> Self {
        let mut machine = Self::new(seed);
        machine.options.further.clear();
        machine
    }

    fn waiting(&self) -> Vec<usize> {
        self.switches.iter().map(DeviceSwitch::waiting).collect()
    }
}

// shows: BACKUP-14, BACKUP-15
#[test]
fn a_data_directory_that_hangs_is_left_though_nobody_uses_it() {
    let _marks = pluvio_units::Marks::to_reach(&["backup-trial-finds-hang"]);
    for hanging in [1, 0] {
        let machine = Machine::new(20);
        let (told, _port) = machine.master();
        let backup = machine.start();
        machine.fill(&backup, 1..21);
        machine.run_for(60);
        assert_eq!(left(&backup), [false; 2]);
        let lost = match hanging {
            0 => machine.in_first(),
            _ => machine.in_second(),
        };
        machine.switches[hanging].set(DeviceMode::Hangs);
        machine.run_for(8);
        assert_eq!(left(&backup), [false; 2]);
        assert_eq!(machine.waiting()[hanging], 1, "one trial at a time");
        machine.run_for(10);
        let mut expected = [false; 2];
        expected[hanging] = true;
        assert_eq!(left(&backup), expected);
        assert_eq!(machine.waiting(), [0; 2], "nothing waits for it any more");
        let mut known = told.lock().unwrap().clone();
        known.sort_unstable();
        known.dedup();
        assert_eq!(known, lost);
        machine.fill(&backup, 100..110);
    }
}

// shows: BACKUP-14, BACKUP-15
#[test]
fn a_data_directory_that_fails_is_left_though_nobody_uses_it() {
    let machine = Machine::new(21);
    let backup = machine.start();
    machine.fill(&backup, 1..21);
    machine.run_for(60);
    machine.switches[1].set(DeviceMode::Fails);
    machine.run_for(8);
    assert_eq!(left(&backup), [false, true]);
    // A full one works.
    machine.switches[0].set(DeviceMode::Full);
    machine.run_for(60);
    assert_eq!(left(&backup), [false, true]);
    assert_eq!(trouble(&backup), [None, None]);
}

pub fn trouble(backup: &Backup) -> Vec<Option<String>> {
    let directories = backup.directories().into_iter();
    directories.map(|directory| directory.trouble).collect()
}

// shows: BACKUP-15
#[test]
fn data_directories_that_all_hang_are_left_when_another_works_again() {
    let machine = Machine::new(22);
    let backup = machine.start();
    machine.fill(&backup, 1..21);
    for switch in &machine.switches {
        switch.set(DeviceMode::Hangs);
    }
    machine.run_for(600);
    assert_eq!(left(&backup), [false; 2]);
    assert_eq!(machine.waiting(), [1; 2], "one trial at a time");
    for why in trouble(&backup) {
        let why = why.unwrap();
        assert!(why.contains("a trial has not ended"), "{why}");
    }
    machine.switches[0].set(DeviceMode::Works);
    machine.run_for(3);
    assert_eq!(left(&backup), [false, true]);
    assert_eq!(trouble(&backup), [None, None]);
}

// shows: BACKUP-13, BACKUP-15
#[test]
fn an_only_data_directory_that_hangs_ends_the_server_and_one_that_fails_does_not() {
    let _marks = pluvio_units::Marks::to_reach(&["backup-hangs"]);
    let machine = Machine::of_one(23);
    let backup = machine.start();
    machine.fill(&backup, 1..5);
    let said = machine.watch(&backup);
    for mode in [DeviceMode::Fails, DeviceMode::Works] {
        machine.switches[0].set(mode);
        machine.run_for(60);
        assert_eq!(left(&backup), [false]);
        let fails = mode == DeviceMode::Fails;
        assert_eq!(trouble(&backup)[0].is_some(), fails, "{mode:?}");
    }
    machine.fill(&backup, 5..9);
    machine.switches[0].set(DeviceMode::Hangs);
    machine.run_for(18);
    assert_eq!(*said.lock().unwrap(), None);
    machine.run_for(12);
    let why = said.lock().unwrap().take().unwrap();
    assert!(why.starts_with("its disk hangs: a trial of "), "{why}");
    assert_eq!(machine.waiting()[0], 1, "one trial at a time");
}

/// Nothing runs for a while in the middle of a trial.
// shows: BACKUP-15
#[test]
fn a_process_that_stood_still_accuses_no_disk() {
    let machine = Machine::new(24);
    let backup = machine.start();
    let second = Duration::from_secs(1);
    let slow = DiskFaults {
        latency_min: second,
        latency_max: second,
        ..DiskFaults::default()
    };
    machine.node.sim.set_disk(machine.node.process, slow);
    for _ in 0..20 {
        machine.run_for(3);
        machine.node.sim.pause(machine.node.process);
        machine.run_for(60);
        machine.node.sim.resume(machine.node.process);
    }
    machine.run_for(10);
    assert_eq!(left(&backup), [false; 2]);
    assert_eq!(trouble(&backup), [None, None]);
}

// shows: BACKUP-15
#[test]
fn without_trials_a_data_directory_that_nobody_uses_is_left_alone() {
    let mut machine = Machine::new(25);
    machine.options.tries_idle = false;
    let backup = machine.start();
    machine.switches[1].set(DeviceMode::Hangs);
    machine.run_for(60);
    assert_eq!(left(&backup), [false; 2]);
    assert_eq!(machine.waiting(), [0; 2]);
}

// shows: BACKUP-14, BACKUP-15
#[test]
fn a_data_directory_that_is_gone_is_left_though_its_open_files_work() {
    let _marks = pluvio_units::Marks::to_reach(&["backup-leaves-directory"]);
    for gone in [1, 0] {
        let machine = Machine::new(26);
        let (told, _port) = machine.master();
        let backup = machine.start();
        machine.fill(&backup, 1..21);
        let heads: Vec<u64> = (50..60).collect();
        for head in &heads {
            let request = image_of(*head).request(*head, Head, 0, 1);
            machine.write(&backup, request).unwrap();
        }
        machine.run_for(60);
        let lost = match gone {
            0 => machine.in_first(),
            _ => machine.in_second(),
        };
        let is_lost = |head: &&u64| lost.contains(head);
        let (of_lost, of_other): (Vec<&u64>, Vec<&u64>) = heads.iter().partition(is_lost);
        machine.switches[gone].set(DeviceMode::Gone);
        let write = |head: u64, from: usize| {
            let request = image_of(head).request(head, Head, from, from + 1);
            machine.write(&backup, request)
        };
        write(*of_lost[0], 1).expect("open files work");
        machine.run_for(8);
        let mut expected = [false; 2];
        expected[gone] = true;
        assert_eq!(left(&backup), expected);
        let why = backup.directories()[gone].left.clone().unwrap();
        assert!(why.contains("is not there any more"), "{why}");
        let mut known = told.lock().unwrap().clone();
        known.sort_unstable();
        known.dedup();
        assert_eq!(known, lost);
        let refused = write(*of_lost[0], 2).unwrap_err();
        assert_eq!(refused.fatal_kind(), Some(FatalKind::NotFound));
        write(*of_other[0], 1).expect("the other one works");
        machine.fill(&backup, 100..110);
    }
}

impl Machine {
    /// Notes why its server should end.
    fn watch(&self, backup: &Backup) -> Arc<Mutex<Option<String>>> {
        let said = Arc::<Mutex<Option<String>>>::default();
        let (watched, saying) = (backup.clone(), Arc::clone(&said));
        self.node.sim.spawn(self.node.process, "watch", async move {
            let why = watched.unusable().await;
            *saying.lock().unwrap() = Some(why);
        });
        said
    }
}

// shows: BACKUP-13, BACKUP-15
#[test]
fn an_only_data_directory_that_is_gone_ends_the_server() {
    let _marks = pluvio_units::Marks::to_reach(&["backup-directory-gone"]);
    let machine = Machine::of_one(27);
    let backup = machine.start();
    machine.fill(&backup, 1..5);
    let said = machine.watch(&backup);
    machine.run_for(60);
    assert_eq!(*said.lock().unwrap(), None);
    machine.switches[0].set(DeviceMode::Gone);
    machine.run_for(8);
    let why = said.lock().unwrap().take().unwrap();
    assert!(
        why.starts_with("its data directory the data directory is gone: "),
        "{why}"
    );
    assert!(why.contains("make an empty one"), "{why}");
}

/// The last one may come back for a while.
// shows: BACKUP-13, BACKUP-14
#[test]
fn data_directories_that_are_all_gone_end_the_server_a_little_later() {
    let machine = Machine::new(28);
    let backup = machine.start();
    machine.fill(&backup, 1..21);
    let said = machine.watch(&backup);
    for switch in &machine.switches {
        switch.set(DeviceMode::Gone);
    }
    machine.run_for(15);
    let last = left(&backup).iter().position(|left| !left).unwrap();
    assert!(left(&backup).contains(&true));
    let why = trouble(&backup)[last].clone().unwrap();
    assert!(why.contains("is not there any more"), "{why}");
    machine.switches[last].set(DeviceMode::Works);
    machine.run_for(15);
    assert_eq!(*said.lock().unwrap(), None);
    assert_eq!(trouble(&backup), [None, None]);
    machine.fill(&backup, 100..110);
    machine.switches[last].set(DeviceMode::Gone);
    machine.run_for(18);
    assert_eq!(*said.lock().unwrap(), None);
    machine.run_for(12);
    assert!(said.lock().unwrap().is_some());
}
