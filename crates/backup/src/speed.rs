//! How fast this disk is, for placing primary replicas [RAMCloud §7.1].

use bytes::Bytes;
use pluvio_env::{Disk, DiskError, Env, OpenMode, TimedOut, timeout};
use serde::{Deserialize, Serialize};
use std::time::Duration;

const FILE: &str = "disk-speed.json";
const FILE_NEW: &str = "disk-speed.json.new";
const FILE_MAX: usize = 4096;
const SCRATCH: &str = "disk-speed.tmp";
/// Bytes written and read back: enough to tell a hard disk from flash.
const TRIAL_BYTES: usize = 4 << 20;
/// How long a start waits for that. A disk that takes longer has less than 1 MB/s.
const TRIAL_MAX: Duration = Duration::from_secs(4);

#[derive(Serialize, Deserialize)]
struct Stored {
    mb_per_s: u32,
}

/// The disk's speed in MB/s, at least 1: measured, and remembered in the data directory for a start
/// at which it cannot be. The slower of writing (with a sync) and reading back counts, because the
/// read alone mostly measures the page cache.
///
/// A disk that is full, or fails, may have replicas that a recovery needs. It keeps its last
/// measured speed, or counts as the slowest. Others decide whether a server can run on it.
pub(crate) async fn disk_speed(env: &Env) -> u32 {
    let disk = &*env.disk;
    match timeout(&*env.clock, TRIAL_MAX, measure(env)).await {
        Ok(Ok(speed)) => {
            if let Err(error) = remember(disk, speed).await {
                tracing::debug!(mb_per_s = speed, %error, "the speed of the disk is not remembered");
            }
            speed
        }
        Ok(Err(error)) => {
            let known = load(disk).await;
            let speed = known.ok().flatten().unwrap_or(1);
            tracing::info!(mb_per_s = speed, %error, "the speed of the disk could not be measured");
            if let Err(error) = disk.remove(SCRATCH).await {
                // The next start tries again.
                tracing::debug!(%error, "{SCRATCH} stays");
            }
            speed
        }
        Err(TimedOut) => {
            tracing::info!(limit = ?TRIAL_MAX, "the disk is too slow for its speed to be measured");
            1
        }
    }
}

async fn load(disk: &dyn Disk) -> Result<Option<u32>, DiskError> {
    let file = match disk.open(FILE, OpenMode::Existing).await {
        Ok(file) => file,
        Err(DiskError::NotFound { .. }) => return Ok(None),
        Err(error) => return Err(error),
    };
    let text = file.read_at(0, FILE_MAX).await?;
    let stored: Result<Stored, _> = serde_json::from_slice(&text);
    Ok(stored.ok().map(|s| s.mb_per_s.max(1)))
}

async fn measure(env: &Env) -> Result<u32, DiskError> {
    let disk = &*env.disk;
    disk.remove(SCRATCH).await?;
    let file = disk.open(SCRATCH, OpenMode::New).await?;
    let start = env.clock.now();
    file.write_at(0, Bytes::from(vec![0x5a; TRIAL_BYTES]))
        .await?;
    file.sync().await?;
    let written = env.clock.now();
    file.read_at(0, TRIAL_BYTES).await?;
    let read = env.clock.now();
    disk.remove(SCRATCH).await?;
    // A microsecond at least: a simulated disk may take no time at all.
    let slower = written
        .since(start)
        .max(read.since(written))
        .as_micros()
        .max(1);
    let speed = u32::try_from(TRIAL_BYTES as u128 / slower).unwrap_or(u32::MAX);
    Ok(speed.max(1))
}

/// Not synced: without it a later start that needs it takes the disk for the slowest.
async fn remember(disk: &dyn Disk, mb_per_s: u32) -> Result<(), DiskError> {
    let text = serde_json::to_vec(&Stored { mb_per_s }).expect("a number can be written as JSON");
    disk.remove(FILE_NEW).await?;
    let file = disk.open(FILE_NEW, OpenMode::New).await?;
    file.write_at(0, Bytes::from(text)).await?;
    disk.rename(FILE_NEW, FILE).await
}
