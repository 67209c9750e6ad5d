//! How fast this disk is, for placing primary replicas (003 §7.1).

use bytes::Bytes;
use pluvio_env::{Disk, DiskError, Env, OpenMode};
use serde::{Deserialize, Serialize};

const FILE: &str = "disk-speed.json";
const FILE_NEW: &str = "disk-speed.json.new";
const FILE_MAX: usize = 4096;
const SCRATCH: &str = "disk-speed.tmp";
/// Bytes written and read back. Small, so that a start takes no noticeable time even on a slow disk;
/// enough to tell a hard disk from flash.
const TRIAL_BYTES: usize = 4 << 20;

#[derive(Serialize, Deserialize)]
struct Stored {
    mb_per_s: u32,
}

/// The disk's speed in MB/s, at least 1: measured, and remembered in the data directory for a start at which it cannot be. The
/// slower of writing (with a sync) and reading back counts, because the read alone mostly measures the page cache.
///
/// A disk that takes no writes, because it is full or failing, may have replicas that a recovery needs: it has the speed of the last time,
/// or counts as the slowest.
pub(crate) async fn disk_speed(env: &Env) -> u32 {
    match measure(env).await {
        Ok(speed) => {
            tracing::debug!(mb_per_s = speed, "disk measured");
            speed
        }
        Err(error) => {
            let known = load(&*env.disk).await;
            let speed = known.ok().flatten().unwrap_or(1);
            tracing::info!(mb_per_s = speed, %error, "the speed of the disk could not be measured");
            if let Err(error) = env.disk.remove(SCRATCH).await {
                // The next start tries again.
                tracing::debug!(%error, "{SCRATCH} stays");
            }
            speed
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
    let speed = u32::try_from(TRIAL_BYTES as u128 / slower)
        .unwrap_or(u32::MAX)
        .max(1);

    let text =
        serde_json::to_vec(&Stored { mb_per_s: speed }).expect("a number can be written as JSON");
    disk.remove(FILE_NEW).await?;
    let file = disk.open(FILE_NEW, OpenMode::New).await?;
    file.write_at(0, Bytes::from(text)).await?;
    file.sync().await?;
    disk.rename(FILE_NEW, FILE).await?;
    Ok(speed)
}
