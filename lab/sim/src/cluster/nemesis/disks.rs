//! Slow, full and failing disks, and bits that turn over on them; and single devices of servers
//! that have two, of which no data are lost for good.
//!
//! Slow and full disks cost no replica, so any server may have one. A failing disk and a turned bit
//! do: both happen only to the one server of the run that the plan calls weak, and only where no
//! write is acknowledged on fewer than two replicas. So at most one copy of anything is lost.

use crate::cluster::nemesis::{Targets, below, trouble};
use crate::device::DeviceMode;
use crate::options::DiskFaults;
use crate::random::{MILLION, Stream};
use crate::sim::Sim;
use crate::state::ProcessId;
use core::time::Duration;
use pluvio_format::{FRAME_DATA_OFFSET, FRAME_SLOT_BYTES, FRAME_SLOTS, newest_frame_header};
use std::collections::{BTreeMap, BTreeSet};

/// Disks in trouble, and until when.
#[derive(Default)]
pub(super) struct Disks {
    whole: BTreeMap<usize, Duration>,
    /// One device of a server each.
    devices: BTreeMap<usize, (usize, Duration)>,
    /// Servers whose disks were ever in trouble.
    struck: BTreeSet<usize>,
}

impl Disks {
    /// Makes the disk of a server slow, full or faulty for some time. Gives how many.
    pub(super) fn trouble(
        &mut self,
        draw: &mut Stream,
        targets: &mut Targets<'_>,
        weak: Option<usize>,
        time_max: Duration,
    ) -> u64 {
        let any = draw.below(targets.nodes.servers() as u64) as usize;
        let kind = draw.below(3);
        let server = match weak {
            Some(weak) if kind == 2 => weak,
            _ => any,
        };
        let process = targets.nodes.server_processes()[server];
        let faults = match (kind, weak) {
            (0, _) => slow(draw),
            (1, _) | (_, None) => full(draw, targets.sim, process),
            (_, Some(_)) => failing(draw),
        };
        let until = targets.sim.now() + trouble(draw, time_max);
        targets.sim.set_disk(process, faults);
        targets.nodes.note_disk_trouble(server, true);
        self.whole.insert(server, until);
        self.struck.insert(server);
        1
    }

    /// Makes one of the two devices of a server fail, hang or be full for a time. Gives how many.
    pub(super) fn trouble_device(
        &mut self,
        draw: &mut Stream,
        targets: &mut Targets<'_>,
        time_max: Duration,
    ) -> u64 {
        /// Longer than it takes to leave a device that hangs.
        const LONG: Duration = Duration::from_secs(15);
        let server = draw.below(targets.nodes.servers() as u64) as usize;
        let device = draw.below(2) as usize;
        let mode = match draw.below(5) {
            0..2 => DeviceMode::Fails,
            2..4 => DeviceMode::Hangs,
            _ => DeviceMode::Full,
        };
        let time = match draw.below(2) {
            0 => below(draw, LONG),
            _ => trouble(draw, time_max),
        };
        // One at a time: the other one is to work.
        if self.devices.contains_key(&server) {
            return 0;
        }
        targets.nodes.set_device(server, device, mode);
        targets.nodes.note_disk_trouble(server, true);
        let until = targets.sim.now() + time;
        self.devices.insert(server, (device, until));
        self.struck.insert(server);
        1
    }

    /// Restarts all servers whose disks were in trouble, so that they have both devices again.
    pub(super) fn plug_in(&mut self, targets: &mut Targets<'_>) {
        for server in core::mem::take(&mut self.struck) {
            if targets.nodes.is_up(server) {
                targets.nodes.crash(targets.sim, server, Duration::ZERO);
            }
        }
    }

    /// Mends what is due at `now`, or everything.
    pub(super) fn mend(&mut self, targets: &mut Targets<'_>, now: Option<Duration>) {
        let mut mended = BTreeSet::new();
        self.whole.retain(|server, until| {
            let stays = now.is_some_and(|now| now < *until);
            if !stays {
                let process = targets.nodes.server_processes()[*server];
                targets.sim.set_disk(process, DiskFaults::default());
                mended.insert(*server);
            }
            stays
        });
        self.devices.retain(|server, (device, until)| {
            let stays = now.is_some_and(|now| now < *until);
            if !stays {
                let works = DeviceMode::Works;
                targets.nodes.set_device(*server, *device, works);
                mended.insert(*server);
            }
            stays
        });
        for server in mended {
            let trouble = self.whole.contains_key(&server) || self.devices.contains_key(&server);
            targets.nodes.note_disk_trouble(server, trouble);
        }
    }
}

fn slow(draw: &mut Stream) -> DiskFaults {
    let worst = Duration::from_millis(draw.between(1, 100));
    DiskFaults {
        latency_max: worst,
        sync_latency: worst * draw.between(1, 5) as u32,
        tail_ppm: draw.below(u64::from(MILLION) / 10) as u32,
        tail_max: worst * 10,
        bytes_per_second: draw.between(1 << 20, 200 << 20),
        ..DiskFaults::default()
    }
}

fn full(draw: &mut Stream, sim: &Sim, process: ProcessId) -> DiskFaults {
    // Mostly at once, sometimes in the middle of something.
    let room = match draw.below(2) {
        0 => 0,
        _ => draw.below(4 << 20),
    };
    DiskFaults {
        capacity: Some(sim.disk_used(process) + room),
        ..DiskFaults::default()
    }
}

fn failing(draw: &mut Stream) -> DiskFaults {
    let mut ppm = || match draw.below(4) {
        0 | 1 => 0,
        2 => draw.below(u64::from(MILLION) / 20) as u32,
        _ => MILLION,
    };
    DiskFaults {
        read_error_ppm: ppm(),
        write_error_ppm: ppm(),
        sync_error_ppm: ppm(),
        ..DiskFaults::default()
    }
}

/// Turns over one bit of a frame, mostly of its data, sometimes of its header. Gives how many.
pub(super) fn rot(draw: &mut Stream, sim: &Sim, process: ProcessId) -> u64 {
    /// Frames that are looked at until one with data is found.
    const TRIES: usize = 8;
    let files = sim.files(process);
    if files.is_empty() {
        return 0;
    }
    for _ in 0..TRIES {
        let path = &files[draw.below(files.len() as u64) as usize];
        let area = FRAME_SLOTS * FRAME_SLOT_BYTES;
        let Some(content) = sim.file_content(process, path) else {
            continue;
        };
        let header = content.get(..area).map(newest_frame_header);
        let Some(Ok(header)) = header else {
            continue;
        };
        if header.certified_length > 0 && content.len() > FRAME_DATA_OFFSET {
            let byte = match draw.below(8) {
                0 => draw.below(area as u64),
                // Certificates in line, too, and bytes behind those that the header knows of.
                _ => draw.between(FRAME_DATA_OFFSET as u64, content.len() as u64 - 1),
            };
            return u64::from(sim.flip_bit(process, path, byte * 8 + draw.below(8)));
        }
    }
    0
}
